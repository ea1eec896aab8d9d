"""The messages between a board and its pages, as values of JSON types.

A page's request has a `type`, one of `TYPES`. A page receives the position, made by `message`, and
the search's results at each update, made by `point`. The widget and the web socket use the same
protocol.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxpgs.envs import Hex, hex_io
from jaxpgs.play import games
from jaxpgs.play.visit import (
    Visit,
    begin,
    game_of,
    go,
    legal,
    load,
    moved,
    play,
    redo,
    result,
    swap_action,
    undo,
    winner,
)
from jaxpgs.thinker import SEARCHES, Look, Thought

MOST_SIMULATIONS, MOST_SECONDS = 1_000_000, 3600.0


def handle(visit: Visit, said: Any) -> Visit:
    """Handles a page's request.

    Args:
      visit: the game.
      said: the message, of JSON types.

    Returns:
      The next visit.

    Raises:
      ValueError: if the message is malformed or outdated, or the move is illegal.
    """
    if not isinstance(said, Mapping) or not isinstance(said.get("type"), str):
        raise ValueError("a message must be an object with a type")
    kind = said["type"]
    if kind not in TYPES:
        raise ValueError(f"no such message: {kind[:20]!r}")
    if kind in ("play", "undo", "redo", "go") and said.get("number", visit.number) != visit.number:
        raise ValueError("the position has changed in the meantime")
    return TYPES[kind](visit, said)


def _undo(visit: Visit, said: Mapping[str, Any]) -> Visit:
    """Takes moves back until a person is to move."""
    # Not to the search's turn, as it would at once play its own move again.
    after, steps = undo(visit), 1
    while not after.humans[after.mover] and any(after.humans) and len(after.past) > 1:
        after, steps = undo(visit, steps + 1), steps + 1
    # If there is no such position, people play all sides, as the search would move again at once.
    return after if after.humans[after.mover] else dataclasses.replace(after, humans=_all(after))


def _redo(visit: Visit, said: Mapping[str, Any]) -> Visit:
    after = redo(visit)
    while after.future and not after.humans[after.mover]:
        after = redo(after)
    return after


def _go(visit: Visit, said: Mapping[str, Any]) -> Visit:
    # People then play all sides, as the search might otherwise move there at once.
    return dataclasses.replace(go(visit, said.get("count")), humans=_all(visit))  # type: ignore[arg-type]


def _all(visit: Visit) -> tuple[bool, ...]:
    return (True,) * len(visit.humans)


def _new(visit: Visit, said: Mapping[str, Any]) -> Visit:
    # With a new seed, a puzzle or a game of chance has other random outcomes.
    seed = visit.seed + 1
    fresh = begin(visit.env, seed=seed)
    return moved(visit, fresh.past, (), start=fresh.start, seed=seed)


def _load(visit: Visit, said: Mapping[str, Any]) -> Visit:
    text = said.get("text")
    # A page may send anything, so the type and length are checked before the text is read.
    if not isinstance(text, str) or len(text) > 100_000:
        raise ValueError("only the text of a file or a link can be loaded")
    return dataclasses.replace(load(visit, text), humans=_all(visit))


def _humans(visit: Visit, said: Mapping[str, Any]) -> Visit:
    humans = said.get("humans")
    fits = isinstance(humans, list) and all(isinstance(human, bool) for human in humans)
    if not fits or len(humans) != len(visit.humans):  # type: ignore[arg-type]
        raise ValueError("humans must have true or false for each player")
    return dataclasses.replace(visit, humans=tuple(humans))  # type: ignore[arg-type]


def _analyse(visit: Visit, said: Mapping[str, Any]) -> Visit:
    return dataclasses.replace(visit, analysing=said.get("on") is True)


def _options(visit: Visit, said: Mapping[str, Any]) -> Visit:
    search = said.get("search", visit.options.search)
    simulations = said.get("simulations", visit.options.simulations)
    seconds = said.get("seconds", visit.options.seconds)
    if search not in (*SEARCHES, visit.options.search):
        raise ValueError(f"no such search; there are {', '.join(SEARCHES)}")
    # `type`, not `isinstance`, as JSON's true is a number in Python.
    if type(simulations) is not int or not 0 <= simulations <= MOST_SIMULATIONS:
        raise ValueError(f"simulations must be a whole number from 0 to {MOST_SIMULATIONS:,}")
    if type(seconds) not in (int, float) or not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"seconds must be a number from 0 to {MOST_SECONDS:g}")
    if not (simulations or seconds):
        raise ValueError("simulations and seconds are both 0, but one of them must be above 0")
    options = dataclasses.replace(
        visit.options, search=search, simulations=simulations, seconds=float(seconds)
    )
    return dataclasses.replace(visit, options=options)


TYPES: dict[str, Callable[[Visit, Mapping[str, Any]], Visit]] = {
    "hello": lambda visit, said: visit,
    "play": lambda visit, said: play(visit, said.get("action")),  # type: ignore[arg-type]
    "undo": _undo,
    "redo": _redo,
    "go": _go,
    "new": _new,
    "load": _load,
    "humans": _humans,
    "analyse": _analyse,
    "options": _options,
}


def message(visit: Visit, **more: Any) -> dict[str, Any]:
    """Returns all that a page needs to know of a position, ready for JSON."""
    env, state = visit.env, visit.state
    last, next_move = visit.past[-1], visit.future[0].move if visit.future else None
    # Only Hex has files and links.
    files = {}
    if visit.start is not None:
        game = game_of(visit)
        files = {"sgf": hex_io.write_sgf(game), "link": hex_io.write_link(game)}
    view = games.layout(env)
    return {
        "type": "position",
        "number": visit.number,
        "layout": view,
        "svg": games.picture(env, state) if view["kind"] == "svg" else None,
        "stones": games.stones(env, state),
        "legal": [choice._asdict() for choice in legal(visit)],
        "swap": swap_action(visit),
        "mover": visit.mover,
        "last": list(last.cells),
        "moves": [position.name for position in visit.past[1:]],
        "future": [position.name for position in visit.future],
        "next": next_move and next_move.action,
        "over": visit.over,
        "result": result(visit),
        "winner": winner(visit),
        # Settings are sent with every position, so that all pages of a board agree.
        "humans": list(visit.humans),
        "analysing": visit.analysing,
        "options": {
            key: getattr(visit.options, key) for key in ("search", "simulations", "seconds")
        },
        "searches": sorted({*SEARCHES, visit.options.search}),
        **files,
        **more,
    }


def point(visit: Visit, thought: Thought, adapted: np.ndarray | None, **more: Any) -> dict:
    """Returns a search's current results for a page, ready for JSON.

    Args:
      visit: the game with the searched position.
      thought: the search's results.
      adapted: `[A]` the network's policy with adapted parameters; None if nothing is adapted.
      **more: further entries.

    Returns:
      A dict whose per-move lists have an entry for each legal move, in the order of `message`.
    """
    choices = legal(visit)
    actions = [choice.action for choice in choices]

    def pick(values: np.ndarray) -> list[float]:
        # Hex's swap may not be among the search's actions.
        return [round(float(values[a]), 4) if a < len(values) else 0.0 for a in actions]

    visits = [int(thought.visits[a]) if a < len(thought.visits) else 0 for a in actions]
    # A mean return without visits has no meaning.
    qvalues = [q if n else None for q, n in zip(pick(thought.qvalues), visits, strict=True)]
    return {
        "action": thought.action,
        "value": round(thought.value, 4),
        "simulations": sum(visits),
        "policy": pick(thought.policy),
        "adapted": None if adapted is None else pick(adapted),
        "visits": visits,
        "q": qvalues,
        "line": line_of(visit, thought.line),
        **more,
    }


def line_of(visit: Visit, actions: tuple[int, ...]) -> list[dict[str, Any]]:
    """Describes the moves of a line up to the first that cannot be played."""
    found: list[dict[str, Any]] = []
    for action in actions:
        mover = visit.mover
        try:
            visit = play(dataclasses.replace(visit, swap=visit.env.swap)
                           if isinstance(visit.env, Hex) else visit, int(action))  # fmt: skip
        except ValueError:
            break
        last = visit.past[-1]
        found.append({"name": last.name, "cells": list(last.cells), "player": mover})
    return found


def first_point(visit: Visit, look: Look) -> dict[str, Any]:
    """Returns the point before the first simulation: the network's policy and values."""
    count = len(look.policy)
    none, best = np.zeros(count, int), int(look.policy.argmax())
    thought = Thought(best, look.value, look.policy, none, np.zeros(count), ())
    worth = [
        round(float(look.worth[choice.action]), 4) if choice.action < count else None
        for choice in legal(visit)
    ]
    return {**point(visit, thought, look.policy, seconds=0.0), "worth": worth}
