"""The page of results says what the files say."""

from benchmarks import tables
from benchmarks.runs import RESULTS


def test_the_page_is_that_of_the_files():
    assert tables.PAGE.read_text() == tables.render(RESULTS), "run python -m benchmarks.tables"


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
