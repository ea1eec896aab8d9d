"""The results of matches and tournaments."""

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class PlayerRecord:
    """The costs of one player.

    Attributes:
      name: the player's name.
      moves: moves made in unfinished games.
      calls: calls of `act`, each for a whole batch of games, including finished ones.
      seconds: wall time of these calls, including the environment's step, without compilation.
      compile_seconds: time to compile the player, once.
      temp_bytes: scratch memory of the compiled program, None if unknown.
      stats: the scalars that `act` reported, summed over calls.

    Example:
      >>> first, second = (jaxpgs.evaluation.PlayerRecord("a", moves=n) for n in (2, 3))
      >>> (first + second).moves
      5
    """

    name: str
    moves: int = 0
    calls: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    temp_bytes: int | None = None
    stats: dict[str, float] = dataclasses.field(default_factory=dict)

    def __add__(self, other: "PlayerRecord") -> "PlayerRecord":
        # Each may have counts that the other lacks; a dict keeps their order.
        names = dict.fromkeys((*self.stats, *other.stats))
        return PlayerRecord(
            self.name,
            self.moves + other.moves,
            self.calls + other.calls,
            self.seconds + other.seconds,
            other.compile_seconds,  # the same program serves all pairings
            other.temp_bytes,
            {k: self.stats.get(k, 0.0) + other.stats.get(k, 0.0) for k in names},
        )


@dataclasses.dataclass(frozen=True)
class MatchBatch:
    """Games of a pairing that were played at once: B openings with both colours.

    Attributes:
      players: the costs of the first and the second player.
      outcomes: `[2, B]` float64, as in `MatchResult`.
      lengths: `[2, B]` int, as in `MatchResult`.

    Example:
      >>> records = tuple(jaxpgs.evaluation.PlayerRecord(name) for name in ("a", "b"))
      >>> batch = jaxpgs.evaluation.MatchBatch(records, np.ones((2, 3)), np.full((2, 3), 5))
      >>> batch.to_dict()["outcomes"]
      [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    players: tuple[PlayerRecord, PlayerRecord]
    outcomes: np.ndarray
    lengths: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """Returns the games as plain lists and numbers, ready for JSON."""
        return _to_dict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "MatchBatch":
        """Reads what `to_dict` returned, among other fields."""
        outcomes = np.asarray(fields["outcomes"], np.float64)
        return cls(_players(fields), outcomes, np.asarray(fields["lengths"]))


@dataclasses.dataclass(frozen=True)
class MatchResult:
    """The games of one pairing, with O openings and R repeats.

    Attributes:
      players: the costs of the first and the second player.
      openings: `[O]` int, the forced first actions, or `[O, L]`, lines of them.
      outcomes: `[2, R, O]` float64, the first player's score: 1 won, 0.5 drawn, 0 lost. The first
        axis tells who opened the game: 0 the first player, 1 the second.
      batch_size: how many games each call of a player handled, None if unknown.
      lengths: `[2, R, O]` int, the moves of both players in each game, including the opening; None
        if unknown.

    Example:
      >>> records = tuple(jaxpgs.evaluation.PlayerRecord(name) for name in ("a", "b"))
      >>> outcomes = np.array([[[1.0, 0.5]], [[0.0, 1.0]]])  # [colour, repeat, opening]
      >>> match = jaxpgs.evaluation.MatchResult(records, np.array([0, 4]), outcomes)
      >>> match.wins, match.by_opening
      (2.5, array([0.5 , 0.75]))
    """

    players: tuple[PlayerRecord, PlayerRecord]
    openings: np.ndarray
    outcomes: np.ndarray
    batch_size: int | None = None
    lengths: np.ndarray | None = None

    @classmethod
    def from_batches(
        cls, batches: Sequence[MatchBatch], openings: np.ndarray, repeats: int = 1
    ) -> "MatchResult":
        """Joins the first batches of a match, or all of them.

        Args:
          batches: at least one, in the order in which they were played.
          openings: `[O]` or `[O, L]`, the openings of the whole match.
          repeats: the repeats of the whole match. The result has those that are complete, or one
            repeat of fewer openings.

        Returns:
          The games so far. The players' costs are those of all games in the batches.
        """
        # A match may have been interrupted: then the batches cover only its first games.
        batch_size = batches[0].outcomes.shape[1]
        openings = openings[: batch_size * len(batches)]
        repeats = min(repeats, batch_size * len(batches) // len(openings))
        count = repeats * len(openings)

        def joined(name: str) -> np.ndarray:
            # `play_match` orders the games by repeats, and pads the last batch after `count` games.
            games = np.concatenate([getattr(batch, name) for batch in batches], axis=1)
            return games[:, :count].reshape(2, repeats, len(openings))

        # The players' costs are summed over the batches.
        first, second = zip(*(batch.players for batch in batches), strict=True)
        spent = functools.reduce(operator.add, first), functools.reduce(operator.add, second)
        return cls(spent, openings, joined("outcomes"), batch_size, joined("lengths"))

    @property
    def names(self) -> tuple[str, str]:
        """The two players' names."""
        return self.players[0].name, self.players[1].name

    @property
    def games(self) -> int:
        """The number of games."""
        return int(self.outcomes.size)

    @property
    def by_opening(self) -> np.ndarray:
        """The first player's mean score `[O]` of each opening, over colours and repeats."""
        return self.outcomes.mean(axis=(0, 1))

    @property
    def wins(self) -> float:
        """The first player's score: games won, draws as half."""
        return float(self.outcomes.sum())

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as plain lists and numbers, ready for JSON."""
        return _to_dict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "MatchResult":
        """Reads what `to_dict` returned, among other fields."""
        return cls(
            _players(fields),
            np.asarray(fields["openings"]),
            np.asarray(fields["outcomes"], np.float64),
            # Records of earlier versions have neither of these.
            fields.get("batch_size"),
            None if (lengths := fields.get("lengths")) is None else np.asarray(lengths),
        )


@dataclasses.dataclass(frozen=True)
class Tournament:
    """The games of P players.

    Attributes:
      names: the players' names, in the order in which they were given.
      wins: `[P, P]` float64, how often the row's player beat the column's, draws as half.
      players: the total costs of each player, by name.
      pairs: the results of the pairings.

    Example:
      >>> players = [jaxpgs.evaluation.uniform_random(env, name=name) for name in ("a", "b")]
      >>> jaxpgs.evaluation.round_robin(env, players, rng_key).names
      ('a', 'b')
    """

    names: tuple[str, ...]
    wins: np.ndarray
    players: dict[str, PlayerRecord]
    pairs: tuple[MatchResult, ...]


def _to_dict(games: MatchBatch | MatchResult) -> dict[str, Any]:
    # JSON has no arrays; `from_dict` restores them.
    fields = dataclasses.asdict(games)
    return {k: x.tolist() if isinstance(x, np.ndarray) else x for k, x in fields.items()}


def _players(fields: Mapping[str, Any]) -> tuple[PlayerRecord, PlayerRecord]:
    first, second = (PlayerRecord(**record) for record in fields["players"])
    return first, second
