"""A few of the models of `quality.random_models`, which compares hundreds."""

import pytest
from quality import random_models


@pytest.mark.slow
def test_random_models_have_the_answers_of_mctx_and_of_numpy():
    # One root, of which mctx's Gumbel search and ours have the same answers, too.
    row = random_models.check_setting(6, 10)
    assert row["drawn"]["num_roots"] == 1
    assert row["equal"] == dict.fromkeys(("mctx", "NumPy", "modes", "nodes"), 10), row["largest"]
