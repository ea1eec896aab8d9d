"""Games for a model to learn from: mostly random moves, each position labelled by an expert."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxpgs.adapters.environments import LONGEST_GAME, check_players
from jaxpgs.base import Env, Params
from jaxpgs.checks import check_count
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.pretrained.files import write_atomically
from jaxpgs.training.runtime import loggers, sharding
from jaxpgs.training.runtime.checkpoint import describe, lock_run
from jaxpgs.training.runtime.iterations import should_stop, stopping
from jaxpgs.training.runtime.settings import Run, check_counts, flat, in_settings
from jaxpgs.training.two_player import experts, replay, selfplay


@dataclasses.dataclass(frozen=True)
class Games:
    """The games that are labelled.

    Attributes:
      epsilon: the probability that a move is random, 0 to 1.
      games_at_once: G, games played in parallel, at least 1.
      num_steps: moves in each game per jitted call, at least 1.
      max_moves: as in `selfplay.Moves`. By default games are played to their end, and labelling
        raises if none ends within 4,096 moves.

    Example:
      >>> games = jaxpgs.training.labelling.Games(games_at_once=8, num_steps=4)
    """

    epsilon: float = 0.9
    games_at_once: int = 512
    num_steps: int = 32
    max_moves: int | None = None


@in_settings
def label_games(
    env: Env,
    apply_fn: ApplyFn,
    params: Params,
    *,
    num_games: int,
    expert: experts.Expert | None = None,
    games: Games = Games(),
    run: Run = Run(),
) -> selfplay.Experience:
    """Plays mostly random games and labels every position (Brosseit 2023, section 5.4).

    Args:
      env: the environment, for one player or two.
      apply_fn: the network that the expert uses.
      params: its parameters.
      num_games: how many games to finish, at least 1; the thesis uses 256,000.
      expert: labels the positions. `experts.raw_policy()` if None, for a network that needs no
        search. The thesis searches with 1,000 simulations.
      games: how the games are played.
      run: seed, devices, folder and callbacks. An iteration is a jitted call, whose labelled
        positions are written to one file in the folder; all files are kept. A later call with the
        same folder and arguments continues after the last file, with bitwise the same results; a
        larger `num_games` adds files to the existing ones. On SIGINT and SIGTERM labelling ends
        after the current file. Callbacks are also called for files that already exist. They get the
        games to continue with, and the metrics `iteration` and `finished_games`, the number of
        games finished so far.

    Returns:
      Experience with batch axes `[T, G]` of NumPy arrays, with `played`; values are the expert's.
      Observations have the type of `replay.observation_dtype`: int8 if that is exact. Random keys
      in states stay keys.

    Raises:
      ValueError: if a setting is out of range, games do not end, or the folder holds other games or
        is damaged.
      RuntimeError: if another process is labelling in the folder.

    Example:
      >>> from jaxpgs.training import labelling
      >>> games = labelling.Games(games_at_once=8, num_steps=4)
      >>> labelled = labelling.label_games(env, apply_fn, params, num_games=8, games=games)
    """
    arguments = flat(locals(), "games", "run")
    del arguments["num_games"]  # the number of games may change
    _check_arguments(env, num_games, games)
    judge = experts.epsilon_greedy(expert or experts.raw_policy(), games.epsilon)
    mesh = sharding.make_mesh(run.devices, {"games_at_once": games.games_at_once})
    play = _make_play(env, apply_fn, judge, games, mesh)
    play_key, games_key = jax.random.split(jax.random.key(run.seed))
    begun = selfplay.init_games(env, games_key, games.games_at_once)
    call, finished = loggers.together(run.callback), 0
    waited = 0  # moves since a game ended
    parts: list[selfplay.Experience] = []
    with contextlib.ExitStack() as stack:
        files, caught = None, []
        if run.directory is not None:
            # One hash for all weights of the expert, instead of one for each array.
            weights = {"weights_sha256": _hash(arguments.pop("params"))}
            told = describe("labelling", arguments | weights, {"max_moves": None})
            folder = pathlib.Path(run.directory)
            stack.enter_context(lock_run(folder, told))
            files = Parts(folder)
            caught = stack.enter_context(stopping(f"; start it again to go on from {folder}"))
        show = stack.enter_context(loggers.own_bar("games", num_games, run.progress))
        for playing, experience, count in _blocks(play, params, play_key, begun, files):
            parts.append(experience)
            finished += count
            show(None, {"iteration": min(finished, num_games)})
            metrics = {"iteration": len(parts), "finished_games": finished}
            if should_stop(call(playing, metrics), caught) or finished >= num_games:
                break
            # Games that never end would be labelled forever.
            waited = 0 if count else waited + games.num_steps
            if games.max_moves is None and waited >= LONGEST_GAME:
                raise ValueError(
                    f"None of {games.games_at_once} games of {type(env).__name__} has ended within "
                    f"{waited} moves. Give label_games max_moves, after which a game ends."
                )
    return jax.tree.map(_join, *parts)


def _check_arguments(env: Env, num_games: int, games: Games) -> None:
    """Raises `ValueError` for arguments of `label_games` that are out of range."""
    counts = {
        "num_games": num_games, "games_at_once": games.games_at_once, "num_steps": games.num_steps,
    }  # fmt: skip
    check_counts(counts)
    if games.max_moves is not None:
        check_count("label_games", "max_moves", games.max_moves)
    check_players("label_games", env)


def _make_play(
    env: Env,
    apply_fn: ApplyFn,
    judge: experts.Expert,
    games: Games,
    mesh: jax.sharding.Mesh | None,
) -> Callable[..., Any]:
    """Makes the jitted call: `(params, rng_key, games) -> (games, experience, finished)`."""
    # Games are on axis 0 of the state, and on axis 1 of the experience, `[S, G]`.
    own_play = functools.partial(_play, env, apply_fn, judge, games, replay.observation_dtype(env))
    shared_play = sharding.per_device(mesh, own_play, (None, None, 0), (0, 1, 1))

    @jax.jit
    def play(params: Params, rng_key: chex.PRNGKey, games: selfplay.SelfPlayGames) -> Any:
        games, experience, finished = shared_play(params, rng_key, games)
        return games, experience, jnp.sum(finished)

    return play


def _blocks(
    play: Callable[..., Any],
    params: Params,
    rng_key: chex.PRNGKey,
    games: selfplay.SelfPlayGames,
    files: "Parts | None",
) -> Iterator[tuple[selfplay.SelfPlayGames, selfplay.Experience, int]]:
    """Yields what each jitted call returns, without end; existing files are read, not replayed."""
    # Shapes of what a call returns, to check whether a file belongs to this run.
    like = jax.eval_shape(play, params, rng_key, games)
    for number in itertools.count():
        found = None if files is None else files.read(number, like)
        if found is None:
            # The key depends on the file's number, so a file is the same whichever call wrote it.
            found = sharding.fetch(play(params, jax.random.fold_in(rng_key, number), games))
            if files is not None and sharding.is_first_process():
                files.write(number, found)
        # Each file also holds the games in progress, so the last one is enough to continue.
        games, experience, count = found
        yield games, experience, int(count)


def _play(
    env: Env,
    apply_fn: ApplyFn,
    judge: experts.Expert,
    given: Games,
    observation_dtype: Any,
    params: Params,
    rng_key: chex.PRNGKey,
    games: selfplay.SelfPlayGames,
) -> tuple[selfplay.SelfPlayGames, selfplay.Experience, chex.Array]:
    """Continues the games of one device."""
    # All moves are `Decision.action`, mostly random ones; the targets are the expert's own.
    games, experience, report = selfplay.play(
        env, apply_fn, judge, params, rng_key, games, given.num_steps,
        moves=selfplay.Moves(sampled_moves=2**30, max_moves=given.max_moves),
        kept=selfplay.Kept(value_target="search", keep_played=True),
    )  # fmt: skip
    # As one byte each where that is exact: observations take most of the space.
    seen = experience.observation.astype(observation_dtype)
    return games, experience._replace(observation=seen), report.finished


def _hash(params: Params) -> str:
    """Hashes the expert's weights, to distinguish them from others."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.asarray(_numbers(leaf)).tobytes())
    return digest.hexdigest()


def _numbers(leaf: Any) -> Any:
    """Returns an array as it is hashed and stored: random keys become numbers."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _as_key(numbers: np.ndarray, dtype: Any) -> chex.Array:
    """Reverses `_numbers` for keys of this type."""
    # `key_impl` needs a key, of which any will do.
    impl = jax.random.key_impl(jnp.zeros((), dtype))
    return jax.random.wrap_key_data(jnp.asarray(numbers), impl=impl)


def _join(*blocks: Any) -> Any:
    """Concatenates what the calls returned; NumPy has no random keys."""
    return jnp.concatenate(blocks) if _is_key(blocks[0]) else np.concatenate(blocks)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _typed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Restores a type that NumPy's files do not support, such as bfloat16."""
    kept_as_bytes = array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if kept_as_bytes else array


class Parts:
    """What each jitted call returned, in a file of its own that is written atomically.

    Args:
      folder: where the files are.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def write(self, number: int, found: Any) -> None:
        """Writes the part with this number, a pytree of arrays."""
        stream = io.BytesIO()
        np.savez(stream, *map(_numbers, jax.tree.leaves(found)))
        write_atomically(self._path(number), stream.getvalue())

    def read(self, number: int, like: Any) -> Any | None:
        """Returns the part with this number in the structure of `like`, or None if there is none.

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
                f"{path} is damaged: {error}. Remove it and the later parts, and call again to "
                "label their games again."
            ) from error
        stored = [jax.eval_shape(_numbers, x) if _is_key(x) else x for x in shapes]
        if len(leaves) == len(stored):
            leaves = [_typed(x, want.dtype) for x, want in zip(leaves, stored, strict=True)]
        expected = [(x.shape, x.dtype) for x in stored]
        if [(x.shape, x.dtype) for x in leaves] != expected:
            raise ValueError(f"{path} holds games of another kind. Name another directory.")
        pairs = zip(leaves, shapes, strict=True)
        leaves = [_as_key(x, want.dtype) if _is_key(want) else x for x, want in pairs]
        return jax.tree.unflatten(structure, leaves)

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"part-{number:04d}.npz"
