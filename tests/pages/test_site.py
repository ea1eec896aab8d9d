"""The site of the docs: every page can be reached, and it is made without a warning."""

import collections
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import jaxpgs

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_page_is_in_a_table_of_contents():
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.M | re.S)
    entries = [re.sub(r".*<(.*)>", r"\1", line) for text in tables for line in text.splitlines()]
    found = {path.resolve() for entry in entries if entry for path in DOCS.glob(entry)}
    pages = {
        *DOCS.glob("*.md"),
        *(DOCS / "api").glob("*.md"),
        *(ROOT / "notebooks").glob("*.ipynb"),
    } - {DOCS / "index.md"}
    assert pages <= found, pages - found


def test_the_reference_lists_every_public_name_once():
    listed = collections.defaultdict(list)
    table = r"^\.\. currentmodule:: (\S+)\n\.\. autosummary::\n(?:   :[^\n]*\n)*\n(.*?)^```"
    for page in (DOCS / "api").glob("*.md"):
        for module, names in re.findall(table, page.read_text(), re.M | re.S):
            listed[module] += names.split()
    packages = {name for name in jaxpgs.__all__ if inspect.ismodule(getattr(jaxpgs, name))}
    for path in (ROOT / "jaxpgs").rglob("__init__.py"):
        module = importlib.import_module(".".join(path.parent.relative_to(ROOT).parts))
        names = {
            name
            for name in getattr(module, "__all__", ())
            if not hasattr(getattr(module, name), "__path__")  # which has a table of its own
        }
        # What a package above exports as well stands there.
        parts = module.__name__.split(".")
        above = [importlib.import_module(".".join(parts[:i])) for i in range(1, len(parts))]
        names -= {name for package in above for name in package.__all__} or packages
        found = listed.pop(module.__name__, [])
        assert len(found) == len(set(found)), module.__name__
        assert set(found) == names, module.__name__
    # The parts of a search, which are modules of `jaxpgs`, and the types of `base`.
    for name, found in listed.items():
        place = jaxpgs
        for part in name.split(".")[1:]:
            place = getattr(place, part)
        assert [n for n in found if not hasattr(place, n)] == [], name


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path):
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").read_text().count("docs/index.html") == 1
    page = (tmp_path / "docs" / "api" / "generated" / "jaxpgs.pgs_policy.html").read_text()
    assert "simulations_per_update" in page and "Raises" in page
