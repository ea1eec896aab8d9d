"""What befalls a run, and what becomes of it: kills, signals, flipped bits, other arguments.

    python -m benchmarks.faults
    python -m benchmarks.faults --only "kill|signal"

Every trainer runs in a process of its own on a tiny game (`benchmarks.small_runs`), saves its state
after each iteration, and is killed at a moment drawn by lot: while it starts, or after an iteration
was saved. What it left is read and compared, bit by bit, with the run that nobody disturbed; then
it goes on from there to the next kill. Bits are flipped in what was saved, one at a time. A fault
that is neither refused nor harmless is "WRONG", and the exit status is then 1.
"""

import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxpgs
from benchmarks import report, runs, small_runs
from jaxpgs.training import loggers
from jaxpgs.training.checkpoint import Checkpoints, claimed

KILLS = {
    "expert iteration": 20, "PPO": 10, "puzzle iteration": 2, "model fitting": 10,
    "value-equivalent": 3, "distillation": 40, "labelling": 15,
}  # fmt: skip
_ASKED = ("expert iteration", "PPO", "distillation", "labelling")  # to end, and to share
FLIPS = {
    "checkpoint, any file": 300, "checkpoint, any byte": 300, "weights": 150, "card": 150,
    "labelled games": 50, "run.json": 50,
}  # fmt: skip
_CHAIN, _BLOCK = 10, 50  # kills of one run, flips of one row
_SIGNALS = ("SIGTERM", "SIGINT")
_WRONG = "WRONG"


def main(argv: list[str] | None = None) -> None:
    """Tries the faults, writes each outcome at once, prints a table; see the module's text."""
    parser = runs.parser("faults", __doc__)
    parser.add_argument("--only", default="", help='a regular expression of "fault, what"')
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"seed": args.seed}, ("fault", "what", "number"))
    chosen = [job for job in jobs() if re.search(args.only, f"{job.fault}, {job.what}")]
    with (
        tempfile.TemporaryDirectory() as folder,
        report.progress_bar("faults") as progress,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        place = pathlib.Path(folder)
        small_runs.use_cache(place / "compiled")
        for i, job in enumerate(chosen):
            progress(i, len(chosen), f"{job.fault}, {job.what}")
            missing = [
                number
                for number in job.numbers()
                if not runs.has(record, fault=job.fault, what=job.what, number=number)
            ]
            for row in job.try_all(job.what, missing, _fresh(place), args.seed) if missing else ():
                runs.add(record, {"fault": job.fault, "what": job.what} | row)
    rows = runs.read(record)
    report.print_table("Faults", *table(rows))
    print(f"Wrote {record.path}.")
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


class Job(NamedTuple):
    """Faults of one kind.

    Attributes:
      fault: what happens.
      what: to what.
      numbers: makes the keys of its rows.
      try_all: `(what, numbers, folder, seed) -> rows`.
    """

    fault: str
    what: str
    numbers: Callable[[], Sequence[Any]]
    try_all: Callable[..., Iterator[dict[str, Any]]]


def jobs() -> list[Job]:
    """Lists all faults."""

    def count(number: int) -> Callable[[], Sequence[Any]]:
        return lambda: range(number)

    found = [Job("kill", what, count(number), try_kills) for what, number in KILLS.items()]
    found += [Job("signal", what, lambda: _SIGNALS, try_signals) for what in _ASKED]
    found += [Job("second process", what, count(1), try_second) for what in _ASKED]
    found += [
        Job("other argument", what, functools.partial(list, run.changes()), try_arguments)
        for what, run in small_runs.RUNS.items()
    ]
    flips = FLIPS.items()
    return found + [Job("flipped bit", x, count(n // _BLOCK), try_flips) for x, n in flips]


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each fault and what it befell."""
    columns = ["fault", "of", "tried", "went on bit-equal", "refused", "harmless", "wrong", "lost",
               "what is seen"]  # fmt: skip
    lines = []
    for fault, what in dict.fromkeys((row["fault"], row["what"]) for row in rows):
        these = [row for row in rows if (row["fault"], row["what"]) == (fault, what)]
        sums = [sum(row[n] for row in these) for n in ("equal", "refused", "harmless", "wrong")]
        tried = sum(sums)
        lost = max(row["lost"] for row in these)
        seen = next((row["seen"] for row in these if row["seen"]), None)
        lines.append([fault, what, tried, *sums, lost or "nothing", seen])
    return columns, lines


# --- processes ------------------------------------------------------------------------------------


def _child(name: str, folder: str, cache: str, knobs: dict[str, Any], error: str) -> None:
    """Trains until somebody ends it."""
    os.dup2(os.open(error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", buffering=0), write_through=True)
    warnings.simplefilter("ignore")
    small_runs.use_cache(cache)
    log = None if name == "labelling" else loggers.log_to(pathlib.Path(folder) / "log.jsonl")
    small_runs.RUNS[name](directory=f"{folder}/run", callback=log, **knobs)


@contextlib.contextmanager
def _process(name: str, folder: pathlib.Path, **knobs: Any) -> Iterator[Any]:
    """A process that trains in a folder; killed in the end if it still does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.faults"])  # imports take seconds
    cache = jax.config.values["jax_compilation_cache_dir"]
    arguments = (name, str(folder), cache, knobs, str(folder / "stderr.txt"))
    process = context.Process(target=_child, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _saved(folder: pathlib.Path) -> int:
    """The number of the last iteration, or of the parts, that were saved."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    steps = [int(name) for name in names if name.isdigit()]
    return max(steps, default=len([name for name in names if name.startswith("part-")]))


def _has_saved(folder: pathlib.Path, before: int) -> bool:
    return _saved(folder) > before


def _wait(process: Any, until: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < deadline and not until():
        time.sleep(0.01)


# --- what was saved, and what should have been ----------------------------------------------------


def _digest(state: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _read(name: str, folder: pathlib.Path, template: Any) -> dict[int, str]:
    """Digests of what a folder holds, by number: the last state, or all parts of labelled games."""
    if name == "labelling":
        parts = {}
        for path in sorted(folder.glob("part-*.npz")):
            with np.load(path) as file:
                parts[int(path.stem[5:]) + 1] = _digest([file[x] for x in sorted(file.files)])
        return parts
    if not _saved(folder):
        return {}
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        state = checkpoints.restore(template)
    return {} if state is None else {int(state.iteration): _digest(state)}


def _undisturbed(name: str, number: int, place: pathlib.Path) -> tuple[Any, dict[int, str]]:
    """The last state of a run that nobody disturbed, and digests of all its states by number."""
    run = small_runs.RUNS[name]
    digests: dict[int, str] = {}
    last: list[Any] = []
    if name == "labelling":
        folder = _fresh(place)
        run(directory=folder, callback=lambda finished: _saved(folder) >= number)
        return None, _read(name, folder, None)

    def note(state: Any, metrics: Mapping[str, float]) -> None:
        digests[int(metrics["iteration"])] = _digest(state)
        last[:] = [jax.device_get(state)]

    run(**{run.limit: max(number, 1)}, callback=note)
    return last[0], digests


def _row(number: Any, outcome: str, seen: str | None, lost: int = 0, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("equal", "refused", "harmless", "wrong"), 0)
    counts[{_WRONG: "wrong"}.get(outcome, outcome)] = 1
    return {"number": number} | counts | {"lost": lost, "seen": seen} | more


def _fresh(place: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(tempfile.mkdtemp(dir=place))


# --- the faults -----------------------------------------------------------------------------------


def try_kills(
    what: str, numbers: Sequence[int], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Kills a run again and again; the states that it left must be those of an undisturbed one."""
    template, _ = _undisturbed(what, 1, place)
    for chain in range(0, len(numbers), _CHAIN):
        folder, found = _fresh(place), []
        for number in numbers[chain : chain + _CHAIN]:
            rng = np.random.default_rng((seed, list(KILLS).index(what), number))
            before = _saved(folder / "run")
            with _process(what, folder) as process:
                if rng.random() < 0.25:  # while it starts
                    time.sleep(rng.uniform(0, 4))
                else:
                    _wait(process, functools.partial(_has_saved, folder / "run", before))
                    time.sleep(rng.uniform(0, 1))
                process.kill()
                process.join()
                if process.exitcode != -signal.SIGKILL:
                    said = (folder / "stderr.txt").read_text() if folder.exists() else ""
                    sys.exit(f"{what} ended by itself, with status {process.exitcode}: {said}")
            found.append((number, _read(what, folder / "run", template)))
        most = max((max(digests, default=0) for _, digests in found), default=0)
        _, expected = _undisturbed(what, most, place)
        for number, digests in found:
            equal = all(expected[step] == digest for step, digest in digests.items())
            reached = max(digests, default=0)
            yield _row(number, "equal" if equal else _WRONG, None, reached=reached)


def try_signals(
    what: str, numbers: Sequence[str], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Asks a run to end that would not have saved for long."""
    del seed
    template, _ = _undisturbed(what, 1, place)
    for name in numbers:
        folder = _fresh(place)
        rare = {} if what in ("labelling", "puzzle iteration") else {"checkpoint_every": 10**6}
        log = folder / "log.jsonl"
        with _process(what, folder, **rare) as process:
            saves = functools.partial(_has_saved, folder / "run", 0)
            _wait(process, saves if what == "labelling" else log.exists)
            os.kill(process.pid, getattr(signal, name))
            process.join(120)
            status = process.exitcode
        digests = _read(what, folder / "run", template)
        reached = max(digests, default=0)
        done = int(loggers.read_log(log)[-1]["iteration"]) if log.exists() else reached
        _, expected = _undisturbed(what, reached, place)
        equal = bool(digests) and all(expected[x] == digest for x, digest in digests.items())
        equal &= status == 128 + getattr(signal, name)
        seen = (folder / "stderr.txt").read_text().splitlines()[-1].replace(f"{folder}/", "")
        yield _row(name, "equal" if equal else _WRONG, seen, done - reached)


def try_second(
    what: str, numbers: Sequence[int], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Begins to train where another process does."""
    del seed
    for number in numbers:
        folder = _fresh(place)
        with _process(what, folder) as process:
            _wait(process, functools.partial(_has_saved, folder / "run", 0))
            try:
                small_runs.RUNS[what](directory=folder / "run")
                outcome, seen = _WRONG, None
            except RuntimeError as error:
                outcome, seen = "refused", _short(error, folder)
            outcome = outcome if process.is_alive() else _WRONG
        yield _row(number, outcome, seen)


def try_arguments(
    what: str, numbers: Sequence[str], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Goes on with a run with another value of each argument in turn."""
    del seed
    run, folder = small_runs.RUNS[what], _fresh(place)
    run(**{run.limit: 1}, directory=folder)
    template, _ = _undisturbed(what, 1, place)
    before = _read(what, folder, template)
    changes = run.changes()
    for name in numbers:
        try:
            run(**({run.limit: 2} | {name: changes[name]}), directory=folder)
            outcome, seen = _WRONG, None
        except ValueError as error:
            seen = _short(error, folder)
            told = {"network": "architecture", "model": "architecture", "apply_fn": "architecture"}
            by_name = re.search(rf"holds a run with ({name}|{told.get(name, name)}|weights)", seen)
            outcome = "refused" if by_name else _WRONG
        yield _row(name, outcome, seen)
    assert before == _read(what, folder, template), "it was left alone"


def try_flips(
    what: str, numbers: Sequence[int], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Flips one bit at a time in files, and reads them; what is read must be right or refused."""
    folder, files, read = _readers()[what](place)
    expected = read()
    for number in numbers:
        rng = np.random.default_rng((seed, list(FLIPS).index(what), number))
        row = _row(number, "harmless", None) | {"harmless": 0}
        for _ in range(_BLOCK):
            sizes = [1 if what.endswith("any file") else path.stat().st_size for path in files]
            path = files[rng.choice(len(files), p=np.divide(sizes, sum(sizes)))]
            data = path.read_bytes()
            flipped = bytearray(data)
            flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            try:
                outcome = "harmless" if read() == expected else "wrong"
            except ValueError as error:
                outcome, row["seen"] = "refused", row["seen"] or _short(error, folder)
            row[outcome] += 1
            path.write_bytes(data)
        assert read() == expected
        yield row


def _readers() -> dict[str, Callable[[pathlib.Path], tuple]]:
    """For each kind of file: makes them, and returns their folder, themselves and how to read."""

    def checkpoint(place: pathlib.Path) -> tuple:
        run, folder = small_runs.RUNS["expert iteration"], _fresh(place)
        run(**{run.limit: 3}, directory=folder, keep=3)
        template, expected = _undisturbed("expert iteration", 3, place)

        def read() -> bool:
            # From an earlier step a run goes on to the same end.
            found = _read("expert iteration", folder, template)
            return all(expected[step] == digest for step, digest in found.items())

        return folder, sorted(x for x in (folder / "3").rglob("*") if x.is_file()), read

    def network(suffix: str) -> Callable[[pathlib.Path], tuple]:
        def make(place: pathlib.Path) -> tuple:
            folder, module = _fresh(place), small_runs.network()
            jaxpgs.save_pretrained(
                folder, "tiny", env=small_runs.ENV, module=module, seed=0, strength={},
                params=jaxpgs.networks.functional(module)[0], command="python -m somewhere",
            )  # fmt: skip

            def read() -> Any:
                found = jaxpgs.load_pretrained("tiny", directory=folder)
                return repr(found.env), type(found.module).__name__, _digest(found.params)

            return folder, [folder / f"tiny.{suffix}"], read

        return make

    def labels(place: pathlib.Path) -> tuple:
        run, folder = small_runs.RUNS["labelling"], _fresh(place)
        run(**{run.limit: 20}, directory=folder)
        read = lambda: _digest(run(**{run.limit: 20}, directory=folder))  # noqa: E731
        return folder, sorted(folder.glob("part-*.npz")), read

    def record(place: pathlib.Path) -> tuple:
        run, folder = small_runs.RUNS["labelling"], _fresh(place)
        run(**{run.limit: 1}, directory=folder)
        whole = json.loads((folder / "run.json").read_text())

        def read() -> bool:
            with claimed(folder, whole):
                return True

        return folder, [folder / "run.json"], read

    return {
        "checkpoint, any file": checkpoint, "checkpoint, any byte": checkpoint,
        "weights": network("safetensors"), "card": network("json"),
        "labelled games": labels, "run.json": record,
    }  # fmt: skip


def _short(error: Exception, folder: pathlib.Path) -> str:
    """The first lines of a message, without the folder that nobody else has."""
    text = " ".join(str(error).replace(f"{folder}", "DIR").split())
    return text if len(text) <= 240 else f"{text[:240]}..."


if __name__ == "__main__":
    main()
