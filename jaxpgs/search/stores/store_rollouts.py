"""Rollouts: states are not kept, so memory does not depend on the number of simulations.

All `B * K` simulations of an update step through the model together; a step is one network call,
and when every simulation has stopped, the remaining steps are skipped. If the model is split, its
torso is evaluated once and never differentiated, and only the inputs of the policy are stored for
the gradient. If parameters adapt inside the model, the gradient calls it again, step by step; it
then treats states as constants, whatever they depend on.

Every call of the model has its own key: a model with chance samples again in each simulation, even
for the same actions.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.base import Embedding, Params, Path
from jaxpgs.search.definition import Search
from jaxpgs.search.learning.learn import compact, in_rows
from jaxpgs.search.policy import categorical, needs_prior
from jaxpgs.search.stores.contract import Blocks, Context, Reached, Seen, Simulations, Steps, Store

DEFAULT_MAX_DEPTH = 16


class Memory(NamedTuple):
    """What is kept from update to update.

    Attributes:
      embedding: `[B, ...]` the roots.
      seen: `[B, S]` bool, flags of the sequences taken, indexed by their hash; S may be 0.
    """

    embedding: Embedding
    seen: chex.Array


class Place(NamedTuple):
    """Where simulations are, `[B, K, ...]` each.

    Attributes:
      embedding: the states.
      features: the inputs of the policy; logits if nothing adapts or the model is not split.
      prior: the prior's logits, if the model is not split and something compares with them.
      before: the states and actions that led here, None if the model is split.
    """

    embedding: Embedding
    features: Any
    prior: Any
    before: Any


def max_depth(search: Search) -> int:
    """Returns T: the search's bound, else the truncation's own bound, else 16."""
    bound = search.truncation.max_depth
    own = None if bound is None else bound(search.num_simulations)
    return search.max_depth or own or DEFAULT_MAX_DEPTH


def init(context: Context, root: mctx.RootFnOutput, kept: Any) -> Memory:
    """Makes the memory."""
    if kept is not None:
        raise ValueError('nodes are for mode="tree"; mode="rollouts" keeps none.')
    shape = (root.value.shape[0], context.search.truncation.table_size)
    return Memory(jax.tree.map(jnp.asarray, root.embedding), jnp.zeros(shape, bool))


def begin(context: Context, memory: Memory, actions: chex.Array) -> Place:
    """Places all simulations at the root, whose features are not read."""
    start, rows = _spread(memory.embedding, actions), trees.zero_rows(actions)
    empty = lambda x: trees.zeros((*actions.shape, *x.shape[2:]), x.dtype, rows)  # noqa: E731
    whole = context.model.whole is not None
    logits = jax.ShapeDtypeStruct((*actions.shape, context.model.num_actions), context.model.dtype)
    prior = empty(logits) if whole and needs_prior(context.needed) else None
    features = empty(logits) if whole else jax.tree.map(empty, context.features)
    before = (start, actions) if whole else None
    return Place(start, features, prior, before)


def follow(
    context: Context, memory: Memory, place: Place, action: chex.Array, t: chex.Array, path: Path
) -> tuple[Memory, Place, Reached]:
    """Plays the actions and evaluates where they lead; see `Store`."""
    model, keys, start = context.model, context.keys.fold_in(t), place.embedding
    prior, before = place.prior, None
    if model.whole is None:
        expand = functools.partial(model.expand, keys)
        expansion, after = context.in_width(expand, action, start)
    else:
        before = (start, action)
        whole = functools.partial(model.whole, context.adapted, keys)
        expansion, after = context.in_width(whole, action, start)
        if prior is not None:
            prior = model.expand(keys, action, start)[0].features
    if context.search.best_of is not None:
        # `last` reads the places at the end, so simulations must stay where they stopped.
        after = trees.where(path.alive, after, start)
    number = path.alive.astype(jnp.int32)
    reached = Reached(
        # States have no numbers here. The hash tells `remember` which flag to set.
        child=jax.lax.bitcast_convert_type(path.code, jnp.int32),
        new=_is_new(memory.seen, path.code),
        reward=expansion.reward,
        discount=expansion.discount,
        value=expansion.value,
        evaluations=jnp.sum(number, axis=-1),
        calls=jnp.any(path.alive).astype(jnp.int32) + trees.zero_rows(number),
        not_finite=jnp.sum(path.alive & ~expansion.finite, axis=-1, dtype=jnp.int32),
    )
    return memory, Place(after, expansion.features, prior, before), reached


def look(context: Context, memory: Memory, table: Any, place: Place) -> Seen:
    """Returns the policy in the states reached."""
    del memory, table
    state, prior = (place.features, place.embedding), None
    if context.model.whole is not None:
        policy = categorical(place.features)
        prior = place.prior
    else:
        policy = categorical(context.model.policy(context.adapted, *state))
        if needs_prior(context.needed):
            prior = context.model.prior(*state)
    return Seen(policy, None if prior is None else jax.nn.softmax(prior, axis=-1), None)


def close(context: Context, memory: Memory, place: Place, *_: Any) -> tuple[Memory, None]:
    """Does nothing, since every state is known when it is reached."""
    del context, place
    return memory, None


def make_table(context: Context, memory: Memory) -> None:
    """Returns None: rollouts have no table."""
    del context, memory


def record(place: Place) -> Any:
    """Returns what the gradient needs of the places where simulations acted."""
    return (place.features, place.embedding) if place.before is None else place.before


def blocks(context: Context, memory: Memory, table: Any, steps: Steps) -> Blocks:
    """Returns the states in which simulations acted; see `Store`."""
    del table
    shape = steps.acting.shape
    # It is unknown whether two simulations are in the same state, so each has its own.
    own = jnp.broadcast_to(jnp.arange(shape[2], dtype=jnp.int32), shape)
    if context.model.whole is not None:
        return _blocks_of_whole(context, memory, steps, own)
    size = min(2 * shape[2], shape[0] * shape[2])
    row, num_blocks, steps_of = compact(steps.acting, own, size)
    source = jax.tree.map(in_rows, steps.source)
    acted = jnp.any(steps.acting, axis=(0, 2))

    def evaluate(adapted: Params, i: Any) -> tuple[chex.Array, chex.Array | None, Any]:
        state = trees.take(source, steps_of(i))
        logits, pull = jax.vjp(lambda own: context.model.policy(own, *state), adapted)
        prior = None
        if needs_prior(context.needed):
            prior = jax.nn.softmax(context.model.prior(*state), axis=-1)
        # After the end of an episode a model may return anything, and NaN there would corrupt the
        # gradient of a root where no simulation acted.
        nothing = jax.tree.map(jnp.zeros_like, adapted)
        own = lambda x: trees.where(acted, pull(x)[0], nothing)  # noqa: E731
        return categorical(logits).policy, prior, own

    return Blocks(row, size, num_blocks, evaluate)


def _blocks_of_whole(context: Context, memory: Memory, steps: Steps, own: chex.Array) -> Blocks:
    """Does the same for a model that is not split: block i calls the model of step i again."""
    number = jnp.arange(len(own), dtype=jnp.int32)
    last = jnp.max(jnp.where(jnp.any(steps.acting, axis=(1, 2)), number, 0))
    # Step t is in block t - 1, since step 0 is the selection's; its row there is the simulation.
    row = in_rows(own + (number[:, None, None] - 1) * own.shape[2])

    def evaluate(adapted: Params, i: Any) -> tuple[chex.Array, chex.Array | None, Any]:
        t = i + 1
        # After the end of an episode a model may return anything, and NaN there would corrupt the
        # gradient, so simulations that did not act are placed at the root with their first action.
        acting, first = steps.acting[t], steps.action[0]
        given = jax.tree.map(lambda x: x[t], steps.source)
        before, action = trees.where(acting, given, (_spread(memory.embedding, first), first))
        # With the keys of step i, a model with chance samples the same as before.
        keys = context.keys.fold_in(i)
        call = lambda own: context.model.whole(own, keys, action, before)[0].features  # noqa: E731
        logits, pull = jax.vjp(call, adapted)
        prior = None
        if needs_prior(context.needed):
            given = context.model.expand(keys, action, before)[0].features
            prior = jax.nn.softmax(given, axis=-1)
        return categorical(logits).policy, prior, lambda x: pull(x)[0]

    return Blocks(row, own.shape[2], last, evaluate)


def remember(
    context: Context, memory: Memory, simulations: Simulations, returns: chex.Array
) -> Memory:
    """Marks the sequences that were taken; returns are not stored."""
    del context, returns
    seen = memory.seen
    if not seen.shape[1]:
        return memory
    # Flags, not bits, so that several sequences can be marked in one scatter.
    code = jax.lax.bitcast_convert_type(simulations.child, jnp.uint32)
    places = in_rows(jnp.where(simulations.trajectory.alive, _locate(seen, code), seen.shape[1]))
    note = jax.vmap(lambda row, i: row.at[i].set(True, mode="drop"))
    return memory._replace(seen=note(seen, places))


def last(context: Context, memory: Memory, place: Place, child: chex.Array) -> Embedding:
    """Returns the states where simulations stopped."""
    del context, memory, child
    return place.embedding


def _spread(embedding: Embedding, like: chex.Array) -> Embedding:
    """Gives each of the K simulations its root's state."""
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x[:, None], (*like.shape, *x.shape[1:])), embedding
    )


def _locate(seen: chex.Array, code: chex.Array) -> chex.Array:
    # The size is a power of two, so the lowest bits of a hash are an index.
    return (code & jnp.uint32(max(seen.shape[1], 1) - 1)).astype(jnp.int32)


def _is_new(seen: chex.Array, code: chex.Array) -> chex.Array:
    """Tells which sequences `[B, K]` have not been noted."""
    if not seen.shape[1]:
        return code >= 0  # from data, so that the loop may run under shard_map
    return ~jnp.take_along_axis(seen, _locate(seen, code), axis=1)


store = Store(init, begin, follow, look, close, make_table, blocks, record, last, remember)
