"""Environments that are quick outside `jax.jit` as well, as in a notebook or a host's loop."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax

_Method = TypeVar("_Method", bound=Callable)


def compiled(method: _Method) -> _Method:
    """Makes a method of an environment compile once for each environment and shape of arguments.

    Operation by operation a first call compiles dozens of programs, and each loop anew in every
    call. Within a program of the caller's nothing changes: there the method is inlined.

    Args:
      method: takes the environment, which must be hashable, and arrays.

    Returns:
      The method.
    """
    return functools.partial(jax.jit, static_argnums=0, inline=True)(method)  # type: ignore
