"""Fills the tables of RESULTS.md and of the pages README.md from the files of results.

    python -m benchmarks.tables

A page is written by hand, except for its tables: this command replaces the text between
`<!-- table: NAME -->` and `<!-- end of table -->`. `BLOCKS` has the names. A line below each table
names its file and the commits of its rows.
"""

import argparse
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jaxpgs
from benchmarks import (
    compiled,
    environments,
    environments_samegame,
    memory,
    ratings,
    rivals,
    runs,
    speed,
)
from benchmarks.report import ROOT, held_text, write_text
from benchmarks.runs import RESULTS
from benchmarks.studies.anthony2019 import learning
from benchmarks.studies.brosseit2023 import ablation, model_memory, unroll
from benchmarks.studies.seify2020 import puzzles, samegame, value_targets
from benchmarks.studies.soemers2019 import tspg

README = ROOT / "README.md"
PAGE = RESULTS.parent / "RESULTS.md"
PAGES = (README, RESULTS.parent / "README.md", PAGE,
         *sorted(RESULTS.parent.glob("studies/*/README.md")))  # fmt: skip
STRENGTH = "strength_defaults_hex-7x7-early_64"  # the tournament that the README shows
Draw = Callable[[Mapping[str, Any], str], str]  # (a file's data, a link to it) -> Markdown


class Block(NamedTuple):
    """A table: the name of its file, the function that draws it, and the rows that it shows."""

    file: str
    draw: Draw
    keep: Callable[[Mapping[str, Any]], bool] = lambda row: True


_QUALITY = "../../tests/quality/results"
_PLACE = r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)"


def main(argv: list[str] | None = None) -> None:
    """Fills the tables of all pages; see the module's docstring."""
    argparse.ArgumentParser(
        prog="python -m benchmarks.tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    for page in PAGES:
        write_text(page, fill(page.read_text(), page))
    print(f"Filled {', '.join(str(page.relative_to(ROOT)) for page in PAGES)}.")


def fill(text: str, page: pathlib.Path) -> str:
    """Returns the text of a page with its tables filled in.

    Raises:
      ValueError: if the text names a table that is not in `BLOCKS`.
    """

    def put(found: re.Match[str]) -> str:
        if found[2] not in BLOCKS:
            raise ValueError(f"There is no table {found[2]!r}; there are {', '.join(BLOCKS)}.")
        block = BLOCKS[found[2]]
        path = (RESULTS / f"{block.file}.json").resolve()
        place = os.path.relpath(path, page.parent)
        return found[1] + block.draw(runs.load(path), f"[`{path.name}`]({place})") + found[3]

    return re.sub(_PLACE, put, text, flags=re.DOTALL)


def archived(name: str) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and lines of a table in `results/archived.json`, of a removed command."""
    found = runs.load(RESULTS / "archived.json")[name]
    return found["columns"], found["lines"]


def archived_origin(name: str) -> str:
    """Returns the command that wrote an archived table, with its machine, commit and date."""
    return runs.load(RESULTS / "archived.json")[name]["origin"]


def source(data: Mapping[str, Any], link: str) -> str:
    """Returns a line with a table's file, and its rows' commits, devices, cores and last date."""
    rows = data["rows"]
    commits = list(dict.fromkeys(runs.short(row["commit"]) or "unknown" for row in rows))
    told = ", ".join(commits) if len(commits) < 4 else f"{commits[0]} and {len(commits) - 1} more"
    cores = sorted({row["cores"] for row in rows})
    where = {m.get("accelerator") for m in data.get("machines", {}).values()} - {None}
    told = ", ".join([told, *where])
    last = max(row["date"] for row in rows)[:10]
    return f"From {link}: commit {told}, {_either(cores)} core{'s' * (cores != [1])}, {last}."


def _rows(
    file: str,
    table: Callable[[Any], tuple[list[str], list[list[Any]]]],
    keep: Callable[[Mapping[str, Any]], bool] = lambda row: True,
    columns: Sequence[str] = (),
) -> Block:
    """Makes the block of a table of a file's rows; `keep` and `columns` select what it shows."""

    def draw(data: Mapping[str, Any], link: str) -> str:
        names, lines = table([row for row in data["rows"] if keep(row)])
        kept = [names.index(name) for name in columns] or range(len(names))
        return (
            markdown_table([names[i] for i in kept], [[line[i] for i in kept] for line in lines])
            + f"\n{source(data, link)}\n"
        )  # fmt: skip

    return Block(file, draw, keep)


def _archived(name: str) -> Block:
    def draw(data: Mapping[str, Any], link: str) -> str:
        found = data[name]
        return f"{markdown_table(found['columns'], found['lines'])}\n{found['origin']}; {link}.\n"

    return Block("archived", draw)


def _strength(data: Mapping[str, Any], link: str) -> str:
    """Draws a tournament: its setting in words, its ratings, and remarks on what was not equal."""
    games = sorted({pair["games"] for pair in data["pairings"]})
    cores = sorted({row["cores"] for row in data["rows"]})
    batches = sorted({row["batch"] for row in data["table"]})
    openings = sorted({pair["openings"] for pair in data["pairings"]})
    text = (
        f"Network `{data['setting']['network']}`, {ratings.budget(data['setting'])}, "
        f"{_either(games)} games a pairing over {_either(openings)} openings with both colours, "
        f"{_either(batches)} games searched at once, "
        f"{_either(cores)} CPU core{'s' * (cores != [1])}. "
        "± is the 95% interval over openings.\n\n"
    )
    columns, lines = ratings.player_table(data)
    kept = [
        columns.index(name)
        for name in ("player", "K", "Elo", "evaluations a move", "calls in a row", "ms a move")
    ]
    text += markdown_table(
        [columns[i] for i in kept],
        [[round(x, 1) if isinstance(x := line[i], float) else x for i in kept] for line in lines],
    )
    played, all_pairs = len(data["pairings"]), math.comb(len(data["table"]), 2)
    said = [*data["remarks"]]
    if played < all_pairs:
        said.append(f"{played} of {all_pairs} pairs of players met; the rating compares the others")
    remarks = "; ".join(said)
    return f"{text}\n{f'{remarks[:1].upper()}{remarks[1:]}. ' * bool(said)}{source(data, link)}\n"


def _either(values: Sequence[int]) -> str:
    return " or ".join(map(str, values))


# Opponents of `tests/quality openings --hold`, and the headings of their columns.
_HELD = {
    "openspiel 100000": "held, against 100,000",
    "gumbel-mcts": "held, against Gumbel MCTS",
    **{
        f"mohex --use-logfile 0; param_mohex max_games {n}; param_mohex max_time 3600": (
            f"held, against MoHex {n:,}"
        )
        for n in (1000, 10_000)
    },
}


def _networks(data: Mapping[str, Any], link: str) -> str:
    """Draws a table of the networks in the library, with their games against other programs."""
    searching = "PGS 128"
    asked = [
        ("raw network", "OpenSpiel MCTS 1000", "raw, against 1,000 rollouts"),
        (searching, "OpenSpiel MCTS 1000", f"{searching}, against 1,000"),
        ("raw network", "OpenSpiel MCTS 10000", "raw, against 10,000"),
        (searching, "OpenSpiel MCTS 10000", f"{searching}, against 10,000"),
    ]
    won = {
        (row["network"], row["player"], row["opponent"]): f"{row['won']:g} of {row['games']}"
        for row in data["rows"]
    }
    held = {
        (row["network"], _HELD[row["opponent"]]): held_text(row)
        for row in runs.load(RESULTS / f"{_QUALITY}/openings.json")["rows"]
        if row["opponent"] in _HELD and row["player"] == "PGS"
    }
    lines, others = [], []
    for name in jaxpgs.available_pretrained():
        card = runs.load(ROOT / "jaxpgs" / "pretrained" / "weights" / f"{name}.json")
        made, size = card["architecture"], card["environment"]["kwargs"]
        units = made["kwargs"].get("width", made["kwargs"].get("num_filters"))
        figures = [won.get((name, player, opponent)) for player, opponent, _ in asked]
        figures += [held.get((name, title)) for title in _HELD.values()]
        network = f"`{made['network']}` {units}x{made['kwargs']['num_blocks']}"
        if any(figures):
            board = f"{card['environment']['name']} {size['size']}x{size['size']}"
            lines.append([f"`{name}`", board, network, *figures])
        else:
            others.append(f"`{name}` ({network})")
    columns = ["network", "board", "architecture", *(title for *_, title in asked), *_HELD.values()]
    text = f"Without such games: {', '.join(others)}. " * bool(others)
    return f"{markdown_table(columns, lines)}\n{text}{source(data, link)}\n"


# What each arm of `tests/quality ladder_training` was trained on after its usual training.
_ARMS = {
    "before": "nothing more",
    "usual": "usual games",
    "ladders": "usual games, and games that begin with ladders",
    "pooling": "usual games, with a pooling branch",
}


def ladder_training(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each arm: counts summed over seeds, and the mean error."""
    columns = ["learned from", "seeds", "won: right sign", "lost: right sign", "pairs in order",
               "squared error in usual games"]  # fmt: skip
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        pairs = [[(row[name]["right"], row[name]["of"]) for row in own] for name in ("won", "lost")]
        pairs.append([(row["ordered"], row["pairs"]) for row in own])
        sums = ["{} of {}".format(*map(sum, zip(*each, strict=True))) for each in pairs]
        error = sum(row["error_in_games"] for row in own) / len(own)
        lines.append([_ARMS[arm], len(own), *sums, round(error, 3)])
    return columns, lines


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table of the rows, without columns that have no value in any row."""
    rows = list(rows)
    used = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    words = [
        i
        for i in used
        if any(isinstance(row[i], str) and row[i].strip("`")[:1].isalpha() for row in rows)
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


def _usual(row: Mapping[str, Any]) -> bool:
    """Whether a row of speeds is in the tables: not MCS, K up to 4, N = 64, and 1 or 64 roots."""
    planner = not row["search"].startswith("MCS") and row["K"] in (None, 1, 4)
    return planner and row["simulations"] == 64 and row["roots"] in (1, 64)


def _tables(number: int) -> Callable[[Any], tuple[list[str], list[list[Any]]]]:
    return lambda rows: tspg.tables(rows)[number][1:]


_PGX = ("roots", "search", "K", "ms", "x bare network", "x as fast as mctx's faster",
        "calls in a row", "scratch MB")  # fmt: skip
BLOCKS: dict[str, Block] = {
    "strength": Block(STRENGTH, _strength),
    "strength-empty": Block("strength_empty_hex-7x7-early_64", _strength),
    "ladder-training": _rows(f"{_QUALITY}/ladder_training", ladder_training),
    "networks": Block(f"{_QUALITY}/networks", _networks),
    "speed": _rows(
        "speed_quick", speed.table, _usual,
        ("network", "roots", "search", "K", "ms", "x bare network",
         "x as fast as mctx's faster", "calls in a row"),
    ),
    "speed-pgx": _rows("speed_pgx", speed.table, columns=_PGX),
    "speed-accelerator": _rows("speed_pgx_accelerator", speed.table, columns=_PGX),
    "many-actions": _rows(
        "speed_many-actions", speed.table, lambda row: row["K"] is not None,
        ("network", "search", "K", "ms", "x as fast as mctx's faster", "calls in a row",
         "scratch MB"),
    ),
    "speed-short": _rows(
        "speed_quick", speed.table,
        lambda row: _usual(row) and row["roots"] == 64 and row["network"] == "hex-7x7",
        ("search", "K", "ms", "x bare network", "x as fast as mctx's faster", "calls in a row"),
    ),
    "memory": _rows("memory_quick", memory.table),
    "memory-short": _rows(
        "memory_quick", memory.table,
        columns=("space", "search", "MB with N = 64", "bytes a simulation and root"),
    ),
    "compiled": _rows(
        "compiled", compiled.table,
        lambda row: (row["roots"] == 16 and row["search"] not in ("MCS", "extended PGS"))
        or row["network"] == "conv-9x9-128x6",
        columns=("platform", "network", "roots", "simulations", "search", "kernels", "round trips",
                 "M cycles", "without estimate", "scratch MB"),
    ),
    "environments": _rows(
        "environments_quick", environments.table,
        lambda row: row["size"] == 11 and row["batch"] == 1024,
    ),
    "environments-samegame": _rows(
        "environments_samegame_quick", environments_samegame.table, lambda row: row["batch"] == 1024
    ),
    # Tournaments on 9x9 have a table of their own.
    "rivals": _rows(
        "rivals", rivals.table,
        lambda row: row["equal"] == "simulations" and row["network"] != "hex-9x9",
    ),
    "rivals-evaluations": _rows("rivals", rivals.table, lambda row: row["equal"] != "simulations"),
    "rounds": _rows("rounds", rivals.rounds_table),
    "pgx-time": Block("strength_pgx-time_conv-7x7-large_32", _strength),
    "order-9x9": Block("strength_defaults_hex-9x9_800", _strength),
    "order-7x7": Block("strength_full", _strength),
    "unfrozen": Block("strength_unfrozen", _strength),
    "teachers": _rows("learning", learning.table, lambda row: row["iteration"] % 100 == 0),
    "ablation": _rows("ablation", ablation.table, lambda row: row["simulations"] == 0),
    "extended": Block("strength_extended", _strength),
    "ve": Block("strength_ve", _strength),
    "model-memory": _rows("model_memory", model_memory.table),
    "unroll": _rows("unroll", unroll.table),
    "tspg": _rows("tspg_full", _tables(0)),
    "tspg-playouts": _rows("tspg_full", _tables(1)),
    "tspg-entropy": _rows("tspg_full", _tables(2)),
    "samegame": _rows(
        "samegame_full",
        lambda rows: samegame.standing(rows + runs.load(RESULTS / "samegame_150.json")["rows"]),
    ),
    "samegame-random": _rows("samegame_random", samegame.comparison),
    "puzzles": _rows("puzzles", lambda rows: (puzzles.DIFFERENCES, puzzles.differences(rows))),
    "value-targets": _rows("value_targets", value_targets.table),
    **{name: _archived(name) for name in (
        "continuous_full", "continuous_wind", "root_values", "noisy_bandit", "chance_full",
        "wide_full", "tspg_deep_full", "policy_targets", "playout-cap", "entropic",
        "ppo_learning_ppo-5x5", "model_learning_ve-3x3", "model_learning_ve-4x4",
        "model_learning_ve-5x5", "models", "samegame-settings", "samegame-players",
    )},
}  # fmt: skip


if __name__ == "__main__":
    main()
