"""REINFORCE against a pencil and against finite differences, and what is adapted goes on."""

import functools
import math
from typing import Any, NamedTuple

import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from bandits import bandit, keys

import jaxpgs
from jaxpgs.base import Trajectory
from jaxpgs.search.parts.truncation import Truncation

both_modes = pytest.mark.parametrize("mode", ["rollouts", "tree"])


# --- REINFORCE against a pencil -------------------------------------------------------------------
#
# A binary tree; the first action is 0 because the root forbids 1. The nodes on the way have
#
#   node 1: feature (1, 0), logits (ln 3, 0), policy (3/4, 1/4)
#   node 3: feature (0, 1), logits (0, 0),    policy (1/2, 1/2)
#   node 4: feature (0, 2), logits (0, 0),    policy (1/2, 1/2)
#
# The gradient of log pi(a | s) in the head is the outer product of s's feature and
# `onehot(a) - pi(s)`: in node 1 the first row is (1/4, -1/4) for a = 0 and (-3/4, 3/4) for a = 1;
# in node 3 the second row is (1/2, -1/2) or (-1/2, 1/2), in node 4 twice that. It is multiplied by
# the return of the player who acts there. The root's feature would show in the head, too, if the
# first action were reinforced.


def pencil_game(discount):
    features = np.zeros((15, 2))
    features[0] = [3, 5]
    features[1], features[3], features[4] = [1, 0], [0, 1], [0, 2]
    value = np.zeros(15)
    value[3], value[4] = 0.75, -0.5
    value[7], value[8], value[9], value[10] = 0.5, -0.25, 1.0, -0.125
    head = [[np.log(3), 0], [0, 0]]
    return toy.tree(2, 3, discount=discount, features=features, head=head, value=value)


# One player, three steps, discount 1: both later actions are weighed by the leaf's value V.
THREE_STEPS = {
    0.5: [[0.125, -0.125], [0.25, -0.25]],  # actions 0, 0, V = 1/2
    -0.25: [[-0.0625, 0.0625], [0.125, -0.125]],  # actions 0, 1, V = -1/4
    1.0: [[-0.75, 0.75], [1.0, -1.0]],  # actions 1, 0, V = 1
    -0.125: [[0.09375, -0.09375], [0.125, -0.125]],  # actions 1, 1, V = -1/8
}
# Two players: the leaf is seen by the second player, who acts in node 1; the first acts in node 0
# and in nodes 3 and 4. So the second row changes its sign, and so does the reported return.
THREE_STEPS_TWO_PLAYERS = {
    -leaf: [row1, [-row2[0], -row2[1]]] for leaf, (row1, row2) in THREE_STEPS.items()
}
# Two steps, one player: the values of nodes 3 and 4 are 3/4 and -1/2.
TWO_STEPS = {
    0.75: [[0.1875, -0.1875], [0, 0]],  # action 0: 3/4 (1/4, -1/4)
    -0.5: [[0.375, -0.375], [0, 0]],  # action 1: -1/2 (-3/4, 3/4)
}
# Two steps, two players: the second acts in node 1, the first is to move in nodes 3 and 4. The
# return in node 1 is -V, in the root +V.
TWO_STEPS_TWO_PLAYERS = {
    leaf: [[-row[0], -row[1]], zero] for leaf, (row, zero) in TWO_STEPS.items()
}


def run(params, seed, adapted, rate, num_simulations, horizon=3, mode="rollouts"):
    """16 searches from the root, of one update or of updates of two, whose first action is 0."""
    return toy.pgs(
        params,
        keys(seed, 16),
        toy.root(params, [0] * 16),
        jnp.tile(jnp.array([[0, 1]]), (16, 1)),
        adapted,
        rate,
        horizon,
        num_simulations=num_simulations,
        simulations_per_update=min(num_simulations, 2),
        mode=mode,
    ).search_state


hand_gradients = pytest.mark.parametrize(
    ("discount", "horizon", "gradient_of"),
    [
        (1.0, 3, THREE_STEPS),
        (-1.0, 3, THREE_STEPS_TWO_PLAYERS),
        (1.0, 2, TWO_STEPS),
        (-1.0, 2, TWO_STEPS_TWO_PLAYERS),
        (1.0, 1, {0.0: [[0, 0], [0, 0]]}),  # only the bandit's action
    ],
)


@functools.cache
def one_update(mode, discount, horizon):
    """The game and what 16 searches of one simulation know, with steps of 1/8."""
    params = pencil_game(discount)
    return params, run(params, 1, None, 0.125, 1, horizon, mode)


def gradients_by_hand(state, gradient_of):
    """The gradient `[16, 2, 2]` of each search; the return of a simulation tells its actions."""
    return np.array([gradient_of[value] for value in np.asarray(state.value).tolist()])


@pytest.mark.first_case
@both_modes
@hand_gradients
def test_one_update_is_the_hand_gradient(mode, discount, horizon, gradient_of):
    params, state = one_update(mode, discount, horizon)
    moved = np.asarray(params["head"]) + 0.125 * gradients_by_hand(state, gradient_of)
    np.testing.assert_allclose(state.params["head"], moved, atol=1e-6)


@pytest.mark.first_case
@both_modes
@hand_gradients
def test_every_sequence_of_actions_comes_up(mode, discount, horizon, gradient_of):
    _, state = one_update(mode, discount, horizon)
    assert set(np.asarray(state.value).tolist()) == set(gradient_of)


@pytest.mark.first_case
@both_modes
@hand_gradients
def test_the_norm_of_the_gradient_is_told(mode, discount, horizon, gradient_of):
    _, state = one_update(mode, discount, horizon)
    norm = np.sqrt((gradients_by_hand(state, gradient_of) ** 2).sum((1, 2)))
    np.testing.assert_allclose(state.gradient_norm, norm, rtol=1e-5, atol=1e-7)
    assert not state.skipped_updates.any()


@pytest.mark.first_case
@both_modes
@hand_gradients
def test_nothing_but_the_head_adapts(mode, discount, horizon, gradient_of):
    del gradient_of
    _, state = one_update(mode, discount, horizon)
    assert all(leaf is None for name, leaf in state.params.items() if name != "head")


@pytest.mark.first_case
@both_modes
@hand_gradients
def test_each_step_is_an_evaluation_and_a_call(mode, discount, horizon, gradient_of):
    del gradient_of
    _, state = one_update(mode, discount, horizon)
    np.testing.assert_array_equal(state.num_evaluations, horizon)
    np.testing.assert_array_equal(state.depth, horizon)
    assert state.num_calls == horizon


@pytest.mark.first_case
@both_modes
@pytest.mark.parametrize("horizon", [2, 3])
@pytest.mark.parametrize("discount", [1.0, -1.0])
def test_entropy_is_the_mean_over_states_of_the_simulation_policy(mode, discount, horizon):
    _, state = one_update(mode, discount, horizon)
    # Node 1 has the policy (3/4, 1/4), nodes 3 and 4 have (1/2, 1/2).
    first, second = -0.75 * np.log(0.75) - 0.25 * np.log(0.25), np.log(2)
    expected = first if horizon == 2 else (first + second) / 2
    np.testing.assert_allclose(state.entropy, expected, rtol=1e-5)


@pytest.mark.first_case
@both_modes
@pytest.mark.parametrize("discount", [1.0, -1.0])
def test_gradients_of_one_update_add_up(mode, discount):
    params = pencil_game(discount)
    state = run(params, 2, toy.start(params, 16), 0.125, 2, mode=mode)
    one = THREE_STEPS if discount == 1 else THREE_STEPS_TWO_PLAYERS
    # Sums of two of the values are all different, so they tell both simulations.
    gradient_of = {a + b: np.array(one[a]) + np.array(one[b]) for a in one for b in one if a <= b}
    total = (2 * np.asarray(state.value)).tolist()
    assert len(set(total)) >= 5
    moved = np.asarray(params["head"]) + 0.125 * np.array([gradient_of[value] for value in total])
    np.testing.assert_allclose(state.params["head"], moved, atol=1e-6)


# --- REINFORCE against finite differences ---------------------------------------------------------

BASELINES = ("none", "value", "root")


@functools.partial(jax.jit, static_argnums=4, compiler_options=games.QUICK)
def walk_gradients(params, rng_keys, first, root_value, mode):
    """One update's trajectory `[4, B, K]`, returns, and gradient `[B, F, A]` for each baseline."""
    # Walk k of every root stops after k + 1 steps at the latest.
    truncation = Truncation(lambda path: path.depth > path.simulation)
    game = toy.Simulator(params, truncation, 4, 4, mode, 3, ["log_prob"], 1)
    simulated = game.run(game.carry.memory, rng_keys, first)
    trajectory = simulated.trajectory
    returns = jaxpgs.backup.n_step()(trajectory)
    stats = bandit(np.zeros((4, 3)), np.zeros((4, 3)), value=root_value)

    def gradient(baseline):
        def objective(terms):
            walked = trajectory._replace(**terms._asdict())
            return jaxpgs.estimator.reinforce(baseline)(stats, walked, returns).sum()

        return simulated.gradient(jax.grad(objective)(trajectory.terms))

    return trajectory, returns, jnp.stack([gradient(baseline) for baseline in BASELINES])


def surrogate(params, head, walks, baseline, root_value):
    """`sum (G_t - b_t) log pi(a_t | s_t)` over t >= 1 and its returns, in float64 NumPy."""
    total, all_returns = 0.0, []
    for actions in walks:
        nodes = [toy.node_of(3, actions[:t]) for t in range(len(actions) + 1)]
        steps = list(zip(nodes[:-1], actions, strict=True))
        discounts = [float(params["discount"][s, a]) for s, a in steps]
        after = float(params["value"][nodes[-1]])
        returns = []
        for (s, a), discount in zip(reversed(steps), reversed(discounts), strict=True):
            after = float(params["reward"][s, a]) + discount * after
            returns.insert(0, after)
        all_returns.append(returns)
        for t in range(1, len(actions)):
            logits = np.asarray(params["torso"][nodes[t]], np.float64) @ head
            log_policy = logits - np.log(np.exp(logits).sum())
            sign = np.prod(np.sign(discounts[:t]))
            b = {"none": 0, "value": float(params["value"][nodes[t]]), "root": sign * root_value}
            total += (returns[t] - b[baseline]) * log_policy[actions[t]]
    return total, all_returns


FIRST = np.array([[0, 1, 2], [1, 1, 1], [2, 2, 0], [0, 0, 0]])  # [B, K] the first actions
ROOT_VALUE = np.array([0.3, -0.6, 0.9, -0.2])
all_modes = pytest.mark.parametrize("mode", ["rollouts", "whole", "tree"])
discounts = pytest.mark.parametrize("discount", [1.0, 0.9, -1.0])


class Walked(NamedTuple):
    """Twelve walks in a random game; `actions[b][k]` are those of walk k of root b."""

    params: Any
    trajectory: Trajectory
    returns: np.ndarray
    gradients: np.ndarray
    actions: list[list[list[int]]]


@functools.cache
def random_walks(discount, mode):
    """Walks in a game of random numbers, in which a fifth of the inner steps end the game."""
    rng = np.random.default_rng(3)
    nodes = 40
    params = toy.tree(
        3, 3, discount=discount, features=rng.normal(size=(nodes, 2)), head=rng.normal(size=(2, 3)),
        value=rng.uniform(-1, 1, nodes),  # all different, so a value tells the node
        reward=rng.uniform(-1, 1, (nodes, 3)),
    )  # fmt: skip
    goes_on = jnp.asarray(rng.random((12, 3)) > 0.2, jnp.float32)
    params["discount"] = params["discount"].at[1:13].multiply(goes_on)
    root_value = jnp.asarray(ROOT_VALUE, jnp.float32)
    found = walk_gradients(params, keys(4, 4), jnp.asarray(FIRST), root_value, mode)
    params, (trajectory, returns, gradients) = jax.device_get((params, found))
    node_at = {float(value): node for node, value in enumerate(params["value"])}
    last = trajectory.depth - 1
    actions = [
        [toy.actions_to(3, node_at[float(trajectory.value[last[b, k], b, k])]) for k in range(3)]
        for b in range(4)
    ]
    return Walked(params, trajectory, returns, gradients, actions)


@pytest.mark.first_case
@all_modes
@discounts
def test_walks_stop_at_their_bound_or_where_the_game_ends(mode, discount):
    walked = random_walks(discount, mode)
    trajectory = walked.trajectory
    for b, k in np.ndindex(4, 3):
        depth, actions = int(trajectory.depth[b, k]), walked.actions[b][k]
        ended = float(trajectory.discount[depth - 1, b, k]) == 0
        # Walk k has k + 1 steps at most.
        assert depth <= k + 1 and (depth == k + 1 or ended)
        assert trajectory.alive[:, b, k].tolist() == [t < depth for t in range(4)]
        assert len(actions) == depth and actions[0] == FIRST[b, k]
    assert set(trajectory.depth.flatten().tolist()) == {1, 2, 3}


def finite_difference(walked, b, baseline):
    """The gradient `[2, 3]` of the surrogate of root b's walks, in float64."""
    head = np.asarray(walked.params["head"], np.float64)
    found, step = np.zeros((2, 3)), 1e-5
    for index in np.ndindex(2, 3):
        bump = np.zeros((2, 3))
        bump[index] = step
        high, low = (
            surrogate(walked.params, head + sign * bump, walked.actions[b], baseline, ROOT_VALUE[b])
            for sign in (1, -1)
        )
        found[index] = (high[0] - low[0]) / (2 * step)
    return found


@pytest.mark.first_case
@all_modes
@discounts
def test_walk_gradient_is_the_finite_difference(mode, discount):
    walked = random_walks(discount, mode)
    for b in range(4):
        for i, baseline in enumerate(BASELINES):
            expected = finite_difference(walked, b, baseline)
            np.testing.assert_allclose(walked.gradients[i, b], expected, rtol=1e-4, atol=2e-5)
            assert np.abs(expected).max() > 0.01, "the test would see no mistake"


@pytest.mark.first_case
@all_modes
@discounts
def test_returns_of_walks_are_discounted_sums(mode, discount):
    walked = random_walks(discount, mode)
    head = np.asarray(walked.params["head"], np.float64)
    for b in range(4):
        _, expected = surrogate(walked.params, head, walked.actions[b], "none", ROOT_VALUE[b])
        for k, one in enumerate(expected):
            padded = one + [0.0] * (4 - len(one))
            np.testing.assert_allclose(walked.returns[:, b, k], padded, rtol=1e-5, atol=1e-6)


def walks_in_a_plain_game(mode):
    """Walks of one, two and three steps; all stop before the fourth, which is skipped."""
    params = toy.tree(3, 3, features=np.ones((40, 2)), value=np.arange(40), reward=np.ones((40, 3)))
    first = jnp.zeros((4, 3), jnp.int32)
    trajectory, _, _ = walk_gradients(params, keys(5, 4), first, jnp.zeros(4), mode)
    np.testing.assert_array_equal(trajectory.depth, np.tile([1, 2, 3], (4, 1)))
    return trajectory


@both_modes
@pytest.mark.parametrize("name", ["reward", "discount", "value", "log_prob", "entropy"])
def test_dead_walks_leave_no_trace(mode, name):
    trajectory = walks_in_a_plain_game(mode)
    field = np.asarray(getattr(trajectory, name))
    assert (field[~np.asarray(trajectory.alive)] == 0).all()


@both_modes
def test_the_bandits_action_has_no_log_probability(mode):
    trajectory = walks_in_a_plain_game(mode)
    # Two actions below the root at most; each has log probability -ln 3, none for the bandit's.
    expected = np.zeros((4, 4, 3))
    expected[1, :, 1:] = expected[2, :, 2] = -math.log(3)
    np.testing.assert_allclose(trajectory.log_prob, expected, rtol=1e-6)


# --- adapted parameters ---------------------------------------------------------------------------


def steady_game():
    """A two-action tree in which action 0 has probability 0.9999 and pays."""
    features = np.ones((15, 2))
    value = np.where(np.arange(15) > 0, 1.0, 0)
    return toy.tree(2, 3, features=features, head=[[4.5, 0], [4.5, 0]], value=value)


def test_adapted_params_go_on_where_the_last_search_ended():
    # All simulations take the same actions, so the key has no part: two searches of one update each
    # are one search of two updates.
    params = steady_game()
    start = toy.start(params, 16)
    once, through = (run(params, 0, start, 400.0, n).params for n in (2, 4))
    twice = run(params, 1, once, 400.0, 2).params
    np.testing.assert_allclose(twice["head"], through["head"], rtol=1e-6)
    step = np.asarray(once["head"] - start["head"])
    second = np.asarray(twice["head"] - once["head"])
    # Each step raises action 0; the second is smaller by far more than the tolerance above.
    assert (step[..., 0] > 0.1).all()
    assert (second[..., 0] > 0).all() and (second < 0.9 * step)[..., 0].all()


def test_a_search_from_adapted_params_is_that_of_a_network_that_has_them():
    params = pencil_game(-1.0)
    head = jnp.array([[1.0, -0.5], [0.25, 0.75]])
    adapted = toy.start(params | {"head": head}, 16)
    from_adapted = run(params, 23, adapted, 0.5, 2)
    with_them = run(params | {"head": head}, 23, adapted, 0.5, 2)
    found = (x.replace(prior_logits=None) for x in (from_adapted, with_them))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_adapted_params_matter_and_go_on_adapting():
    params = pencil_game(-1.0)
    adapted = toy.start(params | {"head": jnp.array([[1.0, -0.5], [0.25, 0.75]])}, 16)
    moved = np.asarray(run(params, 23, adapted, 0.5, 2).params["head"])
    assert (moved != np.asarray(adapted["head"])).any()
    other = run(params, 23, toy.start(params, 16), 0.5, 2)
    assert (moved != np.asarray(other.params["head"])).any()


EVERY_THIRD = np.arange(16) % 3 == 0


def adapted_and_reset():
    """A game, what 16 searches adapted, and the same with every third root reset."""
    params = steady_game()
    adapted = run(params, 0, toy.start(params, 16), 400.0, 2).params
    assert (np.asarray(adapted["head"]) != np.asarray(params["head"])).any((1, 2)).all()
    reset = jaxpgs.search.reset_adapted(adapted, params, jnp.asarray(EVERY_THIRD))
    return params, adapted, reset


def test_reset_adapted_gives_the_networks_own_root_by_root():
    params, adapted, reset = adapted_and_reset()
    own = np.broadcast_to(params["head"], adapted["head"].shape)
    expected = np.where(EVERY_THIRD[:, None, None], own, adapted["head"])
    np.testing.assert_array_equal(reset["head"], expected)
    assert all(leaf is None for name, leaf in reset.items() if name != "head")


def test_roots_that_were_reset_do_what_a_first_search_does():
    params, adapted, reset = adapted_and_reset()
    following = run(params, 3, reset, 400.0, 2).params
    expected = np.asarray(adapted["head"])[EVERY_THIRD]
    np.testing.assert_allclose(np.asarray(following["head"])[EVERY_THIRD], expected, rtol=1e-6)


def test_a_search_of_one_step_learns_nothing_from_a_mean():
    params = pencil_game(1.0)
    output = jaxpgs.pgs_policy(
        params, jax.random.key(0), toy.root(params, [0, 1]), toy.split_fn, 4,
        adapt=toy.adapt_head, simulations_per_update=4,
        estimator=jaxpgs.estimator.reinforce("mean"),
    )  # fmt: skip
    np.testing.assert_array_equal(output.search_state.params["head"][1], params["head"])
    np.testing.assert_array_equal(output.search_state.visits.sum(axis=-1), 4)
