"""Checks of arguments that can be made before anything is traced."""

import argparse
import contextlib
import math
import pathlib
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def check_number(
    owner: str, name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False
) -> None:
    """Raises `ValueError` unless a number is finite and in its range; traced numbers pass.

    Args:
      owner: the function whose argument it is, for the message.
      name: the argument's name.
      value: a number, or a traced scalar, which cannot be looked at.
      low: the least that is allowed.
      high: the most that is allowed.
      open_low: whether `low` itself is not allowed.
    """
    if isinstance(value, jax.core.Tracer):
        return
    number = float(value)
    if math.isfinite(number) and low <= number <= high and not (open_low and number == low):
        return
    if open_low:
        allowed = f"above {low:g}"
    elif low == -math.inf:
        allowed = ""
    else:
        allowed = f"at least {low:g}"
    if high < math.inf:
        allowed += f" and at most {high:g}"
    words = f"a finite number {allowed}".strip()
    raise ValueError(f"{owner} needs {name} to be {words}; got {value}.")


def positive(text: str) -> int:
    """Reads a whole number of at least 1, as a `type` of arguments of a command."""
    if not (text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


@contextlib.contextmanager
def refusals_in_one_line(command: str) -> Iterator[None]:
    """Ends a command with a message in place of a traceback where this library refuses something.

    Errors that other libraries raise keep their tracebacks, but for those of files.

    Args:
      command: its name, which the message begins with.

    Raises:
      SystemExit: with the message.
    """
    try:
        yield
    except (ValueError, ImportError, RuntimeError, ArithmeticError, MemoryError, OSError) as error:
        raiser = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if isinstance(error, OSError) or pathlib.Path(__file__).parent in raiser.parents:
            raise SystemExit(f"{command}: {error}") from error
        raise


def check_finite(owner: str, name: str, value: Any) -> None:
    """Raises `ValueError` if an array has a NaN or an infinity; traced arrays pass.

    Args:
      owner: the function whose argument or result it is, for the message.
      name: what the array is.
      value: an array, or a traced one, which cannot be looked at.
    """
    if isinstance(value, jax.core.Tracer):
        return
    wrong = int(np.sum(~np.isfinite(np.asarray(value))))
    if wrong:
        raise ValueError(
            f"{owner} needs finite {name}; got {wrong} of {np.size(value)} that are NaN or "
            "infinite. Look at the network's outputs, or at where the action comes from."
        )


def check_word(owner: str, name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises `ValueError` unless a word is one of those allowed."""
    if value not in allowed:
        words = ", ".join(f'"{word}"' for word in allowed)
        raise ValueError(f"{owner} needs {name} to be one of {words}; got {value!r}.")
