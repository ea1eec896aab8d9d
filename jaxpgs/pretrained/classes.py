"""A user's own classes in a card: their import path and constructor arguments.

An object rebuilt from these must compute the same as the original. Otherwise the card states why
the object has to be handed over at loading.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import linen

_SAFE = ("jaxpgs", "pgx")  # packages that loading imports whenever a card names them


class UntoldError(ValueError):
    """An argument that no card can hold."""


def describe(
    kind: type,
    get: Callable[[str], Any],
    same: Callable[[Mapping[str, Any]], bool],
    given: Mapping[str, Any] | None = None,
    said: Sequence[str] = (),
) -> dict[str, Any]:
    """Describes an object of a user's own class.

    Args:
      kind: the class.
      get: returns a constructor argument of the object by name, in values of JSON types.
      same: returns whether an object made with these arguments computes the same.
      given: arguments that are known already, in values of JSON types.
      said: names of arguments that the environment provides.

    Returns:
      The class's `module` and `name`, the known arguments as `kwargs`, and `handed_over`, the
      reason, if they do not suffice.
    """
    kwargs, unknown = dict(given or {}), []
    # Arguments that were not given are read from attributes of the same name.
    for parameter in parameters(kind):
        name = parameter.name
        if name in kwargs or name in said:
            continue
        try:
            kwargs[name] = get(name)
        except (AttributeError, KeyError, UntoldError):
            # If its value was not the default, `same` notices.
            if parameter.default is parameter.empty:
                unknown.append(name)
    spec = {"module": kind.__module__, "name": kind.__qualname__, "kwargs": kwargs}
    reason = None
    # Cheap checks come first; the last one makes the object and traces its program.
    if kind.__module__ == "__main__":
        reason = "its class is of a script or a notebook, which no other program can import"
    elif _at(spec) is not kind:
        reason = (
            f"its class is not found as {kind.__module__}.{kind.__qualname__}; it was made inside "
            "of a function, or anew since"
        )
    elif unknown:
        reason = (
            f"its class takes {', '.join(unknown)}, of which it keeps no value of JSON types in an "
            "attribute of that name"
        )
    else:
        try:
            if not same(kwargs):
                reason = f"with the arguments {kwargs} its class makes one that computes otherwise"
        except Exception as error:  # whatever a user's class raises
            reason = f"its class fails with {kwargs}: {type(error).__name__}: {error}"
    return spec if reason is None else spec | {"handed_over": reason}


def find(spec: Mapping[str, Any], what: str, argument: str, trusted: bool) -> Any:
    """Returns the class that a card names by its path."""
    by_hand = f"pass the {what} to load_pretrained(..., {argument}=...)"
    if "handed_over" in spec:
        reason = spec["handed_over"]
        raise ValueError(
            f"Please {by_hand}: the card cannot describe {spec['name']}, because {reason}."
        )
    module = spec["module"]
    path, package = f"{module}.{spec['name']}", module.partition(".")[0]
    # The code of an imported module has run already, so it needs no trust.
    if module not in sys.modules:
        if not trusted and package not in _SAFE:
            raise ValueError(
                f"The {what} is {path}, and {module} is not imported. Loading does not import what "
                f"a card names, as that runs its code: import {module} first, or trust the card by "
                f"load_pretrained(..., trusted=True), or {by_hand}."
            )
        # If pgx is missing, this raises an error that explains how to install it.
        if package == "pgx":
            import_pgx()
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"The {what} is {path}, which cannot be imported: {error}. Please {by_hand}."
            ) from error
    if not inspect.isclass(kind := _at(spec)):
        raise ValueError(f"{module} has no class {spec['name']} any more. Please {by_hand}.")
    return kind


def compare(
    spec: Mapping[str, Any],
    get: Callable[[str], Any],
    what: str,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Raises `ValueError` if an object that is handed over differs from the card's description.

    Args:
      spec: the card's description.
      get: returns a constructor argument of the object by name, in values of JSON types.
      what: what the object is, for the message.
      facts: further properties of the object.
    """
    pairs = []
    for name, known in spec["kwargs"].items():
        # An argument that is not kept in an attribute cannot be compared.
        with contextlib.suppress(AttributeError, UntoldError):
            pairs.append((name, known, get(name)))
    for name, got in (facts or {}).items():
        if got is not None and spec.get(name) is not None:  # both are known
            pairs.append((name, spec[name], got))
    for name, known, got in pairs:
        if known != got:
            raise ValueError(
                f"The {what} of the card, {spec['name']}, has {name} {known}; the one handed over "
                f"has {got}."
            )


def parameters(kind: Any) -> list[inspect.Parameter]:
    """Returns a class's named arguments, except `rngs` and those that all Linen modules take."""
    # Some classes, such as named tuples, take their arguments in `__new__`.
    init = kind.__init__ if kind.__init__ is not object.__init__ else kind.__new__
    if init is object.__new__:
        return []
    left_out = ("rngs", "parent", "name") if issubclass(kind, linen.Module) else ("rngs",)
    found = list(inspect.signature(init).parameters.values())[1:]
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [parameter for parameter in named if parameter.name not in left_out]


def import_pgx() -> Any:
    """Imports pgx, or raises an error that explains how to install it."""
    try:
        return importlib.import_module("pgx")
    except ImportError as error:
        raise ImportError('This network is for a game of pgx: pip install "jaxpgs[pgx]"') from error


def _at(spec: Mapping[str, Any]) -> Any:
    """Returns the object at a card's path in an imported module, or None."""
    found: Any = sys.modules.get(spec["module"])
    for part in spec["name"].split("."):
        found = getattr(found, part, None)
    return found
