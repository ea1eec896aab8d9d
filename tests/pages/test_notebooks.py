"""Notebooks say what they need, and their stored pictures are those of the results.

`notebooks/conftest.py` compares what they print with what is stored, where they are executed.
"""

import base64
import json
import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text())["cells"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_names_the_extra(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first = cells(path)[0]
    assert first["cell_type"] == "markdown"
    (named,) = re.findall(r"pip install -e \"\.\[(\w+)\]\"", "".join(first["source"]))
    assert named in project["optional-dependencies"]


def test_stored_pictures_are_those_of_the_results():
    files = {path.read_bytes(): path.name for path in (ROOT / "benchmarks").rglob("*.png")}
    shown = [
        (path.stem, number, base64.b64decode("".join(output["data"]["image/png"])))
        for path in NOTEBOOKS
        for number, cell in enumerate(cells(path))
        if "Image(" in "".join(cell["source"])
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert len(shown) > 20
    assert [(name, number) for name, number, picture in shown if picture not in files] == []
