"""Searches with PUCT at the root: Monte Carlo search, policy gradient search and tree search."""

from collections.abc import Mapping
from typing import Any, Unpack

import chex
import mctx

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.options import (
    MCSOptions,
    MCSPolicyOptions,
    PGSOptions,
    PGSPolicyOptions,
    takes_options,
)
from jaxpgs.search.parts.estimator import auto_sgd, reinforce
from jaxpgs.search.parts.target import improved_policy
from jaxpgs.search.presets.making import MCS, QTRANSFORM, ROLLOUTS, make_search, run_preset

PGS = MCS | {"estimator": reinforce("value", relative=True), "optimizer": auto_sgd()}


def pgs_parts(options: Mapping[str, Any], qtransform: Any = QTRANSFORM) -> dict[str, Any]:
    """Returns the parts of policy gradient search; they depend on whether nodes can be read."""
    if options.get("mode") in ROLLOUTS or options.get("reuse") is not None:
        return PGS
    # If states are kept, simulations also follow the returns recorded in them.
    return PGS | {"interior_selection": improved_policy(by_counts=True, qtransform=qtransform)}


@takes_options
def mcs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_depth: int | None = None,
    **options: Unpack[MCSOptions],
) -> Search:
    """Monte Carlo search: PUCT at the root, the network's policy below it.

    Anthony et al. 2019, sections 2.4 and 4.1. The defaults are for fewer simulations than the paper
    uses; `paper_mcs()` has the paper's settings.

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 256, truncation=jaxpgs.truncation.fixed(4), mode="rollouts"
      ... )
      >>> search.simulations_per_update, search.num_updates
      (8, 32)
    """
    return make_search(recurrent_fn, num_simulations, MCS, options, max_depth=max_depth)


@takes_options
def mcs_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    **options: Unpack[MCSPolicyOptions],
) -> PolicyOutput:
    """Runs `mcs_search`: Monte Carlo search (Anthony et al. 2019, sections 2.4 and 4.1).

    Example:
      >>> output = jaxpgs.mcs_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    data = params, rng_key, root, invalid_actions
    knobs = {"max_depth": max_depth}
    return run_preset(mcs_search, recurrent_fn, num_simulations, options, *data, **knobs)


@takes_options
def pgs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    adapt: Adapt,
    max_depth: int | None = None,
    **options: Unpack[PGSOptions],
) -> Search:
    """Policy gradient search: `mcs_search` whose simulation policy learns as it searches.

    Anthony et al. 2019, section 3: after every K simulations the adapted parameters take a
    REINFORCE step on the returns. With `adapt="policy_head"` this is PGS. With
    `adapt="everything"` and `mode="rollouts"` it is the paper's PGS-UF (section 4.3). In both,
    batch normalisation does not change (section 3.2). Only the simulation policy adapts; values and
    rewards come from the original network. If they depend on the adapted parameters, each state is
    evaluated twice and counted once. `paper_pgs(step_size)` has the paper's settings.

    Deviation from the paper if states are kept: simulations also follow the returns recorded in the
    states they visit, by visit counts instead of sampling (`interior_selection`). This is stronger
    on small boards. `interior_selection=None` samples actions from the adapted policy alone, as the
    paper does and "rollouts" always does. Only then do both modes give the same answer.

    Example:
      >>> knobs = {"adapt": "policy_head", "simulations_per_update": 4}
      >>> search = jaxpgs.search.pgs_search(recurrent_fn, 64, **knobs)
      >>> search.mode, search.num_updates
      ('tree', 16)
    """
    parts = pgs_parts(options)
    return make_search(
        recurrent_fn, num_simulations, parts, options, adapt=adapt, max_depth=max_depth
    )


@takes_options
def pgs_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    *,
    adapt: Adapt,
    **options: Unpack[PGSPolicyOptions],
) -> PolicyOutput:
    """Runs `pgs_search`: policy gradient search (Anthony et al. 2019, section 3).

    To start the game's next search from the parameters learned here, as the paper does, pass it
    `adapted_params=output.search_state.params`.

    Example:
      >>> output = jaxpgs.pgs_policy(params, rng_key, root, recurrent_fn, 8, adapt="policy_head")
      >>> output.action.shape, output.action_weights.shape
      ((2,), (2, 9))
    """
    data = params, rng_key, root, invalid_actions
    knobs = {"max_depth": max_depth, "adapt": adapt}
    return run_preset(pgs_search, recurrent_fn, num_simulations, options, *data, **knobs)


@takes_options
def batched_mcts_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_depth: int | None = None,
    **options: Unpack[MCSOptions],
) -> Search:
    """Monte Carlo tree search, K leaves at a time: PUCT with virtual loss in every node.

    The tree search of Anthony et al. 2019, section 4.1, parallel as in Segal 2010: K simulations
    descend one after another, each counting the ones before it as losses, and the network
    evaluates their K leaves in one call. With K = 1 it is plain sequential PUCT.

    Below the root, an action whose logit is the lowest float or -inf is never taken if there is
    another action. `mode` is always "tree", so `max_depth=None` sets no bound.

    Example:
      >>> search = jaxpgs.search.batched_mcts_search(recurrent_fn, 64, pb_c_init=1.25)
      >>> search.mode, search.num_updates
      ('tree', 16)
    """
    return make_search(
        recurrent_fn, num_simulations, MCS, options, max_depth=max_depth, is_tree=True
    )


@takes_options
def batched_mcts_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    **options: Unpack[MCSPolicyOptions],
) -> PolicyOutput:
    """Runs `batched_mcts_search`: tree search, K leaves at a time (Segal 2010).

    Example:
      >>> output = jaxpgs.batched_mcts_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    data = params, rng_key, root, invalid_actions
    knobs = {"max_depth": max_depth}
    return run_preset(batched_mcts_search, recurrent_fn, num_simulations, options, *data, **knobs)
