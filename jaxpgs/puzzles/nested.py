"""The former name of `jaxpgs.puzzles.nrpa_samegame`."""

from jaxpgs.deprecation import former_module
from jaxpgs.puzzles.nrpa_samegame import nrpa, prior_bias

__all__ = ["nrpa", "prior_bias"]

former_module(__name__, "jaxpgs.puzzles.nested", "jaxpgs.puzzles.nrpa_samegame")
