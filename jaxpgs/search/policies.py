"""The searches: presets of `jaxpgs.search.scan.search`, a few lines each.

They take mctx's positional arguments, so one replaces `mctx.muzero_policy` by its name. What the
arguments mean stands in `search`'s docstring.
"""

from typing import Any

import chex
import mctx
import optax

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn
from jaxpgs.search.backups import Backup, last_value, n_step
from jaxpgs.search.estimators import Estimator, reinforce
from jaxpgs.search.root_selection import RootSelection, puct
from jaxpgs.search.scan import search
from jaxpgs.search.step_size import auto_sgd
from jaxpgs.search.targets import Target, visit_counts
from jaxpgs.search.truncation import Truncation, until_new


def mcs_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    *,
    simulations_per_update: int = 32,
    truncation: Truncation | None = None,
    backup: Backup | None = None,
    root_selection: RootSelection | None = None,
    target: Target | None = None,
    **knobs: Any,
) -> PolicyOutput:
    """Monte Carlo search: PUCT at the root, the network's policy below it.

    Anthony et al. 2019, sections 2.4 and 4.1. The paper's settings are the defaults: PUCT with
    c_puct 5 and virtual loss, 32 simulations at a time, each until its action sequence is new, the
    value of the last state, the visit distribution.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: T, the largest number of actions in a simulation.
      simulations_per_update: K, a divisor of N.
      truncation: when a simulation stops; `until_new()` if None.
      backup: what it reports; `last_value()` if None.
      root_selection: the bandit at the root; `puct(5.0)` if None.
      target: the policy in the end; `visit_counts()` if None.
      **knobs: further arguments of `jaxpgs.search`, such as `dirichlet_fraction`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `jaxpgs.search`.
    """
    return search(
        params,
        rng_key,
        root,
        recurrent_fn,
        num_simulations,
        invalid_actions,
        max_depth,
        simulations_per_update=simulations_per_update,
        truncation=truncation or until_new(),
        backup=backup or last_value(),
        root_selection=root_selection or puct(5.0),
        target=target or visit_counts(),
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
    optimizer: optax.GradientTransformation | None = None,
    estimator: Estimator | None = None,
    adapted_params: Params | None = None,
    **knobs: Any,
) -> PolicyOutput:
    """Policy gradient search: `mcs_policy` whose simulation policy learns as it searches.

    Anthony et al. 2019, section 3: after every K simulations the adapted parameters take a
    REINFORCE step on their returns. With `adapt=policy_head(params)` this is PGS; with everything
    adapting it is the paper's PGS-UF (section 4.3).

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: T, the largest number of actions in a simulation.
      adapt: which parameters adapt: a pytree of booleans like `params`, such as
        `jaxpgs.networks.policy_head(params)`, or a predicate `(path, leaf) -> bool`.
      optimizer: any optax optimizer; `auto_sgd()` if None, whose step fits any network. The paper's
        is `optax.sgd` with a step tuned to each network, from 2e-5 to 5e-4.
      estimator: how the parameters move; `reinforce()` if None.
      adapted_params: `search_state.params` of the game's last search, to go on from, as the paper
        does within a game; None starts from `params`.
      **knobs: arguments of `mcs_policy` and `jaxpgs.search`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `jaxpgs.search`, and if `adapt` chooses no parameter.
    """
    return mcs_policy(
        params,
        rng_key,
        root,
        recurrent_fn,
        num_simulations,
        invalid_actions,
        max_depth,
        adapt=adapt,
        optimizer=optimizer or auto_sgd(),
        estimator=estimator or reinforce(),
        adapted_params=adapted_params,
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
    *,
    root_selection: RootSelection | None = None,
    interior_selection: RootSelection | None = None,
    backup: Backup | None = None,
    **knobs: Any,
) -> PolicyOutput:
    """Monte Carlo tree search, K leaves at a time: PUCT with virtual loss in every node.

    The tree search of Anthony et al. 2019, section 4.1, parallel as in Segal 2010: K simulations
    choose their ways one after another, each counting the ones before it as lost, and the network
    evaluates their K leaves in one call. With K = 1 it is plain sequential PUCT.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal at the root. Below it, actions whose
        logits are the lowest float or -inf are never taken where there is another.
      max_depth: the largest number of actions in a simulation.
      root_selection: the bandit at the root; `puct(5.0)` if None.
      interior_selection: that of the other nodes; the root's if None.
      backup: what a simulation reports; `n_step()` if None.
      **knobs: arguments of `mcs_policy` and `jaxpgs.search`, such as `simulations_per_update` or
        `nodes`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `jaxpgs.search`.
    """
    root_selection = root_selection or puct(5.0)
    return mcs_policy(
        params,
        rng_key,
        root,
        recurrent_fn,
        num_simulations,
        invalid_actions,
        max_depth,
        mode="cached",
        root_selection=root_selection,
        interior_selection=interior_selection or root_selection,
        backup=backup or n_step(),
        **knobs,
    )
