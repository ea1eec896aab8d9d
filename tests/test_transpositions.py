"""States that other actions lead to as well share a node."""

import functools

import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

import jaxpgs
from jaxpgs.base import Expansion
from jaxpgs.search.simulators.transpositions import earlier_nodes, node_codes

pytestmark = pytest.mark.usefixtures("strict_promotion")

HEX = jaxpgs.envs.Hex(3)


def same_node(node):
    return node


@functools.cache
def hex_search(shares, by_counts=True):
    """Searches of four positions of 3x3 Hex, whose network knows nothing."""
    zeros = jnp.zeros

    def evaluate(params, rng_key, action, state):
        del params, rng_key
        after = jax.vmap(HEX.step)(state, action)
        mover = state.current_player[:, None]
        reward = jnp.take_along_axis(after.rewards, mover, axis=-1)[:, 0]
        discount = jnp.where(after.terminated, 0.0, -1.0)
        logits = jnp.where(after.legal_action_mask, 0.0, jnp.finfo(jnp.float32).min)
        return Expansion(reward, discount, zeros(len(action)), logits), after

    model = jaxpgs.SplitRecurrentFn(evaluate, lambda params, logits, state: logits + params)
    knobs = {"transpositions": jax.vmap(HEX.observe)} if shares else {}
    inner = jaxpgs.improved_policy(by_counts=True) if by_counts else jaxpgs.puct()
    policy = functools.partial(
        jaxpgs.mcs_policy, interior_selection=inner, simulations_per_update=4, **knobs
    )
    states = jax.vmap(HEX.step)(
        jax.vmap(lambda _: HEX.init())(jnp.arange(4)), jnp.arange(4, dtype=jnp.int32)
    )
    root = jaxpgs.make_root_fn(HEX, lambda params, x: (zeros((4, 9)), zeros(4)))
    run = jax.jit(
        lambda key, nodes, states: policy(
            zeros(()), key, root(None, key, states), model, 192, nodes=nodes
        ),
    )
    return run, states


def links(nodes):
    """All `(game, node, action, child)` of the memory."""
    children = np.asarray(nodes.children)
    for game, size in enumerate(np.asarray(nodes.size)):
        for node, action in np.argwhere(children[game, : size + 1] > 0):
            yield game, node, action, children[game, node, action]


def check_links(nodes):
    """Every child is where its action leads; returns the share of links to states twice known."""
    boards = np.asarray(jax.vmap(jax.vmap(HEX.observe))(nodes.embedding))
    rows = np.array(list(links(nodes)))
    game, node, action, child = rows.T
    before = jax.tree.map(lambda x: x[game, node], nodes.embedding)
    after = jax.vmap(HEX.observe)(jax.vmap(HEX.step)(before, jnp.asarray(action, jnp.int32)))
    np.testing.assert_array_equal(np.asarray(after), boards[game, child])
    places = {(g, c): boards[g, c].tobytes() for g, _, _, c in rows}
    return 1 - len({(g, board) for (g, _), board in places.items()}) / len(places)


@pytest.mark.parametrize("by_counts", [True, False])
def test_no_state_is_known_twice(by_counts):
    for shares in (False, True):
        run, states = hex_search(shares, by_counts)
        with games.lenient_promotion():
            output = run(jax.random.key(0), None, states)
        nodes = output.search_state.nodes
        twice = check_links(nodes)
        assert twice == 0 if shares else twice > 0.1
        shared = len(list(links(nodes))) > len({(g, c) for g, _, _, c in links(nodes)})
        assert shared == shares


def test_searches_go_on_with_shared_nodes():
    run, states = hex_search(True)
    with games.lenient_promotion():
        output = run(jax.random.key(0), None, states)
        nodes = jaxpgs.reroot(output.search_state.nodes, output.action, num_kept=64)
        after = jax.vmap(HEX.step)(states, output.action)
        output = run(jax.random.key(1), nodes, after)
    kept = np.asarray(nodes.size)
    assert (kept > 0).all() and (np.asarray(output.search_state.nodes.size) > kept).all()
    assert check_links(output.search_state.nodes) == 0


def diamond(reward=0.0):
    """Two actions that commute: 0 and then 1 leads to the state that 1 and then 0 leads to."""
    game = toy.tree(2, 3, value=np.linspace(-0.1, 0.1, 15) ** 3)
    game["next"] = game["next"].at[2, 0].set(game["next"][1, 1])
    game["reward"] = game["reward"].at[2, 0].set(reward)
    return game


def searched(game, **knobs):
    run = jax.jit(
        lambda params, key: jaxpgs.batched_mcts_policy(
            params, key, toy.root(params), toy.split_fn, 16, simulations_per_update=2, **knobs
        )
    )
    with games.lenient_promotion():
        return run(game, jax.random.key(0)).search_state


def child(state, *actions):
    node = 0
    for action in actions:
        node = int(state.nodes.children[0, node, action])
    return node


def test_returns_are_known_on_both_ways():
    apart, shared = (searched(diamond(), transpositions=f) for f in (None, same_node))
    one, other = child(apart, 0, 1), child(apart, 1, 0)
    assert 0 < one != other > 0
    assert child(shared, 0, 1) == child(shared, 1, 0) > 0
    # All simulations that came by either way are counted once, in one place.
    visits = np.asarray(shared.nodes.visits[0])
    own = visits[child(shared, 0, 1)]
    assert own > max(np.asarray(apart.nodes.visits[0])[[one, other]])
    assert visits[child(shared, 0)] + visits[child(shared, 1)] == 16


def test_states_with_other_rewards_are_others():
    state = searched(diamond(reward=0.5), transpositions=same_node)
    assert 0 < child(state, 0, 1) != child(state, 1, 0) > 0


def test_no_state_leads_to_itself():
    game = toy.tree(2, 3)
    game["next"] = jnp.zeros_like(game["next"])  # all actions lead back to the root
    state = searched(game, transpositions=same_node)
    parent, code = np.asarray(state.nodes.parent[0]), np.asarray(state.nodes.code[0])
    for _, node, _, found in links(state.nodes):
        assert code[found, 2] == code[node, 2] + 1
    assert (parent[1:] < np.arange(1, len(parent))).all()
    # One state for each depth.
    linked = {found for *_, found in links(state.nodes)}
    assert len(linked) == len(set(code[list(linked), 2].tolist())) > 2


def test_nothing_changes_where_no_state_comes_twice():
    game = toy.tree(2, 4, value=np.linspace(-1, 1, 31) ** 3)
    plain, sharing = (searched(game, transpositions=f) for f in (None, same_node))
    assert sharing.nodes.code is not None
    jax.tree.map(np.testing.assert_array_equal, plain.nodes, sharing.nodes._replace(code=None))


def test_codes_tell_arrays_of_every_type_apart():
    def codes(*arrays, reward=0.0):
        shape = arrays[0].shape[:2]
        pay = jnp.full(shape, reward)
        return np.asarray(
            node_codes(
                lambda x: x,
                jnp.zeros((*shape, 3), jnp.uint32),
                Expansion(pay, pay, pay, pay),
                arrays,
            )
        )

    rng = np.random.default_rng(0)
    for dtype in ("bool", "int8", "uint8", "int16", "int32", "float16", "bfloat16", "float32"):
        x = rng.integers(0, 2, (1, 256, 3, 5)).astype(np.int8)
        different = len(np.unique(x[0].reshape(256, -1), axis=0))
        found = codes(jnp.asarray(x).astype(dtype), jnp.zeros((1, 256)))[0]
        assert len(np.unique(found, axis=0)) == different
        assert (found[:, 2] == 1).all()
    minus = codes(jnp.array([[0.0, -0.0, 1.0]]))[0]
    assert (minus[0] == minus[1]).all() and (minus[0] != minus[2]).any()
    assert (codes(jnp.zeros((1, 1)), reward=1.0) != codes(jnp.zeros((1, 1)))).any()
    keys = jax.random.split(jax.random.key(0), (1, 3))
    assert len(np.unique(codes(keys)[0], axis=0)) == 3


def test_the_first_of_equal_nodes():
    used = [[9, 9, 0], [1, 1, 1], [2, 2, 1], [1, 1, 1], [5, 5, 5]]
    old = jnp.asarray([used + [[0, 0, 0]] * 5], jnp.uint32)
    new = jnp.asarray([[[3, 3, 1], [1, 1, 1], [3, 3, 1], [9, 9, 0], [5, 5, 5]]], jnp.uint32)
    found = earlier_nodes(old, jnp.asarray([3], jnp.int32), new)
    # Four are in use, and the root is nobody's child.
    np.testing.assert_array_equal(found, [[4, 1, 4, 7, 8]])


def test_the_constant_mode_has_no_nodes_to_share():
    with pytest.raises(ValueError, match='transpositions are for mode="cached"'):
        jaxpgs.mcs_search(toy.split_fn, 8, mode="constant", transpositions=same_node)
