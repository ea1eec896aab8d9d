"""Policy gradient search (Anthony et al. 2019, section 3)."""

from typing import Any

import chex
import mctx
import optax

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.parts.estimator import Estimator, reinforce
from jaxpgs.search.parts.improvement import improved_policy
from jaxpgs.search.parts.step_size import auto_sgd
from jaxpgs.search.presets.defaults import QTRANSFORM, default_estimator, default_mode
from jaxpgs.search.presets.mcs import mcs_search, paper_mcs
from jaxpgs.search.presets.running import run_preset
from jaxpgs.search.simulators.simulator import Simulator


def pgs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    adapt: Adapt,
    estimator: Estimator | None = None,
    optimizer: optax.GradientTransformation | None = None,
    mode: str | Simulator | None = None,
    **knobs: Any,
) -> Search:
    """Policy gradient search: `mcs_search` whose simulation policy learns as it searches.

    Anthony et al. 2019, section 3: after every K simulations the adapted parameters take a
    REINFORCE step on their returns. With `adapt="policy_head"` this is PGS; with
    `adapt="everything"` and `mode="constant"` it is the paper's PGS-UF (section 4.3). In both,
    batch normalisation stays as it is (section 3.2), and values and rewards are those of the
    network itself: what adapts is the policy of the simulations. Where they depend on what
    adapts, each state is therefore evaluated twice, and counted once. The paper's settings are
    `paper_pgs(step_size)`.

    Deviates from the paper in cached mode: simulations also follow what the states that they visit
    have returned, by counts and not by draws (`interior_selection`), as
    `benchmarks/results/strength_sweep-counts_hex-5x5-early_64.json` suggests.
    `interior_selection=None` draws their actions from the adapted policy alone, as the paper does
    and the constant mode always does; only then do the two modes give the same answer.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      adapt: which parameters adapt: a name, such as "policy_head" or "policy_head.linear";
        "everything" but batch normalisation, whose running variance a step could make negative; a
        pytree of booleans like `params`; or a predicate `(path, leaf) -> bool`.
      estimator: how the parameters move; `reinforce("value")` if None.
      optimizer: any optax optimizer; `auto_sgd()` if None.
      mode: as in `mcs_search`.
      **knobs: those of `mcs_search`. If `interior_selection` is not given, it is
        `improved_policy(by_counts=True)` in cached mode without `reuse`, with the `qtransform` of
        the target, and None elsewhere. In constant mode a simulation has at most 16 actions unless
        `max_depth` or the truncation says otherwise.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `mcs_search`.

    Example:
      >>> knobs = {"adapt": "policy_head", "simulations_per_update": 4}
      >>> search = jaxpgs.pgs_search(recurrent_fn, 64, **knobs)
      >>> search.mode, search.num_updates
      ('cached', 16)
    """
    mode = mode or default_mode(recurrent_fn, adapt)
    if mode == "cached" and knobs.get("reuse") is None:
        improved = improved_policy(qtransform=QTRANSFORM, by_counts=True)
        knobs.setdefault("interior_selection", improved)
    return mcs_search(
        recurrent_fn,
        num_simulations,
        adapt=adapt,
        estimator=estimator or default_estimator(),
        optimizer=optimizer or auto_sgd(),
        mode=mode,
        **knobs,
    )


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
    **knobs: Any,
) -> PolicyOutput:
    """Runs `pgs_search`: policy gradient search (Anthony et al. 2019, section 3).

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
      **knobs: those of `pgs_search`; `nodes` and `adapted_params` of `init`, the latter to go on
        from what the game's last search learned, as the paper does.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `pgs_search` and `init`, and if `adapt` chooses no parameter.
      TypeError: if a knob is unknown.

    Example:
      >>> output = jaxpgs.pgs_policy(params, rng_key, root, recurrent_fn, 8, adapt="policy_head")
      >>> output.action.shape, output.action_weights.shape
      ((2,), (2, 9))
    """
    return run_preset(
        "pgs_policy", (pgs_search, mcs_search), (params, rng_key, root),
        (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs | {"adapt": adapt},
    )  # fmt: skip


def paper_pgs(step_size: float) -> dict[str, Any]:
    """Returns the settings of Anthony et al. 2019, section 3, for `pgs_policy`.

    Args:
      step_size: of SGD; the paper tuned it to each network, from 2e-5 to 5e-4.

    Example:
      >>> knobs = jaxpgs.paper_pgs(step_size=1e-4)
      >>> search = jaxpgs.pgs_search(recurrent_fn, 64, adapt="policy_head", **knobs)
      >>> search.mode
      'constant'
    """
    return paper_mcs() | {
        "estimator": reinforce(),
        "optimizer": optax.sgd(step_size),
        "mode": "constant",
    }
