"""Tables of the pages match the files, prose has no further figures, and all stays small."""

import fnmatch
import re

import pytest

from benchmarks import tables
from benchmarks.report import ROOT
from benchmarks.runs import RESULTS

FOLDER = ROOT / "benchmarks"
CODE = re.compile(r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_the_files(page):
    text = page.read_text()
    assert text == tables.fill(text, page), "run python -m benchmarks.tables"


@pytest.mark.parametrize("page", [tables.README, tables.PAGE], ids=lambda page: page.stem)
def test_prose_has_no_other_figures(page):
    text = re.sub(r"<!-- table.*?<!-- end of table -->", "", page.read_text(), flags=re.S)
    unit = r"(?:Elo|ms|MB|×|times|games|points|seconds?|evaluations|simulations)"
    claims = re.findall(rf"±\s*\d.*|(?<![\w\]])[-+−]\d+.*|\d+\s*{unit}\b.*", CODE.sub(" ", text))
    assert not claims, "put figures into a table that benchmarks.tables writes"


@pytest.mark.parametrize("page", [p for p in tables.PAGES if p != tables.README])
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_pages_are_short():
    assert len(tables.README.read_text().splitlines()) <= 130
    assert len(tables.PAGE.read_text().splitlines()) <= 600


def test_the_benchmarks_are_small():
    files = [p for p in FOLDER.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    outside = [p for p in files if RESULTS not in p.parents]
    assert len(outside) <= 40
    assert sum(len(p.read_text().splitlines()) for p in outside if p.suffix == ".py") <= 7500
    assert sum(p.stat().st_size for p in files if RESULTS in p.parents) <= 3_000_000


# Results that notebooks find by a pattern or by a part of the name.
BY_PATTERN = (
    "tspg_full_patterns_*.png", "puzzles_*x*.png", "strength_confirm-extended_*.json",
    "tspg_full_step-*.json", "strength_quick.json", "strength_hex-7x7*.json",
    "strength_defaults*.json", "strength_rounds*.json",  # whose pairings are gathered
)  # fmt: skip


def test_every_result_is_used():
    pages = [*tables.PAGES, *(ROOT / "notebooks").glob("*.ipynb")]
    text = "\n".join(page.read_text() for page in pages)
    drawn = {f"{block.file}.json" for block in tables.BLOCKS.values()}
    unused = [
        path.name
        for path in RESULTS.iterdir()
        if path.name not in drawn and path.name not in text
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in BY_PATTERN)
    ]
    assert not unused
    assert len(list(RESULTS.glob("*.png"))) <= 25


def test_a_place_without_a_table_is_told():
    page = ROOT / "README.md"
    with pytest.raises(ValueError, match="no table 'a'; there are strength"):
        tables.fill("<!-- table: a -->\nold\n<!-- end of table -->", page)
    filled = tables.fill("<!-- table: strength -->\nold\n<!-- end of table -->", page)
    assert "old" not in filled and "| NN |" in filled


def test_the_commit_of_changed_code_says_so():
    machine = {"cores": 2, "date": "2000-01-01T00:00:00+00:00"}
    rows = [machine | {"commit": commit} for commit in ("0123456789", "0123456789-dirty", None)]
    told = tables.source({"rows": rows}, "`a.json`")
    assert told == "From `a.json`: commit 0123456, 0123456-dirty, unknown, 2 cores, 2000-01-01."


def test_cells():
    columns = ["name", "figure", "empty"]
    text = tables.markdown_table(
        columns, [["a", 1234.5, None], ["b", 0.125, None], ["c", None, None]]
    )
    assert text.splitlines() == [
        "| name | figure |",
        "| --- | ---: |",
        "| a | 1,234 |",
        "| b | 0.125 |",
        "| c | – |",
    ]
