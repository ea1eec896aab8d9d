import dataclasses
import json

import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

import jaxpgs
import jaxpgs.evaluation as ev
from jaxpgs.envs import Hex

KEY = jax.random.key(0)


def _named(player, name):
    return dataclasses.replace(player, name=name)


def _same(a, b):
    assert a.names == b.names
    np.testing.assert_array_equal(a.outcomes, b.outcomes)
    np.testing.assert_array_equal(a.openings, b.openings)
    assert [p.moves for p in a.players] == [p.moves for p in b.players]


def _first_cell(name="first cell"):
    """Deterministic: the first empty cell."""

    def act(key, state, memory):
        return jnp.argmax(state.legal_action_mask, axis=-1), memory, {}

    return ev.Player(name, lambda batch_size: (), act)


@pytest.mark.first_case
@pytest.mark.parametrize(("size", "repeats"), [(3, 1), (4, 3)])
def test_every_opening_is_played_with_both_colours(size, repeats):
    env = Hex(size)
    a, b = _named(ev.uniform_random(env), "a"), _named(ev.uniform_random(env), "b")
    calls = []
    result = ev.play_match(env, a, b, KEY, repeats=repeats, progress=lambda *x: calls.append(x))
    assert result.games == 2 * size**2 * repeats
    assert result.outcomes.shape == (2, repeats, size**2)
    assert set(np.unique(result.outcomes)) <= {0, 1}  # Hex has no draws
    assert 0 < result.wins < result.games
    np.testing.assert_array_equal(result.openings, np.arange(size**2))
    assert calls[-1] == (result.games, result.games, "a vs b")
    done = [call[0] for call in calls]
    assert done == sorted(done)
    for record in result.players:
        assert record.calls <= size**2
        assert 0 < record.moves <= record.calls * size**2 * repeats
        assert record.seconds > 0
        assert record.compile_seconds > 0


def test_outcomes_are_the_first_players():
    # Replays every game of two deterministic players one by one.
    env = Hex(3)

    def last_cell(key, state, memory):
        return env.num_actions - 1 - jnp.argmax(state.legal_action_mask[:, ::-1], -1), memory, {}

    first, second = _first_cell(), ev.Player("last cell", lambda n: (), last_cell)
    result = ev.play_match(env, first, second, KEY)
    step = jax.jit(env.step)
    moves = [0, 0]
    for opener in (0, 1):
        for opening in range(9):
            state, mover = step(env.init(), opening), 1 - opener
            while not state.terminated:
                legal = np.flatnonzero(state.legal_action_mask)
                state = step(state, legal[0] if mover == 0 else legal[-1])
                moves[mover] += 1
                mover = 1 - mover
            opener_won = float(state.rewards[0]) > 0
            assert result.outcomes[opener, 0, opening] == (opener_won == (opener == 0))
    assert [p.moves for p in result.players] == moves


def test_chosen_openings_and_bad_arguments():
    env = Hex(3)
    a, b = ev.uniform_random(env), _first_cell()
    result = ev.play_match(env, a, b, KEY, openings=[4, 0])
    assert result.outcomes.shape == (2, 1, 2)
    for bad in ([9], [-1], [], [1, 1]):
        with pytest.raises(ValueError, match="openings must"):
            ev.play_match(env, a, b, KEY, openings=bad)
    with pytest.raises(ValueError, match="repeats"):
        ev.play_match(env, a, b, KEY, repeats=0)
    with pytest.raises(ValueError, match="compiled for 2 games"):
        ev.play_match(env, ev.compile_player(env, a, 2), b, KEY)
    with pytest.raises(ValueError, match="different names"):
        ev.round_robin(env, [a, a], KEY)
    with pytest.raises(ValueError, match="at least 2"):
        ev.round_robin(env, [a], KEY)
    with pytest.raises(ValueError, match="batch_size"):
        ev.compile_player(env, a, 0)
    for key, said in ((0, "made by jax.random.key, got 0"), (jax.random.split(KEY), "one key")):
        with pytest.raises(ValueError, match=said):
            ev.play_match(env, a, b, key)


def test_act_is_checked_when_compiled():
    env = Hex(2)

    def grows(key, state, memory):
        return jnp.zeros(4, jnp.int32), jnp.concatenate([memory, memory]), {}

    def wrong_shape(key, state, memory):
        return jnp.zeros((4, 1), jnp.int32), memory, {}

    with pytest.raises(ValueError, match="memory's structure"):
        ev.compile_player(env, ev.Player("x", lambda n: jnp.zeros(n), grows), 4)
    with pytest.raises(ValueError, match="actions of shape"):
        ev.compile_player(env, ev.Player("x", lambda n: (), wrong_shape), 4)


@pytest.mark.slow
def test_a_perfect_player_wins_every_won_opening():
    env = Hex(3)
    perfect, random = ev.perfect_hex(env), ev.uniform_random(env)
    result = ev.play_match(env, perfect, random, KEY, repeats=8)
    first = jax.jit(lambda action: env.step(env.init(), action))
    won_by_opener = np.array([ev.solve_hex(env, first(a)).value < 0 for a in range(9)])
    assert 0 < won_by_opener.sum() < 9
    assert (result.outcomes[0][:, won_by_opener] == 1).all()
    assert (result.outcomes[1][:, ~won_by_opener] == 1).all()
    # Against itself the opening decides every game.
    mirror = ev.play_match(env, perfect, _named(perfect, "again"), KEY)
    np.testing.assert_array_equal(mirror.outcomes[:, 0], [won_by_opener, ~won_by_opener])


def test_round_robin_traces_each_player_once_and_resumes():
    env = Hex(3)
    traces = {"a": 0, "b": 0, "c": 0}

    def counting(name):
        random = ev.uniform_random(env)

        def act(key, state, memory):
            traces[name] += 1
            return random.act(key, state, memory)

        return ev.Player(name, random.init, act)

    players = [counting(name) for name in traces]
    saved = []
    full = ev.round_robin(env, players, KEY, repeats=2, on_pair=saved.append)
    assert traces == {"a": 1, "b": 1, "c": 1}
    assert [r.names for r in saved] == [("a", "b"), ("a", "c"), ("b", "c")]
    np.testing.assert_array_equal(full.wins + full.wins.T, 36 * (1 - np.eye(3)))
    assert full.wins[0, 2] == saved[1].wins
    assert full.players["a"].moves == saved[0].players[0].moves + saved[1].players[0].moves
    assert full.players["b"].calls == saved[0].players[1].calls + saved[2].players[0].calls

    # Through JSON, with one pairing left to play.
    earlier = [ev.MatchResult.from_dict(json.loads(json.dumps(r.to_dict()))) for r in saved[:2]]
    played, ticks = [], []
    resumed = ev.round_robin(
        env, players, KEY, repeats=2, results=earlier, on_pair=played.append,
        progress=lambda *x: ticks.append(x),
    )  # fmt: skip
    assert traces == {"a": 1, "b": 2, "c": 2}
    assert [r.names for r in played] == [("b", "c")]
    assert ticks[-1] == (108, 108, "b vs c")
    for a, b in zip(full.pairs, resumed.pairs, strict=True):
        _same(a, b)
    np.testing.assert_array_equal(full.wins, resumed.wins)

    # A newcomer changes no game of the others, and order does not matter to the table.
    swapped = ev.round_robin(env, [players[1], players[0]], KEY, repeats=2, results=saved)
    np.testing.assert_array_equal(swapped.wins, full.wins[np.ix_([1, 0], [1, 0])])
    with pytest.raises(ValueError, match="repeats"):
        ev.round_robin(env, players, KEY, repeats=1, results=saved)


def test_games_follow_the_seed():
    env = Hex(4)
    a = ev.compile_player(env, ev.uniform_random(env), 16)
    b = ev.compile_player(env, _named(a.player, "b"), 16)
    first = ev.play_match(env, a, b, KEY)
    _same(first, ev.play_match(env, a, b, jax.random.PRNGKey(0)))  # the older form of the same key
    other = ev.play_match(env, a, b, jax.random.key(1))
    assert not np.array_equal(first.outcomes, other.outcomes)


@pytest.mark.slow
def test_pgx_games_with_draws_and_a_random_first_seat():
    env = pytest.importorskip("pgx").make("tic_tac_toe")
    a, b = ev.uniform_random(env), _named(ev.uniform_random(env), "b")
    result = ev.play_match(env, a, b, KEY, repeats=40)
    outcomes, counts = np.unique(result.outcomes, return_counts=True)
    assert outcomes.tolist() == [0, 0.5, 1]
    # Random play: the opener wins 58.5% of the games and draws 12.7%; five standard deviations.
    opener = np.concatenate([result.outcomes[0], 1 - result.outcomes[1]])
    assert abs(opener.mean() - 0.648) < 5 * 0.44 / 720**0.5
    assert abs(counts[1] / 720 - 0.127) < 5 * 0.333 / 720**0.5


@pytest.mark.parametrize("host", [False, True])
def test_memory_is_kept_for_each_half(host):
    # A player that counts its moves in memory and reports when the board disagrees.
    env = Hex(3)
    xp = np if host else jnp

    def act(key, state, memory):
        own = xp.where(state.current_player == 0, 1, -1)[:, None]
        stones = (xp.sign(state.labels) == own).sum(-1)
        # The opening stone is its own in the half that it opened.
        opened = (state.current_player == 0).astype(np.int32)
        wrong = (~state.terminated & (stones - opened != memory)).sum()
        return xp.argmax(state.legal_action_mask, -1), memory + 1, {"wrong": wrong, "acts": 1}

    counter = ev.Player("counter", lambda n: xp.zeros(n, np.int32), act, host)
    result = ev.play_match(env, counter, ev.uniform_random(env), KEY)
    assert result.players[0].stats["wrong"] == 0
    assert result.players[0].stats["acts"] == result.players[0].calls


@pytest.mark.lenient
def test_parameters_are_arguments_of_the_program():
    env = Hex(3)
    weights = jnp.ones((27, 9)) * jnp.arange(9.0)

    def apply_fn(params, observation):
        logits = observation.reshape(len(observation), -1) @ params
        return logits, logits[:, 0]

    greedy = ev.raw_network(env, apply_fn, weights)
    program = ev.compile_player(env, greedy, 9).turn
    assert any(x is weights or jnp.shape(x) == (27, 9) for x in program.args[0])
    assert weights.shape == (27, 9)


def test_raw_network_plays_its_policy_from_both_seats():
    env = Hex(3)
    favourite = jnp.arange(9.0)[::-1]  # first row of the mover's own view

    def apply_fn(params, observation):
        return jnp.broadcast_to(params, (len(observation), 9)), jnp.zeros(len(observation))

    greedy = ev.raw_network(env, apply_fn, favourite)
    sampled = ev.raw_network(env, apply_fn, favourite, temperature=0.1, name="T")
    first = lambda action: env.step(env.init(), action)  # noqa: E731
    states = jax.jit(jax.vmap(first))(jnp.array([0, 4]))
    # Player 1 sees the board transposed, so its order is 0, 3, 6, ...
    assert greedy.act(KEY, states, ())[0].tolist() == [3, 0]
    assert sampled.act(KEY, states, ())[0].tolist() == [3, 0]
    result = ev.play_match(env, greedy, sampled, KEY)
    record = result.players[0]
    assert record.stats == {"num_evaluations": record.moves, "num_calls": record.calls}
    with pytest.raises(ValueError, match="temperature"):
        ev.raw_network(env, apply_fn, favourite, temperature=-1.0)


def test_random_is_uniform_over_legal_actions():
    env = Hex(2)
    state = env.step(env.init(), 2)
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x, (6000, *x.shape)), state)
    action, _, _ = ev.uniform_random(env).act(KEY, batch, ())
    counts = np.bincount(action, minlength=4)
    assert counts[2] == 0
    # Standard deviation 36.5; five of them are exceeded once in a million.
    assert np.abs(counts[[0, 1, 3]] - 2000).max() < 183


def test_openspiel_numbers_cells_alike_and_is_deterministic():
    pytest.importorskip("pyspiel")
    env = Hex(3)
    bot = ev.openspiel_mcts(env, num_simulations=200)
    # Each side to move can win at once in one cell only.
    wins = [([[1, 2, 0], [1, 2, 0], [0, 0, 0]], 6), ([[1, 0, 1], [2, 2, 0], [0, 1, 0]], 5)]
    states = [env.from_board(board) for board, _ in wins]
    states.append(env.from_board([[1, 2, 0], [1, 2, 0], [1, 0, 0]]))  # over
    batch = jax.device_get(jax.tree.map(lambda *x: jnp.stack(x), *states))
    action, _, stats = bot.act(KEY, batch, ())
    assert action[:2].tolist() == [6, 5]
    assert stats == {"num_rollouts": 400}
    random = ev.uniform_random(env)
    result = ev.play_match(env, bot, random, KEY)
    assert result.wins > 13  # of 18
    _same(result, ev.play_match(env, bot, random, KEY))
    for bad in (Hex(3, swap=True), None):
        with pytest.raises(ValueError, match="without the swap"):
            ev.openspiel_mcts(bad, num_simulations=1)
    with pytest.raises(ValueError, match="num_simulations"):
        ev.openspiel_mcts(env, num_simulations=0)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspiel", None)
    with pytest.raises(ImportError, match=r"jaxpgs\[bench\]"):
        ev.openspiel_mcts(Hex(3), num_simulations=1)


def test_exports():
    assert sorted(ev.__all__) == ev.__all__
    assert all(hasattr(ev, name) for name in ev.__all__)


@pytest.mark.slow
def test_lines_of_several_moves_are_played():
    env = Hex(3)
    lines = ev.opening_lines(env, KEY, 2, 20)
    assert lines.shape == (20, 2) and len(np.unique(lines, axis=0)) == 20
    assert (lines[:, 0] != lines[:, 1]).all()
    np.testing.assert_array_equal(lines, ev.opening_lines(env, KEY, 2, 20))
    assert len(ev.opening_lines(env, KEY, 2, 72)) == 72  # all there are
    with pytest.raises(
        ValueError, match="Only 72 lines of 2 moves were found, but num_lines is 73"
    ):
        ev.opening_lines(env, KEY, 2, 73)
    with pytest.raises(ValueError, match="at least 1"):
        ev.opening_lines(env, KEY, 0, 1)
    # A policy that wants the middle has it first, and then what is left.
    middle = lambda x: 100.0 * jax.nn.one_hot(jnp.full(len(x), 4), 9)  # noqa: E731
    drawn = ev.opening_lines(env, KEY, 2, 8, middle)
    assert (drawn[:, 0] == 4).all() and set(drawn[:, 1]) == set(range(9)) - {4}
    # Hex's second player sees the board mirrored, and so do the logits; all of 16 bits.
    corner = lambda x: (100 * jax.nn.one_hot(jnp.full(len(x), 1), 9)).astype(jnp.bfloat16)  # noqa: E731
    np.testing.assert_array_equal(ev.opening_lines(env, KEY, 2, 1, corner), [[1, 3]])
    # Both play the first empty cell: the games follow from the lines.
    first, second = _first_cell("a"), _first_cell("b")
    result = ev.play_match(env, first, second, KEY, openings=lines)
    np.testing.assert_array_equal(result.openings, lines)
    step = jax.jit(env.step)
    for o, line in enumerate(lines):
        state = env.init()
        for action in line:
            state = step(state, action)
        while not state.terminated:
            state = step(state, jnp.argmax(state.legal_action_mask))
        opener_won = float(state.rewards[0]) > 0
        assert result.outcomes[:, 0, o].tolist() == [opener_won, not opener_won]
    np.testing.assert_array_equal(result.by_opening, 0.5)
    with pytest.raises(ValueError, match="openings must"):
        ev.play_match(env, first, second, KEY, openings=[[4, 4]])


@pytest.mark.slow
def test_batches_play_every_game():
    env = Hex(3)
    a, b = _first_cell("a"), _named(ev.perfect_hex(env), "b")
    whole = ev.play_match(env, a, b, KEY)
    ticks = []
    parts = ev.play_match(env, a, b, KEY, batch_size=4, progress=lambda *x: ticks.append(x))
    np.testing.assert_array_equal(whole.outcomes, parts.outcomes)
    assert (whole.batch_size, parts.batch_size) == (9, 4)
    assert ticks[-1] == (24, 24, "a vs b")  # of which 6 fill the last batch
    assert parts.players[0].moves > whole.players[0].moves
    one = ev.play_match(env, a, b, KEY, batch_size=1)
    np.testing.assert_array_equal(whole.outcomes, one.outcomes)
    assert one.players[0].moves == whole.players[0].moves == one.players[0].calls
    with pytest.raises(ValueError, match=r"needs batch_size .* at least 1 .*; got 0"):
        ev.play_match(env, a, b, KEY, batch_size=0)
    for swapped in ((a, env, b, KEY), (env, KEY, a, b), (env, a, None, KEY)):
        with pytest.raises(ValueError, match=r"needs two players, such as .*, got \w+"):
            ev.play_match(*swapped)


def test_keys_of_any_kind_serve_a_match():
    env = Hex(3)
    players = _first_cell("a"), _named(ev.uniform_random(env), "b")
    keys = jax.random.key(0, impl="rbg"), jax.random.PRNGKey(0), KEY
    kinds = [ev.play_match(env, *players, key, openings=[4]).outcomes for key in keys]
    np.testing.assert_array_equal(*kinds[1:])
    assert kinds[0].shape == kinds[1].shape


def test_pairs_are_of_two_players_once():
    players = [_first_cell(name) for name in "abc"]
    for pairs in ([], [(0, 0)], [(0, 1), (1, 0)]):
        with pytest.raises(ValueError, match=r"two different players each.*; got \["):
            ev.round_robin(Hex(3), players, KEY, pairs=pairs)


def test_kept_parameters_need_a_search_that_adapts():
    env = Hex(3)
    apply_fn = lambda params, x: (jnp.zeros((len(x), 9)), jnp.zeros(len(x)))  # noqa: E731
    for policy_fn in (mctx.gumbel_muzero_policy, jaxpgs.mcs_policy):
        player = ev.search_player(env, apply_fn, (), policy_fn, 2, name="x", keep_adapted=True)
        with games.lenient_promotion(), pytest.raises(ValueError, match=r"adapts parameters.*x"):
            player.init(2)


@pytest.mark.slow
def test_a_match_that_was_stopped_goes_on_where_it_was():
    env, saved = Hex(3), []
    players = [_named(ev.uniform_random(env), name) for name in "ab"]
    whole = ev.play_match(env, *players, KEY, batch_size=4, repeats=2, on_batch=saved.append)
    assert [batch.outcomes.shape for batch in saved] == [(2, 4)] * 5  # 18 openings, 2 to fill up
    for side, spent in enumerate(whole.players):
        assert spent.moves == sum(batch.players[side].moves for batch in saved)
    again, ticks = [], []
    resumed = ev.play_match(
        env, *players, KEY, batch_size=4, repeats=2, on_batch=again.append,
        batches=[ev.MatchBatch.from_dict(json.loads(json.dumps(b.to_dict()))) for b in saved[:3]],
        progress=lambda *x: ticks.append(x),
    )  # fmt: skip
    _same(whole, resumed)
    # Of 4 batches one repeat is complete, of 2 the first 8 openings.
    for count, repeats, openings in ((5, 2, 9), (4, 1, 9), (2, 1, 8)):
        so_far = ev.MatchResult.from_batches(saved[:count], np.arange(9), 2)
        np.testing.assert_array_equal(so_far.outcomes, whole.outcomes[:, :repeats, :openings])
        np.testing.assert_array_equal(so_far.openings, np.arange(openings))
    assert len(again) == 2 and ticks[0][:2] == (24, 40)
    for one, other in zip(saved[3:], again, strict=True):
        np.testing.assert_array_equal(one.outcomes, other.outcomes)
    for wrong, size in ((saved[:3], 5), (saved * 2, 4)):
        with pytest.raises(ValueError, match=r"batches.*at most"):
            ev.play_match(env, *players, KEY, batch_size=size, repeats=2, batches=wrong)
    with pytest.raises(ValueError, match="Earlier batches"):
        ev.play_match(env, *players[::-1], KEY, batch_size=4, repeats=2, batches=saved[:3])


@pytest.mark.slow
def test_deterministic_repeats_are_not_played():
    env = Hex(3)
    fixed = [dataclasses.replace(_first_cell(name), deterministic=True) for name in "ab"]
    players = [*fixed, _named(ev.uniform_random(env), "c")]
    saved = []
    table = ev.round_robin(env, players, KEY, repeats=3, on_pair=saved.append)
    assert [result.outcomes.shape[1] for result in saved] == [1, 3, 3]
    assert table.wins[0, 1] + table.wins[1, 0] == 18
    assert table.wins[0, 2] + table.wins[2, 0] == 54
    again = ev.round_robin(env, players, KEY, repeats=3, results=saved)
    np.testing.assert_array_equal(again.wins, table.wins)
