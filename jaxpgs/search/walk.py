"""The simulations of one update in constant memory: plain rollouts through `recurrent_fn`.

All `B * K` simulations take their steps together. A step is one network call; when every simulation
has stopped, the remaining ones are skipped.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Embedding, Params, Path, RecurrentFn, Trajectory, finite, finite_or_zero
from jaxpgs.search import adaptation


def walk(
    adapted: Params,
    frozen: Params,
    rng_keys: chex.PRNGKey,
    embedding: Embedding,
    actions: chex.Array,
    path: Path,
    recurrent_fn: RecurrentFn,
    stop: Callable[[Path], chex.Array],
    max_depth: int,
) -> Trajectory:
    """Simulates from the root, sampling every action but the first from the adapted policy.

    Differentiable in `adapted` through the trajectory's log probabilities. The scan keeps for the
    backward pass only what the adapted leaves touch (a policy head: its features), so the rest of
    the network is evaluated once and never differentiated.

    Args:
      adapted: the parameters that adapt, leaves `[B, ...]`, None elsewhere.
      frozen: the others, None where `adapted` has leaves.
      rng_keys: `[B]` keys, consumed.
      embedding: `[B, ...]` the roots.
      actions: `[B, K]` the first action of each simulation.
      path: the simulations before their first step, with `depth` 0.
      recurrent_fn: plays actions and evaluates the states they lead to.
      stop: the truncation's rule, `path -> [B, K]` bool.
      max_depth: T, the largest number of steps.

    Returns:
      The trajectory.
    """
    batch_size, num_walks = actions.shape
    step_keys, sample_keys = jnp.moveaxis(jax.vmap(jax.random.split)(rng_keys), 1, 0)
    # Every random number of the update in one draw: one uniform an action, not one a logit.
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (max_depth, num_walks)))(sample_keys)
    call = jax.vmap(
        lambda adapted, key, action, embedding: recurrent_fn(
            adaptation.merge(adapted, frozen), key, action, embedding
        )
    )

    def step(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        embedding, actions, path = carry
        t, uniform = inputs
        keys = jax.vmap(lambda key: jax.random.fold_in(key, t))(step_keys)
        output, embedding = call(adapted, keys, actions, embedding)
        log_policy = jax.nn.log_softmax(finite(output.prior_logits), axis=-1)
        actions, log_prob, entropy = _sample(log_policy, uniform)

        alive = path.alive
        discount = finite_or_zero(output.discount)
        path = path._replace(depth=path.depth + alive.astype(jnp.int32))
        stopped = (discount == 0) | (path.depth >= max_depth) | stop(path)
        path = path._replace(
            alive=alive & ~stopped,
            code=jnp.where(alive & ~stopped, extend_code(path.code, actions), path.code),
            log_prob=path.log_prob + jnp.where(stopped, 0.0, jax.lax.stop_gradient(log_prob)),
        )
        outputs = (
            alive,
            jnp.where(alive, finite_or_zero(output.reward), 0.0),
            jnp.where(alive, discount, 0.0),
            jnp.where(alive, finite_or_zero(output.value), 0.0),
            jnp.where(path.alive, log_prob, 0.0),
            jnp.where(path.alive, entropy, 0.0),
        )
        return (embedding, actions, path), outputs

    def maybe_step(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        shapes = jax.eval_shape(step, carry, inputs)[1]
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.cond(
            jnp.any(carry[2].alive),
            step,
            lambda carry, inputs: (carry, nothing),
            carry,
            inputs,
        )

    embedding = jax.tree.map(
        lambda x: jnp.broadcast_to(x[:, None], (batch_size, num_walks, *x.shape[1:])), embedding
    )
    path = path._replace(code=extend_code(path.code, actions))
    inputs = (jnp.arange(max_depth), jnp.moveaxis(uniform, 0, 1))
    (_, _, path), outputs = jax.lax.scan(maybe_step, (embedding, actions, path), inputs)
    alive, reward, discount, value, log_prob, entropy = outputs
    # Step t sampled the action that step t+1 takes.
    log_prob = jnp.concatenate([jnp.zeros_like(log_prob[:1]), log_prob[:-1]])
    return Trajectory(
        alive=alive,
        reward=reward,
        discount=discount,
        value=value,
        log_prob=log_prob,
        entropy=jax.lax.stop_gradient(entropy),
        depth=path.depth,
        code=path.code,
    )


def extend_code(code: chex.Array, action: chex.Array) -> chex.Array:
    """Hashes one more action into the codes of sequences (a multiply-and-shift mix of 32 bits)."""
    code = (code ^ (action.astype(jnp.uint32) + 1)) * jnp.uint32(0x9E3779B1)
    code = (code ^ (code >> 15)) * jnp.uint32(0x85EBCA77)
    return code ^ (code >> 13)


def _sample(
    log_policy: chex.Array, uniform: chex.Array
) -> tuple[chex.Array, chex.Array, chex.Array]:
    """Draws actions `[B, K]` from `[B, K, A]` by inverting the distribution function.

    Returns the actions, their log probabilities (differentiable) and the policies' entropies.
    """
    policy = jnp.exp(jax.lax.stop_gradient(log_policy))
    cumulative = jnp.cumsum(policy, axis=-1)
    reached = cumulative > uniform[..., None] * cumulative[..., -1:]
    # Rounding of the sums must never pick an action of probability 0, hence the second condition;
    # where it leaves none, the most probable action is taken.
    score = jnp.where(reached & (policy > 0), 2.0, policy)
    actions = jnp.argmax(score, axis=-1).astype(jnp.int32)
    log_prob = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    entropy = jnp.sum(jax.scipy.special.entr(policy), axis=-1)
    return actions, log_prob, entropy
