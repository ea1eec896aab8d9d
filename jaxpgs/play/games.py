"""What an interactive board needs to know of a game: the layout of cells, and moves by clicks.

A layout is plain JSON, with a cell's side as unit. The page and the static picture draw the same
layout. Games without a layout are shown by their own SVG, and their moves as a list.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxpgs.adapters.environments import check_players
from jaxpgs.envs import Breakthrough, Hex, SameGame, Yavalath
from jaxpgs.envs.hex_games import cell_name
from jaxpgs.envs.render import HEXAGON, hex_centre, hex_outline
from jaxpgs.envs.samegame.svg import column_letters

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SQUARE = [[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]]
EDGE = 0.5  # how thick the edges of a board of Hex are


class Choice(NamedTuple):
    """A legal move.

    Attributes:
      action: its number.
      name: its name.
      cells: the cells to click; marks for the move are shown at the first of them.
      source: the cell that a pawn leaves, which is clicked first; None for other moves.
    """

    action: int
    name: str
    cells: tuple[int, ...]
    source: int | None = None


def layout(env: Any) -> dict[str, Any]:
    """Describes a board.

    Args:
      env: the game.

    Returns:
      `kind`: "hex", "breakthrough", "yavalath", "samegame", or "svg" for other games, which have no
      further entries. `cells`: the centre `[x, y]` of each. `shape`: the corners of a cell relative
      to its centre. `labels`: `[x, y, text]`. `edges`: `[player, [[x, y], ...]]`. `box`: left, top,
      width and height. `stone`: the radius of stones.

    Raises:
      ValueError: if the game is not one of one or two players.
    """
    check_players("A board", env)
    centres: np.ndarray
    labels: list[tuple[float, float, str]] = []
    edges: list[tuple[int, np.ndarray]] = []
    shape, stone = HEXAGON, 0.66
    if isinstance(env, Hex):
        kind, n = "hex", env.size
        centres = np.array([hex_centre(*divmod(cell, n)) for cell in range(n * n)])
        edges = hex_outline(n, EDGE)
        for i in range(n):
            (x, y), (u, v) = hex_centre(0, i), hex_centre(i, 0)
            labels += [(x - 0.45, y - 1.6, _LETTERS[i]), (u - 1.6, v, str(i + 1))]
            (x, y), (u, v) = hex_centre(n - 1, i), hex_centre(i, n - 1)
            labels += [(x + 0.45, y + 1.6, _LETTERS[i]), (u + 1.6, v, str(i + 1))]
    elif isinstance(env, Yavalath):
        kind, n = "yavalath", env.size
        centres = np.array([hex_centre(row, col) for row, col in env.coordinates])
        for row in range(2 * n - 1):
            last = max(np.flatnonzero(env.coordinates[:, 0] == row))
            labels.append((centres[last][0] + 1.5, centres[last][1], str(row + 1)))
        for col in range(2 * n - 1):
            first = min(np.flatnonzero(env.coordinates[:, 1] == col))
            labels.append((centres[first][0] - 0.75, centres[first][1] - 1.3, _LETTERS[col]))
    elif isinstance(env, Breakthrough | SameGame):
        up = isinstance(env, Breakthrough)
        rows, columns = env.observation_shape[:2]
        kind, shape, stone = ("breakthrough" if up else "samegame"), np.array(_SQUARE), 0.36
        centres = np.array([(col, row) for row in range(rows) for col in range(columns)], float)
        labels = [(-0.85, row, str(rows - row if up else row + 1)) for row in range(rows)]
        labels += [
            (col, rows - 0.15 if up else -0.85, column_letters(col)) for col in range(columns)
        ]
    else:
        return {"kind": "svg"}
    points = [*(centres[:, None] + shape).reshape(-1, 2), *((x, y) for x, y, _ in labels)]
    low = np.min(points, axis=0) - 0.7
    size = np.max(points, axis=0) + 0.7 - low
    return {
        "kind": kind,
        "cells": np.round(centres, 3).tolist(),
        "shape": np.round(shape, 3).tolist(),
        "labels": [[round(float(x), 3), round(float(y), 3), text] for x, y, text in labels],
        "edges": [[player, np.round(at, 3).tolist()] for player, at in edges],
        "box": np.round([*low, *size], 3).tolist(),
        "stone": stone,
    }


def stones(env: Any, state: Any) -> list[int]:
    """Returns each cell's content: 0 if empty, 1 and 2 for players' stones, or colours from 1."""
    if isinstance(env, SameGame):
        return (np.asarray(env.board(state)).flatten() + 1).tolist()
    if isinstance(env, Hex | Yavalath | Breakthrough):
        signs = np.sign(np.asarray(getattr(state, "labels" if isinstance(env, Hex) else "board")))
        return np.where(signs < 0, 2, signs).flatten().tolist()
    return []


def picture(env: Any, state: Any) -> str | None:
    """Returns the game's own SVG picture of a position, or None if the game has none."""
    for name in ("to_svg", "_repr_html_"):  # pgx has the first; older releases have the second
        if hasattr(state, name):
            return str(getattr(state, name)())
    return None


def choices(env: Any, state: Any) -> list[Choice]:
    """Lists the legal moves of a position; none after the end."""
    if bool(state.terminated):
        return []
    legal = [int(action) for action in np.flatnonzero(np.asarray(state.legal_action_mask))]
    if isinstance(env, Breakthrough):
        return [_pawn_move(env, state, action) for action in legal]
    groups: dict[int, tuple[int, ...]] = {action: (action,) for action in legal}
    if isinstance(env, SameGame):
        labels = np.asarray(env.group_labels(state))
        # The action's own cell comes first, as marks for a `Choice` are shown at its first cell.
        others = {a: np.flatnonzero(labels == a).tolist() for a in legal}
        groups = {a: (a, *(cell for cell in others[a] if cell != a)) for a in legal}
    elif not isinstance(env, Hex | Yavalath):
        groups = dict.fromkeys(legal, ())
    elif env.num_cells in groups:  # the swap has no cell
        groups[env.num_cells] = ()
    return [Choice(action, action_name(env, action), groups[action]) for action in legal]


def action_name(env: Any, action: int) -> str:
    """Returns the name of an action, or its number if the name depends on the position."""
    if isinstance(env, Hex):
        return cell_name(env.size, action) if action < env.num_cells else "swap"
    if isinstance(env, Yavalath):
        row, column = env.coordinates[action].tolist()
        return f"{_LETTERS[column]}{row + 1}"
    if isinstance(env, SameGame):
        return f"{column_letters(action % env.width)}{action // env.width + 1}"
    return str(action)


def _pawn_move(env: Breakthrough, state: Any, action: int) -> Choice:
    """Converts a move of Breakthrough from its mover's frame to the board."""
    source, direction = divmod(action, 3)
    cells = [source, source - env.columns + direction - 1]
    if int(state.current_player):
        cells = [env.num_cells - 1 - cell for cell in cells]
    rows = [env.rows - cell // env.columns for cell in cells]
    names = [f"{_LETTERS[c % env.columns]}{row}" for c, row in zip(cells, rows, strict=True)]
    takes = np.asarray(state.board).flat[cells[1]] != 0
    return Choice(action, ("x" if takes else "-").join(names), (cells[1],), cells[0])
