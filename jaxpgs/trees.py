"""Operations on pytrees of batched arrays."""

from typing import Any

import chex
import jax
import jax.numpy as jnp


def where(condition: chex.Array, new: Any, old: Any) -> Any:
    """Chooses between two pytrees, entry by entry of their leading axes.

    Args:
      condition: `[B]` bool, or with more axes, such as `[B, K]`, or with none.
      new: a pytree of arrays whose first axes are those of the condition; any axes may follow.
      old: a pytree of the same structure, shapes and types.

    Returns:
      A pytree like `new`, with the entries of `new` where the condition is true, else of `old`.
    """

    def choose(new: chex.Array, old: chex.Array) -> chex.Array:
        missing = jnp.ndim(new) - jnp.ndim(condition)
        return jnp.where(jnp.reshape(condition, jnp.shape(condition) + (1,) * missing), new, old)

    return jax.tree.map(choose, new, old)


def zeros(shape: tuple[int, ...], dtype: Any, like: chex.Array, axis: int = 0) -> chex.Array:
    """Returns zeros that are spread over devices as the rows of another array are.

    A loop over rows that `jax.shard_map` shares out must start from arrays that are shared out too.

    Args:
      shape: the shape, B along `axis`.
      dtype: the type.
      like: `[B]` int32 zeros of the rows, such as `zero_rows` makes.
      axis: which axis counts the rows.
    """
    rows = like.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return jnp.broadcast_to(rows.astype(dtype), shape)


def zero_rows(x: chex.Array) -> chex.Array:
    """Returns `[B]` int32 zeros, spread over devices as the rows of integers `[B, ...]` are."""
    return jnp.sum(x, axis=tuple(range(1, x.ndim)), dtype=jnp.int32) * 0
