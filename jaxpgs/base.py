"""Types that every part of the search shares.

Axis letters, used in all shape comments of this package:

- `B` roots searched at once,
- `K` simulations per update, `N` simulations in all (about `N / K` updates),
- `T` the largest number of steps of a simulation,
- `A` actions.

Returns are from the view of the player to move: `G_t = reward_{t+1} + discount_{t+1} G_{t+1}`, with
discount -1 between alternating opponents and 0 at the end of the episode. So one formula covers
games of one and of two players.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import mctx

ROOTS = "roots of a search"  # the axis over which targets are mapped
Params = Any  # a pytree of arrays
Embedding = Any  # a pytree of arrays `[B, ...]`
# A boolean pytree over the parameters, a predicate on a leaf's path and value, dotted names such as
# "policy_head", or "everything", which means all parameters except batch normalisation.
Adapt = Any


class Env(Protocol):
    """A game, as in `jaxpgs.envs` and pgx: pure functions on a state of one game.

    A state is a pytree with `current_player` `[]` int32, `rewards` `[num_players]` of the last
    move, `terminated` `[]` bool and `legal_action_mask` `[A]` bool.

    Example:
      >>> def count(env: jaxpgs.base.Env) -> int:
      ...     return int(env.init(jax.random.key(0)).legal_action_mask.sum())
      >>> count(env)
      9
    """

    @property
    def num_actions(self) -> int:
        """The number of actions A."""

    @property
    def num_players(self) -> int:
        """The number of players, 1 or 2 for most games here."""

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of an observation."""

    def init(self, key: chex.PRNGKey, /) -> Any:
        """Returns a game's first state."""

    @property
    def step(self) -> Callable[..., Any]:
        """`step(state, action)`, the next state; a game with chance takes a key as well."""

    def observe(self, state: Any, /) -> Any:
        """Returns what the network sees of a state."""

    def __hash__(self) -> int: ...


class RecurrentFn(Protocol):
    """A model, as mctx calls it: plays one action in each state and evaluates the next states.

    A search calls it with one state of each of its B roots, once for each of the K simulations of
    an update, under `jax.vmap` over K. So a closure, or the parameters, may hold a row for each
    root. If the search is given a key for each root, a call gets K states of one root instead. If
    parameters inside the model adapt, a call gets one state, as each root has its own parameters;
    a model that needs all rows then gets B, of which only one is used, at B times the cost and with
    a warning. All states of a call share one key, so draw random outcomes for each state, with the
    shape `action.shape`: a scalar draw would be the same for all states. If each state needs a key,
    use `jax.random.split(rng_key, len(action))`. No gradient flows through a search's results.

    Example:
      >>> def walk(params, rng_key, action, position):  # a step, unless chance forbids it
      ...     goes = jax.random.bernoulli(rng_key, 0.9, action.shape)  # one draw for each state
      ...     position = position + (action - 1) * goes
      ...     zero = jnp.zeros(action.shape)
      ...     step = mctx.RecurrentFnOutput(
      ...         reward=-1.0 * abs(position), discount=zero + 0.9, value=zero,
      ...         prior_logits=jnp.zeros((*action.shape, 3)),
      ...     )
      ...     return step, position
      >>> walk(None, rng_key, jnp.array([0, 2]), jnp.array([3, -3]))[1].shape
      (2,)
    """

    def __call__(
        self, params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding, /
    ) -> tuple[mctx.RecurrentFnOutput, Embedding]:
        """Plays the actions.

        Args:
          params: the network's parameters.
          rng_key: one key.
          action: `[B]` int32, one for each state.
          embedding: a pytree of arrays `[B, ...]`, the states.

        Returns:
          `mctx.RecurrentFnOutput` with `reward`, `discount` and `value` `[B]` and `prior_logits`
          `[B, A]`; and the embeddings of the states after the actions.
        """


class Expansion(NamedTuple):
    """A network evaluation without the policy.

    Attributes:
      reward: `[B]` reward of the step that led here.
      discount: `[B]` its discount.
      value: `[B]` the network's value.
      features: `[B, ...]` a pytree, what the policy is computed from.
      finite: `[B]` bool, whether the model's numbers were finite; the search fills it in.

    Example:
      >>> expansion, _ = recurrent_fn.expand(params, rng_key, jnp.array([0, 4]), states)
      >>> expansion.features.shape  # what the policy head is given
      (2, 8)
    """

    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    features: Any
    finite: Any = None


ExpandFn = Callable[[Params, chex.PRNGKey, chex.Array, Embedding], tuple[Expansion, Embedding]]


@dataclasses.dataclass(frozen=True)
class SplitRecurrentFn:
    """A `recurrent_fn` in two parts, so that a search can cache the first and adapt the second.

    It is called like any other `recurrent_fn`, by mctx as well. `make_recurrent_fn` returns one if
    the network can be split; for your own model write your own. The parameters that a search adapts
    may occur in `policy` only.

    Attributes:
      expand: `(params, rng_key, action [B], embedding) -> (Expansion, embedding)`: plays the
        actions and evaluates the next states, except for the policy.
      policy: `(params, features [B, ...], embedding [B, ...]) -> logits [B, A]`, illegal actions at
        the lowest float.
      max_batch: about the most states that a search evaluates at once; None is all K of all roots,
        which suits an accelerator. If it is set, rows may be grouped in any way. Convolutions on a
        CPU are faster in batches that fit its cache.

    Example:
      >>> expansion, after = recurrent_fn.expand(params, rng_key, jnp.array([0, 4]), states)
      >>> recurrent_fn.policy(params, expansion.features, after).shape
      (2, 9)
    """

    expand: ExpandFn
    policy: Callable[[Params, Any, Embedding], chex.Array]
    max_batch: int | None = None

    def __call__(
        self, params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: Embedding
    ) -> tuple[mctx.RecurrentFnOutput, Embedding]:
        """Computes both parts; see `RecurrentFn`."""
        expansion, embedding = self.expand(params, rng_key, action, embedding)
        return self.complete(params, expansion, embedding), embedding

    def complete(
        self, params: Params, expansion: Expansion, embedding: Embedding
    ) -> mctx.RecurrentFnOutput:
        """Computes the second part: adds the policy to what `expand` returned."""
        # A gradient through many steps keeps the features of each step and recomputes the head,
        # whose intermediate results may be several times as large.
        policy = jax.checkpoint(functools.partial(self.policy, params), prevent_cse=False)
        return mctx.RecurrentFnOutput(
            reward=expansion.reward,
            discount=expansion.discount,
            prior_logits=policy(expansion.features, embedding),
            value=expansion.value,
        )


class NodeStats(NamedTuple):
    """What is known at a node: at the root of each search, or at an inner node of a tree.

    Attributes:
      prior_logits: `[B, A]` the network's logits, without noise; illegal actions hold the lowest
        float.
      value: `[B]` the network's value of the node.
      visits: `[B, A]` int32, simulations so far that took each action.
      value_sum: `[B, A]` the sum of their returns, from the view of the player to move; float32 or
        wider.
      valid: `[B, A]` bool, True where the action is legal.
      lowest: `[B, A]` the smallest of these returns, inf where there is none; None unless the
        selection needs it (`Selection.needs_range`).
      highest: `[B, A]` the greatest of these returns, -inf where there is none; None like `lowest`.
      scale: `[B]` how much returns differ in this search: the greatest distance so far between the
        return of a simulation and the network's value of the root, and at least 1/128 of that
        value; None means 1.

    Example:
      >>> node.qvalues
      Array([[0.2, 0.9, 0. ]], dtype=float32)
    """

    prior_logits: chex.Array
    value: chex.Array
    visits: chex.Array
    value_sum: chex.Array
    valid: chex.Array
    lowest: chex.Array | None = None
    highest: chex.Array | None = None
    scale: chex.Array | None = None

    def relative(self) -> "NodeStats":
        """The same statistics, relative to `value` and in units of `scale`."""
        if self.scale is None:
            return self
        unit = jnp.maximum(self.scale, jnp.finfo(self.scale.dtype).tiny)[..., None]
        value = self.value[..., None]
        # The sum of the returns, each minus the value of the node.
        total = self.value_sum - self.visits.astype(value.dtype) * value
        names = ("lowest", "highest")
        found = {n: (x - value) / unit for n in names if (x := getattr(self, n)) is not None}
        return self._replace(
            value=0 * self.value, value_sum=total / unit, scale=self.scale * 0 + 1, **found
        )

    @property
    def qvalues(self) -> chex.Array:
        """`[B, A]` mean return by action, 0 for actions that were never tried."""
        return self.value_sum / jnp.maximum(self.visits, 1).astype(self.value_sum.dtype)


def add_returns(
    stats: NodeStats, actions: chex.Array, returns: chex.Array, started: chex.Array
) -> NodeStats:
    """Adds the returns `[B, K]` of the simulations that were started to the root's statistics."""
    chosen = jax.nn.one_hot(actions, stats.visits.shape[-1], dtype=stats.value_sum.dtype)
    chosen = jnp.where(started[:, :, None], chosen, 0.0)
    returns = returns.astype(chosen.dtype)
    if stats.lowest is not None and stats.highest is not None:
        taken, returned = chosen > 0, returns[:, :, None]
        lowest = jnp.min(jnp.where(taken, returned, jnp.inf), axis=1)
        highest = jnp.max(jnp.where(taken, returned, -jnp.inf), axis=1)
        stats = stats._replace(
            lowest=jnp.minimum(stats.lowest, lowest), highest=jnp.maximum(stats.highest, highest)
        )
    distance = jnp.max(jnp.where(started, jnp.abs(returns - stats.value[:, None]), 0.0), axis=-1)
    return stats._replace(
        scale=distance if stats.scale is None else jnp.maximum(stats.scale, distance),
        visits=stats.visits + jnp.sum(chosen, axis=1).astype(jnp.int32),
        value_sum=stats.value_sum + jnp.sum(chosen * returns[:, :, None], axis=1),
    )


class Path(NamedTuple):
    """What a truncation knows about the simulations, in the state where each may stop.

    Attributes:
      depth: `[B, K]` int32, number of actions taken from the root, at least 1.
      code: `[B, K]` uint32, a hash of the sequence of those actions.
      log_prob: `[B, K]` log probability of the sequence: the prior's for the first action, the
        simulation policy's for the others.
      alive: `[B, K]` bool, False where the simulation has already stopped.
      visits: `[B, K]` int32, earlier simulations with the same first action.
      new: `[B, K]` bool, True where no simulation of an earlier update has taken this sequence.
      simulation: `[B, K]` int32, the number n of the simulation, from 0.

    Example:
      >>> stop = lambda path: path.depth >= 1 + path.visits  # deeper where visited more
      >>> rule = jaxpgs.truncation.Truncation(
      ...     stop, max_depth=lambda num_simulations: num_simulations
      ... )
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 8, truncation=rule, mode="rollouts")
    """

    depth: chex.Array
    code: chex.Array
    log_prob: chex.Array
    alive: chex.Array
    visits: chex.Array
    new: chex.Array
    simulation: chex.Array


class PolicyTerms(NamedTuple):
    """What an objective may use of the simulation policy, per step; differentiable.

    Entry t is about the state `s_t` in which the simulation policy chose `a_t`. It is 0 at t = 0,
    where the root's selection chose the action, and where step t was not taken.

    Attributes:
      log_prob: `[T, B, K]` log probability of `a_t`. Where a selection chooses all actions, as in a
        tree search, it is 0, or NaN if the probability of `a_t` underflows.
      entropy: `[T, B, K]` entropy of the policy in nats.
      kl_to_prior: `[T, B, K]` `KL(policy || prior)`, in nats; 0 everywhere unless the objective
        depends on it, since it requires the prior's policy as well.
      kl_from_prior: `[T, B, K]` `KL(prior || policy)`, likewise.
    """

    log_prob: chex.Array
    entropy: chex.Array
    kl_to_prior: chex.Array
    kl_from_prior: chex.Array


class Trajectory(NamedTuple):
    """The simulations of one update, step by step.

    Step t takes action `a_t` in `s_t` and reaches `s_{t+1}`. Everything is 0 after a simulation has
    stopped. Only the fields of `PolicyTerms` are differentiable with respect to the adapted
    parameters.

    Attributes:
      alive: `[T, B, K]` bool, True where step t was taken.
      reward: `[T, B, K]` reward of step t.
      discount: `[T, B, K]` discount of step t.
      value: `[T, B, K]` the network's value of `s_{t+1}`.
      log_prob: `[T, B, K]` as in `PolicyTerms`.
      entropy: `[T, B, K]` as in `PolicyTerms`.
      kl_to_prior: `[T, B, K]` as in `PolicyTerms`.
      kl_from_prior: `[T, B, K]` as in `PolicyTerms`.
      depth: `[B, K]` int32, number of steps taken.
      limited: `[B, K]` bool, whether `max_depth` ended the simulation.
      num_evaluations: `[B]` int32, states whose network evaluation was used and not yet known.
      num_calls: `[B]` int32, sequential network calls, the same for all roots.
      last: `[B, K, ...]` the embeddings of the states where the simulations stopped; None unless
        the search keeps the best of these states.
      not_finite: `[B]` int32, how many of the evaluations had a number that is not finite.

    Example:
      >>> mean_value = lambda trajectory: jnp.mean(trajectory.value, axis=0) + 0 * trajectory.reward
      >>> search = jaxpgs.search.mcs_search(recurrent_fn, 8, backup=mean_value)
    """

    alive: chex.Array
    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    log_prob: chex.Array
    entropy: chex.Array
    kl_to_prior: chex.Array
    kl_from_prior: chex.Array
    depth: chex.Array
    limited: chex.Array
    num_evaluations: chex.Array
    num_calls: chex.Array
    last: Any = None
    not_finite: Any = None

    @property
    def terms(self) -> PolicyTerms:
        """The differentiable fields."""
        return PolicyTerms(*(getattr(self, name) for name in PolicyTerms._fields))


class SearchSummary(NamedTuple):
    """What is known at the roots, in the form of `mctx.Tree.summary`.

    Attributes:
      visit_counts: `[B, A]` simulations by first action, as floats.
      visit_probs: `[B, A]` their shares, uniform before the first simulation.
      value: `[B]` mean of the returns of all simulations and the network's value.
      qvalues: `[B, A]` mean return by first action, 0 for actions never tried.

    Example:
      >>> output.search_tree.summary().visit_probs.sum(axis=-1)
      Array([1., 1.], dtype=float32)
    """

    visit_counts: chex.Array
    visit_probs: chex.Array
    value: chex.Array
    qvalues: chex.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SearchState:
    """The statistics, adapted parameters and diagnostics of a finished search.

    Attributes:
      visits: `[B, A]` int32 simulations by first action.
      qvalues: `[B, A]` mean return by first action, from the view of the player to move; the lowest
        float for actions never visited, so that `qvalues.max(axis=-1)` is the value of the best
        action tried; 0 where no action is legal at all.
      value: `[B]` mean return of all simulations, or, in a Gumbel search, the value of
        `action_weights` by completed Q-values (`gumbel_target`); the network's value before the
        first simulation, and 0 where no action is legal.
      params: the adapted parameters: a pytree like `params` whose adapted leaves have a leading
        axis B and whose other leaves are None. The next search of the game takes it as
        `adapted_params`.
      num_evaluations: `[B]` int32, network evaluations that the simulations used.
      num_calls: `[]` int32, sequential network calls, each on `B * K` states.
      depth: `[B]` mean number of steps of a simulation.
      depth_limited: `[B]` the share of the simulations that `max_depth` ended.
      entropy: `[B]` mean entropy of the simulation policy, in nats, over the states it acted in.
      gradient_norm: `[B]` mean global norm of the gradient, over the updates.
      skipped_updates: `[B]` int32, updates skipped because the gradient, or the optimizer's step,
        was not finite.
      not_finite: `[B]` int32, how many evaluations, including the root's, had a reward, discount,
        value or logit that was NaN or infinite (except logits of -inf) and was replaced by 0, or by
        the lowest logit. If it is above 0, look for an error in the network or the rules. A model's
        policy and value after the end of a game do not count. Where a search adapts part of a
        network, logits count at the root only: below it they belong to no single evaluation.
      nodes: the visited states of "tree", None for "rollouts". They take most of a search's memory,
        so do not return them from the jitted function unless you need them.
      best: `[B, ...]` the embedding with the highest score among the root's and those in which
        simulations stopped, if `best_of` was given, else None.
      raw_value: `[B]` the network's value of the root.
      prior_logits: `[B, A]` the network's logits of the root, without noise; illegal actions hold
        the lowest float.

    Example:
      >>> output.search_state.visits.sum(axis=-1)
      Array([16, 16], dtype=int32)
      >>> output.search_state.params["policy_head"]["linear"]["kernel"].shape  # one for each root
      (2, 8, 9)
    """

    visits: chex.Array
    qvalues: chex.Array
    value: chex.Array
    params: Params
    num_evaluations: chex.Array
    num_calls: chex.Array
    depth: chex.Array
    depth_limited: chex.Array
    entropy: chex.Array
    gradient_norm: chex.Array
    skipped_updates: chex.Array
    not_finite: chex.Array
    nodes: Any = None
    best: Any = None
    raw_value: Any = None
    prior_logits: Any = None

    def summary(self) -> SearchSummary:
        """Returns the statistics of the roots under the names of mctx's summary.

        Example:
          >>> output.search_state.summary().visit_counts.sum(axis=-1)
          Array([16., 16.], dtype=float32)
        """
        counts = self.visits.astype(self.value.dtype)
        total = jnp.sum(counts, axis=-1, keepdims=True)
        probs = jnp.where(total > 0, counts / jnp.maximum(total, 1), 1 / counts.shape[-1])
        qvalues = jnp.where(counts > 0, self.qvalues, 0.0)
        value = jnp.sum(counts * qvalues, axis=-1) + self.raw_value
        return SearchSummary(counts, probs, value / (1 + total[:, 0]), qvalues)

    def replace(self, **changes: Any) -> "SearchState":
        """Returns a copy with other values in the named fields."""
        return dataclasses.replace(self, **changes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyOutput:
    """The result of a search, with the fields of `mctx.PolicyOutput`.

    Attributes:
      action: `[B]` int32, the proposed action.
      action_weights: `[B, A]` the search policy, a target for training.
      search_state: statistics, adapted parameters and diagnostics.

    Example:
      >>> output.action.shape, output.action_weights.shape
      ((2,), (2, 9))
    """

    action: chex.Array
    action_weights: chex.Array
    search_state: SearchState

    @property
    def search_tree(self) -> SearchState:
        """The search's statistics, for `output.search_tree.summary()` as in mctx."""
        return self.search_state

    def replace(self, **changes: Any) -> "PolicyOutput":
        """Returns a copy with other values in the named fields, like the method of mctx."""
        return dataclasses.replace(self, **changes)
