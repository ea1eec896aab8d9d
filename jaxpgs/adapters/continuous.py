"""Continuous actions: searches over actions that a Gaussian policy draws for every state.

Each state comes with A candidates, sampled from the policy when the state is created, and a search
chooses among their indices (Hubert et al. 2021, for tree search). No search needs any changes. The
policy's logit of a candidate is its log density minus that under the policy that sampled it. At
first all logits are equal, since the samples already represent the policy. PGS may then adapt the
policy's mean and width by the returns of the candidates.
"""

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.adapters.environments import RootFn, check_players, gain_of, mask_value, step_with_keys
from jaxpgs.base import Env, Expansion, Params, PolicyOutput, RecurrentFn, SplitRecurrentFn
from jaxpgs.checks import check_finite
from jaxpgs.networks.functional import SplitApplyFn


class Candidates(NamedTuple):
    """A state with actions to choose from.

    Attributes:
      state: `[B]` the environment's states.
      actions: `[B, A, D]` the candidates as sampled; they are clipped to the bounds when played.
      log_density: `[B, A]` log densities under the policy that sampled them.
    """

    state: Any
    actions: chex.Array
    log_density: chex.Array


def make_sampled_fns(
    env: Env,
    apply_fn: SplitApplyFn,
    num_candidates: int,
    *,
    discount: float = 1.0,
    proposal_params: Params | None = None,
) -> tuple[RootFn, RecurrentFn]:
    """Makes what a search needs for continuous actions.

    Args:
      env: an environment of one player, or of two, whose `action_bounds` are the least and the
        greatest action, D finite numbers each; otherwise as in `make_root_fn`, without legal
        actions. `step` may take a key as its third argument, `key`.
      apply_fn: the network, in parts. Its `policy_head` returns `[B, 2 D]`: the means, and the
        logarithms of the standard deviations. Both are in units of half the distance between the
        bounds, and the means are relative to their midpoint.
      num_candidates: A, at least 2.
      discount: the discount factor per step, above 0, at most 1.
      proposal_params: the parameters of the policy that samples candidates. If None, they are those
        of the search, so that candidates below the root follow the adapted policy; PGS then needs
        `mode="rollouts"`. A search that adapts and keeps a tree needs `proposal_params`, since it
        evaluates a state only once.

    Returns:
      `root_fn(params, rng_key, state)` and `recurrent_fn`; see `make_recurrent_fn`. The embeddings
      are `Candidates`; `continuous_action` returns the action that a search chose.

    Raises:
      ValueError: if there are more than two players, the bounds are missing, not finite or in the
        wrong order, or a number is out of range. `root_fn` raises it if candidates are not finite.
        Under `jax.jit` this cannot be checked; they lead to values of NaN, which searches skip.

    Example:
      >>> env = jaxpgs.envs.Pendulum()
      >>> gaussian = jaxpgs.networks.SplitApplyFn(
      ...     torso=lambda params, x: x,
      ...     policy_head=lambda params, x: x @ params["policy_head"],  # means, then log widths
      ...     value_head=lambda params, x: x[:, 0],
      ... )
      >>> params = {"policy_head": jnp.zeros((3, 2))}
      >>> root_fn, recurrent_fn = jaxpgs.make_sampled_fns(env, gaussian, num_candidates=5)
      >>> states = jax.vmap(env.init)(jax.random.split(rng_key, 2))
      >>> root_fn(params, rng_key, states).prior_logits.shape
      (2, 5)
    """
    _check_arguments(env, num_candidates, discount)
    low, high = _bounds(env)
    step = step_with_keys(env)

    def draw(params: Params, rng_key: chex.PRNGKey, features: Any, state: Any) -> Candidates:
        source = params if proposal_params is None else proposal_params
        gaussian = _gaussian(apply_fn.policy_head(source, features))
        return _draw(*gaussian, rng_key, num_candidates, state)

    def policy(params: Params, features: Any, embedding: Candidates) -> chex.Array:
        mean, log_std = _gaussian(apply_fn.policy_head(params, features))
        # The prior over candidates is pi / beta, since they were already sampled from beta.
        logits = _log_density(embedding.actions, mean, log_std) - embedding.log_density
        over = embedding.state.terminated[:, None]
        return jnp.where(over, jnp.finfo(logits.dtype).min, logits)

    def root_fn(params: Params, rng_key: chex.PRNGKey, state: Any) -> mctx.RootFnOutput:
        features = apply_fn.torso(params, jax.vmap(env.observe)(state))
        candidates = draw(params, rng_key, features, state)
        check_finite("make_sampled_fns", "candidates of the policy head", candidates.actions)
        value = mask_value(apply_fn.value_head(params, features), state)
        logits = policy(params, features, candidates)
        return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=candidates)

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Candidates
    ) -> tuple[Expansion, Candidates]:
        draw_key, chance_key = jax.random.split(rng_key)
        before = embedding.state
        chosen = _in_units(embedding.actions[jnp.arange(len(action)), action], low, high)
        state = step(before, chosen, chance_key)
        features = apply_fn.torso(params, jax.vmap(env.observe)(state))
        mover = before.current_player
        reward = gain_of(env, mover, before, state)
        # Values are from the view of the player to move, who may be the other one from here on.
        sign = jnp.where(state.current_player == mover, discount, -discount)
        value = mask_value(apply_fn.value_head(params, features), state)
        after = draw(params, draw_key, features, state)
        going_on = jnp.where(state.terminated, 0.0, sign).astype(value.dtype)
        return Expansion(reward.astype(value.dtype), going_on, value, features), after

    recurrent_fn = SplitRecurrentFn(expand, policy, apply_fn.max_batch)
    if proposal_params is not None:
        return root_fn, recurrent_fn
    # The sampling may depend on adapting parameters, so the model must be called as a whole.
    return root_fn, lambda *inputs: recurrent_fn(*inputs)


def _check_arguments(env: Env, num_candidates: int, discount: float) -> None:
    """Raises `ValueError` for arguments of `make_sampled_fns` that are out of range."""
    check_players("make_sampled_fns", env)
    if num_candidates < 2:
        raise ValueError(f"num_candidates must be at least 2, got {num_candidates}.")
    if not 0 < discount <= 1:
        raise ValueError(f"discount must be above 0 and at most 1, got {discount}.")


def _draw(
    mean: chex.Array,
    log_std: chex.Array,
    rng_key: chex.PRNGKey,
    num_candidates: int,
    state: Any,
) -> Candidates:
    """Samples candidates from Gaussians `[B, D]`, which represent all actions (Sampled MuZero)."""
    noise = jax.random.normal(rng_key, (len(mean), num_candidates, mean.shape[-1]))
    # The policy learns through the density of the candidates, as in REINFORCE, not through samples.
    actions = jax.lax.stop_gradient(mean[:, None] + jnp.exp(log_std)[:, None] * noise)
    density = _log_density(actions, mean, log_std)
    return Candidates(state, actions, jax.lax.stop_gradient(density))


def continuous_action(env: Env, root: mctx.RootFnOutput, output: PolicyOutput) -> chex.Array:
    """Returns the actions `[B, D]` that a search chose, within the bounds.

    Args:
      env: the environment.
      root: the root of the search, from `make_sampled_fns`.
      output: the output of the search, from this library or mctx.

    Returns:
      Actions for `env.step`.

    Raises:
      ValueError: if an action is NaN or infinite. Under `jax.jit` such an action is returned.

    Example:
      >>> env = jaxpgs.envs.Pendulum()
      >>> gaussian = jaxpgs.networks.SplitApplyFn(
      ...     lambda params, x: x, lambda params, x: x @ params, lambda params, x: x[:, 0]
      ... )
      >>> root_fn, _ = jaxpgs.make_sampled_fns(env, gaussian, num_candidates=5, discount=0.9)
      >>> states = jax.vmap(env.init)(jax.random.split(rng_key, 2))
      >>> root = root_fn(jnp.zeros((3, 2)), rng_key, states)
      >>> search = jaxpgs.PolicyOutput(jnp.array([0, 4]), None, None)  # actions are numbers
      >>> jaxpgs.continuous_action(env, root, search).shape
      (2, 1)
    """
    rows = jnp.arange(len(output.action))
    chosen = root.embedding.actions[rows, output.action]
    check_finite("continuous_action", "actions", chosen)
    return _in_units(chosen, *_bounds(env))


def _bounds(env: Env) -> tuple[chex.Array, chex.Array]:
    bounds = getattr(env, "action_bounds", None)
    if bounds is None:
        raise ValueError(
            f"{type(env).__name__} has no action_bounds, the least and the greatest action; for "
            "discrete actions take make_root_fn and make_recurrent_fn."
        )
    low, high = (tuple(float(x) for x in bound) for bound in bounds)
    finite = all(math.isfinite(x) for x in (*low, *high))
    if (
        len(low) != len(high)
        or not finite
        or not all(a < b for a, b in zip(low, high, strict=True))
    ):
        raise ValueError(
            "action_bounds must be finite, the greatest action above the least in each of its "
            f"parts; got {low} and {high}."
        )
    return jnp.array(low, jnp.float32), jnp.array(high, jnp.float32)


def _in_units(action: chex.Array, low: chex.Array, high: chex.Array) -> chex.Array:
    # Actions in units of half the range, relative to its midpoint. The Gaussian is unbounded: clip.
    low, high = (jnp.broadcast_to(x, action.shape) for x in (low, high))
    return jnp.clip((low + high) / 2 + (high - low) / 2 * action, low, high)


def _gaussian(outputs: chex.Array) -> tuple[chex.Array, chex.Array]:
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return mean, log_std


def _log_density(actions: chex.Array, mean: chex.Array, log_std: chex.Array) -> chex.Array:
    """Returns `[B, A]` the log densities of actions `[B, A, D]`."""
    # Independent components: the log densities of the D parts add up.
    error = (actions - mean[:, None]) * jnp.exp(-log_std)[:, None]
    each = -0.5 * jnp.square(error) - log_std[:, None] - 0.5 * math.log(2 * math.pi)
    return jnp.sum(each, axis=-1)
