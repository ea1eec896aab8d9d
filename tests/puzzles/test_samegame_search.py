"""Searches for games of one player: their parts, and whole games of SameGame."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import one_player
import optax
import pytest
from flax import nnx
from games import QUICK, mostly_slow
from scipy import stats as scipy_stats

import jaxpgs
from jaxpgs import puzzles
from jaxpgs.base import NodeStats
from jaxpgs.envs import SameGame
from jaxpgs.envs.samegame import rules
from jaxpgs.envs.samegame.sequences import play_sequences
from jaxpgs.puzzles.samegame_playouts import recorded_playout
from jaxpgs.search import node_stats
from jaxpgs.training.puzzles.puzzle_data import make_measure

ENV = SameGame(5, 5, 3)
NUM_BOARDS = 6


@functools.cache
def boards(env=ENV, count=NUM_BOARDS, seed=0):
    with jax.ensure_compile_time_eval():  # some call this in a function that is traced
        return jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(seed), count))


@functools.cache
def network():
    """A small random network of two heads, its value in points."""
    with jax.ensure_compile_time_eval():
        module = jaxpgs.networks.SameGameResNet(
            ENV.observation_shape,
            ENV.num_actions,
            num_filters=8,
            value_scale=10.0,
            rngs=nnx.Rngs(0),
        )
        return jaxpgs.networks.functional(module)


def jit(function):
    return jax.jit(function, compiler_options=QUICK)


def stats(visits, qvalues, *, value=0.0, prior=None, lowest=None, highest=None, valid=None):
    """Statistics of one root."""
    visits, qvalues = np.asarray(visits), np.asarray(qvalues, np.float32)
    prior = np.full(len(visits), 1 / len(visits)) if prior is None else np.asarray(prior)
    valid = np.ones(len(visits), bool) if valid is None else np.asarray(valid)
    real = lambda x: None if x is None else jnp.asarray([x], jnp.float32)  # noqa: E731
    return NodeStats(
        real(np.where(valid, np.log(prior), np.finfo(np.float32).min)),
        jnp.asarray([value], jnp.float32),
        jnp.asarray([visits], jnp.float32),
        real(qvalues * visits),
        jnp.asarray([valid]),
        real(lowest),
        real(highest),
    )


def score(selection, root, pending):
    return np.asarray(selection.score(root, jnp.asarray([pending], jnp.float32))[0])


# --- the parts ------------------------------------------------------------------------------------


def reference_score(visits, qvalues, value, prior, pending, c, w, low=None, high=None):
    """Eq. 4.2 to 4.5 and 5.1 of Seify 2020, action by action."""
    q = [x if n else value for x, n in zip(qvalues, visits, strict=True)]
    lows = q if low is None else [x if n else value for x, n in zip(low, visits, strict=True)]
    highs = q if high is None else [x if n else value for x, n in zip(high, visits, strict=True)]
    smallest, greatest = min(lows), max(highs)
    total = max(sum(visits) + sum(pending), 1)
    out = []
    for a, x in enumerate(q):
        norm = 1.0 if greatest == smallest else (x - smallest) / (greatest - smallest)
        bound = c * prior[a] * np.sqrt(total) / (1 + visits[a] + pending[a])
        out.append(norm - w * pending[a] * norm + bound)
    return out


@pytest.mark.parametrize("bounds", ["qvalues", "returns"])
def test_max_min_puct_is_the_formula(bounds):
    rng = np.random.default_rng(0)
    for _ in range(20):
        visits = rng.integers(0, 4, 5).tolist()
        qvalues, prior = rng.normal(100, 50, 5), rng.dirichlet(np.ones(5))
        pending, value = rng.integers(0, 3, 5).tolist(), float(rng.normal(100, 50))
        low, high = qvalues - rng.random(5) * 20, qvalues + rng.random(5) * 20
        root = stats(visits, qvalues, value=value, prior=prior, lowest=low, highest=high)
        selection = jaxpgs.selection.max_min_puct(1.5, bounds=bounds, virtual_loss=0.2)
        ends = (low, high) if bounds == "returns" else ()
        expected = reference_score(visits, qvalues, value, prior, pending, 1.5, 0.2, *ends)
        np.testing.assert_allclose(score(selection, root, pending), expected, rtol=2e-4, atol=2e-4)


def test_max_min_puct_by_hand():
    free = jaxpgs.selection.max_min_puct(0.0, virtual_loss=0.5)
    root = stats([1, 2, 1], [10, 30, 20])
    np.testing.assert_allclose(score(free, root, [0, 0, 0]), [0, 1, 0.5])  # eq. 4.3
    np.testing.assert_allclose(score(free, root, [1, 1, 1]), [0, 0.5, 0.25])  # eq. 4.4
    # Eq. 4.2: from -10 to 40 in all.
    ranged = stats([1, 2, 1], [10, 30, 20], lowest=[10, 20, -10], highest=[10, 40, 20])
    by_returns = jaxpgs.selection.max_min_puct(0.0, bounds="returns")
    np.testing.assert_allclose(score(by_returns, ranged, [0, 0, 0]), [0.4, 0.8, 0.6], rtol=1e-6)
    # An action never tried has the node's own value; without any spread every action counts 1.
    np.testing.assert_allclose(
        score(free, stats([1, 0, 1], [10, 0, 30], value=25), [0] * 3), [0, 0.75, 1]
    )
    for selection in (free, by_returns):
        equal = stats([0, 1], [0, 7], value=7, lowest=[0, 7], highest=[0, 7])
        np.testing.assert_allclose(score(selection, equal, [0, 0]), [1, 1])
    # Illegal actions set no bounds and are never chosen.
    illegal = stats([1, 1, 0], [10, 20, 0], value=-1000, valid=[True, True, False])
    assert np.isfinite(score(free, illegal, [0] * 3)).all()
    assert score(free, illegal, [0] * 3)[0] == 0
    assert int(free.select(None, illegal, jnp.zeros((1, 3)))[0]) == 1
    with pytest.raises(ValueError, match="needs bounds to be one of"):
        jaxpgs.selection.max_min_puct(bounds="values")


def test_best_value_target():
    keys = jax.random.split(jax.random.key(0), 200)
    target = jaxpgs.target.best_value()
    one = lambda **x: jax.tree.map(lambda y: y[0], stats(**x))  # noqa: E731
    # The highest value counts, however few visits, and what was never tried does not.
    action, weights = target(keys[0], one(visits=[50, 1, 0], qvalues=[-5, -1, 0]), None)
    assert int(action) == 1
    np.testing.assert_array_equal(weights, [0, 1, 0])
    # Before the first simulation the prior tells, of the legal ones.
    none = {"visits": [0, 0, 0], "qvalues": [0, 0, 0], "valid": [False, True, True]}
    first = one(**none, prior=[9, 1, 2])
    actions, weights = jax.vmap(lambda key: target(key, first, None))(keys)
    np.testing.assert_array_equal(actions, 2)
    np.testing.assert_array_equal(weights.sum(axis=0), [0, 0, len(keys)])
    # Ties are broken at random: 200 draws of two; outside 60 to 140 with probability below 1e-7.
    root = one(visits=[2, 9, 2], qvalues=[4, 3, 4])
    actions, _ = jax.vmap(lambda key: target(key, root, None))(keys)
    counts = np.bincount(np.asarray(actions), minlength=3)
    assert counts[1] == 0 and 60 < counts[0] < 140
    action, weights = target(
        keys[0], one(visits=[0, 0], qvalues=[0, 0], valid=[False, False]), None
    )
    assert int(action) == 0 and not np.asarray(weights).any()


def test_reinforce_with_the_mean_as_baseline():
    shape = (3, 1, 2)  # T, B, K
    rng = np.random.default_rng(1)
    returns, log_prob = rng.normal(50, 20, shape), rng.normal(size=shape)
    alive = np.ones(shape, bool)
    alive[2, 0, 1] = False
    blank = jaxpgs.base.Trajectory(*[None] * len(jaxpgs.base.Trajectory._fields))
    walks = blank._replace(
        alive=jnp.asarray(alive),
        log_prob=jnp.asarray(log_prob, jnp.float32),
        value=jnp.zeros(shape),
    )
    advantage = np.zeros((2, 2))
    advantage[0] = returns[1, 0] - returns[1, 0].mean()  # the last step has one walk, so none
    for normalize in (False, True):
        estimator = jaxpgs.estimator.reinforce("mean", normalize=normalize)
        scale = np.sqrt((advantage**2).sum() / 3) if normalize else 1
        got = estimator(None, walks, jnp.asarray(returns, jnp.float32))
        np.testing.assert_allclose(got[0], (advantage / scale * log_prob[1:, 0]).sum(), rtol=1e-4)


@pytest.mark.first_case
@pytest.mark.parametrize("num_walks", [3, 7, 100])
def test_equal_returns_teach_nothing(num_walks):
    shape = (3, 1, num_walks)
    blank = jaxpgs.base.Trajectory(*[None] * len(jaxpgs.base.Trajectory._fields))
    walks = blank._replace(alive=jnp.ones(shape, bool), log_prob=jnp.ones(shape))
    # The means of these are rounded.
    for score in (777.7, 1 / 3, 1e-3, 12345.678):
        for normalize in (False, True):
            estimator = jaxpgs.estimator.reinforce("mean", normalize=normalize)
            assert estimator(None, walks, jnp.full(shape, score)) == 0
            # A real difference stays, small as it is.
            other = jnp.full(shape, score).at[1, 0, 0].mul(1.001)
            weighed = walks._replace(log_prob=walks.log_prob.at[1, 0, 0].set(2.0))
            assert estimator(None, weighed, other) > 0


@pytest.mark.slow
def test_nodes_keep_the_range_of_their_returns():
    fns = puzzles.make_episode_fns(ENV, rollout=puzzles.random_rollouts(ENV))
    line = jit(lambda: puzzles.start_episodes(ENV, boards()))()

    @jit
    def run(key):
        root = fns[0]({}, key, line)
        return jaxpgs.batched_mcts_policy(
            {}, key, root, fns[1], 48, ~line.state.legal_action_mask, simulations_per_update=4,
            root_selection=jaxpgs.selection.max_min_puct(2.0, bounds="returns"),
        ).search_state  # fmt: skip

    state = run(jax.random.key(0))
    at_root = jnp.zeros(NUM_BOARDS, jnp.int32)
    known = jit(node_stats)(state.nodes, at_root, jnp.zeros(state.visits.shape))
    lowest, highest = np.asarray(known.lowest), np.asarray(known.highest)
    tried = np.asarray(state.visits) > 0
    q, low, high = (np.asarray(x)[tried] for x in (state.qvalues, lowest, highest))
    assert (low <= q + 1e-3).all() and (q <= high + 1e-3).all() and (low < high).any()
    assert np.isposinf(lowest[~tried]).all()


# --- rollouts and episodes ------------------------------------------------------------------------


_board = jax.jit(SameGame.board, static_argnums=0)


def replayed(env, state, moves):
    board = np.asarray(_board(env, state))
    return rules.replay(board, [int(m) for m in moves if m >= 0], penalty=env.penalty)


def one(tree, i):
    return jax.tree.map(lambda x: np.asarray(x)[i], tree)


@pytest.mark.first_case
@pytest.mark.parametrize("tabu", [False, True])
def test_recorded_playouts_replay(tabu):
    keys = jax.random.split(jax.random.key(1), NUM_BOARDS)
    play = functools.partial(recorded_playout, ENV, tabu=tabu)
    ends, moves = jit(jax.vmap(play))(keys, boards())
    for b in range(NUM_BOARDS):
        game = replayed(ENV, one(boards(), b), moves[b])
        assert game.over and game.score == ends.score[b] and game.cleared == ends.cleared[b]
        assert len(game.rewards) == ends.moves[b]
    # A game's course is its own key's, alone, in a batch or in a batch of batches.
    alone, _ = jit(play)(keys[2], one(boards(), 2))
    assert alone.score == ends.score[2]
    pairs = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), (keys, boards()))
    nested, _ = jit(jax.vmap(jax.vmap(play)))(*pairs)
    np.testing.assert_array_equal(nested.score.reshape(-1), ends.score)


def test_playouts_take_keys_of_any_kind():
    state = boards(count=1)
    one = jax.tree.map(lambda x: x[0], state)
    for impl in ("threefry2x32", "rbg"):
        ends, moves = recorded_playout(ENV, jax.random.key(3, impl=impl), one)
        game = rules.replay(np.asarray(ENV.board(one)), np.asarray(moves[moves >= 0]).tolist())
        assert game.over and game.score == float(ends.score), impl


@pytest.mark.slow
def test_an_episode_knows_its_moves():
    params, apply_fn = network()
    informed = puzzles.informed_rollouts(ENV, apply_fn)
    kinds = [puzzles.random_rollouts(ENV), puzzles.first_by_prior(ENV, informed)]
    state = boards()
    for kind in kinds:
        root_fn, recurrent_fn = puzzles.make_episode_fns(ENV, apply_fn, rollout=kind)

        @jit
        def start(key, root_fn=root_fn):
            return root_fn(params, key, puzzles.start_episodes(ENV, state))

        @jit
        def move(key, logits, line, recurrent_fn=recurrent_fn):
            return recurrent_fn(params, key, jnp.argmax(logits, -1), line)

        key = jax.random.key(3)
        root = start(key)
        output, line = move(key, root.prior_logits, root.embedding)
        _, last = move(key, output.prior_logits, line)
        np.testing.assert_allclose(output.value, line.total - line.score)
        for found in jax.device_get((root.embedding, line, last)):
            for b in range(NUM_BOARDS):
                game = replayed(ENV, one(state, b), found.moves[b])
                assert game.over and game.score == found.total[b]
                assert sum(game.rewards[: int(found.num_played[b])]) == found.score[b]


@pytest.mark.slow
def test_values_are_mixed_with_rollouts():
    params, apply_fn = network()
    kind = puzzles.random_rollouts(ENV)

    def evaluated(**knobs):
        root_fn, recurrent_fn = puzzles.make_episode_fns(ENV, apply_fn, **knobs)

        @jit
        def run(key):
            root = root_fn(params, key, puzzles.start_episodes(ENV, boards()))
            action = jnp.argmax(root.prior_logits, -1)
            return root, recurrent_fn(params, key, action, root.embedding)

        root, (output, episode) = run(jax.random.key(4))
        return [(root.value, root.embedding), (output.value, episode)]

    network_only = evaluated()
    rollout_only = evaluated(rollout=kind)
    mixed = evaluated(rollout=kind, rollout_share=0.25)
    for (value, _), (earned, full), (mean, part) in zip(
        network_only, rollout_only, mixed, strict=True
    ):
        assert not np.allclose(value, earned)
        np.testing.assert_allclose(mean, 0.75 * value + 0.25 * earned, rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(part.total, full.total)  # what was seen does not depend on it
        np.testing.assert_array_equal(part.moves, full.moves)
    for knobs in ({"rollout_share": 1.5}, {"rollout_share": -0.1}):
        with pytest.raises(ValueError, match="rollout_share must be from 0 to 1"):
            puzzles.make_episode_fns(ENV, apply_fn, rollout=kind, **knobs)
    with pytest.raises(ValueError, match="rollout_share"):
        puzzles.make_episode_fns(ENV, rollout=kind, rollout_share=0.5)  # there is no network


@pytest.mark.slow
def test_positions_are_judged_by_the_best_that_is_known():
    env, count = SameGame(3, 3, 2), 8
    state = boards(env, count)

    def run(key, games):
        judge = lambda keys, state: puzzles.nrpa(  # noqa: E731
            env, keys, state, games, iterations=(games, 1), parallel=(1, 1)
        )
        played = puzzles.random_games(env, key, state)
        return played, puzzles.judged(played, key, judge)

    played, found = jit(functools.partial(run, games=200))(jax.random.key(0))
    assert np.asarray(played.searches.searched).sum() > 1.5 * count  # later positions, too
    for t, b in zip(*np.nonzero(np.asarray(played.searches.searched)), strict=True):
        board = np.asarray(
            env.board(one(jax.tree.map(lambda x, t=t: x[t], played.searches.state), b))
        )
        most = optimum(board)
        assert found.searches.value[t, b] == most
        game = rules.replay(board, [int(found.searches.action[t, b])])
        assert game.score + (0.0 if game.over else optimum(game.boards[-1])) == most
    # A judge of one random game falls behind what was played, on some of the boards.
    played, found = jit(functools.partial(run, games=1))(jax.random.key(1))
    score = np.asarray(played.searches.score)
    rest = np.where(played.searches.searched, np.asarray(played.played)[None] - score, 0)
    np.testing.assert_array_equal(played.searches.value, rest)
    assert (np.asarray(found.searches.value) >= rest).all()
    same = np.asarray(found.searches.action == played.searches.action)
    assert same[np.asarray(found.searches.value) == rest].all() and not same.all()
    assert (np.asarray(found.searches.value) > rest).any()
    # However many there are, none is left out.
    proud = lambda keys, state: puzzles.random_games(env, keys, state)._replace(  # noqa: E731
        score=jnp.full(count, 1e6)
    )
    found = jit(lambda: puzzles.judged(played, jax.random.key(2), proud))()
    assert (np.asarray(found.searches.value) == 1e6 * np.asarray(found.searches.searched)).all()


def test_a_judge_tells_the_first_move_of_its_best_game():
    env = SameGame(3, 3, 2)
    state = boards(env, 4)
    last = lambda state: 8 - jnp.argmax(state.legal_action_mask[..., ::-1], axis=-1)  # noqa: E731

    def judge(keys, state):
        """Plays at random, and finds a better game elsewhere."""
        played = puzzles.random_games(env, keys, state)
        moves = played.moves.at[:, 0].set(last(state).astype(played.moves.dtype))
        return played._replace(score=jnp.full(4, 1e6), moves=moves)

    played = jit(functools.partial(puzzles.random_games, env))(jax.random.key(0), state)
    found = jit(lambda: puzzles.judged(played, jax.random.key(1), judge))()
    searched = np.asarray(played.searches.searched)
    expected = np.asarray(last(played.searches.state))
    np.testing.assert_array_equal(np.asarray(found.searches.action)[searched], expected[searched])


def test_a_judge_whose_games_are_cut_is_not_believed():
    play = functools.partial(puzzles.random_games, Wage())
    played = jit(functools.partial(play, max_moves=6))(jax.random.key(2), wages([True] * 8))
    judge = functools.partial(play, max_moves=1)
    found = jit(lambda: puzzles.judged(played, jax.random.key(1), judge))()
    # Within one move it ends the game for nothing, or earns a point in a game that goes on.
    np.testing.assert_array_equal(found.searches.value, played.searches.value)
    assert np.isfinite(played.played).any()


@pytest.mark.slow
def test_searches_take_raw_keys():
    state, table, knobs = boards(), jnp.zeros((25, 6)), {"iterations": (2,), "parallel": (1,)}
    play = lambda keys, logits: play_sequences(ENV, keys, state, logits)  # noqa: E731
    random = functools.partial(puzzles.random_games, ENV)
    searches = {
        "nrpa": lambda key: jaxpgs.nrpa_policy(key, play, table, 1, **knobs),
        "tempering": lambda key: puzzles.tempering(ENV, key, state, 2, lanes=2),
        "judged": lambda key: puzzles.judged(random(key, state), key, random),
    }
    # Only traced: it is shapes that a raw key's words would get in the way of.
    for name, search in searches.items():
        assert jax.eval_shape(search, jax.random.PRNGKey(0)).score.shape == (6,), name
    with pytest.raises(ValueError, match="got 3 keys for 6 roots"):
        searches["nrpa"](jax.random.split(jax.random.key(0), 3))


def test_random_games_are_random():
    """Uniform over the groups, else wrong by chance once in a million boards."""
    state = jax.tree.map(lambda x: jnp.repeat(x, 600, axis=0), boards(count=2))
    games = jit(functools.partial(puzzles.random_games, ENV))(jax.random.key(0), state)
    legal = np.asarray(state.legal_action_mask)
    for first in np.split(np.arange(1200), 2):
        counts = np.bincount(np.asarray(games.moves)[first, 0], minlength=ENV.num_actions)
        groups = legal[first[0]]
        assert counts[~groups].sum() == 0
        assert scipy_stats.chisquare(counts[groups]).pvalue > 1e-6


@pytest.mark.slow
def test_games_of_a_policy_alone():
    def by_number(params, observation):
        """The higher the cell the likelier, as much as `params` say."""
        return jnp.broadcast_to(params * jnp.arange(25.0), (len(observation), 25)), None

    one_board = jax.tree.map(lambda x: jnp.repeat(x[:1], 400, axis=0), boards())
    play = lambda **knobs: jit(  # noqa: E731
        lambda key: puzzles.policy_games(ENV, by_number, 0.1, key, one_board, **knobs)
    )(jax.random.key(0))
    # A group is as likely as all its cells together.
    labels, cells = np.asarray(ENV.group_labels(one(one_board, 0))), np.exp(0.1 * np.arange(25))
    legal = np.flatnonzero(one_board.legal_action_mask[0])
    expected = np.array([cells[labels == label].sum() for label in legal])
    sure = play()
    check_solution(ENV, one_board, sure)
    assert (np.asarray(sure.moves) == np.asarray(sure.moves)[0]).all()
    assert int(sure.moves[0, 0]) == legal[expected.argmax()]
    drawn = play(greedy=False)
    check_solution(ENV, one_board, drawn)
    # Wrong by chance once in a million draws of all games.
    counts = np.bincount(np.asarray(drawn.moves)[:, 0], minlength=25)[legal]
    assert scipy_stats.chisquare(counts, 400 * expected / expected.sum()).pvalue > 1e-6


# --- whole games ----------------------------------------------------------------------------------

SEARCHES = {
    "plain": lambda env, key, state, n, **x: puzzles.plain_mcts(env, key, state, n, **x),
    "informed": lambda env, key, state, n, **x: puzzles.policy_mcts(
        env, network()[1], network()[0], key, state, n, rollout="informed", **x
    ),
    "pv": lambda env, key, state, n, **x: puzzles.pv_mcts(
        env, network()[1], network()[0], key, state, n, **x
    ),
    "values alone": lambda env, key, state, n, **x: puzzles.pv_mcts(
        env, network()[1], network()[0], key, state, n, rollout_share=0.0, **x
    ),
    "pgs": lambda env, key, state, n, **x: puzzles.pgs(
        env, network()[1], network()[0], key, state, n, **x
    ),
    "mcs": lambda env, key, state, n, **x: puzzles.mcs(
        env, network()[1], network()[0], key, state, n, **x
    ),
    "nrpa": lambda env, key, state, n, simulations_per_update: puzzles.nrpa(
        env, key, state, n, iterations=(2, 3), parallel=(2, 1)
    ),
    "random": lambda env, key, state, n, simulations_per_update: puzzles.random_games(
        env, key, state
    ),
}


def check_solution(env, state, solution):
    for b in range(len(solution.score)):
        game = replayed(env, one(state, b), solution.moves[b])
        assert game.over and game.score == solution.score[b]
        assert len(game.rewards) == solution.num_moves[b]
    best = np.asarray(solution.searches.best)
    assert (best[1:] >= best[:-1]).all()
    np.testing.assert_array_equal(solution.searches.best[-1], solution.score)
    assert (np.asarray(solution.played) <= np.asarray(solution.score)).all()
    # What the searches chose, and networks learn, is named by the legal action of its group.
    mask = np.asarray(solution.searches.state.legal_action_mask)
    action = np.asarray(solution.searches.action)
    legal = np.take_along_axis(mask, action[..., None], axis=-1)[..., 0]
    assert legal[np.asarray(solution.searches.searched)].all()


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(SEARCHES, "pgs", "nrpa"))
def test_the_best_line_replays_and_never_gets_worse(name):
    traces = []

    @jit
    def run(key, state):
        traces.append(0)
        return SEARCHES[name](ENV, key, state, 8, simulations_per_update=4)

    keys = jax.random.split(jax.random.key(0), NUM_BOARDS)
    solution = run(keys, boards())
    check_solution(ENV, boards(), solution)
    assert np.isfinite(solution.played).all()
    run(keys[::-1], boards(seed=1))
    assert len(traces) == 1
    # Another key gives another search, but to one that draws nothing.
    other = run(keys[::-1], boards()).searches.value
    assert np.array_equal(other, solution.searches.value) == (name == "values alone")
    if name in ("plain", "pgs", "nrpa", "random"):  # a board is answered alike among others
        among = lambda ours, others: others.at[3].set(ours[3])  # noqa: E731
        mixed = run(among(keys, keys[::-1]), jax.tree.map(among, boards(), boards(seed=1)))
        np.testing.assert_array_equal(mixed.moves[3], solution.moves[3])
        assert (np.asarray(mixed.moves) != np.asarray(solution.moves)).any()
        assert len(traces) == 1


def test_a_depth_of_zero_is_no_depth():
    with pytest.raises(ValueError, match=r"depth to be .* of at least 1.*got 0"):
        SEARCHES["pgs"](ENV, jax.random.key(0), boards(), 8, depth=0)


class Toll:
    """Seven moves, of which each costs a point or two; half of the two actions would be one."""

    num_players, num_actions, observation_shape = 1, 2, (1,)

    def init(self, rng_key):
        return one_player.begin(jnp.int32(0), self.num_actions)

    def step(self, state, action):
        steps = state.steps + 1
        paid = -1.0 - (action != state.steps % 2).astype(jnp.float32)
        return one_player.unless_over(
            state,
            dataclasses.replace(state, steps=steps, rewards=paid[None], terminated=steps == 7),
        )

    def observe(self, state):
        return state.steps.astype(jnp.float32)[None]


def test_rollouts_reach_the_end_of_long_games():
    env = Toll()
    start = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 2))
    table = jnp.zeros((2, 2))
    uniform = lambda params, x: (x @ table[:1], x[:, 0])  # noqa: E731
    searches = {
        "mcts": functools.partial(puzzles.plain_mcts, env),
        "informed": functools.partial(
            puzzles.policy_mcts, env, uniform, {}, rollout="informed", max_depth=3
        ),
    }
    for name, search in searches.items():
        solve = jit(functools.partial(search, num_simulations=8, max_moves=7))
        found = solve(rng_key=jax.random.key(1), state=start)
        assert found.num_moves.tolist() == [7, 7], name
        right = np.asarray(found.moves) == np.arange(7) % 2
        np.testing.assert_allclose(found.score, -7.0 - np.sum(~right, axis=1), err_msg=name)
        # Every search of the game knows a whole line: none earns more than the seven tolls.
        assert float(jnp.max(found.searches.best)) <= -7.0, name


class Wage:
    """Every move earns a point, except for action 1 where it ends the game."""

    num_players, num_actions, observation_shape = 1, 2, (1,)

    def init(self, rng_key):
        return one_player.begin(jnp.bool_(True), self.num_actions)

    def step(self, state, action):
        ends = (action == 1) & state.inner
        earned = 1.0 - ends.astype(jnp.float32)[None]
        return one_player.unless_over(
            state, dataclasses.replace(state, rewards=earned, terminated=ends)
        )

    def observe(self, state):
        return state.inner.astype(jnp.float32)[None]


def wages(may_end):
    start = jax.vmap(Wage().init)(jax.random.split(jax.random.key(0), len(may_end)))
    return dataclasses.replace(start, inner=jnp.asarray(may_end))


def test_games_that_are_cut_are_not_the_best():
    env, count = Wage(), 32
    root_fn, _ = puzzles.make_episode_fns(env, rollout=puzzles.random_rollouts(env, max_moves=4))
    none = jnp.zeros((count, 2), jnp.int32)

    def plan(keys, root, illegal, nodes, adapted):
        # A search that sees one game, that of the root's rollout, and plays action 0.
        found = {"best": root.embedding, "visits": none, "qvalues": none.astype(jnp.float32)}
        found = types.SimpleNamespace(**found, num_evaluations=none[:, 0])
        return types.SimpleNamespace(action=none[:, 0], search_state=found)

    solve = functools.partial(puzzles.solve, env, root_fn, plan, None, max_moves=4)
    start = wages([True] * (count - 1) + [False])
    found = jax.device_get(jit(solve)(jax.random.key(1), start))
    # A game that ends within four moves earns at most three points, one that is cut four or more.
    best, ends = found.searches.best[-1], found.moves == 1
    ended = ends.any(axis=1)
    np.testing.assert_array_equal(best[ended], np.argmax(ends, axis=1)[ended])
    np.testing.assert_array_equal(found.score[ended], best[ended])
    np.testing.assert_array_equal(found.num_moves[ended], best[ended] + 1)
    assert ended.sum() > count / 2 and np.isneginf(best[~ended]).all()
    # Where no game has ended, the solution is the game that was played.
    assert (found.moves[~ended] == 0).all() and (found.score[~ended] == 4).all()
    assert np.isneginf(found.played).all()


def test_rollouts_that_stop_early_have_no_total():
    env, count = Wage(), 32
    rollout = puzzles.first_by_prior(env, puzzles.random_rollouts(env, max_moves=4))
    root_fn, _ = puzzles.make_episode_fns(env, rollout=rollout)
    start = puzzles.start_episodes(env, wages([True] * count), 4)
    root = jit(lambda key: root_fn(None, key, start))(jax.random.key(0))
    total, moves = np.asarray(root.embedding.total), np.asarray(root.embedding.moves)
    # The first action by the prior is 0. Some games are cut, some have five moves, more than fit.
    ended = (moves == 1).any(axis=1)
    np.testing.assert_array_equal(total[ended], np.argmax(moves == 1, axis=1)[ended])
    assert np.isneginf(total[~ended]).all() and 0 < ended.sum() < count
    assert (moves[~ended] >= 0).all(axis=1).any() and (moves[~ended] < 0).all(axis=1).any()
    np.testing.assert_array_equal(root.value[ended], total[ended])
    assert (np.asarray(root.value)[~ended] >= 4).all()


@pytest.mark.slow
def test_games_without_a_search_reach_their_end():
    env, keys = Toll(), jax.random.split(jax.random.key(0), 2)
    start = jax.vmap(env.init)(keys)
    first = lambda params, x: (jnp.array([[1.0, 0.0]] * len(x)), x[:, 0])  # noqa: E731
    policy = functools.partial(puzzles.policy_games, env, first, {}, max_moves=7)
    found = jit(policy)(keys, start)
    assert found.num_moves.tolist() == [7, 7] and found.score.tolist() == [-10.0, -10.0]
    found = jit(functools.partial(puzzles.random_games, env, max_moves=7))(keys, start)
    assert found.num_moves.tolist() == [7, 7] and (found.played == found.score).all()
    scores = jit(make_measure(env, first, 2))({}, jax.random.key(1))
    assert scores["greedy_score"] == -10.0
    assert all(-14.0 <= float(scores[name]) <= -7.0 for name in scores)


def test_a_game_that_is_over_at_the_start_is_played():
    env, keys = Toll(), jax.random.split(jax.random.key(0), 2)
    start = jax.vmap(env.init)(keys)
    start = dataclasses.replace(start, terminated=jnp.array([True, False]))
    found = jit(functools.partial(puzzles.random_games, env, max_moves=3))(keys, start)
    # The second game is cut before its end. Its score is that of its moves.
    assert found.played.tolist() == found.searches.best[-1].tolist() == [0.0, -np.inf]
    assert found.num_moves.tolist() == [0, 3]
    wrong = np.asarray(found.moves[1]) != np.arange(3) % 2
    assert found.score.tolist() == [0.0, -3.0 - wrong.sum()]


@pytest.mark.slow
def test_following_the_best_line_plays_it():
    run = jit(functools.partial(puzzles.plain_mcts, ENV, num_simulations=16, follow="best"))
    solution = run(jax.random.key(0), boards())
    check_solution(ENV, boards(), solution)
    np.testing.assert_array_equal(solution.played, solution.score)


def plain(**knobs):
    run = jit(lambda key: puzzles.plain_mcts(ENV, key, boards(), 8, **knobs))
    return run(jax.random.key(0))


@pytest.mark.slow
def test_restarts():
    again = plain(num_searches=20, restart=True, num_kept=9)
    check_solution(ENV, boards(), again)
    assert np.asarray(again.searches.searched).all()


@pytest.mark.slow
def test_a_limit_of_searches():
    once = plain(num_searches=1)
    check_solution(ENV, boards(), once)
    assert np.isneginf(once.played).all()


def test_what_does_not_fit_is_named():
    for knobs, message in (
        ({"restart": True}, "num_searches must be given"),
        ({"follow": "visits"}, "follow must be"),
        ({"num_searches": 0}, "num_searches must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            plain(**knobs)
    with pytest.raises(ValueError, match=r"pgs needs positions.*got `terminated` of shape \[\]"):
        SEARCHES["pgs"](ENV, jax.random.key(0), one(boards(), 0), 8)
    with pytest.raises(ValueError, match="rollout must be"):
        puzzles.policy_mcts(ENV, None, {}, jax.random.key(0), boards(), 8, rollout="long")
    with pytest.raises(ValueError, match="needs a rollout"):
        puzzles.make_episode_fns(ENV)
    with pytest.raises(ValueError, match="game of one player"):
        puzzles.make_episode_fns(jaxpgs.envs.Hex(3), lambda p, x: x)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def search_shortly(env, key, state):
    return puzzles.plain_mcts(env, key, state, 4, simulations_per_update=2)


WIDE, COLUMN = ["0120", "1201"], ["0", "0", "1", "1", "2", "2", "0", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", mostly_slow([WIDE, ["0000", "0000"], COLUMN], WIDE))
def test_odd_boards(rows):
    cells = np.array([[int(c) for c in row] for row in rows])
    env = SameGame(*cells.shape, 3)
    state = jax.tree.map(lambda x: x[None], env.from_board(cells))
    solution = search_shortly(env, jax.random.key(0), state)
    best = optimum(cells)
    check_played = [int(m) for m in solution.moves[0] if m >= 0]
    assert rules.replay(cells, check_played).score == solution.score[0] == best
    assert (best == 0) == bool(state.terminated[0])


@functools.cache
def _optimum(shape, flat):
    board = np.array(flat).reshape(shape)
    best = -np.inf
    for cells in rules.groups(board):
        game = rules.replay(board, cells[:1])
        rest = 0 if game.over else _optimum(shape, tuple(game.boards[-1].ravel().tolist()))
        best = max(best, game.score + rest)
    return best


def optimum(board):
    """The best score of a board by brute force; 0 if it has no move."""
    if not rules.groups(board):
        return 0.0
    return _optimum(board.shape, tuple(np.asarray(board).ravel().tolist()))


@pytest.mark.slow
def test_search_finds_the_optimum_of_tiny_boards():
    env = SameGame(3, 4, 2)
    state = boards(env, 24)
    best = [optimum(np.asarray(env.board(one(state, b)))) for b in range(24)]
    assert len(set(best)) > 4
    solution = jit(lambda key: puzzles.plain_mcts(env, key, state, 64))(jax.random.key(0))
    np.testing.assert_array_equal(solution.score, best)


@pytest.mark.slow
def test_pgs_that_learns_nothing_is_mcs():
    params, apply_fn = network()
    without = jit(lambda key: puzzles.mcs(ENV, apply_fn, params, key, boards(), 8))
    still = jit(
        lambda key: puzzles.pgs(ENV, apply_fn, params, key, boards(), 8, optimizer=optax.sgd(0.0))
    )
    one, other = without(jax.random.key(0)), still(jax.random.key(0))
    np.testing.assert_array_equal(one.moves, other.moves)
    np.testing.assert_array_equal(one.searches.action, other.searches.action)


@pytest.mark.slow
def test_a_gradient_keeps_what_the_head_is_given():
    # Inside of the head are layers of that size, which would make it six times as much.
    params, apply_fn = network()
    run = lambda params, key: puzzles.pgs(  # noqa: E731
        ENV, apply_fn, params, key, boards(), 8, num_searches=1
    )
    memory = jit(run).lower(params, jax.random.key(0)).compile().memory_analysis()
    filters, steps = 8, ENV.num_actions // 2
    features = 4 * NUM_BOARDS * 8 * steps * ENV.num_actions * filters
    assert features < memory.temp_size_in_bytes < 3 * features


@pytest.mark.slow
def test_what_policy_gradients_learn_lasts_a_game():
    params, apply_fn = network()
    run = lambda **x: jit(  # noqa: E731
        lambda key: puzzles.pgs(
            ENV,
            apply_fn,
            params,
            key,
            boards(),
            16,
            simulations_per_update=8,
            optimizer=optax.sgd(10.0),
            **x,
        )
    )(jax.random.key(0))
    moving, forgetting = run(), run(forget=True)
    # Until the second search there is nothing to forget.
    same = np.isclose(moving.searches.value, forgetting.searches.value)
    assert same[0].all() and not same[1].all()
    check_solution(ENV, boards(), moving)
