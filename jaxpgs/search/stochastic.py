"""Tree search for games with chance: decision nodes and chance nodes in one tree.

Antonoglou et al. 2022, section 4 (Stochastic MuZero). The player's action leads from a state to an
afterstate, and chance leads from there to the next state. Each of these transitions has a model.
They are joined into one `recurrent_fn` over A actions and C outcomes, which are numbered from A
on, and searched by `batched_mcts_search`. A chance node is one whose policy is over outcomes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.arrays import cast_logits, statistics_dtype
from jaxpgs.base import Embedding, NodeStats, Params, PolicyOutput, RecurrentFn
from jaxpgs.checks import check_part
from jaxpgs.search.definition import Search
from jaxpgs.search.loop import run
from jaxpgs.search.options import (
    MCSOptions,
    MCSPolicyOptions,
    RootOptions,
    split_options,
    takes_options,
)
from jaxpgs.search.parts.selection import Selection, refuse_rounds
from jaxpgs.search.parts.target import TargetOfActions, of_actions, visit_counts
from jaxpgs.search.policy import masked_argmax
from jaxpgs.search.presets.pgs import batched_mcts_search

# `(params, rng_key, action [B], state) -> (mctx.DecisionRecurrentFnOutput, afterstate)`, and
# `(params, rng_key, outcome [B], afterstate) -> (mctx.ChanceRecurrentFnOutput, state)`.
DecisionRecurrentFn = Callable[..., tuple[Any, Embedding]]
ChanceRecurrentFn = Callable[..., tuple[Any, Embedding]]


class StochasticState(NamedTuple):
    """The embedding of a node: a state in a decision node, an afterstate in a chance node.

    Attributes:
      state: `[B, ...]` like the root's embedding; zeros in chance nodes.
      afterstate: `[B, ...]` as `decision_recurrent_fn` returns it; zeros in decision nodes.

    Example:
      >>> wide, _ = jaxpgs.search.stochastic_root(params, root, decision_fn)
      >>> wide.embedding.state is root.embedding
      True
    """

    state: Embedding
    afterstate: Embedding


def stochastic_root(
    params: Params,
    root: mctx.RootFnOutput,
    decision_recurrent_fn: DecisionRecurrentFn,
    invalid_actions: chex.Array | None = None,
) -> tuple[mctx.RootFnOutput, chex.Array]:
    """Returns roots and illegal actions of A + C columns for `stochastic_mcts_search`.

    Args:
      params: the network's parameters.
      root: the roots, with A actions.
      decision_recurrent_fn: the model of the player's actions; only shapes of its results are used.
      invalid_actions: `[B, A]`, 1 where the action is illegal.

    Returns:
      The roots and the illegal actions `[B, A + C]`, for `init`, `run` and `search_for`. No chance
      outcome is legal at a root.

    Raises:
      ValueError: if the results of `decision_recurrent_fn` have other shapes.

    Example:
      >>> wide, illegal = jaxpgs.search.stochastic_root(params, root, decision_fn)
      >>> wide.prior_logits.shape, illegal.sum(axis=-1)  # 9 actions and 2 outcomes
      ((2, 11), Array([2, 2], dtype=int32))
    """
    rows = trees.zero_rows(root.prior_logits > 0)
    # The shapes give the number of outcomes; nothing is evaluated.
    told, afterstate = trees.eval_shape(
        decision_recurrent_fn, params, jax.random.key(0), rows, root.embedding
    )
    _check_decision(told, rows)
    num_outcomes = told.chance_logits.shape[-1]
    if invalid_actions is None:
        invalid_actions = (root.prior_logits > 0) & False  # not times 0, which is NaN for inf
    illegal = jnp.asarray(invalid_actions).astype(bool).astype(jnp.int32)

    def widen(x: chex.Array, value: int) -> chex.Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, num_outcomes)], constant_values=value)

    # The player decides at a root, so its afterstate is empty.
    nothing = jax.tree.map(lambda x: trees.zeros(x.shape, x.dtype, rows), afterstate)
    wide = mctx.RootFnOutput(
        prior_logits=widen(root.prior_logits, 0),
        value=root.value,
        embedding=StochasticState(root.embedding, nothing),
    )
    return wide, widen(illegal, 1)


def _join(
    decision_recurrent_fn: DecisionRecurrentFn,
    chance_recurrent_fn: ChanceRecurrentFn,
    num_actions: int,
) -> RecurrentFn:
    """Joins the two models into one of A + C actions.

    Both are called with all rows, as in mctx. Rows that belong to the other model hold zeros, and
    their results are discarded.
    """

    def recurrent_fn(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, embedding: StochasticState
    ) -> tuple[mctx.RecurrentFnOutput, StochasticState]:
        # Numbers from A on are chance outcomes.
        by_chance = action >= num_actions
        keys = jax.random.split(rng_key)
        # Chance rows may take any action, since its result is discarded.
        chosen = jnp.where(by_chance, 0, action)
        moved, afterstate = decision_recurrent_fn(params, keys[0], chosen, embedding.state)
        outcome = jnp.where(by_chance, action - num_actions, 0)
        drawn, state = chance_recurrent_fn(params, keys[1], outcome, embedding.afterstate)
        _check_decision(moved, action)
        shapes = dict.fromkeys(("value", "reward", "discount"), action.shape)
        shapes["action_logits"] = (*action.shape, num_actions)
        _check("chance_recurrent_fn", drawn, shapes)
        dtype = statistics_dtype(
            moved.chance_logits, moved.afterstate_value, drawn.action_logits, drawn.value
        )
        lowest = jnp.finfo(dtype).min

        def logits(x: chex.Array, before: int, after: int) -> chex.Array:
            x = cast_logits(x, dtype)
            return jnp.pad(x, [(0, 0), (before, after)], constant_values=lowest)

        num_outcomes = moved.chance_logits.shape[-1]
        told = (drawn.reward, drawn.discount, drawn.value)
        reward, discount, value = (jnp.asarray(x).astype(dtype) for x in told)
        output = mctx.RecurrentFnOutput(
            # A decision has no reward of its own: reward and discount come with the outcome.
            reward=jnp.where(by_chance, reward, 0.0),
            discount=jnp.where(by_chance, discount, 1.0),
            prior_logits=jnp.where(
                by_chance[:, None],
                logits(drawn.action_logits, 0, num_outcomes),
                logits(moved.chance_logits, num_actions, 0),
            ),
            value=jnp.where(by_chance, value, moved.afterstate_value.astype(dtype)),
        )
        # Each node holds a state or an afterstate, and zeros in place of the other.
        after = StochasticState(
            trees.where(by_chance, state, _zeros(state)),
            trees.where(by_chance, _zeros(afterstate), afterstate),
        )
        return output, after

    return recurrent_fn


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda x: trees.on_numbers(jnp.zeros_like, jnp.asarray(x)), tree)


def _check_decision(output: Any, action: chex.Array) -> None:
    """Checks the output of the decision model; there may be any number of chance outcomes."""
    num_outcomes = (1, *jnp.shape(output.chance_logits))[-1]
    shapes = {"chance_logits": (*action.shape, num_outcomes), "afterstate_value": action.shape}
    _check("decision_recurrent_fn", output, shapes)


def _check(owner: str, output: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises `ValueError` where a model's output has a field of another shape."""
    for name, wanted in shapes.items():
        got = jnp.shape(getattr(output, name))
        if got != wanted:
            raise ValueError(
                f"{owner} must return {name} of shape {list(wanted)}, a row for each action that "
                f"it is given; got {list(got)}."
            )


def with_chance(selection: Selection, num_actions: int) -> Selection:
    """Extends a selection of actions to chance outcomes, for nodes of both kinds.

    A chance node takes the outcome with the largest `p / (1 + n)`, where n counts its visits and
    those pending. So the visits are distributed like the probabilities.
    """
    refuse_rounds("stochastic_mcts_search", selection)

    def init(rng_key: chex.PRNGKey, root: NodeStats, num_simulations: int) -> Any:
        return selection.init(rng_key, of_actions(root, num_actions), num_simulations)

    def select(state: Any, node: NodeStats, pending: chex.Array) -> chex.Array:
        # A node is of one kind, so one of the two choices is discarded.
        action = selection.select(state, of_actions(node, num_actions), pending[:, :num_actions])
        possible = node.valid[:, num_actions:]
        tried = (node.visits.astype(pending.dtype) + pending)[:, num_actions:]
        shares = jax.nn.softmax(node.prior_logits[:, num_actions:], axis=-1)
        # The largest p / (1 + n), where pending simulations count as visits.
        outcome = num_actions + masked_argmax(shares / (tried + 1), possible)
        return jnp.where(jnp.any(possible, axis=-1), outcome, action)

    return Selection(select, init, selection.needs_range)


@takes_options
def stochastic_mcts_search(
    decision_recurrent_fn: DecisionRecurrentFn,
    chance_recurrent_fn: ChanceRecurrentFn,
    num_simulations: int,
    *,
    num_actions: int,
    max_depth: int | None = None,
    **options: Unpack[MCSOptions],
) -> Search:
    """Stochastic MuZero's tree search (Antonoglou et al. 2022), K leaves at a time.

    `batched_mcts_search` with chance: decision nodes use MuZero's PUCT, and chance nodes take the
    outcome with the largest `p / (1 + n)`. So Q-values are means over chance. With K = 1
    (`simulations_per_update=1`) and no noise it makes the choices of
    `mctx.stochastic_muzero_policy`, except for ties. With a larger K, simulations in flight count
    as visits in nodes of both kinds. Other defaults are mctx's, too: `muzero_puct()` for actions at
    the root and below, `visit_counts()` as the target, and Dirichlet noise.

    States and afterstates count alike: each is a node, a step of a simulation and of `max_depth`,
    and one evaluation, for which both models are called. The search has A + C actions: begin it
    with the result of `stochastic_root`. `search_state` then has A + C columns, and those of chance
    outcomes are 0; the answer has A columns.

    Example:
      >>> search = jaxpgs.search.stochastic_mcts_search(decision_fn, chance_fn, 32, num_actions=9)
      >>> wide, illegal = jaxpgs.search.stochastic_root(params, root, decision_fn)
      >>> jaxpgs.search.run(search, params, rng_key, wide, illegal).action_weights.shape
      (2, 9)
    """
    chosen: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
    if "target" not in chosen:
        chosen["target"] = visit_counts(chosen.pop("temperature", 1.0))
    if "root_selection" not in chosen:
        # The defaults of `mctx.stochastic_muzero_policy`.
        mctxs = {"pb_c_init": 1.25, "dirichlet_fraction": 0.25, "dirichlet_alpha": 0.3}
        chosen = mctxs | chosen
    recurrent_fn = _join(decision_recurrent_fn, chance_recurrent_fn, num_actions)
    search = batched_mcts_search(recurrent_fn, num_simulations, max_depth=max_depth, **chosen)
    inner: Any = search.interior_selection
    owner, example = "stochastic_mcts_search", "jaxpgs.selection.muzero_puct()"
    check_part(owner, "interior_selection", inner, Selection, example)
    return dataclasses.replace(
        search,
        root_selection=with_chance(search.root_selection, num_actions),
        interior_selection=with_chance(inner, num_actions),
        target=TargetOfActions(search.target, num_actions),
    )


@takes_options
def stochastic_mcts_policy(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    decision_recurrent_fn: DecisionRecurrentFn,
    chance_recurrent_fn: ChanceRecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    **options: Unpack[MCSPolicyOptions],
) -> PolicyOutput:
    """Runs `stochastic_mcts_search`, with the arguments of `mctx.stochastic_muzero_policy`.

    The answer, `visits`, `qvalues`, `prior_logits` and `summary()` have the A actions of the root.
    `nodes` have A + C columns. To continue from them after an action and a chance outcome, give the
    next search `nodes=reroot(reroot(nodes, action, ...), num_actions + outcome, ...)`.

    Example:
      >>> models = decision_fn, chance_fn
      >>> output = jaxpgs.stochastic_mcts_policy(params, rng_key, root, *models, 4)
      >>> output.search_state.visits.sum(axis=-1)
      Array([4, 4], dtype=int32)
    """
    kept, chosen = split_options(options, RootOptions)
    num_actions = root.prior_logits.shape[-1]
    search = stochastic_mcts_search(
        decision_recurrent_fn,
        chance_recurrent_fn,
        num_simulations,
        num_actions=num_actions,
        max_depth=max_depth,
        **chosen,  # type: ignore[arg-type]
    )
    data = stochastic_root(params, root, decision_recurrent_fn, invalid_actions)
    output = run(search, params, rng_key, *data, **kept)
    found = output.search_state
    names = ("visits", "qvalues", "prior_logits")
    of_actions = {name: getattr(found, name)[:, :num_actions] for name in names}
    return output.replace(search_state=found.replace(**of_actions))
