"""How a search learns: from the objective of an update to the adapted parameters."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from jaxpgs import trees
from jaxpgs.base import NodeStats, Params, PolicyTerms, Trajectory
from jaxpgs.search.definition import Search
from jaxpgs.search.simulators import adaptation, terms
from jaxpgs.search.simulators.simulator import Context, Simulations


def needed_terms(search: Search, stats: NodeStats) -> frozenset[str]:
    """Names of the policy terms that the objective depends on; none without an estimator."""
    estimator = search.estimator
    if estimator is None:
        return frozenset()
    batch_size, num_walks = len(stats.value), search.simulations_per_update
    steps = (3, batch_size, num_walks)
    real, flag = jax.ShapeDtypeStruct(steps, stats.value.dtype), jax.ShapeDtypeStruct(steps, bool)
    whole = jax.ShapeDtypeStruct(steps[1:], jnp.int32)
    per_root = jax.ShapeDtypeStruct(steps[1:2], jnp.int32)
    trajectory = Trajectory(
        alive=flag,
        reward=real,
        discount=real,
        value=real,
        **dict.fromkeys(PolicyTerms._fields, real),
        depth=whole,
        limited=jax.ShapeDtypeStruct(steps[1:], bool),
        num_evaluations=per_root,
        num_calls=per_root,
    )
    stats = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), stats)

    def objective(
        name: str, term: chex.Array, stats: NodeStats, trajectory: Trajectory, returns: chex.Array
    ) -> chex.Array:
        return estimator(stats, trajectory._replace(**{name: term}), returns)

    one = jax.ShapeDtypeStruct((1, *steps), real.dtype)
    rest = (stats, trajectory, real)
    return frozenset(
        name
        for name in PolicyTerms._fields
        if adaptation.depends(functools.partial(objective, name), one, *rest)
    )


class Learned(NamedTuple):
    """What an update has taught.

    Attributes:
      adapted: the parameters that adapt, after the update.
      opt_state: the optimizer's state after it.
      simulations: the simulations, whose memory the gradient may have written into.
      norm: `[B]` the gradient's norm, 0 where the update was left out.
      skipped: `[B]` bool, where it was left out, because the gradient or what the optimizer made of
        it was not finite.
    """

    adapted: Params
    opt_state: Any
    simulations: Simulations
    norm: chex.Array
    skipped: chex.Array


def learn(
    context: Context,
    stats: NodeStats,
    opt_state: Any,
    simulations: Simulations,
    returns: chex.Array,
) -> Learned:
    """Moves the adapted parameters along the gradient of the objective, if there is one.

    Args:
      context: what the update is made with.
      stats: what was known at the root before the simulations.
      opt_state: the optimizer's state.
      simulations: the update's simulations.
      returns: `[T, B, K]` what they returned.
    """
    search, adapted = context.search, context.adapted
    if not context.needed:
        zero = jnp.zeros(len(stats.value))
        return Learned(adapted, opt_state, simulations, zero, zero > 0)
    assert search.estimator is not None
    estimator, trajectory = search.estimator, simulations.trajectory

    def loss(found: PolicyTerms) -> chex.Array:
        objective = estimator(stats, trajectory._replace(**found._asdict()), returns)
        # Each root has its own copy of the leaves, so their gradients do not mix.
        return -jnp.sum(objective)

    cotangents = jax.grad(loss)(trajectory.terms)
    gradient, simulations = search.simulator.gradient(context, simulations, cotangents)
    # A root without simulations has nothing to learn from, whatever a model says of it.
    ran = jnp.any(trajectory.alive, axis=(0, 2))
    square = terms.logit_square(simulations.norms, cotangents, trajectory.alive)
    adapted, opt_state, norm, skipped = ascend(search, adapted, opt_state, gradient, square, ran)
    return Learned(adapted, opt_state, simulations, norm, skipped)


def ascend(
    search: Search,
    adapted: Params,
    opt_state: Any,
    gradient: Params,
    square: chex.Array,
    ran: chex.Array,
) -> tuple[Params, Any, chex.Array, chex.Array]:
    """Takes a step of the optimizer, root by root, where its result is finite.

    Args:
      search: the parts.
      adapted: the parameters that adapt.
      opt_state: the optimizer's state.
      gradient: of the loss, minus the objective.
      square: `[B]` as `terms.logit_square` returns it.
      ran: `[B]` bool, where there is something to learn from.

    Returns:
      The parameters, the state, and `norm` and `skipped` as in `Learned`.
    """
    assert search.optimizer is not None
    with jax.named_scope("optimizer"):
        norm = jax.vmap(optax.tree.norm)(gradient)
        update = optax.with_extra_args_support(search.optimizer).update
        updates, new_state = jax.vmap(lambda g, s, p, square: update(g, s, p, logit_square=square))(
            gradient, opt_state, adapted, square
        )
        moved = optax.apply_updates(adapted, updates)
        sound = jnp.isfinite(norm) & _all_finite(moved) & ~_any_nan(new_state, norm)
    adapted, opt_state = trees.where(sound & ran, (moved, new_state), (adapted, opt_state))
    return adapted, opt_state, jnp.where(sound & ran, norm, 0.0), ran & ~sound


def _all_finite(tree: Any) -> chex.Array:
    """Tells root by root whether all numbers are finite."""

    def check(x: chex.Array) -> chex.Array:
        # Times 0, numbers that are not finite are NaN. Sums over all axes but the last are many at
        # once, and so faster than one sum over all.
        sums = jnp.sum(x * 0, axis=tuple(range(1, x.ndim - 1)))
        return jnp.all(sums.reshape(len(x), -1) == 0, axis=1)

    return functools.reduce(jnp.logical_and, map(check, jax.tree.leaves(tree)))


def _any_nan(tree: Any, like: chex.Array) -> chex.Array:
    """Tells root by root whether any number is NaN."""
    rows = [jnp.any(jnp.isnan(x).reshape(len(x), -1), axis=1) for x in jax.tree.leaves(tree)]
    return functools.reduce(jnp.logical_or, rows, jnp.zeros(like.shape, bool))
