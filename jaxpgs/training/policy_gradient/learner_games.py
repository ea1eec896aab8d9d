"""Games of a learner against opponents, and what its own moves gained.

The learner's moves alone are transitions: what the opponent replies is part of the environment, and
a transition leads from one position with the learner to move to the next. So all values are from
one view, and no sign changes on the way.
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
      learner: `[G]` int32, the player that the learner is.
      moved_first: `[G]` bool, whether the learner was to move at the start.
      move: `[G]` int32, moves made so far, random ones at the start included.
      score: `[G]` what the learner has gained from the opponent so far.
    """

    state: Any
    learner: chex.Array
    moved_first: chex.Array
    move: chex.Array
    score: chex.Array


class Rollout(NamedTuple):
    """S steps of G games; a step is a move of the learner and what the opponent replies.

    Attributes:
      observation: `[S, G, *observation_shape]`.
      legal: `[S, G, A]` bool, in the network's frame.
      action: `[S, G]` int32, the learner's action in the network's frame.
      log_prob: `[S, G]` its log probability by the policy that played.
      value: `[S, G]` the network's value.
      mine: `[S, G]` bool, whether the learner was to move. All above counts there only: a step in
        which it was not is a reply alone.
      reward: `[S, G]` what the learner gained in the step, by its own move and the reply; what is
        paid to the opponent alone counts as lost.
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
    """How games stand after each step, `[S, G]`; of interest where they are finished.

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
      moves_first: `[G]` bool, in which games the learner is to move first.
      max_random_moves: most random moves before the start; see `selfplay.init_games`.

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
    """Plays on in G games; both sides draw their moves from their policies.

    A finished game is followed by a new one at once, in which the learner has the other seat. A
    game in which the opponent moves first begins with a step that is the opponent's alone, so the
    order of moves may be any, as long as it is one player's turn at a time.

    Args:
      env: an environment of two players.
      apply_fn: the network, with population statistics.
      params: the learner's parameters.
      opponents: C opponents, C a divisor of G: the first plays the first G/C games, and so on.
      rng_key: a key, consumed.
      games: the games; `start` makes them.
      num_steps: S.
      max_random_moves: most random moves before a new game's start.
      max_moves: as in `selfplay.play`, moves of both sides.

    Returns:
      The games to go on with; the rollout; `[G]` the network's value of the positions after it,
      from the learner's view; and how the games stood.
    """
    root_fn = make_root_fn(env, apply_fn)
    reply = functools.partial(_reply, root_fn, opponents)
    setting = _Setting(env, root_fn, params, reply, max_random_moves, max_moves)
    games, (rollout, result) = jax.lax.scan(
        functools.partial(_step, setting), games, jax.random.split(rng_key, num_steps)
    )
    # What follows the last step is worth what the network says of it.
    value = root_fn(params, rng_key, games.state).value.astype(jnp.float32)
    # A value is the mover's, and what one player gains the other loses.
    last = jnp.where(games.state.current_player == games.learner, value, -value)
    return games, rollout, last, result


class _Setting(NamedTuple):
    """What does not change while games are played; `reply` is `(rng_key, state) -> action`."""

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
        # Sharpness 0 makes all logits equal: uniformly random play by the same program.
        return root_fn(theirs, rng_key, state).prior_logits * sharpness

    # [C, G / C, ...]: neighbouring games have the same opponent.
    groups = jax.tree.map(lambda x: x.reshape(len(opponents.age), -1, *x.shape[1:]), state)
    # One after another: a convolution whose kernel differs by game is many times slower.
    logits = jax.lax.map(one, (opponents.params, opponents.sharpness, groups))
    logits = logits.reshape(-1, logits.shape[-1])
    # Masked once more: times 0, the lowest float of illegal actions was 0 as well.
    logits = jnp.where(state.legal_action_mask, logits, jnp.finfo(logits.dtype).min)
    return sharding.own_categorical(rng_key, logits)


def _step(
    setting: _Setting, games: LearnerGames, rng_key: chex.PRNGKey
) -> tuple[LearnerGames, tuple[Rollout, Result]]:
    """Makes a move of the learner and the reply in every game, and starts anew those that end."""
    act_key, reply_key, start_key = jax.random.split(rng_key, 3)
    env, state, learner = setting.env, games.state, games.learner
    # The learner's move, which is left out where a game begins with the opponent.
    mine = state.current_player == learner
    root = setting.root_fn(setting.params, act_key, state)
    logits = root.prior_logits.astype(jnp.float32)
    action = sharding.own_categorical(act_key, logits)
    log_prob = jax.nn.log_softmax(logits)[jnp.arange(len(action)), action]
    after, gained = _move(env, learner, state, action, mine, act_key)
    # The opponent's reply, unless the game is over or the learner moves once more. The gain is
    # the learner's here as well: both add up to the reward of one transition.
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
    # A game that ends by the limit has no value behind it, just as one that ends by the rules.
    finished = after.terminated
    if setting.max_moves is not None:
        finished |= going_on.move >= setting.max_moves
    # What the loss sees is in the network's frame, as its logits are.
    legal = state.legal_action_mask
    if hasattr(env, "network_policy"):
        legal = jax.vmap(env.network_policy)(state, legal)
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
    # The learner changes seats after every game.
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
    """Moves in the games that `takes` names; returns all, and `[G]` what their learners gained."""
    # Moves are made in all games and kept where it is that player's turn.
    chances = sharding.own_keys(chance_key(rng_key), len(action))
    after = step_with_keys(env)(state, action.astype(jnp.int32), chances)
    gain = gain_of(env, learner, state, after)
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
      gae_lambda: lambda, 0 to 1: 0 is the temporal difference, 1 the return less the value.

    Returns:
      `[S, G]` the advantages, and `[S, G]` the targets of the value, advantage plus value; both 0
      where the learner was not to move.
    """

    def back(
        later: tuple[chex.Array, ...], now: tuple[chex.Array, ...]
    ) -> tuple[tuple[chex.Array, ...], chex.Array]:
        # Of the learner's next move: what it gains before it, its value and its advantage.
        gained, value, advantage = later
        mine, reward, finished, own_value = now
        goes_on = jnp.where(finished, 0.0, 1.0)
        gained = reward + goes_on * gained
        value, advantage = goes_on * value, goes_on * advantage
        # Eq. 16 as a recursion, V' and A' of the next move: A = r + gamma (V' + lambda A') - V.
        own = gained + discount * (value + gae_lambda * advantage) - own_value
        own = jnp.where(mine, own, 0.0)
        # A reply alone hands on what it gained to the learner's move before it.
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
