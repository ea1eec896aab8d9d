"""Random games of SameGame from given positions, many at once.

Uniform play chooses among all groups with equal probability. It is not necessary to find all
groups: a game draws one of `bitboard.candidates`, the few blocks that may represent a group, and
flood-fills its group. If the block does represent this group, the group is played. Otherwise the
game draws again in the next step. About one draw in ten is lost in this way, while finding all
groups takes four times as long as playing one.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.envs import bitboard
from jaxpgs.envs.samegame.game import SameGame, SameGameState


class Playouts(NamedTuple):
    """The results of B games.

    Attributes:
      score: `[B]` float32, the sum of the rewards from the given positions on.
      moves: `[B]` int32, the number of moves.
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
      tabu: whether to keep one colour for last (the "tabu colour" of the literature): the one with
        the most blocks in the given position, the first if there are several. Its groups are played
        only when there are no others. Otherwise all groups are equally likely.

    Returns:
      The scores and lengths of the B games. A position without a group scores 0.
    """
    planes = jnp.moveaxis(state.planes, 0, -1)
    batch = planes.shape[-1]

    def numbers(step: chex.Array) -> chex.Array:
        return jax.random.uniform(jax.random.fold_in(rng_key, step), (batch,))

    return _play_out(env, planes, numbers, tabu)[0]


def recorded_playout(
    env: SameGame, rng_key: chex.PRNGKey, state: SameGameState, *, tabu: bool = False
) -> tuple[Playouts, chex.Array]:
    """Plays one random game to its end and records it.

    The function takes one position and is meant for `jax.vmap`. All games then run in one loop,
    each with its own key, so that a game does not depend on the others in its batch.

    Args:
      env: the game.
      rng_key: consumed.
      state: a position, unbatched.
      tabu: as in `random_playouts`.

    Returns:
      The result of the game `[]`, and its moves `[L]` int32, which are legal actions, and -1 after
      the last. L is half the number of cells, rounded down, and at least 1.
    """

    @bitboard.batch_last
    def play(planes: chex.Array, seed: chex.Array) -> tuple[Playouts, chex.Array]:
        shape = planes.shape[2:]
        # `batch_last` puts the batch last in the key data as well, so turn [2, ...] into [B, 2].
        numbers_of_keys = jnp.moveaxis(seed.reshape(len(seed), -1), 0, -1)
        keys = jax.random.wrap_key_data(numbers_of_keys, impl=impl)

        def numbers(step: chex.Array) -> chex.Array:
            return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, step)))(keys)

        # All mapped axes are flattened to one batch axis, and restored afterwards.
        flat = planes.reshape(*planes.shape[:2], -1)
        ends, actions = _play_out(env, flat, numbers, tabu, max_moves(env))
        ends = jax.tree.map(lambda x: x.reshape(shape), ends)
        return ends, actions.reshape(-1, *shape)

    # Typed and raw keys are both passed as key data, to which `batch_last` adds the batch axis.
    is_typed = jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
    impl = jax.random.key_impl(rng_key) if is_typed else None
    return play(state.planes, jax.random.key_data(rng_key) if is_typed else rng_key)


def max_moves(env: SameGame) -> int:
    """Returns an upper bound on the moves of a game, at least 1: each takes two blocks or more."""
    return max(env.num_actions // 2, 1)


def _play_out(
    env: SameGame,
    planes: chex.Array,
    numbers: Callable[[chex.Array], chex.Array],
    tabu: bool,
    num_recorded: int = 0,
) -> tuple[Playouts, chex.Array]:
    """Plays boards `[P, W, B]` to their ends; `numbers(step)` returns `[B]` uniform numbers.

    Returns the results and the first `num_recorded` actions `[num_recorded, B]`, -1 after the last.
    """
    batch = planes.shape[-1]
    kept = _most_frequent(env, planes) if tabu else None

    def draw(planes: chex.Array, number: chex.Array) -> tuple[chex.Array, chex.Array]:
        blocks = bitboard.candidates(*bitboard.links(planes))
        if kept is not None:
            # Blocks of another colour differ from the kept colour in some plane. The kept colour
            # is played where the other colours have no group.
            differs = [plane ^ same[None] for plane, same in zip(planes, kept, strict=True)]
            others = blocks & functools.reduce(jnp.bitwise_or, differs)
            blocks = jnp.where(jnp.any(others != 0, axis=0), others, blocks)
        return _pick(blocks, number)

    def body(carry: tuple) -> tuple:
        planes, column, bit, score, moves, actions, step = carry
        word = planes.dtype.type
        up, left = bitboard.links(planes)
        here = jnp.arange(env.width, dtype=jnp.int32)[:, None] == column[None]
        seed = jnp.where(here, bit, word(0))
        group = bitboard.flood(seed, up, left)
        # A block is the group's leftmost, then lowest one if the group has no block in the previous
        # column, and none below in its own column.
        earlier = jnp.where(
            here, bitboard.shift(group, 1) | (group & (bit - word(1))[None]), word(0)
        )
        group = jnp.where(jnp.any(earlier != 0, axis=0), word(0), group)
        size = bitboard.count(group)
        # A block that does not represent its group removes nothing: its game loses this step.
        planes = bitboard.remove(planes, group)
        played = size > 0
        score = score + jnp.where(played, jnp.square(size - 2), 0)
        if num_recorded:
            action = (env.height - 1 - _bit_number(bit)) * env.width + column
            # A lost step writes beyond the end of the array, where writes are dropped.
            place = jnp.where(played, moves, num_recorded)
            actions = actions.at[place, jnp.arange(batch)].set(action, mode="drop")
        # The next block is drawn here and not in the iteration that plays it, where XLA would
        # repeat the draw for every column.
        column, bit = draw(planes, numbers(step))
        return planes, column, bit, score, moves + played.astype(jnp.int32), actions, step + 1

    start = jnp.zeros(batch, jnp.int32)
    column, bit = draw(planes, numbers(jnp.int32(0)))
    actions = jnp.full((num_recorded, batch), -1, jnp.int32)
    carry = (planes, column, bit, start, start, actions, jnp.int32(1))
    # Runs until no board in the batch has a group, that is until no candidate was drawn.
    planes, _, _, score, moves, actions, _ = jax.lax.while_loop(
        lambda c: jnp.any(c[2] != 0), body, carry
    )
    end = jnp.where(moves > 0, env.end_reward(planes), 0.0)
    cleared = bitboard.count(bitboard.occupied(planes)) == 0
    return Playouts(score.astype(jnp.float32) + end, moves, cleared), actions


def _bit_number(bit: chex.Array) -> chex.Array:
    """Returns the index of the one bit that is set."""
    return jax.lax.population_count(bit - bit.dtype.type(1)).astype(jnp.int32)


def _most_frequent(env: SameGame, planes: chex.Array) -> list[chex.Array]:
    """Returns words `[B]` for each plane: all ones if the most frequent colour's code has a 1."""
    counts = [bitboard.count(bitboard.where_color(planes, c)) for c in range(env.num_colors)]
    code = jnp.argmax(jnp.stack(counts), axis=0) + 1
    word = planes.dtype.type
    full = word(jnp.iinfo(planes.dtype).max)
    return [jnp.where((code >> p) & 1 != 0, full, word(0)) for p in range(len(planes))]


def _pick(words: chex.Array, number: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Returns the column and the set bit of rank `floor(number * set bits)`; bit 0 if none."""
    counts = [jax.lax.population_count(word).astype(jnp.int32) for word in words]
    total = functools.reduce(jnp.add, counts)
    rank = jnp.floor(number * total.astype(number.dtype)).astype(jnp.int32)
    # First find the column, from the number of set bits in the columns before it.
    word, column, before, skipped = words[0], *[jnp.zeros_like(rank)] * 3
    for index in range(1, len(counts)):
        before = before + counts[index - 1]
        later = rank >= before
        word = jnp.where(later, words[index], word)
        column = jnp.where(later, index, column)
        skipped = jnp.where(later, before, skipped)
    rank = rank - skipped
    # Then find the bit in the word by bisection: take the lower half if it has enough set bits.
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
