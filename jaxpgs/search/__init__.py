"""The search: one walk over two stores, and the parts that decide everything.

`loop` has `init`, `step` and `finish`; `walk` the K simulations of an update; `nodes`, `store_tree`
and `store_rollouts` say where a state comes from; `learn` is the gradient; `parts` what a search is
made of, a file each; `presets` the searches, and `papers` what only reproduces a paper. `*_search`
makes a `Search`, for `init`, `step`, `finish` and `search_for`, and `*_policy` runs it, with the
positional arguments of `mctx.muzero_policy`. What one needs to write a part is public here.
"""

from jaxpgs.search.anytime import Progress, search_for
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import Carry, advance, finish, init, init_nodes, run, step
from jaxpgs.search.models.model import base_params_like, init_adapted, reset_adapted
from jaxpgs.search.papers import (
    extended_pgs_policy,
    extended_pgs_search,
    paper_extended_pgs,
    paper_mcs,
    paper_pgs,
)
from jaxpgs.search.parts.backup import (
    Backup,
    last_value,
    log_series,
    n_step,
    td_lambda,
    truncated_geometric,
)
from jaxpgs.search.parts.estimator import (
    Estimator,
    auto_sgd,
    regularized,
    reinforce,
    step_advantage,
)
from jaxpgs.search.parts.gumbel import (
    GumbelState,
    gumbel_inner,
    gumbel_root,
    gumbel_target,
    rounds,
)
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.selection import (
    Narrow,
    Rounds,
    Selection,
    by_score,
    masked_argmax,
    max_min_puct,
    muzero_puct,
    puct,
    select_in_turn,
    ucb1,
    with_dirichlet_noise,
)
from jaxpgs.search.parts.target import (
    QTransform,
    SampledPolicy,
    Target,
    best_value,
    completed_q,
    completed_qvalues,
    improved_policy,
    qtransform_completed_by_mix_value,
    visit_counts,
)
from jaxpgs.search.parts.truncation import (
    Truncation,
    by_probability,
    by_visits,
    fixed,
    growing,
    until_new,
)
from jaxpgs.search.policy import Categorical, categorical, sample_inverse_cdf
from jaxpgs.search.presets import (
    batched_mcts_policy,
    batched_mcts_search,
    default_num_considered,
    default_simulations_per_update,
    gumbel_mcts_policy,
    gumbel_mcts_search,
    gumbel_pgs_policy,
    gumbel_pgs_search,
    mcs_policy,
    mcs_search,
    pgs_policy,
    pgs_search,
)
from jaxpgs.search.stochastic import (
    StochasticState,
    stochastic_mcts_policy,
    stochastic_mcts_search,
    stochastic_root,
)
from jaxpgs.search.stores.memory import MemoryEstimate, estimate_memory
from jaxpgs.search.stores.nodes import Nodes, node_stats, reroot
from jaxpgs.search.stores.tree_view import (
    ActionSummary,
    SearchTable,
    principal_variation,
    search_summary,
    tree_svg,
)

__all__ = [
    "ActionSummary",
    "Backup",
    "Carry",
    "Categorical",
    "Estimator",
    "GumbelState",
    "MemoryEstimate",
    "Narrow",
    "Nodes",
    "Progress",
    "QTransform",
    "Reuse",
    "Rounds",
    "SampledPolicy",
    "Search",
    "SearchTable",
    "Selection",
    "StochasticState",
    "Target",
    "Truncation",
    "advance",
    "auto_sgd",
    "base_params_like",
    "batched_mcts_policy",
    "batched_mcts_search",
    "best_value",
    "by_probability",
    "by_score",
    "by_visits",
    "categorical",
    "completed_q",
    "completed_qvalues",
    "default_num_considered",
    "default_simulations_per_update",
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
    "improved_policy",
    "init",
    "init_adapted",
    "init_nodes",
    "last_value",
    "log_series",
    "masked_argmax",
    "max_min_puct",
    "mcs_policy",
    "mcs_search",
    "muzero_puct",
    "n_step",
    "node_stats",
    "paper_extended_pgs",
    "paper_mcs",
    "paper_pgs",
    "pgs_policy",
    "pgs_search",
    "principal_variation",
    "puct",
    "qtransform_completed_by_mix_value",
    "regularized",
    "reinforce",
    "reroot",
    "reset_adapted",
    "rounds",
    "run",
    "sample_inverse_cdf",
    "search_for",
    "search_summary",
    "select_in_turn",
    "step",
    "step_advantage",
    "stochastic_mcts_policy",
    "stochastic_mcts_search",
    "stochastic_root",
    "td_lambda",
    "tree_svg",
    "truncated_geometric",
    "ucb1",
    "until_new",
    "visit_counts",
    "with_dirichlet_noise",
]
