"""The loop of whole games of one player: search, play a move, search again, keep the best line."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.adapters import RootFn
from jaxpgs.base import Params, PolicyOutput, broadcast_keys
from jaxpgs.puzzles.lines import Line, play_move, start_lines
from jaxpgs.search import Nodes, reroot

# (rng_keys [B], root, invalid_actions [B, A], nodes, adapted_params) -> the search's answer
Plan = Callable[
    [chex.PRNGKey, mctx.RootFnOutput, chex.Array, Nodes | None, Params | None], PolicyOutput
]


class Searches(NamedTuple):
    """What was searched, S times for each of B boards; entries without a search are zeros.

    Attributes:
      state: `[S, B]` the positions.
      action: `[S, B]` int32, the actions played there.
      value: `[S, B]` the highest Q-value, of the rewards from there on.
      score: `[S, B]` the rewards before.
      searched: `[S, B]` bool, False where the game was over.
      best: `[S, B]` the best total so far.
      num_evaluations: `[S, B]` int32, states that the simulations evaluated.
    """

    state: Any
    action: chex.Array
    value: chex.Array
    score: chex.Array
    searched: chex.Array
    best: chex.Array
    num_evaluations: chex.Array


class Solution(NamedTuple):
    """The best line that was seen on each of B boards.

    Attributes:
      score: `[B]` its score.
      moves: `[B, L]` its actions from the given board on, -1 after the last.
      num_moves: `[B]` int32, how many.
      played: `[B]` the score of the moves that were played; -inf if the game was not played to its
        end. Never above `score`.
      searches: all that was searched.
    """

    score: chex.Array
    moves: chex.Array
    num_moves: chex.Array
    played: chex.Array
    searches: Searches


def solve(
    env: Any,
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
    """Plays B games, a search for every move, and returns the best lines that were seen.

    Seify 2020, section 5.2.2: each search has the same budget and its answer is played. The best
    line ever seen is remembered, and in the end it counts, not the one that was played.

    Args:
      env: a game of one player.
      root_fn: from `make_line_fns`.
      plan: the search, `(rng_keys [B], root, invalid_actions [B, A], nodes, adapted_params) ->
        PolicyOutput`, with `best_of=lambda line: line.total`.
      params: the network's parameters, for `root_fn`.
      rng_key: one key, or `[B]` keys, one per board; consumed. With a key per board, a board's
        answer does not depend on the others.
      state: `[B]` positions.
      num_searches: S, the most searches of a board; None searches until every game is over. 1
        spends everything on the first move.
      restart: whether a game that is over begins anew, until S searches are done.
      follow: "value" plays the search's action, as the thesis does; "best" plays the next move of
        the best line.
      num_kept: nodes to hand on from search to search (`reroot`); 0 begins each search from
        nothing, as the thesis does where it uses rollouts.
      adapted_params: what a search that adapts starts each game from, one per board, to be handed
        on from search to search; None begins each search from the network's own.
      max_moves: as in `start_lines`.

    Returns:
      The solution. A board without a move has score 0 and no moves.

    Raises:
      ValueError: if `follow` is another word, a count is out of range, or `restart` has no
        `num_searches` to end it.
    """
    if follow not in ("value", "best"):
        raise ValueError(f'follow must be "value" or "best", got {follow!r}.')
    if (num_searches is not None and num_searches < 1) or num_kept < 0:
        raise ValueError(
            "num_searches must be at least 1 or None, and num_kept at least 0; got "
            f"{num_searches} and {num_kept}."
        )
    if restart and num_searches is None:
        raise ValueError("With restart a game never ends: num_searches must be given, got None.")
    start = start_lines(env, state, max_moves)
    batch_size, length = start.moves.shape
    keys = broadcast_keys(rng_key, batch_size)
    count = num_searches if restart or num_searches is not None else length
    assert count is not None

    def search(
        i: chex.Array, line: Line, nodes: Nodes | None, adapted: Params | None
    ) -> PolicyOutput:
        root_keys, plan_keys = jnp.moveaxis(
            jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, i)))(keys), 1, 0
        )
        root = root_fn(params, root_keys, line)
        legal = line.state.legal_action_mask & ~line.state.terminated[:, None]
        return plan(plan_keys, root, ~legal, nodes, adapted)

    def body(carry: tuple) -> tuple:
        i, line, best, played, nodes, adapted, searches = carry
        output = search(i, line, nodes, adapted)
        found = output.search_state
        playing = ~line.state.terminated
        best = _where(playing & (found.best.total > best.total), found.best, best)
        action = output.action
        if follow == "best":
            action = jnp.where(playing, _next_move(best, line, action), action)
        values = jnp.where(found.visits > 0, found.qvalues, -jnp.inf)
        entry = Searches(
            state=line.state,
            action=action,
            value=jnp.max(values, axis=-1),
            score=line.score,
            searched=playing,
            best=best.total,
            num_evaluations=found.num_evaluations,
        )
        entry = _where(playing, entry, jax.tree.map(jnp.zeros_like, entry))
        entry = entry._replace(best=best.total)
        searches = jax.tree.map(lambda x, new: x.at[i].set(new), searches, entry)
        after, _ = play_move(env, line, action)
        over = after.state.terminated
        played = jnp.where(playing & over, jnp.maximum(played, after.total), played)
        best = _where(after.total > best.total, after, best)
        again = over & restart
        if nodes is not None:
            nodes = reroot(found.nodes, action, num_kept=num_kept, reset=again)
        if adapted is not None:
            adapted = _where(again, adapted_params, _where(playing, found.params, adapted))
        return i + 1, _where(again, start, after), best, played, nodes, adapted, searches

    def goes_on(carry: tuple) -> chex.Array:
        return (carry[0] < count) & jnp.any(~carry[1].state.terminated)

    nodes = None
    if num_kept:
        # An empty memory is full of zeros.
        shapes = jax.eval_shape(lambda: search(jnp.int32(0), start, None, None).search_state.nodes)
        nodes = jax.tree.map(
            lambda x: jnp.zeros(x.shape if x.ndim == 1 else (batch_size, num_kept, *x.shape[2:]),
                                x.dtype),
            shapes,
        )  # fmt: skip
    reals, whole = jnp.zeros((count, batch_size)), jnp.zeros((count, batch_size), jnp.int32)
    searches = Searches(
        state=jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), state),
        action=whole,
        value=reals,
        score=reals,
        searched=whole.astype(bool),
        best=reals,
        num_evaluations=whole,
    )
    carry = (jnp.int32(0), start, start, start.total, nodes, adapted_params, searches)
    num_done, _, best, played, _, _, searches = jax.lax.while_loop(goes_on, body, carry)
    done = jnp.arange(count)[:, None] < num_done
    searches = searches._replace(best=jnp.where(done, searches.best, best.total[None]))
    return Solution(
        score=best.total,
        moves=best.moves,
        num_moves=jnp.sum(best.moves >= 0, axis=-1, dtype=jnp.int32),
        played=played,
        searches=searches,
    )


def _next_move(best: Line, line: Line, otherwise: chex.Array) -> chex.Array:
    """Returns the move of the best line that follows those played, if it begins with them."""
    length = line.moves.shape[1]
    earlier = jnp.arange(length)[None] < line.num_played[:, None]
    same = jnp.all(~earlier | (best.moves == line.moves), axis=-1)
    place = jnp.minimum(line.num_played, length - 1)[:, None]
    move = jnp.take_along_axis(best.moves, place, axis=1)[:, 0].astype(otherwise.dtype)
    return jnp.where(same & (move >= 0), move, otherwise)


def _where(condition: chex.Array, new: Any, old: Any) -> Any:
    """Chooses between two pytrees `[B, ...]`, board by board."""
    return jax.tree.map(
        lambda n, o: jnp.where(condition.reshape(-1, *[1] * (jnp.ndim(n) - 1)), n, o), new, old
    )
