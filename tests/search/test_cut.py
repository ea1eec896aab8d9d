"""Where models are cut: the parts against the whole, and why some cannot be cut."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from flax import linen, nnx
from games import mostly_slow

import jaxpgs
from jaxpgs import networks, trees
from jaxpgs.base import SplitRecurrentFn
from jaxpgs.search.models.cut import cut_model
from jaxpgs.search.models.dataflow import depends

INPUTS, WIDTH, ACTIONS = 5, 8, 3
BATCHES = (1, 3, 4)


def _normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def _states(batch_size):
    return {"x": _normal(9, batch_size, INPUTS), "time": jnp.arange(batch_size)}


def _params():
    return {
        "torso": {"w": _normal(0, INPUTS, WIDTH), "b": _normal(1, WIDTH)},
        "policy": {"w": _normal(2, WIDTH, ACTIONS), "b": _normal(3, ACTIONS)},
        "value": {"w": _normal(4, WIDTH)},
    }


def _output(reward, discount, logits, value):
    return mctx.RecurrentFnOutput(
        reward=reward, discount=discount, prior_logits=logits, value=value
    )


def _play(action, embedding):
    move = action[:, None].astype(jnp.float32)
    return {"x": jnp.tanh(embedding["x"] + 0.3 * move), "time": embedding["time"] + 1}


def _model(network, play=_play):
    """A model whose observations are its states `x`: `network(params, x) -> logits, value`."""

    def recurrent_fn(params, rng_key, action, embedding):
        del rng_key
        embedding = play(action, embedding)
        logits, value = network(params, embedding["x"])
        reward = jnp.sum(embedding["x"], axis=-1)
        return _output(reward, 0 * reward - 1, logits, value), embedding

    return recurrent_fn


def _torso(params, x):
    return jnp.tanh(x @ params["torso"]["w"] + params["torso"]["b"][None])


def _policy(params, features):
    return features @ params["policy"]["w"] + params["policy"]["b"][None]


def _value(params, features):
    return jnp.tanh(features @ params["value"]["w"])


def _network(params, x):
    features = _torso(params, x)
    return _policy(params, features), _value(params, features)


def _cut(recurrent_fn, params, adapts, embedding, **knobs):
    mask = adapts if isinstance(adapts, list) else trees.mask_of(params, adapts)
    action = jnp.zeros(len(jax.tree.leaves(embedding)[0]), jnp.int32)
    return cut_model(recurrent_fn, params, mask, jax.random.key(0), action, embedding, **knobs)


def _reason(*args, **knobs):
    reason = _cut(*args, **knobs)
    assert isinstance(reason, str), reason
    return reason


def _gradient(function, params, mask):
    """The gradient with respect to what adapts, of a sum in which every logit tells apart."""
    leaves, structure = jax.tree.flatten(params)
    chosen = [x for x, adapts in zip(leaves, mask, strict=True) if adapts]

    def loss(chosen):
        own = iter(chosen)
        merged = [next(own) if m else x for x, m in zip(leaves, mask, strict=True)]
        logits = function(jax.tree.unflatten(structure, merged)).astype(jnp.float32)
        return jnp.sum(
            jnp.where(logits > -1e9, logits, 0)
            * jnp.cos(jnp.arange(logits.size).reshape(logits.shape).astype(jnp.float32))
        )

    return jax.grad(loss)(chosen)


def _both(recurrent_fn, cut, mask, params, key, action, embedding):
    """Returns what the model says, the same of its parts, gradients of both, and the features."""

    def whole(params):
        return recurrent_fn(params, key, action, embedding)[0].prior_logits

    def part(params):
        return cut.policy(params, expansion.features, cut_after)

    output, after = recurrent_fn(params, key, action, embedding)
    expansion, cut_after = cut.expand(params, key, action, embedding)
    expected = (output.reward, output.discount, output.value, output.prior_logits), after
    found = (*expansion[:3], part(params)), cut_after
    gradients = [_gradient(function, params, mask) for function in (whole, part)]
    return expected, found, gradients, expansion.features


def _check(recurrent_fn, params, adapts, states, *, features, tolerance=1e-6, batches=BATCHES):
    """Compares both parts with the whole, for any number of states, and returns them."""
    mask = adapts if isinstance(adapts, list) else trees.mask_of(params, adapts)
    cut = _cut(recurrent_fn, params, mask, states(4))
    assert isinstance(cut, SplitRecurrentFn), cut
    for size in batches:
        key, action = jax.random.key(3), jnp.arange(size) % ACTIONS
        compute = jax.jit(functools.partial(_both, recurrent_fn, cut, mask))
        whole, parts, gradients, got = compute(params, key, action, states(size))
        assert [(x.shape, str(x.dtype)) for x in got] == [
            ((size, *shape), dtype) for shape, dtype in features
        ]
        _assert_close(whole, parts, tolerance)
        _assert_close(gradients[0], gradients[1], 10 * tolerance)
        assert any(np.any(np.asarray(x, np.float32)) for x in gradients[0])
    return cut


def _assert_close(expected, found, tolerance):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=tolerance, atol=tolerance
        )


TORSO = [((WIDTH,), "float32")]


# Models of many kinds


CUTS = [
    ("resnet", "policy_head", False, [((9, 4), "float32")]),
    ("resnet", "policy_head.linear", False, [((18,), "float32")]),
    ("float32", "policy_head", False, [((16,), "float32")]),
    # Which stones lie where is known from the embedding. That one may swap is not.
    ("float32", "policy_head.linear", True, [((16,), "float32"), ((10,), "bool")]),
    ("bfloat16", "policy_head", False, [((16,), "bfloat16")]),
]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("kind", "path", "swap", "features"), mostly_slow(CUTS, CUTS[0], CUTS[3], CUTS[4])
)
def test_our_networks_on_hex(kind, path, swap, features):
    env = jaxpgs.envs.Hex(3, swap=swap)
    shapes, rngs = (env.observation_shape, env.num_actions), nnx.Rngs(0)
    if kind == "resnet":
        module = networks.AlphaZeroResNet(*shapes, num_filters=4, num_blocks=1, rngs=rngs)
    else:
        sizes = {"width": 16, "num_blocks": 1}
        module = networks.FullyConnectedResNet(*shapes, **sizes, dtype=kind, rngs=rngs)
    params, apply_fn = networks.functional(module)
    split_fn = jaxpgs.make_recurrent_fn(env, apply_fn)

    def states(size):
        state = jax.vmap(env.init)(jax.random.split(jax.random.key(0), size))
        return jax.vmap(env.step)(state, jnp.arange(size) + 5)

    def plain(*args):
        return split_fn(*args)

    cut = _check(plain, params, path, states, features=features)
    if path == "policy_head":  # where we would have cut it ourselves
        args = params, jax.random.key(0), jnp.arange(3), states(3)
        found, expected = (jax.jit(model.expand)(*args)[0] for model in (cut, split_fn))
        (features,) = found.features  # cells may have one axis or two
        _assert_close(expected.features.reshape(features.shape), features, 1e-6)


class _Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        features = linen.relu(linen.LayerNorm(name="norm")(linen.Dense(WIDTH, name="torso")(x)))
        logits = linen.Dense(ACTIONS, name="policy_head")(features)
        return logits, linen.Dense(1, name="value_head")(features)[:, 0]


def test_linen():
    module = _Linen()
    with jax.numpy_rank_promotion("allow"):
        params = module.init(jax.random.key(0), jnp.zeros((1, INPUTS)))
        _check(_model(module.apply), params, "policy_head", _states, features=TORSO)


class _Nnx(nnx.Module):
    def __init__(self, rngs):
        self.torso = nnx.Linear(INPUTS, WIDTH, rngs=rngs)
        self.policy_head = nnx.Linear(WIDTH, ACTIONS, rngs=rngs)
        self.value_head = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x):
        features = nnx.relu(self.torso(x))
        return self.policy_head(features), jnp.tanh(self.value_head(features)[:, 0])


def test_nnx():
    graph, params = nnx.split(_Nnx(nnx.Rngs(0)))

    def network(params, x):
        return nnx.merge(graph, params)(x)

    _check(_model(network), params, "policy_head", _states, features=TORSO)


def test_names_with_slashes_as_in_haiku():
    params = {
        name: {"w": _normal(i, *shape), "b": _normal(9 + i, shape[-1])}
        for i, (name, shape) in enumerate(
            {"net/~/torso": (INPUTS, WIDTH), "net/~/policy": (WIDTH, ACTIONS)}.items()
        )
    }

    def linear(params, name, x):
        return x @ params[name]["w"] + params[name]["b"][None]

    def network(params, x):
        features = jax.nn.gelu(linear(params, "net/~/torso", x))
        return linear(params, "net/~/policy", features), jnp.mean(features, axis=-1)

    _check(_model(network), params, "net/~/policy", _states, features=TORSO)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Linear:
    w: jax.Array
    b: jax.Array

    def __call__(self, x):  # of one state, as in Equinox
        return self.w @ x + self.b


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Module:
    torso: _Linear
    policy: _Linear
    value: _Linear

    def __call__(self, x):
        features = jax.nn.silu(self.torso(x))
        return self.policy(features), self.value(features)[0]


def test_modules_that_are_pytrees():
    layers = {"torso": (WIDTH, INPUTS), "policy": (ACTIONS, WIDTH), "value": (1, WIDTH)}
    module = _Module(
        *(_Linear(_normal(i, *s), _normal(i, s[0])) for i, s in enumerate(layers.values()))
    )
    recurrent_fn = _model(lambda module, x: jax.vmap(module)(x))
    _check(recurrent_fn, module, "policy", _states, features=TORSO)


@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(jax.jit(f)))]
)
def test_calls_are_looked_into(wrap):
    _check(wrap(_model(wrap(_network))), _params(), "policy", _states, features=TORSO)


def test_values_that_depend_on_what_adapts_are_those_of_the_network():
    def network(params, x):
        logits, value = _network(params, x)
        return logits, value + jnp.max(logits, axis=-1)

    _check(_model(network), _params(), "policy", _states, features=TORSO)


def test_several_layers_adapt():
    def network(params, x):
        features = _torso(params, x)
        hidden = jax.nn.relu(features @ params["policy"]["hidden"])
        return _policy(params, hidden), _value(params, features)

    params = _params()
    params["policy"]["hidden"] = _normal(7, WIDTH, WIDTH)
    _check(_model(network), params, "policy", _states, features=TORSO)


def test_frozen_parameters_and_constants_of_the_policy_are_not_remembered():
    scale = jnp.linspace(0.5, 1.5, WIDTH * ACTIONS).reshape(WIDTH, ACTIONS)

    def network(params, x):
        features = _torso(params, x)
        kernel = params["policy"]["w"] + jnp.tanh(params["value"]["w"])[:, None] * scale
        return features @ kernel, _value(params, features)

    adapts = trees.mask_of(_params(), "policy.w")
    _check(_model(network), _params(), adapts, _states, features=TORSO)


def test_masks_are_remembered_and_what_is_spread_is_not():
    def network(params, x):
        logits, value = _network(params, x)
        legal = jnp.cumsum(x, axis=-1)[:, :ACTIONS] > 0
        offset = jnp.broadcast_to(value[:, None], logits.shape)
        return jnp.where(legal, logits + offset, jnp.finfo(logits.dtype).min), value

    features = [*TORSO, ((ACTIONS,), "bool"), ((1,), "float32")]
    _check(_model(network), _params(), "policy", _states, features=features)


def test_rows_may_lie_along_any_axis():
    def network(params, x):
        features = jnp.tanh(params["torso"]["w"].T @ x.T)  # [WIDTH, B]
        logits = jnp.sum(params["policy"]["w"][:, :, None] * features[:, None], axis=0).T
        return logits, jnp.sum(features, axis=0)

    features = [((WIDTH, 1), "float32")]
    _check(_model(network), _params(), "policy", _states, features=features)


def test_narrow_torso_is_remembered_as_it_is():
    def network(params, x):
        features = _torso(params, x).astype(jnp.bfloat16)
        features = features.astype(jnp.float32)
        return _policy(params, features), _value(params, features)

    features = [((WIDTH,), "bfloat16")]
    _check(_model(network), _params(), "policy", _states, features=features, tolerance=1e-5)


def test_one_state_may_be_another_program():
    def network(params, x):
        features = _torso(params, x)
        bias = jnp.broadcast_to(params["policy"]["b"][None], (len(x), ACTIONS))
        spread = jnp.broadcast_to(params["torso"]["b"][None], features.shape)
        features = features + spread
        return features @ params["policy"]["w"] + bias, _value(params, features)

    _check(_model(network), _params(), "policy", _states, features=TORSO)


# Learned dynamics


def _dynamics(params, rng_key, action, hidden):
    del rng_key
    rows = jax.nn.one_hot(action, ACTIONS) @ params["dynamics"]["action"]
    hidden = jnp.tanh(hidden @ params["dynamics"]["w"] + rows)
    features = jax.nn.relu(hidden @ params["prediction"]["w"])
    logits, value = _policy(params, features), _value(params, features)
    return _output(0 * value, 0 * value + 0.9, logits, value), hidden


def _dynamics_params():
    return _params() | {
        "dynamics": {"w": _normal(5, WIDTH, WIDTH), "action": _normal(6, ACTIONS, WIDTH)},
        "prediction": {"w": _normal(7, WIDTH, WIDTH)},
    }


def _hidden(batch_size):
    return _normal(9, batch_size, WIDTH)


def test_learned_dynamics():
    _check(_dynamics, _dynamics_params(), "policy", _hidden, features=TORSO)


def test_whole_prediction_adapts():
    params = _dynamics_params()
    names = trees.leaf_names(params)
    mask = [name[0] in ("prediction", "policy", "value") for name in names]
    _check(_dynamics, params, mask, _hidden, features=[])  # the hidden state is the embedding


def test_adapting_dynamics_are_not_cut():
    reason = _reason(_dynamics, _dynamics_params(), "dynamics", _hidden(4))
    assert "the embedding" in reason and "depends on the parameters that adapt" in reason


# Derivatives


@jax.custom_vjp
def _tripled(x):
    return jnp.sin(x)


_tripled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (3 * g,))


def test_rules_for_derivatives_are_kept():
    def network(params, x):
        features = 0 * _torso(params, x)
        hidden = jax.nn.relu(features @ params["policy"]["w"] + 0 * params["policy"]["b"][None])
        sines = jax.jit(_tripled)(jnp.broadcast_to(params["policy"]["b"][None], hidden.shape))
        return hidden + params["policy"]["b"][None] * hidden + sines, jnp.sum(features, axis=-1)

    params = _params()
    cut = _check(_model(network), params, "policy", _states, features=TORSO)
    features, after = (jnp.zeros((2, WIDTH)),), _states(2)
    gradient = jax.grad(lambda params: jnp.sum(cut.policy(params, features, after)))(params)
    # relu has derivative 0 at 0, where that of the maximum it is made of would be 1/2.
    np.testing.assert_allclose(gradient["policy"]["b"], np.full(ACTIONS, 6.0), rtol=1e-6)
    np.testing.assert_array_equal(gradient["policy"]["w"], 0)


@pytest.mark.slow
def test_parameters_of_each_root():
    cut = _cut(_model(_network), _params(), "policy", _states(4))
    params, roots, rows = _params(), 3, 2
    expansion, after = cut.expand(params, jax.random.key(0), jnp.zeros(6, jnp.int32), _states(6))
    own = jax.tree.map(lambda x: jnp.stack([x, 2 * x, -x]), params["policy"])
    states = jax.tree.map(
        lambda x: x.reshape(roots, rows, *x.shape[1:]), (expansion.features, after)
    )

    def loss(own, states):
        logits = cut.policy(params | {"policy": own}, *states)
        return jnp.sum(logits**2), logits

    gradient, logits = jax.vmap(jax.grad(loss, has_aux=True))(own, states)
    for root in range(roots):
        each = jax.tree.map(lambda x, root=root: x[root], (own, states))
        expected, expected_logits = jax.grad(loss, has_aux=True)(*each)
        np.testing.assert_allclose(logits[root], expected_logits, rtol=1e-5)
        _assert_close(expected, jax.tree.map(lambda x, root=root: x[root], gradient), 1e-4)


# Chance, control flow and closures


def _with_keys(batch_size):
    return {
        "x": _normal(9, batch_size, INPUTS),
        "key": jax.random.split(jax.random.key(1), batch_size),
    }


def _play_by_key(action, embedding):
    keys = jax.vmap(lambda key: jax.random.split(key, 2))(embedding["key"])
    noise = jax.vmap(lambda key: jax.random.normal(key, (INPUTS,)))(keys[:, 0])
    return {"x": embedding["x"] + noise * action[:, None].astype(jnp.float32), "key": keys[:, 1]}


def test_keys_in_the_embedding():
    recurrent_fn = _model(_network, _play_by_key)
    _check(recurrent_fn, _params(), "policy", _with_keys, features=TORSO)


def _noisy(params, key, action, embedding):
    embedding = _play_by_key(action, embedding)
    features = _torso(params, embedding["x"])

    def step(logits, keys):
        noise = jax.vmap(lambda key: jax.random.normal(key, (ACTIONS,)))(keys)
        return logits + noise, None

    logits, _ = jax.lax.scan(step, _policy(params, features), embedding["key"][None])
    noise = jax.random.normal(key, logits.shape)
    value = _value(params, features)
    return _output(value, value, logits + noise, value), embedding


@pytest.mark.slow
def test_noise_in_the_policy():
    features = [*TORSO, ((ACTIONS,), "float32")]
    _check(_noisy, _params(), "policy", _with_keys, features=features)


def test_keys_of_their_own_are_not_remembered():
    def recurrent_fn(params, key, action, embedding):
        output, after = _noisy(params, key, action, embedding)
        return output, {"x": after["x"]}  # without the key that the policy needs

    def states(params, key, action, embedding):
        keys = jax.random.split(key, len(action))
        return recurrent_fn(params, key, action, embedding | {"key": keys})

    assert "a type that is not of numbers" in _reason(
        states, _params(), "policy", {"x": _states(4)["x"]}
    )


def test_loops():
    def network(params, x):
        def torso(i, x):
            return jnp.tanh(x @ params["value"]["w"][:, None] * x)

        features = jax.lax.fori_loop(0, 3, torso, _torso(params, x))

        def head(x, w):
            return (jnp.tanh(x + w[None]), jnp.sum(x, axis=-1))

        features, _ = jax.lax.scan(head, features, params["policy"]["w"].T)
        is_high = jnp.sum(params["policy"]["b"]) > 0
        logits = features[:, :ACTIONS]
        logits = jax.lax.cond(is_high, jnp.tanh, jnp.sin, logits)
        return logits, jnp.sum(logits, axis=-1)

    _check(_model(network), _params(), "policy", _states, features=TORSO)


@pytest.mark.parametrize("over", ["nothing", "vmap", "scan"])
def test_closures_over_traced_values(over):
    params, states = _params(), _states(4)

    def search(goal):
        @jax.jit
        def network(params, x):
            return _network(params, x - goal[None])

        recurrent_fn = _model(network)
        cut = _cut(recurrent_fn, params, "policy", states)
        action = jnp.arange(4) % ACTIONS

        def step(embedding, _):
            expansion, after = cut.expand(params, jax.random.key(0), action, embedding)
            return after, jax.vmap(
                lambda scale: cut.policy(
                    params | {"policy": jax.tree.map(lambda x: scale * x, params["policy"])},
                    expansion.features,
                    after,
                )
            )(jnp.ones(2))

        after, logits = jax.lax.scan(step, states, None, length=2)
        # Again, outside of the loop in which the model has been traced.
        again = step(states, None)[1][0]
        output, embedding = recurrent_fn(params, jax.random.key(0), action, states)
        expected = [output.prior_logits]
        output, embedding = recurrent_fn(params, jax.random.key(0), action, embedding)
        expected.append(output.prior_logits)
        return [*logits[:, 0], again, after], [*expected, expected[0], embedding]

    goal = _normal(8, INPUTS)
    if over == "nothing":
        got, expected = jax.jit(search)(goal)
    elif over == "vmap":
        got, expected = jax.jit(jax.vmap(search))(jnp.stack([goal, 2 * goal]))
    else:
        got, expected = jax.jit(lambda goals: jax.lax.map(search, goals))(jnp.stack([goal, -goal]))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
        if over != "nothing" and jnp.issubdtype(one.dtype, jnp.floating):
            assert (one[0] != one[1]).any() or one is expected[-1]["x"], "the goal has a part"


def test_what_the_model_prints_is_printed_when_it_is_expanded():
    seen = []

    def network(params, x):
        logits, value = _network(params, x)
        jax.debug.callback(lambda x: seen.append(np.shape(x)), x)
        return logits, value

    cut = _cut(_model(network), _params(), "policy", _states(4))
    expansion, after = cut.expand(_params(), jax.random.key(0), jnp.arange(4), _states(4))
    cut.policy(_params(), expansion.features, after)
    jax.effects_barrier()
    assert seen == [(4, INPUTS)]


def test_shapes_suffice():
    shapes = jax.eval_shape(lambda: (_params(), jax.random.key(0), jnp.arange(4), _states(4)))
    mask = trees.mask_of(_params(), "policy")
    params, *rest = shapes
    assert isinstance(cut_model(_model(_network), params, mask, *rest), SplitRecurrentFn)


# Models that cannot be cut


def _lenient(network):
    def promoting(params, x):
        with jax.numpy_rank_promotion("allow"):
            return network(params, x)

    return promoting


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
def test_closures_with_a_row_for_each_root(batch_size):
    goal = _normal(8, batch_size, INPUTS)
    recurrent_fn = _model(lambda params, x: _network(params, x - goal))
    got = _cut(recurrent_fn, _params(), "policy", _states(batch_size))
    if batch_size == 1:  # one row for all of them
        assert isinstance(got, SplitRecurrentFn)
    else:
        assert "cannot be traced for" in got and "\n" not in got


def test_everything_adapts():
    mask = [True] * len(jax.tree.leaves(_params()))
    assert "nothing of the network" in _reason(_model(_network), _params(), mask, _states(4))


def test_flattened_features():
    def network(params, x):
        tokens = jnp.tanh(x.reshape(-1, 1) @ params["torso"]["b"][None])  # [5 B, WIDTH]
        logits = _policy(params, tokens).reshape(len(x), -1)
        return logits[:, :ACTIONS], jnp.sum(x, axis=-1)

    reason = _reason(_model(network), _params(), "policy", _states(4))
    assert "float32[10,8] of tanh" in reason


def test_a_state_that_the_search_casts_is_not_what_the_policy_reads():
    def recurrent_fn(params, rng_key, action, embedding):
        del rng_key
        x = jnp.tanh(embedding["x"].astype(jnp.float32) + 0.3 * action[:, None].astype(jnp.float32))
        time = (embedding["time"] + 1).astype(jnp.int8)
        features = _torso(params, x)
        logits = jnp.where((time > 1)[:, None], _policy(params, features) + x[:, :ACTIONS], -1e9)
        value = _value(params, features)
        return _output(0 * value, 0 * value - 1, logits, value), {"x": x, "time": time}

    states, params, action = _states(4), _params(), jnp.arange(4) % ACTIONS
    states |= {"x": states["x"].astype(jnp.bfloat16)}
    cut = _cut(recurrent_fn, params, "policy", states)
    data = params, jax.random.key(0), action, states
    expected = recurrent_fn(*data)[0].prior_logits
    expansion, after = cut.expand(*data)
    kept = jax.tree.map(lambda new, old: new.astype(old.dtype), after, states)  # as by a search
    found = cut.policy(params, expansion.features, kept)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_means_over_all_states():
    def network(params, x):
        features = _torso(params, x)
        mean = jnp.mean(jnp.exp(features), axis=0)
        return _policy(params, features * mean[None]) + mean @ params["policy"]["w"], features[:, 0]

    reason = _reason(_model(_lenient(network)), _params(), "policy", _states(4))
    assert "float32[8] of div" in reason and "no axis that counts them" in reason


def test_other_programs_at_other_sizes():
    def network(params, x):
        features = _torso(params, x)
        if len(x) > 3:
            features = features + 1
        return _policy(params, features), _value(params, features)

    reason = _reason(_model(network), _params(), "policy", _states(4))
    assert reason == "the model's program for 4 states differs from that for 2"
    cut = _cut(_model(network), _params(), "policy", _states(3))
    with pytest.raises(ValueError, match="program for 5 states differs"):
        cut.expand(_params(), jax.random.key(0), jnp.zeros(5, jnp.int32), _states(5))


def test_arrays_that_a_mesh_shares_out():
    """Types of arrays that lie apart name sizes; inside of `jax.shard_map` they name none."""
    axes = {"axis_types": (jax.sharding.AxisType.Explicit,)}
    mesh, rows = jax.make_mesh((1,), ("roots",), **axes), jax.sharding.PartitionSpec("roots")
    found = []

    def search(x):
        states = {"x": x, "time": jnp.zeros_like(x[:, 0])}
        found.append(_cut(_model(_network), _params(), "policy", states))
        return x

    x = jax.device_put(_states(4)["x"], jax.NamedSharding(mesh, rows))
    jax.eval_shape(search, x)
    jax.eval_shape(jax.shard_map(search, mesh=mesh, in_specs=rows, out_specs=rows), x)
    assert found[0] == "its arguments have axes that are sharded over a mesh of devices"
    assert isinstance(found[1], SplitRecurrentFn)


def test_features_too_large_to_remember():
    reason = _reason(_model(_network), _params(), "policy", _states(4), max_features=31)
    assert reason == "its policy needs 32 bytes of each state, above 31"
    assert not isinstance(
        _cut(_model(_network), _params(), "policy", _states(4), max_features=32), str
    )


def test_features_beyond_the_usual_limit():
    @_lenient
    def network(params, x):
        wide = jnp.sin(x @ jnp.tile(params["torso"]["w"], (1, 2500)))  # of 80 kB
        features = params["policy"]["b"][:, None] + wide[:, None, :]
        return jnp.sum(jnp.tanh(features), axis=-1), x[:, 0]

    assert "above 65536" in _reason(_model(network), _params(), "policy", _states(4))


# What depends on what


class _Pair(NamedTuple):
    a: jax.Array
    b: jax.Array


X, Y = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32)


def test_depends_on_leaves():
    def function(pair, z):
        return {"a": pair.b + z, "b": (z, jnp.zeros(2)), "c": pair.a}

    assert depends(function, _Pair(X, X), Y) == [True, False, False, True]
    assert depends(lambda x, y: (x, y, 2.0), X, Y) == [True, False, False]
    assert depends(lambda x: jnp.zeros(3), X) == [False]
    assert depends(lambda x, y: (jnp.zeros_like(x), len(x) * y), X, Y) == [False, False]


def test_depends_though_nothing_of_it_is_left():
    assert depends(lambda x, y: (0 * x, jax.lax.stop_gradient(x) + y), X, Y) == [True, True]


def _custom_jvp(function):
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped


def _custom_vmap(function):
    wrapped = jax.custom_batching.custom_vmap(function)
    wrapped.def_vmap(lambda *args: None)
    return wrapped


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, jax.vmap, _custom_jvp, _custom_vmap])
def test_depends_through_calls(wrap):
    function = wrap(lambda x, y: (x * y, y + 1, x))
    assert depends(function, X, Y) == [True, False, True]
    assert depends(jax.jit(lambda x, y: function(x, y)[::-1]), X, Y) == [True, False, True]


def test_depends_through_custom_vjp():
    @jax.custom_vjp
    def function(x, y):
        return x, y

    function.defvjp(lambda x, y: ((x, y), None), lambda saved, g: g)
    assert depends(function, X, Y) == [True, False]
    assert depends(jax.grad(lambda x, y: jnp.sum(function(x, y)[0] ** 2)), X, Y) == [True]


def test_depends_through_scan():
    def function(x, y):
        def step(carry, row):  # what comes from x moves on by one in each step
            a, b, c = carry
            return (c, a, row), b * 2

        (a, b, c), rows = jax.lax.scan(step, (x[0], x[0] * 0 + 1, y[0]), y)
        return a, b, c, rows

    assert depends(function, X, Y) == [True, True, False, True]

    def unmixed(x, y):
        def step(carry, rows):
            return ((carry[0] + rows[0], carry[1] + 1), (rows[1], carry[1]))

        return jax.lax.scan(step, (x[0], y[0]), (x, y))

    assert depends(unmixed, X, Y) == [True, False, False, False]

    def slowly(x, y):  # needs two rounds until the last carry depends
        def step(carry, _):
            return ((x[0], carry[0], carry[1], carry[3]), carry[2])

        return jax.lax.scan(step, (y[0], y[0], y[0], y[0]), None, length=2)

    assert depends(slowly, X, Y) == [True, True, True, False, True]


def test_depends_through_while():
    def function(x, y):
        def go_on(carry):
            return carry[0] < 3

        return jax.lax.while_loop(go_on, lambda c: (c[0] + 1, c[1] + x, c[2] * 2), (0, y, y))

    assert depends(function, X, Y) == [False, True, False]

    def ended(x, y):  # by something that only later depends
        def go_on(carry):
            return carry[0] < 3

        def step(c):
            return (c[1], c[1] + x[0], c[2] * 2)

        return jax.lax.while_loop(go_on, step, (y[0], y[0], y))

    assert depends(ended, X, Y) == [True, True, True]

    def closed(x, y):
        return jax.lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1, 2 * c[1]), (y[0], y))

    assert depends(closed, X, Y) == [True, True]


def test_depends_through_cond():
    def chosen(x, y):
        return jax.lax.cond(x[0] > 0, lambda y: (y, 1.0), lambda y: (2 * y, 1.0), y)

    assert depends(chosen, X, Y) == [True, True]

    def some(x, y):
        return jax.lax.switch(1, [lambda x, y: (y, y), lambda x, y: (x, y)], x, y)

    assert depends(some, X, Y) == [True, False]

    def by_y(x, y):
        return jax.lax.cond(y[0] > 0, lambda x, y: (y, y), lambda x, y: (y, x), x, y)

    assert depends(by_y, X, Y) == [False, True]


def test_depends_through_other_functions():
    matrix = jax.ShapeDtypeStruct((3, 3), jnp.float32)

    def solve(x, y):
        def matvec(z):
            return x @ z

        return jax.lax.custom_linear_solve(matvec, y, lambda f, b: b, symmetric=True), y

    assert depends(solve, matrix, Y) == [True, False]

    def reduce(x, y):
        return jax.lax.reduce(x, y[0], lambda a, b: a, (0,))

    assert depends(reduce, X, Y) == [True]


def test_depends_on_keys():
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))

    def function(keys, y):
        draw = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, 1)))
        return (
            draw(keys),
            jax.random.split(keys[0]),
            draw(jax.random.split(jax.random.key(0), 3)),
            y,
        )

    assert depends(function, keys, Y) == [True, True, False, False]
    legacy = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    assert depends(lambda key, y: (jax.random.uniform(key), y), legacy, Y) == [True, False]


def test_depends_on_what_is_written():
    if not hasattr(jax, "new_ref"):
        pytest.skip("needs mutable arrays")

    def function(x, y):
        ref = jax.new_ref(y)
        before = ref[...]
        ref[...] = x
        return before, ref[...], y

    assert depends(function, X, Y)[1:] == [True, False]
