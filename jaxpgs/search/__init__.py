"""The search: one loop, its parts, its simulators and the presets."""

from jaxpgs.search.loop import Carry, Search, finish, init, run, step
from jaxpgs.search.memory import MemoryEstimate, estimate_memory
from jaxpgs.search.parts.backup import last_value, n_step
from jaxpgs.search.parts.estimator import regularized, reinforce
from jaxpgs.search.parts.gumbel import gumbel_inner, gumbel_root, gumbel_target
from jaxpgs.search.parts.improvement import SampledPolicy, improved_policy
from jaxpgs.search.parts.selection import (
    Selection,
    max_min_puct,
    muzero_puct,
    puct,
    ucb1,
    with_dirichlet_noise,
)
from jaxpgs.search.parts.step_size import auto_sgd
from jaxpgs.search.parts.target import best_value, completed_q, visit_counts
from jaxpgs.search.parts.truncation import (
    Truncation,
    by_probability,
    by_visits,
    fixed,
    growing,
    until_new,
)
from jaxpgs.search.policies import (
    batched_mcts_policy,
    batched_mcts_search,
    gumbel_mcts_policy,
    gumbel_mcts_search,
    gumbel_pgs_policy,
    gumbel_pgs_search,
    mcs_policy,
    mcs_search,
    pgs_policy,
    pgs_search,
)
from jaxpgs.search.simulators.adaptation import reset_adapted
from jaxpgs.search.simulators.nodes import Nodes, reroot

from jaxpgs.search.nrpa import NestedSearch, nrpa_policy, nrpa_search  # isort: skip
