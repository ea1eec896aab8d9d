"""Elo ratings by maximum likelihood, with confidence intervals.

The model is Bradley and Terry's on the usual scale: a player rated `d` points higher scores
`1 / (1 + 10 ** (-d / 400))`. A few virtual draws, as in Coulom's BayesElo, keep ratings finite
if one side won every game. Intervals come from the Fisher information, which assumes independent
games. Games of one opening are not independent; `elo_by_opening` and `bayes_elo_by_opening` take
this into account.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

SCALE = 400.0 / math.log(10.0)  # Elo points in one natural logit
Z_95 = 1.959963984540054  # 97.5th percentile of the standard normal distribution
_MAX_ITERATIONS = 500


class EloDifference(NamedTuple):
    """A rating difference in Elo points.

    Attributes:
      elo: the estimate, positive if the first player is the stronger one.
      half_width: the 95% interval is `elo` plus or minus this.

    Example:
      >>> jaxpgs.evaluation.elo_difference(wins=50, games=100).elo
      0.0
    """

    elo: float
    half_width: float


@dataclasses.dataclass(frozen=True)
class EloTable:
    """Ratings of P players in Elo points.

    Attributes:
      ratings: `[P]` float64, 0 for the anchor.
      half_widths: `[P]` float64; the 95% interval of a player's difference to the anchor is its
        rating plus or minus this, and 0 for the anchor itself.
      covariance: `[P, P]` float64 of the ratings, zero in the anchor's row and column.

    Example:
      >>> table = jaxpgs.evaluation.bayes_elo(np.array([[0, 7], [3, 0]]))
      >>> table.half_widths.round()
      array([  0., 209.])
    """

    ratings: np.ndarray
    half_widths: np.ndarray
    covariance: np.ndarray

    def difference(self, i: int, j: int) -> EloDifference:
        """Returns how far player `i` is rated above player `j`, with its 95% half-width.

        Overlapping intervals to the anchor do not tell whether two players differ; this does.
        """
        c = self.covariance
        # Rounding may make it negative if the two ratings are strongly correlated.
        variance = max(0.0, float(c[i, i] + c[j, j] - 2.0 * c[i, j]))
        return EloDifference(float(self.ratings[i] - self.ratings[j]), Z_95 * math.sqrt(variance))


def bayes_elo(wins: np.ndarray, *, anchor: int = 0, prior: float = 2.0) -> EloTable:
    """Rates players from a table of wins by maximum likelihood.

    Args:
      wins: `[P, P]` non-negative numbers; `wins[i, j]` is how often `i` beat `j`, and a draw
        counts half for each side. The diagonal is zero. Not every pair has to have played.
      anchor: the player whose rating is fixed at 0.
      prior: virtual games added to each pair that played, half of them won by either side. 0 gives
        plain maximum likelihood.

    Returns:
      Ratings, 95% intervals and covariance.

    Raises:
      ValueError: if `wins` is not square, has fewer than 2 players, negative or non-finite entries
        or a non-zero diagonal; if `anchor` or `prior` is out of range; or if some ratings cannot be
        compared (players who never met, directly or through others) or would be infinite (with
        `prior=0`, a group that never lost a game to the rest). The message names the groups.
      RuntimeError: if Newton's method does not converge.

    Example:
      >>> wins = np.array([[0, 7, 9], [3, 0, 6], [1, 4, 0]])
      >>> jaxpgs.evaluation.bayes_elo(wins, anchor=2).ratings.round()
      array([236.,  86.,   0.])
    """
    wins = np.asarray(wins, np.float64)
    if wins.ndim != 2 or wins.shape[0] != wins.shape[1]:
        raise ValueError(f"wins must be a square table [P, P], got shape {wins.shape}.")
    num_players = wins.shape[0]
    if num_players < 2:
        raise ValueError(f"Ratings need at least 2 players, got {num_players}.")
    if not np.isfinite(wins).all() or (wins < 0).any():
        raise ValueError("wins must hold finite, non-negative numbers.")
    if np.diagonal(wins).any():
        raise ValueError("wins must be zero on its diagonal: nobody beats themselves.")
    if not 0 <= anchor < num_players:
        raise ValueError(f"anchor must be from 0 to {num_players - 1}, got {anchor}.")
    if not (math.isfinite(prior) and prior >= 0):
        raise ValueError(f"prior must be finite and at least 0, got {prior}.")

    # Only pairs that played get virtual games, so that others stay incomparable.
    wins = wins + 0.5 * prior * (wins + wins.T > 0)
    # The likelihood has a maximum only if wins lead from every player to every other (Ford 1957).
    groups = _components(wins > 0)
    if len(groups) > 1:
        raise ValueError(
            f"Ratings are not determined: players fall into the groups {groups}, between "
            "which there are no games, or one group won all of them. Add games between them"
            + (", or use prior > 0." if prior == 0 else ".")
        )

    # Only differences of ratings matter, so the full information matrix is singular. The anchor's
    # row and column are excluded, and stay zero in the covariance.
    free = np.arange(num_players) != anchor
    logits = _maximise(wins, free)
    covariance = np.zeros_like(wins)
    information = _information(wins, logits)[np.ix_(free, free)]
    covariance[np.ix_(free, free)] = np.linalg.inv(information) * SCALE**2
    deviations = np.sqrt(np.diagonal(covariance))
    return EloTable(logits * SCALE, Z_95 * deviations, covariance)


def elo_difference(wins: float, games: float, *, prior: float = 2.0) -> EloDifference:
    """Turns one pairing's score into an Elo difference with a 95% interval.

    It is the same as `bayes_elo` on the table of these two players; the prior keeps it finite if
    one side won every game.

    Args:
      wins: games won by the first player, draws as half.
      games: games played.
      prior: virtual games, half of them won by either side.

    Returns:
      The first player's rating above the second's, and the half-width of its interval.

    Raises:
      ValueError: if there are no games, `wins` is not from 0 to `games`, or `prior` is 0 and one
        side won every game.

    Example:
      >>> elo, half_width = jaxpgs.evaluation.elo_difference(wins=70, games=100)
      >>> round(elo), round(half_width)
      (144, 73)
    """
    if not (games > 0 and 0 <= wins <= games):
        raise ValueError(f"wins must be from 0 to games and games positive, got {wins} of {games}.")
    table = bayes_elo(np.array([[0.0, wins], [games - wins, 0.0]]), anchor=1, prior=prior)
    return table.difference(0, 1)


def _expected(logits: np.ndarray) -> np.ndarray:
    """Returns the expected scores `[P, P]` of each player against each other."""
    # The logistic function, in a form that does not overflow for large differences.
    return np.exp(-np.logaddexp(0.0, logits[None, :] - logits[:, None]))


def _log_likelihood(wins: np.ndarray, logits: np.ndarray) -> float:
    return -float((wins * np.logaddexp(0.0, logits[None, :] - logits[:, None])).sum())


def _information(wins: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The Fisher information `[P, P]` of the logits: a graph Laplacian, weighted by variance."""
    expected = _expected(logits)
    weights = (wins + wins.T) * expected * expected.T
    return np.diag(weights.sum(1)) - weights


def _maximise(wins: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Maximises the concave log-likelihood by Newton's method, halving steps that decrease it."""
    logits = np.zeros(len(wins))
    current = _log_likelihood(wins, logits)
    for _ in range(_MAX_ITERATIONS):
        expected = _expected(logits)
        gradient = (wins * expected.T - wins.T * expected).sum(1)  # no difference of near equals
        step = np.zeros_like(logits)
        information = _information(wins, logits)[np.ix_(free, free)]
        step[free] = np.linalg.solve(information, gradient[free])
        if np.abs(step).max() < 1e-10:
            return logits + step
        # Far out the curvature vanishes and a full step overshoots.
        for _ in range(60):
            proposed = _log_likelihood(wins, logits + step)
            # Near the maximum even a good step may seem to decrease it by a rounding error.
            if proposed >= current - 1e-12 * abs(current):
                break
            step *= 0.5
        logits, current = logits + step, proposed
    raise RuntimeError(f"Ratings did not converge in {_MAX_ITERATIONS} Newton steps.")


def _components(beats: np.ndarray) -> list[list[int]]:
    """Groups of players who can reach each other along wins (strongly connected components)."""
    reach = beats | np.eye(len(beats), dtype=bool)
    for k in range(len(beats)):
        # Warshall: from here on, paths may lead through the players 0 to k.
        reach |= reach[:, k : k + 1] & reach[k]
    # Players who reach each other have equal rows.
    groups = np.unique(reach & reach.T, axis=0)
    return sorted(np.flatnonzero(group).tolist() for group in groups)
