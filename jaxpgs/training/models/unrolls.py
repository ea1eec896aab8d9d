"""The training data of a learned model: positions, the actions that followed, and targets."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Env
from jaxpgs.training.two_player.replay import Replay
from jaxpgs.training.two_player.selfplay import Experience, Played


class Unrolls(NamedTuple):
    """Positions and the K steps after each, all in the frame of the first observation.

    Attributes:
      observation: `[B, *observation_shape]` the positions.
      action: `[B, K]` int32, the actions that were taken; random ones after the end of a game.
      policy: `[B, K + 1, A]` policy targets.
      value: `[B, K + 1]` value targets, from the view of the player to move at each step.
      policy_weight: `[B, K + 1]` 1 where the policy is known, else 0.
      value_weight: `[B, K + 1]` 1 where the value is known, else 0.
    """

    observation: chex.Array
    action: chex.Array
    policy: chex.Array
    value: chex.Array
    policy_weight: chex.Array
    value_weight: chex.Array


class Timeline(NamedTuple):
    """The parts of experience that unrolls need, as a ring in order of time.

    Attributes:
      policy: `[T, G, A]` for T steps of G games, as in `Experience`.
      value: `[T, G]` likewise.
      open: `[T, G]` likewise.
      played: `[T, G]` what was played; when a game ends, the next step begins another one.
      first: `[]` int32, the place of the oldest step.
      length: `[]` int32, how many steps there are.
    """

    policy: chex.Array
    value: chex.Array
    open: chex.Array
    played: Played
    first: chex.Array
    length: chex.Array


def timeline(experience: Experience) -> Timeline:
    """Makes a timeline of experience with batch axes `[T, G]`, from its first step to its last.

    Raises:
      ValueError: if `played` was not kept.
    """
    if experience.played is None:
        raise ValueError(
            "Unrolls need what was played: call selfplay.play with kept=Kept(keep_played=True); "
            "got experience without it."
        )
    return Timeline(
        policy=experience.policy,
        value=experience.value,
        open=experience.open,
        played=experience.played,
        first=jnp.int32(0),
        length=jnp.int32(experience.value.shape[0]),
    )


def replay_timeline(replay: Replay) -> Timeline:
    """Makes a timeline of a replay buffer, whose blocks follow one another."""
    num_blocks, num_steps = replay.blocks.value.shape[:2]
    joined = timeline(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), replay.blocks))
    # Once all slots are full, the one to be written next holds the oldest block.
    oldest = jnp.where(replay.added > num_blocks, replay.added % num_blocks, 0)
    length = jnp.minimum(replay.added, num_blocks) * num_steps
    return joined._replace(first=oldest * num_steps, length=length)


def sample(
    env: Env, steps: Timeline, rng_key: chex.PRNGKey, batch_size: int, unroll: int, num_games: int
) -> Unrolls:
    """Draws positions uniformly, each in one of its symmetric forms.

    Args:
      env: the environment; if it has `symmetries`, they augment the data.
      steps: at least one step.
      rng_key: a key, consumed.
      batch_size: positions to draw, with replacement.
      unroll: K.
      num_games: how many of the G games to draw from, the first ones.

    Returns:
      `Unrolls` with batch axis `[batch_size]`.
    """
    time_key, game_key, turn_key = jax.random.split(rng_key, 3)
    time = jax.random.randint(time_key, (batch_size,), 0, steps.length)
    game = jax.random.randint(game_key, (batch_size,), 0, num_games)
    found = unrolls_at(env, steps, time, game, turn_key, unroll)
    return turned(env, found, jax.random.fold_in(turn_key, 1))


def unrolls_at(
    env: Env,
    steps: Timeline,
    time: chex.Array,
    game: chex.Array,
    rng_key: chex.PRNGKey,
    unroll: int,
) -> Unrolls:
    """Reads positions and the steps after them.

    After the end of a game the state is absorbing. The outcome stays the same under any action,
    while the player to move alternates, so the value changes its sign at every step (Brosseit 2023,
    section 4.3, for two players whose value is that of the player to move). This state has no
    policy target. If a player moves twice in a row, which such a model cannot represent, values are
    NaN.

    Args:
      env: the environment.
      steps: the data.
      time: `[B]` int32, the steps, counted from the oldest.
      game: `[B]` int32, the games.
      rng_key: a key for the actions after the end of a game, consumed.
      unroll: K.

    Returns:
      `Unrolls`. What follows the last step of the data has weight 0.
    """
    played = steps.played
    numbers = jnp.arange(unroll + 1, dtype=jnp.int32)
    # [B, K + 1]: steps of the unroll. After the data the last step is read, with weight 0.
    step = time[:, None] + numbers[None]
    known = step < steps.length
    place = (steps.first + jnp.minimum(step, steps.length - 1)) % len(steps.value)

    def read(x: chex.Array) -> chex.Array:
        return x[place, game[:, None]]

    ends = known & read(played.finished)
    # Whether the game has ended before this step.
    over = jnp.cumsum(ends, axis=1) - ends.astype(jnp.int32) > 0
    real = known & ~over
    # Players alternate, so for odd k the player to move at step k is not the one at step 0.
    sign = jnp.where(numbers % 2 == 0, 1.0, -1.0)[None]
    mover = read(played.state.current_player)
    # A player who moves twice in a row violates this; NaN then ends the training with a message.
    again = jnp.any(real[:, 1:] & (mover[:, 1:] == mover[:, :-1]), axis=1, keepdims=True)
    # The reward of the last move, from the view of step 0; at most one step ends the game.
    outcome = jnp.sum(jnp.where(ends & real, sign * read(played.reward), 0.0), axis=1)
    state = jax.tree.map(read, played.state)
    # The model sees the first observation alone, so actions and policies of all steps are given in
    # its frame. As one-hot rows, actions are transformed as policies are.
    start = jax.tree.map(lambda x: x[:, 0], state)
    action = jax.nn.one_hot(read(played.action)[:, :-1], steps.policy.shape[-1])
    policy = read(steps.policy)
    if hasattr(env, "network_policy") and hasattr(env, "policy_logits"):
        # From the frame of each step to actions, and from actions to the frame of the first step.
        policy = jax.vmap(jax.vmap(env.policy_logits))(state, policy)
        to_start = jax.vmap(jax.vmap(env.network_policy, (None, 0)))
        action, policy = to_start(start, action), to_start(start, policy)
    # After the end any action leads to the absorbing state, which random actions teach.
    anything = jax.random.randint(rng_key, action.shape[:2], 0, action.shape[2], jnp.int32)
    return Unrolls(
        observation=jax.vmap(env.observe)(start),
        action=jnp.where(real[:, :-1], jnp.argmax(action, axis=-1).astype(jnp.int32), anything),
        policy=policy,
        # The outcome of a finished game, from the view of the player to move.
        value=jnp.where(
            again, jnp.nan, jnp.where(over, sign * outcome[:, None], read(steps.value))
        ),
        policy_weight=(real & jnp.any(policy != 0, axis=-1)).astype(policy.dtype),
        value_weight=(over | (real & (read(steps.open) == 0))).astype(policy.dtype),
    )


def turned(env: Env, unrolls: Unrolls, rng_key: chex.PRNGKey) -> Unrolls:
    """Transforms each unroll by a symmetry drawn at random, if the environment has any."""
    if not hasattr(env, "symmetries"):
        return unrolls
    num_actions, unroll = unrolls.policy.shape[-1], unrolls.action.shape[1]
    action = jax.nn.one_hot(unrolls.action, num_actions)
    # [B, K + K + 1, A]: a symmetry is applied to actions and policies together.
    rows = jnp.concatenate([action, unrolls.policy], axis=1)
    observation = unrolls.observation
    forms = jax.vmap(lambda x: env.symmetries(observation, x), in_axes=1, out_axes=1)(rows)
    turn = jax.random.randint(rng_key, (len(rows),), 0, len(forms))

    def chosen(parts: list[chex.Array]) -> chex.Array:
        return jnp.stack(parts)[turn, jnp.arange(len(rows))]

    rows = chosen([form for _, form in forms])
    return unrolls._replace(
        observation=chosen([seen[:, 0] for seen, _ in forms]),
        action=jnp.argmax(rows[:, :unroll], axis=-1).astype(jnp.int32),
        policy=rows[:, unroll:],
    )
