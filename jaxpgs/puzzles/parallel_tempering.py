"""Parallel tempering of SameGame: a local search among whole games, at many temperatures at once.

A game is the order in which its blocks are removed (`envs.samegame.orders`). The search changes the
time of one move of the game, or of one block, plays the resulting game, and accepts it by the
Metropolis rule. The lanes of a board do this at temperatures from hot to cold, and adjacent lanes
exchange their games, so that cold lanes refine what hot lanes find. There is no temperature
schedule, so the search can run for any number of steps and has a result at any time.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.arrays import broadcast_keys, typed_keys
from jaxpgs.checks import check_count, check_number
from jaxpgs.envs.samegame.game import SameGame
from jaxpgs.envs.samegame.orders import OrderedGames, never, play_orders
from jaxpgs.puzzles.episodes import check_boards
from jaxpgs.puzzles.nrpa_samegame import replayed
from jaxpgs.puzzles.solving import Solution


class TemperingState(NamedTuple):
    """The state of a search in B lanes; the lanes of a board are adjacent, the hottest first.

    Attributes:
      times: `[A, B]` unsigned, the games of the lanes, as `OrderedGames.times`.
      score: `[B]` float32, the scores of these games.
      length: `[B]` int32, their numbers of moves.
      best_times: `[A, B]` the best games that the lanes have seen.
      best: `[B]` float32, the scores of the best games.
      sweeps: `[]` int32, the number of steps done.
    """

    times: chex.Array
    score: chex.Array
    length: chex.Array
    best_times: chex.Array
    best: chex.Array
    sweeps: chex.Array


class TemperingSearch(NamedTuple):
    """A search of M boards as three pure functions of its state.

    Attributes:
      init: `rng_keys [M] -> TemperingState`.
      step: `(rng_keys [M], state) -> state`: a sweep, which is `games_per_sweep` games in every
        lane and an exchange. Pass the same keys at every step, but not the keys of `init`.
      finish: `state -> OrderedGames`, the best game so far of each board. It may be called at any
        time and does not change the search.
      games_per_step: the number of games that a step plays on each board.

    Example:
      >>> jaxpgs.puzzles.tempering_search(puzzle, boards, lanes=4)._fields
      ('init', 'step', 'finish', 'games_per_step')
    """

    init: Callable[[chex.PRNGKey], TemperingState]
    step: Callable[[chex.PRNGKey, TemperingState], TemperingState]
    finish: Callable[[TemperingState], OrderedGames]
    games_per_step: int


class _Setting(NamedTuple):
    """The constants of a search: the checked arguments of `tempering_search`."""

    env: SameGame
    boards: Any
    lanes: int
    temperatures: np.ndarray
    games_per_sweep: int
    one_block: float
    another: float


def tempering_search(
    env: SameGame,
    state: Any,
    *,
    lanes: int = 16,
    hottest: float = 40.0,
    coldest: float = 5.0,
    games_per_sweep: int = 20,
    one_block: float = 0.3,
    another: float = 0.5,
) -> TemperingSearch:
    """Parallel tempering (replica exchange; Swendsen and Wang 1986, Geyer 1991) of M boards.

    In the initial games the blocks are in a random order, and those of the most frequent colour are
    last, as in the playouts with a tabu colour in the literature.

    Args:
      env: SameGame.
      state: `[M]` positions.
      lanes: the number of temperatures, and so of parallel games, of each board, at least 2.
      hottest: the highest temperature, in points of the score, positive.
      coldest: the lowest temperature, positive. Adjacent temperatures have equal ratios.
      games_per_sweep: games of each lane between exchanges, at least 1.
      one_block: the probability that the time of one block is changed instead of that of a move's
        whole group, 0 to 1. The block is then removed with its group at the new time, and the rest
        of its former group without it.
      another: the probability of a second change before the game is played, 0 to 1.

    Returns:
      `init`, `step`, `finish` and `games_per_step`.

    Raises:
      TypeError: if the game is not SameGame.
      ValueError: if a number is out of its range.

    Example:
      >>> search = jaxpgs.puzzles.tempering_search(puzzle, boards, lanes=4)
      >>> jax.eval_shape(search.init, jax.random.split(rng_key, 2)).times.shape
      (9, 8)
    """
    if not isinstance(env, SameGame):
        raise TypeError(
            f"tempering_search is for SameGame, got {env!r}; nrpa_policy searches any game."
        )
    if lanes < 2 or games_per_sweep < 1:
        raise ValueError(
            "lanes must be at least 2 and games_per_sweep at least 1, got "
            f"{lanes} and {games_per_sweep}."
        )
    for name, value in (("hottest", hottest), ("coldest", coldest)):
        check_number("tempering_search", name, value, 0, open_low=True)
    for name, value in (("one_block", one_block), ("another", another)):
        check_number("tempering_search", name, value, 0, 1)
    temperatures = np.geomspace(hottest, coldest, lanes).astype(np.float32)
    # One batch axis holds the lanes, board by board, so that all games are played in one call.
    boards = jax.tree.map(lambda x: jnp.repeat(x, lanes, axis=0), state)
    setting = _Setting(env, boards, lanes, temperatures, games_per_sweep, one_block, another)
    return TemperingSearch(
        functools.partial(_init, setting),
        functools.partial(_step, setting),
        functools.partial(_finish, setting),
        lanes * games_per_sweep,
    )


def tempering(
    env: SameGame, rng_key: chex.PRNGKey, state: Any, num_simulations: int, **knobs: Any
) -> Solution:
    """Parallel tempering of B boards; see `jaxpgs.puzzles.tempering_search`.

    Like `nrpa`, it searches the first position only and uses no network. Its best game is the
    solution.

    Args:
      env: SameGame.
      rng_key: one key, or `[B]` keys, one per board; consumed. With a key per board, a board's
        result does not depend on the other boards.
      state: `[B]` positions.
      num_simulations: N, games per board, rounded up to whole sweeps of all lanes.
      **knobs: arguments of `tempering_search`.

    Returns:
      The solution, as returned by `nrpa`.

    Raises:
      ValueError: if `num_simulations` is below 1, and as `jaxpgs.puzzles.tempering_search`.

    Example:
      >>> solution = jaxpgs.puzzles.tempering(puzzle, rng_key, boards, 8, lanes=2)
      >>> solution.moves.shape  # the best game of each board
      (2, 4)
    """
    num_simulations = check_count("tempering", "num_simulations", num_simulations)
    check_boards("tempering", state)
    search = tempering_search(env, state, **knobs)
    # [B, 2]: the first key of each board initialises the search; all steps share the second.
    keys = jax.vmap(jax.random.split)(broadcast_keys(rng_key, len(state.terminated)))
    found = search.init(keys[:, 0])
    sweeps = -(-num_simulations // search.games_per_step)
    found = jax.lax.fori_loop(0, sweeps, lambda _, s: search.step(keys[:, 1], s), found)
    return replayed(env, state, search.finish(found).action)


def _init(setting: _Setting, rng_keys: chex.PRNGKey) -> TemperingState:
    env, latest = setting.env, never(setting.env)
    keys = _lane_keys(setting, rng_keys)
    cells = jax.vmap(env.board)(setting.boards).reshape(-1, env.num_actions)
    of_color = cells[None] == jnp.arange(env.num_colors, dtype=cells.dtype)[:, None, None]
    # of_color: [C, lanes, A]. The most frequent colour gets the latest time and goes last.
    frequent = jnp.argmax(jnp.sum(of_color, axis=2), axis=0).astype(cells.dtype)
    draw = functools.partial(jax.random.randint, shape=(env.num_actions,), minval=0, maxval=latest)
    times = jax.vmap(draw)(keys).astype(latest.dtype)
    times = jnp.where(cells == frequent[:, None], latest, times).T
    games = play_orders(env, setting.boards, times)
    return TemperingState(
        games.times, games.score, games.length, games.times, games.score, jnp.int32(0)
    )


def _step(setting: _Setting, rng_keys: chex.PRNGKey, state: TemperingState) -> TemperingState:
    keys = _lane_keys(setting, rng_keys)
    batch, count = len(keys), setting.games_per_sweep
    # [lanes of all boards]: each board has the same ladder of temperatures.
    temperature = jnp.tile(jnp.asarray(setting.temperatures), batch // setting.lanes)

    def body(index: chex.Array, state: TemperingState) -> TemperingState:
        # Fold in the game's index in the whole search, as all steps get the same keys.
        now = jax.vmap(lambda key: jax.random.fold_in(key, state.sweeps * count + index))(keys)
        # Rows 0 to 3 are for the first change, 4 to 7 for the second, 8 decides whether there is a
        # second, and 9 whether the game is accepted.
        numbers = jax.vmap(lambda key: jax.random.uniform(key, (10,), jnp.float32))(now).T
        times = _change(setting, numbers[:4], state.times, state.length)
        twice = _change(setting, numbers[4:8], times, state.length)
        times = jnp.where(numbers[None, 8] < setting.another, twice, times)
        # The times of the played game differ from the requested ones where the rules do not allow
        # the requested order. The played times are kept, so odd times always number the moves.
        new = play_orders(setting.env, setting.boards, times)
        # Metropolis: a better game is always accepted, a worse one with probability exp(gain / T).
        taken = new.score - state.score >= temperature * jnp.log(numbers[9])
        # The best game is recorded whether or not it was accepted.
        best = new.score > state.best
        return TemperingState(
            jnp.where(taken[None], new.times, state.times),
            jnp.where(taken, new.score, state.score),
            jnp.where(taken, new.length, state.length),
            jnp.where(best[None], new.times, state.best_times),
            jnp.where(best, new.score, state.best),
            state.sweeps,
        )

    state = jax.lax.fori_loop(0, count, body, state)
    return _exchange(setting, keys, state._replace(sweeps=state.sweeps + 1))


def _change(
    setting: _Setting, numbers: chex.Array, times: chex.Array, length: chex.Array
) -> chex.Array:
    """Changes the time of a move or a block of each game; `numbers [4, B]` are uniform."""
    dtype, cells = times.dtype, jnp.arange(len(times), dtype=jnp.int32)[:, None]
    moves = length.astype(numbers.dtype)
    # Move t has the time 2 t + 1, so the even time 2 t is just before it. There is one more even
    # time than there are moves, for the end.
    move, to = jnp.floor(numbers[0] * moves), jnp.floor(numbers[1] * (moves + 1))
    # The cell may be empty, or its block may be left at the end. A new time for it then changes
    # little or nothing, which wastes one game.
    cell = jnp.floor(numbers[2] * len(times)).astype(jnp.int32)
    is_moved = times == (2 * move + 1).astype(dtype)[None]
    is_block = numbers[None, 3] < setting.one_block
    changed = jnp.where(is_block, cells == cell[None], is_moved)
    return jnp.where(changed, (2 * to).astype(dtype)[None], times)


def _exchange(setting: _Setting, keys: chex.PRNGKey, state: TemperingState) -> TemperingState:
    """Exchanges the games of adjacent temperatures, alternating between even and odd pairs."""
    lane = jnp.arange(setting.lanes, dtype=jnp.int32)
    # Pairs alternate between 0-1, 2-3, ... and 1-2, 3-4, ..., as a lane can exchange with only one
    # other lane. The first and the last lane may have no partner; they then keep their games.
    mate = jnp.where((lane + state.sweeps) % 2 == 0, lane + 1, lane - 1)
    mate = jnp.where((mate < 0) | (mate >= setting.lanes), lane, mate)
    # Keys are folded with negative numbers, which are the index of no game.
    # Both lanes of a pair use the random number of the hotter one, so that they agree.
    fold = jax.vmap(lambda key: jax.random.fold_in(key, -1 - state.sweeps))
    draws = jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(fold(keys))
    draws = draws.reshape(-1, setting.lanes)[:, jnp.minimum(lane, mate)]
    score = state.score.reshape(-1, setting.lanes)
    # Replica exchange: with probability min(1, exp((1 / T_i - 1 / T_j) (S_j - S_i))), which is the
    # same for both lanes of a pair.
    inverse = 1 / jnp.asarray(setting.temperatures)
    gain = (inverse - inverse[mate])[None] * (score[:, mate] - score)
    source = jnp.where(gain >= jnp.log(draws), mate[None], lane[None])
    # Convert lane indices within a board to indices among all lanes.
    source = source + setting.lanes * jnp.arange(len(score), dtype=jnp.int32)[:, None]
    source = source.reshape(-1)
    return state._replace(
        times=state.times[:, source], score=state.score[source], length=state.length[source]
    )


def _finish(setting: _Setting, state: TemperingState) -> OrderedGames:
    # A lane's best game stays there when games are exchanged, so a board's best game is the best of
    # all its lanes. It is played again, as only its times are stored.
    best = jnp.argmax(state.best.reshape(-1, setting.lanes), axis=1)
    source = best + setting.lanes * jnp.arange(len(best), dtype=best.dtype)
    boards = jax.tree.map(lambda x: x[:: setting.lanes], setting.boards)
    return play_orders(setting.env, boards, state.best_times[:, source])


def _lane_keys(setting: _Setting, rng_keys: chex.PRNGKey) -> chex.PRNGKey:
    split = jax.vmap(lambda key: jax.random.split(key, setting.lanes))
    return split(typed_keys(rng_keys)).reshape(-1)
