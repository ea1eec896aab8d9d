"""Training networks by self-play of a search."""

from jaxpgs.training import expert_iteration, losses, selfplay

__all__ = ["expert_iteration", "losses", "selfplay"]
