"""Root selection: which first action each of the K simulations of an update takes.

The K actions are chosen one after another, each seeing the ones before it as pending: visits whose
result is not known yet. The same rule may serve as a tree search's choice in every node.
"""

import dataclasses
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import RootStats


@dataclasses.dataclass(frozen=True)
class RootSelection:
    """Takes the valid action with the largest score, K times.

    Attributes:
      score: `(stats, pending [B, A]) -> [B, A]`: how good each action looks, given what is known
        and how many choices of each are pending. Its `stats` has float visits.
      needs_range: whether it looks at the smallest and the greatest return of each action.
    """

    score: Callable[[RootStats, chex.Array], chex.Array]
    needs_range: bool = False

    def __call__(self, root: RootStats, num_actions: int) -> chex.Array:
        """Returns K = `num_actions` actions `[B, K]`."""

        def choose(pending: chex.Array, _: None) -> tuple[chex.Array, chex.Array]:
            action = self.best(root, pending)
            chosen = jax.nn.one_hot(action, pending.shape[-1], dtype=pending.dtype)
            return pending + chosen, action

        start = jnp.zeros(root.visits.shape, root.value_sum.dtype)
        _, actions = jax.lax.scan(choose, start, length=num_actions, unroll=min(num_actions, 4))
        return actions.T

    def best(self, root: RootStats, pending: chex.Array) -> chex.Array:
        """Returns the next action `[B]`, the first of several with the same score."""
        root = root._replace(visits=root.visits.astype(pending.dtype))
        scores = jnp.where(root.valid, self.score(root, pending), -jnp.inf)
        # Two plain reductions are faster than an argmax.
        best = scores == jnp.max(scores, axis=-1, keepdims=True)
        numbers = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        return jnp.min(jnp.where(best, numbers, scores.shape[-1] - 1), axis=-1)


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

    def score(root: RootStats, pending: chex.Array) -> chex.Array:
        prior = jax.nn.softmax(root.prior_logits, axis=-1)
        visits = root.visits + pending
        if virtual_loss is None:
            tried, value_sum, count = root.visits > 0, root.value_sum, root.visits
        else:
            tried, value_sum, count = visits > 0, root.value_sum - virtual_loss * pending, visits
        default = 0.0 if unvisited == "zero" else root.value[:, None]
        qvalues = jnp.where(tried, value_sum / jnp.maximum(count, 1), default)
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        return qvalues + c_puct * prior * jnp.sqrt(total) / (1 + visits)

    return RootSelection(score)


def ucb1(c: float = 1.0, *, virtual_loss: float | None = 1.0) -> RootSelection:
    """UCB1 with virtual loss (Auer et al. 2002): largest `Q(a) + c sqrt(ln n / n(a))`.

    Every valid action is tried once, in the order of the prior, before any is tried again.

    Args:
      c: weight of exploration, in units of the value.
      virtual_loss: as in `puct`.

    Returns:
      A root selection.
    """

    def score(root: RootStats, pending: chex.Array) -> chex.Array:
        prior = jax.nn.softmax(root.prior_logits, axis=-1)
        visits = root.visits + pending
        if virtual_loss is None:
            qvalues = root.qvalues
        else:
            qvalues = (root.value_sum - virtual_loss * pending) / jnp.maximum(visits, 1)
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        bonus = c * jnp.sqrt(jnp.log(total) / jnp.maximum(visits, 1))
        # Far above every score of a visited action, yet ordered by the prior.
        return jnp.where(visits > 0, qvalues + bonus, 1e6 * (1 + prior))

    return RootSelection(score)


def muzero_puct(
    pb_c_init: float = 1.25, pb_c_base: float = 19652.0, *, virtual_loss: bool = True
) -> RootSelection:
    """MuZero's PUCT (Schrittwieser et al. 2020, appendix B), with virtual loss.

    Q-values are brought to [0, 1] by the smallest and the largest of them and the node's own value;
    an action never tried counts as 0. Takes the action with the largest
    `Q(a) + P(a) sqrt(n) / (1 + n(a)) (pb_c_init + ln((n + pb_c_base + 1) / pb_c_base))`, with
    `n - 1` the sum of the visits. One simulation at a time, this is `mctx.muzero_policy`'s choice,
    but for its random breaking of ties.

    Args:
      pb_c_init: weight of exploration.
      pb_c_base: visits after which exploration grows.
      virtual_loss: whether a simulation in flight counts as a visit with the lowest Q, 0; otherwise
        it counts as a visit and leaves Q alone.

    Returns:
      A root selection.
    """

    def score(root: RootStats, pending: chex.Array) -> chex.Array:
        prior = jax.nn.softmax(root.prior_logits, axis=-1)
        known = jnp.sum(root.visits, axis=-1, keepdims=True)
        total = jnp.sum(root.value_sum, axis=-1, keepdims=True)
        value = (root.value[:, None] + total) / (1 + known)
        tried = root.visits > 0
        qvalues = jnp.where(tried, root.qvalues, value)
        lowest = jnp.minimum(value, jnp.min(qvalues, axis=-1, keepdims=True))
        highest = jnp.maximum(value, jnp.max(qvalues, axis=-1, keepdims=True))
        scaled = (qvalues - lowest) / jnp.maximum(highest - lowest, 1e-8)
        scaled = jnp.where(tried, scaled, 0.0)
        visits = root.visits + pending
        if virtual_loss:
            scaled *= root.visits / jnp.maximum(visits, 1)
        node_visits = 1 + known + jnp.sum(pending, axis=-1, keepdims=True)
        weight = pb_c_init + jnp.log((node_visits + pb_c_base + 1) / pb_c_base)
        return scaled + weight * prior * jnp.sqrt(node_visits) / (1 + visits)

    return RootSelection(score)


def max_min_puct(
    c_puct: float = 2.0, *, bounds: str = "qvalues", virtual_loss: float = 0.01
) -> RootSelection:
    """PUCT for rewards of unknown size: Q-values brought to [0, 1] node by node (Seify 2020).

    Takes the action with the largest `Qn(a) - w W(a) Qn(a) + c_puct P(a) sqrt(n) / (1 + n(a))`
    (eq. 4.5 and 5.1), where `Qn(a) = (Q(a) - low) / (high - low)`, `W(a)` counts the choices that
    are pending, and `n(a)` the visits with them. The virtual loss is relative to the normalised
    value (eq. 4.4), so it needs no idea of what a loss is. An action never tried has the value of
    the node itself, such as what a rollout from there earned (section 4.3).

    Args:
      c_puct: weight of exploration; the thesis takes from 2 to 30, less for larger boards.
      bounds: what `low` and `high` are: "qvalues" for the lowest and the highest Q-value of the
        legal actions (max-min normalisation, eq. 4.3), "returns" for the lowest and the highest
        return that a simulation through the node has had (space-local normalisation, eq. 4.2).
        Where they are equal, every `Qn(a)` is 1.
      virtual_loss: w.

    Returns:
      A root selection.

    Raises:
      ValueError: if `bounds` is not one of the two words.

    Deviation from eq. 4.2: where the node's bounds are equal, its source takes those of the whole
    tree. That is the same number for all actions of the node, and this takes 1, as eq. 4.3 does.
    """
    if bounds not in ("qvalues", "returns"):
        raise ValueError(f'bounds must be "qvalues" or "returns", got {bounds!r}.')

    def score(root: RootStats, pending: chex.Array) -> chex.Array:
        prior = jax.nn.softmax(root.prior_logits, axis=-1)
        tried = root.visits > 0
        qvalues = jnp.where(tried, root.qvalues, root.value[:, None])
        low, high = qvalues, qvalues
        if bounds == "returns":
            assert root.lowest is not None and root.highest is not None
            low = jnp.where(tried, root.lowest, qvalues)
            high = jnp.where(tried, root.highest, qvalues)
        low = jnp.min(jnp.where(root.valid, low, jnp.inf), axis=-1, keepdims=True)
        high = jnp.max(jnp.where(root.valid, high, -jnp.inf), axis=-1, keepdims=True)
        spread = high - low
        scaled = jnp.where(spread > 0, (qvalues - low) / jnp.where(spread > 0, spread, 1), 1.0)
        visits = root.visits + pending
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        explore = c_puct * prior * jnp.sqrt(total) / (1 + visits)
        return scaled * (1 - virtual_loss * pending) + explore

    return RootSelection(score, needs_range=bounds == "returns")
