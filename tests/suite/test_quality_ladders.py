"""Ladders: positions are legal and proved, can be made again, and are judged correctly."""

import functools

import jax
import numpy as np
import pytest
from quality import ladder_positions, ladder_training, ladders
from quality.ladders import states_of

import jaxpgs
from jaxpgs.envs import Hex
from jaxpgs.envs.hex_games import winner
from jaxpgs.evaluation import solve_hex
from jaxpgs.training.recipes.starting_positions import FromPositions

SIZES = ladder_positions.SIZES


@pytest.mark.parametrize("size", SIZES)
def test_ladders_are_legal_pairs_that_differ_in_the_place_of_one_stone(size):
    found = ladder_positions.read(size)
    assert len(found) == 2 * ladder_positions.PAIRS
    for ladder in found:
        first, second = (int((ladder.board == i).sum()) for i in (1, 2))
        assert first - second == ladder.player and winner(ladder.board) is None
        assert (ladder.value > 0) == bool(ladder.keeping)
        assert not ladder.board.flat[ladder.keeping].any()
    for one, other in zip(found[::2], found[1::2], strict=True):
        differ = one.board != other.board
        assert differ.sum() == 2 and sorted(one.board[differ]) == sorted(other.board[differ])
        assert (one.player, one.value) == (other.player, -other.value)
        attacker = one.player if one.value > 0 else 1 - one.player
        assert one.board[differ].max() == 1 + attacker  # the stone that moved is the escape
    wins = sum(ladder.value > 0 and ladder.player == 0 for ladder in found)
    assert wins == ladder_positions.PAIRS // 2


@pytest.mark.parametrize(("size", "number"), [(5, 0), (5, 13), (6, 6), (7, 3)])
def test_ladders_are_made_again_as_they_stand_in_the_file(size, number):
    again = ladder_positions.make_pair(size, number, seed=0)
    for new, old in zip(again, ladder_positions.read(size)[2 * number :], strict=False):
        np.testing.assert_array_equal(new.board, old.board)
        assert new[1:] == old[1:]


@pytest.mark.parametrize("size", SIZES)
def test_the_truth_of_ladders_is_that_of_the_solver(size):
    env = Hex(size)
    for ladder in ladder_positions.read(size)[:: 9 if size > 7 else 3]:
        solution = solve_hex(env, env.from_board(ladder.board, ladder.player))
        assert solution.value == ladder.value
        assert np.flatnonzero(solution.winning_moves).tolist() == ladder.keeping


def test_the_truth_of_ladders_is_that_of_trying_all_moves():
    @functools.cache
    def wins(cells, player):
        board = np.array(cells).reshape(5, 5)
        if winner(board) is not None:
            return False  # the other player has just joined its edges
        moves = np.flatnonzero(board == 0)
        after = ((*cells[:i], player + 1, *cells[i + 1 :]) for i in moves)
        return any(not wins(cells, 1 - player) for cells in after)

    late = [x for x in ladder_positions.read(5) if (x.board == 0).sum() <= 10]
    assert len(late) >= 6
    for ladder in late:
        assert wins(tuple(ladder.board.ravel().tolist()), ladder.player) == (ladder.value > 0)


def test_ladders_are_judged_by_sign_distance_order_and_policy():
    board = np.zeros((2, 2), int)
    won = ladder_positions.Ladder(board, 0, 2, 1, [0, 3])
    lost = ladder_positions.Ladder(board, 0, 2, -1, [])
    policies = np.array([[0.5, 0.25, 0, 0.25], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0, 0.5]])
    row = ladders.judge([won, lost, lost, won], np.array([0.5, 0.25, 0.75, -0.25]), policies)
    assert row["won"] == {"right": 1, "of": 2, "error": 0.875}
    assert row["lost"] == {"right": 0, "of": 2, "error": 1.5}
    assert (row["ordered"], row["pairs"], row["keeping"]) == (1, 2, 0.625)
    row |= {"network": "net", "player": "PGS", "simulations": 8}
    assert ladders.table([row])[1] == [
        ["net", "PGS", 8, "1 of 2", 0.875, "0 of 2", 1.5, "1 of 2", "62%"]
    ]


def test_there_are_no_ladders_of_other_sizes():
    with pytest.raises(SystemExit, match="got 8"):
        ladder_positions.read(8)


def test_a_pooling_branch_begins_as_nothing():
    network = jaxpgs.load_pretrained("conv-7x7")
    module, params = ladder_training.make(network, "pooling")
    ladders = ladder_positions.read(7)
    boards = jax.vmap(network.env.observe)(states_of(network.env, ladders))
    apply_fn = jax.jit(jaxpgs.networks.functional(module)[1])
    assert len(jax.tree.leaves(params)) > len(jax.tree.leaves(network.params))
    own, first = apply_fn(params, boards), jax.jit(network.apply_fn)(network.params, boards)
    for mine, theirs in zip(own, first, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    # One step of training, with the true values as targets, changes the values.
    truth = np.array([ladder.value for ladder in ladders], np.float32)
    legal = np.asarray(states_of(network.env, ladders).legal_action_mask)
    games = {"observation": boards, "legal": legal, "policy": legal / legal.sum(-1, keepdims=True),
             "value": truth}  # fmt: skip
    with jax.numpy_dtype_promotion("standard"):  # for optax's schedules
        learned = ladder_training.fit(module, params, games, games, steps=1, seed=0)
    assert not np.allclose(apply_fn(learned, boards)[1], own[1], atol=1e-4)


def test_games_begin_with_positions_that_are_made_once(tmp_path, monkeypatch):
    made = ladder_training.positions(tmp_path, 5, 1, 0)
    monkeypatch.setattr(ladder_positions, "make_pair", pytest.fail)
    for one, again in zip(made, ladder_training.positions(tmp_path, 5, 1, 0), strict=True):
        np.testing.assert_array_equal(one.board, again.board)
        assert one[1:] == again[1:]
    env = FromPositions(5, positions=states_of(Hex(5), made), weights=np.ones(len(made)))
    starts = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 20))
    found = {tuple(np.sign(labels).tolist()) for labels in np.asarray(starts.labels)}
    signs = np.array([0, 1, -1])
    assert found == {tuple(signs[ladder.board].ravel().tolist()) for ladder in made}
