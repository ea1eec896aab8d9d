"""PPO with delta-uniform self-play: a policy without a search (Brosseit 2023, sections 5.2, 5.4).

One iteration is one jitted call: a rollout of games against opponents drawn from the learner's
history, and epochs of minibatches on the clipped objective of Schulman et al. 2017. The network
that comes out is one like any other, the prior of every search.
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


@dataclasses.dataclass(frozen=True)
class Games:
    """The games that the learner plays.

    Attributes:
      num_games: G, games played side by side, at least 1; in every other one the learner moves
        first, and after each game it changes seats.
      num_steps: S, moves of the learner in each game per iteration, at least 1.
      max_random_moves: most random moves before a game's start, at least 0; see
        `selfplay.init_games`.
      max_moves: moves after which a game ends as it stands, which games without an end need; see
        `selfplay.play`. Games that rate versions count as draws then, and after 4,096 if None.

    Example:
      >>> games = jaxpgs.training.ppo.Games(num_games=8, num_steps=4)
    """

    num_games: int = 256
    num_steps: int = 32
    max_random_moves: int = 0
    max_moves: int | None = None


@dataclasses.dataclass(frozen=True)
class Opponents:
    """Whom the learner meets: former versions of itself, a frozen pool, random players.

    Attributes:
      delta: the share of the history, its most recent part, that opponents are drawn from, 0 to 1:
        0 is the newest parameters alone, naive self-play, and 1 the whole history.
      num_opponents: C, opponents of an iteration, a divisor of G; each plays as many games. With
        several devices it is a multiple or a divisor of their number.
      schedule: "in_turn" or "random"; see `past_selves.draw`.
      history_size: H, snapshots that are kept, each the size of the parameters; at least 1.
      snapshot_every: iterations between snapshots, at least 1. The whole history of a run counts
        only if H times this is at least the run's iterations.
      pool: further parameters of the network to play against, which never change.
      pool_fraction: share of the opponents that come from the pool, 0 to 1.
      random_fraction: share of the opponents that play uniformly at random, 0 to 1.

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
      batch_size: moves per step of the optimizer, a divisor of G times S.
      epochs: how often an iteration learns from each move, at least 1.
      clip: epsilon of the clipped surrogate, above 0.
      value_weight: weight of the value loss, at least 0.
      entropy_weight: weight of the entropy bonus, at least 0.
      normalize_advantages: whether an iteration's advantages get mean 0 and deviation 1.
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
    """Adam on gradients clipped to norm 100, as Brosseit 2023, table A.1."""
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
      num_iterations: iterations in all, counting those of an earlier call in `run.directory`.
      games: the games that it plays.
      opponents: against whom.
      fit: how it learns from them.
      init_params: weights to start from; the network's own if None.
      evaluate_every: iterations between ratings of the newest network; see `elo_along`. 0 for none.
      run: seed, devices, folder and callbacks. Checkpoints are 10 iterations apart by default.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if a setting is out of range, or the directory holds another run or is damaged.
      RuntimeError: if another process trains in the directory.
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
    # Of the pool's weights those that do not fit are refused here, not in the first iteration.
    pool = _stack(opponents.pool, own_params)
    trainable = trainable_mask(network)
    optimizer = iterations.of_weights(fit.optimizer or paper_optimizer(), trainable)
    weights = {name: getattr(fit, name) for name in ("clip", "value_weight", "entropy_weight")}
    update = iterations.make_update(make_losses(network, **weights), optimizer, trainable)
    setting = _Setting(env, apply_fn, games, opponents, fit, pool, share, optimizer, update, mesh)

    # Compiled where it is first called, so that runs without ratings do not wait for it.
    match = make_compare(env, apply_fn, games.max_moves)
    return iterations.run_jitted(
        functools.partial(_init, setting, jax.random.key(run.seed)),
        functools.partial(_iterate, setting), params, num_iterations, mesh=mesh, share=_share,
        positions=games.num_steps * games.num_games, evaluate=functools.partial(_rate, match),
        evaluate_every=evaluate_every, trainer="ppo", arguments=arguments, settings=run,
        checkpoint_every=10, formerly={"max_moves": None},
    )  # fmt: skip


class _Setting(NamedTuple):
    """What does not change while a network is trained; the arguments of `train`, made ready.

    `pool` has an axis of its parameters, `share` is on how many devices each opponent plays, and
    `update` is from `iterations.make_update`.
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
    # Neighbouring games, which have the same opponent, begin with the learner in different seats.
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
    """Plays the moves of an iteration in the games that a device has."""
    given = setting.games
    return learner_games.play(
        setting.env, setting.apply_fn, params, met, rng_key, games, given.num_steps,
        max_random_moves=given.max_random_moves, max_moves=given.max_moves,
    )  # fmt: skip


def _iterate(setting: _Setting, state: PPOState) -> tuple[PPOState, dict[str, chex.Array]]:
    """Takes a snapshot, draws opponents, plays and learns."""
    given, fit = setting.opponents, setting.fit
    own_play = functools.partial(_play, setting)
    # Games and opponents are shared out; each device plays its games against its own opponents.
    play = sharding.per_device(setting.mesh, own_play, (None, 0, None, 0), (0, 1, 0, 1))
    rng_key, draw_key, play_key, fit_key = jax.random.split(state.rng_key, 4)
    # The snapshot comes before the draw, which needs one, so the newest version is among those
    # that may be met, and the first iteration has an opponent.
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
    # [C * share]: where devices outnumber opponents, each device that shares one has it.
    met = jax.tree.map(lambda x: jnp.repeat(x, setting.share, axis=0), met)
    games, rollout, last_value, result = play(state.params, met, play_key, state.games)
    # Advantages are computed once, by the values of the network that played, for all epochs.
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
        # Moves stay with the device of their game; flat ones would have to be on each.
        batch = jax.tree.map(lambda x: x[index // num_games, index % num_games], moves)
        return setting.update(carry, sharding.split_rows(setting.mesh, batch))

    # [epochs * S * G / batch, batch]: a batch divides S * G, so none reaches into another epoch.
    keys = jax.random.split(rng_key, setting.fit.epochs)
    order = jax.vmap(lambda key: jax.random.permutation(key, moves.mine.size))(keys)
    return jax.lax.scan(minibatch, carry, order.reshape(-1, setting.fit.batch_size))


def _rate(
    match: tuple[Callable[[Params, Params], chex.Array], int], state: PPOState
) -> tuple[PPOState, dict[str, float]]:
    """Rates the newest network among versions along the run."""
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
    """Rates versions along a run, by the likeliest moves of their raw policies.

    Args:
      env: the environment.
      network: the network; only its structure is used.
      state: the run's state.
      num_players: versions at most, evenly spaced from the oldest in the history to the newest.
      max_moves: moves after which a game counts as a draw; None is 4,096.

    Returns:
      Iterations, ratings, and who won how much of whom; see `past_selves.elo_along`.

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
    # One array for each leaf, so that an opponent is read by its number.
    return jax.tree.map(lambda *x: jnp.stack(x), *found) if found else None


def _check_opponents(num_opponents: int, num_devices: int) -> int:
    """Returns on how many devices each opponent plays; raises `ValueError` if they do not fit."""
    if num_opponents % num_devices and num_devices % num_opponents:
        raise ValueError(
            f"num_opponents must be a multiple or a divisor of the {num_devices} devices, got "
            f"{num_opponents}."
        )
    return max(num_devices // num_opponents, 1)


def _share(state: PPOState, mesh: jax.sharding.Mesh) -> PPOState:
    """Shares the games among devices; everything else is on each of them."""
    return sharding.whole(mesh, state)._replace(games=sharding.rows(mesh, state.games))


def _count_games(
    rollout: learner_games.Rollout, result: learner_games.Result
) -> dict[str, chex.Array]:
    """Returns the metrics of the games: how many ended, how long they were and who won."""
    finished = rollout.finished
    count = jnp.maximum(jnp.sum(finished), 1)
    # Won, drawn or lost, whatever the size of the rewards.
    points = (jnp.sign(result.score) + 1) / 2
    return {
        "finished_games": jnp.sum(finished),
        "mean_length": jnp.sum(finished * result.length) / count,
        "score": jnp.sum(finished * points) / count,
        "moved_first": jnp.sum(finished & result.moved_first) / count,
        "learner_to_move": jnp.mean(rollout.mine.astype(jnp.float32)),
    }
