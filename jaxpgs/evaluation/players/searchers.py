"""Searches as players."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.adapters.environments import RootFn, make_plan_fn
from jaxpgs.base import Env, Params, RecurrentFn
from jaxpgs.evaluation.players.player import Player
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.search import base_params_like


def search_player(
    env: Env,
    apply_fn: ApplyFn,
    params: Params,
    policy_fn: Callable[..., Any],
    num_simulations: int,
    *,
    name: str,
    keep_adapted: bool = False,
    deterministic: bool = False,
    model_fns: tuple[RootFn, RecurrentFn] | None = None,
    **knobs: Any,
) -> Player:
    """Makes a player from a search of this library or of mctx.

    Its stats count, over unfinished games: `num_evaluations`, network evaluations including the
    root's; and `num_calls`, sequential network calls.

    Args:
      env: the environment.
      apply_fn: the network.
      params: its parameters.
      policy_fn: `jaxpgs.pgs_policy`, `mctx.muzero_policy` or another with their arguments.
      num_simulations: simulations per move.
      name: the player's name.
      keep_adapted: whether the adapted parameters carry over to the game's next move, as in the PGS
        paper; if not, every search starts from the network's.
      deterministic: whether the actions do not depend on the key, as with `gumbel_scale=0` in
        tree searches that break no ties at random.
      model_fns: `root_fn` and `recurrent_fn` of the search, such as `make_model_fns(model, env)`;
        if None, it uses the rules of the environment and the network.
      **knobs: further arguments of `policy_fn`. To play at full strength, use temperature 0, the
        default of this library's searches, and no noise at the root.

    Returns:
      A player.

    Example:
      >>> player = jaxpgs.evaluation.search_player(
      ...     env, apply_fn, params, jaxpgs.pgs_policy, 32, name="PGS", adapt="policy_head"
      ... )
    """
    plan = make_plan_fn(env, apply_fn, policy_fn, num_simulations, model_fns=model_fns, **knobs)

    def init(batch_size: int) -> Any:
        if not keep_adapted:
            return ()
        states = jax.vmap(lambda _: env.init(jax.random.key(0)))(jnp.arange(batch_size))
        # Only the shapes of what a search adapts are asked for, so nothing is searched here.
        shapes = jax.eval_shape(lambda: plan(params, jax.random.key(0), states))
        if not hasattr(shapes, "search_state") or not jax.tree.leaves(shapes.search_state.params):
            raise ValueError(
                f"keep_adapted needs a search that adapts parameters, such as pgs_policy; {name} "
                "adapts none."
            )
        return base_params_like(shapes.search_state.params, params)

    def act(rng_key: chex.PRNGKey, state: Any, memory: Any) -> tuple[Any, Any, dict[str, Any]]:
        output = plan(
            params, rng_key, state, **({"adapted_params": memory} if keep_adapted else {})
        )
        going_on = jnp.sum(~state.terminated)
        if hasattr(output, "search_state"):
            evaluations = jnp.sum(output.search_state.num_evaluations)
            calls = output.search_state.num_calls
            memory = output.search_state.params if keep_adapted else ()
        else:  # mctx evaluates one new node per simulation and root
            evaluations, calls = going_on * num_simulations, num_simulations
        # The root's own evaluation is in no search's count.
        stats = {"num_evaluations": evaluations + going_on, "num_calls": calls + 1}
        return output.action, memory, stats

    return Player(name, init, act, deterministic=deterministic)
