"""What do random numbers cost a search? The same search from keys of three generators.

    python -m benchmarks.rng

threefry is JAX's default; `rbg` and `unsafe_rbg` use the hardware's generator where there is one.
The searches take turns, so the medians of the ratios within a turn compare them on a noisy machine.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import report, runs
from benchmarks.players import load_network, make_player
from benchmarks.speed import SEARCHES, positions, quartiles_text, time_call

GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")
PLAYERS = ("MCS cached", "PGS cached", "PGS constant")


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = runs.parser("rng", __doc__)
    parser.add_argument("--network", default="hex-7x7")
    parser.add_argument("--roots", type=runs.positive, nargs="+", default=[1, 16, 64])
    parser.add_argument("--simulations", type=runs.positive, default=256)
    parser.add_argument("--turns", type=runs.positive, default=9)
    args = parser.parse_args(argv)
    setting = {"network": args.network, "simulations": args.simulations}
    record = runs.open_record(parser, args, setting, ("roots", "search"))
    network = load_network(args.network)
    jobs = [(r, s) for r in args.roots for s in SEARCHES if s.name in PLAYERS]
    with report.progress_bar("rng") as progress:
        for i, (roots, spec) in enumerate(jobs):
            progress(i, len(jobs), f"{spec.name}, {roots} roots")
            if runs.has(record, roots=roots, search=spec.name):
                continue
            states = positions(network.env, roots, 0)
            player = make_player(spec, network, args.simulations)
            calls = [compile_with(name, player, states) for name in GENERATORS]
            row = {"search": spec.name, "roots": roots} | compare(calls, args.turns)
            runs.add(record, row)
    title = f"{args.network}, {args.simulations} simulations"
    report.print_table(title, *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search."""
    columns = ["roots", "search", "ms with threefry", "rbg / threefry", "unsafe_rbg / threefry"]
    return columns, [
        [r["roots"], r["search"], r["ms"], *map(quartiles_text, r["ratios"])] for r in rows
    ]


def compile_with(generator: str, player: Any, states: Any) -> Callable[[], Any]:
    """Returns a call of a player's search with a key of the named generator."""
    key = jax.random.key(0, impl=generator)
    compiled = jax.jit(player.act).lower(key, states, ()).compile()
    return lambda: compiled(key, states, ())


def compare(calls: list[Callable[[], Any]], turns: int) -> dict[str, Any]:
    """Times calls in turn.

    Returns:
      Milliseconds of the first, and the quartiles of each other's time over the first's.
    """
    seconds = np.array([[time_call(call) for call in calls] for _ in range(turns + 1)])[1:]
    ratios = np.quantile(seconds[:, 1:] / seconds[:, :1], (0.25, 0.5, 0.75), axis=0).T
    return {
        "ms": round(1e3 * float(np.median(seconds[:, 0])), 3),
        "ratios": np.round(ratios, 2).tolist(),
    }


if __name__ == "__main__":
    main()
