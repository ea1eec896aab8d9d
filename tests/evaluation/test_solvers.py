"""The exact solvers against brute force, each other and known results."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpgs.envs import Hex, HexState
from jaxpgs.evaluation import hex_openings
from jaxpgs.evaluation.solvers import hex_code, hex_value_table, solve_hex


@pytest.fixture(scope="module")
def tables():
    return {size: hex_value_table(Hex(size)) for size in (2, 3, 4)}


def states_of(boards):
    """Batched states from `[N, cells]` boards of 0, 1 and 2; they can be observed, not stepped."""
    boards = np.asarray(boards)
    lead = (boards == 1).sum(-1) - (boards == 2).sum(-1)
    return HexState(
        labels=np.where(boards == 2, -1, boards).astype(np.int16),
        current_player=lead.astype(np.int32),
        rewards=np.zeros((len(boards), 2), np.float32),
        terminated=np.zeros(len(boards), bool),
        swap_legal=None,
    )


init, step = (jax.jit(method, static_argnums=0) for method in (Hex.init, Hex.step))


@functools.partial(jax.jit, static_argnums=0)
def codes(env, states):
    return hex_code(env, jax.vmap(env.observe)(states))


def look_up(env, table, boards):
    # Filled up to one of a few sizes, since each new one is compiled anew.
    size = 4 ** int(np.ceil(np.log(max(len(boards), 16)) / np.log(4)))
    filled = np.zeros((size, env.num_cells), int)
    filled[: len(boards)] = boards
    return table[np.asarray(codes(env, states_of(filled)))[: len(boards)]]


def random_boards(rng, size, count, stones):
    boards = np.zeros((count, size**2), int)
    for board, k in zip(boards, rng.integers(*stones, count, endpoint=True), strict=True):
        cells = rng.permutation(size**2)[:k]
        board[cells[::2]], board[cells[1::2]] = 1, 2
    return boards


def children(board):
    player = 1 + int((board == 1).sum() > (board == 2).sum())
    for cell in np.flatnonzero(board == 0):
        child = board.copy()
        child[cell] = player
        yield cell, child


@pytest.fixture(scope="module")
def brute_force():
    """Every reachable 3x3 position with its value, by plain negamax on another implementation."""
    pyspiel = pytest.importorskip("pyspiel")
    values = {}

    def negamax(state, board):
        if board not in values:
            if state.is_terminal():
                values[board] = -1
            else:
                stone = 1 + state.current_player()
                values[board] = max(
                    -negamax(state.child(a), (*board[:a], stone, *board[a + 1 :]))
                    for a in state.legal_actions()
                )
        return values[board]

    negamax(pyspiel.load_game("hex", {"board_size": 3}).new_initial_state(), (0,) * 9)
    return values


@pytest.mark.slow
def test_table_agrees_with_brute_force_on_every_3x3_position(tables, brute_force):
    found = look_up(Hex(3), tables[3], list(brute_force))
    np.testing.assert_array_equal(found, list(brute_force.values()))
    assert len(brute_force) > 4000


def test_solver_agrees_with_brute_force_on_3x3_positions(brute_force):
    env, memo = Hex(3), {}
    boards = list(brute_force)
    for i in np.random.default_rng(0).permutation(len(boards))[:150]:
        board = np.array(boards[i])
        state = env.from_board(board.reshape(3, 3))
        solution = solve_hex(env, state, memo=memo)
        assert solution.value == brute_force[boards[i]]
        if not bool(state.terminated):
            winning = [c for c, child in children(board) if brute_force[tuple(child)] == -1]
            assert np.flatnonzero(solution.winning_moves).tolist() == winning


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        (2, ("01", "10")),
        (3, ("001", "111", "100")),
        (4, ("0001", "0010", "0100", "1000")),
    ],
)
def test_openings(tables, size, rows):
    env = Hex(size)
    expected = np.array([list(map(int, row)) for row in rows]).reshape(-1)
    solution = solve_hex(env, init(env))
    assert solution.value == 1 == tables[size][0]
    np.testing.assert_array_equal(solution.winning_moves, expected)
    replies = look_up(env, tables[size], np.eye(size**2, dtype=int))
    np.testing.assert_array_equal(-replies, 2 * expected - 1)
    if size > 3:
        np.testing.assert_array_equal(hex_openings(size).ravel(), expected)


def test_which_openings_win():
    counts = {size: int(hex_openings(size).sum()) for size in (4, 5, 6, 7)}
    assert counts == {4: 4, 5: 13, 6: 24, 7: 27}
    for size in counts:  # the board looks the same from the other end
        np.testing.assert_array_equal(hex_openings(size), hex_openings(size)[::-1, ::-1])
    with pytest.raises(ValueError, match="4, 5, 6, 7, got 8"):
        hex_openings(8)


def test_3x3_table_is_consistent_everywhere(tables):
    env, table = Hex(3), tables[3]
    boards = np.array(np.unravel_index(np.arange(3**9), (3,) * 9)).T
    lead = (boards == 1).sum(-1) - (boards == 2).sum(-1)
    boards = boards[(lead >= 0) & (lead <= 1)]
    values = look_up(env, table, boards)
    assert set(values) == {-1, 1}
    assert np.count_nonzero(table) == len(boards)
    for cell in range(9):
        # Who could win by this move has value 1; who cannot win by any has value -1.
        free = boards[:, cell] == 0
        child = boards[free].copy()
        child[:, cell] = 1 + ((child == 1).sum(-1) > (child == 2).sum(-1))
        wins = look_up(env, table, child) == -1
        assert (values[free][wins] == 1).all()


def test_4x4_values_are_the_best_of_their_children(tables):
    env = Hex(4)
    boards = random_boards(np.random.default_rng(1), 4, 200, (0, 15))
    families = [[child for _, child in children(board)] for board in boards]
    replies = look_up(env, tables[4], np.concatenate(families))
    replies = np.split(replies, np.cumsum([len(family) for family in families])[:-1])
    for value, after in zip(look_up(env, tables[4], boards), replies, strict=True):
        assert value == max(-after)


def test_4x4_solver_agrees_with_the_table(tables):
    env = Hex(4)
    for board in random_boards(np.random.default_rng(2), 4, 60, (1, 14)):
        state = env.from_board(board.reshape(4, 4))
        solution = solve_hex(env, state)
        assert solution.value == look_up(env, tables[4], [board])[0]
        if not bool(state.terminated):
            cells, after = zip(*children(board), strict=True)
            won = look_up(env, tables[4], after) == -1
            np.testing.assert_array_equal(solution.winning_moves[list(cells)], won)
            assert solution.winning_moves.sum() == won.sum()


def test_4x4_table_is_symmetric_under_half_a_turn(tables):
    boards = random_boards(np.random.default_rng(3), 4, 2000, (0, 16))
    env = Hex(4)
    np.testing.assert_array_equal(
        look_up(env, tables[4], boards), look_up(env, tables[4], boards[:, ::-1])
    )


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("opening", "value"), [((2, 2), 1), ((0, 4), 1), ((4, 0), 1), ((0, 0), -1)]
)
def test_5x5_openings(opening, value):
    env = Hex(5)
    state = step(env, init(env), opening[0] * 5 + opening[1])
    solution = solve_hex(env, state, all_moves=False)
    assert solution.value == -value
    assert solution.winning_moves.sum() == (solution.value == 1)


def test_5x5_positions_agree_with_their_children():
    env, memo = Hex(5), {}
    for board in random_boards(np.random.default_rng(4), 5, 10, (10, 14)):
        state = env.from_board(board.reshape(5, 5))
        solution = solve_hex(env, state, memo=memo)
        if bool(state.terminated):
            continue
        for cell, _ in children(board):
            # Without shared proofs, so that the two searches are independent.
            reply = solve_hex(env, step(env, state, int(cell)), all_moves=False)
            assert bool(solution.winning_moves[cell]) == (reply.value == -1)


def test_stopping_at_the_first_winning_move():
    env = Hex(3)
    solution = solve_hex(env, env.init(), all_moves=False)
    assert solution.value == 1
    assert solution.winning_moves.sum() == 1
    assert not (solution.winning_moves & ~solve_hex(env, env.init()).winning_moves).any()


def test_memo_is_extended_and_used():
    memo = {}
    for size in (2, 3, 4):  # one memo may serve boards of several sizes
        assert solve_hex(Hex(size), Hex(size).init(), memo=memo).value == 1
    entries = len(memo)
    again = solve_hex(Hex(4), Hex(4).init(), memo=memo)
    assert again.value == 1 and len(memo) == entries > 0


def test_finished_games():
    env = Hex(2)
    won = step(env, env.from_board(np.array([[1, 2], [0, 0]])), 2)
    solution = solve_hex(env, won)
    assert solution.value == -1 and not solution.winning_moves.any()
    # Whoever plays an illegal move loses, so the other player, to move now, has won.
    forfeited = step(env, step(env, init(env), 0), 0)
    solution = solve_hex(env, forfeited)
    assert solution.value == 1 and not solution.winning_moves.any()


def test_table_is_an_exact_value_network_under_jit(tables):
    env, table = Hex(3), jnp.asarray(tables[3])

    @jax.jit
    def value(states):
        return table[hex_code(env, jax.vmap(env.observe)(states))]

    states = jax.jit(jax.vmap(env.step, in_axes=(None, 0)))(init(env), np.arange(9))
    np.testing.assert_array_equal(value(states), [1, 1, -1, -1, -1, -1, -1, 1, 1])


def test_code_by_hand():
    env = Hex(2)
    state = env.from_board(np.array([[0, 1], [2, 0]]))
    code = jax.jit(lambda state: hex_code(env, env.observe(state)))
    assert int(code(state)) == 1 * 3 + 2 * 9
    # Player 1 sees its own stones as 1, and (0, 1) as (1, 0).
    state = env.from_board(np.array([[0, 1], [0, 0]]))
    assert int(code(state)) == 2 * 9


def test_refusals():
    env, swap = Hex(3), Hex(3, swap=True)
    with pytest.raises(ValueError, match="swap=True"):
        solve_hex(swap, swap.init())
    with pytest.raises(ValueError, match="swap=True"):
        hex_value_table(swap)
    with pytest.raises(ValueError, match="2 to 4, got 5"):
        hex_value_table(Hex(5))
    with pytest.raises(ValueError, match=r"unbatched.*\(9,\), got \(1, 9\)"):
        solve_hex(env, jax.tree.map(lambda x: x[None], env.init()))
    with pytest.raises(ValueError, match=r"\(9,\), got \(16,\)"):
        solve_hex(env, Hex(4).init())
    with pytest.raises(ValueError, match=r"3, 3, 3.*\(4, 4, 3\)"):
        hex_code(env, jnp.zeros((4, 4, 3)))
