"""Losses of policy and value networks, as pure functions."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpgs.arrays import values_like
from jaxpgs.base import Params
from jaxpgs.networks import functional_call
from jaxpgs.training.models.unrolls import Unrolls
from jaxpgs.training.two_player.objectives import Objective, cross_entropy
from jaxpgs.training.two_player.selfplay import Experience


def policy_value_loss(
    logits: chex.Array,
    value: chex.Array,
    target: Experience,
    *,
    value_weight: float = 1.0,
    objective: Objective | None = None,
) -> tuple[chex.Array, dict[str, Any]]:
    """Loss of the policy plus squared error of the value (Anthony et al. 2019, section 5.1).

    Args:
      logits: `[B, A]` the network's logits.
      value: `[B]` the network's values; a column `[B, 1]` counts as well.
      target: the positions, with batch axis `[B]`. Positions of unfinished games train the policy
        only; the paper waits for the end of the game for both. Positions without a legal action do
        not count.
      value_weight: weight of the squared error.
      objective: what the policy learns; `cross_entropy()`, the paper's, if None.

    Returns:
      The loss `[]`, and its parts: `policy_loss`, whose minimum is 0, and `value_loss`.
    """
    policy_loss = objective_loss(logits, target, objective or cross_entropy())
    # Unfinished games have no return to learn, and finished positions are not played from; the mean
    # is over the others.
    known = (target.open == 0) & jnp.any(target.legal, axis=-1)
    value = values_like(value, target.value)
    error = jnp.where(known, jnp.square(value - target.value), 0.0)
    value_loss = jnp.sum(error) / jnp.maximum(jnp.sum(known), 1).astype(error.dtype)
    loss = policy_loss + value_weight * value_loss
    return loss, {"policy_loss": policy_loss, "value_loss": value_loss}


def objective_loss(logits: chex.Array, target: Experience, objective: Objective) -> chex.Array:
    """Returns the mean loss `[]` of logits `[B, A]`, over their legal actions.

    The mean is over the positions with a legal action whose target has a policy; 0 if there is
    none.
    """
    # The lowest float, not -inf, whose product with a target of 0 would be NaN.
    logits = jnp.where(target.legal, logits, jnp.finfo(logits.dtype).min)
    known = jnp.any(target.policy != 0, axis=-1)  # NaN counts as known, and ends the training
    known &= jnp.any(target.legal, axis=-1)
    loss = jnp.where(known, objective.loss(logits, target), 0.0)
    return jnp.sum(loss) / jnp.maximum(jnp.sum(known), 1).astype(loss.dtype)


def make_losses(
    network: nnx.Module, own: Objective, further: Mapping[str, Objective], value_weight: float
) -> Callable[..., Any]:
    """Makes `(params, target) -> (loss, (parts, moved))`, with updated batch statistics."""
    call = functional_call(
        network, lambda net, x: net.all_policies(x) if further else (net(x), {}), train=True
    )

    def losses_fn(params: Params, target: Experience) -> tuple[chex.Array, tuple]:
        ((logits, value), others), moved = call(params, target.observation)
        loss, parts = policy_value_loss(
            logits, value, target, value_weight=value_weight, objective=own
        )
        for name, objective in further.items():
            # Each offset has its own parameters, so the sum of losses trains each by its own loss.
            parts[f"{name}_loss"] = objective_loss(others[name], target, objective)
            loss += parts[f"{name}_loss"]
        return loss, (parts, moved)

    return losses_fn


def unroll_loss(
    logits: chex.Array, value: chex.Array, target: Unrolls, *, value_weight: float = 1.0
) -> tuple[chex.Array, dict[str, Any]]:
    """Cross-entropy of the policy plus squared error of the value (Brosseit 2023, eq. 4.1).

    Deviation: the mean over the steps of the unroll instead of their sum, and no term for rewards,
    as in the thesis's own experiments. Weight decay is left to the optimizer. Logits are not
    masked: the model has to learn which actions are illegal.

    Args:
      logits: `[B, K + 1, A]` the model's logits.
      value: `[B, K + 1]` the model's values, or `[B, K + 1, 1]`.
      target: the unrolls.
      value_weight: weight of the squared error.

    Returns:
      The loss `[]`, and its parts: `policy_loss` (cross-entropy minus the target's entropy, so its
      minimum is 0), `value_loss`, and `policy_loss_k` and `value_loss_k` for each step k of the
      unroll.
    """
    parts = {
        name: _mean(jnp.sum(loss), jnp.sum(weight))
        for name, loss, weight in _unroll_terms(logits, value, target)
    }
    return parts["policy_loss"] + value_weight * parts["value_loss"], parts


def unroll_sums(
    logits: chex.Array, value: chex.Array, target: Unrolls, counts: chex.Array
) -> dict[str, tuple[chex.Array, chex.Array]]:
    """Sums the parts of `unroll_loss`, so that a mean over several batches is exact.

    Args:
      logits: as in `unroll_loss`.
      value: likewise.
      target: the unrolls.
      counts: `[B]` 1 for each real unroll, and 0 for padding.

    Returns:
      For each part the sum of its losses `[]` and the sum of their weights `[]`; see
      `mean_of_sums`.
    """
    real = counts[:, None]
    target = target._replace(
        policy_weight=real * target.policy_weight, value_weight=real * target.value_weight
    )
    terms = _unroll_terms(logits, value, target)
    return {name: (jnp.sum(loss), jnp.sum(weight)) for name, loss, weight in terms}


def mean_of_sums(sums: dict[str, tuple[chex.Array, chex.Array]]) -> dict[str, float]:
    """Returns the mean losses from the results of `unroll_sums`, summed over batches."""
    return {name: float(_mean(*both)) for name, both in sums.items()}


def _mean(total: chex.Array, weight: chex.Array) -> chex.Array:
    """The mean over known targets; 0 if there are none."""
    return total / jnp.maximum(weight, 1.0)


def _unroll_terms(
    logits: chex.Array, value: chex.Array, target: Unrolls
) -> Iterator[tuple[str, chex.Array, chex.Array]]:
    """Yields the parts of `unroll_loss` by name: weighted losses, and their weights."""
    value = values_like(value, target.value)
    cross_entropy = optax.softmax_cross_entropy(logits, target.policy)
    # A constant, so the gradient is that of the cross-entropy, and the minimum is 0.
    entropy = jnp.sum(jax.scipy.special.entr(target.policy), axis=-1)
    error = target.value_weight * jnp.square(value - target.value)
    excess = target.policy_weight * (cross_entropy - entropy)
    yield "policy_loss", excess, target.policy_weight
    yield "value_loss", error, target.value_weight
    for k in range(value.shape[1]):
        yield f"policy_loss_{k}", excess[:, k], target.policy_weight[:, k]
        yield f"value_loss_{k}", error[:, k], target.value_weight[:, k]


def asymmetric_square(
    target: chex.Array, value: chex.Array, *, under: float = 1.0, over: float = 1.0
) -> chex.Array:
    """Squared error with different weights for too low and too high values (Seify 2020, eq. 6.6).

    Args:
      target: any shape.
      value: the network's, of the same shape or a column.
      under: weight where the value is too low, `target >= value`.
      over: weight where it is too high.

    Returns:
      The weighted squares, of the same shape. With both weights 1 this is the plain squared error;
      the thesis tries 1/2 and 2, in both orders.
    """
    value = values_like(value, target)
    return jnp.where(target >= value, under, over) * jnp.square(target - value)
