"""Where does a search spend its time? Its kernels, traced and added up by the part they belong to.

    python -m benchmarks.breakdown --networks hex-7x7 --roots 1 16 64

The searches name their parts for XLA (`jax.named_scope`), so that a profile can tell the network's
evaluations (`expand`) from the walks, the gradient and the rest. Processor time over wall time
tells how many cores a search keeps busy; the bare network, on as many states, is shown beside it.
"""

import collections
import functools
import glob
import gzip
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from benchmarks import report, runs
from benchmarks.players import load_network, make_player
from benchmarks.speed import SEARCHES, bare_network, in_pieces, positions

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


def busy_cores(call: Callable[[], Any]) -> float:
    """Returns the processor time of some calls over their wall time."""
    jax.block_until_ready(call())
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(REPEATS):
        jax.block_until_ready(call())
    return round((time.process_time() - processor) / (time.perf_counter() - wall), 2)


def measure_all(name: str, num_roots: int, num_simulations: int) -> list[dict[str, Any]]:
    """Measures the bare network and every search of this library in one setting."""
    network = load_network(name)
    setting = {"network": name, "roots": num_roots}
    bare, about = bare_network(network, num_roots * num_simulations, 0)
    rows = [setting | {"search": "bare network", "cores_busy": busy_cores(bare)}]
    network = in_pieces(network, about["max_batch"])
    arguments = (jax.random.key(0), positions(network.env, num_roots, 0), ())
    for spec in SEARCHES[2:]:
        player = make_player(spec, network, num_simulations)
        compiled = jax.jit(player.act).lower(*arguments).compile()
        ms = measure(compiled, arguments)
        cores = busy_cores(functools.partial(compiled, *arguments))
        rows.append(setting | {"search": spec.name, "cores_busy": cores, "ms": ms})
    return rows


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = runs.parser("breakdown", __doc__)
    parser.add_argument("--networks", nargs="+", default=["hex-7x7", "conv-7x7-32x4"])
    parser.add_argument("--roots", type=runs.positive, nargs="+", default=[1, 16, 64])
    parser.add_argument("--simulations", type=runs.positive, default=256)
    args = parser.parse_args(argv)
    setting = {"simulations": args.simulations}
    record = runs.open_record(parser, args, setting, ("network", "roots", "search"))
    settings = [(name, roots) for name in args.networks for roots in args.roots]
    with report.progress_bar("breakdown") as progress:
        for i, (name, roots) in enumerate(settings):
            progress(i, len(settings), f"{name}, {roots} roots")
            if not runs.has(record, network=name, roots=roots, search="bare network"):
                runs.add(record, *measure_all(name, roots, args.simulations))
    report.print_table("Where the time goes", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search: the shares of its parts."""
    scopes = (*SCOPES, "other")
    lines = []
    for row in rows:
        ms = row.get("ms")
        shares = [ms and f"{100 * ms[scope] / sum(ms.values()):.0f}%" for scope in scopes]
        lines.append([row["network"], row["roots"], row["search"], row["cores_busy"], *shares])
    columns = ["network", "roots", "search", "cores busy"]
    return [*columns, *(scope.replace("_", " ") for scope in scopes)], lines


if __name__ == "__main__":
    main()
