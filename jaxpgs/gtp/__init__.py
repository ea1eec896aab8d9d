"""Hex engines over GTP: our searches in HexGui and against other programs.

`python -m jaxpgs.gtp` is the engine; docs/engines.md has its commands. A dialog is a value, and
`handle(engine, dialog, line)` answers one line of text with the next one. What plays is an
`Engine`, two functions, of which `search_engine` makes one for our searches and `player_engine` for
any player of `jaxpgs.evaluation`. The other way round, `jaxpgs.evaluation.gtp_player` plays against
any program that speaks GTP.
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
