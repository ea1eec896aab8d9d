"""Tree search on the nodes that are kept, and handing nodes on from move to move."""

import functools
import types

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
import toy
from flax import nnx
from games import lenient_promotion, mostly_slow

import jaxpgs
from jaxpgs.search import Nodes, node_stats

NUM_ROOTS = 6


def played(env, *moves):
    """A batch of games; each move is one for every game."""

    @jax.jit
    def play(moves):
        states = jax.vmap(lambda _: env.init())(moves[0])
        return jax.lax.scan(lambda s, m: (jax.vmap(env.step)(s, m), None), states, moves)[0]

    return play(np.stack(moves))


@functools.cache
def setting(size=4):
    """A Hex board with a small random network, and some positions to search from."""
    env = jaxpgs.envs.Hex(size=size)
    shape = jax.eval_shape(lambda: env.observe(env.init())).shape
    module = jaxpgs.networks.FullyConnectedResNet(
        shape, env.num_actions, width=16, num_blocks=1, rngs=nnx.Rngs(3)
    )
    # Larger weights, so that policies and values differ enough to be worth a search.
    params, apply_fn = jaxpgs.networks.functional(module)
    params = jax.tree.map(lambda x: 3 * np.asarray(x), params)
    moves = (5 * np.arange(3)[:, None] + np.arange(NUM_ROOTS)) % env.num_actions
    states = played(env, *moves.astype(np.int32))
    return types.SimpleNamespace(
        env=env,
        params=params,
        states=states,
        apply_fn=apply_fn,
        root_fn=jaxpgs.make_root_fn(env, apply_fn),
        recurrent_fn=jaxpgs.make_recurrent_fn(env, apply_fn),
    )


@functools.cache
def compiled(policy, count, knobs):
    """A search of the setting, compiled once."""
    s = setting()

    @jax.jit
    def plan(params, key, states, more):
        root = s.root_fn(params, key, states)
        illegal = ~states.legal_action_mask
        return policy(params, key, root, s.recurrent_fn, count, illegal, **dict(knobs), **more)

    return plan


reroot = jax.jit(jaxpgs.reroot, static_argnames="num_kept")


def run(policy, states=None, key=0, count=64, nodes=None, **knobs):
    """Runs a search on the setting."""
    s = setting()
    plan = compiled(policy, count, tuple(knobs.items()))
    more = {} if nodes is None else {"nodes": nodes}
    return plan(s.params, jax.random.key(key), s.states if states is None else states, more)


mcts = jaxpgs.batched_mcts_policy
BY_EIGHTS = {
    "mcts": functools.partial(mcts, simulations_per_update=8),
    "pgs": functools.partial(
        jaxpgs.pgs_policy, adapt=lambda path, leaf: path[0].key == "policy_head",
        simulations_per_update=8, mode="tree", interior_selection=None,
    ),
}  # fmt: skip


# --- tree search ----------------------------------------------------------------------------------


def test_one_at_a_time_is_mctxs_search():
    selection = jaxpgs.selection.muzero_puct(1.25)
    ours = run(mcts, count=100, simulations_per_update=1, root_selection=selection, max_depth=100)
    with lenient_promotion():
        theirs = run(mctx.muzero_policy, count=100, dirichlet_fraction=0.0, temperature=0.0)
        summary = jax.jit(lambda tree: tree.summary())(theirs.search_tree)
    # mctx breaks ties at random; on these trees there are none.
    np.testing.assert_array_equal(ours.search_state.visits, summary.visit_counts)
    tried = np.asarray(ours.search_state.visits) > 0
    np.testing.assert_allclose(
        np.asarray(ours.search_state.qvalues)[tried], np.asarray(summary.qvalues)[tried], atol=1e-5
    )
    assert len({tuple(row) for row in np.asarray(summary.visit_counts).tolist()}) == NUM_ROOTS


@pytest.mark.slow
def test_tree_search_finds_the_win_that_the_network_misses():
    # Three of four stones of a column: only the fourth wins at once. The reply would block.
    states = played(setting().env, *np.array([[1], [0], [5], [3], [9], [7]], np.int32))
    output = run(mcts, states, count=200, simulations_per_update=8)
    assert int(output.action[0]) in (12, 13)  # both ends of the bridge
    assert float(output.search_state.qvalues[0, 13]) == 1.0


@pytest.mark.slow
def test_every_simulation_is_counted_and_nothing_twice():
    output = run(mcts, count=128, simulations_per_update=16)
    state = output.search_state
    np.testing.assert_array_equal(state.visits.sum(-1), 128)
    assert int(state.num_calls) <= 128 // 16
    assert (np.asarray(state.num_evaluations) <= 128).all()
    np.testing.assert_array_equal(state.num_evaluations, toy.num_used(state.nodes))
    visits, value_sum = np.asarray(state.nodes.visits), np.asarray(state.nodes.value_sum)
    children = np.asarray(state.nodes.children)
    np.testing.assert_array_equal(visits > 0, children > 0)
    np.testing.assert_array_equal(visits[:, 0], state.visits)
    np.testing.assert_allclose(value_sum[:, 0].sum(-1) / 128, state.value, atol=1e-5)
    for b, node in np.argwhere(np.asarray(state.nodes.edge) >= 0):
        # Who went on from a node had come there, and did not stop, as who made it did.
        parent, action = divmod(int(state.nodes.edge[b, node]), children.shape[-1])
        assert children[b, parent, action] == node
        assert visits[b, node].sum() < visits[b, parent, action]


@pytest.mark.slow
def test_options_of_the_root():
    noisy = run(BY_EIGHTS["mcts"], dirichlet_fraction=0.5)
    plain = run(BY_EIGHTS["mcts"])
    assert (np.asarray(noisy.search_state.visits) != np.asarray(plain.search_state.visits)).any()
    # The target is `completed_q(0.0)`.
    np.testing.assert_allclose(np.sum(plain.action_weights, axis=-1), 1, atol=1e-5)
    np.testing.assert_array_equal(plain.action, np.argmax(plain.action_weights, axis=-1))


def test_completed_q_is_mctxs():
    root = jax.jit(setting().root_fn)(setting().params, None, setting().states)
    root = jax.device_get(root)
    legal = np.asarray(setting().states.legal_action_mask)
    transform = functools.partial(mctx.qtransform_completed_by_mix_value, rescale_values=False)
    with lenient_promotion():
        tree = run(mctx.muzero_policy, dirichlet_fraction=0.0, temperature=0.0, count=100)
        summary, completed = jax.device_get(
            jax.jit(lambda tree: (tree.summary(), jax.vmap(transform, (0, None))(tree, 0)))(
                tree.search_tree
            )
        )
    expected = jax.nn.softmax(jnp.where(legal, root.prior_logits + completed, -jnp.inf))
    stats = jaxpgs.base.NodeStats(
        prior_logits=root.prior_logits,
        value=root.value,
        visits=summary.visit_counts,
        value_sum=summary.qvalues * summary.visit_counts.astype(summary.qvalues.dtype),
        valid=jnp.asarray(legal),
    )
    ours = jaxpgs.target.qtransform_completed_by_mix_value
    target = jaxpgs.target.completed_q(
        0.0, qtransform=functools.partial(ours, rescale_values=False)
    )
    keys = jax.random.split(jax.random.key(0), NUM_ROOTS)
    action, weights = jax.jit(jax.vmap(lambda key, node: target(key, node, None)))(keys, stats)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    np.testing.assert_array_equal(action, jnp.argmax(expected, axis=-1))
    # Rescaled, by hand: two actions of Q 1 and 0, one never tried of a mixed value between.
    stats = jaxpgs.base.NodeStats(
        *map(jnp.asarray, ([0.0, 0.0, 0.0], 0.5, [1, 1, 0], [1.0, 0.0, 0.0], [True] * 3))
    )
    ours = functools.partial(ours, value_scale=0.01, maxvisit_init=9.0)
    _, weights = jaxpgs.target.completed_q(qtransform=ours)(jax.random.key(0), stats, None)
    np.testing.assert_allclose(weights, jax.nn.softmax(jnp.array([0.1, 0.0, 0.05])), atol=1e-6)
    # Divided by 4, as the Q-values range over less, and as before, as they range over more.
    for least, scale in ((4.0, 0.25), (0.5, 1.0)):
        target = jaxpgs.target.completed_q(qtransform=functools.partial(ours, epsilon=least))
        _, weights = target(jax.random.key(0), stats, None)
        expected = jax.nn.softmax(scale * jnp.array([0.1, 0.0, 0.05]))
        np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.slow
def test_a_finished_game_in_the_batch():
    s = setting()
    over = played(s.env, *np.array([[1], [0], [5], [3], [9], [7], [13]], np.int32))
    assert over.terminated.all()
    states = jax.tree.map(lambda x, y: np.concatenate([x, y[1:]]), over, s.states)
    alone = run(BY_EIGHTS["mcts"])
    output = run(BY_EIGHTS["mcts"], states)
    assert output.search_state.visits[0].sum() == 0
    assert np.isfinite(output.action_weights).all()
    np.testing.assert_array_equal(output.search_state.visits[1:], alone.search_state.visits[1:])


# --- handing nodes on -----------------------------------------------------------------------------


def sequences(nodes, b):
    """All visited sequences of one root, with what is remembered of each."""
    children = np.asarray(nodes.children[b])
    found, stack = {}, [((), 0)]
    while stack:
        sequence, node = stack.pop()
        for action in np.flatnonzero(children[node]):
            child = int(children[node, action])
            longer = (*sequence, int(action))
            found[longer] = (float(nodes.value[b, child]), int(nodes.visits[b, node, action]))
            assert int(nodes.parent[b, child]) == node < child
            assert int(nodes.edge[b, child]) % nodes.num_actions == action
            stack.append((longer, child))
    assert len(found) == int(toy.num_used(nodes)[b])
    return found


def test_reroot_keeps_what_is_behind_the_action():
    output = run(mcts, count=128, simulations_per_update=16)
    nodes, action = jax.device_get(output.search_state.nodes), np.asarray(output.action)
    for num_kept in (1, 5, 500):
        moved = jax.device_get(reroot(nodes, action, num_kept=num_kept))
        assert moved.children.shape[:2] == (NUM_ROOTS, num_kept)
        # Returns from a node that was dropped do not count, as it might be made once more.
        dropped = moved.children == 0
        assert not moved.visits[dropped].any() and not moved.value_sum[dropped].any()
        for b in range(NUM_ROOTS):
            before, after = sequences(nodes, b), sequences(moved, b)
            expected = {s[1:]: x for s, x in before.items() if s[0] == action[b] and len(s) > 1}
            assert len(expected) > 4
            assert len(after) == min(len(expected), num_kept - 1)
            assert after.items() <= expected.items()
    # Two moves at once, a game that has ended, and an action that was never tried.
    at_root = jax.jit(node_stats)(
        moved, np.zeros_like(action), np.zeros(output.action_weights.shape, np.float32)
    )
    second = np.argmax(at_root.visits, axis=-1).astype(np.int32)
    reset = np.arange(NUM_ROOTS) == 2
    twice = jax.device_get(reroot(moved, second, num_kept=500, reset=reset))
    untried = np.argmin(output.search_state.visits, axis=-1).astype(np.int32)
    none = jax.device_get(reroot(nodes, untried, num_kept=500))
    for b in range(NUM_ROOTS):
        prefix = (int(action[b]), int(second[b]))
        before = {s[2:]: x for s, x in sequences(nodes, b).items() if s[:2] == prefix}
        before.pop((), None)
        assert sequences(twice, b) == ({} if b == 2 else before)
        assert sequences(none, b) == {}


@pytest.mark.slow
@pytest.mark.parametrize("policy", mostly_slow(["mcts", "pgs"], "mcts"))
def test_search_goes_on_from_nodes(policy):
    s = setting()
    search = BY_EIGHTS[policy]
    first = run(search, count=64)
    action = first.action
    states = jax.jit(jax.vmap(s.env.step))(s.states, action)
    fresh = run(search, states, key=1, count=64)
    kept = jax.device_get(reroot(first.search_state.nodes, action, num_kept=64))
    warm, fresh = jax.device_get((run(search, states, key=1, count=64, nodes=kept), fresh))
    known = [sequences(kept, b) for b in range(NUM_ROOTS)]
    for b in range(NUM_ROOTS):
        found = sequences(warm.search_state.nodes, b)
        # Nothing known is lost or evaluated again, and what is known is right.
        assert known[b].keys() <= found.keys()
        assert len(found) == len(known[b]) + int(warm.search_state.num_evaluations[b])
        both = sequences(fresh.search_state.nodes, b)
        for sequence in found.keys() & both.keys():
            assert found[sequence][0] == pytest.approx(both[sequence][0], abs=1e-5)
    visits = np.asarray(warm.search_state.visits).sum(-1)
    if policy == "mcts":  # what reads the nodes keeps the statistics of its root
        earlier = [sum(n for q, (_, n) in k.items() if len(q) == 1) for k in known]
        np.testing.assert_array_equal(visits, 64 + np.array(earlier))
    else:
        np.testing.assert_array_equal(visits, 64)


@pytest.mark.slow
@pytest.mark.parametrize("policy", mostly_slow(["mcts", "pgs"], "mcts"))
def test_a_new_game_starts_from_nothing(policy):
    search = BY_EIGHTS[policy]
    first = run(search, count=64)
    fresh = run(search, key=1, count=64)
    # Games 0, 2, 4 have ended; the others go on.
    reset = np.arange(NUM_ROOTS) % 2 == 0
    kept = reroot(first.search_state.nodes, first.action, num_kept=64, reset=reset)
    warm = run(search, key=1, count=64, nodes=kept)
    for name in ("visits", "qvalues", "num_evaluations"):
        ours, theirs = getattr(warm.search_state, name), getattr(fresh.search_state, name)
        np.testing.assert_allclose(ours[::2], theirs[::2], atol=1e-6)


def test_bad_input():
    s = setting()
    output = run(BY_EIGHTS["mcts"])
    nodes = output.search_state.nodes
    with pytest.raises(ValueError, match="num_kept must be at least 1, for the root, got 0"):
        jaxpgs.reroot(nodes, output.action, num_kept=0)
    with pytest.raises(ValueError, match=r"nodes.*same number of roots"):
        fewer = jax.tree.map(lambda x: x[:2], nodes)
        run(mcts, count=16, nodes=fewer, simulations_per_update=8)
    with pytest.raises(ValueError, match="no policy that could adapt"):
        head = jaxpgs.networks.policy_head(s.params)
        jaxpgs.search.pgs_search(
            s.recurrent_fn, 16, adapt=head, interior_selection=jaxpgs.selection.puct()
        )
    with pytest.raises(ValueError, match='capacity are for mode="tree"'):
        knobs = {"mode": "rollouts", "interior_selection": jaxpgs.selection.puct()}
        run(functools.partial(jaxpgs.mcs_policy, **knobs), count=32)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("adapts", mostly_slow([False, True], True))
def test_estimate_counts_the_nodes(adapts):
    s = setting()
    root = jax.eval_shape(lambda: s.root_fn(s.params, None, s.states))
    head = jaxpgs.networks.policy_head(s.params) if adapts else None
    knobs = {"mode": "tree", "adapt": head, "simulations_per_update": 8}
    more = {"mode": "tree", "simulations_per_update": 8} | ({"adapt": head} if adapts else {})
    policy = functools.partial(jaxpgs.pgs_policy if adapts else jaxpgs.mcs_policy, **more)
    estimate = jaxpgs.estimate_memory(s.params, root, s.recurrent_fn, 32, **knobs)
    nodes = run(policy, count=32).search_state.nodes
    assert isinstance(nodes, Nodes)
    arrays = jax.tree.leaves(nodes)
    assert estimate.nodes == sum(x.size * x.dtype.itemsize for x in arrays)
    assert estimate.nodes == NUM_ROOTS * (32 + 8 + 1) * estimate.per_node
    longer = jaxpgs.estimate_memory(s.params, root, s.recurrent_fn, 3200, **knobs)
    knobs |= {"mode": "rollouts"}
    rollouts = [
        jaxpgs.estimate_memory(s.params, root, s.recurrent_fn, n, **knobs) for n in (32, 3200)
    ]
    assert rollouts[0] == rollouts[1] and rollouts[0].nodes == 0
    assert longer.total > 50 * estimate.nodes


def test_more_edges_than_numbers_are_refused():
    params = {"next": jnp.zeros((1, 50_000), jnp.int32)}

    def model(params, rng_key, action, node):
        zero = jnp.zeros(action.shape)
        logits = jnp.zeros((*action.shape, params["next"].shape[1]))
        return mctx.RecurrentFnOutput(
            reward=zero, discount=zero, prior_logits=logits, value=zero
        ), node

    root = mctx.RootFnOutput(
        prior_logits=jnp.zeros((1, 50_000)), value=jnp.zeros(1), embedding=jnp.zeros((1, 1))
    )

    def search(count, **knobs):
        jax.eval_shape(
            lambda: jaxpgs.mcs_policy(params, jax.random.key(0), root, model, count, **knobs)
        )

    with pytest.raises(ValueError, match=r"below 2\*\*31; got 43\d\d\d \* 50000"):
        search(43_000, mode="tree")
    search(43_000, mode="tree", capacity=42_000)
    search(43_000, mode="rollouts")


@pytest.mark.parametrize("mode", ["rollouts", "tree"])
def test_more_than_indices_can_tell_is_refused(mode):
    with pytest.raises(ValueError, match=r"num_simulations .* at most 1073741824.* got 429"):
        run(functools.partial(jaxpgs.mcs_policy, mode=mode), count=2**32)
