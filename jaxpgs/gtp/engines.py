"""Engines for a dialog: our searches, and any player of `jaxpgs.evaluation`."""

import dataclasses
import functools
import itertools
import os
import re
import zlib
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

import jaxpgs
from jaxpgs.base import PolicyOutput
from jaxpgs.envs import Hex
from jaxpgs.envs.hex import HexState
from jaxpgs.evaluation import Player
from jaxpgs.gtp.dialog import Answer, Engine, Options, Task
from jaxpgs.search import Progress
from jaxpgs.thinker import Thinker, fair_opening, make_brain, make_thinker, read, think

_SLICE = 0.5  # seconds between two lines of live analysis


class _Searcher(NamedTuple):
    """A search that is compiled for one board size."""

    env: Hex
    thinker: Thinker


def search_engine(
    network: str = "hex-9x9-large",
    *,
    directory: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> tuple[Engine, int]:
    """Makes an engine from our searches and a pretrained network.

    A network plays on boards of one size. For another size the engine uses the network of the same
    name with this size, or else the plain one, such as `hex-7x7` for `hex-9x9-large`, if it exists.

    Args:
      network: one of `available_pretrained(directory)`, for Hex.
      directory: a folder of saved networks; by default those that come with the library.
      seed: the same seed, position and number of simulations give the same move.

    Returns:
      The engine, and the board size of the network. `prepare` compiles, so that no move has to.

    Raises:
      ValueError: if the network is unknown or not for Hex.

    Example:
      >>> from jaxpgs import gtp
      >>> engine, size = gtp.search_engine("hex-5x5")
      >>> engine.name, size
      ('jaxpgs hex-5x5', 5)
    """
    first = jaxpgs.load_pretrained(network, directory=directory)
    _check_hex(network, first.env)

    @functools.cache
    def load(size: int) -> Any:
        if size == first.env.size:
            return first
        names = jaxpgs.available_pretrained(directory)
        # First try the same name with the other size, then the plain network of that size.
        same = re.sub(r"\d+x\d+", f"{size}x{size}", network)
        for name in (same, f"hex-{size}x{size}"):
            if name in names:
                found = jaxpgs.load_pretrained(name, directory=directory)
                if isinstance(found.env, Hex) and found.env.size == size:
                    return found
        own = f"{first.env.size}x{first.env.size}"
        raise ValueError(f"no network for {size}x{size}; {network} plays on {own}")

    @functools.cache
    def searcher(size: int, search: str, simulations: int, seconds: float) -> _Searcher:
        """Compiles a search of `simulations`, or of as many as fit into `seconds`."""
        net = load(size)
        made = make_thinker(make_brain(net.env, net), search, simulations, seconds, net.env.init())
        return _Searcher(net.env, made)

    def find(size: int, options: Options) -> _Searcher:
        # If `simulations` is set, the time is only a limit: changing it must not recompile.
        return searcher(size, options.search, options.simulations,
                        0.0 if options.simulations else options.seconds)  # fmt: skip

    def think(task: Task) -> Answer:
        return _search(find(len(task.board), task.options), seed, task)

    return Engine(f"jaxpgs {network}", find, think), first.env.size


def _search(made: _Searcher, seed: int, task: Task) -> Answer:
    env, thinker = made
    state, key = _position(env, seed, task)
    report = task.report

    def tell(progress: Progress) -> None:
        if report is not None:
            report(_answer(env, progress.output))

    output = think(
        thinker, state, key, seconds=task.seconds,
        slice_seconds=None if report is None else _SLICE,
        report=None if report is None else tell,
    )  # fmt: skip
    answer = _answer(env, output)
    # If the network's game has the swap rule, the search has considered the swap itself.
    if task.options.allow_swap and not env.swap and not task.board.any():
        return answer._replace(action=fair_opening(thinker.brain, state))
    return answer


def _position(env: Hex, seed: int, task: Task) -> tuple[HexState, chex.PRNGKey]:
    """Returns the state of a task, and the key of its search."""
    state = env.from_board(task.board, task.player)
    # `from_board` never allows the swap, as it does not know the moves that led to the position.
    if env.swap:
        state = dataclasses.replace(state, swap_legal=jnp.bool_(task.may_swap))
    # The key depends on the position, so that a replayed game gets the same moves.
    return state, jax.random.fold_in(jax.random.key(seed), zlib.crc32(task.board.tobytes()))


def _answer(env: Hex, output: PolicyOutput) -> Answer:
    found, cells = read(output), env.num_cells
    # The swap is not a cell: the line ends before it, and the arrays exclude it.
    expected = tuple(itertools.takewhile(lambda cell: cell < cells, found.line))
    arrays = (found.policy[:cells], found.visits[:cells], found.qvalues[:cells])
    return Answer(found.action, found.value, *arrays, expected)


def player_engine(env: Hex, player: Player, *, seed: int = 0) -> Engine:
    """Makes an engine from a player of `jaxpgs.evaluation`, such as `openspiel_mcts(env, ...)`.

    Args:
      env: the game, of one size.
      player: who plays. It has no memory from move to move, and its value is always 0.
      seed: determines its random numbers, together with the position.

    Returns:
      The engine. It ignores time limits and the options of a search.

    Raises:
      ValueError: if the game is not Hex.

    Example:
      >>> from jaxpgs import gtp
      >>> gtp.player_engine(env, jaxpgs.evaluation.perfect_hex(env)).name
      'perfect'
    """
    _check_hex("player_engine", env)

    def prepare(size: int, options: Options) -> None:
        if size != env.size:
            raise ValueError(f"{player.name} plays on {env.size}x{env.size}, not {size}x{size}")

    def think(task: Task) -> Answer:
        prepare(len(task.board), task.options)
        state, key = _position(env, seed, task)
        states = jax.tree.map(lambda x: np.asarray(x)[None], state)
        action = int(player.act(key, states, player.init(1))[0][0])
        chosen = np.arange(env.num_cells) == action
        return Answer(action, 0.0, chosen.astype(np.float32), chosen.astype(int), 0.0 * chosen)

    return Engine(player.name, prepare, think)


def _check_hex(what: str, env: Any) -> None:
    if not isinstance(env, Hex):
        raise ValueError(f"{what}: an engine only plays Hex, got {env!r}.")
