"""An expert that knows nothing but the rules: random games, and what others earn from there."""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import broadcast_keys
from jaxpgs.puzzles.episodes import Episode, play_move, start_episodes
from jaxpgs.puzzles.rollouts import random_rollouts
from jaxpgs.puzzles.solving import Searches, Solution


def random_values(env: Any, rng_key: chex.PRNGKey, state: Any, num_simulations: int) -> Solution:
    """Plays B games at random, and values each position by the mean of further random games.

    An expert for `training.puzzle_iteration` that knows nothing but the rules. Its positions are
    good and bad as chance has it, so a network learns to tell them apart; one that saw only the
    positions of good games takes all for good.

    Args:
      env: a game of one player.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, random games from each position.

    Returns:
      The solution. `searches` holds the positions of the random games, the mean of what N games
      earned from there as `value`, and the first move of the best of them as `action`.

    Raises:
      ValueError: if `num_simulations` is below 1.

    Example:
      >>> solution = jaxpgs.puzzles.random_values(puzzle, rng_key, boards, 4)
      >>> solution.searches.value.shape  # positions of each game
      (4, 2)
    """
    if num_simulations < 1:
        raise ValueError(f"num_simulations must be at least 1, got {num_simulations}.")
    rollout = random_rollouts(env)
    start = start_episodes(env, state)
    batch_size, length = start.moves.shape
    keys = broadcast_keys(rng_key, batch_size)

    def body(episode: Episode, step: chex.Array) -> tuple[Episode, Searches]:
        own = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, step), num_simulations))
        many = jax.tree.map(lambda x: jnp.repeat(x, num_simulations, axis=0), episode.state)
        no_logits = jnp.zeros((batch_size * num_simulations, env.num_actions))
        earned, moves = rollout(None, own(keys).reshape(-1), many, no_logits)
        earned = earned.reshape(batch_size, num_simulations)
        first = moves[:, 0].reshape(batch_size, num_simulations)
        place = jnp.argmax(earned, axis=1)[:, None]
        playing = ~episode.state.terminated
        # The first of the games is as random as any, so the game goes on with its move.
        after, _ = play_move(env, episode, first[:, 0])
        found = Searches(
            state=episode.state,
            action=jnp.where(playing, jnp.take_along_axis(first, place, axis=1)[:, 0], 0),
            value=jnp.where(playing, jnp.mean(earned, axis=1), 0.0),
            score=jnp.where(playing, episode.score, 0.0),
            searched=playing,
            best=jnp.zeros(batch_size),
            num_evaluations=jnp.zeros(batch_size, jnp.int32),
        )
        return after, found

    end, searches = jax.lax.scan(body, start, jnp.arange(length))
    return Solution(
        score=end.total,
        moves=end.moves,
        num_moves=end.num_played,
        played=jnp.where(state.terminated, -jnp.inf, end.total),
        searches=searches._replace(best=jnp.broadcast_to(end.total, searches.best.shape)),
    )
