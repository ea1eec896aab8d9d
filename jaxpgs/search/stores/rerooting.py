"""Tree reuse: keeps the nodes below the actions that were played for the game's next search."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import Embedding
from jaxpgs.search.stores.nodes import Nodes, Place, find
from jaxpgs.search.stores.packing import pack


def reroot(
    nodes: Nodes,
    action: chex.Array,
    *,
    num_kept: int,
    reset: chex.Array | None = None,
    state: Embedding | None = None,
) -> Nodes:
    """Moves the root along an action that was played: nodes below it are kept, others dropped.

    A node holds the state that the model returned for the action. If the game reached another
    state, because of chance or because the model was learned, the next search detects this at its
    root and drops the kept nodes.

    After the moves of both players, call it twice. The `search_state.nodes` of a search, moved
    along the actions played since, are the `nodes` of the game's next search, just as
    `search_state.params` are its `adapted_params`.

    Args:
      nodes: the nodes of a search of B games.
      action: `[B]` the actions played.
      num_kept: how many nodes to keep at most, including the root; if there are more, those that
        were created last are dropped. The result has this size however many nodes are kept, so that
        a loop of games has fixed shapes.
      reset: `[B]` bool, True where the next search belongs to a new game: nothing is kept there.
      state: `[B, ...]` the embedding of the next search's roots. Nothing is kept where it differs
        from that of the node by more than rounding. The next search checks this itself, so it is
        needed only if the nodes are used for something else. After the moves of both players, give
        it to the second call.

    Returns:
      Nodes whose root is the state after the action.

    Raises:
      ValueError: if `num_kept` is below 1, `nodes` is None, as after rollouts, or `state` does not
        have the structure of the nodes' embedding.

    Example:
      >>> nodes = jaxpgs.reroot(output.search_state.nodes, output.action, num_kept=8)
      >>> nodes.parent.shape
      (2, 8)
    """
    _check_reroot(nodes, num_kept)
    batch_size, num_nodes = nodes.edge.shape
    numbers = jnp.broadcast_to(jnp.arange(num_nodes, dtype=jnp.int32), (batch_size, num_nodes))
    start = jnp.zeros((batch_size, 1), jnp.int32)
    root, _ = find(nodes, Place(start), action.astype(jnp.int32)[:, None], visits=False)
    # Nodes below the new root: those whose chain of parents reaches it, by pointer doubling.
    below, above = numbers == root, nodes.parent
    for _ in range(num_nodes.bit_length()):
        below, above = below | trees.take(below, above), trees.take(above, above)
    # Unused rows must not be kept, nor anything if the child is 0, which means there is none.
    kept = below & (nodes.edge >= 0) & (root > 0)
    if reset is not None:
        kept &= ~reset[:, None]
    if state is not None:
        kept &= _is_state(nodes, root, state)[:, None]
    # New numbers, in the old order: if there are too many rows, those created last are dropped.
    rank = jnp.cumsum(kept, axis=-1, dtype=jnp.int32) - 1
    kept &= rank < num_kept
    size = jnp.sum(kept, axis=-1, dtype=jnp.int32)
    # Parents have smaller numbers, so the new root comes first and no node loses its parent.
    order = jnp.argsort(~kept, axis=-1, stable=True)[:, :num_kept]
    order = jnp.pad(order, [(0, 0), (0, max(num_kept - num_nodes, 0))])
    used = jnp.arange(num_kept, dtype=jnp.int32)[None] < size[:, None]
    renamed = jnp.where(kept, rank, 0)
    below_root = used & (jnp.arange(num_kept)[None] > 0)
    num_actions, links = nodes.num_actions, nodes.links
    # Links get new numbers below, and have no rows with many actions: use edges as placeholders.
    rows = trees.take(nodes._replace(links=nodes.edge), order)
    edge = trees.take(renamed, jnp.maximum(rows.edge, 0) // num_actions) * num_actions
    numbers = rows.numbers
    # The returns of a dropped node are dropped, too, since it may be created again.
    if nodes.arrivals is None:
        links, numbers = _relink(links, numbers, num_actions, order, renamed, used)
    return rows._replace(
        edge=jnp.where(below_root, edge + rows.edge % num_actions, -1),
        links=links,
        numbers=jnp.where(used[..., None], numbers, 0.0),
    )


def _check_reroot(nodes: Any, num_kept: int) -> None:
    """Raises `ValueError` for invalid arguments of `reroot`."""
    if not isinstance(nodes, Nodes):
        raise ValueError(
            'reroot needs the nodes of a search with mode="tree" (or a tree search); got '
            f"{nodes!r}. Rollouts keep none."
        )
    if num_kept < 1:
        raise ValueError(f"num_kept must be at least 1, for the root, got {num_kept}.")


def _relink(
    links: chex.Array,
    numbers: chex.Array,
    num_actions: int,
    order: chex.Array,
    renamed: chex.Array,
    used: chex.Array,
) -> tuple[chex.Array, chex.Array]:
    """Renumbers children, and clears visits and sums of those that are dropped.

    Args:
      links: `[B, N, 2 A]` the children and their visits, in the old order.
      numbers: `[B, N', ...]` the nodes' numbers, in the new order; the first A are the sums.
      num_actions: A.
      order: `[B, N']` the old row of each new row.
      renamed: `[B, N]` the new numbers.
      used: `[B, N']` bool, which rows hold a node.
    """
    links = trees.take(links, order)
    children = links[..., :num_actions]
    children = trees.take(renamed, children.reshape(len(links), -1)).reshape(children.shape)
    children = jnp.where(used[..., None], children, 0)
    visits = jnp.where(children > 0, links[..., num_actions:], 0)
    links = jnp.concatenate([children, visits], axis=-1)
    sums = jnp.where(children > 0, numbers[..., :num_actions], 0.0)
    return links, numbers.at[..., :num_actions].set(sums)


def _is_state(nodes: Nodes, node: chex.Array, state: Embedding) -> chex.Array:
    """Tells `[B]` whether nodes `[B, 1]` hold states `[B, ...]`."""
    given = pack(jax.tree.map(lambda x: jnp.asarray(x)[:, None], state))
    known = trees.take(nodes.embedding, node)
    found = [[(x.shape, str(x.dtype)) for x in packed] for packed in (known, given)]
    if found[0] != found[1]:
        raise ValueError(
            "reroot's state must be an embedding of the roots, as the search's own; joined by type "
            f"it must have (shape, dtype) {found[0]}, got {found[1]}."
        )
    return same_states(known, given) & (node[:, 0] >= 0)


def same_states(known: Embedding, given: Embedding) -> chex.Array:
    """Tells `[B]` whether states `[B, 1, W]` are the same, floats up to rounding."""

    def same(x: chex.Array, y: chex.Array) -> chex.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x == y
        near = jnp.finfo(x.dtype).eps ** 0.5
        return jnp.isclose(x, y, rtol=near, atol=near, equal_nan=True)

    rows = [jnp.all(same(x, y), axis=(1, 2)) for x, y in zip(known, given, strict=True)]
    return functools.reduce(jnp.logical_and, rows, jnp.bool_(True))
