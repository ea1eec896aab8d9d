"""Writes `RESULTS.md`: every table of the benchmarks, from the files that they wrote.

python -m benchmarks.tables
"""

import argparse
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import puzzles, value_targets
from benchmarks import samegame as scores
from benchmarks.report import RESULTS, write_text

PAGE = pathlib.Path(__file__).parent / "RESULTS.md"
_HEAD = """# Results

Every table here is written by `python -m benchmarks.tables` from the files in
[`results/`](results), which the commands below wrote. ± is the 95% interval. Milliseconds are of
machines that did other work as well: compare them within a table.
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
            parts.append(draw(path, json.loads(path.read_text())))
    return "\n".join(filter(None, parts))


def strength(path: pathlib.Path, data: dict[str, Any]) -> str:
    """A tournament: its ratings, its pairings, and the knobs where they were swept."""
    if "table" not in data:  # not finished
        return ""
    setting, simulations = data["setting"], {}
    for spec in data["players"]:
        simulations[spec["name"]] = spec["knobs"].get("num_simulations")
    budget = f"{setting['num_simulations']} simulations"
    if "milliseconds" in setting:
        budget = f"{setting['milliseconds']:g} ms a move"
    rows = [
        [
            row["player"],
            simulations[row["player"]],
            elo_text(row["elo"], row["half_width"]),
            row["evaluations_per_move"],
            row["calls_per_search"],
            row["ms_per_move"],
            row["temp_mb"],
            row["compile_seconds"],
        ]
        for row in sorted(data["table"], key=lambda row: -row["elo"])
    ]
    columns = ["player", "simulations", "Elo", "evaluations a move", "calls in a row",
               "ms a move", "scratch MB", "compile s"]  # fmt: skip
    text = _title(path, data, f"Strength: {setting['network']}, {budget} ({path.stem})")
    text += markdown_table(columns, rows)
    pairings = [
        [
            p["first"],
            p["second"],
            f"{p['won']:g} of {p['games']:g}",
            elo_text(p["elo"], p["half_width"]),
            games_to_decide(p),
        ]
        for p in data["pairings"]
    ]
    columns = ["first", "second", "first won", "Elo of the first", "games to decide"]
    text += "\n" + markdown_table(columns, pairings)
    return text + _picture(path)


def games_to_decide(pairing: Mapping[str, Any]) -> int | None:
    """Returns about how many games would decide an undecided pairing, if its Elo is right.

    An interval's width falls with the square root of the number of games. None: it is decided, or
    dead level.
    """
    elo, width = abs(pairing["elo"]), pairing["half_width"]
    if elo > width or elo == 0:
        return None
    return int(float(f"{pairing['games'] * (width / elo) ** 2:.2g}"))


def networks(path: pathlib.Path, data: dict[str, Any]) -> str:
    """The shipped networks against players of known strength."""
    rows = [
        [
            name,
            match["player"],
            match["opponent"],
            f"{match['won']:g} of {match['games']:g}",
            elo_text(match["elo"], match["half_width"]),
        ]
        for name, figures in sorted(data.items())
        for match in figures["matches"]
    ]
    record = {"command": "python -m benchmarks.networks"} | next(iter(data.values()))
    text = _title(path, record, "Networks")
    text += markdown_table(["network", "player", "opponent", "won", "Elo"], rows)
    signs = [
        f"`{name}` {figures['value_sign_agreement']:.1%}"
        for name, figures in sorted(data.items())
        if "value_sign_agreement" in figures
    ]
    return (
        text
        + f"\nSign of the value right, in positions that a solver decided: {', '.join(signs)}.\n"
    )


def speed(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Times beside the bare network and mctx."""
    rows = [
        [
            setting["network"],
            setting["simulations"],
            setting["roots"],
            row["search"],
            row["ms"],
            row["searches_per_second"],
            _quartiles(row["over_bare"]),
            _quartiles(row["mctx_over_this"]),
            row.get("sequential_calls"),
            None if "temp_bytes" not in row else round(row["temp_bytes"] / 1e6, 1),
            row.get("compile_seconds"),
        ]
        for setting in data["settings"]
        for row in setting["rows"]
    ]
    columns = ["network", "simulations", "roots", "search", "ms", "searches a second",
               "x bare network", "x faster than mctx MuZero", "calls in a row", "scratch MB",
               "compile s"]  # fmt: skip
    return (
        _title(path, data, f"Speed ({path.stem})") + markdown_table(columns, rows) + _picture(path)
    )


def breakdown(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Where the time goes."""
    scopes = list(data["rows"][-1]["ms"])
    rows = []
    for row in data["rows"]:
        ms = row.get("ms")
        shares = [ms and f"{100 * ms[scope] / sum(ms.values()):.0f}%" for scope in scopes]
        rows.append([row["network"], row["roots"], row["search"], row["cores"], *shares])
    names = [scope.replace("_", " ") for scope in scopes]
    title = f"Where the time goes: {data['simulations']} simulations"
    columns = ["network", "roots", "search", "cores busy", *names]
    return _title(path, data, title) + markdown_table(columns, rows)


def rng(path: pathlib.Path, data: dict[str, Any]) -> str:
    """What random numbers cost."""
    rows = [
        [row["roots"], row["search"], row["ms"], *map(_quartiles, row["ratios"])]
        for row in data["rows"]
    ]
    columns = ["roots", "search", "ms with threefry", "rbg / threefry", "unsafe_rbg / threefry"]
    title = f"Random numbers: {data['network']}, {data['simulations']} simulations"
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
    record = {"command": "python -m benchmarks.cost"} | data
    title = f"Cost before running: {data['network']}, {data['roots']} roots, constant mode"
    rows = [[row[column] for column in columns] for row in data["rows"]]
    return _title(path, record, title) + markdown_table(names, rows)


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
    rows = [
        [
            row["system"],
            row["batch"],
            row["games_per_second"]["median"],
            f"{row['moves_per_second']['median'] / 1e6:.2f} M",
        ]
        for row in data["rows"]
    ]
    text = _title(path, data, "SameGame: random games on 15x15 with five colours")
    text += markdown_table(["system", "boards at once", "games a second", "moves a second"], rows)
    anchors = data["anchors_games_per_second"].items()
    text += "\nReference figures, not measured here: "
    text += "; ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in anchors) + ".\n\n"
    means = [
        [row["system"], row["penalty"], row["what"], row["games"],
         f"{row['mean']:.2f} ± {row['standard_error']:.2f}", row["reference"]]
        for row in data["mean_scores"]
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
    if "--sweep" in data["command"]:
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
    title = f"Self-play: {data['games']} games, {data['simulations']} simulations a move"
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
    text = _title(path, data, f"Three experts teach: {data['network']}")
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
    title = _title(path, data, f"Speed before and after {data['change']}")
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
    for row in data["differences"]:
        by_reason.setdefault(row["reason"] or "not explained", []).append(row["array"])
    rows = [[reason, len(found)] for reason, found in sorted(by_reason.items())]
    equal = data["arrays"] - len(data["differences"])
    title = _title(path, data, f"Answers before and after {data['change']}")
    text = f"{equal} of {data['arrays']} arrays are equal bit for bit; the others differ as wanted."
    return title + text + "\n\n" + markdown_table(["why", "arrays"], rows)


def mutations(path: pathlib.Path, data: dict[str, Any]) -> str:
    """Faults put into the search core, and the tests that catch them."""
    title = _title(path, data, "Faults that the tests catch")
    rows = [[row["mutation"], f"`{row['test']}`"] for row in data["rows"]]
    text = f"{data['caught']} of {data['mutations']} faults are caught.\n\n"
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
    record = data["environment"]
    hardware, versions = record["hardware"], record["versions"]
    device = hardware["accelerator"] or f"{hardware['cpu']}, {hardware['cores']} cores"
    device = device.replace(" 1 cores", " 1 core")
    return (
        f"## {title}\n\n`{data['command']}` wrote [`{path.name}`](results/{path.name}): {device}, "
        f"jax {versions['jax']}, seed {record['seed']}, {record['date'][:10]}.\n\n"
    )


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


def elo_text(elo: float, half_width: float) -> str:
    """Returns a difference in Elo with its interval, "0" for a player that sets the zero."""
    return "0" if half_width == 0 else f"{elo:+.0f} ± {half_width:.0f}"


def _quartiles(values: Sequence[float]) -> str:
    low, middle, high = values
    return f"{middle:g} ({low:g}–{high:g})"


def _times(found: dict[str, Any] | None) -> str | None:
    return None if found is None else f"{found['median']:.1f}"


def _picture(path: pathlib.Path) -> str:
    image = path.with_suffix(".png")
    return f"\n![{path.stem}](results/{image.name})\n" if image.exists() else ""


if __name__ == "__main__":
    main()
