"""The benchmark of pgx's games: its play, with chance, and its table."""

import json

import jax
import numpy as np
import pytest

from benchmarks import floors, games, newcomer
from benchmarks.runs import RESULTS

pgx = pytest.importorskip("pgx")
SMALL = games.Preset(("2048",), batch=4, max_moves=3, simulations=4, seconds=0.0)


def test_a_search_plays_a_game_of_chance():
    env = pgx.make("2048")
    params, apply_fn = games.make_network(env, 10.0, jax.random.key(0))
    act = games.make_player("PGS", env, apply_fn, SMALL.simulations)
    scores, facts = games.play(env, act, SMALL, params, jax.random.key(1))
    assert scores.shape == (4,) and np.isfinite(scores).all()
    assert (facts["illegal"], facts["not_finite"], facts["unfinished"]) == (0, 0, 4)


def test_the_table_counts_and_compares():
    row = {
        "game": "a", "num_players": 1, "chance": True, "updates": 3, "interval": 1.0,
        "over_random": 0.0, "over_random_interval": 1.5, "illegal": 1, "not_finite": 0,
    }  # fmt: skip
    rows = [row | {"player": player, "score": 12.3} for player in games.PLAYERS]
    rows[1] |= {"over_random": 2.0}
    columns, (line,) = games.table(rows)
    assert line[:7] == ["a", 1, "yes", 3, "12 ± 1", "12 ± 1 *", "12 ± 1"]
    assert len(columns) == len(line) and line[-2:] == [8, 0]


def test_the_summary_takes_random_play_for_zero_where_one_plays_alone():
    scores, others = np.array([3.0, 5.0]), np.array([1.0, 1.0])
    env = pgx.make("2048")
    alone = games.summary(scores, others, env, {})
    assert (alone["score"], alone["over_random"]) == (4.0, 3.0)
    assert alone["over_random_interval"] == pytest.approx(1.96)


def test_the_declared_versions_are_those_that_were_tested():
    data = json.loads((RESULTS / "floors.json").read_text())
    assert data["setting"]["floors"] == floors.floors(), "run python -m benchmarks.floors --again"
    for row in data["rows"]:
        assert row["failed"] == 0 and row["passed"] > 0, row["failures"]
        for name, floor in floors.floors().items():
            assert f"{row['installed'][name]}.".startswith(f"{floor}."), name


def test_minutes_add_up():
    rows = [{"step": "one", "seconds": 30.0}, {"step": newcomer.FIRST, "seconds": 90.0}]
    assert newcomer.table(rows)[1] == [["one", 30.0, 0.5], [newcomer.FIRST, 90.0, 2.0]]
    assert "took 2.0 minutes" in newcomer.sentence(rows)
