"""Yavalath against a referee that walks along lines, and positions worked out by hand."""

import dataclasses

import chex
import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import mostly_slow

from jaxpgs.envs import Yavalath
from jaxpgs.envs.render import yavalath_text

step = jax.jit(Yavalath.step, static_argnums=0, compiler_options=games.QUICK)
SMALL = Yavalath(3)


class Referee:
    """The rules on a dict of stones, by cells `(x, y, z)` with `x + y + z = 0`."""

    def __init__(self, size):
        side = range(1 - size, size)
        # Row by row; a row is one x, and y grows along it.
        self.cells = [(x, y, -x - y) for x in side for y in side if abs(x + y) < size]
        self.stones, self.player, self.rewards, self.over = {}, 0, [0, 0], False

    def legal(self):
        return [not self.over and cell not in self.stones for cell in self.cells]

    def play(self, action):
        new, mover = self.cells[action], self.player
        self.stones[new] = mover
        lengths = []
        for way in ((1, -1, 0), (0, 1, -1), (-1, 0, 1)):
            length = 1
            for sign in (1, -1):
                at = tuple(c + sign * w for c, w in zip(new, way, strict=True))
                while self.stones.get(at) == mover:
                    length += 1
                    at = tuple(c + sign * w for c, w in zip(at, way, strict=True))
            lengths.append(length)
        won, lost = max(lengths) >= 4, 3 in lengths
        if won or lost:
            self.rewards[mover], self.rewards[1 - mover] = (1, -1) if won else (-1, 1)
        self.over = won or lost or len(self.stones) == len(self.cells)
        self.player = 1 - mover


def cell(env, row, column):
    (found,) = np.flatnonzero((env.coordinates == (row, column)).all(-1))
    return np.int32(found)


def position(env, own, other, player=0):
    """A position with the mover's and the other's stones at `(row, column)`."""
    board = np.zeros(env.num_cells, np.int8)
    board[[cell(env, *at) for at in own]] = 1
    board[[cell(env, *at) for at in other]] = -1
    board = board if player == 0 else -board
    return dataclasses.replace(
        env.init(), board=jnp.asarray(board), current_player=jnp.int32(player)
    )


# --- agreement with the referee -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count"), mostly_slow([(3, 200), (5, 200), (6, 60)], (3, 200), (5, 200))
)
def test_agrees_with_the_referee(size, count):
    env = Yavalath(size)
    # Half of the games are random, and short. In the others the players take a pattern without
    # rows of three in turn, as far as both have cells of it, so that games are long.
    rng = np.random.default_rng(size)
    orders = np.tile(np.arange(env.num_cells, dtype=np.int32), (count, 1))
    orders = rng.permuted(orders, axis=1)
    pattern = (env.coordinates @ [1, 2]) % 4 < 2
    for order in orders[1::2]:
        cells = [order[pattern[order]], order[~pattern[order]]]
        fewer = min(map(len, cells))
        turns = np.stack([c[:fewer] for c in cells], axis=1).ravel()
        order[:] = [*turns, *cells[0][fewer:], *cells[1][fewer:]]

    @jax.jit
    def run(actions):
        def body(states, action):
            after = jax.vmap(env.step)(states, action)
            record = (states.current_player, states.legal_action_mask, jax.vmap(env.observe)(after))
            return after, (*record, after.rewards, after.terminated)

        start = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), env.init())
        return jax.lax.scan(body, start, actions.T)[1]

    player, legal, seen, rewards, terminated = jax.tree.map(np.asarray, run(orders))
    endings = set()
    for g in range(count):
        referee = Referee(size)
        for t, action in enumerate(orders[g].tolist()):
            assert referee.player == player[t, g]
            assert referee.legal() == legal[t, g].tolist()
            referee.play(action)
            assert referee.over == terminated[t, g]
            assert referee.rewards == rewards[t, g].tolist()
            planes = np.zeros(env.observation_shape)
            for (x, y, _), owner in referee.stones.items():
                planes[x + size - 1, y + size - 1, int(owner != referee.player)] = 1
            for x, y, _ in set(referee.cells) - set(referee.stones):
                planes[x + size - 1, y + size - 1, 2] = 1
            np.testing.assert_array_equal(seen[t, g], planes)
            if referee.over:
                break
        # After the end nothing is legal and nothing is earned.
        assert not legal[t + 1 :, g].any() and not rewards[t + 1 :, g].any()
        mover = referee.player  # who did not make the last move
        endings.add(-referee.rewards[mover])
    assert endings == {1, 0, -1}, "games end with fours, full boards and threes"


# --- rules by hand ------------------------------------------------------------------------------

# Along a row, along a column and along the third direction, through the middle of the board.
WAYS = ((0, 1), (1, 0), (1, -1))
BESIDE = [(2, 3), (6, 5), (3, 6)]  # stones of the other, on none of these lines


def line(way, *steps):
    return [(4 + s * way[0], 4 + s * way[1]) for s in steps]


@pytest.mark.parametrize("player", [0, 1])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("own", "reward"),
    [
        ((-2, -1, 1), 1),  # the gap of four
        ((-1, 1, 2), 1),
        ((1, 2, 3), 1),  # the end of a four; only in given positions, since three lose
        ((-3, -2, -1), 1),
        ((-2, -1, 1, 2), 1),  # five
        ((-3, -2, -1, 1, 2, 3), 1),  # seven
        ((-1, 1), -1),  # three
        ((1, 2), -1),
        ((-2, -1), -1),
        ((-2, -1, 2), -1),  # three, and one beyond a gap
        ((1,), 0),
        ((-2, 2), 0),  # gaps
        ((-3, -2, 2, 3), 0),
    ],
)
def test_lines(own, reward, way, player):
    env = Yavalath()
    state = position(env, line(way, *own), BESIDE, player)
    after = step(env, state, cell(env, 4, 4))
    assert bool(after.terminated) == (reward != 0)
    assert float(after.rewards[player]) == reward and float(after.rewards[1 - player]) == -reward


@pytest.mark.parametrize("way", WAYS)
def test_a_four_wins_though_it_makes_a_three_too(way):
    env = Yavalath()
    (crossing,) = (w for w in WAYS if w == WAYS[(WAYS.index(way) + 1) % 3])
    own = line(way, -2, -1, 1) + line(crossing, 1, 2)
    after = step(env, position(env, own, []), cell(env, 4, 4))
    assert after.terminated and after.rewards.tolist() == [1, -1]
    after = step(env, position(env, own[1:], []), cell(env, 4, 4))  # without the four
    assert after.terminated and after.rewards.tolist() == [-1, 1]


def test_lines_do_not_go_around_the_edge():
    # The last cell of a row and the first ones of the next have neighbouring numbers.
    env = Yavalath()
    for row in range(8):
        (this,), (that,) = (np.flatnonzero(env.coordinates[:, 0] == r)[k:][:1] for r, k in
                            ((row, -1), (row + 1, 0)))  # fmt: skip
        board = np.zeros(env.num_cells, np.int8)
        board[[that, that + 1]] = 1
        state = dataclasses.replace(env.init(), board=jnp.asarray(board))
        assert not step(env, state, np.int32(this)).terminated
        board[[that, that + 1]], board[[this, this - 1]] = 0, 1
        state = dataclasses.replace(env.init(), board=jnp.asarray(board))
        assert not step(env, state, np.int32(that)).terminated


@pytest.mark.parametrize(("row", "rewards"), [("xx.", [-1, 1]), ("ox.", [0, 0])])
def test_the_last_stone(row, rewards):
    rows = ["oxo", "xoox", "oxxox", "oxoo", row]
    board = np.array([{"x": 1, "o": -1, ".": 0}[c] for c in "".join(rows)], np.int8)
    state = dataclasses.replace(SMALL.init(), board=jnp.asarray(board))
    after = step(SMALL, state, np.int32(18))
    assert after.terminated and after.rewards.tolist() == rewards
    assert SMALL.render(after).endswith("game over" if not any(rewards) else "O player 1 won")


@pytest.mark.parametrize("action", [9, -1, 19, 2**31 - 1])
@pytest.mark.parametrize("player", [0, 1])
def test_illegal_moves_lose(action, player):
    state = position(SMALL, [(2, 2)], [(2, 3)], player)
    after = step(SMALL, state, np.int32(action))
    assert after.terminated
    assert float(after.rewards[player]) == -1 and float(after.rewards[1 - player]) == 1
    np.testing.assert_array_equal(after.board, state.board)


def test_finished_games_stay_as_they_are():
    over = step(SMALL, position(SMALL, [(2, 0), (2, 1)], []), cell(SMALL, 2, 2))
    assert over.terminated and not over.legal_action_mask.any()
    for action in (0, 9, 99):
        after = step(SMALL, over, np.int32(action))
        assert not after.rewards.any()
        chex.assert_trees_all_equal(after, dataclasses.replace(over, rewards=after.rewards))


# --- the board ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "cells"), [(3, 19), (5, 61), (10, 271)])
def test_coordinates(size, cells):
    env = Yavalath(size)
    assert env.num_cells == env.num_actions == len(env.coordinates) == cells
    assert env.num_players == 2
    expected = [(x + size - 1, y + size - 1) for x, y, _ in Referee(size).cells]
    np.testing.assert_array_equal(env.coordinates, expected)
    seen = np.asarray(env.observe(env.init()))
    assert seen.shape == env.observation_shape and seen.dtype == np.float32
    np.testing.assert_array_equal(np.argwhere(seen[..., 2]), expected)
    assert not seen[..., :2].any()


def test_symmetries_are_twelve_and_keep_games():
    order = np.random.default_rng(0).permutation(SMALL.num_cells)
    policies = np.eye(SMALL.num_cells, dtype=np.float32)[order]
    forms = SMALL.symmetries(jnp.zeros((len(order), *SMALL.observation_shape)), policies)
    actions = np.argmax([policy for _, policy in forms], axis=-1).astype(np.int32)
    assert len({tuple(moves) for moves in actions.tolist()}) == 12
    np.testing.assert_array_equal(actions[0], order)

    @jax.jit
    def run(actions):
        def body(state, action):
            after = SMALL.step(state, action)
            return after, (SMALL.observe(after), after.legal_action_mask, after.rewards)

        games = jax.vmap(lambda moves: jax.lax.scan(body, SMALL.init(), moves)[1])(actions)
        seen, legal, _ = games
        return games, SMALL.symmetries(seen[0], legal[0])

    (seen, legal, rewards), forms = run(actions)
    assert rewards.any(axis=(1, 2)).all()
    np.testing.assert_array_equal(rewards, np.broadcast_to(rewards[:1], rewards.shape))
    for n, form in enumerate(forms):
        chex.assert_trees_all_equal(form, (seen[n], legal[n]))


# --- contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 11, 5.0, "5", True, None, -5])
def test_sizes_that_are_refused(size):
    with pytest.raises(ValueError, match=f"size from 3 to 10, got {size!r}"):
        Yavalath(size)


# --- drawings -----------------------------------------------------------------------------------


def test_text():
    state = position(SMALL, [(0, 2), (2, 2)], [(4, 0)])
    assert SMALL.render(state) == "\n".join(
        [
            "  c d e",
            " b X . . 1",
            "a . . . . 2",
            " . . X . . 3",
            "  . . . . 4",
            "   O . . 5",
            "X player 0 to move",
        ]
    )


def test_drawing_refuses_batches():
    batch = jax.tree.map(lambda x: x[None], SMALL.init())
    with pytest.raises(ValueError, match=r"unbatched.*\(19,\), got \(1, 19\)"):
        yavalath_text(SMALL, batch)
