"""Selections at the root against their formulas in plain NumPy, and Dirichlet noise."""

import functools
import math

import games
import jax
import numpy as np
import pytest
import toy
from bandits import bandit, in_turn, keys

import jaxpgs


@functools.cache
def random_bandits(count=200, actions=6):
    """Nodes of random numbers: some without visits, some with illegal actions."""
    rng = np.random.default_rng(7)
    visits = rng.integers(0, 8, (count, actions)) * (rng.random((count, actions)) < 0.6)
    visits[:20] = 0
    valid = rng.random((count, actions)) < 0.7
    valid[np.arange(count), rng.integers(0, actions, count)] = True
    visits = np.where(valid, visits, 0)
    return bandit(
        np.where(valid, rng.normal(0, 1.5, (count, actions)), np.finfo(np.float32).min),
        visits,
        visits * rng.uniform(-1, 1, (count, actions)),
        rng.uniform(-1, 1, count),
        valid,
    )


def puct_reference(c, n, w, flying, prior, value, virtual_loss, unvisited):
    """PUCT's scores `[A]`; n visits, w sums of returns, and the visits that are in flight."""
    default = value if unvisited == "value" else 0.0
    with_flying = n + flying
    if virtual_loss is None:
        q = [w[a] / n[a] if n[a] else default for a in range(len(n))]
    else:
        w = w - virtual_loss * flying
        q = [w[a] / with_flying[a] if with_flying[a] else default for a in range(len(n))]
    total = max(with_flying.sum(), 1)
    return np.array(q) + c * prior * math.sqrt(total) / (1 + with_flying)


def ucb1_reference(c, n, w, flying, prior, value, virtual_loss, unvisited):
    """UCB1's scores `[A]`; what was not visited comes first, the likeliest before others."""
    del value, unvisited
    total = n + flying
    q = w / np.maximum(n, 1) if virtual_loss is None else (w - virtual_loss * flying) / total
    bonus = c * np.sqrt(np.log(max(total.sum(), 1)) / total)
    return np.where(total > 0, q + bonus, 1e9 + prior)


def check_selection(select, reference, root, num_walks, **knobs):
    """Each action must be the reference's best, up to rounding, given the ones before it."""
    actions = np.asarray(select)
    assert actions.shape == (root.visits.shape[0], num_walks)
    prior = np.asarray(jax.nn.softmax(root.prior_logits), np.float64)
    visits, value, value_sum, valid = jax.device_get(
        (root.visits, root.value, root.value_sum, root.valid)
    )
    for b in range(len(actions)):
        flying = np.zeros(visits.shape[1], int)
        for action in actions[b]:
            with np.errstate(divide="ignore", invalid="ignore"):
                scores = reference(
                    n=visits[b],
                    w=value_sum[b].astype(np.float64),
                    flying=flying,
                    prior=prior[b],
                    value=float(value[b]),
                    **knobs,
                )
            assert valid[b, action]
            assert scores[action] >= scores[valid[b]].max() - 2e-6
            flying[action] += 1


# (c, virtual loss, Q-value of what was not visited); the first one is the paper's.
PUCT_SETTINGS = [
    (5.0, 1, "zero"),
    (1.0, 1, "value"),
    (1.0, 0.3, "zero"),
    (1.0, 0.3, "value"),
    (2.0, None, "zero"),
    (0.5, None, "value"),
]


@functools.cache
def chosen_by_puct(num_walks):
    """The actions of each of the settings, and of the default, compiled together."""

    @jax.jit
    def select(root):
        rules = [
            jaxpgs.selection.puct(c, virtual_loss=loss, unvisited=q) for c, loss, q in PUCT_SETTINGS
        ]
        return [in_turn(rule, root, num_walks) for rule in (*rules, jaxpgs.selection.puct())]

    return jax.device_get(select(random_bandits()))


@pytest.mark.parametrize("number", range(len(PUCT_SETTINGS)))
@pytest.mark.parametrize("num_walks", [1, 4, 16])
def test_puct_is_the_formula(num_walks, number):
    c, virtual_loss, unvisited = PUCT_SETTINGS[number]
    knobs = {"c": c, "virtual_loss": virtual_loss, "unvisited": unvisited}
    actions = chosen_by_puct(num_walks)[number]
    check_selection(actions, puct_reference, random_bandits(), num_walks, **knobs)


@pytest.mark.parametrize("number", range(1, len(PUCT_SETTINGS)))
@pytest.mark.parametrize("num_walks", [1, 4, 16])
def test_the_knobs_of_puct_matter(num_walks, number):
    chosen = chosen_by_puct(num_walks)
    assert (chosen[number] != chosen[0]).any()


@pytest.mark.parametrize("num_walks", [1, 4, 16])
def test_puct_has_the_papers_settings_by_default(num_walks):
    *chosen, default = chosen_by_puct(num_walks)
    np.testing.assert_array_equal(default, chosen[0])


@pytest.mark.parametrize("virtual_loss", [1.0, 0.3, None])
def test_ucb1_is_the_formula(virtual_loss):
    root = random_bandits()
    actions = in_turn(jaxpgs.selection.ucb1(0.7, virtual_loss=virtual_loss), root, 8)
    check_selection(
        actions, ucb1_reference, root, 8, c=0.7, virtual_loss=virtual_loss, unvisited="zero"
    )


def test_ucb1_tries_each_action_once_however_great_the_values():
    visits, legal = np.array([[1, 0, 0]]), np.ones((1, 3), bool)
    root = bandit(np.log([[0.8, 0.05, 0.15]]), visits, 1e9 * visits, np.array([1e9]), legal)
    np.testing.assert_array_equal(in_turn(jaxpgs.selection.ucb1(0.7), root, 2), [[2, 1]])


def test_ucb1_tries_actions_in_the_order_of_the_smallest_priors():
    root = bandit([[0, -18, -17, -200, -100]], [[1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(in_turn(jaxpgs.selection.ucb1(), root, 4), [[2, 1, 4, 3]])


@pytest.mark.parametrize(
    ("virtual_loss", "expected"),
    [
        # After one pending -1 the first has (1/2 - 1) / 2 = -1/4, so the second is next, which then
        # has (1/4 - 1) / 2 = -3/8, and the first follows again.
        (1.0, [0, 1, 0]),
        # Without a loss nothing changes.
        (None, [0, 0, 0]),
        # Even a tenth is enough: (1/2 - 1/10) / 2 = 1/5 < 1/4, and (1/4 - 1/10) / 2 = 3/40.
        (0.1, [0, 1, 0]),
        # A gain: (1/2 + 1/10) / 2 = 3/10 is still the best, (1/2 + 2/10) / 3 = 7/30 no more.
        (-0.1, [0, 0, 1]),
    ],
)
def test_virtual_loss_spreads_simulations(virtual_loss, expected):
    # c = 0, and one visit each, of values 1/2 and 1/4.
    root = bandit([[0.0, 0.0]], [[1, 1]], [[0.5, 0.25]])
    rule = jaxpgs.selection.puct(0.0, virtual_loss=virtual_loss)
    assert in_turn(rule, root, 3).tolist() == [expected]


# --- Dirichlet noise ------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=4, compiler_options=games.QUICK)
def search_with_noise(params, rng_key, root, invalid_actions, mode, dirichlet_fraction):
    return jaxpgs.mcs_policy(
        params, rng_key, root, toy.recurrent_fn, 16, invalid_actions, 4, simulations_per_update=4,
        truncation=jaxpgs.truncation.fixed(2), root_selection=jaxpgs.selection.puct(2.0),
        backup=jaxpgs.backup.last_value(), dirichlet_fraction=dirichlet_fraction, mode=mode,
    )  # fmt: skip


INVALID = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])


def visits_with_noise(seed, fraction):
    """The visits `[3, 3]` of a game that pays nothing, in which noise alone can matter."""
    params = toy.tree(3, 4)
    root = toy.root(params, [0] * 3)
    output = search_with_noise(params, keys(seed, 3), root, INVALID, "rollouts", fraction)
    np.testing.assert_allclose(output.action_weights.sum(-1), 1, rtol=1e-6)
    return np.asarray(output.search_state.visits)


def test_dirichlet_noise_goes_by_the_key():
    found = [visits_with_noise(seed, 0.25) for seed in range(8)]
    np.testing.assert_array_equal(found[0], visits_with_noise(0, 0.25))
    assert any((other != found[0]).any() for other in found[1:])


def test_dirichlet_noise_leaves_illegal_actions_alone():
    found = [visits_with_noise(seed, 0.25) for seed in range(8)]
    assert (np.stack(found) * INVALID == 0).all()


def test_without_noise_the_key_has_no_part():
    np.testing.assert_array_equal(visits_with_noise(0, 0.0), visits_with_noise(1, 0.0))


def test_noise_refuses_a_selection_in_rounds():
    in_rounds = jaxpgs.gumbel.gumbel_root(in_rounds=True)
    with pytest.raises(ValueError, match="got one in rounds"):
        jaxpgs.selection.with_dirichlet_noise(in_rounds)


COUNT, ALPHA, FRACTION = 5000, 0.5, 0.25
LOGITS = np.array([1.0, 0.0, 5.0, 0.0])  # the third action is illegal
LEGAL = [0, 1, 3]


@functools.cache
def noisy_priors():
    """`[5000, 4]` priors of the same node, each with noise of its own."""
    logits = np.where(LOGITS == 5.0, np.finfo(np.float32).min, LOGITS)
    valid = np.tile(LOGITS != 5.0, (COUNT, 1))
    stats = bandit(np.tile(logits, (COUNT, 1)), np.zeros((COUNT, 4)), valid=valid)
    selection = jaxpgs.selection.with_dirichlet_noise(jaxpgs.selection.puct(), FRACTION, ALPHA)
    return np.exp(selection.init(keys(13, COUNT), stats, 1)[0])


def noise_alone():
    """`[5000, 3]` the noise in the priors of the legal actions."""
    own = np.exp(LOGITS[LEGAL]) / np.exp(LOGITS[LEGAL]).sum()
    return (noisy_priors()[:, LEGAL] - (1 - FRACTION) * own) / FRACTION


def test_priors_with_noise_are_distributions_of_legal_actions():
    np.testing.assert_allclose(noisy_priors().sum(-1), 1, rtol=1e-5)
    assert (noisy_priors()[:, 2] == 0).all()


# A symmetric Dirichlet over 3 has the mean 1/3 and the variance (1/3)(2/3) / (3 alpha + 1). Five
# standard errors, so about one seed in a million fails.
VARIANCE = 2 / 9 / (3 * ALPHA + 1)


def test_dirichlet_noise_has_its_mean():
    assert np.abs(noise_alone().mean(0) - 1 / 3).max() < 5 * np.sqrt(VARIANCE / COUNT)


def test_dirichlet_noise_has_its_variance():
    noise = noise_alone()
    fourth = ((noise - 1 / 3) ** 4).mean(0)
    error = np.sqrt((fourth - VARIANCE**2) / COUNT)
    assert (np.abs(noise.var(0) - VARIANCE) < 5 * error).all()
