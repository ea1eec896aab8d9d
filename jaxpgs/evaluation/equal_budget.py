"""Equal time and equal evaluations, as measured in games.

How much a search spends depends on the positions that it meets, on the batch and on what else the
machine does. So it is measured in games of two players: what counts is the ratio of the two within
a match.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpgs.base import Env
from jaxpgs.evaluation.matches import play_match
from jaxpgs.evaluation.players.player import Player, compile_player
from jaxpgs.evaluation.records import MatchResult, PlayerRecord

TOLERANCE = 1.05  # the most by which two players may differ
_AIM = 1.02  # calibration is closer, lest noise pushes a player out
_TRIALS = 10
_FEW_CALLS = 16  # openings for calibration where batches are smaller; else one batch
_FLATTEST = 0.2  # slope that two measurements on one side may have
_LONGEST = math.log(5.0)  # step, in the logarithm of the simulations


def spent(record: PlayerRecord, equal: str) -> float:
    """Returns what a player spent in a match: seconds a call or network evaluations a move.

    Args:
      record: of the match.
      equal: "time" or "evaluations".

    Returns:
      The figure, above 0.

    Raises:
      ValueError: if the player made no move or reports no evaluations.
    """
    total = record.seconds if equal == "time" else record.stats.get("num_evaluations", 0.0)
    count = record.calls if equal == "time" else record.moves
    if not (total > 0 and count > 0):
        what = "calls" if equal == "time" else "moves"
        raise ValueError(
            f"{record.name} reports {total} for {count} {what}: no {equal} to compare."
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
    """Finds the simulations with which a player spends what the standard spends, in games.

    Args:
      env: the environment.
      make: builds the player with a number of simulations.
      standard: whom it plays and is compared with.
      rng_key: of the games.
      equal: "evaluations" or "time".
      openings: `[O]` or `[O, L]`, those of the tournament.
      batch_size: games searched at once.
      start: simulations to begin with.
      max_moves: as in `play_match`.
      trials: ratios of an earlier call that was stopped, by simulations, to go on from.
      on_trial: called after every trial with its simulations and its ratio, which another call
        may be given in `trials`.

    Returns:
      The simulations whose ratio came closest to 1, and that ratio.
    """
    compiled = compile_player(env, standard, batch_size)
    # Whole batches: enough for about 16 openings, or one alone where a batch has more.
    openings = openings[: batch_size * max(_FEW_CALLS // batch_size, 1)]
    ratios = dict(trials or {})
    count = propose(ratios) if ratios else start
    # It ends near a ratio of 1, or where the count that looks best was tried already.
    while count not in ratios and len(ratios) < _TRIALS and not any(map(_is_near, ratios.values())):
        player = compile_player(env, make(count), batch_size)
        # All trials have the same key and openings, so that they differ by the simulations alone.
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
    """Proposes simulations that should spend as much as the standard.

    The logarithm of what is spent is taken as a line in that of the simulations: between two
    counts of which one spends less and one more, else through the two that come closest, and from
    one count with a slope of 1.

    Args:
      ratios: what was spent over what the standard spent, by simulations.

    Returns:
      A number of simulations, at least 1.
    """
    # The largest count that spends too little, and the smallest beyond it that spends too much.
    below = max((n for n, r in ratios.items() if r < 1), default=None)
    above = min((n for n, r in ratios.items() if r >= 1 and (below is None or n > below)),
                default=None)  # fmt: skip
    if below is None or above is None:
        # All are on one side: the line goes through the two closest, or a slope of 1 is assumed.
        closest, *others = sorted(ratios, key=lambda n: abs(math.log(ratios[n])))[:2]
        slope = 1.0
        for other in others:
            slope = math.log(ratios[closest] / ratios[other]) / math.log(closest / other)
        # Proportion, a slope of 1, goes too near: a search with a cache meets more states again,
        # and a part of the time does not depend on the simulations. A flatter line is noise.
        step = math.log(ratios[closest]) / (slope if _FLATTEST < slope < 1.0 else 1.0)
        guess = round(closest * math.exp(-min(max(step, -_LONGEST), _LONGEST)))
        # Where rounding gives the same count again, one simulation more or less is tried.
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
