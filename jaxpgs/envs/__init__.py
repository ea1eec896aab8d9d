"""Games as pure functions on frozen states."""

from jaxpgs.envs.hex import Hex, HexState

__all__ = ["Hex", "HexState"]
