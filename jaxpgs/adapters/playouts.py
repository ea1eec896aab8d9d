"""Playouts: values of positions from games that a policy plays to their end.

They are for searches without a value network, such as UCT.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.adapters.environments import (
    LONGEST_GAME,
    RootFn,
    gain_of,
    make_recurrent_fn,
    make_root_fn,
    mask_logits,
    step_with_keys,
)
from jaxpgs.base import Embedding, Env, Expansion, Params, RecurrentFn, SplitRecurrentFn
from jaxpgs.networks.functional import ApplyFn, SplitApplyFn
from jaxpgs.search import categorical, sample_inverse_cdf

# (params, rng_key, state [B]) -> what the player to move earns [B]
Playout = Callable[[Params, chex.PRNGKey, Embedding], chex.Array]


def make_playout_fns(
    env: Env,
    *,
    prior: ApplyFn | None = None,
    playout: ApplyFn | None = None,
    playout_params: Params | None = None,
    max_moves: int | None = None,
) -> tuple[RootFn, RecurrentFn]:
    """Makes `root_fn` and `recurrent_fn` whose values are playouts instead of a network's values.

    Without a prior and a playout policy, and with `ucb1` and `batched_mcts_policy`, this is UCT.
    With both it is the biased tree search of Soemers et al. 2019, section V-A; see
    `networks.offset_policy` for two policies of one network.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx.
      prior: the network whose policy is the prior of all states; uniform over all legal actions if
        None.
      playout: the network whose policy plays the games to their end; uniform if None.
      playout_params: the parameters of `playout`; those of the search if None. A search that adapts
        the prior and keeps a tree needs them, since the values that it keeps must not depend on the
        adapting parameters.
      max_moves: moves after which a playout ends with the reward so far, which is a draw if only
        the last move is rewarded; None is 4,096, so that games without an end do not run forever.

    Returns:
      `root_fn` and `recurrent_fn` as `make_root_fn` and `make_recurrent_fn` make them. Each value
      is the result of one game, sampled with their key; finished games have 0.

    Raises:
      ValueError: if `max_moves` is below 1.

    Example:
      >>> root_fn, recurrent_fn = jaxpgs.make_playout_fns(env)
      >>> root_fn((), rng_key, states).value  # of one random game each
      Array([-1.,  1.], dtype=float32)
    """
    play_by = make_playout(env, playout, max_moves)

    def play(params: Params, rng_key: chex.PRNGKey, state: Embedding) -> chex.Array:
        return play_by(params if playout_params is None else playout_params, rng_key, state)

    # Priors and rewards come from the usual functions; only their values are replaced.
    policy = _without_value(env, prior)
    root_prior, recurrent_prior = make_root_fn(env, policy), make_recurrent_fn(env, policy)

    def root_fn(params: Params, rng_key: chex.PRNGKey, state: Embedding) -> mctx.RootFnOutput:
        root = root_prior(params, rng_key, state)
        return root.replace(value=play(params, rng_key, state))

    def recurrent_fn(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[mctx.RecurrentFnOutput, Embedding]:
        output, state = recurrent_prior(params, rng_key, action, embedding)
        return output.replace(value=play(params, rng_key, state)), state

    if not isinstance(recurrent_prior, SplitRecurrentFn):
        return root_fn, recurrent_fn

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[Expansion, Embedding]:
        expansion, state = recurrent_prior.expand(params, rng_key, action, embedding)
        return expansion._replace(value=play(params, rng_key, state)), state

    return root_fn, dataclasses.replace(recurrent_prior, expand=expand)


def make_playout(
    env: Env, apply_fn: ApplyFn | None = None, max_moves: int | None = None
) -> Playout:
    """Makes the function that plays positions to their end by a policy.

    Args:
      env: the environment.
      apply_fn: the network whose policy draws the actions; uniform over the legal ones if None.
      max_moves: moves after which a game counts as a draw; None is 4,096.

    Returns:
      `playout(params, rng_key, state [B]) -> [B]`, what the player to move earns from there on.

    Raises:
      ValueError: if `max_moves` is below 1.
    """
    if max_moves is not None and max_moves < 1:
        raise ValueError(f"max_moves must be at least 1, got {max_moves}.")
    limit = LONGEST_GAME if max_moves is None else max_moves
    logits_of = _without_value(env, apply_fn)
    step = step_with_keys(env)

    def playout(params: Params, rng_key: chex.PRNGKey, state: Embedding) -> chex.Array:
        # All rewards count from the view of the player to move at the start.
        player = state.current_player

        def going_on(carry: tuple) -> chex.Array:
            moves, state, _ = carry
            return jnp.any(~state.terminated) & (moves < limit)

        def move(carry: tuple) -> tuple:
            moves, state, earned = carry
            logits, _ = logits_of(params, jax.vmap(env.observe)(state))
            policy = categorical(mask_logits(env, logits, state))
            # Keys are derived from the number of the move, so no key is carried in the loop.
            action_key, chance_key = jax.random.split(jax.random.fold_in(rng_key, moves))
            number = jax.random.uniform(action_key, earned.shape)
            action = sample_inverse_cdf(policy.cumulative, policy.last, number)
            after = step(state, action, chance_key)
            reward = gain_of(env, player, state, after)
            # Finished games are stepped with the rest of the batch, but get no reward.
            earned += jnp.where(state.terminated, 0.0, reward).astype(earned.dtype)
            return moves + 1, after, earned

        start = (jnp.int32(0), state, jnp.zeros(len(player), jnp.float32))
        return jax.lax.while_loop(going_on, move, start)[2]

    return playout


def _without_value(env: Env, apply_fn: ApplyFn | None) -> ApplyFn:
    """Returns a network's policy with values of 0, without computing the value if possible."""
    if isinstance(apply_fn, SplitApplyFn):
        return dataclasses.replace(
            apply_fn, value_head=lambda params, features: jnp.zeros(_length(features), jnp.float32)
        )

    def policy(params: Params, observation: chex.Array) -> tuple[chex.Array, chex.Array]:
        value = jnp.zeros(_length(observation), jnp.float32)
        if apply_fn is None:
            return jnp.zeros((len(value), env.num_actions), jnp.float32), value
        return apply_fn(params, observation)[0], value

    return policy


def _length(batch: Any) -> int:
    return len(jax.tree.leaves(batch)[0])
