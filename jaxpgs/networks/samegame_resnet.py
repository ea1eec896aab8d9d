"""A network for SameGame that is invariant to colours and fits boards of any size."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxpgs.networks.layers.convolution import same_convolution
from jaxpgs.networks.layers.heads import PolicyHead, ValueHead
from jaxpgs.networks.layers.sizes import check_observation, check_sizes


class SameGameResNet(nnx.Module):
    """Policy and value from residual convolutions over which neighbours share a cell's colour.

    The colours themselves are not inputs; the inputs are which of the surrounding cells have the
    same colour, and how many blocks of it are left. So the network is invariant to permutations of
    the colours, which the network of Seify 2020 has to learn from examples. Every cell's logit
    comes from the same weights, so weights of a small board can be used on a large one.

    A board is cleared colour by colour, for which all blocks of a colour have to meet, wherever
    they are. So after the first convolution of each residual block, every cell receives the mean
    and the sum over the cells of its colour, and the mean and the maximum over the board.

    `torso` maps observations to features `[B, cells, num_filters]`; `policy_head` and `value_head`
    map these to the outputs. Weights and both heads are float32 whatever `dtype` is. Keyword
    arguments are kept as attributes of the same names, so that the network can be rebuilt.

    Args:
      observation_shape: `(height, width, planes)`, without the batch axis: a plane for each
        colour, then the empty cells.
      num_actions: A, which must be the number of cells.
      num_filters: planes of every layer.
      num_blocks: residual blocks, each of two 3x3 convolutions.
      radius: the distance, in rows and columns, up to which a cell sees cells of its colour.
      value_scale: the factor of the value head's output, about the size of a score.
      dtype: the type in which the torso computes, such as "float32" or "bfloat16".
      rngs: random keys for the initial weights.

    Raises:
      ValueError: if the observation does not have three axes, the number of actions is not that of
        the cells, or a size is out of range.

    Example:
      >>> puzzle = jaxpgs.envs.SameGame(4, 4, num_colors=3)
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> network(puzzle.observe(puzzle.init(rng_key))[None])[0].shape
      (1, 16)
    """

    is_torso_and_heads = True  # see `networks.functional`

    def __init__(
        self,
        observation_shape: Sequence[int],
        num_actions: int,
        *,
        num_filters: int = 32,
        num_blocks: int = 2,
        radius: int = 2,
        value_scale: float = 300.0,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_sizes("SameGameResNet", num_filters=num_filters, num_blocks=num_blocks, radius=radius)
        self.observation_shape = tuple(observation_shape)
        if len(self.observation_shape) != 3 or self.observation_shape[2] < 2:
            raise ValueError(
                "SameGameResNet needs observations of shape (height, width, planes) with 2 planes "
                f"or more, got {self.observation_shape}."
            )
        cells = self.observation_shape[0] * self.observation_shape[1]
        if num_actions != cells:
            raise ValueError(
                f"SameGameResNet has a logit for each cell, here {cells}, got "
                f"num_actions={num_actions}."
            )
        self.num_filters, self.num_blocks, self.radius = num_filters, num_blocks, radius
        self.value_scale = value_scale
        self.dtype = jnp.dtype(dtype).name
        self.torso = _Torso(
            self.observation_shape, num_filters, num_blocks, radius, dtype=dtype, rngs=rngs
        )
        self.policy_head = PolicyHead(
            num_filters,
            num_actions,
            num_hidden=num_filters,
            per_cell=True,
            activation=jax.nn.elu,
            rngs=rngs,
        )
        self.value_head = ValueHead(
            num_filters,
            num_hidden=64,
            pooled=True,
            scale=value_scale,
            activation=jax.nn.elu,
            rngs=rngs,
        )

    def __call__(self, observation: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Evaluates a batch of observations.

        Args:
          observation: `[B, height, width, planes]`, of any real type.

        Returns:
          Logits `[B, A]` and values `[B]`, of any size, both float32.

        Raises:
          ValueError: if the observation has another shape.
        """
        features = self.torso(observation)
        return self.policy_head(features), self.value_head(features)


def color_relations(observation: chex.Array, radius: int) -> chex.Array:
    """Computes for every cell which others share its colour, without revealing the colour.

    Args:
      observation: `[B, height, width, planes]`: a plane for each colour, then the empty cells.
      radius: R, how far a cell sees, in rows and columns.

    Returns:
      `[B, height, width, (2 R + 1)^2 + 7]`: whether each of the surrounding cells has the same
      colour; then the colour's share of the board, the square root of it, whether it has 1, 2 or 3
      blocks left, whether the cell is filled, the share of filled cells, and a plane of ones, which
      shows the edges.
    """
    height, width = observation.shape[1:3]
    colors = observation[..., :-1]
    # Beyond the board and in empty cells all planes are 0, so nothing has the same colour there.
    padded = jnp.pad(colors, [(0, 0), (radius, radius), (radius, radius), (0, 0)])
    middle = 2 * radius * (radius + 1)
    offsets = [(r, c) for r in range(2 * radius + 1) for c in range(2 * radius + 1)]
    # The product of one-hot colours is 1 where they are equal. The cell itself is excluded.
    same = [
        jnp.sum(colors * padded[:, r : r + height, c : c + width], axis=-1)
        for i, (r, c) in enumerate(offsets)
        if i != middle
    ]
    # [B, height, width]: how many blocks of a cell's colour the board holds, 0 for empty cells.
    count = jnp.sum(colors * jnp.sum(colors, axis=(1, 2), keepdims=True), axis=-1)
    share = count / (height * width)
    few = [(count == n).astype(count.dtype) for n in (1, 2, 3)]
    block = jnp.sum(colors, axis=-1)
    left = jnp.broadcast_to(jnp.mean(block, axis=(1, 2), keepdims=True), block.shape)
    # Convolutions pad with zeros, so a plane of ones shows where the board ends.
    edges = jnp.ones_like(block)
    return jnp.stack([*same, share, jnp.sqrt(share), *few, block, left, edges], axis=-1)


class _Torso(nnx.Module):
    def __init__(
        self,
        observation_shape: tuple[int, ...],
        filters: int,
        num_blocks: int,
        radius: int,
        *,
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.observation_shape, self.radius = observation_shape, radius
        self.dtype = jnp.dtype(dtype)
        planes = (2 * radius + 1) ** 2 + 7
        self.stem = nnx.Conv(
            planes, filters, (3, 3), dtype=self.dtype, conv_general_dilated=same_convolution,
            rngs=rngs,
        )  # fmt: skip
        self.blocks = nnx.List(
            [_Block(filters, dtype=self.dtype, rngs=rngs) for _ in range(num_blocks)]
        )

    def __call__(self, observation: chex.Array) -> chex.Array:
        check_observation(observation, self.observation_shape)
        observation = observation.astype(self.dtype)
        colors = observation[..., :-1].reshape(len(observation), -1, observation.shape[-1] - 1)
        x = jax.nn.elu(self.stem(color_relations(observation, self.radius)))
        for block in self.blocks:
            x = block(x, colors)
        return jax.nn.elu(x).reshape(len(x), -1, x.shape[-1])


# Sums over the blocks of a colour are divided by about their number on a small board.
_BLOCKS = 8


class _Block(nnx.Module):
    def __init__(self, filters: int, *, dtype: jax.typing.DTypeLike, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(
            filters, filters, (3, 3), dtype=dtype, conv_general_dilated=same_convolution, rngs=rngs
        )
        self.whole = nnx.Linear(2 * filters, filters, dtype=dtype, rngs=rngs)
        self.color = nnx.Linear(2 * filters, filters, dtype=dtype, rngs=rngs)
        # A block begins as the identity.
        self.second = nnx.Conv(
            filters, filters, (3, 3), kernel_init=nnx.initializers.zeros, dtype=dtype,
            conv_general_dilated=same_convolution, rngs=rngs,
        )  # fmt: skip

    def __call__(self, x: chex.Array, colors: chex.Array) -> chex.Array:
        y = jax.nn.elu(self.first(x))
        # Pooling over the board, and over each colour's cells p: [B, colours c, filters f].
        whole = jnp.concatenate([jnp.mean(y, axis=(1, 2)), jnp.max(y, axis=(1, 2))], axis=-1)
        total = jnp.einsum("bpc,bpf->bcf", colors, y.reshape(len(y), -1, y.shape[-1]))
        mean = total / jnp.maximum(jnp.sum(colors, axis=1), 1)[..., None]
        color = self.color(jnp.concatenate([mean, total / _BLOCKS], axis=-1))
        # Every cell receives the pool of its own colour; empty cells receive zeros.
        color = jnp.einsum("bpc,bcf->bpf", colors, color).reshape(y.shape)
        return x + self.second(jax.nn.elu(y + color + self.whole(whole)[:, None, None]))
