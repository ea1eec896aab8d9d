"""Reuse: what an update learns from simulations of earlier ones."""

import dataclasses

import chex
import jax.numpy as jnp

from jaxpgs.checks import check_count, check_number


@dataclasses.dataclass(frozen=True)
class Reuse:
    """Learns from the last R updates' simulations, not from the newest alone.

    Old simulations followed a policy `beta` that has changed since. So the gradient of each step is
    weighed anew, by the policy `pi` of now:

    - by `prod_{l=1..t} pi(a_l | s_l) / beta(a_l | s_l)`, importance weights (Brosseit 2023, eq.
      D.1), if `clip` is None;
    - by `pi(a_t | s_t) / beta(a_t | s_t)`, and by 0 where that is past `1 + clip` or `1 - clip` in
      the direction in which the gradient drives it, with `clip`: this is PPO (Schulman et al.
      2017), which several epochs make useful.

    The weights are for the gradient of `log_prob`. Entropy and KL terms are those of now and need
    none. Where all ratios are 1, as in the first epoch of R = 1, the update is the plain one.

    The objective is a sum over all simulations that are kept. So gradients grow with R, which the
    optimizer should not care about, as `auto_sgd` and Adam do not.

    Attributes:
      num_updates: R, how many updates are kept, the newest included; at least 1.
      num_epochs: how many steps the optimizer takes per update, each on all of them; at least 1.
      clip: PPO's epsilon, above 0; None for importance weights.
      max_weight: the most that a weight may be, above 0; None sets no bound.

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
    """Weighs the gradient with respect to log probabilities.

    Args:
      reuse: how.
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
        # Schulman et al. 2017: nothing is learned past the clip, in the direction of the gradient.
        past = jnp.where(gradient > 0, weight > 1 + reuse.clip, weight < 1 - reuse.clip)
        weight = jnp.where(past, 0.0, weight)
    if reuse.max_weight is not None:
        weight = jnp.minimum(weight, reuse.max_weight)
    return gradient * weight
