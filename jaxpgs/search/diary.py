"""The gradient of the cached mode, from a diary of the states in which the walks acted."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Params
from jaxpgs.search.nodes import write


class Diary(NamedTuple):
    """The states in which the walks of an update acted: what a gradient needs to know.

    Walks that pass through the same state share a row.

    Attributes:
      size: `[B]` int32, number of states.
      node: `[B, S]` int32, the states.
      policy: `[B, S, A]` the policy in each.
      start: `[T, B]` int32, the first row of the states that step t led to.
      row: `[T, B, K]` int32, each walk's row from there.
      action: `[T, B, K]` int32, what it did.
    """

    size: chex.Array
    node: chex.Array
    policy: chex.Array
    start: chex.Array
    row: chex.Array
    action: chex.Array


def differentiate(
    get_logits: Callable[[Params, chex.Array], chex.Array],
    adapted: Params,
    diary: Diary,
    alive: chex.Array,
    cotangent: chex.Array,
) -> Params:
    """Differentiates the log probabilities, a block of states of each root at a time.

    Walks that acted in the same state are summed before the head is differentiated, so the work
    grows with the number of different states, not with K walks of T steps. The policies are at
    hand, so a linear head costs one product, features times the gradient of the logits.
    """
    max_depth, _, num_walks = cotangent.shape
    num_actions = diary.policy.shape[-1]
    read = jax.vmap(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, num_walks, 0))
    numbers = jnp.arange(num_walks)[None]

    def sum_walks(carry: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        t, d_logits = carry  # up to t - 1 gradients of the logits, behind them policies
        weight = jnp.where(alive[t + 1], cotangent[t + 1], 0.0)
        member = diary.row[t][:, None, :] == numbers[..., None]
        member = jnp.where(member, weight[:, None, :], 0.0)
        action = jax.nn.one_hot(diary.action[t], num_actions, dtype=weight.dtype)
        chosen = jnp.matmul(member, action, precision="highest")
        policy = read(d_logits, diary.start[t])
        total = jnp.sum(member, axis=-1, keepdims=True)
        end = jnp.where(t + 1 < last, diary.start[jnp.minimum(t + 1, max_depth - 1)], diary.size)
        own = numbers < (end - diary.start[t])[:, None]
        new = jnp.where(own[..., None], chosen - total * policy, policy)
        return t + 1, write(d_logits, new, diary.start[t])

    block = min(2 * num_walks, diary.node.shape[1])

    def one_block(i: chex.Array) -> Params:
        # The last block may begin earlier than its number says, so as not to reach over the end.
        rows = jnp.minimum(i * block, diary.node.shape[1] - block) + jnp.arange(block)
        node = jax.lax.dynamic_slice_in_dim(diary.node, rows[0], block, 1)
        d_logits = jax.lax.dynamic_slice_in_dim(summed, rows[0], block, 1)
        real = (rows >= i * block)[None] & (rows[None] < diary.size[:, None])
        # Rows that are not real read a real state, as a head may have no derivative at zeros.
        node = jnp.where(real, node, diary.node[:, :1])
        _, vjp = jax.vjp(lambda own: get_logits(own, node), adapted)
        return vjp(jnp.where(real[..., None], d_logits, 0.0))[0]

    def add_block(carry: tuple[chex.Array, Params]) -> tuple[chex.Array, Params]:
        i, total = carry
        return i + 1, jax.tree.map(jnp.add, total, one_block(i))

    last = jnp.sum(jnp.any(alive, axis=(1, 2))) - 1
    zero = jnp.int32(0)
    _, summed = jax.lax.while_loop(lambda carry: carry[0] < last, sum_walks, (zero, diary.policy))
    # The first block is mostly the only one, so it is worth not adding it to zeros.
    longest = jnp.max(diary.size)
    start = (zero + 1, one_block(zero))
    return jax.lax.while_loop(lambda carry: carry[0] * block < longest, add_block, start)[1]
