"""Random games of SameGame from given positions, many at once.

Uniform play chooses among all groups with equal probability. To find them all is not needed: a game
draws one of `columns.candidates`, the few blocks that may represent a group, floods that group, and
plays it if the block does represent it. Otherwise it draws again in the next step. About one draw
in ten is lost that way, while finding all groups takes four times as long as playing one.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.envs import columns
from jaxpgs.envs.samegame import SameGame, SameGameState


class Playouts(NamedTuple):
    """The ends of B games.

    Attributes:
      score: `[B]` float32, the sum of the rewards from the given positions on.
      moves: `[B]` int32.
      cleared: `[B]` bool, whether no block was left.
    """

    score: chex.Array
    moves: chex.Array
    cleared: chex.Array


def random_playouts(
    env: SameGame, rng_key: chex.PRNGKey, state: SameGameState, *, tabu: bool = False
) -> Playouts:
    """Plays random games to their ends.

    Args:
      env: the game.
      rng_key: consumed.
      state: B positions to start from.
      tabu: whether to keep a colour for last ("tabu colour" of the literature): the one with the
        most blocks in the given position, of several the first. Its groups are played when there
        are no others. Otherwise all groups are as likely.

    Returns:
      The scores and lengths of the B games. A position without a group scores 0.
    """
    planes = jnp.moveaxis(state.planes, 0, -1)
    batch = planes.shape[-1]
    kept = _most_frequent(env, planes) if tabu else None

    def draw(planes: chex.Array, number: chex.Array) -> tuple[chex.Array, chex.Array]:
        blocks = columns.candidates(*columns.links(planes))
        if kept is not None:
            differs = [plane ^ same[None] for plane, same in zip(planes, kept, strict=True)]
            others = blocks & functools.reduce(jnp.bitwise_or, differs)
            blocks = jnp.where(jnp.any(others != 0, axis=0), others, blocks)
        return _pick(blocks, number)

    def numbers(step: chex.Array) -> chex.Array:
        return jax.random.uniform(jax.random.fold_in(rng_key, step), (batch,))

    def body(carry: tuple) -> tuple:
        planes, column, bit, score, moves, step = carry
        word = planes.dtype.type
        up, left = columns.links(planes)
        here = jnp.arange(env.width, dtype=jnp.int32)[:, None] == column[None]
        seed = jnp.where(here, bit, word(0))
        group = columns.flood(seed, up, left)
        # A block is the group's leftmost, then lowest one if no other is in an earlier column, that
        # is in the column before, or below.
        earlier = jnp.where(
            here, columns.shift(group, 1) | (group & (bit - word(1))[None]), word(0)
        )
        group = jnp.where(jnp.any(earlier != 0, axis=0), word(0), group)
        size = columns.count(group)
        planes = columns.remove(planes, group)
        played = size > 0
        score = score + jnp.where(played, jnp.square(size - 2), 0)
        # Drawn here and not in the body that plays it, where XLA would draw for every column again.
        column, bit = draw(planes, numbers(step))
        return planes, column, bit, score, moves + played.astype(jnp.int32), step + 1

    start = jnp.zeros(batch, jnp.int32)
    column, bit = draw(planes, numbers(jnp.int32(0)))
    carry = (planes, column, bit, start, start, jnp.int32(1))
    planes, _, _, score, moves, _ = jax.lax.while_loop(lambda c: jnp.any(c[2] != 0), body, carry)
    end = jnp.where(moves > 0, env.end_reward(planes), 0.0)
    cleared = columns.count(columns.occupied(planes)) == 0
    return Playouts(score.astype(jnp.float32) + end, moves, cleared)


def _most_frequent(env: SameGame, planes: chex.Array) -> list[chex.Array]:
    """Returns words `[B]` for each plane: all ones where the most frequent colour has a 1."""
    counts = [columns.count(columns.where_color(planes, c)) for c in range(env.num_colors)]
    code = jnp.argmax(jnp.stack(counts), axis=0) + 1
    word = planes.dtype.type
    full = word(jnp.iinfo(planes.dtype).max)
    return [jnp.where((code >> p) & 1 != 0, full, word(0)) for p in range(len(planes))]


def _pick(words: chex.Array, number: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Picks the set bit of rank `floor(number * set bits)`: its column and itself, 0 for none."""
    counts = [jax.lax.population_count(word).astype(jnp.int32) for word in words]
    total = functools.reduce(jnp.add, counts)
    rank = jnp.floor(number * total.astype(number.dtype)).astype(jnp.int32)
    word, column, before, skipped = words[0], *[jnp.zeros_like(rank)] * 3
    for index in range(1, len(counts)):
        before = before + counts[index - 1]
        later = rank >= before
        word = jnp.where(later, words[index], word)
        column = jnp.where(later, index, column)
        skipped = jnp.where(later, before, skipped)
    rank = rank - skipped
    bit = jnp.minimum(word, 1)  # 0 if there is none
    half = 4 * words.dtype.itemsize
    while half:
        low = word & words.dtype.type((1 << half) - 1)
        count = jax.lax.population_count(low).astype(jnp.int32)
        upper = rank >= count
        word = jnp.where(upper, word >> half, low)
        rank = jnp.where(upper, rank - count, rank)
        bit = jnp.where(upper, bit << half, bit)
        half //= 2
    return column, bit
