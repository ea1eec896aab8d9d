"""A policy that is linear in the local patterns around each action (Soemers et al. 2019).

The logit of an action is the sum of the weights of all patterns that match around the cells that
the action touches; see `pattern_templates`. Patterns are local: a cell's position on the board
matters only through nearby edges. So weights trained on one board size can be used on any other.
"""

import functools
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxpgs.base import Env
from jaxpgs.networks.layers.geometry import (
    EDGE,
    EMPTY,
    GAMES,
    LAST,
    MARGIN,
    BoardGeometry,
    LastMove,
    board_geometry,
    named_geometry,
)
from jaxpgs.networks.pattern_templates import (
    Pattern,
    Tables,
    Template,
    compile_templates,
    default_templates,
)


class PatternPolicy(nnx.Module):
    """A policy linear in local patterns; it is uniform before training.

    Observations are those of the game or of `with_last_move`; with the former, no reactive template
    matches. The features of a state are `[B, K, S]` int16, the K patterns that match around each of
    S cells. These are all cells or, for boards such as Connect Four, only those that actions touch.
    `weights_of` returns the weights of each action. `pattern_policy(env)` fills in the arguments.

    Args:
      observation_shape: `(rows, columns, planes)` of the game's own observation.
      num_actions: number of actions A.
      board: the game's name, `board_geometry(env).name`, or a `BoardGeometry`.
      templates: the templates of the patterns; None for `default_templates`.
      value: whether the value is the hyperbolic tangent of a second linear function of the
        patterns, averaged over the cells. If not, it is 0, as suits searches with playouts.
      rngs: not used, as all weights are initially 0.

    Raises:
      ValueError: if the board is unknown or a template is too large.

    Example:
      >>> game = jaxpgs.networks.with_last_move(jaxpgs.envs.Hex(3))
      >>> network = jaxpgs.networks.pattern_policy(game)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
    """

    is_torso_and_heads = True  # see `networks.functional`

    def __init__(
        self,
        observation_shape: Sequence[int],
        num_actions: int,
        *,
        board: str | BoardGeometry,
        templates: Sequence[Template] | None = None,
        value: bool = False,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        del rngs
        geometry = board
        if not isinstance(geometry, BoardGeometry):
            geometry = named_geometry(geometry, tuple(observation_shape), num_actions)
        if templates is None:
            templates = default_templates(geometry)
        # Arguments from a card may have lists in place of tuples.
        self.templates = tuple(
            Template(name, tuple((r, c) for r, c in cells), last and (last[0], last[1]))
            for name, cells, last in templates
        )
        self.board, self.value, self.num_actions = board, value, num_actions
        self.geometry = geometry
        self.tables = compile_templates(geometry, self.templates)
        self.torso = _Torso(geometry, self.tables)
        self.policy_head = _PolicyHead(geometry, self.tables)
        self.value_head = _ValueHead(geometry, self.tables, value)

    def __call__(self, observation: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Evaluates a batch of observations.

        Args:
          observation: `[B, rows, columns, planes]` of the game, or `[B, cells]` codes of
            `with_last_move`, of any real type.

        Returns:
          Logits `[B, A]` and values `[B]` in [-1, 1], both float32.
        """
        features = self.torso(observation)
        return self.policy_head(features), self.value_head(features)

    @property
    def num_weights(self) -> int:
        """The number of weights W of the policy."""
        return len(self.geometry.anchor_names) * len(self.tables.patterns)

    def weights_of(self, features: chex.ArrayNumpy) -> np.ndarray:
        """Returns the indices of the weights whose sum is an action's logit.

        Args:
          features: `[B, K, S]` integers, as `torso` returns them.

        Returns:
          `[B, n * K, A]` integers below W, or W if nothing matches. Here, n is the number of cells
          that an action touches.
        """
        spelled_out = _spelled_out(self.geometry, self.tables)
        features = np.asarray(features)
        nothing = np.zeros_like(features[..., :1])
        features = np.concatenate([features, nothing], axis=-1)  # for index -1
        sites = _sites(self.geometry, self.num_actions)
        # One row of weights for each of the n cells that an action touches, [B, K, A] each.
        found = [spelled_out[i][features[..., sites[:, i]]] for i in range(len(spelled_out))]
        return np.concatenate(found, axis=1)

    def describe(self, index: int) -> Pattern:
        """Returns the pattern of the weight with this index, from 0 to W - 1."""
        anchor, kind = divmod(index, len(self.tables.patterns))
        return self.tables.patterns[kind]._replace(anchor=self.geometry.anchor_names[anchor])


def pattern_policy(
    env: Env, *, templates: Sequence[Template] | None = None, value: bool = False
) -> PatternPolicy:
    """Makes a `PatternPolicy` for an environment.

    Args:
      env: an environment that `board_geometry` knows, or one made by `with_last_move`. Only with
        the latter do reactive templates match.
      templates: as in `PatternPolicy`.
      value: as in `PatternPolicy`.

    Returns:
      The untrained network. `save_pretrained` accepts either of these two environments as `env`.

    Raises:
      ValueError: if the environment is unknown or a template is too large.

    Example:
      >>> game = jaxpgs.networks.with_last_move(jaxpgs.envs.Hex(3))
      >>> network = jaxpgs.networks.pattern_policy(game)
      >>> type(network).__name__
      'PatternPolicy'
    """
    geometry = board_geometry(env)
    game = env.env if isinstance(env, LastMove) else env
    arguments = (tuple(game.observation_shape), game.num_actions)
    # Only a name can be saved in a card.
    known = geometry.name in GAMES and named_geometry(geometry.name, *arguments) is geometry
    board = geometry.name if known else geometry
    return PatternPolicy(*arguments, board=board, templates=templates, value=value)


class _Torso(nnx.Module):
    """Finds the matching patterns; has no parameters."""

    def __init__(self, geometry: BoardGeometry, tables: Tables) -> None:
        self.geometry, self.tables = geometry, tables

    def __call__(self, observation: chex.Array) -> chex.Array:
        """Returns the features `[B, K, S]` int16: the patterns that match around each cell."""
        geometry, tables = self.geometry, self.tables
        if observation.ndim == 2 and observation.shape[1] == geometry.num_cells:
            codes = observation.astype(jnp.int8)
        elif observation.ndim == 4:
            codes = geometry.codes(observation)
        else:
            raise ValueError(
                f"The observation must have shape (B, {geometry.num_cells}) or (B, rows, columns, "
                f"planes), got {observation.shape}."
            )
        # [B, cells + edges]: the edges follow the cells, in the numbering of `geometry.plane`, so
        # that a single lookup works for both.
        edges = EDGE + jnp.arange(len(geometry.edge_names), dtype=jnp.int8)
        edges = jnp.broadcast_to(edges, (len(codes), len(geometry.edge_names)))
        board = jnp.concatenate([codes, edges], axis=1)
        # In patterns `LAST` is `OTHER`, and the edges' codes move down to follow it.
        digits = (board - (board >= LAST).astype(jnp.int8)).astype(jnp.int16)
        # Without the barrier, XLA would recompute them at every use. The features have one, too.
        board, digits = jax.lax.optimization_barrier((board, digits))

        at = geometry.coordinates + np.array(tables.offsets)[:, None] + MARGIN
        around = geometry.plane[at[..., 0], at[..., 1]]  # [L, cells]
        # Patterns count around empty cells, or around all cells if an anchor may hold a stone.
        counts = jnp.array(True) if geometry.anchor_occupied else codes == EMPTY  # [B, S]
        if geometry.sites is None:
            # If few cells can be played, as in Connect Four, only these are looked up.
            cells = jnp.swapaxes(geometry.anchors(codes), 1, 2).reshape(len(codes), -1)
            counts = cells >= 0

        def look(board: chex.Array, offsets: np.ndarray) -> chex.Array:
            """Returns the contents `[B, G, S]` at the offsets `[G]` from each of the S cells."""
            if geometry.sites is not None:
                return board[:, around[offsets]]
            index = jnp.asarray(around[offsets], jnp.int32)[:, cells]  # [G, B, S]
            return jnp.take_along_axis(board[:, None], jnp.swapaxes(index, 0, 1), axis=-1)

        features = []
        for group in tables.groups:
            code = jnp.zeros((), jnp.int16)
            for offsets in group.cells:
                # The cells' codes are the digits of one number, [B, G, S] for G images.
                code = code * jnp.int16(tables.num_codes) + look(digits, offsets)
            if group.lookup is not None:
                code = jnp.asarray(group.lookup, jnp.int16)[code]
            feature = code + jnp.asarray(group.start, jnp.int16)[None, :, None]
            matches = jnp.expand_dims(counts, -2) if counts.ndim else counts
            if group.last is not None:
                matches = matches & (look(board, group.last) == LAST)
            feature = jnp.where(matches, feature, jnp.int16(0))
            if group.last is not None:
                # There is only one last move, so at most one of the images matches.
                feature = jnp.max(feature, axis=1, keepdims=True)
            features.append(feature)
        return jax.lax.optimization_barrier(jnp.concatenate(features, axis=1))


class _Linear(nnx.Module):
    """Sums the weights of the matching patterns."""

    def __init__(self, geometry: BoardGeometry, tables: Tables) -> None:
        self.geometry, self.tables = geometry, tables
        num_weights = len(geometry.anchor_names) * len(tables.patterns)
        self.kernel = nnx.Param(jnp.zeros(num_weights, jnp.float32))

    def __call__(self, features: chex.Array) -> list[chex.Array]:
        """Returns n sums `[B, S]`, or `[B, A]`, from features `[B, K, S]`, or `[B, K, n * A]`."""
        # The weight for no match is always 0.
        kernel = jnp.pad(self.kernel[...], (0, 1))
        weights = kernel[_spelled_out(self.geometry, self.tables)]
        # Makes the weights vary over devices as the features do, which the gradient requires.
        weights += (jnp.sum(features[:, :1, :1], dtype=jnp.int32) * 0).astype(weights.dtype)
        parts = [features] * len(weights)
        if self.geometry.sites is None:
            parts = jnp.split(features, len(weights), axis=-1)
        return [_sum_found(weights[i], part) for i, part in enumerate(parts)]


class _PolicyHead(nnx.Module):
    def __init__(self, geometry: BoardGeometry, tables: Tables) -> None:
        self.geometry = geometry
        self.linear = _Linear(geometry, tables)

    def __call__(self, features: chex.Array) -> chex.Array:
        """Returns logits `[B, A]`."""
        sums, sites = self.linear(features), self.geometry.sites
        if sites is not None:
            sums = [_of_actions(x, sites[:, i]) for i, x in enumerate(sums)]
        return functools.reduce(jnp.add, sums)


class _ValueHead(nnx.Module):
    def __init__(self, geometry: BoardGeometry, tables: Tables, learns: bool) -> None:
        self.linear = _Linear(geometry, tables) if learns else None

    def __call__(self, features: chex.Array) -> chex.Array:
        """Returns values `[B]`."""
        if self.linear is None:
            return jnp.zeros(len(features), jnp.float32)
        return jnp.tanh(jnp.mean(functools.reduce(jnp.add, self.linear(features)), axis=1))


def _of_actions(sums: chex.Array, sites: np.ndarray) -> chex.Array:
    """Returns `[B, A]`, the sums `[B, cells]` at each action's cell, or 0 if it has no cell."""
    num_actions, num_cells = len(sites), sums.shape[1]
    # The usual case needs no gather: action i is at cell i, and any further actions have no cell.
    if np.array_equal(sites, np.where(np.arange(num_actions) < num_cells, range(num_actions), -1)):
        return jnp.pad(sums, ((0, 0), (0, num_actions - num_cells)))
    return jnp.pad(sums, ((0, 0), (0, 1)))[:, sites]  # index -1 finds the zero at the end


@jax.custom_vjp
def _sum_found(weights: chex.Array, features: chex.Array) -> chex.Array:
    """Sums `weights[features [B, K, S]]` over K."""
    total = jnp.zeros(features[:, 0].shape, weights.dtype)
    # In a Python loop, XLA adds the weights as it reads them; a single gather is slower.
    for k in range(features.shape[1]):
        index = weights.at[features[:, k]]
        total += index.get(mode="promise_in_bounds", wrap_negative_indices=False)
    return total


def _sum_found_forward(weights: chex.Array, features: chex.Array) -> tuple[chex.Array, Any]:
    return _sum_found(weights, features), (weights, features)


def _sum_found_backward(inputs: Any, cotangent: chex.Array) -> tuple[chex.Array, None]:
    """Accumulates in a loop whose body is compiled once, not K times as in the forward pass."""
    weights, features = inputs

    def add(k: chex.Array, total: chex.Array) -> chex.Array:
        index = total.at[jax.lax.dynamic_index_in_dim(features, k, 1, keepdims=False)]
        return index.add(cotangent, mode="promise_in_bounds", wrap_negative_indices=False)

    return jax.lax.fori_loop(0, features.shape[1], add, jnp.zeros_like(weights)), None


_sum_found.defvjp(_sum_found_forward, _sum_found_backward)


def _spelled_out(geometry: BoardGeometry, tables: Tables) -> np.ndarray:
    """Returns `[n, features]` integers: the weight index of each feature for each anchor."""
    # Each of the n cells that an action touches has its own copy of all weights. Feature 0 has the
    # index after the last weight, where `_Linear` puts a zero.
    first = np.arange(len(geometry.anchor_names))[:, None] * len(tables.patterns)
    table = first + tables.spelled_out
    table[:, 0] = len(first) * len(tables.patterns)
    return table


def _sites(geometry: BoardGeometry, num_actions: int) -> np.ndarray:
    """Returns `[A, n]` integers: the position of each action's features; -1 for none."""
    if geometry.sites is not None:
        return geometry.sites
    return np.arange(len(geometry.anchor_names) * num_actions).reshape(-1, num_actions).T
