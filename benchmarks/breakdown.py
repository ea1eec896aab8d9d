"""Where does a search spend its time? Its kernels, traced and added up by the part they belong to.

    python -m benchmarks.breakdown --network hex-7x7 --roots 1 16 64

The searches name their parts for XLA (`jax.named_scope`), so that a profile can tell the network's
evaluations (`expand`) from the walks, the gradient and the rest.
"""

import argparse
import collections
import glob
import gzip
import json
import pathlib
import re
import tempfile
from typing import Any

import jax

from benchmarks import report
from benchmarks.players import make_player
from benchmarks.report import RESULTS
from benchmarks.speed import SEARCHES, load_network, positions

SCOPES = ("root_selection", "expand", "walk", "gradient", "optimizer", "backup", "make_nodes")
REPEATS = 10


def kernel_scopes(hlo: str) -> dict[str, str]:
    """Maps the names of compiled kernels to the innermost of our scopes, by their metadata."""
    scopes = {}
    for name, path in re.findall(r'%?([\w.\-]+) = [^\n]*op_name="([^"]*)"', hlo):
        found = [part for part in re.split(r"[/()]", path) if part in SCOPES]
        scopes[name] = found[-1] if found else "other"
    return scopes


def measure(compiled: Any, arguments: tuple[Any, ...]) -> dict[str, float]:
    """Traces some calls.

    Args:
      compiled: a compiled function.
      arguments: its arguments.

    Returns:
      Milliseconds of one call by scope; kernels run on several threads are counted on each.
    """
    scopes = kernel_scopes(compiled.as_text())
    jax.block_until_ready(compiled(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(REPEATS):
                jax.block_until_ready(compiled(*arguments))
        (file,) = glob.glob(f"{folder}/plugins/profile/*/*.trace.json.gz")
        with gzip.open(file) as stream:
            events = json.load(stream)["traceEvents"]
    total: collections.Counter[str] = collections.Counter()
    for event in events:
        # Loops and branches contain their kernels, which are events of their own.
        name = event.get("name", "")
        if event.get("ph") == "X" and name in scopes and not re.match(r"(while|cond|call)\b", name):
            total[scopes[name]] += event["dur"] / 1e3 / REPEATS
    return {scope: round(total[scope], 3) for scope in (*SCOPES, "other")}


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.breakdown",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--network", default="hex-7x7")
    parser.add_argument("--roots", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--simulations", type=int, default=256)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "breakdown.json")
    args = parser.parse_args(argv)
    network = load_network(args.network)
    rows = []
    for roots in args.roots:
        for spec in SEARCHES[2:]:
            states = positions(network.env, roots, 0)
            arguments = (jax.random.key(0), states, ())
            player = make_player(spec, network, args.simulations)
            compiled = jax.jit(player.act).lower(*arguments).compile()
            rows.append({"roots": roots, "search": spec.name, "ms": measure(compiled, arguments)})
    report.write_json(
        args.out,
        {
            "command": f"python -m benchmarks.breakdown --network {args.network}",
            "environment": report.environment_record(0),
            "network": args.network,
            "simulations": args.simulations,
            "rows": rows,
        },
    )
    columns = ["roots", "search", *SCOPES, "other"]
    cells = [[row["roots"], row["search"], *row["ms"].values()] for row in rows]
    report.print_table(f"{args.network}, milliseconds of kernels in a search", columns, cells)
    print(f"Wrote {args.out}.")


if __name__ == "__main__":
    main()
