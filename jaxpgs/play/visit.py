"""A game on a board for people, as a value: moves forth and back, files, and who has won."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpgs.adapters.environments import step_with_key
from jaxpgs.envs import Hex, hex_io
from jaxpgs.envs.hex_games import SWAP_PIECES, HexGame, Move, cell_name
from jaxpgs.gtp.dialog import Options
from jaxpgs.play import games
from jaxpgs.play.games import Choice


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
    return moved(session, (*session.past, after), ())


def moved(
    session: Session, past: tuple[Position, ...], future: tuple[Position, ...], **changes: Any
) -> Session:
    """Returns the session with other positions, and a new number."""
    return dataclasses.replace(
        session, past=past, future=future, number=session.number + 1, **changes
    )


def undo(session: Session, count: int = 1) -> Session:
    """Takes moves back; raises `ValueError` if there are not so many."""
    if not 1 <= count < len(session.past):
        raise ValueError("there is no move to take back")
    return moved(session, session.past[:-count], (*session.past[-count:], *session.future))


def redo(session: Session) -> Session:
    """Plays a move again that was taken back; raises `ValueError` if there is none."""
    if not session.future:
        raise ValueError("there is no move to play again")
    return moved(session, (*session.past, session.future[0]), session.future[1:])


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
    return moved(session, tuple(past), (), start=dataclasses.replace(game, moves=()))


def _hex_position(env: Hex, game: HexGame) -> Position:
    """The position after a game's last move, which may be any."""
    state = env.from_board(hex_io.stones(game), hex_io.player_to_move(game))
    if not game.moves:
        return Position(state)
    move = game.moves[-1]
    if isinstance(move.action, int):
        return Position(state, move, cell_name(game.size, move.action), (move.action,))
    return Position(state, move, move.action.removesuffix("-pieces"))


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
