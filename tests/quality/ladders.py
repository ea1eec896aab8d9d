"""Does a network read ladders along the second row of Hex, and do searches with it?

    python tests/quality ladders                      # seven networks: minutes
    python tests/quality ladders --network hex-9x9    # one of them
    python tests/quality ladders --make               # only makes the positions again

The positions are those of `ladders.json`, on boards of 5x5 to 11x11; `quality.ladder_positions`
says how they are made and proved. They come in pairs that differ in the place of one stone, which
is a ladder escape in the first position only. Both have the same player to move: in half of the
pairs the attacker, in the others the defender, just after the ladder's next move. The boards hold
many further stones, so that the exact solver can prove them; they are unlike those of most games.

The figures are: how many values have the right sign, separately for positions that the player to
move wins and loses; the mean distance of the value from the truth; in how many pairs the values are
in the right order; and, in won positions, the share of the policy on moves that keep the win.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import quality
from benchmarks import report, runs
from benchmarks.players import load_network
from quality import ladder_positions
from quality.looks import SEARCHES, look

NETWORKS = ("hex-5x5", "hex-6x6", "hex-7x7", "conv-7x7", "hex-9x9", "hex-9x9-large", "hex-11x11")


def states_of(env: Any, ladders: Sequence[ladder_positions.Ladder]) -> Any:
    """Returns the positions as a batch of states."""
    states = [env.from_board(ladder.board, ladder.player) for ladder in ladders]
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


def judge(
    ladders: Sequence[ladder_positions.Ladder], values: np.ndarray, policies: np.ndarray
) -> dict[str, Any]:
    """Compares values `[B]` and policies `[B, A]` with the truth of B/2 pairs of positions."""
    truth = np.array([ladder.value for ladder in ladders])
    row: dict[str, Any] = {"values": values.round(3).tolist()}
    for name, which in (("won", truth > 0), ("lost", truth < 0)):
        row[name] = {
            "right": int((values * truth > 0)[which].sum()),
            "of": int(which.sum()),
            "error": round(float(np.abs(values - truth)[which].mean()), 3),
        }
    ordered = (values * truth).reshape(-1, 2).sum(1) > 0
    keeping = [p[x.keeping].sum() for p, x in zip(policies, ladders, strict=True) if x.value > 0]
    return row | {
        "ordered": int(ordered.sum()),
        "pairs": len(ordered),
        "keeping": round(float(np.mean(keeping)), 3),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns columns and a line for each row."""
    columns = ["network", "player", "simulations", "won: right sign", "error", "lost: right sign",
               "error", "pairs in order", "policy that keeps the win"]  # fmt: skip
    lines = []
    for row in rows:
        line = [row["network"], row["player"], row["simulations"] or None]
        for name in ("won", "lost"):
            line += ["{right} of {of}".format(**row[name]), row[name]["error"]]
        lines.append([*line, f"{row['ordered']} of {row['pairs']}", f"{row['keeping']:.0%}"])
    return columns, lines


def main(argv: list[str] | None = None) -> None:
    """Judges networks by ladders; see the module's text."""
    parser = quality.parser("ladders", __doc__)
    add = parser.add_argument
    add("--network", nargs="+", default=list(NETWORKS))
    add("--simulations", type=runs.positive, default=128, help="of the searches")
    add("--make", action="store_true", help="makes the positions with --seed, and stops")
    args = parser.parse_args(argv)
    if args.make:
        ladder_positions.write(runs.command_line(parser, args), args.seed)
        return
    positions = runs.digest(ladder_positions.FILE.read_text())
    setting = {"seed": args.seed, "positions": positions}
    record = runs.open_record(parser, args, setting, ("network", "player", "simulations"))
    for name in args.network:
        network = load_network(name)
        ladders = ladder_positions.read(network.env.size)
        for player in ("network", *SEARCHES):
            count = 0 if player == "network" else args.simulations
            row = {"network": name, "player": player, "simulations": count}
            if runs.has(record, **row):
                continue
            search = None if player == "network" else player
            found = look(network, search, count, states_of(network.env, ladders), args.seed)
            runs.add(record, row | judge(ladders, *found))
    report.print_table("Ladders", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
