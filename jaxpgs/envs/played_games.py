"""Records of whole games: the codes of their moves and of the legal alternatives."""

from typing import NamedTuple

import chex


class PlayedGames(NamedTuple):
    """B whole games of at most T moves, each in its own lane of the batch.

    Nested rollout policy adaptation plays these games and learns from them. Its policy chooses
    among C codes that represent the moves. In every position, different moves have different codes.

    Attributes:
      score: `[B]` float32, the sum of the rewards.
      length: `[B]` int32, the number of moves.
      legal: `[T, W, B]` unsigned, the codes among which each move was chosen, packed into W words
        of H = C / W bits: bit h of word w is code `(H - 1 - h) * W + w`. 0 after the end.
      chosen: `[T, B]` int32, the chosen codes; -1 after the end.
      action: `[T, B]` int32, the actions; -1 after the end.

    Example:
      >>> from jaxpgs.envs.samegame.sequences import play_sequences
      >>> games = play_sequences(puzzle, jax.random.split(rng_key, 2), boards, jnp.zeros((9, 2)))
      >>> games.score.shape, games.action.shape
      ((2,), (4, 2))
    """

    score: chex.Array
    length: chex.Array
    legal: chex.Array
    chosen: chex.Array
    action: chex.Array
