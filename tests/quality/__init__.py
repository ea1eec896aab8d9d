"""Long checks of the repository itself, which take too much time to run on every commit.

`python tests/quality` lists the commands. Some tests of the suite import these modules and run a
small part of what the commands do.
"""

import argparse
import pathlib

from benchmarks import runs

RESULTS = pathlib.Path(__file__).parent / "results"


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser for `python tests/quality NAME`; by default the file lies in `results`."""
    made = runs.parser(name, doc or "", program="python tests/quality ")
    made.set_defaults(out=RESULTS / f"{name}.json")
    return made
