"""Numbers that nothing else in the tests holds in their place; see `quality/mutations.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from games import QUICK
from scipy import stats as scipy_stats

import jaxpgs
from jaxpgs.base import NodeStats, Trajectory
from jaxpgs.search import advance, finish, init, loop, node_stats, run, stochastic
from jaxpgs.search.learning import update
from jaxpgs.search.parts.gumbel import GumbelState
from jaxpgs.search.parts.halving import considered_visits, halvings
from jaxpgs.search.parts.selection import select_in_turn
from jaxpgs.search.parts.target import TargetOfActions
from jaxpgs.search.stores import store_tree

LOWEST = np.finfo(np.float32).min


def keys(seed, count):
    return jax.random.split(jax.random.key(seed), count)


def jit(function):
    return jax.jit(function, compiler_options=QUICK)


reroot = jax.jit(jaxpgs.reroot, static_argnames="num_kept")


def stats(visits, qvalues, *, value=0.0, logits=None, valid=None):
    """Statistics `[1, A]` of one node."""
    visits, qvalues = np.atleast_2d(visits), np.atleast_2d(qvalues)
    logits = np.zeros(visits.shape) if logits is None else np.atleast_2d(logits)
    valid = np.ones(visits.shape, bool) if valid is None else np.atleast_2d(valid)
    return NodeStats(
        prior_logits=jnp.asarray(np.where(valid, logits, LOWEST), jnp.float32),
        value=jnp.full(len(visits), value, jnp.float32),
        visits=jnp.asarray(visits, jnp.int32),
        value_sum=jnp.asarray(visits * qvalues, jnp.float32),
        valid=jnp.asarray(valid),
    )


def line(length, *, ends=(), **fields):
    """A game of one action: node n leads to n + 1, and the episode ends with a step from `ends`."""
    params = toy.tree(1, length, **fields)
    ends = jnp.asarray(ends, jnp.int32)
    return params | {"discount": params["discount"].at[ends].set(0.0)}


# --- what the presets choose ----------------------------------------------------------------------


def recipe(x):
    """What a part is made of: its code and all that it closes over, to compare parts by."""
    if isinstance(x, functools.partial):
        return recipe(x.func), recipe(x.args), x.keywords
    if callable(x) and hasattr(x, "__code__"):
        cells = [cell.cell_contents for cell in x.__closure__ or ()]
        return x.__code__, [recipe(cell) for cell in cells]
    if isinstance(x, TargetOfActions):
        return recipe(x.target), x.num_actions
    if isinstance(x, tuple):
        return type(x).__name__, [recipe(y) for y in x]
    return x


def same(one, two):
    return recipe(one) == recipe(two)


def sigma(**numbers):
    return functools.partial(jaxpgs.target.qtransform_completed_by_mix_value, **numbers)


MCS = {
    "root_selection": jaxpgs.selection.puct(1.5, virtual_loss=1.0, unvisited="zero", relative=True),
    "interior_selection": None,
    "truncation": jaxpgs.truncation.until_new(2**15),
    "backup": jaxpgs.backup.n_step(),
    "target": jaxpgs.target.completed_q(0.0, qtransform=sigma(epsilon=1 / 3, relative=True)),
    "estimator": None,
    "optimizer": None,
    "adapt": None,
    "max_depth": None,
    "mode": "tree",
    "capacity": None,
    "best_of": None,
}
PGS = MCS | {
    "estimator": jaxpgs.estimator.reinforce("value", normalize=False, relative=True),
    "optimizer": jaxpgs.estimator.auto_sgd(3.0),
    "adapt": toy.adapt_head,
    "interior_selection": jaxpgs.target.improved_policy(
        1.0, temperature=1.0, qtransform=sigma(epsilon=1 / 3, relative=True), by_counts=True
    ),
}
MCTS = MCS | {"interior_selection": MCS["root_selection"]}
SIGMA = {"qtransform": jaxpgs.target.qtransform_completed_by_mix_value}
GUMBEL = {
    "root_selection": jaxpgs.gumbel.gumbel_root(16, 1.0, **SIGMA),
    "target": jaxpgs.gumbel.gumbel_target(**SIGMA),
}
INNER = {"interior_selection": jaxpgs.gumbel.gumbel_inner(**SIGMA)}
STOCHASTIC = {
    "root_selection": stochastic.with_chance(
        jaxpgs.selection.with_dirichlet_noise(
            jaxpgs.selection.muzero_puct(1.25, 19652.0), 0.25, 0.3
        ),
        2,
    ),
    "interior_selection": stochastic.with_chance(jaxpgs.selection.muzero_puct(1.25, 19652.0), 2),
    "target": TargetOfActions(jaxpgs.target.visit_counts(1.0), 2),
}
PRESETS = {
    "mcs": (jaxpgs.search.mcs_search, {}, MCS),
    "pgs": (jaxpgs.search.pgs_search, {"adapt": toy.adapt_head}, PGS),
    "mcts": (jaxpgs.search.batched_mcts_search, {}, MCTS),
    "gumbel pgs": (jaxpgs.search.gumbel_pgs_search, {"adapt": toy.adapt_head}, PGS | GUMBEL),
    "gumbel mcts": (jaxpgs.search.gumbel_mcts_search, {}, MCTS | GUMBEL | INNER),
    "stochastic mcts": (
        functools.partial(jaxpgs.search.stochastic_mcts_search, toy.split_fn),
        {"num_actions": 2},
        MCTS | STOCHASTIC,
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_defaults_of_the_presets(name):
    preset, knobs, expected = PRESETS[name]
    for count in (1, 10, 40, 100, 800):
        search = preset(toy.split_fn, count, **knobs)
        if name == "gumbel pgs":
            quarter = {1: 2, 10: 2, 40: 8, 100: 10, 800: 16}[count]
            expected = expected | {
                "root_selection": jaxpgs.gumbel.gumbel_root(quarter, 1.0, **SIGMA)
            }
        for field, part in expected.items():
            assert same(getattr(search, field), part), field
        sixteenth = {1: 1, 10: 1, 40: 2, 100: 6, 800: 8}[count]
        assert search.simulations_per_update == sixteenth
    assert not same(search.root_selection, jaxpgs.selection.puct(1.5, virtual_loss=0.5)), (
        "or this sees all"
    )


def test_the_mode_is_the_tree_where_it_can_be():
    assert jaxpgs.search.mcs_search(toy.recurrent_fn, 8).mode == "tree"
    assert jaxpgs.search.pgs_search(toy.split_fn, 8, adapt=toy.adapt_head).mode == "tree"
    rollouts = jaxpgs.search.pgs_search(toy.split_fn, 8, adapt=toy.adapt_head, mode="rollouts")
    assert rollouts.mode == "rollouts"


@pytest.mark.slow
def test_a_model_that_cannot_be_cut_takes_rollouts_and_says_so():
    # Of a plain function the search finds out when it is traced.
    params = two_players(3)
    make = functools.partial(jaxpgs.search.pgs_search, toy.recurrent_fn, 8, adapt=toy.adapt_head)
    search = make()
    assert search.mode is None and search.interior_selection is not None
    data = params, keys(1, 3), toy.root(params, [0, 1, 2])
    with pytest.warns(UserWarning, match=r'uses mode="rollouts", which .* nothing of the network'):
        output = jit(functools.partial(run, search))(*data)
    assert output.search_state.nodes is None
    known = jit(functools.partial(run, make(mode="rollouts")))(*data)
    for name in ("visits", "qvalues", "params", "depth", "num_evaluations"):
        one, two = (getattr(x.search_state, name) for x in (output, known))
        jax.tree.map(np.testing.assert_array_equal, one, two)
    with pytest.raises(ValueError, match=r'mode="tree" needs .* nothing of the network'):
        jax.eval_shape(functools.partial(run, make(mode="tree")), *data)


@pytest.mark.parametrize("words", [("tree", "cached"), ("rollouts", "constant")])
def test_former_words_for_the_modes(words):
    for word in words:
        search = jaxpgs.search.pgs_search(toy.split_fn, 8, adapt=toy.adapt_head, mode=word)
        assert search.mode == words[0]
        assert (search.interior_selection is None) == (words[0] == "rollouts")
    with pytest.raises(ValueError, match='mode must be "tree", "rollouts" or None; got'):
        jaxpgs.search.mcs_search(toy.split_fn, 8, mode="cashed")
    with pytest.raises(ValueError, match='A tree search keeps its states: mode must be "tree"'):
        jaxpgs.search.batched_mcts_search(toy.split_fn, 8, mode="constant")


def test_simulations_read_the_nodes_where_there_are_any():
    make = functools.partial(jaxpgs.search.pgs_search, adapt=toy.adapt_head)
    assert make(toy.split_fn, 8).interior_selection is not None
    for recurrent_fn, knobs in (
        (toy.split_fn, {"mode": "rollouts"}),
        (toy.split_fn, {"interior_selection": None}),
        (toy.split_fn, {"reuse": jaxpgs.reuse.Reuse(2)}),
        (toy.split_fn, jaxpgs.paper_mcs()),
    ):
        assert make(recurrent_fn, 8, **knobs).interior_selection is None
    extended = jaxpgs.search.extended_pgs_search(toy.split_fn, 8, adapt=toy.adapt_head)
    assert extended.mode == "tree" and extended.interior_selection is not None


def test_settings_of_the_thesis():
    paper = jaxpgs.paper_extended_pgs()
    search = jaxpgs.search.extended_pgs_search(
        toy.split_fn, 64, adapt=toy.adapt_head, **(paper | {"mode": "tree"})
    )
    expected = {
        "root_selection": jaxpgs.selection.puct(5.0),
        "simulations_per_update": 1,
        "backup": jaxpgs.backup.log_series(0.995),
        "target": jaxpgs.target.completed_q(
            0.0, qtransform=sigma(value_scale=0.01, maxvisit_init=5.0, rescale_values=False)
        ),
        "optimizer": optax.adam(1e-3),
        "interior_selection": None,
    }
    assert all(same(getattr(search, field), part) for field, part in expected.items())
    assert search.truncation.max_depth(100) == jaxpgs.truncation.by_visits(6.0).max_depth(100) == 3
    assert (paper["entropy"], paper["kl_to_prior"], paper["mode"]) == (2.0, 0.1, "rollouts")


def test_settings_of_the_paper():
    search = jaxpgs.search.pgs_search(
        toy.split_fn, 64, adapt=toy.adapt_head, **jaxpgs.paper_pgs(1e-3)
    )
    expected = {
        "root_selection": jaxpgs.selection.puct(5.0, virtual_loss=1.0, unvisited="zero"),
        "simulations_per_update": 32,
        "truncation": MCS["truncation"],
        "backup": jaxpgs.backup.last_value(),
        "target": jaxpgs.target.visit_counts(1.0),
        "estimator": jaxpgs.estimator.reinforce("none", normalize=False),
        "optimizer": optax.sgd(1e-3),
        "mode": "rollouts",
        "interior_selection": None,
    }
    assert all(same(getattr(search, field), part) for field, part in expected.items())


def test_defaults_of_the_parts():
    for default, explicit in (
        (jaxpgs.gumbel.gumbel_root(), GUMBEL["root_selection"]),
        (jaxpgs.gumbel.gumbel_inner(), INNER["interior_selection"]),
        (jaxpgs.gumbel.gumbel_target(), GUMBEL["target"]),
        (jaxpgs.target.completed_q(), jaxpgs.target.completed_q(1.0, **SIGMA)),
        (jaxpgs.target.visit_counts(), jaxpgs.target.visit_counts(1.0)),
        (jaxpgs.estimator.reinforce(), jaxpgs.estimator.reinforce("none", normalize=False)),
        (jaxpgs.selection.puct(), jaxpgs.selection.puct(5.0, virtual_loss=1.0, unvisited="zero")),
        (
            jaxpgs.selection.muzero_puct(),
            jaxpgs.selection.muzero_puct(1.25, 19652.0, virtual_loss=True),
        ),
        (jaxpgs.selection.ucb1(), jaxpgs.selection.ucb1(1.0, virtual_loss=1.0)),
    ):
        assert same(default, explicit)


def test_a_stochastic_search_has_no_noise_of_its_own_with_a_selection_of_ones_own():
    make = functools.partial(jaxpgs.search.stochastic_mcts_search, None, None, 8, num_actions=2)
    chosen = make(root_selection=jaxpgs.selection.ucb1(), target=jaxpgs.target.best_value())
    for name in ("root_selection", "interior_selection"):
        assert same(getattr(chosen, name), stochastic.with_chance(jaxpgs.selection.ucb1(), 2))
    assert same(chosen.target, TargetOfActions(jaxpgs.target.best_value(), 2))
    chosen = make(dirichlet_fraction=0.0, temperature=0.0, pb_c_init=2.0)
    assert same(chosen.root_selection, stochastic.with_chance(jaxpgs.selection.muzero_puct(2.0), 2))
    assert same(chosen.target, TargetOfActions(jaxpgs.target.visit_counts(0.0), 2))


def test_presets_hand_their_knobs_on():
    noisy = jaxpgs.search.mcs_search(toy.split_fn, 8, dirichlet_fraction=0.25, dirichlet_alpha=0.3)
    bandit = MCS["root_selection"]
    assert same(noisy.root_selection, jaxpgs.selection.with_dirichlet_noise(bandit, 0.25, 0.3))
    noisy = jaxpgs.search.mcs_search(toy.split_fn, 8, dirichlet_fraction=0.5)
    assert same(noisy.root_selection, jaxpgs.selection.with_dirichlet_noise(bandit, 0.5, 0.12))
    assert same(
        jaxpgs.selection.with_dirichlet_noise(bandit),
        jaxpgs.selection.with_dirichlet_noise(bandit, 0.25, 0.12),
    )
    # In a tree search the noise is the root's alone.
    tree = jaxpgs.search.batched_mcts_search(toy.split_fn, 8, dirichlet_fraction=0.25)
    assert same(tree.root_selection, jaxpgs.selection.with_dirichlet_noise(bandit, 0.25, 0.12))
    assert same(tree.interior_selection, bandit)
    tree = jaxpgs.search.batched_mcts_search(
        toy.split_fn, 8, root_selection=jaxpgs.selection.ucb1()
    )
    assert same(tree.interior_selection, jaxpgs.selection.ucb1())
    for preset, more in (
        (jaxpgs.search.gumbel_mcts_search, {}),
        (jaxpgs.search.gumbel_pgs_search, {"adapt": toy.adapt_head}),
    ):
        knobs = {"max_num_considered_actions": 4, "gumbel_scale": 0.5, "simulations_per_update": 3}
        search = preset(toy.split_fn, 64, **knobs, **more)
        assert same(search.root_selection, jaxpgs.gumbel.gumbel_root(4, 0.5, **SIGMA))
        assert search.simulations_per_update == 3


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_calls_are_those_that_the_model_gets():
    # The episode ends with the third step from node 0. The horizon is 2, 3 and 4 in updates of
    # four, four and two simulations: 2 + 3 + 3 calls.
    params = line(11, ends=[2, 9])
    score = jnp.array([0.0, 90, 5, 4, 99, 99, 99, 99, 1, 50, 6, 99])
    calls = []

    def counted(params, rng_key, action, node):
        jax.debug.callback(lambda: calls.append(1))
        return toy.split_fn(params, rng_key, action, node)

    search = jaxpgs.search.mcs_search(
        counted,
        10,
        simulations_per_update=4,
        truncation=jaxpgs.truncation.growing(2, every=4),
        mode="rollouts",
        best_of=lambda node: score[node],
    )
    search_it = jit(functools.partial(run, search))
    state = search_it(params, keys(0, 3), toy.root(params, [0, 1, 8])).search_state
    jax.effects_barrier()
    assert int(state.num_calls) == len(calls) == 8
    np.testing.assert_array_equal(state.num_evaluations, [4 * 2 + 6 * 3, 10 * 2, 10 * 2])
    np.testing.assert_allclose(state.depth, [2.6, 2.0, 2.0])
    # Simulations from node 0 pass the better node 1 and stop in 2 and 3. Those from node 8 stop in
    # node 10, before the others do.
    np.testing.assert_array_equal(state.best, [2, 1, 10])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rollouts", "tree"])
def test_simulations_that_the_bound_ended_and_the_best_state(mode):
    # Updates of two equal simulations, of one, two, two and two steps. The second is new, so the
    # rule ends it; the third and the fourth would go on. From nodes 3 and 4 the episode ends at 5.
    params = line(12, ends=[4])
    score = jnp.array([1.0, 5, 3, 2, 2, 7, 9, 4, 8, 6, 6, 6, 0])
    search = jaxpgs.search.mcs_search(
        toy.split_fn,
        8,
        simulations_per_update=2,
        max_depth=2,
        mode=mode,
        best_of=lambda node: score[node],
    )
    roots = toy.root(params, [0, 3, 4, 6, 9])
    state = jit(functools.partial(run, search))(params, keys(0, 5), roots).search_state
    np.testing.assert_allclose(state.depth_limited, [0.5, 0, 0, 0.5, 0.5])
    np.testing.assert_allclose(state.depth, [1.75, 1.75, 1, 1.75, 1.75])
    # The first update's, the last's, the last's, the root, and the root, as equal ones are no gain.
    np.testing.assert_array_equal(state.best, [1, 5, 5, 6, 9])
    assert int(state.num_calls) == (7 if mode == "rollouts" else 2)
    evaluations = [14, 14, 8, 14, 14] if mode == "rollouts" else [2, 2, 1, 2, 2]
    np.testing.assert_array_equal(state.num_evaluations, evaluations)


# --- the optimizer --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_optimizers_state_goes_from_update_to_update():
    # It adds 1, 10 and 100 to every parameter, which leaves the uniform policy as it is, and sums
    # what `auto_sgd` is told.
    def update(updates, state, params=None, *, logit_square, **_):
        count, square = state
        moved = jax.tree.map(lambda x, own: 0.0 * (x + own) + 10.0**count, updates, params)
        return moved, (count + 1.0, square + logit_square)

    counting = optax.GradientTransformationExtraArgs(
        lambda params: (jnp.zeros(()), jnp.zeros(())), update
    )
    # Of three actions, two steps, K = 3, N = 8: the last update has two simulations.
    params = toy.tree(3, 2, value=np.ones(13))
    score = jnp.array([0.0, 99, 99, 99, 3, 8, 5, 7, 2, 9, 1, 6, 4])
    search = jaxpgs.search.pgs_search(
        toy.split_fn,
        8,
        adapt=toy.adapt_head,
        estimator=jaxpgs.estimator.reinforce(),
        optimizer=counting,
        simulations_per_update=3,
        truncation=jaxpgs.truncation.fixed(2),
        mode="tree",
        best_of=lambda node: score[node],
    )
    invalid = jnp.zeros((4, 3), jnp.int32).at[3].set(1)  # nothing to learn at root 3
    carry = jit(
        lambda: advance(
            search, params, init(search, params, keys(1, 4), toy.root(params, [0] * 4), invalid), 5
        )
    )()
    head = np.asarray(carry.adapted["head"])
    np.testing.assert_allclose(head, np.array([111, 111, 111, 0])[:, None, None] + np.zeros((1, 3)))
    count, square = carry.opt_state
    np.testing.assert_array_equal(count, [3, 3, 3, 0])
    # Every simulation acts once: a return of 1, and 1 - 1/3 for the norm of d log pi / d logits.
    np.testing.assert_allclose(square, np.array([8, 8, 8, 0]) * 4 / 9, rtol=1e-5)
    # Simulations stop in nodes 4 to 12; those that were reached are remembered.
    for b in range(3):
        reached = np.asarray(carry.memory.embedding[0][b, :, 0])[carry.memory.edge[b] >= 0]
        ends = reached[reached > 3]
        assert len(ends) > 2
        assert int(carry.best[b]) == ends[np.argmax(score[ends])]
    assert int(carry.best[3]) == 0


def test_auto_sgd_remembers_and_is_bounded():
    optimizer = jaxpgs.estimator.auto_sgd(2.0)
    gradient = jnp.array([3.0, 4.0])

    def step(scale, square, state, params):
        moved, state = optimizer.update(
            scale * gradient, state, params, logit_square=jnp.float32(square)
        )
        return np.asarray(moved), state

    long, short = jnp.array([300.0, 400.0]), jnp.array([0.06, 0.08])
    # 2 * 50 / 25 times the gradient, a step of length 20, downhill.
    moved, state = step(1.0, 50.0, optimizer.init(long), long)
    np.testing.assert_allclose(moved, [-12, -16], rtol=1e-6)
    # Over both updates: 2 * (50 + 200) / (25 + 100) times the gradient (6, 8).
    moved, state = step(2.0, 200.0, state, long)
    np.testing.assert_allclose(moved, [-24, -32], rtol=1e-6)
    np.testing.assert_allclose((state.parameter_square, state.logit_square), (125, 250), rtol=1e-6)
    # No longer than the parameters, and than 1 where they are shorter.
    moved, _ = step(1.0, 5000.0, optimizer.init(long), long)
    np.testing.assert_allclose(moved, [-300, -400], rtol=1e-6)
    moved, _ = step(1.0, 5000.0, optimizer.init(short), short)
    np.testing.assert_allclose(moved, [-0.6, -0.8], rtol=1e-6)
    moved, _ = step(1.0, 5.0, optimizer.init(short), short)
    np.testing.assert_allclose(moved, [-0.6, -0.8], rtol=1e-6)
    moved, _ = step(1.0, 1.25, optimizer.init(short), short)
    np.testing.assert_allclose(moved, [-0.3, -0.4], rtol=1e-6)  # within the bound


def test_regularized_adds_and_subtracts():
    # [T, B, K] = [3, 2, 2]: powers of two, so that a sum tells what is in it.
    def steps(values):
        return jnp.asarray(
            np.broadcast_to(np.asarray(values)[:, None, None], (3, 2, 2)), jnp.float32
        )

    zeros = steps([0, 0, 0])
    trajectory = Trajectory(
        alive=zeros > -1, reward=zeros, discount=zeros, value=zeros, log_prob=zeros,
        entropy=steps([0, 1, 2]), kl_to_prior=steps([0, 4, 8]), kl_from_prior=steps([0, 16, 32]),
        depth=jnp.full((2, 2), 3), limited=jnp.zeros((2, 2), bool),
        num_evaluations=jnp.zeros(2, jnp.int32), num_calls=jnp.zeros(2, jnp.int32),
    )  # fmt: skip

    def objective(**weights):
        base = lambda root, trajectory, returns: jnp.array([10.0, 20.0])  # noqa: E731
        return jaxpgs.estimator.regularized(base, **weights)(None, trajectory, zeros).tolist()

    assert objective() == [10, 20]
    # Two simulations of the two steps.
    assert objective(entropy=1.0) == [10 + 6, 20 + 6]
    assert objective(kl_to_prior=1.0) == [10 - 24, 20 - 24]
    assert objective(kl_from_prior=1.0) == [10 - 96, 20 - 96]
    weights = {"entropy": 0.5, "kl_to_prior": jnp.float32(0.25), "kl_from_prior": 0.125}
    assert objective(**weights) == [10 + 3 - 6 - 12, 20 + 3 - 6 - 12]


# --- selections and targets -----------------------------------------------------------------------


@pytest.mark.slow
def test_muzeros_virtual_loss():
    root = stats([1, 1, 0], [1.0, 0.0, 0.0], logits=[0, 0, LOWEST], valid=[True, True, False])
    pending = jnp.array([[1.0, 0.0, 0.0]])
    node = root._replace(visits=root.visits.astype(jnp.float32))
    # The base is so great that its logarithm is 0.
    score = {
        w: jaxpgs.selection.muzero_puct(3.0, 1e9, virtual_loss=w).score(node, pending)
        for w in (0, 1)
    }
    # Q of 1 and 0 after two visits; the pending one halves the first, as its own counts as 0.
    # Exploration: 3 * 1/2 * sqrt(4) / (1 + n) with n of 2 and 1.
    np.testing.assert_allclose(score[1][0, :2], [0.5 + 1, 0 + 1.5], rtol=1e-6)
    np.testing.assert_allclose(score[0][0, :2], [1.0 + 1, 0 + 1.5], rtol=1e-6)
    np.testing.assert_allclose(
        score[1], jaxpgs.selection.muzero_puct(3.0, 1e9).score(node, pending)
    )
    # Q of the first falls: 1, 1/2, 1/3, 1/4, 1/5; exploration is 1/4 sqrt(n) / (1 + n(a)). After
    # four in flight, 1/5 + sqrt(7) / 24 = 0.31 is less than sqrt(7) / 8 = 0.33; then sqrt(8) / 12
    # is less than 1/5 + sqrt(8) / 24.
    chosen = [
        select_in_turn(
            jaxpgs.selection.muzero_puct(0.5, 1e9, virtual_loss=w), None, root, 6
        ).tolist()[0]
        for w in (True, False)
    ]
    assert chosen == [[0, 0, 0, 0, 1, 0], [0] * 6]


@jit
def drawn(rng_keys, logits, temperature):
    """Answers of `completed_q` after one visit of each action, of Q 0, 1/2 and 1."""
    root = stats([[1, 1, 1]], [[0, 0.5, 1]])._replace(prior_logits=logits[None])
    one = jax.tree.map(lambda x: x[0], root)
    target = jaxpgs.target.completed_q(
        temperature, qtransform=sigma(value_scale=0.25, maxvisit_init=1.0)
    )
    return jax.vmap(lambda key: target(key, one, None))(rng_keys)


def test_completed_q_draws_by_weights_to_a_power():
    # The logits take back what Q adds, `(1 + 1) / 4 Q`, so that the weights are 1/2, 3/8 and 1/8.
    weights = np.array([0.5, 0.375, 0.125])
    logits = jnp.asarray(np.log(weights) - [0, 0.25, 0.5], jnp.float32)
    for temperature in (0.5, 1.0, 2.0):
        actions, found = drawn(keys(5, 20000), logits, temperature)
        np.testing.assert_allclose(found, np.tile(weights, (20000, 1)), rtol=1e-5)
        powers = weights ** (1 / temperature)
        expected = 20000 * powers / powers.sum()
        counts = np.bincount(actions, minlength=3)
        assert scipy_stats.chisquare(counts, expected).pvalue > 1e-6
    assert not np.any(drawn(keys(5, 20000), logits, 0.0)[0])


def test_dirichlet_noise_by_its_share():
    root = stats(
        np.zeros((4, 3)), np.zeros((4, 3)), logits=np.tile(np.log([0.5, 0.3, 0.2]), (4, 1))
    )

    def noise(fraction, alpha):
        selection = jaxpgs.selection.with_dirichlet_noise(jaxpgs.selection.puct(), fraction, alpha)
        return np.exp(selection.init(keys(3, 4), root, 1)[0])

    clean = np.tile([0.5, 0.3, 0.2], (4, 1))
    np.testing.assert_allclose(noise(0.0, 1.0), clean, rtol=1e-5)
    whole = noise(1.0, 1.0)
    assert (whole.std(axis=0) > 0.05).all()
    np.testing.assert_allclose(noise(0.25, 1.0), 0.75 * clean + 0.25 * whole, rtol=1e-4)
    # Little alpha is all on one action, much of it is even.
    assert (noise(1.0, 1e-3).max(axis=1) > 0.99).all()
    np.testing.assert_allclose(noise(1.0, 1e6), 1 / 3, atol=0.01)


# --- Gumbel ---------------------------------------------------------------------------------------


def test_sequential_halving_by_hand():
    # Rounds share the simulations; every round but the last halves the actions, down to two.
    assert considered_visits(0, 3) == considered_visits(1, 3) == [0, 1, 2]
    assert considered_visits(2, 5) == [0, 0, 1, 1, 2]
    assert considered_visits(3, 6) == [0, 0, 0, 1, 1, 2]
    assert considered_visits(4, 8) == [0, 0, 0, 0, 1, 1, 2, 2]
    assert considered_visits(4, 16) == [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]
    assert considered_visits(8, 24) == [0] * 8 + [1] * 4 + [2] * 4 + [3, 3, 4, 4, 5, 5, 6, 6]
    assert considered_visits(16, 4) == [0, 0, 0, 0]


def schedule(state):
    """How often the action of each simulation of the one root has been taken before."""
    assert state.num_considered.shape == state.num_simulations.shape == (1,)
    return considered_visits(int(state.num_considered[0]), int(state.num_simulations[0]))


@pytest.mark.slow
def test_gumbels_root_counts_what_is_pending_and_not_what_was_before():
    rule = jaxpgs.gumbel.gumbel_root(16, 0.0)
    root = stats([5, 1, 1], [0.0, 0.0, 0.0], logits=[0.0, 1.0, 2.0])
    state = rule.init(jax.random.key(0), root._replace(visits=jnp.array([[4, 0, 1]])), 6)
    np.testing.assert_array_equal(state.before, [[4, 0, 1]])
    assert schedule(state) == [0, 0, 0, 1, 1, 2]

    def choose(*pending):
        return int(rule.select(state, root, jnp.array([pending], jnp.float32))[0])

    # Two simulations so far, of actions 0 and 1: the third takes the action that had none.
    assert choose(0.0, 0.0, 0.0) == 2
    # Three, with the one in flight: the fourth takes the likeliest of those that had one.
    assert choose(0.0, 0.0, 1.0) == 2
    assert choose(1.0, 0.0, 0.0) == 1
    assert choose(0.0, 1.0, 0.0) == 0
    assert select_in_turn(rule, state, root, 4).tolist() == [[2, 2, 1, 2]]
    # As many are considered as are legal, and no more than the knob says.
    legal = root._replace(valid=jnp.array([[True, False, True]]))
    assert schedule(rule.init(jax.random.key(0), legal, 4)) == [0, 0, 1, 1]
    few = jaxpgs.gumbel.gumbel_root(2).init(jax.random.key(0), root, 4)
    assert schedule(few) == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="at the root only"):
        rule.select(None, root, jnp.zeros((1, 3)))


def test_gumbels_scale_is_that_of_the_noise():
    root = stats([[0] * 3], [[0.0] * 3])
    one, half, none = (
        jaxpgs.gumbel.gumbel_root(16, scale).init(jax.random.key(4), root, 4).gumbel
        for scale in (1.0, 0.5, 0.0)
    )
    np.testing.assert_allclose(half, 0.5 * one)
    assert not none.any() and one.any()


def test_gumbels_inner_choice_by_hand():
    # Equal Q, so the policy is the prior; less n(a) / (1 + n), with n of 2, 3, 4 and 5:
    #   -0.17 0.35 0.15;  0 0.1 0.15;  0.1 0.15 -0.05;  0.17 0.02 -0.02
    rule = jaxpgs.gumbel.gumbel_inner(qtransform=sigma(rescale_values=False))
    node = stats([2, 0, 0], [0.5, 0.5, 0.5], value=0.5, logits=np.log([0.5, 0.35, 0.15]))
    assert select_in_turn(rule, None, node, 4).tolist() == [[1, 2, 1, 0]]


def test_gumbels_answer_is_among_the_most_visited():
    target = jaxpgs.gumbel.gumbel_target()
    key, counts = jax.random.key(0), (jnp.int32(3), jnp.int32(8))

    def answer(visits, before, gumbel, logits):
        root = stats(visits, np.zeros(4), logits=logits, valid=[True] * 3 + [False])
        root = jax.tree.map(lambda x: x[0], root)
        top = jnp.max(root.prior_logits, keepdims=True)
        state = GumbelState(
            jnp.asarray(gumbel, jnp.float32),
            jnp.asarray(before),
            top,
            *counts,
            halvings(*counts, 3),
        )
        action, weights, _ = target(key, root, state)
        return int(action), weights

    none, prior = [0, 0, 0, 0], [3.0, 0.0, 1.0, 0.0]
    assert answer([1, 3, 3, 0], none, [0.0] * 4, prior)[0] == 2  # the likelier one
    assert answer([1, 3, 3, 0], none, [9.0, 2.0, 0.0, 0.0], prior)[0] == 1  # with its noise
    assert answer([4, 3, 3, 0], none, [0.0] * 4, prior)[0] == 0
    assert answer([4, 3, 3, 0], [3, 0, 0, 0], [0.0] * 4, prior)[0] == 2  # three of them are old
    # The weights know no noise and all actions: with equal Q they are the prior.
    _, weights = answer([1, 3, 3, 0], none, [9.0, 2.0, 0.0, 0.0], prior)
    expected = np.exp([3, 0, 1]) / np.exp([3, 0, 1]).sum()
    np.testing.assert_allclose(weights, [*expected, 0], rtol=1e-5)


# --- trees that go on -----------------------------------------------------------------------------


@functools.cache
def two_players(branching):
    """A tree of random values and rewards; the players alternate."""
    rng = np.random.default_rng(branching)
    size = sum(branching**d for d in range(5))
    return toy.tree(
        branching, 4, discount=-0.9,
        features=rng.normal(size=(size, 2)), head=rng.normal(size=(2, branching)),
        value=rng.uniform(-1, 1, size), reward=rng.uniform(-1, 1, (size, branching)),
    )  # fmt: skip


def returns_through(nodes, b):
    """The returns of the simulations through each node of root b, from its mover's view.

    One at a time and until the sequence is new, every node was the end of one simulation.
    """
    parent, reward, discount, value = (
        np.asarray(x[b]) for x in (nodes.parent, nodes.reward, nodes.discount, nodes.value)
    )
    found = {int(node): [] for node in np.flatnonzero(nodes.edge[b] >= 0)}
    for end in found:
        node, after = end, float(value[end])
        while node:
            after = float(reward[node]) + float(discount[node]) * after
            found[node].append(after)
            node = int(parent[node])
    return found


def check_statistics(stats, nodes):
    """The root's statistics of legal actions, and the nodes' own, are those of all simulations."""
    children = np.asarray(nodes.children)
    everyone = jnp.broadcast_to(jnp.arange(children.shape[1]), children.shape[:2])
    known = jax.device_get(node_stats(nodes, everyone, jnp.zeros(children.shape)))
    for b in range(len(children)):
        found = returns_through(nodes, b)
        for node, action in np.argwhere(children[b] == 0):
            assert not known.visits[b, node, action] and not known.value_sum[b, node, action]
        for node, returns in found.items():
            at = (b, *divmod(int(nodes.edge[b, node]), children.shape[2]))
            assert known.visits[at] == len(returns)
            np.testing.assert_allclose(known.value_sum[at], np.sum(returns), atol=1e-5)
            np.testing.assert_allclose(known.lowest[at], min(returns), atol=1e-6)
            np.testing.assert_allclose(known.highest[at], max(returns), atol=1e-6)
        for action in np.flatnonzero(stats.valid[b]):
            child = int(children[b, 0, action])
            returns = found[child] if child else []
            assert int(stats.visits[b, action]) == len(returns)
            np.testing.assert_allclose(stats.value_sum[b, action], np.sum(returns), atol=1e-5)
            lowest, highest = min(returns, default=np.inf), max(returns, default=-np.inf)
            np.testing.assert_allclose(stats.lowest[b, action], lowest, atol=1e-6)
            np.testing.assert_allclose(stats.highest[b, action], highest, atol=1e-6)


@pytest.mark.slow
def test_a_kept_root_has_the_statistics_of_all_its_simulations():
    params = two_players(3)
    search = jaxpgs.search.batched_mcts_search(
        toy.split_fn,
        24,
        simulations_per_update=1,
        root_selection=jaxpgs.selection.max_min_puct(2.0, bounds="returns"),
    )

    @jit
    def advanced(rng_keys, roots, nodes, invalid, count):
        start = init(search, params, rng_keys, roots, invalid, nodes=nodes)
        return advance(search, params, start, count)

    roots, all_legal = toy.root(params, [0, 1, 2]), jnp.zeros((3, 3), jnp.int32)
    nothing = jit(lambda: jaxpgs.search.init_nodes(search, params, roots, 25))()
    first = advanced(keys(1, 3), roots, nothing, all_legal, 24)
    np.testing.assert_array_equal(first.stats.visits.sum(-1), 24)
    check_statistics(first.stats, first.memory)
    np.testing.assert_array_equal(first.stats.value, roots.value)
    lowest = np.asarray(first.stats.lowest)
    assert (lowest[np.isfinite(lowest)] < 0).any() and (np.asarray(first.stats.highest) > 0).any()

    action = jnp.argmax(first.stats.visits, axis=-1)
    nodes = reroot(first.memory, action, num_kept=25)
    after = toy.root(params, params["next"][roots.embedding, action])
    # Root 0 may not take its last action any more, whatever is known of it.
    # An action of root 1 is legal though its logit is none.
    after = after.replace(prior_logits=after.prior_logits.at[1, 1].set(-jnp.inf))
    invalid = all_legal.at[0, 2].set(1)
    begun = advanced(keys(2, 3), after, nodes, invalid, 0)
    assert (begun.stats.visits.sum(-1) > 4).all()
    check_statistics(begun.stats, begun.memory)
    np.testing.assert_array_equal(begun.stats.valid, invalid == 0)
    np.testing.assert_allclose(begun.stats.value, after.value)
    legal = np.asarray(invalid == 0)
    expected = np.where(legal & np.isfinite(after.prior_logits), after.prior_logits, LOWEST)
    np.testing.assert_allclose(begun.stats.prior_logits, expected, rtol=1e-6)
    gone_on = advanced(keys(2, 3), after, nodes, invalid, 24)
    added = np.asarray(gone_on.stats.visits - begun.stats.visits)
    np.testing.assert_array_equal(added.sum(-1), 24)
    assert added[0, 2] == 0
    check_statistics(gone_on.stats, gone_on.memory)


@pytest.mark.slow
def test_nodes_that_were_dropped_are_made_anew():
    params = two_players(3)
    search = jaxpgs.search.batched_mcts_search(toy.split_fn, 24, simulations_per_update=1)
    searched = jit(functools.partial(run, search))
    roots = toy.root(params, [0, 1, 2])
    first = searched(params, keys(1, 3), roots)
    nodes = reroot(first.search_state.nodes, first.action, num_kept=3)
    after = toy.root(params, params["next"][roots.embedding, first.action])
    nodes = jax.device_get(searched(params, keys(2, 3), after, nodes=nodes).search_state.nodes)
    again = 0
    for b in range(3):
        for node, returns in returns_through(nodes, b).items():
            if node >= 3:  # made by the second search
                at = (b, *divmod(int(nodes.edge[b, node]), 3))
                assert nodes.visits[at] == len(returns)
                np.testing.assert_allclose(nodes.value_sum[at], np.sum(returns), atol=1e-5)
                again += at[1] < 3
    assert again > 0, "some belong to nodes that were kept"


def test_kept_visits_of_an_action_that_is_forbidden_now():
    # As after a search by a model that knows no illegal actions.
    params = two_players(3)
    search = jaxpgs.search.batched_mcts_search(
        toy.split_fn, 4, simulations_per_update=1, target=jaxpgs.target.visit_counts(0.0)
    )
    roots = toy.root(params, [0])
    nodes = jit(lambda: jaxpgs.search.init_nodes(search, params, roots, 3))()
    nodes = nodes._replace(
        edge=nodes.edge.at[0, 1:].set(jnp.array([0, 1])),
        links=nodes.links.at[0, 0].set(jnp.array([1, 2, 0, 5, 1, 0])),
    )
    invalid = jnp.array([[1, 0, 0]])
    output = jit(
        lambda: finish(search, init(search, params, keys(0, 1), roots, invalid, nodes=nodes))
    )()
    np.testing.assert_array_equal(output.action, 1)
    np.testing.assert_array_equal(output.action_weights, [[0, 1, 0]])


@pytest.mark.slow
def test_returns_of_one_update_at_the_root():
    # Actions 0 and 1 in turn; K = 4, and two simulations in the second update.
    params = toy.tree(2, 1)
    search = jaxpgs.search.mcs_search(
        toy.split_fn,
        6,
        simulations_per_update=4,
        root_selection=jaxpgs.selection.max_min_puct(1e6, bounds="returns"),
        truncation=jaxpgs.truncation.fixed(1),
        backup=lambda trajectory: jnp.array([3.0, -1.0, 2.0, 5.0])[None, None],
    )
    root = toy.root(params, [0])
    stats = jit(lambda: advance(search, params, init(search, params, keys(0, 1), root), 2))().stats
    np.testing.assert_array_equal(stats.visits, [[3, 3]])
    np.testing.assert_array_equal(stats.value_sum, [[3 + 2 + 3, -1 + 5 - 1]])
    np.testing.assert_array_equal(stats.lowest, [[2, -1]])
    np.testing.assert_array_equal(stats.highest, [[3, 5]])


@pytest.mark.slow
def test_gumbel_plans_for_the_simulations_of_this_search():
    # Four actions, eight simulations: one visit of each, two more of two of them.
    params = two_players(4)
    search = jaxpgs.search.gumbel_mcts_search(toy.split_fn, 8, simulations_per_update=4)

    @jit
    def searched(rng_keys, roots, nodes):
        return run(search, params, rng_keys, roots, nodes=nodes)

    roots = toy.root(params, [0, 1, 2])
    nothing = jit(lambda: jaxpgs.search.init_nodes(search, params, roots, 9))()
    output = searched(keys(1, 3), roots, nothing)
    known = 0
    for seed in (2, 3):
        visits = np.asarray(output.search_state.visits) - known
        np.testing.assert_array_equal(np.sort(visits, axis=-1), [[1, 1, 3, 3]] * 3)
        assert (visits[np.arange(3), output.action] == 3).all()
        nodes = reroot(output.search_state.nodes, output.action, num_kept=9)
        at_root = jnp.zeros(3, jnp.int32)
        known = np.asarray(jit(node_stats)(nodes, at_root, jnp.zeros((3, 4))).visits)
        assert (known.sum(-1) > 0).all()
        roots = toy.root(params, params["next"][roots.embedding, output.action])
        output = searched(keys(seed, 3), roots, nodes)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("ranges", [False, True])
def test_visits_behind_the_limit_are_nobodys(ranges, dense):
    params = two_players(3)
    selection = (
        jaxpgs.selection.max_min_puct(bounds="returns") if ranges else jaxpgs.selection.puct()
    )
    search = jaxpgs.search.batched_mcts_search(
        toy.split_fn, 8, simulations_per_update=2, capacity=3, root_selection=selection
    )

    @jit
    def added():
        carry = init(search, params, keys(0, 2), toy.root(params, [0, 1]))
        store, context = loop.prepare(search, params, carry, 1)
        *_, memory, simulations, _ = update.simulate(store, context, carry)

        def padded(rows):  # [T, B, K] for as many T as there are
            rows = jnp.asarray(rows)
            return jnp.zeros_like(simulations.child, rows.dtype).at[:2].set(rows)

        made = simulations._replace(
            trajectory=simulations.trajectory._replace(
                alive=padded([[[True, True], [True, True]], [[True, True], [True, False]]])
            ),
            steps=simulations.steps._replace(
                action=padded([[[0, 2], [1, 0]], [[1, 1], [2, 2]]]).astype(jnp.int32)
            ),
            child=padded([[[1, 3], [2, 4]], [[4, 5], [3, 2]]]).astype(jnp.int32),
        )
        returns = padded([[[1.0, 2.0], [4.0, 8.0]], [[16.0, 32.0], [-64.0, 128.0]]])
        context = context._replace(dense=dense)
        return context.rows.limit, store_tree.remember(context, memory, made, returns)

    limit, found = added()
    assert limit == 3
    visits, value_sum = np.zeros((2, 2, *found.visits.shape[1:]), int)
    visits[0, 0] = [1, 0, 1]  # from the root; the next steps led behind the limit
    visits[1, 0], visits[1, 2] = [0, 1, 0], [0, 0, 1]
    value_sum[0, 0], value_sum[1, 0], value_sum[1, 2] = [1, 0, 2], [0, 4, 0], [0, 0, -64]
    np.testing.assert_array_equal(found.visits, visits)
    np.testing.assert_array_equal(found.value_sum, value_sum)
    assert (found.numbers.shape[-1] == 3 + 3 * 4) == ranges
    if ranges:
        lowest, highest = found.numbers[..., -9:-6], found.numbers[..., -6:-3]
        np.testing.assert_array_equal(np.asarray(lowest)[visits > 0], [1, 2, 4, -64])
        np.testing.assert_array_equal(np.asarray(highest)[visits > 0], [1, 2, 4, -64])


@pytest.mark.slow
def test_a_tree_counts_the_visits_of_the_states_it_holds():
    # Sums over what is held are at most the root's, whose own statistics forget nothing.
    params = two_players(3)
    search = jaxpgs.search.batched_mcts_search(
        toy.split_fn, 24, simulations_per_update=4, capacity=5
    )
    state = jit(functools.partial(run, search))(
        params, keys(4, 3), toy.root(params, [0, 1, 2])
    ).search_state
    visits, children = np.asarray(state.nodes.visits), np.asarray(state.nodes.children)
    np.testing.assert_array_equal(visits > 0, children > 0)
    assert children.max() == 5 and (toy.num_used(state.nodes) > 2).all()
    np.testing.assert_array_equal(state.visits.sum(-1), 24)
    for b in range(3):
        held = children[b, 0] > 0
        np.testing.assert_array_equal(visits[b, 0][held], state.visits[b][held])
        own = np.flatnonzero(state.nodes.edge[b] >= 0)
        np.testing.assert_array_equal(np.sort(children[b][children[b] > 0]), own)


def total_bytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def bytes_of_walks(depth, source):
    """What three roots times four simulations keep of their steps, given what it takes of a state.

    Of each step: whether it was taken and whether by the policy, seven numbers, the action and the
    state reached. Of each simulation its depth and whether it was cut off; of each root three
    counts.
    """
    return 3 * 4 * (depth * (2 + 4 * 7 + 4 + 4 + source) + 4 + 1) + 3 * 3 * 4


BOUNDS = [(None, 1, None), (7, 1, None), (None, 1, 3), (9, 5, 4)]


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("adapts", "capacity", "num_kept", "max_depth"),
    [
        *((adapts, *bounds) for adapts in (False, True) for bounds in BOUNDS),
        (False, None, 5, None),
        (True, None, 5, None),
    ],
)
def test_estimate_of_a_tree(adapts, capacity, num_kept, max_depth):
    # Three roots of four actions and two features; one embedding of four bytes.
    params = two_players(4)
    roots = toy.root(params, [0, 1, 2])
    adapt = toy.adapt_head if adapts else None
    knobs = {"mode": "tree", "simulations_per_update": 4}
    knobs |= {"capacity": capacity, "max_depth": max_depth}
    estimate = jaxpgs.estimate_memory(
        params, roots, toy.split_fn, 24, adapt=adapt, num_kept=num_kept, **knobs
    )
    make = (
        functools.partial(jaxpgs.search.pgs_search, adapt=adapt)
        if adapts
        else jaxpgs.search.mcs_search
    )
    search = make(toy.split_fn, 24, **knobs)
    nodes = jaxpgs.search.init_nodes(search, params, roots, num_kept) if num_kept > 1 else None
    carry = jax.eval_shape(lambda: init(search, params, keys(0, 3), roots, nodes=nodes))
    assert estimate.nodes == total_bytes(carry.memory)
    # Reward, discount, value; the edge; children, visits, their sum; embedding; features or logits.
    assert estimate.per_node == 4 * (3 + 1 + 3 * 4 + 1 + (2 if adapts else 4))
    # Of new nodes: as many as simulations or the capacity, and room for an update's.
    num_new = (24 if capacity is None else capacity) + 4
    assert estimate.nodes == 3 * (num_kept + num_new) * estimate.per_node
    # Two by four parameters of four bytes, a copy for each root, thrice.
    assert estimate.adapted == (3 * 3 * 2 * 4 * 4 if adapts else 0)
    assert estimate.adapted == 3 * total_bytes(carry.adapted)
    depth = max_depth or 6 + num_kept - 1
    assert estimate.walks == bytes_of_walks(depth, source=4)
    assert estimate.total == estimate.nodes + estimate.adapted + estimate.walks


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rollouts", "tree"])
def test_estimate_of_what_is_used_again(mode):
    params = two_players(4)
    roots = toy.root(params, [0, 1, 2])
    knobs = {"mode": mode, "adapt": toy.adapt_head, "simulations_per_update": 4}
    plain = jaxpgs.estimate_memory(params, roots, toy.split_fn, 24, **knobs)
    found = [
        jaxpgs.estimate_memory(
            params, roots, toy.split_fn, 24, reuse=jaxpgs.reuse.Reuse(num), **knobs
        )
        for num in (2, 4)
    ]
    search = jaxpgs.search.pgs_search(toy.split_fn, 24, reuse=jaxpgs.reuse.Reuse(2), **knobs)
    carry = jax.eval_shape(lambda: init(search, params, keys(0, 3), roots))
    assert plain.ring == 0 and found[0].ring == total_bytes(carry.ring) > 0
    assert found[1].ring == 2 * found[0].ring
    assert [e.total - e.ring for e in found] == [plain.total, plain.total]


@pytest.mark.parametrize("adapts", [False, True])
def test_estimate_of_rollouts(adapts):
    params = two_players(4)
    roots = toy.root(params, [0, 1, 2])
    adapt = toy.adapt_head if adapts else None
    found = [
        jaxpgs.estimate_memory(
            params,
            roots,
            toy.split_fn,
            24,
            adapt=adapt,
            simulations_per_update=4,
            mode="rollouts",
            **knobs,
        )
        for knobs in (
            {"max_depth": 5},
            {},
            {"truncation": jaxpgs.truncation.fixed(3)},
            {"truncation": jaxpgs.truncation.until_new(2**4)},
        )
    ]
    # For the gradient two features and the state a step; a flag for each hash.
    for estimate, depth, table in zip(found, (5, 16, 3, 16), (2**15, 2**15, 0, 2**4), strict=True):
        assert estimate.walks == 3 * table + bytes_of_walks(depth, source=12 if adapts else 4)
        assert estimate.nodes == 0
        assert estimate.adapted == (3 * 3 * 2 * 4 * 4 if adapts else 0)
        assert estimate.total == estimate.adapted + estimate.walks
