"""Callbacks that show or keep a run's metrics."""

import contextlib
import csv
import io
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from jaxpgs.pretrained.files import write_atomically

Callback = Callable[[Any, dict[str, float]], None]


def log_to(path: str | os.PathLike[str]) -> Callback:
    """Keeps every iteration's metrics in a file.

    A run that goes on from a checkpoint repeats some iterations; their old lines are replaced, so
    the file is that of an uninterrupted run.

    Args:
      path: a file ending in `.jsonl`, one object a line, or `.csv`, a column for each metric.

    Returns:
      A callback for `expert_iteration.train`.

    Raises:
      ValueError: if the file's name ends otherwise.
    """
    file = pathlib.Path(path)
    if file.suffix not in (".jsonl", ".csv"):
        raise ValueError(f"The log must be a .jsonl or a .csv file, got {file.name!r}.")
    rows = read_log(file) if file.exists() else []
    whole = False  # whether the file holds just these rows, so that a line may be added

    def callback(state: Any, metrics: dict[str, float]) -> None:
        nonlocal whole
        del state
        row = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        while rows and rows[-1]["iteration"] >= row["iteration"]:
            rows.pop()
            whole = False
        rows.append(row)
        if whole and file.suffix == ".jsonl":
            with file.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            return
        # The first call may find a line cut short, and a new column of a table changes every row.
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, _text(rows, file.suffix).encode())
        whole = True

    return callback


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a file that `log_to` wrote; lines that are damaged or cut short are left out.

    Args:
      path: the file.

    Returns:
      A dict for each iteration. None where a metric was not measured or not finite.
    """
    file = pathlib.Path(path)
    lines = file.read_text(errors="replace").replace("\0", "").splitlines()
    rows = []
    if file.suffix == ".csv":
        for row in csv.DictReader(lines):
            with contextlib.suppress(TypeError, ValueError):  # too few cells, too many, or words
                rows.append({name: float(x) if x != "" else None for name, x in row.items()})
    else:
        for line in lines:
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return [
        row
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("iteration"), int | float)
    ]


@contextlib.contextmanager
def progress_bar(title: str, num_iterations: int) -> Iterator[Callback]:
    """Shows a live bar with losses, games and rating, on standard error.

    Args:
      title: what is trained.
      num_iterations: iterations in all.

    Yields:
      A callback for `expert_iteration.train`.

    Raises:
      ImportError: if rich is not installed; it comes with `pip install "jaxpgs[train]"`.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise ImportError('The bar needs rich: pip install "jaxpgs[train]"') from error
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  {task.fields[text]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(title, total=num_iterations, text="")
    elo = ""

    def callback(state: Any, metrics: dict[str, float]) -> None:
        nonlocal elo
        del state
        if "elo" in metrics:
            elo = f"  Elo {metrics['elo']:+.0f}"
        losses = [
            f"{name} {metrics[f'{name}_loss']:.3f}  "
            for name in ("policy", "value")
            if f"{name}_loss" in metrics
        ]
        text = f"{''.join(losses)}{elo}".rstrip()
        bar.update(task, completed=metrics["iteration"], text=text)

    with bar:
        yield callback


def _text(rows: list[dict[str, Any]], suffix: str) -> str:
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
