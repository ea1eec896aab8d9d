"""Experts: searches that play, and whose policies the network imitates."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.arrays import broadcast_keys
from jaxpgs.base import Params, RecurrentFn
from jaxpgs.checks import check_number
from jaxpgs.search import (
    batched_mcts_policy,
    extended_pgs_policy,
    gumbel_mcts_policy,
    gumbel_pgs_policy,
    mcs_policy,
    pgs_policy,
)
from jaxpgs.search.parts.target import completed_q
from jaxpgs.training.runtime import sharding

# The presets by name, whether they adapt the policy head, and whether they have their own noise.
# Folds in the keys of random moves; `chance_key` and searches fold in the two numbers above it.
_LUCK = 2**32 - 3

_PRESETS: dict[str, tuple[Callable[..., Any], bool, bool]] = {
    "pgs": (pgs_policy, True, False),
    "mcs": (mcs_policy, False, False),
    "mcts": (batched_mcts_policy, False, False),
    "extended_pgs": (extended_pgs_policy, True, False),
    "gumbel_pgs": (gumbel_pgs_policy, True, True),
    "gumbel_mcts": (gumbel_mcts_policy, False, True),
}
NAMES = (*_PRESETS, "gumbel")
ADAPTING = tuple(name for name, (_, adapts, _) in _PRESETS.items() if adapts)


class Decision(NamedTuple):
    """The answer of an expert for a batch of positions.

    Attributes:
      action: `[B]` an action sampled from the search's distribution, for exploration.
      best: `[B]` the best action by the search.
      policy: `[B, A]` the policy to imitate; zeros if the game is over.
      value: `[B]` the search's value of the position, from the view of the player to move.
      num_evaluations: `[B]` network evaluations of the search, for statistics.
      adapted_params: `[B, ...]` the parameters that the search adapted; `selfplay.play` passes them
        to the game's next move.
      visits: `[B, A]` int32, simulations by first action, for objectives that read them. None if
        the expert does not return them.
      qvalues: `[B, A]` their mean returns, from the view of the player to move; arbitrary for
        unvisited actions. None if the expert does not return them.
    """

    action: chex.Array
    best: chex.Array
    policy: chex.Array
    value: chex.Array
    num_evaluations: chex.Array | int = 0
    adapted_params: Params | None = None
    visits: chex.Array | None = None
    qvalues: chex.Array | None = None


# (params, rng_key, root, recurrent_fn, invalid_actions) -> Decision. If self-play keeps adapted
# parameters, there is a keyword argument `adapted_params`. There is one key, or `[B]` keys if the
# games are sharded over devices.
Expert = Callable[..., Decision]


def make_expert(
    name: str,
    num_simulations: int = 64,
    *,
    dirichlet_fraction: float | None = None,
    dirichlet_alpha: float | None = None,
    **knobs: Any,
) -> Expert:
    """Makes an expert from one of the presets, as in Anthony et al. 2019, section 5.

    Args:
      name: "pgs", "mcs", "mcts" (`batched_mcts_policy`), "extended_pgs", "gumbel_pgs" or
        "gumbel_mcts"; or "gumbel" for `mctx.gumbel_muzero_policy`.
      num_simulations: simulations per move.
      dirichlet_fraction: weight of the noise in the root's prior, 0.25 if None. The Gumbel searches
        explore without it.
      dirichlet_alpha: concentration of the noise, 0.12 if None.
      **knobs: further arguments of the search. By default its target is `completed_q(temperature)`
        with a `temperature` of 1, which samples the actions. Gumbel searches keep their own target.

    Returns:
      An expert.

    Raises:
      ValueError: if the name is unknown, or a Gumbel search is given Dirichlet noise.

    Example:
      >>> expert = jaxpgs.training.make_expert("gumbel_pgs", 32)
    """
    if name not in NAMES:
        raise ValueError(f"expert must be one of {NAMES} or a function, got {name!r}.")
    # None means the default, since 0 is a weight that callers may want.
    given = {"dirichlet_fraction": dirichlet_fraction, "dirichlet_alpha": dirichlet_alpha}
    noise = {"dirichlet_fraction": 0.25, "dirichlet_alpha": 0.12}
    noise |= {knob: x for knob, x in given.items() if x is not None}
    policy_fn, adapts, is_gumbel = _PRESETS.get(name, (None, False, True))
    if is_gumbel and (dirichlet_fraction or dirichlet_alpha is not None):
        raise ValueError(
            f"The expert {name!r} explores by Gumbel noise and takes no Dirichlet noise: leave "
            "dirichlet_fraction and dirichlet_alpha out, or give gumbel_scale; got "
            f"{dirichlet_fraction} and {dirichlet_alpha}."
        )
    if policy_fn is None:
        return gumbel(num_simulations, **knobs)
    defaults: dict[str, Any] = {} if is_gumbel else {"target": completed_q()} | noise
    # If the caller gives a target, the search rejects a temperature.
    if not is_gumbel and "target" not in knobs and knobs.get("temperature") is not None:
        defaults["target"] = completed_q(knobs.pop("temperature"))
    if adapts:
        defaults["adapt"] = "policy_head"
    return searcher(policy_fn, num_simulations, **(defaults | knobs))


def searcher(policy_fn: Callable[..., Any], num_simulations: int, **knobs: Any) -> Expert:
    """Makes an expert from one of this library's searches.

    Args:
      policy_fn: `jaxpgs.pgs_policy` or another with its arguments.
      num_simulations: simulations per move.
      **knobs: further arguments of `policy_fn`. The network imitates the target's weights. For
        exploration, the target must sample its actions, as `completed_q()` and `visit_counts()` do.

    Returns:
      An expert.

    Example:
      >>> expert = jaxpgs.training.experts.searcher(jaxpgs.gumbel_mcts_policy, 32)
    """

    def expert(
        params: Params,
        rng_key: chex.PRNGKey,
        root: mctx.RootFnOutput,
        recurrent_fn: RecurrentFn,
        invalid_actions: chex.Array,
        **kept: Params,
    ) -> Decision:
        output = policy_fn(
            params, rng_key, root, recurrent_fn, num_simulations, invalid_actions, **knobs, **kept
        )
        found = output.search_state
        return Decision(
            action=output.action,
            # The action was sampled for exploration, so the best one is taken from the weights.
            best=jnp.argmax(output.action_weights, axis=-1).astype(output.action.dtype),
            policy=output.action_weights,
            value=found.value,
            num_evaluations=found.num_evaluations,
            adapted_params=found.params,
            visits=found.visits,
            qvalues=found.qvalues,
        )

    return expert


def raw_policy() -> Expert:
    """Makes an expert of the network's own policy and value, without a search.

    Returns:
      An expert. Its action is sampled from the policy.

    Example:
      >>> expert = jaxpgs.training.experts.raw_policy()
    """

    def expert(
        params: Params,
        rng_key: chex.PRNGKey,
        root: mctx.RootFnOutput,
        recurrent_fn: RecurrentFn,
        invalid_actions: chex.Array,
    ) -> Decision:
        del params, recurrent_fn
        logits = jnp.where(invalid_actions, -jnp.inf, root.prior_logits)
        return Decision(
            action=_draw(rng_key, logits).astype(jnp.int32),
            best=jnp.argmax(logits, axis=-1).astype(jnp.int32),
            # In a finished game nothing is legal, and the softmax would be NaN.
            policy=jnp.where(invalid_actions, 0.0, jax.nn.softmax(logits, axis=-1)),
            value=root.value,
        )

    return expert


def epsilon_greedy(expert: Expert, epsilon: float) -> Expert:
    """Lets an expert evaluate positions of mostly random play (Brosseit 2023, section 5.4).

    Args:
      expert: the expert.
      epsilon: the probability of a random legal action, 0 to 1; the thesis uses 0.9. Otherwise the
        action is the expert's best.

    Returns:
      An expert with the same policy and value.

    Raises:
      ValueError: if `epsilon` is not from 0 to 1.
    """
    check_number("epsilon_greedy", "epsilon", epsilon, 0, 1)

    def explore(
        params: Params,
        rng_key: chex.PRNGKey,
        root: mctx.RootFnOutput,
        recurrent_fn: RecurrentFn,
        invalid_actions: chex.Array,
        **kept: Params,
    ) -> Decision:
        decision = expert(params, rng_key, root, recurrent_fn, invalid_actions, **kept)
        # Keys for each row that are neither the expert's nor, as `chance_key` is, the game's.
        keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, _LUCK)))(
            broadcast_keys(rng_key, len(invalid_actions))
        )
        at_random = _draw(keys[:, 0], jnp.where(invalid_actions, -jnp.inf, 0.0))
        coin = jax.vmap(jax.random.uniform)(keys[:, 1]) < epsilon
        action = jnp.where(coin, at_random.astype(decision.best.dtype), decision.best)
        return decision._replace(action=action)

    return explore


def fast_expert(expert: str | Expert, fast_simulations: int | Expert | None) -> Expert | None:
    """Makes the expert of the fast moves, without noise in the root's prior."""
    if fast_simulations is None or callable(fast_simulations):
        return fast_simulations
    if not isinstance(expert, str):
        raise ValueError(
            "fast_simulations may be a number where expert is a name. With an Expert give another "
            'one for the fast moves, such as make_expert("pgs", 16, dirichlet_fraction=0.0); got '
            f"{fast_simulations!r}."
        )
    # Fast moves should be strong and not explore (Wu 2019, section 3.1).
    return make_expert(expert, fast_simulations, dirichlet_fraction=0.0)


def alike(
    full: Callable[[], Decision], fast: Callable[[], Decision]
) -> tuple[Callable[[], Decision], Callable[[], Decision]]:
    """Makes two searches return the same structure, as the branches of `jax.lax.cond` must.

    Fields that only one of them returns are dropped, and the types are those of the first.
    """
    shapes = jax.eval_shape(full), jax.eval_shape(fast)
    wanted = Decision(*(
        x if jax.tree.structure(x) == jax.tree.structure(y) else None  # type: ignore[operator]
        for x, y in zip(*shapes, strict=True)
    ))  # fmt: skip

    def tell(search: Callable[[], Decision]) -> Decision:
        found = search()
        # An expert may give one number for all positions.
        count = jnp.broadcast_to(found.num_evaluations, found.value.shape)
        return jax.tree.map(
            lambda shape, x: None if shape is None else x.astype(shape.dtype),
            wanted,
            found._replace(num_evaluations=count),
            is_leaf=lambda x: x is None,
        )

    return functools.partial(tell, full), functools.partial(tell, fast)


def gumbel(num_simulations: int = 16, **knobs: Any) -> Expert:
    """Makes an expert of `mctx.gumbel_muzero_policy`; its policy is improved by completed Q-values.

    Args:
      num_simulations: simulations per move.
      **knobs: further arguments of the search.

    Returns:
      An expert. Its action includes the search's own noise; the best action is that of its policy.
    """

    def expert(
        params: Params,
        rng_key: chex.PRNGKey,
        root: mctx.RootFnOutput,
        recurrent_fn: RecurrentFn,
        invalid_actions: chex.Array,
    ) -> Decision:
        # mctx takes one key, so its noise depends on how the games are sharded.
        rng_key = sharding.one_key(rng_key)
        output = mctx.gumbel_muzero_policy(
            params, rng_key, root, recurrent_fn, num_simulations, invalid_actions, **knobs
        )
        # mctx's action includes the Gumbel noise; its weights do not.
        best = jnp.argmax(output.action_weights, axis=-1).astype(output.action.dtype)
        found = output.search_tree.summary()
        return Decision(
            action=output.action,
            best=best,
            # In a finished game mctx's weights are on illegal actions.
            policy=jnp.where(invalid_actions, 0.0, output.action_weights),
            value=found.value,
            num_evaluations=num_simulations,
            visits=found.visit_counts,
            qvalues=found.qvalues,
        )

    return expert


def _draw(rng_key: chex.PRNGKey, logits: chex.Array) -> chex.Array:
    """Samples from each row of logits with its own key, so that it is the same on any device."""
    keys = broadcast_keys(rng_key, len(logits))
    return jax.vmap(jax.random.categorical)(keys, logits)
