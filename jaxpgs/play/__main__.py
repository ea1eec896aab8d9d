"""Play against a search and watch it think, in a browser.

    python -m jaxpgs.play --network hex-9x9-large --search gumbel_pgs --seconds 2
    python -m jaxpgs.play --game Breakthrough:6,5 --search mcts --simulations 400

The page is served on this machine alone. The address is printed when everything is compiled.
"""

import argparse
import re
from typing import Any

import jaxpgs
from jaxpgs.checks import number, positive, refusals_in_one_line, seed, whole_number
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
    add("--seconds", type=number(0, 3600), default=0.0, help="for a move")
    add("--first", action="store_true", help="the search moves first")
    add("--moves", nargs="+", default=(), metavar="MOVE", help="of a game to look at")
    free = "0 for any that is free (default: 8137)"
    add("--port", type=whole_number(0, 65535), default=8137, help=free)
    add("--seed", type=seed, default=0)
    args = parser.parse_args(argv)
    if args.network and args.game:
        parser.error("a network has its own game, so give --network or --game, not both")
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
        words = sizes.split(",") if sizes else []
        if not all(re.fullmatch(r"-?\d+", word, re.ASCII) for word in words):
            raise ValueError(f"{text!r} is no game: sizes are numbers, as in Breakthrough:6,5")
        try:
            return getattr(jaxpgs.envs, name)(*map(int, words))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text!r} is no game: {error}") from error
    ours = f"{text!r} is no game: it must be one of {', '.join(GAMES)}, such as Hex:4,"
    try:
        import pgx
    except ImportError as error:
        raise ImportError(f"{ours} or a game of pgx, which is not installed") from error
    if text not in pgx.available_envs():
        raise ValueError(f"{ours} or of pgx: {', '.join(pgx.available_envs())}")
    return pgx.make(text)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
