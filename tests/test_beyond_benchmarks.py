"""The games, players and tables of the benchmarks of chance, continuous actions, many actions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import QUICK

from benchmarks import chance, continuous, noisy_bandit, tables, wide
from benchmarks.chance_games import pig, play2048
from benchmarks.paired import difference
from benchmarks.planners import Budget, make_cem, make_search, play
from benchmarks.point_mass import PointMass
from jaxpgs.adapters import step_with_keys


def test_2048_of_stochastic_muzero_is_pgxs():
    game = play2048()
    start = jax.vmap(game.env.init)(jax.random.split(jax.random.key(0), 16))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def play(state):
        def move(state, key):
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            action = jax.random.categorical(key, logits).astype(jnp.int32)
            odds, afterstate = jax.vmap(game.after)(state, action)
            after = step_with_keys(game.env)(state, action, key)
            cell = jnp.argmax(after._board != afterstate._board, axis=-1)
            outcome = cell + 16 * (after._board[jnp.arange(16), cell] - 1)
            ours = jax.vmap(game.draw)(afterstate, outcome)
            odds = jax.nn.softmax(odds)
            chosen = odds[jnp.arange(16), outcome]
            return after, (state.terminated, ours, after, chosen, jnp.sum(odds > 0, axis=-1))

        return jax.lax.scan(move, state, jax.random.split(jax.random.key(1), 150))[1]

    over, ours, theirs, odds, count = jax.device_get(play(start))
    going_on = ~over
    for name in ("_board", "rewards", "legal_action_mask", "terminated"):
        one, other = getattr(ours, name)[going_on], getattr(theirs, name)[going_on]
        np.testing.assert_array_equal(one, other, err_msg=name)
    assert over[-1].any(), "some games must end"
    # A free cell gets a 2 in nine of ten cases.
    free = count[going_on] / 2
    near = np.isclose(odds[going_on], 0.9 / free) | np.isclose(odds[going_on], 0.1 / free)
    assert near.all()


def test_pig_by_hand():
    game = pig(3)
    state = game.env.init(jax.random.key(0))
    odds, thrown = game.after(state, jnp.int32(1))
    np.testing.assert_allclose(jax.nn.softmax(odds), np.full(6, 1 / 6), rtol=1e-6)
    assert game.draw(thrown, jnp.int32(0)).inner.total == 0  # a 1 loses all
    five = game.draw(thrown, jnp.int32(4))
    assert five.inner.total == 5 and five.rewards[0] == 0 and not five.inner.thrown
    odds, banked = game.after(five, jnp.int32(0))
    assert jax.nn.softmax(odds)[0] == 1
    safe = game.draw(banked, jnp.int32(0))
    assert safe.inner.total == 0 and safe.rewards[0] == 5 and not safe.terminated
    last = game.env.step(safe, jnp.int32(0), jax.random.key(0))
    assert last.terminated and game.env.step(last, jnp.int32(0), jax.random.key(0)).steps == 3


def test_a_point_mass_by_hand():
    env = PointMass(2, 2)
    state = env.init(jax.random.key(0))
    after = env.step(state, jnp.array([3.0, -0.5]))  # the first is clipped to 1
    position, speed = state.inner
    cost = 0.1 * (position @ position + 0.1 * speed @ speed + 0.125)
    speed = speed + 0.1 * jnp.array([1.0, -0.5])
    np.testing.assert_allclose(after.inner.speed, speed, rtol=1e-6)
    np.testing.assert_allclose(after.inner.position, position + 0.1 * speed, rtol=1e-6)
    np.testing.assert_allclose(after.rewards, -cost[None], rtol=1e-5)
    assert not after.terminated and env.step(after, jnp.zeros(2)).terminated


@pytest.mark.parametrize("player", ["cem", "pgs"])
def test_planners_push_a_point_to_the_middle(player):
    env = PointMass(1, 12)
    starts = jax.vmap(env.init)(jax.random.split(jax.random.key(2), 8))
    numbers = {"log_std": -0.5, "root_log_std": 0.0, "c": 1.0, "step": 0.1, "keep": 1.0}
    make = functools.partial(make_search, True)
    if player == "cem":
        make, numbers = make_cem, {"log_std": 0.0, "elite": 0.25, "keep": 1.0}
    budget = Budget(calls=192, depth=12, candidates=4, iterations=2)
    run = jax.jit(lambda key: play(make, env, budget, numbers, key, starts), compiler_options=QUICK)
    # Who does nothing drifts away.
    idle = jax.vmap(
        lambda state: jax.lax.scan(
            lambda s, _: (env.step(s, jnp.zeros(1)), env.step(s, jnp.zeros(1)).rewards[0]),
            state, length=env.length,
        )[1].sum()
    )(starts)  # fmt: skip
    gained = np.asarray(run(jax.random.key(0)) - idle)
    assert gained.mean() > 0.1 and (gained > -0.05).all(), gained


def test_paired_intervals():
    one, other = np.arange(50.0) + np.tile([1.0, 3.0], 25), np.arange(50.0)
    mean, low, high = difference({"x": one}, {"x": other}, "x")
    # The differences are 1 and 3: their mean has a standard error of 1 / sqrt(50).
    assert mean == 2 and abs(high - low - 2 * 1.96 / 50**0.5) < 0.06


def test_a_kept_outcome_is_no_mean():
    """Searches that keep the first outcome of an arm choose no better with more simulations."""
    key, roots = jax.random.key(0), 500

    def best(search, simulations):
        odds = np.asarray(noisy_bandit.choices(search, simulations, roots, key))
        return np.mean(np.isclose(odds, max(noisy_bandit.ODDS)))

    # Of the arms that paid once any may be taken, which is the best one in 34.1% of all cases;
    # 0.1 are more than four standard errors.
    assert abs(best("MCS cached", 64) - 0.341) < 0.1
    assert best("MCS constant", 64) > 0.441


def test_tables():
    numbers = {"c": 1.0}
    row = {"problem": "p", "calls": 8, "part": "play", "depth": 2, "iterations": 1,
           "numbers": numbers}  # fmt: skip
    rows = [row | {"player": "PGS", "returns": [2.0, 3.0]},
            row | {"player": "MCS", "returns": [1.0, 2.0]}]  # fmt: skip
    columns, lines = continuous.table(rows)
    assert lines[0][:6] == ["p", 8, "PGS", 2.5, "+1.00", "+1.00 to +1.00"]
    assert tables.markdown_table(columns, lines)
    row = {"game": "g", "part": "play", "depth": 2, "numbers": numbers, "moves": [3, 4]}
    rows = [row | {"player": "MCS", "scores": [1.0, 2.0]},
            row | {"player": "mctx stochastic MuZero", "scores": [0.0, 4.0]}]  # fmt: skip
    columns, lines = chance.table(rows)
    assert [line[3] for line in lines] == [1.5, 2.0] and lines[1][4] == "+0.5"
    columns, lines = wide.table([{
        "space": "s", "actions": 9, "search": "x", "roots": 2, "ms": [1.0, 3.0],
        "bytes": {"10": 1_000_000, "20": 2_000_000},
    }])  # fmt: skip
    assert lines == [["s", 9, "x", 1.0, 2.0, 2.0]] and len(columns) == 6
    _, lines = noisy_bandit.table([{"search": "x", "simulations": 4, "chosen": [1, 1, 1, 1]}])
    assert lines[0] == ["x", "25.0 ± 42.4"]


def test_settings_are_drawn_by_the_seed():
    preset = continuous.PRESETS["full"]
    one, again, other = (continuous.draw_setting(preset, "PGS", n, 0) for n in (3, 3, 4))
    assert one == again != other and set(one["numbers"]) == {
        "log_std", "root_log_std", "c", "step", "keep"
    }  # fmt: skip
    assert {continuous.draw_setting(preset, "CEM", n, 0)["iterations"] for n in range(4)} == {2, 4}
