"""How a search learns: from the objective of an update to the adapted parameters.

The derivative of the estimator's objective gives a weight to each term of the policy at each step.
The derivatives of the terms with respect to the logits are closed forms. One VJP through the
policy's logits leads them back to the parameters, with each visited state evaluated once.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from jaxpgs import trees
from jaxpgs.base import NodeStats, Params, Trajectory
from jaxpgs.search.definition import Search
from jaxpgs.search.policy import numbers_of, safe_log, terms_and_slopes
from jaxpgs.search.stores.contract import Blocks, Context, Simulations, Steps


class Learned(NamedTuple):
    """The result of learning from an update.

    Attributes:
      adapted: the parameters that adapt, after the update.
      opt_state: the optimizer's state after it.
      norm: `[B]` the gradient's norm, 0 where the update was skipped.
      skipped: `[B]` bool, where the update was skipped because the gradient or the optimizer's
        result was not finite.
    """

    adapted: Params
    opt_state: Any
    norm: chex.Array
    skipped: chex.Array


def learn(
    context: Context,
    blocks: Blocks,
    stats: NodeStats,
    opt_state: Any,
    simulations: Simulations,
    returns: chex.Array,
) -> Learned:
    """Moves the adapted parameters along the gradient of the objective.

    Args:
      context: what the update is made with.
      blocks: the states in which the simulations acted.
      stats: what was known at the root before the simulations.
      opt_state: the optimizer's state.
      simulations: the update's simulations.
      returns: `[T, B, K]` what they returned.
    """
    trajectory, search = simulations.trajectory, context.search
    cotangents = weights_of(search.estimator, stats, trajectory, returns, context.needed)
    gradient = differentiate(context, blocks, simulations.steps, cotangents)
    square = logit_square(trajectory, simulations.norms, cotangents)
    # A root without simulations has nothing to learn from, even if the model returns NaN.
    ran = jnp.any(trajectory.alive, axis=(0, 2))
    return ascend(search, context.adapted, opt_state, gradient, square, ran)


def weights_of(
    estimator: Any,
    stats: NodeStats,
    trajectory: Trajectory,
    returns: chex.Array,
    needed: frozenset[str],
) -> dict[str, chex.Array]:
    """Returns the gradient of minus the objective by the needed terms, `[T, B, K]` by name."""

    def loss(found: dict[str, chex.Array]) -> chex.Array:
        # Each root has its own copy of the parameters, so their gradients do not mix.
        return -jnp.sum(estimator(stats, trajectory._replace(**found), returns))

    return jax.grad(loss)({name: getattr(trajectory, name) for name in sorted(needed)})


@jax.named_scope("gradient")
def differentiate(
    context: Context,
    blocks: Blocks,
    steps: Steps,
    cotangents: dict[str, chex.Array],
) -> Params:
    """Propagates cotangents of the policy's terms back to the adapted parameters.

    Simulations that acted in the same state are summed before the policy is differentiated, so the
    cost grows with the number of different states, not with K simulations of T steps.

    Args:
      context: what the update is made with.
      blocks: the states in which the simulations acted.
      steps: what the simulations did.
      cotangents: of each needed term, `[T, B, K]`.

    Returns:
      The gradient, like the adapted parameters.
    """
    acting, action = in_rows(steps.acting), in_rows(steps.action)
    weights = {n: jnp.where(acting, in_rows(x), 0.0) for n, x in cotangents.items()}

    def one(i: Any) -> Params:
        policy, prior, pull = blocks.evaluate(context.adapted, i)
        # Relative to this block's first row. Steps of other blocks are out of range, and -1 is out
        # of range in every block.
        row = jnp.where(acting, blocks.row - i * blocks.num_rows, -1)
        return pull(_by_logits(context, policy, prior, row, action, weights))

    found = one(0)
    # A table of all nodes is a single block.
    if isinstance(blocks.num_blocks, int):
        assert blocks.num_blocks == 1
        return found

    def add(carry: tuple[chex.Array, Params]) -> tuple[chex.Array, Params]:
        return carry[0] + 1, jax.tree.map(jnp.add, carry[1], one(carry[0]))

    def add_others(found: Params) -> Params:
        start = (jnp.ones_like(blocks.num_blocks), found)
        return jax.lax.while_loop(lambda carry: carry[0] < blocks.num_blocks, add, start)[1]

    # Usually there is only one block. A loop outside of a condition would keep the memory that it
    # reads alive, which would then be copied before it is written to.
    return jax.lax.cond(blocks.num_blocks > 1, add_others, lambda found: found, found)


def in_rows(x: chex.Array) -> chex.Array:
    """Brings `[T, B, K, ...]` to `[B, T K, ...]`."""
    return jnp.moveaxis(x, 1, 0).reshape(x.shape[1], -1, *x.shape[3:])


def _by_logits(
    context: Context,
    policy: chex.Array,
    prior: chex.Array | None,
    row: chex.Array,
    action: chex.Array,
    weights: dict[str, chex.Array],
) -> chex.Array:
    """Returns the gradient by the logits `[B, R, A]` of states, from the steps `[B, S]` there."""
    num_rows, num_actions = policy.shape[1:]
    # [B, R, S]: whether step s was taken in state r.
    member = row[:, None, :] == jnp.arange(num_rows, dtype=jnp.int32)[None, :, None]
    total = jnp.zeros_like(policy)
    # d log pi(a) / dl = e_a - pi: the weights of the steps in a state, summed by action, minus
    # their total times the policy.
    if "log_prob" in weights:
        if context.dense:
            # A scatter may be a loop over roots here, so one-hot rows are multiplied instead.
            chosen = jax.nn.one_hot(action, num_actions, dtype=policy.dtype)
            own = jnp.where(member, weights["log_prob"][:, None], 0.0)
            chosen = jnp.einsum("brs,bsa->bra", own, chosen, precision="highest")
        else:
            # Steps of other blocks get an index after the last row, so that they are dropped.
            place = jnp.where((row >= 0) & (row < num_rows), row, num_rows)
            add = jax.vmap(lambda x, i, j, w: x.at[i, j].add(w, mode="drop"))
            chosen = add(total, place, action, weights["log_prob"])
        total = chosen - jnp.sum(chosen, axis=-1, keepdims=True) * policy
    if set(weights) - {"log_prob"}:
        entropy = -jnp.sum(policy * safe_log(policy), axis=-1)
        _, slopes = terms_and_slopes(policy, prior, entropy, frozenset(weights))
        for name in sorted(slopes):
            # The other terms depend on the state alone, so the weights of its steps are summed.
            share = jnp.sum(jnp.where(member, weights[name][:, None], 0.0), axis=-1)
            total += share[..., None] * slopes[name]
    return total


def compact(
    acting: chex.Array, first: chex.Array, num_rows: int
) -> tuple[chex.Array, chex.Array, Any]:
    """Numbers the different states in which steps were taken.

    Args:
      acting: `[T, B, K]` bool, the steps taken.
      first: `[T, B, K]` int32, the first of the K simulations that is in the same state.
      num_rows: R, the number of states in a block.

    Returns:
      The number `[B, S]` of each step's state; the number of blocks; and `i -> [B, R]`, steps
      taken in the states of block i (filled up with the root's first step).
    """
    num_walks = acting.shape[2]
    fresh = acting & (first == numbers_of(first))
    flat = in_rows(fresh)
    # A state is numbered by the first step in it, and every step reads the number of that step.
    rank = jnp.cumsum(flat, axis=-1, dtype=jnp.int32) - 1
    start = num_walks * jnp.arange(len(first), dtype=jnp.int32)
    row = trees.take(rank, in_rows(start[:, None, None] + first))
    size = flat.shape[1]
    numbers = jnp.arange(size, dtype=jnp.int32)

    def steps_of(i: Any) -> chex.Array:
        wanted = jnp.arange(num_rows, dtype=jnp.int32)[None, :, None] + i * num_rows
        holds = flat[:, None] & (rank[:, None] == wanted)
        found = jnp.min(jnp.where(holds, numbers, size), axis=-1)
        some = jnp.min(jnp.where(flat, numbers, size), axis=-1, keepdims=True)
        # Padding rows read a real state, since a head may have no derivative at zeros.
        return jnp.minimum(jnp.where(found < size, found, some), size - 1)

    # As many blocks as the root with the most states needs.
    num_blocks = -(-(jnp.max(rank) + 1) // num_rows)
    return row, num_blocks, steps_of


def logit_square(
    trajectory: Trajectory, norms: dict[str, chex.Array], cotangents: dict[str, chex.Array]
) -> chex.Array:
    """Estimates the squared norm of the objective's gradient at the logits of all visited states.

    It sums the squares of the individual terms, as if their derivatives were orthogonal. The
    derivative of `log_prob`, `e_a - pi`, has a norm of about `1 - pi_a`. The other `pi`, whose sum
    is at most as large, are ignored, since a trajectory only has the probabilities of its actions.

    Args:
      trajectory: the simulations.
      norms: `[T, B, K]` by name, norms of the other terms' derivatives by the logits.
      cotangents: `[T, B, K]` by name, the gradient of the objective by each needed term.

    Returns:
      `[B]`.
    """
    norms = norms | {"log_prob": -jnp.expm1(trajectory.log_prob)}
    total = sum(jnp.square(cotangents[name] * norms[name]) for name in cotangents)
    return jnp.sum(jnp.where(trajectory.alive, total, 0.0)[1:], axis=(0, 2))


def ascend(
    search: Search,
    adapted: Params,
    opt_state: Any,
    gradient: Params,
    square: chex.Array,
    ran: chex.Array,
) -> Learned:
    """Takes an optimizer step for each root where the result is finite.

    Args:
      search: the parts.
      adapted: the parameters that adapt.
      opt_state: the optimizer's state.
      gradient: the gradient of the loss, which is minus the objective.
      square: `[B]` as `logit_square` returns it.
      ran: `[B]` bool, where there is something to learn from.
    """
    assert search.optimizer is not None
    with jax.named_scope("optimizer"):
        norm = jax.vmap(optax.tree.norm)(gradient)
        # An optimizer that does not accept `logit_square` does not receive it.
        update = optax.with_extra_args_support(search.optimizer).update
        updates, new_state = jax.vmap(lambda g, s, p, square: update(g, s, p, logit_square=square))(
            gradient, opt_state, adapted, square
        )
        moved = optax.apply_updates(adapted, updates)
        # A NaN in the optimizer's state would corrupt all later updates.
        sound = jnp.isfinite(norm) & _all_finite(moved) & ~_any_nan(new_state, norm)
    adapted, opt_state = trees.where(sound & ran, (moved, new_state), (adapted, opt_state))
    return Learned(adapted, opt_state, jnp.where(sound & ran, norm, 0.0), ran & ~sound)


def _all_finite(tree: Any) -> chex.Array:
    """Tells root by root whether all numbers are finite."""

    def check(x: chex.Array) -> chex.Array:
        # Multiplied by 0, numbers that are not finite become NaN. Many sums over all axes but the
        # last run in parallel, and are faster than one sum over all.
        sums = jnp.sum(x * 0, axis=tuple(range(1, x.ndim - 1)))
        return jnp.all(sums.reshape(x.shape[0], -1) == 0, axis=1)

    return jnp.all(jnp.stack([check(x) for x in jax.tree.leaves(tree)]), axis=0)


def _any_nan(tree: Any, like: chex.Array) -> chex.Array:
    """Tells root by root whether any number is NaN."""
    rows = [jnp.any(jnp.isnan(x).reshape(x.shape[0], -1), axis=1) for x in jax.tree.leaves(tree)]
    # A norm is never negative: this row of False handles a state without arrays.
    return jnp.any(jnp.stack([*rows, like < 0]), axis=0)
