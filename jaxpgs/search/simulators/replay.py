"""Steps of earlier simulations under the policy of now: its terms, and their gradient."""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import Params, PolicyTerms, as_logits
from jaxpgs.search.simulators import adaptation, terms
from jaxpgs.search.simulators.nodes import take
from jaxpgs.search.simulators.simulator import Context, Steps, attached_terms, distribution


def replay(context: Context, memory: Any, steps: Steps) -> tuple[PolicyTerms, PolicyTerms]:
    """Computes the policy's terms in steps that were taken before.

    Args:
      context: what the update is made with; its simulator has a `Replay`.
      memory: the simulator's.
      steps: the steps.

    Returns:
      `[T, B, W]` each: the terms, and the norms of their derivatives by the logits. Both are 0
      where no step was taken, and for terms that the objective does not depend on.
    """

    def write(carry: tuple) -> tuple:
        t, told = carry
        now = _terms_at(context, memory, steps, t, context.adapted)
        now = jax.tree.map(lambda x: jnp.where(steps.alive[t], x, 0.0), now)
        return t + 1, jax.tree.map(lambda x, new: x.at[t].set(new), told, now)

    start, end = _span(steps)
    shapes = jax.eval_shape(lambda: _terms_at(context, memory, steps, start, context.adapted))
    # From data, so that the loop may run under shard_map.
    nothing = jax.tree.map(lambda x: 0 * steps.alive.astype(x.dtype), shapes)
    _, told = jax.lax.while_loop(lambda carry: carry[0] <= end, write, (start, nothing))
    zeros = dict.fromkeys(PolicyTerms._fields, 0 * told[0]["log_prob"])
    found, norms = (PolicyTerms(**(zeros | named)) for named in told)
    return found, norms


def pull_back(context: Context, memory: Any, steps: Steps, cotangents: PolicyTerms) -> Params:
    """Leads cotangents `[T, B, W]` of the terms back to the adapted parameters.

    Args:
      context: as in `replay`.
      memory: likewise.
      steps: likewise.
      cotangents: of each term.

    Returns:
      The gradient, like the adapted parameters.
    """

    def add(carry: tuple) -> tuple:
        t, total = carry
        alive = steps.alive[t]
        found, vjp = jax.vjp(
            lambda own: _terms_at(context, memory, steps, t, own)[0], context.adapted
        )
        now = {
            name: jnp.where(alive, getattr(cotangents, name)[t], 0.0)
            if name in context.needed
            else 0 * x
            for name, x in found.items()
        }
        sum_now = jax.tree.map(jnp.add, total, vjp(now)[0])
        return t + 1, trees.where(jnp.any(alive, axis=1), sum_now, total)

    start, end = _span(steps)
    rows = trees.zero_rows(jnp.moveaxis(steps.action, 1, 0))
    zeros = jax.tree.map(lambda x: trees.zeros(x.shape, x.dtype, rows), context.adapted)
    return jax.lax.while_loop(lambda carry: carry[0] <= end, add, (start, zeros))[1]


def _span(steps: Steps) -> tuple[chex.Array, chex.Array]:
    """The first and the last step that the simulation policy took in any simulation."""
    numbers = jnp.arange(len(steps.alive), dtype=jnp.int32)
    last = jnp.max(jnp.where(jnp.any(steps.alive, axis=(1, 2)), numbers, 0))
    return last * 0 + 1, last


def _terms_at(
    context: Context, memory: Any, steps: Steps, t: chex.Array, adapted: Params
) -> tuple[dict[str, chex.Array], dict[str, chex.Array]]:
    """The terms of step t `[B, W]`, and the norms of their derivatives."""
    alive, parts = steps.alive[t], context.search.simulator.replay
    assert parts is not None
    # Where no step was taken another one is looked at, as a head may have no derivative at zeros.
    row = jnp.where(alive, jnp.arange(alive.shape[1])[None], jnp.argmax(alive, axis=1)[:, None])
    source = take(jax.tree.map(lambda x: x[t], steps.source), row)
    logits = as_logits(parts.get_logits(context._replace(adapted=adapted), memory, source))
    prior = None
    if terms.needs_prior(context.needed):
        mask = adaptation.adapt_mask(context.params, context.search.adapt)
        own = adaptation.per_root(adaptation.split(context.params, mask)[0], len(alive))
        own_logits = parts.get_logits(context._replace(adapted=own), memory, source)
        prior = jax.nn.softmax(as_logits(own_logits, logits.dtype), axis=-1)
    action = steps.action[t]
    return attached_terms(context.needed, logits, distribution(logits), prior, action)
