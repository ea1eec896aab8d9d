"""The commands of a dialog that report and set its clocks and parameters, as HexGui does."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxpgs.gtp.dialog import (
    Call,
    Clock,
    Dialog,
    read_boolean,
    read_integer,
    read_number,
    read_player,
    read_setting,
    read_word,
    with_clock,
)
from jaxpgs.thinker import SEARCHES


def time_left(call: Call) -> tuple[str, Dialog]:
    """Sets or reports a clock."""
    if not call.args:
        black, white = map(_told, call.dialog.clocks)
        return f"Black: {black}, White: {white}", call.dialog
    player = read_player(call.args[0])
    if len(call.args) == 1:
        return _told(call.dialog.clocks[player]), call.dialog
    moves = read_integer(call.args[2], 0, 10_000) if len(call.args) == 3 else 0
    seconds = read_number(call.args[1], 0, 1e7)
    # The length of a period of extra time was set by `time_settings` and does not change.
    known = call.dialog.clocks[player] or Clock(0.0)
    return "", with_clock(call.dialog, player, known._replace(seconds=seconds, moves=moves))


def _told(clock: Clock | None) -> str:
    return "no limit" if clock is None else f"{clock.seconds:.1f}"


def time_settings(call: Call) -> tuple[str, Dialog]:
    """Sets both clocks."""
    main, extra = (read_number(word, 0, 1e7) for word in call.args[:2])
    moves = read_integer(call.args[2], 0, 10_000)
    # Without main time the first period of extra time begins at once.
    start = (main, 0) if main else (extra, moves)
    clock = Clock(*start, extra_seconds=extra, extra_moves=moves)
    none = extra > 0 and not moves  # in GTP this means that there is no limit
    clocks = (None, None) if none or not any(start) else (clock, clock)
    return "", dataclasses.replace(call.dialog, clocks=clocks)


def param_game(call: Call) -> tuple[str, Dialog]:
    """Sets or reports the parameters of the game."""
    dialog = call.dialog
    if not call.args:
        seconds = dialog.clocks[0].seconds if dialog.clocks[0] else 0
        allowed = int(dialog.options.allow_swap)
        return f"\n[bool] allow_swap {allowed}\n[string] game_time {seconds:g}", dialog
    name, value = read_setting(call.args, ("allow_swap", "game_time"))
    if name == "game_time":
        seconds = read_number(value, 0, 1e7)
        clock = Clock(seconds) if seconds else None
        return "", dataclasses.replace(dialog, clocks=(clock, clock))
    options = dataclasses.replace(dialog.options, allow_swap=read_boolean(value))
    return "", dataclasses.replace(dialog, options=options)


def param_search(call: Call) -> tuple[str, Dialog]:
    """Sets or reports the parameters of the search."""
    options = call.dialog.options
    if not call.args:
        lines = [
            f"[list/{'/'.join(SEARCHES)}] search {options.search}",
            f"[string] simulations {options.simulations}",
            f"[string] seconds {options.seconds:g}",
            f"[string] resign {options.resign:g}",
            f"[bool] live {int(options.live)}",
        ]
        return "\n" + "\n".join(lines), call.dialog
    readers: dict[str, Callable[[str], Any]] = {
        "search": lambda word: read_word(word, SEARCHES),
        "simulations": lambda word: read_integer(word, 0, 1_000_000),
        "seconds": lambda word: read_number(word, 0, 1e6),
        "resign": lambda word: read_number(word, -1, 1),
        "live": read_boolean,
    }
    name, value = read_setting(call.args, tuple(readers))
    # Parameters are set one by one: after each change the search must have a limit.
    changed = dataclasses.replace(options, **{name: readers[name](value)})
    if not (changed.simulations or changed.seconds):
        raise ValueError("simulations and seconds are both 0, but one of them must be above 0")
    # The search with the new options is compiled now, so that no move has to wait.
    call.engine.prepare(call.dialog.game.size, changed)
    return "", dataclasses.replace(call.dialog, options=changed)


def analyze_commands(call: Call) -> tuple[str, Dialog]:
    """Lists the analysis commands, and turns on live analysis, since HexGui can display it."""
    options = dataclasses.replace(call.dialog.options, live=True)
    lines = (
        "gfx/Policy/jaxpgs-policy %m",
        "pspairs/Visits/jaxpgs-visits %m",
        "pspairs/Values/jaxpgs-values %m",
        "var/Expected Line/jaxpgs-line %m",
        "string/Best Move/reg_genmove %m",
        "plist/All Legal Moves/all_legal_moves",
        "string/Final Score/final_score",
        "string/HexWorld Link/jaxpgs-link",
        "string/Time Left/time_left",
        "param/Game Parameters/param_game",
        "param/Search Parameters/param_search",
    )
    return "\n".join(lines), dataclasses.replace(call.dialog, options=options)
