"""What helps a network to read ladders: training games that begin with them, or a pooling branch?

    python tests/quality ladder_training              # an hour on one core
    python tests/quality ladder_training --seed 1     # the same games, other batches

The network `conv-7x7` is trained further on self-play games of a search that uses it. Three arms
take the same number of steps on batches of 256. "usual" learns from games that begin with up to 8
random moves. "ladders" takes a quarter of each batch from games that begin with a ladder. "pooling"
learns from the usual games, and has a branch in every second block that adds a linear function of
each plane's mean and maximum over the board (Wu 2019, section 3.3); the branch is initially zero.
`quality.ladder_positions` makes the ladders for training and for evaluation, with different seeds,
neither of which is that of `ladders.json`. Games and positions are kept in `--folder`, so that the
command continues where it was stopped.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import quality
from benchmarks import report, runs, tables
from benchmarks.players import load_network
from jaxpgs import networks
from jaxpgs.envs import Hex
from jaxpgs.training.recipes.starting_positions import FromPositions
from jaxpgs.training.runtime import iterations
from jaxpgs.training.two_player import experts, losses, objectives, selfplay
from quality import ladder_positions
from quality.ladder_positions import Ladder
from quality.ladders import judge, states_of
from quality.looks import look

NETWORK = "conv-7x7"
_FIELDS = ("observation", "legal", "policy", "value")
ARMS = ("usual", "ladders", "pooling")
GAMES, MOVES = 128, 16  # played side by side, and moves of each per call
BATCH, HELD = 256, 1000  # positions per step, and positions held out of the training


def positions(folder: pathlib.Path, size: int, pairs: int, seed: int) -> list[Ladder]:
    """Returns pairs of positions, and makes those that the folder does not hold yet."""
    path = folder / f"ladders-{size}-{seed}.json"
    known = json.loads(path.read_text()) if path.exists() else []
    for number in range(len(known) // 2, pairs):
        pair = ladder_positions.make_pair(size, number, seed)
        known += [(ladder.board.tolist(), *ladder[1:]) for ladder in pair]
        report.write_text(path, json.dumps(known))
    return [Ladder(np.array(board), *rest) for board, *rest in known[: 2 * pairs]]


def play(path: pathlib.Path, env: Hex, network: Any, start: selfplay.Start, rounds: int) -> Any:
    """Returns P positions of self-play as arrays `[P, ...]`; plays only if the file is missing."""
    if not path.exists():
        expert = experts.make_expert("gumbel_mcts", 32)
        key = jax.random.key(0)
        games = selfplay.init_games(env, key, GAMES, start)

        @jax.jit
        def more(params: Any, key: Any, games: Any) -> Any:
            return selfplay.play(
                env, network.apply_fn, expert, params, key, games, MOVES, start=start
            )

        found = []
        with report.progress_bar(path.stem) as progress:
            for number in range(rounds):
                games, seen, _ = more(network.params, jax.random.fold_in(key, 1 + number), games)
                over = np.asarray(seen.open) == 0  # positions of games that have ended
                found.append({n: np.asarray(getattr(seen, n))[over] for n in _FIELDS})
                progress(number + 1, rounds, "")
        arrays = {n: np.concatenate([part[n] for part in found]) for n in _FIELDS}
        np.savez_compressed(path.with_suffix(".part.npz"), **arrays)  # type: ignore[arg-type]
        path.with_suffix(".part.npz").rename(path)
    with np.load(path) as stored:
        return {n: stored[n] for n in _FIELDS}


class _Pooling(nnx.Module):
    """A block, and a branch after it that sees the whole board."""

    def __init__(self, block: nnx.Module, planes: int, rngs: nnx.Rngs) -> None:
        self.block = block
        nothing = nnx.initializers.zeros
        self.mix = nnx.Linear(2 * planes, planes, kernel_init=nothing, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.block(x)
        seen = jnp.concatenate([x.mean((1, 2)), x.max((1, 2))], axis=-1)
        return x + self.mix(seen)[:, None, None, :]


def make(network: Any, arm: str) -> tuple[nnx.Module, Any]:
    """Returns the arm's network and its initial weights, from `network` where it has them."""
    module = nnx.clone(network.module)
    if arm == "pooling":
        for number in range(1, len(module.torso.blocks), 2):
            block, rngs = module.torso.blocks[number], nnx.Rngs(number)
            module.torso.blocks[number] = _Pooling(block, module.num_filters, rngs)
    params, _ = networks.functional(module)
    known = {
        jax.tree_util.keystr(k): x for k, x in jax.tree_util.tree_leaves_with_path(network.params)
    }

    def carried(path: Any, x: Any) -> Any:
        return known.get(jax.tree_util.keystr(path).replace("['block']", ""), x)

    return module, jax.tree_util.tree_map_with_path(carried, params)


def fit(
    module: nnx.Module, params: Any, usual: Any, ladders: Any | None, steps: int, seed: int
) -> Any:
    """Trains and returns the weights; with `ladders`, a quarter of each batch comes from these."""
    schedule = optax.cosine_decay_schedule(1e-3, steps, alpha=0.01)
    trainable = networks.trainable_mask(module)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4)
    )
    optimizer = iterations.of_weights(optimizer, trainable)
    loss = losses.make_losses(module, objectives.cross_entropy(), {}, 1.0)
    update = jax.jit(iterations.make_update(loss, optimizer, trainable))
    carry, rng = (params, optimizer.init(params)), np.random.default_rng(seed)
    shares = (
        [(usual, BATCH)] if ladders is None else [(usual, 3 * BATCH // 4), (ladders, BATCH // 4)]
    )
    for _ in range(steps):
        rows = [(games, rng.integers(0, len(games["value"]), count)) for games, count in shares]
        observation, legal, policy, value = (
            jnp.concatenate([games[n][i] for games, i in rows]) for n in _FIELDS
        )
        target = selfplay.Experience(observation, legal, policy, value, jnp.zeros(BATCH))
        carry, _ = update(carry, target)
    return carry[0]


def judged(network: Any, ladders: Sequence[Ladder], games: Any) -> dict[str, Any]:
    """Judges a network by ladders, and by the squared error of its value in `games`."""
    found = judge(ladders, *look(network, None, 0, states_of(network.env, ladders), 0))
    _, value = jax.jit(network.apply_fn)(network.params, games["observation"])
    del found["values"]
    return found | {"error_in_games": round(float(np.mean((value - games["value"]) ** 2)), 4)}


def main(argv: list[str] | None = None) -> None:
    """Trains the arms and judges them; see the module's text."""
    parser = quality.parser("ladder_training", __doc__)
    add = parser.add_argument
    add("--pairs", type=runs.positive, default=100, help="of ladders to learn from, and to judge")
    add("--rounds", type=runs.positive, default=12, help=f"of {GAMES} times {MOVES} moves")
    add("--steps", type=runs.positive, default=400, help="of the optimizer")
    add("--folder", type=pathlib.Path, default=pathlib.Path("runs/ladder_training"))
    args = parser.parse_args(argv)
    setting = {"pairs": args.pairs, "rounds": args.rounds, "steps": args.steps}
    record = runs.open_record(parser, args, setting, ("arm", "seed"))
    args.folder.mkdir(parents=True, exist_ok=True)
    network = load_network(NETWORK)
    size = network.env.size
    learned, asked = (positions(args.folder, size, args.pairs, seed) for seed in (77, 1000))
    openings = selfplay.Start(max_random_moves=8, start_fraction=0.25)
    states = states_of(network.env, learned)
    begun = FromPositions(size, positions=states, weights=jnp.ones(len(learned)))
    usual = play(args.folder / "usual.npz", network.env, network, openings, args.rounds)
    ladders = play(args.folder / "ladders.npz", begun, network, selfplay.Start(), args.rounds)
    held, usual = (
        {n: x[part] for n, x in usual.items()} for part in (slice(-HELD, None), slice(-HELD))
    )
    if not runs.has(record, arm="before", seed=0):
        runs.add(record, {"arm": "before", "seed": 0} | judged(network, asked, held))
    for arm in ARMS:
        if runs.has(record, arm=arm, seed=args.seed):
            continue
        module, params = make(network, arm)
        params = fit(
            module, params, usual, ladders if arm == "ladders" else None, args.steps, args.seed
        )
        one = dataclasses.replace(
            network, module=module, params=params, apply_fn=networks.functional(module)[1]
        )
        rows = runs.add(record, {"arm": arm, "seed": args.seed} | judged(one, asked, held))
        report.print_table("Training with ladders", *tables.ladder_training(rows))
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
