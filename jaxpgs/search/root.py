"""Initial statistics of the roots, and checks of the roots.

The loop keeps the statistics of the roots besides the memory of its store. This module initialises
them, checks their shapes, and narrows them to the actions that a selection still considers.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import mctx
import numpy as np

from jaxpgs.arrays import as_logits, as_values, statistics_dtype
from jaxpgs.base import NodeStats
from jaxpgs.search.definition import Search
from jaxpgs.search.models import model
from jaxpgs.search.parts.selection import Narrow
from jaxpgs.search.stores.contract import Context
from jaxpgs.search.stores.nodes import Nodes, node_stats


def check_is_root(root: mctx.RootFnOutput) -> None:
    """Raises `ValueError` if the argument is not a root."""
    if not hasattr(root, "prior_logits"):
        raise ValueError(f"root must be a mctx.RootFnOutput, got {type(root).__name__}.")


def check_root(root: mctx.RootFnOutput, invalid_actions: chex.Array | None) -> int:
    """Checks the shapes, raising `ValueError` if they are wrong; returns B."""
    check_is_root(root)
    if root.prior_logits.ndim != 2 or root.value.shape != root.prior_logits.shape[:1]:
        raise ValueError(
            "root must have prior_logits [B, A] and value [B]; got shapes "
            f"{root.prior_logits.shape} and {root.value.shape}."
        )
    if not root.prior_logits.size:
        raise ValueError(
            "root must have at least one root and one action; got prior_logits of shape "
            f"{root.prior_logits.shape}."
        )
    embedding_shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(root.embedding)]
    if any(shape[:1] != root.value.shape for shape in embedding_shapes):
        raise ValueError(
            f"root must have an embedding with a leading axis of {root.value.shape[0]} roots; got "
            f"leaves of shapes {embedding_shapes}."
        )
    model.check_logits("root", root.prior_logits)
    if invalid_actions is not None and np.shape(invalid_actions) != root.prior_logits.shape:
        raise ValueError(
            f"invalid_actions must have the shape {root.prior_logits.shape} of the prior logits, "
            f"got {np.shape(invalid_actions)}."
        )
    return root.prior_logits.shape[0]


def count_broken(root: mctx.RootFnOutput) -> chex.Array:
    """Returns `[B]`: 1 for each root whose evaluation has a number that is not finite, else 0."""
    logits = jnp.isfinite(root.prior_logits) | jnp.isneginf(root.prior_logits)
    return 1 - (jnp.all(logits, axis=-1) & jnp.isfinite(root.value)).astype(jnp.int32)


def root_stats(
    search: Search, root: mctx.RootFnOutput, invalid_actions: chex.Array | None
) -> NodeStats:
    """Returns the statistics of the roots before the first simulation."""
    dtype = statistics_dtype(root.prior_logits, root.value)
    logits = as_logits(root.prior_logits, dtype)
    valid = jnp.ones(logits.shape, bool)
    if invalid_actions is not None:
        valid = ~jnp.asarray(invalid_actions).astype(bool)
    logits = jnp.where(valid, logits, jnp.finfo(dtype).min)
    zeros = jnp.zeros(logits.shape, dtype)
    stats = NodeStats(logits, as_values(root.value, dtype), zeros.astype(jnp.int32), zeros, valid)
    if not search.root_selection.needs_range:
        return stats
    return stats._replace(lowest=zeros + jnp.inf, highest=zeros - jnp.inf)


def budgets(search: Search, given: Any, batch_size: int) -> chex.Array | None:
    """Returns how many simulations each root has, `[B]`, None for N."""
    if given is None:
        return None
    if isinstance(given, list | tuple):
        given = np.asarray(given)
    most, shape = search.num_simulations, np.shape(given)
    words = f"simulations_by_root must be [B] whole numbers from 0 to num_simulations={most}"
    if shape != (batch_size,) or not jnp.issubdtype(jnp.result_type(given), jnp.integer):
        raise ValueError(
            f"{words}, one for each of the {batch_size} roots; got shape {list(shape)} and type "
            f"{jnp.result_type(given)}."
        )
    if search.root_selection.rounds is not None:
        raise ValueError(
            "simulations_by_root cannot be used with a root_selection in rounds, because the sizes "
            "of rounds depend on the number of simulations: give a number in place of "
            'simulations_per_update="rounds".'
        )
    if not isinstance(given, jax.core.Tracer):
        # NumPy, since `jnp.min` would be traced inside of a traced function.
        given = np.asarray(given)
        if given.size and (given.min() < 0 or given.max() > most):
            raise ValueError(f"{words}; got {given}.")
    # Traced numbers cannot be rejected, only clipped. A bound must fit the given type, or it wraps.
    given = jnp.asarray(given)
    return jnp.clip(given, 0, min(most, jnp.iinfo(given.dtype).max)).astype(jnp.int32)


def known_before(search: Search, memory: Nodes, stats: NodeStats) -> NodeStats:
    """Adds the visits that the root had as an inner node of an earlier search."""
    known = node_stats(memory, jnp.zeros(stats.value.shape, jnp.int32), stats.prior_logits)
    names = ["visits", "value_sum"] + ["lowest", "highest"] * search.root_selection.needs_range
    # Actions that were taken there may be illegal here.
    return stats._replace(
        **{n: jnp.where(stats.valid, getattr(known, n), getattr(stats, n)) for n in names}
    )


def known_scale(stats: NodeStats) -> chex.Array:
    """Returns how much the returns differ that are known before the first simulation."""
    distance = jnp.abs(stats.qvalues - stats.value[:, None])
    distance = jnp.max(jnp.where(stats.visits > 0, distance, 0.0), axis=-1)
    # If all returns are equal, rounding errors of their sums must not count as a difference.
    return jnp.maximum(distance, jnp.abs(stats.value) / 128)


def near_root(context: Context, selection: Any, stats: NodeStats) -> Narrow:
    """Returns the root with only the actions that its selection still considers, or with all."""
    narrow = context.search.root_selection.narrow
    # In kept nodes, actions outside of these columns have visits, which the Q-values depend on.
    kept = context.rows is not None and context.rows.num_kept > 1
    found = None if kept or narrow is None else narrow(selection, stats)
    return Narrow(selection, stats, None) if found is None else found


def widen(stats: NodeStats, near: NodeStats, columns: chex.Array | None) -> NodeStats:
    """Writes the statistics of some actions into the statistics of all actions."""
    if columns is None:
        return near
    # The last of the narrow columns stands for all other actions, none of which was taken.
    put = jax.vmap(lambda x, i, new: x.at[i].set(new, unique_indices=True))
    names, size = ("visits", "value_sum"), columns.shape[1]
    found = {n: put(getattr(stats, n), columns, getattr(near, n)[:, :size]) for n in names}
    return stats._replace(scale=near.scale, **found)
