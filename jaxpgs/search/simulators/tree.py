"""Choices on the cached nodes, one simulation after another, by the statistics of its node."""

import functools

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import as_logits
from jaxpgs.search.parts.selection import Selection, highest
from jaxpgs.search.simulators.nodes import Nodes, node_stats, take


def choose_in_nodes(
    selection: Selection, nodes: Nodes, at: chex.Array, alive: chex.Array
) -> tuple[chex.Array, chex.Array, chex.Array]:
    """Chooses an action in the node of each simulation, one simulation after another.

    Earlier simulations in the same node are pending there, as if each had gone its whole way before
    the next one began.

    Args:
      selection: the rule.
      nodes: the memory; its features are logits.
      at: `[B, K]` the simulations' nodes.
      alive: `[B, K]` bool, the simulations that go on.

    Returns:
      The actions, their log probabilities under the network's policy, and its entropies, `[B, K]`.
    """
    start = trees.zeros(at.shape, jnp.int32, trees.zero_rows(at)) - 1
    choose = functools.partial(_maybe_choose, selection, nodes, at, alive)
    _, outputs = jax.lax.scan(choose, start, jnp.arange(at.shape[1]))
    action, log_prob, entropy = (x.T for x in outputs)
    return action, log_prob, entropy


def _maybe_choose(
    selection: Selection,
    nodes: Nodes,
    at: chex.Array,
    alive: chex.Array,
    earlier: chex.Array,
    k: chex.Array,
) -> tuple[chex.Array, tuple]:
    """Chooses simulation k's action where any root still needs one."""
    rows = trees.zero_rows(at)
    none = rows.astype(nodes.value.dtype)
    return jax.lax.cond(
        jnp.any(alive[:, k]),
        functools.partial(_choose, selection, nodes, at),
        lambda earlier, k: (earlier, (rows, none, none)),
        earlier,
        k,
    )


def _choose(
    selection: Selection, nodes: Nodes, at: chex.Array, earlier: chex.Array, k: chex.Array
) -> tuple[chex.Array, tuple]:
    """Chooses simulation k's action; `earlier` `[B, K]` holds those before it, else -1."""
    node = at[:, k]
    logits = as_logits(take(nodes.features, node))
    stats = node_stats(nodes, node, logits, ranges=selection.needs_range)
    same = (at == node[:, None]) & (earlier >= 0)
    chosen = jax.nn.one_hot(earlier, logits.shape[-1], dtype=logits.dtype)
    pending = jnp.sum(jnp.where(same[..., None], chosen, 0.0), axis=1)
    action = selection.select(None, stats, pending)
    policy = jax.nn.log_softmax(logits, axis=-1)
    log_prob = take(policy, action[:, None])[:, 0]
    entropy = -jnp.sum(jnp.exp(policy) * policy, axis=-1)
    return earlier.at[:, k].set(action), (action, log_prob, entropy)


def follow_by_counts(
    nodes: Nodes, node: chex.Array, policy: chex.Array, row: chex.Array, alive: chex.Array
) -> chex.Array:
    """Chooses the actions that bring the visits of nodes closest to the shares of a policy.

    Args:
      nodes: the memory.
      node: `[B, K]` the distinct nodes that simulations are in.
      policy: `[B, K, A]` the policy there, 0 for actions that are impossible.
      row: `[B, K]` where the node of each simulation stands among them.
      alive: `[B, K]` bool, the simulations that go on.

    Returns:
      The actions `[B, K]`.
    """
    child = take(nodes.children, node)
    visits = jnp.where(child > 0, take(nodes.visits, child), 0).astype(policy.dtype)

    def choose(visits: chex.Array, k: chex.Array) -> tuple[chex.Array, chex.Array]:
        own, taken = take((policy, visits), row[:, k])
        scores = own - taken / (1 + jnp.sum(taken, axis=-1, keepdims=True))
        action = highest(scores, own > 0)
        add = jax.vmap(lambda x, r, a, one: x.at[r, a].add(one))
        return add(visits, row[:, k], action, alive[:, k].astype(visits.dtype)), action

    _, action = jax.lax.scan(choose, visits, jnp.arange(row.shape[1]))
    return action.T
