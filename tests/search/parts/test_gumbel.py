"""Gumbel selections: mctx's search with K = 1, and what is expected of K simulations at a time."""

import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
import toy
from games import lenient_promotion, mostly_slow
from mctx._src import seq_halving

import jaxpgs
from jaxpgs.search import init, run
from jaxpgs.search.parts.halving import considered_visits, halvings, scheduled_visits

B, A = 12, 5


@functools.cache
def game(depth=4, discount=-1.0):
    """A random tree, in which some episodes end."""
    rng = np.random.default_rng(8)
    size = sum(A**d for d in range(depth + 1))
    params = toy.tree(
        A, depth, features=rng.normal(size=(size, 4)), head=rng.normal(size=(4, A)),
        value=rng.uniform(-1, 1, size), reward=rng.uniform(-0.5, 0.5, (size, A)),
    )  # fmt: skip
    ends = rng.random((size, A)) < 0.05
    return params | {"discount": jnp.asarray(np.where(ends, 0.0, discount), jnp.float32)}


def roots(params):
    return toy.root(params, np.arange(B))


def invalid_actions():
    invalid = np.random.default_rng(3).random((B, A)) < 0.3
    invalid[:, 0] = False
    invalid[0, 1:] = True  # a single legal action
    invalid[1] = False
    return jnp.asarray(invalid)


def test_the_schedule_is_mctxs():
    for considered in (0, 1, 2, 3, 5, 7, 8, 16, 33):
        for count in (1, 2, 3, 7, 16, 50, 64, 200):
            theirs = seq_halving.get_sequence_of_considered_visits(considered, count)
            assert tuple(considered_visits(considered, count)) == theirs


@pytest.mark.slow
def test_the_schedule_of_each_root_is_that_of_its_numbers():
    most, longest = 33, 70
    numbers, considered, counts = np.indices((longest, most + 1, longest + 1), np.int32)
    plan = halvings(jnp.asarray(considered), jnp.asarray(counts), most)
    found = jax.jit(scheduled_visits)(numbers, plan)
    for m in range(most + 1):
        for n in (*range(1, 20), 32, 50, 64, longest):
            np.testing.assert_array_equal(found[:n, m, n], considered_visits(m, n))


@pytest.mark.parametrize(
    ("count", "considered"), mostly_slow([(50, 16), (7, 4), (16, 1)], (50, 16))
)
def test_one_at_a_time_is_mctxs_search(count, considered):
    params, key = game(), jax.random.key(11)
    arguments = (params, key, roots(params), toy.recurrent_fn, count, invalid_actions())

    @jax.jit
    def search(gumbel_scale):
        knobs = {"gumbel_scale": gumbel_scale, "max_num_considered_actions": considered}
        with lenient_promotion():
            theirs = mctx.gumbel_muzero_policy(*arguments, **knobs)
            summary = theirs.search_tree.summary()
        ours = jaxpgs.gumbel_mcts_policy(*arguments, simulations_per_update=1, **knobs)
        return ours, theirs.replace(search_tree=None), summary

    for gumbel_scale in (0.0, 1.0):
        check_is_mctxs(*jax.device_get(search(jnp.float32(gumbel_scale))))


def check_is_mctxs(ours, theirs, summary):
    np.testing.assert_array_equal(ours.search_state.visits, summary.visit_counts)
    np.testing.assert_array_equal(ours.action, theirs.action)
    np.testing.assert_allclose(ours.action_weights, theirs.action_weights, atol=1e-5)
    tried = np.asarray(ours.search_state.visits) > 0
    np.testing.assert_allclose(
        np.asarray(ours.search_state.qvalues)[tried], np.asarray(summary.qvalues)[tried], atol=1e-5
    )
    assert len({tuple(row) for row in np.asarray(summary.visit_counts).tolist()}) > 3
    # The value is that of the weights; actions never tried count with the mixed value (eq. 33).
    state = ours.search_state
    prior = np.exp(state.prior_logits - np.max(state.prior_logits, -1, keepdims=True)) * tried
    seen, count = np.where(tried, state.qvalues, 0.0), np.sum(state.visits, -1)
    mean = np.sum(prior * seen, -1) / np.sum(prior, -1)
    mixed = (state.raw_value + count * mean) / (count + 1)
    completed = np.where(tried, seen, mixed[:, None])
    np.testing.assert_allclose(state.value, np.sum(ours.action_weights * completed, -1), atol=1e-5)


@pytest.mark.first_case
@pytest.mark.parametrize("policy", ["mcts", "pgs"])
def test_several_at_a_time_keep_to_the_schedule(policy):
    params, considered, count = game(), 4, 48
    knobs = {"max_num_considered_actions": considered, "simulations_per_update": 6}
    if policy == "mcts":
        search = jaxpgs.search.gumbel_mcts_search(toy.split_fn, count, **knobs)
    else:
        search = jaxpgs.search.gumbel_pgs_search(
            toy.split_fn, count, adapt=toy.adapt_head, mode="tree", **knobs
        )
    keys = jax.random.split(jax.random.key(2), B)
    invalid = invalid_actions()
    output = jax.jit(functools.partial(run, search))(params, keys, roots(params), invalid)
    visits = np.asarray(output.search_state.visits)
    legal = ~np.asarray(invalid)
    for b in range(B):
        m = min(considered, legal[b].sum())
        # The visits of sequential halving, whoever wins: sorted, they are the schedule's.
        expected = np.zeros(A, int)
        for times in considered_visits(m, count):
            expected[np.argmax(expected == times)] += 1
        assert sorted(visits[b]) == sorted(expected)
        assert not visits[b][~legal[b]].any()
        # The action is one of the most visited; of these, the best by noise, prior and value.
        assert visits[b, output.action[b]] == visits[b].max()
    np.testing.assert_allclose(output.action_weights.sum(-1), 1, rtol=1e-5)
    if policy == "pgs":
        assert (output.search_state.gradient_norm[1:] > 0).any()


@pytest.mark.slow
def test_considered_actions_are_drawn_without_replacement():
    # With as many simulations as actions considered, each is taken once: the top of logits + noise.
    params = game()
    keys = jax.random.split(jax.random.key(5), B)
    search = jaxpgs.search.gumbel_mcts_search(
        toy.split_fn, 3, max_num_considered_actions=3, simulations_per_update=3
    )
    state = jax.jit(functools.partial(init, search))(params, keys, roots(params)).selection
    output = jax.jit(functools.partial(run, search))(params, keys, roots(params))
    scores = np.asarray(roots(params).prior_logits + state.gumbel)
    top = np.argsort(-scores, axis=-1)[:, :3]
    expected = np.zeros((B, A), int)
    np.put_along_axis(expected, top, 1, axis=-1)
    np.testing.assert_array_equal(output.search_state.visits, expected)


def test_noise_is_a_keys_and_a_roots():
    params = game()
    search = jaxpgs.search.gumbel_mcts_search(toy.split_fn, 8)
    keys = jax.random.split(jax.random.key(5), B)
    drawn = jax.jit(lambda *data: init(search, params, *data).selection.gumbel)
    noise = drawn(keys, roots(params))
    # A root's noise does not depend on the others; one key for all gives mctx's.
    some = jax.tree.map(lambda x: x[3:7], roots(params))
    np.testing.assert_array_equal(drawn(keys[3:7], some), noise[3:7])
    key = jax.random.key(6)
    noise = drawn(key, roots(params))
    theirs = jax.random.gumbel(jax.random.split(key)[1], (B, A), jnp.float32)
    np.testing.assert_array_equal(noise, theirs)


@pytest.mark.slow
def test_parts_that_do_not_fit_are_named():
    params = game()
    arguments = (params, jax.random.key(0), roots(params), toy.split_fn, 8)
    with pytest.raises(ValueError, match="gumbel_target needs root_selection=gumbel_root"):
        jaxpgs.mcs_policy(*arguments, target=jaxpgs.gumbel.gumbel_target())
    with pytest.raises(ValueError, match="gumbel_root"):
        jaxpgs.batched_mcts_policy(*arguments, root_selection=jaxpgs.gumbel.gumbel_root())
