"""How fast is each search, compared with mctx's searches and with the bare network?

    python -m benchmarks.speed --preset quick         # 7x7, about an hour on two cores
    python -m benchmarks.speed --preset full          # more networks and simulations: hours
    python -m benchmarks.speed --preset pgx           # pgx's AlphaZero example, with fewer roots;
                                                      # also with --roots 1024
    python -m benchmarks.speed --preset accelerator   # large networks on 9x9 and 11x11: for a GPU
    python -m benchmarks.speed --preset many-actions  # 1,000 and 4,672 actions, of a blank game

Our searches run with K = 32 and with the default of K, as trees ("cached" in the names) and as
rollouts ("constant"). Every search is compared with the bare network, which evaluates one state for
each simulation of each root, in the batch size that is fastest for it. The searches evaluate at
most as many states at once; tables call this size `max_batch`. Ratios to mctx are to the faster of
its two searches. As machines are noisy, the searches take turns; a ratio is the median of the
ratios within a turn.
"""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import pictures, report, runs
from benchmarks.players import TUNED, Spec, describe, load_network, make_player
from jaxpgs.checks import refusals_in_one_line
from jaxpgs.search import default_simulations_per_update

K = {"simulations_per_update": 32}
# Fast settings take more turns than the preset's number: until this time or number is reached.
SECONDS, MOST_TURNS = 15.0, 50
MCTX = (Spec("mctx MuZero", "muzero", TUNED["muzero"]), Spec("mctx Gumbel", "gumbel"))
SEARCHES = (
    *MCTX,
    Spec("batched MCTS", "mcts", TUNED["mcts"] | K),
    Spec("MCS cached", "mcs", TUNED["mcs"] | K),
    Spec("MCS constant", "mcs", TUNED["mcs"] | K | {"mode": "constant"}),
    Spec("PGS cached", "pgs", TUNED["pgs"] | K),
    Spec("PGS constant", "pgs", TUNED["pgs"] | K | {"mode": "constant"}),
)
# Searches with their defaults; K has its default too, unless the knobs have another value.
DEFAULTS = (
    Spec("Gumbel MCTS", "gumbel-mcts"),
    Spec("Gumbel MCTS rounds", "gumbel-mcts", {"simulations_per_update": "rounds"}),
    Spec("Gumbel PGS cached", "gumbel-pgs", {"mode": "cached"}),
    Spec("PGS default", "pgs"),
)


class Preset(NamedTuple):
    """The settings to measure: all combinations of networks, numbers of roots and simulations.

    `networks` has the largest number of evaluations (roots times simulations) for each network;
    larger settings are left out. Every search is timed in at least `turns` turns. `searches` names
    those of ours to time, None for all; mctx's are always timed.
    """

    networks: Mapping[str, int]
    batches: Sequence[int]
    simulations: Sequence[int]
    turns: int
    searches: Sequence[str] | None = None


_ANY = 10**9
PRESETS = {
    "quick": Preset({"hex-7x7": 65_536, "conv-7x7-32x4": 65_536}, [1, 16, 64, 256], [64, 256], 3),
    "full": Preset(
        {
            "hex-7x7": 262_144,
            "conv-5x5-16x2": 65_536,
            "conv-7x7-32x4": 65_536,
            "conv-9x9-128x10": 1_024,
        },
        [1, 16, 64, 256, 1024],
        [64, 256, 800],
        3,
    ),
    # The network and the simulations of pgx's AlphaZero example; its 1,024 roots need a GPU.
    "pgx": Preset({"conv-9x9-128x6": _ANY}, [1, 64], [32], 3, [spec.name for spec in DEFAULTS]),
    "many-actions": Preset(
        {"blank-1000": _ANY, "blank-4672": _ANY}, [64], [32], 3, [s.name for s in DEFAULTS[:2]]
    ),
    "accelerator": Preset(
        {
            f"conv-{board}-{shape}{dtype}": most
            for board in ("9x9", "11x11")
            for shape, most in (("128x10", _ANY), ("256x19", 262_144))
            for dtype in ("", "-bfloat16")
        }
        | {"hex-7x7": _ANY},
        [1, 16, 64, 256, 1024],
        [64, 256, 800],
        5,
    ),
}


def contestants(num_simulations: int) -> list[Spec]:
    """Returns mctx's searches, ours with K = 32 and with the default of K, and `DEFAULTS`."""
    few = default_simulations_per_update(num_simulations)
    ours = [spec for spec in SEARCHES if spec not in MCTX]
    often = [s._replace(knobs={**s.knobs, "simulations_per_update": few}) for s in ours]
    as_they_come = [s._replace(knobs={"simulations_per_update": few, **s.knobs}) for s in DEFAULTS]
    wide = ours if few != K["simulations_per_update"] else []
    return [*MCTX, *wide, *often, *as_they_come]


def in_pieces(network: Any, batch: int) -> Any:
    """Returns the network in a form that evaluates at most `batch` states at once.

    The batch size that is fastest for the bare network suits the searches as well: mctx's, which
    call the network for all roots at once, and our trees, which gather the new states of all roots.
    """
    torso = network.apply_fn.torso

    def in_turn(params: Any, observation: jax.Array) -> Any:
        if len(observation) <= batch:
            return torso(params, observation)

        def one(observation: jax.Array) -> Any:
            return jax.tree.map(lambda x: x[0], torso(params, observation[None]))

        return jax.lax.map(one, observation, batch_size=batch)

    split = dataclasses.replace(network.apply_fn, torso=in_turn, max_batch=batch)
    return SimpleNamespace(env=network.env, params=network.params, apply_fn=split)


def positions(env: Any, batch_size: int, seed: int, num_moves: int = 4) -> Any:
    """Returns a batch of positions after a few random moves."""

    def play(state: Any, key: Any) -> tuple[Any, None]:
        keys = jax.random.split(key, batch_size)
        logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        return jax.vmap(env.step)(state, jax.vmap(jax.random.categorical)(keys, logits)), None

    start = jax.vmap(env.init)(jax.random.split(jax.random.key(seed), batch_size))
    return jax.lax.scan(play, start, jax.random.split(jax.random.key(seed), num_moves))[0]


def compile_search(
    spec: Spec, network: Any, states: Any, num_simulations: int
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Compiles a search; returns a function that runs it, and the first fields of its row."""
    player = make_player(spec, network, num_simulations)
    key = jax.random.key(0)
    start = time.perf_counter()
    compiled = jax.jit(player.act).lower(key, states, ()).compile()
    seconds = time.perf_counter() - start
    stats = jax.device_get(compiled(key, states, ())[2])
    memory: Any = compiled.memory_analysis()
    batch_size = states.terminated.shape[0]
    return lambda: compiled(key, states, ()), {
        "search": spec.name,
        "K": describe(spec, network, num_simulations)["K"],
        "knobs": dict(spec.knobs),
        "sequential_calls": int(stats["num_calls"]),
        "evaluations_per_root": round(float(stats["num_evaluations"]) / batch_size, 1),
        "temp_bytes": memory.temp_size_in_bytes,
        "compile_seconds": round(seconds, 1),
    }


def bare_network(
    network: Any, num_evaluations: int, seed: int
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """As `compile_search`, for the bare network on this many states, in the fastest batch size."""
    best: tuple[float, int, Any] | None = None
    sizes = sorted({min(size, num_evaluations) for size in (32, 128, 256, 512, 1024, 4096)})
    if jax.default_backend() != "cpu":
        sizes = sorted({*sizes, min(16_384, num_evaluations)})
    for size in sizes:
        states = positions(network.env, size, seed)
        observation = jax.vmap(network.env.observe)(states)

        def evaluate(params: Any, observation: Any, length: int) -> Any:
            def some(total: Any, _: None) -> tuple[Any, None]:
                # The input depends on the previous step; else XLA would evaluate the network once.
                nudge = (total * 0).astype(observation.dtype)
                logits, value = network.apply_fn(params, observation + nudge)
                return total + jnp.sum(logits) + jnp.sum(value), None

            return jax.lax.scan(some, jnp.float32(0), length=length)[0]

        def compiled_for(length: int, evaluate: Any = evaluate, x: Any = observation) -> Any:
            lowered = jax.jit(evaluate, static_argnums=2).lower(network.params, x, length)
            compiled = lowered.compile()
            return lambda: compiled(network.params, x)

        probe = max(min(num_evaluations, 4096) // size, 1)
        call = compiled_for(probe)
        seconds = min(time_call(call) for _ in range(3)) / (probe * size)
        if best is None or seconds < best[0]:
            best = (seconds, size, compiled_for(-(-num_evaluations // size)))
    assert best is not None
    return best[2], {"search": "bare network", "K": None, "max_batch": best[1]}


def measure(
    name: str,
    num_roots: int,
    num_simulations: int,
    turns: int,
    seed: int,
    searches: Sequence[str] | None = None,
) -> list[dict]:
    """Times mctx's searches and ours, or those of ours that are named, in one setting.

    Returns:
      A dict ready for JSON for each search, the bare network first.
    """
    from benchmarks import memory  # here, as that module imports this one

    network = memory.load(name) if name.startswith("blank") else load_network(name)
    states = positions(network.env, num_roots, seed)
    systems = [bare_network(network, num_roots * num_simulations, seed)]
    max_batch = systems[0][1]["max_batch"]
    network = in_pieces(network, max_batch)
    specs = [
        spec
        for spec in contestants(num_simulations)
        if searches is None or spec in MCTX or spec.name in searches
    ]
    systems += [compile_search(spec, network, states, num_simulations) for spec in specs]
    taken_turns: list[list[float]] = []
    begin = time.perf_counter()
    while len(taken_turns) <= turns or (
        len(taken_turns) <= MOST_TURNS and time.perf_counter() - begin < SECONDS
    ):
        taken_turns.append([time_call(call) for call, _ in systems])
    seconds = np.array(taken_turns[1:])  # the first one warms up
    mctx = min((1, 2), key=lambda i: float(np.median(seconds[:, i])))
    return [
        {"network": name, "roots": num_roots, "simulations": num_simulations}
        | row
        | {
            "max_batch": max_batch,
            "ms": round(1e3 * float(np.median(taken)), 3),
            "searches_per_second": round(num_roots / float(np.median(taken)), 2),
            "over_bare": _quartiles(taken / seconds[:, 0]),
            "mctx_over_this": _quartiles(seconds[:, mctx] / taken),
            "faster_mctx": systems[mctx][1]["search"],
            "turns": len(seconds),
        }
        for (_, row), taken in zip(systems, seconds.T, strict=True)
    ]


@refusals_in_one_line("python -m benchmarks.speed")
def main(argv: list[str] | None = None) -> None:
    """Measures a preset's settings; see the module's docstring."""
    parser = runs.parser("speed", __doc__, PRESETS)
    add = parser.add_argument
    add("--networks", nargs="+", help="in place of the preset's")
    add("--roots", nargs="+", type=runs.positive, dest="batches", help="likewise")
    add("--simulations", nargs="+", type=runs.positive, help="likewise")
    ours = sorted({spec.name for spec in (*SEARCHES, *DEFAULTS)} - {spec.name for spec in MCTX})
    add("--searches", nargs="+", choices=ours, help="only these of ours")
    add("--turns", type=runs.positive, help="how often each search is timed, at least")
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    most = preset.networks
    preset = runs.override(preset, args)
    key = ("network", "roots", "simulations", "search", "K")
    record = runs.open_record(parser, args, {"seed": args.seed}, key)
    todo = [
        (name, num_roots, count)
        for name in args.networks or most
        for count in preset.simulations
        for num_roots in preset.batches
        if num_roots * count <= most.get(name, _ANY)
    ]
    with report.progress_bar("speed") as progress:
        for i, (name, num_roots, count) in enumerate(todo):
            progress(i, len(todo), f"{name}, {num_roots} roots, {count} simulations")
            setting = {"network": name, "roots": num_roots, "simulations": count}
            if not runs.has(record, **setting, search="bare network"):
                about = (preset.turns, args.seed, preset.searches)
                runs.add(record, *measure(name, num_roots, count, *about))
    rows = runs.read(record)
    report.print_table("Milliseconds a search", *table(rows))
    plot(record.path.with_suffix(".png"), rows)
    print(f"Wrote {record.path} and {record.path.with_suffix('.png')}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search of each setting."""
    columns = ["network", "simulations", "roots", "search", "K", "ms", "searches a second",
               "x bare network", "% of its evaluations a second", "x as fast as mctx's faster",
               "calls in a row", "max_batch", "scratch MB", "compile s"]  # fmt: skip
    return columns, [
        [row["network"], row["simulations"], row["roots"], report.present_name(row["search"]),
         row.get("K"), row["ms"], row["searches_per_second"], quartiles_text(row["over_bare"]),
         round(100 * row["evaluations_per_root"] / row["simulations"] / row["over_bare"][1])
         if "evaluations_per_root" in row else None,
         quartiles_text(row["mctx_over_this"]), row.get("sequential_calls"), row["max_batch"],
         round(row["temp_bytes"] / 1e6, 1) if "temp_bytes" in row else None,
         row.get("compile_seconds")]
        for row in rows
    ]  # fmt: skip


def quartiles_text(values: Sequence[float]) -> str:
    """Returns the median with the other two quartiles, or the value if there is only one."""
    if len(values) == 1:
        return f"{values[0]:g}"
    low, middle, high = values
    return f"{middle:g} ({low:g}–{high:g})"


def plot(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws each search's time over the bare network's against the roots, for each network."""
    count = max((row["simulations"] for row in rows if row["simulations"] <= 256), default=64)
    few = min({row.get("K") or 1 for row in rows if row["simulations"] == count} - {1}, default=1)
    panels: dict[str, dict[str, list[Any]]] = {}
    for row in sorted(rows, key=lambda row: row["roots"]):
        if (
            row["simulations"] == count
            and (row.get("K") in (1, few) or row["search"] == "Gumbel MCTS rounds")
            and row["search"] != "bare network"
        ):
            lines = panels.setdefault(row["network"], {})
            lines.setdefault(report.present_name(row["search"]), []).append(
                (row["roots"], row["over_bare"])
            )
    if not panels:
        return
    pictures.line_plot(
        path, panels, xlabel="roots searched at once", ylabel="time / bare network's time",
        title=f"Searches beside the bare network, {count} simulations, K = {few}",
    )  # fmt: skip


def time_call(call: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def _quartiles(ratios: np.ndarray) -> list[float]:
    return [round(float(q), 2) for q in np.quantile(ratios, (0.25, 0.5, 0.75))]


if __name__ == "__main__":
    main()
