"""The state that a search carries from update to update, including counts for its answer."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Embedding, NodeStats, Params, Trajectory


class Totals(NamedTuple):
    """Counts and sums over the updates, `[B]` each.

    Attributes:
      simulations: int32, simulations run.
      evaluations: int32, network evaluations used.
      calls: int32, sequential network calls.
      depth: int32, steps of the simulations.
      limited: int32, simulations that `max_depth` ended.
      entropy: the policy's entropy, summed over the states in which it acted.
      acted: the number of those states.
      gradient_norm: the gradient's norm.
      skipped: int32, updates of the parameters that were skipped.
      not_finite: int32, evaluations with a number that is not finite.
    """

    simulations: chex.Array
    evaluations: chex.Array
    calls: chex.Array
    depth: chex.Array
    limited: chex.Array
    entropy: chex.Array
    acted: chex.Array
    gradient_norm: chex.Array
    skipped: chex.Array
    not_finite: chex.Array


class Carry(NamedTuple):
    """A search in progress. Every array has a leading axis B.

    Attributes:
      num_updates: `[B]` int32, updates done.
      update_keys: `[B]` keys from which the keys of the updates are derived.
      target_keys: `[B]` keys of the answer.
      model_keys: `[B]` copies of the one key of all model calls; None if each root has a key.
      root: `[B, ...]` the embedding of the roots.
      stats: the statistics of the roots.
      selection: the state of the selection at the root.
      adapted: the parameters that adapt, None where nothing does.
      opt_state: the optimizer's state.
      memory: the store's memory.
      totals: counts and sums.
      best: the best embedding so far, None without `best_of`.
      ring: the simulations of the last updates, None without `reuse`.
      budget: `[B]` int32, how many simulations each root has; None if all have N.

    Example:
      >>> carry.stats.visits.sum(axis=-1)  # no simulation yet
      Array([0, 0], dtype=int32)
    """

    num_updates: chex.Array
    update_keys: chex.PRNGKey
    target_keys: chex.PRNGKey
    model_keys: chex.PRNGKey | None
    root: Embedding
    stats: NodeStats
    selection: Any
    adapted: Params
    opt_state: Any
    memory: Any
    totals: Totals
    best: Any
    ring: Any = None
    budget: chex.Array | None = None


def add_totals(
    totals: Totals,
    trajectory: Trajectory,
    started: chex.Array,
    norm: chex.Array,
    skipped: chex.Array,
) -> Totals:
    """Adds one update to the counts and sums, so memory does not grow with the updates."""
    now = Totals(
        simulations=jnp.sum(started, axis=1),
        evaluations=trajectory.num_evaluations,
        calls=trajectory.num_calls,
        depth=jnp.sum(trajectory.depth, axis=-1),
        limited=jnp.sum(trajectory.limited, axis=-1),
        entropy=jnp.sum(trajectory.entropy, axis=(0, 2)),
        # Without the first actions, which the root's selection has chosen.
        acted=jnp.sum(trajectory.alive[1:], axis=(0, 2), dtype=jnp.float32),
        gradient_norm=norm,
        skipped=skipped,
        not_finite=trajectory.not_finite,
    )
    return jax.tree.map(lambda total, new: total + new.astype(total.dtype), totals, now)


def mean_of(total: chex.Array, count: chex.Array) -> chex.Array:
    """Returns the mean, given the sum and the count; 0 where the count is 0."""
    dtype = total.dtype if jnp.issubdtype(total.dtype, jnp.floating) else jnp.dtype(jnp.float32)
    return total.astype(dtype) / jnp.maximum(count, 1).astype(dtype)
