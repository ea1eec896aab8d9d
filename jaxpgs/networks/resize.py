"""Weights for another board size."""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Params
from jaxpgs.networks.functional import functional


def resize(params: Params, source: Any, target: Any) -> Params:
    """Transfers weights to a network of the same kind for another board size.

    Weights that do not depend on the board are unchanged. If an axis runs over the cells, the
    weights are resized like an image, edge to edge: on Hex, a pattern that joins two edges of the
    small board does so on the large one. Inputs that are summed over cells are scaled to keep their
    sum.

    Args:
      params: the weights of `source`.
      source: a network of this library for boards `[h, w, planes]`.
      target: a network of the same kind and size for another board, with as many planes.

    Returns:
      Weights for `target`.

    Raises:
      ValueError: if the networks differ in more than the board, or an action is not a cell.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1)
      >>> small, large = (
      ...     jaxpgs.networks.AlphaZeroResNet((n, n, 3), n * n, **sizes, rngs=nnx.Rngs(0))
      ...     for n in (3, 4)
      ... )
      >>> grown = jaxpgs.networks.resize(jaxpgs.networks.functional(small)[0], small, large)
    """
    own, _ = functional(target)
    if type(source) is not type(target):
        raise ValueError(
            f"resize needs two networks of the same class, got {type(source).__name__} and "
            f"{type(target).__name__}."
        )
    if not hasattr(source, "observation_shape"):
        raise ValueError(
            f"resize needs networks with an observation_shape; {type(source).__name__} has none."
        )
    boards = [tuple(network.observation_shape) for network in (source, target)]
    if boards[0][2:] != boards[1][2:]:
        raise ValueError(
            f"The observations must have the same number of planes, got {boards[0]}, {boards[1]}."
        )
    (small, large) = (shape[:2] for shape in boards)
    cells = small[0] * small[1], large[0] * large[1]
    if small != large and cells[0] == cells[1]:
        raise ValueError(
            "Different boards must have different numbers of cells, by which resize finds the axes "
            f"of cells; got {small} and {large}."
        )

    def carry(path: tuple, old: chex.Array, new: chex.Array) -> chex.Array:
        if old.shape == new.shape:
            return old
        x = jnp.asarray(old, jnp.float32)
        for axis, (size, wanted) in enumerate(zip(old.shape, new.shape, strict=True)):
            if size == wanted:
                continue
            # An axis over the cells may have several numbers a cell: [cells * parts], parts inside.
            parts = size // cells[0]
            if size != parts * cells[0] or wanted != parts * cells[1]:
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                raise ValueError(
                    f"Parameter {name!r} has shape {old.shape} for one network and {new.shape} for "
                    "the other, which the sizes of the boards do not explain."
                )
            before, after = x.shape[:axis], x.shape[axis + 1 :]
            x = x.reshape(*before, *small, parts, *after)
            # The board's axes are stretched, all others keep their lengths.
            x = jax.image.resize(x, (*before, *large, parts, *after), "linear")
            x = x.reshape(*before, wanted, *after)
            if axis < old.ndim - 1:  # the last axis of a kernel is its outputs
                x = x * (cells[0] / cells[1])
        return x.astype(new.dtype)

    paths = [[path for path, _ in jax.tree_util.tree_leaves_with_path(t)] for t in (params, own)]
    if paths[0] != paths[1]:
        raise ValueError("The networks must have the same layers; their sizes differ.")
    return jax.tree_util.tree_map_with_path(carry, params, own)
