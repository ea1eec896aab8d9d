"""The constant mode: plain rollouts, in memory that does not depend on how many there are.

All `B * K` simulations of an update take their steps together through `recurrent_fn`; a step is one
network call, and when every simulation has stopped, the remaining ones are skipped. The gradient
runs through the rollouts. Kept for it is only what the adapted leaves touch (a policy head: its
features), so the rest of the network is evaluated once and never differentiated.

Every call of `recurrent_fn` has a key of its own: a model that draws chance draws it anew in each
simulation, for the same actions as well.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.base import (
    Embedding,
    Params,
    Path,
    PolicyTerms,
    SplitRecurrentFn,
    Trajectory,
    as_logits,
    as_values,
)
from jaxpgs.device_memory import check_fits
from jaxpgs.search.simulators import adaptation, terms
from jaxpgs.search.simulators.simulator import (
    Context,
    Replay,
    Simulations,
    Simulator,
    Steps,
    attached_terms,
    complete,
    delay,
    distribution,
    draw,
    extend_code,
    fold_in,
    go_on,
    invert,
)
from jaxpgs.search.simulators.split import check_independent

if TYPE_CHECKING:
    from jaxpgs.search.definition import Search

DEFAULT_MAX_DEPTH = 16


class Memory(NamedTuple):
    """What is kept from update to update.

    Attributes:
      embedding: `[B, ...]` the roots.
      seen: `[B, S]` bool, flags of the sequences taken, indexed by their hash; S may be 0.
    """

    embedding: Embedding
    seen: chex.Array


class _Update(NamedTuple):
    """What the steps of an update have in common.

    Attributes:
      context: what it is made with.
      memory: the memory.
      first: `[B, K]` the first actions.
      step_keys: `[B]` keys for the network calls.
      recalls_values: whether values and rewards are evaluated without what has adapted.
    """

    context: Context
    memory: Memory
    first: chex.Array
    step_keys: chex.PRNGKey
    recalls_values: bool


class _Rollouts(NamedTuple):
    """The simulations of an update, on their way.

    Attributes:
      embedding: `[B, K, ...]` the states reached.
      action: `[B, K]` the actions to take there.
      path: as the truncation sees them.
      limited: `[B, K]` bool, ended by `max_depth`.
      num_calls: `[B]` int32 network calls so far.
    """

    embedding: Embedding
    action: chex.Array
    path: Path
    limited: chex.Array
    num_calls: chex.Array


class _Told(NamedTuple):
    """What is told of one step, `[B, K]` each; see `Trajectory` and `Simulations`."""

    alive: chex.Array
    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    code: chex.Array
    terms: dict[str, chex.Array]
    norms: dict[str, chex.Array]
    played: "_Played | None"


class _Played(NamedTuple):
    """What a step has to tell for its simulation to be used again.

    Attributes:
      features: `[B, K, ...]` of the state reached, as in `Expansion`.
      embedding: `[B, K, ...]` the state.
      action: `[B, K]` int32, the action drawn there.
    """

    features: Any
    embedding: Embedding
    action: chex.Array


class _Residuals(NamedTuple):
    """What is needed of an update afterwards.

    Attributes:
      pull_back: from cotangents of the policy's terms to the gradient; None if nothing learns.
      alive: `[T, B, K]` bool, the steps taken.
      played: `[T, B, K, ...]` of each step, None unless simulations are used again.
    """

    pull_back: Any
    alive: chex.Array
    played: _Played | None


def init(context: Context, root: mctx.RootFnOutput, kept: Any) -> Memory:
    """Makes the memory; see `Simulator`."""
    if kept is not None:
        raise ValueError('nodes are for mode="cached"; mode="constant" keeps none.')
    if context.search.reuse is not None:
        split_fn = context.search.recurrent_fn
        assert isinstance(split_fn, SplitRecurrentFn)
        mask = adaptation.adapt_mask(context.params, context.search.adapt)
        check_independent(split_fn.expand, context.params, mask, root)
    _check_memory(context, root)
    shape = (len(root.value), context.search.truncation.table_size)
    return Memory(root.embedding, jnp.zeros(shape, bool))


def _check_memory(context: Context, root: mctx.RootFnOutput) -> None:
    """Raises `MemoryError` if an update's simulations cannot fit."""
    search, (batch_size, _) = context.search, root.prior_logits.shape
    num_walks, steps = search.simulations_per_update, max_depth(search)

    def per_walk(tree: Any, *axes: int) -> Any:
        shape = (*axes, batch_size, num_walks)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*shape, *x.shape[1:]), x.dtype), tree)

    # Ten numbers of each step, and the state before it and behind it.
    kept = [per_walk([root.value] * 10, steps), per_walk(root.embedding, 2)]
    check_fits(
        kept,
        f"The simulations that {batch_size} roots run at once, {num_walks} each,",
        "Lower simulations_per_update or max_depth, or search fewer roots at once; "
        "jaxpgs.estimate_memory tells what a search needs.",
    )


def max_depth(search: "Search") -> int:
    """Returns T: what the search says, else the truncation's own bound, else 16."""
    bound = search.truncation.max_depth
    own = None if bound is None else bound(search.num_simulations)
    return search.max_depth or own or DEFAULT_MAX_DEPTH


def simulate(
    context: Context,
    memory: Memory,
    rng_keys: chex.PRNGKey,
    actions: chex.Array,
    path: Path,
) -> Simulations:
    """Runs K simulations of each root; see `Simulator`."""
    step_keys, uniform = draw(rng_keys, max_depth(context.search), actions.shape[1])
    start = _spread(memory.embedding, actions.shape[1])
    recalls_values = _recalls_values(context, step_keys, actions, start)
    update = _Update(context, memory, actions, step_keys, recalls_values)
    rollout = functools.partial(_rollout, update, path=path, uniform=uniform)
    pull_back = None
    if context.needed:
        _, pull_back, (trajectory, norms, told) = jax.vjp(rollout, context.adapted, has_aux=True)
    else:
        _, (trajectory, norms, told) = rollout(context.adapted)
    memory = memory._replace(seen=_note(memory.seen, told.code, trajectory.alive))
    residuals = _Residuals(pull_back, trajectory.alive, told.played)
    return Simulations(trajectory, norms, residuals, memory)


def gradient(
    context: Context, simulations: Simulations, cotangents: PolicyTerms
) -> tuple[Params, Simulations]:
    """Differentiates through the rollouts; see `Simulator`."""
    del context
    return simulations.residuals.pull_back(cotangents)[0], simulations


def remember(search: "Search", simulations: Simulations, returns: chex.Array) -> Memory:
    """Returns the memory, in which returns have no place; see `Simulator`."""
    del search, returns
    return simulations.memory


def _rollout(
    update: _Update, adapted: Params, *, path: Path, uniform: chex.Array
) -> tuple[PolicyTerms, tuple[Trajectory, PolicyTerms, _Told]]:
    """Simulates to the end. Returns what is differentiated, and all that is told."""
    first, keeps_last = update.first, update.context.search.best_of is not None
    start = _Rollouts(
        embedding=_spread(update.memory.embedding, first.shape[1]),
        action=first,
        path=path._replace(code=extend_code(path.code, first)),
        limited=path.alive & False,
        num_calls=trees.zero_rows(first),
    )
    step = functools.partial(_maybe_step, update, adapted)
    end, told = jax.lax.scan(step, start, (jnp.arange(len(uniform)), uniform))
    found, norms = complete(told.terms, told.value), complete(told.norms, told.value)
    trajectory = Trajectory(
        alive=told.alive,
        reward=told.reward,
        discount=told.discount,
        value=told.value,
        **found._asdict(),
        depth=end.path.depth,
        limited=end.limited,
        num_evaluations=jnp.sum(end.path.depth, axis=-1),
        num_calls=end.num_calls,
        last=end.embedding if keeps_last else None,
    )
    return found, (trajectory, norms, told)


def _maybe_step(
    update: _Update, adapted: Params, rollouts: _Rollouts, inputs: tuple
) -> tuple[_Rollouts, _Told]:
    """Takes a step if any simulation is still on its way."""
    shapes = jax.eval_shape(functools.partial(_step, update), adapted, rollouts, inputs)[1]
    zero = trees.zero_rows(update.first)
    nothing = jax.tree.map(lambda x: trees.zeros(x.shape, x.dtype, zero), shapes)
    return jax.lax.cond(
        jnp.any(rollouts.path.alive),
        functools.partial(_step, update),
        lambda adapted, rollouts, inputs: (rollouts, nothing),
        adapted,
        rollouts,
        inputs,
    )


def _step(
    update: _Update, adapted: Params, rollouts: _Rollouts, inputs: tuple
) -> tuple[_Rollouts, _Told]:
    """Takes one step of all simulations and draws the actions that follow it."""
    t, uniform = inputs
    search, path = update.context.search, rollouts.path
    alive, code, dtype = path.alive, path.code, path.log_prob.dtype
    output, prior, embedding, features = _evaluate(update, adapted, t, rollouts)
    logits = as_logits(output.prior_logits, dtype)
    policy = distribution(logits)
    actions = invert(policy.cumulative, policy.last, uniform)
    found, norms = attached_terms(update.context.needed, logits, policy, prior, actions)
    reward, discount, value = (
        as_values(x, dtype) for x in (output.reward, output.discount, output.value)
    )
    path = path._replace(
        depth=path.depth + alive.astype(jnp.int32), new=_is_new(update.memory.seen, code)
    )
    own_end = (discount == 0) | search.truncation.stop(path)
    at_limit = path.depth >= max_depth(search)
    path = go_on(path._replace(alive=alive & ~own_end & ~at_limit), actions, found["log_prob"])

    def while_alive(x: chex.Array) -> chex.Array:
        return jnp.where(path.alive, x, 0.0)

    told = _Told(
        alive=alive,
        reward=jnp.where(alive, reward, 0.0),
        discount=jnp.where(alive, discount, 0.0),
        value=jnp.where(alive, value, 0.0),
        code=code,
        terms={name: while_alive(x) for name, x in found.items()},
        norms={name: while_alive(x) for name, x in norms.items()},
        played=None if search.reuse is None else _Played(features, embedding, actions),
    )
    limited = rollouts.limited | (alive & at_limit & ~own_end)
    return _Rollouts(embedding, actions, path, limited, rollouts.num_calls + 1), told


def _evaluate(
    update: _Update, adapted: Params, t: chex.Array, rollouts: _Rollouts
) -> tuple[mctx.RecurrentFnOutput, chex.Array | None, Embedding, Any]:
    """Plays the actions and evaluates where they lead: output, the prior's policy, embedding.

    The features come last, None unless simulations are used again.

    Simulations that have stopped take their first step once more. Behind the end of an episode a
    model may say anything, and NaN there would spoil the gradient although nobody looks.
    """
    context, alive, search = update.context, rollouts.path.alive, update.context.search
    start = _spread(update.memory.embedding, alive.shape[1])
    before = trees.where(alive, rollouts.embedding, start)
    actions = jnp.where(alive, rollouts.action, update.first)
    inputs = (fold_in(update.step_keys, t), actions, before)

    call = functools.partial(_call, context)
    output, embedding, features = jax.vmap(call)(adapted, *inputs)
    recalls, prior = terms.needs_prior(context.needed), None
    if recalls or update.recalls_values:
        recall = functools.partial(search.recurrent_fn, context.params)
        global_output, _ = jax.vmap(recall)(*inputs)
        if recalls:
            prior_logits = as_logits(global_output.prior_logits, rollouts.path.log_prob.dtype)
            prior = jax.nn.softmax(prior_logits, axis=-1)
        if update.recalls_values:
            output = global_output.replace(prior_logits=output.prior_logits)
    if search.best_of is not None:
        embedding = trees.where(alive, embedding, rollouts.embedding)
    return output, prior, embedding, features


def _call(
    context: Context, own: Params, *inputs: Any
) -> tuple[mctx.RecurrentFnOutput, Embedding, Any]:
    """Calls the model with one root's adapted parameters; see `_evaluate`."""
    params, model = adaptation.merge(own, context.frozen), context.search.recurrent_fn
    if context.search.reuse is None:
        return (*model(params, *inputs), None)
    assert isinstance(model, SplitRecurrentFn)
    expansion, embedding = model.expand(params, *inputs)
    return model.complete(params, expansion, embedding), embedding, expansion.features


def _recalls_values(context: Context, *inputs: Any) -> bool:
    """Tells whether values or rewards depend on what adapts.

    They are those of the network itself (Anthony et al. 2019, section 3: its global value network).
    The embedding is not, as it may hold actions that the simulation policy has drawn.
    """

    def values(own: Params, *inputs: Any) -> tuple[chex.Array, ...]:
        output, _, _ = _call(context, own, *inputs)
        return output.reward, output.discount, output.value

    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), context.adapted)
    if not jax.tree.leaves(one):
        return False
    return adaptation.depends(values, one, *jax.tree.map(lambda x: x[0], inputs))


def _spread(embedding: Embedding, num_walks: int) -> Embedding:
    """Gives each of the K simulations its root's state."""
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x[:, None], (len(x), num_walks, *x.shape[1:])), embedding
    )


def _locate(seen: chex.Array, code: chex.Array) -> chex.Array:
    return (code & jnp.uint32(max(seen.shape[1], 1) - 1)).astype(jnp.int32)


def _is_new(seen: chex.Array, code: chex.Array) -> chex.Array:
    """Tells which sequences `[B, K]` have not been noted."""
    if not seen.shape[1]:
        return code >= 0  # from data, so that the loop may run under shard_map
    return ~jnp.take_along_axis(seen, _locate(seen, code), axis=1)


def _note(seen: chex.Array, codes: chex.Array, alive: chex.Array) -> chex.Array:
    """Notes the sequences `[T, B, K]` of the steps taken."""
    if not seen.shape[1]:
        return seen
    # Flags, not bits: several sequences may then be noted in one scatter.
    places = jnp.where(alive, _locate(seen, codes), seen.shape[1])
    places = jnp.moveaxis(places, 1, 0).reshape(len(seen), -1)
    return jax.vmap(lambda row, i: row.at[i].set(True, mode="drop"))(seen, places)


def _steps(simulations: Simulations) -> Steps:
    """The features and states in which the simulations acted, and how; see `Replay`."""
    residuals = simulations.residuals
    alive = residuals.alive.at[0].set(False)  # the root's selection took step 0
    played = jax.tree.map(delay, residuals.played)
    return Steps(alive, (played.features, played.embedding), played.action)


def _replay_logits(context: Context, memory: Memory, source: tuple) -> chex.Array:
    """The policy's logits in states `[B, W]`; see `Replay`."""
    del memory
    split_fn, frozen = context.search.recurrent_fn, context.frozen
    assert isinstance(split_fn, SplitRecurrentFn)
    logits = jax.vmap(lambda own, *x: split_fn.policy(adaptation.merge(own, frozen), *x))(
        context.adapted, *source
    )
    return as_logits(logits, jnp.promote_types(logits.dtype, jnp.float32))


simulator = Simulator(init, simulate, gradient, remember, Replay(_steps, _replay_logits))
