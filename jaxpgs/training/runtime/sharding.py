"""Sharding of games and batches over devices, including those of other processes.

Every trainer takes `devices=`, with the same meaning. Each device plays its own games: `per_device`
runs self-play in `jax.shard_map`, so that each device's loops end when its own games are done.
Parameters are replicated on every device. A training batch is split among the devices
(`split_rows`); `jax.jit` then sums their gradients, once per optimizer step.

Random numbers are drawn for the games of all devices, and each device takes its part (`own_rows`).
So the games do not depend on how many devices there are.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpgs.arrays import is_one_key

AXIS = "games"


def make_mesh(devices: Sequence[jax.Device] | None, counts: Mapping[str, int]) -> Mesh | None:
    """Makes the mesh of a trainer's devices.

    Args:
      devices: the devices, of all processes if there are several; None for the default one.
      counts: the sizes to be split among them, by the names of the trainer's arguments.

    Returns:
      A mesh with the single axis `AXIS`, or None for the default device.

    Raises:
      ValueError: if the devices are empty, do not divide a count, or do not include one of each
        process.
    """
    if devices is not None and not len(devices):
        raise ValueError("devices must name at least one device, or be None for the default one.")
    # Every process runs the trainer, so each must contribute a device.
    have = {device.process_index for device in devices or jax.local_devices()[:1]}
    if len(have) != jax.process_count():
        raise ValueError(
            f"This is one of {jax.process_count()} processes that train together, so devices must "
            f"include some of each, as jax.devices() does; got those of {sorted(have)}."
        )
    if devices is None:
        return None
    for name, count in counts.items():
        if count % len(devices):
            raise ValueError(
                f"{name} must be a multiple of the {len(devices)} devices, got {count}."
            )
    return Mesh(np.asarray(devices), (AXIS,))


def rows(mesh: Mesh, tree: Any, axis: int = 0) -> Any:
    """Returns shardings for a pytree that split an axis of each array among the devices."""
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))
    return jax.tree.map(lambda _: sharding, tree)


def whole(mesh: Mesh, tree: Any) -> Any:
    """Returns shardings that replicate a pytree on every device."""
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda _: sharding, tree)


def beside(mesh: Mesh | None, shardings: Any | None) -> Any:
    """Returns the shardings of a pair: the given ones, and a replicated value."""
    return None if mesh is None else (shardings, NamedSharding(mesh, PartitionSpec()))


def everywhere(mesh: Mesh | None, tree: Any) -> Any:
    """Replicates arrays, which are equal in every process, on every device."""
    return tree if mesh is None else _copier(NamedSharding(mesh, PartitionSpec()))(tree)


@functools.cache
def _copier(sharding: NamedSharding) -> Callable[[Any], Any]:
    return jax.jit(lambda tree: tree, out_shardings=sharding)


def split_rows(mesh: Mesh | None, batch: Any) -> Any:
    """Splits the first axis of arrays among the devices, inside `jax.jit`."""
    if mesh is None:
        return batch
    return jax.lax.with_sharding_constraint(batch, rows(mesh, batch))


def per_device(
    mesh: Mesh | None, fn: Callable[..., Any], in_axes: Sequence[int | None], out_axes: Any
) -> Callable[..., Any]:
    """Runs a function on every device separately, on the rows of that device.

    Args:
      mesh: the mesh; None returns the function as it is.
      fn: the function.
      in_axes: for each argument the axis of the rows; None for replicated arguments.
      out_axes: the same for the outputs, as a pytree prefix.

    Returns:
      A function with the same arguments, for all rows.
    """
    if mesh is None:
        return fn

    # None is replicated; otherwise the mesh's axis splits that axis of the array.
    def spec(axis: int | None) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)

    # `check_vma` is off, as the loops of environments begin with constants.
    return jax.shard_map(
        fn, mesh=mesh, in_specs=tuple(map(spec, in_axes)),
        out_specs=jax.tree.map(spec, out_axes, is_leaf=lambda x: x is None), check_vma=False,
    )  # fmt: skip


def own_rows(draw: Callable[[int], chex.Array], num_rows: int) -> chex.Array:
    """Draws random numbers for the rows of all devices, and takes this device's part.

    Args:
      draw: `number of rows -> array`, with the rows on the first axis.
      num_rows: the number of rows on this device.

    Returns:
      `[num_rows, ...]`. With one device this is the same as without a mesh.
    """
    if not is_shared():
        return draw(num_rows)
    drawn = draw(num_rows * jax.lax.axis_size(AXIS))
    first = jax.lax.axis_index(AXIS) * num_rows
    return jax.lax.dynamic_slice_in_dim(drawn, first, num_rows)


def own_keys(rng_key: chex.PRNGKey, num_rows: int) -> chex.PRNGKey:
    """Splits a key into one for each row of all devices; returns this device's `[num_rows]`."""
    return own_rows(lambda number: jax.random.split(rng_key, number), num_rows)


def own_categorical(rng_key: chex.PRNGKey, logits: chex.Array) -> chex.Array:
    """Samples each row of logits `[num_rows, A]`, as `jax.random.categorical` of all rows would."""
    if not is_shared():
        return jax.random.categorical(rng_key, logits)
    # Gumbel-max trick: the noise of all rows is drawn, and each device adds its own part.
    shape = logits.shape[1:]
    noise = own_rows(lambda n: jax.random.gumbel(rng_key, (n, *shape), logits.dtype), len(logits))
    return jnp.argmax(noise + logits, axis=-1)


def is_shared() -> bool:
    """Returns whether this is traced inside `per_device`."""
    # JAX has no query for it; an unbound axis raises NameError.
    try:
        jax.lax.axis_size(AXIS)
    except NameError:
        return False
    return True


def one_key(rng_key: chex.PRNGKey) -> chex.PRNGKey:
    """Returns the key itself, or the first of several."""
    return rng_key if is_one_key(rng_key) else rng_key[0]


def fetch(tree: Any) -> Any:
    """Copies arrays to this process as NumPy arrays, including the rows of other processes."""

    def copy(x: Any) -> Any:
        # Local or replicated arrays are read. Others are gathered, which all processes must call.
        if getattr(x, "is_fully_addressable", True) or x.is_fully_replicated:
            return jax.device_get(x)
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(copy, tree)


def largest(*numbers: int) -> tuple[int, ...]:
    """Returns the maximum of each number over all processes, which must all call this together."""
    if jax.process_count() == 1:
        return numbers
    return tuple(np.max(multihost_utils.process_allgather(np.asarray(numbers)), axis=0).tolist())


def in_first_process(call: Callable[[], Any]) -> None:
    """Calls a function in the first process; all processes must call this together.

    Raises:
      RuntimeError: in the other processes, if the first one raised an error; the first raises its
        own error.
    """
    error = None
    if is_first_process():
        try:
            call()
        except Exception as raised:  # the others must not wait forever
            error = raised
    # The others wait here, so none continues before the folder is ready, and all fail together.
    failed = any(largest(error is not None))
    if error is not None:
        raise error
    if failed:
        raise RuntimeError("The first of the processes stopped; its message says why.")


def is_first_process() -> bool:
    """Returns whether this process is the one that writes shared files."""
    return jax.process_index() == 0
