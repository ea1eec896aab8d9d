"""Times the searches of this checkout against those of another commit, taking turns.

    git worktree add ../before COMMIT
    python tests/quality/against.py ../before

Each checkout runs in its own process, on the same positions. In a turn both run the search once;
the result is the median ratio of their times with the quartiles, so a slowdown of the machine
affects both. Run nothing else meanwhile. Started again with the same file, the command continues.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
# network, roots, simulations: the searches
ROWS = {
    ("hex-7x7", 1, 256): ("pgs", "gumbel_pgs", "mcs", "mcs, puct(0.5)", "mcts", "mcts, puct(0.5)"),
    ("hex-7x7", 16, 256): ("pgs", "gumbel_pgs", "mcs", "mcs, puct(0.5)", "mcts", "mcts, puct(0.5)"),
    ("hex-7x7", 64, 256): ("pgs", "gumbel_pgs", "mcs", "mcs, puct(0.5)", "mcts", "mcts, puct(0.5)"),
    ("hex-9x9", 16, 64): ("pgs", "mcts", "pgs, rollouts"),
}


def main(argv: list[str] | None = None) -> None:
    """Compares two checkouts; see the module's text."""
    from benchmarks import report, runs  # here, as workers do not need them

    parser = argparse.ArgumentParser(
        prog="python tests/quality against",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=pathlib.Path, help="a checkout of the other commit")
    seconds = runs.number(0, above=True)
    parser.add_argument("--seconds", type=seconds, default=15.0, help="of each row")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/quality/against.json")
    args = parser.parse_args(argv)
    if not (args.before / "jaxpgs").is_dir():
        parser.error(f"{args.before} is not a checkout: it has no folder jaxpgs")
    paths = args.before.resolve(), ROOT
    commits = [
        subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=p, text=True).strip()
        for p in paths
    ]
    data: dict[str, Any] = {"machine": report.describe_machine(), "date": runs.now(), "rows": []}
    if args.out.exists():
        data = json.loads(args.out.read_text())
    data["rows"] = [row for row in data["rows"] if row["commits"] == commits]
    done = [(*(row[n] for n in ("network", "roots", "simulations")), row["search"])
            for row in data["rows"]]  # fmt: skip
    workers = [_start(path) for path in paths]
    for position, searches in ROWS.items():
        for search in searches:
            if (*position, search) in done:
                continue
            row = {"commits": commits, **_compare(workers, (*position, search), args.seconds)}
            data["rows"].append(row)
            text = json.dumps(data, indent=1)
            args.out.with_suffix(".part").write_text(text)
            args.out.with_suffix(".part").replace(args.out)
            print(_line(row), flush=True)
    for worker in workers:
        worker.kill()


def _start(path: pathlib.Path) -> Any:
    """Starts a process that runs searches of the checkout at this path."""
    return subprocess.Popen(
        [sys.executable, __file__, "--worker"],
        env=os.environ | {"PYTHONPATH": str(path)},
        cwd=path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(worker: Any, *words: Any) -> Any:
    worker.stdin.write(json.dumps(words) + "\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


def _compare(workers: Any, row: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    """Times one search in both checkouts, taking turns; returns the row."""
    compiled = [_ask(worker, *row) for worker in workers]
    times: list[list[float]] = []
    start = time.monotonic()
    while time.monotonic() - start < seconds or len(times) < 5:
        times.append([_ask(worker) for worker in workers])
    ratios = sorted(after / before for before, after in times)
    return {
        **dict(zip(("network", "roots", "simulations", "search"), row, strict=True)),
        "milliseconds": [round(1e3 * statistics.median(t), 2) for t in zip(*times, strict=True)],
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(ratios[len(ratios) * k // 4], 3) for k in (1, 3)],
        "compile_seconds": [round(each, 1) for each in compiled],
        "turns": len(times),
    }


def _line(row: Mapping[str, Any]) -> str:
    before, after = row["milliseconds"]
    return (
        f"{row['network']}, {row['roots']} roots, {row['simulations']} simulations, "
        f"{row['search']}: {before} ms before, {after} ms after, ratio {row['ratio']} "
        f"{row['quartiles']}, compiled in {row['compile_seconds']} s"
    )


def _work() -> None:
    """Answers each line of the standard input with the seconds that it took.

    A line with the arguments of `_make` compiles that search; an empty list runs it.
    """
    run: Any = None
    for line in sys.stdin:
        words = json.loads(line)
        start = time.perf_counter()
        if words:
            run = _make(*words)
        else:
            run()
        print(json.dumps(time.perf_counter() - start), flush=True)
        if words:
            run()


def _make(name: str, num_roots: int, num_simulations: int, search: str) -> Any:
    """Returns a function that runs a compiled search on positions after four random moves."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaxpgs

    network = jaxpgs.load_pretrained(name)
    env = network.env
    root_fn = jaxpgs.make_root_fn(env, network.apply_fn)
    recurrent_fn = jaxpgs.make_recurrent_fn(env, network.apply_fn)
    kind, _, parts = search.partition(", ")
    policy = getattr(jaxpgs, f"{'batched_mcts' if kind == 'mcts' else kind}_policy")
    knobs: dict[str, Any] = {"adapt": "policy_head"} if "pgs" in kind else {}
    knobs |= {"mode": "constant"} if parts == "rollouts" else {}
    knobs |= {"root_selection": jaxpgs.selection.puct(0.5)} if parts == "puct(0.5)" else {}
    state = jax.vmap(env.init)(jax.random.split(jax.random.key(0), num_roots))
    step, rng = jax.jit(jax.vmap(env.step)), np.random.default_rng(0)
    for _ in range(4):
        rows = np.array(state.legal_action_mask)
        actions = [rng.choice(np.flatnonzero(row)) for row in rows]
        state = step(state, jnp.array(actions, jnp.int32))

    def answer(params: Any, key: Any, state: Any) -> Any:
        root = root_fn(params, key, state)
        data = params, key, root, recurrent_fn, num_simulations, ~state.legal_action_mask
        return policy(*data, **knobs).action_weights

    inputs = network.params, jax.random.key(1), state
    program = jax.jit(answer).lower(*inputs).compile()
    return lambda: jax.block_until_ready(program(*inputs))


if __name__ == "__main__":
    _work() if sys.argv[1:] == ["--worker"] else main()
