import dataclasses
import functools

import chex
import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pgx
import pytest

import jaxpgs
from jaxpgs import networks


def _linear(num_inputs, num_actions, seed=0):
    """Parameters of a random linear network: policies neither uniform nor certain."""
    keys = jax.random.split(jax.random.key(seed))
    return {
        "policy": jax.random.normal(keys[0], (num_inputs, num_actions)),
        "value": 0.3 * jax.random.normal(keys[1], (num_inputs,)),
    }


def _apply(params, observation):
    x = observation.reshape(len(observation), -1)
    return x @ params["policy"], jnp.tanh(x @ params["value"])


def _in_parts(planes):
    """The same network in two parts, from some planes of the observation."""
    return networks.SplitApplyFn(
        torso=lambda params, x: {"flat": x[..., planes].reshape(len(x), -1)},
        policy_head=lambda params, features: features["flat"] @ params["policy"],
        value_head=lambda params, features: jnp.tanh(features["flat"] @ params["value"]),
    )


# Hex, played at random to the end and beyond


@pytest.mark.first_case
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.each_value
def test_hex_at_every_depth(swap, parts):
    env, games_at_once = jaxpgs.envs.Hex(4, swap=swap), 16
    params = _linear(int(np.prod(env.observation_shape)), env.num_actions)
    apply_fn = _apply if parts == 1 else _in_parts(np.arange(env.observation_shape[-1]))
    recurrent_fn = jaxpgs.make_recurrent_fn(env, apply_fn)
    assert isinstance(recurrent_fn, jaxpgs.base.SplitRecurrentFn) == (parts == 2)
    recurrent_fn = jax.jit(recurrent_fn)
    evaluate = jax.jit(lambda state: _apply(params, env.observe(state)[None]))
    step = jax.jit(env.step)
    rng = np.random.default_rng(0)

    by_hand = [env.init() for _ in range(games_at_once)]
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), games_at_once))
    output = jaxpgs.make_root_fn(env, apply_fn)(params, jax.random.key(0), states)
    lowest = np.finfo(np.float32).min
    winners = set()
    for depth in range(env.num_actions + 2):
        if depth:
            # A random legal action, and any action where the game is over.
            action = [
                rng.choice(np.flatnonzero(s.legal_action_mask) if not s.terminated else 16)
                for s in by_hand
            ]
            action = np.array(action, np.int32)
            output, states = recurrent_fn(params, jax.random.key(depth), action, states)
            after = [step(s, a) for s, a in zip(by_hand, action, strict=True)]
            for b, (before, state) in enumerate(zip(by_hand, after, strict=True)):
                mover = int(before.current_player)
                assert output.reward[b] == state.rewards[mover]
                assert output.discount[b] == (0 if state.terminated else -1)
                if before.terminated:
                    assert output.reward[b] == 0
                elif state.terminated:
                    # Nobody loses by the own move.
                    assert output.reward[b] == 1
                    winners.add(mover)
            by_hand = after
        chex.assert_trees_all_equal(states, jax.tree.map(lambda *x: jnp.stack(x), *by_hand))
        for b, state in enumerate(by_hand):
            raw, value = (np.array(x[0]) for x in evaluate(state))
            cells = raw[:16].reshape(4, 4)
            # The network sees player 1's board transposed.
            raw[:16] = (cells if state.current_player == 0 else cells.T).reshape(-1)
            legal = np.asarray(state.legal_action_mask)
            logits = np.asarray(output.prior_logits[b])
            np.testing.assert_allclose(logits[legal], raw[legal], atol=1e-5)
            assert np.all(logits[~legal] == lowest)
            assert legal.any() != bool(state.terminated)
            expected = 0 if state.terminated else value
            np.testing.assert_allclose(output.value[b], expected, atol=1e-5)
    assert all(state.terminated for state in by_hand)
    assert winners == {0, 1}


# One player, and players who move twice in a row


MOVERS = [
    # 7 steps of 1, or one of 2 and 5 of 1; the sign tells who walks.
    ((0,), (1 + 1 + 1 + 1 + 1 + 1 + 1, 2 + 1 + 1 + 1 + 1 + 1)),
    ((0, 1), (1 - 1 + 1 - 1 + 1 - 1 + 1, 2 + 1 - 1 + 1 - 1 + 1)),
    ((0, 0, 1, 1), (1 + 1 - 1 - 1 + 1 + 1 - 1, 2 - 1 - 1 + 1 + 1 - 1)),
    ((1, 0, 0), (1 - 1 - 1 + 1 - 1 - 1 + 1, 2 - 1 + 1 - 1 - 1 + 1)),
]


@pytest.mark.first_case
@pytest.mark.parametrize(("movers", "returns"), games.mostly_slow(MOVERS, MOVERS[0], MOVERS[3]))
def test_discount_tells_who_moves_next(movers, returns):
    env = games.Race(movers=movers, length=7)

    def apply_fn(params, observation):
        # The third action, the most attractive, is illegal everywhere.
        logits = jnp.broadcast_to(jnp.array([50.0, 0.0, 99.0]), (len(observation), 3))
        return logits, jnp.full(len(observation), 5.0)

    recurrent_fn = jax.jit(jaxpgs.make_recurrent_fn(env, apply_fn))
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 2))
    root = jaxpgs.make_root_fn(env, apply_fn)({}, jax.random.key(0), states)
    legal = np.array(states.legal_action_mask)

    embedding, position = states, 0
    while position < env.length:
        output, embedding = recurrent_fn({}, jax.random.key(0), jnp.zeros(2, jnp.int32), embedding)
        mover, position = movers[position % len(movers)], position + 1
        same = movers[position % len(movers)] == mover
        over = position == env.length
        np.testing.assert_array_equal(output.reward, 1)
        np.testing.assert_array_equal(output.discount, 0 if over else (1 if same else -1))
        np.testing.assert_array_equal(output.value, 0 if over else 5)
        np.testing.assert_array_equal(output.prior_logits[:, 2], np.finfo(np.float32).min)

    output = jax.jit(
        lambda root: jaxpgs.mcs_policy(
            {},
            jax.random.key(1),
            root,
            recurrent_fn,
            8,
            ~legal,
            simulations_per_update=4,
            truncation=jaxpgs.truncation.fixed(7),
            backup=jaxpgs.backup.n_step(),
            root_selection=jaxpgs.selection.ucb1(100.0),
        )
    )(root)
    np.testing.assert_array_equal(output.search_state.visits, [[4, 4, 0]] * 2)
    np.testing.assert_array_equal(output.search_state.qvalues[:, :2], [returns] * 2)


# pgx's Hex, another implementation of the same rules: 11x11, swap, a random player to start


# Planes: mover's, other's, empty, may swap; already from the mover's view.
_ours_apply = _in_parts(np.array([0, 1, 3]))


def _pgx_apply(params, observation):
    # Planes: mover's, other's, colour to move, may swap; rows and columns as on the board, for the
    # logits as well.
    second = observation[:, 0, 0, 2] == 1

    def mover_view(x):
        return jnp.where(second.reshape(-1, *[1] * (x.ndim - 1)), jnp.swapaxes(x, 1, 2), x)

    planes = mover_view(observation[..., jnp.array([0, 1, 3])].astype(jnp.float32))
    logits, value = _apply(params, planes)
    cells = mover_view(logits[:, :121].reshape(-1, 11, 11)).reshape(-1, 121)
    return jnp.concatenate([cells, logits[:, 121:]], axis=-1), value


@functools.cache
@games.lenient_promotion()
def _pair():
    """Environment, network and the same five positions for both implementations."""
    ours, theirs = jaxpgs.envs.Hex(11, swap=True), pgx.make("hex")
    step, pgx_step = jax.jit(ours.step), jax.jit(theirs.step)
    rng = np.random.default_rng(1)
    state, moves = ours.init(), []
    while not state.terminated:
        legal = np.flatnonzero(state.legal_action_mask)
        # The swap is one of the moves, so that what follows has a swap behind it.
        moves.append(np.int32(121 if 121 in legal else rng.choice(legal)))
        state = step(state, moves[-1])
    # The start, the choice whether to swap, the middle, the last two plies.
    lengths = [0, 1, 31, len(moves) - 2, len(moves) - 1]
    our_states, their_states = [], []
    for i, length in enumerate(lengths):
        state, pgx_state = ours.init(), theirs.init(jax.random.key(i))
        for move in moves[:length]:
            state, pgx_state = step(state, move), pgx_step(pgx_state, move)
        our_states.append(state)
        their_states.append(pgx_state)
    first = {int(s._player_order[0]) for s in their_states}
    assert first == {0, 1}  # both players have the first move in some game
    stack = lambda states: jax.tree.map(lambda *x: jnp.stack(x), *states)  # noqa: E731
    return (ours, _ours_apply, stack(our_states)), (theirs, _pgx_apply, stack(their_states))


def _on_both(policies):
    """Runs the same searches with the same keys on both; one compilation each."""
    params = _linear(121 * 3, 122, seed=2)
    params["policy"] *= 0.5
    results = []
    for env, apply_fn, states in _pair():

        def run(params, key, states, env=env, apply_fn=apply_fn):
            root = jaxpgs.make_root_fn(env, apply_fn)(params, key, states)
            recurrent_fn = jaxpgs.make_recurrent_fn(env, apply_fn)
            invalid = ~states.legal_action_mask
            return root, [p(params, key, root, recurrent_fn, invalid) for p in policies]

        root, outputs = jax.jit(run, compiler_options=games.QUICK)(
            params, jax.random.key(3), states
        )
        results.append((root.replace(embedding=()), outputs))
    return results


@pytest.mark.slow
def test_pgx_hex_gives_the_same_searches():
    knobs = {"adapt": lambda path, leaf: path[0].key == "policy", "optimizer": optax.sgd(0.1)}
    knobs |= {"root_selection": jaxpgs.selection.puct(), "mode": "rollouts"}

    def pgs(params, key, root, recurrent_fn, invalid):
        return jaxpgs.pgs_policy(
            params, key, root, recurrent_fn, 32, invalid, simulations_per_update=4, max_depth=4,
            **knobs,
        )  # fmt: skip

    with games.lenient_promotion():
        (our_root, (ours,)), (their_root, (theirs,)) = _on_both([pgs])
    chex.assert_trees_all_close(our_root, their_root, atol=1e-6)
    np.testing.assert_array_equal(ours.search_state.visits, theirs.search_state.visits)
    np.testing.assert_array_equal(ours.action, theirs.action)
    chex.assert_trees_all_close(ours, theirs, atol=1e-5, rtol=1e-5)
    # The last ply is known: some simulation has won there.
    assert ours.search_state.qvalues[-1].max() == 1
    assert (np.asarray(ours.search_state.gradient_norm)[:-1] > 0).all()


@pytest.mark.slow
def test_mctx_takes_both():
    def gumbel(params, key, root, recurrent_fn, invalid):
        return mctx.gumbel_muzero_policy(params, key, root, recurrent_fn, 8, invalid)

    with games.lenient_promotion():
        (_, (ours,)), (_, (theirs,)) = _on_both([gumbel])
    legal = np.asarray(_pair()[0][2].legal_action_mask)
    np.testing.assert_array_equal(ours.action, theirs.action)
    np.testing.assert_allclose(ours.action_weights, theirs.action_weights, atol=1e-5)
    np.testing.assert_allclose(np.sum(ours.action_weights, -1), 1, atol=1e-5)
    assert np.all(legal[np.arange(len(legal)), np.asarray(ours.action)])


@pytest.mark.slow
def test_pgx_finished_game_has_no_legal_action_left():
    # pgx itself marks every action legal after the end.
    (ours, _, our_states), (theirs, _, their_states) = _pair()
    params, results = _linear(121 * 3, 122, seed=2), []
    for env, apply_fn, states in (
        (ours, _ours_apply, our_states),
        (theirs, _pgx_apply, their_states),
    ):
        last = games.take(states, [-1])
        wins = np.flatnonzero(last.legal_action_mask[0])
        with games.lenient_promotion():
            recurrent_fn = jax.jit(jaxpgs.make_recurrent_fn(env, apply_fn))
            for action in wins:
                output, _ = recurrent_fn(params, jax.random.key(0), action[None], last)
                if output.discount[0] == 0:
                    break
        assert output.reward[0] == 1 and output.value[0] == 0
        np.testing.assert_array_equal(output.prior_logits, np.finfo(np.float32).min)
        results.append(action)
    assert results[0] == results[1]


@pytest.mark.slow
def test_chance_is_drawn_by_the_key_anew_or_once():
    env, count, num_simulations = games.Coin(), 100, 64

    def apply_fn(params, observation):
        del params
        zeros = jnp.zeros(len(observation), jnp.float32)
        return jnp.stack([zeros, zeros], axis=-1), zeros

    @jax.jit
    def search(key):
        states = jax.vmap(lambda _: env.init())(jnp.arange(count))
        root = jaxpgs.make_root_fn(env, apply_fn)((), key, states)
        recurrent_fn = jaxpgs.make_recurrent_fn(env, apply_fn)
        found = [
            jaxpgs.mcs_policy(
                (), key, root, recurrent_fn, num_simulations, mode=mode,
                root_selection=jaxpgs.selection.puct(100.0),
            ).search_state
            for mode in ("rollouts", "tree")
        ]  # fmt: skip
        with games.lenient_promotion():
            tree = mctx.muzero_policy(
                (), key, root, recurrent_fn, 8, dirichlet_fraction=0.0
            ).search_tree.summary()
        return [x.qvalues[:, 1] for x in (*found, tree)], found[0].visits[:, 1]

    (anew, once, tree), visits = jax.device_get(search(jax.random.key(0)))
    # Each visit has its own coin: the mean of all roots is 0 within 4 standard errors.
    assert visits.min() >= 16 and abs(np.sum(anew * visits)) < 4 * visits.sum() ** 0.5
    assert (np.abs(anew) < 1).all()
    for kept in (once, tree):  # the first coin stays
        np.testing.assert_array_equal(np.abs(kept), 1)
        # A fair coin in 100 roots: 20 to 80 heads but for one in a billion.
        assert 20 <= (kept == 1).sum() <= 80


@pytest.mark.parametrize(("dtype", "worth"), [(jnp.bfloat16, 1000.0), (jnp.float16, 70000.0)])
def test_rewards_stay_exact_with_a_network_of_16_bits(dtype, worth):
    class Paying(games.Coin):
        def step(self, state, action, key):
            pays = worth + action.astype(jnp.float32)
            return dataclasses.replace(super().step(state, action, key), rewards=pays[None])

    env = Paying()

    def apply_fn(params, observation):
        return jnp.zeros((len(observation), 2), dtype), jnp.zeros(len(observation), dtype)

    plan = jaxpgs.make_plan_fn(env, apply_fn, jaxpgs.batched_mcts_policy, 8)
    found = plan((), jax.random.key(0), env.init())
    assert found.action == 1 and found.search_state.not_finite == 0
    np.testing.assert_array_equal(found.search_state.qvalues, [worth, worth + 1])


def test_a_finished_game_is_not_searched_where_all_its_actions_are_legal():
    env = games.Race((0, 1))
    params = {"policy": jnp.ones((2, 3)) / 8, "value": jnp.ones(2)}
    plan = jaxpgs.make_plan_fn(env, _apply, jaxpgs.mcs_policy, 4)
    states = jax.vmap(lambda _: env.init())(jnp.arange(2))
    # As pgx has them.
    states = dataclasses.replace(states, terminated=jnp.array([False, True]))
    found = plan(params, jax.random.key(0), states)
    np.testing.assert_array_equal(found.search_state.visits.sum(-1), [4, 0])
    np.testing.assert_array_equal(found.action_weights.sum(-1), [1, 0])


# One position at a time


@pytest.mark.slow
def test_one_position_is_searched_as_a_batch_of_one():
    env = games.Race((0, 1))
    params = {"policy": jnp.ones((2, 3)) / 8, "value": jnp.ones(2)}
    plan = jaxpgs.make_plan_fn(
        env, _apply, jaxpgs.pgs_policy, 8, adapt="policy", mode="rollouts", max_depth=3,
        truncation=jaxpgs.truncation.fixed(3), optimizer=optax.sgd(1.0),
    )  # fmt: skip
    state, keys = env.step(env.init(), jnp.int32(1)), jax.random.split(jax.random.key(0), 1)
    heads = {"policy": params["policy"] * 2, "value": None}

    one = plan(params, keys, state, adapted_params=heads)
    batch = jax.tree.map(lambda x: x[None], (state, heads))
    many = plan(params, keys, batch[0], adapted_params=batch[1])

    assert one.action.shape == () and env.step(state, one.action).position > state.position
    assert one.search_state.params["policy"].shape == (2, 3)
    assert (one.search_state.params["policy"] != heads["policy"]).any()
    assert one.action_weights.shape == (3,) and many.action_weights.shape == (1, 3)
    chex.assert_trees_all_equal(one, jax.tree.map(lambda x: x[0] if x.ndim else x, many))
