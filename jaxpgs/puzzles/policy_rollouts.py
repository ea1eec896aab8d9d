"""Whole games without a search, played with random moves or with a network's policy."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.arrays import as_logits, broadcast_keys
from jaxpgs.base import Env, Params
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.puzzles.episodes import Episode, play_move, start_episodes
from jaxpgs.puzzles.rollouts import network_logits, uniform_logits
from jaxpgs.puzzles.solving import Solution, record_games


def random_games(
    env: Env, rng_key: chex.PRNGKey, state: Any, *, max_moves: int | None = None
) -> Solution:
    """Plays B games with uniformly random moves, for use with `judged`.

    Args:
      env: a game of one player.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      max_moves: as in `start_episodes`.

    Returns:
      The solution. `searches` holds the positions and moves of the games; `value` is the sum of the
      rewards from there on.

    Example:
      >>> solution = jaxpgs.puzzles.random_games(puzzle, rng_key, boards)
      >>> solution.searches.value.shape  # positions of each game
      (4, 2)
    """
    uniform = lambda state: uniform_logits(env, state)  # noqa: E731
    return _play(env, rng_key, state, uniform, False, max_moves)


def policy_games(
    env: Env,
    apply_fn: ApplyFn,
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    *,
    greedy: bool = True,
    max_moves: int | None = None,
) -> Solution:
    """Plays B games with a network's policy, without a search.

    Args:
      env: a game of one player.
      apply_fn: the network, as in `make_root_fn`; the value of a `SplitApplyFn` is not computed.
      params: its parameters.
      rng_key: one key, or `[B]` keys, one per board; consumed. It has no effect if `greedy`.
      state: `[B]` positions.
      greedy: whether to take the most likely action instead of drawing one.
      max_moves: as in `start_episodes`.

    Returns:
      The solution, as returned by `random_games`.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
      >>> play = functools.partial(jaxpgs.puzzles.policy_games, puzzle, apply_fn)
      >>> jax.jit(play)(params, rng_key, boards).score.shape
      (2,)
    """
    evaluate = network_logits(env, apply_fn)
    policy = lambda state: as_logits(evaluate(params, state))  # noqa: E731
    return _play(env, rng_key, state, policy, greedy, max_moves)


def _play(
    env: Env,
    rng_key: chex.PRNGKey,
    state: Any,
    policy: Callable[[Any], chex.Array],
    greedy: bool,
    max_moves: int | None,
) -> Solution:
    """Plays games with a policy `state [B] -> logits [B, A]` over the legal actions."""
    start = start_episodes(env, state, max_moves)
    batch_size, length = start.moves.shape
    keys = broadcast_keys(rng_key, batch_size)

    def body(episode: Episode, step: chex.Array) -> tuple[Episode, tuple]:
        logits = policy(episode.state)
        if greedy:
            action = jnp.argmax(logits, axis=-1)
        else:
            # A key for each board, so that a game does not depend on the others in its batch.
            own = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
            action = jax.vmap(jax.random.categorical)(own, logits)
        action = action.astype(jnp.int32)
        after, _ = play_move(env, episode, action)
        return after, (episode.state, action, episode.score)

    # A scan over the maximum length instead of a while loop, as every position is recorded.
    end, played = jax.lax.scan(body, start, jnp.arange(length))
    return record_games(end, *played)
