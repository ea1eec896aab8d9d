"""What a simulator is, and what all of them share: drawing actions, and terms of the policy.

A simulator runs the K simulations of an update. `constant` does so in memory that does not depend
on the number of simulations, `cached` remembers every state visited.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.base import Params, Path, PolicyTerms, Trajectory
from jaxpgs.search.simulators import adaptation, terms

if TYPE_CHECKING:
    from jaxpgs.search.definition import Search


class Context(NamedTuple):
    """What an update is made with.

    Attributes:
      search: the search.
      params: the network's own parameters.
      adapted: the parameters that adapt, leading axis B.
      needed: names of the `PolicyTerms` that the objective depends on; none if nothing learns.
    """

    search: "Search"
    params: Params
    adapted: Params
    needed: frozenset[str]

    @property
    def frozen(self) -> Params:
        """The network's parameters but for those that adapt."""
        mask = adaptation.adapt_mask(self.params, self.search.adapt)
        return adaptation.split(self.params, mask)[1]


class Simulations(NamedTuple):
    """What a simulator gives back of one update.

    Attributes:
      trajectory: the simulations, step by step.
      norms: `[T, B, K]` each, norms of the terms' derivatives by the logits, for
        `auto_sgd`; 0 for terms that the objective does not depend on.
      residuals: what `gradient` needs to know.
      memory: the memory after the simulations.

    Example:
      >>> jaxpgs.search.Simulations._fields
      ('trajectory', 'norms', 'residuals', 'memory')
    """

    trajectory: Trajectory
    norms: PolicyTerms
    residuals: Any
    memory: Any


class Steps(NamedTuple):
    """Steps of simulations that the simulation policy took, W of each root side by side.

    Attributes:
      alive: `[T, B, W]` bool, True where it took step t; never at t = 0, the selection's.
      source: `[T, B, W, ...]` by what the memory mode recognises `s_t`.
      action: `[T, B, W]` int32, `a_t`.
    """

    alive: chex.Array
    source: Any
    action: chex.Array


class Replay(NamedTuple):
    """How a memory mode uses its simulations again.

    Attributes:
      record: `simulations -> Steps` of the K simulations of an update.
      get_logits: `(context, memory, source [B, W, ...]) -> [B, W, A]`, the policy's logits now.
    """

    record: Callable[[Simulations], Steps]
    get_logits: Callable[..., chex.Array]


class Simulator(NamedTuple):
    """A memory mode: four pure functions.

    Attributes:
      init: `(context, root, kept) -> memory`, with the roots as `mctx.RootFnOutput` and the nodes
        that an earlier search left behind, or None. Every array has a leading axis B.
      simulate: `(context, memory, rng_keys [B], actions [B, K], path) -> Simulations`, with the
        first actions and the simulations before their first step.
      gradient: `(context, simulations, cotangents)`: leads `PolicyTerms` of cotangents back to the
        adapted parameters. Returns them and the simulations, whose memory it may have written into.
      remember: `(search, simulations, returns [T, B, K]) -> memory`, for the next update.
      replay: what `Search.reuse` needs; None where simulations cannot be used again.

    Example:
      >>> from jaxpgs.search.simulators import constant
      >>> constant.simulator._fields
      ('init', 'simulate', 'gradient', 'remember', 'replay')
    """

    init: Callable[..., Any]
    simulate: Callable[..., Simulations]
    gradient: Callable[..., tuple[Params, Simulations]]
    remember: Callable[..., Any]
    replay: Replay | None = None


def draw(rng_keys: chex.PRNGKey, max_depth: int, num_walks: int) -> tuple[chex.PRNGKey, chex.Array]:
    """Returns `[B]` keys for the network calls and `[T, B, K]` uniform numbers for the actions.

    Every random number of the update comes in one draw: one uniform an action, not one a logit.
    """
    step_keys, sample_keys = jnp.moveaxis(jax.vmap(jax.random.split)(rng_keys), 1, 0)
    # In one row: the generator's code for rows of rows is longer, and slower to compile.
    count = max_depth * num_walks
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (count,)))(sample_keys)
    return step_keys, jnp.moveaxis(uniform.reshape(-1, max_depth, num_walks), 0, 1)


def fold_in(rng_keys: chex.PRNGKey, t: chex.Array) -> chex.PRNGKey:
    """Returns the `[B]` keys of step t."""
    return jax.vmap(lambda key: jax.random.fold_in(key, t))(rng_keys)


def go_on(path: Path, action: chex.Array, log_prob: chex.Array) -> Path:
    """Takes the simulations that are alive one action further."""
    return path._replace(
        code=jnp.where(path.alive, extend_code(path.code, action), path.code),
        log_prob=path.log_prob + jnp.where(path.alive, jax.lax.stop_gradient(log_prob), 0.0),
    )


def complete(told: dict[str, chex.Array], like: chex.Array) -> PolicyTerms:
    """Returns terms `[T, B, K]` at the steps they belong to, 0 for those that were not told.

    They were told one step early: step t samples the action that step t + 1 takes.
    """
    nothing = dict.fromkeys(PolicyTerms._fields, jnp.zeros_like(like))
    return PolicyTerms(**nothing | {name: delay(x) for name, x in told.items()})


def delay(x: chex.Array) -> chex.Array:
    """Moves `[T, ...]` one step on."""
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

    Example:
      >>> jaxpgs.search.distribution(jnp.array([0.0, 0.0, 1.0])).cumulative.round(2)
      Array([0.21, 0.42, 1.  ], dtype=float32)
    """

    policy: chex.Array
    cumulative: chex.Array
    last: chex.Array
    entropy: chex.Array


def distribution(logits: chex.Array) -> Distribution:
    """Makes the distribution of finite logits `[..., A]`; not differentiable.

    Example:
      >>> jaxpgs.search.distribution(jnp.array([0.0, 0.0, 1.0])).policy.round(2)
      Array([0.21, 0.21, 0.58], dtype=float32)
    """
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


def attached_terms(
    needed: frozenset[str],
    logits: chex.Array,
    policy: Distribution,
    prior: chex.Array | None,
    actions: chex.Array,
) -> tuple[dict[str, chex.Array], dict[str, chex.Array]]:
    """Returns a policy's terms by its logits, differentiable, and the norms of their derivatives.

    Args:
      needed: the terms that are differentiated.
      logits: `[..., A]`.
      policy: the distribution of these.
      prior: `[..., A]` the prior's policy; None if no term compares with it.
      actions: `[...]` int32, those drawn.

    Returns:
      Terms `[...]` by name, `entropy` and `log_prob` among them, and norms of those needed.
    """
    found, slopes = terms.values(policy.policy, prior, policy.entropy, needed)
    norms = {name: jnp.linalg.norm(slope, axis=-1) for name, slope in slopes.items()}
    chosen = jax.nn.one_hot(actions, logits.shape[-1], dtype=logits.dtype)
    found["log_prob"] = jnp.log(jnp.sum(chosen * policy.policy, axis=-1))
    if "log_prob" in needed:
        slopes["log_prob"] = chosen - policy.policy
        norms["log_prob"] = terms.log_prob_norm(found["log_prob"])
    attached = {name: terms.attach(found[name], slopes[name], logits) for name in slopes}
    return found | attached, norms


def invert(cumulative: chex.Array, last: chex.Array, uniform: chex.Array) -> chex.Array:
    """Draws actions `[...]` by uniform numbers in [0, 1), inverting the distribution function.

    Example:
      >>> policy = jaxpgs.search.distribution(jnp.zeros(4))
      >>> jaxpgs.search.invert(policy.cumulative, policy.last, jnp.float32(0.6))
      Array(2, dtype=int32)
    """
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
