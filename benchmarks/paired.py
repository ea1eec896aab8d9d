"""Players that begin from the same starts or seeds: settings to try, and their differences."""

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


def draw_numbers(
    ranges: Mapping[str, tuple[float, float]], number: int, seed: int
) -> dict[str, float]:
    """Draws the numbers of a setting uniformly.

    Args:
      ranges: the least and the greatest by name. Names that begin with `log_`, but for `log_std`,
        are those of logarithms, and the exponential is returned under the rest of the name.
      number: of the setting.
      seed: the seed.
    """
    rng = np.random.default_rng([seed, number])
    drawn = {name: float(rng.uniform(*span)) for name, span in ranges.items()}
    logs = {name for name in drawn if name.startswith("log_") and name != "log_std"}
    return {
        name.removeprefix("log_") if name in logs else name: float(np.exp(x)) if name in logs else x
        for name, x in drawn.items()
    }


def tell_setting(row: Mapping[str, Any]) -> str:
    """Lists the numbers of a row's setting; `keep` is a choice by its sign."""
    return ", ".join(
        ("keeps" if value > 0 else "forgets") if name == "keep" else f"{name} {value:.2g}"
        for name, value in row["numbers"].items()
    )


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
