"""A convolution that is fast on a CPU, for gradients in loops and for many kernels."""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def same_convolution(
    inputs: chex.Array, kernel: chex.Array, *args: Any, **kwargs: Any
) -> chex.Array:
    """Convolves planes and keeps the board's size; for `nnx.Conv(conv_general_dilated=...)`.

    On a CPU, XLA rewrites convolutions into a form for which it has fast code, but only outside of
    loops (https://github.com/jax-ml/jax/issues/12868). The convolutions of a gradient have another
    form, and training runs in a `scan`, where they are many times slower. So here the gradient is
    written in the fast form. There is also no fast code for the grouped convolution into which
    `jax.vmap` turns many kernels, such as those of roots whose whole networks adapt; here the
    kernels are applied one after another. Results are those of `jax.lax.conv_general_dilated`.

    Args:
      inputs: `[B, height, width, planes]`.
      kernel: `[k, l, planes, filters]`, with k and l odd.
      *args: strides of 1 and padding "SAME".
      **kwargs: the other arguments that `nnx.Conv` passes, all with their default values.

    Returns:
      `[B, height, width, filters]`.
    """
    # On other backends the usual form of gradients is fast.
    if jax.default_backend() != "cpu":
        return jax.lax.conv_general_dilated(inputs, kernel, *args, **kwargs)
    return _convolve(inputs, kernel)


@jax.custom_vjp
def _convolve(inputs: chex.Array, kernel: chex.Array) -> chex.Array:
    return _convolution("SAME")(inputs, kernel)


def _forward(inputs: chex.Array, kernel: chex.Array) -> tuple[chex.Array, tuple]:
    return _convolve(inputs, kernel), (inputs, kernel)


def _backward(saved: tuple, gradient: chex.Array) -> tuple[chex.Array, chex.Array]:
    inputs, kernel = saved
    return _to_inputs(gradient, kernel), _to_kernel(inputs, gradient, kernel.shape[:2])


_convolve.defvjp(_forward, _backward)


def _to_inputs(gradient: chex.Array, kernel: chex.Array) -> chex.Array:
    # The gradient by the inputs: a convolution with the flipped kernel, from filters to planes.
    return _convolve(gradient, jnp.flip(kernel, (0, 1)).swapaxes(2, 3))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _to_kernel(inputs: chex.Array, gradient: chex.Array, size: tuple[int, int]) -> chex.Array:
    # Planes take the role of the batch, and the batch that of the planes that are summed over.
    convolve = _convolution(tuple((length // 2, length // 2) for length in size))
    out = convolve(inputs.transpose(3, 1, 2, 0), gradient.transpose(1, 2, 0, 3))
    return out.transpose(1, 2, 0, 3)


# The gradient of the gradient, which is bilinear in the inputs and the cotangent.
_to_kernel.defvjp(
    lambda inputs, gradient, size: (_to_kernel(inputs, gradient, size), (inputs, gradient)),
    lambda size, saved, kernel: (_to_inputs(saved[1], kernel), _convolve(saved[0], kernel)),
)


@functools.cache
def _convolution(padding: Any) -> Callable[[chex.Array, chex.Array], chex.Array]:
    """Makes a convolution that `jax.vmap` runs kernel by kernel if there are many kernels."""

    @jax.custom_batching.custom_vmap
    def convolve(inputs: chex.Array, kernel: chex.Array) -> chex.Array:
        return plain(inputs, kernel)

    def plain(inputs: chex.Array, kernel: chex.Array) -> chex.Array:
        return jax.lax.conv_general_dilated(
            inputs, kernel, (1, 1), padding, dimension_numbers=_LAYOUT
        )

    @convolve.def_vmap
    def batched(
        axis_size: int, is_batched: list[bool], *operands: chex.Array
    ) -> tuple[chex.Array, bool]:
        inputs, kernel = operands
        if all(is_batched):
            # A kernel for each input: one after another, since grouped convolutions are slow.
            return jax.lax.map(lambda each: convolve(*each), operands), True
        # Many inputs for one kernel are one larger batch.
        if is_batched[0]:
            out = convolve(inputs.reshape(-1, *inputs.shape[2:]), kernel)
            return out.reshape(axis_size, -1, *out.shape[1:]), True
        return jax.vmap(plain, (None, 0))(inputs, kernel), True

    return convolve
