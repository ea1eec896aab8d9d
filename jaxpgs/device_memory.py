"""Whether arrays fit in the devices' memory."""

import os
from typing import Any

import jax


def num_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a pytree; shapes suffice (`jax.eval_shape`)."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def check_fits(needed: int, what: str, advice: str) -> None:
    """Raises `MemoryError` if an array cannot fit in the devices' memory.

    Args:
      needed: its size in bytes.
      what: what it is, for the message.
      advice: what to change, for the message.
    """
    limit = _device_memory()
    if limit is not None and needed > limit:
        raise MemoryError(
            f"{what} need {needed / 2**30:,.1f} GiB, and the {jax.default_backend()} has "
            f"{limit / 2**30:,.1f} GiB. {advice}"
        )


def _device_memory() -> int | None:
    """Returns the bytes of all local devices together, None if they do not tell."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    if all(limits):
        return sum(limits)
    if jax.default_backend() == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
