"""Breakthrough (Dan Troyka, 2000) on a board of any size, as pure functions on a frozen state.

Each player has two rows of pawns. A pawn moves one step ahead, straight or diagonally, to an empty
cell; diagonally it may also capture. A player wins by reaching the opponent's first row or by
capturing the last pawn. A player with a pawn can always move: no own pawn is ahead of the foremost
pawn, so each of its diagonal steps on the board is free or captures. Hence nobody is ever stuck.

| version | change |
| --- | --- |
| 1 | first |
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.envs.compiling import compiled

VERSION = 1
MIN_ROWS, MIN_COLUMNS, MAX_SIZE = 4, 2, 19


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BreakthroughState:
    """A Breakthrough position. Leading batch axes may be added by `jax.vmap`.

    Attributes:
      board: `[rows, columns]` int8: 1 is a pawn of player 0, who starts in the last rows and moves
        to row 0; -1 is one of player 1, who moves the other way; 0 is an empty cell.
      current_player: `[]` int32, the player to move: 0 or 1.
      rewards: `[2]` float32, what each player earned by the last step.
      terminated: `[]` bool.

    Example:
      >>> state = jaxpgs.envs.Breakthrough(rows=6, columns=5).init()
      >>> state.legal_action_mask.sum()
      Array(13, dtype=int32)
    """

    board: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array

    @property
    def legal_action_mask(self) -> chex.Array:
        """`[A]` bool, all False after the end."""
        return _legal_action_mask(self)


@dataclasses.dataclass(frozen=True)
class Breakthrough:
    """The game of Breakthrough.

    | | |
    | --- | --- |
    | actions | `3 * cell + direction`: from a cell ahead to the left (0), straight (1), right (2) |
    | observation | `[rows, columns, 3]` float32: own pawns, other's pawns, empty |
    | reward | +1 to the winner, -1 to the loser, on the last step |

    Actions and observations are in the mover's frame, in which pawns move towards row 0: player 1's
    board is rotated by 180 degrees. So a network's policy needs no mapping. Cell `r * columns + c`
    is at `[r, c]` of the observation.

    Args:
      rows: 4 to 19.
      columns: 2 to 19; on a single column the players would block each other.

    Raises:
      ValueError: if an argument is not an integer in its range.

    Example:
      >>> env = jaxpgs.envs.Breakthrough(rows=6, columns=5)
      >>> env.num_actions, env.observe(env.init()).shape
      (90, (6, 5, 3))
    """

    rows: int = 8
    columns: int = 8

    def __post_init__(self) -> None:
        for name, least in (("rows", MIN_ROWS), ("columns", MIN_COLUMNS)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MAX_SIZE:
                raise ValueError(
                    f"Breakthrough needs an integer number of {name} from {least} to {MAX_SIZE}, "
                    f"got {value!r}."
                )

    @property
    def num_players(self) -> int:
        """Always 2."""
        return 2

    @property
    def num_cells(self) -> int:
        """The number of cells, `rows * columns`."""
        return self.rows * self.columns

    @property
    def num_actions(self) -> int:
        """The number of actions A, `3 * rows * columns`; some leave the board and are illegal."""
        return 3 * self.num_cells

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """The shape of one observation."""
        return (self.rows, self.columns, 3)

    @compiled
    def init(self, key: chex.PRNGKey | None = None) -> BreakthroughState:
        """Returns the first position; Breakthrough has no chance, so the key is not used."""
        del key
        board = np.zeros((self.rows, self.columns), np.int8)
        board[:2], board[-2:] = -1, 1
        return BreakthroughState(
            board=jnp.asarray(board),
            current_player=jnp.int32(0),
            rewards=jnp.zeros(2, jnp.float32),
            terminated=jnp.bool_(False),
        )

    @compiled
    def step(self, state: BreakthroughState, action: chex.Array) -> BreakthroughState:
        """Plays one action.

        Args:
          state: a position, unbatched.
          action: `[]` integer in `[0, num_actions)`.

        Returns:
          The next position. A finished game does not change and has zero rewards. An illegal action
          (also one out of range) loses the game at once, as in pgx, and does not move the pawns.
        """
        columns, cells = self.columns, self.num_cells
        action = jnp.asarray(action, jnp.int32)
        mover = state.current_player
        own = jnp.where(mover == 0, 1, -1).astype(jnp.int8)
        source, direction = _divmod(action, 3)
        row, column = _divmod(source, columns)
        aside = column + direction - 1
        # Actions out of range are not inside either: division rounds towards 0, so the row of a
        # negative one is at most 0.
        inside = (row > 0) & (row < self.rows) & (aside >= 0) & (aside < columns)
        target = source - columns + direction - 1
        # From the mover's frame to the board.
        source = jnp.where(mover == 0, source, cells - 1 - source)
        target = jnp.where(mover == 0, target, cells - 1 - target)

        board = state.board.reshape(-1)
        there = board[target]
        # A straight step needs an empty cell; only a diagonal step captures.
        free = (there == 0) | ((there == -own) & (direction != 1))
        legal = inside & (board[source] == own) & free
        number = jnp.arange(cells, dtype=jnp.int32)
        moved = jnp.where(number == target, own, jnp.where(number == source, jnp.int8(0), board))

        playing = ~state.terminated
        lost = playing & ~legal
        # A step from row 1 of the mover's frame ends in the opponent's first row.
        won = playing & legal & ((row == 1) | ~jnp.any(moved == -own))
        outcome = won.astype(jnp.float32) - lost.astype(jnp.float32)
        sign = jnp.where(mover == 0, outcome, -outcome)
        return BreakthroughState(
            board=jnp.where(playing & legal, moved, board).reshape(state.board.shape),
            current_player=jnp.where(playing, 1 - mover, mover),
            rewards=sign * jnp.array([1.0, -1.0], jnp.float32),
            terminated=state.terminated | won | lost,
        )

    @compiled
    def observe(self, state: BreakthroughState) -> chex.Array:
        """Returns `[rows, columns, 3]` float32 planes from the view of the player to move."""
        view = _mover_view(state)
        return jnp.stack([view == 1, view == -1, view == 0], axis=-1).astype(jnp.float32)

    def symmetries(self, observation: chex.Array, policy: chex.Array) -> list[tuple]:
        """Lists the equivalent forms of an observation and a policy.

        Args:
          observation: `[..., rows, columns, 3]`.
          policy: `[..., A]`.

        Returns:
          Pairs `(observation, policy)`: the given pair, and its mirror image, left for right.
        """
        # The mirror image reverses the directions like the columns: left (0) becomes right (2).
        moves = policy.reshape(*policy.shape[:-1], self.rows, self.columns, 3)
        mirrored = jnp.flip(moves, axis=(-2, -1)).reshape(policy.shape)
        return [(observation, policy), (jnp.flip(observation, axis=-2), mirrored)]

    def render(self, state: BreakthroughState) -> str:
        """Draws one position as text; see `jaxpgs.envs.render.breakthrough_text`."""
        from jaxpgs.envs import render

        return render.breakthrough_text(self, state)


def _divmod(number: chex.Array, by: int) -> tuple[chex.Array, chex.Array]:
    """Quotient and remainder, without special cases for negative numbers."""
    return jax.lax.div(number, jnp.int32(by)), jax.lax.rem(number, jnp.int32(by))


def _mover_view(state: BreakthroughState) -> chex.Array:
    """The board as the player to move sees it: 1 his pawns, -1 the other's, row 0 his goal."""
    first = (state.current_player == 0)[..., None, None]
    return jnp.where(first, state.board, -jnp.flip(state.board, axis=(-2, -1)))


@functools.partial(jax.jit, inline=True)  # as `compiled` does
def _legal_action_mask(state: BreakthroughState) -> chex.Array:
    view = _mover_view(state)
    batch = view.shape[:-2]
    # The cells one row ahead of each cell. Cells off the board count as own pawns: never a target.
    around = [(0, 0)] * len(batch) + [(1, 0), (1, 1)]
    ahead = jnp.pad(view[..., :-1, :], around, constant_values=1)
    left, straight, right = ahead[..., :-2], ahead[..., 1:-1], ahead[..., 2:]
    targets = jnp.stack([left != 1, straight == 0, right != 1], axis=-1)
    playing = ~state.terminated[..., None, None, None]
    return ((view == 1)[..., None] & targets & playing).reshape(*batch, -1)
