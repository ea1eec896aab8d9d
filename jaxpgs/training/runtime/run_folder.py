"""Reading a run's folder: the parameters that its trainer keeps there, and the metrics."""

import json
import os
import pathlib
from typing import Any, NamedTuple

from jaxpgs.base import Params
from jaxpgs.pretrained.files import unflatten
from jaxpgs.training.runtime.checkpoint import read_leaves
from jaxpgs.training.runtime.iterations import CURVE
from jaxpgs.training.runtime.loggers import read_log


class RunRecord(NamedTuple):
    """What a trainer has left in its folder so far.

    Attributes:
      trainer: its name, such as "expert_iteration".
      iteration: iterations done at the last checkpoint; 0 before the first.
      last: the parameters then, as NumPy arrays in the structure that `networks.functional` returns
        for the network; None before the first checkpoint.
      best: the parameters that measured best: in matches, for `expert_iteration` and
        `value_equivalent` with `evaluate_every`; by the loss on the games held out, for
        `model_fitting`. None where nothing is measured, or was not yet.
      best_iteration: the iteration of the best ones, where the trainer keeps it.
      curve: the metrics of each iteration done, as dicts; also of those after the last checkpoint.
      settings: what must be the same when the run goes on, as its `run.json` has it.
    """

    trainer: str
    iteration: int
    last: Params | None
    best: Params | None
    best_iteration: int | None
    curve: list[dict[str, Any]]
    settings: dict[str, Any]


def read_run(
    directory: str | os.PathLike[str], *, log: str | os.PathLike[str] | None = None
) -> RunRecord:
    """Reads what a trainer keeps in its folder, without the trainer, its game or its network.

    The run may go on meanwhile, in this process or another: nothing is locked or changed. So
    `loggers.picture(read_run("runs/mine").curve)` shows how far it is, and
    `networks.module_from_params(module, read_run("runs/mine").last)` is the network so far.

    Args:
      directory: the folder that a trainer was given as `directory`, or that of a command of
        `training.recipes`.
      log: a file that `loggers.log_to` wrote, to read the curve from. By default it is the one that
        trainers keep in their folder; those of earlier versions kept none.

    Returns:
      The parameters and the metrics.

    Raises:
      ImportError: if Orbax is not installed; it comes with `pip install "jaxpgs[train]"`.
      ValueError: if the folder holds no run, one of an earlier version, or is damaged.
    """
    folder = pathlib.Path(directory).absolute()
    if not (folder / "run.json").exists() and (folder / "checkpoints").is_dir():
        folder /= "checkpoints"  # as the commands that train name it
    settings = _settings(folder)
    curve = pathlib.Path(log) if log is not None else folder / CURVE
    rows = read_log(curve) if log is not None or curve.exists() else []
    # Parameters alone: games and experience may be many times larger.
    found = read_leaves(folder, lambda name: name.partition(".")[0] in ("params", "best"))
    iteration, leaves = found if found is not None else (0, {})
    tree = unflatten(leaves)
    best, best_iteration = tree.get("best"), None
    if "best.iteration" in leaves:
        # At first it is the initial network, which nothing has beaten or even met.
        every = settings["arguments"]["evaluate_every"]
        is_measured = 0 < every <= iteration
        best_iteration = int(best["iteration"]) if is_measured else None
        best = best["params"] if is_measured else None
    return RunRecord(
        trainer=settings["trainer"],
        iteration=iteration,
        last=tree.get("params"),
        best=best,
        best_iteration=best_iteration,
        curve=rows,
        settings=settings,
    )


def _settings(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "run.json"
    if not path.exists():
        raise ValueError(
            f"{folder} holds no run: it has no run.json. Name the folder that was the trainer's "
            "directory."
        )
    try:
        settings = json.loads(path.read_text())
        return dict(settings) | {"trainer": settings["trainer"]}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error!r}.") from error
