"""Backups: the return that a simulation reports.

A backup is a function `(trajectory) -> returns [T, B, K]`: entry t is `G_t`, the return after
`a_t` from the view of the player who took it. The root's bandit averages `G_0`; estimators weigh
the later actions by theirs.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Trajectory
from jaxpgs.checks import check_number

Backup = Callable[[Trajectory], chex.Array]
_UNROLLED, _FEW_STEPS = 32, 128


def n_step() -> Backup:
    """All rewards on the way and the value of the last state: `G_t = r_{t+1} + d_{t+1} G_{t+1}`.

    The recursion starts from `G_L = V(s_L)` in the state where the simulation stopped.

    Returns:
      A backup.

    Example:
      >>> knobs = {"truncation": jaxpgs.truncation.fixed(4), "backup": jaxpgs.backup.n_step()}
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, **knobs)
    """
    return lambda trajectory: _discounted(trajectory, trajectory.reward)


def last_value() -> Backup:
    """The value of the last state alone (Anthony et al. 2019, section 3).

    `G_t` is `V(s_L)` seen by the player to move at t; where the episode ended, the reward of its
    last step takes the value's place. Rewards before the last are left out, so for games that pay
    only at the end, as Hex, this is `n_step`.

    Returns:
      A backup.

    Example:
      >>> knobs = {"truncation": jaxpgs.truncation.fixed(4), "backup": jaxpgs.backup.last_value()}
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, **knobs)
    """
    return lambda trajectory: _discounted(
        trajectory, jnp.where(trajectory.discount == 0, trajectory.reward, 0.0)
    )


def td_lambda(trace: float | chex.Array) -> Backup:
    """TD(lambda): a geometric mean of the k-step returns (Sutton 1988).

    `G_t = r_{t+1} + d_{t+1} ((1 - trace) V(s_{t+1}) + trace G_{t+1})`, with `G_L = V(s_L)` in the
    state where the simulation stopped. The longest return has the weight that is left over; in
    `truncated_geometric` it has one of its own.

    Args:
      trace: lambda, from 0 (the value of the next state) to 1 (`n_step`). May be traced.

    Returns:
      A backup.

    Raises:
      ValueError: if `trace` is not from 0 to 1.

    Example:
      >>> knobs = {"truncation": jaxpgs.truncation.fixed(4), "backup": jaxpgs.backup.td_lambda(0.8)}
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, **knobs)
    """
    check_number("td_lambda", "trace", trace, 0, 1)
    return lambda trajectory: _discounted(trajectory, trajectory.reward, trace)


def log_series(p: float | chex.Array = 0.995) -> Backup:
    """The mean of the k-step returns with logarithmic weights (Brosseit 2023, eq. 3.3).

    `G_t = sum_k w_k R_t^(k)` over k from 1 to the `L - t` steps that are left, with `w_k`
    proportional to `p^k / k` and of sum 1; `R_t^(k)` is the return of k rewards and the value
    behind them.

    Deviations: the printed sum begins at k = 0, where its weight is not defined; here it begins at
    the first state behind the action. The printed weights sum to 1 over infinitely many steps,
    these over the steps of the simulation. The thesis says that `p -> 1` weighs all values alike.
    By its formula the weights are then as 1 / k; `truncated_geometric` has the equal ones.

    Args:
      p: from 0, where only the first value counts, to 1. May be traced.

    Returns:
      A backup.

    Raises:
      ValueError: if `p` is not from 0 to 1.

    Example:
      >>> mean = jaxpgs.backup.log_series(p=0.995)
      >>> stop = jaxpgs.truncation.fixed(4)
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, truncation=stop, backup=mean)
    """
    check_number("log_series", "p", p, 0, 1)
    # Weights by their ratio to the first, so that p = 0 has its limit.
    return lambda trajectory: _weighted(trajectory, lambda k: jnp.power(p, k - 1) / k)


def truncated_geometric(p: float | chex.Array = 0.995) -> Backup:
    """The mean of the k-step returns with weights `p^k`, normalised over the steps taken.

    What the code of Brosseit 2023 used in the place of its eq. 3.3 (`log_series`). With p = 0.995
    and five steps all weights are about 0.20, so its figures are those of a plain mean.

    Args:
      p: from 0, where only the first value counts, to 1, the plain mean. May be traced.

    Returns:
      A backup.

    Raises:
      ValueError: if `p` is not from 0 to 1.

    Example:
      >>> mean = jaxpgs.backup.truncated_geometric(p=0.9)
      >>> stop = jaxpgs.truncation.fixed(4)
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, truncation=stop, backup=mean)
    """
    check_number("truncated_geometric", "p", p, 0, 1)
    return lambda trajectory: _weighted(trajectory, lambda k: jnp.power(p, k - 1))


def _weighted(trajectory: Trajectory, weight: Callable[[chex.Array], chex.Array]) -> chex.Array:
    """Returns means of the k-step returns, of those that a simulation is long enough for."""
    reward, discount = trajectory.reward, trajectory.discount

    def following(x: chex.Array) -> chex.Array:
        return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])

    def add(carry: tuple) -> tuple:
        k, later, reached, total, weights = carry
        tail = jnp.where(discount == 0, 0.0, discount * later)
        returns = jnp.where(reached, reward + tail, 0.0)
        share = jnp.where(reached, weight(k.astype(reward.dtype)), 0.0)
        total, weights = total + share * returns, weights + share
        # The k-step return of t + 1 is what follows in the one of k + 1 steps of t.
        return k + 1, following(returns), following(reached), total, weights

    longest = jnp.max(trajectory.depth)
    # From data, so that the loop may run under shard_map.
    start = (longest * 0 + 1, trajectory.value, trajectory.alive, 0 * reward, 0 * reward)
    *_, total, weights = jax.lax.while_loop(lambda carry: carry[0] <= longest, add, start)
    return total / jnp.where(trajectory.alive, weights, 1.0)


def _discounted(
    trajectory: Trajectory, reward: chex.Array, trace: float | chex.Array = 1.0
) -> chex.Array:
    """Returns `G_t = reward + discount G_{t+1}`, bootstrapping at the last step taken.

    With a trace below 1, the value of the next state has a share of `1 - trace` in `G_{t+1}`.
    """
    # A processor goes back step by step from the deepest one that any simulation took. For an
    # accelerator many steps are written out, as each turn of a loop costs it several launches.
    return jax.lax.platform_dependent(
        trajectory,
        reward,
        cpu=functools.partial(_in_blocks, trace=trace, size=1),
        default=functools.partial(_in_blocks, trace=trace, size=min(len(reward), _UNROLLED)),
    )


def _in_blocks(
    trajectory: Trajectory, reward: chex.Array, *, trace: float | chex.Array, size: int
) -> chex.Array:
    """Does what `_discounted` does, a block of steps at a time."""
    num_blocks = -(-len(reward) // size)
    rows = [trajectory.alive, reward, trajectory.discount, trajectory.value]
    rest = [(0, 0)] * (reward.ndim - 1)
    rows = [jnp.pad(x, [(0, num_blocks * size - len(x)), *rest]) for x in rows]
    # If there are few steps, all are gone through: a loop of unknown length waits for the host.
    if size > 1 and num_blocks * size <= _FEW_STEPS:
        end: Any = num_blocks  # a loop whose turns are known
    else:
        end = -(-jnp.max(trajectory.depth) // size)

    def back(i: chex.Array, carry: tuple) -> tuple:
        returns, later, later_alive = carry
        start = (end - 1 - i) * size
        found = []
        # From the last block to the first, and in each from the last step to the first.
        block = [jax.lax.dynamic_slice_in_dim(x, start, size) for x in rows]
        for alive, paid, discount, value in reversed(list(zip(*block, strict=True))):
            target = jnp.where(later_alive, later, value)
            if not (isinstance(trace, int | float) and trace == 1):
                target = jnp.where(later_alive, value + trace * (later - value), value)
            # A zero discount must end the sum even if the value behind it is not finite.
            tail = jnp.where(discount == 0, 0.0, discount * target)
            later, later_alive = jnp.where(alive, paid + tail, 0.0), alive
            found.append(later)
        now = jnp.stack(found[::-1])
        return jax.lax.dynamic_update_slice_in_dim(returns, now, start, 0), later, alive

    nothing = 0 * rows[1]
    start = (nothing, nothing[0], rows[0][0] & False)
    return jax.lax.fori_loop(0, end, back, start)[0][: len(reward)]
