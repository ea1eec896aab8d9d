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
from jaxpgs.training.run_folder import Run, read_run

__all__ = [
    "Run",
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
    "read_run",
    "replay",
    "resignation",
    "selfplay",
    "unrolls",
    "value_equivalent",
]
