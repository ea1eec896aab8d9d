"""Which new nodes are states that the memory of the cached mode holds already.

A node has a code: a hash of 64 bits of what tells its state from others, and its depth. Nodes with
equal codes count as one state; two states have the same hash by chance once in about 2^64 pairs.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.base import Embedding, Expansion

NUM_WORDS = 3  # of a code, the depth last


def node_codes(
    same_state: Callable[[Embedding], Any],
    parent: chex.Array,
    expansion: Expansion,
    embedding: Embedding,
) -> chex.Array:
    """Returns the codes of new nodes.

    Reward and discount of the step into a state are part of its code, as nodes hold them. So is the
    depth: a state can then not lead to itself, and walks have an end.

    Args:
      same_state: `Search.transpositions`.
      parent: `[B, K, 3]` uint32, the codes of their parents.
      expansion: `[B, K, ...]` what the model says of them.
      embedding: `[B, K, ...]` their states.

    Returns:
      `[B, K, 3]` uint32.
    """
    key = jax.vmap(same_state, in_axes=1, out_axes=1)(embedding)
    words = [_words(x) for x in jax.tree.leaves((key, expansion.reward, expansion.discount))]
    word = jnp.concatenate(words, axis=-1)
    place = _mix(np.arange(word.shape[-1], dtype=np.uint32)[None, None] + np.uint32(1))
    # Each place has a permutation of its own, so states that differ in one word differ.
    hashes = [
        jnp.sum(_mix(word ^ _mix(place + np.uint32(seed))), axis=-1, dtype=jnp.uint32)
        for seed in (0x9E3779B9, 0x85EBCA6B)
    ]
    return jnp.stack([*hashes, parent[..., 2] + jnp.uint32(1)], axis=-1)


def earlier_nodes(codes: chex.Array, size: chex.Array, new: chex.Array) -> chex.Array:
    """Returns for each new node the first one with its code.

    Args:
      codes: `[B, M, 3]` the codes of the nodes.
      size: `[B]` int32, nodes in use, the root not counted; the new ones follow.
      new: `[B, K, 3]` the codes of the new nodes.

    Returns:
      `[B, K]` int32, the number of a node in use, or of a new one.
    """
    number, row = (jnp.arange(x.shape[1], dtype=jnp.int32)[None, None] for x in (codes, new))
    same = jnp.all(new[:, :, None] == codes[:, None], axis=-1)
    # A child of 0 is none, so no state is the root.
    same &= (number > 0) & (number <= size[:, None, None])
    twin = jnp.all(new[:, :, None] == new[:, None], axis=-1)  # at the latest itself
    known = jnp.min(jnp.where(same, number, number.size), axis=-1)
    made = size[:, None] + 1 + jnp.min(jnp.where(twin, row, row.size), axis=-1)
    return jnp.where(known < number.size, known, made)


def _words(x: chex.Array) -> chex.Array:
    """Returns `[B, K, W]` uint32 words that hold an array `[B, K, ...]`."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        x = x + jnp.zeros((), x.dtype)  # minus zero is zero
    bits = min(8 * x.dtype.itemsize, 32)
    x = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}"))
    return x.astype(jnp.uint32).reshape(*x.shape[:2], -1)


def _mix(x: Any) -> Any:
    """The finaliser of MurmurHash3 (Appleby 2011), a permutation of 32-bit words."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
