"""The messages between a board and its pages, as JSON has them.

What a page asks for has a `type`, one of `TYPES`. It is told the position, by `message`, and what a
search thinks of it from update to update, by `point`. The widget and the web socket speak the same.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxpgs.envs import Hex, hex_io
from jaxpgs.play import games
from jaxpgs.play.visit import (
    Session,
    begin,
    game_of,
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


def handle(session: Session, said: Any) -> Session:
    """Does what a page asks for.

    Args:
      session: the game.
      said: the message, as JSON has it.

    Returns:
      The next session.

    Raises:
      ValueError: if the message is malformed, or the move illegal.
    """
    if not isinstance(said, Mapping) or not isinstance(said.get("type"), str):
        raise ValueError("a message is an object with a type")
    kind = said["type"]
    if kind not in TYPES:
        raise ValueError(f"no such message: {kind[:20]!r}")
    if kind in ("play", "undo", "redo") and said.get("number", session.number) != session.number:
        raise ValueError("the position has changed meanwhile")
    return TYPES[kind](session, said)


def _undo(session: Session, said: Mapping[str, Any]) -> Session:
    """Takes back as many moves as a person needs to be to move, where there is one."""
    after, steps = undo(session), 1
    while not after.humans[after.mover] and any(after.humans) and len(after.past) > 1:
        after, steps = undo(session, steps + 1), steps + 1
    # Else the search would play the first move again at once.
    return after if after.humans[after.mover] else dataclasses.replace(after, humans=_all(after))


def _redo(session: Session, said: Mapping[str, Any]) -> Session:
    after = redo(session)
    while after.future and not after.humans[after.mover]:
        after = redo(after)
    return after


def _all(session: Session) -> tuple[bool, ...]:
    return (True,) * len(session.humans)


def _new(session: Session, said: Mapping[str, Any]) -> Session:
    seed = session.seed + 1
    fresh = begin(session.env, seed=seed)
    return moved(session, fresh.past, (), start=fresh.start, seed=seed)


def _load(session: Session, said: Mapping[str, Any]) -> Session:
    text = said.get("text")
    if not isinstance(text, str) or len(text) > 100_000:
        raise ValueError("what is loaded is the text of a file, or a link")
    return dataclasses.replace(load(session, text), humans=_all(session))


def _humans(session: Session, said: Mapping[str, Any]) -> Session:
    humans = said.get("humans")
    fits = isinstance(humans, list) and all(isinstance(human, bool) for human in humans)
    if not fits or len(humans) != len(session.humans):  # type: ignore[arg-type]
        raise ValueError("humans are true or false for each player")
    return dataclasses.replace(session, humans=tuple(humans))  # type: ignore[arg-type]


def _analyse(session: Session, said: Mapping[str, Any]) -> Session:
    return dataclasses.replace(session, analysing=said.get("on") is True)


def _options(session: Session, said: Mapping[str, Any]) -> Session:
    search = said.get("search", session.options.search)
    simulations = said.get("simulations", session.options.simulations)
    seconds = said.get("seconds", session.options.seconds)
    if search not in (*SEARCHES, session.options.search):
        raise ValueError(f"no such search; there are {', '.join(SEARCHES)}")
    if type(simulations) is not int or not 0 <= simulations <= MOST_SIMULATIONS:
        raise ValueError(f"simulations are a whole number from 0 to {MOST_SIMULATIONS:,}")
    if type(seconds) not in (int, float) or not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"seconds are a number from 0 to {MOST_SECONDS:g}")
    if not (simulations or seconds):
        raise ValueError("simulations and seconds are 0, and one of them must say when to stop")
    options = dataclasses.replace(
        session.options, search=search, simulations=simulations, seconds=float(seconds)
    )
    return dataclasses.replace(session, options=options)


TYPES: dict[str, Callable[[Session, Mapping[str, Any]], Session]] = {
    "hello": lambda session, said: session,
    "play": lambda session, said: play(session, said.get("action")),  # type: ignore[arg-type]
    "undo": _undo,
    "redo": _redo,
    "new": _new,
    "load": _load,
    "humans": _humans,
    "analyse": _analyse,
    "options": _options,
}


def message(session: Session, **more: Any) -> dict[str, Any]:
    """Tells a page all it needs of a position, ready for JSON."""
    env, state = session.env, session.state
    last = session.past[-1]
    files = {}
    if session.start is not None:
        game = game_of(session)
        files = {"sgf": hex_io.write_sgf(game), "link": hex_io.write_link(game)}
    view = games.layout(env)
    return {
        "type": "position",
        "number": session.number,
        "layout": view,
        "svg": games.picture(env, state) if view["kind"] == "svg" else None,
        "stones": games.stones(env, state),
        "legal": [choice._asdict() for choice in legal(session)],
        "swap": swap_action(session),
        "mover": session.mover,
        "last": list(last.cells),
        "moves": [position.name for position in session.past[1:]],
        "redo": len(session.future),
        "over": session.over,
        "result": result(session),
        "winner": winner(session),
        "humans": list(session.humans),
        "analysing": session.analysing,
        "options": {
            key: getattr(session.options, key) for key in ("search", "simulations", "seconds")
        },
        "searches": sorted({*SEARCHES, session.options.search}),
        **files,
        **more,
    }


def point(session: Session, thought: Thought, adapted: np.ndarray | None, **more: Any) -> dict:
    """Tells a page what a search thinks, ready for JSON.

    Args:
      session: with the position that it thinks about.
      thought: what it thinks.
      adapted: `[A]` the network's policy by its adapted parameters, None where nothing adapts.
      **more: further entries.

    Returns:
      The arrays hold an entry for each legal move, in the order of `message`.
    """
    choices = legal(session)
    actions = [choice.action for choice in choices]

    def pick(values: np.ndarray) -> list[float]:
        # Hex's swap may be no action of the search.
        return [round(float(values[a]), 4) if a < len(values) else 0.0 for a in actions]

    visits = [int(thought.visits[a]) if a < len(thought.visits) else 0 for a in actions]
    qvalues = [q if n else None for q, n in zip(pick(thought.qvalues), visits, strict=True)]
    return {
        "action": thought.action,
        "value": round(thought.value, 4),
        "simulations": sum(visits),
        "policy": pick(thought.policy),
        "adapted": None if adapted is None else pick(adapted),
        "visits": visits,
        "q": qvalues,
        "line": line_of(session, thought.line),
        **more,
    }


def line_of(session: Session, actions: tuple[int, ...]) -> list[dict[str, Any]]:
    """Names the moves of a line, as far as they can be played."""
    found: list[dict[str, Any]] = []
    for action in actions:
        mover = session.mover
        try:
            session = play(dataclasses.replace(session, swap=session.env.swap)
                           if isinstance(session.env, Hex) else session, int(action))  # fmt: skip
        except ValueError:
            break
        last = session.past[-1]
        found.append({"name": last.name, "cells": list(last.cells), "player": mover})
    return found


def first_point(session: Session, look: Look) -> dict[str, Any]:
    """Tells a page what is known before the first simulation: the network's policy and values."""
    count = len(look.policy)
    none, best = np.zeros(count, int), int(look.policy.argmax())
    thought = Thought(best, look.value, look.policy, none, np.zeros(count), ())
    worth = [
        round(float(look.worth[choice.action]), 4) if choice.action < count else None
        for choice in legal(session)
    ]
    return {**point(session, thought, look.policy, seconds=0.0), "worth": worth}
