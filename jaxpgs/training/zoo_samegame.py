"""The recipes of the SameGame networks that come with the library.

    python -m jaxpgs.training.zoo_samegame samegame-7x7 --out runs

trains one from nothing, with a progress bar; it goes on where it was stopped, and writes the
weights and their card. `--minutes 10` stops in time. The thesis's networks have 64 filters and saw
a million boards (Seify 2020, table 5.4); these are sized for a processor core and some minutes.
"""

import argparse
import datetime
import importlib.metadata
import pathlib
import platform
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx

from jaxpgs import networks
from jaxpgs.envs import SameGame
from jaxpgs.pretrained import save_pretrained
from jaxpgs.puzzles import plain_mcts, policy_mcts, pv_mcts
from jaxpgs.training import generations, loggers
from jaxpgs.training.zoo import _Clock

_POLICY = {"num_filters": 32, "num_layers": 7}
_BOTH = _POLICY | {"heads": "policy_value", "pooling": False, "value_scale": 300.0}
_TRAINING = {
    "first_runs": 2560, "num_runs": 128, "runs_at_once": 128, "training_length": 60_000,
    "batch_size": 128, "max_epochs": 10, "patience": 2, "fresh_weights": False,
}  # fmt: skip
_SCORES = ("policy_score", "greedy_score", "random_score")
_VALUE = {"value_target": "q", "patience": None, "max_epochs": 5}


class Recipe(NamedTuple):
    """One network: its environment, its size and its training.

    Attributes:
      env: the environment. Colours are five, as the thesis's parameter counts tell.
      network: keyword arguments of `networks.SameGameCNN`.
      jump_start: simulations a move in the first generation.
      num_simulations: simulations a move in the others.
      num_generations: generations in all.
      c_puct: weight of exploration with the network.
      dirichlet_alpha: noise at the root, as in the thesis's table 5.4; its share is 0.25.
      training: further arguments of `generations.train`.
    """

    env: SameGame
    network: Mapping[str, Any]
    jump_start: int
    num_simulations: int
    num_generations: int
    c_puct: float
    dirichlet_alpha: float
    training: Mapping[str, Any] = MappingProxyType({})


RECIPES = {
    "samegame-7x7": Recipe(SameGame(7, 7, 5), _POLICY, 1024, 256, 5, 10.0, 0.75, _TRAINING),
    "samegame-7x7-value": Recipe(
        SameGame(7, 7, 5), _BOTH, 1024, 256, 5, 5.0, 0.75, _TRAINING | _VALUE
    ),
    "samegame-10x10": Recipe(
        SameGame(10, 10, 5), {"num_filters": 64, "num_layers": 9}, 1024, 256, 10, 4.0, 0.40,
        _TRAINING | {"training_length": 120_000},
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
    has_value = recipe.network.get("heads") == "policy_value"
    noise = {"dirichlet_fraction": 0.25, "dirichlet_alpha": recipe.dirichlet_alpha}
    tree_search: Callable[..., Any] = pv_mcts if has_value else policy_mcts

    def player(params: Any, rng_key: Any, state: Any) -> Any:
        return tree_search(
            env, apply_fn, params, rng_key, state, recipe.num_simulations, c_puct=recipe.c_puct,
            follow="value" if has_value else "best", **noise,
        )  # fmt: skip

    def first_player(params: Any, rng_key: Any, state: Any) -> Any:
        del params
        return plain_mcts(env, rng_key, state, recipe.jump_start, c_puct=30.0, follow="best")

    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), generations.l2_adam(1e-3 if not has_value else 5e-4)
    )
    state = generations.train(
        env,
        make_network,
        player=player,
        first_player=first_player,
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
            | {"num_runs": args.runs, "first_runs": args.runs, "runs_at_once": min(args.runs, 128)}
        )
    folder = args.out / args.name
    clock = _Clock(folder / "seconds.txt")
    log = loggers.log_to(folder / "metrics.jsonl")
    last: dict[str, float] = {}
    with loggers.progress_bar(args.name, recipe.num_generations) as show:

        def callback(state: generations.TrainState, metrics: dict[str, float]) -> bool:
            last.update(metrics)
            show(state, metrics)
            log(state, metrics | {"seconds": round(clock.note(), 1)})
            return args.minutes is not None and clock.seconds(here=True) > 60 * args.minutes

        network, state = train(
            recipe, seed=args.seed, directory=folder / "checkpoints", callback=callback
        )
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
            "jump_start": recipe.jump_start,
            "simulations": recipe.num_simulations,
            "generations": recipe.num_generations,
            "generations_done": int(state.generation),
            "c_puct": recipe.c_puct,
            "dirichlet_alpha": recipe.dirichlet_alpha,
            **recipe.training,
        },
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions={n: importlib.metadata.version(n) for n in ("jax", "jaxlib", "flax", "mctx")},
        hardware=f"{jax.devices()[0].device_kind}, {platform.machine()}",
        strength={k: last[k] for k in _SCORES if k in last},
    )
    print(f"Wrote {args.out / args.name}.safetensors and its card.")


if __name__ == "__main__":
    main()
