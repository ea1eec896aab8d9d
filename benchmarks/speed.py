"""How fast is each search, beside the bare network? Milliseconds a search, all in one run.

    python -m benchmarks.speed --preset quick         # 7x7, 256 simulations, minutes on two cores
    python -m benchmarks.speed --preset full          # more batches and simulations: an hour
    python -m benchmarks.speed --preset accelerator   # 9x9, 10x128 and 19x256: for a GPU

The limit is the time of the network evaluations alone, so every search is shown beside the bare
network on as many states, in the batch that suits it best. Machines are noisy: the searches take
turns, and what counts is the median of their ratios within a turn, with the quartiles. Results go
to a JSON file after every setting; started again with the same file, the command goes on.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxpgs
from benchmarks import report
from benchmarks.players import TUNED, Spec, make_player
from benchmarks.report import RESULTS

K = {"simulations_per_update": 32}
# Quick settings take more turns than the preset's: until so many seconds have passed.
SECONDS, MOST_TURNS = 15.0, 50
SEARCHES = (
    Spec("mctx MuZero", "muzero", TUNED["muzero"]),
    Spec("mctx Gumbel", "gumbel"),
    Spec("batched MCTS", "mcts", TUNED["mcts"] | K),
    Spec("MCS cached", "mcs", TUNED["mcs"] | K),
    Spec("PGS cached", "pgs", TUNED["pgs"] | K),
    Spec("PGS constant", "pgs", TUNED["pgs"] | K | {"mode": "constant"}),
)


class Preset(NamedTuple):
    """What to measure: networks, each with the most evaluations that a setting may have.

    Every search is timed in `turns` turns at least.
    """

    networks: Mapping[str, int]
    batches: Sequence[int]
    simulations: Sequence[int]
    turns: int


_ANY = 10**9
PRESETS = {
    "quick": Preset({"hex-7x7": 16_384, "conv-7x7-32x4": 16_384}, [1, 16, 64], [256], 5),
    "full": Preset(
        {
            "hex-7x7": 65_536,
            "conv-5x5-16x2": 16_384,
            "conv-7x7-32x4": 16_384,
            "conv-9x9-128x10": 1_024,
        },
        [1, 16, 64, 256, 1024],
        [64, 256, 800],
        3,
    ),
    "accelerator": Preset(
        {"conv-9x9-128x10": _ANY, "conv-9x9-256x19": _ANY, "hex-7x7": _ANY},
        [1, 16, 64, 256, 1024],
        [64, 256, 800],
        5,
    ),
}


def load_network(name: str) -> Any:
    """Returns env, params and apply_fn of a pretrained network or an untrained convolutional one.

    Args:
      name: a pretrained network's, or `conv-7x7-32x4` for 32 filters and 4 blocks on 7x7. Its
        weights are random: its policy is almost uniform, so that walks are short.
    """
    if name in jaxpgs.available_pretrained():
        return jaxpgs.load_pretrained(name)
    _, board, shape = name.split("-")
    filters, blocks = (int(number) for number in shape.split("x"))
    env = jaxpgs.envs.Hex(size=int(board.split("x")[0]))
    observed = jax.eval_shape(lambda: env.observe(env.init()))
    module = jaxpgs.networks.AlphaZeroResNet(
        observed.shape, env.num_actions, num_filters=filters, num_blocks=blocks, rngs=nnx.Rngs(0)
    )
    params, apply_fn = jaxpgs.networks.functional(module)
    return SimpleNamespace(env=env, params=params, apply_fn=apply_fn)


def in_pieces(network: Any, batch: int) -> Any:
    """Returns the network for searches that evaluate in pieces of a batch.

    What suits the bare network best suits a cached search as well.
    """
    split = dataclasses.replace(network.apply_fn, max_batch=batch)
    return SimpleNamespace(env=network.env, params=network.params, apply_fn=split)


def positions(env: Any, batch_size: int, seed: int, num_moves: int = 4) -> Any:
    """Returns a batch of positions after a few random moves."""

    def play(state: Any, key: Any) -> tuple[Any, None]:
        keys = jax.random.split(key, batch_size)
        logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        return jax.vmap(env.step)(state, jax.vmap(jax.random.categorical)(keys, logits)), None

    start = jax.vmap(lambda _: env.init())(jnp.arange(batch_size))
    return jax.lax.scan(play, start, jax.random.split(jax.random.key(seed), num_moves))[0]


def compile_search(
    spec: Spec, network: Any, states: Any, num_simulations: int
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Compiles a search; returns a call of it, and what is known of it without running it long."""
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
        "knobs": dict(spec.knobs),
        "sequential_calls": int(stats["num_calls"]),
        "evaluations_per_root": round(float(stats["num_evaluations"]) / batch_size, 1),
        "temp_bytes": memory.temp_size_in_bytes,
        "compile_seconds": round(seconds, 1),
    }


def bare_network(
    network: Any, num_evaluations: int, seed: int
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Compiles the bare network on so many states, in the fastest of several batch sizes."""
    best: tuple[float, int, Any] | None = None
    sizes = sorted({min(size, num_evaluations) for size in (32, 128, 256, 512, 1024, 4096)})
    if jax.default_backend() != "cpu":
        sizes = sorted({*sizes, min(16_384, num_evaluations)})
    for size in sizes:
        states = positions(network.env, size, seed)
        observation = jax.vmap(network.env.observe)(states)

        def evaluate(params: Any, observation: Any, length: int) -> Any:
            def some(total: Any, _: None) -> tuple[Any, None]:
                # The input depends on the step before, or the loop would be evaluated once.
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
    return best[2], {"search": "bare network", "batch": best[1]}


def measure(name: str, batch_size: int, num_simulations: int, turns: int, seed: int) -> dict:
    """Times all searches of one setting in turn.

    Returns:
      A dict ready for JSON, with a row per search.
    """
    network = load_network(name)
    states = positions(network.env, batch_size, seed)
    systems = [bare_network(network, batch_size * num_simulations, seed)]
    network = in_pieces(network, systems[0][1]["batch"])
    systems += [compile_search(spec, network, states, num_simulations) for spec in SEARCHES]
    taken_turns: list[list[float]] = []
    begin = time.perf_counter()
    while len(taken_turns) <= turns or (
        len(taken_turns) <= MOST_TURNS and time.perf_counter() - begin < SECONDS
    ):
        taken_turns.append([time_call(call) for call, _ in systems])
    seconds = np.array(taken_turns[1:])  # the first one warms up
    rows = []
    for (_, row), taken in zip(systems, seconds.T, strict=True):
        rows.append(
            row
            | {
                "ms": round(1e3 * float(np.median(taken)), 3),
                "searches_per_second": round(batch_size / float(np.median(taken)), 2),
                "over_bare": _quartiles(taken / seconds[:, 0]),
                "mctx_over_this": _quartiles(seconds[:, 1] / taken),
            }
        )
    return {
        "network": name,
        "roots": batch_size,
        "simulations": num_simulations,
        "date": report.now(),
        "turns": len(seconds),
        "rows": rows,
    }


def main(argv: list[str] | None = None) -> None:
    """Measures a preset's settings; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON file to write or go on with")
    parser.add_argument("--networks", nargs="+", help="in place of the preset's")
    parser.add_argument("--turns", type=int, help="how often each search is timed, at least")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    out = args.out or RESULTS / f"speed_{args.preset}.json"
    saved = json.loads(out.read_text()) if out.exists() else {}
    record = {
        "command": f"python -m benchmarks.speed --preset {args.preset}",
        "environment": saved.get("environment", report.environment_record(args.seed)),
        "settings": saved.get("settings", []),
    }
    done = {(s["network"], s["roots"], s["simulations"]) for s in record["settings"]}
    todo = [
        (name, batch_size, count)
        for name in args.networks or preset.networks
        for count in preset.simulations
        for batch_size in preset.batches
        if batch_size * count <= preset.networks.get(name, _ANY)
        and (name, batch_size, count) not in done
    ]
    with report.progress_bar("speed") as progress:
        for i, (name, batch_size, count) in enumerate(todo):
            progress(i, len(todo), f"{name}, {batch_size} roots, {count} simulations")
            turns = args.turns or preset.turns
            record["settings"].append(measure(name, batch_size, count, turns, args.seed))
            report.write_json(out, record)
    show(record["settings"])
    plot(out.with_suffix(".png"), record["settings"])
    print(f"Wrote {out} and {out.with_suffix('.png')}.")


def show(settings: Sequence[Mapping[str, Any]]) -> None:
    """Prints a table for each setting."""
    columns = ("search", "ms", "x bare", "quartiles", "mctx / this", "calls", "MB", "compile s")
    for setting in settings:
        title = "{network}, {roots} roots, {simulations} simulations".format(**setting)
        rows = [
            [
                row["search"],
                row["ms"],
                row["over_bare"][1],
                "{}-{}".format(*row["over_bare"][::2]),
                row["mctx_over_this"][1],
                row.get("sequential_calls"),
                None if "temp_bytes" not in row else round(row["temp_bytes"] / 1e6, 1),
                row.get("compile_seconds"),
            ]
            for row in setting["rows"]
        ]
        report.print_table(title, columns, rows)


def plot(path: pathlib.Path, settings: Sequence[Mapping[str, Any]]) -> None:
    """Draws, for each network, how many times the bare network's time each search takes."""
    count = 256
    networks = sorted({s["network"] for s in settings if s["simulations"] == count})
    lines = {
        network: {
            spec.name: [
                (s["roots"], row["over_bare"])
                for s in settings
                if s["network"] == network and s["simulations"] == count
                for row in s["rows"]
                if row["search"] == spec.name
            ]
            for spec in SEARCHES
        }
        for network in networks
    }
    report.line_plot(
        path, lines, xlabel="roots searched at once", ylabel="time / bare network's time",
        title=f"Searches beside the bare network, {count} simulations",
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
