"""Self-play of a search against itself: many games at once, in one scan."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.adapters import ApplyFn, make_recurrent_fn, make_root_fn
from jaxpgs.base import Params, RecurrentFn


class Decision(NamedTuple):
    """What an expert says of a batch of positions.

    Attributes:
      action: `[B]` the action to play.
      policy: `[B, A]` the policy to imitate.
      value: `[B]` the search's value of the position, from the view of the player to move.
    """

    action: chex.Array
    policy: chex.Array
    value: chex.Array


# (params, rng_key, root, recurrent_fn, invalid_actions) -> Decision
Expert = Callable[
    [Params, chex.PRNGKey, mctx.RootFnOutput, RecurrentFn, chex.Array],
    Decision,
]


class Experience(NamedTuple):
    """Positions with what they teach; `[...]` stands for any batch axes.

    Attributes:
      observation: `[..., *observation_shape]`.
      legal: `[..., A]` bool.
      policy: `[..., A]` target of the policy, in the network's frame.
      value: `[...]` target of the value: the game's result, or where the game outlives the scan the
        search's value of the last position, from the view of the player to move.
    """

    observation: chex.Array
    legal: chex.Array
    policy: chex.Array
    value: chex.Array


def gumbel(num_simulations: int = 16, **knobs: Any) -> Expert:
    """`mctx.gumbel_muzero_policy` as the expert; its policy is the completed-Q improvement."""

    def expert(
        params: Params,
        rng_key: chex.PRNGKey,
        root: mctx.RootFnOutput,
        recurrent_fn: RecurrentFn,
        invalid_actions: chex.Array,
    ) -> Decision:
        output = mctx.gumbel_muzero_policy(
            params, rng_key, root, recurrent_fn, num_simulations, invalid_actions, **knobs
        )
        value = output.search_tree.summary().value
        return Decision(output.action, output.action_weights, value)

    return expert


def searcher(policy_fn: Callable[..., Any], num_simulations: int, **knobs: Any) -> Expert:
    """One of this library's searches as the expert, with its visit distribution as the policy."""

    def expert(
        params: Params,
        rng_key: chex.PRNGKey,
        root: mctx.RootFnOutput,
        recurrent_fn: RecurrentFn,
        invalid_actions: chex.Array,
    ) -> Decision:
        output = policy_fn(
            params, rng_key, root, recurrent_fn, num_simulations, invalid_actions, **knobs
        )
        return Decision(output.action, output.action_weights, output.search_state.value)

    return expert


def init_games(env: Any, rng_key: chex.PRNGKey, num_games: int, max_random_moves: int = 1) -> Any:
    """Starts games from positions of uniformly random play.

    Tournaments force every opening, good or bad, and a search looks at bad moves as well as good
    ones, so training must know what follows each.

    Args:
      env: the environment.
      rng_key: a key, consumed.
      num_games: G.
      max_random_moves: M. Half of the games start after one random move, the others after a number
        of them drawn from 1 to M. No random move ends a game.

    Returns:
      G unfinished positions.
    """

    def start(rng_key: chex.PRNGKey) -> Any:
        init_key, count_key, moves_key = jax.random.split(rng_key, 3)
        coin, count = jax.random.uniform(count_key, (2,))
        count = jnp.where(coin < 0.5, 1, 1 + jnp.floor(count * max_random_moves))

        def move(state: Any, inputs: tuple[chex.Array, chex.PRNGKey]) -> tuple[Any, None]:
            number, rng_key = inputs
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            after = env.step(state, jax.random.categorical(rng_key, logits))
            take = (number < count) & ~after.terminated
            return jax.tree.map(lambda new, old: jnp.where(take, new, old), after, state), None

        inputs = (jnp.arange(max_random_moves), jax.random.split(moves_key, max_random_moves))
        return jax.lax.scan(move, env.init(init_key), inputs)[0]

    return jax.vmap(start)(jax.random.split(rng_key, num_games))


def play(
    env: Any,
    apply_fn: ApplyFn,
    expert: Expert,
    params: Params,
    rng_key: chex.PRNGKey,
    states: Any,
    num_steps: int,
    max_random_moves: int = 1,
) -> tuple[Any, Experience]:
    """Plays `num_steps` moves in every game, starting a new game where one ends.

    Args:
      env: the environment.
      apply_fn: the network.
      expert: the search that moves for both sides.
      params: the network's parameters.
      rng_key: a key, consumed.
      states: G positions, none finished.
      num_steps: moves to play in each game, S.
      max_random_moves: how new games start; see `init_games`.

    Returns:
      The G positions to go on from, and the `Experience` with batch axes `[S, G]`.
    """
    root_fn, recurrent_fn = make_root_fn(env, apply_fn), make_recurrent_fn(env, apply_fn)

    def move(states: Any, rng_key: chex.PRNGKey) -> tuple[Any, Any]:
        search_key, reset_key = jax.random.split(rng_key)
        legal = states.legal_action_mask
        root = root_fn(params, search_key, states)
        decision = expert(params, search_key, root, recurrent_fn, ~legal)
        after = jax.vmap(env.step)(states, decision.action)
        mover = states.current_player
        reward = jnp.take_along_axis(after.rewards, mover[:, None], axis=-1)[:, 0]
        discount = jnp.where(after.current_player == mover, 1.0, -1.0)
        discount = jnp.where(after.terminated, 0.0, discount)
        observation = jax.vmap(env.observe)(states)
        policy = decision.policy
        if hasattr(env, "network_policy"):
            policy = jax.vmap(env.network_policy)(states, policy)
            legal = jax.vmap(env.network_policy)(states, legal)

        def restart(new: chex.Array, old: chex.Array) -> chex.Array:
            return jnp.where(after.terminated.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        fresh = init_games(env, reset_key, len(reward), max_random_moves)
        states = jax.tree.map(restart, fresh, after)
        return states, (observation, legal, policy, reward, discount, decision.value)

    states, steps = jax.lax.scan(move, states, jax.random.split(rng_key, num_steps))
    observation, legal, policy, reward, discount, value = steps

    def back(later: chex.Array, step: tuple[chex.Array, chex.Array]) -> tuple[Any, Any]:
        returns = step[0] + step[1] * later
        return returns, returns

    # Where the scan cuts a game off, the search's value of its last position stands for the rest.
    last = jnp.where(discount[-1] == 0, reward[-1], value[-1])
    _, returns = jax.lax.scan(back, last, (reward[:-1], discount[:-1]), reverse=True)
    returns = jnp.concatenate([returns, last[None]])
    return states, Experience(observation, legal, policy, returns)
