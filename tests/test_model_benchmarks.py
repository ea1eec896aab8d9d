"""The benchmarks of learned models: how they count and what their tables say."""

import jax.numpy as jnp
import numpy as np

from benchmarks import model_learning, models, tables, tactics
from jaxpgs.envs import Hex
from jaxpgs.training import experts


def test_moves_that_keep_the_win_are_counted():
    env = Hex(2)
    states, right = tactics.find_positions(env, tactics.Preset(6, (0, 3), ()), 0)
    chosen = jnp.asarray([0, 1, 2, 3, 0, 1], jnp.int32)

    def root_fn(params, rng_key, states):
        return None

    def player(params, rng_key, root, recurrent_fn, invalid):
        return experts.Decision(chosen, chosen, invalid, chosen)

    count = model_learning._counter(player, (root_fn, None), (states, right))({})
    assert int(count) == right[np.arange(6), np.asarray(chosen)].sum()


def test_every_position_of_a_small_board():
    states, right = model_learning.every_position(Hex(2))
    # On the empty board the two cells of the short diagonal win.
    boards = np.sign(states.labels).tolist()
    assert boards[0] == [0, 0, 0, 0] and right[0].tolist() == [False, True, True, False]
    assert len(boards) == len(right) == len({tuple(board) for board in boards})
    for board, good in zip(boards, right, strict=True):
        free = [cell == 0 for cell in board]
        assert 0 < good.sum() < sum(free) and not good[np.logical_not(free)].any()


def test_the_table_of_a_model_that_learns():
    row = {"expert": "gumbel", "positions": 256, "raw": 64, "search": 128, "seconds": 90}
    last = {"iteration": 20, "raw_won": 15, "search_won": 16, "winnable": 16}
    columns, lines = model_learning.table([row | last, row | {"iteration": 0}])
    assert lines[0] == ["mctx Gumbel MuZero", 0, 256, 25.0, 50.0, None, None, 1.5]
    assert lines[1][1:] == [20, 256, 25.0, 50.0, "15 of 16", "16 of 16", 1.5]
    assert len(columns) == len(lines[0])


def test_the_table_of_shipped_models():
    match = {"opponent": "random", "won": 99.0, "games": 100, "elo": 500.0, "half_width": 90.0}
    row = {"model": "ve-hex-5x5", "player": "VE-PGS", "kept": 3, "positions": 4}
    columns, lines = models.table([row | {"matches": [match]}])
    assert columns[-1] == "won against random" and lines[0][2] == 75.0
    assert lines[0][-1].startswith("99 of 100")
    columns, lines = models.losses([row])
    assert columns[-1] == "step 5" and len(lines) == 2 and len(lines[0]) == len(columns)
    assert tables.markdown_table(columns, lines)
