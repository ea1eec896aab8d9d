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
