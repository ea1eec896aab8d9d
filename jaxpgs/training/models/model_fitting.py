"""Fitting a model to labelled games, with early stopping (Brosseit 2023, section 5.4)."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpgs.base import Env, Params
from jaxpgs.checks import check_number
from jaxpgs.networks import ValueEquivalentModel, functional, functional_call, trainable_mask
from jaxpgs.training.models import unrolls
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.runtime.settings import Run, check_counts, flat, in_settings
from jaxpgs.training.two_player import selfplay
from jaxpgs.training.two_player.losses import mean_of_sums, unroll_loss, unroll_sums


class FitState(NamedTuple):
    """Everything that `fit` needs to continue.

    Attributes:
      params: the model's parameters.
      opt_state: the optimizer's state.
      best: the parameters with the lowest loss on the held-out games.
      lowest: `[]` that loss.
      waited: `[]` int32, epochs since then.
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
        """The epochs done, by the name that other trainers use."""
        return self.epoch


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps of the optimizer.

    Attributes:
      unroll: K, how many actions follow each position, at least 1 and less than T.
      batch_size: positions per step of the optimizer, at least 1.
      steps_per_epoch: steps of the optimizer in an epoch, at least 1. None takes as many steps as
        the training positions fill batches. With millions of positions, a number makes epochs
        shorter.
      settle_epochs: how many epochs at the end learn with fixed batch statistics. Before them, each
        step of an unroll is normalised by its own statistics, which a search does not have.
        Patience is reset when these epochs begin; they are skipped if it ends the fitting earlier.
      optimizer: any optax optimizer; Adam with the thesis's 6e-5 if None.
      gradient_scale: the factor of the gradients that enter an earlier transition; 0.5 is MuZero's,
        1 leaves them unchanged.
      value_weight: weight of the value loss.
    """

    unroll: int = 5
    batch_size: int = 512
    steps_per_epoch: int | None = None
    settle_epochs: int = 0
    optimizer: optax.GradientTransformation | None = None
    gradient_scale: float = 0.5
    value_weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class Validation:
    """The games that are held out, and the early stopping on them.

    Attributes:
      held_out: the share of the G games that are not trained on, above 0 and below 1.
      patience: epochs without a lower held-out loss after which to stop, at least 1.
      validation_batches: how many batches of held-out positions to evaluate after an epoch, at
        least 1. They are spread evenly over the games, the same ones each time. All positions if
        None.
    """

    held_out: float = 0.1
    patience: int = 5
    validation_batches: int | None = None


@in_settings
def fit(
    env: Env,
    model: ValueEquivalentModel,
    experience: selfplay.Experience,
    *,
    max_epochs: int = 100,
    steps: Steps = Steps(),
    validation: Validation = Validation(),
    init_params: Params | None = None,
    run: Run = Run(),
) -> FitState:
    """Fits a model to labelled games (Brosseit 2023, section 5.4 and table A.2).

    Args:
      env: the environment.
      model: the model; only its structure and initial weights are used.
      experience: `[T, G]` steps, as `label_games` plays them.
      max_epochs: the maximum number of epochs, including those of an earlier call in
        `run.directory`.
      steps: how the model learns.
      validation: the held-out games, and the early stopping on them.
      init_params: weights to start from; the model's own if None.
      run: seed, devices, folder and callbacks; each device holds all the games. Every epoch is
        saved by default. The metrics are the losses, and with the prefix `validation_` the losses
        on the held-out games. They include `policy_loss_k` and `value_loss_k` at step k of the
        unroll.

    Returns:
      The state after the last epoch; `best` are the weights to use.

    Raises:
      ValueError: if a setting is out of range, the data do not fit the model, or the directory
        holds another run or is damaged.
      RuntimeError: if another process is training in the directory.
      FloatingPointError: if the loss is no longer finite.
    """
    arguments = flat(locals(), "steps", "validation", "run")
    del arguments["max_epochs"]  # the length of the run may change
    _check_arguments(max_epochs, steps, validation)
    # The last columns of `[T, G]` are held out as whole games: neighbouring positions are so
    # similar that they would not measure generalisation to other games.
    num_train = _split(env, model, experience, steps.unroll, validation.held_out)
    mesh = sharding.make_mesh(run.devices, {"batch_size": steps.batch_size})
    # All data are on each device, so that any batch can be read without communication.
    data = sharding.everywhere(mesh, jax.tree.map(jnp.asarray, unrolls.timeline(experience)))
    num_steps, num_games = experience.value.shape
    params = iterations.like(init_params, functional(model)[0])
    optimizer = steps.optimizer or optax.adam(6e-5)
    trainable = trainable_mask(model)
    # Two programs: one updates the batch statistics, the other normalises as a search does.
    updates = [
        make_model_update(
            model, optimizer, trainable, steps.gradient_scale, steps.value_weight, moving
        )
        for moving in (True, False)
    ]
    step = functools.partial(_step, env, updates, steps, num_train, mesh)
    evaluate = _make_evaluate(env, model, steps, validation.validation_batches, mesh)
    setting = _Setting(
        # The data are an argument: as a constant of the program they would be compiled into it.
        step=jax.jit(step, static_argnums=3, donate_argnums=0),
        evaluate=functools.partial(evaluate, steps=data, first=num_train, num_games=num_games),
        data=data,
        num_batches=steps.steps_per_epoch or math.ceil(num_steps * num_train / steps.batch_size),
        first_settling=max_epochs - steps.settle_epochs,
        value_weight=steps.value_weight,
        seed=run.seed,
        mesh=mesh,
    )
    state = sharding.everywhere(mesh, _begin(params, optimizer))
    return iterations.run(
        state, functools.partial(_iterate, setting), max_epochs,
        trainer="model_fitting", arguments=arguments, settings=run, checkpoint_every=1,
        done=lambda state: int(state.waited) >= validation.patience,
    )  # fmt: skip


def _begin(params: Params, optimizer: optax.GradientTransformation) -> FitState:
    """The state before the first epoch."""
    return FitState(
        params=params,
        opt_state=iterations.init_optimizer(optimizer, params),
        best=params,
        lowest=jnp.float32(jnp.inf),  # no loss is above it, so the first epoch is the best so far
        waited=jnp.int32(0),
        epoch=jnp.int32(0),
    )


class _Setting(NamedTuple):
    """The constants of a fit.

    Attributes:
      step: `((params, opt_state), data, rng_key, settling) -> ((params, opt_state), parts)`.
      evaluate: `params -> losses` on the held-out games.
      data: all games.
      num_batches: steps in an epoch.
      first_settling: the first epoch with fixed batch statistics.
      value_weight: as in `Steps`.
      seed: as in `Run`.
      mesh: the devices.
    """

    step: Callable[..., Any]
    evaluate: Callable[[Params], dict[str, float]]
    data: unrolls.Timeline
    num_batches: int
    first_settling: int
    value_weight: float
    seed: int
    mesh: jax.sharding.Mesh | None


def _step(
    env: Env,
    updates: Sequence[Callable[..., Any]],
    steps: Steps,
    num_train: int,
    mesh: jax.sharding.Mesh | None,
    carry: tuple[Params, Any],
    data: unrolls.Timeline,
    rng_key: chex.PRNGKey,
    settling: bool,
) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
    """Does one step of the optimizer on a batch of the training games."""
    batch = unrolls.sample(env, data, rng_key, steps.batch_size, steps.unroll, num_train)
    return updates[settling](carry, sharding.split_rows(mesh, batch))


def _iterate(setting: _Setting, state: FitState) -> tuple[FitState, dict[str, float]]:
    """Does one epoch, and evaluates the result."""
    epoch = int(state.epoch)
    # Keys depend on seed and epoch alone, so that a resumed run draws the same batches.
    epoch_key = jax.random.fold_in(jax.random.key(setting.seed), epoch)
    # A copy: a step donates its input buffers, and `best` may be the same arrays.
    carry = jax.tree.map(jnp.copy, (state.params, state.opt_state))
    total: dict[str, float] = {}
    # Patience is reset: with other statistics the losses are not comparable to those before.
    if epoch == setting.first_settling:
        state = state._replace(waited=jnp.int32(0))
    # Losses are summed on the device; reading each one would wait for every step.
    for i in range(setting.num_batches):
        key = jax.random.fold_in(epoch_key, i)
        carry, parts = setting.step(carry, setting.data, key, epoch >= setting.first_settling)
        total = parts if i == 0 else jax.tree.map(jnp.add, total, parts)
    checked = setting.evaluate(carry[0])
    metrics = {name: float(x) / setting.num_batches for name, x in total.items()}
    metrics |= {f"validation_{name}": x for name, x in checked.items()}
    loss = checked["policy_loss"] + setting.value_weight * checked["value_loss"]
    params, opt_state = carry
    judged = sharding.everywhere(setting.mesh, _judge(state, params, opt_state, loss))
    return judged, metrics | {"iteration": epoch + 1}


def _check_arguments(max_epochs: int, steps: Steps, validation: Validation) -> None:
    """Raises `ValueError` for settings that are out of range."""
    counts = {
        "unroll": steps.unroll, "batch_size": steps.batch_size, "max_epochs": max_epochs,
        "patience": validation.patience, "steps_per_epoch": steps.steps_per_epoch,
        "validation_batches": validation.validation_batches,
    }  # fmt: skip
    check_counts({name: count for name, count in counts.items() if count is not None})
    check_number("fit", "settle_epochs", steps.settle_epochs, 0)


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
      trainable: the mask of trainable parameters, from `networks.trainable_mask`.
      gradient_scale: as in `Steps`.
      value_weight: weight of the value loss.
      moving_statistics: whether batch normalisation uses the statistics of the batch and updates
        the running ones. False uses the running ones, as a search does, and does not update them.

    Returns:
      `((params, opt_state), Unrolls) -> ((params, opt_state), parts of the loss)`.
    """
    unroll = functional_call(
        model, lambda model, *data: model.unroll(*data, gradient_scale), train=moving_statistics
    )

    def losses_fn(params: Params, batch: unrolls.Unrolls) -> tuple[chex.Array, tuple]:
        found = unroll(params, batch.observation, batch.action)
        # With fixed statistics the unroll returns none, so the parameters are passed on unchanged.
        (logits, value), moved = found if moving_statistics else (found, params)
        loss, parts = unroll_loss(logits, value, batch, value_weight=value_weight)
        return loss, (parts, moved)

    return iterations.make_update(losses_fn, optimizer, trainable)


def _make_evaluate(
    env: Env,
    model: ValueEquivalentModel,
    setting: Steps,
    most_batches: int | None,
    mesh: jax.sharding.Mesh | None,
) -> Callable[..., dict[str, float]]:
    """Makes the function that evaluates the loss on the held-out games."""
    batch_size = setting.batch_size
    evaluate_batch = functional_call(model, lambda model, *data: model.unroll(*data))

    @jax.jit
    def measure(
        params: Params,
        steps: unrolls.Timeline,
        place: chex.Array,
        counts: chex.Array,
        first: chex.Array,
    ) -> dict[str, tuple[chex.Array, chex.Array]]:
        # Places number the steps of one game, then those of the next, from the first held-out game.
        time, game = place % steps.length, first + place // steps.length
        # A fixed key: actions after the end of a game are the same ones in every epoch.
        batch = unrolls.unrolls_at(env, steps, time, game, jax.random.key(0), setting.unroll)
        batch = sharding.split_rows(mesh, batch)
        logits, value = evaluate_batch(params, batch.observation, batch.action)
        return unroll_sums(logits, value, batch, counts)

    def evaluate(
        params: Params, steps: unrolls.Timeline, first: int, num_games: int
    ) -> dict[str, float]:
        count = (num_games - first) * int(steps.length)
        num_batches = math.ceil(count / batch_size)
        # All batches have one shape: the last one is padded with places that do not count.
        places = np.arange(num_batches * batch_size)
        if most_batches is not None and most_batches < num_batches:
            num_batches = most_batches
            places = np.arange(num_batches * batch_size) * count // (num_batches * batch_size)
        shape = num_batches, batch_size
        counts = (places < count).astype(np.float32).reshape(shape)
        rows = np.minimum(places, count - 1).astype(np.int32).reshape(shape)
        total: dict[str, tuple[chex.Array, chex.Array]] = {}
        for i in range(num_batches):
            inputs = jnp.asarray(rows[i]), jnp.asarray(counts[i]), jnp.int32(first)
            sums = measure(params, steps, *inputs)
            total = sums if i == 0 else jax.tree.map(jnp.add, total, sums)
        return mean_of_sums(total)

    return evaluate


def _split(
    env: Env,
    model: ValueEquivalentModel,
    experience: selfplay.Experience,
    unroll: int,
    held_out: float,
) -> int:
    """Returns the number of training games; raises `ValueError` for data that do not fit."""
    check_number("fit", "held_out", held_out, 0, 1, open_low=True)
    num_steps, num_games = experience.value.shape
    # No position has a successor for each action of an unroll that is as long as the data.
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
        raise ValueError(
            f"held_out = {held_out} of {num_games} games leaves no game to learn from."
        )
    return num_train


def _judge(state: FitState, params: Params, opt_state: Any, loss: float) -> FitState:
    """The state after an epoch whose parameters have this loss on the held-out games."""
    better = loss < float(state.lowest)
    return FitState(
        params=params,
        opt_state=opt_state,
        best=params if better else state.best,
        lowest=jnp.float32(loss) if better else state.lowest,
        waited=jnp.int32(0) if better else state.waited + 1,
        epoch=state.epoch + 1,
    )
