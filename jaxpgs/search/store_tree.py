"""The tree: every action sequence visited is a node, evaluated once.

Row 0 of the memory is the root, then come the nodes that an earlier search left behind. Simulation
n makes row `num_kept + n`, as in mctx, so that every write of an update is one block at an offset
that all roots share; where two simulations of an update reach the same new state, the second one's
row stays unused. A child of 0 means "not visited", and rows full of zeros are an empty memory.

A node is one state. Where the model draws chance, the first outcome of an action stays, and later
simulations know it in advance; rollouts draw anew.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.base import Embedding, NodeStats, Params
from jaxpgs.search.definition import Search
from jaxpgs.search.learn import compact, in_rows
from jaxpgs.search.parts.target import SampledPolicy
from jaxpgs.search.policy import distribution, needs_prior, numbers_of, pick
from jaxpgs.search.walk import Blocks, Context, Reached, Seen, Simulations, Steps, Store

# On accelerators, scatters become comparisons of every row with every index up to so many of both,
# and a head is applied to all nodes, once an update, up to so many numbers of features.
_FEW_PAIRS, _FEW_FEATURES = 2**24, 2**24


class Nodes(NamedTuple):
    """The visited sequences of B searches, M rows each.

    Attributes:
      edge: `[B, M]` int32, `A * parent + action` of the step into the node, -1 for the root and for
        unused rows.
      links: `[B, M, 2 A]` int32, the children by action, 0 for none, and the simulations that went
        to each; counted where the search's actions below the root depend on them, else 0.
      numbers: `[B, M, ...]` sums of the returns by action, from the view of the player to move;
        the logits by action if nothing adapts; the smallest and greatest returns by action if
        somebody asked; and last the reward and discount of the step into the node and the network's
        value.
      features: what the adapted head reads, a tuple of `[B, M, ...]`, one array a type; empty if
        nothing adapts.
      embedding: the states, likewise.

    Example:
      >>> nodes = output.search_state.nodes
      >>> nodes.children.shape  # two searches, M rows each
      (2, 21, 9)
    """

    edge: chex.Array
    links: chex.Array
    numbers: chex.Array
    features: tuple[chex.Array, ...]
    embedding: tuple[chex.Array, ...]

    @property
    def num_actions(self) -> int:
        """A."""
        return int(self.links.shape[-1]) // 2

    @property
    def parent(self) -> chex.Array:
        """`[B, M]` int32, 0 for the root and unused rows."""
        return jnp.maximum(self.edge, 0) // self.num_actions

    @property
    def children(self) -> chex.Array:
        """`[B, M, A]` int32, 0 where an action has not been taken."""
        return self.links[..., : self.num_actions]

    @property
    def visits(self) -> chex.Array:
        """`[B, M, A]` int32 simulations by action, 0 unless the search's actions depend on them."""
        return self.links[..., self.num_actions :]

    @property
    def value_sum(self) -> chex.Array:
        """`[B, M, A]` the sums of their returns."""
        return self.numbers[..., : self.num_actions]

    @property
    def reward(self) -> chex.Array:
        """`[B, M]` the reward of the step into the node."""
        return self.numbers[..., -3]

    @property
    def discount(self) -> chex.Array:
        """`[B, M]` its discount."""
        return self.numbers[..., -2]

    @property
    def value(self) -> chex.Array:
        """`[B, M]` the network's value, 0 for the root."""
        return self.numbers[..., -1]


class Place(NamedTuple):
    """Where simulations are: the node `[B, K]`, and its `links` and `numbers`.

    On an accelerator these are read once, when the node is reached; on a processor, where carrying
    them costs more than reading, they are None until somebody looks.
    """

    node: chex.Array
    links: chex.Array | None = None
    numbers: chex.Array | None = None


class Layout(NamedTuple):
    """How many rows a search needs, and what is in them; nothing of it is traced.

    Attributes:
      num_kept: rows of an earlier search, the root included.
      num_rows: M. Behind the last row that may be kept there is room for an update whose nodes are
        forgotten, or that comes after the last.
      limit: the last row that may be kept.
      starts: the first row that each update writes, and those after the last.
      sections: how many numbers there are for each action.
    """

    num_kept: int
    num_rows: int
    limit: int
    starts: tuple[int, ...]
    sections: int


def max_depth(search: Search, num_kept: int) -> int:
    """Returns T: what the search says, else the truncation's bound, else what nodes make possible.

    A simulation of `until_new` takes at most one step more than the deepest one of the updates
    before it, so nothing is cut off.
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
    """Works out the rows of a search that starts from so many nodes."""
    steps = 1 if search.truncation.one_call else max_depth(search, num_kept)
    largest = max(search.widths) * steps
    # With one call an update writes its rows at once, and may write over those of nobody.
    sizes = search.widths if search.truncation.one_call else (largest,) * search.num_updates
    starts = tuple(itertools.accumulate(sizes, initial=num_kept))
    num_new = starts[-1] - num_kept
    limit = num_kept + min(search.capacity or num_new, num_new) - 1
    sections = 1 + (search.adapt is None) + 2 * _keeps_ranges(search)
    return Layout(num_kept, limit + 1 + largest, limit, starts, sections)


def _keeps_ranges(search: Search) -> bool:
    inner = search.interior_selection
    if inner is None:
        return False
    return search.root_selection.needs_range or getattr(inner, "needs_range", False)


def init(context: Context, root: mctx.RootFnOutput, kept: Nodes | None) -> Nodes:
    """Makes the memory of a search.

    Args:
      context: what the search is made with.
      root: the roots.
      kept: the nodes that an earlier search left behind, if any.
    """
    batch_size, num_actions = root.prior_logits.shape
    zero = trees.zero_rows(root.prior_logits > 0)
    states = _pack(jax.tree.map(lambda x: jnp.asarray(x)[:, None], root.embedding))
    numbers, num_rows = context.rows.sections * num_actions + 3, context.rows.num_rows

    def empty(rest: tuple[int, ...], dtype: Any) -> chex.Array:
        return trees.zeros((batch_size, num_rows, *rest), dtype, zero)

    features = jax.eval_shape(_pack, context.features) if context.adapts else ()
    nodes = Nodes(
        edge=empty((), jnp.int32) - 1,
        links=empty((2 * num_actions,), jnp.int32),
        numbers=empty((numbers,), context.model.dtype),
        # Many a head has no derivative at zeros, and unused rows are looked at, too.
        features=tuple(jnp.ones_like(empty(x.shape[2:], x.dtype)) for x in features),
        embedding=tuple(jnp.broadcast_to(x, (x.shape[0], num_rows, *x.shape[2:])) for x in states),
    )
    if kept is not None:
        _check_kept(kept, nodes)
        first = tuple(x[:, :1] for x in kept.embedding)
        # Chance, or a model that was learned, may have led to another state than it led here.
        known = _same(first, states) & (zero == 0)
        kept = kept._replace(
            edge=jnp.where(known[:, None], kept.edge, -1),
            links=jnp.where(known[:, None, None], kept.links, 0),
            numbers=jnp.where(known[:, None, None], kept.numbers, 0.0),
        )
        nodes = jax.tree.map(lambda old, new: new.at[:, : old.shape[1]].set(old), kept, nodes)
        start = [x.at[:, :1].set(e) for x, e in zip(nodes.embedding, states, strict=True)]
        nodes = nodes._replace(embedding=tuple(start))
    return nodes


def _check_kept(kept: Nodes, new: Nodes) -> None:
    """Raises `ValueError` unless both are nodes of the same searches, whatever their number."""
    shapes = [
        jax.tree.map(lambda x: (x.shape[:1], x.shape[2:], str(x.dtype)), n) for n in (kept, new)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "nodes must come from a search of as many roots with the same network and adapt; "
            f"expected (batch, rest, dtype) {shapes[1]}, got {shapes[0]}."
        )


# --- one step of the simulations ------------------------------------------------------------------


def begin(context: Context, nodes: Nodes, actions: chex.Array) -> Place:
    """All simulations at the root."""
    if not context.dense:
        return Place(actions * 0)

    def spread(x: chex.Array) -> chex.Array:
        return jnp.broadcast_to(x[:, :1], (*actions.shape, *x.shape[2:]))

    return Place(actions * 0, spread(nodes.links), spread(nodes.numbers))


def follow(
    context: Context, nodes: Nodes, place: Place, action: chex.Array, t: chex.Array, path: Any
) -> tuple[Nodes, Place, Reached]:
    """Goes to the children that the actions lead to, as far as they are known."""
    num_actions = nodes.num_actions

    def read(section: int) -> chex.Array:
        if place.links is not None:
            return pick(place.links[..., section * num_actions :][..., :num_actions], action)
        at = jax.vmap(lambda x, n, a: x.at[n, a].get(mode="promise_in_bounds"))
        return at(nodes.links, place.node, section * num_actions + action)

    child = read(0)
    new, wanted = child == 0, path.alive & (child == 0)
    if context.search.root_selection.rounds is not None:
        new = read(1) == 0  # what was made of it may not have counted
    made = _nothing(child, nodes.numbers.dtype)
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
    if context.dense:
        links, numbers = trees.take((nodes.links, nodes.numbers), child)
        told = numbers[..., -3:]
    else:
        told = trees.take(nodes.numbers[..., -3:], child)
    reached = made._replace(
        child=child,
        new=new,
        reward=jnp.where(known, told[..., 0], 0.0),
        discount=jnp.where(known, told[..., 1], 1.0),
        value=jnp.where(known, told[..., 2], 0.0),
    )
    # Who stops in a state that is yet to be made stays at its parent.
    node = jnp.where(path.alive & known, child, place.node)
    return nodes, Place(node, links, numbers), reached


def look(context: Context, nodes: Nodes, table: Any, place: Place) -> Seen:
    """What simulations see in the nodes that they are in."""
    if table is not None:
        policy, prior = trees.take(table[:2], place.node)
        return Seen(policy, prior, _stats(place, policy.policy, context.scale))
    reads_nodes = context.search.interior_selection is not None
    if place.links is None and reads_nodes:
        place = Place(place.node, *trees.take((nodes.links, nodes.numbers), place.node))
    logits = _logits(context, nodes, context.adapted, place.node, place)
    stats = _stats(place, logits, context.scale) if reads_nodes else None
    return Seen(distribution(logits), _prior(context, nodes, place.node), stats)


def make_table(context: Context, nodes: Nodes) -> Any:
    """Looks at all nodes at once, if that is worth it.

    Returns:
      The policies of all nodes, the prior's, and what leads derivatives by the logits back to the
      parameters; or None.
    """
    size = nodes.edge.size * sum(x.shape[-1] for x in nodes.features)
    # A table knows the states of earlier updates only, and one call an update makes no others.
    at_once = context.needed and context.search.truncation.one_call
    if not (context.dense and at_once and _is_few(size, _FEW_FEATURES)):
        return None
    logits, pull = jax.vjp(lambda own: _logits(context, nodes, own, None, nodes), context.adapted)
    return distribution(logits), _prior(context, nodes, None), lambda x: pull(x)[0]


def _logits(
    context: Context, nodes: Nodes, adapted: Params, node: chex.Array | None, rows: Any
) -> chex.Array:
    """The logits `[B, R, A]` that simulations draw by, in the nodes given or in all."""
    columns = slice(nodes.num_actions, 2 * nodes.num_actions)
    if context.adapts:
        logits = context.model.policy(adapted, *_states(context, nodes, node))
    elif rows.numbers is not None:
        logits = rows.numbers[..., columns]
    else:
        logits = trees.take(nodes.numbers[..., columns], node)
    interior = context.search.interior_selection
    if not isinstance(interior, SampledPolicy):
        return logits
    stats = _stats(rows, logits, context.scale)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stats)
    return interior.logits(flat).reshape(logits.shape)


def _prior(context: Context, nodes: Nodes, node: chex.Array | None) -> chex.Array | None:
    """The prior's policy, if anything compares with it."""
    if not needs_prior(context.needed):
        return None
    return jax.nn.softmax(context.model.prior(*_states(context, nodes, node)), axis=-1)


def _states(context: Context, nodes: Nodes, node: chex.Array | None) -> tuple[Any, Embedding]:
    """Features and embeddings of the nodes given, or of all."""
    packed = nodes.features, nodes.embedding
    features, embedding = packed if node is None else trees.take(packed, node)
    return _unpack(features, context.features), _unpack(embedding, context.embedding)


def _stats(rows: Any, logits: chex.Array, scale: chex.Array | None) -> NodeStats:
    """The statistics of nodes `[B, K]` by their rows, which have `links` and `numbers`."""
    links, numbers = rows.links, rows.numbers
    num_actions = logits.shape[-1]
    known = links[..., :num_actions] > 0
    visits = jnp.where(known, links[..., num_actions:], 0)
    sections = (numbers.shape[-1] - 3) // num_actions
    stats = NodeStats(
        prior_logits=logits,
        value=numbers[..., -1],
        visits=visits,
        value_sum=jnp.where(known, numbers[..., :num_actions], 0.0),
        valid=logits > jnp.finfo(logits.dtype).min,
        scale=None if scale is None else jnp.broadcast_to(scale[:, None], links.shape[:2]),
    )
    if sections < 3:
        return stats
    low, high = (numbers[..., -3 - i * num_actions : -3 - (i - 1) * num_actions] for i in (2, 1))
    low, high = jnp.where(visits > 0, low, jnp.inf), jnp.where(visits > 0, high, -jnp.inf)
    return stats._replace(lowest=low, highest=high)


def node_stats(nodes: Nodes, node: chex.Array, logits: chex.Array) -> NodeStats:
    """Returns the statistics of nodes.

    Args:
      nodes: the memory.
      node: `[B]` or `[B, W]` int32.
      logits: `[B, A]` or `[B, W, A]` their logits, illegal actions at the lowest float.

    Returns:
      Statistics with the axes of `node`, and A.

    Example:
      >>> nodes = output.search_state.nodes
      >>> logits = jnp.zeros((2, 1, 9))  # of one node in each search
      >>> jaxpgs.search.node_stats(nodes, jnp.zeros((2, 1), jnp.int32), logits).visits.shape
      (2, 1, 9)
    """
    place = Place(node, *trees.take((nodes.links, nodes.numbers), node))
    return _stats(place, logits, None)


# --- making nodes ---------------------------------------------------------------------------------


def close(
    context: Context, nodes: Nodes, place: Place, action: chex.Array, waiting: chex.Array
) -> tuple[Nodes, Reached]:
    """Makes the nodes in which simulations stopped, with one network call."""
    t = jnp.int32(context.max_depth)
    return _expand(context, nodes, place.node, action, waiting, t)


@jax.named_scope("expand")
def _expand(
    context: Context,
    nodes: Nodes,
    node: chex.Array,
    action: chex.Array,
    wanted: chex.Array,
    t: chex.Array,
) -> tuple[Nodes, Reached]:
    """Makes the children that simulations ask for; those that ask for the same one share it."""
    rows, num_walks = context.rows, node.shape[1]
    edge = node * nodes.num_actions + action
    numbers = jnp.arange(num_walks, dtype=jnp.int32)
    same = (edge[:, :, None] == edge[:, None, :]) & wanted[:, None, :]
    # Minima, as they are faster reductions than argmax.
    first = jnp.min(jnp.where(same, numbers, num_walks - 1), axis=-1)
    embedding = _unpack(trees.take(nodes.embedding, node), context.embedding)
    expand = functools.partial(context.model.expand, context.keys.fold_in(t))
    expansion, after = context.in_width(expand, action, embedding)
    start = context.start + (0 if context.search.truncation.one_call else t * num_walks)
    child = start + first
    made = wanted & (first == numbers_of(first))
    kept = made & (child <= rows.limit)
    told = jnp.stack([expansion.reward, expansion.discount, expansion.value], axis=-1)
    block = Nodes(
        edge=jnp.where(kept, edge, -1),
        links=None,
        numbers=None,
        features=_pack(expansion.features) if context.adapts else (),
        embedding=_pack(after),
    )

    def write(old: chex.Array, new: chex.Array, column: int = 0) -> chex.Array:
        at = (start * 0, start, *[start * 0 + column] * (old.ndim - 2))
        return jax.lax.dynamic_update_slice(old, new, at)

    # The other columns are 0 where a node is new: returns are written down of known nodes only.
    numbers = write(nodes.numbers, told, nodes.numbers.shape[-1] - 3)
    if not context.adapts:
        numbers = write(numbers, expansion.features, nodes.num_actions)
    links = _link(context, nodes, node, action, child, kept)
    nodes = jax.tree.map(write, nodes._replace(links=None, numbers=None), block)
    nodes = nodes._replace(links=links, numbers=numbers)
    # Who asks for what another one asks for gets what the other one's call has told.
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


def _link(
    context: Context,
    nodes: Nodes,
    node: chex.Array,
    action: chex.Array,
    child: chex.Array,
    kept: chex.Array,
) -> chex.Array:
    """Tells parents `[B, K]` of their new children."""
    links = nodes.links
    num_rows = links.shape[1]
    if context.dense and _is_few(links.size * node.shape[1], _FEW_PAIRS):
        rows = jnp.arange(num_rows, dtype=jnp.int32)[None, :, None]
        here = (rows == node[:, None]) & kept[:, None]
        there = jnp.arange(nodes.num_actions, dtype=jnp.int32)[None, None] == action[..., None]
        both = here[..., None] & there[:, None]
        found = jnp.max(jnp.where(both, child[:, None, :, None], 0), axis=2)
        return links + jnp.pad(found, [(0, 0), (0, 0), (0, nodes.num_actions)])
    place = jnp.where(kept, node, num_rows)
    link = jax.vmap(lambda x, n, a, c: x.at[n, a].set(c, mode="drop"))
    return link(links, place, action, child)


def _is_few(number: Any, most: int) -> bool:
    """Tells whether there are so few of something; not where their number is a symbol."""
    return isinstance(number, int) and number <= most


def _nothing(child: chex.Array, dtype: Any) -> Reached:
    """What a step reaches that makes nothing."""
    none, rows = (0 * child).astype(dtype), trees.zero_rows(child)
    return Reached(child * 0, child > 0, none, none, none, rows, rows, rows)


def _pack(tree: Any) -> tuple[chex.Array, ...]:
    """Joins the arrays `[B, K, ...]` of each type to one `[B, K, W]`; a read is one read."""
    rows: dict[str, list[chex.Array]] = {}
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        rows.setdefault(str(x.dtype), []).append(x.reshape(*x.shape[:2], -1))
    return tuple(jnp.concatenate(rows[name], axis=-1) for name in sorted(rows))


def _unpack(packed: tuple[chex.Array, ...], like: Any) -> Any:
    """Takes apart what `_pack` joined; `like` has shapes `[B, K, ...]`."""
    leaves, treedef = jax.tree.flatten(like)
    types = [_stored(x) for x in leaves]
    source = dict(zip(sorted({str(t.dtype) for t in types}), packed, strict=True))
    taken, found = dict.fromkeys(source, 0), []
    for leaf, stored in zip(leaves, types, strict=True):
        name, size = str(stored.dtype), math.prod(stored.shape[2:])
        x = source[name][..., taken[name] : taken[name] + size]
        x = x.reshape(*x.shape[:2], *stored.shape[2:])
        if stored is not leaf:
            x = jax.random.wrap_key_data(x, impl=_kind_of_key(leaf))
        found.append(x)
        taken[name] += size
    return jax.tree.unflatten(treedef, found)


def _kind_of_key(leaf: Any) -> Any:
    """Returns the generator of keys, of which shapes suffice."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def _stored(leaf: Any) -> Any:
    """The shape and type in which an array is stored: keys as numbers."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return jax.eval_shape(jax.random.key_data, leaf)


# --- after the walk -------------------------------------------------------------------------------


def blocks(context: Context, nodes: Nodes, table: Any, steps: Steps) -> Blocks:
    """The nodes in which simulations acted, each once, or all of a table; see `Store`."""
    if table is not None:
        policy, prior, pull = table
        seen = lambda adapted, i: (policy.policy, prior, pull)  # noqa: E731
        return Blocks(in_rows(steps.source), nodes.edge.shape[1], 1, seen)
    num_walks = steps.acting.shape[2]
    same = steps.source[..., :, None] == steps.source[..., None, :]
    same &= steps.acting[..., None, :]
    numbers = jnp.arange(num_walks, dtype=jnp.int32)
    first = jnp.min(jnp.where(same, numbers, num_walks - 1), axis=-1)
    size = min(2 * num_walks, steps.acting.shape[0] * num_walks)
    row, num_blocks, steps_of = compact(steps.acting, first, size)
    source = in_rows(steps.source)

    def evaluate(adapted: Params, i: Any) -> tuple[chex.Array, chex.Array | None, Any]:
        node = trees.take(source, steps_of(i))
        rows = Place(node, *trees.take((nodes.links, nodes.numbers), node))
        logits, pull = jax.vjp(lambda own: _logits(context, nodes, own, node, rows), adapted)
        return distribution(logits).policy, _prior(context, nodes, node), lambda x: pull(x)[0]

    return Blocks(row, size, num_blocks, evaluate)


def remember(
    context: Context, nodes: Nodes, simulations: Simulations, returns: chex.Array
) -> Nodes:
    """Adds the returns to the statistics of the nodes, if anybody reads them."""
    if context.search.interior_selection is None:
        return nodes
    limit, num_actions = context.rows.limit, nodes.num_actions
    trajectory, child = simulations.trajectory, simulations.child
    counts = in_rows(trajectory.alive & (child <= limit))
    before = jnp.concatenate([0 * child[:1], child[:-1]])
    node, action = in_rows(before), in_rows(simulations.steps.action)
    returns = in_rows(returns).astype(nodes.numbers.dtype)
    num_rows = nodes.edge.shape[1]
    ranges = context.rows.sections > 2
    few = _is_few(nodes.edge.size * node.shape[1], _FEW_PAIRS)
    if context.dense and not ranges and few:
        rows = jnp.arange(num_rows, dtype=jnp.int32)[None, :, None]
        member = (rows == node[:, None]) & counts[:, None]
        chosen = jax.nn.one_hot(action, num_actions, dtype=returns.dtype)
        both = jnp.concatenate([chosen, chosen * returns[..., None]], axis=-1)
        added = jnp.einsum("bms,bsa->bma", member.astype(returns.dtype), both, precision="highest")
        visits, sums = added[..., :num_actions], added[..., num_actions:]
        rest = [(0, 0), (0, 0)]
        visits = jnp.pad(jnp.round(visits).astype(jnp.int32), [*rest, (num_actions, 0)])
        width = nodes.numbers.shape[-1] - num_actions
        return nodes._replace(
            links=nodes.links + visits,
            numbers=nodes.numbers + jnp.pad(sums, [*rest, (0, width)]),
        )
    node = jnp.where(counts, node, num_rows)
    add = jax.vmap(lambda x, n, a, new: x.at[n, a].add(new, mode="drop"))
    numbers = nodes.numbers
    if ranges:
        numbers = _extend(numbers, 2, nodes.visits, node, action, returns)
        numbers = -_extend(-numbers, 1, nodes.visits, node, action, -returns)
    return nodes._replace(
        links=add(nodes.links, node, num_actions + action, 1 + (0 * returns).astype(jnp.int32)),
        numbers=add(numbers, node, action, returns),
    )


def _extend(
    numbers: chex.Array,
    section: int,
    visits: chex.Array,
    node: chex.Array,
    action: chex.Array,
    returns: chex.Array,
) -> chex.Array:
    """Brings the smallest returns, a section counted from the end, down to new ones."""
    num_actions = visits.shape[-1]
    start = numbers.shape[-1] - 3 - section * num_actions
    known = numbers[..., start : start + num_actions]
    low = jax.vmap(lambda x, n, a, new: x.at[n, a].min(new, mode="drop"))
    least = low(jnp.where(visits > 0, known, jnp.inf), node, action, returns)
    return numbers.at[..., start : start + num_actions].set(least)


def last(context: Context, nodes: Nodes, place: Place, child: chex.Array) -> Embedding:
    """The states `[B, K]` of nodes."""
    del place
    return _unpack(trees.take(nodes.embedding, child), context.embedding)


def reroot(
    nodes: Nodes,
    action: chex.Array,
    *,
    num_kept: int,
    reset: chex.Array | None = None,
    state: Embedding | None = None,
) -> Nodes:
    """Follows an action that was played: the nodes behind it go on, the others are dropped.

    A node is the state that the model made of the action. Where the game went elsewhere, as where
    chance has a say or the model was learned, the next search drops what was kept for the root: its
    state is not the node's.

    After the moves of both players, call it twice. `search_state.nodes` of a search, followed by
    the actions since, is the `nodes` of the game's next search, as is `search_state.params` its
    `adapted_params`.

    Args:
      nodes: what a search of B games left behind.
      action: `[B]` the actions played.
      num_kept: how many nodes to keep at most, the root included; of more, those that were visited
        last are dropped. The result has this size whatever is kept, so that a loop of games has
        fixed shapes.
      reset: `[B]` bool, True where the next search belongs to a new game: nothing is kept there.
      state: `[B, ...]` the embedding of the next search's roots. Nothing is kept where it is not
        that of the node, but for rounding. The next search looks for itself; so this is needed only
        where the nodes serve something else. After the moves of both players, the second call takes
        it.

    Returns:
      Nodes whose root is the state after the action.

    Raises:
      ValueError: if `num_kept` is below 1, `nodes` is None, as rollouts leave it, or `state` is no
        embedding of such nodes.

    Example:
      >>> nodes = jaxpgs.reroot(output.search_state.nodes, output.action, num_kept=8)
      >>> nodes.parent.shape
      (2, 8)
    """
    if not isinstance(nodes, Nodes):
        raise ValueError(
            'reroot needs the nodes of a search with mode="tree" (or a tree search); got '
            f"{nodes!r}. Rollouts leave none."
        )
    if num_kept < 1:
        raise ValueError(f"num_kept must be at least 1, for the root, got {num_kept}.")
    batch_size, num_nodes = nodes.edge.shape
    numbers = jnp.broadcast_to(jnp.arange(num_nodes, dtype=jnp.int32), (batch_size, num_nodes))
    root = pick(nodes.children[:, 0], action.astype(jnp.int32))[:, None]
    # Nodes below the new root: those whose chain of parents meets it, by doubling the step.
    below, above = numbers == root, nodes.parent
    for _ in range(num_nodes.bit_length()):
        below, above = below | trees.take(below, above), trees.take(above, above)
    # An unused row must not follow, nor a child of 0, which is none.
    kept = below & (nodes.edge >= 0) & (root > 0)
    if reset is not None:
        kept &= ~reset[:, None]
    if state is not None:
        kept &= _is_state(nodes, root, state)[:, None]
    rank = jnp.cumsum(kept, axis=-1, dtype=jnp.int32) - 1
    kept &= rank < num_kept
    size = jnp.sum(kept, axis=-1, dtype=jnp.int32)
    # Parents have smaller numbers, so the new root comes first and none loses its parent.
    order = jnp.argsort(~kept, axis=-1, stable=True)[:, :num_kept]
    order = jnp.pad(order, [(0, 0), (0, max(num_kept - num_nodes, 0))])
    used = jnp.arange(num_kept)[None] < size[:, None]
    renamed = jnp.where(kept, rank, 0)
    rows = trees.take(nodes, order)
    children = trees.take(renamed, rows.children.reshape(batch_size, -1))
    children = jnp.where(used[..., None], children.reshape(rows.children.shape), 0)
    # What returned from a node that is dropped goes with it, as it may be made once more.
    visits = jnp.where(children > 0, rows.visits, 0)
    sums = jnp.where(children > 0, rows.value_sum, 0.0)
    numbers = rows.numbers.at[..., : nodes.num_actions].set(sums)
    edge = trees.take(renamed, rows.parent) * nodes.num_actions + rows.edge % nodes.num_actions
    is_root = jnp.arange(num_kept)[None] == 0
    return rows._replace(
        edge=jnp.where(used & ~is_root, edge, -1),
        links=jnp.concatenate([children, visits], axis=-1),
        numbers=jnp.where(used[..., None], numbers, 0.0),
    )


def _is_state(nodes: Nodes, node: chex.Array, state: Embedding) -> chex.Array:
    """Tells `[B]` whether nodes `[B, 1]` hold states `[B, ...]`."""
    given = _pack(jax.tree.map(lambda x: jnp.asarray(x)[:, None], state))
    known = trees.take(nodes.embedding, node)
    found = [[(x.shape, str(x.dtype)) for x in packed] for packed in (known, given)]
    if found[0] != found[1]:
        raise ValueError(
            "reroot's state must be an embedding of the roots, as the search's own; joined by type "
            f"it must have (shape, dtype) {found[0]}, got {found[1]}."
        )
    return _same(known, given) & (node[:, 0] >= 0)


def _same(known: Embedding, given: Embedding) -> chex.Array:
    """Tells `[B]` whether states `[B, 1, W]` are the same, real numbers but for rounding."""

    def same(x: chex.Array, y: chex.Array) -> chex.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x == y
        near = jnp.finfo(x.dtype).eps ** 0.5
        return jnp.isclose(x, y, rtol=near, atol=near, equal_nan=True)

    rows = [jnp.all(same(x, y), axis=(1, 2)) for x, y in zip(known, given, strict=True)]
    return functools.reduce(jnp.logical_and, rows, jnp.bool_(True))


store = Store(
    init, begin, follow, look, close, make_table, blocks, lambda place: None, last, remember
)
