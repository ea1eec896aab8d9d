"""The searches, as choices of parts: `*_search` makes a `Search`, and `*_policy` runs one.

A policy has the positional arguments of `mctx.muzero_policy`. What the arguments are and do stands
in `options`, from where it comes into the docstrings; what only reproduces a paper, in `papers`.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import chex
import mctx

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn, SplitRecurrentFn
from jaxpgs.checks import check_count
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import run
from jaxpgs.search.options import (
    GumbelMCTSOptions,
    GumbelMCTSPolicyOptions,
    GumbelOptions,
    GumbelPGSOptions,
    GumbelPGSPolicyOptions,
    MCSOptions,
    MCSPolicyOptions,
    PGSOptions,
    PGSPolicyOptions,
    RootOptions,
    split_options,
    takes_options,
)
from jaxpgs.search.parts.backup import n_step
from jaxpgs.search.parts.estimator import auto_sgd, reinforce
from jaxpgs.search.parts.gumbel import (
    gumbel_inner,
    gumbel_root,
    gumbel_target,
    round_starts,
    rounds,
)
from jaxpgs.search.parts.selection import muzero_puct, puct, with_dirichlet_noise
from jaxpgs.search.parts.target import (
    completed_q,
    improved_policy,
    qtransform_completed_by_mix_value,
)
from jaxpgs.search.parts.truncation import until_new
from jaxpgs.search.root import check_is_root

# Rescaled without a least range, returns that are all about the same would outweigh a good prior.
# On 7x7 Hex with 64 simulations PGS is 44 ± 20 Elo over mctx's Gumbel search with a range of 1/3,
# and 23 without; `relative` makes no difference that shows, -6 ± 14 (sweeps at commit 0bc35d3).
QTRANSFORM = functools.partial(qtransform_completed_by_mix_value, epsilon=1 / 3, relative=True)

MCS: dict[str, Any] = {
    "root_selection": puct(1.5, relative=True),  # pending simulations count as lost
    "truncation": until_new(),
    "backup": n_step(),
    "target": completed_q(0.0, qtransform=QTRANSFORM),
}
PGS = MCS | {"estimator": reinforce("value", relative=True), "optimizer": auto_sgd()}
ROUNDS = "rounds"
# Up to so many roots a round starts all actions that may be wanted; see `gumbel_mcts_search`.
FEW_ROOTS = 16
ROLLOUTS = ("rollouts", "constant")  # the mode that keeps no states, and its former name


def default_simulations_per_update(num_simulations: int) -> int:
    """Returns the presets' K for so many simulations: N / 16 rounded, from 1 to 8.

    On 7x7 Hex with 256 simulations PGS was 79 ± 36 Elo over MCS with K = 4, 42 with 8, 14 with 16
    and 68 below it with 32 (sweep at commit 0bc35d3).

    Example:
      >>> [jaxpgs.search.default_simulations_per_update(n) for n in (8, 32, 64, 1000)]
      [1, 2, 4, 8]
    """
    count = check_count("A search", "num_simulations", num_simulations)
    return min(max(1, round(count / 16)), 8)


def default_num_considered(num_simulations: int) -> int:
    """Returns how many actions Gumbel PGS considers at the root.

    N / 4 rounded, from 2 to 8, and with more than 64 simulations the root of N, up to 16. On
    7x7 Hex Gumbel PGS was over mctx's Gumbel search by 83 ± 26 Elo with 4 actions and 68 with 8
    for N = 16, by 50 ± 24 and 34 for N = 64 (sweep at commit 0bc35d3).

    Example:
      >>> [jaxpgs.search.default_num_considered(n) for n in (4, 16, 64, 256)]
      [2, 4, 8, 16]
    """
    count = check_count("A search", "num_simulations", num_simulations)
    return min(max(2, round(count / 4)), max(8, math.isqrt(count)), 16)


def make_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    adapt: Adapt = None,
    max_depth: int | None = None,
    is_tree: bool = False,
) -> Search:
    """Makes a search of a preset's parts and of what its user chose in their place.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N.
      defaults: the preset's parts.
      options: the user's. None chooses nothing, but for `interior_selection`.
      adapt: which parameters adapt.
      max_depth: T.
      is_tree: whether a selection chooses below the root, by default that of the root.
    """
    chosen = _chosen(options)
    # Settings such as a temperature make the part that they are for.
    _describe(chosen, "target", completed_q, ("temperature",), {"qtransform": QTRANSFORM})
    _describe(chosen, "root_selection", muzero_puct, ("pb_c_init", "pb_c_base", "qtransform"), {})
    fraction, alpha = chosen.pop("dirichlet_fraction", 0.0), chosen.pop("dirichlet_alpha", 0.12)
    # Where it is not sure that states can be kept, the search finds out when it is traced.
    if adapt is None or isinstance(recurrent_fn, SplitRecurrentFn):
        chosen.setdefault("mode", "tree")
    per_update = default_simulations_per_update(num_simulations)
    # What comes later wins: the preset's parts, then the user's choices.
    parts = {"simulations_per_update": per_update, **defaults, **chosen}
    if is_tree:
        if parts["mode"] in ROLLOUTS:
            raise ValueError(
                'A tree search keeps its states: mode must be "tree", which is its default; got '
                f"{parts['mode']!r}. mcs_search and pgs_search can do without."
            )
        # Dirichlet noise is added after this, for the root alone.
        inner = defaults.get("interior_selection", parts["root_selection"])
        parts["interior_selection"] = chosen.get("interior_selection") or inner
    if not (isinstance(fraction, int | float) and fraction == 0):  # a static 0 draws nothing
        parts["root_selection"] = with_dirichlet_noise(parts["root_selection"], fraction, alpha)
    parts |= {"num_simulations": num_simulations, "max_depth": max_depth}
    return Search(recurrent_fn=recurrent_fn, adapt=adapt, **parts)


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that choose something."""
    return {k: x for k, x in options.items() if x is not None or k == "interior_selection"}


def _describe(
    chosen: dict[str, Any],
    name: str,
    make: Callable[..., Any],
    settings: tuple[str, ...],
    defaults: Mapping[str, Any],
) -> None:
    """Makes a part of its settings, if the user chose any, and puts it in their place."""
    given = {x: chosen.pop(x) for x in settings if x in chosen}
    if given and name in chosen:
        words = ", ".join(f"{x}={value}" for x, value in given.items())
        maker = f"jaxpgs.{make.__module__.rpartition('.')[2]}.{make.__name__}"
        raise ValueError(
            f"{' and '.join(given)} would make a {name}. Give a {name} or its settings, or the "
            f"settings to the part itself, as in {name}={maker}({words}) or "
            f"another part that takes them; got {words} and {name}={chosen[name]!r}."
        )
    if given:
        chosen[name] = make(**{**defaults, **given})


def _pgs_parts(options: Mapping[str, Any], qtransform: Any = QTRANSFORM) -> dict[str, Any]:
    """The parts of policy gradient search, which depend on whether it can read nodes."""
    if options.get("mode") in ROLLOUTS or options.get("reuse") is not None:
        return PGS
    # Where states are kept, simulations also follow what these have returned.
    return PGS | {"interior_selection": improved_policy(by_counts=True, qtransform=qtransform)}


def _gumbel(
    options: Mapping[str, Any], num_simulations: int, most: int, tree_of: int | None = None
) -> tuple[dict[str, Any], ...]:
    """The parts of a Gumbel root that considers `most` actions by default.

    Args:
      options: the user's.
      num_simulations: N.
      most: how many actions are considered by default.
      tree_of: how many roots a tree search has, 1 if unknown; None for other searches.

    Returns:
      The parts, the user's `qtransform` by name, if there is one, and the other options.
    """
    num_simulations = check_count("A search", "num_simulations", num_simulations)
    chosen = _chosen(options)
    transform = {"qtransform": chosen.pop("qtransform")} if "qtransform" in chosen else {}
    # A `qtransform` goes to all parts of a Gumbel search that read Q-values, not to the root alone.
    defaults = {"max_num_considered_actions": most, **transform}
    if chosen.get("simulations_per_update") == ROUNDS:
        if "root_selection" in chosen:
            raise ValueError(
                f'simulations_per_update="{ROUNDS}" is for the preset\'s own root_selection. With '
                "another one give it as a sequence, such as jaxpgs.gumbel.rounds(16, 64); got "
                f"{chosen['root_selection']!r}."
            )
        considered = chosen.get("max_num_considered_actions", most)
        considered = check_count("gumbel_root", "max_num_considered_actions", considered)
        if tree_of is None:
            # A policy acts below this root, which follows no order of K = 1: all of a round counts.
            widths = rounds(considered, num_simulations)
        else:
            # Few roots wait for calls, many for evaluations, as may a symbolic number.
            is_few = isinstance(tree_of, int) and tree_of <= FEW_ROOTS
            widths = round_starts(considered, num_simulations, sure=is_few)
        chosen["simulations_per_update"] = widths
        defaults["in_rounds"] = tree_of is not None
    parts = {"root_selection": gumbel_root(**defaults), "target": gumbel_target(**transform)}
    _describe(chosen, "root_selection", gumbel_root, tuple(GumbelOptions.__annotations__), defaults)
    return parts, transform, chosen


def _considering(options: Mapping[str, Any], root: mctx.RootFnOutput, most: int) -> dict[str, Any]:
    """Considers no more actions than there are, so that rounds are no wider."""
    check_is_root(root)
    # A selection of the user's stays as it is, and a wrong number is refused by `gumbel_root`.
    given = options.get("max_num_considered_actions")
    if options.get("root_selection") is not None or not isinstance(given, int | None):
        return dict(options)
    most = min(most if given is None else given, root.prior_logits.shape[-1])
    return {**options, "max_num_considered_actions": most}


def run_preset(
    make: Callable[..., Search],
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    options: Mapping[str, Any],
    *data: Any,
    **knobs: Any,
) -> PolicyOutput:
    """Makes a search and runs it on `params, rng_key, root, invalid_actions`."""
    given, options = split_options(options, RootOptions)
    return run(make(recurrent_fn, num_simulations, **knobs, **options), *data, **given)


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

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 256, truncation=jaxpgs.truncation.fixed(4), mode="rollouts"
      ... )
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

    Example:
      >>> knobs = {"adapt": "policy_head", "simulations_per_update": 4}
      >>> search = jaxpgs.search.pgs_search(recurrent_fn, 64, **knobs)
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
    another. `mode` is always "tree", so `max_depth=None` sets no bound.

    Example:
      >>> search = jaxpgs.search.batched_mcts_search(recurrent_fn, 64, pb_c_init=1.25)
      >>> search.mode, search.num_updates
      ('tree', 16)
    """
    return make_search(
        recurrent_fn, num_simulations, MCS, options, max_depth=max_depth, is_tree=True
    )


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

    Example:
      >>> knobs = {"adapt": "policy_head", "max_num_considered_actions": 4}
      >>> search = jaxpgs.search.gumbel_pgs_search(recurrent_fn, 64, **knobs)
      >>> search.num_updates
      16
    """
    most = default_num_considered(num_simulations)
    gumbel, transform, chosen = _gumbel(options, num_simulations, most)
    parts = _pgs_parts(chosen, **transform) | gumbel
    return make_search(
        recurrent_fn, num_simulations, parts, chosen, adapt=adapt, max_depth=max_depth
    )


@takes_options
def gumbel_mcts_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_depth: int | None = None,
    **options: Unpack[GumbelMCTSOptions],
) -> Search:
    """Gumbel MuZero's tree search (Danihelka et al. 2022), a round or K leaves at a time.

    With `simulations_per_update="rounds"` it is `mctx.gumbel_muzero_policy` in fewer calls: the
    same key gives the same visit counts. The simulations of a round of sequential halving go below
    different actions, so none needs to wait for another; but their returns decide who is in the
    next round. Up to 16 roots start all that may be, and what mctx would not have run does not
    count. More roots, for which evaluations matter more than calls, start as many as the round has,
    and go on with those that were missed. A root with one legal action needs no decision: the
    simulations of an update take the same way there, and count as many times.

    With a number for `simulations_per_update`, simulations in flight count as visits, and K = 1 is
    mctx's search too. Depth and legality are as in `batched_mcts_search`.

    Example:
      >>> search = jaxpgs.search.gumbel_mcts_search(
      ...     recurrent_fn, 32, simulations_per_update="rounds"
      ... )
      >>> search.simulations_per_update[:4]  # the rounds are 16, 8, 4 and 4
      (16, 16, 8, 4)
    """
    return _gumbel_mcts(recurrent_fn, num_simulations, max_depth=max_depth, **options)


def _gumbel_mcts(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_depth: int | None,
    num_roots: int = 1,
    **options: Any,
) -> Search:
    """Makes a `gumbel_mcts_search` of so many roots."""
    gumbel, transform, chosen = _gumbel(options, num_simulations, 16, num_roots)
    parts = MCS | gumbel | {"interior_selection": gumbel_inner(**transform)}
    return make_search(
        recurrent_fn, num_simulations, parts, chosen, max_depth=max_depth, is_tree=True
    )


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

    Example:
      >>> output = jaxpgs.pgs_policy(params, rng_key, root, recurrent_fn, 8, adapt="policy_head")
      >>> output.action.shape, output.action_weights.shape
      ((2,), (2, 9))
    """
    data = params, rng_key, root, invalid_actions
    knobs = {"max_depth": max_depth, "adapt": adapt}
    return run_preset(pgs_search, recurrent_fn, num_simulations, options, *data, **knobs)


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

    Example:
      >>> knobs = {"adapt": "policy_head", "gumbel_scale": 0.0}
      >>> output = jaxpgs.gumbel_pgs_policy(params, rng_key, root, recurrent_fn, 4, **knobs)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    chosen = _considering(options, root, default_num_considered(num_simulations))
    data = params, rng_key, root, invalid_actions
    knobs = {"max_depth": max_depth, "adapt": adapt}
    return run_preset(gumbel_pgs_search, recurrent_fn, num_simulations, chosen, *data, **knobs)


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

    Example:
      >>> output = jaxpgs.gumbel_mcts_policy(params, rng_key, root, recurrent_fn, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    chosen = _considering(options, root, 16)
    data = params, rng_key, root, invalid_actions
    knobs = {"max_depth": max_depth, "num_roots": root.prior_logits.shape[0]}
    return run_preset(_gumbel_mcts, recurrent_fn, num_simulations, chosen, *data, **knobs)
