"""What all benchmarks share: the command line and the file of rows.

A benchmark is a loop over rows that its file does not have yet:

    parser = runs.parser("rng", __doc__)
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"network": args.network}, key=("search", "roots"))
    for search, roots in jobs:
        if not runs.has(record, search=search, roots=roots):
            runs.add(record, {"search": search, "roots": roots, "ms": ...})

Every row says which command wrote it, at which commit, when, on how many cores and beside how much
other work; the machine and the versions are stored once and named by the row, and so is what
decided it, its fingerprint: the library's code and the network's weights. `benchmarks.stale` lists
rows whose fingerprint is no longer that of the checkout. Stopped and started again, a benchmark
goes on. Several commands may write to one file at the same time.
"""

import argparse
import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.report import (
    ROOT,
    commit,
    describe_machine,
    made_of,
    num_cores,
    weights_digest,
    write_text,
)
from jaxpgs.checks import positive

__all__ = ["RESULTS", "Record", "add", "command_line", "digest", "fingerprint", "has", "load",
           "now", "open_record", "origin", "override", "parser", "positive", "read", "remove",
           "unfinished"]  # fmt: skip

RESULTS = pathlib.Path(__file__).parent / "results"
_SILENT = ("help", "again", "show")  # arguments that change no row


@dataclasses.dataclass(frozen=True)
class Record:
    """A file of rows, and what the rows of this command will say of their origin.

    Attributes:
      path: the JSON file.
      setting: what all its rows have in common, JSON values by name.
      key: the fields that tell its rows apart.
      stamp: `command`, `commit` and `cores` of this command, and the number of its `machine`.
      machine: the hardware and the versions of packages.
      again: whether rows of earlier commands are measured anew.
    """

    path: pathlib.Path
    setting: dict[str, Any]
    key: tuple[str, ...]
    stamp: dict[str, Any]
    machine: dict[str, Any]
    again: bool = False


def parser(
    name: str, doc: str, presets: Iterable[str] = (), program: str = "python -m benchmarks."
) -> argparse.ArgumentParser:
    """Begins a command line with `--out`, `--seed`, `--again` and, if there are any, `--preset`.

    Args:
      name: the module's name below `benchmarks`, or what follows `program`.
      doc: the module's text.
      presets: names of presets, the default first.
      program: what stands before the name in the command.

    Returns:
      The parser. The file is `NAME.json`, or `NAME_PRESET.json`, among the results by default.
    """
    made = argparse.ArgumentParser(
        prog=f"{program}{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if names := list(presets):
        made.add_argument("--preset", choices=names, default=names[0])
    made.add_argument("--out", type=pathlib.Path, help="the JSON file to write or go on with")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--again", action="store_true", help="measure anew what the file has")
    return made


def override(preset: Any, args: argparse.Namespace) -> Any:
    """Puts the arguments that were given in place of a preset's fields of the same names."""
    given = {n: v for n in preset._fields if (v := getattr(args, n, None)) is not None}
    return preset._replace(**given)


def command_line(made: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """Returns the command with its preset and every argument that is not the default."""
    words = [made.prog]
    for action in made._actions:
        value = getattr(args, action.dest, None)
        if action.dest in _SILENT or (value == action.default and action.dest != "preset"):
            continue
        words += action.option_strings[:1]
        if value is not True:
            values = value if isinstance(value, list | tuple) else [value]
            words += [shlex.quote(_short(v) if isinstance(v, os.PathLike) else str(v))
                      for v in values]  # fmt: skip
    return " ".join(words)


def open_record(
    made: argparse.ArgumentParser,
    args: argparse.Namespace,
    setting: Mapping[str, Any],
    key: Sequence[str],
    path: pathlib.Path | None = None,
) -> Record:
    """Opens the file that `args` name, for a first row or for further ones.

    Args:
      made: the result of `parser`.
      args: what it parsed.
      setting: what all rows have in common. A value that is a dict may gain names later.
      key: the fields that tell rows apart.
      path: the file, in place of `--out` and the default.

    Returns:
      A record for `has`, `read` and `add`. Nothing is written yet.

    Raises:
      SystemExit: if the file holds rows of another setting, or cannot be one of rows.
    """
    name = re.split(r"[ .]", made.prog)[-1] + (f"_{args.preset}" if hasattr(args, "preset") else "")
    machine = describe_machine()
    stamp = {
        "command": command_line(made, args),
        "commit": commit(),
        "cores": num_cores(),
        "machine": digest(machine),
    }
    record = Record(
        path or args.out or RESULTS / f"{name}.json",
        json.loads(json.dumps(dict(setting), default=_plain)),
        tuple(key),
        stamp,
        machine,
        args.again,
    )
    if parent := next((x for x in record.path.parents if x.exists() and not x.is_dir()), None):
        raise SystemExit(f"{record.path} cannot be written: {parent} is a file.")
    _checked(record)
    return record


def read(record: Record) -> list[dict[str, Any]]:
    """Returns all rows that the file has now, of this command and of others."""
    return _checked(record)["rows"]


def has(record: Record, **key: Any) -> bool:
    """Tells whether the file has the row with this key, so that it need not be measured."""
    wanted = _key(record, json.loads(json.dumps(key)))
    return not record.again and any(_key(record, row) == wanted for row in read(record))


def add(record: Record, *new: Mapping[str, Any], **parts: Any) -> list[dict[str, Any]]:
    """Adds rows to the file, in place of those with the same key.

    The file is read again first, under a lock, so that several commands may write to it.

    Args:
      record: from `open_record`.
      *new: rows; they gain `command`, `commit`, `cores`, `machine`, `fingerprint`, `date`, and
        `load`, how many processes wanted a core in the minute before, this one among them.
      **parts: further parts of the file, to add or to replace.

    Returns:
      All rows of the file.

    Raises:
      SystemExit: if another command has given the file another setting meanwhile.
      TypeError: if something has no JSON form.
      ValueError: if a number is NaN or infinite, which JSON does not know.
    """
    stamp = record.stamp | {"date": now(), "load": round(os.getloadavg()[0], 2)}
    prints = [fingerprint({**record.setting, **row}) for row in new]
    stamped = [
        dict(row) | stamp | {"fingerprint": digest(made)}
        for row, made in zip(new, prints, strict=True)
    ]
    replaced = {json.dumps(_key(record, row), default=_plain) for row in stamped}
    record.path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(record.path.parent):
        data = _checked(record)
        kept = [row for row in data["rows"] if json.dumps(_key(record, row)) not in replaced]
        if stamped:
            data["machines"][record.stamp["machine"]] = record.machine
            data["fingerprints"] |= {digest(made): made for made in prints}
        write_text(record.path, _dumps(data | parts | {"rows": [*kept, *stamped]}))
    return _checked(record)["rows"]


def fingerprint(about: Mapping[str, Any]) -> dict[str, str]:
    """Returns what decides a row beside its settings: parts of the library, and the weights.

    Args:
      about: the row and its file's setting, which may name a `network`.
    """
    name = str(about.get("network"))
    weights = weights_digest(name)
    return made_of() | ({f"weights of {name}": weights} if weights else {})


def remove(record: Record, **fields: Any) -> None:
    """Removes the rows that have these fields, or all of them; the file goes with its last row."""
    if not record.path.exists():
        return
    with _locked(record.path.parent):
        data = _checked(record)
        kept = [row for row in data["rows"] if any(row.get(k) != v for k, v in fields.items())]
        if kept:
            write_text(record.path, _dumps(data | {"rows": kept}))
        else:
            record.path.unlink()


def unfinished(record: Record, part: str) -> Record:
    """Returns the record of the parts of rows that were stopped, in a file beside the rows.

    Args:
      record: the record of the rows.
      part: the field that tells the parts of a row apart.
    """
    path = record.path.with_suffix(".unfinished")
    return dataclasses.replace(record, path=path, key=(*record.key, part), again=False)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a file of rows.

    Raises:
      SystemExit: if it cannot be read.
    """
    try:
        data = json.loads(pathlib.Path(path).read_text())
        if isinstance(data, dict):
            return data
        error: Any = "it holds no object"
    except (OSError, ValueError) as found:
        error = found
    raise SystemExit(f"{path} is no file of rows: {error}. Name another one, or move it away.")


def origin(data: Mapping[str, Any]) -> str:
    """Says in a sentence who wrote a file's rows: commands, commits, cores, versions and dates."""
    found = data["rows"]

    def distinct(name: str) -> list[Any]:
        return list(dict.fromkeys(row[name] for row in found if row[name] is not None))

    machines = [data["machines"][name] for name in distinct("machine")]
    devices = dict.fromkeys(m["accelerator"] or m["cpu"] for m in machines)
    cores = sorted(distinct("cores"))
    versions = dict.fromkeys(m["versions"]["jax"] for m in machines)
    dates = sorted({row["date"][:10] for row in found})
    commits = [short(text) for text in distinct("commit")]
    unknown = ["not recorded"] * any(row["commit"] is None for row in found)
    return (
        f"{' and '.join(f'`{text}`' for text in distinct('command'))}: "
        f"{' and '.join(devices)}, {' and '.join(map(str, cores))} "
        f"core{'s' * (cores != [1])}, jax {' and '.join(versions)}, "
        f"commit{'s' * (len(commits) > 1)} {', '.join(commits + unknown)}, "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
    )


def short(commit: str | None) -> str:
    """Shortens a row's commit and keeps its "-dirty"; "" for None."""
    commit = commit or ""
    return commit[:7] + "-dirty" * commit.endswith("-dirty")


def now() -> str:
    """Returns the date and time, UTC, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Waits until no other command writes in a folder."""
    handle = os.open(folder, os.O_RDONLY)  # of the folder, as the file itself is replaced
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _checked(record: Record) -> dict[str, Any]:
    """Reads the file, whose setting must be the record's, or begins one."""
    data = load(record.path) if record.path.exists() else {}
    found = data.get("setting", record.setting)
    for name in dict.fromkeys((*found, *record.setting)):
        old: Any = found.get(name)
        new: Any = record.setting.get(name)
        both_grow = isinstance(old, dict) and isinstance(new, dict)
        pairs = (
            {f" {k}": (old[k], new[k]) for k in old if k in new} if both_grow else {"": (old, new)}
        )
        for part, (one, other) in pairs.items():
            if one != other:
                raise SystemExit(
                    f"{record.path} holds rows of {name}{part} {one!r}, not {other!r}; "
                    "name another file with --out, or remove it."
                )
    joined = {
        name: found[name] | new
        if isinstance(found.get(name), dict) and isinstance(new, dict)
        else new
        for name, new in record.setting.items()
    }
    empty: dict[str, Any] = {"machines": {}, "fingerprints": {}, "rows": []}
    return empty | data | {"setting": joined}


def digest(value: Any) -> str:
    """Returns a short digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _key(record: Record, row: Mapping[str, Any]) -> list[Any]:
    return [row.get(name) for name in record.key]


def _dumps(data: Mapping[str, Any]) -> str:
    """JSON with a row on each line, so that a file's changes can be read."""

    def text(value: Any) -> str:
        form: Any = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
        words = json.dumps(value, default=_plain, **form)
        return re.sub(r"(?<=[\[,])(\d)\.0(?=[,\]])", r"\1", words)  # lists of 1.0 are long

    first = ("setting", "machines", "fingerprints")
    order = (*first, *(n for n in data if n not in (*first, "rows")))
    parts = []
    for name in (*order, "rows"):
        value = data[name]
        if isinstance(value, list) and value:
            lines = ",\n".join(f"    {text(item)}" for item in value)
            parts.append(f"  {text(name)}: [\n{lines}\n  ]")
        else:
            parts.append(f"  {text(name)}: {text(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.asarray(value).tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form.")


def _short(path: os.PathLike[str]) -> str:
    """A file's path from the repository, or its name where it is elsewhere."""
    full = pathlib.Path(path).resolve()
    return str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else full.name
