"""Batched games between two players, and round robins.

A match plays every opening with both colours, all games at once or in batches. Every game starts
with an opening, which is one forced action or a sequence (line) of them. If players alternate, at
every ply one player moves in the half of the games that it opened, and the other in the other half:
two calls per ply, each of a program that is compiled once. If a player moves twice, games in which
the other is to move wait.

The environment may be any two-player game with the interface of `jaxpgs.envs.Hex` that is hashable
and zero-sum: its rewards sum to 0, or only one player gets a reward, which counts as a loss of the
other. If its `step` takes a key, it gets one; openings must then be legal whatever the random
outcomes.
"""

import functools
import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.adapters.environments import LONGEST_GAME, OPPOSED, draws_chance
from jaxpgs.arrays import is_one_key, typed_keys
from jaxpgs.base import Env
from jaxpgs.checks import check_count
from jaxpgs.evaluation.game_files import check_sgf, write_games
from jaxpgs.evaluation.openings import checked_lines
from jaxpgs.evaluation.players.player import (
    CompiledPlayer,
    MatchGames,
    Player,
    check_two_players,
    compile_player,
    open_games,
)
from jaxpgs.evaluation.records import MatchBatch, MatchResult, PlayerRecord, Tournament

Progress = Callable[[int, int, str], None]  # finished games, all games, the current pairing


def play_match(
    env: Env,
    first: Player | CompiledPlayer,
    second: Player | CompiledPlayer,
    rng_key: chex.PRNGKey,
    *,
    openings: Sequence[int] | np.ndarray | None = None,
    repeats: int = 1,
    batch_size: int | None = None,
    max_moves: int | None = None,
    progress: Progress | None = None,
    on_batch: Callable[[MatchBatch], None] | None = None,
    batches: Sequence[MatchBatch] = (),
    sgf_folder: str | os.PathLike[str] | None = None,
) -> MatchResult:
    """Plays every opening with both colours: `2 * O * R` games.

    Args:
      env: a two-player environment; see the module's description.
      first: a player, or the result of `compile_player` with the batch size.
      second: the other player.
      rng_key: the source of all randomness; consumed.
      openings: `[O]` distinct first actions or `[O, L]` distinct lines of L actions each, for
        example from `opening_lines`. All legal first actions by default (`n * n` on Hex).
      repeats: R, games for each opening and colour. Repeats differ only by randomness: if both
        players are `deterministic` and the game has no chance, one repeat is played.
      batch_size: how many games each call of a player handles; by default all `O * R` with one
        colour. The last batch is padded with games that count in the players' costs but not in the
        outcomes.
      max_moves: moves of both players, including the opening, after which a game counts as a draw.
        By default games are played to their end; a game with more than 4,096 moves raises an error.
      progress: called after every ply with the finished games, all games and the pairing.
      on_batch: called after every batch that was played, for example to save it.
      batches: the first batches of a match with the same arguments, played earlier. They are not
        played again, and the result is that of an uninterrupted match.
      sgf_folder: where every game of Hex is written as an SGF file, in a folder of the pairing. A
        game in which a player resigned, played an illegal move or failed ends in `forfeit`.

    Returns:
      Outcomes, and the costs of each player (time, calls, evaluations).

    Raises:
      ValueError: if an argument is not a player, the game is not a zero-sum game of two players, a
        game does not end, an opening is illegal, repeated or ends the game, `repeats`, `batch_size`
        or `max_moves` is not positive, a compiled player has another batch size, or the earlier
        batches belong to another match.

    Example:
      >>> random = jaxpgs.evaluation.uniform_random(env)
      >>> network = jaxpgs.evaluation.raw_network(env, apply_fn, params)
      >>> match = jaxpgs.evaluation.play_match(env, network, random, rng_key)
      >>> match.games  # nine openings with both colours
      18
    """
    _check_match(env, (first, second), batch_size, max_moves, sgf_folder)
    lines = checked_lines(env, openings)
    repeats = _num_repeats(env, (first, second), repeats)
    count = repeats * len(lines)
    batch_size = count if batch_size is None else batch_size
    sides = (_compiled(env, first, batch_size), _compiled(env, second, batch_size))
    label = f"{sides[0].player.name} vs {sides[1].player.name}"
    plan = _plan(lines, _typed(rng_key), count, batch_size)
    batches = list(batches)
    _check_batches(batches, [side.player.name for side in sides], batch_size, len(plan))
    # Each batch has its own key, so batches that were played earlier can simply be skipped.
    for i, (opened, key) in list(enumerate(plan))[len(batches) :]:
        actions = jnp.asarray(opened, jnp.int32)
        report = _offset(progress, 2 * i * batch_size, 2 * len(plan) * batch_size)
        boards: tuple[list[np.ndarray], ...] = ([], [])
        watch = None if sgf_folder is None else functools.partial(_keep_stones, boards)
        batches.append(_play_batch(env, sides, actions, key, label, max_moves, report, watch))
        if sgf_folder is not None:
            hex_env: Any = env  # `check_sgf` has checked that it is Hex
            games = (batches[-1], np.asarray(actions), boards, i * batch_size, count)
            write_games(sgf_folder, hex_env, *games)
        if on_batch is not None:
            on_batch(batches[-1])

    openings = lines[:, 0] if lines.shape[1] == 1 else lines
    return MatchResult.from_batches(batches, openings, repeats)


def _check_match(
    env: Env,
    sides: Sequence[Player | CompiledPlayer],
    batch_size: int | None,
    max_moves: int | None,
    sgf_folder: str | os.PathLike[str] | None,
) -> None:
    """Raises `ValueError` for arguments of `play_match` of a wrong type or out of range."""
    for side in sides:
        if not isinstance(side, Player | CompiledPlayer):
            raise ValueError(
                "play_match needs two players, such as `raw_network(env, apply_fn, params)`, got "
                f"{type(side).__name__}."
            )
    check_two_players("play_match", env)
    check_sgf(env, sgf_folder)
    if max_moves is not None:
        check_count("play_match", "max_moves", max_moves)
    if batch_size is not None:
        check_count("play_match", "batch_size", batch_size)


def _plan(
    lines: np.ndarray, rng_key: chex.PRNGKey, count: int, batch_size: int
) -> list[tuple[np.ndarray, chex.PRNGKey]]:
    """Returns the openings `[G, L]` and the key of each batch of `count` games with one colour."""
    num_batches = -(-count // batch_size)
    # Game g plays opening g % O: one repeat after another, and then again from the first opening to
    # pad the last batch. `MatchResult.from_batches` relies on this order.
    order = np.arange(num_batches * batch_size) % len(lines)
    keys = [rng_key] if num_batches == 1 else list(jax.random.split(rng_key, num_batches))
    return list(zip(lines[order.reshape(num_batches, batch_size)], keys, strict=True))


def _play_batch(
    env: Env,
    sides: Sequence[CompiledPlayer],
    openings: chex.Array,
    rng_key: chex.PRNGKey,
    label: str,
    max_moves: int | None,
    progress: Progress | None,
    watch: Callable[[int, MatchGames], Any] | None,
) -> MatchBatch:
    """Plays the openings `[B, L]` with both colours; `watch` is called with each half's games."""
    batch_size, length = openings.shape
    limit = jnp.int32(LONGEST_GAME if max_moves is None else max_moves)
    # Key 0 is for the openings: plies count from the opening's length, which is at least 1.
    opened = open_games(env, jax.random.fold_in(rng_key, 0), openings, limit)
    records = [
        PlayerRecord(s.player.name, compile_seconds=s.compile_seconds, temp_bytes=s.temp_bytes)
        for s in sides
    ]
    # halves[h] are the games that side h opened; memory[s][h] is the memory of side s in them.
    halves = [opened, opened]
    memory = [[side.player.init(batch_size) for _ in halves] for side in sides]
    waiting = [np.asarray(opened.waiting())] * 2  # for the side that opened, and for the other
    opens = jnp.bool_(True), jnp.bool_(False)
    ply = length - 1
    if watch is not None:
        watch(0, opened)
        watch(1, opened)
    while np.any(waiting):
        ply += 1
        for half in (0, 1):
            if not waiting[half].any():
                continue
            # 0 is the side that opened, 1 the other. They alternate, unless no game waits for the
            # next one. Side h opened half h, so in the other half it is the other side's turn.
            turns = ply % 2 if waiting[half][ply % 2] else 1 - ply % 2
            mover = (turns + half) % 2
            key = _turn_key(rng_key, ply, half)
            start = time.perf_counter()
            turn = sides[mover].turn(key, halves[half], memory[mover][half], opens[turns])
            # Dispatch is asynchronous: without this only the call itself would be timed.
            jax.block_until_ready(turn)
            seconds = time.perf_counter() - start
            halves[half], memory[mover][half] = turn.games, turn.memory
            waiting[half] = np.asarray(turn.waiting)
            if watch is not None:
                watch(half, turn.games)
            stats = {k: float(v) for k, v in turn.stats.items()}
            side = sides[mover]
            records[mover] += PlayerRecord(
                side.player.name, int(turn.moves), 1, seconds,
                side.compile_seconds, side.temp_bytes, stats,
            )  # fmt: skip
        if progress is not None:
            progress(2 * batch_size - int(np.sum(waiting)), 2 * batch_size, label)
    over = np.stack([half.state.terminated for half in halves])
    if max_moves is None and not over.all():
        raise ValueError(
            f"{over.size - over.sum()} of {over.size} games of {type(env).__name__}, {label}, have "
            f"not ended after {LONGEST_GAME} moves. Give play_match max_moves, after which a game "
            "counts as a draw."
        )
    scores = np.stack([np.sign(half.score) for half in halves]).astype(np.float64)
    # Compiled code cannot raise: rewards that are not zero-sum arrive here as NaN.
    if np.isnan(scores).any():
        raise ValueError(
            "play_match needs a game of two players whose rewards sum to 0; in "
            f"{np.isnan(scores).sum()} of {scores.size} games of {type(env).__name__}, {label}, "
            "both players had rewards that did not sum to 0, or players were not numbered 0 and 1. "
            f"{OPPOSED}"
        )
    # A game that was cut off is a draw, whoever has gained more so far.
    scores = np.where(over, scores, 0.0)
    scores[1] *= -1.0  # there the second player opened
    lengths = np.stack([np.asarray(half.length) for half in halves])
    return MatchBatch((records[0], records[1]), (scores + 1.0) / 2.0, lengths)


def _keep_stones(boards: Sequence[list[np.ndarray]], half: int, games: MatchGames) -> None:
    boards[half].append(np.sign(np.asarray(games.state.labels)))


@jax.jit  # in one program, since this takes much of the time of short games of fast players
def _turn_key(rng_key: chex.PRNGKey, ply: int, half: int) -> chex.PRNGKey:
    return jax.random.fold_in(jax.random.fold_in(rng_key, ply), half)


def round_robin(
    env: Env,
    players: Sequence[Player],
    rng_key: chex.PRNGKey,
    *,
    openings: Sequence[int] | np.ndarray | None = None,
    repeats: int = 1,
    batch_size: int | None = None,
    max_moves: int | None = None,
    progress: Progress | None = None,
    on_pair: Callable[[MatchResult], None] | None = None,
    results: Iterable[MatchResult] = (),
    pairs: Sequence[tuple[int, int]] | None = None,
    on_batch: Callable[[tuple[str, str], MatchBatch], None] | None = None,
    batches: Mapping[tuple[str, str], Sequence[MatchBatch]] | None = None,
    sgf_folder: str | os.PathLike[str] | None = None,
) -> Tournament:
    """Plays every pair of players, each compiled once.

    A pairing's games depend only on `rng_key`, the two names and their order. So a tournament can
    be stopped and resumed, or extended by a player, and gives the same games.

    Args:
      env: a two-player environment; see the module's description.
      players: at least 2 players with different names.
      rng_key: the source of all randomness; consumed.
      openings: as in `play_match`.
      repeats: as in `play_match`.
      batch_size: as in `play_match`.
      max_moves: as in `play_match`.
      progress: as in `play_match`, counted over the whole tournament.
      on_pair: called after every pairing that was played, for example to save its result.
      results: pairings played earlier with the same arguments; they are not played again. Pairs
        of other players are ignored.
      pairs: the pairings to play, in this order, as indices of players; all by default.
      on_batch: called with the names of the pairing after every batch of `batch_size` openings.
      batches: the first batches of interrupted pairings, by the ordered names; see `play_match`.
      sgf_folder: as in `play_match`.

    Returns:
      The table of wins and all results.

    Raises:
      ValueError: if there are fewer than 2 players, two share a name, an earlier result has other
        openings or repeats, or for the reasons in `play_match`.

    Example:
      >>> players = [jaxpgs.evaluation.uniform_random(env, name=name) for name in ("a", "b")]
      >>> tournament = jaxpgs.evaluation.round_robin(env, players, rng_key)
      >>> float(tournament.wins.sum())  # nine openings with both colours
      18.0
    """
    names = _names(env, players)
    lines = checked_lines(env, openings)
    # By sets of names, since an earlier result may have the two in the other order.
    earlier = {frozenset(result.names): result for result in results}
    compiled: dict[tuple[str, int], CompiledPlayer] = {}
    schedule = _schedule(pairs, len(names))
    games = _num_games(env, players, schedule, len(lines), repeats)
    played: list[MatchResult] = []
    for (i, j), count in zip(schedule, games, strict=True):
        both = (names[i], names[j])
        result = earlier.get(frozenset(both))
        if result is None:
            # Each call of a player handles the games that one side opens, half of all games.
            size = count // 2 if batch_size is None else batch_size
            one, other = (_compiled_once(env, players[k], size, compiled) for k in (i, j))
            result = play_match(
                env, one, other, jax.random.fold_in(_typed(rng_key), _pair_number(*both)),
                openings=lines, repeats=repeats, batch_size=batch_size, max_moves=max_moves,
                progress=_offset(progress, sum(games[: len(played)]), sum(games)),
                on_batch=None if on_batch is None else functools.partial(on_batch, both),
                batches=(batches or {}).get(both, ()), sgf_folder=sgf_folder,
            )  # fmt: skip
            if on_pair is not None:
                on_pair(result)
        else:
            _check_earlier(result, lines, repeats, count)
        played.append(result)
    return _tournament(names, schedule, played)


def _names(env: Env, players: Sequence[Player]) -> tuple[str, ...]:
    """Returns the names of players; raises `ValueError` if there can be no tournament of them."""
    check_two_players("round_robin", env)
    names = tuple(player.name for player in players)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"A round robin needs at least 2 players of different names, got {names}.")
    return names


def _schedule(pairs: Sequence[tuple[int, int]] | None, num_players: int) -> list[tuple[int, int]]:
    """Returns the pairings; raises `ValueError` if a player meets itself or another one twice."""
    if pairs is None:
        return list(itertools.combinations(range(num_players), 2))
    if not len(pairs) or len({frozenset(pair) for pair in pairs if len({*pair}) == 2}) < len(pairs):
        raise ValueError(
            f"pairs must have two different players each, and no pair may occur twice; got {pairs}."
        )
    return list(pairs)


def _compiled_once(
    env: Env, player: Player, size: int, compiled: dict[tuple[str, int], CompiledPlayer]
) -> CompiledPlayer:
    """Returns a player compiled for a batch size, from `compiled` if it is there.

    The size may differ: if both sides are deterministic, one repeat is played in a smaller batch.
    """
    if (player.name, size) not in compiled:
        compiled[player.name, size] = compile_player(env, player, size)
    return compiled[player.name, size]


def _tournament(
    names: tuple[str, ...], schedule: Sequence[tuple[int, int]], played: Sequence[MatchResult]
) -> Tournament:
    """Sums up the pairings: the table of wins, and the costs of each player."""
    wins = np.zeros((len(names), len(names)))
    spent = {name: PlayerRecord(name) for name in names}
    for (i, j), result in zip(schedule, played, strict=True):
        # An earlier result may hold the score of the other player of the pair.
        score = result.wins if result.names[0] == names[i] else result.games - result.wins
        wins[i, j], wins[j, i] = score, result.games - score
        for record in result.players:
            spent[record.name] += record
    return Tournament(names, wins, spent, tuple(played))


def _num_games(
    env: Env,
    players: Sequence[Player],
    schedule: Sequence[tuple[int, int]],
    num_openings: int,
    repeats: int,
) -> list[int]:
    """Returns how many games each pairing has, with both colours."""
    sides = [(players[i], players[j]) for i, j in schedule]
    return [2 * num_openings * _num_repeats(env, both, repeats) for both in sides]


def _num_repeats(env: Env, sides: Sequence[Player | CompiledPlayer], repeats: int) -> int:
    repeats = check_count("A match", "repeats", repeats)
    players = (p.player if isinstance(p, CompiledPlayer) else p for p in sides)
    # A repeat without any chance would be the same game again.
    same = all(player.deterministic for player in players) and not draws_chance(env)
    return 1 if same else repeats


def _check_earlier(result: MatchResult, lines: np.ndarray, repeats: int, count: int) -> None:
    found = np.asarray(result.openings).reshape(len(result.openings), -1)
    # If one repeat is enough, a result with all of them is accepted, too.
    if not (np.array_equal(found, lines) and result.games in (count, 2 * len(lines) * repeats)):
        raise ValueError(
            f"The earlier result of {result.names} has {len(found)} openings and "
            f"{result.outcomes.shape[1]} repeats; expected {len(lines)} and {repeats}, "
            "and the same openings."
        )


def _check_batches(
    batches: Sequence[MatchBatch], names: list[str], batch_size: int, num_batches: int
) -> None:
    found = {(*(x.name for x in batch.players), batch.outcomes.shape[1]) for batch in batches}
    if found - {(*names, batch_size)} or len(batches) > num_batches:
        raise ValueError(
            f"Earlier batches must be at most {num_batches} of {names} with {batch_size} openings, "
            f"got {len(batches)} of {sorted(found)}."
        )


def _compiled(env: Env, player: Player | CompiledPlayer, batch_size: int) -> CompiledPlayer:
    if isinstance(player, Player):
        return compile_player(env, player, batch_size)
    if player.batch_size != batch_size:
        raise ValueError(
            f"{player.player.name} is compiled for {player.batch_size} games, this match has "
            f"{batch_size} for each colour."
        )
    return player


def _pair_number(first: str, second: str) -> np.uint32:
    """Returns a number of the pairing, independent of other players and Python's hash seed."""
    return np.uint32(zlib.crc32(f"{first}\0{second}".encode()))


def _typed(rng_key: chex.PRNGKey) -> chex.PRNGKey:
    if not is_one_key(rng_key):
        raise ValueError(f"rng_key must be one key, got an array of shape {rng_key.shape}.")
    rng_key = typed_keys(rng_key)
    # Players are compiled for keys of the default kind, and reject others.
    default = jax.eval_shape(lambda: jax.random.key(0))
    if rng_key.dtype == default.dtype:
        return rng_key
    shape = jax.eval_shape(jax.random.key_data, default).shape
    return jax.random.wrap_key_data(jax.random.bits(rng_key, shape))


def _offset(progress: Progress | None, done: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda finished, _, label: progress(done + finished, total, label)
