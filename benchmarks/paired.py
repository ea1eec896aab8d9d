"""Players that begin from the same starts or seeds: the best setting of each, and differences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def bootstrap_mean(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the mean of `[S]` values and its 95% interval, from 10,000 bootstrap samples."""
    values = np.asarray(values)
    if not len(values):
        return 0.0, 0.0, 0.0
    drawn = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def difference(
    row: Mapping[str, Any], other: Mapping[str, Any], name: str
) -> tuple[float, float, float]:
    """Returns by how much the values of one row are above those of another, with the interval."""
    return bootstrap_mean(np.asarray(row[name]) - np.asarray(other[name]))


def beside(
    row: Mapping[str, Any], others: Sequence[Mapping[str, Any] | None], name: str, digits: int
) -> list[str | None]:
    """Returns two cells for each rival: the difference and its interval.

    Args:
      row: of a player, with its values under `name`.
      others: rows of rivals; None, or the row itself, leaves the cells empty.
      name: of the values.
      digits: behind the point.
    """
    cells: list[str | None] = []
    for other in others:
        if other is None or other is row:
            cells += [None, None]
            continue
        mean, low, high = (f"{x:+.{digits}f}" for x in difference(row, other, name))
        cells += [mean, f"{low} to {high}"]
    return cells


def tuned(rows: Sequence[Mapping[str, Any]], name: str, **key: Any) -> int:
    """Returns the number of the best of the settings that a player tried.

    Args:
      rows: all rows; those of trials have the `part` "tune".
      name: of their values.
      **key: the fields that tell the trials of one player from the others.
    """
    key["part"] = "tune"
    tried = [row for row in rows if all(row[field] == value for field, value in key.items())]
    return max(tried, key=lambda row: np.mean(row[name]))["number"]
