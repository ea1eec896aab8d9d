"""The arithmetic of the puzzle benchmarks, and one row of them for real."""

import functools

import numpy as np
import pytest

from benchmarks import policy_targets, runs, value_errors
from benchmarks.studies.seify2020 import puzzle_searches, puzzles, value_targets
from jaxpgs.training.recipes_samegame import RECIPES


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


def test_policies_are_compared_with_the_same_search_without_one():
    def of(teacher, rollout, scores, **fields):
        about = {"training_seed": 0, "training": [], "simulations": 1, "mean": np.mean(scores)}
        return row(None, scores, teacher=teacher, rollout=rollout, **about | fields)

    rows = [
        of(policy_targets.NRPA, "random", [5, 9], training=[1.0, 2.6]),
        of(policy_targets.NRPA, "random", [9, 11], training_seed=1),
        of(policy_targets.ITSELF, "random", [1, 3]),
        of(policy_targets.PLAIN, "random", [1, 5]),
        of(policy_targets.PLAIN, "informed", [3, 7]),
        of(policy_targets.ITSELF, "informed", [2, 6], training_seed=1),
    ]
    _, lines = policy_targets.table(rows)
    plain, itself, nrpa = policy_targets.PLAIN, policy_targets.ITSELF, policy_targets.NRPA
    # Plain MCTS has random rollouts only, and is there with each number of simulations.
    assert [line[:3] for line in lines] == [
        [plain, None, "random"],
        [itself, 0, "random"],
        [nrpa, 0, "random"],
        [nrpa, 1, "random"],
        [nrpa, "mean", "random"],
        [plain, None, "random"],
        [itself, 1, "informed"],
    ]
    changes = [line[5:7] for line in lines]
    # Differences of 0 and -2 deviate by the root of 2, which is divided by that of 2 boards.
    assert changes[1] == ["-1 ± 3", None] and changes[2] == ["+4 ± 0", None]
    # The mean of both trainings is 7 and 10: 6 and 5 over plain MCTS, 6 and 7 over the other.
    assert changes[4] == ["+6 ± 1", "+6 ± 1"]
    assert changes[5] == [None, None] and changes[6] == ["-1 ± 0", None]
    assert lines[2][-1] == "1, 3"


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


def test_errors_of_values_by_hand():
    # Two positions of two and three moves; the third position's moves are all worth the same.
    position = np.array([0, 0, 1, 1, 1, 2, 2])
    truth = np.array([0.0, 10.0, 0.0, 10.0, 20.0, 5.0, 5.0])
    moves = value_errors.Moves(position, np.zeros(7, int), np.zeros(7), None, truth)
    found = value_errors.compare(moves, np.array([7.0, 17.0, 20.0, 10.0, 0.0, 0.0, 9.0]))
    assert found["positions"] == 2 and found["bias"] == 3.5  # the means of 7 and 0
    assert found["rank_correlation"][0] == 0.0 and found["by_phase"] == [0.0, None, None]
    assert found["regret"][0] == 10.0 and found["regret_of_any"] == 7.5  # of 0 and 20, 5 and 10
    # The truth's variances are 25 and 200 / 3; errors are 7, 7 in one and 20, 0, -20 in the other.
    assert found["gap"] == pytest.approx(((25 + 200 / 3) / 2) ** 0.5, abs=0.06)
    assert found["sibling_error"] == pytest.approx((800 / 3 / 2) ** 0.5, abs=0.06)


def test_everything_is_searched():
    # Taking the pair of zeros first joins the ones: 0 + 0 + 1000, and 0 - 1 for two ones apart.
    board = np.array([[1, -1], [0, -1], [0, -1], [1, -1]])
    assert value_errors.exhaustive(board, {}) == 1000.0
    assert value_errors.exhaustive(np.array([[0, 0, 1]]), {}) == -1.0
