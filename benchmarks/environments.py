"""How many moves a second does Hex play? Ours beside pgx's and OpenSpiel's.

    python -m benchmarks.environments --preset quick   # 11x11, two minutes on two cores
    python -m benchmarks.environments --preset full    # more batches, boards from 5x5 to 19x19

Whole games from the empty board, finished ones waiting for the others; only moves that were played
count. "Given" replays recorded games, so that little but the environment's step is timed. "Random"
draws one number for each board and step and plays the legal move of that rank. All systems of a
batch take turns, and ratios are taken turn by turn: the machine's mood drops out of them.

pgx (in the extra `test`) has 11x11 only and always the swap rule, so ours is measured with and
without. Its step makes an observation and ours does not; it is dropped from pgx's state, and XLA
drops the work. The rows "observed" are with it.
"""

import argparse
import pathlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pgx
import pyspiel
from pgx.experimental import act_randomly, auto_reset

from benchmarks import report
from jaxpgs.envs import Hex

RESULTS = pathlib.Path(__file__).parent / "results"
BATCHES = {"quick": (1, 64, 1024, 16384), "full": (1, 4, 16, 64, 256, 1024, 4096, 16384)}
SIZES = {"quick": (11,), "full": (5, 7, 9, 11, 13, 15, 17, 19)}
PGX_SIZE, MAIN_BATCH = 11, 1024  # the board of all batches, and the batch of all boards
MODES = {"given": "given moves", "random": "random play"}
SHOWN = ("ours", "ours, swap rule", "pgx", "OpenSpiel")
WHAT_IS_TIMED = {
    "ours": "jitted scan over jax.vmap(Hex(size).step)",
    "ours, swap rule": "the same with Hex(size, swap=True), the game that pgx plays",
    "ours, swap rule, observed": "the same, and Hex.observe after every step",
    "pgx": "jitted scan over jax.vmap(env.step), its observation dropped; actions drawn like ours",
    "pgx, observed": "the same with the observation that its step makes",
    "pgx, its own way": "its act_randomly and auto_reset, with its observation; every step counts, "
    "as games start again at once",
    "OpenSpiel": "one thread. Given: one Game.deserialize_state a game, which reads the moves from "
    "text and plays them in C++; a Python call a move takes twice as long. Random: "
    "RandomRolloutEvaluator in an MCTSBot of one simulation, all C++; its moves are its games "
    "times the mean length of the recorded games, which are as random",
}


class Engine(NamedTuple):
    """An environment in batches: what the scans below need of it."""

    init: Callable[[chex.PRNGKey], Any]
    step: Callable[[Any, chex.Array], Any]
    mask: Callable[[Any], chex.Array]
    board: Callable[[Any], chex.Array]
    over: Callable[[Any], chex.Array]


class System(NamedTuple):
    """Something to time: `play(turn)` waits for its result, in which `moves` counts."""

    name: str
    mode: str
    play: Callable[[int], Any]
    moves: Callable[[Any], float]
    compile_seconds: float | None = None


def ours(size: int, swap: bool, observed: bool = False) -> Engine:
    """Wraps `jaxpgs.envs.Hex`; with `observed`, every step makes an observation too."""
    env = Hex(size, swap)

    def observe(state: Any) -> Any:
        return state, jax.vmap(env.observe)(state) if observed else None

    return Engine(
        init=lambda keys: observe(jax.vmap(env.init)(keys)),
        step=lambda state, action: observe(jax.vmap(env.step)(state[0], action)),
        mask=lambda state: state[0].legal_action_mask,
        board=lambda state: state[0].labels,
        over=lambda state: state[0].terminated,
    )


def pgx_hex(observed: bool = False) -> Engine:
    """Wraps pgx's Hex; without `observed` nothing needs its observation and XLA leaves it out."""
    env = pgx.make("hex")

    def drop(state: Any) -> Any:
        return state if observed else state.replace(observation=jnp.zeros_like(state.terminated))

    return Engine(
        init=lambda keys: drop(jax.vmap(env.init)(keys)),
        step=lambda state, action: drop(jax.vmap(env.step)(state, action)),
        mask=lambda state: state.legal_action_mask,
        board=lambda state: state._x.board,
        over=lambda state: state.terminated,
    )


def pick(mask: chex.Array, number: chex.Array) -> chex.Array:
    """Picks legal actions by rank, uniformly for uniform numbers.

    Args:
      mask: `[B, A]` bool.
      number: `[B]` float32 in [0, 1).

    Returns:
      `[B]` int32, the legal action of rank `floor(number * legal actions)`; without legal actions
      any action.
    """
    num_actions = mask.shape[1]
    # 32 cells to a bit set, in which the set bit of a rank is five halvings away. By slices, since
    # XLA's CPU backend is slow with reductions over more than 32 elements.
    words = [_bits(mask[:, start : start + 32]) for start in range(0, num_actions, 32)]
    counts = [jax.lax.population_count(word).astype(jnp.int32) for word in words]
    rank = jnp.floor(number * sum(counts)).astype(jnp.int32)
    word, before = words[0], jnp.zeros_like(rank)
    action = skipped = before
    for index in range(1, len(words)):
        before = before + counts[index - 1]
        later = rank >= before
        word = jnp.where(later, words[index], word)
        action = jnp.where(later, 32 * index, action)
        skipped = jnp.where(later, before, skipped)
    rank = rank - skipped
    for half in (16, 8, 4, 2, 1):
        low = word & jnp.uint32((1 << half) - 1)
        count = jax.lax.population_count(low).astype(jnp.int32)
        upper = rank >= count
        word = jnp.where(upper, word >> half, low)
        rank = jnp.where(upper, rank - count, rank)
        action = jnp.where(upper, action + half, action)
    return jnp.minimum(action, num_actions - 1)


def _bits(mask: chex.Array) -> chex.Array:
    places = jnp.arange(mask.shape[1], dtype=jnp.uint32)
    return jnp.sum(mask.astype(jnp.uint32) << places, axis=-1, dtype=jnp.uint32)


def replay(engine: Engine) -> Callable[..., Any]:
    """Makes `f(start, actions [G, T, B])`, which plays G batches of games one after another."""

    def game(start: Any, actions: chex.Array) -> Any:
        final, _ = jax.lax.scan(lambda s, action: (engine.step(s, action), None), start, actions)
        return start, final

    return lambda start, actions: jax.lax.scan(game, start, actions)[1]


def random_play(engine: Engine, num_steps: int) -> Callable[..., Any]:
    """Makes `f(start, keys [G])`, which plays G batches of random games one after another."""

    def game(start: Any, key: chex.PRNGKey) -> Any:
        mask = engine.mask(start)
        numbers = jax.random.uniform(key, (num_steps + 1, mask.shape[0]))

        # The action waits in the carry: chosen in the body that plays it, XLA would choose it again
        # in every loop that reads it.
        def body(carry: Any, number: chex.Array) -> Any:
            state = engine.step(*carry)
            return (state, pick(engine.mask(state), number)), None

        (final, _), _ = jax.lax.scan(body, (start, pick(mask, numbers[0])), numbers[1:])
        return start, final

    return lambda start, keys: jax.lax.scan(game, start, keys)[1]


def random_play_of_pgx(num_steps: int) -> Callable[..., Any]:
    """Makes `f(start, keys [G])`, random play with pgx's own helpers, games starting again."""
    env = pgx.make("hex")
    step = jax.vmap(auto_reset(env.step, env.init))

    def body(state: Any, key: chex.PRNGKey) -> Any:
        act, reset = jax.random.split(key)
        action = act_randomly(act, state.legal_action_mask)
        return step(state, action, jax.random.split(reset, action.shape[0])), None

    def game(state: Any, key: chex.PRNGKey) -> Any:
        return jax.lax.scan(body, state, jax.random.split(key, num_steps))[0], None

    return lambda start, keys: jax.lax.scan(game, start, keys)[0]


def systems(size: int, batch: int, seed: int, turns: int) -> list[System]:
    """Compiles all systems of one board and batch, and checks that they play the same games."""
    groups = max(1, min(32, 4096 // batch))  # fewer would be over too soon to be timed
    # A random order of the cells is a random game and what nobody plays after its end.
    order = np.tile(np.arange(size**2, dtype=np.int32), (groups, batch, 1))
    order = np.random.default_rng(seed).permuted(order, axis=-1)
    actions = [jnp.asarray(order.swapaxes(1, 2))] * turns
    keys = list(jax.random.split(jax.random.key(seed), (turns, groups)))
    first = jax.random.split(jax.random.key(seed), batch)

    def compiled(name: str, mode: str, engine: Engine, function: Any) -> System:
        start, inputs = jax.jit(engine.init)(first), actions if mode == "given" else keys
        begin = time.perf_counter()
        run = jax.jit(function).lower(start, inputs[0]).compile()
        seconds = time.perf_counter() - begin

        def moves(final: Any) -> float:
            if not bool(jnp.all(engine.over(final))):
                raise RuntimeError(f"{name} did not finish its games.")
            # Every move puts a stone, but for a swap: less than one in ten thousand.
            return float(np.count_nonzero(engine.board(final)))

        def play(turn: int) -> Any:
            return jax.block_until_ready(run(start, inputs[turn]))

        play(0)
        return System(name, mode, play, moves, seconds)

    engines = {"ours": ours(size, swap=False), "ours, swap rule": ours(size, swap=True)}
    if size == PGX_SIZE:
        engines["pgx"] = pgx_hex()
    steps = {name: size**2 + (name != "ours") for name in engines}  # a swap is a move, too
    made = [
        system
        for name, engine in engines.items()
        for system in (
            compiled(name, "given", engine, replay(engine)),
            compiled(name, "random", engine, random_play(engine, steps[name])),
        )
    ]
    if (size, batch) == (PGX_SIZE, MAIN_BATCH):
        engines["ours, swap rule, observed"] = ours(size, swap=True, observed=True)
        engines["pgx, observed"] = pgx_hex(observed=True)
        for name in ("ours, swap rule, observed", "pgx, observed"):
            made.append(compiled(name, "given", engines[name], replay(engines[name])))
        function, played = random_play_of_pgx(size**2), groups * batch * size**2
        own = compiled("pgx, its own way", "random", engines["pgx, observed"], function)
        made.append(own._replace(moves=lambda _: played))
    stones = [np.asarray(engines[s.name].board(s.play(0))) != 0 for s in made if s.mode == "given"]
    if not all((other == stones[0]).all() for other in stones):
        raise RuntimeError("The recorded games do not end on the same boards everywhere.")
    lengths = stones[0].sum(axis=-1).ravel()[:512]
    games = [row[:n].tolist() for row, n in zip(order.reshape(-1, size**2), lengths, strict=False)]
    return made + open_spiel(size, games, seed)


def open_spiel(size: int, games: list[list[int]], seed: int) -> list[System]:
    """Makes OpenSpiel's two systems; `games` are played from the first move to the winning one."""
    game = pyspiel.load_game("hex", {"board_size": size})
    texts = ["\n".join(map(str, actions)) for actions in games]
    # The first simulation of a search evaluates its root: rollouts from the empty board, no tree.
    evaluator = pyspiel.RandomRolloutEvaluator(len(games), seed)
    bot = pyspiel.MCTSBot(game, evaluator, 1.0, 1, 100, False, seed, False)
    moves = sum(map(len, games))

    def given(turn: int) -> Any:
        return [game.deserialize_state(text) for text in texts]

    def roll_out(turn: int) -> Any:
        return bot.mcts_search(game.new_initial_state())

    if not all(state.is_terminal() for state in given(0)):
        raise RuntimeError("OpenSpiel does not end a game where ours does.")
    return [
        System("OpenSpiel", "given", given, lambda _: moves),
        System("OpenSpiel", "random", roll_out, lambda _: moves),
    ]


def measure(size: int, batch: int, seed: int, turns: int) -> list[dict[str, Any]]:
    """Times all systems in turns, in a new order every turn.

    Args:
      size: the board's.
      batch: B.
      seed: of games and orders.
      turns: how often each system is timed.

    Returns:
      One row, ready for JSON, for each system.
    """
    contestants = systems(size, batch, seed, turns)
    speeds: dict[tuple[str, str], list[float]] = {(s.mode, s.name): [] for s in contestants}
    shuffled = random.Random(seed)
    for turn in range(turns):
        for system in shuffled.sample(contestants, len(contestants)):
            begin = time.perf_counter()
            result = system.play(turn)
            seconds = time.perf_counter() - begin
            speeds[system.mode, system.name].append(system.moves(result) / seconds)
    return [
        {
            "mode": s.mode,
            "size": size,
            "batch": batch,
            "system": s.name,
            "moves_per_second": _spread(speeds[s.mode, s.name]),
            "times": {
                other: _spread(np.divide(speeds[s.mode, s.name], speeds[s.mode, other]))
                for other in ("pgx", "OpenSpiel")
                if (s.mode, other) in speeds
            },
            "compile_seconds": s.compile_seconds,
        }
        for s in contestants
    ]


def main(argv: list[str] | None = None) -> None:
    """Measures a preset; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.environments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=BATCHES, default="quick")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "environments.json")
    parser.add_argument("--turns", type=int, default=7, help="how often each system is timed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    settings = [(PGX_SIZE, batch) for batch in BATCHES[args.preset]]
    settings += [(size, MAIN_BATCH) for size in SIZES[args.preset] if size != PGX_SIZE]
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    with report.progress_bar("environments") as progress:
        for index, (size, batch) in enumerate(settings):
            progress(index, len(settings), f"{size}x{size}, batch {batch:,}")
            rows += measure(size, batch, args.seed, args.turns)
    record = {
        "command": f"python -m benchmarks.environments --preset {args.preset}",
        "environment": report.environment_record(args.seed),
        "seconds": time.perf_counter() - begin,
        "what_is_timed": WHAT_IS_TIMED,
        "rows": rows,
    }
    report.write_json(args.out, record)
    show(rows)
    print(f"Wrote {', '.join(map(str, [args.out, *plot(args.out, rows)]))}.")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Prints a table for each mode."""
    columns = ["board", "batch", "system", "M moves/s", "quartiles", "times pgx", "quartiles",
               "times OpenSpiel", "quartiles", "compile s"]  # fmt: skip
    for mode, heading in MODES.items():
        cells = [
            [
                f"{row['size']}x{row['size']}", row["batch"], row["system"],
                *_cells(row["moves_per_second"], 1e6),
                *_cells(row["times"].get("pgx")),
                *_cells(row["times"]["OpenSpiel"]),
                row["compile_seconds"] and round(row["compile_seconds"], 1),
            ]
            for row in rows
            if row["mode"] == mode
        ]  # fmt: skip
        report.print_table(heading.capitalize(), columns, cells)


def plot(out: pathlib.Path, rows: Sequence[dict[str, Any]]) -> list[pathlib.Path]:
    """Draws moves a second against the batch and, in a second picture, against the cells."""
    pictures = {
        out.with_suffix(".png"): ("batch", "boards at once", ("size", PGX_SIZE)),
        out.with_name(f"{out.stem}_sizes.png"): (
            "size",
            "cells of the board",
            ("batch", MAIN_BATCH),
        ),
    }
    drawn = []
    for path, (axis, label, (fixed, value)) in pictures.items():
        chosen = [row for row in rows if row[fixed] == value]
        if len({row[axis] for row in chosen}) > 1:
            panels = {heading: _lines(chosen, mode, axis) for mode, heading in MODES.items()}
            setting = (
                f"{PGX_SIZE}x{PGX_SIZE}" if axis == "batch" else f"{MAIN_BATCH:,} boards at once"
            )
            report.line_plot(path, panels, title=f"Hex, {setting}; OpenSpiel: one thread",
                             xlabel=label, ylabel="million moves a second")  # fmt: skip
            drawn.append(path)
    return drawn


def _lines(rows: Sequence[dict[str, Any]], mode: str, axis: str) -> dict[str, list[Any]]:
    lines: dict[str, list[Any]] = {name: [] for name in SHOWN}
    for row in sorted(rows, key=lambda row: row[axis]):
        if row["mode"] == mode and row["system"] in lines:
            low, high = row["moves_per_second"]["quartiles"]
            values = np.divide([low, row["moves_per_second"]["median"], high], 1e6)
            place = row["batch"] if axis == "batch" else row["size"] ** 2
            lines[row["system"]].append((place, values.tolist()))
    return {name: points for name, points in lines.items() if points}


def _cells(spread: dict[str, Any] | None, unit: float = 1.0) -> list[Any]:
    if spread is None:
        return [None, None]
    low, high = spread["quartiles"]
    return [float(f"{spread['median'] / unit:.3g}"), f"{low / unit:.3g} to {high / unit:.3g}"]


def _spread(samples: Any) -> dict[str, Any]:
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return {"median": median, "quartiles": [low, high], "samples": list(samples)}


if __name__ == "__main__":
    main()
