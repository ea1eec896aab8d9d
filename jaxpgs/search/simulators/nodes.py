"""The memory of the cached mode: every action sequence visited is a node with its evaluation.

Node 0 is the root and no other node's child, so a child of 0 means "not visited", and nodes full of
zeros are an empty memory. Behind the nodes that a search may keep there is room for those of one
update that find no place any more: they serve that update, and the next one writes over them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.base import Embedding, ExpandFn, Expansion, NodeStats, Params
from jaxpgs.device_memory import check_fits
from jaxpgs.search.simulators.transpositions import NUM_WORDS, earlier_nodes, node_codes


class Nodes(NamedTuple):
    """The visited sequences of B searches, M nodes each.

    Attributes:
      size: `[B]` int32, nodes in use, the root not counted.
      parent: `[B, M]` int32, smaller than the node's own number.
      children: `[B, M, A]` int32, 0 where an action has not been taken.
      reward: `[B, M]` reward of the step into the node.
      discount: `[B, M]` its discount.
      value: `[B, M]` the network's value.
      visits: `[B, M]` int32, simulations that took the step into the node; counted where the
        search's actions below the root depend on it, else 0.
      value_sum: `[B, M]` the sum of their returns, from the view of the player who took it.
      features: `[B, M, ...]` what the adapted head reads, or the logits if nothing adapts.
      embedding: `[B, M, ...]` the states.
      lowest: `[B, M]` the smallest of the returns in `value_sum`, None if nobody asked for it.
        Without meaning where `visits` is 0.
      highest: `[B, M]` the greatest of them, like `lowest`.
      code: `[B, M, 3]` uint32, what tells the node's state from others, None if the search has no
        `transpositions`. Where two nodes have one code, actions lead to the first of them.

    Example:
      >>> output.search_state.nodes.features.shape  # two searches, M nodes each
      (2, 21, 8)
    """

    size: chex.Array
    parent: chex.Array
    children: chex.Array
    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    visits: chex.Array
    value_sum: chex.Array
    features: Any
    embedding: Embedding
    lowest: chex.Array | None = None
    highest: chex.Array | None = None
    code: chex.Array | None = None


def make_nodes(
    params: Params,
    root: mctx.RootFnOutput,
    expand_fn: ExpandFn,
    num_new: int,
    kept: Nodes | None = None,
    *,
    ranges: bool = False,
    codes: bool = False,
) -> Nodes:
    """Makes the memory of a search.

    Args:
      params: the network's parameters.
      root: the roots.
      expand_fn: evaluates new nodes, as in `SplitRecurrentFn`.
      num_new: nodes to make room for.
      kept: the nodes that an earlier search left behind, if any.
      ranges: whether to keep the smallest and the greatest return of each node.
      codes: whether to keep what tells states from others.

    Returns:
      Nodes with `num_new` unused ones.
    """
    batch_size, num_actions = root.prior_logits.shape
    action = trees.zero_rows(root.prior_logits > 0)
    key = jax.random.key(0)
    expansion, embedding = jax.eval_shape(expand_fn, params, key, action, root.embedding)
    parts = expansion._asdict() | {
        "embedding": embedding,
        "parent": action,
        "visits": action,
        "value_sum": expansion.value,
        "children": jax.ShapeDtypeStruct((batch_size, num_actions), jnp.int32),
    }
    if ranges:
        parts |= {"lowest": expansion.value, "highest": expansion.value}
    if codes:
        parts["code"] = jax.ShapeDtypeStruct((batch_size, NUM_WORDS), jnp.uint32)
    num_rows = num_new if kept is not None else num_new + 1
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch_size, num_rows, *x.shape[1:]), x.dtype), parts
    )
    check_fits(
        shapes,
        f"The {num_rows} nodes of each of {batch_size} roots",
        "Lower num_simulations or capacity, or search fewer roots at once, or use "
        'mode="constant", which remembers none; jaxpgs.estimate_memory tells what a search needs.',
    )
    with jax.named_scope("make_nodes"):
        rows = jax.tree.map(lambda x: trees.zeros(x.shape, x.dtype, action), shapes)
    nodes = Nodes(size=action, **rows)
    if kept is not None:
        _check_kept(kept, nodes)
        rows = {
            name: jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), getattr(kept, name), new)
            for name, new in rows.items()
        }
        nodes = Nodes(size=kept.size, **rows)
    start = jax.tree.map(lambda x, e: x.at[:, 0].set(e), nodes.embedding, root.embedding)
    return nodes._replace(embedding=start)


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


def take(x: Any, index: chex.Array) -> Any:
    """Reads `[B, M, ...]` arrays at `[B, ...]` places of their second axis."""
    get = jax.vmap(lambda x, i: x.at[i].get(mode="promise_in_bounds"))
    return jax.tree.map(lambda leaf: get(leaf, index), x)


def write(x: chex.Array, rows: chex.Array, start: chex.Array) -> chex.Array:
    """Writes `[B, R, ...]` rows into `[B, M, ...]` from places `[B]` on."""
    put = jax.vmap(lambda x, new, i: jax.lax.dynamic_update_slice_in_dim(x, new, i, 0))
    return put(x, rows, start)


def unique(x: chex.Array, wanted: chex.Array) -> tuple[chex.Array, chex.Array, chex.Array]:
    """Finds the different values among those of `[B, K]` numbers that are wanted, root by root.

    Args:
      x: `[B, K]` int32.
      wanted: `[B, K]` bool.

    Returns:
      For each of the K, the row `[B, K]` of its value among the different ones (some row where it
      is not wanted); for each row, one index `[B, K]` that holds its value (0 for rows unused); and
      the number `[B]` of rows.
    """
    num = x.shape[1]
    numbers = jnp.arange(num, dtype=jnp.int32)[None]
    same = (x[:, :, None] == x[:, None, :]) & wanted[:, None, :]
    # Minima, as they are faster reductions than argmax.
    first = jnp.min(jnp.where(same, numbers[None], num - 1), axis=-1)
    fresh = wanted & (first == numbers)
    rank = jnp.maximum(jnp.cumsum(fresh, axis=-1, dtype=jnp.int32) - 1, 0)
    holds = fresh[:, None, :] & (rank[:, None, :] == numbers[..., None])
    index = jnp.max(jnp.where(holds, numbers[None], 0), axis=-1)
    return take(rank, first), index, jnp.sum(fresh, axis=-1, dtype=jnp.int32)


def lookup(nodes: Nodes, node: chex.Array, action: chex.Array) -> chex.Array:
    """Returns the child `[B, K]` of nodes by actions, 0 where there is none."""
    flat = nodes.children.reshape(len(nodes.children), -1)
    return take(flat, node * nodes.children.shape[-1] + action)


def node_stats(
    nodes: Nodes, node: chex.Array, logits: chex.Array, *, ranges: bool = False
) -> NodeStats:
    """Returns the statistics of nodes.

    Args:
      nodes: the memory.
      node: `[B]` or `[B, W]` int32.
      logits: `[B, A]` or `[B, W, A]` their logits, illegal actions at the lowest float.
      ranges: whether the smallest and the greatest returns are wanted.

    Returns:
      Statistics with the axes of `node`, and A.

    Example:
      >>> nodes = output.search_state.nodes
      >>> logits = jnp.zeros((2, 1, 9))  # of one node in each search
      >>> jaxpgs.search.node_stats(nodes, jnp.zeros((2, 1), jnp.int32), logits).visits.shape
      (2, 1, 9)
    """
    child = take(nodes.children, node)
    known = child > 0
    visits, value_sum = take((nodes.visits, nodes.value_sum), child)
    visits = jnp.where(known, visits, 0)
    stats = NodeStats(
        prior_logits=logits,
        value=take(nodes.value, node),
        visits=visits,
        value_sum=jnp.where(known, value_sum, 0.0),
        valid=logits > jnp.finfo(logits.dtype).min,
    )
    if not ranges:
        return stats
    lowest, highest = take((nodes.lowest, nodes.highest), child)
    return stats._replace(
        lowest=jnp.where(visits > 0, lowest, jnp.inf),
        highest=jnp.where(visits > 0, highest, -jnp.inf),
    )


def add_visits(
    nodes: Nodes, visited: chex.Array, alive: chex.Array, returns: chex.Array, limit: int
) -> Nodes:
    """Adds simulations `[T, B, K]` to the statistics of the nodes visited, up to `limit`."""
    visited, alive, returns = (
        jnp.moveaxis(x, 1, 0).reshape(x.shape[1], -1) for x in (visited, alive, returns)
    )
    visited = jnp.where(alive & (visited <= limit), visited, nodes.visits.shape[1])
    add = jax.vmap(lambda x, i, new: x.at[i].add(new, mode="drop"))
    returns = returns.astype(nodes.value_sum.dtype)
    if nodes.lowest is not None and nodes.highest is not None:
        tried = nodes.visits > 0
        low = jax.vmap(lambda x, i, new: x.at[i].min(new, mode="drop"))
        high = jax.vmap(lambda x, i, new: x.at[i].max(new, mode="drop"))
        nodes = nodes._replace(
            lowest=low(jnp.where(tried, nodes.lowest, jnp.inf), visited, returns),
            highest=high(jnp.where(tried, nodes.highest, -jnp.inf), visited, returns),
        )
    return nodes._replace(
        visits=add(nodes.visits, visited, jnp.ones_like(visited)),
        value_sum=add(nodes.value_sum, visited, returns),
    )


def expand(
    nodes: Nodes,
    parent: chex.Array,
    action: chex.Array,
    wanted: chex.Array,
    call: Callable[[chex.Array, Embedding], tuple[Expansion, Embedding]],
    limit: int | None = None,
    same_state: Callable[[Embedding], Any] | None = None,
) -> tuple[Nodes, chex.Array]:
    """Adds the children that K walks of each root ask for, with one network call.

    Walks that ask for the same child share it. With `same_state` a child may be a node that other
    actions have led to; what was made for it stays unused.

    Args:
      nodes: the memory, with at least K unused nodes.
      parent: `[B, K]` nodes.
      action: `[B, K]` actions that have no child there.
      wanted: `[B, K]` bool, which of the walks ask.
      call: `(action [B, K], embedding [B, K, ...]) -> (Expansion, embedding)`.
      limit: the last node that may be kept; nodes behind it have no parent that knows them. None
        sets no limit.
      same_state: `Search.transpositions`.

    Returns:
      The memory, and the children `[B, K]`, 0 where none was wanted.
    """
    edge = parent * nodes.children.shape[-1] + action
    row, index, count = unique(edge, wanted)
    # The different ones come first, so that they fill one block of the memory. Behind them the
    # block holds what the next one writes over.
    parent, action = take((parent, action), index)
    expansion, embedding = call(action, take(nodes.embedding, parent))
    block = {"parent": parent, "embedding": embedding} | expansion._asdict()
    start = nodes.size + 1
    numbers = jnp.arange(parent.shape[1], dtype=jnp.int32)[None]
    child = start[:, None] + numbers
    linked = numbers < count[:, None]
    if same_state is not None and nodes.code is not None:
        code = node_codes(same_state, take(nodes.code, parent), expansion, embedding)
        child = earlier_nodes(nodes.code, nodes.size, code)
        block["code"] = code
    rows = {
        name: jax.tree.map(lambda x, new: write(x, new, start), getattr(nodes, name), new)
        for name, new in block.items()
    }
    if limit is not None:
        linked &= child <= limit
    linked = jnp.where(linked, parent, nodes.children.shape[1])
    link = jax.vmap(lambda x, n, a, c: x.at[n, a].set(c, mode="drop"))
    children = link(nodes.children, linked, action, child)
    nodes = nodes._replace(size=nodes.size + count, children=children, **rows)
    return nodes, jnp.where(wanted, take(child, row), 0)


def reroot(
    nodes: Nodes, action: chex.Array, *, num_kept: int, reset: chex.Array | None = None
) -> Nodes:
    """Follows an action that was played: the nodes behind it go on, the others are dropped.

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

    Returns:
      Nodes whose root is the state after the action.

    Raises:
      ValueError: if `num_kept` is below 1, or `nodes` is None, as a search of the constant mode
        leaves it.

    Example:
      >>> nodes = jaxpgs.reroot(output.search_state.nodes, output.action, num_kept=8)
      >>> nodes.parent.shape
      (2, 8)
    """
    if not isinstance(nodes, Nodes):
        raise ValueError(
            'reroot needs the nodes of a search with mode="cached" (or a tree search); got '
            f"{nodes!r}. Searches of the constant mode leave none."
        )
    if num_kept < 1:
        raise ValueError(f"num_kept must be at least 1, for the root, got {num_kept}.")
    batch_size, num_nodes = nodes.parent.shape
    numbers = jnp.broadcast_to(jnp.arange(num_nodes, dtype=jnp.int32), (batch_size, num_nodes))
    root = lookup(nodes, jnp.zeros_like(action)[:, None], action[:, None])
    # Nodes below the new root: those whose chain of parents meets it, by doubling the step.
    below, above = numbers == root, nodes.parent
    for _ in range(num_nodes.bit_length()):
        below, above = below | take(below, above), take(above, above)
    # An unused node must not follow, nor a child of 0, which is none.
    kept = below & (numbers <= nodes.size[:, None]) & (root > 0)
    if reset is not None:
        kept &= ~reset[:, None]
    rank = jnp.cumsum(kept, axis=-1, dtype=jnp.int32) - 1
    kept &= rank < num_kept
    size = jnp.sum(kept, axis=-1, dtype=jnp.int32)
    # Parents have smaller numbers, so the new root comes first and none loses its parent.
    order = jnp.argsort(~kept, axis=-1, stable=True)[:, :num_kept]
    order = jnp.pad(order, [(0, 0), (0, max(num_kept - num_nodes, 0))])
    used = jnp.arange(num_kept)[None] < size[:, None]
    renamed = jnp.where(kept, rank, 0)
    rows = take(nodes._replace(size=None), order)
    children = take(renamed, rows.children.reshape(batch_size, -1)).reshape(rows.children.shape)
    return rows._replace(
        size=jnp.maximum(size - 1, 0),
        parent=jnp.where(used, take(renamed, rows.parent), 0),
        children=jnp.where(used[..., None], children, 0),
        visits=jnp.where(used, rows.visits, 0),
        value_sum=jnp.where(used, rows.value_sum, 0.0),
    )
