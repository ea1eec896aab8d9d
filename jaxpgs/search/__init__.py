"""The search: one simulation loop over two stores, configured by interchangeable parts.

`loop` has `init`, `step` and `finish`. `walk` runs the K simulations of an update, `stores` provide
the states, `learning` computes the gradient, and `models` call the model. `parts` has the
components of a search, one file each, `presets` the searches, and `papers` the settings that only
reproduce a paper. `*_search` makes a `Search` for `init`, `step`, `finish` and `search_for`;
`*_policy` runs it, with the positional arguments of `mctx.muzero_policy`. The helpers that a
custom part needs are public here.
"""

from jaxpgs.search.anytime import Progress, search_for
from jaxpgs.search.carry import Carry
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import advance, finish, init, init_nodes, run, step
from jaxpgs.search.models.adapted import base_params_like, init_adapted, reset_adapted
from jaxpgs.search.papers import (
    extended_pgs_policy,
    extended_pgs_search,
    paper_extended_pgs,
    paper_mcs,
    paper_pgs,
)
from jaxpgs.search.policy import Categorical, categorical, masked_argmax, sample_inverse_cdf
from jaxpgs.search.presets.gumbel import (
    default_num_considered,
    gumbel_mcts_policy,
    gumbel_mcts_search,
    gumbel_pgs_policy,
    gumbel_pgs_search,
)
from jaxpgs.search.presets.making import default_simulations_per_update
from jaxpgs.search.presets.pgs import (
    batched_mcts_policy,
    batched_mcts_search,
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
from jaxpgs.search.stores.nodes import Nodes, node_stats
from jaxpgs.search.stores.rerooting import reroot
from jaxpgs.search.stores.tree_view import (
    ActionSummary,
    SearchTable,
    principal_variation,
    search_summary,
    tree_svg,
)

__all__ = [
    "ActionSummary",
    "Carry",
    "Categorical",
    "MemoryEstimate",
    "Nodes",
    "Progress",
    "Search",
    "SearchTable",
    "StochasticState",
    "advance",
    "base_params_like",
    "batched_mcts_policy",
    "batched_mcts_search",
    "categorical",
    "default_num_considered",
    "default_simulations_per_update",
    "estimate_memory",
    "extended_pgs_policy",
    "extended_pgs_search",
    "finish",
    "gumbel_mcts_policy",
    "gumbel_mcts_search",
    "gumbel_pgs_policy",
    "gumbel_pgs_search",
    "init",
    "init_adapted",
    "init_nodes",
    "masked_argmax",
    "mcs_policy",
    "mcs_search",
    "node_stats",
    "paper_extended_pgs",
    "paper_mcs",
    "paper_pgs",
    "pgs_policy",
    "pgs_search",
    "principal_variation",
    "reroot",
    "reset_adapted",
    "run",
    "sample_inverse_cdf",
    "search_for",
    "search_summary",
    "step",
    "stochastic_mcts_policy",
    "stochastic_mcts_search",
    "stochastic_root",
    "tree_svg",
]
