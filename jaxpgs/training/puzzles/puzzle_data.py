"""Searches of many boards: the examples of a one-player network, and its evaluation."""

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
    """Compiles a search, and distributes its boards over the devices.

    Args:
      solver: the search. If devices share the boards it gets one key for each board.
      mesh: the devices, None for the default one.

    Returns:
      `solver`. Its results do not depend on the devices if each board uses only its own key.
    """
    if mesh is None:
        return jax.jit(solver)
    # Boards are on axis 0, except in `searches`, which are `[S, B]`.
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
    """Searches the boards of one iteration and collects examples from the searches.

    Args:
      env: a game of one player.
      solver: the search, from `jit_solver`.
      params: its network's parameters.
      rng_key: a key, consumed.
      num_runs: the number of boards, drawn from `env.init`.
      runs_at_once: boards searched in parallel, a divisor of `num_runs`.
      value_target: as in `train`.

    Returns:
      Examples as NumPy arrays, but for random keys in states, one for each position that was
      searched; and the mean scores of the best games and of the games played, as `score` and
      `played`.
    """
    found, scores, played = [], [], []
    for chunk in range(num_runs // runs_at_once):
        init_key, play_key = jax.random.split(jax.random.fold_in(rng_key, chunk))
        boards = jax.vmap(env.init)(jax.random.split(init_key, runs_at_once))
        solution = sharding.fetch(solver(params, play_key, boards))
        searches = solution.searches
        value = searches.value
        # Eq. 6.2: the final score of the game played, minus its score before this position.
        if value_target == "return":
            value = solution.played[None] - searches.score
        examples = Examples(searches.state, searches.action, value.astype(np.float32))
        # A game that was not played to its end has no return, so it gives no examples then.
        keep = searches.searched & np.isfinite(value)
        found.append(jax.tree.map(lambda x, keep=keep: x[keep], examples))
        scores.append(solution.score)
        # An unfinished game gets a very low score, as -inf would hide all others in the mean.
        played.append(np.maximum(solution.played, -1e6))
    # NumPy cannot concatenate random keys, which stay arrays of JAX.
    examples = jax.tree.map(
        lambda *parts: (np if isinstance(parts[0], np.ndarray) else jnp).concatenate(parts), *found
    )
    return examples, {
        "score": float(np.mean(np.concatenate(scores))),
        "played": float(np.mean(np.concatenate(played))),
    }


def make_measure(
    env: Env, apply_fn: ApplyFn, num_boards: int
) -> Callable[..., dict[str, chex.Array]]:
    """Makes the function that compares the policy alone with random play.

    Args:
      env: a game of one player.
      apply_fn: the network.
      num_boards: the number of boards to play.

    Returns:
      `(params, rng_key) -> scores`, means over boards drawn with the key: `policy_score` of games
      sampled from the policy, `greedy_score` of games with its most likely actions, `random_score`
      of random games.
    """

    def measure(params: Params, rng_key: chex.PRNGKey) -> dict[str, chex.Array]:
        board_key, play_key = jax.random.split(rng_key)
        state = jax.vmap(env.init)(jax.random.split(board_key, num_boards))
        keys = jax.random.split(play_key, num_boards)
        logits = jnp.zeros((num_boards, env.num_actions))
        scores = {}
        most = LONGEST_GAME  # independent of the solver's limit: rollouts end with the last game
        for name, rollout in (
            ("policy_score", informed_rollouts(env, apply_fn, max_moves=most)),
            ("greedy_score", informed_rollouts(env, apply_fn, greedy=True, max_moves=most)),
            ("random_score", random_rollouts(env, max_moves=most)),
        ):
            score, _ = rollout(params, keys, state, logits)
            # A board that is terminal at the start scores 0.
            scores[name] = jnp.mean(jnp.where(state.terminated, 0.0, score))
        return scores

    return measure
