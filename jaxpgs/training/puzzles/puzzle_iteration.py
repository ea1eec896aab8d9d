"""Expert iteration for games of one player: search many boards, imitate, search better.

Seify 2020, algorithm 1 (a policy) and chapter 6 (policy and value). The first iteration searches
without a network. Each later one searches with the network of the one before; the network learns
the actions that the searches played, and what they found the positions worth.
"""

import functools
import math
import os
from collections.abc import Callable, Sequence
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

_VALUE_TARGETS = ("none", "return", "q")


class PuzzleIterationState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      params: the network's parameters.
      opt_state: the optimizer's state.
      training: the examples to learn from.
      validation: the examples that tell when to stop.
      iteration: `[]` int32, iterations done.
    """

    params: Params
    opt_state: Any
    training: ExampleQueue
    validation: ExampleQueue
    iteration: chex.Array


def train(
    env: Env,
    make_network: Callable[[int], nnx.Module],
    *,
    solver: Solver,
    first_solver: Solver,
    num_iterations: int = 20,
    num_runs: int = 1000,
    first_runs: int | None = None,
    runs_at_once: int = 100,
    training_length: int = 120_000,
    validation_length: int | None = None,
    validation_share: float = 0.1,
    batch_size: int = 256,
    max_epochs: int = 100,
    patience: int | None = 2,
    fresh_weights: bool = True,
    value_target: str = "none",
    value_factor: float = 16.0,
    under: float = 1.0,
    over: float = 1.0,
    optimizer: optax.GradientTransformation | None = None,
    init_params: Params | None = None,
    augment: bool = True,
    num_test_boards: int = 256,
    seed: int = 0,
    devices: Sequence[jax.Device] | None = None,
    directory: str | os.PathLike[str] | None = None,
    keep: int = 2,
    callback: iterations.Callback | Sequence[iterations.Callback] | None = None,
    progress: bool | None = None,
) -> PuzzleIterationState:
    """Trains a network by searching boards drawn from `env.init`.

    The defaults train a policy as Seify 2020, algorithm 1: new weights in every iteration, fitted
    until the validation loss stops falling. For policy and value as in section 6.1.3 pass
    `fresh_weights=False, patience=None, max_epochs=5, value_target="q"` and
    `optimizer=l2_adam()`.

    Args:
      env: a game of one player.
      make_network: makes the network with weights drawn by a seed, `seed -> module`.
      solver: the search that plays, `(params, rng_key, state [B]) -> jaxpgs.puzzles.Solution`, for
        example `lambda *x: policy_mcts(env, apply_fn, *x, 100, dirichlet_fraction=0.25)`.
      first_solver: that of the first iteration, whose `params` nobody has trained: `plain_mcts`
        with many simulations is the jump start of section 5.2.3.
      num_iterations: iterations in all, counting those of an earlier call in `directory`.
      num_runs: boards an iteration.
      first_runs: boards of the first one, whose searches wait for no network; `num_runs` if None.
      runs_at_once: boards searched side by side, a divisor of both.
      training_length: positions that the training queue holds.
      validation_length: the same of the validation queue; in proportion to its share if None.
      validation_share: share of an iteration's positions that are kept for validation, 0 to 1.
      batch_size: positions per step of the optimizer.
      max_epochs: most passes over the training queue in an iteration.
      patience: passes without a lower validation loss after which an iteration ends and takes the
        weights of the lowest; None does all `max_epochs` and keeps the last.
      fresh_weights: whether every iteration begins from new weights and a new optimizer state.
      value_target: "none"; "return" for what the game played earned from there (eq. 6.2); "q" for
        the highest Q-value of the search (eq. 6.3).
      value_factor: the weight of a value's squared error is `value_factor / vmax^2`, with the
        greatest size of a value (section 6.1.2, whose 16 was tuned for scores of single games).
        Means of many games are closer together and want more.
      under: weight of squared errors of values that are too low (eq. 6.6).
      over: weight of those that are too high.
      optimizer: any optax optimizer; Adam with a step of 5e-4, the thesis's, if None.
      init_params: weights to begin the first iteration from, such as those of another board; new
        ones if None.
      augment: whether examples are seen with their colours exchanged at random, if `env` has
        `permute_colors`, and every other one mirrored, if it has `mirror`. The thesis leaves the
        first out to show that it can.
      num_test_boards: boards on which the policy alone is measured after each iteration; 0 for
        none.
      seed: seed of everything random.
      devices: devices to share the boards and each batch among, `jax.devices()` for all of all
        processes; `runs_at_once` and `batch_size` must be multiples of their number. Solvers are
        then given a key for each board, with which the games do not depend on the number; sums over
        a batch may be rounded otherwise. None is the default device.
      directory: where to keep a checkpoint of every iteration. Called again with the same
        directory and arguments, training goes on from the last one and ends as if it had never
        stopped, bit by bit.
      keep: checkpoints to keep.
      callback: called after every iteration with the state and a dict of metrics, or several such
        functions; a true answer ends the training. `score` is the mean of the best games, `played`
        of the games played, `policy_score` of games drawn from the policy alone, `greedy_score` of
        games by its likeliest actions, `random_score` of random ones.
      progress: whether to show a bar on standard error; None shows one in a terminal.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: if an argument is out of range, the searches found no move at all, or `directory`
        holds another run or is damaged.
      RuntimeError: if another process trains in `directory`.
      FloatingPointError: if a loss is no longer finite.

    Deviations from the thesis: the best action is what the solver's Solution played; vmax is that
    of the iteration's training and validation queues.
    """
    arguments = dict(locals())
    if validation_length is None:
        length = training_length * validation_share / max(1 - validation_share, 1e-6)
        validation_length = max(math.ceil(length), 1)
    first_runs = first_runs or num_runs
    check_number("train", "num_test_boards", num_test_boards, 0)
    _check_arguments(
        {
            "num_iterations": num_iterations, "num_runs": num_runs, "runs_at_once": runs_at_once,
            "training_length": training_length, "validation_length": validation_length,
            "batch_size": batch_size, "max_epochs": max_epochs, "keep": keep,
            "patience": 1 if patience is None else patience,
        },
        first_runs,
        validation_share,
        value_target,
    )  # fmt: skip
    mesh = sharding.make_mesh(devices, {"runs_at_once": runs_at_once, "batch_size": batch_size})
    network = make_network(seed)
    _, apply_fn = functional(network)
    optimizer = optimizer or optax.adam(5e-4)
    fit = fitting.make_fit(
        env,
        network,
        optimizer,
        batch_size=batch_size,
        max_epochs=max_epochs,
        patience=patience,
        learns_value=value_target != "none",
        value_factor=value_factor,
        under=under,
        over=over,
        augment=augment,
        mesh=mesh,
    )
    base_key, test_key = jax.random.split(jax.random.key(seed))
    measure = jax.jit(make_measure(env, apply_fn, num_test_boards))

    def new_weights(iteration: int) -> tuple[Params, Any]:
        # Other weights each time, or every iteration would share the luck of the first.
        params, _ = functional(make_network(seed + iteration))
        return params, optimizer.init(params)

    run = _Run(
        first_search=functools.partial(
            search_boards, env, jit_solver(first_solver, mesh), num_runs=first_runs,
            runs_at_once=runs_at_once, value_target=value_target,
        ),
        search=functools.partial(
            search_boards, env, jit_solver(solver, mesh), num_runs=num_runs,
            runs_at_once=runs_at_once, value_target=value_target,
        ),
        fit=fit,
        new_weights=new_weights if fresh_weights else None,
        keep_first_weights=init_params is not None,
        validation_share=validation_share,
        base_key=base_key,
        seed=seed,
    )  # fmt: skip
    params, opt_state = new_weights(0)
    if init_params is not None:
        params = iterations.like(init_params, params)
    template = jax.eval_shape(env.init, base_key)
    state = PuzzleIterationState(
        params,
        opt_state,
        example_queue.empty(template, training_length),
        example_queue.empty(template, validation_length),
        jnp.int32(0),
    )

    def iterate(state: PuzzleIterationState) -> tuple[PuzzleIterationState, dict[str, float]]:
        state, metrics = _iterate(run, state)
        state = sharding.everywhere(mesh, state)
        if num_test_boards:
            scores = measure(state.params, test_key)
            metrics |= {name: float(x) for name, x in scores.items()}
        return state, metrics

    return iterations.run(
        sharding.everywhere(mesh, state), iterate, num_iterations,
        trainer="puzzle_iteration", arguments=arguments | {"network": network},
        directory=directory, checkpoint_every=1, keep=keep, callback=callback, progress=progress,
    )  # fmt: skip


def l2_adam(
    step_size: optax.ScalarOrSchedule = 5e-4, weight: float = 1e-4
) -> optax.GradientTransformation:
    """Adam on the loss plus an L2 norm of the weights (Seify 2020, section 6.1.3)."""
    return optax.chain(optax.add_decayed_weights(weight), optax.adam(step_size))


class _Run(NamedTuple):
    """What does not change while a network is trained.

    Attributes:
      first_search: `search_boards` as the first iteration does it, short of parameters and key.
      search: the same of the later ones.
      fit: from `fitting.make_fit`.
      new_weights: `iteration -> (params, opt_state)`, None where weights are taught on.
      keep_first_weights: whether the first iteration begins from the weights that were given.
      validation_share: as in `train`.
      base_key: of which each iteration's keys are made.
      seed: as in `train`.
    """

    first_search: Callable[..., tuple[Examples, dict[str, float]]]
    search: Callable[..., tuple[Examples, dict[str, float]]]
    fit: Callable[..., tuple[Params, Any, dict[str, float]]]
    new_weights: Callable[[int], tuple[Params, Any]] | None
    keep_first_weights: bool
    validation_share: float
    base_key: chex.PRNGKey
    seed: int


def _iterate(
    run: _Run, state: PuzzleIterationState
) -> tuple[PuzzleIterationState, dict[str, float]]:
    """Searches, adds to the queues what was found, and fits the network."""
    iteration = int(state.iteration)
    keys = jax.random.split(jax.random.fold_in(run.base_key, iteration), 3)
    rng = np.random.default_rng((run.seed, iteration))
    search = run.search if iteration else run.first_search
    examples, metrics = search(state.params, keys[0])
    count = len(examples.action)
    if not count:
        raise ValueError("The searches found no move on any board: is every game over at once?")
    order = rng.permutation(count)
    # At least one for each, so that tiny runs work.
    split = min(max(round(count * run.validation_share), 1), max(count - 1, 0))
    parts = order[split:], order[:split]
    training, validation = (
        example_queue.append(queue, jax.tree.map(lambda x, i=index: x[i], examples))
        for queue, index in zip((state.training, state.validation), parts, strict=True)
    )
    params, opt_state = state.params, state.opt_state
    if run.new_weights is not None and (iteration or not run.keep_first_weights):
        params, opt_state = run.new_weights(iteration)
    params, opt_state, fitted = run.fit(
        params, opt_state, (training.examples, int(training.size)),
        (validation.examples, int(validation.size)), keys[1], rng,
    )  # fmt: skip
    iteration += 1
    metrics |= fitted | {"iteration": iteration, "new_positions": count}
    state = PuzzleIterationState(params, opt_state, training, validation, jnp.int32(iteration))
    return state, metrics


def _check_arguments(
    counts: dict[str, int], first_runs: int, validation_share: float, value_target: str
) -> None:
    iterations.check_counts(counts)
    num_runs, runs_at_once = counts["num_runs"], counts["runs_at_once"]
    if num_runs % runs_at_once or first_runs % runs_at_once:
        raise ValueError(
            "runs_at_once must divide num_runs and first_runs; got "
            f"{runs_at_once}, {num_runs} and {first_runs}."
        )
    if not 0 < validation_share < 1:
        raise ValueError(f"validation_share must be between 0 and 1, got {validation_share}.")
    check_word("train", "value_target", value_target, _VALUE_TARGETS)
