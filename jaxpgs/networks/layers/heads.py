"""The heads of all networks: from a torso's features to logits and to a value, in float32."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxpgs.checks import check_word

# The usual 0.99 needs hundreds of updates before population statistics can be trusted.
MOMENTUM = 0.9
NORMS = ("batch", "layer")


class PolicyHead(nnx.Module):
    """Logits from features `[B, num_features]`, or `[B, ..., num_features]` with cells in between.

    There are up to three layers: `conv`, a 1x1 convolution with the normalisation `norm`;
    `hidden`; and always `linear`, the last.

    Args:
      num_features: size of the last axis of the features.
      num_actions: A, the number of logits.
      num_planes: outputs of the 1x1 convolution, after which all cells are joined; 0 for none.
      num_cells: how many cells the features have, for the 1x1 convolution.
      num_hidden: width of a hidden layer; 0 for none.
      per_cell: whether the features are `[B, A, num_features]` and each cell gives one logit, from
        its own features and their mean over the board.
      activation: the activation after the hidden layer.
      norm: how the 1x1 convolution's planes are normalised; see `make_norm`.
      rngs: random keys for the initial weights.
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        *,
        num_planes: int = 0,
        num_cells: int = 1,
        num_hidden: int = 0,
        per_cell: bool = False,
        activation: Callable[[chex.Array], chex.Array] = jax.nn.relu,
        norm: str = "batch",
        rngs: nnx.Rngs,
    ) -> None:
        self.per_cell, self.activation = per_cell, activation
        inputs = 2 * num_features if per_cell else num_features
        if num_planes:
            inputs = num_planes * num_cells
        self.conv, self.norm = _pointwise(num_features, num_planes, norm, rngs)
        self.hidden = nnx.Linear(inputs, num_hidden, rngs=rngs) if num_hidden else None
        self.linear = nnx.Linear(num_hidden or inputs, 1 if per_cell else num_actions, rngs=rngs)

    def __call__(self, features: chex.Array) -> chex.Array:
        """Returns logits `[B, A]`."""
        x = self.linear(self.before_linear(features))
        return x[..., 0] if self.per_cell else x

    def before_linear(self, features: chex.Array) -> chex.Array:
        """Returns the inputs of the last layer, `[B, ..., inputs]`."""
        x = features.astype(jnp.float32)
        if self.per_cell:
            # [B, cells, 2 * num_features]: each cell's features and their mean over all cells.
            mean = jnp.broadcast_to(jnp.mean(x, axis=1, keepdims=True), x.shape)
            x = jnp.concatenate([x, mean], axis=-1)
        x = _squeeze(self.conv, self.norm, x)
        if self.hidden is not None:
            x = self.activation(self.hidden(x))
        return x


class ValueHead(nnx.Module):
    """A value from features `[B, num_features]`, or `[B, ..., num_features]` with cells in between.

    The layers are those of `PolicyHead`.

    Args:
      num_features: size of the last axis of the features.
      num_planes: outputs of the 1x1 convolution, after which all cells are joined; 0 for none.
      num_cells: how many cells the features have, for the 1x1 convolution.
      num_hidden: width of a hidden layer; 0 for none.
      pooled: whether the features are `[B, cells, num_features]`; then their mean and maximum over
        the board are used.
      scale: the factor of the output; None limits it to -1 to 1 with `tanh` instead.
      activation: the activation after the hidden layer.
      norm: how the 1x1 convolution's planes are normalised; see `make_norm`.
      rngs: random keys for the initial weights.
    """

    def __init__(
        self,
        num_features: int,
        *,
        num_planes: int = 0,
        num_cells: int = 1,
        num_hidden: int = 0,
        pooled: bool = False,
        scale: float | None = None,
        activation: Callable[[chex.Array], chex.Array] = jax.nn.relu,
        norm: str = "batch",
        rngs: nnx.Rngs,
    ) -> None:
        self.pooled, self.scale, self.activation = pooled, scale, activation
        # Mean and maximum are concatenated.
        inputs = 2 * num_features if pooled else num_features
        if num_planes:
            inputs = num_planes * num_cells
        self.conv, self.norm = _pointwise(num_features, num_planes, norm, rngs)
        self.hidden = nnx.Linear(inputs, num_hidden, rngs=rngs) if num_hidden else None
        self.linear = nnx.Linear(num_hidden or inputs, 1, rngs=rngs)

    def __call__(self, features: chex.Array) -> chex.Array:
        """Returns values `[B]`."""
        # The torso may compute in 16 bits; values are small differences and need float32.
        x = features.astype(jnp.float32)
        if self.pooled:
            x = jnp.concatenate([jnp.mean(x, axis=1), jnp.max(x, axis=1)], axis=-1)
        x = _squeeze(self.conv, self.norm, x)
        if self.hidden is not None:
            x = self.activation(self.hidden(x))
        x = self.linear(x)
        # Results of games are within -1 and 1; scores of puzzles have their own scale.
        return jnp.tanh(x)[:, 0] if self.scale is None else self.scale * x[:, 0]


def make_norm(norm: str, num_planes: int, rngs: nnx.Rngs) -> nnx.BatchNorm | nnx.GroupNorm:
    """Makes a normalisation of planes, with a scale and a bias for each plane.

    Args:
      norm: "batch" takes the mean and the variance of each plane over a batch in training, and
        their running means otherwise. "layer" takes those of all planes of a board together, so
        that a board's result does not depend on other boards and is the same in training.
      num_planes: number of planes, the last axis of the inputs `[B, ..., num_planes]`.
      rngs: random keys.

    Returns:
      A module that keeps its input's shape.

    Raises:
      ValueError: if `norm` is another word.
    """
    check_word("A network", "norm", norm, NORMS)
    if norm == "layer":
        return nnx.GroupNorm(num_planes, num_groups=1, rngs=rngs)
    return nnx.BatchNorm(num_planes, momentum=MOMENTUM, rngs=rngs)


def _pointwise(
    num_features: int, num_planes: int, norm: str, rngs: nnx.Rngs
) -> tuple[nnx.Linear | None, nnx.BatchNorm | nnx.GroupNorm | None]:
    """Makes a 1x1 convolution and its normalisation, or neither.

    The convolution is written as a matrix product. With one kernel per root, as in a search that
    adapts the head, `vmap` turns this into a batched product; it would turn a convolution into a
    grouped one, which is slow.
    """
    if not num_planes:
        return None, None
    # A normalisation has its own bias.
    conv = nnx.Linear(num_features, num_planes, use_bias=False, rngs=rngs)
    return conv, make_norm(norm, num_planes, rngs)


def _squeeze(
    conv: nnx.Linear | None, norm: nnx.BatchNorm | nnx.GroupNorm | None, x: chex.Array
) -> chex.Array:
    """Applies the 1x1 convolution, if there is one, and joins all cells."""
    if conv is None or norm is None:
        return x
    # One axis of cells: rows of a board are short, and an accelerator pads the last axes.
    cells = x.reshape(len(x), -1, x.shape[-1])
    return jax.nn.relu(norm(conv(cells))).reshape(len(x), -1)
