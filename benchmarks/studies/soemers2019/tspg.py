"""What should a policy learn from a search? TSPG against cross-entropy (Soemers et al. 2019).

    python -m benchmarks.studies.soemers2019.tspg                  # two games, some minutes
    python -m benchmarks.studies.soemers2019.tspg --preset full    # six games, five seeds: hours
    python -m benchmarks.studies.soemers2019.tspg --preset full --games hex-5x5 --step-size 0.0005

A linear policy over local patterns learns by cross-entropy with the visits of a tree search in
self-play (200 games in the preset full). The policy is the prior and the playout policy of that
search. From the same positions further policies learn as offsets on top of it: by TSPG, with each
way to value untried actions, and by cross-entropy once more. At checkpoints each of them plays the
cross-entropy policy, and both draw their moves (figure 2). At the end they play it once more, both
by their most likely moves, and tree searches whose playouts follow TSPG or double cross-entropy
play UCT (table I). The entropies in the games against UCT (figure 3), weights (figure 4) and the
strongest patterns are recorded. There is a row for each game and seed.

Deviations: the text at hand lacks the numbers of the paper's settings, so these are ours; eight
games are played at once; search trees are not kept from move to move; the set of patterns is fixed
and does not grow; all parameter vectors are updated at the same time.
"""

import argparse
import contextlib
import math
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import scipy.stats

import jaxpgs
from benchmarks import pictures, report, runs
from benchmarks.studies.soemers2019 import pattern_pictures
from benchmarks.studies.soemers2019.tspg_matches import (
    AT_ONCE,
    C_PUCT,
    biased_mcts,
    masked,
    policy_match,
    search_match,
    uct,
)
from jaxpgs import networks, selection, target
from jaxpgs.training import Run, make_expert
from jaxpgs.training.two_player import expert_iteration, objectives

CROSS_ENTROPY, DOUBLE, TSPG = "cross_entropy", "double", "tspg"
OFFSETS: dict[str, objectives.Objective] = {
    TSPG: objectives.tspg("completed"),
    "tspg_parent": objectives.tspg("parent"),
    "tspg_loss": objectives.tspg("loss"),
    DOUBLE: objectives.cross_entropy(),
}
LABELS = {
    CROSS_ENTROPY: "cross-entropy", DOUBLE: "double cross-entropy", TSPG: "TSPG",
    "tspg_parent": "TSPG, untried as the parent", "tspg_loss": "TSPG, untried as lost",
    "uct": "UCT", "biased": "biased MCTS",
}  # fmt: skip
_SIDE_BY_SIDE = 8  # games of self-play at once
_BINS = 10  # parts of a game, in each of which entropies are averaged


class Preset(NamedTuple):
    """The games, and how much is trained and played.

    Attributes:
      games: names in `GAMES`.
      seeds: trainings of each game.
      simulations: simulations a move, in training and in matches of searches.
      checkpoints: numbers of self-play games after which policies play; training ends at the last.
      policy_games: games of a match of policies.
      search_games: games of a match of searches.
      step_size: the step size of centred RMSProp, whose momentum and decay are 0.9 as in the paper;
        the paper's step size is not in the text at hand.
    """

    games: Sequence[str]
    seeds: int
    simulations: int
    checkpoints: Sequence[int]
    policy_games: int
    search_games: int
    step_size: float = 0.002


GAMES: dict[str, Callable[[], Any]] = {
    "hex-5x5": lambda: jaxpgs.envs.Hex(5),
    "hex-7x7": lambda: jaxpgs.envs.Hex(7),
    "connect-four": lambda: _pgx("connect_four"),
    "breakthrough-6x6": lambda: jaxpgs.envs.Breakthrough(6, 6),
    "yavalath": lambda: jaxpgs.envs.Yavalath(5),
    "othello": lambda: _pgx("othello"),
}
PRESETS = {
    "quick": Preset(("hex-5x5", "connect-four"), 2, 16, (1, 25, 50), 200, 20),
    "full": Preset(tuple(GAMES), 5, 32, (1, 25, 50, 100, 200), 200, 40),
    "tiny": Preset(("hex-5x5",), 1, 4, (1,), 4, 2),
}
_BATCH, _BUFFER = 32, 2_496


def main(argv: list[str] | None = None) -> None:
    """Trains, plays and draws; see the module's docstring."""
    parser = runs.parser("studies.soemers2019.tspg", __doc__, PRESETS)
    parser.add_argument("--games", nargs="+", choices=GAMES, help="in place of the preset's")
    parser.add_argument("--seeds", type=runs.positive, help="in place of the preset's")
    parser.add_argument(
        "--step-size",
        nargs="+",
        type=runs.number(0, above=True),
        help="in place of the preset's; a file each",
    )
    args = parser.parse_args(argv)
    preset = runs.override(PRESETS[args.preset], args)
    path = args.out or runs.RESULTS / f"tspg_{args.preset}.json"
    if args.step_size is None:
        rows = run(preset, parser, args, path)
        draw(path.with_suffix(".png"), rows)
        return
    for step_size in args.step_size:
        one = preset._replace(step_size=step_size)
        run(one, parser, args, path.with_stem(f"{path.stem}_step-{step_size:g}"))


def run(
    preset: Preset, parser: argparse.ArgumentParser, args: argparse.Namespace, path: pathlib.Path
) -> list[dict[str, Any]]:
    """Measures the games and seeds that the file lacks, prints tables, and returns all rows."""
    setting = {name: getattr(preset, name) for name in preset._fields[2:]} | {
        "c_puct": C_PUCT,
        "simulations_per_update": AT_ONCE,
    }
    record = runs.open_record(parser, args, setting, ("game", "seed"), path)
    todo = [(game, args.seed + k) for game in preset.games for k in range(preset.seeds)]
    with report.progress_bar(args.preset) as progress, compiled_once():
        for number, (game, seed) in enumerate(todo):
            if not runs.has(record, game=game, seed=seed):
                progress(number, len(todo), f"{game}, seed {seed}")
                runs.add(record, measure(game, preset, seed))
        progress(len(todo), len(todo), "done")
    rows = runs.read(record)
    for title, columns, cells in tables(rows):
        report.print_table(title, columns, cells)
    print(f"Wrote {path}.")
    return rows


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
    """Caches compiled programs in a temporary folder, as all seeds of a game run the same ones."""
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)


def measure(game: str, preset: Preset, seed: int) -> dict[str, Any]:
    """Trains the policies of a game with one seed, plays all matches, and returns the row."""
    start = time.perf_counter()
    env = networks.with_last_move(GAMES[game]())
    base = networks.pattern_policy(env)
    network = networks.WithOffsets(base, list(OFFSETS))
    kept = learn(env, network, preset, seed)
    _, apply_fn = networks.functional(base)
    policy = masked(env, apply_fn)
    match = policy_match(env, policy, preset.policy_games)
    key = jax.random.key(seed)
    curves: dict[str, list[Any]] = {name: [] for name in OFFSETS}
    for games, params in kept.items():
        own, offsets = alone(params)
        for name in OFFSETS:
            earned = match(offsets[name], own, key)
            curves[name].append([games, float(np.mean(np.sign(earned) + 1) / 2)])
    own, offsets = alone(kept[preset.checkpoints[-1]])
    surest = policy_match(env, policy, preset.policy_games, likeliest=True)
    likeliest = {
        name: float(np.mean(np.sign(surest(offsets[name], own, key)) + 1) / 2) for name in OFFSETS
    }
    searches = {
        "biased": biased_mcts(env, apply_fn, preset.simulations),
        "uct": uct(env, preset.simulations),
    }
    play = search_match(env, searches, policy, preset.search_games)
    watched = {CROSS_ENTROPY: own} | {name: offsets[name] for name in (TSPG, DOUBLE)}
    against_uct, entropies = {}, {}
    for name in (TSPG, DOUBLE):
        earned, sure = play((own, offsets[name]), watched, jax.random.fold_in(key, 1))
        against_uct[name] = float(np.mean(np.sign(earned) + 1) / 2)
        entropies[name] = _along(sure)
    kernels = {name: _kernel(params) for name, params in ({CROSS_ENTROPY: own} | offsets).items()}
    return {
        "game": game,
        "seed": seed,
        "against_cross_entropy": curves,
        "likeliest": likeliest,
        "against_uct": against_uct,
        "entropy": entropies,
        "weights": weights(kernels),
        "strongest": strongest(base, kernels),
        "seconds": round(time.perf_counter() - start),
    }


def learn(env: Any, network: Any, preset: Preset, seed: int) -> dict[int, Any]:
    """Trains by self-play; returns the parameters at each checkpoint, by its number of games."""
    _, apply_fn = networks.functional(network)
    kept: dict[int, Any] = {}
    finished = 0

    def callback(state: Any, metrics: Mapping[str, float]) -> bool:
        nonlocal finished
        finished += int(metrics["finished_games"])
        for games in preset.checkpoints:
            if finished >= games and games not in kept:
                kept[games] = jax.device_get(state.params)
        return len(kept) == len(preset.checkpoints)

    expert = make_expert(
        "mcts", preset.simulations, dirichlet_fraction=0.0, target=target.visit_counts(),
        root_selection=selection.puct(C_PUCT, virtual_loss=1.0), simulations_per_update=AT_ONCE,
    )  # fmt: skip
    step = optax.rmsprop(preset.step_size, decay=0.9, eps=1e-8, centered=True, momentum=0.9)
    expert_iteration.train(
        env, network, expert=expert, num_iterations=100_000, evaluate_every=0,
        model_fns=jaxpgs.make_playout_fns(env, prior=apply_fn, playout=apply_fn),
        games=expert_iteration.Games(_SIDE_BY_SIDE, 1, sampled_moves=1_000, max_random_moves=0),
        fit=expert_iteration.Fit(_BUFFER, _BATCH, _SIDE_BY_SIDE, optimizer=step, offsets=OFFSETS),
        run=Run(seed, callback=callback),
    )  # fmt: skip
    return kept


def alone(params: Any) -> tuple[Any, dict[str, Any]]:
    """Returns parameters of the base network: for the cross-entropy policy, and for each offset's.

    As policies are linear, an offset's weights can be added to those of the cross-entropy policy.
    """
    own = {name: part for name, part in params.items() if name != "offsets"}
    others = {
        name: own | {"policy_head": jax.tree.map(np.add, own["policy_head"], head)}
        for name, head in params["offsets"].items()
    }
    return own, others


def _kernel(params: Any) -> np.ndarray:
    return np.asarray(params["policy_head"]["linear"]["kernel"])


def _along(sure: Any) -> dict[str, list[float | None]]:
    """Returns mean entropies by part of the game, from its first tenth to its last."""
    part = np.minimum(sure.ply * _BINS // sure.length, _BINS - 1)
    found: dict[str, list[float | None]] = {}
    for name, entropy in sure.entropy.items():
        known = [entropy[(part == b) & np.isfinite(entropy)] for b in range(_BINS)]
        found[name] = [round(float(x.mean()), 4) if len(x) else None for x in known]
    return found


def weights(kernels: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Returns statistics of each policy's weights, where those of cross-entropy are not 0."""
    moved = kernels[CROSS_ENTROPY] != 0
    found = {}
    for name, kernel in kernels.items():
        used = kernel[moved]
        counts, _ = np.histogram(np.clip(used, -_EDGE, _EDGE), bins=60, range=(-_EDGE, _EDGE))
        found[name] = {
            "used": int(moved.sum()),
            "of": len(kernel),
            "deviation": round(float(used.std()), 4),
            "near_zero": round(float(np.mean(np.abs(used) < _NEAR)), 4),
            "histogram": counts.tolist(),
        }
    return found


_EDGE = 6.0  # where histograms of weights end
_NEAR = 0.1


def strongest(
    network: networks.PatternPolicy, kernels: Mapping[str, np.ndarray], number: int = 6
) -> dict[str, Any]:
    """Returns the patterns with the largest weights of cross-entropy and TSPG, for pictures."""
    found = {}
    for name in (CROSS_ENTROPY, TSPG):
        kernel = kernels[name]
        order = np.argsort(-np.abs(kernel))[:number]
        found[name] = [
            {"weight": round(float(kernel[i]), 3)} | network.describe(int(i))._asdict()
            for i in order
        ]
    return found


def interval(
    values: Sequence[float], least: float = -math.inf, most: float = math.inf
) -> tuple[float, float, float]:
    """Returns the lower end of a 95% interval, the mean and the upper end.

    It is Student's t interval over seeds, cut off at `least` and `most`, the possible values.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, mean, mean
    reach = float(scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values))
    return max(mean - reach, least), mean, min(mean + reach, most)


def by_game(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Returns the rows of each game, in the order of `GAMES`."""
    return {
        game: found for game in GAMES if (found := [row for row in rows if row["game"] == game])
    }


def mean_entropy(row: Mapping[str, Any], name: str) -> float:
    """Returns the mean entropy of a policy or search over all parts of the games of table I."""
    return float(np.mean([
        value for match in row["entropy"].values() for value in match[name] if value is not None
    ]))  # fmt: skip


def tables(
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Returns the heading, columns and lines of each table."""
    games = by_game(rows)
    raw, searched, sure, spread = [], [], [], []
    for game, found in games.items():
        for name in OFFSETS:
            ends = [row["against_cross_entropy"][name] for row in found]
            points = [_percent([end[k][1] for end in ends]) for k in range(len(ends[0]))]
            points.append(_percent([row["likeliest"][name] for row in found]))
            raw.append([game, LABELS[name], len(found), *points])
        searched.append(
            [game, len(found)]
            + [_percent([row["against_uct"][name] for row in found]) for name in (TSPG, DOUBLE)]
            + [
                _percent(
                    [row["against_uct"][TSPG] - row["against_uct"][DOUBLE] for row in found], -1
                )
            ]
        )
        names = ("uct", CROSS_ENTROPY, "biased", DOUBLE, TSPG)
        less = [mean_entropy(row, TSPG) - mean_entropy(row, CROSS_ENTROPY) for row in found]
        sure.append(
            [game, len(found)]
            + [round(float(np.mean([mean_entropy(row, n) for row in found])), 3) for n in names]
            + ["{1:+.3f} [{0:+.3f}, {2:+.3f}]".format(*interval(less))]
        )
        for name in (CROSS_ENTROPY, DOUBLE, TSPG):
            told = [row["weights"][name] for row in found]
            spread.append(
                [game, LABELS[name], told[0]["of"], round(np.mean([t["used"] for t in told]))]
                + [round(float(np.mean([t[k] for t in told])), 3) for k in ("deviation",)]
                + [round(100 * float(np.mean([t["near_zero"] for t in told])), 1)]
            )
    points = [f"after {k}" for k, _ in rows[0]["against_cross_entropy"][TSPG]]
    points.append("in the end, both by likeliest moves")
    return [
        ("Points in % against cross-entropy's policy, by games of self-play",
         ["game", "policy", "seeds", *points], raw),
        ("Tree search with playouts by a policy against UCT, points in %",
         ["game", "seeds", "TSPG plays out", "double cross-entropy plays out", "difference"],
         searched),
        ("Normalised entropy, mean over the games against UCT",
         ["game", "seeds", "UCT", "cross-entropy", "biased MCTS", "double cross-entropy", "TSPG",
          "TSPG less cross-entropy"], sure),
        ("Weights after training",
         ["game", "policy", "weights", "of them used", "standard deviation",
          f"% within {_NEAR:g} of 0"], spread),
    ]  # fmt: skip


def _percent(values: Sequence[float], least: float = 0.0) -> str:
    low, mean, high = (100 * x for x in interval(values, least, 1.0))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]" if len(values) > 1 else f"{mean:.1f}"


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws figures 2, 3 and 4, a panel for each game, and the strongest patterns of each game."""
    games = by_game(rows)
    points, entropies, spread = {}, {}, {}
    for game, found in games.items():
        points[game] = {
            LABELS[name]: [
                (number, [100 * x for x in interval(
                    [row["against_cross_entropy"][name][k][1] for row in found], 0.0, 1.0
                )])
                for k, (number, _) in enumerate(found[0]["against_cross_entropy"][name])
            ]
            for name in (TSPG, DOUBLE)
        }  # fmt: skip
        entropies[game] = {
            LABELS[name]: [
                ((b + 0.5) / _BINS, np.mean(values))
                for b in range(_BINS)
                if (values := [
                    value for row in found for match in row["entropy"].values()
                    if (value := match[name][b]) is not None
                ])
            ]
            for name in ("uct", CROSS_ENTROPY, "biased", TSPG)
        }  # fmt: skip
        middles = (np.arange(60) + 0.5) / 30 * _EDGE - _EDGE
        spread[game] = {
            LABELS[name]: list(zip(middles, _shares(found, name), strict=True))
            for name in (CROSS_ENTROPY, TSPG)
        }
        pattern_pictures.draw(
            path.with_stem(f"{path.stem}_patterns_{game}"),
            {LABELS[name]: shown for name, shown in found[0]["strongest"].items()},
            hexagonal=game.startswith(("hex", "yavalath")),
            title=f"The strongest patterns, {game}",
        )
    pictures.line_plot(
        path, points, title="Policies against cross-entropy's, along self-play",
        xlabel="games of self-play", ylabel="points, %", xscale="linear", yscale="linear",
        levels={"level": 50.0},
    )  # fmt: skip
    pictures.line_plot(
        path.with_stem(f"{path.stem}_entropy"), entropies, xlabel="part of the game",
        title="How undecided policies and searches are", ylabel="normalised entropy",
        xscale="linear", yscale="linear",
    )  # fmt: skip
    pictures.line_plot(
        path.with_stem(f"{path.stem}_weights"), spread, xlabel="weight, the ends hold all beyond",
        title="Weights after training", ylabel="share of the weights, %", xscale="linear",
        yscale="linear",
    )  # fmt: skip


def _shares(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Returns the share of weights in each bin of the histogram over all rows, in %."""
    counts = np.sum([row["weights"][name]["histogram"] for row in rows], axis=0)
    return 100 * counts / max(counts.sum(), 1)


def _pgx(name: str) -> Any:
    import pgx

    return pgx.make(name)


if __name__ == "__main__":
    main()
