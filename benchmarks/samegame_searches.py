"""The searches that `benchmarks.samegame` compares, by name.

To add one, write a function like `nested` below, which returns a `Search`, and name it in
`SEARCHES`:

    def mine(**knobs) -> Search:
        def prepare(env, num_boards):
            step = jax.jit(...)                      # compile here; it is not timed
            def run(boards, rng_key):                # boards [M, height, width], M = num_boards
                while True:
                    ...                              # a second's work or less
                    yield Best(actions, simulations)
            return run
        return prepare

    SEARCHES["mine"] = mine()

A run goes on until the benchmark takes no more from it.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxpgs.envs import SameGame
from jaxpgs.envs.samegame_sequences import play_sequences
from jaxpgs.search.nrpa import NestedSearch, best_of_boards, nrpa_search


class Best(NamedTuple):
    """The best that a search has found so far on each of M boards.

    Attributes:
      actions: M games, each a list of cells.
      scores: M scores of them, as the search counts; the benchmark replays the games.
      simulations: how many games it has played on each board.
    """

    actions: list[list[int]]
    scores: list[float]
    simulations: int


Run = Callable[[np.ndarray, chex.PRNGKey], Iterator[Best]]
Search = Callable[[SameGame, int], Run]
Prior = Callable[[SameGame, np.ndarray], chex.Array]  # boards [M, H, W] -> logits [A, M]


def nested(prior: Prior | None = None, **knobs: Any) -> Search:
    """Makes a nested rollout policy adaptation, independent on each device.

    Args:
      prior: gives the logits that tables start from, such as a network's for the first board, which
        makes it generalised NRPA; None is uniform.
      **knobs: arguments of `jaxpgs.nrpa_search`.
    """

    def prepare(env: SameGame, num_boards: int) -> Run:
        mesh = Mesh(np.array(jax.devices()), "devices")
        lanes = int(np.prod(knobs["parallel"]))
        each = PartitionSpec("devices")

        def make(states: Any) -> NestedSearch:
            states = jax.tree.map(lambda x: jnp.repeat(x, lanes, axis=0), states)
            return nrpa_search(
                lambda keys, logits: play_sequences(env, keys, states, logits), **knobs
            )

        def on_each(function: Callable[..., Any]) -> Callable[..., Any]:
            """Runs on every device with its own slice of the last arguments."""

            def one(states: Any, *args: Any) -> Any:
                args = jax.tree.map(lambda x: x[0], args)
                return jax.tree.map(lambda x: x[None], function(states, *args))

            def all_devices(states: Any, *args: Any) -> Any:
                specs = (PartitionSpec(), *[each] * len(args))
                mapped = jax.shard_map(
                    one, mesh=mesh, in_specs=specs, out_specs=each, check_vma=False
                )
                return mapped(states, *args)

            return jax.jit(all_devices, compiler_options=_options())

        init = on_each(lambda states, bias: make(states).init(bias))
        step = on_each(lambda states, keys, state: make(states).step(keys, state))
        best = on_each(lambda states, state: best_of_boards(state, num_boards))

        def start(boards: np.ndarray, rng_key: chex.PRNGKey) -> tuple:
            states = jax.tree.map(lambda *x: jnp.stack(x), *[env.from_board(b) for b in boards])
            bias = prior(env, boards) if prior else jnp.zeros((env.num_actions, num_boards))
            keys = jax.random.split(rng_key, (mesh.size, num_boards))
            return states, keys, init(states, jnp.broadcast_to(bias, (mesh.size, *bias.shape)))

        def run(boards: np.ndarray, rng_key: chex.PRNGKey) -> Iterator[Best]:
            states, keys, state = start(boards, rng_key)
            games = knobs["iterations"][0] * knobs.get("playouts", 1) * lanes * mesh.size
            simulations = 0
            while True:
                state = step(states, keys, state)
                simulations += games
                yield _read(best(states, state), simulations)

        # The first step compiles.
        board = np.arange(env.num_actions).reshape(env.height, env.width) % 2 % env.num_colors
        next(run(np.broadcast_to(board, (num_boards, *board.shape)), jax.random.key(0)))
        return run

    return prepare


def network_prior(apply_fn: Any, params: Any, *, scale: float = 1.0) -> Prior:
    """Makes the prior of generalised NRPA from a network's logits of the first board's cells.

    A block keeps its cell's logit, centred, for the whole game, so the network is called once.

    Args:
      apply_fn: `(params, observation [M, ...]) -> (logits [M, A], value [M])`.
      params: its parameters.
      scale: what the logits are multiplied by.
    """

    def prior(env: SameGame, boards: np.ndarray) -> chex.Array:
        states = jax.tree.map(lambda *x: jnp.stack(x), *[env.from_board(b) for b in boards])
        logits = apply_fn(params, jax.vmap(env.observe)(states))[0]
        return scale * (logits - jnp.mean(logits, axis=1, keepdims=True)).T

    return prior


def _read(games: Any, simulations: int) -> Best:
    """Takes the best game of all devices `[D, ..., M]` for each board."""
    scores, actions = np.asarray(games.score), np.asarray(games.action)
    lengths = np.asarray(games.length)
    winner = scores.argmax(axis=0)
    found = [actions[d, : lengths[d, m], m].tolist() for m, d in enumerate(winner)]
    return Best(found, scores.max(axis=0).tolist(), simulations)


def _options() -> dict[str, Any]:
    # XLA's CPU backend uses half of the widest vectors unless it is told to.
    return {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}


SEARCHES: dict[str, Search] = {
    "random": nested(iterations=(1,), parallel=(256,), playouts=64),
    # Few lanes, many iterations: of as many games, deep searches make more than broad ones.
    "nrpa": nested(iterations=(100, 400, 100), parallel=(4, 2, 1)),
}
