"""Expert iteration: a search plays itself, the network imitates it, and the search improves.

Anthony et al. 2019, section 5. One iteration is one jitted call: self-play, a replay buffer on the
device, and optimizer steps.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpgs.adapters.environments import RootFn, check_players
from jaxpgs.base import Env, Params, RecurrentFn
from jaxpgs.checks import check_count, check_number, check_word
from jaxpgs.evaluation import elo_difference
from jaxpgs.networks import functional, trainable_mask
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.runtime.settings import Run, check_counts, flat, in_settings
from jaxpgs.training.two_player import experts, game_warnings, losses, replay, resignation, selfplay
from jaxpgs.training.two_player.head_to_head import make_compare
from jaxpgs.training.two_player.objectives import Objective, objectives_of


class Best(NamedTuple):
    """The strongest network of the run so far, as measured by its raw policy.

    Attributes:
      params: its parameters.
      iteration: `[]` int32, the iteration that it is from.
      elo: `[]` its rating, where the initial network has 0: the sum of the Elo differences between
        each best network and the one before it. Such a sum is too large, since networks gain more
        against the one that they learned against than against others. To measure progress, compare
        the first and the last network of a run directly.
    """

    params: Params
    iteration: chex.Array
    elo: chex.Array


class ExpertIterationState(NamedTuple):
    """Everything that is needed to continue a run.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      games: the G games in progress.
      replay: the buffer of recent experience.
      resignation: statistics of the games that calibrate when to resign.
      best: the strongest network so far; the initial one if there is no evaluation.
      iteration: `[]` int32, iterations done.
      rng_key: the key of the next iteration.
    """

    params: Params
    opt_state: Any
    games: selfplay.SelfPlayGames
    replay: replay.Replay
    resignation: resignation.Resignation
    best: Best
    iteration: chex.Array
    rng_key: chex.PRNGKey


class ModelLearning(NamedTuple):
    """How to learn the model with which the expert plans; see `value_equivalent.train`.

    Attributes:
      model_fns: `(root_fn, recurrent_fn)` of the expert's search.
      make_fit: `(optimizer, trainable, mesh) -> fit`, where `fit((params, opt_state), buffer,
        rng_key)` is one optimizer step. It returns `(params, opt_state)` and a dict of
        `policy_loss`, `value_loss` and other numbers.
    """

    model_fns: tuple[RootFn, RecurrentFn]
    make_fit: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Games:
    """The games that the expert plays against itself.

    Attributes:
      num_games: G, games played in parallel, at least 1.
      num_steps: S, moves of each game per iteration, at least 1.
      sampled_moves: how many moves of a game are sampled from the expert's distribution, at least
        0; later moves are the expert's best actions.
      max_random_moves: the largest number of random moves at the start of a game, at least 0; see
        `selfplay.init_games`.
      max_moves: moves after which a game is cut off, needed for games that may not end; see
        `selfplay.Moves`. In evaluations such games count as draws; there None is 4,096 moves.
      start_fraction: fraction of the games, at most half, that begin without any random moves.
      resign_fraction: fraction of the games in which players may resign, 0 to 1. The others
        calibrate the threshold: less than 5% of their winners would have resigned.
      keep_adapted: whether adapted parameters carry over to the game's next move; see
        `selfplay.Moves`.
      fast_simulations: simulations of most moves, fewer than those of the expert (playout cap
        randomisation; Wu 2019, section 3.1): the policy learns from the full searches only, the
        value from all moves. Fast moves have no Dirichlet noise; a Gumbel search keeps its noise,
        which it needs to sample its action. If the expert is an `Expert`, give an `Expert` for the
        fast moves. None searches every move in full.
      full_share: with `fast_simulations`, the fraction of the moves that are searched in full,
        above 0 and at most 1; see `selfplay.Moves`.

    Example:
      >>> games = jaxpgs.training.expert_iteration.Games(num_games=8, num_steps=4)
    """

    num_games: int = 512
    num_steps: int = 16
    sampled_moves: int = 30
    max_random_moves: int = 4
    max_moves: int | None = None
    start_fraction: float = 0.25
    resign_fraction: float = 0.0
    keep_adapted: bool = False
    fast_simulations: int | experts.Expert | None = None
    full_share: float = 0.25


@dataclasses.dataclass(frozen=True)
class Fit:
    """What the network learns from the games, and how.

    Attributes:
      buffer_size: positions that the replay buffer holds, at least the G times S positions of an
        iteration; rounded down to a multiple of this number.
      batch_size: positions per optimizer step, at least 1.
      updates_per_iteration: optimizer steps per iteration, at least 1.
      optimizer: any optax optimizer; `default_optimizer()` if None. Long runs of large networks
        need a decreasing step size, such as that of `optax.cosine_decay_schedule`.
      value_weight: weight of the value loss.
      value_target: the target of the value, "return", "search" or "best"; see `selfplay.Kept`.
      objective: the objective of the policy: "cross_entropy" imitates the search; "tspg" maximises
        the expected Q-value of the search; or any `objectives.Objective`.
      offsets: the objectives of the additional policies of a `networks.WithOffsets`, by name. The
        search uses the network's own policy and value.

    Example:
      >>> fit = jaxpgs.training.expert_iteration.Fit(buffer_size=4096, batch_size=256)
    """

    buffer_size: int = 131_072
    batch_size: int = 1024
    updates_per_iteration: int = 32
    optimizer: optax.GradientTransformation | None = None
    value_weight: float = 1.0
    value_target: str = "return"
    objective: str | Objective = "cross_entropy"
    offsets: Mapping[str, str | Objective] | None = None


def paper_optimizer(step_size: float = 0.01, momentum: float = 0.9) -> optax.GradientTransformation:
    """Returns momentum SGD with L2 regularisation 1e-4, as in Anthony et al. 2019, section 5.1."""
    return optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(step_size, momentum=momentum))


def default_optimizer(step_size: float = 3e-3) -> optax.GradientTransformation:
    """Returns the default optimizer of `train`: Adam on gradients clipped to norm 1."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(step_size))


# Values for arguments that runs of earlier versions lack, or have as None.
_FORMERLY = {
    "optimizer": paper_optimizer(), "start_fraction": 0.0, "max_moves": None,
    "fast_simulations": None, "full_share": 0.25,
}  # fmt: skip


def paper_settings() -> dict[str, Any]:
    """Returns the settings of Anthony et al. 2019, section 5.1, that differ from the defaults.

    Games begin without random moves and most may be resigned, which suits games of a hundred moves
    and runs of days. These were the defaults of earlier versions, whose runs continue with them.

    Returns:
      `games` and `fit` by name: `train(env, network, **paper_settings())`.
    """
    return {
        "games": Games(max_random_moves=0, start_fraction=0.0, resign_fraction=0.9),
        "fit": Fit(optimizer=paper_optimizer()),
    }


@in_settings
def train(
    env: Env,
    network: nnx.Module,
    *,
    expert: str | experts.Expert = "pgs",
    num_simulations: int = 64,
    num_iterations: int = 200,
    games: Games = Games(),
    fit: Fit = Fit(),
    model_fns: tuple[RootFn, RecurrentFn] | None = None,
    model: ModelLearning | None = None,
    init_params: Params | None = None,
    evaluate_every: int | None = None,
    run: Run = Run(),
) -> ExpertIterationState:
    """Trains a network from scratch by self-play.

    This is section 5.1 of Anthony et al. 2019 at a size that fits a small machine; their buffer
    held 10 million positions. By default it learns with Adam, players do not resign, and games
    begin with some random moves. `tests/quality/small_games.py` compares these defaults with the
    paper's settings (`paper_settings()`) on solved games.

    Args:
      env: the environment, from `jaxpgs.envs` or pgx, with two players or one (then without
        resignation and evaluation). If it has `symmetries`, they augment the data.
      network: the network; only its structure and initial weights are used.
      expert: the search that plays: "pgs", "gumbel_pgs", "gumbel_mcts", or another of
        `experts.NAMES`; or any `Expert`, such as `make_expert("pgs", 128, max_depth=8)`.
      num_simulations: simulations per move, for an expert given by its name.
      num_iterations: iterations in total, including those of an earlier call in `run.directory`.
      games: settings of the self-play games.
      fit: what the network learns from them, and how.
      model_fns: `(root_fn, recurrent_fn)` of the expert's search, such as `make_playout_fns(env)`;
        if None, it uses the environment's rules and the network.
      model: how to learn a model for the expert to plan with; None plans with the environment's
        rules. `value_equivalent.train` fills it in.
      init_params: initial weights, for example those of a smaller board after
        `jaxpgs.networks.resize`; the network's own if None.
      evaluate_every: iterations between matches of the raw network against the best so far, over
        every opening with both colours; 0 for none. None is 25, or 0 for one player.
      run: seed, devices, folder and callbacks. Checkpoints are 50 iterations apart by default.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if a setting is out of range, or the directory holds another run or is damaged.
      RuntimeError: if another process is training in the directory.
      FloatingPointError: if a loss is no longer finite.

    Example:
      >>> from jaxpgs.training import expert_iteration as ei
      >>> state = ei.train(
      ...     env, module, expert=jaxpgs.training.make_expert("mcs", 4), num_iterations=1,
      ...     games=ei.Games(num_games=8, num_steps=4),
      ...     fit=ei.Fit(buffer_size=64, batch_size=16, updates_per_iteration=1), evaluate_every=0,
      ... )
      >>> int(state.iteration)
      1
    """
    arguments = flat(locals(), "games", "fit", "run")
    optimizer = default_optimizer() if fit.optimizer is None else fit.optimizer
    if evaluate_every is None:
        evaluate_every = 0 if env.num_players == 1 else 25
    # Defaults are written out, so that a run's folder records what they were when it began.
    arguments |= {"evaluate_every": evaluate_every, "optimizer": optimizer}
    _check_arguments(env, arguments)
    shared = {"num_games": games.num_games, "batch_size": fit.batch_size}
    mesh = sharding.make_mesh(run.devices, shared)
    searches = _make_searches(expert, num_simulations, games)
    params = iterations.like(init_params, functional(network)[0])
    setting = _make_setting(env, network, searches, games, fit, optimizer, model_fns, model, mesh)
    match = make_compare(env, setting.apply_fn, games.max_moves)
    return iterations.run_jitted(
        functools.partial(_init, setting, jax.random.key(run.seed)),
        functools.partial(_iterate, setting), params, num_iterations, mesh=mesh, share=_share,
        positions=games.num_steps * games.num_games, watch=_make_watch(env, network, games),
        evaluate=functools.partial(_rate, match), evaluate_every=evaluate_every, settings=run,
        trainer="expert_iteration", arguments=arguments, checkpoint_every=50, formerly=_FORMERLY,
    )  # fmt: skip


def _make_searches(
    expert: str | experts.Expert, num_simulations: int, games: Games
) -> tuple[experts.Expert, experts.Expert | None]:
    """Makes the search that plays, and the search of the fast moves."""
    full = experts.make_expert(expert, num_simulations) if isinstance(expert, str) else expert
    return full, experts.fast_expert(expert, games.fast_simulations)


def _make_watch(
    env: Env, network: nnx.Module, games: Games
) -> Callable[[Mapping[str, float]], None]:
    """Makes the function that warns; it plays random games for comparison if positions repeat."""
    counts = games.num_games, games.num_steps
    return game_warnings.make_watch(
        games.num_steps, lambda: game_warnings.distinct_at_random(env, network, *counts)
    )


class _Setting(NamedTuple):
    """The prepared arguments of `train`, which do not change during training.

    `step` is one optimizer step: `((params, opt_state), buffer, rng_key) -> ((params, opt_state),
    parts)`.
    """

    env: Env
    apply_fn: ApplyFn
    expert: experts.Expert
    fast: experts.Expert | None
    games: Games
    fit: Fit
    model_fns: tuple[RootFn, RecurrentFn] | None
    kept: selfplay.Kept
    observation_dtype: Any
    optimizer: optax.GradientTransformation
    step: Callable[..., Any]
    mesh: jax.sharding.Mesh | None


def _make_setting(
    env: Env,
    network: nnx.Module,
    searches: tuple[experts.Expert, experts.Expert | None],
    games: Games,
    fit: Fit,
    optimizer: optax.GradientTransformation,
    model_fns: tuple[RootFn, RecurrentFn] | None,
    model: ModelLearning | None,
    mesh: jax.sharding.Mesh | None,
) -> _Setting:
    """Makes the optimizer step, and collects it with the other settings."""
    trainable = trainable_mask(network)
    optimizer = iterations.of_weights(optimizer, trainable)
    own, further = objectives_of(network, fit.objective, fit.offsets)
    # Without a learned model the network learns from single positions, and may have more policies.
    if model is None:
        losses_fn = losses.make_losses(network, own, further, fit.value_weight)
        update = iterations.make_update(losses_fn, optimizer, trainable)
        step = functools.partial(_step, env, update, fit.batch_size, mesh)
    # A model learns from unrolls with its own loss, which does not support these settings.
    elif model_fns is not None or further or own.needs_root:
        raise ValueError(
            "With model, which has a loss and functions of its own, leave objective, offsets and "
            f"model_fns at their defaults; got {fit.objective!r}, {fit.offsets!r} and "
            f"{model_fns!r}."
        )
    else:
        step, model_fns = model.make_fit(optimizer, trainable, mesh), model.model_fns
    return _Setting(
        env, functional(network)[1], *searches, games, fit, model_fns,
        kept=selfplay.Kept(
            fit.value_target,
            keep_played=model is not None,
            keep_root=any(one.needs_root for one in (own, *further.values())),
        ),
        observation_dtype=replay.observation_dtype(env), optimizer=optimizer, step=step, mesh=mesh,
    )  # fmt: skip


def _step(
    env: Env,
    update: Callable[..., Any],
    batch_size: int,
    mesh: jax.sharding.Mesh | None,
    carry: tuple[Params, Any],
    buffer: replay.Replay,
    rng_key: chex.PRNGKey,
) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
    """Takes one optimizer step on a batch from the buffer."""
    batch = replay.sample(env, buffer, rng_key, batch_size)
    return update(carry, sharding.split_rows(mesh, batch))


def _start(games: Games) -> selfplay.Start:
    return selfplay.Start(games.max_random_moves, games.start_fraction, games.resign_fraction)


def _init(setting: _Setting, rng_key: chex.PRNGKey, params: Params) -> ExpertIterationState:
    games = setting.games
    rng_key, games_key = jax.random.split(rng_key)
    # The buffer holds whole blocks; a block is the experience of one iteration.
    buffer = replay.init(
        setting.env, setting.fit.buffer_size // (games.num_games * games.num_steps),
        games.num_steps, games.num_games, keep_played=setting.kept.keep_played,
        keep_root=setting.kept.keep_root, observation_dtype=setting.observation_dtype,
    )  # fmt: skip
    return ExpertIterationState(
        params=params,
        opt_state=setting.optimizer.init(params),
        games=selfplay.init_games(setting.env, games_key, games.num_games, _start(games)),
        replay=buffer,
        resignation=resignation.init(),
        best=Best(params, jnp.int32(0), jnp.float32(0)),
        iteration=jnp.int32(0),
        rng_key=rng_key,
    )


def _play(
    setting: _Setting,
    params: Params,
    rng_key: chex.PRNGKey,
    resign_below: chex.Array,
    games: selfplay.SelfPlayGames,
) -> tuple[selfplay.SelfPlayGames, selfplay.Experience, selfplay.Report]:
    """Plays the moves of an iteration in the games of a device."""
    given = setting.games
    moves = selfplay.Moves(
        given.sampled_moves, given.max_moves, given.keep_adapted, setting.fast, given.full_share
    )
    return selfplay.play(
        setting.env, setting.apply_fn, setting.expert, params, rng_key, games, given.num_steps,
        start=_start(given), moves=moves, kept=setting.kept, resign_below=resign_below,
        model_fns=setting.model_fns,
    )  # fmt: skip


def _iterate(
    setting: _Setting, state: ExpertIterationState
) -> tuple[ExpertIterationState, dict[str, chex.Array]]:
    """Runs an iteration: self-play, adding to the buffer, and learning."""
    own_play = functools.partial(_play, setting)
    # Games are on axis 0 of the state, and on axis 1 of experience and report, `[S, G]`.
    play = sharding.per_device(setting.mesh, own_play, (None, None, None, 0), (0, 1, 1))
    rng_key, play_key, fit_key = jax.random.split(state.rng_key, 3)
    # Self-play: S moves in each game, with the threshold that earlier iterations calibrated.
    resign_below = resignation.threshold(state.resignation)
    games, experience, report = play(state.params, play_key, resign_below, state.games)
    buffer = replay.add(state.replay, experience)
    # Learning: each step samples a new batch from the buffer, which includes the newest block.
    (params, opt_state), parts = jax.lax.scan(
        lambda carry, key: setting.step(carry, buffer, key),
        (state.params, state.opt_state),
        jax.random.split(fit_key, setting.fit.updates_per_iteration),
    )
    metrics = jax.tree.map(jnp.mean, parts) | selfplay.count_games(report)
    # For the warning about repeated games.
    distinct = replay.distinct(experience.observation)
    metrics |= {"resign_below": resign_below, "distinct_positions": distinct}
    state = state._replace(
        params=params,
        opt_state=opt_state,
        games=games,
        replay=buffer,
        resignation=resignation.add(state.resignation, report.winner_lowest),
        iteration=state.iteration + 1,
        rng_key=rng_key,
    )
    return state, metrics


def _check_arguments(env: Env, arguments: Mapping[str, Any]) -> None:
    """Raises `ValueError` for arguments of `train` that are out of range."""
    check_word("train", "value_target", arguments["value_target"], selfplay.VALUE_TARGETS)
    counts = (
        "num_iterations", "num_games", "num_steps", "buffer_size", "batch_size",
        "updates_per_iteration",
    )  # fmt: skip
    check_counts({name: arguments[name] for name in counts})
    for name in ("max_random_moves", "sampled_moves", "evaluate_every"):
        check_number("train", name, arguments[name], 0)
    resign_fraction, evaluate_every = arguments["resign_fraction"], arguments["evaluate_every"]
    check_number("train", "resign_fraction", resign_fraction, 0, 1)
    check_number("train", "start_fraction", arguments["start_fraction"], 0, 0.5)
    check_number("train", "full_share", arguments["full_share"], 0, 1, open_low=True)
    if arguments["max_moves"] is not None:
        check_count("train", "max_moves", arguments["max_moves"])
    if check_players("train", env) == 1 and (resign_fraction or evaluate_every):
        raise ValueError(
            "A game of one player has no opponent: resign_fraction and evaluate_every must be 0, "
            f"got {resign_fraction} and {evaluate_every}."
        )
    positions = arguments["num_games"] * arguments["num_steps"]
    buffer_size = arguments["buffer_size"]
    if buffer_size < positions:
        raise ValueError(
            "buffer_size must hold an iteration's num_games * num_steps = "
            f"{positions} positions, got {buffer_size}."
        )


def _rate(
    match: tuple[Callable[[Params, Params], chex.Array], int], state: ExpertIterationState
) -> tuple[ExpertIterationState, dict[str, float]]:
    """Lets the network play against the best one, and replaces that if it wins."""
    compare, num_openings = match
    score, num_games = float(compare(state.params, state.best.params)), 2 * num_openings
    difference = elo_difference(score * num_games, num_games).elo
    elo = state.best.elo + difference  # on every device, like the state
    # An even score does not show an improvement: the older network stays the best.
    if score > 0.5:
        # A copy: the next iteration overwrites the state's own arrays.
        params = jax.tree.map(jnp.copy, state.params)
        state = state._replace(best=Best(params, state.iteration + 0, elo))
    return state, {"score_against_best": score, "elo": float(elo)}


def _share(state: ExpertIterationState, mesh: jax.sharding.Mesh) -> ExpertIterationState:
    """Shards the axis of the games over devices; everything else is replicated."""
    # Blocks are `[C, S, G]`.
    blocks = sharding.rows(mesh, state.replay.blocks, axis=2)
    return sharding.whole(mesh, state)._replace(
        games=sharding.rows(mesh, state.games),
        replay=sharding.whole(mesh, state.replay)._replace(blocks=blocks),
    )
