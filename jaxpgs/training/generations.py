"""The former name of `jaxpgs.training.puzzle_iteration`."""

from typing import Any

from jaxpgs.deprecation import former_module
from jaxpgs.training import puzzle_iteration
from jaxpgs.training.puzzle_iteration import PuzzleIterationState as TrainState
from jaxpgs.training.puzzle_iteration import l2_adam

__all__ = ["TrainState", "l2_adam", "train"]

_ARGUMENTS = {
    "player": "solver",
    "first_player": "first_solver",
    "num_generations": "num_iterations",
}

former_module(__name__, "jaxpgs.training.generations", "jaxpgs.training.puzzle_iteration")


def train(*args: Any, **kwargs: Any) -> TrainState:
    """Calls `puzzle_iteration.train`, some of whose arguments have other names now."""
    renamed = {_ARGUMENTS.get(name, name): value for name, value in kwargs.items()}
    return puzzle_iteration.train(*args, **renamed)
