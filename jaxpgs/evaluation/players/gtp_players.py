"""Programs that speak GTP as players of Hex, such as MoHex or `python -m jaxpgs.gtp`."""

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

_LOST = -1  # an action outside of the board, with which the environment ends a game as lost
_COLORS = ("black", "white")
_START_SECONDS = 600.0  # for a program to load and compile


class GTPError(Exception):
    """A program said that it cannot, was silent for too long, or has ended."""


class GTPEngine:
    """A program that answers lines of GTP, for as long as it is open.

    Args:
      command: how it is started, as a line or as words.

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
        # Also for an engine that nobody closes: a program must not outlive it.
        self._close = weakref.finalize(self, _end, self._process)

    def ask(self, line: str, seconds: float) -> str:
        """Sends a command and returns the answer.

        Args:
          line: the command.
          seconds: how long to wait.

        Returns:
          The answer, without `=`. Lines of live analysis before it are left out.

        Raises:
          GTPError: if the answer is `?`; the program goes on.
          TimeoutError: if there is none in time; the program is closed.
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
            # An empty line ends an answer; those in front of it do not count.
            if text or not lines:
                lines += [text] * bool(text)
                continue
            # Programs greet, log and draw on the same output.
            # A block of lines without an answer among them is left out, and the next one awaited.
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
        time.sleep(0.1)  # for what it still says
        said = b"".join(self._said).decode(errors="replace").strip()
        return f"the program has ended at {line!r}" + (f", saying: {said[-1000:]}" if said else "")


def _pump(pipe: Any, take: Callable[[bytes | None], Any], tell_end: bool) -> None:
    """Hands on what a program writes; a pipe that nobody reads would stop it."""
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
    """A program that speaks GTP as a player, in any match or tournament.

    The program is given the position before each move, as HexGui does, so that it need remember
    nothing: one process serves many games, and one that has ended is started anew. A game is lost
    by resigning, an illegal move, an answer that is an error or comes too late, and a program that
    ends twice at one move or cannot be started anew. What happened is in the player's stats, by the
    number of times.

    Args:
      env: Hex, with or without the swap rule. A program is told which by `param_game allow_swap`.
      command: how the program is started, such as `"mohex"` or
        `"python -m jaxpgs.gtp --network hex-9x9-large"`.
      name: the player's name; by default what the program calls itself.
      processes: how many run at once, each for its share of the games.
      seconds: how long a move may take. This ends a program that hangs; what the program should
        take is its own option, or one of `setup`.
      setup: further commands that each process is given at its start, such as
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
    # The first one starts at once, so that what cannot play is refused here and not in a match.
    first = start()
    if name is None:
        with contextlib.suppress(GTPError):
            name = first.ask("name", _START_SECONDS)
    # Who is free; None is a program that starts when it is needed.
    waiting: queue.SimpleQueue[GTPEngine | None] = queue.SimpleQueue()
    for engine in [first, *[None] * (processes - 1)]:
        waiting.put(engine)
    ask = functools.partial(_ask_move, start, waiting, seconds)
    act = functools.partial(_act, env, ask, processes)
    return Player(name or "GTP", lambda batch_size: (), act, host=True)


def _start(env: Hex, command: str | Sequence[str], setup: Sequence[str]) -> GTPEngine:
    """Starts a program and tells it the board; raises `ValueError` if it cannot play there."""
    engine = GTPEngine(command)
    try:
        engine.ask(f"boardsize {env.size} {env.size}", _START_SECONDS)
        with contextlib.suppress(GTPError):  # not every program has it
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
    """Asks the next program that is free for a move.

    Args:
      start: starts a program.
      waiting: the programs that are free.
      seconds: how long each answer may take.
      lines: the commands that set up the position, and at last the one for a move.

    Returns:
      The answer, and what went wrong: the name of a count, or nothing.
    """
    engine = waiting.get()
    try:
        # A program that has ended gets a second chance, as it is told the whole position again.
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
            except (ConnectionError, ValueError):  # ended, or cannot be started anew
                engine = None
        return "", "crashes"
    finally:
        # Back in the queue whatever happened, or the other games would wait for ever.
        waiting.put(engine)


def _act(
    env: Hex,
    ask: Callable[[Sequence[str]], tuple[str, str]],
    processes: int,
    rng_key: chex.PRNGKey,
    state: HexState,
    memory: tuple[()],
) -> tuple[Any, Any, dict]:
    """Moves in G games, in as many at once as there are processes; see `Player.act`."""
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
    """Yields the commands that set up the stones `[n*n]`, of which 1 is Black's, and ask a move."""
    yield "clear_board"
    cells = [np.flatnonzero(board == sign) for sign in (1, -1)]
    # In turns as far as the stones allow, as a game would have brought them.
    for i in range(max(map(len, cells))):
        for color, own in zip(_COLORS, cells, strict=True):
            if i < len(own):
                yield f"play {color} {cell_name(size, int(own[i]))}"
    yield f"genmove {_COLORS[player]}"


def _action(env: Hex, answer: str) -> int:
    """Returns the action that an answer means, or that of who has lost."""
    if answer in (SWAP_PIECES, SWAP_SIDES, "swap"):  # mirrored or not, it is the same game
        return env.num_cells if env.swap else _LOST
    with contextlib.suppress(ValueError):
        return read_cell(env.size, answer)
    return _LOST
