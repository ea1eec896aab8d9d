"""GTP programs as players of Hex, such as MoHex or `python -m jaxpgs.gtp`."""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import queue
import re
import shlex
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import chex
import numpy as np

from jaxpgs.envs import Hex, HexState
from jaxpgs.envs.hex_games import SWAP_PIECES, SWAP_SIDES, cell_name, read_cell
from jaxpgs.evaluation.players.player import Player

_LOST = -1  # an action outside of the board, after which the environment ends the game as lost
_COLORS = ("black", "white")
_START_SECONDS = 600.0  # for a program to load and compile


class GTPError(Exception):
    """A program answered with an error, did not answer in time, or has ended."""


class GTPEngine:
    """A running program that answers GTP commands.

    Args:
      command: the command that starts it, as one string or as a sequence of words.

    Raises:
      ValueError: if there is no such program.

    Example:
      >>> from jaxpgs.evaluation.players.gtp_players import GTPEngine
      >>> start = functools.partial(GTPEngine, "mohex --use-logfile=0")
    """

    def __init__(self, command: str | Sequence[str]) -> None:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        except (OSError, IndexError) as error:
            raise ValueError(f"The engine {command!r} cannot be started: {error}") from error
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self._said: collections.deque[bytes] = collections.deque(maxlen=20)  # on standard error
        for args in (
            (self._process.stdout, self._answers.put, True),
            (self._process.stderr, self._said.append, False),
        ):
            threading.Thread(target=_pump, args=args, daemon=True).start()
        # Also for an engine that is never closed: the program must not outlive it.
        self._close = weakref.finalize(self, _end, self._process)

    def ask(self, line: str, seconds: float) -> str:
        """Sends a command and returns the answer.

        Args:
          line: the command.
          seconds: how long to wait.

        Returns:
          The answer, without `=`. Lines of live analysis before it are skipped.

        Raises:
          GTPError: if the answer is `?`; the program continues.
          TimeoutError: if there is no answer in time; the program is closed.
          ConnectionError: if the program has ended.
        """
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except (OSError, ValueError):  # ended, or closed
            raise ConnectionError(self._last_words(line)) from None
        end = time.monotonic() + seconds
        lines: list[str] = []
        while True:
            try:
                answer = self._answers.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                self.close()
                raise TimeoutError(f"no answer to {line!r} in {seconds:g} seconds") from None
            if answer is None:
                raise ConnectionError(self._last_words(line))
            text = answer.decode(errors="replace").rstrip()
            # An empty line ends an answer; empty lines before it are skipped.
            if text or not lines:
                lines += [text] * bool(text)
                continue
            # Programs print greetings, logs and boards on the same output. A block of lines without
            # an answer is skipped, and the next one awaited.
            found = itertools.dropwhile(lambda text: text[0] not in "=?", lines)
            whole, lines = "\n".join(found), []
            if whole.startswith("="):
                return re.sub(r"^=\d*\s*", "", whole).strip()
            if whole:
                raise GTPError(f"{line!r} was answered {whole!r}")

    def close(self) -> None:
        """Ends the program."""
        self._close()

    def _last_words(self, line: str) -> str:
        time.sleep(0.1)  # to receive its last output
        said = b"".join(self._said).decode(errors="replace").strip()
        return f"the program has ended at {line!r}" + (f", saying: {said[-1000:]}" if said else "")


def _pump(pipe: Any, take: Callable[[bytes | None], Any], tell_end: bool) -> None:
    """Passes on what a program writes; a pipe that is not read would block it."""
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
        for line in pipe:
            take(line)
    if tell_end:
        take(None)


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            pipe.close()  # type: ignore[union-attr]


def gtp_player(
    env: Hex,
    command: str | Sequence[str],
    *,
    name: str | None = None,
    processes: int = 1,
    seconds: float = 60.0,
    setup: Sequence[str] = (),
) -> Player:
    """Makes a player from a program that speaks GTP, for any match or tournament.

    The program receives the position before each move, as from HexGui, so it does not need to
    remember anything: one process serves many games, and a process that has ended is restarted. A
    game is lost by a resignation, an illegal move, an error, a late answer, or a program that ends
    twice at one move or cannot be restarted. The player's stats count these events.

    Args:
      env: Hex, with or without the swap rule; the program is told with `param_game allow_swap`.
      command: the command that starts the program, such as `"mohex"` or
        `"python -m jaxpgs.gtp --network hex-9x9-large"`.
      name: the player's name; by default the name that the program reports.
      processes: how many processes run at once, each for its share of the games.
      seconds: how long a move may take. This ends a program that hangs; to set the thinking time,
        use the program's own options or `setup`.
      setup: further commands that are sent to each process at its start, such as
        `"param_mohex max_time 5"`.

    Returns:
      A host player. It counts `resignations`, `illegal_moves`, `timeouts` and `crashes`.

    Raises:
      ValueError: if the environment is not Hex, the program cannot be started, or it refuses the
        board or a command of `setup`.

    Example:
      >>> mohex = functools.partial(jaxpgs.evaluation.gtp_player, env, "mohex", seconds=30.0)
    """
    if not isinstance(env, Hex):
        raise ValueError(f"gtp_player needs Hex, got {env!r}.")
    if processes < 1 or not seconds > 0:
        raise ValueError(
            f"gtp_player needs processes of at least 1 and seconds above 0, got {processes} and "
            f"{seconds}."
        )

    start = functools.partial(_start, env, command, setup)
    # The first one starts at once, so that a program that cannot play is rejected here.
    first = start()
    if name is None:
        with contextlib.suppress(GTPError):
            name = first.ask("name", _START_SECONDS)
    # The free programs; None is a program that is started when it is needed.
    waiting: queue.SimpleQueue[GTPEngine | None] = queue.SimpleQueue()
    for engine in [first, *[None] * (processes - 1)]:
        waiting.put(engine)
    ask = functools.partial(_ask_move, start, waiting, seconds)
    act = functools.partial(_act, env, ask, processes)
    return Player(name or "GTP", lambda batch_size: (), act, host=True)


def _start(env: Hex, command: str | Sequence[str], setup: Sequence[str]) -> GTPEngine:
    """Starts a program and sets the board; raises `ValueError` if it cannot play on it."""
    engine = GTPEngine(command)
    try:
        engine.ask(f"boardsize {env.size} {env.size}", _START_SECONDS)
        with contextlib.suppress(GTPError):  # not every program has this command
            engine.ask(f"param_game allow_swap {int(env.swap)}", _START_SECONDS)
        for line in setup:
            engine.ask(line, _START_SECONDS)
    except (GTPError, OSError) as error:
        engine.close()
        raise ValueError(f"The engine {command!r} cannot play: {error}.") from error
    return engine


def _ask_move(
    start: Callable[[], GTPEngine],
    waiting: "queue.SimpleQueue[GTPEngine | None]",
    seconds: float,
    lines: Sequence[str],
) -> tuple[str, str]:
    """Asks the next free program for a move.

    Args:
      start: starts a program.
      waiting: the free programs.
      seconds: how long each answer may take.
      lines: the commands that set up the position, followed by the one that asks for a move.

    Returns:
      The answer, and the name of the count of what went wrong, or an empty string.
    """
    engine = waiting.get()
    try:
        # A program that has ended gets a second chance, since it receives the whole position again.
        for _ in range(2):
            try:
                engine = engine or start()
                answers = [engine.ask(line, seconds) for line in lines]
                return answers[-1].split("\n")[0].strip().lower(), ""
            except GTPError:
                return "", "illegal_moves"
            except TimeoutError:
                engine = None
                return "", "timeouts"
            except (ConnectionError, ValueError):  # ended, or cannot be restarted
                engine = None
        return "", "crashes"
    finally:
        # Back in the queue in any case, or the other games would wait forever.
        waiting.put(engine)


def _act(
    env: Hex,
    ask: Callable[[Sequence[str]], tuple[str, str]],
    processes: int,
    rng_key: chex.PRNGKey,
    state: HexState,
    memory: tuple[()],
) -> tuple[Any, Any, dict]:
    """Moves in G games, with one game per process at a time; see `Player.act`."""
    del rng_key
    playing = np.flatnonzero(~np.asarray(state.terminated))
    actions = np.full(len(state.terminated), _LOST, np.int32)
    stats = dict.fromkeys(("resignations", "illegal_moves", "timeouts", "crashes"), 0.0)
    boards, movers = np.sign(np.asarray(state.labels)), np.asarray(state.current_player)
    legal = np.asarray(state.legal_action_mask)
    tasks = [list(_lines(env.size, boards[g], int(movers[g]))) for g in playing]
    # Threads suffice: all they do is wait for the programs.
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        for g, (answer, wrong) in zip(playing, pool.map(ask, tasks), strict=True):
            action = _LOST if wrong else _action(env, answer)
            if wrong or action == _LOST or not legal[g, action]:
                stats[wrong or ("resignations" if answer == "resign" else "illegal_moves")] += 1
                action = _LOST
            actions[g] = action
    return actions, memory, stats


def _lines(size: int, board: np.ndarray, player: int) -> Iterator[str]:
    """Yields the commands that set up the stones `[n*n]` (1 is Black) and ask for a move."""
    yield "clear_board"
    cells = [np.flatnonzero(board == sign) for sign in (1, -1)]
    # The colours alternate as far as possible, as in a game.
    for i in range(max(map(len, cells))):
        for color, own in zip(_COLORS, cells, strict=True):
            if i < len(own):
                yield f"play {color} {cell_name(size, int(own[i]))}"
    yield f"genmove {_COLORS[player]}"


def _action(env: Hex, answer: str) -> int:
    """Returns the action of an answer, or `_LOST`."""
    if answer in (SWAP_PIECES, SWAP_SIDES, "swap"):  # mirrored or not, it is the same game
        return env.num_cells if env.swap else _LOST
    with contextlib.suppress(ValueError):
        return read_cell(env.size, answer)
    return _LOST
