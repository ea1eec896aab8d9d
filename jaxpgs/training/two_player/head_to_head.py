"""A match between two sets of weights, jitted once, to monitor a training run."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.adapters.environments import (
    LONGEST_GAME,
    check_players,
    gain_of,
    make_root_fn,
    step_with_keys,
)
from jaxpgs.base import Env, Params
from jaxpgs.networks.functional import ApplyFn


def head_to_head(
    env: Env, apply_fn: ApplyFn, first: Params, second: Params, *, max_moves: int | None = None
) -> chex.Array:
    """Plays every legal first move with both colours; each side plays its most likely action.

    `jaxpgs.evaluation.play_match` plays any two players. This function takes weights as arguments,
    so that it is not recompiled when they change.

    Args:
      env: a two-player environment with a deterministic initial state.
      apply_fn: the network.
      first: one side's parameters.
      second: the other's.
      max_moves: moves after which a game counts as a draw; None is 4,096.

    Returns:
      `[]` the first side's share of the points, from 0 to 1; draws count half. NaN if the game is
      not zero-sum.

    Raises:
      ValueError: if the game does not have two players.
    """
    check_players("head_to_head", env, (2,), "One network plays against the other.")
    limit = LONGEST_GAME if max_moves is None else max_moves
    root_fn = make_root_fn(env, apply_fn)
    key = jax.random.key(0)
    # [2 * A]: each first move by each side. Illegal ones are played too, as shapes are fixed, and
    # left out of the result.
    actions = jnp.tile(jnp.arange(env.num_actions), 2)
    side = jnp.repeat(jnp.arange(2), env.num_actions)  # the player that `first` is
    start = jax.vmap(lambda _: env.init(key))(actions)
    legal = start.legal_action_mask[jnp.arange(len(actions)), actions]

    step_games = step_with_keys(env)

    def step(
        state: Any, action: chex.Array, score: chex.Array, number: chex.Array
    ) -> tuple[Any, chex.Array]:
        after = step_games(state, action, jax.random.fold_in(key, number))
        gain = gain_of(env, side, state, after).astype(score.dtype)
        # A finished game is stepped on with the others, and its later rewards do not count.
        return after, score + jnp.where(state.terminated, 0.0, gain)

    # The player to move differs between games, so both networks evaluate all positions.
    def ply(carry: tuple[Any, chex.Array, chex.Array]) -> tuple[Any, chex.Array, chex.Array]:
        state, score, number = carry
        one, other = (root_fn(params, key, state).prior_logits for params in (first, second))
        mine = (state.current_player == side)[:, None]
        chosen = jnp.where(mine, one, other)
        chosen = jnp.where(state.legal_action_mask, chosen, -jnp.inf)
        return *step(state, jnp.argmax(chosen, axis=-1), score, number), number + 1

    one = jnp.int32(1)
    carry = (*step(start, actions, jnp.zeros(len(actions)), one), one + 1)
    state, score, _ = jax.lax.while_loop(
        lambda carry: jnp.any(legal & ~carry[0].terminated) & (carry[2] <= limit), ply, carry
    )
    # Games that reached the limit are draws.
    points = (jnp.where(state.terminated, jnp.sign(score), 0.0) + 1) / 2
    return jnp.mean(points, where=legal)


def make_compare(
    env: Env, apply_fn: ApplyFn, max_moves: int | None = None
) -> tuple[Callable[[Params, Params], chex.Array], int]:
    """Makes a jitted `head_to_head`.

    Args:
      env: as in `head_to_head`.
      apply_fn: the network.
      max_moves: as in `head_to_head`.

    Returns:
      `(params, params) -> []`, the first side's share of the points, and the number of openings,
      each of which is played with both colours.
    """
    compare = jax.jit(
        lambda first, second: head_to_head(env, apply_fn, first, second, max_moves=max_moves)
    )
    return compare, int(jnp.sum(env.init(jax.random.key(0)).legal_action_mask))
