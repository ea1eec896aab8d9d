"""Do the lowest versions that `pyproject.toml` declares work? Runs tests with these versions.

    python tests/quality floors

The command needs uv, which makes an environment with the lowest version of each direct dependency
and the newest versions of indirect ones. The tests of networks, dtypes, weights and of every public
name's example run there, and the file holds the versions and the results. A test compares the file
with `pyproject.toml`, so the command must be run again after a lowest version has changed.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import quality
from benchmarks import report, runs
from benchmarks.report import ROOT

FILES = ("networks", "x64", "pretrained", "examples")


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = quality.parser("floors", __doc__)
    parser.add_argument("--files", nargs="+", default=FILES, help="which tests")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"floors": floors()}, ("tests",))
    if not all(runs.has(record, tests=name) for name in args.files):
        with tempfile.TemporaryDirectory() as folder:
            python, found = install(pathlib.Path(folder))
            for name in args.files:
                if not runs.has(record, tests=name):
                    row = {"tests": name} | run_tests(python, name) | {"installed": found}
                    runs.add(record, row)
                    print(f"{name}: {row['passed']} passed, {row['failed']} failed", flush=True)
    report.print_table("Lowest versions", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each file of tests."""
    columns = ["tests", "passed", "failed", "minutes", "versions"]
    return columns, [
        [f"`test_{row['tests']}.py`", row["passed"], row["failed"],
         round(row["seconds"] / 60, 1),
         ", ".join(f"{name} {version}" for name, version in row["installed"].items())]
        for row in rows
    ]  # fmt: skip


def floors() -> dict[str, str]:
    """Returns the lowest version of each dependency that `pyproject.toml` declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pairs = (re.match(r"([\w-]+)>=([\w.]+)", text) for text in project["dependencies"])
    return {found[1]: found[2] for found in pairs if found}


def install(folder: pathlib.Path) -> tuple[str, dict[str, str]]:
    """Makes an environment with the lowest versions, and with what the tests need.

    Returns:
      Its interpreter, and the versions of the dependencies in it.
    """
    python = str(folder / "bin" / "python")
    _run("uv", "venv", "-q", "--python", sys.executable, str(folder))
    _run("uv", "pip", "install", "-q", "--python", python, "--resolution", "lowest-direct",
         f"{ROOT}[train]", "pgx>=2.6", "open_spiel>=1.6", "pytest>=8",
         "matplotlib>=3.9")  # fmt: skip
    _run("uv", "pip", "uninstall", "-q", "--python", python, "jaxpgs")  # the checkout is tested
    code = f"from importlib.metadata import version as v; print(*map(v, {list(floors())}))"
    names = _run(python, "-c", code).split()
    return python, dict(zip(floors(), names, strict=True))


def run_tests(python: str, name: str) -> dict[str, Any]:
    """Runs a file of tests. Returns how many passed and failed, which failed, and the seconds."""
    start = time.perf_counter()
    paths = list((ROOT / "tests").rglob(f"test_{name}.py"))
    if len(paths) != 1:
        raise SystemExit(f"There must be one file test_{name}.py among the tests, got {paths}.")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(paths[0])],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    if not counts:
        raise SystemExit(f"pytest could not run:\n{done.stdout}{done.stderr}")
    return {
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0),
        "failures": re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M),
        "seconds": time.perf_counter() - start,
    }


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
