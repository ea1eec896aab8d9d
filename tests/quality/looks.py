"""Evaluates positions with a network, alone or with a search, for the commands that judge it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpgs
from jaxpgs.adapters.environments import make_plan_fn

SEARCHES: dict[str, tuple[Any, dict[str, Any]]] = {
    "PGS": (jaxpgs.pgs_policy, {"adapt": "policy_head"}),
    "Gumbel MCTS": (jaxpgs.gumbel_mcts_policy, {}),
}


def look(
    network: Any, search: str | None, num_simulations: int, states: Any, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Evaluates a batch of positions.

    Args:
      network: has `env`, `apply_fn` and `params`.
      search: one of `SEARCHES`, or None for the network alone.
      num_simulations: N of the search.
      states: B positions.
      seed: the seed of the search.

    Returns:
      Values `[B]` for the player to move and policies `[B, A]`, of the network or of the search.
    """
    env, key = network.env, jax.random.key(seed)
    if search is None:
        root_fn = jaxpgs.make_root_fn(env, network.apply_fn)

        @jax.jit
        def evaluate(params: Any, states: Any) -> tuple[jax.Array, jax.Array]:
            root = root_fn(params, key, states)
            logits = jnp.where(states.legal_action_mask, root.prior_logits, -jnp.inf)
            return root.value, jax.nn.softmax(logits)
    else:
        policy, knobs = SEARCHES[search]
        plan = make_plan_fn(env, network.apply_fn, policy, num_simulations, **knobs)

        @jax.jit
        def evaluate(params: Any, states: Any) -> tuple[jax.Array, jax.Array]:
            output = plan(params, key, states)
            return output.search_state.value, output.action_weights

    value, weights = evaluate(network.params, states)
    return np.asarray(value, np.float64), np.asarray(weights, np.float64)
