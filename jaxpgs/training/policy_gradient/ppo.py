"""PPO with delta-uniform self-play: a policy without a search (Brosseit 2023, sections 5.2, 5.4).

One iteration is one jitted call: a rollout of games against opponents drawn from the learner's
history, and epochs of minibatches on the clipped objective of Schulman et al. 2017. The network
that comes out is one like any other, the prior of every search.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpgs.adapters.environments import check_players
from jaxpgs.base import Env, Params, values_like
from jaxpgs.checks import check_count, check_number
from jaxpgs.networks import functional, functional_train, trainable_mask
from jaxpgs.training.policy_gradient import learner_games, past_selves
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.two_player.head_to_head import make_compare


class PPOState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      games: the G games in play.
      history: snapshots of the parameters, the opponents.
      iteration: `[]` int32, iterations done.
      rng_key: the key of the next iteration.
    """

    params: Params
    opt_state: Any
    games: learner_games.LearnerGames
    history: past_selves.History
    iteration: chex.Array
    rng_key: chex.PRNGKey


class Moves(NamedTuple):
    """Moves to learn from; `B` is any number of them.

    Attributes:
      observation: `[B, *observation_shape]`.
      legal: `[B, A]` bool, in the network's frame.
      action: `[B]` int32, what was played, in the network's frame.
      log_prob: `[B]` its log probability when it was played.
      advantage: `[B]` how much better it was than expected.
      value: `[B]` the target of the value.
      mine: `[B]` bool, whether it was the learner's move; others do not count.
    """

    observation: chex.Array
    legal: chex.Array
    action: chex.Array
    log_prob: chex.Array
    advantage: chex.Array
    value: chex.Array
    mine: chex.Array


def clipped(
    log_prob: chex.Array, old_log_prob: chex.Array, advantage: chex.Array, clip: float
) -> chex.Array:
    """The clipped surrogate of each move, to be maximised (Schulman et al. 2017, eq. 7).

    Args:
      log_prob: the policy's log probability of the move, any shape.
      old_log_prob: that of the policy that played, of the same shape.
      advantage: of the same shape.
      clip: epsilon. A ratio of probabilities further from 1 than this, in the direction that the
        advantage asks for, gains nothing more.

    Returns:
      The surrogate, of the same shape. At a ratio of 1 its gradient is the policy gradient.
    """
    ratio = jnp.exp(log_prob - old_log_prob)
    bounded = jnp.clip(ratio, 1 - clip, 1 + clip)
    return jnp.minimum(ratio * advantage, bounded * advantage)


def ppo_loss(
    logits: chex.Array,
    value: chex.Array,
    moves: Moves,
    *,
    clip: float = 0.2,
    value_weight: float = 0.5,
    entropy_weight: float = 0.01,
) -> tuple[chex.Array, dict[str, chex.Array]]:
    """The loss of PPO: clipped surrogate, squared error of the value, entropy bonus (its eq. 9).

    Args:
      logits: `[B, A]` the network's logits. Illegal actions have probability 0 and no gradient.
      value: `[B]` the network's values; a column `[B, 1]` counts as well.
      moves: the moves.
      clip: epsilon; see `clipped`.
      value_weight: weight of the squared error.
      entropy_weight: weight of the policy's entropy, in nats.

    Returns:
      The loss `[]`, and its parts: `policy_loss`, `value_loss`, `entropy`, `approximate_kl` of the
      policy that played to this one, and `clipped`, the share of moves whose ratio is out of
      bounds.
    """
    logits = jnp.where(moves.legal, logits.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    log_policy = jax.nn.log_softmax(logits)
    log_prob = jnp.take_along_axis(log_policy, moves.action[:, None], axis=-1)[:, 0]
    shares = jnp.where(moves.legal, jnp.exp(log_policy) * log_policy, 0.0)
    # What is no move of the learner's may hold anything.
    log_ratio = jnp.where(moves.mine, log_prob - moves.log_prob, 0.0)
    ratio = jnp.exp(log_ratio)
    count = jnp.maximum(jnp.sum(moves.mine), 1).astype(jnp.float32)

    def mean(x: chex.Array) -> chex.Array:
        return jnp.sum(jnp.where(moves.mine, x, 0.0)) / count

    advantage = jnp.where(moves.mine, moves.advantage, 0.0)
    value = values_like(value, moves.value).astype(jnp.float32)
    error = jnp.where(moves.mine, value - moves.value, 0.0)
    policy_loss = -mean(clipped(log_ratio, jnp.zeros_like(log_ratio), advantage, clip))
    value_loss = mean(jnp.square(error))
    entropy = mean(-jnp.sum(shares, axis=-1))
    loss = policy_loss + value_weight * value_loss - entropy_weight * entropy
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": mean(ratio - 1 - log_ratio),
        "clipped": mean((jnp.abs(ratio - 1) > clip).astype(jnp.float32)),
    }


def paper_optimizer(step_size: float = 6e-4) -> optax.GradientTransformation:
    """Adam on gradients clipped to norm 100, as Brosseit 2023, table A.1."""
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(step_size))


def train(
    env: Env,
    network: nnx.Module,
    *,
    num_iterations: int = 100,
    num_games: int = 256,
    num_steps: int = 32,
    max_random_moves: int = 0,
    max_moves: int | None = None,
    delta: float = 1.0,
    num_opponents: int = 8,
    schedule: str = "in_turn",
    history_size: int = 64,
    snapshot_every: int = 1,
    pool: Sequence[Params] = (),
    pool_fraction: float = 0.0,
    random_fraction: float = 0.0,
    discount: float = 1.0,
    gae_lambda: float = 1.0,
    batch_size: int = 2048,
    epochs: int = 6,
    clip: float = 0.2,
    value_weight: float = 0.5,
    entropy_weight: float = 0.01,
    normalize_advantages: bool = True,
    optimizer: optax.GradientTransformation | None = None,
    init_params: Params | None = None,
    evaluate_every: int = 10,
    seed: int = 0,
    devices: Sequence[jax.Device] | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    keep: int = 2,
    callback: iterations.Callback | Sequence[iterations.Callback] | None = None,
    progress: bool | None = None,
) -> PPOState:
    """Trains a policy and value network by PPO against former versions of itself.

    The defaults are those of Brosseit 2023, table A.1, with fewer games: the thesis played 120,000
    steps per iteration on 5x5 Hex. Of the learner it says nothing about random starts, the value's
    weight and the normalisation of advantages.

    Deviations: the C opponents of an iteration are played side by side, where the thesis plays all
    of the history one after another; games go on from one iteration to the next, so an opponent may
    be relieved within a game, as with the thesis's schedule. To the learner both are chance of its
    environment.

    The policy plays with the population statistics of batch normalisation, and learns with those
    of its minibatch, so that ratios are not 1 at first. Networks whose `norm` is "layer", or that
    do not normalise, are free of that.

    Args:
      env: the environment, ours or pgx's, with two players.
      network: the network; only its structure and initial weights are used.
      num_iterations: iterations in all, counting those of an earlier call in `directory`.
      num_games: G, games played side by side; in every other one the learner moves first, and after
        each game it changes seats.
      num_steps: S, moves of the learner in each game per iteration.
      max_random_moves: most random moves before a game's start; see `selfplay.init_games`.
      max_moves: moves after which a game ends as it stands, which games without an end need; see
        `selfplay.play`. Games that rate versions count as draws then, and after 4,096 if None.
      delta: the share of the history, its most recent part, that opponents are drawn from: 0 is the
        newest parameters alone, naive self-play, and 1 the whole history.
      num_opponents: C, opponents of an iteration, a divisor of `num_games`; each plays as many
        games.
      schedule: "in_turn" or "random"; see `opponents.draw`.
      history_size: H, snapshots that are kept, each the size of the parameters.
      snapshot_every: iterations between snapshots. The whole history of a run counts only if H
        times this is at least the run's iterations.
      pool: further parameters of the network to play against, which never change.
      pool_fraction: share of the opponents that come from the pool, 0 to 1.
      random_fraction: share of the opponents that play uniformly at random, 0 to 1.
      discount: gamma, for each move of the learner, 0 to 1.
      gae_lambda: lambda, 0 to 1; see `learner_games.advantages`.
      batch_size: moves per step of the optimizer, a divisor of `num_games * num_steps`.
      epochs: how often an iteration learns from each move.
      clip: epsilon of the clipped surrogate, above 0.
      value_weight: weight of the value loss, at least 0.
      entropy_weight: weight of the entropy bonus, at least 0.
      normalize_advantages: whether an iteration's advantages get mean 0 and deviation 1.
      optimizer: any optax optimizer; `paper_optimizer()` if None.
      init_params: weights to start from; the network's own if None.
      evaluate_every: iterations between ratings of the newest network; see `elo_along`. 0 for none.
      seed: seed of everything random but the initial weights.
      devices: devices to share the games and each minibatch among, `jax.devices()` for all of all
        processes; `num_games` and `batch_size` must be multiples of their number, and
        `num_opponents` a multiple or a divisor of it. The games do not depend on it; sums over a
        batch may be rounded otherwise. None is the default device.
      directory: where to keep checkpoints. Called again with the same directory and arguments,
        training goes on from the last one and ends as if it had never stopped, bit by bit.
      checkpoint_every: iterations between checkpoints.
      keep: checkpoints to keep.
      callback: called after every iteration with the state and a dict of metrics, or several such
        functions; a true answer ends the training. The next iteration overwrites the state, so copy
        what you keep.
      progress: whether to show a bar on standard error; None shows one in a terminal.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if an argument is out of range, or `directory` holds another run or is damaged.
      RuntimeError: if another process trains in `directory`.
      FloatingPointError: if a loss is no longer finite.

    Example:
      >>> games = {"num_games": 8, "num_steps": 4, "batch_size": 16}
      >>> state = jaxpgs.training.ppo.train(
      ...     env, module, num_iterations=1, epochs=1, evaluate_every=0, **games
      ... )
      >>> int(state.iteration)
      1
    """
    arguments = dict(locals())
    _check_arguments(env, arguments)
    mesh = sharding.make_mesh(devices, {"num_games": num_games, "batch_size": batch_size})
    share = _check_opponents(num_opponents, 1 if mesh is None else mesh.size)

    own_params, apply_fn = functional(network)
    params = own_params if init_params is None else iterations.like(init_params, own_params)
    frozen = [iterations.like(one, own_params, "The parameters of the pool") for one in pool]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *frozen) if frozen else None
    trainable = trainable_mask(network)
    optimizer = iterations.of_weights(optimizer or paper_optimizer(), trainable)
    losses_fn = _make_losses(
        network, clip=clip, value_weight=value_weight, entropy_weight=entropy_weight
    )
    learn = _make_learn(
        iterations.make_update(losses_fn, optimizer, trainable), batch_size, epochs, mesh
    )

    def play(
        params: Params,
        met: past_selves.Opponents,
        rng_key: chex.PRNGKey,
        games: learner_games.LearnerGames,
    ) -> tuple[Any, ...]:
        return learner_games.play(
            env, apply_fn, params, met, rng_key, games, num_steps,
            max_random_moves=max_random_moves, max_moves=max_moves,
        )  # fmt: skip

    shared_play = sharding.per_device(mesh, play, (None, 0, None, 0), (0, 1, 0, 1))

    def iterate(state: PPOState) -> tuple[PPOState, dict[str, chex.Array]]:
        rng_key, draw_key, play_key, fit_key = jax.random.split(state.rng_key, 4)
        history = jax.lax.cond(
            state.iteration % snapshot_every == 0,
            lambda: past_selves.add(state.history, state.params, state.iteration),
            lambda: state.history,
        )
        met = past_selves.draw(
            history,
            state.params,
            draw_key,
            num_opponents,
            delta=delta,
            schedule=schedule,
            pool=stacked,
            pool_fraction=pool_fraction,
            random_fraction=random_fraction,
        )
        met = jax.tree.map(lambda x: jnp.repeat(x, share, axis=0), met)
        games, rollout, last_value, result = shared_play(state.params, met, play_key, state.games)
        moves = _moves(rollout, last_value, discount, gae_lambda, normalize_advantages)
        (params, opt_state), parts = learn((state.params, state.opt_state), moves, fit_key)
        metrics = jax.tree.map(jnp.mean, parts) | _count_games(rollout, result)
        metrics |= {"opponents": past_selves.window(history, delta)}
        state = PPOState(params, opt_state, games, history, state.iteration + 1, rng_key)
        return state, metrics

    rng_key, games_key = jax.random.split(jax.random.key(seed))

    def init(params: Params) -> PPOState:
        first = jnp.arange(num_games) % 2 == 0
        return PPOState(
            params=params,
            opt_state=optimizer.init(params),
            games=learner_games.start(env, games_key, first, max_random_moves=max_random_moves),
            history=past_selves.init(params, history_size),
            iteration=jnp.int32(0),
            rng_key=rng_key,
        )

    shardings = None if mesh is None else _shardings(jax.eval_shape(init, params), mesh)
    state = jax.jit(init, out_shardings=shardings)(params)
    # Each iteration's state takes the last one's memory, the history's most of all.
    iterate = jax.jit(iterate, donate_argnums=0, out_shardings=sharding.beside(mesh, shardings))
    compare, num_openings = make_compare(env, apply_fn, max_moves)

    def measured(state: PPOState) -> tuple[PPOState, dict[str, float]]:
        state, found = iterate(state)
        iteration = int(state.iteration)
        metrics = {name: float(value) for name, value in found.items()}
        metrics |= {"iteration": iteration, "positions": iteration * num_steps * num_games}
        if evaluate_every and iteration % evaluate_every == 0:
            iterations.check_losses(metrics)
            along = past_selves.elo_along(
                state.history, state.params, iteration, compare, 2 * num_openings, num_players=5
            )
            metrics |= {
                "elo": float(along.table.ratings[-1]),
                "score_against_history": float(along.scores[-1, :-1].mean()),
            }
        return state, metrics

    return iterations.run(
        state, measured, num_iterations, trainer="ppo", arguments=arguments, directory=directory,
        checkpoint_every=checkpoint_every, keep=keep, callback=callback, progress=progress,
        formerly={"max_moves": None},
    )  # fmt: skip


def _check_arguments(env: Env, arguments: Mapping[str, Any]) -> None:
    """Raises `ValueError` for arguments of `train` that are out of range."""
    counts = (
        "num_iterations", "num_games", "num_steps", "num_opponents", "history_size",
        "snapshot_every", "batch_size", "epochs", "checkpoint_every", "keep",
    )  # fmt: skip
    iterations.check_counts({name: arguments[name] for name in counts})
    if arguments["max_moves"] is not None:
        check_count("train", "max_moves", arguments["max_moves"])
    check_players("ppo.train", env, (2,), "puzzle_iteration.train is for one player.")
    num_games, num_opponents = arguments["num_games"], arguments["num_opponents"]
    num_moves, batch_size = num_games * arguments["num_steps"], arguments["batch_size"]
    if num_games % num_opponents or num_moves % batch_size:
        raise ValueError(
            "num_opponents must divide num_games, and batch_size num_games * num_steps = "
            f"{num_moves}; got {num_opponents} of {num_games}, and {batch_size}."
        )
    for name in ("discount", "gae_lambda"):
        check_number("train", name, arguments[name], 0, 1)
    check_number("train", "clip", arguments["clip"], 0, open_low=True)
    for name in ("value_weight", "entropy_weight", "max_random_moves", "evaluate_every"):
        check_number("train", name, arguments[name], 0)
    drawn = ("delta", "schedule", "pool", "pool_fraction", "random_fraction")
    past_selves.check(*(arguments[name] for name in drawn))


def elo_along(
    env: Env,
    network: nnx.Module,
    state: PPOState,
    *,
    num_players: int = 8,
    max_moves: int | None = None,
) -> past_selves.EloAlong:
    """Rates versions along a run, by the likeliest moves of their raw policies.

    Args:
      env: the environment.
      network: the network; only its structure is used.
      state: the run's state.
      num_players: versions at most, evenly spaced from the oldest in the history to the newest.
      max_moves: moves after which a game counts as a draw; None is 4,096.

    Returns:
      Iterations, ratings, and who won how much of whom; see `opponents.elo_along`.

    Raises:
      ValueError: if `num_players` is below 2, or the run has not begun.
    """
    _, apply_fn = functional(network)
    compare, num_openings = make_compare(env, apply_fn, max_moves)
    return past_selves.elo_along(
        state.history, state.params, int(state.iteration), compare, 2 * num_openings,
        num_players=num_players,
    )  # fmt: skip


def _make_losses(network: nnx.Module, **weights: float) -> Callable[..., Any]:
    """Makes `(params, moves) -> (loss, (parts, moved))`, with the batch statistics moved."""
    call = functional_train(network)

    def losses_fn(params: Params, moves: Moves) -> tuple[chex.Array, tuple]:
        (logits, value), moved = call(params, moves.observation)
        loss, parts = ppo_loss(logits, value, moves, **weights)
        return loss, (parts, moved)

    return losses_fn


def _make_learn(
    update: Callable[..., Any], batch_size: int, epochs: int, mesh: jax.sharding.Mesh | None
) -> Callable[..., Any]:
    """Makes epochs of minibatches of moves `[S, G]`, each epoch in another order."""

    def learn(
        carry: tuple[Params, Any], moves: Moves, rng_key: chex.PRNGKey
    ) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
        num_games = moves.mine.shape[1]

        def minibatch(carry: tuple[Params, Any], index: chex.Array) -> tuple[Any, dict]:
            # Moves stay with the device of their game; flat ones would have to be on each.
            batch = jax.tree.map(lambda x: x[index // num_games, index % num_games], moves)
            return update(carry, sharding.split_rows(mesh, batch))

        keys = jax.random.split(rng_key, epochs)
        order = jax.vmap(lambda key: jax.random.permutation(key, moves.mine.size))(keys)
        return jax.lax.scan(minibatch, carry, order.reshape(-1, batch_size))

    return learn


def _check_opponents(num_opponents: int, num_devices: int) -> int:
    """Returns on how many devices each opponent plays; raises `ValueError` if they do not fit."""
    if num_opponents % num_devices and num_devices % num_opponents:
        raise ValueError(
            f"num_opponents must be a multiple or a divisor of the {num_devices} devices, got "
            f"{num_opponents}."
        )
    return max(num_devices // num_opponents, 1)


def _shardings(state: PPOState, mesh: jax.sharding.Mesh) -> PPOState:
    """Shares the games among devices; everything else is on each of them."""
    return sharding.whole(mesh, state)._replace(games=sharding.rows(mesh, state.games))


def _moves(
    rollout: learner_games.Rollout,
    last_value: chex.Array,
    discount: float,
    gae_lambda: float,
    normalize_advantages: bool,
) -> Moves:
    """Turns games into moves to learn from."""
    advantage, target = learner_games.advantages(
        rollout, last_value, discount=discount, gae_lambda=gae_lambda
    )
    if normalize_advantages:
        advantage = _normalized(advantage, rollout.mine)
    return Moves(
        observation=rollout.observation,
        legal=rollout.legal,
        action=rollout.action,
        log_prob=rollout.log_prob,
        advantage=advantage,
        value=target,
        mine=rollout.mine,
    )


def _count_games(
    rollout: learner_games.Rollout, result: learner_games.Result
) -> dict[str, chex.Array]:
    """Returns the metrics of the games: how many ended, how long they were and who won."""
    finished = rollout.finished
    count = jnp.maximum(jnp.sum(finished), 1)
    points = (jnp.sign(result.score) + 1) / 2
    return {
        "finished_games": jnp.sum(finished),
        "mean_length": jnp.sum(finished * result.length) / count,
        "score": jnp.sum(finished * points) / count,
        "moved_first": jnp.sum(finished & result.moved_first) / count,
        "learner_to_move": jnp.mean(rollout.mine.astype(jnp.float32)),
    }


def _normalized(advantage: chex.Array, mine: chex.Array) -> chex.Array:
    """Brings the learner's advantages to mean 0 and deviation 1, together."""
    count = jnp.maximum(jnp.sum(mine), 1)
    centred = advantage - jnp.sum(jnp.where(mine, advantage, 0.0)) / count
    variance = jnp.sum(jnp.where(mine, jnp.square(centred), 0.0)) / count
    return jnp.where(mine, centred / (jnp.sqrt(variance) + 1e-8), 0.0)
