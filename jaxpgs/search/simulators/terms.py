"""Terms of the simulation policy that an objective may use, and their derivatives by the logits.

With `pi` the simulation policy, `p0` the prior and `l` the logits of `pi`:

- `d log pi(a) / dl = e_a - pi`,
- `d H(pi) / dl = -pi (log pi + H)`,
- `d KL(pi || p0) / dl = pi (log pi - log p0 - KL)`,
- `d KL(p0 || pi) / dl = pi - p0`.

Actions of probability 0 contribute exactly 0 to all of them.
"""

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import PolicyTerms

KL = ("kl_to_prior", "kl_from_prior")


def needs_prior(needed: frozenset[str]) -> bool:
    """Tells whether any of the terms compares with the prior."""
    return any(name in needed for name in KL)


def attach(term: chex.Array, slope: chex.Array, logits: chex.Array) -> chex.Array:
    """Returns a term `[...]` whose derivative by the logits `[..., A]` is the slope `[..., A]`."""
    moved = logits - jax.lax.stop_gradient(logits)
    return jax.lax.stop_gradient(term) + jnp.sum(jax.lax.stop_gradient(slope) * moved, axis=-1)


def values(
    policy: chex.Array, prior: chex.Array | None, entropy: chex.Array, needed: frozenset[str]
) -> tuple[dict[str, chex.Array], dict[str, chex.Array]]:
    """Computes the terms but for the log probability, and their derivatives, from probabilities.

    Args:
      policy: `[..., A]` probabilities of the simulation policy.
      prior: `[..., A]` those of the prior; None if no term compares with it.
      entropy: `[...]` the policy's entropy.
      needed: which terms.

    Returns:
      The entropy and the needed terms `[...]`, and the latter's derivatives by the logits
      `[..., A]`, by name.
    """
    if not needed - {"log_prob"}:
        return {"entropy": entropy}, {}
    log_policy = safe_log(policy)
    found = {"entropy": entropy}
    slopes = {"entropy": -policy * (log_policy + entropy[..., None])}
    if prior is not None:
        log_prior = safe_log(prior)
        ratio = log_policy - log_prior
        found["kl_to_prior"] = jnp.sum(policy * ratio, axis=-1)
        found["kl_from_prior"] = -jnp.sum(prior * ratio, axis=-1)
        slopes["kl_to_prior"] = policy * (ratio - found["kl_to_prior"][..., None])
        slopes["kl_from_prior"] = policy - prior
    return found, {name: slope for name, slope in slopes.items() if name in needed}


def safe_log(policy: chex.Array) -> chex.Array:
    """The logarithm of probabilities, 0 where they are 0."""
    return jnp.where(policy > 0, jnp.log(jnp.where(policy > 0, policy, 1.0)), 0.0)


def log_prob_norm(log_prob: chex.Array) -> chex.Array:
    """Norm of `e_a - pi`, about: of `1 - pi_a` and the other `pi`.

    The others, at most as large together, are left out: a trajectory knows the probabilities of its
    own actions only.
    """
    return -jnp.expm1(log_prob)


def logit_square(norms: PolicyTerms, cotangents: PolicyTerms, alive: chex.Array) -> chex.Array:
    """Squared norm of the objective's gradient at the logits of all states visited, about.

    Sums the squares of the single terms, as if their derivatives were at right angles.

    Args:
      norms: `[T, B, K]` of each term's derivative by the logits, or 0.
      cotangents: `[T, B, K]` the gradient of the objective with respect to each term.
      alive: `[T, B, K]` bool, the steps taken.

    Returns:
      `[B]`.
    """
    pairs = zip(norms, cotangents, strict=True)
    total = sum(jnp.square(cotangent * norm) for norm, cotangent in pairs)
    return jnp.sum(jnp.where(alive, total, 0.0)[1:], axis=(0, 2))
