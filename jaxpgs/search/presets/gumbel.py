"""Searches with Gumbel MuZero's root (Danihelka et al. 2022): PGS and a tree search."""

import math
from collections.abc import Mapping
from typing import Any, Unpack

import chex
import mctx

from jaxpgs.base import Adapt, Params, PolicyOutput, RecurrentFn
from jaxpgs.checks import check_count
from jaxpgs.search.definition import Search
from jaxpgs.search.options import (
    GumbelMCTSOptions,
    GumbelMCTSPolicyOptions,
    GumbelOptions,
    GumbelPGSOptions,
    GumbelPGSPolicyOptions,
    takes_options,
)
from jaxpgs.search.parts.gumbel import (
    gumbel_inner,
    gumbel_root,
    gumbel_target,
    round_starts,
    rounds,
)
from jaxpgs.search.presets.making import MCS, chosen_options, describe, make_search, run_preset
from jaxpgs.search.presets.pgs import pgs_parts
from jaxpgs.search.root import check_is_root

ROUNDS = "rounds"
# With at most this many roots a round starts all actions that may be needed; see
# `gumbel_mcts_search`.
FEW_ROOTS = 16


def default_num_considered(num_simulations: int) -> int:
    """Returns how many actions Gumbel PGS considers at the root.

    This is N / 4, rounded, from 2 to 8; with more than 64 simulations it is the square root of N,
    up to 16. On 7x7 Hex Gumbel PGS was over mctx's Gumbel search by 83 ± 26 Elo with 4 actions and
    68 with 8 for N = 16, and by 50 ± 24 and 34 for N = 64 (sweep at commit 0bc35d3).

    Example:
      >>> [jaxpgs.search.default_num_considered(n) for n in (4, 16, 64, 256)]
      [2, 4, 8, 16]
    """
    count = check_count("A search", "num_simulations", num_simulations)
    return min(max(2, round(count / 4)), max(8, math.isqrt(count)), 16)


def _gumbel(
    options: Mapping[str, Any], num_simulations: int, most: int, tree_of: int | None = None
) -> tuple[dict[str, Any], ...]:
    """Returns the parts of a Gumbel root that considers `most` actions by default.

    Args:
      options: the user's options.
      num_simulations: N.
      most: how many actions are considered by default.
      tree_of: how many roots a tree search has, 1 if unknown; None for other searches.

    Returns:
      The parts; the user's `qtransform` by name, if there is one; and the other options.
    """
    num_simulations = check_count("A search", "num_simulations", num_simulations)
    chosen = chosen_options(options)
    transform = {"qtransform": chosen.pop("qtransform")} if "qtransform" in chosen else {}
    # In a Gumbel search a `qtransform` goes to all parts that read Q-values, not only to the root.
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
            # Below this root actions are sampled, so there is no sequential order (K = 1) to
            # reproduce, and all simulations of a round count.
            widths = rounds(considered, num_simulations)
        else:
            # Few roots are limited by the number of calls, many roots (perhaps a symbolic number)
            # by the number of evaluations.
            is_few = isinstance(tree_of, int) and tree_of <= FEW_ROOTS
            widths = round_starts(considered, num_simulations, sure=is_few)
        chosen["simulations_per_update"] = widths
        defaults["in_rounds"] = tree_of is not None
    parts = {"root_selection": gumbel_root(**defaults), "target": gumbel_target(**transform)}
    describe(chosen, "root_selection", gumbel_root, tuple(GumbelOptions.__annotations__), defaults)
    return parts, transform, chosen


def _considering(options: Mapping[str, Any], root: mctx.RootFnOutput, most: int) -> dict[str, Any]:
    """Limits the considered actions to those that exist, so that rounds are no wider."""
    check_is_root(root)
    # A selection given by the user is left unchanged; `gumbel_root` rejects invalid numbers.
    given = options.get("max_num_considered_actions")
    if options.get("root_selection") is not None or not isinstance(given, int | None):
        return dict(options)
    most = min(most if given is None else given, root.prior_logits.shape[-1])
    return {**options, "max_num_considered_actions": most}


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

    The root follows Danihelka et al. 2022: it samples some actions without replacement, compares
    them by sequential halving, and answers with the policy improved by completed Q-values. Below
    the root the search is `pgs_search`.

    Example:
      >>> knobs = {"adapt": "policy_head", "max_num_considered_actions": 4}
      >>> search = jaxpgs.search.gumbel_pgs_search(recurrent_fn, 64, **knobs)
      >>> search.num_updates
      16
    """
    most = default_num_considered(num_simulations)
    gumbel, transform, chosen = _gumbel(options, num_simulations, most)
    parts = pgs_parts(chosen, **transform) | gumbel
    return make_search(
        recurrent_fn, num_simulations, parts, chosen, adapt=adapt, max_depth=max_depth
    )


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
def gumbel_mcts_search(
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    max_depth: int | None = None,
    **options: Unpack[GumbelMCTSOptions],
) -> Search:
    """Gumbel MuZero's tree search (Danihelka et al. 2022), one round or K leaves at a time.

    With `simulations_per_update="rounds"` it is `mctx.gumbel_muzero_policy` in fewer calls: the
    same key gives the same visit counts. The simulations of a round of sequential halving start
    with different actions, so none has to wait for another; but their returns decide which actions
    enter the next round. With up to 16 roots an update starts all simulations that may be needed,
    and discards those that mctx would not have run. With more roots evaluations cost more than
    calls: an update then starts as many simulations as the round has, and later updates run those
    that were missed. If a root has a single legal action, there is nothing to decide: all
    simulations of an update take the same path there, and each of them counts.

    If `simulations_per_update` is a number, simulations in flight count as visits, and K = 1 is
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
    """Makes a `gumbel_mcts_search` for `num_roots` roots."""
    gumbel, transform, chosen = _gumbel(options, num_simulations, 16, num_roots)
    parts = MCS | gumbel | {"interior_selection": gumbel_inner(**transform)}
    return make_search(
        recurrent_fn, num_simulations, parts, chosen, max_depth=max_depth, is_tree=True
    )


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
