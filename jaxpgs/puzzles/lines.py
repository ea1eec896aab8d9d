"""The former name of `jaxpgs.puzzles.episodes` and `jaxpgs.puzzles.rollouts`."""

from jaxpgs.deprecation import former_module
from jaxpgs.puzzles.episodes import Episode as Line
from jaxpgs.puzzles.episodes import make_episode_fns as make_line_fns
from jaxpgs.puzzles.episodes import play_move
from jaxpgs.puzzles.episodes import start_episodes as start_lines
from jaxpgs.puzzles.rollouts import (
    Rollout,
    first_by_prior,
    informed_rollouts,
    random_rollouts,
    uniform_logits,
)

__all__ = [
    "Line",
    "Rollout",
    "first_by_prior",
    "informed_rollouts",
    "make_line_fns",
    "play_move",
    "random_rollouts",
    "start_lines",
    "uniform_logits",
]

former_module(__name__, "jaxpgs.puzzles.lines", "jaxpgs.puzzles.episodes and .rollouts")
