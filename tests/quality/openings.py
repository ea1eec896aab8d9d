"""Does a network know which first moves win in Hex, and does a search win the won games?

    python tests/quality openings                                    # values: minutes
    python tests/quality openings --network hex-7x7 --hold mohex     # games: see --help

The network alone, and searches with it, evaluate every position after one move. The signs of the
values are compared with the exact tables of boards up to 7x7 (`evaluation.hex_openings`); larger
boards have no table. With `--hold`, PGS or another `--player` plays, after each first move, the
side that wins by the table. The opponent is a program that speaks GTP, OpenSpiel's MCTS (`openspiel
ROLLOUTS`) or a search (a line as in `strength --sweep`). Without a table, the values of PGS say
which side wins, or the network's own values if it plays alone. `--sgf FOLDER` keeps the games, in
the folders `opens` and `answers` for those that the player opens and does not open.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import quality
from benchmarks import pictures, report, runs
from benchmarks.players import Spec, load_network, make_player, read_specs
from jaxpgs import evaluation
from jaxpgs.envs.hex_games import cell_name
from quality.looks import SEARCHES, look

# First words of opponents that are players of the tournaments.
_PLAYERS = ("pgs", "gumbel-pgs", "gumbel-mcts", "mcts", "mcs", "gumbel", "muzero", "network")
_HOLDERS = ("network", "PGS", "Gumbel PGS", "Gumbel MCTS")
_KEY = ("network", "player", "simulations", "opponent")


def winners(size: int) -> np.ndarray | None:
    """Returns `[size, size]` bool, which first moves win, or None where that is not known."""
    try:
        return evaluation.hex_openings(size)
    except ValueError:
        return None


def values(network: Any, search: str | None, num_simulations: int, seed: int) -> np.ndarray:
    """Returns `[size, size]` values of first moves for the player who made them, in [-1, 1]."""
    env, cells = network.env, jnp.arange(network.env.num_actions)
    start = jax.vmap(env.init)(jax.random.split(jax.random.key(seed), len(cells)))
    states = jax.vmap(env.step)(start, cells)
    found, _ = look(network, search, num_simulations, states, seed)
    return -found.reshape(env.size, env.size)


def judge(found: np.ndarray) -> dict[str, Any]:
    """Compares the signs of values with the table; `right` is None without a table."""
    size, known = len(found), winners(len(found))
    row: dict[str, Any] = {"values": found.round(3).tolist(), "of": size * size}
    if known is None:
        return row | {"right": None, "wrong": []}
    wrong = np.flatnonzero((found > 0) != known)
    names = [f"{cell_name(size, int(cell))} {found.flat[cell]:+.2f}" for cell in wrong]
    return row | {"right": size * size - len(wrong), "wrong": names}


def hold(
    network: Any,
    player: str,
    num_simulations: int,
    opponent: str,
    seed: int,
    *,
    setup: Sequence[str] = (),
    sgf: pathlib.Path | None = None,
    progress: Any = None,
) -> dict[str, Any]:
    """Plays the side that wins after each first move; counts the games that it won.

    Args:
      network: has `env`, `apply_fn` and `params`.
      player: one of `_HOLDERS`.
      num_simulations: N of a search.
      opponent: a line as described in the module's text for `--hold`.
      seed: the seed of the games.
      setup: GTP commands that are sent first to an opponent that speaks GTP.
      sgf: the folder where the games are written.
      progress: as in `play_match`.

    Returns:
      `held`, the games won, `of` all games; `wins`, how many first moves win; `lost`, the first
      moves whose games were lost; and how often the opponent failed, by kind, if it did.
    """
    kind = player.lower().replace(" ", "-")
    ours = make_player(Spec("ours", kind), network, num_simulations)
    name, *rest = opponent.split()
    if name == "openspiel":
        rollouts = int(rest[0]) if rest else 1000
        theirs = evaluation.openspiel_mcts(network.env, num_simulations=rollouts)
    elif name in _PLAYERS:
        theirs = make_player(read_specs(opponent)[0], network, num_simulations)
    else:
        # The program's own limits say how long it thinks.
        theirs = evaluation.gtp_player(network.env, opponent, setup=setup, seconds=3600.0)
    wins = winners(network.env.size)
    if wins is None:
        judge_of_wins = None if player == "network" else "PGS"
        wins = values(network, judge_of_wins, num_simulations, seed) > 0
    return held(network.env, ours, theirs, wins, jax.random.key(seed), sgf, progress)


def held(
    env: Any,
    ours: evaluation.Player,
    theirs: evaluation.Player,
    wins: np.ndarray,
    key: Any,
    sgf: pathlib.Path | None = None,
    progress: Any = None,
) -> dict[str, Any]:
    """Plays every first move; `ours` has the side that wins by `wins`, `[size, size]`."""
    lost: list[int] = []
    failed = collections.Counter[str]()
    for opens in (True, False):
        openings = np.flatnonzero(wins.ravel() == opens)
        if not len(openings):
            continue
        # Both matches number their games from 1, so each has its own folder.
        folder = None if sgf is None else sgf / ("opens" if opens else "answers")
        match = evaluation.play_match(
            env, ours, give_up(theirs, opener=opens), key, openings=openings, sgf_folder=folder,
            progress=progress,
        )  # fmt: skip
        outcomes = match.outcomes[0 if opens else 1, 0]  # where `ours` opened, or `theirs`
        lost += openings[outcomes < 0.5].tolist()
        stats = match.players[1].stats
        failed.update({name: int(stats[name]) for name in report.FAILURES if stats.get(name)})
    names = [cell_name(env.size, cell) for cell in sorted(lost)]
    figures = {"held": wins.size - len(lost), "of": wins.size, "wins": int(wins.sum())}
    return figures | {"lost": names} | dict(failed)


def give_up(player: evaluation.Player, *, opener: bool) -> evaluation.Player:
    """Returns a player of Hex that resigns at once if it opened the game, or if it did not."""

    def act(rng_key: Any, state: Any, memory: Any) -> tuple[Any, Any, dict[str, Any]]:
        # Whoever opened is to move where the number of stones is even.
        opened = (state.labels != 0).sum(axis=-1) % 2 == 0
        resigned = ~state.terminated & (opened == opener)
        playing = dataclasses.replace(state, terminated=state.terminated | resigned)
        action, memory, stats = player.act(rng_key, playing, memory)
        return (np if player.host else jnp).where(resigned, -1, action), memory, stats

    return dataclasses.replace(player, act=act)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns columns and a line for each row."""
    lines = []
    for row in rows:
        if "values" in row:
            wrong, right = "wrong", row["right"]
            good = "–" if right is None else f"{right} of {row['of']}"
        else:
            wrong, good = "lost", report.held_text(row)
        against = row["opponent"] or "the table"
        lines.append([row["network"], row["player"], row["simulations"] or None, against, good,
                      ", ".join(row[wrong])])  # fmt: skip
    return ["network", "player", "simulations", "against", "right or held", "the others"], lines


def plot(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws the networks' own values as boards; a cross marks a wrong sign."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import RegularPolygon

    raw = [row for row in rows if row["player"] == "network" and "values" in row]
    raw.sort(key=lambda row: (row["of"], row["network"]))
    columns = min(len(raw), 4)
    lines = -(-len(raw) // columns)
    inches = (4 * columns, 3 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=inches, squeeze=False, dpi=70)
    shades = plt.get_cmap("RdBu")
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, row in zip(axes.flat, raw, strict=False):
        found = np.array(row["values"])
        known = winners(len(found))
        for y, x in np.ndindex(found.shape):
            at = (x + y / 2, -y * 3**0.5 / 2)
            color = shades((found[y, x] + 1) / 2)
            axis.add_patch(
                RegularPolygon(at, 6, radius=3**-0.5, facecolor=color, edgecolor="white")
            )
            if known is not None and (found[y, x] > 0) != known[y, x]:
                axis.text(*at, "×", ha="center", va="center", fontsize=12)
        right = "" if row["right"] is None else f": {row['right']} of {row['of']}"
        axis.set(aspect="equal", title=row["network"] + right)
        axis.autoscale_view()
    scale = plt.cm.ScalarMappable(plt.Normalize(-1, 1), shades)
    figure.colorbar(scale, ax=axes, label="value for the first mover")
    pictures.save(path, figure)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Judges networks by the tables; see the module's text."""
    parser = quality.parser("openings", __doc__)
    add = parser.add_argument
    judged = [f"hex-{name}" for name in ("5x5", "6x6", "7x7", "8x8", "9x9", "9x9-large", "11x11")]
    add("--network", nargs="+", default=judged)
    add("--simulations", type=runs.positive, default=512, help="of the searches")
    add("--hold", metavar="OPPONENT", help="plays games in place of looking at values")
    add("--sgf", type=pathlib.Path, metavar="FOLDER", help="writes every game there")
    add("--setup", nargs="+", default=[], metavar="COMMAND", help="GTP commands that it gets first")
    add("--player", default="PGS", choices=_HOLDERS, help="who holds")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"seed": args.seed}, _KEY)
    for name in args.network:
        network = load_network(name)
        players = ["network", *SEARCHES]
        if args.hold:
            players = [args.player]
        against = "; ".join([args.hold, *args.setup]) if args.hold else None
        for player in players:
            count = 0 if player == "network" else args.simulations
            row = {"network": name, "player": player, "simulations": count, "opponent": against}
            if runs.has(record, **row):
                continue
            if args.hold:
                with report.progress_bar(f"{name}, {player} against {against}") as progress:
                    found = hold(
                        network, player, count, args.hold, args.seed, setup=args.setup,
                        sgf=args.sgf, progress=progress,
                    )  # fmt: skip
            else:
                search = None if player == "network" else player
                found = judge(values(network, search, count, args.seed))
            rows = runs.add(record, row | found)
            report.print_table("Openings", *table(rows[-1:]))
    rows = runs.read(record)
    report.print_table("Openings", *table(rows))
    if any(row["player"] == "network" and "values" in row for row in rows):
        plot(record.path.with_suffix(".png"), rows)
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
