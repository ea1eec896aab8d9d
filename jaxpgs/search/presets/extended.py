"""Extended policy gradient search: the six extensions of Brosseit 2023, section 3.2.

Each extension is a part and serves any other search as well:

| extension | part, as in the thesis | default here | off |
| --- | --- | --- | --- |
| length by visits, eq. 3.2 | `truncation=by_visits(6.0)` | `until_new()` | `fixed(5)` |
| weighted returns, eq. 3.3 | `backup=log_series(0.995)` | `n_step()` | `n_step()` |
| entropy bonus | `entropy=2.0` | `0.0` | `0.0` |
| penalty for leaving the prior | `kl_to_prior=0.1` | `0.1` | `0.0` |
| target, eq. 3.4 | `completed_q(0.0, qtransform=SIGMA)` | as `pgs_search` | `visit_counts()` |
| update per step, eq. 3.5 | `estimator=step_advantage()` | as `pgs_search` | `reinforce()` |
| Adam | `optimizer=optax.adam(1e-3)` | `auto_sgd()` | `optax.sgd(1e-3)` |

`paper_extended_pgs()` gives all of the thesis's. On 5x5 and 7x7 Hex they lose to plain PGS, which
has none of them; what each of them adds by itself tells `benchmarks/notes/ablation.md`.
"""

import functools
from typing import Any

import chex
import mctx
import optax

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.parts.backup import log_series
from jaxpgs.search.parts.estimator import Estimator, regularized, step_advantage
from jaxpgs.search.parts.improvement import qtransform_completed_by_mix_value
from jaxpgs.search.parts.selection import puct
from jaxpgs.search.parts.target import completed_q
from jaxpgs.search.parts.truncation import by_visits
from jaxpgs.search.presets.defaults import default_estimator
from jaxpgs.search.presets.mcs import mcs_search
from jaxpgs.search.presets.pgs import pgs_search
from jaxpgs.search.presets.running import run_preset

# The constants of eq. 3.4.
SIGMA = functools.partial(
    qtransform_completed_by_mix_value, value_scale=0.01, maxvisit_init=5.0, rescale_values=False
)


def extended_pgs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    adapt: Adapt,
    estimator: Estimator | None = None,
    entropy: float | chex.Array = 0.0,
    kl_to_prior: float | chex.Array = 0.1,
    kl_from_prior: float | chex.Array = 0.0,
    **knobs: Any,
) -> Search:
    """Policy gradient search with the extensions of Brosseit 2023, section 3.2, as arguments.

    On a model that was learned and whose linear policy head adapts it is the thesis's VE-PGS
    (section 4.3); see `jaxpgs.make_model_fns`. All constants of its table A.3 are
    `paper_extended_pgs()`. The defaults are those of `pgs_search` with a small penalty for leaving
    the prior. The update per step is left out, as `pgs_search` is stronger on 5x5 Hex with 100
    simulations (`benchmarks/results/strength_sweep-update_hex-5x5-early_100.json`).

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      adapt: which parameters adapt, as in `pgs_search`; the thesis adapts the last linear layer,
        `jaxpgs.networks.policy_head(params, part="linear")`.
      estimator: that of `pgs_search`, `reinforce("value")`, if None. Entropy and penalties are
        added to it. The thesis's is `step_advantage()`, eq. 3.5 repaired.
      entropy: weight of the entropy bonus, at least 0; 0 leaves it out. May be traced.
      kl_to_prior: weight of the penalty `KL(pi || prior)`, likewise.
      kl_from_prior: weight of the penalty `KL(prior || pi)`, likewise.
      **knobs: those of `pgs_search`, with its defaults.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `pgs_search` and the parts.

    Example:
      >>> knobs = {"adapt": "policy_head.linear", "entropy": 0.1}
      >>> search = jaxpgs.extended_pgs_search(recurrent_fn, 64, **knobs)
      >>> search.num_updates
      16
    """
    estimator = regularized(
        estimator or default_estimator(),
        entropy=entropy,
        kl_to_prior=kl_to_prior,
        kl_from_prior=kl_from_prior,
    )
    return pgs_search(recurrent_fn, num_simulations, adapt=adapt, estimator=estimator, **knobs)


def paper_extended_pgs() -> dict[str, Any]:
    """Returns the settings of Brosseit 2023, table A.3, for `extended_pgs_policy`.

    All six extensions, PUCT with c_puct 5 and one simulation an update, whose actions are drawn
    from the adapted policy alone; the best action by the target of eq. 3.4.

    Deviations: the update per step is repaired (`step_advantage`), and the weights of eq. 3.3
    follow the formula and not the thesis's code (`log_series`, `truncated_geometric`).

    Example:
      >>> knobs = jaxpgs.paper_extended_pgs()
      >>> search = jaxpgs.extended_pgs_search(recurrent_fn, 64, adapt="policy_head.linear", **knobs)
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
        "mode": "constant",
    }


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
    **knobs: Any,
) -> PolicyOutput:
    """Runs `extended_pgs_search`: policy gradient search with the extensions of Brosseit 2023.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: T, the largest number of actions in a simulation; None is the truncation's bound.
      adapt: which parameters adapt, as in `extended_pgs_search`.
      **knobs: those of `extended_pgs_search`; `nodes` and `adapted_params` of `init`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `extended_pgs_search` and `init`.
      TypeError: if a knob is unknown.

    Example:
      >>> output = jaxpgs.extended_pgs_policy(
      ...     params, rng_key, root, recurrent_fn, 4, adapt="policy_head"
      ... )
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    return run_preset(
        "extended_pgs_policy", (extended_pgs_search, pgs_search, mcs_search),
        (params, rng_key, root), (recurrent_fn, num_simulations),
        invalid_actions, max_depth, knobs | {"adapt": adapt},
    )  # fmt: skip
