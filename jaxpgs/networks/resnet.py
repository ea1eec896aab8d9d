"""The residual convolutional network of AlphaZero."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxpgs.networks.layers.convolution import same_convolution
from jaxpgs.networks.layers.heads import PolicyHead, ValueHead, make_norm
from jaxpgs.networks.layers.sizes import check_blocks, check_board, check_observation, check_sizes


class AlphaZeroResNet(nnx.Module):
    """Policy and value from a residual tower of 3x3 convolutions (Silver et al. 2017).

    The torso is a convolution and `num_blocks` blocks of two, each with batch normalisation. The
    policy head is a 1x1 convolution to 2 planes and a linear layer, the value head a 1x1
    convolution to 1 plane and two linear layers. The defaults are those of Anthony et al. 2019,
    "Policy Gradient Search".

    `torso` maps observations to features; `policy_head` and `value_head` map these to the outputs.
    Weights, batch statistics and both heads are float32 whatever `dtype` is. Keyword arguments are
    kept as attributes of the same names, so that the network can be rebuilt from saved weights.

    Args:
      observation_shape: `(height, width, planes)`, without the batch axis.
      num_actions: A, the number of logits.
      num_filters: number of planes in the torso.
      num_blocks: number of residual blocks, 0 or more.
      value_hidden: width of the value head's hidden layer.
      dtype: the type in which the torso computes, such as "float32" or "bfloat16".
      rngs: random keys for the initial weights.

    Raises:
      ValueError: if the observation does not have three axes, or a size is not positive.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> network = jaxpgs.networks.AlphaZeroResNet(env.observation_shape, env.num_actions, **sizes)
      >>> logits, value = network(jax.vmap(env.observe)(states))
      >>> logits.shape, value.shape
      ((2, 9), (2,))
    """

    is_torso_and_heads = True  # see `networks.functional`

    def __init__(
        self,
        observation_shape: Sequence[int],
        num_actions: int,
        *,
        num_filters: int = 256,
        num_blocks: int = 19,
        value_hidden: int = 256,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_sizes(
            "AlphaZeroResNet",
            num_actions=num_actions,
            num_filters=num_filters,
            value_hidden=value_hidden,
        )
        check_blocks("AlphaZeroResNet", num_blocks)
        self.observation_shape = check_board("AlphaZeroResNet", observation_shape)
        self.num_filters, self.num_blocks = num_filters, num_blocks
        self.value_hidden = value_hidden
        self.dtype = jnp.dtype(dtype).name
        height, width, _ = self.observation_shape
        self.torso = _Torso(self.observation_shape, num_filters, num_blocks, dtype=dtype, rngs=rngs)
        cells = height * width
        self.policy_head = PolicyHead(
            num_filters, num_actions, num_planes=2, num_cells=cells, rngs=rngs
        )
        self.value_head = ValueHead(
            num_filters, num_planes=1, num_cells=cells, num_hidden=value_hidden, rngs=rngs
        )

    def __call__(self, observation: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Evaluates a batch of observations.

        Args:
          observation: `[B, height, width, planes]`, of any real type.

        Returns:
          Logits `[B, A]` and values `[B]` in [-1, 1], both float32.

        Raises:
          ValueError: if the observation has another shape.
        """
        features = self.torso(observation)
        return self.policy_head(features), self.value_head(features)


class ConvNorm(nnx.Module):
    """A convolution that keeps the board's size, and a normalisation.

    Args:
      inputs: planes in.
      outputs: planes out.
      kernel: its width and height, odd.
      norm: how planes are normalised, "batch" or "layer"; see `heads.make_norm`.
      dtype: type to compute in; the statistics are float32 in any case.
      rngs: random keys for the initial weights.
    """

    # A normalisation has its own bias, so no convolution here has one.
    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int = 3,
        norm: str = "batch",
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.conv = nnx.Conv(
            inputs, outputs, (kernel, kernel), use_bias=False, dtype=dtype,
            conv_general_dilated=same_convolution, rngs=rngs,
        )  # fmt: skip
        self.norm = make_norm(norm, outputs, rngs)

    def __call__(self, x: chex.Array) -> chex.Array:
        """Returns planes `[B, height, width, outputs]`."""
        # Statistics in bfloat16 are too imprecise; XLA fuses the casts away.
        return self.norm(self.conv(x).astype(jnp.float32)).astype(x.dtype)


class _Block(nnx.Module):
    def __init__(self, filters: int, *, dtype: jax.typing.DTypeLike, rngs: nnx.Rngs) -> None:
        self.first = ConvNorm(filters, filters, dtype=dtype, rngs=rngs)
        self.second = ConvNorm(filters, filters, dtype=dtype, rngs=rngs)

    def __call__(self, x: chex.Array) -> chex.Array:
        # As in He et al. 2016: the second normalisation comes before the sum, the ReLU after it.
        return jax.nn.relu(x + self.second(jax.nn.relu(self.first(x))))


class _Torso(nnx.Module):
    def __init__(
        self,
        observation_shape: tuple[int, ...],
        filters: int,
        num_blocks: int,
        *,
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.observation_shape = observation_shape
        self.dtype = jnp.dtype(dtype)
        self.embed = ConvNorm(observation_shape[-1], filters, dtype=self.dtype, rngs=rngs)
        self.blocks = nnx.List(
            [_Block(filters, dtype=self.dtype, rngs=rngs) for _ in range(num_blocks)]
        )

    def __call__(self, observation: chex.Array) -> chex.Array:
        check_observation(observation, self.observation_shape)
        x = jax.nn.relu(self.embed(observation.astype(self.dtype)))
        for block in self.blocks:
            x = block(x)
        return x
