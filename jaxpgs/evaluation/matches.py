"""Batched games between two players, and round robins.

A match plays every opening action with both colours, all games at once. All games of a match start
with one forced action by the player who opens, and the environment's players alternate strictly,
so at every ply one player is to move in the half of the games that it opened and the other in the
other half: two calls a ply, each of a program that was compiled once.

Any two-player environment with the interface of `jaxpgs.envs.Hex` will do if it is hashable, its
players take turns strictly and its games end. Finished games must stay as they are when stepped.
"""

import itertools
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.evaluation.players import CompiledPlayer, Player, compile_player, open_games
from jaxpgs.evaluation.records import MatchResult, PlayerRecord, Tournament

Progress = Callable[[int, int, str], None]  # finished games, all games, what is being played


def play_match(
    env: Any,
    first: Player | CompiledPlayer,
    second: Player | CompiledPlayer,
    rng_key: chex.PRNGKey,
    *,
    openings: Sequence[int] | np.ndarray | None = None,
    repeats: int = 1,
    progress: Progress | None = None,
) -> MatchResult:
    """Plays every opening with both colours: `2 * O * R` games at once.

    Args:
      env: a two-player environment; see the module's description.
      first: a player, or the result of `compile_player` with batch size `O * R`.
      second: the other player.
      rng_key: decides all chance; consumed.
      openings: `[O]` distinct first actions. All legal ones by default (`n * n` on Hex).
      repeats: games R for each opening and colour. Repeats differ only by the players' chance, so
        with deterministic players they add no information.
      progress: called after every ply with the finished games, all games and the pairing.

    Returns:
      Outcomes, and what each player spent.

    Raises:
      ValueError: if an opening is illegal or repeated, `repeats` is not positive, or a compiled
        player has another batch size.
    """
    actions = _openings(env, openings)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}.")
    batch_size = repeats * len(actions)
    sides = [_compiled(env, player, batch_size) for player in (first, second)]
    label = f"{sides[0].player.name} vs {sides[1].player.name}"
    records = [
        PlayerRecord(s.player.name, compile_seconds=s.compile_seconds, temp_bytes=s.temp_bytes)
        for s in sides
    ]
    rng_key = _typed(rng_key)
    opened = open_games(
        env, jax.random.fold_in(rng_key, 0), jnp.tile(jnp.asarray(actions, jnp.int32), repeats)
    )
    # halves[h] are the games that side h opened; memory[s][h] is what side s remembers of them.
    halves = [opened, opened]
    memory = [[side.player.init(batch_size) for _ in halves] for side in sides]
    finished = [int(opened.state.terminated.sum())] * 2
    ply = 0
    while min(finished) < batch_size:
        ply += 1
        for half in (0, 1):
            if finished[half] == batch_size:
                continue
            mover = (ply + half) % 2
            key = jax.random.fold_in(jax.random.fold_in(rng_key, ply), half)
            start = time.perf_counter()
            turn = sides[mover].turn(key, halves[half], memory[mover][half])
            jax.block_until_ready(turn)
            seconds = time.perf_counter() - start
            halves[half], memory[mover][half] = turn.games, turn.memory
            finished[half] = int(turn.finished)
            stats = {k: float(v) for k, v in turn.stats.items()}
            side = sides[mover]
            records[mover] += PlayerRecord(
                side.player.name, int(turn.moves), 1, seconds,
                side.compile_seconds, side.temp_bytes, stats,
            )  # fmt: skip
        if progress is not None:
            progress(sum(finished), 2 * batch_size, label)

    scores = np.stack([np.sign(half.score) for half in halves]).astype(np.float64)
    scores[1] *= -1.0  # there the second player opened
    outcomes = ((scores + 1.0) / 2.0).reshape(2, repeats, len(actions))
    return MatchResult((records[0], records[1]), actions, outcomes)


def round_robin(
    env: Any,
    players: Sequence[Player],
    rng_key: chex.PRNGKey,
    *,
    openings: Sequence[int] | np.ndarray | None = None,
    repeats: int = 1,
    progress: Progress | None = None,
    on_pair: Callable[[MatchResult], None] | None = None,
    results: Iterable[MatchResult] = (),
    pairs: Sequence[tuple[int, int]] | None = None,
) -> Tournament:
    """Plays every pair of players, each compiled once.

    A pairing's games depend on `rng_key`, the two names and their order only, so a tournament that
    is stopped and resumed, or that gains a player, gives the games of an uninterrupted one.

    Args:
      env: a two-player environment; see the module's description.
      players: at least 2 players with different names.
      rng_key: decides all chance; consumed.
      openings: as in `play_match`.
      repeats: as in `play_match`.
      progress: as in `play_match`, counted over the whole tournament.
      on_pair: called after every pairing that was played, for example to save its result.
      results: pairings played earlier with the same arguments; they are not played again. Pairs
        of other players are ignored.
      pairs: the pairings to play, in this order, as numbers of players; all by default.

    Returns:
      The table of wins and all results.

    Raises:
      ValueError: if there are fewer than 2 players, two share a name, an earlier result has other
        openings or repeats, or as in `play_match`.
    """
    names = tuple(player.name for player in players)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"A round robin needs at least 2 players of different names, got {names}.")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}.")
    actions = _openings(env, openings)
    earlier = {frozenset(result.names): result for result in results}
    compiled: dict[str, CompiledPlayer] = {}
    games = 2 * repeats * len(actions)
    schedule = list(itertools.combinations(range(len(names)), 2)) if pairs is None else list(pairs)
    total = games * len(schedule)

    wins = np.zeros((len(names), len(names)))
    spent = {name: PlayerRecord(name) for name in names}
    played: list[MatchResult] = []
    for i, j in schedule:
        first, second = players[i], players[j]
        result = earlier.get(frozenset((first.name, second.name)))
        if result is None:
            for player in (first, second):
                if player.name not in compiled:
                    compiled[player.name] = compile_player(env, player, games // 2)
            result = play_match(
                env,
                compiled[first.name],
                compiled[second.name],
                jax.random.fold_in(_typed(rng_key), _pair_number(first.name, second.name)),
                openings=actions,
                repeats=repeats,
                progress=_offset(progress, games * len(played), total),
            )
            if on_pair is not None:
                on_pair(result)
        elif not (np.array_equal(result.openings, actions) and result.outcomes.shape[1] == repeats):
            raise ValueError(
                f"The earlier result of {result.names} has {len(result.openings)} openings and "
                f"{result.outcomes.shape[1]} repeats; expected {len(actions)} and {repeats}, "
                "and the same openings."
            )
        score = result.wins if result.names[0] == first.name else games - result.wins
        wins[i, j], wins[j, i] = score, games - score
        for record in result.players:
            spent[record.name] += record
        played.append(result)
    return Tournament(names, wins, spent, tuple(played))


def _openings(env: Any, openings: Sequence[int] | np.ndarray | None) -> np.ndarray:
    legal = np.flatnonzero(env.init(jax.random.key(0)).legal_action_mask)
    if openings is None:
        return legal
    actions = np.asarray(openings, np.int64)
    if not (actions.ndim == 1 and actions.size and np.isin(actions, legal).all()):
        raise ValueError(f"openings must be a list of legal first actions, got {openings}.")
    if len(np.unique(actions)) < len(actions):
        raise ValueError(f"openings must differ from each other, got {openings}; see repeats.")
    return actions


def _compiled(env: Any, player: Player | CompiledPlayer, batch_size: int) -> CompiledPlayer:
    if isinstance(player, Player):
        return compile_player(env, player, batch_size)
    if player.batch_size != batch_size:
        raise ValueError(
            f"{player.player.name} is compiled for {player.batch_size} games, this match has "
            f"{batch_size} for each colour."
        )
    return player


def _pair_number(first: str, second: str) -> np.uint32:
    """A number of the pairing that does not depend on who else plays, or on Python's hash seed."""
    return np.uint32(zlib.crc32(f"{first}\0{second}".encode()))


def _typed(rng_key: chex.PRNGKey) -> chex.PRNGKey:
    if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        return rng_key
    return jax.random.wrap_key_data(rng_key)


def _offset(progress: Progress | None, done: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda finished, _, label: progress(done + finished, total, label)
