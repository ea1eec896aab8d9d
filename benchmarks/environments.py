"""How many moves a second does Hex play? Ours beside pgx's and OpenSpiel's.

    python -m benchmarks.environments --preset quick   # 11x11, two minutes on two cores
    python -m benchmarks.environments --preset full    # more batches, boards from 5x5 to 19x19

Whole games are played from the empty board. Finished games wait for the others, and only moves that
were played count. "Given" replays recorded games, so that little but the environment's step is
timed. "Random" draws one number for each board and step and plays the legal move of that rank. All
systems of a batch take turns, and ratios are taken within a turn, so that the load cancels.

pgx and OpenSpiel (in the extra `test`) are left out if they are not installed. pgx has only 11x11
and always the swap rule, so ours is measured with and without it. Its step computes an observation
and ours does not; the observation is dropped from pgx's state, so XLA removes the computation. The
rows "observed" include it.
"""

import importlib.util
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import report, runs
from jaxpgs.envs import Hex

BATCHES = {"quick": (1, 64, 1024, 16384), "full": (1, 4, 16, 64, 256, 1024, 4096, 16384)}
SIZES = {"quick": (11,), "full": (5, 7, 9, 11, 13, 15, 17, 19)}
PGX_SIZE, MAIN_BATCH = 11, 1024  # all batches use this board, and all boards this batch
WHAT_IS_TIMED = {
    "ours": "jitted scan over jax.vmap(Hex(size).step)",
    "ours, swap rule": "the same with Hex(size, swap=True), the game that pgx plays",
    "ours, swap rule, observed": "the same, and Hex.observe after every step",
    "pgx": "jitted scan over jax.vmap(env.step), its observation dropped; actions drawn like ours",
    "pgx, observed": "the same with the observation that its step makes",
    "pgx, its own way": "the same with pgx's act_randomly, which draws a number for every action",
    "OpenSpiel": "one thread. Given: one Game.deserialize_state a game, which reads the moves from "
    "text and plays them in C++; a Python call a move takes twice as long. Random: "
    "RandomRolloutEvaluator in an MCTSBot of one simulation, all C++; its moves are its games "
    "times the mean length of the recorded games, which are as random",
}


class Engine(NamedTuple):
    """A batched environment, with what the scans below need."""

    init: Callable[[chex.PRNGKey], Any]
    step: Callable[[Any, chex.Array], Any]
    mask: Callable[[Any], chex.Array]
    board: Callable[[Any], chex.Array]
    over: Callable[[Any], chex.Array]


class System(NamedTuple):
    """A system to time: `play(turn)` waits for its result, whose moves `moves` counts."""

    name: str
    mode: str
    play: Callable[[int], Any]
    moves: Callable[[Any], float]
    compile_seconds: float | None = None


def ours(size: int, swap: bool, observed: bool = False) -> Engine:
    """Wraps `jaxpgs.envs.Hex`; with `observed`, every step also computes an observation."""
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
    """Wraps pgx's Hex; without `observed` XLA removes its unused observation."""
    import pgx

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
    """Picks the legal action `[B]` of rank `floor(number * legal actions)`, any if none is."""
    num_actions = mask.shape[1]
    # Bit sets of 32 cells each, in which five halvings find the set bit of a rank. In slices, since
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


def random_play(engine: Engine, num_steps: int, choose: Any = pick) -> Callable[..., Any]:
    """Makes `f(start, keys [G])`, which plays G batches of random games one after another."""

    def game(start: Any, key: chex.PRNGKey) -> Any:
        mask = engine.mask(start)
        draws = jax.random.split(key, num_steps + 1)
        if choose is pick:
            draws = jax.random.uniform(key, (num_steps + 1, mask.shape[0]))

        # The action is in the carry: if the body that plays it chose it, XLA would compute it again
        # in every loop that reads it.
        def body(carry: Any, draw: chex.Array) -> Any:
            state = engine.step(*carry)
            return (state, choose(engine.mask(state), draw)), None

        (final, _), _ = jax.lax.scan(body, (start, choose(mask, draws[0])), draws[1:])
        return start, final

    return lambda start, keys: jax.lax.scan(game, start, keys)[1]


def systems(size: int, batch: int, seed: int, turns: int) -> list[System]:
    """Compiles all systems of one board and batch, and checks that they play the same games."""
    groups = max(1, min(32, 4096 // batch))  # fewer would be too fast to time
    # A random order of the cells is a random game, plus moves after its end that are not played.
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
            # Every move puts a stone except a swap, which is less than one move in ten thousand.
            return float(np.count_nonzero(engine.board(final)))

        def play(turn: int) -> Any:
            return jax.block_until_ready(run(start, inputs[turn]))

        play(0)
        return System(name, mode, play, moves, seconds)

    engines = {"ours": ours(size, swap=False), "ours, swap rule": ours(size, swap=True)}
    has_pgx = importlib.util.find_spec("pgx") is not None
    if size == PGX_SIZE and has_pgx:
        engines["pgx"] = pgx_hex()
    steps = size**2 + 1  # a swap is also a move
    made = [
        compiled(n, "random", engine, random_play(engine, steps)) for n, engine in engines.items()
    ]
    if (size, batch) == (PGX_SIZE, MAIN_BATCH):
        engines["ours, swap rule, observed"] = ours(size, swap=True, observed=True)
    if (size, batch) == (PGX_SIZE, MAIN_BATCH) and has_pgx:
        from pgx.experimental import act_randomly

        engines["pgx, observed"] = engine = pgx_hex(observed=True)
        function = random_play(engine, steps, lambda mask, key: act_randomly(key, mask))
        made.append(compiled("pgx, its own way", "random", engine, function))
    made += [compiled(name, "given", engine, replay(engine)) for name, engine in engines.items()]
    stones = [np.asarray(engines[s.name].board(s.play(0))) != 0 for s in made if s.mode == "given"]
    if not all((other == stones[0]).all() for other in stones):
        raise RuntimeError("The recorded games do not end on the same boards everywhere.")
    lengths = stones[0].sum(axis=-1).ravel()[:512]
    games = [row[:n].tolist() for row, n in zip(order.reshape(-1, size**2), lengths, strict=False)]
    return made + (open_spiel(size, games, seed) if importlib.util.find_spec("pyspiel") else [])


def open_spiel(size: int, games: list[list[int]], seed: int) -> list[System]:
    """Makes OpenSpiel's two systems; `games` are played from the first move to the winning one."""
    import pyspiel

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
            "moves_per_second": spread(speeds[s.mode, s.name]),
            "times": {
                other: spread(np.divide(speeds[s.mode, s.name], speeds[s.mode, other]))
                for other in ("pgx", "OpenSpiel")
                if (s.mode, other) in speeds
            },
            "compile_seconds": s.compile_seconds,
            "samples": [round(speed) for speed in speeds[s.mode, s.name]],
        }
        for s in contestants
    ]


def main(argv: list[str] | None = None) -> None:
    """Measures a preset; see the module's docstring."""
    parser = runs.parser("environments", __doc__, BATCHES)
    parser.add_argument("--turns", type=runs.positive, default=5, help="how often each is timed")
    args = parser.parse_args(argv)
    record = runs.open_record(
        parser, args, {"seed": args.seed}, ("mode", "size", "batch", "system")
    )
    settings = [(PGX_SIZE, batch) for batch in BATCHES[args.preset]]
    settings += [(size, MAIN_BATCH) for size in SIZES[args.preset] if size != PGX_SIZE]
    with report.progress_bar("environments") as progress:
        for index, (size, batch) in enumerate(settings):
            progress(index, len(settings), f"{size}x{size}, batch {batch:,}")
            if not runs.has(record, mode="given", size=size, batch=batch, system="ours"):
                rows = measure(size, batch, args.seed, args.turns)
                runs.add(record, *rows, what_is_timed=WHAT_IS_TIMED)
    rows = runs.read(record)
    report.print_table("Hex environments", *table(rows))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each system, batch and board."""
    columns = ["board", "moves", "boards at once", "system", "moves a second", "x pgx",
               "x OpenSpiel"]  # fmt: skip
    return columns, [
        [f"{row['size']}x{row['size']}", row["mode"], row["batch"], row["system"],
         f"{row['moves_per_second']['median'] / 1e6:.2f} M",
         *(row["times"].get(other) and f"{row['times'][other]['median']:.1f}"
           for other in ("pgx", "OpenSpiel"))]
        for row in rows
    ]  # fmt: skip


def spread(samples: Any) -> dict[str, Any]:
    """Returns the median and the quartiles, rounded."""
    low, median, high = (float(f"{q:.4g}") for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    return {"median": median, "quartiles": [low, high]}


if __name__ == "__main__":
    main()
