"""Truncations by themselves, and the lengths of simulations in whole searches."""

import functools

import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from bandits import check_frequencies, keys

import jaxpgs
from jaxpgs.search.parts.truncation import Truncation
from jaxpgs.search.walk import extend_code

both_modes = pytest.mark.parametrize("mode", ["rollouts", "tree"])


def crafted(depth, *, visits=0, log_prob=0.0, simulation=None):
    """A Path `[1, K]` from lists or numbers."""
    fields = np.broadcast_arrays(np.atleast_1d(depth), visits, log_prob)
    depth, visits, log_prob = (jnp.asarray(x)[None] for x in fields)
    simulation = np.arange(depth.size) if simulation is None else simulation
    return toy.start_path(depth)._replace(
        depth=depth.astype(jnp.int32),
        log_prob=log_prob.astype(jnp.float32),
        visits=visits.astype(jnp.int32),
        simulation=jnp.broadcast_to(jnp.asarray(simulation), depth.shape),
    )


def lengths(truncation, longest, **fields):
    """The depth at which each of K simulations stops first."""
    size = len(np.atleast_1d(next(iter(fields.values()))))
    stops = [
        np.asarray(truncation.stop(crafted(np.full(size, d), **fields)))[0]
        for d in range(1, longest + 1)
    ]
    stops.append(np.ones(size, bool))
    return (np.argmax(stops, axis=0) + 1).tolist()


def test_fixed_stops_at_its_depth():
    truncation = jaxpgs.truncation.fixed(3)
    assert truncation.max_depth(100) == 3
    assert truncation.stop(crafted([1, 2, 3, 4])).tolist() == [[False, False, True, True]]


def test_growing_adds_one_every_so_often():
    found = lengths(jaxpgs.truncation.growing(2, every=3), 6, simulation=np.arange(8))
    assert found == [2, 2, 2, 3, 3, 3, 4, 4]


def test_growing_begins_with_one_and_adds_one_in_a_hundred_by_default():
    found = lengths(jaxpgs.truncation.growing(), 4, simulation=[0, 99, 100, 199, 200])
    assert found == [1, 1, 2, 2, 3]


def test_by_visits_is_the_thesis_example():
    # b = 3: "the first three trajectories ... a length of one, ... up to the ninth ... of two".
    found = lengths(jaxpgs.truncation.by_visits(3), 5, visits=np.arange(30))
    assert found == [1] * 3 + [2] * 6 + [3] * 18 + [4] * 3


@pytest.mark.first_case
@pytest.mark.parametrize("branching", [2, 3, 6, 10])
def test_by_visits_is_exact_at_powers(branching):
    powers = [branching**i for i in range(1, 20) if branching**i <= 2**20]
    visits = np.array([n for p in powers for n in (p - 1, p, p + 1)])
    # floor(ln N / ln b) + 1 in integers.
    expected = [next(d for d in range(1, 40) if branching**d > n) for n in visits.tolist()]
    assert lengths(jaxpgs.truncation.by_visits(branching), 25, visits=visits) == expected


def test_by_probability_stops_below_the_threshold():
    log_prob = np.log([0.9, 0.51, 0.5, 0.49, 1e-30])
    stop = jaxpgs.truncation.by_probability(0.5).stop(crafted(1, log_prob=np.float32(log_prob)))
    assert stop.tolist() == [[False, False, False, True, True]]


@pytest.mark.slow
def test_until_new_is_a_set_of_sequences():
    # The table is so large that 3 * 96 sequences share no flag.
    _, found, exact, *_ = toy.until_new("rollouts", jaxpgs.truncation.until_new(2**22))
    np.testing.assert_array_equal(found, exact)
    assert set(np.unique(exact)) >= {1, 2, 3, 4, 5, 6}
    # The first update meets an empty table, and its 8 simulations have 2 first actions.
    assert (found[0] == 1).all()


@pytest.mark.slow
def test_steps_of_until_new_are_counted():
    walks, found, *_ = toy.until_new("rollouts", jaxpgs.truncation.until_new(2**22))
    np.testing.assert_array_equal(walks.num_evaluations, found.sum(-1))
    np.testing.assert_array_equal(walks.num_calls[:, 0], found.max((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("table_size", games.mostly_slow([1, 16, 32, 64, 256], 1, 64))
def test_small_table_only_lengthens(table_size):
    _, found, exact, *_ = toy.until_new("rollouts", jaxpgs.truncation.until_new(table_size))
    assert (found >= exact).all()
    assert (found > exact).any()
    assert (found[0] == 1).all()
    if table_size == 1:
        # One flag: after the first update every sequence counts as known.
        assert (found[1:] == 7).all()


@pytest.mark.slow
def test_default_table_is_wide_enough():
    # Three roots of 96 sequences in 2**15 flags: 3 * 96**2 / 2 / 2**15 = 0.4 collisions expected.
    _, found, exact, *_ = toy.until_new("rollouts", jaxpgs.truncation.until_new())
    assert (found != exact).sum() <= 5


@functools.cache
def codes_and_sequences():
    """All sequences of up to three of 27 actions, then longer ones, and the code of each.

    They go on by one of 361 actions, and then by zeros alone: a code must depend on the length.
    Returns sets of codes and of sequences, and the codes of the longest ones.
    """
    rows = np.arange(27**3)
    columns = [rows // 729, rows // 27 % 27, rows % 27, rows % 361] + [np.zeros_like(rows)] * 4
    code, codes, sequences = jnp.zeros(rows.size, jnp.uint32), set(), set()
    for length, column in enumerate(columns, start=1):
        code = extend_code(code, jnp.asarray(column, jnp.int32))
        codes.update(np.asarray(code).tolist())
        sequences.update(zip(*columns[:length], strict=True))
    return codes, sequences, np.asarray(code)


def test_codes_of_sequences_differ():
    codes, sequences, _ = codes_and_sequences()
    # Random codes of these 1.2e5 sequences would have 1.6 equal pairs on average, and more than 15
    # once in 1e10 tries.
    assert len(sequences) > 118000
    assert len(sequences) - len(codes) <= 15


def test_the_low_bits_of_codes_which_the_table_reads_are_even():
    _, _, longest = codes_and_sequences()
    check_frequencies(np.bincount(longest % 64, minlength=64), np.full(64, 1 / 64))


# --- whole searches -------------------------------------------------------------------------------

N, K, T, BASE = 16, 4, 4, 32
RULES = {
    "fixed": jaxpgs.truncation.fixed(2),
    "growing": jaxpgs.truncation.growing(1, every=6),
    "by_visits": jaxpgs.truncation.by_visits(3),
    "by_probability": jaxpgs.truncation.by_probability(0.3),
    "until_new": jaxpgs.truncation.until_new(),
    "never": jaxpgs.truncation.fixed(99),
}


@functools.partial(jax.jit, static_argnums=4, compiler_options=games.QUICK)
def searched(params, rng_key, root, rule, mode):
    """A Monte Carlo search whose truncation is chosen at run time, to compile them all at once."""

    def stop(path):
        stops = [jnp.broadcast_to(r.stop(path), path.depth.shape) for r in RULES.values()]
        return jnp.stack(stops)[rule]

    return jaxpgs.mcs_policy(
        params,
        rng_key,
        root,
        toy.recurrent_fn,
        N,
        max_depth=T,
        simulations_per_update=K,
        truncation=Truncation(stop, table_size=2**15),
        root_selection=jaxpgs.selection.puct(2.0),
        backup=jaxpgs.backup.last_value(),
        mode=mode,
    )


def depth_counts(mode, rule, logits, seed=0):
    """For each root and first action, how many simulations had length 1, 2, 3, 4.

    A state at depth d is worth 32^(d-1), so the sum of returns holds the counts as digits.
    """
    depth = np.array([len(toy.actions_to(3, node)) for node in range(121)])
    params = toy.tree(
        3,
        4,
        value=np.where(depth > 0, float(BASE) ** (depth - 1), 0),
        reward=np.full((121, 3), 7.0),  # left out by the paper's backup
    )
    root = toy.root(params, [0] * 3, logits=np.tile(logits, (3, 1)))
    number = list(RULES).index(rule)
    state = searched(params, keys(seed, 3), root, number, mode).search_state
    qvalues = np.where(state.visits > 0, state.qvalues, 0).astype(np.float64)
    total = np.rint(qvalues * np.asarray(state.visits)).astype(int)
    counts = np.stack([total // BASE**d % BASE for d in range(T)], axis=-1)
    np.testing.assert_array_equal(counts.sum(-1), state.visits)
    np.testing.assert_array_equal(np.sum(state.visits, axis=-1), N)
    steps = (counts * np.arange(1, T + 1)).sum((1, 2))
    np.testing.assert_allclose(state.depth, steps / N, rtol=1e-6)
    evaluations = np.asarray(state.num_evaluations)
    assert (evaluations == steps).all() if mode == "rollouts" else (evaluations < steps).all()
    return counts


@pytest.mark.first_case
@both_modes
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fixed", [0, N, 0, 0]),
        ("never", [0, 0, 0, N]),  # stops at max_depth
        ("growing", [6, 6, 4, 0]),  # simulations 0-5, 6-11, 12-15, across the updates of 4
    ],
)
def test_search_with_known_depths(mode, rule, expected):
    assert (depth_counts(mode, rule, [0.0, 0, 0]).sum(1) == expected).all()


@both_modes
def test_search_by_visits(mode):
    counts = depth_counts(mode, "by_visits", [2.0, 0, 0])
    for by_action in counts.reshape(-1, T):
        n = by_action.sum()
        expected = [min(n, 3), np.clip(n - 3, 0, 6), np.clip(n - 9, 0, 18), 0]
        assert by_action.tolist() == expected
    assert (counts[..., 1] > 0).any()


@both_modes
def test_search_by_probability_stops_where_the_product_is_small(mode):
    # 0.6 * 1/3 falls under 0.3 at the second action; 0.3 does at the second, 0.1 at the first.
    counts = depth_counts(mode, "by_probability", np.log([0.6, 0.31, 0.09]))
    visits = counts.sum(-1)
    assert (visits > 0).all()
    np.testing.assert_array_equal(counts[:, 0, 1], visits[:, 0])
    np.testing.assert_array_equal(counts[:, 1, 1], visits[:, 1])
    np.testing.assert_array_equal(counts[:, 2, 0], visits[:, 2])


@both_modes
def test_search_by_probability_goes_on_after_a_certain_action(mode):
    # The third action goes under: 1/3 is not below 0.3, 1/9 is.
    counts = depth_counts(mode, "by_probability", [50.0, 0, 0])
    visits = counts.sum(-1)
    np.testing.assert_array_equal(counts[:, 0, 2], visits[:, 0])


@both_modes
def test_search_until_new_ends_each_sequence_in_one_update(mode):
    shared = 0
    for seed in range(3):
        counts = depth_counts(mode, "until_new", [1.0, 0, 0], seed)
        for first, second, third, fourth in counts.reshape(-1, T):
            # A sequence ends up to K simulations, all of one update.
            n = first + second + third + fourth
            assert min(n, 1) <= first <= K
            assert second <= 3 * K and third <= 9 * K
            shared += first > 1
    assert shared
