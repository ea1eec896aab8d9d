"""Returns of trajectories whose numbers were worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxpgs
from jaxpgs.base import Trajectory

# (reward, discount, value of the state reached) step by step; G_t of n_step; G_t of last_value.
RETURNS = {
    # 3 + 0.9 * 10; 2 + 0.9 * 12; 1 + 0.9 * 12.8
    "discounted": ([(1, 0.9, 5), (2, 0.9, 7), (3, 0.9, 10)], [12.52, 12.8, 12], [7.29, 8.1, 9]),
    # stops before the end: 2 + 7; 1 + 9
    "stopped": ([(1, 1, 5), (2, 1, 7)], [10, 9, 0], [7, 7, 0]),
    "one step": ([(4, 0.9, 10)], [13, 0, 0], [9, 0, 0]),
    # the reward of the last step takes the value's place; the value behind it counts for nothing
    "ended": ([(1, 0.9, 5), (2, 0.9, 7), (3, 0, 99)], [5.23, 4.7, 3], [2.43, 2.7, 3]),
    "two players": (
        [(0, -1, 0.5), (0, -1, 0.25), (0, -1, 0.75)],
        [-0.75, 0.75, -0.75],
        [-0.75, 0.75, -0.75],
    ),
    # the second player wins with the second action
    "two players, ended": ([(0, -1, 0.5), (1, 0, 99)], [-1, 1, 0], [-1, 1, 0]),
    # rewards go to the mover: 0.5 - 0.25; 0.25 - 0.25; 1 - 0
    "two players, rewards": (
        [(1, -1, 9), (0.25, -1, 9), (0.5, -1, 0.25)],
        [1, 0, 0.25],
        [-0.25, 0.25, -0.25],
    ),
}


def trajectories():
    """All of them side by side, as the walks of one root."""
    arrays = np.zeros((3, 3, 1, len(RETURNS)), np.float32)  # field, T, B, K
    alive = np.zeros((3, 1, len(RETURNS)), bool)
    for k, (steps, _, _) in enumerate(RETURNS.values()):
        arrays[:, : len(steps), 0, k] = np.array(steps).T
        alive[: len(steps), 0, k] = True
    zeros = jnp.zeros(alive.shape)
    return Trajectory(
        alive=jnp.asarray(alive),
        reward=jnp.asarray(arrays[0]),
        discount=jnp.asarray(arrays[1]),
        value=jnp.asarray(arrays[2]),
        log_prob=zeros,
        entropy=zeros,
        kl_to_prior=zeros,
        kl_from_prior=zeros,
        depth=jnp.asarray(alive.sum(0)),
        limited=jnp.zeros(alive.shape[1:], bool),
        num_evaluations=jnp.zeros(1, jnp.int32),
        num_calls=jnp.zeros(1, jnp.int32),
    )


@pytest.mark.parametrize("name", RETURNS)
def test_n_step_by_hand(name):
    returns = jaxpgs.backup.n_step()(trajectories())
    _, expected, _ = RETURNS[name]
    found = returns[:, 0, list(RETURNS).index(name)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RETURNS)
def test_last_value_by_hand(name):
    returns = jaxpgs.backup.last_value()(trajectories())
    _, _, expected = RETURNS[name]
    found = returns[:, 0, list(RETURNS).index(name)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
