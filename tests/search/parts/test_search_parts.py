import functools
import math

import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from scipy import stats as scipy_stats

import jaxpgs
from jaxpgs.base import NodeStats, Trajectory
from jaxpgs.search import categorical, sample_inverse_cdf
from jaxpgs.search.parts.selection import select_in_turn
from jaxpgs.search.parts.truncation import Truncation
from jaxpgs.search.walk import extend_code

# Every statistical test has a fixed seed and would fail by chance once in a million seeds.
ERROR_RATE = 1e-6

both_modes = pytest.mark.parametrize("mode", ["rollouts", "tree"])


def keys(seed, count):
    return jax.random.split(jax.random.key(seed), count)


def bandit(logits, visits, value_sum=None, value=None, valid=None):
    """NodeStats of `[B, A]` arrays."""
    visits = jnp.asarray(visits, jnp.int32)
    zeros = jnp.zeros(visits.shape, jnp.float32)
    return NodeStats(
        prior_logits=jnp.asarray(logits, jnp.float32),
        value=zeros[:, 0] if value is None else jnp.asarray(value, jnp.float32),
        visits=visits,
        value_sum=zeros if value_sum is None else jnp.asarray(value_sum, jnp.float32),
        valid=jnp.ones(visits.shape, bool) if valid is None else jnp.asarray(valid),
    )


def in_turn(selection, root, num_walks):
    """The first actions of an update."""
    return select_in_turn(selection, None, root, num_walks)


def check_frequencies(counts, probabilities):
    """Chi-square test of counts against probabilities; zero probability allows no count at all."""
    counts, probabilities = np.asarray(counts), np.asarray(probabilities, float)
    assert counts[probabilities == 0].sum() == 0
    counts, probabilities = counts[probabilities > 0], probabilities[probabilities > 0]
    expected = counts.sum() * probabilities / probabilities.sum()
    assert expected.min() > 5
    assert scipy_stats.chisquare(counts, expected).pvalue > ERROR_RATE


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


@pytest.mark.first_case
@both_modes
@pytest.mark.parametrize(
    ("discount", "horizon", "table"),
    [
        (1.0, 3, THREE_STEPS),
        (-1.0, 3, THREE_STEPS_TWO_PLAYERS),
        (1.0, 2, TWO_STEPS),
        (-1.0, 2, TWO_STEPS_TWO_PLAYERS),
        (1.0, 1, {0.0: [[0, 0], [0, 0]]}),  # only the bandit's action
    ],
)
def test_one_update_is_the_hand_gradient(mode, discount, horizon, table):
    params = pencil_game(discount)
    state = run(params, 1, None, 0.125, 1, horizon, mode)
    # The return of a simulation tells its actions; every sequence came up.
    assert set(np.asarray(state.value).tolist()) == set(table)
    gradient = np.array([table[value] for value in np.asarray(state.value).tolist()])
    moved = np.asarray(params["head"]) + 0.125 * gradient
    np.testing.assert_allclose(state.params["head"], moved, atol=1e-6)
    norm = np.sqrt((gradient**2).sum((1, 2)))
    np.testing.assert_allclose(state.gradient_norm, norm, rtol=1e-5, atol=1e-7)
    assert all(leaf is None for name, leaf in state.params.items() if name != "head")
    np.testing.assert_array_equal(state.num_evaluations, horizon)
    np.testing.assert_array_equal(state.depth, horizon)
    assert state.num_calls == horizon
    assert not state.skipped_updates.any()
    # Entropy is a mean over the states in which the simulation policy acted.
    if horizon > 1:
        first = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
        mean = first if horizon == 2 else (first + np.log(2)) / 2
        np.testing.assert_allclose(state.entropy, mean, rtol=1e-5)


@pytest.mark.first_case
@both_modes
@pytest.mark.parametrize("discount", [1.0, -1.0])
def test_gradients_of_one_update_add_up(mode, discount):
    params = pencil_game(discount)
    state = run(params, 2, toy.start(params, 16), 0.125, 2, mode=mode)
    table = THREE_STEPS if discount == 1 else THREE_STEPS_TWO_PLAYERS
    # Sums of two of the values are all different.
    pairs = {a + b: np.array(table[a]) + np.array(table[b]) for a in table for b in table if a <= b}
    total = (2 * np.asarray(state.value)).tolist()
    assert len(set(total)) >= 5
    moved = np.asarray(params["head"]) + 0.125 * np.array([pairs[value] for value in total])
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


@pytest.mark.first_case
@pytest.mark.parametrize("mode", ["rollouts", "whole", "tree"])
@pytest.mark.parametrize("discount", [1.0, 0.9, -1.0])
def test_walk_gradient_is_the_finite_difference(mode, discount):
    rng = np.random.default_rng(3)
    nodes = 40
    params = toy.tree(
        3,
        3,
        discount=discount,
        features=rng.normal(size=(nodes, 2)),
        head=rng.normal(size=(2, 3)),
        value=rng.uniform(-1, 1, nodes),  # all different, so a value tells the node
        reward=rng.uniform(-1, 1, (nodes, 3)),
    )
    params["discount"] = (
        params["discount"].at[1:13].multiply(jnp.asarray(rng.random((12, 3)) > 0.2, jnp.float32))
    )
    first = jnp.array([[0, 1, 2], [1, 1, 1], [2, 2, 0], [0, 0, 0]])
    root_value = np.array([0.3, -0.6, 0.9, -0.2])
    found = walk_gradients(params, keys(4, 4), first, jnp.asarray(root_value, jnp.float32), mode)
    trajectory, returns, gradients = jax.device_get(found)
    params, first = jax.device_get((params, first))
    node_at = {float(v): node for node, v in enumerate(params["value"])}
    lengths = set()
    for b in range(4):
        walks = []
        for k in range(3):
            depth = int(trajectory.depth[b, k])
            lengths.add(depth)
            ended = float(trajectory.discount[depth - 1, b, k]) == 0
            assert depth <= k + 1 and (depth == k + 1 or ended)
            assert trajectory.alive[:, b, k].tolist() == [t < depth for t in range(4)]
            walks.append(toy.actions_to(3, node_at[float(trajectory.value[depth - 1, b, k])]))
            assert len(walks[-1]) == depth and walks[-1][0] == first[b, k]
        head = np.asarray(params["head"], np.float64)
        for i, baseline in enumerate(BASELINES):
            expected, step = np.zeros((2, 3)), 1e-5
            for index in np.ndindex(2, 3):
                bump = np.zeros((2, 3))
                bump[index] = step
                high, by_walk = surrogate(params, head + bump, walks, baseline, root_value[b])
                low, _ = surrogate(params, head - bump, walks, baseline, root_value[b])
                expected[index] = (high - low) / (2 * step)
            np.testing.assert_allclose(gradients[i, b], expected, rtol=1e-4, atol=2e-5)
            assert np.abs(expected).max() > 0.01
        for k, one in enumerate(by_walk):
            padded = one + [0.0] * (4 - len(one))
            np.testing.assert_allclose(returns[:, b, k], padded, rtol=1e-5, atol=1e-6)
    assert lengths == {1, 2, 3}


@both_modes
def test_dead_walks_leave_no_trace(mode):
    # All walks stop after three steps at the latest: the fourth step is skipped.
    params = toy.tree(3, 3, features=np.ones((40, 2)), value=np.arange(40), reward=np.ones((40, 3)))
    first = jnp.zeros((4, 3), jnp.int32)
    trajectory, _, _ = walk_gradients(params, keys(5, 4), first, jnp.zeros(4), mode)
    np.testing.assert_array_equal(trajectory.depth, np.tile([1, 2, 3], (4, 1)))
    for name in ("reward", "discount", "value", "log_prob", "entropy"):
        field = np.asarray(getattr(trajectory, name))
        assert (field[~np.asarray(trajectory.alive)] == 0).all(), name
    # Two actions below the root at most; each has log probability -ln 3, none for the bandit's.
    expected = np.zeros((4, 4, 3))
    expected[1, :, 1:] = expected[2, :, 2] = -math.log(3)
    np.testing.assert_allclose(trajectory.log_prob, expected, rtol=1e-6)


# --- returns --------------------------------------------------------------------------------------

# (reward, discount, value of the state reached) step by step; G_t of n_step; G_t of last_value.
RETURNS = {
    # 3 + 0.9 * 10; 2 + 0.9 * 12; 1 + 0.9 * 12.8
    "discounted": ([(1, 0.9, 5), (2, 0.9, 7), (3, 0.9, 10)], [12.52, 12.8, 12], [7.29, 8.1, 9]),
    # stops before the end: 2 + 7; 1 + 9
    "stopped": ([(1, 1, 5), (2, 1, 7)], [10, 9, 0], [7, 7, 0]),
    "one step": ([(4, 0.9, 10)], [13, 0, 0], [9, 0, 0]),
    # the reward of the last step takes the value's place; the value behind it counts for nothing
    "ended": ([(1, 0.9, 5), (2, 0.9, 7), (3, 0, 99)], [5.23, 4.7, 3], [2.43, 2.7, 3]),
    "two players": (
        [(0, -1, 0.5), (0, -1, 0.25), (0, -1, 0.75)],
        [-0.75, 0.75, -0.75],
        [-0.75, 0.75, -0.75],
    ),
    # the second player wins with the second action
    "two players, ended": ([(0, -1, 0.5), (1, 0, 99)], [-1, 1, 0], [-1, 1, 0]),
    # rewards go to the mover: 0.5 - 0.25; 0.25 - 0.25; 1 - 0
    "two players, rewards": (
        [(1, -1, 9), (0.25, -1, 9), (0.5, -1, 0.25)],
        [1, 0, 0.25],
        [-0.25, 0.25, -0.25],
    ),
}


def test_returns_by_hand():
    arrays = np.zeros((3, 3, 1, len(RETURNS)), np.float32)  # field, T, B, K
    alive = np.zeros((3, 1, len(RETURNS)), bool)
    for k, (steps, _, _) in enumerate(RETURNS.values()):
        arrays[:, : len(steps), 0, k] = np.array(steps).T
        alive[: len(steps), 0, k] = True
    zeros = jnp.zeros(alive.shape)
    trajectory = Trajectory(
        alive=jnp.asarray(alive),
        reward=jnp.asarray(arrays[0]),
        discount=jnp.asarray(arrays[1]),
        value=jnp.asarray(arrays[2]),
        log_prob=zeros,
        entropy=zeros,
        kl_to_prior=zeros,
        kl_from_prior=zeros,
        depth=jnp.asarray(alive.sum(0)),
        limited=jnp.zeros(alive.shape[1:], bool),
        num_evaluations=jnp.zeros(1, jnp.int32),
        num_calls=jnp.zeros(1, jnp.int32),
    )
    for backup, column in ((jaxpgs.backup.n_step(), 1), (jaxpgs.backup.last_value(), 2)):
        returns = backup(trajectory)
        for k, (name, row) in enumerate(RETURNS.items()):
            np.testing.assert_allclose(
                returns[:, 0, k], row[column], rtol=1e-6, atol=1e-6, err_msg=name
            )


# --- root selection -------------------------------------------------------------------------------


def random_bandits(count=200, actions=6):
    rng = np.random.default_rng(7)
    visits = rng.integers(0, 8, (count, actions)) * (rng.random((count, actions)) < 0.6)
    visits[:20] = 0
    valid = rng.random((count, actions)) < 0.7
    valid[np.arange(count), rng.integers(0, actions, count)] = True
    visits = np.where(valid, visits, 0)
    return bandit(
        np.where(valid, rng.normal(0, 1.5, (count, actions)), np.finfo(np.float32).min),
        visits,
        visits * rng.uniform(-1, 1, (count, actions)),
        rng.uniform(-1, 1, count),
        valid,
    )


def puct_reference(c, n, w, flying, prior, value, virtual_loss, unvisited):
    default = value if unvisited == "value" else 0.0
    with_flying = n + flying
    if virtual_loss is None:
        q = [w[a] / n[a] if n[a] else default for a in range(len(n))]
    else:
        w = w - virtual_loss * flying
        q = [w[a] / with_flying[a] if with_flying[a] else default for a in range(len(n))]
    total = max(with_flying.sum(), 1)
    return np.array(q) + c * prior * math.sqrt(total) / (1 + with_flying)


def ucb1_reference(c, n, w, flying, prior, value, virtual_loss, unvisited):
    del value, unvisited
    total = n + flying
    q = w / np.maximum(n, 1) if virtual_loss is None else (w - virtual_loss * flying) / total
    bonus = c * np.sqrt(np.log(max(total.sum(), 1)) / total)
    return np.where(total > 0, q + bonus, 1e9 + prior)


def check_selection(select, reference, root, num_walks, **knobs):
    """Each action must be the reference's best, up to rounding, given the ones before it."""
    actions = np.asarray(select)
    assert actions.shape == (root.visits.shape[0], num_walks)
    prior = np.asarray(jax.nn.softmax(root.prior_logits), np.float64)
    visits, value, value_sum, valid = jax.device_get(
        (root.visits, root.value, root.value_sum, root.valid)
    )
    for b in range(len(actions)):
        flying = np.zeros(visits.shape[1], int)
        for action in actions[b]:
            with np.errstate(divide="ignore", invalid="ignore"):
                scores = reference(
                    n=visits[b],
                    w=value_sum[b].astype(np.float64),
                    flying=flying,
                    prior=prior[b],
                    value=float(value[b]),
                    **knobs,
                )
            assert valid[b, action]
            assert scores[action] >= scores[valid[b]].max() - 2e-6
            flying[action] += 1


@pytest.mark.parametrize("num_walks", [1, 4, 16])
def test_puct_is_the_formula(num_walks):
    root = random_bandits()
    settings = [
        (5.0, 1, "zero"),
        (1.0, 1, "value"),
        (1.0, 0.3, "zero"),
        (1.0, 0.3, "value"),
        (2.0, None, "zero"),
        (0.5, None, "value"),
    ]

    @jax.jit
    def select(root):
        rules = [
            jaxpgs.selection.puct(c, virtual_loss=loss, unvisited=q) for c, loss, q in settings
        ]
        return [in_turn(rule, root, num_walks) for rule in (*rules, jaxpgs.selection.puct())]

    *chosen, default = select(root)
    for actions, (c, loss, q) in zip(chosen, settings, strict=True):
        knobs = {"c": c, "virtual_loss": loss, "unvisited": q}
        check_selection(actions, puct_reference, root, num_walks, **knobs)
    for other in chosen[1:]:  # the knobs matter
        assert (np.asarray(other) != np.asarray(chosen[0])).any()
    # The paper's settings are the defaults.
    np.testing.assert_array_equal(default, chosen[0])


@pytest.mark.parametrize("virtual_loss", [1.0, 0.3, None])
def test_ucb1_is_the_formula(virtual_loss):
    root = random_bandits()
    actions = in_turn(jaxpgs.selection.ucb1(0.7, virtual_loss=virtual_loss), root, 8)
    check_selection(
        actions, ucb1_reference, root, 8, c=0.7, virtual_loss=virtual_loss, unvisited="zero"
    )


def test_virtual_loss_spreads_simulations():
    # By hand: c = 0, one visit of value 1/2 and of 1/4. After one pending -1 the first has
    # (1/2 - 1) / 2 = -1/4, so the second is next, then (1/4 - 1) / 2 = -3/8, then the first again.
    root = bandit([[0.0, 0.0]], [[1, 1]], [[0.5, 0.25]])
    assert in_turn(jaxpgs.selection.puct(0.0), root, 3).tolist() == [[0, 1, 0]]
    assert in_turn(jaxpgs.selection.puct(0.0, virtual_loss=None), root, 3).tolist() == [[0, 0, 0]]
    # A loss of 1/10 is too small for the first switch: (1/2 - 1/10) / 2 = 1/5 < 1/4, then 3/40.
    assert in_turn(jaxpgs.selection.puct(0.0, virtual_loss=0.1), root, 3).tolist() == [[0, 1, 0]]
    assert in_turn(jaxpgs.selection.puct(0.0, virtual_loss=-0.1), root, 3).tolist() == [[0, 0, 1]]


# --- truncation -----------------------------------------------------------------------------------


def crafted(depth, *, visits=0, log_prob=0.0, simulation=None):
    """A Path `[1, K]` from lists or numbers."""
    fields = np.broadcast_arrays(np.atleast_1d(depth), visits, log_prob)
    depth, visits, log_prob = (jnp.asarray(x)[None] for x in fields)
    simulation = np.arange(depth.size) if simulation is None else simulation
    return toy.start_path(depth)._replace(
        depth=depth.astype(jnp.int32),
        log_prob=log_prob.astype(jnp.float32),
        visits=visits.astype(jnp.int32),
        simulation=jnp.broadcast_to(jnp.asarray(simulation), depth.shape),
    )


def lengths(truncation, longest, **fields):
    """The depth at which each of K simulations stops first."""
    size = len(np.atleast_1d(next(iter(fields.values()))))
    stops = [
        np.asarray(truncation.stop(crafted(np.full(size, d), **fields)))[0]
        for d in range(1, longest + 1)
    ]
    stops.append(np.ones(size, bool))
    return (np.argmax(stops, axis=0) + 1).tolist()


def test_fixed_stops_at_its_depth():
    truncation = jaxpgs.truncation.fixed(3)
    assert truncation.max_depth(100) == 3
    assert truncation.stop(crafted([1, 2, 3, 4])).tolist() == [[False, False, True, True]]


def test_growing_adds_one_every_so_often():
    found = lengths(jaxpgs.truncation.growing(2, every=3), 6, simulation=np.arange(8))
    assert found == [2, 2, 2, 3, 3, 3, 4, 4]
    found = lengths(jaxpgs.truncation.growing(), 4, simulation=[0, 99, 100, 199, 200])
    assert found == [1, 1, 2, 2, 3]


def test_by_visits_is_the_thesis_example():
    # b = 3: "the first three trajectories ... a length of one, ... up to the ninth ... of two".
    found = lengths(jaxpgs.truncation.by_visits(3), 5, visits=np.arange(30))
    assert found == [1] * 3 + [2] * 6 + [3] * 18 + [4] * 3


@pytest.mark.first_case
@pytest.mark.parametrize("branching", [2, 3, 6, 10])
def test_by_visits_is_exact_at_powers(branching):
    powers = [branching**i for i in range(1, 20) if branching**i <= 2**20]
    visits = np.array([n for p in powers for n in (p - 1, p, p + 1)])
    # floor(ln N / ln b) + 1 in integers.
    expected = [next(d for d in range(1, 40) if branching**d > n) for n in visits.tolist()]
    assert lengths(jaxpgs.truncation.by_visits(branching), 25, visits=visits) == expected


def test_by_probability_stops_below_the_threshold():
    log_prob = np.log([0.9, 0.51, 0.5, 0.49, 1e-30])
    stop = jaxpgs.truncation.by_probability(0.5).stop(crafted(1, log_prob=np.float32(log_prob)))
    assert stop.tolist() == [[False, False, False, True, True]]


@pytest.mark.slow
def test_until_new_is_a_set_of_sequences():
    # The table is so large that 3 * 96 sequences share no flag.
    walks, found, exact, *_ = toy.until_new("rollouts", jaxpgs.truncation.until_new(2**22))
    np.testing.assert_array_equal(found, exact)
    assert set(np.unique(exact)) >= {1, 2, 3, 4, 5, 6}
    # The first update meets an empty table, and its 8 simulations have 2 first actions.
    assert (found[0] == 1).all()
    np.testing.assert_array_equal(walks.num_evaluations, found.sum(-1))
    np.testing.assert_array_equal(walks.num_calls[:, 0], found.max((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("table_size", games.mostly_slow([1, 16, 32, 64, 256], 1, 64))
def test_small_table_only_lengthens(table_size):
    _, found, exact, *_ = toy.until_new("rollouts", jaxpgs.truncation.until_new(table_size))
    assert (found >= exact).all()
    assert (found > exact).any()
    assert (found[0] == 1).all()
    if table_size == 1:
        # One flag: after the first update every sequence counts as known.
        assert (found[1:] == 7).all()


@pytest.mark.slow
def test_default_table_is_wide_enough():
    # Three roots of 96 sequences in 2**15 flags: 3 * 96**2 / 2 / 2**15 = 0.4 collisions expected.
    _, found, exact, *_ = toy.until_new("rollouts", jaxpgs.truncation.until_new())
    assert (found != exact).sum() <= 5


def test_codes_of_sequences_differ():
    # All sequences of up to three of 27 actions, and their continuations by 361 and by nothing but
    # zeros: the code must depend on the length, too.
    rows = np.arange(27**3)
    columns = [rows // 729, rows // 27 % 27, rows % 27, rows % 361] + [np.zeros_like(rows)] * 4
    code, codes, sequences = jnp.zeros(rows.size, jnp.uint32), set(), set()
    for length, column in enumerate(columns, start=1):
        code = extend_code(code, jnp.asarray(column, jnp.int32))
        codes.update(np.asarray(code).tolist())
        sequences.update(zip(*columns[:length], strict=True))
    # Random codes of these 1.2e5 sequences would have 1.6 equal pairs on average, and more than 15
    # once in 1e10 tries.
    assert len(sequences) > 118000
    assert len(sequences) - len(codes) <= 15
    # The table uses the low bits.
    check_frequencies(np.bincount(np.asarray(code) % 64, minlength=64), np.full(64, 1 / 64))


# --- whole searches, truncation by truncation -----------------------------------------------------

N, K, T, BASE = 16, 4, 4, 32
RULES = {
    "fixed": jaxpgs.truncation.fixed(2),
    "growing": jaxpgs.truncation.growing(1, every=6),
    "by_visits": jaxpgs.truncation.by_visits(3),
    "by_probability": jaxpgs.truncation.by_probability(0.3),
    "until_new": jaxpgs.truncation.until_new(),
    "never": jaxpgs.truncation.fixed(99),
}


@functools.partial(jax.jit, static_argnums=6, compiler_options=games.QUICK)
def searched(params, rng_key, root, invalid_actions, rule, dirichlet_fraction, mode):
    """A Monte Carlo search whose truncation is chosen at run time, to compile them all at once."""

    def stop(path):
        stops = [jnp.broadcast_to(r.stop(path), path.depth.shape) for r in RULES.values()]
        return jnp.stack(stops)[rule]

    return jaxpgs.mcs_policy(
        params,
        rng_key,
        root,
        toy.recurrent_fn,
        N,
        invalid_actions,
        T,
        simulations_per_update=K,
        truncation=Truncation(stop, table_size=2**15),
        root_selection=jaxpgs.selection.puct(2.0),
        backup=jaxpgs.backup.last_value(),
        dirichlet_fraction=dirichlet_fraction,
        mode=mode,
    )


def depth_counts(mode, rule, logits, seed=0):
    """For each root and first action, how many simulations had length 1, 2, 3, 4.

    A state at depth d is worth 32^(d-1), so the sum of returns holds the counts as digits.
    """
    depth = np.array([len(toy.actions_to(3, node)) for node in range(121)])
    params = toy.tree(
        3,
        4,
        value=np.where(depth > 0, float(BASE) ** (depth - 1), 0),
        reward=np.full((121, 3), 7.0),  # left out by the paper's backup
    )
    root = toy.root(params, [0] * 3, logits=np.tile(logits, (3, 1)))
    legal = jnp.zeros((3, 3), jnp.int32)
    rule = list(RULES).index(rule)
    state = searched(params, keys(seed, 3), root, legal, rule, 0.0, mode).search_state
    qvalues = np.where(state.visits > 0, state.qvalues, 0).astype(np.float64)
    total = np.rint(qvalues * np.asarray(state.visits)).astype(int)
    counts = np.stack([total // BASE**d % BASE for d in range(T)], axis=-1)
    np.testing.assert_array_equal(counts.sum(-1), state.visits)
    np.testing.assert_array_equal(np.sum(state.visits, axis=-1), N)
    steps = (counts * np.arange(1, T + 1)).sum((1, 2))
    np.testing.assert_allclose(state.depth, steps / N, rtol=1e-6)
    evaluations = np.asarray(state.num_evaluations)
    assert (evaluations == steps).all() if mode == "rollouts" else (evaluations < steps).all()
    return counts


@pytest.mark.first_case
@both_modes
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fixed", [0, N, 0, 0]),
        ("never", [0, 0, 0, N]),  # stops at max_depth
        ("growing", [6, 6, 4, 0]),  # simulations 0-5, 6-11, 12-15, across the updates of 4
    ],
)
def test_search_with_known_depths(mode, rule, expected):
    assert (depth_counts(mode, rule, [0.0, 0, 0]).sum(1) == expected).all()


@both_modes
def test_search_by_visits(mode):
    counts = depth_counts(mode, "by_visits", [2.0, 0, 0])
    for by_action in counts.reshape(-1, T):
        n = by_action.sum()
        expected = [min(n, 3), np.clip(n - 3, 0, 6), np.clip(n - 9, 0, 18), 0]
        assert by_action.tolist() == expected
    assert (counts[..., 1] > 0).any()


@both_modes
def test_search_by_probability(mode):
    # 0.6 * 1/3 falls under 0.3 at the second action; 0.3 does at the second, 0.1 at the first.
    counts = depth_counts(mode, "by_probability", np.log([0.6, 0.31, 0.09]))
    visits = counts.sum(-1)
    assert (visits > 0).all()
    np.testing.assert_array_equal(counts[:, 0, 1], visits[:, 0])
    np.testing.assert_array_equal(counts[:, 1, 1], visits[:, 1])
    np.testing.assert_array_equal(counts[:, 2, 0], visits[:, 2])
    # With a certain first action the third goes under: 1/3 is not, 1/9 is.
    counts = depth_counts(mode, "by_probability", [50.0, 0, 0])
    visits = counts.sum(-1)
    np.testing.assert_array_equal(counts[:, 0, 2], visits[:, 0])


@both_modes
def test_search_until_new(mode):
    shared = 0
    for seed in range(3):
        counts = depth_counts(mode, "until_new", [1.0, 0, 0], seed)
        for first, second, third, fourth in counts.reshape(-1, T):
            # A sequence ends up to K simulations, all of one update.
            n = first + second + third + fourth
            assert min(n, 1) <= first <= K
            assert second <= 3 * K and third <= 9 * K
            shared += first > 1
    assert shared


def test_dirichlet_noise_in_a_search():
    params = toy.tree(3, 4)
    root = toy.root(params, [0] * 3)
    invalid = jnp.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])

    def visits(seed, fraction):
        output = searched(params, keys(seed, 3), root, invalid, 0, fraction, "rollouts")
        np.testing.assert_allclose(output.action_weights.sum(-1), 1, rtol=1e-6)
        return np.asarray(output.search_state.visits)

    found = [visits(seed, 0.25) for seed in range(8)]
    assert (np.stack(found) * np.asarray(invalid) == 0).all()
    np.testing.assert_array_equal(found[0], visits(0, 0.25))
    assert any((f != found[0]).any() for f in found[1:])
    # Without noise the key has no part in a game that pays nothing.
    np.testing.assert_array_equal(visits(0, 0.0), visits(1, 0.0))


def test_noise_refuses_a_selection_in_rounds():
    in_rounds = jaxpgs.gumbel.gumbel_root(in_rounds=True)
    with pytest.raises(ValueError, match="got one in rounds"):
        jaxpgs.selection.with_dirichlet_noise(in_rounds)


def test_dirichlet_noise_has_its_moments():
    count, alpha, fraction = 5000, 0.5, 0.25
    logits = jnp.broadcast_to(jnp.array([1.0, 0.0, 5.0, 0.0]), (count, 4))
    invalid = jnp.broadcast_to(jnp.array([0, 0, 1, 0]), (count, 4))
    stats = bandit(logits, np.zeros((count, 4)), valid=invalid == 0)
    selection = jaxpgs.selection.with_dirichlet_noise(jaxpgs.selection.puct(), fraction, alpha)
    logits = jnp.where(invalid == 1, np.finfo(np.float32).min, logits)
    noisy, _ = selection.init(keys(13, count), stats._replace(prior_logits=logits), 1)
    prior = np.exp(noisy)
    np.testing.assert_allclose(prior.sum(-1), 1, rtol=1e-5)
    assert (prior[:, 2] == 0).all()
    legal = np.exp([1, 0, 0]) / np.exp([1, 0, 0]).sum()
    noise = (prior[:, [0, 1, 3]] - (1 - fraction) * legal) / fraction
    # Symmetric Dirichlet over 3: mean 1/3, variance (1/3)(2/3) / (3 alpha + 1). Five standard
    # errors, so about one seed in a million fails.
    variance = 2 / 9 / (3 * alpha + 1)
    assert np.abs(noise.mean(0) - 1 / 3).max() < 5 * np.sqrt(variance / count)
    fourth = ((noise - 1 / 3) ** 4).mean(0)
    error = np.sqrt((fourth - variance**2) / count)
    assert (np.abs(noise.var(0) - variance) < 5 * error).all()


# --- targets --------------------------------------------------------------------------------------


@jax.jit
def drawn(rng_keys, root, temperature):
    one = jax.tree.map(lambda x: x[0], root)
    return jax.vmap(lambda key: jaxpgs.target.visit_counts(temperature)(key, one, None))(rng_keys)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_actions_are_drawn_by_visits_to_a_power(temperature):
    visits = np.array([[1, 0, 4, 9, 2, 0]])
    root = bandit([[0.0, 9.0, 0.0, -1.0, 3.0, 0.0]], visits)
    actions, weights = drawn(keys(17, 20000), root, temperature)
    np.testing.assert_allclose(weights, np.tile(visits / 16, (20000, 1)), rtol=1e-6)
    powers = visits[0].astype(float) ** (1 / temperature)
    check_frequencies(np.bincount(actions, minlength=6), powers / powers.sum())


def test_temperature_zero_takes_the_most_visited_and_ties_by_the_prior():
    def best(visits, logits):
        actions, _ = drawn(keys(18, 20000), bandit([logits], [visits]), 0.0)
        assert len(np.unique(actions)) == 1
        return int(actions[0])

    assert best([1, 0, 4, 9, 2, 0], [0, 9, 0, -9, 3, 0]) == 3
    assert best([5, 5, 1, 5, 0, 0], [0, 2, 9, 1, 9, 0]) == 1
    assert best([5, 5, 1, 5, 0, 0], [0, 1, 9, 2, 9, 0]) == 3
    lowest = np.finfo(np.float32).min
    assert best([0, 0, 2, 2, 0, 0], [0, 1, lowest, lowest, 9, 0]) == 2


def test_no_visits_give_action_zero_and_no_weight():
    root = bandit([[0.0] * 6], [[0] * 6], valid=[[False] * 6])
    actions, weights = drawn(keys(18, 20000), root, 1.0)
    assert not np.any(actions) and not np.any(weights)


# --- sampling -------------------------------------------------------------------------------------


@jax.jit
def sampled(logits, uniform):
    """Actions, log probabilities and entropy of draws from one policy."""
    policy = categorical(logits)
    cumulative = jnp.broadcast_to(policy.cumulative, (uniform.size, logits.size))
    actions = sample_inverse_cdf(cumulative, jnp.broadcast_to(policy.last, uniform.shape), uniform)
    return actions, jnp.log(policy.policy[actions]), policy.entropy


def test_sampled_frequencies():
    probabilities = np.array([0.05, 0.4, 0.01, 0.0, 0.24, 0.3])
    logits = jnp.log(jnp.asarray(probabilities, jnp.float32))
    logits = jnp.maximum(logits, jnp.finfo(jnp.float32).min)
    uniform = jax.random.uniform(jax.random.key(19), (20000,))
    actions, log_prob, entropy = sampled(logits, uniform)
    check_frequencies(np.bincount(actions, minlength=6), probabilities)
    np.testing.assert_allclose(np.exp(log_prob), probabilities[actions], rtol=1e-5)
    positive = probabilities[probabilities > 0]
    np.testing.assert_allclose(entropy, -(positive * np.log(positive)).sum(), rtol=1e-5)


@pytest.mark.parametrize("num_actions", [1, 6, 64, 65, 362])
def test_sampling_inverts_the_distribution_function(num_actions):
    # On a grid of uniforms the frequencies are the probabilities up to one draw. The sums are made
    # in blocks of 64.
    logits = np.random.default_rng(19).normal(0, 2, num_actions)
    actions, _, _ = sampled(jnp.asarray(logits, jnp.float32), (jnp.arange(20000.0) + 0.5) / 20000)
    expected = 20000 * np.exp(logits) / np.exp(logits).sum()
    assert np.abs(np.bincount(actions, minlength=num_actions) - expected).max() <= 1.5


@pytest.mark.parametrize("keep", [0.02, 0.5])
def test_impossible_actions_are_never_sampled(keep):
    # 1e5 draws over 100 actions of which most or half have probability 0, and both ends of [0, 1).
    rng = np.random.default_rng(20)
    possible = rng.random(100) < keep
    possible[[7, 50]] = True
    possible[[0, 99]] = False
    logits = np.where(possible, rng.normal(0, 3, 100), np.finfo(np.float32).min)
    uniform = rng.random(100000).astype(np.float32)
    uniform[:3] = 0.0, np.nextafter(np.float32(1), np.float32(0)), np.finfo(np.float32).tiny
    uniform = np.minimum(uniform, uniform[1])
    actions, log_prob, entropy = sampled(jnp.asarray(logits, jnp.float32), jnp.asarray(uniform))
    assert possible[np.asarray(actions)].all()
    assert np.isfinite(log_prob).all() and np.isfinite(entropy)
    assert len(np.unique(actions)) > 1
    # Where rounding lifts a uniform to 1, no sum exceeds it: the last possible action it is.
    actions, _, _ = sampled(jnp.asarray(logits, jnp.float32), jnp.ones(100000))
    assert (np.asarray(actions) == np.flatnonzero(possible)[-1]).all()


@pytest.mark.parametrize(
    ("logits", "allowed"),
    [
        ([1e30, 0, -1e30, 0], {0}),
        ([-1e30, 1e38, 1e38, -3e38], {1, 2}),
        ([np.finfo(np.float32).min] * 4, {0, 1, 2, 3}),
        ([np.finfo(np.float32).max] * 4, {0, 1, 2, 3}),
        ([np.finfo(np.float32).min, np.finfo(np.float32).max, 0, 0], {1}),
        ([0, 0, 0, 200], {3}),
    ],
)
def test_extreme_logits_are_sampled(logits, allowed):
    uniform = jnp.linspace(0, 1, 1000, endpoint=False)
    actions, log_prob, entropy = sampled(jnp.asarray(logits, jnp.float32), uniform)
    assert set(np.asarray(actions).tolist()) == allowed
    np.testing.assert_allclose(log_prob, -np.log(len(allowed)), atol=1e-6)
    np.testing.assert_allclose(entropy, np.log(len(allowed)), atol=1e-6)


# --- adapted parameters ---------------------------------------------------------------------------


def steady_game():
    """A two-action tree in which action 0 has probability 0.9999 and pays."""
    features = np.ones((15, 2))
    value = np.where(np.arange(15) > 0, 1.0, 0)
    return toy.tree(2, 3, features=features, head=[[4.5, 0], [4.5, 0]], value=value)


def test_adapted_params_go_on_where_the_last_search_ended():
    # All simulations take the same actions, so the key has no part, and two searches of one update
    # each are one search of two updates.
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


def test_adapted_params_are_parameters():
    # A search from adapted parameters is the search of a network that has them.
    params = pencil_game(-1.0)
    head = jnp.array([[1.0, -0.5], [0.25, 0.75]])
    adapted = toy.start(params | {"head": head}, 16)
    from_adapted = run(params, 23, adapted, 0.5, 2)
    with_them = run(params | {"head": head}, 23, adapted, 0.5, 2)
    found = (x.replace(prior_logits=None) for x in (from_adapted, with_them))
    jax.tree.map(np.testing.assert_array_equal, *found)
    moved = np.asarray(from_adapted.params["head"])
    assert (moved != np.asarray(adapted["head"])).any()
    other = run(params, 23, toy.start(params, 16), 0.5, 2)
    assert (moved != np.asarray(other.params["head"])).any()


def test_reset_adapted_root_by_root():
    params = steady_game()
    adapted = run(params, 0, toy.start(params, 16), 400.0, 2).params
    reset = jaxpgs.search.reset_adapted(adapted, params, jnp.arange(16) % 3 == 0)
    for b in range(16):
        own = b % 3 == 0
        np.testing.assert_array_equal(
            reset["head"][b], params["head"] if own else adapted["head"][b]
        )
    assert (np.asarray(adapted["head"]) != np.asarray(params["head"])).any((1, 2)).all()
    assert all(leaf is None for name, leaf in reset.items() if name != "head")
    # It is the argument of the next search: the reset roots do what a first search does.
    following = run(params, 3, reset, 400.0, 2).params
    np.testing.assert_allclose(following["head"][::3], adapted["head"][::3], rtol=1e-6)
