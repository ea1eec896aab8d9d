"""Writes `RESULTS.md`: every table of the benchmarks, from the files that they wrote.

python -m benchmarks.tables
"""

import argparse
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks import environments_samegame, puzzles, ratings, runs, value_targets
from benchmarks import samegame as scores
from benchmarks import speed as benchmark
from benchmarks.ratings import elo_text
from benchmarks.report import write_text
from benchmarks.runs import RESULTS

PAGE = pathlib.Path(__file__).parent / "RESULTS.md"
_HEAD = """# Results

Every table here is written by `python -m benchmarks.tables` from the files in
[`results/`](results), which the commands below wrote. ± is the 95% interval; in tournaments it is
over openings, with all games of an opening inside. Milliseconds are of machines that did other work
as well: compare them within a table. A commit that was not recorded is that of rows from before
each row named its own.
"""


def main(argv: list[str] | None = None) -> None:
    """Writes the page; see the module's text."""
    argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__).parse_args(
        argv
    )
    write_text(PAGE, render(RESULTS))
    print(f"Wrote {PAGE}.")


def render(folder: pathlib.Path) -> str:
    """Returns the page for a folder of results."""
    parts = [_HEAD]
    for pattern, draw in _SECTIONS:
        for path in sorted(folder.glob(pattern)):
            parts.append(draw(path, runs.load(path)))
    return "\n".join(filter(None, parts))


def strength(path: pathlib.Path, data: dict[str, Any]) -> str:
    """A tournament: its ratings, its pairings, and what was not equal."""
    if "table" not in data:  # not finished
        return ""
    setting = data["setting"]
    title = f"Strength: {setting['network']}, {ratings.budget(setting)} ({path.stem})"
    text = _title(path, data, title)
    text += markdown_table(*ratings.player_table(data))
    text += "".join(f"\n- {remark}" for remark in data["remarks"]) + "\n" * bool(data["remarks"])
    return text + "\n" + markdown_table(*ratings.pairing_table(data)) + _picture(path)


def networks(path: pathlib.Path, data: dict[str, Any]) -> str:
    """The shipped networks against players of known strength."""
    rows = [
        [
            row["network"],
            match["player"],
            match["opponent"],
            f"{match['won']:g} of {match['games']:g}",
            elo_text(match["elo"], match["half_width"]),
        ]
        for row in sorted(data["rows"], key=lambda row: row["network"])
        for match in row["matches"]
    ]
    text = _title(path, data, "Networks")
    text += markdown_table(["network", "player", "opponent", "won", "Elo"], rows)
    signs = [
        f"`{row['network']}` {row['value_sign_agreement']:.1%}"
        for row in sorted(data["rows"], key=lambda row: row["network"])
        if "value_sign_agreement" in row
    ]
    return (
        text
        + f"\nSign of the value right, in positions that a solver decided: {', '.join(signs)}.\n"
    )


def speed(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Times beside the bare network and mctx, and how they grow with the simulations."""
    text = _title(path, data, f"Speed ({path.stem})")
    text += markdown_table(*benchmark.table(data["rows"]))
    text += "\nMilliseconds a simulation, and their growth from the fewest simulations to the most"
    text += " (mctx's searches take longer for each simulation the more there are):\n\n"
    columns, lines = benchmark.growth(data["rows"])
    return text + (markdown_table(columns, lines) if lines else "not measured\n") + _picture(path)


def breakdown(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Where the time goes."""
    scopes = list(data["rows"][-1]["ms"])
    rows = []
    for row in data["rows"]:
        ms = row.get("ms")
        shares = [ms and f"{100 * ms[scope] / sum(ms.values()):.0f}%" for scope in scopes]
        rows.append([row["network"], row["roots"], row["search"], row["cores_busy"], *shares])
    names = [scope.replace("_", " ") for scope in scopes]
    title = f"Where the time goes: {data['setting']['simulations']} simulations"
    columns = ["network", "roots", "search", "cores busy", *names]
    return _title(path, data, title) + markdown_table(columns, rows)


def rng(path: pathlib.Path, data: dict[str, Any]) -> str:
    """What random numbers cost."""
    rows = [
        [row["roots"], row["search"], row["ms"], *map(benchmark.quartiles_text, row["ratios"])]
        for row in data["rows"]
    ]
    columns = ["roots", "search", "ms with threefry", "rbg / threefry", "unsafe_rbg / threefry"]
    title = "Random numbers: {network}, {simulations} simulations".format(**data["setting"])
    return _title(path, data, title) + markdown_table(columns, rows)


def memory(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Bytes by simulations, and the largest searches that fit."""
    rows = [
        [row["space"], row["num_actions"], row["search"], row["per_simulation_and_root"],
         row["formula"], *("any" if n is None else n for n in row["largest"].values())]
        for row in data["rows"]
    ]  # fmt: skip
    sizes = [f"largest N, 64 roots in {size} GiB" for size in data["rows"][0]["largest"]]
    columns = ["space", "actions", "search", "bytes a simulation and root", "by the formula"]
    return (
        _title(path, data, f"Memory ({path.stem})") + markdown_table([*columns, *sizes], rows)
    ) + _picture(path)


def cost(path: pathlib.Path, data: dict[str, Any]) -> str:
    """FLOPs, scratch memory and compile time."""
    columns = ["search", "simulations", "flops_over_mcs", "temp_bytes", "compile_seconds"]
    names = ["search", "simulations", "FLOPs / MCS", "scratch bytes", "compile s"]
    title = "Cost before running: {network}, {roots} roots, constant mode".format(**data["setting"])
    rows = [[row[column] for column in columns] for row in data["rows"]]
    return _title(path, data, title) + markdown_table(names, rows)


def environments(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Moves a second of Hex."""
    rows = [
        [
            f"{row['size']}x{row['size']}",
            row["mode"],
            row["batch"],
            row["system"],
            f"{row['moves_per_second']['median'] / 1e6:.2f} M",
            *(_times(row.get("times", {}).get(other)) for other in ("pgx", "OpenSpiel")),
        ]
        for row in data["rows"]
    ]  # fmt: skip
    columns = [
        "board",
        "moves",
        "boards at once",
        "system",
        "moves a second",
        "x pgx",
        "x OpenSpiel",
    ]
    return _title(path, data, "Hex environments") + markdown_table(columns, rows) + _picture(path)


def samegame(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Games a second of SameGame, and the mean scores that show the rules right."""
    speeds, scored = environments_samegame.split(data["rows"])
    rows = [
        [
            row["system"],
            row["batch"],
            row["games_per_second"]["median"],
            f"{row['moves_per_second']['median'] / 1e6:.2f} M",
        ]
        for row in speeds
    ]
    text = _title(path, data, "SameGame: random games on 15x15 with five colours")
    text += markdown_table(["system", "boards at once", "games a second", "moves a second"], rows)
    anchors = data["anchors_games_per_second"].items()
    text += "\nReference figures, not measured here: "
    text += "; ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in anchors) + ".\n\n"
    means = [
        [row["system"], row["penalty"], row["what"], row["games"],
         f"{row['mean']:.2f} ± {row['standard_error']:.2f}", row["reference"]]
        for row in scored
    ]  # fmt: skip
    columns = ["play", "penalty", "of", "games", "mean ± standard error", "reference"]
    return text + markdown_table(columns, means)


def samegame_scores(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Scores on SameGame's positions beside the published ones."""
    if not data["rows"]:
        return ""
    setting = data["setting"]
    random = setting["random"]
    what = "random boards" if random else "standard positions"
    if random:
        what += f" of {random['size']}x{random['size']} with {random['colors']} colours"
    seconds, games = setting["seconds"], setting["simulations"]
    budget = f"{games:,} games" if seconds is None else f"{seconds:g} seconds"
    text = _title(path, data, f"SameGame: {what}, {budget} a position ({path.stem})")
    text += markdown_table(*scores.table(data))
    text += "\nThe rules in NumPy replayed every game of ours; * marks a cleared board. "
    text += _PENALTIES[setting["penalty"]]
    if setting["together"] > 1:
        text += f" {setting['together']} positions were searched at once, which share their time."
    if not random:
        text += (
            " The other columns are from Seify 2020, table 5.7, of runs of two hours a position "
            "or more."
        )
    return text + "\n" + _picture(path)


def puzzle_searches(path: pathlib.Path, data: dict[str, Any]) -> str:
    """The searches of whole games on random boards."""
    text = _title(path, data, f"SameGame: searches on random boards ({path.stem})")
    text += markdown_table(*puzzles.table(data["rows"]))
    text += "\nRandom boards with five colours. ± are 99% intervals.\n"
    if "sweep" in path.stem:
        return text
    text += "\nDifferences on the same boards, at equal simulations and at equal time:\n\n"
    text += markdown_table(puzzles.DIFFERENCES, puzzles.differences(data["rows"]))
    for picture in sorted(path.parent.glob(f"{path.stem}_*.png")):
        text += f"\n![{picture.stem}](results/{picture.name})\n"
    return text


def targets(path: pathlib.Path, data: dict[str, Any]) -> str:
    """What value networks should learn."""
    setting = data["setting"]
    text = _title(path, data, "SameGame 7x7: targets of the value")
    text += markdown_table(*value_targets.table(data["rows"]))
    return text + (
        f"\nPV-MCTS with {setting['simulations']} simulations a move on {setting['boards']} boards "
        "with each network; differences on the same boards with 99% intervals, which know "
        "nothing of other seeds of the training.\n"
    )


def selfplay(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Throughput of the experts."""
    rows = [
        [row["network"], row["expert"], row["positions_per_second"],
         row["evaluations_per_position"], "{1:.0%} ({0:.0%}–{2:.0%})".format(*row["network_share"])]
        for row in data["rows"]
    ]  # fmt: skip
    title = "Self-play: {games} games, {simulations} simulations a move".format(**data["setting"])
    columns = [
        "network",
        "expert",
        "positions a second",
        "evaluations a position",
        "in the network",
    ]
    return _title(path, data, title) + markdown_table(columns, rows)


def learning(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Raw networks along training."""
    rows = [
        [row["expert"], row["iteration"], elo_text(row["elo"], row["half_width"])]
        for row in data["rows"]
    ]
    seconds = ", ".join(f"{name} {value:,.0f} s" for name, value in data["seconds"].items())
    text = _title(path, data, f"Three experts teach: {data['setting']['network']}")
    text += markdown_table(["expert", "iteration", "Elo of the raw network"], rows)
    return text + f"\nTraining took: {seconds}.\n" + _picture(path)


_PENALTIES = {
    "per_color": "Others lose (left - 2)² for each colour that is left.",
    "total": "Others lose (left - 2)² for all blocks that are left.",
    "none": "Others lose nothing.",
}


def versions(path: pathlib.Path, data: dict[str, Any]) -> str:
    """The speed of two versions of the library, in turns."""
    rows = [
        [
            row["setting"],
            f"{row['ratio']:.2f}",
            row["old_ms"],
            row["new_ms"],
            row["old_compile_s"],
            row["new_compile_s"],
        ]
        for row in data["rows"]
    ]
    columns = ["setting", "time, after / before", "before, ms", "after, ms",
               "compile before, s", "compile after, s"]  # fmt: skip
    rounded = [[x if isinstance(x, str) else float(f"{x:.3g}") for x in row] for row in rows]
    title = _title(path, data, f"Speed before and after {data['setting']['change']}")
    return title + markdown_table(columns, rounded)


def budgets(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Searches under a budget of seconds."""
    rows = data["rows"]
    late = sum(row["over_s"] > row["longest_slice_s"] for row in rows)
    title = _title(path, data, "Searches under a budget of seconds")
    columns = ["searches", "shortest budget, ms", "longest, ms", "over by more than a slice",
               "latest, ms", "mean share used"]  # fmt: skip
    row = [
        len(rows),
        round(1e3 * min(row["budget_s"] for row in rows)),
        round(1e3 * max(row["budget_s"] for row in rows)),
        late,
        round(1e3 * max(row["over_s"] for row in rows), 1),
        f"{sum(row['seconds'] / row['budget_s'] for row in rows) / len(rows):.1%}",
    ]
    return title + markdown_table(columns, [row])


def answers(path: pathlib.Path, data: dict[str, Any]) -> str:
    """What two versions of the library answer differently."""
    by_reason: dict[str, list[str]] = {}
    for row in data["rows"]:
        by_reason.setdefault(row["reason"] or "not explained", []).append(row["array"])
    rows = [[reason, len(found)] for reason, found in sorted(by_reason.items())]
    equal = data["arrays"] - len(data["rows"])
    title = _title(path, data, f"Answers before and after {data['setting']['change']}")
    text = f"{equal} of {data['arrays']} arrays are equal bit for bit; the others differ as wanted."
    return title + text + "\n\n" + markdown_table(["why", "arrays"], rows)


def mutations(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Faults put into the search core, and the tests that catch them."""
    title = _title(path, data, "Faults that the tests catch")
    found = {row["mutation"]: row for row in data["rows"] if row["mutation"] in data["mutations"]}
    rows = [[name, f"`{found[name]['test']}`"] for name in data["mutations"] if name in found]
    caught = sum(row["outcome"] == "caught" for row in found.values())
    text = f"{caught} of {len(data['mutations'])} faults are caught.\n\n"
    return title + text + markdown_table(["fault", "caught by"], rows)


_SECTIONS: tuple[tuple[str, Callable[[pathlib.Path, dict[str, Any]], str]], ...] = (
    ("strength_*.json", strength),
    ("networks.json", networks),
    ("speed_*.json", speed),
    ("breakdown.json", breakdown),
    ("rng.json", rng),
    ("versions.json", versions),
    ("budgets.json", budgets),
    ("answers.json", answers),
    ("mutations.json", mutations),
    ("memory_*.json", memory),
    ("cost.json", cost),
    ("environments.json", environments),
    ("environments_samegame.json", samegame),
    ("samegame_*.json", samegame_scores),
    ("puzzles*.json", puzzle_searches),
    ("value_targets.json", targets),
    ("selfplay.json", selfplay),
    ("learning.json", learning),
)


def _title(path: pathlib.Path, data: dict[str, Any], title: str) -> str:
    link = f"[`{path.name}`](results/{path.name})"
    return f"## {title}\n\n{link} was written by {runs.origin(data)}.\n\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table of the rows, without columns that say nothing."""
    rows = list(rows)
    # A column without a single figure says nothing.
    used = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    words = [
        i for i in used if any(isinstance(row[i], str) and row[i][:1].isalpha() for row in rows)
    ]
    lines = [
        [columns[i] for i in used],
        ["---" if i in words else "---:" for i in used],
        *([_cell(row[i]) for i in used] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _times(found: dict[str, Any] | None) -> str | None:
    return None if found is None else f"{found['median']:.1f}"


def _picture(path: pathlib.Path) -> str:
    image = path.with_suffix(".png")
    return f"\n![{path.stem}](results/{image.name})\n" if image.exists() else ""


if __name__ == "__main__":
    main()
