"""Callbacks that show or store a run's metrics, and the plot of a run."""

import contextlib
import csv
import importlib.util
import io
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpgs.pretrained.files import write_atomically
from jaxpgs.training.runtime import sharding

Callback = Callable[[Any, dict[str, float]], Any]  # a truthy result ends the training

_BARS: list[str] = []  # the bars on screen, so that a second one does not overwrite them


def together(callback: Callable[..., Any] | Sequence[Callable[..., Any]] | None) -> Callable:
    """Combines several callbacks, one or none into one.

    Args:
      callback: a function, several of them, or None.

    Returns:
      A function with the same arguments. It calls all callbacks in order, and returns whether any
      result was truthy, which ends a training.

    Raises:
      ValueError: if one is not a function.
    """
    several: list[Any] = list(callback) if isinstance(callback, list | tuple) else [callback]
    if callback is None:
        several = []
    for one in several:
        if not callable(one):
            raise ValueError(f"callback must be a function or a list of functions, got {one!r}.")
    # A list, not a generator: all are called, whatever the first one returns.
    return lambda *args: any([bool(one(*args)) for one in several])


def log_to(path: str | os.PathLike[str]) -> Callback:
    """Writes every iteration's metrics to a file.

    A run that resumes from a checkpoint repeats some iterations. Their old lines are replaced, so
    the file is the same as for an uninterrupted run.

    Args:
      path: a file ending in `.jsonl`, one object per line, or `.csv`, one column per metric. A
        metric is a number, a scalar of NumPy or JAX, or None if it was not measured.

    Returns:
      A callback for any trainer.

    Raises:
      ValueError: if the file's name has another ending.
    """
    file = pathlib.Path(path)
    if file.suffix not in (".jsonl", ".csv"):
        raise ValueError(f"The log must be a .jsonl or a .csv file, got {file.name!r}.")
    rows = read_log(file) if file.exists() else []
    whole = False  # whether the file holds exactly these rows, so that a line may be appended

    def callback(state: Any, metrics: dict[str, float]) -> None:
        nonlocal whole
        del state
        row = {name: _plain(value) for name, value in metrics.items()}
        # A run that resumes from a checkpoint repeats iterations, so their old rows are dropped.
        while rows and rows[-1]["iteration"] >= row["iteration"]:
            rows.pop()
            whole = False
        rows.append(row)
        if whole and file.suffix == ".jsonl":
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
            return
        # The first call may find a truncated line, and a new column of a table changes every row.
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, _text(rows, file.suffix).encode())
        whole = True

    return callback


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a file that `log_to` wrote; damaged or truncated lines are left out.

    Args:
      path: the file.

    Returns:
      A dict for each iteration. A metric that was not measured or not finite is None.
    """
    file = pathlib.Path(path)
    # A crash may leave zeros or half a character at the end.
    lines = file.read_text("utf-8", errors="replace").replace("\0", "").splitlines()
    rows = []
    if file.suffix == ".csv":
        for row in csv.DictReader(lines):
            with contextlib.suppress(TypeError, ValueError):  # too few or too many cells, or text
                rows.append({name: _number(x) if x != "" else None for name, x in row.items()})
    else:
        for line in lines:
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return [
        row
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("iteration"), int | float)
    ]


def _plain(value: Any) -> int | float | None:
    """Returns a number of Python's; None for NaN and infinity, which are not valid JSON."""
    number = None if value is None else np.asarray(value).item()
    return number if number is not None and math.isfinite(number) else None


def _number(text: str) -> int | float:
    """Reads a number of a table; integers stay integers, so that a rewritten row is the same."""
    try:
        return int(text)
    except ValueError:
        return float(text)


@contextlib.contextmanager
def progress_bar(title: str, num_iterations: int) -> Iterator[Callback]:
    """Shows a live progress bar with losses and rating on standard error.

    Args:
      title: what is trained.
      num_iterations: iterations in all.

    Yields:
      A callback for any trainer.

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
    task = bar.add_task(title, total=num_iterations, text="compiles")
    elo = ""

    def callback(state: Any, metrics: dict[str, float]) -> None:
        nonlocal elo
        del state
        if metrics.get("elo") is not None:
            elo = f"  Elo {metrics['elo']:+.0f}"
        losses = [
            f"{name} {metrics[f'{name}_loss']:.3f}  "
            for name in ("policy", "value")
            if metrics.get(f"{name}_loss") is not None
        ]
        text = f"{''.join(losses)}{elo}".rstrip()
        bar.update(task, completed=metrics["iteration"], text=text)

    with bar:
        _BARS.append(title)
        try:
            yield callback
        finally:
            _BARS.remove(title)


@contextlib.contextmanager
def own_bar(title: str, num_iterations: int, progress: bool | None) -> Iterator[Callback]:
    """Shows a trainer's own progress bar.

    Args:
      title: what is trained.
      num_iterations: iterations in all.
      progress: whether to show one. None shows it in a terminal if rich is installed, no other bar
        is shown and this is the first process.

    Yields:
      A callback, which does nothing if there is no bar.

    Raises:
      ImportError: if `progress` is true and rich is not installed.
    """
    # Two live bars on one terminal would overwrite each other.
    if progress is None:
        progress = sys.stderr.isatty() and not _BARS and sharding.is_first_process()
        progress = progress and importlib.util.find_spec("rich") is not None
    if not progress:
        yield lambda state, metrics: None
        return
    with progress_bar(title, num_iterations) as show:
        yield show


def to_tensorboard(folder: str | os.PathLike[str]) -> Callback:
    """Writes every iteration's metrics for TensorBoard.

    A run that resumes from a checkpoint adds a file, which repeats some iterations.

    Args:
      folder: the output folder, the `--logdir` of TensorBoard.

    Returns:
      A callback for any trainer.

    Raises:
      ImportError: if TensorBoard is not installed; it comes with `pip install
        "jaxpgs[tensorboard]"`.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise ImportError('This needs TensorBoard: pip install "jaxpgs[tensorboard]"') from error
    writer = Writer(os.fspath(folder))

    def callback(state: Any, metrics: dict[str, float]) -> None:
        del state
        for name, value in _numbers(metrics).items():
            writer.add_scalar(name, value, int(metrics["iteration"]))
        writer.flush()

    return callback


def to_wandb(**knobs: Any) -> Callback:
    """Sends every iteration's metrics to Weights & Biases.

    Args:
      **knobs: arguments of `wandb.init`, such as `project`. With `id` and `resume="allow"` a run
        that resumes from a checkpoint continues the same W&B run; repeated iterations are left out.

    Returns:
      A callback for any trainer. The W&B run ends with the process.

    Raises:
      ImportError: if wandb is not installed; it comes with `pip install "jaxpgs[wandb]"`.
    """
    try:
        import wandb
    except ImportError as error:
        raise ImportError('This needs wandb: pip install "jaxpgs[wandb]"') from error
    run = wandb.init(**knobs)

    def callback(state: Any, metrics: dict[str, float]) -> None:
        del state
        run.log(_numbers(metrics), step=int(metrics["iteration"]))

    return callback


def _numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the finite metrics, without the number of the iteration."""
    found = {name: _plain(x) for name, x in metrics.items() if name != "iteration"}
    return {name: float(x) for name, x in found.items() if x is not None}


# The metrics in each panel of a run's plot, by the endings of their names.
_PANELS = {
    "losses": ("loss",),
    "shares": (
        "resigned", "score_against_best", "score_against_history", "best_share",
        "distinct_positions", "won", "clipped",
    ),
    "Elo": ("elo",),
    "scores": ("policy_score", "greedy_score", "random_score", "played", "score"),
    "moves of a game": ("mean_length",),
}  # fmt: skip


def picture(
    log: str | os.PathLike[str] | Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Plots a run: those of losses, shares, ratings, scores and game lengths that the log has.

    Args:
      log: a file that `log_to` wrote, or its rows.
      path: the file to write, a `.png`, `.svg` or `.pdf`; None writes no file.

    Returns:
      The matplotlib figure, which a notebook shows.

    Raises:
      ImportError: if matplotlib is not installed; it comes with `pip install "jaxpgs[plot]"`.
      ValueError: if the log holds none of these metrics.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Pictures need matplotlib: pip install "jaxpgs[plot]"') from error
    rows = read_log(log) if isinstance(log, str | os.PathLike) else list(log)
    names = dict.fromkeys(n for row in rows for n, x in row.items() if isinstance(x, int | float))
    # Each metric is drawn once, in the first panel with a matching ending.
    left, panels = list(names), []
    for title, ends in _PANELS.items():
        # The losses at each step of an unroll would hide their mean.
        mine = [name for name in left if name.endswith(ends)]
        left = [name for name in left if name not in mine]
        if mine:
            panels.append((title, mine))
    if not panels:
        raise ValueError(f"A run's log has losses, shares or scores; {log!r} has {list(names)}.")
    figure = Figure(figsize=(3.6 * len(panels), 3), layout="constrained")
    for axes, (title, mine) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels,
                                   strict=True):  # fmt: skip
        for name in mine:
            seen = [(row["iteration"], row[name]) for row in rows if row.get(name) is not None]
            # If only some iterations are measured, a line alone would hide how few there are.
            marker = "." if len(seen) < len(rows) / 2 or len(seen) == 1 else None
            axes.plot(*zip(*seen, strict=True), label=name, marker=marker)
        axes.set(title=title, xlabel="iteration")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize="small")
    if path is not None:
        figure.savefig(path)
    return figure


def _text(rows: list[dict[str, Any]], suffix: str) -> str:
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
