"""The recipes of the SameGame networks that come with the library.

    python -m jaxpgs.training.zoo_samegame samegame-7x7 --out runs

trains one from nothing, with a progress bar; it goes on where it was stopped, and writes the
weights and their card. `--minutes 10` stops in time. The expert is nested rollout policy
adaptation, from the second generation on biased by the network; at equal simulations it is far
above tree search (`benchmarks/results/puzzles.json`).
The thesis's own expert is `puzzles.policy_mcts`, with `generations.train`; its networks have 64
filters and saw a million boards (Seify 2020, table 5.4). These are sized for a processor core.
"""

import argparse
import datetime
import importlib.metadata
import pathlib
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx

from jaxpgs import networks
from jaxpgs.envs import SameGame
from jaxpgs.pretrained import save_pretrained
from jaxpgs.puzzles import nrpa, prior_bias
from jaxpgs.training import generations, loggers
from jaxpgs.training.zoo import _Clock

_LOGGED = (
    "iteration", "score", "policy_score", "greedy_score", "random_score", "policy_loss",
    "validation_policy_loss", "validation_value_loss", "positions", "seconds",
)  # fmt: skip
# Many short generations, each the last one's weights taught on: a bar that moves, a learning curve,
# and little lost when a run is killed.
_TRAINING = {
    "batch_size": 128, "max_epochs": 4, "patience": None, "fresh_weights": False,
    "value_target": "return", "runs_at_once": 32,
}  # fmt: skip


class Recipe(NamedTuple):
    """One network: its environment, its size and its training.

    Attributes:
      env: the environment. Colours are five, as the thesis's parameter counts tell.
      network: keyword arguments of `networks.SameGameCNN`.
      num_simulations: games that the expert plays on a board.
      expert: keyword arguments of `puzzles.nrpa`.
      num_generations: generations in all; from the second on the network biases the expert.
      training: further arguments of `generations.train`.
    """

    env: SameGame
    network: Mapping[str, Any]
    num_simulations: int
    expert: Mapping[str, Any]
    num_generations: int
    training: Mapping[str, Any]


def _network(num_filters: int, num_layers: int) -> dict[str, Any]:
    return {
        "num_filters": num_filters, "num_layers": num_layers, "heads": "policy_value",
        "pooling": False, "value_scale": 300.0,
    }  # fmt: skip


def _boards(num_runs: int, training_length: int) -> dict[str, Any]:
    return _TRAINING | {"num_runs": num_runs, "training_length": training_length}


RECIPES = {
    "samegame-7x7": Recipe(
        SameGame(7, 7, 5), _network(32, 7), 4000, {"iterations": (10, 4), "parallel": (32, 4)}, 4,
        _boards(1536, 250_000),
    ),
    "samegame-10x10": Recipe(
        SameGame(10, 10, 5), _network(32, 9), 8000, {"iterations": (50, 50), "parallel": (4, 1)}, 4,
        _boards(512, 150_000),
    ),
    "samegame-15x15": Recipe(
        SameGame(15, 15, 5), _network(32, 9), 12_000, {"iterations": (50, 70), "parallel": (4, 1)},
        4, _boards(160, 100_000),
    ),
}  # fmt: skip


def train(
    recipe: Recipe, *, seed: int = 0, **arguments: Any
) -> tuple[nnx.Module, generations.TrainState]:
    """Trains a recipe's network.

    Args:
      recipe: the recipe.
      seed: seed of everything random.
      **arguments: further arguments of `generations.train`, such as `directory` and `callback`.

    Returns:
      The network, with its initial weights, and the state after the last generation.
    """
    env = recipe.env

    def make_network(seed: int) -> nnx.Module:
        return networks.SameGameCNN(
            env.observation_shape, env.num_actions, **recipe.network, rngs=nnx.Rngs(seed)
        )

    network = make_network(seed)
    _, apply_fn = networks.functional(network)

    def expert(params: Any, rng_key: Any, state: Any) -> Any:
        bias = None if params is None else prior_bias(env, apply_fn, params, state)
        return nrpa(env, rng_key, state, recipe.num_simulations, bias=bias, **recipe.expert)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), generations.l2_adam(1e-3, 1e-5))
    state = generations.train(
        env,
        make_network,
        player=expert,
        first_player=lambda _, *args: expert(None, *args),
        num_generations=recipe.num_generations,
        optimizer=optimizer,
        seed=seed,
        **(dict(recipe.training) | arguments),
    )
    return network, state


def main(argv: list[str] | None = None) -> None:
    """Trains one network of the zoo; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpgs.training.zoo_samegame",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs"))
    parser.add_argument("--generations", type=int, help="in place of the recipe's")
    parser.add_argument("--runs", type=int, help="boards a generation, in place of the recipe's")
    parser.add_argument("--minutes", type=float, help="stop after so long, to go on later")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    recipe = RECIPES[args.name]
    recipe = recipe._replace(num_generations=args.generations or recipe.num_generations)
    if args.runs:
        recipe = recipe._replace(
            training=dict(recipe.training)
            | {"num_runs": args.runs, "runs_at_once": min(args.runs, 32)}
        )
    folder = args.out / args.name
    clock = _Clock(folder / "seconds.txt")
    note = loggers.log_to(folder / "metrics.jsonl")
    with loggers.progress_bar(args.name, recipe.num_generations) as show:

        def callback(state: generations.TrainState, metrics: dict[str, float]) -> bool:
            show(state, metrics)
            note(state, metrics | {"seconds": round(clock.note(), 1)})
            return args.minutes is not None and clock.seconds(here=True) > 60 * args.minutes

        network, state = train(
            recipe, seed=args.seed, directory=folder / "checkpoints", callback=callback
        )
    log = loggers.read_log(folder / "metrics.jsonl")
    given = {k: v for k, v in vars(args).items() if v is not None}
    options = "".join(f" --{k} {given[k]}" for k in ("generations", "runs", "seed") if k in given)
    save_pretrained(
        args.out,
        args.name,
        env=recipe.env,
        module=network,
        params=jax.device_get(state.params),
        command=f"{parser.prog} {args.name}{options}",
        seed=args.seed,
        wall_time_s=round(clock.note()),
        training={
            "expert": "nrpa",
            "simulations": recipe.num_simulations,
            **recipe.expert,
            "generations": recipe.num_generations,
            "generations_done": int(state.generation),
            **recipe.training,
        },
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions={n: importlib.metadata.version(n) for n in ("jax", "jaxlib", "flax", "mctx")},
        hardware=f"{jax.devices()[0].device_kind}, {platform.machine()}",
        strength={name: log[-1][name] for name in _LOGGED if name.endswith("_score")},
        learning=[{name: row[name] for name in _LOGGED} for row in log],
    )
    print(f"Wrote {args.out / args.name}.safetensors and its card.")


if __name__ == "__main__":
    main()
