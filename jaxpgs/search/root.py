"""What is known at the roots before their first simulation, and whether they can be searched.

The loop keeps the statistics of the roots beside the memory of its store. Here they begin, with the
mistakes that shapes show, and here they shrink to the actions that a selection still chooses among.
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
    """Raises `ValueError` where something else was given in the root's place."""
    if not hasattr(root, "prior_logits"):
        raise ValueError(f"root must be a mctx.RootFnOutput, got {type(root).__name__}.")


def check_root(root: mctx.RootFnOutput, invalid_actions: chex.Array | None) -> int:
    """Raises `ValueError` for mistakes that shapes show; returns B."""
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
    """Counts the root `[B]` if its evaluation has a number that is not finite."""
    logits = jnp.isfinite(root.prior_logits) | jnp.isneginf(root.prior_logits)
    return 1 - (jnp.all(logits, axis=-1) & jnp.isfinite(root.value)).astype(jnp.int32)


def root_stats(
    search: Search, root: mctx.RootFnOutput, invalid_actions: chex.Array | None
) -> NodeStats:
    """What is known at the root before the first simulation."""
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
            "simulations_by_root is not for a root_selection in rounds, whose sizes are those of "
            'one number of simulations: give a number in place of simulations_per_update="rounds".'
        )
    if not isinstance(given, jax.core.Tracer):
        # As NumPy has it: in a function that is traced `jnp.min` would be traced as well.
        given = np.asarray(given)
        if given.size and (given.min() < 0 or given.max() > most):
            raise ValueError(f"{words}; got {given}.")
    # Traced numbers cannot be refused, only brought into range.
    return jnp.clip(jnp.asarray(given), 0, most).astype(jnp.int32)


def known_before(search: Search, memory: Nodes, stats: NodeStats) -> NodeStats:
    """Goes on from the visits that the root has had as an inner node."""
    known = node_stats(memory, jnp.zeros(stats.value.shape, jnp.int32), stats.prior_logits)
    names = ["visits", "value_sum"] + ["lowest", "highest"] * search.root_selection.needs_range
    # What was taken there may be illegal here.
    return stats._replace(
        **{n: jnp.where(stats.valid, getattr(known, n), getattr(stats, n)) for n in names}
    )


def known_scale(stats: NodeStats) -> chex.Array:
    """Returns how much the returns differ that are known before the first simulation."""
    distance = jnp.abs(stats.qvalues - stats.value[:, None])
    distance = jnp.max(jnp.where(stats.visits > 0, distance, 0.0), axis=-1)
    # Where all returns are the same, the rounding of their sums must not look like a difference.
    return jnp.maximum(distance, jnp.abs(stats.value) / 128)


def near_root(context: Context, selection: Any, stats: NodeStats) -> Narrow:
    """The root with the actions alone that its selection still chooses among, or with all."""
    narrow = context.search.root_selection.narrow
    # Kept nodes have visits of actions outside of the columns, which the Q-values depend on.
    kept = context.rows is not None and context.rows.num_kept > 1
    found = None if kept or narrow is None else narrow(selection, stats)
    return Narrow(selection, stats, None) if found is None else found


def widen(stats: NodeStats, near: NodeStats, columns: chex.Array | None) -> NodeStats:
    """Writes the statistics of some actions into those of all."""
    if columns is None:
        return near
    # The last of the narrow columns stands for all other actions, of which none was taken.
    put = jax.vmap(lambda x, i, new: x.at[i].set(new, unique_indices=True))
    names, size = ("visits", "value_sum"), columns.shape[1]
    found = {n: put(getattr(stats, n), columns, getattr(near, n)[:, :size]) for n in names}
    return stats._replace(scale=near.scale, **found)
