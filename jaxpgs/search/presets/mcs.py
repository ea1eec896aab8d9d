"""Monte Carlo search: the simulation policy never changes (Anthony et al. 2019, section 2.4)."""

from typing import Any

import chex
import mctx

from jaxpgs.base import Params, PolicyOutput, RecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.parts.backup import Backup, last_value, n_step
from jaxpgs.search.parts.improvement import SampledPolicy
from jaxpgs.search.parts.selection import Selection, puct, with_dirichlet_noise
from jaxpgs.search.parts.target import Target, completed_q, visit_counts
from jaxpgs.search.parts.truncation import Truncation, until_new
from jaxpgs.search.presets.defaults import (
    QTRANSFORM,
    default_bandit,
    default_mode,
    default_simulations_per_update,
)
from jaxpgs.search.presets.running import run_preset
from jaxpgs.search.simulators.simulator import Simulator


def mcs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    simulations_per_update: int | None = None,
    root_selection: Selection | None = None,
    interior_selection: Selection | SampledPolicy | None = None,
    truncation: Truncation | None = None,
    backup: Backup | None = None,
    target: Target | None = None,
    dirichlet_fraction: float | chex.Array = 0.0,
    dirichlet_alpha: float | chex.Array = 0.12,
    mode: str | Simulator | None = None,
    **more: Any,
) -> Search:
    """Monte Carlo search: PUCT at the root, the network's policy below it.

    Anthony et al. 2019, sections 2.4 and 4.1, for fewer simulations than theirs. Its own settings
    are `paper_mcs()`.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      simulations_per_update: K; N / 16 rounded, from 1 to 8, if None. Fewer may be stronger, more
        are faster.
      root_selection: `puct(1.5, virtual_loss=1.0)` if None.
      interior_selection: None draws actions below the root from the network's policy.
      truncation: `until_new()` if None.
      backup: `n_step()` if None.
      target: `completed_q(0.0)` if None, whose `qtransform` has `min_range` 1/3: the best action,
        and the improved policy as weights. For self-play draw actions from the weights, or take
        `completed_q()`. The range is for values from -1 to 1; where all values differ by much less,
        take a smaller one.
      dirichlet_fraction: share of Dirichlet noise in the prior that the root's selection sees, 0 to
        1. None is the default, unlike in `mctx.muzero_policy`, whose 0.25 is for self-play. May be
        traced. 0 draws none.
      dirichlet_alpha: concentration of the noise, above 0; Anthony et al. take 0.12.
      mode: "constant" or "cached"; None is "cached" where nothing adapts or `recurrent_fn` is a
        `SplitRecurrentFn`, as `make_recurrent_fn` returns, and "constant" elsewhere. In constant
        mode a simulation has at most 16 actions unless `max_depth` or the truncation says
        otherwise; `search_state.depth_limited` tells how many met that bound. The cached mode has
        no bound, and its memory grows with N. Games with chance want "constant", which draws it
        anew in every simulation; the cached mode keeps the first outcome of each action.
      **more: `max_depth`, `capacity`, `best_of` and the other fields of `Search`.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts.

    Example:
      >>> search = jaxpgs.mcs_search(recurrent_fn, 256, truncation=jaxpgs.fixed(4), mode="constant")
      >>> search.simulations_per_update, search.num_updates
      (8, 32)
    """
    root_selection = root_selection or default_bandit()
    # Static zero, the default, draws nothing.
    if not (isinstance(dirichlet_fraction, int | float) and dirichlet_fraction == 0):
        root_selection = with_dirichlet_noise(root_selection, dirichlet_fraction, dirichlet_alpha)
    return Search(
        recurrent_fn=recurrent_fn,
        num_simulations=num_simulations,
        simulations_per_update=(
            default_simulations_per_update(num_simulations)
            if simulations_per_update is None
            else simulations_per_update
        ),
        root_selection=root_selection,
        interior_selection=interior_selection,
        truncation=truncation or until_new(),
        backup=backup or n_step(),
        target=target or completed_q(0.0, qtransform=QTRANSFORM),
        mode=mode or default_mode(recurrent_fn, more.get("adapt")),
        **more,
    )


def mcs_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    **knobs: Any,
) -> PolicyOutput:
    """Runs `mcs_search`: Monte Carlo search (Anthony et al. 2019, sections 2.4 and 4.1).

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: T, the largest number of actions in a simulation; None is 16 in constant mode,
        unless the truncation has a bound of its own, and no bound in cached mode.
      **knobs: those of `mcs_search`; `nodes` and `adapted_params` of `init`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `mcs_search` and `init`.
      TypeError: if a knob is unknown.

    Example:
      >>> output = jaxpgs.mcs_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    return run_preset(
        "mcs_policy", (mcs_search,), (params, rng_key, root), (recurrent_fn, num_simulations),
        invalid_actions, max_depth, knobs,
    )  # fmt: skip


def paper_mcs() -> dict[str, Any]:
    """Returns the settings of Anthony et al. 2019, sections 2.4 and 4.1, for `mcs_policy`.

    PUCT with c_puct 5, 32 simulations at a time, each until its action sequence is new and drawn
    from the policy alone, backup of the last state's value, the visit distribution.

    Example:
      >>> search = jaxpgs.mcs_search(recurrent_fn, 64, **jaxpgs.paper_mcs())
    """
    return {
        "root_selection": puct(5.0),
        "simulations_per_update": 32,
        "truncation": until_new(),
        "backup": last_value(),
        "target": visit_counts(),
        "interior_selection": None,
    }
