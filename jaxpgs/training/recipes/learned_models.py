"""The recipes of the value-equivalent models that come with the library, and their command.

    python -m jaxpgs.training.recipes ve-hex-5x5 --out runs

makes one, with progress bars. It plays mostly random games, labels every position by a search with
the true rules, fits the model to these labels with early stopping, and writes the weights and their
card (Brosseit 2023, section 5.4). It resumes where it was stopped, in labelling as well as in
fitting. `--minutes 10` stops in time.

The thesis labels 256,000 games with 1,000 simulations per position and fits 3 x 4 blocks of 128
filters for 100 epochs. Here a stronger network labels with few simulations, and the models and the
number of steps are small enough for a CPU. The step size is larger than the thesis's and decays.
The best weights so far are written after every epoch.
"""

import argparse
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx

from jaxpgs.checks import number, positive, refusals_in_one_line, seed
from jaxpgs.envs import Hex
from jaxpgs.networks import ValueEquivalentModel
from jaxpgs.pretrained import load_pretrained, save_pretrained
from jaxpgs.search import gumbel_mcts_policy
from jaxpgs.training.models import labelling, model_fitting
from jaxpgs.training.recipes.hex_networks import Clock, command, origin
from jaxpgs.training.runtime import loggers
from jaxpgs.training.runtime.settings import Run, by_name
from jaxpgs.training.two_player import experts, selfplay


class ModelRecipe(NamedTuple):
    """One model: its environment, its size, the network that labels, and how it is fitted.

    Attributes:
      env: the environment.
      network: keyword arguments of `networks.ValueEquivalentModel`.
      judge: the network that labels positions, for the same environment; looked for in the folder
        of runs and then among the library's networks.
      num_simulations: simulations of the search that labels with this network.
      num_games: games to label.
      num_epochs: the maximum number of epochs of the fitting.
      games: fields of `labelling.Games`.
      fitting: fields of `model_fitting.Steps` and `Validation`, with `steps_per_epoch`.
      step_size: the initial step size of Adam, which decays to a hundredth over all epochs.
    """

    env: Hex
    network: Mapping[str, Any]
    judge: str
    num_simulations: int
    num_games: int
    num_epochs: int
    games: Mapping[str, Any] = MappingProxyType({"games_at_once": 1024})
    fitting: Mapping[str, Any] = MappingProxyType({})
    step_size: float = 2e-3


_FITTING = {
    "unroll": 5, "batch_size": 128, "steps_per_epoch": 250, "validation_batches": 40,
    "patience": 6, "held_out": 0.1, "settle_epochs": 5,
}  # fmt: skip
RECIPES = {
    "ve-hex-5x5": ModelRecipe(
        Hex(5),
        {
            "num_filters": 24, "num_blocks": 1, "policy_filters": 16, "value_filters": 8,
            "squeeze_ratio": 4,
        },
        "hex-5x5", 16, 100_000, 15, fitting=_FITTING,
    ),
    "ve-hex-7x7": ModelRecipe(
        Hex(7),
        {
            "num_filters": 32, "num_blocks": 2, "policy_filters": 16, "value_filters": 16,
            "squeeze_ratio": 4, "norm": "layer",
        },
        "hex-7x7", 16, 150_000, 24, fitting=_FITTING | {"settle_epochs": 0},
    ),
}  # fmt: skip


@refusals_in_one_line("python -m jaxpgs.training.recipes")
def main(argv: list[str] | None = None) -> None:
    """Makes one model; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxpgs.training.recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs"))
    parser.add_argument("--games", type=positive, help="games to label, in place of the recipe's")
    parser.add_argument("--epochs", type=positive, help="in place of the recipe's")
    parser.add_argument("--minutes", type=number(0), help="stop after this time, to go on later")
    parser.add_argument("--seed", type=seed, default=0)
    args = parser.parse_args(argv)
    recipe = RECIPES[args.name]
    recipe = recipe._replace(
        num_games=args.games or recipe.num_games, num_epochs=args.epochs or recipe.num_epochs
    )
    folder = args.out / args.name
    clock = Clock(folder / "seconds.txt")

    def late() -> bool:
        clock.note()
        return args.minutes is not None and clock.seconds(here=True) > 60 * args.minutes

    experience = _label(args.name, recipe, args.out, args.seed, late)
    # Labelling may have been stopped by the time limit, with too few games.
    if late():
        print("Stopped before the fitting; call again to go on.")
        return
    assert experience.played is not None  # labelled games keep it
    module = ValueEquivalentModel(
        recipe.env.observation_shape, recipe.env.num_actions, **recipe.network,
        rngs=nnx.Rngs(args.seed),
    )  # fmt: skip
    log = loggers.log_to(folder / "metrics.jsonl")
    fields = {"command": command(parser.prog, args), "seed": args.seed}
    done = {"games_done": int(experience.played.finished.sum())}

    def save(state: model_fitting.FitState) -> None:
        rows = loggers.read_log(folder / "metrics.jsonl")
        save_pretrained(
            args.out, args.name, env=recipe.env, module=module, params=jax.device_get(state.best),
            **fields, wall_time_s=round(clock.note()),
            training=_settings(recipe) | done | {"epochs_done": int(state.epoch)},
            held_out=held_out_losses(rows, recipe.fitting["unroll"]), strength={}, **origin(),
        )  # fmt: skip

    with loggers.progress_bar(f"{args.name}, fitting", recipe.num_epochs) as show:

        def callback(state: model_fitting.FitState, metrics: dict[str, float]) -> bool:
            show(state, metrics)
            log(state, metrics | {"seconds": round(clock.seconds(), 1)})
            save(state)
            return late()

        state = by_name(model_fitting.fit)(
            recipe.env, module, experience, max_epochs=recipe.num_epochs,
            run=Run(args.seed, directory=folder / "checkpoints", callback=callback),
            optimizer=_optimizer(recipe), **recipe.fitting,
        )  # fmt: skip
    save(state)
    print(f"Wrote {args.out / args.name}.safetensors and its card.")


def judge(num_simulations: int) -> experts.Expert:
    """Makes the search that labels: a Gumbel tree search, which also estimates the value.

    Args:
      num_simulations: simulations per position.

    Returns:
      An expert.
    """
    return experts.searcher(
        gumbel_mcts_policy, num_simulations, simulations_per_update=4, max_num_considered_actions=4
    )


def held_out_losses(rows: list[dict[str, Any]], unroll: int) -> dict[str, Any]:
    """Extracts the losses on held-out games in the best epoch from a log.

    Args:
      rows: the log, as `loggers.read_log` reads it.
      unroll: K.

    Returns:
      `epoch`, and `policy_loss` and `value_loss`, each a list over steps 0 to K of the unroll; an
      empty dict if the log was lost.
    """
    names = [f"validation_{name}_loss" for name in ("policy", "value")]
    rows = [row for row in rows if all(isinstance(row.get(name), float) for name in names)]
    if not rows:
        return {}
    # The epoch that early stopping selected.
    best = min(rows, key=lambda row: sum(row[name] for name in names))
    return {"epoch": best["iteration"]} | {
        name: [round(best[f"validation_{name}_{k}"], 4) for k in range(unroll + 1)]
        for name in ("policy_loss", "value_loss")
    }


def _label(
    name: str, recipe: ModelRecipe, out: pathlib.Path, seed: int, late: Callable[[], bool]
) -> selfplay.Experience:
    own = (out / f"{recipe.judge}.json").exists()
    network = load_pretrained(recipe.judge, directory=out if own else None)
    if network.env != recipe.env:
        raise ValueError(
            f"The judge of {name} must be a network for {recipe.env}; {recipe.judge} is one for "
            f"{network.env}."
        )
    with loggers.progress_bar(f"{name}, labelling", recipe.num_games) as show:

        def callback(state: selfplay.SelfPlayGames, metrics: dict[str, float]) -> bool:
            finished = int(metrics["finished_games"])
            show(state, {"iteration": min(finished, recipe.num_games)})
            return late()

        return labelling.label_games(
            recipe.env, network.apply_fn, network.params, num_games=recipe.num_games,
            expert=judge(recipe.num_simulations), games=labelling.Games(**recipe.games),
            run=Run(seed, directory=out / name / "games", callback=callback),
        )  # fmt: skip


def _settings(recipe: ModelRecipe) -> dict[str, Any]:
    """The training settings for a card."""
    return {
        "judge": recipe.judge, "simulations": recipe.num_simulations, "games": recipe.num_games,
        "epochs": recipe.num_epochs, "step_size": recipe.step_size,
        **recipe.games, **recipe.fitting,
    }  # fmt: skip


def _optimizer(recipe: ModelRecipe) -> optax.GradientTransformation:
    steps = recipe.num_epochs * recipe.fitting["steps_per_epoch"]
    schedule = optax.cosine_decay_schedule(recipe.step_size, steps, alpha=0.01)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4))
