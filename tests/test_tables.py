"""The page of results and the README's tables say what the files say, and so does the prose."""

import re

import pytest

from benchmarks import tables
from benchmarks.runs import RESULTS

CODE = re.compile(r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)


def numbers(text):
    """The numbers of a text, but for those in code and the years of publications."""
    text = re.sub(r"\([12]\d{3}\)", "", CODE.sub(" ", text))
    return set(re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text))


@pytest.fixture(scope="module")
def sections():
    return list(tables.sections(RESULTS))


def test_the_page_is_that_of_the_files():
    assert tables.PAGE.read_text() == tables.render(RESULTS), "run python -m benchmarks.tables"


def test_the_readmes_tables_are_those_of_the_files():
    text = tables.README.read_text()
    assert text == tables.fill(text, tables.readme_blocks(RESULTS)), "run benchmarks.tables"


def test_the_readme_has_no_other_figures():
    text = re.sub(r"<!-- table.*?<!-- end of table -->", "", tables.README.read_text(), flags=re.S)
    unit = r"(?:Elo|ms|MB|%|×|times|games|points|seconds?|evaluations|simulations)"
    claims = re.findall(rf"±.*|(?<!\w)[-+−]\d+.*|\d+\s*{unit}\b.*", CODE.sub(" ", text))
    assert not claims, "put figures into a table that benchmarks.tables writes"


def test_the_readme_is_short():
    assert len(tables.README.read_text().splitlines()) <= 180


def test_a_place_that_is_missing_is_told():
    filled = tables.fill("<!-- table: a -->\nold\n<!-- end of table -->", {"a": "new\n"})
    assert filled == "<!-- table: a -->\nnew\n<!-- end of table -->"
    with pytest.raises(ValueError, match="one place"):
        tables.fill("no place", {"a": "new"})


def test_every_note_belongs_to_a_file(sections):
    notes = {path.stem for path in (RESULTS.parent / "notes").glob("*.md")}
    assert notes == {section.name for section in sections if section.note}


def test_numbers_of_the_notes_stand_in_the_tables(sections):
    stray = {s.name: numbers(s.note) - numbers(s.body) - numbers(s.origin) for s in sections}
    assert not {name: missing for name, missing in stray.items() if missing}


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
