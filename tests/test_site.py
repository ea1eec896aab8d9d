"""The site of the docs: every page can be reached, and it is made without a warning."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_every_page_is_in_a_table_of_contents():
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.M | re.S)
    entries = [re.sub(r".*<(.*)>", r"\1", line) for text in tables for line in text.splitlines()]
    found = {path.resolve() for entry in entries if entry for path in DOCS.glob(entry)}
    pages = {*DOCS.rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")} - {DOCS / "index.md"}
    assert pages <= found, pages - found


def test_the_api_pages_have_every_public_package():
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"automodule:: (\S+)", text))
    packages = {path.parent.name for path in (ROOT / "jaxpgs").glob("*/__init__.py")} - {"training"}
    assert named >= {"jaxpgs", *(f"jaxpgs.{name}" for name in packages)}


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path):
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").read_text().count("docs/index.html") == 1
    assert "jaxpgs.pgs_policy" in (tmp_path / "docs" / "api" / "library.html").read_text()
