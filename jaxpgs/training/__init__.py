"""Training networks by self-play with a search."""

from jaxpgs.training.models import labelling, model_fitting, unrolls, value_equivalent
from jaxpgs.training.policy_gradient import learner_games, past_selves, ppo, ppo_loss
from jaxpgs.training.puzzles import fitting, puzzle_iteration
from jaxpgs.training.recipes import distillation
from jaxpgs.training.runtime import loggers
from jaxpgs.training.runtime.run_folder import RunRecord, read_run
from jaxpgs.training.runtime.settings import Run
from jaxpgs.training.two_player import (
    expert_iteration,
    experts,
    losses,
    objectives,
    replay,
    resignation,
    selfplay,
)
from jaxpgs.training.two_player.experts import make_expert

__all__ = [
    "Run",
    "RunRecord",
    "distillation",
    "expert_iteration",
    "experts",
    "fitting",
    "labelling",
    "learner_games",
    "loggers",
    "losses",
    "make_expert",
    "model_fitting",
    "objectives",
    "past_selves",
    "ppo",
    "ppo_loss",
    "puzzle_iteration",
    "read_run",
    "replay",
    "resignation",
    "selfplay",
    "unrolls",
    "value_equivalent",
]
