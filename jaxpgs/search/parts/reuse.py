"""Reuse: how an update learns from the simulations of earlier updates."""

import dataclasses

import chex
import jax.numpy as jnp

from jaxpgs.checks import check_count, check_number


@dataclasses.dataclass(frozen=True)
class Reuse:
    """Learns from the simulations of the last R updates instead of the newest update alone.

    Old simulations followed a policy `beta` that has changed since. So the gradient of each step is
    reweighted by the current policy `pi`:

    - If `clip` is None, by `prod_{l=1..t} pi(a_l | s_l) / beta(a_l | s_l)`, importance weights
      (Brosseit 2023, eq. D.1).
    - With `clip`, by `pi(a_t | s_t) / beta(a_t | s_t)`, and by 0 if this ratio is beyond
      `1 + clip` or `1 - clip` in the direction in which the gradient moves it. This is PPO
      (Schulman et al. 2017); it is useful with several epochs.

    The weights apply to the gradient of `log_prob`. Entropy and KL terms are those of the current
    policy and need no weights. If all ratios are 1, as in the first epoch with R = 1, the update is
    the plain one.

    The objective is a sum over all stored simulations. So gradients grow with R, and the optimizer
    should be invariant to their scale, as `auto_sgd` and Adam are.

    Attributes:
      num_updates: R, how many updates are kept, the newest included; at least 1.
      num_epochs: how many steps the optimizer takes per update, each on all stored simulations; at
        least 1.
      clip: PPO's epsilon, above 0; None for importance weights.
      max_weight: the largest allowed weight, above 0; None sets no bound.

    Raises:
      ValueError: if a number is out of range.

    Example:
      >>> knobs = {"adapt": "policy_head", "reuse": jaxpgs.reuse.Reuse(num_updates=4, clip=0.2)}
      >>> search = jaxpgs.search.pgs_search(recurrent_fn, 64, **knobs)
    """

    num_updates: int = 4
    num_epochs: int = 1
    clip: float | None = None
    max_weight: float | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("num_updates", "num_epochs"):
            count = check_count("Reuse", name, getattr(self, name))
            object.__setattr__(self, name, count)
        for name in ("clip", "max_weight"):
            number = getattr(self, name)
            if number is not None:
                check_number("Reuse", name, number, 0, open_low=True)


def reweigh(reuse: Reuse, gradient: chex.Array, log_ratio: chex.Array) -> chex.Array:
    """Reweights the gradient with respect to log probabilities.

    Args:
      reuse: the settings.
      gradient: `[T, B, W]` of the objective, as if the simulations were new.
      log_ratio: `[T, B, W]` `log pi(a_t | s_t) - log beta(a_t | s_t)`, 0 where no step was taken.

    Returns:
      `[T, B, W]`.
    """
    if reuse.clip is None:
        # Brosseit 2023, eq. D.1: the product of the ratios of all steps so far.
        weight = jnp.exp(jnp.cumsum(log_ratio, axis=0))
    else:
        weight = jnp.exp(log_ratio)
        # Schulman et al. 2017: no gradient beyond the clip in the direction of the gradient.
        past = jnp.where(gradient > 0, weight > 1 + reuse.clip, weight < 1 - reuse.clip)
        weight = jnp.where(past, 0.0, weight)
    if reuse.max_weight is not None:
        weight = jnp.minimum(weight, reuse.max_weight)
    return gradient * weight
