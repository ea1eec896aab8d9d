import numpy as np
import pytest
from scipy import optimize, stats

from jaxpgs.evaluation import elo


def _simulate(rng, ratings, games):
    """A full round robin of independent games without draws."""
    expected = 1 / (1 + 10 ** ((ratings[None, :] - ratings[:, None]) / 400))
    wins = np.triu(rng.binomial(games, expected), 1).astype(float)
    return wins + np.tril(games - wins.T, -1)


def test_three_quarters_is_191_elo():
    table = elo.bayes_elo([[0, 25], [75, 0]], prior=0)
    assert table.ratings == pytest.approx([0, 190.848501], abs=1e-5)
    # Variance of a logit is 1 / (n p q) = 1 / 18.75.
    assert table.half_widths == pytest.approx([0, 1.959964 * 173.717793 / 18.75**0.5], abs=1e-3)
    assert elo.elo_difference(75, 100, prior=0) == pytest.approx(table.difference(1, 0))


def test_prior_is_virtual_draws_of_pairs_that_played():
    wins = np.array([[0, 30, 0], [10, 0, 12], [0, 8, 0.0]])
    virtual = np.array([[0, 2, 0], [2, 0, 2], [0, 2, 0.0]])
    with_prior = elo.bayes_elo(wins, prior=4)
    by_hand = elo.bayes_elo(wins + virtual, prior=0)
    np.testing.assert_allclose(with_prior.ratings, by_hand.ratings)
    np.testing.assert_allclose(with_prior.covariance, by_hand.covariance)


@pytest.mark.parametrize("anchor", [0, 3])
def test_agrees_with_a_general_optimiser(anchor):
    rng = np.random.default_rng(0)
    wins = _simulate(rng, np.array([0, 60, -200, 350, 120.0]), 40)
    wins[0, 3] = wins[3, 0] = 0  # a pair that never met
    free = [p for p in range(5) if p != anchor]

    def loss(x):
        r = np.zeros(5)
        r[free] = x
        return (wins * np.logaddexp(0, (r[None, :] - r[:, None]) / elo.SCALE)).sum()

    best = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    table = elo.bayes_elo(wins, anchor=anchor, prior=0)
    assert table.ratings[anchor] == 0
    np.testing.assert_allclose(table.ratings[free], best.x, atol=0.01)
    hessian = optimize.approx_fprime(best.x, lambda x: optimize.approx_fprime(x, loss, 0.1), 0.1)
    np.testing.assert_allclose(
        table.covariance[np.ix_(free, free)], np.linalg.inv(hessian), rtol=0.02
    )


def test_differences_do_not_depend_on_the_anchor():
    wins = _simulate(np.random.default_rng(1), np.array([0, 100, 200, -50.0]), 60)
    tables = [elo.bayes_elo(wins, anchor=a) for a in range(4)]
    for table in tables[1:]:
        assert table.difference(1, 3) == pytest.approx(tables[0].difference(1, 3))
    assert tables[2].difference(1, 2) == pytest.approx(
        (tables[2].ratings[1], tables[2].half_widths[1])
    )
    assert tables[0].difference(1, 1) == (0, 0)


def test_intervals_cover_at_their_rate():
    # 300 tournaments; the exact binomial bounds are missed by a correct method once in 10,000.
    rng = np.random.default_rng(2)
    truth = np.array([0, 80, -120, 200.0])
    to_anchor = between = 0
    for _ in range(300):
        table = elo.bayes_elo(_simulate(rng, truth, 80))
        to_anchor += abs(table.ratings[3] - truth[3]) <= table.half_widths[3]
        difference, half_width = table.difference(1, 2)
        between += abs(difference - 200) <= half_width
    low, high = stats.binom.ppf([5e-5, 1 - 5e-5], 300, 0.95)
    assert low <= to_anchor <= high
    assert low <= between <= high


def test_a_clean_sweep_is_finite():
    up, down = elo.elo_difference(98, 98), elo.elo_difference(0, 98)
    assert up.elo == pytest.approx(-down.elo) == pytest.approx(400 * np.log10(99))
    assert up.half_width == pytest.approx(down.half_width)
    assert up.elo - up.half_width > 300
    assert elo.elo_difference(49, 98).elo == pytest.approx(0, abs=1e-9)
    assert elo.elo_difference(1e6, 1e6, prior=1e-6).elo == pytest.approx(400 * np.log10(2e12))


@pytest.mark.parametrize(
    ("wins", "message"),
    [
        (np.zeros((2, 3)), "square"),
        (np.zeros(4), "square"),
        (np.zeros((1, 1)), "at least 2"),
        ([[0, -1], [1, 0]], "non-negative"),
        ([[0, np.nan], [1, 0]], "finite"),
        ([[1, 1], [1, 0]], "diagonal"),
    ],
)
def test_bad_tables_raise(wins, message):
    with pytest.raises(ValueError, match=message):
        elo.bayes_elo(wins)


def test_undetermined_ratings_raise_and_name_the_groups():
    islands = np.zeros((4, 4))
    islands[0, 2] = islands[2, 0] = islands[1, 3] = islands[3, 1] = 5
    with pytest.raises(ValueError, match=r"\[\[0, 2\], \[1, 3\]\]"):
        elo.bayes_elo(islands)  # the prior only reaches pairs that played
    sweep = np.array([[0, 3, 4], [2, 0, 5], [0, 0, 0.0]])
    with pytest.raises(ValueError, match=r"\[\[0, 1\], \[2\]\].*prior > 0"):
        elo.bayes_elo(sweep, prior=0)
    assert np.isfinite(elo.bayes_elo(sweep).ratings).all()


def test_bad_arguments_raise():
    for bad in ({"anchor": 2}, {"anchor": -1}, {"prior": -1}, {"prior": np.inf}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            elo.bayes_elo([[0, 1], [1, 0]], **bad)
    for wins, games in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="wins must be"):
            elo.elo_difference(wins, games)
