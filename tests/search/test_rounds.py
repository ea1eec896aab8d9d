"""Gumbel searches in rounds: mctx's answers in fewer calls, and updates of different widths."""

import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
import toy
from games import mostly_slow

import jaxpgs
from jaxpgs.search import finish, init, step
from jaxpgs.search.parts.gumbel import rounds

A = 20


def _hash(state, action):
    state = (state ^ (state >> 15)) * jnp.uint32(0x85EBCA77) + action.astype(jnp.uint32)
    state = (state ^ (state >> 13)) * jnp.uint32(0x9E3779B1)
    return state ^ (state >> 16)


def _draw(state, purpose, shape=()):
    return jax.random.normal(jax.random.fold_in(jax.random.key(purpose), state), shape)


def endless(scale, params, key, action, state):
    """A random tree of rewards, ends, and players who do not always take turns."""
    del params, key
    state = jax.vmap(_hash)(state, action)
    discount = jnp.where(state % 7 == 0, 0.0, jnp.where(state % 2 == 0, -1.0, 0.9))
    return mctx.RecurrentFnOutput(
        reward=0.3 * scale * jax.vmap(lambda s: _draw(s, 1))(state),
        discount=discount,
        prior_logits=jax.vmap(lambda s: _draw(s, 2, (A,)))(state),
        value=scale * jax.vmap(lambda s: _draw(s, 3))(state),
    ), state


def endless_roots(num_roots, masked, scale=1.0):
    state = _hash(jnp.arange(num_roots, dtype=jnp.uint32), jnp.int32(7))
    logits = jax.vmap(lambda s: _draw(s, 2, (A,)))(state)
    value = scale * jax.vmap(lambda s: _draw(s, 3))(state)
    root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=state)
    rng = np.random.default_rng(num_roots)
    invalid = rng.random((num_roots, A)) < rng.choice([0.0, 0.3, 0.9], (num_roots, 1)) * masked
    invalid[:2] = np.array([[True], [False]]) & masked
    invalid[:, 3] = False
    return root, jnp.asarray(invalid)


def small_tree():
    rng = np.random.default_rng(8)
    size = 1 + 3 + 9 + 27
    return toy.tree(
        3, 3, features=rng.normal(size=(size, 4)), head=rng.normal(size=(4, 3)),
        value=rng.uniform(-1, 1, size), reward=rng.uniform(-0.5, 0.5, (size, 3)),
    )  # fmt: skip


def both(recurrent_fn, params, key, root, count, invalid, considered, noise):
    knobs = {"max_num_considered_actions": considered, "gumbel_scale": noise}
    data = params, key, root, recurrent_fn, count, invalid
    ours, theirs = jax.jit(
        lambda: (
            jaxpgs.gumbel_mcts_policy(*data, simulations_per_update="rounds", **knobs),
            mctx.gumbel_muzero_policy(*data, **knobs),
        )
    )()
    return ours, theirs, theirs.search_tree.summary()


def assert_same(ours, theirs, summary):
    np.testing.assert_array_equal(ours.search_state.visits, summary.visit_counts)
    np.testing.assert_array_equal(ours.action, theirs.action)
    np.testing.assert_allclose(ours.action_weights, theirs.action_weights, atol=2e-5)


# With more than 16 roots only as many simulations are started as a round has.
@pytest.mark.parametrize(
    ("count", "considered", "noise", "num_roots"),
    mostly_slow(
        [
            (16, 16, 1.0, 40), (32, 16, 1.0, 12), (32, 16, 0.0, 40), (50, 8, 1.0, 12),
            (64, 16, 1.0, 40), (7, 3, 1.0, 12),
        ],
        (16, 16, 1.0, 40),
    ),
)  # fmt: skip
@pytest.mark.lenient
def test_a_search_in_rounds_is_mctxs(count, considered, noise, num_roots):
    root, invalid = endless_roots(num_roots, masked=True, scale=3.0)
    model = functools.partial(endless, 3.0)
    found = both(model, {}, jax.random.key(count), root, count, invalid, considered, noise)
    assert_same(*found)
    legal = (~np.asarray(invalid)).sum(axis=-1)
    assert (legal == 1).any() and (legal < considered).any() and (legal >= considered).any()


@pytest.mark.lenient
@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "considered", "calls"),
    mostly_slow([(16, 16, 1), (32, 16, 4), (64, 16, 15), (64, 8, 21)], (32, 16, 4)),
)
def test_a_round_is_one_call(count, considered, calls):
    assert len(rounds(considered, count)) == calls and sum(rounds(considered, count)) == count
    root, invalid = endless_roots(16, masked=False)
    model = functools.partial(endless, 1.0)
    ours, *others = both(model, {}, jax.random.key(3), root, count, invalid, considered, 1.0)
    assert_same(ours, *others)
    assert int(ours.search_state.num_calls) == calls
    evaluations = np.asarray(ours.search_state.num_evaluations)
    assert np.all(evaluations <= 1.4 * count)


@pytest.mark.lenient
@pytest.mark.slow
def test_hex_in_rounds_is_mctxs():
    network = jaxpgs.load_pretrained("hex-5x5-early")
    env = network.env
    state = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 24))
    for n, move in enumerate([12, 7, 3, 18, 20, 1]):
        later = jax.vmap(env.step, in_axes=(0, None))(state, move)
        state = jax.tree.map(
            lambda a, b, n=n: jnp.concatenate([a[: 4 * n], b[4 * n :]]), state, later
        )
    root = jaxpgs.make_root_fn(env, network.apply_fn)(network.params, jax.random.key(0), state)
    model = jaxpgs.make_recurrent_fn(env, network.apply_fn)
    invalid = ~state.legal_action_mask
    assert_same(*both(model, network.params, jax.random.key(1), root, 48, invalid, 16, 1.0))


@pytest.mark.slow
def test_an_answer_does_not_depend_on_the_number_of_roots():
    root, invalid = endless_roots(20, masked=True)
    model = functools.partial(endless, 1.0)
    keys = jax.random.split(jax.random.key(0), 20)
    in_rounds = functools.partial(jaxpgs.gumbel_mcts_policy, simulations_per_update="rounds")
    search = jax.jit(lambda *data: in_rounds({}, *data[:2], model, 32, data[2]))
    whole = search(keys, root, invalid)
    for i in (0, 7, 19):
        row = jax.tree.map(lambda x, i=i: x[i : i + 1], (keys, root, invalid))
        one = search(*row)
        np.testing.assert_array_equal(one.search_state.visits[0], whole.search_state.visits[i])
        np.testing.assert_array_equal(one.action[0], whole.action[i])


@pytest.mark.slow
def test_one_legal_action_runs_many_at_a_time():
    root, _ = endless_roots(3, masked=False)
    invalid = jnp.ones((3, A), bool).at[:, 4].set(False)
    output = jax.jit(
        lambda: jaxpgs.gumbel_mcts_policy(
            {},
            jax.random.key(0),
            root,
            functools.partial(endless, 1.0),
            32,
            invalid,
            simulations_per_update="rounds",
        )
    )()
    assert np.all(np.asarray(output.search_state.visits) == 32 * (np.arange(A) == 4))
    assert int(output.search_state.num_calls) <= 6


@pytest.mark.slow
def test_no_legal_action_ends():
    root, _ = endless_roots(2, masked=False)
    invalid = jnp.ones((2, A), bool).at[1].set(False)
    output = jax.jit(
        lambda: jaxpgs.gumbel_mcts_policy(
            {}, jax.random.key(0), root, functools.partial(endless, 1.0), 16, invalid
        )
    )()
    np.testing.assert_array_equal(np.sum(output.search_state.visits, axis=-1), [0, 16])


@pytest.mark.slow
def test_steps_are_the_whole_search():
    root, invalid = endless_roots(5, masked=True)
    model, key = functools.partial(endless, 1.0), jax.random.key(5)
    search = jaxpgs.search.gumbel_mcts_search(model, 32, simulations_per_update="rounds")
    assert search.num_updates == len(search.simulations_per_update)
    carry = jax.jit(functools.partial(init, search, {}))(key, root, invalid)
    once = jax.jit(functools.partial(step, search, {}))
    for _ in range(search.num_updates):
        carry = once(carry)
    after = once(carry)
    known = jax.jit(lambda: jaxpgs.search.run(search, {}, key, root, invalid))()
    say = jax.jit(functools.partial(finish, search))
    for output in (say(carry), say(after)):
        np.testing.assert_array_equal(output.search_state.visits, known.search_state.visits)
        np.testing.assert_array_equal(output.action, known.action)


@pytest.mark.slow
def test_rounds_go_on_from_kept_nodes():
    root, invalid = endless_roots(6, masked=False)
    model, key = functools.partial(endless, 1.0), jax.random.key(6)
    policy = jax.jit(
        lambda root, nodes, width: jaxpgs.gumbel_mcts_policy(
            {}, key, root, model, 32, invalid, nodes=nodes, simulations_per_update=width
        ),
        static_argnums=2,
    )
    first = policy(root, None, 1)
    nodes = jaxpgs.reroot(first.search_state.nodes, first.action, num_kept=40)
    out, state = model({}, None, first.action, root.embedding)
    root = mctx.RootFnOutput(prior_logits=out.prior_logits, value=out.value, embedding=state)
    one, together = (policy(root, nodes, width) for width in (1, "rounds"))
    assert np.all(np.sum(one.search_state.visits, axis=-1) >= 32)
    np.testing.assert_array_equal(one.search_state.visits, together.search_state.visits)
    np.testing.assert_array_equal(one.action, together.action)


@pytest.mark.slow
def test_a_budget_of_seconds_ends_with_the_last_simulation():
    # Of few legal actions what the simulations return decides how many updates it takes.
    root, _ = endless_roots(16, masked=False)
    invalid = jnp.broadcast_to(jnp.arange(A) >= 3, (16, A))
    model, key = functools.partial(endless, 1.0), jax.random.key(0)
    search = jaxpgs.search.gumbel_mcts_search(model, 16, simulations_per_update="rounds")
    seen = []
    output = jaxpgs.search_for(search, {}, key, root, invalid, seconds=1e3, callback=seen.append)
    assert seen[-1].num_updates > search.num_updates  # or the example shows nothing
    whole = jax.jit(lambda: jaxpgs.search.run(search, {}, key, root, invalid))()
    np.testing.assert_array_equal(output.search_state.visits, whole.search_state.visits)
    assert np.all(np.sum(output.search_state.visits, axis=-1) == 16)


def test_updates_behind_the_last_are_like_the_last():
    root, _ = endless_roots(2, masked=False)
    invalid = jnp.broadcast_to(jnp.arange(A) >= 3, (2, A))
    search = jaxpgs.search.batched_mcts_search(
        functools.partial(endless, 1.0),
        6,
        root_selection=jaxpgs.gumbel.gumbel_root(4, in_rounds=True),
        interior_selection=jaxpgs.gumbel.gumbel_inner(),
        target=jaxpgs.gumbel.gumbel_target(),
        simulations_per_update=rounds(4, 6),
    )
    assert search.widths == (4, 2)  # which must not go on as 0, -2, -4
    carry = jax.jit(functools.partial(init, search, {}))(jax.random.key(0), root, invalid)
    carry = jax.jit(functools.partial(jaxpgs.search.advance, search, {}))(carry, 6)
    np.testing.assert_array_equal(carry.totals.simulations, 6)


# --- updates of different widths ------------------------------------------------------------------


@pytest.mark.slow
def test_a_sequence_of_one_width_is_that_width():
    params, key = small_tree(), jax.random.key(1)
    root = toy.root(params, [0, 1, 2])

    def visits(width):
        policy = functools.partial(jaxpgs.pgs_policy, adapt=toy.adapt_head)
        output = jax.jit(
            lambda: policy(params, key, root, toy.split_fn, 10, simulations_per_update=width)
        )()
        return output.search_state.visits, output.search_state.gradient_norm

    jax.tree.map(np.testing.assert_array_equal, visits(4), visits([4, 4, 4]))


@pytest.mark.slow
@pytest.mark.parametrize("mode", mostly_slow(["tree", "rollouts"], "tree"))
def test_widths_may_differ(mode):
    params, key = small_tree(), jax.random.key(1)
    root = toy.root(params, [0, 1, 2])
    search = jaxpgs.search.pgs_search(
        toy.split_fn, 12, adapt=toy.adapt_head, simulations_per_update=(6, 1, 1, 4), mode=mode
    )
    output = jax.jit(lambda: jaxpgs.search.run(search, params, key, root))()
    assert search.num_updates == 4
    assert np.all(np.sum(output.search_state.visits, axis=-1) == 12)
    carry, seen = jax.jit(functools.partial(init, search, params))(key, root), []
    once = jax.jit(functools.partial(step, search, params))
    for _ in range(5):
        carry = once(carry)
        seen.append(int(carry.totals.simulations[0]))
    assert seen == [6, 7, 8, 12, 12]
    np.testing.assert_array_equal(carry.stats.visits, output.search_state.visits)


@pytest.mark.slow
def test_a_round_of_gumbel_pgs_adapts_the_head_once():
    params, key = small_tree(), jax.random.key(1)
    root = toy.root(params, [0, 1, 2])
    knobs = {"adapt": toy.adapt_head, "max_num_considered_actions": 2}
    search = jaxpgs.search.gumbel_pgs_search(
        toy.split_fn, 12, simulations_per_update="rounds", mode="tree", **knobs
    )
    assert search.simulations_per_update == (2,) * 6 and search.root_selection.rounds is None
    output = jax.jit(lambda: jaxpgs.search.run(search, params, key, root))()
    assert np.all(np.sum(output.search_state.visits, axis=-1) == 12)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"make room for all simulations; got 16 .* have only 12"):
        jaxpgs.search.mcs_search(toy.split_fn, 16, simulations_per_update=(8, 4))
    with pytest.raises(ValueError, match=r"simulations_per_update"):
        jaxpgs.search.mcs_search(toy.split_fn, 16, simulations_per_update=(8, 8.0))
    with pytest.raises(ValueError, match=r"\"rounds\" is for Gumbel searches; got 'rounds'"):
        jaxpgs.search.mcs_search(toy.split_fn, 16, simulations_per_update="rounds")
    with pytest.raises(ValueError, match=r"for the preset's own root_selection"):
        jaxpgs.search.gumbel_mcts_search(
            toy.split_fn,
            16,
            simulations_per_update="rounds",
            root_selection=jaxpgs.selection.puct(1.5),
        )
    with pytest.raises(ValueError, match=r"in rounds is for tree searches"):
        jaxpgs.search.mcs_search(
            toy.split_fn, 16, root_selection=jaxpgs.gumbel.gumbel_root(in_rounds=True)
        )
    with pytest.raises(ValueError, match=r"reuse.*updates"):
        jaxpgs.search.pgs_search(
            toy.split_fn, 16, adapt=toy.adapt_head, reuse=jaxpgs.reuse.Reuse(2),
            simulations_per_update=(8, 4, 4),
        )  # fmt: skip
