"""The cached mode: simulations along remembered nodes.

A simulation walks down the nodes that earlier updates have made, reads the torso's features from
them and applies only the adapted head. The network is called for the nodes that the K simulations
of an update add, all in one batch: with `until_new`, N simulations cost at most N evaluations in
N / K calls (Anthony et al. 2019, end of section 3.1).

A node is one state. Where the model draws chance, the first outcome of an action stays, and later
simulations know it in advance. To draw anew, a node would need a child for each outcome, statistics
summed over them, and a `reroot` that finds the outcome that came; the constant mode draws anew.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.base import (
    Embedding,
    Expansion,
    Params,
    Path,
    PolicyTerms,
    SplitRecurrentFn,
    Trajectory,
    statistics_dtype,
)
from jaxpgs.search.parts.improvement import SampledPolicy
from jaxpgs.search.parts.selection import Selection
from jaxpgs.search.simulators import adaptation, terms
from jaxpgs.search.simulators.gradient import ActedStates, Actions, differentiate
from jaxpgs.search.simulators.node_policy import policies, policy_logits, simulation_logits
from jaxpgs.search.simulators.nodes import (
    Nodes,
    add_visits,
    expand,
    lookup,
    make_nodes,
    take,
    unique,
    write,
)
from jaxpgs.search.simulators.room import keeps_ranges, max_depth, num_new, num_spare
from jaxpgs.search.simulators.simulator import (
    Context,
    Replay,
    Simulations,
    Simulator,
    Steps,
    complete,
    delay,
    draw,
    extend_code,
    fold_in,
    go_on,
    invert,
)
from jaxpgs.search.simulators.split import check_independent, split_in_two
from jaxpgs.search.simulators.tree import choose_in_nodes, follow_by_counts

if TYPE_CHECKING:
    from jaxpgs.search.definition import Search

_USUAL_DEPTH = 16


class Memory(NamedTuple):
    """What is kept from update to update.

    Attributes:
      nodes: the visited states.
      states: where the last update acted, None if nothing learns.
    """

    nodes: Nodes
    states: ActedStates | None


class Residuals(NamedTuple):
    """What the gradient and the statistics need to know of an update.

    Attributes:
      actions: what was done where.
      visited: `[T, B, K]` int32, the node that each step reached.
    """

    actions: Actions
    visited: chex.Array


class _Update(NamedTuple):
    """What the steps of an update have in common.

    Attributes:
      context: what it is made with.
      split_fn: the model in two parts.
      step_keys: `[B]` keys for the network calls.
      uniform: `[T, B, K]` random numbers for the actions.
      limit: the last node that may be kept.
    """

    context: Context
    split_fn: SplitRecurrentFn
    step_keys: chex.PRNGKey
    uniform: chex.Array
    limit: int


class _Walks(NamedTuple):
    """The simulations of an update, on their way; arrays `[T, B, K]` tell of each step.

    Attributes:
      path: as the truncation sees them.
      node: `[B, K]` the last known node reached.
      action: `[B, K]` the action to take from there.
      waiting: `[B, K]` bool, stopped in a node that is yet to be made.
      limited: `[B, K]` bool, ended by `max_depth`.
      num_calls: `[B]` int32 network calls.
      visited: the node that each step reached.
      terms: by name, the policy's terms for the action taken in that node, 0 where none followed:
        `log_prob`, `entropy` and those that are needed.
      norms: by name, the norms of the derivatives of needed terms but `log_prob`.
      actions: which action was taken, and where its state stands among the acted ones.
    """

    path: Path
    node: chex.Array
    action: chex.Array
    waiting: chex.Array
    limited: chex.Array
    num_calls: chex.Array
    visited: chex.Array
    terms: dict[str, chex.Array]
    norms: dict[str, chex.Array]
    actions: Actions


def init(context: Context, root: mctx.RootFnOutput, kept: Nodes | None) -> Memory:
    """Makes the memory; see `Simulator`."""
    search, params, _, needed = context
    num_kept = 1 if kept is None else kept.parent.shape[1]
    more = num_new(search) + num_spare(search)
    mask = adaptation.adapt_mask(params, search.adapt)
    expand_fn = split_in_two(search.recurrent_fn, any(mask), statistics_dtype(root)).expand
    check_independent(expand_fn, params, mask, root)
    keeps = {"ranges": keeps_ranges(search), "codes": search.transpositions is not None}
    nodes = make_nodes(params, root, expand_fn, more, kept, **keeps)
    if not needed:
        return Memory(nodes, None)
    batch_size, num_rows, num_actions = nodes.children.shape
    num_walks = search.simulations_per_update
    # At most every known state; and one more block, as the last one may reach over the end.
    depth = max_depth(search, num_kept)
    rows = (batch_size, min(depth * num_walks, num_rows) + num_walks)
    policy = jnp.zeros((*rows, num_actions), statistics_dtype(root))
    prior = jnp.zeros_like(policy) if terms.needs_prior(needed) else None
    return Memory(nodes, ActedStates(nodes.size, jnp.zeros(rows, jnp.int32), policy, prior))


def simulate(
    context: Context,
    memory: Memory,
    rng_keys: chex.PRNGKey,
    actions: chex.Array,
    path: Path,
) -> Simulations:
    """Runs K simulations of each root; see `Simulator`."""
    search, (nodes, states) = context.search, memory
    num_rows = nodes.parent.shape[1]
    depth = max_depth(search, num_rows - num_new(search) - num_spare(search))
    step_keys, uniform = draw(rng_keys, depth, actions.shape[1])
    adapts = any(adaptation.adapt_mask(context.params, search.adapt))
    split_fn = split_in_two(search.recurrent_fn, adapts, nodes.value.dtype)
    limit = num_rows - num_spare(search) - 1
    update = _Update(context, split_fn, step_keys, uniform, limit)
    before = nodes.size
    if states is not None:
        states = states._replace(size=jnp.zeros_like(before))
    walks = _start(update, actions, path, nodes.value.dtype)
    t = jnp.sum(before) * 0  # not a constant: it varies over devices as the nodes do
    nodes, walks = _arrive(update, t, nodes, walks)
    _, nodes, walks, states = jax.lax.while_loop(
        lambda carry: jnp.any(carry[2].path.alive),
        functools.partial(_step, update),
        (t, nodes, walks, states),
    )
    nodes, walks = _make_last(update, nodes, walks)
    trajectory = _trajectory(search, nodes, walks, nodes.size - before)
    memory = Memory(nodes._replace(size=jnp.minimum(nodes.size, limit)), states)
    norms = complete(walks.norms, trajectory.value)
    norms = norms._replace(log_prob=terms.log_prob_norm(trajectory.log_prob))
    return Simulations(trajectory, norms, Residuals(walks.actions, walks.visited), memory)


def gradient(
    context: Context, simulations: Simulations, cotangents: PolicyTerms
) -> tuple[Params, Simulations]:
    """Differentiates the policy in the states where the simulations acted; see `Simulator`."""
    nodes, states = simulations.memory
    split_fn = context.search.recurrent_fn
    assert isinstance(split_fn, SplitRecurrentFn)
    with jax.named_scope("gradient"):
        found, states = differentiate(
            functools.partial(simulation_logits, context, split_fn, nodes),
            context.adapted,
            states,
            simulations.residuals.actions,
            simulations.trajectory.alive,
            cotangents,
            context.needed,
        )
    return found, simulations._replace(memory=Memory(nodes, states))


def remember(search: "Search", simulations: Simulations, returns: chex.Array) -> Memory:
    """Adds the returns to the nodes' statistics, if anybody reads them; see `Simulator`."""
    nodes, states = simulations.memory
    if search.interior_selection is None:
        return simulations.memory
    limit = nodes.parent.shape[1] - num_spare(search) - 1
    visited, alive = simulations.residuals.visited, simulations.trajectory.alive
    nodes = _up_to_deepest(
        simulations.trajectory.depth,
        len(returns),
        lambda num: add_visits(nodes, visited[:num], alive[:num], returns[:num], limit),
    )
    return Memory(nodes, states)


def _start(update: _Update, actions: chex.Array, path: Path, dtype: jnp.dtype) -> _Walks:
    """The simulations before their first step."""
    rows = trees.zero_rows(actions)
    counts = trees.zeros((len(update.uniform), *actions.shape), jnp.int32, rows, axis=1)
    others = update.context.needed - {"log_prob"}
    nothing = dict.fromkeys(sorted({"log_prob", "entropy"} | others), counts.astype(dtype))
    return _Walks(
        path=path._replace(code=extend_code(path.code, actions)),
        node=actions * 0,
        action=actions,
        waiting=path.alive & False,
        limited=path.alive & False,
        num_calls=rows,
        visited=counts,
        terms=nothing,
        norms={name: nothing[name] for name in sorted(others)},
        actions=Actions(counts[..., 0], counts, counts),
    )


def _step(update: _Update, carry: tuple) -> tuple:
    """Chooses the actions that follow step t, and takes step t + 1."""
    t, nodes, walks, states = carry
    interior = update.context.search.interior_selection
    if isinstance(interior, Selection):
        walks = _select(interior, t, nodes, walks)
    else:
        walks, states = _sample(update, t, nodes, walks, states)
    nodes, walks = _arrive(update, t + 1, nodes, walks)
    return t + 1, nodes, walks, states


def _arrive(update: _Update, t: chex.Array, nodes: Nodes, walks: _Walks) -> tuple[Nodes, _Walks]:
    """Takes step t, as far as it leads to known nodes, and stops those that must stop."""
    truncation = update.context.search.truncation
    alive = walks.path.alive
    child = lookup(nodes, walks.node, walks.action)
    path = walks.path._replace(depth=walks.path.depth + alive.astype(jnp.int32), new=child == 0)
    own_end, at_limit = truncation.stop(path), path.depth >= len(walks.visited)
    stopping = own_end | at_limit
    num_calls = walks.num_calls
    if not truncation.one_call:
        wanted = alive & (child == 0) & ~stopping
        called = jnp.any(wanted)
        num_calls += called.astype(jnp.int32)
        nodes, made = jax.lax.cond(
            called,
            lambda nodes: _expand(update, t, nodes, walks, wanted),
            lambda nodes: (nodes, child * 0),
            nodes,
        )
        child = jnp.where(wanted, made, child)
    known = child > 0
    over = known & (take(nodes.discount, child) == 0)
    walks = walks._replace(
        path=path._replace(alive=alive & ~(stopping | over)),
        node=jnp.where(alive & known, child, walks.node),
        waiting=walks.waiting | (alive & ~known),
        limited=walks.limited | (alive & at_limit & ~own_end & ~over),
        num_calls=num_calls,
        visited=walks.visited.at[t].set(child),
    )
    return nodes, walks


def _sample(
    update: _Update, t: chex.Array, nodes: Nodes, walks: _Walks, states: ActedStates | None
) -> tuple[_Walks, ActedStates | None]:
    """Chooses the actions that follow step t by the simulation policy."""
    alive = walks.path.alive
    row, index, count = unique(walks.node, alive)
    node = take(walks.node, index)
    policy, prior = policies(update.context, update.split_fn, nodes, node, count)
    num_actions = policy.policy.shape[-1]
    cumulative, last = take((policy.cumulative, policy.last), row)
    interior = update.context.search.interior_selection
    if isinstance(interior, SampledPolicy) and interior.by_counts:
        action = follow_by_counts(nodes, node, policy.policy, row, alive)
    else:
        action = invert(cumulative, last, update.uniform[t])
    log_prob = jnp.log(take(policy.policy.reshape(len(row), -1), row * num_actions + action))
    actions = walks.actions
    if states is not None:
        actions = Actions(
            start=actions.start.at[t].set(states.size),
            row=actions.row.at[t].set(row),
            action=actions.action.at[t].set(action),
        )
        if prior is not None:
            states = states._replace(prior=write(states.prior, prior, states.size))
        states = states._replace(
            size=states.size + count,
            node=write(states.node, node, states.size),
            policy=write(states.policy, policy.policy, states.size),
        )
    found, slopes = terms.values(policy.policy, prior, policy.entropy, update.context.needed)
    norms = {name: jnp.linalg.norm(slope, axis=-1) for name, slope in slopes.items()}
    found, norms = take((found, norms), row)
    walks = walks._replace(
        path=go_on(walks.path, action, log_prob),
        action=jnp.where(alive, action, walks.action),
        terms=_record(walks.terms, t, found | {"log_prob": log_prob}, alive),
        norms=_record(walks.norms, t, norms, alive),
        actions=actions,
    )
    return walks, states


def _record(
    told: dict[str, chex.Array], t: chex.Array, now: dict[str, chex.Array], alive: chex.Array
) -> dict[str, chex.Array]:
    """Writes down what is told of step t, `[B, K]` each."""
    return {name: x.at[t].set(jnp.where(alive, now[name], 0.0)) for name, x in told.items()}


def _select(selection: Selection, t: chex.Array, nodes: Nodes, walks: _Walks) -> _Walks:
    """Chooses the actions that follow step t by the statistics of the nodes."""
    alive = walks.path.alive
    action, log_prob, entropy = choose_in_nodes(selection, nodes, walks.node, alive)
    # No action is drawn, so the log probability is nobody's to learn from.
    told = {"entropy": entropy, "log_prob": jnp.zeros_like(log_prob)}
    return walks._replace(
        path=go_on(walks.path, action, log_prob),
        action=jnp.where(alive, action, walks.action),
        terms=_record(walks.terms, t, told, alive),
    )


@jax.named_scope("expand")
def _expand(
    update: _Update, t: chex.Array, nodes: Nodes, walks: _Walks, wanted: chex.Array
) -> tuple[Nodes, chex.Array]:
    """Makes the nodes that simulations want, with one network call."""
    call = functools.partial(_call_expand, update, fold_in(update.step_keys, t))
    same_state = update.context.search.transpositions
    return expand(nodes, walks.node, walks.action, wanted, call, update.limit, same_state)


def _call_expand(
    update: _Update, keys: chex.PRNGKey, action: chex.Array, embedding: Embedding
) -> tuple[Expansion, Embedding]:
    """Evaluates `[B, K]` new states, in pieces if the model asks for it."""
    split_fn = update.split_fn
    batch_size, num_walks = action.shape

    def call(inputs: tuple) -> tuple[Expansion, Embedding]:
        return split_fn.expand(update.context.params, *inputs)

    at_once = (split_fn.max_batch or batch_size * num_walks) // num_walks
    inputs = (keys, action, embedding)
    if at_once >= batch_size:
        return jax.vmap(call)(inputs)
    return jax.lax.map(call, inputs, batch_size=max(at_once, 1))


def _make_last(update: _Update, nodes: Nodes, walks: _Walks) -> tuple[Nodes, _Walks]:
    """Makes the nodes that simulations have stopped in, and tells them where they are."""
    depth = len(walks.visited)
    # What one waits for may have been made on the way, for another that had to go on.
    found = lookup(nodes, walks.node, walks.action)
    wanted = walks.waiting & (found == 0)
    nodes, made = _expand(update, jnp.int32(depth), nodes, walks, wanted)
    made = jnp.where(wanted, made, found)
    is_last = jnp.arange(depth)[:, None, None] == walks.path.depth[None] - 1
    called = jnp.any(wanted).astype(jnp.int32)
    return nodes, walks._replace(
        visited=jnp.where(walks.waiting[None] & is_last, made, walks.visited),
        num_calls=walks.num_calls + called,
    )


def _trajectory(
    search: "Search", nodes: Nodes, walks: _Walks, num_evaluations: chex.Array
) -> Trajectory:
    """Reads what the simulations met from the nodes that they visited."""
    visited, depth = walks.visited, walks.path.depth
    alive = jnp.arange(len(visited))[:, None, None] < depth[None]
    reward, discount, value = (
        jnp.where(alive, jax.vmap(take, (None, 0))(x, visited), 0.0)
        for x in (nodes.reward, nodes.discount, nodes.value)
    )
    last = None
    if search.best_of is not None:
        last = take(nodes.embedding, jnp.max(jnp.where(alive, visited, 0), axis=0))
    return Trajectory(
        alive=alive,
        reward=reward,
        discount=discount,
        value=value,
        **complete(walks.terms, value)._asdict(),
        depth=depth,
        limited=walks.limited,
        num_evaluations=num_evaluations,
        num_calls=walks.num_calls,
        last=last,
    )


def _up_to_deepest(depth: chex.Array, max_depth: int, function: Callable[[int], Any]) -> Any:
    """Calls a function with so many steps that all are among them that simulations took.

    Where nothing bounds their length it is `max_depth`, which few simulations come near.
    """
    if max_depth <= _USUAL_DEPTH:
        return function(max_depth)
    usual = jnp.max(depth) <= _USUAL_DEPTH
    return jax.lax.cond(usual, lambda: function(_USUAL_DEPTH), lambda: function(max_depth))


def _steps(simulations: Simulations) -> Steps:
    """The nodes in which the simulations acted, and how; see `Replay`."""
    residuals = simulations.residuals
    alive = simulations.trajectory.alive.at[0].set(False)  # the root's selection took step 0
    return Steps(alive, delay(residuals.visited), delay(residuals.actions.action))


def _replay_logits(context: Context, memory: Memory, node: chex.Array) -> chex.Array:
    """The policy's logits in nodes `[B, W]`; see `Replay`."""
    split_fn = context.search.recurrent_fn
    assert isinstance(split_fn, SplitRecurrentFn)
    return policy_logits(split_fn, context.frozen, memory.nodes, context.adapted, node)


simulator = Simulator(init, simulate, gradient, remember, Replay(_steps, _replay_logits))
