"""Fitting a network to a fixed set of examples, with early stopping."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxpgs import trees
from jaxpgs.base import Env, Params
from jaxpgs.networks import functional, functional_train, trainable_mask
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.two_player.losses import asymmetric_square


class Examples(NamedTuple):
    """N positions and their targets.

    Attributes:
      state: `[N]` the positions.
      action: `[N]` int32, the actions to imitate.
      value: `[N]` the targets of the sum of rewards from there on.
    """

    state: Any
    action: chex.Array
    value: chex.Array


def make_fit(
    env: Env,
    network: nnx.Module,
    optimizer: optax.GradientTransformation,
    *,
    batch_size: int,
    max_epochs: int,
    patience: int | None,
    learns_value: bool,
    value_factor: float = 16.0,
    under: float = 1.0,
    over: float = 1.0,
    augment: bool = False,
    mesh: jax.sharding.Mesh | None = None,
) -> Callable[..., tuple[Params, Any, dict[str, float]]]:
    """Makes the function that fits a network to examples (Seify 2020, eq. 5.4, 6.5 and 6.7).

    Args:
      env: the environment. If it has `policy_logits`, logits are mapped by it, and the loss is that
        of the legal actions' probabilities. The thesis instead spreads an action evenly over the
        cells of its group, which teaches the places of groups as well.
      network: the network.
      optimizer: an optax optimizer.
      batch_size: examples per step; the last batch is filled up from the start of the set.
      max_epochs: the maximum number of passes over the examples.
      patience: passes without a lower validation loss after which to stop and return the weights
        with the lowest loss; None never stops early.
      learns_value: whether the value is part of the loss.
      value_factor: the squared error's weight is this divided by the largest squared value.
      under: as in `losses.asymmetric_square`.
      over: likewise.
      augment: whether to permute colours at random, if `env` has `permute_colors`, and to mirror
        every other example, if it has `mirror`.
      mesh: the devices that share each batch, None for the default one.

    Returns:
      `fit(params, opt_state, training, validation, rng_key, rng)`. `training` and `validation` are
      pairs of `Examples` and how many of them are real; `rng` is a NumPy generator for the order.
      It returns the weights, the optimizer's state and a dict of metrics.
    """
    loss_parts = _make_loss_parts(env, learns_value=learns_value, under=under, over=over)
    step = _make_step(env, network, optimizer, loss_parts, batch_size, augment=augment, mesh=mesh)
    validate = _make_validate(env, network, loss_parts, batch_size, mesh)

    setting = _Setting(step, validate, batch_size, max_epochs, patience, value_factor, mesh)
    return functools.partial(_fit, setting)


class _Setting(NamedTuple):
    """The constants of all fits; see `make_fit`, `_make_step` and `_make_validate`."""

    step: Callable[..., tuple[Params, Any, "_Losses"]]
    validate: Callable[..., "_Losses"]
    batch_size: int
    max_epochs: int
    patience: int | None
    value_factor: float
    mesh: jax.sharding.Mesh | None


def _fit(
    setting: _Setting,
    params: Params,
    opt_state: Any,
    training: tuple[Examples, int],
    validation: tuple[Examples, int],
    rng_key: chex.PRNGKey,
    rng: np.random.Generator,
) -> tuple[Params, Any, dict[str, float]]:
    """Fits weights to examples; see what `make_fit` returns."""
    examples, size = training
    carried = sharding.everywhere(setting.mesh, (params, opt_state, examples, validation[0]))
    params, opt_state, examples, held_out = carried
    # Section 6.1.2: divided by vmax^2, the value loss does not depend on the scale of values.
    largest = max(_largest_value(*training), _largest_value(*validation), 1.0)
    value_weight = jnp.float32(setting.value_factor / largest**2)
    shape = math.ceil(size / setting.batch_size), setting.batch_size
    lowest, best, waited, parts = math.inf, (params, opt_state, 0), 0, dict(_NOTHING)
    for number in range(setting.max_epochs):
        # A new order for each epoch. `np.resize` repeats it from its start to fill the last batch.
        order = np.resize(rng.permutation(size), shape).astype(np.int32)
        key = jax.random.fold_in(rng_key, number)
        params, opt_state, parts = _learn_epoch(
            setting.step, params, opt_state, examples, order, key, value_weight
        )
        # Without patience the last weights are kept, and nothing is evaluated in between.
        if setting.patience is None:
            best = (params, opt_state, number + 1)
            continue
        checked = setting.validate(params, held_out, jnp.int32(validation[1]), value_weight)
        loss = float(checked["policy_loss"] + checked["value_loss"])
        waited += 1
        if loss < lowest:
            lowest, best, waited = loss, (params, opt_state, number + 1), 0
        if waited >= setting.patience:
            break
    # Back to the best weights, which are evaluated again for the metrics.
    params, opt_state, num_epochs = best
    checked = setting.validate(params, held_out, jnp.int32(validation[1]), value_weight)
    metrics = {name: float(x) for name, x in parts.items()}
    metrics |= {f"validation_{name}": float(x) for name, x in checked.items()}
    return params, opt_state, metrics | {"epochs": num_epochs, "positions": size}


def _largest_value(examples: Examples, size: int) -> float:
    """Returns the largest absolute value of the first `size` examples; 0 if there are none."""
    return float(np.max(np.abs(np.asarray(examples.value)[:size]), initial=0.0))


def _learn_epoch(
    step: Callable[..., tuple[Params, Any, "_Losses"]],
    params: Params,
    opt_state: Any,
    examples: Examples,
    order: np.ndarray,
    rng_key: chex.PRNGKey,
    value_weight: chex.Array,
) -> tuple[Params, Any, "_Losses"]:
    """Learns from batches `[N, B]` of examples in the given order; also returns the mean losses."""
    total = dict(_NOTHING)
    # Losses are summed on the device; reading each one would wait for every step.
    for i, index in enumerate(order):
        params, opt_state, total = step(
            params, opt_state, total, examples, index, rng_key, i, value_weight
        )
    return params, opt_state, jax.tree.map(lambda x: x / len(order), total)


_Losses = dict[str, chex.Array]  # by name
_NOTHING = {"policy_loss": np.float32(0.0), "value_loss": np.float32(0.0)}


def _make_loss_parts(
    env: Env, *, learns_value: bool, under: float, over: float
) -> Callable[[chex.Array, chex.Array, Examples, chex.Array], _Losses]:
    """Makes the function of the losses `[B]`; the weight of the squared value error is an input."""

    def loss_parts(
        logits: chex.Array, value: chex.Array, batch: Examples, value_weight: chex.Array
    ) -> _Losses:
        # The loss is over actions, so logits of cells are first converted to logits of actions.
        if hasattr(env, "policy_logits"):
            logits = jax.vmap(env.policy_logits)(batch.state, logits)
        logits = jnp.where(batch.state.legal_action_mask, logits, jnp.finfo(logits.dtype).min)
        policy_loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch.action)
        error = asymmetric_square(batch.value, value, under=under, over=over)
        value_loss = value_weight * error if learns_value else jnp.zeros_like(error)
        return {"policy_loss": policy_loss, "value_loss": value_loss}

    return loss_parts


def _make_step(
    env: Env,
    network: nnx.Module,
    optimizer: optax.GradientTransformation,
    loss_parts: Callable[..., _Losses],
    batch_size: int,
    *,
    augment: bool,
    mesh: jax.sharding.Mesh | None,
) -> Callable[..., tuple[Params, Any, _Losses]]:
    """Makes a step of the optimizer, which adds its mean losses to the totals.

    Steps are called one by one: in an XLA loop, the CPU backend differentiates convolutions many
    times slower.
    """
    train_fn = functional_train(network)

    def losses_fn(params: Params, target: tuple[chex.Array, Examples, chex.Array]) -> tuple:
        observation, batch, value_weight = target
        (logits, value), moved = train_fn(params, observation)
        parts = jax.tree.map(jnp.mean, loss_parts(logits, value, batch, value_weight))
        return parts["policy_loss"] + parts["value_loss"], (parts, moved)

    update = iterations.make_update(losses_fn, optimizer, trainable_mask(network))

    @jax.jit
    def step(
        params: Params,
        opt_state: Any,
        total: _Losses,
        examples: Examples,
        index: chex.Array,
        key: chex.PRNGKey,
        number: int,
        value_weight: chex.Array,
    ) -> tuple[Params, Any, _Losses]:
        batch = sharding.split_rows(mesh, jax.tree.map(lambda x: x[index], examples))
        if augment and hasattr(env, "mirror"):
            state, action = jax.vmap(env.mirror)(batch.state, batch.action)
            turned = batch._replace(state=state, action=action)
            # Every other row: the order is already random, so no random draw is needed.
            batch = trees.where(jnp.arange(batch_size) % 2 == 0, batch, turned)
        observation = jax.vmap(env.observe)(batch.state)
        if augment and hasattr(env, "permute_colors"):
            keys = jax.random.split(jax.random.fold_in(key, number), batch_size)
            # Colours are permuted in the observation; actions are cells and do not change.
            observation = jax.vmap(env.permute_colors)(keys, observation)
        carry, parts = update((params, opt_state), (observation, batch, value_weight))
        return *carry, jax.tree.map(jnp.add, total, parts)

    return step


def _make_validate(
    env: Env,
    network: nnx.Module,
    loss_parts: Callable[..., _Losses],
    batch_size: int,
    mesh: jax.sharding.Mesh | None,
) -> Callable[[Params, Examples, chex.Array, chex.Array], _Losses]:
    """Makes the function of the mean losses over the first `size` examples."""
    _, apply_fn = functional(network)

    @jax.jit
    def validate(
        params: Params, examples: Examples, size: chex.Array, value_weight: chex.Array
    ) -> _Losses:
        def body(i: chex.Array, total: _Losses) -> _Losses:
            # The last batch is padded with the last example, which is not counted again.
            place = i * batch_size + jnp.arange(batch_size)
            batch = jax.tree.map(lambda x: x[jnp.minimum(place, size - 1)], examples)
            batch = sharding.split_rows(mesh, batch)
            logits, value = apply_fn(params, jax.vmap(env.observe)(batch.state))
            parts = loss_parts(logits, value, batch, value_weight)
            return jax.tree.map(
                lambda t, x: t + jnp.sum(jnp.where(place < size, x, 0.0)), total, parts
            )

        zeros = jax.tree.map(jnp.asarray, _NOTHING)
        # An XLA loop is fast enough without differentiation. `size` is traced, as queues grow.
        total = jax.lax.fori_loop(0, -(-size // batch_size), body, zeros)
        return jax.tree.map(lambda x: x / jnp.maximum(size, 1), total)

    return validate
