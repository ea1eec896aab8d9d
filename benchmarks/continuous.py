"""Continuous actions: PGS beside Monte Carlo search and CEM, at equal calls of the model.

    python -m benchmarks.continuous                  # half an hour or so
    python -m benchmarks.continuous --preset wind    # minutes
    python -m benchmarks.continuous --preset tiny    # seconds

Two problems: the pendulum, and a point mass that is moved in four directions at once; `--preset
wind` has the point mass in gusts of wind, which all simulations draw anew. No network is trained:
the policy is linear in the observation and begins with a mean of 0, and every value is 0. For each
player settings are drawn from the ranges in `RANGES` and tried with the middle budget, from start
states of their own; the best of them plays with every budget, all players from the same starts. The
unit of all intervals is the start state.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import pictures, planners, report, runs
from benchmarks.paired import beside, difference, draw_numbers, tell_setting, tuned
from benchmarks.planners import Budget, MakePlayer, make_cem, make_search, play
from benchmarks.point_mass import PointMass
from jaxpgs.envs.pendulum import Pendulum


class Preset(NamedTuple):
    """How much is played.

    Attributes:
      problems: by name, and how many candidates a search has there.
      budgets: calls of the model for each decision; the middle one is tuned with.
      depths: steps of a simulation to choose among.
      settings: tried for each player, a multiple of twice the number of depths.
      tuning_starts: start states of each trial.
      starts: start states of each figure.
    """

    problems: Mapping[str, tuple[Any, int]]
    budgets: Sequence[int]
    depths: Sequence[int]
    settings: int
    tuning_starts: int
    starts: int


PRESETS = {
    "full": Preset(
        {"pendulum": (Pendulum(100), 8), "point mass": (PointMass(4, 40), 16)},
        (384, 768, 1536), (12, 24), 12, 32, 64,
    ),
    "wind": Preset(
        {"point mass in wind": (PointMass(4, 40, wind=1.0), 16)}, (768,), (12,), 6, 64, 64
    ),
    "tiny": Preset({"point mass": (PointMass(2, 3), 4)}, (16,), (2,), 2, 2, 2),
}  # fmt: skip
_SEARCH = {"log_std": (-2.5, 0.0), "root_log_std": (-1.0, 0.5), "log_c": (-1.0, 5.0)}
# See `paired.draw_numbers`.
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "PGS": _SEARCH | {"log_step": (-4.0, -0.5), "keep": (-1.0, 1.0)},
    "MCS": _SEARCH,
    "CEM": {"log_std": (-1.5, 0.5), "log_elite": (-2.5, -0.7), "keep": (-1.0, 1.0)},
}
PLAYERS: dict[str, MakePlayer] = {
    "PGS": functools.partial(make_search, True),
    "MCS": functools.partial(make_search, False),
    "CEM": make_cem,
}
_KEY = ("problem", "player", "part", "calls", "number")


def main(argv: list[str] | None = None) -> None:
    """Tunes and plays; see the module's text."""
    parser = runs.parser("continuous", __doc__, PRESETS)
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    setting = {
        "seed": args.seed, "settings": preset.settings, "starts": preset.starts,
        "tuning_starts": preset.tuning_starts, "depths": preset.depths,
        "ranges": RANGES, "simulations_per_update": planners.SIMULATIONS_PER_UPDATE,
    }  # fmt: skip
    record = runs.open_record(parser, args, setting, _KEY)
    with report.progress_bar("continuous") as progress:
        for problem in preset.problems:
            for player in PLAYERS:
                for number in range(preset.settings):
                    progress(number, preset.settings, f"{problem}, {player}, tuning")
                    _measure(record, preset, problem, player, "tune", number, args.seed)
                best = tuned(runs.read(record), "returns", problem=problem, player=player)
                for calls in preset.budgets:
                    progress(0, 1, f"{problem}, {player}, {calls} calls")
                    _measure(record, preset, problem, player, "play", best, args.seed, calls)
    rows = runs.read(record)
    report.print_table("Continuous actions at equal calls of the model", *table(rows))
    draw(record.path.with_suffix(".png"), rows)


def draw_setting(preset: Preset, player: str, number: int, seed: int) -> dict[str, Any]:
    """Draws a player's setting: its numbers by name, with `depth` and `iterations`."""
    numbers = draw_numbers(RANGES[player], number, seed)
    depth = preset.depths[number % len(preset.depths)]
    iterations = (2, 4)[number // len(preset.depths) % 2] if player == "CEM" else 1
    return {"depth": depth, "iterations": iterations, "numbers": numbers}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _play(player: str, env: Any, budget: Budget, numbers: Any, key: Any, starts: Any) -> Any:
    return play(PLAYERS[player], env, budget, numbers, key, starts)


def _measure(
    record: runs.Record,
    preset: Preset,
    problem: str,
    player: str,
    part: str,
    number: int,
    seed: int,
    calls: int | None = None,
) -> None:
    """Plays with a setting and adds the row, unless it is there."""
    calls = preset.budgets[len(preset.budgets) // 2] if calls is None else calls
    key = {"problem": problem, "player": player, "part": part, "calls": calls, "number": number}
    if runs.has(record, **key):
        return
    env, candidates = preset.problems[problem]
    setting = draw_setting(preset, player, number, seed)
    budget = Budget(calls, setting["depth"], candidates, setting["iterations"])
    tuning = part == "tune"
    start_key, play_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), tuning))
    count = preset.tuning_starts if tuning else preset.starts
    starts = jax.vmap(env.init)(jax.random.split(start_key, count))
    found = np.asarray(_play(player, env, budget, setting["numbers"], play_key, starts))
    runs.add(record, key | setting | {"returns": found.astype(float).round(4)})


def played(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int, str], Mapping[str, Any]]:
    """Returns the rows of figures by problem, calls and player, of each the last setting."""
    return {
        (row["problem"], row["calls"], row["player"]): row for row in rows if row["part"] == "play"
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each problem, budget and player."""
    columns = ["problem", "calls a decision", "player", "return", "over MCS", "95%", "over CEM",
               "95% ", "setting"]  # fmt: skip
    found = played(rows)
    lines = []
    for problem, calls, player in sorted(
        found, key=lambda k: (k[0], k[1], list(PLAYERS).index(k[2]))
    ):
        row = found[problem, calls, player]
        line = [problem, calls, player, round(float(np.mean(row["returns"])), 2)]
        others = [found.get((problem, calls, other)) for other in ("MCS", "CEM")]
        line += beside(row, others, "returns", 2)
        more = f"{row['iterations']} iterations, " * (player == "CEM")
        lines.append([*line, f"depth {row['depth']}, {more}{tell_setting(row)}"])
    return columns, lines


def draw(path: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws how much of MCS's cost each player saves, with the interval of the difference."""
    found = played(rows)
    panels: dict[str, dict[str, list[tuple[float, Any]]]] = {}
    for problem, calls, player in sorted(found, key=lambda k: k[1]):
        base = found[problem, calls, "MCS"]
        mean, low, high = difference(found[problem, calls, player], base, "returns")
        panel = panels.setdefault(problem, {name: [] for name in PLAYERS})
        share = 100 / abs(float(np.mean(base["returns"])))
        panel[player].append((calls, (share * low, share * mean, share * high)))
    pictures.line_plot(
        path, panels, title="Cost saved beside Monte Carlo search",
        xlabel="calls of the model a decision", ylabel="% of MCS's cost", yscale="linear",
    )  # fmt: skip


if __name__ == "__main__":
    main()
