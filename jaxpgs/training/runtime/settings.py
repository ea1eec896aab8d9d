"""The settings of trainers: those of a run, which all share, and how a run's folder names them."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from jaxpgs.training.runtime.loggers import Callback

_Result = TypeVar("_Result")
_Given = ParamSpec("_Given")


@dataclasses.dataclass(frozen=True)
class Run:
    """How any trainer runs: by which seed and devices, where it is kept, and who watches.

    Attributes:
      seed: seed of everything random but the initial weights.
      devices: devices to share the games and each batch among, `jax.devices()` for all of all
        processes; the numbers of games and the batch size must be multiples of their number. The
        games do not depend on it, but for those of "gumbel", whose noise is mctx's; sums over a
        batch may be rounded otherwise. None is the default device.
      directory: where to keep checkpoints. Called again with the same directory and arguments,
        training goes on from the last one and ends as if it had never stopped, bit by bit. None
        keeps none.
      checkpoint_every: iterations between checkpoints, at least 1; None is as the trainer says.
      keep: checkpoints to keep, at least 1; the best network is part of each.
      callback: called after every iteration with the state and a dict of metrics, or several such
        functions; a true answer of any ends the training. The next iteration overwrites the state,
        so copy what you keep.
      progress: whether to show a bar on standard error; None shows one in a terminal.

    Raises:
      ValueError: if `checkpoint_every` or `keep` is below 1.

    Example:
      >>> run = jaxpgs.training.Run(seed=1, directory="runs/mine", progress=False)
    """

    seed: int = 0
    devices: Sequence[jax.Device] | None = None
    directory: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None
    keep: int = 2
    callback: Callback | Sequence[Callback] | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        every = 1 if self.checkpoint_every is None else self.checkpoint_every
        check_counts({"checkpoint_every": every, "keep": self.keep})


def check_counts(counts: Mapping[str, int]) -> None:
    """Raises `ValueError` unless all of these numbers, given by name, are at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")


def flat(arguments: Mapping[str, Any], *groups: str) -> dict[str, Any]:
    """Returns a trainer's arguments as a run's folder keeps them: fields in place of settings.

    Args:
      arguments: the arguments by name.
      *groups: the names of those that are settings.
    """
    found = {name: x for name, x in arguments.items() if name not in groups}
    for group in (arguments[name] for name in groups):
        # By fields: runs of versions that took them one by one have the same `run.json`.
        found |= {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    return found


def in_settings(trainer: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Lets a function say where a field belongs that it is given beside its settings.

    Args:
      trainer: such as `expert_iteration.train`.

    Returns:
      The function. Given `num_games=8`, it raises a `TypeError` that says
      `games=Games(num_games=...)`.
    """
    parameters = inspect.signature(trainer).parameters

    @functools.wraps(trainer)
    def train(*args: _Given.args, **arguments: _Given.kwargs) -> _Result:
        # Python itself would say no more than that the name is unknown.
        for name, default in _settings_of(parameters).items():
            for field in dataclasses.fields(default):
                if field.name in arguments and field.name not in parameters:
                    raise TypeError(
                        f"{trainer.__name__}() got an unexpected keyword argument {field.name!r}, "
                        f"a field of its settings: {name}={type(default).__name__}"
                        f"({field.name}=...)."
                    )
        return trainer(*args, **arguments)

    return train


def _settings_of(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Returns the defaults of those parameters that are settings, by name."""
    return {n: x.default for n, x in parameters.items() if dataclasses.is_dataclass(x.default)}


def by_name(trainer: Callable[..., _Result]) -> Callable[..., _Result]:
    """Lets a trainer take the fields of its settings by their own names, as recipes keep them.

    Args:
      trainer: such as `expert_iteration.train`.

    Returns:
      A function for which `num_games=8` is `games=Games(num_games=8)`. A field that is given beside
      its settings takes the place of theirs.
    """
    groups = _settings_of(inspect.signature(trainer).parameters)

    @functools.wraps(trainer)
    def train(*args: Any, **arguments: Any) -> _Result:
        # Each field is taken out of the arguments and put in its settings, which the trainer takes.
        for name, default in groups.items():
            fields = {field.name for field in dataclasses.fields(default)} & set(arguments)
            given = {field: arguments.pop(field) for field in fields}
            if given:
                arguments[name] = dataclasses.replace(arguments.get(name, default), **given)
        return trainer(*args, **arguments)

    return train
