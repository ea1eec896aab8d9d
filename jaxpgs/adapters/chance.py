"""Games in which chance can be separated from moves: the models of `stochastic_mcts_policy`."""

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
    """The state after the player's action and before chance.

    Attributes:
      current_player: `[B]` int32, the player who acted.
      state: `[B, ...]` the game's afterstates.
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
    """Makes the two models of a stochastic search from a game that separates chance from moves.

    Two functions of a single state replace `env.step`. `after` applies the player's action and
    returns the probabilities of the chance outcomes. `draw` applies an outcome to the afterstate.
    If an action involves no chance, one outcome has probability 1. The root comes from
    `make_root_fn`. Rewards, discounts and illegal actions are as in `make_recurrent_fn`; the whole
    reward comes with the outcome.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx, of one player or of two. Its `observe` is
        needed, not its `step`.
      apply_fn: as in `make_root_fn`.
      after: `(state, action) -> (logits [C], afterstate)`. The logits are log probabilities up to a
        constant, -inf or the lowest float for impossible outcomes. The afterstate is any pytree of
        arrays, for example the pair `(state, action)`.
      draw: `(afterstate, outcome) -> state`. It may return anything for an impossible outcome.
      afterstate_value: `(params, afterstates [B, ...]) -> [B]`, from the view of the player who
        acted. None takes the mean over chance of the network's values of all C next states.

    Returns:
      `decision_recurrent_fn` and `chance_recurrent_fn`, for `stochastic_mcts_policy` and
      `mctx.stochastic_muzero_policy`.

    Raises:
      ValueError: if there are more than two players. The returned functions raise the errors of
        `make_recurrent_fn`.

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
        # An afterstate records who acted, so it replaces the previous state in signs and rewards.
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
        # The same outcome in all B rows, with their device layout.
        outcomes = outcome + trees.zero_rows(embedding.current_player)
        output, _ = chance_recurrent_fn(params, rng_key, outcomes, embedding)
        return output.reward + output.discount * output.value

    # [B, C]: each outcome's reward and value, from the view of the player who acted.
    values = jax.vmap(value_of, out_axes=1)(jnp.arange(logits.shape[1], dtype=jnp.int32))
    shares = jax.nn.softmax(logits, axis=-1).astype(values.dtype)
    # Impossible outcomes have probability 0, but their value may be NaN, and 0 * NaN is NaN.
    return jnp.sum(jnp.where(shares > 0, shares * values, 0), axis=-1)
