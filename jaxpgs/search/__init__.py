"""The search: one scan and its parts."""

from jaxpgs.search.adaptation import reset_adapted
from jaxpgs.search.backups import last_value, n_step
from jaxpgs.search.estimators import reinforce
from jaxpgs.search.policies import mcs_policy, pgs_policy
from jaxpgs.search.root_selection import puct, ucb1
from jaxpgs.search.scan import search
from jaxpgs.search.targets import visit_counts
from jaxpgs.search.truncation import (
    Truncation,
    by_probability,
    by_visits,
    fixed,
    growing,
    until_new,
)

__all__ = [
    "Truncation",
    "by_probability",
    "by_visits",
    "fixed",
    "growing",
    "last_value",
    "mcs_policy",
    "n_step",
    "pgs_policy",
    "puct",
    "reinforce",
    "reset_adapted",
    "search",
    "ucb1",
    "until_new",
    "visit_counts",
]
