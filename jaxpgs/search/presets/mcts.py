"""Tree search, K simulations at a time with virtual loss (Segal 2010)."""

from typing import Any

import chex
import mctx

from jaxpgs.base import Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.parts.selection import Selection
from jaxpgs.search.presets.defaults import default_bandit
from jaxpgs.search.presets.mcs import mcs_search
from jaxpgs.search.presets.running import run_preset


def batched_mcts_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    root_selection: Selection | None = None,
    interior_selection: Selection | None = None,
    **knobs: Any,
) -> Search:
    """Monte Carlo tree search, K leaves at a time: PUCT with virtual loss in every node.

    The tree search of Anthony et al. 2019, section 4.1, parallel as in Segal 2010: K simulations
    choose their ways one after another, each counting the ones before it as lost, and the network
    evaluates their K leaves in one call. With K = 1 it is plain sequential PUCT.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      root_selection: `puct(1.5, virtual_loss=1.0)` if None.
      interior_selection: that of the other nodes; the root's if None.
      **knobs: those of `mcs_search`. The mode is "cached", so no bound cuts a simulation off unless
        `max_depth` does. Below the root, actions whose logits are the lowest float or -inf are
        never taken where there is another.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `mcs_search`.

    Example:
      >>> search = jaxpgs.batched_mcts_search(recurrent_fn, 64, root_selection=jaxpgs.muzero_puct())
      >>> search.mode, search.num_updates
      ('cached', 16)
    """
    root_selection = root_selection or default_bandit()
    return mcs_search(
        recurrent_fn,
        num_simulations,
        mode="cached",
        root_selection=root_selection,
        interior_selection=interior_selection or root_selection,
        **knobs,
    )


def batched_mcts_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    **knobs: Any,
) -> PolicyOutput:
    """Runs `batched_mcts_search`: tree search, K leaves at a time (Segal 2010).

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal at the root.
      max_depth: the largest number of actions in a simulation; None sets no bound.
      **knobs: those of `batched_mcts_search`; `nodes` of `init`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `batched_mcts_search` and `init`.
      TypeError: if a knob is unknown.

    Example:
      >>> output = jaxpgs.batched_mcts_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    return run_preset(
        "batched_mcts_policy", (batched_mcts_search, mcs_search), (params, rng_key, root),
        (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs,
    )  # fmt: skip
