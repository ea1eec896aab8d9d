"""The step size that does not depend on the network's scale."""

import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest

import jaxpgs
from jaxpgs.base import PolicyTerms, Trajectory
from jaxpgs.search.learning.learn import logit_square
from jaxpgs.search.parts.estimator import auto_sgd


def test_one_step_by_hand():
    """Features (3, 4) and a policy (1/4, 3/4): the logits move by the step times their gradient."""
    features, policy, advantage = np.array([3.0, 4.0]), np.array([0.25, 0.75]), -2.0
    at_logits = advantage * (np.array([1.0, 0.0]) - policy)  # the first action was taken
    gradient = jnp.asarray(np.outer(features, at_logits), jnp.float32)
    optimizer = auto_sgd(0.5)
    square = jnp.float32((at_logits**2).sum())
    moved, state = optimizer.update(gradient, optimizer.init(gradient), logit_square=square)
    np.testing.assert_allclose(features @ moved, -0.5 * at_logits, rtol=1e-6)
    # The second time the kernel is measured over both: 25 and 100 give 2 / (1/25 + ...) weighted.
    moved, _ = optimizer.update(2 * gradient, state, logit_square=square)
    kernel = (25 + 100) / 2
    np.testing.assert_allclose(features @ moved, -0.5 * 2 * 25 * at_logits / kernel, rtol=1e-6)
    nothing, _ = optimizer.update(0 * gradient, state, logit_square=jnp.float32(0))
    assert not nothing.any()
    fresh, _ = optimizer.update(0 * gradient, optimizer.init(gradient), logit_square=jnp.float32(0))
    assert not fresh.any(), "no gradient, no step, no NaN"


@pytest.mark.lenient
def test_parameters_of_16_bits_keep_their_type():
    def walk(params, rng_key, action, position):
        del rng_key
        after, zero = position + action - 1, jnp.zeros(action.shape)
        logits = jnp.broadcast_to(params.astype(jnp.float32), (*action.shape, 3))
        found = mctx.RecurrentFnOutput(
            reward=-1.0 * abs(after), discount=zero + 0.9, value=zero, prior_logits=logits
        )
        return found, after

    root = mctx.RootFnOutput(
        prior_logits=jnp.zeros((2, 3)), value=jnp.zeros(2), embedding=jnp.array([3, -3])
    )
    output = jaxpgs.pgs_policy(
        jnp.zeros(3, jnp.bfloat16), jax.random.key(0), root, walk, 37, adapt="everything",
        mode="rollouts", truncation=jaxpgs.truncation.fixed(5),
    )  # fmt: skip
    assert output.action.tolist() == [0, 2]
    assert output.search_state.params.dtype == jnp.bfloat16


def test_square_at_the_logits():
    rng = np.random.default_rng(0)
    probability = rng.uniform(0.01, 0.99, (3, 2, 4)).astype(np.float32)
    weight = rng.normal(size=(3, 2, 4)).astype(np.float32)
    alive = rng.uniform(size=(3, 2, 4)) < 0.6
    # Of the other terms the norms are given; the squares of all are added.
    others = rng.normal(size=(2, 3, 3, 2, 4)).astype(np.float32)
    names = PolicyTerms._fields
    norms = dict(zip(names[1:], map(jnp.asarray, others[0]), strict=True))
    cotangents = dict(zip(names, map(jnp.asarray, (weight, *others[1])), strict=True))
    total = (weight * (1 - probability)) ** 2 + ((others[0] * others[1]) ** 2).sum(0)
    expected = np.where(alive, total, 0)[1:].sum(axis=(0, 2))
    nothing = dict.fromkeys(Trajectory._fields)
    trajectory = Trajectory(
        **nothing | {"log_prob": jnp.log(probability), "alive": jnp.asarray(alive)}
    )
    found = logit_square(trajectory, norms, cotangents)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # Of an objective with fewer terms, theirs alone.
    found = logit_square(trajectory, {}, {"log_prob": cotangents["log_prob"]})
    expected = np.where(alive, (weight * (1 - probability)) ** 2, 0)[1:].sum(axis=(0, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_vanishing_gradient_takes_no_giant_step():
    """Features of zero, and two simulations that cancel but for rounding."""
    params = {"head": jnp.full((3, 4), 0.1)}
    optimizer = auto_sgd()
    for size in (0.0, 1.5e-7, 1e-15):
        gradient = {"head": jnp.zeros((3, 4)).at[0, 0].set(size)}
        moved, state = optimizer.update(
            gradient, optimizer.init(params), params, logit_square=jnp.float32(0.5)
        )
        length = float(optax.tree.norm(moved))
        assert length <= 1 + 1e-6 and np.isfinite(length)
        assert (length == 0) == (size == 0)
        # What was measured before keeps the next step in its place.
        moved, _ = optimizer.update(
            {"head": jnp.ones((3, 4))}, state, params, logit_square=jnp.float32(0.5)
        )
        assert 0 < float(optax.tree.norm(moved)) <= 1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rollouts", "tree"])
def test_search_is_free_of_the_features_scale(mode):
    """Features times 5 and a head divided by 5 are the same network, and PGS learns the same.

    The head's bias is not part of the scale, so it is left out of what adapts.
    """
    network = jaxpgs.load_pretrained("hex-5x5-early")
    env, state = network.env, jax.vmap(lambda _: network.env.init())(jnp.arange(4))

    @functools.partial(jax.jit, static_argnums=1)
    def run(scale, optimizer):
        head = network.params["policy_head"]["linear"]
        scaled = {"linear": head | {"kernel": head["kernel"] / scale}}
        params = network.params | {"policy_head": scaled}
        own = network.apply_fn
        apply_fn = jaxpgs.networks.SplitApplyFn(
            torso=lambda params, x: own.torso(params, x) * scale,
            policy_head=own.policy_head,
            value_head=lambda params, x: own.value_head(params, x / scale),
        )
        key = jax.random.key(0)
        output = jaxpgs.pgs_policy(
            params,
            key,
            jaxpgs.make_root_fn(env, apply_fn)(params, key, state),
            jaxpgs.make_recurrent_fn(env, apply_fn),
            64,
            adapt=lambda path, _: [p.key for p in path] == ["policy_head", "linear", "kernel"],
            optimizer=optimizer,
            simulations_per_update=8,
            mode=mode,
        )
        adapted = output.search_state.params["policy_head"]["linear"]["kernel"] * scale
        return adapted - head["kernel"], output.search_state.visits

    optimizer = auto_sgd()
    moved, visits = map(np.asarray, run(1.0, optimizer))
    moved_scaled, visits_scaled = run(5.0, optimizer)
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_array_equal(visits, visits_scaled)
    np.testing.assert_allclose(moved, moved_scaled, atol=2e-3 * np.abs(moved).max())
    if mode == "rollouts":  # the optimizer's matter, whatever the mode
        return
    optimizer = optax.sgd(1e-3)
    plain, _ = run(1.0, optimizer)
    plain_scaled, _ = run(5.0, optimizer)
    assert np.linalg.norm(plain_scaled) > 5 * np.linalg.norm(plain), "which a plain step is not"
