"""Expert iteration in which a model is learned at the same time (Brosseit 2023, algorithm 3).

The alternative is `model_fitting.fit`, which learns a model from games labelled by a strong player
(`labelling.label_games`). The thesis used this for reasons of cost.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import optax

from jaxpgs.adapters.environments import make_model_fns
from jaxpgs.base import Env, Params
from jaxpgs.checks import check_number
from jaxpgs.networks import ValueEquivalentModel, functional, policy_head
from jaxpgs.search import extended_pgs_policy
from jaxpgs.search.papers import SIGMA
from jaxpgs.search.parts.target import completed_q
from jaxpgs.training.models import unrolls
from jaxpgs.training.models.model_fitting import make_model_update
from jaxpgs.training.runtime import sharding
from jaxpgs.training.runtime.settings import Run, in_settings
from jaxpgs.training.two_player import expert_iteration, experts


@dataclasses.dataclass(frozen=True)
class Fit:
    """What the model learns from the games, and how.

    Attributes:
      unroll: K, the number of actions after each position, at least 1.
      gradient_scale: the factor by which gradients are multiplied before each earlier transition.
      buffer_size: positions that the replay buffer holds, more than K for each game.
      batch_size: positions per optimizer step, at least 1.
      updates_per_iteration: optimizer steps per iteration, at least 1.
      optimizer: any optax optimizer; Adam with 1e-3 if None.
      value_weight: weight of the value loss.
      value_target: the target of the value, as in `expert_iteration.Fit`.
    """

    unroll: int = 5
    gradient_scale: float = 0.5
    buffer_size: int = 131_072
    batch_size: int = 512
    updates_per_iteration: int = 32
    optimizer: optax.GradientTransformation | None = None
    value_weight: float = 1.0
    value_target: str = "return"


@in_settings
def train(
    env: Env,
    model: ValueEquivalentModel,
    *,
    expert: str | experts.Expert = "extended",
    num_simulations: int = 64,
    num_iterations: int = 200,
    games: expert_iteration.Games = expert_iteration.Games(),
    fit: Fit = Fit(),
    init_params: Params | None = None,
    evaluate_every: int | None = None,
    run: Run = Run(),
) -> expert_iteration.ExpertIterationState:
    """Trains a model from scratch by a search that plans in it (Brosseit 2023, algorithm 3).

    This is `expert_iteration.train`, including checkpoints, with two differences: the search plans
    in the model, and knows the rules only at its root; and the model learns from unrolls. By
    default the target of the value is the result of the game.

    Args:
      env: the environment of two players who take turns.
      model: the model; only its structure and initial weights are used.
      expert: the search that plays: "extended" is VE-PGS, "gumbel" is Gumbel MuZero; the others
        are those of `experts.make_expert`, such as "gumbel_pgs"; or any `Expert`.
      num_simulations: simulations per move, for an expert given by its name.
      num_iterations: as in `expert_iteration.train`.
      games: settings of the self-play games, without resignation: a resigned game does not show the
        result of its last position.
      fit: what the model learns from them, and how.
      init_params: as in `expert_iteration.train`.
      evaluate_every: likewise.
      run: likewise.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: as `expert_iteration.train` and `make_model_fns`, if games may be resigned, and if
        an unroll is longer than the data.
      FloatingPointError: if the loss is no longer finite.
    """
    # Runs of earlier versions are identified by `make_fit` and the names that it closes over.
    unroll, gradient_scale, value_weight = fit.unroll, fit.gradient_scale, fit.value_weight
    batch_size, num_games = fit.batch_size, games.num_games
    check_number("train", "unroll", unroll, 1)
    # The buffer holds whole blocks.
    block = max(num_games * games.num_steps, 1)
    length = fit.buffer_size // block * games.num_steps
    if unroll >= length:
        raise ValueError(
            f"An unroll of {unroll} actions needs more steps of a game than the buffer holds: "
            f"buffer_size {fit.buffer_size} for {num_games} games is {length} steps, in blocks of "
            f"num_steps {games.num_steps}."
        )
    if games.resign_fraction:
        raise ValueError(
            "A model learns from games that are played to their end: resign_fraction must be 0, "
            f"got {games.resign_fraction}."
        )
    params, _ = functional(model)
    fast = games.fast_simulations
    if isinstance(expert, str) and fast is not None and not callable(fast):
        # Like `experts.fast_expert`, which only knows the names of the library's experts.
        fast = model_expert(expert, fast, params, dirichlet_fraction=0.0)
        games = dataclasses.replace(games, fast_simulations=fast)

    def make_fit(
        optimizer: optax.GradientTransformation, trainable: Params, mesh: jax.sharding.Mesh | None
    ) -> Callable[..., Any]:
        update = make_model_update(model, optimizer, trainable, gradient_scale, value_weight)
        return functools.partial(_step, env, update, (batch_size, unroll, num_games), mesh)

    return expert_iteration.train(
        env,
        model,
        expert=model_expert(expert, num_simulations, params),
        model=expert_iteration.ModelLearning(make_model_fns(model, env), make_fit),
        num_iterations=num_iterations,
        games=games,
        fit=expert_iteration.Fit(
            buffer_size=fit.buffer_size, batch_size=batch_size,
            updates_per_iteration=fit.updates_per_iteration, value_target=fit.value_target,
            optimizer=fit.optimizer or optax.adam(1e-3),
        ),
        init_params=init_params,
        evaluate_every=evaluate_every,
        run=run,
    )  # fmt: skip


def _step(
    env: Env,
    update: Callable[..., Any],
    sizes: tuple[int, int, int],
    mesh: jax.sharding.Mesh | None,
    carry: tuple[Params, Any],
    buffer: Any,
    rng_key: chex.PRNGKey,
) -> tuple[tuple[Params, Any], dict[str, chex.Array]]:
    """Takes one optimizer step on unrolls from the buffer."""
    batch = unrolls.sample(env, unrolls.replay_timeline(buffer), rng_key, *sizes)
    return update(carry, sharding.split_rows(mesh, batch))


def model_expert(
    expert: str | experts.Expert, num_simulations: int, params: Params, **knobs: Any
) -> experts.Expert:
    """Makes an expert that plans in a model and adapts the linear policy head, if any.

    Args:
      expert: "extended", a name that `experts.make_expert` knows, or an expert, which is returned.
      num_simulations: simulations per move.
      params: the model's parameters; shapes suffice.
      **knobs: further arguments of the search.

    Returns:
      An expert.
    """
    # An expert given as a function already knows what it adapts.
    if not isinstance(expert, str):
        return expert
    if expert == "extended" or expert in experts.ADAPTING:
        # As in the thesis, only the linear layer of the policy head adapts.
        knobs = {"adapt": policy_head(params, part="linear")} | knobs
    if expert != "extended":
        return experts.make_expert(expert, num_simulations, **knobs)
    # By default a search plays its best action; in self-play actions are sampled.
    defaults: dict[str, Any] = {"dirichlet_fraction": 0.25, "target": completed_q(qtransform=SIGMA)}
    return experts.searcher(extended_pgs_policy, num_simulations, **(defaults | knobs))
