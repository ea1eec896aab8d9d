"""Runs one of the commands in this folder, or lists them.

    python tests/quality
    python tests/quality NAME ...

The words after the name are arguments of the command, such as `--help`.
"""

import importlib
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
COMMANDS = ("mutations", "faults", "random_models", "small_games", "networks", "openings",
            "ladders", "ladder_training", "floors", "newcomer", "lines", "against", "versions",
            "schedules", "claims")  # fmt: skip


def main() -> None:
    """Runs the command that the first argument names, or lists all commands without arguments."""
    sys.path[:1] = [str(TESTS.parent), str(TESTS)]
    name, *words = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        importlib.import_module(f"quality.{name}").main(words)
        return
    print(__doc__)
    for command in COMMANDS:
        text = (TESTS / "quality" / f"{command}.py").read_text()
        print(f"{command:15} {text.splitlines()[0].strip(chr(34))}")
    sys.exit(0 if name in ("-h", "--help") else f"\nThere is no {name!r}.")


if __name__ == "__main__":
    main()
