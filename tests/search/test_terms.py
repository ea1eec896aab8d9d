"""What objectives may ask of the simulation policy, in both modes and against plain autodiff."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from games import mostly_slow

import jaxpgs
from jaxpgs.base import PolicyTerms
from jaxpgs.search import run
from jaxpgs.search.parts.estimator import terms_of
from jaxpgs.search.policy import terms_and_slopes

B, K, A = 3, 6, 3
LOWEST = np.finfo(np.float32).min
NAMES = PolicyTerms._fields


@functools.cache
def game():
    rng = np.random.default_rng(2)
    return toy.tree(
        A, 3, discount=-0.9, features=rng.normal(size=(40, 4)), head=rng.normal(size=(4, A)),
        value=rng.uniform(-1, 1, 40), reward=rng.uniform(-1, 1, (40, A)),
    )  # fmt: skip


def test_closed_forms_are_the_derivatives():
    rng = np.random.default_rng(0)
    logits, prior = rng.normal(0, 2, (2, 50, 6)).astype(np.float32)
    illegal = rng.random((50, 6)) < 0.3
    illegal[:, 0] = False
    logits, prior = (jnp.asarray(np.where(illegal, LOWEST, x)) for x in (logits, prior))
    policy, other = jax.nn.softmax(logits), jax.nn.softmax(prior)
    entropy = jnp.sum(jax.scipy.special.entr(policy), axis=-1)
    found, slopes = terms_and_slopes(policy, other, entropy, frozenset(NAMES))
    # By hand, in float64.
    p, q = np.asarray(policy, np.float64), np.asarray(other, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, log_q = np.where(p > 0, np.log(p), 0), np.where(q > 0, np.log(q), 0)
    by_hand = {
        "entropy": -(p * log_p).sum(-1),
        "kl_to_prior": (p * (log_p - log_q)).sum(-1),
        "kl_from_prior": (q * (log_q - log_p)).sum(-1),
    }
    for name, expected in by_hand.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)

        def total(logits, name=name):
            p, q = jax.nn.softmax(logits), other
            log_p, log_q = (jnp.where(illegal, 0.0, jax.nn.log_softmax(x)) for x in (logits, prior))
            kl = p * (log_p - log_q), q * (log_q - log_p)
            return jnp.sum(dict(zip(NAMES[1:], (-p * log_p, *kl), strict=True))[name])

        slope = np.asarray(jax.grad(total)(logits))
        np.testing.assert_allclose(slope, slopes[name], rtol=1e-4, atol=1e-5, err_msg=name)
        assert (np.asarray(slopes[name])[illegal] == 0).all()


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradients(mode, shared, head, weights):
    """The gradient of a weighted sum of all terms, and by plain autodiff of the same walks."""
    params = game()
    game_of_all = toy.Simulator(params, jaxpgs.truncation.fixed(3), 3, B, mode, K, NAMES, 2)
    first = jnp.zeros((B, K), jnp.int32) if shared else jnp.arange(K, dtype=jnp.int32)[None] % A
    first = jnp.broadcast_to(first, (B, K))
    keys = jax.random.split(jax.random.key(4), B)
    simulated = game_of_all.run(game_of_all.carry.memory, keys, first, head=head)
    trajectory = simulated.trajectory

    def objective(found):
        parts = [jnp.sum(w * x) for w, x in zip(weights, found, strict=True)]
        return sum(parts[1:], parts[0])

    cotangents = jax.grad(objective)(trajectory.terms)
    return trajectory, simulated.simulations.norms, simulated.gradient(cotangents)


@jax.jit
@jax.grad
def plain_gradient(head, nodes, actions, weights):
    """Of the weighted sum `[4, S]` of the terms of S steps, as anyone would write it."""
    features, prior = game()["torso"][nodes], game()["head"]
    log_p, log_q = (jax.nn.log_softmax(features @ h) for h in (head, prior))
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    found = (
        jnp.take_along_axis(log_p, actions[:, None], axis=1)[:, 0],
        *(jnp.sum(x, -1) for x in (-p * log_p, p * (log_p - log_q), q * (log_q - log_p))),
    )
    return jnp.sum(weights * jnp.stack(found))


@pytest.mark.first_case
@pytest.mark.parametrize("mode", ["rollouts", "whole", "tree"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.each_value
def test_gradients_of_all_terms_are_plain_autodiff(mode, shared):
    params, rng = game(), np.random.default_rng(6)
    head = params["head"][None] + jnp.asarray(
        rng.normal(size=(B, 4, A)), jnp.float32
    )  # not the prior
    weights = jnp.asarray(rng.normal(size=(4, 3, B, K)), jnp.float32)
    trajectory, norms, found = gradients(mode, shared, head, weights)
    node_at = {float(v): node for node, v in enumerate(np.asarray(params["value"]))}
    ends, weights_of = np.asarray(trajectory.value[2]), np.asarray(weights)
    for b in range(B):
        walks = [toy.actions_to(A, node_at[float(end)]) for end in ends[b]]
        steps = [(t, k) for k in range(K) for t in range(1, 3)]  # the bandit took the first
        nodes = [toy.node_of(A, walks[k][:t]) for t, k in steps]
        actions = [walks[k][t] for t, k in steps]
        weighed = [weights_of[:, t, b, k] for t, k in steps]
        expected = plain_gradient(head[b], np.array(nodes), np.array(actions), np.array(weighed).T)
        np.testing.assert_allclose(found[b], expected, rtol=2e-4, atol=2e-5)
    # All of them tell the same terms, and the same norms of their derivatives.
    other, other_norms, _ = gradients("rollouts", shared, head, weights)
    chex.assert_trees_all_close(trajectory.terms, other.terms, atol=1e-5)
    chex.assert_trees_all_close(norms, other_norms, atol=1e-5)
    assert all(np.abs(np.asarray(x)).max() > 0.01 for x in trajectory.terms)


def test_estimators_say_what_they_are_differentiated_by():
    plain = jaxpgs.estimator.reinforce()
    entropy = lambda root, trajectory, returns: jnp.sum(trajectory.entropy, axis=(0, 2))  # noqa: E731
    cases = [
        (("log_prob",), plain),
        (("log_prob",), jaxpgs.estimator.step_advantage()),
        (("entropy", "log_prob"), jaxpgs.estimator.regularized(plain, entropy=0.1)),
        (("kl_to_prior", "log_prob"), jaxpgs.estimator.regularized(plain, kl_to_prior=0.1)),
        (("kl_from_prior", "log_prob"), jaxpgs.estimator.regularized(plain, kl_from_prior=0.1)),
        (("entropy",), jaxpgs.estimator.Estimator(entropy, ("entropy",))),
        (NAMES, entropy),  # a plain function may depend on any
        ((), None),
    ]
    for expected, estimator in cases:
        assert terms_of(estimator) == frozenset(expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", mostly_slow(["all terms", "entropy alone"], "all terms"))
def test_regularized_searches_are_the_same_in_both_modes(kind):
    params = game()
    estimator = jaxpgs.estimator.regularized(
        jaxpgs.estimator.reinforce(), entropy=0.3, kl_to_prior=0.2, kl_from_prior=0.1
    )
    if kind == "entropy alone":
        estimator = lambda root, trajectory, returns: jnp.sum(trajectory.entropy, axis=(0, 2))  # noqa: E731
    states = []
    for mode in ("rollouts", "tree"):
        search = jaxpgs.search.pgs_search(
            toy.split_fn,
            24,
            adapt=toy.adapt_head,
            mode=mode,
            estimator=estimator,
            truncation=jaxpgs.truncation.fixed(3),
            simulations_per_update=6,
            optimizer=jaxpgs.estimator.auto_sgd(0.5),
            interior_selection=None,
        )
        keys = jax.random.split(jax.random.key(1), B)
        output = jax.jit(functools.partial(run, search))(params, keys, toy.root(params, [0, 1, 2]))
        states.append(output.search_state)
    np.testing.assert_array_equal(states[0].visits, states[1].visits)
    chex.assert_trees_all_close(states[0].params, states[1].params, atol=1e-4)
    if kind == "entropy alone":
        # Going up its gradient, the entropy rises above that of a search that stands still.
        still = jaxpgs.search.pgs_search(
            toy.split_fn, 24, adapt=toy.adapt_head, truncation=jaxpgs.truncation.fixed(3),
            simulations_per_update=6, optimizer=optax.sgd(0.0), interior_selection=None,
        )  # fmt: skip
        keys = jax.random.split(jax.random.key(1), B)
        plain = jax.jit(functools.partial(run, still))(params, keys, toy.root(params, [0, 1, 2]))
        assert (states[0].entropy > plain.search_state.entropy).all()


# --- a policy that reads the nodes ----------------------------------------------------------------


@pytest.mark.slow
def test_policy_of_the_nodes_is_the_formula():
    # One root, three actions; simulations of fixed length 2 fill the statistics of the first nodes.
    params = game()
    weight = 0.7
    raw = functools.partial(jaxpgs.target.qtransform_completed_by_mix_value, rescale_values=False)
    search = functools.partial(
        jaxpgs.search.mcs_search, toy.split_fn, mode="tree", truncation=jaxpgs.truncation.fixed(3),
        interior_selection=jaxpgs.target.improved_policy(weight, qtransform=raw),
    )  # fmt: skip
    keys = jax.random.split(jax.random.key(1), B)
    roots = toy.root(params, [0, 0, 0])
    output = jax.jit(functools.partial(run, search(60, simulations_per_update=60)))(
        params, keys, roots
    )
    nodes = output.search_state.nodes
    # Visits of the root's children are the root's visits, and every simulation is counted once.
    for b in range(B):
        for a in range(A):
            visits = int(nodes.visits[b, 0, a])
            assert visits == int(output.search_state.visits[b, a])
            assert (visits > 0) == (int(nodes.children[b, 0, a]) > 0)
            if visits:
                mean = float(nodes.value_sum[b, 0, a]) / visits
                np.testing.assert_allclose(mean, output.search_state.qvalues[b, a], rtol=1e-4)
    # Without weight the policy is the network's, and the answer that of a search without it.
    zero = jaxpgs.search.mcs_search(
        toy.split_fn, 24, mode="tree", interior_selection=jaxpgs.target.improved_policy(0.0),
        simulations_per_update=4,
    )  # fmt: skip
    none = jaxpgs.search.mcs_search(toy.split_fn, 24, mode="tree", simulations_per_update=4)
    one, two = (jax.jit(functools.partial(run, s))(params, keys, roots) for s in (zero, none))
    np.testing.assert_array_equal(one.search_state.visits, two.search_state.visits)
    # With it, the logits are those of completed Q, node by node.
    logits = params["torso"][nodes.embedding[0][:, 1, 0]] @ params["head"]
    stats = jaxpgs.search.node_stats(nodes, jnp.array([1, 1, 1]), logits)
    expected = stats.prior_logits + weight * raw(stats)
    found = jaxpgs.target.improved_policy(weight, qtransform=raw).logits(stats)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    sharp = jaxpgs.target.improved_policy(weight, temperature=0.25, qtransform=raw).logits
    np.testing.assert_allclose(sharp(stats), 4 * expected, rtol=1e-5)
    # Logits of actions that are ruled out stay finite.
    lowest = jnp.finfo(jnp.float32).min
    assert jnp.isfinite(sharp(stats._replace(prior_logits=logits + lowest))).all()


@pytest.mark.slow
@pytest.mark.parametrize("simulations_per_update", mostly_slow([1, 5], 5))
def test_followed_by_counts_the_improved_policy_is_gumbel_muzeros_tree_search(
    simulations_per_update,
):
    params = game()
    knobs = {"simulations_per_update": simulations_per_update}
    tree = jaxpgs.search.gumbel_mcts_search(toy.split_fn, 60, **knobs)
    followed = jaxpgs.search.mcs_search(
        toy.split_fn,
        60,
        mode="tree",
        root_selection=jaxpgs.gumbel.gumbel_root(),
        target=jaxpgs.gumbel.gumbel_target(),
        interior_selection=jaxpgs.target.improved_policy(by_counts=True),
        **knobs,
    )
    keys = jax.random.split(jax.random.key(2), B)
    one, two = (
        jax.jit(functools.partial(run, s))(params, keys, toy.root(params, [0, 1, 2]))
        for s in (tree, followed)
    )
    assert (
        int(toy.num_used(one.search_state.nodes).min()) > 20
    )  # deep enough to tell the rules apart
    chex.assert_trees_all_equal(one.action, two.action)
    for name in ("children", "visits"):
        first, second = (getattr(x.search_state.nodes, name) for x in (one, two))
        np.testing.assert_array_equal(first, second)


OPTIMIZERS = {"sgd": optax.sgd(0.3), "auto": jaxpgs.estimator.auto_sgd(0.5)}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(OPTIMIZERS, "auto"))
def test_the_gradient_goes_through_what_reads_the_nodes(name):
    # A policy that is cooled when it is read learns as one that is cold itself.
    def cold(params, features, node):
        return toy.split_fn.policy(params, features, node) / 0.25

    params = game()
    knobs = {
        "mode": "tree", "adapt": toy.adapt_head, "simulations_per_update": 4,
        "optimizer": OPTIMIZERS[name], "truncation": jaxpgs.truncation.fixed(3),
        "estimator": jaxpgs.estimator.regularized(jaxpgs.estimator.reinforce("value"), entropy=0.1),
    }  # fmt: skip
    cooled = jaxpgs.target.SampledPolicy(lambda node: node.prior_logits / 0.25)
    keys = jax.random.split(jax.random.key(1), B)
    one, two = (
        jax.jit(
            functools.partial(
                run, jaxpgs.search.pgs_search(model, 16, interior_selection=part, **knobs)
            )
        )(params, keys, toy.root(params, [0, 1, 2]))
        for model, part in (
            (toy.split_fn, cooled),
            (jaxpgs.base.SplitRecurrentFn(toy.split_fn.expand, cold), None),
        )
    )
    moved = np.abs(np.asarray(one.search_state.params["head"]) - np.asarray(params["head"]))
    assert moved.max() > 0.05
    np.testing.assert_array_equal(one.search_state.visits, two.search_state.visits)
    chex.assert_trees_all_close(one.search_state.params, two.search_state.params, atol=1e-5)


@pytest.mark.slow
def test_learning_and_remembering_together():
    params = game()
    search = jaxpgs.search.gumbel_pgs_search(
        toy.split_fn,
        48,
        adapt=toy.adapt_head,
        mode="tree",
        simulations_per_update=4,
        interior_selection=jaxpgs.target.improved_policy(),
        estimator=jaxpgs.estimator.regularized(
            jaxpgs.estimator.reinforce("value"), kl_to_prior=0.1
        ),
    )
    keys = jax.random.split(jax.random.key(1), B)
    state = jax.jit(functools.partial(run, search))(
        params, keys, toy.root(params, [0, 1, 2])
    ).search_state
    chex.assert_tree_all_finite((state.params, state.qvalues))
    np.testing.assert_array_equal(state.visits.sum(-1), 48)
    np.testing.assert_array_equal(state.skipped_updates, 0)
    assert (np.asarray(state.params["head"]) != np.asarray(params["head"])).any((1, 2)).all()
