"""Which results are older than the code that they are about?

    python -m benchmarks.stale              # all files
    python -m benchmarks.stale strength_*   # some of them
    python -m benchmarks.stale --rows       # every row by its key

A row's fingerprint holds digests of the parts of the library that its command had imported, without
comments and docstrings, and of the network's weights. A row is stale where one of them is another
one now; the command says which. Rows from before there were fingerprints have none, and are stale
for that reason. Exit status 1 if any row is stale.
"""

import argparse
import fnmatch
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import report, runs

NONE = "no fingerprint"


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", default=["*"], help="names, without their ending")
    parser.add_argument("--rows", action="store_true", help="a line for every row")
    parser.add_argument("--folder", type=pathlib.Path, default=runs.RESULTS)
    args = parser.parse_args(argv)
    paths = [
        path
        for path in sorted(args.folder.glob("*.json"))
        if any(fnmatch.fnmatch(path.stem, pattern) for pattern in args.files)
    ]
    columns = ["file", "rows", "stale", "why", "commits"]
    lines = [line for path in paths for line in table(path, args.rows)]
    report.print_table("Stale rows", columns, lines)
    sys.exit(1 if any(line[2] for line in lines) else 0)


def table(path: pathlib.Path, each: bool = False) -> list[list[Any]]:
    """Returns a line for each reason why rows of a file are stale, or one that none is."""
    data = runs.load(path)
    reasons: dict[str, list[Mapping[str, Any]]] = {}
    for row, why in stale(data):
        reasons.setdefault(_told(row) + why if each else why, []).append(row)
    count = len(data.get("rows", ()))
    return [
        [path.stem, count, len(rows), why, _commits(rows)] for why, rows in reasons.items()
    ] or [[path.stem, count, 0, None, None]]


def stale(data: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yields the stale rows of a file, and why."""
    for row in data.get("rows", ()):
        made = data.get("fingerprints", {}).get(row.get("fingerprint"))
        if made is None:
            yield row, NONE
        elif changed := [name for name, digest in made.items() if digest != now(name)]:
            yield row, f"other {', '.join(changed)}"


def now(part: str) -> str | None:
    """Returns the digest that a part of a fingerprint has in this checkout."""
    kind, _, name = part.partition(" of ")
    return report.weights_digest(name) if kind == "weights" else report.code_digest(part)


def _told(row: Mapping[str, Any]) -> str:
    """The first fields of a row, which tell it from the others."""
    known = [f"{name} {x}" for name, x in row.items() if isinstance(x, str | int)]
    return f"{', '.join(known[:4])}: "


def _commits(rows: Sequence[Mapping[str, Any]]) -> str:
    found = dict.fromkeys((row.get("commit") or "not recorded")[:7] for row in rows)
    return ", ".join(list(found)[:3]) + ", ..." * (len(found) > 3)


if __name__ == "__main__":
    main()
