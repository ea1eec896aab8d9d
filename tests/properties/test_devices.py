"""Searches and trainers on several devices, and on two processes that train together."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
import toy
from games import mostly_slow
from jax.sharding import PartitionSpec as P

import jaxpgs

FOLDER = pathlib.Path(__file__).parents[1]
ADAPT = {"adapt": toy.adapt_head}
PRESETS = {
    "mcs": (jaxpgs.mcs_policy, {"dirichlet_fraction": 0.25}),
    "mcs, rollouts": (jaxpgs.mcs_policy, {"mode": "rollouts"}),
    "mcts": (jaxpgs.batched_mcts_policy, {}),
    "gumbel mcts": (jaxpgs.gumbel_mcts_policy, {}),
    "pgs": (jaxpgs.pgs_policy, ADAPT),
    "gumbel pgs": (jaxpgs.gumbel_pgs_policy, ADAPT),
    "extended pgs": (jaxpgs.extended_pgs_policy, ADAPT),
    "paper pgs": (jaxpgs.pgs_policy, ADAPT | jaxpgs.paper_pgs(0.1)),
    "paper extended pgs": (jaxpgs.extended_pgs_policy, ADAPT | jaxpgs.paper_extended_pgs()),
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", mostly_slow(PRESETS, "mcs", "gumbel mcts", "extended pgs"))
@pytest.mark.lenient
def test_every_preset_may_be_shared(name):
    """`jax.shard_map` finds loops that begin without the roots when it is traced.

    That a root's answer does not depend on the others is tested elsewhere.
    """
    policy, knobs = PRESETS[name]
    params = toy.tree(2, 3)
    mesh, rows = jax.make_mesh((1,), ("roots",)), P("roots")
    data = jax.random.split(jax.random.key(1), 4), toy.root(params, range(4))

    def plan(params, keys, roots):
        output = policy(params, keys, roots, toy.split_fn, 6, max_depth=4, **knobs)
        return output.action_weights, output.search_state.visits

    share = jax.shard_map(plan, mesh=mesh, in_specs=(P(), rows, rows), out_specs=rows)
    data = jax.device_put(data, jax.NamedSharding(mesh, rows))
    weights, visits = jax.eval_shape(jax.jit(share), params, *data)
    assert weights.shape == visits.shape == (4, 2)


def begin(num_devices, *arguments):
    """Starts `on_devices.py` in a process of so many devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={num_devices}"
    return subprocess.Popen(
        [sys.executable, FOLDER / "on_devices.py", *map(str, arguments)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pair(folder, start):
    """Runs two processes of four devices; returns their statuses and what they printed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = [begin(4, "process", number, port, folder, start) for number in (0, 1)]
    texts = [one.communicate()[0] for one in both]
    return [one.returncode for one in both], texts


def iterations(text):
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("iteration ")]


@pytest.mark.slow
def test_every_trainer_on_eight_devices_and_on_two_processes(tmp_path):
    """The games are those of one device; a process that dies or is stopped costs nothing.

    Losses and gradients are sums over a batch, which as many devices add up in another order: their
    bound is 1e-5 where a rounding is 1e-7 and there are a few steps.
    """
    alone = begin(8, "trainers", tmp_path)
    text = alone.communicate()[0]
    assert alone.returncode == 0, text[-4000:]

    codes, texts = pair(tmp_path, 0)
    assert codes[1] == -signal.SIGKILL, texts[1][-4000:]
    assert codes[0] == 1 and "Gloo" in texts[0], "the other one must not wait for ever"
    found = [np.load(tmp_path / f"two ppo {number}.npz") for number in (0, 1)]
    for name in found[0].files:
        np.testing.assert_array_equal(found[0][name], found[1][name])

    codes, texts = pair(tmp_path, 1)
    assert codes == [128 + signal.SIGTERM] * 2, texts[0][-4000:]
    for text in texts:
        before, after = text.split("Stopped by SIGTERM and saved")
        assert (iterations(before), iterations(after)) == ([2, 3], [4, 5, 6])
