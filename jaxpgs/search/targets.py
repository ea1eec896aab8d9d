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
