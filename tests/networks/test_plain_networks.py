"""Networks as their users write them: values as a column, dropout, counters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpgs
from jaxpgs import networks
from jaxpgs.arrays import values_like
from jaxpgs.training.models import unrolls
from jaxpgs.training.policy_gradient import ppo_loss
from jaxpgs.training.runtime import iterations
from jaxpgs.training.two_player import losses, selfplay

B, A = 4, 9


class Network(nnx.Module):
    """A small network of Hex 3x3, whose values are a column or not."""

    is_torso_and_heads = True

    def __init__(self, column=True, dropout=0.0):
        rngs = nnx.Rngs(0, dropout=7)
        self.column = column
        self.body = nnx.Linear(27, 8, rngs=rngs)
        self.policy_head = nnx.Linear(8, A, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)
        self.drop = nnx.Dropout(dropout, rngs=rngs)
        self.count = nnx.Variable(jnp.int32(5))

    def torso(self, x):
        return jnp.tanh(self.drop(self.body(x.reshape(len(x), -1))))

    def value_head(self, features):
        value = jnp.tanh(self.out(features))
        return value if self.column else value[:, 0]

    def __call__(self, x):
        features = self.torso(x)
        return self.policy_head(features), self.value_head(features)


def losses_of(value, right):
    """Every loss of values, given what they should be `[B]`."""
    policy, legal = jnp.full((B, 2), 0.5), jnp.ones((B, 2), bool)
    experience = selfplay.Experience(None, legal, policy, right, jnp.zeros(B))
    moves = ppo_loss.Transitions(**dict.fromkeys(ppo_loss.Transitions._fields, jnp.ones(B)))
    moves = moves._replace(
        legal=legal, action=jnp.zeros(B, jnp.int32), mine=jnp.ones(B, bool), value=right
    )
    one = jnp.ones((B, 1))
    data = dict.fromkeys(unrolls.Unrolls._fields, one)
    unroll = unrolls.Unrolls(**data | {"policy": policy[:, None], "value": right[:, None]})
    steps = value[:, None] if value.ndim == 1 else value[:, None, :]
    return [
        losses.policy_value_loss(jnp.zeros((B, 2)), value, experience)[1]["value_loss"],
        losses.unroll_loss(jnp.zeros((B, 1, 2)), steps, unroll)[1]["value_loss"],
        jnp.mean(losses.asymmetric_square(right, value)),
        ppo_loss.ppo_loss(jnp.zeros((B, 2)), value, moves)[1]["value_loss"],
    ]


@pytest.mark.slow
def test_values_may_be_a_column_in_every_loss():
    right = jnp.array([1.0, -1, 1, -1])
    np.testing.assert_array_equal(losses_of(right[:, None], right), 0)
    np.testing.assert_array_equal(losses_of(0.5 * right[:, None], right), 0.25)
    np.testing.assert_array_equal(losses_of(0.5 * right, right), 0.25)
    for wrong in (right[:3], right[None], jnp.float32(1), right[:, None, None]):
        with pytest.raises(ValueError, match=r"value of shape \[4\], .* column \[4, 1\]; got"):
            values_like(wrong, right)


@pytest.mark.parametrize("split", [True, False])
def test_values_may_be_a_column_of_a_network_that_plans(split):
    env = jaxpgs.envs.Hex(3)
    state = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 2))
    found = []
    for column in (True, False):
        params, apply_fn = networks.functional(Network(column))
        apply = apply_fn if split else (lambda *data, f=apply_fn: f(*data))
        root = jaxpgs.make_root_fn(env, apply)(params, None, state)
        model = jaxpgs.make_recurrent_fn(env, apply)
        step, _ = model(params, jax.random.key(0), jnp.array([0, 4], jnp.int32), state)
        found.append((root.value, step.value, step.reward, step.discount))
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert found[0][0].shape == (2,)


@pytest.mark.lenient
def test_an_update_trains_weights_alone():
    """Keys, counters and other variables move as the network moves them."""
    network = Network(dropout=0.5)
    train_fn, (params, _) = networks.functional_train(network), networks.functional(network)
    trainable = networks.trainable_mask(network)
    optimizer = iterations.of_weights(optax.adam(0.1), trainable)

    def loss_fn(params, target):
        (_, value), moved = train_fn(params, target)
        loss = jnp.mean(jnp.square(value - 1))
        return loss, ({"loss": loss}, moved)

    update = jax.jit(iterations.make_update(loss_fn, optimizer, trainable))
    carry, x = (params, optimizer.init(params)), jnp.ones((B, 27))
    for _ in range(2):
        before = carry[0]
        carry, _ = update(carry, x)
    after = carry[0]
    assert (before["out"]["kernel"] != after["out"]["kernel"]).all()
    changes = {
        jax.tree_util.keystr(path): (old, new)
        for (path, old), new in zip(
            jax.tree_util.tree_flatten_with_path(params)[0], jax.tree.leaves(after), strict=True
        )
        if not jnp.issubdtype(new.dtype, jnp.inexact)
    }
    assert changes.pop("['count']") == (5, 5), "the network's own"
    assert len(changes) == 2, "dropout's key and its counter"
    for name, (old, new) in changes.items():
        assert new == old + 2 if "count" in name else new == old
