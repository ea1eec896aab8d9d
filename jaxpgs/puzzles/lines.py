"""Lines of play: states that remember the moves that led to them, and rollouts to the end.

For games of one player what counts is the best line ever seen, whatever the search thinks of its
first move. A search over `Line`s in place of bare states can tell it: every node knows its moves
and its score, and a rollout from there completes both. `best_of=lambda line: line.total` makes the
search keep the best one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.adapters import ApplyFn, RootFn, _policy, _value
from jaxpgs.base import (
    Expansion,
    Params,
    RecurrentFn,
    SplitRecurrentFn,
    broadcast_keys,
    as_logits,
)
from jaxpgs.networks.functional import SplitApplyFn
from jaxpgs.search.simulators.simulator import distribution, invert


class Line(NamedTuple):
    """B positions, each with a line of play through it.

    Attributes:
      state: `[B]` states of the environment.
      moves: `[B, L]` integers: the actions from the start, first those played, then those that a
        rollout proposes; -1 after the last.
      num_played: `[B]` int32, how many of them have been played.
      score: `[B]` float32, the rewards of the moves played.
      total: `[B]` float32, the rewards of the whole line; -inf if it stops before the game's end.
    """

    state: Any
    moves: chex.Array
    num_played: chex.Array
    score: chex.Array
    total: chex.Array


# (params, rng_keys [B], state [B], logits [B, A]) -> (return [B], moves [B, L], -1 after the last)
Rollout = Callable[
    [Params, chex.PRNGKey, Any, chex.Array],
    tuple[chex.Array, chex.Array],
]


def start_lines(env: Any, state: Any, max_moves: int | None = None) -> Line:
    """Starts lines of play.

    Args:
      env: a game of one player.
      state: `[B]` positions to start from.
      max_moves: L, the most moves that a game can have; half the actions if None, as in SameGame,
        where each move takes two cells or more.

    Returns:
      Lines without a move, whose scores count from here.
    """
    batch_size, length = len(state.terminated), max_moves or max(env.num_actions // 2, 1)
    dtype = jnp.int16 if env.num_actions <= jnp.iinfo(jnp.int16).max else jnp.int32
    zeros = jnp.zeros(batch_size, jnp.float32)
    return Line(
        state=state,
        moves=jnp.full((batch_size, length), -1, dtype),
        num_played=jnp.zeros(batch_size, jnp.int32),
        score=zeros,
        total=jnp.where(state.terminated, 0.0, -jnp.inf),
    )


def play_move(env: Any, line: Line, action: chex.Array) -> tuple[Line, chex.Array]:
    """Plays an action in each line; games that are over stay as they are.

    Args:
      env: the game.
      line: B lines. What a rollout proposed is forgotten.
      action: `[B]` actions, legal where the game is not over.

    Returns:
      The lines, and the rewards `[B]`.
    """
    state = jax.vmap(env.step)(line.state, action)
    playing = ~line.state.terminated
    reward = jnp.where(playing, state.rewards[:, 0], 0.0)
    places = jnp.arange(line.moves.shape[1])[None] - line.num_played[:, None]
    now = (places == 0) & playing[:, None]
    moves = jnp.where(places < 0, line.moves, line.moves.dtype.type(-1))
    moves = jnp.where(now, action[:, None].astype(moves.dtype), moves)
    score = line.score + reward
    line = Line(
        state=state,
        moves=moves,
        num_played=line.num_played + playing.astype(jnp.int32),
        score=score,
        total=jnp.where(state.terminated, score, -jnp.inf),
    )
    return line, reward


def make_line_fns(
    env: Any,
    apply_fn: ApplyFn | None = None,
    *,
    rollout: Rollout | None = None,
    split: bool = False,
) -> tuple[RootFn, RecurrentFn]:
    """Makes the `root_fn` and `recurrent_fn` of a search over lines of play.

    They are those of `make_root_fn` and `make_recurrent_fn` for embeddings that are `Line`s, and
    may take a rollout's return in place of the network's value.

    Args:
      env: a game of one player, ours or pgx's.
      apply_fn: the network, as in `make_root_fn`. None stands for a policy uniform over the legal
        actions, without a value.
      rollout: plays each new state to the end; what it earns is the state's value. None takes the
        network's value.
      split: whether to return a `SplitRecurrentFn`, for a search that adapts in cached mode. As
        nothing that is remembered may depend on what adapts, its rollouts see a uniform prior.

    Returns:
      `root_fn(params, rng_key, line)`, where the key may be one or `[B]`, and `recurrent_fn`. The
      rollouts of one root do not depend on the other roots.

    Raises:
      ValueError: if there is neither a network nor a rollout, the game has several players, or the
        network cannot be split.
    """
    if apply_fn is None and rollout is None:
        raise ValueError("Without a network a search needs a rollout to value states; got neither.")
    if env.num_players != 1:
        raise ValueError(f"Lines of play are for one player, got a game of {env.num_players}.")

    def evaluate(params: Params, line: Line) -> tuple[chex.Array, chex.Array]:
        if apply_fn is None:
            return uniform_logits(env, line.state), line.score
        logits, value = apply_fn(params, jax.vmap(env.observe)(line.state))
        return _policy(env, logits, line.state), _value(value, line.state)

    def complete(
        params: Params, rng_key: chex.PRNGKey, line: Line, logits: chex.Array, value: chex.Array
    ) -> tuple[Line, chex.Array]:
        if rollout is None:
            return line, value
        keys = broadcast_keys(rng_key, len(value))
        value, moves = rollout(params, keys, line.state, logits)
        over = line.state.terminated
        value = jnp.where(over, 0.0, value)
        return line._replace(
            moves=_continued(line, jnp.where(over[:, None], -1, moves)), total=line.score + value
        ), value

    def root_fn(params: Params, rng_key: chex.PRNGKey, line: Line) -> mctx.RootFnOutput:
        logits, value = evaluate(params, line)
        line, value = complete(params, rng_key, line, logits, value)
        return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=line)

    def recurrent_fn(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, line: Line
    ) -> tuple[mctx.RecurrentFnOutput, Line]:
        line, reward = play_move(env, line, action)
        logits, value = evaluate(params, line)
        line, value = complete(params, rng_key, line, logits, value)
        discount = jnp.where(line.state.terminated, 0.0, 1.0)
        output = mctx.RecurrentFnOutput(
            reward=reward, discount=discount, prior_logits=logits, value=value
        )
        return output, line

    if not split:
        return root_fn, recurrent_fn
    if not isinstance(apply_fn, SplitApplyFn):
        raise ValueError(f"split needs a networks.SplitApplyFn, got {apply_fn!r}.")

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, line: Line
    ) -> tuple[Expansion, Line]:
        line, reward = play_move(env, line, action)
        features = apply_fn.torso(params, jax.vmap(env.observe)(line.state))
        value = _value(apply_fn.value_head(params, features), line.state)
        uniform = uniform_logits(env, line.state)
        line, value = complete(params, rng_key, line, uniform, value)
        discount = jnp.where(line.state.terminated, 0.0, 1.0)
        return Expansion(reward, discount, value, features), line

    def policy(params: Params, features: Any, line: Line) -> chex.Array:
        return _policy(env, apply_fn.policy_head(params, features), line.state)

    return root_fn, SplitRecurrentFn(expand, policy, apply_fn.max_batch)


def uniform_logits(env: Any, state: Any) -> chex.Array:
    """Returns logits `[B, A]` of a policy uniform over the legal actions of `[B]` states.

    Where a search finds several actions equally good it takes the first in the board's order. Seify
    2020, section 4.3, found the leftmost, then lowest group the better choice, so on boards the
    logits lean that way, by less than any return can miss.
    """
    logits = jnp.zeros(env.num_actions)
    if hasattr(env, "height") and hasattr(env, "width"):
        row, column = jnp.divmod(jnp.arange(env.num_actions), env.width)
        logits = -1e-5 * (column * env.height + env.height - 1 - row).astype(jnp.float32)
    legal = state.legal_action_mask & ~state.terminated[:, None]
    return jnp.where(legal, logits[None], jnp.finfo(logits.dtype).min)


def random_rollouts(env: Any, *, tabu: bool = False) -> Rollout:
    """Uniformly random play to the end (Seify 2020, sections 4.3 and 5.1).

    Args:
      env: the game. SameGame is played out by its own fast loop, others through their `step`.
      tabu: SameGame only: keep the most frequent colour for last.

    Returns:
      A rollout.
    """
    from jaxpgs.envs import SameGame
    from jaxpgs.envs.samegame_playouts import recorded_playout

    if not isinstance(env, SameGame):
        return _sampled(env, lambda params, state: uniform_logits(env, state))

    def rollout(
        params: Params, rng_keys: chex.PRNGKey, state: Any, logits: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        del params, logits
        ends, moves = jax.vmap(lambda k, s: recorded_playout(env, k, s, tabu=tabu))(rng_keys, state)
        return ends.score, moves

    return rollout


def informed_rollouts(env: Any, apply_fn: ApplyFn, *, greedy: bool = False) -> Rollout:
    """Play to the end by actions drawn from the network's policy (Seify 2020, section 5.1).

    Every move is a network call, for all lines at once.

    Args:
      env: the game.
      apply_fn: the network, as in `make_root_fn`; its value is not asked for where that can be.
      greedy: whether to take the likeliest action in place of drawing one.

    Returns:
      A rollout.
    """

    def evaluate(params: Params, state: Any) -> chex.Array:
        observation = jax.vmap(env.observe)(state)
        if isinstance(apply_fn, SplitApplyFn):
            logits = apply_fn.policy_head(params, apply_fn.torso(params, observation))
        else:
            logits, _ = apply_fn(params, observation)
        return _policy(env, logits, state)

    return _sampled(env, evaluate, greedy)


def first_by_prior(env: Any, rollout: Rollout) -> Rollout:
    """Begins a rollout with the action that the prior likes best (Seify 2020, section 5.1).

    Args:
      env: the game.
      rollout: how it goes on.

    Returns:
      A rollout.
    """

    def begin(
        params: Params, rng_keys: chex.PRNGKey, state: Any, logits: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        action = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        after = jax.vmap(env.step)(state, action)
        score, moves = rollout(params, rng_keys, after, logits)
        moves = jnp.where(after.terminated[:, None], -1, moves)
        moves = jnp.concatenate([action[:, None], moves.astype(jnp.int32)[:, :-1]], axis=1)
        return after.rewards[:, 0] + jnp.where(after.terminated, 0.0, score), moves

    return begin


def _sampled(
    env: Any, evaluate: Callable[[Params, Any], chex.Array], greedy: bool = False
) -> Rollout:
    """Makes a rollout that draws every action from a policy `(params, state) -> logits`."""

    def rollout(
        params: Params, rng_keys: chex.PRNGKey, state: Any, logits: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        del logits
        length = max(env.num_actions // 2, 1)

        def body(carry: tuple) -> tuple:
            t, state, score, moves = carry
            logits = as_logits(evaluate(params, state))
            policy = distribution(logits)
            number = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, t)))(rng_keys)
            action = invert(policy.cumulative, policy.last, number)
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
        _, _, score, moves = jax.lax.while_loop(
            lambda carry: (carry[0] < length) & jnp.any(~carry[1].terminated), body, carry
        )
        return score, moves

    return rollout


def _continued(line: Line, moves: chex.Array) -> chex.Array:
    """Puts a rollout's moves `[B, R]` behind those that a line has played."""
    length = line.moves.shape[1]
    missing = max(length - moves.shape[1], 0)
    moves = jnp.pad(moves, [(0, 0), (0, missing)], constant_values=-1)[:, :length]
    places = jnp.arange(length)[None] - line.num_played[:, None]
    later = jnp.take_along_axis(moves, jnp.maximum(places, 0), axis=1)
    return jnp.where(places < 0, line.moves, later.astype(line.moves.dtype))
