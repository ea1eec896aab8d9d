"""SameGame against rules written in plain NumPy and boards worked out by hand."""

import collections
import dataclasses
import functools
import xml.etree.ElementTree as ElementTree

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import FAST, mostly_slow

import jaxpgs
from jaxpgs.envs import SameGame, SameGameState
from jaxpgs.envs.samegame import rules, standard_positions
from jaxpgs.envs.samegame.svg import samegame_svg, samegame_text
from jaxpgs.puzzles.samegame_playouts import random_playouts


def board(*rows):
    """Reads rows of digits, the colours, and `.` for empty cells."""
    return np.array([[-1 if cell == "." else int(cell) for cell in row] for row in rows])


# Compiled once for each board and kind of states.
init, step, cells_of, group_labels, policy_logits, network_policy = (
    jax.jit(method, static_argnums=0)
    for method in (
        SameGame.init,
        SameGame.step,
        SameGame.board,
        SameGame.group_labels,
        SameGame.policy_logits,
        SameGame.network_policy,
    )
)


def play(env, state, actions):
    """Plays a list of actions; returns all states, the first one included."""
    states = [state]
    for action in actions:
        states.append(step(env, states[-1], action))
    return states


@jax.jit
def legal(state):
    return state.legal_action_mask


def stack(states):
    return jax.tree.map(lambda *x: np.stack(x), *states)


# --- agreement with the rules -------------------------------------------------------------------


def pick(mask, number):
    """Picks the legal action of rank `floor(number * legal actions)`, any without any."""
    rank = jnp.floor(number * mask.sum()).astype(jnp.int32)
    return jnp.argmax(jnp.cumsum(mask) > rank)


def random_games(env, games, steps, seed):
    """Plays random games; returns start boards and `[T, G, ...]` records of every step."""
    numbers = np.random.default_rng(seed).random((steps, games), np.float32)

    @jax.jit
    def run(key, numbers):
        keys = jax.random.split(key, games)
        start = jax.vmap(env.init)(keys)

        def body(states, number):
            mask = legal(states)
            action = jax.vmap(pick)(mask, number)
            after = jax.vmap(env.step)(states, action)
            record = {
                "mask": mask,
                "labels": jax.vmap(env.group_labels)(states),
                "action": action,
                "board": jax.vmap(env.board)(after),
                "reward": after.rewards[:, 0],
                "over": after.terminated,
            }
            return after, record

        record = jax.lax.scan(body, start, numbers)[1]
        return jax.vmap(env.board)(start), start.terminated, record

    return jax.tree.map(np.asarray, run(jax.random.key(seed), numbers))


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("size", "games"),
    mostly_slow([(5, 700), (8, 400), (11, 50), (15, 30)], (5, 700), (15, 30)),
)
@pytest.mark.lenient
def test_agrees_with_the_rules(size, games):
    # 1,180 games; words of 8 bits up to 8 rows, of 16 bits above.
    penalty = ("per_color", "total", "none")[size % 3]
    env = SameGame(size, size, 2 + size % 4, penalty)
    boards, over, record = random_games(env, games, size**2 // 2 + 1, size)
    for g in range(games):
        length = 0 if over[g] else int(record["over"][:, g].argmax()) + 1
        other = rules.replay(boards[g], record["action"][:length, g], penalty=penalty)
        np.testing.assert_array_equal(record["reward"][:length, g], other.rewards)
        np.testing.assert_array_equal(record["board"][:length, g], other.boards[1:])
        assert other.over
        for t in range(g % 4, length, 4):
            labels = np.full(size**2, -1)
            for group in rules.groups(other.boards[t]):
                labels[group] = group[0]
            np.testing.assert_array_equal(record["labels"][t, g], labels)
            marked = np.flatnonzero(record["mask"][t, g])
            np.testing.assert_array_equal(marked, np.unique(labels[labels >= 0]))
        # After the end nothing is legal, nothing is earned and nothing changes.
        assert record["over"][length:, g].all()
        assert not record["reward"][length:, g].any()
        assert not record["mask"][length:, g].any()
        assert (record["board"][length:, g] == other.boards[-1]).all()


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("height", "width", "num_colors"), [(1, 9, 2), (9, 1, 2), (32, 2, 2), (2, 40, 3), (17, 6, 1)]
)
def test_agrees_with_the_rules_on_odd_shapes(height, width, num_colors):
    # Any cell of a group plays it, and illegal cells change nothing: actions are drawn from all.
    env = SameGame(height, width, num_colors, "total")
    rng = np.random.default_rng(0)
    for game in range(10):
        state = init(env, jax.random.key(game))
        start, played, rewards = np.asarray(cells_of(env, state)), [], []
        while not bool(state.terminated):
            action = int(rng.integers(env.num_actions))
            cells = np.asarray(cells_of(env, state))
            takes = any(action in group for group in rules.groups(cells))
            after = step(env, state, action)
            if takes:
                played.append(action)
                rewards.append(float(after.rewards[0]))
            else:
                assert not after.rewards.any()
                np.testing.assert_array_equal(after.planes, state.planes)
            state = after
        other = rules.replay(start, played, penalty="total")
        assert other.over
        assert other.rewards == rewards
        np.testing.assert_array_equal(cells_of(env, state), other.boards[-1])


def test_a_winding_group_is_one_group():
    # A spiral through the whole board turns more often than any group of a random one.
    size = 15
    spiral = np.full((size, size), 1)
    r, c, (dr, dc) = 0, 0, (0, 1)
    spiral[0, 0] = 0
    turns = 0
    while turns < 2:
        ahead = (r + dr, c + dc)
        beyond = (r + 2 * dr, c + 2 * dc)
        inside = 0 <= ahead[0] < size and 0 <= ahead[1] < size
        free = inside and not (
            0 <= beyond[0] < size and 0 <= beyond[1] < size and spiral[beyond] == 0
        )
        if not free:
            dr, dc = dc, -dr
            turns += 1
            continue
        r, c = ahead
        spiral[r, c] = 0
        turns = 0
    env = SameGame(size, size, 2)
    labels = np.full(size**2, -1)
    for group in rules.groups(spiral):
        labels[group] = group[0]
    assert len(np.unique(labels)) <= 3
    np.testing.assert_array_equal(group_labels(env, env.from_board(spiral)), labels)


def test_the_rules_refuse():
    with pytest.raises(ValueError, match="Move 1 plays cell 0, which belongs to no group"):
        rules.replay(board("00", "12"), [0, 0])
    with pytest.raises(ValueError, match="got 'most'"):
        rules.replay(board("00"), [], penalty="most")


# --- rules by hand ------------------------------------------------------------------------------


def test_blocks_fall_and_columns_close():
    env = SameGame(3, 4, 3, "none")
    start = env.from_board(board("12.1", "2002", "1002"))
    # The four blocks in the middle go: the right one of their columns is empty then.
    after = step(env, start, 5)
    np.testing.assert_array_equal(cells_of(env, after), board("1.1.", "2.2.", "122."))
    np.testing.assert_array_equal(after.rewards, [4])
    assert not bool(after.terminated)


def test_legal_actions_are_leftmost_then_lowest():
    env = SameGame(3, 3, 3)
    state = env.from_board(board("001", "101", "112"))
    # 0 at (0,0), (0,1), (1,1); 1 at (1,0), (2,0), (2,1); 1 at (0,2), (1,2).
    assert np.flatnonzero(legal(state)).tolist() == [0, 5, 6]
    expected = [0, 0, 5, 6, 0, 5, 6, 6, -1]
    np.testing.assert_array_equal(group_labels(env, state), expected)


@pytest.mark.parametrize(("penalty", "end"), [("per_color", -2), ("total", -16), ("none", 0)])
def test_penalties(penalty, end):
    # Three blocks of 0 stay, two of 1, one of 3 and, a colour that costs nothing, none of 2.
    env = SameGame(1, 8, 4, penalty)
    after = step(env, env.from_board(board("01013022")), 6)
    assert bool(after.terminated)
    np.testing.assert_array_equal(after.rewards, [end])


@pytest.mark.parametrize("penalty", ["per_color", "total", "none"])
def test_clearing_the_board(penalty):
    env = SameGame(2, 3, 1, penalty)
    after = step(env, init(env, jax.random.key(0)), 4)
    assert bool(after.terminated)
    np.testing.assert_array_equal(after.rewards, [1000 + 16])
    assert not (np.asarray(cells_of(env, after)) >= 0).any()
    assert not legal(after).any()


def test_finished_games_stay_as_they_are():
    env = SameGame(1, 4, 3)
    over = play(env, env.from_board(board("0012")), [1])[-1]
    np.testing.assert_array_equal(over.rewards, [-2])
    for action in (0, 3):
        after = step(env, over, action)
        assert not after.rewards.any()
        chex.assert_trees_all_equal(after, dataclasses.replace(over, rewards=after.rewards))


@pytest.mark.parametrize("action", [1, 8, -1, 9])
def test_illegal_actions_change_nothing(action):
    # An empty cell, a block without a group, and numbers that are no cell.
    env = SameGame(3, 3, 3)
    state = env.from_board(board("0..", "010", "012"))
    chex.assert_trees_all_equal(step(env, state, action), state)


# --- given boards -------------------------------------------------------------------------------


def test_from_board_undoes_board():
    env = SameGame(6, 5, 3)
    start = init(env, jax.random.key(1))
    for state in play(env, start, np.random.default_rng(0).integers(30, size=40)):
        given = env.from_board(np.asarray(cells_of(env, state)))
        chex.assert_trees_all_equal(given, dataclasses.replace(state, rewards=given.rewards))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (np.zeros((2, 3), int), r"shape \(3, 3\), got \(2, 3\)"),
        (np.full((3, 3), 5), "colours from 0 to 4 only"),
        (np.full((3, 3), -2), "colours from 0 to 4 only"),
        (np.full((3, 3), 0.5), "colours from 0 to 4 only"),
        (np.full((3, 3), np.nan), "colours from 0 to 4 only"),
        (np.full((3, 3), -1), "must hold a block"),
        (board("0..", "...", "0.."), "no empty cell may be below"),
        (board("...", "...", "0.0"), "none may be empty to the left"),
        (board("...", "...", ".00"), "none may be empty to the left"),
    ],
)
def test_from_board_refuses(cells, message):
    with pytest.raises(ValueError, match=message):
        SameGame(3, 3, 5).from_board(cells)


def test_a_board_without_a_move_is_over():
    env = SameGame(2, 2, 2)
    state = env.from_board(board("01", "10"))
    assert bool(state.terminated)
    assert not state.rewards.any()
    assert not legal(state).any()
    assert (np.asarray(group_labels(env, state)) == -1).all()


def test_fifty_colors():
    env = SameGame(10, 10, 50)
    cells = np.random.default_rng(0).integers(50, size=(10, 10))
    state = env.from_board(cells)
    np.testing.assert_array_equal(cells_of(env, state), cells)
    moves = [g[0] for g in rules.groups(cells)]
    assert sorted(moves) == np.flatnonzero(legal(state)).tolist()
    after = step(env, state, moves[0])
    assert int((np.asarray(cells_of(env, after)) >= 0).sum()) < 100


def test_standard_positions():
    positions = standard_positions()
    assert positions.shape == (20, 15, 15)
    assert np.unique(positions).tolist() == [0, 1, 2, 3, 4]
    states = stack([SameGame().from_board(p) for p in positions])
    assert legal(states).sum() == 895  # 44.75 groups each


# --- networks -----------------------------------------------------------------------------------


def test_observation_by_hand():
    env = SameGame(2, 2, 3)
    seen = env.observe(env.from_board(board("2.", "01")))
    expected = [[[0, 0, 1, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [0, 1, 0, 0]]]
    np.testing.assert_array_equal(seen, expected)
    assert seen.dtype == jnp.float32
    assert seen.shape == env.observation_shape


def test_policy_of_groups_is_the_sum_over_cells():
    env = SameGame(7, 7, 3)
    state = init(env, jax.random.key(3))
    # From close together to so far apart that exponentials under- and overflow.
    scale = np.geomspace(0.1, 300, env.num_actions)
    logits = np.float32(scale * np.random.default_rng(4).normal(size=env.num_actions))
    mapped = policy_logits(env, state, logits)
    wide = np.asarray(logits, np.float64)
    for group in rules.groups(np.asarray(cells_of(env, state))):
        expected = np.logaddexp.reduce(wide[group])
        np.testing.assert_allclose(mapped[group[0]], expected, rtol=1e-5, atol=1e-5)
    lowest = jnp.finfo(jnp.float32).min
    np.testing.assert_array_equal(mapped > lowest, legal(state))
    total = lambda x: jax.nn.logsumexp(env.policy_logits(state, x))  # noqa: E731
    gradient = jax.jit(jax.grad(total))(logits)
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient.sum(), 1, rtol=1e-5)


@pytest.mark.lenient
def test_network_policy_is_undone_by_summing():
    env = SameGame(7, 7, 3)
    state = init(env, jax.random.key(5))
    policy = np.random.default_rng(6).random(env.num_actions, np.float32) * legal(state)
    policy = np.asarray(policy / policy.sum())
    cells = np.asarray(network_policy(env, state, policy))
    np.testing.assert_allclose(cells.sum(), 1, rtol=1e-5)
    for group in rules.groups(np.asarray(cells_of(env, state))):
        np.testing.assert_allclose(cells[group], policy[group[0]] / len(group), rtol=1e-5)
    with np.errstate(divide="ignore"):
        back = np.exp(policy_logits(env, state, np.log(cells)))
    np.testing.assert_allclose(back, policy, rtol=1e-4, atol=1e-7)


def test_permuted_colors_play_the_same_game():
    env = SameGame(4, 5, 4)
    state = init(env, jax.random.key(0))
    seen = jax.jit(lambda key, state: env.permute_colors(key, env.observe(state)))
    permuted = np.asarray(seen(jax.random.key(8), state)).argmax(-1)
    assert (permuted != np.asarray(cells_of(env, state))).any()
    other = env.from_board(permuted)
    np.testing.assert_array_equal(legal(other), legal(state))
    np.testing.assert_array_equal(group_labels(env, other), group_labels(env, state))


@pytest.mark.lenient
def test_mirrored_boards_play_the_same_game():
    env, rng = SameGame(4, 5, 3), np.random.default_rng(0)
    mirror = jax.jit(env.mirror)
    moves = 0
    for seed in range(4):
        state = init(env, jax.random.key(seed))
        while not state.terminated:
            action = np.int32(pick(legal(state), rng.random()))
            mirrored, other = mirror(state, action)
            cells = np.asarray(cells_of(env, mirrored))
            env.from_board(cells)  # which refuses gaps between columns
            assert legal(mirrored)[other]
            np.testing.assert_array_equal(
                np.sort(cells, axis=None), np.sort(cells_of(env, state), axis=None)
            )
            after, turned = step(env, state, action), step(env, mirrored, other)
            assert after.rewards == turned.rewards and after.terminated == turned.terminated
            expected = np.asarray(cells_of(env, after))
            filled = int((expected[-1] >= 0).sum())
            expected = np.concatenate([expected[:, :filled][:, ::-1], expected[:, filled:]], axis=1)
            np.testing.assert_array_equal(cells_of(env, turned), expected)
            state, moves = after, moves + 1
    assert moves > 12


# --- searches -----------------------------------------------------------------------------------


def network(params, observation):
    x = observation.reshape(len(observation), -1)
    return x @ params["policy"], x @ params["value"]


def searcher(env, seed=0):
    rng = np.random.default_rng(seed)
    inputs = int(np.prod(env.observation_shape))
    params = {
        "policy": np.float32(rng.normal(size=(inputs, env.num_actions))),
        "value": np.float32(rng.normal(size=inputs)),
    }
    return (
        params,
        jaxpgs.make_root_fn(env, network),
        jaxpgs.make_recurrent_fn(env, network),
    )


def test_returns_through_the_adapter_are_the_score():
    env = SameGame(5, 5, 3)
    params, _, recurrent_fn = searcher(env)
    states = [init(env, jax.random.key(k)) for k in range(4)]
    start, state = [np.asarray(cells_of(env, s)) for s in states], stack(states)
    actions, rewards, discounts = [], [], []
    recurrent = jax.jit(recurrent_fn)
    for _ in range(13):
        action = np.argmax(legal(state), axis=-1)
        output, state = jax.device_get(recurrent(params, jax.random.key(0), action, state))
        actions.append(action)
        rewards.append(output.reward)
        discounts.append(output.discount)
        over = state.terminated
        np.testing.assert_array_equal(output.discount, np.where(over, 0, 1))
        assert not output.value[over].any()
    assert over.all()
    for g in range(4):
        length = int(np.argmin(np.array(discounts)[:, g])) + 1
        other = rules.replay(start[g], np.array(actions)[:length, g].tolist())
        total = 0.0
        for reward, discount in reversed(list(zip(rewards, discounts, strict=True))):
            total = float(reward[g] + discount[g] * total)
        assert other.over
        assert total == other.score


@pytest.mark.slow
def test_searches_run():
    env = SameGame(3, 3, 3)
    params = searcher(env)[0]
    parts = jaxpgs.networks.SplitApplyFn(
        torso=lambda p, x: x.reshape(len(x), -1),
        policy_head=lambda p, features: features @ p["policy"],
        value_head=lambda p, features: features @ p["value"],
    )
    root_fn, recurrent_fn = jaxpgs.make_root_fn(env, parts), jaxpgs.make_recurrent_fn(env, parts)
    states = [
        env.from_board(board(*rows)) for rows in (("001", "122", "120"), ("222", "200", "011"))
    ]
    states.append(env.from_board(board("...", "1..", "100")))
    states.append(env.from_board(board("010", "101", "010")))  # over
    state = stack(states)

    @jax.jit
    def run(params, state):
        root = root_fn(params, jax.random.key(0), state)
        illegal = ~legal(state)
        arguments = (params, jax.random.key(1), root, recurrent_fn, 16, illegal)
        adapt = {"policy": True, "value": False}
        output = jaxpgs.pgs_policy(*arguments, simulations_per_update=8, mode="tree", adapt=adapt)
        return output.action, (output.action_weights, output.search_state.qvalues), illegal

    action, results, illegal = run(params, state)
    chex.assert_tree_all_finite(results)
    assert not np.asarray(illegal)[np.arange(3), action[:3]].any()


# --- random games -------------------------------------------------------------------------------


def standard_batch(env, games):
    positions = standard_positions()
    state = stack([env.from_board(p) for p in positions])
    return jax.tree.map(lambda x: np.tile(x, (games // 20,) + (1,) * (x.ndim - 1)), state)


@functools.partial(jax.jit, static_argnums=(0, 3), compiler_options=FAST)
def playouts(env, key, state, tabu=False):
    return random_playouts(env, key, state, tabu=tabu)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("penalty", "tabu", "mean"),
    [
        ("per_color", False, 104.0),
        ("per_color", True, 592.8),
    ],
)
@pytest.mark.parametrize("games", mostly_slow([1000, 8000], 1000))
def test_means_of_random_games(penalty, tabu, mean, games):
    # Reference means over the 20 standard positions. Four standard errors: one false alarm in
    # 16,000, for each of the tests.
    env = SameGame(penalty=penalty)
    played = playouts(env, jax.random.key(7), standard_batch(env, games), tabu)
    played = jax.device_get(played)
    # Within positions, since every position is played equally often.
    error = np.asarray(played.score).reshape(-1, 20).std(axis=0).mean() / games**0.5
    assert abs(float(played.score.mean()) - mean) < 4 * error
    if not tabu:
        error = float(played.moves.std()) / games**0.5
        assert abs(float(played.moves.mean()) - 63.8) < 4 * error + 0.05  # the mean is rounded


def test_random_games_choose_groups_uniformly():
    env, games = SameGame(4, 4, 3), 20_000
    state = env.from_board(board("0021", "1120", "1012", "1010"))
    exact = collections.Counter()

    def go_through(cells, score, probability):
        moves = [group[0] for group in rules.groups(cells)]
        if not moves:
            exact[score] += probability
        for move in moves:
            game = rules.replay(cells, [move])
            go_through(game.boards[-1], score + game.score, probability / len(moves))

    go_through(np.asarray(cells_of(env, state)), 0.0, 1.0)
    batch = jax.tree.map(lambda x: np.broadcast_to(x, (games, *x.shape)), state)
    scores = np.asarray(playouts(env, jax.random.key(0), batch).score)
    found = collections.Counter(scores.tolist())
    assert len(exact) == 12
    assert set(found) <= set(exact)
    # 4.5 standard errors and one game: less than one false alarm in 10,000 over all scores.
    for score, share in exact.items():
        error = (games * share * (1 - share)) ** 0.5
        assert abs(found[score] - games * share) <= 4.5 * error + 1


@pytest.mark.parametrize("tabu", [False, True])
def test_random_games_of_boards_without_a_move(tabu):
    env = SameGame(2, 2, 2)
    state = stack([env.from_board(board("01", "10")), env.from_board(board("00", "00"))])
    played = playouts(env, jax.random.key(0), state, tabu)
    np.testing.assert_array_equal(played.score, [0, 1004])
    np.testing.assert_array_equal(played.moves, [0, 1])
    np.testing.assert_array_equal(played.cleared, [False, True])


# --- contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 0}, "height from 1 to 32, got 0"),
        ({"height": 33}, "height from 1 to 32, got 33"),
        ({"width": 2.5}, "width of at least 1, got 2.5"),
        ({"num_colors": 0}, "num_colors from 1 to 127, got 0"),
        ({"num_colors": 128}, "num_colors from 1 to 127, got 128"),
        ({"height": True}, "height from 1 to 32, got True"),
        ({"penalty": "some"}, "penalty is one of .* got 'some'"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SameGame(**arguments)


def test_one_trace_serves_all_positions():
    env = SameGame(4, 4, 3)
    traces = 0

    @jax.jit
    def counted(state, action):
        nonlocal traces
        traces += 1
        return env.step(state, action)

    state = init(env, jax.random.key(0))
    for action in range(16):
        state = counted(state, np.int32(action))
    counted(env.from_board(np.zeros((4, 4), int)), np.int32(1))
    assert traces == 1
    assert hash(env) == hash(SameGame(4, 4, 3))


@pytest.mark.parametrize("height", [6, 12, 20])
def test_strict_promotion_and_shapes(height):
    env, key = SameGame(height, 4, 9), jax.random.key(0)

    def everything(key):
        state = env.init(key)
        after = env.step(state, jnp.int32(1))
        logits = env.policy_logits(after, jnp.zeros(env.num_actions))
        policy = env.network_policy(after, jnp.zeros(env.num_actions))
        seen = env.permute_colors(key, env.observe(after))
        batch = jax.vmap(env.step, in_axes=(None, 0))(after, jnp.arange(env.num_actions))
        played = random_playouts(env, key, batch, tabu=True)
        return state, after, batch, legal(batch), logits, policy, seen, played.score

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        state, after, batch, *shapes = jax.eval_shape(everything, key)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert isinstance(batch, SameGameState)
    actions = env.num_actions
    expected = [(actions, actions), (actions,), (actions,), env.observation_shape, (actions,)]
    assert [x.shape for x in shapes] == expected


def test_batches_of_all_ranks_agree():
    env = SameGame(4, 5, 3)
    states = stack([init(env, jax.random.key(k)) for k in range(3)])
    nested = jax.vmap(jax.vmap(env.step, (None, 0)), (0, None))
    after = jax.device_get(jax.jit(nested)(states, np.arange(20)))
    masks = np.asarray(jax.jit(jax.vmap(jax.vmap(lambda s: s.legal_action_mask)))(after))
    np.testing.assert_array_equal(masks, legal(after))
    for s, a in ((0, 3), (1, 17), (2, 8)):
        one = step(env, jax.tree.map(lambda x, s=s: x[s], states), a)
        chex.assert_trees_all_equal(jax.tree.map(lambda x, s=s, a=a: x[s, a], after), one)
        np.testing.assert_array_equal(legal(one), masks[s, a])


# --- drawings -----------------------------------------------------------------------------------


def test_text():
    env = SameGame(2, 3, 2)
    state = env.from_board(board("0..", "110"))
    assert env.render(state) == "\n".join(["    a b c", "  1 0 . .", "  2 1 1 0", "4 blocks left"])
    policy = np.zeros(6)
    policy[3] = 1
    assert samegame_text(env, state, policy) == "\n".join(
        ["    a    b    c", "  1 0    .    .", "  2 1:100 1    0", "4 blocks left"]
    )
    assert env.render(step(env, state, 3)).endswith("2 blocks left")


def test_text_of_finished_games():
    env = SameGame(1, 3, 2)
    over = step(env, env.from_board(board("001")), 0)
    assert env.render(over).endswith("game over, 1 block left")
    assert env.render(step(env, env.from_board(board("000")), 0)).endswith("board cleared")


@pytest.mark.parametrize(("width", "num_colors"), [(1, 1), (9, 5), (9, 50)])
def test_svg(width, num_colors):
    env = SameGame(4, width, num_colors)
    state = init(env, jax.random.key(0))
    policy = np.asarray(legal(state), float)
    for drawing, dots in (
        (env.render(state, format="svg"), 0),
        (env.render(state, policy, format="svg"), policy.sum()),
    ):
        root = ElementTree.fromstring(drawing)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        kinds = [element.get("class") for element in root.iter()]
        assert kinds.count("block") == 4 * width
        assert kinds.count("policy") == dots
        assert "nan" not in drawing


@pytest.mark.parametrize("draw", [samegame_text, samegame_svg])
def test_drawing_refuses(draw):
    env = SameGame(3, 3, 3)
    state = init(env, jax.random.key(0))
    with pytest.raises(ValueError, match=r"unbatched.*\(2, 3\).*got \(1, 2, 3\)"):
        draw(env, jax.tree.map(lambda x: x[None], state))
    with pytest.raises(ValueError, match=r"shape \(9,\), got \(10,\)"):
        draw(env, state, np.ones(10))
    with pytest.raises(ValueError, match=r'"text" or "svg", got \'png\''):
        env.render(state, format="png")
