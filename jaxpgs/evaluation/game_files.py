"""The games of a match as SGF files."""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from jaxpgs.base import Env
from jaxpgs.envs import Hex, hex_io
from jaxpgs.evaluation.records import MatchBatch


def check_sgf(env: Env, folder: str | os.PathLike[str] | None) -> None:
    """Raises `ValueError` if SGF files are requested for a game other than Hex."""
    if folder is not None and not isinstance(env, Hex):
        raise ValueError(f"Only games of Hex are written as SGF; got sgf_folder with {env!r}.")


def write_games(
    folder: str | os.PathLike[str],
    env: Hex,
    batch: MatchBatch,
    openings: np.ndarray,
    boards: Sequence[Sequence[np.ndarray]],
    first: int,
    count: int,
) -> None:
    """Writes the games of a batch, one file each, in a folder of the pairing.

    Args:
      folder: the parent folder, created if necessary.
      env: the game.
      batch: the players and the outcomes.
      openings: `[B, L]` actions.
      boards: for each side that opened, the stones `[B, n*n]` as signs after the opening and after
        every turn.
      first: the number of the first game of the batch in the match.
      count: how many games each side opens; further games only pad the batch.
    """
    names = [record.name for record in batch.players]
    pair = pathlib.Path(folder) / _folder_name(f"{names[0]}_vs_{names[1]}")
    pair.mkdir(parents=True, exist_ok=True)
    for half in (0, 1):
        for g in range(min(len(openings), count - first)):
            stones = [board[g] for board in boards[half]]
            # The boards begin after the opening, so its moves are added here.
            actions = [*openings[g].tolist(), *_actions(stones)]
            game = hex_io.from_actions(
                env.size, actions, PB=names[half], PW=names[1 - half], GN=f"Game {first + g + 1}"
            )
            score = float(batch.outcomes[half, g])
            path = pair / f"{first + g + 1:05d}_{'black' if half == 0 else 'white'}.sgf"
            text = hex_io.write_sgf(_ended(game, score if half == 0 else 1 - score))
            path.write_text(text, encoding="utf-8")


def _folder_name(pairing: str) -> str:
    """Returns a folder name for a pairing, with a hash if characters had to be replaced."""
    name = re.sub(r"[^\w.+-]+", "_", pairing)
    # Without the hash, the games of "a 1" would overwrite those of "a=1".
    return name if name == pairing else f"{name}-{hashlib.sha256(pairing.encode()).hexdigest()[:8]}"


def _actions(stones: Sequence[np.ndarray]) -> list[int]:
    """Returns the actions between successive positions `[n*n]`; none if a position repeats."""
    actions = []
    # An illegal move or a resignation ends the game and leaves the stones as they were.
    for before, after in itertools.pairwise(stones):
        placed = np.flatnonzero((before == 0) & (after != 0))
        if np.count_nonzero(after) > np.count_nonzero(before):
            actions.append(int(placed[0]))
        elif (before != after).any():  # the stone was taken over
            actions.append(len(after))
    return actions


def _ended(game: hex_io.HexGame, score: float) -> hex_io.HexGame:
    """Adds the result, by Black's score, and a forfeit if neither side is connected."""
    # Hex has no draws: this game was cut off at `max_moves`.
    if score == 0.5:
        return dataclasses.replace(game, info={**game.info, "RE": "Void"})
    winner = 0 if score > 0.5 else 1
    result = f"{'BW'[winner]}+"
    if hex_io.winner(hex_io.stones(game)) is None:
        game, result = game.play(1 - winner, "forfeit"), f"{result}F"
    return dataclasses.replace(game, info={**game.info, "RE": result})
