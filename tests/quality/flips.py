"""Flips bits in saved files, one at a time, for `quality.faults`."""

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import jaxpgs
from jaxpgs.training.models import labelling
from jaxpgs.training.runtime.checkpoint import lock_run
from quality import run_states, small_runs

FLIPS = {
    "checkpoint, any file": 300, "checkpoint, any byte": 300, "weights": 150, "card": 150,
    "labelled games": 50, "run.json": 50,
}  # fmt: skip
BLOCK = 50  # flips of one row


def try_flips(
    what: str, numbers: Sequence[int], place: pathlib.Path, seed: int
) -> Iterator[dict[str, Any]]:
    """Flips one bit at a time in a file and reads it; the result must be right, or an error."""
    folder, files, read = _readers()[what](place)
    expected, _ = read()
    for number in numbers:
        rng = np.random.default_rng((seed, list(FLIPS).index(what), number))
        row = run_states.row_of(number, "harmless", None) | {"harmless": 0}
        for _ in range(BLOCK):
            sizes = [1 if what.endswith("any file") else path.stat().st_size for path in files]
            path = files[rng.choice(len(files), p=np.divide(sizes, sum(sizes)))]
            data = path.read_bytes()
            flipped = bytearray(data)
            flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            try:
                found, lost = read()
                outcome = "harmless" if found == expected else "wrong"
                row["lost"] = max(row["lost"], lost)
            except ValueError as error:
                outcome, row["seen"] = "refused", row["seen"] or run_states.short(error, folder)
            row[outcome] += 1
            path.write_bytes(data)
        assert read() == (expected, 0)
        yield row


def _readers() -> dict[str, Callable[[pathlib.Path], tuple]]:
    """Returns, for each kind of file, a function that writes such files.

    It returns their folder, the files, and a function that reads them. That one returns what it
    found and how many iterations were lost.
    """

    def checkpoint(place: pathlib.Path) -> tuple:
        run, folder = small_runs.RUNS["expert iteration"], run_states.fresh(place)
        run(**{run.limit: 3}, directory=folder, keep=3)
        template, expected = run_states.undisturbed("expert iteration", 3, place)

        def read() -> tuple[bool, int]:
            # A run that continues from an earlier step reaches the same end.
            found = run_states.read("expert iteration", folder, template)
            lost = 3 - max(found, default=0)
            return all(expected[step] == digest for step, digest in found.items()), lost

        return folder, sorted(x for x in (folder / "3").rglob("*") if x.is_file()), read

    def network(suffix: str) -> Callable[[pathlib.Path], tuple]:
        def make(place: pathlib.Path) -> tuple:
            folder, module = run_states.fresh(place), small_runs.network()
            jaxpgs.save_pretrained(
                folder, "tiny", env=small_runs.ENV, module=module, seed=0, strength={},
                params=jaxpgs.networks.functional(module)[0], command="python -m somewhere",
            )  # fmt: skip

            def read() -> tuple[Any, int]:
                found = jaxpgs.load_pretrained("tiny", directory=folder)
                digest = run_states.digest_of(found.params)
                return (repr(found.env), type(found.module).__name__, digest), 0

            return folder, [folder / f"tiny.{suffix}"], read

        return make

    def labels(place: pathlib.Path) -> tuple:
        run, folder = small_runs.RUNS["labelling"], run_states.fresh(place)
        run(**{run.limit: 20}, directory=folder)

        parts, files = labelling.Parts(folder), sorted(folder.glob("part-*.npz"))
        with np.load(files[0]) as file:
            like = [file[f"arr_{i}"] for i in range(len(file.files))]

        def read() -> tuple[str, int]:
            return run_states.digest_of([parts.read(i, like) for i in range(len(files))]), 0

        return folder, files, read

    def record(place: pathlib.Path) -> tuple:
        run, folder = small_runs.RUNS["labelling"], run_states.fresh(place)
        run(**{run.limit: 1}, directory=folder)
        whole = json.loads((folder / "run.json").read_text())

        def read() -> tuple[bool, int]:
            with lock_run(folder, whole):
                return True, 0

        return folder, [folder / "run.json"], read

    return {
        "checkpoint, any file": checkpoint, "checkpoint, any byte": checkpoint,
        "weights": network("safetensors"), "card": network("json"),
        "labelled games": labels, "run.json": record,
    }  # fmt: skip
