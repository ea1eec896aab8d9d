"""A game on a board for people as a value, and the messages by which a page changes it.

Messages are JSON objects. What a page asks for has a `type`, one of `TYPES`; the answers of
`message` and `point` are a position and what a search thinks of it. The widget and the web socket
speak the same.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpgs.adapters import step_with_key
from jaxpgs.envs import Hex, hex_io
from jaxpgs.envs.hex_games import SWAP_PIECES, HexGame, Move, cell_name
from jaxpgs.gtp.session import Options
from jaxpgs.play import games
from jaxpgs.play.games import Choice
from jaxpgs.thinker import SEARCHES, Thought

MOST_SIMULATIONS, MOST_SECONDS = 1_000_000, 3600.0


class Position(NamedTuple):
    """A position of the game and the move that led there.

    Attributes:
      state: the environment's.
      move: who moved, and the action; a word of `hex_games.WORDS` for moves that are none.
      name: what the move is called.
      cells: the cells of the move.
    """

    state: Any
    move: Move | None = None
    name: str = ""
    cells: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Session:
    """A game under way.

    Attributes:
      env: the game.
      past: its positions, the last of which is on the board.
      future: those that were taken back, the nearest first.
      start: stones that were set up, in Hex.
      humans: for each player whether a person moves; for others the search does.
      analysing: whether the search also thinks while a person is to move.
      swap: whether Hex's second player may swap pieces.
      options: how the search thinks.
      seed: of games that begin by chance.
      number: grows with each change of the position.
    """

    env: Any
    past: tuple[Position, ...]
    future: tuple[Position, ...] = ()
    start: HexGame | None = None
    humans: tuple[bool, ...] = (True, False)
    analysing: bool = False
    swap: bool = True
    options: Options = dataclasses.field(default_factory=Options)
    seed: int = 0
    number: int = 0

    @property
    def state(self) -> Any:
        """The position on the board."""
        return self.past[-1].state

    @property
    def over(self) -> bool:
        """Whether the game has ended."""
        return bool(self.state.terminated)

    @property
    def mover(self) -> int:
        """Whose turn it is."""
        return int(self.state.current_player)


def begin(env: Any, state: Any = None, **settings: Any) -> Session:
    """Begins a game.

    Args:
      env: the game.
      state: where to begin, unbatched; None is the first position.
      **settings: further fields of the session.
    """
    if state is None:
        state = env.init(jax.random.key(settings.get("seed", 0)))
    start = None
    if isinstance(env, Hex):
        board = np.array(games.stones(env, state))
        cells = tuple(tuple(np.flatnonzero(board == p + 1).tolist()) for p in (0, 1))
        start = HexGame(env.size, (), cells, int(state.current_player) if board.any() else None)  # type: ignore[arg-type]
    count = getattr(env, "num_players", None) or len(state.rewards)
    settings.setdefault("humans", (True, False)[:count])
    return Session(env, (Position(state),), start=start, **settings)


@functools.lru_cache(maxsize=8)
def _stepper(env: Any) -> Callable[..., Any]:
    return jax.jit(step_with_key(env))


def legal(session: Session) -> list[Choice]:
    """Lists what may be played, Hex's swap included."""
    found = games.choices(session.env, session.state)
    swap = swap_action(session)
    if swap is not None and all(choice.action != swap for choice in found):
        found.append(Choice(swap, "swap", ()))
    return found


def swap_action(session: Session) -> int | None:
    """Returns the number of the swap if it may be played, else None."""
    if not isinstance(session.env, Hex) or session.over or session.mover != 1:
        return None
    board = np.array(games.stones(session.env, session.state))
    single = np.count_nonzero(board) == 1 and board.max() == 1 and len(session.past) < 3
    by_rules = session.env.swap and bool(session.state.swap_legal)
    swapped = any(
        position.move and position.move.action == SWAP_PIECES for position in session.past
    )
    return board.size if by_rules or (session.swap and single and not swapped) else None


def play(session: Session, action: int) -> Session:
    """Plays a move; raises `ValueError` if it is not legal."""
    found = {choice.action: choice for choice in legal(session)}
    if type(action) is not int or action not in found:
        raise ValueError("the game is over" if session.over else f"no legal move: {action!r:.20}")
    choice, mover = found[action], session.mover
    if choice.name == "swap":
        game = game_of(session).play(mover, SWAP_PIECES)
        after = _hex_position(session.env, game)
    else:
        key = jax.random.fold_in(jax.random.key(session.seed), len(session.past))
        state = _stepper(session.env)(session.state, action, key)
        source = () if choice.source is None else (choice.source,)
        after = Position(state, Move(mover, action), choice.name, (*choice.cells[:1], *source))
    return _moved(session, (*session.past, after), ())


def _moved(
    session: Session, past: tuple[Position, ...], future: tuple[Position, ...], **changes: Any
) -> Session:
    return dataclasses.replace(
        session, past=past, future=future, number=session.number + 1, **changes
    )


def undo(session: Session, count: int = 1) -> Session:
    """Takes moves back; raises `ValueError` if there are not so many."""
    if not 1 <= count < len(session.past):
        raise ValueError("there is no move to take back")
    return _moved(session, session.past[:-count], (*session.past[-count:], *session.future))


def redo(session: Session) -> Session:
    """Plays a move again that was taken back; raises `ValueError` if there is none."""
    if not session.future:
        raise ValueError("there is no move to play again")
    return _moved(session, (*session.past, session.future[0]), session.future[1:])


def game_of(session: Session) -> HexGame:
    """Returns a game of Hex as files and links have it."""
    if session.start is None:
        raise ValueError("files and links are of Hex")
    cells = session.env.num_cells
    moves = (position.move for position in session.past if position.move)
    words = (m._replace(action=SWAP_PIECES) if m.action == cells else m for m in moves)
    return dataclasses.replace(session.start, moves=(*session.start.moves, *words))


def load(session: Session, text: str) -> Session:
    """Loads a game of Hex; raises `ValueError` if the text has none for this board.

    Args:
      session: what was on the board.
      text: what an SGF file holds, or a link to HexWorld.
    """
    if session.start is None:
        raise ValueError("positions are loaded in Hex")
    is_link = not text.lstrip().startswith("(")
    game = hex_io.read_link(text, to_cursor=True) if is_link else hex_io.read_sgf(text)
    size = session.env.size
    if game.size != size:
        raise ValueError(f"the board is {size}x{size}, the game {game.size}x{game.size}")
    start = dataclasses.replace(game, moves=())
    past = [_hex_position(session.env, start)._replace(move=None)]
    for move in game.moves:
        if move.action not in ("resign", "forfeit"):
            start = start.play(*move)
            past.append(_hex_position(session.env, start))
    return _moved(session, tuple(past), (), start=dataclasses.replace(game, moves=()))


def _hex_position(env: Hex, game: HexGame) -> Position:
    """The position after a game's last move, which may be any."""
    state = env.from_board(hex_io.stones(game), hex_io.player_to_move(game))
    if not game.moves:
        return Position(state)
    move = game.moves[-1]
    if isinstance(move.action, int):
        return Position(state, move, cell_name(game.size, move.action), (move.action,))
    return Position(state, move, move.action.removesuffix("-pieces"))


# --- messages -------------------------------------------------------------------------------------


def handle(session: Session, said: Any) -> Session:
    """Does what a page asks for.

    Args:
      session: the game.
      said: the message, as JSON has it.

    Returns:
      The next session.

    Raises:
      ValueError: if the message is malformed, or the move illegal.
    """
    if not isinstance(said, Mapping) or not isinstance(said.get("type"), str):
        raise ValueError("a message is an object with a type")
    kind = said["type"]
    if kind not in TYPES:
        raise ValueError(f"no such message: {kind[:20]!r}")
    if kind in ("play", "undo", "redo") and said.get("number", session.number) != session.number:
        raise ValueError("the position has changed meanwhile")
    return TYPES[kind](session, said)


def _undo(session: Session, said: Mapping[str, Any]) -> Session:
    """Takes back as many moves as a person needs to be to move, where there is one."""
    after, steps = undo(session), 1
    while not after.humans[after.mover] and any(after.humans) and len(after.past) > 1:
        after, steps = undo(session, steps + 1), steps + 1
    # Else the search would play the first move again at once.
    return after if after.humans[after.mover] else dataclasses.replace(after, humans=_all(after))


def _redo(session: Session, said: Mapping[str, Any]) -> Session:
    after = redo(session)
    while after.future and not after.humans[after.mover]:
        after = redo(after)
    return after


def _all(session: Session) -> tuple[bool, ...]:
    return (True,) * len(session.humans)


def _new(session: Session, said: Mapping[str, Any]) -> Session:
    seed = session.seed + 1
    fresh = begin(session.env, seed=seed)
    return _moved(session, fresh.past, (), start=fresh.start, seed=seed)


def _load(session: Session, said: Mapping[str, Any]) -> Session:
    text = said.get("text")
    if not isinstance(text, str) or len(text) > 100_000:
        raise ValueError("what is loaded is the text of a file, or a link")
    return dataclasses.replace(load(session, text), humans=_all(session))


def _humans(session: Session, said: Mapping[str, Any]) -> Session:
    humans = said.get("humans")
    fits = isinstance(humans, list) and all(isinstance(human, bool) for human in humans)
    if not fits or len(humans) != len(session.humans):  # type: ignore[arg-type]
        raise ValueError("humans are true or false for each player")
    return dataclasses.replace(session, humans=tuple(humans))  # type: ignore[arg-type]


def _analyse(session: Session, said: Mapping[str, Any]) -> Session:
    return dataclasses.replace(session, analysing=said.get("on") is True)


def _options(session: Session, said: Mapping[str, Any]) -> Session:
    search = said.get("search", session.options.search)
    simulations = said.get("simulations", session.options.simulations)
    seconds = said.get("seconds", session.options.seconds)
    if search not in (*SEARCHES, session.options.search):
        raise ValueError(f"no such search; there are {', '.join(SEARCHES)}")
    if type(simulations) is not int or not 0 <= simulations <= MOST_SIMULATIONS:
        raise ValueError(f"simulations are a whole number from 0 to {MOST_SIMULATIONS:,}")
    if type(seconds) not in (int, float) or not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"seconds are a number from 0 to {MOST_SECONDS:g}")
    if not (simulations or seconds):
        raise ValueError("simulations and seconds are 0, and one of them must say when to stop")
    options = dataclasses.replace(
        session.options, search=search, simulations=simulations, seconds=float(seconds)
    )
    return dataclasses.replace(session, options=options)


TYPES: dict[str, Callable[[Session, Mapping[str, Any]], Session]] = {
    "hello": lambda session, said: session,
    "play": lambda session, said: play(session, said.get("action")),  # type: ignore[arg-type]
    "undo": _undo,
    "redo": _redo,
    "new": _new,
    "load": _load,
    "humans": _humans,
    "analyse": _analyse,
    "options": _options,
}


def message(session: Session, **more: Any) -> dict[str, Any]:
    """Tells a page all it needs of a position, ready for JSON."""
    env, state = session.env, session.state
    last = session.past[-1]
    files = {}
    if session.start is not None:
        game = game_of(session)
        files = {"sgf": hex_io.write_sgf(game), "link": hex_io.write_link(game)}
    view = games.layout(env)
    return {
        "type": "position",
        "number": session.number,
        "layout": view,
        "svg": games.picture(env, state) if view["kind"] == "svg" else None,
        "stones": games.stones(env, state),
        "legal": [choice._asdict() for choice in legal(session)],
        "swap": swap_action(session),
        "mover": session.mover,
        "last": list(last.cells),
        "moves": [position.name for position in session.past[1:]],
        "redo": len(session.future),
        "over": session.over,
        "result": result(session),
        "winner": winner(session),
        "humans": list(session.humans),
        "analysing": session.analysing,
        "options": {
            key: getattr(session.options, key) for key in ("search", "simulations", "seconds")
        },
        "searches": sorted({*SEARCHES, session.options.search}),
        **files,
        **more,
    }


def winner(session: Session) -> int | None:
    """Returns who has won, None if nobody has."""
    if not session.over or len(session.humans) < 2:
        return None
    if isinstance(session.env, Hex):
        board = np.reshape(games.stones(session.env, session.state), (session.env.size,) * 2)
        return hex_io.winner(board)
    rewards = np.asarray(session.state.rewards)
    return int(rewards.argmax()) if rewards.any() else None


def score(session: Session) -> float:
    """Returns what the one player of a puzzle has earned so far."""
    return float(sum(np.sum(position.state.rewards) for position in session.past[1:]))


def result(session: Session) -> str:
    """Says how the game has ended, or how a puzzle stands; nothing in the middle of a game."""
    if len(session.humans) < 2:
        return f"score {score(session):g}" + (", the end" if session.over else "")
    if not session.over:
        return ""
    won = winner(session)
    return "a draw" if won is None else f"player {won} won"


def point(session: Session, thought: Thought, adapted: np.ndarray | None, **more: Any) -> dict:
    """Tells a page what a search thinks, ready for JSON.

    Args:
      session: with the position that it thinks about.
      thought: what it thinks.
      adapted: `[A]` the network's policy by its adapted parameters, None where nothing adapts.
      **more: further entries.

    Returns:
      The arrays hold an entry for each legal move, in the order of `message`.
    """
    choices = legal(session)
    actions = [choice.action for choice in choices]

    def pick(values: np.ndarray) -> list[float]:
        # Hex's swap may be no action of the search.
        return [round(float(values[a]), 4) if a < len(values) else 0.0 for a in actions]

    visits = [int(thought.visits[a]) if a < len(thought.visits) else 0 for a in actions]
    qvalues = [q if n else None for q, n in zip(pick(thought.qvalues), visits, strict=True)]
    return {
        "action": thought.action,
        "value": round(thought.value, 4),
        "simulations": sum(visits),
        "policy": pick(thought.policy),
        "adapted": None if adapted is None else pick(adapted),
        "visits": visits,
        "q": qvalues,
        "line": line_of(session, thought.line),
        **more,
    }


def line_of(session: Session, actions: tuple[int, ...]) -> list[dict[str, Any]]:
    """Names the moves of a line, as far as they can be played."""
    found: list[dict[str, Any]] = []
    for action in actions:
        mover = session.mover
        try:
            session = play(dataclasses.replace(session, swap=session.env.swap)
                           if isinstance(session.env, Hex) else session, int(action))  # fmt: skip
        except ValueError:
            break
        last = session.past[-1]
        found.append({"name": last.name, "cells": list(last.cells), "player": mover})
    return found


def prior_point(session: Session, root: Any, worth: np.ndarray) -> dict[str, Any]:
    """Tells a page what is known before the first simulation: the network's policy and values.

    Args:
      session: with the position.
      root: the network's answer, with an axis B of one.
      worth: `[A]` what the mover gets by each action at once and expects from there.
    """
    prior = np.asarray(jax.nn.softmax(root.prior_logits[0]))
    none = np.zeros(len(prior), int)
    value = float(np.ravel(root.value)[0])
    thought = Thought(int(prior.argmax()), value, prior, none, np.zeros(len(prior)), ())
    found = point(session, thought, prior, seconds=0.0)
    worths = [round(float(worth[c.action]), 4) if c.action < len(worth) else None
              for c in legal(session)]  # fmt: skip
    return {**found, "worth": worths}
