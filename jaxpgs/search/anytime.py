"""A search with a time budget: the same updates, run in slices."""

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import mctx

from jaxpgs.base import Params, PolicyOutput
from jaxpgs.checks import check_number
from jaxpgs.search.carry import Carry
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import advance, finish, init, is_any_left
from jaxpgs.search.stores.nodes import Nodes

_init = jax.jit(init, static_argnums=0)
_advance = jax.jit(advance, static_argnums=0, donate_argnums=2)
_finish = jax.jit(finish, static_argnums=0)
_is_any_left = jax.jit(is_any_left, static_argnums=0)
# Which shapes of arguments each search has been compiled for.
_compiled: weakref.WeakKeyDictionary[Search, set[Any]] = weakref.WeakKeyDictionary()


class Progress(NamedTuple):
    """What a callback receives after a slice.

    Attributes:
      seconds: the time since the search began.
      num_updates: the number of updates so far.
      output: what the search would return if it ended now.

    Example:
      >>> tell = lambda progress: print(progress.num_updates, progress.output.action)
      >>> best = functools.partial(jaxpgs.search_for, seconds=1.0, callback=tell)
    """

    seconds: float
    num_updates: int
    output: PolicyOutput


def search_for(
    search: Search,
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    invalid_actions: chex.Array | None = None,
    *,
    seconds: float,
    nodes: Nodes | None = None,
    adapted_params: Params | None = None,
    slice_seconds: float | None = None,
    callback: Callable[[Progress], Any] | None = None,
) -> PolicyOutput:
    """Searches as long as time allows, on the host; do not wrap it in `jax.jit`.

    The search is compiled once for each `search` and each shape of the arguments, and compilation
    time does not count: make the `search` once and use it for all moves of a game. It then runs in
    slices of several updates. It stops before a slice that would leave too little time for the
    answer, judged by the slowest update so far, and so exceeds the budget by one slice at most.
    At least one update is done if any action is legal, and no more than `search.num_simulations`
    allow.

    The answer is that of `init`, the same number of `step`s and `finish`. If a selection plans with
    the number of simulations, as `gumbel_root` does, this is not the answer of a shorter search:
    set `num_simulations` of such a search to about as many as fit into the time.

    Args:
      search: the search, such as `pgs_search(...)`. Its `num_simulations` is an upper limit, for
        which a tree reserves memory (`capacity`).
      params: as in `init`, and likewise `rng_key`, `root` and `invalid_actions`.
      rng_key: one key, or `[B]` keys.
      root: the roots.
      invalid_actions: `[B, A]`, 1 where the action is illegal.
      seconds: the budget, above 0.
      nodes: as in `init`.
      adapted_params: as in `init`.
      slice_seconds: about how long a slice takes, above 0; a twentieth of the budget if None.
      callback: called with a `Progress` after every slice. Its result is ignored; its time counts
        towards the budget.

    Returns:
      A `PolicyOutput`; the number of simulations is the sum of its visits.

    Raises:
      ValueError: as `init`, and if a number of seconds is not above 0.

    Example:
      >>> output = jaxpgs.search_for(search, params, rng_key, root, seconds=60.0)
      >>> output.search_state.visits.sum(axis=-1)  # all simulations fit
      Array([16, 16], dtype=int32)
    """
    check_number("search_for", "seconds", seconds, 0, open_low=True)
    slice_seconds = seconds / 20 if slice_seconds is None else slice_seconds
    check_number("search_for", "slice_seconds", slice_seconds, 0, open_low=True)
    given, kept = (params, rng_key, root, invalid_actions), (nodes, adapted_params)
    begin = functools.partial(_init, search, *given, nodes=nodes, adapted_params=adapted_params)
    shapes = jax.tree.map(jax.typeof, (*given, kept))
    _compile(search, params, begin, str(shapes))
    start = time.perf_counter()
    carry, done, slowest, closing = jax.block_until_ready(begin()), 0, 0.0, 0.0
    output: PolicyOutput | None = None
    # A search in rounds may take more updates than `search.num_updates`; see `gumbel_root`.
    while _is_any_left(search, carry):
        now = time.perf_counter() - start
        left = seconds - now - closing
        # The first slice is one update, to measure how long an update takes.
        count = _num_fitting(left, slowest, slice_seconds) if done else 1
        if count == 0:
            break
        count = min(count, max(1, search.num_updates - done))
        carry = _advance(search, params, carry, count)
        jax.block_until_ready(carry.num_updates)
        done += count
        output = None
        if callback is not None or done == count:  # the first slice measures the answer's time
            before = time.perf_counter()
            output = jax.block_until_ready(_finish(search, carry))
            closing = max(closing, time.perf_counter() - before)
            if callback is not None:
                callback(Progress(time.perf_counter() - start, done, output))
        slowest = max(slowest, (time.perf_counter() - start - now) / count)
    return _finish(search, carry) if output is None else output


def _num_fitting(left: float, slowest: float, slice_seconds: float) -> int:
    """Returns how many updates a slice has, 0 if none fits into the remaining seconds.

    Args:
      left: the seconds left until the answer must be computed.
      slowest: the seconds of the slowest update so far; the next ones may take as long.
      slice_seconds: about how long a slice takes; it has at least one update.
    """
    if slowest > left:
        return 0
    return max(1, int(min(slice_seconds, left) / slowest))


def _compile(search: Search, params: Params, begin: Callable[[], Carry], shapes: str) -> None:
    """Compiles a search once per set of argument shapes, outside of the time budget."""
    if shapes in _compiled.setdefault(search, set()):
        return
    # No update is run: one compiled `advance` serves any number of updates, 0 as well.
    carry = _advance(search, params, begin(), 0)
    jax.block_until_ready((_finish(search, carry), _is_any_left(search, carry)))
    _compiled[search].add(shapes)
