import collections
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from jaxpgs import networks, trees
from jaxpgs.networks import (
    AlphaZeroResNet,
    FullyConnectedResNet,
    SplitApplyFn,
    functional,
    functional_train,
    module_from_params,
    policy_head,
    trainable_mask,
)
from jaxpgs.networks.layers.convolution import same_convolution
from jaxpgs.search.models.adapted import adapt_mask

SHAPE, ACTIONS, BATCH = (4, 4, 3), 16, 6


@pytest.fixture(autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def _make(kind, seed=0, dtype="float32", **kwargs):
    rngs = nnx.Rngs(seed)
    if kind == "resnet":
        kwargs = {"num_filters": 8, "num_blocks": 2, "value_hidden": 8} | kwargs
        return AlphaZeroResNet(SHAPE, ACTIONS, **kwargs, dtype=dtype, rngs=rngs)
    kwargs = {"width": 16, "num_blocks": 2} | kwargs
    return FullyConnectedResNet(SHAPE, ACTIONS, **kwargs, dtype=dtype, rngs=rngs)


def _shaken(params, seed=1):
    """Random parameters, so that no scale, bias or alpha sits at its initial 0 or 1."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    # Positive, because variances are among them.
    moved = [
        x + 0.5 * jax.random.uniform(key, x.shape) for x, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


def _names(mask):
    leaves = jax.tree_util.tree_flatten_with_path(mask)[0]
    return {jax.tree_util.keystr(path, simple=True, separator=".") for path, leaf in leaves if leaf}


@pytest.fixture
def observation():
    return jax.random.normal(jax.random.key(7), (BATCH, *SHAPE))


both = pytest.mark.parametrize("kind", ["resnet", "fully_connected"])


def test_curated_exports():
    assert set(networks.__all__) == {
        "AlphaZeroResNet",
        "BoardGeometry",
        "FullyConnectedResNet",
        "Pattern",
        "PatternPolicy",
        "SEResNet",
        "SameGameResNet",
        "SplitApplyFn",
        "Template",
        "ValueEquivalentModel",
        "WithOffsets",
        "board_geometry",
        "default_templates",
        "functional",
        "functional_call",
        "functional_train",
        "module_from_params",
        "offset_policy",
        "pattern_policy",
        "policy_head",
        "resize",
        "trainable_mask",
        "with_last_move",
        "with_temperature",
    }
    assert all(hasattr(networks, name) for name in networks.__all__)


@pytest.mark.first_case
@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_and_types(kind, dtype, observation):
    params, apply_fn = functional(_make(kind, dtype=dtype))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    for obs in (observation, observation > 0, observation.astype(jnp.int8)):
        logits, value = apply_fn(params, obs)
        chex.assert_shape([logits, value], [(BATCH, ACTIONS), (BATCH,)])
        chex.assert_type([logits, value], jnp.float32)
        assert (jnp.abs(value) <= 1).all()


@pytest.mark.slow
@both
def test_bfloat16_is_close_to_float32_but_not_the_same(kind, observation):
    params, full = functional(_make(kind))
    _, half = functional(_make(kind, dtype="bfloat16"))
    if kind == "fully_connected":
        params = _shaken(params)
    for exact, rounded in zip(full(params, observation), half(params, observation), strict=True):
        assert (exact != rounded).any()
        scale = float(jnp.abs(exact).max())
        np.testing.assert_allclose(rounded, exact, atol=0.04 * scale)


def test_fully_connected_matches_numpy(observation):
    params, apply_fn = functional(_make("fully_connected"))
    params = jax.tree.map(lambda x: x - 0.2, _shaken(params))  # alphas stay positive, signs mix
    p = jax.tree.map(np.asarray, params)
    x = np.asarray(observation).reshape(BATCH, -1)

    def linear(layer, x):
        return x @ layer["kernel"] + layer["bias"]

    x = linear(p["torso"]["embed"], x)
    for block in ("0", "1"):
        q = p["torso"]["blocks"][block]
        assert q["alpha"] != 0
        x = x + q["alpha"] * np.maximum(linear(q["linear"], x), 0)
    logits, value = apply_fn(params, observation)
    np.testing.assert_allclose(logits, linear(p["policy_head"]["linear"], x), rtol=1e-4, atol=1e-4)
    expected = np.tanh(linear(p["value_head"]["linear"], x))[:, 0]
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


def test_a_temperature_divides_the_logits_only(observation):
    params, split = functional(_make("fully_connected"))
    params = _shaken(params)
    logits, value = split(params, observation)
    for apply_fn in (split, lambda *args: split(*args)):
        softer = networks.with_temperature(apply_fn, 2.5)
        assert isinstance(softer, networks.SplitApplyFn) == (apply_fn is split)
        found = softer(params, observation)
        np.testing.assert_allclose(found[0], logits / 2.5, rtol=1e-5)
        np.testing.assert_array_equal(found[1], value)
    with pytest.raises(ValueError, match="positive, got 0"):
        networks.with_temperature(split, 0)


def test_rezero_starts_without_its_blocks(observation):
    params, apply_fn = functional(_make("fully_connected"))
    changed = jax.tree.map(jnp.copy, params)
    changed["torso"]["blocks"]["0"]["linear"]["kernel"] += 1.0
    chex.assert_trees_all_equal(apply_fn(params, observation), apply_fn(changed, observation))
    changed["torso"]["blocks"]["0"]["alpha"] += 1.0
    assert (apply_fn(params, observation)[0] != apply_fn(changed, observation)[0]).any()


@pytest.mark.slow
def test_resnet_heads_match_one_by_one_convolutions(observation):
    module = module_from_params(_make("resnet"), _shaken(functional(_make("resnet"))[0]))
    module.eval()
    features = module.torso(observation)
    for head, planes in ((module.policy_head, 2), (module.value_head, 1)):
        kernel = head.conv.kernel[...].reshape(1, 1, 8, planes)
        convolved = jax.lax.conv_general_dilated(
            features, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        np.testing.assert_allclose(head.conv(features), convolved, rtol=1e-5, atol=1e-5)


def test_resnet_sees_the_board_as_a_plane():
    # Without blocks the torso sees 3x3 patches only: a far cell cannot change a feature.
    module = _make("resnet", num_blocks=0)
    module.eval()
    blank = jnp.zeros((1, *SHAPE))
    changed = module.torso(blank.at[0, 0, 0].set(1.0)) != module.torso(blank)
    near = np.zeros(SHAPE[:2], bool)
    near[:2, :2] = True
    np.testing.assert_array_equal(np.asarray(changed[0].any(-1)), near)


@both
def test_apply_equals_the_module_in_eval_mode_and_leaves_the_module_alone(kind, observation):
    module = _make(kind)
    module = module_from_params(module, _shaken(functional(module)[0]))
    before, apply_fn = functional(module)
    trained = functional_train(module)
    outputs = apply_fn(before, observation)
    trained(before, observation)
    chex.assert_trees_all_equal(functional(module)[0], before)
    if kind == "resnet":
        # Still in training mode: the statistics of this very batch are used.
        assert (module_from_params(module, before)(observation)[0] != outputs[0]).any()
    module.eval()
    chex.assert_trees_all_equal(module(observation), outputs)
    np.testing.assert_allclose(
        jax.jit(apply_fn)(before, observation)[0], outputs[0], rtol=1e-4, atol=1e-4
    )


@both
def test_parts_make_the_whole(kind, observation):
    params, apply_fn = functional(_make(kind))
    assert isinstance(apply_fn, networks.SplitApplyFn)
    params = _shaken(params)
    features = apply_fn.torso(params, observation)
    assert all(len(x) == BATCH for x in jax.tree.leaves(features))
    parts = apply_fn.policy_head(params, features), apply_fn.value_head(params, features)
    chex.assert_trees_all_equal(parts, apply_fn(params, observation))
    # As the module computes it itself.
    module = module_from_params(_make(kind), params)
    module.eval()
    chex.assert_trees_all_close(parts, module(observation), rtol=1e-5, atol=1e-5)
    # What a search adapts has no part in the features.
    adapts, other = policy_head(params), _shaken(params, seed=2)
    other = jax.tree.map(lambda a, x, y: y if a else x, adapts, params, other)
    chex.assert_trees_all_equal(apply_fn.torso(other, observation), features)
    assert (apply_fn.policy_head(other, features) != parts[0]).any()


def test_module_of_other_parts_stays_whole(observation):
    class Flat(nnx.Module):
        def __init__(self):
            self.torso = nnx.Linear(48, ACTIONS + 1, rngs=nnx.Rngs(0))

        def __call__(self, x):
            x = self.torso(x.reshape(len(x), -1))
            return x[:, 1:], x[:, 0]

    params, apply_fn = functional(Flat())
    assert not isinstance(apply_fn, networks.SplitApplyFn)
    chex.assert_trees_all_equal(apply_fn(params, observation), Flat()(observation))


@both
def test_one_trace_serves_all_parameter_values(kind, observation):
    params, apply_fn = functional(_make(kind))
    traces = []

    @jax.jit
    def counted(params, observation):
        traces.append(None)
        return apply_fn(params, observation)

    first = counted(params, observation)
    second = counted(_shaken(params), observation)
    assert len(traces) == 1
    assert (first[0] != second[0]).all()
    np.testing.assert_allclose(
        second[0], apply_fn(_shaken(params), observation)[0], rtol=1e-4, atol=1e-4
    )


def test_training_moves_the_statistics_and_evaluation_does_not(observation):
    module = _make("resnet")
    params, apply_fn = functional(module)
    train_fn = jax.jit(functional_train(module))
    (logits, _), moved = train_fn(params, observation)
    chex.assert_trees_all_equal_structs(moved, params)
    mask = trainable_mask(module)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), moved, params)
    assert same == mask  # weights as they were, every statistic moved

    # The stem's statistics by hand: 0.9 of the old, 0.1 of this batch.
    stem = params["torso"]["embed"]
    kernel = stem["conv"]["kernel"]
    x = jax.lax.conv_general_dilated(
        observation, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    norm = moved["torso"]["embed"]["norm"]
    np.testing.assert_allclose(norm["mean"], 0.1 * x.mean((0, 1, 2)), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(norm["var"], 0.9 + 0.1 * x.var((0, 1, 2)), rtol=1e-3)

    # After many steps on one batch the population statistics are that batch's.
    for _ in range(80):
        params = train_fn(params, observation)[1]
    np.testing.assert_allclose(apply_fn(params, observation)[0], logits, rtol=1e-2, atol=1e-2)


def test_a_training_step_learns_weights_and_carries_statistics(observation):
    module = _make("resnet")
    params, _ = functional(module)
    train_fn, mask = functional_train(module), trainable_mask(module)
    optimizer = optax.masked(optax.adam(1e-2), mask)
    labels = jnp.arange(BATCH)

    def loss_fn(params):
        (logits, _), new = train_fn(params, observation)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

    @jax.jit
    def step(params, opt_state):
        (loss, new), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax's adam mixes types
            updates, opt_state = optimizer.update(grads, opt_state, params)
        learned = optax.apply_updates(params, updates)
        params = jax.tree.map(lambda keep, a, b: a if keep else b, mask, learned, new)
        return params, opt_state, loss

    opt_state, losses = optimizer.init(params), []
    for _ in range(40):
        params, opt_state, loss = step(params, opt_state)
        losses.append(float(loss))
    assert losses[0] > 2.0
    assert losses[-1] < 0.2


@pytest.mark.first_case
@both
def test_per_root_heads_equal_a_loop(kind, observation):
    params, apply_fn = functional(_make(kind))
    mask = policy_head(params)
    copies = [_shaken(params, seed) for seed in range(3)]
    roots = jax.tree.map(
        lambda adapt, frozen, *own: jnp.stack(own) if adapt else frozen, mask, params, *copies
    )
    axes = jax.tree.map(lambda adapt: 0 if adapt else None, mask)
    observations = observation.reshape(3, 2, *SHAPE)
    batched = jax.jit(jax.vmap(apply_fn, in_axes=(axes, 0)))(roots, observations)
    for root, own in enumerate(copies):
        single = jax.tree.map(lambda adapt, a, b: a if adapt else b, mask, own, params)
        expected = apply_fn(single, observations[root])
        actual = jax.tree.map(lambda x, root=root: x[root], batched)
        chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert (batched[0][0] != apply_fn(params, observations[0])[0]).any()


def test_per_root_heads_make_no_grouped_convolution(observation):
    params, apply_fn = functional(_make("resnet"))
    axes = jax.tree.map(lambda adapt: 0 if adapt else None, policy_head(params))
    roots = jax.tree.map(
        lambda a, x: x if a is None else jnp.stack([x] * 3),
        axes,
        params,
        is_leaf=lambda a: a is None,
    )
    jaxpr = str(
        jax.make_jaxpr(jax.vmap(apply_fn, in_axes=(axes, 0)))(
            roots, observation.reshape(3, 2, *SHAPE)
        )
    )
    assert jaxpr.count("feature_group_count=1") == jaxpr.count("feature_group_count=") > 0
    assert jaxpr.count("batch_group_count=1") == jaxpr.count("batch_group_count=") > 0


@jax.jit
def _convolution_gradients(x, kernel, gradient):
    numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    results = []
    for convolve in (same_convolution, jax.lax.conv_general_dilated):
        out, back = jax.vjp(lambda *a, f=convolve: f(*a, (1, 1), "SAME", **numbers), x, kernel)
        results.append((out, *back(gradient)))
    return results


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (3, 5)])
def test_gradients_of_a_convolution_are_jaxs(kernel):
    rng = np.random.default_rng(0)
    shapes = (2, 4, 3, 5), (*kernel, 5, 6), (2, 4, 3, 6)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    for own, expected in zip(*_convolution_gradients(*arrays), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_many_kernels_take_turns_and_change_nothing():
    rng = np.random.default_rng(0)
    shapes = (3, 2, 4, 3, 5), (3, 3, 3, 5, 6)
    x, kernels = (jnp.asarray(rng.normal(0, 0.3, shape), jnp.float32) for shape in shapes)
    numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}

    def results(convolve):
        f = functools.partial(convolve, window_strides=(1, 1), padding="SAME", **numbers)
        loss = lambda x, kernel: jnp.sum(jnp.sin(f(x, kernel)))  # noqa: E731
        length = lambda *a: jnp.sum(jnp.square(jax.grad(loss, 1)(*a)))  # noqa: E731
        every = jax.vmap(lambda kernel: jax.vmap(lambda x: f(x, kernel))(x))
        return (
            every(kernels), jax.vmap(f, (None, 0))(x[0], kernels),
            jax.vmap(jax.grad(loss, (0, 1)))(x, kernels),
            jax.vmap(jax.grad(length, (0, 1)))(x, kernels),
        )  # fmt: skip

    def own(x, kernel, window_strides, padding, **kwargs):
        return same_convolution(x, kernel, window_strides, padding, **kwargs)

    outputs, expected = jax.jit(lambda: [results(own), results(jax.lax.conv_general_dilated)])()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), outputs, expected
    )
    if jax.default_backend() == "cpu":
        groups = re.findall(r"_group_count=(\d+)", str(jax.make_jaxpr(lambda: results(own))()))
        assert set(groups) == {"1"}


def test_convolutions_of_a_gradient_in_a_loop_have_the_form_that_is_fast(observation):
    if jax.default_backend() != "cpu":
        pytest.skip("other compilers bring convolutions into their form themselves")
    network = _make("resnet", num_blocks=1)
    params, train_fn = functional(network)[0], functional_train(network)

    @jax.jit
    def train(params):
        def step(params, _):
            gradient = jax.grad(lambda params: jnp.sum(train_fn(params, observation)[0][0]))(params)
            return jax.tree.map(jnp.add, params, gradient), None

        return jax.lax.scan(step, params, length=2)

    text = train.lower(params).compile().as_text()
    forms = re.findall(r" convolution\(.*dim_labels=(\S+?)[,\s]", text)
    assert len(forms) >= 7 and set(forms) == {"b01f_01io->b01f"}  # 3 layers, all but one twice more


def test_boards_whose_cells_do_not_tell_them_apart_are_refused():
    sizes = {"num_filters": 4, "num_blocks": 1, "rngs": nnx.Rngs(0)}
    small, large = (AlphaZeroResNet((*board, 3), 16, **sizes) for board in ((2, 8), (4, 4)))
    with pytest.raises(ValueError, match=r"got \(2, 8\) and \(4, 4\)"):
        networks.resize(functional(small)[0], small, large)


def test_policy_head_names():
    params, _ = functional(_make("resnet"))
    linear = {"policy_head.linear.kernel", "policy_head.linear.bias"}
    assert _names(policy_head(params)) == linear | {"policy_head.conv.kernel"}
    assert _names(policy_head(params, part="linear")) == linear
    chex.assert_trees_all_equal_structs(policy_head(params), params)
    assert {f"policy_head.norm.{x}" for x in ("mean", "var", "scale", "bias")} < _names(
        jax.tree.map(lambda _: True, params)
    )

    params, _ = functional(_make("fully_connected"))
    assert _names(policy_head(params)) == _names(policy_head(params, part="linear")) == linear


@both
def test_only_the_policy_head_moves_the_logits_and_not_the_value(kind, observation):
    params, apply_fn = functional(_make(kind))
    mask = policy_head(params)
    adapted = jax.tree.map(lambda keep, a, b: a if keep else b, mask, _shaken(params), params)
    (logits, value), (new_logits, new_value) = (apply_fn(p, observation) for p in (params, adapted))
    assert (logits != new_logits).all()
    np.testing.assert_array_equal(value, new_value)


def test_policy_head_errors():
    params, _ = functional(_make("fully_connected"))
    with pytest.raises(ValueError, match=r"'head', 'linear'.*got 'all'"):
        policy_head(params, part="all")
    with pytest.raises(ValueError, match=r"no 'policy_head'.*'value_head.linear'\]"):
        policy_head({k: v for k, v in params.items() if k != "policy_head"})
    with pytest.raises(ValueError, match=r"no 'policy_head.linear'.*\['policy_head.dense'\]"):
        policy_head({"policy_head": {"dense": params["policy_head"]["linear"]}}, part="linear")


class LinenNet(linen.Module):
    """Batch normalisation in the head, whose last layer has a name of its own."""

    is_torso_and_heads = True
    train: bool = False

    def setup(self):
        self.torso = lambda x: x.reshape(len(x), -1)[:, :4]
        self.policy_head = linen.Sequential(
            [linen.BatchNorm(use_running_average=not self.train), linen.Dense(9)]
        )
        self.value = linen.Dense(1)

    def value_head(self, features):
        return jnp.tanh(self.value(features))[:, 0]

    def __call__(self, x):
        features = self.torso(x)
        return self.policy_head(features), self.value_head(features)


def test_linen_modules_are_split_and_their_heads_found():
    module, observation = LinenNet(), jax.random.normal(jax.random.key(0), (3, 3, 3, 3))
    variables = module.init(jax.random.key(1), observation)
    params, apply_fn = functional(module, variables)

    chex.assert_trees_all_equal(apply_fn(params, observation), module.apply(params, observation))
    assert isinstance(apply_fn, SplitApplyFn)
    dense = {f"params.policy_head.layers_1.{name}" for name in ("kernel", "bias")}
    assert _names(policy_head(params)) == dense
    assert _names(policy_head(params, path="policy_head.layers_1")) == dense
    assert _names(policy_head(params, path="params.value")) == {
        "params.value.kernel", "params.value.bias"
    }  # fmt: skip
    # Its name is found in every collection, so that nothing but the layer itself counts.
    assert {"batch_stats.policy_head.layers_0.mean"} < _names(jax.tree.map(lambda _: True, params))
    mask = adapt_mask(params, "policy_head")
    assert mask == jax.tree.leaves(policy_head(params))
    everything = jax.tree.unflatten(jax.tree.structure(params), adapt_mask(params, "everything"))
    value = {"params.value.kernel", "params.value.bias"}
    assert _names(everything) == dense | value
    with pytest.raises(ValueError, match=r"adapt 'policy' chooses none.*policy_head"):
        adapt_mask(params, "policy")


def test_functional_needs_the_variables_of_linen_and_of_nothing_else():
    with pytest.raises(ValueError, match="as the second argument"):
        functional(LinenNet())
    with pytest.raises(ValueError, match="FullyConnectedResNet has its own"):
        functional(_make("fully_connected"), {})


def test_names_lead_into_sequences_and_dataclasses():
    pair = collections.namedtuple("Pair", ("one", "two"))
    tree = {"actor": [jnp.zeros(1), {"mean": jnp.zeros(2)}], "critic": pair(jnp.zeros(3), 1)}
    assert trees.mask_of(tree, "actor.1") == [False, True, False, False]
    assert trees.mask_of(tree, "one") == [False, False, True, False]
    assert trees.mask_of(tree, "actor.2") is None
    assert trees.mask_of(tree, "") is None
    assert trees.mask_of(tree, None) == [True] * 4
    assert trees.mask_of(jnp.zeros(3), None) == [True]


def test_trainable_mask_names():
    frozen = _names(jax.tree.map(lambda x: not x, trainable_mask(_make("resnet"))))
    assert {name.rsplit(".", 1)[1] for name in frozen} == {"mean", "var"}
    assert len(frozen) == 2 * (1 + 2 * 2 + 2)  # stem, two a block, one a head
    assert all(jax.tree.leaves(trainable_mask(_make("fully_connected"))))


def test_everything_adapts_but_batch_normalisation():
    params = functional(_make("resnet"))[0]
    mask = jax.tree.unflatten(jax.tree.structure(params), adapt_mask(params, "everything"))
    frozen = _names(jax.tree.map(lambda x: not x, mask))
    assert {name.rsplit(".", 1)[1] for name in frozen} == {"mean", "var", "scale", "bias"}
    assert len(frozen) == 4 * (1 + 2 * 2 + 2)  # stem, two a block, one a head


@pytest.mark.first_case
@both
def test_parameters_round_trip_through_a_module(kind, observation):
    module = _make(kind, num_blocks=11)  # "10" sorts before "2"
    params = _shaken(functional(module)[0])
    copy = module_from_params(_make(kind, seed=3, num_blocks=11), params)
    copied, apply_fn = functional(copy)
    chex.assert_trees_all_equal(copied, params)
    chex.assert_trees_all_equal(
        apply_fn(copied, observation), functional(module)[1](params, observation)
    )


def test_wrong_parameters_are_named(observation):
    module = _make("fully_connected")
    params, apply_fn = functional(module)

    def broken():
        return jax.tree.map(jnp.copy, params)

    lacking = broken()
    del lacking["torso"]["embed"]["bias"]
    for call in (
        lambda: apply_fn(lacking, observation),
        lambda: module_from_params(module, lacking),
    ):
        with pytest.raises(ValueError, match=r"'torso\.embed\.bias'.*missing"):
            call()
    extra = broken()
    extra["torso"]["embed"]["gain"] = jnp.zeros(())
    for call in (lambda: apply_fn(extra, observation), lambda: module_from_params(module, extra)):
        with pytest.raises(ValueError, match=r"no parameters \['torso\.embed\.gain'\]"):
            call()
    other = broken()
    other["torso"]["embed"]["bias"] = jnp.zeros(5)
    with pytest.raises(ValueError, match=r"'torso\.embed\.bias'.*float32\[16\], got float32\[5\]"):
        module_from_params(module, other)
    other["torso"]["embed"]["bias"] = jnp.zeros(16, jnp.int32)
    with pytest.raises(ValueError, match=r"'torso\.embed\.bias'.*float32\[16\], got int32\[16\]"):
        module_from_params(module, other)


@both
def test_static_mistakes(kind):
    module = _make(kind)
    for shape in [(BATCH, 4, 4, 2), SHAPE, (BATCH, 48), ()]:
        with pytest.raises(ValueError, match=r"\(B, 4, 4, 3\), got"):
            module(jnp.zeros(shape))
    with pytest.raises(ValueError, match="num_blocks >= 0, got -1"):
        _make(kind, num_blocks=-1)
    size = "num_filters" if kind == "resnet" else "width"
    with pytest.raises(ValueError, match=f"{size} >= 1, got 0"):
        _make(kind, **{size: 0})
    if kind == "resnet":
        with pytest.raises(ValueError, match=r"\(height, width, planes\), got \(48,\)"):
            AlphaZeroResNet((48,), ACTIONS, rngs=nnx.Rngs(0))
