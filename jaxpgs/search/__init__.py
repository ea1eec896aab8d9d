"""The search: one loop, its parts, its simulators and the presets.

`loop` has `init`, `step` and `finish`, `presets` the searches, a file each, `parts` what a search
is made of and `simulators` the two memory modes. In each preset's file `*_search` makes a `Search`,
for `init`, `step`, `finish` and `search_for`, and `*_policy` runs it, with the positional arguments
of `mctx.muzero_policy`. What one needs to write a part or a simulator is public here.
"""

from jaxpgs.search.anytime import Progress, search_for
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import Carry, advance, finish, init, init_nodes, run, step
from jaxpgs.search.memory import MemoryEstimate, estimate_memory
from jaxpgs.search.parts.backup import (
    Backup,
    last_value,
    log_series,
    n_step,
    td_lambda,
    truncated_geometric,
)
from jaxpgs.search.parts.estimator import Estimator, regularized, reinforce, step_advantage
from jaxpgs.search.parts.gumbel import GumbelState, gumbel_inner, gumbel_root, gumbel_target
from jaxpgs.search.parts.improvement import (
    QTransform,
    SampledPolicy,
    completed_qvalues,
    improved_policy,
    qtransform_completed_by_mix_value,
)
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.selection import (
    Selection,
    by_score,
    highest,
    max_min_puct,
    muzero_puct,
    puct,
    select_in_turn,
    ucb1,
    with_dirichlet_noise,
)
from jaxpgs.search.parts.step_size import auto_sgd
from jaxpgs.search.parts.target import Target, best_value, completed_q, visit_counts
from jaxpgs.search.parts.truncation import (
    Truncation,
    by_probability,
    by_visits,
    fixed,
    growing,
    until_new,
)
from jaxpgs.search.presets.defaults import (
    default_num_considered,
    default_simulations_per_update,
)
from jaxpgs.search.presets.extended import (
    extended_pgs_policy,
    extended_pgs_search,
    paper_extended_pgs,
)
from jaxpgs.search.presets.gumbel import (
    gumbel_mcts_policy,
    gumbel_mcts_search,
    gumbel_pgs_policy,
    gumbel_pgs_search,
)
from jaxpgs.search.presets.mcs import mcs_policy, mcs_search, paper_mcs
from jaxpgs.search.presets.mcts import batched_mcts_policy, batched_mcts_search
from jaxpgs.search.presets.pgs import paper_pgs, pgs_policy, pgs_search
from jaxpgs.search.simulators.adaptation import init_adapted, own_like, reset_adapted
from jaxpgs.search.simulators.nodes import Nodes, node_stats, reroot
from jaxpgs.search.simulators.simulator import (
    Distribution,
    Simulations,
    Simulator,
    distribution,
    invert,
)

__all__ = [
    "Backup",
    "Carry",
    "Distribution",
    "Estimator",
    "GumbelState",
    "MemoryEstimate",
    "Nodes",
    "Progress",
    "QTransform",
    "Reuse",
    "SampledPolicy",
    "Search",
    "Selection",
    "Simulations",
    "Simulator",
    "Target",
    "Truncation",
    "advance",
    "auto_sgd",
    "batched_mcts_policy",
    "batched_mcts_search",
    "best_value",
    "by_probability",
    "by_score",
    "by_visits",
    "completed_q",
    "completed_qvalues",
    "default_num_considered",
    "default_simulations_per_update",
    "distribution",
    "estimate_memory",
    "extended_pgs_policy",
    "extended_pgs_search",
    "finish",
    "fixed",
    "growing",
    "gumbel_inner",
    "gumbel_mcts_policy",
    "gumbel_mcts_search",
    "gumbel_pgs_policy",
    "gumbel_pgs_search",
    "gumbel_root",
    "gumbel_target",
    "highest",
    "improved_policy",
    "init",
    "init_adapted",
    "init_nodes",
    "invert",
    "last_value",
    "log_series",
    "max_min_puct",
    "mcs_policy",
    "mcs_search",
    "muzero_puct",
    "n_step",
    "node_stats",
    "own_like",
    "paper_extended_pgs",
    "paper_mcs",
    "paper_pgs",
    "pgs_policy",
    "pgs_search",
    "puct",
    "qtransform_completed_by_mix_value",
    "regularized",
    "reinforce",
    "reroot",
    "reset_adapted",
    "run",
    "search_for",
    "select_in_turn",
    "step",
    "step_advantage",
    "td_lambda",
    "truncated_geometric",
    "ucb1",
    "until_new",
    "visit_counts",
    "with_dirichlet_noise",
]
