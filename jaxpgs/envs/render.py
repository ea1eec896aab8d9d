"""Draws positions: Hex as text and as SVG pictures, Breakthrough and Yavalath as text.

Columns are lettered from a and rows numbered from 1, so row 1 and column 2 (from 0) meet in `c2`.
In Breakthrough rows are numbered as in chess, from the side of player 0. All functions draw one
unbatched position on the host.
"""

import math
from typing import TYPE_CHECKING

import chex
import numpy as np

if TYPE_CHECKING:
    from jaxpgs.envs.breakthrough import Breakthrough, BreakthroughState
    from jaxpgs.envs.hex import Hex, HexState
    from jaxpgs.envs.yavalath import Yavalath, YavalathState

_MARKS = "XO"
_SYMBOLS = {0: ".", 1: "X", -1: "O"}
# Dark blue and vermilion are distinct in greyscale and for every kind of colour vision.
_COLORS = ("#1d3f72", "#e2653c")
_OUTLINES = ("#12294d", "#b0431f")
_SIDE = 24.0  # from a cell's centre to its corners, in SVG units
# The corners of a cell of side 1, clockwise from the top one.
_ANGLES = np.deg2rad(60 * np.arange(6) - 90)
HEXAGON = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


def hex_text(env: "Hex", state: "HexState", policy: chex.ArrayNumpy | None = None) -> str:
    """Draws a position as a slanted rhombus of text.

    `X` is player 0 and `O` player 1; small letters mark the edges that each player connects.

    Args:
      env: the game.
      state: a position, unbatched.
      policy: optional `[A]` probabilities. Empty cells then show theirs in percent, and the swap,
        if it is an action, has its own line.

    Returns:
      The drawing, without a newline at the end.

    Raises:
      ValueError: if the state is batched or of another size, or the policy has the wrong shape.
    """
    n = env.size
    board, probabilities = _checked(env, state, policy)
    percent = None if probabilities is None else _percent(probabilities)
    # Characters for each cell; "100" and a blank need four.
    pitch = 2 if percent is None else 4

    def line(row: int, texts: list[str], before: str = "", after: str = "") -> str:
        # Each row is half a cell to the right of the row above.
        body = "".join(f"{text:>{pitch}}" for text in texts)
        return " " * (pitch // 2 * (row + 2)) + f"{before:>4}" + body + after

    def text(cell: int) -> str:
        if board[cell]:
            return _MARKS[board[cell] - 1]
        return "." if percent is None else str(percent[cell])

    letters = [_letter(col) for col in range(n)]
    lines = [line(-2, letters), line(-1, ["x"] * n)]
    for row in range(n):
        cells = [text(cell) for cell in range(row * n, (row + 1) * n)]
        lines.append(line(row, cells, f"{row + 1} o", " o"))
    lines += [line(n, ["x"] * n), _caption(state, tuple(f"{mark} " for mark in _MARKS))]
    if percent is not None and env.swap:
        lines.append(f"swap {percent[-1]}%")
    return "\n".join(lines)


def hex_svg(env: "Hex", state: "HexState", policy: chex.ArrayNumpy | None = None) -> str:
    """Draws a position as a self-contained SVG picture.

    Each edge has the colour of the player who connects it: player 0, dark blue, connects top and
    bottom, and player 1, vermilion, connects left and right.

    Args:
      env: the game.
      state: a position, unbatched.
      policy: optional `[A]` probabilities. Empty cells then show dots whose area is proportional to
        the probability, and percentages that are not 0. The caption gives the swap's probability.

    Returns:
      One `<svg>` element, with one `<polygon class="cell">` per cell and one
      `<circle class="stone">` per stone.

    Raises:
      ValueError: if the state is batched or of another size, or the policy has the wrong shape.
    """
    n = env.size
    board, probabilities = _checked(env, state, policy)
    across = _SIDE * math.sqrt(3)
    left, top = 1.3 * across, 2.0 * _SIDE
    width = max(2 * left + (1.5 * n - 0.5) * across, 13 * _SIDE)  # room for the caption
    height = top + (1.5 * n + 0.5) * _SIDE + 2.4 * _SIDE
    outline = hex_outline(n)
    corners = _SIDE * HEXAGON

    def placed(points: np.ndarray) -> np.ndarray:
        return np.array([left + across / 2, top + _SIDE]) + _SIDE * points

    def centre(row: float, col: float) -> np.ndarray:
        return placed(hex_centre(row, col))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'width="{width:.0f}" height="{height:.0f}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" text-anchor="middle">',
        f"<title>{_caption(state)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    # Edges are drawn first, since the cells cover the inner half of their lines.
    thickness = 0.5 * _SIDE
    parts += [
        f'<polyline class="edge" points="{_points(placed(points))}" fill="none" '
        f'stroke="{_COLORS[player]}" stroke-width="{thickness:.1f}" stroke-linejoin="round"/>'
        for player, points in outline
    ]
    parts += [
        f'<polygon class="cell" points="{_points(centre(row, col) + corners)}" fill="#f6f4ef" '
        'stroke="#9a9aa0" stroke-width="1"/>'
        for row in range(n)
        for col in range(n)
    ]
    for i in range(n):
        parts.append(_text(centre(0, i) - [0, 1.65 * _SIDE], _letter(i), 0.55, "#6b6b72"))
        parts.append(_text(centre(i, 0) - [0.95 * across, 0], str(i + 1), 0.55, "#6b6b72"))
    mover = int(state.current_player)
    largest = 1.0 if probabilities is None else max(float(probabilities.max()), 1e-9)
    for cell, stone in enumerate(board):
        at = centre(*divmod(cell, n))
        if stone:
            parts.append(_stone(at, stone - 1, 0.64))
        elif probabilities is not None:
            parts += _probability(at, probabilities[cell], largest, _COLORS[mover])
    caption = _caption(state)
    if probabilities is not None and env.swap:
        caption += f", swap {_percent(probabilities[-1])}%"
    at = np.array([0.8 * _SIDE, height - 0.9 * _SIDE])
    if not bool(state.terminated):
        parts.append(_stone(at, mover, 0.3, kind="turn"))
        at = at + np.array([0.6 * _SIDE, 0.0])
    parts.append(_text(at, caption, 0.6, "#333338", anchor="start"))
    return "\n".join([*parts, "</svg>"])


def _probability(at: np.ndarray, share: np.ndarray, largest: float, color: str) -> list[str]:
    """Draws a move's probability: a dot, and the percentage if it is not 0."""
    # The eye compares areas, so the radius grows with the square root of the probability.
    radius = 0.76 * _SIDE * math.sqrt(max(float(share), 0.0) / largest)
    dot = (
        f'<circle class="policy" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}" '
        f'fill="{color}" fill-opacity="0.3"/>'
    )
    percent = int(_percent(share))
    return [dot, _text(at, str(percent), 0.56, "#1c1c20")] if percent else [dot]


def hex_centre(row: float, col: float) -> np.ndarray:
    """Returns a cell's centre, with the cell's side as unit and a1 at the origin."""
    return np.array([(col + row / 2) * math.sqrt(3), 1.5 * row])


def hex_outline(size: int, thickness: float = 0.5) -> list[tuple[int, np.ndarray]]:
    """Returns the four edges of a board of Hex as `(player, points [P, 2])`.

    The cells cover the inner half of lines of this thickness along the points.

    Args:
      size: board size n.
      thickness: of the lines, with the cell's side as unit.
    """

    def border(cells: list[tuple[int, int]], order: tuple[int, int]) -> list[np.ndarray]:
        return [hex_centre(*cell) + HEXAGON[corner] for cell in cells for corner in order]

    # At the two blunt corners of the rhombus each player owns half of the outer side.
    last = size - 1
    upper = hex_centre(0, last) + (HEXAGON[0] + HEXAGON[1]) / 2
    lower = hex_centre(last, 0) + (HEXAGON[3] + HEXAGON[4]) / 2
    borders = [
        (0, [*border([(0, col) for col in range(size)], (5, 0)), upper]),
        (0, [lower, *border([(last, col) for col in range(size)], (3, 2))]),
        (1, [*border([(row, 0) for row in range(size)], (5, 4)), lower]),
        (1, [upper, *border([(row, last) for row in range(size)], (1, 2))]),
    ]
    # At the sharp corners, where two colours meet at an angle of 120 degrees, both lines are
    # extended until their outer sides touch.
    reach = thickness / 2 * math.tan(math.pi / 6)
    for (_, points), end, inner in zip(borders, (0, -1, 0, -1), (1, -2, 1, -2), strict=True):
        points[end] = points[end] + reach * (points[end] - points[inner])
    return [(player, np.array(points)) for player, points in borders]


def breakthrough_text(env: "Breakthrough", state: "BreakthroughState") -> str:
    """Draws a position as text, from the side of player 0.

    `X` is player 0, who moves up, and `O` player 1.

    Args:
      env: the game.
      state: a position, unbatched.

    Returns:
      The drawing, without a newline at the end.

    Raises:
      ValueError: if the state is batched or of another size.
    """
    board = _check_board(state, (env.rows, env.columns))
    lines = [
        f"{env.rows - row:>2} " + " ".join(_SYMBOLS[stone] for stone in stones)
        for row, stones in enumerate(board)
    ]
    lines.append("   " + " ".join(_letter(column) for column in range(env.columns)))
    return "\n".join([*lines, _caption(state, ("X ", "O "))])


def yavalath_text(env: "Yavalath", state: "YavalathState") -> str:
    """Draws a position as a hexagon of text.

    `X` is player 0 and `O` player 1. A row's number is at its right end. A column runs from its
    letter down to the right.

    Args:
      env: the game.
      state: a position, unbatched.

    Returns:
      The drawing, without a newline at the end.

    Raises:
      ValueError: if the state is batched or of another size.
    """
    board = _check_board(state, (env.num_cells,))
    n = env.size
    symbols = [_SYMBOLS[stone] for stone in board.tolist()]
    # Columns that begin in the first row have their letters above it, the others at the left edge.
    lines = [" " * (n - 1) + " ".join(_letter(column) for column in range(n - 1, 2 * n - 1))]
    for row in range(2 * n - 1):
        before = [_letter(n - 2 - row)] if row < n - 1 else []
        cells = [symbols[cell] for cell in np.flatnonzero(env.coordinates[:, 0] == row)]
        # A letter and a blank before the row take the place of one more cell.
        indent = n - 2 - row if before else row - n + 2
        lines.append(" " * indent + " ".join([*before, *cells, str(row + 1)]))
    return "\n".join([*lines, _caption(state, ("X ", "O "))])


def _checked(
    env: "Hex", state: "HexState", policy: chex.ArrayNumpy | None
) -> tuple[list[int], np.ndarray | None]:
    """Returns the cells (0 empty, 1 and 2 the players' stones) and the policy as float64."""
    labels = np.asarray(state.labels)
    if labels.shape != (env.num_cells,):
        raise ValueError(
            f"Rendering needs one unbatched state with labels of shape {(env.num_cells,)}, "
            f"got {labels.shape}."
        )
    board = np.where(labels > 0, 1, np.where(labels < 0, 2, 0)).tolist()
    if policy is None:
        return board, None
    probabilities = np.asarray(policy, np.float64)
    if probabilities.shape != (env.num_actions,):
        raise ValueError(
            f"Rendering needs a policy of shape {(env.num_actions,)}, got {probabilities.shape}."
        )
    return board, probabilities


def _percent(probabilities: np.ndarray) -> np.ndarray:
    return np.rint(100 * probabilities).astype(int)


def _letter(col: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[col]


def _caption(
    state: "BreakthroughState | HexState | YavalathState", marks: tuple[str, ...] = ("", "")
) -> str:
    mover = int(state.current_player)
    if not bool(state.terminated):
        return f"{marks[mover]}player {mover} to move"
    # Rewards are from the last step: zero in a position from a board or after the end.
    rewards = np.asarray(state.rewards)
    winner = int(rewards.argmax())
    return f"{marks[winner]}player {winner} won" if rewards.any() else "game over"


def _check_board(state: "BreakthroughState | YavalathState", shape: tuple[int, ...]) -> np.ndarray:
    board = np.asarray(state.board)
    if board.shape != shape:
        raise ValueError(
            f"Rendering needs one unbatched state with a board of shape {shape}, got {board.shape}."
        )
    return board


def _points(points: list[np.ndarray] | np.ndarray) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _stone(at: np.ndarray, player: int, radius: float, kind: str = "stone") -> str:
    return (
        f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius * _SIDE:.1f}" '
        f'fill="{_COLORS[player]}" stroke="{_OUTLINES[player]}" stroke-width="1.5"/>'
    )


def _text(at: np.ndarray, text: str, size: float, fill: str, anchor: str = "middle") -> str:
    # Moved down by a third of its height, since few programs support `dominant-baseline`.
    return (
        f'<text x="{at[0]:.1f}" y="{at[1] + 0.35 * size * _SIDE:.1f}" '
        f'font-size="{size * _SIDE:.1f}" fill="{fill}" text-anchor="{anchor}">{text}</text>'
    )
