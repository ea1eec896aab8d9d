"""Claims about earlier code: found, counted, and marked as such."""

import json

import pytest
from quality import claims

from benchmarks import runs, tables
from benchmarks.report import made_of


def test_sections_about_earlier_code_are_found(tmp_path, monkeypatch, capsys):
    made = {"envs": made_of()["envs"]}
    for name, prints in (("new", made), ("old", {"envs": "0"})):
        rows = [{"n": 1, "fingerprint": "a", "commit": None}]
        data = {"setting": {}, "machines": {}, "fingerprints": {"a": prints}, "rows": rows}
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(data))
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
