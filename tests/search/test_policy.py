"""Sampling by the inverse distribution function."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bandits import check_frequencies

from jaxpgs.search import categorical, sample_inverse_cdf


@jax.jit
def sampled(logits, uniform):
    """Actions, log probabilities and entropy of draws from one policy."""
    policy = categorical(logits)
    cumulative = jnp.broadcast_to(policy.cumulative, (uniform.size, logits.size))
    actions = sample_inverse_cdf(cumulative, jnp.broadcast_to(policy.last, uniform.shape), uniform)
    return actions, jnp.log(policy.policy[actions]), policy.entropy


PROBABILITIES = np.array([0.05, 0.4, 0.01, 0.0, 0.24, 0.3])


@functools.cache
def many_samples():
    """20,000 draws of `PROBABILITIES`."""
    logits = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32))
    logits = jnp.maximum(logits, jnp.finfo(jnp.float32).min)
    return sampled(logits, jax.random.uniform(jax.random.key(19), (20000,)))


def test_sampled_frequencies_are_the_probabilities():
    actions, _, _ = many_samples()
    check_frequencies(np.bincount(actions, minlength=6), PROBABILITIES)


def test_all_actions_are_drawn_from_logits_of_16_bits():
    count = 361
    actions, _, _ = sampled(jnp.zeros(count, jnp.bfloat16), jnp.linspace(0.001, 0.999, count))
    np.testing.assert_array_equal(actions, np.arange(count))


def test_samples_come_with_their_log_probabilities():
    actions, log_prob, _ = many_samples()
    np.testing.assert_allclose(np.exp(log_prob), PROBABILITIES[actions], rtol=1e-5)


def test_the_entropy_counts_what_is_possible():
    _, _, entropy = many_samples()
    positive = PROBABILITIES[PROBABILITIES > 0]
    np.testing.assert_allclose(entropy, -(positive * np.log(positive)).sum(), rtol=1e-5)


@pytest.mark.parametrize("num_actions", [1, 6, 64, 65, 362])
def test_sampling_inverts_the_distribution_function(num_actions):
    # On a grid of uniforms the frequencies are the probabilities up to one draw. The sums are made
    # in blocks of 64.
    logits = np.random.default_rng(19).normal(0, 2, num_actions)
    actions, _, _ = sampled(jnp.asarray(logits, jnp.float32), (jnp.arange(20000.0) + 0.5) / 20000)
    expected = 20000 * np.exp(logits) / np.exp(logits).sum()
    assert np.abs(np.bincount(actions, minlength=num_actions) - expected).max() <= 1.5


def mostly_impossible(keep):
    """100 logits of which this share is possible, neither the first nor the last; and which are."""
    rng = np.random.default_rng(20)
    possible = rng.random(100) < keep
    possible[[7, 50]] = True
    possible[[0, 99]] = False
    logits = np.where(possible, rng.normal(0, 3, 100), np.finfo(np.float32).min)
    uniform = rng.random(100000).astype(np.float32)
    return jnp.asarray(logits, jnp.float32), possible, uniform


@pytest.mark.parametrize("keep", [0.02, 0.5])
def test_impossible_actions_are_never_sampled(keep):
    logits, possible, uniform = mostly_impossible(keep)
    # Both ends of [0, 1) are among the draws.
    uniform[:3] = 0.0, np.nextafter(np.float32(1), np.float32(0)), np.finfo(np.float32).tiny
    uniform = np.minimum(uniform, uniform[1])
    actions, log_prob, entropy = sampled(logits, jnp.asarray(uniform))
    assert possible[np.asarray(actions)].all()
    assert np.isfinite(log_prob).all() and np.isfinite(entropy)
    assert len(np.unique(actions)) > 1


@pytest.mark.parametrize("keep", [0.02, 0.5])
def test_a_uniform_that_was_rounded_to_one_takes_the_last_possible_action(keep):
    logits, possible, _ = mostly_impossible(keep)
    actions, _, _ = sampled(logits, jnp.ones(100000))
    assert (np.asarray(actions) == np.flatnonzero(possible)[-1]).all()


@pytest.mark.parametrize(
    ("logits", "allowed"),
    [
        ([1e30, 0, -1e30, 0], {0}),
        ([-1e30, 1e38, 1e38, -3e38], {1, 2}),
        ([np.finfo(np.float32).min] * 4, {0, 1, 2, 3}),
        ([np.finfo(np.float32).max] * 4, {0, 1, 2, 3}),
        ([np.finfo(np.float32).min, np.finfo(np.float32).max, 0, 0], {1}),
        ([0, 0, 0, 200], {3}),
    ],
)
def test_extreme_logits_are_sampled(logits, allowed):
    uniform = jnp.linspace(0, 1, 1000, endpoint=False)
    actions, log_prob, entropy = sampled(jnp.asarray(logits, jnp.float32), uniform)
    assert set(np.asarray(actions).tolist()) == allowed
    np.testing.assert_allclose(log_prob, -np.log(len(allowed)), atol=1e-6)
    np.testing.assert_allclose(entropy, np.log(len(allowed)), atol=1e-6)
