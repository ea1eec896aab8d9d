"""Expert iteration for games of one player."""

import dataclasses
import math
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import one_player
import optax
import pytest
from flax import nnx

from jaxpgs import networks, puzzles
from jaxpgs.envs import SameGame
from jaxpgs.training.puzzles import example_queue, fitting, puzzle_data, puzzle_iteration
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player.losses import asymmetric_square

ENV = SameGame(4, 4, 3)


def make_network(seed):
    return networks.SameGameResNet(
        ENV.observation_shape,
        ENV.num_actions,
        num_filters=16,
        num_blocks=1,
        value_scale=20.0,
        rngs=nnx.Rngs(seed),
    )


def first_solver(params, rng_key, state):
    del params
    return puzzles.plain_mcts(ENV, rng_key, state, 16, follow="best")


def solver(params, rng_key, state):
    apply_fn = networks.functional(make_network(0))[1]
    return puzzles.policy_mcts(
        ENV, apply_fn, params, rng_key, state, 8, dirichlet_fraction=0.25, dirichlet_alpha=0.75
    )


def train(**arguments):
    defaults = {
        "solver": solver, "first_solver": first_solver, "num_iterations": 2, "num_runs": 32,
        "runs_at_once": 32, "batch_size": 32, "max_epochs": 2, "num_test_boards": 0,
        "training_length": 300,
    }  # fmt: skip
    log = []
    callback = arguments.pop("callback", lambda state, metrics: log.append(metrics))
    network = arguments.pop("make_network", make_network)
    state = by_name(puzzle_iteration.train)(
        ENV, network, callback=callback, **(defaults | arguments)
    )
    return state, log


# --- losses and queues ----------------------------------------------------------------------------


def test_asymmetric_square_by_hand():
    target, value = jnp.array([3.0, 3.0, 1.0]), jnp.array([1.0, 3.0, 4.0])
    np.testing.assert_allclose(asymmetric_square(target, value), [4, 0, 9])
    np.testing.assert_allclose(asymmetric_square(target, value, under=0.5, over=2.0), [2, 0, 18])


@pytest.mark.slow
def test_the_weight_of_the_value_is_a_factor_over_its_largest_square():
    factor = 100.0
    state = jax.jit(jax.vmap(ENV.init))(jax.random.split(jax.random.key(0), 4))
    action = jnp.argmax(state.legal_action_mask, axis=-1).astype(jnp.int32)
    examples = fitting.Examples(state, action, jnp.array([8.0, -40.0, 3.0, 0.0]))
    module = make_network(0)
    params, apply_fn = networks.functional(module)
    fit = fitting.make_fit(
        ENV, module, optax.sgd(0.0), batch_size=4, max_epochs=1, patience=None, learns_value=True,
        value_factor=factor, under=0.5, over=2.0,
    )  # fmt: skip
    same, _, metrics = fit(
        params, optax.sgd(0.0).init(params), (examples, 4), (examples, 4), jax.random.key(0),
        np.random.default_rng(0),
    )  # fmt: skip
    chex.assert_trees_all_equal(same, params)
    logits, value = jax.jit(lambda: apply_fn(params, jax.vmap(ENV.observe)(state)))()
    error = np.asarray(examples.value) - np.asarray(value)
    weight = np.where(error >= 0, 0.5, 2.0) * factor / 40**2
    assert metrics["value_loss"] == pytest.approx((weight * error**2).mean(), rel=1e-4)
    assert metrics["validation_value_loss"] == pytest.approx(metrics["value_loss"], rel=1e-4)
    # Eq. 5.4, of the groups: the probability of one is the sum over its cells (section 5.4.2).
    share = np.exp(np.asarray(logits))
    total = 0
    for b, labels in enumerate(np.asarray(jax.jit(jax.vmap(ENV.group_labels))(state))):
        chosen = share[b][labels == int(action[b])].sum()
        total -= np.log(chosen / share[b][labels >= 0].sum())
    assert metrics["policy_loss"] == pytest.approx(total / 4, rel=1e-4)


@pytest.mark.slow
def test_every_other_example_is_mirrored():
    module = make_network(0)
    params, apply_fn = networks.functional(module)
    state = jax.jit(ENV.init)(jax.random.key(2))
    action = jnp.argmax(state.legal_action_mask).astype(jnp.int32)
    pair = jax.tree.map(
        lambda *x: jnp.stack(x), (state, action), jax.jit(ENV.mirror)(state, action)
    )
    logits, _ = jax.jit(lambda: apply_fn(params, jax.vmap(ENV.observe)(pair[0])))()
    share, total = np.exp(np.asarray(logits)), []
    for b, labels in enumerate(np.asarray(jax.jit(jax.vmap(ENV.group_labels))(pair[0]))):
        chosen = share[b][labels == int(pair[1][b])].sum()
        total.append(-np.log(chosen / share[b][labels >= 0].sum()))
    assert abs(total[0] - total[1]) > 1e-3  # the network is not symmetric by itself
    same = jax.tree.map(lambda x: jnp.stack([x] * 4), fitting.Examples(state, action, 8.0))
    for augment, expected in ((False, total[0]), (True, np.mean(total))):
        fit = fitting.make_fit(
            ENV, module, optax.sgd(0.0), batch_size=4, max_epochs=1, patience=None,
            learns_value=True, augment=augment,
        )  # fmt: skip
        *_, metrics = fit(
            params, optax.sgd(0.0).init(params), (same, 4), (same, 4), jax.random.key(0),
            np.random.default_rng(0),
        )  # fmt: skip
        assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-4)


def test_queues_drop_the_oldest():
    queue = example_queue.empty(jax.eval_shape(ENV.init, jax.random.key(0)), 5)
    for first in (0, 3, 6):
        state = jax.jit(jax.vmap(ENV.init))(jax.random.split(jax.random.key(first), 3))
        number = np.arange(first, first + 3, dtype=np.int32)
        examples = fitting.Examples(jax.device_get(state), number, number.astype(np.float32))
        queue = example_queue.append(queue, examples)
    assert int(queue.size) == 5
    np.testing.assert_array_equal(queue.examples.action, [4, 5, 6, 7, 8])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dealt(one_player.State):
    """A state with a random key."""

    key: jax.Array


def test_states_may_hold_random_keys():
    begun = jax.vmap(lambda key: Dealt(**vars(one_player.begin(None, 2)), key=key))
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 4)
    states = begun(keys)

    class Deal:
        init = staticmethod(lambda key: jax.tree.map(lambda x: x[0], states))

    whole = jnp.ones((1, 4), jnp.int32)
    reals, searched = whole.astype(jnp.float32), whole.astype(bool)
    searches = puzzles.Searches(
        jax.tree.map(lambda x: x[None], states), whole, reals, reals, searched, reals, whole
    )
    solution = puzzles.Solution(reals[0], whole.T, whole[0], reals[0], searches)
    found, _ = puzzle_data.search_boards(
        Deal, lambda *_: solution, None, jax.random.key(0), 8, 4, "q"
    )
    assert (found.state.key == jnp.concatenate([keys, keys])).all()
    queue = example_queue.empty(jax.eval_shape(lambda: Deal.init(None)), 6)
    queue = example_queue.append(queue, jax.tree.map(lambda x: x[:4], found))
    assert int(queue.size) == 4 and (queue.examples.state.key[:4] == keys).all()
    queue = example_queue.append(queue, jax.tree.map(lambda x: x[4:], found))
    # The two oldest are dropped.
    assert (queue.examples.state.key == jnp.concatenate([keys[2:], keys])).all()


# --- training -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_improves_the_policy():
    state, log = train(
        num_runs=64, first_runs=256, training_length=5000, max_epochs=12, batch_size=64,
        fresh_weights=False, patience=2, optimizer=optax.adam(6e-3), num_test_boards=1000,
    )  # fmt: skip
    last = log[-1]
    assert int(state.iteration) == 2 and last["iteration"] == 2
    assert last["policy_loss"] < 0.9 * np.log(16)
    # Means of 1000 games each. Scores spread by less than 450, so were the policies equal, a
    # difference of 61 would be 3 standard errors: a false alarm in 700 runs.
    assert last["greedy_score"] > last["random_score"] + 61


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_by_bit(tmp_path):
    whole, _ = train(directory=tmp_path)
    shutil.rmtree(tmp_path / "2")  # as if it had been stopped after the first iteration
    resumed, log = train(directory=tmp_path)
    assert [row["iteration"] for row in log] == [2]
    chex.assert_trees_all_equal(resumed, whole)
    with pytest.raises(ValueError, match="seed"):
        train(directory=tmp_path, seed=1)


@pytest.mark.slow
def test_training_goes_on_from_given_weights():
    still = optax.sgd(0.0)
    given = jax.tree.map(lambda x: x + 1.0, networks.functional(make_network(0))[0])
    # The first iteration takes them, even where later ones begin anew.
    state, _ = train(num_iterations=1, init_params=given, optimizer=still, fresh_weights=True)
    chex.assert_trees_all_equal(state.params, given)
    with pytest.raises(ValueError, match="init_params"):
        train(num_iterations=1, init_params=jax.tree.map(lambda x: x[None], given))


class Dropped(nnx.Module):
    """Its state has a key and a counter."""

    def __init__(self, seed):
        rngs = nnx.Rngs(seed)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(math.prod(ENV.observation_shape), ENV.num_actions, rngs=rngs)

    def __call__(self, observation):
        logits = self.head(self.dropout(observation.reshape(len(observation), -1)))
        return logits, logits[:, 0]


@pytest.mark.slow
def test_a_network_may_drop_units():
    first = networks.functional(Dropped(0))[0]
    state, _ = train(
        solver=first_solver, make_network=Dropped, num_iterations=1, num_runs=4, runs_at_once=4,
        training_length=100, max_epochs=1,
    )  # fmt: skip
    assert (state.params["head"]["kernel"] != first["head"]["kernel"]).any()


@pytest.mark.slow
def test_value_targets():
    boards, key, (params, _) = 32, jax.random.key(0), networks.functional(make_network(0))
    states = jax.jit(jax.vmap(ENV.init))(jax.random.split(key, boards))
    solution = jax.device_get(jax.jit(first_solver)(params, key, states))
    for target in ("return", "q"):
        found, metrics = puzzle_data.search_boards(
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


@pytest.mark.slow
def test_games_that_are_cut_teach_nothing():
    cut = lambda params, key, state: puzzles.random_games(ENV, key, state, max_moves=1)  # noqa: E731
    with pytest.raises(ValueError, match="none was played to its end"):
        # Any seed that jax.random.key takes.
        train(first_solver=cut, num_iterations=1, num_runs=2, runs_at_once=2, seed=-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_runs": 30}, "runs_at_once must divide"),
        ({"value_target": "z"}, "value_target to be one of"),
        ({"num_test_boards": -1}, "num_test_boards to be a finite number at least 0; got -1"),
        ({"validation_share": 1.0}, "validation_share must be between"),
        ({"max_epochs": 0}, "max_epochs must be at least 1, got 0"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**arguments)
