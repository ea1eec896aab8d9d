"""Fitting a model to games that were judged, with early stopping (Brosseit 2023, section 5.4)."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpgs.base import Env, Params
from jaxpgs.checks import check_number
from jaxpgs.networks import (
    ValueEquivalentModel,
    functional,
    functional_call,
    trainable_mask,
)
from jaxpgs.training.models import unrolls
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.two_player import selfplay
from jaxpgs.training.two_player.losses import unroll_loss


class FitState(NamedTuple):
    """Everything that `fit` needs to go on.

    Attributes:
      params: the model's parameters.
      opt_state: the optimizer's state.
      best: the parameters with the lowest loss on the games held out.
      lowest: `[]` that loss.
      waited: `[]` int32, epochs since.
      epoch: `[]` int32, epochs done.
    """

    params: Params
    opt_state: Any
    best: Params
    lowest: chex.Array
    waited: chex.Array
    epoch: chex.Array

    @property
    def iteration(self) -> chex.Array:
        """The epochs done, by the name that other trainers have for them."""
        return self.epoch


def fit(
    env: Env,
    model: ValueEquivalentModel,
    experience: selfplay.Experience,
    *,
    unroll: int = 5,
    batch_size: int = 512,
    max_epochs: int = 100,
    patience: int = 5,
    held_out: float = 0.1,
    steps_per_epoch: int | None = None,
    validation_batches: int | None = None,
    settle_epochs: int = 0,
    optimizer: optax.GradientTransformation | None = None,
    gradient_scale: float = 0.5,
    value_weight: float = 1.0,
    init_params: Params | None = None,
    seed: int = 0,
    devices: Sequence[jax.Device] | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    callback: iterations.Callback | Sequence[iterations.Callback] | None = None,
    progress: bool | None = None,
) -> FitState:
    """Fits a model to labelled games (Brosseit 2023, section 5.4 and table A.2).

    By default an epoch has as many steps as the positions it learns from fill batches, drawn at
    random; where there are millions, `steps_per_epoch` makes it shorter.

    Args:
      env: the environment.
      model: the model; only its structure and initial weights are used.
      experience: `[T, G]` steps, as `label_games` plays them.
      unroll: K, how many actions each position is followed by; shorter than T.
      batch_size: positions per step of the optimizer.
      max_epochs: most epochs, counting those of an earlier call in `directory`.
      patience: epochs without a lower loss on the held-out games after which to stop.
      held_out: the share of the G games on which nothing is learned, above 0 and below 1.
      steps_per_epoch: steps of the optimizer in an epoch, at least 1, if not None.
      validation_batches: on how many batches of held-out positions to measure after an epoch, at
        least 1; spread evenly over the games, the same ones each time. All positions if None.
      settle_epochs: how many of `max_epochs`, the last ones, learn with batch statistics that stay
        as they are. Before, each step of an unroll is normalised by its own statistics, which a
        search does not have. Patience counts anew; where it ends the fitting before, these epochs
        do not come.
      optimizer: any optax optimizer; Adam with the thesis's 6e-5 if None.
      gradient_scale: what gradients are multiplied by where they enter an earlier transition; 0.5
        is MuZero's, 1 leaves them alone.
      value_weight: weight of the value loss.
      init_params: weights to start from; the model's own if None.
      seed: seed of everything random but the initial weights.
      devices: devices to share each batch among, `jax.devices()` for all of all processes;
        `batch_size` must be a multiple of their number. Each holds all the games. Sums over a batch
        may be rounded otherwise than on one. None is the default device.
      directory: where to keep checkpoints. Called again with the same directory and arguments,
        fitting goes on from the last one and ends as if it had never stopped, bit by bit.
      checkpoint_every: epochs between checkpoints.
      callback: called after every epoch with the state and a dict of metrics, or several such
        functions: the losses, and `validation_` with each of them on the held-out games, among them
        `policy_loss_k` and `value_loss_k` at step k of the unroll. A true answer ends the fitting.
      progress: whether to show a bar on standard error; None shows one in a terminal.

    Returns:
      The state after the last epoch; `best` are the weights to use.

    Raises:
      ValueError: if an argument is out of range, the data do not fit the model, or `directory`
        holds another run or is damaged.
      RuntimeError: if another process trains in `directory`.
      FloatingPointError: if the loss is no longer finite.
    """
    arguments = dict(locals())
    del arguments["max_epochs"]  # how long it is may change
    counts = {
        "unroll": unroll, "batch_size": batch_size, "max_epochs": max_epochs, "patience": patience,
        "checkpoint_every": checkpoint_every, "steps_per_epoch": steps_per_epoch,
        "validation_batches": validation_batches,
    }  # fmt: skip
    for name, count in counts.items():
        if count is not None:
            check_number("fit", name, count, 1)
    check_number("fit", "settle_epochs", settle_epochs, 0)
    num_train = _split(env, model, experience, unroll, held_out)
    mesh = sharding.make_mesh(devices, {"batch_size": batch_size})
    steps = sharding.everywhere(mesh, jax.tree.map(jnp.asarray, unrolls.timeline(experience)))
    num_steps, num_games = experience.value.shape
    params, _ = functional(model)
    params = params if init_params is None else iterations.like(init_params, params)
    optimizer = optimizer or optax.adam(6e-5)
    updates = [
        make_model_update(
            model, optimizer, trainable_mask(model), gradient_scale, value_weight, moving
        )
        for moving in (True, False)
    ]
    evaluate = _make_evaluate(
        env, model, batch_size, unroll, value_weight, validation_batches, mesh
    )

    @functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
    def step(
        carry: tuple[Params, Any], steps: unrolls.Timeline, key: chex.PRNGKey, settling: bool
    ) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
        batch = unrolls.sample(env, steps, key, batch_size, unroll, num_train)
        return updates[settling](carry, sharding.split_rows(mesh, batch))

    state = FitState(
        params=params,
        opt_state=optimizer.init(params),
        best=params,
        lowest=jnp.float32(jnp.inf),
        waited=jnp.int32(0),
        epoch=jnp.int32(0),
    )
    num_batches = steps_per_epoch or math.ceil(num_steps * num_train / batch_size)

    def iterate(state: FitState) -> tuple[FitState, dict[str, float]]:
        epoch = int(state.epoch)
        epoch_key = jax.random.fold_in(jax.random.key(seed), epoch)
        carry = jax.tree.map(jnp.copy, (state.params, state.opt_state))
        total: dict[str, float] = {}
        settling = epoch >= max_epochs - settle_epochs
        if epoch == max_epochs - settle_epochs:
            state = state._replace(waited=jnp.int32(0))
        for i in range(num_batches):
            key = jax.random.fold_in(epoch_key, i)
            carry, parts = step(carry, steps, key, settling)
            total = parts if i == 0 else jax.tree.map(jnp.add, total, parts)
        checked = evaluate(carry[0], steps, num_train, num_games)
        metrics = {name: float(x) / num_batches for name, x in total.items()}
        metrics |= {f"validation_{name}": x for name, x in checked.items()}
        loss = checked["policy_loss"] + value_weight * checked["value_loss"]
        params, opt_state = carry
        judged = sharding.everywhere(mesh, _judge(state, params, opt_state, loss))
        return judged, metrics | {"iteration": epoch + 1}

    return iterations.run(
        sharding.everywhere(mesh, state), iterate, max_epochs,
        trainer="model_fitting", arguments=arguments, directory=directory,
        checkpoint_every=checkpoint_every, callback=callback, progress=progress,
        done=lambda state: int(state.waited) >= patience,
    )  # fmt: skip


def make_model_update(
    model: ValueEquivalentModel,
    optimizer: optax.GradientTransformation,
    trainable: Params,
    gradient_scale: float,
    value_weight: float,
    moving_statistics: bool = True,
) -> Callable[..., tuple[tuple[Params, Any], dict[str, chex.Array]]]:
    """Makes one step of the optimizer on a batch of unrolls.

    Args:
      model: the model.
      optimizer: the optimizer.
      trainable: what it may change, as `networks.trainable_mask` says.
      gradient_scale: as in `fit`.
      value_weight: weight of the value loss.
      moving_statistics: whether batch normalisation uses the statistics of the batch and moves the
        running ones. False uses the running ones, as a search does, and leaves them.

    Returns:
      `((params, opt_state), Unrolls) -> ((params, opt_state), parts of the loss)`.
    """
    unroll = functional_call(
        model, lambda model, *data: model.unroll(*data, gradient_scale), train=moving_statistics
    )

    def losses_fn(params: Params, batch: unrolls.Unrolls) -> tuple[chex.Array, tuple]:
        found = unroll(params, batch.observation, batch.action)
        (logits, value), moved = found if moving_statistics else (found, params)
        loss, parts = unroll_loss(logits, value, batch, value_weight=value_weight)
        return loss, (parts, moved)

    return iterations.make_update(losses_fn, optimizer, trainable)


def _make_evaluate(
    env: Env,
    model: ValueEquivalentModel,
    batch_size: int,
    unroll: int,
    value_weight: float,
    most_batches: int | None,
    mesh: jax.sharding.Mesh | None,
) -> Callable[..., dict[str, float]]:
    """Makes the measurement of the loss on the games that are held out."""
    evaluate_batch = functional_call(model, lambda model, *data: model.unroll(*data))

    @jax.jit
    def measure(
        params: Params, steps: unrolls.Timeline, place: chex.Array, first: chex.Array
    ) -> dict[str, chex.Array]:
        time, game = place % steps.length, first + place // steps.length
        batch = unrolls.unrolls_at(env, steps, time, game, jax.random.key(0), unroll)
        batch = sharding.split_rows(mesh, batch)
        logits, value = evaluate_batch(params, batch.observation, batch.action)
        return unroll_loss(logits, value, batch, value_weight=value_weight)[1]

    def evaluate(
        params: Params, steps: unrolls.Timeline, first: int, num_games: int
    ) -> dict[str, float]:
        count = (num_games - first) * int(steps.length)
        num_batches = math.ceil(count / batch_size)
        places = np.minimum(np.arange(num_batches * batch_size), count - 1)
        if most_batches is not None and most_batches < num_batches:
            num_batches = most_batches
            places = np.arange(num_batches * batch_size) * count // (num_batches * batch_size)
        total: dict[str, chex.Array] = {}
        for i, place in enumerate(places.astype(np.int32).reshape(num_batches, batch_size)):
            parts = measure(params, steps, jnp.asarray(place), jnp.int32(first))
            total = parts if i == 0 else jax.tree.map(jnp.add, total, parts)
        return {name: float(x) / num_batches for name, x in total.items()}

    return evaluate


def _split(
    env: Env,
    model: ValueEquivalentModel,
    experience: selfplay.Experience,
    unroll: int,
    held_out: float,
) -> int:
    """Returns how many of the games to learn from; raises `ValueError` for data that do not fit."""
    check_number("fit", "held_out", held_out, 0, 1, open_low=True)
    num_steps, num_games = experience.value.shape
    if unroll >= num_steps:
        raise ValueError(
            f"An unroll of {unroll} actions needs more steps of a game than the data hold; got "
            f"{num_steps}."
        )
    expected = ((num_steps, num_games, env.num_actions), tuple(env.observation_shape))
    found = (tuple(experience.policy.shape), tuple(model.observation_shape))
    if expected != found:
        raise ValueError(
            "The data and the model must be of the environment: policies of shape "
            f"{expected[0]} and observations of shape {expected[1]}; got {found[0]} and {found[1]}."
        )
    num_train = num_games - math.ceil(num_games * held_out)
    if num_train < 1:
        raise ValueError(f"held_out = {held_out} of {num_games} games leaves none to learn from.")
    return num_train


def _judge(state: FitState, params: Params, opt_state: Any, loss: float) -> FitState:
    """The state after an epoch whose parameters have this loss on the games held out."""
    better = loss < float(state.lowest)
    return FitState(
        params=params,
        opt_state=opt_state,
        best=params if better else state.best,
        lowest=jnp.float32(loss) if better else state.lowest,
        waited=jnp.int32(0) if better else state.waited + 1,
        epoch=state.epoch + 1,
    )
