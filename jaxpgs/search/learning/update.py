"""One update of a search: K simulations of every root, and a learning step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import Embedding, Path, add_returns
from jaxpgs.checks import check_returned
from jaxpgs.search.carry import Carry, add_totals
from jaxpgs.search.definition import Search
from jaxpgs.search.learning import ring_buffer
from jaxpgs.search.learning.learn import Learned, learn
from jaxpgs.search.models.model import Keys
from jaxpgs.search.parts.selection import select_in_turn
from jaxpgs.search.root import near_root, widen
from jaxpgs.search.stores.contract import Context, Simulations, Store
from jaxpgs.search.walk import draw, keep, walk


def update(store: Store, context: Context, carry: Carry) -> Carry:
    """Runs simulations and learns from them.

    Args:
      store: where states come from.
      context: the context of the update, without its keys and rows.
      carry: the search so far.

    Returns:
      The search after the update.

    Raises:
      ValueError: if the backup returns another shape or type.
    """
    search = context.search
    # A Gumbel root with many actions updates only the columns of those that it considers.
    near = near_root(context, carry.selection, carry.stats)
    context, chosen, started, memory, simulations, table = simulate(store, context, carry)
    trajectory = simulations.trajectory
    with jax.named_scope("backup"):
        returns = search.backup(trajectory)
        check_returned("What backup returns", returns, trajectory.reward.shape, "real")
        returns = jax.lax.stop_gradient(returns)
    if search.root_selection.rounds is not None:
        # A round has started all simulations that might be needed. Now their returns tell which of
        # them a search with K = 1 would have run; the others are discarded.
        at = (chosen, started, returns[0])
        started = search.root_selection.rounds.accept(near.state, near.root, *at)
        trajectory = keep(trajectory, started)
        simulations = simulations._replace(trajectory=trajectory)
    stats = widen(carry.stats, add_returns(near.root, chosen, returns[0], started), near.columns)
    # Estimators see the root before the simulations, but with a scale that covers their returns.
    before = carry.stats._replace(scale=stats.scale)
    zero = 0 * carry.stats.value
    learned, ring = Learned(carry.adapted, carry.opt_state, zero, zero > 0), carry.ring
    if context.needed and ring is None:
        blocks = store.blocks(context, memory, table, simulations.steps)
        learned = learn(context, blocks, before, carry.opt_state, simulations, returns)
    elif context.needed:
        learned, ring = ring_buffer.learn_from_ring(
            store, context, memory, before, carry.opt_state, simulations, returns, ring,
            carry.num_updates,
        )  # fmt: skip
    best = carry.best
    if search.best_of is not None:
        best = _better(search.best_of, best, trajectory.last)
    with jax.named_scope("remember"):
        # Learning reads the memory. If it were written to before that, it would have to be copied.
        after = returns + 0 * learned.norm[None, :, None]
        memory = store.remember(context, memory, simulations, after)
    return carry._replace(
        # Roots whose budget is spent count no more updates, so that further steps change nothing.
        num_updates=carry.num_updates + is_left(search, carry).astype(jnp.int32),
        stats=stats,
        adapted=learned.adapted,
        opt_state=learned.opt_state,
        memory=memory,
        totals=add_totals(carry.totals, trajectory, started, learned.norm, learned.skipped),
        best=best,
        ring=ring,
    )


def is_left(search: Search, carry: Carry) -> chex.Array:
    """Tells `[B]` which roots have simulations left."""
    budget = search.num_simulations if carry.budget is None else carry.budget
    left = carry.totals.simulations < budget
    return left & jnp.any(carry.stats.valid, axis=-1)


class Simulated(NamedTuple):
    """The simulations of an update, before anything is learned from them.

    Attributes:
      context: the context with the keys and the rows of the update.
      chosen: `[B, K]` int32, the first actions as numbered by `near_root`.
      started: `[B, K]` bool, which simulations were started.
      memory: the store's memory, with the new states.
      simulations: the simulations step by step.
      table: what they looked up in the memory.
    """

    context: Context
    chosen: chex.Array
    started: chex.Array
    memory: Any
    simulations: Simulations
    table: Any


def simulate(store: Store, context: Context, carry: Carry) -> Simulated:
    """Runs an update's simulations."""
    search, num_walks = context.search, max(context.search.widths)
    number = jnp.max(carry.num_updates)  # the same for all roots that have simulations left
    keys = jax.vmap(jax.random.fold_in)(carry.update_keys, carry.num_updates)
    step_keys, uniform = draw(keys, context.max_depth, num_walks)
    shared = carry.model_keys
    if shared is not None:
        # A dynamic index, since jax.debug_key_reuse counts a static one as a use of the key.
        shared = jax.random.fold_in(jax.lax.dynamic_index_in_dim(shared, 0, keepdims=False), number)
    context = context._replace(keys=Keys(step_keys, shared), scale=carry.stats.scale)
    if context.rows is not None:
        # Updates beyond the budget or the capacity write after the last row that is kept.
        start = jnp.minimum(_of_update(context.rows.starts, number), context.rows.limit + 1)
        context = context._replace(start=start)
    if len(set(search.widths)) > 1:
        context = context._replace(width=_of_update(search.widths, number))
    with jax.named_scope("root_selection"):
        rounds = search.root_selection.rounds
        near = near_root(context, carry.selection, carry.stats)
        if rounds is None:
            at = (near.state, near.root, num_walks)
            chosen, wanted = select_in_turn(search.root_selection, *at), None
        else:
            chosen, wanted = rounds.propose(near.state, near.root, num_walks)
        # The selection numbers actions by its columns; the model needs the original numbers.
        actions = chosen
        if near.columns is not None:
            actions = jnp.take_along_axis(near.columns, chosen, axis=1, mode="clip")
    path = _start(context, carry, actions, wanted)
    with jax.named_scope("table"):
        table = store.make_table(context, carry.memory)
    with jax.named_scope("simulate"):
        memory, simulations = walk(context, store, carry.memory, table, path, actions, uniform)
    return Simulated(context, chosen, path.alive, memory, simulations, table)


def _of_update(numbers: tuple[int, ...], number: chex.Array) -> chex.Array:
    """Returns the number of an update; an arithmetic progression continues after its end."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    # If all updates have the same size, this is a product and needs no table. Decreasing sizes,
    # such as 4 and 2, must not continue below 0.
    if step >= 0 and numbers == tuple(numbers[0] + step * n for n in range(len(numbers))):
        return numbers[0] + number * step
    return jnp.array(numbers, jnp.int32)[jnp.minimum(number, len(numbers) - 1)]


def _start(context: Context, carry: Carry, actions: chex.Array, wanted: chex.Array | None) -> Path:
    """Returns the K simulations before their first step; `wanted` tells which start (None: all)."""
    search = context.search
    stats, num_walks = carry.stats, actions.shape[1]
    # [B, K, K]: earlier simulations of this update with the same first action. Truncations count
    # them as visits although they have not returned yet.
    earlier = jnp.tril(actions[:, :, None] == actions[:, None, :], -1)
    log_prior = jax.nn.log_softmax(stats.prior_logits, axis=-1)
    number = carry.totals.simulations[:, None] + jnp.arange(num_walks, dtype=jnp.int32)[None]
    among = (
        True
        if context.width is None
        else jnp.arange(num_walks, dtype=jnp.int32)[None] < context.width
    )
    playable = jnp.any(stats.valid, axis=-1, keepdims=True)
    if wanted is None:
        # The last update starts no more simulations than the budget has left.
        budget = search.num_simulations if carry.budget is None else carry.budget[:, None]
        alive = playable & among & (number < budget)
    else:
        alive = wanted & among & is_left(search, carry)[:, None]
    counts = actions * 0
    return Path(
        depth=counts,
        code=counts.astype(jnp.uint32),
        log_prob=jnp.take_along_axis(log_prior, actions, axis=-1),
        alive=alive,
        visits=jnp.take_along_axis(stats.visits, actions, axis=-1)
        + jnp.sum(earlier, axis=-1, dtype=jnp.int32),
        # False everywhere, but computed from data, so that it varies over devices as the roots do.
        new=playable & (counts > 0),
        simulation=number,
    )


def _better(best_of: Callable[[Embedding], chex.Array], best: Any, others: Any) -> Any:
    """Returns the best of one embedding `[B, ...]` and K others `[B, K, ...]`, root by root."""
    scores = jax.vmap(best_of, in_axes=1, out_axes=1)(others)
    first = jnp.argmax(scores, axis=1)
    other = jax.tree.map(lambda x: jax.vmap(lambda row, i: row[i])(x, first), others)
    # Of states with equal scores the earlier one stays.
    return trees.where(jnp.max(scores, axis=1) > best_of(best), other, best)
