"""Warnings about games that teach little: endless, resigned early, or nearly identical ones."""

import warnings
from collections.abc import Callable, Mapping

import chex
import jax
from flax import nnx

from jaxpgs.adapters.environments import LONGEST_GAME
from jaxpgs.base import Env, Params
from jaxpgs.networks import functional
from jaxpgs.training.two_player import experts, replay, selfplay


def make_watch(
    num_steps: int, distinct_at_random: Callable[[], float]
) -> Callable[[Mapping[str, float]], None]:
    """Makes a function of metrics that warns about games that teach little, once for each kind."""
    warned: set[str] = set()
    at_random: list[float] = []
    waited = [0]  # moves since a game ended

    # Once for each kind, as repeated warnings give no new information.
    def warn(kind: str, text: str) -> None:
        if kind not in warned:
            warned.add(kind)
            warnings.warn(text, stacklevel=2)

    def watch(metrics: Mapping[str, float]) -> None:
        count, share = metrics["finished_games"], metrics["resigned"]
        where = f"in iteration {metrics['iteration']:g}"
        waited[0] = 0 if count else waited[0] + num_steps
        # Long before evaluation games would reach their limit.
        if waited[0] >= LONGEST_GAME // 4:
            warn(
                "endless",
                f"No game has ended for {waited[0]} moves: nothing tells who wins. If games need "
                "not end, give max_moves, after which they end as they stand.",
            )
        # With fewer games the share is not reliable.
        if count >= 10 and share > 0.5:
            warn(
                "resigned",
                f"{share:.0%} of the games that ended {where} were resigned, after "
                f"{metrics['mean_length']:.1f} moves in the mean: what comes later is hardly "
                "learned. If that is not meant, train with games of resign_fraction=0.0.",
            )
        share = metrics["distinct_positions"]
        if share >= 0.1 or "repeats" in warned:
            return
        # A small game has few positions, so the share is compared with that of random play.
        if not at_random:
            at_random.append(distinct_at_random())
        if share < 0.2 * at_random[0]:
            warn(
                "repeats",
                f"Only {share:.1%} of the positions played {where} differ from one another, where "
                f"random play has {at_random[0]:.1%}: the replay buffer repeats itself. Let games "
                "begin after random moves, by max_random_moves, or draw more moves, by "
                "sampled_moves.",
            )

    return watch


def distinct_at_random(env: Env, network: nnx.Module, num_games: int, num_steps: int) -> float:
    """Returns the share of distinct positions in an iteration of random play."""
    params, apply_fn = functional(network)
    # Only random moves, counted as in training, so that the shares are comparable.
    expert = experts.epsilon_greedy(experts.raw_policy(), 1.0)

    @jax.jit
    def share(params: Params, rng_key: chex.PRNGKey) -> chex.Array:
        games = selfplay.init_games(env, rng_key, num_games)
        _, seen, _ = selfplay.play(
            env, apply_fn, expert, params, rng_key, games, num_steps,
            moves=selfplay.Moves(sampled_moves=2**30), kept=selfplay.Kept(value_target="search"),
        )  # fmt: skip
        return replay.distinct(seen.observation)

    return float(share(params, jax.random.key(0)))
