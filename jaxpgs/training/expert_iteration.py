"""Expert iteration: a search plays itself, the network imitates it, and the search gets better.

Anthony et al. 2019, section 5. One iteration is one jitted call: self-play, a replay buffer on the
device, and steps of the optimizer.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpgs.base import Params
from jaxpgs.networks import functional, functional_train, trainable_mask
from jaxpgs.training import losses, selfplay
from jaxpgs.training.checkpoint import Checkpoints


class TrainState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      games: the G positions in play.
      buffer: the last experience, with batch axes `[capacity, S, G]`, oldest overwritten first.
      iteration: `[]` int32, iterations done.
      rng_key: the key of the next iteration.
    """

    params: Params
    opt_state: Any
    games: Any
    buffer: selfplay.Experience
    iteration: chex.Array
    rng_key: chex.PRNGKey


def train(
    env: Any,
    module: nnx.Module,
    *,
    expert: selfplay.Expert | None = None,
    num_iterations: int = 200,
    num_games: int = 512,
    num_steps: int = 16,
    buffer_capacity: int = 16,
    batch_size: int = 1024,
    updates_per_iteration: int = 32,
    optimizer: optax.GradientTransformation | None = None,
    value_weight: float = 1.0,
    max_random_moves: int = 1,
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 50,
    callback: Callable[[TrainState, dict[str, float]], Any] | None = None,
) -> TrainState:
    """Trains a network from nothing by self-play.

    Args:
      env: the environment; if it has `symmetries`, they augment the data.
      module: the network; only its structure and initial weights are used.
      expert: the search that plays; `selfplay.gumbel(16)` if None.
      num_iterations: iterations in all, counting those of an earlier call in `directory`.
      num_games: G, games played side by side.
      num_steps: S, moves of each game per iteration.
      buffer_capacity: iterations whose experience the buffer keeps.
      batch_size: positions per step of the optimizer.
      updates_per_iteration: steps of the optimizer per iteration.
      optimizer: any optax optimizer; by default Adam with weight decay 1e-4, gradients clipped at
        norm 1, and a step size falling from 1e-3 to 1e-5 along a cosine. The paper's is
        `optax.sgd(0.01, momentum=0.9)` with weight decay 1e-4, tuned for days of training.
      value_weight: weight of the value loss.
      max_random_moves: most random moves at the start of a game; see `selfplay.init_games`.
      seed: seed of everything random but the initial weights.
      directory: where to keep checkpoints. Called again with the same directory and arguments,
        training goes on from the last one and ends as if it had never stopped.
      checkpoint_every: iterations between checkpoints.
      callback: called after every iteration with the state and a dict of metrics; a true answer
        ends the training.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if a count is below 1, or `directory` holds a run of other shapes.
    """
    counts = {
        "num_iterations": num_iterations,
        "num_games": num_games,
        "num_steps": num_steps,
        "buffer_capacity": buffer_capacity,
        "batch_size": batch_size,
        "updates_per_iteration": updates_per_iteration,
        "max_random_moves": max_random_moves,
        "checkpoint_every": checkpoint_every,
    }
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")
    expert = selfplay.gumbel() if expert is None else expert
    params, apply_fn = functional(module)
    train_fn = functional_train(module)
    trainable = trainable_mask(module)
    if optimizer is None:
        schedule = optax.cosine_decay_schedule(
            1e-3, num_iterations * updates_per_iteration, alpha=0.01
        )
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4)
        )
    # Batch statistics are no weights: they move by averaging, not by gradient.
    frozen = jax.tree.map(lambda x: not x, trainable)
    optimizer = optax.chain(
        optax.masked(optax.set_to_zero(), frozen), optax.masked(optimizer, trainable)
    )

    def fit(carry: tuple, rng_key: chex.PRNGKey) -> tuple[tuple, dict[str, Any]]:
        params, opt_state, buffer, filled = carry
        target = _sample(env, buffer, filled, rng_key, batch_size)

        def loss_fn(params: Params) -> tuple[chex.Array, tuple]:
            (logits, value), moved = train_fn(params, target.observation)
            loss, parts = losses.policy_value_loss(logits, value, target, value_weight=value_weight)
            return loss, (parts, moved)

        gradient, (parts, moved) = jax.grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        stepped = optax.apply_updates(params, updates)
        params = jax.tree.map(
            lambda train, new, stat: new if train else stat, trainable, stepped, moved
        )
        return (params, opt_state, buffer, filled), parts

    @jax.jit
    def iterate(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        rng_key, play_key, fit_key = jax.random.split(state.rng_key, 3)
        games, experience = selfplay.play(
            env, apply_fn, expert, state.params, play_key, state.games, num_steps, max_random_moves
        )
        slot = state.iteration % buffer_capacity
        buffer = jax.tree.map(
            lambda old, new: old.at[slot].set(new.astype(old.dtype)), state.buffer, experience
        )
        filled = jnp.minimum(state.iteration + 1, buffer_capacity)
        (params, opt_state, _, _), parts = jax.lax.scan(
            fit,
            (state.params, state.opt_state, buffer, filled),
            jax.random.split(fit_key, updates_per_iteration),
        )
        metrics = jax.tree.map(jnp.mean, parts)
        state = TrainState(params, opt_state, games, buffer, state.iteration + 1, rng_key)
        return state, metrics

    rng_key, games_key = jax.random.split(jax.random.key(seed))
    state = TrainState(
        params=params,
        opt_state=optimizer.init(params),
        games=selfplay.init_games(env, games_key, num_games, max_random_moves),
        buffer=_empty_buffer(env, (buffer_capacity, num_steps, num_games)),
        iteration=jnp.int32(0),
        rng_key=rng_key,
    )
    checkpoints = None if directory is None else Checkpoints(directory)
    if checkpoints is not None:
        state = checkpoints.restore(state) or state
    while (iteration := int(state.iteration)) < num_iterations:
        state, metrics = iterate(state)
        iteration += 1
        values = {name: float(value) for name, value in metrics.items()}
        values |= {"iteration": iteration, "positions": iteration * num_steps * num_games}
        stop = callback is not None and bool(callback(state, values))
        if checkpoints is not None and (
            stop or iteration % checkpoint_every == 0 or iteration == num_iterations
        ):
            checkpoints.save(iteration, state)
        if stop:
            break
    return state


def _empty_buffer(env: Any, axes: tuple[int, ...]) -> selfplay.Experience:
    # Planes of Hex hold 0 and 1, so the buffer keeps observations in a byte each.
    return selfplay.Experience(
        observation=jnp.zeros((*axes, *env.observation_shape), jnp.int8),
        legal=jnp.zeros((*axes, env.num_actions), bool),
        policy=jnp.zeros((*axes, env.num_actions), jnp.float32),
        value=jnp.zeros(axes, jnp.float32),
    )


def _sample(
    env: Any,
    buffer: selfplay.Experience,
    filled: chex.Array,
    rng_key: chex.PRNGKey,
    batch_size: int,
) -> selfplay.Experience:
    """Draws positions uniformly, each in one of its symmetric forms."""
    *keys, turn_key = jax.random.split(rng_key, 4)
    limits = (filled, *buffer.value.shape[1:])
    index = tuple(
        jax.random.randint(key, (batch_size,), 0, limit)
        for key, limit in zip(keys, limits, strict=True)
    )
    batch = jax.tree.map(lambda x: x[index], buffer)
    if not hasattr(env, "symmetries"):
        return batch
    forms = env.symmetries(batch.observation, batch.policy)
    legal = [mask for _, mask in env.symmetries(batch.observation, batch.legal)]
    turn = jax.random.randint(turn_key, (batch_size,), 0, len(forms))
    rows = jnp.arange(batch_size)
    return batch._replace(
        observation=jnp.stack([form[0] for form in forms])[turn, rows],
        policy=jnp.stack([form[1] for form in forms])[turn, rows],
        legal=jnp.stack(legal)[turn, rows],
    )
