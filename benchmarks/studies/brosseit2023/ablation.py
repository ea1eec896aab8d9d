"""Which extension of Brosseit 2023 helps plain policy gradient search? Its figures 5.5 and 5.6.

    python -m benchmarks.strength --preset ablation --network hex-5x5-early \\
        --simulations 25 50 100 200      # the games, a file for each network and count
    python -m benchmarks.studies.brosseit2023.ablation    # the table and the picture of all these

Plain PGS is that of the thesis: rollouts of five actions per simulation, PUCT with a constant of 5,
REINFORCE without a baseline on the last value, SGD with step size 1e-3 on the last linear layer,
and the most visited action is played. Only K differs: it is 4 here, so that the games are
affordable, and 1 in the thesis. All other players play only against plain PGS. Each differs from it
by one change, except "all together" and "PGS default", which has its own K.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import pictures, report, runs
from benchmarks.players import Spec
from benchmarks.runs import RESULTS
from jaxpgs import evaluation

PLAIN: dict[str, Any] = {
    "c_puct": 5.0,
    "simulations_per_update": 4,
    "mode": "constant",
    "head": "linear",
    "interior_selection": None,
    "truncation": "fixed(5)",
    "estimator": "reinforce",
    "backup": "last_value",
    "target": "visit_counts",
    "optimizer": "sgd",
    "step_size": 1e-3,
}
_PRINTED = {"estimator": "step_advantage_as_printed"}
_REPAIRED = {"estimator": "step_advantage"}
_ADAM = {"optimizer": "adam"}
CHANGES: dict[str, dict[str, Any]] = {
    # The thesis's six extensions, and variants where its formulas and its code differ.
    "length by visits, eq. 3.2": {"truncation": "by_visits(6)"},
    "log-series returns, eq. 3.3": {"backup": "log_series(0.995)"},
    "truncated geometric returns": {"backup": "truncated_geometric(0.995)"},
    "entropy bonus": {"entropy": 2.0},
    "KL(policy, prior)": {"kl_to_prior": 0.1},
    "policy target, eq. 3.4": {"target": "completed_q_as_printed"},
    "update repaired, eq. 3.5": _REPAIRED,
    "update as printed, eq. 3.5": _PRINTED,
    "update as printed, Adam": _PRINTED | _ADAM,
    "Adam": _ADAM,
    "step size 0 (MCS)": {"step_size": 0.0},
    # Further parts of the library.
    "until new": {"truncation": "until_new"},
    "target rescaled": {"target": "completed_q"},
    "TD(0.8) returns": {"backup": "td_lambda(0.8)"},
    "KL(prior, policy)": {"kl_from_prior": 0.1},
    "value as baseline": {"estimator": "reinforce(value)"},
    "auto step size": {"optimizer": "auto", "step_size": 3.0},
    # The objective is a sum over the four updates kept, so the step size is a quarter.
    "reuse of 4 updates, eq. D.1": {"reuse": 4, "step_size": 2.5e-4},
    "PPO clip, 3 epochs": {"reuse": 4, "epochs": 3, "clip": 0.2, "step_size": 2.5e-4},
}
# All constants of the thesis's table A.3.
TOGETHER: dict[str, Any] = {
    "c_puct": 5.0,
    "simulations_per_update": 4,
    "mode": "constant",
    "head": "linear",
    "truncation": "by_visits(6)",
    "backup": "log_series(0.995)",
    "estimator": "step_advantage",
    "target": "completed_q_as_printed",
    "entropy": 2.0,
    "kl_to_prior": 0.1,
    "optimizer": "adam",
    "step_size": 1e-3,
}
PLAYERS = (
    Spec("plain PGS", "pgs", PLAIN),
    Spec("all together", "extended", TOGETHER),
    *(Spec(name, "pgs", PLAIN | change) for name, change in CHANGES.items()),
    Spec("PGS default", "pgs"),
)
_FILE = re.compile(r"strength_ablation_(.+)_(\d+)")


def main(argv: list[str] | None = None) -> None:
    """Writes the table of all tournaments and draws it; see the module's docstring."""
    parser = runs.parser("studies.brosseit2023.ablation", __doc__)
    parser.add_argument("--folder", type=pathlib.Path, default=RESULTS, help="of the tournaments")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {}, ("network", "simulations", "player"))
    found = list(rated(args.folder))
    if not found and not runs.read(record):
        parser.error(f"there are no tournaments (strength_ablation_*.json) in {args.folder}")
    rows = runs.add(record, *found)
    report.print_table("Elo over plain PGS", *table(rows))
    draw(record.path.with_suffix(".png"), rows)
    print(f"Wrote {record.path} and its picture.")


def rated(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Rates every player's games against plain PGS, for each number of simulations and for all.

    Args:
      folder: the folder of the tournaments' files.

    Yields:
      A row for each network, number of simulations and player; `simulations` is 0 for all together.
    """
    found: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for path in sorted(folder.glob("strength_ablation_*.json")):
        match = _FILE.fullmatch(path.stem)
        if match is None:
            continue
        games = {}
        for row in runs.load(path)["rows"]:
            if row["first"] == "plain PGS":
                games[row["second"]] = 1 - np.asarray(row["outcomes"])
        found.setdefault(match[1], {})[int(match[2])] = games
    for network, by_count in found.items():
        for count, games in sorted(by_count.items()):
            for player, outcomes in games.items():
                yield {"network": network, "simulations": count, "player": player} | _rate(outcomes)
        # All counts have the same openings, so an opening's games can be joined.
        everyone = dict.fromkeys(player for games in by_count.values() for player in games)
        for player in everyone:
            some = [games[player] for games in by_count.values() if player in games]
            together = np.concatenate(some, axis=1)
            yield {"network": network, "simulations": 0, "player": player} | _rate(together)


def _rate(outcomes: np.ndarray) -> dict[str, Any]:
    interval = evaluation.elo_by_opening(outcomes)
    return {
        "won": float(outcomes.sum()),
        "games": int(outcomes.size),
        "openings": int(outcomes.shape[-1]),
        "elo": round(interval.elo, 1),
        "low": round(interval.low, 1),
        "high": round(interval.high, 1),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each player: its Elo over plain PGS, with intervals.

    Each network and number of simulations has a column. If a network has several, a column for all
    of them together is the last.
    """
    cells = {(r["network"], r["simulations"], r["player"]): r for r in rows}
    networks = list(dict.fromkeys(r["network"] for r in rows))
    counts = {
        network: sorted({r["simulations"] for r in rows if r["network"] == network}, key=_last)
        for network in networks
    }
    columns = ["player"]
    for network in networks:
        if len(counts[network]) == 2:
            counts[network] = counts[network][:1]
        short = network.removeprefix("hex-").removesuffix("-early")
        columns += [f"{short}, {count}" if count else f"{short}, all" for count in counts[network]]
    lines = []
    for spec in PLAYERS[1:]:
        line: list[Any] = [spec.name]
        for network in networks:
            for count in counts[network]:
                row = cells.get((network, count, spec.name))
                line.append(row and report.interval_text(row))
        if any(line[1:]):
            lines.append(line)
    return columns, lines


def games(data: Mapping[str, Any]) -> str:
    """Returns a sentence on the number of games and openings of a cell of the table."""
    rows = [row for row in data["rows"] if row["simulations"]]
    counts, openings = ({row[name] for row in rows} for name in ("games", "openings"))
    cells = " or ".join(map(str, sorted(counts)))
    lines = " or ".join(map(str, sorted(openings)))
    return f"{cells} games a cell over {lines} openings, both colours; 95% intervals over openings."


def _last(count: int) -> tuple[bool, int]:
    """A key that sorts 0, which stands for all counts together, to the end."""
    return count == 0, count


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws every player's Elo over plain PGS, a panel for each network and count."""
    panels: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in rows:
        if row["simulations"]:
            heading = f"{row['network']}, {row['simulations']}"
            interval = (row["low"], row["elo"], row["high"])
            panels.setdefault(heading, {})[row["player"]] = interval
    played = {name for found in panels.values() for name in found}
    pictures.interval_panels(
        path, panels, [spec.name for spec in PLAYERS[1:] if spec.name in played],
        title="One extension at a time, against plain PGS",
        xlabel="Elo over plain PGS", columns=5,
    )  # fmt: skip


if __name__ == "__main__":
    main()
