"""Makes a `Search` from a preset's parts and the user's choices, and runs it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxpgs.base import Adapt, PolicyOutput, RecurrentFn, SplitRecurrentFn
from jaxpgs.checks import check_count
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import run
from jaxpgs.search.options import RootOptions, split_options
from jaxpgs.search.parts.backup import n_step
from jaxpgs.search.parts.selection import muzero_puct, puct, with_dirichlet_noise
from jaxpgs.search.parts.target import completed_q, qtransform_completed_by_mix_value
from jaxpgs.search.parts.truncation import until_new

# Without a minimal range, rescaled returns that are nearly equal would outweigh a good prior.
# On 7x7 Hex with 64 simulations PGS is 44 ± 20 Elo over mctx's Gumbel search with a range of 1/3,
# and 23 without; `relative` makes no measurable difference, -6 ± 14 (sweeps at commit 0bc35d3).
QTRANSFORM = functools.partial(qtransform_completed_by_mix_value, epsilon=1 / 3, relative=True)

MCS: dict[str, Any] = {
    "root_selection": puct(1.5, relative=True),  # pending simulations count as lost
    "truncation": until_new(),
    "backup": n_step(),
    "target": completed_q(0.0, qtransform=QTRANSFORM),
}
ROLLOUTS = ("rollouts", "constant")  # the mode that keeps no states, and its former name


def default_simulations_per_update(num_simulations: int) -> int:
    """Returns the presets' default K for N simulations: N / 16, rounded, from 1 to 8.

    On 7x7 Hex with 256 simulations PGS was 79 ± 36 Elo over MCS with K = 4, 42 with 8, 14 with 16
    and 68 below it with 32 (sweep at commit 0bc35d3).

    Example:
      >>> [jaxpgs.search.default_simulations_per_update(n) for n in (8, 32, 64, 1000)]
      [1, 2, 4, 8]
    """
    count = check_count("A search", "num_simulations", num_simulations)
    return min(max(1, round(count / 16)), 8)


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
    """Makes a search from a preset's parts and the options with which the user replaces them.

    Args:
      recurrent_fn: as in mctx.
      num_simulations: N.
      defaults: the preset's parts.
      options: the user's options. None means not set, except for `interior_selection`.
      adapt: which parameters adapt.
      max_depth: T.
      is_tree: whether a selection chooses actions below the root; by default the root's selection.
    """
    chosen = chosen_options(options)
    # A setting such as a temperature creates the part that it belongs to.
    describe(chosen, "target", completed_q, ("temperature",), {"qtransform": QTRANSFORM})
    describe(chosen, "root_selection", muzero_puct, ("pb_c_init", "pb_c_base", "qtransform"), {})
    fraction, alpha = chosen.pop("dirichlet_fraction", 0.0), chosen.pop("dirichlet_alpha", 0.12)
    # If it is not certain that states can be kept, this is decided when the search is traced.
    if adapt is None or isinstance(recurrent_fn, SplitRecurrentFn):
        chosen.setdefault("mode", "tree")
    per_update = default_simulations_per_update(num_simulations)
    # Later entries win: the user's choices replace the preset's parts.
    parts = {"simulations_per_update": per_update, **defaults, **chosen}
    if is_tree:
        if parts["mode"] in ROLLOUTS:
            raise ValueError(
                'A tree search keeps its states: mode must be "tree", which is its default; got '
                f"{parts['mode']!r}. mcs_search and pgs_search also work without a tree."
            )
        # Dirichlet noise is added after this, for the root alone.
        inner = defaults.get("interior_selection", parts["root_selection"])
        parts["interior_selection"] = chosen.get("interior_selection") or inner
    if not (isinstance(fraction, int | float) and fraction == 0):  # a static 0 draws nothing
        parts["root_selection"] = with_dirichlet_noise(parts["root_selection"], fraction, alpha)
    parts |= {"num_simulations": num_simulations, "max_depth": max_depth}
    return Search(recurrent_fn=recurrent_fn, adapt=adapt, **parts)


def chosen_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are set."""
    return {k: x for k, x in options.items() if x is not None or k == "interior_selection"}


def describe(
    chosen: dict[str, Any],
    name: str,
    make: Callable[..., Any],
    settings: tuple[str, ...],
    defaults: Mapping[str, Any],
) -> None:
    """Replaces the settings of a part, if the user gave any, by the part made from them."""
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
