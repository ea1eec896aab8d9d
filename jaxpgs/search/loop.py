"""The loop that every search shares: init, step, finish.

    carry = init(search, params, rng_key, root, invalid_actions)
    carry = step(search, params, carry)       # one update: K simulations of every root
    output = finish(search, carry)            # may be called at any time, changes nothing

`search` is a `Search`, the choice of parts. The carry is a pytree whose arrays all have a leading
axis B. It may leave `jit`, be continued later, saved, or sharded over devices. The answer does not
depend on how the steps are divided among calls.
"""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.arrays import broadcast_keys, is_one_key
from jaxpgs.base import ROOTS, NodeStats, Params, PolicyOutput, PolicyTerms, SearchState
from jaxpgs.checks import check_returned, check_word
from jaxpgs.search.carry import Carry, Totals, mean_of
from jaxpgs.search.definition import Search
from jaxpgs.search.learning import ring_buffer
from jaxpgs.search.learning.update import is_left, simulate, update
from jaxpgs.search.models import model
from jaxpgs.search.models.adapted import adapt_mask, check_like, per_root, split
from jaxpgs.search.parts.estimator import terms_of
from jaxpgs.search.parts.target import TargetOfActions
from jaxpgs.search.root import (
    budgets,
    check_root,
    count_broken,
    known_before,
    known_scale,
    root_stats,
)
from jaxpgs.search.stores import store_rollouts, store_tree
from jaxpgs.search.stores.contract import Context, Store
from jaxpgs.search.stores.nodes import Nodes


def init(
    search: Search,
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    invalid_actions: chex.Array | None = None,
    *,
    nodes: Nodes | None = None,
    adapted_params: Params | None = None,
    simulations_by_root: chex.Array | None = None,
) -> Carry:
    """Begins a search of B roots.

    Args:
      search: the parts.
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed. With a key per root, a root's answer
        does not depend on the other roots of the batch.
      root: prior logits `[B, A]`, value `[B]` and embedding `[B, ...]` of the roots. Logits that
        are not finite count as the lowest (NaN, -inf) or highest (inf) float.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      nodes: for a tree only: `search_state.nodes` of the game's previous search after `reroot`, or
        `init_nodes` if there are none yet; None starts with an empty tree.
      adapted_params: `search_state.params` of the game's previous search, or `init_adapted` for the
        network's own parameters; None starts from `params`.
      simulations_by_root: `[B]` whole numbers from 0 to N, how many simulations each root has; None
        is N for all. It may be traced; values out of range are then clipped. A root with n
        simulations gives the answer of a search with `num_simulations=n` and everything else the
        same, including K and the key; a Gumbel root follows the schedule of n. With 0 simulations
        the answer is that of the prior.

    Returns:
      The search before its first update.

    Raises:
      ValueError: if a shape does not fit, or `simulations_by_root` is out of range or given for
        a `root_selection` in rounds, whose round sizes are those for N.

    Example:
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 4)
      >>> carry = jaxpgs.search.init(search, params, rng_key, root)
      >>> carry.num_updates
      Array([0, 0], dtype=int32)
    """
    batch_size = check_root(root, invalid_actions)
    params, root, adapted_params, nodes = trees.stop_gradient((params, root, adapted_params, nodes))
    adapted = _adapted(search, params, batch_size, adapted_params)
    update_keys, target_keys, shared = _split_keys(rng_key, batch_size)
    stats = root_stats(search, root, invalid_actions)
    _check_estimator(search)
    budget = budgets(search, simulations_by_root, batch_size)
    count, mean = (jnp.zeros(batch_size, dtype) for dtype in (jnp.int32, stats.value.dtype))
    carry = Carry(
        num_updates=count,
        update_keys=update_keys,
        target_keys=target_keys,
        model_keys=shared,
        root=jax.tree.map(jnp.asarray, root.embedding),
        stats=stats,
        selection=None,
        adapted=adapted,
        opt_state=() if search.optimizer is None else jax.vmap(search.optimizer.init)(adapted),
        memory=None,
        totals=Totals(
            count, count, count, count, count, mean, mean, mean, count, count_broken(root)
        ),
        best=None if search.best_of is None else root.embedding,
        budget=budget,
    )
    store, context = prepare(search, params, carry, num_kept=_num_rows(nodes))
    memory = store.init(context, root, nodes)
    stats = _with_known(search, stats, memory, nodes)
    # The selection uses the first part of each root's key.
    num_simulations = search.num_simulations if budget is None else budget
    selection = search.root_selection.init(jax.random.clone(rng_key), stats, num_simulations)
    carry = _spread_like_roots(carry._replace(stats=stats, selection=selection, memory=memory))
    if search.reuse is None:
        return carry
    ring = ring_buffer.empty_ring(search, lambda: simulate(store, context, carry).simulations)
    return _spread_like_roots(carry._replace(ring=ring))


def _adapted(
    search: Search, params: Params, batch_size: int, adapted_params: Params | None
) -> Params:
    """Returns the adapting parameters `[B, ...]`: an earlier search's, or the network's own."""
    own, _ = split(params, adapt_mask(params, search.adapt))
    fresh = per_root(own, batch_size)
    if adapted_params is None:
        return fresh
    check_like(adapted_params, fresh)
    return adapted_params


def _split_keys(
    rng_key: chex.PRNGKey, batch_size: int
) -> tuple[chex.PRNGKey, chex.PRNGKey, chex.PRNGKey | None]:
    """Returns `[B]` keys for the updates, the answer, and the model calls if one key is given.

    If the search has one key, all roots share the key of a model call, as in mctx.
    """
    keys = broadcast_keys(rng_key, batch_size)
    _, update_keys, target_keys = jax.vmap(lambda key: tuple(jax.random.split(key, 3)))(keys)
    shared = None
    if is_one_key(rng_key):
        # `split` may give root b the key `fold_in(rng_key, b)`, which must not be an update's. And
        # trainers play the move that is found with `chance_key(rng_key)`, which this is not either.
        shared = jax.random.fold_in(rng_key, 2**32 - 2)
        shared = jnp.broadcast_to(shared, (batch_size, *shared.shape))
    return update_keys, target_keys, shared


def _with_known(search: Search, stats: NodeStats, memory: Any, nodes: Nodes | None) -> NodeStats:
    """Adds the statistics in kept nodes, and the scale of values, to a root's statistics."""
    # Kept nodes have visits only in searches that read them.
    if nodes is not None and search.interior_selection is not None:
        stats = known_before(search, memory, stats)
    # Otherwise the compiler would constant-fold, entry by entry, that nothing has been visited.
    scale = jnp.abs(stats.value) / 128 if nodes is None else known_scale(stats)
    return stats._replace(scale=scale)


def _check_estimator(search: Search) -> None:
    """Raises `ValueError` if the objective reads unknown terms or no terms at all."""
    for term in terms_of(search.estimator):
        check_word("estimator", "terms", term, PolicyTerms._fields)
    if search.estimator is not None and not terms_of(search.estimator):
        raise ValueError(
            "The estimator's objective depends on nothing that adapts: use log_prob, entropy, "
            f"kl_to_prior or kl_from_prior of the trajectory. Got {search.estimator!r}."
        )


def _num_rows(nodes: Nodes | None) -> int:
    return 1 if nodes is None else nodes.edge.shape[1]


def prepare(search: Search, params: Params, carry: Carry, num_kept: int) -> tuple[Store, Context]:
    """Prepares everything that is not traced: the split model, the store, shapes and sizes.

    Args:
      search: the parts.
      params: the network's parameters.
      carry: the search, with or without a memory.
      num_kept: rows of memory kept from an earlier search, including the root.
    """
    shape, dtype = carry.stats.prior_logits.shape, carry.stats.value.dtype
    found = model.make_model(
        search.recurrent_fn,
        params,
        search.adapt,
        carry.root,
        carry.stats.prior_logits,
        dtype,
        "tree" if search.capacity is not None else search.mode,  # which it is for
        search.reuse is not None,
        carry.update_keys,
    )
    is_tree = found.whole is None and search.mode != "rollouts"
    # A search without a fixed mode may fall back on rollouts, which have no nodes to read.
    if not is_tree:
        search = dataclasses.replace(
            search, mode="rollouts", interior_selection=None, capacity=None
        )
    store = store_tree.store if is_tree else store_rollouts.store
    rows = store_tree.layout(search, num_kept) if is_tree else None
    depth = store_tree.max_depth(search, num_kept) if is_tree else store_rollouts.max_depth(search)
    # All updates have the shapes of the widest one, so that they share one program.
    num_walks = max(search.widths)

    def in_walks(x: Any) -> Any:
        return jax.ShapeDtypeStruct((shape[0], num_walks, *x.shape[1:]), x.dtype)

    return store, Context(
        search=search,
        model=found,
        adapted=carry.adapted,
        needed=terms_of(search.estimator),
        embedding=jax.tree.map(in_walks, carry.root),
        features=jax.tree.map(in_walks, found.features),
        max_depth=depth,
        rows=rows,
    )


def init_nodes(search: Search, params: Params, root: mctx.RootFnOutput, num_kept: int) -> Nodes:
    """Returns an empty memory as `nodes` of a first search.

    For loops that pass `reroot(search_state.nodes, action, num_kept=...)` from move to move and
    need an initial value of the same shape.

    Args:
      search: the search, one that keeps a tree.
      params: the network's parameters.
      root: the roots; shapes suffice.
      num_kept: as in `reroot`.

    Returns:
      Nodes, of which only the root is in use.

    Raises:
      ValueError: if the search keeps no nodes, or `num_kept` is below 1.

    Example:
      >>> nodes = jaxpgs.search.init_nodes(search, params, root, num_kept=8)
      >>> nodes.parent.shape
      (2, 8)
    """
    if num_kept < 1:
        raise ValueError(f"num_kept must be at least 1, for the root, got {num_kept}.")
    key = jax.eval_shape(lambda: jax.random.key(0))
    memory = trees.eval_shape(functools.partial(init, search), params, key, root).memory
    if not isinstance(memory, Nodes):
        raise ValueError(f'init_nodes needs a search with mode="tree", got {search.mode!r}.')

    def empty(x: Any) -> chex.Array:
        return jnp.zeros((x.shape[0], num_kept if x.shape[1] else 0, *x.shape[2:]), x.dtype)

    nodes = jax.tree.map(empty, memory)
    features = jax.tree.map(jnp.ones_like, nodes.features)  # as `store_tree.init` fills them
    return nodes._replace(edge=nodes.edge - 1, features=features)


def step(search: Search, params: Params, carry: Carry) -> Carry:
    """Runs one update: K simulations of every root, and learns from them.

    Args:
      search: the parts; the same as for `init`.
      params: the network's parameters; the same as for `init`.
      carry: the search so far.

    Returns:
      The search after the update. Once the budget of simulations is spent, nothing changes.

    Example:
      >>> carry = jax.jit(jaxpgs.search.step, static_argnums=0)(search, params, carry)
      >>> carry.num_updates
      Array([1, 1], dtype=int32)
    """
    params, carry = trees.stop_gradient((params, carry))
    # Only the size of the memory tells how many rows were kept from an earlier search.
    num_kept = 1
    if isinstance(carry.memory, Nodes):
        num_kept = carry.memory.edge.shape[1] - store_tree.layout(search, 0).num_rows
    store, context = prepare(search, params, carry, num_kept)
    # One instruction on a CPU may become a loop over roots on an accelerator.
    carry = jax.lax.platform_dependent(
        carry,
        cpu=functools.partial(update, store, context),
        default=functools.partial(update, store, context._replace(dense=True)),
    )
    return trees.stop_gradient(carry)  # a model may close over variables that are differentiated


def finish(search: Search, carry: Carry) -> PolicyOutput:
    """Returns the answer of the search so far.

    Args:
      search: the parts.
      carry: the search, after any number of updates.

    Returns:
      A `PolicyOutput`. The search may continue from the same carry.

    Example:
      >>> jaxpgs.search.finish(search, carry).action.shape  # the carry may go on afterwards
      (2,)
    """
    stats, totals = carry.stats, carry.totals
    answer = jax.vmap(functools.partial(_answer, search), axis_name=ROOTS)
    # A target may return the root's value, which replaces the mean return.
    action, action_weights, *worth = answer(carry.target_keys, stats, carry.selection)
    visits = jnp.sum(stats.visits, axis=-1)
    playable = jnp.any(stats.valid, axis=-1)
    value = worth[0] if worth else mean_of(jnp.sum(stats.value_sum, axis=-1), visits)
    lowest = jnp.finfo(value.dtype).min
    state = SearchState(
        visits=stats.visits,
        qvalues=jnp.where((stats.visits > 0) | ~playable[:, None], stats.qvalues, lowest),
        value=jnp.where(visits > 0, value, jnp.where(playable, stats.value, 0.0)),
        params=carry.adapted,
        num_evaluations=totals.evaluations,
        num_calls=jnp.max(totals.calls),
        depth=mean_of(totals.depth, totals.simulations),
        depth_limited=mean_of(totals.limited, totals.simulations),
        entropy=mean_of(totals.entropy, totals.acted),
        gradient_norm=mean_of(totals.gradient_norm, carry.num_updates),
        skipped_updates=totals.skipped,
        not_finite=totals.not_finite,
        nodes=carry.memory if isinstance(carry.memory, Nodes) else None,
        best=carry.best,
        raw_value=stats.value,
        prior_logits=stats.prior_logits,
    )
    return PolicyOutput(action=action, action_weights=action_weights, search_state=state)


def _answer(
    search: Search, rng_key: chex.PRNGKey, root: NodeStats, state: Any
) -> tuple[chex.Array, ...]:
    """Evaluates the target for one root."""
    found = search.target(rng_key, root, state)
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ValueError(
            "target must return an action and weights of the actions, and may return the root's "
            f"value as well; got {found!r}."
        )
    names = (f"The {name} of target, for one root," for name in ("action", "weights", "value"))
    num_actions = len(root.valid)
    # Further columns of a root are chance outcomes, which get no weight from a target.
    if isinstance(search.target, TargetOfActions):
        num_actions = search.target.num_actions
    wanted = (((), "integer"), ((num_actions,), "real"), ((), "real"))
    for name, x, (shape, kind) in zip(names, found, wanted, strict=False):
        check_returned(name, x, shape, kind)
    return found


def advance(search: Search, params: Params, carry: Carry, num_updates: chex.Array) -> Carry:
    """Runs several updates; their number may be traced, so that one compilation serves all.

    Example:
      >>> carry = jax.jit(jaxpgs.search.advance, static_argnums=0)(search, params, carry, 3)
      >>> carry.num_updates
      Array([3, 3], dtype=int32)
    """
    return jax.lax.fori_loop(0, num_updates, lambda _, carry: step(search, params, carry), carry)


def run(
    search: Search,
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    invalid_actions: chex.Array | None = None,
    *,
    nodes: Nodes | None = None,
    adapted_params: Params | None = None,
    simulations_by_root: chex.Array | None = None,
) -> PolicyOutput:
    """Searches with the whole budget: `init`, a loop of `step`, `finish`. Wrap it in `jax.jit`.

    With `simulations_by_root` the loop ends when the largest budget is spent.

    Args and Raises: as `init`.

    Returns:
      A `PolicyOutput`.

    Example:
      >>> output = jax.jit(jaxpgs.search.run, static_argnums=0)(search, params, rng_key, root)
      >>> output.search_state.visits.sum(axis=-1)
      Array([16, 16], dtype=int32)
    """
    carry = init(
        search, params, rng_key, root, invalid_actions, nodes=nodes, adapted_params=adapted_params,
        simulations_by_root=simulations_by_root,
    )  # fmt: skip
    # A scan has a known number of iterations; after each iteration of any other loop an accelerator
    # asks the host whether to continue.
    if search.root_selection.rounds is None and carry.budget is None:
        carry, _ = jax.lax.scan(
            lambda carry, _: (step(search, params, carry), None), carry, length=search.num_updates
        )
    else:
        # The number of updates depends on the budgets, or on the simulations' returns.
        is_left = functools.partial(is_any_left, search)
        carry = jax.lax.while_loop(is_left, functools.partial(step, search, params), carry)
    # The answer is compiled separately from the loop, so that it is bitwise equal to that of
    # `finish`.
    names = ("num_updates", "stats", "selection", "totals")
    known = jax.lax.optimization_barrier({name: getattr(carry, name) for name in names})
    return finish(search, carry._replace(**known))


def is_any_left(search: Search, carry: Carry) -> chex.Array:
    """Tells `[]` whether any root has simulations left."""
    return jnp.any(is_left(search, carry))


def _spread_like_roots(carry: Carry) -> Carry:
    """Gives fresh zeros the device layout of the roots, so that a loop may start from them."""
    zero = trees.zero_rows(carry.stats.prior_logits > 0)

    def spread(x: chex.Array) -> chex.Array:
        rows = zero.reshape(-1, *[1] * (x.ndim - 1))
        return x | (rows > 0) if x.dtype == bool else x + rows.astype(x.dtype)

    # Values that are the same for all roots stay replicated.
    spread_carry = jax.tree.map(functools.partial(trees.on_numbers, spread), carry)
    return spread_carry._replace(model_keys=carry.model_keys)
