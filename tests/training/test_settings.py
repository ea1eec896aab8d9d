"""Settings that trainers take: their fields by name, and what a run's folder keeps of them."""

import dataclasses
import inspect

import pytest

from jaxpgs.training import (
    distillation,
    expert_iteration,
    labelling,
    model_fitting,
    ppo,
    puzzle_iteration,
    value_equivalent,
)
from jaxpgs.training.runtime.settings import Run, by_name, flat
from jaxpgs.training.two_player import selfplay

TRAINERS = [
    expert_iteration.train, ppo.train, puzzle_iteration.train, value_equivalent.train,
    model_fitting.fit, distillation.distill, labelling.label_games,
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Games:
    num_games: int = 4
    num_steps: int = 2


def train(env, *, games: Games = Games(), run: Run = Run()):
    return flat(locals(), "games", "run")


def test_fields_stand_for_settings_and_settings_for_fields():
    expected = train(None, games=Games(num_steps=3), run=Run(seed=1))
    assert by_name(train)(None, num_steps=3, seed=1) == expected
    assert by_name(train)(None, games=Games(7), num_steps=3)["num_games"] == 7
    assert set(expected) == {"env", "num_games", "num_steps"} | {
        field.name for field in dataclasses.fields(Run)
    }
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_boards'"):
        by_name(train)(None, num_boards=3)


@pytest.mark.parametrize("train", TRAINERS, ids=lambda train: train.__module__.split(".")[-1])
def test_trainers_take_few_arguments_and_no_name_twice(train):
    parameters = inspect.signature(train).parameters
    assert len(parameters) <= 12 and isinstance(parameters["run"].default, Run)
    groups = [x.default for x in parameters.values() if dataclasses.is_dataclass(x.default)]
    names = [*parameters, *(field.name for group in groups for field in dataclasses.fields(group))]
    assert len(names) == len(set(names))


def test_settings_do_not_change_and_runs_are_checked_at_once():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Run().seed = 1
    for field in ("checkpoint_every", "keep"):
        with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
            Run(**{field: 0})


@pytest.mark.parametrize(
    ("call", "way"),
    [
        (lambda: expert_iteration.train(None, None, num_games=8), r"games=Games\(num_games="),
        (lambda: ppo.train(None, None, seed=1), r"run=Run\(seed="),
        (lambda: ppo.train(None, None, delta=1.0), r"opponents=Opponents\(delta="),
        (lambda: labelling.label_games(None, None, None, epsilon=0.5), r"games=Games\(epsilon="),
        (lambda: selfplay.play(keep_root=True), r"kept=Kept\(keep_root="),
        (lambda: selfplay.play(fast=None), r"moves=Moves\(fast="),
    ],
)
def test_a_field_is_no_argument_but_the_error_says_where_it_belongs(call, way):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument .*: {way}\.\.\.\)"):
        call()
