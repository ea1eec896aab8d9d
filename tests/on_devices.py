"""What `test_devices.py` runs in processes of their own, which have several devices.

python on_devices.py searches
python on_devices.py trainers FOLDER
python on_devices.py process NUMBER PORT FOLDER
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import toy
from flax import nnx
from jax.sharding import PartitionSpec as P

import jaxpgs
from jaxpgs import networks, puzzles, training
from jaxpgs.envs import Hex, SameGame
from jaxpgs.training import distillation, experts

EVERYWHERE, ROWS = P(), P("roots")
HEX, PUZZLE = Hex(3), SameGame(height=3, width=3, num_colors=2)
GAMES = {"num_games": 16, "num_steps": 4, "batch_size": 16}


def check(found, expected, atol=0.0):
    """Whole numbers and bits are equal; sums of floats may be rounded otherwise."""

    def same(a, b):
        if jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, atol=atol)
        else:
            np.testing.assert_array_equal(a, b)

    jax.tree.map(same, found, expected)


def plain(tree):
    """The leaves as NumPy arrays; keys as their data."""

    def array(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return training.sharing.fetch(jax.tree.map(array, tree))


# --- searches -------------------------------------------------------------------------------------


def searches():
    """Every preset, in both memories, and NRPA."""
    params = toy.tree(2, 4, value=np.sin(np.arange(31)), features=np.cos(np.eye(31)[:, :3] + 1))
    roots = toy.root(params, range(8))
    keys = jax.random.split(jax.random.key(1), 8)
    adapts = {"adapt": toy.adapt_head}
    presets = {
        "mcs": (jaxpgs.mcs_policy, {"dirichlet_fraction": 0.25}),
        "mcs constant": (jaxpgs.mcs_policy, {"mode": "constant"}),
        "mcts": (jaxpgs.batched_mcts_policy, {}),
        "gumbel mcts": (jaxpgs.gumbel_mcts_policy, {}),
        "pgs": (jaxpgs.pgs_policy, adapts),
        "pgs constant": (jaxpgs.pgs_policy, adapts | {"mode": "constant"}),
        "gumbel pgs": (jaxpgs.gumbel_pgs_policy, adapts),
        "extended pgs": (jaxpgs.extended_pgs_policy, adapts | {"reuse": jaxpgs.Reuse(2)}),
        "paper pgs": (jaxpgs.pgs_policy, adapts | jaxpgs.paper_pgs(0.1)),
        "paper extended pgs": (jaxpgs.extended_pgs_policy, adapts | jaxpgs.paper_extended_pgs()),
    }
    mesh = jax.make_mesh((len(jax.devices()),), ("roots",))
    specs = (EVERYWHERE, ROWS, ROWS)
    data = jax.device_put((keys, roots), jax.NamedSharding(mesh, ROWS))
    for name, (policy, knobs) in presets.items():
        knobs = {"simulations_per_update": 2} | knobs

        def plan(params, keys, roots, policy=policy, knobs=knobs):
            output = policy(params, keys, roots, toy.split_fn, 6, max_depth=4, **knobs)
            state = output.search_state
            return output.action, state.visits, state.qvalues, state.params

        share = jax.shard_map(plan, mesh=mesh, in_specs=specs, out_specs=ROWS)
        print(name, flush=True)
        check(jax.jit(share)(params, *data), jax.jit(plan)(params, keys, roots), atol=1e-6)


# --- trainers -------------------------------------------------------------------------------------


@functools.cache
def network(env=HEX):
    sizes = {"width": 8, "num_blocks": 1, "rngs": nnx.Rngs(0)}
    return networks.FullyConnectedResNet(env.observation_shape, env.num_actions, **sizes)


def imitate(devices, **knobs):
    return training.expert_iteration.train(
        HEX, network(), expert=experts.make_expert("mcs", 4), num_iterations=2,
        buffer_size=128, updates_per_iteration=2, evaluate_every=1, max_random_moves=2,
        devices=devices, **GAMES, **knobs,
    )  # fmt: skip


def ppo(devices, num_opponents=8):
    return training.ppo.train(
        HEX, network(), num_iterations=2, epochs=1, num_opponents=num_opponents, history_size=2,
        random_fraction=0.25, max_random_moves=2, evaluate_every=2, devices=devices, **GAMES,
    )  # fmt: skip


def puzzle(devices):
    net = network(PUZZLE)
    _, apply_fn = networks.functional(net)

    def solver(*data):
        return puzzles.pv_mcts(PUZZLE, apply_fn, *data, 4, simulations_per_update=2)

    return training.puzzle_iteration.train(
        PUZZLE, lambda seed: net, solver=solver, first_solver=solver, num_iterations=2, num_runs=8,
        runs_at_once=8, training_length=64, batch_size=8, max_epochs=2, value_target="q",
        num_test_boards=0, devices=devices,
    )  # fmt: skip


def model(devices):
    net = networks.ValueEquivalentModel(
        HEX.observation_shape, HEX.num_actions, num_filters=4, num_blocks=1, rngs=nnx.Rngs(0)
    )
    params, _ = networks.functional(net)
    labelled = training.labelling.label_games(
        HEX, networks.functional(net)[1], params, num_games=8, games_at_once=8, num_steps=8,
        devices=devices,
    )  # fmt: skip
    fitted = training.model_fitting.fit(
        HEX, net, labelled, unroll=2, batch_size=8, max_epochs=1, steps_per_epoch=2,
        validation_batches=1, devices=devices,
    )  # fmt: skip
    planned = training.value_equivalent.train(
        HEX, net, expert=experts.raw_network(), unroll=2, num_iterations=1, buffer_size=128,
        updates_per_iteration=1, evaluate_every=0, devices=devices, **GAMES,
    )  # fmt: skip
    return labelled, fitted, planned


def distilled(devices):
    params, apply_fn = networks.functional(network())
    return distillation.distill(
        HEX, network(), (params, apply_fn), num_iterations=2, batch_size=16, devices=devices
    )


TRAINERS = {
    "imitate": imitate,
    "ppo": ppo,
    "puzzle": puzzle,
    "model": model,
    "distilled": distilled,
}


def trainers(folder, *names):
    """Every trainer on one device and on all; keeps what it learned on all."""
    for name in names or TRAINERS:
        one, shared = (plain(TRAINERS[name](some)) for some in (jax.devices()[:1], jax.devices()))
        check(shared, one, atol=1e-5)
        keep(f"{folder}/{name}.npz", shared)


def keep(path, tree):
    np.savez(path, *jax.tree.leaves(tree))


def process(number, port, folder, *names):
    """Every trainer on the devices of two processes, of which this is one."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(number))
    for name in names or TRAINERS:
        found = plain(TRAINERS[name](jax.devices()))
        if int(number) == 0:
            expected = np.load(f"{folder}/{name}.npz").values()
            for a, b in zip(jax.tree.leaves(found), expected, strict=True):
                assert a.dtype == b.dtype, (a.dtype, b.dtype)
                print(name, a.dtype, a.shape, (a == b).all() or np.abs(a - b).max())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
