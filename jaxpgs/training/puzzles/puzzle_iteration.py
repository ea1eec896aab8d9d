"""Expert iteration for one-player games: search many boards, imitate, search better.

Seify 2020, algorithm 1 (a policy) and chapter 6 (policy and value). The first iteration searches
without a network. Each later iteration searches with the network of the previous one. The network
learns the actions that the searches played and the values that they found.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxpgs.base import Env, Params
from jaxpgs.checks import check_number, check_word
from jaxpgs.networks import functional
from jaxpgs.training.puzzles import example_queue, fitting
from jaxpgs.training.puzzles.example_queue import ExampleQueue
from jaxpgs.training.puzzles.fitting import Examples
from jaxpgs.training.puzzles.puzzle_data import Solver, jit_solver, make_measure, search_boards
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.runtime.settings import Run, check_counts, flat, in_settings

_VALUE_TARGETS = ("none", "return", "q")
# The fields of `Fit` that are arguments of `fitting.make_fit`.
_LEARNING = ("batch_size", "max_epochs", "patience", "value_factor", "under", "over", "augment")


class PuzzleIterationState(NamedTuple):
    """Everything that a run needs to continue.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      training: the examples to learn from.
      validation: the examples for early stopping.
      iteration: `[]` int32, iterations done.
    """

    params: Params
    opt_state: Any
    training: ExampleQueue
    validation: ExampleQueue
    iteration: chex.Array


@dataclasses.dataclass(frozen=True)
class Games:
    """The boards that are searched.

    Attributes:
      num_runs: boards per iteration, at least 1.
      first_runs: boards of the first iteration, whose searches use no network; `num_runs` if None.
      runs_at_once: boards searched in parallel, a divisor of both. With several devices it must be
        a multiple of their number, and solvers then get one key for each board.
      num_test_boards: boards on which the policy alone is evaluated after each iteration; 0 for
        none.
    """

    num_runs: int = 1000
    first_runs: int | None = None
    runs_at_once: int = 100
    num_test_boards: int = 256


@dataclasses.dataclass(frozen=True)
class Fit:
    """What the network learns from the searches, and how.

    Attributes:
      training_length: the capacity of the training queue in positions, at least 1.
      validation_length: the capacity of the validation queue; in proportion to its share if None.
      validation_share: the share of an iteration's positions that is kept for validation, above 0
        and below 1.
      batch_size: positions per step of the optimizer, at least 1.
      max_epochs: the maximum number of passes over the training queue in an iteration, at least 1.
      patience: passes without a lower validation loss after which the fitting ends with the weights
        of the lowest loss; None does all `max_epochs` passes and keeps the last weights.
      fresh_weights: whether every iteration begins from new weights and a new optimizer state.
      value_target: "none"; "return" for the return from there of the game played (eq. 6.2), for
        solvers without `restart`; "q" for the highest Q-value of the search (eq. 6.3).
      value_factor: the weight of the squared value error is `value_factor / vmax^2`, where vmax is
        the largest absolute value (section 6.1.2, whose 16 was tuned for scores of single games).
        Means of many games vary less and need a larger factor.
      under: weight of squared errors of values that are too low (eq. 6.6).
      over: weight of squared errors of values that are too high.
      optimizer: any optax optimizer; Adam with a step of 5e-4, the thesis's, if None.
      augment: whether to permute the colours of examples at random, if the environment has
        `permute_colors`, and to mirror every other one, if it has `mirror`. The thesis deliberately
        does without the permutation.
    """

    training_length: int = 120_000
    validation_length: int | None = None
    validation_share: float = 0.1
    batch_size: int = 256
    max_epochs: int = 100
    patience: int | None = 2
    fresh_weights: bool = True
    value_target: str = "none"
    value_factor: float = 16.0
    under: float = 1.0
    over: float = 1.0
    optimizer: optax.GradientTransformation | None = None
    augment: bool = True


@in_settings
def train(
    env: Env,
    make_network: Callable[[int], nnx.Module],
    *,
    solver: Solver,
    first_solver: Solver,
    num_iterations: int = 20,
    games: Games = Games(),
    fit: Fit = Fit(),
    init_params: Params | None = None,
    run: Run = Run(),
) -> PuzzleIterationState:
    """Trains a network by searching boards drawn from `env.init`.

    The defaults train a policy as in Seify 2020, algorithm 1: new weights in every iteration,
    fitted until the validation loss stops falling. To train policy and value as in section 6.1.3,
    pass `fit=Fit(fresh_weights=False, patience=None, max_epochs=5, value_target="q",
    optimizer=l2_adam())`.

    Args:
      env: a one-player game.
      make_network: makes the network with random weights, `seed -> module`.
      solver: the search that plays, `(params, rng_key, state [B]) -> jaxpgs.puzzles.Solution`, for
        example `lambda *x: policy_mcts(env, apply_fn, *x, 100, dirichlet_fraction=0.25)`.
      first_solver: the search of the first iteration, whose `params` are untrained: `plain_mcts`
        with many simulations is the jump start of section 5.2.3.
      num_iterations: iterations in total, including those of an earlier call in `run.directory`.
      games: the boards that are searched.
      fit: what the network learns from them, and how.
      init_params: weights of the first iteration, for example of another board; new ones if None.
      run: seed, devices, folder and callbacks; the seed draws the weights as well. Every iteration
        is saved by default. The metrics include mean scores: `score` of the best games, `played` of
        the games played, `policy_score` of games sampled from the policy alone, `greedy_score` of
        games with its most likely actions, and `random_score` of random games.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if a setting is out of range, the searches found no move at all, or the directory
        holds another run or is damaged.
      RuntimeError: if another process is training in the directory.
      FloatingPointError: if a loss is no longer finite.

    Deviations from the thesis: the best action is the one that the solver's Solution played; vmax
    is taken over the iteration's training and validation queues.
    """
    arguments = flat(locals(), "games", "fit", "run")
    first_runs, validation_length = games.first_runs or games.num_runs, _validation_length(fit)
    _check_arguments(arguments | {"first_runs": first_runs, "validation_length": validation_length})
    shared = {"runs_at_once": games.runs_at_once, "batch_size": fit.batch_size}
    mesh = sharding.make_mesh(run.devices, shared)
    network = make_network(run.seed)
    optimizer = fit.optimizer or optax.adam(5e-4)
    base_key, test_key = jax.random.split(jax.random.key(run.seed))
    make_search = functools.partial(_make_search, env, games.runs_at_once, fit.value_target, mesh)
    new_weights = functools.partial(_new_weights, make_network, run.seed, optimizer)
    setting = _Setting(
        # Two searches: in the first iteration the network is untrained.
        first_search=make_search(first_solver, first_runs),
        search=make_search(solver, games.num_runs),
        learn=_make_learn(env, network, optimizer, fit, mesh),
        new_weights=new_weights if fit.fresh_weights else None,
        keep_first_weights=init_params is not None,
        measure=_make_measure(env, network, games.num_test_boards, test_key),
        validation_share=fit.validation_share,
        base_key=base_key,
        seed=run.seed,
        mesh=mesh,
    )  # fmt: skip
    params, opt_state = new_weights(0)
    params = iterations.like(init_params, params)
    training, validation = _empty_queues(env, fit.training_length, validation_length)
    state = PuzzleIterationState(params, opt_state, training, validation, jnp.int32(0))
    return iterations.run(
        sharding.everywhere(mesh, state), functools.partial(_iterate, setting), num_iterations,
        trainer="puzzle_iteration", arguments=arguments | {"network": network}, settings=run,
        checkpoint_every=1,
    )  # fmt: skip


def _make_search(
    env: Env,
    runs_at_once: int,
    value_target: str,
    mesh: jax.sharding.Mesh | None,
    solver: Solver,
    num_runs: int,
) -> Callable[..., tuple[Examples, dict[str, float]]]:
    """Binds all arguments of `search_boards` except parameters and key."""
    return functools.partial(
        search_boards, env, jit_solver(solver, mesh), num_runs=num_runs,
        runs_at_once=runs_at_once, value_target=value_target,
    )  # fmt: skip


def _make_learn(
    env: Env,
    network: nnx.Module,
    optimizer: optax.GradientTransformation,
    fit: Fit,
    mesh: jax.sharding.Mesh | None,
) -> Callable[..., tuple[Params, Any, dict[str, float]]]:
    return fitting.make_fit(
        env, network, optimizer, learns_value=fit.value_target != "none", mesh=mesh,
        **{name: getattr(fit, name) for name in _LEARNING},
    )  # fmt: skip


def _validation_length(fit: Fit) -> int:
    """Returns the capacity of the validation queue."""
    if fit.validation_length is not None:
        return fit.validation_length
    # Both queues then reach back over the same number of iterations.
    length = fit.training_length * fit.validation_share / max(1 - fit.validation_share, 1e-6)
    return max(math.ceil(length), 1)


def _make_measure(
    env: Env, network: nnx.Module, num_boards: int, rng_key: chex.PRNGKey
) -> Callable[[Params], dict[str, chex.Array]] | None:
    """Makes the evaluation of the policy alone, on the same boards after every iteration."""
    if not num_boards:
        return None
    scores = make_measure(env, functional(network)[1], num_boards)
    return functools.partial(jax.jit(scores), rng_key=rng_key)


def _empty_queues(env: Env, *lengths: int) -> list[Any]:
    # Queues hold environment states; observations are computed from them during fitting.
    template = jax.eval_shape(env.init, jax.random.key(0))
    return [example_queue.empty(template, length) for length in lengths]


def l2_adam(
    step_size: optax.ScalarOrSchedule = 5e-4, weight: float = 1e-4
) -> optax.GradientTransformation:
    """Adam on the loss plus an L2 norm of the weights (Seify 2020, section 6.1.3)."""
    return optax.chain(optax.add_decayed_weights(weight), optax.adam(step_size))


class _Setting(NamedTuple):
    """The constants of a training run.

    Attributes:
      first_search: `search_boards` of the first iteration, a function of parameters and key.
      search: the same for the later iterations.
      learn: from `fitting.make_fit`.
      new_weights: `iteration -> (params, opt_state)`, None if training continues from the last
        weights.
      keep_first_weights: whether the first iteration begins with the given weights.
      measure: `params -> scores` of the policy alone; None if it is not evaluated.
      validation_share: as in `Fit`.
      base_key: the key from which each iteration's keys are derived.
      seed: as in `Run`.
      mesh: the devices.
    """

    first_search: Callable[..., tuple[Examples, dict[str, float]]]
    search: Callable[..., tuple[Examples, dict[str, float]]]
    learn: Callable[..., tuple[Params, Any, dict[str, float]]]
    new_weights: Callable[[int], tuple[Params, Any]] | None
    keep_first_weights: bool
    measure: Callable[[Params], dict[str, chex.Array]] | None
    validation_share: float
    base_key: chex.PRNGKey
    seed: int
    mesh: jax.sharding.Mesh | None


def _new_weights(
    make_network: Callable[[int], nnx.Module],
    seed: int,
    optimizer: optax.GradientTransformation,
    iteration: int,
) -> tuple[Params, Any]:
    # A new seed each time, so that iterations do not all depend on one initialization.
    params, _ = functional(make_network(seed + iteration))
    return params, iterations.init_optimizer(optimizer, params)


def _iterate(
    setting: _Setting, state: PuzzleIterationState
) -> tuple[PuzzleIterationState, dict[str, float]]:
    """Searches, adds the examples to the queues, and fits the network."""
    iteration = int(state.iteration)
    # Random numbers depend on seed and iteration alone, so no generator state is saved.
    keys = jax.random.split(jax.random.fold_in(setting.base_key, iteration), 3)
    # NumPy does not accept negative seeds, unlike JAX.
    rng = np.random.default_rng((setting.seed % 2**32, iteration))
    search = setting.search if iteration else setting.first_search
    examples, metrics = search(state.params, keys[0])
    count = len(examples.action)
    if not count:
        raise ValueError(
            "The searches found no move to learn from: every game was over at once, or none was "
            "played to its end. Give a solver max_moves if games are longer than half their "
            "actions."
        )
    # Shuffled, as examples are ordered by board, and split for training and validation.
    order = rng.permutation(count)
    # At least one for each, so that tiny runs work.
    split = min(max(round(count * setting.validation_share), 1), max(count - 1, 0))
    parts = order[split:], order[:split]
    training, validation = (
        example_queue.append(queue, jax.tree.map(lambda x, i=index: x[i], examples))
        for queue, index in zip((state.training, state.validation), parts, strict=True)
    )
    params, opt_state = state.params, state.opt_state
    # Algorithm 1: each network is fitted from new weights, except from `init_params` at first.
    if setting.new_weights is not None and (iteration or not setting.keep_first_weights):
        params, opt_state = setting.new_weights(iteration)
    params, opt_state, fitted = setting.learn(
        params, opt_state, (training.examples, int(training.size)),
        (validation.examples, int(validation.size)), keys[1], rng,
    )  # fmt: skip
    iteration += 1
    metrics |= fitted | {"iteration": iteration, "new_positions": count}
    state = PuzzleIterationState(params, opt_state, training, validation, jnp.int32(iteration))
    state = sharding.everywhere(setting.mesh, state)
    if setting.measure is not None:
        metrics |= {name: float(x) for name, x in setting.measure(state.params).items()}
    return state, metrics


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises `ValueError` for arguments of `train` that are out of range."""
    check_number("train", "num_test_boards", arguments["num_test_boards"], 0)
    counts = (
        "num_iterations", "num_runs", "runs_at_once", "training_length", "validation_length",
        "batch_size", "max_epochs",
    )  # fmt: skip
    check_counts({name: arguments[name] for name in counts})
    if arguments["patience"] is not None:
        check_counts({"patience": arguments["patience"]})
    num_runs, first_runs, at_once, share = (
        arguments[name] for name in ("num_runs", "first_runs", "runs_at_once", "validation_share")
    )
    if num_runs % at_once or first_runs % at_once:
        raise ValueError(
            "runs_at_once must divide num_runs and first_runs; got "
            f"{at_once}, {num_runs} and {first_runs}."
        )
    if not 0 < share < 1:
        raise ValueError(f"validation_share must be between 0 and 1, got {share}.")
    check_word("train", "value_target", arguments["value_target"], _VALUE_TARGETS)
