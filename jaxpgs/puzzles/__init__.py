"""Games of one player, played to the end by a search for every move: what counts is the best line.

`presets` and `nested` have the searches, `solving` the loop of whole games, `lines` states that
remember their moves, and rollouts.
"""

from jaxpgs.puzzles.lines import (
    Line,
    Rollout,
    first_by_prior,
    informed_rollouts,
    make_line_fns,
    play_move,
    random_rollouts,
    start_lines,
)
from jaxpgs.puzzles.nested import nrpa, prior_bias
from jaxpgs.puzzles.presets import pgs, plain_mcts, policy_mcts, pv_mcts
from jaxpgs.puzzles.solving import Plan, Searches, Solution, solve

__all__ = [
    "Line",
    "Plan",
    "Rollout",
    "Searches",
    "Solution",
    "first_by_prior",
    "informed_rollouts",
    "make_line_fns",
    "nrpa",
    "pgs",
    "plain_mcts",
    "play_move",
    "policy_mcts",
    "prior_bias",
    "pv_mcts",
    "random_rollouts",
    "solve",
    "start_lines",
]
