"""SameGame's rules in plain NumPy, one cell after another: slow, short and easy to check.

This module shares no code with `jaxpgs.envs.samegame.game`, so it can verify recorded games and
test that module. Boards are `[height, width]` integers, row 0 the top: a colour from 0 on, or -1
for an empty cell.
"""

from collections.abc import Iterable
from typing import NamedTuple

import chex
import numpy as np


class ReplayedGame(NamedTuple):
    """A replayed game of T moves.

    Attributes:
      boards: T + 1 boards `[height, width]`, the given one included.
      rewards: T floats; the last one includes the reward for the end, if the game has ended.
      score: their sum.
      over: whether no group is left.
      cleared: whether no block is left.
    """

    boards: list[np.ndarray]
    rewards: list[float]
    score: float
    over: bool
    cleared: bool


def replay(
    board: chex.ArrayNumpy, actions: Iterable[int], *, penalty: str = "per_color"
) -> ReplayedGame:
    """Replays a recorded game and scores it.

    Args:
      board: `[height, width]` the position to start from.
      actions: row-major cells; any cell of a group plays it.
      penalty: "per_color", "total" or "none", as in `jaxpgs.envs.SameGame`.

    Returns:
      The game.

    Raises:
      ValueError: if the penalty is unknown, or an action is out of range or removes no group.
    """
    if penalty not in ("per_color", "total", "none"):
        raise ValueError(f'The penalty is "per_color", "total" or "none", got {penalty!r}.')
    boards, rewards = [np.array(board)], []
    legal = groups(boards[0])
    for index, action in enumerate(actions):
        # Records may name any block of the group, since players may click on any.
        group = next((group for group in legal if action in group), None)
        if group is None:
            raise ValueError(f"Move {index} plays cell {action}, which belongs to no group.")
        boards.append(_without(boards[-1], group))
        legal = groups(boards[-1])
        # The game ends with the move after which no group is left; it also earns the end reward.
        end = 0 if legal else _end_reward(boards[-1], penalty)
        rewards.append(float((len(group) - 2) ** 2 + end))
    return ReplayedGame(boards, rewards, sum(rewards), not legal, not (boards[-1] >= 0).any())


def groups(board: np.ndarray) -> list[list[int]]:
    """Lists the groups of a board, each as row-major cells that begin with the legal action."""
    height, width = board.shape
    found, seen = [], set()
    # From the left, in each column from the bottom: the first cell found represents its group.
    for start in [r * width + c for c in range(width) for r in reversed(range(height))]:
        if start in seen or board.flat[start] < 0:
            continue
        seen.add(start)
        cells = [start]
        for cell in cells:  # the list grows during the loop
            row, column = divmod(cell, width)
            for r, c in (
                (row - 1, column),
                (row + 1, column),
                (row, column - 1),
                (row, column + 1),
            ):
                inside = 0 <= r < height and 0 <= c < width
                if inside and r * width + c not in seen and board[r, c] == board.flat[start]:
                    seen.add(r * width + c)
                    cells.append(r * width + c)
        if len(cells) > 1:
            found.append(cells)
    return found


def _without(board: np.ndarray, group: list[int]) -> np.ndarray:
    """Removes a group: blocks fall, then empty columns close to the left."""
    height = board.shape[0]
    holes = board.copy()
    holes.flat[group] = -1
    # The remaining blocks of each column, top to bottom; empty columns are dropped below.
    stacks = [column[column >= 0] for column in holes.T]
    after = np.full_like(board, -1)
    for c, stack in enumerate([stack for stack in stacks if len(stack)]):
        after[height - len(stack) :, c] = stack
    return after


def _end_reward(board: np.ndarray, penalty: str) -> int:
    left = board[board >= 0]
    if not len(left):
        return 1000
    if penalty == "none":
        return 0
    counts = [len(left)] if penalty == "total" else np.unique(left, return_counts=True)[1]
    return -sum((int(n) - 2) ** 2 for n in counts)
