"""Games as pure functions on frozen states."""

from jaxpgs.envs import samegame, samegame_rules
from jaxpgs.envs.hex import Hex, HexState
from jaxpgs.envs.samegame import SameGame, SameGameState

__all__ = ["Hex", "HexState", "SameGame", "SameGameState", "samegame", "samegame_rules"]
