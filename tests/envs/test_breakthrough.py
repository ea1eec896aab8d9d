"""Breakthrough against OpenSpiel and positions worked out by hand."""

import dataclasses

import chex
import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import mostly_slow

from jaxpgs.envs import Breakthrough
from jaxpgs.envs.render import breakthrough_text

step = jax.jit(Breakthrough.step, static_argnums=0, compiler_options=games.QUICK)
SMALL = Breakthrough(rows=5, columns=4)
LEFT, STRAIGHT, RIGHT = range(3)


def position(*rows, player=0):
    """Reads rows of `.`, `x` (player 0, who moves up) and `o` (player 1)."""
    board = np.array([[{".": 0, "x": 1, "o": -1}[c] for c in row] for row in rows], np.int8)
    env = Breakthrough(*board.shape)
    state = dataclasses.replace(
        env.init(), board=jnp.asarray(board), current_player=jnp.int32(player)
    )
    return env, state


def legal_moves(state):
    return np.flatnonzero(state.legal_action_mask).tolist()


# --- agreement with OpenSpiel -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns", "count"), mostly_slow([(8, 8, 40), (7, 5, 60), (6, 2, 100)], (7, 5, 60))
)
def test_agrees_with_open_spiel(rows, columns, count):
    pyspiel = pytest.importorskip("pyspiel")
    env, cells = Breakthrough(rows, columns), rows * columns
    # A pawn of the first row may go rows - 2 steps before the one that wins, and one of the second
    # a step less: a game is over after so many plies, whatever is played.
    most = 2 * columns * (2 * rows - 5) + 1

    @jax.jit
    def run(key):
        def body(states, key):
            mask = states.legal_action_mask
            score = jax.random.uniform(key, mask.shape)
            action = jnp.argmax(jnp.where(mask, score, -1.0), axis=-1).astype(jnp.int32)
            after = jax.vmap(env.step)(states, action)
            seen = jax.vmap(env.observe)(states)
            record = (states.current_player, mask, action, seen, after.board)
            return after, (*record, after.rewards, after.terminated)

        start = jax.vmap(env.init)(jax.random.split(key, count))
        return jax.lax.scan(body, start, jax.random.split(key, most))[1]

    record = run(jax.random.key(rows))
    player, legal, actions, seen, boards, rewards, terminated = jax.tree.map(np.asarray, record)
    # OpenSpiel's player 0 moves down, in our frame turned by 180 degrees. Its actions are
    # `2 * (6 * cell + direction) + capture`, directions 0 to 2 down, 3 to 5 up.
    theirs = np.arange(12 * cells)
    cell, direction = theirs // 12, theirs // 2 % 6
    ours = np.where(direction < 3, 3 * (cells - 1 - cell) + 2 - direction, 3 * cell + direction - 3)
    game = pyspiel.load_game("breakthrough", {"rows": rows, "columns": columns})
    for g in range(count):
        other = game.new_initial_state()
        for t in range(most):
            assert other.current_player() == player[t, g]
            allowed = {ours[a]: a for a in other.legal_actions()}
            assert sorted(allowed) == np.flatnonzero(legal[t, g]).tolist()
            assert allowed, "whoever has a pawn can move"
            other.apply_action(allowed[actions[t, g]])
            text = "".join(line[1:] for line in str(other).splitlines()[:rows])[::-1]
            board = [{".": 0, "b": 1, "w": -1}[c] for c in text]
            assert boards[t, g].reshape(-1).tolist() == board
            assert other.is_terminal() == terminated[t, g]
            if other.is_terminal():
                break
            assert not rewards[t, g].any()
        np.testing.assert_array_equal(rewards[t, g], other.returns())
        # After the end nothing is legal and nothing is earned.
        assert not legal[t + 1 :, g].any()
        assert not rewards[t + 1 :, g].any()
    assert terminated[-1].all()
    # The mover sees his own pawns, those of the other and the empty cells.
    sign = np.where(player == 0, 1, -1)[1:, :, None, None]
    turned = np.where(sign == 1, boards[:-1], -boards[:-1, :, ::-1, ::-1])
    np.testing.assert_array_equal(seen[1:], np.stack([turned == x for x in (1, -1, 0)], -1))


# --- rules by hand ------------------------------------------------------------------------------


def test_the_first_position():
    env = Breakthrough()
    state = env.init()
    assert (env.num_players, env.num_cells, env.num_actions) == (2, 64, 192)
    assert env.render(state) == "\n".join(
        [
            " 8 O O O O O O O O",
            " 7 O O O O O O O O",
            " 6 . . . . . . . .",
            " 5 . . . . . . . .",
            " 4 . . . . . . . .",
            " 3 . . . . . . . .",
            " 2 X X X X X X X X",
            " 1 X X X X X X X X",
            "   a b c d e f g h",
            "X player 0 to move",
        ]
    )
    moves = [3 * cell + d for cell in range(48, 56) for d in range(3)]
    assert legal_moves(state) == [m for m in moves if m not in (3 * 48, 3 * 55 + 2)]


@pytest.mark.parametrize("player", [0, 1])
def test_moves_and_captures(player):
    rows = ("....", ".oo.", ".xx.", "x...", "....")
    if player:  # the same for player 1
        rows = ["".join({"x": "o", "o": "x"}.get(c, c) for c in row[::-1]) for row in rows[::-1]]
    env, state = position(*rows, player=player)
    # (2, 1) is blocked straight ahead, may go left and capture to the right; (2, 2) likewise;
    # from (3, 0) the left is off the board, and to the right stands an own pawn.
    expected = [3 * 9 + LEFT, 3 * 9 + RIGHT, 3 * 10 + LEFT, 3 * 10 + RIGHT, 3 * 12 + STRAIGHT]
    assert legal_moves(state) == expected
    seen = np.asarray(env.observe(state))
    assert seen.shape == env.observation_shape and seen.dtype == np.float32
    assert np.argwhere(seen[..., 0]).tolist() == [[2, 1], [2, 2], [3, 0]]
    assert np.argwhere(seen[..., 1]).tolist() == [[1, 1], [1, 2]]
    np.testing.assert_array_equal(seen.sum(-1), 1)
    after = step(env, state, np.int32(3 * 9 + RIGHT))
    assert not after.terminated and int(after.current_player) == 1 - player
    theirs = np.asarray(env.observe(after))
    assert theirs[..., 0].sum() == 1 and theirs[..., 1].sum() == 3  # one was captured
    assert theirs[3, 1, 1] == 1  # (1, 2), as the other sees it


@pytest.mark.parametrize("player", [0, 1])
def test_the_last_row_wins(player):
    rows = (".o..", "x.o.", "....", ".x.o", "..x.")
    if player:
        rows = (".o..", "o.x.", "....", ".x.o", "..x.")
    env, state = position(*rows, player=player)
    cell = 4 if player == 0 else 4 * 5 - 1 - (3 * 4 + 3)
    after = step(env, state, np.int32(3 * cell + STRAIGHT))
    assert after.terminated
    np.testing.assert_array_equal(after.rewards, [1, -1] if player == 0 else [-1, 1])
    assert not after.legal_action_mask.any()


@pytest.mark.parametrize("player", [0, 1])
def test_the_last_pawn_taken_wins(player):
    rows = ("....", "....", ".o..", "x.x.", "...x")
    if player:
        rows = ("....", "..o.", "o..x", ".o..", "....")
    env, state = position(*rows, player=player)
    cell = 3 * 4 if player == 0 else 4 * 5 - 1 - 6
    after = step(env, state, np.int32(3 * cell + (RIGHT if player == 0 else LEFT)))
    if player == 0:
        assert after.terminated and after.rewards.tolist() == [1, -1]
    else:
        assert after.terminated and after.rewards.tolist() == [-1, 1]
    assert "won" in env.render(after)


@pytest.mark.parametrize(
    "action",
    [
        3 * 9 + STRAIGHT,  # onto the other's pawn, straight
        3 * 12 + LEFT,  # off the board, on the left
        3 * 12 + RIGHT,  # onto an own pawn
        3 * 11 + STRAIGHT,  # no pawn there
        3 * 5 + STRAIGHT,  # the other's pawn
        -1,
        3 * 20 + STRAIGHT,  # below the board
        2**31 - 1,
    ],
)
@pytest.mark.parametrize("player", [0, 1])
def test_illegal_moves_lose(action, player):
    rows = ("....", ".oo.", ".xx.", "x...", "...x")
    if player:
        rows = ("o...", "...o", ".oo.", ".xx.", "....")
    env, state = position(*rows, player=player)
    after = step(env, state, np.int32(action))
    assert after.terminated
    assert float(after.rewards[player]) == -1 and float(after.rewards[1 - player]) == 1
    np.testing.assert_array_equal(after.board, state.board)


def test_finished_games_stay_as_they_are():
    env, state = position("....", "x.o.", "....", "....", "....")
    over = step(env, state, np.int32(3 * 4 + STRAIGHT))
    for action in (0, 3 * 9 + STRAIGHT, 99):
        after = step(env, over, np.int32(action))
        assert not after.rewards.any()
        chex.assert_trees_all_equal(after, dataclasses.replace(over, rewards=after.rewards))
    assert env.render(after).endswith("game over")


def test_mirrored_games_look_mirrored():
    rng = np.random.default_rng(0)
    one = two = SMALL.init()
    while not one.terminated:
        legal = np.asarray(one.legal_action_mask)
        forms = SMALL.symmetries(SMALL.observe(one), one.legal_action_mask)
        np.testing.assert_array_equal(forms[0][1], legal)
        chex.assert_trees_all_equal(forms[1], (SMALL.observe(two), two.legal_action_mask))
        action = np.int32(rng.choice(np.flatnonzero(legal)))
        policy = jnp.zeros((1, SMALL.num_actions)).at[0, action].set(1.0)
        mirrored = np.argmax(SMALL.symmetries(SMALL.observe(one)[None], policy)[1][1][0])
        one, two = step(SMALL, one, action), step(SMALL, two, np.int32(mirrored))
        np.testing.assert_array_equal(one.board, np.asarray(two.board)[:, ::-1])


# --- contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 20, 8.0, "8", True, None])
def test_rows_that_are_refused(rows):
    with pytest.raises(ValueError, match=f"rows from 4 to 19, got {rows!r}"):
        Breakthrough(rows=rows)


@pytest.mark.parametrize("columns", [1, 20, -2])
def test_columns_that_are_refused(columns):
    with pytest.raises(ValueError, match=f"columns from 2 to 19, got {columns}"):
        Breakthrough(columns=columns)


def test_drawing_refuses_batches():
    batch = jax.tree.map(lambda x: x[None], SMALL.init())
    with pytest.raises(ValueError, match=r"unbatched.*\(5, 4\), got \(1, 5, 4\)"):
        breakthrough_text(SMALL, batch)
