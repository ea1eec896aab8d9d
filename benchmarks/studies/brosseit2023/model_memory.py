"""Memory of VE-PGS and MuZero: counted as in the thesis, estimated, and reserved by XLA.

    python -m benchmarks.studies.brosseit2023.model_memory --network ve-hex-5x5

Brosseit 2023, section 5.5, counts the nodes of each search on 5x5. A node has its state and 64 bits
for each of four numbers and for each entry of two arrays over the actions. Policy gradient search
has a node for the root and one for each action; tree search has one for the root and one for each
simulation. The text says that policy gradient search also holds the policy head that it adapts, but
its sums of 12.7 and 330.8 kB are 25 nodes without a head. The table here has 26 nodes without the
head, with it, and also with the two moments of Adam, for the thesis's sizes and for the given
network. Searches are compiled, but not run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxpgs
from benchmarks import report, runs
from benchmarks.players import Spec, arguments, load_network, make_player, model_fns
from jaxpgs.device_memory import num_bytes

SIMULATIONS = (100, 400, 1600)
_SAME = {"plans_with": "model", "simulations_per_update": 4}
_OURS = {"head": "linear", "truncation": "by_visits(6)"}
SEARCHES = (
    Spec("VE-PGS, constant mode", "extended", _SAME | _OURS | {"mode": "constant"}),
    Spec("VE-PGS, cached mode", "extended", _SAME | _OURS | {"mode": "cached"}),
    Spec("MuZero", "muzero", {"plans_with": "model"}),
)


def main(argv: list[str] | None = None) -> None:
    """Counts and compiles all searches; see the module's docstring."""
    parser = runs.parser("studies.brosseit2023.model_memory", __doc__)
    parser.add_argument("--network", default="ve-hex-5x5")
    parser.add_argument("--simulations", nargs="+", type=runs.positive, default=list(SIMULATIONS))
    parser.add_argument("--roots", type=runs.positive, default=16)
    args = parser.parse_args(argv)
    network = load_network(args.network)
    setting = {"network": args.network, "roots": args.roots, "thesis": THESIS}
    record = runs.open_record(parser, args, setting, ("search", "simulations"))
    for spec in SEARCHES:
        for count in args.simulations:
            if not runs.has(record, search=spec.name, simulations=count):
                runs.add(record, measure(spec, network, count, args.roots))
    report.print_table("Memory of a root, kB", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def node_bytes(num_actions: int, state_bits: int) -> float:
    """Returns the size of a node in bytes, as the thesis counts it."""
    return (64 * (4 + 2 * num_actions) + state_bits) / 8


def count_bytes(
    tree: bool, num_simulations: int, num_actions: int, state_bits: int, head_bits: int
) -> dict[str, float | None]:
    """Counts the memory of a search as the thesis does, in kB.

    Args:
      tree: whether every simulation adds a node, as in AlphaZero and MuZero.
      num_simulations: N.
      num_actions: A.
      state_bits: the size of a node's state.
      head_bits: the size of the parameters that PGS adapts.

    Returns:
      `nodes` alone, `with_head`, and `with_adam`: with the head and its two moments. The last two
      are None for a tree, which has no head.
    """
    number = num_simulations + 1 if tree else num_actions + 1
    nodes = number * node_bytes(num_actions, state_bits) / 1000
    head = None if tree else head_bits / 8000
    return {
        "nodes": nodes,
        "with_head": None if head is None else nodes + head,
        "with_adam": None if head is None else nodes + 3 * head,
    }


def _thesis() -> dict[str, dict[str, float | None]]:
    """Returns the counts for the thesis's sizes: 100 simulations on 5x5."""
    head = 32 * (32 * 5**4 + 5**2)
    board, hidden = 608, 32 * 128 * 5**2
    return {
        name: {k: v and round(v, 1) for k, v in count_bytes(tree, 100, 25, state, head).items()}
        for name, tree, state in (
            ("PGS", False, board),
            ("AlphaZero", True, board),
            ("VE-PGS", False, hidden),
            ("MuZero", True, hidden),
        )
    }


THESIS = _thesis()


def measure(spec: Spec, network: Any, num_simulations: int, num_roots: int) -> dict[str, Any]:
    """Counts the memory of a search and compiles it; returns a row, in kB per root."""
    env, params = network.env, network.params
    states = jax.vmap(lambda _: env.init())(jnp.arange(num_roots))
    root_fn, recurrent_fn = model_fns(spec, network)
    key = jax.random.key(0)
    root = jax.eval_shape(lambda: root_fn(params, key, states))
    head = jaxpgs.networks.policy_head(params, "linear")
    chosen = jax.tree.map(lambda leaf, adapts: leaf if adapts else None, params, head)
    bits = 8 * num_bytes(root.embedding.hidden) // num_roots, 8 * num_bytes(chosen)
    tree = spec.search == "muzero"
    counted = count_bytes(tree, num_simulations, env.num_actions, *bits)
    player = make_player(spec, network, num_simulations)
    compiled = jax.jit(player.act).lower(key, states, ()).compile()
    reserved: Any = compiled.memory_analysis()
    estimate = None
    if not tree:
        knobs = arguments(spec, params, num_simulations)
        names = ("mode", "adapt", "simulations_per_update", "truncation")
        estimate = jaxpgs.estimate_memory(
            params, root, recurrent_fn, num_simulations, **{name: knobs[name] for name in names}
        ).total
    return {
        "search": spec.name,
        "simulations": num_simulations,
        **{name: kb and round(kb, 1) for name, kb in counted.items()},
        "estimate": estimate and round(estimate / num_roots / 1000, 1),
        "reserved": round(reserved.temp_size_in_bytes / num_roots / 1000, 1),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and lines: `THESIS`, then each search and number of simulations."""
    columns = ["search", "simulations", "nodes, kB", "and the head, kB", "and Adam's moments, kB",
               "estimate_memory, kB", "reserved by XLA, kB"]  # fmt: skip
    lines = [[f"{name} of the thesis", 100, *sums.values(), None, None]
             for name, sums in THESIS.items()]  # fmt: skip
    names = ("search", "simulations", "nodes", "with_head", "with_adam", "estimate", "reserved")
    return columns, [*lines, *([row[name] for name in names] for row in rows)]


if __name__ == "__main__":
    main()
