"""Turns a network module into parameters and pure functions of them.

Parameters are nested dicts of arrays with string keys, batch statistics included. A module is any
`nnx.Module`, and for `functional` any `linen.Module`, that maps observations `[B, ...]` to logits
`[B, A]` and values `[B]`.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import chex
import jax
from flax import linen, nnx

from jaxpgs.base import Params
from jaxpgs.trees import is_weight, leaf_names, mask_of

Outputs = tuple[chex.Array, chex.Array]  # logits [B, A], value [B]
# A network as a pure function: (params, observation [B, ...]) -> (logits [B, A], value [B]).
ApplyFn = Callable[[Params, chex.Array], Outputs]
TrainFn = Callable[[Params, chex.Array], tuple[Outputs, Params]]

_ModuleT = TypeVar("_ModuleT", bound=nnx.Module)
PARTS = ("head", "linear")


@dataclasses.dataclass(frozen=True)
class SplitApplyFn:
    """An `apply_fn` whose parts can be called separately, as a search that keeps a tree does.

    Make one from the parts of your own network to use it in such a search.

    Attributes:
      torso: `(params, observation [B, ...]) -> features`, a pytree of arrays `[B, ...]`.
      policy_head: `(params, features) -> logits [B, A]`.
      value_head: `(params, features) -> value [B]`.
      max_batch: about how many states a search evaluates at once at most; None is all. Set it with
        `dataclasses.replace(apply_fn, max_batch=32)`.

    Example:
      >>> apply_fn = jaxpgs.networks.SplitApplyFn(
      ...     torso=lambda params, x: jnp.tanh(x.reshape(len(x), -1) @ params["torso"]),
      ...     policy_head=lambda params, features: features @ params["policy_head"],
      ...     value_head=lambda params, features: features @ params["value_head"],
      ... )
    """

    torso: Callable[[Params, chex.Array], Any]
    policy_head: Callable[[Params, Any], chex.Array]
    value_head: Callable[[Params, Any], chex.Array]
    max_batch: int | None = None

    def __call__(self, params: Params, observation: chex.Array) -> Outputs:
        """Returns logits `[B, A]` and values `[B]`."""
        features = self.torso(params, observation)
        return self.policy_head(params, features), self.value_head(params, features)


def functional(
    module: nnx.Module | linen.Module, variables: Params = None
) -> tuple[Params, ApplyFn]:
    """Splits a module into its parameters and a pure function for search and play.

    Args:
      module: a policy and value network of NNX or of Linen. It is not changed.
      variables: for a module of Linen, the result of its `init` with all collections. A module of
        NNX has its own variables.

    Returns:
      The parameters, and `apply_fn(params, observation) -> (logits, value)` with shapes
      `[B, ...] -> [B, A], [B]`. Batch normalisation uses the population statistics in `params`. If
      the module's class has `is_torso_and_heads = True`, `apply_fn` is a `SplitApplyFn`. The module
      must then be its `torso`, followed by its `policy_head` and `value_head`, as the networks of
      this library are. In Linen these may be methods or submodules from `setup`, and the parameters
      are `variables`. A Linen module is called without further arguments and without mutable
      collections, so it must itself select the inference mode of batch normalisation. For NNX,
      `apply_fn` raises `ValueError` if `params` lacks a leaf of the module or has an unknown one.

    Raises:
      ValueError: if a module of Linen is given without variables, or a module of NNX with them.

    Example:
      >>> params, apply_fn = jaxpgs.networks.functional(module)
      >>> logits, value = apply_fn(params, jax.vmap(env.observe)(states))
      >>> logits.shape, value.shape
      ((2, 9), (2,))
    """
    if isinstance(module, linen.Module):
        return _functional_linen(module, variables)
    if variables is not None:
        raise ValueError(
            f"Only modules of Linen take variables; {type(module).__name__} has its own parameters."
        )
    # A copy, so that the caller's module stays in its mode of training or evaluation.
    template = nnx.clone(module)
    template.eval()
    merge = _merger(template)

    def apply_fn(params: Params, observation: chex.Array) -> Outputs:
        return merge(params)(observation)

    def part(name: str) -> Callable[[Params, Any], Any]:
        return lambda params, inputs: getattr(merge(params), name)(inputs)

    if getattr(template, "is_torso_and_heads", False):
        apply = SplitApplyFn(part("torso"), part("policy_head"), part("value_head"))
        return _get_params(module), apply
    return _get_params(module), apply_fn


def _functional_linen(module: linen.Module, variables: Params) -> tuple[Params, ApplyFn]:
    """Does what `functional` does, for a module of Linen."""
    if variables is None:
        raise ValueError(
            "A module of Linen has no parameters of its own: give functional its variables, "
            "module.init(rng_key, observation), as the second argument."
        )

    def part(name: str) -> Callable[[Params, Any], Any]:
        return lambda params, inputs: module.apply(
            params, inputs, method=lambda bound, inputs: getattr(bound, name)(inputs)
        )

    if getattr(module, "is_torso_and_heads", False):
        return variables, SplitApplyFn(part("torso"), part("policy_head"), part("value_head"))
    return variables, module.apply


def with_temperature(apply_fn: ApplyFn, temperature: float) -> ApplyFn:
    """Divides a network's logits by a temperature.

    A search may need a softer policy than the one that plays best without a search, which can be
    too confident to leave anything to explore.

    Args:
      apply_fn: the network, a `SplitApplyFn` or a plain function.
      temperature: positive; above 1 is softer. It may be traced, and is then not checked.

    Returns:
      The network with scaled logits and the same values, of the same kind as `apply_fn`.

    Raises:
      ValueError: if the temperature is not positive.

    Example:
      >>> softer = jaxpgs.networks.with_temperature(apply_fn, 2.0)
      >>> observation = jax.vmap(env.observe)(states)
      >>> jnp.allclose(2 * softer(params, observation)[0], apply_fn(params, observation)[0])
      Array(True, dtype=bool)
    """
    # Written as `not >`, so that NaN is rejected, too.
    if not isinstance(temperature, jax.core.Tracer) and not temperature > 0:
        raise ValueError(f"The temperature must be positive, got {temperature}.")
    if isinstance(apply_fn, SplitApplyFn):
        head = apply_fn.policy_head
        return dataclasses.replace(
            apply_fn, policy_head=lambda params, features: head(params, features) / temperature
        )

    def softened(params: Params, observation: chex.Array) -> Outputs:
        logits, value = apply_fn(params, observation)
        return logits / temperature, value

    return softened


def functional_train(module: nnx.Module) -> TrainFn:
    """Makes a pure function for training, which also updates the batch statistics.

    Args:
      module: a policy and value network. It is not changed.

    Returns:
      `fn(params, observation) -> ((logits, value), new_params)`. Batch normalisation uses the
      statistics of this batch; `new_params` is `params` with the population statistics moved
      towards them and every other leaf unchanged. After an optimizer step, take the leaves in
      `trainable_mask` from the optimizer and all others from `new_params`.

    Example:
      >>> train_fn = jaxpgs.networks.functional_train(module)
      >>> (logits, value), new_params = train_fn(params, jax.vmap(env.observe)(states))
    """
    return functional_call(module, lambda network, observation: network(observation), train=True)


def functional_call(
    module: nnx.Module, call: Callable[..., Any], *, train: bool = False
) -> Callable[..., Any]:
    """Makes a pure function of the parameters from any call of a module.

    Args:
      module: the module. It is not changed.
      call: `(module, *inputs) -> outputs`, such as `lambda model, x: model.predict(x)`.
      train: whether batch normalisation uses the statistics of the batch, as in `functional_train`.

    Returns:
      `fn(params, *inputs) -> outputs`, or `(outputs, new_params)` if `train`.

    Example:
      >>> logits_fn = jaxpgs.networks.functional_call(module, lambda model, x: model(x)[0])
      >>> logits_fn(params, jax.vmap(env.observe)(states)).shape
      (2, 9)
    """
    template = nnx.clone(module)
    template.train() if train else template.eval()
    merge = _merger(template)

    def fn(params: Params, *inputs: Any) -> Any:
        merged = merge(params)
        outputs = call(merged, *inputs)
        return (outputs, _get_params(merged)) if train else outputs

    return fn


def module_from_params(module: _ModuleT, params: Params) -> _ModuleT:
    """Copies a module and gives the copy other parameters.

    Args:
      module: the module to copy. It is not changed.
      params: parameters as `functional` returns them for this module.

    Returns:
      The copy, in the same mode (train or eval) as `module`.

    Raises:
      ValueError: if a leaf is missing, unexpected, or of another shape or dtype; it is named.

    Example:
      >>> copy = jaxpgs.networks.module_from_params(module, params)
      >>> copy(jax.vmap(env.observe)(states))[1].shape
      (2,)
    """
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        want, got = variable.get_value(), _lookup(params, path)
        if got.shape != want.shape or got.dtype != want.dtype:
            raise ValueError(
                f"Parameter {_name(path)!r} must be {want.dtype}{list(want.shape)}, "
                f"got {got.dtype}{list(got.shape)}."
            )
    return _merger(module)(params)


def trainable_mask(module: nnx.Module) -> Params:
    """Returns which parameters an optimizer may change, as a mask for `optax.masked`.

    Args:
      module: a policy and value network.

    Returns:
      A pytree of bools shaped like the parameters: True for weights, False for batch statistics,
      keys, counters and everything else that is no `nnx.Param` of floats.

    Example:
      >>> mask = jaxpgs.networks.trainable_mask(module)
      >>> optimizer = optax.masked(optax.adam(1e-3), mask)
    """
    flat = nnx.to_flat_state(nnx.state(module))

    def trains(variable: Any) -> bool:
        return isinstance(variable, nnx.Param) and is_weight(variable.get_value())

    return _nest((path, trains(variable)) for path, variable in flat)


def policy_head(params: Params, part: str = "head", *, path: str = "policy_head") -> Params:
    """Returns which parameters belong to the policy head, as a mask for `adapt`.

    Parameters are found by names, at any depth in `params`, as in the collections of Linen. A
    search also takes the names themselves: `adapt="policy_head"`.
    The parameters of batch normalisation stay frozen (Anthony et al. 2019, section 3.2); they are
    recognised by the running `mean` and `var` next to them.

    Args:
      params: parameters of a network, as `functional` returns them, or any other pytree with names.
      part: "head" for all layers of the head, "linear" for the layer of this name only, which is
        the last one in the networks of this library.
      path: where the head is: its name, or several names separated by dots, such as
        "actor.layers.2".

    Returns:
      A pytree of bools shaped like `params`.

    Raises:
      ValueError: if `part` is unknown or `params` has no such part.

    Example:
      >>> jaxpgs.networks.policy_head(params)["policy_head"]
      {'linear': {'bias': True, 'kernel': True}}
      >>> search = jaxpgs.search.pgs_search(
      ...     recurrent_fn, 8, adapt=jaxpgs.networks.policy_head(params)
      ... )
    """
    if part not in PARTS:
        raise ValueError(f"The part of a policy head must be one of {PARTS}, got {part!r}.")
    full = path if part == "head" else f"{path}.{part}"
    mask = mask_of(params, full)
    if mask is None:
        # For the error message: each layer once, in the order of the parameters.
        layers = dict.fromkeys(".".join(names[:-1] or names) for names in leaf_names(params))
        raise ValueError(f"The parameters have no {full!r}; their layers are {list(layers)}.")
    return jax.tree.unflatten(jax.tree.structure(params), mask)


def constructor_kwargs(module: nnx.Module) -> dict[str, Any]:
    """Returns the keyword-only arguments that a module was made with, as far as it keeps them.

    Args:
      module: a module that keeps each argument in an attribute of the same name.

    Returns:
      The arguments by name, without `rngs`.
    """
    parameters = inspect.signature(type(module).__init__).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "rngs"]
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def _merger(template: _ModuleT) -> Callable[[Params], _ModuleT]:
    """Returns a function that builds a new module like `template` from parameters."""
    graphdef, state = nnx.split(template)
    # The template's own values must neither be kept alive nor replace a missing leaf.
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    slots = nnx.to_flat_state(shapes)
    num_leaves = len(slots)

    def merge(params: Params) -> _ModuleT:
        # `_lookup` raises for a missing leaf; unknown leaves are detected by their number.
        filled = [(path, slot.replace(_lookup(params, path))) for path, slot in slots]
        if len(jax.tree.leaves(params)) != num_leaves:
            known = {_name(path) for path, _ in slots}
            given = jax.tree_util.tree_flatten_with_path(params)[0]
            names = {jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in given}
            raise ValueError(f"The module has no parameters {sorted(names - known)}.")
        return nnx.merge(graphdef, nnx.from_flat_state(filled))

    return merge


def _get_params(module: nnx.Module) -> Params:
    flat = nnx.to_flat_state(nnx.state(module))
    return _nest((path, variable.get_value()) for path, variable in flat)


def _lookup(params: Params, path: tuple[Any, ...]) -> chex.Array:
    node: Any = params
    for key in path:
        # Parameters have only string keys, but NNX numbers the entries of a list.
        if not isinstance(node, dict) or str(key) not in node:
            raise ValueError(f"Parameter {_name(path)!r} of the module is missing.")
        node = node[str(key)]
    return node


def _nest(leaves: Any) -> Params:
    nested: Params = {}
    for path, leaf in leaves:
        node = nested
        for key in path[:-1]:
            node = node.setdefault(str(key), {})
        node[str(path[-1])] = leaf
    return nested


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
