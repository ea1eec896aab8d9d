"""Hex on an n x n rhombus, as pure functions on a frozen state.

Cell `r * n + c` touches `(r, c-1), (r, c+1), (r-1, c), (r+1, c), (r-1, c+1), (r+1, c-1)`. Player 0
moves first and connects row 0 with row n-1; player 1 connects column 0 with column n-1.

Wins are detected incrementally. Every stone carries the label of its connected group; two labels
are reserved for groups that touch a player's low edge (row 0 or column 0) and high edge. A move
merges the groups around it in one fused comparison over the board, so its cost does not depend on
the number of stones. A move wins when it joins a low group with a high group.

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
MIN_SIZE, MAX_SIZE = 2, 19
NEIGHBOURS = ((0, -1), (0, 1), (-1, 0), (1, 0), (-1, 1), (1, -1))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HexState:
    """A Hex position. Leading batch axes may be added by `jax.vmap`.

    Attributes:
      labels: `[n*n]` int16. 0 is an empty cell; the sign shows the owner (positive: player 0) and
        the magnitude identifies the connected group.
      current_player: `[]` int32, the player to move: 0 or 1.
      rewards: `[2]` float32, what each player earned by the last step.
      terminated: `[]` bool.
      swap_legal: `[]` bool, or None where the game is played without the swap rule.

    Example:
      >>> state = jaxpgs.envs.Hex(3).init()
      >>> state.current_player, state.legal_action_mask.sum()
      (Array(0, dtype=int32), Array(9, dtype=int32))
    """

    labels: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array
    swap_legal: chex.Array | None

    @property
    def legal_action_mask(self) -> chex.Array:
        """`[A]` bool: the empty cells, then the swap if there is one; all False after the end."""
        legal = self.labels == 0
        if self.swap_legal is not None:
            legal = jnp.concatenate([legal, self.swap_legal[..., None]], axis=-1)
        return legal & ~self.terminated[..., None]


@dataclasses.dataclass(frozen=True)
class Hex:
    """The game of Hex.

    | | |
    | --- | --- |
    | actions | `n*n` cells, row-major, the same numbers for both players; `+1` for the swap |
    | observation | `[n, n, 3]` float32: own stones, other's stones, empty; `+1` plane: may swap |
    | reward | +1 to the winner, -1 to the loser, on the last step |

    The observation is from the mover's view. Player 1's board is transposed, so that both players
    connect top to bottom; `policy_logits` transposes a network's answer back.

    Args:
      size: board size n, 2 to 19.
      swap: whether player 1 may answer the first stone by taking it over. The stone then becomes
        player 1's, is mirrored across the long diagonal, and player 0 moves.

    Raises:
      ValueError: if `size` is not an integer from 2 to 19, or `swap` is not a bool.

    Example:
      >>> env = jaxpgs.envs.Hex(size=3)
      >>> state = env.step(env.init(), 4)
      >>> print(env.render(state))
           a b c
            x x x
         1 o . . . o
          2 o . X . o
           3 o . . . o
                x x x
      O player 1 to move
    """

    size: int = 11
    swap: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or not MIN_SIZE <= self.size <= MAX_SIZE:
            raise ValueError(
                f"Hex needs an integer size from {MIN_SIZE} to {MAX_SIZE}, got {self.size!r}."
            )
        if type(self.swap) is not bool:
            raise ValueError(f"Hex needs swap to be True or False, got {self.swap!r}.")

    @property
    def num_players(self) -> int:
        """Always 2."""
        return 2

    @property
    def num_cells(self) -> int:
        """The number of cells, `size**2`; also the number of the swap action."""
        return self.size**2

    @property
    def num_actions(self) -> int:
        """The number of actions A: the cells, and the swap if it is allowed."""
        return self.num_cells + self.swap

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """The shape of one observation."""
        return (self.size, self.size, 3 + self.swap)

    @compiled
    def init(self, key: chex.PRNGKey | None = None) -> HexState:
        """Returns the empty board; Hex has no chance, so the key is not used."""
        del key
        return HexState(
            labels=jnp.zeros(self.num_cells, jnp.int16),
            current_player=jnp.int32(0),
            rewards=jnp.zeros(2, jnp.float32),
            terminated=jnp.bool_(False),
            swap_legal=jnp.bool_(False) if self.swap else None,
        )

    @compiled
    def step(self, state: HexState, action: chex.Array) -> HexState:
        """Plays one action.

        Args:
          state: a position, unbatched.
          action: `[]` integer in `[0, num_actions)`.

        Returns:
          The next position. A finished game does not change and has zero rewards. An illegal action
          (also one out of range) loses the game at once, as in pgx, and does not place a stone.
        """
        n, cells = self.size, self.num_cells
        action = jnp.asarray(action, jnp.int32)
        mover = state.current_player
        # Indexing alone would clamp an action outside the board to the nearest one.
        legal = (action >= 0) & (action < self.num_actions) & state.legal_action_mask[action]
        cell = action
        if self.swap:
            # The cell of the only stone, counted from 1; 0 on the empty board. On XLA's CPU backend
            # a dot product takes a tenth of the time of an argmax or a sum.
            numbers = jnp.arange(1, cells + 1, dtype=jnp.int32)
            stone = jnp.dot((state.labels != 0).astype(jnp.int32), numbers)
            is_swap = action == cells
            size = jnp.int32(n)
            # With no stone or several the cell is meaningless, but then the swap is not legal.
            row, col = jax.lax.div(stone - 1, size), jax.lax.rem(stone - 1, size)
            cell = jnp.where(is_swap, col * n + row, action)
        placed, connected = self._place(state.labels, cell, mover)
        if self.swap:
            # The stone that is taken over is the opponent's, so `_place` did not merge with it.
            other = jnp.arange(cells, dtype=jnp.int16) != cell.astype(jnp.int16)
            placed = jnp.where(is_swap & other, jnp.int16(0), placed)

        playing = ~state.terminated
        lost = playing & ~legal
        won = playing & legal & connected
        outcome = won.astype(jnp.float32) - lost.astype(jnp.float32)
        # From the mover's view to player 0's, whose reward comes first.
        sign = jnp.where(mover == 0, outcome, -outcome)
        swap_legal = None
        if self.swap:
            # `stone` is from before the move, so 0 means that this move was the first.
            swap_legal = playing & legal & (stone == 0) & ~won
        return HexState(
            labels=jnp.where(playing & legal, placed, state.labels),
            current_player=jnp.where(playing, 1 - mover, mover),
            rewards=sign * jnp.array([1.0, -1.0], jnp.float32),
            terminated=state.terminated | won | lost,
            swap_legal=swap_legal,
        )

    @compiled
    def observe(self, state: HexState) -> chex.Array:
        """Returns `[n, n, 3 or 4]` float32 planes from the view of the player to move."""
        board = jnp.sign(state.labels).reshape(self.size, self.size)
        # The mover's stones become positive, and his edges top and bottom.
        board = jnp.where(state.current_player == 0, board, -board.T)
        planes = [board > 0, board < 0, board == 0]
        if state.swap_legal is not None:
            planes.append(jnp.broadcast_to(state.swap_legal, board.shape))
        return jnp.stack(planes, axis=-1).astype(jnp.float32)

    def policy_logits(self, state: HexState, logits: chex.Array) -> chex.Array:
        """Maps a network's logits `[A]` for `observe(state)` to logits `[A]` of the actions."""
        return self._mover_frame(state, logits)

    def network_policy(self, state: HexState, policy: chex.Array) -> chex.Array:
        """Maps a policy `[A]` over actions to the network's frame; undoes `policy_logits`."""
        return self._mover_frame(state, policy)

    def symmetries(self, observation: chex.Array, policy: chex.Array) -> list[tuple]:
        """Lists the equivalent forms of an observation and a policy in the network's frame.

        Args:
          observation: `[..., n, n, planes]`.
          policy: `[..., A]`.

        Returns:
          Pairs `(observation, policy)`: the given pair, and the pair rotated by 180 degrees.
        """
        # Reversed row-major cells are the board rotated by 180 degrees; the swap stays last.
        cells = jnp.flip(policy[..., : self.num_cells], axis=-1)
        turned = jnp.concatenate([cells, policy[..., self.num_cells :]], axis=-1)
        return [(observation, policy), (jnp.flip(observation, axis=(-3, -2)), turned)]

    def from_board(self, board: chex.ArrayNumpy, player: int | None = None) -> HexState:
        """Builds a position from stones; one side may have more of them, as with a handicap.

        Args:
          board: `[n, n]` integers: 0 empty, 1 a stone of player 0, 2 a stone of player 1.
          player: the player to move, 0 or 1. None selects the player with fewer stones, or player 0
            if both have equally many, as when players alternate.

        Returns:
          The position, terminated if one side is connected, with zero rewards. A swap is never
          legal in it.

        Raises:
          ValueError: if the shape, a value or the player is impossible.
        """
        stones = np.asarray(board)
        if stones.shape != (self.size, self.size):
            raise ValueError(f"Hex board must have shape {(self.size,) * 2}, got {stones.shape}.")
        if not np.isin(stones, (0, 1, 2)).all():
            raise ValueError(f"Hex board must hold 0, 1 and 2 only, got {np.unique(stones)}.")
        if player not in (None, 0, 1):
            raise ValueError(f"Hex has players 0 and 1, one of whom is to move; got {player!r}.")
        if player is None:
            player = int((stones == 1).sum() > (stones == 2).sum())
        labels = jnp.zeros(self.num_cells, jnp.int16)
        over = False
        # The order does not matter: a stone merges all groups around it in any order.
        for cell in np.flatnonzero(stones):
            owner = jnp.int32(stones.flat[cell] - 1)
            labels, connected = _place(self, labels, jnp.int32(cell), owner)
            over |= bool(connected)
        return dataclasses.replace(
            self.init(),
            labels=labels,
            current_player=jnp.int32(player),
            terminated=jnp.bool_(over),
        )

    def render(
        self,
        state: HexState,
        policy: chex.ArrayNumpy | None = None,
        *,
        format: str = "text",
    ) -> str:
        """Draws one position; see `jaxpgs.envs.render.hex_text` and `hex_svg`.

        Args:
          state: a position, unbatched.
          policy: optional `[A]` probabilities to show on the empty cells.
          format: `"text"` or `"svg"`.

        Returns:
          The drawing as a string.

        Raises:
          ValueError: if the format is unknown, the state is batched or the policy's shape is wrong.
        """
        from jaxpgs.envs import render

        if format not in ("text", "svg"):
            raise ValueError(f'Hex renders as "text" or "svg", got {format!r}.')
        draw = render.hex_text if format == "text" else render.hex_svg
        return draw(self, state, policy)

    def _mover_frame(self, state: HexState, x: chex.Array) -> chex.Array:
        """Transposes the cells of `[A]` for player 1; this is its own inverse."""
        cells = x[: self.num_cells].reshape(self.size, self.size)
        cells = jnp.where(state.current_player == 0, cells, cells.T).reshape(-1)
        return jnp.concatenate([cells, x[self.num_cells :]])

    def _place(
        self, labels: chex.Array, cell: chex.Array, player: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        """Puts a stone on an empty cell; returns the labels and whether it connected the edges."""
        n, cells = self.size, self.num_cells
        # Other groups have the number of one of their stones, 1 to `cells`. Groups at the same edge
        # share a label even if they are not connected: for a win they count as one.
        low, high = cells + 1, cells + 2
        sign = jnp.where(player == 0, 1, -1).astype(jnp.int16)
        size = jnp.int32(n)  # of the cell's type, whatever the default integer type is
        row, col = jax.lax.div(cell, size), jax.lax.rem(cell, size)
        # The stone's distance from the mover's low edge.
        position = jnp.where(player == 0, row, col)

        offsets = jnp.array(NEIGHBOURS, jnp.int32)
        rows, cols = row + offsets[:, 0], col + offsets[:, 1]
        inside = (rows >= 0) & (rows < n) & (cols >= 0) & (cols < n)
        # [6]: labels around the stone, positive where they are the mover's.
        around = labels[jnp.where(inside, rows * n + cols, 0)] * sign
        # Neighbours that are not in a group of the mover get a label that no cell has. Doing this
        # for six neighbours is cheaper than for every cell.
        around = jnp.where(inside & (around > 0), around, jnp.int16(cells + 3))
        touches_low = (position == 0) | jnp.any(around == low)
        touches_high = (position == n - 1) | jnp.any(around == high)
        # If the stone touches both edges the game is over, and the label does not matter.
        label = jnp.where(touches_low, low, jnp.where(touches_high, high, cell + 1))

        # All stones of the joined groups take the new label. A union-find would follow pointers,
        # in loops whose length differs between the games of a batch.
        merged = jnp.any(labels[:, None] == (around * sign)[None, :], axis=-1)
        # int16 like the labels: twice as many fit into a vector register as with int32.
        merged |= jnp.arange(cells, dtype=jnp.int16) == cell.astype(jnp.int16)
        placed = jnp.where(merged, label.astype(jnp.int16) * sign, labels)
        return placed, touches_low & touches_high


# Compiled once for all stones of `from_board`, which are placed one by one.
@functools.partial(jax.jit, static_argnums=0)
def _place(
    env: Hex, labels: chex.Array, cell: chex.Array, player: chex.Array
) -> tuple[chex.Array, chex.Array]:
    return env._place(labels, cell, player)
