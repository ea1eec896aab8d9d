"""Expert iteration: a search plays itself, the network imitates it, and the search gets better.

Anthony et al. 2019, section 5. One iteration is one jitted call: self-play, a replay buffer on the
device, and steps of the optimizer.
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
    """The strongest network of the run so far, by its raw policy.

    Attributes:
      params: its parameters.
      iteration: `[]` int32, when it was that.
      elo: `[]` its rating, where the initial network has 0: the sum of what each best one won
        against the one before. Such a sum flatters: networks beat the one they learned against by
        more than they gain on others, so compare the ends of a run directly.
    """

    params: Params
    iteration: chex.Array
    elo: chex.Array


class ExpertIterationState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      games: the G games in play.
      replay: the last experience.
      resignation: the games that calibrate when to resign.
      best: the strongest network so far; the initial one where nothing is evaluated.
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
    """How a model is learned with which the expert plans; see `value_equivalent.train`.

    Attributes:
      model_fns: `(root_fn, recurrent_fn)`, what the expert plans with.
      make_fit: `(optimizer, trainable, mesh) -> fit`, where `fit((params, opt_state), buffer,
        rng_key)` is one step of the optimizer and returns both and a dict of `policy_loss`,
        `value_loss` and other numbers.
    """

    model_fns: tuple[RootFn, RecurrentFn]
    make_fit: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Games:
    """The games that the expert plays against itself.

    Attributes:
      num_games: G, games played side by side, at least 1.
      num_steps: S, moves of each game per iteration, at least 1.
      sampled_moves: moves of a game that are drawn from the expert's distribution, at least 0;
        later ones are its best.
      max_random_moves: most random moves at the start of a game, at least 0; see
        `selfplay.init_games`.
      max_moves: moves after which a game ends as it stands, which games without an end need; see
        `selfplay.play`. Games of an evaluation count as draws then, and after 4,096 if None.
      start_fraction: share of the games, at most half, that begin without any random moves.
      resign_fraction: share of the games in which players may resign, 0 to 1. The others calibrate
        when: less than 5% of their winners would have.
      keep_adapted: whether what PGS adapts goes on to the game's next move; see `selfplay.play`.
      fast_simulations: simulations of most moves, fewer than those of the expert (playout cap
        randomisation; Wu 2019, section 3.1): the policy learns from the other moves alone, the
        value from all. Fast moves have no Dirichlet noise; a Gumbel search draws its action by its
        noise, and keeps it. Where the expert is an `Expert`, another one for the fast moves. None
        searches every move in full.
      full_share: with `fast_simulations`, the share of the moves that are searched in full, above 0
        and at most 1; see `selfplay.play`.

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
      buffer_size: positions that the replay buffer holds, at least those of an iteration, G times
        S; rounded down to a multiple of that.
      batch_size: positions per step of the optimizer, at least 1.
      updates_per_iteration: steps of the optimizer per iteration, at least 1.
      optimizer: any optax optimizer; `default_optimizer()` if None. Long runs of large networks
        want a step that falls, such as that of `optax.cosine_decay_schedule`.
      value_weight: weight of the value loss.
      value_target: what the value learns, "return", "search" or "best"; see `selfplay.play`.
      objective: what the policy learns: "cross_entropy", to imitate the search; "tspg", to play
        what its values say is best; or any `objectives.Objective`.
      offsets: the objectives of the further policies of a `networks.WithOffsets`, by name; the
        search and the value are the network's own.

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
    """Momentum SGD with L2 regularisation 1e-4, as Anthony et al. 2019, section 5.1."""
    return optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(step_size, momentum=momentum))


def default_optimizer(step_size: float = 3e-3) -> optax.GradientTransformation:
    """Adam on gradients clipped to norm 1, which `train` learns with by default."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(step_size))


# What arguments stood for that a run of an earlier version has not, or has as None.
_FORMERLY = {
    "optimizer": paper_optimizer(), "start_fraction": 0.0, "max_moves": None,
    "fast_simulations": None, "full_share": 0.25,
}  # fmt: skip


def paper_settings() -> dict[str, Any]:
    """The settings of `train` that Anthony et al. 2019, section 5.1, have otherwise.

    Games begin at the start and most may be resigned, which suits games of a hundred moves and
    runs of days. They were the defaults of earlier versions, whose runs go on with them.

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
    """Trains a network from nothing by self-play.

    This is section 5.1 of Anthony et al. 2019 at a size that fits a small machine; their buffer
    held 10 million positions. By default it learns by Adam, nobody resigns, and games begin with
    some random moves, which `tests/quality/small_games.py` compares with the paper's settings on
    games that are solved; those are `paper_settings()`.

    Args:
      env: the environment, ours or pgx's, with two players, or one (without resignation and
        evaluation); if it has `symmetries`, they augment the data.
      network: the network; only its structure and initial weights are used.
      expert: the search that plays: "pgs", "gumbel_pgs", "gumbel_mcts", or another of
        `experts.NAMES`; or any `Expert`, such as `make_expert("pgs", 128, max_depth=8)`.
      num_simulations: simulations a move, for an expert given by its name.
      num_iterations: iterations in all, counting those of an earlier call in `run.directory`.
      games: the games that it plays.
      fit: what the network learns from them, and how.
      model_fns: `(root_fn, recurrent_fn)`, what the expert plans with, such as
        `make_playout_fns(env)`; the environment's rules and the network if None.
      model: how to learn a model for the expert to plan with; None plans with the environment's
        rules. `value_equivalent.train` fills it in.
      init_params: weights to start from, for example those of a smaller board by
        `jaxpgs.networks.resize`; the network's own if None.
      evaluate_every: iterations between matches of the raw network against the best so far, over
        every opening with both colours; 0 for none. None is 25, or 0 for one player.
      run: seed, devices, folder and callbacks. Checkpoints are 50 iterations apart by default.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if a setting is out of range, or the directory holds another run or is damaged.
      RuntimeError: if another process trains in the directory.
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
    # Defaults are spelled out, so that a run's folder says what they were when it began.
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
    """Makes the search that plays, and the one of the fast moves."""
    full = experts.make_expert(expert, num_simulations) if isinstance(expert, str) else expert
    return full, experts.fast_expert(expert, games.fast_simulations)


def _make_watch(
    env: Env, network: nnx.Module, games: Games
) -> Callable[[Mapping[str, float]], None]:
    """Makes the warnings; random play, which they compare with, is played if positions repeat."""
    counts = games.num_games, games.num_steps
    return game_warnings.make_watch(
        games.num_steps, lambda: game_warnings.distinct_at_random(env, network, *counts)
    )


class _Setting(NamedTuple):
    """What does not change while a network is trained; the arguments of `train`, made ready.

    `step` is one step of the optimizer: `((params, opt_state), buffer, rng_key) -> ((params,
    opt_state), parts)`.
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
    """Makes the step of the optimizer, and puts it together with all that it belongs to."""
    trainable = trainable_mask(network)
    optimizer = iterations.of_weights(optimizer, trainable)
    own, further = objectives_of(network, fit.objective, fit.offsets)
    # Without a model the network learns from single positions, and may have several policies.
    if model is None:
        losses_fn = losses.make_losses(network, own, further, fit.value_weight)
        update = iterations.make_update(losses_fn, optimizer, trainable)
        step = functools.partial(_step, env, update, fit.batch_size, mesh)
    # A model learns from unrolls by a loss of its own, which has no place for these settings.
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
    """Does one step of the optimizer on a batch from the buffer."""
    batch = replay.sample(env, buffer, rng_key, batch_size)
    return update(carry, sharding.split_rows(mesh, batch))


def _start(games: Games) -> selfplay.Start:
    return selfplay.Start(games.max_random_moves, games.start_fraction, games.resign_fraction)


def _init(setting: _Setting, rng_key: chex.PRNGKey, params: Params) -> ExpertIterationState:
    games = setting.games
    rng_key, games_key = jax.random.split(rng_key)
    # The buffer holds whole blocks, each what one iteration plays.
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
    """Plays the moves of an iteration in the games that a device has."""
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
    """Plays, remembers and learns."""
    own_play = functools.partial(_play, setting)
    # Games are on axis 0 of the state, and on axis 1 of experience and report, `[S, G]`.
    play = sharding.per_device(setting.mesh, own_play, (None, None, None, 0), (0, 1, 1))
    rng_key, play_key, fit_key = jax.random.split(state.rng_key, 3)
    # Self-play: S moves in each game, with the threshold that earlier iterations calibrated.
    resign_below = resignation.threshold(state.resignation)
    games, experience, report = play(state.params, play_key, resign_below, state.games)
    buffer = replay.add(state.replay, experience)
    # Learning: each step draws a new batch from the buffer, the newest block among the others.
    (params, opt_state), parts = jax.lax.scan(
        lambda carry, key: setting.step(carry, buffer, key),
        (state.params, state.opt_state),
        jax.random.split(fit_key, setting.fit.updates_per_iteration),
    )
    metrics = jax.tree.map(jnp.mean, parts) | selfplay.count_games(report)
    # For the warning that games repeat each other.
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
        "num_iterations", "num_games", "num_steps", "batch_size", "updates_per_iteration",
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
    """Lets the network play the best one, whose place it may take."""
    compare, num_openings = match
    score, num_games = float(compare(state.params, state.best.params)), 2 * num_openings
    difference = elo_difference(score * num_games, num_games).elo
    elo = state.best.elo + difference  # as the state is, on every device
    # An even score is no proof of strength: the older network stays the one to beat.
    if score > 0.5:
        # A copy: the next iteration overwrites the state's own arrays.
        params = jax.tree.map(jnp.copy, state.params)
        state = state._replace(best=Best(params, state.iteration + 0, elo))
    return state, {"score_against_best": score, "elo": float(elo)}


def _share(state: ExpertIterationState, mesh: jax.sharding.Mesh) -> ExpertIterationState:
    """Shares the axis of the games among devices; everything else is on each of them."""
    # Blocks are `[C, S, G]`.
    blocks = sharding.rows(mesh, state.replay.blocks, axis=2)
    return sharding.whole(mesh, state)._replace(
        games=sharding.rows(mesh, state.games),
        replay=sharding.whole(mesh, state.replay)._replace(blocks=blocks),
    )
