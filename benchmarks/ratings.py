"""The tables of a tournament: ratings with their intervals, and inequalities of the players."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import pictures
from benchmarks.players import SIMPLE, describe, with_count
from benchmarks.tournaments import Preset
from jaxpgs import evaluation
from jaxpgs.evaluation.equal_budget import TOLERANCE, relative


def summarise(
    preset: Preset, network: Any, tournament: evaluation.Tournament, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Rates a tournament.

    Returns:
      `table`, a row for each player; `pairings`; and `remarks` on inequalities of the players.
    """
    ratings = evaluation.bayes_elo_by_opening(tournament)
    relative_to = ratios(preset, tournament)
    specs = {spec.name: spec for spec in preset.players}
    table = []
    for i, name in enumerate(tournament.names):
        about = describe(with_count(specs[name], counts[name]), network, counts[name])
        spent = tournament.players[name]
        records = [r for pair in tournament.pairs for r in pair.players if r.name == name]
        batches = [pair.batch_size or pair.games // 2 for pair in tournament.pairs
                   if name in pair.names]  # fmt: skip
        # The time of a call is divided among the games of its batch, finished or not. The median is
        # used, as the machine may have been busy in some of the pairings.
        ms = np.median([1e3 * r.seconds / max(r.calls, 1) / b
                        for r, b in zip(records, batches, strict=True)])  # fmt: skip
        evaluations = spent.stats.get("num_evaluations", 0) / max(spent.moves, 1)
        table.append(
            {"player": name, "search": specs[name].search}
            | about
            | {
                "batch": max(batches),
                "elo": round(float(ratings.ratings[i]), 1),
                "half_width": round(float(ratings.half_widths[i]), 1),
                "evaluations_per_move": round(evaluations, 1),
                "calls_per_search": round(spent.stats.get("num_calls", 0) / max(spent.calls, 1), 1),
                "ms_per_move": round(float(ms), 3),
                "relative": round(relative_to[name], 3) if name in relative_to else None,
                "temp_mb": None if spent.temp_bytes is None else round(spent.temp_bytes / 1e6, 1),
                "compile_seconds": round(spent.compile_seconds, 1),
            }
        )
    return {
        "table": table,
        "pairings": [pairing(result) for result in tournament.pairs],
        "remarks": remarks(preset, table),
    }


def pairing(result: evaluation.MatchResult) -> dict[str, Any]:
    """Returns the row of a pairing: the result, and the difference in Elo with its interval."""
    interval = evaluation.elo_by_opening(result.outcomes)
    return {
        "first": result.names[0],
        "second": result.names[1],
        "won": result.wins,
        "games": result.games,
        "openings": len(result.openings),
        "elo": round(interval.elo, 1),
        "low": round(interval.low, 1),
        "high": round(interval.high, 1),
        "games_to_decide": games_to_decide(result.games, *interval),
        "first_won_in": won_in(result, 1.0),
        "second_won_in": won_in(result, 0.0),
    }


def won_in(result: evaluation.MatchResult, outcome: float) -> list[float] | None:
    """Returns the length of the games with one outcome, in moves of both players.

    Args:
      result: the result of a pairing.
      outcome: 1 for the games that the first player won, 0 for those of the second.

    Returns:
      The mean and the half-width of its 95% interval, from 1,000 bootstrap samples of the openings;
      None if there are no such games or their lengths are unknown.
    """
    if result.lengths is None:
        return None
    won = (result.outcomes == outcome).reshape(-1, len(result.openings))
    moves = (won * result.lengths.reshape(won.shape)).sum(axis=0)
    games = won.sum(axis=0)
    if not games.any():
        return None
    count = len(games)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=1000)
    means = (drawn @ moves) / np.maximum(drawn @ games, 1)
    low, high = np.quantile(means[drawn @ games > 0], (0.025, 0.975))
    return [round(float(moves.sum() / games.sum()), 2), round(float(high - low) / 2, 2)]


def games_to_decide(games: int, elo: float, low: float, high: float) -> int | None:
    """Estimates how many games would decide an undecided pairing, if its Elo is right.

    An interval's width is inversely proportional to the square root of the number of openings, so
    the games are on more openings, not repeats. None if it is decided, or exactly even.
    """
    if low > 0 or high < 0 or abs(elo) < 0.05:
        return None
    width = elo - low if elo > 0 else high - elo
    return max(games, int(float(f"{games * (width / elo) ** 2:.2g}")))


def remarks(preset: Preset, table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describes what was not equal among a table's players, and why."""
    said = []
    depths = {row["depth"] for row in table if row["K"]}
    ours = sorted(
        {row["K"] for row in table if row["K"] and row["search"] not in ("muzero", "gumbel")}
    )
    if any(row["search"] in ("muzero", "gumbel") for row in table):
        said.append("mctx's searches run one simulation at a time (K = 1)")
    if len(ours) > 1:
        said.append(f"ours differ in K ({', '.join(map(str, ours))}): {preset.reason}")
    if len(depths) > 1:
        bounded = max(depth for depth in depths if depth is not None)
        said.append(f"in rollouts a simulation has at most {bounded} actions")
    spent = [row["relative"] for row in table if row["relative"] is not None]
    if spent:
        apart = 100 * (max(spent) / min(spent) - 1)
        what = f"{preset.equal}, measured in the games: {apart:.1f}% apart at most"
        said.append(what + ("" if apart <= 100 * (TOLERANCE - 1) else ", which is not equal"))
        if any(row["search"] == "network" for row in table):
            said.append("the raw network has no simulations and spends less")
    return said


def scaling_plot(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Plots figure 2 of Anthony et al. 2019: each search's rating against its simulations.

    Args:
      path: the PNG file to write.
      rows: rows of a table whose players have names such as "PGS 400"; one is rated 0.
      title: the picture's title.
    """
    lines: dict[str, list[tuple[int, tuple[float, float, float]]]] = {}
    for row in rows:
        search, count = row["player"].split()
        elo, width = row["elo"], row["half_width"]
        lines.setdefault(search, []).append((int(count), (elo - width, elo, elo + width)))
    (reference,) = (row["player"] for row in rows if row["half_width"] == 0)
    pictures.line_plot(
        path, {"": {search: sorted(points) for search, points in sorted(lines.items())}},
        title=title, xlabel="simulations a move", ylabel=f"Elo over {reference}", yscale="linear",
    )  # fmt: skip


def ratios(preset: Preset, tournament: evaluation.Tournament) -> dict[str, float]:
    """The ratios of the searches' costs to the standard's; empty at equal simulations."""
    if preset.equal == "simulations":
        return {}
    searching = [s.name for s in preset.players if s.search not in SIMPLE]
    searching.remove(preset.standard)
    names = [preset.standard, *(name for name in searching if name in tournament.names)]
    return relative(tournament.pairs, names, preset.equal)


def player_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each player, the strongest first."""
    columns = {
        "player": "player", "simulations": "simulations", "K": "K", "depth": "depth at most",
        "mode": "mode", "batch": "batch", "elo": "Elo",
        "evaluations_per_move": "evaluations a move",
        "calls_per_search": "calls in a row", "ms_per_move": "ms a move",
        "relative": "spent / standard's", "temp_mb": "scratch MB", "compile_seconds": "compile s",
    }  # fmt: skip
    rows = sorted(summary["table"], key=lambda row: -row["elo"])
    shown = [
        row
        | {
            "elo": elo_text(row["elo"], row["half_width"]),
            "depth": "any" if row["K"] and row["depth"] is None else row["depth"],
        }
        for row in rows
    ]
    return list(columns.values()), [[row[c] for c in columns] for row in shown]


def pairing_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each pairing."""
    columns = ["first", "second", "first won", "openings", "Elo of the first", "95% interval",
               "games to decide",
               "moves, first won", "moves, second won"]  # fmt: skip
    lines = [
        [
            p["first"], p["second"], f"{p['won']:g} of {p['games']}", p["openings"],
            f"{p['elo']:+.0f}", f"{p['low']:+.0f} to {p['high']:+.0f}", p["games_to_decide"],
            *(moves and f"{moves[0]:.1f} ± {moves[1]:.1f}"
              for moves in (p.get("first_won_in"), p.get("second_won_in"))),
        ]
        for p in summary["pairings"]
    ]  # fmt: skip
    return columns, lines


def elo_text(elo: float, half_width: float) -> str:
    """Returns a difference in Elo with its interval, "0" for a player that sets the zero."""
    return "0" if half_width == 0 else f"{elo:+.0f} ± {half_width:.0f}"


def budget(setting: Mapping[str, Any]) -> str:
    """Describes the budget of a move in words."""
    if setting["equal"] == "simulations":
        return f"{setting['num_simulations']} simulations a move"
    count = setting["num_simulations"]
    return f"equal {setting['equal']}, that of {setting['standard']} with {count} simulations"
