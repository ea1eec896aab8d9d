"""Games whose positions are evaluated by a stronger search, as training data for a network."""

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
    """Lets another search determine the value and the action of every position of the games.

    A network trained only on good games rates all positions as good, and one that learns from its
    own search may reinforce its own errors. Here a search that needs no network, such as
    `nrpa`, solves every position that was visited, whatever policy played there. This is DAgger
    (Ross, Gordon and Bagnell 2011) for values; Seify 2020 uses the searching network's own values.

    Args:
      solution: games that were played without `restart`.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      judge: the other search, `(rng_keys [B], state [B]) -> Solution`.

    Returns:
      The solution with new `searches.value` and `searches.action`. For each position they are the
      return and the first move of the judge's best game. They are those of the game that was played
      if its rest earned at least as much.

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
    # [S, B] keys: a position's result depends on its board's key and its index in the game.
    keys = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (None, 0))(keys, jnp.arange(shape[0]))
    keys = keys.reshape(-1)
    states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), searches.state)
    # Positions first, then the empty entries, which are not judged.
    order = jnp.argsort(~searches.searched.reshape(-1), stable=True)
    count = jnp.sum(searches.searched)

    def body(carry: tuple) -> tuple:
        i, values, actions = carry
        # Each iteration judges as many positions as there are boards. Going through the rows of
        # the [S, B] grid would also judge the entries of finished games.
        place = order[i * shape[1] + jnp.arange(shape[1])]
        found = judge(keys[place], jax.tree.map(lambda x: x[place], states))
        first = found.moves[:, 0].astype(actions.dtype)
        # A game that did not end within the judge's `max_moves` is worse than any other.
        score = jnp.where(jnp.isneginf(found.searches.best[-1]), -jnp.inf, found.score)
        return i + 1, values.at[place].set(score), actions.at[place].set(first)

    size = searches.searched.size
    start = (jnp.int32(0), jnp.zeros(size), jnp.zeros(size, jnp.int32))
    _, values, actions = jax.lax.while_loop(lambda c: c[0] * shape[1] < count, body, start)
    values, actions = values.reshape(shape), actions.reshape(shape)
    # The rest of the game that was played is used where the judge finds nothing better.
    rest = solution.played[None] - searches.score
    better = rest >= values
    return solution._replace(
        searches=searches._replace(
            value=jnp.where(searches.searched, jnp.where(better, rest, values), 0.0),
            action=jnp.where(searches.searched & ~better, actions, searches.action),
        )
    )
