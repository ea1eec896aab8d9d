"""mctx's own arguments by name, settings by root, and rewards of any size."""

import functools

import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

import jaxpgs

B, A = 6, 4
jit = functools.partial(jax.jit, compiler_options=games.QUICK)


def weights(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


MOVES, VALUES = 0.7 * weights(0, A, 6, 6), weights(1, 6)
PARAMS = {"policy_head": weights(2, 6, A)}
STATES = weights(3, B, 6)


def recurrent_fn(params, rng_key, action, embedding, size=1.0):
    """Rewards and values of every sign, for two players; as large as the size says."""
    del rng_key
    after = jnp.tanh(jnp.einsum("bij,bj->bi", MOVES[action], embedding))
    output = mctx.RecurrentFnOutput(
        reward=0.3 * size * (embedding @ VALUES),
        discount=jnp.full(len(action), -0.9),
        prior_logits=after @ params["policy_head"],
        value=size * (after @ VALUES),
    )
    return output, after


def root(size=1.0):
    return mctx.RootFnOutput(
        prior_logits=STATES @ PARAMS["policy_head"],
        value=size * (STATES @ VALUES),
        embedding=STATES,
    )


def search(policy, num_simulations=12, size=1.0, **knobs):
    model = functools.partial(recurrent_fn, size=size)
    invalid = jnp.zeros((B, A)).at[0, 1].set(1.0)
    with games.lenient_promotion():  # mctx's functions
        return policy(
            PARAMS, jax.random.key(5), root(size), model, num_simulations, invalid, **knobs
        )


BY_BOUNDS = functools.partial(mctx.qtransform_by_min_max, min_value=-4.0, max_value=4.0)
MIXED, SIBLINGS = mctx.qtransform_completed_by_mix_value, mctx.qtransform_by_parent_and_siblings
# Two calls with the same keywords: mctx's, and what stands in its place.
CALLS = {
    "gumbel": (mctx.gumbel_muzero_policy, jaxpgs.gumbel_mcts_policy),
    "muzero": (mctx.muzero_policy, jaxpgs.batched_mcts_policy),
}
KEYWORDS = [
    ("gumbel", {"qtransform": functools.partial(MIXED, use_mixed_value=False, value_scale=0.3),
                "max_depth": 3}),
    ("gumbel", {"qtransform": BY_BOUNDS, "max_num_considered_actions": 3,
                "gumbel_scale": jnp.linspace(0.0, 2.0, B)[:, None]}),
    ("muzero", {"qtransform": BY_BOUNDS, "pb_c_init": 0.8, "max_depth": 3}),
    ("muzero", {"qtransform": functools.partial(SIBLINGS, epsilon=0.5), "pb_c_base": 30.0}),
]  # fmt: skip


@pytest.mark.first_case
@pytest.mark.parametrize(("name", "keywords"), games.mostly_slow(KEYWORDS, *KEYWORDS[:3:2]))
def test_programs_for_mctx_run_with_its_keywords(name, keywords):
    theirs, ours = CALLS[name]
    noise = {"dirichlet_fraction": 0.0, "temperature": 0.0} if name == "muzero" else {}

    @jit
    def both():
        before = search(theirs, **keywords, **noise)
        after = search(ours, simulations_per_update=1, **keywords, **noise)
        return before.search_tree.summary(), after.search_tree.summary(), before, after

    wanted, found, before, after = both()
    for field in ("visit_counts", "visit_probs", "value", "qvalues"):
        np.testing.assert_allclose(getattr(found, field), getattr(wanted, field), atol=2e-6)
    if name == "gumbel":
        np.testing.assert_array_equal(after.action, before.action)
        np.testing.assert_allclose(after.action_weights, before.action_weights, atol=2e-6)


@pytest.mark.lenient
def test_ours_has_the_arguments_of_mctxs_function():
    node = jaxpgs.base.NodeStats(
        prior_logits=weights(7, B, A),
        value=weights(8, B),
        visits=jnp.tile(jnp.array([2, 0, 3, 1]), (B, 1)),
        value_sum=weights(9, B, A) * jnp.array([1.0, 0.0, 1.0, 1.0]),
        valid=jnp.ones((B, A), bool),
    )
    for knobs in ({"use_mixed_value": False}, {"rescale_values": False}, {"epsilon": 5.0}):
        functions = [f.qtransform_completed_by_mix_value for f in (jaxpgs.target, mctx)]
        with games.lenient_promotion():
            ours, theirs = (
                jax.nn.softmax(
                    jaxpgs.target.improved_policy(qtransform=functools.partial(f, **knobs)).logits(
                        node
                    )
                )
                for f in functions
            )
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.slow
def test_muzeros_selection_adds_what_any_qtransform_says():
    node = jaxpgs.base.NodeStats(
        weights(7, 1, A), weights(8, 1), jnp.array([[2, 0, 3, 1]]), weights(9, 1, A) * 0.0 + 1.0,
        jnp.ones((1, A), bool),
    )  # fmt: skip
    node = node._replace(visits=node.visits.astype(jnp.float32))
    plain, more = (
        jaxpgs.selection.muzero_puct(qtransform=q).score(node, jnp.zeros((1, A)))
        for q in (lambda node: 0.0 * node.qvalues, lambda tree, i: 1.0 + tree.children_visits[i])
    )
    np.testing.assert_allclose(more - plain, [[3.0, 1.0, 4.0, 2.0]], atol=1e-5)


@pytest.mark.parametrize("qtransform", [3.0, BY_BOUNDS.func, lambda: 0.0, lambda a, b, c: a])
def test_other_qtransforms_are_refused(qtransform):
    with pytest.raises(ValueError, match=r"qtransform.*statistics"):
        jaxpgs.search.gumbel_mcts_search(recurrent_fn, 4, qtransform=qtransform)
    with pytest.raises(ValueError, match="muzero_puct needs qtransform"):
        jaxpgs.search.mcs_search(recurrent_fn, 4, qtransform=qtransform)


def test_a_part_and_settings_of_another_are_refused():
    puct, target = jaxpgs.selection.puct(2.0), jaxpgs.target.visit_counts()
    for knobs in ({"pb_c_init": 1.25}, {"qtransform": SIBLINGS}, {"pb_c_base": 100.0}):
        (name,) = knobs
        with pytest.raises(ValueError, match=f"{name} would make a root_selection"):
            jaxpgs.search.batched_mcts_search(recurrent_fn, 4, root_selection=puct, **knobs)
    with pytest.raises(ValueError, match="temperature would make a target"):
        jaxpgs.search.mcs_search(recurrent_fn, 4, target=target, temperature=1.0)
    for knobs in ({"gumbel_scale": 0.0}, {"max_num_considered_actions": 2}):
        with pytest.raises(ValueError, match="would make a root_selection"):
            jaxpgs.search.gumbel_mcts_search(
                recurrent_fn, 4, root_selection=jaxpgs.gumbel.gumbel_root(), **knobs
            )
    chosen = jaxpgs.search.gumbel_pgs_search(
        recurrent_fn, 4, adapt="policy_head", gumbel_scale=None
    )
    assert chosen.num_simulations == 4


# --- settings by root -----------------------------------------------------------------------------


SETTINGS = [
    (jaxpgs.gumbel_mcts_policy, {"gumbel_scale": jnp.array([0.0, 9.0, 1.0, 0.5, 2.0, 0.0])}),
    (jaxpgs.batched_mcts_policy, {
        "temperature": jnp.array([0.0, 9.0, 0.0, 9.0, 1.0, 0.3]),
        "dirichlet_fraction": jnp.array([[0.0], [1.0], [0.2], [0.9], [0.5], [0.0]]),
        "dirichlet_alpha": jnp.array([0.01, 10.0, 0.3, 1.0, 0.1, 5.0]),
    }),
]  # fmt: skip


@pytest.mark.first_case
@pytest.mark.parametrize(("policy", "settings"), SETTINGS)
def test_settings_by_root(policy, settings):
    @jit
    def ask(settings):
        output = search(policy, 4, simulations_per_update=1, **settings)
        return output.action, output.search_state.visits

    found = ask(settings)
    each = [ask({name: x[b].reshape(()) for name, x in settings.items()}) for b in range(B)]
    for i in (0, 1):
        np.testing.assert_array_equal(found[i], [one[i][b] for b, one in enumerate(each)])
    assert any((one[1] != each[0][1]).any() for one in each), "or the settings do nothing"


def test_visits_are_drawn_at_a_temperature_by_root():
    targets = [
        jaxpgs.target.visit_counts(t) for t in (0.0, 30.0, jnp.array([0.0, 30.0] * 3)[:, None])
    ]
    keys = jax.random.split(jax.random.key(1), 16)

    @jit
    def actions(key):
        return [
            jaxpgs.search.finish(s, c).action
            for s, c in (
                (made, jaxpgs.search.init(made, PARAMS, key, root()))
                for made in (jaxpgs.search.mcs_search(recurrent_fn, 8, target=t) for t in targets)
            )
        ]

    cold, hot, mixed = np.stack([np.stack(actions(key)) for key in keys], axis=1)
    np.testing.assert_array_equal(mixed[:, ::2], cold[:, ::2])
    np.testing.assert_array_equal(mixed[:, 1::2], hot[:, 1::2])
    assert (hot != cold).any()


@pytest.mark.parametrize(
    ("policy", "knobs", "message"),
    [
        (jaxpgs.mcs_policy, {"temperature": jnp.ones(3)}, r"each of the 6 roots; .*\[3\]"),
        (jaxpgs.mcs_policy, {"temperature": jnp.ones((B, A))}, r"temperature .*shape \[6, 4\]"),
        (jaxpgs.mcs_policy, {"temperature": -jnp.ones(B)}, "temperature .* at least 0"),
        (jaxpgs.mcs_policy, {"dirichlet_fraction": jnp.ones((3, 1))}, r"6 roots; .*\[3, 1\]"),
        (jaxpgs.mcs_policy, {"dirichlet_fraction": jnp.full(B, 2.0)}, "fraction .* at most 1"),
        (jaxpgs.gumbel_mcts_policy, {"gumbel_scale": jnp.ones(2)}, r"6 roots; .*\[2\]"),
        (jaxpgs.gumbel_mcts_policy, {"gumbel_scale": "none"}, "gumbel_scale .*; got 'none'"),
        (jaxpgs.mcs_policy, {"pb_c_init": jnp.ones((B, 1))}, r"pb_c_init .*shape \[6, 1\]"),
        (jaxpgs.gumbel_mcts_policy, {"max_num_considered_actions": 4.0}, "whole number .* got 4.0"),
        (jaxpgs.mcs_policy, {"root_selection": jaxpgs.selection.puct, "dirichlet_fraction": 0.2},
         "Call it: selection=puct"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_named(policy, knobs, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: search(policy, 4, **knobs).action)


def test_traced_numbers_that_shapes_depend_on_are_named():
    for make in (
        lambda n: jaxpgs.gumbel.gumbel_root(n),
        lambda n: jaxpgs.truncation.fixed(n),
        lambda n: jaxpgs.search.mcs_search(recurrent_fn, n),
        lambda n: jaxpgs.reuse.Reuse(num_updates=n),
        lambda n: jaxpgs.truncation.by_visits(n),
    ):
        with pytest.raises(ValueError, match="known before tracing"):
            jax.eval_shape(lambda n, make=make: bool(make(n)), 4)


# --- rewards of any size --------------------------------------------------------------------------

HEAD = {"adapt": "policy_head"}
PRESETS = [
    (jaxpgs.pgs_policy, HEAD),
    (jaxpgs.batched_mcts_policy, {}),
    (jaxpgs.gumbel_pgs_policy, HEAD),
    (jaxpgs.extended_pgs_policy, HEAD | {"mode": "rollouts", "entropy": 0.1}),
]


@pytest.mark.first_case
@pytest.mark.parametrize(("policy", "knobs"), games.mostly_slow(PRESETS, *PRESETS[2:]))
def test_the_size_of_rewards_does_not_matter(policy, knobs):
    @jit
    def ask(size):
        output = search(policy, 16, size, simulations_per_update=2, max_depth=4, **knobs)
        state = output.search_state
        return output.action_weights, state.visits, state.entropy, state.value / size

    wanted = ask(1.0)
    assert len({tuple(row) for row in np.asarray(wanted[1]).tolist()}) > 1
    for size in (0.01, 100.0):
        found = ask(size)
        np.testing.assert_array_equal(found[1], wanted[1])
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_papers_settings_know_the_size_of_rewards():
    @jit
    def ask(size):
        knobs = jaxpgs.paper_mcs() | {"simulations_per_update": 2}
        return search(jaxpgs.mcs_policy, 16, size, **knobs).search_state.visits

    assert (ask(1.0) != ask(100.0)).any()


# --- numbers that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize("mode", games.mostly_slow(["tree", "rollouts"], "tree"))
@pytest.mark.lenient
def test_evaluations_that_are_not_finite_are_counted(mode):
    @jit
    def ask(bad):
        def model(params, rng_key, action, embedding):
            output, after = recurrent_fn(params, rng_key, action, embedding)
            wrong = jnp.where((action == 0) & bad[0], jnp.nan, 0.0)
            logits = output.prior_logits + jnp.where((action == 1) & bad[1], jnp.nan, 0.0)[:, None]
            over = jnp.where((action == 2) & bad[2], 0.0, output.discount)
            value = output.value + jnp.where(over == 0, jnp.nan, 0.0)  # of a game that is over
            lowest = logits.at[:, 3].set(-jnp.inf)
            output = output.replace(
                reward=output.reward + wrong, prior_logits=lowest, value=value, discount=over
            )
            return output, after

        start = root()
        start = start.replace(value=jnp.where((jnp.arange(B) == 1) & bad[3], jnp.inf, start.value))
        # One simulation of each action.
        least = jaxpgs.selection.Selection(
            lambda state, node, pending: jnp.argmin(node.visits + pending, -1)
        )
        knobs = {"simulations_per_update": 2, "mode": mode, "root_selection": least}
        return jaxpgs.mcs_policy(
            PARAMS, jax.random.key(0), start, model, A, max_depth=1, **knobs
        ).search_state.not_finite

    cases = [((0, 0, 0, 0), 0), ((1, 0, 0, 0), 1), ((1, 1, 0, 0), 2), ((0, 0, 1, 0), 0)]
    for bad, count in cases:
        np.testing.assert_array_equal(ask(jnp.array(bad, bool)), [count] * B)
    np.testing.assert_array_equal(ask(jnp.array([0, 0, 0, 1], bool)), [0, 1, 0, 0, 0, 0])
