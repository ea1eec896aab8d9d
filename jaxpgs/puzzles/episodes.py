"""Episodes: states that remember the moves that led to them, and a rollout's moves to the end.

In games of one player the best game ever seen counts, whatever value the search gives to its first
move. A search over `Episode`s instead of bare states can return this game: every node knows its
moves and its score, and a rollout from there completes both. With
`best_of=lambda episode: episode.total` the search keeps the best episode.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.adapters.environments import (
    RootFn,
    check_players,
    draws_chance,
    mask_logits,
    mask_value,
)
from jaxpgs.arrays import broadcast_keys
from jaxpgs.base import Env, Expansion, Params, RecurrentFn, SplitRecurrentFn
from jaxpgs.networks.functional import ApplyFn, SplitApplyFn
from jaxpgs.puzzles.rollouts import Rollout, longest_game, uniform_logits


class Episode(NamedTuple):
    """B positions, each with the moves of a game through it.

    Attributes:
      state: `[B]` states of the environment.
      moves: `[B, L]` integers: the actions from the start, first those played, then those that a
        rollout proposes; -1 after the last.
      num_played: `[B]` int32, how many of them have been played.
      score: `[B]` float32, the sum of the rewards of the moves played.
      total: `[B]` float32, that of all moves; -inf if they stop before the game's end, or the game
        has more than L moves.

    Example:
      >>> jaxpgs.puzzles.start_episodes(puzzle, boards).moves.shape
      (2, 4)
    """

    state: Any
    moves: chex.Array
    num_played: chex.Array
    score: chex.Array
    total: chex.Array


_ALONE = "Episodes add up what one player earns; make_recurrent_fn is for two as well."


def check_boards(owner: str, state: Any) -> None:
    """Raises `ValueError` for a single position without a batch axis.

    Args:
      owner: the name of the calling function, for the error message.
      state: a state of any game.
    """
    if jnp.ndim(state.terminated) != 1:
        raise ValueError(
            f"{owner} needs positions with one leading axis, such as jax.vmap(env.init)(keys), or "
            "jax.tree.map(lambda x: x[None], state) for a single one; got `terminated` of shape "
            f"{list(jnp.shape(state.terminated))}."
        )


def start_episodes(env: Env, state: Any, max_moves: int | None = None) -> Episode:
    """Starts an episode at each of B positions.

    Args:
      env: a game of one player.
      state: `[B]` positions to start from.
      max_moves: L, the maximum number of moves of a game. None is half the number of actions,
        which is enough for SameGame, where each move takes two cells or more. A longer game counts
        as one that did not end.

    Returns:
      Episodes without moves, whose scores begin at 0.

    Raises:
      ValueError: if the game is not for one player, or the position has no batch axis.

    Example:
      >>> episode = jaxpgs.puzzles.start_episodes(puzzle, boards)
      >>> episode.num_played
      Array([0, 0], dtype=int32)
    """
    check_players("start_episodes", env, (1,), _ALONE)
    check_boards("start_episodes", state)
    batch_size, length = len(state.terminated), longest_game(env, max_moves)
    # A search keeps the moves in every node, so their type is as narrow as the actions allow.
    dtype = jnp.int16 if env.num_actions <= jnp.iinfo(jnp.int16).max else jnp.int32
    zeros = jnp.zeros(batch_size, jnp.float32)
    return Episode(
        state=state,
        moves=jnp.full((batch_size, length), -1, dtype),
        num_played=jnp.zeros(batch_size, jnp.int32),
        score=zeros,
        total=jnp.where(state.terminated, 0.0, -jnp.inf),
    )


def play_move(env: Env, episode: Episode, action: chex.Array) -> tuple[Episode, chex.Array]:
    """Plays an action in each episode; finished games do not change.

    Args:
      env: the game.
      episode: B episodes. Moves that a rollout proposed are discarded.
      action: `[B]` actions, legal where the game is not over.

    Returns:
      The episodes, and the rewards `[B]`.

    Example:
      >>> episode = jaxpgs.puzzles.start_episodes(puzzle, boards)
      >>> move = jnp.argmax(boards.legal_action_mask, axis=-1)
      >>> episode, reward = jaxpgs.puzzles.play_move(puzzle, episode, move)
      >>> episode.num_played
      Array([1, 1], dtype=int32)
    """
    state = jax.vmap(env.step)(episode.state, action)
    playing = ~episode.state.terminated
    reward = jnp.where(playing, state.rewards[:, 0], 0.0)
    # [B, L]: below 0 where a move was played, 0 for this one, above where a rollout proposed one.
    places = jnp.arange(episode.moves.shape[1], dtype=jnp.int32)[None] - episode.num_played[:, None]
    now = (places == 0) & playing[:, None]
    moves = jnp.where(places < 0, episode.moves, episode.moves.dtype.type(-1))
    moves = jnp.where(now, action[:, None].astype(moves.dtype), moves)
    score = episode.score + reward
    num_played = episode.num_played + playing.astype(jnp.int32)
    ended = state.terminated & (num_played <= moves.shape[1])
    episode = Episode(
        state=state,
        moves=moves,
        num_played=num_played,
        score=score,
        total=jnp.where(ended, score, -jnp.inf),
    )
    return episode, reward


def make_episode_fns(
    env: Env,
    apply_fn: ApplyFn | None = None,
    *,
    rollout: Rollout | None = None,
    rollout_share: float = 1.0,
    split: bool = False,
) -> tuple[RootFn, RecurrentFn]:
    """Makes the `root_fn` and `recurrent_fn` of a search over episodes.

    They are like those of `make_root_fn` and `make_recurrent_fn`, but an embedding is an `Episode`.
    They may use a rollout's return instead of the network's value, or mix the two as in Silver
    et al. 2016, eq. 8.

    Args:
      env: a game of one player, ours or pgx's.
      apply_fn: the network, as in `make_root_fn`. None is a policy that is uniform over the legal
        actions, without a value.
      rollout: plays each new state to the end; its return is the state's value. None uses the
        network's value.
      rollout_share: weight of the rollout's return in the state's value, from 0 to 1; the rest is
        the network's value. For any weight, the rollout's game counts as one that was seen.
      split: whether to return a `SplitRecurrentFn`, for a search that adapts and keeps a tree. The
        stored results may not depend on the adapted parameters, so rollouts get a uniform prior.

    Returns:
      `root_fn(params, rng_key, episode)`, where the key may be one or `[B]`, and `recurrent_fn`.
      The rollouts of one root do not depend on the other roots.

    Raises:
      ValueError: if there is neither a network nor a rollout, `rollout_share` is out of range or
        below 1 without a network, the game has several players or chance events, or `split` is set
        for a network that cannot be split.

    Example:
      >>> rollout = jaxpgs.puzzles.random_rollouts(puzzle)
      >>> root_fn, recurrent_fn = jaxpgs.puzzles.make_episode_fns(puzzle, rollout=rollout)
    """
    if apply_fn is None and rollout is None:
        raise ValueError(
            "Without a network, a search needs a rollout to evaluate states; got neither."
        )
    if not 0 <= rollout_share <= 1 or (apply_fn is None and rollout_share < 1):
        raise ValueError(
            "rollout_share must be from 0 to 1, and 1 without a network; got "
            f"{rollout_share} and apply_fn={apply_fn!r}."
        )
    check_players("make_episode_fns", env, (1,), _ALONE)
    if draws_chance(env):
        raise ValueError(
            f"Episodes are for games without chance, as their best moves are played again; "
            f"{type(env).__name__} has chance. Search it with pgs_policy and mode='rollouts'."
        )
    setting = _Setting(env, apply_fn, rollout, rollout_share)
    root_fn = functools.partial(_evaluate_root, setting)
    if not split:
        return root_fn, functools.partial(_play_and_evaluate, setting)
    if not isinstance(apply_fn, SplitApplyFn):
        raise ValueError(f"split needs a networks.SplitApplyFn, got {apply_fn!r}.")
    parts = apply_fn

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, episode: Episode
    ) -> tuple[Expansion, Episode]:
        episode, reward = play_move(env, episode, action)
        features = parts.torso(params, jax.vmap(env.observe)(episode.state))
        value = mask_value(parts.value_head(params, features), episode.state)
        # Stored results may not depend on the adapted parameters, so rollouts ignore the policy.
        uniform = uniform_logits(env, episode.state)
        episode, value = _complete(setting, params, rng_key, episode, uniform, value)
        return Expansion(reward, _discount(episode), value, features), episode

    def policy(params: Params, features: Any, episode: Episode) -> chex.Array:
        return mask_logits(env, parts.policy_head(params, features), episode.state)

    return root_fn, SplitRecurrentFn(expand, policy, parts.max_batch)


class _Setting(NamedTuple):
    """The arguments of `make_episode_fns`."""

    env: Env
    apply_fn: ApplyFn | None
    rollout: Rollout | None
    rollout_share: float


def _evaluate_root(
    setting: _Setting, params: Params, rng_key: chex.PRNGKey, episode: Episode
) -> mctx.RootFnOutput:
    logits, value = _evaluate(setting, params, episode)
    episode, value = _complete(setting, params, rng_key, episode, logits, value)
    return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=episode)


def _play_and_evaluate(
    setting: _Setting, params: Params, rng_key: chex.PRNGKey, action: chex.Array, episode: Episode
) -> tuple[mctx.RecurrentFnOutput, Episode]:
    episode, reward = play_move(setting.env, episode, action)
    logits, value = _evaluate(setting, params, episode)
    episode, value = _complete(setting, params, rng_key, episode, logits, value)
    output = mctx.RecurrentFnOutput(
        reward=reward, discount=_discount(episode), prior_logits=logits, value=value
    )
    return output, episode


def _evaluate(setting: _Setting, params: Params, episode: Episode) -> tuple[chex.Array, chex.Array]:
    """Returns the prior's logits `[B, A]` and the network's values `[B]`."""
    env, state = setting.env, episode.state
    if setting.apply_fn is None:
        # A placeholder for the value: without a network it is replaced by the rollout's return.
        return uniform_logits(env, state), episode.score
    logits, value = setting.apply_fn(params, jax.vmap(env.observe)(state))
    return mask_logits(env, logits, state), mask_value(value, state)


def _complete(
    setting: _Setting,
    params: Params,
    rng_key: chex.PRNGKey,
    episode: Episode,
    logits: chex.Array,
    value: chex.Array,
) -> tuple[Episode, chex.Array]:
    """Plays episodes to the end with the rollout, if there is one, and evaluates their states."""
    if setting.rollout is None:
        return episode, value
    keys = broadcast_keys(rng_key, len(value))
    # The output of a rollout from a finished game is ignored, as no move is legal there.
    earned, moves = setting.rollout(params, keys, episode.state, logits)
    over = episode.state.terminated
    earned = jnp.where(over, 0.0, earned)
    moves = jnp.where(over[:, None], -1, moves)
    # A rollout proposes no moves if it stopped before the game's end.
    count = jnp.sum(moves >= 0, axis=1, dtype=jnp.int32)
    ended = (count > 0) & (episode.num_played + count <= episode.moves.shape[1])
    total = jnp.where(over, episode.total, -jnp.inf)
    total = jnp.where(ended, episode.score + earned, total)
    if setting.rollout_share < 1:
        # Silver et al. 2016, eq. 8: (1 - share) * value + share * return.
        value = value + setting.rollout_share * (earned - value)
    else:
        value = earned
    return episode._replace(moves=_continued(episode, moves), total=total), value


def _discount(episode: Episode) -> chex.Array:
    return jnp.where(episode.state.terminated, 0.0, 1.0)


def _continued(episode: Episode, moves: chex.Array) -> chex.Array:
    """Appends a rollout's moves `[B, R]` to those that an episode has played."""
    length = episode.moves.shape[1]
    # A rollout's first entry is its own first move. Its moves are padded or truncated to length L.
    missing = max(length - moves.shape[1], 0)
    moves = jnp.pad(moves, [(0, 0), (0, missing)], constant_values=-1)[:, :length]
    places = jnp.arange(length)[None] - episode.num_played[:, None]
    later = jnp.take_along_axis(moves, jnp.maximum(places, 0), axis=1)
    return jnp.where(places < 0, episode.moves, later.astype(episode.moves.dtype))
