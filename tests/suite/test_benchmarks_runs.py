"""The command line and the file of rows that all benchmarks share."""

import multiprocessing
import os
import pathlib

import pytest

from benchmarks import pictures, report, runs, stale


def parsed(*words):
    made = runs.parser("thing", "text", presets=("quick", "full"))
    made.add_argument("--simulations", type=runs.positive, default=64)
    made.add_argument("--names", nargs="+", default=[])
    return made, made.parse_args(words)


def opened(path, *words, setting=None, key=("name",)):
    made, args = parsed("--out", str(path), *words)
    return runs.open_record(made, args, {"seed": args.seed} | (setting or {}), key)


def test_the_command_names_every_changed_argument(tmp_path):
    def line(*words):
        return runs.command_line(*parsed(*words))

    assert line() == "python -m benchmarks.thing --preset quick"
    words = "--preset full --seed 3 --simulations 16 --names a 'b c'"
    given = ("--preset", "full", "--seed", "3", "--simulations", "16", "--names", "a", "b c")
    assert line(*given, "--again") == f"python -m benchmarks.thing {words}"
    # Of a file outside the repository, only the name is given.
    assert line("--out", str(tmp_path / "x.json")).endswith("--preset quick --out x.json")
    assert line("--out", str(report.ROOT / "benchmarks" / "x.json")).endswith("benchmarks/x.json")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many"])
def test_counts_are_positive(text, capsys):
    with pytest.raises(SystemExit):
        parsed("--simulations", text)
    assert f"at least 1, got '{text}'" in capsys.readouterr().err


def test_rows_say_where_they_come_from_and_are_kept(tmp_path):
    path = tmp_path / "folder" / "file.json"
    record = opened(path)
    assert runs.read(record) == [] and not path.exists()
    runs.add(record, {"name": "a", "figure": 1.5})
    assert runs.has(record, name="a") and not runs.has(record, name="b")
    second = opened(path, "--simulations", "8")
    runs.add(second, {"name": "b", "figure": 2})
    a, b = runs.read(record)
    assert (a["figure"], b["figure"]) == (1.5, 2)
    assert a["command"] != b["command"] and b["command"].endswith("--simulations 8")
    for row in (a, b):
        assert row["cores"] == report.num_cores() and row["load"] >= 0
        assert row["date"].endswith("+00:00") and "commit" in row
        assert "jax" in runs.load(path)["machines"][row["machine"]]["versions"]
    again = opened(path, "--again")
    assert not runs.has(again, name="a")
    runs.add(again, {"name": "a", "figure": 3}, summary=[1, 2])
    assert [row["figure"] for row in runs.read(record)] == [2, 3]
    assert runs.load(path)["summary"] == [1, 2]
    assert "`python -m benchmarks.thing --preset quick --out file.json`" in runs.origin(
        runs.load(path)
    )


def test_another_setting_is_refused_by_name(tmp_path):
    path = tmp_path / "file.json"
    players = {"players": {"A": {"k": 1}}}
    runs.add(opened(path, setting=players), {"name": "a"})
    with pytest.raises(SystemExit, match=r"file.json holds rows of seed 0, not 1; .* --out"):
        opened(path, "--seed", "1", setting=players)
    with pytest.raises(SystemExit, match=r"of players A \{'k': 1\}, not"):
        opened(path, setting={"players": {"A": {"k": 2}}})
    with pytest.raises(SystemExit, match="players"):
        opened(path)
    runs.add(opened(path, setting={"players": {"B": {}}}), {"name": "b"})
    assert runs.load(path)["setting"]["players"] == {"A": {"k": 1}, "B": {}}


def test_a_file_that_holds_no_rows_is_one_line(tmp_path):
    path = tmp_path / "file.json"
    for text in ("", "[]", '{"rows": [', "\0"):
        path.write_text(text)
        with pytest.raises(SystemExit, match=r"file\.json.*move this one away"):
            opened(path)
    with pytest.raises(SystemExit, match=r"cannot be read: .*directory"):
        opened(tmp_path)
    with pytest.raises(SystemExit, match=r"cannot be written: .*file\.json is a file"):
        opened(path / "below" / "x.json")


def test_a_folder_that_does_not_allow_it_is_found_before_anything_is_measured(
    tmp_path, monkeypatch
):
    # The user of a container may write everywhere, whatever the permissions of a folder are.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(SystemExit, match=rf"cannot be written: {tmp_path} does not allow it"):
        opened(tmp_path / "below" / "x.json")


@pytest.mark.parametrize("text", ["-1", "9" * 20, "zero"])
def test_a_seed_that_jax_does_not_take_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        parsed("--seed", text)
    assert f"whole number from 0 to {2**63 - 1}, got '{text}'" in capsys.readouterr().err


def test_a_finished_file_stays_as_it_is(tmp_path):
    record = opened(tmp_path / "file.json")
    runs.add(record, {"name": "a"})
    before = record.path.read_bytes()
    again = opened(tmp_path / "file.json", "--simulations", "8")
    assert runs.has(again, name="a")
    runs.add(again)  # as at the end of a benchmark with nothing to measure
    assert record.path.read_bytes() == before


def _write(path, start):
    record = opened(pathlib.Path(path))
    for i in range(start, start + 10):
        runs.add(record, {"name": i})


@pytest.mark.slow
def test_two_writers_lose_nothing(tmp_path):
    path = str(tmp_path / "file.json")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, start)) for start in (0, 10)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(row["name"] for row in runs.load(path)["rows"]) == list(range(20))


def test_what_json_does_not_know_is_refused(tmp_path):
    record = opened(tmp_path / "file.json")
    with pytest.raises(ValueError):
        runs.add(record, {"name": float("nan")})
    with pytest.raises(TypeError, match="object has no JSON form"):
        runs.add(record, {"name": object()})
    assert not list(tmp_path.iterdir())


def test_a_search_has_one_colour():
    assert pictures.color("PGS cached, K=16") == pictures.color("PGS 400")
    names = ("PGS", "MCS", "MCTS", "PGS-UF", "mctx MuZero", "mctx Gumbel", "Gumbel PGS",
             "Gumbel MCTS", "Gumbel MCS", "raw network")  # fmt: skip
    assert len({pictures.color(name) for name in names}) == len(names)


def test_a_row_is_stale_when_the_code_or_the_weights_have_changed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "file.json"
    runs.add(opened(path, setting={"network": "hex-5x5"}), {"name": "a"})
    data = runs.load(path)
    (made,) = data["fingerprints"].values()
    assert {"search", "envs", "checks", "weights of hex-5x5"} <= set(made)
    assert [why for _, why, _ in stale.judged(data, {})] == [None]
    digest = report.code_digest
    monkeypatch.setattr(report, "code_digest", lambda part: part == "search" or digest(part))
    monkeypatch.setattr(report, "weights_digest", lambda name: "other")
    data["rows"].append({"name": "b"})
    assert [why for _, why, old in stale.judged(data, {}) if old] == [
        "other search, weights of hex-5x5",
        stale.NONE,
    ]
    with pytest.raises(SystemExit, match="1"):
        stale.main(["f*", "--rows", "--folder", str(tmp_path)])
    assert "name a" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        stale.main(["none*", "--folder", str(tmp_path)])
    assert "has no file of results named none*" in capsys.readouterr().err


def test_comments_and_docstrings_are_no_code(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "ROOT", tmp_path)
    (tmp_path / "jaxpgs").mkdir()
    digests = []
    texts = ('"""One."""\nx = 1\n', '"""Two."""\nx = 1  # one\n', '"""Two."""\nx = 2\n')
    for text in texts:
        (tmp_path / "jaxpgs" / "part.py").write_text(text)
        digests.append(report.code_digest.__wrapped__("part"))
    assert digests[0] == digests[1] != digests[2]
    assert report.code_digest.__wrapped__("nothing") is None
