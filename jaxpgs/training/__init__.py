"""Training networks by self-play of a search."""

from typing import TYPE_CHECKING

from jaxpgs.deprecation import former_names
from jaxpgs.training import (
    expert_iteration,
    experts,
    fitting,
    losses,
    puzzle_iteration,
    replay,
    resignation,
    selfplay,
)
from jaxpgs.training.experts import make_expert

__all__ = [
    "expert_iteration",
    "experts",
    "fitting",
    "losses",
    "make_expert",
    "puzzle_iteration",
    "replay",
    "resignation",
    "selfplay",
]

if not TYPE_CHECKING:  # or no misspelt name would be found
    __getattr__ = former_names(__name__, {"generations": "jaxpgs.training.generations"})
