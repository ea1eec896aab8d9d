"""Reproductions of papers: settings of Anthony et al. 2019, and the search of Brosseit 2023.

Extended policy gradient search has the six extensions of Brosseit 2023, section 3.2. Each of them
is a part that can be used in any other search as well:

| extension | part, as in the thesis | default here | off |
| --- | --- | --- | --- |
| length by visits, eq. 3.2 | `truncation=by_visits(6.0)` | `until_new()` | `fixed(5)` |
| weighted returns, eq. 3.3 | `backup=log_series(0.995)` | `n_step()` | `n_step()` |
| entropy bonus | `entropy=2.0` | `0.0` | `0.0` |
| penalty for leaving the prior | `kl_to_prior=0.1` | `0.1` | `0.0` |
| target, eq. 3.4 | `completed_q(0.0, qtransform=SIGMA)` | as `pgs_search` | `visit_counts()` |
| update per step, eq. 3.5 | `estimator=step_advantage()` | as `pgs_search` | `reinforce()` |
| Adam | `optimizer=optax.adam(1e-3)` | `auto_sgd()` | `optax.sgd(1e-3)` |

`paper_extended_pgs()` returns all settings of the thesis. On 5x5 and 7x7 Hex they lose to plain
PGS, which has none of these extensions.
"""

import functools
from typing import Any, Unpack

import chex
import mctx
import optax

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.options import (
    ExtendedOptions,
    ExtendedPGSOptions,
    ExtendedPGSPolicyOptions,
    split_options,
    takes_options,
)
from jaxpgs.search.parts.backup import last_value, log_series
from jaxpgs.search.parts.estimator import regularized, reinforce, step_advantage
from jaxpgs.search.parts.selection import puct
from jaxpgs.search.parts.target import (
    completed_q,
    qtransform_completed_by_mix_value,
    visit_counts,
)
from jaxpgs.search.parts.truncation import by_visits, until_new
from jaxpgs.search.presets.making import run_preset
from jaxpgs.search.presets.pgs import PGS, pgs_search

# The constants of Brosseit 2023, eq. 3.4.
SIGMA = functools.partial(
    qtransform_completed_by_mix_value, value_scale=0.01, maxvisit_init=5.0, rescale_values=False
)


def paper_mcs() -> dict[str, Any]:
    """Returns the settings of Anthony et al. 2019, sections 2.4 and 4.1, for `mcs_policy`.

    PUCT with c_puct 5 and 32 simulations at a time. Each simulation samples actions from the policy
    alone until its action sequence is new, and backs up the value of its last state. The target is
    the visit distribution.

    Example:
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, **jaxpgs.paper_mcs())
    """
    return {
        "root_selection": puct(5.0),
        "simulations_per_update": 32,
        "truncation": until_new(),
        "backup": last_value(),
        "target": visit_counts(),
        "interior_selection": None,
    }


def paper_pgs(step_size: float) -> dict[str, Any]:
    """Returns the settings of Anthony et al. 2019, section 3, for `pgs_policy`.

    Args:
      step_size: the step size of SGD; the paper tuned it to each network, from 2e-5 to 5e-4.

    Example:
      >>> knobs = jaxpgs.paper_pgs(step_size=1e-4)
      >>> search = jaxpgs.search.pgs_search(recurrent_fn, 64, adapt="policy_head", **knobs)
      >>> search.mode
      'rollouts'
    """
    return paper_mcs() | {
        "estimator": reinforce(),
        "optimizer": optax.sgd(step_size),
        "mode": "rollouts",
    }


def paper_extended_pgs() -> dict[str, Any]:
    """Returns the settings of Brosseit 2023, table A.3, for `extended_pgs_policy`.

    All six extensions, with PUCT (c_puct 5) and one simulation per update. A simulation samples its
    actions from the adapted policy alone. The answer is the best action by the target of eq. 3.4.

    Deviations: the update per step is corrected (`step_advantage`), and the weights of eq. 3.3
    follow the formula and not the thesis's code (`log_series`, `truncated_geometric`).

    Example:
      >>> knobs = jaxpgs.paper_extended_pgs()
      >>> search = jaxpgs.search.extended_pgs_search(
      ...     recurrent_fn, 64, adapt="policy_head.linear", **knobs
      ... )
    """
    return {
        "root_selection": puct(5.0),
        "simulations_per_update": 1,
        "interior_selection": None,
        "truncation": by_visits(6.0),
        "backup": log_series(0.995),
        "estimator": step_advantage(),
        "entropy": 2.0,
        "kl_to_prior": 0.1,
        "kl_from_prior": 0.0,
        "target": completed_q(0.0, qtransform=SIGMA),
        "optimizer": optax.adam(1e-3),
        "mode": "rollouts",
    }


@takes_options
def extended_pgs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    adapt: Adapt,
    max_depth: int | None = None,
    **options: Unpack[ExtendedPGSOptions],
) -> Search:
    """Policy gradient search with the extensions of Brosseit 2023, section 3.2, as arguments.

    With a learned model and an adapting linear policy head it is the thesis's VE-PGS (section 4.3);
    see `jaxpgs.make_model_fns`. `paper_extended_pgs()` has all constants of the thesis's table A.3.
    The defaults are those of `pgs_search` with a small penalty for leaving the prior. The update
    per step is not among them, since `pgs_search` is stronger on 5x5 Hex.

    The entropy bonus and the penalties are added to the estimator. The thesis's estimator is
    `step_advantage()`, a corrected eq. 3.5. In the thesis the last linear layer adapts,
    `adapt="policy_head.linear"`.

    Example:
      >>> knobs = {"adapt": "policy_head.linear", "entropy": 0.1}
      >>> search = jaxpgs.search.extended_pgs_search(recurrent_fn, 64, **knobs)
      >>> search.num_updates
      16
    """
    weights, knobs = split_options(options, ExtendedOptions)
    weights = {"kl_to_prior": 0.1} | {name: x for name, x in weights.items() if x is not None}
    knobs["estimator"] = regularized(knobs.get("estimator") or PGS["estimator"], **weights)
    return pgs_search(recurrent_fn, num_simulations, adapt=adapt, max_depth=max_depth, **knobs)


@takes_options
def extended_pgs_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    *,
    adapt: Adapt,
    **options: Unpack[ExtendedPGSPolicyOptions],
) -> PolicyOutput:
    """Runs `extended_pgs_search`: policy gradient search with the extensions of Brosseit 2023.

    Example:
      >>> data = params, rng_key, root, recurrent_fn, 4
      >>> output = jaxpgs.extended_pgs_policy(*data, adapt="policy_head", entropy=0.1)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    data = params, rng_key, root, invalid_actions
    knobs = {"max_depth": max_depth, "adapt": adapt}
    return run_preset(extended_pgs_search, recurrent_fn, num_simulations, options, *data, **knobs)
