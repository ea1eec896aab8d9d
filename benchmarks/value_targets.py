"""What a value network should learn: returns or Q-values, and which errors should cost more.

    python -m benchmarks.value_targets               # about 20 minutes of a core

Chapter 6 of Seify 2020, on 7x7 SameGame: one network of two heads for each variant, taught by
PV-MCTS in generations, all from the same first generation, which plain MCTS plays. Then PV-MCTS
solves the same boards with each. The thesis has 100 generations of 5,000 games, this has a few of
some hundreds. Started again, it goes on, within a generation too.
"""

import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

import jaxpgs
from benchmarks import report, runs
from benchmarks.puzzles import paired, scores_of
from jaxpgs import networks, puzzles
from jaxpgs.training import puzzle_iteration
from jaxpgs.training.recipes_samegame import RECIPES

# Target, and the weights of errors of values that are too low and too high (sections 6.1 and 6.2).
VARIANTS: dict[str, dict[str, Any]] = {
    "Q-values": {"value_target": "q"},
    "returns": {"value_target": "return"},
    "Q-values, low preferred": {"value_target": "q", "under": 0.5, "over": 2.0},
    "Q-values, high preferred": {"value_target": "q", "under": 2.0, "over": 0.5},
    "Q-values, mixed with random games": {"value_target": "q"},
}
# Variants that begin from the values of random games, and take as much of each new state's value
# from a random game (`pv_mcts`).
SHARES = {"Q-values, mixed with random games": 0.5}


def measure(
    name: str, setting: Mapping[str, Any], folder: pathlib.Path, update: Any
) -> dict[str, Any]:
    """Trains a variant and solves the test boards with its network."""
    env, network = RECIPES["samegame-7x7"].env, RECIPES["samegame-7x7"].network
    seed = setting["seed"]

    def make_network(seed: int) -> nnx.Module:
        return networks.SameGameResNet(
            env.observation_shape, env.num_actions, **network, rngs=nnx.Rngs(seed)
        )

    _, apply_fn = networks.functional(make_network(seed))
    count, mixed = setting["simulations"], name in SHARES
    knobs: dict[str, Any] = (
        {"c_puct": 30.0, "rollout_share": SHARES[name]} if mixed else {"c_puct": 5.0}
    )
    begun = jaxpgs.load_pretrained("samegame-7x7-value").params if mixed else None

    def solver(params: Any, rng_key: Any, state: Any, **noise: Any) -> puzzles.Solution:
        return puzzles.pv_mcts(env, apply_fn, params, rng_key, state, count, **knobs, **noise)

    def noisy(*args: Any) -> puzzles.Solution:
        return solver(*args, dirichlet_fraction=0.25, dirichlet_alpha=0.75)

    def first(params: Any, rng_key: Any, state: Any) -> puzzles.Solution:
        del params
        return puzzles.plain_mcts(env, rng_key, state, count, c_puct=30.0)

    log: list[float] = []

    def callback(state: Any, metrics: Mapping[str, float]) -> None:
        log.append(metrics["score"])
        update(len(log))

    begin = time.perf_counter()
    state = puzzle_iteration.train(
        env, make_network, solver=noisy, first_solver=first,
        num_iterations=setting["generations"], num_runs=setting["runs"],
        first_runs=setting["first_runs"], runs_at_once=64, training_length=100_000,
        batch_size=128, max_epochs=5, patience=None, fresh_weights=False, num_test_boards=0,
        optimizer=puzzle_iteration.l2_adam(), seed=seed, directory=folder, callback=callback,
        init_params=begun, **VARIANTS[name],
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    keys = jax.random.split(jax.random.key(seed + 1000), setting["boards"])
    boards = jax.jit(jax.vmap(env.init))(keys)
    found = jax.jit(solver)(state.params, jax.random.key(seed + 2000), boards)
    # How far the value is from what the search then earned, over all positions of these games.
    searches = found.searches
    states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), searches.state)
    _, value = jax.jit(lambda x: apply_fn(state.params, jax.vmap(env.observe)(x)))(states)
    rest = np.asarray(found.score - searches.score).ravel()
    error = (np.asarray(value) - rest)[np.asarray(searches.searched).ravel()]
    return {
        "variant": name,
        "training": [round(x, 1) for x in log],
        "mean": round(float(found.score.mean()), 1),
        "bias": round(float(error.mean()), 1),
        "rms_error": round(float(np.sqrt(np.mean(error**2))), 1),
        "seconds": round(seconds),
        "scores": " ".join(str(round(float(x))) for x in found.score),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each variant, with differences to the first."""
    lines = []
    rows = sorted(rows, key=lambda row: list(VARIANTS).index(row["variant"]))
    for row in rows:
        gain, width = paired(scores_of(row), scores_of(rows[0]))
        change = None if row is rows[0] else f"{gain:+.0f} ± {width:.0f}"
        generations_of = ", ".join(f"{x:.0f}" for x in row["training"])
        lines.append([row["variant"], row["mean"], change, row["bias"], row["rms_error"],
                      generations_of])  # fmt: skip
    columns = ["target", "mean score", "over the first", "mean error of the value", "its size"]
    return [*columns, "scores of the generations"], lines


def main(argv: list[str] | None = None) -> None:
    """Runs the comparison; see the module's text."""
    parser = runs.parser("value_targets", __doc__)
    add = parser.add_argument
    add("--generations", type=runs.positive, default=6)
    add("--first-runs", type=runs.positive, default=1024)
    add("--runs", type=runs.positive, default=512, help="games a generation after the first")
    add("--simulations", type=runs.positive, default=64, help="a move")
    add("--boards", type=runs.positive, default=500, help="that are solved in the end")
    add("--variants", choices=VARIANTS, nargs="+", default=list(VARIANTS))
    add("--runs-folder", type=pathlib.Path, default=pathlib.Path("runs/values"))
    args = parser.parse_args(argv)
    names = ("generations", "first_runs", "runs", "simulations", "boards", "seed")
    setting = {name: getattr(args, name) for name in names}
    record = runs.open_record(parser, args, setting, ("variant",))
    jobs = [name for name in args.variants if not runs.has(record, variant=name)]
    with report.progress_bar("Value targets") as progress:
        for done, name in enumerate(jobs):
            total = args.generations * len(jobs)

            def update(number: int, done: int = done, name: str = name, total: int = total) -> None:
                progress(done * args.generations + number, total, name)

            folder = args.runs_folder / name.replace(", ", "-").replace(" ", "-")
            runs.add(record, measure(name, setting, folder, update))
    report.print_table("Value targets", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
