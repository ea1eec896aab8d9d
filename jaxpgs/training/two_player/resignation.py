"""Resignation: a value threshold calibrated on games that are played to the end.

Anthony et al. 2019, section 5.1, after AlphaGo Zero: in a tenth of the games nobody may resign.
They show how often a player who later won would have resigned.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp


class Resignation(NamedTuple):
    """The last M games that were won with resignation disabled.

    Attributes:
      lowest: `[M]` the lowest value that each winner saw; infinity if there is no game yet.
      count: `[]` int32, games seen in total.
    """

    lowest: chex.Array
    count: chex.Array


def init(num_games: int = 1024) -> Resignation:
    """Makes an empty record of M games."""
    return Resignation(jnp.full(num_games, jnp.inf, jnp.float32), jnp.int32(0))


def add(record: Resignation, winner_lowest: chex.Array) -> Resignation:
    """Adds games to the record; they replace the oldest.

    Args:
      record: the record.
      winner_lowest: the winners' lowest values, of any shape; NaN if there is no game.

    Returns:
      The record with the games.
    """
    found = winner_lowest.reshape(-1)
    is_game = ~jnp.isnan(found)
    # Games are numbered consecutively, and the number determines the place in the ring.
    number = jnp.cumsum(is_game) - 1
    total, room = jnp.sum(is_game), len(record.lowest)
    # No slot is written twice, as the order of such writes would be undefined.
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
      false_positives: the largest allowed share of the record's games whose winner would have
        resigned.
      min_games: nobody resigns before this many games are known.
    """
    known = jnp.minimum(record.count, len(record.lowest))
    # Slots without a game hold infinity and sort after the others. At most `rank` of the known
    # winners saw a value below the one at that place, so only they would have resigned.
    rank = jnp.floor(false_positives * known.astype(jnp.float32)).astype(jnp.int32)
    value = jnp.sort(record.lowest)[rank]
    return jnp.where(known < min_games, -jnp.inf, value)
