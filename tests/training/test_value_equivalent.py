"""Networks with squeeze-and-excitation, models that were learned, and how they learn."""

import functools
import shutil

import chex
import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpgs
from jaxpgs import networks
from jaxpgs.envs import Hex, SameGame
from jaxpgs.networks import AlphaZeroResNet, SEResNet, ValueEquivalentModel, functional
from jaxpgs.networks.layers import heads
from jaxpgs.networks.learned_model import scale_gradient
from jaxpgs.training import read_run
from jaxpgs.training.models import labelling, model_fitting, unrolls, value_equivalent
from jaxpgs.training.runtime import iterations
from jaxpgs.training.runtime.arguments import fingerprint
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import expert_iteration, experts, losses, replay, selfplay

ENV = Hex(3)
SIZES = {"num_filters": 4, "policy_filters": 2, "value_filters": 2}


def make_model(env=ENV, num_blocks=0, **kwargs):
    return ValueEquivalentModel(
        env.observation_shape, env.num_actions, num_blocks=num_blocks, **(SIZES | kwargs),
        rngs=nnx.Rngs(0),
    )  # fmt: skip


def shaken(params, seed=1):
    """Random parameters, so that nothing sits at its initial 0 or 1; variances stay positive."""
    leaves, structure = jax.tree.flatten(params)
    noise = [
        np.random.default_rng([seed, i]).uniform(0, 0.5, x.shape) for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(
        structure,
        [
            jnp.asarray(np.asarray(x) + n.astype(x.dtype))
            for x, n in zip(leaves, noise, strict=True)
        ],
    )


def test_blocks_that_excite_everything_are_plain_ones_and_none_leaves_the_input():
    shape = (4, 4, 3)
    network = SEResNet(shape, 16, num_blocks=1, **SIZES, rngs=nnx.Rngs(0))
    params, apply_fn = functional(network)
    params = shaken(params)
    plain = AlphaZeroResNet(shape, 16, num_filters=4, num_blocks=1, rngs=nnx.Rngs(0))
    plain_params, plain_fn = functional(plain)
    block = params["torso"]["blocks"]["0"]
    shared = {name: block[name] for name in ("first", "second")}
    plain_params["torso"] = {"embed": params["torso"]["embed"], "blocks": {"0": shared}}
    observation = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)

    @jax.jit
    def features(bias):
        excite = {
            "kernel": jnp.zeros_like(block["excite"]["kernel"]),
            "bias": jnp.full_like(block["excite"]["bias"], bias),
        }
        torso = params["torso"] | {"blocks": {"0": block | {"excite": excite}}}
        return apply_fn.torso(params | {"torso": torso}, observation)

    def embedded(params, observation):
        stem = {"embed": params["torso"]["embed"], "blocks": {}}
        return none_fn.torso(none_params | {"torso": stem}, observation)

    none_params, none_fn = functional(SEResNet(shape, 16, num_blocks=0, **SIZES, rngs=nnx.Rngs(0)))
    expected = jax.jit(plain_fn.torso)(plain_params, observation)
    np.testing.assert_allclose(features(50.0), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(features(-50.0), jax.jit(embedded)(params, observation), atol=1e-5)
    # The weight of a plane depends on the whole board.
    corners = np.stack([observation, observation])
    corners[1, :, 0, 0] += 3.0
    first, other = jax.jit(jax.vmap(functools.partial(apply_fn.torso, params)))(corners)
    assert (first[:, 3, 3] != other[:, 3, 3]).any()


def test_the_linear_layer_is_the_thesiss():
    for kind, env in ((SEResNet, Hex(5)), (ValueEquivalentModel, Hex(5))):
        network = nnx.eval_shape(
            lambda kind=kind, env=env: kind(env.observation_shape, 25, rngs=nnx.Rngs(0))
        )
        params, _ = functional(network)
        mask = networks.policy_head(params, part="linear")
        sizes = [x.shape for x, m in zip(*map(jax.tree.leaves, (params, mask)), strict=True) if m]
        assert sizes == [(25,), (800, 25)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_and_types_of_a_model(dtype):
    model = make_model(num_blocks=1, dtype=dtype)
    params, apply_fn = functional(model)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    observation = jnp.zeros((5, 3, 3, 3), jnp.int8)
    root_fn, recurrent_fn = jaxpgs.make_model_fns(model)

    def everything(params):
        root = root_fn(params, None, observation)
        action = jnp.zeros(5, jnp.int32)
        return (
            apply_fn(params, observation),
            root,
            recurrent_fn(params, None, action, root.embedding),
        )

    (logits, value), root, (output, after) = jax.eval_shape(everything, params)
    for x in (root.prior_logits, output.prior_logits, logits):
        assert (x.shape, x.dtype) == ((5, 9), jnp.float32)
    for x in (value, root.value, output.value, output.reward, output.discount):
        assert (x.shape, x.dtype) == ((5,), jnp.float32)
    assert after.hidden.dtype == dtype and after.hidden.shape == (5, 3, 3, 4)
    assert after.frame is None


@functools.partial(jax.jit, static_argnums=(0, 1))
def planned(model_of, env, params, state, actions):
    """What the search is told of a sequence of actions, and what the model says of an unroll."""
    model = model_of()
    root_fn, recurrent_fn = jaxpgs.make_model_fns(model, env, part="head")
    root = root_fn(params, None, state)
    told, embedding = [(root.prior_logits, root.value)], root.embedding
    for k in range(actions.shape[1]):
        output, embedding = recurrent_fn(params, None, actions[:, k], embedding)
        told.append((output.prior_logits, output.value))
    unroll = networks.functional_call(model, lambda model, *data: model.unroll(*data))
    framed = jax.vmap(jax.vmap(env.network_policy, (None, 0)))(state, jax.nn.one_hot(actions, 9))
    logits, value = unroll(params, jax.vmap(env.observe)(state), jnp.argmax(framed, axis=-1))
    logits = jax.vmap(jax.vmap(env.policy_logits, (None, 0)))(state, logits)
    return told, logits, value


def test_a_search_is_told_what_the_model_learned_whoever_is_to_move():
    state = games.random_positions(ENV, 0, [0, 1, 2, 3])
    assert set(np.asarray(state.current_player).tolist()) == {0, 1}
    params, _ = functional(make_model())
    actions = jnp.array([[0, 5], [1, 6], [2, 7], [3, 1]], jnp.int32)
    told, logits, value = planned(make_model, ENV, shaken(params), state, actions)
    legal = np.asarray(state.legal_action_mask)
    for k, (step_logits, step_value) in enumerate(told):
        np.testing.assert_allclose(step_value, value[:, k], atol=1e-5)
        shown = legal if k == 0 else np.ones_like(legal)  # only the root knows what is legal
        np.testing.assert_array_equal(step_logits > np.finfo(np.float32).min, shown)
        np.testing.assert_allclose(
            np.where(shown, step_logits, 0), np.where(shown, logits[:, k], 0), atol=1e-4
        )
    assert np.std(value, axis=1).min() > 0, "the actions matter"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", games.mostly_slow(["float32", "bfloat16"], "bfloat16"))
def test_every_search_plans_in_one_model(dtype):
    model = make_model(dtype=dtype)
    params = shaken(functional(model)[0])
    root_fn, recurrent_fn = jaxpgs.make_model_fns(model, ENV)
    state = games.random_positions(ENV, 0, [2, 3])
    legal = np.asarray(state.legal_action_mask)
    adapt = networks.policy_head(params, part="linear")
    knobs = {
        "simulations_per_update": 4,
        "truncation": jaxpgs.truncation.by_visits(6.0, count_first=False),
    }
    knobs |= {"mode": "constant" if dtype == "float32" else "cached", "adapt": adapt}
    ve_pgs = functools.partial(jaxpgs.extended_pgs_policy, **knobs)
    # Each kind of search in one of the two models, to save compilations.
    other = mctx.muzero_policy if dtype == "float32" else mctx.gumbel_muzero_policy
    for policy in (ve_pgs, other):

        @jax.jit
        def search(params, policy=policy):
            root = root_fn(params, None, state)
            keys = jax.random.key(0)
            return policy(params, keys, root, recurrent_fn, 12, ~state.legal_action_mask)

        output = search(params)
        assert legal[np.arange(2), output.action].all()
        np.testing.assert_allclose(np.asarray(output.action_weights).sum(-1), 1, rtol=1e-5)
        assert (np.asarray(output.action_weights)[~legal] == 0).all()
        if policy is ve_pgs:
            own = params["policy_head"]["linear"]["kernel"]
            learned = output.search_state.params["policy_head"]["linear"]["kernel"]
            assert (learned != own).any((1, 2)).all()
            assert (output.search_state.visits.sum(-1) == 12).all()


def test_a_model_is_saved_with_its_sizes(tmp_path):
    plain = SEResNet((3, 3, 3), 9, num_blocks=1, **SIZES, norm="layer", rngs=nnx.Rngs(0))
    for network in (make_model(), plain):
        params, _ = functional(network)
        jaxpgs.save_pretrained(tmp_path, "x", env=ENV, module=network, params=shaken(params))
        net = jaxpgs.load_pretrained("x", directory=tmp_path)
        assert type(net.module) is type(network) and net.module.policy_filters == 2
        assert net.module.norm == network.norm
        chex.assert_trees_all_equal(net.params, shaken(params))


def test_with_layer_normalisation_a_search_is_told_what_is_trained():
    model = make_model(num_blocks=1, norm="layer")
    params = shaken(functional(model)[0])
    assert all(jax.tree.leaves(networks.trainable_mask(model)))
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    action = rng.integers(0, 9, (4, 2), dtype=np.int32)

    @functools.partial(jax.jit, static_argnums=0)
    def outputs(train, *data):
        unroll = networks.functional_call(model, lambda m, *data: m.unroll(*data), train=train)
        found = unroll(params, *data)
        return found if not train else found[0]

    trained, searched = outputs(True, observation, action), outputs(False, observation, action)
    chex.assert_trees_all_close(trained, searched, rtol=1e-5)
    # A board's answer depends on no other board of its batch.
    other = observation.copy()
    other[1:] = rng.normal(size=other[1:].shape)
    for x, y in zip(trained, outputs(True, other, action), strict=True):
        np.testing.assert_allclose(x[0], y[0], rtol=1e-4, atol=1e-5)
        assert not np.allclose(x[1], y[1], rtol=1e-2)


def test_layer_normalisation_by_hand():
    x = np.random.default_rng(0).normal(3.0, 2.0, (2, 3, 3, 4)).astype(np.float32)
    found = jax.jit(heads.make_norm("layer", 4, nnx.Rngs(0)))(x)
    axes = (1, 2, 3)
    mean, std = x.mean(axes, keepdims=True), x.std(axes, keepdims=True)
    np.testing.assert_allclose(found, (x - mean) / std, rtol=1e-4, atol=1e-4)


def test_gradients_shrink_at_every_transition():
    x = jnp.array([2.0, 3.0])
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(scale_gradient(x, 0.5) ** 2))(x)
    assert value == 13
    np.testing.assert_array_equal(gradient, x)


def first_legal(params, rng_key, root, recurrent_fn, invalid_actions):
    """An expert known by heart: it plays the first empty cell and values everything 0.25."""
    best = jnp.argmin(invalid_actions, axis=-1)
    policy = jax.nn.one_hot(best, invalid_actions.shape[-1])
    return experts.Decision(best, best, policy, jnp.full(best.shape, 0.25))


@functools.cache
def played(**knobs):
    """Nine steps of one game that is won with its seventh move, and the start of the next."""
    params, apply_fn = functional(
        networks.FullyConnectedResNet((3, 3, 3), 9, width=2, num_blocks=0, rngs=nnx.Rngs(0))
    )
    play = functools.partial(
        by_name(selfplay.play), ENV, apply_fn, first_legal, num_steps=9, keep_played=True, **knobs
    )
    start = jax.jit(functools.partial(selfplay.init_games, ENV, num_games=1))
    games = start(jax.random.key(0))
    return jax.device_get(jax.jit(play)(params, jax.random.key(0), games)[1])


@jax.jit
def timeline_of(experience):
    return unrolls.timeline(experience)


@functools.partial(jax.jit, static_argnums=2)
def unrolls_of(timeline, time, unroll):
    return unrolls.unrolls_at(ENV, timeline, time, 0 * time, jax.random.key(3), unroll)


def unroll_of(timeline, time, unroll=4):
    found = unrolls_of(timeline, np.array([time], np.int32), unroll)
    return jax.tree.map(lambda x: np.asarray(x[0]), found)


def test_unrolls_by_hand():
    # Both sides fill cells in order, 0 1 2 3 4 5 6, and the seventh move wins for player 0.
    steps = timeline_of(played())
    found = unroll_of(steps, 4)  # player 0 is to move
    np.testing.assert_array_equal(found.action[:3], [4, 5, 6])
    np.testing.assert_array_equal(np.argmax(found.policy[:3], axis=-1), [4, 5, 6])
    # Won by the mover, lost, won; then nobody moves, and the value goes on to change its sign.
    np.testing.assert_array_equal(found.value, [1, -1, 1, -1, 1])
    np.testing.assert_array_equal(found.value_weight, 1)
    np.testing.assert_array_equal(found.policy_weight, [1, 1, 1, 0, 0])
    # Player 1 sees the board transposed, and so the other's moves too.
    found = unroll_of(steps, 1)
    np.testing.assert_array_equal(found.action, [3, 6, 1, 4])
    np.testing.assert_array_equal(np.argmax(found.policy, axis=-1), [3, 6, 1, 4, 7])
    np.testing.assert_array_equal(found.value, [-1, 1, -1, 1, -1])
    # The next game is not over, and behind its last step is nothing.
    found = unroll_of(steps, 7)
    np.testing.assert_array_equal(found.value_weight, 0)
    np.testing.assert_array_equal(found.policy_weight, [1, 1, 0, 0, 0])
    # Values of the expert in place of the game's.
    quarter = np.full((9, 1), 0.25, np.float32)
    found = unroll_of(timeline_of(played()._replace(value=quarter, open=0 * quarter)), 5)
    np.testing.assert_allclose(found.value, [0.25, 0.25, -1, 1, -1])
    np.testing.assert_array_equal(found.value_weight, 1)


def test_blocks_of_a_replay_buffer_are_one_line_of_time():
    whole = played()
    blocks = [jax.tree.map(lambda x, i=i: x[2 * i : 2 * i + 2], whole) for i in range(4)]
    buffer = replay.init(ENV, 3, 2, 1, keep_played=True)
    add, line_up = jax.jit(replay.add), jax.jit(unrolls.replay_timeline)
    lengths = []
    for block in blocks:
        buffer = add(buffer, block)
        steps = line_up(buffer)
        lengths.append(int(steps.length))
    assert lengths == [2, 4, 6, 6]
    begun = timeline_of(jax.tree.map(lambda x: x[:8], whole))
    for time in range(6):  # the oldest block is gone: steps 2 to 7
        found = unroll_of(steps, time)
        expected = unroll_of(begun, time + 2)
        chex.assert_trees_all_equal(found, expected)


def test_a_turned_unroll_is_an_unroll_of_the_turned_board():
    steps = timeline_of(played())
    time = np.full(20, 2, np.int32)
    found = unrolls_of(steps, time, 4)
    other = jax.jit(functools.partial(unrolls.turned, ENV))(found, jax.random.key(1))
    is_turned = (np.asarray(other.action) != np.asarray(found.action)).any(1)
    assert 0 < is_turned.sum() < 20
    np.testing.assert_array_equal(other.action[is_turned], 8 - found.action[is_turned])
    turned = np.asarray(found.observation)[:, ::-1, ::-1][is_turned]
    np.testing.assert_array_equal(other.observation[is_turned], turned)
    np.testing.assert_array_equal(
        other.policy[is_turned], np.asarray(found.policy)[is_turned][..., ::-1]
    )
    np.testing.assert_array_equal(other.value, found.value)


def test_loss_of_an_unroll_by_hand():
    target = unrolls.Unrolls(
        observation=np.zeros((1, 3, 3, 3), np.float32), action=np.zeros((1, 1), np.int32),
        policy=np.float32([[[1.0, 0.0], [0.5, 0.5]]]), value=np.float32([[1.0, -1.0]]),
        policy_weight=np.float32([[1.0, 0.0]]), value_weight=np.float32([[1.0, 1.0]]),
    )  # fmt: skip
    logits = np.float32([[[np.log(3.0), 0.0], [9.0, 0.0]]])
    loss_of = jax.jit(functools.partial(losses.unroll_loss, value_weight=2.0))
    loss, parts = loss_of(logits, np.float32([[0.5, 0.0]]), target)
    np.testing.assert_allclose(parts["policy_loss"], np.log(4 / 3), rtol=1e-6)
    np.testing.assert_allclose(parts["value_loss"], (0.25 + 1) / 2)
    np.testing.assert_allclose([parts["value_loss_0"], parts["value_loss_1"]], [0.25, 1])
    np.testing.assert_allclose(loss, np.log(4 / 3) + 1.25, rtol=1e-6)


@functools.cache
def labelled():
    net = networks.FullyConnectedResNet((3, 3, 3), 9, width=8, num_blocks=0, rngs=nnx.Rngs(0))
    params, apply_fn = functional(net)
    games = labelling.Games(epsilon=0.5, games_at_once=16, num_steps=16)
    return labelling.label_games(ENV, apply_fn, params, num_games=60, games=games)


@pytest.mark.slow
def test_labelled_games_are_half_random_and_judged_by_the_network():
    data = labelled()
    assert data.value.shape[1] == 16 and data.played.finished.sum() >= 60
    best = np.argmax(data.policy, axis=-1)
    net = networks.FullyConnectedResNet((3, 3, 3), 9, width=8, num_blocks=0, rngs=nnx.Rngs(0))
    params, apply_fn = functional(net)
    _, value = jax.jit(apply_fn)(params, data.observation.reshape(-1, 3, 3, 3))
    np.testing.assert_allclose(data.value.reshape(-1), value, atol=1e-5)
    # The policy is kept in the mover's frame, the action is the environment's.
    mover = data.played.state.current_player
    turned = np.where(mover == 0, best, best % 3 * 3 + best // 3)
    free = (data.played.state.labels == 0).sum(-1)
    share = np.mean(turned == data.played.action)
    expected = 0.5 + 0.5 * np.mean(1 / free)
    # Four standard deviations of a share of 0.6 among 700 moves.
    assert abs(share - expected) < 0.075


FIT = {"unroll": 1, "batch_size": 64, "optimizer": optax.adam(0.03), "max_epochs": 30}


def fit(data=None, model=None, **knobs):
    data = labelled() if data is None else data
    model = make_model() if model is None else model
    return by_name(model_fitting.fit)(ENV, model, data, **(FIT | knobs))


@pytest.mark.slow
def test_a_fit_stops_early_and_goes_on_bit_equal_after_a_kill(tmp_path):
    # The values are noise, which can be learned by heart only, and the games held out tell.
    data = labelled()
    rng = np.random.default_rng(0)
    data = data._replace(value=rng.choice([-1.0, 1.0], data.value.shape).astype(np.float32))
    rows, resumed_rows = [], []
    knobs = {"directory": tmp_path, "patience": 2, "checkpoint_every": 6}
    whole = fit(data, **knobs, callback=lambda state, row: rows.append(row))
    last = len(rows)
    assert [row["iteration"] for row in rows] == [*range(1, last + 1)] and 2 < last < 30
    assert rows[-1]["policy_loss"] < 0.5 * rows[0]["policy_loss"]
    assert {"validation_value_loss_0", "validation_value_loss_1"} <= set(rows[0])
    judged = [row["validation_policy_loss"] + row["validation_value_loss"] for row in rows]
    assert np.argmin(judged) == last - 3 and int(whole.waited) == 2
    np.testing.assert_allclose(whole.lowest, min(judged), rtol=1e-6)
    shutil.rmtree(tmp_path / str(last))  # as if the kill had come before the last epoch's end
    resumed = fit(data, **knobs, callback=lambda state, row: resumed_rows.append(row))
    assert resumed_rows == rows[6 * ((last - 1) // 6) :]
    chex.assert_trees_all_equal(resumed, whole)
    run = read_run(tmp_path)
    assert run.iteration == last and run.curve == rows
    chex.assert_trees_all_equal(run.best, jax.device_get(whole.best))
    chex.assert_trees_all_equal(run.last, jax.device_get(whole.params))
    with pytest.raises(ValueError, match="holds a run with seed 0, not 1"):
        fit(directory=tmp_path, seed=1)


@pytest.mark.slow
def test_a_fit_refuses_weights_of_another_model():
    others = jax.tree.map(lambda x: x[None], functional(make_model())[0])
    with pytest.raises(ValueError, match="init_params"):
        fit(init_params=others)


@pytest.mark.parametrize("batch_size", [9, 5, 4, 20])
def test_validation_counts_each_position_once(batch_size):
    # Without weights all values are 0 and all logits equal. The value is known at seven of nine
    # positions, and 1 or -1 there; the last positions, with which batches are filled up, are not.
    model, steps = make_model(), timeline_of(played())
    params = jax.tree.map(jnp.zeros_like, functional(model)[0])
    settings = model_fitting.Steps(unroll=1, batch_size=batch_size)
    evaluate = model_fitting._make_evaluate(ENV, model, settings, None, None)
    found = evaluate(params, steps=steps, first=0, num_games=1)
    np.testing.assert_allclose(found["value_loss_0"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found["policy_loss_0"], np.log(9), rtol=1e-6)


@pytest.mark.slow
def test_statistics_that_stay_are_those_of_a_search():
    model, optimizer = make_model(), optax.sgd(0.1)
    params, trainable = shaken(functional(model)[0]), networks.trainable_mask(model)
    update = model_fitting.make_model_update(model, optimizer, trainable, 0.5, 1.0, False)
    unroll = networks.functional_call(model, lambda model, *data: model.unroll(*data))
    steps = unrolls.timeline(jax.tree.map(jnp.asarray, labelled()))

    @jax.jit
    def learned(params):
        batch = unrolls.sample(ENV, steps, jax.random.key(0), 8, 1, 16)
        expected = losses.unroll_loss(*unroll(params, batch.observation, batch.action), batch)[1]
        return update((params, optimizer.init(params)), batch), expected

    ((after, _), parts), expected = learned(params)
    for name, value in expected.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-5, atol=1e-6)
    for new, old, learns in zip(*map(jax.tree.leaves, (after, params, trainable)), strict=True):
        assert learns or (new == old).all()
    kernel = ("representation", "embed", "conv", "kernel")
    assert (
        functools.reduce(dict.get, kernel, after) != functools.reduce(dict.get, kernel, params)
    ).any()


def test_what_does_not_train_has_no_share_in_a_step():
    params = {"weight": jnp.float32(1), "mean": jnp.float32(1), "key": jax.random.key(0)}
    trainable = {"weight": True, "mean": False, "key": False}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0, momentum=0.9))

    def losses_fn(params, target):
        return target * (3 * params["weight"] + 4 * params["mean"]), ({}, params)

    update = iterations.make_update(losses_fn, optimizer, trainable)
    carry = params, iterations.init_optimizer(optimizer, params)
    (after, _), _ = update(carry, 1.0)
    np.testing.assert_allclose([after["weight"], after["mean"]], [0, 1], atol=1e-6)
    # Folders of earlier versions go on: without keys the state is the optimizer's own.
    del params["key"]
    chex.assert_trees_all_equal(
        iterations.init_optimizer(optimizer, params), optimizer.init(params)
    )


def test_a_loss_that_is_no_number_is_told():
    iterations.check_losses({"policy_loss": 1.0, "value_loss": 2.0, "iteration": 7})
    with pytest.raises(FloatingPointError, match=r"value_loss is nan in iteration 7\. Take a sm"):
        iterations.check_losses({"policy_loss": 1.0, "value_loss": np.nan, "iteration": 7})


train = by_name(value_equivalent.train)
TRAIN = {
    "num_games": 8, "num_steps": 4, "buffer_size": 64, "batch_size": 16, "unroll": 1,
    "updates_per_iteration": 2, "evaluate_every": 0, "num_simulations": 4, "checkpoint_every": 1,
    "num_iterations": 3, "keep": 3, "expert": experts.raw_policy(),
}  # fmt: skip


@pytest.mark.lenient  # optax's clipping
def test_a_model_learns_from_nothing():
    state = train(ENV, make_model(), **(TRAIN | {"num_iterations": 1}))
    before, _ = functional(make_model())
    for part in ("representation", "dynamics", "policy_head", "value_head"):
        pairs = zip(jax.tree.leaves(before[part]), jax.tree.leaves(state.params[part]), strict=True)
        assert any((a != b).any() for a, b in pairs), part


@pytest.mark.parametrize("expert", ["extended", "gumbel", "pgs"])
def test_fast_moves_are_searched_by_the_named_expert(monkeypatch, expert):
    monkeypatch.setattr(expert_iteration, "train", lambda *args, **knobs: knobs)
    found = train(ENV, make_model(), **(TRAIN | {"expert": expert, "fast_simulations": 2}))
    told = fingerprint(found["games"].fast_simulations)
    assert told["num_simulations"] == 2
    assert told.get("knobs", {}).get("dirichlet_fraction", 0) == 0


@pytest.mark.slow
def test_a_model_learned_from_nothing_goes_on_bit_equal_after_a_kill(tmp_path):
    rows, resumed_rows = [], []
    run = functools.partial(train, ENV, make_model(), directory=tmp_path, **TRAIN)
    whole = run(callback=lambda state, row: rows.append(row))
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    kept = read_run(tmp_path)
    assert (kept.trainer, kept.iteration, kept.best) == ("expert_iteration", 3, None)
    chex.assert_trees_all_equal(kept.last, jax.device_get(whole.params))
    shutil.rmtree(tmp_path / "3")
    resumed = run(callback=lambda state, row: resumed_rows.append(row))
    assert resumed_rows == rows[2:]
    for a, b in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        is_key = jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
        pair = [jax.random.key_data(x) for x in (a, b)] if is_key else (a, b)
        np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: make_model(Hex(3, swap=True)), "num_actions must be 9; got 10"),
        (lambda: ValueEquivalentModel((9,), 9, rngs=nnx.Rngs(0)), r"\(height, width, planes\)"),
        (lambda: make_model(num_filters=0), "num_filters >= 1, got 0"),
        (lambda: make_model(num_blocks=-1), "num_blocks >= 0, got -1"),
        (lambda: make_model(norm="group"), '"batch", "layer"; got .group'),
        (
            lambda: jaxpgs.make_model_fns(AlphaZeroResNet((3, 3, 3), 9, num_blocks=0, num_filters=1,
                                                          rngs=nnx.Rngs(0))),
            "AlphaZeroResNet lacks represent, transition, predict",
        ),
        (lambda: jaxpgs.make_model_fns(make_model(), SameGame(3, 3)), "players; SameGame has 1"),
        (lambda: jaxpgs.make_model_fns(make_model(), part="torso"), "part to be one of"),
        (lambda: fit(unroll=32 * 9), "unroll of 288 actions needs more steps .* got"),
        (lambda: fit(settle_epochs=-1), "settle_epochs to be .* at least 0; got -1"),
        (lambda: fit(steps_per_epoch=0), "steps_per_epoch must be at least 1, got 0"),
        (lambda: fit(unroll=2.5), "unroll must be a whole number, got 2.5"),
        (
            lambda: labelling.label_games(ENV, None, None, num_games=8.5),
            "num_games must be a whole number, got 8.5",
        ),
        (lambda: fit(held_out=0.0), "held_out to be .* above 0"),
        (lambda: fit(model=make_model(Hex(4))), r"must be of the environment.*got .*\(4, 4, 3\)"),
        (lambda: fit(labelled()._replace(played=None)), "keep_played=True"),
        (lambda: experts.epsilon_greedy(first_legal, 1.5), "epsilon to be .* at most 1; got 1.5"),
        (
            lambda: train(ENV, make_model(), **(TRAIN | {"unroll": 8})),
            "unroll of 8 actions .* buffer_size 64 for 8 games is 8 steps",
        ),
        (
            lambda: train(ENV, make_model(), **(TRAIN | {"unroll": 4, "buffer_size": 63})),
            "unroll of 4 actions .* is 4 steps, in blocks of num_steps 4",
        ),
        (
            lambda: train(ENV, make_model(), **(TRAIN | {"resign_fraction": 0.5})),
            "resign_fraction must be 0, got 0.5",
        ),
        (lambda: played(value_target="label"), '"return", "search", "best"; got .label'),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
