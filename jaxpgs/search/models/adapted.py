"""The parameters that adapt, and the copies of each root: selecting, splitting and merging."""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.base import Adapt, Params


def adapt_mask(params: Params, adapt: Adapt) -> list[bool]:
    """Resolves `adapt` to one boolean per leaf of `params`.

    Args:
      params: the network's parameters.
      adapt: a pytree of booleans with the structure of `params`; a predicate
        `(path, leaf) -> bool` with the path of `jax.tree_util`; names separated by dots, as in
        `networks.policy_head(path=...)`; or "everything", which leaves out batch normalisation.
        None adapts nothing. Of the selected leaves, only arrays of floats adapt; keys, counters,
        functions and Python numbers do not change.

    Returns:
      A list in the order of `jax.tree.leaves(params)`.

    Raises:
      ValueError: if the structures differ or if no leaf is chosen.
    """
    treedef: Any  # its class has no type annotations
    paths_and_leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    if adapt is None:
        return [False] * len(paths_and_leaves)
    if isinstance(adapt, str):
        mask = trees.mask_of(params, None if adapt == "everything" else adapt)
        # A name that does not occur selects nothing, which raises an error below.
        mask = mask or [False] * len(paths_and_leaves)
    elif callable(adapt):
        mask = [bool(adapt(path, leaf)) for path, leaf in paths_and_leaves]
    else:
        leaves, structure = jax.tree.flatten(adapt)
        if structure != treedef:
            raise ValueError(
                "adapt must have the structure of params, be a predicate (path, leaf) -> bool, a "
                "name such as 'policy_head', or 'everything'; "
                f"params is {treedef}, adapt is {structure}."
            )
        mask = [bool(leaf) for leaf in leaves]
    # Only floats have gradients: keys and counters do not change.
    mask = [
        adapts and trees.is_weight(leaf)
        for adapts, (_, leaf) in zip(mask, paths_and_leaves, strict=True)
    ]
    if not any(mask):
        names = [jax.tree_util.keystr(path) for path, x in paths_and_leaves if trees.is_weight(x)]
        named = f" {adapt!r}" * isinstance(adapt, str)
        raise ValueError(
            f"adapt{named} chooses none of the parameters; it may choose any of {names}."
        )
    return mask


def split(params: Params, mask: list[bool]) -> tuple[Params, Params]:
    """Splits `params` into chosen leaves and the others, with None in place of missing leaves."""
    leaves, treedef = jax.tree.flatten(params)
    pairs = list(zip(leaves, mask, strict=True))
    # None is an empty subtree to JAX, so maps and gradients skip the missing leaves.
    chosen = jax.tree.unflatten(treedef, [x if m else None for x, m in pairs])
    others = jax.tree.unflatten(treedef, [None if m else x for x, m in pairs])
    return chosen, others


def merge(chosen: Params, others: Params) -> Params:
    """Merges the two results of `split`."""
    # None counts as a leaf here, so that both trees have the same structure.
    return jax.tree.map(
        lambda a, b: b if a is None else a, chosen, others, is_leaf=lambda x: x is None
    )


def per_root(chosen: Params, batch_size: int) -> Params:
    """Gives every leaf a leading axis of `batch_size` equal copies."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch_size, *jnp.shape(x))), chosen)


def init_adapted(params: Params, adapt: Adapt, batch_size: int) -> Params:
    """Returns the network's own parameters as `adapted_params` of a first search.

    For loops that pass `search_state.params` from move to move and need an initial value of the
    same shape.

    Args:
      params: the network's parameters.
      adapt: which of them adapt, as in `pgs_search`.
      batch_size: B.

    Returns:
      A pytree like `params`: adapting leaves `[B, ...]`, None elsewhere.

    Raises:
      ValueError: if `adapt` does not fit `params` or chooses nothing.

    Example:
      >>> heads = jaxpgs.search.init_adapted(params, "policy_head", batch_size=2)
      >>> heads["policy_head"]["linear"]["kernel"].shape, heads["value_head"]["linear"]["kernel"]
      ((2, 8, 9), None)
    """
    return per_root(split(params, adapt_mask(params, adapt))[0], batch_size)


def base_params_like(shapes: Params, params: Params) -> Params:
    """Returns the network's own parameters, one copy per root, as input of a search.

    Args:
      shapes: the shapes of its `search_state.params` (`jax.eval_shape`), None where nothing adapts.
      params: the network's parameters.

    Example:
      >>> heads = jaxpgs.search.base_params_like(output.search_state.params, params)
      >>> heads["policy_head"]["linear"]["kernel"].shape
      (2, 8, 9)
    """
    return jax.tree.map(
        lambda shape, own: None if shape is None else jnp.broadcast_to(own, shape.shape),
        shapes,
        params,
        is_leaf=lambda x: x is None,
    )


def check_like(adapted_params: Params, expected: Params) -> None:
    """Raises `ValueError` unless the two agree in structure, shapes and dtypes."""
    paths_and_leaves, got = jax.tree_util.tree_flatten_with_path(adapted_params)
    likes, want = jax.tree.flatten(expected)
    if want != got:  # type: ignore[operator]
        raise ValueError(
            "adapted_params must have a leaf for each parameter that adapts and None elsewhere; "
            f"expected {want}, got {got}."
        )
    for (path, leaf), like in zip(paths_and_leaves, likes, strict=True):
        if (jnp.shape(leaf), leaf.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"adapted_params{jax.tree_util.keystr(path)} must be {like.dtype}"
                f"{list(like.shape)}, one per root; got {leaf.dtype}{list(jnp.shape(leaf))}."
            )


def reset_adapted(adapted_params: Params, params: Params, done: chex.Array) -> Params:
    """Resets adapted parameters to the network's own where a game has ended.

    Anthony et al. (2019, section 3) reset the simulation policy at the start of each game; in a
    batch of games this is done for each root.

    Args:
      adapted_params: `search_state.params` of the last search, adapted leaves `[B, ...]`.
      params: the network's parameters.
      done: `[B]` bool, True where the next search belongs to a new game.

    Returns:
      A pytree like `adapted_params`.

    Example:
      >>> done = jnp.array([True, False])
      >>> heads = jaxpgs.search.reset_adapted(output.search_state.params, params, done)
    """

    def reset(adapted: chex.Array | None, own: chex.Array) -> chex.Array | None:
        if adapted is None:
            return None
        return jnp.where(done.reshape(-1, *[1] * (adapted.ndim - 1)), own, adapted)

    return jax.tree.map(reset, adapted_params, params, is_leaf=lambda x: x is None)
