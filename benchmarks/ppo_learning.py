"""PPO from nothing, against the whole history and against itself (Brosseit 2023, section 5.4).

    python -m benchmarks.ppo_learning                      # 5x5 Hex
    python -m benchmarks.ppo_learning --preset ppo-3x3     # some minutes
    python -m benchmarks.ppo_learning --selfplay uniform naive half --runs 3

Delta-uniform self-play takes its opponents from all of the learner's history, naive self-play plays
against the newest network; everything else is the same. Along training the raw policy's likeliest
moves meet OpenSpiel's MCTS, which has no network, and random players: every first move with both
colours. In the end the versions of a run play one another and are rated, as in the thesis's figure
5.4, where delta-uniform self-play rises steadily and naive self-play is said to lose to a random
player in the end. Games begin after random moves, of which the thesis says nothing; `uniform-empty`
and `naive-empty` begin all of them on the empty board. Stopped and started again, training goes on,
from the folder of runs.
"""

import argparse
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx

import jaxpgs
from benchmarks import pictures, report, runs
from jaxpgs import evaluation
from jaxpgs.evaluation.elo import Z_95
from jaxpgs.training import ppo
from jaxpgs.training.recipes import Clock


class Preset(NamedTuple):
    """A board and how to learn on it.

    Attributes:
      size: the board's.
      network: keyword arguments of `networks.SEResNet`.
      iterations: iterations of training.
      every: iterations between matches.
      simulations: what OpenSpiel's MCTS has for a move.
      repeats: games of each first move and colour.
      step_size: Adam's, at first; it falls to a tenth.
      training: arguments of `ppo.train`.
    """

    size: int
    network: Mapping[str, Any]
    iterations: int
    every: int
    simulations: int
    repeats: int
    step_size: float
    training: Mapping[str, Any]


# Normalisation of each board by itself is the same in play as in learning.
_SMALL = {
    "num_filters": 16, "num_blocks": 1, "policy_filters": 8, "value_filters": 8,
    "squeeze_ratio": 4, "norm": "layer",
}  # fmt: skip
_TRAINING = {
    "num_games": 64, "num_steps": 16, "batch_size": 256, "num_opponents": 4, "epochs": 4,
    "max_random_moves": 6, "history_size": 64,
}  # fmt: skip
PRESETS = {
    "ppo-5x5": Preset(
        5, _SMALL | {"num_filters": 32, "num_blocks": 2}, 320, 20, 100, 2, 1e-3,
        _TRAINING | {
            "num_games": 128, "batch_size": 512, "num_opponents": 8, "max_random_moves": 12,
            "snapshot_every": 5,
        },
    ),
    "ppo-3x3": Preset(3, _SMALL, 60, 10, 100, 5, 3e-3, _TRAINING),
}  # fmt: skip


class SelfPlay(NamedTuple):
    """Whom the learner meets.

    Attributes:
      title: its name in tables.
      knobs: arguments of `ppo.train`, in place of the preset's.
    """

    title: str
    knobs: Mapping[str, Any]


SELFPLAY = {
    "uniform": SelfPlay("delta-uniform", {"delta": 1.0}),
    "half": SelfPlay("delta-uniform, newer half", {"delta": 0.5}),
    "naive": SelfPlay("naive", {"delta": 0.0}),
    "uniform-empty": SelfPlay(
        "delta-uniform, empty board", {"delta": 1.0, "max_random_moves": 0}
    ),
    "naive-empty": SelfPlay("naive, empty board", {"delta": 0.0, "max_random_moves": 0}),
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Trains and plays; see the module's text."""
    parser = runs.parser("ppo_learning", __doc__, PRESETS)
    parser.add_argument(
        "--selfplay", nargs="+", choices=SELFPLAY, default=argparse.SUPPRESS,
        help="uniform and naive by default",
    )  # fmt: skip
    parser.add_argument("--runs", type=runs.positive, default=1, help="trainings of each")
    parser.add_argument("--iterations", type=runs.positive, help="in place of the preset's")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/ppo_learning"))
    args = parser.parse_args(argv)
    preset = runs.override(PRESETS[args.preset], args)
    setting = dict(preset._asdict(), seed=args.seed)
    record = runs.open_record(parser, args, setting, ("selfplay", "run", "iteration"))
    with report.progress_bar(args.preset) as progress:
        for run in range(args.runs):
            for name in getattr(args, "selfplay", ("uniform", "naive")):
                if runs.has(record, selfplay=name, run=run, iteration=preset.iterations):
                    continue

                def update(done: int, name: str = name) -> None:
                    progress(done, preset.iterations, SELFPLAY[name].title)

                folder = args.folder / f"{args.preset}-{name}-{args.seed + run}"
                learn(record, preset, name, run, args.seed + run, folder, update)
    rows = runs.read(record)
    report.print_table(f"PPO from nothing, {preset.size}x{preset.size} Hex", *table(rows))
    draw(record.path, rows, preset.size)
    print(f"Wrote {record.path} and its pictures.")


def learn(
    record: runs.Record,
    preset: Preset,
    name: str,
    run: int,
    seed: int,
    folder: pathlib.Path,
    update: Callable[[int], None],
) -> None:
    """Trains one network and adds its rows on the way.

    Args:
      record: where the rows go.
      preset: the board and how to learn on it.
      name: a name in `SELFPLAY`.
      run: the number of the training.
      seed: seed of the initial weights and of the games.
      folder: where the run is kept.
      update: told the number of the iteration that is done.
    """
    env = jaxpgs.envs.Hex(preset.size)
    network = jaxpgs.networks.SEResNet(
        env.observation_shape, env.num_actions, **preset.network, rngs=nnx.Rngs(seed)
    )
    params, apply_fn = jaxpgs.networks.functional(network)
    others = {
        "mcts": evaluation.openspiel_mcts(env, num_simulations=preset.simulations),
        "random": evaluation.uniform_random(env),
    }
    clock = Clock(folder / "seconds.txt")

    def count(params: Any, iteration: int, **more: Any) -> None:
        if runs.has(record, selfplay=name, run=run, iteration=iteration):
            return
        player = evaluation.raw_network(env, apply_fn, params)
        row = {"selfplay": name, "run": run, "iteration": iteration}
        for opponent, other in others.items():
            match = evaluation.play_match(
                env, player, other, jax.random.key(seed), repeats=preset.repeats
            )
            row |= share(opponent, match)
        runs.add(record, row | {"seconds": round(clock.note())} | more)

    last: dict[str, float] = {}

    def callback(state: ppo.PPOState, metrics: dict[str, float]) -> None:
        last.update(metrics)
        iteration = int(metrics["iteration"])
        update(iteration)
        clock.note()
        if iteration % preset.every == 0 and iteration < preset.iterations:
            count(state.params, iteration, **_told(metrics))

    count(params, 0)
    training = {**preset.training, **SELFPLAY[name].knobs}
    positions = training["num_games"] * training["num_steps"]
    steps = preset.iterations * training["epochs"] * positions // training["batch_size"]
    schedule = optax.cosine_decay_schedule(preset.step_size, steps, alpha=0.1)
    state = ppo.train(
        env, network, num_iterations=preset.iterations, evaluate_every=0, seed=seed,
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)),
        directory=folder / "checkpoints", checkpoint_every=preset.every, callback=callback,
        **training,
    )  # fmt: skip
    along = ppo.elo_along(env, network, state, num_players=9)
    rated = zip(along.iteration, along.table.ratings, along.table.half_widths, strict=True)
    elo = [[int(when), round(float(r), 1), round(float(half), 1)] for when, r, half in rated]
    count(state.params, preset.iterations, elo=elo, **(_told(last) if last else {}))


def share(opponent: str, match: evaluation.MatchResult) -> dict[str, float]:
    """Returns the share of the points won, and its 95% interval, whose unit is the opening."""
    by_opening = match.outcomes.mean(axis=(0, 1))
    half = Z_95 * by_opening.std(ddof=1) / len(by_opening) ** 0.5
    won = round(float(by_opening.mean()), 4)
    return {opponent: won, f"{opponent}_half_width": round(float(half), 4)}


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each count."""
    columns = [
        "self-play", "run", "iteration", "% won against OpenSpiel's MCTS", "% won against random",
        "entropy", "clipped %", "Elo over its own first version", "minutes of training",
    ]  # fmt: skip
    lines = []
    for row in _sorted(rows):
        won = [
            f"{100 * row[name]:.0f} ± {100 * row[f'{name}_half_width']:.0f}"
            for name in ("mcts", "random")
        ]
        elo = row.get("elo")
        gained = f"{elo[-1][1]:+.0f} ± {elo[-1][2]:.0f}" if elo else None
        share = round(100 * row["clipped"], 1) if "clipped" in row else None
        lines.append([
            SELFPLAY[row["selfplay"]].title, row["run"], row["iteration"], *won,
            row.get("entropy"), share, gained, round(row["seconds"] / 60, 1),
        ])  # fmt: skip
    return columns, lines


def elo_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each run: ratings of its versions, the first being 0."""
    finished = [row for row in _sorted(rows) if "elo" in row]
    versions = sorted({when for row in finished for when, *_ in row["elo"]})
    lines = []
    for row in finished:
        rating = {when: f"{elo:+.0f} ± {half:.0f}" for when, elo, half in row["elo"]}
        title = SELFPLAY[row["selfplay"]].title
        lines.append([title, row["run"], *(rating.get(when) for when in versions)])
    return ["self-play", "run", *(f"after {when}" for when in versions)], lines


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], size: int) -> None:
    """Draws shares of games won along training, and ratings along the histories."""
    against: dict[str, dict[str, list[Any]]] = {
        "against OpenSpiel's MCTS": {},
        "against random": {},
    }
    along: dict[str, list[Any]] = {}
    for row in _sorted(rows):
        line = SELFPLAY[row["selfplay"]].title + (f", run {row['run']}" if row["run"] else "")
        for panel, name in zip(against.values(), ("mcts", "random"), strict=True):
            share, half = 100 * row[name], 100 * row[f"{name}_half_width"]
            band = (max(share - half, 0.0), share, min(share + half, 100.0))
            panel.setdefault(line, []).append((row["iteration"], band))
        if "elo" in row:
            along[line] = [(when, (elo - half, elo, elo + half)) for when, elo, half in row["elo"]]
    board = f"{size}x{size} Hex"
    pictures.line_plot(
        path.with_suffix(".png"), against, title=f"PPO from nothing, {board}",
        xlabel="iteration", ylabel="% of games won", xscale="linear", yscale="linear",
    )  # fmt: skip
    if along:
        pictures.line_plot(
            path.with_name(f"{path.stem}_elo.png"), {"versions of one run": along},
            title=f"Elo along PPO's history, {board}", xlabel="iteration",
            ylabel="Elo over the first version", xscale="linear", yscale="linear",
        )  # fmt: skip


def _sorted(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    order = list(SELFPLAY)
    return sorted(
        rows, key=lambda row: (order.index(row["selfplay"]), row["run"], row["iteration"])
    )


def _told(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(metrics[name], 4) for name in ("entropy", "clipped", "value_loss", "score")}


if __name__ == "__main__":
    main()
