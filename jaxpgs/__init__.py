"""Policy gradient search: planning without a search tree, in JAX.

The searches take the same positional arguments as mctx's policies:

    output = jaxpgs.pgs_policy(params, rng_key, root, recurrent_fn, num_simulations,
                               invalid_actions, adapt=jaxpgs.networks.policy_head(params))
"""

from typing import TYPE_CHECKING

from jaxpgs import envs, networks, puzzles
from jaxpgs.adapters import make_recurrent_fn, make_root_fn
from jaxpgs.base import Expansion, PolicyOutput, RootStats, SearchState, SplitRecurrentFn
from jaxpgs.deprecation import former_names
from jaxpgs.envs.played_games import PlayedGames
from jaxpgs.pretrained import available_pretrained, load_pretrained, save_pretrained
from jaxpgs.puzzles import NestedSearch, nrpa_policy, nrpa_search
from jaxpgs.search import (
    RootSelection,
    Truncation,
    auto_sgd,
    batched_mcts_policy,
    best_value,
    by_probability,
    by_visits,
    completed_q,
    estimate_memory,
    fixed,
    growing,
    last_value,
    max_min_puct,
    mcs_policy,
    muzero_puct,
    n_step,
    pgs_policy,
    puct,
    reinforce,
    reroot,
    reset_adapted,
    search,
    ucb1,
    until_new,
    visit_counts,
)

__all__ = [
    "Expansion",
    "NestedSearch",
    "PlayedGames",
    "PolicyOutput",
    "RootSelection",
    "RootStats",
    "SearchState",
    "SplitRecurrentFn",
    "Truncation",
    "auto_sgd",
    "available_pretrained",
    "batched_mcts_policy",
    "best_value",
    "by_probability",
    "by_visits",
    "completed_q",
    "envs",
    "estimate_memory",
    "fixed",
    "growing",
    "last_value",
    "load_pretrained",
    "make_recurrent_fn",
    "make_root_fn",
    "max_min_puct",
    "mcs_policy",
    "muzero_puct",
    "n_step",
    "networks",
    "nrpa_policy",
    "nrpa_search",
    "pgs_policy",
    "puct",
    "puzzles",
    "reinforce",
    "reroot",
    "reset_adapted",
    "save_pretrained",
    "search",
    "ucb1",
    "until_new",
    "visit_counts",
]

if not TYPE_CHECKING:  # or no misspelt name would be found
    __getattr__ = former_names(__name__, {"Games": "jaxpgs.envs.played_games:PlayedGames"})
