"""How fast is self-play, and how much of it is the network? Every expert, beside the bare network.

    python -m benchmarks.selfplay

The share of the network is the bare network's time for as many evaluations, in the batch that suits
it best, divided by the time of self-play, both taken in turn. PGS is shown once more with fewer and
larger updates, 32 simulations each: faster, and a weaker expert.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import report, runs
from benchmarks.players import load_network
from benchmarks.speed import bare_network, in_pieces, time_call
from jaxpgs.training import experts, selfplay

NETWORKS = ("hex-7x7", "conv-7x7-32x4")


def _tuned(name: str, **knobs: Any) -> Callable[[int], experts.Expert]:
    return lambda num_simulations: experts.make_expert(name, num_simulations, **knobs)


EXPERTS = {name: _tuned(name) for name in experts.NAMES}
EXPERTS["pgs, 32 an update"] = _tuned("pgs", simulations_per_update=32)


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = runs.parser("selfplay", __doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--games", type=runs.positive, default=128)
    parser.add_argument("--steps", type=runs.positive, default=4)
    parser.add_argument("--simulations", type=runs.positive, default=64)
    parser.add_argument("--turns", type=runs.positive, default=3)
    args = parser.parse_args(argv)
    setting = {name: getattr(args, name) for name in ("games", "steps", "simulations")}
    record = runs.open_record(parser, args, setting, ("network", "expert"))
    jobs = [(network, expert) for network in args.networks for expert in EXPERTS]
    with report.progress_bar("selfplay") as progress:
        for i, (network, expert) in enumerate(jobs):
            progress(i, len(jobs), f"{network}, {expert}")
            if not runs.has(record, network=network, expert=expert):
                runs.add(record, measure(network, expert, args))
    title = f"{args.games} games, {args.simulations} simulations a move"
    report.print_table(title, *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each expert."""
    columns = ["network", "expert", "positions a second", "evaluations a position",
               "in the network"]  # fmt: skip
    return columns, [
        [row["network"], row["expert"], row["positions_per_second"],
         row["evaluations_per_position"], "{1:.0%} ({0:.0%}–{2:.0%})".format(*row["network_share"])]
        for row in rows
    ]  # fmt: skip


def measure(name: str, expert_name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Times self-play of one expert with one network.

    Returns:
      A dict ready for JSON.
    """
    network = load_network(name)
    _, about = bare_network(network, args.games * args.simulations, 0)
    network = in_pieces(network, about["max_batch"])
    expert = EXPERTS[expert_name](args.simulations)

    def play(params: Any, rng_key: Any, games: Any) -> Any:
        return selfplay.play(
            network.env, network.apply_fn, expert, params, rng_key, games, args.steps
        )

    games = selfplay.init_games(network.env, jax.random.key(0), args.games, max_random_moves=8)
    arguments = (network.params, jax.random.key(1), games)
    compiled = jax.jit(play).lower(*arguments).compile()
    evaluations = int(jnp.sum(compiled(*arguments)[2].num_evaluations))
    bare, about = bare_network(network, evaluations, 0)
    calls = (lambda: compiled(*arguments), bare)
    seconds = np.array([[time_call(call) for call in calls] for _ in range(args.turns + 1)])[1:]
    positions = args.games * args.steps
    share = np.quantile(seconds[:, 1] / seconds[:, 0], (0.25, 0.5, 0.75))
    return {
        "network": name,
        "expert": expert_name,
        "positions_per_second": round(positions / float(np.median(seconds[:, 0])), 1),
        "evaluations_per_position": round(evaluations / positions, 1),
        "network_share": np.round(share, 3).tolist(),
        "max_batch": about["max_batch"],
    }


if __name__ == "__main__":
    main()
