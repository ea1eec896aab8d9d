"""Searches with a Gumbel root (Danihelka et al. 2022): policy gradient search and tree search."""

from typing import Any

import chex
import mctx

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.parts.gumbel import gumbel_inner, gumbel_root, gumbel_target
from jaxpgs.search.presets.defaults import default_num_considered
from jaxpgs.search.presets.mcs import mcs_search
from jaxpgs.search.presets.mcts import batched_mcts_search
from jaxpgs.search.presets.pgs import pgs_search
from jaxpgs.search.presets.running import run_preset


def gumbel_pgs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    adapt: Adapt,
    max_num_considered_actions: int | None = None,
    gumbel_scale: float | chex.Array = 1.0,
    **knobs: Any,
) -> Search:
    """Policy gradient search whose root is Gumbel MuZero's.

    Danihelka et al. 2022 at the root: some actions drawn without replacement, sequential halving
    among them, and the policy improved by completed Q-values as the answer. Below the root it is
    `pgs_search`.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      adapt: which parameters adapt, as in `pgs_search`.
      max_num_considered_actions: how many actions the root considers at most. If None, N / 4
        rounded, from 2 to 8, and with more than 64 simulations the root of N, up to 16. Danihelka
        et al. take 16, with which 16 and 64 simulations won fewer games on 7x7
        (`benchmarks/results/strength_sweep-considered_hex-7x7-early_64.json`). With a prior that
        knows nothing and few simulations, consider every action.
      gumbel_scale: scale of the noise at the root; 0 for evaluation in games of full information.
      **knobs: those of `pgs_search`. In constant mode a simulation has at most 16 actions unless
        `max_depth` or the truncation says otherwise.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `pgs_search` and `gumbel_root`.

    Example:
      >>> knobs = {"adapt": "policy_head", "max_num_considered_actions": 4}
      >>> search = jaxpgs.gumbel_pgs_search(recurrent_fn, 64, **knobs)
      >>> search.num_updates
      16
    """
    if max_num_considered_actions is None:
        max_num_considered_actions = default_num_considered(num_simulations)
    knobs = _gumbel(max_num_considered_actions, gumbel_scale) | knobs
    return pgs_search(recurrent_fn, num_simulations, adapt=adapt, **knobs)


def gumbel_pgs_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    *,
    adapt: Adapt,
    **knobs: Any,
) -> PolicyOutput:
    """Runs `gumbel_pgs_search`: policy gradient search below Gumbel MuZero's root.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: T, the largest number of actions in a simulation; None is 16 in constant mode,
        unless the truncation has a bound of its own, and no bound in cached mode.
      adapt: which parameters adapt, as in `pgs_search`.
      **knobs: those of `gumbel_pgs_search`, such as `gumbel_scale` and
        `max_num_considered_actions`; `nodes` and `adapted_params` of `init`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `gumbel_pgs_search` and `init`.
      TypeError: if a knob is unknown.

    Example:
      >>> output = jaxpgs.gumbel_pgs_policy(
      ...     params, rng_key, root, recurrent_fn, 4, adapt="policy_head"
      ... )
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    return run_preset(
        "gumbel_pgs_policy", (gumbel_pgs_search, pgs_search, mcs_search), (params, rng_key, root),
        (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs | {"adapt": adapt},
    )  # fmt: skip


def gumbel_mcts_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_num_considered_actions: int = 16,
    gumbel_scale: float | chex.Array = 1.0,
    **knobs: Any,
) -> Search:
    """Gumbel MuZero's tree search (Danihelka et al. 2022), K leaves at a time.

    With K = 1 it is `mctx.gumbel_muzero_policy`: the same key gives the same visit counts.
    Simulations in flight count as visits.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      max_num_considered_actions: how many actions the root considers at most.
      gumbel_scale: scale of the noise at the root; 0 for evaluation in games of full information.
      **knobs: those of `batched_mcts_search`, whose remarks on depth and legality hold here.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `batched_mcts_search` and `gumbel_root`.

    Example:
      >>> search = jaxpgs.gumbel_mcts_search(recurrent_fn, 64, gumbel_scale=0.0)
      >>> search.num_updates
      16
    """
    knobs = _gumbel(max_num_considered_actions, gumbel_scale) | knobs
    knobs.setdefault("interior_selection", gumbel_inner())
    return batched_mcts_search(recurrent_fn, num_simulations, **knobs)


def gumbel_mcts_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    **knobs: Any,
) -> PolicyOutput:
    """Runs `gumbel_mcts_search`: Gumbel MuZero's tree search, K leaves at a time.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal at the root.
      max_depth: the largest number of actions in a simulation; None sets no bound.
      **knobs: those of `gumbel_mcts_search`, such as `gumbel_scale` and
        `max_num_considered_actions`; `nodes` of `init`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `gumbel_mcts_search` and `init`.
      TypeError: if a knob is unknown.

    Example:
      >>> output = jaxpgs.gumbel_mcts_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    return run_preset(
        "gumbel_mcts_policy", (gumbel_mcts_search, batched_mcts_search, mcs_search),
        (params, rng_key, root), (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs,
    )  # fmt: skip


def _gumbel(max_num_considered_actions: int, gumbel_scale: float | chex.Array) -> dict[str, Any]:
    return {
        "root_selection": gumbel_root(max_num_considered_actions, gumbel_scale),
        "target": gumbel_target(),
    }
