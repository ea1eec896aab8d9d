"""What shows and keeps a run: callbacks, loggers, pictures, bars, warnings; and what goes on."""

import dataclasses
import io
import json
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from quality import small_games

import jaxpgs
from jaxpgs.envs import Hex
from jaxpgs.networks import FullyConnectedResNet
from jaxpgs.training.runtime import iterations, loggers
from jaxpgs.training.runtime.arguments import fingerprint
from jaxpgs.training.runtime.settings import Run, by_name
from jaxpgs.training.two_player import (
    expert_iteration,
    experts,
    game_warnings,
    replay,
    selfplay,
)

train = by_name(expert_iteration.train)
ENV = Hex(3)
ROWS = [
    {"iteration": 1, "policy_loss": 2.0, "value_loss": 1.0, "resigned": 0.5, "mean_length": 6.0},
    {"iteration": 2, "policy_loss": 1.0, "value_loss": 0.5, "resigned": 0.25, "elo": 40.0},
    {"iteration": 3, "policy_loss": 0.5, "value_loss": None, "resigned": 0.0, "mean_length": 8.0},
]
TINY = {
    "num_games": 8, "num_steps": 4, "buffer_size": 64, "batch_size": 16, "updates_per_iteration": 1,
    "evaluate_every": 0, "expert": experts.raw_policy(),
}  # fmt: skip


def make_network(env=ENV):
    return FullyConnectedResNet(
        env.observation_shape, env.num_actions, width=8, num_blocks=1, rngs=nnx.Rngs(0)
    )


class Counting:
    """A state of a trainer that only counts."""

    def __init__(self, iteration=0):
        self.iteration = iteration


def count(callback=None, **knobs):
    return iterations.run(
        Counting(), lambda s: (Counting(s.iteration + 1), {"iteration": s.iteration + 1}), 5,
        trainer="counting", arguments={}, settings=Run(callback=callback, **knobs),
    ).iteration  # fmt: skip


def test_all_callbacks_are_called_and_any_may_end_the_training():
    first, last = [], []
    stop_at = lambda number: lambda state, metrics: state.iteration == number  # noqa: E731
    callbacks = [lambda _, m: first.append(m), stop_at(3), lambda _, m: last.append(m)]
    assert count(callbacks) == 3
    assert first == last == [{"iteration": i} for i in (1, 2, 3)]
    assert count(()) == count() == 5 and count(stop_at(2)) == 2
    with pytest.raises(ValueError, match=r"function.*got 'log\.jsonl'"):
        count([print, "log.jsonl"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_shown_in_a_terminal_unless_there_is_one(monkeypatch):
    shown = []
    for stream in (Terminal(), io.StringIO()):
        for knobs in ({}, {"progress": False}, {"progress": True}):
            monkeypatch.setattr(sys, "stderr", stream)
            before = stream.tell()
            count(**knobs)
            shown.append("counting" in stream.getvalue()[before:])
    assert shown == [True, False, True, False, False, True]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with loggers.progress_bar("mine", 5) as show:
        count(show)
    assert "mine" in terminal.getvalue() and "counting" not in terminal.getvalue()


def test_metrics_go_to_tensorboard(monkeypatch, tmp_path):
    written = []

    class Writer:
        def __init__(self, folder):
            assert folder == str(tmp_path)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self):
            written.append("flush")

    summary = types.SimpleNamespace(Writer=Writer)
    monkeypatch.setitem(sys.modules, "tensorboard", types.SimpleNamespace(summary=summary))
    monkeypatch.setitem(sys.modules, "tensorboard.summary", summary)
    log = loggers.to_tensorboard(tmp_path)
    log(None, {"iteration": 3, "policy_loss": 0.5, "resign_below": -np.inf})
    assert written == [("policy_loss", 0.5, 3), "flush"]
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(ImportError, match=r'pip install "jaxpgs\[tensorboard\]"'):
        loggers.to_tensorboard(tmp_path)


def test_metrics_go_to_wandb(monkeypatch):
    sent = []

    def init(**knobs):
        assert knobs == {"project": "hex"}
        return types.SimpleNamespace(log=lambda metrics, step: sent.append((metrics, step)))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    log = loggers.to_wandb(project="hex")
    log(None, {"iteration": 3, "policy_loss": 0.5, "resign_below": -np.inf})
    assert sent == [({"policy_loss": 0.5}, 3)]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'pip install "jaxpgs\[wandb\]"'):
        loggers.to_wandb()


def test_a_run_is_drawn_by_one_call(tmp_path):
    log = loggers.log_to(tmp_path / "log.jsonl")
    for row in ROWS:
        log(None, {name: np.nan if x is None else x for name, x in row.items()})
    figure = loggers.picture(tmp_path / "log.jsonl", tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    drawn = {
        axes.get_title(): {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        for axes in figure.axes
    }
    assert drawn == {
        "losses": {"policy_loss": [[1, 2], [2, 1], [3, 0.5]], "value_loss": [[1, 1], [2, 0.5]]},
        "shares": {"resigned": [[1, 0.5], [2, 0.25], [3, 0]]},
        "Elo": {"elo": [[2, 40]]},
        "moves of a game": {"mean_length": [[1, 6], [3, 8]]},
    }
    with pytest.raises(ValueError, match="has losses, shares or scores"):
        loggers.picture([{"iteration": 1, "seconds": 3.0}])


def test_positions_that_differ_are_counted():
    board = np.zeros((4, 6, 3, 3, 2), np.int8)
    assert replay.distinct(board) == pytest.approx(1 / 24)
    board[np.arange(4)[:, None], np.arange(6), np.arange(6) % 3, 0, 0] = 1  # three kinds
    board[0, 0] = -board[0, 0]  # and a fourth
    found = jax.jit(replay.distinct)(board), replay.distinct({"a": board, "b": board * 0.5})
    np.testing.assert_allclose(found, 4 / 24, rtol=1e-6)


def test_games_that_teach_little_are_told_once():
    asked = []
    watch = game_warnings.make_watch(8, lambda: asked.append(1) or 0.4)
    fine = {
        "iteration": 1, "finished_games": 50, "resigned": 0.5, "mean_length": 9.0,
        "distinct_positions": 0.1,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(fine)
        watch(fine | {"finished_games": 9, "resigned": 1.0})  # too few to tell
        assert not asked
        watch(fine | {"distinct_positions": 0.0999, "finished_games": 0})
        # Of a game with few positions, one sees few.
        game_warnings.make_watch(8, lambda: 0.02)(fine | {"distinct_positions": 0.015})
    watch = game_warnings.make_watch(8, lambda: asked.append(1) or 0.6)
    with pytest.warns(UserWarning) as told:
        for _ in range(2):
            watch(fine | {"resigned": 0.92, "mean_length": 2.5, "distinct_positions": 0.05})
    assert len(told) == 2 and len(asked) == 2
    assert "92% of the games" in str(told[0].message) and "2.5 moves" in str(told[0].message)
    assert "Only 5.0% of the positions" in str(told[1].message)


def test_some_games_begin_at_the_start():
    @jax.jit
    def begun(start_fraction):
        return selfplay.init_games(
            ENV, jax.random.key(0), 512, selfplay.Start(4, start_fraction)
        ).move

    none, some = begun(0.0), begun(0.25)
    assert none.min() == 1 and none.max() == 4
    assert 0.2 < np.mean(some == 0) < 0.3
    np.testing.assert_array_equal(some[some > 0], none[some > 0])  # the others are as they were
    assert np.mean(some == 1) > 0.5


@pytest.mark.slow
def test_a_run_of_an_earlier_version_goes_on(tmp_path):
    """Those had no `start_fraction`, and None for the paper's optimizer.

    Its games begin at the start and take the best moves, so that they repeat themselves.
    """
    run = {"directory": tmp_path, "checkpoint_every": 1, **TINY, "sampled_moves": 0}
    run |= {"num_games": 64, "num_steps": 8, "buffer_size": 512}
    former = expert_iteration.paper_settings()
    with pytest.warns(UserWarning, match="the replay buffer repeats itself"):
        train(ENV, make_network(), num_iterations=1, **run, **former)
    file = tmp_path / "run.json"
    known = json.loads(file.read_text())
    assert "formerly" not in known
    known["arguments"]["optimizer"] = None
    del known["arguments"]["start_fraction"]
    file.write_text(json.dumps(known))
    with pytest.raises(ValueError, match="holds a run with max_random_moves 0, not 4"):
        train(ENV, make_network(), num_iterations=2, **run)
    with pytest.raises(ValueError, match="holds a run with optimizer"):
        others = former | {"optimizer": optax.adam(1e-3)}
        train(ENV, make_network(), num_iterations=2, **run, **others)
    with warnings.catch_warnings(action="ignore"):
        state = train(ENV, make_network(), num_iterations=2, **run, **former)
    assert int(state.iteration) == 2


@pytest.mark.slow
def test_defaults_that_depend_on_the_game_are_kept(monkeypatch):
    monkeypatch.setattr(iterations, "run", lambda *args, arguments, **knobs: arguments)
    knobs = {name: x for name, x in TINY.items() if name != "evaluate_every"}
    for env, every in ((jaxpgs.envs.SameGame(3, 3, 2), 0), (ENV, 25)):
        arguments = train(env, make_network(env), **knobs)
        assert arguments["evaluate_every"] == every
        default = expert_iteration.default_optimizer()
        assert fingerprint(arguments["optimizer"]) == fingerprint(default)


def test_a_gumbel_expert_takes_no_dirichlet_noise():
    for name in ("gumbel", "gumbel_pgs", "gumbel_mcts"):
        for noise in ({"dirichlet_fraction": 0.25}, {"dirichlet_alpha": 0.3}):
            with pytest.raises(ValueError, match=f"{name}' explores by Gumbel noise"):
                experts.make_expert(name, 8, **noise)
        experts.make_expert(name, 8, dirichlet_fraction=0.0)
    assert set(experts.NAMES) - {"mcs", "mcts", "gumbel_mcts", "gumbel"} == set(experts.ADAPTING)
    assert set(experts.ADAPTING) == {"pgs", "gumbel_pgs", "extended_pgs"}


@pytest.mark.slow
def test_small_games_are_solved():
    # Misère nim is lost where the heaps' exclusive or is 0, and otherwise where all are of one
    # stone and their number is odd.
    env = small_games.Nim((2, 3, 2))
    states, right = small_games.decisive(env, 256)
    for board, moves in zip(states.board, right, strict=True):
        for action in range(env.num_actions):
            heaps = list(board[:-1])
            heaps[action // env.most] -= action % env.most + 1
            if min(heaps) < 0:
                assert not moves[action]
                continue
            ones = max(heaps) <= 1
            assert moves[action] == ((heaps[0] ^ heaps[1] ^ heaps[2] == 0) != ones)
    # In tic-tac-toe's start nothing wins. Two in a row do with the third, or block the other's.
    lines = small_games.Lines()
    start = jax.tree.map(lambda x: x[None], lines.init())
    assert not small_games.values_of_actions(lines, start).any()
    near = dataclasses.replace(
        start, board=jnp.array([[[1, 1, 0], [-1, -1, 0], [0, 0, 0]]]),
        legal_action_mask=jnp.array([[0, 0, 1, 0, 0, 1, 1, 1, 1]], bool),
    )  # fmt: skip
    worth = small_games.values_of_actions(lines, near)[0]
    np.testing.assert_array_equal(worth[[2, 5, 6]], [1, 0, -1])


@pytest.mark.lenient
def test_a_die_is_an_expectation():
    env = small_games.Nim((2,), misere=False, sides=2)
    state = jax.tree.map(lambda x: x[None], env.init())
    # Both stones win. After one, the other player takes the last.
    np.testing.assert_array_equal(small_games.values_of_actions(env, state), [[-1, 1]])
    env = small_games.Nim((3,), misere=False, sides=2)
    state = jax.tree.map(lambda x: x[None], env.init())
    # After one stone the other may take both with a die of 2, and else leaves the last one.
    np.testing.assert_allclose(small_games.values_of_actions(env, state), [[0, -1]])
