"""Positions of Hex in which a ladder along the second row decides, each proved by the solver.

The attacker has a chain of stones from one of its edges down to the second row above its other
edge. The end of this chain is the ladder's head. The defender has stones on the first row below the
head, and another chain, the wall, above the cells ahead. Each move of the attacker along the second
row threatens to touch the edge, so the defender must answer on the first row, up to the side of the
board. The attacker wins if the ladder meets a stone of its own, the escape.

Positions come in pairs that differ in the place of that one stone: where the ladder meets it, or
elsewhere. A pair is kept only if `solve_hex` proves that the attacker to move wins the first (the
ladder's next move is a winning one) and loses the second, and that the defender to move wins the
first, and so both; thus the attacker needs forcing moves. In half of the pairs the ladder's next
move has been played.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import write_text
from jaxpgs.envs import Hex
from jaxpgs.envs.hex_games import winner
from jaxpgs.evaluation import solve_hex

FILE = pathlib.Path(__file__).with_name("ladders.json")
SIZES = (5, 6, 7, 9, 11)
PAIRS = 20  # of each size
LIMIT = 2_000  # a position whose proof needs more entries is left out
_STONES = ".xo"

# Cells are (height above the edge, columns ahead of the head). A step of a chain is the offset of
# the next stone, with those of the two cells of a bridge, which must stay empty, or of none.
Cell = tuple[int, int]
Steps = Sequence[tuple[Cell, Sequence[Cell]]]
UP: Steps = (((1, 0), ()), ((1, 1), ()), ((2, 1), ((1, 0), (1, 1))))
BACK: Steps = (((0, -1), ()), ((1, -1), ((0, -1), (1, 0))), ((-1, -2), ((0, -1), (-1, -1))))
AHEAD: Steps = (((0, 1), ()), ((1, 2), ((0, 1), (1, 1))), ((-1, 1), ((0, 1), (-1, 0))))


class Ladder(NamedTuple):
    """A position.

    Attributes:
      board: `[n, n]` int, 0 empty, 1 a stone of player 0, 2 one of player 1.
      player: who is to move, 0 or 1.
      distance: columns from the ladder's head to the escape, before the ladder's next move.
      value: +1 if the player to move wins, -1 otherwise.
      keeping: the moves that keep the win; empty if the player to move loses.
    """

    board: np.ndarray
    player: int
    distance: int
    value: int
    keeping: list[int]


class _GivenUpError(Exception):
    """A proof needs more than `LIMIT` entries, or the stones of a sketch do not fit."""


class _Bounded(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= LIMIT:
            raise _GivenUpError
        super().__setitem__(key, value)


class _Sketch:
    """A board on which player 0 attacks the last row, to the right or to the left."""

    def __init__(self, size: int, ahead: int, to_right: bool) -> None:
        self.size, self.to_right = size, to_right
        self.head = size - 1 - ahead if to_right else ahead  # its column
        self.board = np.zeros((size, size), int)
        self.free = np.ones((size, size), bool)  # where stones may still be put

    def at(self, cell: Cell) -> tuple[int, int] | None:
        """Returns row and column, or None outside of the board."""
        height, x = cell
        # To the left, cells are mirrored; on the hexagonal grid this shifts columns by the height.
        column = self.head + x if self.to_right else self.head - x + height - 1
        inside = 0 <= height < self.size and 0 <= column < self.size
        return (self.size - 1 - height, column) if inside else None

    def take(self, cell: Cell, stone: int) -> None:
        """Puts a stone, or 0 to keep the cell empty."""
        place = self.at(cell)
        if place is None or not (self.free[place] or stone == self.board[place] == 0):
            raise _GivenUpError
        self.board[place], self.free[place] = stone, False

    def chain(self, rng: np.random.Generator, cell: Cell, stone: int, steps: Steps) -> None:
        """Puts a chain of stones from a cell on to the edge that the steps run to."""
        while True:
            self.take(cell, stone)
            row, column = self.at(cell) or (0, 0)
            far = self.size - 1 if (steps is AHEAD) == self.to_right else 0
            if (row == 0) if steps is UP else (column == far):
                return
            (height, x), bridge = steps[int(rng.integers(len(steps)))]
            for rise, run in bridge:
                self.take((cell[0] + rise, cell[1] + run), 0)
            cell = cell[0] + height, cell[1] + x


def draw(
    rng: np.random.Generator, size: int, distance: int, to_right: bool, more: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Draws two boards on which player 0, to move, attacks the last row; nothing is proved yet.

    Args:
      rng: makes all choices.
      size: the size of the board.
      distance: columns from the ladder's head to the escape.
      to_right: whether the ladder runs to the right.
      more: how many stones player 1 has more than player 0.

    Returns:
      The board with the escape, the one with that stone elsewhere, and the ladder's next move.
    """
    ahead = int(rng.integers(distance, size))
    sketch = _Sketch(size, ahead, to_right)
    begun = int(rng.integers(min(3, size - 1 - ahead) + 1))  # earlier moves of the ladder
    for x in range(begun):
        sketch.take((1, -x), 1)
    for x in range(begun + 1):
        sketch.take((0, -x), 2)
    sketch.chain(rng, (1, -begun), 1, UP)
    if sketch.at((0, -begun - 1)):
        sketch.chain(rng, (0, -begun - 1), 2, BACK)
    sketch.chain(rng, (int(rng.integers(2, 4)), int(rng.integers(1, 4))), 2, AHEAD)
    escape = sketch.at((int(rng.choice([0, 1, 1, 1, 2])), distance))
    if escape is None or sketch.board[escape]:
        raise _GivenUpError
    path = [sketch.at((height, x)) for height in (0, 1) for x in range(1, ahead + 1)]
    for place in (*path, escape):
        if place is not None:
            sketch.free[place] = False

    board, free = sketch.board, rng.permutation(np.flatnonzero(sketch.free))
    lacking = int((board == 2).sum() - (board == 1).sum()) - 1 - more
    room = len(free) - 1 - abs(lacking)
    if room < 0:
        raise _GivenUpError
    fewest = room // 4 if size > 7 else 0  # on large boards, only full positions have short proofs
    both = int(rng.integers(fewest, room // 2 + 1))
    others = [1] * (both + max(lacking, 0)) + [2] * (both + max(-lacking, 0))
    board.flat[free[: len(others)]] = others
    without = board.copy()
    board[escape], without.flat[free[len(others)]] = 1, 1
    row, column = sketch.at((1, 1)) or (0, 0)
    return board, without, row * size + column


def proved(board: np.ndarray, player: int) -> tuple[int, list[int]]:
    """Returns the value for `player` to move and all winning moves, or raises `_GivenUpError`."""
    env = Hex(len(board))
    found = solve_hex(env, env.from_board(board, player), memo=_Bounded())
    return found.value, np.flatnonzero(found.winning_moves).tolist()


def make_pair(size: int, number: int, seed: int) -> list[Ladder]:
    """Makes two positions, with the escape and without it, of the same player to move.

    Args:
      size: the size of the board.
      number: the number of the pair; its bits choose who attacks, who is to move, and directions.
      seed: the seed of all other choices.
    """
    rng = np.random.default_rng((seed, size, number))
    answers, swapped, turned, to_right = (bool(number >> bit & 1) for bit in range(4))
    distance = int(rng.integers(2, min(size, 8)))  # longer ones take minutes to find
    while True:
        try:
            *boards, move = draw(rng, size, distance, to_right, int(swapped))
            if any(winner(board) is not None for board in boards):
                continue
            if move not in proved(boards[0], 0)[1] or proved(boards[1], 0)[1]:
                continue
            if proved(boards[0], 1)[0] < 0:
                continue
            pair = []
            for board in boards:
                board.flat[move] = int(answers)
                board = board[::-1, ::-1] if turned else board
                board = (-board % 3).T if swapped else board
                player = int(answers != swapped)
                pair.append(Ladder(board, player, distance, *proved(board, player)))
            return pair
        except _GivenUpError:
            continue


def write(command: str, seed: int) -> None:
    """Makes all positions and writes them into the file."""
    parts = []
    for size in SIZES:
        found = [x for number in range(PAIRS) for x in make_pair(size, number, seed)]
        lines = [json.dumps(_to_json(ladder)) for ladder in found]
        parts.append(f'  "{size}": [\n    ' + ",\n    ".join(lines) + "\n  ]")
        print(f"{size}x{size}: {len(found)} positions", flush=True)
    head = f'  "command": {json.dumps(command)},\n  "seed": {seed},\n'
    write_text(FILE, "{\n" + head + ",\n".join(parts) + "\n}\n")


def read(size: int) -> list[Ladder]:
    """Returns the positions of a size in pairs, the one with the escape first.

    Raises:
      SystemExit: if there are none.
    """
    if size not in SIZES:
        raise SystemExit(f"There are ladders on boards of {SIZES}, got {size}.")
    return [_from_json(size, *line) for line in json.loads(FILE.read_text())[str(size)]]


def _to_json(ladder: Ladder) -> list[Any]:
    return ["".join(_STONES[stone] for stone in ladder.board.flat), *ladder[1:]]


def _from_json(size: int, text: str, *rest: Any) -> Ladder:
    board = np.array([_STONES.index(letter) for letter in text]).reshape(size, size)
    return Ladder(board, *rest)
