"""Checks of what networks are given."""

import chex


def check_sizes(owner: str, **sizes: int) -> None:
    """Raises `ValueError` unless every named size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{owner} needs {name} >= 1, got {size}.")


def check_observation(observation: chex.Array, shape: tuple[int, ...]) -> None:
    """Raises `ValueError` unless `observation` is a batch of arrays of this shape."""
    if observation.ndim == 0 or observation.shape[1:] != shape:
        raise ValueError(
            f"The observation must have shape (B, {', '.join(map(str, shape))}), "
            f"got {observation.shape}."
        )
