"""A replay buffer on the device: first in, first out, one block of self-play at a time."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Env, NodeStats
from jaxpgs.training.two_player.root_data import map_actions
from jaxpgs.training.two_player.selfplay import Experience, Played, Start, init_games


class Replay(NamedTuple):
    """The last C blocks of experience, each of S steps in G games.

    Attributes:
      blocks: `Experience` with batch axes `[C, S, G]`.
      added: `[]` int32, blocks added so far; the next one goes to `added % C`.
    """

    blocks: Experience
    added: chex.Array


def init(
    env: Env,
    num_blocks: int,
    num_steps: int,
    num_games: int,
    *,
    keep_played: bool = False,
    keep_root: bool = False,
    observation_dtype: Any = jnp.int8,
) -> Replay:
    """Makes an empty buffer.

    Args:
      env: the environment.
      num_blocks: C.
      num_steps: S.
      num_games: G.
      keep_played: whether the experience has `played`.
      keep_root: whether the experience has `root`.
      observation_dtype: the type of stored observations; see `observation_dtype`.

    Returns:
      The buffer.
    """
    axes = (num_blocks, num_steps, num_games)
    # Only shapes are needed, so no game is started.
    state = jax.eval_shape(lambda: env.init(jax.random.key(0)))
    observation = observed(env)
    played = None
    if keep_played:
        states = jax.tree.map(lambda x: jnp.zeros((*axes, *x.shape), x.dtype), state)
        nothing = jnp.zeros(axes)
        played = Played(states, nothing.astype(jnp.int32), nothing, nothing.astype(bool))
    root = None
    if keep_root:
        scores = jnp.zeros((*axes, env.num_actions))
        visits = scores.astype(jnp.int32)
        root = NodeStats(scores, jnp.zeros(axes), visits, scores, scores.astype(bool))
    return Replay(
        Experience(
            observation=jnp.zeros((*axes, *observation.shape), observation_dtype),
            legal=jnp.zeros((*axes, env.num_actions), bool),
            policy=jnp.zeros((*axes, env.num_actions), jnp.float32),
            value=jnp.zeros(axes, jnp.float32),
            open=jnp.ones(axes, jnp.float32),
            played=played,
            root=root,
        ),
        jnp.int32(0),
    )


def observed(env: Env) -> jax.ShapeDtypeStruct:
    """Returns the shape and type of an environment's observations.

    Raises:
      ValueError: if they are not one array each.
    """
    found = jax.eval_shape(lambda: env.observe(env.init(jax.random.key(0))))
    if not isinstance(found, jax.ShapeDtypeStruct):
        shapes = jax.tree.map(lambda x: x.shape, found)
        raise ValueError(
            "This trainer keeps observations in a buffer and needs each to be one array; "
            f"env.observe returned {type(found).__name__} {shapes}. Join the arrays to one in "
            "observe, and take them apart in the network."
        )
    return found


def observation_dtype(env: Env) -> jnp.dtype:
    """Returns a type that can store an environment's observations, determined by random games.

    Args:
      env: the environment.

    Returns:
      int8 for booleans, and for floats that are all whole numbers in its range, such as planes;
      otherwise their own type. Values that become fractional or large only after 64 random moves
      would be truncated, so scale such a plane to fractions.

    Raises:
      ValueError: if an observation is not one array.
    """
    try:
        hash(env)
    except TypeError:  # as of a dataclass that is not frozen
        return _observation_dtype.__wrapped__(env)
    return _observation_dtype(env)


@functools.lru_cache(maxsize=32)
def _observation_dtype(env: Env) -> jnp.dtype:
    observed(env)

    @jax.jit
    def look(rng_key: chex.PRNGKey) -> tuple[chex.Array, chex.Array]:
        # Positions from all stages of a game, as counters and planes may grow during it.
        games = init_games(env, rng_key, 64, Start(max_random_moves=64))
        observation = jax.vmap(env.observe)(games.state)
        return observation, jnp.all(
            observation == observation.astype(jnp.int8).astype(observation.dtype)
        )

    observation, fits = look(jax.random.key(0))
    counts = jnp.issubdtype(observation.dtype, jnp.integer)  # may grow late in a game
    return jnp.dtype(jnp.int8) if fits and not counts else observation.dtype


def add(replay: Replay, experience: Experience) -> Replay:
    """Adds a block in place of the oldest; completes the returns of games that were open.

    Args:
      replay: the buffer.
      experience: batch axes `[S, G]`; its first step follows the last step added before.

    Returns:
      The buffer with the block.
    """
    blocks = replay.blocks
    # The missing part of an open return is a multiple of the return of the game's next position.
    # For all open steps `[C, S, G]` of a game that is the first position of this block. If that
    # position is open itself, they stay open.
    first_value, first_open = experience.value[None, :1], experience.open[None, :1]
    blocks = blocks._replace(
        value=blocks.value + blocks.open * first_value, open=blocks.open * first_open
    )
    # A ring: the slot of the oldest block is reused.
    slot = replay.added % blocks.value.shape[0]
    blocks = jax.tree.map(
        lambda old, new: old.at[slot].set(new.astype(old.dtype)), blocks, experience
    )
    return Replay(blocks, replay.added + 1)


def distinct(observation: chex.Array) -> chex.Array:
    """Returns the share `[]` of distinct positions among `[S, G, ...]` observations.

    Positions are compared by a 32-bit hash, so that of 65,536 about one may be missed.
    """

    def mixed(word: chex.Array) -> chex.Array:
        word = (word ^ (word >> 15)) * jnp.uint32(0x85EBCA6B)
        return word ^ (word >> 13)

    # Each word is mixed, multiplied by an odd weight of its place, and summed modulo 2^32. Words
    # are mixed first, as sums of weighted plain words collide too easily.
    code = jnp.zeros(jax.tree.leaves(observation)[0].shape[:2], jnp.uint32)
    for number, leaf in enumerate(jax.tree.leaves(observation)):
        words = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
        words = words.reshape(*code.shape, -1)
        weights = jax.random.bits(jax.random.key(number), words.shape[-1:], jnp.uint32) | 1
        code += jnp.sum(mixed(words) * weights[None, None], axis=-1, dtype=jnp.uint32)
    # After sorting, equal codes are neighbours.
    ordered = jnp.sort(mixed(code).ravel())
    return (1 + jnp.sum(ordered[1:] != ordered[:-1])) / ordered.size


def sample(env: Env, replay: Replay, rng_key: chex.PRNGKey, batch_size: int) -> Experience:
    """Draws positions uniformly, each in one of its symmetric forms.

    Args:
      env: the environment; if it has `symmetries`, they augment the data.
      replay: a buffer with at least one block.
      rng_key: a key, consumed.
      batch_size: positions to draw, with replacement.

    Returns:
      `Experience` with batch axis `[batch_size]`; observations have the type that `env` gives them.
    """
    *keys, turn_key = jax.random.split(rng_key, 4)
    num_blocks, *rest = replay.blocks.value.shape
    # Until the buffer is full, only the blocks that were added count.
    limits = (jnp.minimum(replay.added, num_blocks), *rest)
    # `[C, S, G]` is not flattened, as its last axis is sharded over devices.
    index = tuple(
        jax.random.randint(key, (batch_size,), 0, limit)
        for key, limit in zip(keys, limits, strict=True)
    )
    batch = jax.tree.map(lambda x: x[index], replay.blocks)
    # The network learns from the type that it sees while it plays; only storage is smaller.
    batch = batch._replace(observation=batch.observation.astype(observed(env).dtype))
    if not hasattr(env, "symmetries"):
        return batch
    forms = env.symmetries(batch.observation, batch.policy)
    turn = jax.random.randint(turn_key, (batch_size,), 0, len(forms))
    # All forms are computed and each row takes one, as `symmetries` returns all of them.
    rows = jnp.arange(batch_size)

    def turned(by_action: chex.Array) -> chex.Array:
        turns = [other for _, other in env.symmetries(batch.observation, by_action)]
        return jnp.stack(turns)[turn, rows]

    return batch._replace(
        observation=jnp.stack([form[0] for form in forms])[turn, rows],
        policy=jnp.stack([form[1] for form in forms])[turn, rows],
        legal=turned(batch.legal),
        root=None if batch.root is None else map_actions(turned, batch.root),
    )
