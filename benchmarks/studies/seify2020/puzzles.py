"""Compares searches of SameGame on random boards, at equal simulations and at equal time.

    python -m benchmarks.studies.seify2020.puzzles               # 7x7, 10x10, 15x15: hours
    python -m benchmarks.studies.seify2020.puzzles --sizes 7 --boards 100

Every search solves the same boards with several budgets, which are simulations per move. Nested
rollout policy adaptation (NRPA) searches once per game, with the simulations of about as many moves
as a game has. Networks are those of the library; sizes that have none are solved only by searches
without a network. All games are replayed by the rules in NumPy, which give the scores. Differences
are paired by board, with 99% intervals; for equal time, scores are interpolated between budgets,
linearly in the logarithm of the time. A command that was stopped continues after the last finished
boards, which are kept in a file that ends in `.unfinished`. Several commands for different sizes or
searches may write to one file at the same time. On a CPU, searches that call a network are faster
with ten boards at once than with a hundred (`--at-once 10`). `puzzle_searches` has the searches.
"""

import functools
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxpgs
from benchmarks import pictures, report, runs
from benchmarks.studies.seify2020.puzzle_searches import (
    BOARDS,
    BUDGETS,
    FEWER,
    MOVES,
    PAIRS,
    SEARCHES,
    TUNED,
    WITHOUT,
    Knobs,
)
from benchmarks.studies.seify2020.samegame import verified
from jaxpgs.envs import SameGame
from jaxpgs.puzzles import Solution


def run(
    name: str,
    size: int,
    num_simulations: int,
    num_boards: int,
    knobs: Knobs,
    *,
    seed: int = 1,
    at_once: int = 100,
    parts: Sequence[dict[str, Any]] = (),
    on_part: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Solves the boards of a size with one search and one budget.

    Args:
      name: the name of the search in `SEARCHES`.
      size: rows and columns of the boards.
      num_simulations: simulations a move.
      num_boards: how many boards.
      knobs: the tuned knobs.
      seed: the seed of the boards and of the search.
      at_once: boards solved at once; if fewer than all, a divisor of their number.
      parts: results of the first boards, which `on_part` got in an earlier call; these boards are
        not solved again.
      on_part: called with the results of every `at_once` boards, to save them.

    Returns:
      A row: scores of all boards, how many were cleared, and seconds a board without compiling.

    Raises:
      ValueError: if `at_once` does not divide the number of boards.
    """
    at_once = min(at_once, num_boards)
    if num_boards % at_once:
        raise ValueError(f"at_once must divide num_boards, got {at_once} and {num_boards}.")
    env = SameGame(size, size, 5)
    board_keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), size), num_boards)
    states = jax.jit(jax.vmap(env.init))(board_keys)
    boards = np.asarray(jax.vmap(env.board)(states))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), num_boards)
    some = lambda x, i: jax.tree.map(lambda y: y[i : i + at_once], x)  # noqa: E731
    compiled, compile_seconds = _compiled(name, size, num_simulations, at_once)
    done = list(parts)
    for i in range(len(done) * at_once, num_boards, at_once):
        begin = time.perf_counter()
        found = jax.block_until_ready(compiled(some(keys, i), some(states, i), knobs))
        seconds = time.perf_counter() - begin
        lengths = np.asarray(found.num_moves)
        moves = [x[:n].tolist() for x, n in zip(np.asarray(found.moves), lengths, strict=True)]
        games = [verified(boards[i + b], moves[b], env.penalty) for b in range(at_once)]
        scores = [round(game["score"]) for game in games]
        cleared = sum(game["cleared"] for game in games)
        done.append({"scores": scores, "cleared": cleared, "seconds": seconds})
        if on_part is not None:
            on_part(done[-1])
    scores = [score for part in done for score in part["scores"]]
    return {
        "size": size,
        "search": name,
        "simulations": num_simulations,
        **knobs._asdict(),
        "mean": round(float(np.mean(scores)), 1),
        "cleared": sum(part["cleared"] for part in done),
        "seconds": round(sum(part["seconds"] for part in done) / num_boards, 5),
        "compile_seconds": round(compile_seconds, 1),
        "scores": " ".join(map(str, scores)),
    }


@functools.cache
def _compiled(
    name: str, size: int, num_simulations: int, num_boards: int
) -> tuple[Callable[..., Solution], float]:
    """Compiles a search once for all knobs; returns it and the seconds that took."""
    env = SameGame(size, size, 5)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_boards))
    states = jax.eval_shape(lambda keys: jax.vmap(env.init)(keys), keys)

    def solve(keys: Any, states: Any, knobs: Knobs) -> Solution:
        return SEARCHES[name](env, keys, states, num_simulations, knobs)

    begin = time.perf_counter()
    compiled = jax.jit(solve).lower(keys, states, Knobs()).compile()
    return compiled, time.perf_counter() - begin


def scores_of(row: Mapping[str, Any]) -> np.ndarray:
    """Returns a row's scores, one for each board."""
    return np.array(row["scores"].split(), float)


def paired(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Returns the mean difference on the boards of both, and half the width of its 99% interval."""
    count = min(len(first), len(second))
    gain = first[:count] - second[:count]
    return float(gain.mean()), float(2.576 * gain.std(ddof=1) / math.sqrt(len(gain)))


def at_time(rows: Sequence[Mapping[str, Any]], seconds: float) -> np.ndarray | None:
    """Returns a search's interpolated scores, by board, at a time; None if beyond its budgets."""
    rows = sorted(rows, key=lambda row: row["seconds"])
    times = [row["seconds"] for row in rows]
    if not times[0] <= seconds <= times[-1] * (1 + 1e-9):
        return None
    after = next((i for i, t in enumerate(times) if t >= seconds), len(times) - 1)
    if after == 0:
        return scores_of(rows[0])
    share = math.log(seconds / times[after - 1]) / math.log(times[after] / times[after - 1])
    less, more = scores_of(rows[after - 1]), scores_of(rows[after])
    count = min(len(less), len(more))  # the first boards, which both budgets have
    return (1 - share) * less[:count] + share * more[:count]


def differences(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Compares each pair at the most simulations and at the most time that both have."""
    table = []
    for size in sorted({row["size"] for row in rows}):
        found: dict[str, dict[int, Mapping[str, Any]]] = {}
        for row in rows:
            if row["size"] == size:
                found.setdefault(row["search"], {})[row["simulations"]] = row
        for first, second in PAIRS:
            if first not in found or second not in found:
                continue
            a, b = found[first], found[second]
            both = max(set(a) & set(b), default=None)
            equal = (None if both is None else scores_of(x[both]) for x in (a, b))
            cells: list[Any] = [f"{size}x{size}", f"{first} − {second}", both, _gain(*equal)]
            most = min(max(row["seconds"] for row in x.values()) for x in (a, b))
            gain = _gain(*(at_time(list(x.values()), most) for x in (a, b)))
            cells += [gain and f"{most:.3g}", gain]
            table.append(cells)
    return table


DIFFERENCES = ["boards", "gain of", "simulations a move", "points", "seconds a board", "points "]


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search, size and budget."""
    lines = []
    for row in sorted(rows, key=_order):
        scores = scores_of(row)
        width = 2.576 * scores.std(ddof=1) / math.sqrt(len(scores))
        lines.append(
            [f"{row['size']}x{row['size']}", row["search"], row["simulations"],
             row["c_puct"] or None, row["temperature"], _knobs(row).step_size or None, len(scores),
             f"{scores.mean():.0f} ± {width:.0f}",
             f"{100 * row['cleared'] / len(scores):.0f}%", f"{1000 * row['seconds']:.3g}"]
        )  # fmt: skip
    heading = ["boards", "search", "simulations a move", "c_puct", "temperature", "step size"]
    return [*heading, "number", "mean score", "cleared", "ms a board"], lines


def plot(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws mean scores against time, a picture for each size (after Seify 2020, figure 5.15)."""
    for size in sorted({row["size"] for row in rows}):
        lines: dict[str, list[Any]] = {}
        for row in sorted(rows, key=_order):
            if row["size"] == size:
                scores = scores_of(row)
                width = 1.96 * scores.std(ddof=1) / math.sqrt(len(scores))
                point = (scores.mean() - width, scores.mean(), scores.mean() + width)
                lines.setdefault(row["search"], []).append((1000 * row["seconds"], point))
        numbers = sorted(len(scores_of(row)) for row in rows if row["size"] == size)
        count = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
        pictures.line_plot(
            path.with_stem(f"{path.stem}_{size}x{size}"),
            {f"{size}x{size}, five colours, {count} boards": lines},
            xlabel="milliseconds a board",
            ylabel="mean score",
            yscale="linear",
            title="SameGame: score against time",
        )


def plot_learning(path: pathlib.Path) -> None:
    """Draws the scores of the library's networks without a search, along their training."""
    panels = {}
    for name in jaxpgs.available_pretrained():
        rows = jaxpgs.load_pretrained(name).card.get("learning")
        if name.startswith("samegame") and rows:
            kinds = {"likeliest": "greedy_score", "drawn": "policy_score", "random": "random_score"}
            panels[name] = {
                label: [(row["iteration"], [row[key]] * 3) for row in rows]
                for label, key in kinds.items()
            }
    if not panels:
        return
    pictures.line_plot(
        path, panels, xlabel="generation", ylabel="mean score", xscale="linear", yscale="linear",
        title="SameGame: games without a search, by the network's moves",
    )  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Runs the comparison; see the module's docstring."""
    parser = runs.parser("studies.seify2020.puzzles", __doc__)
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", choices=MOVES, default=list(MOVES))
    add("--search", choices=SEARCHES, nargs="+", default=list(SEARCHES))
    add("--boards", type=runs.positive, default=BOARDS, help="a size, at most")
    add("--at-once", type=runs.positive, default=100, help="boards searched side by side")
    add("--most", type=runs.positive, default=10**9, help="simulations a move")
    parser.set_defaults(seed=1)
    args = parser.parse_args(argv)
    shipped = jaxpgs.available_pretrained()
    jobs: list[tuple[int, str, int, int, Knobs]] = [
        (size, name, budget, count, knobs)
        for size in args.sizes for name in args.search
        for budget, count, knobs in _jobs(size, name, args.boards)
        if budget <= args.most and (name in WITHOUT or f"samegame-{size}x{size}" in shipped)
    ]  # fmt: skip
    seed = args.seed
    key = ("size", "search", "simulations", *Knobs._fields)
    record = runs.open_record(parser, args, {"boards": args.boards, "seed": seed}, key)
    with report.progress_bar("SameGame") as progress:
        for done, job in enumerate(jobs):
            size, name, budget, _, knobs = job
            about = {"size": size, "search": name, "simulations": budget, **knobs._asdict()}
            if not runs.has(record, **about):
                show = functools.partial(progress, done, len(jobs))
                _add(record, job, about, args.at_once, seed, show)
    rows = runs.read(record)
    report.print_table("SameGame", *table(rows))
    rows = [row for row in rows if _is_tuned(row)]  # without rows of former knobs
    report.print_table("Differences", DIFFERENCES, differences(rows))
    plot(record.path.with_suffix(".png"), rows)
    plot_learning(record.path.with_stem(f"{record.path.stem}_learning").with_suffix(".png"))
    print(f"Wrote {record.path}.")


def _add(
    record: runs.Record,
    job: tuple[int, str, int, int, Knobs],
    about: Mapping[str, Any],
    at_once: int,
    seed: int,
    show: Callable[[str], None],
) -> None:
    """Solves the boards of one job and adds its row; saves every finished part before."""
    size, name, budget, count, knobs = job
    at_once = math.gcd(at_once, count)
    unfinished = runs.unfinished(record, "part")
    about = dict(about) | {"at_once": at_once, "boards": count}
    if record.again:
        runs.remove(unfinished, **about)
    rows = runs.read(unfinished)
    parts = [row for row in rows if about.items() <= row.items()]

    def tell() -> None:
        boards = f"{len(parts) * at_once} of {count} boards"
        show(f"{size}x{size}, {name}, {budget} simulations, {boards}")

    def save(part: dict[str, Any]) -> None:
        runs.add(unfinished, about | part | {"part": len(parts)})
        parts.append(part)
        tell()

    tell()
    row = run(
        name, size, budget, count, knobs,
        seed=seed, at_once=at_once, parts=list(parts), on_part=save,
    )  # fmt: skip
    runs.add(record, row)
    runs.remove(unfinished, **about)


def _jobs(size: int, name: str, boards: int) -> list[tuple[int, int, Knobs]]:
    """Lists budgets, numbers of boards and knobs of one search on one size."""
    count = min(FEWER.get((name, size), BOARDS), boards)
    return [(budget, count, TUNED[name][size]) for budget in BUDGETS[name].get(size, ())]


def _order(row: Mapping[str, Any]) -> tuple:
    return row["size"], list(SEARCHES).index(row["search"]), row["simulations"], *_knobs(row)


def _is_tuned(row: Mapping[str, Any]) -> bool:
    return TUNED[row["search"]].get(row["size"]) == _knobs(row)


def _knobs(row: Mapping[str, Any]) -> Knobs:
    return Knobs(row["c_puct"], row["temperature"], row.get("step_size", 0.0))


def _gain(first: np.ndarray | None, second: np.ndarray | None) -> str | None:
    if first is None or second is None:
        return None
    mean, half_width = paired(first, second)
    return f"{mean:+.0f} ± {half_width:.0f}"


if __name__ == "__main__":
    main()
