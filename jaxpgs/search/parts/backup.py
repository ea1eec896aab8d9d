"""Backups: the return that a simulation reports.

A backup is a function `(trajectory) -> returns [T, B, K]`: entry t is `G_t`, the return after
`a_t` from the view of the player who took it. The root's bandit averages `G_0`; estimators weigh
the later actions by theirs.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Trajectory

Backup = Callable[[Trajectory], chex.Array]


def n_step() -> Backup:
    """All rewards on the way and the value of the last state: `G_t = r_{t+1} + d_{t+1} G_{t+1}`.

    The recursion starts from `G_L = V(s_L)` in the state where the simulation stopped.

    Returns:
      A backup.
    """
    return lambda trajectory: _discounted(trajectory, trajectory.reward)


def last_value() -> Backup:
    """The value of the last state alone (Anthony et al. 2019, section 3).

    `G_t` is `V(s_L)` seen by the player to move at t; where the episode ended, the reward of its
    last step takes the value's place. Rewards before the last are left out, so for games that pay
    only at the end, as Hex, this is `n_step`.

    Returns:
      A backup.
    """
    return lambda trajectory: _discounted(
        trajectory, jnp.where(trajectory.discount == 0, trajectory.reward, 0.0)
    )


def _discounted(trajectory: Trajectory, reward: chex.Array) -> chex.Array:
    """Returns `G_t = reward + discount G_{t+1}`, bootstrapping at the last step taken."""
    following = jnp.concatenate([trajectory.alive[1:], jnp.zeros_like(trajectory.alive[:1])])

    def back(carry: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        t, returns = carry
        later = returns[jnp.minimum(t + 1, len(returns) - 1)]
        target = jnp.where(following[t], later, trajectory.value[t])
        discount = trajectory.discount[t]
        # A zero discount must end the sum even if the value behind it is not finite.
        tail = jnp.where(discount == 0, 0.0, discount * target)
        now = jnp.where(trajectory.alive[t], reward[t] + tail, 0.0)
        return t - 1, returns.at[t].set(now)

    # From the deepest step that any simulation took: most are far from the bound on their length.
    last = jnp.max(trajectory.depth) - 1
    start = (last, jnp.zeros_like(reward))
    return jax.lax.while_loop(lambda carry: carry[0] >= 0, back, start)[1]
