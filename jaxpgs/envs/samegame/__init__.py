"""SameGame: the game, its rules once more in plain Python, and long sequences of moves."""

from jaxpgs.envs.samegame import rules
from jaxpgs.envs.samegame.game import CLEARED, SameGame, SameGameState, standard_positions

__all__ = ["CLEARED", "SameGame", "SameGameState", "rules", "standard_positions"]
