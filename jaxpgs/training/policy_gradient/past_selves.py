"""A learner's opponents in self-play: its former versions, a frozen pool, random players.

Delta-uniform self-play as in Brosseit 2023, section 5.2: the opponent is drawn uniformly from the
most recent fraction delta of the versions of the learner's parameters, including the newest one.
With delta = 0 only the newest version is used (naive self-play), and with delta = 1 the whole
history. (In Bansal et al. 2018 delta is the fraction that is left out.)
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs import trees
from jaxpgs.base import Params
from jaxpgs.checks import check_number, check_word
from jaxpgs.evaluation import EloTable, bayes_elo

SCHEDULES = ("in_turn", "random")
POOL, RANDOM = -1, -2  # ages of opponents that are not versions of the learner


class History(NamedTuple):
    """The last H snapshots of the learner's parameters, in a ring.

    Attributes:
      params: the snapshots, each leaf `[H, ...]`.
      iteration: `[H]` int32, the number of iterations after which each was taken.
      taken: `[]` int32, how many were taken in total; number n is at place n modulo H.
    """

    params: Params
    iteration: chex.Array
    taken: chex.Array


class Opponents(NamedTuple):
    """C opponents.

    Attributes:
      params: their parameters, each leaf `[C, ...]`.
      sharpness: `[C]` the factor of their logits: 1, or 0 for uniformly random play.
      age: `[C]` int32, how many versions before the newest: 0 is the newest; `POOL` and `RANDOM`
        are not versions of the learner.
    """

    params: Params
    sharpness: chex.Array
    age: chex.Array


def init(params: Params, size: int) -> History:
    """Makes an empty history with room for H snapshots of parameters like these."""
    return History(
        params=jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), params),
        iteration=jnp.zeros(size, jnp.int32),
        taken=jnp.int32(0),
    )


def add(history: History, params: Params, iteration: chex.Array) -> History:
    """Adds a snapshot; it replaces the oldest one if there is no room.

    Args:
      history: the history.
      params: the parameters.
      iteration: `[]` int32, the iterations done when the snapshot is taken.

    Returns:
      The history with the snapshot.
    """
    place = history.taken % len(history.iteration)
    return History(
        params=jax.tree.map(lambda kept, x: kept.at[place].set(x), history.params, params),
        iteration=history.iteration.at[place].set(iteration),
        taken=history.taken + 1,
    )


def window(history: History, delta: float) -> chex.Array:
    """Returns the number of versions to draw from, `[]` int32: a share delta, at least 1."""
    # The ring holds fewer than H until it is full.
    known = jnp.minimum(history.taken, len(history.iteration))
    # A product that exceeds a whole number only by a rounding error must not be rounded up.
    share = jnp.ceil(delta * known.astype(jnp.float32) - 1e-4).astype(jnp.int32)
    return jnp.maximum(share, 1)


def draw(
    history: History,
    newest: Params,
    rng_key: chex.PRNGKey,
    num_opponents: int,
    *,
    delta: float = 1.0,
    schedule: str = "in_turn",
    pool: Params | None = None,
    pool_fraction: float = 0.0,
    random_fraction: float = 0.0,
) -> Opponents:
    """Draws opponents (Brosseit 2023, sections 5.2 and 5.4).

    Args:
      history: the learner's history, of at least one snapshot. The last snapshot represents the
        newest version, whose parameters may have changed since.
      newest: the learner's parameters now.
      rng_key: a key, consumed.
      num_opponents: C.
      delta: the share of the history to draw from, its most recent part, 0 to 1.
      schedule: "random" draws each opponent independently. "in_turn" uses every version equally
        often, up to a random difference of one: what matters to the learner is how often it meets
        each version, as the thesis remarks on its own schedule. The marginal distribution of each
        opponent is the same for both.
      pool: frozen parameters of further opponents, each leaf `[N, ...]`.
      pool_fraction: the share of the opponents that are drawn uniformly from the pool.
      random_fraction: the share that plays uniformly at random.

    Returns:
      The opponents; those of one kind are adjacent if they are drawn in turn.
    """
    # One point in [0, 1) determines an opponent: below `random_fraction` it plays at random, up to
    # `others` it is from the pool, and above that it is a version of the learner, the newest first.
    point = jax.random.uniform(rng_key, (num_opponents,))
    # Systematic sampling: evenly spaced points with one common offset.
    if schedule == "in_turn":
        point = (jnp.arange(num_opponents, dtype=jnp.float32) + point[0]) / num_opponents
    point = jnp.minimum(point, 0.999999)  # rounding may have given 1

    def choose(first: float, share: float, count: chex.Array | int) -> chex.Array:
        """Turns points of an interval of that length into numbers below `count`."""
        number = jnp.floor((point - first) / jnp.maximum(share, 1e-9) * jnp.float32(count)).astype(
            jnp.int32
        )
        return jnp.clip(number, 0, count - 1)

    others = random_fraction + pool_fraction
    age = choose(others, 1.0 - others, window(history, delta))
    # Snapshot number n is at place n modulo H of the ring; the last one has number taken - 1.
    params = jax.tree.map(lambda x: x[(history.taken - 1 - age) % len(x)], history.params)
    # The newest version is the learner with its current parameters, not those of its snapshot.
    same = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_opponents, *x.shape)), newest)
    params = trees.where(age == 0, same, params)
    if pool is not None:
        size = len(jax.tree.leaves(pool)[0])
        chosen = choose(random_fraction, pool_fraction, size)
        # For opponents from the pool the ages and parameters of versions are overwritten.
        in_pool = (point >= random_fraction) & (point < others)
        params = trees.where(in_pool, jax.tree.map(lambda x: x[chosen], pool), params)
        age = jnp.where(in_pool, POOL, age)
    is_random = point < random_fraction
    return Opponents(
        params=params,
        sharpness=jnp.where(is_random, 0.0, 1.0),
        age=jnp.where(is_random, RANDOM, age),
    )


def check(
    delta: float,
    schedule: str,
    pool: Sequence[Params],
    pool_fraction: float,
    random_fraction: float,
) -> None:
    """Raises `ValueError` if these arguments of `draw` are out of range or inconsistent."""
    check_number("train", "delta", delta, 0, 1)
    check_number("train", "pool_fraction", pool_fraction, 0, 1)
    check_number("train", "random_fraction", random_fraction, 0, 1)
    check_word("train", "schedule", schedule, SCHEDULES)
    if pool_fraction + random_fraction > 1:
        raise ValueError(
            "The sum of pool_fraction and random_fraction must be at most 1, got "
            f"{pool_fraction} and {random_fraction}."
        )
    if bool(pool) != bool(pool_fraction):
        raise ValueError(
            "pool and a pool_fraction above 0 must be given together; got "
            f"{len(pool)} parameters and {pool_fraction}."
        )


class EloAlong(NamedTuple):
    """Ratings along a history.

    Attributes:
      iteration: `[P]` int64, the iterations after which each version was taken, in order.
      table: their ratings, relative to the first version, which has 0.
      scores: `[P, P]` the share of the points that the row's version won against the column's.
    """

    iteration: np.ndarray
    table: EloTable
    scores: np.ndarray


def elo_along(
    history: History,
    newest: Params,
    iteration: int,
    compare: Callable[[Params, Params], Any],
    num_games: int,
    *,
    num_players: int = 8,
) -> EloAlong:
    """Rates evenly spaced versions of a history by a round robin (Brosseit 2023, figure 5.4).

    Deviation: ratings are maximum likelihood estimates over all pairs. The thesis updates ratings
    game by game with k = 30, which depends on the order of the games. The interval assumes that
    games are independent.

    Args:
      history: the learner's history.
      newest: the learner's parameters now.
      iteration: the iterations done so far.
      compare: `(params, params) -> []`, the first side's share of the points, such as a jitted
        `head_to_head`.
      num_games: games in each comparison.
      num_players: the maximum number of versions to rate, at least 2. They include the oldest in
        the ring and the newest.

    Returns:
      The ratings.

    Raises:
      ValueError: if `num_players` is below 2, or the history has no version but the newest.
    """
    if num_players < 2:
        raise ValueError(f"elo_along needs num_players to be at least 2, got {num_players}.")
    taken, size = int(history.taken), len(history.iteration)
    # From the oldest snapshot in the ring to the last one; the newest version is added below.
    places = [n % size for n in range(max(taken - size, 0), taken)]
    when = np.asarray(history.iteration)
    places = [place for place in places if when[place] < iteration]
    if not places:
        raise ValueError("elo_along needs an older version than the newest, and there is none.")
    # Evenly spaced; the number after the last place represents the newest version.
    chosen = np.linspace(0, len(places), min(num_players, len(places) + 1)).round().astype(int)
    players = [jax.tree.map(lambda x, i=i: x[places[i]], history.params) for i in chosen[:-1]]
    players.append(newest)
    # Each pair plays once, as `compare` plays both colours. A version's score against itself is set
    # to a half, without a game.
    scores = np.full((len(players), len(players)), 0.5)
    for i in range(len(players)):
        for j in range(i):
            scores[i, j] = float(compare(players[i], players[j]))
            scores[j, i] = 1 - scores[i, j]
    wins = num_games * np.where(np.eye(len(players), dtype=bool), 0.0, scores)
    versions = [int(when[places[i]]) for i in chosen[:-1]]
    return EloAlong(np.array([*versions, iteration]), bayes_elo(wins), scores)
