"""Games whose positions a stronger search judges, for a network to learn from."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.arrays import broadcast_keys, typed_keys
from jaxpgs.puzzles.solving import Solution


def judged(
    solution: Solution,
    rng_key: chex.PRNGKey,
    judge: Callable[[chex.PRNGKey, Any], Solution],
) -> Solution:
    """Has another search say what every position of the games is worth, and what to play there.

    A network that learns from good games only takes all positions for good ones, and one that
    learns what its own search believes may believe itself. Here a search that needs no network,
    such as `nrpa`, solves every position that was seen, whoever played there. That is DAgger (Ross,
    Gordon and Bagnell 2011) for values; Seify 2020 takes the searching network's own values.

    Args:
      solution: games that were played once, without `restart`.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      judge: the other search, `(rng_keys [B], state [B]) -> Solution`.

    Returns:
      The solution with other `searches.value` and `searches.action`: of each position what the
      judge's best game earns and its first move, or the rest of the game that was played, if that
      earned at least as much.

    Example:
      >>> judge = lambda keys, state: jaxpgs.puzzles.nrpa(
      ...     puzzle, keys, state, 9, iterations=(3, 3)
      ... )
      >>> games = jaxpgs.puzzles.random_games(puzzle, rng_key, boards)
      >>> jaxpgs.puzzles.judged(games, rng_key, judge).searches.value.shape
      (4, 2)
    """
    searches = solution.searches
    shape = searches.searched.shape
    keys = typed_keys(broadcast_keys(rng_key, shape[1]))
    # [S, B] keys: a position's answer depends on its board's key and its place in the game.
    keys = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (None, 0))(keys, jnp.arange(shape[0]))
    keys = keys.reshape(-1)
    states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), searches.state)
    # Positions first, then the empty entries, which are not judged.
    order = jnp.argsort(~searches.searched.reshape(-1), stable=True)
    count = jnp.sum(searches.searched)

    def body(carry: tuple) -> tuple:
        i, values, actions = carry
        # As many positions at a time as there are boards. Row by row of the grid, entries of games
        # that were over would be judged, too.
        place = order[i * shape[1] + jnp.arange(shape[1])]
        found = judge(keys[place], jax.tree.map(lambda x: x[place], states))
        first = found.moves[:, 0].astype(actions.dtype)
        return i + 1, values.at[place].set(found.score), actions.at[place].set(first)

    size = searches.searched.size
    start = (jnp.int32(0), jnp.zeros(size), jnp.zeros(size, jnp.int32))
    _, values, actions = jax.lax.while_loop(lambda c: c[0] * shape[1] < count, body, start)
    values, actions = values.reshape(shape), actions.reshape(shape)
    # The rest of the game that was played is a solution too, where the judge finds nothing better.
    rest = solution.played[None] - searches.score
    better = rest >= values
    return solution._replace(
        searches=searches._replace(
            value=jnp.where(searches.searched, jnp.where(better, rest, values), 0.0),
            action=jnp.where(searches.searched & ~better, actions, searches.action),
        )
    )
