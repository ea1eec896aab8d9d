"""What trainers share: the optimizer of the weights, and the loop with checkpoints and callback."""

from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from jaxpgs.base import Params
from jaxpgs.training.checkpoint import Checkpoints


def check_counts(counts: Mapping[str, int]) -> None:
    """Raises `ValueError` unless all of these numbers, given by name, are at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")


def like(params: Params, template: Params, name: str = "init_params") -> Params:
    """Copies weights, and checks that they fit the network.

    Args:
      params: the weights.
      template: the network's own.
      name: the argument's name, for the message.

    Returns:
      The weights as arrays of JAX.

    Raises:
      ValueError: if they have other names or shapes.
    """
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (params, template)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name} do not fit the network: they have {shapes[0]}, it has {shapes[1]}."
        )
    return jax.tree.map(jnp.asarray, params)


def of_weights(
    optimizer: optax.GradientTransformation, trainable: Params
) -> optax.GradientTransformation:
    """Keeps an optimizer from batch statistics, which move by averaging, not by gradient.

    Args:
      optimizer: any optimizer.
      trainable: what `networks.trainable_mask` says of the network.

    Returns:
      The optimizer of the weights alone.
    """
    frozen = jax.tree.map(lambda x: not x, trainable)
    return optax.chain(
        optax.masked(optax.set_to_zero(), frozen), optax.masked(optimizer, trainable)
    )


def make_update(
    losses_fn: Callable[..., Any], optimizer: optax.GradientTransformation, trainable: Params
) -> Callable[..., tuple[tuple[Params, Any], dict[str, chex.Array]]]:
    """Makes one step of the optimizer.

    Args:
      losses_fn: `(params, target) -> (loss, (parts, moved))`, where `moved` are the parameters with
        the batch statistics moved, as `networks.functional_train` gives them.
      optimizer: from `of_weights`.
      trainable: what `networks.trainable_mask` says of the network.

    Returns:
      `((params, opt_state), target) -> ((params, opt_state), parts)`.
    """

    def update(
        carry: tuple[Params, Any], target: Any
    ) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
        params, opt_state = carry
        gradient, (parts, moved) = jax.grad(losses_fn, has_aux=True)(params, target)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        stepped = optax.apply_updates(params, updates)
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
    checkpoints: Checkpoints | None = None,
    checkpoint_every: int = 50,
    callback: Callable[[Any, dict[str, float]], Any] | None = None,
) -> Any:
    """Iterates until a number of iterations is done, or the callback asks to stop.

    Args:
      state: the state to go on from, with a field `iteration`, the iterations done.
      iterate: does one iteration; returns the state after it, and metrics.
      num_iterations: iterations in all.
      checkpoints: where to save the state, None for nowhere.
      checkpoint_every: iterations between checkpoints. The last state is saved in any case.
      callback: called after every iteration with the state and its metrics; a true answer ends the
        loop.

    Returns:
      The state after the last iteration.
    """
    while (iteration := int(state.iteration)) < num_iterations:
        state, metrics = iterate(state)
        iteration += 1
        stop = callback is not None and bool(callback(state, metrics))
        is_due = stop or iteration % checkpoint_every == 0 or iteration == num_iterations
        if checkpoints is not None and is_due:
            checkpoints.save(iteration, state)
        if stop:
            break
    return state
