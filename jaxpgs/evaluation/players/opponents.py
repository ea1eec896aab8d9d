"""Opponents for measuring the strength of a search."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.adapters.environments import make_root_fn
from jaxpgs.base import Env
from jaxpgs.envs import Hex, HexState
from jaxpgs.evaluation.players.player import Player
from jaxpgs.evaluation.solvers import solve_hex
from jaxpgs.networks.functional import ApplyFn


def uniform_random(env: Env, *, name: str = "random") -> Player:
    """A player that picks each legal action with equal probability.

    Args:
      env: the environment.
      name: the player's name.

    Returns:
      The player.

    Example:
      >>> player = jaxpgs.evaluation.uniform_random(env)
      >>> player.name
      'random'
    """
    del env  # every state carries its legal actions

    def act(rng_key: chex.PRNGKey, state: Any, memory: tuple[()]) -> tuple[Any, Any, dict]:
        # One number per game picks the k-th legal action; a number per action would cost A times
        # more.
        legal = state.legal_action_mask
        count = legal.sum(axis=-1)
        uniform = jax.random.uniform(rng_key, count.shape)
        k = jnp.minimum((uniform * count.astype(jnp.float32)).astype(jnp.int32), count - 1)
        return jnp.argmax(jnp.cumsum(legal, axis=-1) > k[:, None], axis=-1), memory, {}

    return Player(name, lambda batch_size: (), act)


def raw_network(
    env: Env,
    apply_fn: ApplyFn,
    params: Any,
    *,
    temperature: float = 0.0,
    name: str = "NN",
) -> Player:
    """A player that follows a network's policy without search.

    Args:
      env: an environment of `jaxpgs.envs` or of pgx.
      apply_fn: `apply_fn(params, observation [G, ...])` returns `(logits [G, A], value [G])`.
      params: the network's parameters.
      temperature: 0 plays the most likely legal action; otherwise actions are sampled from the
        legal ones with logits divided by it.
      name: the player's name.

    Returns:
      The player. It reports `num_evaluations` in unfinished games, and `num_calls`.

    Raises:
      ValueError: if `temperature` is negative.

    Example:
      >>> player = jaxpgs.evaluation.raw_network(env, apply_fn, params, temperature=0.5)
      >>> player.name, player.deterministic
      ('NN', False)
    """
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}.")
    root_fn = make_root_fn(env, apply_fn)

    def act(rng_key: chex.PRNGKey, state: Any, memory: tuple[()]) -> tuple[Any, Any, dict]:
        logits = root_fn(params, rng_key, state).prior_logits.astype(jnp.float32)
        if temperature == 0:
            action = jnp.argmax(logits, axis=-1)
        else:
            # A finished game has no legal action: its logits shift to 0, and nothing becomes NaN.
            logits = logits - logits.max(axis=-1, keepdims=True)
            action = jax.random.categorical(rng_key, logits / temperature)
        return action, memory, {"num_evaluations": jnp.sum(~state.terminated), "num_calls": 1}

    return Player(name, lambda batch_size: (), act, deterministic=temperature == 0)


def openspiel_mcts(
    env: Hex,
    *,
    num_simulations: int,
    uct_c: float = 2.0,
    num_rollouts: int = 1,
    seed: int = 0,
    name: str | None = None,
) -> Player:
    """OpenSpiel's C++ MCTS with random rollouts, an opponent without a network.

    Args:
      env: Hex without the swap rule.
      num_simulations: simulations for each move. The search solves positions that it can prove.
      uct_c: exploration constant.
      num_rollouts: random rollouts for each evaluated position.
      seed: added to the key that the match passes.
      name: the player's name; by default it includes the number of simulations.

    Returns:
      A host player. It reports `num_rollouts`, an upper bound of the rollouts run.

    Raises:
      ImportError: if OpenSpiel is not installed.
      ValueError: if the environment is not Hex without swap, or `num_simulations` is not positive.

    Example:
      >>> player = jaxpgs.evaluation.openspiel_mcts(env, num_simulations=10)  # needs jaxpgs[bench]
      >>> player.host
      True
    """
    _require_plain_hex(env)
    if num_simulations < 1:
        raise ValueError(f"num_simulations must be at least 1, got {num_simulations}.")
    try:
        import pyspiel
    except ImportError as error:
        raise ImportError(
            'openspiel_mcts needs OpenSpiel; install it with pip install "jaxpgs[bench]".'
        ) from error
    game = pyspiel.load_game("hex", {"board_size": env.size})

    def choose(stones: np.ndarray, bot_seed: int) -> int:
        # The winner in Hex does not depend on the order of the stones, and any subset of the stones
        # of an unfinished position is unfinished, so any alternating order replays the position.
        state = game.new_initial_state()
        sides = [np.flatnonzero(stones == sign).tolist() for sign in (1, -1)]
        if len(sides[0]) - len(sides[1]) not in (0, 1):
            raise ValueError(
                "In OpenSpiel's Hex players alternate, so player 0 has as many stones as player 1 "
                f"or one more; got {len(sides[0])} and {len(sides[1])}. perfect_hex has no such "
                "limit."
            )
        for ply in range(len(sides[0]) + len(sides[1])):
            state.apply_action(sides[ply % 2][ply // 2])
        evaluator = pyspiel.RandomRolloutEvaluator(num_rollouts, bot_seed)
        # The last four: memory in MB, whether to prove positions, the seed, and verbosity.
        bot = pyspiel.MCTSBot(game, evaluator, uct_c, num_simulations, 1000, True, bot_seed, False)
        return bot.step(state)

    def act(rng_key: chex.PRNGKey, state: HexState, memory: tuple[()]) -> tuple[Any, Any, dict]:
        # A new bot for each move, so that its choice depends only on the key, not on earlier games.
        words = np.asarray(jax.random.key_data(rng_key)).tolist()
        seeds = np.random.SeedSequence([seed, *words]).generate_state(len(state.terminated))
        stones = np.sign(np.asarray(state.labels))
        action = np.zeros(len(stones), np.int32)
        for g in np.flatnonzero(~np.asarray(state.terminated)):
            action[g] = choose(stones[g], int(seeds[g] >> 1))  # a signed 32-bit seed
        playing = int((~np.asarray(state.terminated)).sum())
        return action, memory, {"num_rollouts": playing * num_simulations * num_rollouts}

    return Player(name or f"OpenSpiel MCTS {num_simulations}", lambda batch_size: (), act, True)


def perfect_hex(env: Hex, *, name: str = "perfect") -> Player:
    """A player that wins every won position, for small boards; see `solve_hex`.

    Args:
      env: Hex without the swap rule.
      name: the player's name.

    Returns:
      A host player. In lost positions it plays the first empty cell.

    Raises:
      ValueError: if the environment is not Hex without swap.

    Example:
      >>> player = jaxpgs.evaluation.perfect_hex(jaxpgs.envs.Hex(3))
      >>> player.name
      'perfect'
    """
    _require_plain_hex(env)

    def act(rng_key: chex.PRNGKey, state: HexState, memory: tuple[()]) -> tuple[Any, Any, dict]:
        del rng_key
        action = np.zeros(len(state.terminated), np.int32)
        for g in np.flatnonzero(~np.asarray(state.terminated)):
            one = jax.tree.map(lambda x, g=g: x[g], state)
            solution = solve_hex(env, one, all_moves=False)
            good = solution.winning_moves if solution.value > 0 else one.legal_action_mask
            action[g] = int(np.argmax(good))
        return action, memory, {}

    return Player(name, lambda batch_size: (), act, host=True, deterministic=True)


def _require_plain_hex(env: Env) -> None:
    if not isinstance(env, Hex) or env.swap:
        raise ValueError(f"This player needs Hex without the swap rule, got {env!r}.")
