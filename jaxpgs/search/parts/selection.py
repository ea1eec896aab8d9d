"""Selections: which action each simulation takes at the root, and in every node of a tree search.

At the root the K actions of an update are chosen one after another, each seeing the ones before it
as pending: visits whose result is not known yet. The same rule may serve in every other node.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.arrays import as_logits, broadcast_keys
from jaxpgs.base import NodeStats
from jaxpgs.checks import by_root, check_number, check_part, check_returned, check_word
from jaxpgs.search.parts.target import QTransform, of_node
from jaxpgs.search.policy import masked_argmax

# For an accelerator, up to this many choices are unrolled; more are made in a loop.
UNROLLED = 8


def stateless(rng_key: chex.PRNGKey, root: NodeStats, num_simulations: int | chex.Array) -> None:
    """The `init` of selections without a state."""
    del rng_key, root, num_simulations


class Rounds(NamedTuple):
    """How a selection starts simulations before it is known whether they are needed.

    Attributes:
      propose: `(state, root, K) -> (actions [B, K], [B, K] bool)`: the first actions of simulations
        that may be needed next, and which of them to start.
      accept: `(state, root, actions, started, returns [B, K]) -> [B, K]` bool: given the returns,
        which simulations count; at least one if any was started. The others do not enter any
        statistics.

    Example:
      >>> jaxpgs.gumbel.gumbel_root(in_rounds=True).rounds is None
      False
    """

    propose: Callable[[Any, NodeStats, int], tuple[chex.Array, chex.Array]]
    accept: Callable[[Any, NodeStats, chex.Array, chex.Array, chex.Array], chex.Array]


class Narrow(NamedTuple):
    """A root narrowed to the actions that its selection still considers.

    Attributes:
      state: the selection's state for these actions.
      root: the statistics of these actions, and perhaps of others that are not valid.
      columns: `[B, m]` int32, the actions in the first m columns; None if all actions are kept.

    Example:
      >>> jaxpgs.gumbel.gumbel_root().narrow is None, jaxpgs.selection.puct(1.5).narrow is None
      (False, True)
    """

    state: Any
    root: NodeStats
    columns: Any


class Selection(NamedTuple):
    """A rule that chooses actions by the statistics of a node.

    Attributes:
      select: `(state, node, pending [B, A]) -> [B]` int32: the next action, given what is known and
        how many choices of each action are pending. At the root `state` is what `init` made; below
        it, in a tree search, it is None.
      init: `(rng_key, root, num_simulations) -> state`, called once per search, at the root. The
        key is the search's own, one or `[B]`, so derive other keys from it; every array of the
        state has a leading axis B. The number is N, or `[B]` int32 with `simulations_by_root`. The
        target receives the state, too.
      needs_range: whether it reads the smallest and the greatest return of each action.
      rounds: at the root, how to start simulations that may turn out not to be needed; None if all
        K simulations count, chosen one after another.
      score: `(node, pending) -> [B, A]`, the score that `select` maximises; None if it has none.
        The search itself does not use it.
      narrow: `(state, root) -> Narrow`, at the root: the part of the statistics that it needs if it
        will choose only a few of the actions, so that an update does not process all A. None, or a
        function that returns None, if it needs all actions. Not called if nodes are kept from an
        earlier search.

    Example:
      >>> least_tried = lambda state, node, pending: jnp.argmin(node.visits + pending, axis=-1)
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 8, root_selection=jaxpgs.selection.Selection(least_tried)
      ... )
    """

    select: Callable[[Any, NodeStats, chex.Array], chex.Array]
    init: Callable[[chex.PRNGKey, NodeStats, Any], Any] = stateless
    needs_range: bool = False
    score: Callable[[NodeStats, chex.Array], chex.Array] | None = None
    rounds: Rounds | None = None
    narrow: Callable[[Any, NodeStats], Narrow | None] | None = None


def select_in_turn(
    selection: Selection, state: Any, node: NodeStats, num_actions: int
) -> chex.Array:
    """Chooses several actions at a node, each seeing those before it as pending.

    Args:
      selection: the rule.
      state: its state.
      node: the statistics.
      num_actions: K.

    Returns:
      `[B, K]` int32.

    Example:
      >>> jaxpgs.selection.select_in_turn(jaxpgs.selection.puct(1.5), None, node, 4)
      Array([[1, 0, 2, 1]], dtype=int32)
    """

    def one(pending: chex.Array, _: Any) -> tuple[chex.Array, chex.Array]:
        action = selection.select(state, node, pending)
        check_returned("What root_selection chooses", action, pending.shape[:1], "integer")
        chosen = jax.nn.one_hot(action, pending.shape[-1], dtype=pending.dtype)
        return pending + chosen, action.astype(jnp.int32)

    def in_a_loop(start: chex.Array) -> chex.Array:
        return jax.lax.scan(one, start, length=num_actions, unroll=min(num_actions, 2))[1].T

    def written_out(start: chex.Array) -> chex.Array:
        choose = lambda _, pending: selection.select(state, node, pending)  # noqa: E731
        return in_turn(choose, start, num_actions)

    # Not plain zeros: they vary over devices as the visits do.
    start = (node.visits * 0).astype(node.value_sum.dtype)
    default = written_out if num_actions <= UNROLLED else in_a_loop
    return jax.lax.platform_dependent(start, cpu=in_a_loop, default=default)


def in_turn(
    choose: Callable[[int, chex.Array], chex.Array],
    start: chex.Array,
    num: int,
    same: chex.Array | None = None,
) -> chex.Array:
    """Makes `[B, num]` choices one after another, unrolled.

    On an accelerator, each iteration of a loop, and each array passed from choice to choice, would
    cost extra kernel launches.

    Args:
      choose: `(k, pending [B, A]) -> [B]`, choice k, given the earlier ones.
      start: `[B, A]` zeros.
      num: how many choices.
      same: `[B, num, num]` bool; `[:, k, i]` tells whether choice i is pending for choice k, which
        is the case if both are made in the same node. None if all are.
    """
    choices: list[chex.Array] = []
    for k in range(num):
        pending = start
        for i, action in enumerate(choices):
            chosen = jax.nn.one_hot(action, start.shape[-1], dtype=start.dtype)
            pending += chosen if same is None else jnp.where(same[:, k, i, None], chosen, 0.0)
        choices.append(choose(k, pending).astype(jnp.int32))
    return jnp.stack(choices, axis=1)


def by_score(
    score: Callable[[NodeStats, chex.Array], chex.Array], needs_range: bool = False
) -> Selection:
    """Makes the selection that takes the legal action with the largest score.

    Args:
      score: `(node, pending [B, A]) -> [B, A]`: how good each action looks. Its `node` has float
        visits.
      needs_range: as in `Selection`.

    Returns:
      A selection.

    Example:
      >>> greedy = jaxpgs.selection.by_score(lambda node, pending: node.qvalues - 0.1 * pending)
      >>> greedy.select(None, node, jnp.zeros((1, 3), jnp.int32))
      Array([1], dtype=int32)
    """

    def select(state: Any, node: NodeStats, pending: chex.Array) -> chex.Array:
        del state
        node = node._replace(visits=node.visits.astype(pending.dtype))
        scores = score(node, pending)
        check_returned("What score returns", scores, pending.shape, "real")
        return masked_argmax(scores, node.valid)

    return Selection(select, needs_range=needs_range, score=score)


def puct(
    c_puct: float | chex.Array = 5.0,
    *,
    virtual_loss: float | chex.Array | None = 1.0,
    unvisited: str = "zero",
    relative: bool = False,
) -> Selection:
    """PUCT with virtual loss (Anthony et al. 2019, sections 3 and 4.1).

    Takes the action with the largest `Q(a) + c_puct P(a) sqrt(n) / (1 + n(a))`, with `n` the sum of
    the visits `n(a)`, at least 1, so that the very first choice follows the prior.

    Args:
      c_puct: weight of exploration, at least 0; the paper's is 5.
      virtual_loss: a simulation in flight counts as a visit with the return `-virtual_loss` (Segal
        2010), in units of the value. None counts the visit and leaves Q alone.
      unvisited: Q of an action never tried: "zero", or "value" for the network's value of the node.
      relative: whether Q is measured from the network's value of the node, in units of how much the
        returns of the search differ (`NodeStats.scale`). Then the choices depend neither on the
        scale of the rewards nor on a constant added to all returns and values.

    Returns:
      A selection. Actions that are not valid are never chosen while a valid one exists.

    Raises:
      ValueError: if a number is not finite or out of range, or `unvisited` is another word.

    Example:
      >>> jaxpgs.selection.puct(1.5).select(None, node, pending=jnp.array([[0, 3, 0]]))
      Array([0], dtype=int32)
    """
    check_number("puct", "c_puct", c_puct, 0)
    if virtual_loss is not None:
        check_number("puct", "virtual_loss", virtual_loss, -math.inf)
    check_word("puct", "unvisited", unvisited, ("zero", "value"))

    def score(node: NodeStats, pending: chex.Array) -> chex.Array:
        node = node.relative() if relative else node
        prior = jax.nn.softmax(node.prior_logits, axis=-1)
        visits = node.visits + pending
        if virtual_loss is None:
            tried, value_sum, count = node.visits > 0, node.value_sum, node.visits
        else:
            # Pending simulations count as visits whose return is minus the virtual loss.
            tried, value_sum, count = visits > 0, node.value_sum - virtual_loss * pending, visits
        default = 0.0 if unvisited == "zero" else node.value[:, None]
        qvalues = jnp.where(tried, value_sum / jnp.maximum(count, 1), default)
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        return qvalues + c_puct * prior * jnp.sqrt(total) / (1 + visits)

    return by_score(score)


def ucb1(
    c: float | chex.Array = 1.0, *, virtual_loss: float | chex.Array | None = 1.0
) -> Selection:
    """UCB1 with virtual loss (Auer et al. 2002): largest `Q(a) + c sqrt(ln n / n(a))`.

    Every valid action is tried once, in the order of the prior, before any is tried again.

    Args:
      c: weight of exploration, at least 0, in units of the value.
      virtual_loss: as in `puct`.

    Returns:
      A selection.

    Raises:
      ValueError: if a number is not finite or out of range.

    Example:
      >>> jaxpgs.selection.ucb1(1.0).select(None, node, pending=jnp.array([[0, 3, 0]]))
      Array([2], dtype=int32)
    """
    check_number("ucb1", "c", c, 0)
    if virtual_loss is not None:
        check_number("ucb1", "virtual_loss", virtual_loss, -math.inf)

    def score(node: NodeStats, pending: chex.Array) -> chex.Array:
        visits = node.visits + pending
        if virtual_loss is None:
            qvalues = node.qvalues
        else:
            qvalues = (node.value_sum - virtual_loss * pending) / jnp.maximum(visits, 1)
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        bonus = c * jnp.sqrt(jnp.log(total) / jnp.maximum(visits, 1))
        untried = (visits == 0) & node.valid
        first = jnp.where(untried, as_logits(node.prior_logits), -jnp.inf)
        return jnp.where(jnp.any(untried, axis=-1, keepdims=True), first, qvalues + bonus)

    return by_score(score)


def muzero_puct(
    pb_c_init: float | chex.Array = 1.25,
    pb_c_base: float | chex.Array = 19652.0,
    *,
    qtransform: QTransform = mctx.qtransform_by_parent_and_siblings,
    virtual_loss: bool = True,
) -> Selection:
    """MuZero's PUCT (Schrittwieser et al. 2020, appendix B), with virtual loss.

    By default Q-values are rescaled to [0, 1], where the bounds are the smallest and the largest of
    the Q-values and the node's own value; an unvisited action counts as 0. Takes the action with
    the largest `Q(a) + P(a) sqrt(n) / (1 + n(a)) (pb_c_init + ln((n + pb_c_base + 1) / pb_c_base))`
    with `n - 1` the sum of the visits. With one simulation at a time this is the choice of
    `mctx.muzero_policy`, except that mctx breaks ties at random.

    Args:
      pb_c_init: weight of exploration, at least 0.
      pb_c_base: visits after which exploration grows, above 0.
      qtransform: how Q-values are rescaled to [0, 1], as in mctx: one of its functions, such as a
        `functools.partial` of `mctx.qtransform_by_min_max` with the game's bounds, or a function of
        a node's statistics.
      virtual_loss: whether a simulation in flight counts as a visit with the lowest Q, 0; otherwise
        it counts as a visit and leaves Q alone.

    Returns:
      A selection.

    Raises:
      ValueError: if a number is not finite or out of range, or `qtransform` is no such function.

    Example:
      >>> jaxpgs.selection.muzero_puct(
      ...     pb_c_init=1.25).select(None, node, pending=jnp.array([[0, 3, 0]])
      ... )
      Array([2], dtype=int32)
    """
    check_number("muzero_puct", "pb_c_init", pb_c_init, 0)
    check_number("muzero_puct", "pb_c_base", pb_c_base, 0, open_low=True)
    transform = of_node("muzero_puct", qtransform)

    def score(node: NodeStats, pending: chex.Array) -> chex.Array:
        prior = jax.nn.softmax(node.prior_logits, axis=-1)
        scaled = transform(node)
        visits = node.visits + pending
        if virtual_loss:
            # Q n(a) / (n(a) + pending): pending visits count as if their return were 0, the lowest
            # Q.
            scaled *= 1 - pending / jnp.maximum(visits, 1)
        # As in mctx, where the evaluation of the node is its first visit.
        node_visits = 1 + jnp.sum(visits, axis=-1, keepdims=True)
        weight = pb_c_init + jnp.log((node_visits + pb_c_base + 1) / pb_c_base)
        return scaled + weight * prior * jnp.sqrt(node_visits) / (1 + visits)

    return by_score(score)


def max_min_puct(
    c_puct: float | chex.Array = 2.0,
    *,
    bounds: str = "qvalues",
    virtual_loss: float | chex.Array = 0.01,
) -> Selection:
    """PUCT for rewards of unknown scale: Q-values rescaled to [0, 1] in each node (Seify 2020).

    Takes the action with the largest `Qn(a) - w W(a) Qn(a) + c_puct P(a) sqrt(n) / (1 + n(a))`
    (eq. 4.5 and 5.1), where `Qn(a) = (Q(a) - low) / (high - low)`, `W(a)` counts the pending
    choices, and `n(a)` the visits including these. The virtual loss is relative to the normalised
    value (eq. 4.4), so it does not depend on the return of a lost game. An unvisited action has the
    value of the node itself, such as the return of a rollout from there (section 4.3).

    Args:
      c_puct: weight of exploration, at least 0; the thesis uses 2 to 30, less for larger boards.
      bounds: what `low` and `high` are: "qvalues" for the lowest and the highest Q-value of the
        legal actions (max-min normalisation, eq. 4.3), "returns" for the lowest and the highest
        return that a simulation through the node has had (space-local normalisation, eq. 4.2).
        Where they are equal, every `Qn(a)` is 1.
      virtual_loss: w.

    Returns:
      A selection.

    Raises:
      ValueError: if a number is not finite or out of range, or `bounds` is another word.

    Deviation from eq. 4.2: if the node's bounds are equal, the thesis uses those of the whole tree.
    This gives the same number for all actions of the node; here the number is 1, as in eq. 4.3.

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 64, root_selection=jaxpgs.selection.max_min_puct(2.0)
      ... )
    """
    check_number("max_min_puct", "c_puct", c_puct, 0)
    check_number("max_min_puct", "virtual_loss", virtual_loss, -math.inf)
    check_word("max_min_puct", "bounds", bounds, ("qvalues", "returns"))

    def score(node: NodeStats, pending: chex.Array) -> chex.Array:
        prior = jax.nn.softmax(node.prior_logits, axis=-1)
        tried = node.visits > 0
        qvalues = jnp.where(tried, node.qvalues, node.value[:, None])
        low, high = qvalues, qvalues
        if bounds == "returns":
            assert node.lowest is not None and node.highest is not None
            low = jnp.where(tried, node.lowest, qvalues)
            high = jnp.where(tried, node.highest, qvalues)
        # Eq. 4.2 or 4.3, over the legal actions; equal bounds make every `Qn(a)` 1.
        low = jnp.min(jnp.where(node.valid, low, jnp.inf), axis=-1, keepdims=True)
        high = jnp.max(jnp.where(node.valid, high, -jnp.inf), axis=-1, keepdims=True)
        spread = high - low
        scaled = jnp.where(spread > 0, (qvalues - low) / jnp.where(spread > 0, spread, 1), 1.0)
        visits = node.visits + pending
        total = jnp.maximum(jnp.sum(visits, axis=-1, keepdims=True), 1)
        explore = c_puct * prior * jnp.sqrt(total) / (1 + visits)
        # Eq. 4.4: the virtual loss is a share of the normalised value.
        return scaled * (1 - virtual_loss * pending) + explore

    return by_score(score, needs_range=bounds == "returns")


def refuse_rounds(owner: str, selection: Selection) -> None:
    """Raises `ValueError` for a selection in rounds, which wrappers do not support."""
    if selection.rounds is not None:
        raise ValueError(
            f"{owner} takes selections that choose one simulation after another, such as "
            "jaxpgs.gumbel.gumbel_root(); got one in rounds (in_rounds=True)."
        )


def with_dirichlet_noise(
    selection: Selection, fraction: float | chex.Array = 0.25, alpha: float | chex.Array = 0.12
) -> Selection:
    """Mixes Dirichlet noise into the prior that a selection sees at the root.

    AlphaZero does this in self-play; the defaults are those of Anthony et al. 2019. Only the
    selection sees the noise: targets and estimators read the network's own prior.

    Args:
      selection: the selection to explore with.
      fraction: share of the noise in the prior, 0 to 1: a number, or `[B]` or `[B, 1]`, one for
        each root. May be traced.
      alpha: concentration of the noise, above 0; its shape and tracing are as for `fraction`.

    Returns:
      A selection.

    Raises:
      ValueError: if a number is out of range, or the selection chooses in rounds.

    Example:
      >>> noisy = jaxpgs.selection.with_dirichlet_noise(
      ...     jaxpgs.selection.puct(1.5), fraction=0.25, alpha=0.3
      ... )
      >>> search = jaxpgs.search.batched_mcts_search(recurrent_fn, 64, root_selection=noisy)
    """
    owner = "with_dirichlet_noise"
    check_part(owner, "selection", selection, Selection, "jaxpgs.selection.puct(1.5)")
    refuse_rounds(owner, selection)
    check_number(owner, "fraction", fraction, 0, 1, by_root=True)
    check_number(owner, "alpha", alpha, 0, open_low=True, by_root=True)

    def init(rng_key: chex.PRNGKey, root: NodeStats, num_simulations: int | chex.Array) -> tuple:
        keys = trees.gathered(broadcast_keys(rng_key, root.value.shape[0]))
        keys = jax.vmap(lambda key: jax.random.split(key, 3)[0])(keys)
        logits = root.prior_logits
        lowest = jnp.finfo(logits.dtype).min
        share, shape = (
            by_root(owner, name, value, logits.shape[0], logits.dtype)
            for name, value in (("fraction", fraction), ("alpha", alpha))
        )
        # A Dirichlet over the legal actions is a normalised vector of gammas.
        draw = functools.partial(jax.random.loggamma, shape=logits.shape[1:], dtype=logits.dtype)
        gamma = jax.vmap(draw, (0, 0 if jnp.ndim(shape) else None))(keys, shape)
        noise = jax.nn.softmax(jnp.where(root.valid, gamma, lowest), axis=-1)
        prior = jax.nn.softmax(logits, axis=-1)
        prior = (1 - share) * prior + share * noise
        noisy = jnp.where(root.valid, as_logits(jnp.log(prior)), lowest)
        return noisy, selection.init(rng_key, root, num_simulations)

    def select(state: tuple | None, node: NodeStats, pending: chex.Array) -> chex.Array:
        # Below the root there is no noise.
        if state is None:
            return selection.select(None, node, pending)
        noisy, inner = state
        return selection.select(inner, node._replace(prior_logits=noisy), pending)

    return Selection(select, init, selection.needs_range)
