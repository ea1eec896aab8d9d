"""The memory of the cached mode: every action sequence visited is a node with its evaluation.

Node 0 is the root and no other node's child, so a child of 0 means "not visited", and nodes full of
zeros are an empty memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.base import Embedding, ExpandFn, Expansion, Params, broadcast_keys


class Nodes(NamedTuple):
    """The visited sequences of B searches, M nodes each.

    Attributes:
      size: `[B]` int32, nodes in use, the root not counted.
      parent: `[B, M]` int32, smaller than the node's own number.
      children: `[B, M, A]` int32, 0 where an action has not been taken.
      reward: `[B, M]` reward of the step into the node.
      discount: `[B, M]` its discount.
      value: `[B, M]` the network's value.
      features: `[B, M, ...]` what the adapted head reads.
      embedding: `[B, M, ...]` the states.
    """

    size: chex.Array
    parent: chex.Array
    children: chex.Array
    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    features: Any
    embedding: Embedding


def make_nodes(
    params: Params,
    root: mctx.RootFnOutput,
    expand_fn: ExpandFn,
    num_new: int,
    kept: Nodes | None = None,
) -> Nodes:
    """Makes the memory of a search.

    Args:
      params: the network's parameters.
      root: the roots.
      expand_fn: evaluates new nodes, as in `SplitRecurrentFn`.
      num_new: nodes to make room for.
      kept: the nodes that an earlier search left behind, if any.

    Returns:
      Nodes with `num_new` unused ones.
    """
    batch_size, num_actions = root.prior_logits.shape
    action = jnp.zeros(batch_size, jnp.int32)
    keys = broadcast_keys(jax.random.key(0), batch_size)
    expansion, embedding = jax.eval_shape(expand_fn, params, keys, action, root.embedding)
    parts = expansion._asdict() | {
        "embedding": embedding,
        "parent": action,
        "children": jax.ShapeDtypeStruct((batch_size, num_actions), jnp.int32),
    }
    num_rows = num_new if kept is not None else num_new + 1
    rows = jax.tree.map(lambda x: jnp.zeros((batch_size, num_rows, *x.shape[1:]), x.dtype), parts)
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


def pack(wanted: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Numbers those of K that are wanted, root by root.

    Args:
      wanted: `[B, K]` bool.

    Returns:
      The number `[B, K]` of each among those wanted, and the other way round, for each number the
      index of the one that has it (or 0).
    """
    numbers = jnp.arange(wanted.shape[1])
    rank = jnp.cumsum(wanted, axis=-1, dtype=jnp.int32) - 1
    matches = wanted[:, None, :] & (rank[:, None, :] == numbers[:, None])
    return rank, jnp.argmax(matches, axis=-1).astype(jnp.int32)


def lookup(nodes: Nodes, node: chex.Array, action: chex.Array) -> chex.Array:
    """Returns the child `[B, K]` of nodes by actions, 0 where there is none."""
    flat = nodes.children.reshape(len(nodes.children), -1)
    return take(flat, node * nodes.children.shape[-1] + action)


def expand(
    nodes: Nodes,
    parent: chex.Array,
    action: chex.Array,
    wanted: chex.Array,
    call: Callable[[chex.Array, Embedding], tuple[Expansion, Embedding]],
) -> tuple[Nodes, chex.Array]:
    """Adds the children that K walks of each root ask for, with one network call.

    Walks that ask for the same child share it.

    Args:
      nodes: the memory, with at least K unused nodes.
      parent: `[B, K]` nodes.
      action: `[B, K]` actions that have no child there.
      wanted: `[B, K]` bool, which of the walks ask.
      call: `(action [B, K], embedding [B, K, ...]) -> (Expansion, embedding)`.

    Returns:
      The memory, and the children `[B, K]`, 0 where none was wanted.
    """
    num_walks = parent.shape[1]
    edge = parent * nodes.children.shape[-1] + action
    same = (edge[:, :, None] == edge[:, None, :]) & wanted[:, None, :]
    first = jnp.argmax(same, axis=-1)
    fresh = wanted & (first == jnp.arange(num_walks))
    rank, order = pack(fresh)
    # The new ones come first, so that they fill one block of the memory. Behind them the block holds
    # what the next one writes over.
    from_node, by_action = take((parent, action), order)
    expansion, embedding = call(by_action, take(nodes.embedding, from_node))
    block = {"parent": from_node, "embedding": embedding} | expansion._asdict()
    rows = {
        name: jax.tree.map(lambda x, new: write(x, new, nodes.size + 1), getattr(nodes, name), new)
        for name, new in block.items()
    }
    child = jnp.where(wanted, nodes.size[:, None] + 1 + take(rank, first), 0)
    where = jnp.where(fresh, parent, nodes.children.shape[1])
    link = jax.vmap(lambda x, n, a, c: x.at[n, a].set(c, mode="drop"))
    nodes = nodes._replace(
        size=nodes.size + jnp.sum(fresh, axis=-1),
        children=link(nodes.children, where, action, child),
        **rows,
    )
    return nodes, child
