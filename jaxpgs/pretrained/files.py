"""Parameters as flat named arrays, and atomic writing of files."""

import os
import pathlib
import tempfile
from collections.abc import Mapping

import chex
import numpy as np

from jaxpgs.base import Params


def flatten(params: Params) -> dict[str, np.ndarray]:
    """Flattens nested dicts into one, joining the keys by dots; `unflatten` inverts it exactly.

    Args:
      params: nested dicts of arrays, with string keys.

    Returns:
      NumPy arrays of the same shapes and types by dotted name.

    Raises:
      ValueError: if a key is not a string or contains a dot, or a dict is empty.
    """
    flat: dict[str, np.ndarray] = {}
    for key, value in params.items():
        # `unflatten` would interpret a dot as the boundary between two levels.
        if not isinstance(key, str) or "." in key:
            raise ValueError(f"Parameter names must be strings without a dot, got {key!r}.")
        if not isinstance(value, Mapping):
            flat[key] = np.asarray(value, order="C")
            continue
        # Without a leaf, the name of the dict would be lost.
        if not value:
            raise ValueError(f"The parameters {key!r} are empty.")
        flat |= {f"{key}.{name}": leaf for name, leaf in flatten(dict(value)).items()}
    return flat


def unflatten(flat: Mapping[str, chex.ArrayNumpy]) -> Params:
    """Inverts `flatten`.

    Args:
      flat: arrays of any shapes by dotted name.

    Returns:
      Nested dicts of the same arrays.
    """
    nested: Params = {}
    for name, leaf in flat.items():
        *path, last = name.split(".")
        node = nested
        for key in path:
            node = node.setdefault(key, {})
        node[last] = leaf
    return nested


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Writes a file such that readers see the old or the new content, never a part of it."""
    # The temporary file is in the same folder, as replacing is atomic only within a file system.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash may leave an empty file
        # mkstemp makes the file private, but a library's data files must be readable by everyone.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
