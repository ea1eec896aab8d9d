"""The walk: the K simulations of an update, shared by every search.

A simulation takes an action, arrives in a state, and then stops or chooses its next action. The
store provides the state: `store_tree` looks it up or creates it, `store_rollouts` computes it. The
rest of the search does not depend on the store.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import NodeStats, Path, PolicyTerms, Trajectory
from jaxpgs.checks import check_returned
from jaxpgs.search.parts.selection import UNROLLED, Selection, in_turn, masked_argmax
from jaxpgs.search.parts.target import SampledPolicy
from jaxpgs.search.policy import pick, sample_inverse_cdf, terms_and_slopes
from jaxpgs.search.stores.contract import Context, Reached, Simulations, Steps, Store


class _Walk(NamedTuple):
    """The simulations in progress.

    Attributes:
      path: the simulations as the truncation sees them.
      place: where they are.
      action: `[B, K]` their next actions.
      limited: `[B, K]` bool, ended by `max_depth`.
      waiting: `[B, K]` bool, stopped in a state that is not created yet.
      evaluations: `[B]` int32.
      calls: `[B]` int32.
      not_finite: `[B]` int32.
      whole: `[T, 2, B, K]` int32: actions, and numbers of the states that they led to.
      real: `[T, ..., B, K]`: reward, discount, value, and what is recorded about the choice.
      source: `[T, B, K, ...]` the places where actions were chosen, None if not needed.
    """

    path: Path
    place: Any
    action: chex.Array
    limited: chex.Array
    waiting: chex.Array
    evaluations: chex.Array
    calls: chex.Array
    not_finite: chex.Array
    whole: chex.Array
    real: chex.Array
    source: Any


def walk(
    context: Context,
    store: Store,
    memory: Any,
    table: Any,
    path: Path,
    actions: chex.Array,
    uniform: chex.Array,
) -> tuple[Any, Simulations]:
    """Runs the K simulations of an update.

    Args:
      context: the context of the update.
      store: where states come from.
      memory: the store's memory.
      table: the result of `store.make_table`.
      path: the simulations before their first step.
      actions: `[B, K]` the first actions.
      uniform: `[T, B, K]` random numbers for the actions.

    Returns:
      The memory and the simulations.
    """
    # The root selection has chosen the first action. So the first step is outside of the loop,
    # whose iterations begin with a choice of the simulation policy.
    state = _start(context, store, memory, path, actions)
    t = jnp.max(state.calls)  # not a constant 0: it varies over devices as the rows do
    told = dict.fromkeys(_told(context.needed), 0 * state.real[0, 0])
    memory, state = _arrive(context, store, t, memory, state, told)

    def step(carry: tuple) -> tuple:
        t, memory, state = carry
        t = t + 1
        state, told = _choose(context, store, t, memory, table, state, uniform)
        return t, *_arrive(context, store, t, memory, state, told)

    # The loop ends when the simulations of all roots have stopped; few reach the bound T.
    carry = (t, memory, state)
    _, memory, state = jax.lax.while_loop(lambda c: jnp.any(c[2].path.alive), step, carry)
    # If every simulation stops in the first unknown state, a tree evaluates all of these states
    # here, in the only network call of the update.
    made = None
    if context.search.truncation.one_call:
        memory, made = store.close(context, memory, state.place, state.action, state.waiting)
    return memory, _simulations(context, store, memory, state, made)


def _told(needed: frozenset[str]) -> list[str]:
    """Returns what is recorded about each choice: terms, and norms of their derivatives."""
    others = sorted(needed - {"log_prob"})
    terms = sorted({"log_prob", "entropy", *others})
    return [*terms, *(f"norm of {name}" for name in others)]


def _start(context: Context, store: Store, memory: Any, path: Path, actions: chex.Array) -> _Walk:
    """Returns the simulations before their first step."""
    rows = trees.zero_rows(actions)
    place = store.begin(context, memory, actions)
    # [T, rows, B, K]: reward, discount, value and what is recorded about the choice (`_arrive`).
    steps = (context.max_depth, 3 + len(_told(context.needed)), *actions.shape)
    # Only a gradient needs the states in which simulations acted again.
    source = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (context.max_depth, *x.shape)),
        store.record(place) if context.needed else None,
    )
    return _Walk(
        path=path._replace(code=extend_code(path.code, actions)),
        place=place,
        action=actions,
        limited=path.alive & False,
        waiting=path.alive & False,
        evaluations=rows,
        calls=rows,
        not_finite=rows,
        whole=trees.zeros((steps[0], 2, *actions.shape), jnp.int32, rows, axis=2),
        real=trees.zeros(steps, context.model.dtype, rows, axis=2),
        source=source,
    )


def _arrive(
    context: Context,
    store: Store,
    t: chex.Array,
    memory: Any,
    state: _Walk,
    told: dict[str, chex.Array],
) -> tuple[Any, _Walk]:
    """Takes step t, records where it leads, and stops the simulations that must stop."""
    search, alive = context.search, state.path.alive
    memory, place, reached = store.follow(context, memory, state.place, state.action, t, state.path)
    path = state.path._replace(
        depth=state.path.depth + alive.astype(jnp.int32), new=alive & reached.new
    )
    # A simulation is ended by its truncation, by the bound T, or by the end of the episode, where
    # the discount is 0.
    own_end, at_limit = search.truncation.stop(path), path.depth >= context.max_depth
    check_returned("What truncation.stop returns", own_end, path.depth.shape, "bool")
    over = reached.discount == 0
    rows = [reached.reward, reached.discount, reached.value, *told.values()]
    # Entries of simulations that have stopped are 0, as `Trajectory` promises.
    real = jnp.where(alive, jnp.stack(rows), 0.0).astype(state.real.dtype)
    whole = jnp.where(alive, jnp.stack([state.action, reached.child]), 0)
    return memory, state._replace(
        path=path._replace(alive=alive & ~(own_end | at_limit | over)),
        place=place,
        limited=state.limited | (alive & at_limit & ~own_end & ~over),
        # Child 0 is a state that the tree has not created yet. Rollouts do not use this.
        waiting=state.waiting | (alive & own_end & (reached.child == 0)),
        evaluations=state.evaluations + reached.evaluations,
        calls=state.calls + reached.calls,
        not_finite=state.not_finite + reached.not_finite,
        whole=_write(state.whole, whole, t),
        real=_write(state.real, real, t),
    )


def _choose(
    context: Context,
    store: Store,
    t: chex.Array,
    memory: Any,
    table: Any,
    state: _Walk,
    uniform: chex.Array,
) -> tuple[_Walk, dict[str, chex.Array]]:
    """Chooses the actions of step t; also returns what is recorded about the choice."""
    path, interior = state.path, context.search.interior_selection
    if isinstance(interior, Selection) and context.search.root_selection.rounds is not None:
        return _choose_alone(context, store, memory, state)
    seen = store.look(context, memory, table, state.place)
    policy = seen.policy
    # Three ways to choose: the selection of a tree search, the action that brings the visit counts
    # closest to the policy, or a sample from the policy.
    if isinstance(interior, Selection):
        choose = lambda k, node, pending: interior.select(None, node, pending)  # noqa: E731
        action = _in_turn(seen.stats, state.place.node, path.alive, choose, context.dense)
    elif isinstance(interior, SampledPolicy) and interior.by_counts:
        at = (seen.stats, state.place.node, path.alive)
        action = _by_counts(policy.policy, *at, context.dense)
    else:
        # Step 1 is the first that samples, so step t takes row t - 1.
        now = jax.lax.dynamic_index_in_dim(uniform, t - 1, keepdims=False)
        action = sample_inverse_cdf(policy.cumulative, policy.last, now)
    log_prob = jnp.log(pick(policy.policy, action))
    found, slopes = terms_and_slopes(policy.policy, seen.prior, policy.entropy, context.needed)
    norms = {f"norm of {n}": jnp.linalg.norm(slope, axis=-1) for n, slope in slopes.items()}
    # A selection does not sample actions, so nothing is learned from their probability.
    drawn = 0 * log_prob if isinstance(interior, Selection) else log_prob
    told = found | norms | {"log_prob": drawn}
    if state.source is not None:
        record = store.record(state.place)
        source = jax.tree.map(lambda x, new: _write(x, new, t), state.source, record)
        state = state._replace(source=source)
    # A truncation by probability needs it however the action was chosen.
    return _take(state, action, log_prob), {name: told[name] for name in _told(context.needed)}


def _choose_alone(
    context: Context, store: Store, memory: Any, state: _Walk
) -> tuple[_Walk, dict[str, chex.Array]]:
    """Does the same as `_choose` in rounds, where simulations are independent and nothing adapts.

    Their first actions are all different, or the root has a single action and all paths are equal.
    """
    interior, alive = context.search.interior_selection, state.path.alive
    assert isinstance(interior, Selection)

    def look(place: Any) -> tuple[chex.Array, ...]:
        seen = store.look(context, memory, None, place)
        # Selections are asked about nodes `[B, A]`, so the axes B and K become one.
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), seen.stats)
        action = interior.select(None, flat, 0 * flat.value_sum).reshape(place.node.shape)
        return action, jnp.log(pick(seen.policy.policy, action)), seen.policy.entropy

    def one(k: chex.Array) -> tuple[chex.Array, ...]:
        place, going = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, k, 1, axis=1), (state.place, alive)
        )
        none = jax.tree.map(
            lambda x: jnp.zeros_like(place.node, x.dtype), jax.eval_shape(look, place)
        )
        return jax.lax.cond(jnp.any(going), look, lambda _: none, place)

    if context.dense:
        action, log_prob, entropy = look(state.place)
    else:  # a CPU skips the nodes of simulations that have stopped
        found = jax.lax.map(one, jnp.arange(alive.shape[1]))
        action, log_prob, entropy = (x[..., 0].T for x in found)
    return _take(state, action, log_prob), {"entropy": entropy, "log_prob": 0 * log_prob}


def _take(state: _Walk, action: chex.Array, log_prob: chex.Array) -> _Walk:
    """Sets the next actions of the simulations that continue."""
    path = state.path
    return state._replace(
        path=path._replace(
            code=jnp.where(path.alive, extend_code(path.code, action), path.code),
            log_prob=path.log_prob + jnp.where(path.alive, log_prob, 0.0),
        ),
        action=jnp.where(path.alive, action, state.action),
    )


def _write(x: chex.Array, row: chex.Array, t: chex.Array) -> chex.Array:
    """Writes row t; an indexed update would check its bounds in a separate kernel launch."""
    return jax.lax.dynamic_update_index_in_dim(x, row, t, 0)


def _in_turn(
    stats: NodeStats,
    node: chex.Array,
    alive: chex.Array,
    choose: Callable[[Any, NodeStats, chex.Array], chex.Array],
    dense: bool,
) -> chex.Array:
    """Chooses an action in the node of each simulation, one simulation after another.

    Earlier simulations in the same node are pending there, as if each had finished its path before
    the next one began.

    Args:
      stats: `[B, K, A]` statistics of the nodes.
      node: `[B, K]` numbers of the nodes.
      alive: `[B, K]` bool, the simulations that continue.
      choose: `(k, node, pending [B, A]) -> [B]`.
      dense: whether the program is for an accelerator, where conditions are expensive.
    """
    num_walks, num_actions = stats.visits.shape[1:]
    # [B, K, K]: whether simulation i, the last axis, continues in the node of simulation k.
    same = (node[:, :, None] == node[:, None, :]) & alive[:, None, :]
    # [B, K, A]: what is pending in the node of each simulation.
    pending = 0 * stats.value_sum

    def chosen_by(k: Any, pending: chex.Array) -> chex.Array:
        return choose(k, jax.tree.map(lambda x: x[:, k], stats), pending)

    if dense and num_walks <= UNROLLED:
        return in_turn(chosen_by, pending[:, 0], num_walks, same)

    def one(pending: chex.Array, k: Any) -> tuple[chex.Array, chex.Array]:
        action = chosen_by(k, pending[:, k])
        check_returned("What interior_selection chooses", action, node.shape[:1], "integer")
        chosen = jax.nn.one_hot(action, num_actions, dtype=pending.dtype)
        return pending + jnp.where(same[:, :, k, None], chosen[:, None], 0.0), action

    def one_if_alive(pending: chex.Array, k: Any) -> tuple[chex.Array, chex.Array]:
        none = lambda pending, k: (pending, 0 * node[:, 0])  # noqa: E731
        return jax.lax.cond(jnp.any(alive[:, k]), one, none, pending, k)

    # A CPU skips simulations that have stopped in all roots; on an accelerator each condition would
    # wait for the host.
    step = one if dense else one_if_alive
    return jax.lax.scan(step, pending, jnp.arange(num_walks))[1].T


def _by_counts(
    policy: chex.Array, stats: NodeStats, node: chex.Array, alive: chex.Array, dense: bool
) -> chex.Array:
    """Chooses the actions that bring the nodes' visits closest to a policy."""
    visits = stats.visits.astype(policy.dtype)
    # [B, K, K]: the earlier simulations of this update that are in the same node.
    same = jnp.tril(node[:, :, None] == node[:, None, :], -1) & alive[:, None, :]
    # Danihelka et al. 2022, section 5: the largest pi'(a) - n(a) / (1 + n), where pending
    # simulations count as visits.
    total = 1 + jnp.sum(visits, axis=-1) + jnp.sum(same, axis=-1).astype(policy.dtype)

    def choose(k: Any, node: NodeStats, pending: chex.Array) -> chex.Array:
        scores = policy[:, k] - (visits[:, k] + pending) / total[:, k, None]
        return masked_argmax(scores, policy[:, k] > 0)

    return _in_turn(stats, node, alive, choose, dense)


def _simulations(
    context: Context, store: Store, memory: Any, state: _Walk, made: Reached | None
) -> Simulations:
    """Reads the trajectories from the recorded steps and from the states created at the end."""
    depth, names = state.path.depth, _told(context.needed)
    number = jnp.arange(context.max_depth, dtype=jnp.int32)[:, None, None]
    alive = number < depth[None]
    # The rows are in the order in which `_arrive` stacked them.
    reward, discount, value, *told = jnp.moveaxis(state.real, 1, 0)
    action, child = state.whole[:, 0], state.whole[:, 1]
    counts = [state.evaluations, state.calls, state.not_finite]
    if made is not None:
        # States that `close` created were not known when the last step was recorded; fill them in.
        last = state.waiting[None] & (number == depth[None] - 1)
        fresh = (made.reward, made.discount, made.value, made.child)
        reward, discount, value, child = (
            jnp.where(last, new, old)
            for new, old in zip(fresh, (reward, discount, value, child), strict=True)
        )
        more = made.evaluations, made.calls, made.not_finite
        counts = [old + new for old, new in zip(counts, more, strict=True)]
    found = dict(zip(names, told, strict=True))
    norms = {n: found[f"norm of {n}"] for n in PolicyTerms._fields if f"norm of {n}" in found}
    trajectory = Trajectory(
        alive=alive,
        reward=reward,
        discount=discount,
        value=value,
        **{name: found.get(name, 0 * value) for name in PolicyTerms._fields},
        depth=depth,
        limited=state.limited,
        num_evaluations=counts[0],
        num_calls=counts[1],
        not_finite=counts[2],
        last=None,
    )
    if context.search.best_of is not None:
        # The node that the last step reached; not needed in rollouts, whose numbers are hashes.
        ends = jnp.max(jnp.where(number == depth[None] - 1, child, 0), axis=0)
        last_states = store.last(context, memory, state.place, ends)
        trajectory = trajectory._replace(last=last_states)
    # A step begins where the previous one led; the first one begins in the root, node 0.
    before = jnp.concatenate([0 * child[:1], child[:-1]])
    steps = Steps(alive & (number > 0), before if state.source is None else state.source, action)
    return Simulations(trajectory, norms, steps, child)


def keep(trajectory: Trajectory, counts: chex.Array) -> Trajectory:
    """Drops simulations that do not count (`counts` `[B, K]`), but not their evaluations."""
    return trajectory._replace(
        alive=trajectory.alive & counts[None],
        # Only this one of the policy's terms is summed: in rounds nothing adapts, so no objective
        # reads the others.
        entropy=jnp.where(counts[None], trajectory.entropy, 0.0),
        depth=jnp.where(counts, trajectory.depth, 0),
        limited=trajectory.limited & counts,
    )


def extend_code(code: chex.Array, action: chex.Array) -> chex.Array:
    """Hashes one more action into the codes of sequences (a multiply-and-shift mix of 32 bits)."""
    # Without the 1, all sequences of only action 0 would have the code 0.
    code = (code ^ (action.astype(jnp.uint32) + 1)) * jnp.uint32(0x9E3779B1)
    code = (code ^ (code >> 15)) * jnp.uint32(0x85EBCA77)
    return code ^ (code >> 13)


def draw(rng_keys: chex.PRNGKey, max_depth: int, num_walks: int) -> tuple[chex.PRNGKey, chex.Array]:
    """Returns `[B]` keys for the network calls and `[T, B, K]` uniform numbers for the actions.

    All random numbers of the update come from one call, with one uniform per action instead of one
    per logit.
    """
    step_keys, sample_keys = jax.vmap(lambda key: tuple(jax.random.split(key)))(rng_keys)
    # A single row, since the generator's code for several axes is longer and slower to compile.
    count = max_depth * num_walks
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (count,)))(sample_keys)
    return step_keys, jnp.moveaxis(uniform.reshape(-1, max_depth, num_walks), 0, 1)
