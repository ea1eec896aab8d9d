"""When to resign: a threshold calibrated on games that are played to the end.

Anthony et al. 2019, section 5.1, after AlphaGo Zero: in a tenth of the games nobody may resign;
they tell how often a player that went on to win would have resigned.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp


class Resignation(NamedTuple):
    """The last M games that were won without resignation allowed.

    Attributes:
      lowest: `[M]` the lowest value that each winner saw, infinity where there is no game yet.
      count: `[]` int32, games seen in all.
    """

    lowest: chex.Array
    count: chex.Array


def init(num_games: int = 1024) -> Resignation:
    """Makes an empty record of M games."""
    return Resignation(jnp.full(num_games, jnp.inf, jnp.float32), jnp.int32(0))


def add(record: Resignation, winner_lowest: chex.Array) -> Resignation:
    """Adds games to the record; the oldest go.

    Args:
      record: the record.
      winner_lowest: array of any shape, NaN where there is no game.

    Returns:
      The record with the games.
    """
    found = winner_lowest.reshape(-1)
    is_game = ~jnp.isnan(found)
    # Games are numbered one after another, and each goes to the ring's place of its number.
    number = jnp.cumsum(is_game) - 1
    total, room = jnp.sum(is_game), len(record.lowest)
    # No slot is written twice, whose order the device could choose.
    is_game &= number >= total - room
    slot = jnp.where(is_game, (record.count + number) % room, room)
    lowest = record.lowest.at[slot].set(found, mode="drop")
    return Resignation(lowest, record.count + total.astype(jnp.int32))


def threshold(
    record: Resignation, false_positives: float = 0.05, min_games: int = 100
) -> chex.Array:
    """Returns the value below which to resign, `[]`.

    Args:
      record: the record.
      false_positives: largest share of the record's games whose winner would have resigned.
      min_games: nobody resigns before so many games are known.
    """
    known = jnp.minimum(record.count, len(record.lowest))
    # Slots without a game hold infinity and sort behind the others. At most `rank` of the known
    # winners saw a value below the one at that place, and would have resigned.
    rank = jnp.floor(false_positives * known.astype(jnp.float32)).astype(jnp.int32)
    value = jnp.sort(record.lowest)[rank]
    return jnp.where(known < min_games, -jnp.inf, value)
