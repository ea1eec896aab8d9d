"""Estimators: how the adapted parameters are updated.

An estimator has an objective, `(root, trajectory, returns [T, B, K]) -> [B]`. The search ascends
its gradient with respect to the adapted parameters. Of the objective's inputs, only the
trajectory's `log_prob`, `entropy`, `kl_to_prior` and `kl_from_prior` depend on these parameters.
Without an estimator (None) the search is Monte Carlo search.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from jaxpgs.base import NodeStats, PolicyTerms, Trajectory
from jaxpgs.checks import check_number, check_part, check_word


class Estimator(NamedTuple):
    """An objective, and the terms of the simulation policy that it is differentiated by.

    A plain function may be used instead. Then all terms are computed, including those that compare
    with the prior, which require the prior's policy in each state.

    Attributes:
      objective: `(root, trajectory, returns [T, B, K]) -> [B]`.
      terms: names of `PolicyTerms`. The gradient does not flow through others.

    Example:
      >>> likely = lambda root, trajectory, returns: trajectory.log_prob.sum(axis=(0, 2))
      >>> estimator = jaxpgs.estimator.Estimator(likely)
      >>> search = jaxpgs.search.pgs_search(
      ...     recurrent_fn, 64, adapt="policy_head", estimator=estimator
      ... )
    """

    objective: Callable[[NodeStats, Trajectory, chex.Array], chex.Array]
    terms: tuple[str, ...] = ("log_prob",)

    def __call__(self, root: NodeStats, trajectory: Trajectory, returns: chex.Array) -> chex.Array:
        """Returns the objective `[B]`."""
        return self.objective(root, trajectory, returns)


def terms_of(estimator: Any) -> frozenset[str]:
    """Returns the terms that an objective is differentiated by; none without an estimator."""
    if estimator is None:
        return frozenset()
    return frozenset(getattr(estimator, "terms", PolicyTerms._fields))


def reinforce(
    baseline: str = "none", *, normalize: bool = False, relative: bool = False
) -> Estimator:
    """REINFORCE on the return (Anthony et al. 2019, section 3).

    The objective is `sum_k sum_{t>=1} (G_t - b_t) log pi(a_t | s_t)`, whose gradient is the paper's
    update. The first action is chosen by the root's selection and is not reinforced. The objective
    is a sum over the K simulations, not a mean, so a step size means the same for every K: K
    simulations move the parameters as K single updates would, but all from the same point.

    Deviation: the paper weights every action by `V(s_L)`; here each is weighted by the return from
    the view of the player who took it, as self-play of both sides requires.

    Args:
      baseline: `b_t`: "none" for 0, as in the paper; "value" for the network's `V(s_t)`; "root" for
        the network's value of the root, seen by the player to move at t; "mean" for the mean of
        `G_t` over the update's simulations that took a step t. "mean" needs several simulations;
        returns that differ only by rounding count as equal and have no effect.
      normalize: whether to divide `G_t - b_t` by its root mean square over the update, so that the
        scale of the rewards does not matter; for games whose scores have no known bounds.
      relative: whether `G_t - b_t` is in units of how much the returns of the search differ
        (`NodeStats.scale`), so that the scale of the rewards does not matter. Unlike `normalize`,
        it keeps advantages small that are small compared with earlier ones.

    Returns:
      An estimator.

    Raises:
      ValueError: if `baseline` is not one of the four words.

    Example:
      >>> estimator = jaxpgs.estimator.reinforce("value")
      >>> search = jaxpgs.search.pgs_search(
      ...     recurrent_fn, 64, adapt="policy_head", estimator=estimator
      ... )
    """
    check_word("reinforce", "baseline", baseline, ("none", "value", "root", "mean"))

    def estimate(root: NodeStats, trajectory: Trajectory, returns: chex.Array) -> chex.Array:
        advantage = returns[1:]
        if baseline == "value":
            advantage -= trajectory.value[:-1]
        elif baseline == "root":
            # Each negative discount before t >= 1 changes the mover.
            sign = jnp.cumprod(jnp.sign(trajectory.discount[:-1]), axis=0)
            advantage -= sign * root.value[None, :, None]
        alive = trajectory.alive[1:]
        if baseline == "mean":
            count = jnp.maximum(jnp.sum(alive, axis=-1, keepdims=True), 1)
            total = jnp.sum(jnp.where(alive, advantage, 0.0), axis=-1, keepdims=True)
            advantage -= total / count.astype(total.dtype)
            # The mean of equal returns differs from them by rounding, which must have no effect.
            # Without steps that learn, T = 1, the maximum is over nothing.
            sizes = jnp.abs(jnp.where(alive, returns[1:], 0.0))
            largest = jnp.max(sizes, axis=(0, 2), initial=0.0)
            noise = 16 * jnp.finfo(advantage.dtype).eps * largest
            advantage = jnp.where(jnp.abs(advantage) > noise[None, :, None], advantage, 0.0)
        advantage = jnp.where(alive, advantage, 0.0)
        if relative and root.scale is not None:
            unit = jnp.maximum(root.scale, jnp.finfo(root.scale.dtype).tiny)
            advantage /= unit[None, :, None]
        if normalize:
            count = jnp.maximum(jnp.sum(alive, axis=(0, 2)), 1).astype(advantage.dtype)
            # The root mean square over all steps of the update.
            scale = jnp.sqrt(jnp.sum(jnp.square(advantage), axis=(0, 2)) / count)
            advantage /= jnp.maximum(scale, 1e-6)[None, :, None]
        return jnp.sum(jax.lax.stop_gradient(advantage) * trajectory.log_prob[1:], axis=(0, 2))

    return Estimator(estimate)


def step_advantage(*, as_printed: bool = False) -> Estimator:
    """Weights each action by its one-step advantage (Brosseit 2023, eq. 3.5, corrected).

    The objective is `sum_k sum_{t>=1} (r_{t+1} + d_{t+1} V(s_{t+1}) - V(s_t)) log pi(a_t | s_t)`,
    with the one-step advantage by the network's values. It has less variance than `reinforce`, but
    an action learns nothing from what happens after the next state.

    Deviation: the thesis prints the weight `V(s_t) - mean_k V(s_k)`. `V(s_t)` does not depend on
    `a_t`, and the mean contains the effect of `a_t` with a minus sign, so the printed update
    descends in expectation. On a chain of two steps, after which the good action has the value 1
    and the bad one -1, its expected gradient at the logits is (-0.25, 0.25), and that of the
    corrected update is (0.5, -0.5).

    Args:
      as_printed: whether to take the printed weight, with all values seen by the player to move at
        t; for comparisons only.

    Returns:
      An estimator.

    Example:
      >>> estimator = jaxpgs.estimator.step_advantage()
      >>> search = jaxpgs.search.pgs_search(
      ...     recurrent_fn, 64, adapt="policy_head", estimator=estimator
      ... )
    """

    def estimate(root: NodeStats, trajectory: Trajectory, returns: chex.Array) -> chex.Array:
        del root, returns
        value, discount, alive = trajectory.value, trajectory.discount, trajectory.alive
        if as_printed:
            # Each value is converted to the view of the root's player, and back.
            sign = jnp.cumprod(jnp.sign(discount[:-1]), axis=0)
            sign = jnp.concatenate([jnp.ones_like(discount[:1]), sign])
            seen = jnp.where(discount == 0, trajectory.reward, jnp.sign(discount) * value)
            total = jnp.sum(jnp.where(alive, sign * seen, 0.0), axis=0)
            mean = total / jnp.maximum(trajectory.depth, 1).astype(total.dtype)
            advantage = value[:-1] - sign[1:] * mean[None]
        else:
            tail = jnp.where(discount == 0, 0.0, discount * value)
            advantage = (trajectory.reward + tail)[1:] - value[:-1]
        advantage = jnp.where(alive[1:], advantage, 0.0)
        return jnp.sum(jax.lax.stop_gradient(advantage) * trajectory.log_prob[1:], axis=(0, 2))

    return Estimator(estimate)


def regularized(
    estimator: Estimator,
    *,
    entropy: float | chex.Array = 0.0,
    kl_to_prior: float | chex.Array = 0.0,
    kl_from_prior: float | chex.Array = 0.0,
) -> Estimator:
    """Adds an entropy bonus and penalties for leaving the prior (Brosseit 2023, section 3.2).

    The objective gains `sum_t entropy H(pi(.|s_t)) - kl_to_prior KL(pi || prior) - kl_from_prior
    KL(prior || pi)` over the steps t >= 1 of all simulations, a sum as in `reinforce`.

    Args:
      estimator: the estimator to extend.
      entropy: weight of the entropy bonus, at least 0. May be traced, like the others.
      kl_to_prior: weight of the penalty `KL(pi || prior)`, at least 0.
      kl_from_prior: weight of the penalty `KL(prior || pi)`, at least 0.

    Returns:
      An estimator. Weights of 0 cost nothing.

    Raises:
      ValueError: if a weight is negative or not finite.

    Example:
      >>> estimator = jaxpgs.estimator.regularized(jaxpgs.estimator.reinforce(), entropy=0.1)
      >>> search = jaxpgs.search.pgs_search(
      ...     recurrent_fn, 64, adapt="policy_head", estimator=estimator
      ... )
    """
    weights = {"entropy": entropy, "kl_to_prior": kl_to_prior, "kl_from_prior": kl_from_prior}
    check_part(
        "regularized", "estimator", estimator, Estimator, 'jaxpgs.estimator.reinforce("value")'
    )
    for name, weight in weights.items():
        check_number("regularized", name, weight, 0)

    def estimate(root: NodeStats, trajectory: Trajectory, returns: chex.Array) -> chex.Array:
        objective = estimator(root, trajectory, returns)
        for name, weight in weights.items():
            if _is_zero(weight):
                continue
            sign = 1 if name == "entropy" else -1
            objective += sign * weight * jnp.sum(getattr(trajectory, name), axis=(0, 2))
        return objective

    used = tuple(name for name, weight in weights.items() if not _is_zero(weight))
    return Estimator(estimate, tuple(sorted({*terms_of(estimator), *used})))


def _is_zero(weight: Any) -> bool:
    return isinstance(weight, int | float) and weight == 0


class AutoState(NamedTuple):
    """The state of `auto_sgd`: sums over the updates of a search so far.

    Attributes:
      parameter_square: `[]` sum of the squared norms of the parameters' gradients.
      logit_square: `[]` sum of the squared norms of the logits' gradients.
      longest: `[]` the largest length of a step.
    """

    parameter_square: chex.Array
    logit_square: chex.Array
    longest: chex.Array


def auto_sgd(step_size: float | chex.Array = 3.0) -> optax.GradientTransformationExtraArgs:
    """Gradient ascent whose step is measured at the logits, not at the parameters.

    Anthony et al. 2019 tuned the step size of PGS to each network, from 5e-4 down to 2e-5, and lost
    strength in expert iteration when it no longer fitted (sections 4.2 and 5.2). A step `eta` along
    the parameters' gradient `g = J^T u` moves the logits by `eta J J^T u`, where `u` is the
    gradient at the logits and `J` their Jacobian; for a linear head on features `f` this is
    `eta |f|^2 u`. So this optimizer divides by the Rayleigh quotient `|g|^2 / |u|^2` of the tangent
    kernel `J J^T`, summed over the updates of the search. Then the logits move by about
    `step_size * u`, whatever the network's scale. If the gradients of the simulations add up, the
    quotient grows with their number and the step shrinks, so the step does not depend much on K.

    If the gradient nearly vanishes although `u` does not, as for two simulations that cancel, its
    direction is only rounding error. So a step is never longer than the norm of the parameters at
    the start of the search (or 1, if that is more), and it is 0 if the gradient is 0. Ordinary
    steps are far below this bound.

    It needs an argument that the search passes to its optimizer besides the gradient:
    `logit_square`, the squared norm of the objective's gradient at the logits, including entropy
    and KL terms.

    Args:
      step_size: how far the logits move for an advantage of 1, above 0. Of five values from 0.1 to
        10 the default was the best or equal to it on six networks of Hex: on 7x7 it was 116 ± 42
        Elo over MCS, 1 was 60 and 10 was 57 (sweep at commit 0bc35d3).

    Returns:
      An optax optimizer, for the argument `optimizer` of the searches.

    Raises:
      ValueError: if the step is not finite or not above 0.

    Example:
      >>> knobs = {"adapt": "policy_head", "optimizer": jaxpgs.estimator.auto_sgd(step_size=1.0)}
      >>> search = jaxpgs.search.pgs_search(recurrent_fn, 64, **knobs)
    """
    check_number("auto_sgd", "step_size", step_size, 0, open_low=True)

    def init(params: Any) -> AutoState:
        longest = jnp.maximum(optax.tree.norm(params), 1.0)
        # Sums of squares lose too much in 16 bits.
        zero = jnp.zeros((), jnp.promote_types(longest.dtype, jnp.float32))
        return AutoState(zero, zero, longest)

    def update(
        updates: Any, state: AutoState, params: Any = None, *, logit_square: chex.Array, **_: Any
    ) -> tuple[Any, AutoState]:
        del params
        now = optax.tree.norm(updates, squared=True)
        square = state.parameter_square + now.astype(state.parameter_square.dtype)
        logits = state.logit_square + logit_square.astype(state.logit_square.dtype)
        state = AutoState(square, logits, state.longest)
        tiny = jnp.finfo(square.dtype).tiny
        # 1 / (|g|^2 / |u|^2): the inverse of the Rayleigh quotient, over all updates of the search.
        scale = step_size * state.logit_square / jnp.maximum(square, tiny)
        # A step that would be longer than the bound is shortened to it.
        length = jnp.maximum(scale * jnp.sqrt(now), tiny)
        scale = jnp.where(now > 0, scale * jnp.minimum(state.longest / length, 1.0), 0.0)
        return optax.tree.scale(-scale, updates), state

    return optax.GradientTransformationExtraArgs(init, update)
