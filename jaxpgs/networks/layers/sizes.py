"""Checks of the arguments of networks."""

from collections.abc import Sequence

import chex


def check_sizes(owner: str, **sizes: int) -> None:
    """Raises `ValueError` unless every named size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{owner} needs {name} >= 1, got {size}.")


def check_blocks(owner: str, num_blocks: int) -> None:
    """Raises `ValueError` if the number of blocks is negative; with 0 blocks there is one layer."""
    if num_blocks < 0:
        raise ValueError(f"{owner} needs num_blocks >= 0, got {num_blocks}.")


def check_board(owner: str, observation_shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape as a tuple; raises `ValueError` unless it is of a board with planes."""
    shape = tuple(observation_shape)
    if len(shape) != 3:
        raise ValueError(
            f"{owner} needs observations of shape (height, width, planes), got {shape}."
        )
    return shape


def check_observation(observation: chex.Array, shape: tuple[int, ...]) -> None:
    """Raises `ValueError` unless `observation` is a batch of arrays of this shape."""
    if observation.ndim == 0 or observation.shape[1:] != shape:
        raise ValueError(
            f"The observation must have shape (B, {', '.join(map(str, shape))}), "
            f"got {observation.shape}."
        )
