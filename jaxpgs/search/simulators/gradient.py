"""The gradient of the cached mode, from a record of the states in which the simulations acted."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Params, PolicyTerms
from jaxpgs.search.simulators import terms
from jaxpgs.search.simulators.nodes import write


class ActedStates(NamedTuple):
    """The states in which the simulations of an update acted, each once.

    Its arrays outlive the update, so that the next one writes into the same memory.

    Attributes:
      size: `[B]` int32, number of states.
      node: `[B, S]` int32, the states.
      policy: `[B, S, A]` the policy in each; after the gradient, its gradient by the logits.
      prior: `[B, S, A]` the prior's policy, None if no term compares with it.
    """

    size: chex.Array
    node: chex.Array
    policy: chex.Array
    prior: chex.Array | None


class Actions(NamedTuple):
    """Which actions the simulations of an update took, and where.

    Attributes:
      start: `[T, B]` int32, the first of the acted states that step t led to.
      row: `[T, B, K]` int32, each simulation's state, counted from there.
      action: `[T, B, K]` int32, what it did.
    """

    start: chex.Array
    row: chex.Array
    action: chex.Array


def differentiate(
    get_logits: Callable[[Params, chex.Array], chex.Array],
    adapted: Params,
    states: ActedStates,
    actions: Actions,
    alive: chex.Array,
    cotangents: PolicyTerms,
    needed: frozenset[str],
) -> tuple[Params, ActedStates]:
    """Differentiates the terms of the policy, a block of states of each root at a time.

    Simulations that acted in the same state are summed before the head is differentiated, so the
    work grows with the number of different states, not with K simulations of T steps. The policies
    are at hand, so a linear head costs one product, features times the gradient of the logits.

    Args:
      get_logits: `(adapted, node [B, R]) -> [B, R, A]`.
      adapted: the parameters that adapt, leading axis B.
      states: where the simulations acted.
      actions: what they did.
      alive: `[T, B, K]` bool, the steps taken.
      cotangents: of each term, `[T, B, K]`.
      needed: the terms whose cotangents count.

    Returns:
      The gradient, and the states with the gradient of the logits in the place of the policies.
    """
    last = jnp.sum(jnp.any(alive, axis=(1, 2)), dtype=jnp.int32) - 1

    def sum_step(carry: tuple[chex.Array, ActedStates]) -> tuple[chex.Array, ActedStates]:
        t, states = carry
        return t + 1, _sum_step(states, actions, alive, cotangents, needed, t, last)

    zero = jnp.zeros_like(last)
    carry = (zero, states)
    states = jax.lax.while_loop(lambda carry: carry[0] < last, sum_step, carry)[1]
    return _pull_back(get_logits, adapted, states, 2 * alive.shape[-1]), states


def _sum_step(
    states: ActedStates,
    actions: Actions,
    alive: chex.Array,
    cotangents: PolicyTerms,
    needed: frozenset[str],
    t: chex.Array,
    last: chex.Array,
) -> ActedStates:
    """Puts gradients of the logits in the place of the policies where step t led to."""
    max_depth, _, num_walks = alive.shape
    numbers = jnp.arange(num_walks)[None]
    taken = alive[t + 1]
    member = (actions.row[t][:, None, :] == numbers[..., None]) & taken[:, None, :]
    policy = _read(states.policy, actions.start[t], num_walks)
    total = jnp.zeros_like(policy)
    if "log_prob" in needed:
        weight = jnp.where(member, cotangents.log_prob[t + 1][:, None, :], 0.0)
        action = jax.nn.one_hot(actions.action[t], policy.shape[-1], dtype=weight.dtype)
        chosen = jnp.matmul(weight, action, precision="highest")
        total = chosen - jnp.sum(weight, axis=-1, keepdims=True) * policy
    if needed - {"log_prob"}:
        prior = None
        if states.prior is not None:
            prior = _read(states.prior, actions.start[t], num_walks)
        entropy = -jnp.sum(policy * terms.safe_log(policy), axis=-1)
        _, slopes = terms.values(policy, prior, entropy, needed)
        for name in sorted(slopes):
            weight = jnp.where(member, getattr(cotangents, name)[t + 1][:, None, :], 0.0)
            total += jnp.sum(weight, axis=-1, keepdims=True) * slopes[name]
    end = actions.start[jnp.minimum(t + 1, max_depth - 1)]
    end = jnp.where(t + 1 < last, end, states.size)
    own = numbers < (end - actions.start[t])[:, None]
    total = jnp.where(own[..., None], total, policy)
    return states._replace(policy=write(states.policy, total, actions.start[t]))


def _read(x: chex.Array, start: chex.Array, num_rows: int) -> chex.Array:
    """Reads R rows of `[B, S, A]` from places `[B]` on."""
    return jax.vmap(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, num_rows, 0))(x, start)


def _pull_back(
    get_logits: Callable[[Params, chex.Array], chex.Array],
    adapted: Params,
    states: ActedStates,
    block: int,
) -> Params:
    """Leads the gradients of the logits back to the parameters, `block` states at a time."""
    num_rows = states.node.shape[1]
    block = min(block, num_rows)

    def one_block(i: chex.Array) -> Params:
        # The last block may begin earlier than its number says, so as not to reach over the end.
        rows = jnp.minimum(i * block, num_rows - block) + jnp.arange(block)
        node = jax.lax.dynamic_slice_in_dim(states.node, rows[0], block, 1)
        d_logits = jax.lax.dynamic_slice_in_dim(states.policy, rows[0], block, 1)
        real = (rows >= i * block)[None] & (rows[None] < states.size[:, None])
        # Rows that are not real read a real state, as a head may have no derivative at zeros.
        node = jnp.where(real, node, states.node[:, :1])
        _, vjp = jax.vjp(lambda own: get_logits(own, node), adapted)
        return vjp(jnp.where(real[..., None], d_logits, 0.0))[0]

    def add_block(carry: tuple[chex.Array, Params]) -> tuple[chex.Array, Params]:
        i, total = carry
        return i + 1, jax.tree.map(jnp.add, total, one_block(i))

    longest = jnp.max(states.size)
    zero = jnp.zeros_like(longest)
    # The first block is mostly the only one, so it is worth not adding it to zeros.
    start = (zero + 1, one_block(zero))
    return jax.lax.while_loop(lambda carry: carry[0] * block < longest, add_block, start)[1]
