"""The recipes of the SameGame networks that come with the library, and their command.

    python -m jaxpgs.training.recipes samegame-7x7 --out runs

trains one, with a progress bar. It resumes where it was stopped, and writes the weights and their
card. `--minutes 10` stops in time. The loop is the thesis's (Seify 2020, algorithm 1 and chapter
6): search many boards with the network, learn the actions and the values, search again. There are
two differences. First, all positions are labelled by nested rollout policy adaptation, NRPA
(`puzzles.judged`). It needs no network, so values are not fitted to themselves, and at equal
simulations it is far better than tree search. The first games are random, or NRPA's own on larger
boards. Second, the network is invariant to colours and places. So it learns from thousands of
boards instead of the thesis's million, and weights of a small board can be used on a large one.
"""

import argparse
import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import optax
from flax import nnx

from jaxpgs import networks, puzzles
from jaxpgs.base import Params
from jaxpgs.checks import number, positive, refusals_in_one_line, seed
from jaxpgs.envs import SameGame
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.pretrained import save_pretrained
from jaxpgs.training.puzzles import puzzle_iteration
from jaxpgs.training.puzzles.puzzle_data import Solver
from jaxpgs.training.recipes.hex_networks import Clock, command, grown, origin
from jaxpgs.training.runtime import loggers
from jaxpgs.training.runtime.settings import Run, by_name

_LOGGED = (
    "iteration", "score", "policy_score", "greedy_score", "random_score", "policy_loss",
    "validation_policy_loss", "validation_value_loss", "positions", "seconds",
)  # fmt: skip


class SameGameRecipe(NamedTuple):
    """One network: its environment, its size and its training.

    Attributes:
      env: the environment. It has five colours, as follows from the thesis's parameter counts.
      network: keyword arguments of `networks.SameGameResNet`.
      num_simulations: simulations per move of `puzzles.pv_mcts` in the network's own games.
      judge: `num_simulations` and other keyword arguments of `puzzles.nrpa`, which labels.
      num_iterations: iterations in total.
      num_runs: boards per iteration.
      first: arguments of `puzzles.nrpa` for the whole games of the first iteration; None for random
        games, whose positions are labelled as all others.
      parent: the network to start from, of another board size.
      training: fields of `puzzle_iteration.Games` and `Fit` that differ from other recipes.
    """

    env: SameGame
    network: Mapping[str, Any]
    num_simulations: int
    judge: Mapping[str, Any]
    num_iterations: int
    num_runs: int
    first: Mapping[str, Any] | None = None
    parent: str | None = None
    training: Mapping[str, Any] = {}


_NETWORK = {"num_filters": 16, "num_blocks": 2}
_JUDGE = {"num_simulations": 640, "iterations": (10, 4), "parallel": (16, 1)}
_FIRST = {"num_simulations": 8000, "iterations": (50, 50), "parallel": (4, 1)}
RECIPES = {
    "samegame-7x7": SameGameRecipe(SameGame(7, 7, 5), _NETWORK, 16, _JUDGE, 28, 1024),
    "samegame-10x10": SameGameRecipe(
        SameGame(10, 10, 5), _NETWORK, 16, _JUDGE, 12, 256, _FIRST, "samegame-7x7",
        {"first_runs": 512, "runs_at_once": 128},
    ),
    "samegame-15x15": SameGameRecipe(
        SameGame(15, 15, 5), _NETWORK, 16, _JUDGE, 8, 64, _FIRST, "samegame-10x10",
        {"first_runs": 192, "runs_at_once": 32},
    ),
}  # fmt: skip
# Many short iterations, each of which continues from the last weights. So the bar moves, there is a
# learning curve, and little is lost when a run is killed.
_TRAINING: dict[str, Any] = {
    "runs_at_once": 256, "training_length": 400_000, "batch_size": 256, "max_epochs": 1,
    "patience": None, "fresh_weights": False, "value_target": "q", "value_factor": 48.0,
}  # fmt: skip
_MOVES = 0.25  # moves per game and cell of the board, approximately
# The search in the network's own games.
_SEARCH: dict[str, Any] = {
    "rollout_share": 0.0,
    "c_puct": 3.0,
    "dirichlet_fraction": 0.25,
    "dirichlet_alpha": 0.75,
}


def make_network(recipe: SameGameRecipe, seed: int) -> nnx.Module:
    """Makes a recipe's network with random weights from a seed."""
    shapes = recipe.env.observation_shape, recipe.env.num_actions
    return networks.SameGameResNet(*shapes, **recipe.network, rngs=nnx.Rngs(seed))


@refusals_in_one_line("python -m jaxpgs.training.recipes")
def main(argv: list[str] | None = None) -> None:
    """Trains one network; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpgs.training.recipes",
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
    parser.add_argument("--minutes", type=number(0), help="stop after this time, to go on later")
    parser.add_argument("--seed", type=seed, default=0)
    args = parser.parse_args(argv)
    recipe = RECIPES[args.name]
    recipe = recipe._replace(
        num_iterations=args.iterations or recipe.num_iterations,
        num_runs=args.runs or recipe.num_runs,
    )
    folder = args.out / args.name
    clock = Clock(folder / "seconds.txt")
    network = make_network(recipe, args.seed)
    state = _train(recipe, network, args, clock)
    training = _training(recipe)
    log = loggers.read_log(folder / "metrics.jsonl")
    save_pretrained(
        args.out,
        args.name,
        env=recipe.env,
        module=network,
        params=jax.device_get(state.params),
        command=command(parser.prog, args),
        seed=args.seed,
        wall_time_s=round(clock.note()),
        training={
            "simulations": recipe.num_simulations,
            "judge": dict(recipe.judge),
            "first": recipe.first and dict(recipe.first),
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


def make_solvers(recipe: SameGameRecipe, apply_fn: ApplyFn) -> tuple[Solver, Solver]:
    """Makes the searches that play and label a recipe's games.

    Args:
      recipe: the recipe.
      apply_fn: its network.

    Returns:
      The search of every iteration but the first; and that of the first, which uses no network.
    """
    env = recipe.env

    def judge(rng_keys: chex.PRNGKey, state: Any) -> puzzles.Solution:
        return puzzles.nrpa(env, rng_keys, state, **recipe.judge)

    def first_solver(params: Params, rng_key: chex.PRNGKey, state: Any) -> puzzles.Solution:
        del params  # they are untrained
        if recipe.first is not None:
            return puzzles.nrpa(env, rng_key, state, **recipe.first)
        play_key, judge_key = jax.random.split(rng_key)
        return puzzles.judged(puzzles.random_games(env, play_key, state), judge_key, judge)

    def solver(params: Params, rng_key: chex.PRNGKey, state: Any) -> puzzles.Solution:
        play_key, judge_key = jax.random.split(rng_key)
        played = puzzles.pv_mcts(
            env, apply_fn, params, play_key, state, recipe.num_simulations, **_SEARCH
        )
        return puzzles.judged(played, judge_key, judge)

    return solver, first_solver


def _train(
    recipe: SameGameRecipe, network: nnx.Module, args: argparse.Namespace, clock: Clock
) -> puzzle_iteration.PuzzleIterationState:
    """Trains a recipe's network, or resumes, until it is done or the time is over."""
    _, apply_fn = networks.functional(network)
    solver, first_solver = make_solvers(recipe, apply_fn)
    folder, training = args.out / args.name, _training(recipe)
    note = loggers.log_to(folder / "metrics.jsonl")
    with loggers.progress_bar(args.name, recipe.num_iterations) as show:

        def callback(
            state: puzzle_iteration.PuzzleIterationState, metrics: dict[str, float]
        ) -> bool:
            show(state, metrics)
            note(state, metrics | {"seconds": round(clock.note(), 1)})
            return args.minutes is not None and clock.seconds(here=True) > 60 * args.minutes

        return by_name(puzzle_iteration.train)(
            recipe.env,
            lambda seed: make_network(recipe, seed),
            solver=solver,
            first_solver=first_solver,
            num_iterations=recipe.num_iterations,
            num_runs=recipe.num_runs,
            optimizer=_optimizer(recipe, training),
            init_params=grown(recipe.parent, network, args.out),
            run=Run(args.seed, directory=folder / "checkpoints", callback=callback),
            **training,
        )


def _training(recipe: SameGameRecipe) -> dict[str, Any]:
    """Returns a recipe's own settings of `puzzle_iteration.train`."""
    training = _TRAINING | dict(recipe.training)
    training = {"first_runs": recipe.num_runs} | training
    # The largest common divisor up to the limit, so that any number of boards is allowed.
    common = math.gcd(recipe.num_runs, training["first_runs"])
    most = min(common, training["runs_at_once"])
    training["runs_at_once"] = next(x for x in range(most, 0, -1) if common % x == 0)
    return training


def _optimizer(recipe: SameGameRecipe, training: Mapping[str, Any]) -> optax.GradientTransformation:
    """Makes Adam with L2 regularisation; its step decays to a hundredth over all iterations."""
    boards = (training["first_runs"] + i * recipe.num_runs for i in range(recipe.num_iterations))
    # An estimate of the optimizer's steps: positions of an iteration, at most a full queue, in
    # batches. The schedule needs a length, and the lengths of games are not known in advance.
    positions = (round(count * _MOVES * recipe.env.num_actions) for count in boards)
    seen = sum(min(count, training["training_length"]) for count in positions)
    steps = max(seen * training["max_epochs"] // training["batch_size"], 1)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        puzzle_iteration.l2_adam(optax.cosine_decay_schedule(2e-3, steps, alpha=0.01), 1e-5),
    )
