"""What a search costs before it runs: FLOPs, scratch memory and compile time, as XLA counts them.

    python -m benchmarks.cost

XLA counts the body of a loop once, so FLOPs are those of one step of the rollouts, forward and
backward, and one update; they compare searches of the same shape.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import report, runs
from benchmarks.players import TUNED, Spec, load_network, make_player

_CONSTANT = {"mode": "constant", "simulations_per_update": 16}
SPECS = (
    Spec("MCS", "mcs", TUNED["mcs"] | _CONSTANT),
    Spec("PGS", "pgs", TUNED["pgs"] | _CONSTANT),
    Spec("PGS-UF", "pgs-uf", TUNED["pgs-uf"] | _CONSTANT),
)


def main(argv: list[str] | None = None) -> None:
    """Compiles the searches and prints a table; see the module's text."""
    parser = runs.parser("cost", __doc__)
    parser.add_argument("--network", default="hex-7x7")
    parser.add_argument("--roots", type=runs.positive, default=16)
    parser.add_argument("--simulations", type=runs.positive, nargs="+", default=[128, 1024, 4096])
    args = parser.parse_args(argv)
    setting = {"network": args.network, "roots": args.roots}
    record = runs.open_record(parser, args, setting, ("search", "simulations"))
    network = load_network(args.network)
    jobs = [(spec, count) for count in args.simulations for spec in SPECS]
    with report.progress_bar("cost") as progress:
        for i, (spec, count) in enumerate(jobs):
            progress(i, len(jobs), spec.name)
            if not runs.has(record, search=spec.name, simulations=count):
                row = measure(spec, network, args.roots, count)
                known = [r for r in runs.read(record) if r["simulations"] == count]
                base = {r["simulations"]: r["flops"] for r in known if r["search"] == "MCS"}
                over = round(row["flops"] / base.get(count, row["flops"]), 3)
                runs.add(record, row | {"flops_over_mcs": over})
    report.print_table(f"{args.network}, {args.roots} roots", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search."""
    fields = ("search", "simulations", "flops_over_mcs", "temp_bytes", "compile_seconds")
    columns = ["search", "simulations", "FLOPs / MCS", "scratch bytes", "compile s"]
    return columns, [[row[field] for field in fields] for row in rows]


def measure(spec: Spec, network: Any, num_roots: int, num_simulations: int) -> dict[str, Any]:
    """Compiles one search.

    Args:
      spec: the search.
      network: a pretrained network.
      num_roots: B.
      num_simulations: N.

    Returns:
      A dict ready for JSON.
    """
    env = network.env
    states = jax.vmap(lambda _: env.init())(jnp.arange(num_roots))
    player = make_player(spec, network, num_simulations)
    start = time.perf_counter()
    compiled = jax.jit(player.act).lower(jax.random.key(0), states, ()).compile()
    seconds = time.perf_counter() - start
    cost: Any = compiled.cost_analysis()
    memory: Any = compiled.memory_analysis()
    return {
        "search": spec.name,
        "simulations": num_simulations,
        "flops": cost["flops"],
        "temp_bytes": memory.temp_size_in_bytes,
        "compile_seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    main()
