"""How many games a second does SameGame play? Random games from the 20 standard positions.

    python -m benchmarks.environments_samegame --preset quick   # a minute on two cores
    python -m benchmarks.environments_samegame --preset full    # more batches

Whole games are played on 15x15 boards of 5 colours. Finished games wait for the others, and only
moves that were played count. "Uniform" and "tabu colour" are `random_playouts`; "environment" uses
the public interface like any user's loop: it draws a group from the mask and calls `step`. The
systems take turns.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp

from benchmarks import report, runs
from benchmarks.environments import pick, spread
from jaxpgs.envs import SameGame
from jaxpgs.envs.samegame.game import standard_positions
from jaxpgs.puzzles.samegame_playouts import random_playouts

BATCHES = {"quick": (64, 256, 1024), "full": (1, 16, 64, 128, 256, 512, 1024, 4096, 16384)}
WHAT_IS_TIMED = {
    "uniform": "jitted random_playouts(SameGame())",
    "tabu colour": "jitted random_playouts(SameGame(), tabu=True)",
    "environment": "jitted loop over legal_action_mask, one number a board, jax.vmap(step)",
}


def environment_play(env: SameGame) -> Callable[..., Any]:
    """Makes `f(key, state)`, which plays uniformly through the public interface.

    Returns:
      A function that returns the games' scores and moves, both `[B]`.
    """

    def play(key: chex.PRNGKey, state: Any) -> tuple[chex.Array, chex.Array]:
        batch = state.terminated.shape[0]

        def body(carry: Any) -> Any:
            state, action, score, moves, step = carry
            moves = moves + ~state.terminated
            state = jax.vmap(env.step)(state, action)
            number = jax.random.uniform(jax.random.fold_in(key, step), (batch,))
            # It is in the carry, as in `environments.random_play`.
            action = pick(state.legal_action_mask, number)
            return state, action, score + state.rewards[:, 0], moves, step + 1

        number = jax.random.uniform(jax.random.fold_in(key, 0), (batch,))
        action = pick(state.legal_action_mask, number)
        start = (state, action, jnp.zeros(batch), jnp.zeros(batch, jnp.int32), jnp.int32(1))
        final = jax.lax.while_loop(lambda c: ~jnp.all(c[0].terminated), body, start)
        return final[2], final[3]

    return play


def standard_batch(env: SameGame, batch: int) -> Any:
    """Returns B states that cycle through the 20 standard positions."""
    states = [env.from_board(board) for board in standard_positions()]
    return jax.tree.map(lambda *x: jnp.stack(x)[jnp.arange(batch) % len(x)], *states)


def measure(batch: int, seed: int, turns: int) -> list[dict[str, Any]]:
    """Times the systems in turns, in a new order every turn.

    Args:
      batch: B.
      seed: of games and orders.
      turns: how often each system is timed.

    Returns:
      One row, ready for JSON, for each system.
    """
    env = SameGame()
    state = standard_batch(env, batch)
    functions = {
        "uniform": lambda key, state: random_playouts(env, key, state)[:2],
        "tabu colour": lambda key, state: random_playouts(env, key, state, tabu=True)[:2],
        "environment": environment_play(env),
    }
    key = jax.random.key(seed)
    systems, compiling = {}, {}
    for name, function in functions.items():
        begin = time.perf_counter()
        systems[name] = jax.jit(function).lower(key, state).compile()
        compiling[name] = time.perf_counter() - begin
        jax.block_until_ready(systems[name](key, state))
    # Small batches play several times per turn, as a turn would otherwise be too fast to time.
    repeats = max(1, 1024 // batch)
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    shuffled = random.Random(seed)
    for turn in range(turns):
        keys = jax.random.split(jax.random.fold_in(key, turn), repeats)
        for name in shuffled.sample(list(systems), len(systems)):
            begin = time.perf_counter()
            played = [jax.block_until_ready(systems[name](k, state)) for k in keys]
            seconds = time.perf_counter() - begin
            moves = sum(float(m.sum()) for _, m in played)
            speeds[name].append((batch * repeats / seconds, moves / seconds))
    return [
        {
            "system": name,
            "batch": batch,
            "games_per_second": spread([games for games, _ in samples]),
            "moves_per_second": spread([moves for _, moves in samples]),
            "compile_seconds": compiling[name],
        }
        for name, samples in speeds.items()
    ]


def main(argv: list[str] | None = None) -> None:
    """Measures a preset; see the module's docstring."""
    parser = runs.parser("environments_samegame", __doc__, BATCHES)
    parser.add_argument("--turns", type=runs.positive, default=5, help="how often each is timed")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"seed": args.seed}, ("system", "batch"))
    batches = BATCHES[args.preset]
    with report.progress_bar("SameGame") as progress:
        for index, batch in enumerate(batches):
            progress(index, len(batches), f"batch {batch:,}")
            if not runs.has(record, system="uniform", batch=batch):
                runs.add(
                    record, *measure(batch, args.seed, args.turns), what_is_timed=WHAT_IS_TIMED
                )
    rows = runs.read(record)
    report.print_table("Random games on 15x15, 5 colours", *table(rows))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each system and batch."""
    columns = ["system", "boards at once", "games a second", "moves a second"]
    return columns, [
        [row["system"], row["batch"], row["games_per_second"]["median"],
         f"{row['moves_per_second']['median'] / 1e6:.2f} M"]
        for row in rows
    ]  # fmt: skip


if __name__ == "__main__":
    main()
