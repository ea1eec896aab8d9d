"""Compares what notebooks print, and the tables that they show, with the outputs stored in them."""

import nbformat
import pytest
from nbmake.nb_run import NotebookRun

# A cell whose metadata has this tag shows what differs with the machine or the size of the run.
VARIES = "varies"
execute_notebook = NotebookRun.execute


def texts(cell):
    """What a cell printed, and its tables."""
    printed = "".join(x["text"] for x in cell.outputs if x["output_type"] == "stream")
    shown = [x.get("data", {}).get("text/markdown", "") for x in cell.outputs]
    return "\n".join([printed, *shown]).strip()


def differences(stored, found):
    """Says of each code cell that is not as it was what is stored and what was found."""
    return [
        f"Cell {number} has stored:\n{texts(old)}\nand gives:\n{texts(new)}"
        for number, (old, new) in enumerate(zip(stored.cells, found.cells, strict=True))
        if old.cell_type == "code" and VARIES not in old.metadata.get("tags", ())
        if texts(old) != texts(new)
    ]


def execute(run):
    """Executes a notebook as nbmake does, and compares."""
    stored = nbformat.read(run.filename, nbformat.NO_CONVERT)
    result = execute_notebook(run)
    if result.error is None and (found := differences(stored, result.nb)):
        advice = f"{run.filename.name}: execute it again, or tag the cell {VARIES!r}."
        raise AssertionError("\n".join([advice, *found]))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Compares, unless `--overwrite` stores what is found."""
    with pytest.MonkeyPatch.context() as patch:
        if not item.config.option.overwrite:
            patch.setattr(NotebookRun, "execute", execute)
        return (yield)
