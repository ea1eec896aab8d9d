"""A convolution whose gradients stay fast inside loops on a processor."""

from typing import Any

import chex
import jax
import jax.numpy as jnp

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def same_convolution(
    inputs: chex.Array, kernel: chex.Array, *args: Any, **kwargs: Any
) -> chex.Array:
    """Convolves planes and keeps the board's size; what `nnx.Conv(conv_general_dilated=...)` takes.

    On a processor XLA brings convolutions into the form for which it has fast code, but only
    outside of loops (https://github.com/jax-ml/jax/issues/12868). Those of a gradient have another
    form, and training runs in a `scan`, where they take many times as long. Here a gradient is
    written in the fast form. Outputs and gradients are those of `jax.lax.conv_general_dilated`.

    Args:
      inputs: `[B, height, width, planes]`.
      kernel: `[k, l, planes, filters]`, with k and l odd.
      *args: strides of 1 and padding "SAME".
      **kwargs: what else `nnx.Conv` hands on, all of it at its defaults.

    Returns:
      `[B, height, width, filters]`.
    """
    # Elsewhere the compiler knows the usual form of gradients.
    if jax.default_backend() != "cpu":
        return jax.lax.conv_general_dilated(inputs, kernel, *args, **kwargs)
    return _convolve(inputs, kernel)


@jax.custom_vjp
def _convolve(inputs: chex.Array, kernel: chex.Array) -> chex.Array:
    return jax.lax.conv_general_dilated(inputs, kernel, (1, 1), "SAME", dimension_numbers=_LAYOUT)


def _forward(inputs: chex.Array, kernel: chex.Array) -> tuple[chex.Array, tuple]:
    return _convolve(inputs, kernel), (inputs, kernel)


def _backward(saved: tuple, gradient: chex.Array) -> tuple[chex.Array, chex.Array]:
    inputs, kernel = saved
    to_inputs = _convolve(gradient, jnp.flip(kernel, (0, 1)).swapaxes(2, 3))
    # Planes take the place of the batch, and the batch that of the planes that are summed over.
    margins = [(size // 2, size // 2) for size in kernel.shape[:2]]
    to_kernel = jax.lax.conv_general_dilated(
        inputs.transpose(3, 1, 2, 0), gradient.transpose(1, 2, 0, 3), (1, 1), margins,
        dimension_numbers=_LAYOUT,
    )  # fmt: skip
    return to_inputs, to_kernel.transpose(1, 2, 0, 3)


_convolve.defvjp(_forward, _backward)
