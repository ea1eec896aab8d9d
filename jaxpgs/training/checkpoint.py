"""Checkpoints of a whole run, written atomically by Orbax."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from jaxpgs.pretrained.files import write_atomically


class Checkpoints:
    """The last states of a run in a directory, and what the run was.

    Args:
      directory: where to keep them; made if need be.
      run: what must be the same when the run goes on, of JSON types; kept in `run.json`.
      keep: how many states to keep.

    Raises:
      ImportError: if Orbax is not installed; it comes with `pip install "jaxpgs[train]"`.
      ValueError: if the directory holds another run, or files that are no run's.
    """

    def __init__(
        self, directory: str | os.PathLike[str], run: Mapping[str, Any], *, keep: int = 2
    ) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise ImportError('Checkpoints need Orbax: pip install "jaxpgs[train]"') from error
        self._ocp = ocp
        self._folder = pathlib.Path(directory).absolute()
        claim(self._folder, json.loads(json.dumps(run)))
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep),
            item_handlers=ocp.StandardCheckpointHandler(),
        )

    def save(self, step: int, state: Any) -> None:
        """Saves the leaves of `state` under a step number, and waits until they are written.

        Raises:
          OSError: if they could not be written, for example because the disk is full. The states
            saved before are still there.
        """
        try:
            self._manager.save(step, args=self._ocp.args.StandardSave(_to_dict(state)))
            self._manager.wait_until_finished()
        except Exception as error:
            raise OSError(
                f"Could not write the checkpoint of step {step} to {self._folder}: {error}\n"
                "Earlier ones are unharmed; make room and call again to go on from the last."
            ) from error

    def restore(self, template: Any) -> Any | None:
        """Returns the last state saved, in the structure of `template`, or None if there is none.

        Raises:
          ValueError: if the checkpoint's leaves do not have the shapes of the template's, or it
            cannot be read.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        shapes = jax.eval_shape(_to_dict, template)
        try:
            found = self._manager.item_metadata(step)
            self._check(step, shapes, found)
            saved = self._manager.restore(step, args=self._ocp.args.StandardRestore(shapes))
        except _OtherRun as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            raise ValueError(
                f"The checkpoint {self._folder / str(step)} is damaged: {error}\n"
                "Move that folder away and call again to go on from the one before it."
            ) from error
        leaves, treedef = jax.tree.flatten(template)
        return jax.tree.unflatten(
            treedef,
            [
                jax.random.wrap_key_data(saved[str(i)]) if _is_key(leaf) else saved[str(i)]
                for i, leaf in enumerate(leaves)
            ],
        )

    def _check(self, step: int, shapes: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        for name, leaf in shapes.items():
            got = found[name].shape if name in found else None
            if got != leaf.shape or len(found) != len(shapes):
                raise _OtherRun(
                    f"The checkpoint of step {step} in {self._folder} is of another run: leaf "
                    f"{name} of {len(found)} has shape {got}, this run has {len(shapes)} and needs "
                    f"{leaf.shape}. Name another directory."
                )


def describe(env: Any, network: Any, seed: int) -> dict[str, Any]:
    """Says of a run what must be the same when it goes on.

    Args:
      env: the environment; a dataclass is told from others of its class.
      network: the network, of which the class counts.
      seed: the run's seed.

    Returns:
      A `run` for `Checkpoints`.
    """
    # The repr of an object that is no dataclass, as pgx's, changes with each process.
    name = repr(env) if dataclasses.is_dataclass(env) else type(env).__qualname__
    return {"env": name, "network": type(network).__name__, "seed": seed}


class _OtherRun(Exception):  # noqa: N818
    pass


def claim(folder: pathlib.Path, run: Mapping[str, Any]) -> None:
    """Makes a folder a run's, or checks that it is this run's already.

    Args:
      folder: the folder, made if need be.
      run: what must be the same when the run goes on, of JSON types; kept in `run.json`.

    Raises:
      ValueError: if the folder holds another run, or checkpoints of no run.
    """
    path = folder / "run.json"
    if not path.exists():
        if folder.exists() and any(entry.name.isdigit() for entry in folder.iterdir()):
            raise ValueError(
                f"{folder} holds checkpoints without a run.json, so not of this trainer. "
                "Name another directory."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(run, indent=2) + "\n").encode())
        return
    try:
        known = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Name another directory.") from error
    for name in {**run, **known}:
        if run.get(name) != known.get(name):
            raise ValueError(
                f"{folder} holds a run with {name} {known.get(name)!r}, not {run.get(name)!r}. "
                "Name another directory, or give the same arguments to go on with that run."
            )


def _to_dict(state: Any) -> dict[str, Any]:
    # A flat dict of plain arrays depends on no class of ours, nor on how Orbax treats them.
    return {
        str(i): jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for i, leaf in enumerate(jax.tree.leaves(state))
    }


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
