"""Environments that are fast outside `jax.jit` as well, as in a notebook or a host loop."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax

_Method = TypeVar("_Method", bound=Callable)


def compiled(method: _Method) -> _Method:
    """Makes a method of an environment compile once for each environment and shape of arguments.

    Executed operation by operation, a first call compiles dozens of programs, and every call
    compiles each loop again. Inside the caller's own `jax.jit` the method is inlined.

    Args:
      method: takes the environment, which must be hashable, and arrays.

    Returns:
      The method.
    """
    return functools.partial(jax.jit, static_argnums=0, inline=True)(method)  # type: ignore
