"""Openings: the forced first moves of a match's games, and which of them win in Hex."""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.adapters.environments import chance_key, mask_logits, step_with_keys
from jaxpgs.base import Env


def opening_lines(
    env: Env,
    rng_key: chex.PRNGKey,
    length: int,
    num_lines: int,
    policy: Callable[[chex.Array], chex.Array] | None = None,
) -> np.ndarray:
    """Draws distinct openings of several moves.

    Args:
      env: a two-player environment.
      rng_key: a key for sampling the lines; consumed.
      length: moves L of each line, at least 1.
      num_lines: O, how many lines.
      policy: a function from a batch of observations to a network's logits, from which moves are
        sampled, so that openings are typical of that network; None for uniformly random legal
        moves.

    Returns:
      `[O, L]` int64 actions, none of which ends the game, in random order.

    Raises:
      ValueError: if there are not enough different lines, or an argument is not positive.

    Example:
      >>> jaxpgs.evaluation.opening_lines(env, rng_key, length=2, num_lines=4).shape
      (4, 2)
    """
    if length < 1 or num_lines < 1:
        raise ValueError(f"length and num_lines must be at least 1, got {length} and {num_lines}.")

    play = step_with_keys(env)
    # With so many samples hardly any line is missed if there are few, and most differ otherwise.
    count = 16 * num_lines + 64

    @jax.jit
    def draw(rng_key: chex.PRNGKey) -> tuple[chex.Array, chex.Array]:
        first, rest = jax.random.split(rng_key)
        state = jax.vmap(env.init)(jax.random.split(first, count))

        def move(state: Any, key: chex.PRNGKey) -> tuple[Any, chex.Array]:
            logits = jnp.zeros(state.legal_action_mask.shape, jnp.float32)
            if policy is not None:
                # With 16-bit noise, the first of many actions would be preferred.
                logits = policy(jax.vmap(env.observe)(state)).astype(jnp.float32)
                logits = mask_logits(env, logits, state)
            # A game that ends early has no legal action left; its line is dropped afterwards.
            logits = jnp.where(state.legal_action_mask, logits, -jnp.inf)
            action = jax.random.categorical(key, logits).astype(jnp.int32)
            return play(state, action, chance_key(key)), action

        state, actions = jax.lax.scan(move, state, jax.random.split(rest, length))
        return actions.T, state.terminated

    actions, terminated = jax.device_get(draw(rng_key))
    lines = actions[~terminated].astype(np.int64)
    # `unique` sorts the lines; the places of their first draws restore the random order.
    _, places = np.unique(lines, axis=0, return_index=True)
    if len(places) < num_lines:
        raise ValueError(
            f"Only {len(places)} lines of {length} moves were found, but num_lines is {num_lines}; "
            "increase length."
        )
    return lines[np.sort(places)[:num_lines]]


def hex_openings(size: int) -> np.ndarray:
    """Returns which first moves of Hex win, from published solutions of the game.

    It is for evaluating networks and searches; nothing should be trained on it.

    Args:
      size: the size of the board, 4 to 7, without the swap rule.

    Returns:
      `[size, size]` bool, True where the first move wins.

    Raises:
      ValueError: if there is no table for the size.

    Example:
      >>> int(jaxpgs.evaluation.hex_openings(5).sum())  # of 25
      13
    """
    tables = json.loads(pathlib.Path(__file__).with_name("hex_openings.json").read_text("utf-8"))
    if str(size) not in tables:
        raise ValueError(f"hex_openings has boards of size {', '.join(tables)}, got {size}.")
    return np.array([list(row) for row in tables[str(size)]]) == "W"


def checked_lines(env: Env, openings: Sequence[int] | np.ndarray | None) -> np.ndarray:
    """Returns openings as lines.

    Args:
      env: a two-player environment.
      openings: `[O]` first actions, `[O, L]` lines of them, or None for all legal first actions.

    Returns:
      `[O, L]` int64.

    Raises:
      ValueError: if an opening is illegal, repeated, or goes on after the end of the game.
    """
    if openings is None:
        state = _begin(env, jax.random.split(jax.random.key(0), 1))
        return np.flatnonzero(state.legal_action_mask[0])[:, None]
    lines = np.asarray(openings, np.int64)
    if lines.ndim not in (1, 2) or not lines.size:
        raise ValueError(
            f"openings must be a list of legal first actions, or of lines of them, got {openings}."
        )
    lines = lines.reshape(len(lines), -1)
    if len(np.unique(lines, axis=0)) < len(lines):
        raise ValueError(f"openings must differ from each other, got {openings}; see repeats.")
    state = _begin(env, jax.random.split(jax.random.key(0), len(lines)))
    for ply, action in enumerate(lines.T):
        mask = np.asarray(state.legal_action_mask & ~state.terminated[:, None])
        # An action outside of the mask is illegal, too, and must not be looked up there.
        known = (action >= 0) & (action < mask.shape[1])
        if not (known & mask[np.arange(len(lines)), np.where(known, action, 0)]).all():
            raise ValueError(f"openings must be legal actions of games under way, got {openings}.")
        # Any key will do, since openings must be legal whatever the random outcomes.
        state = _step(env, state, jnp.asarray(action, jnp.int32), jax.random.key(ply))
    return lines


# Compiled once for each game, not for every match.
@functools.partial(jax.jit, static_argnums=0)
def _begin(env: Env, keys: chex.PRNGKey) -> Any:
    return jax.vmap(env.init)(keys)


@functools.partial(jax.jit, static_argnums=0)
def _step(env: Env, state: Any, action: chex.Array, rng_key: chex.PRNGKey) -> Any:
    return step_with_keys(env)(state, action, rng_key)
