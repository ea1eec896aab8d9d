"""The ablation of extended PGS and the match on a learned model: words, tables, small runs."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import jaxpgs
from benchmarks import parts, players, runs
from benchmarks.studies.brosseit2023 import ablation, model_memory, unroll
from jaxpgs.search.parts.reuse import Reuse

NETWORK = players.load_network("conv-3x3-2x1")


def learned(knobs):
    """What `arguments` makes of the knobs of a PGS."""
    return players.arguments(players.Spec("x", "pgs", knobs), NETWORK.params, 16)


def test_words_become_parts():
    made = parts.make_part("truncation", "by_visits(6)")
    depth = [made.max_depth(n) for n in (6, 7, 8, 100)]
    assert depth == [jaxpgs.truncation.by_visits(6.0).max_depth(n) for n in (6, 7, 8, 100)]
    below = parts.make_part("truncation", "by_visits_below(6)")
    assert [below.max_depth(n) for n in (6, 7, 8, 100)] == [d + 1 for d in depth]
    assert parts.make_part("truncation", "fixed(5)").max_depth(100) == 5
    for kind, word in (("truncation", "for_ever"), ("backup", "series(0.5)"), ("target", "q(")):
        with pytest.raises(ValueError, match=f"Unknown {kind} .*; known are "):
            parts.make_part(kind, word)
    with pytest.raises(ValueError, match="baseline"):
        parts.make_part("estimator", "reinforce(best)")


def test_every_change_is_a_change_of_one_part():
    plain = learned(ablation.PLAIN)
    assert plain["adapt"]["policy_head"]["linear"]["kernel"] is True
    assert plain["interior_selection"] is None and plain["mode"] == "constant"
    for name, change in ablation.CHANGES.items():
        changed = learned(ablation.PLAIN | change)
        assert set(changed) - set(plain) <= {"reuse"}, name
    assert "all together" in [spec.name for spec in ablation.PLAYERS]
    ring = learned(ablation.PLAIN | ablation.CHANGES["PPO clip, 3 epochs"])["reuse"]
    assert ring == Reuse(4, num_epochs=3, clip=0.2)
    with pytest.raises(ValueError, match="'model' or 'rules', got 'luck'"):
        players.model_fns(players.Spec("x", "pgs", {"plans_with": "luck"}), None)


def test_an_unknown_knob_is_told():
    spec = players.Spec("x", "extended", {"entropi": 1.0})
    with pytest.raises(TypeError, match=r"no argument 'entropi'\. Did you mean 'entropy'"):
        players.describe(spec, NETWORK, 4)


@pytest.mark.parametrize("weight", ["entropy", "kl_to_prior", "kl_from_prior"])
@pytest.mark.lenient
def test_weights_reach_the_objective(weight):
    made = learned(ablation.PLAIN | {weight: 2.0, "optimizer": "adam"})["estimator"]
    ones = jnp.ones((2, 1, 3))
    trajectory = jaxpgs.base.Trajectory(
        alive=ones > 0, reward=ones, discount=ones, value=ones, log_prob=0 * ones,
        **{name: (name == weight) * ones for name in ("entropy", "kl_to_prior", "kl_from_prior")},
        depth=2 * jnp.ones((1, 3)), limited=ones[0] > 1, num_evaluations=0, num_calls=0,
    )  # fmt: skip
    np.testing.assert_allclose(made(None, trajectory, ones), 12 if weight == "entropy" else -12)


def test_the_ablation_is_rated_count_by_count_and_together(tmp_path, capsys):
    with pytest.raises(SystemExit):
        ablation.main(["--folder", str(tmp_path), "--out", str(tmp_path / "ablation.json")])
    assert "there are no tournaments (strength_ablation_*.json)" in capsys.readouterr().err
    rng = np.random.default_rng(0)
    for count in (25, 100):
        outcomes = rng.integers(0, 2, (2, 1, 16))
        rows = [{"first": "plain PGS", "second": "Adam", "outcomes": outcomes.tolist()},
                {"first": "Adam", "second": "other", "outcomes": outcomes.tolist()}]  # fmt: skip
        path = tmp_path / f"strength_ablation_hex-5x5-early_{count}.json"
        path.write_text(json.dumps({"rows": rows}))
    ablation.main(["--folder", str(tmp_path), "--out", str(tmp_path / "ablation.json")])
    found = {row["simulations"]: row for row in runs.load(tmp_path / "ablation.json")["rows"]}
    assert sorted(found) == [0, 25, 100]
    assert found[0]["games"] == 64 and found[0]["won"] == found[25]["won"] + found[100]["won"]
    assert found[25]["won"] + outcomes.sum() == 32 or found[100]["won"] + outcomes.sum() == 32
    columns, lines = ablation.table(list(found.values()))
    assert columns == ["player", "5x5, 25", "5x5, 100", "5x5, all"]
    assert [line[0] for line in lines] == ["Adam"]
    assert (tmp_path / "ablation.png").exists()


def test_the_thesis_counted_without_the_head():
    counted = model_memory.THESIS
    assert [round(counted[name]["nodes"], 1) for name in counted] == [13.2, 51.3, 344.0, 1336.4]
    assert counted["PGS"]["with_head"] == 93.3 and counted["VE-PGS"]["with_head"] == 424.1
    # Up to about this many iterations, AlphaZero's tree takes less memory than PGS.
    for more, head in ((183, "with_head"), (499, "with_adam")):
        tree = model_memory.count_bytes(True, more, 25, 608, 0)["nodes"]
        assert abs(tree - counted["PGS"][head]) < 0.6


@pytest.mark.slow
def test_the_values_of_an_unroll_begin_as_those_of_the_position(tmp_path):
    path = tmp_path / "unroll.json"
    unroll.main(["--network", "model-3x3-2x1", "--positions", "8", "--length", "2",
                 "--stones", "2", "5", "--out", str(path)])  # fmt: skip
    rows = runs.load(path)["rows"]
    assert [row["steps"] for row in rows] == [0, 1, 2] and rows[0]["positions"] == 8
    assert rows[0]["unrolled_error"] == rows[0]["shown_error"]
    assert rows[1]["unrolled_error"] != rows[1]["shown_error"]
    for row in rows:
        mean, low, high = row["shown_wrong"]
        assert 0 <= low <= mean <= high <= 100
    assert path.with_suffix(".png").exists()
