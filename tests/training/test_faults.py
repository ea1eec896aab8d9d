"""What befalls runs: signals, damaged files, other arguments; `quality.faults` tries more.

The loop and the checkpoints are those of every trainer, on a state without a network.
"""

import dataclasses
import functools
import inspect
import json
import logging
import os
import signal
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxpgs
from jaxpgs.training.models import labelling, model_fitting
from jaxpgs.training.policy_gradient import ppo
from jaxpgs.training.puzzles import puzzle_iteration
from jaxpgs.training.recipes.distillation import distill
from jaxpgs.training.recipes.hex_networks import Clock
from jaxpgs.training.runtime import iterations, loggers
from jaxpgs.training.runtime.arguments import fingerprint, first_difference
from jaxpgs.training.runtime.checkpoint import describe, lock_run, opened
from jaxpgs.training.runtime.settings import Run
from jaxpgs.training.two_player import expert_iteration, experts, objectives


class State(NamedTuple):
    weights: np.ndarray
    flags: np.ndarray
    small: np.ndarray
    iteration: np.ndarray
    rng_key: jax.Array


def start():
    weights = np.random.default_rng(0).normal(size=(64, 33)).astype(np.float32)
    return State(
        weights, weights[0] > 0, weights[:3].astype(jnp.bfloat16), np.int32(0), jax.random.key(1)
    )


def iterate(state):
    count = int(state.iteration) + 1
    state = state._replace(weights=state.weights * np.float32(0.9), iteration=np.int32(count))
    return state, {"iteration": count, "policy_loss": 1 / count}


GIVEN = {"env": None, "network": None, "seed": 0, "optimizer": optax.adam(1e-3), "batch_size": 8}


def train(folder, num_iterations=4, iterate=iterate, callback=None, **changed):
    return iterations.run(
        start(), iterate, num_iterations, trainer="test", arguments=GIVEN | changed,
        settings=Run(directory=folder, keep=3, callback=callback), checkpoint_every=1,
    )  # fmt: skip


def assert_equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_the_iteration_and_saves_it(tmp_path, capsys, number):
    before = signal.getsignal(number)

    def callback(state, metrics):
        if metrics["iteration"] == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(SystemExit) as caught:
        train(tmp_path, callback=callback)
    assert caught.value.code == 128 + number
    line = rf"Stopped by {number.name} and saved; start it again to go on from {tmp_path}."
    assert capsys.readouterr().err.splitlines()[-1] == line
    assert signal.getsignal(number) is before
    seen = []
    state = train(tmp_path, callback=lambda _, metrics: seen.append(metrics["iteration"]))
    assert seen == [3, 4]
    assert_equal(state, train(None))


def test_a_loss_that_is_no_number_ends_a_run_and_is_not_saved(tmp_path):
    def broken(state):
        state, metrics = iterate(state)
        return state, metrics | {"policy_loss": np.nan if metrics["iteration"] == 3 else 0.0}

    with pytest.raises(FloatingPointError, match="policy_loss is nan in iteration 3"):
        train(tmp_path, iterate=broken)
    assert sorted(x.name for x in tmp_path.iterdir() if x.is_dir()) == ["1", "2"]
    assert_equal(train(tmp_path), train(None))


@pytest.mark.slow
def test_no_flipped_bit_of_a_checkpoint_is_restored(tmp_path):
    rng = np.random.default_rng(0)
    whole = train(tmp_path)
    files = sorted(path for path in (tmp_path / "4").rglob("*") if path.is_file())
    refused = 0
    with opened(tmp_path, describe("test", GIVEN), keep=3) as checkpoints:
        for trial in range(30):
            # Most of the bytes are data, so half of the flips are of any file.
            sizes = [path.stat().st_size if trial % 2 else 1 for path in files]
            path = files[rng.choice(len(files), p=np.divide(sizes, sum(sizes)))]
            data = path.read_bytes()
            place, bit = int(rng.integers(len(data))), int(rng.integers(8))
            path.write_bytes(data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :])
            try:
                assert_equal(checkpoints.restore(start()), whole)
            except ValueError as error:
                refused += 1
                assert "go on from step 3." in str(error) or "of another run" in str(error)
            path.write_bytes(data)
        assert_equal(checkpoints.restore(start()), whole)
    # Orbax draws the names of its files, so each run flips other bits. Some 16 of 30 matter; were
    # it 15, fewer than 4 would be three runs in a million.
    assert refused >= 4, "many of the flips do change what is read"


def test_a_damaged_checkpoint_is_told_in_brief(tmp_path, caplog):
    train(tmp_path)
    manifest = tmp_path / "4" / "default" / "manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes()[:50])
    message = r"4 is damaged: DATA_LOSS: [^\n]* \.\.\.\nMove that folder away"
    with pytest.raises(ValueError, match=message) as told:
        train(tmp_path)
    assert len(str(told.value).replace(str(tmp_path), "")) < 450
    # What asyncio says of the other reads that failed, when they are forgotten, is not shown.
    for message in (f"Task exception was never retrieved: {told.value.__cause__}", "another one"):
        logging.getLogger("asyncio").error(message)
    said = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert said == ["another one"]


def test_a_checkpoint_of_an_earlier_version_is_read_with_a_warning(tmp_path, monkeypatch):
    from jaxpgs.training.runtime import checkpoint

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_CHECKSUM", "0")  # in place of which the first leaf is saved
        patch.setattr(checkpoint, "_checksum", lambda leaves: leaves["0"])
        whole = train(tmp_path)
    with pytest.warns(UserWarning, match=r"4 has no checksum, as those of earlier versions"):
        assert_equal(train(tmp_path), whole)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_come_back_as_the_kind_that_they_were(tmp_path, impl):
    state = start()._replace(rng_key=jax.random.key(1, impl=impl))
    with opened(tmp_path, describe("test", GIVEN)) as checkpoints:
        checkpoints.save(1, state)
        found = checkpoints.restore(state)
    assert found.rng_key.dtype == state.rng_key.dtype
    assert_equal(found, state)


def test_a_changed_argument_is_refused_by_name(tmp_path):
    train(tmp_path)
    for message, changed in (
        ("batch_size 8, not 16", {"batch_size": 16}),
        (r"optimizer\.update\.update_fns\.1\..*step_size.* -0.001, not -0.002",
         {"optimizer": optax.adam(2e-3)}),
        (r"optimizer\..*b1 0.9, not 0.8", {"optimizer": optax.adam(1e-3, b1=0.8)}),
        ("expert None, not 'pgs'", {"expert": "pgs"}),
        ("seed 0, not 1", {"seed": 1}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"holds a run with {message}"):
            train(tmp_path, **changed)
    train(tmp_path, keep=9, checkpoint_every=7, callback=print, optimizer=optax.adam(1e-3))


class Rules:
    def __init__(self, flip, inner=None):
        self.flip, self.inner = flip, inner

    @functools.cached_property
    def num_actions(self):
        return 9


@dataclasses.dataclass
class Wrapped:
    inner: Rules


@pytest.mark.parametrize(
    "make",
    [
        Rules,
        lambda flip: Rules(True, inner=Wrapped(Rules(flip))),
        lambda flip: Wrapped(Rules(flip)),
    ],
    ids=["plain", "holds another", "dataclass"],
)
def test_a_game_is_told_by_what_stands_in_it(tmp_path, make):
    def go_on(env):
        with lock_run(tmp_path, describe("test", GIVEN | {"env": env})):
            pass

    first, again = make(False), make(False)
    go_on(first)
    assert getattr(again, "num_actions", 9) == 9  # stands in the object from now on
    go_on(again)
    with pytest.raises(ValueError, match=r"holds a run with rules\..*flip False, not True"):
        go_on(make(True))
    # An earlier version did not keep it.
    path = tmp_path / "run.json"
    run = json.loads(path.read_text())
    del run["arguments"]["rules"]
    path.write_text(json.dumps(run))
    go_on(make(True))


def test_an_earlier_runs_record_is_completed(tmp_path):
    """It kept few of the arguments, and of functions nothing."""
    early = {"env": "NoneType", "network": "NoneType", "seed": 0, "expert": "a function"}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(early))
    with pytest.raises(ValueError, match="holds a run with seed 0, not 1"):
        train(tmp_path, seed=1)
    with pytest.warns(
        UserWarning, match=r"did not keep all arguments.*Only these were compared: env, network"
    ):
        train(tmp_path)
    with pytest.raises(ValueError, match="holds a run with batch_size 8, not 16"):
        train(tmp_path, batch_size=16)
    for text in ("", "[1]", '{"seed": ', "\0"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"run\.json is damaged: .*another directory"):
            train(tmp_path)


def test_a_run_of_an_earlier_version_goes_on_under_new_names(tmp_path):
    run = describe("test", GIVEN | {"expert": experts.make_expert("pgs", 8)})
    run["arguments"]["raw"] = fingerprint(experts.raw_policy())
    text = json.dumps({name: x for name, x in run.items() if name != "formerly"})
    for new, old in (("two_player.experts.raw_policy", "experts.raw_policy"), ("two_player.", "")):
        assert new in text
        text = text.replace(f"jaxpgs.training.{new}", f"jaxpgs.training.{old}")
    (tmp_path / "run.json").write_text(text)
    with lock_run(tmp_path, run):
        pass
    (tmp_path / "run.json").write_text(text.replace("training.experts", "training.others"))
    with (
        pytest.raises(ValueError, match=r"holds a run with .*training\.others"),
        lock_run(tmp_path, run),
    ):
        pass


def test_one_trainer_a_directory(tmp_path):
    with lock_run(tmp_path, describe("test", GIVEN)):
        with pytest.raises(RuntimeError, match=f"Another process trains in {tmp_path}. Wait"):
            train(tmp_path)
        lock = (
            "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        )
        other = [sys.executable, "-c", lock, str(tmp_path / "lock")]
        assert b"BlockingIOError" in subprocess.run(other, stderr=subprocess.PIPE).stderr
    train(tmp_path)


def test_functions_are_told_by_name_and_by_what_they_hold():
    def same(one, two):
        return first_difference(fingerprint(one), fingerprint(two)) is None

    def expert(count):
        return lambda *data: experts.raw_policy()(*data, count)

    for one, two, other in (
        (objectives.tspg(), objectives.tspg(), objectives.tspg("loss")),
        (experts.make_expert("pgs"), experts.make_expert("pgs", 64), experts.make_expert("pgs", 8)),
        (experts.gumbel(16), experts.gumbel(16), experts.make_expert("mcs", 16)),
        (optax.sgd(0.1), optax.sgd(0.1), optax.sgd(0.1, momentum=0.9)),
        (ppo.paper_optimizer(), ppo.paper_optimizer(6e-4), expert_iteration.paper_optimizer()),
        (jaxpgs.selection.puct(1.0), jaxpgs.selection.puct(1.0), jaxpgs.selection.ucb1(1.0)),
        (expert(1), expert(1), expert(2)),
        (lambda x: x + 1, lambda x: x + 1, lambda x: x + 2),
        (functools.partial(max, default=1), functools.partial(max, default=1), max),
        (np.arange(99), np.arange(99), np.arange(1, 100)),
        (jax.random.key(0), jax.random.key(0), jax.random.key(1)),
        (jaxpgs.envs.SameGame(), jaxpgs.envs.SameGame(), jaxpgs.envs.SameGame(penalty="none")),
    ):
        assert same(one, two) and not same(one, other), one
    assert not same({1, 2}, {1, 3}) and same({"a", "b", "c"}, {"c", "b", "a"})
    assert not same(b"one", b"two")
    assert not same(jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST)
    assert fingerprint(objectives.cross_entropy())["loss"].endswith("cross_entropy.<locals>.loss")
    assert fingerprint(experts.make_expert("pgs", 8))["policy_fn"].endswith(
        "presets.pgs.pgs_policy"
    )
    json.dumps(fingerprint([jnp, jnp.float32, np.dtype("int8"), None, object(), {1: 2.5}, expert]))


def test_what_a_decorator_holds_tells_functions_apart():
    def tempered(scale):
        def wrap(expert):
            @functools.wraps(expert)
            def inner(*data):
                decision = expert(*data)
                return decision._replace(value=scale * decision.value)

            return inner

        return wrap

    bare = experts.make_expert("mcs", 4)
    found = [fingerprint(tempered(scale)(bare)) for scale in (0.5, 2.0)]
    path, old, new = first_difference(*found)
    assert (path, old, new) == ("decorators.0.scale", 0.5, 2.0)
    assert first_difference(found[0], fingerprint(tempered(0.5)(bare))) is None
    # What is wrapped is described once, as it is without the decorator.
    assert {k: x for k, x in found[0].items() if k != "decorators"} == fingerprint(bare)
    # Both of two decorators count, and a library's with other settings around a user's function.
    twice = fingerprint(tempered(3.0)(tempered(2.0)(bare)))
    assert [held["scale"] for held in twice["decorators"]] == [3.0, 2.0]
    rows, columns = (fingerprint(jax.vmap(lambda x: x, in_axes=axis)) for axis in (0, 1))
    assert first_difference(rows, columns)

    # An object may be a decorator, too.
    class Tempered:
        def __init__(self, scale):
            functools.update_wrapper(self, bare)
            self.scale = scale

        def __call__(self, *data):
            return tempered(self.scale)(bare)(*data)

    path, old, new = first_difference(*(fingerprint(Tempered(scale)) for scale in (0.5, 2.0)))
    assert (path, old, new) == ("decorators.0.scale", 0.5, 2.0)
    # Decorators without settings change nothing, nor do the library's own around its functions.
    assert fingerprint(jax.jit(bare)) == fingerprint(bare)
    assert "decorators" not in fingerprint(expert_iteration.train)


TRAINERS = [
    expert_iteration.train, ppo.train, puzzle_iteration.train, model_fitting.fit,
    labelling.label_games, distill,
]  # fmt: skip


@pytest.mark.parametrize("train", TRAINERS, ids=lambda train: train.__module__.split(".")[-1])
def test_every_trainer_keeps_all_of_its_arguments(train, monkeypatch, tmp_path):
    """The first thing that each does is to take them down."""
    source = inspect.getsource(train)
    body = source.split('"""')[2].strip()
    parameters = inspect.signature(train).parameters.values()
    groups = "".join(f', "{p.name}"' for p in parameters if dataclasses.is_dataclass(p.default))
    first = f"flat(locals(){groups})" if groups else "dict(locals())"
    assert body.startswith(f"arguments = {first}\n")
    assert "arguments=arguments" in body or "describe(" in body


def test_damaged_logs_and_clocks_stop_nothing(tmp_path):
    rows = [{"iteration": i, "policy_loss": 0.5} for i in (1, 2)]
    good = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for name, damage in (
        ("a.jsonl", b""), ("b.jsonl", good + b'{"iter'), ("c.jsonl", b"\0\0\xff\n" + good),
        ("d.jsonl", good + b'3\n[]\n{}\n{"iteration": null}\n'),
        ("e.csv", b""), ("f.csv", b"iteration,policy_loss\n1.0,0.5\n2.0,0.5\n3.0,0."),
        ("g.csv", b"\xff\0\n1.0,2,3\n"), ("h.csv", b"iteration,policy_loss\nx,y,z\n1.0,0.5,7\n"),
    ):  # fmt: skip
        path = tmp_path / name
        path.write_bytes(damage)
        found = loggers.read_log(path)
        assert all(row["iteration"] in (1, 2, 3) for row in found), name
        loggers.log_to(path)(None, rows[1])
        assert loggers.read_log(path)[-1] == rows[1], name
    for text in (b"", b"12.", b"1e", b"\xff\0", b"nan", b"-3", b"[]"):
        path = tmp_path / "seconds.txt"
        path.write_bytes(text)
        assert 0 <= Clock(path).note() < 100
        assert 0 <= float(path.read_text()) < 100
