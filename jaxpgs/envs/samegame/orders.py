"""Plays many games of SameGame at once, each with a given order of the blocks.

Every block has a time. Among the blocks with a neighbour of their colour, the one with the smallest
time is removed first, with its group, until no group is left. The resulting game has its own times:
those at which its blocks were removed. These times give the same game again. So a game is a point
in a space for local search: if some times change, the other blocks keep their order as far as the
rules allow. Blocks fall and groups grow without affecting the times of the blocks.
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
    """B whole games of at most T moves, each in its own lane of the batch.

    Attributes:
      score: `[B]` float32, the sum of the rewards.
      length: `[B]` int32, the number of moves.
      times: `[A, B]` unsigned, when each block was removed: `2 t + 1` for move t, counted from 0,
        so that even numbers are times between moves; `never(env)` for blocks that are left and for
        empty cells.
      action: `[T, B]` int32, the actions; -1 after the end.
    """

    score: chex.Array
    length: chex.Array
    times: chex.Array
    action: chex.Array


def never(env: SameGame) -> np.unsignedinteger:
    """Returns the time of blocks that are left, the maximum of the narrowest sufficient type."""
    # A game has at most half as many moves as cells, so even the time after all moves, twice their
    # number, is below 255 for uint8.
    dtype: type[np.unsignedinteger] = np.uint8 if env.num_actions <= 252 else np.uint16
    return dtype(np.iinfo(dtype).max)


def play_orders(env: SameGame, state: SameGameState, times: chex.Array) -> OrderedGames:
    """Plays games to their ends, each in its own order.

    Args:
      env: the game.
      state: B positions to start from.
      times: `[A, B]` unsigned, of `never(env)`'s type: when each cell's block should be removed.
        Among equal times the leftmost, then highest block is first.

    Returns:
      The games. A position without a group gives a game without moves, with score 0.
    """
    planes = jnp.moveaxis(state.planes, 0, -1)
    batch, most = planes.shape[-1], max(env.num_actions // 2, 1)
    rows = times.reshape(env.height, env.width, batch)

    # `planes` is the fallen board, in which groups are found. `alive` and everything else use the
    # cells of the first board, where a block keeps its cell and so its time; see `sequences`.
    def find(planes: chex.Array, alive: chex.Array) -> chex.Array:
        return first_frame(bitboard.linked(*bitboard.links(planes)), alive)

    def body(carry: tuple) -> tuple:
        planes, alive, words, total, step, length, taken, action = carry
        word = planes.dtype.type
        # Choose the next block; `once` keeps XLA from repeating the choice for every column.
        soonest = once(functools.partial(_soonest, words, rows), step)
        column, bit = once(functools.partial(_choose, words, alive, rows, soonest), step)
        action = action.at[step].set(cell_of(env, column, bit))
        # Remove its group; lanes without a group have a bit of 0 and remove nothing.
        here = jnp.arange(env.width, dtype=jnp.int32)[:, None] == column[None]
        group = bitboard.flood(jnp.where(here, bit[None], word(0)), *bitboard.links(planes))
        size = bitboard.count(group)
        total = total + jnp.where(size > 0, jnp.square(size - 2), 0)
        planes = bitboard.remove(planes, group)
        # Removed blocks are recorded by their cells on the first board.
        left = alive & ~first_frame(group, alive)
        taken = taken.at[step].set(alive ^ left)
        length = length + (size > 0).astype(jnp.int32)
        return planes, left, find(planes, left), total, step + 1, length, taken, action

    alive = bitboard.occupied(planes)
    zeros = jnp.zeros(batch, jnp.int32)
    taken = jnp.zeros((most, env.width, batch), planes.dtype)
    action = jnp.full((most, batch), -1, jnp.int32)
    carry = (planes, alive, find(planes, alive), zeros, jnp.int32(0), zeros, taken, action)
    # Runs until no board of the batch has a group.
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
    # Bit 0 is the bottom cell, while row 0 of the times is the top.
    for h in range(height):
        found = jnp.minimum(
            found, jnp.where((words >> h) & one != 0, times[height - 1 - h], latest)
        )
    return found


def _choose(
    words: chex.Array, alive: chex.Array, times: chex.Array, soonest: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """Finds the block of `words` to remove first: its column and bit on the fallen board."""
    one, height, batch = words.dtype.type(1), len(times), words.shape[1]
    first = functools.reduce(jnp.minimum, list(soonest))
    column = jnp.full(batch, -1, jnp.int32)
    # From right to left, so that the leftmost of equal times wins. Columns without a block have the
    # greatest time, but so may blocks; only columns with blocks count.
    for w in reversed(range(len(words))):
        column = jnp.where((soonest[w] == first) & (words[w] != 0), w, column)
    some, column = column >= 0, jnp.maximum(column, 0)

    word, left = of_column(words, column), of_column(alive, column)
    rank = of_column(ranks_of(alive), column)
    # [height, B]: the times of each lane's column, by one gather with flat indices.
    lanes = column * batch + jnp.arange(batch, dtype=jnp.int32)
    of_rows = times.reshape(height, -1).at[:, lanes].get(mode="promise_in_bounds")
    bit = jnp.zeros_like(word)
    for h in range(height):
        is_first = ((word >> h) & one != 0) & (of_rows[height - 1 - h] == first)
        bit = jnp.where(is_first, words.dtype.type(1 << h), bit)
    # On the fallen board its height is the number of blocks below it.
    fallen = one << jax.lax.population_count(left & (bit - one))
    return rank.astype(jnp.int32), jnp.where(some & (bit > 0), fallen, words.dtype.type(0))


def _times(env: SameGame, taken: chex.Array, steps: chex.Array) -> chex.Array:
    """Returns the blocks' times, `[H, W, B]`, from the blocks each move removed, `[T, W, B]`."""
    latest = never(env)

    # All lanes play their move t in iteration t until they are done, so iterations count moves.
    def mark(step: chex.Array, times: chex.Array) -> chex.Array:
        gone = bitboard.unpack(taken[step], env.height)
        return jnp.where(gone, (2 * step + 1).astype(times.dtype), times)

    times = jnp.full((env.height, *taken.shape[1:]), latest)
    return jax.lax.fori_loop(0, steps, mark, times)
