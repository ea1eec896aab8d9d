"""How much memory does each search need as simulations grow? Counted by XLA, nothing is run.

    python -m benchmarks.memory --preset quick   # two action spaces
    python -m benchmarks.memory --preset full    # Hex 5 to 19, and up to 10,000 actions

Every search is compiled for several numbers of simulations; `memory_analysis` gives its temporary
memory. The slope between them is the memory per simulation, shown beside the predictions of our
formula (`jaxpgs.estimate_memory`) and of mctx's tree. Rollouts must be flat.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import jaxpgs
from benchmarks import pictures, report, runs
from benchmarks.players import Spec, make_player
from benchmarks.speed import SEARCHES

SIMULATIONS = (64, 1024, 16_384)
GIB = (16, 24, 139)
PRESETS = {
    "quick": ["hex-9", "blank-1000"],
    "full": ["hex-5", "hex-9", "hex-13", "hex-19", "blank-225", "blank-1000", "blank-10000"],
}


class Blank(NamedTuple):
    """An environment with the memory of a board game of 225 cells, and no rewards."""

    num_actions: int

    def init(self, rng_key: Any = None) -> Any:
        """Returns the only position."""
        return BlankState(
            jnp.zeros(225, jnp.uint8),
            jnp.ones(self.num_actions, bool),
            jnp.zeros(2),
            jnp.int8(0),
            jnp.zeros((), bool),
        )

    def step(self, state: Any, action: Any) -> Any:
        """Returns a different position, so that nothing is optimised away."""
        return state._replace(
            board=state.board.at[action % 225].add(1), current_player=1 - state.current_player
        )

    def observe(self, state: Any) -> Any:
        """Returns the board."""
        return state.board.astype(jnp.float32)


class BlankState(NamedTuple):
    """The fields that every environment has."""

    board: Any
    legal_action_mask: Any
    rewards: Any
    current_player: Any
    terminated: Any


def load(name: str) -> Any:
    """Returns an environment, `hex-SIZE` or `blank-ACTIONS`, with an untrained 256x4 network."""
    kind, number = name.split("-")
    env: Any = jaxpgs.envs.Hex(size=int(number)) if kind == "hex" else Blank(int(number))
    observed = jax.eval_shape(lambda: env.observe(env.init()))
    module = jaxpgs.networks.FullyConnectedResNet(
        observed.shape, env.num_actions, width=256, num_blocks=4, rngs=nnx.Rngs(0)
    )
    params, apply_fn = jaxpgs.networks.functional(module)
    return SimpleNamespace(env=env, params=params, apply_fn=apply_fn)


def measure(
    name: str, spec: Spec, num_roots: int, simulations: Sequence[int] = SIMULATIONS
) -> dict[str, Any]:
    """Compiles one search for several numbers of simulations.

    Returns:
      A dict ready for JSON: bytes at each N, measured and predicted bytes per simulation and root,
      and the largest N for some memory sizes.
    """
    network = load(name)
    env = network.env
    states = jax.eval_shape(lambda: jax.vmap(lambda _: env.init())(jnp.arange(num_roots)))
    key = jax.eval_shape(lambda: jax.random.key(0))
    sizes: dict[int, int] = {}
    for count in simulations:
        player = make_player(spec, network, count)
        compiled: Any = jax.jit(player.act).lower(key, states, ()).compile()
        sizes[count] = compiled.memory_analysis().temp_size_in_bytes
    (n0, b0), *_, (n1, b1) = sizes.items()
    slope = (b1 - b0) / (n1 - n0)
    fixed = b0 - slope * n0
    # A relative growth of less than 2% is rounding: the memory does not grow.
    flat = abs(b1 - b0) < 0.02 * b0
    return {
        "space": name,
        "num_actions": env.num_actions,
        "search": spec.name,
        "roots": num_roots,
        "bytes": {str(n): b for n, b in sizes.items()},
        "per_simulation_and_root": round(slope / num_roots, 1),
        "formula": round(formula(spec, network, num_roots, n0, n1), 1),
        "largest": {
            str(gib): None if flat else math.floor((gib * 2**30 - fixed) / slope) for gib in GIB
        },
    }


def formula(spec: Spec, network: Any, num_roots: int, few: int, many: int) -> float:
    """Returns the bytes per simulation and root that the search's data structure needs.

    It uses the same two numbers of simulations as the measurement: the memory of PGS for the
    gradient of an update grows with N only as long as an update's walks could reach every node.
    """
    env = network.env
    states = jax.eval_shape(lambda: jax.vmap(lambda _: env.init())(jnp.arange(num_roots)))
    if spec.search in ("muzero", "gumbel"):
        # mctx's tree: six arrays over the actions, five over the nodes, and the embedding.
        embedding = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states)) // num_roots
        return 6 * 4 * env.num_actions + 5 * 4 + embedding
    if spec.knobs.get("mode") == "constant":
        return 0
    root_fn = jaxpgs.make_root_fn(env, network.apply_fn)
    root = jax.eval_shape(lambda x: root_fn(network.params, jax.random.key(0), x), states)
    totals = [
        jaxpgs.estimate_memory(
            network.params,
            root,
            jaxpgs.make_recurrent_fn(env, network.apply_fn),
            count,
            mode="tree",
            adapt=jaxpgs.networks.policy_head(network.params) if spec.search == "pgs" else None,
        ).total
        for count in (few, many)
    ]
    return (totals[1] - totals[0]) / (many - few) / num_roots


def main(argv: list[str] | None = None) -> None:
    """Compiles a preset's searches; see the module's docstring."""
    parser = runs.parser("memory", __doc__, PRESETS)
    parser.add_argument("--roots", type=runs.positive, default=64)
    parser.add_argument("--simulations", type=runs.positive, nargs="+", default=SIMULATIONS)
    args = parser.parse_args(argv)
    if len(set(args.simulations)) < 2:
        parser.error(
            f"--simulations needs two numbers, to measure the growth, got {args.simulations}"
        )
    record = runs.open_record(parser, args, {}, ("space", "search", "roots"))
    jobs = [(name, spec) for name in PRESETS[args.preset] for spec in SEARCHES]
    with report.progress_bar("memory") as progress:
        for i, (name, spec) in enumerate(jobs):
            progress(i, len(jobs), f"{name}, {spec.name}")
            if not runs.has(record, space=name, search=spec.name, roots=args.roots):
                runs.add(record, measure(name, spec, args.roots, args.simulations))
    rows = runs.read(record)
    report.print_table("Scratch memory", *table(rows))
    plot(record.path.with_suffix(".png"), rows)
    print(f"Wrote {record.path} and {record.path.with_suffix('.png')}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search in each space."""
    few = min(rows[0]["bytes"], key=int)
    columns = ["space", "actions", "search", f"MB with N = {few}", "bytes a simulation and root",
               "by the formula"]  # fmt: skip
    sizes = [f"largest N, {rows[0]['roots']} roots in {gib} GiB" for gib in rows[0]["largest"]]
    return [*columns, *sizes], [
        [row["space"], row["num_actions"], report.present_name(row["search"]),
         row["bytes"][few] and round(row["bytes"][few] / 1e6, 1), row["per_simulation_and_root"],
         row["formula"], *("any" if n is None else n for n in row["largest"].values())]
        for row in rows
    ]  # fmt: skip


def plot(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plots bytes against simulations, a panel for each action space."""
    spaces = list(dict.fromkeys(row["space"] for row in rows))
    shown = [spaces[i] for i in sorted({0, len(spaces) // 2, len(spaces) - 1})]
    panels = {
        f"{space}: {next(r['num_actions'] for r in rows if r['space'] == space):,} actions": {
            report.present_name(row["search"]): [
                (int(n), b / 2**30) for n, b in row["bytes"].items() if b is not None
            ]
            for row in rows
            if row["space"] == space
        }
        for space in shown
    }
    pictures.line_plot(
        path, panels, xlabel="simulations", ylabel="scratch memory, GiB",
        title=f"Memory of {rows[0]['roots']} searches at once",
    )  # fmt: skip


if __name__ == "__main__":
    main()
