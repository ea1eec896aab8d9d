"""Finds where a model can be cut, so that a search can remember its first part and adapt the rest.

A model of mctx is one function. Its jaxpr shows which of its values depend on the parameters that
adapt. The other values that vary with the state do not change when parameters adapt, so they are
computed once for each state. Those of them that the policy uses, the border, are its features.

Values that depend only on a row's position, such as arrays in a closure with a row for each root,
are remembered, too, since the policy is evaluated for states in any order.

The axis of a value that counts the states is found by tracing the model for 2 and for 3 states. The
programs are traced again for each number of states and must be alike, so a value is identified by
its position in the program.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from jaxpgs import trees
from jaxpgs.base import Embedding, Expansion, Params, RecurrentFn, SplitRecurrentFn
from jaxpgs.search.models.dataflow import (
    ADAPTS,
    FROZEN,
    STATE,
    TRANSPARENT,
    Atom,
    Program,
    are_alike,
    body_of,
    closed_jaxpr,
    flow,
    is_mutable,
    positions_of,
    resized,
    trace_program,
    union,
)

# The operations that use the weights of a network.
_PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot_general", "scaled_dot"}
_PRODUCTS |= {"pallas_call", "ffi_call", "cudnn_fusion", "dot_product_attention_fwd_wrapper"}
# Operations so cheap that they are repeated for each policy evaluation if their inputs take less
# memory than their results.
_CHEAP = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p"}
_CHEAP |= {"convert_element_type", "select_n", "stop_gradient", "and", "or", "xor", "not"}
_CHEAP |= {"eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "neg", "max", "min"}


class _Cut(NamedTuple):
    """Where a model is cut; variables are given by their positions in a program.

    Attributes:
      border: the positions of the features.
      axes: for each feature, the axis that counts the states.
      free: the positions of values that are leaves of the embedding anyway, with the leaf's index.
    """

    border: list[int]
    axes: list[int]
    free: dict[int, int]


def cut_model(
    recurrent_fn: RecurrentFn,
    params: Params,
    mask: Sequence[bool],
    rng_key: chex.PRNGKey,
    action: chex.Array,
    embedding: Embedding,
    *,
    max_features: int | None = None,
) -> SplitRecurrentFn | str:
    """Cuts a model in two: the part that does not depend on adapting parameters, and its policy.

    Nothing is run; only the shapes of the arguments are used.

    Args:
      recurrent_fn: the model, for any number of states. The rows of its results must correspond to
        the rows of its arguments.
      params: its parameters.
      mask: which of `jax.tree.leaves(params)` adapt.
      rng_key: one key.
      action: `[B]`.
      embedding: a pytree of arrays `[B, ...]`.
      max_features: the largest size in bytes of a state's features; None is four times that of its
        embedding and logits, or 64 KiB if that is more.

    Returns:
      The two parts, where `expand` returns a tuple of arrays `[B, ...]` as features; or a sentence
      that says why the model cannot be cut. The parts raise `ValueError` for a number of states for
      which the model's program is different.
    """
    given = (params, rng_key, action, embedding)
    leaves = jax.tree.leaves(given)
    if any(_is_explicit(jax.typeof(x)) for x in leaves):
        return "its arguments have axes that are sharded over a mesh of devices"
    varies = any(_varies(jax.typeof(x)) for x in leaves)
    # If arrays vary over devices, the arguments of each part are made to vary as well.
    vary = functools.partial(_vary, mask) if varies else lambda like, *args: args
    shapes = vary(action, *given) if varies else jax.eval_shape(lambda *args: args, *given)
    programs: dict[int, Program] = {}

    def at(size: int) -> Program:
        if size not in programs:
            programs[size] = trace_program(_in_order(recurrent_fn), mask, resized(shapes, size))
        return programs[size]

    # Two sizes show which axes count the states; the third size is that of the search.
    for size in (2, 3, shapes[2].shape[0]):
        try:
            at(size)
        except Exception as error:  # whatever the model may raise
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            return f"the model cannot be traced for {size} states: {first_line}"
        # A program for one state may lack steps; then the program for two is run with it twice.
        if size != 1 and not are_alike(at(2), at(size)):
            return f"the model's program for {size} states differs from that for 2"
    cut = _find_cut(at(2), at(3), max_features)
    return cut if isinstance(cut, str) else _make_parts(at, cut, recurrent_fn, vary)


def _make_parts(
    at: Callable[[int], Program],
    cut: _Cut,
    recurrent_fn: RecurrentFn,
    vary: Callable[..., tuple[Any, ...]],
) -> SplitRecurrentFn:
    """Makes both parts of a model from its programs for any number of states."""

    def fitting(size: int) -> tuple[Program, bool]:
        """Returns a program for `size` states, and whether it needs the single state twice."""
        if are_alike(at(2), at(size)):
            return at(size), False
        if size != 1:
            raise ValueError(f"The model's program for {size} states differs from that for 2.")
        # With one row broadcasts may be missing, but not in the program for two rows.
        return at(2), True

    def expand(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[Expansion, Embedding]:
        program, twice = fitting(action.shape[0])
        params, rng_key = vary(action, params, rng_key)
        if twice:
            action, embedding = jax.tree.map(_twice, (action, embedding))
        values = list(program.places)
        features = [values[place] for place in cut.border]
        # This part runs once for each state, so it has the model's effects, such as prints.
        run = _part(program, program.inputs, [*program.outputs, *features], effects=True)
        results = run(*jax.tree.leaves((params, rng_key, action, embedding)))
        num_outputs = len(program.outputs)
        moved = tuple(
            jnp.moveaxis(x, axis, 0)
            for x, axis in zip(results[num_outputs:], cut.axes, strict=True)
        )
        (reward, discount, value, _), after = jax.tree.unflatten(
            program.structure, results[:num_outputs]
        )
        outputs = Expansion(reward, discount, value, moved), after
        return jax.tree.map(lambda x: x[:1], outputs) if twice else outputs

    def policy(params: Params, features: Any, embedding: Embedding) -> chex.Array:
        leaves = jax.tree.leaves(embedding)
        rows = [leaves[leaf] for leaf in cut.free.values()]
        size = (*features, *rows, *leaves)[0].shape[0]
        program, twice = fitting(size)
        if twice:
            features, rows = jax.tree.map(_twice, (features, rows))
        # In memory the axis of states is first; in the program it is where the model has it.
        moved = [jnp.moveaxis(x, 0, axis) for x, axis in zip(features, cut.axes, strict=True)]
        values = list(program.places)
        known = [values[place] for place in (*cut.border, *cut.free)]
        (params,) = vary((*features, *rows, *leaves)[0], params)
        weights = jax.tree.leaves(params)
        run = _part(program, program.inputs[: len(weights)] + known, program.outputs[_LOGITS:][:1])
        (logits,) = run(*weights, *moved, *rows)
        return logits[:1] if twice else logits

    return SplitRecurrentFn(expand, policy, getattr(recurrent_fn, "max_batch", None))


_LOGITS = 3  # their index among the outputs of `trace_program`


def _is_explicit(aval: Any) -> bool:
    """Tells whether a type has an explicit sharding, which may be invalid for other sizes."""
    return any(axis is not None for axis in aval.sharding.spec)


def _varies(aval: Any) -> bool:
    """Tells whether an array varies over devices inside of `jax.shard_map`."""
    # Earlier and later versions of JAX have different names.
    kind = getattr(aval, "manual_axis_type", aval)
    return bool(getattr(kind, "varying", None) or getattr(kind, "vma", None))


def _vary(mask: Sequence[bool], like: Any, params: Params, *rest: Any) -> tuple[Any, ...]:
    """Returns arguments whose adapting parameters and key vary over devices as other rows do."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        like = jax.random.key_data(like)
    # This adds 0, but marks keys and adapting parameters as different on each device.
    zero = trees.zero_rows(like != like)[0]
    leaves, treedef = jax.tree.flatten(params)
    leaves = [x + zero.astype(x.dtype) if m else x for x, m in zip(leaves, mask, strict=True)]
    keys = [trees.on_numbers(lambda x: x + zero.astype(x.dtype), key) for key in rest[:1]]
    return jax.tree.unflatten(treedef, leaves), *keys, *rest[1:]


def _twice(x: chex.Array) -> chex.Array:
    return jnp.concatenate([x, x])


def _in_order(recurrent_fn: RecurrentFn) -> Callable[..., Any]:
    """Returns a model whose results are ordered: reward, discount, value, logits, embedding."""

    def function(*args: Any) -> Any:
        output, after = recurrent_fn(*args)
        return (output.reward, output.discount, output.value, output.prior_logits), after

    return function


def _remark(program: Program, found: set[Var]) -> None:
    """Marks values, and everything computed from them, as if they depended on the states."""
    program.marks.update((x, program.marks[x] | STATE) for x in found)
    for eqn in program.eqns if found else ():
        marks = [0 if isinstance(x, Literal) else program.marks[x] for x in eqn.invars]
        for x, mark in zip(eqn.outvars, flow(eqn, marks), strict=True):
            program.marks[x] |= mark


def _find_cut(two: Program, three: Program, max_features: int | None) -> _Cut | str:
    """Finds where to cut a model, given its programs for two states and for three."""
    # Values that depend on a row's position are remembered as if they depended on the state.
    _remark(two, positions_of(two, three))
    after = two.outputs[_LOGITS + 1 :]
    if any(two.marks.get(x, 0) & ADAPTS for x in after if isinstance(x, Var)):
        return "the embedding that the model returns depends on the parameters that adapt"
    if any(is_mutable(x) or _is_explicit(x.aval) for x in two.places):
        return "the model has mutable arrays, or axes that a mesh of devices shares out"
    axes = {x: _row_axis(x, y) for x, y in zip(two.places, three.places, strict=True)}
    sizes = {x: _row_bytes(x, axis) for x, axis in axes.items()}
    # A search keeps the embedding anyway, so its leaves do not have to be features.
    leaves = {x: i for i, x in enumerate(after) if isinstance(x, Var)}
    free = {x: i for x, i in leaves.items() if axes[x] == 0 and two.marks[x] & STATE}
    # It keeps them in the root's types; the policy must read what the model computed.
    given = two.inputs[len(two.inputs) - len(after) :]
    free = {x: i for x, i in free.items() if _dtype(x) == _dtype(given[i])}
    border = _border(two, sizes, free)
    for x in border:
        if math.isinf(sizes[x]):
            makers = [eqn.primitive.name for eqn in two.eqns if x in eqn.outvars]
            return (
                f"its policy depends on the state by {x.aval} of {(*makers, 'an argument')[0]} for "
                "two states, which has no axis that counts them, or a type that is not of numbers"
            )
    # If the first part has no matrix product of the network, remembering it would save nothing.
    evaluated = _needed(two, [], [*border, *two.outputs[:_LOGITS], *after])
    if not any(_multiplies(eqn) and _is_torso(two, eqn) for eqn in evaluated):
        return "nothing of the network is independent of the parameters that adapt"
    num_bytes = sum(int(sizes[x]) for x in border)
    if max_features is None:
        # A search keeps the embedding and a few arrays `[A]` of each state anyway. Several times as
        # much would take too much memory, except if it is little: torsos of small games have some
        # hundred filters on every cell.
        kept = [size for x, size in sizes.items() if x in [*after, two.outputs[_LOGITS]]]
        max_features = max(4 * int(sum(size for size in kept if size < math.inf)), 64 * 1024)
    if num_bytes > max_features:
        return f"its policy needs {num_bytes} bytes of each state, above {max_features}"
    return _Cut(
        [two.places[x] for x in border],
        [int(axes[x] or 0) for x in border],
        {two.places[x]: i for x, i in free.items()},
    )


def _row_axis(two: Atom, three: Atom) -> int | None:
    """Returns the axis in which a value differs between two and three states, if there is one."""
    pairs = list(zip(two.aval.shape, three.aval.shape, strict=True))
    axes = [i for i, (m, n) in enumerate(pairs) if m != n]
    return axes[0] if len(axes) == 1 and pairs[axes[0]] == (2, 3) else None


def _dtype(x: Atom) -> Any:
    return x.aval.dtype


def _row_bytes(two: Atom, axis: int | None) -> float:
    """Returns the bytes of a value per state, inf if it cannot be kept."""
    dtype = _dtype(two)
    if axis is None or jnp.issubdtype(dtype, jax.dtypes.extended) or dtype == jax.dtypes.float0:
        return math.inf
    return math.prod(two.aval.shape) // 2 * dtype.itemsize


def _border(program: Program, sizes: dict[Var, float], free: dict[Var, int]) -> list[Var]:
    """Returns the inputs that the policy needs besides parameters and free values."""
    cost = sizes | dict.fromkeys(free, 0.0)
    kept = {x for x, mark in program.marks.items() if mark & STATE and not mark & ADAPTS}
    for eqn in program.eqns:
        # If a value is cheap to compute from fewer bytes, keep its operands instead.
        if _is_cheap(eqn) and eqn.outvars[0] in kept:
            operands = {x for x in eqn.invars if isinstance(x, Var) and program.marks[x] & STATE}
            again = sum(cost[x] for x in operands)
            if again < cost[eqn.outvars[0]]:
                cost[eqn.outvars[0]] = again
                kept.remove(eqn.outvars[0])
    # Go back from the logits until kept values are reached: these are the border.
    wanted = set(filter(lambda x: isinstance(x, Var), program.outputs[_LOGITS:][:1]))
    for eqn in reversed(program.eqns):
        if any(x in wanted and x not in kept for x in eqn.outvars):
            wanted.update(x for x in eqn.invars if isinstance(x, Var))
    return [x for x in program.places if x in wanted and x in kept and x not in free]


def _is_cheap(eqn: JaxprEqn) -> bool:
    """Tells whether an equation costs next to nothing, such as `jnp.where`, which is a call."""
    body = body_of(eqn) if eqn.primitive.name in TRANSPARENT else None
    inner = [] if body is None else body.jaxpr.eqns
    cheap = eqn.primitive.name in _CHEAP or (body is not None and all(map(_is_cheap, inner)))
    return cheap and len(eqn.outvars) == 1


def _is_torso(program: Program, eqn: JaxprEqn) -> bool:
    """Tells whether an equation combines frozen parameters of the network with the state."""
    mark = union([program.marks[x] for x in eqn.outvars])
    return mark == STATE | FROZEN


def _multiplies(eqn: JaxprEqn) -> bool:
    """Tells whether an equation contains a matrix product or a convolution."""
    parts = [x for value in eqn.params.values() for x in jax.tree.leaves(value)]
    inner = [closed_jaxpr(x).jaxpr for x in parts if isinstance(x, Jaxpr | ClosedJaxpr)]
    return eqn.primitive.name in _PRODUCTS or any(
        _multiplies(each) for jaxpr in inner for each in jaxpr.eqns
    )


def _needed(
    program: Program, inputs: Sequence[Var], outputs: Sequence[Atom], effects: bool = False
) -> list[JaxprEqn]:
    """Returns the equations that lead from some values to others."""
    wanted, eqns = {x for x in outputs if isinstance(x, Var)}, []
    known = set(inputs)
    for eqn in reversed(program.eqns):
        if (effects and eqn.effects) or any(x in wanted and x not in known for x in eqn.outvars):
            eqns.append(eqn)
            wanted.update(x for x in eqn.invars if isinstance(x, Var))
    return eqns[::-1]


def _part(
    program: Program, inputs: Sequence[Var], outputs: Sequence[Atom], effects: bool = False
) -> Callable[..., list[chex.Array]]:
    """Returns the part of a program that leads from some values to others, and its effects."""
    eqns = _needed(program, inputs, outputs, effects)
    # Inputs and results of a part have no names.
    names = {"arg_names": ("",) * len(inputs), "result_paths": ("",) * len(outputs)}
    jaxpr = Jaxpr(
        [*program.constants], [*inputs], [*outputs], eqns,
        debug_info=program.source._replace(**names),
    )  # fmt: skip
    return jaxpr_as_fun(ClosedJaxpr(jaxpr, [*program.constants.values()]))
