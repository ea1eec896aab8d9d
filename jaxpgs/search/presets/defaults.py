"""What the presets share where a knob is not given."""

import functools
import math

from jaxpgs.base import Adapt, RecurrentFn, SplitRecurrentFn
from jaxpgs.search.parts.estimator import Estimator, reinforce
from jaxpgs.search.parts.improvement import qtransform_completed_by_mix_value
from jaxpgs.search.parts.selection import Selection, puct

# For values from -1 to 1. Rescaled without a least range, returns that are all about the same would
# outweigh a good prior (`strength_sweep-range_conv-7x7_16.json`).
QTRANSFORM = functools.partial(qtransform_completed_by_mix_value, min_range=1 / 3)


def default_simulations_per_update(num_simulations: int) -> int:
    """Returns the presets' K for so many simulations: N / 16 rounded, from 1 to 8.

    Example:
      >>> [jaxpgs.search.default_simulations_per_update(n) for n in (8, 32, 64, 1000)]
      [1, 2, 4, 8]
    """
    return min(max(1, round(num_simulations / 16)), 8)


def default_num_considered(num_simulations: int) -> int:
    """Returns how many actions Gumbel PGS considers at the root.

    N / 4 rounded, from 2 to 8, and with more than 64 simulations the root of N, up to 16.

    Example:
      >>> [jaxpgs.search.default_num_considered(n) for n in (4, 16, 64, 256)]
      [2, 4, 8, 16]
    """
    return min(max(2, round(num_simulations / 4)), max(8, math.isqrt(num_simulations)), 16)


def default_estimator() -> Estimator:
    """Returns how policy gradient search learns: REINFORCE with the states' values as baseline."""
    return reinforce("value")


def default_bandit() -> Selection:
    """Returns the presets' bandit; pending simulations count as lost."""
    return puct(1.5, virtual_loss=1.0)


def default_mode(recurrent_fn: RecurrentFn, adapt: Adapt) -> str:
    """Returns "cached" where nodes can be kept: nothing adapts, or the model has two parts."""
    splits = adapt is None or isinstance(recurrent_fn, SplitRecurrentFn)
    return "cached" if splits else "constant"
