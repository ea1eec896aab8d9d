"""A game on an interactive board, as an immutable value: moves, undo, files, and the winner."""

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
    """A position of the game and the move that led to it.

    Attributes:
      state: the environment's state.
      move: the player and the action, or a word of `hex_games.WORDS` if it is not an action.
      name: the name of the move.
      cells: the cells of the move.
    """

    state: Any
    move: Move | None = None
    name: str = ""
    cells: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Visit:
    """A game in progress.

    Attributes:
      env: the game.
      past: its positions; the last one is on the board.
      future: the positions that were taken back, the nearest first.
      start: in Hex, the stones that were set up.
      humans: for each player, whether a person moves; if not, the search does.
      analysing: whether the search also thinks while a person is to move.
      swap: whether Hex's second player may swap pieces.
      options: the search's options.
      seed: the random seed of the game's chance and of the search.
      number: a counter of the changes of the position.
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
      state: the unbatched state to begin with; None for the first position.
      **settings: further fields of the visit.
    """
    if state is None:
        state = env.init(jax.random.key(settings.get("seed", 0)))
    start = None
    if isinstance(env, Hex):
        board = np.array(games.stones(env, state))
        cells = tuple(tuple(np.flatnonzero(board == p + 1).tolist()) for p in (0, 1))
        start = HexGame(env.size, (), cells, int(state.current_player) if board.any() else None)  # type: ignore[arg-type]
    # pgx environments state the number of players; others may show it only in the rewards.
    count = getattr(env, "num_players", None) or len(state.rewards)
    settings.setdefault("humans", (True, False)[:count])
    return Visit(env, (Position(state),), start=start, **settings)


# Compiled once for each game, as a move on the board must feel immediate.
@functools.lru_cache(maxsize=8)
def _stepper(env: Any) -> Callable[..., Any]:
    return jax.jit(step_with_key(env))


def legal(visit: Visit) -> list[Choice]:
    """Lists the legal moves, including Hex's swap."""
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
    # People may also swap in an environment without the rule, once, as the second move.
    by_rules = visit.env.swap and bool(visit.state.swap_legal)
    swapped = any(position.move and position.move.action == SWAP_PIECES for position in visit.past)
    return board.size if by_rules or (visit.swap and single and not swapped) else None


def may_be_swapped(visit: Visit) -> bool:
    """Returns whether a swap unknown to the environment may answer the next move."""
    if not isinstance(visit.env, Hex) or visit.env.swap or not visit.swap or visit.mover:
        return False
    return not any(games.stones(visit.env, visit.state)) and len(visit.past) < 2


def action_of(visit: Visit, move: int | str) -> int:
    """Returns the action of a move, given by its number, its name or one of its cells.

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
    # Checked here, as a page may be a move behind and send a move that is no longer legal.
    found = {choice.action: choice for choice in legal(visit)}
    if type(action) is not int or action not in found:
        raise ValueError("the game is over" if visit.over else f"no legal move: {action!r:.20}")
    choice, mover = found[action], visit.mover
    if choice.name == "swap":
        game = game_of(visit).play(mover, SWAP_PIECES)
        after = _hex_position(visit.env, game)
    else:
        # The key depends on the move's number, so a replayed move has the same random outcome.
        key = jax.random.fold_in(jax.random.key(visit.seed), len(visit.past))
        state = _stepper(visit.env)(visit.state, action, key)
        source = () if choice.source is None else (choice.source,)
        after = Position(state, Move(mover, action), choice.name, (*choice.cells[:1], *source))
    return moved(visit, (*visit.past, after), ())


def moved(
    visit: Visit, past: tuple[Position, ...], future: tuple[Position, ...], **changes: Any
) -> Visit:
    """Returns the visit with the given positions and a new number."""
    return dataclasses.replace(visit, past=past, future=future, number=visit.number + 1, **changes)


def go(visit: Visit, count: int) -> Visit:
    """Goes to the position after `count` moves; raises `ValueError` if there are fewer."""
    # Positions are kept, not recomputed, so that going back and forth costs nothing.
    line = (*visit.past, *visit.future)
    if type(count) is not int or not 0 <= count < len(line):
        raise ValueError("the game does not have that many moves")
    return moved(visit, line[: count + 1], line[count + 1 :])


def undo(visit: Visit, count: int = 1) -> Visit:
    """Takes `count` moves back; raises `ValueError` if there are fewer."""
    return go(visit, len(visit.past) - 1 - count)


def redo(visit: Visit) -> Visit:
    """Replays a move that was taken back; raises `ValueError` if there is none."""
    return go(visit, len(visit.past))


def game_of(visit: Visit) -> HexGame:
    """Returns a game of Hex in the form used for files and links."""
    if visit.start is None:
        raise ValueError("only games of Hex have files and links")
    cells = visit.env.num_cells
    moves = (position.move for position in visit.past if position.move)
    words = (m._replace(action=SWAP_PIECES) if m.action == cells else m for m in moves)
    return dataclasses.replace(visit.start, moves=(*visit.start.moves, *words))


def load(visit: Visit, text: str) -> Visit:
    """Loads a game of Hex; raises `ValueError` if the text has none for this board.

    Args:
      visit: the current game on the board.
      text: the content of an SGF file, or a link to HexWorld.
    """
    if visit.start is None:
        raise ValueError("only games of Hex can be loaded")
    # Every SGF file begins with a parenthesis.
    is_link = not text.lstrip().startswith("(")
    game = hex_io.read_link(text, to_cursor=True) if is_link else hex_io.read_sgf(text)
    size = visit.env.size
    if game.size != size:
        raise ValueError(f"the board is {size}x{size}, but the game is {game.size}x{game.size}")
    # All intermediate positions are kept, so that moves can be taken back.
    start = dataclasses.replace(game, moves=())
    past = [_hex_position(visit.env, start)._replace(move=None)]
    for move in game.moves:
        # Skipped: these words end a game without a stone, but here the game may be continued.
        if move.action not in ("resign", "forfeit"):
            start = start.play(*move)
            past.append(_hex_position(visit.env, start))
    return moved(visit, tuple(past), (), start=dataclasses.replace(game, moves=()))


def _hex_position(env: Hex, game: HexGame) -> Position:
    """Returns the position after a game's last move, which may be of any kind."""
    state = env.from_board(hex_io.stones(game), hex_io.player_to_move(game))
    if not game.moves:
        return Position(state)
    move = game.moves[-1]
    if isinstance(move.action, int):
        return Position(state, move, cell_name(game.size, move.action), (move.action,))
    return Position(state, move, move.action.removesuffix("-pieces"))


def winner(visit: Visit) -> int | None:
    """Returns the player who has won, or None if there is none."""
    if not visit.over or len(visit.humans) < 2:
        return None
    if isinstance(visit.env, Hex):
        # Determined from the stones, as a loaded position has no rewards.
        board = np.reshape(games.stones(visit.env, visit.state), (visit.env.size,) * 2)
        return hex_io.winner(board)
    # Some games give rewards before their end, so all rewards are summed, as in a match.
    total = np.sum([position.state.rewards for position in visit.past], axis=0)
    best = np.flatnonzero(total == total.max())
    return int(best[0]) if len(best) == 1 else None


def score(visit: Visit) -> float:
    """Returns the total reward of a puzzle's only player so far."""
    return float(sum(np.sum(position.state.rewards) for position in visit.past[1:]))


def result(visit: Visit) -> str:
    """Returns the outcome of a game, or the score of a puzzle; empty during a game."""
    if len(visit.humans) < 2:
        return f"score {score(visit):g}" + (", the end" if visit.over else "")
    if not visit.over:
        return ""
    won = winner(visit)
    return "a draw" if won is None else f"player {won} won"
