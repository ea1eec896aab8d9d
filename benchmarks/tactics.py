"""Does a search find what there is to find? Wins in one, and won positions that must stay won.

    python -m benchmarks.tactics --preset connect-four    # pgx's game, an untrained network
    python -m benchmarks.tactics --preset hex-5x5         # 5x5 Hex, positions solved exactly
    python -m benchmarks.tactics --preset hex-7x7         # 7x7, likewise, later in the game
    python -m benchmarks.tactics --preset hex-7x7 --searches "pgs c_puct=0.5,5"    # other knobs

Positions come from random play. In connect four the player to move can win at once, and the share
that does so is counted; in Hex the player to move wins with perfect play, some moves throw the win
away, and the share that keeps it is counted. Every search plays as it comes, with the noise at the
root off.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxpgs
from benchmarks import report, runs
from benchmarks.players import DEFAULTS, load_network, make_player, read_specs
from jaxpgs.evaluation import solve_hex


class Preset(NamedTuple):
    """Positions of one kind: how many, after how many random moves, and the budgets."""

    positions: int
    plies: tuple[int, int]
    simulations: tuple[int, ...]


PRESETS = {
    "connect-four": Preset(256, (7, 30), (16, 32, 64)),
    "hex-5x5": Preset(276, (4, 14), (32, 128)),
    "hex-7x7": Preset(327, (22, 32), (128, 800)),
}


def main(argv: list[str] | None = None) -> None:
    """Asks every search about every position; see the module's text."""
    parser = runs.parser("tactics", __doc__, PRESETS)
    parser.add_argument("--positions", type=runs.positive, help="in place of the preset's")
    parser.add_argument("--simulations", type=runs.positive, nargs="+", help="likewise")
    parser.add_argument("--searches", nargs="+", metavar="SPEC", help="in place of the defaults")
    args = parser.parse_args(argv)
    preset = runs.override(PRESETS[args.preset], args)
    setting = {"game": args.preset, "positions": preset.positions, "seed": args.seed}
    record = runs.open_record(parser, args, setting, ("search", "simulations"))
    network = untrained() if args.preset == "connect-four" else load_network(args.preset)
    states, right = find_positions(network.env, preset, args.seed)
    try:
        specs = [spec for text in args.searches or () for spec in read_specs(text)] or DEFAULTS
    except ValueError as error:
        parser.error(str(error))
    jobs = [(spec, count) for count in preset.simulations for spec in specs]
    jobs = [(s, n) for s, n in jobs if s.search != "network" or n == preset.simulations[0]]
    with report.progress_bar("tactics") as progress:
        for i, (spec, count) in enumerate(jobs):
            progress(i, len(jobs), f"{spec.name}, {count}")
            if runs.has(record, search=spec.name, simulations=count):
                continue
            player = make_player(spec, network, count)
            action = jax.jit(player.act)(jax.random.key(args.seed + 1), states, ())[0]
            found = right[np.arange(len(right)), np.asarray(action)]
            row = {"search": spec.name, "simulations": count, "right": int(found.sum())}
            runs.add(record, row | {"positions": len(right)})
    report.print_table(f"{args.preset}: right moves", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search, with a column for each budget."""
    counts = sorted({row["simulations"] for row in rows})
    share = {(r["search"], r["simulations"]): 100 * r["right"] / r["positions"] for r in rows}
    names = list(dict.fromkeys(row["search"] for row in rows))
    columns = ["search", *(f"% right, {count} simulations" for count in counts)]
    shown = {key: round(value, 1) for key, value in share.items()}
    return columns, [[name, *(shown.get((name, count)) for count in counts)] for name in names]


def untrained() -> Any:
    """Returns connect four of pgx with a network of random weights."""
    import pgx

    env = pgx.make("connect_four")
    state = env.init(jax.random.key(0))
    module = jaxpgs.networks.FullyConnectedResNet(
        state.observation.shape, env.num_actions, width=64, num_blocks=1, rngs=nnx.Rngs(0)
    )
    params, apply_fn = jaxpgs.networks.functional(module)
    return SimpleNamespace(env=env, params=params, apply_fn=apply_fn)


def find_positions(env: Any, preset: Preset, seed: int) -> tuple[Any, np.ndarray]:
    """Plays at random until there are enough positions.

    Returns:
      The positions `[P]`, and which actions are right there, `[P, A]` bool.
    """
    rng = np.random.default_rng(seed)
    step = jax.jit(env.step)
    start = jax.jit(env.init)
    found: list[Any] = []
    right: list[Any] = []
    while len(found) < preset.positions:
        state = start(jax.random.key(int(rng.integers(2**31))))
        for _ in range(int(rng.integers(*preset.plies))):
            if not state.terminated:
                state = step(state, jnp.int32(rng.choice(np.flatnonzero(state.legal_action_mask))))
        if state.terminated:
            continue
        good = right_moves(env, state, step)
        legal = np.asarray(state.legal_action_mask)
        if good.any() and not good[legal].all():
            found.append(state)
            right.append(good)
    return jax.tree.map(lambda *x: jnp.stack(x), *found), np.stack(right)


def right_moves(env: Any, state: Any, step: Any) -> np.ndarray:
    """Returns the moves that win at once, in Hex those that keep the win; `[A]` bool."""
    if isinstance(env, jaxpgs.envs.Hex):
        return solve_hex(env, state).winning_moves
    good = np.zeros(env.num_actions, bool)
    for action in np.flatnonzero(state.legal_action_mask):
        after = step(state, jnp.int32(action))
        good[action] = after.terminated and after.rewards[state.current_player] > 0
    return good


if __name__ == "__main__":
    main()
