"""A model and the search that plans in it, both from nothing (Brosseit 2023, algorithm 3).

    python -m benchmarks.model_learning                         # 4x4 Hex, some 20 minutes an expert
    python -m benchmarks.model_learning --preset ve-3x3         # some minutes an expert
    python -m benchmarks.model_learning --preset ve-3x3-parts   # what each part of it adds
    python -m benchmarks.model_learning --preset ve-5x5         # more than an hour an expert

Self-play with VE-PGS, and with Gumbel MuZero, on a value-equivalent model that learns from the
games; everything else is the same. Along training the model's raw policy and the search on it play
positions that an exact solver calls won and in which some moves throw the win away: the share of
moves that keep it is counted. They are all such positions of 3x3, and some of random play on larger
boards. In the end both play a perfect player, every first move with both colours. Stopped and
started again, the training goes on, from the folder of runs.

A search on a model asks what bad moves lead to, so self-play must show it: games begin after random
moves, and now and then a later move is random. What a random move did is no fault of the positions
before it, so their value is not the game's result (`value_target="best"`).

VE-PGS has mctx's completed Q-values as its target, as they are: brought to [0, 1] in each position,
differences that are noise become as large as those between a win and a loss. `--experts thesis`
takes eq. 3.4 as it stands, whose constants multiply Q-values by less than a half with so few
simulations.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
from flax import nnx

import jaxpgs
from benchmarks import pictures, report, runs, tactics
from jaxpgs import evaluation
from jaxpgs.evaluation import solve_hex
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
      positions: won positions to count on; None for all there are.
      plies: how many random moves they come after, `(first, last + 1)`, if not all count.
      epsilon: how often a move of self-play is random.
      training: arguments of `value_equivalent.train`.
    """

    size: int
    network: Mapping[str, Any]
    simulations: int
    iterations: int
    every: int
    positions: int | None
    plies: tuple[int, int] | None
    epsilon: float
    training: Mapping[str, Any]


_SMALL = {
    "num_filters": 16, "num_blocks": 1, "policy_filters": 8, "value_filters": 8,
    "squeeze_ratio": 4, "norm": "layer",
}  # fmt: skip
_TRAINING = {
    "num_games": 64, "num_steps": 8, "buffer_size": 8192, "batch_size": 128,
    "updates_per_iteration": 48, "max_random_moves": 8, "start_fraction": 0.0, "unroll": 3,
    "value_target": "best",
}  # fmt: skip
_3X3 = Preset(3, _SMALL, 16, 120, 20, None, None, 0.3, _TRAINING)
PRESETS = {
    "ve-4x4": Preset(
        4, _SMALL, 32, 300, 20, 256, (1, 11), 0.3,
        _TRAINING | {"max_random_moves": 14, "buffer_size": 16_384},
    ),
    "ve-3x3": _3X3,
    "ve-3x3-parts": _3X3._replace(iterations=40, every=10),
    "ve-5x5": Preset(
        5, _SMALL | {"num_filters": 32}, 32, 600, 40, 276, (4, 14), 0.3,
        _TRAINING | {
            "max_random_moves": 22, "buffer_size": 16_384, "updates_per_iteration": 32,
        },
    ),
}  # fmt: skip


class Teacher(NamedTuple):
    """Who plays the games, and in what it differs from VE-PGS.

    Attributes:
      title: its name in tables.
      kind: `expert` of `value_equivalent.model_expert`.
      knobs: arguments of the search.
      best: further ones with which it plays as well as it can and explores nothing.
      network: in place of the preset's arguments of the model.
      training: in place of the preset's arguments of `value_equivalent.train`.
      epsilon: how often a move is random, in place of the preset's, if not None.
    """

    title: str
    kind: str
    knobs: Mapping[str, Any]
    best: Mapping[str, Any] = {}
    network: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    epsilon: float | None = None


# Random moves explore already, so the root's prior needs no noise.
_QUIET = {"dirichlet_fraction": 0.0, "value": "policy"}
_STEP = {"estimator": jaxpgs.step_advantage()}  # eq. 3.5
# Q-values as they are: of the model's values, which are from -1 to 1 like those of the game.
_ours, _mctx_s = (
    functools.partial(library.qtransform_completed_by_mix_value, rescale_values=False)
    for library in (jaxpgs, mctx)
)
_VE_PGS = _QUIET | _STEP | {"target": jaxpgs.completed_q(qtransform=_ours)}
EXPERTS = {
    "extended": Teacher("VE-PGS", "extended", _VE_PGS),
    "thesis": Teacher("VE-PGS, target of eq. 3.4", "extended", _QUIET | _STEP),
    "gumbel": Teacher(
        "mctx Gumbel MuZero", "gumbel", {"qtransform": _mctx_s}, {"gumbel_scale": 0.0}
    ),
    "batch": Teacher(
        "VE-PGS, batch normalisation", "extended", _VE_PGS, network={"norm": "batch"}
    ),
    "returns": Teacher(
        "VE-PGS, games' results as values", "extended", _VE_PGS,
        training={"value_target": "return"},
    ),
    "greedy": Teacher("VE-PGS, no random moves in games", "extended", _VE_PGS, epsilon=0.0),
    "rescaled": Teacher(
        "VE-PGS, rescaled Q-values", "extended", _VE_PGS | {"target": jaxpgs.completed_q()}
    ),
    "few": Teacher(
        "VE-PGS, a third of the updates", "extended", _VE_PGS,
        training={"updates_per_iteration": 16},
    ),
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Trains and counts; see the module's text."""
    parser = runs.parser("model_learning", __doc__, PRESETS)
    parser.add_argument("--experts", nargs="+", choices=EXPERTS)
    parser.add_argument("--iterations", type=runs.positive, help="in place of the preset's")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/model_learning"))
    args = parser.parse_args(argv)
    preset = runs.override(PRESETS[args.preset], args)
    setting = dict(preset._asdict(), seed=args.seed)
    record = runs.open_record(parser, args, setting, ("expert", "iteration"))
    env = jaxpgs.envs.Hex(preset.size)
    if preset.positions is None or preset.plies is None:
        states, right = every_position(env)
    else:
        wanted = tactics.Preset(preset.positions, preset.plies, ())
        states, right = tactics.find_positions(env, wanted, args.seed)
    with report.progress_bar(args.preset) as progress:
        parts = ["extended", "batch", "returns", "greedy", "rescaled", "few"]
        usual = parts if args.preset == "ve-3x3-parts" else ["extended", "gumbel"]
        for expert in args.experts or usual:
            if runs.has(record, expert=expert, iteration=preset.iterations):
                continue

            def update(done: int, expert: str = expert) -> None:
                progress(done, preset.iterations, EXPERTS[expert].title)

            folder = args.runs / f"{args.preset}-{expert}"
            learn(record, preset, expert, args.seed, folder, (states, right), update)
    rows = runs.read(record)
    report.print_table(f"Models from nothing, {env.size}x{env.size} Hex", *table(rows))
    draw(record.path.with_suffix(".png"), rows, env)
    print(f"Wrote {record.path} and {record.path.with_suffix('.png')}.")


def every_position(env: jaxpgs.envs.Hex) -> tuple[Any, np.ndarray]:
    """Finds all positions of a small board that are won and in which some move is wrong.

    Returns:
      The positions `[P]`, and which moves keep the win there, `[P, A]` bool.
    """
    actions = jnp.arange(env.num_actions)
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0)))
    memo: dict[Any, Any] = {}
    found, right = [], []
    layer = [jax.device_get(env.init(jax.random.key(0)))]
    while layer:
        following = {}
        for state in layer:
            good = solve_hex(env, state, memo=memo).winning_moves
            legal = state.labels == 0
            if good.any() and not good[legal].all():
                found.append(state)
                right.append(good)
            after = jax.device_get(step(state, actions))
            for action in np.flatnonzero(legal & ~after.terminated):
                one = jax.tree.map(lambda x, a=action: x[a], after)
                following[np.sign(one.labels).tobytes()] = one
        layer = list(following.values())
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *found), np.stack(right)


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
    env, chosen = jaxpgs.envs.Hex(preset.size), EXPERTS[expert]
    network = {**preset.network, **chosen.network}
    training = {**preset.training, **chosen.training}
    model = jaxpgs.networks.ValueEquivalentModel(
        env.observation_shape, env.num_actions, **network, rngs=nnx.Rngs(seed)
    )
    params, apply_fn = jaxpgs.networks.functional(model)
    raw_fns = jaxpgs.make_root_fn(env, apply_fn), jaxpgs.make_recurrent_fn(env, apply_fn)
    make = functools.partial(
        value_equivalent.model_expert, chosen.kind, preset.simulations, params, **chosen.knobs
    )
    epsilon = preset.epsilon if chosen.epsilon is None else chosen.epsilon
    teacher, search = experts.epsilon_greedy(make(), epsilon), make(**chosen.best)
    model_fns = jaxpgs.make_model_fns(model, env)
    players = {
        "raw": _counter(experts.raw_network(), raw_fns, positions),
        "search": _counter(search, model_fns, positions),
    }
    clock = Clock(folder / "seconds.txt")

    def count(params: Any, iteration: int, **more: Any) -> None:
        if not runs.has(record, expert=expert, iteration=iteration):
            kept = {name: int(player(params)) for name, player in players.items()}
            row = {"expert": expert, "iteration": iteration, "positions": len(positions[1]), **kept}
            runs.add(record, row | {"seconds": round(clock.note())} | more)

    def callback(state: Any, metrics: Mapping[str, float]) -> None:
        iteration = int(metrics["iteration"])
        update(iteration)
        clock.note()
        if iteration % preset.every == 0 and iteration < preset.iterations:
            count(state.params, iteration, value_loss=round(metrics["value_loss"], 4))

    count(params, 0)
    updates = preset.iterations * training["updates_per_iteration"]
    schedule = optax.cosine_decay_schedule(3e-3, updates, alpha=0.01)
    state = value_equivalent.train(
        env, model, expert=teacher, num_iterations=preset.iterations, evaluate_every=0, seed=seed,
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)),
        directory=folder / "checkpoints", checkpoint_every=preset.every, callback=callback,
        **training,
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
        "teacher", "iteration", "won positions", "% of wins kept, raw policy",
        "% of wins kept, search", "against a perfect player, raw policy",
        "against a perfect player, search",
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
        lines.append(
            [EXPERTS[row["expert"]].title, row["iteration"], row["positions"], *kept, *won, minutes]
        )
    return columns, lines


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], env: Any) -> None:
    """Draws the shares along training, one panel for each expert."""
    panels: dict[str, dict[str, list[Any]]] = {}
    for row in sorted(rows, key=lambda row: (list(EXPERTS).index(row["expert"]), row["iteration"])):
        name = EXPERTS[row["expert"]].title
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

    return evaluation.Player(EXPERTS[expert].title, lambda batch_size: (), act)


if __name__ == "__main__":
    main()
