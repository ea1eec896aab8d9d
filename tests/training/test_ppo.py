"""PPO with delta-uniform self-play: advantages, the objective, opponents and the whole loop."""

import dataclasses
import functools
import inspect
import shutil

import chex
import games
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpgs.envs import Hex, SameGame
from jaxpgs.evaluation import play_match, raw_network, uniform_random
from jaxpgs.networks import FullyConnectedResNet, functional
from jaxpgs.training import Run, read_run
from jaxpgs.training.policy_gradient import learner_games, past_selves, ppo, ppo_loss
from jaxpgs.training.runtime.settings import by_name, flat

ENV = Hex(3)


@functools.cache
def make_network(width=32, observation_shape=ENV.observation_shape):
    return FullyConnectedResNet(
        observation_shape, ENV.num_actions, width=width, num_blocks=1, rngs=nnx.Rngs(0)
    )


def slow_advantages(rollout, last_value, discount, gae_lambda):
    """Game by game and forwards: the sum of temporal differences, each weighed by its distance."""
    num_steps, num_games = rollout.mine.shape
    advantage = np.zeros((num_steps, num_games))
    for g in range(num_games):
        differences = []  # of each of the learner's moves: step, difference, whether the game ended
        for t in np.flatnonzero(rollout.mine[:, g]):
            reward, following, ended = 0.0, None, False
            for u in range(t, num_steps):
                if u > t and rollout.mine[u, g]:
                    following = rollout.value[u, g]
                    break
                reward += rollout.reward[u, g]
                if rollout.finished[u, g]:
                    following, ended = 0.0, True
                    break
            following = last_value[g] if following is None else following
            difference = reward + discount * following - rollout.value[t, g]
            differences.append((t, difference, ended))
        for i, (t, _, _) in enumerate(differences):
            weight = 1.0
            for _, difference, ended in differences[i:]:
                advantage[t, g] += weight * difference
                if ended:
                    break
                weight *= discount * gae_lambda
    return advantage


def make_rollout(mine, reward, finished, value):
    nothing = np.zeros(np.shape(mine))
    return learner_games.Rollout(
        nothing, nothing, nothing, nothing, np.float32(value), mine, np.float32(reward), finished
    )


@jax.jit
def advantages(rollout, last_value, discount=1.0, gae_lambda=1.0):
    return learner_games.advantages(rollout, last_value, discount=discount, gae_lambda=gae_lambda)


@pytest.mark.parametrize("discount, gae_lambda", [(1.0, 1.0), (0.9, 0.7), (0.8, 0.0)])
def test_advantages_against_a_slow_reference(discount, gae_lambda):
    rng = np.random.default_rng(0)
    shape = (15, 40)
    rollout = make_rollout(
        rng.random(shape) < 0.7, rng.normal(size=shape), rng.random(shape) < 0.2,
        rng.normal(size=shape),
    )  # fmt: skip
    last = rng.normal(size=40).astype(np.float32)
    found, target = advantages(rollout, last, discount, gae_lambda)
    expected = slow_advantages(rollout, last, discount, gae_lambda)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    expected_target = np.where(rollout.mine, expected + rollout.value, 0)
    np.testing.assert_allclose(target, expected_target, atol=1e-5)


def test_an_advantage_worked_out_by_hand():
    # The learner moves, replies alone follow twice, the learner moves and wins; in the next game
    # the opponent moves first, and the rollout ends before it does.
    mine, reward = [True, False, False, True, False, True], [0.0, 0.25, 0.0, 1.0, 0.0, 0.0]
    finished, value = [False, False, False, True, False, False], [0.5, 9, 9, 0.5, 9, -0.5]
    columns = (np.array(x)[:, None] for x in (mine, reward, finished, value))
    found, _ = advantages(make_rollout(*columns), np.float32([0.75]), 0.5, 0.5)
    # 0.25 + 0.5 * 0.5 - 0.5 = 0 and 1 - 0.5; then 0.5 * 0.75 + 0.5.
    np.testing.assert_allclose(found[:, 0], [0.25 * 0.5, 0, 0, 0.5, 0, 0.875])


@dataclasses.dataclass(frozen=True)
class Race(games.Race):
    num_players: int = 2


def make_opponents(params, num_opponents):
    stacked = jax.tree.map(lambda x: jnp.stack([x] * num_opponents), params)
    return past_selves.Opponents(stacked, jnp.ones(num_opponents), jnp.zeros(num_opponents, int))


def test_what_a_move_gains_where_players_move_twice():
    """Each move pays its mover its length, and what one player gains the other loses."""
    env = Race(movers=(0, 0, 1, 1), length=9)

    def apply_fn(params, observation):
        return jnp.zeros((len(observation), 3)), params * jnp.ones(len(observation))

    @functools.partial(jax.jit, compiler_options=games.QUICK)
    def play(value):
        first = jnp.arange(8) % 2 == 0
        start = learner_games.start(env, jax.random.key(0), first)
        met = make_opponents(value, 2)
        return learner_games.play(env, apply_fn, value, met, jax.random.key(1), start, 24)

    after, rollout, last, result = jax.device_get(play(jnp.float32(0.0)))
    assert not rollout.mine[0, 1] and rollout.mine[0, 0], "the seats of the first games"
    assert (rollout.finished.sum(axis=0) > 1).all() and (rollout.action < 2).all()
    found, _ = advantages(rollout, last)
    # A walk of one or two steps on a track of 9: twice in a row one player may move.
    gain = np.where(rollout.mine, rollout.action + 1, 0)
    position = rollout.observation[..., 0]
    lost = np.where(rollout.finished[:-1], gain[:-1] - rollout.reward[:-1],
                    position[1:] - position[:-1] - gain[:-1])  # fmt: skip
    assert set(np.unique(lost)) == {0, 1, 2}
    np.testing.assert_array_equal(rollout.reward[:-1], gain[:-1] - lost)
    gain = rollout.reward
    for g in range(8):
        ends = np.flatnonzero(rollout.finished[:, g])
        for first, end in zip([0, *(ends + 1)], ends, strict=False):
            assert result.score[end, g] == gain[first : end + 1, g].sum()
            back = np.cumsum(gain[first : end + 1, g][::-1])[::-1]
            mine = rollout.mine[first : end + 1, g]
            np.testing.assert_array_equal(found[first : end + 1, g], np.where(mine, back, 0))
        seats = result.moved_first[ends, g]
        np.testing.assert_array_equal(seats, (np.arange(len(ends)) + g) % 2 == 0)
    # The value is the mover's, so the learner's with the other sign where the opponent moves.
    _, _, last, _ = jax.device_get(play(jnp.float32(0.5)))
    sign = np.where(after.state.current_player == after.learner, 1, -1)
    np.testing.assert_array_equal(last, 0.5 * sign)
    assert set(sign.tolist()) == {-1, 1}


def test_no_game_is_longer_than_its_limit():
    @functools.partial(jax.jit, compiler_options=games.QUICK)
    def play():
        env, params = Race(movers=(0, 1), length=9), jnp.float32(0.0)
        start = learner_games.start(env, jax.random.key(0), jnp.arange(4) % 2 == 0)
        return learner_games.play(
            env, lambda _, seen: (jnp.zeros((len(seen), 3)), jnp.zeros(len(seen))), params,
            make_opponents(params, 2), jax.random.key(1), start, 8, max_moves=3,
        )  # fmt: skip

    _, rollout, _, result = jax.device_get(play())
    assert rollout.finished.any(axis=0).all()
    assert (result.length[rollout.finished] == 3).all()


def test_games_of_hex_teach_their_result_to_both_seats():
    """With gamma = lambda = 1 the target of every move is how its game ended for the learner."""
    params, apply_fn = functional(make_network())

    @functools.partial(jax.jit, compiler_options=games.QUICK)
    def play():
        start = learner_games.start(
            ENV, jax.random.key(0), jnp.arange(16) % 2 == 0, max_random_moves=3
        )
        met = make_opponents(params, 4)
        return learner_games.play(
            ENV, apply_fn, params, met, jax.random.key(1), start, 16, max_random_moves=3
        )

    after, rollout, last, result = jax.device_get(play())
    _, target = advantages(rollout, last)
    legal = np.take_along_axis(rollout.legal, rollout.action[..., None], axis=-1)[..., 0]
    assert legal[rollout.mine].all()
    # A step is a move of the learner unless the opponent moves first in a new game.
    new = np.concatenate([np.zeros((1, 16), bool), rollout.finished[:-1]])
    assert (rollout.mine | new)[1:].all()
    won = {0: 0, 1: 0}
    for g in range(16):
        ends = np.flatnonzero(rollout.finished[:, g])
        for first, end in zip([0, *(ends + 1)], ends, strict=False):
            score = result.score[end, g]
            won[int(result.moved_first[end, g])] += score > 0
            assert score in (-1, 1)
            mine = rollout.mine[first : end + 1, g]
            found = target[first : end + 1, g]
            np.testing.assert_allclose(found, np.where(mine, score, 0), atol=1e-6)
        open_steps = slice(ends[-1] + 1 if len(ends) else 0, None)
        mine = rollout.mine[open_steps, g]
        np.testing.assert_allclose(target[open_steps, g], np.where(mine, last[g], 0), atol=1e-6)
    assert min(won.values()) > 0
    assert not after.state.terminated.any()


LOGITS = np.float32([[0.0, np.log(3.0), 7.0]])  # probabilities 1/4, 3/4, and an illegal action


@jax.jit
def gradient(old_probability, advantage, entropy_weight):
    moves = ppo_loss.Transitions(
        observation=None, legal=jnp.array([[True, True, False]]), action=jnp.array([1]),
        log_prob=jnp.log(old_probability)[None], advantage=advantage[None], value=jnp.ones(1),
        mine=jnp.ones(1, bool),
    )  # fmt: skip

    def loss(logits, value):
        return ppo_loss.ppo_loss(
            logits, value, moves, clip=0.2, value_weight=0.5, entropy_weight=entropy_weight
        )

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(LOGITS, jnp.zeros(1))


def test_gradients_of_the_clipped_objective():
    # Of -A pi / pi_old the gradient at the logits is -A pi / pi_old (e_1 - pi).
    direction = np.array([[-0.25, 0.25, 0.0]])
    for old, advantage, expected in [
        (0.75, 2.0, -2.0),  # ratio 1: the policy gradient
        (0.75 / 1.1, 2.0, -2.2),  # within the bounds
        (0.75 / 1.3, 2.0, 0.0),  # it need not be made likelier still
        (0.75 / 1.3, -2.0, 2.6),  # but it may come back
        (0.75 / 0.7, -2.0, 0.0),
        (0.75 / 0.7, 2.0, -1.4),
    ]:
        (found, by_value), parts = gradient(np.float32(old), np.float32(advantage), 0.0)
        np.testing.assert_allclose(found, expected * direction, atol=1e-5)
        np.testing.assert_allclose(by_value, [-1.0])  # 0.5 * 2 * (0 - 1)
        np.testing.assert_allclose(parts["clipped"], abs(0.75 / old - 1) > 0.2)
        np.testing.assert_allclose(parts["value_loss"], 1.0)


def test_an_illegal_action_has_no_gradient_and_no_share_in_the_entropy():
    (found, _), parts = gradient(np.float32(0.75), np.float32(0.0), 1.0)
    p = np.array([0.25, 0.75])
    entropy = -np.sum(p * np.log(p))
    np.testing.assert_allclose(parts["entropy"], entropy, rtol=1e-5)
    # Of -H the gradient is p (log p + H).
    np.testing.assert_allclose(found[0, :2], p * (np.log(p) + entropy), atol=1e-6)
    assert found[0, 2] == 0


def test_moves_of_others_count_nothing():
    moves = ppo_loss.Transitions(
        observation=None, legal=np.ones((2, 3), bool), action=np.array([1, 2]),
        log_prob=np.float32([-1.0, np.nan]), advantage=np.float32([1.0, np.nan]),
        value=np.float32([1.0, np.nan]), mine=np.array([True, False]),
    )  # fmt: skip
    logits, value = np.float32([[0, 1, 2], [3, 4, 5]]), np.float32([0.5, 0.5])
    run = jax.jit(jax.grad(lambda *x: ppo_loss.ppo_loss(*x)[0], argnums=(0, 1)))
    both = run(logits, value, moves)
    one = run(logits[:1], value[:1], jax.tree.map(lambda x: x[:1], moves))
    for found, expected in zip(both, one, strict=True):
        np.testing.assert_allclose(found[:1], expected, rtol=1e-6)
        np.testing.assert_array_equal(found[1], 0)


@functools.partial(jax.jit, static_argnums=(1, 2))
def draw(rng_key, num_opponents, schedule, **knobs):
    """Draws from a history of 12 versions of which 8 are left; version n has the parameter n."""
    history = past_selves.init(jnp.float32(0), 8)
    for n in range(12):
        history = past_selves.add(history, jnp.float32(n), 10 * n)
    pool = jnp.float32([-1, -2])
    return past_selves.draw(
        history, jnp.float32(100), rng_key, num_opponents, schedule=schedule, pool=pool, **knobs
    )


def test_opponents_are_drawn_uniformly_from_the_window():
    none = {"pool_fraction": 0.0, "random_fraction": 0.0}
    for delta, versions in [
        (0.0, [100]),  # naive self-play: the learner as it is now
        (0.5, [8, 9, 10, 100]),  # the last snapshot stands for the newest version
        (0.55, [7, 8, 9, 10, 100]),
        (1.0, [4, 5, 6, 7, 8, 9, 10, 100]),
    ]:
        drawn = draw(jax.random.key(3), 4000, "random", delta=delta, **none)
        values, counts = np.unique(drawn.params, return_counts=True)
        np.testing.assert_array_equal(values, versions)
        # Five standard deviations of a binomial: all 18 bounds hold but for one time in 90,000.
        share = 1 / len(versions)
        assert (abs(counts - 4000 * share) <= 5 * np.sqrt(4000 * share * (1 - share))).all()
        np.testing.assert_array_equal(drawn.age == 0, drawn.params == 100)
        np.testing.assert_array_equal(drawn.sharpness, 1)
        places = draw(jax.random.key(4), 20, "in_turn", delta=delta, **none)
        _, counts = np.unique(places.params, return_counts=True)
        assert counts.min() >= 20 // len(versions) and counts.max() <= -(-20 // len(versions))


def test_a_version_is_as_likely_in_turn_as_by_lot():
    """One opponent that is drawn in turn, many times: it is each version equally often."""
    keys = jax.random.split(jax.random.key(5), 4000)
    one = jax.vmap(lambda key: draw(key, 1, "in_turn", delta=0.5, pool_fraction=0.0,
                                    random_fraction=0.0).params[0])  # fmt: skip
    _, counts = np.unique(one(keys), return_counts=True)
    # As above; 4 bounds, one time in 400,000.
    assert (abs(counts - 1000) <= 5 * np.sqrt(4000 * 0.25 * 0.75)).all() and len(counts) == 4


def test_a_pool_and_random_players_have_their_share():
    knobs = {"delta": 0.5, "pool_fraction": 0.5, "random_fraction": 0.25}
    drawn = draw(jax.random.key(0), 16, "in_turn", **knobs)
    np.testing.assert_array_equal(drawn.sharpness, np.repeat([0, 1], [4, 12]))
    ages = np.repeat([past_selves.RANDOM, past_selves.POOL], [4, 8])
    np.testing.assert_array_equal(drawn.age[:12], ages)
    np.testing.assert_array_equal(drawn.params[4:], [-1] * 4 + [-2] * 4 + [100, 10, 9, 8])


TRAINING = {
    "num_games": 32, "num_steps": 16, "batch_size": 128, "num_opponents": 4, "epochs": 4,
    "max_random_moves": 6, "evaluate_every": 15, "num_iterations": 30, "history_size": 20,
}  # fmt: skip


def train(**knobs):
    knobs = {"optimizer": optax.adam(3e-3)} | TRAINING | knobs
    return by_name(ppo.train)(ENV, make_network(), **knobs)


def assert_equal_states(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_equal(tmp_path):
    few = {"num_iterations": 3, "evaluate_every": 0, "history_size": 2, "checkpoint_every": 1}
    rows, later = [], []
    whole = train(**few, directory=tmp_path, callback=lambda _, metrics: rows.append(metrics))
    shutil.rmtree(tmp_path / "3")  # as if it had been stopped after the second
    resumed = train(**few, directory=tmp_path, callback=lambda _, metrics: later.append(metrics))
    assert_equal_states(resumed, whole)
    assert later == rows[2:] and [row["opponents"] for row in rows] == [1, 2, 2]


@pytest.mark.slow
def test_learns_3x3_and_goes_on_bit_equal_after_a_stop(tmp_path):
    rows, later = [], []
    whole = train(callback=lambda _, metrics: rows.append(metrics))
    stopped = train(directory=tmp_path, callback=lambda _, metrics: metrics["iteration"] == 13)
    assert int(stopped.iteration) == 13
    resumed = train(directory=tmp_path, callback=lambda _, metrics: later.append(metrics))
    assert_equal_states(resumed, whole)
    assert later == rows[13:]
    run = read_run(tmp_path)
    chex.assert_trees_all_equal(run.last, jax.device_get(whole.params))
    assert (run.trainer, run.iteration, run.best) == ("ppo", 30, None) and len(run.curve) == 30

    assert [row["opponents"] for row in rows] == [min(n, 20) for n in range(1, 31)]
    np.testing.assert_array_equal(whole.history.iteration, [*range(20, 30), *range(10, 20)])
    assert all(row["mean_length"] > 3 and row["finished_games"] > 0 for row in rows)
    first = sum(row["moved_first"] * row["finished_games"] for row in rows)
    total = sum(row["finished_games"] for row in rows)
    # A game's seats alternate, so the two numbers differ by one for each of the 32 at most.
    assert abs(2 * first - total) <= 32
    along = ppo.elo_along(ENV, make_network(), whole, num_players=3)
    np.testing.assert_array_equal(along.iteration, [10, 20, 30])
    np.testing.assert_array_equal(along.scores + along.scores.T, 1)
    assert along.table.ratings[0] == 0 and {"elo", "score_against_history"} <= set(rows[14])

    _, apply_fn = functional(make_network())
    player = raw_network(ENV, apply_fn, whole.params)
    match = play_match(ENV, player, uniform_random(ENV), jax.random.key(0), repeats=10)
    # One that won half of its games would win 123 of 180 less than one time in a million.
    assert match.games == 180 and match.wins >= 123, match.wins


class BatchNormed(nnx.Module):
    """A network with batch statistics."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(18, rngs=rngs)
        self.linear = nnx.Linear(18, 10, rngs=rngs)

    def __call__(self, observation):
        x = observation.reshape(len(observation), -1).astype(jnp.float32)
        outputs = self.linear(self.norm(x))
        return outputs[:, :9], jnp.tanh(outputs[:, 9])


@pytest.mark.slow
def test_trains_in_an_environment_of_pgx_with_a_pool_and_batch_statistics():
    import pgx

    env, network = pgx.make("tic_tac_toe"), BatchNormed(nnx.Rngs(0))
    params, _ = functional(network)
    rows = []
    state = ppo.train(
        env, network, num_iterations=3, games=ppo.Games(num_games=16, num_steps=8),
        opponents=ppo.Opponents(
            delta=0.0, num_opponents=4, schedule="random", history_size=3, snapshot_every=2,
            pool=[params], pool_fraction=0.5, random_fraction=0.25,
        ),
        fit=ppo.Fit(batch_size=64), evaluate_every=3,
        run=Run(callback=lambda _, m: rows.append(m)),
    )  # fmt: skip
    assert np.isfinite([row["policy_loss"] + row["value_loss"] for row in rows]).all()
    assert [row["opponents"] for row in rows] == [1, 1, 1] and int(state.history.taken) == 2
    assert all(0 <= row["score"] <= 1 and row["finished_games"] > 0 for row in rows)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), params, state.params)
    assert moved["norm"]["mean"] and moved["norm"]["var"] and moved["linear"]["kernel"]
    # Mini-batches move the statistics by averaging: a variance stays one.
    assert 0 < float(state.params["norm"]["var"].min()) < 1.1
    assert "elo" in rows[2]


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"delta": 1.5}, "delta to be a finite number at least 0 and at most 1; got 1.5"),
        ({"schedule": "naive"}, 'schedule to be one of "in_turn", "random"; got \'naive\''),
        ({"num_opponents": 5}, "num_opponents must divide num_games.* got 5 of 32"),
        ({"batch_size": 100}, r"batch_size num_games \* num_steps = 512; got 4 of 32, and 100"),
        ({"pool_fraction": 0.5}, "pool and .* together; got 0 parameters and 0.5"),
        ({"pool_fraction": 0.7, "random_fraction": 0.7}, "must be at most 1, got 0.7 and 0.7"),
        ({"pool": [{}], "pool_fraction": 0.5}, "parameters of the pool do not fit the network"),
        ({"clip": 0.0}, "clip to be a finite number above 0; got 0.0"),
        ({"gae_lambda": -0.1}, "gae_lambda to be .* got -0.1"),
        ({"entropy_weight": -1.0}, "entropy_weight to be .* got -1.0"),
        ({"evaluate_every": -1}, "evaluate_every to be .* got -1"),
    ],
)
def test_bad_arguments_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        train(**knobs)


def test_a_game_of_one_player_is_refused():
    with pytest.raises(ValueError, match=r"two players; .* has 1\. "):
        ppo.train(SameGame(height=3, width=3, num_colors=2), make_network())


def test_a_directory_of_another_run_is_refused(tmp_path):
    from jaxpgs.training.runtime.checkpoint import describe, lock_run

    defaults = {n: x.default for n, x in inspect.signature(ppo.train).parameters.items()}
    defaults = flat(defaults, "games", "opponents", "fit", "run")
    given = defaults | TRAINING | {"env": ENV, "network": make_network()}
    given |= {"optimizer": optax.adam(3e-3), "delta": 1.0}
    with (
        lock_run(tmp_path, describe("ppo", given)),
        pytest.raises(RuntimeError, match="Another process trains in"),
    ):
        train(directory=tmp_path)
    with pytest.raises(ValueError, match=r"holds a run with delta 1\.0, not 0\.0"):
        train(directory=tmp_path, delta=0.0)


def test_ratings_need_something_to_rate():
    history = past_selves.add(past_selves.init(np.float32(0), 2), np.float32(1), 0)
    compare = lambda a, b: 0.75 if a > b else 0.25  # noqa: E731
    rate = functools.partial(past_selves.elo_along, history, np.float32(2))
    along = rate(1, compare, 100)
    # Two virtual games: 76 of 102.
    np.testing.assert_allclose(along.table.ratings, [0, 400 * np.log10(76 / 26)], rtol=1e-6)
    with pytest.raises(ValueError, match="there is none"):
        rate(0, compare, 100)
    with pytest.raises(ValueError, match="num_players to be at least 2, got 1"):
        rate(1, compare, 100, num_players=1)
