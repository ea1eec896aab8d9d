"""Equal time and equal evaluations, as measured in games.

The cost of a search depends on the positions, on the batch, and on other load of the machine. So it
is measured in games of two players, as the ratio of their costs within a match.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpgs.base import Env
from jaxpgs.evaluation.matches import play_match
from jaxpgs.evaluation.players.player import Player, compile_player
from jaxpgs.evaluation.records import MatchResult, PlayerRecord

TOLERANCE = 1.05  # the largest allowed ratio of two players' costs
_AIM = 1.02  # calibration is stricter, so that noise does not exceed the tolerance
_TRIALS = 10
_FEW_CALLS = 16  # openings for calibration if batches are smaller; otherwise one batch
_FLATTEST = 0.2  # slope that two measurements on one side may have
_LONGEST = math.log(5.0)  # step, in the logarithm of the simulations


def spent(record: PlayerRecord, equal: str) -> float:
    """Returns the cost of a player in a match: seconds per call or network evaluations per move.

    Args:
      record: the player's record in the match.
      equal: "time" or "evaluations".

    Returns:
      The cost, above 0.

    Raises:
      ValueError: if the player made no move or reports no evaluations.
    """
    total = record.seconds if equal == "time" else record.stats.get("num_evaluations", 0.0)
    count = record.calls if equal == "time" else record.moves
    if not (total > 0 and count > 0):
        what = "calls" if equal == "time" else "moves"
        raise ValueError(
            f"{record.name} reports {total} {equal} for {count} {what}, so it cannot be compared."
        )
    return total / count


def calibrate(
    env: Env,
    make: Callable[[int], Player],
    standard: Player,
    rng_key: Any,
    *,
    equal: str,
    openings: np.ndarray,
    batch_size: int,
    start: int,
    max_moves: int | None = None,
    trials: Mapping[int, float] | None = None,
    on_trial: Callable[[int, float], Any] | None = None,
) -> tuple[int, float]:
    """Finds the number of simulations with which a player has the same cost as the standard.

    Args:
      env: the environment.
      make: makes the player, given the number of simulations.
      standard: the player that it plays against and is compared with.
      rng_key: the key of the games.
      equal: "evaluations" or "time".
      openings: `[O]` or `[O, L]`, the openings of the tournament.
      batch_size: games searched at once.
      start: the number of simulations to begin with.
      max_moves: as in `play_match`.
      trials: ratios by simulations, from an earlier call that was interrupted.
      on_trial: called after every trial with its simulations and its ratio, which can be given to
        another call in `trials`.

    Returns:
      The number of simulations whose ratio came closest to 1, and this ratio.
    """
    compiled = compile_player(env, standard, batch_size)
    # Whole batches: enough for about 16 openings, or a single batch if it is larger.
    openings = openings[: batch_size * max(_FEW_CALLS // batch_size, 1)]
    ratios = dict(trials or {})
    count = propose(ratios) if ratios else start
    # It ends near a ratio of 1, or if the proposed count was tried already.
    while count not in ratios and len(ratios) < _TRIALS and not any(map(_is_near, ratios.values())):
        player = compile_player(env, make(count), batch_size)
        # All trials have the same key and openings, so they differ only by the simulations.
        result = play_match(
            env, player, compiled, rng_key, openings=openings, batch_size=batch_size,
            max_moves=max_moves,
        )  # fmt: skip
        mine, its = (spent(record, equal) for record in result.players)
        ratios[count] = mine / its
        if on_trial is not None:
            on_trial(count, ratios[count])
        count = propose(ratios)
    best = min(ratios, key=lambda n: abs(math.log(ratios[n])))
    return best, ratios[best]


def _is_near(ratio: float) -> bool:
    return abs(math.log(ratio)) <= math.log(_AIM)


def propose(ratios: Mapping[int, float]) -> int:
    """Proposes a number of simulations with the cost of the standard.

    The logarithm of the cost is modelled as linear in the logarithm of the simulations. The line
    goes through two counts of which one costs less and one more than the standard; otherwise
    through the two that come closest; with a single count its slope is 1.

    Args:
      ratios: the player's cost divided by the standard's, by simulations.

    Returns:
      A number of simulations, at least 1.
    """
    # The largest count that costs too little, and the smallest count above it that costs too much.
    below = max((n for n, r in ratios.items() if r < 1), default=None)
    above = min((n for n, r in ratios.items() if r >= 1 and (below is None or n > below)),
                default=None)  # fmt: skip
    if below is None or above is None:
        # All are on one side: the line goes through the two closest, or a slope of 1 is assumed.
        closest, *others = sorted(ratios, key=lambda n: abs(math.log(ratios[n])))[:2]
        slope = 1.0
        for other in others:
            slope = math.log(ratios[closest] / ratios[other]) / math.log(closest / other)
        # A slope of 1 gives too small a step: with more simulations a search with a cache meets
        # more known states, and a part of the time is constant. Very flat lines are noise.
        step = math.log(ratios[closest]) / (slope if _FLATTEST < slope < 1.0 else 1.0)
        guess = round(closest * math.exp(-min(max(step, -_LONGEST), _LONGEST)))
        # If rounding gives the same count again, one simulation more or less is tried.
        return max(1, guess + (guess == closest) * (1 if ratios[closest] < 1 else -1))
    # Interpolation in the logarithms, to a count strictly in between unless they are neighbours.
    low, high = math.log(ratios[below]), math.log(ratios[above])
    share = -low / (high - low)
    guess = round(math.exp((1 - share) * math.log(below) + share * math.log(above)))
    return min(max(guess, below + 1), max(above - 1, below + 1)) if above - below > 1 else below


def relative(results: Sequence[MatchResult], names: Sequence[str], equal: str) -> dict[str, float]:
    """Compares what players spent, from the ratios within their matches (least squares of logs).

    Args:
      results: matches that connect all names.
      names: the players to compare; the first is the standard.
      equal: "evaluations" or "time".

    Returns:
      For each name what it spent over what the standard spent.
    """
    matches = [r for r in results if set(r.names) <= set(names)]
    design = np.zeros((len(matches) + 1, len(names)))
    logs = np.zeros(len(matches) + 1)
    # One equation a match: the difference of the players' logarithms is what was measured.
    for row, result in enumerate(matches):
        first, second = (names.index(name) for name in result.names)
        design[row, first], design[row, second] = 1.0, -1.0
        logs[row] = math.log(spent(result.players[0], equal) / spent(result.players[1], equal))
    # Differences alone leave a constant open: the last equation sets the standard's logarithm to 0.
    design[-1, 0] = 1.0
    found = np.linalg.lstsq(design, logs, rcond=None)[0]
    return {name: float(math.exp(x)) for name, x in zip(names, found, strict=True)}
