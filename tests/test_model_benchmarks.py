"""The benchmarks of learning: how they count and what their tables say."""

import jax.numpy as jnp
import numpy as np

from benchmarks import model_learning, models, ppo_learning, tables, tactics
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


def test_the_tables_of_ppo(tmp_path):
    won = {"mcts": 0.25, "mcts_half_width": 0.1, "random": 1.0, "random_half_width": 0.0}
    row = {"selfplay": "naive", "run": 0, "iteration": 0, "seconds": 60} | won
    told = {"entropy": 1.5, "clipped": 0.125, "value_loss": 0.1, "score": 0.5}
    last = row | told | {"iteration": 20, "elo": [[0, 0.0, 0.0], [20, 150.0, 60.0]]}
    other = last | {"selfplay": "uniform", "elo": [[0, 0.0, 0.0], [10, 90.4, 50.0]]}
    columns, lines = ppo_learning.table([last, row, other])
    assert lines[0][:3] == ["delta-uniform", 0, 20] and lines[0][-2] == "+90 ± 50"
    assert lines[1] == ["naive", 0, 0, "25 ± 10", "100 ± 0", None, None, None, 1.0]
    assert lines[2][3:] == ["25 ± 10", "100 ± 0", 1.5, 12.5, "+150 ± 60", 1.0]
    assert all(len(line) == len(columns) for line in lines)
    columns, lines = ppo_learning.elo_table([last, row, other])
    assert columns[2:] == ["after 0", "after 10", "after 20"]
    assert lines[1] == ["naive", 0, "+0 ± 0", None, "+150 ± 60"]
    text = tables.ppo_runs({"rows": [last, row, other]}, tmp_path)
    assert "| delta-uniform | 0 | +0 ± 0 | +90 ± 50 | – |" in text
    assert "Elo of the versions" not in tables.ppo_runs({"rows": [row]}, tmp_path)
    ppo_learning.draw(tmp_path / "ppo.json", [last, row, other], 5)
    assert {path.name for path in tmp_path.iterdir()} == {"ppo.png", "ppo_elo.png"}


def test_the_table_of_shipped_models():
    match = {"opponent": "random", "won": 99.0, "games": 100, "elo": 500.0, "half_width": 90.0}
    row = {"model": "ve-hex-5x5", "player": "VE-PGS", "kept": 3, "positions": 4}
    columns, lines = models.table([row | {"matches": [match]}])
    assert columns[-1] == "won against random" and lines[0][2] == 75.0
    assert lines[0][-1].startswith("99 of 100")
    columns, lines = models.losses([row])
    assert columns[-1] == "step 5" and len(lines) == 2 and len(lines[0]) == len(columns)
    assert tables.markdown_table(columns, lines)
