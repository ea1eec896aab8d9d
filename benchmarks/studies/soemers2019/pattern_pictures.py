"""Pictures of patterns: the contents of the cells around a move, and the pattern's weight."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pictures import save

_INK, _MUTED = "#222222", "#6B6B6B"
_COLORS = {"empty": "#FFFFFF", "own": "#0072B2", "other": "#D55E00", "last move": "#D55E00"}
_EDGE = "#BBBBBB"


def draw(
    path: pathlib.Path,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    hexagonal: bool,
    title: str,
) -> None:
    """Draws a row of patterns for each policy as a PNG, the strongest first.

    A cross marks the cell of the move. Blue stones are the mover's, red ones the opponent's, whose
    last move has a ring. White cells are empty, grey ones are beyond the edge.

    Args:
      path: the file to write or replace.
      rows: for each policy, patterns with their `weight`, `template`, `anchor` and `cells`, as
        `PatternPolicy.describe` returns them.
      hexagonal: whether offsets are those of a hexagonal board.
      title: the title of the picture.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle, RegularPolygon

    several = len({pattern["anchor"] for shown in rows.values() for pattern in shown}) > 1
    columns = max(len(shown) for shown in rows.values())
    height = 0.5 + 1.7 * len(rows)
    figure = Figure(figsize=(1.2 + 1.5 * columns, height), dpi=100)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 0.4 / height))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_aspect("equal")
        axes.set_axis_off()
    for line, (name, shown) in zip(grid, rows.items(), strict=True):
        for axes, pattern in zip(line, shown, strict=False):
            cells = {tuple(offset): held for offset, held in pattern["cells"]}
            for (row, column), held in ({(0, 0): None} | cells).items():
                x = column + row / 2 if hexagonal else column
                y = -row * (3**0.5 / 2 if hexagonal else 1)
                sides, radius, turn = (6, 3**-0.5, 0.0) if hexagonal else (4, 2**-0.5, 0.785398)
                beyond = held is not None and held not in _COLORS
                axes.add_patch(
                    RegularPolygon(
                        (x, y), sides, radius=radius, orientation=turn, linewidth=0.8,
                        facecolor=_EDGE if beyond else "#FFFFFF", edgecolor=_MUTED,
                    )
                )  # fmt: skip
                if held in ("own", "other", "last move"):
                    axes.add_patch(Circle((x, y), 0.32, facecolor=_COLORS[held]))
                if held == "last move":
                    axes.add_patch(Circle((x, y), 0.42, fill=False, edgecolor=_INK, linewidth=1))
                if (row, column) == (0, 0):
                    axes.plot(x, y, marker="x", color=_INK, markersize=5)
            axes.set_xlim(-3.6, 3.6)
            axes.set_ylim(-3.6, 3.6)
            about = f" ({pattern['anchor']})" if several else ""
            axes.set_title(f"{pattern['weight']:+.2f}{about}", fontsize=8.5, color=_INK)
        line[0].text(
            -0.1, 0.5, name, transform=line[0].transAxes, rotation=90, ha="right", va="center",
            fontsize=9, color=_INK,
        )  # fmt: skip
    figure.text(0.012, 1 - 0.1 / height, title, fontsize=11, fontweight="bold", va="top")
    save(path, figure)
