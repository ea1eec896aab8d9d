"""Policy improvement by completed Q-values (Danihelka et al. 2022, section 4 and appendix D).

What targets, the Gumbel selections and the improved simulation policy share.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import NodeStats
from jaxpgs.checks import check_number

QTransform = Callable[[NodeStats], chex.Array]  # what a node's Q-values `[..., A]` add to logits


def completed_qvalues(node: NodeStats) -> chex.Array:
    """Q-values of all actions; those never tried get the node's mixed value.

    The mixed value (appendix D, eq. 33) averages the network's value and the Q-values of the
    actions tried, weighed by the prior.

    Args:
      node: statistics with axes `[..., A]`.

    Returns:
      `[..., A]`.

    Example:
      >>> found = jaxpgs.search.completed_qvalues(node)
      >>> round(float(found[0, 2]), 2)  # of the third action, which has not been tried
      0.35
    """
    tried = node.visits > 0
    prior = jax.nn.softmax(node.prior_logits, axis=-1)
    # An action that the prior rules out may have been tried.
    prior = jnp.maximum(jnp.asarray(jnp.finfo(prior.dtype).tiny, prior.dtype), prior)
    mass = jnp.sum(jnp.where(tried, prior, 0.0), axis=-1, keepdims=True)
    share = prior * node.qvalues / jnp.where(tried, mass, 1.0)
    mean = jnp.sum(jnp.where(tried, share, 0.0), axis=-1, keepdims=True)
    total = jnp.sum(node.visits, axis=-1, keepdims=True).astype(prior.dtype)
    mixed = (node.value[..., None] + total * mean) / (total + 1)
    return jnp.where(tried, node.qvalues, mixed)


def qtransform_completed_by_mix_value(
    node: NodeStats,
    *,
    value_scale: float | chex.Array = 0.1,
    maxvisit_init: float | chex.Array = 50.0,
    rescale_values: bool = True,
    min_range: float | chex.Array = 1e-8,
) -> chex.Array:
    """What Q-values add to logits: `sigma(Q) = (maxvisit_init + max n(a)) value_scale Q(a)`.

    Danihelka et al. 2022, section 4 and appendix D, and mctx's function of this name, whose
    `epsilon` is `min_range`. For other numbers give `functools.partial` of it wherever a part takes
    a `qtransform`; any function of a node's statistics will do.

    Args:
      node: statistics with axes `[..., A]`.
      value_scale: scale of sigma, at least 0.
      maxvisit_init: visits that sigma starts from, at least 0.
      rescale_values: whether to bring the completed Q-values of the node to [0, 1] first.
      min_range: in units of the value, above 0: rescaling divides by the range of the Q-values, or
        by this if it is more. Where all actions return about the same, a larger one leaves more to
        the prior.

    Returns:
      `[..., A]`, for `softmax(logits + sigma)`.

    Raises:
      ValueError: if a number is not finite or out of range.

    Example:
      >>> jaxpgs.qtransform_completed_by_mix_value(node, value_scale=0.1).round(2)
      Array([[0.  , 5.2 , 1.09]], dtype=float32)
    """
    check_number("qtransform_completed_by_mix_value", "value_scale", value_scale, 0)
    check_number("qtransform_completed_by_mix_value", "maxvisit_init", maxvisit_init, 0)
    check_number("qtransform_completed_by_mix_value", "min_range", min_range, 0, open_low=True)
    qvalues = completed_qvalues(node)
    if rescale_values:
        low = jnp.min(qvalues, axis=-1, keepdims=True)
        high = jnp.max(qvalues, axis=-1, keepdims=True)
        qvalues = (qvalues - low) / jnp.maximum(high - low, min_range)
    most = jnp.max(node.visits, axis=-1, keepdims=True).astype(qvalues.dtype)
    return (maxvisit_init + most) * value_scale * qvalues


def improved_weights(node: NodeStats, bonus: chex.Array) -> chex.Array:
    """Returns `softmax(logits + bonus)` over the legal actions; 0 everywhere if there are none."""
    scores = jnp.where(node.valid, node.prior_logits + bonus, -jnp.inf)
    scores = jnp.where(jnp.any(node.valid, axis=-1, keepdims=True), scores, 0.0)
    return jnp.where(node.valid, jax.nn.softmax(scores, axis=-1), 0.0)


class SampledPolicy(NamedTuple):
    """A simulation policy that reads the statistics of the nodes it is in (cached mode).

    Attributes:
      logits: `node -> [B, A]`, from the statistics of any number B of nodes, whose `prior_logits`
        are the logits of the adapted policy. Actions follow the softmax of the result, and where a
        policy adapts, it is differentiated through this function.
      by_counts: whether actions are taken so that a node's visits come as close to the softmax as
        counts can, one simulation after another, in place of being drawn by chance.

    Example:
      >>> flatter = jaxpgs.SampledPolicy(lambda node: 0.5 * node.prior_logits)
      >>> search = jaxpgs.mcs_search(recurrent_fn, 64, mode="cached", interior_selection=flatter)
    """

    logits: Callable[[NodeStats], chex.Array]
    by_counts: bool = False


def improved_policy(
    scale: float | chex.Array = 1.0,
    *,
    temperature: float | chex.Array = 1.0,
    qtransform: QTransform = qtransform_completed_by_mix_value,
    by_counts: bool = False,
) -> SampledPolicy:
    """Simulates with the policy improved by what the nodes remember.

    Actions follow `pi' = softmax((logits + scale sigma(Q)) / temperature)`. With it a Monte Carlo
    search becomes a tree search without virtual loss. A policy that adapts learns as if sigma were
    constant.

    Deviation: simulations of Anthony et al. 2019 draw their actions. With `by_counts` a simulation
    takes the action with the largest `pi'(a) - n(a) / (1 + n)`, as inner nodes of Gumbel MuZero do
    (Danihelka et al. 2022, section 5), where visits count simulations in flight. Then a node's
    visits have the shares `pi'` without the noise of draws, and REINFORCE learns from them as if
    they had been drawn.

    Args:
      scale: weight of sigma, at least 0; 0 is the policy itself.
      temperature: above 0; the lower, the more often the best action is drawn, and the less the
        simulations of an update spread.
      qtransform: what the Q-values add to the logits, as in mctx.
      by_counts: whether actions follow the policy by counts; if not, they are drawn.

    Returns:
      A simulation policy, for `interior_selection`.

    Raises:
      ValueError: if a number is not finite or out of range.

    Example:
      >>> jax.nn.softmax(jaxpgs.improved_policy(temperature=0.5).logits(node)).round(2)
      Array([[0., 1., 0.]], dtype=float32)
    """
    check_number("improved_policy", "scale", scale, 0)
    check_number("improved_policy", "temperature", temperature, 0, open_low=True)

    def logits(node: NodeStats) -> chex.Array:
        lowest = jnp.finfo(node.prior_logits.dtype).min
        bonus = scale * qtransform(node)
        bonus = jax.lax.stop_gradient(bonus)  # what the nodes know is not to be learned
        improved = (node.prior_logits + bonus) / temperature
        return jnp.where(node.valid, jnp.maximum(improved, lowest), node.prior_logits)

    return SampledPolicy(logits, by_counts)
