"""Self-play, the replay buffer and the training loop, on 3x3 Hex."""

import dataclasses
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest
import toy
from flax import nnx
from games import FAST, QUICK, mostly_slow

import jaxpgs
from jaxpgs.adapters.environments import chance_key
from jaxpgs.envs import Hex
from jaxpgs.evaluation import perfect_hex, play_match, raw_network
from jaxpgs.networks import FullyConnectedResNet, functional
from jaxpgs.training import read_run
from jaxpgs.training.models import labelling, unrolls
from jaxpgs.training.runtime import loggers, sharding
from jaxpgs.training.runtime.arguments import fingerprint
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import (
    expert_iteration,
    experts,
    head_to_head,
    losses,
    objectives,
    replay,
    resignation,
    selfplay,
)

train = by_name(expert_iteration.train)
ENV = Hex(3)
TINY = {
    "num_games": 8, "num_steps": 4, "buffer_size": 64, "batch_size": 16, "updates_per_iteration": 2,
    "evaluate_every": 0, "max_random_moves": 0,
}  # fmt: skip


@functools.cache  # every layer's weights are drawn by a program of their shape
def make_network(width=32, env=ENV):
    with jax.ensure_compile_time_eval():  # some call this in a function that is traced
        return FullyConnectedResNet(
            env.observation_shape, env.num_actions, width=width, num_blocks=1, rngs=nnx.Rngs(0)
        )


def first_legal(params, rng_key, root, recurrent_fn, invalid_actions):
    """An expert known by heart: it plays the first empty cell and values everything 0.25.

    Its sampled action is the last empty cell.
    """
    best = jnp.argmin(invalid_actions, axis=-1)
    last = invalid_actions.shape[-1] - 1 - jnp.argmin(invalid_actions[:, ::-1], axis=-1)
    policy = jax.nn.one_hot(best, invalid_actions.shape[-1])
    return experts.Decision(last, best, policy, jnp.full(best.shape, 0.25))


def drawn(params, rng_key, root, recurrent_fn, invalid_actions):
    """An expert that does not search: it learns what is drawn from the network's policy."""
    logits = jnp.where(invalid_actions, -jnp.inf, root.prior_logits)
    action = jax.random.categorical(rng_key, logits).astype(jnp.int32)
    policy = jax.nn.one_hot(action, logits.shape[-1])
    return experts.Decision(action, action, policy, root.value)


NUM_GAMES = 4


@jax.jit
def start_games(resign_fraction):
    return selfplay.init_games(
        ENV, jax.random.key(0), NUM_GAMES, selfplay.Start(resign_fraction=resign_fraction)
    )


@functools.partial(jax.jit, static_argnums=1, compiler_options=QUICK)
def _play_first_legal(games, num_steps, knobs):
    params, apply_fn = functional(make_network())
    return by_name(selfplay.play)(
        ENV, apply_fn, first_legal, params, jax.random.key(0), games, num_steps, **knobs
    )


def play_first_legal(num_steps=9, games=None, **knobs):
    """Plays on, from the empty board by default; compiled once per number of steps."""
    games = start_games(0.0) if games is None else games
    defaults = {"sampled_moves": 0, "resign_below": -np.inf, "resign_fraction": 0.0}
    return jax.device_get(_play_first_legal(games, num_steps, defaults | knobs))


def test_value_targets_are_results_from_the_movers_view():
    # From the empty board both sides fill cells in order: 0 1 2 3 4 5 6. Player 0's cells
    # 0, 2, 4, 6 hold 6-4-2, which joins row 2 with row 0, so the seventh move wins.
    _, seen, report = play_first_legal()
    np.testing.assert_array_equal(seen.value[:7, 0], [1, -1, 1, -1, 1, -1, 1])
    np.testing.assert_array_equal(seen.open[:7, 0], 0)
    # A new game began, whose result is still open: its next position is of player 0 again.
    np.testing.assert_array_equal(seen.value[7:, 0], [0, 0])
    np.testing.assert_array_equal(seen.open[7:, 0], [1, -1])
    np.testing.assert_array_equal(report.finished[:, 0], np.arange(9) == 6)
    assert report.length[6, 0] == 7
    assert report.winner_lowest[6, 0] == 0.25
    assert np.isnan(report.winner_lowest[:6, 0]).all()


def test_a_value_of_best_play_does_not_mind_other_moves():
    params, apply_fn = functional(make_network())
    play = functools.partial(
        selfplay.play, ENV, apply_fn, first_legal, num_steps=9,
        moves=selfplay.Moves(sampled_moves=2), kept=selfplay.Kept(value_target="best"),
    )  # fmt: skip
    run = jax.jit(play, compiler_options=QUICK)
    _, seen, report = jax.device_get(run(params, jax.random.key(0), start_games(0.0)))
    # The last two cells first, which are not the expert's best ones; then 0 1 2 3 4 5 6, all best,
    # and the ninth move wins for player 0. What the expert says of a position is 0.25.
    np.testing.assert_array_equal(seen.value[:, 0], [0.25, 0.25, 1, -1, 1, -1, 1, -1, 1])
    np.testing.assert_array_equal(seen.open, 0)
    np.testing.assert_array_equal(report.finished[:, 0], np.arange(9) == 8)


def test_what_a_search_adapts_goes_on_within_a_game():
    """An expert whose "search" adds one to the head's biases, and tells them as its policy."""
    params, apply_fn = functional(make_network())
    params["policy_head"]["linear"]["bias"] = np.full(ENV.num_actions, 5.0, np.float32)

    def expert(*args, adapted_params=None):
        decision = first_legal(*args)
        biases = jnp.full((len(decision.best), ENV.num_actions), 5.0)
        if adapted_params is not None:
            biases = adapted_params["policy_head"]["linear"]["bias"]
        after = jax.tree.map(lambda _: None, params)
        after["policy_head"]["linear"]["bias"] = biases + 1
        return decision._replace(policy=biases, adapted_params=after)

    def counts(expert=expert, **knobs):
        moves = selfplay.Moves(sampled_moves=0, **knobs)
        play = functools.partial(selfplay.play, ENV, apply_fn, expert, num_steps=9, moves=moves)
        _, seen, report = jax.jit(play)(params, jax.random.key(0), games=start_games(0.0))
        np.testing.assert_array_equal(np.flatnonzero(report.finished[:, 0]), [6])
        return seen.policy[:, 0, 0]

    np.testing.assert_array_equal(counts(keep_adapted=True), [5, 6, 7, 8, 9, 10, 11, 5, 6])
    np.testing.assert_array_equal(counts(), np.full(9, 5))
    judge = experts.epsilon_greedy(expert, 0.5)  # `sampled_moves` is 0, so it plays the best
    np.testing.assert_array_equal(counts(judge, keep_adapted=True), [*range(5, 12), 5, 6])
    with pytest.raises(ValueError, match="adapts parameters"):
        selfplay.play(
            ENV, apply_fn, first_legal, params, jax.random.key(0), start_games(0.0), 2,
            moves=selfplay.Moves(keep_adapted=True),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Thirds(Hex):
    """Hex whose observations are no whole numbers, as those of chess."""

    def observe(self, state):
        return super().observe(state) / 3


@dataclasses.dataclass
class Unhashable:
    """Hex as a dataclass that is not frozen, which has no hash."""

    inner: Hex
    num_players = 2

    def init(self, rng_key=None):
        return self.inner.init(rng_key)

    def step(self, state, action):
        return self.inner.step(state, action)

    def observe(self, state):
        return self.inner.observe(state)


def test_observations_that_are_whole_numbers_take_a_byte_each():
    assert replay.observation_dtype(ENV) == jnp.int8
    assert replay.observation_dtype(Thirds(3)) == jnp.float32
    assert replay.observation_dtype(Unhashable(ENV)) == jnp.int8


@pytest.mark.slow
def test_observations_are_kept_as_they_are():
    env, (params, apply_fn) = Thirds(3), functional(make_network())
    state = train(
        env, make_network(), expert=first_legal, num_iterations=1, resign_fraction=0.0, **TINY
    )
    assert set(np.unique(state.replay.blocks.observation)) == {np.float32(0), np.float32(1 / 3)}
    games = labelling.label_games(
        env, apply_fn, params, num_games=1, games=labelling.Games(games_at_once=2, num_steps=9)
    )
    assert set(np.unique(games.observation)) == {np.float32(0), np.float32(1 / 3)}


def test_devices_must_be_some():
    with pytest.raises(ValueError, match=r"devices.*at least one"):
        train(ENV, make_network(), devices=[], **TINY)


def test_random_moves_do_not_know_the_chance_of_the_game():
    keys, illegal = jax.random.split(jax.random.key(0), 64), jnp.zeros((64, 9), bool)
    root = mctx.RootFnOutput(prior_logits=jnp.zeros((64, 9)), value=jnp.zeros(64), embedding=None)
    expert = experts.epsilon_greedy(experts.raw_policy(), 1.0)
    action = expert(None, keys, root, None, illegal).action
    known = jax.vmap(lambda key: jax.random.split(chance_key(key))[0])(keys)
    told = jax.vmap(lambda key: jax.random.categorical(key, jnp.zeros(9)))(known)
    assert (np.asarray(action) != np.asarray(told)).any()


@pytest.mark.lenient
@pytest.mark.parametrize("name", ["raw", "greedy", "mcs"])
def test_games_are_the_same_with_and_without_devices(name):
    params, apply_fn = functional(make_network())
    raw = experts.raw_policy()
    expert = {
        "raw": raw, "greedy": experts.epsilon_greedy(raw, 0.5),
        "mcs": experts.make_expert("mcs", 2),
    }[name]  # fmt: skip

    def play(games):
        moves = selfplay.Moves(sampled_moves=9)
        return selfplay.play(
            ENV, apply_fn, expert, params, jax.random.key(1), games, 2, moves=moves
        )[0].state

    mesh = sharding.make_mesh(jax.devices()[:1], {})
    shared = sharding.per_device(mesh, play, (0,), 0)
    games = start_games(0.0)
    found = (jax.jit(one, compiler_options=QUICK)(games).labels for one in (play, shared))
    np.testing.assert_array_equal(*found)


def test_open_games_learn_their_return_from_later_blocks():
    """Three blocks of 3, 3 and 1 moves give the targets of the whole game at once."""
    whole = jax.tree.map(lambda x: x[:7], play_first_legal()[1])  # the seventh move wins
    buffer = replay.init(ENV, 3, 3, NUM_GAMES)
    add = jax.jit(replay.add)
    games = None
    for _ in range(2):
        games, block, _ = play_first_legal(3, games)
        buffer = add(buffer, block)
        is_open = np.asarray(buffer.blocks.open)[: int(buffer.added)]
        assert (is_open != 0).all(), "nobody has won yet"
    blocks = jax.device_get(add(buffer, play_first_legal(3, games)[1]).blocks)
    line = jax.tree.map(lambda x: x.reshape(9, *x.shape[2:])[:7], blocks)
    np.testing.assert_array_equal(line.value, whole.value)
    np.testing.assert_array_equal(line.open, 0)
    np.testing.assert_array_equal(line.observation, whole.observation)


def test_the_buffer_forgets_the_oldest_block():
    blocks = [
        selfplay.Experience(
            observation=np.full((2, 1, 3, 3, 3), i, np.int8), legal=np.ones((2, 1, 9), bool),
            policy=np.full((2, 1, 9), 1 / 9, np.float32), value=np.full((2, 1), i, np.float32),
            open=np.zeros((2, 1), np.float32),
        )
        for i in range(5)
    ]  # fmt: skip
    add = jax.jit(replay.add)
    sample = jax.jit(lambda buffer: replay.sample(ENV, buffer, jax.random.key(0), 200))
    buffer = add(replay.init(ENV, 3, 2, 1), blocks[0])
    assert (np.asarray(sample(buffer).value) == 0).all(), "empty places are never drawn"
    for block in blocks[1:]:
        buffer = add(buffer, block)
    drawn = sample(buffer)
    assert drawn.observation.dtype == jnp.float32, "as the network sees them while it plays"
    # Each block has a third: the chance that one is missing is below 1e-34.
    assert set(np.asarray(drawn.value).tolist()) == {2, 3, 4}


def test_moves_are_sampled_first_and_greedy_later():
    _, seen, _ = play_first_legal(sampled_moves=2)
    board = np.asarray(seen.observation[3, 0])  # player 1 to move, so transposed
    # Moves 0 and 1 took the last cells 8 and 7, move 2 the first.
    mine, other = board[..., 0].T.reshape(-1), board[..., 1].T.reshape(-1)
    np.testing.assert_array_equal(np.flatnonzero(mine), [7])
    np.testing.assert_array_equal(np.flatnonzero(other), [0, 8])


def last_legal(*data):
    """A quicker expert than `first_legal`, of another opinion."""
    decision = first_legal(*data)
    policy = jax.nn.one_hot(decision.action, ENV.num_actions)
    return decision._replace(best=decision.action, policy=policy, num_evaluations=7)


@functools.partial(jax.jit, static_argnums=1, compiler_options=QUICK)
def play_fast(rng_key, num_steps, share):
    params, apply_fn = functional(make_network())
    games = selfplay.init_games(ENV, rng_key, NUM_GAMES)
    return selfplay.play(
        ENV, apply_fn, first_legal, params, rng_key, games, num_steps,
        moves=selfplay.Moves(sampled_moves=0, fast=last_legal, full_share=share),
        kept=selfplay.Kept(keep_played=True),
    )  # fmt: skip


def test_fast_moves_play_and_teach_values_alone():
    counts = []
    for seed in range(8):
        _, seen, report = jax.device_get(play_fast(jax.random.key(seed), 9, 0.5))
        full = seen.policy.sum(axis=-1) == 1
        # All games share a draw, and what a fast search says of the policy is not kept.
        assert (full == full[:, :1]).all() and not seen.policy[~full].any()
        np.testing.assert_array_equal(report.num_evaluations, np.where(full, 1, 8))
        # Fast moves are made: the last cell is taken, of the position as its mover sees it.
        taken = np.asarray(seen.observation[1, 0, ..., :2]).sum(axis=-1).T.reshape(-1)
        np.testing.assert_array_equal(np.flatnonzero(taken), [0 if full[0, 0] else 8])
        # The value learns from every move of a game that is over.
        ends = np.flatnonzero(report.finished[:, 0])
        assert len(ends) and (seen.open[: ends[-1] + 1, 0] == 0).all()
        assert (np.abs(seen.value[: ends[-1] + 1, 0]) == 1).all()
        counts.append(int(full[:, 0].sum()))
    # Half of nine moves: four or five, by lot; one in 128 that all are the same.
    assert set(counts) == {4, 5}
    steps = jax.vmap(lambda key: selfplay.draw_full(key, 8, 0.25))
    drawn = np.asarray(steps(jax.random.split(jax.random.key(0), 2000)))
    np.testing.assert_array_equal(drawn.sum(axis=1), 2)
    # Any step as often as another: 500 expected, with a standard deviation of 19.
    assert (np.abs(drawn.sum(axis=0) - 500) < 90).all()


def test_fast_moves_may_be_of_an_expert_that_tells_other_things():
    params, apply_fn = functional(make_network())

    def telling(*data, **kept):
        """Tells more than `first_legal`, and its policy in another type."""
        told, shape = last_legal(*data), (NUM_GAMES, ENV.num_actions)
        return told._replace(
            policy=told.policy.astype(jnp.float16), num_evaluations=jnp.full(NUM_GAMES, 7),
            adapted_params={"bias": told.value},
            visits=jnp.zeros(shape, jnp.int32), qvalues=jnp.zeros(shape, jnp.float32),
        )  # fmt: skip

    def play(expert, fast, keep_adapted=False, keep_root=False):
        moves = selfplay.Moves(fast=fast, full_share=0.5, keep_adapted=keep_adapted)
        return selfplay.play(
            ENV, apply_fn, expert, params, jax.random.key(0), start_games(0.0), 8, moves=moves,
            kept=selfplay.Kept(keep_root=keep_root),
        )  # fmt: skip

    for searches in ((first_legal, telling), (telling, first_legal)):
        _, _, report = jax.jit(functools.partial(play, *searches), compiler_options=QUICK)()
        assert sorted(report.num_evaluations[:, 0].tolist()) == [1] * 4 + [8] * 4
        adapting = r"needs an expert that adapts parameters.* fast moves"
        with pytest.raises(ValueError, match=adapting):
            play(*searches, keep_adapted=True)
        with pytest.raises(ValueError, match=r"keep_root.* fast moves"):
            play(*searches, keep_root=True)


@pytest.mark.lenient
@pytest.mark.parametrize(
    "full, fast", mostly_slow([("pgs", "raw"), ("pgs", "mcs"), ("mcs", "gumbel")], ("pgs", "raw"))
)
def test_experts_of_two_kinds_share_the_moves(full, fast):
    params, apply_fn = functional(make_network())
    fast = experts.raw_policy() if fast == "raw" else experts.make_expert(fast, 2)
    play = functools.partial(
        selfplay.play, ENV, apply_fn, experts.make_expert(full, 2), num_steps=2,
        moves=selfplay.Moves(fast=fast),
    )  # fmt: skip
    games = jax.eval_shape(play, params, jax.random.key(0), start_games(0.0))[0]
    assert games.move.shape == (NUM_GAMES,)


def test_positions_without_a_policy_do_not_teach_it():
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(9), 6).astype(np.float32)
    policy[[1, 4, 5]] = 0.0
    root = jaxpgs.base.NodeStats(
        rng.normal(size=(6, 9)), rng.normal(size=6), rng.integers(0, 4, (6, 9)),
        rng.normal(size=(6, 9)), np.ones((6, 9), bool),
    )  # fmt: skip
    root = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == float else x, root)
    value = np.float32([1, -1, 1, -1, 1, -1])
    target = selfplay.Experience(
        None, root.valid, policy, value, np.zeros(6, np.float32), root=root
    )
    known = jax.tree.map(lambda x: x[[0, 2, 3]], target)
    logits = rng.normal(size=(6, 9)).astype(np.float32)
    for objective in (objectives.cross_entropy(), objectives.tspg()):

        @jax.value_and_grad
        def loss(logits, target, objective=objective):
            return losses.objective_loss(logits, target, objective)

        found, slope = jax.jit(loss)(logits, target)
        expected, rows = jax.jit(loss)(logits[[0, 2, 3]], known)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_allclose(slope[np.array([0, 2, 3])], rows, rtol=1e-5, atol=1e-7)
        assert not np.asarray(slope)[[1, 4, 5]].any() and np.asarray(rows).all()
        none = target._replace(policy=0 * policy)
        assert jax.jit(loss)(logits, none)[0] == 0
    broken = target._replace(policy=np.full_like(policy, np.nan))
    assert np.isnan(losses.objective_loss(logits, broken, objectives.cross_entropy()))
    _, parts = losses.policy_value_loss(logits, 0 * value, target)
    np.testing.assert_allclose(parts["value_loss"], 1)  # of all six


def test_unrolls_without_a_policy_do_not_teach_it():
    _, seen, _ = play_fast(jax.random.key(0), 9, 0.5)
    time, game = np.indices((9, NUM_GAMES)).reshape(2, -1)
    read = jax.jit(lambda seen, *data: unrolls.unrolls_at(ENV, unrolls.timeline(seen), *data, 0))
    found = read(seen, time, game, jax.random.key(2))
    full = np.asarray(seen.policy).sum(axis=-1).ravel()
    assert 0 < full.mean() < 1
    np.testing.assert_array_equal(found.policy_weight[:, 0], full)


def test_policy_target_is_in_the_networks_frame():
    _, seen, _ = play_first_legal()
    # Player 1 plays cell 1 = (0, 1), which is (1, 0) = cell 3 on its transposed board.
    np.testing.assert_array_equal(np.argmax(seen.policy[:2, 0], axis=-1), [0, 3])
    np.testing.assert_array_equal(seen.legal[1, 0], np.arange(9) != 0)


def test_resigning_loses_at_once():
    games = start_games(1.0)
    _, seen, report = play_first_legal(games=games, resign_below=0.3, resign_fraction=1.0)
    np.testing.assert_array_equal(seen.value, -1)
    assert report.resigned.all() and report.finished.all()
    assert np.isnan(report.winner_lowest).all(), "only games without resignation calibrate"
    _, _, report = play_first_legal(resign_below=0.3)
    assert not report.resigned.any()
    assert (report.winner_lowest[6] == 0.25).all()


def test_resignation_threshold_against_numpy():
    """The threshold is the largest with no more than 5% of the winners below it."""
    rng = np.random.default_rng(0)
    lowest = rng.uniform(-1, 1, 500).astype(np.float32)
    add, threshold = jax.jit(resignation.add), jax.jit(resignation.threshold)
    record = resignation.init(200)
    assert threshold(record) == -np.inf
    for block in np.split(lowest, 10):
        holes = np.full(100, np.nan, np.float32)
        holes[rng.permutation(100)[:50]] = block
        record = add(record, holes.reshape(4, 25))
    known = lowest[-200:]
    np.testing.assert_array_equal(np.sort(record.lowest), np.sort(known))
    value = threshold(record)
    assert np.sum(known < np.asarray(value)) == 10, "a twentieth of 200"
    # More games at once than there is room for: the last ones stay.
    record = add(resignation.init(8), np.arange(20, dtype=np.float32))
    np.testing.assert_array_equal(np.sort(record.lowest), np.arange(12, 20))
    assert threshold(record, min_games=9) == -np.inf
    assert threshold(record, min_games=8) == 12


@pytest.mark.slow
def test_pgs_as_an_expert_leaves_batch_normalisation_alone():
    """Anthony et al. 2019, section 3.2: of a policy head only the weights adapt."""
    network = jaxpgs.networks.AlphaZeroResNet(
        ENV.observation_shape, ENV.num_actions, num_filters=2, num_blocks=1, rngs=nnx.Rngs(0)
    )
    params, apply_fn = functional(network)
    root_fn = jaxpgs.make_root_fn(ENV, apply_fn)

    def search(key, state):
        root, model = root_fn(params, key, state), jaxpgs.make_recurrent_fn(ENV, apply_fn)
        expert = experts.make_expert("pgs", 4)
        return expert(params, key, root, model, ~state.legal_action_mask).adapted_params

    states = jax.eval_shape(lambda: jax.vmap(ENV.init)(jax.random.split(jax.random.key(0), 2)))
    adapted = jax.eval_shape(search, jax.eval_shape(lambda: jax.random.key(0)), states)
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(adapted)}
    head = {f"['policy_head']['{layer}']" for layer in ("conv", "linear")}
    assert {name.rpartition("[")[0] for name in names} == head


def test_openings_are_the_legal_first_moves():
    swap = Hex(3, swap=True)
    _, apply_fn = functional(make_network(env=swap))
    assert (swap.num_actions, head_to_head.make_compare(swap, apply_fn)[1]) == (10, 9)


@pytest.mark.slow
def test_head_to_head_equals_a_match_of_raw_networks():
    env = Hex(4)
    params, apply_fn = functional(make_network(env=env))
    shake = lambda x: x + np.float32(0.3) * np.cos(np.arange(x.size, dtype=np.float32))  # noqa: E731
    other = jax.tree.map(lambda x: shake(np.ravel(x)).reshape(x.shape), params)
    compare = jax.jit(functools.partial(head_to_head.head_to_head, env, apply_fn))
    score = compare(params, other)
    match = play_match(
        env,
        raw_network(env, apply_fn, params, name="a"),
        raw_network(env, apply_fn, other, name="b"),
        jax.random.key(0),
    )
    assert 0 < match.wins < match.games, "the case must tell something"
    np.testing.assert_allclose(score, match.wins / match.games)


def test_symmetries_keep_the_solution():
    rng = np.random.default_rng(0)
    step = jax.jit(ENV.step)
    to_actions = jax.jit(ENV.policy_logits)

    @jax.jit
    def turned_over(state, policy):
        return ENV.symmetries(ENV.observe(state), ENV.network_policy(state, policy))[1]

    start = jax.jit(ENV.init)()
    for _ in range(20):
        state = start
        for action in rng.permutation(9)[: rng.integers(0, 4)]:
            state = step(state, action)
        policy = jaxpgs.evaluation.solve_hex(ENV, state).winning_moves.astype(np.float32)
        turned_observation, turned_policy = jax.device_get(turned_over(state, policy))
        board = np.asarray(turned_observation[..., 0] + 2 * turned_observation[..., 1], int)
        if state.current_player == 1:  # the mover's stones are 1 in the frame, whoever it is
            board = np.where(board == 0, 0, 3 - board).T
        turned = ENV.from_board(board)
        expected = jaxpgs.evaluation.solve_hex(ENV, turned).winning_moves
        np.testing.assert_array_equal(to_actions(turned, turned_policy), expected)


def test_random_starts_are_unfinished_and_spread():
    start = jax.jit(
        lambda: selfplay.init_games(ENV, jax.random.key(0), 400, selfplay.Start(max_random_moves=6))
    )
    games = jax.device_get(start())
    states = games.state
    np.testing.assert_array_equal(games.move, (states.labels != 0).sum(axis=-1))
    assert not states.terminated.any()
    counts = np.bincount((states.labels != 0).sum(axis=-1), minlength=8)
    assert counts[0] == 0
    # Half the games start after one move, and a sixth of the other half: 233 expected. The bounds
    # are four standard deviations (9.9 each), an error rate below 1e-4.
    assert 193 < counts[1] < 273
    assert (counts[2:6] > 0).all()


def test_loss_against_a_hand_computed_case():
    target = selfplay.Experience(
        observation=np.zeros((2, 3), np.float32),
        legal=np.array([[True, True, False], [True, True, True]]),
        policy=np.array([[1, 0, 0], [0, 1, 0]], np.float32),
        value=np.array([1, 7], np.float32),
        open=np.array(
            [0, -1], np.float32
        ),  # the second game is not over, so its value does not count
    )
    # The illegal action's logit does not count: softmax of (0, log 3) is (1/4, 3/4). The second
    # position's is (1/5, 3/5, 1/5).
    logits = np.array([[0, np.log(3), 50], [0, np.log(3), 0]], np.float32)
    loss_of = jax.jit(functools.partial(losses.policy_value_loss, value_weight=2.0))
    value = np.array([0.5, 0.0], np.float32)
    loss, parts = loss_of(logits, value, target)
    policy_loss = (np.log(4) + np.log(5 / 3)) / 2
    np.testing.assert_allclose(parts["policy_loss"], policy_loss, rtol=1e-6)
    np.testing.assert_allclose(loss, policy_loss + 2 * 0.25, rtol=1e-6)
    _, parts = loss_of(logits, value, target._replace(open=np.ones(2, np.float32)))
    assert parts["value_loss"] == 0


@pytest.mark.parametrize("name", mostly_slow(experts.NAMES, "pgs", "mcts", "gumbel"))
@pytest.mark.lenient
def test_every_expert_decides(name):
    params, apply_fn = functional(make_network())

    def decide(key):
        state = jax.vmap(lambda _: ENV.init())(jnp.arange(2))
        root = jaxpgs.make_root_fn(ENV, apply_fn)(params, key, state)
        recurrent_fn = jaxpgs.make_recurrent_fn(ENV, apply_fn)
        expert = experts.make_expert(name, 8)
        return expert(params, key, root, recurrent_fn, ~state.legal_action_mask)

    decision = jax.eval_shape(decide, jax.random.key(0))
    assert decision.best.shape == decision.value.shape == decision.action.shape == (2,)
    assert decision.policy.shape == (2, 9)


@pytest.mark.lenient
@pytest.mark.parametrize("expert", [experts.raw_policy(), experts.gumbel(2)], ids=["raw", "gumbel"])
def test_a_finished_game_has_no_policy(expert):
    logits, zeros = jnp.zeros((2, 3)), jnp.zeros(2)
    root = mctx.RootFnOutput(prior_logits=logits, value=zeros, embedding=zeros[:, None])

    def recurrent_fn(params, rng_key, action, embedding):
        end = mctx.RecurrentFnOutput(reward=zeros, discount=zeros, prior_logits=logits, value=zeros)
        return end, embedding

    invalid = jnp.array([[False, True, False], [True, True, True]])
    decide = jax.jit(lambda key: expert({}, key, root, recurrent_fn, invalid))
    policy = np.asarray(decide(jax.random.key(0)).policy)
    np.testing.assert_allclose(policy.sum(axis=-1), [1, 0], rtol=1e-6)
    assert (policy[np.asarray(invalid)] == 0).all()


class Over(Hex):
    """A game that is over at its start."""

    def init(self, rng_key=None):
        return dataclasses.replace(super().init(), terminated=jnp.bool_(True))


def test_games_that_are_over_at_the_start_teach_nothing():
    env = Over(2)

    def seen():
        apply_fn = lambda params, x: (jnp.zeros((len(x), 4)), jnp.zeros(len(x)))  # noqa: E731
        games, key = selfplay.init_games(env, jax.random.key(0), 2), jax.random.key(0)
        return selfplay.play(env, apply_fn, first_legal, {}, key, games, 1)[1]

    found = jax.jit(seen, compiler_options=QUICK)()
    assert not found.legal.any() and not found.policy.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "expert, evaluate_every", mostly_slow([("pgs", 2), ("gumbel", 0)], ("pgs", 2))
)
def test_experts_train_the_network(expert, evaluate_every):
    seen = []
    state = train(
        ENV, make_network(), expert=expert, num_simulations=8, num_iterations=3,
        resign_fraction=0.5, callback=lambda _, metrics: seen.append(metrics),
        **(TINY | {"evaluate_every": evaluate_every}),
    )  # fmt: skip
    assert [m["iteration"] for m in seen] == [1, 2, 3]
    assert ["elo" in m for m in seen] == [False, evaluate_every == 2, False]
    losses_seen = [m[k] for m in seen for k in ("policy_loss", "value_loss")]
    assert np.isfinite(losses_seen).all()
    before, _ = functional(make_network())
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, state.params)
    assert moved["policy_head"]["linear"]["kernel"]
    assert moved["value_head"]["linear"]["kernel"]


train_first_legal = functools.partial(train, expert=first_legal, checkpoint_every=1, **TINY)


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    """The folder of a run of two iterations, how often self-play was traced, and the end."""
    folder, traced, real = tmp_path_factory.mktemp("run"), [], selfplay.play
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfplay, "play", lambda *a, **k: traced.append(1) or real(*a, **k))
        state = train_first_legal(ENV, make_network(), num_iterations=2, directory=folder)
    return folder, len(traced), state


@pytest.mark.slow
def test_one_iteration_is_compiled_once(saved_run):
    assert saved_run[1] == 1


@pytest.mark.slow
def test_a_run_with_fast_moves_goes_on_bit_equal(tmp_path):
    run = functools.partial(
        train_first_legal, ENV, make_network(), fast_simulations=last_legal, full_share=0.3
    )
    run(num_iterations=2, directory=tmp_path)
    metrics = []
    resumed = run(num_iterations=4, directory=tmp_path, callback=lambda _, m: metrics.append(m))
    assert [m["iteration"] for m in metrics] == [3, 4], "it went on"
    whole = run(num_iterations=4)
    assert_equal_states(resumed, whole)
    policies = np.asarray(whole.replay.blocks.policy).sum(axis=-1)
    assert set(np.unique(policies)) == {0, 1}
    settings = read_run(tmp_path).settings["arguments"]
    assert settings["full_share"] == 0.3 and "last_legal" in str(settings["fast_simulations"])
    with pytest.raises(ValueError, match=r"holds a run with full_share 0\.3, not 0\.25"):
        run(num_iterations=5, directory=tmp_path, full_share=0.25)


def test_fast_experts_have_no_noise_at_the_root():
    fast = experts.fast_expert
    knobs = fingerprint(fast("pgs", 4))
    assert (knobs["num_simulations"], knobs["knobs"]["dirichlet_fraction"]) == (4, 0.0)
    assert fingerprint(experts.make_expert("pgs", 4))["knobs"]["dirichlet_fraction"] == 0.25
    assert "gumbel_scale" not in str(fingerprint(fast("gumbel_pgs", 4)))  # which draws by its noise
    assert fast(first_legal, last_legal) is last_legal and fast("pgs", None) is None
    with pytest.raises(ValueError, match=r"fast_simulations.*expert"):
        fast(first_legal, 4)


def test_an_unknown_expert_is_named():
    with pytest.raises(ValueError, match=r"expert must be one of .* got 'alphazero'"):
        experts.make_expert("alphazero")


@pytest.mark.lenient
def test_a_temperature_is_that_of_an_experts_target():
    completed_q = jaxpgs.target.completed_q

    def target(**knobs):
        return fingerprint(experts.make_expert("mcs", 4, **knobs))["knobs"]["target"]

    assert target(temperature=0.5) == target(target=completed_q(0.5)) != target()
    assert target(temperature=None) == target(temperature=1.0) == target()
    params = toy.tree(2, 3)
    data = params, jax.random.key(0), toy.root(params), toy.recurrent_fn, None
    for knobs in ({"temperature": 0.5}, {"temperature": None}):
        expert = experts.make_expert("mcs", 4, **knobs)
        assert jax.eval_shape(lambda expert=expert: expert(*data)).policy.shape == (1, 2)
    with pytest.raises(ValueError, match="Give a target or its settings"):
        experts.make_expert("mcs", 4, temperature=0.5, target=completed_q())(*data)


def assert_equal_states(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


@pytest.mark.lenient
def test_a_stopped_run_goes_on_bit_equal(tmp_path, saved_run):
    shutil.copytree(saved_run[0], tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "2")  # as if it had been stopped after the first iteration
    seen = []
    resumed = train_first_legal(
        ENV, make_network(), num_iterations=2, directory=tmp_path,
        callback=lambda _, metrics: seen.append(metrics["iteration"]),
    )  # fmt: skip
    assert_equal_states(resumed, saved_run[2])
    assert seen == [2]


RUN = """
import sys
sys.path[:0] = {folders!r}
import test_training as t
log = t.loggers.log_to({folder!r} + "/log.jsonl")
t.train(
    t.ENV, t.make_network(), expert=t.drawn, num_iterations=400,
    directory={folder!r} + "/run", checkpoint_every=7, resign_fraction=0.5,
    callback=log, **(t.TINY | {{"evaluate_every": 5}}))
"""


@pytest.mark.slow
@pytest.mark.lenient
def test_a_killed_run_goes_on_bit_equal(tmp_path):
    """SIGKILL at a moment drawn by lot; the second call ends as a run that was never stopped."""
    here = pathlib.Path(__file__).parent
    code = RUN.format(folders=[str(here), str(here.parent)], folder=str(tmp_path))
    command = [sys.executable, "-c", code]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(command, env=env)
    log = tmp_path / "log.jsonl"
    rng = np.random.default_rng()  # any moment must do
    deadline = time.monotonic() + 120
    while not (log.exists() and len(loggers.read_log(log)) > 20):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    reached = int(loggers.read_log(log)[-1]["iteration"])
    assert 20 < reached < 400

    run = functools.partial(
        train, ENV, make_network(), expert=drawn,
        num_iterations=reached + 10, resign_fraction=0.5, **(TINY | {"evaluate_every": 5}),
    )  # fmt: skip
    first = []
    keep = loggers.log_to(log)

    def callback(state, metrics):
        first.append(metrics["iteration"])
        keep(state, metrics)

    resumed = run(directory=tmp_path / "run", callback=callback)
    assert 7 < first[0] <= reached + 1, "it went on from a checkpoint"
    rows = []
    whole = run(callback=lambda _, m: rows.append(m))
    assert_equal_states(resumed, whole)
    logged = loggers.read_log(log)
    assert [row["iteration"] for row in logged] == list(range(1, reached + 11))
    assert [row["policy_loss"] for row in logged] == [row["policy_loss"] for row in rows]
    kept = read_run(tmp_path / "run")
    assert [row["policy_loss"] for row in kept.curve] == [row["policy_loss"] for row in rows]
    assert (kept.iteration, kept.best_iteration) == (reached + 10, int(whole.best.iteration))
    assert_equal_states((kept.last, kept.best), (whole.params, whole.best.params))


@pytest.mark.slow
def test_a_directory_of_another_run_is_refused_and_left_alone(tmp_path, saved_run):
    shutil.copytree(saved_run[0], tmp_path, dirs_exist_ok=True)
    run = functools.partial(train_first_legal, num_iterations=2)

    def files():
        return {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}

    before = files()
    with pytest.raises(ValueError, match=r"holds a run with architecture\.width 32, not 16"):
        run(ENV, make_network(width=16), directory=tmp_path)
    with pytest.raises(ValueError, match="holds a run with sampled_moves 30, not 8"):
        run(ENV, make_network(), directory=tmp_path, sampled_moves=8)
    with pytest.raises(ValueError, match=r"holds a run with env .*size=3.*not .*size=4"):
        run(Hex(4), make_network(env=Hex(4)), directory=tmp_path)
    with pytest.raises(ValueError, match="holds a run with seed 0, not 1"):
        run(ENV, make_network(), directory=tmp_path, seed=1)
    assert files() == before

    (tmp_path / "2/default/_METADATA").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=r"2 is damaged: the file `_METADATA`.* is missing"):
        run(ENV, make_network(), directory=tmp_path)
    (tmp_path / "moved").rename(tmp_path / "2/default/_METADATA")
    for file in (tmp_path / "2").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"(?s)2 is damaged: .*Move that .* go on from step 1\."):
        run(ENV, make_network(), directory=tmp_path)
    (tmp_path / "2").rename(tmp_path / "damaged")
    first = []
    run(ENV, make_network(), directory=tmp_path, callback=lambda _, m: first.append(m["iteration"]))
    assert first == [2], "the checkpoint before it is used"

    (tmp_path / "run.json").unlink()
    with pytest.raises(ValueError, match=r"without a run\.json"):
        run(ENV, make_network(), directory=tmp_path)


@pytest.mark.slow
def test_a_full_disk_is_told_and_harms_nothing(tmp_path, monkeypatch, saved_run):
    shutil.copytree(saved_run[0], tmp_path, dirs_exist_ok=True)
    run = functools.partial(train_first_legal, ENV, make_network(), directory=tmp_path)
    import orbax.checkpoint as ocp

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "save", full)
        with pytest.raises(OSError, match="checkpoint of step 3"):
            run(num_iterations=3)
    assert int(run(num_iterations=3).iteration) == 3


@pytest.mark.slow
def test_learns_3x3_to_perfection_from_nothing(monkeypatch):
    """The raw network wins from every opening that can be won, against a perfect player."""
    # It runs for longer than it compiles.
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=FAST))
    network = make_network(64)
    _, apply_fn = functional(network)
    schedule = optax.cosine_decay_schedule(3e-3, 60 * 16, alpha=0.01)
    state = train(
        ENV, network, expert=experts.gumbel(16), num_iterations=60, num_games=128, num_steps=8,
        buffer_size=32_768, batch_size=256, updates_per_iteration=16, max_random_moves=6,
        resign_fraction=0.0, optimizer=optax.adamw(schedule, weight_decay=1e-4), evaluate_every=0,
    )  # fmt: skip
    player = raw_network(ENV, apply_fn, state.params)
    match = play_match(ENV, player, perfect_hex(ENV), jax.random.key(0))
    # Exactly one side can win an opening, and each is played from both, so 9 of 18 is perfect.
    assert match.wins == 9


@pytest.mark.slow
def test_growing_the_board_keeps_what_was_learned():
    """A network that knows one thing, to play beside its centre stone, knows it on 5x5 too."""
    small, large = make_network(), make_network(env=Hex(5))
    params, _ = functional(small)
    grown = jaxpgs.networks.resize(params, small, large)
    _, apply_fn = functional(large)
    logits, value = jax.jit(apply_fn)(grown, np.zeros((1, 5, 5, 3), np.float32))
    assert logits.shape == (1, 25) and np.isfinite(value).all()
    np.testing.assert_array_equal(
        grown["torso"]["blocks"]["0"]["linear"]["kernel"],
        params["torso"]["blocks"]["0"]["linear"]["kernel"],
    )
    # Weights of constant inputs keep their sum; biases of the actions are a stretched picture.
    flat = jax.tree.map(np.ones_like, params)
    ones = jaxpgs.networks.resize(flat, small, large)
    embed = np.asarray(ones["torso"]["embed"]["kernel"])
    np.testing.assert_allclose(embed.sum(axis=0), 27, rtol=1e-5)
    np.testing.assert_allclose(ones["policy_head"]["linear"]["kernel"], 1.0, rtol=1e-6)
    ramp = jax.tree.map(np.zeros_like, params)
    ramp["policy_head"]["linear"]["bias"] = np.repeat(np.arange(3, dtype=np.float32), 3)
    rows = jaxpgs.networks.resize(ramp, small, large)["policy_head"]["linear"]["bias"]
    rows = np.asarray(rows).reshape(5, 5)
    assert (np.diff(rows, axis=0) >= 0).all() and (np.diff(rows, axis=1) == 0).all()
    with pytest.raises(ValueError, match="sizes of the boards"):
        jaxpgs.networks.resize(params, small, make_network(width=64, env=Hex(5)))
    state = train(Hex(5), large, expert=first_legal, num_iterations=1, init_params=grown, **TINY)
    assert int(state.iteration) == 1
    with pytest.raises(ValueError, match="init_params do not fit"):
        train(Hex(5), large, init_params=params, **TINY)


@pytest.mark.slow
@pytest.mark.lenient
@pytest.mark.filterwarnings("ignore:Only .* of the positions")
def test_trains_in_an_environment_of_pgx(tmp_path):
    import pgx

    network = FullyConnectedResNet((3, 3, 2), 9, width=8, num_blocks=1, rngs=nnx.Rngs(0))
    seen = []
    for num_iterations in (1, 2):
        train(
            pgx.make("tic_tac_toe"), network, expert=first_legal, num_iterations=num_iterations,
            directory=tmp_path, callback=lambda _, metrics: seen.append(metrics),
            **(TINY | {"evaluate_every": 1, "num_steps": 12, "buffer_size": 192}),
        )  # fmt: skip
    assert [metrics["iteration"] for metrics in seen] == [1, 2]
    assert all(metrics["finished_games"] > 0 for metrics in seen)
    assert all(5 <= metrics["mean_length"] <= 9 for metrics in seen)


@pytest.mark.parametrize("callback, told", [(5, "5"), ("log.csv", "'log.csv'"), ([print, 5], "5")])
def test_what_is_not_a_callback_is_refused(callback, told):
    with pytest.raises(ValueError, match=f"must be a function or a list of functions, got {told}"):
        loggers.together(callback)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_scalars_of_numpy_and_jax_are_logged(tmp_path, suffix):
    log = loggers.log_to(tmp_path / f"log{suffix}")
    with loggers.progress_bar("training", 1) as show:
        for callback in (log, show):
            callback(None, {"iteration": np.int64(1), "policy_loss": np.float32(0.5),
                            "value_loss": jnp.ones(()), "elo": None})  # fmt: skip
    (row,) = loggers.read_log(tmp_path / f"log{suffix}")
    assert row == {"iteration": 1, "policy_loss": 0.5, "value_loss": 1.0, "elo": None}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_logs_survive_a_restart(tmp_path, suffix):
    path = tmp_path / f"log{suffix}"
    rows = [{"iteration": i, "policy_loss": 1 / i} for i in range(1, 6)]
    rows[2]["elo"] = 17.5
    log = loggers.log_to(path)
    for row in rows[:4]:
        log(None, row | {"resign_below": -np.inf})
    if suffix == ".jsonl":
        with path.open("a") as stream:
            stream.write('{"iteration": 5, "pol')  # killed while writing
    log = loggers.log_to(path)
    for row in rows[2:]:  # goes on from the checkpoint after the second iteration
        log(None, row)
    found = loggers.read_log(path)
    assert [row["iteration"] for row in found] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose([row["policy_loss"] for row in found], [1 / i for i in range(1, 6)])
    assert found[2]["elo"] == 17.5 and found[0]["resign_below"] is None
    # The file is the same as that of a run that was not interrupted.
    whole = loggers.log_to(tmp_path / f"whole{suffix}")
    for i, row in enumerate(rows):
        whole(None, row | ({"resign_below": -np.inf} if i < 2 else {}))
    assert path.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    with pytest.raises(ValueError, match=r"must be a \.jsonl or a \.csv"):
        loggers.log_to(tmp_path / "log.txt")


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"num_games": 0}, "num_games must be at least 1, got 0"),
        ({"num_iterations": 2.5}, "num_iterations must be a whole number, got 2.5"),
        ({"checkpoint_every": 2.5}, "checkpoint_every must be a whole number, got 2.5"),
        ({"keep": "2"}, "keep must be a whole number, got '2'"),
        ({"buffer_size": 64.0}, "buffer_size must be a whole number, got 64.0"),
        (
            {"resign_fraction": 1.5},
            "resign_fraction to be a finite number at least 0 and at most 1",
        ),
        ({"evaluate_every": -1}, "at least 0"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"full_share": 0}, "full_share to be a finite number above 0 and at most 1"),
        ({"buffer_size": 31}, r"num_games \* num_steps = 32 positions, got 31"),
        ({"num_games": 3, "devices": jax.devices() * 2}, "multiple of the 2 devices, got 3"),
    ],
)
def test_bad_arguments_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        train(ENV, make_network(), **(TINY | knobs))
