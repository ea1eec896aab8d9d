"""The policy improved by Q-values, and targets: the answer of a search.

A target is a function `(rng_key, root, state) -> (action, action_weights [A])` of one root's
statistics and the state of the selection at the root; the search maps it over the batch. It may be
called before the first simulation. An optional third result is the root's value; without it, the
root's value is the mean of the returns. Improved policies are based on completed Q-values
(Danihelka et al. 2022, section 4 and appendix D); simulations may follow them, too.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.arrays import as_logits
from jaxpgs.base import ROOTS, NodeStats
from jaxpgs.checks import by_root, check_number
from jaxpgs.search.policy import masked_argmax

Target = Callable[[chex.PRNGKey, NodeStats, Any], tuple[chex.Array, ...]]
# Maps a node's statistics to `[..., A]`; or a function of a tree and a node, as in mctx.
QTransform = Callable[[NodeStats], chex.Array] | Callable[[mctx.Tree, Any], chex.Array]


@dataclasses.dataclass(frozen=True)
class TargetOfActions:
    """A target that sees only the actions of roots whose further columns are chance outcomes.

    Attributes:
      target: the target.
      num_actions: A, how many columns are actions; they come first.
    """

    target: Target
    num_actions: int

    def __call__(
        self, rng_key: chex.PRNGKey, root: NodeStats, state: Any
    ) -> tuple[chex.Array, ...]:
        """Evaluates the target; its weights are `[A]`."""
        return self.target(rng_key, of_actions(root, self.num_actions), state)


def of_actions(node: NodeStats, num_actions: int) -> NodeStats:
    """Returns the statistics of the first A columns, without those of chance outcomes."""
    names = ("prior_logits", "visits", "value_sum", "valid", "lowest", "highest")
    found = {name: x for name in names if (x := getattr(node, name)) is not None}
    return node._replace(**{name: x[..., :num_actions] for name, x in found.items()})


def of_node(owner: str, qtransform: QTransform) -> Callable[[NodeStats], chex.Array]:
    """Returns a `qtransform` as a function of a node's statistics `[..., A]`.

    A function of a tree and a node, as in mctx, is given a tree of this node alone.

    Args:
      owner: the function whose argument it is, for the error message.
      qtransform: the user's argument.

    Raises:
      ValueError: if it is no function of one or of two arguments.
    """
    try:
        parameters = list(inspect.signature(qtransform).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    # Arguments with a default, or set by `functools.partial`, are settings.
    needed = [p for p in parameters if p.default is p.empty]
    own = [p for p in needed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    missing = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    if len(own) not in (1, 2) or missing:
        advice = f" It lacks {missing}: give them by functools.partial." if missing else ""
        raise ValueError(
            f"{owner} needs qtransform to be a function of a node's statistics, or of a tree and a "
            f"node as in mctx; got {qtransform!r}.{advice}"
        )
    if len(own) == 1:
        return qtransform  # type: ignore[return-value]

    def transform(node: NodeStats) -> chex.Array:
        call = lambda node: qtransform(_as_tree(node), jnp.int32(0))  # type: ignore[call-arg]  # noqa: E731
        # mctx's functions read one node, so the axes before A are mapped over.
        for _ in node.value.shape:
            call = jax.vmap(call)
        return call(node)

    return transform


def _as_tree(node: NodeStats) -> mctx.Tree:
    """Returns an mctx tree of one node, in which the Q-values are stored as rewards."""
    visits = node.visits.astype(jnp.int32)
    # As in mctx, the mean of a node's returns counts the network's value as one of them.
    total = jnp.sum(node.value_sum) + node.value
    count = 1 + jnp.sum(visits)
    zeros = 0 * node.value_sum
    one = {
        "node_visits": count,
        "raw_values": node.value,
        "node_values": total / count.astype(total.dtype),
        "parents": jnp.int32(-1),
        "action_from_parent": jnp.int32(-1),
        "children_index": visits * 0 - 1,
        "children_prior_logits": node.prior_logits,
        "children_visits": visits,
        # With a discount of 0, mctx computes Q-values from the rewards alone.
        "children_rewards": node.qvalues,
        "children_discounts": zeros,
        "children_values": zeros,
    }
    return mctx.Tree(
        **{name: x[None] for name, x in one.items()},
        embeddings=None,
        root_invalid_actions=~node.valid,
        extra_data=None,
    )


def completed_qvalues(node: NodeStats) -> chex.Array:
    """Returns the Q-values of all actions; unvisited actions get the node's mixed value.

    The mixed value (appendix D, eq. 33) averages the network's value and the Q-values of the
    visited actions, weighted by the prior.

    Args:
      node: statistics with axes `[..., A]`.

    Returns:
      `[..., A]`.

    Example:
      >>> found = jaxpgs.target.completed_qvalues(node)
      >>> round(float(found[0, 2]), 2)  # of the third action, which has not been tried
      0.35
    """
    tried = node.visits > 0
    prior = jax.nn.softmax(node.prior_logits, axis=-1)
    # An action with prior 0 may have been visited.
    prior = jnp.maximum(jnp.asarray(jnp.finfo(prior.dtype).tiny, prior.dtype), prior)
    # Eq. 33: the prior-weighted mean Q-value of the visited actions has the weight of all visits;
    # the network's value has the weight of one visit.
    mass = jnp.sum(jnp.where(tried, prior, 0.0), axis=-1, keepdims=True)
    share = prior * node.qvalues / jnp.where(tried, mass, 1.0)
    mean = jnp.sum(jnp.where(tried, share, 0.0), axis=-1, keepdims=True)
    total = jnp.sum(node.visits, axis=-1, keepdims=True).astype(prior.dtype)
    mixed = (node.value[..., None] + total * mean) / (total + 1)
    return jnp.where(tried, node.qvalues, mixed)


def qtransform_completed_by_mix_value(
    node: NodeStats,
    *,
    value_scale: float | chex.Array = 0.1,
    maxvisit_init: float | chex.Array = 50.0,
    rescale_values: bool = True,
    use_mixed_value: bool = True,
    epsilon: float | chex.Array = 1e-8,
    relative: bool = False,
) -> chex.Array:
    """The bonus that is added to logits: `sigma(Q) = (maxvisit_init + max n(a)) value_scale Q(a)`.

    Danihelka et al. 2022, section 4 and appendix D, and mctx's function of this name. To change the
    settings, give a `functools.partial` of it wherever a part takes a `qtransform`. Any function of
    a node's statistics is accepted there, and so are mctx's functions of a tree and a node.

    Args:
      node: statistics with axes `[..., A]`.
      value_scale: scale of sigma, at least 0.
      maxvisit_init: number of visits added to the largest visit count in sigma, at least 0.
      rescale_values: whether to rescale the completed Q-values of the node to [0, 1] first.
      use_mixed_value: whether unvisited actions get the mixed value (`completed_qvalues`); if not,
        they get the network's value of the node.
      epsilon: in units of the value, above 0: rescaling divides by the range of the Q-values, or by
        `epsilon` if it is larger. If the returns of all actions are nearly equal, a larger
        `epsilon` gives the prior more influence.
      relative: whether `epsilon` is in units of how much the returns of the search differ
        (`NodeStats.scale`), so that it fits rewards of any scale.

    Returns:
      `[..., A]`, for `softmax(logits + sigma)`.

    Raises:
      ValueError: if a number is not finite or out of range.

    Example:
      >>> jaxpgs.target.qtransform_completed_by_mix_value(node, value_scale=0.1).round(2)
      Array([[0.  , 5.2 , 1.09]], dtype=float32)
    """
    check_number("qtransform_completed_by_mix_value", "value_scale", value_scale, 0)
    check_number("qtransform_completed_by_mix_value", "maxvisit_init", maxvisit_init, 0)
    check_number("qtransform_completed_by_mix_value", "epsilon", epsilon, 0, open_low=True)
    node = node.relative() if relative else node
    if use_mixed_value:
        qvalues = completed_qvalues(node)
    else:
        qvalues = jnp.where(node.visits > 0, node.qvalues, node.value[..., None])
    if rescale_values:
        low = jnp.min(qvalues, axis=-1, keepdims=True)
        high = jnp.max(qvalues, axis=-1, keepdims=True)
        qvalues = (qvalues - low) / jnp.maximum(high - low, epsilon)
    most = jnp.max(node.visits, axis=-1, keepdims=True).astype(qvalues.dtype)
    return (maxvisit_init + most) * value_scale * qvalues


def improved_weights(node: NodeStats, bonus: chex.Array) -> chex.Array:
    """Returns `softmax(logits + bonus)` over the legal actions; 0 everywhere if there are none."""
    scores = jnp.where(node.valid, node.prior_logits + bonus, -jnp.inf)
    scores = jnp.where(jnp.any(node.valid, axis=-1, keepdims=True), scores, 0.0)
    return jnp.where(node.valid, jax.nn.softmax(scores, axis=-1), 0.0)


class SampledPolicy(NamedTuple):
    """A simulation policy that reads the statistics of the current node ("tree" only).

    Attributes:
      logits: `node -> [B, A]`, from the statistics of any number B of nodes, whose `prior_logits`
        are the logits of the adapted policy. The policy is the softmax of the result. If parameters
        adapt, the gradient flows through this function.
      by_counts: whether actions are chosen deterministically, one simulation after another, so that
        a node's visits come as close to the softmax as counts can. If False, they are sampled.

    Example:
      >>> flatter = jaxpgs.target.SampledPolicy(lambda node: 0.5 * node.prior_logits)
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 64, mode="tree", interior_selection=flatter
      ... )
    """

    logits: Callable[[NodeStats], chex.Array]
    by_counts: bool = False


def improved_policy(
    scale: float | chex.Array = 1.0,
    *,
    temperature: float | chex.Array = 1.0,
    qtransform: QTransform = qtransform_completed_by_mix_value,
    by_counts: bool = False,
) -> SampledPolicy:
    """Simulates with the policy improved by the statistics of the nodes.

    Actions follow `pi' = softmax((logits + scale sigma(Q)) / temperature)`. This makes a Monte
    Carlo search a tree search without virtual loss. If the policy adapts, sigma counts as a
    constant in its gradient.

    Deviation: simulations of Anthony et al. 2019 sample their actions. With `by_counts` a
    simulation takes the action with the largest `pi'(a) - n(a) / (1 + n)`, as inner nodes of Gumbel
    MuZero do (Danihelka et al. 2022, section 5), where visits include simulations in flight. Then a
    node's visits are distributed as `pi'` without sampling noise, and REINFORCE learns from them as
    if they had been sampled.

    Args:
      scale: weight of sigma, at least 0; 0 leaves the policy unchanged.
      temperature: above 0; a lower temperature selects the best action more often and makes the
        simulations of an update less diverse.
      qtransform: the bonus from the Q-values that is added to the logits, as in mctx.
      by_counts: whether actions follow the policy by visit counts; if not, they are sampled.

    Returns:
      A simulation policy, for `interior_selection`.

    Raises:
      ValueError: if a number is not finite or out of range.

    Example:
      >>> jax.nn.softmax(jaxpgs.target.improved_policy(temperature=0.5).logits(node)).round(2)
      Array([[0., 1., 0.]], dtype=float32)
    """
    check_number("improved_policy", "scale", scale, 0)
    check_number("improved_policy", "temperature", temperature, 0, open_low=True)
    transform = of_node("improved_policy", qtransform)

    def logits(node: NodeStats) -> chex.Array:
        lowest = jnp.finfo(node.prior_logits.dtype).min
        bonus = scale * transform(node)
        bonus = jax.lax.stop_gradient(bonus)  # the statistics count as constants
        improved = (node.prior_logits + bonus) / temperature
        return jnp.where(node.valid, jnp.maximum(improved, lowest), node.prior_logits)

    return SampledPolicy(logits, by_counts)


def visit_counts(temperature: float | chex.Array = 1.0) -> Target:
    """The visit distribution `n(a) / n` (Anthony et al. 2019, section 5.1).

    Args:
      temperature: at least 0, a number, or `[B]` or `[B, 1]`, one for each root. The action is
        sampled with probability proportional to `n(a)^(1 / temperature)`; 0 takes the most visited
        action, and among several the one with the largest prior. May be traced.

    Returns:
      A target whose weights are `n(a) / n`, whatever the temperature. Before the first simulation
      the prior replaces the visits. If no action is legal, the action is 0 and every weight is 0.

    Raises:
      ValueError: if the temperature is negative or not finite.

    Example:
      >>> search = jaxpgs.search.mcs_search(
      ...     recurrent_fn, 64, target=jaxpgs.target.visit_counts(temperature=1.0)
      ... )
    """
    check_number("visit_counts", "temperature", temperature, 0, by_root=True)

    def target(rng_key: chex.PRNGKey, root: NodeStats, state: Any) -> tuple[chex.Array, chex.Array]:
        del state
        visits = root.visits.astype(root.value_sum.dtype)
        total = jnp.sum(visits)
        prior = jnp.where(root.valid, jax.nn.softmax(root.prior_logits), 0.0)
        counts = jnp.where(total > 0, visits, prior)
        weights = counts / jnp.maximum(total, 1)
        noise = _noise(rng_key, temperature, weights)
        tried = counts > 0
        score = jnp.where(tried, as_logits(jnp.log(jnp.where(tried, counts, 1)) + noise), -jnp.inf)
        score = jax.lax.optimization_barrier(score)  # else both sides may be rounded differently
        # Ties are common at temperature 0; the prior decides among the best.
        best = tried & (score == jnp.max(score))
        action = jnp.argmax(jnp.where(best & root.valid, root.prior_logits, -jnp.inf))
        return jnp.where(jnp.any(tried), action, 0).astype(jnp.int32), weights

    return target


def completed_q(
    temperature: float | chex.Array = 1.0,
    *,
    qtransform: QTransform = qtransform_completed_by_mix_value,
) -> Target:
    """The prior improved by the Q-values: softmax of `logits + sigma(completed Q)`.

    Danihelka et al. 2022, section 4 and appendix D; Brosseit 2023, eq. 3.4. The Q-value of an
    unvisited action is a mix of the network's value and the Q-values of the others, weighted by the
    prior.

    Args:
      temperature: at least 0, a number, or `[B]` or `[B, 1]`, one for each root. The action is
        sampled with probability proportional to the weights to the power of `1 / temperature`; 0
        takes the largest. May be traced.
      qtransform: the bonus sigma from the Q-values that is added to the logits, as in mctx.

    Returns:
      A target. If no action is legal, the action is 0 and every weight is 0.

    Raises:
      ValueError: if the temperature is negative or not finite.

    Example:
      >>> knobs = {"adapt": "policy_head", "target": jaxpgs.target.completed_q()}
      >>> search = jaxpgs.search.pgs_search(recurrent_fn, 64, **knobs)
    """
    check_number("completed_q", "temperature", temperature, 0, by_root=True)
    transform = of_node("completed_q", qtransform)

    def target(rng_key: chex.PRNGKey, root: NodeStats, state: Any) -> tuple[chex.Array, chex.Array]:
        del state
        weights = improved_weights(root, transform(root))
        noise = _noise(rng_key, temperature, weights)
        action = masked_argmax(jnp.log(weights) + noise, root.valid)
        return jnp.where(jnp.any(root.valid), action, 0).astype(jnp.int32), weights

    return target


def best_value() -> Target:
    """Puts all weight on the action with the highest mean return (Seify 2020, eq. 5.3).

    For games of one player: a result that a simulation reached can be reached again, so the best
    value counts, however seldom the action was visited.

    Returns:
      A target whose weight is 1 for the visited action with the highest Q-value and 0 elsewhere;
      ties are broken at random. Before the first simulation it is the action with the largest
      prior. If no action is legal, the action is 0 and every weight is 0.

    Example:
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 64, target=jaxpgs.target.best_value())
    """

    def target(rng_key: chex.PRNGKey, root: NodeStats, state: Any) -> tuple[chex.Array, chex.Array]:
        del state
        tried = root.valid & (root.visits > 0)
        is_tried = jnp.any(tried)
        among = jnp.where(is_tried, tried, root.valid)
        scores = jnp.where(is_tried, root.qvalues, root.prior_logits)
        # Without a barrier both sides of the comparison may be rounded differently.
        scores = jax.lax.optimization_barrier(jnp.where(among, scores, -jnp.inf))
        best = among & (scores == jnp.max(scores))
        ties = jnp.where(best, jax.random.uniform(rng_key, best.shape), -1.0)
        action = jnp.argmax(ties).astype(jnp.int32)
        weights = jax.nn.one_hot(action, len(best), dtype=scores.dtype)
        return action, jnp.where(jnp.any(best), weights, 0.0)

    return target


def _noise(
    rng_key: chex.PRNGKey, temperature: float | chex.Array, weights: chex.Array
) -> chex.Array:
    """Returns noise to add to log weights to sample at a temperature; 0 at temperature 0."""
    if isinstance(temperature, int | float) and temperature == 0:
        return jnp.zeros_like(weights)  # the generator is expensive to compile
    if jnp.ndim(temperature):
        # A target sees one root; the axis that it is mapped over tells which one.
        num_roots = jax.lax.axis_size(ROOTS)
        rows = by_root("the target", "temperature", temperature, num_roots, weights.dtype)
        temperature = rows[jax.lax.axis_index(ROOTS), 0]
    return temperature * jax.random.gumbel(rng_key, weights.shape, weights.dtype)
