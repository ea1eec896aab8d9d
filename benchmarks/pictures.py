"""Plots of results: lines, and values with their intervals. Each search has a fixed colour."""

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.report import replacing

_INK, _MUTED = "#222222", "#6B6B6B"
# Words in names, the most specific first, and the colours of names that contain them.
_COLORS = {
    "mctx stochastic": "#661100", "mctx gumbel": "#D55E00", "mctx muzero": "#E69F00",
    "gumbel pgs": "#332288", "gumbel mcts": "#117733", "gumbel mcs": "#999933",
    "pgs-uf": "#88CCEE", "pgs": "#0072B2",
    "policy-mcts informed": "#882255", "policy-mcts": "#AA4499", "pv-mcts": "#44AA99",
    "gnrpa": "#661100", "nrpa by block": "#6699CC", "nrpa": "#CC6677",
    "mcts": "#009E73", "mcs": "#CC79A7", "muzero": "#E69F00", "gumbel": "#D55E00",
    "nn": "#999999", "raw network": "#999999", "bare network": "#999999", "random": "#999999",
    "ours, swap rule": "#88CCEE", "ours": "#0072B2", "pgx": "#E69F00", "openspiel": "#009E73",
    "double cross-entropy": "#E69F00", "cross-entropy": "#CC79A7", "tspg": "#0072B2",
    "uct": "#D55E00",
    "delta-uniform": "#0072B2", "naive": "#D55E00", "cem": "#117733",
    "likeliest": "#0072B2", "drawn": "#E69F00", "unrolled": "#0072B2", "shown": "#E69F00",
}  # fmt: skip
_OTHER = "#222222"
_DASHES = ("-", "--", ":", "-.")


def color(name: str) -> str:
    """Returns the colour of a search or system, the same in every picture."""
    return next(
        (
            shade
            for words, shade in _COLORS.items()
            if words in name.lower().replace("gumbel-", "gumbel ")
        ),
        _OTHER,
    )


def save(path: str | os.PathLike[str], figure: Any) -> None:
    """Writes a figure as a PNG of 64 colours, a third of the size of a full-colour one."""
    from PIL import Image

    with io.BytesIO() as drawn, replacing(path) as file:
        figure.savefig(drawn, format="png")
        picture = Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        picture.save(file, "PNG", optimize=True)


def line_plot(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Sequence[float]]]]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    xscale: str = "log",
    yscale: str = "log",
    levels: Mapping[str, float] | None = None,
) -> None:
    """Draws lines as a PNG, side by side in panels that share their axes.

    Args:
      path: the file to write or replace.
      panels: for each panel's heading, for each line's name, its points `(x, y)` or
        `(x, (low, y, high))` in the order to connect them. Lines of one colour, such as two modes
        of a search, differ in their dashes.
      title: what is compared.
      xlabel: what `x` is.
      ylabel: what `y` is.
      xscale: "log" (base 2) or "linear".
      yscale: likewise, base 10.
      levels: reference values, drawn as thin horizontal lines with their names.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    # A wide picture is shown small, so it need not be a large file.
    dpi = 200 if len(panels) <= 3 else 110
    figure = Figure(figsize=(1.6 + 3.8 * len(panels), 4.2), dpi=dpi)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 0.91))
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    shared = {n: [m for m in names if color(m) == color(n)].index(n) for n in names}
    dashes = {n: _DASHES[shared[n] % len(_DASHES)] for n in names}
    every_point = [p for lines in panels.values() for points in lines.values() for p in points]
    places = sorted({point[0] for point in every_point})
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (heading, lines) in zip(all_axes, panels.items(), strict=True):
        for name, points in lines.items():
            if not points:
                continue
            x = [point[0] for point in points]
            low, y, high = np.array([np.broadcast_to(point[1], 3) for point in points], float).T
            shade = color(name)
            if len(points) == 1:  # a band would have no width
                axes.vlines(x, low, high, color=shade, alpha=0.4, linewidth=3)
            axes.fill_between(x, low, high, color=shade, alpha=0.15, linewidth=0)
            axes.plot(x, y, color=shade, linewidth=1.8, marker="o", markersize=4, label=name,
                      linestyle=dashes[name])  # fmt: skip
        for i, (name, y) in enumerate(sorted((levels or {}).items(), key=lambda item: item[1])):
            axes.axhline(y, color=_MUTED, linewidth=0.8, linestyle=":", zorder=1)
            # At three places in turn, as levels may be close.
            axes.annotate(name, (0.01 + 0.3 * (i % 3), y), xycoords=("axes fraction", "data"),
                          fontsize=6.5, color=_MUTED, va="bottom")  # fmt: skip
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
        elif xscale == "log":  # long numbers must not touch
            axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_major_formatter("{x:,.4g}")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    all_axes[0].set_ylabel(ylabel, fontsize=9.5, color=_INK)
    found = [axes.get_legend_handles_labels() for axes in all_axes]
    legend = {
        label: h for handles, labels in found for h, label in zip(handles, labels, strict=True)
    }
    figure.legend(
        legend.values(), legend.keys(), loc="outside right center", frameon=False, fontsize=9
    )
    figure.text(0.012, 0.975, title, fontsize=12.5, fontweight="bold", color=_INK, va="top")
    save(path, figure)


def interval_panels(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, tuple[float, float, float]]],
    names: Sequence[str],
    *,
    title: str,
    xlabel: str,
    columns: int,
) -> None:
    """Draws values with intervals as a PNG, one row for each name, in panels side by side.

    Args:
      path: the file to write or replace.
      panels: for each panel's heading, by name, `(low, value, high)`. An interval that does not
        contain 0 is drawn dark.
      names: all names, the first on top.
      title: what is compared.
      xlabel: what the values are.
      columns: the maximum number of panels in a row.
    """
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    height = 0.5 + rows * (0.7 + 0.27 * len(names))
    figure = Figure(figsize=(3.2 + 2.1 * columns, height), dpi=150)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 0.4 / height))
    all_axes = list(figure.subplots(rows, columns, sharey=True, sharex=True, squeeze=False).flat)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    for axes, (heading, found) in zip(all_axes[: len(panels)], panels.items(), strict=True):
        axes.axvline(0, color=_MUTED, linewidth=0.8, zorder=1)
        for i, name in enumerate(names):
            if name not in found:
                continue
            low, value, high = found[name]
            shade = color("pgs") if low > 0 else color("mctx gumbel") if high < 0 else "#999999"
            axes.hlines(-i, low, high, color=shade, linewidth=3, alpha=0.5, zorder=2)
            axes.scatter([value], [-i], s=22, color=shade, zorder=3)
        axes.set_yticks([-i for i in range(len(names))], names, fontsize=8.5, color=_INK)
        axes.set_ylim(0.6 - len(names), 0.6)
        axes.set_title(heading, fontsize=9, color=_INK, loc="left")
        axes.set_xlabel(xlabel, fontsize=8.5, color=_INK)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8, color=_MUTED, labelcolor=_INK)
        axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
    figure.text(
        0.012, 1 - 0.12 / height, title, fontsize=12, fontweight="bold", color=_INK, va="top"
    )
    save(path, figure)
