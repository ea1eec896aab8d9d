"""The recipes of the SameGame networks that come with the library.

    python -m jaxpgs.training.zoo_samegame samegame-10x10 --out runs

trains one, with a progress bar; it goes on where it was stopped, and writes the weights and their
card. `--minutes 10` stops in time. All are taught by policy gradients on their own games
(`training.ppo`), the first from nothing, the others from its weights, which fit every size. The
thesis's own training, in which searches teach, is `training.generations` (Seify 2020, algorithm 1
and section 6.1); with the thousands of boards that a processor can search it teaches little.
"""

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxpgs import networks
from jaxpgs.envs import SameGame
from jaxpgs.pretrained import save_pretrained
from jaxpgs.training import loggers, ppo
from jaxpgs.training.zoo import Clock, grown, origin

_LEARNING = (
    "iteration", "policy_score", "greedy_score", "random_score", "entropy", "explained", "seconds",
)  # fmt: skip


class Recipe(NamedTuple):
    """One network: its environment, its size and its training.

    Attributes:
      env: the environment. Colours are five, as the thesis's parameter counts tell.
      network: keyword arguments of `networks.SameGameResNet`.
      training: arguments of `ppo.train`.
      parent: the network to go on from, of another size of board.
    """

    env: SameGame
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    parent: str | None = None


_NETWORK = {"num_filters": 16, "num_blocks": 2}
# Most is learned where it costs least to see what a move leads to.
RECIPES = {
    "samegame-10x10": Recipe(
        SameGame(10, 10, 5), _NETWORK, {"num_iterations": 800, "num_games": 128}
    ),
    "samegame-7x7": Recipe(
        SameGame(7, 7, 5), _NETWORK,
        {"num_iterations": 200, "num_games": 256, "num_steps": 16}, "samegame-10x10",
    ),
    "samegame-15x15": Recipe(
        SameGame(15, 15, 5), _NETWORK,
        {"num_iterations": 60, "num_games": 64, "step_size": 2e-4}, "samegame-10x10",
    ),
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Trains one network of the zoo; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpgs.training.zoo_samegame",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs"))
    parser.add_argument("--iterations", type=int, help="in place of the recipe's")
    parser.add_argument("--games", type=int, help="games at once, in place of the recipe's")
    parser.add_argument("--minutes", type=float, help="stop after so long, to go on later")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    recipe = RECIPES[args.name]
    own = {"num_iterations": args.iterations, "num_games": args.games}
    training = dict(recipe.training) | {name: x for name, x in own.items() if x}
    env = recipe.env
    network = networks.SameGameResNet(
        env.observation_shape, env.num_actions, **recipe.network, rngs=nnx.Rngs(args.seed)
    )
    folder = args.out / args.name
    clock = Clock(folder / "seconds.txt")
    note = loggers.log_to(folder / "metrics.jsonl")
    with loggers.progress_bar(args.name, training["num_iterations"]) as show:

        def callback(state: ppo.TrainState, metrics: dict[str, float]) -> bool:
            show(state, metrics)
            note(state, metrics | {"seconds": round(clock.note(), 1)})
            return args.minutes is not None and clock.seconds(here=True) > 60 * args.minutes

        state = ppo.train(
            env,
            network,
            init_params=grown(recipe.parent, network, args.out),
            seed=args.seed,
            directory=folder / "checkpoints",
            callback=callback,
            **training,
        )
    log = [row for row in loggers.read_log(folder / "metrics.jsonl") if "policy_score" in row]
    given = {name: x for name, x in vars(args).items() if x is not None}
    options = "".join(f" --{x} {given[x]}" for x in ("iterations", "games", "seed") if x in given)
    save_pretrained(
        args.out,
        args.name,
        env=env,
        module=network,
        params=jax.device_get(state.params),
        command=f"{parser.prog} {args.name}{options}",
        seed=args.seed,
        wall_time_s=round(clock.note()),
        training={
            "method": "ppo",
            "parent": recipe.parent,
            **training,
            "iterations_done": int(state.iteration),
        },
        strength={x: log[-1][x] for x in _LEARNING if x.endswith("_score")} if log else {},
        learning=[{name: row[name] for name in _LEARNING} for row in log],
        **origin(),
    )
    print(f"Wrote {args.out / args.name}.safetensors and its card.")


if __name__ == "__main__":
    main()
