import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import jaxpgs

RETURNS = {
    "spread": [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, 6.0],
    "one better": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
    "most are best": [1.0, 1.0, 1.0, 0.0],
    "four": [250.0, 310.0, 90.0, 275.0],
    "two": [1.0, 2.0],
}


def advantages(returns, alive=None, dtype=jnp.float32):
    """What the action after the first is weighed by, `[B, K]`, by the gradient of the objective."""
    returns = jnp.asarray(returns, dtype)
    shape = (2, *returns.shape)
    alive = jnp.ones(shape, bool) if alive is None else jnp.asarray(alive)

    def objective(log_prob):
        walks = types.SimpleNamespace(alive=alive, log_prob=log_prob)
        return jaxpgs.estimator.entropic()(None, walks, jnp.stack([returns, 0 * returns])).sum()

    gradient = jax.grad(objective)(jnp.zeros(shape, dtype))
    assert gradient.dtype == dtype
    assert not gradient[0].any()  # the first action is the bandit's
    return np.asarray(gradient[1], np.float64)


def reference(returns):
    """The same of one update in NumPy, beta by a root finder."""
    returns = np.array(returns)
    wanted = min(np.log(2), np.log(len(returns)) / 2)

    def over(beta):
        share = np.exp(beta * (returns - returns.max()))
        share /= share.sum()
        return np.sum(share * np.log(np.maximum(share * len(returns), 1e-300))) - wanted

    most = 600 / np.ptp(returns)
    beta = brentq(over, 0, most, xtol=1e-12) if over(most) > 0 else most
    weight = np.exp(beta * (returns - returns.max()))
    return weight * (len(returns) - 1) / (weight.sum() - weight) - 1


@pytest.mark.parametrize("name", RETURNS)
def test_weights_are_those_of_a_root_finder(name):
    found = advantages([RETURNS[name]])[0]
    np.testing.assert_allclose(found, reference(RETURNS[name]), rtol=1e-4, atol=1e-4)
    coarse = advantages([RETURNS[name]], dtype=jnp.bfloat16)[0]
    np.testing.assert_allclose(coarse, found, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("unit", [1e-3, 7.0, 1e5])
def test_neither_unit_nor_origin_of_returns_matters(unit):
    returns = np.array([RETURNS["spread"]])
    np.testing.assert_allclose(
        advantages(unit * (returns - 2)), advantages(returns), rtol=1e-3, atol=1e-4
    )


def test_equal_returns_and_single_simulations_teach_nothing():
    assert not advantages([[0.1] * 8, [0.1 * (1 + 2e-7)] + [0.1] * 7, [0.0] * 8]).any()
    assert not advantages([[3.0], [0.0]]).any()


def test_simulations_that_are_not_there_count_for_nothing():
    alive = np.ones((2, 3, 8), bool)
    alive[:, 0, 4:] = False  # four never started,
    alive[1, 1, 2] = False  # one ended with its first action, whose return counts,
    alive[:, 2] = False  # and here is none
    returns = np.array([[*RETURNS["four"], 999.0, 999.0, 999.0, 999.0], RETURNS["spread"], [1] * 8])
    found = advantages(returns, alive)
    wanted = reference(RETURNS["spread"])
    wanted[2] = 0.0
    np.testing.assert_allclose(found[0, :4], reference(RETURNS["four"]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], wanted, rtol=1e-4, atol=1e-4)
    assert not found[0, 4:].any()
    assert not found[2].any()


def test_dtypes_are_those_of_the_returns_under_strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        for dtype in (jnp.float32, jnp.bfloat16):
            assert np.isfinite(advantages([RETURNS["spread"]], dtype=dtype)).all()
