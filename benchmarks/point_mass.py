"""A point mass in several directions at once: a problem with many numbers in an action."""

import dataclasses

import chex
import jax
import jax.numpy as jnp

_SECONDS = 0.1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PointState:
    """Where a point is.

    Attributes:
      position: `[D]`.
      speed: `[D]` a second.
      steps: `[]` int32, steps so far.
      current_player: `[]` int32, always 0.
      rewards: `[1]` what the last step paid.
      terminated: `[]` bool.
    """

    position: chex.Array
    speed: chex.Array
    steps: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array


@dataclasses.dataclass(frozen=True)
class PointMass:
    """Bring a point to rest in the middle by pushing it in D directions at once.

    Actions are D forces from -1 to 1, observations positions and speeds. A tenth of a second costs
    the squared distance and a tenth of the squared speed and of the squared force.

    Attributes:
      dimensions: D.
      length: steps of an episode.
      wind: a gust of chance pushes in each direction in every step, by a force from a normal
        distribution of this width; 0 is calm.
    """

    dimensions: int = 4
    length: int = 40
    wind: float = 0.0
    num_players: int = 1

    @property
    def action_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The least and the greatest action."""
        return (-1.0,) * self.dimensions, (1.0,) * self.dimensions

    @property
    def observation_shape(self) -> tuple[int]:
        """The shape of one observation."""
        return (2 * self.dimensions,)

    def init(self, key: chex.PRNGKey) -> PointState:
        """Returns a random position from -1 to 1 in each direction, and speeds likewise."""
        position, speed = jax.random.uniform(key, (2, self.dimensions), minval=-1.0)
        zero = jnp.int32(0)
        return PointState(position, speed, zero, zero, jnp.zeros(1), jnp.bool_(False))

    def step(
        self, state: PointState, action: chex.Array, key: chex.PRNGKey | None = None
    ) -> PointState:
        """Pushes for a tenth of a second. A finished episode stays as it is, and pays nothing."""
        force = jnp.clip(action, -1.0, 1.0)
        cost = state.position**2 + 0.1 * state.speed**2 + 0.1 * force**2
        speed = state.speed + _SECONDS * force
        if self.wind:
            if key is None:
                raise ValueError("A point mass in wind needs a key, got None.")
            speed += _SECONDS * self.wind * jax.random.normal(key, speed.shape)
        after = PointState(
            position=state.position + _SECONDS * speed,
            speed=speed,
            steps=state.steps + 1,
            current_player=state.current_player,
            rewards=-_SECONDS * jnp.sum(cost)[None],
            terminated=state.steps + 1 >= self.length,
        )
        stays = dataclasses.replace(state, rewards=jnp.zeros_like(state.rewards))
        return jax.tree.map(lambda x, y: jnp.where(state.terminated, x, y), stays, after)

    def observe(self, state: PointState) -> chex.Array:
        """Returns `[2 D]`: positions and speeds."""
        return jnp.concatenate([state.position, state.speed])
