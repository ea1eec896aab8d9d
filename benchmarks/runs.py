"""What all benchmarks share: the command line and the file of rows.

A benchmark is a loop over rows that its file does not have yet:

    parser = runs.parser("rng", __doc__)
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"network": args.network}, key=("search", "roots"))
    for search, roots in jobs:
        if not runs.has(record, search=search, roots=roots):
            runs.add(record, {"search": search, "roots": roots, "ms": ...})

Every row says which command wrote it, at which commit, when, on how many cores and at which load.
The file stores each machine with its versions once, and rows refer to it by a digest. In the same
way they refer to a fingerprint: digests of the library's code and of the network's weights, on
which the results depend. `benchmarks.stale` lists the rows whose fingerprint no longer holds. A
benchmark that was stopped continues when it is started again. Several commands may write to one
file at the same time.
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
from jaxpgs.checks import number, positive, whole_number

__all__ = ["RESULTS", "Record", "add", "command_line", "digest", "fingerprint", "has", "load",
           "now", "number", "open_record", "origin", "override", "parser", "positive", "read",
           "remove", "unfinished"]  # fmt: skip

RESULTS = pathlib.Path(__file__).parent / "results"
_SILENT = ("help", "again", "show")  # arguments that change no row


@dataclasses.dataclass(frozen=True)
class Record:
    """A file of rows, and the origin that this command notes in the rows that it adds.

    Attributes:
      path: the JSON file.
      setting: the values that all its rows have in common, JSON values by name.
      key: the fields that together identify a row.
      stamp: `command`, `commit` and `cores` of this command, and the digest of its `machine`.
      machine: the hardware and the versions of packages.
      again: whether rows that the file has are measured again.
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
    """Makes a parser with `--out`, `--seed`, `--again` and, if there are presets, `--preset`.

    Args:
      name: the module's name within `benchmarks`, or the words after `program`.
      doc: the module's docstring, which `--help` prints.
      presets: names of presets, the default first.
      program: the words before the name in the command.

    Returns:
      The parser. By default `open_record` opens `NAME.json`, or `NAME_PRESET.json`, in `RESULTS`.
    """
    made = argparse.ArgumentParser(
        prog=f"{program}{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if names := list(presets):
        made.add_argument("--preset", choices=names, default=names[0])
    made.add_argument("--out", type=pathlib.Path, help="the JSON file to write or go on with")
    made.add_argument("--seed", type=whole_number(0, 2**63 - 1), default=0)
    made.add_argument(
        "--again", action="store_true", help="measure again what the file already has"
    )
    return made


def override(preset: Any, args: argparse.Namespace) -> Any:
    """Returns the preset with the given arguments in place of its fields of the same names."""
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
    """Opens the file of rows that `args` name, which need not exist, and checks its setting.

    Args:
      made: the parser, from `parser`.
      args: the arguments that it parsed.
      setting: the values that all rows have in common. A value that is a dict may gain names later.
      key: the fields that together identify a row.
      path: the file, in place of `--out` and the default.

    Returns:
      A record for `has`, `read` and `add`. Nothing is written yet.

    Raises:
      SystemExit: if the file has another setting, is no file of rows, or cannot be written.
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
    # Found before anything is measured. The folder itself is made with the first row.
    parent = next(x for x in record.path.parents if x.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        what = "does not allow it" if parent.is_dir() else "is a file"
        raise SystemExit(
            f"{record.path} cannot be written: {parent} {what}. Name another file with --out."
        )
    _checked(record)
    return record


def read(record: Record) -> list[dict[str, Any]]:
    """Returns all rows that the file has now, of this command and of others."""
    return _checked(record)["rows"]


def has(record: Record, **key: Any) -> bool:
    """Returns whether the file has the row with this key; always False with `record.again`."""
    wanted = _key(record, json.loads(json.dumps(key)))
    return not record.again and any(_key(record, row) == wanted for row in read(record))


def add(record: Record, *new: Mapping[str, Any], **parts: Any) -> list[dict[str, Any]]:
    """Adds rows to the file, in place of those with the same key.

    The file is read again first, under a lock, so that several commands may write to it.

    Args:
      record: from `open_record`.
      *new: rows; they gain `command`, `commit`, `cores`, `machine`, `fingerprint`, `date`, and
        `load`, the system's load average over the last minute, which includes this process.
      **parts: other entries of the file, which are added or replaced.

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
    """Returns digests of what a row depends on besides its settings: the library and the weights.

    Args:
      about: the row and its file's setting, which may name a `network`.
    """
    name = str(about.get("network"))
    weights = weights_digest(name)
    return made_of() | ({f"weights of {name}": weights} if weights else {})


def remove(record: Record, **fields: Any) -> None:
    """Removes the rows with these fields, or all rows; deletes the file if no row is left."""
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
    """Returns a record of the finished parts of unfinished rows, in a file beside the rows.

    Args:
      record: the record of the rows.
      part: the field that identifies a part of a row.
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
        error: Any = "it does not hold a JSON object"
    except OSError as found:
        raise SystemExit(f"{path} cannot be read: {found.strerror}. Name another file.") from None
    except ValueError as found:
        error = found
    raise SystemExit(
        f"{path} is not a file of rows: {error}. Name another file, or move this one away."
    )


def origin(data: Mapping[str, Any]) -> str:
    """Returns the origin of a file's rows: commands, devices, cores, versions, commits, dates."""
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
    handle = os.open(folder, os.O_RDONLY)  # the folder is locked, as the file is replaced
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _checked(record: Record) -> dict[str, Any]:
    """Returns the file's data, or that of an empty file; its setting must be the record's."""
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
    """Returns JSON with a row on each line, so that differences between versions are readable."""

    def text(value: Any) -> str:
        form: Any = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
        words = json.dumps(value, default=_plain, **form)
        return re.sub(r"(?<=[\[,])(\d)\.0(?=[,\]])", r"\1", words)  # shorter lists of outcomes

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
    """Returns a path relative to the repository, or only the name of a file outside it."""
    full = pathlib.Path(path).resolve()
    return str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else full.name
