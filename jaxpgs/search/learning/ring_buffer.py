"""How a search learns from the last updates: a ring buffer of their simulations (`Reuse`).

Brosseit 2023, eq. D.1, and PPO (Schulman et al. 2017). The gradient is that of `learn`, over more
steps. This module adds the ring buffer and the weights that correct for the change of policy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import NodeStats, PolicyTerms, Trajectory
from jaxpgs.search.definition import Search
from jaxpgs.search.learning.learn import (
    Learned,
    ascend,
    differentiate,
    in_rows,
    logit_square,
    weights_of,
)
from jaxpgs.search.parts.reuse import reweigh
from jaxpgs.search.policy import pick, safe_log, terms_and_slopes
from jaxpgs.search.stores.contract import Blocks, Context, Simulations, Steps, Store


class Ring(NamedTuple):
    """The simulations of the last R updates, `W = R K` of each root. All have a leading axis B.

    Attributes:
      steps: `[B, T, W, ...]` states and actions of the simulation policy.
      alive: `[B, T, W]` bool, True where step t was taken; False where there is no simulation yet.
      reward: `[B, T, W]` as in `Trajectory`.
      discount: `[B, T, W]` likewise.
      value: `[B, T, W]` likewise.
      log_prob: `[B, T, W]` log probability under the policy that took the step.
      returns: `[B, T, W]` returns from the backup.
    """

    steps: Steps
    alive: chex.Array
    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    log_prob: chex.Array
    returns: chex.Array


def empty_ring(search: Search, simulate: Callable[[], Simulations]) -> Ring:
    """Makes an empty ring for simulations like those of `simulate`, which is only traced."""
    assert search.reuse is not None
    num = search.reuse.num_updates

    def empty(x: Any) -> chex.Array:
        return jnp.zeros((*x.shape[:2], num * x.shape[2], *x.shape[3:]), x.dtype)

    return jax.tree.map(empty, jax.eval_shape(lambda: _entry(simulate(), None)))


def _entry(simulations: Simulations, returns: chex.Array | None) -> Ring:
    """Returns what the ring keeps of an update, `[B, T, K]` each."""
    trajectory = simulations.trajectory
    entry = Ring(
        steps=simulations.steps,
        alive=trajectory.alive,
        reward=trajectory.reward,
        discount=trajectory.discount,
        value=trajectory.value,
        log_prob=trajectory.log_prob,
        returns=trajectory.value if returns is None else returns,
    )
    # In the carry the axis B comes first.
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), entry)


def learn_from_ring(
    store: Store,
    context: Context,
    memory: Any,
    stats: NodeStats,
    opt_state: Any,
    simulations: Simulations,
    returns: chex.Array,
    ring: Ring,
    num_updates: chex.Array,
) -> tuple[Learned, Ring]:
    """Puts an update's simulations into the ring and learns from everything in the ring.

    Args:
      store: where states come from.
      context: the context of the update; its search has `reuse`.
      memory: the store's memory.
      stats: the statistics of the roots before the simulations.
      opt_state: the optimizer's state.
      simulations: the update's simulations.
      returns: `[T, B, K]` their returns.
      ring: the ring before this update.
      num_updates: `[B]` int32, updates before this one.

    Returns:
      What was learned, and the new ring.
    """
    search, reuse = context.search, context.search.reuse
    assert reuse is not None
    # A root without simulations stays unchanged, so that steps beyond the budget have no effect.
    ran = jnp.any(simulations.trajectory.alive, axis=(0, 2))
    entry = _entry(simulations, returns)
    ring = trees.where(ran, _put(ring, entry, num_updates % reuse.num_updates), ring)
    old = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), ring)  # [T, B, W], as estimators know it

    def epoch(carry: tuple, _: None) -> tuple[tuple, tuple]:
        adapted, opt_state = carry
        now = context._replace(adapted=adapted)
        # Without the update's table, which was made with the parameters before the first epoch.
        blocks = store.blocks(now, memory, None, old.steps)
        found, norms = _terms_now(now, blocks, old.steps)
        trajectory = _trajectory(old, found)
        cotangents = weights_of(search.estimator, stats, trajectory, old.returns, context.needed)
        if "log_prob" in cotangents:
            log_ratio = jnp.where(old.steps.acting, found["log_prob"] - old.log_prob, 0.0)
            # The loss descends where the objective ascends.
            weighed = -reweigh(reuse, -cotangents["log_prob"], log_ratio)
            cotangents = cotangents | {"log_prob": weighed}
        gradient = differentiate(now, blocks, old.steps, cotangents)
        square = logit_square(trajectory, norms, cotangents)
        adapted, opt_state, *told = ascend(search, adapted, opt_state, gradient, square, ran)
        return (adapted, opt_state), tuple(told)

    start = (context.adapted, opt_state)
    (adapted, opt_state), told = jax.lax.scan(epoch, start, length=reuse.num_epochs)
    norm, skipped = jnp.mean(told[0], axis=0), jnp.any(told[1], axis=0)
    return Learned(adapted, opt_state, norm, skipped), ring


def _trajectory(old: Ring, found: dict[str, chex.Array]) -> Trajectory:
    """Returns the simulations of the ring, with the terms of the current policy."""
    depth = jnp.sum(old.alive, axis=0, dtype=jnp.int32)
    return Trajectory(
        alive=old.alive,
        reward=old.reward,
        discount=old.discount,
        value=old.value,
        **{name: found.get(name, 0 * old.value) for name in PolicyTerms._fields},
        depth=depth,
        # False, and 0 below: these simulations were counted in their own updates.
        limited=depth < 0,
        num_evaluations=0 * depth[:, 0],
        num_calls=0 * depth[:, 0],
    )


def _terms_now(
    context: Context, blocks: Blocks, steps: Steps
) -> tuple[dict[str, chex.Array], dict[str, chex.Array]]:
    """Returns the policy's terms `[T, B, W]` at earlier steps, and norms of their derivatives."""
    shape = steps.acting.shape
    acting, action = in_rows(steps.acting), in_rows(steps.action)

    def one(i: Any) -> dict[str, chex.Array]:
        policy, prior, _ = blocks.evaluate(context.adapted, i)
        row = blocks.row - i * blocks.num_rows
        # A step is in one block, so the sum over blocks is its entry in that block.
        here = acting & (row >= 0) & (row < blocks.num_rows)
        entropy = -jnp.sum(policy * safe_log(policy), axis=-1)
        found, slopes = terms_and_slopes(policy, prior, entropy, context.needed)
        norms = {f"norm of {n}": jnp.linalg.norm(x, axis=-1) for n, x in slopes.items()}
        rows = trees.take(found | norms | {"policy": policy}, jnp.where(here, row, 0))
        told = rows | {"log_prob": jnp.log(pick(rows.pop("policy"), action))}
        return {name: jnp.where(here, x, 0.0) for name, x in told.items()}

    # The first block is always evaluated, since the sum needs an initial value.
    zero = jnp.zeros_like(blocks.num_blocks)
    add = lambda carry: (carry[0] + 1, jax.tree.map(jnp.add, carry[1], one(carry[0])))  # noqa: E731
    told = jax.lax.while_loop(lambda c: c[0] < blocks.num_blocks, add, (zero + 1, one(zero)))[1]
    told = {n: jnp.moveaxis(x.reshape(shape[1], shape[0], -1), 0, 1) for n, x in told.items()}
    norms = {n: told.pop(f"norm of {n}") for n in PolicyTerms._fields if f"norm of {n}" in told}
    return told, norms


def _put(ring: Ring, entry: Ring, slot: chex.Array) -> Ring:
    """Puts an update into slots `[B]` of the ring."""

    def put(old: chex.Array, new: chex.Array, slot: chex.Array) -> chex.Array:
        # Slots differ by root, as a root without simulations fills none.
        start = slot * new.shape[1]
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)

    return jax.tree.map(lambda old, new: jax.vmap(put)(old, new, slot), ring, entry)
