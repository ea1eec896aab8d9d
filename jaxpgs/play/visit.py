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
class Visit:
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


def begin(env: Any, state: Any = None, **settings: Any) -> Visit:
    """Begins a game.

    Args:
      env: the game.
      state: where to begin, unbatched; None is the first position.
      **settings: further fields of the visit.
    """
    if state is None:
        state = env.init(jax.random.key(settings.get("seed", 0)))
    start = None
    if isinstance(env, Hex):
        board = np.array(games.stones(env, state))
        cells = tuple(tuple(np.flatnonzero(board == p + 1).tolist()) for p in (0, 1))
        start = HexGame(env.size, (), cells, int(state.current_player) if board.any() else None)  # type: ignore[arg-type]
    # pgx says the number of players in the environment, others may in the rewards alone.
    count = getattr(env, "num_players", None) or len(state.rewards)
    settings.setdefault("humans", (True, False)[:count])
    return Visit(env, (Position(state),), start=start, **settings)


# Compiled once for each game, as a move on the board must feel immediate.
@functools.lru_cache(maxsize=8)
def _stepper(env: Any) -> Callable[..., Any]:
    return jax.jit(step_with_key(env))


def legal(visit: Visit) -> list[Choice]:
    """Lists what may be played, Hex's swap included."""
    found = games.choices(visit.env, visit.state)
    swap = swap_action(visit)
    if swap is not None and all(choice.action != swap for choice in found):
        found.append(Choice(swap, "swap", ()))
    return found


def swap_action(visit: Visit) -> int | None:
    """Returns the number of the swap if it may be played, else None."""
    if not isinstance(visit.env, Hex) or visit.over or visit.mover != 1:
        return None
    board = np.array(games.stones(visit.env, visit.state))
    single = np.count_nonzero(board) == 1 and board.max() == 1 and len(visit.past) < 3
    # People may swap in an environment without the rule as well: once, as the second move.
    by_rules = visit.env.swap and bool(visit.state.swap_legal)
    swapped = any(position.move and position.move.action == SWAP_PIECES for position in visit.past)
    return board.size if by_rules or (visit.swap and single and not swapped) else None


def may_be_swapped(visit: Visit) -> bool:
    """Tells whether the next move may be answered by a swap that the environment does not know."""
    if not isinstance(visit.env, Hex) or visit.env.swap or not visit.swap or visit.mover:
        return False
    return not any(games.stones(visit.env, visit.state)) and len(visit.past) < 2


def action_of(visit: Visit, move: int | str) -> int:
    """Returns the action of a move, given by its number, name or cell, as of any block of a group.

    Raises:
      ValueError: if it is not legal.
    """
    for choice in legal(visit):
        on_cell = choice.source is None and move in choice.cells
        if on_cell or move in (choice.action, choice.name):
            return choice.action
    raise ValueError("the game is over" if visit.over else f"no legal move: {move!r:.20}")


def play(visit: Visit, action: int) -> Visit:
    """Plays a move; raises `ValueError` if it is not legal."""
    # Looked up by number: a page may be a move behind and send one that is no longer legal.
    found = {choice.action: choice for choice in legal(visit)}
    if type(action) is not int or action not in found:
        raise ValueError("the game is over" if visit.over else f"no legal move: {action!r:.20}")
    choice, mover = found[action], visit.mover
    if choice.name == "swap":
        game = game_of(visit).play(mover, SWAP_PIECES)
        after = _hex_position(visit.env, game)
    else:
        # By the number of the move: taken back and played again, it meets the same chance.
        key = jax.random.fold_in(jax.random.key(visit.seed), len(visit.past))
        state = _stepper(visit.env)(visit.state, action, key)
        source = () if choice.source is None else (choice.source,)
        after = Position(state, Move(mover, action), choice.name, (*choice.cells[:1], *source))
    return moved(visit, (*visit.past, after), ())


def moved(
    visit: Visit, past: tuple[Position, ...], future: tuple[Position, ...], **changes: Any
) -> Visit:
    """Returns the visit with other positions, and a new number."""
    return dataclasses.replace(visit, past=past, future=future, number=visit.number + 1, **changes)


def go(visit: Visit, count: int) -> Visit:
    """Goes to the position after so many moves; raises `ValueError` if there are not so many."""
    # Positions are kept, not recomputed, so that going back and forth costs nothing.
    line = (*visit.past, *visit.future)
    if type(count) is not int or not 0 <= count < len(line):
        raise ValueError("the game has no such move")
    return moved(visit, line[: count + 1], line[count + 1 :])


def undo(visit: Visit, count: int = 1) -> Visit:
    """Takes moves back; raises `ValueError` if there are not so many."""
    return go(visit, len(visit.past) - 1 - count)


def redo(visit: Visit) -> Visit:
    """Plays a move again that was taken back; raises `ValueError` if there is none."""
    return go(visit, len(visit.past))


def game_of(visit: Visit) -> HexGame:
    """Returns a game of Hex as files and links have it."""
    if visit.start is None:
        raise ValueError("files and links are of Hex")
    cells = visit.env.num_cells
    moves = (position.move for position in visit.past if position.move)
    words = (m._replace(action=SWAP_PIECES) if m.action == cells else m for m in moves)
    return dataclasses.replace(visit.start, moves=(*visit.start.moves, *words))


def load(visit: Visit, text: str) -> Visit:
    """Loads a game of Hex; raises `ValueError` if the text has none for this board.

    Args:
      visit: what was on the board.
      text: what an SGF file holds, or a link to HexWorld.
    """
    if visit.start is None:
        raise ValueError("positions are loaded in Hex")
    # Every SGF file begins with a parenthesis.
    is_link = not text.lstrip().startswith("(")
    game = hex_io.read_link(text, to_cursor=True) if is_link else hex_io.read_sgf(text)
    size = visit.env.size
    if game.size != size:
        raise ValueError(f"the board is {size}x{size}, the game {game.size}x{game.size}")
    # All positions on the way are kept, so that moves can be taken back.
    start = dataclasses.replace(game, moves=())
    past = [_hex_position(visit.env, start)._replace(move=None)]
    for move in game.moves:
        # Those end a game without a stone, and here one may go on from the last position.
        if move.action not in ("resign", "forfeit"):
            start = start.play(*move)
            past.append(_hex_position(visit.env, start))
    return moved(visit, tuple(past), (), start=dataclasses.replace(game, moves=()))


def _hex_position(env: Hex, game: HexGame) -> Position:
    """The position after a game's last move, which may be any."""
    state = env.from_board(hex_io.stones(game), hex_io.player_to_move(game))
    if not game.moves:
        return Position(state)
    move = game.moves[-1]
    if isinstance(move.action, int):
        return Position(state, move, cell_name(game.size, move.action), (move.action,))
    return Position(state, move, move.action.removesuffix("-pieces"))


def winner(visit: Visit) -> int | None:
    """Returns who has won, None if nobody has."""
    if not visit.over or len(visit.humans) < 2:
        return None
    if isinstance(visit.env, Hex):
        # By the stones, as a position that was loaded has no rewards.
        board = np.reshape(games.stones(visit.env, visit.state), (visit.env.size,) * 2)
        return hex_io.winner(board)
    # Some games pay on the way to their end, so all rewards count, as in a match.
    total = np.sum([position.state.rewards for position in visit.past], axis=0)
    best = np.flatnonzero(total == total.max())
    return int(best[0]) if len(best) == 1 else None


def score(visit: Visit) -> float:
    """Returns what the one player of a puzzle has earned so far."""
    return float(sum(np.sum(position.state.rewards) for position in visit.past[1:]))


def result(visit: Visit) -> str:
    """Says how the game has ended, or how a puzzle stands; nothing in the middle of a game."""
    if len(visit.humans) < 2:
        return f"score {score(visit):g}" + (", the end" if visit.over else "")
    if not visit.over:
        return ""
    won = winner(visit)
    return "a draw" if won is None else f"player {won} won"
