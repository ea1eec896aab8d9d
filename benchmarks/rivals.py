"""Gathers the results of PGS and Gumbel PGS against mctx's searches from all tournaments.

    python -m benchmarks.strength --preset defaults --network hex-9x9 --simulations 64 256 800
    python -m benchmarks.strength --preset defaults-evaluations --network hex-9x9 --simulations 64
    python -m benchmarks.rivals          # the table of all such files

No game is played here: the pairings are read from the files that `benchmarks.strength` wrote. The
players have their defaults, except one variant of mctx's Gumbel search, which considers as many
actions at the root as Gumbel PGS. The tournaments of the presets rounds, rounds-time-1 and
rounds-time-64, of Gumbel searches in rounds, go to `rounds.json`.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import report, runs
from benchmarks.runs import RESULTS

OURS = ("PGS default", "Gumbel PGS default")
_CELL = ("network", "equal", "simulations")
_KEY = (*_CELL, "rival", "player")


def main(argv: list[str] | None = None) -> None:
    """Writes and prints the tables of all tournaments; see the module's docstring."""
    parser = runs.parser("rivals", __doc__)
    parser.add_argument("--folder", type=pathlib.Path, default=RESULTS, help="of the tournaments")
    args = parser.parse_args(argv)
    if not any(args.folder.glob("strength_*.json")):
        parser.error(f"there are no tournaments (strength_*.json) in {args.folder}")
    record = runs.open_record(parser, args, {}, _KEY)
    rows = runs.add(record, *met(args.folder))
    report.print_table("Elo of ours over mctx's searches", *table(rows))
    print(f"Wrote {record.path}.")
    path = record.path.with_name("rounds.json")
    if found := [cell | pair for cell, pair in _pairings(args.folder, "rounds")]:
        rounds = runs.open_record(parser, args, {}, (*_CELL, "first", "second"), path)
        report.print_table("Elo of searches in rounds", *rounds_table(runs.add(rounds, *found)))


def _pairings(folder: pathlib.Path, preset: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields the network, budget and commits of each pairing of a preset, and the pairing."""
    for path in sorted(folder.glob(f"strength_{preset}*.json")):
        data = runs.load(path)
        setting = data["setting"]
        equal = setting["equal"]
        if equal == "time":
            equal += f", {setting['batch_size']} root" + "s" * (setting["batch_size"] > 1)
        cell = (setting["network"], equal, setting["num_simulations"])
        played = ", ".join(dict.fromkeys(runs.short(row["commit"]) for row in data["rows"]))
        for pair in data.get("pairings", ()):  # absent until the tournament is rated
            yield dict(zip(_CELL, cell, strict=True)) | {"played": played}, pair


def met(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Finds the pairings of one of our searches with one of mctx's.

    Args:
      folder: the folder of the tournaments' files.

    Yields:
      A row for each pairing, with the Elo of our search over the rival and its interval.
      `simulations` is the tournament's N; at equal evaluations or time it is mctx Gumbel's.
    """
    for cell, pair in _pairings(folder, "defaults"):
        names = (pair["first"], pair["second"])
        for mine, its, sign in ((*names, 1), (*names[::-1], -1)):
            if mine not in OURS or not its.startswith("mctx"):
                continue
            ends = sorted(sign * pair[end] + 0.0 for end in ("low", "elo", "high"))
            about = {"rival": its, "player": mine, "openings": pair["openings"]}
            yield cell | about | dict(zip(("low", "elo", "high"), ends, strict=True))


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each network, budget and rival, small boards first."""
    cells: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in sorted(rows, key=_order):
        cells.setdefault(tuple(row[name] for name in _KEY[:-1]), {})[row["player"]] = row
    lines = []
    for about, found in cells.items():
        openings = " or ".join(map(str, sorted({row["openings"] for row in found.values()})))
        texts = [report.interval_text(found[name]) if name in found else None for name in OURS]
        played = ", ".join(dict.fromkeys(row["played"] for row in found.values()))
        lines.append([*about, openings, *texts, played])
    heads = [f"Elo of {name.removesuffix(' default')}" for name in OURS]
    return ["network", "equal", "simulations", "rival", "openings", *heads, "commit"], lines


def rounds_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings, one for each tournament, and a line for each pair of players."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    heads: dict[str, None] = {}
    for row in sorted(rows, key=_order):
        where = [row["network"], *[row["equal"]] * (row["equal"] != "simulations")]
        head = f"{', '.join(where)}, N = {row['simulations']}"
        heads[head] = None
        lines.setdefault((row["first"], row["second"]), {})[head] = report.interval_text(row)
    cells = [[*pair, *map(found.get, heads)] for pair, found in lines.items()]
    return ["first", "second", *heads], cells


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that sorts rows by board size, network, kind of equality, simulations and rival."""
    size = int(re.findall(r"\d+", row["network"])[0])
    kinds = ("simulations", "evaluations", "time")
    kind = kinds.index(row["equal"].split(",")[0])
    rival = row.get("rival", "")
    return size, row["network"], kind, row["equal"], row["simulations"], rival


if __name__ == "__main__":
    main()
