"""Games of a learner against opponents, and the advantages of the learner's moves.

Only the learner's moves are transitions. The opponent's reply is part of the environment, and a
transition leads from one position with the learner to move to the next one. So all values are from
the learner's view, and no sign changes are needed.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.adapters.environments import (
    RootFn,
    action_in_frame,
    chance_key,
    gain_of,
    make_root_fn,
    step_with_keys,
)
from jaxpgs.base import Env, Params
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.training.policy_gradient.past_selves import Opponents
from jaxpgs.training.runtime import sharding
from jaxpgs.training.two_player.selfplay import Start, init_games


class LearnerGames(NamedTuple):
    """G games in play.

    Attributes:
      state: the positions, none finished.
      learner: `[G]` int32, the player whom the learner plays.
      moved_first: `[G]` bool, whether the learner was to move at the start.
      move: `[G]` int32, moves made so far, including random ones at the start.
      score: `[G]` what the learner has gained from the opponent so far.
    """

    state: Any
    learner: chex.Array
    moved_first: chex.Array
    move: chex.Array
    score: chex.Array


class Rollout(NamedTuple):
    """S steps of G games; a step is a move of the learner and the opponent's reply.

    Attributes:
      observation: `[S, G, *observation_shape]`.
      legal: `[S, G, A]` bool, in the network's frame.
      action: `[S, G]` int32, the learner's action in the network's frame.
      log_prob: `[S, G]` its log probability under the policy that played.
      value: `[S, G]` the network's value.
      mine: `[S, G]` bool, whether the learner was to move. The fields above are valid only where it
        was: any other step is a reply alone.
      reward: `[S, G]` what the learner gained in the step, by its own move and the reply. A reward
        paid to the opponent alone counts as a loss.
      finished: `[S, G]` bool, whether the game ended in the step.
    """

    observation: chex.Array
    legal: chex.Array
    action: chex.Array
    log_prob: chex.Array
    value: chex.Array
    mine: chex.Array
    reward: chex.Array
    finished: chex.Array


class Result(NamedTuple):
    """The standing of games after each step, `[S, G]`; it is a result where they are finished.

    Attributes:
      score: what the learner gained from the opponent in the whole game.
      length: int32, moves of the game.
      moved_first: bool, whether the learner was to move at the start.
    """

    score: chex.Array
    length: chex.Array
    moved_first: chex.Array


def start(
    env: Env, rng_key: chex.PRNGKey, moves_first: chex.Array, *, max_random_moves: int = 0
) -> LearnerGames:
    """Starts games.

    Args:
      env: an environment of two players.
      rng_key: a key, consumed.
      moves_first: `[G]` bool, whether the learner moves first.
      max_random_moves: the maximum number of random moves before the start; see
        `selfplay.init_games`.

    Returns:
      G games.
    """
    games = init_games(env, rng_key, len(moves_first), Start(max_random_moves))
    mover = games.state.current_player
    return LearnerGames(
        state=games.state,
        learner=jnp.where(moves_first, mover, 1 - mover),
        moved_first=moves_first,
        move=games.move,
        score=jnp.zeros(len(moves_first), jnp.float32),
    )


def play(
    env: Env,
    apply_fn: ApplyFn,
    params: Params,
    opponents: Opponents,
    rng_key: chex.PRNGKey,
    games: LearnerGames,
    num_steps: int,
    *,
    max_random_moves: int = 0,
    max_moves: int | None = None,
) -> tuple[LearnerGames, Rollout, chex.Array, Result]:
    """Continues G games; both sides draw their moves from their policies.

    A finished game is followed at once by a new one, in which the learner plays the other side. A
    game in which the opponent moves first begins with a step of the opponent alone. So players may
    move in any order, as long as they do not move simultaneously.

    Args:
      env: an environment of two players.
      apply_fn: the network, with population statistics.
      params: the learner's parameters.
      opponents: C opponents, C a divisor of G: the first plays the first G/C games, and so on.
      rng_key: a key, consumed.
      games: the games; `start` makes them.
      num_steps: S.
      max_random_moves: the maximum number of random moves before a new game's start.
      max_moves: as in `selfplay.play`; moves of both sides count.

    Returns:
      The games to continue with; the rollout; `[G]` the network's values of the positions after it,
      from the learner's view; and the standings after each step.
    """
    root_fn = make_root_fn(env, apply_fn)
    reply = functools.partial(_reply, root_fn, opponents)
    setting = _Setting(env, root_fn, params, reply, max_random_moves, max_moves)
    games, (rollout, result) = jax.lax.scan(
        functools.partial(_step, setting), games, jax.random.split(rng_key, num_steps)
    )
    # The return after the last step is bootstrapped with the network's value.
    value = root_fn(params, rng_key, games.state).value.astype(jnp.float32)
    # A value is that of the player to move, and the game is zero-sum.
    last = jnp.where(games.state.current_player == games.learner, value, -value)
    return games, rollout, last, result


class _Setting(NamedTuple):
    """The constants of a rollout; `reply` is `(rng_key, state) -> action`."""

    env: Env
    root_fn: RootFn
    params: Params
    reply: Callable[[chex.PRNGKey, Any], chex.Array]
    max_random_moves: int
    max_moves: int | None


def _reply(root_fn: RootFn, opponents: Opponents, rng_key: chex.PRNGKey, state: Any) -> chex.Array:
    """Draws the opponents' actions `[G]`."""

    def one(inputs: tuple[Params, chex.Array, Any]) -> chex.Array:
        theirs, sharpness, state = inputs
        # Sharpness 0 makes all logits equal: uniformly random play with the same program.
        return root_fn(theirs, rng_key, state).prior_logits * sharpness

    # [C, G / C, ...]: neighbouring games have the same opponent.
    groups = jax.tree.map(lambda x: x.reshape(len(opponents.age), -1, *x.shape[1:]), state)
    # One opponent at a time: a convolution with one kernel per game is many times slower.
    logits = jax.lax.map(one, (opponents.params, opponents.sharpness, groups))
    logits = logits.reshape(-1, logits.shape[-1])
    # Masked again: sharpness 0 turned the lowest float of illegal actions into 0 as well.
    logits = jnp.where(state.legal_action_mask, logits, jnp.finfo(logits.dtype).min)
    return sharding.own_categorical(rng_key, logits)


def _step(
    setting: _Setting, games: LearnerGames, rng_key: chex.PRNGKey
) -> tuple[LearnerGames, tuple[Rollout, Result]]:
    """Makes a move of the learner and the reply in every game; games that end are restarted."""
    act_key, reply_key, start_key = jax.random.split(rng_key, 3)
    env, state, learner = setting.env, games.state, games.learner
    # The learner's move, which is omitted where a game begins with the opponent.
    mine = state.current_player == learner
    root = setting.root_fn(setting.params, act_key, state)
    logits = root.prior_logits.astype(jnp.float32)
    action = sharding.own_categorical(act_key, logits)
    log_prob = jax.nn.log_softmax(logits)[jnp.arange(len(action)), action]
    after, gained = _move(env, learner, state, action, mine, act_key)
    # The opponent's reply, unless the game is over or the learner moves again. This gain is the
    # learner's as well: the sum of both is the reward of one transition.
    theirs = ~after.terminated & (after.current_player != learner)
    moves = games.move + mine.astype(jnp.int32)
    if setting.max_moves is not None:
        theirs &= moves < setting.max_moves
    reply = setting.reply(reply_key, after)
    after, lost = _move(env, learner, after, reply, theirs, reply_key)

    going_on = games._replace(
        state=after,
        move=moves + theirs.astype(jnp.int32),
        score=games.score + gained + lost,
    )
    # A game that ends by the limit has no value after it, like one that ends by the rules.
    finished = after.terminated
    if setting.max_moves is not None:
        finished |= going_on.move >= setting.max_moves
    # The inputs of the loss are in the network's frame, as its logits are.
    legal = state.legal_action_mask
    if hasattr(env, "network_policy"):
        legal = jax.vmap(env.network_policy)(state, legal.astype(jnp.float32)) > 0
    seen = Rollout(
        observation=jax.vmap(env.observe)(state),
        legal=legal,
        action=action_in_frame(env, state, action),
        log_prob=log_prob,
        value=root.value.astype(jnp.float32),
        mine=mine,
        reward=gained + lost,
        finished=finished,
    )
    result = Result(going_on.score, going_on.move, games.moved_first)
    # The learner changes sides after every game.
    fresh = start(env, start_key, ~games.moved_first, max_random_moves=setting.max_random_moves)
    return trees.where(finished, fresh, going_on), (seen, result)


def _move(
    env: Env,
    learner: chex.Array,
    state: Any,
    action: chex.Array,
    takes: chex.Array,
    rng_key: chex.PRNGKey,
) -> tuple[Any, chex.Array]:
    """Moves in the games where `takes`; returns all games, and `[G]` the learners' gains."""
    # Moves are made in all games and kept where it is that player's turn.
    chances = sharding.own_keys(chance_key(rng_key), len(action))
    after = step_with_keys(env)(state, action.astype(jnp.int32), chances)
    gain = gain_of(env, learner, state, after).astype(jnp.float32)  # as scores and values are
    return trees.where(takes, after, state), jnp.where(takes, gain, 0.0)


def advantages(
    rollout: Rollout, last_value: chex.Array, *, discount: float = 1.0, gae_lambda: float = 1.0
) -> tuple[chex.Array, chex.Array]:
    """Generalised advantage estimates of the learner's moves (Schulman et al. 2016, eq. 16).

    Args:
      rollout: `[S, G]` steps.
      last_value: `[G]` the value of the positions after them, from the learner's view.
      discount: gamma, for each move of the learner, 0 to 1. Rewards of the replies that follow a
        move are not discounted.
      gae_lambda: lambda, 0 to 1: 0 is the temporal difference, 1 the return minus the value.

    Returns:
      `[S, G]` the advantages, and `[S, G]` the value targets, advantage plus value. Both are 0
      where the learner was not to move.
    """

    def back(
        later: tuple[chex.Array, ...], now: tuple[chex.Array, ...]
    ) -> tuple[tuple[chex.Array, ...], chex.Array]:
        # The gain before the learner's next move, and that move's value and advantage.
        gained, value, advantage = later
        mine, reward, finished, own_value = now
        goes_on = jnp.where(finished, 0.0, 1.0)
        gained = reward + goes_on * gained
        value, advantage = goes_on * value, goes_on * advantage
        # Eq. 16 as a recursion, V' and A' of the next move: A = r + gamma (V' + lambda A') - V.
        own = gained + discount * (value + gae_lambda * advantage) - own_value
        own = jnp.where(mine, own, 0.0)
        # A reply alone passes its gain on to the learner's move before it.
        before = (
            jnp.where(mine, 0.0, gained),
            jnp.where(mine, own_value, value),
            jnp.where(mine, own, advantage),
        )
        return before, own

    nothing = jnp.zeros_like(last_value)
    steps = (rollout.mine, rollout.reward, rollout.finished, rollout.value)
    _, advantage = jax.lax.scan(back, (nothing, last_value, nothing), steps, reverse=True)
    return advantage, jnp.where(rollout.mine, advantage + rollout.value, 0.0)
