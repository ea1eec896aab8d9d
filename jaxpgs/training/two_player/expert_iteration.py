"""Expert iteration: a search plays itself, the network imitates it, and the search gets better.

Anthony et al. 2019, section 5. One iteration is one jitted call: self-play, a replay buffer on the
device, and steps of the optimizer.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpgs.adapters.environments import LONGEST_GAME, RootFn, check_players
from jaxpgs.base import Env, Params, RecurrentFn
from jaxpgs.checks import check_count, check_number, check_word
from jaxpgs.evaluation import elo_difference
from jaxpgs.networks import (
    WithOffsets,
    functional,
    functional_call,
    trainable_mask,
)
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.two_player import experts, losses, replay, resignation, selfplay
from jaxpgs.training.two_player.head_to_head import make_compare
from jaxpgs.training.two_player.objectives import Objective, make_objective


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
    """The arguments of `train` that Anthony et al. 2019, section 5.1, have otherwise.

    Games begin at the start and most may be resigned, which suits games of a hundred moves and
    runs of days. They were the defaults of earlier versions, whose runs go on with them.

    Returns:
      Arguments by name: `train(env, network, **paper_settings())`.
    """
    return _FORMERLY | {"max_random_moves": 0, "resign_fraction": 0.9}


def train(
    env: Env,
    network: nnx.Module,
    *,
    expert: str | experts.Expert = "pgs",
    num_simulations: int = 64,
    fast_simulations: int | experts.Expert | None = None,
    full_share: float = 0.25,
    num_iterations: int = 200,
    num_games: int = 512,
    num_steps: int = 16,
    sampled_moves: int = 30,
    max_random_moves: int = 4,
    max_moves: int | None = None,
    start_fraction: float = 0.25,
    resign_fraction: float = 0.0,
    keep_adapted: bool = False,
    value_target: str = "return",
    buffer_size: int = 131_072,
    batch_size: int = 1024,
    updates_per_iteration: int = 32,
    optimizer: optax.GradientTransformation | None = None,
    value_weight: float = 1.0,
    objective: str | Objective = "cross_entropy",
    offsets: Mapping[str, str | Objective] | None = None,
    model_fns: tuple[RootFn, RecurrentFn] | None = None,
    init_params: Params | None = None,
    model: ModelLearning | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    devices: Sequence[jax.Device] | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 50,
    keep: int = 2,
    callback: iterations.Callback | Sequence[iterations.Callback] | None = None,
    progress: bool | None = None,
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
        `experts.NAMES`; or any `Expert`, such as
        `make_expert("pgs", 128, root_selection=jaxpgs.selection.puct(1.0))`.
      num_simulations: simulations a move, for an expert given by its name.
      fast_simulations: simulations of most moves, fewer than `num_simulations` (playout cap
        randomisation; Wu 2019, section 3.1): the policy learns from the other moves alone, the
        value from all. Fast moves have no Dirichlet noise; a Gumbel search draws its action by its
        noise, and keeps it. Where `expert` is an `Expert`, another one for the fast moves. None
        searches every move in full.
      full_share: with `fast_simulations`, the share of the moves that are searched in full; see
        `selfplay.play`.
      num_iterations: iterations in all, counting those of an earlier call in `directory`.
      num_games: G, games played side by side.
      num_steps: S, moves of each game per iteration.
      sampled_moves: moves of a game that are drawn from the expert's distribution; later ones are
        its best.
      max_random_moves: most random moves at the start of a game; see `selfplay.init_games`.
      max_moves: moves after which a game ends as it stands, which games without an end need; see
        `selfplay.play`. Games of an evaluation count as draws then, and after 4,096 if None.
      start_fraction: share of the games, at most half, that begin without any.
      resign_fraction: share of the games in which players may resign, 0 to 1. The others calibrate
        when: less than 5% of their winners would have.
      keep_adapted: whether what PGS adapts goes on to the game's next move; see `selfplay.play`.
      value_target: what the value learns, "return", "search" or "best"; see `selfplay.play`.
      buffer_size: positions that the replay buffer holds, at least `num_games * num_steps`; rounded
        down to a multiple of that.
      batch_size: positions per step of the optimizer.
      updates_per_iteration: steps of the optimizer per iteration.
      optimizer: any optax optimizer; `default_optimizer()` if None. Long runs of large networks
        want a step that falls, such as that of `optax.cosine_decay_schedule`.
      value_weight: weight of the value loss.
      objective: what the policy learns: "cross_entropy", to imitate the search; "tspg", to play
        what its values say is best; or any `objectives.Objective`.
      offsets: the objectives of the further policies of a `networks.WithOffsets`, by name; the
        search and the value are the network's own.
      model_fns: `(root_fn, recurrent_fn)`, what the expert plans with, such as
        `make_playout_fns(env, apply_fn)`; the environment's rules and the network if None.
      init_params: weights to start from, for example those of a smaller board by
        `jaxpgs.networks.resize`; the network's own if None.
      model: how to learn a model for the expert to plan with; None plans with the environment's
        rules. `value_equivalent.train` fills it in.
      evaluate_every: iterations between matches of the raw network against the best so far, over
        every opening with both colours; 0 for none. None is 25, or 0 for one player.
      seed: seed of everything random but the initial weights.
      devices: devices to share the games and each batch among, `jax.devices()` for all of all
        processes; `num_games` and `batch_size` must be multiples of their number. The games do not
        depend on it, but for those of "gumbel", whose noise is mctx's; sums over a batch may be
        rounded otherwise. None is the default device.
      directory: where to keep checkpoints. Called again with the same directory and arguments,
        training goes on from the last one and ends as if it had never stopped, bit by bit.
      checkpoint_every: iterations between checkpoints.
      keep: checkpoints to keep; the best network is part of each.
      callback: called after every iteration with the state and a dict of metrics, or several such
        functions; a true answer of any ends the training. The next iteration overwrites the state,
        so copy what you keep.
      progress: whether to show a bar on standard error; None shows one in a terminal.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if an argument is out of range, or `directory` holds another run or is damaged.
      RuntimeError: if another process trains in `directory`.
      FloatingPointError: if a loss is no longer finite.

    Example:
      >>> games = {"num_games": 8, "num_steps": 4, "batch_size": 16}
      >>> expert = jaxpgs.training.make_expert("mcs", 4)
      >>> fit = {"buffer_size": 64, "updates_per_iteration": 1, "evaluate_every": 0}
      >>> state = jaxpgs.training.expert_iteration.train(
      ...     env, module, expert=expert, num_iterations=1, **games, **fit
      ... )
      >>> int(state.iteration)
      1
    """
    arguments = dict(locals())
    if evaluate_every is None:
        evaluate_every = 0 if env.num_players == 1 else 25
        arguments |= {"evaluate_every": evaluate_every}
    _check_arguments(env, arguments)
    mesh = sharding.make_mesh(devices, {"num_games": num_games, "batch_size": batch_size})
    expert_fn = experts.make_expert(expert, num_simulations) if isinstance(expert, str) else expert
    fast = _fast_expert(expert, fast_simulations)
    params, apply_fn = functional(network)
    params = params if init_params is None else iterations.like(init_params, params)
    trainable = trainable_mask(network)
    chosen = default_optimizer() if optimizer is None else optimizer
    arguments |= {"optimizer": chosen}
    optimizer = iterations.of_weights(chosen, trainable)
    start: dict[str, Any] = {
        "max_random_moves": max_random_moves,
        "start_fraction": start_fraction,
        "resign_fraction": resign_fraction,
    }
    own, further = _objectives(network, objective, offsets)
    keep_root = any(one.needs_root for one in (own, *further.values()))
    if model is None:
        losses_fn = _make_losses(network, own, further, value_weight)
        fit = _make_fit(env, losses_fn, optimizer, trainable, batch_size, mesh)
    elif model_fns is not None or further or own.needs_root:
        raise ValueError(
            "With model, which has a loss and functions of its own, leave objective, offsets and "
            f"model_fns at their defaults; got {objective!r}, {offsets!r} and {model_fns!r}."
        )
    else:
        fit, model_fns = model.make_fit(optimizer, trainable, mesh), model.model_fns

    def play(
        params: Params,
        rng_key: chex.PRNGKey,
        resign_below: chex.Array,
        games: selfplay.SelfPlayGames,
    ) -> tuple[selfplay.SelfPlayGames, selfplay.Experience, selfplay.Report]:
        return selfplay.play(
            env,
            apply_fn,
            expert_fn,
            params,
            rng_key,
            games,
            num_steps,
            sampled_moves=sampled_moves,
            resign_below=resign_below,
            max_moves=max_moves,
            keep_adapted=keep_adapted,
            value_target=value_target,
            keep_played=model is not None,
            keep_root=keep_root,
            model_fns=model_fns,
            fast=fast,
            full_share=full_share,
            **start,
        )

    shared_play = sharding.per_device(mesh, play, (None, None, None, 0), (0, 1, 1))

    def iterate(state: ExpertIterationState) -> tuple[ExpertIterationState, dict[str, chex.Array]]:
        rng_key, play_key, fit_key = jax.random.split(state.rng_key, 3)
        resign_below = resignation.threshold(state.resignation)
        games, experience, report = shared_play(state.params, play_key, resign_below, state.games)
        buffer = replay.add(state.replay, experience)
        (params, opt_state), parts = jax.lax.scan(
            lambda carry, key: fit(carry, buffer, key),
            (state.params, state.opt_state),
            jax.random.split(fit_key, updates_per_iteration),
        )
        metrics = jax.tree.map(jnp.mean, parts) | _count_games(report)
        metrics |= {
            "resign_below": resign_below,
            "distinct_positions": replay.distinct(experience.observation),
        }
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

    rng_key, games_key = jax.random.split(jax.random.key(seed))
    observation_dtype = replay.observation_dtype(env)

    def init(params: Params) -> ExpertIterationState:
        num_blocks = buffer_size // (num_games * num_steps)
        return ExpertIterationState(
            params=params,
            opt_state=optimizer.init(params),
            games=selfplay.init_games(env, games_key, num_games, **start),
            replay=replay.init(
                env,
                num_blocks,
                num_steps,
                num_games,
                keep_played=model is not None,
                keep_root=keep_root,
                observation_dtype=observation_dtype,
            ),
            resignation=resignation.init(),
            best=Best(params, jnp.int32(0), jnp.float32(0)),
            iteration=jnp.int32(0),
            rng_key=rng_key,
        )

    # Everything is kept as jit places it, and each iteration's state takes the last one's memory.
    shardings = None if mesh is None else _shardings(jax.eval_shape(init, params), mesh)
    state = jax.jit(init, out_shardings=shardings)(params)
    iterate = jax.jit(iterate, donate_argnums=0, out_shardings=sharding.beside(mesh, shardings))
    compare, num_openings = make_compare(env, apply_fn, max_moves)
    watch = _make_watch(num_steps, lambda: _distinct_at_random(env, network, num_games, num_steps))

    def measured(state: ExpertIterationState) -> tuple[ExpertIterationState, dict[str, float]]:
        state, found = iterate(state)
        iteration = int(state.iteration)
        metrics = {name: float(value) for name, value in found.items()}
        metrics |= {"iteration": iteration, "positions": iteration * num_steps * num_games}
        watch(metrics)
        if evaluate_every and iteration % evaluate_every == 0:
            iterations.check_losses(metrics)
            score = float(compare(state.params, state.best.params))
            state, elo = _rate(state, score, 2 * num_openings)
            metrics |= {"score_against_best": score, "elo": elo}
        return state, metrics

    return iterations.run(
        state, measured, num_iterations, trainer="expert_iteration", arguments=arguments,
        directory=directory, checkpoint_every=checkpoint_every, keep=keep, callback=callback,
        progress=progress, formerly=_FORMERLY,
    )  # fmt: skip


def _check_arguments(env: Env, arguments: Mapping[str, Any]) -> None:
    """Raises `ValueError` for arguments of `train` that are out of range."""
    check_word("train", "value_target", arguments["value_target"], selfplay.VALUE_TARGETS)
    counts = (
        "num_iterations", "num_games", "num_steps", "batch_size", "updates_per_iteration",
        "checkpoint_every", "keep",
    )  # fmt: skip
    iterations.check_counts({name: arguments[name] for name in counts})
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
    positions, buffer_size = (
        arguments["num_games"] * arguments["num_steps"],
        arguments["buffer_size"],
    )
    if buffer_size < positions:
        raise ValueError(
            "buffer_size must hold an iteration's num_games * num_steps = "
            f"{positions} positions, got {buffer_size}."
        )


def _fast_expert(
    expert: str | experts.Expert, fast_simulations: int | experts.Expert | None
) -> experts.Expert | None:
    """Makes the expert of the fast moves, without noise in the root's prior."""
    if fast_simulations is None or callable(fast_simulations):
        return fast_simulations
    if not isinstance(expert, str):
        raise ValueError(
            "fast_simulations may be a number where expert is a name. With an Expert give another "
            'one for the fast moves, such as make_expert("pgs", 16, dirichlet_fraction=0.0); got '
            f"{fast_simulations!r}."
        )
    return experts.make_expert(expert, fast_simulations, dirichlet_fraction=0.0)


def _objectives(
    network: nnx.Module,
    objective: str | Objective,
    offsets: Mapping[str, str | Objective] | None,
) -> tuple[Objective, dict[str, Objective]]:
    """Returns the objectives of the network's policy and of its further ones."""
    further = {name: make_objective(one) for name, one in (offsets or {}).items()}
    names = sorted(network.offsets) if isinstance(network, WithOffsets) else []
    if sorted(further) != names:
        raise ValueError(
            "offsets must name an objective for each offset of the network, a "
            f"networks.WithOffsets, and no other: it has {names}, got {sorted(further)}."
        )
    return make_objective(objective), further


def _make_losses(
    network: nnx.Module, own: Objective, further: Mapping[str, Objective], value_weight: float
) -> Callable[..., Any]:
    """Makes `(params, target) -> (loss, (parts, moved))`, with the batch statistics moved."""
    call = functional_call(
        network, lambda net, x: net.all_policies(x) if further else (net(x), {}), train=True
    )

    def losses_fn(params: Params, target: selfplay.Experience) -> tuple[chex.Array, tuple]:
        ((logits, value), others), moved = call(params, target.observation)
        loss, parts = losses.policy_value_loss(
            logits, value, target, value_weight=value_weight, objective=own
        )
        for name, objective in further.items():
            # The offsets have parameters of their own, so adding losses trains each by its own.
            parts[f"{name}_loss"] = losses.objective_loss(others[name], target, objective)
            loss += parts[f"{name}_loss"]
        return loss, (parts, moved)

    return losses_fn


def _make_fit(
    env: Env,
    losses_fn: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    trainable: Params,
    batch_size: int,
    mesh: jax.sharding.Mesh | None,
) -> Callable[..., Any]:
    """Makes one step of the optimizer on a batch from the buffer."""
    update = iterations.make_update(losses_fn, optimizer, trainable)

    def fit(
        carry: tuple[Params, Any], buffer: replay.Replay, rng_key: chex.PRNGKey
    ) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
        batch = replay.sample(env, buffer, rng_key, batch_size)
        return update(carry, sharding.split_rows(mesh, batch))

    return fit


def _count_games(report: selfplay.Report) -> dict[str, chex.Array]:
    """Returns the metrics of the games: how many ended, how, and what the searches were like."""
    finished = jnp.maximum(jnp.sum(report.finished), 1)
    return {
        "finished_games": jnp.sum(report.finished),
        "mean_length": jnp.sum(report.finished * report.length) / finished,
        "resigned": jnp.sum(report.resigned) / finished,
        "best_share": jnp.mean(report.best_share),
        "evaluations_per_move": jnp.mean(report.num_evaluations),
    }


def _make_watch(
    num_steps: int, distinct_at_random: Callable[[], float]
) -> Callable[[Mapping[str, float]], None]:
    """Makes a function of metrics that warns, once of each, of games that teach little."""
    warned: set[str] = set()
    at_random: list[float] = []
    waited = [0]  # moves since a game ended

    def warn(kind: str, text: str) -> None:
        if kind not in warned:
            warned.add(kind)
            warnings.warn(text, stacklevel=2)

    def watch(metrics: Mapping[str, float]) -> None:
        count, share = metrics["finished_games"], metrics["resigned"]
        where = f"in iteration {metrics['iteration']:g}"
        waited[0] = 0 if count else waited[0] + num_steps
        if waited[0] >= LONGEST_GAME // 4:
            warn(
                "endless",
                f"No game has ended for {waited[0]} moves: nothing tells who wins. If games need "
                "not end, give max_moves, after which they end as they stand.",
            )
        if count >= 10 and share > 0.5:
            warn(
                "resigned",
                f"{share:.0%} of the games that ended {where} were resigned, after "
                f"{metrics['mean_length']:.1f} moves in the mean: what comes later is hardly "
                "learned. If that is not meant, train with resign_fraction=0.0.",
            )
        share = metrics["distinct_positions"]
        if share >= 0.1 or "repeats" in warned:
            return
        # A small game has few positions; random play tells how many there are to see.
        if not at_random:
            at_random.append(distinct_at_random())
        if share < 0.2 * at_random[0]:
            warn(
                "repeats",
                f"Only {share:.1%} of the positions played {where} differ from one another, where "
                f"random play has {at_random[0]:.1%}: the replay buffer repeats itself. Let games "
                "begin after random moves, by max_random_moves, or draw more moves, by "
                "sampled_moves.",
            )

    return watch


def _distinct_at_random(env: Env, network: nnx.Module, num_games: int, num_steps: int) -> float:
    """Returns the share of different positions among those of an iteration of random play."""
    params, apply_fn = functional(network)
    expert = experts.epsilon_greedy(experts.raw_policy(), 1.0)

    @jax.jit
    def share(params: Params, rng_key: chex.PRNGKey) -> chex.Array:
        games = selfplay.init_games(env, rng_key, num_games)
        _, seen, _ = selfplay.play(
            env, apply_fn, expert, params, rng_key, games, num_steps, sampled_moves=2**30,
            value_target="search",
        )  # fmt: skip
        return replay.distinct(seen.observation)

    return float(share(params, jax.random.key(0)))


def _rate(
    state: ExpertIterationState, score: float, num_games: int
) -> tuple[ExpertIterationState, float]:
    """Rates the network by its match against the best one, whose place it may take."""
    difference = elo_difference(score * num_games, num_games).elo
    elo = state.best.elo + difference  # as the state is, on every device
    if score > 0.5:
        # A copy: the next iteration overwrites the state's own arrays.
        params = jax.tree.map(jnp.copy, state.params)
        state = state._replace(best=Best(params, state.iteration + 0, elo))
    return state, float(elo)


def _shardings(state: ExpertIterationState, mesh: jax.sharding.Mesh) -> ExpertIterationState:
    """Shares the axis of the games among devices; everything else is on each of them."""
    blocks = sharding.rows(mesh, state.replay.blocks, axis=2)
    return sharding.whole(mesh, state)._replace(
        games=sharding.rows(mesh, state.games),
        replay=sharding.whole(mesh, state.replay)._replace(blocks=blocks),
    )
