"""An interactive board: a visit, its listeners, and the thread that runs the search."""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import jaxpgs
from jaxpgs.base import PolicyOutput
from jaxpgs.gtp.dialog import Options
from jaxpgs.play import games, protocol
from jaxpgs.play import visit as playing
from jaxpgs.play.drawing import draw
from jaxpgs.play.visit import Visit
from jaxpgs.search import Progress, Search
from jaxpgs.thinker import (
    SEARCHES,
    Brain,
    Thinker,
    adapted_policy,
    fair_opening,
    look,
    make_brain,
    make_thinker,
    read,
    think,
    warm_up,
)

_SLICE = 0.02  # seconds between two points of the curves; about the time of an update
_PAUSE = 0.08  # seconds between two messages of a search to a page
_MOST_POINTS = 80  # of a search, for a page that opens later
_OWN = "own"  # the name of a search that was handed over


class _StopError(Exception):
    """Ends a search whose answer is no longer needed."""


class Board:
    """A game on a board, and a search that plays and thinks; `jaxpgs.show` makes one.

    In a notebook it is shown as a widget, or as a static picture if widgets are not supported.

    Attributes:
      env: the game.
      brain: the evaluator of positions, a `jaxpgs.thinker.Brain`.
      visit: the game so far, a `jaxpgs.play.visit.Visit`.
      points: the last search's results at each update, in the format that pages receive.
    """

    def __init__(self, env: Any, visit: Visit, brain: Brain, search: Search | None) -> None:
        self.env = env
        self.visit = visit
        self.points: list[dict[str, Any]] = []
        self._about: Visit | None = None  # the position of the points
        self.brain, self._search = brain, search
        # Reentrant, as listeners are called while it is held and may call the board.
        self._lock = threading.RLock()
        self._turn = threading.Lock()  # one search at a time
        self._listeners: list[Callable[[dict[str, Any]], Any]] = []
        self._thread: threading.Thread | None = None
        self._finished: Any = None  # the number and options of the last complete analysis
        self._status, self._closed = "", False
        self._widget: Any = None
        self._thinker = functools.lru_cache(maxsize=16)(self._make)

    # --- requests of pages ------------------------------------------------------------------------

    def listen(self, tell: Callable[[dict[str, Any]], Any]) -> Callable[[], None]:
        """Calls `tell` with every message from now on; returns a function that stops this."""
        with self._lock:
            self._listeners.append(tell)

        def stop() -> None:
            with self._lock:
                if tell in self._listeners:
                    self._listeners.remove(tell)

        return stop

    def handle(self, said: Any, reply: Callable[[dict[str, Any]], Any]) -> None:
        """Handles a page's request, and sends the result to all pages.

        Args:
          said: the message.
          reply: receives the answers for this page alone, such as errors.
        """
        try:
            with self._lock:
                before = self.visit
                self.visit = protocol.handle(before, said)
                if said["type"] == "hello":
                    reply(self._message())
                    if self._about is not None:
                        reply(self._analysis(self._about, self._thinned(), first=True))
                else:
                    if self.visit.number != before.number:
                        self.points, self._about = [], None
                    self._tell(self._message())
        except ValueError as error:
            reply({"type": "error", "text": str(error)})
        self._wake()

    def _message(self) -> dict[str, Any]:
        return {**protocol.message(self.visit), "status": self._status}

    def _analysis(
        self, about: Visit, points: list[dict[str, Any]], first: bool = False
    ) -> dict[str, Any]:
        told = {"type": "analysis", "number": about.number, "points": points, "first": first}
        legal = [choice._asdict() for choice in playing.legal(about)] if first else []
        return told | ({"legal": legal, "mover": about.mover} if first else {})

    def _thinned(self) -> list[dict[str, Any]]:
        step = -(-len(self.points) // _MOST_POINTS) or 1
        return [*self.points[:-1:step], *self.points[-1:]]

    def _tell(self, told: dict[str, Any]) -> None:
        with self._lock:
            for listener in list(self._listeners):
                listener(told)

    # --- the search -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compiles everything that the next move needs."""
        self._thinker(*_name(self.visit.options))
        look(self.brain, self.visit.state)
        protocol.message(self.visit)
        if playing.legal(self.visit):
            playing.play(self.visit, playing.legal(self.visit)[0].action)

    def _make(self, search: str, simulations: int, seconds: float) -> Thinker:
        state = self.visit.past[0].state
        if search != _OWN or self._search is None:
            made = make_thinker(self.brain, search, simulations, seconds, state)
        else:
            made = Thinker(self.brain, self._search)
        # Also compiles what each point of a search needs; all positions have the same shapes.
        adapted_policy(self.brain, warm_up(made, state), state)
        return made

    def think(self) -> PolicyOutput:
        """Searches from the position on the board and waits for the answer.

        Returns:
          The search's output with a batch axis B = 1, as `search_summary` and `tree_svg` expect.

        Raises:
          ValueError: if the game is over.
          RuntimeError: if the position changes during the search, for example by a page.
        """
        try:
            output = self._run(self.visit)
        except _StopError as error:
            raise RuntimeError("The position changed while the search thought.") from error
        self._finished = _key(self.visit)
        return output

    def _run(self, visit: Visit) -> PolicyOutput:
        if visit.over:
            raise ValueError("the game is over")
        with self._turn:
            options = visit.options
            self._say("compiling")
            thinker = self._thinker(*_name(options))
            self._say("thinking")
            try:
                return self._search_and_tell(thinker, visit)
            finally:
                self._say("")

    def _say(self, status: str) -> None:
        self._status = status
        self._tell({"type": "status", "status": status})

    def _search_and_tell(self, thinker: Thinker, visit: Visit) -> PolicyOutput:
        state, start, sent = visit.state, time.perf_counter(), 0.0
        points = [protocol.first_point(visit, look(self.brain, state))]
        told = 0  # points that the pages have

        def tell(progress: Progress | None, output: PolicyOutput) -> None:
            nonlocal sent, told
            if not self._wants(visit):
                # A search can be stopped only between two slices.
                raise _StopError
            now = time.perf_counter()
            found = protocol.point(
                visit, read(output), adapted_policy(self.brain, output, state),
                seconds=round(now - start, 3),
            )  # fmt: skip
            if points[-1]["simulations"] != found["simulations"]:  # the last one is reported twice
                points.append(found)
            if len(points) > told and (progress is None or now - sent > _PAUSE):
                with self._lock:
                    # Checked again under the lock, as the position may have changed since.
                    if self._wants(visit):
                        self.points, self._about = points, visit
                        self._tell(self._analysis(visit, points[told:], first=not told))
                sent, told = now, len(points)

        output = think(
            thinker, state,
            jax.random.fold_in(jax.random.key(visit.seed), len(visit.past)),
            seconds=visit.options.seconds or None, slice_seconds=_SLICE,
            report=lambda progress: tell(progress, progress.output),
        )  # fmt: skip
        tell(None, output)
        return output

    # --- the thread -------------------------------------------------------------------------------

    def _wants(self, visit: Visit) -> bool:
        """Returns whether the answer for this position is still needed."""
        now = self.visit
        return not self._closed and now.number == visit.number and now.options == visit.options

    def _job(self) -> bool | None:
        """Returns the search's next job: True to move, False to analyse, None for nothing."""
        now = self.visit
        if now.over or self._closed:
            return None
        if not now.humans[now.mover]:
            return True
        return False if now.analysing and self._finished != _key(now) else None

    def _wake(self) -> None:
        with self._lock:
            # `_work` clears the thread under the same lock, so no job is missed in between.
            if self._job() is not None and self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                visit, job = self.visit, self._job()
                if job is None:
                    self._thread = None
                    return
            try:
                self._answer(visit, self._run(visit), job)
            except _StopError:
                continue
            except Exception as error:  # the page shows the error, and the game can continue
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                with self._lock:
                    # Otherwise the search would try the same move again, and fail again.
                    self.visit = dataclasses.replace(
                        self.visit, analysing=False, humans=(True,) * len(visit.humans)
                    )
                    self._tell(self._message())
                    self._tell({"type": "error", "text": f"the search failed: {kind}{error}"[:500]})

    def _answer(self, visit: Visit, output: PolicyOutput, moves: bool) -> None:
        with self._lock:
            if not self._wants(visit):
                return
            self._finished = _key(visit)
            if moves and not self.visit.humans[visit.mover]:
                found, swap = read(output), playing.swap_action(visit)
                # Swapping takes over the opponent's side of the same position, mirrored.
                swaps = swap is not None and found.value < 0
                action = swap if swaps and swap is not None else found.action
                if playing.may_be_swapped(visit):
                    action = fair_opening(self.brain, visit.state)
                self.visit = playing.play(self.visit, action)
                self._tell({**self._message(), "keeps": True})

    def close(self) -> None:
        """Stops the board's thread and any running search."""
        self._closed = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    # --- in a program and in a notebook -----------------------------------------------------------

    @property
    def state(self) -> Any:
        """The environment's state of the position on the board."""
        return self.visit.state

    def play(self, move: int | str) -> None:
        """Plays a move, given by its number or name, for the player to move."""
        self._do({"type": "play", "action": playing.action_of(self.visit, move)})

    def name(self, action: int) -> str:
        """Returns the name of a move, for use by `search_summary` and `tree_svg`."""
        named = {choice.action: choice.name for choice in playing.legal(self.visit)}
        return named.get(action) or games.action_name(self.env, action)

    def undo(self) -> None:
        """Takes the last move back."""
        self._do({"type": "undo"})

    def load(self, text: str) -> None:
        """Loads a game of Hex: the text of an SGF file, or a link to HexWorld."""
        self._do({"type": "load", "text": text})

    def _do(self, said: dict[str, Any]) -> None:
        failed: list[str] = []
        self.handle(said, lambda told: failed.append(told["text"]))
        if failed:
            raise ValueError(failed[0])

    def svg(self, heat: str = "policy") -> str:
        """Draws the position with the last search's heat map.

        Args:
          heat: "policy", "adapted", "visits", "q", "worth" or "none".
        """
        return draw(self.visit, self.points if self._is_thought_of() else [], heat)

    def _is_thought_of(self) -> bool:
        return self._about is not None and self._about.number == self.visit.number

    @property
    def widget(self) -> Any:
        """The widget, for `marimo.ui.anywidget`; raises `ImportError` without anywidget."""
        if self._widget is None:
            from jaxpgs.play.widget import make_widget

            self._widget = make_widget(self)
        return self._widget

    def _display_(self) -> Any:  # marimo's protocol
        return self.widget

    def __repr__(self) -> str:
        moves = " ".join(position.name for position in self.visit.past[1:])
        return f"Board({self.env}, {moves or 'no move yet'})"

    def _repr_html_(self) -> str:
        return self.svg()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """Returns the widget, and the static picture for viewers without widgets."""
        bundle: dict[str, Any] = {"image/svg+xml": self.svg(), "text/plain": repr(self)}
        try:
            self.widget.picture = self.svg()
            shown = self.widget._repr_mimebundle_(**kwargs)
        except ImportError:
            return bundle
        data = shown[0] if isinstance(shown, tuple) else shown
        return {**bundle, **{k: v for k, v in (data or {}).items() if k != "text/plain"}}


def _name(options: Options) -> tuple[str, int, float]:
    """Returns what a search is compiled for; the time counts only if it determines the size."""
    return options.search, options.simulations, 0.0 if options.simulations else options.seconds


def _key(visit: Visit) -> Any:
    return visit.number, visit.options


def show(
    env: Any,
    state: Any = None,
    network: Any = None,
    search: str | Search | None = None,
    *,
    simulations: int = 400,
    seconds: float = 0.0,
    humans: tuple[bool, ...] | None = None,
    seed: int = 0,
    moves: Sequence[int | str] = (),
) -> Board:
    """Makes a board for playing against a search and watching what it thinks.

    In JupyterLab, VS Code, Colab and marimo it is a widget, which needs the extra `play`. If no
    widget can be shown, it is a picture.

    Args:
      env: Hex, SameGame, Breakthrough, Yavalath, or another game of one or two players, which is
        shown by its own SVG.
      state: an unbatched position to begin with; None for the first one.
      network: the evaluator of positions: the name of a pretrained network, the result of
        `load_pretrained`, or `(params, apply_fn)`. None is the pretrained `hex-NxN-large` or
        `hex-NxN` for Hex without swap, if there is one; else random playouts.
      search: its name, such as "pgs" or "gumbel_mcts", or a `Search` of the same network; None is
        "gumbel_pgs", or "gumbel_mcts" if there is no network.
      simulations: the number for each move; 0 for as many as fit into the time.
      seconds: the time for each move; 0 for no limit.
      humans: whether a person moves, for each player; None means all.
      seed: the same seed, moves and simulations give the same game.
      moves: the moves of a game to view, by number or name; the board shows the position before
        the first.

    Returns:
      A `Board`.

    Raises:
      ValueError: if the network is for another game, the search is unknown, a move is illegal, both
        `simulations` and `seconds` are 0, or `humans` does not have one entry per player.

    Example:
      >>> board = jaxpgs.show(env, network=(params, apply_fn), search="mcts", simulations=16)
      >>> board.play("b2")
      >>> board.think().search_state.visits.sum()
      Array(16, dtype=int32)
    """
    if network is None and isinstance(env, jaxpgs.envs.Hex):
        names = (f"hex-{env.size}x{env.size}{larger}" for larger in ("-large", ""))
        known = () if env.swap else jaxpgs.available_pretrained()
        network = next((name for name in names if name in known), None)
    if isinstance(network, str):
        network = jaxpgs.load_pretrained(network)
    if getattr(network, "env", env) != env:
        raise ValueError(f"show: the network is for {network.env}, but the board is for {env}.")
    if search is None:
        search = "gumbel_mcts" if network is None else "gumbel_pgs"
    own = None if isinstance(search, str) else search
    options = Options(_OWN if own is not None else search, simulations, seconds)  # type: ignore[arg-type]
    if own is None and search not in SEARCHES:
        raise ValueError(f"show: search must be one of {', '.join(SEARCHES)}; got {search!r}.")
    if simulations < 0 or seconds < 0 or not (simulations or seconds):
        raise ValueError(
            "show: simulations and seconds must be at least 0, and one of them above 0; "
            f"got {simulations} and {seconds}."
        )
    begun = playing.begin(env, state, options=options, seed=seed)
    if humans and len(humans) != len(begun.humans):
        raise ValueError(
            f"show: humans needs one entry for each of {len(begun.humans)} players; got {humans}."
        )
    for move in moves:
        begun = playing.play(begun, playing.action_of(begun, move))
    begun = dataclasses.replace(playing.go(begun, 0), number=0)
    humans = humans or (True,) * len(begun.humans)
    return Board(env, dataclasses.replace(begun, humans=humans), make_brain(env, network), own)
