"""Does expert iteration learn a small game with its defaults? Five games, solved exactly.

    python tests/quality small_games

A small network learns each game from random weights, with the defaults of `expert_iteration.train`
and with other settings. The test positions come from random games; in them the player to move has a
positive value by exact solution, and some move is wrong. A move is right if its value is at most a
tenth of a win below the best one, which matters only in the game with chance. The result is the
share of the positions in which the network's likeliest move, without a search, is right.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import quality
from benchmarks import report, runs
from jaxpgs import networks
from jaxpgs.adapters.environments import make_root_fn, step_with_key
from jaxpgs.envs import Hex
from jaxpgs.evaluation import solvers
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import expert_iteration

_SIZES = ("iterations", "games_at_once", "simulations", "width")
TOLERANCE = 0.1  # of a win, which a right move may give away


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A position of the games below.

    Attributes:
      board: for `Nim`, the heaps and how many stones may be taken at most; for `Lines`, `[H, W]`, 1
        and -1 for the stones of the player to move and of the other.
      current_player: `[]` int32.
      rewards: `[2]`.
      terminated: `[]` bool.
      legal_action_mask: `[A]` bool.
    """

    board: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array
    legal_action_mask: chex.Array


def _after(state: State, board: chex.Array, gain: chex.Array, over: chex.Array) -> State:
    """Returns the state after a move that pays its mover `gain`; a finished game pays nothing."""
    over |= state.terminated
    player = jnp.where(over, state.current_player, 1 - state.current_player)
    own = jnp.arange(2) == state.current_player
    rewards = jnp.where(state.terminated, 0.0, jnp.where(own, gain, -gain))
    return dataclasses.replace(
        state, board=board, current_player=player, rewards=rewards, terminated=over
    )


@dataclasses.dataclass(frozen=True)
class Nim:
    """A move takes stones from one heap; whoever takes the last stone loses (misère), or wins.

    Attributes:
      heaps: the sizes of the heaps at the start.
      misere: whether taking the last stone loses.
      sides: the sides of a die that is thrown before every move and limits the number of stones
        taken; 0 for no limit.
    """

    heaps: tuple[int, ...] = (3, 4, 5)
    misere: bool = True
    sides: int = 0
    num_players: int = 2

    @property
    def most(self) -> int:
        """How many stones may be taken at most."""
        return self.sides or max(self.heaps)

    @property
    def num_actions(self) -> int:
        """A; an action is a heap and a number of stones."""
        return len(self.heaps) * self.most

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of an observation."""
        return (len(self.heaps) * max(self.heaps) + self.sides,)

    def init(self, key: chex.PRNGKey | None = None) -> State:
        """Returns the start, where the die shows its highest side."""
        del key
        board = jnp.array([*self.heaps, self.most], jnp.int32)
        start = State(
            board, jnp.int32(0), jnp.zeros(2), jnp.bool_(False), jnp.ones(self.num_actions, bool)
        )
        return self._with_legal(start)

    def _with_legal(self, state: State) -> State:
        heaps, most = state.board[:-1, None], state.board[-1]
        taken = 1 + jnp.arange(self.most)
        legal = ((taken <= heaps) & (taken <= most)).ravel()
        # In a finished game all actions are legal, so that random draws are defined.
        return dataclasses.replace(state, legal_action_mask=legal | state.terminated)

    def outcomes(self, state: State, action: chex.Array) -> State:
        """Returns the `[C]` equally likely states after an action."""
        taken = jnp.where(state.terminated, 0, action % self.most + 1)
        heaps = state.board[:-1].at[action // self.most].add(-taken)
        over = jnp.all(heaps == 0)
        gain = jnp.where(over, -1.0 if self.misere else 1.0, 0.0)
        dice = 1 + jnp.arange(self.sides) if self.sides else jnp.array([self.most])

        def thrown(die: chex.Array) -> State:
            board = jnp.concatenate([heaps, die.astype(jnp.int32)[None]])
            return self._with_legal(_after(state, board, gain, over))

        return jax.vmap(thrown)(dice)

    def step(self, state: State, action: chex.Array, key: chex.PRNGKey) -> State:
        """Plays an action, and throws the die for the next."""
        found = self.outcomes(state, action)
        number = jax.random.randint(key, (), 0, len(found.terminated))
        return jax.tree.map(lambda x: x[number], found)

    def observe(self, state: State) -> chex.Array:
        """Returns heaps and die in unary code: of the cells of a number n, the first n are 1."""
        heaps = jnp.arange(max(self.heaps)) < state.board[:-1, None]
        die = jnp.arange(self.sides) < state.board[-1]
        return jnp.concatenate([heaps.ravel(), die]).astype(jnp.float32)

    def code(self, state: State) -> chex.Array:
        """Returns a number that identifies the position for the player to move."""
        number = jnp.int32(0)
        for i, most in enumerate(self.heaps):
            number = number * (most + 1) + state.board[i]
        return number * max(self.sides, 1) + (state.board[-1] - 1 if self.sides else 0)


@dataclasses.dataclass(frozen=True)
class Lines:
    """Whoever first has a row of stones wins: tic-tac-toe, or with columns connect four.

    Attributes:
      height: H.
      width: W.
      in_row: how many stones in a row win.
      columns: whether stones fall down their column, which is the action.
    """

    height: int = 3
    width: int = 3
    in_row: int = 3
    columns: bool = False
    num_players: int = 2

    @property
    def num_actions(self) -> int:
        """A, the number of columns or of cells."""
        return self.width * (1 if self.columns else self.height)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of an observation."""
        return (self.height, self.width, 2)

    def init(self, key: chex.PRNGKey | None = None) -> State:
        """Returns the empty board."""
        del key
        board = jnp.zeros((self.height, self.width), jnp.int32)
        legal = jnp.ones(self.num_actions, bool)
        return State(board, jnp.int32(0), jnp.zeros(2), jnp.bool_(False), legal)

    def outcomes(self, state: State, action: chex.Array) -> State:
        """Returns the state after an action, with a leading axis of 1, as there is no chance."""
        row, column = action // self.width, action % self.width
        if self.columns:
            row = self.height - 1 - jnp.sum(state.board[:, column] != 0)
        board = jnp.where(state.terminated, state.board, -state.board.at[row, column].set(1))
        won = self._has_row(board == -1)
        full = jnp.all(board != 0)
        after = _after(state, board, jnp.where(won, 1.0, 0.0), won | full)
        free = (board[0] == 0) if self.columns else (board == 0).ravel()
        legal = free | after.terminated
        return jax.tree.map(lambda x: x[None], dataclasses.replace(after, legal_action_mask=legal))

    def _has_row(self, mine: chex.Array) -> chex.Array:
        found = jnp.bool_(False)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            for r in range(self.height - down * (self.in_row - 1)):
                for c in range(self.width):
                    if 0 <= c + right * (self.in_row - 1) < self.width:
                        cells = [mine[r + i * down, c + i * right] for i in range(self.in_row)]
                        found |= functools.reduce(jnp.logical_and, cells)
        return found

    def step(self, state: State, action: chex.Array) -> State:
        """Puts a stone."""
        return jax.tree.map(lambda x: x[0], self.outcomes(state, action))

    def observe(self, state: State) -> chex.Array:
        """Returns a plane of the mover's stones and one of the other's."""
        return jnp.stack([state.board == 1, state.board == -1], axis=-1).astype(jnp.float32)

    def code(self, state: State) -> chex.Array:
        """Returns the board, as the player to move sees it, as a number in base 3."""
        cells = (state.board.ravel() % 3).astype(jnp.int32)
        return jnp.sum(cells * 3 ** jnp.arange(len(cells)))


GAMES: Mapping[str, Any] = {
    "misère nim": Nim(),
    "tic-tac-toe": Lines(),
    "connect four 4x4": Lines(4, 4, 4, columns=True),
    "Hex 4x4": Hex(4),
    "nim with a die": Nim(sides=3),
}


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "the paper's": expert_iteration.paper_settings(),
    "a step of 1e-3": {"optimizer": expert_iteration.default_optimizer(1e-3)},
    "no random moves": {"max_random_moves": 0},
    "value of best play": {"value_target": "best"},
}


def values_of_actions(env: Any, states: Any) -> np.ndarray:
    """Solves positions exactly.

    Args:
      env: one of `GAMES`.
      states: `[N]` positions that are not over.

    Returns:
      `[N, A]` what each action is worth to its mover, NaN for those that are illegal.
    """
    worth = _hex_values(env, states) if isinstance(env, Hex) else _solve(env)(states)
    return np.where(np.asarray(states.legal_action_mask), worth, np.nan)


def _hex_values(env: Hex, states: Any) -> np.ndarray:
    def code(state: Any, action: chex.Array) -> chex.Array:
        return solvers.hex_code(env, env.observe(env.step(state, action)))

    after = jax.jit(jax.vmap(jax.vmap(code, (None, 0)), (0, None)))
    codes = after(states, jnp.arange(env.num_actions))
    return -solvers.hex_value_table(env)[np.asarray(codes)].astype(np.float32)


def _solve(env: Any, at_once: int = 2048) -> Callable[[Any], np.ndarray]:
    """Solves all reachable positions; returns a function `states -> [N, A]`, the actions' values.

    No position of a game occurs twice in it, so each round of backups settles positions one move
    further from the end.
    """

    @jax.jit
    def look(states: State) -> tuple[chex.Array, chex.Array, State]:
        def one(state: State, action: chex.Array) -> tuple[chex.Array, chex.Array, State]:
            after = env.outcomes(state, action)
            code = jnp.where(after.terminated, -1, jax.vmap(env.code)(after))
            return code, after.rewards[0, state.current_player], after

        return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(states, jnp.arange(env.num_actions))

    fresh: Any = jax.tree.map(lambda x: np.asarray(x)[None], env.init())
    known = np.asarray(env.code(env.init()))[None]
    codes, leads, pays, legal = [known], [], [], []
    while len(fresh.terminated):
        found = []
        for i in range(0, len(fresh.terminated), at_once):
            part = jax.tree.map(lambda x, i=i: x[i : i + at_once], fresh)
            count = len(part.terminated)
            filled = jax.tree.map(lambda x: np.resize(x, (at_once, *x.shape[1:])), part)
            code, gain, after = jax.device_get(look(filled))
            leads.append(code[:count])
            pays.append(gain[:count])
            legal.append(part.legal_action_mask)
            is_new = (code >= 0) & filled.legal_action_mask[..., None]
            is_new[count:] = False
            found.append(jax.tree.map(lambda x, m=is_new: x[m], (code, after)))
        code, after = jax.tree.map(lambda *x: np.concatenate(x), *found)
        new, first = np.unique(code, return_index=True)
        first = first[~np.isin(new, known)]
        fresh = jax.tree.map(lambda x, i=first: x[i], after)
        codes.append(code[first])
        known = np.concatenate([known, code[first]])
    order = np.argsort(known)
    known, lead = known[order], np.concatenate(leads)[order]
    pay, may = np.concatenate(pays)[order], np.concatenate(legal)[order]
    where = _places(known, lead)
    value = np.zeros(len(known) + 1, np.float32)  # the last is of finished games
    while True:
        worth = np.where(may, pay - value[where].mean(axis=-1), -np.inf).max(axis=-1)
        if np.array_equal(worth, value[:-1]):
            break
        value[:-1] = worth

    def values(states: Any) -> np.ndarray:
        lead, pay, _ = jax.device_get(look(states))
        return pay - value[_places(known, lead)].mean(axis=-1)

    return values


def _places(known: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns the indices of codes among the known ones; finished games get `len(known)`."""
    return np.where(codes < 0, len(known), np.searchsorted(known, codes))


def decisive(env: Any, num_games: int = 512, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Finds positions of random games in which the player to move is winning and may go wrong.

    Returns:
      The positions, each once, and `[N, A]` bool, the actions that are right.
    """
    step = step_with_key(env)

    def play(rng_key: chex.PRNGKey) -> Any:
        def move(state: Any, rng_key: chex.PRNGKey) -> tuple[Any, Any]:
            draw_key, step_key = jax.random.split(rng_key)
            legal = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            return step(state, jax.random.categorical(draw_key, legal), step_key), state

        return jax.lax.scan(move, env.init(), jax.random.split(rng_key, 24))[1]

    games = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(seed), num_games))
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), games)
    seen = np.asarray(jax.vmap(env.observe)(flat)).reshape(len(flat.terminated), -1)
    _, first = np.unique(seen, axis=0, return_index=True)
    first = first[~flat.terminated[first]]
    states = jax.tree.map(lambda x: x[first], flat)
    worth = values_of_actions(env, states)
    best = np.nanmax(worth, axis=-1, keepdims=True)
    right = worth >= best - TOLERANCE
    counts = (best[:, 0] > 0) & (np.nanmin(worth, axis=-1) < best[:, 0] - TOLERANCE)
    return jax.tree.map(lambda x: x[counts], states), right[counts]


def share_right(env: Any, apply_fn: Any, params: Any, states: Any, right: np.ndarray) -> float:
    """Returns the share of positions in which the network's likeliest legal move is right."""
    root = jax.jit(make_root_fn(env, apply_fn))(params, jax.random.key(0), states)
    chosen = np.argmax(root.prior_logits, axis=-1)
    return float(right[np.arange(len(right)), chosen].mean())


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = quality.parser("small_games", __doc__)
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--iterations", type=runs.positive, default=40)
    parser.add_argument("--games-at-once", type=runs.positive, default=64)
    parser.add_argument("--simulations", type=runs.positive, default=32)
    parser.add_argument("--width", type=runs.positive, default=64)
    args = parser.parse_args(argv)
    setting = {name: getattr(args, name) for name in _SIZES}
    record = runs.open_record(parser, args, setting, ("game", "setting", "seed"))
    jobs = [(game, name) for name in args.settings for game in args.games]
    with report.progress_bar("small games") as progress:
        for i, (game, name) in enumerate(jobs):
            progress(i, len(jobs), f"{game}, {name}")
            if not runs.has(record, game=game, setting=name, seed=args.seed):
                runs.add(record, measure(game, name, args))
    report.print_table("Won positions played right", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def measure(game: str, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Trains a network on a game, and returns the row of results."""
    env = GAMES[game]
    states, right = decisive(env)
    network = networks.FullyConnectedResNet(
        env.observation_shape, env.num_actions, width=args.width, num_blocks=2,
        rngs=nnx.Rngs(args.seed),
    )  # fmt: skip
    params, apply_fn = networks.functional(network)
    start, seen = time.perf_counter(), []
    state = by_name(expert_iteration.train)(
        env, network, num_iterations=args.iterations, num_games=args.games_at_once,
        num_simulations=args.simulations, evaluate_every=0, seed=args.seed,
        callback=lambda _, metrics: seen.append(metrics), progress=False, **SETTINGS[name],
    )  # fmt: skip
    chance = np.nanmean(right, axis=-1, where=np.asarray(states.legal_action_mask)).mean()
    return {
        "game": game, "setting": name, "seed": args.seed, "positions": len(right),
        "chance": round(float(chance), 3),
        "untrained": round(share_right(env, apply_fn, params, states, right), 3),
        "right": round(share_right(env, apply_fn, state.params, states, right), 3),
        "resigned": round(seen[-1]["resigned"], 3), "length": round(seen[-1]["mean_length"], 2),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each setting: the share of positions played right, in %."""
    lines = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        line: list[Any] = [name]
        for game in GAMES:
            found = [row["right"] for row in rows if (row["game"], row["setting"]) == (game, name)]
            line.append(f"{100 * np.mean(found):.0f}" if found else "")
        lines.append(line)
    return ["setting", *GAMES], lines


if __name__ == "__main__":
    main()
