"""Whom a policy should imitate: the search that it guides, or one that needs no network.

    python -m benchmarks.policy_targets              # an hour of a core, all in all

Algorithm 1 of Seify 2020, on 7x7 SameGame: plain MCTS plays the first boards with many simulations,
the network learns the best actions that were found until the loss on held-out positions rises, and
Policy-MCTS plays the next boards with it; a network is new in every generation, the positions of
earlier ones stay. Beside it networks imitate games of NRPA on as many boards with as many
simulations each. In the end all guide Policy-MCTS on the same boards, with random rollouts and
with rollouts of their own, and plain MCTS plays them as well. Started again, it goes on, within a
training too.
"""

import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from benchmarks import report, runs
from benchmarks.puzzles import paired, scores_of
from benchmarks.value_targets import learn
from jaxpgs import networks, puzzles
from jaxpgs.training.recipes_samegame import RECIPES, make_network

PLAIN = "plain MCTS, no network"
ITSELF, NRPA = "Policy-MCTS (algorithm 1)", "NRPA"
_MOVES = 13  # of a game on 7x7, about
# How the networks are compared: rollouts, and simulations a move as a multiple of the training's.
_PLAYED = {"random": 2.0, "informed": 0.5}
_RECIPE = RECIPES["samegame-7x7"]


def teach(
    name: str,
    setting: Mapping[str, Any],
    seed: int,
    folder: pathlib.Path,
    update: Callable[[int], None],
) -> tuple[Any, dict[str, Any]]:
    """Trains a policy; returns its parameters, and what a row says of the training."""
    env, count = _RECIPE.env, setting["simulations"]
    _, apply_fn = networks.functional(make_network(_RECIPE, seed))

    def itself(params: Any, rng_key: Any, state: Any) -> puzzles.Solution:
        return puzzles.policy_mcts(
            env, apply_fn, params, rng_key, state, count, dirichlet_fraction=0.25,
            dirichlet_alpha=0.75,
        )  # fmt: skip

    def plain(params: Any, rng_key: Any, state: Any) -> puzzles.Solution:
        del params
        return puzzles.plain_mcts(env, rng_key, state, setting["first_simulations"])

    def nrpa(params: Any, rng_key: Any, state: Any, simulations: int = count) -> puzzles.Solution:
        del params
        return puzzles.nrpa(
            env, rng_key, state, _MOVES * simulations, iterations=(10, 10), parallel=(4, 1)
        )

    first: Callable[..., puzzles.Solution] = plain
    if name == NRPA:
        first = functools.partial(nrpa, simulations=setting["first_simulations"])
    state, log, seconds = learn(
        _RECIPE, folder, update, solver=nrpa if name == NRPA else itself, first_solver=first,
        num_iterations=setting["generations"], num_runs=setting["runs"],
        runs_at_once=min(256, setting["runs"]), max_epochs=setting["epochs"],
        optimizer=optax.adam(2e-3), num_test_boards=0, seed=seed,
    )  # fmt: skip
    return state.params, {
        "training": [round(row["score"], 1) for row in log],
        "epochs": int(sum(row["epochs"] for row in log)),
        "seconds": seconds,
    }


def play(
    name: str, params: Any, setting: Mapping[str, Any], rollout: str, seed: int
) -> dict[str, Any]:
    """Solves the test boards."""
    env = _RECIPE.env
    _, apply_fn = networks.functional(make_network(_RECIPE, 0))
    count = max(int(_PLAYED[rollout] * setting["simulations"]), 1)
    keys = jax.random.split(jax.random.key(setting["seed"] + 1000), setting["boards"])
    boards = jax.jit(jax.vmap(env.init))(keys)
    if name == PLAIN:
        search = jax.jit(lambda key: puzzles.plain_mcts(env, key, boards, count))
    else:
        search = jax.jit(
            lambda key: puzzles.policy_mcts(
                env, apply_fn, params, key, boards, count, rollout=rollout
            )
        )
    score = np.asarray(search(jax.random.key(seed + 2000)).score)
    return {
        "simulations": count,
        "mean": round(float(score.mean()), 1),
        "scores": " ".join(str(round(float(x))) for x in score),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each kind of rollouts and training, and for their means.

    Differences are on the same boards, those of a mean between the means of all trainings.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["training_seed"]):
        found.setdefault((row["rollout"], row["teacher"]), []).append(row)

    def mean_scores(rollout: str, teacher: str) -> np.ndarray | None:
        some = found.get((rollout, teacher))
        return np.mean([scores_of(row) for row in some], axis=0) if some else None

    def over(scores: np.ndarray | None, rollout: str, teacher: str, other: str) -> str | None:
        reference = mean_scores(rollout, other)
        if scores is None or reference is None or teacher in (PLAIN, other):
            return None
        return "{:+.0f} ± {:.0f}".format(*paired(scores, reference))

    lines: list[list[Any]] = []
    for rollout, teacher in itertools.product(_PLAYED, (PLAIN, ITSELF, NRPA)):
        some = found.get((rollout, teacher), [])
        shown = "random" if teacher == PLAIN else rollout
        for row in some:
            training = ", ".join(f"{x:.0f}" for x in row["training"]) or None
            seed = None if teacher == PLAIN else row["training_seed"]
            change = over(scores_of(row), rollout, teacher, PLAIN)
            start = [teacher, seed, shown, row["simulations"], row["mean"], change]
            lines.append([*start, None, row["seconds"], training])
        if len(some) > 1:
            scores = mean_scores(rollout, teacher)
            changes = [over(scores, rollout, teacher, other) for other in (PLAIN, ITSELF)]
            start = [teacher, "mean", shown, some[0]["simulations"]]
            mean = round(float(np.mean([row["mean"] for row in some])), 1)
            lines.append([*start, mean, *changes, None, None])
    return [
        "the policy imitates", "training", "rollouts", "simulations a move", "mean score",
        "over plain MCTS", "over algorithm 1", "seconds of training", "scores of the generations",
    ], lines  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Trains and plays; see the module's text."""
    parser = runs.parser("policy_targets", __doc__)
    add = parser.add_argument
    add("--generations", type=runs.positive, default=5)
    add("--runs", type=runs.positive, default=1024, help="boards a generation")
    add("--simulations", type=runs.positive, default=32, help="a move, in training")
    add("--first-simulations", type=runs.positive, default=256, help="of the first generation")
    add("--epochs", type=runs.positive, default=10, help="at most, of a generation")
    add("--boards", type=runs.positive, default=500, help="that are solved in the end")
    add("--trainings", type=runs.positive, default=2, help="of each policy")
    add("--runs-folder", type=pathlib.Path, default=pathlib.Path("runs/policies"))
    args = parser.parse_args(argv)
    names = ("generations", "runs", "simulations", "first_simulations", "epochs", "boards", "seed")
    setting = {name: getattr(args, name) for name in names}
    record = runs.open_record(parser, args, setting, ("teacher", "rollout", "training_seed"))
    jobs = [(PLAIN, args.seed)]
    jobs += [(name, args.seed + k) for k in range(args.trainings) for name in (ITSELF, NRPA)]
    with report.progress_bar("Policy targets") as progress:
        for done, (name, seed) in enumerate(jobs):

            def update(number: int, done: int = done, name: str = name) -> None:
                whole = args.generations * len(jobs)
                progress(done * args.generations + number, whole, name)

            key: dict[str, Any] = {"teacher": name, "training_seed": seed}
            missing = [kind for kind in _PLAYED if not runs.has(record, rollout=kind, **key)]
            if not missing:
                continue
            params, about = None, {"training": [], "epochs": 0, "seconds": None}
            if name != PLAIN:
                folder = args.runs_folder / f"{name.split()[0].lower()}-{seed}"
                params, about = teach(name, setting, seed, folder, update)
            for rollout in missing:
                found = play(name, params, setting, rollout, seed)
                runs.add(record, key | {"rollout": rollout} | found | about)
    report.print_table("Policy targets", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
