"""Statistics of single nodes, and a test of frequencies, for the tests of a search's parts."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats as scipy_stats

from jaxpgs.base import NodeStats
from jaxpgs.search.parts.selection import select_in_turn

# Every statistical test has a fixed seed and would fail by chance once in a million seeds.
ERROR_RATE = 1e-6


def keys(seed, count):
    """Returns `[count]` keys."""
    return jax.random.split(jax.random.key(seed), count)


def bandit(logits, visits, value_sum=None, value=None, valid=None):
    """Makes NodeStats of `[B, A]` arrays; by default all returns are 0, all actions legal."""
    visits = jnp.asarray(visits, jnp.int32)
    zeros = jnp.zeros(visits.shape, jnp.float32)
    return NodeStats(
        prior_logits=jnp.asarray(logits, jnp.float32),
        value=zeros[:, 0] if value is None else jnp.asarray(value, jnp.float32),
        visits=visits,
        value_sum=zeros if value_sum is None else jnp.asarray(value_sum, jnp.float32),
        valid=jnp.ones(visits.shape, bool) if valid is None else jnp.asarray(valid),
    )


def in_turn(selection, root, num_walks):
    """Returns the first actions `[B, K]` of an update; each choice sees the earlier as pending."""
    return select_in_turn(selection, None, root, num_walks)


def check_frequencies(counts, probabilities):
    """Asserts that counts fit probabilities (chi-square test) and are 0 where these are 0."""
    counts, probabilities = np.asarray(counts), np.asarray(probabilities, float)
    assert counts[probabilities == 0].sum() == 0
    counts, probabilities = counts[probabilities > 0], probabilities[probabilities > 0]
    expected = counts.sum() * probabilities / probabilities.sum()
    assert expected.min() > 5, "too few draws for the test"
    assert scipy_stats.chisquare(counts, expected).pvalue > ERROR_RATE
