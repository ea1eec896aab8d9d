"""NRPA: its step by hand, its playouts against the rules in NumPy, its nesting, its strength."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import mostly_slow

from benchmarks import runs
from benchmarks.studies.seify2020 import samegame as bench
from benchmarks.studies.seify2020.samegame_searches import SEARCHES, Best, nrpa_on_devices
from jaxpgs import puzzles
from jaxpgs.envs import SameGame, bitboard
from jaxpgs.envs.played_games import PlayedGames
from jaxpgs.envs.samegame import rules
from jaxpgs.envs.samegame.sequences import by_pairs, code_features, play_sequences
from jaxpgs.puzzles import nrpa_loop, nrpa_samegame

SMALL = SameGame(height=6, width=5, num_colors=3)


def board_of(*rows):
    return np.array([[-1 if cell == "." else int(cell) for cell in row] for row in rows])


def stack(states):
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


@functools.partial(jax.jit, static_argnums=0)
def play(env, keys, states, logits):
    return play_sequences(env, keys, states, logits)


def games_of(legal, chosen, bits):
    """Makes games of B lanes from sets of legal codes `[T][B]` and chosen codes `[T][B]`."""
    words = np.zeros((len(legal), 2, len(legal[0])), np.uint8)
    for t, lanes in enumerate(legal):
        for lane, codes in enumerate(lanes):
            for code in codes:
                words[t, code % 2, lane] |= 1 << (bits - 1 - code // 2)
    chosen = jnp.array(chosen, jnp.int32)
    length = jnp.sum(chosen >= 0, axis=0, dtype=jnp.int32)
    return PlayedGames(jnp.zeros(len(legal[0])), length, jnp.array(words), chosen, chosen)


GAMES = games_of([[{0, 1, 4}, {2, 3}], [{1, 5}, set()]], [[4, 3], [1, -1]], bits=3)


def test_a_step_by_hand():
    # Lane 0: three codes of weights 1, 2, 1, the last is chosen; then 2 and 4, the first is chosen.
    # Lane 1: two codes of equal weights.
    log = np.log([[1, 2, 1, 1, 1, 4], [5, 5, 3, 3, 5, 5]]).T.astype(np.float32)
    moved = nrpa_loop.adapt(jnp.array(log), GAMES, 0.5) - log
    expected = 0.5 * np.array(
        [
            [-1 / 4, -2 / 4 + 1 - 2 / 6, 0, 0, 1 - 1 / 4, -4 / 6],
            [0, 0, -1 / 2, 1 / 2, 0, 0],
        ]
    )
    np.testing.assert_allclose(moved.T, expected, atol=1e-6)


@pytest.mark.parametrize("sharing", [0.0, 0.5])
@pytest.mark.lenient
def test_the_step_is_the_gradient_of_the_log_likelihood(sharing):
    values = jax.random.normal(jax.random.key(0), (6, 2))
    features = jax.random.bernoulli(jax.random.key(1), 0.5, (3, 6, 2))
    legal = np.zeros((2, 6, 2), bool)
    legal[0, [0, 1, 4], 0] = legal[1, [1, 5], 0] = legal[0, [2, 3], 1] = True

    def logits_of(table, weights):
        return table + jnp.einsum("fb,fcb->cb", weights, features)

    def log_likelihood(*parameters):
        logits = logits_of(*parameters)
        masked = jnp.where(legal, logits[None], -jnp.inf)
        log_prob = logits[None] - jax.nn.logsumexp(masked, axis=1, keepdims=True)
        return log_prob[0, 4, 0] + log_prob[1, 1, 0] + log_prob[0, 3, 1]

    parameters = values, jnp.array([[0.3, 0.1], [-0.2, 0.0], [0.5, 1.0]])
    of_table, of_weights = jax.jit(jax.grad(log_likelihood, argnums=(0, 1)))(*parameters)
    adapt = jax.jit(lambda logits: nrpa_loop.adapt(logits, GAMES, 0.3, features, sharing))
    moved = adapt(logits_of(*parameters))
    changed = values + 0.3 * of_table, parameters[1] + 0.3 * sharing * of_weights
    np.testing.assert_allclose(moved, logits_of(*changed), atol=1e-6)


def test_codes_have_the_colors_of_their_blocks():
    board = board_of("0012", "1122", "0012")
    features = code_features(SameGame(3, 4, 3), stack([SameGame(3, 4, 3).from_board(board)]))
    of_color = board.ravel() == np.arange(3)[:, None]
    np.testing.assert_array_equal(features[..., 0], of_color)
    env, state = SameGame(3, 4, 3), stack([SameGame(3, 4, 3).from_board(board)])
    blocks, in_pair = block_of(env, np.arange(24), 2)
    features = np.asarray(code_features(env, state, pairs=True))[..., 0]
    of_color = of_color[:, blocks]
    expected = np.concatenate([of_color, of_color & in_pair, of_color & ~in_pair])
    np.testing.assert_array_equal(features, expected)
    np.testing.assert_array_equal(by_pairs(env, jnp.arange(12)), blocks)


def test_logits_stay_bounded():
    logits = jnp.full((6, 2), nrpa_loop.MAX_LOGIT)
    moved = nrpa_loop.adapt(logits, GAMES, 100.0)
    assert jnp.max(jnp.abs(moved)) == nrpa_loop.MAX_LOGIT


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_expand_deposits_bits(dtype):
    bits = 8 * np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)
    words, masks = rng.integers(0, 2**bits, (2, 200), dtype=np.uint64).astype(dtype)
    masks[0], masks[1] = 0, np.iinfo(dtype).max

    def deposit(word, mask):
        places = [k for k in range(bits) if int(mask) >> k & 1]
        return sum((int(word) >> i & 1) << place for i, place in enumerate(places))

    expected = [deposit(word, mask) for word, mask in zip(words, masks, strict=True)]
    np.testing.assert_array_equal(bitboard.expand(jnp.array(words), jnp.array(masks)), expected)


def blocks_played(board, actions):
    """Replays with every block named by its first cell; returns the names of the cells played."""
    names = np.arange(board.size).reshape(board.shape)
    codes, legal = [], []
    for action in actions:
        groups = rules.groups(board)
        group = next(g for g in groups if action in g)
        codes.append(int(names.flat[action]))
        legal.append([{int(names.flat[cell]) for cell in g} for g in groups])
        hole = board.copy()
        hole.flat[group] = -1
        columns_left = [
            [(hole[r, c], names[r, c]) for r in range(board.shape[0]) if hole[r, c] >= 0]
            for c in range(board.shape[1])
        ]
        board, names = np.full_like(board, -1), np.full_like(names, -1)
        for c, blocks in enumerate(filter(None, columns_left)):
            for i, (color, name) in enumerate(reversed(blocks)):
                board[-1 - i, c], names[-1 - i, c] = color, name
    return codes, legal


def block_of(env, codes, tables):
    """Returns the blocks of codes, and whether they are codes of pairs."""
    rows, words = np.divmod(codes, tables * env.width)
    return rows * env.width + words % env.width, words < (tables - 1) * env.width


BOARDS = [
    (SMALL, 40, 1), (SMALL, 40, 2), (SameGame(height=11, width=12, num_colors=4), 8, 2),
    (SameGame(height=1, width=12, num_colors=2, penalty="none"), 20, 1),
]  # fmt: skip


@pytest.mark.first_case
@pytest.mark.parametrize(("env", "games", "tables"), mostly_slow(BOARDS, *BOARDS[:2]))
def test_games_are_those_of_the_rules(env, games, tables):
    keys = jax.random.split(jax.random.key(1), games)
    states = jax.jit(jax.vmap(env.init))(keys)
    boards = np.asarray(jax.jit(jax.vmap(env.board))(states))
    logits = 3 * jax.random.normal(jax.random.key(2), (tables * env.num_actions, games))
    found = jax.tree.map(np.asarray, play(env, keys, states, logits))
    for lane, board in enumerate(boards):
        length = found.length[lane]
        actions = found.action[:length, lane].tolist()
        replay = rules.replay(board, actions, penalty=env.penalty)
        assert (replay.over or not actions) and replay.score == found.score[lane]
        assert (found.action[length:, lane] == -1).all()
        assert (found.chosen[length:, lane] == -1).all() and not found.legal[length:, :, lane].any()
        codes, groups = blocks_played(board, actions)
        chosen, is_pair = block_of(env, found.chosen[:length, lane], tables)
        assert codes == chosen.tolist()
        for t in range(length):
            rows, words = np.nonzero(
                found.legal[t, None, :, lane] >> np.arange(env.height)[::-1, None] & 1
            )
            blocks, in_pair = block_of(env, rows * tables * env.width + words, tables)
            legal = set(blocks.tolist())
            # Every group is there, nothing else is.
            assert all(legal & group for group in groups[t])
            assert legal <= set().union(*groups[t])
            if tables == 2:
                sizes = {block: len(group) for group in groups[t] for block in group}
                assert [sizes[block] == 2 for block in blocks.tolist()] == in_pair.tolist()
                assert (sizes[codes[t]] == 2) == is_pair[t]


@pytest.mark.slow
def test_moves_are_drawn_from_the_softmax():
    env, games = SameGame(height=3, width=4, num_colors=3), 20_000
    board = board_of("0012", "1122", "0012")
    states = stack([env.from_board(board)])
    states = jax.tree.map(lambda x: jnp.repeat(x, games, axis=0), states)
    logits = jax.random.normal(jax.random.key(3), (12, 1))
    found = play(
        env, jax.random.split(jax.random.key(4), games), states, jnp.repeat(logits, games, axis=1)
    )
    rows, cols = np.nonzero(np.asarray(found.legal)[0, None, :, 0] >> np.arange(3)[::-1, None] & 1)
    legal = rows * 4 + cols
    probabilities = np.asarray(jax.nn.softmax(logits[legal, 0]))
    counts = np.bincount(np.asarray(found.chosen)[0], minlength=12)
    assert counts.sum() == counts[legal].sum() == games
    chi2 = ((counts[legal] - games * probabilities) ** 2 / (games * probabilities)).sum()
    # Chi-squared with k degrees of freedom exceeds k + 2 sqrt(7 k) + 14 with probability < 1e-3
    # (Laurent and Massart 2000).
    freedom = len(legal) - 1
    assert freedom >= 3 and chi2 < freedom + 2 * (7 * freedom) ** 0.5 + 14


def small_search(states, lanes, **knobs):
    states = jax.tree.map(lambda x: jnp.repeat(x, lanes, axis=0), states)
    return nrpa_loop.nrpa_search(
        lambda keys, logits: play_sequences(SMALL, keys, states, logits), **knobs
    )


KNOBS = {"iterations": (4, 3, 2), "parallel": (3, 2, 1)}


@jax.jit
def small_init(states):
    return small_search(states, 6, **KNOBS).init(jnp.zeros((30, len(states.terminated))))


@jax.jit
def small_step(states, keys, state):
    return small_search(states, 6, **KNOBS).step(keys, state)


@pytest.fixture(scope="module")
def three_boards():
    return jax.jit(jax.vmap(SMALL.init))(jax.random.split(jax.random.key(5), 3))


def run_small(states, keys, steps):
    state = small_init(states)
    seen = [state]
    for _ in range(steps):
        seen.append(small_step(states, keys, seen[-1]))
    return seen


@pytest.mark.parametrize("parallel", [(2, 2, 1), (3, 2, 1), (2, 3)])
def test_a_parent_learns_from_the_best_of_all_its_children(parallel):
    # Two boards; the game of a lane has its own score and its own code.
    batch = 2 * int(np.prod(parallel))
    scores = np.random.default_rng(0).permutation(batch)

    def playout(keys, logits):
        lanes = jnp.arange(batch, dtype=jnp.int32)
        legal = jnp.full((1, 1, batch), (1 << batch) - 1, jnp.uint16)
        length = jnp.ones(batch, jnp.int32)
        return PlayedGames(jnp.float32(scores), length, legal, lanes[None], lanes[None])

    # Runs of the second level take two steps, so after one they are not over, and after two the
    # third level knows them.
    iterations = (1, 2, 9)[: len(parallel)]
    search = nrpa_loop.nrpa_search(playout, iterations=iterations, parallel=parallel)
    step = jax.jit(functools.partial(search.step, jax.random.split(jax.random.key(0), 2)))
    state = search.init(jnp.zeros((batch, 2)))
    for level in range(len(parallel) - 1):
        state = step(state)
        found = state.levels[level]
        groups = scores.reshape(-1, int(np.prod(parallel[: level + 1])))
        expected = np.broadcast_to(groups.max(axis=1, keepdims=True), groups.shape).ravel()
        np.testing.assert_array_equal(found.best.score, expected)
        # The table prefers the code of this game to all others.
        np.testing.assert_array_equal(scores[np.argmax(found.logits, axis=0)], expected)
    finished = search.finish(state).score
    np.testing.assert_array_equal(finished, scores.reshape(2, -1).max(axis=1))


@pytest.mark.slow
def test_nesting_never_loses_the_best(three_boards):
    keys = jax.random.split(jax.random.key(6), 3)
    seen = [jax.device_get(state) for state in run_small(three_boards, keys, 8)]
    for before, after in itertools.pairwise(seen):
        assert (after.best.score >= before.best.score).all()
        for level in after.levels:
            # What a level has seen is shared by its group, of 3 lanes and then of all 6.
            top = after.best.score.reshape(3, 6).max(axis=1, keepdims=True)
            assert (level.best.score.reshape(3, 6) <= top).all()
    counts = [tuple(int(level.iterations) for level in state.levels) for state in seen]
    # The second level has 3 iterations; the third 2, after which it starts again.
    assert counts == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 0), (1, 0), (2, 0)]
    assert not seen[6].levels[0].logits.any() and seen[5].levels[0].logits.any()
    np.testing.assert_array_equal(seen[3].levels[0].logits, seen[3].levels[1].logits)
    best = jax.jit(small_search(three_boards, 6, **KNOBS).finish)(seen[-1])
    for lane in range(3):
        actions = best.action[: int(best.length[lane]), lane].tolist()
        board = np.asarray(SMALL.board(jax.tree.map(lambda x, i=lane: x[i], three_boards)))
        assert rules.replay(board, actions).score == best.score[lane]


@pytest.mark.slow
def test_boards_do_not_touch_each_other_and_nothing_is_traced_twice(three_boards):
    keys = jax.random.split(jax.random.key(7), 3)
    together = run_small(three_boards, keys, 4)[-1].best
    small_step.clear_cache()
    for index in range(3):
        alone = jax.tree.map(lambda x, i=index: x[i : i + 1], three_boards)
        single = run_small(alone, keys[index : index + 1], 4)[-1].best
        for one, all_ in zip(single, together, strict=True):
            np.testing.assert_array_equal(one, all_[..., 6 * index : 6 * index + 6])
    assert small_step._cache_size() == 1


@pytest.mark.slow
def test_boards_with_nothing_to_choose():
    env = SameGame(height=2, width=3, num_colors=2)
    boards = [board_of("000", "000"), board_of("010", "101"), board_of("...", "011")]
    states = stack([env.from_board(board) for board in boards])

    def playout(keys, logits):
        return play_sequences(env, keys, states, logits)

    found = jax.jit(
        lambda key: nrpa_loop.nrpa_policy(
            key, playout, jnp.zeros((6, 3)), 2, iterations=(3,), parallel=(1,)
        )
    )(jax.random.key(8))
    # One move of six blocks clears the board; there is none; two blocks go and one is left.
    assert found.score.tolist() == [16.0 + 1000, 0.0, -1.0]
    assert found.length.tolist() == [1, 0, 1]


def test_a_bias_leads():
    env = SameGame(height=1, width=6, num_colors=3)
    states = stack([env.from_board(board_of("001122"))] * 4)
    bias = jnp.zeros((6, 4)).at[4].set(20.0)
    found = play(env, jax.random.split(jax.random.key(9), 4), states, bias)
    assert found.chosen[0].tolist() == [4] * 4


@pytest.mark.slow
def test_it_is_better_than_as_many_random_games():
    env, boards, steps = SameGame(height=8, width=8, num_colors=4), 12, 4
    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(10), boards))
    lanes = jax.tree.map(lambda x: jnp.repeat(x, 4, axis=0), states)

    @jax.jit
    def best_with(scale):
        return nrpa_loop.nrpa_policy(
            jax.random.key(11),
            lambda keys, logits: play_sequences(env, keys, lanes, scale * logits),
            jnp.zeros((64, boards)), steps, iterations=(40, 10), parallel=(4, 1),
        ).score  # fmt: skip

    # Logits times 0 are uniform play. By the sign test, 11 of 12 boards or more are won by chance
    # with probability 13 / 4096.
    learned, random = best_with(jnp.float32(1.0)), best_with(jnp.float32(0.0))
    assert (learned > random).sum() >= 11


def test_colors_share_more_on_larger_boards():
    assert nrpa_samegame.default_sharing(SameGame(15, 15, 5)) == 0.2
    assert nrpa_samegame.default_sharing(SameGame(5, 9, 3)) == pytest.approx(0.04)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(25, 4), (26, 4)])
def test_pairs_have_logits_of_their_own_on_large_boards_only(size):
    env = SameGame(*size, 3)
    state = jax.eval_shape(jax.vmap(env.init), jax.random.split(jax.random.key(0), 1))

    def traced(**knobs):
        solve = functools.partial(nrpa_samegame.nrpa, env, num_simulations=2, iterations=(2, 2))
        return str(jax.make_jaxpr(functools.partial(solve, **knobs))(jax.random.key(0), state))

    default = traced()
    assert (default == traced(pairs=True)) == (size == (26, 4))
    assert (default == traced(pairs=False)) == (size == (25, 4))


def test_logits_of_another_board_are_refused(three_boards):
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(ValueError, match="30 rows, one for each cell, or 60, got shape"):
        play_sequences(SMALL, keys, three_boards, jnp.zeros((45, 3)))


@pytest.mark.parametrize(
    "knobs",
    [{"iterations": (1,)}, {"iterations": (), "parallel": ()}, {"iterations": (0, 1, 1)},
     {"parallel": (1, 0, 1)}, {"playouts": 0}, {"step_size": 0.0}],
)  # fmt: skip
def test_mistakes_are_named(three_boards, knobs):
    with pytest.raises(ValueError, match=r"iterations.*got"):
        nrpa_loop.nrpa_search(lambda keys, logits: None, **knobs)
    with pytest.raises(ValueError, match=r"iterations.*got"):
        puzzles.nrpa(SMALL, jax.random.key(0), three_boards, 8, **knobs)


# --- the benchmark --------------------------------------------------------------------------------


def test_published_scores_have_the_published_sums():
    sums = {name: sum(scores) for name, scores in bench.published_scores().items()}
    assert sums["Policy-MCTS-informed"] == 76_806 and sums["Dist-NRPA(5)"] == 83_050
    assert all(len(scores) == 20 for scores in bench.published_scores().values())


def test_only_whole_legal_games_count():
    board = board_of("001", "112")
    assert bench.verified(board, [0, 3], "per_color") == {
        "score": -2.0, "cleared": False, "actions": [0, 3]
    }  # fmt: skip
    with pytest.raises(ValueError, match="not over"):
        bench.verified(board, [0], "per_color")
    with pytest.raises(ValueError, match="belongs to no group"):
        bench.verified(board, [5], "per_color")


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    calls = []

    def fake(env, num_boards):
        def run(boards, key):
            calls.append(len(boards))
            if len(calls) == 2:
                raise KeyboardInterrupt
            while True:
                games = [[] for _ in boards]
                for board, game in zip(boards, games, strict=True):
                    while not rules.replay(board, game).over:
                        last = rules.replay(board, game).boards[-1]
                        game.append(rules.groups(last)[0][0])
                yield Best(games, [0.0] * len(boards), 8)

        return run

    monkeypatch.setitem(SEARCHES, "fake", fake)
    monkeypatch.setattr(bench.jax.config, "update", lambda *args: None)  # one device will do
    path = tmp_path / "record.json"
    words = ["--search", "fake", "--simulations", "8", "--together", "2", "--random", "3"]
    words += ["--size", "5", "--colors", "3", "--out", str(path)]
    with pytest.raises(KeyboardInterrupt):
        bench.main(words)
    assert [row["position"] for row in runs.load(path)["rows"]] == [1, 2]
    bench.main(words)
    assert calls == [2, 1, 1]
    record = runs.load(path)
    assert [row["position"] for row in record["rows"]] == [1, 2, 3]
    headings, lines = bench.table(record)
    assert headings == ["position", "fake"] and len(lines) == 4
    total = sum(row["score"] for row in record["rows"])
    assert lines[-1] == ["sum", f"{total:,.0f}"]
    assert path.with_suffix(".png").stat().st_size > 0
    with pytest.raises(SystemExit, match="holds rows of penalty 'per_color', not 'none'"):
        bench.main([*words, "--penalty", "none"])
    with pytest.raises(SystemExit, match="holds rows of clock None, not 'cpu'"):
        bench.main([*words, "--clock", "cpu"])


def test_a_search_ends_by_the_clock_that_it_is_given():
    def run(boards, key):
        for count in range(1, 9):
            yield Best([[]] * 2, [float(count)] * 2, count)

    ticks = iter([5.0, 6.0, 7.5, 9.5])
    best, curve, seconds = bench.solve(
        run, np.zeros((2, 3, 3)), None, 2.0, None, lambda *args: None, lambda: next(ticks)
    )
    assert best.simulations == 3 and seconds == 4.5
    assert curve == [[0.5, 1.0], [1.25, 2.0], [2.25, 3.0]]


def test_seeds_are_compared():
    scores = {"nrpa": [[10, 20], [14, 24]], "nrpa wide": [[9, 15], [9, 19]]}
    rows = [
        {"search": name, "seed": seed, "position": n + 1, "score": score, "cleared": False}
        for name, seeds in scores.items() for seed, line in enumerate(seeds)
        for n, score in enumerate(line)
    ]  # fmt: skip
    record = {"setting": {"random": {}}, "rows": rows}
    headings, lines = bench.table(record)
    # In the order of the searches, which is also that of the comparison.
    assert headings[1:] == [f"{name}, seed {seed}" for name in scores for seed in (0, 1)]
    assert lines[-1] == ["sum", "30", "38", "24", "28"]
    # Means of positions are 12 and 22, and 9 and 17: gains of -3 and -5.
    half = 1.96 * 2**0.5 / 2**0.5
    assert bench.comparison(record["rows"])[1] == [
        ["nrpa", "17", "34 ± 6", 2, None],
        ["nrpa wide", "13", "26 ± 3", 2, f"-4 ± {half:.0f}"],
    ]
    # A search of one seed is compared on that seed alone.
    known = [row for row in rows if (row["search"], row["seed"]) == ("nrpa", 0)]
    rows += [row | {"search": "mcts", "score": row["score"] + 2} for row in known]
    assert bench.gains(record["rows"])["mcts"] == (2.0, 0.0)


def test_a_network_gives_the_bias():
    boards = np.stack([np.zeros((6, 5), int), np.eye(6, 5, dtype=int)])

    def apply_fn(params, observation):
        logits = params * observation[..., 0].reshape(len(observation), -1)
        return logits, jnp.zeros(len(observation))

    states = stack([SMALL.from_board(board) for board in boards])
    bias = np.asarray(puzzles.prior_bias(SMALL, apply_fn, jnp.float32(2.0), states, scale=0.5))
    assert bias.shape == (30, 2)
    # It is shifted to a mean of 0, which changes no probability.
    np.testing.assert_allclose(bias[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose(bias[:, 1] - bias[0, 1], 1.0 - np.eye(6, 5).ravel(), atol=1e-6)


def test_the_searches_solve_small_boards():
    env = SameGame(height=4, width=4, num_colors=2)
    boards = np.stack([board_of("0011", "0011", "1100", "1100"), np.zeros((4, 4), int)])
    run = nrpa_on_devices(iterations=(3,), parallel=(2,))(env, 2)
    best = next(run(boards, jax.random.key(0)))
    for board, actions, score in zip(boards, best.actions, best.scores, strict=True):
        assert bench.verified(board, actions, "per_color")["score"] == score
    assert best.simulations == 6 * len(jax.devices()) and best.scores[1] == 14**2 + 1000
