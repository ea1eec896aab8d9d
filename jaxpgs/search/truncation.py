"""Truncation: when a simulation stops.

A `Truncation` is three pure functions, in the manner of an optax transformation. `init(B)` makes
the memory carried from update to update (often empty), `stop(memory, path)` answers `[B, K]` where
a simulation ends in the state it has just reached, and `update(memory, path)` notes the
finished simulations. A simulation also ends where its episode ends, and after `max_depth` steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax.numpy as jnp

from jaxpgs.base import Path


class Truncation(NamedTuple):
    """The rule that ends simulations; see the module's text."""

    init: Callable[[int], Any]
    stop: Callable[[Any, Path], chex.Array]
    update: Callable[[Any, Path], Any]
    max_depth: int | None = None


def _stateless(stop: Callable[[Path], chex.Array], max_depth: int | None = None) -> Truncation:
    return Truncation(
        init=lambda batch_size: (),
        stop=lambda memory, path: stop(path),
        update=lambda memory, path: memory,
        max_depth=max_depth,
    )


def fixed(depth: int) -> Truncation:
    """Stops after `depth` actions, the first one included (the fixed horizon H of the PGS paper).

    With `depth` at least the length of the game, simulations run to the end of the episode.

    Args:
      depth: number of actions, at least 1.

    Returns:
      A truncation, with `max_depth` equal to `depth`.

    Raises:
      ValueError: if `depth` is below 1.
    """
    if depth < 1:
        raise ValueError(f"fixed truncation needs a depth of at least 1, got {depth}.")
    return _stateless(lambda path: path.depth >= depth, max_depth=depth)


def growing(initial: int = 1, every: int = 100) -> Truncation:
    """Stops after `H(n) = initial + n // every` actions in the n-th simulation, n from 0.

    The PGS paper names a gradually increasing horizon H(n) and leaves its form open.

    Args:
      initial: horizon of the first simulations, at least 1.
      every: simulations after which the horizon grows by one, at least 1.

    Returns:
      A truncation.

    Raises:
      ValueError: if an argument is below 1.
    """
    if initial < 1 or every < 1:
        raise ValueError(
            f"growing truncation needs initial and every of at least 1, got {initial} and {every}."
        )
    return _stateless(lambda path: path.depth >= initial + path.simulation[None] // every)


def by_visits(branching: float = 3.0) -> Truncation:
    """Stops after `floor(ln N / ln b) + 1` actions (Brosseit 2023, eq. 3.2).

    N is the number of earlier simulations with the same first action, at least 1; so with b = 3 the
    first three simulations of an action have length 1 and those up to the ninth length 2, as in the
    thesis's example.

    Args:
      branching: the assumed constant branching factor b, above 1.

    Returns:
      A truncation.

    Raises:
      ValueError: if `branching` is not above 1.
    """
    if not branching > 1:
        raise ValueError(f"by_visits truncation needs a branching above 1, got {branching}.")
    # depth >= floor(log_b N) + 1 exactly where b^depth > N: powers avoid a rounded logarithm.
    return _stateless(
        lambda path: branching ** path.depth.astype(jnp.float32) > path.visits.astype(jnp.float32)
    )


def by_probability(threshold: float = 1e-3) -> Truncation:
    """Stops when the probability of the action sequence falls under a threshold.

    The PGS paper proposes it to search deeper down the principal variation. The probability is the
    prior's of the first action times the simulation policy's of the others.

    Args:
      threshold: a probability above 0, at most 1.

    Returns:
      A truncation.

    Raises:
      ValueError: if `threshold` is not in (0, 1].
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"by_probability truncation needs 0 < threshold <= 1, got {threshold}.")
    return _stateless(lambda path: path.log_prob < jnp.log(threshold))


def until_new(table_size: int = 2**15) -> Truncation:
    """Stops as soon as the action sequence is new to this search, as the PGS paper does in Hex.

    By this rule a tree search expands one node per simulation. To keep memory constant, the
    sequences seen are bits of a table of fixed size, indexed by a hash of the sequence: two
    different sequences may share a bit, and then a new one is taken for known and its simulation
    goes one step further. After N simulations that happens to a fraction of about `N / table_size`.
    Simulations that run side by side are counted one after another: of two equal ones, the second
    goes on.

    Args:
      table_size: number of bits per root, a power of two.

    Returns:
      A truncation.

    Raises:
      ValueError: if `table_size` is not a positive power of two.
    """
    if table_size < 1 or table_size & (table_size - 1):
        raise ValueError(f"until_new needs a table_size that is a power of two, got {table_size}.")
    slot_bits = max(table_size.bit_length() - 1 - 5, 0)  # the table is made of 32-bit words
    words = 2**slot_bits

    def locate(code: chex.Array) -> tuple[chex.Array, chex.Array]:
        code = code & jnp.uint32(table_size - 1)
        return (code % words).astype(jnp.int32), jnp.uint32(1) << (code // words).astype(jnp.uint32)

    def init(batch_size: int) -> chex.Array:
        return jnp.zeros((batch_size, words), jnp.uint32)

    def stop(table: chex.Array, path: Path) -> chex.Array:
        word, bit = locate(path.code)
        seen = (jnp.take_along_axis(table, word, axis=1) & bit) != 0
        # Equal sequences in this update: all but the first go on.
        same = (path.code[:, :, None] == path.code[:, None, :]) & path.alive[:, None, :]
        repeated = jnp.any(jnp.tril(same, -1), axis=-1)
        return ~seen & ~repeated

    def update(table: chex.Array, path: Path) -> chex.Array:
        word, bit = locate(path.code)
        rows = jnp.arange(table.shape[0])

        def mark(k: int, table: chex.Array) -> chex.Array:
            return table.at[rows, word[:, k]].set(table[rows, word[:, k]] | bit[:, k])

        for k in range(path.code.shape[1]):
            table = mark(k, table)
        return table

    return Truncation(init=init, stop=stop, update=update)
