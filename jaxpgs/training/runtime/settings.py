"""Settings of trainers: those of a run, which all share, and how a run's folder stores them."""

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
    """Settings of a run that all trainers share: seed, devices, checkpoints and callbacks.

    Attributes:
      seed: seed of everything random except the initial weights.
      devices: devices over which the games and each batch are sharded; `jax.devices()` uses all
        devices of all processes. The number of games and the batch size must be multiples of their
        number. The games do not depend on the devices, except with the expert "gumbel", which uses
        mctx's noise; sums over a batch may be rounded differently. None is the default device.
      directory: where to keep checkpoints. If training is started again with the same directory and
        arguments, it continues from the last checkpoint, and the result is bitwise the same as
        without an interruption. None keeps no checkpoints.
      checkpoint_every: iterations between checkpoints, at least 1; None is the trainer's default.
      keep: number of checkpoints to keep, at least 1; each includes the best network.
      callback: a function, or several, called after every iteration with the state and a dict of
        metrics; if any returns a true value, training stops. The next iteration overwrites the
        state, so copy what you keep.
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
    """Raises `ValueError` unless all of these, given by name, are whole numbers of at least 1."""
    for name, count in counts.items():
        if not hasattr(count, "__index__"):
            raise ValueError(f"{name} must be a whole number, got {count!r}.")
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")


def flat(arguments: Mapping[str, Any], *groups: str) -> dict[str, Any]:
    """Returns a trainer's arguments as a run's folder stores them: settings as single fields.

    Args:
      arguments: the arguments by name.
      *groups: the names of the arguments that are settings.
    """
    found = {name: x for name, x in arguments.items() if name not in groups}
    for group in (arguments[name] for name in groups):
        # By fields, so that `run.json` is the same as in versions without grouped settings.
        found |= {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    return found


def in_settings(trainer: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Gives a trainer a helpful error if a field of its settings is passed as an argument.

    Args:
      trainer: such as `expert_iteration.train`.

    Returns:
      The function. Given `num_games=8`, it raises a `TypeError` that says
      `games=Games(num_games=...)`.
    """
    parameters = inspect.signature(trainer).parameters

    @functools.wraps(trainer)
    def train(*args: _Given.args, **arguments: _Given.kwargs) -> _Result:
        # Python itself would only say that the name is unknown.
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
    """Returns the defaults of the parameters that are settings, by name."""
    return {n: x.default for n, x in parameters.items() if dataclasses.is_dataclass(x.default)}


def by_name(trainer: Callable[..., _Result]) -> Callable[..., _Result]:
    """Lets a trainer take the fields of its settings as single arguments, as recipes do.

    Args:
      trainer: such as `expert_iteration.train`.

    Returns:
      A function for which `num_games=8` is `games=Games(num_games=8)`. A single field overrides
      that of its settings.
    """
    groups = _settings_of(inspect.signature(trainer).parameters)

    @functools.wraps(trainer)
    def train(*args: Any, **arguments: Any) -> _Result:
        # Each field is moved from the arguments into its settings, which the trainer takes.
        for name, default in groups.items():
            fields = {field.name for field in dataclasses.fields(default)} & set(arguments)
            given = {field: arguments.pop(field) for field in fields}
            if given:
                arguments[name] = dataclasses.replace(arguments.get(name, default), **given)
        return trainer(*args, **arguments)

    return train
