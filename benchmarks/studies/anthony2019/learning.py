"""How well do the experts teach? Raw networks along training, rated against one another.

    python -m benchmarks.studies.anthony2019.learning    # 7x7 Hex: an hour on two cores

Figure 3 of Anthony et al. 2019: expert iteration trains a network with each search as the expert,
with everything else the same. Then the raw networks of all snapshots play a round robin, every
first move with both colours. A training that was stopped resumes from the folder `--runs`.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxpgs
from benchmarks import pictures, report, runs
from benchmarks.ratings import elo_text
from jaxpgs import evaluation
from jaxpgs.checks import refusals_in_one_line
from jaxpgs.training.recipes import hex_networks
from jaxpgs.training.two_player.head_to_head import head_to_head

EXPERTS = ("mcs", "pgs", "mcts")


@refusals_in_one_line("python -m benchmarks.studies.anthony2019.learning")
def main(argv: list[str] | None = None) -> None:
    """Trains, plays and rates; see the module's docstring."""
    parser = runs.parser("studies.anthony2019.learning", __doc__)
    parser.add_argument("--network", default="hex-7x7-early", choices=hex_networks.RECIPES)
    parser.add_argument("--experts", nargs="+", default=list(EXPERTS))
    parser.add_argument("--simulations", type=runs.positive, default=32)
    parser.add_argument("--iterations", type=runs.positive, default=200)
    parser.add_argument("--games", type=runs.positive, default=128, help="games at once")
    parser.add_argument("--snapshots", type=runs.positive, default=25, help="iterations apart")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/learning"))
    args = parser.parse_args(argv)
    given = ("simulations", "iterations", "games", "snapshots", "seed")
    setting = {name: getattr(args, name) for name in ("network", *given)}
    record = runs.open_record(parser, args, setting, ("expert", "iteration"))
    options = [text for name in given for text in (f"--{name}", str(getattr(args, name)))]
    for expert in args.experts:
        hex_networks.main([args.network, "--expert", expert, "--out", str(args.runs), *options])
    networks = [
        (expert, int(name.rsplit("-", 1)[1]), jaxpgs.load_pretrained(name, directory=folder))
        for expert in args.experts
        for folder in [args.runs / f"{args.network}-{expert}" / "snapshots"]
        for name in jaxpgs.available_pretrained(folder)
    ]
    wins = play([network for _, _, network in networks])
    ratings = evaluation.bayes_elo(wins)
    rated = zip(networks, ratings.ratings, ratings.half_widths, strict=True)
    rows = [
        {"expert": expert, "iteration": iteration} | _rounded(elo=elo, half_width=half_width)
        for (expert, iteration, _), elo, half_width in rated
    ]
    seconds = {expert: _seconds(args.runs / f"{args.network}-{expert}") for expert in args.experts}
    runs.add(record, *rows, seconds=seconds, wins=wins)
    report.print_table(f"Raw networks, {args.network}", *table(rows))
    lines = {
        expert.upper(): [
            (r["iteration"], (r["elo"] - r["half_width"], r["elo"], r["elo"] + r["half_width"]))
            for r in rows
            if r["expert"] == expert
        ]
        for expert in args.experts
    }
    title = f"The raw network along training, {args.network.split('-')[1]} Hex"
    pictures.line_plot(
        record.path.with_suffix(".png"), {f"{args.simulations} simulations a move": lines},
        title=title, xlabel="iteration", ylabel="Elo of the raw network", xscale="linear",
        yscale="linear",
    )  # fmt: skip
    print(f"Wrote {record.path} and {record.path.with_suffix('.png')}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each network."""
    columns = ["expert", "iteration", "Elo of the raw network"]
    return columns, [
        [row["expert"], row["iteration"], elo_text(row["elo"], row["half_width"])] for row in rows
    ]


def play(networks: list[Any]) -> np.ndarray:
    """Plays every pair of raw networks of one architecture.

    Returns:
      `[P, P]` how many points the row's network won against the column's.
    """
    env, apply_fn = networks[0].env, networks[0].apply_fn
    score = jax.jit(lambda first, second: head_to_head(env, apply_fn, first, second))
    games = 2 * env.num_actions
    wins = np.zeros((len(networks), len(networks)))
    with report.progress_bar("round robin") as progress:
        for i, first in enumerate(networks):
            progress(i, len(networks), "")
            for j in range(i):
                wins[i, j] = round(games * float(score(first.params, networks[j].params)), 1)
                wins[j, i] = games - wins[i, j]
    return wins


def _rounded(**numbers: float) -> dict[str, float]:
    return {name: round(float(number), 1) for name, number in numbers.items()}


def _seconds(run: pathlib.Path) -> float:
    return round(float((run / "seconds.txt").read_text()))


if __name__ == "__main__":
    main()
