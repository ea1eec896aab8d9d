"""Whole games of one player: search, play a move, search again, and keep the best line ever seen.

`solve` is the loop; below it are the searches of Seify 2020 and policy gradient search, a few lines
each. All of them take B boards at once and can be jitted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx
import optax

from jaxpgs.adapters import ApplyFn, RootFn
from jaxpgs.base import Adapt, Params, PolicyOutput, broadcast_keys
from jaxpgs.lines import (
    Line,
    first_by_prior,
    informed_rollouts,
    make_line_fns,
    play_move,
    random_rollouts,
    start_lines,
)
from jaxpgs.networks import policy_head
from jaxpgs.search import (
    Nodes,
    adaptation,
    batched_mcts_policy,
    best_value,
    fixed,
    max_min_puct,
    n_step,
    pgs_policy,
    reinforce,
    reroot,
)
from jaxpgs.search.estimators import Estimator

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
      root_fn: from `lines.make_line_fns`.
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
      max_moves: as in `lines.start_lines`.

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


def plain_mcts(
    env: Any,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    *,
    c_puct: float = 10.0,
    virtual_loss: float = 0.01,
    simulations_per_update: int = 8,
    tabu: bool = False,
    **knobs: Any,
) -> Solution:
    """Monte Carlo tree search without a network (Seify 2020, chapter 4).

    A uniform prior, max-min-normalised values, virtual loss relative to them, random rollouts to
    the end of the game, the action of the highest value.

    Args:
      env: a game of one player, such as `envs.SameGame`.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations a move.
      c_puct: weight of exploration; the thesis takes 30 on 7x7, 4 on 10x10 and 2 or 10 on 15x15.
      virtual_loss: w of eq. 4.4.
      simulations_per_update: K, simulations at a time, a divisor of N; the thesis's threads.
      tabu: whether rollouts keep the most frequent colour for last; the thesis's do not.
      **knobs: arguments of `solve`, and `max_depth` and others of `batched_mcts_policy`.

    Returns:
      The solution.
    """
    rollout = random_rollouts(env, tabu=tabu)
    fns = make_line_fns(env, rollout=rollout)
    selection = max_min_puct(c_puct, virtual_loss=virtual_loss)
    knobs = {"root_selection": selection, "simulations_per_update": simulations_per_update} | knobs
    return _tree_search(env, fns, {}, rng_key, state, num_simulations, knobs)


def policy_mcts(
    env: Any,
    apply_fn: ApplyFn,
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    *,
    rollout: str = "random",
    c_puct: float = 5.0,
    virtual_loss: float = 0.01,
    simulations_per_update: int = 8,
    **knobs: Any,
) -> Solution:
    """`plain_mcts` with a network's policy as the prior (Seify 2020, chapter 5).

    Args:
      env: a game of one player.
      apply_fn: the network; its value is not used.
      params: its parameters.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations a move.
      rollout: "random", or "informed" for actions drawn from the policy. Both begin with the
        action that it likes best.
      c_puct: weight of exploration.
      virtual_loss: w of eq. 4.4.
      simulations_per_update: K, a divisor of N.
      **knobs: as in `plain_mcts`.

    Returns:
      The solution.

    Raises:
      ValueError: if `rollout` is another word.
    """
    if rollout not in ("random", "informed"):
        raise ValueError(f'rollout must be "random" or "informed", got {rollout!r}.')
    kind = random_rollouts(env) if rollout == "random" else informed_rollouts(env, apply_fn)
    fns = make_line_fns(env, apply_fn, rollout=first_by_prior(env, kind))
    selection = max_min_puct(c_puct, virtual_loss=virtual_loss)
    knobs = {"root_selection": selection, "simulations_per_update": simulations_per_update} | knobs
    return _tree_search(env, fns, params, rng_key, state, num_simulations, knobs)


def pv_mcts(
    env: Any,
    apply_fn: ApplyFn,
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    *,
    c_puct: float = 5.0,
    virtual_loss: float = 0.01,
    simulations_per_update: int = 8,
    **knobs: Any,
) -> Solution:
    """Tree search by a network's policy and value, without rollouts (Seify 2020, chapter 6).

    The tree is handed on from move to move, unless `num_kept` says otherwise. Only games that the
    tree or the moves played reach the end of count as lines.

    Args:
      env: a game of one player.
      apply_fn: the network; its value is in the game's own units.
      params: its parameters.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations a move.
      c_puct: weight of exploration.
      virtual_loss: w of eq. 4.4.
      simulations_per_update: K, a divisor of N.
      **knobs: as in `plain_mcts`.

    Returns:
      The solution.
    """
    fns = make_line_fns(env, apply_fn)
    selection = max_min_puct(c_puct, virtual_loss=virtual_loss)
    knobs = {
        "root_selection": selection,
        "simulations_per_update": simulations_per_update,
        "num_kept": num_simulations + 1,
    } | knobs
    return _tree_search(env, fns, params, rng_key, state, num_simulations, knobs)


def pgs(
    env: Any,
    apply_fn: ApplyFn,
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    *,
    adapt: Adapt = None,
    depth: int | None = None,
    c_puct: float = 5.0,
    virtual_loss: float = 0.01,
    simulations_per_update: int = 8,
    estimator: Estimator | None = None,
    optimizer: optax.GradientTransformation | None = None,
    forget: bool = False,
    **knobs: Any,
) -> Solution:
    """Policy gradient search for games of one player, in memory that no number of moves enlarges.

    Anthony et al. 2019, with what Seify 2020 found for such games: max-min-normalised values at the
    root, and the action of the highest one. Simulations follow the adapted policy to the end of the
    game, or as far as `depth` and then take the network's value. After K of them the policy head
    takes a REINFORCE step on their returns, less their mean and divided by their spread.

    Args:
      env: a game of one player.
      apply_fn: the network.
      params: its parameters.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations a move.
      adapt: which parameters adapt, as in `pgs_policy`; `networks.policy_head(params)` if None.
      depth: moves after which a simulation stops; None goes to the end.
      c_puct: weight of exploration at the root.
      virtual_loss: w of eq. 4.4 of the thesis.
      simulations_per_update: K, at least 2, a divisor of N.
      estimator: `reinforce("mean", normalize=True)` if None.
      optimizer: as in `pgs_policy`.
      forget: whether each search begins from the network's own policy head, not from what the
        game's last search made of it.
      **knobs: arguments of `solve` but `num_kept`, and of `pgs_policy`.

    Returns:
      The solution.
    """
    root_fn, recurrent_fn = make_line_fns(env, apply_fn)
    loop, own = _split_knobs(knobs)
    adapt = policy_head(params) if adapt is None else adapt
    search = {
        "root_selection": max_min_puct(c_puct, virtual_loss=virtual_loss),
        "truncation": fixed(depth or max(env.num_actions // 2, 1)),
        "simulations_per_update": simulations_per_update,
        "backup": n_step(),
        "estimator": estimator or reinforce("mean", normalize=True),
        "optimizer": optimizer,
        "target": best_value(),
    } | own
    if not forget:
        chosen, _ = adaptation.split(params, adaptation.adapt_mask(params, adapt))
        loop["adapted_params"] = adaptation.per_root(chosen, len(state.terminated))

    def plan(
        rng_keys: chex.PRNGKey,
        root: mctx.RootFnOutput,
        invalid: chex.Array,
        nodes: Nodes | None,
        adapted: Params | None,
    ) -> PolicyOutput:
        del nodes
        return pgs_policy(
            params,
            rng_keys,
            root,
            recurrent_fn,
            num_simulations,
            invalid,
            adapt=adapt,
            adapted_params=adapted,
            best_of=lambda line: line.total,
            **search,
        )

    return solve(env, root_fn, plan, params, rng_key, state, **loop)


_LOOP = ("num_searches", "restart", "follow", "num_kept", "max_moves")


def _tree_search(
    env: Any,
    fns: tuple[RootFn, Any],
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    knobs: dict[str, Any],
) -> Solution:
    root_fn, recurrent_fn = fns
    loop, search = _split_knobs(knobs)
    search = {"target": best_value(), "max_depth": min(max(env.num_actions // 2, 1), 64)} | search

    def plan(
        rng_keys: chex.PRNGKey,
        root: mctx.RootFnOutput,
        invalid: chex.Array,
        nodes: Nodes | None,
        adapted: Params | None,
    ) -> PolicyOutput:
        del adapted
        return batched_mcts_policy(
            params,
            rng_keys,
            root,
            recurrent_fn,
            num_simulations,
            invalid,
            nodes=nodes,
            best_of=lambda line: line.total,
            **search,
        )

    return solve(env, root_fn, plan, params, rng_key, state, **loop)


def _split_knobs(knobs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tells the arguments of `solve` from those of the search."""
    loop = {name: knobs[name] for name in _LOOP if name in knobs}
    return loop, {name: knob for name, knob in knobs.items() if name not in _LOOP}


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
