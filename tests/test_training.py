"""Self-play and the training loop, on 3x3 Hex."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpgs
from jaxpgs.envs import Hex
from jaxpgs.evaluation import perfect_hex, play_match, raw_network
from jaxpgs.networks import FullyConnectedResNet, functional
from jaxpgs.training import expert_iteration, losses, selfplay

ENV = Hex(3)
TINY = {"num_games": 8, "num_steps": 4, "batch_size": 16, "updates_per_iteration": 2}


def make_network(width=32):
    return FullyConnectedResNet(
        ENV.observation_shape, ENV.num_actions, width=width, num_blocks=1, rngs=nnx.Rngs(0)
    )


def first_legal(params, rng_key, root, recurrent_fn, invalid_actions):
    """An expert known by heart: it plays the first empty cell and values everything 0.25."""
    action = jnp.argmin(invalid_actions, axis=-1)
    policy = jax.nn.one_hot(action, invalid_actions.shape[-1])
    return selfplay.Decision(action, policy, jnp.full(action.shape, 0.25))


def test_value_targets_are_results_from_the_movers_view():
    _, apply_fn = functional(make_network())
    params, _ = functional(make_network())
    start = jax.vmap(lambda _: ENV.init())(jnp.arange(1))
    # From the empty board both sides fill cells in order: 0 1 2 3 4 5 6. Player 0's cells
    # 0, 2, 4, 6 hold 6-4-2, which joins row 2 with row 0, so the seventh move wins.
    _, seen = selfplay.play(ENV, apply_fn, first_legal, params, jax.random.key(0), start, 9)
    np.testing.assert_array_equal(seen.value[:7, 0], [1, -1, 1, -1, 1, -1, 1])
    # A new game began; its last position is cut off, so the search's value stands in.
    np.testing.assert_allclose(seen.value[7:, 0], [-0.25, 0.25])
    assert seen.observation[7, 0, ..., :2].sum() == 1, "the new game has one random stone"


def test_policy_target_is_in_the_networks_frame():
    _, apply_fn = functional(make_network())
    params, _ = functional(make_network())
    start = jax.vmap(lambda _: ENV.init())(jnp.arange(1))
    _, seen = selfplay.play(ENV, apply_fn, first_legal, params, jax.random.key(0), start, 2)
    # Player 1 plays cell 1 = (0, 1), which is (1, 0) = cell 3 on its transposed board.
    np.testing.assert_array_equal(jnp.argmax(seen.policy[:, 0], axis=-1), [0, 3])
    np.testing.assert_array_equal(seen.legal[1, 0], np.arange(9) != 0)


def test_symmetries_keep_the_solution():
    rng = np.random.default_rng(0)
    for _ in range(20):
        state = ENV.init()
        for action in rng.permutation(9)[: rng.integers(0, 4)]:
            state = ENV.step(state, action)
        policy = jaxpgs.evaluation.solve_hex(ENV, state).winning_moves.astype(np.float32)
        frame = ENV.network_policy(state, policy)
        (_, _), (turned_observation, turned_policy) = ENV.symmetries(ENV.observe(state), frame)
        board = np.asarray(turned_observation[..., 0] + 2 * turned_observation[..., 1], int)
        if state.current_player == 1:  # the mover's stones are 1 in the frame, whoever it is
            board = np.where(board == 0, 0, 3 - board).T
        turned = ENV.from_board(board)
        expected = jaxpgs.evaluation.solve_hex(ENV, turned).winning_moves
        np.testing.assert_array_equal(ENV.policy_logits(turned, turned_policy), expected)


def test_random_starts_are_unfinished_and_spread():
    states = selfplay.init_games(ENV, jax.random.key(0), 400, max_random_moves=6)
    assert not states.terminated.any()
    counts = np.bincount((states.labels != 0).sum(axis=-1), minlength=8)
    assert counts[0] == 0
    # Half the games start after one move, and a sixth of the other half: 233 expected. The bounds
    # are four standard deviations (9.9 each), an error rate below 1e-4.
    assert 193 < counts[1] < 273
    assert (counts[2:6] > 0).all()


def test_loss_against_a_hand_computed_case():
    target = selfplay.Experience(
        observation=jnp.zeros((1, 3)),
        legal=jnp.array([[True, True, False]]),
        policy=jnp.array([[1.0, 0.0, 0.0]]),
        value=jnp.array([1.0]),
    )
    # The illegal action's logit does not count: softmax of (0, log 3) is (1/4, 3/4).
    logits = jnp.array([[0.0, jnp.log(3.0), 50.0]])
    loss, parts = losses.policy_value_loss(logits, jnp.array([0.5]), target, value_weight=2.0)
    np.testing.assert_allclose(parts["policy_loss"], np.log(4), rtol=1e-6)
    np.testing.assert_allclose(loss, np.log(4) + 2 * 0.25, rtol=1e-6)


@pytest.mark.parametrize(
    "expert",
    [
        selfplay.gumbel(4),
        selfplay.searcher(jaxpgs.mcs_policy, 8, simulations_per_update=4, max_depth=4),
        selfplay.searcher(
            functools.partial(
                jaxpgs.pgs_policy, adapt=lambda path, _: path[0].key == "policy_head"
            ),
            8,
            simulations_per_update=4,
            max_depth=4,
            dirichlet_fraction=0.25,
        ),
    ],
    ids=["gumbel", "mcs", "pgs"],
)
def test_any_search_can_be_the_expert(expert):
    seen = []
    state = expert_iteration.train(
        ENV,
        make_network(),
        expert=expert,
        num_iterations=2,
        callback=lambda _, metrics: seen.append(metrics),
        **TINY,
    )
    assert [m["iteration"] for m in seen] == [1, 2]
    assert all(np.isfinite(list(m.values())).all() for m in seen)
    before, _ = functional(make_network())
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, state.params)
    assert moved["policy_head"]["linear"]["kernel"]
    assert moved["value_head"]["linear"]["kernel"]


def test_resumed_training_ends_bit_equal(tmp_path):
    run = functools.partial(
        expert_iteration.train, ENV, make_network(), expert=selfplay.gumbel(2), **TINY
    )
    whole = run(num_iterations=5)
    stopped = run(
        num_iterations=5,
        directory=tmp_path,
        checkpoint_every=2,
        callback=lambda _, metrics: metrics["iteration"] == 3,
    )
    assert int(stopped.iteration) == 3
    resumed = run(num_iterations=5, directory=tmp_path)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="another run"):
        expert_iteration.train(
            ENV, make_network(width=16), expert=selfplay.gumbel(2), directory=tmp_path, **TINY
        )


def test_learns_3x3_from_nothing():
    state = expert_iteration.train(
        ENV, make_network(64), expert=selfplay.gumbel(8), num_iterations=60, num_games=128,
        num_steps=8, batch_size=256, updates_per_iteration=16, max_random_moves=4,
    )  # fmt: skip
    _, apply_fn = functional(make_network(64))
    match = play_match(
        ENV, raw_network(ENV, apply_fn, state.params), perfect_hex(ENV), jax.random.key(0)
    )
    # Against a perfect player exactly one side of every opening can win, so 9 of 18 is perfect.
    # Arithmetic differs between machines, hence room for one slip.
    assert match.wins >= 8


def test_bad_counts_are_named():
    with pytest.raises(ValueError, match="num_games must be at least 1, got 0"):
        expert_iteration.train(ENV, make_network(), num_games=0)
