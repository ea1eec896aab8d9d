"""The policy in the nodes of the cached mode: the adapted head on the features they remember."""

import functools

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Params, SplitRecurrentFn, as_logits, cast_logits
from jaxpgs.search.parts.improvement import SampledPolicy
from jaxpgs.search.simulators import adaptation, terms
from jaxpgs.search.simulators.nodes import Nodes, node_stats, take
from jaxpgs.search.simulators.simulator import Context, Distribution, distribution


def simulation_logits(
    context: Context, split_fn: SplitRecurrentFn, nodes: Nodes, adapted: Params, node: chex.Array
) -> chex.Array:
    """The logits `[B, W, A]` that simulations draw by: those of the policy, or what reads them."""
    logits = policy_logits(split_fn, context.frozen, nodes, adapted, node)
    interior = context.search.interior_selection
    if not isinstance(interior, SampledPolicy):
        return logits
    stats = node_stats(nodes, node, as_logits(logits))
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stats)
    return interior.logits(flat).reshape(logits.shape)


def policy_logits(
    split_fn: SplitRecurrentFn, frozen: Params, nodes: Nodes, adapted: Params, node: chex.Array
) -> chex.Array:
    """The adapted policy's logits `[B, W, A]` in nodes `[B, W]`."""
    features, states = take((nodes.features, nodes.embedding), node)
    logits = jax.vmap(lambda own, f, e: split_fn.policy(adaptation.merge(own, frozen), f, e))(
        adapted, features, states
    )
    return cast_logits(logits, nodes.value.dtype)


def policies(
    context: Context, split_fn: SplitRecurrentFn, nodes: Nodes, node: chex.Array, count: chex.Array
) -> tuple[Distribution, chex.Array | None]:
    """The simulation policy in nodes, and the prior's if it is needed.

    Args:
      context: what the update is made with.
      split_fn: the model in two parts.
      nodes: all nodes.
      node: `[B, K]` those to look at, the distinct ones first.
      count: `[B]` how many are distinct; what is told of the others is of no use.

    Returns:
      The simulation policy and the prior's probabilities, `[B, K, A]` each.
    """
    num_walks = node.shape[1]
    widths = _widths(num_walks)
    which = jnp.sum(jnp.max(count) > jnp.array(widths))
    look = functools.partial(_policies, context, split_fn, nodes)
    return jax.lax.switch(which, [functools.partial(look, width) for width in widths], node)


def _policies(
    context: Context, split_fn: SplitRecurrentFn, nodes: Nodes, width: int, node: chex.Array
) -> tuple[Distribution, chex.Array | None]:
    """The policies in the first `width` of `[B, K]` nodes, padded to all of them."""
    num_walks, node = node.shape[1], node[:, :width]
    logits = as_logits(simulation_logits(context, split_fn, nodes, context.adapted, node))
    prior = None
    if terms.needs_prior(context.needed):
        features, embedding = take((nodes.features, nodes.embedding), node)
        own = jax.vmap(functools.partial(split_fn.policy, context.params))(features, embedding)
        prior = _widen(jax.nn.softmax(as_logits(own, logits.dtype), axis=-1), num_walks)
    return jax.tree.map(lambda x: _widen(x, num_walks), distribution(logits)), prior


def _widths(num_walks: int) -> list[int]:
    """The numbers of rows for which the head is compiled: the fewest that hold all are taken.

    Few simulations at once have one number: a choice costs as much time as it saves.
    """
    parts = (4, 2, 1) if num_walks > 8 else (1,)
    return sorted({-(-num_walks // part) for part in parts})


def _widen(x: chex.Array, num_walks: int) -> chex.Array:
    """Pads `[B, W, ...]` to `[B, K, ...]`."""
    return jnp.pad(x, [(0, 0), (0, num_walks - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
