"""Games and batches that devices share, those of other processes included.

Every trainer takes `devices=`, and it means the same in each. Games are played by the device that
has them: `per_device` runs self-play in `jax.shard_map`, so that each device's loops end when its
own games are done. Parameters are on every device. A batch to learn from is split among the devices
(`split_rows`); `jax.jit` then adds up their gradients, once a step of the optimizer.

Chance is drawn for the games of all devices, and each device takes what is of its own (`own_rows`).
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
    """Makes the mesh of the devices that a trainer was given.

    Args:
      devices: the devices, of all processes if there are several; None for the default one.
      counts: what they share, by the names of the trainer's arguments.

    Returns:
      A mesh with the one axis `AXIS`, or None without devices.

    Raises:
      ValueError: if there are none, they cannot share a count evenly, or some process has none of
        them.
    """
    if devices is not None and not len(devices):
        raise ValueError("devices must name at least one device, or be None for the default one.")
    # Every process runs the trainer, so each must have a part in it.
    have = {device.process_index for device in devices or jax.local_devices()[:1]}
    if len(have) != jax.process_count():
        raise ValueError(
            f"This is one of {jax.process_count()} processes that train together, so devices must "
            f"be of each, such as jax.devices(); got those of {sorted(have)}."
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
    """Returns shardings for a pytree of which every device has all."""
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda _: sharding, tree)


def beside(mesh: Mesh | None, shardings: Any | None) -> Any:
    """Returns the shardings of a pair: these, and something that every device has."""
    return None if mesh is None else (shardings, NamedSharding(mesh, PartitionSpec()))


def everywhere(mesh: Mesh | None, tree: Any) -> Any:
    """Puts arrays, the same ones in every process, on every device."""
    return tree if mesh is None else _copier(NamedSharding(mesh, PartitionSpec()))(tree)


@functools.cache
def _copier(sharding: NamedSharding) -> Callable[[Any], Any]:
    return jax.jit(lambda tree: tree, out_shardings=sharding)


def split_rows(mesh: Mesh | None, batch: Any) -> Any:
    """Splits the first axis of arrays among the devices, inside of `jax.jit`."""
    if mesh is None:
        return batch
    return jax.lax.with_sharding_constraint(batch, rows(mesh, batch))


def per_device(
    mesh: Mesh | None, fn: Callable[..., Any], in_axes: Sequence[int | None], out_axes: Any
) -> Callable[..., Any]:
    """Runs a function on every device by itself, on the rows that the device has.

    Args:
      mesh: the mesh; None returns the function as it is.
      fn: the function.
      in_axes: for each argument the axis that counts the rows; None for what all devices have.
      out_axes: the same of what it returns, a pytree prefix of it.

    Returns:
      A function of the same arguments, for all rows.
    """
    if mesh is None:
        return fn

    # None is on every device; else the named axis of the mesh splits that axis of the array.
    def spec(axis: int | None) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)

    # What varies over the devices is not checked: loops of environments begin with constants.
    return jax.shard_map(
        fn, mesh=mesh, in_specs=tuple(map(spec, in_axes)),
        out_specs=jax.tree.map(spec, out_axes, is_leaf=lambda x: x is None), check_vma=False,
    )  # fmt: skip


def own_rows(draw: Callable[[int], chex.Array], num_rows: int) -> chex.Array:
    """Draws for the rows of all devices, and takes this device's.

    Args:
      draw: `number of rows -> array`, whose first axis counts them.
      num_rows: how many this device has.

    Returns:
      `[num_rows, ...]`, the same as without devices if there is one.
    """
    if not is_shared():
        return draw(num_rows)
    drawn = draw(num_rows * jax.lax.axis_size(AXIS))
    first = jax.lax.axis_index(AXIS) * num_rows
    return jax.lax.dynamic_slice_in_dim(drawn, first, num_rows)


def own_keys(rng_key: chex.PRNGKey, num_rows: int) -> chex.PRNGKey:
    """Splits a key into one for each row of all devices, and takes this device's `[num_rows]`."""
    return own_rows(lambda number: jax.random.split(rng_key, number), num_rows)


def own_categorical(rng_key: chex.PRNGKey, logits: chex.Array) -> chex.Array:
    """Draws from each row of `[num_rows, A]` logits, as `jax.random.categorical` of all rows."""
    if not is_shared():
        return jax.random.categorical(rng_key, logits)
    # Gumbel-max by hand: the noise of all rows is drawn, and the device adds its own part.
    shape = logits.shape[1:]
    noise = own_rows(lambda n: jax.random.gumbel(rng_key, (n, *shape), logits.dtype), len(logits))
    return jnp.argmax(noise + logits, axis=-1)


def is_shared() -> bool:
    """Tells whether this is traced inside of `per_device`."""
    # JAX has no question for it; an axis that is not bound raises NameError.
    try:
        jax.lax.axis_size(AXIS)
    except NameError:
        return False
    return True


def one_key(rng_key: chex.PRNGKey) -> chex.PRNGKey:
    """Returns the key itself, or the first of several."""
    return rng_key if is_one_key(rng_key) else rng_key[0]


def fetch(tree: Any) -> Any:
    """Copies arrays to this process as NumPy arrays, with the rows of other processes."""

    def copy(x: Any) -> Any:
        # What is whole here is read; rows of other processes are gathered, for which all must ask.
        if getattr(x, "is_fully_addressable", True) or x.is_fully_replicated:
            return jax.device_get(x)
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(copy, tree)


def largest(*numbers: int) -> tuple[int, ...]:
    """Returns the largest of each number in any process; all have to ask at the same time."""
    if jax.process_count() == 1:
        return numbers
    return tuple(np.max(multihost_utils.process_allgather(np.asarray(numbers)), axis=0).tolist())


def in_first_process(call: Callable[[], Any]) -> None:
    """Calls a function in the first process; all have to ask at the same time.

    Raises:
      RuntimeError: in the others, if it raised an error in the first, which raises that.
    """
    error = None
    if is_first_process():
        try:
            call()
        except Exception as raised:  # the others must not wait for ever
            error = raised
    # The others wait here, so none goes on with a folder that is not ready, and all fail together.
    failed = any(largest(error is not None))
    if error is not None:
        raise error
    if failed:
        raise RuntimeError("The first of the processes stopped; its message says why.")


def is_first_process() -> bool:
    """Tells whether this process is the one that writes what is written once."""
    return jax.process_index() == 0
