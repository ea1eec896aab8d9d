"""How good are the networks that come with the library?

    python tests/quality networks                    # all of them
    python tests/quality networks hex-5x5 --cards    # and write the figures into its card

Each network plays alone ("raw") and with a PGS of 128 simulations. The opponents are uniform random
play, OpenSpiel's MCTS with 1,000 and 10,000 random rollouts, and the raw networks that came before
it on its board. Every first move is played with both colours (from 11x11 on, every second one). On
5x5 a perfect player is one more opponent, and an exact solver checks the sign of the value. Every
match is saved when it is over; the same command, started again, continues.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpgs
import quality
from benchmarks import report, runs
from benchmarks.players import Spec, make_player
from benchmarks.ratings import elo_text
from benchmarks.report import ROOT
from jaxpgs import evaluation
from jaxpgs.pretrained.files import write_atomically

SIMULATIONS = 128
GAMES = 200
SIGNS = {"player": "sign of the value", "opponent": "exact solver"}
# Earlier networks of the same board, by network.
PREDECESSORS = {
    "hex-5x5": ["hex-5x5-early"],
    "hex-7x7-middle": ["hex-7x7-early"],
    "hex-7x7": ["hex-7x7-early", "hex-7x7-middle"],
    "hex-9x9-large": ["hex-9x9"],
}


def main(argv: list[str] | None = None) -> None:
    """Measures networks; see the module's text."""
    parser = quality.parser("networks", __doc__)
    parser.add_argument("names", nargs="*", default=[], help="networks, all by default")
    parser.add_argument("--raw", action="store_true", help="only without a search, which is faster")
    parser.add_argument("--cards", action="store_true", help="write the figures into the cards")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"seed": args.seed}, ("network", "player", "opponent"))
    ours = [n for n in jaxpgs.available_pretrained() if n.startswith(("hex", "conv"))]
    for name in args.names or ours:
        measure(record, name, args.seed, raw=args.raw)
        rows = [row for row in runs.read(record) if row["network"] == name]
        report.print_table(name, *table(rows))
        if args.cards:
            _write_card(name, rows)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each pairing, and for each check of the values' signs."""
    columns = ["network", "player", "opponent", "won", "Elo"]
    lines = []
    for row in sorted(rows, key=lambda row: row["network"]):
        elo = elo_text(row["elo"], row["half_width"]) if "elo" in row else None
        won = f"{row['won']:g} of {row['games']:g}"
        lines.append([row["network"], row["player"], row["opponent"], won, elo])
    return columns, lines


def measure(record: runs.Record, name: str, seed: int, *, raw: bool = False) -> None:
    """Plays the matches of a network that the file does not have.

    Args:
      record: the file, to which each match is added when it is over.
      name: a pretrained network.
      seed: seed of the games and positions.
      raw: whether to leave out the matches with a search.
    """
    network = jaxpgs.load_pretrained(name)
    env, rng_key = network.env, jax.random.key(seed)
    openings = np.arange(0, env.num_cells, -(-2 * env.num_cells // GAMES))
    mine = [
        make_player(Spec("raw network", "network"), network, SIMULATIONS),
        make_player(Spec(f"PGS {SIMULATIONS}", "pgs"), network, SIMULATIONS),
    ]
    mine = mine[:1] if raw else mine
    repeats = max(1, round(GAMES / (2 * len(openings))))
    others: list[tuple[Any, int]] = [
        (evaluation.uniform_random(env), repeats),
        (evaluation.openspiel_mcts(env, num_simulations=1000), repeats),
        (evaluation.openspiel_mcts(env, num_simulations=10_000), 1),
    ]
    if env.size <= 5:
        others.append((evaluation.perfect_hex(env), 1))
    for before in PREDECESSORS.get(name, ()):
        spec = Spec(before, "network")
        others.append((make_player(spec, jaxpgs.load_pretrained(before), SIMULATIONS), 1))
    for (opponent, count), player in itertools.product(others, mine):
        about = {"network": name, "player": player.name, "opponent": opponent.name}
        if runs.has(record, **about):
            continue
        with report.progress_bar(f"{name}, {player.name} against {opponent.name}") as progress:
            result = evaluation.play_match(
                env, player, opponent, rng_key, openings=openings, repeats=count,
                progress=progress,
            )  # fmt: skip
        elo = evaluation.elo_by_opening(result.outcomes)
        figures = {"elo": round(elo.elo, 1), "half_width": round(elo.half_width, 1)}
        runs.add(record, about | {"won": result.wins, "games": result.games} | figures)
    if env.size <= 5 and not runs.has(record, **(SIGNS | {"network": name})):
        runs.add(record, SIGNS | {"network": name} | _value_signs(network, seed))


def _value_signs(network: Any, seed: int, num_positions: int = 500) -> dict[str, int]:
    """Compares the value's sign with the solver on unfinished positions of random play."""
    env = network.env
    rng = np.random.default_rng(seed)
    states: list[Any] = []
    values: list[int] = []
    step = jax.jit(env.step)
    while len(states) < num_positions:
        state = env.init()
        length = rng.integers(env.num_cells // 3, env.num_cells)
        for _ in range(length):
            if state.terminated:
                break
            state = step(state, rng.choice(np.flatnonzero(state.legal_action_mask)))
        if not state.terminated:
            states.append(state)
            values.append(evaluation.solve_hex(env, state, all_moves=False).value)
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    _, value = network.apply_fn(network.params, jax.vmap(env.observe)(batch))
    agree = np.sign(np.asarray(value)) == np.asarray(values)
    return {"won": int(agree.sum()), "games": num_positions}


def _write_card(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    path = ROOT / "jaxpgs" / "pretrained" / "weights" / f"{name}.json"
    card = json.loads(path.read_text())
    strength: dict[str, Any] = {
        f"{r['player']} against {r['opponent']}": (
            f"{r['won']:g} of {r['games']} ({r['elo']:+.0f} ± {r['half_width']:.0f} Elo)"
        )
        for r in rows
        if "elo" in r
    }
    for row in rows:
        if row["player"] == SIGNS["player"]:
            strength["value_sign_agreement"] = round(row["won"] / row["games"], 3)
    card["strength"] = strength | {"command": f"python tests/quality networks {name}"}
    write_atomically(path, (json.dumps(card, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
