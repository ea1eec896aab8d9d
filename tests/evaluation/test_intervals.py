import numpy as np
import pytest
from scipy import stats

import jaxpgs.evaluation as ev


def _tournament(outcomes, openings=None):
    """A tournament of as many players as the pairings `{(i, j): [2, R, O]}` name."""
    names = tuple("abcdefgh"[: 1 + max(j for _, j in outcomes)])
    pairs = []
    for (i, j), scores in outcomes.items():
        records = (ev.PlayerRecord(names[i]), ev.PlayerRecord(names[j]))
        places = np.arange(scores.shape[-1]) if openings is None else openings[i, j]
        pairs.append(ev.MatchResult(records, places, scores))
    return ev.Tournament(names, np.zeros((len(names),) * 2), {}, tuple(pairs))


def test_games_of_independent_openings_have_the_intervals_of_games():
    rng = np.random.default_rng(0)
    outcomes = rng.binomial(1, 0.6, (1, 1, 400)).astype(float)
    interval = ev.elo_by_opening(outcomes)
    by_game = ev.elo_difference(outcomes.sum(), 400)
    assert interval.elo == pytest.approx(by_game.elo)
    assert interval.half_width == pytest.approx(by_game.half_width, rel=0.05)
    assert interval.low < interval.elo < interval.high


def test_repeats_tell_nothing_new_and_colours_cancel():
    rng = np.random.default_rng(1)
    one = rng.binomial(1, 0.6, (2, 1, 49)).astype(float)
    repeated = np.repeat(one, 6, axis=1)
    assert ev.elo_by_opening(repeated).half_width == pytest.approx(
        ev.elo_by_opening(one).half_width, rel=0.06
    )
    assert ev.elo_difference(repeated.sum(), 588).half_width < 0.5 * (
        ev.elo_by_opening(repeated).half_width
    )
    # Every opening decides the game: only the virtual games are left to chance.
    cancelled = np.stack([one[0], 1 - one[0]])
    level = ev.elo_by_opening(cancelled)
    assert level.elo == pytest.approx(0, abs=1e-9)
    assert 5 < level.half_width < 15


def test_a_clean_sweep_has_a_finite_interval():
    interval = ev.elo_by_opening(np.ones((2, 1, 49)))
    assert interval.elo == pytest.approx(400 * np.log10(99))
    assert 450 < interval.low < interval.elo < interval.high < 2000
    lost = ev.elo_by_opening(np.zeros((2, 1, 49)))
    assert lost.elo == pytest.approx(-interval.elo)


def _num_covered(num_openings):
    """Of 300 matches with both colours and 3 repeats, whose openings differ in strength."""
    rng = np.random.default_rng(2)
    probability = 1 / (1 + 10 ** (-100 / 400))
    covered = 0
    for seed in range(300):
        shift = rng.uniform(-0.3, 0.3, num_openings)
        outcomes = rng.binomial(1, probability + shift, (2, 3, num_openings)).astype(float)
        interval = ev.elo_by_opening(outcomes, num_samples=500, seed=seed)
        covered += interval.low <= 100 <= interval.high
    return covered


def test_intervals_over_openings_cover_at_their_rate():
    for num_openings in (3, 10, 49):
        assert _num_covered(num_openings) >= stats.binom.ppf(1e-4, 300, 0.95), num_openings


def test_few_openings_widen_a_rating_as_they_widen_a_pairing():
    rng = np.random.default_rng(5)
    few = rng.binomial(1, 0.5, (2, 3, 4)).astype(float)
    many = np.tile(few, 16)  # the same spread of openings
    tables = [ev.bayes_elo_by_opening(_tournament({(0, 1): scores}), anchor=1)
              for scores in (few, many)]  # fmt: skip
    # Student's t with 3 degrees of freedom to that with 63, beside the root of 16.
    expected = 4 * (stats.t.ppf(0.975, 3) * np.sqrt(4 / 3)) / (
        stats.t.ppf(0.975, 63) * np.sqrt(64 / 63)
    )  # fmt: skip
    assert tables[0].half_widths[0] / tables[1].half_widths[0] == pytest.approx(expected, rel=0.15)


@pytest.mark.slow
def test_a_table_of_two_is_the_pairing():
    rng = np.random.default_rng(3)
    outcomes = rng.binomial(1, 0.6, (2, 2, 60)).astype(float)
    table = ev.bayes_elo_by_opening(_tournament({(0, 1): outcomes}), anchor=1, num_samples=2000)
    interval = ev.elo_by_opening(outcomes)
    assert table.ratings[0] == pytest.approx(interval.elo)
    assert table.half_widths[0] == pytest.approx(interval.half_width, rel=0.06)
    assert table.half_widths[1] == 0


def test_openings_are_drawn_for_all_pairings_together():
    # A player and its double: their games are the same, so their difference is almost certain.
    rng = np.random.default_rng(4)
    outcomes = rng.binomial(1, 0.6, (2, 1, 200)).astype(float)
    table = ev.bayes_elo_by_opening(_tournament({(0, 1): outcomes, (0, 2): outcomes}))
    assert table.half_widths[1] > 25
    assert table.difference(1, 2).elo == pytest.approx(0, abs=1e-6)
    assert table.difference(1, 2).half_width < 0.35 * table.half_widths[1]
    wins = ev.wins_by_opening(_tournament({(0, 1): outcomes}))
    assert wins.shape == (200, 2, 2)
    np.testing.assert_array_equal(wins[:, 0, 1], outcomes.sum((0, 1)))
    np.testing.assert_array_equal(wins.sum((1, 2)), 2)


def test_bad_arguments_raise():
    scores = np.ones((2, 1, 3))
    for outcomes, message in ((np.ones((2, 0)), "hold games"), (2 * scores, "from 0 to 1")):
        with pytest.raises(ValueError, match=message):
            ev.elo_by_opening(outcomes)
    with pytest.raises(ValueError, match="at least 2 openings"):
        ev.elo_by_opening(scores[..., :1])
    for bad in ({"prior": 0}, {"prior": np.inf}, {"num_samples": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            ev.elo_by_opening(scores, **bad)
    openings = {(0, 1): np.arange(3), (0, 2): np.arange(1, 4)}
    with pytest.raises(ValueError, match="other openings"):
        ev.bayes_elo_by_opening(_tournament({(0, 1): scores, (0, 2): scores}, openings))
