"""Trainings that `test_devices.py` runs in separate processes with several devices.

python on_devices.py trainers FOLDER
python on_devices.py process NUMBER PORT FOLDER START
"""

import functools
import os
import signal
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxpgs import networks, puzzles, training
from jaxpgs.envs import Hex, SameGame
from jaxpgs.training.recipes import distillation
from jaxpgs.training.runtime import sharding
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import experts

HEX, PUZZLE = Hex(3), SameGame(height=3, width=3, num_colors=2)
GAMES = {"num_games": 16, "num_steps": 4, "batch_size": 16}


def same(found, expected, atol=0.0):
    """Asserts that integers and bools are equal, and floats up to `atol`, for rounding."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        atol_here = atol if jnp.issubdtype(a.dtype, jnp.floating) else 0
        np.testing.assert_allclose(a, b, rtol=0, atol=atol_here)


def plain(tree):
    """Returns the tree with NumPy arrays as leaves; random keys become their data."""

    def array(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return sharding.fetch(jax.tree.map(array, tree))


@functools.cache
def network(env=HEX):
    sizes = {"width": 8, "num_blocks": 1, "rngs": nnx.Rngs(0)}
    return networks.FullyConnectedResNet(env.observation_shape, env.num_actions, **sizes)


def imitate(devices):
    return by_name(training.expert_iteration.train)(
        HEX, network(), expert=experts.make_expert("pgs", 4, mode="rollouts", max_depth=2),
        fast_simulations=experts.make_expert("pgs", 2, mode="rollouts", max_depth=2),
        full_share=0.5,
        num_iterations=2, buffer_size=128, updates_per_iteration=2, evaluate_every=0,
        max_random_moves=2, keep_adapted=True, devices=devices, **GAMES,
    )  # fmt: skip


def ppo(devices, num_opponents=8):
    return by_name(training.ppo.train)(
        HEX, network(), num_iterations=2, epochs=1, num_opponents=num_opponents, history_size=2,
        random_fraction=0.25, max_random_moves=2, evaluate_every=2, devices=devices, **GAMES,
    )  # fmt: skip


def puzzle(devices):
    def solver(params, keys, boards):
        return puzzles.nrpa(PUZZLE, keys, boards, 8, iterations=(2, 2), parallel=(2, 1))

    return by_name(training.puzzle_iteration.train)(
        PUZZLE, lambda seed: network(PUZZLE), solver=solver, first_solver=solver, num_iterations=1,
        num_runs=8, runs_at_once=8, training_length=64, batch_size=8, max_epochs=2,
        value_target="q", num_test_boards=0, devices=devices,
    )  # fmt: skip


def model(devices):
    net = networks.ValueEquivalentModel(
        HEX.observation_shape, HEX.num_actions, num_filters=4, num_blocks=1, rngs=nnx.Rngs(0)
    )
    params, _ = networks.functional(net)
    labelled = by_name(training.labelling.label_games)(
        HEX, networks.functional(net)[1], params, num_games=8, games_at_once=8, num_steps=8,
        devices=devices,
    )  # fmt: skip
    fitted = by_name(training.model_fitting.fit)(
        HEX, net, labelled, unroll=2, batch_size=8, max_epochs=1, steps_per_epoch=2,
        validation_batches=1, devices=devices,
    )  # fmt: skip
    planned = by_name(training.value_equivalent.train)(
        HEX, net, expert=experts.raw_policy(), unroll=2, num_iterations=1, buffer_size=128,
        updates_per_iteration=1, evaluate_every=0, devices=devices, **GAMES,
    )  # fmt: skip
    return labelled, fitted, planned


def distilled(devices, **knobs):
    teacher = networks.functional(network())
    return by_name(distillation.distill)(
        HEX, network(), teacher, num_iterations=6, batch_size=16, devices=devices, **knobs
    )


# Signals that end one of two processes that train together, by (start, process, iteration).
STOPS = {
    (0, 1, 2): signal.SIGKILL,
    (1, 1, 3): signal.SIGTERM,
}
TRAINERS = (imitate, ppo, puzzle, model, distilled)


def trainers(folder):
    """Runs every trainer on one device and on all, compares the results, and saves the latter."""
    for trainer in TRAINERS:
        one, shared = (plain(trainer(some)) for some in (jax.devices()[:1], jax.devices()))
        same(shared, one, atol=5e-5)
        np.savez(f"{folder}/{trainer.__name__}.npz", *jax.tree.leaves(shared))


def process(number, port, folder, start):
    """Runs one of two processes that train together, and compares the results with the saved ones.

    Processes send themselves the signals of `STOPS`. If a training stops by `SystemExit`, its
    process starts it again, which continues it to the end.
    """
    number, start = int(number), int(start)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, number, shutdown_timeout_seconds=10)
    if start == 0:
        try:
            distilled(None)
        except ValueError as error:
            assert "one of 2 processes that train together" in str(error)
        else:
            raise AssertionError("each process would train by itself")
        for trainer in (ppo, distilled):
            found = jax.tree.leaves(plain(trainer(jax.devices())))
            kept = np.load(f"{folder}/{trainer.__name__}.npz")
            same(found, [kept[name] for name in kept.files], atol=1e-5)
            np.savez(f"{folder}/two {trainer.__name__} {number}.npz", *found)

    def callback(state, metrics):
        print("iteration", metrics["iteration"], flush=True)
        if (start, number, metrics["iteration"]) in STOPS:
            os.kill(os.getpid(), STOPS[start, number, metrics["iteration"]])

    def train():
        return distilled(
            jax.devices(), directory=f"{folder}/run", checkpoint_every=1, callback=callback
        )

    status = 0
    try:
        try:
            state = train()
        except SystemExit as stop:
            status, state = stop.code, train()
    except Exception:
        traceback.print_exc()
        os._exit(1)  # a normal exit would wait for the other process
    kept = np.load(f"{folder}/two distilled {number}.npz")
    same(jax.tree.leaves(plain(state)), [kept[name] for name in kept.files])
    sys.exit(status)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
