"""TSPG for deep networks: what should a network learn from each search? Hex from nothing.

    python -m benchmarks.tspg_deep                       # 5x5 and a small network: minutes
    python -m benchmarks.tspg_deep --preset full         # 7x7 Hex: hours

For each search, two networks play themselves and learn with the same seed. One learns by
cross-entropy, with offsets on top that learn from the same positions by TSPG and by cross-entropy
once more; the other's own policy learns by TSPG, and its search follows it. All then play the
policy of cross-entropy, without a search and with the one that taught them. A row is a search and a
seed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import mctx
import optax
from flax import nnx

import jaxpgs
from benchmarks import report, runs
from benchmarks.tspg import CROSS_ENTROPY, DOUBLE, LABELS, TSPG, interval
from jaxpgs import evaluation, networks
from jaxpgs.evaluation.searchers import search_player
from jaxpgs.training import expert_iteration


class Preset(NamedTuple):
    """A board and how much is learned and played.

    Attributes:
      size: the board's.
      searches: names in `SEARCHES`.
      seeds: trainings of each.
      simulations: simulations a move, in training and in matches.
      iterations: iterations of training.
      openings: lines of two moves, each played with both colours.
      network: width and number of blocks.
      training: arguments of `expert_iteration.train`.
    """

    size: int
    searches: Sequence[str]
    seeds: int
    simulations: int
    iterations: int
    openings: int
    network: Mapping[str, Any]
    training: Mapping[str, Any]


SEARCHES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gumbel": (mctx.gumbel_muzero_policy, {"gumbel_scale": 0.0}),
    "mcts": (jaxpgs.batched_mcts_policy, {}),
    "pgs": (jaxpgs.pgs_policy, {"adapt": "policy_head"}),
}
_TRAINING = {"num_steps": 16, "max_random_moves": 8, "start_fraction": 0.0, "evaluate_every": 0}
PRESETS = {
    "quick": Preset(
        5, ("gumbel",), 1, 16, 60, 98, {"width": 64, "num_blocks": 2},
        _TRAINING | {"num_games": 128, "batch_size": 256, "buffer_size": 32_768},
    ),
    "full": Preset(
        7, tuple(SEARCHES), 3, 16, 120, 294, {"width": 128, "num_blocks": 2},
        _TRAINING | {"num_games": 256, "batch_size": 512, "buffer_size": 131_072},
    ),
    "tiny": Preset(
        3, ("gumbel",), 1, 2, 1, 3, {"width": 8, "num_blocks": 1},
        _TRAINING | {"num_games": 8, "batch_size": 8, "buffer_size": 128, "num_steps": 2},
    ),
}  # fmt: skip
OWN = "own"  # a network whose own policy learns by TSPG
_LABELS = LABELS | {TSPG: "TSPG, an offset", DOUBLE: "double cross-entropy", OWN: "TSPG alone"}


def main(argv: list[str] | None = None) -> None:
    """Trains and plays; see the module's text."""
    parser = runs.parser("tspg_deep", __doc__, PRESETS)
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, help="in place of the preset's")
    parser.add_argument("--seeds", type=runs.positive, help="in place of the preset's")
    args = parser.parse_args(argv)
    preset = runs.override(PRESETS[args.preset], args)
    setting = {name: getattr(preset, name) for name in preset._fields if name not in _ROWS}
    record = runs.open_record(parser, args, setting, ("search", "seed"))
    todo = [(search, args.seed + k) for k in range(preset.seeds) for search in preset.searches]
    with report.progress_bar(args.preset) as progress:
        for number, (search, seed) in enumerate(todo):
            if not runs.has(record, search=search, seed=seed):

                def update(iteration: int, done: int = number, name: str = search) -> None:
                    progress(done * preset.iterations + iteration,
                             len(todo) * preset.iterations, name)  # fmt: skip

                runs.add(record, measure(preset, search, seed, update))
    title = f"Deep networks, {preset.size}x{preset.size} Hex: Elo over cross-entropy's policy"
    report.print_table(title, *table(runs.read(record)))
    print(f"Wrote {record.path}.")


_ROWS = ("searches", "seeds")


def measure(
    preset: Preset, search: str, seed: int, update: Callable[[int], None]
) -> dict[str, Any]:
    """Trains the networks of one search with one seed, and plays their matches."""
    env = jaxpgs.envs.Hex(preset.size)
    start = time.perf_counter()
    network = networks.WithOffsets(_network(env, preset, seed), [TSPG, DOUBLE])
    offsets = {TSPG: TSPG, DOUBLE: CROSS_ENTROPY}
    params = _train(env, network, preset, search, seed, update, offsets=offsets)
    alone = _network(env, preset, seed)
    other = _train(env, alone, preset, search, seed, lambda _: None, objective=TSPG)
    _, apply_fn = networks.functional(network)
    sides: dict[str, tuple[Any, Any]] = {
        name: (networks.offset_policy(network, name), params) for name in (TSPG, DOUBLE)
    }
    sides[OWN] = (networks.functional(alone)[1], other)
    openings = evaluation.opening_lines(env, jax.random.key(seed), 2, preset.openings)
    policy_fn, knobs = SEARCHES[search]
    matches = []
    for kind in ("raw", "search"):

        def player(name: str, side: tuple[Any, Any], kind: str = kind) -> evaluation.Player:
            if kind == "raw":
                return evaluation.raw_network(env, *side, name=name)
            return search_player(
                env, *side, policy_fn, preset.simulations, name=name,
                deterministic=search == "gumbel", **knobs,
            )  # fmt: skip

        own = player(CROSS_ENTROPY, (apply_fn, params))
        for name, side in sides.items():
            match = evaluation.play_match(
                env, player(name, side), own, jax.random.key(seed), openings=openings
            )
            elo = evaluation.elo_by_opening(match.outcomes)
            matches.append({
                "policy": name, "kind": kind, "wins": match.wins, "games": match.games,
                "elo": round(elo.elo), "low": round(elo.low), "high": round(elo.high),
            })  # fmt: skip
    seconds = time.perf_counter() - start
    return {"search": search, "seed": seed, "matches": matches, "seconds": round(seconds)}


def _network(env: Any, preset: Preset, seed: int) -> networks.FullyConnectedResNet:
    return networks.FullyConnectedResNet(
        env.observation_shape, env.num_actions, **preset.network, rngs=nnx.Rngs(seed)
    )


def _train(
    env: Any,
    network: nnx.Module,
    preset: Preset,
    search: str,
    seed: int,
    update: Callable[[int], None],
    **knobs: Any,
) -> Any:
    """Trains a network from nothing and returns its parameters."""
    return expert_iteration.train(
        env, network, expert=search, num_simulations=preset.simulations,
        num_iterations=preset.iterations, optimizer=optax.adam(1e-3), seed=seed,
        callback=lambda _, metrics: update(int(metrics["iteration"])), **preset.training, **knobs,
    ).params  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search and policy, with a column for each seed.

    The interval of a seed is over openings, that of the mean over trainings, by Student's t.
    """
    seeds = sorted({row["seed"] for row in rows})
    lines = []
    for search in SEARCHES:
        for kind, told in (("raw", "none"), ("search", "its own")):
            for name in (TSPG, DOUBLE, OWN):
                by_seed = {
                    row["seed"]: match
                    for row in rows if row["search"] == search
                    for match in row["matches"] if (match["policy"], match["kind"]) == (name, kind)
                }  # fmt: skip
                if by_seed:
                    cells = [
                        "{elo:+} [{low:+}, {high:+}]".format(**by_seed[s]) if s in by_seed else None
                        for s in seeds
                    ]
                    spread = None
                    if len(by_seed) > 1:
                        low, mean, high = interval([match["elo"] for match in by_seed.values()])
                        spread = f"{mean:+.0f} [{low:+.0f}, {high:+.0f}]"
                    lines.append([search, told, _LABELS[name], spread, *cells])
    columns = ["taught by", "plays with the search", "policy", "mean of the trainings"]
    columns += [f"seed {s}" for s in seeds]
    return columns, lines


if __name__ == "__main__":
    main()
