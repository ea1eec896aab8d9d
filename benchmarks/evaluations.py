"""How many states a second does a network evaluate by itself, which is the limit of every search?

    python -m benchmarks.evaluations

Linear policies over local patterns in each of their games, untrained, beside some networks that
come with the library; each in the batch that is the fastest of those tried.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from benchmarks import report, runs
from benchmarks.players import load_network
from benchmarks.speed import bare_network, time_call
from benchmarks.tspg import GAMES
from jaxpgs import networks

NETWORKS = ("hex-5x5", "hex-7x7", "conv-7x7")
PATTERNS = tuple(f"patterns {game}" for game in GAMES)


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = runs.parser("evaluations", __doc__)
    parser.add_argument("--networks", nargs="+", default=[*PATTERNS, *NETWORKS])
    parser.add_argument("--states", type=runs.positive, default=32_768)
    parser.add_argument("--turns", type=runs.positive, default=5)
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"states": args.states}, ("network",))
    calls = {}
    with report.progress_bar("evaluations") as progress:
        for i, name in enumerate(args.networks):
            progress(i, len(args.networks), name)
            if not runs.has(record, network=name):
                calls[name] = (*bare_network(network := load(name), args.states, 0), network)
    # In turn, as other work comes and goes.
    turns = [
        {name: time_call(call) for name, (call, *_) in calls.items()} for _ in range(args.turns)
    ]
    for name, (_, about, network) in calls.items():
        seconds = float(np.median([turn[name] for turn in turns]))
        batch = about["max_batch"]
        row = {
            "network": name,
            "parameters": sum(x.size for x in jax.tree.leaves(network.params)),
            "batch": batch,
            # The last batch is a whole one.
            "states_per_second": round(-(-args.states // batch) * batch / seconds),
        }
        runs.add(record, row)
    report.print_table("Bare networks", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def load(name: str) -> Any:
    """Returns env, params and apply_fn of `patterns GAME` or of a network that `players` know."""
    kind, _, game = name.partition(" ")
    if kind != "patterns":
        return load_network(name)
    if game not in GAMES:
        raise SystemExit(f"Unknown game {game!r}; known are {', '.join(GAMES)}.")
    env = networks.with_last_move(GAMES[game]())
    params, apply_fn = networks.functional(networks.pattern_policy(env))
    return SimpleNamespace(env=env, params=params, apply_fn=apply_fn)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each network."""
    return ["network", "parameters", "batch", "states a second"], [
        [r["network"], r["parameters"], r["batch"], r["states_per_second"]] for r in rows
    ]


if __name__ == "__main__":
    main()
