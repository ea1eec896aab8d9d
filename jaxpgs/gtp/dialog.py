"""The records of a dialog over GTP, and functions that parse the words of its lines."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxpgs.envs.hex_io import HexGame


class Answer(NamedTuple):
    """An engine's evaluation of a position.

    Attributes:
      action: its move, an empty cell or `n*n` for the swap; -1 resigns.
      value: the expected return of the player to move, from -1 to 1.
      policy: `[n*n]` how good each cell is, for display.
      visits: `[n*n]` simulations of each cell.
      qvalues: `[n*n]` mean return of each cell, meaningless where there are no visits.
      line: the expected continuation of the game, as cells; empty if unknown.

    Example:
      >>> from jaxpgs import gtp
      >>> answer = gtp.Answer(4, 0.0, np.ones(9) / 9, np.ones(9), np.zeros(9))
    """

    action: int
    value: float
    policy: np.ndarray
    visits: np.ndarray
    qvalues: np.ndarray
    line: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Options:
    """How an engine thinks.

    Attributes:
      search: one of `jaxpgs.thinker.SEARCHES`.
      simulations: the number per move, or the maximum if time is limited; 0 for as many as fit.
      seconds: the time limit per move; 0 for no limit.
      allow_swap: whether the engine may answer Black's first stone with `swap-pieces`.
      resign: the value below which it resigns; -1 is never.
      live: whether it shows its evaluation while it thinks, with lines of gogui-gfx.

    Example:
      >>> from jaxpgs import gtp
      >>> gtp.Options(search="gumbel_mcts", simulations=0, seconds=5.0).resign
      -1.0
    """

    search: str = "pgs"
    simulations: int = 800
    seconds: float = 0.0
    allow_swap: bool = False
    resign: float = -1.0
    live: bool = False


class Task(NamedTuple):
    """A position for an engine to think about.

    Attributes:
      board: `[n, n]` stones in the format of `Hex.from_board`.
      player: who is to move, 0 or 1.
      may_swap: whether the swap is legal.
      options: how to think.
      seconds: the time limit for this move; None if there is none.
      report: called with an `Answer` at intervals; None if there is no live analysis.

    Example:
      >>> from jaxpgs import gtp
      >>> task = gtp.Task(np.zeros((3, 3), int), 0, False, gtp.Options(), None, None)
    """

    board: np.ndarray
    player: int
    may_swap: bool
    options: Options
    seconds: float | None
    report: Callable[[Answer], Any] | None


@dataclasses.dataclass(frozen=True)
class Engine:
    """Who plays.

    Attributes:
      name: its name.
      prepare: `prepare(size, options)` makes it ready, and raises `ValueError` if it cannot.
      think: `think(task)` returns an `Answer`.

    Example:
      >>> from jaxpgs import gtp
      >>> middle = gtp.Answer(4, 0.0, np.ones(9) / 9, np.ones(9), np.zeros(9))
      >>> engine = gtp.Engine("middle", lambda size, options: None, lambda task: middle)
    """

    name: str
    prepare: Callable[[int, Options], Any]
    think: Callable[[Task], Answer]


class Clock(NamedTuple):
    """The time that a player has left: main time at first, then periods of extra time (byo-yomi).

    Attributes:
      seconds: the seconds left, of the main time or of a period.
      moves: the number of moves for these seconds; 0 in the main time, which is for all moves.
      extra_seconds: the length of each period, 0 if there is none.
      extra_moves: the number of moves of each period.

    Example:
      >>> clock = jaxpgs.gtp.Clock(60.0, extra_seconds=30.0, extra_moves=5)
      >>> clock.after(10.0).seconds, clock.after(65.0)[:2]  # five seconds of a period are gone
      (50.0, (25.0, 4))
    """

    seconds: float
    moves: int = 0
    extra_seconds: float = 0.0
    extra_moves: int = 0

    def after(self, seconds: float) -> "Clock":
        """Returns the clock after a move that took `seconds`."""
        left, moves = self.seconds - seconds, self.moves
        # The main time has run out during the move, and the first period has begun.
        if not moves and left <= 0 and self.extra_moves:
            left, moves = left + self.extra_seconds, self.extra_moves
        # After the last move of a period the player gets a full new period.
        if moves == 1 and self.extra_moves:
            return self._replace(seconds=self.extra_seconds, moves=self.extra_moves)
        return self._replace(seconds=max(left, 0.0), moves=max(moves - 1, 0))


@dataclasses.dataclass(frozen=True)
class Dialog:
    """The state of a dialog after the lines so far.

    Attributes:
      game: the game on the board.
      options: how the engine thinks.
      clocks: the time that each player has left; None for no limit.

    Example:
      >>> from jaxpgs import gtp
      >>> dialog = gtp.Dialog(jaxpgs.envs.hex_io.HexGame(3))
    """

    game: HexGame
    options: Options = Options()
    clocks: tuple[Clock | None, Clock | None] = (None, None)


class Reply(NamedTuple):
    """The answer to one line.

    Attributes:
      text: what to write, including the empty line at the end; empty if the line was empty.
      dialog: the next dialog.
      quits: whether the line was `quit`.

    Example:
      >>> from jaxpgs import gtp
      >>> engine = gtp.player_engine(env, jaxpgs.evaluation.uniform_random(env))
      >>> gtp.handle(engine, gtp.Dialog(jaxpgs.envs.hex_io.HexGame(3)), "quit").quits
      True
    """

    text: str
    dialog: Dialog
    quits: bool = False


class Call(NamedTuple):
    """One command.

    Attributes:
      engine: who plays.
      dialog: the state of the dialog before the command.
      args: the words after the command's name.
      emit: called with lines of live analysis.
    """

    engine: Engine
    dialog: Dialog
    args: list[str]
    emit: Callable[[str], Any]


def read_player(word: str) -> int:
    """Reads a colour as the number of a player."""
    players = {"b": 0, "black": 0, "w": 1, "white": 1}
    if word.lower() not in players:
        raise ValueError(f"a colour must be black or white, got {word[:20]}")
    return players[word.lower()]


def read_number(word: str, low: float, high: float) -> float:
    """Reads a number in a range."""
    try:
        number = float(word)
    except ValueError:
        # NaN is in no range, so it is rejected below, like the word "nan".
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"a number from {low:g} to {high:g} is needed, got {word[:20]}")
    return number


def read_integer(word: str, low: int, high: int) -> int:
    """Reads a whole number in a range."""
    if not re.fullmatch(r"\d{1,9}", word, re.ASCII) or not low <= int(word) <= high:
        raise ValueError(f"a whole number from {low} to {high} is needed, got {word[:20]}")
    return int(word)


def read_boolean(word: str) -> bool:
    """Reads 0 or 1."""
    return read_word(word, ("0", "1")) == "1"


def read_word(word: str, words: Sequence[str]) -> str:
    """Reads one of the given words."""
    if word not in words:
        raise ValueError(f"one of {', '.join(words)} is needed, got {word[:20]}")
    return word


def read_setting(args: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """Reads the name and the value of a parameter."""
    if len(args) != 2:
        raise ValueError("a parameter needs its name and a value")
    return read_word(args[0], names), args[1]


def with_game(call: Call, game: HexGame) -> Dialog:
    """Returns the dialog with another game."""
    return dataclasses.replace(call.dialog, game=game)


def with_clock(dialog: Dialog, player: int, clock: Clock) -> Dialog:
    """Returns the dialog with another clock of one player."""
    black, white = dialog.clocks
    clocks = (clock, white) if player == 0 else (black, clock)
    return dataclasses.replace(dialog, clocks=clocks)
