"""The searches: presets of the loop, a few lines each.

Each comes twice. `pgs_search(recurrent_fn, num_simulations, ...)` makes the `Search`, for `init`,
`step`, `finish` and `search_for`. `pgs_policy(params, rng_key, root, recurrent_fn,
num_simulations, ...)` runs it, with the positional arguments of `mctx.muzero_policy`. What all
knobs mean stands in `Search`.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import chex
import mctx
import optax

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn, SplitRecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import run
from jaxpgs.search.parts.backup import Backup, last_value, n_step
from jaxpgs.search.parts.estimator import Estimator, reinforce
from jaxpgs.search.parts.gumbel import gumbel_inner, gumbel_root, gumbel_target
from jaxpgs.search.parts.improvement import SampledPolicy, improved_policy
from jaxpgs.search.parts.selection import Selection, puct, with_dirichlet_noise
from jaxpgs.search.parts.step_size import auto_sgd
from jaxpgs.search.parts.target import Target, completed_q, visit_counts
from jaxpgs.search.parts.truncation import Truncation, until_new
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
      target: `completed_q(0.0)` if None: the best action, and the improved policy as weights. For
        self-play draw actions from the weights, or take `completed_q()`.
      dirichlet_fraction: share of Dirichlet noise in the prior that the root's selection sees, 0 to
        1. None is the default, unlike in `mctx.muzero_policy`, whose 0.25 is for self-play. May be
        traced. 0 draws none.
      dirichlet_alpha: concentration of the noise, above 0; Anthony et al. take 0.12.
      mode: "constant" or "cached"; None is "cached" where nothing adapts or `recurrent_fn` is a
        `SplitRecurrentFn`, as `make_recurrent_fn` returns, and "constant" elsewhere. In constant
        mode a simulation has at most 16 actions unless `max_depth` or the truncation says
        otherwise; `search_state.depth_limited` tells how many met that bound. The cached mode has
        no bound, and its memory grows with N.
      **more: `max_depth`, `capacity`, `best_of` and the other fields of `Search`.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts.
    """
    root_selection = root_selection or _bandit()
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
        target=target or completed_q(temperature=0.0),
        mode=mode or _default_mode(recurrent_fn, more.get("adapt")),
        **more,
    )


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
    REINFORCE step on their returns. With `adapt=policy_head(params)` this is PGS; with everything
    adapting (`adapt=lambda path, leaf: True`, `mode="constant"`) it is the paper's PGS-UF (section
    4.3). The paper's settings are `paper_pgs(step_size)`.

    Deviates from the paper in cached mode: simulations also follow what the states that they visit
    have returned (`interior_selection`). `interior_selection=None` draws their actions from the
    adapted policy alone, as the paper does and the constant mode always does; only then do the two
    modes give the same answer.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      adapt: which parameters adapt: a pytree of booleans like `params`, such as
        `jaxpgs.networks.policy_head(params)`, or a predicate `(path, leaf) -> bool`.
      estimator: how the parameters move; `reinforce("value")` if None.
      optimizer: any optax optimizer; `auto_sgd()` if None.
      mode: as in `mcs_search`.
      **knobs: those of `mcs_search`. If `interior_selection` is not given, it is
        `improved_policy(temperature=0.5)` in cached mode without `reuse`, and None elsewhere. In
        constant mode a simulation has at most 16 actions unless `max_depth` or the truncation says
        otherwise.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `mcs_search`.
    """
    mode = mode or _default_mode(recurrent_fn, adapt)
    if mode == "cached" and knobs.get("reuse") is None:
        knobs.setdefault("interior_selection", improved_policy(temperature=0.5))
    return mcs_search(
        recurrent_fn,
        num_simulations,
        adapt=adapt,
        estimator=estimator or reinforce("value"),
        optimizer=optimizer or auto_sgd(),
        mode=mode,
        **knobs,
    )


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
    """
    root_selection = root_selection or _bandit()
    return mcs_search(
        recurrent_fn,
        num_simulations,
        mode="cached",
        root_selection=root_selection,
        interior_selection=interior_selection or root_selection,
        **knobs,
    )


def gumbel_pgs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    adapt: Adapt,
    max_num_considered_actions: int = 16,
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
      max_num_considered_actions: how many actions the root considers at most.
      gumbel_scale: scale of the noise at the root; 0 for evaluation in games of full information.
      **knobs: those of `pgs_search`. In constant mode a simulation has at most 16 actions unless
        `max_depth` or the truncation says otherwise.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `pgs_search` and `gumbel_root`.
    """
    knobs = _gumbel(max_num_considered_actions, gumbel_scale) | knobs
    return pgs_search(recurrent_fn, num_simulations, adapt=adapt, **knobs)


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
    """
    knobs = _gumbel(max_num_considered_actions, gumbel_scale) | knobs
    knobs.setdefault("interior_selection", gumbel_inner())
    return batched_mcts_search(recurrent_fn, num_simulations, **knobs)


def default_simulations_per_update(num_simulations: int) -> int:
    """Returns the presets' K for so many simulations: N / 16 rounded, from 1 to 8."""
    return min(max(1, round(num_simulations / 16)), 8)


def paper_mcs() -> dict[str, Any]:
    """Returns the settings of Anthony et al. 2019, sections 2.4 and 4.1, for `mcs_policy`.

    PUCT with c_puct 5, 32 simulations at a time, each until its action sequence is new and drawn
    from the policy alone, backup of the last state's value, the visit distribution.
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
      step_size: of SGD; the paper tuned it to each network, from 2e-5 to 5e-4.
    """
    return paper_mcs() | {
        "estimator": reinforce(),
        "optimizer": optax.sgd(step_size),
        "mode": "constant",
    }


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
    """
    return run_preset(
        "mcs_policy", (mcs_search,), (params, rng_key, root), (recurrent_fn, num_simulations),
        invalid_actions, max_depth, knobs,
    )  # fmt: skip


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
    """
    return run_preset(
        "pgs_policy", (pgs_search, mcs_search), (params, rng_key, root),
        (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs | {"adapt": adapt},
    )  # fmt: skip


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
    """
    return run_preset(
        "batched_mcts_policy", (batched_mcts_search, mcs_search), (params, rng_key, root),
        (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs,
    )  # fmt: skip


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
    """
    return run_preset(
        "gumbel_pgs_policy", (gumbel_pgs_search, pgs_search, mcs_search), (params, rng_key, root),
        (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs | {"adapt": adapt},
    )  # fmt: skip


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
    """
    return run_preset(
        "gumbel_mcts_policy", (gumbel_mcts_search, batched_mcts_search, mcs_search),
        (params, rng_key, root), (recurrent_fn, num_simulations), invalid_actions, max_depth, knobs,
    )  # fmt: skip


def run_preset(
    name: str,
    presets: tuple[Callable[..., Search], ...],
    data: tuple[Params, chex.PRNGKey, mctx.RootFnOutput],
    model: tuple[RecurrentFn, int],
    invalid_actions: chex.Array | None,
    max_depth: int | None,
    knobs: dict[str, Any],
) -> PolicyOutput:
    """Makes a preset's search and runs it, with errors that name the function that was called.

    Args:
      name: that function.
      presets: the preset, and those that it hands its knobs on to.
      data: parameters, key and roots.
      model: the model and N.
      invalid_actions: as in `init`.
      max_depth: as in `Search`.
      knobs: the other arguments.
    """
    kept = {key: knobs.pop(key) for key in _KEPT if key in knobs}
    known = _knobs(presets)
    for knob in knobs:
        if knob not in known:
            near = difflib.get_close_matches(knob, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{name}() has no argument {knob!r}.{hint} It takes {sorted(known)}.")
    search = presets[0](*model, max_depth=max_depth, **knobs)
    return run(search, *data, invalid_actions, **kept)


_KEPT = ("nodes", "adapted_params")


def _knobs(presets: tuple[Callable[..., Search], ...]) -> set[str]:
    """Names of the keyword arguments that presets take."""
    known = {"max_depth", "capacity", "best_of", "adapt", "estimator", "optimizer", "reuse"}
    for preset in presets:
        parameters = inspect.signature(preset).parameters.values()
        known |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    return known


def _bandit() -> Selection:
    return puct(1.5, virtual_loss=1.0)


def _default_mode(recurrent_fn: RecurrentFn, adapt: Adapt) -> str:
    splits = adapt is None or isinstance(recurrent_fn, SplitRecurrentFn)
    return "cached" if splits else "constant"


def _gumbel(max_num_considered_actions: int, gumbel_scale: float | chex.Array) -> dict[str, Any]:
    return {
        "root_selection": gumbel_root(max_num_considered_actions, gumbel_scale),
        "target": gumbel_target(),
    }
