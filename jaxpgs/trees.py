"""Operations on pytrees of batched arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np


def is_array(x: Any) -> bool:
    """Returns whether a leaf is an array, or its shape, and not for example a function."""
    return isinstance(x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def is_weight(x: Any) -> bool:
    """Returns whether a leaf is a trainable array of reals: no key, counter or other object."""
    return is_array(x) and bool(jnp.issubdtype(x.dtype, jnp.inexact))


def stop_gradient(tree: Any) -> Any:
    """Returns a pytree through which no gradient flows; leaves that are no arrays stay the same."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if is_array(x) else x, tree)


def eval_shape(function: Callable[..., Any], tree: Any, *args: Any) -> Any:
    """Does the same as `jax.eval_shape`, but the first argument may hold leaves of other types."""
    leaves, treedef = jax.tree.flatten(tree)

    # Leaves that are no arrays are not traced.
    def call(arrays: dict[int, chex.Array], *args: Any) -> Any:
        known = [arrays.get(i, x) for i, x in enumerate(leaves)]
        return function(jax.tree.unflatten(treedef, known), *args)

    return jax.eval_shape(call, {i: x for i, x in enumerate(leaves) if is_array(x)}, *args)


def on_numbers(function: Callable[[chex.Array], chex.Array], x: chex.Array) -> chex.Array:
    """Applies a function to an array, or to the numbers that random keys are made of."""
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return function(x)
    numbers = function(jax.random.key_data(x))
    return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(x))


def where(condition: chex.Array, new: Any, old: Any) -> Any:
    """Chooses between two pytrees, entry by entry of their leading axes.

    Args:
      condition: `[B]` bool, or with more axes, such as `[B, K]`, or with none.
      new: a pytree of arrays whose first axes are those of the condition; any axes may follow.
      old: a pytree of the same structure, shapes and types.

    Returns:
      A pytree like `new`, with the entries of `new` where the condition is true, else of `old`.
    """

    def choose(new: chex.Array, old: chex.Array) -> chex.Array:
        missing = jnp.ndim(new) - jnp.ndim(condition)
        return jnp.where(jnp.reshape(condition, jnp.shape(condition) + (1,) * missing), new, old)

    return jax.tree.map(choose, new, old)


def zeros(shape: tuple[int, ...], dtype: Any, like: chex.Array, axis: int = 0) -> chex.Array:
    """Returns zeros that are sharded over devices like the rows of another array.

    A loop over rows that `jax.shard_map` shards must start from arrays that are sharded too.

    Args:
      shape: the shape, B along `axis`.
      dtype: the type.
      like: `[B]` int32 zeros, one for each row, as `zero_rows` makes them.
      axis: the axis of the rows.
    """
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.zeros(shape, dtype)
    rows = like.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return jnp.broadcast_to(rows.astype(dtype), shape)


def zero_rows(x: chex.Array) -> chex.Array:
    """Returns `[B]` int32 zeros, sharded over devices like the rows of integers `[B, ...]`."""
    return jnp.sum(x, axis=tuple(range(1, x.ndim)), dtype=jnp.int32) * 0


def gathered(x: chex.Array) -> chex.Array:
    """Replicates an array on every device, if its mesh has explicit axes.

    For operations that JAX cannot do on sharded rows, such as drawing gammas by their keys.
    """
    sharding = jax.typeof(x).sharding
    if all(axis is None for axis in sharding.spec):
        return x
    return jax.sharding.reshard(x, sharding.update(spec=jax.sharding.PartitionSpec()))


def take(x: Any, index: chex.Array) -> Any:
    """Reads `[B, M, ...]` arrays at `[B, ...]` indices of their second axis."""
    # Every index is in range; by default JAX would check each index and fill where it is not.
    get = jax.vmap(lambda x, i: x.at[i].get(mode="promise_in_bounds"))
    return jax.tree.map(lambda leaf: get(leaf, index), x)


def mask_of(tree: Any, path: str | None) -> list[bool] | None:
    """Returns which leaves are below a path, without those of batch normalisation.

    Args:
      tree: any pytree with names, such as parameters of NNX or the variables of Linen.
      path: dotted names, such as "policy_head" or "policy_head.linear". They may begin anywhere in
        a leaf's own path. Numbers are indices into a sequence. None selects all leaves.

    Returns:
      A list in the order of `jax.tree.leaves`, None if no leaf has the path. Batch normalisation is
      recognised by its running `mean` and `var`, which are next to its other parameters in NNX and
      under the same names in another collection in Linen.
    """
    leaves = leaf_names(tree)
    if path is None:
        linen = any(names[:1] == ("batch_stats",) for names in leaves)
        leaves = [names[linen:] for names in leaves]  # without the collection's name
    # From the wanted names on, paths are the same in every collection of Linen.
    found = [_from(names, [] if path is None else path.split(".")) for names in leaves]
    if all(names is None for names in found):
        return None
    # A module with both a mean and a variance is batch normalisation.
    statistics = {names[:-1] for names in found if names and names[-1] in ("mean", "var")}
    normalised = {
        parent for parent in statistics if {(*parent, "mean"), (*parent, "var")} <= {*found}
    }
    return [names is not None and names[:-1] not in normalised for names in found]


def leaf_names(tree: Any) -> list[tuple[str, ...]]:
    """Returns the path of every leaf as names."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [tuple(jax.tree_util.keystr((key,), simple=True) for key in path) for path in paths]


def _from(names: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the part of a path from the wanted names on, None if they do not occur in it."""
    starts = range(len(names) - len(wanted) + 1)
    begin = next((i for i in starts if tuple(names[i : i + len(wanted)]) == tuple(wanted)), None)
    return None if begin is None else tuple(names[begin:])
