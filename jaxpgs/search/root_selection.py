"""Root selection: which first action each of the K simulations of an update takes.

A root selection is a function `(root: RootStats, K) -> actions [B, K]`. The K actions are chosen
one after another, each seeing the ones before it as visits whose result is not known yet.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import RootStats

RootSelection = Callable[[RootStats, int], chex.Array]


def puct(
    c_puct: float = 5.0, *, virtual_loss: float | None = 1.0, unvisited: str = "zero"
) -> RootSelection:
    """PUCT with virtual loss (Anthony et al. 2019, sections 3 and 4.1).

    Takes the action with the largest `Q(a) + c_puct P(a) sqrt(n) / (1 + n(a))`, with `n` the sum of
    the visits `n(a)`, at least 1, so that the very first choice follows the prior.

    Args:
      c_puct: weight of exploration; the paper's is 5.
      virtual_loss: a simulation in flight counts as a visit with the return `-virtual_loss` (Segal
        2010), in units of the value. None counts the visit and leaves Q alone.
      unvisited: Q of an action never tried: "zero", or "value" for the network's value of the root.

    Returns:
      A root selection. Actions that are not valid are never chosen while a valid one exists.

    Raises:
      ValueError: if `unvisited` is not one of the two words.
    """
    if unvisited not in ("zero", "value"):
        raise ValueError(f'unvisited must be "zero" or "value", got {unvisited!r}.')

    def score(root: RootStats, prior: chex.Array, pending: chex.Array) -> chex.Array:
        visits = root.visits + pending
        if virtual_loss is None:
            tried, value_sum, count = root.visits > 0, root.value_sum, root.visits
        else:
            tried, value_sum, count = visits > 0, root.value_sum - virtual_loss * pending, visits
        default = 0.0 if unvisited == "zero" else root.value[:, None]
        qvalues = jnp.where(tried, value_sum / jnp.maximum(count, 1), default)
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        return qvalues + c_puct * prior * jnp.sqrt(total) / (1 + visits)

    return _one_by_one(score)


def ucb1(c: float = 1.0, *, virtual_loss: float | None = 1.0) -> RootSelection:
    """UCB1 with virtual loss (Auer et al. 2002): largest `Q(a) + c sqrt(ln n / n(a))`.

    Every valid action is tried once, in the order of the prior, before any is tried again.

    Args:
      c: weight of exploration, in units of the value.
      virtual_loss: as in `puct`.

    Returns:
      A root selection.
    """

    def score(root: RootStats, prior: chex.Array, pending: chex.Array) -> chex.Array:
        visits = root.visits + pending
        if virtual_loss is None:
            qvalues = root.qvalues
        else:
            qvalues = (root.value_sum - virtual_loss * pending) / jnp.maximum(visits, 1)
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        bonus = c * jnp.sqrt(jnp.log(total) / jnp.maximum(visits, 1))
        # Far above every score of a visited action, yet ordered by the prior.
        return jnp.where(visits > 0, qvalues + bonus, 1e6 * (1 + prior))

    return _one_by_one(score)


def _one_by_one(
    score: Callable[[RootStats, chex.Array, chex.Array], chex.Array],
) -> RootSelection:
    """Chooses K times the valid action with the largest score, counting the choices as pending."""

    def select(root: RootStats, num_actions: int) -> chex.Array:
        prior = jax.nn.softmax(root.prior_logits, axis=-1)
        # The scores mix counts with values, so both are floats here.
        root = root._replace(visits=root.visits.astype(prior.dtype))

        numbers = jnp.arange(prior.shape[-1], dtype=jnp.int32)[None]

        def choose(pending: chex.Array, _: None) -> tuple[chex.Array, chex.Array]:
            scores = jnp.where(root.valid, score(root, prior, pending), -jnp.inf)
            # The first of the best. Two plain reductions are faster than an argmax.
            best = scores == jnp.max(scores, axis=-1, keepdims=True)
            action = jnp.min(jnp.where(best, numbers, numbers.size - 1), axis=-1)
            return pending + (numbers == action[:, None]).astype(pending.dtype), action

        _, actions = jax.lax.scan(
            choose, jnp.zeros_like(root.visits), length=num_actions, unroll=min(num_actions, 4)
        )
        return actions.T

    return select
