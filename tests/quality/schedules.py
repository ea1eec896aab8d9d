"""What do searches in rounds of several widths cost to compile and run, compared with mctx's?

    python tests/quality schedules

The searches take turns on this machine, with one root and pgx's network of 128x6 with random
weights. A width is the number of simulations that an update starts. "Sure" starts all actions that
may remain after a halving, "unsure" only as many as will remain. "Wide" starts four in place of
two, so that a program has one width, and one copy of the model, fewer. "Fixed K", unlike the
searches in rounds, does not follow mctx's choices. Run nothing else meanwhile.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import mctx

import jaxpgs
import quality
from benchmarks import report, runs
from benchmarks.players import load_network
from benchmarks.speed import positions

NETWORK, CONSIDERED = "conv-9x9-128x6", 16
NUM_POSITIONS, TURNS = 8, 5
_KEY = ("search", "simulations")


def searches(num_simulations: int) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Returns policies and their knobs by name."""
    sure, unsure = (
        jaxpgs.gumbel.round_starts(CONSIDERED, num_simulations, sure=sure) for sure in (True, False)
    )
    rounds = {"root_selection": jaxpgs.gumbel.gumbel_root(CONSIDERED, in_rounds=True)}
    fixed = {"max_num_considered_actions": CONSIDERED}
    return {
        "mctx Gumbel": (mctx.gumbel_muzero_policy, fixed),
        "fixed K": (jaxpgs.gumbel_mcts_policy, fixed),
    } | {
        name: (jaxpgs.gumbel_mcts_policy, rounds | {"simulations_per_update": widths})
        for name, widths in {
            "sure": sure, "unsure": unsure, "sure, wide": tuple(max(w, 4) for w in sure),
        }.items()
    }  # fmt: skip


def measure(num_simulations: int, seed: int) -> list[dict[str, Any]]:
    """Compiles and times all searches.

    Args:
      num_simulations: N.
      seed: the seed of the positions and searches.

    Returns:
      A row for each search: seconds to trace, lower and compile; the median milliseconds of a
      search; and, if it reports them, the mean numbers of evaluations and of calls in a row.
    """
    network = load_network(NETWORK)
    env, keys = network.env, jax.random.split(jax.random.key(seed), NUM_POSITIONS)
    states = [positions(env, 1, seed + number) for number in range(NUM_POSITIONS)]
    root_fn = jaxpgs.make_root_fn(env, network.apply_fn)
    recurrent_fn = jaxpgs.make_recurrent_fn(env, network.apply_fn)
    compiled, rows = {}, {}
    for name, (policy, knobs) in searches(num_simulations).items():

        def run(params: Any, key: Any, state: Any, policy: Any = policy, knobs: Any = knobs) -> Any:
            root, illegal = root_fn(params, key, state), ~state.legal_action_mask
            output = policy(params, key, root, recurrent_fn, num_simulations, illegal, **knobs)
            told = getattr(output, "search_state", None)
            return output.action, [
                getattr(told, f"num_{x}", None) for x in ("evaluations", "calls")
            ]

        jax.clear_caches()
        start = time.perf_counter()
        compiled[name] = jax.jit(run).lower(network.params, keys[0], states[0]).compile()
        seconds = round(time.perf_counter() - start, 2)
        rows[name] = {"search": name, "simulations": num_simulations, "compile_seconds": seconds}
    times: dict[str, list[float]] = {name: [] for name in compiled}
    counts: dict[str, list[list[float]]] = {name: [] for name in compiled}
    for turn in range(TURNS + 1):
        for key, state in zip(keys, states, strict=True):
            for name, search in compiled.items():
                start = time.perf_counter()
                _, told = jax.block_until_ready(search(network.params, key, state))
                if turn:  # the first turn is a warm-up
                    times[name].append(time.perf_counter() - start)
                if told[0] is not None:
                    counts[name].append([float(x.max()) for x in told])
    for name, row in rows.items():
        row["ms"] = round(1e3 * statistics.median(times[name]), 2)
        told = zip(*counts[name], strict=True) if counts[name] else ()
        row |= dict(zip(("evaluations", "calls"), map(statistics.fmean, told), strict=False))
    return list(rows.values())


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search."""
    columns = ["search", "simulations", "compile_seconds", "ms", "evaluations", "calls"]
    return columns, [[row.get(name) for name in columns] for row in rows]


def main(argv: list[str] | None = None) -> None:
    """Measures what is not in the file; see the module's text."""
    parser = quality.parser("schedules", __doc__)
    parser.add_argument("--simulations", type=runs.positive, nargs="+", default=[32, 128])
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"network": NETWORK, "seed": args.seed}, _KEY)
    for count in args.simulations:
        if not runs.has(record, search="sure, wide", simulations=count):
            runs.add(record, *measure(count, args.seed))
    report.print_table("Searches in rounds, one root", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
