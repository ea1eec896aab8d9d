"""The nodes of a tree: how their rows are stored, read and written.

A node is a row of arrays. For each action it has an entry with the child, its visits and returns,
so that they are all available with one read. With `MANY_ACTIONS` or more, these entries would take
nearly all of the memory. Then each row has the visits and returns of the step into it, and they are
collected from the children when a node is read.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import NodeStats
from jaxpgs.search.policy import pick

# With this many actions or more, children are not stored by action. With 1,000 and 4,672 this was
# also faster (`speed --preset many-actions`); the break-even point was not measured.
MANY_ACTIONS = 512
# On accelerators, comparing every row with every index replaces a scatter up to this many pairs.
FEW_PAIRS = 2**24


class Nodes(NamedTuple):
    """The visited sequences of B searches, M rows each.

    Attributes:
      edge: `[B, M]` int32, `A * parent + action` of the step into the node, -1 for the root and for
        unused rows.
      links: `[B, M, 2 A]` int32, the children by action, 0 for none, and the simulations that went
        to each; the latter are counted only if the search's actions below the root depend on them,
        and are 0 otherwise. With many actions `[B, 0, 2 A]`.
      numbers: `[B, M, ...]` sums of the returns by action, from the view of the player to move; the
        logits by action if nothing adapts; the smallest and greatest returns by action if needed;
        and last the reward and discount of the step into the node, and the network's value. With
        many actions, sums and ranges are not included.
      features: the inputs of the adapted head, a tuple of `[B, M, ...]`, one array per type; empty
        if nothing adapts.
      embedding: the states, also one array per type.
      arrivals: with many actions, the statistics of the step into each node; None with few.

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
    arrivals: "Arrivals | None" = None

    @property
    def num_actions(self) -> int:
        """The number of actions A."""
        return int(self.links.shape[-1]) // 2

    @property
    def parent(self) -> chex.Array:
        """`[B, M]` int32, 0 for the root and unused rows."""
        return jnp.maximum(self.edge, 0) // self.num_actions

    @property
    def children(self) -> chex.Array:
        """`[B, M, A]` int32, 0 where an action has not been taken."""
        return _lines(self)[0][..., : self.num_actions]

    @property
    def visits(self) -> chex.Array:
        """`[B, M, A]` int32 simulations by action, 0 unless the search's actions depend on them."""
        return _lines(self)[0][..., self.num_actions :]

    @property
    def value_sum(self) -> chex.Array:
        """`[B, M, A]` the sums of their returns."""
        return _lines(self)[1][..., : self.num_actions]

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


class Arrivals(NamedTuple):
    """The statistics of the step into each node.

    Attributes:
      visits: `[B, M]` int32, how many simulations took it; counted if `Nodes.visits` are.
      returns: `[B, M, 1]` the sum of their returns, from the view of the player who took it; or
        `[B, M, 3]`, with the smallest and the greatest of them.
    """

    visits: chex.Array
    returns: chex.Array


class Place(NamedTuple):
    """Where simulations are: the node `[B, K]`, and its `links` and `numbers`.

    On an accelerator these are read once, when the node is reached. On a CPU, where carrying them
    costs more than reading, they are None until they are needed.
    """

    node: chex.Array
    links: chex.Array | None = None
    numbers: chex.Array | None = None


def logits_of(nodes: Nodes, numbers: chex.Array) -> chex.Array:
    """Returns the logits `[..., A]` in rows of `nodes.numbers`."""
    start = nodes.num_actions if nodes.arrivals is None else 0
    return numbers[..., start : start + nodes.num_actions]


def find(
    nodes: Nodes, place: Place, action: chex.Array, *, visits: bool
) -> tuple[chex.Array, chex.Array | None]:
    """Returns the children `[B, K]` of actions, 0 for none, and their visits if requested."""
    num_actions = nodes.num_actions
    if nodes.arrivals is not None:
        # [B, K, M]: with many actions the child is the row, if any, whose edge is the wanted one.
        wanted = place.node * num_actions + action
        rows = jnp.arange(nodes.edge.shape[1], dtype=jnp.int32)
        child = jnp.max(jnp.where(nodes.edge[:, None] == wanted[..., None], rows, 0), axis=-1)
        if not visits:
            return child, None
        return child, jnp.where(child > 0, trees.take(nodes.arrivals.visits, child), 0)

    def read(section: int) -> chex.Array:
        if place.links is not None:
            return pick(place.links[..., section * num_actions :][..., :num_actions], action)
        # A CPU reads only the entry, not the row.
        at = jax.vmap(lambda x, n, a: x.at[n, a].get(mode="promise_in_bounds"))
        return at(nodes.links, place.node, section * num_actions + action)

    return read(0), read(1) if visits else None


def by_action(nodes: Nodes, node: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Returns `links` and `numbers` of nodes `[B, K]`, with entries for each action.

    With many actions there are no logits among the numbers.
    """
    if nodes.arrivals is None:
        return trees.take((nodes.links, nodes.numbers), node)
    num_actions = nodes.num_actions
    parent, action = nodes.edge // num_actions, nodes.edge % num_actions  # of -1 the parent is -1

    def spread(node: chex.Array, root: tuple[chex.Array, ...]) -> tuple[chex.Array, ...]:
        parent, action, *known = root
        # Rows that are not children of the node get an index after the last action: dropped.
        at = jnp.where(parent == node, action, num_actions)
        empty = (jnp.zeros((*x.shape[1:], num_actions), x.dtype) for x in known)
        return tuple(
            x.at[..., at].set(jnp.moveaxis(new, 0, -1), mode="drop")
            for x, new in zip(empty, known, strict=True)
        )

    known = (parent, action, _all_rows(nodes.edge), *nodes.arrivals)
    of_root = jax.vmap(spread, in_axes=(0, None))
    child, count, returned = jax.vmap(of_root)(node, known)
    told = trees.take(nodes.numbers[..., -3:], node)
    numbers = [returned.reshape(*node.shape, -1), told]
    return jnp.concatenate([child, count], axis=-1), jnp.concatenate(numbers, axis=-1)


def _lines(nodes: Nodes) -> tuple[chex.Array, chex.Array]:
    """Returns the result of `by_action` for all nodes."""
    if nodes.arrivals is None:
        return nodes.links, nodes.numbers
    return by_action(nodes, _all_rows(nodes.edge))


def _all_rows(edge: chex.Array) -> chex.Array:
    return jnp.broadcast_to(jnp.arange(edge.shape[1], dtype=jnp.int32), edge.shape)


def stats_of(rows: Any, logits: chex.Array, scale: chex.Array | None) -> NodeStats:
    """Returns the statistics of nodes `[B, K]` from their rows as `by_action` has them."""
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
    # From the end: reward, discount and value; the greatest returns; the smallest returns.
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
    rows = node.reshape(len(node), -1)
    place = Place(rows, *by_action(nodes, rows))
    stats = stats_of(place, logits.reshape(*rows.shape, -1), None)
    return jax.tree.map(lambda x: x.reshape(*node.shape, *x.shape[2:]), stats)


def link(
    nodes: Nodes,
    node: chex.Array,
    action: chex.Array,
    child: chex.Array,
    kept: chex.Array,
    *,
    dense: bool,
) -> chex.Array:
    """Links parents `[B, K]` to their new children; returns the new `nodes.links`."""
    links = nodes.links
    if nodes.arrivals is not None:
        return links  # the children store the edge
    num_rows = links.shape[1]
    if dense and is_few(links.size * node.shape[1], FEW_PAIRS):
        rows = jnp.arange(num_rows, dtype=jnp.int32)[None, :, None]
        # [B, M, K]: whether row m is the parent of simulation k. Comparisons replace a scatter.
        here = (rows == node[:, None]) & kept[:, None]
        there = jnp.arange(nodes.num_actions, dtype=jnp.int32)[None, None] == action[..., None]
        both = here[..., None] & there[:, None]
        found = jnp.max(jnp.where(both, child[:, None, :, None], 0), axis=2)
        # A new child's entry was 0, so adding sets it; the visits after it are unchanged.
        return links + jnp.pad(found, [(0, 0), (0, 0), (0, nodes.num_actions)])
    place = jnp.where(kept, node, num_rows)
    put = jax.vmap(lambda x, n, a, c: x.at[n, a].set(c, mode="drop"))
    return put(links, place, action, child)


def is_few(number: Any, most: int) -> bool:
    """Tells whether a number is at most `most`; False if it is symbolic."""
    return isinstance(number, int) and number <= most


def add(
    nodes: Nodes,
    node: chex.Array,
    action: chex.Array,
    child: chex.Array,
    returns: chex.Array,
    counts: chex.Array,
    *,
    ranges: bool,
    dense: bool,
) -> Nodes:
    """Adds returns to the statistics.

    Args:
      nodes: the memory.
      node: `[B, S]` the nodes where steps began.
      action: `[B, S]` their actions.
      child: `[B, S]` the nodes to which they led.
      returns: `[B, S]` their returns.
      counts: `[B, S]` bool, which of them count.
      ranges: whether the smallest and the greatest return are kept.
      dense: whether many comparisons are faster than a scatter.
    """
    num_actions = nodes.num_actions
    returns = returns.astype(nodes.numbers.dtype)
    num_rows = nodes.edge.shape[1]
    if nodes.arrivals is not None:
        there = jnp.where(counts & (child > 0), child, num_rows)
        return nodes._replace(arrivals=_arrive(nodes.arrivals, there, returns))
    few = is_few(nodes.edge.size * node.shape[1], FEW_PAIRS)
    if dense and not ranges and few:
        rows = jnp.arange(num_rows, dtype=jnp.int32)[None, :, None]
        # [B, M, S]: its product with ones and returns sums up both by node and action.
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
    # Steps that do not count get an index after the last row, so that scatters drop them.
    node = jnp.where(counts, node, num_rows)
    put = jax.vmap(lambda x, n, a, new: x.at[n, a].add(new, mode="drop"))
    numbers = nodes.numbers
    if ranges:
        # The greatest return is the smallest of the negated returns.
        numbers = _extend(numbers, 2, nodes.visits, node, action, returns)
        numbers = -_extend(-numbers, 1, nodes.visits, node, action, -returns)
    return nodes._replace(
        links=put(nodes.links, node, num_actions + action, 1 + (0 * returns).astype(jnp.int32)),
        numbers=put(numbers, node, action, returns),
    )


def _arrive(arrivals: Arrivals, child: chex.Array, returns: chex.Array) -> Arrivals:
    """Adds returns `[B, S]` to rows; indices after the last row are dropped."""
    visits, known = arrivals

    def put(x: chex.Array, column: int, name: str) -> chex.Array:
        at = jax.vmap(lambda x, n, new: getattr(x.at[n, column], name)(new, mode="drop"))
        return at(x, child, returns.astype(x.dtype))

    if known.shape[-1] > 1:
        # Before the first visit the bounds are the 0 of an empty row, which is not a return.
        unknown = jnp.array([0, jnp.inf, -jnp.inf], known.dtype)
        known = jnp.where((visits == 0)[..., None], unknown, known)
        known = put(put(known, 1, "min"), 2, "max")
    count = jax.vmap(lambda x, n: x.at[n].add(1, mode="drop"))
    return Arrivals(count(visits, child), put(known, 0, "add"))


def _extend(
    numbers: chex.Array,
    section: int,
    visits: chex.Array,
    node: chex.Array,
    action: chex.Array,
    returns: chex.Array,
) -> chex.Array:
    """Updates the smallest returns, in a section counted from the end, by new returns."""
    num_actions = visits.shape[-1]
    start = numbers.shape[-1] - 3 - section * num_actions
    known = numbers[..., start : start + num_actions]
    low = jax.vmap(lambda x, n, a, new: x.at[n, a].min(new, mode="drop"))
    least = low(jnp.where(visits > 0, known, jnp.inf), node, action, returns)
    return numbers.at[..., start : start + num_actions].set(least)
