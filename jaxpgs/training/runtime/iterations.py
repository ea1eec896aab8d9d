"""The common code of trainers: the optimizer step, and the loop with checkpoints and callback."""

import contextlib
import math
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from jaxpgs.base import Params
from jaxpgs.search.models.adapted import merge, split
from jaxpgs.training.runtime import loggers, sharding
from jaxpgs.training.runtime.checkpoint import describe, opened
from jaxpgs.training.runtime.settings import Run
from jaxpgs.trees import is_weight

CURVE = "curve.jsonl"  # the metrics of all iterations, in a run's folder


def like(params: Params | None, template: Params, name: str = "init_params") -> Params:
    """Copies weights, and checks that they fit the network.

    Args:
      params: the weights; None for the network's own.
      template: the network's own.
      name: the argument's name, for the message.

    Returns:
      The weights as JAX arrays.

    Raises:
      ValueError: if they have other names or shapes.
    """
    if params is None:
        return template
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (params, template)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name} do not fit the network: they have {shapes[0]}, it has {shapes[1]}."
        )
    return jax.tree.map(jnp.asarray, params)


def of_weights(
    optimizer: optax.GradientTransformation, trainable: Params
) -> optax.GradientTransformation:
    """Excludes batch statistics from an optimizer, as they are averaged, not learned by gradient.

    Args:
      optimizer: any optimizer.
      trainable: the network's mask from `networks.trainable_mask`.

    Returns:
      The optimizer of only the weights.
    """
    frozen = jax.tree.map(lambda x: not x, trainable)
    # `optax.masked` passes on the gradients of other leaves, so they are set to zero first.
    return optax.chain(
        optax.masked(optax.set_to_zero(), frozen), optax.masked(optimizer, trainable)
    )


def init_optimizer(optimizer: optax.GradientTransformation, params: Params) -> Any:
    """Makes an optimizer's state for `make_update`; it excludes keys and counters."""
    return optimizer.init(_real(params)[0])


def _real(params: Params) -> tuple[Params, Params]:
    """Splits off keys and counters, such as those of dropout, which have no gradient."""
    return split(params, [is_weight(x) for x in jax.tree.leaves(params)])


def make_update(
    losses_fn: Callable[..., Any], optimizer: optax.GradientTransformation, trainable: Params
) -> Callable[..., tuple[tuple[Params, Any], dict[str, chex.Array]]]:
    """Makes one step of the optimizer.

    Args:
      losses_fn: `(params, target) -> (loss, (parts, moved))`, where `moved` are the parameters with
        updated batch statistics, as from `networks.functional_train`.
      optimizer: any optimizer, with a state from `init_optimizer`; or one from `of_weights`.
      trainable: the network's mask from `networks.trainable_mask`.

    Returns:
      `((params, opt_state), target) -> ((params, opt_state), parts)`.
    """

    def update(
        carry: tuple[Params, Any], target: Any
    ) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
        params, opt_state = carry
        own, others = _real(params)
        gradient, (parts, moved) = jax.grad(
            lambda own: losses_fn(merge(own, others), target), has_aux=True
        )(own)
        # Fixed statistics are used by the forward pass, but are not learned.
        gradient = jax.tree.map(
            lambda train, x: x if train else jax.tree.map(jnp.zeros_like, x), trainable, gradient
        )
        updates, opt_state = optimizer.update(gradient, opt_state, own)
        stepped = merge(optax.apply_updates(own, updates), others)
        # Weights take the optimizer's step; batch statistics are those of the forward pass.
        params = jax.tree.map(
            lambda train, new, stat: new if train else stat, trainable, stepped, moved
        )
        return (params, opt_state), parts

    return update


def run(
    state: Any,
    iterate: Callable[[Any], tuple[Any, dict[str, float]]],
    num_iterations: int,
    *,
    trainer: str,
    arguments: Mapping[str, Any],
    settings: Run,
    checkpoint_every: int = 1,
    formerly: Mapping[str, Any] | None = None,
    done: Callable[[Any], bool] = lambda state: False,
) -> Any:
    """Iterates until a number of iterations is done, or the callback requests a stop.

    With a directory, it resumes from the last state saved there and holds the directory's lock. On
    SIGINT and SIGTERM it ends after the current iteration and saves the state.

    Args:
      state: the state to begin with, with a field `iteration`, the iterations done.
      iterate: does one iteration; returns the state after it, and metrics including `iteration`.
      num_iterations: iterations in total.
      trainer: the trainer's name, as in `checkpoint.describe`.
      arguments: its arguments, as in `checkpoint.describe`.
      settings: the folder and the callbacks. The last state is always saved.
      checkpoint_every: iterations between checkpoints if `settings` does not specify them.
      formerly: as in `checkpoint.describe`.
      done: whether a state is the last one, regardless of the number of iterations.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if the directory holds another run or is damaged.
      RuntimeError: if another process is training there.
      FloatingPointError: if a loss is no longer finite.
    """
    call, directory = loggers.together(settings.callback), settings.directory
    checkpoint_every = settings.checkpoint_every or checkpoint_every
    with contextlib.ExitStack() as stack:
        checkpoints, caught = None, []
        if directory is not None:
            run = describe(trainer, arguments, formerly)
            checkpoints = stack.enter_context(opened(directory, run, keep=settings.keep))
            state = checkpoints.restore(state) or state
            if sharding.is_first_process():
                call = loggers.together([loggers.log_to(pathlib.Path(directory) / CURVE), call])
            caught = stack.enter_context(stopping(f"; start it again to go on from {directory}"))
        # The bar opens last and so closes first, before `stopping` prints its line.
        title = trainer.replace("_", " ")
        show = stack.enter_context(loggers.own_bar(title, num_iterations, settings.progress))
        while (iteration := int(state.iteration)) < num_iterations and not done(state):
            state, metrics = iterate(state)
            # Before callback and checkpoint, so that no state with a non-finite loss is saved.
            check_losses(metrics)
            iteration += 1
            show(state, metrics)
            # All processes call this in every iteration, as they wait for one another in it.
            stop = should_stop(call(state, metrics), caught)
            stop = stop or iteration == num_iterations or done(state)
            if checkpoints is not None and (stop or iteration % checkpoint_every == 0):
                checkpoints.save(iteration, state)
            if stop:
                break
    return state


def run_jitted(
    init: Callable[[Params], Any],
    iterate: Callable[[Any], tuple[Any, dict[str, chex.Array]]],
    params: Params,
    num_iterations: int,
    *,
    mesh: jax.sharding.Mesh | None,
    share: Callable[[Any, jax.sharding.Mesh], Any],
    positions: int | None = None,
    watch: Callable[[dict[str, float]], None] | None = None,
    evaluate: Callable[[Any], tuple[Any, dict[str, float]]] | None = None,
    evaluate_every: int = 0,
    **kept: Any,
) -> Any:
    """Compiles a trainer's iteration and runs it; see `run`.

    Args:
      init: `params -> state`, with a field `iteration`, before the first iteration.
      iterate: `state -> (state, metrics)`, a traceable iteration.
      params: the weights to start from.
      num_iterations: iterations in total.
      mesh: the devices.
      share: `(shapes of the state, mesh) -> shardings` of the state.
      positions: how many positions an iteration plays; if given, the metrics include their total.
      watch: called with the metrics of every iteration; may warn.
      evaluate: `state -> (state, metrics)`, an evaluation of the network.
      evaluate_every: iterations between evaluations; 0 for none.
      **kept: `trainer`, `arguments`, `settings` and further arguments of `run`.

    Returns:
      The state after the last iteration.

    Raises:
      As `run`.
    """
    # Everything stays where jit places it, and each state reuses the memory of the previous one.
    shardings = None if mesh is None else share(jax.eval_shape(init, params), mesh)
    state = jax.jit(init, out_shardings=shardings)(params)
    step = jax.jit(iterate, donate_argnums=0, out_shardings=sharding.beside(mesh, shardings))

    def measured(state: Any) -> tuple[Any, dict[str, float]]:
        state, found = step(state)
        iteration = int(state.iteration)
        metrics = {name: float(value) for name, value in found.items()} | {"iteration": iteration}
        if positions is not None:
            metrics["positions"] = iteration * positions
        if watch is not None:
            watch(metrics)
        if evaluate is not None and evaluate_every and iteration % evaluate_every == 0:
            # Before the matches, whose ratings would reject NaN without reporting its origin.
            check_losses(metrics)
            state, more = evaluate(state)
            metrics |= more
        return state, metrics

    return run(state, measured, num_iterations, **kept)


def check_losses(metrics: Mapping[str, float]) -> None:
    """Raises `FloatingPointError` if a loss is no longer finite."""
    for name, value in metrics.items():
        if name.endswith("loss") and not math.isfinite(value):
            raise FloatingPointError(
                f"The {name} is {value} in iteration {metrics['iteration']:g}. Take a smaller step "
                "size, clip the gradient, or look for NaN in the data, such as rewards of two "
                "players who do not lose what the other gains; the last checkpoint is from before."
            )


def should_stop(stop: bool, caught: list[int]) -> bool:
    """Returns whether any of the processes that train together was requested to stop.

    Args:
      stop: whether the callback requested it.
      caught: the list that `stopping` yielded; a signal to another process is added.
    """
    # A state is saved by all processes together, so all must stop after the same iteration.
    any_stop, number = sharding.largest(stop, caught[0] if caught else 0)
    if number and not caught:
        caught.append(number)
    return bool(any_stop or number)


@contextlib.contextmanager
def stopping(advice: str) -> Iterator[list[int]]:
    """Defers SIGINT and SIGTERM to the end of a block; a second signal acts at once.

    Args:
      advice: how to resume, for the line that is printed.

    Yields:
      The signals received: at most one. After the block the process ends with the usual status, 128
      plus the signal's number; an interactive session raises `KeyboardInterrupt` instead.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield caught
        return
    before: dict[int, Any] = {}

    # A handler that was not set from Python is given as None, and cannot be restored.
    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def note(number: int, frame: Any) -> None:
        del frame
        caught.append(number)
        # From here on signals act as usual, so that a second one ends the process at once.
        restore()
        # Not print: the signal may have interrupted one.
        os.write(2, f"{signal.Signals(number).name}: ends after this iteration.\n".encode())

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note)
    try:
        yield caught
    finally:
        restore()
    if caught:
        name = signal.Signals(caught[0]).name
        line = f"Stopped by {name} and saved{advice}."
        # An interactive session must not end, so it returns to its prompt.
        if hasattr(sys, "ps1"):
            raise KeyboardInterrupt(line)
        print(line, file=sys.stderr)
        raise SystemExit(128 + caught[0])
