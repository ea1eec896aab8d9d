"""Nested rollout policy adaptation: policy gradient search for puzzles, without a network.

Like PGS it teaches its own playouts while it searches, but the policy is a table of logits, one for
each move code, the gradient is that of imitation of the best game so far instead of REINFORCE on
returns, and it is nested: a level starts from its parent's table, and reports its best game. It
works on whole games from a `playout` function instead of simulations through a `recurrent_fn`, and
so has a loop of its own, with the same three functions: `init`, `step` and `finish`.
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
    """A level of the search above the first, in B lanes.

    Attributes:
      logits: `[C, B]` float32 its table.
      best: the best game of its current run.
      iterations: `[]` int32, how often it has adapted in this run.
    """

    logits: chex.Array
    best: PlayedGames
    iterations: chex.Array


class NRPAState(NamedTuple):
    """A search under way.

    Attributes:
      levels: the levels from the second on.
      best: the best games of each lane so far.
      bias: `[C, B]` float32 the table that the highest level starts from.
      steps: `[]` int32, how many steps were done.
    """

    levels: tuple[NRPALevel, ...]
    best: PlayedGames
    bias: chex.Array
    steps: chex.Array


class NestedSearch(NamedTuple):
    """A search as three pure functions of its state.

    Attributes:
      init: `bias [C, M] -> NRPAState` for M boards.
      step: `(rng_keys [M], state) -> state`: a run of the first level in every lane, which is
        `iterations[0] * playouts` games each. Give it the same keys at every step.
      finish: `state -> PlayedGames`, the best game so far of each of the M boards. It may be asked
        at any time and changes nothing.
      games_per_step: how many games a step plays on each board.

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

    Rosin 2011: a run of level l starts from the table of its parent and repeats N times: run level
    l - 1, keep the better game (of equals, the later), and move the table towards it with `adapt`.
    Level 0 is a playout. With a `bias` it is generalised NRPA of Cazenave 2020, for biases that
    depend on the code alone: those are where the tables start.

    With `features` codes learn from one another: a code's logit is its entry of the table plus the
    weights of its features, and the same gradient teaches both, as in Sentuc et al. 2023, who weigh
    the biases of GNRPA so. It can learn at once what plain NRPA learns code by code, such as to
    keep the blocks of one colour for last.

    Many searches run side by side: `parallel[l - 1]` runs of level l start together from their
    parent's table, and it adapts to the best of them (Negrevergne and Cazenave 2017; they
    distribute the runs of one level). With M boards there are `M * prod(parallel)` lanes, each
    playing one game at a time.

    Deviations: the highest level starts again from the bias after its last iteration, so a search
    goes on as long as it is asked to; logits stay within -30 and 30.

    Args:
      playout: `(rng_keys [B], logits [C, B]) -> PlayedGames` plays a game in each of B lanes, of
        which the lanes of a board are neighbours, with moves drawn from the softmax of their
        logits.
      iterations: N of each level from the first on, each at least 1.
      parallel: how many runs of each level share a parent, each at least 1; the last counts
        independent searches.
      playouts: how many games the first level plays before each adaptation, at least 1, as in
        stabilised NRPA (Cazenave, Sevestre and Toulemont 2020).
      step_size: alpha, positive.
      features: `[F, C, M]` bool, which codes of each board have which of F features; None is none.
      sharing: alpha of a feature's weight, in units of `step_size`, at least 0.

    Returns:
      `init`, `step`, `finish` and `games_per_step`.

    Raises:
      ValueError: if a number is out of its range, or the levels differ.

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
        # Each of a board's lanes has a table of its own, with the features of the board.
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
      rng_key: one key, or `[M]` keys, one for each board; consumed. With a key for each board, its
        answer does not depend on the other boards.
      playout: plays the games of all lanes, as in `nrpa_search`.
      bias: `[C, M]` float logits that the tables start from: zeros for NRPA, a prior for GNRPA.
      num_steps: how many runs of the first level, at least 1; see `NestedSearch`.
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
    """What does not change while a search runs; the arguments of `nrpa_search`, checked."""

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
    # A key for each lane, then one for each step, so that steps may be given the same keys.
    split = jax.vmap(lambda key: jax.random.split(key, setting.lanes))
    keys = split(typed_keys(rng_keys)).reshape(-1)
    keys = jax.vmap(lambda key: jax.random.fold_in(key, state.steps))(keys)
    # A run of the first level starts from its parent's table, which only the parent changes.
    start = state.levels[0].logits if state.levels else state.bias
    games = _run_first_level(setting, keys, start)
    levels = _climb(setting, state.bias, games, state.levels, 0)
    return NRPAState(levels, better(games, state.best), state.bias, state.steps + 1)


def _finish(setting: _Setting, state: NRPAState) -> PlayedGames:
    # The best of all lanes of a board, of which one lane then speaks for it.
    best = _share(state.best, setting.lanes)
    return jax.tree.map(lambda x: x[..., :: setting.lanes], best)


def _run_first_level(setting: _Setting, keys: chex.PRNGKey, logits: chex.Array) -> PlayedGames:
    """Plays, keeps the best game and learns from it, again and again; returns that game."""
    playouts = setting.playouts

    def body(index: chex.Array, carry: tuple) -> tuple:
        logits, best = carry
        # Level 0 is a playout in every lane. Of equal games the later is learned from.
        now = jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)
        best = better(setting.playout(now, logits), best)
        if playouts == 1:
            return setting.learn(logits, best), best
        # Stabilised NRPA: several playouts before each adaptation.
        last = (index + 1) % playouts == 0
        return jax.lax.cond(last, lambda: setting.learn(logits, best), lambda: logits), best

    # The run's own table is dropped in the end; only its best game goes up.
    carry = (logits, _no_games(setting.playout, logits))
    return jax.lax.fori_loop(0, setting.iterations[0] * playouts, body, carry)[1]


def _climb(
    setting: _Setting,
    bias: chex.Array,
    games: PlayedGames,
    levels: tuple[NRPALevel, ...],
    below: int,
) -> tuple[NRPALevel, ...]:
    """Hands the best games of level `below + 1` to the levels above it."""
    if not levels:
        return ()
    level, above = levels[0], levels[1:]
    # The runs below are over: take the best of those that share this parent, and learn from it.
    best = better(_share(games, setting.parallel[below]), level.best)
    level = NRPALevel(setting.learn(level.logits, best), best, level.iterations + 1)

    def hand_on() -> tuple[NRPALevel, ...]:
        # After its last iteration the level hands its best game to its parent, and starts again
        # from the table that the parent has learned; the highest level starts again from the bias.
        higher = _climb(setting, bias, best, above, below + 1)
        start = higher[0].logits if higher else bias
        return (NRPALevel(start, _no_games(setting.playout, bias), jnp.int32(0)), *higher)

    # All lanes count alike, so one branch is taken for all of them.
    done = level.iterations >= setting.iterations[below + 1]
    return jax.lax.cond(done, hand_on, lambda: (level, *above))


def better(new: PlayedGames, old: PlayedGames) -> PlayedGames:
    """Returns the better game of each lane, of equals the new one."""
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

    The step is `step_size` times the gradient of `sum_t log pi(a_t | s_t)`, the cross-entropy or
    REINFORCE step for a return of 1, with all probabilities those of the given table.

    Args:
      logits: `[C, B]` float32, at most 30 in size.
      games: B games, of which codes and legal codes are read.
      step_size: alpha.
      features: `[F, C, B]` bool, None for none.
      sharing: the step of a feature's weight in units of `step_size`.

    Returns:
      `[C, B]` logits, kept within -30 and 30.
    """
    most, num_words, batch = games.legal.shape
    height = logits.shape[0] // num_words
    # Codes lie as the bits of `games.legal` do: row r, word w is code r * W + w.
    weights = jnp.exp(logits).reshape(height, num_words, batch)
    one = games.legal.dtype.type(1)
    # Loops end with the longest game; entries after a game's end have no legal code.
    length = jnp.max(games.length)

    def bits(words: chex.Array, row: int) -> chex.Array:
        return (words >> (height - 1 - row)) & one != 0

    # Two loops, so that the sums are in memory when the second begins; XLA would compute each again
    # for every code.
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
    # The gradient of log pi(a_t | s_t) is 1 at the chosen code less pi(c | s_t) at every legal one.
    # The second part first: exp(logit) times the sum of alpha / Z_t where the code was legal.
    step = -(weights * sums).reshape(logits.shape)
    # Beyond the end the code is -1, which must not count from the end of the table.
    chosen = jnp.where(games.chosen < 0, logits.shape[0], games.chosen)
    lanes = jnp.broadcast_to(jnp.arange(batch), chosen.shape)
    step = step.at[chosen, lanes].add(step_size, mode="drop")
    if features is not None:
        # A feature's weight is not stored: as it is added to the logits of all its codes, its step
        # is too. Its gradient is the sum of those of its codes.
        for feature in features:
            of_weight = jnp.sum(jnp.where(feature, step, 0.0), axis=0)
            logits = logits + jnp.where(feature, sharing * of_weight, 0.0)
    return _clip(logits + step)


def _share(games: PlayedGames, group: int) -> PlayedGames:
    """Gives every lane the best game of its group of neighbours, of equals the first."""
    if group == 1:
        return games
    winner = jnp.argmax(games.score.reshape(-1, group), axis=1)
    lanes = jnp.repeat(jnp.arange(len(winner)) * group + winner, group)
    return jax.tree.map(lambda x: x[..., lanes], games)


def _no_games(playout: Playout, logits: chex.Array) -> PlayedGames:
    """Returns games of no moves that are worse than any."""
    batch = logits.shape[1]
    # Only the shapes are needed, so nothing is played.
    like = jax.eval_shape(playout, jax.random.split(jax.random.key(0), batch), logits)
    games = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return games._replace(score=jnp.full(batch, -jnp.inf, jnp.float32))


def _clip(logits: chex.Array) -> chex.Array:
    return jnp.clip(logits, -MAX_LOGIT, MAX_LOGIT)
