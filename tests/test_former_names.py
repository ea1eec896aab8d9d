"""Former names go on working, and tell the new one."""

import importlib
import sys

import pytest

import jaxpgs
from jaxpgs import puzzles, training


@pytest.mark.parametrize(
    ("package", "former", "now"),
    [
        (jaxpgs, "Games", jaxpgs.PlayedGames),
        (puzzles, "Line", puzzles.Episode),
        (puzzles, "make_line_fns", puzzles.make_episode_fns),
        (puzzles, "start_lines", puzzles.start_episodes),
    ],
)
def test_names(package, former, now):
    with pytest.warns(DeprecationWarning, match=f"{former} is now .*{now.__name__}"):
        assert getattr(package, former) is now
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = package.no_such_name


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("puzzles.lines", "puzzles.episodes"),
        ("puzzles.nested", "puzzles.nrpa_samegame"),
        ("training.zoo", "training.recipes"),
        ("training.zoo_samegame", "training.recipes_samegame"),
        ("training.generations", "training.puzzle_iteration"),
    ],
)
def test_modules(former, now):
    sys.modules.pop(f"jaxpgs.{former}", None)
    with pytest.warns(DeprecationWarning, match=f"jaxpgs.{former} is now jaxpgs.{now}"):
        module = importlib.import_module(f"jaxpgs.{former}")
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_former_arguments(monkeypatch):
    monkeypatch.setattr(training.puzzle_iteration, "train", lambda *args, **kwargs: (args, kwargs))
    with pytest.warns(DeprecationWarning):
        generations = importlib.reload(importlib.import_module("jaxpgs.training.generations"))
    found = generations.train("env", player=1, first_player=2, num_generations=3, seed=4)
    wanted = {"solver": 1, "first_solver": 2, "num_iterations": 3, "seed": 4}
    assert found == (("env",), wanted)
