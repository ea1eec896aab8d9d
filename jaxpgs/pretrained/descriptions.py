"""What a card says of an environment and of a network, and how both are made of it again.

Those of the library stand in a card by their name, those of pgx by their id, and a user's own by
the path of their class and the arguments that it was made with. What is made of these must compute
the same, or the card says why it has to be handed over at loading.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from jaxpgs import envs, networks
from jaxpgs.adapters.environments import step_with_key
from jaxpgs.base import Params
from jaxpgs.networks.functional import constructor_kwargs
from jaxpgs.networks.layers.geometry import LastMove

_SAFE = ("jaxpgs", "pgx")  # packages that loading imports on a card's word
_NESTED = "environment of"  # the key of an argument that is an environment itself
_FROM_ENV = ("observation_shape", "num_actions")  # arguments of networks that their game says
_MODULES = (nnx.Module, linen.Module)


class _UntoldError(ValueError):
    """An argument that no card can hold."""


def describe_env(env: Any) -> dict[str, Any]:
    """Tells of an environment what `make_env` makes it of.

    Args:
      env: the environment.

    Returns:
      Values of JSON types: `name` and `kwargs`; `module` where it is none of `jaxpgs.envs`; and
      `handed_over`, the reason, where it cannot be made again.

    Raises:
      ValueError: if it is no environment.
    """
    _check_env(env)
    kind = type(env)
    # By identity, as a user's class may have the name of one of ours.
    if getattr(envs, kind.__name__, None) is kind:
        kwargs = {field.name: getattr(env, field.name) for field in dataclasses.fields(env)}
        return {"name": kind.__name__, "kwargs": _encoded(kwargs), "version": _version(env)}
    # With a board of its own it cannot be made by `with_last_move(env)`, and goes on as a class.
    if isinstance(env, LastMove) and _has_known_board(env):
        game = describe_env(env.env)
        if "handed_over" not in game:
            return {"name": "with_last_move", "kwargs": {"env": {_NESTED: game}}, "version": None}
    if _is_by_id(env):
        return {"module": "pgx", "name": env.id, "kwargs": {}} | _facts(env)

    def same(kwargs: Mapping[str, Any]) -> bool:
        return _game_program(kind(**_decoded(kwargs))) == _game_program(env)

    return _own(kind, functools.partial(getattr, env), same) | _facts(env)


def make_env(
    spec: Mapping[str, Any], network: str, given: Any = None, *, trusted: bool = False
) -> Any:
    """Makes the environment that a card describes.

    Args:
      spec: what `describe_env` told.
      network: the name of the network, for messages.
      given: the environment that was handed over; it is compared with what the card says.
      trusted: whether the module of a user's own class may be imported.

    Returns:
      The environment.

    Raises:
      ValueError: if it is unknown, of another version, or must be handed over.
      ImportError: if it is of pgx, which is not installed.
    """
    name, home = spec["name"], spec.get("module", "this library")
    if given is not None:
        _check_env(given)
        _compare(spec, given, "environment", _facts(given))
        return given
    if "module" not in spec and name == "with_last_move":
        return networks.with_last_move(_decoded(spec["kwargs"], network, trusted)["env"])
    if "module" not in spec:
        # A card is not trusted to name just any function to call.
        known = [x for x in envs.__all__ if hasattr(getattr(envs, x), "observation_shape")]
        if name not in known:
            raise ValueError(f"jaxpgs.envs has no environment {name!r}; it has {known}.")
        env = getattr(envs, name)(**spec["kwargs"])
    elif spec["module"] == "pgx":
        env = _pgx().make(name)
    else:
        kind = _class(spec, "environment", "env", trusted)
        if not _is_env(kind):
            raise ValueError(f"{spec['module']}.{name} lacks the functions init, step and observe.")
        env = kind(**_decoded(spec["kwargs"], network, trusted))
    # Another version may have other rules or observations than the network was trained with.
    if spec["version"] != _version(env):
        raise ValueError(
            f"The network {network!r} was made for version {spec['version']} of {name}, but {home} "
            f"has version {_version(env)}."
        )
    return env


def describe_module(
    module: Any, params: Params, env: Any, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Tells of a network what `make_module` makes it of.

    Args:
      module: the network, of NNX or of Linen.
      params: its parameters.
      env: its environment.
      given: arguments of its class, for those that it does not keep.

    Returns:
      Values of JSON types: `network` and `kwargs`; `module` where it is none of `jaxpgs.networks`;
      `offsets` where it has some; and `handed_over`, the reason, where it cannot be made again.

    Raises:
      ValueError: if it is no module, or cannot be made again with the arguments given.
    """
    _check_module(module)
    offsets: dict[str, Any] = {}
    kind = type(module)
    get: Callable[[str], Any] = functools.partial(getattr, module)
    kept = constructor_kwargs(module) if isinstance(module, nnx.Module) else {}
    # The card describes the network inside of the wrapper, and lists the offsets beside it.
    if isinstance(module, networks.WithOffsets):
        offsets = {"offsets": sorted(module.offsets)}
        kind, kept = module.network_type, dict(module.network_kwargs)
        get = kept.__getitem__
    if getattr(networks, kind.__name__, None) is kind:
        spec: dict[str, Any] = {"network": kind.__name__}
        try:
            spec |= {"kwargs": _encoded(kept | dict(given or {}))}
        except _UntoldError as reason:
            spec |= {"kwargs": {}, "handed_over": str(reason)}
        return spec | offsets

    def same(kwargs: Mapping[str, Any]) -> bool:
        made = _build(kind, _decoded(kwargs), env, offsets.get("offsets"))
        if isinstance(made, nnx.Module):
            networks.module_from_params(made, params)  # raises an error for other shapes
        return _network_program(made, params, env) == _network_program(module, params, env)

    # A module of Linen finds its shapes when it is called, so its game need not say them.
    said = _FROM_ENV if issubclass(kind, nnx.Module) else ()
    found = _own(kind, get, same, given, said)
    # Who gives arguments means them to suffice; so it is an error, not an entry in the card.
    if given is not None and "handed_over" in found:
        raise ValueError(f"{kind.__name__} must be made of module_kwargs: {found['handed_over']}.")
    return {"module": found.pop("module"), "network": found.pop("name")} | found | offsets


def make_module(
    spec: Mapping[str, Any], env: Any, given: Any = None, *, trusted: bool = False
) -> Any:
    """Makes the network that a card describes, with shapes in place of weights.

    Args:
      spec: what `describe_module` told.
      env: its environment.
      given: the network that was handed over; it is compared with what the card says.
      trusted: whether the module of a user's own class may be imported.

    Returns:
      The network, or the one that was given.

    Raises:
      ValueError: if it is unknown or must be handed over.
    """
    spec = {"name": spec["network"]} | dict(spec)
    name = spec["name"]
    if given is not None:
        _check_module(given)
        _compare(spec, given, "network")
        return given
    if "module" in spec or "handed_over" in spec:
        kind = _class(spec, "network", "module", trusted)
    else:
        kinds = {name: getattr(networks, name) for name in networks.__all__}
        # The wrapper is made from the offsets, and never by its name.
        known = [x for x in kinds if _is_network(kinds[x]) and x != "WithOffsets"]
        if name not in known:
            raise ValueError(f"No network {name!r}; jaxpgs.networks has {known}.")
        kind = kinds[name]
    if not _is_network(kind):
        raise ValueError(f"{spec['module']}.{name} is no module of flax.")
    return _build(kind, _decoded(spec["kwargs"], name, trusted), env, spec.get("offsets"))


def check_call(module: Any, params: Params, env: Any) -> None:
    """Raises `ValueError` unless a network takes its environment's observations and actions."""
    name = type(module).__name__
    observation = _observations(env)
    shapes = [list(leaf.shape) for leaf in jax.tree.leaves(observation)]
    try:
        logits, _ = jax.eval_shape(_apply_fn(module, params), params, observation)
    except Exception as error:  # whatever a user's module raises
        raise ValueError(
            f"{name} must take the environment's observations, here of shapes {shapes}, and return "
            f"logits and values. {type(error).__name__}: {error}"
        ) from error
    # An environment that does not tell its actions goes with any number of logits.
    wanted = (1, getattr(env, "num_actions", logits.shape[-1]))
    if logits.shape != wanted:
        raise ValueError(
            f"{name} must return logits of shape {list(wanted)} for observations of shapes "
            f"{shapes}, as the environment has {wanted[1]} actions; got {list(logits.shape)}."
        )


def _own(
    kind: type,
    get: Callable[[str], Any],
    same: Callable[[Mapping[str, Any]], bool],
    given: Mapping[str, Any] | None = None,
    said: Sequence[str] = (),
) -> dict[str, Any]:
    """Describes what is of a user's own class.

    Args:
      kind: the class.
      get: returns an argument that it was made with, by name.
      same: tells whether what is made of these arguments does the same.
      given: arguments that need not be got.
      said: arguments that the environment says.

    Returns:
      The class's `module` and `name`, the arguments known, and the reason if they do not suffice.
    """
    kwargs, unknown = _encoded(given or {}), []
    # What was not given is looked for in attributes of the arguments' names.
    for parameter in _parameters(kind):
        name = parameter.name
        if name in kwargs or name in said:
            continue
        try:
            kwargs[name] = _encoded(get(name))
        except (AttributeError, KeyError, _UntoldError):
            # If it was not its default that was given, `same` notices.
            if parameter.default is parameter.empty:
                unknown.append(name)
    spec = {"module": kind.__module__, "name": kind.__qualname__, "kwargs": kwargs}
    reason = None
    # From what can be seen at once to what only making it and tracing its program shows.
    if kind.__module__ == "__main__":
        reason = "its class is of a script or a notebook, which no other program can import"
    elif _found(spec) is not kind:
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


def _class(spec: Mapping[str, Any], what: str, argument: str, trusted: bool) -> Any:
    """Returns the class that a card names by its path."""
    by_hand = f"hand the {what} over, load_pretrained(..., {argument}=...)"
    if "handed_over" in spec:
        reason = spec["handed_over"]
        raise ValueError(f"Please {by_hand}: the card cannot make {spec['name']}, as {reason}.")
    module = spec["module"]
    path, package = f"{module}.{spec['name']}", module.partition(".")[0]
    # The code of a module that is imported has run already, so it needs no trust.
    if module not in sys.modules:
        if not trusted and package not in _SAFE:
            raise ValueError(
                f"The {what} is {path}, and {module} is not imported. Loading does not import what "
                f"a card names, as that runs its code: import {module} before, or trust the card, "
                f"load_pretrained(..., trusted=True), or {by_hand}."
            )
        # Where pgx is missing, this error tells how to install it.
        if package == "pgx":
            _pgx()
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"The {what} is {path}, which cannot be imported: {error}. Please {by_hand}."
            ) from error
    if not inspect.isclass(kind := _found(spec)):
        raise ValueError(f"{module} has no class {spec['name']} any more. Please {by_hand}.")
    return kind


def _found(spec: Mapping[str, Any]) -> Any:
    """Returns what a path leads to in a module that is imported, or None."""
    found: Any = sys.modules.get(spec["module"])
    for part in spec["name"].split("."):
        found = getattr(found, part, None)
    return found


def _compare(
    spec: Mapping[str, Any], given: Any, what: str, facts: Mapping[str, Any] | None = None
) -> None:
    """Raises `ValueError` if what is handed over differs from what the card knows."""
    pairs = []
    for name, known in spec["kwargs"].items():
        # What is not kept in an attribute cannot be compared.
        with contextlib.suppress(AttributeError, _UntoldError):
            pairs.append((name, known, _encoded(getattr(given, name))))
    for name, got in (facts or {}).items():
        if got is not None and spec.get(name) is not None:  # what both tell
            pairs.append((name, spec[name], got))
    for name, known, got in pairs:
        if known != got:
            raise ValueError(
                f"The {what} of the card, {spec['name']}, has {name} {known}; the one handed over "
                f"has {got}."
            )


def _build(kind: Any, kwargs: Mapping[str, Any], env: Any, offsets: Sequence[str] | None) -> Any:
    """Makes a network of its class, with shapes in place of weights."""
    if issubclass(kind, linen.Module):
        return kind(**kwargs)
    taken = inspect.signature(kind.__init__).parameters
    # Patterns are found on the board itself, whatever the game shows.
    on_board = kind is networks.PatternPolicy and isinstance(env, LastMove)
    game = env.env if on_board else env
    said = {name: _said(game, name) for name in _FROM_ENV if name in taken and name not in kwargs}

    def make() -> nnx.Module:
        rngs = {"rngs": nnx.Rngs(0)} if "rngs" in taken else {}
        made = kind(**said, **kwargs, **rngs)
        return made if offsets is None else networks.WithOffsets(made, offsets)

    return nnx.eval_shape(make)


def _said(env: Any, name: str) -> Any:
    """Returns an argument of a network that its environment says."""
    if name == "observation_shape" and not hasattr(env, name):
        return _observations(env).shape[1:]
    return getattr(env, name)


def _parameters(kind: Any) -> list[inspect.Parameter]:
    """Returns the named arguments of a class but `rngs` and what all modules of Linen take."""
    # Some classes, such as named tuples, take their arguments in `__new__`.
    init = kind.__init__ if kind.__init__ is not object.__init__ else kind.__new__
    if init is object.__new__:
        return []
    left_out = ("rngs", "parent", "name") if issubclass(kind, linen.Module) else ("rngs",)
    found = list(inspect.signature(init).parameters.values())[1:]
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [parameter for parameter in named if parameter.name not in left_out]


def _encoded(value: Any) -> Any:
    """Returns an argument as values of JSON types; raises `_UntoldError` if it is none."""
    if isinstance(value, np.generic):
        value = value.item()
    # Exact types, as an enum or another subclass would come back as a plain value.
    if type(value) in (bool, int, str, types.NoneType):
        return value
    # JSON has neither NaN nor infinities.
    if type(value) is float and math.isfinite(value):
        return value
    if _is_env(value) and not inspect.isclass(value):
        if "handed_over" not in (spec := describe_env(value)):
            return {_NESTED: spec}
    elif isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    elif isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _encoded(item) for key, item in value.items()}
    raise _UntoldError(f"one of its arguments is a {type(value).__name__}, which no card can hold")


def _decoded(value: Any, network: str = "", trusted: bool = False) -> Any:
    """Undoes `_encoded`, but that sequences become tuples."""
    if isinstance(value, list):
        return tuple(_decoded(item, network, trusted) for item in value)
    if not isinstance(value, Mapping):
        return value
    if list(value) == [_NESTED]:
        return make_env(value[_NESTED], network, trusted=trusted)
    return {key: _decoded(item, network, trusted) for key, item in value.items()}


def _facts(env: Any) -> dict[str, Any]:
    """Tells of an environment what can be compared with another's."""
    num_actions = getattr(env, "num_actions", None)
    return {
        "version": _version(env),
        "num_actions": None if num_actions is None else int(num_actions),
        "observation_shapes": [list(x.shape[1:]) for x in jax.tree.leaves(_observations(env))],
    }


def _version(env: Any) -> Any:
    """Returns the version of an environment, its own or its module's; None if it has none."""
    # Our games have it in their module, those of pgx in an attribute.
    version = getattr(sys.modules.get(type(env).__module__), "VERSION", None)
    version = getattr(env, "version", None) if version is None else version
    return version if type(version) in (int, float, str) else None


def _observations(env: Any) -> Any:
    """Returns the shapes and types of one observation, with an axis of the batch."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    found = jax.eval_shape(lambda key: env.observe(env.init(key)), key)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), found)


def _apply_fn(module: Any, params: Params) -> Callable[..., Any]:
    return networks.functional(module, params if isinstance(module, linen.Module) else None)[1]


def _network_program(module: Any, params: Params, env: Any) -> str:
    """Returns what a network computes, whatever its parameters."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    return jax.jit(_apply_fn(module, params)).lower(shapes, _observations(env)).as_text()


def _game_program(env: Any) -> str:
    """Returns what a game computes: how it begins, what a step does, and what is seen after it."""
    step = step_with_key(env)

    def play(key: Any, action: Any) -> Any:
        before = env.init(key)
        after = step(before, action, key)
        return before, after, env.observe(after)

    # Games of continuous actions have bounds instead of a number of actions.
    bounds = getattr(env, "action_bounds", None)
    action = jnp.int32(0) if bounds is None else jnp.asarray(bounds[0], jnp.float32)
    return jax.jit(play).lower(jax.random.key(0), action).as_text()


def _is_env(x: Any) -> bool:
    return all(callable(getattr(x, name, None)) for name in ("init", "step", "observe"))


def _check_env(x: Any) -> None:
    if inspect.isclass(x) or not _is_env(x):
        raise ValueError(f"An environment must have the functions init, step and observe; got {x}.")


def _is_network(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, _MODULES)


def _check_module(x: Any) -> None:
    if not isinstance(x, _MODULES):
        raise ValueError(f"module must be a module of flax.nnx or flax.linen, got {x!r}.")


def _has_known_board(env: LastMove) -> bool:
    try:
        return networks.board_geometry(env.env) is env.geometry
    except ValueError:
        return False


def _is_by_id(env: Any) -> bool:
    """Tells whether `pgx.make` makes this environment of its id."""
    kind = type(env)
    if kind.__module__.partition(".")[0] != "pgx":
        return False
    try:
        made = _pgx().make(env.id)
    except Exception:  # there is none of this id, or it needs files
        return False
    if type(made) is not kind:
        return False
    # A class with arguments may have been made with others than `make` gives it.
    return not _parameters(kind) or _game_program(made) == _game_program(env)


def _pgx() -> Any:
    try:
        return importlib.import_module("pgx")
    except ImportError as error:
        raise ImportError('This network is for a game of pgx: pip install "jaxpgs[pgx]"') from error
