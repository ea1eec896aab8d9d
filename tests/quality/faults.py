"""What becomes of a training run after a fault: kills, signals, flipped bits, other arguments.

    python tests/quality faults
    python tests/quality faults --only "kill|signal"

Every trainer runs in a process of its own on a tiny game (`quality.small_runs`), saves its state
after each iteration, and is killed at a random moment: while it starts, or after it has saved an
iteration. The saved states are compared, bit by bit, with those of an undisturbed run; then the run
continues until the next kill. Other runs get a signal, a second process in their folder, or another
argument. In saved files one bit at a time is flipped. The outcome is "WRONG" if states differ or a
fault is not refused that should be, and the exit status is then 1.
"""

import contextlib
import functools
import io
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

import quality
from benchmarks import report, runs
from jaxpgs.training.runtime import loggers
from quality import flips, run_states, small_runs

KILLS = {
    "expert iteration": 20, "PPO": 10, "puzzle iteration": 2, "model fitting": 10,
    "value-equivalent": 3, "distillation": 40, "labelling": 15,
}  # fmt: skip
# The trainers that get signals, and those in whose folder a second process trains.
_ASKED = ("expert iteration", "PPO", "distillation", "labelling")
_CHAIN = 10  # kills of one run
# Arguments to which error messages give another name.
_TOLD = {"params": "weights_sha256"} | dict.fromkeys(
    ("network", "model", "apply_fn"), "architecture"
)
_SIGNALS = ("SIGTERM", "SIGINT")


def main(argv: list[str] | None = None) -> None:
    """Tries the faults, writes each outcome at once, prints a table; see the module's text."""
    parser = quality.parser("faults", __doc__)
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
            for row in (
                job.try_all(job.what, missing, run_states.fresh(place), args.seed)
                if missing
                else ()
            ):
                runs.add(record, {"fault": job.fault, "what": job.what} | row)
    rows = runs.read(record)
    report.print_table("Faults", *table(rows))
    print(f"Wrote {record.path}.")
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


class Job(NamedTuple):
    """Faults of one kind.

    Attributes:
      fault: the kind, such as "kill".
      what: the trainer or the file that the fault affects.
      numbers: returns the field `number` of each row.
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
    return found + [
        Job("flipped bit", x, count(n // flips.BLOCK), flips.try_flips)
        for x, n in flips.FLIPS.items()
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each kind of fault and each trainer or file."""
    columns = ["fault", "of", "tried", "went on bit-equal", "refused", "harmless", "wrong", "lost",
               "what is seen"]  # fmt: skip
    lines = []
    for fault, what in dict.fromkeys((row["fault"], row["what"]) for row in rows):
        these = [row for row in rows if (row["fault"], row["what"]) == (fault, what)]
        sums = [sum(row[n] for row in these) for n in ("equal", "refused", "harmless", "wrong")]
        tried = sum(sums)
        # A killed run repeats what it had not saved, with the same bits as result.
        lost = None if fault == "kill" else max(row["lost"] for row in these) or "nothing"
        seen = next((row["seen"] for row in these if row["seen"]), None)
        lines.append([fault, what, tried, *sums, lost, seen])
    return columns, lines


# --- processes ------------------------------------------------------------------------------------


def _child(name: str, folder: str, cache: str, knobs: dict[str, Any], error: str) -> None:
    """Trains in a child process until the parent ends it; `error` is a file for its stderr."""
    os.dup2(os.open(error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", buffering=0), write_through=True)
    warnings.simplefilter("ignore")
    small_runs.use_cache(cache)
    log = None if name == "labelling" else loggers.log_to(pathlib.Path(folder) / "log.jsonl")
    small_runs.RUNS[name](directory=f"{folder}/run", callback=log, **knobs)


@contextlib.contextmanager
def _process(name: str, folder: pathlib.Path, **knobs: Any) -> Iterator[Any]:
    """Yields a process that trains in a folder, and kills it in the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["quality.faults"])  # imports take seconds
    cache = jax.config.values["jax_compilation_cache_dir"]
    arguments = (name, str(folder), cache, knobs, str(folder / "stderr.txt"))
    process = context.Process(target=_child, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _wait(process: Any, until: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < deadline and not until():
        time.sleep(0.01)


# --- the faults -----------------------------------------------------------------------------------


def try_kills(
    what: str, numbers: Sequence[int], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Kills a run again and again; the states that it saved must be those of an undisturbed run."""
    template, _ = run_states.undisturbed(what, 1, place)
    for chain in range(0, len(numbers), _CHAIN):
        folder, found = run_states.fresh(place), []
        for number in numbers[chain : chain + _CHAIN]:
            rng = np.random.default_rng((seed, list(KILLS).index(what), number))
            before = run_states.saved(folder / "run")
            with _process(what, folder) as process:
                if rng.random() < 0.25:  # while it starts
                    time.sleep(rng.uniform(0, 4))
                else:
                    _wait(process, functools.partial(run_states.has_saved, folder / "run", before))
                    time.sleep(rng.uniform(0, 1))
                process.kill()
                process.join()
                if process.exitcode != -signal.SIGKILL:
                    said = (folder / "stderr.txt").read_text() if folder.exists() else ""
                    sys.exit(f"{what} ended by itself, with status {process.exitcode}: {said}")
            found.append((number, run_states.read(what, folder / "run", template)))
        most = max((max(digests, default=0) for _, digests in found), default=0)
        _, expected = run_states.undisturbed(what, most, place)
        for number, digests in found:
            equal = all(expected[step] == digest for step, digest in digests.items())
            reached = max(digests, default=0)
            yield run_states.row_of(
                number, "equal" if equal else run_states.WRONG, None, reached=reached
            )


def try_signals(
    what: str, numbers: Sequence[str], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Sends a signal to a run that saves rarely; it must save its state and then end."""
    del seed
    template, _ = run_states.undisturbed(what, 1, place)
    for name in numbers:
        folder = run_states.fresh(place)
        rare = {} if what in ("labelling", "puzzle iteration") else {"checkpoint_every": 10**6}
        log = folder / "log.jsonl"
        with _process(what, folder, **rare) as process:
            saves = functools.partial(run_states.has_saved, folder / "run", 0)
            _wait(process, saves if what == "labelling" else log.exists)
            os.kill(process.pid, getattr(signal, name))
            process.join(120)
            status = process.exitcode
        digests = run_states.read(what, folder / "run", template)
        reached = max(digests, default=0)
        done = int(loggers.read_log(log)[-1]["iteration"]) if log.exists() else reached
        _, expected = run_states.undisturbed(what, reached, place)
        equal = bool(digests) and all(expected[x] == digest for x, digest in digests.items())
        equal &= status == 128 + getattr(signal, name)
        seen = (folder / "stderr.txt").read_text().splitlines()[-1].replace(f"{folder}/", "")
        yield run_states.row_of(name, "equal" if equal else run_states.WRONG, seen, done - reached)


def try_second(
    what: str, numbers: Sequence[int], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Starts a training in the folder of a running one, which must be refused."""
    del seed
    for number in numbers:
        folder = run_states.fresh(place)
        with _process(what, folder) as process:
            _wait(process, functools.partial(run_states.has_saved, folder / "run", 0))
            try:
                small_runs.RUNS[what](directory=folder / "run")
                outcome, seen = run_states.WRONG, None
            except RuntimeError as error:
                outcome, seen = "refused", run_states.short(error, folder)
            outcome = outcome if process.is_alive() else run_states.WRONG
        yield run_states.row_of(number, outcome, seen)


def try_arguments(
    what: str, numbers: Sequence[str], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Continues a run with one argument changed, each in turn; it must be refused by its name."""
    del seed
    run, folder = small_runs.RUNS[what], run_states.fresh(place)
    run(**{run.limit: 1}, directory=folder)
    template, _ = run_states.undisturbed(what, 1, place)
    before = run_states.read(what, folder, template)
    changes = run.changes()
    for name in numbers:
        try:
            run(**({run.limit: 2} | {name: changes[name]}), directory=folder)
            outcome, seen = run_states.WRONG, None
        except ValueError as error:
            seen = run_states.short(error, folder)
            told = rf"holds a run with ([\w.]+\.)?({name}|{_TOLD.get(name, name)})\b"
            # Data or a network of another environment are refused before the directory is read.
            before_it = name == "env" and re.search("must (be of the env|have shape)", seen)
            by_name = re.search(told, seen) or before_it
            outcome = "refused" if by_name else run_states.WRONG
        yield run_states.row_of(name, outcome, seen)
    assert before == run_states.read(what, folder, template), "it was left alone"


if __name__ == "__main__":
    main()
