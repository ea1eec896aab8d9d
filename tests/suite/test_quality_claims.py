"""Claims about earlier code: found, counted, and marked as such."""

import json

import pytest
from quality import claims

from benchmarks import runs, tables
from benchmarks.report import made_of


def write(path, made, **more):
    row = {"n": 1, "fingerprint": "a", "commit": None, "network": "net"}
    data = {"setting": {"network": "net"}, "machines": {}, "fingerprints": {"a": made}}
    path.write_text(json.dumps(data | {"rows": [row | more]}))


def test_what_a_table_shows_of_other_files_counts(tmp_path, monkeypatch):
    today, before = {"envs": made_of()["envs"]}, {"envs": "0"}
    monkeypatch.setattr(claims, "ALSO", {"one": ["two.json"]})
    monkeypatch.setattr(claims, "GATHERED", {"sums": "part_*.json"})
    write(tmp_path / "one.json", today)
    for made in (today, before):
        write(tmp_path / "two.json", made)
        assert claims.is_of_today("one", tmp_path / "one.json") is (made is today)
    # What is gathered is as old as its parts with the same network.
    write(tmp_path / "sums.json", before)
    write(tmp_path / "part_a.json", today)
    assert claims.is_of_today("sums", tmp_path / "sums.json")
    write(tmp_path / "part_b.json", before)
    assert not claims.is_of_today("sums", tmp_path / "sums.json")
    write(tmp_path / "sums.json", before, network="other")
    assert claims.is_of_today("sums", tmp_path / "sums.json")


def test_sections_about_earlier_code_are_found(tmp_path, monkeypatch, capsys):
    (tmp_path / "results").mkdir()
    for name, made in (("new", {"envs": made_of()["envs"]}), ("old", {"envs": "0"})):
        write(tmp_path / "results" / f"{name}.json", made)
    blocks = {n: tables.Block(n, lambda data, link: "") for n in ("new", "old")}
    monkeypatch.setattr(tables, "BLOCKS", blocks)
    monkeypatch.setattr(runs, "RESULTS", tmp_path / "results")
    readme, page = tmp_path / "README.md", tmp_path / "RESULTS.md"
    monkeypatch.setattr(tables, "README", readme)
    monkeypatch.setattr(tables, "PAGE", page)
    readme.write_text("# A\n## One\n<!-- table: new -->\n<!-- end of table -->\n## Two\nWords.\n")
    page.write_text("## Three\nof earlier code\n![it](results/old.png)\n![it](results/gone.png)\n")
    assert [title for title, _ in claims.sections()] == ["One", "Three"]
    with pytest.raises(SystemExit) as status:
        claims.main([])
    assert status.value.code == 0
    assert "1 sections are about earlier code" in capsys.readouterr().out
    page.write_text("## Three\n<!-- table: old -->\n")
    with pytest.raises(SystemExit) as status:
        claims.main([])
    assert status.value.code == 1
    assert "These do not say 'of earlier code': Three." in capsys.readouterr().out
    monkeypatch.setattr(claims, "ALLOWED", 0)
    page.write_text("## Three\nof earlier code\n<!-- table: old -->\n")
    with pytest.raises(SystemExit) as status:
        claims.main([])
    assert status.value.code == 1
