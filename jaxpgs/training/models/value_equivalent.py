"""Expert iteration with a model that is learned on the way (Brosseit 2023, algorithm 3).

`model_fitting.fit` learns a model from games that somebody strong has judged
(`labelling.label_games`), which is what the thesis could afford.
"""

from collections.abc import Callable, Sequence
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
from jaxpgs.training.runtime import iterations, sharding
from jaxpgs.training.two_player import expert_iteration, experts


def train(
    env: Env,
    model: ValueEquivalentModel,
    *,
    expert: str | experts.Expert = "extended",
    num_simulations: int = 64,
    unroll: int = 5,
    gradient_scale: float = 0.5,
    value_weight: float = 1.0,
    num_games: int = 512,
    num_steps: int = 16,
    buffer_size: int = 131_072,
    batch_size: int = 512,
    optimizer: optax.GradientTransformation | None = None,
    callback: iterations.Callback | Sequence[iterations.Callback] | None = None,
    **knobs: Any,
) -> expert_iteration.ExpertIterationState:
    """Trains a model from nothing by a search that plans in it (Brosseit 2023, algorithm 3).

    This is `expert_iteration.train`, checkpoints and all, with two differences: the search plans in
    the model, which knows the rules at its root alone, and the model learns from unrolls. The value
    to learn is the result of the game.

    Args:
      env: the environment of two players who take turns.
      model: the model; only its structure and initial weights are used.
      expert: the search that plays: "extended" is VE-PGS, "gumbel" is Gumbel MuZero; the others
        are those of `experts.make_expert`, such as "gumbel_pgs"; or any `Expert`.
      num_simulations: simulations a move, for an expert given by its name.
      unroll: K, how many actions each position is followed by.
      gradient_scale: what gradients are multiplied by where they enter an earlier transition.
      value_weight: weight of the value loss.
      num_games: G, games played side by side.
      num_steps: moves of each game per iteration.
      buffer_size: positions that the replay buffer holds.
      batch_size: positions per step of the optimizer.
      optimizer: any optax optimizer; Adam with 1e-3 if None.
      callback: as in `expert_iteration.train`.
      **knobs: its other arguments, but for `resign_fraction`: a game that is given up does not show
        what its last position leads to.

    Returns:
      The state after the last iteration.

    Raises:
      ValueError: as `expert_iteration.train` and `make_model_fns`, and if an unroll is longer than
        the data.
      FloatingPointError: if the loss is no longer finite.
    """
    check_number("train", "unroll", unroll, 1)
    length = buffer_size // max(num_games, 1)
    if unroll >= length:
        raise ValueError(
            f"An unroll of {unroll} actions needs more steps of a game than the buffer holds: "
            f"buffer_size {buffer_size} for {num_games} games is {length} steps."
        )
    params, _ = functional(model)
    model_fns = make_model_fns(model, env)

    def make_fit(
        optimizer: optax.GradientTransformation, trainable: Params, mesh: jax.sharding.Mesh | None
    ) -> Callable[..., Any]:
        update = make_model_update(model, optimizer, trainable, gradient_scale, value_weight)

        def fit(carry: tuple[Params, Any], buffer: Any, rng_key: chex.PRNGKey) -> tuple:
            steps = unrolls.replay_timeline(buffer)
            batch = unrolls.sample(env, steps, rng_key, batch_size, unroll, num_games)
            return update(carry, sharding.split_rows(mesh, batch))

        return fit

    return expert_iteration.train(
        env,
        model,
        expert=model_expert(expert, num_simulations, params),
        model=expert_iteration.ModelLearning(model_fns, make_fit),
        num_games=num_games,
        num_steps=num_steps,
        buffer_size=buffer_size,
        batch_size=batch_size,
        optimizer=optimizer or optax.adam(1e-3),
        resign_fraction=0.0,
        callback=callback,
        **knobs,
    )


def model_expert(
    expert: str | experts.Expert, num_simulations: int, params: Params, **knobs: Any
) -> experts.Expert:
    """Makes an expert that plans in a model and adapts the linear policy head, if any.

    Args:
      expert: "extended", a name that `experts.make_expert` knows, or an expert, which is returned.
      num_simulations: simulations a move.
      params: the model's parameters; shapes suffice.
      **knobs: further arguments of the search.

    Returns:
      An expert.
    """
    if not isinstance(expert, str):
        return expert
    if expert == "extended" or expert in experts.ADAPTING:
        knobs = {"adapt": policy_head(params, part="linear")} | knobs
    if expert != "extended":
        return experts.make_expert(expert, num_simulations, **knobs)
    # By default the search plays its best action; self-play draws.
    defaults: dict[str, Any] = {"dirichlet_fraction": 0.25, "target": completed_q(qtransform=SIGMA)}
    return experts.searcher(extended_pgs_policy, num_simulations, **(defaults | knobs))
