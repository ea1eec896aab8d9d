"""Checkpoints of a whole run, written atomically by Orbax."""

import os
import pathlib
from typing import Any

import jax


class Checkpoints:
    """The last two states of a run in a directory.

    Args:
      directory: where to keep them; made if need be.

    Raises:
      ImportError: if Orbax is not installed; it comes with `pip install "jaxpgs[train]"`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise ImportError('Checkpoints need Orbax: pip install "jaxpgs[train]"') from error
        self._ocp = ocp
        self._manager = ocp.CheckpointManager(
            pathlib.Path(directory).absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=2),
            item_handlers=ocp.StandardCheckpointHandler(),
        )

    def save(self, step: int, state: Any) -> None:
        """Saves the leaves of `state` under a step number, and waits until they are written."""
        self._manager.save(step, args=self._ocp.args.StandardSave(_to_dict(state)))
        self._manager.wait_until_finished()

    def restore(self, template: Any) -> Any | None:
        """Returns the last state saved, in the structure of `template`, or None if there is none.

        Raises:
          ValueError: if the checkpoint's leaves do not have the shapes of the template's.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        shapes = jax.eval_shape(_to_dict, template)
        found = self._manager.item_metadata(step)
        for name, leaf in shapes.items():
            got = found[name].shape if name in found else None
            if got != leaf.shape or len(found) != len(shapes):
                raise ValueError(
                    f"The checkpoint of step {step} is of another run: leaf {name} of "
                    f"{len(found)} has shape {got}, this run has {len(shapes)} and needs "
                    f"{leaf.shape}. Name another directory."
                )
        saved = self._manager.restore(step, args=self._ocp.args.StandardRestore(shapes))
        leaves, treedef = jax.tree.flatten(template)
        return jax.tree.unflatten(
            treedef,
            [
                jax.random.wrap_key_data(saved[str(i)]) if _is_key(leaf) else saved[str(i)]
                for i, leaf in enumerate(leaves)
            ],
        )


def _to_dict(state: Any) -> dict[str, Any]:
    # A flat dict of plain arrays depends on no class of ours, nor on how Orbax treats them.
    return {
        str(i): jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for i, leaf in enumerate(jax.tree.leaves(state))
    }


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
