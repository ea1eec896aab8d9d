"""The command that runs all measurements for accelerators: what is done, what is not, and why."""

import json

import pytest

from benchmarks import accelerator
from benchmarks.accelerator import Piece


@pytest.mark.slow
def test_pieces_go_on_until_they_are_done(tmp_path, capfd, monkeypatch):
    pieces = [
        Piece("quick", "timeit", ("-n1", "-r1", "pass")),
        Piece("broken", "timeit", ("-n1", "-r1", "assert False")),
        Piece("long", "timeit", ("-n1", "-r1", "import time; time.sleep(100)")),
        Piece("never begun", "timeit", ("-n1", "-r1", "pass")),
    ]
    monkeypatch.setitem(accelerator.PRESETS, "tiny", pieces)
    monkeypatch.setattr(accelerator, "LEAST_SECONDS", 0.5)
    command = ["--preset", "tiny", "--folder", str(tmp_path), "--minutes"]
    accelerator.main([*command, "0.05"])
    said = capfd.readouterr().out
    assert "broken is not done: it ended with status 1" in said
    assert "long is not done: its time was over" in said
    rows = json.loads((tmp_path / "accelerator_tiny.json").read_text())["rows"]
    assert [row["piece"] for row in rows] == ["quick"]
    accelerator.main([*command, "0.2", "--pieces", "quick", "never begun"])
    assert "quick is done." in capfd.readouterr().out
    rows = json.loads((tmp_path / "accelerator_tiny.json").read_text())["rows"]
    assert [row["piece"] for row in rows] == ["quick", "never begun"]
    with pytest.raises(SystemExit):
        accelerator.main([*command, "1", "--pieces", "nothing"])
    assert "unknown pieces ['nothing']; there are quick, broken" in capfd.readouterr().err


def test_a_training_is_done_when_its_card_says_so(tmp_path):
    piece = Piece("train", "timeit", ("-h",), trains=True)
    (tmp_path / "networks").mkdir()
    card = {"iterations_done": 3, "training": {"iterations": 5}}
    (tmp_path / "networks" / "-h.json").write_text(json.dumps(card))
    assert accelerator.run(piece, tmp_path, None) == (
        "3 of 5 iterations, and the next call goes on with them"
    )
    card["iterations_done"] = 5
    (tmp_path / "networks" / "-h.json").write_text(json.dumps(card))
    assert accelerator.run(piece, tmp_path, None) is None


@pytest.mark.slow
def test_a_real_piece(tmp_path):
    accelerator.main(["--preset", "tiny", "--folder", str(tmp_path), "--pieces", "samegame-tiny"])
    rows = json.loads((tmp_path / "samegame_tiny.json").read_text())["rows"]
    assert [row["search"] for row in rows] == ["random"]
