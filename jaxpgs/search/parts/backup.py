"""Backups: the return that a simulation reports.

A backup is a function `(trajectory) -> returns [T, B, K]`: entry t is `G_t`, the return after
`a_t` from the view of the player who took it. The root's statistics average `G_0`; estimators
weight the later actions by their `G_t`.
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
    """All rewards and the value of the last state: `G_t = r_{t+1} + d_{t+1} G_{t+1}`.

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

    `G_t` is `V(s_L)` seen by the player to move at t. If the episode ended, the reward of its last
    step replaces the value. Earlier rewards are ignored, so for games with a reward only at the
    end, such as Hex, this is `n_step`.

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
    state where the simulation stopped. The longest return gets the remaining weight; in
    `truncated_geometric` it has its own weight.

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
    after them.

    Deviations: the printed sum begins at k = 0, where its weight is not defined; here it begins at
    the first state after the action. The printed weights sum to 1 over infinitely many steps,
    these over the steps of the simulation. The thesis says that `p -> 1` weights all values
    equally. By its formula the weights are then proportional to 1 / k; `truncated_geometric` has
    equal weights in this limit.

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
    # Weights relative to the first one, so that p = 0 gives the limit.
    return lambda trajectory: _weighted(trajectory, lambda k: jnp.power(p, k - 1) / k)


def truncated_geometric(p: float | chex.Array = 0.995) -> Backup:
    """The mean of the k-step returns with weights `p^k`, normalised over the steps taken.

    The code of Brosseit 2023 used this instead of eq. 3.3 (`log_series`). With p = 0.995 and five
    steps all weights are about 0.20, so the thesis's results are those of a plain mean.

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
    """Returns weighted means of those k-step returns that a simulation is long enough for."""
    reward, discount = trajectory.reward, trajectory.discount

    def following(x: chex.Array) -> chex.Array:
        return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])

    def add(carry: tuple) -> tuple:
        k, later, reached, total, weights = carry
        tail = jnp.where(discount == 0, 0.0, discount * later)
        returns = jnp.where(reached, reward + tail, 0.0)
        share = jnp.where(reached, weight(k.astype(reward.dtype)), 0.0)
        total, weights = total + share * returns, weights + share
        # The (k + 1)-step return of t continues with the k-step return of t + 1.
        return k + 1, following(returns), following(reached), total, weights

    longest = jnp.max(trajectory.depth)
    # Computed from data, so that the loop may run under shard_map.
    start = (longest * 0 + 1, trajectory.value, trajectory.alive, 0 * reward, 0 * reward)
    *_, total, weights = jax.lax.while_loop(lambda carry: carry[0] <= longest, add, start)
    return total / jnp.where(trajectory.alive, weights, 1.0)


def _discounted(
    trajectory: Trajectory, reward: chex.Array, trace: float | chex.Array = 1.0
) -> chex.Array:
    """Returns `G_t = reward + discount G_{t+1}`, bootstrapping at the last step taken.

    With a trace below 1, the value of the next state has the weight `1 - trace` in `G_{t+1}`.
    """
    # A CPU goes back step by step from the deepest step of any simulation. For an accelerator many
    # steps are unrolled, since each iteration of a loop costs several kernel launches.
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
    # If there are few steps, the loop runs over all: a loop of unknown length waits for the host.
    if size > 1 and num_blocks * size <= _FEW_STEPS:
        end: Any = num_blocks  # a static number of iterations
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
            # A zero discount must end the sum even if the value after it is not finite.
            tail = jnp.where(discount == 0, 0.0, discount * target)
            later, later_alive = jnp.where(alive, paid + tail, 0.0), alive
            found.append(later)
        now = jnp.stack(found[::-1])
        return jax.lax.dynamic_update_slice_in_dim(returns, now, start, 0), later, alive

    nothing = 0 * rows[1]
    start = (nothing, nothing[0], rows[0][0] & False)
    return jax.lax.fori_loop(0, end, back, start)[0][: len(reward)]
