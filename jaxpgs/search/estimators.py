"""Estimators: how the adapted parameters move.

An estimator is a function `(root, trajectory, returns [T, B, K]) -> objective [B]`. The search
ascends its gradient with respect to the adapted parameters, of which only the trajectory's log
probabilities are functions. No estimator at all (None) is Monte Carlo search.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import RootStats, Trajectory

Estimator = Callable[[RootStats, Trajectory, chex.Array], chex.Array]


def reinforce(baseline: str = "none") -> Estimator:
    """REINFORCE on the return (Anthony et al. 2019, section 3).

    The objective is `sum_k sum_{t>=1} (G_t - b_t) log pi(a_t | s_t)`, whose gradient is the paper's
    update. The first action is the bandit's and is not reinforced. It is a sum over the K
    simulations, not a mean, so a step size means the same for every K: K simulations move the
    parameters as K single updates would, but all from the same point.

    Deviation: the paper weighs every action by `V(s_L)`; here each is weighed by the return from
    the view of the player who took it, as self-play of both sides requires.

    Args:
      baseline: `b_t`: "none" for 0, as in the paper; "value" for the network's `V(s_t)`; "root" for
        the network's value of the root, seen by the player to move at t.

    Returns:
      An estimator.

    Raises:
      ValueError: if `baseline` is not one of the three words.
    """
    if baseline not in ("none", "value", "root"):
        raise ValueError(f'baseline must be "none", "value" or "root", got {baseline!r}.')

    def estimate(root: RootStats, trajectory: Trajectory, returns: chex.Array) -> chex.Array:
        advantage = returns[1:]
        if baseline == "value":
            advantage -= trajectory.value[:-1]
        elif baseline == "root":
            # Each negative discount before t >= 1 changes the mover.
            sign = jnp.cumprod(jnp.sign(trajectory.discount[:-1]), axis=0)
            advantage -= sign * root.value[None, :, None]
        advantage = jnp.where(trajectory.alive[1:], advantage, 0.0)
        return jnp.sum(jax.lax.stop_gradient(advantage) * trajectory.log_prob[1:], axis=(0, 2))

    return estimate
