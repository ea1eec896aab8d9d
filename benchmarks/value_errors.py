"""Why does a value mislead a tree search? Its errors among the moves of one position, on SameGame.

    python -m benchmarks.value_errors                            # the networks of the library
    python -m benchmarks.value_errors --folder runs/values-7x7   # those of a training, too

A search compares the moves of a position, so what counts is not how far a value is off but whether
its error is the same for all of them. Positions come from random play, from plain MCTS and from
NRPA's best games. Each of their moves is worth what it earns plus the best that long runs of NRPA
find afterwards; where few blocks are left, a search of everything checks that. Beside networks
stand random rollouts, with which plain MCTS values a leaf. A row tells, over the positions of a
source,

- the bias: the mean of estimate less truth, over all moves;
- the gap: how far the moves of a position are apart, as a standard deviation;
- the error among siblings: the same of the errors, less their mean over the position;
- the rank correlation of estimate and truth among the moves of a position, in the mean, and the
  same of three parts of the game;
- the regret: what the move that looks best is worth less than the best, and that of any move.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import jaxpgs
from benchmarks import report, runs
from benchmarks.paired import bootstrap_mean
from jaxpgs import puzzles
from jaxpgs.envs import SameGame, samegame_rules
from jaxpgs.envs.samegame_playouts import random_playouts
from jaxpgs.pretrained import Pretrained

ENV = SameGame(7, 7, 5)
NRPA: dict[str, Any] = {"iterations": (10, 4), "parallel": (16, 1)}
SOURCES: dict[str, Callable[[chex.PRNGKey, Any], puzzles.Solution]] = {
    "random play": lambda key, boards: puzzles.random_games(ENV, key, boards),
    "MCTS": lambda key, boards: puzzles.plain_mcts(ENV, key, boards, 64, c_puct=30.0),
    "NRPA": lambda key, boards: puzzles.nrpa(ENV, key, boards, 640, **NRPA),
}
PHASES = (0, 4, 8)  # parts of a game by their first move
AT_ONCE = 128  # positions of one call
SMALL = 12  # blocks, up to which everything is searched


class Preset(NamedTuple):
    """Positions of each source, and NRPA's games for each of their moves."""

    positions: int
    games: int


PRESETS = {"full": Preset(160, 1280), "quick": Preset(8, 160)}


class Moves(NamedTuple):
    """All moves of the positions of a source, one after another.

    Attributes:
      position: `[M]` which position.
      phase: `[M]` int, the part of the game.
      reward: `[M]` what the move earns.
      after: `[M]` the states after it.
      truth: `[M]` the reward and the best that was found afterwards.
    """

    position: np.ndarray
    phase: np.ndarray
    reward: np.ndarray
    after: Any
    truth: np.ndarray


def positions(source: str, key: chex.PRNGKey, count: int) -> tuple[Any, np.ndarray]:
    """Draws a position from each of `count` games, at a step drawn uniformly.

    Returns:
      States `[count]`, none of them over, and the moves that led to each `[count]`.
    """
    board_key, play_key, step_key = jax.random.split(key, 3)
    boards = jax.vmap(ENV.init)(jax.random.split(board_key, count))
    searches = jax.jit(lambda *x: SOURCES[source](*x).searches)(play_key, boards)
    length = np.asarray(searches.searched).sum(axis=0)
    step = np.asarray(jax.random.uniform(step_key, (count,)) * length).astype(int)
    return jax.tree.map(lambda x: x[step, np.arange(count)], searches.state), step


def moves_of(source: str, seed: int, preset: Preset) -> Moves:
    """Lists the moves of a source's positions with what they are worth."""
    key = jax.random.fold_in(jax.random.key(seed), list(SOURCES).index(source))
    states, step = positions(source, key, preset.positions)
    legal = np.asarray(states.legal_action_mask) & ~np.asarray(states.terminated)[:, None]
    place, action = np.nonzero(legal)
    after = jax.jit(jax.vmap(ENV.step))(jax.tree.map(lambda x: x[place], states), action)
    reward = np.asarray(after.rewards[:, 0])
    best = in_parts(functools.partial(best_found, games=preset.games), jax.random.key(seed), after)
    phase = np.digitize(step, PHASES) - 1
    rest = np.where(np.asarray(after.terminated), 0.0, best)
    return Moves(place, phase[place], reward, after, reward + rest)


def best_found(key: chex.PRNGKey, state: Any, *, games: int) -> chex.Array:
    """Returns the most that NRPA earned from each of B states."""
    return puzzles.nrpa(ENV, key, state, games, **NRPA).score


def in_parts(function: Callable[[chex.PRNGKey, Any], chex.Array], key: Any, x: Any) -> np.ndarray:
    """Calls a function with `AT_ONCE` rows of `x` at a time, and joins its answers."""
    count = len(x.terminated)
    compiled, answers = jax.jit(function), []
    for start in range(0, count, AT_ONCE):
        rows = np.minimum(np.arange(start, start + AT_ONCE), count - 1)
        part = jax.tree.map(lambda y, rows=rows: y[rows], x)
        answers.append(np.asarray(compiled(jax.random.fold_in(key, start), part)))
    return np.concatenate(answers)[:count]


def rollouts(key: chex.PRNGKey, state: Any, *, count: int, best: bool = False) -> chex.Array:
    """Returns the mean, or the best, of random games from each of B states."""
    many = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), state)
    scores = random_playouts(ENV, key, many).score.reshape(-1, count)
    return jnp.max(scores, axis=1) if best else jnp.mean(scores, axis=1)


def network_values(network: Pretrained) -> Callable[[chex.PRNGKey, Any], chex.Array]:
    """Makes the estimate by a network's value."""
    return lambda key, state: network.apply_fn(network.params, jax.vmap(ENV.observe)(state))[1]


ESTIMATES: dict[str, Callable[[chex.PRNGKey, Any], chex.Array]] = {
    "1 random game": functools.partial(rollouts, count=1),
    "8 random games, mean": functools.partial(rollouts, count=8),
    "64 random games, mean": functools.partial(rollouts, count=64),
    "64 random games, best": functools.partial(rollouts, count=64, best=True),
}


def compare(moves: Moves, estimate: np.ndarray) -> dict[str, Any]:
    """Compares an estimate `[M]` with the truth; positions whose moves are all worth the same are
    left out."""
    found = []
    for position in np.unique(moves.position):
        rows = moves.position == position
        guess, truth = estimate[rows], moves.truth[rows]
        if truth.std() < 1:
            continue
        error = guess - truth
        correlation = scipy.stats.spearmanr(guess, truth).statistic if guess.std() > 0 else 0.0
        regret = truth.max() - truth[np.argmax(guess)]
        found.append(
            (moves.phase[rows][0], error.mean(), truth.var(), error.var(), correlation, regret,
             truth.max() - truth.mean())
        )  # fmt: skip
    phase, bias, gap, spread, correlation, regret, of_any = np.array(found).T
    parts = [correlation[phase == number] for number in range(len(PHASES))]
    return {
        "positions": len(found),
        "bias": round(float(bias.mean()), 1),
        "gap": round(float(np.sqrt(gap.mean())), 1),
        "sibling_error": round(float(np.sqrt(spread.mean())), 1),
        "rank_correlation": [round(x, 3) for x in bootstrap_mean(correlation)],
        "by_phase": [round(float(x.mean()), 3) if len(x) else None for x in parts],
        "regret": [round(x, 1) for x in bootstrap_mean(regret)],
        "regret_of_any": round(float(of_any.mean()), 1),
    }


def exhaustive(board: np.ndarray, known: dict[bytes, float]) -> float:
    """Returns the most that can be earned from a board, by trying everything."""
    code = board.tobytes()
    if code not in known:
        known[code] = max(
            game.score + (0.0 if game.over else exhaustive(game.boards[-1], known))
            for group in samegame_rules.groups(board)
            for game in [samegame_rules.replay(board, group[:1])]
        )
    return known[code]


def check(moves: Moves) -> dict[str, Any]:
    """Compares the truth of small boards with what a search of everything finds."""
    boards = np.asarray(jax.vmap(ENV.board)(moves.after))
    left = (boards >= 0).sum(axis=(1, 2))
    small = np.flatnonzero((left <= SMALL) & ~np.asarray(moves.after.terminated))
    exact = np.array([exhaustive(boards[i], {}) for i in small])
    rest = (moves.truth - moves.reward)[small]
    return {"small": len(small), "exact": int(np.sum(np.abs(rest - exact) < 0.5))}


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each estimate and source."""
    lines = [
        [row["source"], row["estimate"], row["positions"], row["bias"], row["gap"],
         row["sibling_error"], _interval(row["rank_correlation"]), *row["by_phase"],
         _interval(row["regret"]), row["regret_of_any"], f"{row['exact']} of {row['small']}"]
        for row in sorted(rows, key=lambda x: list(SOURCES).index(x["source"]))
    ]  # fmt: skip
    columns = ["positions from", "estimate", "positions", "bias", "gap", "error among siblings"]
    columns += ["rank correlation", *(f"after {x} moves or more" for x in PHASES)]
    columns += ["regret", "regret of any move", "truth confirmed"]
    return columns, lines


def _interval(values: Sequence[float]) -> str:
    return "{:g} ({:g} to {:g})".format(*values)


def main(argv: list[str] | None = None) -> None:
    """Compares the estimates; see the module's text."""
    parser = runs.parser("value_errors", __doc__, PRESETS)
    add = parser.add_argument
    add("--folder", type=pathlib.Path, help="saved networks to measure beside the library's")
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    setting = preset._asdict() | {"seed": args.seed}
    record = runs.open_record(parser, args, setting, ("estimate", "source"))
    estimates = dict(ESTIMATES)
    for folder in (None, args.folder):
        for name in jaxpgs.available_pretrained(folder) if folder or not args.folder else ():
            network = jaxpgs.load_pretrained(name, directory=folder)
            if network.env == ENV:
                estimates[name] = network_values(network)
    with report.progress_bar("Errors of values") as progress:
        for done, source in enumerate(SOURCES):
            progress(done, len(SOURCES), source)
            missing = [x for x in estimates if not runs.has(record, estimate=x, source=source)]
            if not missing:
                continue
            moves = moves_of(source, args.seed, preset)
            checked = check(moves)
            for name in missing:
                worth = in_parts(estimates[name], jax.random.key(args.seed + 1), moves.after)
                worth = moves.reward + np.where(np.asarray(moves.after.terminated), 0.0, worth)
                row = {"estimate": name, "source": source} | compare(moves, worth) | checked
                runs.add(record, row)
    report.print_table("Errors of values among the moves of a position", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


if __name__ == "__main__":
    main()
