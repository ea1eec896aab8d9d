"""What do networks know of a larger board that they have never seen?

    python -m benchmarks.grown                       # to 9x9 Hex, some minutes
    python -m benchmarks.grown --sizes 9 11          # further: OpenSpiel takes most of an hour

`networks.resize` carries weights over to another board. Networks that are carried over to one board
in this way, none of which has learned there, play random play, OpenSpiel's MCTS and one another, by
their likeliest moves, every first move with both colours.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx

import jaxpgs
from benchmarks import report, runs
from benchmarks.ratings import elo_text
from jaxpgs import evaluation
from jaxpgs.envs import Hex

NETWORKS = ("hex-5x5", "hex-7x7", "conv-7x7", "hex-9x9")


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = runs.parser("grown", __doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--sizes", nargs="+", type=runs.positive, default=[9])
    parser.add_argument("--simulations", type=int, default=1000, help="of OpenSpiel's MCTS, or 0")
    args = parser.parse_args(argv)
    setting = {"simulations": args.simulations}
    record = runs.open_record(parser, args, setting, ("size", "player", "opponent"))
    loaded = {name: jaxpgs.load_pretrained(name) for name in args.networks}
    for size in args.sizes:
        env = Hex(size)
        smaller = {n: net for n, net in loaded.items() if net.env.size < size}
        ours = {n: _compiled(env, grow(n, net, env)) for n, net in smaller.items()}
        others = [evaluation.uniform_random(env)]
        if args.simulations:
            others.append(evaluation.openspiel_mcts(env, num_simulations=args.simulations))
        pairs: list[tuple[str, str, Any, Any]] = [
            (n, o.name, ours[n], o) for o in others for n in ours
        ]
        pairs += [(n, m, ours[n], ours[m]) for n, m in itertools.combinations(ours, 2)]
        for name, opponent, one, other in pairs:
            if runs.has(record, size=size, player=name, opponent=opponent):
                continue
            match = evaluation.play_match(env, one, other, jax.random.key(args.seed))
            elo = evaluation.elo_by_opening(match.outcomes)
            row = {
                "size": size,
                "player": name,
                "learned_on": loaded[name].env.size,
                "opponent": opponent,
                "won": match.wins,
                "games": match.games,
                "elo": round(elo.elo, 1),
                "half_width": round(elo.half_width, 1),
            }
            runs.add(record, row)
    report.print_table("Carried over from smaller boards", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def grow(name: str, small: Any, env: Hex) -> evaluation.Player:
    """Returns the raw network of a smaller board as a player on a larger one.

    Args:
      name: of the player.
      small: what `load_pretrained` returns.
      env: the larger board.
    """
    sizes = small.card["architecture"]["kwargs"]
    shapes = env.observation_shape, env.num_actions
    large = type(small.module)(*shapes, **sizes, rngs=nnx.Rngs(0))
    params = jaxpgs.networks.resize(small.params, small.module, large)
    _, apply_fn = jaxpgs.networks.functional(large)
    return evaluation.raw_network(env, apply_fn, params, name=name)


def _compiled(env: Hex, player: evaluation.Player) -> evaluation.CompiledPlayer:
    return evaluation.compile_player(env, player, env.num_actions)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each match."""
    columns = ["board", "network", "learned on", "opponent", "won", "Elo"]
    return columns, [
        [_board(r["size"]), r["player"], _board(r["learned_on"]), r["opponent"],
         f"{r['won']:g} of {r['games']}", elo_text(r["elo"], r["half_width"])]
        for r in sorted(rows, key=lambda r: r["size"])
    ]  # fmt: skip


def _board(size: int) -> str:
    return f"{size}x{size}"


if __name__ == "__main__":
    main()
