"""Distillation: a network learns the outputs of another one on the positions of its games.

    python -m jaxpgs.training.recipes conv-7x7 --out runs

trains a network that comes with the library, with a progress bar; it resumes where it was stopped.
"""

import argparse
import functools
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx
import optax
from flax import nnx

from jaxpgs import networks, trees
from jaxpgs.adapters.environments import chance_key, make_root_fn, step_with_keys
from jaxpgs.arrays import values_like
from jaxpgs.base import Env, Params
from jaxpgs.checks import check_number, positive, refusals_in_one_line, seed
from jaxpgs.networks.functional import ApplyFn
from jaxpgs.pretrained import load_pretrained, save_pretrained
from jaxpgs.training.recipes.hex_networks import Clock, origin
from jaxpgs.training.runtime import iterations, loggers, sharding
from jaxpgs.training.runtime.settings import Run, by_name, check_counts, flat, in_settings


class DistillationState(NamedTuple):
    """The state of a distillation.

    Attributes:
      params: the student's parameters.
      opt_state: the optimizer's state.
      games: `[B]` the current positions.
      iteration: `[]` int32, steps done.
      rng_key: the key for the next iterations.
    """

    params: Params
    opt_state: Any
    games: Any
    iteration: chex.Array
    rng_key: chex.PRNGKey


@in_settings
def distill(
    env: Env,
    network: nnx.Module,
    teacher: tuple[Params, ApplyFn],
    *,
    num_iterations: int,
    batch_size: int = 256,
    random_fraction: float = 0.1,
    optimizer: optax.GradientTransformation | None = None,
    run: Run = Run(),
) -> DistillationState:
    """Teaches a network the policy and the value of another one.

    The teacher plays B games against itself. It draws its moves from its policy, and some uniformly
    at random. Every iteration plays one move in each game and takes one optimizer step on the
    cross-entropy with the teacher's policies and the squared error to its values. Games that end
    are restarted, so positions from all stages mix.

    Args:
      env: the environment of both networks; its `symmetries`, if it has any, augment the positions.
      network: the student; only its structure and initial weights are used.
      teacher: parameters and `apply_fn` of the teacher.
      num_iterations: iterations in total, including those of an earlier call in `run.directory`.
      batch_size: B, at least 1.
      random_fraction: share of the moves that are random, 0 to 1.
      optimizer: any optax optimizer; Adam with a cosine schedule from 2e-3 if None.
      run: seed, devices, folder and callbacks. Checkpoints are 500 iterations apart by default.

    Returns:
      The last state.

    Raises:
      ValueError: if an argument is out of range, or the directory holds another run or is damaged.
      RuntimeError: if another process is training in the directory.
      FloatingPointError: if a loss is no longer finite.

    Example:
      >>> from jaxpgs.training import distillation
      >>> state = distillation.distill(
      ...     env, module, (params, apply_fn), num_iterations=1, batch_size=8
      ... )
      >>> int(state.iteration)
      1
    """
    arguments = flat(locals(), "run")
    check_counts({"num_iterations": num_iterations, "batch_size": batch_size})
    check_number("distill", "random_fraction", random_fraction, 0, 1)
    mesh = sharding.make_mesh(run.devices, {"batch_size": batch_size})
    params, _ = networks.functional(network)
    if optimizer is None:
        optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, num_iterations, alpha=0.01))
    arguments |= {"optimizer": optimizer}  # its default depends on the number of iterations
    update = iterations.make_update(
        _make_losses(network), optimizer, networks.trainable_mask(network)
    )
    teacher_params, teach = teacher
    root_fn = functools.partial(make_root_fn(env, teach), teacher_params)
    setting = _Setting(env, root_fn, update, optimizer, batch_size, random_fraction, mesh)

    # One call per iteration: in an XLA loop, the CPU backend differentiates convolutions slowly.
    return iterations.run_jitted(
        functools.partial(_init, setting, jax.random.key(run.seed)),
        functools.partial(_iterate, setting), params, num_iterations, mesh=mesh, share=_share,
        trainer="distillation", arguments=arguments, settings=run, checkpoint_every=500,
    )  # fmt: skip


class _Setting(NamedTuple):
    """The constants of a distillation, made from the arguments of `distill`."""

    env: Env
    root_fn: Callable[..., mctx.RootFnOutput]
    update: Callable[..., Any]
    optimizer: optax.GradientTransformation
    batch_size: int
    random_fraction: float
    mesh: jax.sharding.Mesh | None


def _init(setting: _Setting, rng_key: chex.PRNGKey, params: Params) -> DistillationState:
    games_key, rng_key = jax.random.split(rng_key)
    games = jax.vmap(setting.env.init)(jax.random.split(games_key, setting.batch_size))
    opt_state = iterations.init_optimizer(setting.optimizer, params)
    state = DistillationState(params, opt_state, games, jnp.int32(0), rng_key)
    return jax.tree.map(jnp.copy, state)


def _play(env: Env, rng_key: chex.PRNGKey, games: Any, action: chex.Array) -> Any:
    """Plays a move in each game of a device; games that end are restarted."""
    after = step_with_keys(env)(games, action, sharding.own_keys(chance_key(rng_key), len(action)))
    fresh = jax.vmap(env.init)(sharding.own_keys(rng_key, len(action)))
    return trees.where(after.terminated, fresh, after)


def _iterate(
    setting: _Setting, state: DistillationState
) -> tuple[DistillationState, dict[str, chex.Array]]:
    """Learns from the positions, and plays a move in each game."""
    keys = jax.random.split(state.rng_key, 6)
    # The teacher is evaluated once: its output gives both the lesson and the move.
    root = setting.root_fn(keys[0], state.games)
    lesson = _lesson(setting.env, keys[0], state.games, root)
    (params, opt_state), metrics = setting.update((state.params, state.opt_state), lesson)
    drawn = jax.random.categorical(keys[1], root.prior_logits)
    # log 0 is -inf: illegal actions are never drawn.
    anything = jax.random.categorical(keys[2], jnp.log(state.games.legal_action_mask))
    is_random = jax.random.bernoulli(keys[3], setting.random_fraction, drawn.shape)
    action = jnp.where(is_random, anything, drawn)
    play = functools.partial(_play, setting.env)
    games = sharding.per_device(setting.mesh, play, (None, 0, 0), 0)(keys[4], state.games, action)
    return DistillationState(params, opt_state, games, state.iteration + 1, keys[5]), metrics


def _share(state: DistillationState, mesh: jax.sharding.Mesh) -> DistillationState:
    """Shards the games over the devices; everything else is replicated."""
    return sharding.whole(mesh, state)._replace(games=sharding.rows(mesh, state.games))


class _Lesson(NamedTuple):
    """The teacher's outputs for B positions, in the network's frame.

    Attributes:
      observation: `[B, *observation_shape]`.
      policy: `[B, A]` its policy, 0 for illegal actions.
      value: `[B]` its value.
    """

    observation: chex.Array
    policy: chex.Array
    value: chex.Array


def _lesson(env: Env, rng_key: chex.PRNGKey, games: Any, root: mctx.RootFnOutput) -> _Lesson:
    """Converts the teacher's outputs, which are over actions, to the student's targets."""
    observation, policy = jax.vmap(env.observe)(games), jax.nn.softmax(root.prior_logits)
    # The student learns in the frame in which networks see the board.
    if hasattr(env, "network_policy"):
        policy = jax.vmap(env.network_policy)(games, policy)
    if hasattr(env, "symmetries"):
        forms = env.symmetries(observation, policy)
        turn = jax.random.randint(rng_key, root.value.shape, 0, len(forms))
        rows = jnp.arange(len(turn))
        observation, policy = (jnp.stack(parts)[turn, rows] for parts in zip(*forms, strict=True))
    return _Lesson(observation, policy, root.value)


def _make_losses(network: nnx.Module) -> Callable[..., Any]:
    """Makes `(params, lesson) -> (loss, (parts, moved))`, with updated batch statistics."""
    train_fn = networks.functional_train(network)

    def losses_fn(params: Params, lesson: _Lesson) -> tuple[chex.Array, tuple]:
        (logits, value), moved = train_fn(params, lesson.observation)
        logits = jnp.where(lesson.policy > 0, logits, jnp.finfo(logits.dtype).min)  # legal actions
        policy_loss = jnp.mean(optax.kl_divergence(jax.nn.log_softmax(logits), lesson.policy))
        value_loss = jnp.mean(jnp.square(values_like(value, lesson.value) - lesson.value))
        parts = {"policy_loss": policy_loss, "value_loss": value_loss}
        return policy_loss + value_loss, (parts, moved)

    return losses_fn


class Distillation(NamedTuple):
    """A student network and its teacher.

    Attributes:
      teacher: a network of the library.
      network: the student's class in `jaxpgs.networks` and its keyword arguments.
      num_iterations: iterations in total.
      settings: arguments of `distill` that differ from its defaults.
      dtype: the torso's type of computation in training; the saved network computes in float32.
    """

    teacher: str
    network: tuple[str, Mapping[str, Any]]
    num_iterations: int
    settings: Mapping[str, Any] = MappingProxyType({})
    dtype: str = "float32"


_MANY = {"batch_size": 2048, "checkpoint_every": 100_000}


def _large(teacher: str, num_filters: int, num_blocks: int) -> Distillation:
    """A student to be trained on an accelerator."""
    sizes = {"num_filters": num_filters, "num_blocks": num_blocks}
    return Distillation(teacher, ("AlphaZeroResNet", sizes), 5000, _MANY, "bfloat16")


RECIPES = {
    "conv-7x7": Distillation(
        "hex-7x7", ("AlphaZeroResNet", {"num_filters": 32, "num_blocks": 4}), 5000
    ),
    "conv-7x7-large": _large("hex-7x7-early", 128, 6),  # pgx's network for AlphaZero
    "conv-9x9-large": _large("hex-9x9", 64, 8),  # the first network of a chain of growing boards
}


@refusals_in_one_line("python -m jaxpgs.training.recipes")
def main(argv: list[str] | None = None) -> None:
    """Trains one network; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpgs.training.recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs"))
    parser.add_argument("--iterations", type=positive, help="in place of the recipe's")
    parser.add_argument("--seed", type=seed, default=0)
    args = parser.parse_args(argv)
    recipe = RECIPES[args.name]
    num_iterations = args.iterations or recipe.num_iterations
    teacher = load_pretrained(recipe.teacher)
    kind, sizes = recipe.network
    about = (teacher.env.observation_shape, teacher.env.num_actions)
    # float32 is the default; some classes have no `dtype` argument.
    others = {} if recipe.dtype == "float32" else {"dtype": recipe.dtype}
    module, trained = (
        getattr(networks, kind)(*about, **sizes, **more, rngs=nnx.Rngs(args.seed))
        for more in ({}, others)
    )
    folder = args.out / args.name
    clock = Clock(folder / "seconds.txt")
    log = loggers.log_to(folder / "metrics.jsonl")
    with loggers.progress_bar(args.name, num_iterations) as show:

        def callback(state: DistillationState, metrics: dict[str, Any]) -> None:
            show(state, metrics)
            if metrics["iteration"] % 50 == 0:
                log(state, metrics | {"seconds": round(clock.note(), 1)})

        state = by_name(distill)(
            teacher.env,
            trained,
            (teacher.params, teacher.apply_fn),
            num_iterations=num_iterations,
            run=Run(args.seed, directory=folder / "checkpoints", callback=callback),
            **recipe.settings,
        )
    changed = "" if num_iterations == recipe.num_iterations else f" --iterations {num_iterations}"
    save_pretrained(
        args.out,
        args.name,
        env=teacher.env,
        module=module,
        params=jax.device_get(state.params),
        wall_time_s=round(clock.note()),
        command=f"{parser.prog} {args.name}{changed} --seed {args.seed}",
        seed=args.seed,
        training={
            "teacher": recipe.teacher,
            "iterations": num_iterations,
            **({} if recipe.dtype == "float32" else {"dtype": recipe.dtype}),
            **recipe.settings,
        },
        strength={},
        **origin(),
    )
    print(f"Wrote {args.out / args.name}.safetensors and its card.")
