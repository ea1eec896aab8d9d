"""PPO with delta-uniform self-play, without a search (Brosseit 2023, sections 5.2, 5.4).

One iteration is one jitted call: a rollout of games against opponents sampled from the learner's
history, and epochs of minibatches on the clipped objective of Schulman et al. 2017. The resulting
network can be used as the prior of every search.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpgs.adapters.environments import check_players
from jaxpgs.base import Env, Params
from jaxpgs.checks import check_count, check_number
from jaxpgs.networks import functional, trainable_mask
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.training.policy_gradient import learner_games, past_selves
from jaxpgs.training.policy_gradient.ppo_loss import Transitions, make_losses, transitions_of
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.runtime.settings import Run, check_counts, flat, in_settings
from jaxpgs.training.two_player.head_to_head import make_compare


class PPOState(NamedTuple):
    """Everything that is needed to continue a run.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      games: the G games in progress.
      history: snapshots of the parameters, which are the opponents.
      iteration: `[]` int32, iterations done.
      rng_key: the key of the next iteration.
    """

    params: Params
    opt_state: Any
    games: learner_games.LearnerGames
    history: past_selves.History
    iteration: chex.Array
    rng_key: chex.PRNGKey


@dataclasses.dataclass(frozen=True)
class Games:
    """The games that the learner plays.

    Attributes:
      num_games: G, games played in parallel, at least 1. The learner moves first in every other
        one, and changes sides after each game.
      num_steps: S, moves of the learner in each game per iteration, at least 1.
      max_random_moves: the largest number of random moves before a game's start, at least 0; see
        `selfplay.init_games`.
      max_moves: moves after which a game is cut off, needed for games that may not end; see
        `selfplay.Moves`. In ratings such games count as draws; there None is 4,096 moves.

    Example:
      >>> games = jaxpgs.training.ppo.Games(num_games=8, num_steps=4)
    """

    num_games: int = 256
    num_steps: int = 32
    max_random_moves: int = 0
    max_moves: int | None = None


@dataclasses.dataclass(frozen=True)
class Opponents:
    """The opponents of the learner: earlier versions of itself, a fixed pool, random players.

    Attributes:
      delta: the fraction of the history, its most recent part, from which opponents are sampled, 0
        to 1: 0 is the newest parameters alone (naive self-play), and 1 the whole history.
      num_opponents: C, opponents of an iteration, a divisor of G; each plays equally many games.
        With several devices it is a multiple or a divisor of their number.
      schedule: "in_turn" or "random"; see `past_selves.draw`.
      history_size: H, snapshots that are kept, each the size of the parameters; at least 1.
      snapshot_every: iterations between snapshots, at least 1. The history covers the whole run
        only if H times this is at least the number of iterations.
      pool: additional parameters of the network to play against, which never change.
      pool_fraction: fraction of the opponents that come from the pool, 0 to 1.
      random_fraction: fraction of the opponents that play uniformly at random, 0 to 1.

    Example:
      >>> naive = jaxpgs.training.ppo.Opponents(delta=0.0)
    """

    delta: float = 1.0
    num_opponents: int = 8
    schedule: str = "in_turn"
    history_size: int = 64
    snapshot_every: int = 1
    pool: Sequence[Params] = ()
    pool_fraction: float = 0.0
    random_fraction: float = 0.0


@dataclasses.dataclass(frozen=True)
class Fit:
    """How the network learns from an iteration's games.

    Attributes:
      discount: gamma, for each move of the learner, 0 to 1.
      gae_lambda: lambda, 0 to 1; see `learner_games.advantages`.
      batch_size: moves per optimizer step, a divisor of G times S.
      epochs: how often an iteration learns from each move, at least 1.
      clip: epsilon of the clipped surrogate, above 0.
      value_weight: weight of the value loss, at least 0.
      entropy_weight: weight of the entropy bonus, at least 0.
      normalize_advantages: whether an iteration's advantages are normalised to mean 0 and standard
        deviation 1.
      optimizer: any optax optimizer; `paper_optimizer()` if None.

    Example:
      >>> fit = jaxpgs.training.ppo.Fit(batch_size=16, epochs=1)
    """

    discount: float = 1.0
    gae_lambda: float = 1.0
    batch_size: int = 2048
    epochs: int = 6
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    normalize_advantages: bool = True
    optimizer: optax.GradientTransformation | None = None


def paper_optimizer(step_size: float = 6e-4) -> optax.GradientTransformation:
    """Returns Adam on gradients clipped to norm 100, as in Brosseit 2023, table A.1."""
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(step_size))


@in_settings
def train(
    env: Env,
    network: nnx.Module,
    *,
    num_iterations: int = 100,
    games: Games = Games(),
    opponents: Opponents = Opponents(),
    fit: Fit = Fit(),
    init_params: Params | None = None,
    evaluate_every: int = 10,
    run: Run = Run(),
) -> PPOState:
    """Trains a policy and value network by PPO against earlier versions of itself.

    The defaults are those of Brosseit 2023, table A.1, with fewer games: the thesis played 120,000
    steps per iteration on 5x5 Hex. The thesis does not specify random starts, the weight of the
    value loss, and the normalisation of advantages.

    Deviations: the C opponents of an iteration are played in parallel, while the thesis plays the
    whole history one after another. Games continue from one iteration to the next, so the opponent
    may be replaced within a game, as with the thesis's schedule. To the learner both are randomness
    of its environment.

    The policy plays with the population statistics of batch normalisation, and learns with those
    of its minibatch, so ratios are not 1 even before the first step. This does not affect networks
    whose `norm` is "layer", or that do not normalise.

    Args:
      env: the environment, from `jaxpgs.envs` or pgx, with two players.
      network: the network; only its structure and initial weights are used.
      num_iterations: iterations in total, including those of an earlier call in `run.directory`.
      games: settings of the games.
      opponents: the opponents in these games.
      fit: how the network learns from the games.
      init_params: initial weights; the network's own if None.
      evaluate_every: iterations between ratings of the newest network; see `elo_along`. 0 for none.
      run: seed, devices, folder and callbacks. Checkpoints are 10 iterations apart by default.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if a setting is out of range, or the directory holds another run or is damaged.
      RuntimeError: if another process is training in the directory.
      FloatingPointError: if a loss is no longer finite.

    Example:
      >>> from jaxpgs.training import ppo
      >>> state = ppo.train(
      ...     env, module, num_iterations=1, games=ppo.Games(num_games=8, num_steps=4),
      ...     fit=ppo.Fit(batch_size=16, epochs=1), evaluate_every=0,
      ... )
      >>> int(state.iteration)
      1
    """
    arguments = flat(locals(), "games", "opponents", "fit", "run")
    _check_arguments(env, arguments)
    shared = {"num_games": games.num_games, "batch_size": fit.batch_size}
    mesh = sharding.make_mesh(run.devices, shared)
    share = _check_opponents(opponents.num_opponents, 1 if mesh is None else mesh.size)

    own_params, apply_fn = functional(network)
    params = iterations.like(init_params, own_params)
    # Weights of the pool that do not fit are rejected here, not in the first iteration.
    pool = _stack(opponents.pool, own_params)
    trainable = trainable_mask(network)
    optimizer = iterations.of_weights(fit.optimizer or paper_optimizer(), trainable)
    weights = {name: getattr(fit, name) for name in ("clip", "value_weight", "entropy_weight")}
    update = iterations.make_update(make_losses(network, **weights), optimizer, trainable)
    setting = _Setting(env, apply_fn, games, opponents, fit, pool, share, optimizer, update, mesh)

    # Compiled at the first call, so that runs without ratings do not wait for it.
    match = make_compare(env, apply_fn, games.max_moves)
    return iterations.run_jitted(
        functools.partial(_init, setting, jax.random.key(run.seed)),
        functools.partial(_iterate, setting), params, num_iterations, mesh=mesh, share=_share,
        positions=games.num_steps * games.num_games, evaluate=functools.partial(_rate, match),
        evaluate_every=evaluate_every, trainer="ppo", arguments=arguments, settings=run,
        checkpoint_every=10, formerly={"max_moves": None},
    )  # fmt: skip


class _Setting(NamedTuple):
    """The prepared arguments of `train`, which do not change during training.

    `pool` has a leading axis over its parameters, `share` is the number of devices on which each
    opponent plays, and `update` is from `iterations.make_update`.
    """

    env: Env
    apply_fn: ApplyFn
    games: Games
    opponents: Opponents
    fit: Fit
    pool: Params | None
    share: int
    optimizer: optax.GradientTransformation
    update: Callable[..., Any]
    mesh: jax.sharding.Mesh | None


def _init(setting: _Setting, rng_key: chex.PRNGKey, params: Params) -> PPOState:
    rng_key, games_key = jax.random.split(rng_key)
    # Adjacent games, which have the same opponent, begin with the learner on different sides.
    first = jnp.arange(setting.games.num_games) % 2 == 0
    return PPOState(
        params=params,
        opt_state=setting.optimizer.init(params),
        games=learner_games.start(
            setting.env, games_key, first, max_random_moves=setting.games.max_random_moves
        ),
        history=past_selves.init(params, setting.opponents.history_size),
        iteration=jnp.int32(0),
        rng_key=rng_key,
    )


def _play(
    setting: _Setting,
    params: Params,
    met: past_selves.Opponents,
    rng_key: chex.PRNGKey,
    games: learner_games.LearnerGames,
) -> tuple[Any, ...]:
    """Plays the moves of an iteration in the games of a device."""
    given = setting.games
    return learner_games.play(
        setting.env, setting.apply_fn, params, met, rng_key, games, given.num_steps,
        max_random_moves=given.max_random_moves, max_moves=given.max_moves,
    )  # fmt: skip


def _iterate(setting: _Setting, state: PPOState) -> tuple[PPOState, dict[str, chex.Array]]:
    """Runs an iteration: takes a snapshot, samples opponents, plays and learns."""
    given, fit = setting.opponents, setting.fit
    own_play = functools.partial(_play, setting)
    # Games and opponents are sharded; each device plays its games against its own opponents.
    play = sharding.per_device(setting.mesh, own_play, (None, 0, None, 0), (0, 1, 0, 1))
    rng_key, draw_key, play_key, fit_key = jax.random.split(state.rng_key, 4)
    # The snapshot is taken before opponents are sampled, so that the newest version is among them
    # and the first iteration has an opponent.
    history = jax.lax.cond(
        state.iteration % given.snapshot_every == 0,
        lambda: past_selves.add(state.history, state.params, state.iteration),
        lambda: state.history,
    )
    met = past_selves.draw(
        history, state.params, draw_key, given.num_opponents, delta=given.delta,
        schedule=given.schedule, pool=setting.pool, pool_fraction=given.pool_fraction,
        random_fraction=given.random_fraction,
    )  # fmt: skip
    # [C * share]: if there are more devices than opponents, each opponent is on several devices.
    met = jax.tree.map(lambda x: jnp.repeat(x, setting.share, axis=0), met)
    games, rollout, last_value, result = play(state.params, met, play_key, state.games)
    # Advantages are computed once for all epochs, with the values of the network that played.
    moves = transitions_of(
        rollout, last_value, fit.discount, fit.gae_lambda, fit.normalize_advantages
    )
    carry, parts = _learn(setting, (state.params, state.opt_state), moves, fit_key)
    metrics = jax.tree.map(jnp.mean, parts) | _count_games(rollout, result)
    metrics |= {"opponents": past_selves.window(history, given.delta)}
    return PPOState(*carry, games, history, state.iteration + 1, rng_key), metrics


def _learn(
    setting: _Setting, carry: tuple[Params, Any], moves: Transitions, rng_key: chex.PRNGKey
) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
    """Learns from moves `[S, G]`, in epochs of minibatches, each epoch in another order."""
    num_games = moves.mine.shape[1]

    def minibatch(carry: tuple[Params, Any], index: chex.Array) -> tuple[Any, dict]:
        # Moves stay on the device of their game; flattened, they would have to be replicated.
        batch = jax.tree.map(lambda x: x[index // num_games, index % num_games], moves)
        return setting.update(carry, sharding.split_rows(setting.mesh, batch))

    # [epochs * S * G / batch, batch]: a batch divides S * G, so none spans two epochs.
    keys = jax.random.split(rng_key, setting.fit.epochs)
    order = jax.vmap(lambda key: jax.random.permutation(key, moves.mine.size))(keys)
    return jax.lax.scan(minibatch, carry, order.reshape(-1, setting.fit.batch_size))


def _rate(
    match: tuple[Callable[[Params, Params], chex.Array], int], state: PPOState
) -> tuple[PPOState, dict[str, float]]:
    """Rates the newest network against earlier versions of the run."""
    compare, num_openings = match
    along = past_selves.elo_along(
        state.history, state.params, int(state.iteration), compare, 2 * num_openings, num_players=5
    )
    return state, {
        "elo": float(along.table.ratings[-1]),
        "score_against_history": float(along.scores[-1, :-1].mean()),
    }


def _check_arguments(env: Env, arguments: Mapping[str, Any]) -> None:
    """Raises `ValueError` for arguments of `train` that are out of range."""
    counts = (
        "num_iterations", "num_games", "num_steps", "num_opponents", "history_size",
        "snapshot_every", "batch_size", "epochs",
    )  # fmt: skip
    check_counts({name: arguments[name] for name in counts})
    if arguments["max_moves"] is not None:
        check_count("train", "max_moves", arguments["max_moves"])
    check_players("ppo.train", env, (2,), "puzzle_iteration.train is for one player.")
    num_games, num_opponents = arguments["num_games"], arguments["num_opponents"]
    num_moves, batch_size = num_games * arguments["num_steps"], arguments["batch_size"]
    # Arrays have fixed shapes: opponents share the games evenly, and no minibatch is short.
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
    """Rates versions along a run by games in which their raw policies play the likeliest moves.

    Args:
      env: the environment.
      network: the network; only its structure is used.
      state: the run's state.
      num_players: the largest number of versions, evenly spaced from the oldest in the history to
        the newest.
      max_moves: moves after which a game counts as a draw; None is 4,096.

    Returns:
      Iterations, ratings, and a table of wins; see `past_selves.elo_along`.

    Raises:
      ValueError: if `num_players` is below 2, or the run has not begun.
    """
    _, apply_fn = functional(network)
    compare, num_openings = make_compare(env, apply_fn, max_moves)
    return past_selves.elo_along(
        state.history, state.params, int(state.iteration), compare, 2 * num_openings,
        num_players=num_players,
    )  # fmt: skip


def _stack(pool: Sequence[Params], like: Params) -> Params | None:
    """Returns the parameters `[N, ...]` of a pool; raises `ValueError` if they do not fit."""
    found = [iterations.like(one, like, "The parameters of the pool") for one in pool]
    # One array for each leaf, so that an opponent can be read by its index.
    return jax.tree.map(lambda *x: jnp.stack(x), *found) if found else None


def _check_opponents(num_opponents: int, num_devices: int) -> int:
    """Returns the number of devices for each opponent; raises `ValueError` if it does not fit."""
    if num_opponents % num_devices and num_devices % num_opponents:
        raise ValueError(
            f"num_opponents must be a multiple or a divisor of the {num_devices} devices, got "
            f"{num_opponents}."
        )
    return max(num_devices // num_opponents, 1)


def _share(state: PPOState, mesh: jax.sharding.Mesh) -> PPOState:
    """Shards the games over devices; everything else is replicated."""
    return sharding.whole(mesh, state)._replace(games=sharding.rows(mesh, state.games))


def _count_games(
    rollout: learner_games.Rollout, result: learner_games.Result
) -> dict[str, chex.Array]:
    """Returns the metrics of the games: how many ended, how long they were and who won."""
    finished = rollout.finished
    count = jnp.maximum(jnp.sum(finished), 1)
    # Won, drawn or lost, whatever the scale of the rewards.
    points = (jnp.sign(result.score) + 1) / 2
    return {
        "finished_games": jnp.sum(finished),
        "mean_length": jnp.sum(finished * result.length) / count,
        "score": jnp.sum(finished * points) / count,
        "moved_first": jnp.sum(finished & result.moved_first) / count,
        "learner_to_move": jnp.mean(rollout.mine.astype(jnp.float32)),
    }
