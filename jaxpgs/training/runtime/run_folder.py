"""Reading a run's folder: the parameters that its trainer saves there, and the metrics."""

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
    """What a trainer has saved in its folder so far.

    Attributes:
      trainer: its name, such as "expert_iteration".
      iteration: iterations done at the last checkpoint; 0 before the first.
      last: the parameters then, as NumPy arrays in the structure that `networks.functional` returns
        for the network; None before the first checkpoint.
      best: the best parameters by evaluation: in matches, for `expert_iteration` and
        `value_equivalent` with `evaluate_every`; by the loss on held-out games, for
        `model_fitting`. None if nothing is evaluated, or nothing has been yet.
      best_iteration: the iteration of `best`, if the trainer stores it.
      curve: the metrics of each iteration done, as dicts, including those after the last
        checkpoint.
      settings: what must be the same when the run resumes, as in its `run.json`.
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
    """Reads what a trainer saves in its folder, without the trainer, its game or its network.

    The run may continue meanwhile, in this process or another: nothing is locked or changed. So
    `loggers.picture(read_run("runs/mine").curve)` shows its progress, and
    `networks.module_from_params(module, read_run("runs/mine").last)` is the network so far.

    Args:
      directory: the `directory` of a trainer, or the folder of a command of `training.recipes`.
      log: a file that `loggers.log_to` wrote, to read the curve from. By default it is the one in
        the trainer's folder; earlier versions wrote none.

    Returns:
      The parameters and the metrics.

    Raises:
      ImportError: if Orbax is not installed; it comes with `pip install "jaxpgs[train]"`.
      ValueError: if the folder holds no run, one of an earlier version, or is damaged.
    """
    folder = pathlib.Path(directory).absolute()
    if not (folder / "run.json").exists() and (folder / "checkpoints").is_dir():
        folder /= "checkpoints"  # the name that the training commands use
    settings = _settings(folder)
    curve = pathlib.Path(log) if log is not None else folder / CURVE
    rows = read_log(curve) if log is not None or curve.exists() else []
    # Only parameters: games and experience may be many times larger.
    found = read_leaves(folder, lambda name: name.partition(".")[0] in ("params", "best"))
    iteration, leaves = found if found is not None else (0, {})
    tree = unflatten(leaves)
    best, best_iteration = tree.get("best"), None
    if "best.iteration" in leaves:
        # At first `best` is the initial network, which has not been evaluated.
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
        settings = json.loads(path.read_text("utf-8"))
        return dict(settings) | {"trainer": settings["trainer"]}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error!r}.") from error
