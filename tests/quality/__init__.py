"""What tests the repository itself, and takes too long for the tests of every commit.

`python tests/quality` lists the commands. A test that the suite imports from here stands for the
long run that its command does.
"""

import argparse
import pathlib

from benchmarks import runs

RESULTS = pathlib.Path(__file__).parent / "results"


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Begins the command line of `python tests/quality NAME`, with its file in `results`."""
    made = runs.parser(name, doc or "", program="python tests/quality ")
    made.set_defaults(out=RESULTS / f"{name}.json")
    return made
