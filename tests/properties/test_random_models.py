"""A few of the models of `quality.random_models`, which compares hundreds."""

import pytest
from quality import random_models


@pytest.mark.slow
def test_random_models_have_the_answers_of_mctx_and_of_numpy():
    # One root, of which mctx's Gumbel search and ours have the same answers, too.
    row = random_models.check_setting(6, 10)
    assert row["drawn"]["num_roots"] == 1
    assert row["equal"] == dict.fromkeys(("mctx", "NumPy", "modes", "nodes"), 10), row["largest"]


def test_a_difference_is_the_exit_status(tmp_path, monkeypatch):
    equal = iter([2, 1])
    monkeypatch.setattr(
        random_models,
        "check_setting",
        lambda number, models: {
            "setting": number,
            "models": models,
            "equal": {"mctx": next(equal)},
            "largest": {"mctx": 0.0},
        },
    )
    for name, status in (("same", 0), ("other", 1)):
        words = ["--settings", "1", "--models", "2", "--out", str(tmp_path / f"{name}.json")]
        with pytest.raises(SystemExit) as ended:
            random_models.main(words)
        assert ended.value.code == status
