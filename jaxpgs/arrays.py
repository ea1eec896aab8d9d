"""Logits, values and keys in the shapes and types in which a search computes."""

import chex
import jax
import jax.numpy as jnp


def statistics_dtype(*arrays: chex.Array) -> jnp.dtype:
    """Returns the type in which a search averages: float32, or wider if an array is wider."""
    dtypes = [jnp.dtype(jnp.float32), *(x.dtype for x in arrays)]
    return max(
        (dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)),
        key=lambda dtype: jnp.finfo(dtype).bits,
    )


def as_logits(x: chex.Array, dtype: jnp.dtype | None = None) -> chex.Array:
    """Makes finite logits of a type: NaN and -inf become the lowest float, inf the highest.

    Args:
      x: logits of any shape and float type.
      dtype: the new type, None for the given one.

    Returns:
      Logits of the same shape.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(jnp.float32 if dtype is None else dtype)
    x = cast_logits(x, x.dtype if dtype is None else dtype)
    limits = jnp.finfo(x.dtype)
    return jnp.nan_to_num(x, nan=limits.min, posinf=limits.max, neginf=limits.min)


def cast_logits(x: chex.Array, dtype: jnp.dtype) -> chex.Array:
    """Converts logits; the lowest float, which marks illegal actions, becomes the new type's."""
    if dtype == x.dtype:
        return x
    lowest = jnp.asarray(jnp.finfo(dtype).min, dtype)
    return jnp.where(x <= jnp.finfo(x.dtype).min, lowest, x.astype(dtype))


def as_values(x: chex.Array, dtype: jnp.dtype | None = None) -> chex.Array:
    """Makes numbers whose sums and squares stay finite: NaN and infinities become 0.

    A number that is not finite must not decide a search. Magnitudes above the square root of the
    greatest float (1.8e19 for float32) are clipped to it.

    Args:
      x: rewards, discounts or values of any shape and float type.
      dtype: the new type, None for the given one.

    Returns:
      Numbers of the same shape.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(jnp.float32 if dtype is None else dtype)
    # In the given type: numbers that are finite in it but not in the new one are clipped, not 0.
    x = jnp.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    x = x.astype(x.dtype if dtype is None else dtype)
    limit = jnp.asarray(float(jnp.finfo(x.dtype).max) ** 0.5, x.dtype)
    return jnp.clip(x, -limit, limit)


def values_like(value: chex.Array, like: chex.Array) -> chex.Array:
    """Returns a network's values in the shape of other values, with which they can be combined.

    Args:
      value: the values; a column `[..., 1]`, as many value heads return it, is allowed as well.
      like: `[...]` values of the wanted shape.

    Raises:
      ValueError: if the values have another shape.
    """
    if value.shape == (*like.shape, 1):
        return value[..., 0]
    if value.shape != like.shape:
        raise ValueError(
            f"The network must return a value of shape {list(like.shape)}, one for each state, or "
            f"a column {[*like.shape, 1]}; got {list(value.shape)}."
        )
    return value


def broadcast_keys(rng_key: chex.PRNGKey, batch_size: int) -> chex.PRNGKey:
    """Returns one key per root: `[B]` keys as given, or `B` keys split from a single one.

    Args:
      rng_key: one key, or `[B]` keys.
      batch_size: B.

    Returns:
      `[B]` keys.

    Raises:
      ValueError: if there is another number of keys.
    """
    if is_one_key(rng_key):
        return jax.random.split(rng_key, batch_size)
    if rng_key.shape[0] != batch_size:
        raise ValueError(
            f"rng_key must be one key or one per root; got {rng_key.shape[0]} keys for "
            f"{batch_size} roots."
        )
    return rng_key


def is_one_key(rng_key: chex.PRNGKey) -> bool:
    """Returns whether this is one key, new-style or raw, and not an array of keys."""
    dtype = getattr(rng_key, "dtype", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    # A raw key is an array of words; a scalar is a seed, or a raw key that has lost its axis.
    if not is_typed and (dtype != jnp.uint32 or not rng_key.ndim):
        raise ValueError(f"rng_key must be made by jax.random.key, got {rng_key!r}.")
    return bool(rng_key.ndim == (0 if is_typed else 1))


def typed_keys(rng_key: chex.PRNGKey) -> chex.PRNGKey:
    """Returns keys as new-style ones, which have no axis of words."""
    if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        return rng_key
    return jax.random.wrap_key_data(rng_key)
