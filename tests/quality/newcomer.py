"""How long does a newcomer take? The README's steps, from a fresh clone and without any cache.

    python tests/quality newcomer

All steps run in one new folder, with a virtual environment of its own and without pip's cache. The
last step executes the notebook as Jupyter would. The time for reading and typing is not counted.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import quality
from benchmarks import report, runs
from benchmarks.report import ROOT

STEPS = {
    "git clone": ["git", "clone", "-q", "{root}", "{folder}"],
    "python3 -m venv .venv": [sys.executable, "-m", "venv", ".venv"],
    "pip install -e .": [".venv/bin/pip", "install", "-q", "--no-cache-dir", "-e", "."],
    "the README's first example": [".venv/bin/python", "-c", "{example}"],
    'pip install -e ".[notebooks]"': [
        ".venv/bin/pip", "install", "-q", "--no-cache-dir", "-e", ".[notebooks]",
    ],
    "notebooks/quickstart.ipynb": [".venv/bin/jupyter", "execute", "notebooks/quickstart.ipynb"],
}  # fmt: skip
FIRST = "the README's first example"


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = quality.parser("newcomer", __doc__)
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {}, ("step",))
    if not all(runs.has(record, step=step) for step in STEPS):
        with tempfile.TemporaryDirectory() as folder:
            # One after another in one folder, so that the rows belong together.
            runs.add(record, *(take(step, pathlib.Path(folder)) for step in STEPS))
    report.print_table("From nothing to a first search", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each step, with the minutes since the beginning."""
    columns, lines, total = ["step", "seconds", "minutes so far"], [], 0.0
    for row in rows:
        total += row["seconds"]
        lines.append([row["step"], round(row["seconds"], 1), round(total / 60, 1)])
    return columns, lines


def take(step: str, folder: pathlib.Path) -> dict[str, Any]:
    """Runs a step in a folder. Returns its name and seconds."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    words = {"root": str(ROOT), "folder": str(folder / "jaxpgs"), "example": example[1]}
    command = [
        words[word[1:-1]] if word[1:-1] in words and word[0] == "{" else word
        for word in STEPS[step]
    ]
    kept = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder / "jaxpgs" if (folder / "jaxpgs").exists() else folder,
        env=kept,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{step} failed:\n{done.stdout}{done.stderr}")
    return {"step": step, "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    main()
