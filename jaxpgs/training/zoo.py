"""The recipes of the networks that come with the library.

`python -m jaxpgs.training.zoo hex-5x5 --out DIR` trains one from nothing, with a progress bar; it
goes on where it was stopped, and writes the weights and their card.
"""

import argparse
import datetime
import importlib.metadata
import pathlib
import platform
import time
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxpgs.envs import Hex
from jaxpgs.networks import FullyConnectedResNet
from jaxpgs.pretrained import save_pretrained
from jaxpgs.training import expert_iteration, selfplay


class Recipe(NamedTuple):
    """One network: its environment, its size and its training."""

    env: Hex
    width: int
    num_blocks: int
    num_simulations: int
    num_iterations: int
    max_random_moves: int = 1


# The early network is for comparing searches: the other plays 5x5 perfectly without any.
RECIPES = {
    "hex-5x5-early": Recipe(Hex(5), 256, 4, num_simulations=16, num_iterations=12),
    "hex-5x5": Recipe(Hex(5), 256, 4, num_simulations=16, num_iterations=700, max_random_moves=20),
    "hex-7x7": Recipe(Hex(7), 256, 4, num_simulations=16, num_iterations=1000),
}


def main(argv: list[str] | None = None) -> None:
    """Trains one network of the zoo; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m jaxpgs.training.zoo", description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs"))
    parser.add_argument("--iterations", type=int, help="in place of the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    recipe = RECIPES[args.name]
    iterations = args.iterations or recipe.num_iterations
    module = FullyConnectedResNet(
        recipe.env.observation_shape,
        recipe.env.num_actions,
        width=recipe.width,
        num_blocks=recipe.num_blocks,
        rngs=nnx.Rngs(args.seed),
    )
    clock = _Clock(args.out / args.name / "seconds.txt")
    with _progress(args.name, iterations) as show:

        def callback(state: expert_iteration.TrainState, metrics: dict[str, Any]) -> None:
            show(metrics)
            if metrics["iteration"] % 50 == 0:
                clock.note()

        state = expert_iteration.train(
            recipe.env,
            module,
            expert=selfplay.gumbel(recipe.num_simulations),
            num_iterations=iterations,
            max_random_moves=recipe.max_random_moves,
            seed=args.seed,
            directory=args.out / args.name / "checkpoints",
            callback=callback,
        )
    command = f"python -m jaxpgs.training.zoo {args.name} --seed {args.seed}"
    if args.iterations:
        command += f" --iterations {iterations}"
    save_pretrained(
        args.out,
        args.name,
        env=recipe.env,
        module=module,
        params=jax.device_get(state.params),
        command=command,
        seed=args.seed,
        training={
            "expert": f"mctx.gumbel_muzero_policy, {recipe.num_simulations} simulations",
            "iterations": iterations,
            "max_random_moves": recipe.max_random_moves,
        },
        wall_time_s=round(clock.note()),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions={n: importlib.metadata.version(n) for n in ("jax", "jaxlib", "flax", "mctx")},
        hardware=f"{jax.devices()[0].device_kind}, {platform.machine()}",
        strength={},
    )
    print(f"Wrote {args.out / args.name}.safetensors and its card.")


class _Clock:
    """Seconds of training, over all calls that worked on the same run."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._before = float(path.read_text()) if path.exists() else 0.0
        self._start = time.monotonic()

    def note(self) -> float:
        seconds = self._before + time.monotonic() - self._start
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(f"{seconds:.1f}\n")
        temporary.replace(self._path)
        return seconds


class _progress:  # noqa: N801
    """A live bar with the losses."""

    def __init__(self, name: str, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[losses]}"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task(name, total=total, losses="")

    def __enter__(self) -> Any:
        self._bar.start()
        return self._show

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def _show(self, metrics: dict[str, Any]) -> None:
        losses = f"policy {metrics['policy_loss']:.3f}  value {metrics['value_loss']:.3f}"
        self._bar.update(self._task, completed=metrics["iteration"], losses=losses)


if __name__ == "__main__":
    main()
