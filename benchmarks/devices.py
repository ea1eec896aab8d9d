"""Expert iteration on one device, on two, and on two processes, on the cores of one machine.

    python -m benchmarks.devices

Two virtual devices on two cores show what sharing costs, not what an accelerator gains: one device
may use both cores by itself. Layouts take turns, each time in new processes, and the first
iterations, which compile, do not count. CPU seconds are of all processes together; unlike the time
on the clock they hardly depend on what else the machine does, of which the load tells.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import report, runs

WARM_UP = 2  # iterations


class Layout(NamedTuple):
    """Who trains.

    Attributes:
      processes: how many train together, each on cores of its own.
      devices: virtual devices of each process.
      cores: cores that all processes may use.
    """

    processes: int
    devices: int
    cores: int


LAYOUTS = {
    "one device, one core": Layout(1, 1, 1),
    "one device": Layout(1, 1, 2),
    "two devices": Layout(1, 2, 2),
    "two processes": Layout(2, 1, 2),
}


def main(argv: list[str] | None = None) -> None:
    """Measures the layouts in turn and prints a table; see the module's text."""
    parser = runs.parser("devices", __doc__)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--games", type=runs.positive, default=64)
    parser.add_argument("--simulations", type=runs.positive, default=16)
    parser.add_argument("--iterations", type=runs.positive, default=5)
    parser.add_argument("--turns", type=runs.positive, default=3)
    args = parser.parse_args(argv)
    setting = {name: getattr(args, name) for name in ("games", "simulations", "iterations")}
    record = runs.open_record(parser, args, setting, ("layout", "turn"))
    jobs = [(turn, name) for turn in range(args.turns) for name in args.layouts]
    with report.progress_bar("devices") as progress:
        for i, (turn, name) in enumerate(jobs):
            progress(i, len(jobs), name)
            if not runs.has(record, layout=name, turn=turn):
                runs.add(record, {"layout": name, "turn": turn} | measure(LAYOUTS[name], args))
    report.print_table(f"{args.games} games", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each layout."""
    columns = ["layout", "turns", "seconds an iteration, median (range)",
               "CPU seconds an iteration, median (range)", "load of the machine",
               "MB of gradients an iteration"]  # fmt: skip
    lines: list[list[Any]] = []
    for name in dict.fromkeys(row["layout"] for row in rows):
        own = [row for row in rows if row["layout"] == name]
        seconds = [x for row in own for x in row["seconds"]]
        cpu = [row["cpu_seconds"] for row in own]
        load = [row["load"] for row in own]
        shared = LAYOUTS[name].processes * LAYOUTS[name].devices > 1
        lines.append(
            [name, len(own), _spread(seconds), _spread(cpu), f"{min(load):.0f}–{max(load):.0f}",
             round(own[0]["gradient_bytes"] / 1e6, 1) if shared else 0]
        )  # fmt: skip
    return columns, lines


def measure(layout: Layout, args: argparse.Namespace) -> dict[str, Any]:
    """Trains in new processes.

    Returns:
      A dict ready for JSON: seconds of each iteration, and CPU seconds of one.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))[: layout.cores]
    started = []
    for number in range(layout.processes):
        job = layout._asdict() | {
            "number": number, "port": port, "seed": args.seed,
            "cores": cores[number :: layout.processes], "games": args.games,
            "simulations": args.simulations, "iterations": args.iterations,
        }  # fmt: skip
        code = f"from benchmarks import devices; devices.work({json.dumps(job)})"
        started.append(
            subprocess.Popen([sys.executable, "-c", code], cwd=report.ROOT, stdout=subprocess.PIPE)
        )
    texts = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("A process failed; its message is above.")
    found = [json.loads(text.splitlines()[-1]) for text in texts]
    return found[0] | {"cpu_seconds": round(sum(one["cpu_seconds"] for one in found), 3)}


def work(job: dict[str, Any]) -> None:
    """Trains as one process of a layout, and prints what it took as JSON."""
    os.sched_setaffinity(0, job["cores"])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", job["devices"])
    if job["processes"] > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{job['port']}", job["processes"], job["number"])
    from flax import nnx

    import jaxpgs
    from jaxpgs.training import expert_iteration

    env = jaxpgs.envs.Hex(5)
    module = jaxpgs.networks.FullyConnectedResNet(
        env.observation_shape, env.num_actions, width=256, num_blocks=4, rngs=nnx.Rngs(0)
    )
    seen = []

    def callback(state: Any, metrics: Mapping[str, float]) -> None:
        del state, metrics
        used = resource.getrusage(resource.RUSAGE_SELF)
        seen.append((time.perf_counter(), used.ru_utime + used.ru_stime))

    updates = 8
    state = expert_iteration.train(
        env, module, expert="pgs", num_simulations=job["simulations"],
        num_iterations=WARM_UP + job["iterations"], num_games=job["games"], num_steps=4,
        buffer_size=32 * job["games"], batch_size=256, updates_per_iteration=updates,
        evaluate_every=0, seed=job["seed"], devices=jax.devices(), callback=callback,
        **expert_iteration.paper_settings() | {"max_random_moves": 8},
    )  # fmt: skip
    clock, cpu = np.diff(np.array(seen)[WARM_UP - 1 :], axis=0).T
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.params))
    found = {
        "seconds": np.round(clock, 3).tolist(),
        "cpu_seconds": round(float(np.mean(cpu)), 3),
        "gradient_bytes": size * updates,
    }
    print(json.dumps(found), flush=True)


def _spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
