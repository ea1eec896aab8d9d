"""Exact Hex: a proof search for single positions and a table of all small ones.

Both determine who wins with perfect play. `solve_hex` proves one position on a board of any size,
in time that grows quickly with the number of empty cells. `hex_value_table` holds every position of
a board up to 4x4, and `hex_code` computes a position's index in it inside `jax.jit`; together they
are an exact value network.
"""

import dataclasses

import chex
import jax.numpy as jnp
import numpy as np

from jaxpgs.envs.hex import Hex, HexState

MAX_TABLE_SIZE = 4

Memo = dict[tuple[int, int], tuple[bool, int]]


@dataclasses.dataclass(frozen=True)
class HexSolution:
    """The result of perfect play from one position; Hex has no draws.

    Attributes:
      value: +1 if the player to move wins, -1 otherwise.
      winning_moves: `[A]` bool, the actions that keep the win; at most one with `all_moves=False`.
    """

    value: int
    winning_moves: np.ndarray


def solve_hex(
    env: Hex, state: HexState, *, all_moves: bool = True, memo: Memo | None = None
) -> HexSolution:
    """Solves one position exactly.

    A depth-first proof search on bitboards. Every proof comes with its carrier, the empty cells
    that the winner needs. If the opponent wins after a move, each move outside of the carrier loses
    to the same reply, so every refutation shrinks the region that is left to try. Chains of bridges
    end a line early, and moves near the shortest two-distance paths of both players are tried
    first.

    Time and `memo` grow exponentially with the empty cells. Measured on one core: 8 ms for a random
    4x4 position (at most 0.2 s), 20 ms for a 5x5 one with eight stones, 1 to 3 s for one first move
    on 5x5 (four were tried), and 30 s with 730,000 entries for all 25 of them.

    Args:
      env: the game, without the swap rule.
      state: a position, unbatched. A finished one has no winning moves; its value is that of the
        player whose turn it would be.
      all_moves: whether to find every winning move, or to stop at the first.
      memo: proofs to use and to extend. Pass the same dict, empty at first, to related calls to
        share work among them; by default each call starts with an empty dict.

    Returns:
      The value for the player to move, and the winning moves.

    Raises:
      ValueError: if `env` has the swap rule, or `state` is batched or of another size.

    Example:
      >>> small = jaxpgs.envs.Hex(2)
      >>> jaxpgs.evaluation.solve_hex(small, small.init())
      HexSolution(value=1, winning_moves=array([False,  True,  True, False]))
    """
    _check_no_swap(env)
    labels = np.asarray(state.labels)
    if labels.shape != (env.num_cells,):
        raise ValueError(
            f"solve_hex needs one unbatched state with labels of shape {(env.num_cells,)}, "
            f"got {labels.shape}."
        )
    search = _ProofSearch(env.size, {} if memo is None else memo)
    mover = int(state.current_player)
    # Labels are positive for player 0: `sign` makes those of each player positive.
    own, other = (
        search.stones(player, np.flatnonzero(labels * sign > 0))
        for player, sign in ((mover, 1 - 2 * mover), (1 - mover, 2 * mover - 1))
    )
    winning = np.zeros(env.num_actions, bool)
    if state.terminated:
        # Without a connection, an illegal move of the opponent ended the game.
        return HexSolution(-1 if search.connects(other, 1 - mover) else 1, winning)
    region = search.cells & ~(own | other)
    for bit in search.ordered_moves(own, other, mover):
        if bit & region:
            opponent_wins, carrier = search.solve(other, own | bit, 1 - mover)
            # A move outside of the carrier leaves the opponent's proof intact, so it loses as well.
            if opponent_wins:
                region &= carrier
            else:
                winning[search.bits.index(bit)] = True
                if not all_moves:
                    break
    return HexSolution(1 if winning.any() else -1, winning)


def hex_code(env: Hex, observation: chex.Array) -> chex.Array:
    """Returns the indices of positions in `hex_value_table`; traceable.

    Args:
      env: the game, without the swap rule, of size 2 to 4.
      observation: `[..., n, n, 3]`, from `env.observe`.

    Returns:
      `[...]` int32: the observed board read in base 3, cell 0 the lowest digit, with 0 for an empty
      cell, 1 for a stone of the player to move and 2 for one of the other.

    Raises:
      ValueError: if the size or the shape is not allowed.
    """
    _check_table_size(env)
    if observation.shape[-3:] != env.observation_shape:
        raise ValueError(
            f"hex_code needs observations [..., {env.size}, {env.size}, 3], got shape "
            f"{observation.shape}."
        )
    planes = observation.astype(jnp.int32)
    digits = (planes[..., 0] + 2 * planes[..., 1]).reshape(*planes.shape[:-3], env.num_cells)
    powers = jnp.asarray(3 ** np.arange(env.num_cells), jnp.int32)
    return jnp.tensordot(digits, powers, axes=1)


def hex_value_table(env: Hex) -> np.ndarray:
    """Solves every position of a small board backwards from the full boards.

    A connected board stays connected if more stones are added. So all games may be continued until
    the board is full, and only full boards need a connection test. The 4x4 board has 10 million
    positions in 43 million entries, and takes about two seconds and a quarter of a gigabyte of
    memory.

    Example, an exact value network: `table[hex_code(env, observation)]`.

    Args:
      env: the game, without the swap rule, of size 2 to 4.

    Returns:
      `[3**(n*n)]` int8, indexed by `hex_code`: +1 if the player to move wins, -1 if not (also if
      the other player is connected already), and 0 if the numbers of stones are impossible.

    Raises:
      ValueError: if the size is not allowed or `env` has the swap rule.
    """
    _check_table_size(env)
    n, cells = env.size, env.num_cells
    # [3**cells]: how many own and other stones each code has, computed digit by digit.
    own = other = np.zeros(1, np.int8)
    for _ in range(cells):
        own = np.concatenate([own, own + np.int8(1), own])
        other = np.concatenate([other, other, other + np.int8(1)])
    # Player 0 moves when the counts are equal, player 1 when it has one stone fewer.
    # As an unsigned byte, a negative difference is a large number.
    stones = np.where((other - own).astype(np.uint8) <= 1, own + other, np.int8(-1))
    del own, other

    # The value of each cell's digit on the transposed board.
    mirrored = 3 ** np.arange(cells, dtype=np.int32).reshape(n, n).T.reshape(-1)
    half = cells // 2
    table = np.zeros(3**cells, np.int8)
    search = _ProofSearch(n, {})
    # Moves add a stone, so the next positions were evaluated in the previous iteration.
    for count in reversed(range(cells + 1)):
        codes = np.flatnonzero(stones == count).astype(np.int32)
        if count == cells:
            full = [_digits(int(code), cells) == 1 for code in codes]
            joined = [search.connects(search.stones(0, np.flatnonzero(f)), 0) for f in full]
            table[codes] = np.where(joined, 1, -1)
            continue
        # The opponent sees the board transposed and the owners exchanged. This is done digit by
        # digit, so two halves of the code can be looked up separately.
        low = _exchanged(mirrored[:half])[codes % 3**half]
        seen = _exchanged(mirrored[half:])[codes // 3**half] + low
        wins = np.zeros(len(codes), bool)
        # The new stone is a 2 to the opponent; the move wins if the opponent then loses.
        for power in mirrored:
            moves = np.flatnonzero(seen // power % 3 == 0)
            wins[moves] |= table[seen[moves] + 2 * power] < 0
        table[codes] = np.where(wins, 1, -1)
    return table


def _digits(code: int, length: int) -> np.ndarray:
    return code // 3 ** np.arange(length) % 3


def _exchanged(powers: np.ndarray) -> np.ndarray:
    """Returns, for each code of `len(powers)` digits, the sum of `power * (0, 2, 1)[digit]`."""
    out = np.zeros(1, np.int32)
    for power in powers:
        out = np.concatenate([out, out + 2 * power, out + power])
    return out


def _check_no_swap(env: Hex) -> None:
    if env.swap:
        raise ValueError("The solvers are for Hex without the swap rule, got swap=True.")


def _check_table_size(env: Hex) -> None:
    _check_no_swap(env)
    if env.size > MAX_TABLE_SIZE:
        raise ValueError(f"The table needs a size from 2 to {MAX_TABLE_SIZE}, got {env.size}.")


class _ProofSearch:
    """Proof search on integers as sets of cells.

    The board has a border of edge stones, so that an edge is an ordinary group, and one more
    column, so that shifted cells do not reappear on the other side.
    """

    def __init__(self, size: int, memo: Memo) -> None:
        self.width = width = size + 3
        self.memo = memo

        def line(row: int, col: int, down: int, right: int) -> list[int]:
            start, step = (row + 1) * width + col + 1, down * width + right
            return [1 << (start + i * step) for i in range(size)]

        self.bits = [bit for row in range(size) for bit in line(row, 0, 0, 1)]
        self.cells = sum(self.bits)
        self.edges = (
            (sum(line(-1, 0, 0, 1)), sum(line(size, 0, 0, 1))),
            (sum(line(0, -1, 1, 0)), sum(line(0, size, 1, 0))),
        )
        ring = [1, width, width - 1, -1, -width, 1 - width]
        # A bridge joins two stones over two empty cells; one move can take only one of them.
        self.bridges = [(ring[i] + ring[i - 1], ring[i], ring[i - 1]) for i in range(6)]

    def stones(self, player: int, cells: np.ndarray) -> int:
        """The player's stones, together with its edges."""
        return sum(self.edges[player]) + sum(self.bits[cell] for cell in cells)

    def connects(self, own: int, player: int) -> bool:
        low, high = self.edges[player]
        return bool(self._group(low, own) & high)

    def solve(self, own: int, other: int, mover: int) -> tuple[bool, int]:
        """Returns whether the mover wins, and the carrier of the winner."""
        # Both sets contain their player's edges, so the key also tells who is to move.
        key = (own, other)
        if key not in self.memo:
            self.memo[key] = self._solve(own, other, mover)
        return self.memo[key]

    def _solve(self, own: int, other: int, mover: int) -> tuple[bool, int]:
        empty = self.cells & ~(own | other)
        # A cell that joins both edges is a complete proof.
        if wins := self._winning_cells(own, empty, mover):
            return True, wins & -wins
        # The other side is already joined by bridges, each of which it can defend separately.
        carrier = self._bridged(other, empty, 1 - mover)
        if carrier is not None:
            return False, carrier
        region, carrier = empty, 0
        if threats := self._winning_cells(other, empty, 1 - mover):
            # Only the threatened cell has to be tried; a second threat decides the game.
            region = carrier = threats & -threats
            if second := threats & ~region:
                return False, carrier | (second & -second)
        # Must-play region: each refutation leaves only its carrier to try. If nothing is left, the
        # union of the carriers refutes all moves.
        moves = self.ordered_moves(own, other, mover) if region == empty else [region]
        for bit in moves:
            if bit & region:
                opponent_wins, needed = self.solve(other, own | bit, 1 - mover)
                if not opponent_wins:
                    return True, needed | bit
                region &= needed
                carrier |= needed
        return False, carrier

    def ordered_moves(self, own: int, other: int, mover: int) -> list[int]:
        """Returns empty cells by the sum of distances from all four edges, nearest first."""
        empty = self.cells & ~(own | other)
        score: dict[int, int] = {}
        for stones, player in ((own, mover), (other, 1 - mover)):
            for edge in self.edges[player]:
                for distance, layer in enumerate(self._layers(stones, empty, edge)):
                    while layer:
                        bit = layer & -layer
                        layer ^= bit
                        score[bit] = score.get(bit, 0) + distance
        return sorted(score, key=score.__getitem__)

    def _layers(self, stones: int, empty: int, edge: int) -> list[int]:
        """Returns sets of empty cells by two-distance from an edge; the last is unreachable.

        A cell is one step further than the second nearest of its neighbours, since the opponent
        can take the nearest.
        """
        width, layers = self.width, []
        reached = self._group(edge, stones)
        front = self._around(reached) & empty
        while front:
            layers.append(front)
            empty &= ~front
            reached = self._group(reached | front, stones | reached | front)
            # `twice` collects the cells that have two reached neighbours.
            once = twice = 0
            for shifted in (
                reached << 1, reached >> 1, reached << width, reached >> width,
                reached << (width - 1), reached >> (width - 1),
            ):  # fmt: skip
                twice |= once & shifted
                once |= shifted
            # Beside a reached stone one neighbour is enough, since it cannot be taken.
            front = (twice | self._around(reached & stones)) & empty
        # Unreachable cells count as far away, whatever the number of layers before them.
        return layers + [0] * (9 - len(layers)) + [empty]

    def _winning_cells(self, own: int, empty: int, player: int) -> int:
        low, high = self.edges[player]
        return self._around(self._group(low, own)) & self._around(self._group(high, own)) & empty

    def _bridged(self, own: int, empty: int, player: int) -> int | None:
        """Returns a carrier if bridges that share no cell join the player's edges, else None."""
        low, high = self.edges[player]
        group, carrier, grown = self._group(low, own), 0, True
        while grown and not group & high:
            grown = False
            for jump, first, second in self.bridges:
                free = empty & ~carrier
                # Own stones a bridge away, whose two middle cells are empty and in no other bridge.
                ends = _shift(group, jump) & own & ~group
                ends &= _shift(free, jump - first) & _shift(free, jump - second)
                if ends:
                    # One at a time, since two ends may need the same cell.
                    end = ends & -ends
                    carrier |= _shift(end, first - jump) | _shift(end, second - jump)
                    group = self._group(group | end, own)
                    grown = True
        return carrier if group & high else None

    def _around(self, cells: int) -> int:
        """The cells and their neighbours."""
        a, b = self.width, self.width - 1
        return cells | cells << 1 | cells >> 1 | cells << a | cells >> a | cells << b | cells >> b

    def _group(self, seed: int, own: int) -> int:
        """The part of `own` that is connected with `seed`."""
        while (grown := self._around(seed) & own) != seed:
            seed = grown
        return seed


def _shift(cells: int, by: int) -> int:
    return cells << by if by >= 0 else cells >> -by
