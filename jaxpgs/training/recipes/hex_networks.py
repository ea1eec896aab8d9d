"""The recipes of the Hex networks that come with the library, and the command that trains them.

    python -m jaxpgs.training.recipes hex-5x5 --out runs

trains one on all devices that its games can share, with a progress bar. It resumes where it was
stopped, and writes the weights and their card. `--minutes 10` stops in time, for machines lent for
a limited time. `--expert` chooses another search, `--parent` starts from another network, and
`--snapshots` also keeps intermediate weights.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import math
import pathlib
import platform
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx

from jaxpgs import networks
from jaxpgs.checks import number, positive, refusals_in_one_line, seed
from jaxpgs.envs import Hex
from jaxpgs.pretrained import available_pretrained, load_pretrained, save_pretrained
from jaxpgs.pretrained.files import write_atomically
from jaxpgs.training.recipes.starting_positions import make_balanced
from jaxpgs.training.runtime import loggers
from jaxpgs.training.runtime.settings import Run, by_name
from jaxpgs.training.two_player import expert_iteration, experts


class HexRecipe(NamedTuple):
    """One network: its environment, its size and its training.

    Attributes:
      env: the environment.
      network: the class in `jaxpgs.networks` and its keyword arguments.
      expert: the name of the search that plays and labels the games.
      num_simulations: simulations per move.
      num_iterations: iterations in total.
      games: settings that differ from `expert_iteration.paper_settings`: fields of its `Games` and
        `Fit`, and `evaluate_every`.
      parent: the network to start from, of the same board or a smaller one.
      dtype: the torso's type of computation in training. The saved network computes in float32, as
        CPUs are slow in bfloat16.
      step_size: Adam's first step size.
      balanced: whether games begin with openings that the parent thinks balanced
        (`make_balanced`); it needs a parent.
    """

    env: Hex
    network: tuple[str, Mapping[str, Any]]
    expert: str
    num_simulations: int
    num_iterations: int
    games: Mapping[str, Any] = MappingProxyType({})
    parent: str | None = None
    dtype: str = "float32"
    step_size: float = 1e-3
    balanced: bool = False


_SMALL = ("FullyConnectedResNet", {"width": 256, "num_blocks": 4})
_CONV = ("AlphaZeroResNet", {"num_filters": 32, "num_blocks": 4})
_LARGE = ("AlphaZeroResNet", {"num_filters": 64, "num_blocks": 8})
_OPENINGS = {"max_random_moves": 8, "resign_fraction": 0.0}
_RESIGNING = _OPENINGS | {"resign_fraction": 0.8}
# Most games begin after one or two random moves, so that all first moves are learned equally.
_FIRST_MOVES = _RESIGNING | {"buffer_size": 262_144, "max_random_moves": 2}
# Most moves are sampled, and the result of a game depends on them; these values do not.
_BEST_PLAY = _FIRST_MOVES | {"value_target": "best"}
_MANY = {
    "num_games": 4096, "num_steps": 8, "buffer_size": 1_048_576, "batch_size": 2048,
    "updates_per_iteration": 64, "max_random_moves": 8, "resign_fraction": 0.5,
    "evaluate_every": 0,
}  # fmt: skip
_FEW = {"num_games": 128, "batch_size": 256} | _RESIGNING
_FEW_BEST = _FEW | _BEST_PLAY | {"buffer_size": 65_536}
# The game itself draws the first moves. An evaluation would begin with a drawn opening, too.
_DRAWN = _FEW_BEST | {"max_random_moves": 0, "evaluate_every": 0}


def _large(env: Hex, num_iterations: int, parent: str | None = None) -> HexRecipe:
    """A network to be trained on an accelerator."""
    return HexRecipe(env, _LARGE, "gumbel_mcts", 32, num_iterations, _MANY, parent, "bfloat16")


# The early and middle networks are for comparing searches; the stronger networks leave searches
# little to improve. From 9x9 on networks are convolutional and grow from smaller boards. They keep
# more of what was learned there than fully connected ones (a table of commit 0bc35d3, in its
# `benchmarks/RESULTS.md`).
RECIPES = {
    "hex-5x5-early": HexRecipe(Hex(5), _SMALL, "gumbel", 16, 12, {"max_random_moves": 1}),
    "hex-5x5": HexRecipe(Hex(5), _SMALL, "gumbel", 16, 700, _OPENINGS | {"max_random_moves": 20}),
    "hex-6x6": HexRecipe(Hex(6), _SMALL, "gumbel_mcts", 32, 200, _RESIGNING, "hex-7x7"),
    "hex-7x7-early": HexRecipe(Hex(7), _SMALL, "gumbel", 16, 1000, _OPENINGS),
    "hex-7x7-middle": HexRecipe(Hex(7), _SMALL, "gumbel", 32, 600, _RESIGNING, "hex-7x7-early"),
    "hex-7x7": HexRecipe(
        Hex(7), _SMALL, "gumbel", 32, 1000, _RESIGNING | {"buffer_size": 262_144}, "hex-7x7-middle"
    ),
    "hex-8x8-begun": HexRecipe(
        Hex(8), _SMALL, "gumbel_mcts", 32, 1500, _RESIGNING | {"buffer_size": 262_144}, "hex-7x7"
    ),
    "hex-8x8-middle": HexRecipe(
        Hex(8), _SMALL, "gumbel_mcts", 32, 600, _FIRST_MOVES, "hex-8x8-begun"
    ),
    "hex-8x8-late": HexRecipe(
        Hex(8), _SMALL, "gumbel_mcts", 32, 900, _FIRST_MOVES, "hex-8x8-middle"
    ),
    "hex-8x8-best": HexRecipe(Hex(8), _SMALL, "gumbel_mcts", 32, 640, _BEST_PLAY, "hex-8x8-late"),
    "hex-8x8": HexRecipe(Hex(8), _SMALL, "gumbel_mcts", 64, 320, _BEST_PLAY, "hex-8x8-best"),
    "hex-9x9": HexRecipe(Hex(9), _CONV, "gumbel", 32, 360, _FEW, "conv-7x7"),
    # For a CPU, so it takes few steps. They are smaller than elsewhere; no other size was tried.
    "hex-9x9-large-late": HexRecipe(
        Hex(9), _LARGE, "gumbel_mcts", 32, 150, _FEW_BEST, "hex-9x9-large-begun", step_size=3e-4
    ),
    "hex-9x9-large": HexRecipe(
        Hex(9),
        _LARGE,
        "gumbel_mcts",
        64,
        80,
        _DRAWN,
        "hex-9x9-large-late",
        step_size=3e-4,
        balanced=True,
    ),
    # For an accelerator, each starts from the one before.
    "hex-9x9-large-begun": _large(Hex(9), 100, "conv-9x9-large"),
    "hex-11x11-begun": _large(Hex(11), 530, "hex-9x9-large-begun"),
    "hex-11x11": _large(Hex(11), 490, "hex-11x11-begun"),
    "hex-13x13": _large(Hex(13), 150, "hex-11x11"),
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
    parser.add_argument("--expert", choices=experts.NAMES, help="in place of the recipe's")
    parser.add_argument("--simulations", type=positive, help="in place of the recipe's")
    parser.add_argument("--iterations", type=positive, help="in place of the recipe's")
    parser.add_argument("--games", type=positive, help="games at once, in place of the recipe's")
    parser.add_argument("--parent", help="network to go on from, in place of the recipe's")
    parser.add_argument(
        "--snapshots", type=positive, help="how many iterations apart weights are kept"
    )
    parser.add_argument("--minutes", type=number(0), help="stop after this time, to go on later")
    parser.add_argument("--seed", type=seed, default=0)
    args = parser.parse_args(argv)
    recipe = _changed(RECIPES[args.name], args)
    name = args.name if args.expert is None else f"{args.name}-{args.expert}"
    folder = args.out / name
    module = make_network(recipe, args.seed)
    # float32 is the default; some classes have no `dtype` argument.
    others = {} if recipe.dtype == "float32" else {"dtype": recipe.dtype}
    clock = Clock(folder / "seconds.txt")
    log = loggers.log_to(folder / "metrics.jsonl")
    fields = _card_fields(recipe, parser.prog, args)

    # The float32 module is saved; parameters trained with bfloat16 computation fit it as well.
    def save(place: pathlib.Path, name: str, state: expert_iteration.ExpertIterationState) -> None:
        save_pretrained(
            place,
            name,
            env=recipe.env,
            module=module,
            params=jax.device_get(state.params),
            wall_time_s=round(clock.note()),
            **(fields | {"iterations_done": int(state.iteration)}),
        )

    init_params, env = grown(recipe.parent, module, args.out), recipe.env
    if recipe.balanced:
        env = make_balanced(env, networks.functional(module)[1], init_params)

    with loggers.progress_bar(name, recipe.num_iterations) as show:

        def callback(state: expert_iteration.ExpertIterationState, metrics: dict[str, Any]) -> bool:
            show(state, metrics)
            log(state, metrics | {"seconds": round(clock.seconds(), 1)})
            iteration = int(metrics["iteration"])
            # As often as checkpoints, so that what a killed run repeats is not counted twice.
            if iteration % 50 == 0:
                clock.note()
            if args.snapshots and iteration % args.snapshots == 0:
                save(folder / "snapshots", f"{name}-{iteration:04d}", state)
            # True ends the run and saves its state, so the same command resumes it later.
            return args.minutes is not None and clock.seconds(here=True) > 60 * args.minutes

        try:
            state = by_name(expert_iteration.train)(
                env,
                make_network(recipe, args.seed, **others),
                expert=experts.make_expert(recipe.expert, recipe.num_simulations),
                num_iterations=recipe.num_iterations,
                init_params=init_params,
                run=Run(args.seed, _devices(recipe), folder / "checkpoints", callback=callback),
                **expert_iteration.paper_settings()
                | {"optimizer": _optimizer(recipe)}
                | dict(recipe.games),
            )
        except SystemExit:  # a signal ended the run, and its state is saved
            clock.note()
            raise
    save(args.out, name, state)
    print(f"Wrote {args.out / name}.safetensors and its card.")


def make_network(recipe: HexRecipe, seed: int, **sizes: Any) -> nnx.Module:
    """Makes a recipe's network with random weights.

    Args:
      recipe: the recipe.
      seed: the seed of the weights.
      **sizes: more arguments of the network's class.
    """
    kind, given = recipe.network
    about = (recipe.env.observation_shape, recipe.env.num_actions)
    return getattr(networks, kind)(*about, **given, **sizes, rngs=nnx.Rngs(seed))


def _changed(recipe: HexRecipe, args: argparse.Namespace) -> HexRecipe:
    games = dict(recipe.games) | ({"num_games": args.games} if args.games else {})
    return recipe._replace(
        expert=args.expert or recipe.expert,
        num_simulations=args.simulations or recipe.num_simulations,
        num_iterations=args.iterations or recipe.num_iterations,
        parent=args.parent or recipe.parent,
        games=games,
    )


def _optimizer(recipe: HexRecipe) -> optax.GradientTransformation:
    """Adam with a cosine schedule: the paper's SGD is tuned for days of training."""
    updates = recipe.games.get("updates_per_iteration", 32)
    schedule = optax.cosine_decay_schedule(
        recipe.step_size, recipe.num_iterations * updates, alpha=0.01
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4))


def grown(name: str | None, module: nnx.Module, out: pathlib.Path) -> Any:
    """Returns a parent's weights, resized for another board.

    Args:
      name: the parent, which is looked for in `out` and then among the library's networks.
      module: the network that starts from it.
      out: a folder of saved networks.

    Returns:
      The weights, or None if there is no parent.

    Raises:
      ValueError: if neither the folder nor the library has the parent.
    """
    if name is None:
        return None
    # A parent that was trained here takes precedence, so that a chain of recipes can be rerun.
    own = (out / f"{name}.json").exists()
    if not own and name not in available_pretrained():
        raise ValueError(
            f"the training starts from {name!r}, which is neither in {out} nor in the library, "
            f"which has {', '.join(available_pretrained())}. If {name!r} is a recipe, train it "
            f"first: python -m jaxpgs.training.recipes {name} --out {out}"
        )
    parent = load_pretrained(name, directory=out if own else None)
    return networks.resize(parent.params, parent.module, module)


def _devices(recipe: HexRecipe) -> list[jax.Device] | None:
    """Returns as many devices as divide the games and a batch, or None for one.

    With one device in a list, sums would be rounded differently than in runs without devices.
    """
    games = recipe.games.get("num_games", expert_iteration.Games().num_games)
    shared = math.gcd(games, recipe.games.get("batch_size", expert_iteration.Fit().batch_size))
    count = max(n for n in range(1, len(jax.devices()) + 1) if shared % n == 0)
    return jax.devices()[:count] if count > 1 else None


def _card_fields(recipe: HexRecipe, prog: str, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "command": command(prog, args),
        "seed": args.seed,
        "training": {
            "expert": recipe.expert,
            "simulations": recipe.num_simulations,
            "iterations": recipe.num_iterations,
            "parent": recipe.parent,
            **({} if recipe.dtype == "float32" else {"dtype": recipe.dtype}),
            **({} if recipe.step_size == 1e-3 else {"step_size": recipe.step_size}),
            **({"balanced": True} if recipe.balanced else {}),
            **recipe.games,
        },
        "strength": {},
        **origin(),
    }


def command(prog: str, args: argparse.Namespace) -> str:
    """Returns the command that trains a network again, without its folder and time limit."""
    others = ("name", "out", "minutes")
    given = {k: x for k, x in vars(args).items() if x is not None and k not in others}
    return f"{prog} {args.name}" + "".join(f" --{k} {x}" for k, x in given.items())


def origin() -> dict[str, Any]:
    """Returns the fields of a card that record the date, versions and hardware."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {n: importlib.metadata.version(n) for n in ("jax", "jaxlib", "flax", "mctx")},
        "hardware": f"{jax.devices()[0].device_kind}, {platform.machine()}",
    }


class Clock:
    """Seconds of training, over all calls of the same run.

    Args:
      path: the file that keeps them.
      now: returns the time; `time.process_time` for CPU seconds.
    """

    def __init__(self, path: pathlib.Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = path, now
        self._before = _read_seconds(path)
        self._start = now()

    def seconds(self, *, here: bool = False) -> float:
        """Returns the seconds of all calls, or of this one if `here`."""
        passed = self._now() - self._start
        return passed if here else self._before + passed

    def note(self) -> float:
        """Stores the seconds of all calls for the next one, and returns them."""
        seconds = self.seconds()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, f"{seconds:.1f}\n".encode())
        return seconds


def _read_seconds(path: pathlib.Path) -> float:
    """Reads what `Clock` wrote; a damaged file counts as 0 seconds."""
    if path.exists():
        with contextlib.suppress(ValueError):
            seconds = float(path.read_bytes())
            if 0 <= seconds < math.inf:
                return seconds
        print(f"{path} is damaged; the seconds of earlier calls are not counted.", file=sys.stderr)
    return 0.0
