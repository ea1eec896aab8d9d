"""Rollouts: how a search plays a position to the end of the game to estimate its value."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.adapters.environments import mask_logits
from jaxpgs.arrays import as_logits
from jaxpgs.base import Env, Params
from jaxpgs.envs.samegame.game import SameGame
from jaxpgs.networks.functional import ApplyFn, SplitApplyFn
from jaxpgs.puzzles.samegame_playouts import recorded_playout
from jaxpgs.search import categorical, sample_inverse_cdf

# (params, rng_keys [B], state [B], logits [B, A]) -> (return [B], moves [B, L], -1 after the last)
# A rollout that stops before the game's end returns the rewards so far, and no moves: -1 only.
Rollout = Callable[
    [Params, chex.PRNGKey, Any, chex.Array],
    tuple[chex.Array, chex.Array],
]


def longest_game(env: Env, max_moves: int | None = None) -> int:
    """Returns L, the maximum length of a game: `max_moves`, or half the actions, at least 1.

    Half the number of actions is enough if each move takes two cells or more, as in SameGame.
    """
    return max_moves or max(env.num_actions // 2, 1)


def uniform_logits(env: Env, state: Any) -> chex.Array:
    """Returns logits `[B, A]` of a policy uniform over the legal actions of `[B]` states.

    If several actions are equally good, a search takes the one with the lowest index. Seify 2020,
    section 4.3, found the leftmost, then lowest group to be a better choice. So on boards the
    logits slightly prefer this group, by too little to override a difference in returns.
    """
    logits = jnp.zeros(env.num_actions)
    if hasattr(env, "height") and hasattr(env, "width"):
        # Leftmost first; within a column, lowest first.
        row, column = jnp.divmod(jnp.arange(env.num_actions), env.width)
        logits = -1e-5 * (column * env.height + env.height - 1 - row).astype(jnp.float32)
    legal = state.legal_action_mask & ~state.terminated[:, None]
    return jnp.where(legal, logits[None], jnp.finfo(logits.dtype).min)


def network_logits(env: Env, apply_fn: ApplyFn) -> Callable[[Params, Any], chex.Array]:
    """Returns `(params, state) -> logits [B, A]` of a network's policy over the legal actions.

    Args:
      env: the game.
      apply_fn: the network; the value of a `SplitApplyFn` is not computed.

    Returns:
      The function.
    """

    def evaluate(params: Params, state: Any) -> chex.Array:
        observation = jax.vmap(env.observe)(state)
        if isinstance(apply_fn, SplitApplyFn):
            # With a split network the value head is not evaluated, not even outside of `jax.jit`.
            logits = apply_fn.policy_head(params, apply_fn.torso(params, observation))
        else:
            logits, _ = apply_fn(params, observation)
        return mask_logits(env, logits, state)

    return evaluate


def random_rollouts(env: Env, *, tabu: bool = False, max_moves: int | None = None) -> Rollout:
    """Uniformly random play to the end (Seify 2020, sections 4.3 and 5.1).

    Args:
      env: the game. SameGame is played by its own fast loop, other games by their `step`.
      tabu: whether to keep the most frequent colour for last; only for SameGame.
      max_moves: for other games, the maximum number of moves, as in `start_episodes`. A rollout
        stops there and returns the sum of the rewards so far, and no moves.

    Returns:
      A rollout.

    Example:
      >>> rollout = jaxpgs.puzzles.random_rollouts(puzzle, tabu=True)
    """
    if not isinstance(env, SameGame):
        return _sampled(env, lambda params, state: uniform_logits(env, state), max_moves)

    def rollout(
        params: Params, rng_keys: chex.PRNGKey, state: Any, logits: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        del params, logits
        # Under `jax.vmap` all games run in one loop; see `recorded_playout`.
        ends, moves = jax.vmap(lambda k, s: recorded_playout(env, k, s, tabu=tabu))(rng_keys, state)
        return ends.score, moves

    return rollout


def informed_rollouts(
    env: Env, apply_fn: ApplyFn, *, greedy: bool = False, max_moves: int | None = None
) -> Rollout:
    """Play to the end with actions drawn from the network's policy (Seify 2020, section 5.1).

    Every move takes one network call for all positions.

    Args:
      env: the game.
      apply_fn: the network, as in `make_root_fn`; the value of a `SplitApplyFn` is not computed.
      greedy: whether to take the most likely action instead of drawing one.
      max_moves: as in `random_rollouts`.

    Returns:
      A rollout.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
      >>> rollout = jaxpgs.puzzles.informed_rollouts(puzzle, apply_fn)
    """

    return _sampled(env, network_logits(env, apply_fn), max_moves, greedy)


def first_by_prior(env: Env, rollout: Rollout) -> Rollout:
    """Begins a rollout with the most likely action of the prior (Seify 2020, section 5.1).

    Args:
      env: the game.
      rollout: plays the rest of the game.

    Returns:
      A rollout.

    Example:
      >>> rollout = jaxpgs.puzzles.random_rollouts(puzzle)
      >>> rollout = jaxpgs.puzzles.first_by_prior(puzzle, rollout)
    """

    def begin(
        params: Params, rng_keys: chex.PRNGKey, state: Any, logits: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        action = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        after = jax.vmap(env.step)(state, action)
        score, moves = rollout(params, rng_keys, after, logits)
        # The output of a rollout from a finished game is ignored.
        moves = jnp.where(after.terminated[:, None], -1, moves.astype(jnp.int32))
        # Without the rest of the game the first move is not proposed either.
        first = jnp.where(after.terminated | (moves[:, 0] >= 0), action, -1)
        moves = jnp.concatenate([first[:, None], moves], axis=1)
        return after.rewards[:, 0] + jnp.where(after.terminated, 0.0, score), moves

    return begin


def _sampled(
    env: Env,
    evaluate: Callable[[Params, Any], chex.Array],
    max_moves: int | None,
    greedy: bool = False,
) -> Rollout:
    """Makes a rollout that draws every action from a policy `(params, state) -> logits`."""

    def rollout(
        params: Params, rng_keys: chex.PRNGKey, state: Any, logits: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        del logits
        length = longest_game(env, max_moves)

        def body(carry: tuple) -> tuple:
            t, state, score, moves = carry
            logits = as_logits(evaluate(params, state))
            policy = categorical(logits)
            # A number for each board from its own key, so that games do not depend on the batch.
            number = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, t)))(rng_keys)
            action = sample_inverse_cdf(policy.cumulative, policy.last, number)
            if greedy:
                action = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            playing = ~state.terminated
            after = jax.vmap(env.step)(state, action)
            score = score + jnp.where(playing, after.rewards[:, 0], 0.0)
            moves = moves.at[:, t].set(jnp.where(playing, action, -1))
            return t + 1, after, score, moves

        batch_size = len(state.terminated)
        carry = (
            jnp.int32(0),
            state,
            jnp.zeros(batch_size, jnp.float32),
            jnp.full((batch_size, length), -1, jnp.int32),
        )
        # Runs until all games are over; finished games earn nothing more and record -1.
        _, state, score, moves = jax.lax.while_loop(
            lambda carry: (carry[0] < length) & jnp.any(~carry[1].terminated), body, carry
        )
        return score, jnp.where(state.terminated[:, None], moves, -1)

    return rollout
