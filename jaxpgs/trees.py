"""Operations on pytrees of batched arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np


def is_array(x: Any) -> bool:
    """Tells an array, or its shape, from what else a pytree may hold, such as a function."""
    return isinstance(x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def is_weight(x: Any) -> bool:
    """Tells an array of real numbers, which may learn, from keys, counters and what is no array."""
    return is_array(x) and bool(jnp.issubdtype(x.dtype, jnp.inexact))


def stop_gradient(tree: Any) -> Any:
    """Returns a pytree through which no gradient flows; what is no array stays as it is."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if is_array(x) else x, tree)


def eval_shape(function: Callable[..., Any], tree: Any, *args: Any) -> Any:
    """Does what `jax.eval_shape` does, where the first argument may hold what is no array."""
    leaves, treedef = jax.tree.flatten(tree)

    # What is no array stays outside of what is traced.
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
    """Returns zeros that are spread over devices as the rows of another array are.

    A loop over rows that `jax.shard_map` shares out must start from arrays that are shared out too.

    Args:
      shape: the shape, B along `axis`.
      dtype: the type.
      like: `[B]` int32 zeros of the rows, such as `zero_rows` makes.
      axis: which axis counts the rows.
    """
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.zeros(shape, dtype)
    rows = like.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return jnp.broadcast_to(rows.astype(dtype), shape)


def zero_rows(x: chex.Array) -> chex.Array:
    """Returns `[B]` int32 zeros, spread over devices as the rows of integers `[B, ...]` are."""
    return jnp.sum(x, axis=tuple(range(1, x.ndim)), dtype=jnp.int32) * 0


def gathered(x: chex.Array) -> chex.Array:
    """Returns an array of which every device has all rows, where axes of a mesh are explicit.

    For what JAX cannot do to rows that lie apart, such as drawing gammas by their keys.
    """
    sharding = jax.typeof(x).sharding
    if all(axis is None for axis in sharding.spec):
        return x
    return jax.sharding.reshard(x, sharding.update(spec=jax.sharding.PartitionSpec()))


def take(x: Any, index: chex.Array) -> Any:
    """Reads `[B, M, ...]` arrays at `[B, ...]` places of their second axis."""
    # Every index is in range; by default JAX would check each and fill in what is not.
    get = jax.vmap(lambda x, i: x.at[i].get(mode="promise_in_bounds"))
    return jax.tree.map(lambda leaf: get(leaf, index), x)


def mask_of(tree: Any, path: str | None) -> list[bool] | None:
    """Tells which leaves lie under a path, but for those of batch normalisation.

    Args:
      tree: any pytree with names, such as parameters of NNX or the variables of Linen.
      path: names with dots between them, such as "policy_head" or "policy_head.linear". They may
        begin anywhere in a leaf's own path. Numbers stand for the places in a sequence. None is
        for all leaves.

    Returns:
      A list in the order of `jax.tree.leaves`, None if the path leads nowhere. Batch normalisation
      is recognised by its running `mean` and `var`, which stand beside its other parameters in NNX
      and under the same names in another collection in Linen.
    """
    leaves = leaf_names(tree)
    if path is None:
        linen = any(names[:1] == ("batch_stats",) for names in leaves)
        leaves = [names[linen:] for names in leaves]  # without the collection's name
    # What follows the path's beginning is the same in every collection of Linen.
    found = [_from(names, [] if path is None else path.split(".")) for names in leaves]
    if all(names is None for names in found):
        return None
    # Batch normalisation is what has both a mean and a variance below one name.
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
    """Returns a path from where the wanted names begin in it, None if they do not occur."""
    starts = range(len(names) - len(wanted) + 1)
    begin = next((i for i in starts if tuple(names[i : i + len(wanted)]) == tuple(wanted)), None)
    return None if begin is None else tuple(names[begin:])
