"""Continuous actions: searches over actions that a Gaussian policy draws for every state.

Each state comes with A candidates, drawn from the policy when the state is made, and a search
chooses among their numbers (Hubert et al. 2021, for tree search). All searches take them as they
are. The policy's logits of the candidates are how much likelier it finds them than the policy that
drew them: all alike at first, so that the candidates stand for the policy, and PGS may adapt its
mean and its width from what became of them.
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
      actions: `[B, A, D]` the candidates as drawn; beyond the bounds they are played as the bound.
      log_density: `[B, A]` of the policy that drew them.
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
      apply_fn: the network, in parts. Its `policy_head` returns `[B, 2 D]`: the means, in units of
        half the distance between the bounds from their middle, and the logarithms of the standard
        deviations in these units.
      num_candidates: A, at least 2.
      discount: what a later reward is multiplied by, above 0 to 1.
      proposal_params: the parameters of the policy that draws candidates; those of the search if
        None, so that candidates below the root follow what PGS adapts. A search that adapts and
        keeps a tree needs them, as it evaluates a state once; others take `mode="rollouts"`.

    Returns:
      `root_fn(params, rng_key, state)` and `recurrent_fn`; see `make_recurrent_fn`. The embeddings
      are `Candidates`; `continuous_action` tells the action that a search chose.

    Raises:
      ValueError: if there are more than two players, the bounds are missing, not finite or in the
        wrong order, or a number is out of range; from `root_fn` if candidates are not finite. Under
        `jax.jit`, where nobody can look, they lead to values of NaN, which no search learns from.

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
        # The prior over candidates is pi / beta: the draw has weighed them by beta already.
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
    # What draws may depend on what adapts: to be called as a whole, as rollouts do.
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
    """Draws candidates from Gaussians `[B, D]`; as in Sampled MuZero they stand for all actions."""
    noise = jax.random.normal(rng_key, (len(mean), num_candidates, mean.shape[-1]))
    # The policy learns by the density of the candidates, as in REINFORCE, not through the draw.
    actions = jax.lax.stop_gradient(mean[:, None] + jnp.exp(log_std)[:, None] * noise)
    density = _log_density(actions, mean, log_std)
    return Candidates(state, actions, jax.lax.stop_gradient(density))


def continuous_action(env: Env, root: mctx.RootFnOutput, output: PolicyOutput) -> chex.Array:
    """Returns the actions `[B, D]` that a search chose, within the bounds.

    Args:
      env: the environment.
      root: what the search began with, of `make_sampled_fns`.
      output: what the search returned, of ours or of mctx.

    Returns:
      Actions for `env.step`.

    Raises:
      ValueError: if an action is NaN or infinite; not under `jax.jit`, where it stays what it is.

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
    # Actions in units of half the range, from its middle; the Gaussian knows no bounds, so clip.
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
