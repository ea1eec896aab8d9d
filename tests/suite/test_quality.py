"""What the long commands in `quality` say: that the declared versions were tested, and minutes."""

import json

import numpy as np
from quality import RESULTS, floors, newcomer, openings

from jaxpgs.evaluation import hex_openings


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


def test_values_of_openings_are_judged_by_their_sign():
    found = np.where(hex_openings(4), 0.5, -0.25)
    assert openings.judge(found)["right"] == openings.judge(found)["of"] == 16
    found[0, 0] = 0.125  # a1, which loses
    row = openings.judge(found)
    assert (row["right"], row["wrong"]) == (15, ["a1 +0.12"])
    assert openings.judge(np.zeros((8, 8)))["right"] is None  # no table
    ours = np.stack([hex_openings(4).ravel(), ~hex_openings(4).ravel()]).astype(float)
    assert openings.count_held(ours, 4) == {"held": 16, "of": 16, "lost": []}
    ours[1, 0] = 0.0  # after a1 the other side wins, and did not
    assert openings.count_held(ours, 4) == {"held": 15, "of": 16, "lost": ["a1"]}
    assert openings.count_held(1 - ours, 4)["held"] == 1
    row |= {"network": "net", "player": "PGS", "simulations": 8, "opponent": None}
    assert openings.table([row])[1] == [["net", "PGS", 8, "the table", "15 of 16", "a1 +0.12"]]
