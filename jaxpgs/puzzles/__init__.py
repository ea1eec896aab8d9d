"""Games of one player, played to the end with a search for every move; the best game counts.

`searches`, `nrpa_samegame` and `parallel_tempering` contain the searches, and `nrpa_loop` contains
nested rollout policy adaptation for any game. `policy_rollouts` plays games without a search.
`solving` is the loop over whole games, `episodes` defines states that remember their moves, and
`rollouts` plays positions to the end. `offline_games` lets another search evaluate played games.
"""

from jaxpgs.puzzles.episodes import Episode, make_episode_fns, play_move, start_episodes
from jaxpgs.puzzles.nrpa_loop import NestedSearch, nrpa_policy, nrpa_search
from jaxpgs.puzzles.nrpa_samegame import nrpa, prior_bias
from jaxpgs.puzzles.offline_games import judged
from jaxpgs.puzzles.parallel_tempering import TemperingSearch, tempering, tempering_search
from jaxpgs.puzzles.policy_rollouts import policy_games, random_games
from jaxpgs.puzzles.rollouts import Rollout, first_by_prior, informed_rollouts, random_rollouts
from jaxpgs.puzzles.searches import mcs, pgs, plain_mcts, policy_mcts, pv_mcts
from jaxpgs.puzzles.solving import Plan, Searches, Solution, solve

__all__ = [
    "Episode",
    "NestedSearch",
    "Plan",
    "Rollout",
    "Searches",
    "Solution",
    "TemperingSearch",
    "first_by_prior",
    "informed_rollouts",
    "judged",
    "make_episode_fns",
    "mcs",
    "nrpa",
    "nrpa_policy",
    "nrpa_search",
    "pgs",
    "plain_mcts",
    "play_move",
    "policy_games",
    "policy_mcts",
    "prior_bias",
    "pv_mcts",
    "random_games",
    "random_rollouts",
    "solve",
    "start_episodes",
    "tempering",
    "tempering_search",
]
