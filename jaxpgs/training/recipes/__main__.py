"""Trains a network that comes with the library.

    python -m jaxpgs.training.recipes hex-6x6 --out runs

trains it from scratch, with a progress bar. It resumes where it was stopped, and writes the weights
and their card. NAME --help shows the options.
"""

import argparse
import sys

from jaxpgs.training.recipes import distillation, hex_networks, learned_models, samegame_networks

KINDS = (hex_networks, learned_models, samegame_networks, distillation)


def main(argv: list[str] | None = None) -> None:
    """Calls the command of the named network."""
    argv = sys.argv[1:] if argv is None else argv
    for kind in KINDS:
        # Each kind has its own arguments, so only the name is looked for, at any position.
        if kind.RECIPES.keys() & set(argv):
            return kind.main(argv)
    parser = argparse.ArgumentParser(
        prog="python -m jaxpgs.training.recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[name for kind in KINDS for name in kind.RECIPES])
    parser.parse_args(argv)


if __name__ == "__main__":
    main()
