"""How `*_policy` functions make their search and run it."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import chex
import mctx

from jaxpgs.base import Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import run


def run_preset(
    name: str,
    presets: tuple[Callable[..., Search], ...],
    data: tuple[Params, chex.PRNGKey, mctx.RootFnOutput],
    model: tuple[RecurrentFn, int],
    invalid_actions: chex.Array | None,
    max_depth: int | None,
    knobs: dict[str, Any],
) -> PolicyOutput:
    """Makes a preset's search and runs it, with errors that name the function that was called.

    Args:
      name: that function.
      presets: the preset, and those that it hands its knobs on to.
      data: parameters, key and roots.
      model: the model and N.
      invalid_actions: as in `init`.
      max_depth: as in `Search`.
      knobs: the other arguments.
    """
    kept = {key: knobs.pop(key) for key in _KEPT if key in knobs}
    known = _knobs(presets)
    for knob in knobs:
        if knob not in known:
            near = difflib.get_close_matches(knob, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{name}() has no argument {knob!r}.{hint} It takes {sorted(known)}.")
    search = presets[0](*model, max_depth=max_depth, **knobs)
    return run(search, *data, invalid_actions, **kept)


_KEPT = ("nodes", "adapted_params")


def _knobs(presets: tuple[Callable[..., Search], ...]) -> set[str]:
    """Names of the keyword arguments that presets take."""
    known = {"max_depth", "capacity", "best_of", "adapt", "estimator", "optimizer", "reuse",
             "transpositions"}  # fmt: skip
    for preset in presets:
        parameters = inspect.signature(preset).parameters.values()
        known |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    return known
