"""A step size that means the same for every network."""

from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
import optax

from jaxpgs.checks import check_number


class AutoState(NamedTuple):
    """What the updates of a search have shown so far.

    Attributes:
      parameter_square: `[]` sum of the squared norms of the parameters' gradients.
      logit_square: `[]` sum of the squared norms of the logits' gradients.
      longest: `[]` how long a step may be.
    """

    parameter_square: chex.Array
    logit_square: chex.Array
    longest: chex.Array


def auto_sgd(step_size: float | chex.Array = 3.0) -> optax.GradientTransformationExtraArgs:
    """Gradient ascent whose step is measured at the logits, not at the parameters.

    Anthony et al. 2019 tuned PGS's step to each network, from 5e-4 down to 2e-5, and lost strength
    in expert iteration where the tuned step no longer fitted (sections 4.2 and 5.2). A step `eta`
    along the parameters' gradient `g = J^T u` moves the logits by `eta J J^T u`, where `u` is the
    gradient at the logits and `J` their Jacobian: by `eta |f|^2 u` for a linear head on features
    `f`. So this divides by the Rayleigh quotient `|g|^2 / |u|^2` of the tangent kernel `J J^T`,
    summed over the updates of the search: the logits then move by about `step_size * u`, whatever
    the network's scale. Where the walks' gradients add up, the quotient grows with their number and
    the step shrinks, so that it does not depend much on the simulations an update either.

    Where the gradient all but vanishes and `u` does not, as for two simulations that cancel, its
    direction is rounding. So a step is never longer than the parameters were at the start of the
    search (or 1, if that is more), and there is none where the gradient is 0. Ordinary steps are
    far below that.

    It needs what the search passes to its optimizer beside the gradient: `logit_square`, the
    squared norm of the objective's gradient at the logits, entropy and KL terms included.

    Args:
      step_size: how far the logits move for an advantage of 1, above 0. In
        `benchmarks/results/strength_sweep-step-*.json` the default was the best of five from 0.1 to
        10 on both early networks and level with the best on the other four.

    Returns:
      An optax optimizer, for the argument `optimizer` of the searches.

    Raises:
      ValueError: if the step is not finite or not above 0.

    Example:
      >>> knobs = {"adapt": "policy_head", "optimizer": jaxpgs.auto_sgd(step_size=1.0)}
      >>> search = jaxpgs.pgs_search(recurrent_fn, 64, **knobs)
    """
    check_number("auto_sgd", "step_size", step_size, 0, open_low=True)

    def init(params: Any) -> AutoState:
        zero = jnp.zeros(())
        return AutoState(zero, zero, jnp.maximum(optax.tree.norm(params), 1.0))

    def update(
        updates: Any, state: AutoState, params: Any = None, *, logit_square: chex.Array, **_: Any
    ) -> tuple[Any, AutoState]:
        del params
        now = optax.tree.norm(updates, squared=True)
        square = state.parameter_square + now
        state = AutoState(square, state.logit_square + logit_square, state.longest)
        tiny = jnp.finfo(square.dtype).tiny
        scale = step_size * state.logit_square / jnp.maximum(square, tiny)
        length = jnp.maximum(scale * jnp.sqrt(now), tiny)
        scale = jnp.where(now > 0, scale * jnp.minimum(state.longest / length, 1.0), 0.0)
        return optax.tree.scale(-scale, updates), state

    return optax.GradientTransformationExtraArgs(init, update)
