"""Playouts: values of positions from games that a policy plays to their end.

What a search without a value network needs, such as UCT.
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
    """Makes what a search needs whose values are playouts, in place of a network's.

    With neither prior nor playout policy, `ucb1` and `batched_mcts_policy` this is UCT. With both
    it is the biased tree search of Soemers et al. 2019, section V-A; see `networks.offset_policy`
    for two policies of one network.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx.
      prior: the network whose policy is the prior of all states; uniform over all legal actions if
        None.
      playout: the network whose policy plays the games to their end; uniform if None.
      playout_params: its parameters; those of the search if None. A search that adapts the prior
        and keeps a tree needs them, as what it remembers must not depend on what adapts.
      max_moves: moves of a playout after which it counts as a draw, or as what was earned so far;
        None is 4,096, so that games without an end do not run for ever.

    Returns:
      `root_fn` and `recurrent_fn` as `make_root_fn` and `make_recurrent_fn` make them. Each value
      is that of one game, drawn by the key that they are given; finished games have 0.

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
        # All that is earned counts for the player to move at the start, whoever moves later.
        player = state.current_player

        def going_on(carry: tuple) -> chex.Array:
            moves, state, _ = carry
            return jnp.any(~state.terminated) & (moves < limit)

        def move(carry: tuple) -> tuple:
            moves, state, earned = carry
            logits, _ = logits_of(params, jax.vmap(env.observe)(state))
            policy = categorical(mask_logits(env, logits, state))
            # Keys follow from the number of the move, so none has to be carried along.
            action_key, chance_key = jax.random.split(jax.random.fold_in(rng_key, moves))
            number = jax.random.uniform(action_key, earned.shape)
            action = sample_inverse_cdf(policy.cumulative, policy.last, number)
            after = step(state, action, chance_key)
            reward = gain_of(env, player, state, after)
            # Finished games step on with the others of the batch, but earn nothing.
            earned += jnp.where(state.terminated, 0.0, reward).astype(earned.dtype)
            return moves + 1, after, earned

        start = (jnp.int32(0), state, jnp.zeros(len(player), jnp.float32))
        return jax.lax.while_loop(going_on, move, start)[2]

    return playout


def _without_value(env: Env, apply_fn: ApplyFn | None) -> ApplyFn:
    """Returns a network's policy with values of 0, computed without the value where that can be."""
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
