"""The extensions of policy gradient search: returns, the update per step, the preset, reuse."""

import dataclasses
import functools
import types

import chex
import games
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

import jaxpgs
from jaxpgs.base import NodeStats
from jaxpgs.search import init, step
from jaxpgs.search.parts.reuse import reweigh


def walks(depth, value, reward=0.0, discount=1.0, log_prob=None, num_steps=None):
    """A trajectory of one root, `[T, 1, K]`, whose simulations have the given lengths."""
    depth = np.asarray(depth)[None]
    num_steps = num_steps or int(depth.max()) + 1
    alive = np.arange(num_steps)[:, None, None] < depth
    value, reward, discount = (
        jnp.asarray(np.where(alive, x, 0.0), jnp.float32) for x in (value, reward, discount)
    )
    nothing = 0 * value
    return jaxpgs.base.Trajectory(
        alive=jnp.asarray(alive), reward=reward, discount=discount, value=value,
        log_prob=nothing if log_prob is None else log_prob, entropy=nothing, kl_to_prior=nothing,
        kl_from_prior=nothing, depth=jnp.asarray(depth, jnp.int32), limited=jnp.asarray(depth < 0),
        num_evaluations=jnp.zeros(1, jnp.int32), num_calls=jnp.zeros(1, jnp.int32),
    )  # fmt: skip


def weights(backup, length=5):
    """The weight of each value behind the root's action, in simulations of one length."""
    values = np.eye(length + 1, length)[:, None]  # simulation k has the value 1 after k + 1 steps
    return np.asarray(backup(walks([length] * length, values))[0, 0])


@pytest.mark.slow
def test_weights_of_the_returns_for_five_steps():
    series, geometric = jaxpgs.backup.log_series, jaxpgs.backup.truncated_geometric
    by_hand = 1 / np.arange(1, 6) / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    np.testing.assert_allclose(by_hand, [0.438, 0.219, 0.146, 0.109, 0.088], atol=6e-4)
    np.testing.assert_allclose(weights(series(1.0)), by_hand, rtol=1e-5)
    np.testing.assert_allclose(weights(series(1 - 1e-6)), by_hand, rtol=1e-4)
    expected = [0.441, 0.219, 0.145, 0.109, 0.086]
    np.testing.assert_allclose(weights(series(0.995)), expected, atol=1e-3)
    np.testing.assert_allclose(weights(geometric(0.995)), 0.2, atol=3e-3)
    np.testing.assert_allclose(weights(geometric(1.0)), 0.2, rtol=1e-5)
    for backup in (series(0.0), geometric(0.0), jaxpgs.backup.td_lambda(0.0)):
        np.testing.assert_allclose(weights(backup), [1, 0, 0, 0, 0])
    np.testing.assert_allclose(weights(jaxpgs.backup.td_lambda(1.0)), [0, 0, 0, 0, 1])
    np.testing.assert_allclose(
        weights(jaxpgs.backup.td_lambda(0.5)), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16]
    )


BACKUPS = {
    "log_series": (jaxpgs.backup.log_series, lambda p, k, left: p**k / k),
    "truncated_geometric": (jaxpgs.backup.truncated_geometric, lambda p, k, left: p**k),
    "td_lambda": (
        jaxpgs.backup.td_lambda,
        lambda p, k, left: p ** (k - 1) * ((1 - p) if k < left else 1),
    ),
}


@pytest.mark.parametrize("name", BACKUPS)
def test_returns_against_the_formula(name):
    """Rewards, discounts of two players, ends of episodes, simulations of different lengths."""
    make, weight = BACKUPS[name]
    rng, depth, p = np.random.default_rng(0), [6, 1, 4, 0, 3], 0.7
    shape = (8, 1, len(depth))
    value, reward = rng.normal(size=(2, *shape))
    discount = np.full(shape, -0.9)
    discount[2, 0, 4] = 0.0  # the last simulation ends its episode
    value[2, 0, 4] = np.nan
    trajectory = walks(depth, value, reward, discount, num_steps=8)
    expected = np.zeros(shape)
    for k, length in enumerate(depth):
        for t in range(length):
            found, total, prefix, sign = 0.0, 0.0, 0.0, 1.0
            for n in range(1, length - t + 1):
                prefix += sign * reward[t + n - 1, 0, k]
                sign *= discount[t + n - 1, 0, k]
                tail = 0.0 if sign == 0 else sign * value[t + n - 1, 0, k]
                w = weight(p, n, length - t)
                found, total = found + w * (prefix + tail), total + w
            expected[t, 0, k] = found / total
    returns = jax.jit(make(p))(trajectory)
    np.testing.assert_allclose(returns, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda p: make(p)(trajectory))(p), returns, rtol=1e-6)


def chain_gradient(estimator):
    """The expected gradient at the logits of a chain of two steps, to +1 and to -1."""
    value = np.array([[0.0, 0.0], [1.0, -1.0]])[:, None]  # s_1 is even, then good and bad

    def objective(logits):
        log_prob = jnp.stack([0 * logits, jax.nn.log_softmax(logits)])[:, None]
        trajectory = walks([2, 2], value, log_prob=log_prob, num_steps=2)
        returns = jaxpgs.backup.n_step()(trajectory)
        stats = NodeStats(
            jnp.zeros((1, 2)), jnp.zeros(1), jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 2)),
            jnp.ones((1, 2), bool),
        )  # fmt: skip
        return jnp.sum(estimator(stats, trajectory, returns)) / 2  # each action half of the time

    return np.asarray(jax.grad(objective)(jnp.zeros(2)))


def test_the_printed_update_goes_down_and_the_repaired_one_up():
    np.testing.assert_allclose(chain_gradient(jaxpgs.estimator.reinforce()), [0.5, -0.5])
    np.testing.assert_allclose(chain_gradient(jaxpgs.estimator.step_advantage()), [0.5, -0.5])
    printed = jaxpgs.estimator.step_advantage(as_printed=True)
    np.testing.assert_allclose(chain_gradient(printed), [-0.25, 0.25])


@pytest.mark.parametrize("as_printed", [False, True])
def test_the_update_per_step_against_the_formula(as_printed):
    rng, depth = np.random.default_rng(1), [5, 1, 3]
    value, reward = rng.normal(size=(2, 6, 1, 3))
    discount = np.full((6, 1, 3), -1.0)
    discount[2, 0, 2] = 0.0
    trajectory = walks(depth, value, reward, discount, num_steps=6)
    estimator = jaxpgs.estimator.step_advantage(as_printed=as_printed)
    cotangents = jax.grad(
        lambda x: jnp.sum(estimator(None, trajectory._replace(log_prob=x), None))
    )(trajectory.log_prob)
    expected = np.zeros((6, 1, 3))
    for k, length in enumerate(depth):
        # The value of s_1, s_2, ... for the player at the root; the reward where the game ended.
        seen = [
            (-1) ** t * (reward[t, 0, k] if discount[t, 0, k] == 0 else -value[t, 0, k])
            for t in range(length)
        ]
        for t in range(1, length):
            if as_printed:
                expected[t, 0, k] = value[t - 1, 0, k] - (-1) ** t * np.mean(seen)
            else:
                tail = discount[t, 0, k] * value[t, 0, k]
                expected[t, 0, k] = reward[t, 0, k] + tail - value[t - 1, 0, k]
    np.testing.assert_allclose(cotangents, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count_first", [True, False])
def test_lengths_by_visits_with_and_without_the_first_action(count_first):
    truncation = jaxpgs.truncation.by_visits(3.0, count_first=count_first)
    visits = np.arange(30)
    expected = np.array([int(np.log(max(n, 1)) / np.log(3) + 1e-9) + 1 for n in visits])
    expected += not count_first
    path = toy.start_path(jnp.zeros((1, 30), jnp.int32))._replace(visits=jnp.asarray(visits)[None])
    for depth in range(1, 7):
        stops = truncation.stop(path._replace(depth=jnp.full((1, 30), depth, jnp.int32)))
        np.testing.assert_array_equal(stops[0], depth >= expected)
    assert truncation.max_depth(30) == expected.max()


@functools.cache
def game(branching=3, depth=3):
    rng = np.random.default_rng(5)
    size = sum(branching**d for d in range(depth + 1))
    return toy.tree(
        branching, depth, discount=-0.9, features=rng.normal(size=(size, 4)),
        head=rng.normal(size=(4, branching)), value=rng.uniform(-1, 1, size),
        reward=rng.uniform(-1, 1, (size, branching)),
    )  # fmt: skip


def data(roots=(0, 1, 2)):
    return game(), jax.random.split(jax.random.key(1), len(roots)), toy.root(game(), roots)


def head(output):
    return np.asarray(output.search_state.params["head"])


@pytest.mark.slow
def test_the_preset_says_the_same_in_both_modes_and_all_of_it_learns():
    outputs = []
    for mode in ("rollouts", "tree"):
        paper = jaxpgs.paper_extended_pgs() | {
            "simulations_per_update": 4, "mode": mode, "kl_from_prior": 0.1,
            "truncation": jaxpgs.truncation.by_visits(2.0, count_first=False),
        }  # fmt: skip
        policy = functools.partial(
            jaxpgs.extended_pgs_policy, recurrent_fn=toy.split_fn, num_simulations=24,
            adapt=toy.adapt_head, **paper,
        )  # fmt: skip
        with games.lenient_promotion():  # optax's Adam
            outputs.append(jax.jit(policy)(*data()))
    rollouts, tree = outputs
    np.testing.assert_array_equal(rollouts.search_state.visits, tree.search_state.visits)
    np.testing.assert_allclose(rollouts.action_weights, tree.action_weights, atol=1e-6)
    np.testing.assert_allclose(head(rollouts), head(tree), atol=1e-5)
    assert (np.abs(head(tree) - np.asarray(game()["head"])[None]) > 1e-4).any((1, 2)).all()
    # Of eq. 3.4: what was tried seldom keeps the weight of its prior.
    assert (np.asarray(tree.action_weights) > 0).all()


def test_the_preset_without_its_extensions_is_pgs():
    off = {
        "truncation": jaxpgs.truncation.fixed(3),
        "backup": jaxpgs.backup.n_step(),
        "target": jaxpgs.target.visit_counts(),
        "optimizer": optax.sgd(0.1),
        "adapt": toy.adapt_head,
        "root_selection": jaxpgs.selection.puct(1.0),
        "interior_selection": None,
    }
    plain = jaxpgs.search.pgs_search(toy.split_fn, 8, **off)
    bare = jaxpgs.search.extended_pgs_search(toy.split_fn, 8, entropy=0.0, kl_to_prior=0.0, **off)
    for field in set(vars(plain)) - {"estimator"}:
        assert getattr(bare, field) == getattr(plain, field), field
    trajectory = walks([2, 3], np.ones((4, 1, 2)), log_prob=jnp.full((4, 1, 2), -0.5))
    trajectory = trajectory._replace(entropy=trajectory.value, kl_to_prior=trajectory.value)
    # Both learn alike by default, and a penalty of 0 adds nothing.
    returns = 2 * trajectory.value
    root = types.SimpleNamespace(scale=None)
    objectives = [s.estimator(root, trajectory, returns) for s in (bare, plain)]
    np.testing.assert_array_equal(*objectives)
    assert (objectives[0] != jaxpgs.estimator.step_advantage()(None, trajectory, returns)).all()
    with pytest.raises(TypeError, match=r"extended_pgs_policy\(\) has no .*'entropi'.*'entropy'"):
        jaxpgs.extended_pgs_policy(*data(), toy.split_fn, 8, adapt=toy.adapt_head, entropi=1.0)


def pgs(count=12, **knobs):
    knobs = {
        "simulations_per_update": 4, "adapt": toy.adapt_head, "mode": "tree",
        "optimizer": optax.sgd(0.3), "truncation": jaxpgs.truncation.fixed(3),
        "estimator": jaxpgs.estimator.regularized(
            jaxpgs.estimator.reinforce("value"), entropy=0.1, kl_to_prior=0.2, kl_from_prior=0.1
        ),
    } | knobs  # fmt: skip
    return jaxpgs.search.pgs_search(toy.split_fn, count, **knobs)


@functools.partial(jax.jit, static_argnums=2)
def reference_gradient(carry, head, reuse, weights):
    """The gradient of root 0's ring, as the textbooks write the objective."""
    ring = jax.tree.map(lambda x: x[0, 1:], carry.ring)  # the policy acts from t = 1 on
    value = carry.ring.value[0, :-1]
    source = ring.steps.source  # nodes, or of rollouts the features and states
    if isinstance(carry.memory, jaxpgs.search.Nodes):
        seen = game()["torso"][carry.memory.embedding[0][0, :, 0][source]]
    else:
        seen = source[0]
    log_q = jax.nn.log_softmax(seen @ game()["head"])
    advantage = ring.returns - value
    entropy, to_prior, from_prior = weights

    def objective(own):
        log_p = jax.nn.log_softmax(seen @ own)
        taken = jnp.take_along_axis(log_p, ring.steps.action[..., None], axis=-1)[..., 0]
        ratio = jnp.exp(taken - ring.log_prob)
        if reuse.clip is None:
            product = jnp.cumprod(jnp.where(ring.alive, ratio, 1.0), axis=0)
            total = jax.lax.stop_gradient(product) * advantage * taken
        else:
            clipped = jnp.clip(ratio, 1 - reuse.clip, 1 + reuse.clip)
            total = jnp.minimum(ratio * advantage, clipped * advantage)
        total -= entropy * jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        total -= to_prior * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
        total -= from_prior * jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)
        return jnp.sum(jnp.where(ring.alive, total, 0.0))

    return jax.grad(objective)(head)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, reuse",
    [("tree", jaxpgs.reuse.Reuse(2)), ("rollouts", jaxpgs.reuse.Reuse(2, num_epochs=2, clip=0.1))],
)
def test_a_ring_of_two_updates_against_plain_autodiff(mode, reuse):
    """The first update is the plain one, the second learns from both, the third forgets the first.

    That nothing is clipped at first follows from the reference, whose ratios are 1 there.
    """
    search, (params, *rest) = pgs(reuse=reuse, mode=mode), data()
    go = jax.jit(functools.partial(step, search))
    carries = [jax.jit(init, static_argnums=0)(search, params, *rest)]
    for _ in range(4):
        carries.append(go(params, carries[-1]))
    if reuse.num_epochs == 1:
        plain = jax.jit(functools.partial(step, pgs(interior_selection=None)))
        plain = plain(params, carries[0]._replace(ring=None))
        chex.assert_trees_all_close(plain.adapted, carries[1].adapted, atol=2e-6)
    for number in range(3):
        before, after = carries[number : number + 2]
        assert (np.asarray(after.ring.alive).any(1).sum(-1) == min(4 + 4 * number, 8)).all()
        own = before.adapted["head"][0]
        for _ in range(reuse.num_epochs):
            own = own + 0.3 * reference_gradient(after, own, reuse, (0.1, 0.2, 0.1))
        np.testing.assert_allclose(after.adapted["head"][0], own, rtol=1e-3, atol=1e-4)
        assert np.abs(own - before.adapted["head"][0]).max() > 0.05
    ratios = np.abs(np.asarray(carries[2].ring.log_prob - carries[3].ring.log_prob))
    assert ratios.max() > 0, "the oldest update was replaced"
    for field in ("adapted", "ring", "stats", "totals"):  # the budget of three updates is spent
        chex.assert_trees_all_equal(getattr(carries[4], field), getattr(carries[3], field))


@pytest.mark.first_case
@pytest.mark.parametrize("mode", ["rollouts", "tree"])
def test_every_loop_starts_from_data(mode):
    """As `jax.shard_map` asks, which tells when it is traced, for one device as for many."""
    search = pgs(
        reuse=jaxpgs.reuse.Reuse(2, num_epochs=2), mode=mode, backup=jaxpgs.backup.log_series(),
        estimator=jaxpgs.estimator.step_advantage(as_printed=True),
    )  # fmt: skip
    mesh, rows = jax.make_mesh((1,), ("roots",)), jax.P("roots")
    shared = jax.device_put(data()[1:], jax.NamedSharding(mesh, rows))
    share = functools.partial(jax.shard_map, mesh=mesh, out_specs=rows)
    begin = share(functools.partial(init, search), in_specs=(jax.P(), rows, rows))
    carry = jax.eval_shape(jax.jit(begin), game(), *shared)
    assert carry.ring.alive.shape == (3, 3, 8)
    go = share(functools.partial(step, search), in_specs=(jax.P(), rows))
    jax.eval_shape(jax.jit(go), game(), carry)


def test_weights_by_hand():
    gradient = jnp.array([0.0, 2.0, 2.0, -2.0])[:, None, None]
    ratio = jnp.log(jnp.array([1.0, 2.0, 0.5, 3.0]))[:, None, None]
    by_hand = {
        jaxpgs.reuse.Reuse(): [0, 4, 2, -6],  # products 2, 1, 3
        jaxpgs.reuse.Reuse(max_weight=1.5): [0, 3, 2, -3],
        jaxpgs.reuse.Reuse(clip=0.2): [0, 0, 1, -6],  # 2 is past 1.2, upwards; 0.5 and 3 come back
    }
    for reuse, expected in by_hand.items():
        np.testing.assert_allclose(reweigh(reuse, gradient, ratio)[:, 0, 0], expected, rtol=1e-6)
        np.testing.assert_array_equal(reweigh(reuse, gradient, 0 * ratio), gradient)


def begin(search):
    """Begins a search, but for its numbers."""
    return jax.eval_shape(functools.partial(init, search), *data())


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: jaxpgs.backup.log_series(1.5), "log_series needs p to be .* at most 1; got 1.5"),
        (lambda: jaxpgs.backup.truncated_geometric(-0.1), "truncated_geometric needs p"),
        (lambda: jaxpgs.backup.td_lambda(np.nan), "td_lambda needs trace"),
        (lambda: jaxpgs.reuse.Reuse(0), "Reuse needs num_updates to be .* at least 1.*; got 0"),
        (lambda: jaxpgs.reuse.Reuse(num_epochs=0), "Reuse needs num_epochs"),
        (lambda: jaxpgs.reuse.Reuse(clip=0.0), "Reuse needs clip to be .* above 0"),
        *[
            (
                lambda mode=mode: begin(
                    jaxpgs.search.pgs_search(
                        toy.recurrent_fn,
                        4,
                        adapt=toy.adapt_head,
                        reuse=jaxpgs.reuse.Reuse(),
                        mode=mode,
                    )
                ),
                "reuse needs a model that can be split .*nothing of the network is independent",
            )
            for mode in ("rollouts", "tree", None)
        ],
        (
            lambda: begin(
                pgs(
                    reuse=jaxpgs.reuse.Reuse(),
                    mode="rollouts",
                    adapt=lambda path, leaf: path[0].key != "next",
                )
            ),
            "reuse needs a model that can be split .*depends on .*'torso'",
        ),
        (
            lambda: pgs(reuse=jaxpgs.reuse.Reuse(), capacity=3),
            "capacity and interior_selection must be",
        ),
        (
            lambda: dataclasses.replace(
                jaxpgs.search.mcs_search(toy.split_fn, 4), reuse=jaxpgs.reuse.Reuse()
            ),
            "needs an estimator",
        ),
    ],
)
def test_what_cannot_be_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
