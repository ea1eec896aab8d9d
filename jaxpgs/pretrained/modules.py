"""Describes networks in cards, and makes networks from cards.

A card identifies networks of the library by the name of their class and their constructor
arguments, and a user's own as `classes` describes.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import linen, nnx

from jaxpgs import networks
from jaxpgs.base import Params
from jaxpgs.networks.functional import constructor_kwargs
from jaxpgs.networks.layers.geometry import LastMove
from jaxpgs.pretrained import classes
from jaxpgs.pretrained.environments import decoded, encoded, observations

_FROM_ENV = ("observation_shape", "num_actions")  # arguments that the game provides
_MODULES = (nnx.Module, linen.Module)


def describe_module(
    module: Any, params: Params, env: Any, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the description from which `make_module` makes a network.

    Args:
      module: the network, of NNX or of Linen.
      params: its parameters.
      env: its environment.
      given: constructor arguments that the network does not keep in attributes.

    Returns:
      Values of JSON types: `network` and `kwargs`; `module` if it is not of `jaxpgs.networks`;
      `offsets` if it has some; and, if it cannot be made again, the reason as `handed_over`.

    Raises:
      ValueError: if it is not a module, or cannot be made again with the given arguments.
    """
    _check_module(module)
    offsets: dict[str, Any] = {}
    kind = type(module)
    get: Callable[[str], Any] = functools.partial(getattr, module)
    kept = constructor_kwargs(module) if isinstance(module, nnx.Module) else {}
    # The card describes the network inside the wrapper, and lists the offsets separately.
    if isinstance(module, networks.WithOffsets):
        offsets = {"offsets": sorted(module.offsets)}
        kind, kept = module.network_type, dict(module.network_kwargs)
        get = kept.__getitem__
    if getattr(networks, kind.__name__, None) is kind:
        spec: dict[str, Any] = {"network": kind.__name__}
        try:
            spec |= {"kwargs": encoded(kept | dict(given or {}))}
        except classes.UntoldError as reason:
            spec |= {"kwargs": {}, "handed_over": str(reason)}
        return spec | offsets

    def same(kwargs: Mapping[str, Any]) -> bool:
        made = _build(kind, decoded(kwargs), env, offsets.get("offsets"))
        if isinstance(made, nnx.Module):
            networks.module_from_params(made, params)  # raises an error for other shapes
        return _network_program(made, params, env) == _network_program(module, params, env)

    # A Linen module infers its shapes when it is called, so its game need not provide them.
    said = _FROM_ENV if issubclass(kind, nnx.Module) else ()
    found = classes.describe(
        kind, lambda name: encoded(get(name)), same, encoded(given or {}), said
    )
    # A caller who gives arguments expects them to suffice, so this is an error, not a card entry.
    if given is not None and "handed_over" in found:
        raise ValueError(f"{kind.__name__} must be made of module_kwargs: {found['handed_over']}.")
    return {"module": found.pop("module"), "network": found.pop("name")} | found | offsets


def make_module(
    spec: Mapping[str, Any], env: Any, given: Any = None, *, trusted: bool = False
) -> Any:
    """Makes the network that a card describes, with shapes in place of weights.

    Args:
      spec: the description from `describe_module`.
      env: its environment.
      given: the network that was handed over; it is compared with the card.
      trusted: whether the module of a user's own class may be imported.

    Returns:
      The network, or `given` if there is one.

    Raises:
      ValueError: if it is unknown, differs from `given`, or must be handed over.
    """
    spec = {"name": spec["network"]} | dict(spec)
    name = spec["name"]
    if given is not None:
        _check_module(given)
        classes.compare(spec, lambda name: encoded(getattr(given, name)), "network")
        return given
    if "module" in spec or "handed_over" in spec:
        kind = classes.find(spec, "network", "module", trusted)
    else:
        kinds = {name: getattr(networks, name) for name in networks.__all__}
        # The wrapper is made if there are offsets, and never by its name.
        known = [x for x in kinds if _is_network(kinds[x]) and x != "WithOffsets"]
        if name not in known:
            raise ValueError(f"No network {name!r}; jaxpgs.networks has {known}.")
        kind = kinds[name]
    if not _is_network(kind):
        raise ValueError(f"{spec['module']}.{name} is no module of flax.")
    return _build(kind, decoded(spec["kwargs"], name, trusted), env, spec.get("offsets"))


def check_call(module: Any, params: Params, env: Any) -> None:
    """Raises `ValueError` unless a network fits its environment's observations and actions."""
    name = type(module).__name__
    observation = observations(env)
    shapes = [list(leaf.shape) for leaf in jax.tree.leaves(observation)]
    try:
        logits, _ = jax.eval_shape(_apply_fn(module, params), params, observation)
    except Exception as error:  # whatever a user's module raises
        raise ValueError(
            f"{name} must take the environment's observations, here of shapes {shapes}, and return "
            f"logits and values. {type(error).__name__}: {error}"
        ) from error
    # If the environment has no `num_actions`, any number of logits is accepted.
    wanted = (1, getattr(env, "num_actions", logits.shape[-1]))
    if logits.shape != wanted:
        raise ValueError(
            f"{name} must return logits of shape {list(wanted)} for observations of shapes "
            f"{shapes}, as the environment has {wanted[1]} actions; got {list(logits.shape)}."
        )


def _build(kind: Any, kwargs: Mapping[str, Any], env: Any, offsets: Sequence[str] | None) -> Any:
    """Makes a network from its class, with shapes in place of weights."""
    if issubclass(kind, linen.Module):
        return kind(**kwargs)
    taken = inspect.signature(kind.__init__).parameters
    # A `PatternPolicy` takes the shape of the game's own observation, not that of `LastMove`.
    on_board = kind is networks.PatternPolicy and isinstance(env, LastMove)
    game = env.env if on_board else env
    said = {name: _said(game, name) for name in _FROM_ENV if name in taken and name not in kwargs}

    def make() -> nnx.Module:
        rngs = {"rngs": nnx.Rngs(0)} if "rngs" in taken else {}
        made = kind(**said, **kwargs, **rngs)
        return made if offsets is None else networks.WithOffsets(made, offsets)

    return nnx.eval_shape(make)


def _said(env: Any, name: str) -> Any:
    """Returns an argument of a network that its environment provides."""
    if name == "observation_shape" and not hasattr(env, name):
        return observations(env).shape[1:]
    return getattr(env, name)


def _apply_fn(module: Any, params: Params) -> Callable[..., Any]:
    return networks.functional(module, params if isinstance(module, linen.Module) else None)[1]


def _network_program(module: Any, params: Params, env: Any) -> str:
    """Returns the text of a network's compiled program, which is independent of its parameters."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    return jax.jit(_apply_fn(module, params)).lower(shapes, observations(env)).as_text()


def _is_network(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, _MODULES)


def _check_module(x: Any) -> None:
    if not isinstance(x, _MODULES):
        raise ValueError(f"module must be a module of flax.nnx or flax.linen, got {x!r}.")
