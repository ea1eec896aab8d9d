"""Hex engines over GTP: our searches in HexGui and against other programs.

`python -m jaxpgs.gtp` is the engine; docs/engines.md describes its commands. A dialog is an
immutable value: `handle(engine, dialog, line)` answers one line of text and returns the next
dialog. An `Engine` consists of two functions. `search_engine` makes an engine from our searches,
and `player_engine` from any player of `jaxpgs.evaluation`. Conversely,
`jaxpgs.evaluation.gtp_player` makes a player from any program that speaks GTP.
"""

from jaxpgs.gtp.commands import handle, serve
from jaxpgs.gtp.dialog import Answer, Clock, Dialog, Engine, Options, Reply, Task
from jaxpgs.gtp.engines import player_engine, search_engine

__all__ = [
    "Answer",
    "Clock",
    "Dialog",
    "Engine",
    "Options",
    "Reply",
    "Task",
    "handle",
    "player_engine",
    "search_engine",
    "serve",
]
