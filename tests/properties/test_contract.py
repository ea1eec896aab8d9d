"""Init, step, finish: one search however it is cut, asked or fed; and what used to go wrong."""

import dataclasses
import functools
import itertools
import os
import pathlib
import subprocess
import sys
import textwrap

import chex
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest
import toy
from flax import nnx
from games import mostly_slow

import jaxpgs
from jaxpgs.search import advance, finish, init, run

B = 4
LOWEST = np.finfo(np.float32).min


def keys(seed=0, count=B):
    return jax.random.split(jax.random.key(seed), count)


@functools.cache
def game(branching=3, depth=4):
    rng = np.random.default_rng(5)
    size = sum(branching**d for d in range(depth + 1))
    return toy.tree(
        branching, depth, discount=-0.9,
        features=rng.normal(size=(size, 4)), head=rng.normal(size=(4, branching)),
        value=rng.uniform(-1, 1, size), reward=rng.uniform(-1, 1, (size, branching)),
    )  # fmt: skip


def pgs(count=20, **knobs):
    knobs = {"simulations_per_update": 4, "adapt": toy.adapt_head, "mode": "tree"} | knobs
    return jaxpgs.search.pgs_search(toy.split_fn, count, **knobs)


SEARCHES = {
    "pgs, rollouts": lambda: pgs(mode="rollouts", optimizer=optax.sgd(0.1, momentum=0.9)),
    "pgs, tree": pgs,
    "pgs, reuse": lambda: pgs(reuse=jaxpgs.reuse.Reuse(2, num_epochs=2, clip=0.2)),
    "mcts": lambda: jaxpgs.search.batched_mcts_search(
        toy.split_fn, 20, simulations_per_update=4, dirichlet_fraction=0.25
    ),
    "gumbel mcts": lambda: jaxpgs.search.gumbel_mcts_search(
        toy.split_fn, 20, simulations_per_update=4
    ),
}


@functools.cache
def made(name):
    """One search for each name, since a search is compared by identity."""
    return SEARCHES[name]()


@functools.cache
def compiled(function, *static):
    """One compilation for each function and search."""
    return jax.jit(functools.partial(function, *static))


reroot = jax.jit(jaxpgs.reroot, static_argnames="num_kept")


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(SEARCHES, "pgs, rollouts"))
def test_the_same_bits_however_the_steps_are_cut(name):
    search, params = made(name), game()
    data = (params, keys(1), toy.root(params, [0, 1, 2, 5]))
    whole = compiled(run, search)(*data)
    assert search.num_updates == 5
    begin, go, say = (compiled(f, search) for f in (init, advance, finish))
    for cuts in ([5], [1, 1, 1, 1, 1], [2, 3], [4, 0, 1]):
        carry = begin(*data)
        for count in cuts:
            say(carry)  # asking changes nothing
            # Out of the program and back in, as a checkpoint would bring it.
            carry = jax.tree.map(
                lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x),
                go(params, carry, count),
            )
        chex.assert_trees_all_equal(say(carry), whole)
    # The budget is spent: further steps change nothing.
    for field in ("stats", "adapted", "opt_state", "totals", "num_updates"):
        after, now = (getattr(go(params, carry, n), field) for n in (3, 0))
        chex.assert_trees_all_equal(after, now)
    np.testing.assert_array_equal(whole.search_state.visits.sum(-1), 20)
    for leaf in jax.tree.leaves(carry):
        assert leaf.shape[0] == B, "every array of the carry has a leading axis of roots"


def test_an_answer_at_any_time():
    search, params = made("pgs, rollouts"), game()
    roots = toy.root(params, [0, 1, 2, 5])
    carry = compiled(init, search)(params, keys(1), roots)
    before = compiled(finish, search)(carry)
    prior = jax.nn.softmax(roots.prior_logits)
    np.testing.assert_allclose(before.action_weights, prior, rtol=1e-6)
    np.testing.assert_allclose(before.search_state.value, roots.value)
    assert not before.search_state.visits.any()
    for done in (1, 2, 3):
        carry = compiled(advance, search)(params, carry, 1)
        output = compiled(finish, search)(carry)
        np.testing.assert_array_equal(output.search_state.visits.sum(-1), 4 * done)
    # It is the answer of the search that had only so many simulations.
    fewer = dataclasses.replace(search, num_simulations=12)
    shorter = compiled(run, fewer)(params, keys(1), roots)
    for field in ("visits", "qvalues", "params", "gradient_norm"):
        one, two = getattr(output.search_state, field), getattr(shorter.search_state, field)
        chex.assert_trees_all_close(one, two, atol=1e-6)


@pytest.mark.first_case
@pytest.mark.parametrize("mode", ["rollouts", "tree"])
@pytest.mark.parametrize(("count", "width"), [(10, 4), (3, 5)])
@pytest.mark.each_value
def test_any_number_of_simulations(mode, count, width):
    search = pgs(count, simulations_per_update=width, mode=mode, optimizer=optax.sgd(0.1))
    output = compiled(run, search)(game(), keys(2), toy.root(game(), [0, 1, 2, 5]))
    np.testing.assert_array_equal(output.search_state.visits.sum(-1), count)
    assert output.search_state.num_calls >= search.num_updates
    assert (output.search_state.num_evaluations >= 1).all()


def test_default_number_at_a_time_takes_any_budget():
    for count in (1, 16, 50, 100, 200):
        for policy, knobs in (
            (jaxpgs.search.mcs_search, {}),
            (jaxpgs.search.gumbel_mcts_search, {}),
        ):
            assert policy(toy.recurrent_fn, count, **knobs).num_updates >= 1
    assert jaxpgs.search.mcs_search(toy.recurrent_fn, 50).simulations_per_update == 3


# --- a full memory --------------------------------------------------------------------------------


KNOBS = {
    "truncation": jaxpgs.truncation.fixed(3),
    "optimizer": optax.sgd(0.1),
    "interior_selection": None,
}


@functools.cache
def unbounded():
    return compiled(run, pgs(mode="rollouts", **KNOBS))


@pytest.mark.slow
@pytest.mark.parametrize("capacity", mostly_slow([1, 9], 9))
def test_a_full_memory_forgets_new_states_and_nothing_else(capacity):
    # Simulations of a fixed length that read no node visit the same states whatever is remembered.
    params = game()
    data = (params, keys(3), toy.root(params, [0, 1, 2, 0]))
    full = compiled(run, pgs(capacity=capacity, **KNOBS))(*data).search_state
    free = jax.device_get(unbounded()(*data).search_state)
    for field in ("visits", "qvalues", "params", "entropy"):
        chex.assert_trees_all_close(getattr(full, field), getattr(free, field), atol=1e-5)
    size = toy.num_used(full.nodes)
    assert (size <= capacity).all() and (size >= min(capacity, 5)).all()
    children = np.asarray(full.nodes.children)
    assert children.max() <= capacity, "nobody knows a state that is written over"
    assert (full.num_evaluations >= size).all()
    assert (full.num_evaluations > capacity).any(), "so that it did run full"


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(["pgs, tree", "mcts", "gumbel mcts"], "mcts"))
def test_a_full_memory_is_searched_to_the_end(name):
    make = {"pgs, tree": pgs, "mcts": jaxpgs.search.batched_mcts_search}.get(name)
    knobs = {"simulations_per_update": 4, "capacity": 6}
    if name == "pgs, tree":
        search = make(40, **knobs)
    else:
        search = (make or jaxpgs.search.gumbel_mcts_search)(toy.split_fn, 40, **knobs)
    data = game(), keys(4), toy.root(game(), [0, 1, 2, 0])
    output = compiled(run, search)(*data)
    state = output.search_state
    np.testing.assert_array_equal(state.visits.sum(-1), 40)
    # What the first six simulations have found is all that is known in the end.
    free = dataclasses.replace(search, capacity=None)
    known = compiled(run, free)(*data).search_state.nodes
    np.testing.assert_array_equal(state.nodes.edge[:, :7], known.edge[:, :7])
    np.testing.assert_array_equal(toy.num_used(state.nodes), np.sum(known.edge[:, :7] >= 0, axis=1))
    assert (toy.num_used(state.nodes) > 3).all() and np.max(state.nodes.children) <= 6
    chex.assert_tree_all_finite((output.action_weights, state.qvalues, state.params))


# --- loops that hand on ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_loop_of_moves_needs_no_private_helper():
    params, search = game(depth=6), pgs(12)
    num_kept = 8

    def move(carry, rng_key):
        node, nodes, heads = carry
        output = run(
            search, params, rng_key, toy.root(params, node), nodes=nodes, adapted_params=heads
        )
        after = params["next"][node, output.action].astype(jnp.int32)
        nodes = jaxpgs.reroot(output.search_state.nodes, output.action, num_kept=num_kept)
        return (after, nodes, output.search_state.params), output.search_state.num_evaluations

    start = jnp.zeros(B, jnp.int32)
    first = (
        start,
        jaxpgs.search.init_nodes(search, params, toy.root(params, start), num_kept),
        jaxpgs.search.init_adapted(params, toy.adapt_head, B),
    )
    (end, nodes, heads), evaluations = jax.jit(lambda: jax.lax.scan(move, first, keys(6, 3)))()
    assert (end > 0).all() and (toy.num_used(nodes) > 0).any()
    assert (np.asarray(heads["head"]) != np.asarray(params["head"])).any((1, 2)).all()
    # The first search is one that was handed nothing.
    fresh = jax.jit(functools.partial(run, search))(params, keys(6, 3)[0], toy.root(params, start))
    np.testing.assert_array_equal(evaluations[0], fresh.search_state.num_evaluations)


def test_nothing_to_hand_on_is_named():
    with pytest.raises(ValueError, match=r'reroot.*mode="tree"'):
        jaxpgs.reroot(None, jnp.zeros(B, jnp.int32), num_kept=4)
    with pytest.raises(ValueError, match=r'init_nodes.*mode="tree"'):
        jaxpgs.search.init_nodes(pgs(mode="rollouts"), game(), toy.root(game(), [0]), 4)
    with pytest.raises(ValueError, match="num_kept must be at least 1"):
        jaxpgs.search.init_nodes(pgs(), game(), toy.root(game(), [0]), 0)


@pytest.mark.slow
def test_value_counts_the_returns_that_it_divides():
    # A tree search goes on from the visits that its root has had, and so does its value.
    params = game()
    search = jaxpgs.search.batched_mcts_search(toy.split_fn, 24, simulations_per_update=4)
    first = compiled(run, search)(params, keys(1), toy.root(params, [0] * B))
    nodes = reroot(first.search_state.nodes, first.action, num_kept=12)
    after = toy.root(params, params["next"][0, first.action])
    warm = jax.jit(functools.partial(run, search))(params, keys(2), after, nodes=nodes)
    state = warm.search_state
    assert (state.visits.sum(-1) > 24).all()
    visits, qvalues = np.asarray(state.visits), np.asarray(state.qvalues)
    mean = np.where(visits > 0, visits * qvalues, 0).sum(-1) / visits.sum(-1)
    np.testing.assert_allclose(state.value, mean, rtol=1e-5)


# --- answers that used to be wrong ----------------------------------------------------------------


def chain(length, reward=1.0, discount=0.9):
    """One action after another; each pays."""
    params = toy.tree(1, length, discount=discount, reward=np.full((length + 1, 1), reward))
    return params, toy.root(params, [0])


@pytest.mark.slow
@pytest.mark.parametrize("mode", mostly_slow(["rollouts", "tree"], "tree"))
def test_rewards_on_the_way_count_by_default(mode):
    params, root = chain(12)
    expected = sum(0.9**t for t in range(10))  # ten steps, as far as max_depth
    knobs = {"mode": mode, "max_depth": 10, "truncation": jaxpgs.truncation.fixed(10)}
    search = (
        pgs(8, **knobs) if mode == "tree" else jaxpgs.search.mcs_search(toy.split_fn, 8, **knobs)
    )
    state = compiled(run, search)(params, keys(0, 1), root).search_state
    np.testing.assert_allclose(state.qvalues, expected, rtol=1e-5)


@pytest.mark.slow
def test_no_silent_bound_in_the_cached_mode():
    params, root = chain(60)
    search = jaxpgs.search.batched_mcts_search(toy.split_fn, 40, simulations_per_update=1)
    state = compiled(run, search)(params, keys(0, 1), root).search_state
    # Every simulation goes one step further than the last.
    np.testing.assert_allclose(state.depth, np.mean(np.arange(1, 41)), rtol=1e-6)
    assert state.depth_limited == 0
    rollouts = {"simulations_per_update": 1, "mode": "rollouts"}
    shallow = jaxpgs.search.mcs_search(toy.split_fn, 40, **rollouts)
    state = compiled(run, shallow)(params, keys(0, 1), root).search_state
    np.testing.assert_allclose(state.depth_limited, 24 / 40, rtol=1e-6)  # all after the 16th
    explicit = jaxpgs.search.mcs_search(toy.split_fn, 40, max_depth=40, **rollouts)
    state = compiled(run, explicit)(params, keys(0, 1), root).search_state
    assert state.depth_limited == 0
    with pytest.raises(ValueError, match="sets no bound: max_depth must be given"):
        endless = jaxpgs.search.mcs_search(
            toy.split_fn, 8, mode="tree", truncation=jaxpgs.truncation.by_probability(0.1)
        )
        jax.eval_shape(functools.partial(run, endless), params, keys(0, 1), root)


TYPES = [
    (("bfloat16", "bfloat16"), "rollouts"),
    (("bfloat16", "float32"), "tree"),
    (("float16", "float16"), "tree"),
]


@pytest.mark.first_case
@pytest.mark.parametrize(("types", "mode"), mostly_slow(TYPES, TYPES[0], TYPES[2]))
def test_statistics_are_float32_or_wider(types, mode):
    logits_type, value_type = map(jnp.dtype, types)
    params, _ = chain(3, reward=0.0)
    params = params | {"value": jnp.full(4, 0.9)}
    root = mctx.RootFnOutput(
        prior_logits=jnp.log(jnp.array([[0.7, 0.2, 0.1]])).astype(logits_type),
        value=jnp.array([0.9], value_type),
        embedding=jnp.zeros(1, jnp.int32),
    )

    def recurrent_fn(params, rng_key, action, node):
        shape = action.shape
        output = mctx.RecurrentFnOutput(
            reward=jnp.zeros(shape, value_type),
            discount=jnp.ones(shape, value_type),
            prior_logits=jnp.zeros((*shape, 3), logits_type),
            value=jnp.full(shape, 0.9, value_type),
        )
        return output, node

    search = jaxpgs.search.mcs_search(recurrent_fn, 600, simulations_per_update=1, mode=mode)
    state = jax.jit(functools.partial(run, search))(params, keys(0, 1), root).search_state
    assert state.qvalues.dtype == jnp.float32 and state.value.dtype == jnp.float32
    np.testing.assert_allclose(state.qvalues[0], 0.9, rtol=4e-3)  # as exact as the type's 0.9
    visits = np.asarray(state.visits[0])
    assert visits.sum() == 600
    np.testing.assert_allclose(visits / 600, [0.7, 0.2, 0.1], atol=0.02)  # PUCT follows the prior


@pytest.mark.slow
def test_lost_positions_have_negative_values():
    params = toy.tree(5, 2, value=np.full(31, -0.5))
    root = toy.root(params)
    search = jaxpgs.search.mcs_search(
        toy.recurrent_fn, 3, root_selection=jaxpgs.selection.puct(0.0)
    )
    state = jax.jit(functools.partial(run, search))(params, keys(0, 1), root).search_state
    assert (np.asarray(state.visits) == 0).any()
    np.testing.assert_allclose(state.qvalues.max(axis=-1), -0.5)
    assert np.isfinite(state.qvalues).all()


@pytest.mark.slow
@pytest.mark.parametrize("mode", mostly_slow(["rollouts", "tree"], "tree"))
def test_targets_read_the_prior_without_noise(mode):
    params = game()
    roots = toy.root(params, [0, 1, 2, 5])

    def prior_and_visits(rng_key, root, state):
        return jnp.argmax(root.visits).astype(jnp.int32), jax.nn.softmax(root.prior_logits)

    @jax.jit
    def plan(fraction):
        search = jaxpgs.search.mcs_search(
            toy.split_fn, 16, mode=mode, dirichlet_fraction=fraction, target=prior_and_visits
        )
        return run(search, params, keys(3), roots)

    noisy, plain = plan(0.9), plan(0.0)
    clean = jax.nn.softmax(roots.prior_logits)
    np.testing.assert_allclose(noisy.action_weights, clean, rtol=1e-6)
    assert (noisy.search_state.visits != plain.search_state.visits).any(), "but it explores"


@pytest.mark.slow
def test_huge_values_leave_finite_weights():
    params = game() | {"value": jnp.full(121, 3e38).at[::2].set(-3e38)}
    roots = toy.root(params, [0, 1, 2, 5])
    search = pgs(16, estimator=jaxpgs.estimator.reinforce("mean", normalize=True))
    output = jax.jit(functools.partial(run, search))(params, keys(3), roots)
    chex.assert_tree_all_finite((output.action_weights, output.search_state.params))
    np.testing.assert_allclose(output.action_weights.sum(-1), 1, rtol=1e-5)


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_knobs_that_are_not_numbers_play_no_illegal_action():
    params = game()
    roots = toy.root(params, [0, 1, 2, 5])
    invalid = jnp.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 1, 0]])

    @functools.partial(jax.jit, static_argnums=0)
    def play(rule, c, virtual_loss, temperature, noise):
        if rule == "puct":
            parts = (
                jaxpgs.selection.puct(c, virtual_loss=virtual_loss),
                jaxpgs.target.visit_counts(temperature),
            )
        else:
            parts = jaxpgs.selection.ucb1(c), jaxpgs.target.completed_q(temperature)
        search = jaxpgs.search.mcs_search(
            toy.recurrent_fn, 8, simulations_per_update=4, root_selection=parts[0],
            target=parts[1], dirichlet_fraction=noise,
        )  # fmt: skip
        return run(search, params, keys(3), roots, invalid)

    for rule, bad, place in itertools.product(("puct", "ucb1"), (np.nan, np.inf), range(4)):
        knobs = np.array([1.0, 1.0, 1.0, 0.25], np.float32)
        knobs[place] = bad
        output = play(rule, *knobs)
        assert not np.any(np.asarray(output.search_state.visits) * np.asarray(invalid))
        assert (np.asarray(invalid)[np.arange(B), output.action] == 0).all()


@pytest.mark.slow
def test_nan_behind_the_end_of_a_game_is_nobodys():
    # Root 0's game ends with its first step; behind it the model has no number to say.
    params = game()
    params = params | {
        "discount": params["discount"].at[0].set(0.0),
        "torso": params["torso"].at[4:13].set(jnp.nan),  # two steps from node 0
    }
    search = pgs(mode="rollouts", truncation=jaxpgs.truncation.fixed(3), optimizer=optax.sgd(0.1))
    for nodes in ([0, 20, 20, 20], [0, 0, 0, 0]):
        state = compiled(run, search)(params, keys(3), toy.root(params, nodes)).search_state
        np.testing.assert_array_equal(state.skipped_updates, 0)
        chex.assert_tree_all_finite(state.params)


@pytest.mark.slow
def test_what_the_optimizer_makes_is_looked_at():
    # A finite gradient, and a step that is not.
    def update(updates, state, params=None):
        return jax.tree.map(lambda x: x + jnp.nan, updates), state

    broken = optax.GradientTransformation(lambda params: (), update)
    state = compiled(run, pgs(optimizer=broken))(
        game(), keys(3), toy.root(game(), [0, 1, 2, 5])
    ).search_state
    np.testing.assert_array_equal(state.skipped_updates, 5)
    np.testing.assert_array_equal(state.params["head"][0], game()["head"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", mostly_slow(["rollouts", "tree"], "tree"))
def test_features_of_zero_move_nothing(mode):
    params = game() | {"torso": jnp.zeros((121, 4))}
    state = compiled(run, pgs(mode=mode))(
        params, keys(3), toy.root(params, [0, 1, 2, 5])
    ).search_state
    chex.assert_tree_all_finite(state.params)
    np.testing.assert_array_equal(state.params["head"][0], params["head"])


# --- models and arguments -------------------------------------------------------------------------


def noisy_fn(params, rng_key, action, node):
    """A model that uses its key, as mctx's contract has it: one key for the batch."""
    output, node = toy.split_fn(params, rng_key, action, node)
    noise = jax.random.normal(rng_key, action.shape)
    return output.replace(value=output.value + 0.1 * noise), node


def noisy_split():
    def expand(params, rng_key, action, node):
        expansion, node = toy.split_fn.expand(params, rng_key, action, node)
        noise = jax.random.normal(rng_key, action.shape)
        return expansion._replace(value=expansion.value + 0.1 * noise), node

    return jaxpgs.base.SplitRecurrentFn(expand, toy.split_fn.policy)


@pytest.mark.slow
def test_models_may_use_their_key():
    params = game()
    roots = toy.root(params, [0, 1, 2, 5])
    searches = [
        jaxpgs.search.mcs_search(noisy_fn, 8),
        jaxpgs.search.pgs_search(noisy_split(), 8, adapt=toy.adapt_head, mode="tree"),
    ]
    for search in searches:
        plan = jax.jit(functools.partial(run, search))
        one, two = (plan(params, key, roots).search_state for key in (keys(1), keys(2)))
        assert (one.value != two.value).all()
    for mode in ("rollouts", "tree"):
        assert jaxpgs.estimate_memory(params, roots, noisy_fn, 64, mode=mode).total > 0


def test_an_objective_that_teaches_nothing_is_named():
    first = lambda root, trajectory, returns: jnp.sum(returns[0], axis=-1)  # noqa: E731
    blind = pgs(estimator=jaxpgs.estimator.Estimator(first, ()))
    with pytest.raises(ValueError, match=r"objective.*log_prob"):
        run(blind, game(), keys(), toy.root(game(), [0] * B))


def test_unknown_knobs_name_the_function_that_was_called():
    arguments = (game(), keys(), toy.root(game(), [0] * B), toy.split_fn, 8)
    with pytest.raises(TypeError, match=r"pgs_policy\(\) has no argument 'root_selecton'.*mean 'r"):
        jaxpgs.pgs_policy(*arguments, adapt=toy.adapt_head, root_selecton=jaxpgs.selection.puct())
    with pytest.raises(TypeError, match=r"mcs_policy\(\) has no argument 'adept'"):
        jaxpgs.mcs_policy(*arguments, adept=True)
    with pytest.raises(TypeError, match=r"gumbel_mcts_policy\(\) has no argument 'scale'"):
        jaxpgs.gumbel_mcts_policy(*arguments, scale=0.0)


@pytest.mark.slow
def test_states_of_nnx_are_parameters_and_masks():
    class Model(nnx.Module):
        def __init__(self):
            self.head = nnx.Param(game()["head"])
            self.torso = nnx.Param(game()["torso"])

    graphdef, state = nnx.split(Model())

    def recurrent_fn(state, rng_key, action, node):
        model = nnx.merge(graphdef, state)
        params = game() | {"head": model.head[...], "torso": model.torso[...]}
        return toy.split_fn(params, rng_key, action, node)

    mask = jax.tree_util.tree_map_with_path(lambda path, _: path[0].key == "head", state)
    outputs = [
        jax.eval_shape(
            lambda state, adapt=adapt: jaxpgs.pgs_policy(
                state, keys(), toy.root(game(), [0] * B), recurrent_fn, 8, adapt=adapt,
                mode="rollouts",
            ),
            state,
        )
        for adapt in (mask, lambda path, _: path[0].key == "head")
    ]  # fmt: skip
    assert jax.tree.structure(outputs[0]) == jax.tree.structure(outputs[1])
    assert len(jax.tree.leaves(outputs[0].search_state.params)) == 1
    with pytest.raises(ValueError, match=r"adapt.*structure of params"):
        jaxpgs.pgs_policy(game(), keys(), toy.root(game(), [0] * B), toy.split_fn, 8, adapt=mask)


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_of_seconds_is_as_many_updates():
    params = game()
    roots = toy.root(params, [0, 1, 2, 5])
    traces = []

    def counted(params, rng_key, action, node):
        traces.append(1)
        return toy.split_fn(params, rng_key, action, node)

    search = jaxpgs.search.mcs_search(counted, 4000, simulations_per_update=4)
    seen = []
    output = jaxpgs.search_for(search, params, keys(1), roots, seconds=0.3, callback=seen.append)
    num_traces = len(traces)
    updates = [progress.num_updates for progress in seen]
    assert updates == sorted(updates) and len(updates) > 1
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)
    for progress in seen:
        visits = progress.output.search_state.visits.sum(-1)
        np.testing.assert_array_equal(visits, 4 * progress.num_updates)
    # The answer is that of one search of as many updates.
    carry = compiled(init, search)(params, keys(1), roots)
    carry = compiled(advance, search)(params, carry, updates[-1])
    chex.assert_trees_all_equal(output, compiled(finish, search)(carry))
    num_traces = len(traces)
    # A second search compiles nothing, and one of few simulations ends by itself.
    jaxpgs.search_for(search, params, keys(2), roots, seconds=0.05)
    assert len(traces) == num_traces
    short = jaxpgs.search.mcs_search(toy.recurrent_fn, 10, simulations_per_update=4)
    done = jaxpgs.search_for(short, params, keys(2), roots, seconds=60)
    np.testing.assert_array_equal(done.search_state.visits.sum(-1), 10)
    with pytest.raises(ValueError, match=r"search_for needs seconds .* above 0; got 0"):
        jaxpgs.search_for(search, params, keys(2), roots, seconds=0)


# --- devices --------------------------------------------------------------------------------------

ON_TWO_DEVICES = """
import functools, jax, jax.numpy as jnp, numpy as np, optax, toy, jaxpgs
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxpgs.search import run, init, step, finish
from test_contract import game, keys

params, mesh = game(), jax.make_mesh((2,), ("roots",))
assert len(jax.devices()) == 2
roots = toy.root(params, [0, 1, 2, 5])
rows = NamedSharding(mesh, P("roots"))
data = jax.device_put((keys(1), roots), rows)
share = functools.partial(jax.shard_map, mesh=mesh, out_specs=P("roots"))

# A search step by step.
search = jaxpgs.search.pgs_search(
    toy.split_fn, 10, adapt=toy.adapt_head, simulations_per_update=4, mode="tree",
    optimizer=optax.sgd(0.1, momentum=0.9),
)
alone = jax.jit(functools.partial(run, search))(params, keys(1), roots)
begin = share(
    lambda params, *data: init(search, params, *data), in_specs=(P(), P("roots"), P("roots"))
)
go = share(lambda params, carry: step(search, params, carry), in_specs=(P(), P("roots")))
carry = jax.jit(begin)(params, *data)
for _ in range(search.num_updates):
    carry = jax.jit(go)(params, carry)
output = jax.jit(functools.partial(finish, search))(jax.device_get(carry))
np.testing.assert_array_equal(output.search_state.visits, alone.search_state.visits)
np.testing.assert_allclose(output.search_state.qvalues, alone.search_state.qvalues, rtol=1e-5)

# Another one whole, and the fields that every device has its share of.
search = jaxpgs.search.gumbel_mcts_search(toy.split_fn, 10, simulations_per_update=4)
alone = jax.jit(functools.partial(run, search))(params, keys(1), roots)

def whole(params, *data):
    output = run(search, params, *data)
    return output.action_weights, output.search_state.params

weights, _ = jax.jit(share(whole, in_specs=(P(), P("roots"), P("roots"))))(params, *data)
np.testing.assert_allclose(weights, alone.action_weights, rtol=1e-6)

# Without shard_map too, if the model works there: jit finds from the roots which device has what.
env = jaxpgs.envs.Hex(3)
shapes = env.observation_shape, env.num_actions
net = jaxpgs.networks.FullyConnectedResNet(*shapes, width=8, num_blocks=1, rngs=nnx.Rngs(0))
params, apply_fn = jaxpgs.networks.functional(net)
state = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), 4))

def plan(params, keys, state):
    return jaxpgs.gumbel_pgs_policy(
        params, keys, jaxpgs.make_root_fn(env, apply_fn)(params, keys, state),
        jaxpgs.make_recurrent_fn(env, apply_fn), 8, adapt=jaxpgs.networks.policy_head(params),
        simulations_per_update=4,
    ).search_state.visits

alone = jax.jit(plan)(params, keys(1), state)
with jax.set_mesh(mesh):
    visits = jax.jit(plan)(params, *jax.device_put((keys(1), state), rows))
assert visits.sharding.spec[0] == "roots"
np.testing.assert_array_equal(visits, alone)

# With one key, and with noise by a key for each root.
def chosen(noise, params, key, state):
    root = jaxpgs.make_root_fn(env, apply_fn)(params, key, state)
    return jaxpgs.batched_mcts_policy(
        params, key, root, jaxpgs.make_recurrent_fn(env, apply_fn), 8, dirichlet_fraction=noise
    ).search_state.visits

for key, noise in ((jax.random.key(1), 0.0), (jax.device_put(keys(1), rows), 0.25)):
    find = jax.jit(functools.partial(chosen, noise))
    alone = find(params, jax.device_get(key), state)
    with jax.set_mesh(mesh):
        visits = find(params, key, jax.device_put(state, rows))
    np.testing.assert_array_equal(visits, alone)
print("shared")
"""


@pytest.mark.slow
def test_roots_are_shared_among_devices():
    # jax.make_mesh makes explicit axes, and jax.shard_map checks what varies: both are defaults.
    code = textwrap.dedent(ON_TWO_DEVICES)
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    here = pathlib.Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "shared" in done.stdout
