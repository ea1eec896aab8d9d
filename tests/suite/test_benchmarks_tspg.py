"""The benchmarks of training objectives of policies: matches, statistics and tables."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import runs
from benchmarks.studies.soemers2019 import tspg, tspg_matches
from jaxpgs.envs import Hex

ENV = Hex(2)


def by_number(params, state):
    """A policy that prefers cells with high numbers, the more strongly the larger `params`."""
    logits = params * jnp.arange(4.0) + 0 * state.labels
    return jnp.where(state.legal_action_mask, logits, jnp.finfo(logits.dtype).min)


@pytest.mark.lenient
def test_each_side_draws_from_its_own_parameters():
    # Moves are practically certain: one side takes the highest free cell, the other the lowest.
    match = tspg_matches.policy_match(ENV, by_number, 6)
    highest, lowest, key = jnp.float32(99.0), jnp.float32(-99.0), jax.random.key(0)
    # 3, 0, 2, 1 and 0, 3, 1, 2 are won by who moves second; the first side begins every other one.
    np.testing.assert_array_equal(match(highest, lowest, key), [-1, 1] * 3)
    # 3, 2, 1 is won by who begins.
    np.testing.assert_array_equal(match(highest, highest, key), [1, -1] * 3)
    # Without preferences the same policy meets itself: 0 within four standard errors, an error of
    # one in 15,000.
    even = tspg_matches.policy_match(ENV, by_number, 200)
    earned = even(jnp.float32(0.0), jnp.float32(0.0), key)
    assert set(np.unique(earned)) == {-1.0, 1.0} and abs(np.mean(earned)) < 4 / 200**0.5


@pytest.mark.lenient
def test_likeliest_moves_hide_how_sure_a_policy_is():
    match = tspg_matches.policy_match(ENV, by_number, 100, likeliest=True)
    sure, unsure = jnp.float32(9.0), jnp.float32(0.1)
    key = jax.random.key(0)
    # The same order of moves: who is surer makes no difference, game by game.
    np.testing.assert_array_equal(match(sure, unsure, key), match(unsure, sure, key))


def test_entropy_is_a_share_of_that_of_all_legal_actions():
    policy = np.array([[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0.25] * 4, [1, 0, 0, 0]], np.float32)
    legal = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], bool)
    found = tspg_matches.normalised_entropy(policy, legal)
    np.testing.assert_allclose(found, [0.5, 0, 1, np.nan], atol=1e-6)


def visiting(order):
    """A search that visits the first legal cell of an order 4 times, and each other one once."""

    def search(params, rng_key, state):
        rank = jnp.where(state.legal_action_mask, -jnp.argsort(jnp.asarray(order)), -99)
        visits = 3 * jax.nn.one_hot(jnp.argmax(rank, axis=-1), 4) + state.legal_action_mask
        found = types.SimpleNamespace(visits=visits.astype(jnp.int32))
        return types.SimpleNamespace(search_state=found)

    return search


@pytest.mark.lenient
def test_searches_play_their_most_visited_actions_and_show_how_sure_they_are():
    # Player 0 wins by cells 0 and 2, or 1 and 3.
    searches = {"biased": visiting((2, 0, 1, 3)), "uct": visiting((1, 3, 0, 2))}
    match = tspg_matches.search_match(ENV, searches, by_number, 6)
    watched = {"sharp": jnp.float32(50.0), "soft": jnp.float32(0.0)}
    earned, sure = match(None, watched, jax.random.key(0))
    # One begins with 2, 1, 0 and wins, the other with 1, 2, 3.
    np.testing.assert_array_equal(earned, [1, 1, 1, -1, -1, -1])
    assert (sure.length == 3).all() and len(sure.ply) == 2 * 3 * 3
    np.testing.assert_allclose(sure.entropy["soft"], 1, atol=1e-6)
    np.testing.assert_allclose(sure.entropy["sharp"], 0, atol=1e-6)
    own = np.isfinite(sure.entropy["biased"])
    # The entropy of each is known in the positions before its own moves.
    assert (own ^ np.isfinite(sure.entropy["uct"])).all()
    first = sure.entropy["biased"][(sure.ply == 0) & own]
    share = np.array([4, 1, 1, 1]) / 7
    np.testing.assert_allclose(first, -(share * np.log(share)).sum() / np.log(4), rtol=1e-5)
    along = tspg._along(sure)
    assert len(along["soft"]) == tspg._BINS and along["soft"][0] == 1


def test_offsets_are_added_to_the_weights_below_them():
    head = {"linear": {"kernel": np.array([1.0, -2.0])}}
    offset = {"linear": {"kernel": np.array([0.5, 0.0])}}
    own, others = tspg.alone({"policy_head": head, "torso": {}, "offsets": {"tspg": offset}})
    assert set(own) == {"policy_head", "torso"}
    np.testing.assert_array_equal(others["tspg"]["policy_head"]["linear"]["kernel"], [1.5, -2])
    told = tspg.weights({
        "cross_entropy": np.array([1.0, 0.0, -9.0, 0.01]), "tspg": np.array([0.5, 7.0, -1, 0])
    })  # fmt: skip
    assert told["tspg"]["used"] == 3 and told["tspg"]["of"] == 4
    assert told["cross_entropy"]["near_zero"] == pytest.approx(1 / 3, abs=1e-4)
    assert sum(told["cross_entropy"]["histogram"]) == 3


def make_row(seed, points):
    sure = {name: [points] * tspg._BINS for name in (*tspg.LABELS,)} | {"uct": [None] * 10}
    sure["uct"][0] = 0.5
    told = {"used": 3, "of": 4, "deviation": 0.5, "near_zero": 0.25, "histogram": [0] * 60}
    return {
        "game": "yavalath", "seed": seed,
        "against_cross_entropy": {name: [[1, 0.5], [25, points]] for name in tspg.OFFSETS},
        "likeliest": dict.fromkeys(tspg.OFFSETS, 0.5),
        "against_uct": {"tspg": points, "double": 0.5},
        "entropy": {"tspg": sure, "double": sure},
        "strongest": {"tspg": [{
            "weight": 0.5, "template": "line", "anchor": "to",
            "cells": [[[0, 1], "own"], [[-1, 1], "last move"], [[1, 0], "edge"]],
        }]},
        "weights": {name: told for name in ("cross_entropy", "double", "tspg")},
    }  # fmt: skip


@pytest.mark.slow
def test_tables_are_of_seeds_with_their_intervals(tmp_path):
    low, mean, high = tspg.interval([0.4, 0.6])
    # Student's t with one degree of freedom: 12.706 standard errors, of 0.1 each.
    assert mean == pytest.approx(0.5) and high - mean == pytest.approx(1.2706, rel=1e-4)
    assert low == pytest.approx(-0.7706, rel=1e-4)
    rows = [make_row(0, 0.6), make_row(1, 0.6)]
    raw, searched, sure, spread = tspg.tables(rows)
    assert raw[2][0][:3] == ["yavalath", "TSPG", 2]
    assert raw[2][0][3:] == ["50.0 [50.0, 50.0]", "60.0 [60.0, 60.0]", "50.0 [50.0, 50.0]"]
    assert searched[2][0][2:] == ["60.0 [60.0, 60.0]", "50.0 [50.0, 50.0]", "10.0 [10.0, 10.0]"]
    assert sure[2][0][2:4] == [0.5, 0.6] and spread[2][0][2:] == [4, 3, 0.5, 25.0]
    for title, columns, lines in (raw, searched, sure, spread):
        assert title and all(len(line) == len(columns) for line in lines)
    tspg.draw(tmp_path / "a.png", rows)
    for end in ("", "_entropy", "_weights", "_patterns_yavalath"):
        assert (tmp_path / f"a{end}.png").stat().st_size > 1000


def test_each_step_size_has_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tspg, "measure", lambda game, preset, seed: {
        "game": game, "seed": seed, "used": preset.step_size,
    })  # fmt: skip
    monkeypatch.setattr(tspg, "tables", lambda rows: [])
    words = "--preset tiny --games yavalath --step-size 0.001 0.5 --out"
    tspg.main([*words.split(), str(tmp_path / "a.json")])
    for step_size in (0.001, 0.5):
        data = runs.load(tmp_path / f"a_step-{step_size}.json")
        assert data["setting"]["step_size"] == step_size
        assert [(row["game"], row["used"]) for row in data["rows"]] == [("yavalath", step_size)]
