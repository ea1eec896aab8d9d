"""Every trainer on a tiny game, for `quality.faults`: its arguments, and other values of them."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

import jaxpgs
from jaxpgs import networks, puzzles
from jaxpgs.envs import Hex, SameGame
from jaxpgs.training.models import labelling, model_fitting, value_equivalent
from jaxpgs.training.policy_gradient import ppo
from jaxpgs.training.puzzles import puzzle_iteration
from jaxpgs.training.recipes import distillation
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import expert_iteration, experts, objectives

ENV, PUZZLE = Hex(3), SameGame(3, 3, 2)


class SmallRun(NamedTuple):
    """A trainer and its arguments.

    Attributes:
      train: the trainer.
      given: makes its arguments.
      changes: makes another value for each argument that must not change when a run continues.
      length: iterations of a run that is long enough to be killed often.
      limit: the name of the argument that says how many iterations there are.
    """

    train: Callable[..., Any]
    given: Callable[[], dict[str, Any]]
    changes: Callable[[], dict[str, Any]]
    length: int = 400
    limit: str = "num_iterations"

    def __call__(self, **changed: Any) -> Any:
        """Trains, with these arguments in place of the given ones."""
        return by_name(self.train)(**({self.limit: self.length} | self.given() | changed))


def network(width: int = 16, env: Any = ENV, seed: int = 0) -> nnx.Module:
    """A network of one block."""
    return networks.FullyConnectedResNet(
        env.observation_shape, env.num_actions, width=width, num_blocks=1, rngs=nnx.Rngs(seed)
    )


def model(norm: str = "batch") -> networks.ValueEquivalentModel:
    """A model without blocks."""
    return networks.ValueEquivalentModel(
        ENV.observation_shape, ENV.num_actions, num_filters=4, num_blocks=0, policy_filters=2,
        value_filters=2, norm=norm, rngs=nnx.Rngs(0),
    )  # fmt: skip


def _weights(seed: int = 1) -> Any:
    return networks.functional(network(seed=seed))[0]


def _expert_iteration() -> dict[str, Any]:
    return {
        "env": ENV, "network": network(), "expert": experts.raw_policy(), "num_games": 8,
        "num_steps": 4, "buffer_size": 64, "batch_size": 16, "updates_per_iteration": 2,
        "evaluate_every": 5, "resign_fraction": 0.5, "checkpoint_every": 1,
    }  # fmt: skip


def _expert_iteration_changes() -> dict[str, Any]:
    return {
        "env": Hex(3, swap=True), "network": network(width=32), "seed": 1,
        "expert": experts.make_expert("pgs", 4), "num_simulations": 32, "num_games": 16,
        "num_steps": 8, "sampled_moves": 4, "max_random_moves": 2, "start_fraction": 0.5,
        "fast_simulations": experts.raw_policy(), "full_share": 0.5,
        "resign_fraction": 0.25, "keep_adapted": True, "value_target": "search",
        "buffer_size": 128, "batch_size": 32, "updates_per_iteration": 3,
        "optimizer": expert_iteration.paper_optimizer(0.02), "value_weight": 0.5,
        "objective": objectives.tspg("loss"), "evaluate_every": 7,
        "model_fns": jaxpgs.make_playout_fns(ENV), "init_params": _weights(),
    }  # fmt: skip


def _ppo() -> dict[str, Any]:
    return {
        "env": ENV, "network": network(), "num_games": 8, "num_steps": 4, "num_opponents": 4,
        "history_size": 8, "batch_size": 16, "epochs": 2, "evaluate_every": 0,
        "pool": [_weights()], "pool_fraction": 0.25, "checkpoint_every": 1,
    }  # fmt: skip


def _ppo_changes() -> dict[str, Any]:
    return {
        "env": Hex(3, swap=True), "network": network(width=32), "seed": 1, "num_games": 16,
        "num_steps": 8, "max_random_moves": 2, "delta": 0.5, "num_opponents": 2,
        "schedule": "random", "history_size": 4, "snapshot_every": 2, "pool": [_weights(2)],
        "pool_fraction": 0.5, "random_fraction": 0.25, "discount": 0.9, "gae_lambda": 0.9,
        "batch_size": 32, "epochs": 3, "clip": 0.1, "value_weight": 1.0, "entropy_weight": 0.02,
        "normalize_advantages": False, "optimizer": ppo.paper_optimizer(1e-3),
        "init_params": _weights(), "evaluate_every": 10,
    }  # fmt: skip


def make_puzzle_network(seed: int) -> nnx.Module:
    """A network for the puzzle."""
    return networks.SameGameResNet(
        PUZZLE.observation_shape, PUZZLE.num_actions, num_filters=4, num_blocks=1,
        rngs=nnx.Rngs(seed),
    )  # fmt: skip


def _search(params: Any, rng_key: Any, state: Any, *, count: int = 2) -> Any:
    del params
    return puzzles.plain_mcts(PUZZLE, rng_key, state, count)


def _puzzle_iteration() -> dict[str, Any]:
    return {
        "env": PUZZLE, "make_network": make_puzzle_network, "solver": _search,
        "first_solver": _search, "num_runs": 8, "runs_at_once": 8, "training_length": 64,
        "batch_size": 16, "max_epochs": 1, "num_test_boards": 0,
    }  # fmt: skip


def _puzzle_iteration_changes() -> dict[str, Any]:
    def make_wider(seed: int) -> nnx.Module:
        return make_puzzle_network(seed)

    other = functools.partial(_search, count=3)
    weights = networks.functional(make_puzzle_network(9))[0]
    return {
        "env": SameGame(3, 3, 2, penalty="none"), "make_network": make_wider, "seed": 1,
        "solver": other, "first_solver": other, "num_runs": 16, "first_runs": 16,
        "runs_at_once": 4, "training_length": 32, "validation_length": 8, "validation_share": 0.2,
        "batch_size": 8, "max_epochs": 2, "patience": 3, "fresh_weights": False,
        "value_target": "return", "under": 0.5, "over": 0.5, "optimizer": optax.adam(1e-3),
        "init_params": weights, "augment": False, "num_test_boards": 8,
    }  # fmt: skip


@functools.cache
def games() -> Any:
    """Labelled games."""
    params, apply_fn = networks.functional(network())
    few = labelling.Games(games_at_once=8, num_steps=8)
    return labelling.label_games(ENV, apply_fn, params, num_games=20, games=few)


def _model_fitting() -> dict[str, Any]:
    return {
        "env": ENV, "model": model(), "experience": games(), "unroll": 1, "batch_size": 16,
        "steps_per_epoch": 2, "validation_batches": 1, "patience": 10_000,
    }  # fmt: skip


def _model_fitting_changes() -> dict[str, Any]:
    other = games()._replace(value=np.asarray(games().value) + np.float32(0.5))
    return {
        "env": Hex(3, swap=True), "model": model("layer"), "experience": other, "seed": 1,
        "unroll": 2, "batch_size": 32, "patience": 20_000, "held_out": 0.2, "steps_per_epoch": 3,
        "validation_batches": 2, "settle_epochs": 1, "optimizer": optax.adam(1e-4),
        "gradient_scale": 1.0, "value_weight": 0.5,
        "init_params": jax.tree.map(lambda x: x + 1, networks.functional(model())[0]),
    }  # fmt: skip


def _value_equivalent() -> dict[str, Any]:
    return {
        "env": ENV, "model": model(), "expert": experts.raw_policy(), "unroll": 1, "num_games": 8,
        "num_steps": 4, "buffer_size": 64, "batch_size": 16, "updates_per_iteration": 2,
        "evaluate_every": 0, "checkpoint_every": 1,
    }  # fmt: skip


def _value_equivalent_changes() -> dict[str, Any]:
    return {
        "model": model("layer"), "expert": "extended", "unroll": 2, "gradient_scale": 1.0,
        "value_weight": 0.5, "num_games": 16, "num_steps": 8, "buffer_size": 128, "batch_size": 32,
        "optimizer": optax.adam(1e-4), "sampled_moves": 4, "updates_per_iteration": 3,
        "evaluate_every": 5, "seed": 1, "env": Hex(3, swap=True),
    }  # fmt: skip


def _distillation() -> dict[str, Any]:
    return {
        "env": ENV, "network": network(), "teacher": networks.functional(network(seed=1)),
        "batch_size": 16, "optimizer": optax.adam(1e-3), "checkpoint_every": 1,
    }  # fmt: skip


def _distillation_changes() -> dict[str, Any]:
    return {
        "env": Hex(3, swap=True), "network": network(width=32), "seed": 1, "batch_size": 8,
        "teacher": networks.functional(network(seed=2)), "random_fraction": 0.2,
        "optimizer": optax.adam(1e-4),
    }  # fmt: skip


def _labelling() -> dict[str, Any]:
    params, apply_fn = networks.functional(network())
    return {
        "env": ENV, "apply_fn": apply_fn, "params": params, "games_at_once": 8, "num_steps": 4,
    }  # fmt: skip


def _labelling_changes() -> dict[str, Any]:
    return {
        "env": Hex(3, swap=True), "apply_fn": networks.functional(network(width=32))[1], "seed": 1,
        "params": _weights(), "expert": experts.make_expert("pgs", 4), "epsilon": 0.5,
        "games_at_once": 16, "num_steps": 8,
    }  # fmt: skip


RUNS: Mapping[str, SmallRun] = {
    "expert iteration": SmallRun(
        expert_iteration.train, _expert_iteration, _expert_iteration_changes
    ),
    "PPO": SmallRun(ppo.train, _ppo, _ppo_changes),
    "puzzle iteration": SmallRun(
        puzzle_iteration.train, _puzzle_iteration, _puzzle_iteration_changes, 150
    ),
    "model fitting": SmallRun(
        model_fitting.fit, _model_fitting, _model_fitting_changes, 150, "max_epochs"
    ),
    "value-equivalent": SmallRun(
        value_equivalent.train, _value_equivalent, _value_equivalent_changes
    ),
    "distillation": SmallRun(distillation.distill, _distillation, _distillation_changes),
    "labelling": SmallRun(labelling.label_games, _labelling, _labelling_changes, 3000, "num_games"),
}


def use_cache(folder: str | os.PathLike[str]) -> None:
    """Keeps compiled programs in a folder, so that a repeated run begins sooner."""
    jax.config.update("jax_compilation_cache_dir", os.fspath(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
