"""Glue between an environment, a network and a search: `root_fn` and `recurrent_fn`.

The pair follows mctx's contract, so the same two functions drive `mctx.muzero_policy` and every
search here. The environment may be one of ours or one of pgx's.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.base import Embedding, Expansion, Params, RecurrentFn, SplitRecurrentFn
from jaxpgs.networks.functional import ApplyFn, SplitApplyFn

RootFn = Callable[[Params, chex.PRNGKey, Embedding], mctx.RootFnOutput]


def make_root_fn(env: Any, apply_fn: ApplyFn) -> RootFn:
    """Makes the function that evaluates the states to search from.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx.
      apply_fn: the network, `(params, observation [B, ...]) -> (logits [B, A], value [B])`. The
        value is from the view of the player to move.

    Returns:
      `root_fn(params, rng_key, state)`, which takes a batch of B states and gives an
      `mctx.RootFnOutput`. The logits of illegal actions hold the lowest float; the value of a
      finished game is 0. The embedding is the state itself.
    """

    def root_fn(params: Params, rng_key: chex.PRNGKey, state: Embedding) -> mctx.RootFnOutput:
        del rng_key
        logits, value = apply_fn(params, jax.vmap(env.observe)(state))
        return mctx.RootFnOutput(
            prior_logits=mask_logits(env, logits, state),
            value=mask_value(value, state),
            embedding=state,
        )

    return root_fn


def make_recurrent_fn(env: Any, apply_fn: ApplyFn) -> RecurrentFn:
    """Makes the function that plays one action in each state and evaluates where it leads.

    The reward is the mover's. The discount is -1 where the other player moves next, 1 where the
    same player does, and 0 where the episode ended, so it is right at every depth, for one player
    and for two. Illegal actions are masked in the logits at every depth (mctx masks the root only).

    Args:
      env: an environment of `jaxpgs.envs` or of pgx.
      apply_fn: as in `make_root_fn`.

    Returns:
      `recurrent_fn(params, rng_key, action [B], embedding)`, giving
      `(mctx.RecurrentFnOutput, embedding)`. It is a `SplitRecurrentFn`, as the cached mode of a
      search that adapts needs, if `apply_fn` is a `networks.SplitApplyFn`, as those of
      `networks.functional` are for our modules.
    """

    def play(action: chex.Array, embedding: Embedding) -> tuple[chex.Array, chex.Array, Embedding]:
        mover = embedding.current_player
        state = jax.vmap(env.step)(embedding, action)
        reward = jnp.take_along_axis(state.rewards, mover[:, None], axis=-1)[:, 0]
        discount = jnp.where(state.current_player == mover, 1.0, -1.0)
        return reward, jnp.where(state.terminated, 0.0, discount), state

    def recurrent_fn(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[mctx.RecurrentFnOutput, Embedding]:
        del rng_key
        reward, discount, state = play(action, embedding)
        logits, value = apply_fn(params, jax.vmap(env.observe)(state))
        output = mctx.RecurrentFnOutput(
            reward=reward.astype(value.dtype),
            discount=discount.astype(value.dtype),
            prior_logits=mask_logits(env, logits, state),
            value=mask_value(value, state),
        )
        return output, state

    if not isinstance(apply_fn, SplitApplyFn):
        return recurrent_fn

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[Expansion, Embedding]:
        del rng_key
        reward, discount, state = play(action, embedding)
        features = apply_fn.torso(params, jax.vmap(env.observe)(state))
        value = apply_fn.value_head(params, features)
        reward, discount = reward.astype(value.dtype), discount.astype(value.dtype)
        return Expansion(reward, discount, mask_value(value, state), features), state

    def policy(params: Params, features: Any, embedding: Embedding) -> chex.Array:
        return mask_logits(env, apply_fn.policy_head(params, features), embedding)

    return SplitRecurrentFn(expand, policy, apply_fn.max_batch)


def mask_logits(env: Any, logits: chex.Array, state: Embedding) -> chex.Array:
    """Turns a network's logits into those of the actions, the illegal ones left out.

    Args:
      env: the environment. If it has `policy_logits`, they pass through it, as where the network
        sees the board in another frame.
      logits: `[B, A]` what the network says.
      state: `[B]` states.

    Returns:
      `[B, A]` logits; illegal actions, and all of a finished game, hold the lowest float.
    """
    if hasattr(env, "policy_logits"):
        logits = jax.vmap(env.policy_logits)(state, logits)
    # pgx marks every action legal in a finished game.
    legal = state.legal_action_mask & ~state.terminated[:, None]
    return jnp.where(legal, logits, jnp.finfo(logits.dtype).min)


def mask_value(value: chex.Array, state: Embedding) -> chex.Array:
    """Returns the values `[B]` of `[B]` states, 0 where the game is over."""
    return jnp.where(state.terminated, 0.0, value)
