"""How good are the networks that come with the library?

    python tests/quality networks                    # all of them
    python tests/quality networks hex-5x5 --cards    # and write the figures into its card

Each network plays, raw and with a search of 128 simulations, against uniform random play and
OpenSpiel's MCTS with 1,000 and 10,000 random rollouts, every first move with both colours (from
11x11 on every second one), and
against the raw networks that came before it on its board. On 5x5 a perfect player
is one more opponent and an exact solver checks the sign of the value.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpgs
import quality
from benchmarks import report, runs
from benchmarks.players import TUNED, Spec, make_player
from benchmarks.ratings import elo_text
from benchmarks.report import ROOT
from jaxpgs import evaluation
from jaxpgs.pretrained.files import write_atomically

SIMULATIONS = 128
GAMES = 200
# Which networks of the same board were there before.
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
    parser.add_argument("--cards", action="store_true", help="write the figures into the cards")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"seed": args.seed}, ("network",))
    ours = [n for n in jaxpgs.available_pretrained() if n.startswith(("hex", "conv"))]
    for name in args.names or ours:
        if not runs.has(record, network=name):
            runs.add(record, {"network": name} | measure(name, args.seed))
        (figures,) = (row for row in runs.read(record) if row["network"] == name)
        report.print_table(name, *table([figures]))
        if args.cards:
            _write_card(name, figures)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each pairing, and for each value that was checked."""
    columns = ["network", "player", "opponent", "won", "Elo"]
    lines: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: row["network"]):
        lines += [
            [row["network"], m["player"], m["opponent"], f"{m['won']:g} of {m['games']:g}",
             elo_text(m["elo"], m["half_width"])]
            for m in row["matches"]
        ]  # fmt: skip
        if "value_sign_agreement" in row:
            right = f"{row['value_sign_agreement']:.1%} of {row['value_sign_positions']}"
            lines.append([row["network"], "sign of the value", "exact solver", right, None])
    return columns, lines


def measure(name: str, seed: int) -> dict[str, Any]:
    """Plays one network's matches.

    Args:
      name: a pretrained network.
      seed: seed of the games and positions.

    Returns:
      A dict ready for JSON.
    """
    network = jaxpgs.load_pretrained(name)
    env, rng_key = network.env, jax.random.key(seed)
    openings = np.arange(0, env.num_cells, -(-2 * env.num_cells // GAMES))
    mine = [
        make_player(Spec("raw network", "network"), network, SIMULATIONS),
        make_player(Spec(f"PGS {SIMULATIONS}", "pgs", TUNED["pgs"]), network, SIMULATIONS),
    ]
    repeats = max(1, round(GAMES / (2 * len(openings))))
    others: list[tuple[Any, int, Sequence[Any]]] = [
        (evaluation.uniform_random(env), repeats, mine),
        (evaluation.openspiel_mcts(env, num_simulations=1000), repeats, mine),
        (evaluation.openspiel_mcts(env, num_simulations=10_000), 1, mine),
    ]
    if env.size <= 5:
        others.append((evaluation.perfect_hex(env), 1, mine))
    for before in PREDECESSORS.get(name, ()):
        player = make_player(Spec(before, "network"), jaxpgs.load_pretrained(before), SIMULATIONS)
        others.append((player, 1, mine))
    matches = []
    with report.progress_bar(name) as progress:
        for opponent, count, players in others:
            for player in players:
                result = evaluation.play_match(
                    env, player, opponent, rng_key, openings=openings, repeats=count,
                    progress=progress,
                )  # fmt: skip
                elo = evaluation.elo_by_opening(result.outcomes)
                matches.append(
                    {
                        "player": player.name,
                        "opponent": opponent.name,
                        "won": result.wins,
                        "games": result.games,
                        "elo": round(elo.elo, 1),
                        "half_width": round(elo.half_width, 1),
                    }
                )
    figures: dict[str, Any] = {"games": 2 * len(openings) * repeats, "matches": matches}
    if env.size <= 5:
        figures |= _value_signs(network, seed)
    return figures


def _value_signs(network: Any, seed: int, num_positions: int = 500) -> dict[str, Any]:
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
    return {"value_sign_agreement": float(agree.mean()), "value_sign_positions": num_positions}


def _write_card(name: str, figures: dict[str, Any]) -> None:
    path = ROOT / "jaxpgs" / "pretrained" / "weights" / f"{name}.json"
    card = json.loads(path.read_text())
    strength: dict[str, Any] = {
        f"{r['player']} against {r['opponent']}": (
            f"{r['won']:g} of {r['games']} ({r['elo']:+.0f} ± {r['half_width']:.0f} Elo)"
        )
        for r in figures["matches"]
    }
    if "value_sign_agreement" in figures:
        strength["value_sign_agreement"] = round(figures["value_sign_agreement"], 3)
    card["strength"] = strength | {"command": f"python tests/quality networks {name}"}
    write_atomically(path, (json.dumps(card, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
