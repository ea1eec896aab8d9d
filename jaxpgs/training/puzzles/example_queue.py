"""A queue of the most recent examples that a network learns from."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.training.puzzles.fitting import Examples


class ExampleQueue(NamedTuple):
    """The most recent examples, up to C of them.

    Attributes:
      examples: `[C]`, the oldest first; entries from `size` on are zeros.
      size: `[]` int32, how many there are.
    """

    examples: Examples
    size: chex.Array


def empty(template: Any, length: int) -> ExampleQueue:
    """Makes an empty queue.

    Args:
      template: an environment state, or its shapes.
      length: C, the capacity.

    Returns:
      The queue.
    """
    state = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), template)
    zeros = jnp.zeros(length, jnp.int32)
    return ExampleQueue(Examples(state, zeros, zeros.astype(jnp.float32)), jnp.int32(0))


def append(queue: ExampleQueue, examples: Examples) -> ExampleQueue:
    """Adds examples at the end; drops the oldest ones that exceed the capacity.

    Args:
      queue: the queue; it is not changed.
      examples: any number of them, as NumPy arrays; random keys in states are JAX arrays.

    Returns:
      The queue with them.
    """
    size, length = int(queue.size), len(queue.examples.action)
    new = min(size + len(examples.action), length)

    # The arrays keep their length C, padded with zeros, so that jitted functions compile once.
    def add(old: chex.Array, added: chex.Array) -> chex.Array:
        if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
            # NumPy has no arrays of random keys, so their numbers are added.
            numbers = add(jax.random.key_data(old), jax.random.key_data(added))
            return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(old))
        both = np.concatenate([np.asarray(old)[:size], added])[-new:] if new else np.asarray(old)
        padding = [(0, length - new)] + [(0, 0)] * (both.ndim - 1)
        return jnp.asarray(np.pad(both, padding).astype(old.dtype))

    return ExampleQueue(jax.tree.map(add, queue.examples, examples), jnp.int32(new))
