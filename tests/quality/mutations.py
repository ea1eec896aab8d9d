"""Do the tests notice a mistake? Breaks the library in many small ways, one at a time.

    python tests/quality mutations
    python tests/quality mutations --only "gumbel|auto_sgd"

Each `Mutation` replaces a piece of text in a temporary copy of the repository; the few tests that
should notice it run there. The exit status is 1 if a mutation survives, if its text does not occur
exactly once in its file, for example after a change of the code, or if the tests fail without it.
The record is `tests/quality/results/mutations.json`, in which `--only` replaces the rows of the
chosen mutations. All mutations take ten minutes on one core.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import quality
from benchmarks import report, runs
from benchmarks.report import ROOT
from quality.mutants import Mutation, learning, loop, parts, states

_TIMEOUT = 600  # seconds
_CAUGHT, _SURVIVED = "caught", "SURVIVED"
_GONE, _BROKEN = "no longer applies", "no test ran to its end"

MUTATIONS = (*loop.MUTATIONS, *parts.MUTATIONS, *learning.MUTATIONS, *states.MUTATIONS)


def main(argv: list[str] | None = None) -> None:
    """Runs the mutations, writes each outcome at once, prints a table; see the module's text."""
    parser = quality.parser("mutations", __doc__)
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--jobs", type=runs.positive, default=1, help="mutations at a time")
    args = parser.parse_args(argv)
    try:
        chosen = [m for m in MUTATIONS if re.search(args.only, m.name)]
    except re.error as error:
        parser.error(f"--only {args.only!r} is not a regular expression: {error}")
    if not chosen:
        parser.error(f"no mutation has a name that matches --only {args.only!r}")
    record = runs.open_record(parser, args, {}, ("mutation",))
    check_unbroken(chosen)
    rows = []
    with (
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
        report.progress_bar("mutations") as progress,
    ):
        for i, row in enumerate(pool.map(try_mutation, chosen)):
            rows.append(row)
            runs.add(record, row, mutations=[m.name for m in MUTATIONS])
            progress(i + 1, len(chosen), row["mutation"])
    report.print_table("Mutations", *table(rows))
    missed = [row for row in rows if row["outcome"] != _CAUGHT]
    print(f"{len(rows) - len(missed)} of {len(rows)} caught.")
    print(f"Wrote {record.path}.")
    sys.exit(1 if missed else 0)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each mutation."""
    return ["fault", "outcome", "caught by"], [
        [row["mutation"], row["outcome"], row["test"] and f"`{row['test']}`"] for row in rows
    ]


def check_unbroken(mutations: list[Mutation]) -> None:
    """Ends the program if tests fail before anything is broken."""
    for test in sorted({m.test for m in mutations}):
        matches = sorted({m.match for m in mutations if m.test == test})
        status, output = run_tests(ROOT, test, " or ".join(f"({match})" for match in matches))
        if status:
            sys.exit(f"{test} fails without a mutation:\n{output}")


def try_mutation(mutation: Mutation) -> dict[str, Any]:
    """Applies a mutation to a new copy of the repository, and runs its tests there.

    Returns:
      The row of the record: the outcome, and the test that caught the mutation.
    """
    outcome, test = _GONE, None
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        ignore = shutil.ignore_patterns("__pycache__", "results")
        for name in ("jaxpgs", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "jaxpgs" / "search" / mutation.file
        text = path.read_text()
        if text.count(mutation.old) == 1:
            path.write_text(text.replace(mutation.old, mutation.new))
            status, output = run_tests(copy, mutation.test, mutation.match)
            failed = re.search(r"^FAILED (?:tests/)?(.+?)(?: - |$)", output, re.MULTILINE)
            outcome = _SURVIVED if status == 0 else _BROKEN
            if status == 1 and failed:
                outcome, test = _CAUGHT, failed[1]
    return {
        "mutation": mutation.name,
        "file": f"jaxpgs/search/{mutation.file}",
        "outcome": outcome,
        "test": test,
    }


def run_tests(tree: pathlib.Path, test: str, match: str) -> tuple[int, str]:
    """Runs tests of a checkout until one fails; returns pytest's exit status and output."""
    options = ["-x", "-q", "-n", "0", "-p", "no:nbmake", "-p", "no:cacheprovider"]
    options += ["-o", "addopts=-q", "-k", match]
    (path,) = (tree / "tests").rglob(test)
    command = [sys.executable, "-m", "pytest", *options, str(path.relative_to(tree))]
    done = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    main()
