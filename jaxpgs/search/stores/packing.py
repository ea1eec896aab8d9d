"""Pytrees of arrays, concatenated by type to rows, so that a state is one read or one write."""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp


def pack(tree: Any) -> tuple[chex.Array, ...]:
    """Joins the arrays `[B, K, ...]` of each type to one `[B, K, W]`, for a single read."""
    rows: dict[str, list[chex.Array]] = {}
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        rows.setdefault(str(x.dtype), []).append(x.reshape(*x.shape[:2], -1))
    # In the order of the types' names, which `unpack` uses, too.
    return tuple(jnp.concatenate(rows[name], axis=-1) for name in sorted(rows))


def unpack(packed: tuple[chex.Array, ...], like: Any) -> Any:
    """Reverses `pack`; `like` has shapes `[B, K, ...]`."""
    leaves, treedef = jax.tree.flatten(like)
    types = [_stored(x) for x in leaves]
    source = dict(zip(sorted({str(t.dtype) for t in types}), packed, strict=True))
    taken, found = dict.fromkeys(source, 0), []
    for leaf, stored in zip(leaves, types, strict=True):
        name, size = str(stored.dtype), math.prod(stored.shape[2:])
        x = source[name][..., taken[name] : taken[name] + size]
        x = x.reshape(*x.shape[:2], *stored.shape[2:])
        if stored is not leaf:
            x = jax.random.wrap_key_data(x, impl=_kind_of_key(leaf))
        found.append(x)
        taken[name] += size
    return jax.tree.unflatten(treedef, found)


def _kind_of_key(leaf: Any) -> Any:
    """Returns the generator of keys; shapes suffice."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def _stored(leaf: Any) -> Any:
    """Returns the shape and type in which an array is stored; keys are stored as numbers."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return jax.eval_shape(jax.random.key_data, leaf)
