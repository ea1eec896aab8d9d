"""What the two memory modes share, and the one of constant memory: plain rollouts.

A `Simulator` runs the K simulations of an update. In constant memory all `B * K` of them take their
steps together through `recurrent_fn`; a step is one network call, and when every simulation has
stopped, the remaining ones are skipped. `jaxpgs.search.nodes` has the other simulator.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.base import Embedding, Params, Path, RecurrentFn, Trajectory, finite, finite_or_zero
from jaxpgs.search import adaptation
from jaxpgs.search.truncation import Truncation

# The cotangent of the log probabilities `[T, B, K]` -> the gradient of the adapted parameters.
Pull = Callable[[chex.Array], Params]


class Simulator(NamedTuple):
    """A memory mode: how the simulations of an update are run.

    Attributes:
      init: makes the memory that the search carries from update to update.
      run: `(adapted, rng_keys [B], actions [B, K], path, memory)`, with the first actions and the
        simulations before their first step, to `(trajectory, pull, remember)`. `pull` leads a
        gradient of the trajectory's log probabilities back to the adapted parameters; `remember`
        takes the returns `[T, B, K]` and gives the new memory.
    """

    init: Callable[[], Any]
    run: Callable[..., tuple[Trajectory, Pull, Callable[[chex.Array], Any]]]


def rollouts(
    frozen: Params,
    embedding: Embedding,
    recurrent_fn: RecurrentFn,
    truncation: Truncation,
    max_depth: int,
    adapts: bool,
    keeps_last: bool = False,
) -> Simulator:
    """Simulates from the root in memory that does not depend on the number of simulations.

    The gradient runs through the rollouts. Kept for it is only what the adapted leaves touch (a
    policy head: its features), so the rest of the network is evaluated once and never
    differentiated.

    The sequences seen, if the truncation asks for them, are flags in a table of fixed size, indexed
    by a hash of the sequence.

    Args:
      frozen: the parameters that do not adapt, None where the adapted ones have leaves.
      embedding: `[B, ...]` the roots.
      recurrent_fn: plays actions and evaluates the states they lead to.
      truncation: when a simulation stops.
      max_depth: T, the largest number of steps.
      adapts: whether `pull` will be called.
      keeps_last: whether the trajectory tells the embeddings of the states reached last.

    Returns:
      A simulator whose memory is the table.
    """
    batch_size = jax.tree.leaves(embedding)[0].shape[0]
    table_size = truncation.table_size
    call = jax.vmap(
        lambda adapted, key, action, embedding: recurrent_fn(
            adaptation.merge(adapted, frozen), key, action, embedding
        )
    )

    def init() -> chex.Array:
        return jnp.zeros((batch_size, table_size), bool)

    def locate(code: chex.Array) -> chex.Array:
        return (code & jnp.uint32(max(table_size, 1) - 1)).astype(jnp.int32)

    def run(
        adapted: Params, rng_keys: chex.PRNGKey, actions: chex.Array, path: Path, table: chex.Array
    ) -> tuple[Trajectory, Pull, Callable[[chex.Array], chex.Array]]:
        num_walks = actions.shape[1]
        step_keys, uniform = draw(rng_keys, max_depth, num_walks)

        def is_new(code: chex.Array) -> chex.Array:
            if not table_size:
                return jnp.ones(code.shape, bool)
            return ~jnp.take_along_axis(table, locate(code), axis=1)

        def step(adapted: Params, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
            embedding, actions, path = carry
            t, uniform = inputs
            keys = jax.vmap(lambda key: jax.random.fold_in(key, t))(step_keys)
            before = embedding
            output, embedding = call(adapted, keys, actions, embedding)
            if keeps_last:
                embedding = _choose(path.alive, embedding, before)
            logits = finite(output.prior_logits)
            policy = distribution(logits)
            actions = invert(policy.cumulative, policy.last, uniform)
            log_policy = jax.nn.log_softmax(logits, axis=-1)
            log_prob = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
            alive, code = path.alive, path.code
            discount = finite_or_zero(output.discount)
            path = path._replace(depth=path.depth + alive.astype(jnp.int32), new=is_new(code))
            stopped = (discount == 0) | (path.depth >= max_depth) | truncation.stop(path)
            path = go_on(path._replace(alive=alive & ~stopped), actions, log_prob)
            outputs = (
                alive,
                jnp.where(alive, finite_or_zero(output.reward), 0.0),
                jnp.where(alive, discount, 0.0),
                jnp.where(alive, finite_or_zero(output.value), 0.0),
                jnp.where(path.alive, log_prob, 0.0),
                jnp.where(path.alive, policy.entropy, 0.0),
                code,
            )
            return (embedding, actions, path), outputs

        def simulate(adapted: Params) -> tuple[chex.Array, tuple[Trajectory, chex.Array]]:
            def maybe_step(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
                shapes = jax.eval_shape(step, adapted, carry, inputs)[1]
                nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
                return jax.lax.cond(
                    jnp.any(carry[2].alive),
                    lambda carry, inputs: step(adapted, carry, inputs),
                    lambda carry, inputs: (carry, nothing),
                    carry,
                    inputs,
                )

            start = jax.tree.map(
                lambda x: jnp.broadcast_to(x[:, None], (batch_size, num_walks, *x.shape[1:])),
                embedding,
            )
            carry = (start, actions, path._replace(code=extend_code(path.code, actions)))
            inputs = (jnp.arange(max_depth), uniform)
            (states, _, last), outputs = jax.lax.scan(maybe_step, carry, inputs)
            alive, reward, discount, value, log_prob, entropy, codes = outputs
            trajectory = Trajectory(
                alive=alive,
                reward=reward,
                discount=discount,
                value=value,
                log_prob=delay(log_prob),
                entropy=entropy,
                depth=last.depth,
                num_evaluations=jnp.sum(last.depth, axis=-1),
                num_calls=jnp.max(last.depth),
                last=states if keeps_last else None,
            )
            return trajectory.log_prob, (trajectory, codes)

        if adapts:
            _, vjp, (trajectory, codes) = jax.vjp(simulate, adapted, has_aux=True)
        else:
            _, (trajectory, codes) = simulate(adapted)
        if table_size:
            # Flags, not bits: several sequences may then be noted in one scatter.
            seen = jnp.where(trajectory.alive, locate(codes), table_size)
            seen = jnp.moveaxis(seen, 1, 0).reshape(batch_size, -1)
            table = jax.vmap(lambda row, i: row.at[i].set(True, mode="drop"))(table, seen)
        return trajectory, lambda cotangent: vjp(cotangent)[0], lambda returns: table

    return Simulator(init, run)


def _choose(condition: chex.Array, new: Any, old: Any) -> Any:
    """Chooses between two pytrees `[B, K, ...]`, walk by walk."""
    return jax.tree.map(
        lambda n, o: jnp.where(condition.reshape(*condition.shape, *[1] * (n.ndim - 2)), n, o),
        new,
        old,
    )


def draw(rng_keys: chex.PRNGKey, max_depth: int, num_walks: int) -> tuple[chex.PRNGKey, chex.Array]:
    """Returns `[B]` keys for the network calls and `[T, B, K]` uniform numbers for the actions.

    Every random number of the update comes in one draw: one uniform an action, not one a logit.
    """
    step_keys, sample_keys = jnp.moveaxis(jax.vmap(jax.random.split)(rng_keys), 1, 0)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (max_depth, num_walks)))(sample_keys)
    return step_keys, jnp.moveaxis(uniform, 0, 1)


def go_on(path: Path, action: chex.Array, log_prob: chex.Array) -> Path:
    """Takes the simulations that are alive one action further."""
    return path._replace(
        code=jnp.where(path.alive, extend_code(path.code, action), path.code),
        log_prob=path.log_prob + jnp.where(path.alive, jax.lax.stop_gradient(log_prob), 0.0),
    )


def delay(x: chex.Array) -> chex.Array:
    """Moves `[T, ...]` one step on: step t sampled the action that step t+1 takes."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


def extend_code(code: chex.Array, action: chex.Array) -> chex.Array:
    """Hashes one more action into the codes of sequences (a multiply-and-shift mix of 32 bits)."""
    code = (code ^ (action.astype(jnp.uint32) + 1)) * jnp.uint32(0x9E3779B1)
    code = (code ^ (code >> 15)) * jnp.uint32(0x85EBCA77)
    return code ^ (code >> 13)


class Distribution(NamedTuple):
    """A policy, ready to draw from.

    Attributes:
      policy: `[..., A]` probabilities.
      cumulative: `[..., A]` their sums up to each action, -1 where the probability is 0.
      last: `[...]` int32, the last action that is not impossible.
      entropy: `[...]` in nats.
    """

    policy: chex.Array
    cumulative: chex.Array
    last: chex.Array
    entropy: chex.Array


def distribution(logits: chex.Array) -> Distribution:
    """Makes the distribution of finite logits `[..., A]`; not differentiable."""
    logits = jax.lax.stop_gradient(logits)
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    weight = jnp.exp(shifted)
    positive = weight > 0
    cumulative = _cumsum(weight)
    total = cumulative[..., -1:]
    policy = weight / total
    numbers = _numbers(logits)
    return Distribution(
        policy=policy,
        # Rounding of the sums must never pick an action of probability 0.
        cumulative=jnp.where(positive, cumulative / total, -1.0),
        last=jnp.max(jnp.where(positive, numbers, 0), axis=-1),
        entropy=jnp.log(total[..., 0])
        - jnp.sum(jnp.where(positive, policy * shifted, 0.0), axis=-1),
    )


def invert(cumulative: chex.Array, last: chex.Array, uniform: chex.Array) -> chex.Array:
    """Draws actions `[...]` by uniform numbers in [0, 1), inverting the distribution function."""
    # The first of those reached; a minimum is a faster reduction than an argmax.
    reached = cumulative > uniform[..., None]
    return jnp.minimum(
        jnp.min(jnp.where(reached, _numbers(cumulative), cumulative.shape[-1]), axis=-1), last
    )


def _numbers(x: chex.Array) -> chex.Array:
    """The numbers of the last axis, with as many axes as `x`."""
    return jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)


def _cumsum(x: chex.Array, block: int = 64) -> chex.Array:
    """The cumulative sum over the last axis, most of it as one product with a triangle of ones."""
    size = x.shape[-1]
    num_blocks = -(-size // block)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, num_blocks * block - size)])
    x = x.reshape(*x.shape[:-1], num_blocks, block)
    within = jnp.matmul(x, np.triu(np.ones((block, block), x.dtype)), precision="highest")
    if num_blocks > 1:
        ends = jnp.cumsum(within[..., -1], axis=-1)
        within = within.at[..., 1:, :].add(ends[..., :-1, None])
    return within.reshape(*x.shape[:-2], num_blocks * block)[..., :size]
