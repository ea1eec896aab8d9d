"""What should a value network learn: returns or Q-values, with which loss, from which search?

    python -m benchmarks.studies.seify2020.value_targets               # about 20 minutes of a core

Chapter 6 of Seify 2020, on 7x7 SameGame. For each variant, a network with a policy and a value head
learns from generations of games of PV-MCTS; plain MCTS plays the first generation, which is the
same for all variants. Then PV-MCTS solves the same boards with each network. There are two further
variants: half of the value of each new state is the return of a random game (`pv_mcts`, section
7.1), or NRPA evaluates all positions (`puzzles.judged`). The thesis has 100 generations of 5,000
games with 200 simulations; here there are far fewer of each. A command that was stopped continues
after the last finished generation.
"""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import pictures, report, runs
from benchmarks.studies.seify2020.puzzles import paired, scores_of
from jaxpgs import networks, puzzles
from jaxpgs.training.puzzles import puzzle_iteration
from jaxpgs.training.recipes.hex_networks import Clock
from jaxpgs.training.recipes.samegame_networks import RECIPES, SameGameRecipe, make_network
from jaxpgs.training.runtime import loggers, settings


class Variant(NamedTuple):
    """What is learned, and by which search.

    Attributes:
      training: fields of `puzzle_iteration.Fit`: the target, and the weights of errors of values
        that are too low and too high (sections 6.1 and 6.2).
      rollout_share: as in `pv_mcts`.
      judged: whether NRPA evaluates the positions.
    """

    training: Mapping[str, Any]
    rollout_share: float = 0.0
    judged: bool = False


_Q = {"value_target": "q"}
VARIANTS = {
    "Q-values": Variant(_Q),
    "returns": Variant({"value_target": "return"}),
    "Q-values, low preferred": Variant(_Q | {"under": 0.5, "over": 2.0}),
    "Q-values, high preferred": Variant(_Q | {"under": 2.0, "over": 0.5}),
    "Q-values, mixed with random games": Variant(_Q, rollout_share=0.5),
    "judged by NRPA": Variant(_Q, judged=True),
}


def learn(
    recipe: SameGameRecipe, folder: pathlib.Path, update: Callable[[int], None], **arguments: Any
) -> tuple[Any, list[dict[str, Any]], int]:
    """Trains a recipe's network by `puzzle_iteration.train`, or goes on where it was stopped.

    Args:
      recipe: the environment and the network.
      folder: where to keep checkpoints, metrics and seconds.
      update: called with the number of iterations that are done.
      **arguments: arguments of `puzzle_iteration.train`, or fields of its settings.

    Returns:
      The last state, the metrics of each iteration, and the total seconds of all calls.
    """
    clock, log = Clock(folder / "seconds.txt"), folder / "metrics.jsonl"
    note = loggers.log_to(log)

    def callback(state: Any, metrics: dict[str, float]) -> None:
        note(state, metrics)
        clock.note()
        update(int(metrics["iteration"]))

    state = settings.by_name(puzzle_iteration.train)(
        recipe.env, lambda seed: make_network(recipe, seed), directory=folder / "checkpoints",
        callback=callback, **arguments,
    )  # fmt: skip
    return state, loggers.read_log(log), round(clock.note())


def measure(
    name: str, setting: Mapping[str, Any], seed: int, folder: pathlib.Path, update: Any
) -> dict[str, Any]:
    """Trains a variant, solves the test boards with its network, and returns the row."""
    recipe, variant = RECIPES["samegame-7x7"], VARIANTS[name]
    env, count = recipe.env, setting["simulations"]

    _, apply_fn = networks.functional(make_network(recipe, seed))
    search = functools.partial(
        puzzles.pv_mcts, env, apply_fn, rollout_share=variant.rollout_share, c_puct=3.0
    )

    def judged(solution: puzzles.Solution, rng_key: Any) -> puzzles.Solution:
        if not variant.judged:
            return solution
        return puzzles.judged(
            solution, rng_key, lambda keys, state: puzzles.nrpa(env, keys, state, **recipe.judge)
        )

    def noisy(params: Any, rng_key: Any, state: Any) -> puzzles.Solution:
        play_key, judge_key = jax.random.split(rng_key)
        noise: Any = {"dirichlet_fraction": 0.25, "dirichlet_alpha": 0.75}
        return judged(search(params, play_key, state, count, **noise), judge_key)

    def first(params: Any, rng_key: Any, state: Any) -> puzzles.Solution:
        del params
        play_key, judge_key = jax.random.split(rng_key)
        return judged(puzzles.plain_mcts(env, play_key, state, 2 * count, c_puct=30.0), judge_key)

    state, log, seconds = learn(
        recipe, folder, update, solver=noisy, first_solver=first,
        num_iterations=setting["generations"], num_runs=setting["runs"],
        first_runs=setting["first_runs"],
        runs_at_once=math.gcd(256, setting["runs"], setting["first_runs"]), training_length=200_000,
        batch_size=256, max_epochs=2, patience=None, fresh_weights=False, num_test_boards=0,
        value_factor=48.0, optimizer=puzzle_iteration.l2_adam(1e-3, 1e-5), seed=seed,
        **variant.training,
    )  # fmt: skip
    keys = jax.random.split(jax.random.key(setting["seed"] + 1000), setting["boards"])
    boards = jax.jit(jax.vmap(env.init))(keys)
    found = jax.jit(functools.partial(search, num_simulations=2 * count))(
        state.params, jax.random.key(seed + 2000), boards
    )
    # The network's value minus the rest of the best score, over all positions of these games.
    searches = found.searches
    states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), searches.state)
    _, value = jax.jit(lambda x: apply_fn(state.params, jax.vmap(env.observe)(x)))(states)
    rest = np.asarray(found.score - searches.score).ravel()
    error = (np.asarray(value) - rest)[np.asarray(searches.searched).ravel()]
    return {
        "variant": name,
        "training_seed": seed,
        "training": [round(row["score"], 1) for row in log],
        "mean": round(float(found.score.mean()), 1),
        "bias": round(float(error.mean()), 1),
        "rms_error": round(float(np.sqrt(np.mean(error**2))), 1),
        "seconds": seconds,
        "scores": " ".join(str(round(float(x))) for x in found.score),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each training, with differences to the first variant.

    A difference is that of the mean scores over the variant's trainings, on the same boards.
    """
    trainings: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (list(VARIANTS).index(row["variant"]),
                                             row["training_seed"])):  # fmt: skip
        trainings.setdefault(row["variant"], []).append(row)
    scores = {
        name: np.mean([scores_of(row) for row in some], 0) for name, some in trainings.items()
    }
    reference = next(iter(trainings))
    lines: list[list[Any]] = []
    for name, some in trainings.items():
        for row in some:
            change = None
            if row is some[0] and name != reference:
                gain, width = paired(scores[name], scores[reference])
                change = f"{gain:+.0f} ± {width:.0f}"
            line = [row["training_seed"], row["mean"], change, row["bias"], row["rms_error"]]
            lines.append([name, *line, ", ".join(f"{x:.0f}" for x in row["training"])])
    columns = ["target", "training", "mean score", f"over {reference}", "mean error of the value"]
    return [*columns, "its size", "scores of the generations"], lines


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws the mean and range of scores over a variant's trainings, by generation (fig. 6.1)."""
    lines: dict[str, list[Any]] = {}
    for name in VARIANTS:
        curves = np.array([row["training"] for row in rows if row["variant"] == name])
        if len(curves):
            # The first generation is left out, as plain MCTS plays it.
            points = zip(curves.min(0), curves.mean(0), curves.max(0), strict=True)
            lines[name] = [(k + 1, list(point)) for k, point in enumerate(points) if k]
    pictures.line_plot(
        path, {"7x7 SameGame": lines}, xlabel="generation", ylabel="mean score of its games",
        xscale="linear", yscale="linear", title="PV-MCTS taught by its own games",
    )  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Runs the comparison; see the module's docstring."""
    parser = runs.parser("studies.seify2020.value_targets", __doc__)
    add = parser.add_argument
    add("--generations", type=runs.positive, default=6)
    add("--first-runs", type=runs.positive, default=2048)
    add("--runs", type=runs.positive, default=512, help="games a generation after the first")
    add("--simulations", type=runs.positive, default=32, help="a move; in the end twice as many")
    add("--boards", type=runs.positive, default=500, help="that are solved in the end")
    add("--trainings", type=runs.positive, default=1, help="of each variant")
    add("--variants", choices=VARIANTS, nargs="+", default=list(VARIANTS))
    add("--runs-folder", type=pathlib.Path, default=pathlib.Path("runs/values"))
    args = parser.parse_args(argv)
    names = ("generations", "first_runs", "runs", "simulations", "boards", "seed")
    setting = {name: getattr(args, name) for name in names}
    record = runs.open_record(parser, args, setting, ("variant", "training_seed"))
    jobs = [
        (name, args.seed + k) for k in range(args.trainings) for name in args.variants
        if not runs.has(record, variant=name, training_seed=args.seed + k)
    ]  # fmt: skip
    with report.progress_bar("Value targets") as progress:
        for done, (name, seed) in enumerate(jobs):
            total = args.generations * len(jobs)

            def update(number: int, done: int = done, name: str = name, total: int = total) -> None:
                progress(done * args.generations + number, total, name)

            folder = args.runs_folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            runs.add(record, measure(name, setting, seed, folder, update))
    rows = runs.read(record)
    report.print_table("Value targets", *table(rows))
    draw(record.path.with_suffix(".png"), rows)
    print(f"Wrote {record.path} and its picture.")


if __name__ == "__main__":
    main()
