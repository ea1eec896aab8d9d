"""What policies learn from a search, offsets, and searches whose values are playouts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from games import QUICK

import jaxpgs
from jaxpgs.adapters.playouts import make_playout, make_playout_fns
from jaxpgs.base import NodeStats
from jaxpgs.envs import Hex, SameGame
from jaxpgs.networks import FullyConnectedResNet, WithOffsets, functional, offset_policy
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import (
    expert_iteration,
    experts,
    losses,
    objectives,
    replay,
    selfplay,
)

ENV = Hex(3)
LOWEST = np.finfo(np.float32).min


def make_target(visits, qvalues, legal=None, prior=None, value=0.0):
    """Positions of which a search knows this; the policy to imitate is the share of the visits."""
    visits, qvalues = np.asarray(visits, np.int32), np.asarray(qvalues, np.float32)
    legal = np.ones(visits.shape, bool) if legal is None else np.asarray(legal)
    rows = visits.shape[:1]
    root = NodeStats(
        prior_logits=np.where(legal, 0 if prior is None else prior, LOWEST).astype(np.float32),
        value=np.full(rows, value, np.float32),
        visits=visits,
        value_sum=(visits * qvalues).astype(np.float32),
        valid=legal,
    )
    policy = (visits / visits.sum(axis=-1, keepdims=True)).astype(np.float32)
    zeros = np.zeros(rows, np.float32)
    return selfplay.Experience(zeros[:, None], legal, policy, zeros, zeros, root=root)


def policy_of(logits):
    weight = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weight / weight.sum(axis=-1, keepdims=True)


@functools.cache
def loss_and_gradient(untried):
    objective = objectives.tspg(untried)
    loss = lambda logits, target: losses.objective_loss(logits, target, objective)  # noqa: E731
    return jax.jit(jax.value_and_grad(loss))


def test_the_gradient_is_that_of_the_paper_and_of_finite_differences():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5)).astype(np.float32)
    qvalues = rng.uniform(-1, 1, (2, 5)).astype(np.float32)
    legal = np.array([[True] * 5, [True, True, False, True, True]])
    target = make_target(np.where(legal, 3, 0), qvalues, legal)
    loss, gradient = loss_and_gradient("completed")(logits, target)

    policy = policy_of(np.where(legal, logits.astype(np.float64), -np.inf))
    mean = (policy * qvalues).sum(axis=-1, keepdims=True)
    best = np.where(legal, qvalues, -np.inf).max(axis=-1)
    np.testing.assert_allclose(loss, (best - mean[:, 0]).mean(), rtol=1e-5)
    # Of a mean over two positions; a loss, so downhill is uphill for the value.
    np.testing.assert_allclose(gradient, -policy * (qvalues - mean) / 2, atol=1e-6)
    assert gradient[1, 2] == 0, "an illegal action learns nothing"
    step = np.float32(1e-2)
    for row, action in np.ndindex(2, 5):
        moved = np.zeros_like(logits)
        moved[row, action] = step
        up, _ = loss_and_gradient("completed")(logits + moved, target)
        down, _ = loss_and_gradient("completed")(logits - moved, target)
        # Rounding of the losses is 1e-7 / 2e-2; the third derivative gives less than 1e-4 / 6.
        np.testing.assert_allclose((up - down) / (2 * step), gradient[row, action], atol=3e-5)


def test_a_baseline_changes_nothing():
    logits = np.array([[0.3, -1.0, 2.0]], np.float32)
    gradients = [
        loss_and_gradient("loss")(logits, make_target([[2, 5, 1]], [qvalues]))[1]
        for qvalues in ([0.5, -0.25, 0.0], [0.75, 0.0, 0.25])
    ]
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-7)
    assert np.abs(gradients[0]).max() > 0.01


def test_tspg_learns_the_best_action_and_cross_entropy_the_visits():
    target = make_target([[6, 3, 1]], [[0.1, 0.5, -0.5]])

    @functools.partial(jax.jit, static_argnums=0)
    def learn(objective):
        loss = lambda logits: losses.objective_loss(logits, target, objective)  # noqa: E731
        step = lambda logits, _: (logits - jax.grad(loss)(logits), None)  # noqa: E731
        return jax.lax.scan(step, jnp.zeros((1, 3)), None, 20_000)[0]

    found = policy_of(np.asarray(learn(objectives.tspg())))[0]
    assert found[1] > 0.999
    np.testing.assert_allclose(
        policy_of(np.asarray(learn(objectives.cross_entropy())))[0], [0.6, 0.3, 0.1], atol=1e-4
    )


@pytest.mark.parametrize("name", objectives.NAMES)
def test_a_finished_game_teaches_nothing(name):
    """The second position has no legal action; the policy is what a search might return there."""
    target = make_target([[1, 3], [4, 0]], [[0.5, 1.0], [0.5, 0.0]], [[True] * 2, [False] * 2])
    value = np.array([0.5, 9.0], np.float32)
    objective = objectives.make_objective(name)

    def loss(logits, target):
        return losses.policy_value_loss(logits, value[: len(logits)], target, objective=objective)

    both = jax.jit(jax.value_and_grad(loss, has_aux=True))
    logits = np.array([[0.0, 1.0], [2.0, 0.0]], np.float32)
    (_, parts), slope = both(logits, target)
    first = jax.tree.map(lambda x: x[:1], target)
    (_, expected), slope_of_first = both(logits[:1], first)
    for part in expected:
        np.testing.assert_allclose(parts[part], expected[part], rtol=1e-6)
    np.testing.assert_allclose(slope, np.append(slope_of_first, [[0.0, 0.0]], axis=0), rtol=1e-6)
    assert np.isfinite(objective.loss(logits, target)).all()


def test_what_untried_actions_are_worth():
    target = make_target(
        [[3, 1, 0, 0]], [[0.5, -0.5, 9.0, 9.0]], [[True, True, True, False]], value=0.1
    )
    values = {
        name: jax.jit(functools.partial(objectives.action_values, untried=name))(target.root)[0]
        for name in objectives.UNTRIED
    }
    # Mean return (3 * .5 - .5) / 4; the mixed value of a uniform prior is (.1 + 4 * 0) / 5.
    np.testing.assert_allclose(values["parent"], [0.5, -0.5, 0.25, 0], atol=1e-6)
    np.testing.assert_allclose(values["loss"], [0.5, -0.5, -1.0, 0], atol=1e-6)
    np.testing.assert_allclose(values["completed"], [0.5, -0.5, 0.02, 0], atol=1e-6)
    worse = make_target([[1, 0]], [[-3.0, 0.0]]).root
    np.testing.assert_allclose(objectives.action_values(worse, "loss"), [[-3, -3]])
    nothing = make_target([[1, 0]], [[0.0, 0.0]], value=0.4).root
    nothing = nothing._replace(visits=np.zeros((1, 2), np.int32))
    np.testing.assert_allclose(objectives.action_values(nothing, "parent"), [[0.4, 0.4]])


def make_network(names=("sharp", "twice")):
    network = FullyConnectedResNet(
        ENV.observation_shape, ENV.num_actions, width=8, num_blocks=1, rngs=nnx.Rngs(0)
    )
    return WithOffsets(network, names)


NETWORK = make_network()
PARAMS, APPLY = functional(NETWORK)
OBSERVATION = np.random.default_rng(0).integers(0, 2, (4, 3, 3, 3)).astype(np.float32)


def test_offsets_begin_as_the_policy_and_never_reach_it():
    @functools.partial(jax.jit, compiler_options=QUICK)
    def all_logits(params):
        further = [offset_policy(NETWORK, name)(params, OBSERVATION)[0] for name in NETWORK.offsets]
        return APPLY(params, OBSERVATION)[0], *further

    own, *further = all_logits(PARAMS)
    assert np.abs(own).max() > 0.1
    for logits in further:
        np.testing.assert_array_equal(logits, own)

    call = jaxpgs.networks.functional_call(NETWORK, lambda net, x: net.all_policies(x)[1])
    gradient = jax.jit(
        jax.grad(lambda params: jnp.sum(call(params, OBSERVATION)["sharp"] ** 2)),
        compiler_options=QUICK,
    )(PARAMS)
    reached = {
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient)
        if np.abs(leaf).max() > 0
    }
    assert reached == {
        "['offsets']['sharp']['linear']['bias']",
        "['offsets']['sharp']['linear']['kernel']",
    }
    # A change of one offset is a change of one policy.
    offsets = PARAMS["offsets"]
    other = PARAMS | {"offsets": offsets | {"sharp": jax.tree.map(jnp.ones_like, offsets["sharp"])}}
    same, sharp, twice = all_logits(other)
    np.testing.assert_array_equal(same, own)
    np.testing.assert_array_equal(twice, own)
    assert np.abs(sharp - own).min() > 0.1


def first_legal(params, rng_key, root, recurrent_fn, invalid_actions):
    """An expert known by heart: action a was tried a times, each time with the return a / 10."""
    del params, rng_key, recurrent_fn
    best = jnp.argmin(invalid_actions, axis=-1).astype(jnp.int32)
    number = jnp.broadcast_to(jnp.arange(9), invalid_actions.shape)
    visits = jnp.where(invalid_actions, 0, number)
    policy = jax.nn.one_hot(best, 9)
    return experts.Decision(best, best, policy, root.value, visits=visits, qvalues=number / 10.0)


def play(expert, **knobs):
    games = selfplay.init_games(ENV, jax.random.key(0), 2)
    return selfplay.play(
        ENV, APPLY, expert, PARAMS, jax.random.key(0), games, 2,
        kept=selfplay.Kept(keep_root=True, **knobs),
    )[1]  # fmt: skip


@pytest.mark.slow
def test_what_a_search_knows_is_kept_in_the_networks_frame_and_turned_with_the_board():
    seen = jax.jit(lambda: play(first_legal), compiler_options=QUICK)()
    # Player 0 took cell 0. Player 1 sees the board transposed: row-major turns column-major.
    np.testing.assert_array_equal(seen.root.visits[0, 0], np.arange(9))
    number = np.arange(9).reshape(3, 3).T.reshape(9)
    np.testing.assert_array_equal(seen.root.visits[1, 0], number)
    np.testing.assert_allclose(seen.root.value_sum[1, 0], number**2 / 10, rtol=1e-6)
    np.testing.assert_array_equal(seen.root.valid[1, 0], number > 0)
    np.testing.assert_array_equal(seen.root.valid, seen.legal)

    buffer = replay.add(replay.init(ENV, 1, 2, 2, keep_root=True), seen)
    drawn = jax.jit(lambda: replay.sample(ENV, buffer, jax.random.key(1), 64))()
    np.testing.assert_array_equal(drawn.root.valid, drawn.legal)
    second = ~np.asarray(drawn.legal).all(axis=-1)
    forms = {tuple(row) for row in np.asarray(drawn.root.visits)[second].tolist()}
    # Either way round. A form is missing with probability 2^-30 or so.
    assert forms == {tuple(number.tolist()), tuple(number[::-1].tolist())}
    assert {tuple(row) for row in np.asarray(drawn.root.visits)[~second].tolist()} == {
        tuple(range(9)), tuple(range(8, -1, -1)),
    }  # fmt: skip
    taken = np.asarray(drawn.observation)[second, :, :, 1].reshape(-1, 9)
    np.testing.assert_array_equal(taken == 0, np.asarray(drawn.legal)[second])


def test_a_network_policy_that_divides_keeps_no_root():
    """SameGame's spreads a group's share over its cells, which counts do not permit."""
    env = SameGame(2, 2, 2)

    def drawn(params, rng_key, root, recurrent_fn, invalid_actions):
        decision = experts.raw_policy()(params, rng_key, root, recurrent_fn, invalid_actions)
        visits = jnp.ones(invalid_actions.shape)
        return decision._replace(visits=visits, qvalues=visits)

    def apply_fn(params, observation):
        return jnp.zeros((len(observation), env.num_actions)), jnp.zeros(len(observation))

    def seen(**kept):
        games = selfplay.init_games(env, jax.random.key(0), 2)
        key, kept = jax.random.key(0), selfplay.Kept(**kept)
        return selfplay.play(env, apply_fn, drawn, {}, key, games, 1, kept=kept)[1]

    with pytest.raises(
        ValueError, match=r"permute the actions and keep integers; .* visits into float32"
    ):
        jax.eval_shape(lambda: seen(keep_root=True))
    # Without it, each cell of a group is legal and has a share of the group's probability.
    found = jax.device_get(jax.jit(seen, compiler_options=QUICK)())
    np.testing.assert_array_equal(found.legal, found.policy > 0)
    assert found.legal.dtype == bool and found.legal.any()
    np.testing.assert_allclose(found.policy.sum(axis=-1), found.legal.any(axis=-1), rtol=1e-6)


def test_playouts_are_worth_what_uniform_play_is():
    # One plane of 2x2 Hex: whoever moves first on the empty board joins the sides if he takes one
    # of the cells 1 and 2 (both sides want them), so his chances follow from counting.
    env = Hex(2)

    def exact(state):
        """The expectation for the player to move, by recursion."""
        if bool(state.terminated):
            return 0.0
        total = []
        for action in np.flatnonzero(state.legal_action_mask):
            after = step(state, jnp.int32(action))
            reward = float(after.rewards[int(state.current_player)])
            total.append(reward - exact(after))
        return float(np.mean(total))

    step, count = jax.jit(env.step), 4000
    playout = jax.jit(lambda key, state: make_playout(env)(None, key, state))
    for actions in ((), (0,), (1,), (0, 1)):
        state = env.init()
        for action in actions:
            state = step(state, jnp.int32(action))
        many = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), state)
        returns = np.asarray(playout(jax.random.key(len(actions)), many))
        assert set(np.unique(returns)) <= {-1.0, 1.0} or bool(state.terminated)
        # Five standard errors: less than one in a million.
        assert abs(returns.mean() - exact(state)) <= 5 / count**0.5


@pytest.mark.slow
def test_uct_takes_a_win_in_one():
    # Player 0 has cells 0 and 3 of column 0, so cell 6 wins; there player 1, with 1 and 4, would.
    state = ENV.init()
    for action in (0, 1, 3, 4):
        state = ENV.step(state, jnp.int32(action))
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape)), state)
    root_fn, recurrent_fn = make_playout_fns(ENV)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def search(key):
        root = root_fn(None, key, states)
        return root.value, jaxpgs.batched_mcts_policy(
            None, key, root, recurrent_fn, 64, ~states.legal_action_mask,
            root_selection=jaxpgs.selection.ucb1(2**0.5), simulations_per_update=1,
        )  # fmt: skip

    value, output = search(jax.random.key(0))
    np.testing.assert_array_equal(output.action, 6)
    assert set(np.asarray(value).tolist()) <= {-1.0, 1.0}


@pytest.mark.slow
def test_a_search_may_adapt_the_prior_while_playouts_give_the_values():
    root_fn, recurrent_fn = make_playout_fns(
        ENV,
        prior=APPLY,
        playout=offset_policy(NETWORK, "sharp"),
        playout_params=PARAMS,
        max_moves=3,
    )

    @functools.partial(jax.jit, compiler_options=QUICK)
    def search(key):
        states = jax.vmap(lambda _: ENV.init())(jnp.arange(2))
        root = root_fn(PARAMS, key, states)
        return jaxpgs.pgs_policy(
            PARAMS, key, root, recurrent_fn, 16, mode="cached",
            adapt=jaxpgs.networks.policy_head(PARAMS),
        )  # fmt: skip

    found = search(jax.random.key(0)).search_state
    assert np.isfinite(found.value).all() and (found.skipped_updates == 0).all()
    moved = found.params["policy_head"]["linear"]["kernel"]
    assert np.abs(moved - PARAMS["policy_head"]["linear"]["kernel"]).max() > 0


@pytest.mark.slow
def test_training_fits_each_policy_to_its_own_objective():
    knobs = {
        "expert": experts.make_expert("gumbel", 4),
        "num_games": 8, "num_steps": 4, "buffer_size": 256, "batch_size": 64, "evaluate_every": 0,
        "updates_per_iteration": 8, "num_iterations": 12, "optimizer": optax.adam(1e-2),
    }  # fmt: skip
    seen = []
    offsets = {"sharp": "tspg", "twice": objectives.cross_entropy()}
    train = by_name(expert_iteration.train)
    state = train(
        ENV, NETWORK, offsets=offsets, callback=lambda _, metrics: seen.append(metrics), **knobs
    )
    assert {"policy_loss", "sharp_loss", "twice_loss"} <= set(seen[0])
    assert np.isfinite([metrics["sharp_loss"] for metrics in seen]).all()

    def entropy(apply_fn):
        observation = jnp.asarray(jax.vmap(ENV.observe)(state.games.state))
        legal = state.games.state.legal_action_mask
        legal = jax.vmap(ENV.network_policy)(state.games.state, legal)
        policy = jax.nn.softmax(jnp.where(legal, apply_fn(state.params, observation)[0], -jnp.inf))
        return float(jnp.mean(jnp.sum(jax.scipy.special.entr(policy), axis=-1)))

    # The paper's claim, on positions of the last moves: TSPG is the surer of itself.
    assert entropy(offset_policy(NETWORK, "sharp")) < entropy(APPLY)
    with pytest.raises(ValueError, match=r"offsets must name .* it has \['sharp', 'twice'\]"):
        train(ENV, NETWORK, offsets={"sharp": "tspg"}, **knobs)
    with pytest.raises(ValueError, match="'cross_entropy', 'tspg'"):
        train(ENV, NETWORK, objective="best", offsets=offsets, **knobs)


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"untried.*completed.*'child'"):
        objectives.tspg("child")
    with pytest.raises(ValueError, match=r"kept=Kept\(keep_root=True\)"):
        objectives.tspg().loss(
            jnp.zeros((1, 3)), make_target([[1, 1, 1]], [[0, 0, 0]])._replace(root=None)
        )
    with pytest.raises(ValueError, match=r"Decision\.visits"):
        jax.eval_shape(lambda: play(experts.raw_policy()))
    with pytest.raises(ValueError, match="max_moves must be at least 1, got 0"):
        make_playout_fns(ENV, max_moves=0)
    with pytest.raises(ValueError, match=r"\['sharp', 'twice'\], got 'dull'"):
        offset_policy(NETWORK, "dull")
    with pytest.raises(ValueError, match="different names"):
        make_network(("a", "a"))
    with pytest.raises(ValueError, match="torso, policy_head and value_head"):
        WithOffsets(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), ["a"])
