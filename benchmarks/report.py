"""What benchmarks use to describe a run, show progress, print tables and write files."""

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import jax
import rich.console
import rich.progress
import rich.table
import rich.text

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAILURES = ("illegal_moves", "timeouts", "crashes")  # of a program; each loses a game
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "mctx", "numpy", "pgx", "open_spiel", "jaxpgs")


def num_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_machine() -> dict[str, Any]:
    """Returns the hardware and the versions of packages; unknown values are None."""
    devices = jax.devices()
    return {
        "cpu": _cpu_model(),
        "backend": jax.default_backend(),
        "accelerator": None if devices[0].platform == "cpu" else devices[0].device_kind,
        "devices": len(devices),
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in _PACKAGES},
    }


def commit() -> str | None:
    """Returns the checkout's commit, with "-dirty" if the code differs; None if git fails."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True,
                              timeout=10, check=True)  # fmt: skip
        return done.stdout.strip()

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # Results are excluded: a run that writes them would mark all later runs as dirty.
        paths = ["jaxpgs", "benchmarks", ":!benchmarks/results", ":!benchmarks/RESULTS.md"]
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *paths)
        return git("rev-parse", "HEAD") + "-dirty" * bool(changed)
    return None


def made_of() -> dict[str, str]:
    """Returns the parts of the library that this process has imported, with digests of their code.

    A part is a top-level module or package of `jaxpgs`, such as `search` or `envs`. If two digests
    of a part are equal, only comments and docstrings differ. A digest depends on the version of
    Python, because `ast.unparse` writes the same code differently in different versions.
    """
    names = {name.split(".")[1] for name in sys.modules if name.startswith("jaxpgs.")}
    return {name: digest for name in sorted(names) if (digest := code_digest(name)) is not None}


@functools.cache
def code_digest(part: str, root: pathlib.Path | None = None) -> str | None:
    """Returns the digest of a part of the library in a checkout; None if the part is not there."""
    root = root or ROOT
    place = root / "jaxpgs" / part
    files = sorted(place.rglob("*.py")) or [f for f in [place.with_suffix(".py")] if f.exists()]
    digest = hashlib.sha256()
    for file in files:
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            match getattr(node, "body", None):
                case [ast.Expr(value=ast.Constant(value=str())), *_] as body:
                    body[0] = ast.Pass()
        digest.update(f"{file.relative_to(root)}\n{ast.unparse(tree)}\n".encode())
    return digest.hexdigest()[:8] if files else None


def weights_digest(network: str) -> str | None:
    """Returns a short checksum of a network that comes with the library; None for others."""
    with contextlib.suppress(OSError):
        card = (ROOT / "jaxpgs" / "pretrained" / "weights" / f"{network}.json").read_text()
        return json.loads(card)["sha256"][:8]
    return None


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Shows a progress bar on standard error, or nothing if that is not a terminal.

    Args:
      title: the name of what is running.

    Yields:
      `update(done, total, text)`, which fits the `progress` arguments of `jaxpgs.evaluation`.
    """
    console = rich.console.Console(stderr=True)
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def update(done: int, total: int, text: str = "") -> None:
            description = f"{title}: {text}" if text else title
            bar.update(task, completed=done, total=total, description=description)

        yield update


def present_name(search: str) -> str:
    """Returns a search's name with the current words for its mode; rows have the former words."""
    return search.replace(" cached", ", tree").replace(" constant", ", rollouts")


def interval_text(row: Mapping[str, Any]) -> str:
    """Writes the Elo of a row and its interval, such as "+41 (+20 to +62)"."""
    return f"{row['elo']:+.0f} ({row['low']:+.0f} to {row['high']:+.0f})"


def held_text(row: Mapping[str, Any]) -> str:
    """Writes how many games a row of openings held, and how often the opponent's program failed."""
    failures = [f"{row[kind]} {kind.replace('_', ' ')}" for kind in FAILURES if row.get(kind)]
    failed = ", ".join(failures)
    return f"{row['held']} of {row['of']}" + f" ({failed})" * bool(failed)


def print_table(title: str, columns: Sequence[str], cells: Sequence[Sequence[Any]]) -> None:
    """Prints a table; columns whose cells are all numbers or None are aligned to the right.

    Args:
      title: printed above.
      columns: headings, units included.
      cells: one sequence for each line; None is printed as a dash, other values by `str`.

    Raises:
      ValueError: if a line has another length than `columns`.
    """
    for line in cells:
        if len(line) != len(columns):
            raise ValueError(f"A row needs {len(columns)} cells, got {len(line)}: {line}.")
    table = rich.table.Table(title=title, title_justify="left")
    for index, heading in enumerate(columns):
        numeric = all(isinstance(line[index], int | float | None) for line in cells)
        table.add_column(heading, justify="right" if numeric else "left")
    for line in cells:
        table.add_row(*(rich.text.Text("–" if cell is None else str(cell)) for cell in line))
    console = rich.console.Console()
    if not console.is_terminal:
        # A pipe has no width; 80 columns would cut the cells.
        console = rich.console.Console(width=1000)
    console.print(table)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Opens a file that replaces `path` once it is complete, so nobody reads half of it."""
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, 0o644)  # mkstemp makes files that only their owner may read
        os.replace(name, target)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
