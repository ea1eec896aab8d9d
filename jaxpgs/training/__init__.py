"""Training networks by self-play of a search."""

from jaxpgs.training import (
    expert_iteration,
    experts,
    fitting,
    labelling,
    learner_games,
    losses,
    model_fitting,
    objectives,
    opponents,
    ppo,
    puzzle_iteration,
    replay,
    resignation,
    selfplay,
    unrolls,
    value_equivalent,
)
from jaxpgs.training.experts import make_expert

__all__ = [
    "expert_iteration",
    "experts",
    "fitting",
    "labelling",
    "learner_games",
    "losses",
    "make_expert",
    "model_fitting",
    "objectives",
    "opponents",
    "ppo",
    "puzzle_iteration",
    "replay",
    "resignation",
    "selfplay",
    "unrolls",
    "value_equivalent",
]
