import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from scipy import stats as scipy_stats

import jaxpgs
from jaxpgs.base import Path, RootStats, Trajectory
from jaxpgs.search import adaptation
from jaxpgs.search.scan import _init_stats
from jaxpgs.search.truncation import Truncation
from jaxpgs.search.walk import _sample, extend_code, walk

pytestmark = pytest.mark.usefixtures("strict_promotion")

# Every statistical test has a fixed seed and would fail by chance once in a million seeds.
ERROR_RATE = 1e-6


def keys(seed, count):
    return jax.random.split(jax.random.key(seed), count)


def bandit(logits, visits, value_sum=None, value=None, valid=None):
    """RootStats of `[B, A]` arrays."""
    visits = jnp.asarray(visits, jnp.int32)
    zeros = jnp.zeros(visits.shape, jnp.float32)
    return RootStats(
        prior_logits=jnp.asarray(logits, jnp.float32),
        value=zeros[:, 0] if value is None else jnp.asarray(value, jnp.float32),
        visits=visits,
        value_sum=zeros if value_sum is None else jnp.asarray(value_sum, jnp.float32),
        valid=jnp.ones(visits.shape, bool) if valid is None else jnp.asarray(valid),
    )


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
def test_one_update_is_the_hand_gradient(discount, horizon, table):
    params = pencil_game(discount)
    output = toy.pgs(
        params,
        keys(1, 16),
        toy.root(params, [0] * 16),
        jnp.tile(jnp.array([[0, 1]]), (16, 1)),
        None,
        0.125,
        horizon,
        num_simulations=1,
        simulations_per_update=1,
    )
    state = output.search_state
    # The return of a simulation tells its actions; every sequence came up.
    assert set(np.asarray(state.value).tolist()) == set(table)
    gradient = np.array([table[value] for value in np.asarray(state.value).tolist()])
    np.testing.assert_allclose(
        state.params["head"], np.asarray(params["head"]) + 0.125 * gradient, atol=1e-6
    )
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


@pytest.mark.parametrize("discount", [1.0, -1.0])
def test_gradients_of_one_update_add_up(discount):
    params = pencil_game(discount)
    state = toy.pgs(
        params,
        keys(2, 16),
        toy.root(params, [0] * 16),
        jnp.tile(jnp.array([[0, 1]]), (16, 1)),
        toy.start(params, 16),
        0.125,
        num_simulations=2,
        simulations_per_update=2,
    ).search_state
    table = THREE_STEPS if discount == 1 else THREE_STEPS_TWO_PLAYERS
    # Sums of two of the values are all different.
    pairs = {a + b: np.array(table[a]) + np.array(table[b]) for a in table for b in table if a <= b}
    total = (2 * np.asarray(state.value)).tolist()
    assert len(set(total)) >= 5
    gradient = np.array([pairs[value] for value in total])
    np.testing.assert_allclose(
        state.params["head"], np.asarray(params["head"]) + 0.125 * gradient, atol=1e-6
    )


# --- REINFORCE against finite differences ---------------------------------------------------------

BASELINES = ("none", "value", "root")


@jax.jit
def walk_gradients(params, rng_keys, first, root_value):
    """One update's trajectory `[4, B, K]`, returns, and gradient `[B, F, A]` for each baseline."""
    mask = adaptation.adapt_mask(params, toy.adapt_head)
    own, frozen = adaptation.split(params, mask)
    adapted = adaptation.per_root(own, first.shape[0])
    zeros = jnp.zeros(first.shape, jnp.int32)
    path = Path(
        depth=zeros,
        code=zeros.astype(jnp.uint32),
        log_prob=jnp.zeros(first.shape),
        alive=jnp.ones(first.shape, bool),
        visits=zeros,
        simulation=jnp.arange(first.shape[1]),
    )
    stats = bandit(np.zeros((4, 3)), np.zeros((4, 3)), value=root_value)

    def objectives(adapted):
        # Walk k of every root stops after k + 1 steps at the latest.
        trajectory = walk(
            adapted,
            frozen,
            rng_keys,
            jnp.zeros(first.shape[0], jnp.int32),
            first,
            path,
            toy.recurrent_fn,
            lambda path: path.depth > path.simulation[None],
            4,
        )
        returns = jaxpgs.n_step()(trajectory)
        values = [jaxpgs.reinforce(b)(stats, trajectory, returns).sum() for b in BASELINES]
        return jnp.stack(values), (trajectory, returns)

    gradients, (trajectory, returns) = jax.jacrev(objectives, has_aux=True)(adapted)
    return trajectory, returns, gradients["head"]


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


@pytest.mark.parametrize("discount", [1.0, 0.9, -1.0])
def test_walk_gradient_is_the_finite_difference(discount):
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
    trajectory, returns, gradients = walk_gradients(
        params, keys(4, 4), first, jnp.asarray(root_value, jnp.float32)
    )
    node_at = {float(v): node for node, v in enumerate(np.asarray(params["value"]))}
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


def test_dead_walks_leave_no_trace():
    # All walks stop after three steps at the latest: the fourth step of the scan is skipped.
    params = toy.tree(3, 3, features=np.ones((40, 2)), value=np.arange(40), reward=np.ones((40, 3)))
    first = jnp.zeros((4, 3), jnp.int32)
    trajectory, _, _ = walk_gradients(params, keys(5, 4), first, jnp.zeros(4))
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
    "discounted": (
        [(1, 0.9, 5), (2, 0.9, 7), (3, 0.9, 10)],
        [12.52, 12.8, 12],
        [7.29, 8.1, 9],
    ),
    # stops before the end: 2 + 7; 1 + 9
    "stopped": ([(1, 1, 5), (2, 1, 7)], [10, 9, 0], [7, 7, 0]),
    "one step": ([(4, 0.9, 10)], [13, 0, 0], [9, 0, 0]),
    # the reward of the last step takes the value's place; the value behind it counts for nothing
    "ended": (
        [(1, 0.9, 5), (2, 0.9, 7), (3, 0, 99)],
        [5.23, 4.7, 3],
        [2.43, 2.7, 3],
    ),
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
        depth=jnp.asarray(alive.sum(0)),
        code=jnp.zeros(alive.shape[1:], jnp.uint32),
    )
    for backup, column in ((jaxpgs.n_step(), 1), (jaxpgs.last_value(), 2)):
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
    visits, value_sum, valid = (np.asarray(x) for x in (root.visits, root.value_sum, root.valid))
    prior = np.asarray(jax.nn.softmax(root.prior_logits), np.float64)
    for b in range(len(actions)):
        flying = np.zeros(visits.shape[1], int)
        for action in actions[b]:
            with np.errstate(divide="ignore", invalid="ignore"):
                scores = reference(
                    n=visits[b],
                    w=value_sum[b].astype(np.float64),
                    flying=flying,
                    prior=prior[b],
                    value=float(root.value[b]),
                    **knobs,
                )
            assert valid[b, action]
            assert scores[action] >= scores[valid[b]].max() - 2e-6
            flying[action] += 1


@pytest.mark.parametrize("num_walks", [1, 4, 16])
def test_puct_is_the_formula(num_walks):
    root = random_bandits()
    knobs = [
        {"c": c, "virtual_loss": loss, "unvisited": unvisited}
        for c, loss, unvisited in [
            (5.0, 1, "zero"),
            (1.0, 1, "value"),
            (1.0, 0.3, "zero"),
            (1.0, 0.3, "value"),
            (2.0, None, "zero"),
            (0.5, None, "value"),
        ]
    ]

    @jax.jit
    def select(root):
        return [
            jaxpgs.puct(k["c"], virtual_loss=k["virtual_loss"], unvisited=k["unvisited"])(
                root, num_walks
            )
            for k in knobs
        ]

    chosen = select(root)
    for actions, k in zip(chosen, knobs, strict=True):
        check_selection(actions, puct_reference, root, num_walks, **k)
    for i in range(1, len(knobs)):  # the knobs matter
        assert (np.asarray(chosen[i]) != np.asarray(chosen[0])).any()


def test_puct_defaults_are_the_papers():
    root = random_bandits(50)
    actions = jaxpgs.puct()(root, 4)
    check_selection(actions, puct_reference, root, 4, c=5.0, virtual_loss=1.0, unvisited="zero")


@pytest.mark.parametrize("virtual_loss", [1.0, 0.3, None])
def test_ucb1_is_the_formula(virtual_loss):
    root = random_bandits()
    actions = jaxpgs.ucb1(0.7, virtual_loss=virtual_loss)(root, 8)
    check_selection(
        actions, ucb1_reference, root, 8, c=0.7, virtual_loss=virtual_loss, unvisited="zero"
    )


def test_virtual_loss_spreads_simulations():
    # By hand: c = 0, one visit of value 1/2 and of 1/4. After one pending -1 the first has
    # (1/2 - 1) / 2 = -1/4, so the second is next, then (1/4 - 1) / 2 = -3/8, then the first again.
    root = bandit([[0.0, 0.0]], [[1, 1]], [[0.5, 0.25]])
    assert jaxpgs.puct(0.0)(root, 3).tolist() == [[0, 1, 0]]
    assert jaxpgs.puct(0.0, virtual_loss=None)(root, 3).tolist() == [[0, 0, 0]]
    # A loss of 1/10 is too small for the first switch: (1/2 - 1/10) / 2 = 1/5 < 1/4, then 3/40.
    assert jaxpgs.puct(0.0, virtual_loss=0.1)(root, 3).tolist() == [[0, 1, 0]]
    assert jaxpgs.puct(0.0, virtual_loss=-0.1)(root, 3).tolist() == [[0, 0, 1]]


# --- truncation -----------------------------------------------------------------------------------


def crafted(depth, *, visits=0, log_prob=0.0, simulation=None, code=0):
    """A Path `[1, K]` from lists or numbers."""
    fields = np.broadcast_arrays(np.atleast_1d(depth), visits, log_prob, code)
    depth, visits, log_prob, code = (jnp.asarray(x)[None] for x in fields)
    walks = depth.shape[1]
    return Path(
        depth=depth.astype(jnp.int32),
        code=code.astype(jnp.uint32),
        log_prob=log_prob.astype(jnp.float32),
        alive=jnp.ones((1, walks), bool),
        visits=visits.astype(jnp.int32),
        simulation=jnp.arange(walks) if simulation is None else jnp.asarray(simulation),
    )


def lengths(truncation, longest, **fields):
    """The depth at which each of K simulations stops first."""
    size = len(np.atleast_1d(next(iter(fields.values()))))
    memory = truncation.init(1)
    stops = [
        np.asarray(truncation.stop(memory, crafted(np.full(size, d), **fields)))[0]
        for d in range(1, longest + 1)
    ]
    stops.append(np.ones(size, bool))
    return (np.argmax(stops, axis=0) + 1).tolist()


def test_fixed_stops_at_its_depth():
    truncation = jaxpgs.fixed(3)
    assert truncation.max_depth == 3
    assert truncation.stop((), crafted([1, 2, 3, 4])).tolist() == [[False, False, True, True]]


def test_growing_adds_one_every_so_often():
    found = lengths(jaxpgs.growing(2, every=3), 6, simulation=np.arange(8))
    assert found == [2, 2, 2, 3, 3, 3, 4, 4]
    found = lengths(jaxpgs.growing(), 4, simulation=[0, 99, 100, 199, 200])
    assert found == [1, 1, 2, 2, 3]


def test_by_visits_is_the_thesis_example():
    # b = 3: "the first three trajectories ... a length of one, ... up to the ninth ... of two".
    found = lengths(jaxpgs.by_visits(3), 5, visits=np.arange(30))
    assert found == [1] * 3 + [2] * 6 + [3] * 18 + [4] * 3


@pytest.mark.parametrize("branching", [2, 3, 6, 10])
def test_by_visits_is_exact_at_powers(branching):
    powers = [branching**i for i in range(1, 20) if branching**i <= 2**20]
    visits = np.array([n for p in powers for n in (p - 1, p, p + 1)])
    # floor(ln N / ln b) + 1 in integers.
    expected = [next(d for d in range(1, 40) if branching**d > n) for n in visits.tolist()]
    assert lengths(jaxpgs.by_visits(branching), 25, visits=visits) == expected


def test_by_probability_stops_below_the_threshold():
    log_prob = np.log([0.9, 0.51, 0.5, 0.49, 1e-30])
    path = crafted(1, log_prob=np.float32(log_prob))
    stop = jaxpgs.by_probability(0.5).stop((), path)
    assert stop.tolist() == [[False, False, False, True, True]]


@functools.cache
def compiled(truncation):
    return jax.jit(truncation.stop), jax.jit(truncation.update), jax.jit(extend_code)


def parallel_lengths(truncation, actions):
    """Runs given action sequences `[updates, B, K, T]`, all walks of an update side by side."""
    stop, note, extend = compiled(truncation)
    updates, batch, walks, longest = actions.shape
    memory = truncation.init(batch)
    found = np.zeros((updates, batch, walks), int)
    zeros = jnp.zeros((batch, walks), jnp.int32)
    for n in range(updates):
        path = Path(
            depth=zeros,
            code=extend(zeros.astype(jnp.uint32), jnp.asarray(actions[n, ..., 0])),
            log_prob=zeros.astype(jnp.float32),
            alive=zeros == 0,
            visits=zeros,
            simulation=n * walks + jnp.arange(walks),
        )
        for depth in range(1, longest + 1):
            path = path._replace(depth=path.depth + path.alive.astype(jnp.int32))
            ended = (stop(memory, path) | (depth == longest)) & path.alive
            found[n][np.asarray(ended)] = depth
            alive = path.alive & ~ended
            if depth < longest:
                code = extend(path.code, jnp.asarray(actions[n, ..., depth]))
                path = path._replace(code=jnp.where(alive, code, path.code))
            path = path._replace(alive=alive)
        memory = note(memory, path)
    return found


def sequential_lengths(actions):
    """The same with a set of all sequences, one walk after another."""
    updates, batch, walks, longest = actions.shape
    found = np.zeros((updates, batch, walks), int)
    seen = [set() for _ in range(batch)]
    for n, b, k in np.ndindex(updates, batch, walks):
        sequence = tuple(actions[n, b, k].tolist())
        depth = 1
        while depth < longest and sequence[:depth] in seen[b]:
            depth += 1
        seen[b].add(sequence[:depth])
        found[n, b, k] = depth
    return found


# The big table is large enough that 3 * 96 sequences share no bit; a small one must collide.
SEQUENCES = np.random.default_rng(11).integers(0, 2, (12, 3, 8, 7)).astype(np.int32)


def test_until_new_is_a_set_of_sequences():
    expected = sequential_lengths(SEQUENCES)
    assert set(np.unique(expected)) >= {1, 2, 3, 4, 5, 6}
    np.testing.assert_array_equal(parallel_lengths(jaxpgs.until_new(2**24), SEQUENCES), expected)
    # Three actions, more walks an update than short sequences.
    wide = np.random.default_rng(12).integers(0, 3, (2, 2, 20, 5)).astype(np.int32)
    np.testing.assert_array_equal(
        parallel_lengths(jaxpgs.until_new(2**24), wide), sequential_lengths(wide)
    )


@pytest.mark.parametrize("table_size", [1, 16, 32, 64, 256])
def test_small_table_only_lengthens(table_size):
    exact = sequential_lengths(SEQUENCES)
    found = parallel_lengths(jaxpgs.until_new(table_size), SEQUENCES)
    assert (found >= exact).all()
    assert (found > exact).any()
    # The first walk of a search meets an empty table.
    assert (found[0, :, 0] == 1).all()
    if table_size == 1:
        # One bit: after the first update every sequence counts as known.
        assert (found[1:] == SEQUENCES.shape[-1]).all()


def test_default_table_is_wide_enough():
    # Three roots of 96 sequences in 2**15 bits: 3 * 96**2 / 2 / 2**15 = 0.4 collisions expected.
    differing = parallel_lengths(jaxpgs.until_new(), SEQUENCES) != sequential_lengths(SEQUENCES)
    assert differing.sum() <= 5


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
    "fixed": jaxpgs.fixed(2),
    "growing": jaxpgs.growing(1, every=6),
    "by_visits": jaxpgs.by_visits(3),
    "by_probability": jaxpgs.by_probability(0.3),
    "until_new": jaxpgs.until_new(),
    "never": jaxpgs.fixed(99),
}


@jax.jit
def searched(params, rng_key, root, invalid_actions, rule, dirichlet_fraction):
    """A Monte Carlo search whose truncation is chosen at run time, to compile them all at once."""
    rules = list(RULES.values())
    truncation = Truncation(
        init=lambda size: [r.init(size) for r in rules],
        stop=lambda memory, path: jnp.stack(
            [
                jnp.broadcast_to(r.stop(m, path), path.depth.shape)
                for r, m in zip(rules, memory, strict=True)
            ]
        )[rule],
        update=lambda memory, path: [r.update(m, path) for r, m in zip(rules, memory, strict=True)],
    )
    return jaxpgs.mcs_policy(
        params,
        rng_key,
        root,
        toy.recurrent_fn,
        N,
        invalid_actions,
        T,
        simulations_per_update=K,
        truncation=truncation,
        root_selection=jaxpgs.puct(2.0),
        dirichlet_fraction=dirichlet_fraction,
    )


def depth_counts(rule, logits, seed=0):
    """For each root and first action, how many simulations had length 1, 2, 3, 4.

    A state at depth d is worth 32^(d-1), so the sum of returns holds the counts as digits.
    """
    depth = np.array([len(toy.actions_to(3, node)) for node in range(121)])
    params = toy.tree(
        3,
        4,
        value=np.where(depth > 0, float(BASE) ** (depth - 1), 0),
        reward=np.full((121, 3), 7.0),  # left out by the default backup
    )
    output = searched(
        params,
        keys(seed, 3),
        toy.root(params, [0] * 3, logits=np.tile(logits, (3, 1))),
        jnp.zeros((3, 3), jnp.int32),
        list(RULES).index(rule),
        0.0,
    )
    state = output.search_state
    total = np.rint(np.asarray(state.qvalues, np.float64) * np.asarray(state.visits)).astype(int)
    counts = np.stack([total // BASE**d % BASE for d in range(T)], axis=-1)
    np.testing.assert_array_equal(counts.sum(-1), state.visits)
    np.testing.assert_array_equal(np.sum(state.visits, axis=-1), N)
    evaluations = (counts * np.arange(1, T + 1)).sum((1, 2))
    np.testing.assert_array_equal(state.num_evaluations, evaluations)
    np.testing.assert_allclose(state.depth, evaluations / N, rtol=1e-6)
    return counts


def test_search_with_fixed_depth():
    assert (depth_counts("fixed", [0.0, 0, 0]).sum(1) == [0, N, 0, 0]).all()


def test_search_stops_at_max_depth():
    assert (depth_counts("never", [0.0, 0, 0]).sum(1) == [0, 0, 0, N]).all()


def test_search_with_growing_depth():
    # Simulations 0-5, 6-11, 12-15, across the updates of 4.
    assert (depth_counts("growing", [0.0, 0, 0]).sum(1) == [6, 6, 4, 0]).all()


def test_search_by_visits():
    counts = depth_counts("by_visits", [2.0, 0, 0])
    for by_action in counts.reshape(-1, T):
        n = by_action.sum()
        assert by_action.tolist() == [
            min(n, 3),
            np.clip(n - 3, 0, 6),
            np.clip(n - 9, 0, 18),
            0,
        ]
    assert (counts[..., 1] > 0).any()


def test_search_by_probability():
    # 0.6 * 1/3 falls under 0.3 at the second action; 0.3 does at the second, 0.1 at the first.
    counts = depth_counts("by_probability", np.log([0.6, 0.31, 0.09]))
    visits = counts.sum(-1)
    assert (visits > 0).all()
    np.testing.assert_array_equal(counts[:, 0, 1], visits[:, 0])
    np.testing.assert_array_equal(counts[:, 1, 1], visits[:, 1])
    np.testing.assert_array_equal(counts[:, 2, 0], visits[:, 2])
    # With a certain first action the third goes under: 1/3 is not, 1/9 is.
    counts = depth_counts("by_probability", [50.0, 0, 0])
    visits = counts.sum(-1)
    np.testing.assert_array_equal(counts[:, 0, 2], visits[:, 0])


def test_search_until_new():
    for seed in range(3):
        counts = depth_counts("until_new", [1.0, 0, 0], seed)
        for first, second, third, fourth in counts.reshape(-1, T):
            # Every sequence ends one simulation: one of length 1, at most 3 of length 2, 9 of 3.
            n = first + second + third + fourth
            assert first == min(n, 1)
            assert min(n - 1, 1) <= second <= 3
            assert third <= 9


def test_dirichlet_noise_in_a_search():
    params = toy.tree(3, 4)
    root = toy.root(params, [0] * 3)
    invalid = jnp.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])

    def visits(seed, fraction):
        output = searched(params, keys(seed, 3), root, invalid, 0, fraction)
        np.testing.assert_allclose(output.action_weights.sum(-1), 1, rtol=1e-6)
        return np.asarray(output.search_state.visits)

    found = [visits(seed, 0.25) for seed in range(8)]
    assert (np.stack(found) * np.asarray(invalid) == 0).all()
    np.testing.assert_array_equal(found[0], visits(0, 0.25))
    assert any((f != found[0]).any() for f in found[1:])
    # Without noise the key has no part in a game that pays nothing.
    np.testing.assert_array_equal(visits(0, 0.0), visits(1, 0.0))


def test_dirichlet_noise_has_its_moments():
    count, alpha, fraction = 5000, 0.5, 0.25
    logits = jnp.broadcast_to(jnp.array([1.0, 0.0, 5.0, 0.0]), (count, 4))
    invalid = jnp.broadcast_to(jnp.array([0, 0, 1, 0]), (count, 4))
    root = toy.mctx.RootFnOutput(
        prior_logits=logits, value=jnp.zeros(count), embedding=jnp.zeros(count)
    )
    prior = np.exp(_init_stats(root, invalid, keys(13, count), fraction, alpha).prior_logits)
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
    return jax.vmap(lambda key: jaxpgs.visit_counts(temperature)(key, one))(rng_keys)


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
    """Actions, log probabilities and entropies of draws from one policy."""
    log_policy = jnp.broadcast_to(jax.nn.log_softmax(logits), (1, uniform.size, logits.size))
    return jax.tree.map(lambda x: x[0], _sample(log_policy, uniform[None]))


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
    # On a grid of uniforms the frequencies are the probabilities up to one draw.
    actions, _, _ = sampled(logits, (jnp.arange(20000.0) + 0.5) / 20000)
    counts = np.bincount(actions, minlength=6)
    assert np.abs(counts - 20000 * probabilities).max() <= 1.5


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
    assert np.isfinite(log_prob).all() and np.isfinite(entropy).all()
    assert len(np.unique(actions)) > 1
    # Where rounding lifts a uniform to 1, no sum exceeds it: the most probable action it is.
    actions, _, _ = sampled(jnp.asarray(logits, jnp.float32), jnp.ones(100000))
    assert (np.asarray(actions) == logits.argmax()).all()


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


def run(params, seed, adapted, num_simulations):
    return toy.pgs(
        params,
        keys(seed, 16),
        toy.root(params, [0] * 16),
        jnp.tile(jnp.array([[0, 1]]), (16, 1)),
        adapted,
        400.0,
        num_simulations=num_simulations,
        simulations_per_update=2,
    ).search_state.params


def test_adapted_params_go_on_where_the_last_search_ended():
    # All simulations take the same actions, so the key has no part, and two searches of one update
    # each are one search of two updates.
    params = steady_game()
    start = toy.start(params, 16)
    once = run(params, 0, start, 2)
    twice = run(params, 1, once, 2)
    through = run(params, 2, start, 4)
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

    def found(params, adapted):
        return toy.pgs(
            params,
            keys(23, 16),
            toy.root(pencil_game(-1.0), [0] * 16),
            jnp.zeros((16, 2), jnp.int32),
            adapted,
            0.5,
            num_simulations=2,
            simulations_per_update=2,
        )

    from_adapted = found(params, adapted)
    jax.tree.map(
        np.testing.assert_array_equal, from_adapted, found(params | {"head": head}, adapted)
    )
    moved = np.asarray(from_adapted.search_state.params["head"])
    assert (moved != np.asarray(adapted["head"])).any()
    other = found(params, toy.start(params, 16)).search_state
    assert (moved != np.asarray(other.params["head"])).any()


def test_reset_adapted_root_by_root():
    params = steady_game()
    adapted = run(params, 0, toy.start(params, 16), 2)
    reset = jaxpgs.reset_adapted(adapted, params, jnp.arange(16) % 3 == 0)
    for b in range(16):
        own = b % 3 == 0
        np.testing.assert_array_equal(
            reset["head"][b], params["head"] if own else adapted["head"][b]
        )
    assert (np.asarray(adapted["head"]) != np.asarray(params["head"])).any((1, 2)).all()
    assert all(leaf is None for name, leaf in reset.items() if name != "head")
    # It is the argument of the next search: the reset roots do what a first search does.
    following = run(params, 3, reset, 2)
    np.testing.assert_allclose(following["head"][::3], adapted["head"][::3], rtol=1e-6)
