"""The policy of the simulations: probabilities, sampling, and terms that an objective may use.

With `pi` the simulation policy, `p0` the prior and `l` the logits of `pi`:

- `d log pi(a) / dl = e_a - pi`,
- `d H(pi) / dl = -pi (log pi + H)`,
- `d KL(pi || p0) / dl = pi (log pi - log p0 - KL)`,
- `d KL(p0 || pi) / dl = pi - p0`.

Actions of probability 0 contribute exactly 0 to all of them.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.arrays import as_logits, statistics_dtype


class Categorical(NamedTuple):
    """A policy, prepared for sampling.

    Attributes:
      policy: `[..., A]` probabilities.
      cumulative: `[..., A]` their sums up to each action, -1 where the probability is 0.
      last: `[...]` int32, the last action that is not impossible.
      entropy: `[...]` in nats.

    Example:
      >>> jaxpgs.search.categorical(jnp.array([0.0, 0.0, 1.0])).cumulative.round(2)
      Array([0.21, 0.42, 1.  ], dtype=float32)
    """

    policy: chex.Array
    cumulative: chex.Array
    last: chex.Array
    entropy: chex.Array


def categorical(logits: chex.Array) -> Categorical:
    """Makes the distribution of finite logits `[..., A]`; not differentiable.

    Example:
      >>> jaxpgs.search.categorical(jnp.array([0.0, 0.0, 1.0])).policy.round(2)
      Array([0.21, 0.21, 0.58], dtype=float32)
    """
    logits = jax.lax.stop_gradient(logits)
    # With many actions, sums in 16 bits would lose some of them.
    logits = logits.astype(statistics_dtype(logits))
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    weight = jnp.exp(shifted)
    positive = weight > 0
    total = jnp.sum(weight, axis=-1, keepdims=True)
    policy = weight / total
    cumulative = _cumsum(weight) / total  # free if nothing is sampled: the compiler removes it
    return Categorical(
        policy=policy,
        # Rounding of the sums must never pick an action of probability 0.
        cumulative=jnp.where(positive, cumulative, -1.0),
        last=jnp.max(jnp.where(positive, numbers_of(logits), 0), axis=-1),
        entropy=jnp.log(total[..., 0])
        - jnp.sum(jnp.where(positive, policy * shifted, 0.0), axis=-1),
    )


def sample_inverse_cdf(cumulative: chex.Array, last: chex.Array, uniform: chex.Array) -> chex.Array:
    """Samples actions `[...]` from uniform numbers in [0, 1) by inverting the CDF.

    Example:
      >>> policy = jaxpgs.search.categorical(jnp.zeros(4))
      >>> jaxpgs.search.sample_inverse_cdf(policy.cumulative, policy.last, jnp.float32(0.6))
      Array(2, dtype=int32)
    """
    # The first action whose cumulative sum exceeds it; a minimum is faster than an argmax.
    reached = cumulative > uniform[..., None]
    first = jnp.min(jnp.where(reached, numbers_of(cumulative), cumulative.shape[-1]), axis=-1)
    return jnp.minimum(first, last)


def pick(x: chex.Array, action: chex.Array) -> chex.Array:
    """Returns the entries `[...]` of `[..., A]` that belong to actions `[...]`."""
    return jnp.sum(jnp.where(numbers_of(x) == action[..., None], x, 0), axis=-1, dtype=x.dtype)


def masked_argmax(scores: chex.Array, valid: chex.Array) -> chex.Array:
    """Returns the legal action with the largest score; ties go to the first.

    Args:
      scores: `[..., A]`; NaN counts as the lowest float.
      valid: `[..., A]` bool.

    Returns:
      `[...]` int32. Where no action is legal, 0.

    Example:
      >>> valid = jnp.array([[True, False, True]])
      >>> jaxpgs.search.masked_argmax(jnp.array([[0.1, 0.9, 0.5]]), valid)
      Array([2], dtype=int32)
    """
    scores = jnp.where(valid, as_logits(scores), -jnp.inf)
    # Not `scores == max(scores)`: a compiler may compute both sides with different rounding.
    return jnp.argmax(scores, axis=-1).astype(jnp.int32)


def numbers_of(x: chex.Array) -> chex.Array:
    """Returns the indices along the last axis, with as many axes as `x`."""
    return jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)


def _cumsum(x: chex.Array, block: int = 64) -> chex.Array:
    """Returns the cumulative sum over the last axis, mostly as one product with a triangle."""
    size = x.shape[-1]
    num_blocks = -(-size // block)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, num_blocks * block - size)])
    x = x.reshape(*x.shape[:-1], num_blocks, block)
    # In full precision, since these sums decide which action is sampled; an accelerator's default
    # precision is lower.
    within = jnp.matmul(x, np.triu(np.ones((block, block), x.dtype)), precision="highest")
    if num_blocks > 1:
        # The total of all earlier blocks is added to the sums within a block.
        ends = jnp.cumsum(within[..., -1], axis=-1)
        within = within.at[..., 1:, :].add(ends[..., :-1, None])
    return within.reshape(*x.shape[:-2], num_blocks * block)[..., :size]


def needs_prior(terms: frozenset[str]) -> bool:
    """Tells whether any of the terms compares with the prior."""
    return bool(terms & {"kl_to_prior", "kl_from_prior"})


def terms_and_slopes(
    policy: chex.Array, prior: chex.Array | None, entropy: chex.Array, needed: frozenset[str]
) -> tuple[dict[str, chex.Array], dict[str, chex.Array]]:
    """Computes the terms but for the log probability, and their derivatives, from probabilities.

    Args:
      policy: `[..., A]` probabilities of the simulation policy.
      prior: `[..., A]` probabilities of the prior; None if no term compares with it.
      entropy: `[...]` the policy's entropy.
      needed: which terms.

    Returns:
      The entropy and the needed terms `[...]`, by name; and the derivatives of the needed terms
      with respect to the logits `[..., A]`, by name.
    """
    if not needed - {"log_prob"}:
        return {"entropy": entropy}, {}
    log_policy = safe_log(policy)
    found = {"entropy": entropy}
    slopes = {"entropy": -policy * (log_policy + entropy[..., None])}
    if prior is not None:
        ratio = log_policy - safe_log(prior)
        found["kl_to_prior"] = jnp.sum(policy * ratio, axis=-1)
        found["kl_from_prior"] = -jnp.sum(prior * ratio, axis=-1)
        slopes["kl_to_prior"] = policy * (ratio - found["kl_to_prior"][..., None])
        slopes["kl_from_prior"] = policy - prior
    kept = {name: x for name, x in found.items() if name in needed | {"entropy"}}
    return kept, {name: slope for name, slope in slopes.items() if name in needed}


def safe_log(policy: chex.Array) -> chex.Array:
    """The logarithm of probabilities, 0 where they are 0."""
    return jnp.where(policy > 0, jnp.log(jnp.where(policy > 0, policy, 1.0)), 0.0)
