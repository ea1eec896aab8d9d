"""How a search learns from the last updates: a ring of their simulations (`Reuse`)."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import NodeStats, PolicyTerms, Trajectory
from jaxpgs.search.definition import Search
from jaxpgs.search.learning import Learned, ascend
from jaxpgs.search.parts.reuse import reweigh
from jaxpgs.search.simulators import replay, terms
from jaxpgs.search.simulators.simulator import Context, Simulations, Steps


class Ring(NamedTuple):
    """The simulations of the last R updates, `W = R K` of each root. All have a leading axis B.

    Attributes:
      steps: what the simulation policy did where, `[B, T, W, ...]`.
      alive: `[B, T, W]` bool, True where step t was taken; False where there is no simulation yet.
      reward: `[B, T, W]` as in `Trajectory`.
      discount: `[B, T, W]` likewise.
      value: `[B, T, W]` likewise.
      log_prob: `[B, T, W]` that of the policy which took the step.
      returns: `[B, T, W]` what the backup said.
    """

    steps: Steps
    alive: chex.Array
    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    log_prob: chex.Array
    returns: chex.Array


def ring_entry(search: Search, simulations: Simulations, returns: chex.Array | None = None) -> Ring:
    """Returns what the ring keeps of an update, `[B, T, K]` each.

    Args:
      search: the parts.
      simulations: the update's simulations.
      returns: `[T, B, K]` what they returned; None where shapes suffice.
    """
    assert search.simulator.replay is not None
    trajectory = simulations.trajectory
    entry = Ring(
        steps=search.simulator.replay.record(simulations),
        alive=trajectory.alive,
        reward=trajectory.reward,
        discount=trajectory.discount,
        value=trajectory.value,
        log_prob=jax.lax.stop_gradient(trajectory.log_prob),
        returns=trajectory.value if returns is None else returns,
    )
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), entry)


def empty_ring(search: Search, entry: Ring) -> Ring:
    """Makes an empty ring for updates like `entry`, of which the shapes suffice."""
    assert search.reuse is not None
    num = search.reuse.num_updates

    def empty(x: Any) -> chex.Array:
        return jnp.zeros((*x.shape[:2], num * x.shape[2], *x.shape[3:]), x.dtype)

    return jax.tree.map(empty, entry)


def learn_from_ring(
    context: Context,
    stats: NodeStats,
    opt_state: Any,
    simulations: Simulations,
    returns: chex.Array,
    ring: Ring,
    num_updates: chex.Array,
) -> tuple[Learned, Ring]:
    """Puts an update's simulations into the ring and learns from all that it holds.

    Args:
      context: what the update is made with; its search has `reuse`.
      stats: what was known at the root before the simulations.
      opt_state: the optimizer's state.
      simulations: the update's simulations.
      returns: `[T, B, K]` what they returned.
      ring: the ring before.
      num_updates: `[B]` int32, updates before this one.

    Returns:
      What was learned, and the ring.
    """
    search, memory = context.search, simulations.memory
    assert search.reuse is not None
    # A root without simulations changes nothing, so that steps beyond the budget do not.
    ran = jnp.any(simulations.trajectory.alive, axis=(0, 2))
    entry = ring_entry(search, simulations, returns)
    ring = trees.where(ran, _put(ring, entry, num_updates % search.reuse.num_updates), ring)
    old = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), ring)  # [T, B, W], as estimators know it

    def epoch(carry: tuple, _: None) -> tuple[tuple, tuple]:
        adapted, opt_state = carry
        now = context._replace(adapted=adapted)
        found, norms = replay.replay(now, memory, old.steps)
        cotangents = _cotangents(search, stats, old, found)
        gradient = replay.pull_back(now, memory, old.steps, cotangents)
        square = terms.logit_square(norms, cotangents, old.steps.alive)
        adapted, opt_state, *told = ascend(search, adapted, opt_state, gradient, square, ran)
        return (adapted, opt_state), tuple(told)

    start = (context.adapted, opt_state)
    (adapted, opt_state), told = jax.lax.scan(epoch, start, length=search.reuse.num_epochs)
    norm, skipped = jnp.mean(told[0], axis=0), jnp.any(told[1], axis=0)
    return Learned(adapted, opt_state, simulations, norm, skipped), ring


def _cotangents(search: Search, stats: NodeStats, old: Ring, found: PolicyTerms) -> PolicyTerms:
    """The gradient of the loss with respect to the terms, weighed for the change of policy."""
    assert search.estimator is not None and search.reuse is not None
    estimator, depth = search.estimator, jnp.sum(old.alive, axis=0, dtype=jnp.int32)
    trajectory = Trajectory(
        alive=old.alive,
        reward=old.reward,
        discount=old.discount,
        value=old.value,
        **found._asdict(),
        depth=depth,
        limited=depth < 0,
        num_evaluations=0 * depth[:, 0],
        num_calls=0 * depth[:, 0],
    )

    def loss(found: PolicyTerms) -> chex.Array:
        return -jnp.sum(estimator(stats, trajectory._replace(**found._asdict()), old.returns))

    gradient = jax.grad(loss)(found)
    log_ratio = jnp.where(old.steps.alive, found.log_prob - old.log_prob, 0.0)
    # The loss descends where the objective ascends.
    return gradient._replace(log_prob=-reweigh(search.reuse, -gradient.log_prob, log_ratio))


def _put(ring: Ring, entry: Ring, slot: chex.Array) -> Ring:
    """Puts an update into slots `[B]` of the ring."""

    def put(old: chex.Array, new: chex.Array, slot: chex.Array) -> chex.Array:
        start = slot * new.shape[1]
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)

    return jax.tree.map(lambda old, new: jax.vmap(put)(old, new, slot), ring, entry)
