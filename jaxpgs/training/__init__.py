"""Training networks by self-play of a search."""

from jaxpgs.training import expert_iteration, experts, losses, replay, resignation, selfplay
from jaxpgs.training.experts import make_expert

__all__ = [
    "expert_iteration",
    "experts",
    "losses",
    "make_expert",
    "replay",
    "resignation",
    "selfplay",
]
