"""The knobs of the presets, each with its type and what it does, and how functions take them.

A preset takes its knobs as `**options: Unpack[...]` of one of these dictionaries. So a type checker
sees them all, and `takes_options` shows them in `help`, `inspect.signature` and completion.
"""

from __future__ import annotations  # signatures show the types as they are written here

import difflib
import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, get_args

import chex
import optax

from jaxpgs.base import Embedding, Params
from jaxpgs.search.parts.backup import Backup
from jaxpgs.search.parts.estimator import Estimator
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.selection import Selection
from jaxpgs.search.parts.target import SampledPolicy, Target
from jaxpgs.search.parts.truncation import Truncation


class SearchOptions(TypedDict, total=False):
    """What every search takes. None is the default of each, but for `interior_selection`.

    Attributes:
      simulations_per_update: K, how many simulations share one policy and one network call, at
        least 1. By default N / 16 rounded, from 1 to 8. Fewer may be stronger, more are faster.
      root_selection: which first actions the simulations take. The default is
        `puct(1.5, virtual_loss=1.0)`, and `gumbel_root` in the Gumbel searches.
      interior_selection: how actions below the root are chosen. A `SampledPolicy` follows a policy
        that reads what the visited states have returned. A `Selection` chooses by these returns,
        which makes the search a tree search, where nothing can adapt. None draws actions from the
        policy, which is the default of `mcs_search`. Policy gradient searches that keep a tree and
        have no `reuse` take `improved_policy(by_counts=True)`, with the `qtransform` of the default
        target. `batched_mcts_search` takes the root's selection and `gumbel_mcts_search`
        `gumbel_inner()`; there None is the default.
      truncation: when a simulation stops. The default is `until_new()`.
      backup: what return a simulation reports. The default is `n_step()`.
      target: what the search answers. The default is `completed_q(0.0)`: the best action, and the
        improved policy as weights. Its `qtransform` has a `min_range` of 1/3, for values from -1
        to 1. Where all values of a game lie closer together, take a smaller one. For self-play
        draw the action from the weights, as `completed_q()` does. The Gumbel searches take
        `gumbel_target()`.
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

    simulations_per_update: int | None
    root_selection: Selection | None
    interior_selection: Selection | SampledPolicy | None
    truncation: Truncation | None
    backup: Backup | None
    target: Target | None
    mode: str | None
    capacity: int | None
    best_of: Callable[[Embedding], chex.Array] | None


class ExplorationOptions(TypedDict, total=False):
    """How actions are drawn, at the root and in the end; a Gumbel root has a noise of its own.

    Attributes:
      temperature: of the default target, at least 0. The action is drawn with probability
        proportional to the weights to the power of `1 / temperature`. The default, 0, takes the
        best action. Another target takes the temperature itself: `target=visit_counts(1.0)`. May
        be traced.
      dirichlet_fraction: share of Dirichlet noise in the prior that the root's selection sees, from
        0 to 1. The default is 0, no noise, and not 0.25 as in `mctx.muzero_policy`. May be traced.
      dirichlet_alpha: concentration of that noise, above 0. The default is 0.12, as in Anthony et
        al. 2019. May be traced.
    """

    temperature: float | chex.Array | None
    dirichlet_fraction: float | chex.Array
    dirichlet_alpha: float | chex.Array


class LearningOptions(TypedDict, total=False):
    """How a policy gradient search learns. None is the default of each.

    Attributes:
      estimator: whose gradient the adapted parameters ascend. The default is `reinforce("value")`.
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

    entropy: float | chex.Array
    kl_to_prior: float | chex.Array
    kl_from_prior: float | chex.Array


class GumbelOptions(TypedDict, total=False):
    """What a Gumbel root takes.

    Attributes:
      max_num_considered_actions: how many actions the root considers at most, at least 1. By
        default 16 in `gumbel_mcts_search`, as in mctx. In `gumbel_pgs_search` N / 4 rounded, from 2
        to 8, and with more than 64 simulations the root of N, up to 16. With a prior that knows
        nothing and few simulations, consider every action.
      gumbel_scale: scale of the noise at the root, at least 0. The default is 1; take 0 for
        evaluation in games of full information. May be traced.
    """

    max_num_considered_actions: int | None
    gumbel_scale: float | chex.Array


class KeptOptions(TypedDict, total=False):
    """What a game's last search hands on to the next one. None, the default, starts afresh.

    Attributes:
      nodes: the last search's `search_state.nodes` after `reroot`, or `init_nodes` for none; "tree"
        only.
      adapted_params: the last search's `search_state.params`, or `init_adapted` for the network's
        own parameters.
    """

    nodes: Any
    adapted_params: Params | None


class MCSOptions(SearchOptions, ExplorationOptions, total=False):
    """The knobs of `mcs_search` and `batched_mcts_search`."""


class PGSOptions(MCSOptions, LearningOptions, total=False):
    """The knobs of `pgs_search`."""


class ExtendedPGSOptions(PGSOptions, ExtendedOptions, total=False):
    """The knobs of `extended_pgs_search`."""


class GumbelMCTSOptions(SearchOptions, GumbelOptions, total=False):
    """The knobs of `gumbel_mcts_search`."""


class GumbelPGSOptions(GumbelMCTSOptions, LearningOptions, total=False):
    """The knobs of `gumbel_pgs_search`."""


class MCSPolicyOptions(MCSOptions, KeptOptions, total=False):
    """The knobs of `mcs_policy` and `batched_mcts_policy`."""


class PGSPolicyOptions(PGSOptions, KeptOptions, total=False):
    """The knobs of `pgs_policy`."""


class ExtendedPGSPolicyOptions(ExtendedPGSOptions, KeptOptions, total=False):
    """The knobs of `extended_pgs_policy`."""


class GumbelMCTSPolicyOptions(GumbelMCTSOptions, KeptOptions, total=False):
    """The knobs of `gumbel_mcts_policy`."""


class GumbelPGSPolicyOptions(GumbelPGSOptions, KeptOptions, total=False):
    """The knobs of `gumbel_pgs_policy`."""


_DOCUMENTED = (
    SearchOptions, ExplorationOptions, LearningOptions, ExtendedOptions, GumbelOptions, KeptOptions,
)  # fmt: skip


def split_options(options: Mapping[str, Any], of: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options that one of the dictionaries above names, and the others."""
    own = {name: value for name, value in options.items() if name in of.__annotations__}
    return own, {name: value for name, value in options.items() if name not in own}


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(function: Function) -> Function:
    """Shows the knobs in `**options` of a function as arguments, and checks what it is given.

    The signature names every knob as a keyword argument with its type, and the docstring has what
    the dictionary says of it in place of `**options`. A call with an unknown name raises a
    `TypeError` that names the function and what it takes; one with a part that is none, such as
    `jaxpgs.puct` for `jaxpgs.puct(1.5)`, a `ValueError`.

    Args:
      function: its last parameter must be `**options: Unpack[...]` of a dictionary above.

    Returns:
      The function, for type checkers the same one.
    """
    signature = inspect.signature(function)
    *parameters, last = signature.parameters.values()
    options = get_args(last.annotation)[0].__annotations__
    shown = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULT, annotation=kind.__forward_arg__
        )
        for name, kind in options.items()
    ]
    signature = signature.replace(parameters=[*parameters, *shown])
    name = function.__name__

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for argument in given:
            if argument not in signature.parameters:
                raise TypeError(_unknown(name, argument, list(signature.parameters)))
        _check(name, dict(zip(signature.parameters, args, strict=False)) | given)
        return function(*args, **given)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    checked.__doc__ = _with_options(function.__doc__, list(options))
    return checked  # type: ignore[return-value]


class _Default:
    """Stands in signatures for a default that the preset chooses."""

    def __repr__(self) -> str:
        return "..."


DEFAULT = _Default()


def _with_options(doc: str | None, names: list[str]) -> str | None:
    """Puts what is said of the knobs in the place of `**options` in a docstring."""
    if doc is None:  # python -OO
        return None
    entry = r"^  {}: .*(?:\n    .*)*"
    texts = [inspect.cleandoc(options.__doc__ or "") for options in _DOCUMENTED]
    found = [re.search(entry.format(name), text, re.M) for name in names for text in texts]
    entries = "\n".join(match.group() for match in found if match)
    return re.sub(
        entry.format(r"\*\*options"), lambda _: entries, inspect.cleandoc(doc), flags=re.M
    )


_NOISE = "a Gumbel root draws by a noise of its own, whose scale is gumbel_scale"
_LEARNING = "nothing adapts in this search; pgs_search and pgs_policy learn"
_MUZERO = "give it to the selection, as in root_selection=jaxpgs.muzero_puct({}=...)"
# Names that some search takes, here or in mctx: what to do where another one is given them.
_ELSEWHERE = {
    "temperature": _NOISE,
    "dirichlet_fraction": _NOISE,
    "dirichlet_alpha": _NOISE,
    "adapt": _LEARNING,
    "estimator": _LEARNING,
    "optimizer": _LEARNING,
    "reuse": _LEARNING,
    "pb_c_init": _MUZERO.format("pb_c_init"),
    "pb_c_base": _MUZERO.format("pb_c_base"),
    "qtransform": "give it to the parts, as in target=jaxpgs.completed_q(qtransform=...)",
}


def _unknown(function: str, argument: str, known: list[str]) -> str:
    """What to say of a name that a function does not take."""
    near = difflib.get_close_matches(argument, known, 1)
    if argument in _ELSEWHERE:
        hint = f": {_ELSEWHERE[argument]}."
    else:
        hint = f". Did you mean {near[0]!r}?" if near else "."
    return f"{function}() has no argument {argument!r}{hint} It takes {sorted(known)}."


COUNTS = ("num_simulations", "simulations_per_update", "max_depth", "capacity")
_PARTS: dict[str, tuple[Any, str]] = {
    "root_selection": (Selection, "jaxpgs.puct(1.5)"),
    "interior_selection": ((Selection, SampledPolicy), "jaxpgs.improved_policy()"),
    "truncation": (Truncation, "jaxpgs.until_new()"),
    "backup": (Backup, "jaxpgs.n_step()"),
    "target": (Target, "jaxpgs.completed_q(0.0)"),
    "estimator": (Estimator, 'jaxpgs.reinforce("value")'),
    "optimizer": (optax.GradientTransformation, "optax.sgd(0.1)"),
    "reuse": (Reuse, "jaxpgs.Reuse(4)"),
}


def _check(function: str, given: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a count that is no whole number and for a part that is none."""
    for name in COUNTS:
        count = given.get(name)
        if count is not None and not _is_whole(count):
            raise ValueError(
                f"{function}() needs {name} to be a whole number that is known before tracing, "
                f"such as 16; got {count!r}."
            )
    for name, (kind, example) in _PARTS.items():
        part = given.get(name)
        if part is not None and not _is_part(part, kind):
            called = getattr(part, "__name__", None)
            advice = f" Call it: {name}={called}(...)." if called and callable(part) else ""
            raise ValueError(
                f"{function}() needs {name} to be a part, such as {example}; got {part!r}.{advice}"
            )


def _is_whole(count: Any) -> bool:
    try:
        operator.index(count)
    except TypeError:  # that of a traced number is one too
        return False
    return True


def _is_part(part: Any, kind: Any) -> bool:
    if isinstance(kind, type | tuple) and kind is not Estimator:
        return isinstance(part, kind)
    # A function; one that returns this kind of part makes one and is none.
    makes_one = isinstance(part, type) or getattr(part, "__annotations__", {}).get("return") == kind
    return callable(part) and not makes_one
