import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

import jaxpgs

B = 16
LOWEST, HIGHEST = np.finfo(np.float32).min, np.finfo(np.float32).max


def keys(seed, count=B):
    return jax.random.split(jax.random.key(seed), count)


def game():
    rng = np.random.default_rng(0)
    return toy.tree(
        2,
        3,
        discount=-1.0,
        features=rng.normal(size=(15, 2)),
        head=rng.normal(size=(2, 2)),
        value=rng.uniform(-1, 1, 15),
        reward=rng.uniform(-1, 1, (15, 2)),
    )


# --- mistakes that shapes and counts show ---------------------------------------------------------


def call(**changes):
    params = game()
    arguments = {
        "params": params,
        "rng_key": jax.random.key(0),
        "root": toy.root(params, [0, 0, 0]),
        "recurrent_fn": toy.recurrent_fn,
        "num_simulations": 4,
        "simulations_per_update": 2,
        "adapt": toy.adapt_head,
    }
    return jaxpgs.pgs_policy(**(arguments | changes))


def never(path) -> bool:  # annotated, and still no maker of truncations
    return path.depth < 0


def stops(rule):
    return jaxpgs.truncation.fixed(2)._replace(stop=rule)


def only(name, value=True):
    return {key: key == name and value for key in game()}


def reroot(**fields):
    return toy.root(game(), [0, 0, 0]).replace(**fields)


def no_nodes():
    search = jaxpgs.search.pgs_search(toy.split_fn, 4, adapt=toy.adapt_head)
    return jaxpgs.search.init_nodes(search, game(), toy.root(game(), [0, 0, 0]), 2)


def numbers(path, leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


HEADS = {name: None for name in game()}

BAD_CALLS = {
    "invalid_actions, one root's": (
        {"invalid_actions": jnp.zeros(2)},
        r"invalid_actions must have the shape \(3, 2\).*got \(2,\)",
    ),
    "invalid_actions, transposed": (
        {"invalid_actions": jnp.zeros((2, 3))},
        r"invalid_actions must have the shape \(3, 2\).*got \(2, 3\)",
    ),
    "logits of one root": (
        {"root": reroot(prior_logits=jnp.zeros(2))},
        r"prior_logits \[B, A\] and value \[B\]; got shapes \(2,\) and \(3,\)",
    ),
    "value with an axis too many": (
        {"root": reroot(value=jnp.zeros((3, 1)))},
        r"got shapes \(3, 2\) and \(3, 1\)",
    ),
    "value of another batch": (
        {"root": reroot(value=jnp.zeros(2))},
        r"got shapes \(3, 2\) and \(2,\)",
    ),
    "embedding of another batch": (
        {"root": reroot(embedding=jnp.zeros(2, jnp.int32))},
        r"embedding with a leading axis of 3 roots; got leaves of shapes \[\(2,\)\]",
    ),
    # It would broadcast.
    "embedding of one root": (
        {"root": reroot(embedding=(jnp.zeros((3, 4)), jnp.zeros((1, 4))))},
        r"leading axis of 3 roots; got leaves of shapes \[\(3, 4\), \(1, 4\)\]",
    ),
    "embedding without a batch": (
        {"root": reroot(embedding=jnp.zeros((), jnp.int32))},
        r"leading axis of 3 roots; got leaves of shapes \[\(\)\]",
    ),
    "K of a float": ({"simulations_per_update": 2.0}, "simulations_per_update to be a whole.*2.0"),
    "K of 0": (
        {"simulations_per_update": 0},
        "simulations_per_update to be a whole number .*at least 1.*got 0",
    ),
    "K below 0": ({"simulations_per_update": -2}, "simulations_per_update to be .* got -2"),
    "capacity of 0": (
        {"mode": "tree", "capacity": 0},
        "capacity to be a whole number .*at least 1.*got 0",
    ),
    "capacity, rollouts": (
        {"capacity": 8, "mode": "rollouts"},
        'interior_selection and capacity are for mode="tree".*Got None and 8',
    ),
    "capacity, network of one part": (
        {"capacity": 8},
        'mode="tree" needs a model .* but nothing of the network is independent',
    ),
    "no roots": (
        {"root": toy.root(game(), [])},
        r"at least one root and one action; got prior_logits of shape \(0, 2\)",
    ),
    "N of 0": ({"num_simulations": 0}, "num_simulations to be .*at least 1.*got 0"),
    "N below 0": ({"num_simulations": -4}, "num_simulations to be .*at least 1.*got -4"),
    "max_depth of 0": ({"max_depth": 0}, "max_depth to be .*at least 1.*got 0"),
    "max_depth below 0": ({"max_depth": -1}, "max_depth to be .*at least 1.*got -1"),
    "mode": ({"mode": "chached"}, """mode must be "tree", "rollouts" or None; got 'chached'"""),
    "nodes, rollouts": ({"nodes": no_nodes(), "mode": "rollouts"}, 'nodes are for mode="tree"'),
    "nodes, network of one part": ({"nodes": no_nodes()}, 'nodes are for mode="tree"'),
    "tree, network of one part": (
        {"mode": "tree"},
        'mode="tree" needs a model .* but nothing .*Use mode="rollouts"',
    ),
    "tree, torso adapts": (
        {"mode": "tree", "recurrent_fn": toy.split_fn, "adapt": only("torso")},
        "would be remembered.*depends on .'torso'., which adapt.*Use mode=.rollouts.",
    ),
    "tree, value adapts": (
        {"mode": "tree", "recurrent_fn": toy.split_fn, "adapt": numbers},
        r"would be remembered.*depends on .*'torso', 'value'\], which adapt",
    ),
    "too few keys": (
        {"rng_key": jax.random.split(jax.random.key(0), 2)},
        "one key or one per root; got 2 keys for 3 roots",
    ),
    "too many keys": (
        {"rng_key": jax.random.split(jax.random.PRNGKey(0), 4)},
        "one key or one per root; got 4 keys for 3 roots",
    ),
    "predicate that chooses nothing": (
        {"adapt": lambda path, leaf: False},
        r"adapt chooses none of the parameters; it may choose any of .*\['head'\]",
    ),
    "mask that chooses nothing": (
        {"adapt": only("nobody")},
        r"adapt chooses none of the parameters; it may choose any of .*\['head'\]",
    ),
    "mask of another structure": (
        {"adapt": {"head": True}},
        r"adapt must have the structure of params, be a predicate.*adapt is PyTreeDef\(\{'head'",
    ),
    "estimator without parameters": (
        {"adapt": None},
        "An estimator needs an optimizer and adapt.*adapt=None",
    ),
    "adapted_params of one root": (
        {"adapted_params": HEADS | {"head": jnp.zeros((2, 2))}},
        r"adapted_params\['head'\] must be float32\[3, 2, 2\].*got float32\[2, 2\]",
    ),
    "adapted_params of another batch": (
        {"adapted_params": HEADS | {"head": jnp.zeros((5, 2, 2))}},
        r"adapted_params\['head'\] must be float32\[3, 2, 2\].*got float32\[5, 2, 2\]",
    ),
    "adapted_params of another dtype": (
        {"adapted_params": HEADS | {"head": jnp.zeros((3, 2, 2), jnp.bfloat16)}},
        r"must be float32\[3, 2, 2\].*got bfloat16\[3, 2, 2\]",
    ),
    "adapted_params of other leaves": (
        {"adapted_params": HEADS | {"torso": jnp.zeros((3, 15, 2))}},
        r"a leaf for each parameter that adapts.*expected .*'head': \*.*got .*'head': None",
    ),
}


@pytest.mark.filterwarnings("ignore:The search uses mode")
@pytest.mark.parametrize("name", BAD_CALLS)
def test_mistakes_are_named(name):
    changes, message = BAD_CALLS[name]
    with pytest.raises(ValueError, match=message):
        call(**changes)
    # Under jit as well: shapes are known there.
    arrays = {k: v for k, v in changes.items() if k in ("invalid_actions", "root", "rng_key")}
    static = {k: v for k, v in changes.items() if k not in arrays}
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda arrays: call(**arrays, **static))(arrays)


def test_estimator_without_optimizer_is_named():
    with pytest.raises(ValueError, match=r"needs an optimizer and adapt.*optimizer=None"):
        jaxpgs.Search(
            toy.recurrent_fn,
            num_simulations=4,
            simulations_per_update=2,
            root_selection=jaxpgs.selection.puct(),
            truncation=jaxpgs.truncation.fixed(2),
            backup=jaxpgs.backup.n_step(),
            target=jaxpgs.target.visit_counts(),
            estimator=jaxpgs.estimator.reinforce(),
            adapt=toy.adapt_head,
        )


@pytest.mark.filterwarnings("ignore:The search uses mode")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jaxpgs.estimator.reinforce("median"), """"value", "root", "mean"; got 'median'"""),
        (lambda: jaxpgs.estimator.reinforce(None), '"value", "root", "mean"; got None'),
        (lambda: jaxpgs.selection.puct(unvisited="parent"), """"zero", "value"; got 'parent'"""),
        (lambda: jaxpgs.selection.puct(float("nan")), "puct needs c_puct .* at least 0; got nan"),
        (
            lambda: jaxpgs.selection.puct(virtual_loss=float("inf")),
            "virtual_loss .* finite number; got inf",
        ),
        (lambda: jaxpgs.selection.ucb1(-1), "ucb1 needs c to be .* at least 0; got -1"),
        (lambda: jaxpgs.selection.muzero_puct(pb_c_base=0), "pb_c_base to be .* above 0; got 0"),
        (
            lambda: jaxpgs.selection.max_min_puct(float("nan")),
            "max_min_puct needs c_puct .* got nan",
        ),
        (
            lambda: jaxpgs.target.visit_counts(float("nan")),
            "needs temperature .* at least 0; got nan",
        ),
        (lambda: jaxpgs.target.completed_q(-1.0), "completed_q needs temperature .* got -1"),
        (
            lambda: jaxpgs.target.qtransform_completed_by_mix_value(None, value_scale=float("nan")),
            "needs value_scale .* got nan",
        ),
        (
            lambda: jaxpgs.target.qtransform_completed_by_mix_value(None, epsilon=0),
            "epsilon .* above 0; got 0",
        ),
        (lambda: jaxpgs.estimator.auto_sgd(0), "auto_sgd needs step_size .* above 0; got 0"),
        (
            lambda: jaxpgs.estimator.regularized(jaxpgs.estimator.reinforce(), entropy=-1),
            "needs entropy .* got -1",
        ),
        (
            lambda: jaxpgs.gumbel.gumbel_root(0),
            "max_num_considered_actions .* at least 1 .*; got 0",
        ),
        (lambda: jaxpgs.gumbel.gumbel_root(gumbel_scale=-1), "gumbel_scale .* at least 0; got -1"),
        (lambda: jaxpgs.target.improved_policy(-1), "improved_policy needs scale .* got -1"),
        (
            lambda: jaxpgs.target.improved_policy(temperature=0),
            "needs temperature .* above 0; got 0",
        ),
        (lambda: call(dirichlet_fraction=1.5), "fraction .* at least 0 and at most 1; got 1.5"),
        (lambda: call(dirichlet_fraction=0.2, dirichlet_alpha=0), "alpha .* above 0; got 0"),
        (lambda: jaxpgs.truncation.fixed(0), "fixed needs depth .*at least 1.*; got 0"),
        (lambda: jaxpgs.truncation.fixed(-3), "fixed needs depth .*at least 1.*; got -3"),
        (lambda: jaxpgs.truncation.growing(0), "growing needs initial .*; got 0"),
        (lambda: jaxpgs.truncation.growing(1, every=0), "growing needs every .*; got 0"),
        (lambda: jaxpgs.truncation.by_visits(1), "branching to be .* above 1; got 1"),
        (lambda: jaxpgs.truncation.by_visits(0.5), "branching to be .* above 1; got 0.5"),
        (lambda: jaxpgs.truncation.by_visits(float("nan")), "branching to be .* above 1; got nan"),
        (
            lambda: jaxpgs.truncation.by_probability(0),
            "threshold to be .* above 0 and at most 1; got 0",
        ),
        (lambda: jaxpgs.truncation.by_probability(1.5), "threshold to be .* at most 1; got 1.5"),
        (
            lambda: jaxpgs.truncation.by_probability(float("nan")),
            "threshold to be .* at most 1; got nan",
        ),
        (lambda: jaxpgs.truncation.until_new(0), "table_size to be .*at least 1.*; got 0"),
        (lambda: jaxpgs.truncation.until_new(-4), "table_size to be .*at least 1.*; got -4"),
        (lambda: jaxpgs.truncation.until_new(3), "power of two; got 3"),
        (lambda: call(root=(1, 2)), "root must be a mctx.RootFnOutput, got tuple"),
        (
            lambda: jaxpgs.gumbel_mcts_policy((), jax.random.key(0), None, toy.recurrent_fn, 4),
            "root must be a mctx.RootFnOutput, got NoneType",
        ),
        (lambda: call(recurrent_fn=None), "recurrent_fn must be a function, got NoneType"),
        (lambda: call(rng_key=0), "rng_key must be made by jax.random.key, got 0"),
        (lambda: call(rng_key=jnp.uint32(0)), "rng_key must be made by jax.random.key"),
        (lambda: call(max_depth="x"), "max_depth to be a whole number that is known .* got 'x'"),
        (
            lambda: call(simulations_by_root=[1, 2, 99]),
            r"num_simulations=4; got \[ 1  2 99\]",
        ),
        (lambda: call(recurrent_fn=lambda *args: args[3]), r"must return two things.*got \(3,\)"),
        (
            lambda: call(backup=lambda t: t.reward[0]),
            r"backup returns must be .*got shape \[3, 2\]",
        ),
        (
            lambda: call(truncation=stops(lambda path: True)),
            r"stop returns .*type bool; got shape \[\]",
        ),
        (lambda: call(truncation=stops(lambda path: path.depth)), "type bool; got .* type int32"),
        (lambda: call(truncation=lambda path: path.new), "Put it into one: truncation=Truncation"),
        (lambda: call(truncation=never), r"Put it into one: truncation=Truncation\(never\)"),
        (lambda: call(truncation=jaxpgs.truncation.fixed), r"Call it: truncation=fixed\(...\)"),
        (
            lambda: call(root_selection=jaxpgs.selection.Selection(lambda *_: jnp.int32(0))),
            r"root_selection chooses must be of shape \[3\] and type integer; got shape \[\]",
        ),
        (
            lambda: call(root_selection=jaxpgs.selection.by_score(lambda *_: jnp.zeros(3))),
            r"score returns must be of shape \[3, 2\] and type real; got shape \[3\]",
        ),
        (lambda: call(target=lambda *_: jnp.int32(0)), "an action and weights of the actions"),
        (
            lambda: call(target=lambda *_: (jnp.zeros(3, jnp.int32), jnp.zeros((3, 2)))),
            r"The action of target, for one root, must be of shape \[\]",
        ),
        (
            lambda: call(target=lambda *_: (jnp.int32(0), jnp.zeros(1))),
            r"The weights of target, for one root, must be of shape \[2\].*got shape \[1\]",
        ),
        (
            lambda: call(target=lambda *_: (jnp.int32(0), jnp.zeros(3))),
            r"The weights of target, for one root, must be of shape \[2\].*got shape \[3\]",
        ),
        (
            lambda: call(estimator=jaxpgs.estimator.Estimator(lambda *_: 0.0, ("logprob",))),
            "estimator needs terms to be one of \"log_prob\".*got 'logprob'",
        ),
    ],
)
def test_mistakes_in_parts_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The search uses mode")
def test_good_masks_are_taken():
    # A mask and a predicate that choose the same; shapes alone, so nothing is compiled.
    shapes = jax.eval_shape(lambda: call(adapt=only("head")))
    assert shapes.search_state.params["head"].shape == (3, 2, 2)
    assert shapes.search_state.params["torso"] is None
    assert jax.tree.leaves(jax.eval_shape(call)) == jax.tree.leaves(shapes)
    # One key per root, old style, is good as well; so is an optimizer with a state.
    old = jax.random.split(jax.random.PRNGKey(0), 3)
    jax.eval_shape(lambda: call(rng_key=old, optimizer=optax.sgd(1e-3, momentum=0.9)))


# --- numbers that are none ------------------------------------------------------------------------


def search_in(mode, params, root=None, invalid=None, adapted=None, poisoned=-1, rate=0.1):
    return toy.pgs(
        params,
        keys(1),
        toy.root(game(), [0] * B) if root is None else root,
        jnp.zeros((B, 2), jnp.int32) if invalid is None else jnp.asarray(invalid, jnp.int32),
        toy.start(game(), B) if adapted is None else adapted,
        rate,
        3,
        poisoned,
        num_simulations=4,
        simulations_per_update=2,
        mode=mode,
    )


@pytest.fixture(params=["rollouts", "tree"])
def search(request):
    """A search of the toy game, in both modes."""
    return functools.partial(search_in, request.param)


def check_finite(output):
    """Everything is finite, and every root was searched."""
    state = output.search_state
    for name in ("qvalues", "value", "depth", "entropy", "gradient_norm"):
        assert np.isfinite(getattr(state, name)).all(), name
    np.testing.assert_array_equal(state.visits.sum(-1), 4)
    assert (np.asarray(output.action_weights) >= 0).all()
    np.testing.assert_allclose(output.action_weights.sum(-1), 1, rtol=1e-6)
    assert np.isin(output.action, [0, 1]).all()


def heads(output):
    return np.asarray(output.search_state.params["head"])


def check_same(found, expected, rows):
    """The answers of some roots are the same, bit for bit; how many numbers were none is not."""
    found, expected = (
        output.replace(search_state=output.search_state.replace(not_finite=None))
        for output in (found, expected)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if jnp.ndim(one):  # num_calls is the batch's
            np.testing.assert_array_equal(np.asarray(one)[rows], np.asarray(other)[rows])


@pytest.mark.first_case
def test_root_logits_that_are_not_finite(search):
    rows = {
        0: [np.nan, 0.0],
        1: [0.0, np.nan],
        2: [np.nan, np.nan],
        3: [np.inf, 0.0],
        4: [0.0, -np.inf],
        5: [np.inf, np.inf],
        6: [-np.inf, -np.inf],
        7: [np.inf, -np.inf],
        8: [np.nan, np.inf],
        9: [np.nan, -np.inf],
        10: [LOWEST, LOWEST],
        11: [HIGHEST, HIGHEST],
        12: [HIGHEST, LOWEST],
    }
    root = toy.root(game(), [0] * B)
    logits = np.array(root.prior_logits)
    for row, bad in rows.items():
        logits[row] = bad
    # Where nothing pays, the prior decides alone.
    params = game() | {"value": jnp.zeros(15), "reward": jnp.zeros((15, 2))}
    output = search(params, root.replace(prior_logits=jnp.asarray(logits)))
    check_finite(output)
    check_same(output, search(params, root), [13, 14, 15])
    visits = output.search_state.visits.tolist()
    # NaN and -inf are the lowest logit, inf is the highest; equals share the simulations.
    for row in (0, 8):
        assert visits[row][1] > visits[row][0]
    for row in (1, 3, 4, 7, 12):
        assert visits[row][0] > visits[row][1]
    for row in (2, 5, 6, 9, 10, 11):
        assert visits[row] == [2, 2]


@pytest.mark.first_case
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_root_values_that_are_not_finite(search, bad):
    root = toy.root(game(), [0] * B)
    root = root.replace(value=jnp.full(B, bad, jnp.float32))
    check_finite(search(game(), root))
    # What selections and baselines see of it:
    search_of = jaxpgs.search.mcs_search(toy.recurrent_fn, 4)
    carry = jaxpgs.search.init(search_of, game(), keys(0), root)
    assert not np.any(carry.stats.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("nodes", [slice(None), slice(1, 2), slice(3, None, 2)])
def test_logits_below_the_root_that_are_not_finite(search, bad, nodes):
    # A feature that is not finite gives such logits and such a gradient.
    params = game()
    params["torso"] = params["torso"].at[nodes].set(bad)
    output = search(params)
    check_finite(output)
    skipped = np.asarray(output.search_state.skipped_updates)
    moved = (heads(output) != np.asarray(game()["head"])).any((1, 2))
    assert np.isfinite(heads(output)).all()
    assert ((skipped >= 0) & (skipped <= 2)).all() and (skipped > 0).any()
    # Roots whose two updates were both skipped keep their parameters; others move.
    np.testing.assert_array_equal(moved, skipped < 2)
    if nodes == slice(None):
        assert (skipped == 2).all()
        assert (np.asarray(output.search_state.gradient_norm) == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["value", "reward", "discount"])
def test_numbers_of_the_game_that_are_not_finite_count_as_zero(search, bad, field):
    nodes = slice(1, None, 3)
    broken, mended = game(), game()
    broken[field] = broken[field].at[nodes].set(bad)
    mended[field] = mended[field].at[nodes].set(0)
    output = search(broken)
    check_finite(output)
    assert np.isfinite(heads(output)).all()
    assert (np.asarray(output.search_state.not_finite) > 0).all()
    check_same(output, search(mended), slice(None))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_adapted_params_that_are_not_finite(search, bad):
    adapted = toy.start(game(), B)
    adapted["head"] = adapted["head"].at[::2].set(bad)
    output = search(game(), adapted=adapted)
    check_finite(output)
    # They stay as they are, and the other roots do not notice.
    np.testing.assert_array_equal(heads(output)[::2], np.asarray(adapted["head"])[::2])
    check_same(output, search(game()), slice(1, None, 2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["value", "reward", "discount", "torso", "head"])
def test_both_modes_make_the_same_of_them(field, bad):
    params, adapted = game(), toy.start(game(), B)
    if field == "head":
        adapted["head"] = adapted["head"].at[::2].set(bad)
    else:
        params[field] = params[field].at[1::3].set(bad)
    tree, rollouts = (
        search_in(mode, params, adapted=adapted).search_state for mode in ("tree", "rollouts")
    )
    for name in ("visits", "qvalues", "value", "depth", "entropy", "skipped_updates"):
        one, two = getattr(tree, name), getattr(rollouts, name)
        np.testing.assert_allclose(one, two, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(tree.params["head"], rollouts.params["head"], atol=1e-5)


def test_updates_with_a_bad_gradient_are_skipped_and_counted(search):
    clean = search(game())
    assert not np.any(clean.search_state.skipped_updates)
    # The second of two updates: what is left is the search without it.
    second = search(game(), poisoned=2)
    check_finite(second)
    np.testing.assert_array_equal(second.search_state.skipped_updates, 1)
    first = search(game(), poisoned=0)
    np.testing.assert_array_equal(first.search_state.skipped_updates, 1)
    start = np.asarray(game()["head"])
    assert np.isfinite(heads(first)).all() and np.isfinite(heads(second)).all()
    assert (heads(first) != start).any((1, 2)).all()
    assert (heads(second) != start).any((1, 2)).all()
    assert (heads(second) != heads(clean)).any((1, 2)).all()
    # Both searches share the first policy, so the simulations of the last update are the same.
    np.testing.assert_array_equal(second.search_state.qvalues, clean.search_state.qvalues)
    # The norm of a skipped gradient does not count in the mean.
    assert (second.search_state.gradient_norm < clean.search_state.gradient_norm).all()


# --- games that are over --------------------------------------------------------------------------


def test_root_without_a_legal_action(search):
    invalid = np.zeros((B, 2), np.int32)
    invalid[::2] = 1
    invalid[1] = [1, 0]
    output = search(game(), invalid=invalid)
    state = output.search_state
    for name in ("visits", "qvalues", "value", "num_evaluations", "depth", "entropy"):
        assert (np.asarray(getattr(state, name))[::2] == 0).all(), name
    assert (np.asarray(output.action)[::2] == 0).all()
    assert (np.asarray(output.action_weights)[::2] == 0).all()
    assert (np.asarray(state.skipped_updates) == 0).all()
    np.testing.assert_array_equal(heads(output)[::2], np.asarray(toy.start(game(), B)["head"])[::2])
    # The others find what they find when every root has legal actions.
    invalid[::2] = 0
    check_same(output, search(game(), invalid=invalid), slice(1, None, 2))
    assert state.visits[1].tolist() == [0, 4]


def test_batch_without_a_legal_action(search):
    output = search(game(), invalid=np.ones((B, 2)))
    assert not np.any(output.action) and not np.any(output.action_weights)
    assert output.search_state.num_calls == 0
    assert not np.any(output.search_state.visits)
    assert not np.any(np.isnan(heads(output)))


def test_finished_game_in_the_batch(search):
    # Nodes 7 to 14 end the game here, and their logits are the lowest float, as an adapter's.
    params = game()
    params["discount"] = params["discount"].at[3:].set(0)
    nodes = np.zeros(B, np.int32)
    nodes[::2] = 7
    logits = np.array(toy.root(params, nodes).prior_logits)
    logits[::2] = LOWEST
    ordinary = search(params)
    params["reward"] = params["reward"].at[7].set(0)
    # pgx marks every action of a finished game legal: it is searched, and is worth nothing.
    root = toy.root(params, nodes, logits=logits)
    output = search(params, root)
    check_finite(output)
    state = output.search_state
    assert not np.any(np.where(state.visits > 0, state.qvalues, 0)[::2])
    np.testing.assert_array_equal(np.asarray(state.depth)[::2], 1)
    np.testing.assert_array_equal(heads(output)[::2], np.asarray(toy.start(game(), B)["head"])[::2])
    check_same(output, ordinary, slice(1, None, 2))
    # Our environments mark none.
    invalid = np.zeros((B, 2))
    invalid[::2] = 1
    output = search(params, root, invalid)
    assert not np.any(np.asarray(output.action_weights)[::2])
    check_same(output, ordinary, slice(1, None, 2))


def test_a_root_does_not_depend_on_the_others(search):
    nodes = np.array([0, 1, 2, 0] * 4)
    shuffled = np.array([0, 2, 1, 1] * 4)
    check_same(
        search(game(), toy.root(game(), nodes)),
        search(game(), toy.root(game(), shuffled)),
        slice(0, None, 4),
    )
