"""Gumbel selections and target (Danihelka et al. 2022), for K simulations at a time.

At the root some actions are sampled without replacement by the Gumbel-top-k trick, and sequential
halving divides the simulations among them. With K = 1 and `gumbel_inner` in every other node this
makes the same choices as `mctx.gumbel_muzero_policy`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.arrays import as_logits, broadcast_keys, is_one_key
from jaxpgs.base import NodeStats, add_returns
from jaxpgs.checks import by_root, check_count, check_number
from jaxpgs.search.parts.halving import Halvings, considered_visits, halvings, scheduled_visits
from jaxpgs.search.parts.selection import Narrow, Rounds, Selection
from jaxpgs.search.parts.target import (
    QTransform,
    Target,
    completed_qvalues,
    improved_weights,
    of_node,
    qtransform_completed_by_mix_value,
)
from jaxpgs.search.policy import masked_argmax

# Their results for the considered actions depend on the other actions only by the sum of the
# others' priors.
_NARROW = (qtransform_completed_by_mix_value, mctx.qtransform_completed_by_mix_value)


class GumbelState(NamedTuple):
    """The state of the root's selection: its noise and its schedule.

    Attributes:
      gumbel: `[B, A]` the noise, times its scale.
      before: `[B, A]` int32, visits that the root had before this search.
      top: `[B, 1]` the root's largest logit.
      num_considered: `[B]` int32, how many actions are considered.
      num_simulations: `[B]` int32, how many simulations the schedule divides among them.
      halvings: the schedule.
      columns: `[B, m]` int32, the actions that may be considered, in ascending order, for a root
        without earlier visits; None if A is at most 4 m, or `qtransform` needs all actions.

    Example:
      >>> state = jaxpgs.gumbel.gumbel_root(2).init(rng_key, node, num_simulations=8)
      >>> int(state.num_considered[0]), int(state.num_simulations[0])
      (2, 8)
    """

    gumbel: chex.Array
    before: chex.Array
    top: chex.Array
    num_considered: chex.Array
    num_simulations: chex.Array
    halvings: Halvings
    columns: chex.Array | None = None


_ROOT_ONLY = (
    "gumbel_root selects at the root only; for inner nodes use gumbel_inner or another selection."
)


def gumbel_root(
    max_num_considered_actions: int = 16,
    gumbel_scale: float | chex.Array = 1.0,
    *,
    qtransform: QTransform = qtransform_completed_by_mix_value,
    in_rounds: bool = False,
) -> Selection:
    """Gumbel-top-k with sequential halving (Danihelka et al. 2022, section 3, algorithm 2).

    Of the actions whose visit count equals that of the schedule, takes the one with the largest
    `gumbel + logits + sigma(completed Q)`. Simulations in flight count as visits, without a return.

    Args:
      max_num_considered_actions: how many actions are considered at most, at least 1.
      gumbel_scale: scale of the noise, at least 0, a number, or `[B]` or `[B, 1]`, one for each
        root; 0 for evaluation in games of perfect information. May be traced.
      qtransform: the bonus from the Q-values that is added to the logits, as in mctx.
      in_rounds: whether the simulations of an update start with different actions, and only those
        count that K = 1 would have run. In a round the schedule visits each remaining action once,
        so its simulations are independent; but their returns may change which actions remain. So
        the update starts the simulations that may be needed, and then follows the choices of K = 1
        as long as it has their returns. `rounds` gives the K of each update.

    Returns:
      A selection for the root. If one key is given for all roots, its noise is that of mctx for
      the same key. Make the target with `gumbel_target` and the same `qtransform`.

    Raises:
      ValueError: if a number is out of range.

    Example:
      >>> root_selection = jaxpgs.gumbel.gumbel_root(max_num_considered_actions=4)
      >>> knobs = {"root_selection": root_selection, "target": jaxpgs.gumbel.gumbel_target()}
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, **knobs)
    """
    most = check_count("gumbel_root", "max_num_considered_actions", max_num_considered_actions)
    check_number("gumbel_root", "gumbel_scale", gumbel_scale, 0, by_root=True)
    transform = of_node("gumbel_root", qtransform)
    num_columns = max(most, 2)  # with a single column it would be unknown if others are legal
    fits = getattr(qtransform, "func", qtransform) in _NARROW

    def init(
        rng_key: chex.PRNGKey, root: NodeStats, num_simulations: int | chex.Array
    ) -> GumbelState:
        size = num_columns if fits else 0
        return _begin(rng_key, root, num_simulations, most, gumbel_scale, size)

    def select(state: GumbelState | None, node: NodeStats, pending: chex.Array) -> chex.Array:
        if state is None:
            raise ValueError(_ROOT_ONLY)
        visits = node.visits - state.before + pending.astype(jnp.int32)
        chosen = visits == wanted_by(state, visits)
        return masked_argmax(_considered(node, state, transform(node), chosen), node.valid)

    def propose(
        state: GumbelState, root: NodeStats, num_walks: int
    ) -> tuple[chex.Array, chex.Array]:
        visits = root.visits - state.before
        wanted = wanted_by(state, visits)
        scores = _considered(root, state, transform(root), visits == wanted)
        return _start_best(root, scores, num_walks)

    def accept(
        state: GumbelState,
        root: NodeStats,
        actions: chex.Array,
        started: chex.Array,
        returns: chex.Array,
    ) -> chex.Array:
        visits = root.visits - state.before
        known = _any_order(state, root.valid, visits, wanted_by(state, visits), started)
        follow = functools.partial(_follow, select, state, root, actions, started, returns)
        return jax.lax.cond(jnp.all(known), lambda: started, follow)

    def wanted_by(state: GumbelState, visits: chex.Array) -> chex.Array:
        number = jnp.sum(visits, axis=-1, dtype=jnp.int32)
        return scheduled_visits(number, state.halvings)[:, None]

    at_once = Rounds(propose, accept) if in_rounds else None
    return Selection(select, init, rounds=at_once, narrow=_narrow)


def _begin(
    rng_key: chex.PRNGKey,
    root: NodeStats,
    num_simulations: int | chex.Array,
    most: int,
    gumbel_scale: float | chex.Array,
    num_columns: int,
) -> GumbelState:
    """Draws the noise and makes the schedule.

    Args:
      rng_key: one key, or `[B]` keys.
      root: the roots' statistics.
      num_simulations: a number, or `[B]`.
      most: how many actions are considered at most.
      gumbel_scale: as in `gumbel_root`.
      num_columns: to how many actions to narrow the root, since no others are taken; 0 for all.
    """
    shape, dtype = root.prior_logits.shape, root.prior_logits.dtype
    noise = _noise_like(root.prior_logits, rng_key)
    num_considered = jnp.minimum(jnp.sum(root.valid, axis=-1, dtype=jnp.int32), most)
    scale = by_root("gumbel_root", "gumbel_scale", gumbel_scale, shape[0], dtype)
    counts = num_considered, 0 * num_considered + num_simulations
    top = jnp.max(root.prior_logits, axis=-1, keepdims=True)
    schedule = halvings(*counts, most)
    state = GumbelState(scale * noise, root.visits, top, *counts, schedule)
    if not num_columns or shape[1] <= 4 * num_columns:
        return state
    # All actions that have not been taken yet have the same Q-value.
    scores = _considered(root, state, 0 * root.value_sum, root.valid)
    columns = jax.lax.top_k(scores, num_columns)[1]
    # In ascending order, so that ties are broken as among all actions.
    return state._replace(columns=jnp.sort(columns, axis=-1))


def _noise_like(logits: chex.Array, rng_key: chex.PRNGKey) -> chex.Array:
    """Draws Gumbel noise `[B, A]`; with one key for all roots it is that of mctx."""
    shape, dtype = logits.shape, logits.dtype
    # mctx splits its key in two and draws the noise with the second part.
    if is_one_key(rng_key):
        return jax.random.gumbel(jax.random.split(rng_key)[1], shape, dtype)
    keys = broadcast_keys(rng_key, shape[0])
    keys = jax.vmap(lambda key: jax.random.split(key, 3)[0])(keys)
    return jax.vmap(lambda key: jax.random.gumbel(key, shape[1:], dtype))(keys)


def _start_best(
    root: NodeStats, scores: chex.Array, num_walks: int
) -> tuple[chex.Array, chex.Array]:
    """Returns the actions `[B, K]` of a round, the best first, and which of them are started.

    Args:
      root: the root's statistics.
      scores: `[B, A]`, as `_considered` gives them.
      num_walks: K.
    """
    # At least one legal action is always started; otherwise a search might never end.
    lowest = jnp.finfo(scores.dtype).min
    scores = jnp.where(root.valid, jnp.maximum(scores, lowest), -jnp.inf)
    num_actions = scores.shape[1]
    # Scores: above the lowest float if due, at it if legal but not due, -inf if illegal.
    best, actions = jax.lax.top_k(scores, min(num_walks, num_actions))
    more = [(0, 0), (0, max(num_walks - num_actions, 0))]
    best, actions = jnp.pad(best, more, constant_values=-jnp.inf), jnp.pad(actions, more)
    started = (best > lowest) | ((best == lowest) & (jnp.arange(num_walks) == 0)[None])
    # With a single legal action there is nothing to decide.
    single = jnp.sum(root.valid, axis=-1, keepdims=True) == 1
    return jnp.where(single, actions[:, :1], actions), single | started


def _any_order(
    state: GumbelState,
    valid: chex.Array,
    visits: chex.Array,
    wanted: chex.Array,
    started: chex.Array,
) -> chex.Array:
    """Tells `[B]` whether K = 1 runs exactly what a round has started, whatever the returns.

    Args:
      state: the selection's state.
      valid: `[B, A]` bool, the legal actions.
      visits: `[B, A]` int32, their visits before the round.
      wanted: `[B, 1]` int32, the visit count of the actions that the schedule takes next.
      started: `[B, K]` bool, which simulations of the round were started.
    """
    # K = 1 takes the actions of a round one after another. If it takes all of the actions that may
    # be taken, their order, and so their returns, do not matter.
    number, ready, num_started = (
        jnp.sum(x, axis=-1, dtype=jnp.int32) for x in (visits, valid & (visits == wanted), started)
    )
    last = scheduled_visits(number + ready - 1, state.halvings)
    whole = (last == wanted[:, 0]) & (number + ready <= state.num_simulations)
    return (num_started == 0) | (whole & (num_started == ready))


def _follow(
    select: Callable[..., chex.Array],
    state: GumbelState,
    root: NodeStats,
    actions: chex.Array,
    started: chex.Array,
    returns: chex.Array,
) -> chex.Array:
    """Returns which of a round's simulations K = 1 would have run, `[B, K]`; see `gumbel_root`."""

    def take(carry: tuple, _: Any) -> tuple[tuple, None]:
        node, waiting, goes_on = carry
        action = select(state, node, 0 * node.value_sum)
        # The simulation with this action, if it was started and has not been accepted yet.
        found = waiting & (actions == action[:, None])
        found &= jnp.cumsum(found, axis=-1) == 1
        left = jnp.sum(node.visits - state.before, axis=-1) < state.num_simulations
        # This ends when K = 1 would run a simulation that was not started, or none at all.
        goes_on &= left & jnp.any(found, axis=-1)
        found &= goes_on[:, None]
        returned = jnp.sum(jnp.where(found, returns, 0.0), axis=-1, keepdims=True)
        node = add_returns(node, action[:, None], returned, goes_on[:, None])
        return (node, waiting & ~found, goes_on), None

    carry = (root, started, root.value == root.value)
    (_, waiting, _), _ = jax.lax.scan(take, carry, length=actions.shape[1])
    accepted = started & ~waiting
    # If rounding leads to other choices here, the search must continue nevertheless.
    none = ~jnp.any(accepted, axis=-1, keepdims=True)
    return accepted | (started & none & (jnp.cumsum(started, axis=-1) == 1))


def _narrow(state: GumbelState, root: NodeStats) -> Narrow | None:
    """Returns the considered columns of a root, and one more for all other actions together."""
    columns = state.columns
    if columns is None:
        return None

    def near(x: chex.Array) -> chex.Array:
        return jnp.pad(trees.take(x, columns), [(0, 0), (0, 1)])

    # The other actions are never taken, so they are merged into one with the sum of their priors.
    mass = jax.vmap(lambda x, i: jax.nn.logsumexp(x.at[i].set(-jnp.inf), keepdims=True))
    others = mass(root.prior_logits, columns)
    names = ("visits", "value_sum", "valid")
    root = root._replace(
        prior_logits=jnp.concatenate([trees.take(root.prior_logits, columns), others], axis=-1),
        **{name: near(getattr(root, name)) for name in names},
    )
    state = state._replace(gumbel=near(state.gumbel), before=near(state.before))
    return Narrow(state, root, columns)


def gumbel_inner(
    *,
    qtransform: QTransform = qtransform_completed_by_mix_value,
) -> Selection:
    """Follows the improved policy as closely as counts can (Danihelka et al. 2022, section 5).

    Takes the action with the largest `pi'(a) - n(a) / (1 + n)`, where
    `pi' = softmax(logits + sigma(completed Q))` and visits include simulations in flight.

    Args:
      qtransform: the bonus from the Q-values that is added to the logits, as in mctx.

    Returns:
      A selection for the nodes of a tree.

    Raises:
      ValueError: if `qtransform` is no function of one or of two arguments.

    Example:
      >>> jaxpgs.gumbel.gumbel_inner().select(None, node, pending=jnp.zeros((1, 3), jnp.int32))
      Array([1], dtype=int32)
    """

    transform = of_node("gumbel_inner", qtransform)

    def select(state: None, node: NodeStats, pending: chex.Array) -> chex.Array:
        del state
        bonus = transform(node)
        policy = jax.nn.softmax(node.prior_logits + bonus, axis=-1)
        visits = node.visits.astype(policy.dtype) + pending
        scores = policy - visits / (1 + jnp.sum(visits, axis=-1, keepdims=True))
        return masked_argmax(scores, node.valid)

    return Selection(select)


def gumbel_target(
    *,
    qtransform: QTransform = qtransform_completed_by_mix_value,
) -> Target:
    """The answer of a Gumbel search (Danihelka et al. 2022, sections 3 and 4).

    The action is the one with the largest `gumbel + logits + sigma(completed Q)` among the most
    visited; the weights are `softmax(logits + sigma(completed Q))`. The root's value is the
    expected completed Q-value under these weights. The mean of all returns is not used, since there
    every action counts as often as the schedule visits it, however bad it has turned out to be.

    Args:
      qtransform: the bonus from the Q-values that is added to the logits, as in mctx.

    Returns:
      A target for searches whose root selection is `gumbel_root`. If no action is legal, the action
      is 0 and every weight is 0.

    Raises:
      ValueError: if `qtransform` is no function of one or of two arguments.

    Example:
      >>> inner, target = jaxpgs.gumbel.gumbel_inner(), jaxpgs.gumbel.gumbel_target()
      >>> knobs = {"root_selection": jaxpgs.gumbel.gumbel_root(), "interior_selection": inner}
      >>> search = jaxpgs.search.batched_mcts_search(recurrent_fn, 4, target=target, **knobs)
      >>> jaxpgs.search.run(search, params, rng_key, root).action.shape
      (2,)
    """

    transform = of_node("gumbel_target", qtransform)

    def target(
        rng_key: chex.PRNGKey, root: NodeStats, state: GumbelState
    ) -> tuple[chex.Array, chex.Array, chex.Array]:
        del rng_key
        if not isinstance(state, GumbelState):
            raise ValueError("gumbel_target needs root_selection=gumbel_root(...).")
        bonus = transform(root)
        visits = root.visits - state.before
        scores = _considered(root, state, bonus, visits == jnp.max(visits))
        action = masked_argmax(scores, root.valid)
        playable = jnp.any(root.valid)
        weights = improved_weights(root, bonus)
        value = jnp.sum(weights * completed_qvalues(root), axis=-1)
        return jnp.where(playable, action, 0).astype(jnp.int32), weights, value

    return target


def _considered(
    node: NodeStats, state: GumbelState, bonus: chex.Array, chosen: chex.Array
) -> chex.Array:
    """Returns scores `[..., A]` of the chosen actions, -inf for the others."""
    logits = as_logits(node.prior_logits - state.top)
    # As in mctx: an action that is due scores above all that are not, however low it is.
    scores = jnp.maximum(jnp.asarray(-1e9, logits.dtype), state.gumbel + logits + bonus)
    return jnp.where(chosen, scores, -jnp.inf)


def rounds(num_considered: int, num_simulations: int) -> tuple[int, ...]:
    """The sizes of the rounds of sequential halving; a round visits each remaining action once.

    Args:
      num_considered: how many actions are considered, at least 0.
      num_simulations: N.

    Returns:
      How many simulations each round has; their sum is N.

    Example:
      >>> jaxpgs.gumbel.rounds(16, 32)
      (16, 8, 4, 4)
    """
    times = considered_visits(num_considered, num_simulations)
    return tuple(len(list(each)) for _, each in itertools.groupby(times))


def round_starts(num_considered: int, num_simulations: int, *, sure: bool) -> tuple[int, ...]:
    """Returns how many simulations each update starts, for a `gumbel_root` in rounds.

    The rounds are followed by updates of two simulations, as many as a root may need that has fewer
    legal actions. Without `sure`, an update may not have started all needed simulations. A root
    that misses many takes more updates than these; the states of the additional updates count, but
    a tree does not keep them. With `sure` there are more evaluations in fewer calls, which is
    faster on an accelerator; a CPU is faster without it (`python tests/quality schedules`).

    Args:
      num_considered: how many actions are considered at most, at least 1.
      num_simulations: N.
      sure: whether the first round after a halving starts all actions that may remain, or only as
        many as will remain.
    """
    sizes = rounds(num_considered, num_simulations)
    starts = [max(pair) if sure else pair[1] for pair in itertools.pairwise((sizes[0], *sizes))]
    # The updates that a root with fewer legal actions takes; each starts what its width allows.
    longest = 0
    for count in range(2, num_considered):
        number = 0
        for left in rounds(count, num_simulations):
            while left > 0:
                left -= starts[number] if number < len(starts) else 2
                number += 1
        longest = max(longest, number)
    return (*starts, *[2] * (longest - len(starts)))
