"""How strong is each search with the same network? A tournament in Hex, rated in Elo.

    python -m benchmarks.strength --preset first     # 5x5, three players, a minute or two
    python -m benchmarks.strength --preset quick     # 5x5, a few minutes on two cores
    python -m benchmarks.strength --preset full      # 7x7, 800 simulations: hours on two cores
    python -m benchmarks.strength --preset scaling   # 7x7, 200 to 1,600 simulations; the defaults
                                                     # of all searches: scaling-defaults

The extensions of Brosseit 2023, one at a time (see `studies/brosseit2023`), and searches that plan
with a learned model:

    python -m benchmarks.strength --preset ablation --network hex-5x5-early --simulations 25 100
    python -m benchmarks.strength --preset ve

All searches with their defaults, one tournament and one file for each network and number of
simulations. The players have equal simulations, or as many network evaluations or as much time per
move as mctx's Gumbel search (`benchmarks.rivals` makes one table of all these tournaments):

    python -m benchmarks.strength --preset defaults --network hex-7x7-early hex-5x5-early \\
        --simulations 16 64 256 800
    python -m benchmarks.strength --preset defaults-evaluations --simulations 64
    python -m benchmarks.strength --preset defaults-time-1      # one root at a time
    python -m benchmarks.strength --preset defaults-time-64     # 64 roots at a time
    python -m benchmarks.strength --preset empty                # from the empty board

Gumbel searches in rounds and with fixed K; rounds-time-1 and rounds-time-64 are at equal time:

    python -m benchmarks.strength --preset rounds --network hex-7x7-early conv-5x5-16x2 \\
        --simulations 32 64 128 50 16

Any knobs against a fixed reference, with a player for each combination of values; the names of
searches and knobs are those of `benchmarks.players`:

    python -m benchmarks.strength --preset sweep --reference "mcs" \\
        --sweep "pgs simulations_per_update=4,8,16 optimizer=auto" "gumbel"

Programs that speak GTP play as well, and every game can be kept as an SGF file (docs/engines.md):

    python -m benchmarks.strength --preset quick --opponent "mohex" --sgf games

Each pairing plays every opening with both colours. The openings are all legal first moves, or
`--openings` random lines of two moves; with the preset empty, eight moves drawn from the network's
policy. Two deterministic players play an opening once per colour, without repeats. Intervals are
bootstrapped over openings; all games of an opening stay together. Results are written to a JSON
file after every pairing; scaling and scaling-defaults also draw a picture. A command that was
stopped continues when it is started again. With `--batch-size` it also continues within a pairing:
finished batches are kept in a file that ends in `.unfinished`, and `--show` prints their result.
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import report, runs
from benchmarks.players import (
    SIMPLE,
    Spec,
    describe,
    distinct,
    load_network,
    make_player,
    read_specs,
    with_count,
    with_parallel,
)
from benchmarks.ratings import (
    budget,
    pairing,
    pairing_table,
    player_table,
    ratios,
    scaling_plot,
    summarise,
)
from benchmarks.runs import RESULTS
from benchmarks.tournaments import EQUAL, PRESETS, Preset
from jaxpgs import evaluation
from jaxpgs.checks import refusals_in_one_line
from jaxpgs.evaluation.equal_budget import TOLERANCE, calibrate, propose

_ROUNDS = 4  # how often a tournament is played at most, until all players spend the same


@refusals_in_one_line("python -m benchmarks.strength")
def main(argv: list[str] | None = None) -> None:
    """Plays a preset's tournaments; see the module's docstring."""
    parser = runs.parser("strength", __doc__, PRESETS)
    add = parser.add_argument
    add("--network", nargs="+", help="in place of the preset's; a tournament each")
    add("--simulations", nargs="+", type=runs.positive, help="in place of the preset's; likewise")
    add("--repeats", type=runs.positive, help="games per opening and colour")
    add(
        "--openings",
        type=runs.positive,
        help="how many lines of two moves, in place of all first moves",
    )
    add("--batch-size", type=runs.positive, help="games searched at once")
    add("--equal", choices=EQUAL, help="what all players have the same amount of")
    add("--players", nargs="+", dest="names", help="only these of the preset's players")
    add("--sweep", nargs="+", default=[], metavar="SPEC", help="further players, by their knobs")
    add("--reference", metavar="SPEC", help="the first player, whom all others play")
    add("--opponent", nargs="+", default=[], metavar="COMMAND", help="programs that speak GTP")
    add("--sgf", type=pathlib.Path, metavar="FOLDER", help="writes every game of Hex there")
    add("--show", action="store_true", help="play nothing, rate all games so far")
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    counts = args.simulations or [preset.num_simulations]
    for network, count in itertools.product(args.network or [preset.network], counts):
        one = runs.override(preset, args)._replace(network=network, num_simulations=count)
        one = one._replace(players=_players(one, args))
        parts = [
            args.preset,
            *[pathlib.Path(network).name] * bool(args.network),
            *[str(count)] * bool(args.simulations),
        ]
        path = args.out or RESULTS / f"strength_{'_'.join(parts)}.json"
        if args.out and len(counts) * len(args.network or [0]) > 1:
            path = args.out.with_stem("_".join([args.out.stem, *parts[1:]]))
        play(one, parser, args, path)


def play(
    preset: Preset, parser: argparse.ArgumentParser, args: argparse.Namespace, path: pathlib.Path
) -> None:
    """Plays one tournament, and writes and prints its tables."""
    equal = preset.equal == "simulations"
    preset = preset._replace(standard="" if equal else _standard(preset).name)
    network = load_network(preset.network)
    for spec in preset.players:
        try:  # so that an unknown knob ends the command before games are played
            describe(spec, network, preset.num_simulations)
        except TypeError as error:
            raise SystemExit(f"{parser.prog}: {spec.name!r}: {error}") from error
    if not equal:
        fixed = [with_parallel(spec, network, preset.num_simulations) for spec in preset.players]
        preset = preset._replace(players=fixed)
    first = np.flatnonzero(network.env.init(jax.random.key(0)).legal_action_mask)
    policy = (lambda x: network.apply_fn(network.params, x)[0]) if preset.sampled else None
    lines = first if preset.openings is None else evaluation.opening_lines(
        network.env, jax.random.key(args.seed), preset.sampled or 2, preset.openings, policy
    )  # fmt: skip
    names = ["network", "num_simulations", "repeats", "openings", "batch_size", "equal", "standard"]
    names += ["sampled"] * bool(preset.sampled)
    setting = {name: getattr(preset, name) for name in names} | {
        "network": pathlib.Path(preset.network).name,
        "weights_sha256": network.card["sha256"],
        "seed": args.seed,
        "players": {s.name: {"search": s.search, "knobs": dict(s.knobs)} for s in preset.players},
    }
    record = runs.open_record(parser, args, setting, ("first", "second"), path)
    if not args.show:
        known = len(runs.read(record))
        _play_until_equal(preset, network, record, lines)
        if len(runs.read(record)) == known and not record.again:
            print(f"{record.path} has all these games; --again or another --out plays new ones.")
    show_unfinished(preset, record, lines)
    # All pairings in the file are rated, including those of other commands.
    data = runs.load(record.path) if record.path.exists() else {"rows": []}
    if not data["rows"]:
        raise SystemExit(f"{record.path} holds no pairing that is complete.")
    everyone = {name: Spec(name, **about) for name, about in data["setting"]["players"].items()}
    preset = preset._replace(players=list(everyone.values()))
    counts = _rated_counts(preset, data)
    tournament = _tournament(preset, network, record, lines, counts, only_played=True)
    summary = summarise(preset, network, tournament, counts)
    rows = runs.add(record, **summary)
    show(summary, setting, rows)
    if args.preset.startswith("scaling"):
        title = f"Strength against simulations, {preset.network}"
        scaling_plot(record.path.with_suffix(".png"), summary["table"], title=title)
    print(f"Wrote {record.path}.")


def _players(preset: Preset, args: argparse.Namespace) -> list[Spec]:
    """Returns the players: the reference, the preset's, those of a sweep and GTP opponents."""
    players = distinct(preset.players, preset.num_simulations)
    try:
        swept = [spec for text in args.sweep for spec in read_specs(text)]
        reference = read_specs(args.reference)[:1] if args.reference else []
    except ValueError as error:
        raise SystemExit(str(error)) from error
    if reference:
        players = reference + (players[1:] if preset.gauntlet == 1 else players)
    players += [*swept, *(Spec(line, "gtp", {"command": line}) for line in args.opponent)]
    known = [spec.name for spec in players]
    if len(set(known)) < len(known):
        raise SystemExit(f"Players need different names, got {known}.")
    for name in args.names or ():
        if name not in known:
            raise SystemExit(f"Unknown player {name!r}; this preset has {known}.")
    return [spec for spec in players if args.names is None or spec.name in args.names]


def _standard(preset: Preset) -> Spec:
    """Returns the player whose cost all others match: the preset's, or the first that searches."""
    by_name = {spec.name: spec for spec in preset.players}
    searching = [spec for spec in preset.players if spec.search not in SIMPLE]
    return by_name.get(preset.standard, (searching or preset.players)[0])


def _play_until_equal(preset: Preset, network: Any, record: runs.Record, lines: np.ndarray) -> None:
    """Plays the missing pairings; recalibrates players of unequal cost, and plays theirs again."""
    counts = _counts(preset, network, record, lines)
    history: dict[str, dict[int, float]] = {name: {} for name in counts}
    for left in reversed(range(_ROUNDS)):
        tournament = _tournament(preset, network, record, lines, counts)
        unequal = _unequal(preset, tournament)
        if not unequal or not left:
            return
        record = dataclasses.replace(record, again=False)
        before = dict(counts)
        for name, ratio in unequal.items():
            history[name][counts[name]] = ratio
            proposed = propose(history[name])
            if proposed not in history[name]:  # otherwise no other count comes closer
                counts[name] = proposed
        if counts == before:
            return
        print(f"Calibrated anew, as they spent other than the standard: {unequal}.")
        runs.add(record, calibrated=counts)


def _known_counts(preset: Preset, data: Mapping[str, Any]) -> dict[str, int]:
    """Returns every player's simulations: calibrated earlier, or else its knob or the preset's."""
    return {
        spec.name: spec.knobs.get("num_simulations", preset.num_simulations)
        for spec in preset.players
    } | data.get("calibrated", {})


def _rated_counts(preset: Preset, data: Mapping[str, Any]) -> dict[str, int]:
    """Returns the simulations to rate each player with: the known if played, else the last."""
    played = [
        (name, count)
        for row in data["rows"]
        for name, count in zip((row["first"], row["second"]), row["simulations"], strict=True)
    ]
    known = _known_counts(preset, data)
    return {
        name: count if (name, count) in played else dict(played).get(name, count)
        for name, count in known.items()
    }


def _counts(preset: Preset, network: Any, record: runs.Record, lines: np.ndarray) -> dict[str, int]:
    """Returns every player's simulations, and calibrates those that the file does not have."""
    data = runs.load(record.path) if record.path.exists() and not record.again else {}
    counts = _known_counts(preset, data)
    for spec in preset.players:
        fixed = preset.equal == "simulations" or spec.search in SIMPLE or spec == _standard(preset)
        if not fixed and spec.name not in data.get("calibrated", {}):
            trials = data.get("trials", {}).get(spec.name, {})
            counts[spec.name] = _calibrated(preset, network, record, lines, spec, trials)
    return counts


def _calibrated(
    preset: Preset,
    network: Any,
    record: runs.Record,
    lines: np.ndarray,
    spec: Spec,
    trials: Mapping[str, float],
) -> int:
    """Calibrates and saves the simulations of a player, after the trials that the file has."""
    ratios = {int(count): ratio for count, ratio in trials.items()}

    def save(count: int, ratio: float) -> None:
        print(f"{spec.name}: {count} simulations, {preset.equal} x {ratio:.3f}.", flush=True)
        ratios[count] = ratio
        _save_part(record, "trials", spec.name, {str(n): round(r, 4) for n, r in ratios.items()})

    count, _ = calibrate(
        network.env,
        functools.partial(_player, spec, network),
        make_player(_standard(preset), network, preset.num_simulations),
        jax.random.key(record.setting["seed"] + 1_000_000),
        equal=preset.equal,
        openings=lines,
        batch_size=preset.batch_size or len(lines) * preset.repeats,
        start=preset.num_simulations,
        trials=ratios,
        on_trial=save,
    )
    _save_part(record, "calibrated", spec.name, count)
    return count


def _save_part(record: runs.Record, part: str, name: str, value: Any) -> None:
    """Saves a player's value in a part of the file, and keeps the values of other players."""
    data = runs.load(record.path) if record.path.exists() else {}
    runs.add(record, **{part: data.get(part, {}) | {name: value}})


def _player(spec: Spec, network: Any, count: int) -> evaluation.Player:
    return make_player(with_count(spec, count), network, count)


def _tournament(
    preset: Preset,
    network: Any,
    record: runs.Record,
    lines: np.ndarray,
    counts: Mapping[str, int],
    *,
    only_played: bool = False,
) -> evaluation.Tournament:
    """Plays and saves the pairings that the file lacks, none if `only_played`; returns all."""
    anew = record.again and not only_played
    rows = [] if anew else _with_counts(runs.read(record), counts)
    earlier = {frozenset(names): evaluation.MatchResult.from_dict(row) for names, row in rows}
    pairs = _pairs(preset, earlier if only_played else None)
    specs = [s for s in preset.players if any(s.name in pair for pair in pairs)]
    number = {spec.name: i for i, spec in enumerate(specs)}

    unfinished = runs.unfinished(record, "batch")
    if anew:
        runs.remove(unfinished)
    batches = _batches(unfinished, counts)

    def about(names: tuple[str, str]) -> dict[str, Any]:
        return {
            "first": names[0],
            "second": names[1],
            "simulations": [counts[name] for name in names],
        }

    def save_batch(names: tuple[str, str], batch: evaluation.MatchBatch) -> None:
        batches.setdefault(names, []).append(batch)
        runs.add(unfinished, about(names) | {"batch": len(batches[names])} | batch.to_dict())

    def save(result: evaluation.MatchResult) -> None:
        first, second = result.names
        runs.add(record, about((first, second)) | result.to_dict())
        runs.remove(unfinished, first=first, second=second)

    with report.progress_bar("strength") as progress:
        return evaluation.round_robin(
            network.env,
            [_player(spec, network, counts[spec.name]) for spec in specs],
            jax.random.key(record.setting["seed"]),
            openings=lines,
            repeats=preset.repeats,
            batch_size=preset.batch_size,
            progress=progress,
            on_pair=save,
            results=earlier.values(),
            pairs=[(number[first], number[second]) for first, second in pairs],
            on_batch=save_batch if preset.batch_size else None,  # else a pairing is one batch
            batches=batches,
            sgf_folder=preset.sgf,
        )


def _batches(
    unfinished: runs.Record, counts: Mapping[str, int]
) -> dict[tuple[str, str], list[evaluation.MatchBatch]]:
    """Returns the finished batches of each unfinished pairing, by the players' names."""
    found: dict[tuple[str, str], list[evaluation.MatchBatch]] = {}
    for names, row in _with_counts(runs.read(unfinished), counts):
        found.setdefault(names, []).append(evaluation.MatchBatch.from_dict(row))
    return found


def _with_counts(
    rows: Sequence[dict[str, Any]], counts: Mapping[str, int]
) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    """Returns the rows whose players have these simulations, each after its players' names."""
    named = [((row["first"], row["second"]), row) for row in rows]
    return [(names, row) for names, row in named if row["simulations"] == [*map(counts.get, names)]]


def _pairs(
    preset: Preset, played: Mapping[frozenset[str], Any] | None = None
) -> list[tuple[str, str]]:
    """Returns the pairs of players that meet: those that `played`, or all that the preset has."""
    pairs = list(itertools.combinations([spec.name for spec in preset.players], 2))
    if played is not None:
        return [pair for pair in pairs if frozenset(pair) in played]
    if preset.pairs:
        names = {spec.name for spec in preset.players}
        return [pair for pair in preset.pairs if names.issuperset(pair)]
    hosts = {spec.name for spec in preset.players[: preset.gauntlet or None]}
    return [pair for pair in pairs if pair[0] in hosts]


def _unequal(preset: Preset, tournament: evaluation.Tournament) -> dict[str, float]:
    """Returns the cost of players that differ too much from the standard, as ratios to it.

    There are none while all costs are within the tolerance.
    """
    found = ratios(preset, tournament)
    if not found or max(found.values()) / min(found.values()) <= TOLERANCE:
        return {}
    apart = TOLERANCE**0.5
    standard = _standard(preset).name
    return {
        name: round(ratio, 3)
        for name, ratio in found.items()
        if name != standard and not 1 / apart <= ratio <= apart
    }


def show_unfinished(preset: Preset, record: runs.Record, lines: np.ndarray) -> None:
    """Prints the results so far of unfinished pairings."""
    unfinished = runs.unfinished(record, "batch")
    if not unfinished.path.exists():
        return
    data = runs.load(record.path) if record.path.exists() else {}
    players = [
        Spec(name, **x) for name, x in runs.load(unfinished.path)["setting"]["players"].items()
    ]
    stopped = _batches(unfinished, _known_counts(preset._replace(players=players), data))
    results = [
        pairing(evaluation.MatchResult.from_batches(batches, lines, preset.repeats))
        for batches in stopped.values()
    ]
    if results:
        title = "Not complete: Elo of the first over the second so far"
        report.print_table(title, *pairing_table({"pairings": results}))


def show(summary: Mapping[str, Any], setting: Mapping[str, Any], rows: Sequence[Any]) -> None:
    """Prints the tables of a tournament."""
    cores = " and ".join(str(n) for n in sorted({row["cores"] for row in rows}))
    title = f"{setting['network']}, {budget(setting)}, {cores} cores"
    report.print_table(title, *player_table(summary))
    report.print_table("Pairings: Elo of the first over the second", *pairing_table(summary))
    for remark in summary["remarks"]:
        print(f"- {remark}")


if __name__ == "__main__":
    main()
