"""Truncations: when a simulation stops.

A `Truncation` has a pure function `path -> [B, K]`, which tells whether a simulation ends in the
state it has just reached, and the properties of this rule that the search needs to know. A
simulation also ends when its episode ends, and after the search's `max_depth` steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax.numpy as jnp

from jaxpgs.base import Path
from jaxpgs.checks import check_count, check_number


class Truncation(NamedTuple):
    """The rule that ends simulations.

    Attributes:
      stop: `path -> [B, K]` bool.
      max_depth: `num_simulations -> int`: the largest number of actions that the rule allows in a
        simulation, given the number of simulations of the search; None if it sets no bound.
      one_call: whether every simulation stops in the first new state it reaches, so that a tree
        needs one network call per update, and room for one state per simulation.
      table_size: number of flags per root with which rollouts remember sequences, a power of two; 0
        if `stop` does not read `path.new`.

    Example:
      >>> new_or_deep = lambda path: path.new | (path.depth >= 6)
      >>> rule = jaxpgs.truncation.until_new()._replace(stop=new_or_deep)
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, truncation=rule)
    """

    stop: Callable[[Path], chex.Array]
    max_depth: Callable[[int], int] | None = None
    one_call: bool = False
    table_size: int = 0


def fixed(depth: int) -> Truncation:
    """Stops after `depth` actions, the first one included (the fixed horizon H of the PGS paper).

    With `depth` at least the length of the game, simulations run to the end of the episode.

    Args:
      depth: number of actions, at least 1.

    Returns:
      A truncation.

    Raises:
      ValueError: if `depth` is no whole number of at least 1.

    Example:
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, truncation=jaxpgs.truncation.fixed(4))
    """
    most = check_count("fixed", "depth", depth)
    return Truncation(lambda path: path.depth >= most, max_depth=lambda num_simulations: most)


def growing(initial: int = 1, every: int = 100) -> Truncation:
    """Stops after `H(n) = initial + n // every` actions in the n-th simulation, n from 0.

    The PGS paper names a gradually increasing horizon H(n) and leaves its form open.

    Args:
      initial: horizon of the first simulations, at least 1.
      every: simulations after which the horizon grows by one, at least 1.

    Returns:
      A truncation.

    Raises:
      ValueError: if an argument is no whole number of at least 1.

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 64, truncation=jaxpgs.truncation.growing(every=16)
      ... )
    """
    initial = check_count("growing", "initial", initial)
    every = check_count("growing", "every", every)
    return Truncation(
        lambda path: path.depth >= initial + path.simulation // every,
        max_depth=lambda num_simulations: initial + (num_simulations - 1) // every,
    )


def by_visits(branching: float = 3.0, *, count_first: bool = True) -> Truncation:
    """Stops after `floor(ln N / ln b) + 1` actions (Brosseit 2023, eq. 3.2).

    N is the number of earlier simulations with the same first action, at least 1; so with b = 3 the
    first three simulations of an action have length 1 and those up to the ninth length 2, as in the
    thesis's example.

    Args:
      branching: the assumed constant branching factor b, above 1.
      count_first: whether the root's action counts, which the thesis leaves open. If it does not,
        every simulation has one more action, so that the first ones contribute to learning, too.

    Returns:
      A truncation.

    Raises:
      ValueError: if `branching` is not above 1.

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 64, truncation=jaxpgs.truncation.by_visits(branching=6.0)
      ... )
    """
    check_number("by_visits", "branching", branching, 1, open_low=True, traced=False)
    more = 0 if count_first else 1

    # depth >= floor(log_b N) + 1 exactly where b^depth > N: powers avoid a rounded logarithm.
    def bound(num_simulations: int) -> int:
        depth = 1
        while branching**depth <= num_simulations - 1:
            depth += 1
        return depth + more

    def stop(path: Path) -> chex.Array:
        counted = path.depth - more
        enough = branching ** counted.astype(jnp.float32) > path.visits.astype(jnp.float32)
        return enough & (counted >= 1)

    return Truncation(stop, max_depth=bound)


def by_probability(threshold: float | chex.Array = 1e-3) -> Truncation:
    """Stops when the probability of the action sequence falls under a threshold.

    The PGS paper proposes it to search deeper down the principal variation. The probability is that
    of the first action under the prior times those of the others under the simulation policy.

    Args:
      threshold: a probability above 0, at most 1. May be traced.

    Returns:
      A truncation.

    Raises:
      ValueError: if `threshold` is not in (0, 1].

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 64, truncation=jaxpgs.truncation.by_probability(0.01)
      ... )
    """
    check_number("by_probability", "threshold", threshold, 0, 1, open_low=True)
    return Truncation(lambda path: path.log_prob < jnp.log(threshold))


def until_new(table_size: int = 2**15) -> Truncation:
    """Stops as soon as the action sequence is new to this search, as the PGS paper does in Hex.

    By this rule a tree search expands one node per simulation. The K simulations of an update run
    side by side and do not see one another: those that reach the same new sequence all stop there,
    as do the parallel simulations of a tree search that reach the same leaf.

    To keep memory constant, rollouts remember sequences as flags in a table of fixed size, indexed
    by a hash of the sequence. Two different sequences may share a flag; then a new one is mistaken
    for known, and its simulation goes one step further. After N simulations this happens to a
    fraction of about `N / table_size`. A tree knows its sequences exactly.

    Args:
      table_size: number of flags per root, a power of two.

    Returns:
      A truncation.

    Raises:
      ValueError: if `table_size` is not a positive power of two.

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 64, truncation=jaxpgs.truncation.until_new()
      ... )
    """
    size = check_count("until_new", "table_size", table_size)
    if size & (size - 1):
        raise ValueError(f"until_new needs a table_size that is a power of two; got {size}.")
    return Truncation(lambda path: path.new, one_call=True, table_size=size)
