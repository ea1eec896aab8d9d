"""Policy targets: what the search says in the end.

A target is a function `(rng_key, root) -> (action, action_weights [A])` of one root's statistics;
the search maps it over the batch.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import RootStats

Target = Callable[[chex.PRNGKey, RootStats], tuple[chex.Array, chex.Array]]


def visit_counts(temperature: float | chex.Array = 1.0) -> Target:
    """The visit distribution `n(a) / n` (Anthony et al. 2019, section 5.1).

    Args:
      temperature: the action is drawn with probability proportional to `n(a)^(1 / temperature)`; 0
        takes the most visited one, and of several the one the prior likes best. May be traced.

    Returns:
      A target whose weights are `n(a) / n`, whatever the temperature. Where no action is legal, the
      action is 0 and every weight is 0.
    """

    def target(rng_key: chex.PRNGKey, root: RootStats) -> tuple[chex.Array, chex.Array]:
        total = jnp.sum(root.visits)
        weights = root.visits / jnp.maximum(total, 1)
        log_weights = jnp.where(root.visits > 0, jnp.log(jnp.maximum(root.visits, 1)), -jnp.inf)
        noise = temperature * jax.random.gumbel(rng_key, weights.shape)
        score = jnp.where(root.visits > 0, log_weights + noise, -jnp.inf)
        # Ties are real at temperature 0: let the prior decide among the best.
        best = score == jnp.max(score)
        action = jnp.argmax(jnp.where(best & root.valid, root.prior_logits, -jnp.inf))
        return jnp.where(total > 0, action, 0).astype(jnp.int32), weights

    return target


def completed_q(
    temperature: float | chex.Array = 1.0,
    *,
    value_scale: float = 0.1,
    maxvisit_init: float = 50.0,
    rescale_values: bool = True,
) -> Target:
    """The prior improved by the Q-values: softmax of `logits + sigma(completed Q)`.

    Danihelka et al. 2022, section 4 and appendix D; Brosseit 2023, eq. 3.4. Actions never tried are
    completed by a mix of the network's value and the Q-values of the others, weighed by the prior;
    `sigma(q) = (maxvisit_init + max n(a)) value_scale q`.

    Args:
      temperature: the action is drawn with probability proportional to the weights to the power of
        `1 / temperature`; 0 takes the largest. May be traced.
      value_scale: scale of sigma.
      maxvisit_init: visits that sigma starts from.
      rescale_values: whether to bring the completed Q-values of the legal actions to [0, 1] first.

    Returns:
      A target. Where no action is legal, the action is 0 and every weight is 0.
    """

    def target(rng_key: chex.PRNGKey, root: RootStats) -> tuple[chex.Array, chex.Array]:
        tried = root.visits > 0
        prior = jax.nn.softmax(root.prior_logits)
        mass = jnp.sum(jnp.where(tried, prior, 0.0))
        mean = jnp.sum(jnp.where(tried, prior * root.qvalues, 0.0)) / jnp.where(mass > 0, mass, 1)
        visits = root.visits.astype(prior.dtype)
        total = jnp.sum(visits)
        mixed = (root.value + total * mean) / (total + 1)
        qvalues = jnp.where(tried, root.qvalues, mixed)
        if rescale_values:
            lowest = jnp.min(qvalues, where=root.valid, initial=jnp.inf)
            highest = jnp.max(qvalues, where=root.valid, initial=-jnp.inf)
            qvalues = (qvalues - lowest) / jnp.maximum(highest - lowest, 1e-8)
        sigma = (maxvisit_init + jnp.max(visits)) * value_scale * qvalues
        scores = jnp.where(root.valid, root.prior_logits + sigma, -jnp.inf)
        playable = jnp.any(root.valid)
        weights = jnp.where(root.valid, jax.nn.softmax(jnp.where(playable, scores, 0.0)), 0.0)
        noise = temperature * jax.random.gumbel(rng_key, weights.shape)
        action = jnp.argmax(jnp.where(root.valid, jnp.log(weights) + noise, -jnp.inf))
        return jnp.where(playable, action, 0).astype(jnp.int32), weights

    return target


def best_value() -> Target:
    """All on the action of the highest mean return (Seify 2020, eq. 5.3).

    For games of one player: what a simulation reached can be reached again, so the best value
    counts, however seldom it was tried.

    Returns:
      A target whose weights are 1 at the action tried whose Q-value is the highest, one of them
      drawn at random if several are equal, and 0 elsewhere. Where no action is legal, the action is
      0 and every weight is 0.
    """

    def target(rng_key: chex.PRNGKey, root: RootStats) -> tuple[chex.Array, chex.Array]:
        tried = root.valid & (root.visits > 0)
        qvalues = jnp.where(tried, root.qvalues, -jnp.inf)
        best = tried & (qvalues == jnp.max(qvalues))
        ties = jnp.where(best, jax.random.uniform(rng_key, best.shape), -1.0)
        action = jnp.argmax(ties).astype(jnp.int32)
        weights = jax.nn.one_hot(action, len(best), dtype=qvalues.dtype)
        return action, jnp.where(jnp.any(best), weights, 0.0)

    return target
