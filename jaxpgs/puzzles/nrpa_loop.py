"""Nested rollout policy adaptation: policy gradient search for puzzles, without a network.

Like PGS, it trains its own playout policy during the search. The policy is a table of logits, one
for each move code. The gradient imitates the best game so far, instead of REINFORCE on returns. The
search is nested: a level starts from its parent's table and reports its best game. It plays whole
games with a `playout` function instead of simulations with a `recurrent_fn`. It therefore has its
own loop, with the same three functions: `init`, `step` and `finish`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict, Unpack

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.arrays import broadcast_keys, typed_keys
from jaxpgs.envs.played_games import PlayedGames

MAX_LOGIT = 30.0
Playout = Callable[[chex.PRNGKey, chex.Array], PlayedGames]


class NRPALevel(NamedTuple):
    """The state of one level of the search, from the second level on, in B lanes.

    Attributes:
      logits: `[C, B]` float32, its table.
      best: the best game of its current run.
      iterations: `[]` int32, how many times it has adapted in this run.
    """

    logits: chex.Array
    best: PlayedGames
    iterations: chex.Array


class NRPAState(NamedTuple):
    """The state of a search.

    Attributes:
      levels: the levels from the second on.
      best: the best game of each lane so far.
      bias: `[C, B]` float32, the table that the highest level starts from.
      steps: `[]` int32, the number of steps done.
    """

    levels: tuple[NRPALevel, ...]
    best: PlayedGames
    bias: chex.Array
    steps: chex.Array


class NestedSearch(NamedTuple):
    """A search as three pure functions of its state.

    Attributes:
      init: `bias [C, M] -> NRPAState` for M boards.
      step: `(rng_keys [M], state) -> state`: a run of the first level in every lane, with
        `iterations[0] * playouts` games each. Pass the same keys at every step.
      finish: `state -> PlayedGames`, the best game so far of each of the M boards. It may be called
        at any time and does not change the search.
      games_per_step: the number of games that a step plays on each board.

    Example:
      >>> from jaxpgs.envs.samegame.sequences import play_sequences
      >>> play = lambda keys, logits: play_sequences(puzzle, keys, boards, logits)
      >>> search = jaxpgs.puzzles.nrpa_search(play, iterations=(5, 5), parallel=(1, 1))
      >>> search.games_per_step
      5
    """

    init: Callable[[chex.Array], NRPAState]
    step: Callable[[chex.PRNGKey, NRPAState], NRPAState]
    finish: Callable[[NRPAState], PlayedGames]
    games_per_step: int


def nrpa_search(
    playout: Playout,
    *,
    iterations: Sequence[int] = (100, 100, 100),
    parallel: Sequence[int] = (1, 1, 1),
    playouts: int = 1,
    step_size: float = 1.0,
    features: chex.Array | None = None,
    sharing: float = 0.1,
) -> NestedSearch:
    """Nested rollout policy adaptation.

    Rosin 2011: a run of level l starts from its parent's table and repeats N times: run level
    l - 1, keep the better game (the later one if they are equal), and move the table towards this
    game with `adapt`. Level 0 is a playout. If the tables start from a `bias`, this is generalised
    NRPA (Cazenave 2020), for biases that depend on the code alone.

    With `features`, codes learn from one another: a code's logit is its table entry plus the
    weights of its features. The same gradient trains both, as in Sentuc et al. 2023, who weight the
    biases of GNRPA in this way. The search can then learn in one step what plain NRPA learns code
    by code, such as to keep the blocks of one colour for last.

    Many searches run in parallel: `parallel[l - 1]` runs of level l start together from their
    parent's table, and the parent adapts to the best of them (Negrevergne and Cazenave 2017, who
    distribute the runs of one level). With M boards there are `M * prod(parallel)` lanes, each
    playing one game at a time.

    Deviations: the highest level starts again from the bias after its last iteration, so a search
    can run for any number of steps. Logits are clipped to the range from -30 to 30.

    Args:
      playout: `(rng_keys [B], logits [C, B]) -> PlayedGames` plays a game in each of B lanes. The
        lanes of a board are adjacent. Moves are drawn from the softmax of a lane's logits.
      iterations: N of each level from the first on, each at least 1.
      parallel: the number of runs of each level that share a parent, each at least 1. The last
        entry is the number of independent searches.
      playouts: the number of games that the first level plays before each adaptation, at least 1,
        as in stabilised NRPA (Cazenave, Sevestre and Toulemont 2020).
      step_size: alpha, positive.
      features: `[F, C, M]` bool, which codes of each board have which of F features. None is no
        features.
      sharing: the step size of a feature's weight, in units of `step_size`, at least 0.

    Returns:
      `init`, `step`, `finish` and `games_per_step`.

    Raises:
      ValueError: if a number is out of range, or `iterations` and `parallel` differ in length.

    Example:
      >>> from jaxpgs.envs.samegame.sequences import play_sequences
      >>> play = lambda keys, logits: play_sequences(puzzle, keys, boards, logits)
      >>> search = jaxpgs.puzzles.nrpa_search(play, iterations=(5, 5), parallel=(1, 1))
    """
    if len(iterations) != len(parallel) or not iterations:
        raise ValueError(
            "iterations and parallel need one number for each of at least 1 level, got "
            f"{iterations} and {parallel}."
        )
    if min(*iterations, *parallel, playouts) < 1 or step_size <= 0:
        raise ValueError(
            "iterations, parallel and playouts must be at least 1 and step_size positive, got "
            f"{iterations}, {parallel}, {playouts} and {step_size}."
        )
    if sharing < 0:
        raise ValueError(f"sharing must be at least 0, got {sharing}.")
    lanes = int(np.prod(parallel))
    if features is not None:
        # Each lane of a board has its own table, with the features of the board.
        features = jnp.repeat(features, lanes, axis=2)
    learn = functools.partial(adapt, step_size=step_size, features=features, sharing=sharing)
    setting = _Setting(playout, learn, tuple(iterations), tuple(parallel), playouts, lanes)
    return NestedSearch(
        functools.partial(_init, setting),
        functools.partial(_step, setting),
        functools.partial(_finish, setting),
        iterations[0] * playouts * lanes,
    )


class NRPAOptions(TypedDict, total=False):
    """The knobs of `nrpa_search`, for type checkers."""

    iterations: Sequence[int]
    parallel: Sequence[int]
    playouts: int
    step_size: float
    features: chex.Array | None
    sharing: float


def nrpa_policy(
    rng_key: chex.PRNGKey,
    playout: Playout,
    bias: chex.Array,
    num_steps: int,
    **knobs: Unpack[NRPAOptions],
) -> PlayedGames:
    """Searches M boards by nested rollout policy adaptation; see `nrpa_search`.

    Args:
      rng_key: one key, or `[M]` keys, one for each board; consumed. With a key for each board, the
        result of a board does not depend on the other boards.
      playout: plays the games of all lanes, as in `nrpa_search`.
      bias: `[C, M]` float logits that the tables start from: zeros for NRPA, a prior for GNRPA.
      num_steps: the number of runs of the first level, at least 1; see `NestedSearch`.
      **knobs: arguments of `nrpa_search`.

    Returns:
      The best game of each of the M boards.

    Raises:
      ValueError: as `nrpa_search`, and if `num_steps` is below 1.

    Example:
      >>> from jaxpgs.envs.samegame.sequences import play_sequences
      >>> play = lambda keys, logits: play_sequences(puzzle, keys, boards, logits)
      >>> knobs = {"num_steps": 2, "iterations": (5,), "parallel": (1,)}
      >>> run = functools.partial(jaxpgs.nrpa_policy, playout=play, **knobs)
      >>> jax.eval_shape(run, rng_key, bias=jnp.zeros((9, 2))).score.shape  # jax.jit(run) searches
      (2,)
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}.")
    search = nrpa_search(playout, **knobs)
    keys = broadcast_keys(rng_key, bias.shape[1])
    state = jax.lax.fori_loop(0, num_steps, lambda _, s: search.step(keys, s), search.init(bias))
    return search.finish(state)


class _Setting(NamedTuple):
    """The constants of a search: the checked arguments of `nrpa_search`."""

    playout: Playout
    learn: Callable[[chex.Array, PlayedGames], chex.Array]
    iterations: tuple[int, ...]
    parallel: tuple[int, ...]
    playouts: int
    lanes: int


def _init(setting: _Setting, bias: chex.Array) -> NRPAState:
    bias = _clip(jnp.repeat(jnp.asarray(bias, jnp.float32), setting.lanes, axis=1))
    games = _no_games(setting.playout, bias)
    levels = tuple(NRPALevel(bias, games, jnp.int32(0)) for _ in setting.iterations[1:])
    return NRPAState(levels, games, bias, jnp.int32(0))


def _step(setting: _Setting, rng_keys: chex.PRNGKey, state: NRPAState) -> NRPAState:
    # Derive a key for each lane and then fold in the step, so that all steps may get the same keys.
    split = jax.vmap(lambda key: jax.random.split(key, setting.lanes))
    keys = split(typed_keys(rng_keys)).reshape(-1)
    keys = jax.vmap(lambda key: jax.random.fold_in(key, state.steps))(keys)
    # A run of the first level starts from its parent's table, which only the parent changes.
    start = state.levels[0].logits if state.levels else state.bias
    games = _run_first_level(setting, keys, start)
    levels = _climb(setting, state.bias, games, state.levels, 0)
    return NRPAState(levels, better(games, state.best), state.bias, state.steps + 1)


def _finish(setting: _Setting, state: NRPAState) -> PlayedGames:
    # After `_share` every lane of a board has the board's best game; take the first lane.
    best = _share(state.best, setting.lanes)
    return jax.tree.map(lambda x: x[..., :: setting.lanes], best)


def _run_first_level(setting: _Setting, keys: chex.PRNGKey, logits: chex.Array) -> PlayedGames:
    """Repeatedly plays, keeps the best game and learns from it; returns the best game."""
    playouts = setting.playouts

    def body(index: chex.Array, carry: tuple) -> tuple:
        logits, best = carry
        # Level 0 is a playout in every lane. The later one of equal games is kept.
        now = jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)
        best = better(setting.playout(now, logits), best)
        if playouts == 1:
            return setting.learn(logits, best), best
        # Stabilised NRPA: several playouts before each adaptation.
        last = (index + 1) % playouts == 0
        return jax.lax.cond(last, lambda: setting.learn(logits, best), lambda: logits), best

    # The run's table is discarded at the end; only its best game is passed to the parent.
    carry = (logits, _no_games(setting.playout, logits))
    return jax.lax.fori_loop(0, setting.iterations[0] * playouts, body, carry)[1]


def _climb(
    setting: _Setting,
    bias: chex.Array,
    games: PlayedGames,
    levels: tuple[NRPALevel, ...],
    below: int,
) -> tuple[NRPALevel, ...]:
    """Passes the best games of level `below + 1` to the levels above it."""
    if not levels:
        return ()
    level, above = levels[0], levels[1:]
    # The runs below are over: take the best game of those that share this parent; learn from it.
    # The lanes of all these runs, and of the runs below them, are adjacent.
    lanes = int(np.prod(setting.parallel[: below + 1]))
    best = better(_share(games, lanes), level.best)
    level = NRPALevel(setting.learn(level.logits, best), best, level.iterations + 1)

    def hand_on() -> tuple[NRPALevel, ...]:
        # After its last iteration the level passes its best game to its parent and restarts from
        # the table that the parent has then learned. The highest level restarts from the bias.
        higher = _climb(setting, bias, best, above, below + 1)
        start = higher[0].logits if higher else bias
        return (NRPALevel(start, _no_games(setting.playout, bias), jnp.int32(0)), *higher)

    # All lanes have the same iteration count, so they all take the same branch.
    done = level.iterations >= setting.iterations[below + 1]
    return jax.lax.cond(done, hand_on, lambda: (level, *above))


def better(new: PlayedGames, old: PlayedGames) -> PlayedGames:
    """Returns the better game of each lane, or the new one if they are equal."""
    is_better = new.score >= old.score
    return jax.tree.map(lambda n, o: jnp.where(is_better, n, o), new, old)


def adapt(
    logits: chex.Array,
    games: PlayedGames,
    step_size: float | chex.Array,
    features: chex.Array | None = None,
    sharing: float = 0.0,
) -> chex.Array:
    """Moves tables towards games: Rosin 2011, algorithm 2.

    The step is `step_size` times the gradient of `sum_t log pi(a_t | s_t)`, which is the
    cross-entropy step, or the REINFORCE step for a return of 1. All probabilities are computed from
    the given table.

    Args:
      logits: `[C, B]` float32, at most 30 in absolute value.
      games: B games; only their codes, legal codes and lengths are used.
      step_size: alpha.
      features: `[F, C, B]` bool, None for none.
      sharing: the step size of a feature's weight, in units of `step_size`.

    Returns:
      `[C, B]` logits, clipped to the range from -30 to 30.
    """
    most, num_words, batch = games.legal.shape
    height = logits.shape[0] // num_words
    # Codes are ordered like the bits of `games.legal`: row r of word w is code r * W + w.
    weights = jnp.exp(logits).reshape(height, num_words, batch)
    one = games.legal.dtype.type(1)
    # Loops end with the longest game; entries after a game's end have no legal code.
    length = jnp.max(games.length)

    def bits(words: chex.Array, row: int) -> chex.Array:
        return (words >> (height - 1 - row)) & one != 0

    # Two loops, so that the sums are in memory when the second begins. In a single loop XLA would
    # compute each sum again for every code.
    def add(t: chex.Array, totals: chex.Array) -> chex.Array:
        terms = [jnp.where(bits(games.legal[t], r), weights[r], 0.0) for r in range(height)]
        rows: chex.Array = functools.reduce(jnp.add, terms)
        return totals.at[t].set(functools.reduce(jnp.add, list(rows)))

    totals = jax.lax.fori_loop(0, length, add, jnp.zeros((most, batch)))
    # [T, B]: alpha / Z_t with Z_t the sum of exp(logit) over the codes that were legal at move t.
    share = jnp.where(totals > 0, step_size / totals, 0.0)

    def spread(t: chex.Array, sums: tuple[chex.Array, ...]) -> tuple[chex.Array, ...]:
        words, now = games.legal[t], share[t][None]
        return tuple(s + jnp.where(bits(words, r), now, 0.0) for r, s in enumerate(sums))

    zeros = tuple(jnp.zeros((num_words, batch)) for _ in range(height))
    sums = jnp.stack(jax.lax.fori_loop(0, length, spread, zeros))
    # The gradient of log pi(a_t | s_t) is 1 at the chosen code minus pi(c | s_t) at every legal
    # one. The second term first: exp(logit) times the sum of alpha / Z_t where the code was legal.
    step = -(weights * sums).reshape(logits.shape)
    # After the end the code is -1, which must not index the last entry of the table.
    chosen = jnp.where(games.chosen < 0, logits.shape[0], games.chosen)
    lanes = jnp.broadcast_to(jnp.arange(batch), chosen.shape)
    step = step.at[chosen, lanes].add(step_size, mode="drop")
    if features is not None:
        # A feature's weight is not stored: it is part of the logits of all its codes, so its step
        # is added to them. Its gradient is the sum of the gradients of its codes.
        for feature in features:
            of_weight = jnp.sum(jnp.where(feature, step, 0.0), axis=0)
            logits = logits + jnp.where(feature, sharing * of_weight, 0.0)
    return _clip(logits + step)


def _share(games: PlayedGames, group: int) -> PlayedGames:
    """Gives every lane the best game of its group of adjacent lanes, the first if several."""
    if group == 1:
        return games
    winner = jnp.argmax(games.score.reshape(-1, group), axis=1)
    lanes = jnp.repeat(jnp.arange(len(winner)) * group + winner, group)
    return jax.tree.map(lambda x: x[..., lanes], games)


def _no_games(playout: Playout, logits: chex.Array) -> PlayedGames:
    """Returns games without moves that are worse than any other game."""
    batch = logits.shape[1]
    # Only the shapes are needed, so nothing is played.
    like = jax.eval_shape(playout, jax.random.split(jax.random.key(0), batch), logits)
    games = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return games._replace(score=jnp.full(batch, -jnp.inf, jnp.float32))


def _clip(logits: chex.Array) -> chex.Array:
    return jnp.clip(logits, -MAX_LOGIT, MAX_LOGIT)
