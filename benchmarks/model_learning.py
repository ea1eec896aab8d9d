"""A model and the search that plans in it, both from nothing (Brosseit 2023, algorithm 3).

    python -m benchmarks.model_learning                     # 4x4 Hex: some ten minutes an expert
    python -m benchmarks.model_learning --preset ve-5x5     # 5x5

Self-play with VE-PGS, and with Gumbel MuZero, on a value-equivalent model that learns from the
games; everything else is the same. Along training the model's raw policy and the search on it play
positions of random play that an exact solver calls won: the share of moves that keep the win is
counted. In the end both play a perfect player, every first move with both colours. Stopped and
started again, the training goes on, from the folder of runs.

VE-PGS has mctx's completed Q-values as its target. `--experts thesis` takes eq. 3.4 as it stands,
whose constants multiply Q-values by less than a half with so few simulations.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpgs
from benchmarks import pictures, report, runs, tactics
from jaxpgs import evaluation
from jaxpgs.training import experts, value_equivalent
from jaxpgs.training.recipes import Clock


class Preset(NamedTuple):
    """A board and how to learn on it.

    Attributes:
      size: the board's.
      network: keyword arguments of `networks.ValueEquivalentModel`.
      simulations: simulations a move, in training and when counting.
      iterations: iterations of training.
      every: iterations between counts.
      positions: won positions to count on.
      plies: how many random moves they come after, `(first, last + 1)`.
      training: arguments of `value_equivalent.train`.
    """

    size: int
    network: Mapping[str, Any]
    simulations: int
    iterations: int
    every: int
    positions: int
    plies: tuple[int, int]
    training: Mapping[str, Any]


_SMALL = {
    "num_filters": 16, "num_blocks": 1, "policy_filters": 8, "value_filters": 8,
    "squeeze_ratio": 4,
}  # fmt: skip
_TRAINING = {
    "num_games": 64, "num_steps": 8, "buffer_size": 32_768, "batch_size": 128,
    "updates_per_iteration": 16, "max_random_moves": 8, "unroll": 3,
}  # fmt: skip
PRESETS = {
    "ve-4x4": Preset(4, _SMALL, 32, 120, 20, 256, (1, 11), _TRAINING),
    "ve-3x3": Preset(3, _SMALL, 16, 60, 10, 128, (0, 6), _TRAINING | {"max_random_moves": 4}),
    "ve-5x5": Preset(
        5, _SMALL | {"num_filters": 32}, 32, 600, 50, 276, (4, 14),
        _TRAINING | {"num_games": 256, "max_random_moves": 16, "unroll": 5},
    ),
}  # fmt: skip
EXPERTS = {
    "extended": "VE-PGS", "thesis": "VE-PGS, target of eq. 3.4", "gumbel": "mctx Gumbel MuZero",
}  # fmt: skip
# The knobs of each search, and those with which it plays as well as it can and explores nothing.
_KNOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "extended": ("extended", {"target": jaxpgs.completed_q()}, {"dirichlet_fraction": 0.0}),
    "thesis": ("extended", {}, {"dirichlet_fraction": 0.0}),
    "gumbel": ("gumbel", {}, {"gumbel_scale": 0.0}),
}


def main(argv: list[str] | None = None) -> None:
    """Trains and counts; see the module's text."""
    parser = runs.parser("model_learning", __doc__, PRESETS)
    parser.add_argument("--experts", nargs="+", choices=EXPERTS, default=["extended", "gumbel"])
    parser.add_argument("--iterations", type=runs.positive, help="in place of the preset's")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/model_learning"))
    args = parser.parse_args(argv)
    preset = runs.override(PRESETS[args.preset], args)
    setting = dict(preset._asdict(), seed=args.seed)
    record = runs.open_record(parser, args, setting, ("expert", "iteration"))
    env = jaxpgs.envs.Hex(preset.size)
    wanted = tactics.Preset(preset.positions, preset.plies, ())
    states, right = tactics.find_positions(env, wanted, args.seed)
    with report.progress_bar(args.preset) as progress:
        for expert in args.experts:
            if runs.has(record, expert=expert, iteration=preset.iterations):
                continue

            def update(done: int, expert: str = expert) -> None:
                progress(done, preset.iterations, EXPERTS[expert])

            folder = args.runs / f"{args.preset}-{expert}"
            learn(record, preset, expert, args.seed, folder, (states, right), update)
    rows = runs.read(record)
    report.print_table(f"Models from nothing, {env.size}x{env.size} Hex", *table(rows))
    draw(record.path.with_suffix(".png"), rows, env)
    print(f"Wrote {record.path} and {record.path.with_suffix('.png')}.")


def learn(
    record: runs.Record,
    preset: Preset,
    expert: str,
    seed: int,
    folder: pathlib.Path,
    positions: tuple[Any, np.ndarray],
    update: Callable[[int], None],
) -> None:
    """Trains one model and adds its rows on the way.

    Args:
      record: where the rows go.
      preset: the board and how to learn on it.
      expert: a name in `EXPERTS`.
      seed: seed of the initial weights and of the games.
      folder: where the run is kept.
      positions: states `[P]` that are won, and which moves keep the win, `[P, A]` bool.
      update: told the number of the iteration that is done.
    """
    env = jaxpgs.envs.Hex(preset.size)
    model = jaxpgs.networks.ValueEquivalentModel(
        env.observation_shape, env.num_actions, **preset.network, rngs=nnx.Rngs(seed)
    )
    params, apply_fn = jaxpgs.networks.functional(model)
    raw_fns = jaxpgs.make_root_fn(env, apply_fn), jaxpgs.make_recurrent_fn(env, apply_fn)
    kind, knobs, best = _KNOBS[expert]
    teacher = value_equivalent.model_expert(kind, preset.simulations, params, **knobs)
    search = value_equivalent.model_expert(kind, preset.simulations, params, **knobs, **best)
    model_fns = jaxpgs.make_model_fns(model, env)
    players = {
        "raw": _counter(experts.raw_network(), raw_fns, positions),
        "search": _counter(search, model_fns, positions),
    }
    clock = Clock(folder / "seconds.txt")

    def count(params: Any, iteration: int, **more: Any) -> None:
        if not runs.has(record, expert=expert, iteration=iteration):
            kept = {name: int(player(params)) for name, player in players.items()}
            row = {"expert": expert, "iteration": iteration, "positions": preset.positions, **kept}
            runs.add(record, row | {"seconds": round(clock.note())} | more)

    def callback(state: Any, metrics: Mapping[str, float]) -> None:
        iteration = int(metrics["iteration"])
        update(iteration)
        clock.note()
        if iteration % preset.every == 0 and iteration < preset.iterations:
            count(state.params, iteration, value_loss=round(metrics["value_loss"], 4))

    count(params, 0)
    updates = preset.iterations * preset.training["updates_per_iteration"]
    schedule = optax.cosine_decay_schedule(3e-3, updates, alpha=0.01)
    state = value_equivalent.train(
        env, model, expert=teacher, num_iterations=preset.iterations, evaluate_every=0, seed=seed,
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)),
        directory=folder / "checkpoints", checkpoint_every=preset.every, callback=callback,
        **preset.training,
    )  # fmt: skip
    perfect = evaluation.perfect_hex(env)
    mine = {
        "raw": evaluation.raw_network(env, apply_fn, state.params),
        "search": _player(expert, search, model_fns, state.params),
    }
    won = {}
    for name, player in mine.items():
        match = evaluation.play_match(env, player, perfect, jax.random.key(seed))
        won[f"{name}_won"] = int(match.wins)
    # Of an opening's two games exactly one can be won against a perfect player.
    count(state.params, preset.iterations, **won, winnable=env.num_cells)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each count."""
    columns = [
        "teacher", "iteration", "% of wins kept, raw policy", "% of wins kept, search",
        "against a perfect player, raw policy", "against a perfect player, search",
        "minutes of training",
    ]  # fmt: skip
    lines = []
    for row in sorted(rows, key=lambda row: (list(EXPERTS).index(row["expert"]), row["iteration"])):
        won = [
            f"{row[name]} of {row['winnable']}" if name in row else None
            for name in ("raw_won", "search_won")
        ]
        kept = [round(100 * row[name] / row["positions"], 1) for name in ("raw", "search")]
        minutes = round(row["seconds"] / 60, 1)
        lines.append([EXPERTS[row["expert"]], row["iteration"], *kept, *won, minutes])
    return columns, lines


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], env: Any) -> None:
    """Draws the shares along training, one panel for each expert."""
    panels: dict[str, dict[str, list[Any]]] = {}
    for row in sorted(rows, key=lambda row: (list(EXPERTS).index(row["expert"]), row["iteration"])):
        name = EXPERTS[row["expert"]]
        panel = panels.setdefault(f"{name} teaches", {name: [], "raw network": []})
        for line, kept in ((name, row["search"]), ("raw network", row["raw"])):
            panel[line].append((row["iteration"], 100 * kept / row["positions"]))
    pictures.line_plot(
        path, panels, title=f"A model and its search from nothing, {env.size}x{env.size} Hex",
        xlabel="iteration", ylabel="% of won positions kept", xscale="linear", yscale="linear",
    )  # fmt: skip


def _counter(
    player: experts.Expert, fns: tuple[Any, Any], positions: tuple[Any, np.ndarray]
) -> Callable[[Any], jax.Array]:
    """Makes the count of the positions in which an expert's best move keeps the win."""
    states, right = positions
    root_fn, recurrent_fn = fns

    @jax.jit
    def count(params: Any) -> jax.Array:
        root = root_fn(params, None, states)
        invalid = ~states.legal_action_mask
        best = player(params, jax.random.key(0), root, recurrent_fn, invalid).best
        return jnp.sum(jnp.take_along_axis(jnp.asarray(right), best[:, None], axis=1))

    return count


def _player(
    expert: str, search: experts.Expert, model_fns: tuple[Any, Any], params: Any
) -> evaluation.Player:
    """Makes a player of an expert that plans in a model; it plays its best moves."""
    root_fn, recurrent_fn = model_fns

    def act(rng_key: Any, state: Any, memory: tuple[()]) -> tuple[Any, Any, dict[str, Any]]:
        root = root_fn(params, rng_key, state)
        found = search(params, rng_key, root, recurrent_fn, ~state.legal_action_mask)
        return found.best, memory, {}

    return evaluation.Player(EXPERTS[expert], lambda batch_size: (), act)


if __name__ == "__main__":
    main()
