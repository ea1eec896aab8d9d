"""Games in a given order against the rules in NumPy, and parallel tempering over orders."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import mostly_slow

from benchmarks.studies.seify2020.samegame_searches import tempering_on_devices
from jaxpgs import puzzles
from jaxpgs.envs import Hex, SameGame
from jaxpgs.envs.samegame import rules
from jaxpgs.envs.samegame.orders import never, play_orders
from jaxpgs.puzzles import parallel_tempering as tempering
from jaxpgs.puzzles.nrpa_samegame import replayed

SMALL = SameGame(height=6, width=5, num_colors=3)
BOARDS = [
    (SMALL, 30), (SameGame(height=1, width=12, num_colors=2, penalty="none"), 20),
    (SameGame(height=11, width=12, num_colors=4), 6), (SameGame(height=17, width=17), 3),
]  # fmt: skip

play = jax.jit(play_orders, static_argnums=0)


def stack(states):
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


def lane(states, index):
    return jax.tree.map(lambda x: x[index], states)


@functools.partial(jax.jit, static_argnums=(0, 1))
def some(env, count, key):
    of_boards, of_times = jax.random.split(key)
    states = jax.vmap(env.init)(jax.random.split(of_boards, count))
    times = jax.random.randint(of_times, (env.num_actions, count), 0, 40)
    return states, times.astype(never(env).dtype)


def by_the_rules(board, times, penalty):
    """Plays the block with the smallest time that is in a group; returns the moves and the times.

    Blocks are followed by a board of their names, which falls with them.
    """
    names = np.arange(board.size).reshape(board.shape)
    moves, found = [], np.full(board.size, -1)
    while groups := rules.groups(board):
        cells = sorted(cell for group in groups for cell in group)

        blocks = names.flat[cells]
        rows, columns = np.divmod(blocks, board.shape[1])
        first = cells[np.lexsort((rows, columns, times[blocks]))[0]]
        group = next(group for group in groups if first in group)
        found[names.flat[group]] = 2 * len(moves) + 1
        moves.append(first)
        hole = board.copy()
        hole.flat[group] = -1
        columns = [[(hole[r, c], names[r, c]) for r in range(len(board)) if hole[r, c] >= 0]
                   for c in range(board.shape[1])]  # fmt: skip
        board, names = np.full_like(board, -1), np.full_like(names, -1)
        for c, blocks in enumerate(filter(None, columns)):
            for i, (color, name) in enumerate(reversed(blocks)):
                board[-1 - i, c], names[-1 - i, c] = color, name
    return moves, found


@pytest.mark.parametrize(("env", "count"), mostly_slow(BOARDS, *BOARDS[:2]))
def test_games_are_those_of_the_order(env, count):
    states, times = some(env, count, jax.random.key(1))
    games = jax.device_get(play(env, states, times))
    for index in range(count):
        board = np.asarray(env.board(lane(states, index)))
        moves, when = by_the_rules(board, np.asarray(times)[:, index], env.penalty)
        length = games.length[index]
        assert games.action[:length, index].tolist() == moves
        assert (games.action[length:, index] == -1).all()
        left = when < 0
        np.testing.assert_array_equal(games.times[~left, index], when[~left])
        assert (games.times[left, index] == never(env)).all()
        assert games.score[index] == rules.replay(board, moves, penalty=env.penalty).score


def test_a_game_is_played_again_by_its_times():
    states, times = some(SMALL, 30, jax.random.key(2))
    games = play(SMALL, states, times)
    again = play(SMALL, states, games.times)
    for name in ("score", "length", "times"):
        np.testing.assert_array_equal(getattr(games, name), getattr(again, name))


def test_boards_with_nothing_to_choose():
    env = SameGame(height=2, width=3, num_colors=2)
    boards = [["000", "000"], ["010", "101"], ["...", "011"]]
    cells = [[[-1 if x == "." else int(x) for x in row] for row in board] for board in boards]
    states = stack([env.from_board(np.array(board)) for board in cells])
    solution = jax.jit(lambda key: puzzles.tempering(env, key, states, 5, lanes=2))(
        jax.random.key(8)
    )
    # One move of six blocks clears the board; there is none; two blocks go and one is left.
    assert solution.score.tolist() == [16.0 + 1000, 0.0, -1.0]
    assert solution.num_moves.tolist() == [1, 0, 1]


KNOBS = {"lanes": 4, "games_per_sweep": 3}


@jax.jit
def small_init(states, keys):
    return puzzles.tempering_search(SMALL, states, **KNOBS).init(keys)


@jax.jit
def small_step(states, keys, state):
    return puzzles.tempering_search(SMALL, states, **KNOBS).step(keys, state)


@jax.jit
def small_finish(states, state):
    return puzzles.tempering_search(SMALL, states, **KNOBS).finish(state)


@pytest.fixture(scope="module")
def three_boards():
    return jax.jit(jax.vmap(SMALL.init))(jax.random.split(jax.random.key(5), 3))


def run_small(states, keys, steps):
    seen = [small_init(states, keys)]
    for _ in range(steps):
        seen.append(small_step(states, keys, seen[-1]))
    return seen


def test_the_best_is_kept_and_lanes_hold_what_they_say(three_boards):
    keys = jax.random.split(jax.random.key(6), 3)
    seen = run_small(three_boards, keys, 8)
    lanes = jax.tree.map(lambda x: jnp.repeat(x, 4, axis=0), three_boards)
    for before, after in itertools.pairwise(seen):
        assert (after.best >= before.best).all()
    last = seen[-1]
    for times, score in ((last.times, last.score), (last.best_times, last.best)):
        games = play(SMALL, lanes, times)
        np.testing.assert_array_equal(games.score, score)
        np.testing.assert_array_equal(games.times, times)
    assert int(last.sweeps) == 8 and (last.score != seen[-2].score).any()
    best = small_finish(three_boards, last)
    np.testing.assert_array_equal(best.score, last.best.reshape(3, 4).max(axis=1))
    # A solution names groups as everybody else does, by their legal actions.
    found = jax.jit(functools.partial(replayed, SMALL))(three_boards, best.action)
    np.testing.assert_array_equal(found.score, best.score)
    state, moves = three_boards, np.asarray(found.moves)
    for t in range(int(best.length.max())):
        legal, going = np.asarray(state.legal_action_mask), moves[:, t] >= 0
        assert legal[going, moves[going, t]].all()
        state = jax.vmap(SMALL.step)(state, jnp.maximum(moves[:, t], 0).astype(jnp.int32))


def test_boards_do_not_touch_each_other_and_nothing_is_traced_twice(three_boards):
    keys = jax.random.split(jax.random.key(7), 3)
    together = run_small(three_boards, keys, 4)[-1]
    small_step.clear_cache()
    for index in range(3):
        alone = jax.tree.map(lambda x, i=index: x[i : i + 1], three_boards)
        single = run_small(alone, keys[index : index + 1], 4)[-1]
        for one, all_ in zip(single[:-1], together[:-1], strict=True):
            np.testing.assert_array_equal(one, all_[..., 4 * index : 4 * index + 4])
    assert small_step._cache_size() == 1


def test_a_change_takes_a_move_or_a_block_to_a_time_between_moves():
    setting = tempering._Setting(SMALL, None, 2, np.ones(2), 1, 0.5, 0.0)
    times = jnp.array([1, 3, 3, 255], jnp.uint8)[:, None].repeat(2, 1)
    numbers = jnp.array([[0.7, 0.0], [0.99, 0.4], [0.1, 0.9], [0.9, 0.1]])  # two moves a game
    found = tempering._change(setting, numbers, times, jnp.array([2, 2]))
    # Lane 0 takes move 1 behind the end; lane 1 the last block between the moves.
    assert found.T.tolist() == [[1, 4, 4, 255], [1, 3, 3, 2]]


def test_games_are_taken_by_the_rule_of_metropolis():
    # With a temperature of nearly nothing no game gets worse, with a huge one all are taken.
    states, _ = some(SMALL, 40, jax.random.key(3))

    def after(temperature):
        search = puzzles.tempering_search(
            SMALL, states, lanes=2, hottest=temperature, coldest=temperature, games_per_sweep=1
        )
        begun = jax.jit(search.init)(jax.random.split(jax.random.key(4), 40))
        keys = jax.random.split(jax.random.key(5), 40)
        return begun, jax.jit(search.step)(keys, begun)

    begun, cold = after(1e-6)
    assert (cold.score.reshape(-1, 2).sum(1) >= begun.score.reshape(-1, 2).sum(1)).all()
    assert (cold.score.reshape(-1, 2).sum(1) > begun.score.reshape(-1, 2).sum(1)).any()
    _, hot = after(1e6)
    assert (hot.score.reshape(-1, 2).sum(1) < begun.score.reshape(-1, 2).sum(1)).any()


TEMPERATURES = np.array([4.0, 2.0, 1.0], np.float32)


def test_better_games_go_to_colder_lanes():
    setting = tempering._Setting(SMALL, None, 3, TEMPERATURES, 1, 0.0, 0.0)
    boards = 4000
    score = jnp.tile(jnp.array([3.0, 0.0, 2.0]), boards)
    times = jnp.tile(jnp.array([[1, 2, 3]], jnp.uint8), boards)
    keys = jax.random.split(jax.random.key(0), 3 * boards)

    def exchanged(sweeps):
        state = tempering.TemperingState(times, score, score, times, score, jnp.int32(sweeps))
        return jax.jit(lambda: tempering._exchange(setting, keys, state))()

    even, odd = exchanged(2), exchanged(3)
    # Pairs in even sweeps are (0, 1): the better game is in the hotter lane, and always goes.
    np.testing.assert_array_equal(even.times[0].reshape(-1, 3), [[2, 1, 3]] * boards)
    np.testing.assert_array_equal(even.score.reshape(-1, 3), [[0, 3, 2]] * boards)
    # In odd ones (1, 2): with probability exp((1/2 - 1/1) (2 - 0)) = exp(-1) the worse one does.
    found = np.asarray(odd.times)[0].reshape(-1, 3)
    swaps, stays = ((found == order).all(axis=1) for order in ([[1, 3, 2]], [[1, 2, 3]]))
    assert (swaps | stays).all()
    # Five standard deviations: wrong with a probability below 1e-6.
    assert abs(float(swaps.mean()) - np.exp(-1)) < 5 * (np.exp(-1) / boards) ** 0.5


def test_it_is_better_than_a_random_walk():
    env, boards = SameGame(height=8, width=8, num_colors=4), 12
    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(10), boards))

    def scores(**knobs):
        solve = functools.partial(puzzles.tempering, env, state=states, num_simulations=3200)
        return jax.jit(lambda key: solve(key, **knobs).score)(jax.random.key(0))

    # With a huge temperature every game is taken. By the sign test, 11 of 12 boards or more are won
    # by chance with probability 13 / 4096.
    assert (scores() > scores(hottest=1e6, coldest=1e6)).sum() >= 11


@pytest.mark.parametrize(
    ("knobs", "said"),
    [({"lanes": 1}, "lanes must be at least 2.*got 1"), ({"games_per_sweep": 0}, "got 16 and 0"),
     ({"hottest": 0.0}, "hottest.*got 0.0"), ({"coldest": float("nan")}, "coldest"),
     ({"one_block": 1.5}, "one_block.*got 1.5"), ({"another": -0.1}, "another")],
)  # fmt: skip
def test_mistakes_are_named(three_boards, knobs, said):
    with pytest.raises(ValueError, match=said):
        puzzles.tempering_search(SMALL, three_boards, **knobs)
    with pytest.raises(TypeError, match=r"for SameGame, got Hex\(size=3.*nrpa_policy"):
        puzzles.tempering_search(Hex(3), three_boards)
    for solve in (puzzles.tempering, puzzles.nrpa):
        for count in (0, 2.5, "64"):
            with pytest.raises(
                ValueError, match=rf"num_simulations to be a whole.*; got {count!r}"
            ):
                solve(SMALL, jax.random.key(0), three_boards, count)
        with pytest.raises(ValueError, match=r"one leading axis.*got `terminated` of shape \[\]"):
            solve(SMALL, jax.random.key(0), lane(three_boards, 0), 8)


def test_it_searches_with_wide_types(three_boards):
    solve = functools.partial(puzzles.tempering, SMALL, num_simulations=24, **KNOBS)
    with jax.enable_x64(True):
        solution = jax.jit(lambda key: solve(key, three_boards))(jax.random.key(0))
    board = np.asarray(SMALL.board(lane(three_boards, 0)))
    moves = solution.moves[0, : int(solution.num_moves[0])].tolist()
    assert rules.replay(board, moves).score == solution.score[0]


def test_the_benchmark_runs_it_on_every_device():
    run = tempering_on_devices(steps=2, **KNOBS)(SMALL, 2)
    boards = np.stack([np.asarray(SMALL.board(SMALL.init(jax.random.key(k)))) for k in range(2)])
    best = next(run(boards, jax.random.key(0)))
    assert best.simulations == 2 * 4 * 3 * jax.device_count()
    for board, actions, score in zip(boards, best.actions, best.scores, strict=True):
        game = rules.replay(board, actions, penalty=SMALL.penalty)
        assert game.over and game.score == score
