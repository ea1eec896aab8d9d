"""Games for a model to learn from: mostly random, each position judged by somebody strong."""

import contextlib
import functools
import hashlib
import io
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.adapters.environments import LONGEST_GAME, check_players
from jaxpgs.base import Env, Params
from jaxpgs.checks import check_count, check_number
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.pretrained.files import write_atomically
from jaxpgs.training.runtime import loggers, sharding
from jaxpgs.training.runtime.checkpoint import describe, lock_run
from jaxpgs.training.runtime.iterations import should_stop, stopping
from jaxpgs.training.two_player import experts, replay, selfplay


def label_games(
    env: Env,
    apply_fn: ApplyFn,
    params: Params,
    *,
    num_games: int,
    expert: experts.Expert | None = None,
    epsilon: float = 0.9,
    games_at_once: int = 512,
    num_steps: int = 32,
    max_moves: int | None = None,
    seed: int = 0,
    devices: Sequence[jax.Device] | None = None,
    directory: str | os.PathLike[str] | None = None,
    callback: Callable[[int], Any] | Sequence[Callable[[int], Any]] | None = None,
    progress: bool | None = None,
) -> selfplay.Experience:
    """Plays games at random, mostly, and has every position judged (Brosseit 2023, section 5.4).

    Args:
      env: the environment, of one player or of two.
      apply_fn: the network that the expert uses.
      params: its parameters.
      num_games: how many games to finish, at least 1; the thesis has 256,000.
      expert: who judges; `experts.raw_policy()` if None, for a network that needs no search. The
        thesis searches with 1,000 simulations.
      epsilon: how often a move is random, 0 to 1.
      games_at_once: G, games played side by side.
      num_steps: moves of each game per jitted call.
      max_moves: as in `selfplay.play`. By default games are played to their end, and it raises if
        none ends within 4,096 moves.
      seed: seed of the games.
      devices: devices to share the games among, `jax.devices()` for all of all processes;
        `games_at_once` must be a multiple of their number. None is the default device.
      directory: where to keep what was labelled, one file for each jitted call. Called again with
        the same directory and arguments, labelling goes on behind the last file, bit by bit; with
        more games, it adds to those that are there. On SIGINT and SIGTERM it ends after the file.
      callback: called with the number of finished games after every jitted call and for every file
        found, or several such functions. A true answer of any ends the labelling.
      progress: whether to show a bar on standard error; None shows one in a terminal.

    Returns:
      Experience with batch axes `[T, G]` of NumPy arrays, with `played`; values are the expert's.

    Raises:
      ValueError: if an argument is out of range, games do not end, or `directory` holds other games
        or is damaged.
      RuntimeError: if another process labels in `directory`.

    Example:
      >>> from jaxpgs.training import labelling
      >>> games = {"num_games": 8, "games_at_once": 8, "num_steps": 4}
      >>> labelled = labelling.label_games(env, apply_fn, params, **games)
    """
    arguments = dict(locals())
    del arguments["num_games"]  # how many there are may change
    for name, count in {
        "num_games": num_games, "games_at_once": games_at_once, "num_steps": num_steps,
    }.items():  # fmt: skip
        check_number("label_games", name, count, 1)
    if max_moves is not None:
        check_count("label_games", "max_moves", max_moves)
    check_players("label_games", env)
    judge = experts.epsilon_greedy(expert or experts.raw_policy(), epsilon)
    play_key, games_key = jax.random.split(jax.random.key(seed))

    # Games are on axis 0 of the state, and on axis 1 of what was seen, `[S, G]`.
    mesh = sharding.make_mesh(devices, {"games_at_once": games_at_once})
    own_play = functools.partial(
        _play, env, apply_fn, judge, num_steps, max_moves, replay.observation_dtype(env)
    )
    shared_play = sharding.per_device(mesh, own_play, (None, None, 0), (0, 1, 1))

    @jax.jit
    def play(params: Params, rng_key: chex.PRNGKey, games: selfplay.SelfPlayGames) -> Any:
        games, experience, finished = shared_play(params, rng_key, games)
        return games, experience, jnp.sum(finished)

    games, finished = selfplay.init_games(env, games_key, games_at_once), 0
    waited = 0  # moves since a game ended
    # Shapes of what a call returns, to tell whether a file is of this run.
    like = jax.eval_shape(play, params, play_key, games)
    parts: list[selfplay.Experience] = []
    call = loggers.together(callback)
    with contextlib.ExitStack() as stack:
        files: Parts | None = None
        caught: list[int] = []
        if directory is not None:
            folder = pathlib.Path(directory)
            # One hash for all weights of the judge, in place of one for each array.
            weights = {"weights_sha256": _hash(arguments.pop("params"))}
            run = describe("labelling", arguments | weights, {"max_moves": None})
            stack.enter_context(lock_run(folder, run))
            files = Parts(folder)
            caught = stack.enter_context(stopping(f"; start it again to go on from {directory}"))
        show = stack.enter_context(loggers.own_bar("games", num_games, progress))
        # Each file also holds the games to go on from, so the last one is enough to continue.
        while finished < num_games:
            found = None if files is None else files.read(len(parts), like)
            if found is None:
                # The key comes of the file's number: a file is the same whichever call wrote it.
                found = play(params, jax.random.fold_in(play_key, len(parts)), games)
                found = sharding.fetch(found)
                if files is not None and sharding.is_first_process():
                    files.write(len(parts), found)
            games, experience, count = found
            parts.append(experience)
            finished += int(count)
            show(None, {"iteration": min(finished, num_games)})
            if should_stop(call(finished), caught):
                break
            # Games that never end would be labelled for ever.
            waited = 0 if count else waited + num_steps
            if max_moves is None and waited >= LONGEST_GAME:
                raise ValueError(
                    f"None of {games_at_once} games of {type(env).__name__} has ended within "
                    f"{waited} moves. Give label_games max_moves, after which a game ends."
                )
    return jax.tree.map(lambda *blocks: np.concatenate(blocks), *parts)


def _play(
    env: Env,
    apply_fn: ApplyFn,
    judge: experts.Expert,
    num_steps: int,
    max_moves: int | None,
    observation_dtype: Any,
    params: Params,
    rng_key: chex.PRNGKey,
    games: selfplay.SelfPlayGames,
) -> tuple[selfplay.SelfPlayGames, selfplay.Experience, chex.Array]:
    """Plays on in the games that a device has."""
    # All moves are `Decision.action`, mostly random ones, and the targets are the judge's own.
    games, experience, report = selfplay.play(
        env, apply_fn, judge, params, rng_key, games, num_steps,
        sampled_moves=2**30, keep_played=True, value_target="search", max_moves=max_moves,
    )  # fmt: skip
    # In a byte where that holds them: observations are most of what is kept.
    seen = experience.observation.astype(observation_dtype)
    return games, experience._replace(observation=seen), report.finished


def _hash(params: Params) -> str:
    """Tells the judge's weights apart from others."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


class Parts:
    """What each jitted call returned, in a file of its own that is whole or not there.

    Args:
      folder: where the files are.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def write(self, number: int, found: Any) -> None:
        """Writes the part of this number, a pytree of arrays."""
        stream = io.BytesIO()
        np.savez(stream, *jax.tree.leaves(found))
        write_atomically(self._path(number), stream.getvalue())

    def read(self, number: int, like: Any) -> Any | None:
        """Returns the part of this number in the structure of `like`, or None if there is none.

        Raises:
          ValueError: if its file is damaged, or holds other arrays.
        """
        path = self._path(number)
        if not path.exists():
            return None
        shapes, structure = jax.tree.flatten(like)
        try:
            with np.load(path, allow_pickle=False) as file:
                leaves = [file[f"arr_{i}"] for i in range(len(file.files))]
        except Exception as error:
            raise ValueError(
                f"{path} is damaged: {error}. Remove it and those after it, and call again to "
                "label their games anew."
            ) from error
        expected = [(x.shape, x.dtype) for x in shapes]
        if [(x.shape, x.dtype) for x in leaves] != expected:
            raise ValueError(f"{path} holds games of another kind. Name another directory.")
        return jax.tree.unflatten(structure, leaves)

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"part-{number:04d}.npz"
