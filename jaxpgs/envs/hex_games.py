"""Games of Hex as moves of two colours, the form that other programs use.

Cells have their usual names in Hex: a letter for the column and a number for the row, so that `a1`
is the top left. Black is player 0, moves first and connects the top with the bottom. `hex_io` reads
and writes files and links.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from jaxpgs.envs.hex import NEIGHBOURS, Hex, HexState

SWAP_PIECES, SWAP_SIDES = "swap-pieces", "swap-sides"
WORDS = (SWAP_PIECES, SWAP_SIDES, "resign", "forfeit", "pass")  # moves that place no stone
COLORS = "BW"


class Move(NamedTuple):
    """One move.

    Attributes:
      player: 0 for Black, 1 for White.
      action: a cell, row-major, or one of `WORDS`.
    """

    player: int
    action: int | str


@dataclasses.dataclass(frozen=True)
class HexGame:
    """A game of Hex, or a position.

    Attributes:
      size: board size n.
      moves: the moves after the setup; the players need not alternate.
      setup: the cells that hold black and white stones before the first move.
      to_move: the player who moves first, 0 or 1. None selects the player with fewer stones, or
        Black if both have equally many.
      info: further properties of the file's first node, such as PB, PW, RE and C. Those with
        several values, such as marks of cells, are left out.

    Example:
      >>> game = jaxpgs.envs.hex_io.read_sgf("(;GM[11]SZ[5];B[a3];W[swap-pieces];B[c3])")
      >>> jaxpgs.envs.hex_io.write_link(game)
      'https://hexworld.org/board/#5c1,a3:sc3'
    """

    size: int
    moves: tuple[Move, ...] = ()
    setup: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    to_move: int | None = None
    info: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def play(self, player: int, action: int | str) -> "HexGame":
        """Returns the game with one more move."""
        return dataclasses.replace(self, moves=(*self.moves, Move(player, action)))


def cell_name(size: int, cell: int) -> str:
    """Returns the name of a cell, such as `a1` for 0."""
    return f"{chr(ord('a') + cell % size)}{cell // size + 1}"


def move_name(size: int, action: int | str) -> str:
    """Returns the name of a cell, or the move itself if it is a word."""
    return action if isinstance(action, str) else cell_name(size, action)


def read_cell(size: int, name: str) -> int:
    """Returns the number of a cell; raises `ValueError` if the board has no cell of this name."""
    found = re.fullmatch(r"([a-z])([1-9]\d?)", name.lower(), re.ASCII)
    if not found:
        raise ValueError(f"{name!r} is not a cell; cells have names such as a1.")
    row, col = int(found[2]) - 1, ord(found[1]) - ord("a")
    if row >= size or col >= size:
        last = cell_name(size, size**2 - 1)
        raise ValueError(f"{name!r} is not on a board of {size}x{size}, whose last cell is {last}.")
    return row * size + col


def stones(game: HexGame) -> np.ndarray:
    """Returns the position after all moves.

    Args:
      game: the game.

    Returns:
      `[n, n]` int8: 0 empty, 1 a black stone, 2 a white stone, as `Hex.from_board` takes it.

    Raises:
      ValueError: if a move is on an occupied cell.
    """
    board = np.zeros(game.size**2, np.int8)
    for player, cells in enumerate(game.setup):
        board[list(cells)] = player + 1
    for move in game.moves:
        board = after(game.size, board, move)
    return board.reshape(game.size, game.size)


def after(size: int, board: np.ndarray, move: Move) -> np.ndarray:
    """Returns the stones `[n*n]` after a move; raises `ValueError` if its cell is occupied."""
    if move.action == SWAP_PIECES:  # every stone changes sides and is mirrored
        return (-board % 3).reshape(size, size).T.flatten()
    if isinstance(move.action, str):
        return board
    if board[move.action]:
        raise ValueError(f"The cell {cell_name(size, move.action)} is taken.")
    board = board.copy()
    board[move.action] = move.player + 1
    return board


def player_to_move(game: HexGame) -> int:
    """Returns whose turn it is, 0 or 1; after a swap of sides the same colour moves again."""
    turns = [m for m in game.moves if m.action not in (SWAP_SIDES, "resign", "forfeit")]
    if turns:
        return 1 - turns[-1].player
    if game.to_move is not None:
        return game.to_move
    return int(len(game.setup[0]) > len(game.setup[1]))


def winner(board: np.ndarray) -> int | None:
    """Returns the player whose stones connect their edges on `[n, n]`, 0 or 1; None if neither."""
    size = len(board)
    # After a transposition player 1 also connects row 0 with the last row. Search from row 0.
    for player, cells in enumerate((board == 1, board.T == 2)):
        reached = {(0, int(col)) for col in np.flatnonzero(cells[0])}
        ahead = list(reached)
        while ahead:
            row, col = ahead.pop()
            if row == size - 1:
                return player
            for r, c in NEIGHBOURS:
                near = row + r, col + c
                inside = 0 <= near[0] < size and 0 <= near[1] < size
                if inside and cells[near] and near not in reached:
                    reached.add(near)
                    ahead.append(near)
    return None


def position(game: HexGame) -> tuple[Hex, HexState]:
    """Returns the environment, without the swap rule, and the position after all moves."""
    env = Hex(game.size)
    return env, env.from_board(stones(game), player_to_move(game))


def from_actions(size: int, actions: Iterable[int], **info: str) -> HexGame:
    """Makes a game from the actions of `Hex(size)` or `Hex(size, swap=True)`.

    Args:
      size: board size n.
      actions: all actions of a game: cells, and `n*n` for the swap. The players alternate.
      **info: properties of the file, such as `PB="MoHex"`.

    Returns:
      The game.
    """
    words = (SWAP_PIECES if a == size**2 else int(a) for a in actions)
    moves = tuple(Move(ply % 2, word) for ply, word in enumerate(words))
    return HexGame(size, moves, info=info)


def to_actions(game: HexGame) -> list[int]:
    """Returns a game as actions of `Hex(size, swap=True)`; the inverse of `from_actions`.

    If the players swapped sides and not pieces, the later moves are mirrored. This gives the same
    game as if they had swapped pieces.

    Args:
      game: a game from the empty board, in which the players alternate.

    Returns:
      The actions, without a resignation at the end.

    Raises:
      ValueError: if the game has a setup, a pass, or players who do not alternate.
    """
    if game.setup != ((), ()):
        raise ValueError(
            "A game whose first position was set up has no list of actions; use position()."
        )
    # `mirrored` is 1 after a swap of sides: from then on Black's stones belong to the second
    # player, on a mirrored board.
    n, mirrored = game.size, 0
    actions: list[int] = []
    for number, (player, action) in enumerate(game.moves, 1):
        if action in ("resign", "forfeit"):
            break
        # Actions of `Hex` have no colours, so they only represent games with alternating players.
        if action == "pass" or player ^ mirrored != len(actions) % 2:
            raise ValueError(
                f"Move {number} is {move_name(n, action)!r} by {COLORS[player]}; a list of "
                "actions needs players who take turns, Black first, and do not pass."
            )
        if isinstance(action, str):
            mirrored ^= action == SWAP_SIDES
            actions.append(n * n)
        else:
            actions.append(action % n * n + action // n if mirrored else action)
    return actions
