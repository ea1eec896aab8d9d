"""The arithmetic of the puzzle benchmarks, and real runs of some of them."""

import functools

import numpy as np
import pytest

from benchmarks import runs
from benchmarks.studies.seify2020 import puzzle_searches, puzzles, samegame, value_targets
from jaxpgs.play import protocol
from jaxpgs.training.recipes.samegame_networks import RECIPES


def row(seconds, scores, **fields):
    return {"seconds": seconds, "scores": " ".join(map(str, scores))} | fields


def test_paired_differences_by_hand():
    mean, width = puzzles.paired(np.array([3.0, 5.0, 10.0]), np.array([1.0, 5.0, 6.0]))
    assert mean == 2.0
    assert width == pytest.approx(2.576 * 2 / 3**0.5)  # the standard deviation of 2, 0, 4 is 2


def test_scores_between_budgets():
    rows = [row(1.0, [10, 20]), row(4.0, [30, 20]), row(16.0, [50, 80])]
    np.testing.assert_allclose(puzzles.at_time(rows, 2.0), [20, 20])
    np.testing.assert_allclose(puzzles.at_time(rows[::-1], 8.0), [40, 50])
    np.testing.assert_allclose(puzzles.at_time(rows, 16.0), [50, 80])
    np.testing.assert_allclose(puzzles.at_time(rows, 1.0), [10, 20])
    assert puzzles.at_time(rows, 0.9) is None and puzzles.at_time(rows, 17.0) is None


def test_differences_take_the_most_that_both_have():
    rows = [
        row(1.0, [0, 0], size=7, search="MCTS", simulations=16),
        row(4.0, [10, 12], size=7, search="MCTS", simulations=64),
        row(2.0, [8, 8], size=7, search="PGS", simulations=16),
    ]
    (line,) = puzzles.differences(rows)
    # At 2 seconds MCTS is half way between its two rows: 5 and 6.
    assert line == ["7x7", "PGS − MCTS", 16, "+8 ± 0", "2", "+2 ± 1"]


def test_the_best_published_scores_are_of_each_position():
    published = samegame.published_scores()
    assert samegame.best_published([2]) == max(scores[1] for scores in published.values())
    every = samegame.best_published(range(1, 21))
    assert every >= max(map(sum, published.values())) == 83050


def test_a_training_that_was_stopped_keeps_its_scores(tmp_path, monkeypatch):
    def train(env, make_network, *, directory, callback, first, last):
        for iteration in range(first, last + 1):
            callback(None, {"iteration": iteration, "score": 10.0 * iteration})
        return directory

    monkeypatch.setattr(value_targets.puzzle_iteration, "train", train)
    told = []
    learn = functools.partial(value_targets.learn, RECIPES["samegame-7x7"], tmp_path, told.append)
    learn(first=1, last=2)
    _, log, seconds = learn(first=2, last=3)  # the second one was lost
    assert [row["score"] for row in log] == [10.0, 20.0, 30.0]
    assert told == [1, 2, 2, 3] and seconds >= 0


def test_a_search_needs_some_time(tmp_path, capsys):
    path = tmp_path / "samegame.json"
    with pytest.raises(SystemExit):
        samegame.main(["--seconds", "0", "--out", str(path)])
    assert "--seconds: must be a number above 0, got '0'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"samegame: SameGame needs an integer height .* got 500"):
        samegame.main(["--random", "1", "--size", "500", "--out", str(path)])
    with pytest.raises(SystemExit, match=r"samegame\.json cannot be read: No such file"):
        samegame.main(["--show", "3", "--out", str(path)])


@pytest.mark.slow  # it compiles for 15x15
def test_the_best_game_of_a_position_is_shown_from_its_start(monkeypatch):
    shown = []
    monkeypatch.setattr(samegame, "serve", lambda *x: shown.append(x))
    samegame.main(["--preset", "full", "--show", "3"])
    ((board, port),) = shown
    rows = runs.load(runs.RESULTS / "samegame_full.json")["rows"]
    best = max((row for row in rows if row["position"] == 3), key=lambda row: row["score"])
    told = protocol.message(board.visit)
    assert told["moves"] == [] and len(told["future"]) == len(best["actions"]) and port == 8137
    end = protocol.handle(board.visit, {"type": "go", "count": len(best["actions"])})
    assert protocol.message(end)["result"] == f"score {best['score']:g}, the end"
    with pytest.raises(SystemExit, match="no game of position 21"):
        samegame.main(["--preset", "full", "--show", "21"])


@pytest.mark.slow
def test_a_row_is_replayed_and_counts_every_board(tmp_path):
    saved, rest = [], []
    job = ("NRPA", 7, 16, 4, puzzle_searches.Knobs())
    found = puzzles.run(*job, at_once=2, on_part=saved.append)
    resumed = puzzles.run(*job, at_once=2, parts=saved[:1], on_part=rest.append)
    assert len(rest) == 1 and resumed["scores"] == found["scores"]
    assert resumed["cleared"] == found["cleared"] == sum(part["cleared"] for part in saved)
    path, words = tmp_path / "puzzles.json", "--sizes 7 --boards 4 --at-once 4 --most 16"
    puzzles.main([*words.split(), "--search", "NRPA", "--out", str(path)])
    (again,) = runs.load(path)["rows"]
    assert found["scores"] == again["scores"] and len(puzzles.scores_of(found)) == 4
    assert found["mean"] == pytest.approx(puzzles.scores_of(found).mean(), abs=0.06)
    with pytest.raises(ValueError, match="divide"):
        puzzles.run(*job, at_once=3)
