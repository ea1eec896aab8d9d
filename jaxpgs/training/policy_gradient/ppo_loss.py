"""The loss of PPO, and the moves that it is computed from (Schulman et al. 2017)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxpgs.arrays import values_like
from jaxpgs.base import Params
from jaxpgs.networks import functional_train
from jaxpgs.training.policy_gradient import learner_games


class Transitions(NamedTuple):
    """Moves to learn from; `B` is any number of them.

    Attributes:
      observation: `[B, *observation_shape]`.
      legal: `[B, A]` bool, in the network's frame.
      action: `[B]` int32, what was played, in the network's frame.
      log_prob: `[B]` its log probability when it was played.
      advantage: `[B]` how much better it was than expected.
      value: `[B]` the target of the value.
      mine: `[B]` bool, whether it was the learner's move; others do not count.
    """

    observation: chex.Array
    legal: chex.Array
    action: chex.Array
    log_prob: chex.Array
    advantage: chex.Array
    value: chex.Array
    mine: chex.Array


def clipped(
    log_prob: chex.Array, old_log_prob: chex.Array, advantage: chex.Array, clip: float
) -> chex.Array:
    """The clipped surrogate of each move, to be maximised (Schulman et al. 2017, eq. 7).

    Args:
      log_prob: the policy's log probability of the move, any shape.
      old_log_prob: the log probability under the policy that played, of the same shape.
      advantage: of the same shape.
      clip: epsilon. If the ratio of probabilities differs from 1 by more than this in the direction
        of the advantage, the surrogate does not increase further.

    Returns:
      The surrogate, of the same shape. At a ratio of 1 its gradient is the policy gradient.
    """
    # The minimum makes it a lower bound. If the ratio has moved too far in the direction of the
    # advantage, the clipped constant is used and the gradient is 0; it is not 0 in the other
    # direction.
    ratio = jnp.exp(log_prob - old_log_prob)
    bounded = jnp.clip(ratio, 1 - clip, 1 + clip)
    return jnp.minimum(ratio * advantage, bounded * advantage)


def ppo_loss(
    logits: chex.Array,
    value: chex.Array,
    moves: Transitions,
    *,
    clip: float = 0.2,
    value_weight: float = 0.5,
    entropy_weight: float = 0.01,
) -> tuple[chex.Array, dict[str, chex.Array]]:
    """The loss of PPO: clipped surrogate, squared value error, entropy bonus (eq. 9).

    Args:
      logits: `[B, A]` the network's logits. Illegal actions have probability 0 and no gradient.
      value: `[B]` the network's values; a column `[B, 1]` counts as well.
      moves: the moves.
      clip: epsilon; see `clipped`.
      value_weight: weight of the squared error.
      entropy_weight: weight of the policy's entropy, in nats.

    Returns:
      The loss `[]`, and its parts: `policy_loss`, `value_loss`, `entropy`, `approximate_kl`, the
      divergence from the policy that played to this one, and `clipped`, the share of moves whose
      ratio is out of bounds.
    """
    # The lowest float, as 0 times the logarithm -inf would make the entropy's gradient NaN.
    logits = jnp.where(moves.legal, logits.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    log_policy = jax.nn.log_softmax(logits)
    log_prob = jnp.take_along_axis(log_policy, moves.action[:, None], axis=-1)[:, 0]
    shares = jnp.where(moves.legal, jnp.exp(log_policy) * log_policy, 0.0)
    # Entries that are not moves of the learner may hold anything.
    log_ratio = jnp.where(moves.mine, log_prob - moves.log_prob, 0.0)
    ratio = jnp.exp(log_ratio)
    count = jnp.maximum(jnp.sum(moves.mine), 1).astype(jnp.float32)

    # Means over only the learner's moves.
    def mean(x: chex.Array) -> chex.Array:
        return jnp.sum(jnp.where(moves.mine, x, 0.0)) / count

    advantage = jnp.where(moves.mine, moves.advantage, 0.0)
    value = values_like(value, moves.value).astype(jnp.float32)
    error = jnp.where(moves.mine, value - moves.value, 0.0)
    # Eq. 9 with the sign of a loss. The surrogate gets the masked log ratio of above.
    policy_loss = -mean(clipped(log_ratio, jnp.zeros_like(log_ratio), advantage, clip))
    value_loss = mean(jnp.square(error))
    entropy = mean(-jnp.sum(shares, axis=-1))
    loss = policy_loss + value_weight * value_loss - entropy_weight * entropy
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        # (r - 1) - log r, whose mean is the KL divergence, and which is never negative.
        "approximate_kl": mean(ratio - 1 - log_ratio),
        "clipped": mean((jnp.abs(ratio - 1) > clip).astype(jnp.float32)),
    }


def make_losses(network: nnx.Module, **weights: float) -> Callable[..., Any]:
    """Makes `(params, moves) -> (loss, (parts, moved))`, with updated batch statistics."""
    call = functional_train(network)

    def losses_fn(params: Params, moves: Transitions) -> tuple[chex.Array, tuple]:
        (logits, value), moved = call(params, moves.observation)
        loss, parts = ppo_loss(logits, value, moves, **weights)
        return loss, (parts, moved)

    return losses_fn


def transitions_of(
    rollout: learner_games.Rollout,
    last_value: chex.Array,
    discount: float,
    gae_lambda: float,
    normalize_advantages: bool,
) -> Transitions:
    """Converts games to moves to learn from."""
    advantage, target = learner_games.advantages(
        rollout, last_value, discount=discount, gae_lambda=gae_lambda
    )
    if normalize_advantages:
        advantage = _normalized(advantage, rollout.mine)
    return Transitions(
        observation=rollout.observation,
        legal=rollout.legal,
        action=rollout.action,
        log_prob=rollout.log_prob,
        advantage=advantage,
        value=target,
        mine=rollout.mine,
    )


def _normalized(advantage: chex.Array, mine: chex.Array) -> chex.Array:
    """Normalises the advantages of all the learner's moves to mean 0 and standard deviation 1."""
    count = jnp.maximum(jnp.sum(mine), 1)
    # Masked: steps with only a reply may hold anything and do not count.
    centred = advantage - jnp.sum(jnp.where(mine, advantage, 0.0)) / count
    variance = jnp.sum(jnp.where(mine, jnp.square(centred), 0.0)) / count
    return jnp.where(mine, centred / (jnp.sqrt(variance) + 1e-8), 0.0)
