"""A Hex engine that speaks GTP, for HexGui and for matches against other programs.

    python -m jaxpgs.gtp --network hex-9x9-large --search pgs --simulations 800
    python -m jaxpgs.gtp --network hex-9x9-large --search gumbel_mcts --time 5

Commands are read from standard input, and answers are written to standard output. The engine says
"ready" on standard error when everything is compiled. docs/engines.md has the commands.
"""

import argparse

from jaxpgs.checks import number, positive, refusals_in_one_line, seed
from jaxpgs.gtp.commands import serve
from jaxpgs.gtp.dialog import Options
from jaxpgs.gtp.engines import search_engine
from jaxpgs.thinker import SEARCHES


def main(argv: list[str] | None = None) -> None:
    """Runs the engine; see the module docstring."""
    parser = argparse.ArgumentParser(
        "python -m jaxpgs.gtp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--network", default="hex-9x9-large", help="a pretrained one (default: %(default)s)")
    add("--directory", help="a folder of saved networks, in place of those of the library")
    add("--search", choices=SEARCHES, default="pgs")
    add("--simulations", type=positive, help="a move; 800, or with --time as many as fit")
    add("--time", type=number(0, 1_000_000), default=0.0, metavar="SECONDS", help="for a move")
    add("--swap", action="store_true", help="may answer Black's first stone by swap-pieces")
    below = "it resigns below this value (default: never)"
    add("--resign", type=number(-1, 1), default=-1.0, metavar="VALUE", help=below)
    add("--live", action="store_true", help="shows what it thinks, by lines of gogui-gfx")
    add("--seed", type=seed, default=0)
    args = parser.parse_args(argv)
    simulations = args.simulations or (0 if args.time else 800)
    options = Options(args.search, simulations, args.time, args.swap, args.resign, args.live)
    with refusals_in_one_line("jaxpgs.gtp"):
        engine, size = search_engine(args.network, directory=args.directory, seed=args.seed)
        serve(engine, size, options)


if __name__ == "__main__":
    main()
