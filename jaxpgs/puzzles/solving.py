"""The loop over whole games of one player: search, play a move, repeat, keep the best game."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.adapters.environments import RootFn
from jaxpgs.arrays import broadcast_keys
from jaxpgs.base import Env, Params, PolicyOutput
from jaxpgs.puzzles.episodes import Episode, play_move, start_episodes
from jaxpgs.search import Nodes, reroot

# (rng_keys [B], root, invalid_actions [B, A], nodes, adapted_params) -> the search's output
Plan = Callable[
    [chex.PRNGKey, mctx.RootFnOutput, chex.Array, Nodes | None, Params | None], PolicyOutput
]


class Searches(NamedTuple):
    """A record of S searches for each of B boards; without a search all but `best` are zeros.

    Attributes:
      state: `[S, B]` the positions.
      action: `[S, B]` int32, the actions played there.
      value: `[S, B]` the highest Q-value, which estimates the rewards from there on.
      score: `[S, B]` the sum of the rewards before.
      searched: `[S, B]` bool, False where the game was over.
      best: `[S, B]` the best total so far, -inf before a game that was seen has ended.
      num_evaluations: `[S, B]` int32, states that the simulations evaluated.

    Example:
      >>> search = functools.partial(jaxpgs.puzzles.plain_mcts, puzzle, num_simulations=8)
      >>> jax.eval_shape(search, rng_key, boards).searches.value.shape  # S searches of B boards
      (4, 2)
    """

    state: Any
    action: chex.Array
    value: chex.Array
    score: chex.Array
    searched: chex.Array
    best: chex.Array
    num_evaluations: chex.Array


class Solution(NamedTuple):
    """The best game that was seen on each of B boards.

    If no game that was seen ended within `max_moves`, the last of `searches.best` is -inf, and the
    solution is the game that was played, as far as it was played.

    Attributes:
      score: `[B]` its score.
      moves: `[B, L]` its actions from the given board on, -1 after the last.
      num_moves: `[B]` int32, the number of these actions.
      played: `[B]` the score of the moves that were played; -inf if the game was not played to its
        end. Never above `score`.
      searches: the record of all searches.

    Example:
      >>> search = functools.partial(jaxpgs.puzzles.plain_mcts, puzzle, num_simulations=8)
      >>> jax.eval_shape(search, rng_key, boards).num_moves.shape
      (2,)
    """

    score: chex.Array
    moves: chex.Array
    num_moves: chex.Array
    played: chex.Array
    searches: Searches


def solve(
    env: Env,
    root_fn: RootFn,
    plan: Plan,
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    *,
    num_searches: int | None = None,
    restart: bool = False,
    follow: str = "value",
    num_kept: int = 0,
    adapted_params: Params | None = None,
    max_moves: int | None = None,
) -> Solution:
    """Plays B games with a search for every move, and returns the best games that were seen.

    Seify 2020, section 5.2.2: each search has the same budget, and its action is played. The best
    game ever seen is remembered. It is the result, instead of the game that was played.

    Args:
      env: a game of one player.
      root_fn: from `make_episode_fns`.
      plan: the search, `(rng_keys [B], root, invalid_actions [B, A], nodes, adapted_params) ->
        PolicyOutput`, with `best_of=lambda episode: episode.total`.
      params: the network's parameters, for `root_fn`.
      rng_key: one key, or `[B]` keys, one per board; consumed. With a key per board, a board's
        result does not depend on the other boards.
      state: `[B]` positions.
      num_searches: S, the maximum number of searches of a board; None searches until every game is
        over. 1 spends the whole budget on the first move.
      restart: whether a game that is over starts again, until S searches are done.
      follow: "value" plays the search's action, as the thesis does; "best" plays the next move of
        the best game.
      num_kept: nodes to keep from search to search (`reroot`). With 0 each search begins with an
        empty tree, as in the thesis where it uses rollouts.
      adapted_params: the parameters with which a search that adapts starts each game, one set per
        board. They are passed from search to search. With None each search begins with the
        network's own parameters.
      max_moves: as in `start_episodes`.

    Returns:
      The solution. A board without legal moves has score 0 and no moves.

    Raises:
      ValueError: if `follow` is neither "value" nor "best", a count is out of range, or `restart`
        is set without `num_searches`.

    Example:
      >>> rollout = jaxpgs.puzzles.random_rollouts(puzzle)
      >>> root_fn, recurrent_fn = jaxpgs.puzzles.make_episode_fns(puzzle, rollout=rollout)
      >>> def plan(keys, root, illegal, nodes, adapted_params):
      ...     return jaxpgs.mcs_policy(
      ...         None, keys, root, recurrent_fn, 8, illegal, best_of=lambda episode: episode.total
      ...     )
      >>> run = functools.partial(jaxpgs.puzzles.solve, puzzle, root_fn, plan, None)
      >>> jax.eval_shape(run, rng_key, boards).score.shape  # jax.jit(run) solves the boards
      (2,)
    """
    _check_arguments(num_searches, restart, follow, num_kept)
    start = start_episodes(env, state, max_moves)
    keys = broadcast_keys(rng_key, len(start.moves))
    # A game has at most as many moves as an episode has entries.
    count = start.moves.shape[1] if num_searches is None else num_searches
    game = _Game(env, root_fn, plan, params, keys, start, adapted_params, restart, follow, num_kept)
    progress = _Progress(
        number=jnp.int32(0),
        episode=start,
        best=start,
        played=start.total,
        nodes=_no_nodes(game) if num_kept else None,
        adapted=adapted_params,
        searches=_no_searches(state, count),
    )
    # The loop may end early: all games may be over long before S searches are done.
    progress = jax.lax.while_loop(
        lambda progress: (progress.number < count) & jnp.any(~progress.episode.state.terminated),
        functools.partial(_search_and_play, game),
        progress,
    )
    return _solution(progress, count)


def _check_arguments(num_searches: int | None, restart: bool, follow: str, num_kept: int) -> None:
    """Raises `ValueError` for arguments of `solve` that are out of range."""
    if follow not in ("value", "best"):
        raise ValueError(f'follow must be "value" or "best", got {follow!r}.')
    if (num_searches is not None and num_searches < 1) or num_kept < 0:
        raise ValueError(
            "num_searches must be at least 1 or None, and num_kept at least 0; got "
            f"{num_searches} and {num_kept}."
        )
    if restart and num_searches is None:
        raise ValueError("With restart a game never ends: num_searches must be given, got None.")


def _solution(progress: "_Progress", count: int) -> Solution:
    """Returns the solution after at most `count` searches of each board."""
    best, searches = progress.best, progress.searches
    # Searches that did not take place report the final best total, so that the curve of the best
    # total over searches stays flat.
    done = jnp.arange(count)[:, None] < progress.number
    searches = searches._replace(best=jnp.where(done, searches.best, best.total[None]))
    best = trees.where(jnp.isneginf(best.total), progress.episode, best)
    return Solution(
        score=_score(best),
        moves=best.moves,
        num_moves=jnp.sum(best.moves >= 0, axis=-1, dtype=jnp.int32),
        played=progress.played,
        searches=searches,
    )


def _score(episode: Episode) -> chex.Array:
    """Returns the scores `[B]` of whole games, or of the moves played if a game has not ended."""
    return jnp.where(jnp.isneginf(episode.total), episode.score, episode.total)


def record_games(end: Episode, states: Any, actions: chex.Array, scores: chex.Array) -> Solution:
    """Makes a solution from games that were played without a search.

    Args:
      end: B episodes after their last moves.
      states: `[L, B]` the positions of the games; those after the end are ignored.
      actions: `[L, B]` the legal actions that were played there.
      scores: `[L, B]` the sum of the rewards before.

    Returns:
      The solution. The `value` of its `searches` is the sum of the rewards from there on.
    """
    playing = ~states.terminated
    total = jnp.broadcast_to(end.total, scores.shape)
    return Solution(
        score=_score(end),
        moves=end.moves,
        num_moves=end.num_played,
        played=end.total,
        searches=Searches(
            state=states,
            action=jnp.where(playing, actions, 0),
            value=jnp.where(playing, total - scores, 0.0),
            score=jnp.where(playing, scores, 0.0),
            searched=playing,
            best=total,
            num_evaluations=jnp.zeros_like(actions),
        ),
    )


class _Game(NamedTuple):
    """The constants of the loop: the arguments of `solve`, and the start of each game."""

    env: Env
    root_fn: RootFn
    plan: Plan
    params: Params
    keys: chex.PRNGKey
    start: Episode
    adapted_params: Params | None
    restart: bool
    follow: str
    num_kept: int


class _Progress(NamedTuple):
    """The games after a number of searches.

    Attributes:
      number: `[]` int32, searches done.
      episode: the games in play.
      best: the best games so far.
      played: `[B]` the best score of a game that was played to its end, -inf before.
      nodes: what the next search takes over from the last one; None if it takes over nothing.
      adapted: the parameters that the next search starts from; None for the network's own.
      searches: `[S, B]` what was searched.
    """

    number: chex.Array
    episode: Episode
    best: Episode
    played: chex.Array
    nodes: Nodes | None
    adapted: Params | None
    searches: Searches


def _search(
    game: _Game,
    number: chex.Array,
    episode: Episode,
    nodes: Nodes | None,
    adapted: Params | None,
) -> PolicyOutput:
    """Searches the positions of all games."""
    # A board's keys depend on its own key and on the number of the search only.
    root_keys, plan_keys = jnp.moveaxis(
        jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number)))(game.keys), 1, 0
    )
    root = game.root_fn(game.params, root_keys, episode)
    # pgx marks every action legal in a finished game.
    legal = episode.state.legal_action_mask & ~episode.state.terminated[:, None]
    return game.plan(plan_keys, root, ~legal, nodes, adapted)


def _search_and_play(game: _Game, progress: _Progress) -> _Progress:
    """Searches once in every game and plays a move."""
    number, episode, best, played, nodes, adapted, searches = progress
    # Finished games are searched with the others in the batch, but the results are ignored.
    output = _search(game, number, episode, nodes, adapted)
    found = output.search_state
    playing = ~episode.state.terminated
    # The best game may end far below this search's root if a rollout found it.
    best = trees.where(playing & (found.best.total > best.total), found.best, best)
    action = output.action
    if game.follow == "best":
        action = jnp.where(playing, _next_move(best, episode, action), action)
    entry = Searches(
        state=episode.state,
        action=action,
        value=jnp.max(jnp.where(found.visits > 0, found.qvalues, -jnp.inf), axis=-1),
        score=episode.score,
        searched=playing,
        best=best.total,
        num_evaluations=found.num_evaluations,
    )
    # The record of this search: zeros where the game was over, except for the best total.
    entry = trees.where(playing, entry, jax.tree.map(jnp.zeros_like, entry))
    entry = entry._replace(best=best.total)
    after, _ = play_move(game.env, episode, action)
    # What the next search begins with. A restarted game takes over only the best game: its tree is
    # empty, and its head is the one from before the first move.
    over = after.state.terminated
    again = over & game.restart
    if nodes is not None:
        nodes = reroot(found.nodes, action, num_kept=game.num_kept, reset=again)
    if adapted is not None:
        adapted = trees.where(playing, found.params, adapted)
        adapted = trees.where(again, game.adapted_params, adapted)
    return _Progress(
        number=number + 1,
        episode=trees.where(again, game.start, after),
        best=trees.where(after.total > best.total, after, best),
        played=jnp.where(playing & over, jnp.maximum(played, after.total), played),
        nodes=nodes,
        adapted=adapted,
        searches=jax.tree.map(lambda x, new: x.at[number].set(new), searches, entry),
    )


def _no_nodes(game: _Game) -> Nodes:
    """Returns the nodes of an empty tree, which are zeros."""
    batch_size = len(game.start.score)
    # The shapes of a search's nodes, without running it; `nodes` is None in this trace.
    shapes = jax.eval_shape(
        lambda: _search(game, jnp.int32(0), game.start, None, None).search_state.nodes
    )

    def zeros(x: jax.ShapeDtypeStruct) -> chex.Array:
        # [B] is a count for each root; all others are [B, nodes, ...], reduced to the kept nodes.
        shape = x.shape if x.ndim == 1 else (batch_size, game.num_kept, *x.shape[2:])
        return jnp.zeros(shape, x.dtype)

    return jax.tree.map(zeros, shapes)


def _no_searches(state: Any, count: int) -> Searches:
    """Returns an empty record of S searches for each of `[B]` positions."""
    batch_size = len(state.terminated)
    reals, whole = jnp.zeros((count, batch_size)), jnp.zeros((count, batch_size), jnp.int32)
    return Searches(
        state=jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), state),
        action=whole,
        value=reals,
        score=reals,
        searched=whole.astype(bool),
        best=reals,
        num_evaluations=whole,
    )


def _next_move(best: Episode, episode: Episode, otherwise: chex.Array) -> chex.Array:
    """Returns the best game's next move if it begins with the played moves, else `otherwise`."""
    length = episode.moves.shape[1]
    # The best game may differ from the played moves, since another search found it elsewhere.
    earlier = jnp.arange(length)[None] < episode.num_played[:, None]
    same = jnp.all(~earlier | (best.moves == episode.moves), axis=-1)
    place = jnp.minimum(episode.num_played, length - 1)[:, None]
    move = jnp.take_along_axis(best.moves, place, axis=1)[:, 0].astype(otherwise.dtype)
    return jnp.where(same & (move >= 0), move, otherwise)
