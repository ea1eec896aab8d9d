"""Checks of arguments that can be made before anything is traced."""

import argparse
import contextlib
import math
import operator
import pathlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_number(
    owner: str,
    name: str,
    value: Any,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    by_root: bool = False,
    traced: bool = True,
) -> None:
    """Raises `ValueError` unless a number is finite and in its range.

    Args:
      owner: the function whose argument it is, for the message.
      name: the argument's name.
      value: a number, or a traced number, of which only the shape can be checked.
      low: the least value that is allowed.
      high: the greatest value that is allowed.
      open_low: whether `low` itself is not allowed.
      by_root: whether an array `[B]` or `[B, 1]`, a number for each root, is allowed as well.
      traced: whether a traced number is allowed.
    """
    at_least = "" if low == -math.inf else f"at least {low:g}"
    allowed = f"above {low:g}" if open_low else at_least
    if high < math.inf:
        allowed += f" and at most {high:g}"
    words = f"{owner} needs {name} to be a finite number {allowed}".rstrip()
    shape = np.shape(value)
    if shape and not (by_root and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))):
        more = ", or an array [B] or [B, 1] with one for each root" if by_root else ""
        raise ValueError(f"{words}{more}; got an array of shape {list(shape)}.")
    if isinstance(value, jax.core.Tracer):
        if not traced:
            raise ValueError(f"{words} that is known before tracing; got {value}.")
        return
    try:
        numbers = np.asarray(value).astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{words}; got {value!r}.") from None
    fits = np.isfinite(numbers) & (numbers >= low) & (numbers <= high)
    if not np.all(fits & ~(open_low & (numbers == low))):
        raise ValueError(f"{words}; got {value}.")


def check_count(owner: str, name: str, count: Any, high: int = 2**30) -> int:
    """Returns a count as a Python int; raises `ValueError` if it is no count, or out of range.

    Args:
      owner: the function whose argument it is, for the message.
      name: the argument's name.
      count: an integer of at least 1. It must not be traced, as shapes depend on it.
      high: the greatest count that is allowed; with the default, sums of two counts fit 32 bits.
    """
    try:
        number = operator.index(count)
    except TypeError:  # a traced number raises a subclass of it
        number = 0
    if 1 <= number <= high:
        return number
    raise ValueError(
        f"{owner} needs {name} to be a whole number that is known before tracing, of at least 1 "
        f"and at most {high}, such as 16; got {count!r}."
    )


def check_part(owner: str, name: str, part: Any, kind: Any, example: str) -> None:
    """Raises `ValueError` for a value that is no part, such as `puct` instead of `puct(1.5)`.

    Args:
      owner: the function whose argument it is, for the message.
      name: the argument's name.
      part: the value.
      kind: the part's type, or types. If the type is callable, a function is allowed, unless it
        returns this kind of part: then it is a maker of parts and not a part.
      example: an expression that makes such a part.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # The annotated return type shows whether a function makes a part.
    returned = getattr(part, "__annotations__", {}).get("return")
    # Functions that make an optimizer are annotated with a subclass of the part's type.
    of_kind = isinstance(returned, type) and issubclass(
        returned, tuple(each for each in kinds if isinstance(each, type))
    )
    makes = isinstance(part, type) or of_kind or returned in kinds
    is_type = isinstance(kind, tuple) or (isinstance(kind, type) and "__call__" not in vars(kind))
    if isinstance(part, kind) if is_type else callable(part) and not makes:
        return
    called, advice = getattr(part, "__name__", None), ""
    if called and callable(part):
        advice = f" Call it: {name}={called}(...)."
        if is_type and not makes:  # a rule, not a function that makes one
            advice = f" Put it into one: {name}={kinds[0].__name__}({called})."
    raise ValueError(f"{owner} needs {name} to be a part, such as {example}; got {part!r}.{advice}")


def by_root(owner: str, name: str, value: Any, batch_size: int, dtype: Any) -> Any:
    """Returns a setting that may differ by root, as a number or as `[B, 1]`.

    Args:
      owner: the function whose argument it is, for the message.
      name: the argument's name.
      value: a number, or an array `[B]` or `[B, 1]`.
      batch_size: B.
      dtype: of the array.

    Raises:
      ValueError: if it is for another number of roots.
    """
    shape = np.shape(value)
    if not shape:
        return value
    if shape[0] != batch_size:
        raise ValueError(
            f"{owner} needs {name} to be one number, or one for each of the {batch_size} roots; "
            f"got an array of shape {list(shape)}."
        )
    return jnp.asarray(value, dtype).reshape(batch_size, 1)


def positive(text: str) -> int:
    """Parses an integer of at least 1, as the `type` of a command's arguments."""
    if not (text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Makes the `type` of a command's arguments that are integers in a range."""

    def read(text: str) -> int:
        with contextlib.suppress(ValueError):
            if low <= int(text) <= high:
                return int(text)
        raise argparse.ArgumentTypeError(
            f"must be a whole number from {low} to {high}, got {text!r}"
        )

    return read


def number(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """Makes the `type` of a command's arguments that are finite numbers in a range.

    Args:
      low: the least number that is allowed.
      high: the greatest number that is allowed.
      above: whether `low` itself is not allowed.
    """
    allowed = f"of at least {low:,}" if high == math.inf else f"from {low:,} to {high:,}"
    allowed = f"above {low:,}" if above else allowed

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = float(text)
            if low <= value <= high and math.isfinite(value) and not (above and value == low):
                return value
        raise argparse.ArgumentTypeError(f"must be a number {allowed}, got {text!r}")

    return read


seed = whole_number(-(2**63), 2**63 - 1)  # the `type` of --seed: what `jax.random.key` takes


@contextlib.contextmanager
def refusals_in_one_line(command: str) -> Iterator[None]:
    """Ends a command with a message instead of a traceback where this library raises an error.

    Errors that other libraries raise keep their tracebacks, except those about files.

    Args:
      command: the command's name, with which the message begins.

    Raises:
      SystemExit: with the message.
    """
    try:
        yield
    except (ValueError, ImportError, RuntimeError, ArithmeticError, MemoryError, OSError) as error:
        # The innermost frame shows which library raised the error.
        raiser = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if isinstance(error, OSError) or pathlib.Path(__file__).parent in raiser.parents:
            text = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                text = f"cannot use {error.filename}: {error.strerror}."  # without a number
            raise SystemExit(f"{command}: {text}") from error
        raise


def check_returned(what: str, found: Any, shape: tuple[int, ...], kind: str) -> None:
    """Raises `ValueError` unless a part's result has the shape and type that a search expects.

    Args:
      what: the part whose result it is, for the message.
      found: the result.
      shape: the expected shape.
      kind: "bool", "integer" or "real".
    """
    wanted = {"bool": jnp.bool_, "integer": jnp.integer, "real": jnp.floating}[kind]
    # Shapes and types are known while tracing, so this check costs nothing at run time.
    got, dtype = jnp.shape(found), jnp.result_type(found)
    if got != shape or not jnp.issubdtype(dtype, wanted):
        raise ValueError(
            f"{what} must be of shape {list(shape)} and type {kind}; got shape {list(got)} and "
            f"type {dtype}."
        )


def check_finite(owner: str, name: str, value: Any) -> None:
    """Raises `ValueError` if an array has a NaN or an infinity; traced arrays pass.

    Args:
      owner: the function whose argument or result it is, for the message.
      name: what the array is.
      value: an array; the values of a traced one cannot be checked.
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
