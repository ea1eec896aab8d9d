"""The convolutional network for SameGame."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxpgs.networks.fully_connected import check_observation, check_sizes

_HEADS = ("policy", "policy_value")
# Of the layers at the end two shrink the board by one cell on each side, and two are 1x1.
_LAST = ((3, "VALID"), (3, "VALID"), (1, "SAME"), (3, "SAME"), (1, "SAME"))


class SameGameCNN(nnx.Module):
    """Policy, or policy and value, from 13 convolutions with ELU (Seify 2020, 5.4.1 and 6.1.3).

    The board gets a border of zeros, so that the network sees its edges. All layers are 3x3 and
    keep the board's size, but the last five: two shrink it, then come a 1x1, a 3x3 and a 1x1. With
    a policy alone the result is flattened and a linear layer gives the logits. With both heads it
    is averaged over the board; the policy then has a hidden layer of 32, the value one of 64.

    `torso` maps observations to features, `policy_head` and `value_head` map features on. Weights
    and both heads are float32 whatever `dtype` is. Keyword arguments are kept as attributes of the
    same names, so that saved weights can say how to build their network.

    Args:
      observation_shape: `(height, width, planes)`, without the batch axis; 3 cells or more each
        way.
      num_actions: A, the number of logits.
      num_filters: planes of every layer; the thesis's are 64.
      num_layers: convolutions, 6 or more.
      heads: "policy", whose value is always 0, or "policy_value".
      pooling: whether to average over the board; None as in the thesis, for both heads only. What
        is averaged has lost its place, which small networks miss.
      value_scale: what the value head's output is multiplied by. The thesis has 1; with about the
        size of a score, here in points, the head need not grow large weights first.
      dtype: type the torso computes in, such as "float32" or "bfloat16".
      rngs: random keys for the initial weights.

    Raises:
      ValueError: if the observation has another number of axes, a size is out of range or `heads`
        is another word.
    """

    is_torso_and_heads = True  # see `networks.functional`

    def __init__(
        self,
        observation_shape: Sequence[int],
        num_actions: int,
        *,
        num_filters: int = 64,
        num_layers: int = 13,
        heads: str = "policy",
        pooling: bool | None = None,
        value_scale: float = 1.0,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_sizes("SameGameCNN", num_actions=num_actions, num_filters=num_filters)
        self.observation_shape = tuple(observation_shape)
        if len(self.observation_shape) != 3 or min(self.observation_shape[:2]) < 3:
            raise ValueError(
                "SameGameCNN needs observations of shape (height, width, planes) with a height and "
                f"a width of at least 3, got {self.observation_shape}."
            )
        if num_layers <= len(_LAST):
            raise ValueError(f"SameGameCNN needs num_layers > {len(_LAST)}, got {num_layers}.")
        if heads not in _HEADS:
            raise ValueError(f"The heads of SameGameCNN must be one of {_HEADS}, got {heads!r}.")
        self.num_filters, self.num_layers, self.heads = num_filters, num_layers, heads
        self.pooling, self.value_scale = pooling, value_scale
        self.dtype = jnp.dtype(dtype).name
        pooled = heads == "policy_value" if pooling is None else pooling
        self.torso = _Torso(
            self.observation_shape, num_filters, num_layers, pooled, dtype=dtype, rngs=rngs
        )
        height, width = (size - 2 for size in self.observation_shape[:2])
        features = num_filters * (1 if pooled else height * width)
        hidden = 32 if heads == "policy_value" else 0
        self.policy_head = _PolicyHead(features, hidden, num_actions, rngs=rngs)
        self.value_head = (
            _ValueHead(features, value_scale, rngs=rngs) if heads == "policy_value" else _NoValue()
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


class _Torso(nnx.Module):
    def __init__(
        self,
        observation_shape: tuple[int, ...],
        filters: int,
        num_layers: int,
        pooled: bool,
        *,
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.observation_shape = observation_shape
        self.dtype = jnp.dtype(dtype)
        self.pooled = pooled
        layers = ((3, "SAME"),) * (num_layers - len(_LAST)) + _LAST
        inputs = [observation_shape[-1]] + [filters] * (num_layers - 1)
        self.layers = nnx.List(
            [
                nnx.Conv(
                    planes, filters, (size, size), padding=padding, dtype=self.dtype, rngs=rngs
                )
                for planes, (size, padding) in zip(inputs, layers, strict=True)
            ]
        )

    def __call__(self, observation: chex.Array) -> chex.Array:
        check_observation(observation, self.observation_shape)
        x = jnp.pad(observation.astype(self.dtype), [(0, 0), (1, 1), (1, 1), (0, 0)])
        for layer in self.layers:
            x = jax.nn.elu(layer(x))
        return jnp.mean(x, axis=(1, 2)) if self.pooled else x.reshape(len(x), -1)


class _PolicyHead(nnx.Module):
    def __init__(self, features: int, hidden: int, num_actions: int, *, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(features, hidden, rngs=rngs) if hidden else None
        self.linear = nnx.Linear(hidden or features, num_actions, rngs=rngs)

    def __call__(self, features: chex.Array) -> chex.Array:
        x = features.astype(jnp.float32)
        if self.hidden is not None:
            x = jax.nn.elu(self.hidden(x))
        return self.linear(x)


class _ValueHead(nnx.Module):
    def __init__(self, features: int, scale: float, *, rngs: nnx.Rngs) -> None:
        self.scale = scale
        self.hidden = nnx.Linear(features, 64, rngs=rngs)
        self.linear = nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, features: chex.Array) -> chex.Array:
        x = jax.nn.elu(self.hidden(features.astype(jnp.float32)))
        return self.scale * self.linear(x)[:, 0]


class _NoValue(nnx.Module):
    def __call__(self, features: chex.Array) -> chex.Array:
        return jnp.zeros(len(features), jnp.float32)
