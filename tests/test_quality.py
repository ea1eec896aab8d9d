"""What the long commands in `quality` say: that the declared versions were tested, and minutes."""

import json

from quality import RESULTS, floors, newcomer


def test_the_declared_versions_are_those_that_were_tested():
    data = json.loads((RESULTS / "floors.json").read_text())
    again = "run python tests/quality floors --again"
    assert data["setting"]["floors"] == floors.floors(), again
    for row in data["rows"]:
        assert row["failed"] == 0 and row["passed"] > 0, row["failures"]
        for name, floor in floors.floors().items():
            assert f"{row['installed'][name]}.".startswith(f"{floor}."), name


def test_minutes_add_up():
    rows = [{"step": "one", "seconds": 30.0}, {"step": newcomer.FIRST, "seconds": 90.0}]
    assert newcomer.table(rows)[1] == [["one", 30.0, 0.5], [newcomer.FIRST, 90.0, 2.0]]
