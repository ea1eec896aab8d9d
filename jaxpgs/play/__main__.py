"""Play against a search and watch it think, in a browser.

    python -m jaxpgs.play --network hex-9x9-large --search gumbel_pgs --seconds 2
    python -m jaxpgs.play --game Breakthrough:6,5 --search mcts --simulations 400

The page is served on this machine alone. The address is printed when everything is compiled.
"""

import argparse
from typing import Any

import jaxpgs
from jaxpgs.checks import positive, refusals_in_one_line
from jaxpgs.play.board import show
from jaxpgs.play.server import serve
from jaxpgs.thinker import SEARCHES

GAMES = ("Hex", "Breakthrough", "Yavalath", "SameGame")


def main(argv: list[str] | None = None) -> None:
    """Serves the page; see the module's docstring."""
    parser = argparse.ArgumentParser(
        "python -m jaxpgs.play",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--network", help="a pretrained network, whose game is played (default: hex-9x9-large)")
    add("--directory", help="a folder of saved networks, in place of those of the library")
    add("--game", metavar="NAME:SIZES", help="a game judged by random playouts, such as Hex:4")
    add("--search", choices=SEARCHES, help="default: gumbel_pgs, without a network gumbel_mcts")
    add("--simulations", type=positive, help="a move; 400, or with --seconds as many as fit")
    add("--seconds", type=float, default=0.0, help="for a move")
    add("--first", action="store_true", help="the search moves first")
    add("--moves", nargs="+", default=(), metavar="MOVE", help="of a game to look at")
    add("--port", type=int, default=8137, help="0 for any that is free (default: 8137)")
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if not 0 <= args.seconds <= 3600 or not 0 <= args.port < 65536:
        parser.error("--seconds takes 0 to 3600, --port 0 to 65535")
    if args.network and args.game:
        parser.error("a network has its own game: give --network or --game")
    with refusals_in_one_line("jaxpgs.play"):
        network = None
        if args.game:
            env = read_game(args.game)
        else:
            name = args.network or "hex-9x9-large"
            network = jaxpgs.load_pretrained(name, directory=args.directory)
            env = network.env
        puzzle = getattr(env, "num_players", 2) == 1
        humans = (True,) if puzzle else (not args.first, args.first)
        simulations = args.simulations or (0 if args.seconds else 400)
        board = show(
            env, None, network, args.search, simulations=simulations, seconds=args.seconds,
            humans=None if args.moves else humans, seed=args.seed, moves=args.moves,
        )  # fmt: skip
        serve(board, args.port)


def read_game(text: str) -> Any:
    """Makes a game from text such as `Hex:4` or `Breakthrough:6,5`, or from a pgx id."""
    name, _, sizes = text.partition(":")
    if name in GAMES:
        try:
            numbers = [int(size) for size in sizes.split(",")] if sizes else []
            return getattr(jaxpgs.envs, name)(*numbers)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text!r} is no game: {error}") from error
    try:
        import pgx
    except ImportError as error:
        raise ImportError(f"{name!r} is none of {', '.join(GAMES)}, and pgx is missing") from error
    if name not in pgx.available_envs():
        raise ValueError(f"{name!r} is none of {', '.join(GAMES)}, and no game of pgx")
    return pgx.make(name)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
