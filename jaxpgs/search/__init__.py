"""The search: one scan and its parts."""

from jaxpgs.search.adaptation import reset_adapted
from jaxpgs.search.backups import last_value, n_step
from jaxpgs.search.estimators import reinforce
from jaxpgs.search.memory import MemoryEstimate, estimate_memory
from jaxpgs.search.nodes import Nodes, reroot
from jaxpgs.search.policies import batched_mcts_policy, mcs_policy, pgs_policy
from jaxpgs.search.root_selection import RootSelection, max_min_puct, muzero_puct, puct, ucb1
from jaxpgs.search.scan import search
from jaxpgs.search.step_size import auto_sgd
from jaxpgs.search.targets import best_value, completed_q, visit_counts
from jaxpgs.search.truncation import (
    Truncation,
    by_probability,
    by_visits,
    fixed,
    growing,
    until_new,
)

__all__ = [
    "MemoryEstimate",
    "Nodes",
    "RootSelection",
    "Truncation",
    "auto_sgd",
    "batched_mcts_policy",
    "best_value",
    "by_probability",
    "by_visits",
    "completed_q",
    "estimate_memory",
    "fixed",
    "growing",
    "last_value",
    "max_min_puct",
    "mcs_policy",
    "muzero_puct",
    "n_step",
    "pgs_policy",
    "puct",
    "reinforce",
    "reroot",
    "reset_adapted",
    "search",
    "ucb1",
    "until_new",
    "visit_counts",
]
