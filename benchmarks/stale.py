"""Which rows of results are out of date, as the code or the weights have changed since?

    python -m benchmarks.stale                    # all files
    python -m benchmarks.stale strength_*         # some of them
    python -m benchmarks.stale --rows             # every row by its key
    python -m benchmarks.stale --same-as COMMIT   # first compares a commit with this version

A row's fingerprint holds digests of the parts of the library that its command had imported, without
comments and docstrings, and of the network's weights. If one of them differs from the digest in
this checkout, the row is stale, unless comparisons in `results/same.json` lead from its version to
this one. A comparison counts if the searches of the row's players give the same answers in both
versions or, for rows of times and memory, are the same programs. A comparison may also begin at the
row's commit, for rows without a fingerprint or from another version of Python. Modules that only
check arguments are ignored. The exit status is 1 if any row is stale.
"""

import argparse
import fnmatch
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import report, runs
from benchmarks.players import OURS

NONE = "no fingerprint"
SAME = runs.RESULTS / "same.json"  # written by `python tests/quality versions`
# What a comparison must have found; no player uses the value that a search gives its root. Equal
# instructions of a CPU also count for accelerators, whose compilers remove the same calculations.
ENOUGH = {
    "program": ("program", "instructions"),
    "answers": ("program", "instructions", "answers", "other value"),
}
# Commands that measure the cost of a search's program, whatever it answers.
COSTS = ("compiled", "memory", "model_memory", "speed")
# Parts that only raise errors or return their arguments: they change no result.
REFUSING = ("checks", "model_checks")


def main(argv: list[str] | None = None) -> None:
    """Prints the table of rows; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", default=["*"], help="names, without their ending")
    parser.add_argument("--rows", action="store_true", help="a line for every row")
    parser.add_argument("--folder", type=pathlib.Path, default=runs.RESULTS)
    parser.add_argument("--same-as", nargs="+", metavar="COMMIT", help="versions to compare")
    args = parser.parse_args(argv)
    if args.same_as:
        tool = [sys.executable, str(report.ROOT / "tests" / "quality"), "versions"]
        if status := subprocess.run([*tool, *args.same_as], check=False).returncode:
            sys.exit(status)
    known = runs.load(SAME) if SAME.exists() else {}
    paths = [
        path
        for path in sorted(args.folder.glob("*.json"))
        if path != SAME and any(fnmatch.fnmatch(path.stem, pattern) for pattern in args.files)
    ]
    if not paths:
        parser.error(f"{args.folder} has no file of results named {', '.join(args.files)}")
    columns = ["file", "rows", "stale", "why", "commits"]
    lines = [line for path in paths for line in table(path, known, args.rows)]
    report.print_table("Rows and today's code", columns, lines)
    sys.exit(1 if any(line[2] for line in lines) else 0)


def table(path: pathlib.Path, known: Mapping[str, Any], each: bool = False) -> list[list[Any]]:
    """Returns a line for each reason why rows of a file are stale or hold; `each`: for each row."""
    data = runs.load(path)
    groups: dict[tuple[str | None, bool], list[Mapping[str, Any]]] = {}
    for row, why, old in judged(data, known):
        told = _told(row) + (why or "today's code") if each else why
        groups.setdefault((told, old), []).append(row)
    return [
        [path.stem, len(rows), len(rows) * old, why, _commits(rows)]
        for (why, old), rows in groups.items()
    ]


def judged(
    data: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], str | None, bool]]:
    """Yields the rows of a file, why they are stale or still hold, and whether they are stale.

    Args:
      data: the contents of the file.
      known: the contents of `same.json`.
    """
    for row in data.get("rows", ()):
        made = data.get("fingerprints", {}).get(row.get("fingerprint"))
        changed = [part for part, digest in (made or {}).items() if not is_same(part, digest)]
        if made and not changed:
            yield row, None, False
            continue
        kind, asked = needs(row, data, known.get("setting", {}).get("probes", {}))
        network = str({**data.get("setting", {}), **row}.get("network"))
        holding = [
            comparison for comparison in known.get("rows", ()) if asked
            # Times do not depend on weights.
            and (kind == "program" or network not in comparison["other_weights"])
            and all(comparison["found"].get(key) in ENOUGH[kind] for key in asked)
        ]  # fmt: skip
        commit = row.get("commit")
        own = {p: x for p, x in (made or {}).items() if kind == "answers" or " of " not in p}
        # The commit counts as well: another version of Python gives the same code other digests.
        starts = [own] * bool(made)
        starts += [c["parts"] for c in holding if c["commit_before"] == commit]
        if any(_lead_here(start, holding, known.get("fingerprints", {})) for start in starts):
            yield row, f"same {kind}", False
        else:
            yield row, f"other {', '.join(changed)}" if made else NONE, True


def _lead_here(
    start: Mapping[str, str], left: Sequence[Mapping[str, Any]], after: Mapping[str, Any]
) -> bool:
    """Whether a chain of the comparisons `left`, which hold for a row, leads to this checkout."""
    todo = [dict(start)]
    while todo:
        version = todo.pop()
        if all(is_same(part, digest) for part, digest in version.items()):
            return True
        # Comparisons that begin at this version: the parts that both have are equal.
        fit = [
            c
            for c in left
            if all(p in REFUSING or version.get(p, x) == x for p, x in c["parts"].items())
        ]
        left = [c for c in left if c not in fit]
        todo += [
            {part: x for part, x in version.items() if part not in c["parts"]}
            | after[c["fingerprint"]] for c in fit
        ]  # fmt: skip
    return False


def needs(
    row: Mapping[str, Any], data: Mapping[str, Any], probes: Mapping[str, Any]
) -> tuple[str, set[str]]:
    """Returns what must be the same for a row to hold, "answers" or "program", and in which probes.

    Commands that train networks, play other games or gather other files have no probes.
    """
    found = re.search(r"(?:benchmarks\.(?:\w+\.)*|quality )(\w+)", row.get("command") or "")
    command = found and found[1]
    label = f"{row.get('search', row.get('player'))}".lower().replace(" ", "-").replace("mctx", "")
    family = next((s for s in sorted(OURS, key=len, reverse=True) if s in label), "network")
    if command == "strength":
        players = data["setting"]["players"]
        return "answers", {"match", *(key_of(players[row[x]]) for x in ("first", "second"))}
    if command in ("networks", "openings"):
        return "answers", {"match", family}
    if command == "samegame" and label in ("nrpa", "tempering"):
        return "answers", {label}
    if command in ("environments", "environments_samegame"):
        return "program", {"games"}
    if command in COSTS:
        if label.endswith("default"):
            return "program", {family}
        return "program", {key for key, p in probes.items() if p["search"] == family}
    return "answers", set()


def key_of(player: Mapping[str, Any]) -> str:
    """Returns the name of a player's probe: "network" for a player without a search of ours."""
    name, settings = player["search"], own_settings(player)
    if name not in (*OURS, "match", "games", "tempering", "nrpa"):
        return "network"
    return f"{name} {runs.digest(settings)}" if settings else name


def now(part: str) -> str | None:
    """Returns the digest that a part of a fingerprint has in this checkout."""
    kind, _, name = part.partition(" of ")
    return report.weights_digest(name) if kind == "weights" else report.code_digest(part)


def is_same(part: str, digest: str | None) -> bool:
    """Whether a part of a fingerprint has this digest in this checkout, or is ignored."""
    return part in REFUSING or now(part) == digest


def own_settings(player: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a player's knobs without network and simulations, which the probe itself chooses."""
    return {k: v for k, v in player["knobs"].items() if k not in ("num_simulations", "network")}


def _told(row: Mapping[str, Any]) -> str:
    """Returns the first words and numbers of a row with their names, to identify it."""
    known = [f"{name} {x}" for name, x in row.items() if isinstance(x, str | int)]
    return f"{', '.join(known[:4])}: "


def _commits(rows: Sequence[Mapping[str, Any]]) -> str:
    found = dict.fromkeys(runs.short(row.get("commit")) or "unknown" for row in rows)
    return ", ".join(list(found)[:3]) + ", ..." * (len(found) > 3)


if __name__ == "__main__":
    main()
