"""Solves SameGame: the 20 standard positions, or random boards, with any of the searches.

    python -m benchmarks.studies.seify2020.samegame                  # 4 positions, 5 seconds
    python -m benchmarks.studies.seify2020.samegame --preset full    # 20, a minute each, 3 seeds
    python -m benchmarks.studies.seify2020.samegame --search nrpa --random 8 --size 10 --colors 4
    python -m benchmarks.studies.seify2020.samegame --preset full --show 5   # best game of board 5

A search uses all cores for `--together` positions at once, which share the time:
`--together 5 --seconds 60` searches five positions for 300 seconds. Compilation is not counted.
With `--clock cpu`, seconds are processor time per device, which other work on the machine does not
change. The rules in NumPy replay every game to its end and give the score. The rows of the file
hold the games. A command that was stopped continues when it is started again with the same file.
"""

import contextlib
import functools
import importlib.resources
import itertools
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxpgs
from benchmarks import pictures, report, runs
from benchmarks.studies.seify2020.samegame_searches import SEARCHES, Best, Run
from jaxpgs.checks import refusals_in_one_line
from jaxpgs.envs import SameGame
from jaxpgs.envs.samegame import rules
from jaxpgs.envs.samegame.game import standard_positions
from jaxpgs.play import Board
from jaxpgs.play.server import serve

Row = Mapping[str, Any]  # a row of a file, its setting, or the file
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "positions": [1, 5, 10, 17],
        "searches": ["random", "nrpa", "tempering"],
        "seconds": 5.0,
        "together": 4,
    },
    "full": {
        "positions": list(range(1, 21)),
        "searches": ["nrpa", "tempering"],
        "seconds": 60.0,
        "together": 10,
        "repeats": 3,
    },
}


def published_scores(what: str = "scores") -> dict[str, Any]:
    """Returns published scores on the 20 standard positions, or `"cpu_hours"`, by search."""
    file = importlib.resources.files("jaxpgs.envs") / "data" / "samegame20_published.json"
    return json.loads(file.read_text())[what]


def processor_seconds() -> float:
    """Returns this process's CPU time per device, which other processes do not change."""
    return time.process_time() / jax.device_count()


def best_published(numbers: Sequence[int]) -> int:
    """Returns the sum of the best published scores of some of the 20 standard positions."""
    return sum(max(scores[n - 1] for scores in published_scores().values()) for n in numbers)


def make_boards(setting: Row, numbers: Sequence[int]) -> dict[int, np.ndarray]:
    """Returns the boards of a setting by their numbers, which begin at 1."""
    random = setting["random"]
    if random is None:
        return {number: standard_positions()[number - 1] for number in numbers}
    env = make_env(setting)
    key = jax.random.key(random["seed"])
    return {n: np.asarray(env.board(env.init(jax.random.fold_in(key, n)))) for n in numbers}


def make_env(setting: Row) -> SameGame:
    """Returns the game of a setting."""
    random = setting["random"] or {"size": 15, "colors": 5}
    size, colors = random["size"], random["colors"]
    return SameGame(height=size, width=size, num_colors=colors, penalty=setting["penalty"])


def verified(board: np.ndarray, actions: Sequence[int], penalty: str) -> dict[str, Any]:
    """Replays a game from a board `[H, W]` by the rules in NumPy.

    Returns:
      `score`, `cleared` and `actions`.

    Raises:
      ValueError: if an action is illegal or the game is not over.
    """
    game = rules.replay(board, actions, penalty=penalty)
    if not game.over:
        raise ValueError(f"The game of {len(actions)} moves is not over: {list(actions)}.")
    return {"score": game.score, "cleared": game.cleared, "actions": list(actions)}


def solve(
    run: Run,
    boards: np.ndarray,
    key: Any,
    seconds: float | None,
    simulations: int | None,
    update: Any,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Best, list[list[float]], float]:
    """Runs a search until its budget is used up.

    Args:
      run: the search.
      boards: `[M, H, W]`.
      key: consumed.
      seconds: the time limit per board, M times this in all; None for no limit.
      simulations: the limit of games per board, rounded up to whole steps; None for no limit.
      update: called with the share that is done, from 0 to 1, and the best games so far.
      clock: returns the time in seconds.

    Returns:
      The best games; `[seconds per board, mean score]` for each time that the mean score rose; and
      the seconds that the search took.
    """
    allowed = math.inf if seconds is None else seconds * len(boards)
    most = math.inf if simulations is None else simulations
    curve: list[list[float]] = []
    begin = clock()
    for best in run(boards, key):
        spent = clock() - begin
        mean = sum(best.scores) / len(boards)
        if not curve or mean > curve[-1][1]:
            curve.append([round(spent / len(boards), 3), mean])
        update(min(1.0, max(spent / allowed, best.simulations / most)), best)
        if spent >= allowed or best.simulations >= most:
            return best, curve, spent
    raise RuntimeError("A search ended before its budget.")


def measure(
    record: runs.Record,
    searches: Sequence[str],
    boards: Mapping[int, np.ndarray],
    seeds: Sequence[int],
) -> None:
    """Solves the boards that the file lacks with each search and seed; saves group by group."""
    setting, env = record.setting, make_env(record.setting)
    clock = processor_seconds if setting["clock"] == "cpu" else time.perf_counter
    jobs = []
    for seed, name in itertools.product(seeds, searches):
        known = functools.partial(runs.has, record, search=name, seed=seed)
        missing = [number for number in boards if not known(position=number)]
        together = setting["together"]
        jobs += [(seed, name, missing[i : i + together]) for i in range(0, len(missing), together)]
    prepared: dict[tuple[str, int], Run] = {}
    with report.progress_bar("SameGame") as progress:
        for index, (seed, name, numbers) in enumerate(jobs):
            shape = name, len(numbers)
            if shape not in prepared:
                progress(1000 * index, 1000 * len(jobs), f"compiling {name}")
                prepared[shape] = SEARCHES[name](env, len(numbers))
            label = f"{name}, position {', '.join(map(str, numbers))}"
            record_sum = best_published(numbers) if setting["random"] is None else None

            def update(
                share: float, best: Best, index: int = index, label: str = label,
                record_sum: int | None = record_sum,
            ) -> None:  # fmt: skip
                text = f"{label}: {sum(best.scores):,.0f} in all"
                text += "" if record_sum is None else f", the best published have {record_sum:,}"
                progress(1000 * index + int(1000 * share), 1000 * len(jobs), text)

            key = jax.random.fold_in(jax.random.key(seed), numbers[0])
            group = np.stack([boards[number] for number in numbers])
            budget = setting["seconds"], setting["simulations"]
            best, curve, seconds = solve(prepared[shape], group, key, *budget, update, clock)
            about = {
                "seconds": round(seconds / len(numbers), 2),
                "simulations": best.simulations,
                "curve": curve,
            }
            rows = [
                {"position": number, "search": name, "seed": seed}
                | verified(boards[number], actions, setting["penalty"])
                | about
                for number, actions in zip(numbers, best.actions, strict=True)
            ]
            runs.add(record, *rows)


def totals(rows: Sequence[Row]) -> dict[str, dict[int, Row]]:
    """Returns the rows by search (and seed, if there are several), and then by position."""
    several = len({row["seed"] for row in rows}) > 1
    found: dict[str, dict[int, Row]] = {}
    for row in _in_order(rows):
        label = f"{row['search']}, seed {row['seed']}" if several else row["search"]
        found.setdefault(label, {})[row["position"]] = row
    return found


def _in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (list(SEARCHES).index(row["search"]), row["seed"]))


def table(record: Row) -> tuple[list[str], list[list[Any]]]:
    """Returns headings, a line for each position, and their sums; * marks a cleared board."""
    solved = totals(record["rows"])
    numbers = sorted({row["position"] for row in record["rows"]})
    published = published_scores() if record["setting"]["random"] is None else {}
    lines: list[list[Any]] = []
    for number in numbers:
        ours = [rows.get(number) for rows in solved.values()]
        cells = [row and f"{row['score']:,.0f}{'*' * row['cleared']}" for row in ours]
        others = [f"{scores[number - 1]:,}" for scores in published.values()]
        lines.append([str(number), *cells, *others])
    sums = [
        f"{sum(row['score'] for row in rows.values()):,.0f}" if len(rows) == len(numbers) else None
        for rows in solved.values()
    ]
    others = [f"{sum(scores[n - 1] for n in numbers):,}" for scores in published.values()]
    lines.append(["sum", *sums, *others])
    return ["position", *solved, *published], lines


def comparison(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a row for each search: its score, and its gain on the first one.

    Scores are means over the seeds; gains are those of `gains`. ± is the standard deviation over
    seeds for sums, and the 95% interval over positions for gains.
    """
    scores = _scores(rows)
    found = gains(rows)
    lines: list[list[Any]] = []
    for name, by_seed in scores.items():
        sums = [sum(of_seed.values()) for of_seed in by_seed.values()]
        spread = f" ± {np.std(sums, ddof=1):,.0f}" if len(sums) > 1 else ""
        mean = float(np.mean([x for of_seed in by_seed.values() for x in of_seed.values()]))
        gain = f"{found[name][0]:+.0f} ± {found[name][1]:.0f}" if name in found else None
        lines.append([name, f"{mean:,.0f}", f"{np.mean(sums):,.0f}{spread}", len(sums), gain])
    return ["search", "mean score", "sum", "seeds", f"gain on {next(iter(scores))}"], lines


def standing(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a row for each search and publication on the 20 positions, best first.

    Sums are means over the seeds, and CPU hours those of one seed. "Best of" lines have each
    position's best seed, and the hours of all seeds. Every budget has its own lines.
    """
    found: list[tuple[float, list[Any]]] = []
    several = len({round(row["seconds"], -1) for row in rows}) > 1

    def label(row: Row) -> str:
        return row["search"] + f", {round(row['seconds'], -1):.0f} s" * several

    for name, by_seed in _scores(rows, label).items():
        sums = [sum(scores.values()) for scores in by_seed.values()]
        hours = sum(r["seconds"] * r["cores"] for r in rows if label(r) == name) / 3600
        found.append((float(np.mean(sums)), [name, len(sums), f"{hours / len(sums):.2g}"]))
        if len(sums) > 1:
            best = sum(max(of) for of in zip(*(s.values() for s in by_seed.values()), strict=True))
            found.append((best, [f"{name}, best of {len(sums)}", None, f"{hours:.2g}"]))
    hours_of = published_scores("cpu_hours")
    for name, scores in published_scores().items():
        found.append((sum(scores), [name, None, hours_of[name]]))
    lines = [[name, f"{total:,.0f}", *more] for total, (name, *more) in sorted(found)[::-1]]
    return ["search", "sum", "seeds", "CPU hours"], lines


def gains(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Returns the mean gain of each search on the first one, and half its 95% interval's width.

    A position's gain is the mean over the seeds that both have; the interval is over positions, of
    which there must be at least two.
    """
    (_, reference), *others = _scores(rows).items()
    found: dict[str, tuple[float, float]] = {}
    for name, by_seed in others:
        of_position: dict[int, list[float]] = {}
        for seed in set(by_seed) & set(reference):
            for number in set(by_seed[seed]) & set(reference[seed]):
                gain = by_seed[seed][number] - reference[seed][number]
                of_position.setdefault(number, []).append(gain)
        means = [float(np.mean(some)) for some in of_position.values()]
        if len(means) > 1:
            half = 1.96 * float(np.std(means, ddof=1)) / math.sqrt(len(means))
            found[name] = float(np.mean(means)), half
    return found


def _scores(
    rows: Sequence[Row],
    name: Callable[[Row], str] = lambda r: r["search"],
) -> dict[str, dict[int, dict[int, float]]]:
    """Returns the scores by search (or by `name` of the row), then by seed and by position."""
    scores: dict[str, dict[int, dict[int, float]]] = {}
    for row in _in_order(rows):
        of_seed = scores.setdefault(name(row), {}).setdefault(row["seed"], {})
        of_seed[row["position"]] = row["score"]
    return scores


def best_game(record: Mapping[str, Any], number: int) -> Board:
    """Returns the best game of a position, to look at move by move.

    Raises:
      SystemExit: if the file has no game of the position.
    """
    rows = [row for row in record["rows"] if row["position"] == number]
    if not rows:
        known = ", ".join(map(str, sorted({row["position"] for row in record["rows"]}))) or "none"
        raise SystemExit(f"The file has no game of position {number}; it has positions {known}.")
    best, env = max(rows, key=lambda row: row["score"]), make_env(record["setting"])
    state = env.from_board(make_boards(record["setting"], [number])[number])
    print(f"{best['search']}, seed {best['seed']}, score {best['score']:,.0f}", flush=True)
    return jaxpgs.show(env, state, moves=best["actions"])


def plot(path: pathlib.Path, record: Row) -> None:
    """Draws the mean score of all positions against the time per position, and published means."""
    lines = {}
    numbers = sorted({row["position"] for row in record["rows"]})
    for name in dict.fromkeys(row["search"] for row in record["rows"] if "curve" in row):
        rows = [row for row in record["rows"] if row["search"] == name and "curve" in row]
        curves = [row["curve"] for row in rows]
        start = max(curve[0][0] for curve in curves)
        end = max(row["seconds"] for row in rows)
        times = np.geomspace(start, max(end, start * 1.01), 24)
        values = [
            [score for seconds, score in curve if seconds <= t + 1e-9][-1]
            for curve in curves
            for t in times
        ]
        means = np.reshape(values, (len(curves), -1)).mean(axis=0)
        lines[name] = [(t, [mean] * 3) for t, mean in zip(times, means, strict=True)]
    published = published_scores() if record["setting"]["random"] is None else {}
    levels = {
        name: float(np.mean([scores[n - 1] for n in numbers])) for name, scores in published.items()
    }
    pictures.line_plot(
        path, {f"{len(numbers)} positions": lines},
        xlabel="seconds a position", ylabel="mean score", yscale="linear",
        title="SameGame: score against time", levels=levels,
    )  # fmt: skip


@refusals_in_one_line("python -m benchmarks.studies.seify2020.samegame")
def main(argv: list[str] | None = None) -> None:
    """Solves the boards of a preset or of the arguments; see the module's docstring."""
    parser = runs.parser("studies.seify2020.samegame", __doc__, PRESETS)
    add = parser.add_argument
    add("--search", choices=SEARCHES, nargs="+", dest="searches")
    add("--positions", type=runs.positive, nargs="+", help="from 1 to 20")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--seconds", type=runs.number(0, above=True), help="a position")
    budget.add_argument("--simulations", type=runs.positive, help="games a position instead")
    add("--clock", choices=("cpu",), help="count seconds of processor time, not of the wall")
    add("--penalty", choices=("per_color", "total", "none"), default="per_color")
    add("--together", type=runs.positive, help="positions searched at once")
    add("--random", type=runs.positive, help="random boards, in place of the standard ones")
    add("--size", type=runs.positive, default=15, help="of random boards")
    add("--colors", type=runs.positive, default=5, help="of random boards")
    add("--repeats", type=runs.positive, help="seeds, from --seed on")
    add("--show", type=runs.positive, help="search nothing, open a position's best game so far")
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    numbers, random = args.positions or preset["positions"], None
    if args.random:
        random = {"size": args.size, "colors": args.colors, "seed": args.seed}
        numbers = list(range(1, args.random + 1))
    elif not set(numbers) <= set(range(1, 21)):
        parser.error(f"--positions must be from 1 to 20, got {numbers}")
    setting = {
        "seconds": args.seconds or (None if args.simulations else preset["seconds"]),
        "simulations": args.simulations,
        "clock": args.clock,
        "penalty": args.penalty,
        "together": args.together or preset["together"],
        "random": random,
        "seed": args.seed,
    }
    # One device for each core, on which the searches run side by side.
    if "--xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # too late if JAX was used before
            jax.config.update("jax_num_cpu_devices", report.num_cores())
    record = runs.open_record(parser, args, setting, ("position", "search", "seed"))
    if args.show:
        serve(best_game(runs.load(record.path), args.show), 8137)
        return
    seeds = range(args.seed, args.seed + (args.repeats or preset.get("repeats", 1)))
    measure(record, args.searches or preset["searches"], make_boards(setting, numbers), seeds)
    data = runs.load(record.path)
    report.print_table("SameGame", *table(data))
    report.print_table("Comparison", *comparison(data["rows"]))
    plot(record.path.with_suffix(".png"), data)
    print(f"Wrote {record.path} and {record.path.with_suffix('.png')}.")


if __name__ == "__main__":
    main()
