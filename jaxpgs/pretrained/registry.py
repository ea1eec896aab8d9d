"""Saving and loading of trained networks: `NAME.safetensors` with a card `NAME.json` beside it.

A card holds the network's class and keyword arguments, the environment with its version, the
SHA-256 of the weights and one of all that, and whatever else its author put in, such as the command
and the strength.
"""

import dataclasses
import hashlib
import importlib
import importlib.resources
import inspect
import json
import os
import pathlib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from jaxpgs import envs, networks
from jaxpgs.base import Params
from jaxpgs.networks.functional import ApplyFn, constructor_kwargs
from jaxpgs.pretrained.files import flatten, unflatten, write_atomically

_OWN_FIELDS = ("name", "architecture", "environment", "sha256")
_CARD_CHECKSUM = "card_sha256"  # of the own fields; cards of earlier versions have none


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained network, or a model that was learned.

    Attributes:
      env: the environment it was trained for.
      module: the network with the trained weights, in evaluation mode. Where it is a
        `ValueEquivalentModel`, `jaxpgs.make_model_fns(module, env)` makes what a search needs to
        plan in it.
      params: its parameters, as `jaxpgs.networks.functional` returns them.
      apply_fn: `(params, observation [B, ...]) -> (logits [B, A], value [B])`.
      card: how it was made and how strong it is, as read from its JSON file.

    Example:
      >>> net = jaxpgs.load_pretrained("hex-5x5")
      >>> net.card["architecture"]["network"]
      'FullyConnectedResNet'
    """

    env: Any
    module: nnx.Module
    params: Params
    apply_fn: ApplyFn
    card: dict[str, Any]


def available_pretrained(directory: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Lists the names that `load_pretrained` knows, sorted.

    Args:
      directory: a folder of saved networks; by default those that come with the library.

    Example:
      >>> "hex-5x5" in jaxpgs.available_pretrained()
      True
    """
    folder = _folder(directory)
    if not folder.is_dir():
        return ()
    files = {entry.name for entry in folder.iterdir()}
    cards = (file.removesuffix(".json") for file in files if file.endswith(".json"))
    return tuple(sorted(name for name in cards if f"{name}.safetensors" in files))


def load_pretrained(name: str, *, directory: str | os.PathLike[str] | None = None) -> Pretrained:
    """Loads a trained network and checks that it is whole and fits its environment.

    Args:
      name: one of `available_pretrained(directory)`, such as "hex-5x5".
      directory: a folder of saved networks; by default those that come with the library.

    Returns:
      The network, its environment and its card.

    Raises:
      ValueError: if the name is unknown, a file is damaged, the weights differ from what the card
        says or are not finite, or the card names an environment, version or network that this
        library does not have.

    Example:
      >>> net = jaxpgs.load_pretrained("hex-5x5")
      >>> net.env
      Hex(size=5, swap=False)
    """
    names = available_pretrained(directory)
    if name not in names:
        raise ValueError(
            f"Unknown pretrained network {name!r}; available: {', '.join(names) or 'none'}."
        )
    folder = _folder(directory)
    card = folder.joinpath(f"{name}.json")
    try:
        data = folder.joinpath(f"{name}.safetensors").read_bytes()
        return _load(name, card.read_bytes(), data)
    except Exception as error:  # whatever a damaged file makes of its parts
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{card} or its weights cannot be used. {what}") from error


def _load(name: str, card_data: bytes, data: bytes) -> Pretrained:
    """Makes a network of its two files; raises almost anything if they are damaged."""
    card = json.loads(card_data)
    missing = sorted(set(_OWN_FIELDS) - set(card))
    if missing:
        raise ValueError(f"The card {name}.json lacks {missing}.")
    if card.get(_CARD_CHECKSUM, _card_checksum(card)) != _card_checksum(card):
        raise ValueError(
            f"The card {name}.json is damaged: {', '.join(_OWN_FIELDS)} do not have its "
            f"{_CARD_CHECKSUM}. If they were changed on purpose, remove that."
        )
    digest = hashlib.sha256(data).hexdigest()
    if digest != card["sha256"]:
        raise ValueError(
            f"The weights {name}.safetensors have SHA-256 {digest}, "
            f"but their card expects {card['sha256']}."
        )
    weights = safetensors.numpy.load(data)
    _check_finite(weights)
    _check_size(card, len(weights))
    env = _make_env(card)
    module = networks.module_from_params(
        _make_module(card, env), jax.tree.map(jnp.asarray, unflatten(weights))
    )
    module.eval()
    params, apply_fn = networks.functional(module)
    return Pretrained(env=env, module=module, params=params, apply_fn=apply_fn, card=card)


def save_pretrained(
    directory: str | os.PathLike[str],
    name: str,
    *,
    env: Any,
    module: nnx.Module,
    params: Params,
    **card_fields: Any,
) -> dict[str, Any]:
    """Writes a trained network that `load_pretrained(name, directory=directory)` reads.

    Each file appears complete or not at all. If only one of the two gets replaced, the checksum
    tells, and loading fails.

    Args:
      directory: the folder to write to, made if need be.
      name: the network's name, which is also its files' name.
      env: an environment of `jaxpgs.envs`, which must be a dataclass.
      module: a network of `jaxpgs.networks`, from which only its class and sizes are taken.
      params: the trained parameters, as `jaxpgs.networks.functional` returns them.
      **card_fields: more fields of the card, of JSON types: usually `command`, `seed`,
        `wall_time_s`, `date`, `versions`, `hardware` and `strength`.

    Returns:
      The card.

    Raises:
      ValueError: if the name is no plain file name, a card field is one that this function fills
        in, the environment, network and parameters do not fit one another, or a parameter is not
        finite.

    Example:
      >>> folder = tempfile.mkdtemp()
      >>> path = jaxpgs.save_pretrained(folder, "mine", env=env, module=module, params=params)
      >>> jaxpgs.load_pretrained("mine", directory=folder).env
      Hex(size=3, swap=False)
    """
    if not name or name.startswith(".") or name != pathlib.PurePath(name).name:
        raise ValueError(f"The name of a network must be a plain file name, got {name!r}.")
    taken = sorted(set(card_fields) & {*_OWN_FIELDS, _CARD_CHECKSUM})
    if taken:
        raise ValueError(f"The card fields {taken} are filled in by save_pretrained.")
    weights = flatten(params)
    _check_finite(weights)
    data = safetensors.numpy.save(weights)
    card = {
        "name": name,
        "architecture": _architecture(module),
        "environment": {
            "name": type(env).__name__,
            "kwargs": dataclasses.asdict(env),
            "version": _version(type(env)),
        },
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    card |= {_CARD_CHECKSUM: _card_checksum(card), **card_fields}
    text = json.dumps(card, indent=2, allow_nan=False) + "\n"
    # What could not be loaded must not be written.
    networks.module_from_params(_make_module(card, _make_env(card)), params)

    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.safetensors", data)
    write_atomically(folder / f"{name}.json", text.encode())
    return card


def _folder(directory: str | os.PathLike[str] | None) -> Traversable:
    if directory is None:
        return importlib.resources.files("jaxpgs.pretrained").joinpath("weights")
    return pathlib.Path(directory)


def _card_checksum(card: Mapping[str, Any]) -> str:
    """The SHA-256 of what loading reads of a card."""
    own = json.dumps([card[name] for name in _OWN_FIELDS], sort_keys=True)
    return hashlib.sha256(own.encode()).hexdigest()


def _check_finite(weights: Mapping[str, np.ndarray]) -> None:
    """Raises `ValueError` if a number is NaN or infinite."""
    for name, array in weights.items():
        wrong = int(np.sum(~np.isfinite(array)))
        if wrong:
            raise ValueError(f"{wrong} of the {array.size} weights {name!r} are not finite.")


def _check_size(card: Mapping[str, Any], num_arrays: int) -> None:
    """Raises `ValueError` if a network has more parts than arrays; building it may take hours."""
    for name, value in card["architecture"]["kwargs"].items():
        if name.startswith("num_blocks") and value > num_arrays:
            raise ValueError(f"{name} is {value} in the card, for weights of {num_arrays} arrays.")


def _make_env(card: Mapping[str, Any]) -> Any:
    spec = card["environment"]
    known = [x for x in envs.__all__ if hasattr(getattr(envs, x), "observation_shape")]
    if spec["name"] not in known:
        raise ValueError(f"jaxpgs.envs has no environment {spec['name']!r}; it has {known}.")
    env = getattr(envs, spec["name"])(**spec["kwargs"])
    if spec["version"] != _version(type(env)):
        raise ValueError(
            f"The network {card['name']!r} was made for version {spec['version']} of "
            f"{spec['name']}, but this library has version {_version(type(env))}."
        )
    return env


def _version(env_class: type) -> int:
    return importlib.import_module(env_class.__module__).VERSION


def _make_module(card: Mapping[str, Any], env: Any) -> nnx.Module:
    """Builds the card's network with shapes in place of weights."""
    spec = card["architecture"]
    network = getattr(networks, spec["network"], None) if spec["network"] in _networks() else None
    if network is None:
        raise ValueError(f"No network {spec['network']!r}; jaxpgs.networks has {_networks()}.")

    def make() -> nnx.Module:
        kwargs, offsets = spec["kwargs"], spec.get("offsets")
        made = network(env.observation_shape, env.num_actions, **kwargs, rngs=nnx.Rngs(0))
        return made if offsets is None else networks.WithOffsets(made, offsets)

    return nnx.eval_shape(make)


def _networks() -> list[str]:
    kinds = {name: getattr(networks, name) for name in networks.__all__ if name != "WithOffsets"}
    return [name for name, x in kinds.items() if inspect.isclass(x) and issubclass(x, nnx.Module)]


def _architecture(module: nnx.Module) -> dict[str, Any]:
    """Returns what `_make_module` makes a module of."""
    if isinstance(module, networks.WithOffsets):
        return {
            "network": module.network_class,
            "kwargs": dict(module.network_kwargs),
            "offsets": sorted(module.offsets),
        }
    return {"network": type(module).__name__, "kwargs": constructor_kwargs(module)}
