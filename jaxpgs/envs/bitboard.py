"""Boards of coloured blocks as columns of bits: groups, gravity and closing of empty columns.

A column is one unsigned integer, bit 0 its bottom cell. Colour c is stored as the number c + 1 and
0 is an empty cell, so a board is `[P, W]` words: P bit planes, of W columns each. One vector
instruction then works on many columns of many boards.

Every function takes `[P, W, ...]` or `[W, ...]` words and any axes after them, which are a batch.
The batch is last because XLA's CPU backend turns a shift along the first axis into plain copies;
`batch_last` makes `jax.vmap` use this layout. Words that are shifted from column to column must be
in memory first. Otherwise XLA recomputes them for every column without vector instructions. So the
loops below shift at the beginning of their bodies, when their carry has just been written.
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
      The same function. Under `jax.vmap`, one call computes the whole batch.
    """
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def _(axis_size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        def to_last(x: chex.Array, is_batched: bool) -> chex.Array:
            if is_batched:
                return jnp.moveaxis(x, 0, -1)
            return jnp.broadcast_to(x[..., None], (*x.shape, axis_size))

        # Calls `mapped`, not `function`: another `jax.vmap` around this one needs the same rule.
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
    """Moves columns `[W, ...]` right, or left for a negative `by`, and fills with zeros."""
    padding = [(by, -by, 0)] + [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, x.dtype.type(0), padding)


def occupied(planes: chex.Array) -> chex.Array:
    """Returns the cells `[W, ...]` that hold a block."""
    return functools.reduce(jnp.bitwise_or, list(planes))


def where_color(planes: chex.Array, color: int) -> chex.Array:
    """Returns the blocks `[W, ...]` of one colour."""
    # Every plane must hold its digit of the colour's number. Only empty cells have the number 0.
    words = [plane if (color + 1) >> p & 1 else ~plane for p, plane in enumerate(planes)]
    return functools.reduce(jnp.bitwise_and, words)


def links(planes: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Finds neighbours of equal colour.

    Args:
      planes: `[P, W, ...]` a board.

    Returns:
      `up [W, ...]`: the blocks whose upper neighbour has the same colour; `left [W, ...]`: the
      blocks whose left neighbour has the same colour.
    """
    # Colours are equal where no plane differs. Two empty cells are equal too, hence the masks.
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
    """Returns the grouped blocks `[W, ...]` without a neighbour in the group to the left or below.

    The leftmost, then lowest block of a group is one of these, and usually the only one.
    """
    return (up | shift(left, -1)) & ~(left | (up << 1))


def pairs(up: chex.Array, left: chex.Array) -> chex.Array:
    """Returns the `candidates` `[W, ...]` whose group has two blocks."""
    right, down = shift(left, -1), up << 1
    # Where the upper neighbour, or the right one, has no other link than the one to the block.
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
        # Each iteration grows one column to either side, then up and down as far as the links go.
        grown = found | (shift(found, 1) & left) | (shift(found, -1) & right)
        return _fill_columns(grown, up), found

    # Stops after an iteration in which nothing grew. The first always runs: `seeds != ~seeds`.
    return jax.lax.while_loop(lambda c: jnp.any(c[0] != c[1]), body, (seeds, ~seeds))[0]


def _fill_columns(found: chex.Array, up: chex.Array) -> chex.Array:
    """Grows a set of blocks up and down as far as the links go."""
    # Upwards: the carry of an addition propagates through ones. `linked_below` are the blocks that
    # the carry may enter; where it passes a block that was already found, the sum has a one, not 0.
    linked_below = up << 1
    entered = (found & up) << 1
    filled = found | entered | (linked_below & (linked_below ^ (linked_below + entered)))
    # Downwards there is no such trick; each iteration doubles the distance.
    step = 1
    # `up` holds the blocks from which `step` links go up without a gap.
    while step < 8 * up.dtype.itemsize:
        filled = filled | ((filled >> step) & up)
        up = up & (up >> step)
        step *= 2
    return filled


def representatives(up: chex.Array, left: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Finds the leftmost, then lowest block of every group, and the blocks that belong to it.

    The binary digits of (column, height from the bottom) are determined from the highest on. For
    each digit a flood starts from the candidates with a 0, for all groups at once. It eliminates
    the candidates with a 1 that it reaches. Groups that it does not reach have the digit 1.

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
        # A group that is not reached has no candidate with a 0, so all its candidates stay.
        reached = flood(alive & ~ones, up, left)
        return alive & ~(reached & ones), ~reached

    return jax.lax.scan(body, candidates(up, left), digits)


def _digits(width: int, height: int, dtype: jnp.dtype) -> np.ndarray:
    """Returns `[D, W]` words: where a cell's column, then its height, has a 1 in digit d."""
    # `height` is the word's, not the board's, so that the digits depend on the type alone.
    columns, rows = np.arange(width), np.arange(height)
    of_columns = [columns >> k & 1 for k in reversed(range((width - 1).bit_length()))]
    of_rows = [rows >> k & 1 for k in reversed(range((height - 1).bit_length()))]
    # The column's digits fill whole columns; the height's are the same word in each of them.
    words = [np.where(digit, np.iinfo(dtype).max, 0) for digit in of_columns]
    words += [np.full(width, (digit.astype(np.uint64) << rows.astype(np.uint64)).sum())
              for digit in of_rows]  # fmt: skip
    return np.array(words).astype(dtype).reshape(-1, width)


def remove(planes: chex.Array, group: chex.Array) -> chex.Array:
    """Removes blocks `[W, ...]`; the blocks above fall and empty columns close to the left."""
    return _close(_fall(planes, group))


def _fall(planes: chex.Array, group: chex.Array) -> chex.Array:
    """Compresses each column to its lower end, as in Warren, Hacker's Delight, section 7-4."""
    bits = 8 * group.dtype.itemsize
    keep = ~group
    words = [plane & keep for plane in planes]
    # In pass k, `odd` marks the blocks with an odd number of removed blocks below them, in units of
    # 2**k: these fall by 2**k.
    removed_below = group << 1
    for k in range((bits - 1).bit_length()):
        # The parity of all bits up to each bit, by a prefix sum modulo 2 with doubling steps.
        odd = removed_below
        step = 1
        while step < bits:
            odd = odd ^ (odd << step)
            step *= 2
        falling = odd & keep
        # The mask falls with the blocks, so that it matches their positions in the next pass.
        keep = (keep ^ falling) | (falling >> (1 << k))
        words = [(word & ~falling) | ((word & falling) >> (1 << k)) for word in words]
        # Keeps every second removed block, since the next pass counts in units twice as large.
        removed_below = removed_below & ~odd
    return jnp.stack(words)


def expand(words: chex.Array, masks: chex.Array) -> chex.Array:
    """Spreads the lowest bits of each word over the set bits of its mask, in order.

    This is the inverse of the fall: `masks` are the blocks that were left, and `words` some of them
    after the fall. As in Warren, Hacker's Delight, section 7-5.

    Args:
      words: `[...]` unsigned; bits beyond the mask's number of bits are dropped.
      masks: `[...]` of the same type.

    Returns:
      `[...]` words.
    """
    bits = 8 * masks.dtype.itemsize
    # The passes of the fall are computed in order, and then undone from the last to the first.
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

    # The board with the most gaps determines the number of iterations, usually none or one.
    def gaps(planes: chex.Array) -> chex.Array:
        blocks = occupied(planes)
        return jnp.any((blocks[:-1] == 0) & (blocks[1:] != 0))

    def body(planes: chex.Array) -> chex.Array:
        blocks = occupied(planes)
        # [W, ...]: whether this column or one to its left is empty; then the next one moves here.
        empty = [blocks[0] == 0]
        for column in blocks[1:]:
            empty.append(empty[-1] | (column == 0))
        return jnp.where(jnp.stack(empty), jax.vmap(lambda x: shift(x, -1))(planes), planes)

    return jax.lax.while_loop(gaps, body, planes)


def count(words: chex.Array) -> chex.Array:
    """Returns the number of set bits, `[...]` int32, of words `[W, ...]`."""
    return jnp.sum(jax.lax.population_count(words), axis=0, dtype=jnp.int32)
