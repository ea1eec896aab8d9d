"""SameGame on boards of any width and up to 32 rows, as pure functions on a frozen state.

A group is two or more blocks of one colour that touch at their sides. A move removes one group and
earns (n-2)^2 for its n blocks. The blocks above fall down, and empty columns close to the left.
The game ends when no group is left: with +1000 if the board is empty, else with a penalty for the
remaining blocks. The literature uses three penalties.

The board is stored as bit planes, a word for each column (see `jaxpgs.envs.bitboard`). A flood that
fills whole columns at once finds all blocks of a group, for all boards of a batch together. `step`
floods one group; only `legal_action_mask` has to compute all groups.

| version | change |
| --- | --- |
| 1 | first |
"""

import dataclasses
import functools
import importlib.resources
import json
from typing import Literal, get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.envs import bitboard
from jaxpgs.envs.compiling import compiled

VERSION = 1
CLEARED = 1000.0  # the reward for an empty board
MAX_COLORS = 127
Penalty = Literal["per_color", "total", "none"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SameGameState:
    """A SameGame position. Leading batch axes may be added by `jax.vmap`.

    Attributes:
      planes: `[P, W]` unsigned: bit planes of the colours, in columns; see `SameGame.board`.
      current_player: `[]` int32, always 0.
      rewards: `[1]` float32, what the last step earned; over a game they sum to the score.
      terminated: `[]` bool: no group is left.
      height: the number of rows, static.

    Example:
      >>> state = jaxpgs.envs.SameGame(3, 4, num_colors=2).init(jax.random.key(0))
      >>> state.rewards, state.terminated
      (Array([0.], dtype=float32), Array(False, dtype=bool))
    """

    planes: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array
    height: int = dataclasses.field(metadata={"static": True})

    @property
    def legal_action_mask(self) -> chex.Array:
        """`[A]` bool: one cell for each group, the lowest of its leftmost cells."""
        return _legal_action_mask(self)


@dataclasses.dataclass(frozen=True)
class SameGame:
    """The puzzle SameGame.

    | | |
    | --- | --- |
    | actions | `height * width` cells, row-major, row 0 the top; any cell of a group plays it |
    | observation | `[height, width, num_colors + 1]` float32: a plane for each colour, then empty |
    | reward | `(n - 2)**2` for n blocks; at the end +1000 for an empty board, else the penalty |

    The penalty is the sum over the colours that are left of `(blocks left - 2)**2` ("per_color";
    Seify 2020, section 2.1.3), `(all blocks left - 2)**2` ("total"; js-games.de) or nothing
    ("none", common in work on nested searches). The observation is that of Seify 2020, section
    5.4.1, without the border of zeros, which the network adds. Colours can be exchanged
    (`permute_colors`); the board cannot be mirrored, since columns close to the left.

    Args:
      height: rows, 1 to 32.
      width: columns, at least 1.
      num_colors: the number of colours, 1 to 127.
      penalty: "per_color", "total" or "none".

    Raises:
      ValueError: if an argument is none of these.

    Example:
      >>> env = jaxpgs.envs.SameGame(3, 4, num_colors=2)
      >>> state = env.init(jax.random.key(0))
      >>> env.board(state)
      Array([[1, 0, 0, 1],
             [1, 1, 0, 1],
             [1, 1, 0, 0]], dtype=int8)
    """

    height: int = 15
    width: int = 15
    num_colors: int = 5
    penalty: Penalty = "per_color"

    def __post_init__(self) -> None:
        for name, most in (("height", bitboard.MAX_HEIGHT), ("width", None),
                           ("num_colors", MAX_COLORS)):  # fmt: skip
            value = getattr(self, name)
            if type(value) is not int or value < 1 or (most and value > most):
                allowed = f"from 1 to {most}" if most else "of at least 1"
                raise ValueError(f"SameGame needs an integer {name} {allowed}, got {value!r}.")
        if self.penalty not in get_args(Penalty):
            raise ValueError(
                f"SameGame's penalty is one of {get_args(Penalty)}, got {self.penalty!r}."
            )

    @property
    def num_players(self) -> int:
        """Always 1."""
        return 1

    @property
    def num_actions(self) -> int:
        """The number of actions A: the cells."""
        return self.height * self.width

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """The shape of one observation."""
        return (self.height, self.width, self.num_colors + 1)

    @compiled
    def init(self, key: chex.PRNGKey) -> SameGameState:
        """Returns a full board of colours drawn independently and uniformly.

        A small board may have no group; the game is then over at the start, without a reward.
        """
        shape = (self.height, self.width)
        return _state(self, jax.random.randint(key, shape, 0, self.num_colors))

    @compiled
    def step(self, state: SameGameState, action: chex.Array) -> SameGameState:
        """Plays one action.

        Args:
          state: a position, unbatched.
          action: `[]` integer in `[0, num_actions)`: any cell of a group.

        Returns:
          The next position. An illegal action (an empty cell, a block without a group or a number
          out of range) changes nothing and earns nothing, like every action after the end.
        """
        action = jnp.asarray(action, jnp.int32)
        width = jnp.int32(self.width)
        row, column = jax.lax.div(action, width), jax.lax.rem(action, width)
        # Actions out of range get a column off the board: words may have room for further rows.
        column = jnp.where((action >= 0) & (action < self.num_actions), column, width)
        dtype = state.planes.dtype
        bit = jnp.ones((), dtype) << (self.height - 1 - row).astype(dtype)
        seed = jnp.where(jnp.arange(self.width, dtype=jnp.int32) == column, bit, dtype.type(0))
        planes, reward, over = bitboard.batch_last(self._play)(state.planes, seed)
        return dataclasses.replace(state, planes=planes, rewards=reward[None], terminated=over)

    @compiled
    def observe(self, state: SameGameState) -> chex.Array:
        """Returns `[height, width, num_colors + 1]` float32 planes: the colours, then empty."""
        # [height, width, num_colors + 1]: each cell is compared with every colour, and with -1.
        order = np.append(np.arange(self.num_colors), -1).astype(np.int8)
        return (self.board(state)[..., None] == order[None, None]).astype(jnp.float32)

    @compiled
    def board(self, state: SameGameState) -> chex.Array:
        """Returns the colours `[height, width]` int8, 0 to `num_colors - 1`; empty cells hold -1.

        This is the format that `from_board` takes.
        """
        bits = bitboard.unpack(jnp.moveaxis(state.planes, 0, 1), self.height)
        # Planes hold the binary digits of colour + 1, so an empty cell becomes -1. int8 is wide
        # enough, as there are at most 127 colours.
        weights = np.left_shift(1, np.arange(bits.shape[2])).astype(np.int8)[None, None]
        return jnp.sum(bits.astype(jnp.int8) * weights, axis=2, dtype=jnp.int8) - jnp.int8(1)

    @compiled
    def group_labels(self, state: SameGameState) -> chex.Array:
        """Labels each cell with the action that removes its group.

        Args:
          state: a position, unbatched.

        Returns:
          `[A]` int32: the legal action of the cell's group, -1 for blocks without a group and
          empty cells.
        """
        planes, height = state.planes, self.height
        digits = bitboard.batch_last(_representative_digits)(planes)

        def append(code: chex.Array, digit: chex.Array) -> tuple[chex.Array, None]:
            return 2 * code + bitboard.unpack(digit, height).astype(jnp.int32), None

        # If it were unrolled, XLA's CPU backend would fuse it without vector instructions.
        code, _ = jax.lax.scan(append, jnp.zeros((height, self.width), jnp.int32), digits)
        # The code is the column, followed by the height above the bottom.
        low = (8 * planes.dtype.itemsize - 1).bit_length()
        row = height - 1 - (code & ((1 << low) - 1))
        grouped = bitboard.unpack(bitboard.linked(*bitboard.links(planes)), height)
        return jnp.where(grouped, row * self.width + (code >> low), -1).reshape(-1)

    @compiled
    def policy_logits(self, state: SameGameState, logits: chex.Array) -> chex.Array:
        """Maps a network's logits of all cells to logits of the legal actions.

        The probability of a group is the sum over its cells (Seify 2020, section 5.4.2).

        Args:
          state: a position, unbatched.
          logits: `[A]` float.

        Returns:
          `[A]` logits; actions that are not legal hold the lowest float.
        """
        labels, cells = self.group_labels(state), self.num_actions
        # Cells without a group get an extra segment at the end.
        labels = jnp.where(labels < 0, cells, labels)
        # A group's logit is the log-sum-exp of its cells' logits. The largest one is subtracted so
        # that no exponential overflows; it cancels in the gradient.
        largest = jax.ops.segment_max(jax.lax.stop_gradient(logits), labels, cells + 1)
        share = jax.ops.segment_sum(jnp.exp(logits - largest[labels]), labels, cells + 1)[:-1]
        # A legal action's share is at least 1, from its largest cell. Of the other actions, whose
        # share is 0, logarithms would be infinite and gradients NaN, although `where` drops them.
        legal = share > 0
        joined = jnp.log(jnp.where(legal, share, 1)) + jnp.where(legal, largest[:-1], 0)
        return jnp.where(legal, joined, jnp.finfo(logits.dtype).min)

    @compiled
    def network_policy(self, state: SameGameState, policy: chex.Array) -> chex.Array:
        """Spreads the probability of each group evenly over its cells, as a target for a network.

        Args:
          state: a position, unbatched.
          policy: `[A]` probabilities of the legal actions; entries of other actions are ignored.

        Returns:
          `[A]` probabilities of the cells; their sums over groups, as in `policy_logits`, are the
          given probabilities.
        """
        labels = self.group_labels(state)
        place = jnp.where(labels < 0, self.num_actions, labels)
        sizes = jax.ops.segment_sum(jnp.ones_like(policy), place, self.num_actions + 1)
        # A label of -1 reads the last entry, which is dropped.
        return jnp.where(labels < 0, 0, policy[labels] / sizes[place])

    @compiled
    def permute_colors(self, key: chex.PRNGKey, observation: chex.Array) -> chex.Array:
        """Exchanges the colours at random, which changes neither policy nor value.

        Args:
          key: consumed.
          observation: `[..., height, width, num_colors + 1]`; all get the same permutation.

        Returns:
          The observation with its colour planes permuted.
        """
        order = jax.random.permutation(key, self.num_colors)
        return jnp.concatenate([observation[..., order], observation[..., -1:]], axis=-1)

    @compiled
    def mirror(self, state: SameGameState, action: chex.Array) -> tuple[SameGameState, chex.Array]:
        """Exchanges left and right, which changes neither policy nor value.

        The mirror image's columns close to the left too, but this does not affect which blocks
        touch.

        Args:
          state: a position, unbatched.
          action: `[]` a legal action.

        Returns:
          The mirrored position, and the legal action that removes the same group there.
        """
        occupied = bitboard.occupied(state.planes) != 0
        # Only the filled columns change places, since the empty ones must stay on the right.
        last = jnp.sum(occupied, dtype=jnp.int32) - 1
        column = jnp.arange(self.width, dtype=jnp.int32)
        other = jnp.where(column <= last, last - column, column)
        mirrored = dataclasses.replace(state, planes=state.planes[:, other])
        cell = action - action % self.width + other[action % self.width]
        # A group's legal action is its leftmost block, which is another block after mirroring.
        label = self.group_labels(mirrored)[cell]
        return mirrored, jnp.where(label < 0, action, label)

    def from_board(self, board: chex.ArrayNumpy) -> SameGameState:
        """Builds a position from colours.

        Args:
          board: `[height, width]` integers: 0 to `num_colors - 1`, and -1 for empty cells.

        Returns:
          The position with zero rewards, terminated if it holds no group.

        Raises:
          ValueError: if the shape or a value is wrong, the board is empty, a block has an empty
            cell below it, or an empty column has blocks to its right.
        """
        colors = np.asarray(board)
        if colors.shape != (self.height, self.width):
            raise ValueError(
                f"SameGame board must have shape {(self.height, self.width)}, got {colors.shape}."
            )
        if not np.isin(colors, np.arange(-1, self.num_colors)).all():
            raise ValueError(
                f"SameGame board must hold -1 (empty) and colours from 0 to {self.num_colors - 1} "
                f"only, got {np.unique(colors)}."
            )
        blocks = colors >= 0
        if not blocks.any():
            raise ValueError("SameGame board must hold a block, got none.")
        if (blocks[:-1] & ~blocks[1:]).any():
            raise ValueError("SameGame blocks fall: no empty cell may be below a block.")
        if (~blocks[-1, :-1] & blocks[-1, 1:]).any():
            raise ValueError("SameGame columns close: none may be empty to the left of a block.")
        return _state(self, jnp.asarray(colors, jnp.int32))

    def end_reward(self, planes: chex.Array) -> chex.Array:
        """Returns the reward for ending a game with this board.

        Args:
          planes: `[P, W, ...]` a board, with any batch axes last.

        Returns:
          `[...]` float32: +1000 for the empty board, else the penalty, not positive.
        """
        blocks = bitboard.occupied(planes)
        left = bitboard.count(blocks)
        penalty = jnp.zeros_like(left)
        if self.penalty == "total":
            penalty = jnp.square(left - 2)
        elif self.penalty == "per_color":
            for color in range(self.num_colors):
                of_color = bitboard.count(bitboard.where_color(planes, color))
                penalty += jnp.where(of_color > 0, jnp.square(of_color - 2), 0)
        return jnp.where(left == 0, CLEARED, -penalty.astype(jnp.float32))

    def render(
        self,
        state: SameGameState,
        policy: chex.ArrayNumpy | None = None,
        *,
        format: str = "text",
    ) -> str:
        """Draws one position; see `jaxpgs.envs.samegame.svg`.

        Args:
          state: a position, unbatched.
          policy: optional `[A]` probabilities of the legal actions to show on their groups.
          format: `"text"` or `"svg"`.

        Returns:
          The drawing as a string.

        Raises:
          ValueError: if the format is unknown, the state is batched or the policy's shape is wrong.
        """
        from jaxpgs.envs.samegame import svg

        if format not in ("text", "svg"):
            raise ValueError(f'SameGame renders as "text" or "svg", got {format!r}.')
        draw = svg.samegame_text if format == "text" else svg.samegame_svg
        return draw(self, state, policy)

    def _play(
        self, planes: chex.Array, seed: chex.Array
    ) -> tuple[chex.Array, chex.Array, chex.Array]:
        """Removes the group of a seed `[W, ...]`, with any batch axes last.

        Returns:
          The planes, the reward `[...]`, and whether no group is left `[...]`.
        """
        # A seed on an empty cell or on a single block floods nothing: the move removes no block.
        up, left = bitboard.links(planes)
        group = bitboard.flood(seed & bitboard.linked(up, left), up, left)
        size = bitboard.count(group)
        planes = bitboard.remove(planes, group)
        over = ~bitboard.has_group(planes)
        reward = jnp.square(size - 2).astype(jnp.float32)
        reward += jnp.where(over, self.end_reward(planes), 0.0)
        return planes, jnp.where(size > 0, reward, 0.0), over

    def _state(self, colors: chex.Array) -> SameGameState:
        """Makes the state from a board `[height, width]` of colours and -1."""
        # 0 stands for an empty cell; see `bitboard`.
        codes = colors + 1
        num_planes = self.num_colors.bit_length()
        cells = [(codes >> p) & 1 for p in range(num_planes)]
        planes = jnp.stack([bitboard.pack(plane, self.height) for plane in cells])
        return SameGameState(
            planes=planes,
            current_player=jnp.int32(0),
            rewards=jnp.zeros(1, jnp.float32),
            terminated=~bitboard.has_group(planes),
            height=self.height,
        )


def standard_positions() -> np.ndarray:
    """Returns the 20 standard test positions, `[20, 15, 15]` int8 with 5 colours.

    They were first published on js-games.de; `SameGame().from_board` takes each of them.
    """
    file = importlib.resources.files("jaxpgs.envs") / "data" / "samegame20.json"
    return np.array(json.loads(file.read_text("utf-8"))["boards"], np.int8)


@functools.partial(jax.jit, static_argnums=0)
def _state(env: SameGame, colors: chex.Array) -> SameGameState:
    return env._state(colors)


@functools.partial(jax.jit, inline=True)  # as `compiled` does
def _legal_action_mask(state: SameGameState) -> chex.Array:
    # Under `jax.vmap` there are no batch axes here; a batch that is not mapped has some.
    planes = jnp.moveaxis(state.planes, (-2, -1), (0, 1))
    cells = bitboard.batch_last(functools.partial(_legal, state.height))(planes)
    return jnp.moveaxis(cells, 0, -1)


def _legal(height: int, planes: chex.Array) -> chex.Array:
    """Returns the legal actions `[A, ...]`, with any batch axes last."""
    first, _ = bitboard.representatives(*bitboard.links(planes))
    cells = bitboard.unpack(first, height)
    return cells.reshape((-1, *cells.shape[2:]))


def _representative_digits(planes: chex.Array) -> chex.Array:
    return bitboard.representatives(*bitboard.links(planes))[1]
