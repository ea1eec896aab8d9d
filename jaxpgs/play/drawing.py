"""The static picture of a board, which `jaxpgs.show` displays if widgets are not supported."""

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpgs.play import games
from jaxpgs.play.protocol import message
from jaxpgs.play.visit import Visit, legal, result

HEATS = ("policy", "adapted", "visits", "q", "worth", "none")
COLORS = ("#1d3f72", "#e2653c")  # dark blue and vermilion, as everywhere
_BLOCKS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
_LINES = ("#1b7f79", "#8a4fa3", "#b07d12", "#3f78c9", "#b8434f")  # colours of the leading moves
_LEADING = len(_LINES)
_SCALE = 26.0  # SVG units per cell's side


def draw(visit: Visit, points: list[dict[str, Any]], heat: str = "policy") -> str:
    """Draws a position, and below it the curves of a search's results over its updates.

    Args:
      visit: the game.
      points: the search's results for the position at each update; may be empty.
      heat: one of `HEATS`.

    Returns:
      One `<svg>` element: a `<g class="cell">` for each cell, and a `<polyline class="curve">` for
      each leading move if there are points.

    Raises:
      ValueError: if the heat map is unknown.
    """
    if heat not in HEATS:
        raise ValueError(f"heat is one of {', '.join(HEATS)}; got {heat!r}.")
    told = message(visit)
    layout = told["layout"]
    if layout["kind"] == "svg":
        return told["svg"] or "<svg xmlns='http://www.w3.org/2000/svg'/>"
    left, top, width, height = layout["box"]
    below = 5.2 if len(points) > 1 and heat != "none" else 0.0
    total = height + 1.1 + below
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:g} {top:g} {width:g} {total:g}" '
        f'width="{width * _SCALE:.0f}" height="{total * _SCALE:.0f}" text-anchor="middle" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="0.5">',
        f"<title>{html.escape(caption(visit))}</title>",
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{total:g}" fill="#ffffff"/>',
    ]
    parts += [
        f'<polyline class="edge" points="{_points(at)}" fill="none" stroke="{COLORS[player]}" '
        f'stroke-width="{games.EDGE}" stroke-linejoin="round"/>'
        for player, at in layout["edges"]
    ]
    shape = np.array(layout["shape"])
    blocks = layout["kind"] == "samegame"
    for at, stone in zip(layout["cells"], told["stones"], strict=True):
        x, y = at
        fill = _BLOCKS[(stone - 1) % len(_BLOCKS)] if blocks and stone else "#f6f4ef"
        inner = (
            f'<polygon points="{_points(shape + at)}" fill="{fill}" stroke="#a9a9ae" '
            'stroke-width="0.04"/>'
        )
        if stone and not blocks:
            inner += _circle(x, y, layout["stone"], COLORS[stone - 1])
        parts.append(f'<g class="cell">{inner}</g>')
    if told["last"] and not blocks:
        x, y = layout["cells"][told["last"][0]]
        parts.append(_circle(x, y, 0.16, "#ffffff", "last"))
    colors = COLORS if told["mover"] == 0 else COLORS[::-1]
    for choice, shown in zip(legal(visit), heats(points, heat), strict=False):
        if choice.cells and shown[0]:
            parts += _heat(layout, choice, shown, colors)
    parts += [_text(x, y + 0.18, text, "#6b6b72") for x, y, text in layout["labels"]]
    words = caption(visit)
    if points:
        last = points[-1]
        words += f" · {last['simulations']} simulations, value {last['value']:+.2f}"
    parts.append(_text(left + width / 2, top + height + 0.5, words, "#333338"))
    if below:
        parts += _curves(
            visit, points, heat, (left + 1, top + height + 1.4, width - 3.4, below - 2)
        )
    return "\n".join([*parts, "</svg>"])


def _heat(
    layout: dict[str, Any],
    choice: games.Choice,
    shown: tuple[float, int, str],
    colors: Sequence[str],
) -> list[str]:
    """Draws a move's entry of `heats`, as a line if the move moves a piece."""
    strength, sign, text = shown
    color = colors[sign < 0]
    x, y = layout["cells"][choice.cells[0]]
    if choice.source is not None:
        u, v = layout["cells"][choice.source]
        return [
            f'<line class="heat" x1="{u:g}" y1="{v:g}" x2="{x:g}" y2="{y:g}" '
            f'stroke="{color}" stroke-width="{0.04 + 0.24 * strength:.3f}" '
            'stroke-opacity="0.5" stroke-linecap="round"/>'
        ]
    if layout["kind"] == "samegame":
        mark = _circle(x, y, 0.28 + 0.14 * strength, "#ffffff", "heat")
    else:
        around = _points(0.94 * np.array(layout["shape"]) + (x, y))
        mark = (
            f'<polygon class="heat" points="{around}" fill="{color}" '
            f'fill-opacity="{0.06 + 0.5 * strength:.3f}"/>'
        )
    return [mark] if text in ("0", "-0") else [mark, _text(x, y + 0.18, text)]


def heats(points: list[dict[str, Any]], heat: str) -> list[tuple[float, int, str]]:
    """Returns the strength, the sign and the text that are shown for each legal move.

    Args:
      points: the search's results at each update.
      heat: one of `HEATS`.
    """
    if not points or heat == "none":
        return []
    values = points[0].get("worth") if heat == "worth" else points[-1][heat]
    known = [abs(value) for value in values or () if value is not None]
    largest = max(known, default=0.0) or 1.0
    signed = heat in ("q", "worth")
    found = []
    for value in values or ():
        if value is None or (not signed and value / largest < 0.005):
            found.append((0.0, 1, ""))
            continue
        text = f"{value:.0f}" if heat == "visits" or largest > 1.5 else f"{100 * value:.0f}"
        strength = abs(value) / max(largest, 1.0 if signed else 0.0)
        # Shares are shown by their square roots, as small ones would otherwise be invisible.
        found.append((strength if signed else math.sqrt(strength), -1 if value < 0 else 1, text))
    return found


def series(points: list[dict[str, Any]], heat: str, count: int) -> tuple[list[int], np.ndarray]:
    """Returns the leading moves, and all moves' values `[points, moves]`, NaN if unknown."""
    key = "policy" if heat in ("worth", "none") else heat
    key = "policy" if points[-1][key] is None else key
    table = np.array([[np.nan if x is None else x for x in p[key]] for p in points], float)
    if key == "visits":
        table = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    last = points[-1]
    rank = np.array(last["policy"]) + np.array(last["visits"]) / max(last["simulations"], 1)
    return np.argsort(-rank, kind="stable")[:count].tolist(), table


def _curves(
    visit: Visit, points: list[dict[str, Any]], heat: str, box: tuple[float, ...]
) -> list[str]:
    left, top, width, height = box
    leaders, table = series(points, heat, _LEADING)
    counts = np.array([point["simulations"] for point in points], float)
    across = left + width * counts / max(counts.max(), 1)
    shown = table[:, leaders]
    low, high = min(np.nanmin(shown), 0.0), max(np.nanmax(shown), 1e-9)
    names = [choice.name for choice in legal(visit)]
    parts = [
        f'<line x1="{left:g}" y1="{top + height:g}" x2="{left + width:g}" y2="{top + height:g}" '
        'stroke="#a9a9ae" stroke-width="0.04"/>',
        _text(
            left + width / 2, top + height + 0.7, "simulations, from update to update", "#6b6b72"
        ),
    ]
    ends = []
    for number, move in enumerate(leaders):
        known = ~np.isnan(table[:, move])
        up = top + height * (1 - (table[known, move] - low) / (high - low))
        at = np.stack([across[known], up], axis=1)
        ends.append((float(up[-1]) if len(up) else top + height, number))
        parts.append(
            f'<polyline class="curve" points="{_points(at)}" fill="none" stroke="{_LINES[number]}" '
            'stroke-width="0.09" stroke-linejoin="round"/>'
        )
    # Names that would overlap are moved apart, from the bottom up.
    floor = top + height + 0.4
    for place, number in sorted(ends, reverse=True):
        floor = min(place, floor)
        name = names[leaders[number]]
        parts.append(_text(left + width + 0.3, floor + 0.15, name, _LINES[number], "start"))
        floor -= 0.55
    return parts


def caption(visit: Visit) -> str:
    """Returns a text about whose turn it is, or how the game ended."""
    return result(visit) or f"player {visit.mover} to move"


def _points(points: Any) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _text(x: float, y: float, text: str, fill: str = "#1c1c20", anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" fill="{fill}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )


def _circle(x: float, y: float, radius: float, fill: str, kind: str = "stone") -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{radius:.3g}" fill="{fill}"/>'
