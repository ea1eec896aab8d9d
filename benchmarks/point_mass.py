"""A point mass in several directions at once: a problem with many numbers in an action."""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from benchmarks.one_player import State, begin, unless_over

_SECONDS = 0.1


class Point(NamedTuple):
    """Where a point is.

    Attributes:
      position: `[D]`.
      speed: `[D]` a second.
    """

    position: chex.Array
    speed: chex.Array


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

    def init(self, key: chex.PRNGKey) -> State:
        """Returns a random position from -1 to 1 in each direction, and speeds likewise."""
        return begin(Point(*jax.random.uniform(key, (2, self.dimensions), minval=-1.0)))

    def step(self, state: State, action: chex.Array, key: chex.PRNGKey | None = None) -> State:
        """Pushes for a tenth of a second. A finished episode stays as it is, and pays nothing."""
        force = jnp.clip(action, -1.0, 1.0)
        position, speed = state.inner
        cost = position**2 + 0.1 * speed**2 + 0.1 * force**2
        speed = speed + _SECONDS * force
        if self.wind:
            if key is None:
                raise ValueError("A point mass in wind needs a key, got None.")
            speed += _SECONDS * self.wind * jax.random.normal(key, speed.shape)
        after = dataclasses.replace(
            state,
            inner=Point(position + _SECONDS * speed, speed),
            steps=state.steps + 1,
            rewards=-_SECONDS * jnp.sum(cost)[None],
            terminated=state.steps + 1 >= self.length,
        )
        return unless_over(state, after)

    def observe(self, state: State) -> chex.Array:
        """Returns `[2 D]`: positions and speeds."""
        return jnp.concatenate(state.inner)
