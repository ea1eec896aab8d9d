"""The searches that `benchmarks.studies.seify2020.samegame` compares, by name.

To add one, name a `Search` in `SEARCHES`: a function of a game and a number of boards M that
compiles what is not timed and returns a `Run`, which yields its `Best` so far after every second's
work or less, until the benchmark takes no more. `on_devices` makes one of pure functions.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import jaxpgs
from jaxpgs import puzzles
from jaxpgs.envs import SameGame, bitboard
from jaxpgs.envs.samegame.sequences import code_features, play_sequences
from jaxpgs.puzzles import NestedSearch, TemperingSearch, nrpa_search, tempering_search
from jaxpgs.puzzles.nrpa_loop import adapt
from jaxpgs.puzzles.nrpa_samegame import default_pairs, default_sharing


class Best(NamedTuple):
    """The best that a search has found so far on each of M boards.

    Attributes:
      actions: M games, each a list of cells.
      scores: M scores of them, as the search counts; the benchmark replays the games.
      simulations: how many games it has played on each board.
    """

    actions: list[list[int]]
    scores: list[float]
    simulations: int


Run = Callable[[np.ndarray, chex.PRNGKey], Iterator[Best]]
Search = Callable[[SameGame, int], Run]
Play = Callable[[SameGame, Any, Any, int], Any]


def nrpa_on_devices(
    *,
    by_color: bool = True,
    pairs: bool | None = None,
    tabu: float = 0.0,
    lean: int = 0,
    noise: float = 0.0,
    **knobs: Any,
) -> Search:
    """Makes a nested rollout policy adaptation, independent on each device.

    Args:
      by_color: whether blocks share what is learned of their colour.
      pairs: whether pairs and larger groups have logits of their own; `default_pairs` if None.
      tabu: how much lower the logits of the most frequent colour begin.
      lean: how many steps towards the best game of all lanes are in the table from which the
        highest level begins anew; with 0 it is the first table again.
      noise: standard deviation of what is added to that table in each lane.
      **knobs: arguments of `jaxpgs.puzzles.nrpa_search`.
    """
    lanes = int(np.prod(knobs["parallel"]))

    def make(env: SameGame, states: Any) -> NestedSearch:
        by_size = default_pairs(env) if pairs is None else pairs
        features = code_features(env, states, pairs=by_size) if by_color else None
        games = jax.tree.map(lambda x: jnp.repeat(x, lanes, axis=0), states)
        search = nrpa_search(
            lambda keys, logits: play_sequences(env, keys, games, logits),
            features=features,
            **{"sharing": default_sharing(env)} | knobs,
        )
        bias = jnp.zeros(((1 + by_size) * env.num_actions, len(states.terminated)))
        if tabu:
            colors = code_features(env, states, pairs=by_size)[: env.num_colors]
            most = jnp.argmax(colors.sum(axis=1), axis=0)
            bias = -tabu * jnp.take_along_axis(colors, most[None, None], axis=0)[0]

        def begin_anew(keys: chex.PRNGKey, state: Any) -> Any:
            best = search.finish(state)
            logits = jax.lax.fori_loop(
                0, lean, lambda _, x: adapt(x, best, 1.0, features, default_sharing(env)), bias
            )
            logits = jnp.repeat(logits, lanes, axis=1)
            key = jax.random.fold_in(keys[0], state.steps)
            logits = logits + noise * jax.random.normal(key, logits.shape)
            levels = tuple(level._replace(logits=logits) for level in state.levels)
            return state._replace(bias=logits, levels=levels)

        def step(keys: chex.PRNGKey, state: Any) -> Any:
            state = search.step(keys, state)
            over = state.levels[-1].iterations == 0
            return jax.lax.cond(over, lambda: begin_anew(keys, state), lambda: state)

        return search._replace(
            init=lambda keys: search.init(bias), step=step if lean else search.step
        )

    return on_devices(make)


def tempering_on_devices(steps: int = 25, **knobs: Any) -> Search:
    """Makes parallel temperings, with so many steps between two looks at the clock."""

    def make(env: SameGame, states: Any) -> TemperingSearch:
        search = tempering_search(env, states, **knobs)

        def step(keys: chex.PRNGKey, state: Any) -> Any:
            return jax.lax.fori_loop(0, steps, lambda _, state: search.step(keys, state), state)

        return search._replace(step=step, games_per_step=steps * search.games_per_step)

    return on_devices(make)


class Game(NamedTuple):
    """The best game so far of M boards: `[M]` scores and lengths and `[T, M]` actions."""

    score: chex.Array
    length: chex.Array
    action: chex.Array


class BeamSearch(NamedTuple):
    """A search of `on_devices`, whose step is a beam search of one board after the other."""

    init: Callable[[chex.PRNGKey], tuple[Game, chex.Array]]
    step: Callable[[chex.PRNGKey, Any], tuple[Game, chex.Array]]
    finish: Callable[[Any], Game]
    games_per_step: int


class Weights(NamedTuple):
    """What `potential` makes of a board, and how much chance there is in it.

    Attributes:
      target: weight of the most frequent colour of the first board.
      other: weight of the other colours.
      single: what a single block of another colour costs.
      noise: scale of the Gumbel noise that is added to a position's value.
    """

    target: float = 2.0
    other: float = 0.5
    single: float = 20.0
    noise: float = 20.0


def potential(env: SameGame, planes: chex.Array, target: chex.Array, by: Weights) -> chex.Array:
    """Estimates what boards `[P, W, N]` are still worth: `[N]`.

    A colour with n blocks in groups of v blocks counts `(1 - 2 / n)^2 sum v^2`, which is
    `(n - 2)^2` where all of them are in one group. The target colour counts more, and its single
    blocks cost nothing.
    """
    up, left = bitboard.links(planes)
    digits = bitboard.representatives(up, left)[1]
    dtype = bitboard.word_dtype(len(digits))
    # A cell's label is its representative's place: the digits of its column, then of its height.
    # Where no flood comes all digits are 1, and no group has its representative there.
    bits = jnp.moveaxis(bitboard.unpack(digits, env.height), 1, 0).astype(dtype)
    label = functools.reduce(lambda x, bit: (x << 1) | bit, list(bits))
    label = label.reshape(-1, planes.shape[-1])
    rows = (8 * planes.dtype.itemsize - 1).bit_length()
    places = jnp.array([w << rows | h for w in range(env.width) for h in range(env.height)])
    colors = jnp.arange(env.num_colors)[:, None]

    def add(i: chex.Array, sums: chex.Array) -> chex.Array:
        place = places[i]
        size = jnp.sum(label == place.astype(dtype), axis=0, dtype=jnp.uint8).astype(jnp.int32)
        words = planes[:, place >> rows] >> (place & (1 << rows) - 1).astype(planes.dtype) & 1
        code = jnp.sum(words.astype(jnp.int32) << jnp.arange(len(planes))[:, None], axis=0)
        return sums + jnp.where(code == colors + 1, jnp.square(size), 0)

    zeros = jnp.zeros((env.num_colors, planes.shape[-1]), jnp.int32)
    sums = jax.lax.fori_loop(0, len(places), add, zeros)
    of_color = [bitboard.where_color(planes, c) for c in range(env.num_colors)]
    count = jnp.stack([bitboard.count(words) for words in of_color])
    alone = ~bitboard.linked(up, left)
    single = jnp.stack([bitboard.count(words & alone) for words in of_color])
    worth = jnp.square(1 - 2 / jnp.maximum(count, 2)) * (sums + single)
    others = by.other * worth - by.single * single
    return jnp.sum(jnp.where(colors == target, by.target * worth, others), axis=0)


def beam(env: SameGame, planes: chex.Array, key: chex.PRNGKey, width: int, by: Weights) -> Game:
    """Plays one board `[P, W]` with a beam of positions, the best by score and potential."""
    most, children = env.num_actions // 2, 40 * width
    color = [bitboard.count(bitboard.where_color(planes, c)) for c in range(env.num_colors)]
    target = jnp.argmax(jnp.stack(color))

    def turn(carry: tuple) -> tuple:
        planes, score, alive, t, parents, actions, best = carry
        words = jnp.where(alive, bitboard.candidates(*bitboard.links(planes)), 0)
        moves = jnp.moveaxis(bitboard.unpack(words, env.height), -1, 0)
        (move,) = jnp.nonzero(moves.reshape(-1), size=children, fill_value=-1)
        parent, cell = move // env.num_actions, move % env.num_actions
        row, column = cell // env.width, cell % env.width
        one = planes.dtype.type(1)
        bit = jnp.where(move >= 0, one << (env.height - 1 - row).astype(planes.dtype), 0 * one)
        before = planes[:, :, parent]
        seed = jnp.where(jnp.arange(env.width)[:, None] == column, bit, 0 * one)
        group = bitboard.flood(seed, *bitboard.links(before))
        after = bitboard.remove(before, group)
        total = score[parent] + jnp.square(bitboard.count(group) - 2.0)
        over = ~bitboard.has_group(after)
        end = jnp.where((move >= 0) & over, total + env.end_reward(after), -jnp.inf)
        winner = jnp.argmax(end)
        found = end[winner], t, parent[winner], cell[winner]
        best = jax.tree.map(lambda new, old: jnp.where(found[0] > best[0], new, old), found, best)
        value = total + potential(env, after, target, by)
        value = value + by.noise * jax.random.gumbel(jax.random.fold_in(key, t), value.shape)
        value = jnp.where((move >= 0) & ~over, value, -jnp.inf)
        # Of equal positions only the best goes on.
        names = _hashed(after)
        order = jnp.lexsort((-value, names))
        names = names[order]
        again = jnp.concatenate([jnp.zeros(1, bool), names[1:] == names[:-1]])
        value, chosen = jax.lax.top_k(jnp.where(again, -jnp.inf, value[order]), width)
        chosen = order[chosen]
        parents, actions = parents.at[t].set(parent[chosen]), actions.at[t].set(cell[chosen])
        alive = value > -jnp.inf
        return after[:, :, chosen], total[chosen], alive, t + 1, parents, actions, best

    steps = jnp.zeros((most, width), jnp.int32)
    none = -jnp.float32(jnp.inf), jnp.int32(0), jnp.int32(0), jnp.int32(0)
    start = jnp.repeat(planes[..., None], width, axis=-1), jnp.zeros(width), jnp.arange(width) == 0
    carry = (*start, jnp.int32(0), steps, steps, none)
    carry = jax.lax.while_loop(lambda c: jnp.any(c[2]) & (c[3] < most), turn, carry)
    *_, parents, actions, (score, last, parent, cell) = carry

    def back(i: chex.Array, carry: tuple) -> tuple:
        place, game = carry
        return parents[last - 1 - i, place], game.at[last - 1 - i].set(actions[last - 1 - i, place])

    game = jnp.full(most, -1, jnp.int32).at[last].set(cell)
    _, game = jax.lax.fori_loop(0, last, back, (parent, game))
    return Game(score, last + 1, game)


def _hashed(planes: chex.Array) -> chex.Array:
    """Returns `[N]` numbers that tell boards `[P, W, N]` apart, but for rare accidents."""
    name = jnp.zeros(planes.shape[-1], jnp.uint32)
    for word in planes.reshape(-1, planes.shape[-1]):
        name = (name ^ word) * jnp.uint32(0x9E3779B1)
        name = name ^ (name >> 15)
    return name


def beam_on_devices(width: int = 100, **weights: float) -> Search:
    """Makes beam searches that begin again and again with noise, after a first of width 4."""
    by = Weights(**weights)

    def make(env: SameGame, states: Any) -> BeamSearch:
        num_boards = len(states.terminated)

        def init(keys: chex.PRNGKey) -> tuple[Game, chex.Array]:
            games = jax.lax.map(lambda x: beam(env, x[0], x[1], 4, by), (states.planes, keys))
            return games._replace(action=games.action.T), jnp.int32(0)

        def step(keys: chex.PRNGKey, state: Any) -> tuple[Game, chex.Array]:
            best, count = state
            m = count % num_boards
            key = jax.random.fold_in(keys[m], count)
            game = beam(env, states.planes[m], key, width, by)
            better = (jnp.arange(num_boards) == m) & (game.score > best.score)
            game = jax.tree.map(lambda n, o: jnp.where(better, n[..., None], o), game, best)
            return game, count + 1

        return BeamSearch(init, step, lambda state: state[0], width)

    return on_devices(make)


def on_devices(make: Callable[[SameGame, Any], Any]) -> Search:
    """Makes searches that are independent on each device.

    `make` gives, of a game and M positions, a search with `init`, of `[M]` keys, `step`, `finish`
    and `games_per_step`.
    """

    def prepare(env: SameGame, num_boards: int) -> Run:
        mesh = Mesh(np.array(jax.devices()), "devices")
        each = PartitionSpec("devices")

        def on_each(function: Callable[..., Any]) -> Callable[..., Any]:
            """Runs on every device with its own slice of the last arguments."""

            def one(states: Any, *args: Any) -> Any:
                args = jax.tree.map(lambda x: x[0], args)
                return jax.tree.map(lambda x: x[None], function(states, *args))

            def all_devices(states: Any, *args: Any) -> Any:
                specs = (PartitionSpec(), *[each] * len(args))
                how: Any = {"mesh": mesh, "in_specs": specs, "out_specs": each, "check_vma": False}
                return jax.shard_map(one, **how)(states, *args)

            return jax.jit(all_devices, compiler_options=_options())

        init = on_each(lambda states, keys: make(env, states).init(keys))
        step = on_each(lambda states, keys, state: make(env, states).step(keys, state))
        best = on_each(lambda states, state: make(env, states).finish(state))

        def run(boards: np.ndarray, rng_key: chex.PRNGKey) -> Iterator[Best]:
            states = jax.tree.map(lambda *x: jnp.stack(x), *[env.from_board(b) for b in boards])
            keys = jax.random.split(rng_key, (2, mesh.size, num_boards))
            state, games = init(states, keys[0]), mesh.size * make(env, states).games_per_step
            for count in itertools.count(1):
                state = step(states, keys[1], state)
                yield _read(best(states, state), count * games)

        # The first step compiles.
        next(run(np.stack([_checkered(env)] * num_boards), jax.random.key(0)))
        return run

    return prepare


def whole_games(play: Play, num_simulations: int) -> Search:
    """Makes a search of `jaxpgs.puzzles` that plays one game after another, a search for each move.

    The best line of all games counts, and no game learns from the ones before it.

    Args:
      play: `(env, rng_keys [M], states [M], num_simulations) -> Solution`.
      num_simulations: simulations a move.
    """

    def prepare(env: SameGame, num_boards: int) -> Run:
        solve = jax.jit(lambda keys, states: play(env, keys, states, num_simulations))

        def run(boards: np.ndarray, rng_key: chex.PRNGKey) -> Iterator[Best]:
            states = jax.tree.map(lambda *x: jnp.stack(x), *[env.from_board(b) for b in boards])
            best = Best([[] for _ in boards], [-np.inf] * len(boards), 0)
            for game in itertools.count():
                keys = jax.random.split(jax.random.fold_in(rng_key, game), num_boards)
                found = jax.device_get(solve(keys, states))
                for m, score in enumerate(found.score.tolist()):
                    if score > best.scores[m]:
                        best.actions[m] = found.moves[m, : found.num_moves[m]].tolist()
                        best.scores[m] = score
                moves = int(found.searches.searched.sum(axis=0).max())
                best = best._replace(simulations=best.simulations + num_simulations * moves)
                yield best

        # The first game compiles. A small one will do: all boards of an environment are alike.
        next(run(np.stack([_checkered(env)] * num_boards), jax.random.key(0)))
        return run

    return prepare


def with_network(play: Callable[..., Any], *, temperature: float = 1.0, **knobs: Any) -> Play:
    """Gives a search the network of the board's size that comes with the library.

    Args:
      play: one of `jaxpgs.puzzles` that takes a network.
      temperature: of the network's policy.
      **knobs: its further arguments.
    """

    def with_its_network(env: SameGame, rng_keys: Any, states: Any, num_simulations: int) -> Any:
        network = jaxpgs.load_pretrained(f"samegame-{env.height}x{env.width}")
        apply_fn = jaxpgs.networks.with_temperature(network.apply_fn, temperature)
        return play(env, apply_fn, network.params, rng_keys, states, num_simulations, **knobs)

    return with_its_network


def _checkered(env: SameGame) -> np.ndarray:
    """A board without much to do, for compiling."""
    return np.arange(env.num_actions).reshape(env.height, env.width) % 2 % env.num_colors


def _read(games: Any, simulations: int) -> Best:
    """Takes the best game of all devices `[D, ..., M]` for each board."""
    scores, actions = np.asarray(games.score), np.asarray(games.action)
    lengths = np.asarray(games.length)
    winner = scores.argmax(axis=0)
    found = [actions[d, : lengths[d, m], m].tolist() for m, d in enumerate(winner)]
    return Best(found, scores.max(axis=0).tolist(), simulations)


def _options() -> dict[str, Any]:
    # XLA's CPU backend uses half of the widest vectors unless it is told to.
    return {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}


# Few lanes, many iterations: of as many games, deep searches make more than broad ones.
_NESTED: dict[str, Any] = {"iterations": (100, 100, 100), "parallel": (4, 2, 1)}
# Those from "policy-mcts" on need a network, which comes with the library for some sizes.
SEARCHES: dict[str, Search] = {
    "random": nrpa_on_devices(iterations=(1,), parallel=(256,), playouts=64),
    "nrpa": nrpa_on_devices(**_NESTED),
    "tempering": tempering_on_devices(),
    "tempering, 8 lanes": tempering_on_devices(lanes=8, steps=50),
    "tempering, hottest 80": tempering_on_devices(hottest=80.0),
    "tempering, moves alone": tempering_on_devices(one_block=0.0),
    "tempering, one change": tempering_on_devices(another=0.0),
    "beam": beam_on_devices(),
    "nrpa, tabu colour": nrpa_on_devices(**_NESTED, tabu=1.0),
    "nrpa, begins anew": nrpa_on_devices(
        iterations=(100, 100), parallel=(4, 2), lean=30, noise=2.0
    ),
    # For accelerators: 4,096 games at once on each position.
    "nrpa wide": nrpa_on_devices(**_NESTED | {"parallel": (64, 16, 4)}),
    "mcts": whole_games(puzzles.plain_mcts, 256),
    "policy-mcts": whole_games(with_network(puzzles.policy_mcts), 256),
    "policy-mcts informed": whole_games(with_network(puzzles.policy_mcts, rollout="informed"), 256),
    "pgs": whole_games(with_network(puzzles.pgs), 256),
}
