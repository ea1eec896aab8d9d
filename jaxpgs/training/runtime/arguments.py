"""The arguments of a run as JSON, so that a directory can be checked to belong to it."""

import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_PLAIN = (bool, int, float, str, type(None))
_OURS = ("jaxpgs", "jax", "optax", "flax", "mctx", "pgx", "chex")  # identified by their versions


def fingerprint(value: Any, _above: tuple[int, ...] = ()) -> Any:
    """Describes any argument of a trainer by JSON values that are the same in every process.

    A function is described by its module, its qualified name and the values that it and its
    decorators close over; a user's own function also by its constants and defaults. So optimizers,
    experts and objectives with other settings differ. Arrays are described by their values or a
    hash of them.

    Args:
      value: the argument.

    Returns:
      Nested dicts and lists of numbers, strings and None.
    """
    if isinstance(value, _PLAIN):
        # A long text would fill the file and every message; its hash identifies it as well.
        return value if len(str(value)) <= 300 else _digest(str(value).encode())
    if id(value) in _above:  # a function that calls itself
        return "..."
    above = (*_above, id(value))
    if isinstance(value, Mapping):
        return {str(key): fingerprint(item, above) for key, item in value.items()}
    if isinstance(value, functools.partial):
        return {"function": fingerprint(value.func, above)} | fingerprint(value.keywords, above) | {
            "args": fingerprint(value.args, above)
        }  # fmt: skip
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"is": _name(type(value))} | fingerprint(
            dict(zip(value._fields, value, strict=True)), above
        )
    if isinstance(value, list | tuple):
        return [fingerprint(item, above) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    # The order of a set differs between processes, as string hashes are randomized.
    if isinstance(value, set | frozenset):
        return sorted((fingerprint(item, above) for item in value), key=json.dumps)
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, type | types.ModuleType):
        return _name(value)
    # Dataclasses may be callable too, such as modules; they are described by their fields.
    found = None if dataclasses.is_dataclass(value) else _function(value, above)
    return _object(value, above) if found is None else found


def fingerprint_env(env: Any) -> Any:
    """Describes an environment by its class and its attributes, also if it is not a dataclass.

    Args:
      env: the environment.

    Returns:
      As `fingerprint`, with all attributes of the environment, which may be other environments,
      functions and arrays. (Of other objects only plain values are included.) Names that begin with
      an underscore are left out.
    """
    if dataclasses.is_dataclass(env):
        return fingerprint(env)
    kind = type(env)
    # A cached property is stored in the object once it has been read.
    held = {
        name: x
        for name, x in getattr(env, "__dict__", {}).items()
        if not name.startswith("_")
        and not isinstance(getattr(kind, name, None), functools.cached_property)
    }
    return fingerprint({"is": kind} | held)


def first_difference(known: Any, given: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Finds the first place at which two descriptions differ.

    Args:
      known: the first description.
      given: the second description.
      path: the place of both in the whole.

    Returns:
      The place, such as `optimizer.update.step_size`, and both values there; None if they are
      equal.
    """
    if isinstance(known, dict) and isinstance(given, dict):
        pairs = [(name, known.get(name), given.get(name)) for name in {**given, **known}]
    elif isinstance(known, list) and isinstance(given, list) and len(known) == len(given):
        pairs = [(str(i), *both) for i, both in enumerate(zip(known, given, strict=True))]
    else:
        return None if known == given else (path, known, given)
    for name, old, new in pairs:
        if found := first_difference(old, new, f"{path}.{name}" if path else name):
            return found
    return None


def _function(value: Any, above: tuple[int, ...]) -> Any:
    """Describes a function or a method; None for anything else."""
    if not callable(value):
        return None
    owner = getattr(value, "__self__", None)
    # A decorator hides the function that it wraps, and the values that this closes over.
    outer = getattr(value, "__func__", value)
    function = inspect.unwrap(outer)
    if not hasattr(function, "__code__"):
        return _name(value) if hasattr(value, "__qualname__") else None
    ours = _package(getattr(function, "__module__", None)) in _OURS
    inside = _inside(function, ours, above, owner=owner)
    if decorators := _decorators(outer, ours, above):
        inside["decorators"] = decorators
    return {"function": _name(function)} | inside if inside else _name(function)


def _inside(
    function: Any, ours: bool, above: tuple[int, ...], *, owner: Any = None, wrapped: Any = None
) -> dict[str, Any]:
    """Describes what a function holds, apart from the function that it wraps.

    Args:
      function: the function.
      ours: whether it is a library's, whose constants and defaults its version identifies.
      above: as in `fingerprint`.
      owner: the object of a method.
      wrapped: the function that a decorator wraps, which is described elsewhere.
    """
    inside: dict[str, Any] = {}
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            if wrapped is None or cell.cell_contents is not wrapped:
                inside[name] = fingerprint(cell.cell_contents, above)
        except ValueError:  # an empty cell
            continue
    if owner is not None:
        inside["self"] = fingerprint(owner, above)
    # A user's function may change under the same name; its constants reveal most changes.
    if not ours:
        held = [x for x in code.co_consts if isinstance(x, _PLAIN) and x is not None]
        inside["holds"] = fingerprint([x for x in held if x != function.__doc__])
        inside["defaults"] = fingerprint([function.__defaults__, function.__kwdefaults__], above)
    return {name: x for name, x in inside.items() if x not in ([], [None, None])}


def _decorators(outer: Any, ours: bool, above: tuple[int, ...]) -> list[dict[str, Any]]:
    """Describes what the decorators of a function hold, those that hold anything, outside in."""
    found = []
    while hasattr(outer, "__wrapped__"):
        code = getattr(outer, "__code__", None)
        # A decorator takes over the module of what it wraps; its own is that of its globals.
        made_by_us = bool(code) and _package(outer.__globals__.get("__name__")) in _OURS
        # A library's function with the library's decorators is identified by the version.
        if code and not (ours and made_by_us):
            found.append(_inside(outer, made_by_us, above, wrapped=outer.__wrapped__))
        elif code is None and len(held := _object(outer, above)) > 1:  # more than its class
            found.append(held)
        outer = outer.__wrapped__
    return [x for x in found if x]


def _object(value: Any, above: tuple[int, ...]) -> Any:
    """Describes an object by its class and its plain attributes."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        held = getattr(value, "__dict__", {})
        fields = {
            name: x
            for name, x in held.items()
            if not name.startswith("_") and isinstance(x, (*_PLAIN, list, tuple))
        }
    found = {"is": _name(type(value))} | fingerprint(fields, above)
    text = json.dumps(found)  # the structure of a network may be long
    return found if len(text) <= 2000 else f"{found['is']} {_digest(text.encode())}"


def _array(value: Any) -> Any:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    # Short arrays stay readable in `run.json` and in messages; long ones are hashed.
    if array.size <= 16:
        return fingerprint(array.tolist())
    return f"{array.dtype}{list(array.shape)} {_digest(array.tobytes())}"


def _digest(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()[:16]}"


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None) or ""
    if module == "__main__":  # `python -m` and an import are the same run
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name if spec is not None else module
    name = getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__))
    return f"{module}.{name}" if module else name
