"""Tree search on the cached nodes: each walk's action by the statistics of the node it is in."""

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import RootStats, finite
from jaxpgs.search.nodes import Nodes, child_ranges, child_stats, take
from jaxpgs.search.root_selection import RootSelection

_RANGE = ("lowest", "highest")


def choose_in_nodes(
    selection: RootSelection, nodes: Nodes, at: chex.Array, alive: chex.Array
) -> tuple[chex.Array, chex.Array, chex.Array]:
    """Chooses an action in the node of each walk, one walk after another.

    Earlier walks in the same node are pending there, as if each walk had gone its whole way before
    the next one began.

    Args:
      selection: the rule, that of a root selection.
      nodes: the memory; its features are logits.
      at: `[B, K]` the walks' nodes.
      alive: `[B, K]` bool, the walks that go on.

    Returns:
      The actions, their log probabilities under the network's policy, and its entropies, `[B, K]`.
    """
    num_actions = nodes.children.shape[-1]

    def choose(earlier: chex.Array, k: chex.Array) -> tuple[chex.Array, tuple]:
        node = at[:, k]
        logits, value = (take(x, node[:, None])[:, 0] for x in (nodes.features, nodes.value))
        visits, value_sum = child_stats(nodes, node)
        valid = logits > jnp.finfo(logits.dtype).min
        same = (at == node[:, None]) & (earlier >= 0)
        chosen = jax.nn.one_hot(earlier, num_actions, dtype=logits.dtype)
        pending = jnp.sum(jnp.where(same[..., None], chosen, 0.0), axis=1)
        stats = RootStats(finite(logits), value, visits, value_sum, valid)
        if selection.needs_range:
            stats = stats._replace(**dict(zip(_RANGE, child_ranges(nodes, node), strict=True)))
        action = selection.best(stats, pending)
        policy = jax.nn.log_softmax(stats.prior_logits, axis=-1)
        log_prob = take(policy, action[:, None])[:, 0]
        entropy = -jnp.sum(jnp.exp(policy) * policy, axis=-1)
        return earlier.at[:, k].set(action), (action, log_prob, entropy)

    def maybe_choose(earlier: chex.Array, k: chex.Array) -> tuple[chex.Array, tuple]:
        none = jnp.zeros(len(earlier), nodes.value.dtype)
        return jax.lax.cond(
            jnp.any(alive[:, k]),
            choose,
            lambda earlier, k: (earlier, (jnp.zeros(len(earlier), jnp.int32), none, none)),
            earlier,
            k,
        )

    start = jnp.full(at.shape, -1, jnp.int32)
    _, outputs = jax.lax.scan(maybe_choose, start, jnp.arange(at.shape[1]))
    action, log_prob, entropy = (x.T for x in outputs)
    return action, log_prob, entropy
