"""Policy gradients on whole games of one player: proximal policy optimization (PPO).

Schulman et al. 2017, with generalised advantages (Schulman et al. 2016). Where `generations`
imitates what searches found, this teaches a policy what its own games earned, with the network's
value for a baseline: no search, every position seen once or twice. What is learned serves the
searches as a prior, as rollouts and as a value.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxpgs.base import Params
from jaxpgs.networks import functional, functional_train, trainable_mask
from jaxpgs.training.checkpoint import Checkpoints, describe
from jaxpgs.training.generations import make_measure


class TrainState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      state: `[B]` positions of the games that are being played.
      score: `[B]` what they have earned so far.
      iteration: `[]` int32, iterations done.
    """

    params: Params
    opt_state: Any
    state: Any
    score: chex.Array
    iteration: chex.Array


class Steps(NamedTuple):
    """What was played: T steps of B games, a game's end followed by the next one's beginning.

    Attributes:
      state: `[T, B]` positions.
      action: `[T, B]` int32 the action drawn there.
      log_prob: `[T, B]` of the action, by the policy that drew it.
      value: `[T, B]` the network's value.
      reward: `[T, B]` what the action earned.
      done: `[T, B]` bool, whether it ended the game.
      alive: `[T, B]` bool, false where a board was over before it began.
      score: `[T, B]` what the game had earned by then, this step included.
    """

    state: Any
    action: chex.Array
    log_prob: chex.Array
    value: chex.Array
    reward: chex.Array
    done: chex.Array
    alive: chex.Array
    score: chex.Array


def train(
    env: Any,
    network: nnx.Module,
    *,
    num_iterations: int = 500,
    num_games: int = 64,
    num_steps: int = 32,
    num_epochs: int = 2,
    batch_size: int = 256,
    step_size: float = 5e-4,
    trace_decay: float = 0.95,
    clip: float = 0.2,
    value_weight: float = 0.5,
    entropy_weight: float = 0.02,
    optimizer: optax.GradientTransformation | None = None,
    init_params: Params | None = None,
    num_test_boards: int = 256,
    measure_every: int = 50,
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    keep: int = 2,
    callback: Callable[[TrainState, dict[str, float]], Any] | None = None,
) -> TrainState:
    """Trains a policy and a value on boards drawn from `env.init`.

    An iteration plays `num_steps` moves of `num_games` games, then passes `num_epochs` times over
    them in batches. Nothing depends on the size of scores: advantages are divided by their standard
    deviation and the squared error of the value by the variance of its targets.

    Args:
      env: a game of one player; if it has `policy_logits`, logits pass through it.
      network: a policy and value network. It is not changed.
      num_iterations: iterations in all, counting those of an earlier call in `directory`.
      num_games: B, games played side by side.
      num_steps: T, moves of each in an iteration.
      num_epochs: passes over them.
      batch_size: moves per step of the optimizer, a divisor of B * T.
      step_size: Adam's, which falls linearly to 0; gradients are clipped to a norm of 0.5.
      trace_decay: lambda of the generalised advantages, 0 to 1. There is no discount.
      clip: how far a probability ratio may move from 1 before its gradient stops.
      value_weight: weight of the value's loss.
      entropy_weight: weight of the policy's entropy.
      optimizer: any optax optimizer in place of Adam.
      init_params: weights to begin from; the network's own if None.
      num_test_boards: boards on which the policy alone is measured.
      measure_every: iterations between measurements and between checkpoints.
      seed: seed of everything random but the network's own weights.
      directory: where to keep checkpoints. Called again with the same directory and arguments,
        training goes on from the last one and ends as if it had never stopped, bit by bit.
      keep: checkpoints to keep.
      callback: called after every iteration with the state and a dict of metrics; a true answer
        ends the training. `score` is the mean of the games that ended in it, `explained` the share
        of the variance of the value's targets that the value explains; every `measure_every`
        iterations also `policy_score`, `greedy_score` and `random_score`, as in
        `generations.train`.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if an argument is out of range, or `directory` holds another run or is damaged.
    """
    counts = {
        "num_iterations": num_iterations, "num_games": num_games, "num_steps": num_steps,
        "num_epochs": num_epochs, "batch_size": batch_size, "num_test_boards": num_test_boards,
        "measure_every": measure_every, "keep": keep,
    }  # fmt: skip
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")
    if not 0 <= trace_decay <= 1:
        raise ValueError(f"trace_decay must be between 0 and 1, got {trace_decay}.")
    if num_games * num_steps % batch_size:
        raise ValueError(
            f"batch_size must divide num_games * num_steps = {num_games * num_steps}, got "
            f"{batch_size}."
        )
    own, apply_fn = functional(network)
    params = own if init_params is None else init_params
    if optimizer is None:
        num_updates = num_iterations * num_epochs * (num_games * num_steps // batch_size)
        schedule = optax.linear_schedule(step_size, 0.0, num_updates)
        optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule))
    play = jax.jit(_make_play(env, apply_fn, num_steps, trace_decay))
    update = jax.jit(_make_update(env, network, optimizer, clip, value_weight, entropy_weight))
    measure = jax.jit(make_measure(env, apply_fn, num_test_boards))
    init_key, play_key, test_key = jax.random.split(jax.random.key(seed), 3)
    boards = jax.vmap(env.init)(jax.random.split(init_key, num_games))
    state = TrainState(params, optimizer.init(params), boards, jnp.zeros(num_games), jnp.int32(0))
    checkpoints = None
    if directory is not None:
        checkpoints = Checkpoints(directory, describe(env, network, seed), keep=keep)
        state = checkpoints.restore(state) or state
    while (iteration := int(state.iteration)) < num_iterations:
        key = jax.random.fold_in(play_key, iteration)
        boards, score, steps, targets = play(state.params, state.state, state.score, key)
        params, opt_state = state.params, state.opt_state
        rng = np.random.default_rng((seed, iteration))
        parts: list[dict[str, chex.Array]] = []
        for _ in range(num_epochs):
            for index in rng.permutation(num_games * num_steps).reshape(-1, batch_size):
                params, opt_state, part = update(params, opt_state, steps, targets, index)
                parts.append(part)
        state = TrainState(params, opt_state, boards, score, jnp.int32(iteration + 1))
        ended = np.asarray(steps.done & steps.alive)
        metrics = {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
        metrics |= {"iteration": iteration + 1, "games": int(ended.sum())}
        metrics["score"] = float(np.asarray(steps.score)[ended].mean()) if ended.any() else np.nan
        measures = (iteration + 1) % measure_every == 0 or iteration + 1 == num_iterations
        if measures:
            metrics |= {name: float(x) for name, x in measure(params, test_key).items()}
        stop = callback is not None and bool(callback(state, metrics))
        if checkpoints is not None and (measures or stop):
            checkpoints.save(iteration + 1, state)
        if stop:
            break
    return state


def _make_play(
    env: Any, apply_fn: Any, num_steps: int, trace_decay: float
) -> Callable[..., tuple[Any, chex.Array, Steps, tuple[chex.Array, chex.Array]]]:
    """Makes `(params, state, score, rng_key) -> state, score, steps, (advantages, returns)`."""
    policy = _make_policy(env)

    def play(
        params: Params, state: Any, score: chex.Array, rng_key: chex.PRNGKey
    ) -> tuple[Any, chex.Array, Steps, tuple[chex.Array, chex.Array]]:
        def step(carry: tuple, rng_key: chex.PRNGKey) -> tuple[tuple, Steps]:
            state, score = carry
            action_key, init_key = jax.random.split(rng_key)
            logits, value = apply_fn(params, jax.vmap(env.observe)(state))
            log_policy = policy(state, logits)
            action = jax.random.categorical(action_key, log_policy).astype(jnp.int32)
            after = jax.vmap(env.step)(state, action)
            score = score + after.rewards[:, 0]
            made = Steps(
                state=state,
                action=action,
                log_prob=_chosen(log_policy, action),
                value=value,
                reward=after.rewards[:, 0],
                done=after.terminated,
                alive=~state.terminated,
                score=score,
            )
            fresh = jax.vmap(env.init)(jax.random.split(init_key, len(action)))
            after = jax.tree.map(
                lambda new, old: jnp.where(made.done.reshape(-1, *[1] * (old.ndim - 1)), new, old),
                fresh,
                after,
            )
            return (after, jnp.where(made.done, 0.0, score)), made

        keys = jax.random.split(rng_key, num_steps)
        (state, score), steps = jax.lax.scan(step, (state, score), keys)
        _, last = apply_fn(params, jax.vmap(env.observe)(state))

        def back(carry: tuple, step: Steps) -> tuple[tuple, chex.Array]:
            advantage, following = carry
            going = jnp.where(step.done, 0.0, 1.0)
            error = step.reward + going * following - step.value
            advantage = error + trace_decay * going * advantage
            return (advantage, step.value), advantage

        start = jnp.zeros_like(last), last
        _, advantage = jax.lax.scan(back, start, steps, reverse=True)
        return state, score, steps, (advantage, advantage + steps.value)

    return play


def _make_update(
    env: Any,
    network: nnx.Module,
    optimizer: optax.GradientTransformation,
    clip: float,
    value_weight: float,
    entropy_weight: float,
) -> Callable[..., tuple[Params, Any, dict[str, chex.Array]]]:
    """Makes one step of the optimizer on the moves that `index` names."""
    policy, train_fn = _make_policy(env), functional_train(network)
    trainable = trainable_mask(network)

    def update(
        params: Params,
        opt_state: Any,
        steps: Steps,
        targets: tuple[chex.Array, chex.Array],
        index: chex.Array,
    ) -> tuple[Params, Any, dict[str, chex.Array]]:
        batch, (advantage, returns) = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:])[index], (steps, targets)
        )
        weight = batch.alive.astype(advantage.dtype)
        weight = weight / jnp.maximum(jnp.sum(weight), 1.0)

        def mean(x: chex.Array) -> chex.Array:
            return jnp.sum(weight * x)

        spread = jnp.sqrt(mean((advantage - mean(advantage)) ** 2)) + 1e-6
        advantage = (advantage - mean(advantage)) / spread
        variance = mean((returns - mean(returns)) ** 2) + 1e-6
        observation = jax.vmap(env.observe)(batch.state)

        def loss_fn(params: Params) -> tuple[chex.Array, tuple]:
            (logits, value), moved = train_fn(params, observation)
            log_policy = policy(batch.state, logits)
            ratio = jnp.exp(_chosen(log_policy, batch.action) - batch.log_prob)
            clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
            gain = mean(jnp.minimum(ratio * advantage, clipped * advantage))
            entropy = -mean(jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1))
            value_loss = mean((value - returns) ** 2) / variance
            loss = -gain + value_weight * value_loss - entropy_weight * entropy
            parts = {"policy_loss": -gain, "value_loss": value_loss, "entropy": entropy}
            parts["explained"] = 1 - value_loss
            return loss, (parts, moved)

        gradient, (parts, moved) = jax.grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        stepped = optax.apply_updates(params, updates)
        # Batch statistics are no weights: they move by averaging, not by gradient.
        params = jax.tree.map(lambda t, new, stat: new if t else stat, trainable, stepped, moved)
        return params, opt_state, parts

    return update


def _make_policy(env: Any) -> Callable[[Any, chex.Array], chex.Array]:
    """Makes `(state [B], logits [B, A]) -> log-probabilities [B, A]`, finite where illegal."""

    def policy(state: Any, logits: chex.Array) -> chex.Array:
        if hasattr(env, "policy_logits"):
            logits = jax.vmap(env.policy_logits)(state, logits)
        # Finite, so that their products with a probability of 0 are 0.
        logits = jnp.where(state.legal_action_mask, logits, -1e9)
        return jax.nn.log_softmax(logits)

    return policy


def _chosen(log_policy: chex.Array, action: chex.Array) -> chex.Array:
    return jnp.take_along_axis(log_policy, action[:, None], axis=1)[:, 0]
