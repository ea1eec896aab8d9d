"""Policy targets: what the search says in the end.

A target is a function `(rng_key, root, state) -> (action, action_weights [A])` of one root's
statistics and the state of the selection at the root; the search maps it over the batch. It may be
asked before the first simulation.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import NodeStats, as_logits
from jaxpgs.checks import check_number
from jaxpgs.search.parts.improvement import (
    QTransform,
    improved_weights,
    qtransform_completed_by_mix_value,
)
from jaxpgs.search.parts.selection import highest

Target = Callable[[chex.PRNGKey, NodeStats, Any], tuple[chex.Array, chex.Array]]


def visit_counts(temperature: float | chex.Array = 1.0) -> Target:
    """The visit distribution `n(a) / n` (Anthony et al. 2019, section 5.1).

    Args:
      temperature: at least 0. The action is drawn with probability proportional to
        `n(a)^(1 / temperature)`; 0 takes the most visited one, and of several the one the prior
        likes best. May be traced.

    Returns:
      A target whose weights are `n(a) / n`, whatever the temperature. Before the first simulation
      the prior takes the place of the visits. Where no action is legal, the action is 0 and every
      weight is 0.

    Raises:
      ValueError: if the temperature is negative or not finite.

    Example:
      >>> search = jaxpgs.mcs_search(recurrent_fn, 64, target=jaxpgs.visit_counts(temperature=1.0))
    """
    check_number("visit_counts", "temperature", temperature, 0)

    def target(rng_key: chex.PRNGKey, root: NodeStats, state: Any) -> tuple[chex.Array, chex.Array]:
        del state
        visits = root.visits.astype(root.value_sum.dtype)
        total = jnp.sum(visits)
        prior = jnp.where(root.valid, jax.nn.softmax(root.prior_logits), 0.0)
        counts = jnp.where(total > 0, visits, prior)
        weights = counts / jnp.maximum(total, 1)
        noise = _noise(rng_key, temperature, weights)
        tried = counts > 0
        score = jnp.where(tried, as_logits(jnp.log(jnp.where(tried, counts, 1)) + noise), -jnp.inf)
        # Ties are real at temperature 0: let the prior decide among the best.
        best = tried & (score == jnp.max(score))
        action = jnp.argmax(jnp.where(best & root.valid, root.prior_logits, -jnp.inf))
        return jnp.where(jnp.any(tried), action, 0).astype(jnp.int32), weights

    return target


def completed_q(
    temperature: float | chex.Array = 1.0,
    *,
    qtransform: QTransform = qtransform_completed_by_mix_value,
) -> Target:
    """The prior improved by the Q-values: softmax of `logits + sigma(completed Q)`.

    Danihelka et al. 2022, section 4 and appendix D; Brosseit 2023, eq. 3.4. Actions never tried are
    completed by a mix of the network's value and the Q-values of the others, weighed by the prior.

    Args:
      temperature: at least 0. The action is drawn with probability proportional to the weights to
        the power of `1 / temperature`; 0 takes the largest. May be traced.
      qtransform: what the Q-values add to the logits, as in mctx: sigma with its numbers.

    Returns:
      A target. Where no action is legal, the action is 0 and every weight is 0.

    Raises:
      ValueError: if the temperature is negative or not finite.

    Example:
      >>> knobs = {"adapt": "policy_head", "target": jaxpgs.completed_q()}
      >>> search = jaxpgs.pgs_search(recurrent_fn, 64, **knobs)
    """
    check_number("completed_q", "temperature", temperature, 0)

    def target(rng_key: chex.PRNGKey, root: NodeStats, state: Any) -> tuple[chex.Array, chex.Array]:
        del state
        weights = improved_weights(root, qtransform(root))
        noise = _noise(rng_key, temperature, weights)
        action = highest(jnp.log(weights) + noise, root.valid)
        return jnp.where(jnp.any(root.valid), action, 0).astype(jnp.int32), weights

    return target


def best_value() -> Target:
    """All on the action of the highest mean return (Seify 2020, eq. 5.3).

    For games of one player: what a simulation reached can be reached again, so the best value
    counts, however seldom it was tried.

    Returns:
      A target whose weights are 1 at the action tried whose Q-value is the highest, one of them
      drawn at random if several are equal, and 0 elsewhere. Where no action is legal, the action is
      0 and every weight is 0.

    Example:
      >>> search = jaxpgs.mcs_search(recurrent_fn, 64, target=jaxpgs.best_value())
    """

    def target(rng_key: chex.PRNGKey, root: NodeStats, state: Any) -> tuple[chex.Array, chex.Array]:
        del state
        tried = root.valid & (root.visits > 0)
        qvalues = jnp.where(tried, root.qvalues, -jnp.inf)
        best = tried & (qvalues == jnp.max(qvalues))
        ties = jnp.where(best, jax.random.uniform(rng_key, best.shape), -1.0)
        action = jnp.argmax(ties).astype(jnp.int32)
        weights = jax.nn.one_hot(action, len(best), dtype=qvalues.dtype)
        return action, jnp.where(jnp.any(best), weights, 0.0)

    return target


def _noise(
    rng_key: chex.PRNGKey, temperature: float | chex.Array, weights: chex.Array
) -> chex.Array:
    """Returns what to add to logarithms to draw at a temperature; at 0 nothing is drawn."""
    if isinstance(temperature, int | float) and temperature == 0:
        return jnp.zeros_like(weights)  # the generator is dear to compile
    return temperature * jax.random.gumbel(rng_key, weights.shape, weights.dtype)
