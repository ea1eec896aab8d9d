"""Whether arrays fit in what is free of the devices' memory."""

import contextlib
import os
import pathlib
import re
from typing import Any

import jax

MAX_COUNT = 2**30  # of simulations and the like: sums of two are 32-bit numbers still
_GROUP = pathlib.Path("/sys/fs/cgroup")
_CGROUPS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def num_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a pytree; shapes suffice (`jax.eval_shape`)."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def check_fits(shapes: Any, what: str, advice: str) -> None:
    """Raises `MemoryError` if arrays cannot fit in the devices' memory, or be indexed.

    Args:
      shapes: a pytree of arrays, or their shapes.
      what: what they are, for the message.
      advice: what to change, for the message.
    """
    longest = max((max(x.shape, default=0) for x in jax.tree.leaves(shapes)), default=0)
    if longest >= 2**31:
        raise MemoryError(f"{what} are more than 32-bit indices can tell, 2^31. {advice}")
    needed, free = num_bytes(shapes), _free_memory()
    if free is not None and needed > free:
        raise MemoryError(
            f"{what} need {needed / 2**30:,.1f} GiB, and the {jax.default_backend()} has "
            f"{free / 2**30:,.1f} GiB free. {advice}"
        )


def _free_memory() -> int | None:
    """Returns the free bytes of all local devices together, None if they do not tell."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if all(found.get("bytes_limit") for found in stats):
        return sum(found["bytes_limit"] - found.get("bytes_in_use", 0) for found in stats)
    if jax.default_backend() != "cpu":
        return None
    told = [x for x in (_available(), _left_to_group()) if x is not None]
    return min(told, default=None)


def _available() -> int | None:
    """Returns what the machine has left for a process, and where it does not tell, all it has."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _left_to_group() -> int | None:
    """Returns what is left to a container, whose processes are killed beyond it."""
    for names in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
            limit, usage, stat = ((_GROUP / name).read_text() for name in names)
            # What was read from files stays until somebody needs the room.
            cached = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
            return int(limit) - int(usage) + (int(cached[1]) if cached else 0)
    return None
