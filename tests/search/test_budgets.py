"""A number of simulations for each root: whose answer it is, and when the search ends."""

import functools

import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from games import QUICK

import jaxpgs
from jaxpgs.search import finish, init, run, step
from jaxpgs.search.root import budgets as checked

N, K = 12, 4
BUDGETS = np.array([1, 7, N, 7, 1, N], np.int32)
HEAD = {"adapt": toy.adapt_head}
SEARCHES = {
    "mcs": (jaxpgs.search.mcs_search, {"mode": "rollouts"}),
    "pgs": (jaxpgs.search.pgs_search, HEAD | {"interior_selection": None}),
    "mcts": (jaxpgs.search.batched_mcts_search, {}),
    "gumbel pgs": (jaxpgs.search.gumbel_pgs_search, HEAD | {"max_num_considered_actions": 3}),
    "gumbel mcts": (jaxpgs.search.gumbel_mcts_search, {"max_num_considered_actions": 3}),
}
jit = functools.partial(jax.jit, compiler_options=QUICK)


@functools.cache
def game():
    rng = np.random.default_rng(3)
    size = 1 + 3 + 9 + 27 + 81
    return toy.tree(
        3, 4, discount=-0.9, features=rng.normal(size=(size, 4)), head=rng.normal(size=(4, 3)),
        value=rng.uniform(-1, 1, size), reward=rng.uniform(-0.5, 0.5, (size, 3)),
    )  # fmt: skip


def roots():
    root = toy.root(game(), [0, 1, 2, 3, 4, 0])
    return root, jnp.zeros((len(BUDGETS), 3)).at[3, 1].set(1.0)


@functools.cache
def make(name, count=N):
    search, knobs = SEARCHES[name]
    return search(toy.split_fn, count, simulations_per_update=K, **knobs)


@functools.cache
def program(search):
    def answer(params, keys, budgets):
        return run(search, params, keys, *roots(), simulations_by_root=budgets)

    return jit(answer)


def answer(search, keys, budgets=None):
    """The search of all roots; budgets are traced."""
    return program(search)(game(), keys, budgets)


def assert_rows_equal(found, expected, rows):
    assert rows.any()
    for name in ("action", "action_weights"):
        one, other = getattr(found, name)[rows], getattr(expected, name)[rows]
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    for name in ("visits", "num_evaluations"):
        one, other = (getattr(x.search_state, name)[rows] for x in (found, expected))
        np.testing.assert_array_equal(one, other)
    for name in ("qvalues", "value", "params", "gradient_norm", "depth", "entropy"):
        one, other = (getattr(x.search_state, name) for x in (found, expected))
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x[rows], y[rows], rtol=1e-5, atol=1e-6),
            one, other,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "by_root", "counts"),
    games.mostly_slow(
        [
            ("mcs", False, (7,)), ("pgs", True, (7,)), ("mcts", True, (7,)),
            ("gumbel pgs", True, (1, N)), ("gumbel mcts", False, (7,)),
        ],
        ("gumbel mcts", False, (7,)),
    ),
)  # fmt: skip
def test_a_root_with_n_has_the_answer_of_n_simulations(name, by_root, counts):
    key = jax.random.key(7)
    keys = jax.random.split(key, len(BUDGETS)) if by_root else key
    found = answer(make(name), keys, BUDGETS)
    np.testing.assert_array_equal(found.search_state.visits.sum(axis=-1), BUDGETS)
    for count in counts:
        assert_rows_equal(found, answer(make(name, count), keys), count == BUDGETS)


@pytest.mark.slow
def test_the_search_ends_with_the_largest_budget_and_counts_no_root_that_is_done():
    calls = []

    def model(params, rng_key, action, node):
        jax.debug.callback(lambda: calls.append(1))
        return toy.recurrent_fn(params, rng_key, action, node)

    root, _ = roots()
    search = jaxpgs.search.gumbel_mcts_search(model, 64, simulations_per_update=K)
    budgets = np.array([0, 4, 2, 8, 1, 4])
    output = answer(search, jax.random.key(0), budgets)
    jax.effects_barrier()
    assert int(output.search_state.num_calls) == len(calls) == 2  # of 4 simulations each
    np.testing.assert_array_equal(output.search_state.visits.sum(axis=-1), budgets)
    assert np.all(np.asarray(output.search_state.num_evaluations) <= budgets)
    # Without any simulation it is what the prior says.
    state = output.search_state
    assert state.value[0] == root.value[0] and not state.visits[0].any()
    expected = jax.nn.softmax(root.prior_logits)[0]
    np.testing.assert_allclose(output.action_weights[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_steps_are_the_whole_search_and_end():
    search, keys = make("gumbel pgs"), jax.random.split(jax.random.key(1), len(BUDGETS))
    begin = jit(functools.partial(init, search, simulations_by_root=BUDGETS))
    carry = begin(game(), keys, *roots())
    once = jit(functools.partial(step, search))
    for _ in range(search.num_updates):
        carry = once(game(), carry)
    np.testing.assert_array_equal(carry.num_updates, -(-BUDGETS // K))
    assert all(x.shape[0] == len(BUDGETS) for x in jax.tree.leaves(carry))
    after = once(game(), carry)
    for field in ("stats", "adapted", "opt_state", "totals", "num_updates", "budget"):
        one, other = getattr(after, field), getattr(carry, field)
        jax.tree.map(np.testing.assert_array_equal, one, other)
    whole = answer(search, keys, BUDGETS)
    assert_rows_equal(jit(lambda carry: finish(search, carry))(carry), whole, BUDGETS > 0)


def test_budgets_are_checked_and_traced_ones_are_clipped():
    search, key = make("gumbel mcts"), jax.random.key(2)
    found = answer(search, key, np.array([-3, 5, 99, 0, N, N + 1]))
    np.testing.assert_array_equal(found.search_state.visits.sum(axis=-1), [0, 5, N, 0, N, N])
    root, invalid = roots()
    policy = functools.partial(jaxpgs.gumbel_mcts_policy, game(), key, root, toy.split_fn, N)
    for wrong, words in (
        (BUDGETS - 2, r"whole numbers from 0 to num_simulations=12; got \[-1"),
        (BUDGETS + 1, r"from 0 to num_simulations=12; got"),
        (BUDGETS[:4], r"one for each of the 6 roots; got shape \[4\] and type int32"),
        (5, r"one for each of the 6 roots; got shape \[\]"),
        (BUDGETS / 2, r"got shape \[6\] and type float"),
    ):
        with pytest.raises(ValueError, match=words):
            policy(invalid, simulations_by_root=wrong)
    # Numbers that are known but met in a function that is traced are looked at as well.
    known = jnp.asarray(BUDGETS)
    jax.eval_shape(lambda: policy(invalid, simulations_by_root=known))
    with pytest.raises(ValueError, match=r"got \[-1"):
        known = jnp.asarray(BUDGETS - 2)
        jax.eval_shape(lambda: policy(invalid, simulations_by_root=known))
    with pytest.raises(ValueError, match=r"simulations_by_root cannot be used with .* in rounds"):
        policy(invalid, simulations_by_root=BUDGETS, simulations_per_update="rounds")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32"])
def test_numbers_of_any_type_keep_their_values(dtype):
    given = jnp.asarray([3, 100], dtype)
    for found in (jax.jit, lambda f: f):
        counts = found(lambda x: checked(make("mcs", 300), x, 2))(given)
        np.testing.assert_array_equal(counts, [3, 100])
    if dtype == "uint32":
        many = jax.jit(lambda x: checked(make("mcs"), x, 2))(jnp.asarray([2**31, 2**32 - 1], dtype))
        np.testing.assert_array_equal(many, [N, N])


def test_chance_is_that_of_n_simulations():
    def model(params, rng_key, action, node):
        output, node = toy.recurrent_fn(params, rng_key, action, node)
        return output.replace(reward=jax.random.normal(rng_key, action.shape)), node

    root, invalid = roots()
    policy = functools.partial(jaxpgs.mcs_policy, game(), jax.random.key(4), root, model)
    found, expected = (
        jit(functools.partial(policy, count, invalid, simulations_per_update=K, **knobs))()
        for count, knobs in ((N, {"simulations_by_root": BUDGETS}), (7, {}))
    )
    assert_rows_equal(found, expected, BUDGETS == 7)


@pytest.mark.slow
def test_selections_of_ones_own_are_told_the_numbers():
    told = []

    def note(rng_key, root, num_simulations):
        told.append(num_simulations)

    selection = jaxpgs.selection.Selection(
        lambda state, node, pending: node.visits.argmin(-1), note
    )
    root, invalid = roots()
    search = jaxpgs.search.mcs_search(toy.split_fn, N, root_selection=selection)
    for budgets in (None, BUDGETS):
        init(search, game(), jax.random.key(0), root, invalid, simulations_by_root=budgets)
    assert told[0] == N
    np.testing.assert_array_equal(told[1], BUDGETS)
