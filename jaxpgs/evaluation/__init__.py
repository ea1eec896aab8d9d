"""Tournaments, ratings, opponents and exact solvers."""

from jaxpgs.evaluation.elo import EloDifference, EloTable, bayes_elo, elo_difference
from jaxpgs.evaluation.intervals import (
    EloInterval,
    bayes_elo_by_opening,
    elo_by_opening,
    wins_by_opening,
)
from jaxpgs.evaluation.matches import play_match, round_robin
from jaxpgs.evaluation.openings import hex_openings, opening_lines
from jaxpgs.evaluation.players.gtp_players import gtp_player
from jaxpgs.evaluation.players.opponents import (
    openspiel_mcts,
    perfect_hex,
    raw_network,
    uniform_random,
)
from jaxpgs.evaluation.players.player import CompiledPlayer, Player, compile_player
from jaxpgs.evaluation.players.searchers import search_player
from jaxpgs.evaluation.records import MatchBatch, MatchResult, PlayerRecord, Tournament
from jaxpgs.evaluation.solvers import solve_hex

__all__ = [
    "CompiledPlayer",
    "EloDifference",
    "EloInterval",
    "EloTable",
    "MatchBatch",
    "MatchResult",
    "Player",
    "PlayerRecord",
    "Tournament",
    "bayes_elo",
    "bayes_elo_by_opening",
    "compile_player",
    "elo_by_opening",
    "elo_difference",
    "gtp_player",
    "hex_openings",
    "opening_lines",
    "openspiel_mcts",
    "perfect_hex",
    "play_match",
    "raw_network",
    "round_robin",
    "search_player",
    "solve_hex",
    "uniform_random",
    "wins_by_opening",
]
