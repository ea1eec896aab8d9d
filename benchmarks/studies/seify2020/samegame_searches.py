"""The searches that `benchmarks.studies.seify2020.samegame` compares, by name.

To add one, put a `Search` into `SEARCHES`: a function of a game and a number of boards M that
compiles the search, which is not timed, and returns a `Run`. A `Run` is an endless generator that
yields the `Best` so far after at most a second of work. `on_devices` makes a `Search` of pure
functions.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import jaxpgs
from jaxpgs import puzzles
from jaxpgs.envs import SameGame
from jaxpgs.envs.samegame.sequences import code_features, play_sequences
from jaxpgs.puzzles import NestedSearch, TemperingSearch, nrpa_search, tempering_search
from jaxpgs.puzzles.nrpa_samegame import default_pairs, default_sharing


class Best(NamedTuple):
    """The best that a search has found so far on each of M boards.

    Attributes:
      actions: M games, each a list of cells.
      scores: the M scores of these games by the search; the benchmark replays the games.
      simulations: how many games the search has played on each board.
    """

    actions: list[list[int]]
    scores: list[float]
    simulations: int


Run = Callable[[np.ndarray, chex.PRNGKey], Iterator[Best]]
Search = Callable[[SameGame, int], Run]
Play = Callable[[SameGame, Any, Any, int], Any]


def nrpa_on_devices(*, by_color: bool = True, pairs: bool | None = None, **knobs: Any) -> Search:
    """Makes nested rollout policy adaptation, with independent runs on each device.

    Args:
      by_color: whether blocks of a colour learn from one another.
      pairs: whether a block has one logit while its group is a pair and another in larger groups;
        `default_pairs` if None.
      **knobs: arguments of `jaxpgs.puzzles.nrpa_search`.
    """
    lanes = int(np.prod(knobs["parallel"]))

    def make(env: SameGame, states: Any) -> NestedSearch:
        by_size = default_pairs(env) if pairs is None else pairs
        features = code_features(env, states, pairs=by_size) if by_color else None
        games = jax.tree.map(lambda x: jnp.repeat(x, lanes, axis=0), states)
        search = nrpa_search(
            lambda keys, logits: play_sequences(env, keys, games, logits),
            features=features,
            **{"sharing": default_sharing(env)} | knobs,
        )
        bias = jnp.zeros(((1 + by_size) * env.num_actions, len(states.terminated)))
        return search._replace(init=lambda keys: search.init(bias))

    return on_devices(make)


def tempering_on_devices(steps: int = 25, **knobs: Any) -> Search:
    """Makes parallel tempering on each device; the clock is checked after every `steps` steps."""

    def make(env: SameGame, states: Any) -> TemperingSearch:
        search = tempering_search(env, states, **knobs)

        def step(keys: chex.PRNGKey, state: Any) -> Any:
            return jax.lax.fori_loop(0, steps, lambda _, state: search.step(keys, state), state)

        return search._replace(step=step, games_per_step=steps * search.games_per_step)

    return on_devices(make)


def on_devices(make: Callable[[SameGame, Any], Any]) -> Search:
    """Makes a search that runs independently on each device.

    `make` takes a game and M positions, and returns a search with `init`, a function of `[M]` keys,
    and `step`, `finish` and `games_per_step`.
    """

    def prepare(env: SameGame, num_boards: int) -> Run:
        mesh = Mesh(np.array(jax.devices()), "devices")
        each = PartitionSpec("devices")

        def on_each(function: Callable[..., Any]) -> Callable[..., Any]:
            """Runs a function on every device, with its own slice of each of the last arguments."""

            def one(states: Any, *args: Any) -> Any:
                args = jax.tree.map(lambda x: x[0], args)
                return jax.tree.map(lambda x: x[None], function(states, *args))

            def all_devices(states: Any, *args: Any) -> Any:
                specs = (PartitionSpec(), *[each] * len(args))
                how: Any = {"mesh": mesh, "in_specs": specs, "out_specs": each, "check_vma": False}
                return jax.shard_map(one, **how)(states, *args)

            return jax.jit(all_devices, compiler_options=_options())

        init = on_each(lambda states, keys: make(env, states).init(keys))
        step = on_each(lambda states, keys, state: make(env, states).step(keys, state))
        best = on_each(lambda states, state: make(env, states).finish(state))

        def run(boards: np.ndarray, rng_key: chex.PRNGKey) -> Iterator[Best]:
            states = jax.tree.map(lambda *x: jnp.stack(x), *[env.from_board(b) for b in boards])
            keys = jax.random.split(rng_key, (2, mesh.size, num_boards))
            state, games = init(states, keys[0]), mesh.size * make(env, states).games_per_step
            for count in itertools.count(1):
                state = step(states, keys[1], state)
                yield _read(best(states, state), count * games)

        # The first step compiles, before the clock starts.
        next(run(np.stack([_checkered(env)] * num_boards), jax.random.key(0)))
        return run

    return prepare


def whole_games(play: Play, num_simulations: int) -> Search:
    """Makes a `Search` of a search in `jaxpgs.puzzles`, which plays one game after another.

    The result is the best game that was seen in all searches. No game learns from earlier ones.

    Args:
      play: `(env, rng_keys [M], states [M], num_simulations) -> Solution`.
      num_simulations: simulations a move.
    """

    def prepare(env: SameGame, num_boards: int) -> Run:
        solve = jax.jit(lambda keys, states: play(env, keys, states, num_simulations))

        def run(boards: np.ndarray, rng_key: chex.PRNGKey) -> Iterator[Best]:
            states = jax.tree.map(lambda *x: jnp.stack(x), *[env.from_board(b) for b in boards])
            best = Best([[] for _ in boards], [-np.inf] * len(boards), 0)
            for game in itertools.count():
                keys = jax.random.split(jax.random.fold_in(rng_key, game), num_boards)
                found = jax.device_get(solve(keys, states))
                for m, score in enumerate(found.score.tolist()):
                    if score > best.scores[m]:
                        best.actions[m] = found.moves[m, : found.num_moves[m]].tolist()
                        best.scores[m] = score
                moves = int(found.searches.searched.sum(axis=0).max())
                best = best._replace(simulations=best.simulations + num_simulations * moves)
                yield best

        # The first game compiles. All boards have one shape, so a board with a short game suffices.
        next(run(np.stack([_checkered(env)] * num_boards), jax.random.key(0)))
        return run

    return prepare


def with_network(play: Callable[..., Any], *, temperature: float = 1.0, **knobs: Any) -> Play:
    """Gives a search the network of the board's size that comes with the library.

    Args:
      play: a search of `jaxpgs.puzzles` that takes a network.
      temperature: the temperature of the network's policy.
      **knobs: further arguments of `play`.
    """

    def with_its_network(env: SameGame, rng_keys: Any, states: Any, num_simulations: int) -> Any:
        network = jaxpgs.load_pretrained(f"samegame-{env.height}x{env.width}")
        apply_fn = jaxpgs.networks.with_temperature(network.apply_fn, temperature)
        return play(env, apply_fn, network.params, rng_keys, states, num_simulations, **knobs)

    return with_its_network


def _checkered(env: SameGame) -> np.ndarray:
    """Returns a board whose game is short, for compiling."""
    return np.arange(env.num_actions).reshape(env.height, env.width) % 2 % env.num_colors


def _read(games: Any, simulations: int) -> Best:
    """Returns each board's best game of all devices; `games` has shapes `[D, ..., M]`."""
    scores, actions = np.asarray(games.score), np.asarray(games.action)
    lengths = np.asarray(games.length)
    winner = scores.argmax(axis=0)
    found = [actions[d, : lengths[d, m], m].tolist() for m, d in enumerate(winner)]
    return Best(found, scores.max(axis=0).tolist(), simulations)


def _options() -> dict[str, Any]:
    # By default XLA's CPU backend uses vectors of at most half the greatest width.
    return {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}


# Few lanes, many iterations: with as many games, deep searches score more than broad ones.
_NESTED: dict[str, Any] = {"iterations": (100, 100, 100), "parallel": (4, 2, 1)}
# Those from "policy-mcts" on need a network, which comes with the library for some sizes.
SEARCHES: dict[str, Search] = {
    "random": nrpa_on_devices(iterations=(1,), parallel=(256,), playouts=64),
    "nrpa": nrpa_on_devices(**_NESTED),
    "tempering": tempering_on_devices(),
    # For accelerators: 4,096 games at once on each position.
    "nrpa wide": nrpa_on_devices(**_NESTED | {"parallel": (64, 16, 4)}),
    "mcts": whole_games(puzzles.plain_mcts, 256),
    "policy-mcts": whole_games(with_network(puzzles.policy_mcts), 256),
    "policy-mcts informed": whole_games(with_network(puzzles.policy_mcts, rollout="informed"), 256),
    "pgs": whole_games(with_network(puzzles.pgs), 256),
}
