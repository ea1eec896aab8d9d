"""Yavalath (Cameron Browne's program Ludi, 2007) for two, as pure functions on a frozen state.

The players place stones on a hexagonal board in turn. A player who makes four or more in a row
wins; one who makes three in a row, and not also four, loses. A full board is a draw. There is no
swap rule.

Only rows through the new stone can be new. A table lists the cells on these lines, three steps each
way, so a move's cost does not depend on the size of the board, except for copying it.

| version | change |
| --- | --- |
| 1 | first |
"""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.envs.compiling import compiled

VERSION = 1
MIN_SIZE, MAX_SIZE = 3, 10
# One way along each of the three lines through a cell.
_DIRECTIONS = np.array([(0, 1), (1, 0), (1, -1)])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class YavalathState:
    """A Yavalath position. Leading batch axes may be added by `jax.vmap`.

    Attributes:
      board: `[num_cells]` int8: 1 is a stone of player 0, -1 one of player 1, 0 an empty cell.
      current_player: `[]` int32, the player to move: 0 or 1.
      rewards: `[2]` float32, what each player earned by the last step.
      terminated: `[]` bool.

    Example:
      >>> state = jaxpgs.envs.Yavalath(size=4).init()
      >>> state.legal_action_mask.sum()
      Array(37, dtype=int32)
    """

    board: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array

    @property
    def legal_action_mask(self) -> chex.Array:
        """`[A]` bool: the empty cells; all False after the end."""
        return (self.board == 0) & ~self.terminated[..., None]


@dataclasses.dataclass(frozen=True)
class Yavalath:
    """The game of Yavalath.

    | | |
    | --- | --- |
    | actions | the cells, the same numbers for both players; see `coordinates` |
    | observation | `[2 * size - 1, 2 * size - 1, 3]` float32: own, other's, empty; off-board 0 |
    | reward | +1 to the winner, -1 to the loser, on the last step; 0 to both in a draw |

    The observation is from the mover's view. Its rows and columns are two of the board's three
    directions, so that `(r, c)` touches the same cells as in Hex: `(r, c-1), (r, c+1), (r-1, c),
    (r+1, c), (r-1, c+1), (r+1, c-1)`. The cells of the board are those with
    `size - 1 <= r + c <= 3 * (size - 1)`.

    Args:
      size: cells on each side of the hexagon, 3 to 10. The game is usually played with 5.

    Raises:
      ValueError: if `size` is not an integer from 3 to 10.

    Example:
      >>> env = jaxpgs.envs.Yavalath(size=4)
      >>> env.num_actions, env.observe(env.init()).shape
      (37, (7, 7, 3))
    """

    size: int = 5

    def __post_init__(self) -> None:
        if type(self.size) is not int or not MIN_SIZE <= self.size <= MAX_SIZE:
            raise ValueError(
                f"Yavalath needs an integer size from {MIN_SIZE} to {MAX_SIZE}, got {self.size!r}."
            )

    @property
    def num_players(self) -> int:
        """Always 2."""
        return 2

    @property
    def num_cells(self) -> int:
        """The number of cells, `3 * size * (size - 1) + 1`: 61 for size 5."""
        return 3 * self.size * (self.size - 1) + 1

    @property
    def num_actions(self) -> int:
        """The number of actions A: the cells."""
        return self.num_cells

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """The shape of one observation."""
        return (2 * self.size - 1, 2 * self.size - 1, 3)

    @property
    def coordinates(self) -> np.ndarray:
        """`[num_cells, 2]` int32: each cell's row and column in the observation, row by row."""
        side = np.arange(2 * self.size - 1)
        diagonal = side[:, None] + side - (self.size - 1)
        inside = (diagonal >= 0) & (diagonal <= 2 * (self.size - 1))
        return np.argwhere(inside).astype(np.int32)

    @compiled
    def init(self, key: chex.PRNGKey | None = None) -> YavalathState:
        """Returns the empty board; Yavalath has no chance, so the key is not used."""
        del key
        return YavalathState(
            board=jnp.zeros(self.num_cells, jnp.int8),
            current_player=jnp.int32(0),
            rewards=jnp.zeros(2, jnp.float32),
            terminated=jnp.bool_(False),
        )

    @compiled
    def step(self, state: YavalathState, action: chex.Array) -> YavalathState:
        """Plays one action.

        Args:
          state: a position, unbatched.
          action: `[]` integer in `[0, num_actions)`.

        Returns:
          The next position. A finished game does not change and has zero rewards. An illegal action
          (also one out of range) loses the game at once, as in pgx, and does not place a stone.
        """
        action = jnp.asarray(action, jnp.int32)
        mover, board = state.current_player, state.board
        own = jnp.where(mover == 0, 1, -1).astype(jnp.int8)
        legal = (action >= 0) & (action < self.num_cells) & (board[action] == 0)
        # The bounds checks that indexing adds by default are slow on XLA's CPU backend.
        around = jnp.asarray(_lines(self)).at[action].get(mode="clip")
        mine = board.at[around].get(mode="promise_in_bounds") == own
        # [3 lines, 2 ways]: whether the cells 1, 2 and 3 steps away continue the row without a gap.
        first = mine[..., 0]
        second = first & mine[..., 1]
        third = second & mine[..., 2]
        steps = jnp.stack([first, second, third])
        # The length of the row on each line: both ways, and the new stone.
        length = 1 + jnp.sum(steps, axis=(0, 2), dtype=jnp.int8)
        four = jnp.any(length >= 4)
        # A stone that makes four on one line and three on another wins.
        three = jnp.any(length == 3) & ~four
        number = jnp.arange(self.num_cells, dtype=jnp.int32)
        placed = jnp.where(number == action, own, board)

        playing = ~state.terminated
        won = playing & legal & four
        lost = playing & (~legal | three)
        # On a full board that nobody has won or lost, the game ends with rewards of 0.
        full = playing & legal & jnp.all(placed != 0)
        outcome = won.astype(jnp.float32) - lost.astype(jnp.float32)
        sign = jnp.where(mover == 0, outcome, -outcome)
        return YavalathState(
            board=jnp.where(playing & legal, placed, board),
            current_player=jnp.where(playing, 1 - mover, mover),
            rewards=sign * jnp.array([1.0, -1.0], jnp.float32),
            terminated=state.terminated | won | lost | full,
        )

    @compiled
    def observe(self, state: YavalathState) -> chex.Array:
        """Returns `[2 * size - 1, 2 * size - 1, 3]` float32 planes from the mover's view."""
        own = jnp.where(state.current_player == 0, state.board, -state.board)
        planes = jnp.stack([own == 1, own == -1, own == 0], axis=-1).astype(jnp.float32)
        return self._embed(planes)

    def symmetries(self, observation: chex.Array, policy: chex.Array) -> list[tuple]:
        """Lists the equivalent forms of an observation and a policy.

        Args:
          observation: `[..., 2 * size - 1, 2 * size - 1, planes]`.
          policy: `[..., A]`.

        Returns:
          Twelve pairs `(observation, policy)`, the given one first: the rotations by 60 degrees and
          their mirror images.
        """
        rows, columns = self.coordinates.T
        planes = observation[..., rows, columns, :]
        # The first symmetry is the identity, for which the arguments themselves are returned.
        pairs = [(self._embed(planes[..., order, :]), policy[..., order]) for order in _turns(self)]
        return [(observation, policy), *pairs[1:]]

    def render(self, state: YavalathState) -> str:
        """Draws one position as text; see `jaxpgs.envs.render.yavalath_text`."""
        from jaxpgs.envs import render

        return render.yavalath_text(self, state)

    def _embed(self, planes: chex.Array) -> chex.Array:
        """Puts planes `[..., num_cells, P]` into the array of rows and columns, 0 off the board."""
        index = jnp.asarray(_index(self))
        return planes.at[..., index, :].get(mode="fill", fill_value=0)


@functools.cache
def _index(env: Yavalath) -> np.ndarray:
    """`[2 * size - 1, 2 * size - 1]` int32 numbers of the cells; `num_cells` off the board."""
    index = np.full(env.observation_shape[:2], env.num_cells, np.int32)
    index[tuple(env.coordinates.T)] = np.arange(env.num_cells)
    return index


@functools.cache
def _lines(env: Yavalath) -> np.ndarray:
    """`[num_cells, 3, 2, 3]` int32: on each line the cells 1, 2, 3 steps away, either way.

    Cells beyond the edge are replaced by the cell itself, which is empty before a legal move.
    """
    steps = np.array([1, -1])[:, None] * np.arange(1, 4)
    offsets = steps[:, :, None] * _DIRECTIONS[:, None, None]
    # Three cells of margin, so that no index leaves the array.
    index = np.pad(_index(env), 3, constant_values=env.num_cells)
    lines = index[tuple(np.moveaxis(env.coordinates[:, None, None, None] + 3 + offsets, -1, 0))]
    itself = np.arange(env.num_cells, dtype=np.int32)[:, None, None, None]
    return np.where(lines == env.num_cells, itself, lines)


@functools.cache
def _turns(env: Yavalath) -> tuple[np.ndarray, ...]:
    """The permutations of the cells, `[num_cells]` each, for the twelve symmetries."""
    # Three coordinates that sum to 0: a symmetry permutes them, and may change all signs.
    row, column = (env.coordinates - (env.size - 1)).T
    cube = np.stack([row, column, -row - column])
    return tuple(
        _index(env)[sign * cube[first] + env.size - 1, sign * cube[second] + env.size - 1]
        for sign in (1, -1)
        for first, second, _ in itertools.permutations(range(3))
    )
