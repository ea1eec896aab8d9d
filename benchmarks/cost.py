"""What a search costs before it runs: FLOPs, scratch memory and compile time, as XLA counts them.

    python -m benchmarks.cost

XLA counts the body of a loop once, so FLOPs are those of one step of the rollouts, forward and
backward, and one update; they compare searches of the same shape.
"""

import argparse
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp

import jaxpgs
from benchmarks import report
from benchmarks.players import TUNED, Spec, make_player
from benchmarks.report import RESULTS

_CONSTANT = {"mode": "constant", "simulations_per_update": 16}
SPECS = (
    Spec("MCS", "mcs", TUNED["mcs"] | _CONSTANT),
    Spec("PGS", "pgs", TUNED["pgs"] | _CONSTANT),
    Spec("PGS-UF", "pgs-uf", TUNED["pgs-uf"] | _CONSTANT),
)


def main(argv: list[str] | None = None) -> None:
    """Compiles the searches and prints a table; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--network", default="hex-7x7")
    parser.add_argument("--roots", type=int, default=16)
    parser.add_argument("--simulations", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "cost.json")
    args = parser.parse_args(argv)
    network = jaxpgs.load_pretrained(args.network)
    rows: list[dict[str, Any]] = []
    with report.progress_bar("cost") as progress:
        for spec in SPECS:
            for count in args.simulations:
                progress(len(rows), len(SPECS) * len(args.simulations), spec.name)
                rows.append(measure(spec, network, args.roots, count))
    base = {row["simulations"]: row["flops"] for row in rows if row["search"] == "MCS"}
    for row in rows:
        row["flops_over_mcs"] = round(row["flops"] / base[row["simulations"]], 3)
    record = {"environment": report.environment_record(0), "network": args.network}
    report.write_json(args.out, record | {"roots": args.roots, "rows": rows})
    columns = {
        "search": "search", "simulations": "simulations", "flops_over_mcs": "FLOPs / MCS",
        "temp_bytes": "scratch bytes", "compile_seconds": "compile s",
    }  # fmt: skip
    title = f"{args.network}, {args.roots} roots"
    report.print_table(title, list(columns.values()), [[r[k] for k in columns] for r in rows])
    print(f"Wrote {args.out}.")


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
