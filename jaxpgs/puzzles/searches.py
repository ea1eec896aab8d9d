"""Searches that play whole games of one player and return the best game they ever saw.

They are the searches of Seify 2020 and policy gradient search. Each is a short preset of `solve`,
which searches, plays a move and searches again. All take B boards at once and can be jitted.
"""

from collections.abc import Callable
from typing import Any

import chex
import mctx
import optax

from jaxpgs.adapters.environments import RootFn
from jaxpgs.base import Adapt, Env, Params, PolicyOutput
from jaxpgs.networks import policy_head
from jaxpgs.networks.functional import ApplyFn, SplitApplyFn
from jaxpgs.puzzles.episodes import check_boards, make_episode_fns
from jaxpgs.puzzles.rollouts import (
    first_by_prior,
    informed_rollouts,
    longest_game,
    random_rollouts,
)
from jaxpgs.puzzles.solving import Solution, solve
from jaxpgs.search import Nodes, batched_mcts_policy, init_adapted, mcs_policy, pgs_policy
from jaxpgs.search.parts.backup import n_step
from jaxpgs.search.parts.estimator import Estimator, auto_sgd, reinforce
from jaxpgs.search.parts.selection import max_min_puct
from jaxpgs.search.parts.target import best_value
from jaxpgs.search.parts.truncation import fixed


def plain_mcts(
    env: Env,
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

    It uses a uniform prior, max-min-normalised values, a virtual loss relative to them, and random
    rollouts to the end of the game. It plays the action with the highest value.

    Args:
      env: a game of one player, such as `envs.SameGame`.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations per move.
      c_puct: weight of exploration; the thesis uses 30 on 7x7, 4 on 10x10 and 2 or 10 on 15x15.
      virtual_loss: w of eq. 4.4.
      simulations_per_update: K, simulations at a time (the threads of the thesis), a divisor of N.
      tabu: whether rollouts keep the most frequent colour for last; in the thesis they do not.
      **knobs: arguments of `solve`, and of `batched_mcts_policy`, such as `max_depth`.

    Returns:
      The solution.

    Example:
      >>> search = functools.partial(jaxpgs.puzzles.plain_mcts, puzzle, num_simulations=8)
      >>> solution = jax.eval_shape(search, rng_key, boards)  # jax.jit(search) solves
      >>> solution.score.shape, solution.moves.shape
      ((2,), (2, 4))
    """
    rollout = random_rollouts(env, tabu=tabu, max_moves=knobs.get("max_moves"))
    fns = make_episode_fns(env, rollout=rollout)
    selection = max_min_puct(c_puct, virtual_loss=virtual_loss)
    # The caller's arguments override those of the preset.
    knobs = {"root_selection": selection, "simulations_per_update": simulations_per_update} | knobs
    return _tree_search(env, fns, {}, rng_key, state, num_simulations, knobs)


def policy_mcts(
    env: Env,
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
      num_simulations: N, simulations per move.
      rollout: "random", or "informed" for actions drawn from the policy. Both begin with the most
        likely action of the policy.
      c_puct: weight of exploration.
      virtual_loss: w of eq. 4.4.
      simulations_per_update: K, a divisor of N.
      **knobs: as in `plain_mcts`.

    Returns:
      The solution.

    Raises:
      ValueError: if `rollout` is neither "random" nor "informed".

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
      >>> mcts = jaxpgs.puzzles.policy_mcts
      >>> search = functools.partial(mcts, puzzle, apply_fn, num_simulations=8)
      >>> jax.eval_shape(search, params, rng_key, boards).score.shape  # jax.jit(search) solves
      (2,)
    """
    if rollout not in ("random", "informed"):
        raise ValueError(f'rollout must be "random" or "informed", got {rollout!r}.')
    # Seify 2020, section 5.1: both kinds of rollouts begin with the prior's most likely action.
    most = knobs.get("max_moves")
    if rollout == "random":
        kind = random_rollouts(env, max_moves=most)
    else:
        kind = informed_rollouts(env, apply_fn, max_moves=most)
    fns = make_episode_fns(env, apply_fn, rollout=first_by_prior(env, kind))
    selection = max_min_puct(c_puct, virtual_loss=virtual_loss)
    knobs = {"root_selection": selection, "simulations_per_update": simulations_per_update} | knobs
    return _tree_search(env, fns, params, rng_key, state, num_simulations, knobs)


def pv_mcts(
    env: Env,
    apply_fn: ApplyFn,
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    *,
    rollout_share: float = 0.5,
    c_puct: float = 3.0,
    virtual_loss: float = 0.01,
    simulations_per_update: int = 8,
    **knobs: Any,
) -> Solution:
    """Tree search with a network's policy and value (Seify 2020, chapter 6 and section 7.1).

    By default the whole tree is kept from move to move; see `num_kept` of `solve`. A new state's
    value is a mixture of the network's value and the return of a random game. `rollout_share=0.0`
    gives chapter 6: no random games are played, and the best game is one that the tree or the
    played moves finished.

    Args:
      env: a game of one player.
      apply_fn: the network; its value is in units of the game's rewards.
      params: its parameters.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations per move.
      rollout_share: weight of a random game's return in a new state's value, from 0, where no games
        are played, to 1, which ignores the network's value. Games that are played count as seen.
      c_puct: weight of exploration.
      virtual_loss: w of eq. 4.4.
      simulations_per_update: K, a divisor of N.
      **knobs: as in `plain_mcts`.

    Returns:
      The solution.

    Raises:
      ValueError: if `rollout_share` is out of range.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
      >>> search = functools.partial(jaxpgs.puzzles.pv_mcts, puzzle, apply_fn, num_simulations=8)
      >>> jax.eval_shape(search, params, rng_key, boards).score.shape  # jax.jit(search) solves
      (2,)
    """
    rollout = random_rollouts(env, max_moves=knobs.get("max_moves")) if rollout_share else None
    share = rollout_share if rollout_share else 1.0  # without rollouts there is nothing to mix
    fns = make_episode_fns(env, apply_fn, rollout=rollout, rollout_share=share)
    selection = max_min_puct(c_puct, virtual_loss=virtual_loss)
    knobs = {
        "root_selection": selection,
        "simulations_per_update": simulations_per_update,
        # The root and a node for each simulation: the whole tree of a search may be kept.
        "num_kept": num_simulations + 1,
    } | knobs
    return _tree_search(env, fns, params, rng_key, state, num_simulations, knobs)


def pgs(
    env: Env,
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
    """Policy gradient search for games of one player, in memory that does not grow with moves.

    Anthony et al. 2019, with the findings of Seify 2020 for such games: max-min-normalised values
    at the root, and the action with the highest value is played. Simulations follow the adapted
    policy to the end of the game, or stop after `depth` moves and use the network's value. After
    every K simulations the policy head takes a REINFORCE step on their returns, which are centred
    and divided by their standard deviation.

    Args:
      env: a game of one player.
      apply_fn: the network.
      params: its parameters.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations per move.
      adapt: which parameters adapt, as in `pgs_policy`; `networks.policy_head(params)` if None.
      depth: moves after which a simulation stops; None simulates to the end.
      c_puct: weight of exploration at the root.
      virtual_loss: w of eq. 4.4 of the thesis.
      simulations_per_update: K, at least 2, a divisor of N.
      estimator: `reinforce("mean", normalize=True)` if None.
      optimizer: as in `pgs_policy`; `auto_sgd(0.1)` if None. Advantages here are in units of the
        returns' standard deviation, and updates accumulate over a game, so the steps are small.
      forget: whether each search begins with the network's own policy head instead of the head
        that the previous search of the game adapted.
      **knobs: arguments of `solve` except `num_kept`, and of `pgs_policy`.

    Returns:
      The solution.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
      >>> search = functools.partial(jaxpgs.puzzles.pgs, puzzle, apply_fn, num_simulations=8)
      >>> jax.eval_shape(search, params, rng_key, boards).score.shape  # jax.jit(search) solves
      (2,)
    """
    check_boards("pgs", state)
    adapt = policy_head(params) if adapt is None else adapt
    knobs = {
        "estimator": estimator or reinforce("mean", normalize=True),
        "optimizer": optimizer or auto_sgd(0.1),
        "adapt": adapt,
    } | knobs
    # Some of the arguments are for `solve`, the others for `pgs_policy`.
    loop, search = _split_knobs(
        _sampling(_depth(env, depth, knobs), c_puct, virtual_loss, simulations_per_update) | knobs
    )
    if not forget:
        # One head for each board, which every search of a game takes over from the previous one.
        loop["adapted_params"] = init_adapted(params, adapt, len(state.terminated))
    fns = make_episode_fns(env, apply_fn, split=isinstance(apply_fn, SplitApplyFn))
    return _play(env, fns, params, rng_key, state, num_simulations, pgs_policy, loop, search)


def mcs(
    env: Env,
    apply_fn: ApplyFn,
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    *,
    depth: int | None = None,
    c_puct: float = 5.0,
    virtual_loss: float = 0.01,
    simulations_per_update: int = 8,
    **knobs: Any,
) -> Solution:
    """`pgs` without learning: simulations follow the network's own policy.

    Args:
      env: a game of one player.
      apply_fn: the network.
      params: its parameters.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, simulations per move.
      depth: moves after which a simulation stops; None simulates to the end.
      c_puct: weight of exploration at the root.
      virtual_loss: w of eq. 4.4 of the thesis.
      simulations_per_update: K, a divisor of N.
      **knobs: arguments of `solve` except `num_kept`, and of `mcs_policy`.

    Returns:
      The solution.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
      >>> search = functools.partial(jaxpgs.puzzles.mcs, puzzle, apply_fn, num_simulations=8)
      >>> jax.eval_shape(search, params, rng_key, boards).score.shape  # jax.jit(search) solves
      (2,)
    """
    loop, search = _split_knobs(
        _sampling(_depth(env, depth, knobs), c_puct, virtual_loss, simulations_per_update) | knobs
    )
    fns = make_episode_fns(env, apply_fn)
    return _play(env, fns, params, rng_key, state, num_simulations, mcs_policy, loop, search)


def _depth(env: Env, depth: int | None, knobs: dict[str, Any]) -> int:
    """Returns the moves after which a simulation stops, by default the maximum length."""
    return longest_game(env, knobs.get("max_moves")) if depth is None else depth


def _sampling(
    depth: int, c_puct: float, virtual_loss: float, simulations_per_update: int
) -> dict[str, Any]:
    """Returns the parts that `pgs` and `mcs` share."""
    return {
        "root_selection": max_min_puct(c_puct, virtual_loss=virtual_loss),
        "truncation": fixed(depth),
        "simulations_per_update": simulations_per_update,
        "backup": n_step(),
        "target": best_value(),
        "mode": "rollouts",
        # Below the root, actions are drawn from the policy, not chosen by visits.
        "interior_selection": None,
    }


_LOOP = ("num_searches", "restart", "follow", "num_kept", "max_moves")


def _tree_search(
    env: Env,
    fns: tuple[RootFn, Any],
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    knobs: dict[str, Any],
) -> Solution:
    loop, search = _split_knobs(knobs)
    depth = min(longest_game(env, loop.get("max_moves")), 64)
    search = {"target": best_value(), "max_depth": depth} | search
    policy_fn = batched_mcts_policy
    return _play(env, fns, params, rng_key, state, num_simulations, policy_fn, loop, search)


def _play(
    env: Env,
    fns: tuple[RootFn, Any],
    params: Params,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    policy_fn: Callable[..., PolicyOutput],
    loop: dict[str, Any],
    search: dict[str, Any],
) -> Solution:
    """Solves by searches that each reuse the previous one: a tree's nodes, or PGS's head."""
    root_fn, recurrent_fn = fns

    def plan(
        rng_keys: chex.PRNGKey,
        root: mctx.RootFnOutput,
        invalid: chex.Array,
        nodes: Nodes | None,
        adapted: Params | None,
    ) -> PolicyOutput:
        # PGS passes its head from search to search, a tree search its nodes.
        kept = {"adapted_params": adapted} if policy_fn is pgs_policy else {"nodes": nodes}
        return policy_fn(
            params,
            rng_keys,
            root,
            recurrent_fn,
            num_simulations,
            invalid,
            best_of=lambda episode: episode.total,
            **kept,
            **search,
        )

    return solve(env, root_fn, plan, params, rng_key, state, **loop)


def _split_knobs(knobs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separates the arguments of `solve` from those of the search."""
    loop = {name: knobs[name] for name in _LOOP if name in knobs}
    return loop, {name: knob for name, knob in knobs.items() if name not in _LOOP}
