"""Players of batched games, and their compilation.

A player is three things: a name, a memory to start with, and a function that picks one action in
each of G games at once. It is compiled once per environment and batch size, together with the
environment's step, and then serves every pairing of a tournament.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.extend import core as jax_core

from jaxpgs.adapters import chance_key, step_with_keys


@dataclasses.dataclass(frozen=True)
class Player:
    """Someone who plays G games at once.

    Attributes:
      name: unique within a tournament; it also seeds the player's games.
      init: `init(batch_size)` returns the memory at the start of G games, any pytree of arrays:
        `()` for none, or for example the policy head that a search adapts through a game.
      act: `act(rng_key, state, memory)` returns `(action [G], memory, stats)`. `state` has a
        leading axis G, the memory keeps its structure, and `stats` is a dict of scalars that are
        summed over calls, such as `num_evaluations`. It is traced once. Games that are over stay
        in the batch; their actions are ignored. Arrays that `act` closes over, such as a network's
        parameters, become arguments of the compiled program, not constants in it.
      host: True if `act` cannot be traced. It then gets a state of NumPy arrays and may return
        NumPy arrays.
      deterministic: True if the actions do not depend on the key. Two such players play an opening
        once with each colour, however many repeats are asked for.

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
    """G games under way.

    Attributes:
      state: the environment's state with a leading axis G.
      opener: `[G]` int32, the number under which the environment lists who moved first.
      score: `[G]` float32, the rewards of that player so far.
      length: `[G]` int32, the moves so far of both players, the opening's included.
    """

    state: Any
    opener: chex.Array
    score: chex.Array
    length: chex.Array


class Turn(NamedTuple):
    """What one call of a compiled player returns.

    Attributes:
      games: the games after the move.
      memory: the player's memory.
      stats: the player's dict of scalars.
      moves: `[]` int32, how many of the games were still going on.
      finished: `[]` int32, how many are over after the move.
    """

    games: MatchGames
    memory: Any
    stats: dict[str, Any]
    moves: Any
    finished: Any


@dataclasses.dataclass(frozen=True)
class CompiledPlayer:
    """A player ready to play batches of one size; see `compile_player`.

    Attributes:
      player: whom it was compiled from.
      batch_size: G.
      turn: `turn(rng_key, games, memory)` returns a `Turn`.
      compile_seconds: time to trace and compile.
      temp_bytes: scratch memory of the compiled program, None where the backend does not tell or
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
    turn: Callable[[chex.PRNGKey, MatchGames, Any], Turn]
    compile_seconds: float
    temp_bytes: int | None


def advance(
    env: Any, games: MatchGames, action: chex.Array, rng_key: chex.PRNGKey
) -> tuple[MatchGames, chex.Array, chex.Array]:
    """Plays one action `[G]` in each game; the key draws what chance there is.

    Returns:
      The games, how many were going on before, and how many are over now.
    """
    going_on = ~games.state.terminated
    moves = jnp.sum(going_on, dtype=jnp.int32)
    length = games.length + going_on.astype(jnp.int32)
    action = jnp.asarray(action, jnp.int32)
    state = step_with_keys(env)(games.state, action, chance_key(rng_key))
    reward = jnp.take_along_axis(state.rewards, games.opener[:, None], axis=-1)[:, 0]
    finished = jnp.sum(state.terminated, dtype=jnp.int32)
    return MatchGames(state, games.opener, games.score + reward, length), moves, finished


@functools.partial(jax.jit, static_argnums=0)
def open_games(env: Any, rng_key: chex.PRNGKey, openings: chex.Array) -> MatchGames:
    """Starts one game for each opening, a line of L actions `[G, L]`, and plays it."""
    num_games, length = openings.shape
    state = jax.vmap(env.init)(jax.random.split(rng_key, num_games))
    opener = jnp.asarray(state.current_player, jnp.int32)
    score, moves = jnp.zeros(num_games, jnp.float32), jnp.zeros(num_games, jnp.int32)
    games = MatchGames(state, opener, score, moves)
    for ply in range(length):
        games = advance(env, games, openings[:, ply], jax.random.fold_in(rng_key, ply))[0]
    return games


def compile_player(env: Any, player: Player, batch_size: int) -> CompiledPlayer:
    """Compiles a player's move and the environment's step into one program.

    Args:
      env: a two-player environment that is hashable.
      player: the player. Its `act` is traced once here and never again.
      batch_size: the number of games G in one call.

    Returns:
      The compiled player. For a host player only the environment's step is compiled.

    Raises:
      ValueError: if `batch_size` is not positive, or `act` returns actions of the wrong shape or a
        memory of another structure, shape or dtype than it was given.

    Example:
      >>> player = jaxpgs.evaluation.uniform_random(env)
      >>> compiled = jaxpgs.evaluation.compile_player(env, player, batch_size=9)
      >>> compiled.batch_size
      9
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    start = time.perf_counter()
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    lines = jax.ShapeDtypeStruct((batch_size, 1), jnp.int32)
    games = jax.eval_shape(functools.partial(open_games, env), key, lines)
    step = functools.partial(advance, env)

    if player.host:
        compiled_step = jax.jit(step).lower(games, action, key).compile()

        def host_turn(rng_key: chex.PRNGKey, games: MatchGames, memory: Any) -> Turn:
            action, memory, stats = player.act(rng_key, jax.device_get(games.state), memory)
            games, moves, finished = compiled_step(games, jnp.asarray(action, jnp.int32), rng_key)
            return Turn(games, memory, stats, moves, finished)

        return CompiledPlayer(player, batch_size, host_turn, time.perf_counter() - start, None)

    def turn(rng_key: chex.PRNGKey, games: MatchGames, memory: Any) -> Turn:
        action, new_memory, stats = player.act(rng_key, games.state, memory)
        if jnp.shape(action) != (batch_size,):
            raise ValueError(
                f"{player.name}'s act must return actions of shape {(batch_size,)}, "
                f"got {jnp.shape(action)}."
            )
        if _describe(new_memory) != _describe(memory):
            raise ValueError(
                f"{player.name}'s act must keep its memory's structure {_describe(memory)}, "
                f"got {_describe(new_memory)}."
            )
        games, moves, finished = step(games, action, rng_key)
        return Turn(games, new_memory, stats, moves, finished)

    memory = jax.eval_shape(lambda: player.init(batch_size))
    # Lowering `turn` itself would write closed-over parameters into the program as literals.
    traced, shapes = jax.make_jaxpr(turn, return_shape=True)(key, games, memory)
    out_tree = jax.tree.structure(shapes)

    def run(constants: list[Any], *args: Any) -> Turn:
        closed = jax_core.ClosedJaxpr(traced.jaxpr, constants)
        flat = jax_core.jaxpr_as_fun(closed)(*jax.tree.leaves(args))
        return jax.tree.unflatten(out_tree, flat)

    program = jax.jit(run).lower(traced.consts, key, games, memory).compile()
    seconds = time.perf_counter() - start
    analysis = program.memory_analysis()
    temp_bytes = getattr(analysis, "temp_size_in_bytes", None)
    call = functools.partial(program, traced.consts)
    return CompiledPlayer(player, batch_size, call, seconds, temp_bytes)


def _describe(tree: Any) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]
