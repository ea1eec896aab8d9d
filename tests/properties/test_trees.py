"""Choosing between pytrees."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpgs import trees


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_where_chooses_entry_by_entry_of_the_leading_axes(axes):
    shape = (2, 3)[:axes]
    condition = np.arange(int(np.prod(shape))).reshape(shape) % 2 == 0
    new = {"a": jnp.ones((2, 3), jnp.int32), "b": (jnp.ones((2, 3, 4)), None)}
    old = {"a": jnp.zeros((2, 3), jnp.int32), "b": (jnp.zeros((2, 3, 4)), None)}
    found = trees.where(jnp.array(condition), new, old)
    by_cell = np.broadcast_to(condition.reshape(shape + (1,) * (2 - axes)), (2, 3))
    expected = {
        "a": by_cell.astype(np.int32),
        "b": (np.broadcast_to(by_cell[..., None], (2, 3, 4)).astype(np.float32), None),
    }
    chex.assert_trees_all_equal(found, expected)
