"""The pendulum of Gym's `Pendulum-v1`, as pure functions on a frozen state: continuous actions.

A motor that is too weak to lift a rod directly has to swing it up.

| version | change |
| --- | --- |
| 1 | first |
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.checks import check_finite
from jaxpgs.envs.compiling import compiled

VERSION = 1
_GRAVITY, _SECONDS, _MAX_SPEED = 10.0, 0.05, 8.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PendulumState:
    """A swinging rod. Leading batch axes may be added by `jax.vmap`.

    Attributes:
      angle: `[]` float32, radians from upright.
      speed: `[]` float32, radians a second, from -8 to 8.
      steps: `[]` int32, steps so far.
      current_player: `[]` int32, always 0.
      rewards: `[1]` float32, the reward of the last step.
      terminated: `[]` bool.

    Example:
      >>> state = jaxpgs.envs.Pendulum().init(jax.random.key(0))
      >>> state.steps
      Array(0, dtype=int32)
    """

    angle: chex.Array
    speed: chex.Array
    steps: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array


@dataclasses.dataclass(frozen=True)
class Pendulum:
    """The task of swinging a rod up and holding it upright.

    | | |
    | --- | --- |
    | actions | `[1]` float32, the torque, from -2 to 2 |
    | observation | `[3]` float32: cosine and sine of the angle, speed / 8 |
    | reward | -(angle² + speed² / 10 + torque² / 1000), the angle from -pi to pi, at each step |

    The same as Gym's, except that Gym does not divide the speed in the observation.

    Args:
      length: steps of an episode, at least 1.

    Raises:
      ValueError: if `length` is below 1.

    Example:
      >>> env = jaxpgs.envs.Pendulum(length=50)
      >>> state = env.step(env.init(jax.random.key(0)), jnp.array([1.0]))
      >>> env.observe(state).shape
      (3,)
    """

    length: int = 200

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length < 1:
            raise ValueError(
                f"Pendulum needs an integer length of at least 1, got {self.length!r}."
            )

    @property
    def num_players(self) -> int:
        """Always 1."""
        return 1

    @property
    def action_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The lower and upper bounds of an action, one number for each component."""
        return (-2.0,), (2.0,)

    @property
    def observation_shape(self) -> tuple[int]:
        """The shape of one observation."""
        return (3,)

    @compiled
    def init(self, key: chex.PRNGKey) -> PendulumState:
        """Returns a random angle, and a random speed from -1 to 1."""
        number = jax.random.uniform(key, (2,), jnp.float32, minval=-1.0)
        return PendulumState(
            angle=jnp.pi * number[0],
            speed=number[1],
            steps=jnp.int32(0),
            current_player=jnp.int32(0),
            rewards=jnp.zeros(1, jnp.float32),
            terminated=jnp.bool_(False),
        )

    def step(self, state: PendulumState, action: chex.Array) -> PendulumState:
        """Applies a torque for a twentieth of a second.

        Args:
          state: a state, unbatched.
          action: `[1]` the torque, clipped to [-2, 2].

        Returns:
          The next state. A finished episode does not change, and its reward is 0.

        Raises:
          ValueError: if the torque is NaN or infinite; under `jax.jit` the state becomes NaN.
        """
        check_finite("Pendulum.step", "torque", action)
        return self._step(state, action)

    @compiled
    def _step(self, state: PendulumState, action: chex.Array) -> PendulumState:
        torque = jnp.clip(jnp.asarray(action[0], jnp.float32), -2.0, 2.0)
        angle = (state.angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        # As in Gym, the reward depends on the state before the step.
        cost = angle**2 + 0.1 * state.speed**2 + 0.001 * torque**2
        # The rod has length 1 and mass 1.
        speed = state.speed + (1.5 * _GRAVITY * jnp.sin(state.angle) + 3.0 * torque) * _SECONDS
        speed = jnp.clip(speed, -_MAX_SPEED, _MAX_SPEED)
        after = PendulumState(
            # As in Gym, the new speed moves the rod (semi-implicit Euler).
            angle=state.angle + speed * _SECONDS,
            speed=speed,
            steps=state.steps + 1,
            current_player=state.current_player,
            rewards=-cost[None],
            terminated=state.steps + 1 >= self.length,
        )
        # Computes both and selects one, since Python cannot branch on a traced state.
        stays = dataclasses.replace(state, rewards=jnp.zeros_like(state.rewards))
        return trees.where(state.terminated, stays, after)

    @compiled
    def observe(self, state: PendulumState) -> chex.Array:
        """Returns `[3]`: cosine and sine of the angle, and the speed divided by its maximum."""
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed / _MAX_SPEED])
