"""The model as a search uses it: which parameters adapt, what is checked, and how it is called.

`make_model` does all of this once, when a search is traced.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.arrays import as_logits, as_values
from jaxpgs.base import Adapt, Embedding, Expansion, Params, RecurrentFn, SplitRecurrentFn
from jaxpgs.search.models.adapted import adapt_mask, merge, split
from jaxpgs.search.models.cut import cut_model
from jaxpgs.search.models.dataflow import depends, tells_rows


class Keys(NamedTuple):
    """The keys for the network calls of a step.

    Attributes:
      roots: `[B]` keys.
      shared: one key for all roots; None if each root has its own.
    """

    roots: chex.PRNGKey
    shared: chex.PRNGKey | None

    def fold_in(self, number: chex.Array) -> "Keys":
        """Returns the keys of a step or an update."""
        roots = jax.vmap(lambda key: jax.random.fold_in(key, number))(self.roots)
        shared = self.shared
        return Keys(roots, None if shared is None else jax.random.fold_in(shared, number))


class Model(NamedTuple):
    """A model with checked shapes and finite numbers.

    Attributes:
      expand: `(keys, action [B, K], embedding [B, K, ...]) -> (Expansion, embedding)`: evaluates
        new states with the network's own parameters, except for the policy.
      policy: `(adapted, features [B, R, ...], embedding [B, R, ...]) -> logits [B, R, A]`.
      prior: `(features, embedding) -> logits`: the same with the network's own parameters.
      whole: if the model is not split, `(adapted, keys, action, embedding) -> (Expansion,
        embedding)`, with logits as features; otherwise None.
      features: shapes `[B, ...]` of the inputs of the policy; of logits if nothing adapts.
      num_actions: A.
      dtype: the type of the statistics.
    """

    expand: Callable[..., tuple[Expansion, Embedding]]
    policy: Callable[..., chex.Array]
    prior: Callable[..., chex.Array]
    whole: Any
    features: Any
    num_actions: int
    dtype: Any


def make_model(
    recurrent_fn: RecurrentFn,
    params: Params,
    adapt: Adapt,
    embedding: Embedding,
    logits: chex.Array,
    dtype: Any,
    mode: str | None,
    reuse: bool,
    rng_keys: chex.PRNGKey,
) -> Model:
    """Prepares the model of a search.

    Args:
      recurrent_fn: the model.
      params: the network's parameters.
      adapt: which of them adapt.
      embedding: `[B, ...]` the roots' states.
      logits: `[B, A]` the roots' logits; only their shape and device layout are used.
      dtype: the type of the statistics.
      mode: the mode of the search.
      reuse: whether the search learns from simulations of earlier updates.
      rng_keys: keys like those that the model will be given; only their kind is used.

    Raises:
      ValueError: if the model's results do not fit, or a tree is required and the model cannot be
        split into a part that is remembered and a part that adapts.
    """
    if not callable(recurrent_fn):
        raise ValueError(f"recurrent_fn must be a function, got {type(recurrent_fn).__name__}.")
    num_actions = logits.shape[1]
    mask = adapt_mask(params, adapt)
    recurrent_fn, params, mask = _of_arrays(recurrent_fn, params, mask)
    own, frozen = split(params, mask)
    check = functools.partial(_check, embedding, dtype)
    key, action = _any_key_like(rng_keys), trees.zero_rows(logits > 0)

    def evaluate(params: Params, *inputs: Any) -> tuple[Expansion, Embedding]:
        output, after = _two_things(recurrent_fn(params, *inputs))
        _check_shape("prior_logits", output.prior_logits, (inputs[1].shape[0], num_actions))
        check_logits("recurrent_fn", output.prior_logits)
        logits = jnp.asarray(output.prior_logits)
        # A logit of -inf is valid: many models mark illegal actions like this.
        finite = jnp.all(jnp.isfinite(logits) | jnp.isneginf(logits), axis=-1)
        found = output.reward, output.discount, output.value, as_logits(logits, dtype), finite
        return check(inputs[1], Expansion(*found), after)

    # Traces the model, so at most once, and only if the model is called root by root.
    tells = functools.cache(
        lambda: _tells_roots(recurrent_fn, evaluate, params, key, action, embedding)
    )
    in_rows = functools.partial(_call_in_rows, getattr(recurrent_fn, "max_batch", None), tells)

    expand = functools.partial(in_rows, functools.partial(evaluate, params))
    plain = Model(
        expand=expand,
        policy=lambda adapted, *state: _features_are_logits(*state),
        prior=_features_are_logits,
        whole=None,
        features=jax.ShapeDtypeStruct(logits.shape, dtype),
        num_actions=num_actions,
        dtype=dtype,
    )
    if not any(mask):
        return plain
    found: Any = recurrent_fn
    if not isinstance(found, SplitRecurrentFn):
        found = cut_model(recurrent_fn, params, mask, key, action, embedding)
    # If the cut failed, the result is the reason.
    reason = found
    if isinstance(found, SplitRecurrentFn):
        reason = _what_is_remembered(found, params, mask, key, action, embedding)
    # A model that cannot be split is called as a whole, with each root's own parameters.
    if reason:
        # Trace the model first: if it is invalid itself, its error is raised and not the warning.
        made = _in_one(plain, evaluate, params, (own, frozen), tells, (key, action, embedding))
        _tell(reason, mode, reuse)
        return made
    if isinstance(recurrent_fn, SplitRecurrentFn):
        _check_policy(found, params, key, action, embedding)
    return _in_two(plain, found, params, frozen, check, in_rows, (key, action, embedding))


def _features_are_logits(features: Any, embedding: Embedding) -> chex.Array:
    """The policy of a model in which nothing adapts: its logits are remembered."""
    del embedding
    return features


def _two_things(told: Any) -> tuple[Any, Embedding]:
    """Returns a model's result; raises `ValueError` if it is not an output and an embedding."""
    if not isinstance(told, tuple) or len(told) != 2 or not hasattr(told[0], "prior_logits"):
        raise ValueError(
            "recurrent_fn must return two things, a mctx.RecurrentFnOutput and the embedding "
            f"of the next states; got {jax.tree.map(jnp.shape, told)!r}."
        )
    return told


def _any_key_like(rng_keys: chex.PRNGKey) -> chex.PRNGKey:
    """Returns one key of the same kind, typed or raw, to trace a model with."""
    if jnp.issubdtype(rng_keys.dtype, jax.dtypes.prng_key):
        return jax.random.key(0, impl=jax.random.key_impl(rng_keys))
    return jnp.zeros(rng_keys.shape[1:], rng_keys.dtype)


def _check_policy(found: SplitRecurrentFn, params: Params, *inputs: Any) -> None:
    """Raises `ValueError` for a user's `policy` that depends on the positions of its rows."""
    expansion, after = jax.eval_shape(found.expand, params, *inputs)
    if tells_rows(found.policy, (params,), expansion.features, after):
        raise ValueError(
            "SplitRecurrentFn.policy must not depend on the position of a row, since its rows are "
            "any states of any root. Let expand return as features what depends on the root."
        )


def _of_arrays(
    recurrent_fn: RecurrentFn, params: Params, mask: list[bool]
) -> tuple[RecurrentFn, Params, list[bool]]:
    """Returns a model that takes only those of its parameters that are arrays."""
    is_array = [trees.is_array(x) for x in jax.tree.leaves(params)]
    if all(is_array):
        return recurrent_fn, params, mask
    # Transformations of JAX take arrays only, so the others are closed over.
    arrays, others = split(params, is_array)

    def closed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda arrays, *inputs: function(merge(arrays, others), *inputs)

    if isinstance(recurrent_fn, SplitRecurrentFn):
        recurrent_fn = dataclasses.replace(
            recurrent_fn, expand=closed(recurrent_fn.expand), policy=closed(recurrent_fn.policy)
        )
    else:
        recurrent_fn = closed(recurrent_fn)
    return recurrent_fn, arrays, [adapts for adapts, x in zip(mask, is_array, strict=True) if x]


def _in_two(
    plain: Model,
    split_fn: SplitRecurrentFn,
    params: Params,
    frozen: Params,
    check: Callable[..., tuple[Expansion, Embedding]],
    in_rows: Callable[..., Any],
    inputs: tuple[Any, ...],
) -> Model:
    """A model whose first part is remembered and whose second part adapts."""

    def torso(*inputs: Any) -> tuple[Expansion, Embedding]:
        return check(inputs[1], *split_fn.expand(params, *inputs))

    def head(params: Params, features: Any, embedding: Embedding) -> chex.Array:
        logits = split_fn.policy(params, features, embedding)
        num_rows = next(
            (x.shape[0] for x in jax.tree.leaves((features, embedding))), logits.shape[0]
        )
        _check_shape("prior_logits", logits, (num_rows, plain.num_actions))
        check_logits("recurrent_fn", logits)
        return as_logits(logits, plain.dtype)

    def policy(adapted: Params, *state: Any) -> chex.Array:
        # [B, R, ...]: each root applies its own parameters to its R states.
        apply = jax.vmap(lambda own, *state: head(merge(own, frozen), *state))
        return apply(adapted, *state)

    return plain._replace(
        features=jax.eval_shape(torso, *inputs)[0].features,
        expand=functools.partial(in_rows, torso),
        policy=policy,
        prior=lambda *state: jax.vmap(functools.partial(head, params))(*state),
    )


def _tell(reason: str, mode: str | None, reuse: bool) -> None:
    """Tells the user why there is no tree, if one was requested, is expected, or is needed."""
    if reuse:
        raise ValueError(
            "reuse needs a model that can be split into a part that is remembered and a part that "
            f"adapts, but {reason}."
        )
    if mode == "tree":
        raise ValueError(
            'mode="tree" needs a model that can be split into a part that is remembered and a part '
            f'that adapts, but {reason}. Use mode="rollouts".'
        )
    if mode is None:
        warnings.warn(
            f'The search uses mode="rollouts", which remembers no state, because {reason}. Give '
            'mode="rollouts" to avoid this warning.',
            stacklevel=2,
        )


def _in_one(
    plain: Model,
    evaluate: Callable[..., tuple[Expansion, Embedding]],
    params: Params,
    parts: tuple[Params, Params],
    tells: Callable[[], bool],
    inputs: tuple[Any, ...],
) -> Model:
    """A model in which parameters adapt, so that each root calls it with its own parameters."""
    own, frozen = parts

    def call(own: Params, *inputs: Any) -> tuple[Expansion, Embedding]:
        return evaluate(merge(own, frozen), *inputs)

    adapts = any(depends(lambda *data: call(*data)[0][:3], own, *inputs))

    def expand(*inputs: Any) -> tuple[Expansion, Embedding]:
        return _call_by_root(tells, lambda _, *inputs: evaluate(params, *inputs), (), *inputs)

    def whole(adapted: Params, *inputs: Any) -> tuple[Expansion, Embedding]:
        expansion, after = _call_by_root(tells, call, adapted, *inputs)
        if adapts:
            # Values and rewards are those of the network itself (Anthony et al. 2019, section 3:
            # its global value network). States are not, since they may hold sampled actions.
            expansion = expand(*inputs)[0]._replace(features=expansion.features)
        return expansion, after

    return plain._replace(expand=expand, whole=whole)


def _tells_roots(
    recurrent_fn: RecurrentFn,
    evaluate: Callable[..., Any],
    params: Params,
    key: chex.PRNGKey,
    action: chex.Array,
    embedding: Embedding,
) -> bool:
    """Tells whether a model needs the rows of all roots, to tell them apart by their positions."""
    if action.shape[0] == 1:
        return False
    tells = tells_rows(recurrent_fn, (params, key), action, embedding)
    if not tells:
        shape = lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)  # noqa: E731
        # A model that cannot be traced for a single row needs all rows.
        try:
            one = jax.tree.map(shape, (action, embedding))
            jax.eval_shape(functools.partial(evaluate, params), key, *one)
        except Exception:  # whatever the model may raise
            tells = True
    if tells:
        warnings.warn(
            "The model needs one row for each root, or its results depend on the position of a "
            "row. As each root has its own key or adapted parameters, every simulation takes a "
            "call with all B rows, which is B times the work. Keep what depends on the root in the "
            "embedding, or give the search a single key and adapt fewer parameters.",
            stacklevel=2,
        )
    return tells


def _call_by_root(
    tells: Callable[[], bool],
    function: Callable[..., Any],
    own: Any,
    keys: Keys,
    action: chex.Array,
    embedding: Embedding,
) -> Any:
    """Calls a model for each simulation, with a key and the root's own arrays.

    Args:
      tells: whether it needs the rows of all roots, of which only one is used.
      function: `(own, key, action [R], embedding [R, ...])`.
      own: a pytree of arrays `[B, ...]`, one row for each root.
      keys: the keys of the step.
      action: `[B, K]`.
      embedding: `[B, K, ...]`.
    """
    each = jax.vmap(lambda key: jax.random.split(key, action.shape[1]))(keys.roots)
    if not tells():

        def one(own: Any, key: chex.PRNGKey, *row: Any) -> Any:
            # A model takes rows, so a state is passed as a batch of one.
            found = function(own, key, *jax.tree.map(lambda x: x[None], row))
            return jax.tree.map(lambda x: x[0], found)

        return jax.vmap(jax.vmap(one, (None, 0, 0, 0)))(own, each, action, embedding)

    def among(own: Any, root: chex.Array, key: chex.PRNGKey, *rows: Any) -> Any:
        return jax.tree.map(lambda x: x[root], function(own, key, *rows))

    # The inner map is over the K simulations, the outer one over roots: each call has the rows of
    # all B roots, and only that of `root` is used.
    calls = jax.vmap(among, (None, None, 0, 1, 1))
    return jax.vmap(calls, (0, 0, 0, None, None))(
        own, jnp.arange(action.shape[0]), each, action, embedding
    )


def _call_in_rows(
    max_batch: int | None,
    tells: Callable[[], bool],
    function: Callable[..., Any],
    keys: Keys,
    action: chex.Array,
    embedding: Embedding,
) -> Any:
    """Calls a model for K simulations of B roots: as mctx does, with B rows, once for each of K.

    If each root has its own key, the model is called with K rows of one root, since a root's random
    draws must not depend on the other roots; except if it tells the roots apart by their positions.
    A model with `max_batch` declares that its rows may be grouped in any way.
    """
    batch_size, num_walks = action.shape
    if max_batch is not None and batch_size * num_walks > max_batch:
        # Whole roots at a time, each with its K states and its key.
        at_once = max(max_batch // num_walks, 1)
        inputs = (keys.roots, action, embedding)
        if at_once >= batch_size:
            return jax.vmap(function)(*inputs)
        return jax.lax.map(lambda row: function(*row), inputs, batch_size=at_once)
    if keys.shared is None and tells():
        alone = lambda _, *inputs: function(*inputs)  # noqa: E731
        return _call_by_root(tells, alone, (), keys, action, embedding)
    if keys.shared is None:
        return jax.vmap(function)(keys.roots, action, embedding)
    # A key for each of the K calls, which is shared by the B rows of a call, as in mctx.
    each = jax.random.split(keys.shared, num_walks)
    like: list[Any] = []  # only shapes: a traced array must not outlive its call

    def call(*inputs: Any) -> Any:
        output = function(*inputs)
        like.append(jax.tree.map(jax.typeof, output))
        # In the layout in which they are stored; a TPU would otherwise change that of images.
        return jax.tree.map(lambda x: x.reshape(batch_size, -1), output)

    rows = jax.vmap(call, (0, 1, 1), 1)(each, action, embedding)
    return jax.tree.map(lambda x, y: x.reshape(*action.shape, *y.shape[1:]), rows, like[0])


def _check(
    like: Embedding,
    dtype: Any,
    action: chex.Array,
    expansion: Expansion,
    embedding: Embedding,
) -> tuple[Expansion, Embedding]:
    """Checks a model's results, as mctx does, and replaces numbers that are not finite."""
    num_rows = action.shape[0]
    for name in ("reward", "discount", "value"):
        _check_shape(name, getattr(expansion, name), (num_rows,))
    if jax.tree.structure(embedding) != jax.tree.structure(like):  # type: ignore[operator]
        raise ValueError(
            "recurrent_fn must return an embedding of the root's structure; expected "
            f"{jax.tree.structure(like)}, got {jax.tree.structure(embedding)}."
        )
    paths_and_leaves, treedef = jax.tree_util.tree_flatten_with_path(embedding)
    cast = []
    for (path, leaf), old in zip(paths_and_leaves, jax.tree.leaves(like), strict=True):
        name = "embedding" + jax.tree_util.keystr(path)
        _check_shape(name, leaf, (num_rows, *jnp.shape(old)[1:]))
        cast.append(_cast(name, leaf, jnp.asarray(old).dtype))
    reward, discount, value = (jnp.isfinite(x) for x in expansion[:3])
    if expansion.finite is not None:
        # Logits count like the value: after the end of the episode neither matters.
        value &= expansion.finite
    over = jnp.asarray(expansion.discount) == 0  # after the end a model may return anything
    finite = reward & discount & (value | over)
    names = ("reward", "discount", "value")
    told = {name: as_values(getattr(expansion, name), dtype) for name in names}
    expansion = expansion._replace(finite=finite, **told)
    return expansion, jax.tree.unflatten(treedef, cast)


def _check_shape(name: str, found: Any, wanted: tuple[int, ...]) -> None:
    got = jnp.shape(found)
    if got != wanted:
        raise ValueError(
            f"recurrent_fn must return {name} of shape {list(wanted)}, a row for each action that "
            f"it is given; got {list(got)}."
        )


def check_logits(owner: str, logits: chex.Array) -> None:
    """Raises `ValueError` for logits that are not floats, such as a mask of actions."""
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise ValueError(
            f"{owner} must have prior_logits of a float type, log-probabilities up to a constant; "
            f"got {logits.dtype}."
        )


def _cast(name: str, x: Any, dtype: Any) -> chex.Array:
    """Casts a state to the root's type, as mctx does; rejects casts that lose information."""
    x = jnp.asarray(x)
    if x.dtype == dtype:
        return x
    # Integers may become floats, but not the other way around, and keys are not numbers.
    kinds = [jnp.issubdtype(t, jnp.inexact) for t in (x.dtype, dtype)]
    is_key = any(jnp.issubdtype(t, jax.dtypes.prng_key) for t in (x.dtype, dtype))
    if is_key or kinds == [True, False]:
        raise ValueError(
            f"recurrent_fn must return {name} of the root's type {dtype}; got {x.dtype}."
        )
    return x.astype(dtype)


def _what_is_remembered(
    split_fn: SplitRecurrentFn, params: Params, mask: list[bool], *inputs: Any
) -> str:
    """Names the adapting parameters that the remembered part depends on; empty if none."""

    def remembers(mask: list[bool]) -> bool:
        own, frozen = split(params, mask)
        evaluate = lambda own, *inputs: split_fn.expand(merge(own, frozen), *inputs)  # noqa: E731
        return any(depends(evaluate, own, *inputs))

    if not remembers(mask):
        return ""
    names = [".".join(name) for name in trees.leaf_names(params)]
    # Each parameter alone, to name those that cause the problem.
    alone = [[k == i for k in range(len(mask))] for i in range(len(mask)) if mask[i]]
    some = [names[one.index(True)] for one in alone if remembers(one)][:5]
    return (
        "the part that would be remembered, all but the last part of the policy, depends on "
        f"{some}, which adapt, and perhaps on others. Adapt fewer parameters, such as "
        'adapt="policy_head" or "policy_head.linear"'
    )
