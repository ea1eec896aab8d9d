"""Boards of coloured blocks as columns of bits: groups, gravity and closing of empty columns.

A column is one unsigned integer, bit 0 its bottom cell. Colour c is stored as the number c + 1 and
0 is an empty cell, so a board is `[P, W]` words: P bit planes, of W columns each. One vector
instruction then works on many columns of many boards.

Every function takes `[P, W, ...]` or `[W, ...]` words and any axes after them, which are a batch.
The batch goes last since XLA's CPU backend turns a shift along the first axis into plain copies;
`batch_last` makes `jax.vmap` do so. What is shifted from column to column must be in memory first,
or XLA computes it again for every column without vector instructions; so the loops below shift at
the beginning of their bodies, when what they carry has just been written.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

MAX_HEIGHT = 32


def word_dtype(height: int) -> jnp.dtype:
    """Returns the narrowest unsigned type that holds a column of `height` cells, at most 32."""
    return jnp.dtype(jnp.uint8 if height <= 8 else jnp.uint16 if height <= 16 else jnp.uint32)


def batch_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `jax.vmap` add its axis at the end of a function's arguments and results.

    Args:
      function: takes and returns arrays, or pytrees of arrays, with any batch axes last.

    Returns:
      The same function. Where `jax.vmap` maps it, one call serves the whole batch.
    """
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def _(axis_size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        def to_last(x: chex.Array, is_batched: bool) -> chex.Array:
            if is_batched:
                return jnp.moveaxis(x, 0, -1)
            return jnp.broadcast_to(x[..., None], (*x.shape, axis_size))

        # Calls `mapped`, not `function`: a further `jax.vmap` around this one needs the same rule.
        out = mapped(*jax.tree.map(to_last, args, tuple(batched)))
        out = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), out)
        return out, jax.tree.map(lambda _: True, out)

    return mapped


def pack(cells: chex.Array, height: int) -> chex.Array:
    """Packs `[H, ...]` booleans, row 0 the top, into words `[...]`."""
    dtype = word_dtype(height)
    bits = [
        jax.lax.convert_element_type(cells[r], dtype) << (height - 1 - r) for r in range(height)
    ]
    return functools.reduce(jnp.bitwise_or, bits)


def unpack(words: chex.Array, height: int) -> chex.Array:
    """Unpacks words `[W, ...]` into booleans `[H, W, ...]`, row 0 the top."""
    places = np.arange(height - 1, -1, -1, dtype=words.dtype)
    places = places.reshape((height,) + (1,) * words.ndim)
    return (words[None] >> places) & words.dtype.type(1) != 0


def shift(x: chex.Array, by: int) -> chex.Array:
    """Moves columns `[W, ...]` to the right, or to the left for a negative `by`; zeros follow."""
    padding = [(by, -by, 0)] + [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, x.dtype.type(0), padding)


def occupied(planes: chex.Array) -> chex.Array:
    """Returns the cells `[W, ...]` that hold a block."""
    return functools.reduce(jnp.bitwise_or, list(planes))


def where_color(planes: chex.Array, color: int) -> chex.Array:
    """Returns the blocks `[W, ...]` of one colour."""
    # Every plane must hold its digit of the colour's number. Empty cells hold 0 and no colour does.
    words = [plane if (color + 1) >> p & 1 else ~plane for p, plane in enumerate(planes)]
    return functools.reduce(jnp.bitwise_and, words)


def links(planes: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Finds neighbours of equal colour.

    Args:
      planes: `[P, W, ...]` a board.

    Returns:
      `up [W, ...]`: the blocks whose upper neighbour has their colour; `left [W, ...]`: those whose
      left neighbour has it.
    """
    # Colours are equal where no plane differs. So are two empty cells, hence the masks of blocks.
    blocks = occupied(planes)
    above = functools.reduce(jnp.bitwise_or, [plane ^ (plane >> 1) for plane in planes])
    beside = functools.reduce(jnp.bitwise_or, [plane ^ shift(plane, 1) for plane in planes])
    return ~above & blocks & (blocks >> 1), ~beside & blocks & shift(blocks, 1)


def has_group(planes: chex.Array) -> chex.Array:
    """Returns whether a board holds any group, `[...]` bool."""
    up, left = links(planes)
    return jnp.any((up | left) != 0, axis=0)


def linked(up: chex.Array, left: chex.Array) -> chex.Array:
    """Returns the blocks `[W, ...]` that belong to a group, from their `links`."""
    return up | (up << 1) | left | shift(left, -1)


def candidates(up: chex.Array, left: chex.Array) -> chex.Array:
    """Returns the blocks `[W, ...]` with a group but no neighbour in it to the left or below.

    The leftmost, then lowest block of a group is one of them, and mostly the only one.
    """
    return (up | shift(left, -1)) & ~(left | (up << 1))


def pairs(up: chex.Array, left: chex.Array) -> chex.Array:
    """Returns the `candidates` `[W, ...]` whose group has two blocks."""
    right, down = shift(left, -1), up << 1
    # Where the upper neighbour, or the right one, has no link but the one to the block.
    end_above = ~(up | left | right) >> 1
    end_beside = shift(~(up | right | down), -1)
    return candidates(up, left) & ((up & ~right & end_above) | (right & ~up & end_beside))


def flood(seeds: chex.Array, up: chex.Array, left: chex.Array) -> chex.Array:
    """Returns all blocks `[W, ...]` of the groups that hold a seed.

    Args:
      seeds: `[W, ...]` blocks.
      up: `[W, ...]` links, as `links` gives them.
      left: `[W, ...]` links.
    """
    right = shift(left, -1)

    def body(carry: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        found, _ = carry
        # One column to either side in each round, and then up and down as far as the links go.
        grown = found | (shift(found, 1) & left) | (shift(found, -1) & right)
        return _fill_columns(grown, up), found

    # Nothing has grown in the last round. The first always runs: no set equals its complement.
    return jax.lax.while_loop(lambda c: jnp.any(c[0] != c[1]), body, (seeds, ~seeds))[0]


def _fill_columns(found: chex.Array, up: chex.Array) -> chex.Array:
    """Grows a set of blocks up and down as far as the links go."""
    # Upwards: a carry runs through the ones of an addition. `linked_below` are the blocks it may
    # enter; where it came through a block that was found already, the sum has a one, not a zero.
    linked_below = up << 1
    entered = (found & up) << 1
    filled = found | entered | (linked_below & (linked_below ^ (linked_below + entered)))
    # Downwards there is no such trick; every pass doubles the distance.
    step = 1
    # `up` holds the blocks from which `step` links go up without a gap.
    while step < 8 * up.dtype.itemsize:
        filled = filled | ((filled >> step) & up)
        up = up & (up >> step)
        step *= 2
    return filled


def representatives(up: chex.Array, left: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Finds the leftmost, then lowest block of every group, and who belongs to it.

    The binary digits of (column, height from the bottom) are settled from the highest on. For each
    digit a flood starts from the candidates with a 0, for all groups at once; candidates with a 1
    that it reaches are out. What it does not reach has a 1 in its representative's digit.

    Args:
      up: `[W, ...]` links, as `links` gives them.
      left: `[W, ...]` links.

    Returns:
      `[W, ...]` representatives, and `[D, W, ...]` digits of every block's representative, highest
      first; digits are meaningful in groups only.
    """
    digits = _digits(up.shape[0], 8 * up.dtype.itemsize, up.dtype)
    digits = digits.reshape(digits.shape + (1,) * (up.ndim - 1))

    def body(alive: chex.Array, ones: chex.Array) -> tuple[chex.Array, chex.Array]:
        # A group that is not reached has no candidate left with a 0, so all of them stay.
        reached = flood(alive & ~ones, up, left)
        return alive & ~(reached & ones), ~reached

    return jax.lax.scan(body, candidates(up, left), digits)


def _digits(width: int, height: int, dtype: jnp.dtype) -> np.ndarray:
    """Returns `[D, W]` words: where a cell's column, then its height, has a 1 in digit d."""
    # `height` is that of the word, not of the board, so that the digits follow from the type alone.
    columns, rows = np.arange(width), np.arange(height)
    of_columns = [columns >> k & 1 for k in reversed(range((width - 1).bit_length()))]
    of_rows = [rows >> k & 1 for k in reversed(range((height - 1).bit_length()))]
    # The column's digits fill whole columns; the height's are the same word in each of them.
    words = [np.where(digit, np.iinfo(dtype).max, 0) for digit in of_columns]
    words += [np.full(width, (digit.astype(np.uint64) << rows.astype(np.uint64)).sum())
              for digit in of_rows]  # fmt: skip
    return np.array(words).astype(dtype).reshape(-1, width)


def remove(planes: chex.Array, group: chex.Array) -> chex.Array:
    """Takes blocks `[W, ...]` away; those above fall and empty columns close to the left."""
    return _close(_fall(planes, group))


def _fall(planes: chex.Array, group: chex.Array) -> chex.Array:
    """Compresses each column to its lower end, as in Warren, Hacker's Delight, section 7-4."""
    bits = 8 * group.dtype.itemsize
    keep = ~group
    words = [plane & keep for plane in planes]
    # In pass k, `odd` marks the blocks with an odd number of removed ones below them, in units of
    # 2**k: these fall by 2**k.
    removed_below = group << 1
    for k in range((bits - 1).bit_length()):
        # The parity of all bits up to each one, by a prefix sum modulo 2 in steps that double.
        odd = removed_below
        step = 1
        while step < bits:
            odd = odd ^ (odd << step)
            step *= 2
        falling = odd & keep
        # The blocks fall, and the mask with them, so that the next pass finds them where they are.
        keep = (keep ^ falling) | (falling >> (1 << k))
        words = [(word & ~falling) | ((word & falling) >> (1 << k)) for word in words]
        # Every second removed block stays, for the next pass counts in units twice as large.
        removed_below = removed_below & ~odd
    return jnp.stack(words)


def expand(words: chex.Array, masks: chex.Array) -> chex.Array:
    """Spreads the lowest bits of each word over the set bits of its mask, in order.

    Undoes the fall: `masks` are the blocks that were left, `words` some of them after it. As in
    Warren, Hacker's Delight, section 7-5.

    Args:
      words: `[...]` unsigned; bits beyond the mask's number of bits are dropped.
      masks: `[...]` of the same type.

    Returns:
      `[...]` words.
    """
    bits = 8 * masks.dtype.itemsize
    # The passes of the fall are worked out in order, and then undone from the last to the first.
    moves, mask, missing_below = [], masks, ~masks << 1
    for k in range((bits - 1).bit_length()):
        odd = missing_below
        step = 1
        while step < bits:
            odd = odd ^ (odd << step)
            step *= 2
        moving = odd & mask
        moves.append(moving)
        mask = (mask ^ moving) | (moving >> (1 << k))
        missing_below = missing_below & ~odd
    for k, moving in reversed(list(enumerate(moves))):
        words = (words & ~moving) | ((words << (1 << k)) & moving)
    return words & masks


def _close(planes: chex.Array) -> chex.Array:
    """Moves columns to the left over empty ones, one empty column in every board at a time."""

    # It turns as often as the board with the most empty columns needs, mostly never or once.
    def gaps(planes: chex.Array) -> chex.Array:
        blocks = occupied(planes)
        return jnp.any((blocks[:-1] == 0) & (blocks[1:] != 0))

    def body(planes: chex.Array) -> chex.Array:
        blocks = occupied(planes)
        # [W, ...]: whether this column or one to its left is empty, so that the next one moves in.
        empty = [blocks[0] == 0]
        for column in blocks[1:]:
            empty.append(empty[-1] | (column == 0))
        return jnp.where(jnp.stack(empty), jax.vmap(lambda x: shift(x, -1))(planes), planes)

    return jax.lax.while_loop(gaps, body, planes)


def count(words: chex.Array) -> chex.Array:
    """Returns the number of set bits, `[...]` int32, of words `[W, ...]`."""
    return jnp.sum(jax.lax.population_count(words), axis=0, dtype=jnp.int32)
