"""How much memory arrays take."""

from typing import Any

import jax


def num_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a pytree; shapes suffice (`jax.eval_shape`)."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
