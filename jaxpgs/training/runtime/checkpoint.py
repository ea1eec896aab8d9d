"""Checkpoints of a whole run, written atomically by Orbax and verified by checksums."""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.pretrained.files import write_atomically
from jaxpgs.training.runtime import sharding
from jaxpgs.training.runtime.arguments import fingerprint, fingerprint_env, first_difference
from jaxpgs.training.runtime.former_names import renamed

_CHECKSUM = "checksum"
_NAMES = "leaves.json"  # the names of a state's numbered arrays
# What may change when a run resumes: its length, its folder, callbacks and devices.
_FREE = ("num_iterations", "directory", "checkpoint_every", "keep", "callback", "progress",
         "devices")  # fmt: skip


@contextlib.contextmanager
def opened(
    directory: str | os.PathLike[str], run: Mapping[str, Any], *, keep: int = 2
) -> Iterator["Checkpoints"]:
    """Opens the checkpoints of a run; only one process may do so at a time.

    Args:
      directory: where to keep them; created if it does not exist.
      run: what must be the same when the run resumes; see `lock_run`.
      keep: how many states to keep.

    Yields:
      The checkpoints.

    Raises:
      ImportError: if Orbax is not installed; it comes with `pip install "jaxpgs[train]"`.
      ValueError: if the directory holds another run, or checkpoints that belong to no run.
      RuntimeError: if another process is training there.
    """
    folder = pathlib.Path(directory).absolute()
    # Under the lock, so that no other process writes or removes states in the folder meanwhile.
    with lock_run(folder, run):
        checkpoints = Checkpoints(folder, keep=keep)
        try:
            yield checkpoints
        finally:
            checkpoints.close()


class Checkpoints:
    """The last states of a run in the run's own directory; see `opened`.

    Args:
      folder: the directory.
      keep: how many states to keep.

    Raises:
      ImportError: if Orbax is not installed; it comes with `pip install "jaxpgs[train]"`.
    """

    def __init__(self, folder: pathlib.Path, *, keep: int = 2) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise ImportError('Checkpoints need Orbax: pip install "jaxpgs[train]"') from error
        self._ocp = ocp
        self._folder = folder
        self._is_named = False
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep),
            item_handlers=ocp.StandardCheckpointHandler(),
        )

    def save(self, step: int, state: Any) -> None:
        """Saves the leaves of `state` under a step number, and waits until they are written.

        A checksum of every leaf is saved as well.

        Raises:
          OSError: if they could not be written, for example because the disk is full. Earlier
            states are unharmed.
        """
        try:
            self._name(state)
            leaves = _to_dict(state)
            leaves[_CHECKSUM] = _checksum(leaves)
            self._manager.save(step, args=self._ocp.args.StandardSave(leaves))
            # Orbax writes in the background; the next iteration would overwrite what it reads.
            self._manager.wait_until_finished()
        except Exception as error:
            raise OSError(
                f"Could not write the checkpoint of step {step} to {self._folder}: "
                f"{_brief(error)}\n"
                "Earlier ones are unharmed; make room and call again to go on from the last."
            ) from error

    def restore(self, template: Any) -> Any | None:
        """Returns the last state saved, in the structure of `template`, or None if there is none.

        Args:
          template: a state of the run; the returned state is on the same devices.

        Raises:
          ValueError: if the checkpoint's leaves do not have the shapes of the template's, it cannot
            be read, or a leaf differs from its checksum.
        """
        # Orbax renames a folder once it is completely written, so the latest step is complete.
        step = self._manager.latest_step()
        if step is None:
            return None
        shapes = jax.tree.map(_place, _to_dict(template))
        _hush_failed_reads()
        try:
            found = self._manager.item_metadata(step)
            if found is None:
                raise ValueError("the file `_METADATA`, which lists its arrays, is missing.")
            # Earlier versions kept no checksum; their states are still read, with a warning.
            kept = {_CHECKSUM: jax.ShapeDtypeStruct((len(shapes),), jnp.uint32)}
            wanted = shapes | (kept if _CHECKSUM in found else {})
            self._check(step, wanted, found)
            saved = self._manager.restore(step, args=self._ocp.args.StandardRestore(wanted))
            self._verify(step, saved)
        # An intact checkpoint of another run must not be reported as damaged.
        except _OtherRun as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            raise ValueError(
                f"The checkpoint {self._folder / str(step)} is damaged: {_brief(error)}\n"
                f"Move that folder away and call again to {self._before(step)}."
            ) from error
        self._name(template)
        leaves, treedef = jax.tree.flatten(template)
        return jax.tree.unflatten(
            treedef,
            [
                jax.random.wrap_key_data(saved[str(i)], impl=jax.random.key_impl(leaf))
                if _is_key(leaf)
                else saved[str(i)]
                for i, leaf in enumerate(leaves)
            ],
        )

    def close(self) -> None:
        """Ends Orbax's background threads."""
        self._manager.close()

    def _name(self, state: Any) -> None:
        """Stores the names of the leaves, so that they can be read without a state of the run."""
        if self._is_named or not sharding.is_first_process():
            return
        # Arrays are saved under their indices in this list, and random keys as their raw data, so
        # the implementation of keys is stored here.
        paths = jax.tree_util.tree_flatten_with_path(state)[0]
        names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
        keys = {
            name: str(jax.random.key_impl(leaf))
            for name, (_, leaf) in zip(names, paths, strict=True)
            if _is_key(leaf)
        }
        text = json.dumps({"leaves": names, "keys": keys}, indent=1) + "\n"
        write_atomically(self._folder / _NAMES, text.encode())
        self._is_named = True

    def _check(self, step: int, shapes: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        for name, leaf in shapes.items():
            got = found[name].shape if name in found else None
            if got != leaf.shape or len(found) != len(shapes):
                raise _OtherRun(
                    f"The checkpoint of step {step} in {self._folder} is of another run: leaf "
                    f"{name} of {len(found)} has shape {got}, this run has {len(shapes)} and needs "
                    f"{leaf.shape}. Name another directory."
                )

    def _verify(self, step: int, saved: dict[str, Any]) -> None:
        """Raises `ValueError` if a leaf differs from its checksum; removes the checksums."""
        expected = saved.pop(_CHECKSUM, None)
        if expected is None:
            warnings.warn(
                f"The checkpoint {self._folder / str(step)} has no checksum, as those of earlier "
                "versions: damage to it would not be found.",
                stacklevel=2,
            )
            return
        differ = np.asarray(_checksum(saved)) != np.asarray(expected)
        if differ.any():
            raise ValueError(
                f"{differ.sum()} of its {len(differ)} arrays differ from their checksums, first "
                f"number {np.argmax(differ)}."
            )

    def _before(self, step: int) -> str:
        earlier = [other for other in self._manager.all_steps() if other < step]
        return f"go on from step {max(earlier)}" if earlier else "begin anew; no step is before it"


def read_leaves(
    folder: pathlib.Path, wanted: Callable[[str], bool]
) -> tuple[int, dict[str, Any]] | None:
    """Reads arrays of the last state in a folder, to which a run may still be writing.

    Args:
      folder: where `Checkpoints` keeps them.
      wanted: whether to read the array with a name such as "params.value_head.bias".

    Returns:
      The step number of the state, and NumPy arrays by name, with random keys as JAX keys. None if
      no state has been saved yet.

    Raises:
      ImportError: if Orbax is not installed.
      ValueError: if the names are not stored, or the state is damaged.
    """
    # A folder whose name is only a number is complete: while Orbax writes, the name is longer.
    while steps := [int(path.name) for path in folder.iterdir() if path.name.isdigit()]:
        step = max(steps)
        if not (folder / _NAMES).exists():
            raise ValueError(
                f"{folder} has no {_NAMES}, the names of its arrays; earlier versions kept none. "
                "Call the trainer once more with the same arguments: it goes on from there and "
                "keeps them."
            )
        _hush_failed_reads()
        try:
            return step, _read_step(folder, step, wanted)
        except ImportError:
            raise
        except Exception as error:
            # A failure counts only if the folder is still there: a run removes its oldest states.
            if (folder / str(step)).exists():
                raise ValueError(
                    f"The checkpoint {folder / str(step)} is damaged: {_brief(error)}"
                ) from error
            # Otherwise a newer state replaced it while it was read.
    return None


def _read_step(folder: pathlib.Path, step: int, wanted: Callable[[str], bool]) -> dict[str, Any]:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError('Checkpoints need Orbax: pip install "jaxpgs[train]"') from error
    known = json.loads((folder / _NAMES).read_text("utf-8"))
    places = {i: name for i, name in enumerate(known["leaves"]) if wanted(name)}
    item = {str(i): 0 for i in places} | {_CHECKSUM: 0}
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        # This skips the games and the experience, which may be large.
        args = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy, partial_restore=True)
        saved = reader.restore(folder / str(step) / "default", args=args)
    expected = saved.pop(_CHECKSUM)
    leaves = [saved[str(i)] for i in places]
    # A checksum depends on places within an array, not on the array's number, so the arrays that
    # are read may be renumbered.
    sums = _checksum({str(n): _words(leaf) for n, leaf in enumerate(leaves)})
    differ = np.asarray(sums) != expected[list(places)]
    if differ.any() or len(expected) != len(known["leaves"]):
        raise ValueError(f"{differ.sum()} of the arrays differ from their checksums.")
    return {
        name: jax.random.wrap_key_data(leaf, impl=known["keys"][name])
        if name in known["keys"]
        else leaf
        for name, leaf in zip(places.values(), leaves, strict=True)
    }


def _words(leaf: np.ndarray) -> np.ndarray:
    """Views 64-bit numbers, which JAX may truncate, as two 32-bit words each."""
    if leaf.dtype.itemsize < 8 or leaf.dtype.kind == "c":
        return leaf
    return leaf.reshape(-1).view(np.uint32).reshape(*leaf.shape, 2)


@jax.jit
def _checksum(leaves: Mapping[str, chex.Array]) -> chex.Array:
    """Returns `[number of leaves]` uint32: sums of their words, each hashed with its place.

    A change of one word always changes the sum. Integer sums do not depend on the order, so an
    array's sharding over devices does not matter.
    """
    return jnp.stack([_word_sum(leaves[str(i)]) for i in range(len(leaves))])


def _word_sum(leaf: chex.Array) -> chex.Array:
    # Words of 64 bits become two of 32; complex numbers two real ones.
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag])
    if leaf.dtype == bool:
        leaf = leaf.astype(jnp.uint8)
    width = min(leaf.dtype.itemsize, 4)
    words = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * width}")).astype(jnp.uint32)
    # A word's place in row-major order, from its indices, so that it is independent of sharding.
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, length in enumerate(words.shape):
        place = place * jnp.uint32(length) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    # Each step is invertible in the word: exclusive or, products with odd numbers, xor-shifts.
    mixed = (words ^ (place * jnp.uint32(0x9E3779B1))) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32)


def _place(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape, type and sharding of an array."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))


def describe(
    trainer: str, arguments: Mapping[str, Any], formerly: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describes what must be the same when a run resumes.

    Args:
      trainer: the trainer's name.
      arguments: all its arguments by name, including `env`, `seed` and the network. The number of
        iterations, the checkpoint settings, the directory, the callback, the progress bar and the
        devices may change.
      formerly: the implied values, by name, of arguments that are missing or None in a folder of an
        earlier version.

    Returns:
      A `run` for `opened` and `lock_run`.
    """
    # The rest identifies the run: two runs that differ in any of it must not share a folder.
    kept = {name: x for name, x in arguments.items() if name not in _FREE}
    env, seed = kept.pop("env"), kept.pop("seed")
    network = next(kept.pop(name) for name in ("network", "model", "apply_fn") if name in kept)
    # Folders of earlier versions describe an environment only by `env`.
    rules = {"rules": fingerprint_env(env)}
    # The repr of an object that is not a dataclass, such as pgx's, differs between processes.
    told = repr(env) if dataclasses.is_dataclass(env) else type(env).__qualname__
    return {
        "trainer": trainer,
        "env": re.sub(r" at 0x[0-9A-Fa-f]+", "", told),
        "network": type(network).__name__,
        "seed": seed,
        "arguments": {"architecture": fingerprint(network)} | rules | fingerprint(kept),
        "formerly": rules | fingerprint(formerly or {}),
    }


class _OtherRun(Exception):  # noqa: N818
    pass


@contextlib.contextmanager
def lock_run(folder: pathlib.Path, run: Mapping[str, Any]) -> Iterator[None]:
    """Assigns a folder to a run, or checks that it belongs to this run, and locks it meanwhile.

    If several processes train together, the first one does this for all.

    Args:
      folder: the folder, created if it does not exist.
      run: what must be the same when the run resumes, from `describe`; stored in `run.json`.

    Raises:
      ValueError: if the folder holds another run, or checkpoints of no run.
      RuntimeError: if another process is training there.
    """
    with contextlib.ExitStack() as stack:
        # The first process holds the lock for all, until the block ends.
        sharding.in_first_process(lambda: stack.enter_context(_lock_run(folder, run)))
        yield


@contextlib.contextmanager
def _lock_run(folder: pathlib.Path, run: Mapping[str, Any]) -> Iterator[None]:
    # Converted by JSON, so that it compares equal to the file: lists for tuples, strings for keys.
    path, given = folder / "run.json", json.loads(json.dumps(run))
    formerly = given.pop("formerly", {})
    if not path.exists() and folder.exists() and any(x.name.isdigit() for x in folder.iterdir()):
        raise ValueError(
            f"{folder} holds checkpoints without a run.json, so they are not of this trainer. "
            "Name another directory."
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Under the lock: if two processes start at the same time, only one may write the file.
    with _locked(folder):
        if not path.exists() or _is_earlier(path, given, formerly):
            write_atomically(path, (json.dumps(given, indent=2) + "\n").encode())
        yield


def _is_earlier(path: pathlib.Path, run: Mapping[str, Any], formerly: Mapping[str, Any]) -> bool:
    """Returns whether a folder's `run.json` is of a version that did not store all arguments.

    Args:
      path: the file.
      run: the run to resume.
      formerly: the implied values of arguments that are None or missing in the file.

    Raises:
      ValueError: if the file is damaged or of another run.
    """
    try:
        known = json.loads(path.read_text("utf-8"))
        if not isinstance(known, dict):
            raise ValueError("it is not a JSON object")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Name another directory.") from error
    # Merged: users do not distinguish `arguments` from the other fields.
    given = {name: x for name, x in run.items() if name != "arguments"} | run["arguments"]
    if earlier := "arguments" not in known:
        # Its contents are compared, except for functions, whose names it did not store.
        given = {name: x for name, x in given.items() if name in known}
        known = {n: x for n, x in known.items() if n in given and "a function" not in str(x)}
        given = {name: x for name, x in given.items() if name in known}
    else:
        known = {name: x for name, x in known.items() if name != "arguments"} | known["arguments"]
        # For an argument that is newer than the file, the value of that time is implied.
        known |= {name: x for name, x in formerly.items() if known.get(name) is None}
    # Compared with current names first, then with the renamed names of an earlier version.
    found = first_difference(known, given)
    if found and (found := first_difference(renamed(known), given)):
        place, old, new = found
        raise ValueError(
            f"{path.parent} holds a run with {place} {_short(old)}, not {_short(new)}. "
            "Name another directory, or give the same arguments to go on with that run."
        )
    if earlier:
        warnings.warn(
            f"{path} is of an earlier version, which did not keep all arguments: those given now "
            f"are used. Only these were compared: {', '.join(known) or 'none'}.",
            stacklevel=2,
        )
    return earlier


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _brief(error: Exception) -> str:
    # TensorStore adds a page of its settings, which can be found in the error's cause.
    return textwrap.shorten(str(error), 300, placeholder=" ...")


def _hush_failed_reads() -> None:
    """Keeps asyncio from logging long messages, at any time, that other arrays failed as well."""
    logging.getLogger("asyncio").addFilter(_is_no_failed_read)


def _is_no_failed_read(record: logging.LogRecord) -> bool:
    return "OCDBT" not in record.getMessage()  # the format in which Orbax stores arrays


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from training in a folder; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    # The file is not removed: the lock is the system's, and ends even if the process is killed.
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"Another process trains in {folder}. Wait for it or stop it, or name another "
                "directory."
            ) from None
        yield
    finally:
        os.close(handle)


def _to_dict(state: Any) -> dict[str, Any]:
    # A flat dict of plain arrays depends neither on our classes nor on how Orbax treats them.
    return {
        str(i): jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for i, leaf in enumerate(jax.tree.leaves(state))
    }


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
