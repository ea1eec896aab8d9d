"""Games of SameGame in a given order of the blocks, many at once.

Every block has a time. The block with the smallest time that has a neighbour of its colour goes
first, with its group, until no group is left. The game that this gives has times of its own, those
at which its blocks went, and they give the same game again. So a game is a point in a space that a
local search can walk: whatever times are changed, the others keep their order as far as the rules
let them, and blocks fall and groups grow without disturbing what was planned for them.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.envs import bitboard
from jaxpgs.envs.samegame.game import SameGame, SameGameState
from jaxpgs.envs.samegame.sequences import cell_of, first_frame, of_column, once, ranks_of


class OrderedGames(NamedTuple):
    """B whole games of at most T moves, each in its lane.

    Attributes:
      score: `[B]` float32, the sum of the rewards.
      length: `[B]` int32, how many moves.
      times: `[A, B]` unsigned, when each block went: `2 t + 1` for those of move t, counted from 0,
        so that an even number says between which moves; `never(env)` for blocks that are left and
        for empty cells.
      action: `[T, B]` int32, the actions; -1 after the end.
    """

    score: chex.Array
    length: chex.Array
    times: chex.Array
    action: chex.Array


def never(env: SameGame) -> np.unsignedinteger:
    """Returns the time of blocks that are left, the largest of the narrowest type that will do."""
    # A game has at most half as many moves as cells, so even the time after all moves, twice their
    # number, lies below 255.
    dtype: type[np.unsignedinteger] = np.uint8 if env.num_actions <= 252 else np.uint16
    return dtype(np.iinfo(dtype).max)


def play_orders(env: SameGame, state: SameGameState, times: chex.Array) -> OrderedGames:
    """Plays games to their ends, each in an order of its own.

    Args:
      env: the game.
      state: B positions to start from.
      times: `[A, B]` unsigned, of `never(env)`'s type: for each cell when its block should go. Of
        equal times the leftmost, then highest block goes first.

    Returns:
      The games. A position without a group gives one of no moves and score 0.
    """
    planes = jnp.moveaxis(state.planes, 0, -1)
    batch, most = planes.shape[-1], max(env.num_actions // 2, 1)
    rows = times.reshape(env.height, env.width, batch)

    # `planes` is the fallen board, in which groups are found. `alive` and all else are in the frame
    # of the first board, where a block keeps its cell and so its time; see `sequences`.
    def find(planes: chex.Array, alive: chex.Array) -> chex.Array:
        return first_frame(bitboard.linked(*bitboard.links(planes)), alive)

    def body(carry: tuple) -> tuple:
        planes, alive, words, total, step, length, taken, action = carry
        word = planes.dtype.type
        # Choose the block that goes first; `once` keeps XLA from choosing anew for every column.
        soonest = once(functools.partial(_soonest, words, rows), step)
        column, bit = once(functools.partial(_choose, words, alive, rows, soonest), step)
        action = action.at[step].set(cell_of(env, column, bit))
        # Take its group away; lanes without one have a bit of 0 and lose nothing.
        here = jnp.arange(env.width, dtype=jnp.int32)[:, None] == column[None]
        group = bitboard.flood(jnp.where(here, bit[None], word(0)), *bitboard.links(planes))
        size = bitboard.count(group)
        total = total + jnp.where(size > 0, jnp.square(size - 2), 0)
        planes = bitboard.remove(planes, group)
        # What has gone is recorded on the first board, whatever fell since.
        left = alive & ~first_frame(group, alive)
        taken = taken.at[step].set(alive ^ left)
        length = length + (size > 0).astype(jnp.int32)
        return planes, left, find(planes, left), total, step + 1, length, taken, action

    alive = bitboard.occupied(planes)
    zeros = jnp.zeros(batch, jnp.int32)
    taken = jnp.zeros((most, env.width, batch), planes.dtype)
    action = jnp.full((most, batch), -1, jnp.int32)
    carry = (planes, alive, find(planes, alive), zeros, jnp.int32(0), zeros, taken, action)
    # Until no board of the batch has a group.
    carry = jax.lax.while_loop(lambda c: jnp.any(c[2] != 0), body, carry)
    planes, _, _, total, steps, length, taken, action = carry
    end = jnp.where(length > 0, env.end_reward(planes), 0.0)
    times = _times(env, taken, steps).reshape(env.num_actions, batch)
    return OrderedGames(total.astype(jnp.float32) + end, length, times, action)


def _soonest(words: chex.Array, times: chex.Array) -> chex.Array:
    """Returns the smallest time among the blocks of each column of `words`, `[W, B]`."""
    one, height = words.dtype.type(1), len(times)
    latest = times.dtype.type(np.iinfo(times.dtype).max)
    found = jnp.full(words.shape, latest)
    # Bit 0 is the bottom cell, and row 0 of the times the top.
    for h in range(height):
        found = jnp.minimum(
            found, jnp.where((words >> h) & one != 0, times[height - 1 - h], latest)
        )
    return found


def _choose(
    words: chex.Array, alive: chex.Array, times: chex.Array, soonest: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """Finds the block of `words` that goes first: its column and bit on the fallen board."""
    one, height, batch = words.dtype.type(1), len(times), words.shape[1]
    first = functools.reduce(jnp.minimum, list(soonest))
    column = jnp.full(batch, -1, jnp.int32)
    # From right to left, so that of equal times the leftmost stays. Columns without a block hold
    # the greatest time, and so do blocks that are to go last: only the latter count.
    for w in reversed(range(len(words))):
        column = jnp.where((soonest[w] == first) & (words[w] != 0), w, column)
    some, column = column >= 0, jnp.maximum(column, 0)

    word, left = of_column(words, column), of_column(alive, column)
    rank = of_column(ranks_of(alive), column)
    # [height, B]: the times of each lane's column, by one gather of flat numbers.
    lanes = column * batch + jnp.arange(batch, dtype=jnp.int32)
    of_rows = times.reshape(height, -1).at[:, lanes].get(mode="promise_in_bounds")
    bit = jnp.zeros_like(word)
    for h in range(height):
        is_first = ((word >> h) & one != 0) & (of_rows[height - 1 - h] == first)
        bit = jnp.where(is_first, words.dtype.type(1 << h), bit)
    # On the fallen board it lies as high as there are blocks below it.
    fallen = one << jax.lax.population_count(left & (bit - one))
    return rank.astype(jnp.int32), jnp.where(some & (bit > 0), fallen, words.dtype.type(0))


def _times(env: SameGame, taken: chex.Array, steps: chex.Array) -> chex.Array:
    """Returns when blocks went, `[H, W, B]`, from what each move has taken, `[T, W, B]`."""
    latest = never(env)

    # All lanes play their move t in round t, until they have none left, so rounds count the moves.
    def mark(step: chex.Array, times: chex.Array) -> chex.Array:
        gone = bitboard.unpack(taken[step], env.height)
        return jnp.where(gone, (2 * step + 1).astype(times.dtype), times)

    times = jnp.full((env.height, *taken.shape[1:]), latest)
    return jax.lax.fori_loop(0, steps, mark, times)
