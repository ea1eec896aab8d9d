"""Pytrees with a leading axis of roots, games or boards, chosen between and made row by row."""

from typing import Any

import chex
import jax
import jax.numpy as jnp


def where(condition: chex.Array, new: Any, old: Any) -> Any:
    """Chooses between two pytrees row by row.

    Args:
      condition: `[B, ...]` bool, over the leading axes of every leaf.
      new: the pytree to take where the condition holds.
      old: the pytree to take elsewhere, of the same structure, shapes and dtypes.

    Returns:
      A pytree like both.
    """

    def choose(n: chex.Array, o: chex.Array) -> chex.Array:
        rest = max(jnp.ndim(n), jnp.ndim(o)) - condition.ndim
        return jnp.where(condition.reshape(*condition.shape, *[1] * rest), n, o)

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
