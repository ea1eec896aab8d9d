"""SameGame positions as text and as SVG pictures.

Columns are lettered from a and rows numbered from 1 at the top. Both functions draw one unbatched
position on the host.
"""

import colorsys
from typing import TYPE_CHECKING

import chex
import numpy as np

if TYPE_CHECKING:
    from jaxpgs.envs.samegame.game import SameGame, SameGameState

_MARKS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# Okabe and Ito's palette, which is distinguishable with most kinds of colour vision.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
_SIDE = 30.0  # of a cell, in SVG units


def samegame_text(
    env: "SameGame", state: "SameGameState", policy: chex.ArrayNumpy | None = None
) -> str:
    """Draws a position as text.

    Colours are `0` to `9`, then capital and small letters; from colour 62 on all are `*`. An empty
    cell is a dot.

    Args:
      env: the game.
      state: a position, unbatched.
      policy: optional `[A]` probabilities. Cells with a probability of at least 0.5% then show it
        in percent after their colour.

    Returns:
      The drawing, without a newline at the end.

    Raises:
      ValueError: if the state is batched or of another size, or the policy has the wrong shape.
    """
    board, probabilities = _checked(env, state, policy)
    pitch = 2 if probabilities is None else 5

    def text(row: int, col: int) -> str:
        color = board[row, col]
        mark = "." if color < 0 else _MARKS[color] if color < len(_MARKS) else "*"
        if probabilities is None:
            return f"{mark:>{pitch}}"
        percent = round(100 * probabilities[row, col])
        return f"{mark:>2}" + (f":{percent:<2}" if percent else "   ")

    head = "".join(f"{column_letters(col):>2}".ljust(pitch) for col in range(env.width))
    lines = [" " * 3 + head]
    for row in range(env.height):
        lines.append(f"{row + 1:>3}" + "".join(text(row, col) for col in range(env.width)))
    return "\n".join(line.rstrip() for line in [*lines, _caption(board, state)])


def samegame_svg(
    env: "SameGame", state: "SameGameState", policy: chex.ArrayNumpy | None = None
) -> str:
    """Draws a position as a self-contained SVG picture, blocks of a group joined to each other.

    Args:
      env: the game.
      state: a position, unbatched.
      policy: optional `[A]` probabilities. Cells with a probability of at least 0.5% then show it
        in percent on a white disc, whose radius grows with it.

    Returns:
      One `<svg>` element, with one `<rect class="block">` per block and one
      `<circle class="policy">` per probability shown.

    Raises:
      ValueError: if the state is batched or of another size, or the policy has the wrong shape.
    """
    board, probabilities = _checked(env, state, policy)
    left, top = 1.2 * _SIDE, 1.0 * _SIDE
    width = left + max(env.width, 6) * _SIDE + 0.5 * _SIDE  # room for the caption
    height = top + env.height * _SIDE + 1.4 * _SIDE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'width="{width:.0f}" height="{height:.0f}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" text-anchor="middle">',
        f"<title>{_caption(board, state)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{env.width * _SIDE:.1f}" '
        f'height="{env.height * _SIDE:.1f}" rx="4" fill="#f2f0ea"/>',
    ]
    for col in range(env.width):
        parts.append(
            _text(left + (col + 0.5) * _SIDE, 0.6 * _SIDE, column_letters(col), 0.42, "#6b6b72")
        )
    for row in range(env.height):
        parts.append(_text(0.65 * left, top + (row + 0.5) * _SIDE, str(row + 1), 0.42, "#6b6b72"))
    # Bridges are below the blocks, so they are drawn first although found in the same loop.
    blocks, joints = [], []
    gap = 0.06 * _SIDE
    inner = _SIDE - 2 * gap
    for row, col in np.argwhere(board >= 0):
        x, y, color = left + col * _SIDE, top + row * _SIDE, _color(board[row, col], env)
        blocks.append(
            f'<rect class="block" x="{x + gap:.1f}" y="{y + gap:.1f}" width="{inner:.1f}" '
            f'height="{inner:.1f}" rx="{0.18 * _SIDE:.1f}" fill="{color}"/>'
        )
        # A bridge over the gap to a neighbour of the same colour, without the round corners.
        for beyond, across in ((col + 1 < env.width, True), (row + 1 < env.height, False)):
            if beyond and board[row + (not across), col + across] == board[row, col]:
                short, long = 0.5 * _SIDE, inner - 0.3 * _SIDE
                at = (x + 0.75 * _SIDE, y + gap + 0.15 * _SIDE)
                if not across:
                    at = (x + gap + 0.15 * _SIDE, y + 0.75 * _SIDE)
                w, h = (short, long) if across else (long, short)
                joints.append(
                    f'<rect x="{at[0]:.1f}" y="{at[1]:.1f}" width="{w:.1f}" height="{h:.1f}" '
                    f'fill="{color}"/>'
                )
    parts += joints + blocks
    if probabilities is not None:
        largest = max(float(probabilities.max()), 1e-9)
        for row, col in np.argwhere(np.rint(100 * probabilities) > 0):
            x, y = left + (col + 0.5) * _SIDE, top + (row + 0.5) * _SIDE
            radius = _SIDE * (0.26 + 0.16 * probabilities[row, col] / largest)
            parts.append(
                f'<circle class="policy" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
                'fill="#ffffff" fill-opacity="0.92"/>'
            )
            percent = str(round(100 * probabilities[row, col]))
            parts.append(_text(x, y, percent, 0.4, "#1c1c20"))
    at = (left, height - 0.65 * _SIDE)
    parts.append(_text(*at, _caption(board, state), 0.48, "#333338", anchor="start"))
    return "\n".join([*parts, "</svg>"])


def _checked(
    env: "SameGame", state: "SameGameState", policy: chex.ArrayNumpy | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the colours and the policy, both `[height, width]`."""
    shape = (env.num_colors.bit_length(), env.width)
    if state.planes.shape != shape or state.height != env.height:
        raise ValueError(
            f"Rendering needs one unbatched state with planes of shape {shape} and height "
            f"{env.height}, got {state.planes.shape} and {state.height}."
        )
    board = np.asarray(env.board(state))
    if policy is None:
        return board, None
    probabilities = np.asarray(policy, np.float64)
    if probabilities.shape != (env.num_actions,):
        raise ValueError(
            f"Rendering needs a policy of shape {(env.num_actions,)}, got {probabilities.shape}."
        )
    return board, probabilities.reshape(board.shape)


def _color(index: int, env: "SameGame") -> str:
    if env.num_colors <= len(_COLORS):
        return _COLORS[index]
    # Equally spaced hues; three lightnesses distinguish neighbouring hues.
    rgb = colorsys.hls_to_rgb(index / env.num_colors, (0.42, 0.56, 0.7)[index % 3], 0.62)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def column_letters(col: int) -> str:
    """Names column 0 a, 25 z, 26 aa and so on."""
    name = ""
    while col >= 0:
        name = chr(ord("a") + col % 26) + name
        col = col // 26 - 1
    return name


def _caption(board: np.ndarray, state: "SameGameState") -> str:
    left = int((board >= 0).sum())
    blocks = f"{left} block{'s' * (left != 1)} left"
    if not bool(state.terminated):
        return blocks
    return f"game over, {blocks}" if left else "game over, board cleared"


def _text(x: float, y: float, text: str, size: float, fill: str, anchor: str = "middle") -> str:
    # Moved down by a third of its height, since few programs support `dominant-baseline`.
    return (
        f'<text x="{x:.1f}" y="{y + 0.35 * size * _SIDE:.1f}" font-size="{size * _SIDE:.1f}" '
        f'fill="{fill}" text-anchor="{anchor}">{text}</text>'
    )
