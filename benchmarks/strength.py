"""How strong is each search with the same network? A tournament in Hex, rated in Elo.

    python -m benchmarks.strength --preset quick     # 5x5, a few minutes on two cores
    python -m benchmarks.strength --preset full      # 7x7, 800 simulations: hours on two cores
    python -m benchmarks.strength --preset duel      # 7x7, 256 simulations: PGS against MCS
    python -m benchmarks.strength --preset equal     # 7x7, 256 simulations, ours and mctx's
    python -m benchmarks.strength --preset time      # 7x7, the same time for every search
    python -m benchmarks.strength --preset scaling   # 7x7, 200 to 1,600 simulations
    python -m benchmarks.strength --preset keep      # 7x7: a head that goes on from move to move
    python -m benchmarks.strength --preset sweep-mcs        # how the knobs were set; also
                                                     # sweep-pgs, sweep-step, ...

Every pair plays every legal first move with both colours, all games of a pairing in one batch and
each search compiled once. Results go to a JSON file after every pairing and a picture in the end;
started again with the same file, the command goes on where it stopped.
"""

import argparse
import itertools
import json
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxpgs
from benchmarks import report
from benchmarks.players import Spec, make_player
from benchmarks.report import RESULTS
from benchmarks.tournaments import PRESETS, Preset
from jaxpgs import evaluation


def calibrate(
    spec: Spec, network: jaxpgs.pretrained.Pretrained, num_games: int, milliseconds: float
) -> Spec:
    """Finds how many simulations take a given time a move, for as many games at once.

    Args:
      spec: a search.
      network: the network.
      num_games: the batch it will play in.
      milliseconds: the time of a move, of one game of the batch.

    Returns:
      The spec with `num_simulations`, a multiple of 16: the power law through two timings.
    """
    states = jax.vmap(lambda _: network.env.init())(jnp.arange(num_games))
    counts: list[int] = [64]
    times: list[float] = []
    while len(times) < 3:
        player = make_player(spec, network, counts[-1])
        act = jax.jit(player.act).lower(jax.random.key(0), states, ()).compile()
        seconds = []
        for i in range(5):
            start = time.perf_counter()
            jax.block_until_ready(act(jax.random.key(i), states, ()))
            seconds.append(time.perf_counter() - start)
        times.append(1e3 * min(seconds) / num_games)
        power = 1.0
        if len(times) > 1 and counts[-1] != counts[-2]:
            power = math.log(times[-1] / times[-2]) / math.log(counts[-1] / counts[-2])
        wanted = counts[-1] * (milliseconds / times[-1]) ** (1 / max(power, 0.5))
        counts.append(max(16 * round(wanted / 16), 16))
    return spec._replace(knobs={**spec.knobs, "num_simulations": counts[-1]})


def main(argv: list[str] | None = None) -> None:
    """Plays a preset's tournament; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strength",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON file to write or go on with")
    parser.add_argument("--network", help="a pretrained network, in place of the preset's")
    parser.add_argument("--simulations", type=int, help="in place of the preset's")
    parser.add_argument("--repeats", type=int, help="games per first move and colour")
    parser.add_argument("--players", nargs="+", help="only these of the preset's players")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--show", action="store_true", help="play nothing, rate what the file holds so far"
    )
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    preset = preset._replace(
        network=args.network or preset.network,
        num_simulations=args.simulations or preset.num_simulations,
        repeats=args.repeats or preset.repeats,
        players=_choose(preset.players, args.players),
    )
    out = args.out or RESULTS / f"strength_{args.preset}.json"
    network = jaxpgs.load_pretrained(preset.network)
    setting = {
        "network": preset.network,
        "weights_sha256": network.card["sha256"],
        "num_simulations": preset.num_simulations,
        "repeats": preset.repeats,
        "seed": args.seed,
    }
    if preset.milliseconds is not None:
        setting["milliseconds"] = preset.milliseconds
        preset = preset._replace(players=_calibrated(out, preset, network))
    changed = "".join(
        f" --{name} {value}"
        for name in ("network", "simulations", "repeats", "seed")
        if (value := getattr(args, name)) != parser.get_default(name)
    )
    saved = _load(out, setting, preset.players)
    earlier = [evaluation.MatchResult.from_dict(result) for result in saved.get("results", ())]
    environment = report.environment_record(args.seed)
    if args.show:
        environment = saved.get("environment", environment)
        rated = {name for result in earlier for name in result.names}
        preset = preset._replace(players=[s for s in preset.players if s.name in rated])
    specs = {spec["name"]: spec for spec in saved.get("players", ())} | {
        spec.name: spec._asdict() | {"knobs": dict(spec.knobs)} for spec in preset.players
    }
    players = [make_player(spec, network, preset.num_simulations) for spec in preset.players]
    numbers = range(len(players))
    pairs = [(0, i) for i in numbers[1:]] if preset.gauntlet else None
    played = {frozenset(result.names): result for result in earlier}
    if args.show:
        names = [player.name for player in players]
        every = itertools.combinations(numbers, 2)
        pairs = [(i, j) for i, j in every if frozenset((names[i], names[j])) in played]

    def record(tournament: Any) -> dict[str, Any]:
        return {
            "command": f"python -m benchmarks.strength --preset {args.preset}{changed}",
            "environment": environment,
            "setting": setting,
            "players": list(specs.values()),
            "results": [result.to_dict() for result in played.values()],
        } | tournament

    def save(result: evaluation.MatchResult) -> None:
        played[frozenset(result.names)] = result
        report.write_json(out, record({}))

    with report.progress_bar("strength") as progress:
        tournament = evaluation.round_robin(
            network.env,
            players,
            jax.random.key(args.seed),
            repeats=preset.repeats,
            progress=progress,
            on_pair=save,
            results=earlier,
            pairs=pairs,
        )
    table = evaluation.bayes_elo(tournament.wins)
    rows = [_row(name, i, tournament, table) for i, name in enumerate(tournament.names)]
    pairings = _pairings(tournament, pairs)
    report.write_json(out, record({"table": rows, "pairings": pairings}))
    show(rows, pairings, setting)
    picture = out.with_suffix(".png")
    board = preset.network.replace("hex-", "Hex ")
    if args.preset == "scaling":
        scaling_plot(picture, rows, title=f"Strength against simulations, {board}")
    else:
        games = sum(result.games for result in tournament.pairs)
        report.elo_plot(
            picture,
            tournament.names,
            table.ratings,
            table.half_widths,
            title=f"Searches with one network, {board}",
            subtitle=f"{_budget(setting)} a move, {games:,} games",
        )
    print(f"Wrote {out} and {picture}.")


def scaling_plot(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draws figure 2 of Anthony et al. 2019: each search's rating against its simulations.

    Args:
      path: the PNG file to write.
      rows: rows of a table whose players have names such as "PGS 400"; one is rated 0.
      title: the picture's title.
    """
    lines: dict[str, list[tuple[int, tuple[float, float, float]]]] = {}
    for row in rows:
        search, count = row["player"].split()
        elo, width = row["elo"], row["half_width"]
        lines.setdefault(search, []).append((int(count), (elo - width, elo, elo + width)))
    (reference,) = (row["player"] for row in rows if row["half_width"] == 0)
    report.line_plot(
        path, {"": {search: sorted(points) for search, points in sorted(lines.items())}},
        title=title, xlabel="simulations a move", ylabel=f"Elo over {reference}", yscale="linear",
    )  # fmt: skip


def show(rows: list[dict[str, Any]], pairings: list[dict[str, Any]], setting: dict) -> None:
    """Prints the tables of a tournament."""
    columns = {
        "player": "player", "elo": "Elo", "half_width": "± 95%",
        "evaluations_per_move": "evaluations a move", "calls_per_search": "calls in a row",
        "ms_per_move": "ms a move", "temp_mb": "scratch MB", "compile_seconds": "compile s",
    }  # fmt: skip
    title = f"{setting['network']}, {_budget(setting)} a move"
    report.print_table(title, list(columns.values()), [[r[k] for k in columns] for r in rows])
    report.print_table(
        "Pairings: Elo of the first over the second",
        ["first", "second", "won", "of", "Elo", "± 95%"],
        [
            [p[k] for k in ("first", "second", "won", "games", "elo", "half_width")]
            for p in pairings
        ],
    )


def _budget(setting: Mapping[str, Any]) -> str:
    if "milliseconds" in setting:
        return f"{setting['milliseconds']:g} ms"
    return f"{setting['num_simulations']} simulations"


def _row(name: str, i: int, tournament: Any, table: Any) -> dict[str, Any]:
    spent = tournament.players[name]
    moves, calls = max(spent.moves, 1), max(spent.calls, 1)
    batch = tournament.pairs[0].games // 2
    # The time of a batch is shared by its games, whether or not they go on. Machines are noisy and
    # pairings last minutes, so the fastest pairing tells the most.
    records = [r for pair in tournament.pairs for r in pair.players if r.name == name]
    fastest = min(r.seconds / max(r.calls, 1) for r in records)
    return {
        "player": name,
        "elo": round(float(table.ratings[i]), 1),
        "half_width": round(float(table.half_widths[i]), 1),
        "evaluations_per_move": round(spent.stats.get("num_evaluations", 0) / moves, 1),
        "calls_per_search": round(spent.stats.get("num_calls", 0) / calls, 1),
        "ms_per_move": round(1e3 * fastest / batch, 3),
        "temp_mb": None if spent.temp_bytes is None else round(spent.temp_bytes / 1e6, 1),
        "compile_seconds": round(spent.compile_seconds, 1),
    }


def _pairings(tournament: Any, pairs: list[tuple[int, int]] | None) -> list[dict[str, Any]]:
    rows = []
    for i, j in pairs or itertools.combinations(range(len(tournament.names)), 2):
        won, lost = tournament.wins[i, j], tournament.wins[j, i]
        difference = evaluation.elo_difference(won, won + lost)
        rows.append(
            {
                "first": tournament.names[i],
                "second": tournament.names[j],
                "won": won,
                "games": won + lost,
                "elo": round(difference.elo, 1),
                "half_width": round(difference.half_width, 1),
            }
        )
    return rows


def _choose(players: Sequence[Spec], names: list[str] | None) -> Sequence[Spec]:
    known = [spec.name for spec in players]
    for name in names or ():
        if name not in known:
            raise SystemExit(f"Unknown player {name!r}; this preset has {known}.")
    return [spec for spec in players if names is None or spec.name in names]


def _calibrated(
    path: pathlib.Path, preset: Preset, network: jaxpgs.pretrained.Pretrained
) -> list[Spec]:
    """Returns the players with their simulations: as in the file, if there is one, or measured."""
    known = json.loads(path.read_text())["players"] if path.exists() else ()
    counts = {spec["name"]: spec["knobs"]["num_simulations"] for spec in known}
    num_games = network.env.num_actions * preset.repeats
    specs = []
    for spec in preset.players:
        if spec.name in counts:
            spec = spec._replace(knobs={**spec.knobs, "num_simulations": counts[spec.name]})
        else:
            assert preset.milliseconds is not None
            spec = calibrate(spec, network, num_games, preset.milliseconds)
            print(f"{spec.name}: {spec.knobs['num_simulations']} simulations")
        specs.append(spec)
    return specs


def _load(path: pathlib.Path, setting: dict[str, Any], players: Sequence[Spec]) -> dict[str, Any]:
    """Reads the file of an earlier call, which must have had the same setting and knobs."""
    if not path.exists():
        return {}
    saved = json.loads(path.read_text())
    known = {spec["name"]: spec["knobs"] for spec in saved["players"]}
    asked = {f"knobs of {spec.name}": dict(spec.knobs) for spec in players if spec.name in known}
    found = saved["setting"] | {f"knobs of {name}": knobs for name, knobs in known.items()}
    for name, value in (setting | asked).items():
        if found[name] != value:
            raise SystemExit(
                f"{path} holds a tournament with {name} {found[name]!r}, not {value!r}; "
                "name another file with --out, or remove it."
            )
    return saved


if __name__ == "__main__":
    main()
