"""Nested rollout policy adaptation as one of the searches that solve boards of SameGame."""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.arrays import broadcast_keys
from jaxpgs.base import Params
from jaxpgs.checks import check_count
from jaxpgs.envs.played_games import PlayedGames
from jaxpgs.envs.samegame.game import SameGame
from jaxpgs.envs.samegame.sequences import by_pairs, code_features, play_sequences
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.puzzles.episodes import Episode, check_boards, play_move, start_episodes
from jaxpgs.puzzles.nrpa_loop import nrpa_policy, nrpa_search
from jaxpgs.puzzles.solving import Solution, record_games


def nrpa(
    env: SameGame,
    rng_key: chex.PRNGKey,
    state: Any,
    num_simulations: int,
    *,
    bias: chex.Array | None = None,
    by_color: bool = True,
    pairs: bool | None = None,
    **knobs: Any,
) -> Solution:
    """Nested rollout policy adaptation of B boards (Rosin 2011); see `jaxpgs.puzzles.nrpa_search`.

    It searches the first position only, and its best game is the solution. The values of later
    positions are therefore those of this game.

    Args:
      env: SameGame.
      rng_key: one key, or `[B]` keys, one per board; consumed.
      state: `[B]` positions.
      num_simulations: N, games per board, rounded up to whole runs of the first level.
      bias: `[A, B]` logits that the tables start from (GNRPA), such as `prior_bias`; zeros if None.
      by_color: whether blocks of a colour learn from one another.
      pairs: whether a block has one logit while its group is a pair and another in larger groups
        (see `envs.samegame.sequences`); `default_pairs(env)` if None.
      **knobs: arguments of `nrpa_search`; `sharing` is `default_sharing(env)` if not given.

    Returns:
      The solution. `searches` holds the positions and actions of the best game; `value` is the sum
      of its rewards from there on. `num_evaluations` is 0, as no state is evaluated.

    Raises:
      ValueError: if `num_simulations` is below 1, and as `jaxpgs.puzzles.nrpa_search`.

    Example:
      >>> solution = jaxpgs.puzzles.nrpa(puzzle, rng_key, boards, 9, iterations=(3, 3))
      >>> solution.moves.shape  # the best game of each board
      (2, 4)
    """
    if not isinstance(env, SameGame):
        raise TypeError(f"nrpa is for SameGame, got {env!r}; nrpa_policy searches any game.")
    num_simulations = check_count("nrpa", "num_simulations", num_simulations)
    check_boards("nrpa", state)
    pairs = default_pairs(env) if pairs is None else pairs
    # Two levels of 50 and 100 iterations, with four runs of the first level in parallel.
    shape = {"iterations": (50, 100), "parallel": (4, 1)}
    knobs = shape | {"sharing": default_sharing(env)} | knobs

    def play(keys: chex.PRNGKey, logits: chex.Array) -> PlayedGames:
        return play_sequences(env, keys, boards, logits)

    # Made here to check the knobs before anything is computed.
    games_per_step = nrpa_search(play, **knobs).games_per_step
    num_boards, lanes = len(state.terminated), math.prod(knobs["parallel"])
    keys = broadcast_keys(rng_key, num_boards)
    # Every lane plays from its board's first position; the lanes of a board are adjacent.
    boards = jax.tree.map(lambda x: jnp.repeat(x, lanes, axis=0), state)
    if by_color:
        knobs["features"] = code_features(env, state, pairs=pairs)
    if bias is None:
        bias = jnp.zeros((env.num_actions, num_boards))
    games = nrpa_policy(
        keys,
        play,
        by_pairs(env, bias) if pairs else bias,
        -(-num_simulations // games_per_step),
        **knobs,
    )
    return replayed(env, state, games.action)


def default_sharing(env: SameGame) -> float:
    """Returns the `sharing` of `nrpa`: 0.2 on 15x15, and in proportion to the number of cells.

    On 15x15 half this value is equally good, and twice this value loses 121 ± 98 points per board
    (sweep at commit 0bc35d3). On smaller boards the values were tried by hand.
    """
    return 0.2 * env.num_actions / 225


def default_pairs(env: SameGame) -> bool:
    """Returns the `pairs` of `nrpa`: whether the board has more than 100 cells.

    Separate logits for pairs gain 140 ± 58 points on 15x15. On 7x7 and 10x10 they gain nothing with
    the same number of games, and take longer (`benchmarks/studies/seify2020`). Sizes between 10x10
    and 15x15 were not measured.
    """
    return env.num_actions > 100


def prior_bias(
    env: SameGame, apply_fn: ApplyFn, params: Params, state: Any, *, scale: float = 1.0
) -> chex.Array:
    """Makes the bias of generalised NRPA from a network's logits of the first boards' cells.

    A block keeps its cell's logit, centred, for the whole game, so the network is called once.

    Args:
      env: SameGame.
      apply_fn: the network.
      params: its parameters.
      state: `[B]` positions.
      scale: the factor by which the logits are multiplied.

    Returns:
      `[A, B]` logits.

    Example:
      >>> sizes = dict(num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
      >>> shapes = puzzle.observation_shape, puzzle.num_actions
      >>> network = jaxpgs.networks.SameGameResNet(*shapes, **sizes)
      >>> params, apply_fn = jaxpgs.networks.functional(network)
      >>> bias = jaxpgs.puzzles.prior_bias(puzzle, apply_fn, params, boards)
    """
    logits = apply_fn(params, jax.vmap(env.observe)(state))[0]
    # Centring does not change the softmax, and tables only hold logits from -30 to 30.
    return scale * (logits - jnp.mean(logits, axis=1, keepdims=True)).T


def replayed(env: SameGame, state: Any, actions: chex.Array) -> Solution:
    """Makes a solution from the actions of whole games.

    Args:
      env: SameGame.
      state: `[B]` positions to start from.
      actions: `[T, B]`, any cell of each group that was taken; -1 after the end.
    """
    start = start_episodes(env, state)

    def body(episode: Episode, action: chex.Array) -> tuple[Episode, tuple]:
        # The given actions may be any cell of a group; a solution contains the legal one.
        labels = jax.vmap(env.group_labels)(episode.state)
        # After the end any action will do, since the game stays as it is.
        legal = jnp.take_along_axis(labels, jnp.maximum(action, 0)[:, None], axis=1)[:, 0]
        legal = jnp.clip(legal, 0, env.num_actions - 1)
        after, _ = play_move(env, episode, legal)
        return after, (episode.state, legal, episode.score)

    end, played = jax.lax.scan(body, start, actions)
    return record_games(end, *played)
