"""What all benchmark commands share: records of the machine, files, progress, tables, figures."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import jax
import numpy as np
import numpy.typing as npt
import rich.console
import rich.progress
import rich.table
import rich.text

RESULTS = pathlib.Path(__file__).parent / "results"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "mctx", "numpy", "pgx", "open_spiel", "jaxpgs")
_BLUE, _INK, _MUTED = "#0072B2", "#222222", "#6B6B6B"  # Okabe and Ito's blue; greys
_LINES = (_BLUE, "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#222222", "#999999")


def now() -> str:
    """Returns the date and time, UTC, in ISO 8601; for rows that join an older file."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def environment_record(seed: int) -> dict[str, Any]:
    """Describes where and with what a benchmark ran.

    Args:
      seed: the benchmark's seed.

    Returns:
      A dict ready for JSON: `date` (UTC, ISO 8601), `seed`, `hardware`, `versions` and `commit`.
      What cannot be found out is None.
    """
    devices = jax.devices()
    return {
        "date": now(),
        "seed": seed,
        "hardware": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
            "backend": jax.default_backend(),
            "accelerator": None if devices[0].platform == "cpu" else devices[0].device_kind,
            "devices": len(devices),
        },
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in _PACKAGES},
        "commit": _commit(),
    }


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Writes data as indented JSON, whole or not at all.

    NumPy and JAX arrays become lists. Folders are created.

    Args:
      path: the file to write or replace.
      data: what to write.

    Raises:
      TypeError: if something in `data` has no JSON form.
      ValueError: if a number is NaN or infinite, which JSON does not know.
    """
    write_text(path, json.dumps(data, indent=2, default=_plain, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file, whole or not at all."""
    with _replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Shows a progress bar on standard error, and nothing there that is not a terminal.

    Args:
      title: what is running.

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


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table; columns whose cells are all numbers or None are aligned to the right.

    Args:
      title: printed above.
      columns: headings, units included.
      rows: one sequence of cells for each row. None prints as a dash; numbers as they are.

    Raises:
      ValueError: if a row has another length than `columns`.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"A row needs {len(columns)} cells, got {len(row)}: {row}.")
    table = rich.table.Table(title=title, title_justify="left")
    for index, heading in enumerate(columns):
        numeric = all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(rich.text.Text("–" if cell is None else str(cell)) for cell in row))
    console = rich.console.Console()
    if not console.is_terminal:
        # A pipe has no width; 80 columns would cut the cells.
        console = rich.console.Console(width=1000)
    console.print(table)


def elo_plot(
    path: str | os.PathLike[str],
    names: Sequence[str],
    ratings: npt.ArrayLike,
    half_widths: npt.ArrayLike,
    *,
    title: str,
    subtitle: str = "",
) -> None:
    """Draws ratings with their 95% intervals as a PNG, the strongest player on top.

    Args:
      path: the file to write or replace.
      names: `[P]` players.
      ratings: `[P]` Elo points.
      half_widths: `[P]` half-widths of the 95% intervals; 0 marks the player fixed as reference.
      title: what is compared.
      subtitle: the setting in a few words, such as board, budget and number of games.

    Raises:
      ValueError: if the lengths differ or there is nobody to draw.
    """
    values, widths = np.asarray(ratings, float), np.asarray(half_widths, float)
    if not len(names) == len(values) == len(widths) > 0:
        raise ValueError(
            "names, ratings and half_widths must have one equal, positive length, got "
            f"{len(names)}, {len(values)} and {len(widths)}."
        )
    from matplotlib.figure import Figure

    order = np.argsort(values, kind="stable")
    rows = np.arange(len(names))
    heading = 0.65 if subtitle else 0.42  # inches above the axes
    height = heading + 0.75 + 0.38 * len(names)
    figure = Figure(figsize=(7.2, height), dpi=200)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - heading / height))
    axes = figure.add_subplot()
    axes.axvline(0, color=_MUTED, linewidth=0.8, zorder=1)
    axes.hlines(
        rows,
        (values - widths)[order],
        (values + widths)[order],
        color=_BLUE,
        alpha=0.45,
        linewidth=4,
        zorder=2,
    )
    fixed = widths[order] == 0
    axes.scatter(values[order], rows, s=44, color=np.where(fixed, "white", _BLUE),
                 edgecolor=np.where(fixed, _INK, _BLUE), linewidth=1.2, zorder=3)  # fmt: skip
    for row, player in enumerate(order):
        text = "reference" if fixed[row] else f"{values[player]:+.0f} ± {widths[player]:.0f}"
        axes.annotate(
            text.replace("-", "−"), (1.02, row), xycoords=("axes fraction", "data"),
            va="center", fontsize=9, color=_MUTED if fixed[row] else _INK,
        )  # fmt: skip
    axes.set_yticks(rows, [names[player] for player in order], fontsize=10, color=_INK)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.margins(x=0.06)
    axes.set_xlabel("Rating (Elo points), with 95% intervals", fontsize=9.5, color=_INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9, color=_MUTED, labelcolor=_INK)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
    style: dict[str, Any] = {"x": 0.012, "ha": "left", "va": "top"}
    figure.text(y=1 - 0.1 / height, s=title, fontsize=12.5, fontweight="bold", color=_INK, **style)
    figure.text(y=1 - 0.37 / height, s=subtitle, fontsize=9.5, color=_MUTED, **style)
    with _replacing(path) as file:
        figure.savefig(file, format="png")


def line_plot(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Sequence[float]]]]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    xscale: str = "log",
    yscale: str = "log",
) -> None:
    """Draws lines as a PNG, side by side in panels that share their axes.

    Args:
      path: the file to write or replace.
      panels: for each panel's heading, for each line's name, its points `(x, y)` or
        `(x, (low, y, high))` in the order to connect them. A line's colour is the same everywhere.
      title: what is compared.
      xlabel: what `x` is.
      ylabel: what `y` is.
      xscale: "log" (base 2) or "linear".
      yscale: likewise, base 10.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + 3.8 * len(panels), 4.2), dpi=200)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 0.91))
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    every_point = [p for lines in panels.values() for points in lines.values() for p in points]
    places = sorted({point[0] for point in every_point})
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (heading, lines) in zip(all_axes, panels.items(), strict=True):
        for name, points in lines.items():
            if not points:
                continue
            x = [point[0] for point in points]
            low, y, high = np.array([np.broadcast_to(point[1], 3) for point in points], float).T
            color = _LINES[names.index(name) % len(_LINES)]
            if len(points) == 1:  # a band would have no width
                axes.vlines(x, low, high, color=color, alpha=0.4, linewidth=3)
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            axes.plot(x, y, color=color, linewidth=1.8, marker="o", markersize=4, label=name)
        axes.set_xscale(xscale, **({"base": 2} if xscale == "log" else {}))
        axes.set_yscale(yscale)
        axes.set_title(heading, fontsize=10, color=_INK, loc="left")
        axes.set_xlabel(xlabel, fontsize=9.5, color=_INK)
        axes.tick_params(labelsize=9, color=_MUTED, labelcolor=_INK)
        axes.grid(color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
        if xscale == "log" and len(places) <= 8 and all(float(x).is_integer() for x in places):
            axes.set_xticks(places)
            axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_major_formatter("{x:,.4g}")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    all_axes[0].set_ylabel(ylabel, fontsize=9.5, color=_INK)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    figure.text(0.012, 0.975, title, fontsize=12.5, fontweight="bold", color=_INK, va="top")
    with _replacing(path) as file:
        figure.savefig(file, format="png")


@contextlib.contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Opens a file that takes `path`'s place once it is complete; readers never see half of it."""
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


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.asarray(value).tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form.")


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


def _commit() -> str | None:
    folder = pathlib.Path(__file__).resolve().parent
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    return None
