"""Reading what a trainer keeps in its folder; the loop and the checkpoints are every trainer's."""

import importlib
import json
import shutil
import threading
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpgs.training import Run, RunRecord, read_run
from jaxpgs.training.runtime import former_names, iterations, loggers
from jaxpgs.training.runtime.former_names import renamed
from jaxpgs.training.two_player.expert_iteration import Best

GIVEN = {"env": None, "network": None, "seed": 0, "optimizer": optax.adam(1e-3)}


class State(NamedTuple):
    params: Any
    replay: Any
    best: Any
    iteration: Any
    rng_key: Any


def params_at(iteration):
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3) + iteration
    return {
        "policy_head": {"linear": {"kernel": kernel, "bias": kernel[0].astype(jnp.bfloat16)}},
        "dropout": {"key": jax.random.key(iteration), "count": np.uint32(iteration)},
        "layers": {"10": {"x": kernel[:1]}, "2": {"x": kernel[1:]}},
    }


def iterate(state):
    count = int(state.iteration) + 1
    best = state.best
    if isinstance(best, Best) and count == 2:
        best = Best(params_at(2), np.int32(2), np.float32(10))
    state = state._replace(params=params_at(count), best=best, iteration=np.int32(count))
    loss = {"policy_loss": 1 / count, "elo": float("nan") if count == 3 else 1.5}
    return state, {"iteration": count} | loss


def train(folder, num_iterations=5, best=None, every=2, **knobs):
    best = Best(params_at(0), np.int32(0), np.float32(0)) if best is None else best
    start = State(params_at(0), np.zeros((50, 4)), best, np.int32(0), jax.random.key(1))
    return iterations.run(
        start, iterate, num_iterations, trainer="test", arguments=GIVEN | {"evaluate_every": every},
        settings=Run(directory=folder, checkpoint_every=2, **knobs),
    )  # fmt: skip


def assert_params(found, iteration):
    wanted = params_at(iteration)
    assert isinstance(found["policy_head"]["linear"]["kernel"], np.ndarray)
    assert found["dropout"]["key"] == wanted["dropout"]["key"]
    chex.assert_trees_all_equal_dtypes(found, wanted)
    chex.assert_trees_all_equal(found | {"dropout": 0}, wanted | {"dropout": 0})


@pytest.mark.slow
def test_last_best_and_curve(tmp_path):
    train(tmp_path, callback=lambda state, metrics: metrics["iteration"] == 3)
    for iteration in (3, 5):
        run = read_run(tmp_path)
        assert isinstance(run, RunRecord)
        assert (run.trainer, run.iteration, run.best_iteration) == ("test", iteration, 2)
        assert_params(run.last, iteration)
        assert_params(run.best, 2)
        assert [row["iteration"] for row in run.curve] == list(range(1, iteration + 1))
        assert [row["policy_loss"] for row in run.curve] == [1 / n for n in range(1, iteration + 1)]
        assert run.curve[2]["elo"] is None and run.curve[1]["elo"] == 1.5
        assert run.settings["arguments"]["evaluate_every"] == 2
        train(tmp_path)  # goes on as ever
    # The folder above, as that of a command; a log of the user's own in place of the curve.
    command = tmp_path / "command"
    shutil.copytree(tmp_path, command / "checkpoints")
    log = loggers.log_to(command / "log.csv")
    log(None, {"iteration": 1, "x": 4.0})
    run = read_run(str(command), log=command / "log.csv")
    assert (run.iteration, run.curve) == (5, [{"iteration": 1.0, "x": 4.0}])


@pytest.mark.parametrize(("every", "iterations"), [(0, 2), (4, 3)])
def test_what_nothing_was_measured_against_is_not_the_best(tmp_path, every, iterations):
    train(tmp_path, iterations, every=every)
    run = read_run(tmp_path)
    assert run.best is run.best_iteration is None
    assert_params(run.last, iterations)


def test_a_trainer_whose_best_are_parameters_alone_or_that_has_none(tmp_path):
    train(tmp_path / "fit", best=params_at(4), num_iterations=1)
    run = read_run(tmp_path / "fit")
    assert_params(run.best, 4)
    assert run.best_iteration is None
    train(tmp_path / "none", best=(), num_iterations=1)
    assert read_run(tmp_path / "none").best is None


@pytest.mark.slow
def test_while_the_run_goes_on(tmp_path):
    seen, failed, done = [], [], threading.Event()

    def callback(state, metrics):
        if metrics["iteration"] == 1:
            run = read_run(tmp_path)  # before the first checkpoint
            assert (run.iteration, run.last, run.best, len(run.curve)) == (0, None, None, 1)
        elif metrics["iteration"] == 3:
            run = read_run(tmp_path)
            assert (run.iteration, len(run.curve)) == (2, 3)
            assert_params(run.last, 2)

    def read():
        while not done.is_set():
            try:
                run = read_run(tmp_path)
                if run.last is not None:
                    assert_params(run.last, run.iteration)
                    seen.append(run.iteration)
            except Exception as error:
                failed.append(error)
                return

    train(tmp_path, 4, callback=callback)
    reader = threading.Thread(target=read)
    reader.start()
    train(tmp_path, 20, keep=1)  # old checkpoints go while they are read
    done.set()
    reader.join()
    assert not failed and seen == sorted(seen) and len(set(seen)) > 2


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: it has no run\.json\. Name the folder"):
        read_run(tmp_path / "absent")
    run = tmp_path / "run"
    train(run, 2)
    names = (run / "leaves.json").read_text()
    (run / "leaves.json").unlink()
    (run / "curve.jsonl").unlink()
    with pytest.raises(ValueError, match=r"has no leaves\.json, .* Call the trainer once more"):
        read_run(run)
    train(run, 2)  # which does nothing but that
    assert_params(read_run(run).last, 2)
    assert read_run(run).curve == []

    # Names of another state, and bits that have changed.
    told = json.loads(names)
    (run / "leaves.json").write_text(json.dumps(told | {"leaves": told["leaves"][::-1]}))
    with pytest.raises(ValueError, match="2 is damaged"):
        read_run(run)
    (run / "leaves.json").write_text(names)
    for file in (run / "2").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(ValueError, match="2 is damaged"):
        read_run(run)
    (run / "run.json").write_text("[]")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_run(run)


def test_present_names_of_modules_stay():
    former = {"expert": "jaxpgs.adapters.f", "optimizer": "jaxpgs.search.replay.g"}
    present = renamed(former)
    assert present == {
        "expert": "jaxpgs.adapters.environments.f",
        "optimizer": "jaxpgs.search.learning.ring_buffer.g",
    }
    assert renamed(present) == present
    for name in (*former_names.MODULES, *former_names.FUNCTIONS):
        found = renamed({"it": f"jaxpgs.{name}.f"})
        assert found != {"it": f"jaxpgs.{name}.f"} and renamed(found) == found
        module = found["it"].removesuffix(".f").rpartition(".")
        if name in former_names.MODULES:
            importlib.import_module(found["it"].removesuffix(".f"))
        else:
            assert hasattr(importlib.import_module(module[0]), module[2])
