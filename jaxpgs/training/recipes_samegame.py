"""The recipes of the SameGame networks that come with the library, and their command.

    python -m jaxpgs.training.recipes_samegame samegame-7x7 --out runs

trains one, with a progress bar; it goes on where it was stopped, and writes the weights and their
card. `--minutes 10` stops in time. The loop is the thesis's (Seify 2020, algorithm 1): search many
boards, imitate the best games, search more. The expert is nested rollout policy adaptation, which
at equal simulations is far above tree search (`benchmarks/results/puzzles.json`). The network
knows neither colours nor places, so that it learns from thousands of boards where the thesis had a
million, and weights of a small board go on to a large one. The network for values learns from
random games instead, whose positions are good and bad.
"""

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx

from jaxpgs import networks
from jaxpgs.checks import positive, refusals_in_one_line
from jaxpgs.envs import SameGame
from jaxpgs.pretrained import save_pretrained
from jaxpgs.puzzles import nrpa, random_values
from jaxpgs.training import loggers, puzzle_iteration
from jaxpgs.training.recipes import Clock, grown, origin

_LOGGED = (
    "iteration", "score", "policy_score", "greedy_score", "random_score", "policy_loss",
    "validation_policy_loss", "validation_value_loss", "positions", "seconds",
)  # fmt: skip


class SameGameRecipe(NamedTuple):
    """One network: its environment, its size and its training.

    Attributes:
      env: the environment. Colours are five, as the thesis's parameter counts tell.
      network: keyword arguments of `networks.SameGameResNet`.
      num_simulations: games that the expert plays on a board, or from each position.
      expert: keyword arguments of `puzzles.nrpa`; None takes `puzzles.random_values` in its place.
      num_iterations: iterations in all.
      num_runs: boards an iteration.
      parent: the network to go on from, of another size of board.
      training: arguments of `puzzle_iteration.train` that differ from the other recipes'.
    """

    env: SameGame
    network: Mapping[str, Any]
    num_simulations: int
    expert: Mapping[str, Any] | None
    num_iterations: int
    num_runs: int
    parent: str | None = None
    training: Mapping[str, Any] = {}


_NETWORK = {"num_filters": 16, "num_blocks": 2}
_SMALL = {"iterations": (10, 4), "parallel": (32, 4)}
_LARGE = {"iterations": (50, 50), "parallel": (4, 1)}
# Each position is seen once: random games cost less than an optimizer's step on their positions.
_ONCE: dict[str, Any] = {"runs_at_once": 512, "max_epochs": 1, "value_target": "q",
                         "value_factor": 512.0}  # fmt: skip
RECIPES = {
    "samegame-7x7": SameGameRecipe(SameGame(7, 7, 5), _NETWORK, 4000, _SMALL, 8, 1024),
    "samegame-7x7-value": SameGameRecipe(
        SameGame(7, 7, 5), _NETWORK, 16, None, 16, 16_384, training=_ONCE
    ),
    "samegame-10x10": SameGameRecipe(
        SameGame(10, 10, 5), _NETWORK, 8000, _LARGE, 3, 512, parent="samegame-7x7"
    ),
    "samegame-15x15": SameGameRecipe(
        SameGame(15, 15, 5), _NETWORK, 8000, _LARGE, 2, 128, parent="samegame-10x10"
    ),
}
# Many short iterations, each the last one's weights taught on: a bar that moves, a learning curve,
# and little lost when a run is killed. Nothing is forgotten.
_TRAINING: dict[str, Any] = {
    "runs_at_once": 64, "training_length": 250_000, "batch_size": 256, "max_epochs": 3,
    "patience": None, "fresh_weights": False, "value_target": "return",
}  # fmt: skip


@refusals_in_one_line("python -m jaxpgs.training.recipes_samegame")
def main(argv: list[str] | None = None) -> None:
    """Trains one network; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpgs.training.recipes_samegame",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs"))
    parser.add_argument(
        "--iterations", "--generations", type=positive, help="in place of the recipe's"
    )
    parser.add_argument(
        "--runs", type=positive, help="boards an iteration, in place of the recipe's"
    )
    parser.add_argument("--minutes", type=float, help="stop after so long, to go on later")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    recipe = RECIPES[args.name]
    recipe = recipe._replace(
        num_iterations=args.iterations or recipe.num_iterations,
        num_runs=args.runs or recipe.num_runs,
    )
    training = {**_TRAINING, **recipe.training}
    training["runs_at_once"] = min(recipe.num_runs, training["runs_at_once"])
    env = recipe.env

    def make_network(seed: int) -> nnx.Module:
        return networks.SameGameResNet(
            env.observation_shape, env.num_actions, **recipe.network, rngs=nnx.Rngs(seed)
        )

    def expert(params: Any, rng_key: Any, state: Any) -> Any:
        del params  # it searches without a network
        if recipe.expert is None:
            return random_values(env, rng_key, state, recipe.num_simulations)
        return nrpa(env, rng_key, state, recipe.num_simulations, **recipe.expert)

    network = make_network(args.seed)
    folder = args.out / args.name
    clock = Clock(folder / "seconds.txt")
    note = loggers.log_to(folder / "metrics.jsonl")
    with loggers.progress_bar(args.name, recipe.num_iterations) as show:

        def callback(
            state: puzzle_iteration.PuzzleIterationState, metrics: dict[str, float]
        ) -> bool:
            show(state, metrics)
            note(state, metrics | {"seconds": round(clock.note(), 1)})
            return args.minutes is not None and clock.seconds(here=True) > 60 * args.minutes

        state = puzzle_iteration.train(
            env,
            make_network,
            solver=expert,
            first_solver=expert,
            num_iterations=recipe.num_iterations,
            num_runs=recipe.num_runs,
            optimizer=optax.chain(
                optax.clip_by_global_norm(1.0), puzzle_iteration.l2_adam(1e-3, 1e-5)
            ),
            init_params=grown(recipe.parent, network, args.out),
            seed=args.seed,
            directory=folder / "checkpoints",
            callback=callback,
            **training,
        )
    log = loggers.read_log(folder / "metrics.jsonl")
    given = {name: x for name, x in vars(args).items() if x is not None}
    options = "".join(f" --{x} {given[x]}" for x in ("iterations", "runs", "seed") if x in given)
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
            "expert": "random_values" if recipe.expert is None else "nrpa",
            "simulations": recipe.num_simulations,
            **(recipe.expert or {}),
            "parent": recipe.parent,
            "generations": recipe.num_iterations,
            "generations_done": int(state.iteration),
            "num_runs": recipe.num_runs,
            **training,
        },
        strength={x: log[-1].get(x) for x in _LOGGED if x.endswith("_score")} if log else {},
        learning=[{name: row.get(name) for name in _LOGGED} for row in log],
        **origin(),
    )
    print(f"Wrote {args.out / args.name}.safetensors and its card.")


if __name__ == "__main__":
    main()
