"""Games as pure functions on frozen states."""

from jaxpgs.envs import hex_io, samegame
from jaxpgs.envs.breakthrough import Breakthrough, BreakthroughState
from jaxpgs.envs.hex import Hex, HexState
from jaxpgs.envs.pendulum import Pendulum, PendulumState
from jaxpgs.envs.played_games import PlayedGames
from jaxpgs.envs.samegame import SameGame, SameGameState
from jaxpgs.envs.yavalath import Yavalath, YavalathState

__all__ = [
    "Breakthrough",
    "BreakthroughState",
    "Hex",
    "HexState",
    "Pendulum",
    "PendulumState",
    "PlayedGames",
    "SameGame",
    "SameGameState",
    "Yavalath",
    "YavalathState",
    "hex_io",
    "samegame",
]
