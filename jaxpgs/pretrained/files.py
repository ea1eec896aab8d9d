"""Parameters as flat named arrays, and files that appear complete or not at all."""

import os
import pathlib
import tempfile
from collections.abc import Mapping

import chex
import numpy as np

from jaxpgs.base import Params


def flatten(params: Params) -> dict[str, np.ndarray]:
    """Flattens nested dicts to one, joining the keys by dots; `unflatten` undoes it exactly.

    Args:
      params: nested dicts of arrays, with string keys.

    Returns:
      Numpy arrays of the same shapes and types by dotted name.

    Raises:
      ValueError: if a key is no string or holds a dot, or a dict is empty.
    """
    flat: dict[str, np.ndarray] = {}
    for key, value in params.items():
        # `unflatten` would take a dot for the border of two levels.
        if not isinstance(key, str) or "." in key:
            raise ValueError(f"Parameter names must be strings without a dot, got {key!r}.")
        if not isinstance(value, Mapping):
            flat[key] = np.asarray(value, order="C")
            continue
        # Without a leaf its name would be lost.
        if not value:
            raise ValueError(f"The parameters {key!r} are empty.")
        flat |= {f"{key}.{name}": leaf for name, leaf in flatten(dict(value)).items()}
    return flat


def unflatten(flat: Mapping[str, chex.ArrayNumpy]) -> Params:
    """Undoes `flatten`.

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
    """Writes a file such that readers see the old one or the new one, never a part."""
    # In the same folder: only within a file system is a file replaced atomically.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or a machine that stops may leave an empty file
        # mkstemp makes the file private, but a library's data files are for everyone.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
