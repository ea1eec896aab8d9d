"""Compares the speed of two checkouts of the library, interleaved in one run.

    python tests/quality versions --old ../before --change "what was changed"

Each checkout runs in a process of its own. Both compile a setting, then take turns: one search of
the old version, one of the new, and so on, so that whatever else the machine does meets both. The
file holds the median of the ratios of neighbours and the compile times; mctx's Gumbel search, the
same in both, stands beside them.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import mctx
import numpy as np
from flax import nnx

import jaxpgs

NETWORKS = {
    "fully connected 256x4": ("FullyConnectedResNet", {"width": 256, "num_blocks": 4}),
    "convolutional 32x4": ("AlphaZeroResNet", {"num_filters": 32, "num_blocks": 4}),
}
# Board, network, search, roots, simulations, K.
_CONNECTED, _CONVOLUTIONAL = NETWORKS
SETTINGS = [
    (7, network, search, roots, 256, width)
    for network, roots, width in (
        (_CONNECTED, 1, 32),
        (_CONNECTED, 16, 32),
        (_CONNECTED, 64, 32),
        (_CONNECTED, 16, 4),
        (_CONVOLUTIONAL, 1, 32),
        (_CONVOLUTIONAL, 16, 32),
    )
    for search in ("mcs cached", "pgs cached", "mcts")
] + [
    (5, _CONNECTED, search, 16, 64, 8)
    for search in (
        "mcs cached",
        "pgs cached",
        "mcts",
        "mcs constant",
        "pgs constant",
        "mctx gumbel",
    )
]


def compile_setting(setting: tuple) -> tuple[Any, tuple, float]:
    """Compiles a search. Returns it, its arguments and the seconds."""
    size, network, name, roots, count, width = setting
    env = jaxpgs.envs.Hex(size)
    kind, sizes = NETWORKS[network]
    module = getattr(jaxpgs.networks, kind)(
        env.observation_shape, env.num_actions, **sizes, rngs=nnx.Rngs(0)
    )
    params, apply_fn = jaxpgs.networks.functional(module)
    root_fn = jaxpgs.make_root_fn(env, apply_fn)
    recurrent_fn = jaxpgs.make_recurrent_fn(env, apply_fn)
    head = jaxpgs.networks.policy_head(params)
    # Defaults may differ between versions, so everything is said.
    learn = {"adapt": head, "estimator": jaxpgs.reinforce(), "optimizer": jaxpgs.auto_sgd()}
    policy, knobs = {
        "mcs cached": (jaxpgs.mcs_policy, {"mode": "cached"}),
        "mcs constant": (jaxpgs.mcs_policy, {"mode": "constant"}),
        "pgs cached": (jaxpgs.pgs_policy, {"mode": "cached", **learn}),
        "pgs constant": (jaxpgs.pgs_policy, {"mode": "constant", **learn}),
        "mcts": (jaxpgs.batched_mcts_policy, {}),
        "mctx gumbel": (mctx.gumbel_muzero_policy, {}),
    }[name]
    if name != "mctx gumbel":
        knobs |= {
            "simulations_per_update": width,
            "root_selection": jaxpgs.puct(5.0),
            "target": jaxpgs.visit_counts(),
        }

    def search(params: Any, key: Any, state: Any) -> Any:
        root = root_fn(params, key, state)
        invalid = ~state.legal_action_mask
        output = policy(params, key, root, recurrent_fn, count, invalid, **knobs)
        return output.action, output.action_weights

    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), roots))
    arguments = (params, jax.random.key(1), states)
    start = time.perf_counter()
    program = jax.jit(search).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    jax.block_until_ready(program(*arguments))
    return program, arguments, seconds


def worker() -> None:
    """Answers on standard output: `compile I` with seconds, `run` with milliseconds."""
    program, arguments = None, ()
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "compile":
            program, arguments, seconds = compile_setting(SETTINGS[int(rest[0])])
            print(json.dumps(seconds), flush=True)
        else:
            assert program is not None
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            print(json.dumps(1e3 * (time.perf_counter() - start)), flush=True)


class Version:
    """A checkout in a process of its own."""

    def __init__(self, path: pathlib.Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(path)},
        )

    def ask(self, question: str) -> None:
        """Asks for a number."""
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        """Waits for the number."""
        assert self.process.stdout is not None
        return float(json.loads(self.process.stdout.readline()))


def main(argv: list[str] | None = None) -> None:
    """Runs the comparison; see the module's text."""
    if argv is None and sys.argv[1:] == ["--worker"]:
        return worker()
    # Here, as the process of an older checkout must not need it.
    import quality
    from benchmarks import report, runs

    parser = quality.parser("versions", __doc__)
    parser.add_argument("--old", type=pathlib.Path, required=True, help="the other checkout")
    parser.add_argument("--new", type=pathlib.Path, default=pathlib.Path.cwd())
    parser.add_argument("--change", default="a change", help="what lies between the versions")
    parser.add_argument("--seconds", type=float, default=6.0, help="to time each setting for")
    parser.add_argument("--only", default="", help="settings whose name has this in it")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"change": args.change}, ("setting",))
    versions = {"old": Version(args.old), "new": Version(args.new)}
    for i, setting in enumerate(SETTINGS):
        name = "{0}x{0}, {1}, {2}, {3} roots, {4} simulations, K {5}".format(*setting)
        if args.only not in name or runs.has(record, setting=name):
            continue
        row = {"setting": name} | compare(versions, i, args.seconds)
        runs.add(record, row)
        print(f"{name}: new / old {row['ratio']:.2f}", flush=True)
    report.print_table(args.change, *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def compare(versions: dict[str, Version], number: int, seconds: float) -> dict[str, float]:
    """Compiles a setting in both versions and times them in turns."""
    compiling = {}
    for which, version in versions.items():  # one after the other, each with all cores
        version.ask(f"compile {number}")
        compiling[which] = version.answer()
    times: dict[str, list[float]] = {which: [] for which in versions}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times["new"]) < 9:
        for which, version in versions.items():
            version.ask("run")
            times[which].append(version.answer())
    return {
        "ratio": float(np.median(np.array(times["new"]) / np.array(times["old"]))),
        **{f"{which}_ms": float(np.median(t)) for which, t in times.items()},
        **{f"{which}_compile_s": s for which, s in compiling.items()},
        "turns": len(times["new"]),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each setting."""
    columns = ["setting", "time, after / before", "before, ms", "after, ms",
               "compile before, s", "compile after, s"]  # fmt: skip
    fields = ("ratio", "old_ms", "new_ms", "old_compile_s", "new_compile_s")
    return columns, [[r["setting"], *(float(f"{r[field]:.3g}") for field in fields)] for r in rows]


if __name__ == "__main__":
    main()
