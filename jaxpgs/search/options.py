"""The arguments of the presets, each with its type and what it does, once for all of them.

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
    """What the presets take beside their options, as mctx's functions do.

    Attributes:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed.
      root: `mctx.RootFnOutput` with prior logits `[B, A]`, value `[B]` and embedding `[B, ...]`.
      recurrent_fn: the model, as in mctx; see `RecurrentFn`.
      decision_recurrent_fn: plays actions, as in mctx: `(params, rng_key, action [B], state) ->
        (mctx.DecisionRecurrentFnOutput, afterstate)` with `chance_logits` `[B, C]` and
        `afterstate_value` `[B]`, from the view of the player who acted.
      chance_recurrent_fn: draws outcomes, as in mctx: `(params, rng_key, outcome [B], afterstate)
        -> (mctx.ChanceRecurrentFnOutput, state)` with `action_logits` `[B, A]` and `value`,
        `reward` and `discount` `[B]`. The reward is of the player who acted.
      num_actions: A.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 where the action is illegal at the root.
      max_depth: T, the largest number of actions in a simulation. None is no bound in "tree", and
        in "rollouts" that of the truncation or 16.
      adapt: which parameters adapt: a name, such as "policy_head" or "policy_head.linear";
        "everything" but batch normalisation, whose running variance a step could make negative; a
        pytree of booleans like `params`; or a predicate `(path, leaf) -> bool`.
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
    """What every search takes. None is the default of each, but for `interior_selection`.

    Attributes:
      simulations_per_update: K, how many simulations share one policy and one network call, at
        least 1. By default N / 16 rounded, from 1 to 8. Fewer may be stronger, more are faster. A
        sequence has the K of each update. "rounds", in the Gumbel searches, makes an update of each
        round of sequential halving.
      root_selection: which first actions the simulations take. The default is
        `puct(1.5, relative=True)`, `gumbel_root` in the Gumbel searches, and `muzero_puct()` in
        `stochastic_mcts_search`. All defaults measure returns by how much those of the search
        differ, so that the size of the rewards does not matter.
      interior_selection: how actions below the root are chosen. A `SampledPolicy` follows a policy
        that reads what the visited states have returned. A `Selection` chooses by these returns,
        which makes the search a tree search, where nothing can adapt. None draws actions from the
        policy, which is the default of `mcs_search`. Policy gradient searches that keep a tree and
        have no `reuse` take `improved_policy(by_counts=True)`, with the `qtransform` of the default
        target. `batched_mcts_search` and `stochastic_mcts_search` take the root's selection and
        `gumbel_mcts_search` `gumbel_inner()`; there None is the default.
      truncation: when a simulation stops. The default is `until_new()`.
      backup: what return a simulation reports. The default is `n_step()`.
      target: what the search answers. The default is `completed_q(0.0)`: the best action, and the
        improved policy as weights. Its `qtransform` has `relative=True` and an `epsilon` of 1/3:
        Q-values that differ by less than a third of the greatest distance between a return and the
        root's value do not count in full. Take a smaller one where few returns are far from all
        others. For self-play draw the action from the weights, as `completed_q()` does. The Gumbel
        searches take `gumbel_target()`, and `stochastic_mcts_search` `visit_counts(1.0)`.
      qtransform: how Q-values are read, as in mctx, whose functions may be given, with their
        arguments by `functools.partial`. In the Gumbel searches it serves all default parts that
        read Q-values. In the others it makes the root's selection `muzero_puct(qtransform=...)`, as
        in `mctx.muzero_policy`. None leaves the parts as they are.
      mode: what is kept. "tree" keeps every visited state and evaluates it once, so its memory
        grows with N. "rollouts" keeps none, so its memory does not depend on N; simulations have
        at most 16 actions there unless `max_depth` or the truncation sets another bound, and
        `search_state.depth_limited` is the share of them that met it. Where chance decides,
        "rollouts" draws anew in each simulation, and "tree" keeps the first outcome of an action.
        The default is "tree" where nothing adapts, or where the model can be cut into what is kept
        and what adapts, as a `SplitRecurrentFn` is. Elsewhere it is "rollouts", with a warning that
        says why. Tree searches are always "tree". The former names are "cached" and "constant".
      capacity: how many states "tree" has room for, at least 1; only there. The default is room for
        all. When it is full, simulations go on along the states it holds: a new state that they
        reach is evaluated, counted and forgotten.
      best_of: scores embeddings, `[B, ...] -> [B]`. `search_state.best` is then the state with the
        highest score of all in which simulations stopped, the root included.
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
    """How actions are drawn, at the root and in the end; a Gumbel root has a noise of its own.

    Attributes:
      temperature: of the default target, at least 0. The action is drawn with probability
        proportional to the weights to the power of `1 / temperature`. The default, 0, takes the
        best action; in `stochastic_mcts_search` it is 1. Another target takes the temperature
        itself: `target=visit_counts(1.0)`. May be traced, and `[B]` or `[B, 1]`, one for each root;
        so may the next two.
      dirichlet_fraction: share of Dirichlet noise in the prior that the root's selection sees, from
        0 to 1. The default is 0, no noise, and not 0.25 as in `mctx.muzero_policy`; in
        `stochastic_mcts_search` it is 0.25 as in mctx, and 0 with a `root_selection` of yours.
      dirichlet_alpha: concentration of that noise, above 0. The default is 0.12, as in Anthony et
        al. 2019; in `stochastic_mcts_search` it is 0.3 as in mctx, and 0.12 with a `root_selection`
        of yours.
      pb_c_init: makes the root's selection `muzero_puct(pb_c_init=...)`, as in
        `mctx.muzero_policy`; the selection of all nodes in `batched_mcts_search` and
        `stochastic_mcts_search`.
      pb_c_base: likewise.
    """

    temperature: float | chex.Array | None
    dirichlet_fraction: float | chex.Array | None
    dirichlet_alpha: float | chex.Array | None
    pb_c_init: float | chex.Array | None
    pb_c_base: float | chex.Array | None


class LearningOptions(TypedDict, total=False):
    """How a policy gradient search learns. None is the default of each.

    Attributes:
      estimator: whose gradient the adapted parameters ascend. The default is
        `reinforce("value", relative=True)`.
      optimizer: any optax optimizer; its state starts anew in each search. The default is
        `auto_sgd()`.
      reuse: how an update learns from the simulations of earlier ones too. By default it learns
        from the newest alone. It needs a model that can be cut as for "tree", and neither
        `capacity` nor `interior_selection`.
    """

    estimator: Estimator | None
    optimizer: optax.GradientTransformation | None
    reuse: Reuse | None


class ExtendedOptions(TypedDict, total=False):
    """What extended policy gradient search adds to its estimator; 0 leaves a term out.

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
    """What a Gumbel root takes.

    Attributes:
      max_num_considered_actions: how many actions the root considers at most, at least 1. By
        default 16 in `gumbel_mcts_search`, as in mctx. In `gumbel_pgs_search` N / 4 rounded, from 2
        to 8, and with more than 64 simulations the root of N, up to 16. With a prior that knows
        nothing and few simulations, consider every action.
      gumbel_scale: scale of the noise at the root, at least 0. The default is 1; take 0 for
        evaluation in games of full information. May be traced, and `[B]` or `[B, 1]`, one for each
        root.
    """

    max_num_considered_actions: int | None
    gumbel_scale: float | chex.Array | None


class RootOptions(TypedDict, total=False):
    """What a search is given for each root beside the roots. None is the default of each.

    Attributes:
      nodes: `search_state.nodes` of the game's last search after `reroot`, or `init_nodes` for
        none; "tree" only.
      adapted_params: `search_state.params` of that search, or `init_adapted` for the network's
        own parameters.
      simulations_by_root: `[B]` whole numbers from 0 to N, how many simulations each root has; all
        have N by default. May be traced. The search ends when the largest number is spent; the
        answer of a root with n is that of n simulations with the same K, key, and actions that a
        Gumbel root considers, whose defaults are those of N. Not for Gumbel searches in rounds.
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
    """Returns the options that one of the dictionaries above names, and the others."""
    own = {name: value for name, value in options.items() if name in of.__annotations__}
    return own, {name: value for name, value in options.items() if name not in own}


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(function: Function) -> Function:
    """Shows the knobs in `**options` of a preset as arguments, and refuses other names.

    The signature names every knob as a keyword argument with its type, and the docstring says of
    every argument what the dictionaries above do. A call with an unknown name raises a `TypeError`
    that names the function and what it takes.

    Args:
      function: its last parameter must be `**options: Unpack[...]` of a dictionary above, and its
        docstring must end with an example.

    Returns:
      The function, for type checkers the same one.
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
    # Operands and knobs alike may be given by name.
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
    """Puts what is said of the arguments before the example of a docstring."""
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
# Names that some search takes, here or in mctx: what to do where another one is given them.
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
    """What to say of a name that a function does not take."""
    near = difflib.get_close_matches(argument, known, 1)
    if argument in _ELSEWHERE:
        hint = f": {_ELSEWHERE[argument]}."
    else:
        hint = f". Did you mean {near[0]!r}?" if near else "."
    return f"{function}() has no argument {argument!r}{hint} It takes {sorted(known)}."
