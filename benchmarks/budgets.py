"""Checks that searches under a budget of seconds keep to it.

    python -m benchmarks.budgets

200 searches of one 7x7 position by PGS with budgets drawn log-uniformly from 50 ms to 2 s. A search
may end over its budget by one slice at most.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxpgs
from benchmarks import report, runs


def main(argv: list[str] | None = None) -> None:
    """Runs the searches; see the module's text."""
    parser = runs.parser("budgets", __doc__)
    parser.add_argument("--count", type=runs.positive, default=200)
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"seed": args.seed}, ("number",))
    net = jaxpgs.load_pretrained("hex-7x7")
    key = jax.random.key(args.seed)
    state = jax.vmap(net.env.init)(jax.random.split(key, 1))
    root = jaxpgs.make_root_fn(net.env, net.apply_fn)(net.params, key, state)
    search = jaxpgs.pgs_search(
        jaxpgs.make_recurrent_fn(net.env, net.apply_fn),
        1_000_000,
        adapt=jaxpgs.networks.policy_head(net.params),
        mode="tree",
        max_depth=32,
        capacity=2_000,
        simulations_per_update=16,
    )
    invalid = ~state.legal_action_mask
    draws = np.random.default_rng(args.seed).uniform(size=args.count)
    budgets = 0.05 * (2.0 / 0.05) ** draws
    new = []
    for i, budget in enumerate([0.05, *budgets]):
        seen: list[jaxpgs.search.Progress] = []
        start = time.perf_counter()
        output = jaxpgs.search_for(
            search, net.params, jax.random.fold_in(key, i), root, invalid,
            seconds=float(budget), callback=seen.append,
        )  # fmt: skip
        jax.block_until_ready(output)
        seconds = time.perf_counter() - start
        if i == 0:
            continue  # which compiled it
        times = [0.0, *(progress.seconds for progress in seen)]
        new.append(
            {
                "number": i,
                "budget_s": float(budget),
                "seconds": seconds,
                "over_s": seconds - float(budget),
                "longest_slice_s": max(np.diff(times)),
                "slices": len(times) - 1,
                "simulations": int(output.search_state.visits.sum()),
            }
        )
    rows = runs.add(record, *new)
    report.print_table("Searches under a budget of seconds", *table(rows))
    if any(row["over_s"] > row["longest_slice_s"] for row in rows):
        raise SystemExit(1)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for all searches together."""
    columns = ["searches", "shortest budget, ms", "longest, ms", "over by more than a slice",
               "latest, ms", "mean share used"]  # fmt: skip
    line = [
        len(rows),
        round(1e3 * min(row["budget_s"] for row in rows)),
        round(1e3 * max(row["budget_s"] for row in rows)),
        sum(row["over_s"] > row["longest_slice_s"] for row in rows),
        round(1e3 * max(row["over_s"] for row in rows), 1),
        f"{sum(row['seconds'] / row['budget_s'] for row in rows) / len(rows):.1%}",
    ]
    return columns, [line]


if __name__ == "__main__":
    main()
