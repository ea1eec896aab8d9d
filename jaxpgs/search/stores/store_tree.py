"""The tree: every visited action sequence is a node, evaluated once.

Row 0 of the memory is the root, followed by the nodes kept from an earlier search. Simulation n
creates row `num_kept + n`, as in mctx, so that every write of an update is one block at an offset
that all roots share; if two simulations of an update reach the same new state, the second one's
row stays unused. A child of 0 means "not visited", and rows full of zeros are an empty memory.

A node is one state. If the model samples chance, the first outcome of an action is kept, and later
simulations know it in advance; rollouts sample again.
"""

import functools
import itertools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.base import Embedding, Params
from jaxpgs.search.definition import Search
from jaxpgs.search.learning.learn import compact, in_rows
from jaxpgs.search.parts.target import SampledPolicy
from jaxpgs.search.policy import categorical, needs_prior, numbers_of
from jaxpgs.search.stores.contract import Blocks, Context, Reached, Seen, Simulations, Steps, Store
from jaxpgs.search.stores.nodes import (
    MANY_ACTIONS,
    Arrivals,
    Nodes,
    Place,
    add,
    by_action,
    find,
    is_few,
    link,
    logits_of,
    stats_of,
)
from jaxpgs.search.stores.packing import pack, unpack
from jaxpgs.search.stores.rerooting import same_states

# On accelerators a head is applied to all nodes once per update if features have at most this size.
_FEW_FEATURES = 2**24


class Layout(NamedTuple):
    """The number of rows of a search, and their contents; nothing of it is traced.

    Attributes:
      num_kept: rows of an earlier search, including the root.
      num_rows: M. After the last row that may be kept there is room for the nodes of one update
        that is beyond the capacity or the budget.
      limit: the last row that may be kept.
      starts: the first row that each update writes, also for updates beyond the budget.
      sections: how many numbers there are for each action.
    """

    num_kept: int
    num_rows: int
    limit: int
    starts: tuple[int, ...]
    sections: int


def max_depth(search: Search, num_kept: int) -> int:
    """Returns T: the search's bound, else the truncation's, else the depth that nodes allow.

    A simulation of `until_new` takes at most one step more than the deepest one of the earlier
    updates, so no simulation is cut off.
    """
    rule = search.truncation
    if search.max_depth is not None:
        return search.max_depth
    if rule.max_depth is not None:
        return rule.max_depth(search.num_simulations)
    if rule.one_call:
        return search.num_updates + num_kept - 1
    raise ValueError(
        'mode="tree" makes room for every state that a simulation may reach, and this truncation '
        "sets no bound: max_depth must be given; got None."
    )


def layout(search: Search, num_kept: int) -> Layout:
    """Computes the layout of a search that starts from `num_kept` nodes."""
    steps = 1 if search.truncation.one_call else max_depth(search, num_kept)
    largest = max(search.widths) * steps
    # With one call, an update writes all its rows at once, and must not overwrite other rows.
    sizes = search.widths if search.truncation.one_call else (largest,) * search.num_updates
    starts = tuple(itertools.accumulate(sizes, initial=num_kept))
    num_new = starts[-1] - num_kept
    limit = num_kept + min(search.capacity or num_new, num_new) - 1
    # By action: the sum of the returns, the logits if no head computes them, and the smallest and
    # the greatest return if a selection reads them.
    sections = 1 + (search.adapt is None) + 2 * _keeps_ranges(search)
    return Layout(num_kept, limit + 1 + largest, limit, starts, sections)


def _keeps_ranges(search: Search) -> bool:
    inner = search.interior_selection
    if inner is None:
        return False
    return search.root_selection.needs_range or getattr(inner, "needs_range", False)


def _carries_rows(context: Context, nodes: Nodes) -> bool:
    """Tells whether a simulation carries the rows of its node, as is faster on accelerators."""
    return context.dense and nodes.arrivals is None


def init(context: Context, root: mctx.RootFnOutput, kept: Nodes | None) -> Nodes:
    """Makes the memory of a search.

    Args:
      context: the context of the search.
      root: the roots.
      kept: the nodes kept from an earlier search, if any.
    """
    batch_size, num_actions = root.prior_logits.shape
    zero = trees.zero_rows(root.prior_logits > 0)
    states = pack(jax.tree.map(lambda x: jnp.asarray(x)[:, None], root.embedding))
    sections, num_rows = context.rows.sections, context.rows.num_rows
    if num_rows * num_actions >= 2**31:
        raise ValueError(
            'mode="tree" numbers actions of nodes with 32 bits: nodes times actions must be '
            f"below 2**31; got {num_rows} * {num_actions}. Give a smaller capacity or N, or "
            'mode="rollouts".'
        )
    many = num_actions >= MANY_ACTIONS
    # `Nodes.numbers` has so many numbers of each action, and three of the state.
    times = int(context.search.adapt is None) if many else sections

    def empty(rest: tuple[int, ...], dtype: Any) -> chex.Array:
        return trees.zeros((batch_size, num_rows, *rest), dtype, zero)

    features = jax.eval_shape(pack, context.features) if context.adapts else ()
    nodes = Nodes(
        edge=empty((), jnp.int32) - 1,
        links=empty((2 * num_actions,), jnp.int32)[:, : 0 if many else num_rows],
        numbers=empty((times * num_actions + 3,), context.model.dtype),
        # Some heads have no derivative at zeros, and unused rows are read, too.
        features=tuple(jnp.ones_like(empty(x.shape[2:], x.dtype)) for x in features),
        embedding=tuple(jnp.broadcast_to(x, (x.shape[0], num_rows, *x.shape[2:])) for x in states),
    )
    if many:
        returns = empty((3 if _keeps_ranges(context.search) else 1,), context.model.dtype)
        nodes = nodes._replace(arrivals=Arrivals(empty((), jnp.int32), returns))
    if kept is not None:
        _check_kept(kept, nodes)
        first = tuple(x[:, :1] for x in kept.embedding)
        # With chance or a learned model, the game may have reached another state than the search.
        known = same_states(first, states) & (zero == 0)
        kept = kept._replace(
            edge=jnp.where(known[:, None], kept.edge, -1),
            links=jnp.where(known[:, None, None], kept.links, 0),
            numbers=jnp.where(known[:, None, None], kept.numbers, 0.0),
        )
        nodes = jax.tree.map(lambda old, new: new.at[:, : old.shape[1]].set(old), kept, nodes)
        # Use the state given here as the root; the kept state may differ by rounding.
        start = [x.at[:, :1].set(e) for x, e in zip(nodes.embedding, states, strict=True)]
        nodes = nodes._replace(embedding=tuple(start))
    return nodes


def _check_kept(kept: Nodes, new: Nodes) -> None:
    """Raises `ValueError` unless both are nodes of the same kind of search, of any number."""
    shapes = [
        jax.tree.map(lambda x: (x.shape[:1], x.shape[2:], str(x.dtype)), n) for n in (kept, new)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "nodes must come from a search with the same number of roots, network and adapt; "
            f"expected (batch, rest, dtype) {shapes[1]}, got {shapes[0]}."
        )


# --- one step of the simulations ------------------------------------------------------------------


def begin(context: Context, nodes: Nodes, actions: chex.Array) -> Place:
    """Places all simulations at the root."""
    if not _carries_rows(context, nodes):
        return Place(actions * 0)

    def spread(x: chex.Array) -> chex.Array:
        return jnp.broadcast_to(x[:, :1], (*actions.shape, *x.shape[2:]))

    return Place(actions * 0, spread(nodes.links), spread(nodes.numbers))


def follow(
    context: Context, nodes: Nodes, place: Place, action: chex.Array, t: chex.Array, path: Any
) -> tuple[Nodes, Place, Reached]:
    """Moves to the children of the actions, as far as they are known."""
    in_rounds = context.search.root_selection.rounds is not None
    child, visits = find(nodes, place, action, visits=in_rounds)
    new, wanted = child == 0, path.alive & (child == 0)
    if in_rounds:
        new = visits == 0  # the node may exist although its simulation did not count
    made = _nothing(child, nodes.numbers.dtype)
    # Simulations may continue from a new state, so it is created at once. Otherwise `close` creates
    # those of all simulations in one call.
    if not context.search.truncation.one_call:
        nodes, made = jax.lax.cond(
            jnp.any(wanted),
            lambda nodes: _expand(context, nodes, place.node, action, wanted, t),
            lambda nodes: (nodes, made),
            nodes,
        )
        child = jnp.where(wanted, made.child, child)
    known = child > 0
    links, numbers, told = None, None, None
    if _carries_rows(context, nodes):
        links, numbers = trees.take((nodes.links, nodes.numbers), child)
        told = numbers[..., -3:]
    else:
        told = trees.take(nodes.numbers[..., -3:], child)
    # A state that `close` will create has discount 1 until then, since 0 would end the episode.
    reached = made._replace(
        child=child,
        new=new,
        reward=jnp.where(known, told[..., 0], 0.0),
        discount=jnp.where(known, told[..., 1], 1.0),
        value=jnp.where(known, told[..., 2], 0.0),
    )
    # Simulations that stop in a state that is not created yet stay at its parent.
    node = jnp.where(path.alive & known, child, place.node)
    return nodes, Place(node, links, numbers), reached


def look(context: Context, nodes: Nodes, table: Any, place: Place) -> Seen:
    """Returns what simulations see in their current nodes."""
    if table is not None:
        policy, prior = trees.take(table[:2], place.node)
        return Seen(policy, prior, stats_of(place, policy.policy, context.scale))
    reads_nodes = context.search.interior_selection is not None
    # Rows that the simulations have not carried along are read here.
    if place.links is None and reads_nodes:
        place = Place(place.node, *by_action(nodes, place.node))
    logits = _logits(context, nodes, context.adapted, place.node, place)
    stats = stats_of(place, logits, context.scale) if reads_nodes else None
    return Seen(categorical(logits), _prior(context, nodes, place.node), stats)


def make_table(context: Context, nodes: Nodes) -> Any:
    """Evaluates the policy in all nodes at once, if that is faster.

    Returns:
      The policies of all nodes, the prior's policies, and the VJP from the logits to the
      parameters; or None.
    """
    size = nodes.edge.size * sum(x.shape[-1] for x in nodes.features)
    # A table has only the states of earlier updates; with one call simulations act in no others.
    at_once = context.needed and context.search.truncation.one_call
    few = is_few(size, _FEW_FEATURES)
    if not (_carries_rows(context, nodes) and at_once and few):
        return None
    logits, pull = jax.vjp(lambda own: _logits(context, nodes, own, None, nodes), context.adapted)
    return categorical(logits), _prior(context, nodes, None), lambda x: pull(x)[0]


def _logits(
    context: Context, nodes: Nodes, adapted: Params, node: chex.Array | None, rows: Any
) -> chex.Array:
    """Returns the logits `[B, R, A]` of the simulation policy, in the given nodes or in all."""
    if context.adapts:
        # Only the head runs here, on the features stored in the nodes.
        logits = context.model.policy(adapted, *_states(context, nodes, node))
    elif rows.numbers is not None and nodes.arrivals is None:
        logits = logits_of(nodes, rows.numbers)
    else:
        logits = trees.take(logits_of(nodes, nodes.numbers), node)
    interior = context.search.interior_selection
    if not isinstance(interior, SampledPolicy):
        return logits
    stats = stats_of(rows, logits, context.scale)
    # A `SampledPolicy` takes nodes `[B, A]`, so the axes B and R are merged.
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stats)
    return interior.logits(flat).reshape(logits.shape)


def _prior(context: Context, nodes: Nodes, node: chex.Array | None) -> chex.Array | None:
    """Returns the prior's policy, if anything compares with it."""
    if not needs_prior(context.needed):
        return None
    return jax.nn.softmax(context.model.prior(*_states(context, nodes, node)), axis=-1)


def _states(context: Context, nodes: Nodes, node: chex.Array | None) -> tuple[Any, Embedding]:
    """Returns features and embeddings of the given nodes, or of all."""
    packed = nodes.features, nodes.embedding
    features, embedding = packed if node is None else trees.take(packed, node)
    return unpack(features, context.features), unpack(embedding, context.embedding)


# --- making nodes ---------------------------------------------------------------------------------


def close(
    context: Context, nodes: Nodes, place: Place, action: chex.Array, waiting: chex.Array
) -> tuple[Nodes, Reached]:
    """Creates the nodes in which simulations stopped, with one network call."""
    # The key of the call must not depend on T, which depends on N: a shorter search draws the same.
    return _expand(context, nodes, place.node, action, waiting, jnp.int32(0))


@jax.named_scope("expand")
def _expand(
    context: Context,
    nodes: Nodes,
    node: chex.Array,
    action: chex.Array,
    wanted: chex.Array,
    t: chex.Array,
) -> tuple[Nodes, Reached]:
    """Creates the children that simulations reach; simulations with the same child share it."""
    rows, num_walks = context.rows, node.shape[1]
    edge = node * nodes.num_actions + action
    numbers = jnp.arange(num_walks, dtype=jnp.int32)
    # [B, K, K]: whether simulation i, the last axis, wants the same child as simulation k.
    same = (edge[:, :, None] == edge[:, None, :]) & wanted[:, None, :]
    # Minima, since they are faster reductions than argmax.
    first = jnp.min(jnp.where(same, numbers, num_walks - 1), axis=-1)
    embedding = unpack(trees.take(nodes.embedding, node), context.embedding)
    expand = functools.partial(context.model.expand, context.keys.fold_in(t))
    expansion, after = context.in_width(expand, action, embedding)
    # With one call an update has K rows, otherwise K rows for each step.
    start = context.start + (0 if context.search.truncation.one_call else t * num_walks)
    child = start + first
    made = wanted & (first == numbers_of(first))
    # If the memory is full, nodes are evaluated and counted, but not linked to their parents.
    kept = made & (child <= rows.limit)
    told = jnp.stack([expansion.reward, expansion.discount, expansion.value], axis=-1)
    block = Nodes(
        edge=jnp.where(kept, edge, -1),
        links=None,
        numbers=None,
        features=pack(expansion.features) if context.adapts else (),
        embedding=pack(after),
    )

    def write(old: chex.Array, new: chex.Array, column: int = 0) -> chex.Array:
        # All indices of a slice must be of one type.
        at = (start * 0, start, *[start * 0 + column] * (old.ndim - 2))
        return jax.lax.dynamic_update_slice(old, new, at)

    # The other columns are 0 in a new node: returns are only recorded in known nodes.
    numbers = write(nodes.numbers, told, nodes.numbers.shape[-1] - 3)
    if not context.adapts:
        column = nodes.num_actions if nodes.arrivals is None else 0
        numbers = write(numbers, expansion.features, column)
    links = link(nodes, node, action, child, kept, dense=context.dense)
    states = ("edge", "features", "embedding")
    written = {n: jax.tree.map(write, getattr(nodes, n), getattr(block, n)) for n in states}
    nodes = nodes._replace(links=links, numbers=numbers, **written)
    # Simulations with the same child all get the result of the first one.
    told = trees.take(told, first)
    return nodes, Reached(
        child=jnp.where(wanted, child, 0),
        new=wanted,
        reward=told[..., 0],
        discount=told[..., 1],
        value=told[..., 2],
        evaluations=jnp.sum(made, axis=-1, dtype=jnp.int32),
        calls=jnp.any(made).astype(jnp.int32) + trees.zero_rows(action),
        not_finite=jnp.sum(made & ~expansion.finite, axis=-1, dtype=jnp.int32),
    )


def _nothing(child: chex.Array, dtype: Any) -> Reached:
    """Returns the `Reached` of a step that creates no node."""
    none, rows = (0 * child).astype(dtype), trees.zero_rows(child)
    return Reached(child * 0, child > 0, none, none, none, rows, rows, rows)


# --- after the walk -------------------------------------------------------------------------------


def blocks(context: Context, nodes: Nodes, table: Any, steps: Steps) -> Blocks:
    """Returns the nodes in which simulations acted, or all nodes of a table; see `Store`."""
    if table is not None:
        policy, prior, pull = table
        seen = lambda adapted, i: (policy.policy, prior, pull)  # noqa: E731
        return Blocks(in_rows(steps.source), nodes.edge.shape[1], 1, seen)
    num_walks = steps.acting.shape[2]
    # [T, B, K, K]: a node has one depth, so simulations can share it in the same step only.
    same = steps.source[..., :, None] == steps.source[..., None, :]
    same &= steps.acting[..., None, :]
    numbers = jnp.arange(num_walks, dtype=jnp.int32)
    first = jnp.min(jnp.where(same, numbers, num_walks - 1), axis=-1)
    # One block of 2 K states is usually enough; a larger one would evaluate unused rows.
    size = min(2 * num_walks, steps.acting.shape[0] * num_walks)
    row, num_blocks, steps_of = compact(steps.acting, first, size)
    source = in_rows(steps.source)

    def evaluate(adapted: Params, i: Any) -> tuple[chex.Array, chex.Array | None, Any]:
        node = trees.take(source, steps_of(i))
        rows = Place(node, *by_action(nodes, node))
        logits, pull = jax.vjp(lambda own: _logits(context, nodes, own, node, rows), adapted)
        return categorical(logits).policy, _prior(context, nodes, node), lambda x: pull(x)[0]

    return Blocks(row, size, num_blocks, evaluate)


def remember(
    context: Context, nodes: Nodes, simulations: Simulations, returns: chex.Array
) -> Nodes:
    """Adds the returns to the statistics of the nodes, if these are read."""
    if context.search.interior_selection is None:
        return nodes
    child = simulations.child
    # A return from a forgotten node would count for an action without a child.
    counts = simulations.trajectory.alive & (child <= context.rows.limit)
    before = jnp.concatenate([0 * child[:1], child[:-1]])
    steps = (before, simulations.steps.action, child, returns, counts)
    ranges = context.rows.sections > 2
    return add(nodes, *(in_rows(x) for x in steps), ranges=ranges, dense=context.dense)


def last(context: Context, nodes: Nodes, place: Place, child: chex.Array) -> Embedding:
    """Returns the states `[B, K]` of nodes."""
    del place
    return unpack(trees.take(nodes.embedding, child), context.embedding)


store = Store(
    init, begin, follow, look, close, make_table, blocks, lambda place: None, last, remember
)
