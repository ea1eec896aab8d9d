"""The SameGame network that knows neither colours nor places."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxpgs import networks
from jaxpgs.envs import SameGame

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
    """What the network sees of some boards."""
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.jit(lambda: jax.vmap(lambda key: env.observe(env.init(key)))(keys))()


@pytest.mark.slow
def test_exchanged_colours_change_nothing_but_other_boards_do():
    params, apply_fn = networks.functional(make_network())
    params, apply_fn = shaken(params), jax.jit(apply_fn)
    observation, exchange = boards(ENV, 6), jax.jit(ENV.permute_colors)
    outputs = apply_fn(params, observation)
    for seed in range(4):
        exchanged = exchange(jax.random.key(seed), observation)
        for x, y in zip(outputs, apply_fn(params, exchanged), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    other = apply_fn(params, boards(ENV, 6, seed=1))
    assert all((x != y).all() for x, y in zip(outputs, other, strict=True))


def test_a_cell_sees_the_cells_around_it_and_the_edge():
    # Of one colour in a checkerboard of two: diagonal neighbours share it, straight ones do not.
    board = np.indices((6, 6)).sum(0) % 2
    observation = jnp.asarray(board[..., None] == np.array([0, 1, -1]), jnp.float32)[None]
    planes = networks.samegame_resnet.color_relations(observation, 1)
    assert planes.shape == (1, 6, 6, 8 + 8)
    np.testing.assert_array_equal(planes[0, 2, 3, :8], [1, 0, 1, 0, 0, 1, 0, 1])
    np.testing.assert_array_equal(planes[0, 0, 0, :8], [0, 0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_allclose(planes[0, 2, 3, 8:], [0.5, np.sqrt(0.5), 0, 0, 0, 1, 1, 1])
    # Colours of one, two and three blocks on a board of nine cells, a third of them empty.
    board = np.array([[-1, -1, -1], [0, 1, 2], [1, 2, 2]])
    observation = jnp.asarray(board[..., None] == np.array([0, 1, 2, -1]), jnp.float32)[None]
    planes = networks.samegame_resnet.color_relations(observation, 1)[0, ..., 10:15]
    np.testing.assert_allclose(planes[1, 0], [1, 0, 0, 1, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(planes[1, 1], [0, 1, 0, 1, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(planes[2, 2], [0, 0, 1, 1, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(planes[0, 0], [0, 0, 0, 0, 2 / 3], rtol=1e-6)


def test_blocks_hear_of_their_colour_wherever_it_is():
    env = SameGame(3, 20, 3)
    params, _ = networks.functional(make_network(env))
    params = shaken(params)
    # What the whole board tells is left out, so that only colours reach across it.
    whole = params["torso"]["blocks"]["0"]["whole"]
    params["torso"]["blocks"]["0"]["whole"] = jax.tree.map(jnp.zeros_like, whole)
    torso = jax.jit(networks.functional(make_network(env))[1].torso)
    board = np.indices((3, 20)).sum(0) % 3
    board[:, 11:] = 2 * (np.indices((3, 9)).sum(0) % 2)  # no colour 1 is near what changes
    moved = board.copy()
    moved[2, 18], moved[2, 19] = board[2, 19], board[2, 18]  # colours 0 and 2
    for color in range(3):
        board[:, :5] = moved[:, :5] = color
        observation = jnp.stack([env.observe(env.from_board(b)) for b in (board, moved)])
        before, after = np.asarray(torso(params, observation)).reshape(2, 3, 20, -1)[:, :, :4]
        changed = (np.abs(before - after) > 1e-6).any(axis=-1)
        assert not changed.any() if color == 1 else changed.all()


def test_weights_serve_boards_of_every_size():
    large = SameGame(7, 5, 4)
    small, big = make_network(), make_network(SameGame(7, 5, 3))
    params = shaken(networks.functional(small)[0])
    chex.assert_trees_all_equal(networks.resize(params, small, big), params)
    logits, value = jax.jit(networks.functional(big)[1])(params, boards(SameGame(7, 5, 3), 2))
    assert logits.shape == (2, 35) and value.shape == (2,)
    # Nor do they depend on the number of colours.
    logits, _ = jax.jit(networks.functional(make_network(large))[1])(params, boards(large, 2))
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
