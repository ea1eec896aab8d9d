"""SameGame: the game, a second implementation of its rules in NumPy, and whole sampled games."""

from jaxpgs.envs.samegame import rules
from jaxpgs.envs.samegame.game import CLEARED, SameGame, SameGameState, standard_positions

__all__ = ["CLEARED", "SameGame", "SameGameState", "rules", "standard_positions"]
