"""Samples many games of SameGame at once from a table of logits, with all that learning needs.

A move's code is a block that represents the removed group, identified by its cell on the first
board. So the table has one logit for each cell of the first board, for all later boards, and a move
keeps its code when blocks fall. The blocks that may represent a group are its
`bitboard.candidates`, one or a few, found without labelling the board. A group's probability is the
sum over its candidates.

With a table of twice that size, a code is a block and whether its group is a pair: a block has one
logit while its group has two blocks, and another one when the group has grown. The search can then
learn, for example, to spare the pairs of a colour until they have grown.

All boards are held in two frames: the fallen board, in which groups are found, and the first board,
to which the table belongs. `alive`, the remaining blocks in columns of the first board, connects
them: it is a column's `bitboard.expand` mask, and its empty columns are the closed ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.envs import bitboard
from jaxpgs.envs.played_games import PlayedGames
from jaxpgs.envs.samegame.game import SameGame, SameGameState


def play_sequences(
    env: SameGame, rng_key: chex.PRNGKey, state: SameGameState, logits: chex.Array
) -> PlayedGames:
    """Plays games to their ends; moves are drawn from the softmax of their codes' logits.

    Args:
      env: the game.
      rng_key: `[B]` keys, one for each game; consumed.
      state: B positions to start from.
      logits: `[A, B]` float32 logits of the codes, at most 40 in magnitude; or `[2 A, B]`, as
        `by_pairs` makes it, where pairs and larger groups have separate codes.

    Returns:
      The games. A position without a group gives a game without moves, with score 0.

    Raises:
      ValueError: if there are neither A nor 2 A logits.
    """
    cells = env.num_actions
    if len(logits) not in (cells, 2 * cells):
        raise ValueError(
            f"logits must have {cells} rows, one for each cell, or {2 * cells}, "
            f"got shape {logits.shape}."
        )
    planes = jnp.moveaxis(state.planes, 0, -1)
    batch = planes.shape[-1]
    alive = bitboard.occupied(planes)
    # Unnormalised probabilities, once per game: for logits up to 40 neither they nor sums overflow.
    weights = jnp.exp(logits).reshape(env.height, -1, batch)
    find = functools.partial(_find_codes, tell_pairs=len(logits) > env.num_actions)
    most = max(env.num_actions // 2, 1)

    numbers = jax.vmap(lambda key: jax.random.uniform(key, (most,)))(rng_key).T

    def body(carry: tuple) -> tuple:
        planes, alive, words, total, step, record = carry
        word = planes.dtype.type
        # Draw a code, then record the legal codes before `words` changes.
        column, bit, chosen = once(lambda: _choose(env, words, alive, weights, numbers[step]), step)
        record = PlayedGames(
            record.score,
            record.length + (bit > 0).astype(jnp.int32),
            record.legal.at[step].set(words),
            record.chosen.at[step].set(chosen),
            record.action.at[step].set(cell_of(env, column, bit)),
        )
        # Remove the group on the fallen board, and its blocks from `alive` on the first board.
        here = jnp.arange(env.width, dtype=jnp.int32)[:, None] == column[None]
        group = bitboard.flood(jnp.where(here, bit[None], word(0)), *bitboard.links(planes))
        size = bitboard.count(group)
        total = total + jnp.where(size > 0, jnp.square(size - 2), 0)
        planes = bitboard.remove(planes, group)
        alive = alive & ~first_frame(group, alive)
        words = find(planes, alive)
        return planes, alive, words, total, step + 1, record

    record = PlayedGames(
        jnp.zeros(batch),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros((most, weights.shape[1], batch), planes.dtype),
        jnp.full((most, batch), -1, jnp.int32),
        jnp.full((most, batch), -1, jnp.int32),
    )
    words = find(planes, alive)
    carry = (planes, alive, words, jnp.zeros(batch, jnp.int32), jnp.int32(0), record)
    # Runs until no board of the batch has a group; finished lanes do not change any more.
    carry = jax.lax.while_loop(lambda c: jnp.any(c[2] != 0), body, carry)
    planes, _, _, total, _, record = carry
    end = jnp.where(record.length > 0, env.end_reward(planes), 0.0)
    return record._replace(score=total.astype(jnp.float32) + end)


def code_features(env: SameGame, state: SameGameState, *, pairs: bool = False) -> chex.Array:
    """Returns binary features that codes share, such as their colour.

    Args:
      env: the game.
      state: M first boards.
      pairs: whether pairs and larger groups have separate codes.

    Returns:
      `[K, A, M]` bool: the codes of each of K colours. With pairs `[3 K, 2 A, M]`: also the codes
      of each colour's pairs, and of its larger groups.
    """
    colors = jax.vmap(env.board)(state).reshape(-1, env.num_actions).T
    of_color = colors[None] == jnp.arange(env.num_colors, dtype=colors.dtype)[:, None, None]
    if not pairs:
        return of_color
    of_color = jax.vmap(functools.partial(by_pairs, env))(of_color)
    # Codes are in rows of 2 W, as `by_pairs` makes them: W of pairs, then W of larger groups.
    is_pair = jnp.arange(2 * env.num_actions) // env.width % 2 == 0
    is_pair = is_pair[None, :, None]
    return jnp.concatenate([of_color, of_color & is_pair, of_color & ~is_pair])


def by_pairs(env: SameGame, values: chex.Array) -> chex.Array:
    """Gives each block's value `[A, ...]` to both of its codes, `[2 A, ...]`."""
    rows = values.reshape(env.height, 1, env.width, *values.shape[1:])
    return jnp.repeat(rows, 2, axis=1).reshape(-1, *values.shape[1:])


def _find_codes(planes: chex.Array, alive: chex.Array, *, tell_pairs: bool) -> chex.Array:
    """Returns the legal codes, `[W, B]` words on the first board; `[2 W, B]` with pairs first."""
    links = bitboard.links(planes)
    words = bitboard.candidates(*links)
    if not tell_pairs:
        return first_frame(words, alive)
    pairs = bitboard.pairs(*links)
    return jnp.concatenate([first_frame(pairs, alive), first_frame(words & ~pairs, alive)])


def once(function: Callable[[], Any], count: chex.Array) -> Any:
    """Calls a function in a loop of one iteration, which XLA does not fuse with the code around it.

    XLA would compute `words` again for each row and column of the choice, and the choice again for
    each column of the flood. It removes barriers, and loops that it knows to run once. So this loop
    starts a counter at `count` and runs while the counter equals `count`.
    """
    out = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function))
    carry = jax.lax.while_loop(
        lambda c: c[0] == count, lambda c: (c[0] + 1, function()), (count, out)
    )
    return carry[1]


def cell_of(env: SameGame, column: chex.Array, bit: chex.Array) -> chex.Array:
    """Returns the row-major cell of a bit in a column, -1 for none."""
    below = jax.lax.population_count(bit - bit.dtype.type(1)).astype(jnp.int32)
    return jnp.where(bit > 0, (env.height - 1 - below) * env.width + column, -1)


def ranks_of(alive: chex.Array) -> chex.Array:
    """Returns `[W, B]` the column on the fallen board of each column of the first board."""
    # Columns of the first board that are now empty are closed: the rank counts the filled columns
    # before. It is as narrow as the words if possible, so that as many lanes fit into a register.
    dtype = alive.dtype if len(alive) <= jnp.iinfo(alive.dtype).max else jnp.uint32
    filled = (alive != 0).astype(dtype)
    ranks = [jnp.zeros_like(filled[0])]
    for column in filled[:-1]:
        ranks.append(ranks[-1] + column)
    return jnp.stack(ranks)


def first_frame(words: chex.Array, alive: chex.Array) -> chex.Array:
    """Maps blocks `[W, B]` of the fallen board to their cells on the first board."""
    rank = ranks_of(alive)
    moved = jnp.zeros_like(words)
    # A gather by rank, implemented by selecting among whole columns.
    for column in range(len(words)):
        moved = jnp.where(rank == rank.dtype.type(column), words[column][None], moved)
    # Also clears closed columns: their masks are empty.
    return bitboard.expand(moved, alive)


def of_column(values: chex.Array, column: chex.Array) -> chex.Array:
    """Returns `[B]`, the entry of `values [W, B]` at each game's column."""
    found = values[0]
    for w in range(1, len(values)):
        found = jnp.where(column == w, values[w], found)
    return found


def _choose(
    env: SameGame, words: chex.Array, alive: chex.Array, weights: chex.Array, number: chex.Array
) -> tuple[chex.Array, chex.Array, chex.Array]:
    """Draws a code of `words` with probability proportional to its weight.

    Returns:
      The block's column and bit on the fallen board, 0 for none, and its code.
    """
    one, height = words.dtype.type(1), env.height
    # [W, B]: the weights of each column's codes. First a column is drawn, then a bit in it.
    sums = jnp.zeros(words.shape)
    for h in range(height):
        sums = sums + jnp.where((words >> h) & one != 0, weights[height - 1 - h], 0.0)
    # Sums are unrolled: for reductions of floats XLA calls a slower library.
    threshold = number * functools.reduce(jnp.add, list(sums))
    # The last column and the last bit whose interval begins at or before the threshold: despite
    # rounding, they are always among the words.
    before = skipped = jnp.zeros_like(threshold)
    column = jnp.zeros(threshold.shape, jnp.int32)
    for w in range(len(words)):
        later = (threshold >= before) & (words[w] != 0)
        column = jnp.where(later, w, column)
        skipped = jnp.where(later, before, skipped)
        before = before + sums[w]

    # With codes of pairs there are 2 W columns of words, but W of blocks.
    word, place = of_column(words, column), column % env.width
    left, rank = of_column(alive, place), of_column(ranks_of(alive), place)
    lanes = column * column.shape[0] + jnp.arange(column.shape[0])
    of_rows = weights.reshape(height, -1).at[:, lanes].get(mode="promise_in_bounds")
    # The rest of the threshold selects the bit, again the last that begins at or before it.
    before, threshold = jnp.zeros_like(threshold), threshold - skipped
    row, bit = jnp.full(column.shape, -1, jnp.int32), jnp.zeros_like(word)
    for h in range(height):
        is_set = (word >> h) & one != 0
        later = (threshold >= before) & is_set
        row = jnp.where(later, height - 1 - h, row)
        bit = jnp.where(later, words.dtype.type(1 << h), bit)
        before = before + jnp.where(is_set, of_rows[height - 1 - h], 0.0)
    chosen = jnp.where(bit > 0, row * len(words) + column, -1)
    # On the fallen board its height is the number of blocks below it.
    fallen = one << jax.lax.population_count(left & (bit - one))
    return rank.astype(jnp.int32), jnp.where(bit > 0, fallen, bit), chosen
