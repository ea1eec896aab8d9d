"""Training networks by self-play of a search."""

from jaxpgs.training import (
    expert_iteration,
    experts,
    fitting,
    generations,
    losses,
    replay,
    resignation,
    selfplay,
)
from jaxpgs.training.experts import make_expert

__all__ = [
    "expert_iteration",
    "experts",
    "fitting",
    "generations",
    "losses",
    "make_expert",
    "replay",
    "resignation",
    "selfplay",
]
