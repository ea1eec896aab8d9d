"""The types and descriptions of the presets' arguments, in one place for all presets.

A preset takes its knobs as `**options: Unpack[...]` of one of these dictionaries. So a type checker
sees them all, and `takes_options` shows them in `help`, `inspect.signature` and completion.
"""

from __future__ import annotations  # signatures show the types as they are written here

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, get_args

import chex
import mctx
import optax

from jaxpgs.base import Adapt, Embedding, Params, RecurrentFn
from jaxpgs.search.parts.backup import Backup
from jaxpgs.search.parts.estimator import Estimator
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.selection import Selection
from jaxpgs.search.parts.target import QTransform, SampledPolicy, Target
from jaxpgs.search.parts.truncation import Truncation


class Arguments(TypedDict, total=False):
    """The arguments that the presets take besides their options, as mctx's functions do.

    Attributes:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: `mctx.RootFnOutput` with prior logits `[B, A]`, value `[B]` and embedding `[B, ...]`.
      recurrent_fn: the model, as in mctx; see `RecurrentFn`.
      decision_recurrent_fn: plays actions, as in mctx: `(params, rng_key, action [B], state) ->
        (mctx.DecisionRecurrentFnOutput, afterstate)` with `chance_logits` `[B, C]` and
        `afterstate_value` `[B]`, from the view of the player who acted.
      chance_recurrent_fn: applies outcomes, as in mctx: `(params, rng_key, outcome [B], afterstate)
        -> (mctx.ChanceRecurrentFnOutput, state)` with `action_logits` `[B, A]` and `value`,
        `reward` and `discount` `[B]`. The reward is that of the player who acted.
      num_actions: A, the number of actions.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal at the root.
      max_depth: T, the largest number of actions in a simulation. With None, "tree" has no bound,
        and "rollouts" uses the bound of the truncation, or 16.
      adapt: which parameters adapt: a name, such as "policy_head" or "policy_head.linear";
        "everything", which leaves out batch normalisation, since a step could make its running
        variance negative; a pytree of booleans like `params`; or a predicate
        `(path, leaf) -> bool`.
    """

    params: Params
    rng_key: chex.PRNGKey
    root: mctx.RootFnOutput
    recurrent_fn: RecurrentFn
    decision_recurrent_fn: Callable[..., Any]
    chance_recurrent_fn: Callable[..., Any]
    num_actions: int
    num_simulations: int
    invalid_actions: chex.Array | None
    max_depth: int | None
    adapt: Adapt


class SearchOptions(TypedDict, total=False):
    """Options of every search. None selects the default, except for `interior_selection`.

    Attributes:
      simulations_per_update: K, how many simulations share one policy and one network call, at
        least 1. The default is N / 16, rounded, from 1 to 8. A smaller K may be stronger, a larger
        K is faster. A sequence gives the K of each update. In the Gumbel searches, "rounds" runs
        each round of sequential halving as one update.
      root_selection: which actions the simulations take at the root. The default is
        `puct(1.5, relative=True)`, `gumbel_root` in the Gumbel searches, and `muzero_puct()` in
        `stochastic_mcts_search`. All defaults measure returns relative to how much the returns of
        the search differ, so that the scale of the rewards does not matter.
      interior_selection: how actions below the root are chosen. A `SampledPolicy` follows a policy
        that reads the returns recorded in the visited states. A `Selection` chooses by these
        returns; this makes the search a tree search, in which nothing can adapt. None samples
        actions from the policy and is the default of `mcs_search`. The default of policy gradient
        searches that keep a tree and have no `reuse` is `improved_policy(by_counts=True)`, with the
        `qtransform` of the default target. Tree searches treat None as their default, which is the
        root's selection in `batched_mcts_search` and `stochastic_mcts_search`, and `gumbel_inner()`
        in `gumbel_mcts_search`.
      truncation: when a simulation stops. The default is `until_new()`.
      backup: the return that a simulation reports. The default is `n_step()`.
      target: the answer of the search. The default is `completed_q(0.0)`: the best action, and the
        improved policy as weights. Its `qtransform` has `relative=True` and an `epsilon` of 1/3:
        Q-values that differ by less than a third of the greatest distance between a return and the
        root's value do not count in full. Use a smaller `epsilon` if a few returns are far from all
        others. For self-play sample the action from the weights, as `completed_q()` does. The
        Gumbel searches use `gumbel_target()`, and `stochastic_mcts_search` `visit_counts(1.0)`.
      qtransform: how Q-values are transformed, as in mctx. mctx's functions may be given, with
        arguments set by `functools.partial`. In the Gumbel searches it is used by all default parts
        that read Q-values. In the others it makes the root's selection
        `muzero_puct(qtransform=...)`, as in `mctx.muzero_policy`. None leaves the parts unchanged.
      mode: whether states are kept. "tree" keeps every visited state and evaluates it once, so its
        memory grows with N. "rollouts" keeps none, so its memory does not depend on N. Its
        simulations have at most 16 actions unless `max_depth` or the truncation sets another bound;
        `search_state.depth_limited` is the fraction of simulations that reached the bound. In games
        with chance, "rollouts" samples again in each simulation, and "tree" keeps the first outcome
        of an action. The default is "tree" if nothing adapts, or if the model can be split into a
        part that is kept and a part that adapts, as a `SplitRecurrentFn` is. Otherwise it is
        "rollouts", with a warning that says why. Tree searches are always "tree". The former names
        are "cached" and "constant".
      capacity: how many states "tree" has room for, at least 1; "tree" only. The default is room
        for all. When it is full, simulations continue along the states it holds: a new state that
        they reach is evaluated, counted and forgotten.
      best_of: scores embeddings, `[B, ...] -> [B]`. Of all states in which simulations stopped,
        and the root, `search_state.best` is then the one with the highest score.
    """

    simulations_per_update: int | Sequence[int] | str | None
    root_selection: Selection | None
    interior_selection: Selection | SampledPolicy | None
    truncation: Truncation | None
    backup: Backup | None
    target: Target | None
    qtransform: QTransform | None
    mode: str | None
    capacity: int | None
    best_of: Callable[[Embedding], chex.Array] | None


class ExplorationOptions(TypedDict, total=False):
    """How a search explores at the root and samples its answer; a Gumbel root has its own noise.

    Attributes:
      temperature: temperature of the default target, at least 0. The action is sampled with
        probability proportional to the weights to the power of `1 / temperature`. The default, 0,
        takes the best action; in `stochastic_mcts_search` it is 1. With another target, set the
        temperature there: `target=visit_counts(1.0)`. It may be traced, and may have the shape
        `[B]` or `[B, 1]`, one for each root.
      dirichlet_fraction: share of Dirichlet noise in the prior that the root's selection sees, from
        0 to 1. The default is 0, no noise, unlike the 0.25 of `mctx.muzero_policy`. In
        `stochastic_mcts_search` it is 0.25 as in mctx, and 0 if you give a `root_selection`. Traced
        values and shapes are as for `temperature`.
      dirichlet_alpha: concentration of that noise, above 0. The default is 0.12, as in Anthony et
        al. 2019; in `stochastic_mcts_search` it is 0.3 as in mctx, and 0.12 if you give a
        `root_selection`. Traced values and shapes are as for `temperature`.
      pb_c_init: makes the root's selection `muzero_puct(pb_c_init=...)`, as in
        `mctx.muzero_policy`; in `batched_mcts_search` and `stochastic_mcts_search` it makes the
        selection of all nodes.
      pb_c_base: makes the selection `muzero_puct(pb_c_base=...)`, in the same way.
    """

    temperature: float | chex.Array | None
    dirichlet_fraction: float | chex.Array | None
    dirichlet_alpha: float | chex.Array | None
    pb_c_init: float | chex.Array | None
    pb_c_base: float | chex.Array | None


class LearningOptions(TypedDict, total=False):
    """How a policy gradient search learns. None selects the default.

    Attributes:
      estimator: the objective whose gradient the adapted parameters ascend. The default is
        `reinforce("value", relative=True)`.
      optimizer: any optax optimizer; its state is reset in each search. The default is
        `auto_sgd()`.
      reuse: how an update also learns from the simulations of earlier updates. By default it learns
        from the newest update alone. It requires a model that can be split as for "tree", and
        excludes `capacity` and `interior_selection`.
    """

    estimator: Estimator | None
    optimizer: optax.GradientTransformation | None
    reuse: Reuse | None


class ExtendedOptions(TypedDict, total=False):
    """Terms that extended policy gradient search adds to its estimator; 0 omits a term.

    Attributes:
      entropy: weight of the entropy bonus, at least 0. The default is 0. May be traced.
      kl_to_prior: weight of the penalty `KL(pi || prior)`, at least 0. The default is 0.1. May be
        traced.
      kl_from_prior: weight of the penalty `KL(prior || pi)`, at least 0. The default is 0. May be
        traced.
    """

    entropy: float | chex.Array | None
    kl_to_prior: float | chex.Array | None
    kl_from_prior: float | chex.Array | None


class GumbelOptions(TypedDict, total=False):
    """Options of a Gumbel root.

    Attributes:
      max_num_considered_actions: the largest number of actions that the root considers, at least 1.
        The default in `gumbel_mcts_search` is 16, as in mctx. In `gumbel_pgs_search` it is N / 4,
        rounded, from 2 to 8; with more than 64 simulations it is the square root of N, up to 16.
        With an uninformative prior and few simulations, consider every action.
      gumbel_scale: scale of the noise at the root, at least 0. The default is 1; use 0 for
        evaluation in games of perfect information. It may be traced, and may have the shape `[B]`
        or `[B, 1]`, one for each root.
    """

    max_num_considered_actions: int | None
    gumbel_scale: float | chex.Array | None


class RootOptions(TypedDict, total=False):
    """Further inputs of a search, one for each root. None is the default of each.

    Attributes:
      nodes: `search_state.nodes` of the game's previous search after `reroot`, or `init_nodes` if
        there are none yet; "tree" only.
      adapted_params: `search_state.params` of the game's previous search, or `init_adapted` for the
        network's own parameters.
      simulations_by_root: `[B]` whole numbers from 0 to N, how many simulations each root has; by
        default all have N. It may be traced. The search ends when the largest number is spent. A
        root with n simulations gives the answer of a search with n simulations and the same key,
        K and number of considered actions; the defaults of the latter two are those for N. Not
        for Gumbel searches in rounds.
    """

    nodes: Any
    adapted_params: Params | None
    simulations_by_root: chex.Array | None


class MCSOptions(SearchOptions, ExplorationOptions, total=False):
    """The knobs of `mcs_search`, `batched_mcts_search` and `stochastic_mcts_search`."""


class PGSOptions(MCSOptions, LearningOptions, total=False):
    """The knobs of `pgs_search`."""


class ExtendedPGSOptions(PGSOptions, ExtendedOptions, total=False):
    """The knobs of `extended_pgs_search`."""


class GumbelMCTSOptions(SearchOptions, GumbelOptions, total=False):
    """The knobs of `gumbel_mcts_search`."""


class GumbelPGSOptions(GumbelMCTSOptions, LearningOptions, total=False):
    """The knobs of `gumbel_pgs_search`."""


class MCSPolicyOptions(MCSOptions, RootOptions, total=False):
    """The knobs of `mcs_policy`, `batched_mcts_policy` and `stochastic_mcts_policy`."""


class PGSPolicyOptions(PGSOptions, RootOptions, total=False):
    """The knobs of `pgs_policy`."""


class ExtendedPGSPolicyOptions(ExtendedPGSOptions, RootOptions, total=False):
    """The knobs of `extended_pgs_policy`."""


class GumbelMCTSPolicyOptions(GumbelMCTSOptions, RootOptions, total=False):
    """The knobs of `gumbel_mcts_policy`."""


class GumbelPGSPolicyOptions(GumbelPGSOptions, RootOptions, total=False):
    """The knobs of `gumbel_pgs_policy`."""


_DOCUMENTED = (
    Arguments, SearchOptions, ExplorationOptions, LearningOptions, ExtendedOptions, GumbelOptions,
    RootOptions,
)  # fmt: skip


def split_options(options: Mapping[str, Any], of: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those named in `of`, one of the dictionaries above, and the others."""
    own = {name: value for name, value in options.items() if name in of.__annotations__}
    return own, {name: value for name, value in options.items() if name not in own}


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(function: Function) -> Function:
    """Shows the knobs in `**options` of a preset as arguments, and rejects other names.

    The signature lists every knob as a keyword argument with its type, and the docstring describes
    every argument with the text of the dictionaries above. A call with an unknown name raises a
    `TypeError` that names the function and its arguments.

    Args:
      function: its last parameter must be `**options: Unpack[...]` of a dictionary above, and its
        docstring must end with an example.

    Returns:
      A wrapper of the function; type checkers see the same type.
    """
    signature = inspect.signature(function)
    *parameters, last = signature.parameters.values()
    # `Unpack[X]` has X as its only argument.
    options = get_args(last.annotation)[0].__annotations__
    shown = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULT, annotation=kind.__forward_arg__
        )
        for name, kind in options.items()
    ]
    signature = signature.replace(parameters=[*parameters, *shown])
    # Both operands and knobs may be given by name.
    known = list(signature.parameters)

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for argument in given:
            if argument not in known:
                raise TypeError(_unknown(function.__name__, argument, known))
        return function(*args, **given)

    # What `help`, `inspect` and completion show.
    checked.__signature__ = signature  # type: ignore[attr-defined]
    checked.__doc__ = _with_arguments(function.__doc__, known)
    return checked  # type: ignore[return-value]


class _Default:
    """Stands in signatures for a default that the preset chooses."""

    def __repr__(self) -> str:
        return "..."


DEFAULT = _Default()
_ENDS = """

Returns:
  {}

Raises:
  ValueError: if a value is out of range, a shape does not fit, or parts do not go together.
  TypeError: if an option is unknown.

Example:"""
_OUTPUT = "A `PolicyOutput`: `action` `[B]`, `action_weights` `[B, A]`, `search_state`."


def _with_arguments(doc: str | None, names: list[str]) -> str | None:
    """Inserts the descriptions of the arguments before the example of a docstring."""
    if doc is None:  # python -OO
        return None
    # An entry of a docstring is a line that names the argument, and the lines indented below it.
    entry = r"^  {}: .*(?:\n    .*)*"
    texts = [inspect.cleandoc(options.__doc__ or "") for options in _DOCUMENTED]
    found = [re.search(entry.format(name), text, re.M) for name in names for text in texts]
    entries = "\n".join(match.group() for match in found if match)
    ends = _ENDS.format(_OUTPUT if "params" in names else "A `Search`.")
    return inspect.cleandoc(doc).replace("\nExample:", f"\nArgs:\n{entries}{ends}")


_NOISE = "a Gumbel root draws by a noise of its own, whose scale is gumbel_scale"
_LEARNING = "nothing adapts in this search; pgs_search and pgs_policy learn"
_PUCT = "a Gumbel root has no PUCT; batched_mcts_policy and pgs_policy have, and take it"
_GUMBEL = "it is that of a Gumbel root, which gumbel_mcts_policy and gumbel_pgs_policy have"
# Names that some search takes, here or in mctx, with advice for a search that does not take them.
_ELSEWHERE = {
    "temperature": _NOISE,
    "dirichlet_fraction": _NOISE,
    "dirichlet_alpha": _NOISE,
    "pb_c_init": _PUCT,
    "pb_c_base": _PUCT,
    "gumbel_scale": _GUMBEL,
    "max_num_considered_actions": _GUMBEL,
    "adapt": _LEARNING,
    "estimator": _LEARNING,
    "optimizer": _LEARNING,
    "reuse": _LEARNING,
    "loop_fn": "leave it out, or write a loop of your own of jaxpgs.search.init, step and finish",
}


def _unknown(function: str, argument: str, known: list[str]) -> str:
    """Returns the message for an argument that a function does not take."""
    near = difflib.get_close_matches(argument, known, 1)
    if argument in _ELSEWHERE:
        hint = f": {_ELSEWHERE[argument]}."
    else:
        hint = f". Did you mean {near[0]!r}?" if near else "."
    return f"{function}() has no argument {argument!r}{hint} It takes {sorted(known)}."
