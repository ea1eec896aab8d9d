"""A fully connected residual network, for small boards."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxpgs.networks.layers.heads import PolicyHead, ValueHead
from jaxpgs.networks.layers.sizes import check_blocks, check_observation, check_sizes


class FullyConnectedResNet(nnx.Module):
    """Policy and value from the flattened observation, with ReZero residual blocks.

    A block is `x + alpha * relu(W x + b)` with a learned scalar `alpha` that starts at 0
    (Bachlechner et al. 2020, "ReZero is All You Need"), so a deep network starts out as a shallow
    one and needs no normalisation. Jones 2021, "Scaling Scaling Laws with Board Games", uses such
    networks for Hex.

    `torso` maps observations to features; `policy_head` and `value_head` map these to the outputs.
    Weights and both heads are float32 whatever `dtype` is. Keyword arguments are kept as attributes
    of the same names, so that the network can be rebuilt from saved weights.

    Args:
      observation_shape: shape of one observation, without the batch axis.
      num_actions: A, the number of logits.
      width: number of features in every hidden layer.
      num_blocks: number of residual blocks, 0 or more.
      dtype: the type in which the torso computes, such as "float32" or "bfloat16".
      rngs: random keys for the initial weights.

    Raises:
      ValueError: if a size is not positive.

    Example:
      >>> sizes = dict(width=8, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = env.observation_shape, env.num_actions
      >>> network = jaxpgs.networks.FullyConnectedResNet(*shapes, **sizes)
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
        width: int = 256,
        num_blocks: int = 4,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_sizes("FullyConnectedResNet", num_actions=num_actions, width=width)
        check_blocks("FullyConnectedResNet", num_blocks)
        self.observation_shape = tuple(observation_shape)
        self.width, self.num_blocks = width, num_blocks
        self.dtype = jnp.dtype(dtype).name
        self.torso = _Torso(self.observation_shape, width, num_blocks, dtype=dtype, rngs=rngs)
        self.policy_head = PolicyHead(width, num_actions, rngs=rngs)
        self.value_head = ValueHead(width, rngs=rngs)

    def __call__(self, observation: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Evaluates a batch of observations.

        Args:
          observation: `[B, *observation_shape]`, of any real type.

        Returns:
          Logits `[B, A]` and values `[B]` in [-1, 1], both float32.

        Raises:
          ValueError: if the observation has another shape.
        """
        features = self.torso(observation)
        return self.policy_head(features), self.value_head(features)


class _Block(nnx.Module):
    def __init__(self, width: int, *, dtype: jax.typing.DTypeLike, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(width, width, dtype=dtype, rngs=rngs)
        # ReZero: the block begins as the identity.
        self.alpha = nnx.Param(jnp.zeros((), jnp.float32))

    def __call__(self, x: chex.Array) -> chex.Array:
        return x + self.alpha[...].astype(x.dtype) * jax.nn.relu(self.linear(x))


class _Torso(nnx.Module):
    def __init__(
        self,
        observation_shape: tuple[int, ...],
        width: int,
        num_blocks: int,
        *,
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.observation_shape = observation_shape
        self.dtype = jnp.dtype(dtype)
        num_inputs = int(np.prod(observation_shape))
        self.embed = nnx.Linear(num_inputs, width, dtype=self.dtype, rngs=rngs)
        self.blocks = nnx.List(
            [_Block(width, dtype=self.dtype, rngs=rngs) for _ in range(num_blocks)]
        )

    def __call__(self, observation: chex.Array) -> chex.Array:
        check_observation(observation, self.observation_shape)
        x = self.embed(observation.reshape(len(observation), -1).astype(self.dtype))
        for block in self.blocks:
            x = block(x)
        return x
