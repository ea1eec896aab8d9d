"""Policy gradients on whole games of one player, and the network they teach."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpgs import networks
from jaxpgs.envs import SameGame
from jaxpgs.training import ppo

ENV = SameGame(4, 4, 3)


def make_network(env=ENV, **sizes):
    sizes = {"num_filters": 8, "num_blocks": 1, "value_scale": 20.0} | sizes
    return networks.SameGameResNet(
        env.observation_shape, env.num_actions, **sizes, rngs=nnx.Rngs(0)
    )


def shaken(params, seed=0):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


def boards(env, count, seed=0):
    return jax.vmap(env.init)(jax.random.split(jax.random.key(seed), count))


def equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# --- the network ----------------------------------------------------------------------------------


def test_exchanged_colours_change_nothing_but_other_boards_do():
    params, apply_fn = networks.functional(make_network())
    params, apply_fn = shaken(params), jax.jit(apply_fn)
    observation = jax.vmap(ENV.observe)(boards(ENV, 6))
    outputs = apply_fn(params, observation)
    for seed in range(4):
        exchanged = ENV.permute_colors(jax.random.key(seed), observation)
        for x, y in zip(outputs, apply_fn(params, exchanged), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    other = apply_fn(params, jax.vmap(ENV.observe)(boards(ENV, 6, seed=1)))
    assert all((x != y).all() for x, y in zip(outputs, other, strict=True))


def test_a_cell_sees_the_cells_around_it_and_the_edge():
    # Of one colour in a checkerboard of two: diagonal neighbours share it, straight ones do not.
    board = np.indices((6, 6)).sum(0) % 2
    observation = jnp.asarray(board[..., None] == np.array([0, 1, -1]), jnp.float32)[None]
    planes = networks.samegame_resnet._relations(observation, 1)
    assert planes.shape == (1, 6, 6, 8 + 5)
    np.testing.assert_array_equal(planes[0, 2, 3, :8], [1, 0, 1, 0, 0, 1, 0, 1])
    np.testing.assert_array_equal(planes[0, 0, 0, :8], [0, 0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_allclose(planes[0, 2, 3, 8:], [0.5, np.sqrt(0.5), 1, 1, 1])


def test_weights_serve_boards_of_every_size():
    large = SameGame(7, 5, 4)
    small, big = make_network(), make_network(SameGame(7, 5, 3))
    params = shaken(networks.functional(small)[0])
    equal(networks.resize(params, small, big), params)
    logits, value = networks.functional(big)[1](
        params, jax.vmap(SameGame(7, 5, 3).observe)(boards(SameGame(7, 5, 3), 2))
    )
    assert logits.shape == (2, 35) and value.shape == (2,)
    # Nor do they depend on the number of colours.
    logits, _ = networks.functional(make_network(large))[1](
        params, jax.vmap(large.observe)(boards(large, 2))
    )
    assert logits.shape == (2, 35)


def test_sizes_that_are_refused():
    for shape, actions, sizes, message in (
        ((4, 4), 16, {}, "shape .height, width, planes."),
        ((4, 4, 4), 15, {}, "a logit for each cell, here 16, got num_actions=15"),
        ((4, 4, 4), 16, {"num_blocks": 0}, "num_blocks >= 1"),
        ((4, 4, 4), 16, {"radius": 0}, "radius >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            networks.SameGameResNet(shape, actions, **sizes, rngs=nnx.Rngs(0))


# --- what is played -------------------------------------------------------------------------------


def test_advantages_as_in_plain_numpy():
    params, apply_fn = networks.functional(make_network())
    params, decay = shaken(params), 0.7
    play = jax.jit(ppo._make_play(ENV, apply_fn, 40, decay))
    state, score, steps, (advantage, returns) = jax.device_get(
        play(params, boards(ENV, 5), jnp.zeros(5), jax.random.key(1))
    )
    assert steps.done.sum() > 10  # the ends of games are among them
    _, last = apply_fn(params, jax.vmap(ENV.observe)(state))
    for b in range(5):
        expected, following = 0.0, float(last[b])
        earned = 0.0
        for t in reversed(range(40)):
            going = 0.0 if steps.done[t, b] else 1.0
            error = steps.reward[t, b] + going * following - steps.value[t, b]
            expected = error + decay * going * expected
            following = steps.value[t, b]
            np.testing.assert_allclose(advantage[t, b], expected, rtol=1e-4, atol=1e-3)
        for t in range(40):
            earned += steps.reward[t, b]
            assert steps.score[t, b] == earned
            earned = 0.0 if steps.done[t, b] else earned
        assert score[b] == earned
    np.testing.assert_allclose(returns, advantage + steps.value, rtol=1e-5, atol=1e-4)
    # Only legal actions are drawn.
    legal = np.take_along_axis(steps.state.legal_action_mask, steps.action[..., None], -1)[..., 0]
    assert legal[steps.alive].all()


def test_the_first_update_is_a_step_of_reinforce():
    network = make_network()
    params, apply_fn = networks.functional(network)
    params = shaken(params)
    play = jax.jit(ppo._make_play(ENV, apply_fn, 8, 1.0))
    _, _, steps, targets = play(params, boards(ENV, 8), jnp.zeros(8), jax.random.key(2))
    optimizer = optax.sgd(1.0)
    update = jax.jit(ppo._make_update(ENV, network, optimizer, 0.2, 0.0, 0.0))
    index = np.arange(64)
    new, _, parts = update(params, optimizer.init(params), steps, targets, index)

    flat = jax.tree.map(lambda x: x.reshape(64, *x.shape[2:]), (steps, targets))
    batch, (advantage, _) = flat
    alive = np.asarray(batch.alive)
    a = np.asarray(advantage)
    a = jnp.asarray((a - a[alive].mean()) / a[alive].std())

    def log_prob(params):
        logits, _ = apply_fn(params, jax.vmap(ENV.observe)(batch.state))
        policy = jax.nn.log_softmax(jax.vmap(ENV.policy_logits)(batch.state, logits))
        chosen = jnp.take_along_axis(policy, batch.action[:, None], 1)[:, 0]
        return jnp.sum(jnp.where(batch.alive, a * chosen, 0.0)) / alive.sum()

    expected = jax.jit(jax.grad(log_prob))(params)
    for x, y, g in zip(*map(jax.tree.leaves, (new, params, expected)), strict=True):
        np.testing.assert_allclose(x - y, g, rtol=2e-2, atol=2e-5)
    np.testing.assert_allclose(parts["policy_loss"], 0.0, atol=1e-5)


# --- training -------------------------------------------------------------------------------------


def train(**arguments):
    log = []
    callback = arguments.pop("callback", lambda state, metrics: log.append(metrics))
    defaults = {
        "num_iterations": 4, "num_games": 16, "num_steps": 8, "batch_size": 64,
        "num_test_boards": 8, "measure_every": 2,
    }  # fmt: skip
    return ppo.train(ENV, make_network(), callback=callback, **(defaults | arguments)), log


def test_policy_and_value_learn_from_nothing():
    _, log = train(
        num_iterations=60, num_games=128, batch_size=256, step_size=3e-3, num_test_boards=4000,
        measure_every=60,
    )  # fmt: skip
    last = log[-1]
    # Means of 4000 games each, which spread by less than 450: 5 standard errors of the difference
    # are 50, so a policy that had learned nothing passes with a probability of 3e-7.
    assert last["policy_score"] > last["random_score"] + 50
    assert last["explained"] > 0.3
    assert last["entropy"] < log[0]["entropy"]


def test_a_stopped_run_goes_on_bit_by_bit(tmp_path):
    whole, log = train()
    assert [row["iteration"] for row in log] == [1, 2, 3, 4]
    assert ["greedy_score" in row for row in log] == [False, True, False, True]
    train(directory=tmp_path, callback=lambda state, metrics: metrics["iteration"] == 3)
    resumed, log = train(directory=tmp_path)
    assert [row["iteration"] for row in log] == [4]
    equal(resumed, whole)
    with pytest.raises(ValueError, match="seed"):
        train(directory=tmp_path, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 48}, r"must divide num_games \* num_steps = 128, got 48"),
        ({"trace_decay": 1.5}, "trace_decay must be between 0 and 1, got 1.5"),
        ({"num_epochs": 0}, "num_epochs must be at least 1, got 0"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**arguments)
