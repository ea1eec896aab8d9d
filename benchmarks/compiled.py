"""What do the searches compile to on accelerators? The compiler's estimate, not a measurement.

    python -m benchmarks.compiled --platform tpu-v5e    # with libtpu: pip install "jax[tpu]"
    python -m benchmarks.compiled --platform h100       # with jax-cuda12-plugin, -pjrt and ptxas
    python -m benchmarks.compiled --platform h100 --network conv-9x9-128x6 --settings 1024x32
                                                        # pgx's example of AlphaZero

No accelerator is needed: XLA compiles for a TPU v5e or v6e or an H100 on any machine, and its
optimized program is read. For one search this gives: instructions that launch something (kernels);
on the H100, how often the host must read a value before it can continue (round trips: one for a
branch, and the trips plus one for a loop whose trips the compiler does not know); on a TPU, the
cycles that its compiler estimates, including those in serial loops, into which it converts scatters
whose place differs between roots, and the fusions without an estimate; temporary memory; and the
compile time. Trips and branches that depend on data are counted in a run of the same program on
this machine's CPU. Overlap, the host's speed and caches are ignored.

One process compiles for one platform; all write to one file, which records the compiler.
"""

import argparse
import dataclasses
import fnmatch
import importlib.metadata
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import mctx
from jax.experimental import topologies
from jax.extend import core

import jaxpgs
from benchmarks import report, runs
from benchmarks.compiled_cost import run_cost
from benchmarks.compiled_trips import Marked, count, mark
from benchmarks.players import load_network
from benchmarks.speed import positions

HEAD = {"adapt": "policy_head"}
# By name: the policy, or None for the bare network, and its knobs.
SEARCHES: dict[str, tuple[Callable[..., Any] | None, dict[str, Any]]] = {
    "network": (None, {}),
    "mctx Gumbel": (mctx.gumbel_muzero_policy, {}),
    "mctx MuZero": (mctx.muzero_policy, {}),
    "PGS": (jaxpgs.pgs_policy, HEAD),
    "Gumbel PGS": (jaxpgs.gumbel_pgs_policy, HEAD),
    "extended PGS": (jaxpgs.extended_pgs_policy, HEAD),
    "PGS rollouts": (jaxpgs.pgs_policy, HEAD | {"mode": "rollouts"}),
    "MCS": (jaxpgs.mcs_policy, {}),
    "MCTS": (jaxpgs.batched_mcts_policy, {}),
    "Gumbel MCTS": (jaxpgs.gumbel_mcts_policy, {}),
    "Gumbel MCTS rounds": (jaxpgs.gumbel_mcts_policy, {"simulations_per_update": "rounds"}),
}
SETTINGS = ("1x256", "16x64", "1024x32")
_KEY = ("platform", "network", "roots", "simulations", "search")
# The description of an H100 that its compiler needs.
_H100 = """platform_name: "CUDA" device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 8 patch: 0 }
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 } core_count: 132 fpus_per_core: 128
  clock_rate_ghz: 1.98 memory_bandwidth: 3352320000000 device_memory_size: 84978434048
  l2_cache_size: 52428800 threads_per_block_limit: 1024 threads_per_warp: 32
  threads_per_core_limit: 2048 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}"""


# A TPU's compiler must not look for a TPU, and must allow other processes that compile.
_NO_TPU = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
           "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # fmt: skip


class Platform(NamedTuple):
    """JAX's name of a platform; for a TPU also its topology and libtpu's name for that."""

    kind: str
    topology: str = ""
    accelerator: str = ""


PLATFORMS = {
    "tpu-v5e": Platform("tpu", "v5e:2x2", "v5litepod-4"),
    "tpu-v6e": Platform("tpu", "v6e:2x2", "v6e-4"),
    "h100": Platform("cuda"),
}


def compile_only_device(name: str) -> Any:
    """Returns a device to compile for, which need not be present.

    Raises:
      SystemExit: if a package is missing; the message names it.
    """
    platform = PLATFORMS[name]
    same = f"of the version of jax, {jax.__version__}"
    if platform.kind == "tpu":
        if importlib.util.find_spec("libtpu") is None:
            raise SystemExit(f"{name} needs libtpu: pip install 'jax[tpu]', {same}.")
        for variable, value in (_NO_TPU | {"TPU_ACCELERATOR_TYPE": platform.accelerator}).items():
            os.environ.setdefault(variable, value)
        return topologies.get_topology_desc(platform.topology, platform="tpu").devices[0]
    if shutil.which("ptxas") is None:  # a Python package does not put it on the path
        found = importlib.util.find_spec("nvidia")
        folders = found.submodule_search_locations if found else None
        tools = [f"{folder}/cuda_nvcc/bin" for folder in folders or ()]
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), *tools])
        if shutil.which("ptxas") is None:
            raise SystemExit(f"{name} needs ptxas: pip install nvidia-cuda-nvcc-cu12.")
    config = {"target_config": _H100, "topology": "1x1x1"}
    try:
        return topologies.get_topology_desc(platform="cuda", **config).devices[0]
    except NotImplementedError:
        packages = "jax-cuda12-plugin and jax-cuda12-pjrt"
        raise SystemExit(f"{name} needs {packages}: pip install them, {same}.") from None


def make_program(network: Any, search: str, num_simulations: int) -> Callable[..., Any]:
    """Returns `(params, key data, states) -> results of a search of the states`, not jitted."""
    policy, knobs = SEARCHES[search]
    torso = jax.named_scope("network")(network.apply_fn.torso)
    apply_fn = dataclasses.replace(network.apply_fn, torso=torso)
    root_fn = jaxpgs.make_root_fn(network.env, apply_fn)
    recurrent_fn: Any = jaxpgs.make_recurrent_fn(network.env, apply_fn)
    if policy in (mctx.gumbel_muzero_policy, mctx.muzero_policy):  # ours name their own parts
        recurrent_fn = jax.named_scope("expand")(recurrent_fn)

    def program(params: Any, key_data: Any, states: Any) -> Any:
        key = jax.random.wrap_key_data(key_data)
        root = root_fn(params, key, states)
        if policy is None:
            return root.prior_logits, root.value
        illegal = ~states.legal_action_mask
        output = policy(params, key, root, recurrent_fn, num_simulations, illegal, **knobs)
        return output.action, output.action_weights

    return program


def compile_for(device: Any, marked: Marked, arguments: Sequence[Any]) -> Any:
    """Compiles a program for a device that need not be present; uses only the arguments' shapes."""
    place = jax.sharding.SingleDeviceSharding(device)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in arguments]
    return jax.jit(core.jaxpr_as_fun(marked.jaxpr)).lower(*shapes).compile()


def measure(
    platform: str,
    device: Any,
    network: Any,
    search: str,
    num_roots: int,
    num_simulations: int,
    seed: int = 0,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Compiles a search and determines its cost.

    Args:
      platform: one of `PLATFORMS`.
      device: from `compile_only_device`.
      network: env, params and apply_fn.
      search: one of `SEARCHES`.
      num_roots: B.
      num_simulations: N.
      seed: the seed of the positions, and of the search whose trips are counted.
      earlier: earlier rows; the trips of an identical program are taken from them.

    Returns:
      A dict ready for JSON.
    """
    kind = PLATFORMS[platform].kind
    key_data = jax.random.key_data(jax.random.key(seed))
    data = (network.params, key_data, positions(network.env, num_roots, seed))
    start = time.perf_counter()
    jaxpr = jax.make_jaxpr(make_program(network, search, num_simulations))(*data)
    marked = mark(jaxpr, kind)
    flat = jax.tree.leaves(data)
    compiled = compile_for(device, marked, flat)
    seconds = time.perf_counter() - start
    same = [row for row in earlier if row["program"] == marked.digest]
    trips = (
        {int(number): shares for number, shares in same[0]["trips"].items()}
        if same
        else count(marked, kind, *flat)
    )
    cost = run_cost(compiled.as_text(), sorted(marked.scopes), marked.lengths, trips)
    serial = [loop for loop in cost.loops if loop.serial]
    on_tpu = kind == "tpu"
    parts = cost.cycles if on_tpu else cost.kernels
    memory: Any = compiled.memory_analysis()
    return {
        "roots": num_roots,
        "simulations": num_simulations,
        "search": search,
        "kernels": round(cost.kernels.total()),
        "round_trips": None if on_tpu else round(cost.round_trips),
        "cycles": round(cost.cycles.total()) if on_tpu else None,
        "serial_loops": round(sum(loop.visits for loop in serial)),
        "serial_cycles": round(cost.serial_cycles) if on_tpu else None,
        "unestimated": round(cost.unestimated) if on_tpu else None,
        "temp_bytes": memory.temp_size_in_bytes,
        "compile_seconds": round(seconds, 1),
        "parts": {part: round(size) for part, size in sorted(parts.items()) if round(size)},
        "assumed": sorted(set(cost.assumed)),
        "program": marked.digest,
        "trips": {str(number): shares for number, shares in trips.items()},
    }


def main(argv: list[str] | None = None) -> None:
    """Compiles for one platform; see the module's docstring."""
    parser = runs.parser("compiled", __doc__)
    add = parser.add_argument
    add("--platform", choices=PLATFORMS, required=True)
    add("--network", default="hex-9x9")
    add("--settings", nargs="+", type=_setting, default=SETTINGS, metavar="ROOTSxSIMULATIONS")
    add("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    args = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")  # trips are counted on the CPU
    device = compile_only_device(args.platform)
    record = runs.open_record(parser, args, {"seed": args.seed}, _KEY)
    network = load_network(args.network)
    about = {"platform": args.platform, "network": args.network}
    jobs = [(*map(int, s.split("x")), search) for s in args.settings for search in args.searches]
    with report.progress_bar("compiled") as progress:
        for i, (roots, simulations, search) in enumerate(jobs):
            progress(i, len(jobs), f"{args.platform}, {search}, {roots}x{simulations}")
            setting = about | {"roots": roots, "simulations": simulations, "search": search}
            if not runs.has(record, **setting):
                earlier = [] if args.again else runs.read(record)
                row = measure(args.platform, device, network, search, roots, simulations, args.seed,
                              earlier)  # fmt: skip
                runs.add(record, about | row | {"compiler": _compiler(args.platform)})
    rows = runs.read(record)
    report.print_table("One search, as the compiler sees it", *table(rows))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search of each setting and platform."""
    columns = ["platform", "network", "roots", "simulations", "search", "kernels", "round trips",
               "M cycles", "serial loops", "M cycles in them", "without estimate", "scratch MB",
               "compile s", "assumed"]  # fmt: skip
    return columns, [
        [*(row[name] for name in (*_KEY[:1], "network", "roots", "simulations", "search")),
         row["kernels"], row["round_trips"], _millions(row["cycles"]), row["serial_loops"],
         _millions(row["serial_cycles"]), row["unestimated"], round(row["temp_bytes"] / 1e6, 1),
         row["compile_seconds"], len(row["assumed"])]
        for row in sorted(rows, key=_order)
    ]  # fmt: skip


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that sorts rows in the order of platforms, settings and searches listed here."""
    places = list(PLATFORMS).index(row["platform"]), list(SEARCHES).index(row["search"])
    return places[0], row["network"], row["roots"], row["simulations"], places[1]


def _setting(text: str) -> str:
    roots, _, simulations = text.partition("x")
    if not (roots.isdigit() and simulations.isdigit() and int(roots) and int(simulations)):
        raise argparse.ArgumentTypeError(f"{text!r} is not ROOTSxSIMULATIONS, such as 16x64")
    return text


def _millions(count: float | None) -> float | None:
    return None if count is None else round(count / 1e6, 2)


def _compiler(platform: str) -> str:
    """Returns the compiler's package and version."""
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    tpu = PLATFORMS[platform].kind == "tpu"
    pattern = "libtpu" if tpu else "jax-cuda*-pjrt"
    return ", ".join(f"{n} {installed[n]}" for n in fnmatch.filter(installed, pattern))


if __name__ == "__main__":
    main()
