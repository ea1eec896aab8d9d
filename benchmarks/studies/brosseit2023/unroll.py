"""How wrong are the values of a learned model after several steps, against exact solutions?

    python -m benchmarks.studies.brosseit2023.unroll --network ve-hex-5x5

Lines of moves begin at positions of random games of Hex. Each move is random or, with probability
one half, the most likely one of the model's policy. All positions are solved exactly. The model
observes only the first position and is unrolled along the moves; its value after each move is
compared with the solution. For comparison, the same model also observes each position itself. A
line ends with its game.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxpgs
from benchmarks import pictures, report, runs
from benchmarks.players import load_network
from jaxpgs.checks import refusals_in_one_line
from jaxpgs.evaluation import solve_hex

LENGTH = 8
POSITIONS = 200
PLIES = (4, 9)  # stones on the board: at least, and below; with fewer, solving takes long


class Lines(NamedTuple):
    """L moves from each of P positions. Arrays but `action` have the leading axes `[L + 1, P]`.

    Attributes:
      state: the positions.
      alive: bool, False where the game is over.
      truth: 1 or -1, the value for the player to move; 0 where the game is over.
      action: `[L, P]` int32, the moves.
    """

    state: Any
    alive: np.ndarray
    truth: np.ndarray
    action: np.ndarray


@refusals_in_one_line("python -m benchmarks.studies.brosseit2023.unroll")
def main(argv: list[str] | None = None) -> None:
    """Compares a model's values with the truth; see the module's docstring."""
    parser = runs.parser("studies.brosseit2023.unroll", __doc__)
    parser.add_argument("--network", default="ve-hex-5x5")
    parser.add_argument("--positions", type=runs.positive, default=POSITIONS)
    parser.add_argument("--length", type=runs.positive, default=LENGTH)
    parser.add_argument("--stones", type=int, nargs=2, default=list(PLIES), metavar=("FROM", "TO"))
    args = parser.parse_args(argv)
    network = load_network(args.network)
    setting = {
        "network": args.network,
        "weights_sha256": network.card["sha256"],
        "positions": args.positions,
        "stones": args.stones,
        "seed": args.seed,
    }
    record = runs.open_record(parser, args, setting, ("steps",))
    lines = play_lines(network, args.positions, args.stones, args.length, args.seed)
    rows = runs.add(record, *compare(network, lines))
    report.print_table(f"Values of {args.network}", *table(rows))
    draw(record.path.with_suffix(".png"), rows, args.network)
    print(f"Wrote {record.path} and its picture.")


def play_lines(network: Any, count: int, stones: Sequence[int], length: int, seed: int) -> Lines:
    """Plays the lines and solves every position on them."""
    env, rng = network.env, np.random.default_rng(seed)
    root_fn = jax.jit(jaxpgs.make_root_fn(env, network.apply_fn))
    step = jax.jit(jax.vmap(env.step))
    state = _start(env, step, rng, count, stones)
    states, actions = [state], []
    for _ in range(length):
        logits = np.asarray(root_fn(network.params, jax.random.key(0), state).prior_logits)
        legal = np.asarray(state.legal_action_mask)
        noise = np.where(legal, rng.random(legal.shape), -1.0)
        greedy = rng.random(count) < 0.5
        action = np.where(greedy, logits.argmax(-1), noise.argmax(-1)).astype(np.int32)
        actions.append(action)
        state = step(state, jnp.asarray(action))
        states.append(state)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    alive = ~np.asarray(stacked.terminated)
    return Lines(stacked, alive, _solve(env, stacked, alive), np.stack(actions))


def _start(env: Any, step: Any, rng: Any, count: int, stones: Sequence[int]) -> Any:
    """Returns positions of unfinished random games, with numbers of stones in the range."""
    state = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 4 * count))
    number = rng.integers(*stones, size=4 * count)
    for ply in range(max(stones)):
        legal = np.asarray(state.legal_action_mask)
        action = np.where(legal, rng.random(legal.shape), -1.0).argmax(-1)
        after = step(state, jnp.asarray(action, jnp.int32))
        going = jnp.asarray(ply < number)

        def pick(new: Any, old: Any, going: Any = going) -> Any:
            return jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        state = jax.tree.map(pick, after, state)
    usable = np.flatnonzero(~np.asarray(state.terminated))[:count]
    if len(usable) < count:
        raise SystemExit(f"Too few games last {max(stones)} moves; ask for fewer --stones.")
    return jax.tree.map(lambda x: x[usable], state)


def _solve(env: Any, states: Any, alive: np.ndarray) -> np.ndarray:
    """Returns exact values `[L + 1, P]`, 0 where the game is over."""
    states = jax.device_get(states)
    truth = np.zeros(alive.shape)
    for line in range(alive.shape[1]):
        memo: dict[Any, Any] = {}  # the positions of a line share most of their proofs
        for k in range(alive.shape[0]):
            if alive[k, line]:
                state = jax.tree.map(lambda x, k=k, line=line: x[k, line], states)
                truth[k, line] = solve_hex(env, state, all_moves=False, memo=memo).value
    return truth


def compare(network: Any, lines: Lines) -> list[dict[str, Any]]:
    """Returns a row for each number of steps that the model was unrolled."""
    root_fn, recurrent_fn = jaxpgs.make_model_fns(network.module, network.env)
    key, params = jax.random.key(0), network.params
    shown = jax.jit(lambda state: root_fn(params, key, state).value)
    step = jax.jit(lambda action, embedding: recurrent_fn(params, key, action, embedding))
    first = jax.tree.map(lambda x: x[0], lines.state)
    root = jax.jit(lambda state: root_fn(params, key, state))(first)
    embedding, value, rows = root.embedding, root.value, []
    for k in range(len(lines.truth)):
        if k:
            output, embedding = step(jnp.asarray(lines.action[k - 1]), embedding)
            value = output.value
        alive, truth = lines.alive[k], lines.truth[k]
        direct = np.asarray(shown(jax.tree.map(lambda x, k=k: x[k], lines.state)))
        row: dict[str, Any] = {"steps": k, "positions": int(alive.sum())}
        for name, said in (("unrolled", np.asarray(value)), ("shown", direct)):
            error = np.square(said - truth)[alive]
            wrong = (np.sign(said) != truth)[alive]
            row[f"{name}_error"] = [round(x, 3) for x in bootstrap_mean(error)]
            row[f"{name}_wrong"] = [round(100 * x, 1) for x in bootstrap_mean(wrong)]
        rows.append(row)
    return rows


def bootstrap_mean(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the mean of `[S]` values and its 95% interval, from 10,000 bootstrap samples."""
    values = np.asarray(values)
    if not len(values):
        return 0.0, 0.0, 0.0
    drawn = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each number of steps."""
    columns = ["steps", "positions", "squared error, unrolled", "squared error, shown",
               "% wrong winner, unrolled", "% wrong winner, shown"]  # fmt: skip
    names = ("unrolled_error", "shown_error", "unrolled_wrong", "shown_wrong")
    return columns, [
        [row["steps"], row["positions"],
         *(f"{row[n][0]:g} ({row[n][1]:g} to {row[n][2]:g})" for n in names)]
        for row in sorted(rows, key=lambda row: row["steps"])
    ]  # fmt: skip


def draw(path: Any, rows: Sequence[Mapping[str, Any]], network: str) -> None:
    """Draws the share of wrong winners against the steps."""
    rows = sorted(rows, key=lambda row: row["steps"])
    names = {"unrolled": "unrolled", "shown the position": "shown"}
    panels = {
        "": {
            name: [(r["steps"], [r[f"{key}_wrong"][i] for i in (1, 0, 2)]) for r in rows]
            for name, key in names.items()
        }
    }
    pictures.line_plot(
        path, panels, title=f"Values of {network} along an unroll",
        xlabel="steps that the model was unrolled", ylabel="% of positions, wrong winner",
        xscale="linear", yscale="linear",
    )  # fmt: skip


if __name__ == "__main__":
    main()
