"""Players of batched games, and their compilation.

A player has a name, an initial memory, and a function that chooses one action in each of G games at
once. It is compiled once per environment and batch size, together with the environment's step, and
is then used in every pairing of a tournament.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core

from jaxpgs import trees
from jaxpgs.adapters.environments import chance_key, check_players, gain_of, step_with_keys
from jaxpgs.base import Env


@dataclasses.dataclass(frozen=True)
class Player:
    """A player of G games at once.

    Attributes:
      name: unique within a tournament; it also seeds the player's games.
      init: `init(batch_size)` returns the memory at the start of G games, any pytree of arrays:
        `()` for none, or for example the policy head that a search adapts during a game. Arrays
        whose first axis is G belong to the single games, and do not change while a game waits for
        the other player.
      act: `act(rng_key, state, memory)` returns `(action [G], memory, stats)`. `state` has a
        leading axis G, the memory keeps its structure, and `stats` is a dict of scalars that are
        summed over calls, such as `num_evaluations`. It is traced once. Finished games stay in the
        batch, and so do games in which the other player is to move, which are marked as terminated;
        the actions in both are ignored. Arrays that `act` closes over, such as a network's
        parameters, become arguments of the compiled program, not constants in it.
      host: True if `act` cannot be traced. It then gets a state of NumPy arrays and may return
        NumPy arrays.
      deterministic: True if the actions do not depend on the key. Two such players play an opening
        once with each colour, however many repeats are requested.

    Example:
      >>> def first_legal(rng_key, state, memory):
      ...     return jnp.argmax(state.legal_action_mask, axis=-1), memory, {}
      >>> player = jaxpgs.evaluation.Player("first", lambda batch_size: (), first_legal)
    """

    name: str
    init: Callable[[int], Any]
    act: Callable[[chex.PRNGKey, Any, Any], tuple[Any, Any, dict[str, Any]]]
    host: bool = False
    deterministic: bool = False


class MatchGames(NamedTuple):
    """G games in progress.

    Attributes:
      state: the environment's state with a leading axis G.
      opener: `[G]` int32, the environment's number of the player who moved first.
      score: `[G]` float32, the total reward of this player so far.
      length: `[G]` int32, the moves of both players so far, including the opening.
      limit: `[]` int32, the length after which a game is cut off.
    """

    state: Any
    opener: chex.Array
    score: chex.Array
    length: chex.Array
    limit: chex.Array

    @property
    def going_on(self) -> chex.Array:
        """`[G]` bool, whether there is a move to make."""
        return ~self.state.terminated & (self.length < self.limit)

    @property
    def opener_moves(self) -> chex.Array:
        """`[G]` bool, whether the player who moved first is to move."""
        return self.state.current_player == self.opener

    def waiting(self) -> chex.Array:
        """Returns `[2]` int32, how many games wait for the first mover, and for the other."""
        first = self.opener_moves
        waits = jnp.stack([self.going_on & first, self.going_on & ~first])
        return jnp.sum(waits, axis=-1, dtype=jnp.int32)


class Turn(NamedTuple):
    """What one call of a compiled player returns.

    Attributes:
      games: the games after the move.
      memory: the player's memory.
      stats: the player's dict of scalars.
      moves: `[]` int32, in how many of the games the player moved.
      waiting: `[2]` int32, how many games are unfinished, as counted by `MatchGames.waiting`.
    """

    games: MatchGames
    memory: Any
    stats: dict[str, Any]
    moves: Any
    waiting: Any


@dataclasses.dataclass(frozen=True)
class CompiledPlayer:
    """A player ready to play batches of one size; see `compile_player`.

    Attributes:
      player: the player that was compiled.
      batch_size: G.
      turn: `turn(rng_key, games, memory, opens)` makes a move in those games where it is the
        player's turn, and returns a `Turn`; `opens`, `[]` bool, tells whether it moved first.
      compile_seconds: time to trace and compile.
      temp_bytes: scratch memory of the compiled program, None if the backend does not report it or
        the player runs on the host.

    Example:
      >>> random, network = (
      ...     jaxpgs.evaluation.compile_player(env, player, batch_size=9)
      ...     for player in (
      ...         jaxpgs.evaluation.uniform_random(env),
      ...         jaxpgs.evaluation.raw_network(env, apply_fn, params),
      ...     )
      ... )
      >>> jaxpgs.evaluation.play_match(env, random, network, rng_key).games
      18
    """

    player: Player
    batch_size: int
    turn: Callable[[chex.PRNGKey, MatchGames, Any, chex.Array], Turn]
    compile_seconds: float
    temp_bytes: int | None


def advance_games(
    env: Env, games: MatchGames, action: chex.Array, rng_key: chex.PRNGKey, moves: chex.Array
) -> MatchGames:
    """Plays one action `[G]` in each game in which `moves` is true; the key is for chance."""
    before = games.state
    after = step_with_keys(env)(before, jnp.asarray(action, jnp.int32), chance_key(rng_key))
    gain = gain_of(env, games.opener, before, after).astype(games.score.dtype)
    # Games in which the other player is to move stay as they are.
    return games._replace(
        state=trees.where(moves, after, before),
        score=games.score + jnp.where(moves, gain, 0.0),
        length=games.length + moves.astype(jnp.int32),
    )


@functools.partial(jax.jit, static_argnums=0)
def open_games(
    env: Env, rng_key: chex.PRNGKey, openings: chex.Array, limit: chex.Array
) -> MatchGames:
    """Starts a game for each opening `[G, L]`, a line of L actions, and plays these actions."""
    num_games, length = openings.shape
    state = jax.vmap(env.init)(jax.random.split(rng_key, num_games))
    # An environment may choose the first mover at random, so each game has its own.
    opener = jnp.asarray(state.current_player, jnp.int32)
    score, moves = jnp.zeros(num_games, jnp.float32), jnp.zeros(num_games, jnp.int32)
    games = MatchGames(state, opener, score, moves, limit)
    for ply in range(length):
        key = jax.random.fold_in(rng_key, ply)
        games = advance_games(env, games, openings[:, ply], key, games.going_on)
    return games


def compile_player(env: Env, player: Player, batch_size: int) -> CompiledPlayer:
    """Compiles a player's move and the environment's step into one program.

    Args:
      env: a two-player environment that is hashable.
      player: the player. Its `act` is traced once here and never again.
      batch_size: the number of games G in one call.

    Returns:
      The compiled player. For a host player only the environment's step is compiled.

    Raises:
      ValueError: if `batch_size` is not positive, the game does not have two players, or `act`
        returns actions of the wrong shape or a memory of another structure, shape or dtype than its
        argument.

    Example:
      >>> player = jaxpgs.evaluation.uniform_random(env)
      >>> compiled = jaxpgs.evaluation.compile_player(env, player, batch_size=9)
      >>> compiled.batch_size
      9
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    check_two_players("compile_player", env)
    start = time.perf_counter()
    # The arguments as shapes. They do not depend on the length of the opening, so one move is used.
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    lines = jax.ShapeDtypeStruct((batch_size, 1), jnp.int32)
    limit, opens = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.bool_)
    games = jax.eval_shape(functools.partial(open_games, env), key, lines, limit)
    # The games in which the player moves.
    moves = jax.ShapeDtypeStruct((batch_size,), jnp.bool_)

    def step(
        games: MatchGames, action: chex.Array, rng_key: chex.PRNGKey, moves: chex.Array
    ) -> tuple[MatchGames, chex.Array, chex.Array]:
        games = advance_games(env, games, action, rng_key, moves)
        return games, jnp.sum(moves, dtype=jnp.int32), games.waiting()

    if player.host:
        compiled_step = jax.jit(step).lower(games, action, key, moves).compile()
        host_turn = functools.partial(_host_turn, player, compiled_step)
        return CompiledPlayer(player, batch_size, host_turn, time.perf_counter() - start, None)

    def turn(rng_key: chex.PRNGKey, games: MatchGames, memory: Any, opens: chex.Array) -> Turn:
        moves = games.going_on & (games.opener_moves == opens)
        shown = _over_where(~moves, games.state)
        action, new_memory, stats = player.act(rng_key, shown, memory)
        # Checked while tracing, where the error can name the player.
        _check_act(player, batch_size, action, memory, new_memory)
        new_memory = _kept(games.going_on & ~moves, memory, new_memory, jnp.where)
        games, count, waiting = step(games, action, rng_key, moves)
        return Turn(games, new_memory, stats, count, waiting)

    memory = jax.eval_shape(lambda: player.init(batch_size))
    # Lowering `turn` itself would write closed-over parameters into the program as literals.
    traced, shapes = jax.make_jaxpr(turn, return_shape=True)(key, games, memory, opens)
    out_tree = jax.tree.structure(shapes)

    # The jaxpr's constants become the first argument, which all calls share.
    def run(constants: list[Any], *args: Any) -> Turn:
        closed = jax_core.ClosedJaxpr(traced.jaxpr, constants)
        flat = jax_core.jaxpr_as_fun(closed)(*jax.tree.leaves(args))
        return jax.tree.unflatten(out_tree, flat)

    program = jax.jit(run).lower(traced.consts, key, games, memory, opens).compile()
    seconds = time.perf_counter() - start
    analysis = program.memory_analysis()
    temp_bytes = getattr(analysis, "temp_size_in_bytes", None)
    call = functools.partial(program, traced.consts)
    return CompiledPlayer(player, batch_size, call, seconds, temp_bytes)


def _host_turn(
    player: Player,
    step: Callable[..., tuple[MatchGames, chex.Array, chex.Array]],
    rng_key: chex.PRNGKey,
    games: MatchGames,
    memory: Any,
    opens: chex.Array,
) -> Turn:
    """Makes the turn of a host player; only `step` is compiled."""
    moves = games.going_on & (games.opener_moves == opens)
    waits = np.asarray(games.going_on & ~moves)
    # Games in which the other player is to move are marked as terminated, to save work.
    shown = _over_where(~np.asarray(moves), jax.device_get(games.state))
    action, new_memory, stats = player.act(rng_key, shown, memory)
    # If players alternate, no game waits.
    if waits.any():
        new_memory = _kept(waits, memory, new_memory, np.where)
    after, count, waiting = step(games, jnp.asarray(action, jnp.int32), rng_key, moves)
    return Turn(after, new_memory, stats, count, waiting)


def _check_act(player: Player, batch_size: int, action: Any, old: Any, new: Any) -> None:
    """Raises `ValueError` if actions have another shape, or a memory another structure."""
    if jnp.shape(action) != (batch_size,):
        raise ValueError(
            f"{player.name}'s act must return actions of shape {(batch_size,)}, "
            f"got {jnp.shape(action)}."
        )
    if _describe(new) != _describe(old):
        raise ValueError(
            f"{player.name}'s act must keep its memory's structure {_describe(old)}, "
            f"got {_describe(new)}."
        )


def check_two_players(owner: str, env: Env) -> None:
    """Raises `ValueError` unless a game has two players."""
    advice = (
        "For one player, compare the returns of searches, as jaxpgs.puzzles.solve reports them. "
        "For more than two, let the environment make the moves of the others."
    )
    check_players(owner, env, (2,), advice)


def _over_where(over: Any, state: Any) -> Any:
    """Returns states `[G]` in which `terminated` is replaced by `over`."""
    # The array is found by identity, however deep it is in the state.
    return jax.tree.map(lambda x: over if x is state.terminated else x, state)


def _kept(waits: Any, old: Any, new: Any, where: Callable[..., Any]) -> Any:
    """Returns a new memory, in which the arrays of waiting games are unchanged."""

    def keep(old: Any, new: Any) -> Any:
        # Arrays without an axis of games belong to all games, and are updated.
        if np.shape(new)[:1] != waits.shape:
            return new
        return where(waits.reshape(-1, *[1] * (np.ndim(new) - 1)), old, new)

    return jax.tree.map(keep, old, new)


def _describe(tree: Any) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]
