"""The searches, as choices of parts: `*_search` makes a `Search`, and `*_policy` runs one.

A policy has the positional arguments of `mctx.muzero_policy`. What the knobs are and do stands in
`options`; what only reproduces a paper, in `papers`.
"""

import functools
import math
import operator
from collections.abc import Mapping
from typing import Any, Unpack

import chex
import mctx

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn, SplitRecurrentFn
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import run
from jaxpgs.search.options import (
    COUNTS,
    GumbelMCTSOptions,
    GumbelMCTSPolicyOptions,
    GumbelOptions,
    GumbelPGSOptions,
    GumbelPGSPolicyOptions,
    KeptOptions,
    MCSOptions,
    MCSPolicyOptions,
    PGSOptions,
    PGSPolicyOptions,
    split_options,
    takes_options,
)
from jaxpgs.search.parts.backup import n_step
from jaxpgs.search.parts.estimator import auto_sgd, reinforce
from jaxpgs.search.parts.gumbel import gumbel_inner, gumbel_root, gumbel_target
from jaxpgs.search.parts.selection import Selection, puct, with_dirichlet_noise
from jaxpgs.search.parts.target import (
    completed_q,
    improved_policy,
    qtransform_completed_by_mix_value,
)
from jaxpgs.search.parts.truncation import until_new

# For values from -1 to 1. Rescaled without a least range, returns that are all about the same would
# outweigh a good prior.
QTRANSFORM = functools.partial(
    qtransform_completed_by_mix_value, epsilon=1 / 3, relative=True
)

MCS: dict[str, Any] = {
    "root_selection": puct(1.5, relative=True),  # pending simulations count as lost
    "truncation": until_new(),
    "backup": n_step(),
    "target": completed_q(0.0, qtransform=QTRANSFORM),
}
PGS = MCS | {"estimator": reinforce("value", relative=True), "optimizer": auto_sgd()}
# Where states are kept, simulations of PGS also follow what these have returned.
READS_NODES = {"interior_selection": improved_policy(by_counts=True, qtransform=QTRANSFORM)}
ROLLOUTS = ("rollouts", "constant")  # the mode that keeps no states, and its former name


def default_simulations_per_update(num_simulations: int) -> int:
    """Returns the presets' K for so many simulations: N / 16 rounded, from 1 to 8.

    Example:
      >>> [jaxpgs.search.default_simulations_per_update(n) for n in (8, 32, 64, 1000)]
      [1, 2, 4, 8]
    """
    return min(max(1, round(num_simulations / 16)), 8)


def default_num_considered(num_simulations: int) -> int:
    """Returns how many actions Gumbel PGS considers at the root.

    N / 4 rounded, from 2 to 8, and with more than 64 simulations the root of N, up to 16.

    Example:
      >>> [jaxpgs.search.default_num_considered(n) for n in (4, 16, 64, 256)]
      [2, 4, 8, 16]
    """
    return min(max(2, round(num_simulations / 4)), max(8, math.isqrt(max(num_simulations, 0))), 16)


def make_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    adapt: Adapt = None,
    max_depth: int | None = None,
) -> Search:
    """Makes a search of a preset's parts and of what its user chose in their place.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N.
      defaults: the preset's parts.
      options: the user's. None chooses nothing, but for `interior_selection`.
      adapt: which parameters adapt.
      max_depth: T.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts, and if both a target and a temperature are given.
    """
    chosen = {k: x for k, x in options.items() if x is not None or k == "interior_selection"}
    temperature = chosen.pop("temperature", None)
    fraction, alpha = chosen.pop("dirichlet_fraction", 0.0), chosen.pop("dirichlet_alpha", 0.12)
    if temperature is not None:
        if "target" in chosen:
            raise ValueError(
                "temperature is that of the default target. Give it to the target instead, as in "
                f"target=jaxpgs.visit_counts({temperature}); got temperature={temperature} and "
                f"target={chosen['target']!r}."
            )
        chosen["target"] = completed_q(temperature, qtransform=QTRANSFORM)
    # Where it is not sure that states can be kept, the search finds out when it is traced.
    if adapt is None or isinstance(recurrent_fn, SplitRecurrentFn):
        chosen.setdefault("mode", "tree")
    per_update = default_simulations_per_update(num_simulations)
    parts = {"simulations_per_update": per_update, **defaults, **chosen}
    if not (isinstance(fraction, int | float) and fraction == 0):  # a static 0 draws nothing
        parts["root_selection"] = with_dirichlet_noise(parts["root_selection"], fraction, alpha)
    parts |= {"num_simulations": num_simulations, "max_depth": max_depth}
    for name in COUNTS:  # numpy's whole numbers become Python's
        if parts.get(name) is not None:
            parts[name] = operator.index(parts[name])
    return Search(recurrent_fn=recurrent_fn, adapt=adapt, **parts)


def _pgs_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of policy gradient search, which depend on whether it can read nodes."""
    reads = options.get("mode") not in ROLLOUTS and options.get("reuse") is None
    return PGS | READS_NODES if reads else PGS


def _tree_options(options: Mapping[str, Any], inner: Selection) -> dict[str, Any]:
    """A tree search's options: its inner nodes choose, and it keeps its nodes."""
    if options.get("mode") in ROLLOUTS:
        raise ValueError(
            'A tree search keeps its states: mode must be "tree", which is its default; got '
            f"{options['mode']!r}. mcs_search and pgs_search can do without."
        )
    return {**options, "interior_selection": options.get("interior_selection") or inner}


def _gumbel_parts(options: Mapping[str, Any], most: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of a Gumbel root that considers `most` actions by default; the other options."""
    root, options = split_options(options, GumbelOptions)
    given, scale = root.get("max_num_considered_actions"), root.get("gumbel_scale", 1.0)
    selection = gumbel_root(most if given is None else given, scale)
    return {"root_selection": selection, "target": gumbel_target()}, options


@takes_options
def mcs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_depth: int | None = None,
    **options: Unpack[MCSOptions],
) -> Search:
    """Monte Carlo search: PUCT at the root, the network's policy below it.

    Anthony et al. 2019, sections 2.4 and 4.1, for fewer simulations than theirs. Its own settings
    are `paper_mcs()`.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      max_depth: T, the largest number of actions in a simulation. None is no bound in "tree", and
        in "rollouts" that of the truncation or 16.
      **options: those of `MCSOptions`.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts.
      TypeError: if an option is unknown.

    Example:
      >>> search = jaxpgs.mcs_search(recurrent_fn, 256, truncation=jaxpgs.fixed(4), mode="rollouts")
      >>> search.simulations_per_update, search.num_updates
      (8, 32)
    """
    return make_search(recurrent_fn, num_simulations, MCS, options, max_depth=max_depth)


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
    REINFORCE step on their returns. With `adapt="policy_head"` this is PGS. With
    `adapt="everything"` and `mode="rollouts"` it is the paper's PGS-UF (section 4.3). In both,
    batch normalisation stays as it is (section 3.2). What adapts is the policy of the simulations;
    values and rewards are those of the network itself. Where they depend on what adapts, each state
    is evaluated twice and counted once. The paper's settings are `paper_pgs(step_size)`.

    Deviates from the paper where states are kept: simulations also follow what the states that they
    visit have returned, by counts and not by draws (`interior_selection`), which is stronger on
    small boards. `interior_selection=None` draws their actions from the adapted policy alone, as
    the paper does and "rollouts" always does. Only then do both modes give the same answer.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      adapt: which parameters adapt: a name, such as "policy_head" or "policy_head.linear";
        "everything" but batch normalisation, whose running variance a step could make negative; a
        pytree of booleans like `params`; or a predicate `(path, leaf) -> bool`.
      max_depth: as in `mcs_search`.
      **options: those of `PGSOptions`.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts.
      TypeError: if an option is unknown.

    Example:
      >>> knobs = {"adapt": "policy_head", "simulations_per_update": 4}
      >>> search = jaxpgs.pgs_search(recurrent_fn, 64, **knobs)
      >>> search.mode, search.num_updates
      ('tree', 16)
    """
    parts = _pgs_parts(options)
    return make_search(
        recurrent_fn, num_simulations, parts, options, adapt=adapt, max_depth=max_depth
    )


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
    choose their ways one after another, each counting the ones before it as lost, and the network
    evaluates their K leaves in one call. With K = 1 it is plain sequential PUCT.

    Below the root, actions whose logits are the lowest float or -inf are never taken where there is
    another.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      max_depth: T, the largest number of actions in a simulation. None is no bound.
      **options: those of `MCSOptions`.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts, and if `mode` is another than "tree".
      TypeError: if an option is unknown.

    Example:
      >>> search = jaxpgs.batched_mcts_search(recurrent_fn, 64, root_selection=jaxpgs.muzero_puct())
      >>> search.mode, search.num_updates
      ('tree', 16)
    """
    inner = options.get("root_selection") or MCS["root_selection"]
    knobs = _tree_options(options, inner)
    return make_search(recurrent_fn, num_simulations, MCS, knobs, max_depth=max_depth)


@takes_options
def gumbel_pgs_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    adapt: Adapt,
    max_depth: int | None = None,
    **options: Unpack[GumbelPGSOptions],
) -> Search:
    """Policy gradient search whose root is Gumbel MuZero's.

    Danihelka et al. 2022 at the root: some actions drawn without replacement, sequential halving
    among them, and the policy improved by completed Q-values as the answer. Below the root it is
    `pgs_search`.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      adapt: which parameters adapt, as in `pgs_search`.
      max_depth: as in `mcs_search`.
      **options: those of `GumbelPGSOptions`.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts.
      TypeError: if an option is unknown.

    Example:
      >>> knobs = {"adapt": "policy_head", "max_num_considered_actions": 4}
      >>> search = jaxpgs.gumbel_pgs_search(recurrent_fn, 64, **knobs)
      >>> search.num_updates
      16
    """
    gumbel, knobs = _gumbel_parts(options, default_num_considered(num_simulations))
    parts = _pgs_parts(options) | gumbel
    return make_search(
        recurrent_fn, num_simulations, parts, knobs, adapt=adapt, max_depth=max_depth
    )


@takes_options
def gumbel_mcts_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_depth: int | None = None,
    **options: Unpack[GumbelMCTSOptions],
) -> Search:
    """Gumbel MuZero's tree search (Danihelka et al. 2022), K leaves at a time.

    With K = 1 it is `mctx.gumbel_muzero_policy`: the same key gives the same visit counts.
    Simulations in flight count as visits. Depth and legality are as in `batched_mcts_search`.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      max_depth: T, the largest number of actions in a simulation. None is no bound.
      **options: those of `GumbelMCTSOptions`.

    Returns:
      A `Search`.

    Raises:
      ValueError: as `Search` and the parts, and if `mode` is another than "tree".
      TypeError: if an option is unknown.

    Example:
      >>> search = jaxpgs.gumbel_mcts_search(recurrent_fn, 64, gumbel_scale=0.0)
      >>> search.num_updates
      16
    """
    gumbel, knobs = _gumbel_parts(_tree_options(options, gumbel_inner()), 16)
    return make_search(recurrent_fn, num_simulations, MCS | gumbel, knobs, max_depth=max_depth)


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

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: as in `mcs_search`.
      **options: those of `MCSPolicyOptions`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `mcs_search` and `init`.
      TypeError: if an option is unknown.

    Example:
      >>> output = jaxpgs.mcs_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    kept, knobs = split_options(options, KeptOptions)
    search = mcs_search(recurrent_fn, num_simulations, max_depth=max_depth, **knobs)
    return run(search, params, rng_key, root, invalid_actions, **kept)


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

    A game's next search goes on from what this one learned, as the paper's does, if it is given
    `adapted_params=output.search_state.params`.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: as in `mcs_search`.
      adapt: which parameters adapt: a name, such as "policy_head", or as in `pgs_search`.
      **options: those of `PGSPolicyOptions`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `pgs_search` and `init`, and if `adapt` chooses no parameter.
      TypeError: if an option is unknown.

    Example:
      >>> output = jaxpgs.pgs_policy(params, rng_key, root, recurrent_fn, 8, adapt="policy_head")
      >>> output.action.shape, output.action_weights.shape
      ((2,), (2, 9))
    """
    kept, knobs = split_options(options, KeptOptions)
    search = pgs_search(recurrent_fn, num_simulations, adapt=adapt, max_depth=max_depth, **knobs)
    return run(search, params, rng_key, root, invalid_actions, **kept)


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

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal at the root.
      max_depth: the largest number of actions in a simulation; None sets no bound.
      **options: those of `MCSPolicyOptions`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `batched_mcts_search` and `init`.
      TypeError: if an option is unknown.

    Example:
      >>> output = jaxpgs.batched_mcts_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    kept, knobs = split_options(options, KeptOptions)
    search = batched_mcts_search(recurrent_fn, num_simulations, max_depth=max_depth, **knobs)
    return run(search, params, rng_key, root, invalid_actions, **kept)


@takes_options
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
    **options: Unpack[GumbelPGSPolicyOptions],
) -> PolicyOutput:
    """Runs `gumbel_pgs_search`: policy gradient search below Gumbel MuZero's root.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: prior logits `[B, A]`, value `[B]`, embedding `[B, ...]`.
      recurrent_fn: as in mctx.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      max_depth: as in `mcs_search`.
      adapt: which parameters adapt, as in `pgs_search`.
      **options: those of `GumbelPGSPolicyOptions`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `gumbel_pgs_search` and `init`.
      TypeError: if an option is unknown.

    Example:
      >>> output = jaxpgs.gumbel_pgs_policy(
      ...     params, rng_key, root, recurrent_fn, 4, adapt="policy_head"
      ... )
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    kept, knobs = split_options(options, KeptOptions)
    search = gumbel_pgs_search(
        recurrent_fn, num_simulations, adapt=adapt, max_depth=max_depth, **knobs
    )
    return run(search, params, rng_key, root, invalid_actions, **kept)


@takes_options
def gumbel_mcts_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    **options: Unpack[GumbelMCTSPolicyOptions],
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
      **options: those of `GumbelMCTSPolicyOptions`.

    Returns:
      A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`.

    Raises:
      ValueError: as `gumbel_mcts_search` and `init`.
      TypeError: if an option is unknown.

    Example:
      >>> output = jaxpgs.gumbel_mcts_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    kept, knobs = split_options(options, KeptOptions)
    search = gumbel_mcts_search(recurrent_fn, num_simulations, max_depth=max_depth, **knobs)
    return run(search, params, rng_key, root, invalid_actions, **kept)
