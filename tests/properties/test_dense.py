"""The program for accelerators, run on a processor: the same answer as the one for processors.

Accelerators take tables, comparisons and products of matrices where processors take gathers,
scatters and rows. Which one runs is decided when a search is compiled for its device.
"""

import functools

import chex
import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from flax import nnx

import jaxpgs
from jaxpgs.search import run
from jaxpgs.search.stores import nodes, store_tree

B = 5
ALL_TERMS = jaxpgs.estimator.regularized(
    jaxpgs.estimator.reinforce("value"), entropy=0.1, kl_to_prior=0.2, kl_from_prior=0.1
)


@functools.cache
def setting(size):
    """A Hex board with a small random network; positions, the last of which is the end."""
    env = jaxpgs.envs.Hex(size)
    net = jaxpgs.networks.FullyConnectedResNet(
        env.observation_shape, env.num_actions, width=12, num_blocks=1, rngs=nnx.Rngs(1)
    )
    params, apply_fn = jaxpgs.networks.functional(net)
    params = jax.tree.map(lambda x: 3 * x, params)  # so that policies and values differ
    states = games.random_positions(env, 2, [0, 0, 2, 4, env.num_cells])
    assert states.terminated.tolist() == [False] * 4 + [True]
    return env, params, apply_fn, states


def score(state):
    """Of the positions that were reached, some number that tells them apart."""
    legal = state.legal_action_mask.astype(jnp.float32)
    return legal @ jnp.arange(legal.shape[-1], dtype=jnp.float32)


FOUR = {"simulations_per_update": 4}
HEAD = FOUR | {"adapt": "policy_head"}
SEARCHES = {
    "pgs": (jaxpgs.search.pgs_search, HEAD),
    "pgs, all terms": (jaxpgs.search.pgs_search, HEAD | {"estimator": ALL_TERMS}),
    "pgs, drawn": (jaxpgs.search.pgs_search, HEAD | {"interior_selection": None}),
    "pgs, one at a time": (jaxpgs.search.pgs_search, HEAD | {"simulations_per_update": 1}),
    "pgs, all terms of drawn": (
        jaxpgs.search.pgs_search,
        HEAD | {"interior_selection": None, "estimator": ALL_TERMS},
    ),
    "pgs, rollouts": (
        jaxpgs.search.pgs_search,
        HEAD | {"mode": "rollouts", "estimator": ALL_TERMS},
    ),
    "pgs, fixed": (jaxpgs.search.pgs_search, HEAD | {"truncation": jaxpgs.truncation.fixed(3)}),
    "pgs, capacity": (jaxpgs.search.pgs_search, HEAD | {"capacity": 9}),
    "pgs, reuse": (
        jaxpgs.search.pgs_search,
        HEAD | {"reuse": jaxpgs.reuse.Reuse(2, num_epochs=2, clip=0.2)},
    ),
    "pgs, reuse of rollouts": (
        jaxpgs.search.pgs_search,
        HEAD | {"reuse": jaxpgs.reuse.Reuse(2), "mode": "rollouts"},
    ),
    "gumbel pgs": (jaxpgs.search.gumbel_pgs_search, HEAD),
    "mcs": (jaxpgs.search.mcs_search, FOUR | {"best_of": score}),
    "mcs, rollouts": (jaxpgs.search.mcs_search, FOUR | {"mode": "rollouts", "best_of": score}),
    # More than is written out.
    "mcts, wide": (jaxpgs.search.batched_mcts_search, {"simulations_per_update": 12}),
    "mcts": (jaxpgs.search.batched_mcts_search, FOUR),
    "mcts, ranges": (
        jaxpgs.search.batched_mcts_search,
        FOUR | {"root_selection": jaxpgs.selection.max_min_puct(2.0, bounds="returns")},
    ),
    "mcts, capacity": (jaxpgs.search.batched_mcts_search, FOUR | {"capacity": 9}),
    "mcts, fixed": (
        jaxpgs.search.batched_mcts_search,
        FOUR | {"truncation": jaxpgs.truncation.fixed(3)},
    ),
    "mcts, one at a time": (jaxpgs.search.batched_mcts_search, {"simulations_per_update": 1}),
    "gumbel mcts": (jaxpgs.search.gumbel_mcts_search, FOUR),
}


@functools.cache
def searched(name, size, program):
    """The answer of a search that is compiled anew, by the program chosen."""
    env, params, apply_fn, states = setting(size)
    make, knobs = SEARCHES[name]
    search = make(jaxpgs.make_recurrent_fn(env, apply_fn), 26, **knobs)
    keys = jax.random.split(jax.random.key(3), B)
    chosen = []

    def choose(*arguments, cpu, default):
        chosen.append(program)
        return (cpu if program == "sparse" else default)(*arguments)

    def plan(params, keys, states):
        root = jaxpgs.make_root_fn(env, apply_fn)(params, keys, states)
        return run(search, params, keys, root, ~states.legal_action_mask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "platform_dependent", choose)
        if program == "dense without tables":
            patch.setattr(store_tree, "_FEW_FEATURES", 0)
            patch.setattr(nodes, "FEW_PAIRS", 0)
        output = jax.jit(plan, compiler_options=games.QUICK)(params, keys, states)
    assert chosen
    return jax.device_get(output)


@pytest.mark.parametrize(
    ("name", "size", "program"),
    games.mostly_slow(
        [
            (*setting, program)
            for setting in (*((name, 3) for name in SEARCHES), ("pgs, all terms", 5), ("mcts", 5))
            for program in ("dense", "dense without tables")
        ],
        ("mcts, capacity", 3, "dense without tables"),
    ),
)
def test_both_programs_give_the_same_answer(name, size, program):
    one, two = searched(name, size, program), searched(name, size, "sparse")
    np.testing.assert_array_equal(one.action, two.action)
    np.testing.assert_allclose(one.action_weights, two.action_weights, atol=1e-5)
    one, two = vars(one.search_state), vars(two.search_state)
    for field in ("visits", "num_evaluations", "num_calls", "depth", "skipped_updates"):
        np.testing.assert_array_equal(one[field], two[field], field)
    # Updates make what is rounded grow; in float64 the parameters differ by 1e-13.
    bounds = {"params": 2e-4, "gradient_norm": 2e-4}
    for field in ("qvalues", "value", "entropy", "gradient_norm", "params", "best"):
        close = {"rtol": 1e-4, "atol": bounds.get(field, 1e-5)}
        chex.assert_trees_all_close(one[field], two[field], **close)
    np.testing.assert_array_equal(one["visits"].sum(-1), [26] * (B - 1) + [0])
    if one["nodes"] is not None:
        for field in ("edge", "children", "visits"):
            np.testing.assert_array_equal(*(getattr(x["nodes"], field) for x in (one, two)), field)
        for field in ("value_sum", "reward", "discount", "value"):
            first, second = (getattr(x["nodes"], field) for x in (one, two))
            np.testing.assert_allclose(first, second, atol=1e-5, err_msg=field)
    if name.startswith(("pgs", "gumbel pgs")):
        assert (one["gradient_norm"][:-1] > 0).all() and one["gradient_norm"][-1] == 0


@pytest.mark.first_case
@pytest.mark.parametrize("program", ["dense", "sparse"])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.each_value
def test_rows_of_nobody_do_not_spoil_the_gradient(program, kept, monkeypatch):
    """A norm has no derivative at zeros; unused rows, of `init_nodes` as well, must not be that."""

    def choose(*arguments, cpu, default):
        return (cpu if program == "sparse" else default)(*arguments)

    def policy(params, features, node):
        return features / jnp.linalg.norm(features, axis=-1, keepdims=True) @ params["head"]

    draw = np.random.default_rng(0)
    tables = {"features": draw.normal(size=(121, 5)), "value": draw.normal(size=121)}
    params = toy.tree(3, 4, head=draw.normal(size=(5, 3)), **tables)
    split_fn = jaxpgs.base.SplitRecurrentFn(toy.split_fn.expand, policy)
    search = jaxpgs.search.pgs_search(split_fn, 12, adapt=toy.adapt_head, **FOUR)
    root = toy.root(params, [0, 0])
    nodes = jaxpgs.search.init_nodes(search, params, root, num_kept=3) if kept else None
    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    plan = jax.jit(lambda *data: run(search, *data, nodes=nodes), compiler_options=games.QUICK)
    state = plan(params, jax.random.key(0), root).search_state
    np.testing.assert_array_equal(state.skipped_updates, 0)
    assert (state.gradient_norm > 0).all()


def test_the_programs_differ(monkeypatch):
    """Or a change of the code could make both one, and the tests above would not tell."""
    env, params, apply_fn, states = setting(3)
    search = jaxpgs.search.batched_mcts_search(jaxpgs.make_recurrent_fn(env, apply_fn), 8, **FOUR)

    def plan(params, key, states):
        root = jaxpgs.make_root_fn(env, apply_fn)(params, key, states)
        return run(search, params, key, root, ~states.legal_action_mask).action

    def num_scatters(choose):
        monkeypatch.setattr(jax.lax, "platform_dependent", choose)
        fresh = lambda *data: plan(*data)  # noqa: E731
        return str(jax.make_jaxpr(fresh)(params, jax.random.key(0), states)).count("scatter")

    dense = num_scatters(lambda *arguments, cpu, default: default(*arguments))
    assert dense < num_scatters(lambda *arguments, cpu, default: cpu(*arguments))
