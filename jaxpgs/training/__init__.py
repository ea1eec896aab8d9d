"""Training networks by self-play of a search."""

from typing import TYPE_CHECKING

from jaxpgs.deprecation import former_names
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

if not TYPE_CHECKING:  # or no misspelt name would be found
    __getattr__ = former_names(__name__, {"generations": "jaxpgs.training.generations"})
