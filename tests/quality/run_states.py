"""What a run of `quality.small_runs` has saved in its folder, and what it should have saved."""

import contextlib
import hashlib
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxpgs.training.runtime.checkpoint import Checkpoints
from quality import small_runs

WRONG = "WRONG"


def saved(folder: pathlib.Path) -> int:
    """Returns the number of the last saved iteration, or how many parts were saved."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    steps = [int(name) for name in names if name.isdigit()]
    return max(steps, default=len([name for name in names if name.startswith("part-")]))


def has_saved(folder: pathlib.Path, before: int) -> bool:
    """Tells whether more than `before` iterations or parts were saved."""
    return saved(folder) > before


def digest_of(state: Any) -> str:
    """Returns the SHA-256 of all arrays of a pytree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def read(name: str, folder: pathlib.Path, template: Any) -> dict[int, str]:
    """Returns the digest of the last saved state, or of all parts, by iteration or part number."""
    if name == "labelling":
        parts = {}
        for path in sorted(folder.glob("part-*.npz")):
            with np.load(path) as file:
                parts[int(path.stem[5:]) + 1] = digest_of([file[x] for x in sorted(file.files)])
        return parts
    if not saved(folder):
        return {}
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        state = checkpoints.restore(template)
    return {} if state is None else {int(state.iteration): digest_of(state)}


def undisturbed(name: str, number: int, place: pathlib.Path) -> tuple[Any, dict[int, str]]:
    """Makes a run without faults; returns its last state and the digests of all its states."""
    run = small_runs.RUNS[name]
    digests: dict[int, str] = {}
    last: list[Any] = []
    if name == "labelling":
        folder = fresh(place)
        run(directory=folder, callback=lambda *_: saved(folder) >= number)
        return None, read(name, folder, None)

    def note(state: Any, metrics: Mapping[str, float]) -> None:
        digests[int(metrics["iteration"])] = digest_of(state)
        last[:] = [jax.device_get(state)]

    run(**{run.limit: max(number, 1)}, callback=note)
    return last[0], digests


def row_of(
    number: Any, outcome: str, seen: str | None, lost: int = 0, **more: Any
) -> dict[str, Any]:
    """Makes the row of one fault: `outcome` is "equal", "refused", "harmless" or `WRONG`."""
    counts = dict.fromkeys(("equal", "refused", "harmless", "wrong"), 0)
    counts[{WRONG: "wrong"}.get(outcome, outcome)] = 1
    return {"number": number} | counts | {"lost": lost, "seen": seen} | more


def fresh(place: pathlib.Path) -> pathlib.Path:
    """Makes an empty folder."""
    return pathlib.Path(tempfile.mkdtemp(dir=place))


def short(error: Exception, folder: pathlib.Path) -> str:
    """Returns the beginning of a message, with "DIR" in place of the temporary folder."""
    text = " ".join(str(error).replace(f"{folder}", "DIR").split())
    return text if len(text) <= 240 else f"{text[:240]}..."
