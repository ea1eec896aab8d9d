"""Describes environments in cards, and makes environments from cards.

A card identifies environments of the library by their name, those of pgx by their id, and a user's
own as `classes` describes.
"""

import dataclasses
import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs import envs, networks
from jaxpgs.adapters.environments import step_with_key
from jaxpgs.networks.layers.geometry import LastMove
from jaxpgs.pretrained import classes

_NESTED = "environment of"  # the key of an argument that is an environment itself


def describe_env(env: Any) -> dict[str, Any]:
    """Returns the description from which `make_env` makes an environment.

    Args:
      env: the environment.

    Returns:
      Values of JSON types: `name` and `kwargs`; `version`; `module` if it is not of `jaxpgs.envs`;
      and, if it cannot be made again, the reason as `handed_over`.

    Raises:
      ValueError: if `env` is not an environment.
    """
    _check_env(env)
    kind = type(env)
    # By identity, as a user's class may have the name of one of ours.
    if getattr(envs, kind.__name__, None) is kind:
        kwargs = {field.name: getattr(env, field.name) for field in dataclasses.fields(env)}
        return {"name": kind.__name__, "kwargs": encoded(kwargs), "version": _version(env)}
    # With a custom board, `with_last_move(env)` cannot make it, so it is described as a class.
    if isinstance(env, LastMove) and _has_known_board(env):
        game = describe_env(env.env)
        if "handed_over" not in game:
            return {"name": "with_last_move", "kwargs": {"env": {_NESTED: game}}, "version": None}
    if _is_by_id(env):
        return {"module": "pgx", "name": env.id, "kwargs": {}} | _facts(env)

    def same(kwargs: Mapping[str, Any]) -> bool:
        return _game_program(kind(**decoded(kwargs))) == _game_program(env)

    return classes.describe(kind, _arguments(env), same) | _facts(env)


def make_env(
    spec: Mapping[str, Any], network: str, given: Any = None, *, trusted: bool = False
) -> Any:
    """Makes the environment that a card describes.

    Args:
      spec: the description from `describe_env`.
      network: the name of the network, for messages.
      given: the environment that was handed over; it is compared with the card.
      trusted: whether the module of a user's own class may be imported.

    Returns:
      The environment.

    Raises:
      ValueError: if it is unknown, of another version, differs from `given`, or must be handed
        over.
      ImportError: if it is of pgx and pgx is not installed.
    """
    name, home = spec["name"], spec.get("module", "this library")
    if given is not None:
        _check_env(given)
        classes.compare(spec, _arguments(given), "environment", _facts(given))
        return given
    if "module" not in spec and name == "with_last_move":
        return networks.with_last_move(decoded(spec["kwargs"], network, trusted)["env"])
    if "module" not in spec:
        # A card is not trusted, so it cannot name arbitrary functions to call.
        known = [x for x in envs.__all__ if hasattr(getattr(envs, x), "observation_shape")]
        if name not in known:
            raise ValueError(f"jaxpgs.envs has no environment {name!r}; it has {known}.")
        env = getattr(envs, name)(**spec["kwargs"])
    elif spec["module"] == "pgx":
        env = classes.import_pgx().make(name)
    else:
        kind = classes.find(spec, "environment", "env", trusted)
        if not _is_env(kind):
            raise ValueError(f"{spec['module']}.{name} lacks the functions init, step and observe.")
        env = kind(**decoded(spec["kwargs"], network, trusted))
    # In another version, the rules or observations may differ from those at training.
    if spec["version"] != _version(env):
        raise ValueError(
            f"The network {network!r} was made for version {spec['version']} of {name}, but {home} "
            f"has version {_version(env)}."
        )
    return env


def encoded(value: Any) -> Any:
    """Returns an argument as values of JSON types; raises `UntoldError` if that is impossible."""
    if isinstance(value, np.generic):
        value = value.item()
    # Exact types only: an enum or another subclass would be read back as a plain value.
    if type(value) in (bool, int, str, types.NoneType):
        return value
    # JSON has neither NaN nor infinities.
    if type(value) is float and math.isfinite(value):
        return value
    if _is_env(value) and not inspect.isclass(value):
        if "handed_over" not in (spec := describe_env(value)):
            return {_NESTED: spec}
    elif isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    elif isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: encoded(item) for key, item in value.items()}
    raise classes.UntoldError(
        f"one of its arguments is a {type(value).__name__}, which no card can hold"
    )


def decoded(value: Any, network: str = "", trusted: bool = False) -> Any:
    """Inverts `encoded`, except that all sequences become tuples."""
    if isinstance(value, list):
        return tuple(decoded(item, network, trusted) for item in value)
    if not isinstance(value, Mapping):
        return value
    if list(value) == [_NESTED]:
        return make_env(value[_NESTED], network, trusted=trusted)
    return {key: decoded(item, network, trusted) for key, item in value.items()}


def observations(env: Any) -> Any:
    """Returns the shapes and types of one observation, with a batch axis of size 1."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    found = jax.eval_shape(lambda key: env.observe(env.init(key)), key)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), found)


def _arguments(env: Any) -> Callable[[str], Any]:
    """Returns a function that returns an environment's constructor argument by name."""
    return lambda name: encoded(getattr(env, name))


def _facts(env: Any) -> dict[str, Any]:
    """Returns properties by which environments can be compared."""
    num_actions = getattr(env, "num_actions", None)
    return {
        "version": _version(env),
        "num_actions": None if num_actions is None else int(num_actions),
        "observation_shapes": [list(x.shape[1:]) for x in jax.tree.leaves(observations(env))],
    }


def _version(env: Any) -> Any:
    """Returns the version of an environment, its own or its module's; None if it has none."""
    # Our games define it in their module, those of pgx in an attribute.
    version = getattr(sys.modules.get(type(env).__module__), "VERSION", None)
    version = getattr(env, "version", None) if version is None else version
    return version if type(version) in (int, float, str) else None


def _game_program(env: Any) -> str:
    """Returns the text of a game's compiled program: reset, one step, and the next observation."""
    step = step_with_key(env)

    def play(key: Any, action: Any) -> Any:
        before = env.init(key)
        after = step(before, action, key)
        return before, after, env.observe(after)

    # Games with continuous actions have bounds instead of a number of actions.
    bounds = getattr(env, "action_bounds", None)
    action = jnp.int32(0) if bounds is None else jnp.asarray(bounds[0], jnp.float32)
    return jax.jit(play).lower(jax.random.key(0), action).as_text()


def _is_env(x: Any) -> bool:
    return all(callable(getattr(x, name, None)) for name in ("init", "step", "observe"))


def _check_env(x: Any) -> None:
    if inspect.isclass(x) or not _is_env(x):
        raise ValueError(f"An environment must have the functions init, step and observe; got {x}.")


def _has_known_board(env: LastMove) -> bool:
    try:
        return networks.board_geometry(env.env) is env.geometry
    except ValueError:
        return False


def _is_by_id(env: Any) -> bool:
    """Returns whether `pgx.make` makes this environment from its id."""
    kind = type(env)
    if kind.__module__.partition(".")[0] != "pgx":
        return False
    try:
        made = classes.import_pgx().make(env.id)
    except Exception:  # the id is unknown, or the game needs files
        return False
    if type(made) is not kind:
        return False
    # If the class takes arguments, they may differ from those that `make` passes.
    return not classes.parameters(kind) or _game_program(made) == _game_program(env)
