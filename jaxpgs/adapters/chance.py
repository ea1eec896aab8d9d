"""Games whose chance can be taken apart: what `stochastic_mcts_policy` needs of one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs import trees
from jaxpgs.adapters.environments import check_players, make_root_fn, reward_and_discount
from jaxpgs.base import Embedding, Env, Params
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.search.stochastic import ChanceRecurrentFn, DecisionRecurrentFn


class Afterstate(NamedTuple):
    """What the player has done, before chance decides what becomes of it.

    Attributes:
      current_player: `[B]` int32, who acted.
      state: `[B, ...]` what the game calls an afterstate.
    """

    current_player: chex.Array
    state: Embedding


def make_stochastic_fns(
    env: Env,
    apply_fn: ApplyFn,
    after: Callable[[Any, chex.Array], tuple[chex.Array, Any]],
    draw: Callable[[Any, chex.Array], Any],
    *,
    afterstate_value: Callable[[Params, Embedding], chex.Array] | None = None,
) -> tuple[DecisionRecurrentFn, ChanceRecurrentFn]:
    """Makes the two models of a stochastic search from a game whose chance stands apart from moves.

    Two functions of one state say what `env.step` does in one: `after`, what the player's action
    makes of a state and how likely each outcome of chance then is; and `draw`, what an outcome
    makes of that. Where an action leaves nothing to chance, one outcome has all the probability.
    The root comes from `make_root_fn`. Rewards, discounts and illegal actions are as in
    `make_recurrent_fn`; all of a reward comes with the outcome.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx, of one player or of two. Its `observe` is
        needed, not its `step`.
      apply_fn: as in `make_root_fn`.
      after: `(state, action) -> (logits [C], afterstate)`, logarithms of the probabilities up to a
        constant, -inf or the lowest float for what cannot be, and any pytree of arrays. The pair
        `(state, action)` will do for an afterstate.
      draw: `(afterstate, outcome) -> state`. Of an outcome that cannot be it may return anything.
      afterstate_value: `(params, afterstates [B, ...]) -> [B]`, from the view of the player who
        acted. None takes the mean over chance of what the network says of all C next states.

    Returns:
      `decision_recurrent_fn` and `chance_recurrent_fn`, for `stochastic_mcts_policy` and
      `mctx.stochastic_muzero_policy`.

    Raises:
      ValueError: if there are more than two players; from the functions as `make_recurrent_fn`.

    Example:
      >>> def after(state, action):  # one stone in ten slips
      ...     return jnp.log(jnp.array([0.9, 0.1])), (state, action)
      >>> def draw(afterstate, outcome):  # to the first free cell
      ...     state, action = afterstate
      ...     free = state.legal_action_mask.argmax()
      ...     return env.step(state, jnp.where(outcome == 0, action, free))
      >>> decision_fn, chance_fn = jaxpgs.make_stochastic_fns(env, apply_fn, after, draw)
      >>> told, _ = decision_fn(params, rng_key, jnp.array([0, 4]), states)
      >>> told.chance_logits.shape, told.afterstate_value.shape
      ((2, 2), (2,))
    """
    check_players("make_stochastic_fns", env)
    look = make_root_fn(env, apply_fn)

    def chance_recurrent_fn(
        params: Params, rng_key: chex.PRNGKey, outcome: chex.Array, embedding: Afterstate
    ) -> tuple[mctx.ChanceRecurrentFnOutput, Embedding]:
        state = jax.vmap(draw)(embedding.state, outcome)
        seen = look(params, rng_key, state)
        # An afterstate knows who acted, so it stands for the state before in signs and rewards.
        told = reward_and_discount(env, embedding, state)
        reward, discount = (x.astype(seen.value.dtype) for x in told)
        output = mctx.ChanceRecurrentFnOutput(
            action_logits=seen.prior_logits, value=seen.value, reward=reward, discount=discount
        )
        return output, state

    def mean_value(
        params: Params, rng_key: chex.PRNGKey, logits: chex.Array, embedding: Afterstate
    ) -> chex.Array:
        return _mean_over_chance(chance_recurrent_fn, params, rng_key, logits, embedding)

    def decision_recurrent_fn(
        params: Params, rng_key: chex.PRNGKey, action: chex.Array, state: Embedding
    ) -> tuple[mctx.DecisionRecurrentFnOutput, Afterstate]:
        logits, afterstate = jax.vmap(after)(state, action)
        embedding = Afterstate(state.current_player, afterstate)
        if afterstate_value is None:
            value = mean_value(params, rng_key, logits, embedding)
        else:
            value = afterstate_value(params, afterstate)
        told = mctx.DecisionRecurrentFnOutput(chance_logits=logits, afterstate_value=value)
        return told, embedding

    return decision_recurrent_fn, chance_recurrent_fn


def _mean_over_chance(
    chance_recurrent_fn: ChanceRecurrentFn,
    params: Params,
    rng_key: chex.PRNGKey,
    logits: chex.Array,
    embedding: Afterstate,
) -> chex.Array:
    """Returns `[B]` the mean value of afterstates over outcomes with these logits `[B, C]`."""

    def value_of(outcome: chex.Array) -> chex.Array:
        # The same outcome in all B rows, spread over devices as they are.
        outcomes = outcome + trees.zero_rows(embedding.current_player)
        output, _ = chance_recurrent_fn(params, rng_key, outcomes, embedding)
        return output.reward + output.discount * output.value

    # [B, C]: each outcome's reward and value, from the view of the player who acted.
    values = jax.vmap(value_of, out_axes=1)(jnp.arange(logits.shape[1], dtype=jnp.int32))
    shares = jax.nn.softmax(logits, axis=-1).astype(values.dtype)
    # What cannot be has a share of 0, but its value may be NaN, and 0 * NaN is NaN.
    return jnp.sum(jnp.where(shares > 0, shares * values, 0), axis=-1)
