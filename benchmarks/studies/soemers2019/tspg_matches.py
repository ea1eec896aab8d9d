"""Matches between policies, and between tree searches in which entropies are recorded."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

import jaxpgs
from jaxpgs import selection, trees
from jaxpgs.adapters.environments import mask_logits

# (params, state [B]) -> logits [B, A], illegal actions at the lowest float
Policy = Callable[[Any, Any], chex.Array]
# (params, rng_key, state [B]) -> PolicyOutput
Decide = Callable[[Any, chex.PRNGKey, Any], Any]


def masked(env: Any, apply_fn: Any) -> Policy:
    """Makes a `Policy` of a network; it takes states and masks illegal actions."""

    def policy(params: Any, state: Any) -> chex.Array:
        return mask_logits(env, apply_fn(params, jax.vmap(env.observe)(state))[0], state)

    return policy


def policy_match(
    env: Any, policy: Policy, num_games: int, *, likeliest: bool = False
) -> Callable[..., Any]:
    """Makes a match of two sets of a policy's parameters.

    Args:
      env: the game.
      policy: the policy.
      num_games: the number of games; the first set begins every other one.
      likeliest: whether both play their most likely moves, after two random moves that make the
        games differ; otherwise all moves are drawn from the policies.

    Returns:
      A jitted `match(first, second, rng_key) -> [num_games]`, the first set's reward in each game.
    """

    @jax.jit
    def match(first: Any, second: Any, rng_key: chex.PRNGKey) -> chex.Array:
        start = jax.vmap(env.init)(jax.random.split(rng_key, num_games))
        side = jnp.arange(num_games) % 2  # the player that `first` is

        def move(carry: tuple) -> tuple:
            ply, state, earned = carry
            mine = (state.current_player == side)[:, None]
            logits = jnp.where(mine, policy(first, state), policy(second, state))
            if likeliest:
                alike = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
                logits = jnp.where(ply < 2, alike, 1e6 * (logits - logits.max(-1, keepdims=True)))
            action = jax.random.categorical(jax.random.fold_in(rng_key, ply), logits)
            after, reward = _play(env, state, action.astype(jnp.int32), side)
            return ply + 1, after, earned + reward

        carry = (jnp.int32(0), start, jnp.zeros(num_games))
        return jax.lax.while_loop(lambda c: jnp.any(~c[1].terminated), move, carry)[2]

    return match


class Sureness(NamedTuple):
    """Normalised entropies along games: 0 if one action has all probability, 1 if all are equal.

    Attributes:
      ply: `[R]` the number of each position in its game, from 0.
      length: `[R]` the lengths of these games.
      entropy: `[R]` entropies, by the name of the search or policy.
    """

    ply: np.ndarray
    length: np.ndarray
    entropy: dict[str, np.ndarray]


def search_match(
    env: Any,
    searches: Mapping[str, Decide],
    policy: Policy,
    num_games: int,
) -> Callable[..., tuple[np.ndarray, Sureness]]:
    """Makes a match of two searches that play their most visited actions.

    Args:
      env: a game in which the players alternate strictly.
      searches: two searches by name.
      policy: the policy whose entropy is recorded in all positions.
      num_games: games, an even number; the first search begins half of them.

    Returns:
      `match(params, watched, rng_key)`, where `params` are the searches' and `watched` sets of the
      policy's parameters by name. It returns the first search's reward in each game `[G]`, and
      `Sureness`. A search's entropy is that of its visits, and NaN where the other search moved.
    """
    half = num_games // 2

    def decision(search: Decide) -> Callable[..., Any]:
        @jax.jit
        def decide(
            params: Any, watched: Any, rng_key: chex.PRNGKey, state: Any, side: chex.Array
        ) -> tuple:
            output = search(params, rng_key, state)
            visits = output.search_state.visits
            legal = state.legal_action_mask
            by_visits = normalised_entropy(visits / jnp.sum(visits, -1, keepdims=True), legal)
            logits = jax.vmap(policy, in_axes=(0, None))(watched, state)
            found = normalised_entropy(jax.nn.softmax(logits), legal)
            action = jnp.argmax(visits, axis=-1).astype(jnp.int32)
            after, reward = _play(env, state, action, side)
            return after, reward, by_visits, found

        return decide

    decide = {name: decision(search) for name, search in searches.items()}
    start = jax.jit(lambda keys: jax.vmap(env.init)(keys))

    def match(
        params: Any, watched: Mapping[str, Any], rng_key: chex.PRNGKey
    ) -> tuple[np.ndarray, Sureness]:
        earned, seen = [], []
        first, second = searches
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *watched.values())
        for side, order in enumerate([(first, second), (second, first)]):
            key = jax.random.fold_in(rng_key, side)
            state = start(jax.random.split(key, half))
            won = np.zeros(half)
            plies: list[dict[str, np.ndarray]] = []
            while not np.asarray(state.terminated).all():
                mover, playing = order[len(plies) % 2], ~np.asarray(state.terminated)
                state, reward, by_visits, found = decide[mover](
                    params, stacked, jax.random.fold_in(key, len(plies)), state, np.full(half, side)
                )
                won += np.asarray(reward)
                entropies = {name: np.full(half, np.nan) for name in searches}
                entropies |= dict(zip(watched, np.asarray(found), strict=True))
                entropies[mover] = by_visits
                plies.append({name: np.where(playing, x, np.nan) for name, x in entropies.items()}
                             | {"playing": playing})  # fmt: skip
            length = np.sum([ply["playing"] for ply in plies], axis=0)
            for number, ply in enumerate(plies):
                rows = ply.pop("playing")
                seen.append(
                    (np.full(rows.sum(), number), length[rows],
                     {name: np.asarray(x)[rows] for name, x in ply.items()})
                )  # fmt: skip
            earned.append(won)
        names = seen[0][2]
        return np.concatenate(earned), Sureness(
            np.concatenate([ply for ply, _, _ in seen]),
            np.concatenate([length for _, length, _ in seen]),
            {name: np.concatenate([x[name] for _, _, x in seen]) for name in names},
        )

    return match


def normalised_entropy(policy: chex.Array, legal: chex.Array) -> chex.Array:
    """Returns the entropy `[B]` of policies `[B, A]` as a share of that of the uniform policy.

    It is NaN if only one action is legal.
    """
    entropy = jnp.sum(jax.scipy.special.entr(policy), axis=-1)
    count = jnp.sum(legal, axis=-1)
    return jnp.where(count > 1, entropy / jnp.log(jnp.maximum(count, 2)), jnp.nan)


def uct(env: Any, num_simulations: int) -> Decide:
    """Makes UCT: our batched tree search with UCB1 and uniformly random playouts.

    Args:
      env: the game.
      num_simulations: simulations a move.

    Returns:
      The search; it has no parameters.
    """

    def search(params: Any, rng_key: chex.PRNGKey, state: Any) -> Any:
        del params
        fns = jaxpgs.make_playout_fns(env)
        return _tree_search(None, rng_key, state, fns, num_simulations, selection.ucb1(2**0.5))

    return search


def biased_mcts(env: Any, apply_fn: Any, num_simulations: int) -> Decide:
    """Makes a tree search with PUCT, a learned prior and playouts by a learned policy.

    Args:
      env: the game.
      apply_fn: the network of the prior and of the playouts.
      num_simulations: simulations a move.

    Returns:
      The search. Its parameters are a pair of the network's: for the prior and for the playouts.
    """

    def search(params: Any, rng_key: chex.PRNGKey, state: Any) -> Any:
        prior, playout = params
        fns = jaxpgs.make_playout_fns(env, prior=apply_fn, playout=apply_fn, playout_params=playout)
        bandit = selection.puct(C_PUCT, virtual_loss=1.0)
        return _tree_search(prior, rng_key, state, fns, num_simulations, bandit)

    return search


C_PUCT = 2.5
AT_ONCE = 4  # simulations per update, in all searches


def _tree_search(
    params: Any, rng_key: chex.PRNGKey, state: Any, fns: tuple, num_simulations: int, bandit: Any
) -> Any:
    root_fn, recurrent_fn = fns
    root_key, rng_key = jax.random.split(rng_key)
    return jaxpgs.batched_mcts_policy(
        params, rng_key, root_fn(params, root_key, state), recurrent_fn, num_simulations,
        ~state.legal_action_mask, root_selection=bandit, simulations_per_update=AT_ONCE,
    )  # fmt: skip


def _play(env: Any, state: Any, action: chex.Array, side: chex.Array) -> tuple[Any, chex.Array]:
    """Plays actions in unfinished games; returns the new states and the rewards of `side`."""
    after = jax.vmap(env.step)(state, action)
    reward = jnp.take_along_axis(after.rewards, side[:, None], axis=-1)[:, 0]
    return trees.where(state.terminated, state, after), jnp.where(state.terminated, 0.0, reward)
