"""Continuous actions: the pendulum, candidates, and searches that choose among them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import QUICK

import jaxpgs
from jaxpgs.adapters.continuous import continuous_action, make_sampled_fns
from jaxpgs.envs.pendulum import Pendulum
from jaxpgs.networks import SplitApplyFn
from jaxpgs.search.parts.backup import n_step
from jaxpgs.search.parts.estimator import reinforce


def test_the_pendulum_is_gyms():
    env = Pendulum(length=50)
    rng = np.random.default_rng(0)
    state = env.init(jax.random.key(3))
    angle, speed = float(state.angle), float(state.speed)
    assert abs(angle) <= np.pi and abs(speed) <= 1
    step = jax.jit(env.step)
    for number in range(50):
        torque = rng.uniform(-3, 3)
        state = step(state, jnp.float32(torque)[None])
        u = np.clip(torque, -2, 2)
        around = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = around**2 + 0.1 * speed**2 + 0.001 * u**2
        speed = np.clip(speed + (3 * 10 / 2 * np.sin(angle) + 3 * u) * 0.05, -8, 8)
        angle = angle + speed * 0.05
        np.testing.assert_allclose(state.rewards[0], -cost, rtol=2e-4, atol=1e-4)
        np.testing.assert_allclose(env.observe(state), [np.cos(angle), np.sin(angle), speed / 8],
                                   atol=2e-3)  # fmt: skip
        assert bool(state.terminated) == (number == 49)
        angle, speed = float(state.angle), float(state.speed)  # rounding must not add up
    stays = step(state, jnp.ones(1))
    assert float(stays.rewards[0]) == 0 and stays.angle == state.angle
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Pendulum(0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AimState:
    current_player: jax.Array
    rewards: jax.Array
    terminated: jax.Array


class Aim:
    """Two shots in a row, of which each pays minus the square of the distance from (0.5, -1)."""

    num_players = 1
    action_bounds = ((-1.0, -4.0), (1.0, 4.0))

    def init(self, key=None):
        del key
        return AimState(jnp.int32(0), jnp.zeros(1), jnp.bool_(False))

    def step(self, state, action):
        first = state.current_player == 0
        miss = jnp.sum((action - jnp.array([0.5, -1.0])) ** 2)
        over = (state.rewards[0] != 0) & first
        return AimState(jnp.int32(0), -miss[None] - 1e-6, over)

    def observe(self, state):
        return jnp.ones(1)


def network():
    """A Gaussian with a mean and a width that are parameters, and the value 0."""
    apply_fn = SplitApplyFn(
        torso=lambda params, x: x,
        policy_head=lambda params, x: jnp.broadcast_to(params["policy_head"], (len(x), 4)),
        value_head=lambda params, x: jnp.zeros(len(x)),
    )
    return {"policy_head": jnp.array([0.0, 0.0, -0.7, -0.7])}, apply_fn


PARAMS, APPLY = network()
NUM_CANDIDATES = 6


@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=QUICK)
def search(kind, num_candidates, key):
    env = Aim()
    states = jax.vmap(lambda _: env.init())(jnp.arange(8))
    adapts = kind != "mcs"
    fixed = PARAMS if kind == "tree" else None
    root_fn, recurrent_fn = make_sampled_fns(env, APPLY, num_candidates, proposal_params=fixed)
    root = root_fn(PARAMS, key, states)
    knobs = {
        "truncation": jaxpgs.truncation.fixed(2),
        "backup": n_step(),
        "simulations_per_update": 8,
    }
    knobs["mode"] = "tree" if kind == "tree" else "rollouts"
    policy = jaxpgs.mcs_policy
    if adapts:
        policy = jaxpgs.pgs_policy
        knobs |= {"adapt": {"policy_head": True}, "estimator": reinforce("mean", normalize=True)}
    output = policy(PARAMS, key, root, recurrent_fn, 128, **knobs)
    state = dataclasses.replace(output.search_state, nodes=None)
    chosen = continuous_action(env, root, output)
    return root, dataclasses.replace(output, search_state=state), chosen


def test_the_pendulum_is_of_32_bits_whatever_jax_prefers():
    env = Pendulum(3)
    with jax.enable_x64(True):
        state = env.init(jax.random.key(0))
        after = env.step(state, jnp.zeros(1, jnp.float64))
        assert env.observe(after).dtype == jnp.float32
    assert jax.tree.map(jnp.dtype, state) == jax.tree.map(jnp.dtype, after)


def test_candidates_stand_for_the_policy_that_drew_them():
    root, output, chosen = search("mcs", NUM_CANDIDATES, jax.random.key(0))
    np.testing.assert_allclose(root.prior_logits, 0, atol=1e-5)
    drawn = np.asarray(root.embedding.actions)
    assert drawn.shape == (8, NUM_CANDIDATES, 2)
    # 96 numbers of a normal distribution: its mean and its width within 4.5 standard errors.
    assert abs(drawn.mean()) < 4.5 * np.exp(-0.7) / 96**0.5
    assert abs(drawn.std() / np.exp(-0.7) - 1) < 4.5 / 192**0.5
    picked = drawn[np.arange(8), np.asarray(output.action)]
    np.testing.assert_allclose(chosen, np.clip(picked * [1, 4], [-1, -4], [1, 4]), rtol=1e-5)


@pytest.mark.slow
def test_a_search_takes_the_best_candidates_and_pgs_moves_the_policy_to_them():
    for kind in ("mcs", "rollouts", "tree"):
        root, output, chosen = search(kind, NUM_CANDIDATES, jax.random.key(1))
        actions = np.clip(np.asarray(root.embedding.actions) * [1, 4], [-1, -4], [1, 4])
        miss = ((actions - [0.5, -1]) ** 2).sum(-1)
        taken = ((np.asarray(chosen) - [0.5, -1]) ** 2).sum(-1)
        # What follows differs by chance, so the best candidate need not win, but a poor one cannot.
        assert taken.mean() < miss.mean() / 2, kind
        assert np.isfinite(output.search_state.value).all()
        if kind != "mcs":
            # Half the distance between the bounds is the unit: the goal is at 0.5 and -0.25.
            mean = np.asarray(output.search_state.params["policy_head"])[:, :2].mean(0)
            assert mean[0] > 0.1 and mean[1] < -0.05, (kind, mean)


def test_the_gradient_is_that_of_the_gaussian():
    env = Aim()
    root_fn, recurrent_fn = make_sampled_fns(env, APPLY, 5, proposal_params=PARAMS)
    states = jax.vmap(lambda _: env.init())(jnp.arange(1))
    root = root_fn(PARAMS, jax.random.key(2), states)

    def log_policy(params):
        features = APPLY.torso(params, jax.vmap(env.observe)(states))
        return jax.nn.log_softmax(recurrent_fn.policy(params, features, root.embedding))[0, 3]

    found = jax.jit(jax.grad(log_policy))(PARAMS)["policy_head"]
    # d log N / d mean = z / std, d log N / d log_std = z^2 - 1, less their means over candidates.
    std = np.exp(-0.7)
    z = np.asarray(root.embedding.actions)[0] / std
    slopes = np.concatenate([z / std, z**2 - 1], axis=-1)
    np.testing.assert_allclose(found, slopes[3] - slopes.mean(0), rtol=1e-4, atol=1e-5)


def test_mistakes_are_told():
    class Endless(Aim):
        action_bounds = ((-np.inf,), (1.0,))

    class Upside(Aim):
        action_bounds = ((1.0,), (-1.0,))

    with pytest.raises(ValueError, match=r"Hex has no action_bounds.*make_root_fn"):
        make_sampled_fns(jaxpgs.envs.Hex(3), APPLY, 4)
    for env in (Endless(), Upside()):
        with pytest.raises(ValueError, match="must be finite, the greatest"):
            make_sampled_fns(env, APPLY, 4)
    with pytest.raises(ValueError, match="num_candidates must be at least 2, got 1"):
        make_sampled_fns(Aim(), APPLY, 1)
    with pytest.raises(ValueError, match=r"discount must be above 0 and at most 1, got 1\.5"):
        make_sampled_fns(Aim(), APPLY, 4, discount=1.5)


def test_actions_that_are_no_numbers_are_told():
    env = Aim()
    root_fn, _ = make_sampled_fns(env, APPLY, 4)
    states = jax.vmap(lambda _: env.init())(jnp.arange(2))
    broken = {"policy_head": PARAMS["policy_head"].at[0].set(jnp.nan)}
    with pytest.raises(ValueError, match=r"candidates.*got 8 of 16"):
        root_fn(broken, jax.random.key(0), states)
    root = jax.jit(root_fn)(broken, jax.random.key(0), states)  # nobody can look there
    output = jaxpgs.base.PolicyOutput(jnp.zeros(2, jnp.int32), None, None)
    with pytest.raises(ValueError, match=r"continuous_action needs finite actions; got 2 of 4"):
        continuous_action(env, root, output)
    pendulum = Pendulum(3)
    with pytest.raises(ValueError, match=r"Pendulum\.step needs finite torque; got 1 of 1"):
        pendulum.step(pendulum.init(jax.random.key(0)), jnp.float32([jnp.nan]))
