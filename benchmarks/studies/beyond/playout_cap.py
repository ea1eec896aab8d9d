"""Does it pay to search most moves with few simulations?

    taskset -c 0 python -m benchmarks.studies.beyond.playout_cap    # hours of one core

Playout cap randomisation (Wu 2019, section 3.1): expert iteration in which a quarter of the moves
are searched in full and teach the policy, beside one that searches every move in full, and one that
searches every move with as many simulations as the first has on average. All learn from the same
weights for the same time, that of the processor, so that other work on the machine does not count;
nor do compilation and the first iteration. Then every network of the first plays every one of the
others, raw and with a search, all first moves with both colours.
Started again, it goes on, within a training too.
"""

import argparse
import itertools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

import jaxpgs
from benchmarks import report, runs
from benchmarks.ratings import elo_text
from jaxpgs import evaluation, networks
from jaxpgs.envs import Hex
from jaxpgs.training import Run, read_run
from jaxpgs.training.recipes.hex_networks import Clock
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import expert_iteration, experts

CAPPED, FULL, MEAN = "capped", "full", "mean"
PLAYERS = ("raw", "search")
_CHECKPOINTS = 20  # iterations apart


def settings(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns how moves are searched, by name: settings of `expert_iteration.train`."""
    full, fast, share = args.simulations, args.fast_simulations, args.full_share
    return {
        CAPPED: {"num_simulations": full, "fast_simulations": fast, "full_share": share},
        FULL: {"num_simulations": full},
        MEAN: {"num_simulations": round(share * full + (1 - share) * fast)},
    }


def make_network(env: Hex, seed: int) -> nnx.Module:
    """Makes the network that all learn."""
    shapes = env.observation_shape, env.num_actions
    return networks.FullyConnectedResNet(*shapes, width=128, num_blocks=2, rngs=nnx.Rngs(seed))


def learn(
    env: Hex, folder: pathlib.Path, seed: int, seconds: float, update: Callable[[float], None],
    **knobs: Any,
) -> tuple[Any, dict[str, float]]:  # fmt: skip
    """Trains for so many seconds, or goes on where it was stopped.

    Args:
      env: the board.
      folder: where to keep checkpoints and the clock.
      seed: of the weights and of the training.
      seconds: how long, of the processor's time.
      update: called with the seconds that have passed.
      **knobs: settings of `expert_iteration.train`.

    Returns:
      The parameters, and in numbers what came of the time.
    """
    path = folder / "seconds.txt"
    clocks: list[Clock] = []  # none until the first iteration of this call is done

    def callback(state: Any, metrics: Mapping[str, float]) -> bool:
        del state
        if not clocks:
            clocks.append(Clock(path, time.process_time))
        passed = clocks[0].seconds()
        if metrics["iteration"] % _CHECKPOINTS == 0:
            clocks[0].note()
        update(passed)
        return passed >= seconds

    if not path.exists() or float(path.read_text()) < seconds:
        try:
            by_name(expert_iteration.train)(
                env, make_network(env, seed), num_iterations=10**6, evaluate_every=0, **knobs,
                run=Run(seed, None, folder, _CHECKPOINTS, callback=callback, progress=False),
            )  # fmt: skip
        finally:
            for clock in clocks:
                clock.note()
    run = read_run(folder)
    last = run.curve[-1]
    return jax.tree.map(jax.numpy.asarray, run.last), {
        "iterations": run.iteration,
        "positions": round(last["positions"]),
        "evaluations_per_move": round(
            float(np.mean([row["evaluations_per_move"] for row in run.curve])), 1
        ),
        "policy_loss": round(last["policy_loss"], 4),
        "value_loss": round(last["value_loss"], 4),
    }


def make_player(env: Hex, params: Any, kind: str, name: str) -> evaluation.Player:
    """Makes a player of a network: its likeliest moves, or those of a search."""
    _, apply_fn = networks.functional(make_network(env, 0))
    if kind == "raw":
        return evaluation.raw_network(env, apply_fn, params, name=name)
    return evaluation.search_player(
        env, apply_fn, params, jaxpgs.gumbel_mcts_policy, 32, name=name, gumbel_scale=0.0,
        deterministic=True,
    )  # fmt: skip


def match(
    env: Hex, kind: str, ours: Sequence[Any], theirs: Sequence[Any], seed: int
) -> dict[str, Any]:
    """Lets every network of one setting play every one of another; the opening is the unit."""
    outcomes = []
    for one, other in itertools.product(ours, theirs):
        sides = make_player(env, one, kind, "one"), make_player(env, other, kind, "other")
        outcomes.append(evaluation.play_match(env, *sides, jax.random.key(seed)).outcomes)
    elo = evaluation.elo_by_opening(np.stack(outcomes))
    return {
        "elo": round(elo.elo, 1),
        "half_width": round(elo.half_width, 1),
        "games": int(np.size(outcomes)),
        # By training of ours and of theirs: what luck a training has.
        "shares": [round(float(np.mean(x)), 3) for x in outcomes],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each match."""
    lines = []
    for row in sorted(rows, key=lambda r: (r["size"], r["opponent"], r["player"])):
        spent = [f"{row[x]['positions']:.0f}" for x in (CAPPED, row["opponent"])]
        searched = [f"{row[x]['evaluations_per_move']:.0f}" for x in (CAPPED, row["opponent"])]
        elo = elo_text(row["elo"], row["half_width"])
        shares = f"{min(row['shares']):.2f} to {max(row['shares']):.2f}"
        size = f"{row['size']}x{row['size']}"
        lines.append([size, f"{row['minutes']:g}", row["opponent"], row["player"], elo, shares,
                      " / ".join(spent), " / ".join(searched)])  # fmt: skip
    return [
        "board", "minutes", "capped against", "players", "Elo", "points by pair of trainings",
        "positions, both", "evaluations a move, both",
    ], lines  # fmt: skip


def learn_all(
    args: argparse.Namespace, size: int, minutes: float, update: Callable[[float, str], None]
) -> dict[str, list[tuple[Any, dict[str, float]]]]:
    """Trains every setting on one board, as often as wanted.

    Args:
      args: what `main` parsed.
      size: of the board.
      minutes: of a training.
      update: called with the minutes of this board that have passed, and with what is trained.

    Returns:
      What `learn` returns, for each training of a setting, by its name.
    """
    games = {
        "num_games": args.games, "num_steps": 16, "buffer_size": 16 * 16 * args.games,
        "batch_size": 256, "updates_per_iteration": 32, "expert": args.expert,
    }  # fmt: skip
    found: dict[str, list[Any]] = {}
    jobs = itertools.product(range(args.trainings), settings(args).items())
    for done, (number, (name, knobs)) in enumerate(jobs):
        seed = args.seed + number
        label = f"{size}x{size}, {name}, training {number + 1}"
        tell = lambda passed, n=done, text=label: update(n * minutes + passed / 60, text)  # noqa: E731
        folder = args.runs / f"{size}-{minutes:g}-{name}-{seed}"
        learnt = learn(Hex(size), folder, seed, 60 * minutes, tell, **games, **knobs)
        found.setdefault(name, []).append(learnt)
    return found


def main(argv: list[str] | None = None) -> None:
    """Trains and plays; see the module's text."""
    parser = runs.parser("studies.beyond.playout_cap", __doc__)
    add = parser.add_argument
    add("--sizes", nargs="+", type=runs.positive, default=[5, 7])
    add("--minutes", nargs="+", type=float, default=[10.0, 20.0], help="of a training, by size")
    add("--trainings", type=runs.positive, default=2, help="of each setting")
    add("--simulations", type=runs.positive, default=64)
    add("--fast-simulations", type=runs.positive, default=16)
    add("--full-share", type=float, default=0.25)
    add("--expert", default="pgs", choices=experts.NAMES)
    add("--games", type=runs.positive, default=128, help="at once")
    add("--runs", type=pathlib.Path, default=pathlib.Path("runs/playout_cap"))
    args = parser.parse_args(argv)
    given = ("trainings", "simulations", "fast_simulations", "full_share", "expert", "games")
    setting = {name: getattr(args, name) for name in (*given, "seed")}
    record = runs.open_record(parser, args, setting, ("size", "minutes", "opponent", "player"))
    boards = list(zip(args.sizes, args.minutes, strict=True))
    count = len(settings(args)) * args.trainings
    total = round(sum(minutes for _, minutes in boards) * count)
    with report.progress_bar("playout cap") as progress:
        for i, (size, minutes) in enumerate(boards):
            before = count * sum(minutes for _, minutes in boards[:i])

            def update(passed: float, label: str, before: float = before) -> None:
                progress(min(round(before + passed), total), total, label)

            found = learn_all(args, size, minutes, update)
            spent = {
                name: {key: round(float(np.mean([x[key] for _, x in some])), 4)
                       for key in some[0][1]}
                for name, some in found.items()
            }  # fmt: skip
            params = {name: [x for x, _ in some] for name, some in found.items()}
            for opponent, kind in itertools.product((FULL, MEAN), PLAYERS):
                row = {"size": size, "minutes": minutes, "opponent": opponent, "player": kind}
                if not runs.has(record, **row):
                    won = match(Hex(size), kind, params[CAPPED], params[opponent], args.seed)
                    runs.add(record, row | won | {x: spent[x] for x in (CAPPED, opponent)})
    report.print_table("Playout cap randomisation", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
