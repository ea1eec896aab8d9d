"""Many actions: a Gumbel root looks at those alone that it considers, with the same answers."""

import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
import toy
from games import QUICK, mostly_slow
from test_rounds import A, endless, endless_roots

import jaxpgs
from jaxpgs.search.stores import store_tree

M = 3  # considered, of 20 actions
ROUNDS = {"simulations_per_update": "rounds"}
jit = functools.partial(jax.jit, compiler_options=QUICK)
ALONE = {
    "root_selection": jaxpgs.gumbel.gumbel_root(1, in_rounds=True),
    "simulations_per_update": 3,
}
ONE_BY_ONE = {"simulations_per_update": 1, "qtransform": mctx.qtransform_completed_by_mix_value}
MODEL = functools.partial(endless, 1.0)


def plain(search):
    """The same search, which looks at all actions."""
    part = search.root_selection
    assert part.narrow is not None
    return search.__class__(**vars(search) | {"root_selection": part._replace(narrow=None)})


def searches(policy, count, **knobs):
    make = getattr(jaxpgs.search, f"gumbel_{policy}_search")
    considered = {} if "root_selection" in knobs else {"max_num_considered_actions": M}
    search = make(MODEL, count, **considered | knobs)
    return search, plain(search)


def both(two, key, root, invalid, **given):
    """The answers of two searches."""
    run = lambda key: [jaxpgs.search.run(x, {}, key, root, invalid, **given) for x in two]  # noqa: E731
    return jit(run)(key)


def assert_same(one, other):
    found, known = one.search_state, other.search_state
    for name in ("visits", "num_calls", "qvalues"):
        np.testing.assert_array_equal(getattr(found, name), getattr(known, name))
    # An update that is wider than what is considered starts nothing else in vain.
    assert np.all(np.asarray(found.num_evaluations) <= known.num_evaluations)
    np.testing.assert_array_equal(one.action, other.action)
    np.testing.assert_allclose(one.action_weights, other.action_weights, atol=1e-6)


@pytest.mark.lenient
@pytest.mark.parametrize(
    ("num_roots", "count", "knobs"),
    mostly_slow(
        [
            (5, 16, ROUNDS), (20, 16, ROUNDS | {"gumbel_scale": 0.0}),
            (5, 7, {"simulations_per_update": 4}), (5, 6, ALONE), (5, 9, ONE_BY_ONE),
        ],
        (5, 6, ALONE),
    ),
)  # fmt: skip
def test_answers_do_not_depend_on_it(num_roots, count, knobs):
    root, invalid = endless_roots(num_roots, masked=True)
    assert_same(*both(searches("mcts", count, **knobs), jax.random.key(count), root, invalid))


@pytest.mark.slow
def test_each_root_has_its_own_number():
    root, invalid = endless_roots(5, masked=True)
    given = {"simulations_by_root": np.array([8, 0, 3, 8, 1])}
    two = searches("mcts", 8, simulations_per_update=3)
    one, other = both(two, jax.random.key(1), root, invalid, **given)
    assert_same(one, other)
    visits = one.search_state.visits.sum(axis=-1)
    np.testing.assert_array_equal(visits, given["simulations_by_root"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tree", "rollouts"])
def test_a_search_that_learns(mode):
    rng, size = np.random.default_rng(8), 1 + A + A**2
    params = toy.tree(
        A, 2, features=rng.normal(size=(size, 4)), head=rng.normal(size=(4, A)),
        value=rng.uniform(-1, 1, size), reward=rng.uniform(-0.5, 0.5, (size, A)),
    )  # fmt: skip
    knobs = {"adapt": toy.adapt_head, "simulations_per_update": 4, "mode": mode}
    search = jaxpgs.search.gumbel_pgs_search(
        toy.split_fn, 12, max_num_considered_actions=M, **knobs
    )
    root, keys = toy.root(params, range(6)), jax.random.split(jax.random.key(2), 6)
    one, other = jit(
        lambda: [jaxpgs.search.run(x, params, keys, root) for x in (search, plain(search))]
    )()
    assert_same(one, other)
    jax.tree.map(np.testing.assert_array_equal, one.search_state.params, other.search_state.params)
    assert np.all(np.asarray(one.search_state.gradient_norm) > 0)


@pytest.mark.slow
def test_nodes_that_are_kept_may_change_what_is_considered():
    root, invalid = endless_roots(5, masked=False)
    two = searches("mcts", 16, simulations_per_update=4)
    first, _ = both(two, jax.random.key(3), root, invalid)
    nodes = jaxpgs.reroot(first.search_state.nodes, first.action, num_kept=12)
    out, state = MODEL({}, None, first.action, root.embedding)
    root = mctx.RootFnOutput(prior_logits=out.prior_logits, value=out.value, embedding=state)
    one, other = both(two, jax.random.key(4), root, invalid, nodes=nodes)
    assert_same(one, other)
    assert np.any(np.sum(one.search_state.visits > 0, axis=-1) > M)


@pytest.mark.slow
def test_columns_are_the_considered_actions_and_one_for_the_rest():
    root, invalid = endless_roots(6, masked=True)
    search, _ = searches("mcts", 8)
    carry = jit(functools.partial(jaxpgs.search.init, search, {}))(jax.random.key(5), root, invalid)
    near = search.root_selection.narrow(carry.selection, carry.stats)
    scores = np.where(invalid, -np.inf, carry.stats.prior_logits + carry.selection.gumbel)
    for b in range(2, 6):
        top = np.sort(np.argsort(-scores[b])[:M])
        legal = np.isfinite(scores[b, top])
        np.testing.assert_array_equal(
            np.asarray(near.columns)[b][near.root.valid[b, :M]], top[legal]
        )
    prior = jax.nn.softmax(carry.stats.prior_logits)
    known = jax.nn.softmax(near.root.prior_logits)
    expected = jnp.take_along_axis(prior, near.columns, axis=-1)
    np.testing.assert_allclose(known[:, :M], expected, rtol=1e-5)
    assert near.root.visits.shape == (6, M + 1) and not np.any(near.root.valid[:, M])


def test_other_transforms_see_all_actions():
    root, invalid = endless_roots(2, masked=False)
    for knobs in ({"qtransform": lambda node: node.qvalues}, {"max_num_considered_actions": 5}):
        search, _ = searches("mcts", 8, **knobs)
        carry = jax.eval_shape(
            lambda search=search: jaxpgs.search.init(search, {}, jax.random.key(5), root, invalid)
        )
        assert search.root_selection.narrow(carry.selection, carry.stats) is None


def tree_searches():
    """Searches that read visits, sums and ranges of nodes, logits, or an adapted head."""
    ranges = {
        "root_selection": jaxpgs.selection.muzero_puct(),
        "interior_selection": jaxpgs.selection.muzero_puct(),
    }
    yield "ranges", jaxpgs.search.batched_mcts_search(toy.split_fn, 12, capacity=9, **ranges)
    yield (
        "gumbel",
        jaxpgs.search.gumbel_mcts_search(toy.split_fn, 16, simulations_per_update="rounds"),
    )
    yield "pgs", jaxpgs.search.pgs_search(toy.split_fn, 12, adapt=toy.adapt_head, mode="tree")


@pytest.mark.first_case
@pytest.mark.parametrize(("name", "search"), tree_searches(), ids=lambda x: x)
def test_nodes_without_a_line_by_action_hold_the_same(name, search, monkeypatch):
    num_actions, depth, num_roots = 4, 5, 3
    rng = np.random.default_rng(0)
    size = sum(num_actions**d for d in range(depth + 1))
    params = toy.tree(
        num_actions, depth, features=rng.normal(size=(size, 3)),
        head=rng.normal(size=(3, num_actions)), value=rng.uniform(-1, 1, size),
        reward=rng.uniform(-0.5, 0.5, (size, num_actions)),
    )  # fmt: skip

    def moves(key):
        """Two moves of a game, with the nodes of the first in the search of the second."""
        first = jaxpgs.search.run(search, params, key, toy.root(params, np.arange(num_roots)))
        nodes = jaxpgs.reroot(first.search_state.nodes, first.action, num_kept=6)
        after = toy.root(params, params["next"][np.arange(num_roots), first.action])
        return first, jaxpgs.search.run(search, params, key, after, nodes=nodes)

    known = jit(lambda key: moves(key))(jax.random.key(0))
    monkeypatch.setattr(store_tree, "MANY_ACTIONS", num_actions)
    found = jit(lambda key: moves(key))(jax.random.key(0))
    for one, other in zip(known, found, strict=True):
        nodes = [x.search_state.nodes for x in (one, other)]
        assert (nodes[0].arrivals is None, nodes[1].links.shape[1]) == (True, 0)
        for field in ("edge", "parent", "children", "visits"):
            np.testing.assert_array_equal(*(getattr(x, field) for x in nodes), field)
        exists = np.asarray(nodes[0].children) > 0
        np.testing.assert_array_equal(*(np.where(exists, x.value_sum, 0) for x in nodes))
        assert jaxpgs.tree_svg(nodes[0]) == jaxpgs.tree_svg(nodes[1])
        one, other = (
            x.replace(search_state=x.search_state.replace(nodes=None)) for x in (one, other)
        )
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert np.any(exists[:, 1:]), name
