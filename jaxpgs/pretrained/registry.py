"""Saving and loading of trained networks: `NAME.safetensors` with a card `NAME.json` beside it.

A card contains the network's class and keyword arguments, the environment with its version, the
SHA-256 of the weights, and a SHA-256 of all these entries. Its author may add further fields, such
as the command and the strength. `environments` and `modules` describe the format of both entries.
"""

import dataclasses
import hashlib
import importlib.resources
import json
import os
import pathlib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import linen, nnx

from jaxpgs import networks
from jaxpgs.base import Params
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.pretrained.environments import describe_env, make_env
from jaxpgs.pretrained.files import flatten, unflatten, write_atomically
from jaxpgs.pretrained.modules import check_call, describe_module, make_module

_OWN_FIELDS = ("name", "architecture", "environment", "sha256")
_CARD_CHECKSUM = "card_sha256"  # of `_OWN_FIELDS`; cards of earlier versions have none


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained network, or a learned model.

    Attributes:
      env: the environment it was trained for.
      module: the network with the trained weights, in evaluation mode; a Linen module holds no
        weights itself. If it is a `ValueEquivalentModel`, `jaxpgs.make_model_fns(module, env)`
        makes the functions with which a search plans in it.
      params: its parameters, as `jaxpgs.networks.functional` returns them.
      apply_fn: `(params, observation [B, ...]) -> (logits [B, A], value [B])`.
      card: how it was made and how strong it is, as read from its JSON file.

    Example:
      >>> net = jaxpgs.load_pretrained("hex-5x5")
      >>> net.card["architecture"]["network"]
      'FullyConnectedResNet'
    """

    env: Any
    module: Any
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


def load_pretrained(
    name: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    env: Any = None,
    module: nnx.Module | linen.Module | None = None,
    trusted: bool = False,
) -> Pretrained:
    """Loads a trained network and checks that it is intact and fits its environment.

    The weights are plain numbers, and a card is plain text: reading them runs no code from them.
    A card may name a user's own environment or network by the import path of its class. The class
    is then taken from its module if that module is imported already; otherwise the error explains
    what is missing.

    Args:
      name: one of `available_pretrained(directory)`, such as "hex-5x5".
      directory: a folder of saved networks; by default those that come with the library.
      env: the environment, in place of the one that the card describes. It is needed if the card's
        environment is of a class defined in a script, a notebook or a function. Its version,
        arguments and observations must be those of the card.
      module: the network, in place of the card's in the same way. Only its structure is used.
      trusted: whether modules that the card names may be imported, which runs their code.

    Returns:
      The network, its environment and its card.

    Raises:
      ValueError: if the name is unknown, a file is damaged, or the weights are not finite or do not
        have the card's checksum. Also if the environment, its version or the network of the card
        does not exist, is not imported, must be handed over, or differs from the one handed over.
      ImportError: if the environment is of pgx and pgx is not installed; install it by `pip install
        "jaxpgs[pgx]"`.

    Example:
      >>> net = jaxpgs.load_pretrained("hex-5x5")
      >>> net.env
      Hex(size=5, swap=False)
    """
    names = available_pretrained(directory)
    if name not in names:
        raise ValueError(
            f"Unknown pretrained network {name!r}; available in "
            f"{'jaxpgs' if directory is None else directory}: {', '.join(names) or 'none'}."
        )
    folder = _folder(directory)
    card = folder.joinpath(f"{name}.json")
    try:
        data = folder.joinpath(f"{name}.safetensors").read_bytes()
        return _load(name, card.read_bytes(), data, env, module, trusted)
    except ImportError:
        raise
    except Exception as error:  # a damaged file may raise any error
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{card} or its weights cannot be used. {what}") from error


def _load(
    name: str, card_data: bytes, data: bytes, env: Any, module: Any, trusted: bool
) -> Pretrained:
    """Makes a network from its two files; may raise any error if they are damaged."""
    card = json.loads(card_data)
    missing = sorted(set(_OWN_FIELDS) - set(card))
    if missing:
        raise ValueError(f"The card {name}.json lacks {missing}.")
    # The card is checked first, as the rest relies on it. An old card without a checksum passes.
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
    # The digest shows that nothing has changed since saving, not that the network can be built.
    weights = safetensors.numpy.load(data)
    _check_finite(weights)
    _check_size(card, len(weights))
    return _assemble(card, weights, env, module, trusted)


def _assemble(
    card: dict[str, Any],
    weights: Mapping[str, np.ndarray],
    env: Any = None,
    module: Any = None,
    trusted: bool = False,
) -> Pretrained:
    """Makes a network from its card and its weights by dotted name."""
    env = make_env(card["environment"], card["name"], env, trusted=trusted)
    template = make_module(card["architecture"], env, module, trusted=trusted)
    # Only if the card states that weights were rounded; otherwise weights keep their type.
    rounded = card["architecture"].get("stored") == "float16"
    arrays = {
        name: jnp.asarray(array, jnp.float32 if rounded and array.dtype == np.float16 else None)
        for name, array in weights.items()
    }
    # A Linen module holds no weights, so `functional` gets them as variables.
    if isinstance(template, linen.Module):
        made, variables = template, unflatten(arrays)
    else:
        made = networks.module_from_params(template, unflatten(_with_keys(template, arrays)))
        made.eval()
        variables = None
    params, apply_fn = networks.functional(made, variables)
    # A user's own network may be built without an error and yet not fit the environment.
    if "module" in card["architecture"] or module is not None:
        check_call(made, params, env)
    return Pretrained(env=env, module=made, params=params, apply_fn=apply_fn, card=card)


def save_pretrained(
    directory: str | os.PathLike[str],
    name: str,
    *,
    env: Any,
    module: nnx.Module | linen.Module,
    params: Params,
    module_kwargs: Mapping[str, Any] | None = None,
    half: bool = False,
    **card_fields: Any,
) -> dict[str, Any]:
    """Writes a trained network that `load_pretrained(name, directory=directory)` reads.

    Each file is written atomically. If only one of the two gets replaced, the checksum does not
    match, and loading fails.

    The card names a class of your own by its import path and its constructor arguments. These are
    read from attributes of the same names. They may be numbers, strings, environments, and
    sequences and dicts of these; all other arguments must have their defaults. Saving makes an
    object from these arguments and compares its program with that of your object. If they differ,
    or the class is defined in a script, a notebook or a function, the card states the reason in
    `handed_over`, and `load_pretrained` needs the object as an argument.

    Args:
      directory: the folder to write to; it is created if needed.
      name: the network's name, which is also its files' name.
      env: the environment, of `jaxpgs.envs`, of pgx, or your own.
      module: the network, of `jaxpgs.networks` or your own, of NNX or of Linen. Only its class and
        arguments are saved. If an NNX class takes `observation_shape` and `num_actions`, loading
        gets them from the environment, and it passes arbitrary `rngs`.
      params: the trained parameters, as `jaxpgs.networks.functional` returns them.
      module_kwargs: constructor arguments that the network does not keep in attributes.
      half: whether float32 weights are rounded to float16, which halves the file. Loading then
        converts all float16 weights to float32.
      **card_fields: more fields of the card, of JSON types: usually `command`, `seed`,
        `wall_time_s`, `date`, `versions`, `hardware` and `strength`.

    Returns:
      The card.

    Raises:
      ValueError: if the name is not a plain file name, a card field is one that this function fills
        in, the environment, network and parameters do not fit one another, `module_kwargs` make a
        different network, or a parameter is not finite or is bfloat16.

    Example:
      >>> folder = tempfile.mkdtemp()
      >>> path = jaxpgs.save_pretrained(folder, "mine", env=env, module=module, params=params)
      >>> jaxpgs.load_pretrained("mine", directory=folder).env
      Hex(size=3, swap=False)
    """
    _check_names(name, card_fields)
    weights = flatten(jax.tree.map(_plain, params))
    weights = _rounded(weights) if half else weights
    _check_finite(weights)
    data = safetensors.numpy.save(weights)
    environment = describe_env(env)
    architecture = describe_module(module, params, env, module_kwargs)
    architecture |= {"stored": "float16"} if half else {}
    card = {
        "name": name,
        "architecture": architecture,
        "environment": environment,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    # The checksum covers only `_OWN_FIELDS`, so the other fields may be edited by hand.
    card |= {_CARD_CHECKSUM: _card_checksum(card), **card_fields}
    text = json.dumps(card, indent=2, allow_nan=False) + "\n"
    # A network that could not be loaded must not be written.
    handed_env = env if "handed_over" in environment else None
    handed_module = module if "handed_over" in architecture else None
    _assemble(card, weights, env=handed_env, module=handed_module)
    _check_readable(weights)

    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    # The weights are written first, as a network is listed only when both files exist.
    write_atomically(folder / f"{name}.safetensors", data)
    write_atomically(folder / f"{name}.json", text.encode())
    return card


def _folder(directory: str | os.PathLike[str] | None) -> Traversable:
    if directory is None:
        return importlib.resources.files("jaxpgs.pretrained").joinpath("weights")
    return pathlib.Path(directory)


def _card_checksum(card: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the fields of a card that loading reads."""
    own = json.dumps([card[name] for name in _OWN_FIELDS], sort_keys=True)
    return hashlib.sha256(own.encode()).hexdigest()


def _check_names(name: str, card_fields: Mapping[str, Any]) -> None:
    """Raises `ValueError` if the name is not a file name or a card field is reserved."""
    if not name or name.startswith(".") or name != pathlib.PurePath(name).name:
        raise ValueError(f"The name of a network must be a plain file name, got {name!r}.")
    taken = sorted(set(card_fields) & {*_OWN_FIELDS, _CARD_CHECKSUM})
    if taken:
        raise ValueError(f"The card fields {taken} are filled in by save_pretrained.")


def _rounded(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rounds float32 to float16; overflow becomes infinite, which `_check_finite` reports."""
    with np.errstate(over="ignore"):
        return {n: x.astype(np.float16) if x.dtype == np.float32 else x for n, x in weights.items()}


def _check_finite(weights: Mapping[str, np.ndarray]) -> None:
    """Raises `ValueError` if a number is NaN or infinite."""
    for name, array in weights.items():
        wrong = int(np.sum(~np.isfinite(array)))
        if wrong:
            raise ValueError(f"{wrong} of the {array.size} weights {name!r} are not finite.")


def _check_readable(weights: Mapping[str, np.ndarray]) -> None:
    """Raises `ValueError` for bfloat16 weights, as NumPy, which reads the file, lacks this type."""
    for name, array in weights.items():
        if array.dtype == jnp.bfloat16:
            raise ValueError(
                f"The weights {name!r} are bfloat16, which cannot be read again. Make the network "
                "with weights of float32; dtype=jnp.bfloat16 lets it compute in bfloat16, and "
                "half=True keeps 16 bits of them."
            )


def _check_size(card: Mapping[str, Any], num_arrays: int) -> None:
    """Raises `ValueError` for more blocks than arrays, as building them might take hours."""
    for name, value in card["architecture"]["kwargs"].items():
        if name.startswith("num_blocks") and isinstance(value, int) and value > num_arrays:
            raise ValueError(f"{name} is {value} in the card, for weights of {num_arrays} arrays.")


def _plain(leaf: chex.Array) -> chex.Array:
    """Returns an array as it is saved; random keys, such as Dropout's, become numbers."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _with_keys(template: nnx.Module, arrays: dict[str, chex.Array]) -> dict[str, chex.Array]:
    """Converts saved numbers back to random keys where the module has keys."""
    slots = nnx.to_flat_state(nnx.state(template))
    leaves = {".".join(map(str, path)): slot.get_value() for path, slot in slots}
    # The template holds only shapes, but `key_impl` needs a key.
    impls = {
        name: jax.random.key_impl(jnp.zeros((), leaf.dtype))
        for name, leaf in leaves.items()
        if _is_key(leaf)
    }
    return {
        name: jax.random.wrap_key_data(x, impl=impls[name]) if name in impls else x
        for name, x in arrays.items()
    }


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
