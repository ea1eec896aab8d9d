"""Boards as cells with codes and neighbours, and games that show the opponent's last move.

Patterns of stones need information that observation planes lack: which cells surround a cell, what
lies beyond the edge, which cells an action touches and where the opponent moved last.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.base import Env

# The contents of a cell, as the player to move sees it. Codes from EDGE on are beyond the board.
EMPTY, OWN, OTHER, LAST, EDGE = range(5)
MARGIN = 3
GAMES = ("hex", "yavalath", "breakthrough", "connect_four", "othello")

Matrix = tuple[tuple[int, int], tuple[int, int]]
Offset = tuple[int, int]  # rows down, columns to the right


@dataclasses.dataclass(frozen=True, eq=False)
class BoardGeometry:
    """The information about a game's board that patterns need.

    For another two-player game, make your own; `with_last_move` and `PatternPolicy` accept it. All
    cells are in the frame in which a network sees the board.

    Attributes:
      name: the game.
      coordinates: `[cells, 2]` integers, each cell's row and column in the observation.
      plane: `[rows + 2 * MARGIN, columns + 2 * MARGIN]` integers, a map of the observation with a
        margin around it: the number of a cell, or `cells + e` for the edge with code `EDGE + e`.
      edge_names: names of the edges; there is at least one.
      lattice: all rotations and reflections of the neighbourhood, as matrices on offsets.
      shared: those in `lattice` that leave the game's rules unchanged. They form a group.
      anchor_names: names of the n cells that an action touches; the cell of the move is first.
      anchors: `codes [..., cells] -> [..., A, n]` int32, the cells that each action touches; -1 for
        none, for example if the action cannot be played.
      sites: `[A, n]` integers, if each entry of `anchors` is always this cell or -1; else None.
      anchor_occupied: whether an anchor can hold a stone before the move.
      turned: `[cells]` integers, where the other player sees each cell.

    Example:
      >>> jaxpgs.networks.board_geometry(jaxpgs.envs.Hex(3)).edge_names
      ('own edge', 'other edge')
    """

    name: str
    coordinates: np.ndarray
    plane: np.ndarray
    edge_names: tuple[str, ...]
    lattice: tuple[Matrix, ...]
    shared: tuple[Matrix, ...]
    anchor_names: tuple[str, ...]
    anchors: Callable[[chex.Array], chex.Array]
    sites: np.ndarray | None
    anchor_occupied: bool
    turned: np.ndarray

    @property
    def num_cells(self) -> int:
        """The number of cells."""
        return len(self.coordinates)

    @property
    def hexagonal(self) -> bool:
        """Whether a cell has six neighbours instead of eight."""
        return len(self.lattice) == 12

    def codes(self, observation: chex.Array) -> chex.Array:
        """Reads `[..., cells]` int8 codes from `[..., rows, columns, own and other's planes]`."""
        planes = observation.astype(jnp.int8)
        # No cell has stones of both players, so the planes add up to a code.
        board = planes[..., 0] * jnp.int8(OWN) + planes[..., 1] * jnp.int8(OTHER)
        rows, columns = self.coordinates.T
        # If every position of the observation is a cell, no gather is needed.
        if self.num_cells == board.shape[-2] * board.shape[-1]:
            return board.reshape(*board.shape[:-2], -1)
        return board[..., rows, columns]


def board_geometry(env: Env) -> BoardGeometry:
    """Returns the geometry of an environment's board.

    Args:
      env: `Hex`, `Yavalath` or `Breakthrough` of `jaxpgs.envs`, "connect_four" or "othello" of pgx,
        or an environment made by `with_last_move`.

    Returns:
      The geometry; the same object for environments of the same kind and size.

    Raises:
      ValueError: if it is any other environment.

    Example:
      >>> jaxpgs.networks.board_geometry(jaxpgs.envs.Hex(3)).name
      'hex'
    """
    if isinstance(env, LastMove):
        return env.geometry
    name = getattr(env, "id", type(env).__name__.lower())
    return named_geometry(name, tuple(env.observation_shape), env.num_actions)


@functools.cache
def named_geometry(
    name: str, observation_shape: tuple[int, ...], num_actions: int
) -> BoardGeometry:
    """Makes the geometry of a named game; `board_geometry` derives the arguments from a game.

    Args:
      name: one of `GAMES`.
      observation_shape: `(rows, columns, planes)` of the game's own observation.
      num_actions: A.

    Returns:
      The geometry; the same object for the same arguments.

    Raises:
      ValueError: if the name is unknown.
    """
    if name not in GAMES:
        raise ValueError(
            f"board_geometry has the boards of {', '.join(GAMES)}, but not of {name!r}; for other "
            "games make a jaxpgs.networks.BoardGeometry."
        )
    rows, columns = observation_shape[:2]
    # Rows and columns with a margin as wide as the reach of the largest template.
    r, c = np.indices((rows + 2 * MARGIN, columns + 2 * MARGIN)) - MARGIN
    inside = (r >= 0) & (r < rows) & (c >= 0) & (c < columns)
    if name == "yavalath":
        # The hexagon within its square of rows and columns; see `Yavalath.coordinates`.
        inside &= (r + c >= rows // 2) & (r + c <= rows // 2 * 3)
    coordinates = np.argwhere(inside) - MARGIN
    cells = np.arange(len(coordinates))
    plane = np.full(r.shape, len(cells))
    turned = cells
    edge_names: tuple[str, ...] = ("edge",)
    if name == "hex":
        # The player to move connects top and bottom; these edges include the outer corners.
        plane += (r >= 0) & (r < rows)
        turned, edge_names = cells.reshape(rows, rows).T.ravel(), ("own edge", "other edge")
    plane[inside] = cells

    hexagonal = name in ("hex", "yavalath")
    lattice = _HEXAGONAL if hexagonal else _SQUARE
    anchor_names: tuple[str, ...] = ("cell",)
    shared, occupied = lattice, False
    # An action after those of the cells is a swap or a pass, which touches no cell.
    actions = np.arange(num_actions)[:, None]
    own_cells = np.where(actions < len(cells), actions, -1)
    sites: np.ndarray | None = own_cells
    anchors = functools.partial(_empty_sites, own_cells)
    if name == "connect_four":
        # Stones fall: only left and right are equivalent. An action's cell depends on the state.
        shared, anchor_names, sites = _MIRRORED, ("cell", "above"), None
        anchors = functools.partial(_landing_cells, rows)
    elif name == "breakthrough":
        shared, anchor_names, turned = _MIRRORED, ("to", "from"), cells[::-1]
        # [cells, 3 directions]: the target of each action; one beyond the board touches no cell.
        source = coordinates[:, None]
        targets = plane[tuple(np.moveaxis(source + _AHEAD + MARGIN, -1, 0))]
        sites = np.stack([targets, np.broadcast_to(cells[:, None], targets.shape)], axis=-1)
        sites = np.where((targets < len(cells))[..., None], sites, -1).reshape(num_actions, 2)
        anchors, occupied = functools.partial(_pawn_sites, sites), True
    return BoardGeometry(
        name,
        coordinates,
        plane,
        edge_names,
        lattice,
        shared,
        anchor_names,
        anchors,
        sites,
        occupied,
        turned,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LastMoveState:
    """A state that knows the last move. Leading batch axes may be added by `jax.vmap`.

    Attributes:
      state: the environment's own state.
      last: `[]` int32, the cell of the last move as the player to move sees it; -1 for none.
    """

    state: Any
    last: chex.Array

    @property
    def current_player(self) -> chex.Array:
        """`[]` int32, the player to move."""
        return self.state.current_player

    @property
    def rewards(self) -> chex.Array:
        """`[players]` float32, each player's reward in the last step."""
        return self.state.rewards

    @property
    def terminated(self) -> chex.Array:
        """`[]` bool."""
        return self.state.terminated

    @property
    def legal_action_mask(self) -> chex.Array:
        """`[A]` bool, the mask of the environment's own state."""
        return self.state.legal_action_mask


@dataclasses.dataclass(frozen=True)
class LastMove:
    """A game whose observation is `[cells]` int8 codes, with the opponent's last move marked.

    `with_last_move` makes one. Its rules are those of `env`, and it has `policy_logits` and
    `network_policy` if `env` has them.

    Attributes:
      env: the game.
      geometry: its board.
    """

    env: Env
    geometry: BoardGeometry

    @property
    def num_players(self) -> int:
        """The number of players."""
        return self.env.num_players

    @property
    def num_actions(self) -> int:
        """The number of actions A."""
        return self.env.num_actions

    @property
    def observation_shape(self) -> tuple[int]:
        """The shape of one observation."""
        return (self.geometry.num_cells,)

    def init(self, key: chex.PRNGKey | None = None) -> LastMoveState:
        """Returns the first position, without a last move; the key is passed to the game."""
        return LastMoveState(self.env.init(key), jnp.int32(-1))

    def step(self, state: LastMoveState, action: chex.Array) -> LastMoveState:
        """Plays one action `[]` in an unbatched position, and remembers its cell."""
        before, after = state.state, self.env.step(state.state, action)
        action = jnp.asarray(action, jnp.int32)
        if hasattr(self.env, "policy_logits"):
            # The index of the network's logit that belongs to the action.
            numbers = jnp.arange(self.num_actions, dtype=jnp.int32)
            action = self.env.policy_logits(before, numbers)[action]
        if self.geometry.sites is not None:
            cell = jnp.asarray(self.geometry.sites, jnp.int32)[action, 0]
        else:
            codes = self.geometry.codes(self.env.observe(before))
            cell = self.geometry.anchors(codes)[action, 0]
        # The cell is in the mover's frame. If the opponent is next, convert it to their frame.
        turns = (after.current_player != before.current_player) & (cell >= 0)
        cell = jnp.where(turns, jnp.asarray(self.geometry.turned, jnp.int32)[cell], cell)
        return LastMoveState(after, jnp.where(before.terminated, state.last, cell))

    def observe(self, state: LastMoveState) -> chex.Array:
        """Returns `[cells]` int8 codes from the view of the player to move.

        They are `EMPTY`, `OWN`, `OTHER`, and `LAST` for the stone of the opponent's last move, if
        it is on the board.
        """
        codes = self.geometry.codes(self.env.observe(state.state))
        cells = jnp.arange(self.geometry.num_cells, dtype=jnp.int32)
        return jnp.where((cells == state.last) & (codes == OTHER), jnp.int8(LAST), codes)

    def __getattr__(self, name: str) -> Any:
        # These are not methods, as `hasattr` must give the same result for this game as for `env`.
        if name not in ("policy_logits", "network_policy"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        mapping = getattr(self.env, name)
        return lambda state, x: mapping(state.state, x)


def with_last_move(env: Env, geometry: BoardGeometry | None = None) -> LastMove:
    """Makes a game observe cells' codes and the opponent's last move in place of planes.

    Args:
      env: a game of two players, of this library or of pgx.
      geometry: its board; None for that of `board_geometry`.

    Returns:
      The environment, which can be used wherever `env` can.

    Raises:
      ValueError: if no geometry is given and `board_geometry` does not know the game.

    Example:
      >>> game = jaxpgs.networks.with_last_move(jaxpgs.envs.Hex(3))
      >>> game.observe(game.step(game.init(), 4)).shape
      (9,)
    """
    return LastMove(env, board_geometry(env) if geometry is None else geometry)


def apply_matrix(matrix: Matrix, offset: Offset) -> Offset:
    """Rotates or reflects an offset."""
    (a, b), (c, d) = matrix
    return (a * offset[0] + b * offset[1], c * offset[0] + d * offset[1])


def _generate(turn: Matrix, mirror: Matrix, order: int) -> tuple[Matrix, ...]:
    """Lists the `order` rotations, and each of them applied after the reflection."""
    product = [np.linalg.matrix_power(np.array(turn), k) for k in range(order)]
    product += [matrix @ np.array(mirror) for matrix in product]
    return tuple(((int(m[0, 0]), int(m[0, 1])), (int(m[1, 0]), int(m[1, 1]))) for m in product)


# Rotations by 60 degrees on hexagons and by 90 degrees on squares, and reflections, as matrices on
# (rows down, columns to the right).
_HEXAGONAL = _generate(((0, -1), (1, 1)), ((-1, 0), (1, 1)), 6)
_SQUARE = _generate(((0, -1), (1, 0)), ((1, 0), (0, -1)), 4)
_MIRRORED = _generate(((1, 0), (0, 1)), ((1, 0), (0, -1)), 1)
_AHEAD = np.array([(-1, -1), (-1, 0), (-1, 1)])


def _empty_sites(sites: np.ndarray, codes: chex.Array) -> chex.Array:
    return _sites_where(sites, codes[..., sites[:, 0]] == EMPTY)


def _pawn_sites(sites: np.ndarray, codes: chex.Array) -> chex.Array:
    """A pawn moves to a cell without an own pawn; it captures only diagonally."""
    target, source = codes[..., sites[:, 0]], codes[..., sites[:, 1]]
    straight = jnp.broadcast_to(np.arange(len(sites)) % 3 == 1, target.shape)
    free = (target == EMPTY) | ((target != OWN) & ~straight)
    return _sites_where(sites, (source == OWN) & free)


def _sites_where(sites: np.ndarray, playable: chex.Array) -> chex.Array:
    """Returns `[..., A, n]` int32: the sites of actions that are playable `[..., A]`, else -1."""
    cells = jnp.broadcast_to(jnp.asarray(sites, jnp.int32), (*playable.shape, sites.shape[1]))
    return jnp.where(playable[..., None], cells, jnp.int32(-1))


def _landing_cells(rows: int, codes: chex.Array) -> chex.Array:
    """The lowest empty cell of each column and the one above it, open to the opponent next."""
    board = codes.reshape(*codes.shape[:-1], rows, -1)
    columns = board.shape[-1]
    # Stones lie at the bottom, so the number of empty cells gives the row of the lowest one.
    row = jnp.sum(board == EMPTY, axis=-2, dtype=jnp.int32) - 1
    row = jnp.stack([row, row - 1], axis=-1)
    column = jnp.broadcast_to(jnp.arange(columns, dtype=jnp.int32)[:, None], row.shape)
    return jnp.where(row >= 0, row * columns + column, jnp.int32(-1))
