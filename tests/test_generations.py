"""Training for games of one player in generations."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpgs
from jaxpgs import networks, puzzles
from jaxpgs.envs import SameGame
from jaxpgs.training import fitting, generations
from jaxpgs.training.losses import asymmetric_square

ENV = SameGame(4, 4, 3)


def make_network(seed, heads="policy"):
    return networks.SameGameCNN(
        ENV.observation_shape,
        ENV.num_actions,
        num_filters=16,
        num_layers=6,
        heads=heads,
        pooling=False,
        value_scale=20.0,
        rngs=nnx.Rngs(seed),
    )


def first_player(params, rng_key, state):
    del params
    return puzzles.plain_mcts(ENV, rng_key, state, 16, follow="best")


def player(params, rng_key, state):
    apply_fn = networks.functional(make_network(0))[1]
    return puzzles.policy_mcts(
        ENV, apply_fn, params, rng_key, state, 8, dirichlet_fraction=0.25, dirichlet_alpha=0.75
    )


def train(**arguments):
    defaults = {
        "player": player, "first_player": first_player, "num_generations": 2, "num_runs": 32,
        "runs_at_once": 16, "batch_size": 32, "max_epochs": 2, "num_test_boards": 0,
        "training_length": 300,
    }  # fmt: skip
    log = []
    callback = arguments.pop("callback", lambda state, metrics: log.append(metrics))
    state = generations.train(ENV, make_network, callback=callback, **(defaults | arguments))
    return state, log


# --- the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count"), [(7, 459_569), (10, 790_820), (15, 2_814_945)])
def test_parameters_are_as_many_as_the_thesis_says(size, count):
    env = SameGame(size, size, 5)
    module = nnx.eval_shape(
        lambda: networks.SameGameCNN(env.observation_shape, env.num_actions, rngs=nnx.Rngs(0))
    )
    assert sum(x.size for x in jax.tree.leaves(nnx.state(module))) == count


def test_heads_of_the_network():
    observation = jax.vmap(ENV.observe)(jax.vmap(ENV.init)(jax.random.split(jax.random.key(0), 3)))
    for heads in ("policy", "policy_value"):
        params, apply_fn = networks.functional(make_network(1, heads))
        logits, value = jax.jit(apply_fn)(params, observation)
        assert logits.shape == (3, 16) and value.shape == (3,)
        assert (np.asarray(value) == 0).all() == (heads == "policy")
        head = networks.policy_head(params)
        assert all(jax.tree.leaves(head["policy_head"])) and not any(jax.tree.leaves(head["torso"]))
        assert isinstance(apply_fn, networks.SplitApplyFn)
    pooled = networks.SameGameCNN(
        (5, 5, 4), 25, num_filters=8, heads="policy_value", rngs=nnx.Rngs(0)
    )
    assert pooled.torso(jnp.zeros((2, 5, 5, 4))).shape == (2, 8)
    for arguments, message in (
        ({"num_layers": 5}, "num_layers > 5, got 5"),
        ({"heads": "value"}, "must be one of"),
        ({"num_filters": 0}, "num_filters >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            networks.SameGameCNN((5, 5, 4), 25, **arguments, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="at least 3"):
        networks.SameGameCNN((1, 9, 4), 9, rngs=nnx.Rngs(0))


def test_the_registry_knows_the_network(tmp_path):
    module = make_network(2, "policy_value")
    params, apply_fn = networks.functional(module)
    jaxpgs.save_pretrained(tmp_path, "tiny", env=ENV, module=module, params=params)
    loaded = jaxpgs.load_pretrained("tiny", directory=tmp_path)
    assert loaded.env == ENV
    observation = jnp.ones((2, *ENV.observation_shape))
    chex.assert_trees_all_equal(
        loaded.apply_fn(loaded.params, observation), apply_fn(params, observation)
    )


# --- losses and queues ----------------------------------------------------------------------------


def test_asymmetric_square_by_hand():
    target, value = jnp.array([3.0, 3.0, 1.0]), jnp.array([1.0, 3.0, 4.0])
    np.testing.assert_allclose(asymmetric_square(target, value), [4, 0, 9])
    np.testing.assert_allclose(asymmetric_square(target, value, under=0.5, over=2.0), [2, 0, 18])


def test_the_weight_of_the_value_is_16_over_its_largest_square():
    state = jax.vmap(ENV.init)(jax.random.split(jax.random.key(0), 4))
    action = jnp.argmax(state.legal_action_mask, axis=-1).astype(jnp.int32)
    examples = fitting.Examples(state, action, jnp.array([8.0, -40.0, 3.0, 0.0]))
    module = make_network(0, "policy_value")
    params, apply_fn = networks.functional(module)
    fit = fitting.make_fit(
        ENV, module, optax.sgd(0.0), batch_size=4, max_epochs=1, patience=None, learns_value=True,
        under=0.5, over=2.0,
    )  # fmt: skip
    same, _, metrics = fit(
        params, optax.sgd(0.0).init(params), (examples, 4), (examples, 4), jax.random.key(0),
        np.random.default_rng(0),
    )  # fmt: skip
    chex.assert_trees_all_equal(same, params)
    logits, value = apply_fn(params, jax.vmap(ENV.observe)(state))
    error = np.asarray(examples.value) - np.asarray(value)
    weight = np.where(error >= 0, 0.5, 2.0) * 16 / 40**2
    assert metrics["value_loss"] == pytest.approx((weight * error**2).mean(), rel=1e-4)
    assert metrics["validation_value_loss"] == pytest.approx(metrics["value_loss"], rel=1e-4)
    # Eq. 5.4, of the groups: the probability of one is the sum over its cells (section 5.4.2).
    share = np.exp(np.asarray(logits))
    total = 0
    for b in range(4):
        labels = np.asarray(ENV.group_labels(jax.tree.map(lambda x, b=b: x[b], state)))
        chosen = share[b][labels == int(action[b])].sum()
        total -= np.log(chosen / share[b][labels >= 0].sum())
    assert metrics["policy_loss"] == pytest.approx(total / 4, rel=1e-4)


def test_queues_drop_the_oldest():
    queue = generations._empty(jax.eval_shape(ENV.init, jax.random.key(0)), 5)
    for first in (0, 3, 6):
        state = jax.vmap(ENV.init)(jax.random.split(jax.random.key(first), 3))
        number = np.arange(first, first + 3, dtype=np.int32)
        examples = fitting.Examples(jax.device_get(state), number, number.astype(np.float32))
        queue = generations._append(queue, examples)
    assert int(queue.size) == 5
    np.testing.assert_array_equal(queue.examples.action, [4, 5, 6, 7, 8])


# --- training -------------------------------------------------------------------------------------


def test_training_improves_the_policy():
    state, log = train(
        num_runs=128, first_runs=768, runs_at_once=128, training_length=5000, max_epochs=20,
        fresh_weights=False, patience=4, optimizer=optax.adam(3e-3), num_test_boards=6000,
    )  # fmt: skip
    last = log[-1]
    assert int(state.generation) == 2 and last["iteration"] == 2
    assert last["policy_loss"] < 0.9 * np.log(16)
    # Means of 6000 games each. Scores spread by less than 450, so were the policies equal, a
    # difference of 25 would be 3 standard errors: a false alarm in 700 runs.
    assert last["greedy_score"] > last["random_score"] + 25


def test_a_stopped_run_goes_on_bit_by_bit(tmp_path):
    stop = lambda state, metrics: True  # noqa: E731
    whole, _ = train()
    train(directory=tmp_path, callback=stop)
    resumed, log = train(directory=tmp_path)
    assert [row["iteration"] for row in log] == [2]
    chex.assert_trees_all_equal(resumed, whole)
    with pytest.raises(ValueError, match="seed"):
        train(directory=tmp_path, seed=1)


def test_training_goes_on_from_given_weights():
    still = optax.sgd(0.0)
    given = jax.tree.map(lambda x: x + 1.0, networks.functional(make_network(0))[0])
    for fresh in (True, False):  # the first generation takes them either way
        state, _ = train(
            num_generations=1, init_params=given, optimizer=still, fresh_weights=fresh
        )  # fmt: skip
        chex.assert_trees_all_equal(state.params, given)
    state, _ = train(num_generations=1, optimizer=still)
    chex.assert_trees_all_equal(state.params, networks.functional(make_network(0))[0])


def test_value_targets():
    solution = jax.device_get(
        jax.jit(lambda key: first_player(
            None, key, jax.vmap(ENV.init)(jax.random.split(key, 16))
        ))(jax.random.key(0))
    )  # fmt: skip
    boards = 16
    for target in ("return", "q"):
        found, metrics = generations._search(
            ENV, lambda *_: solution, None, jax.random.key(0), boards, boards, target
        )
        keep = solution.searches.searched
        value = solution.searches.value
        if target == "return":  # eq. 6.2: of the first position it is the whole score
            value = solution.played[None] - solution.searches.score
            first = keep[0]
            np.testing.assert_allclose(value[0][first], solution.played[first])
        np.testing.assert_allclose(found.value, value[keep])
        assert metrics["score"] == pytest.approx(solution.score.mean())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_runs": 30}, "runs_at_once must divide"),
        ({"value_target": "z"}, "value_target must be one of"),
        ({"validation_share": 1.0}, "validation_share must be between"),
        ({"max_epochs": 0}, "max_epochs must be at least 1, got 0"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**arguments)
