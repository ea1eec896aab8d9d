"""Games for a model to learn from: mostly random, each position judged by somebody strong."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.base import Params
from jaxpgs.checks import check_number
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.training import experts, selfplay


def label_games(
    env: Any,
    apply_fn: ApplyFn,
    params: Params,
    *,
    num_games: int,
    expert: experts.Expert | None = None,
    epsilon: float = 0.9,
    games_at_once: int = 512,
    num_steps: int = 32,
    seed: int = 0,
    callback: Callable[[int], Any] | None = None,
) -> selfplay.Experience:
    """Plays games at random, mostly, and has every position judged (Brosseit 2023, section 5.4).

    Args:
      env: the environment of two players.
      apply_fn: the network that the expert uses.
      params: its parameters.
      num_games: how many games to finish, at least 1; the thesis has 256,000.
      expert: who judges; `experts.raw_network()` if None, for a network that needs no search. The
        thesis searches with 1,000 simulations.
      epsilon: how often a move is random, 0 to 1.
      games_at_once: G, games played side by side.
      num_steps: moves of each game per jitted call.
      seed: seed of the games.
      callback: called with the number of finished games after every jitted call.

    Returns:
      Experience with batch axes `[T, G]` of NumPy arrays, with `played`; values are the expert's.

    Raises:
      ValueError: if an argument is out of range.
    """
    for name, count in {
        "num_games": num_games, "games_at_once": games_at_once, "num_steps": num_steps,
    }.items():  # fmt: skip
        check_number("label_games", name, count, 1)
    judge = experts.epsilon_greedy(expert or experts.raw_network(), epsilon)
    play_key, games_key = jax.random.split(jax.random.key(seed))

    @jax.jit
    def play(params: Params, rng_key: chex.PRNGKey, games: selfplay.SelfPlayGames) -> Any:
        games, experience, report = selfplay.play(
            env, apply_fn, judge, params, rng_key, games, num_steps,
            sampled_moves=2**30, keep_played=True, value_target="search",
        )  # fmt: skip
        seen = experience.observation.astype(jnp.int8)
        return games, experience._replace(observation=seen), jnp.sum(report.finished)

    games, finished = selfplay.init_games(env, games_key, games_at_once), 0
    parts: list[selfplay.Experience] = []
    while finished < num_games:
        games, experience, count = play(params, jax.random.fold_in(play_key, len(parts)), games)
        parts.append(jax.device_get(experience))
        finished += int(count)
        if callback is not None:
            callback(finished)
    return jax.tree.map(lambda *blocks: np.concatenate(blocks), *parts)
