"""Searches of many boards: what a network for games of one player learns, and its measurement."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.adapters.environments import LONGEST_GAME
from jaxpgs.base import Env, Params
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.puzzles import Solution, informed_rollouts, random_rollouts
from jaxpgs.training.puzzles.fitting import Examples
from jaxpgs.training.runtime import sharding

# The search that plays: (params, rng_key, state [B]) -> Solution
Solver = Callable[[Params, chex.PRNGKey, Any], Solution]


def jit_solver(solver: Solver, mesh: jax.sharding.Mesh | None) -> Solver:
    """Compiles a search, and lets devices share its boards.

    Args:
      solver: the search. Where devices share the boards it is given a key for each.
      mesh: the devices, None for the default one.

    Returns:
      `solver`, with the same answers for each board if they come of its own key alone.
    """
    if mesh is None:
        return jax.jit(solver)
    # Boards are on axis 0, but for `searches`, which are `[S, B]`.
    by_board = Solution(0, 0, 0, 0, 1)  # type: ignore[arg-type]
    shared = sharding.per_device(mesh, solver, (None, 0, 0), by_board)

    def solve(params: Params, rng_key: chex.PRNGKey, state: Any) -> Solution:
        return shared(params, jax.random.split(rng_key, len(state.terminated)), state)

    return jax.jit(solve)


def search_boards(
    env: Env,
    solver: Solver,
    params: Params,
    rng_key: chex.PRNGKey,
    num_runs: int,
    runs_at_once: int,
    value_target: str,
) -> tuple[Examples, dict[str, float]]:
    """Searches the boards of one iteration and lists what the searches teach.

    Args:
      env: a game of one player.
      solver: the search, from `jit_solver`.
      params: its network's parameters.
      rng_key: a key, consumed.
      num_runs: how many boards, drawn from `env.init`.
      runs_at_once: how many of them side by side, a divisor of `num_runs`.
      value_target: as in `train`.

    Returns:
      Examples as NumPy arrays, one for each position that was searched, and the means of the best
      games' scores and of those played, as `score` and `played`.
    """
    found, scores, played = [], [], []
    for chunk in range(num_runs // runs_at_once):
        init_key, play_key = jax.random.split(jax.random.fold_in(rng_key, chunk))
        boards = jax.vmap(env.init)(jax.random.split(init_key, runs_at_once))
        solution = sharding.fetch(solver(params, play_key, boards))
        searches = solution.searches
        value = searches.value
        # Eq. 6.2: what the game played earned in all, less what it had before this position.
        if value_target == "return":
            value = solution.played[None] - searches.score
        examples = Examples(searches.state, searches.action, value.astype(np.float32))
        # A game that was not played to its end has no return, and teaches nothing then.
        keep = searches.searched & np.isfinite(value)
        found.append(jax.tree.map(lambda x, keep=keep: x[keep], examples))
        scores.append(solution.score)
        # A game without an end counts as a very bad one, as -inf would hide all others in the mean.
        played.append(np.maximum(solution.played, -1e6))
    examples = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    return examples, {
        "score": float(np.mean(np.concatenate(scores))),
        "played": float(np.mean(np.concatenate(played))),
    }


def make_measure(
    env: Env, apply_fn: ApplyFn, num_boards: int
) -> Callable[..., dict[str, chex.Array]]:
    """Makes the measurement of the policy alone against random play.

    Args:
      env: a game of one player.
      apply_fn: the network.
      num_boards: how many boards are played.

    Returns:
      `(params, rng_key) -> scores`, means over the boards, which are those of the key:
      `policy_score` of games drawn from the policy, `greedy_score` of games by its likeliest
      actions, `random_score` of random ones.
    """

    def measure(params: Params, rng_key: chex.PRNGKey) -> dict[str, chex.Array]:
        board_key, play_key = jax.random.split(rng_key)
        state = jax.vmap(env.init)(jax.random.split(board_key, num_boards))
        keys = jax.random.split(play_key, num_boards)
        logits = jnp.zeros((num_boards, env.num_actions))
        scores = {}
        most = LONGEST_GAME  # whatever the solver allows: rollouts end with the last game
        for name, rollout in (
            ("policy_score", informed_rollouts(env, apply_fn, max_moves=most)),
            ("greedy_score", informed_rollouts(env, apply_fn, greedy=True, max_moves=most)),
            ("random_score", random_rollouts(env, max_moves=most)),
        ):
            score, _ = rollout(params, keys, state, logits)
            # A board that is over at once earns nothing.
            scores[name] = jnp.mean(jnp.where(state.terminated, 0.0, score))
        return scores

    return measure
