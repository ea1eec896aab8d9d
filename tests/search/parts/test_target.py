"""Actions and weights of visit counts."""

import jax
import numpy as np
import pytest
from bandits import bandit, check_frequencies, keys

import jaxpgs


@jax.jit
def drawn(rng_keys, root, temperature):
    one = jax.tree.map(lambda x: x[0], root)
    return jax.vmap(lambda key: jaxpgs.target.visit_counts(temperature)(key, one, None))(rng_keys)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_actions_are_drawn_by_visits_to_a_power(temperature):
    visits = np.array([[1, 0, 4, 9, 2, 0]])
    root = bandit([[0.0, 9.0, 0.0, -1.0, 3.0, 0.0]], visits)
    actions, weights = drawn(keys(17, 20000), root, temperature)
    np.testing.assert_allclose(weights, np.tile(visits / 16, (20000, 1)), rtol=1e-6)
    powers = visits[0].astype(float) ** (1 / temperature)
    check_frequencies(np.bincount(actions, minlength=6), powers / powers.sum())


LOWEST = np.finfo(np.float32).min


@pytest.mark.parametrize(
    ("visits", "logits", "best"),
    [
        ([1, 0, 4, 9, 2, 0], [0, 9, 0, -9, 3, 0], 3),
        # Of equally many visits the larger prior decides.
        ([5, 5, 1, 5, 0, 0], [0, 2, 9, 1, 9, 0], 1),
        ([5, 5, 1, 5, 0, 0], [0, 1, 9, 2, 9, 0], 3),
        # Of equal priors the first.
        ([0, 0, 2, 2, 0, 0], [0, 1, LOWEST, LOWEST, 9, 0], 2),
    ],
)
def test_temperature_zero_takes_the_most_visited_and_ties_by_the_prior(visits, logits, best):
    actions, _ = drawn(keys(18, 20000), bandit([logits], [visits]), 0.0)
    assert (np.asarray(actions) == best).all()


def test_no_visits_give_action_zero_and_no_weight():
    root = bandit([[0.0] * 6], [[0] * 6], valid=[[False] * 6])
    actions, weights = drawn(keys(18, 20000), root, 1.0)
    assert not np.any(actions) and not np.any(weights)
