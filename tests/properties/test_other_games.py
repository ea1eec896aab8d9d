"""Games that are not two players in turns: who moves twice, who pays, who never ends."""

import dataclasses
import functools
import itertools

import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpgs
import jaxpgs.evaluation as ev
from jaxpgs.adapters.environments import gain_of
from jaxpgs.evaluation import matches
from jaxpgs.evaluation.players import player
from jaxpgs.training.models import labelling, unrolls
from jaxpgs.training.policy_gradient import ppo
from jaxpgs.training.runtime import iterations
from jaxpgs.training.runtime.settings import by_name
from jaxpgs.training.two_player import expert_iteration, experts, game_warnings, selfplay
from jaxpgs.training.two_player.head_to_head import head_to_head

KEY = jax.random.key(0)
quick_jit = functools.partial(jax.jit, compiler_options=games.QUICK)
GAINS = np.array([[0, 1, 2], [3, 0, 1], [1, 2, 0], [0, 3, 1], [2, 0, 1], [1, 0, 3]])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    number: jax.Array
    lead: jax.Array
    current_player: jax.Array
    rewards: jax.Array
    terminated: jax.Array

    @property
    def legal_action_mask(self):
        return jnp.ones((*self.number.shape, 3), bool) & ~self.terminated[..., None]


@dataclasses.dataclass(frozen=True)
class Again:
    """Six moves that gain points; whether the mover moves again depends on the action.

    Attributes:
      pays: what the players are paid in the end, from 1, 0 or -1 for player 0's result.
      ends: whether the game ends.
      players: how many there are said to be.
      turns: whether players take turns whatever they do.
    """

    pays: str = "zero_sum"
    ends: bool = True
    players: int = 2
    turns: bool = False
    num_actions = 3
    observation_shape = (3,)

    @property
    def num_players(self):
        return self.players

    def init(self, key=None):
        del key
        zero = jnp.int32(0)
        return State(zero, zero, zero, self._rewards(zero, zero), jnp.bool_(False))

    def step(self, state, action):
        # A move in a finished game changes it, which nobody may see.
        number, mover = state.number + 1, state.current_player
        gain = jnp.asarray(GAINS, jnp.int32)[state.number % 6, action]
        lead = state.lead + jnp.where(mover == 0, gain, -gain)
        again = (action + state.number) % 2 == 0 if not self.turns else jnp.bool_(False)
        over = (number >= 6) & self.ends
        rewards = self._rewards(jnp.where(over, jnp.sign(lead), 0), mover)
        return State(number, lead, jnp.where(again, mover, 1 - mover), rewards, over)

    def _rewards(self, result, mover):
        one = result.astype(jnp.float32)
        won, other = jnp.maximum(one, 0), jnp.maximum(-one, 0)
        pays = {
            "zero_sum": [one, -one], "winner": [won, other], "loser": [-other, -won],
            "both": [jnp.abs(one)] * 2, "one": [one],
        }  # fmt: skip
        return jnp.stack(pays[self.pays])

    def observe(self, state):
        seen = jnp.stack([state.number, state.lead, state.current_player])
        return seen.astype(jnp.float32)


def solved(number=0, lead=0, mover=0):
    """Values of the actions for the player to move, by going through all games."""
    values = []
    for action in range(3):
        gain = int(GAINS[number, action]) * (1 - 2 * mover)
        after, again = lead + gain, (action + number) % 2 == 0
        if number == 5:
            values.append(int(np.sign(after)) * (1 - 2 * mover))
        else:
            best = max(solved(number + 1, after, mover if again else 1 - mover))
            values.append(best if again else -best)
    return values


def uniform(params, observation):
    return jnp.zeros((len(observation), 3)), jnp.zeros(len(observation))


class Net(nnx.Module):
    def __init__(self):
        self.both = nnx.Linear(3, 4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        out = self.both(x)
        return out[:, :3], jnp.tanh(out[:, 3])


def states(env, batch_size=2):
    return jax.vmap(env.init)(jax.random.split(KEY, batch_size))


def start(env):
    """Returns functions and a root, of positions in which values differ."""
    after = states(env)
    for action in (1, 0):
        after = jax.vmap(env.step)(after, jnp.full(2, action))
    root = jaxpgs.make_root_fn(env, uniform)((), None, after)
    return jaxpgs.make_recurrent_fn(env, uniform), root, after


def by_rule(shift, name, xp=jnp):
    """Plays by the number of moves that it made itself, which its memory counts."""

    def act(key, state, memory):
        # What the other player is to decide looks like a game that is over.
        shown = xp.sum(~state.terminated)
        seen = {"num_evaluations": shown, "strange": xp.sum(memory["own"] > state.number)}
        own = memory["own"]
        return (own + shift) % 3, {"own": own + 1, "calls": memory["calls"] + 1}, seen

    def init(batch_size):
        return {"own": xp.zeros(batch_size, np.int32), "calls": xp.zeros((), np.int32)}

    return ev.Player(name, init, act, host=xp is np)


def replay(shifts, opener, opening):
    """Plays one game in Python; returns the first player's score and the moves of both."""
    number, lead, mover, own = 0, 0, 0, [0, 0]
    for number in range(6):
        side = mover if opener == 0 else 1 - mover
        action = opening if number == 0 else (own[side] + shifts[side]) % 3
        own[side] += number > 0
        gain = int(GAINS[number, action])
        lead += gain if mover == 0 else -gain
        mover = mover if (action + number) % 2 == 0 else 1 - mover
    score = np.sign(lead) * (1 if opener == 0 else -1)
    return (score + 1) / 2, own


@pytest.mark.parametrize("host", [False, True])
def test_each_move_is_made_by_whose_turn_it_is(host):
    shifts = (1, 0)
    one, two = by_rule(1, "one", np if host else jnp), by_rule(0, "two")
    match = ev.play_match(Again(), one, two, KEY)
    expected, moves = np.zeros((2, 1, 3)), np.zeros(2, int)
    for opener, opening in itertools.product(range(2), range(3)):
        expected[opener, 0, opening], own = replay(shifts, opener, opening)
        moves += own
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(match.outcomes, expected)
    np.testing.assert_array_equal(match.lengths, 6)
    assert moves[0] != moves[1] and [record.moves for record in match.players] == moves.tolist()
    for record in match.players:
        assert record.stats == {"num_evaluations": record.moves, "strange": 0}
    # Games of one call at a time give the same.
    alone = ev.play_match(Again(), one, two, KEY, batch_size=1)
    np.testing.assert_array_equal(alone.outcomes, expected)
    assert [record.moves for record in alone.players] == moves.tolist()


def test_the_flag_of_a_nested_state_is_found():
    env = jaxpgs.networks.with_last_move(jaxpgs.envs.Hex(3))
    state, over = jax.vmap(lambda _: env.init())(jnp.arange(2)), np.array([True, False])
    shown = player._over_where(over, state)
    assert shown.terminated is over and shown.state.labels is state.state.labels


@pytest.mark.slow
def test_backups_where_the_same_player_moves_again():
    model, root, after = start(Again())
    exact = solved(2, int(after.lead[0]), int(after.current_player[0]))
    assert len(set(exact)) > 1

    @quick_jit
    def search(root):
        more = {"max_depth": 6}
        found = [
            jaxpgs.batched_mcts_policy((), KEY, root, model, 512, simulations_per_update=4, **more),
            jaxpgs.gumbel_mcts_policy((), KEY, root, model, 512, **more),
        ]
        return [(output.action, output.search_state.qvalues) for output in found]

    for action, qvalues in search(root):
        assert np.take(exact, action).tolist() == [max(exact)] * 2
        # All replies are searched, 81 games each: the best ones have most of the visits.
        np.testing.assert_allclose(qvalues[:, np.argmax(exact)], max(exact), atol=0.35)


@pytest.mark.slow
def test_what_one_player_alone_is_paid_the_other_loses():
    one, two = by_rule(1, "one"), by_rule(0, "two")
    paid = {pays: ev.play_match(Again(pays), one, two, KEY) for pays in
            ("zero_sum", "winner", "loser")}  # fmt: skip
    for pays in ("winner", "loser"):
        np.testing.assert_array_equal(paid[pays].outcomes, paid["zero_sum"].outcomes)

    @quick_jit
    def values():
        found = []
        for pays in paid:
            model, root, after = start(Again(pays))
            output = jaxpgs.mcs_policy(
                (),
                KEY,
                root,
                model,
                8,
                truncation=jaxpgs.truncation.fixed(6),
                backup=jaxpgs.backup.n_step(),
                mode="rollouts",
            )
            playout = jaxpgs.adapters.playouts.make_playout(Again(pays))((), KEY, after)
            found.append((output.search_state.qvalues, playout))
        return found

    found = jax.device_get(values())
    assert (found[0][1] != 0).any()
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)


def test_rewards_that_are_not_what_the_other_loses_are_told():
    env = Again("both")
    with pytest.raises(ValueError, match=r"that did not sum to 0, .* Give each player its reward"):
        ev.play_match(env, by_rule(1, "one"), by_rule(0, "two"), KEY)
    model, root, _ = start(env)
    last = jax.vmap(env.init)(jax.random.split(KEY, 2))
    last = dataclasses.replace(last, number=jnp.full(2, 5), lead=jnp.full(2, 2))
    with pytest.raises(ValueError, match=r"sum to 0.* got \[1.0, 1.0\] after a move of player 0"):
        model((), KEY, jnp.zeros(2, jnp.int32), last)

    @quick_jit
    def run():
        searches = [
            jaxpgs.mcs_policy(
                (), KEY, root, model, 8, truncation=jaxpgs.truncation.fixed(6), mode=mode
            )
            for mode in ("tree", "rollouts")
        ]
        begun = selfplay.init_games(env, KEY, 2)
        _, seen, _ = selfplay.play(
            env, uniform, experts.raw_policy(), (), KEY, begun, 6,
            kept=selfplay.Kept(value_target="search"),
        )  # fmt: skip
        score = head_to_head(env, uniform, (), ())
        return [o.search_state.not_finite for o in searches], seen.value, score

    counts, value, score = jax.device_get(run())
    assert all((count > 0).all() for count in counts) and np.isnan(score)
    assert np.isnan(value).any()
    with pytest.raises(FloatingPointError, match="do not lose what the other gains"):
        iterations.check_losses({"value_loss": float(value.sum()), "iteration": 1})


def test_shapes_of_rewards_and_numbers_of_players():
    model, _, after = start(Again("one"))
    with pytest.raises(ValueError, match=r"Again needs rewards of shape \[2\].*; got \[1\]"):
        jax.eval_shape(model, (), KEY, jnp.zeros(2, jnp.int32), after)
    # Players -1 and 1 would both find the last entry.
    env, after = Again(), states(Again())
    paid = dataclasses.replace(after, rewards=jnp.array([[-1.0, 1.0]] * 2))
    for mover in (-1, 1):
        before = dataclasses.replace(after, current_player=jnp.full(2, mover))
        gain = jax.jit(gain_of, static_argnums=0)(env, before.current_player, before, paid)
        assert np.isnan(gain).all() == (mover == -1) and (mover == -1 or gain.tolist() == [1, 1])
    with pytest.raises(ValueError, match="players 0 and 1"):
        gain_of(env, jnp.full(2, -1), dataclasses.replace(after, current_player=-jnp.ones(2, int)),
                paid)  # fmt: skip


def test_three_players_and_one_are_refused_by_name():
    three, alone = Again(players=3), Again("one", players=1)
    one, two = by_rule(1, "one"), by_rule(0, "two")
    net = None
    matched = [
        lambda env: ev.play_match(env, one, two, KEY),
        lambda env: ev.round_robin(env, [one, two], KEY),
        lambda env: ev.compile_player(env, one, 2),
        lambda env: head_to_head(env, uniform, (), ()),
        lambda env: ppo.train(env, net),
    ]
    either = [
        lambda env: jaxpgs.make_recurrent_fn(env, uniform),
        lambda env: jaxpgs.make_playout_fns(env),
        lambda env: jaxpgs.make_sampled_fns(env, None, 3),
        lambda env: expert_iteration.train(env, net),
        lambda env: labelling.label_games(env, uniform, (), num_games=1),
    ]
    for call in matched + either:
        with pytest.raises(ValueError, match=r"needs a game of .*; Again has 3\."):
            call(three)
    for call in matched:
        with pytest.raises(ValueError, match=r"two players.*Again has 1"):
            call(alone)
    with pytest.raises(
        ValueError, match=r"compare the returns of searches, as jaxpgs.puzzles.solve"
    ):
        matched[0](alone)
    with pytest.raises(ValueError, match=r"start_episodes.*one player; Again"):
        jaxpgs.puzzles.start_episodes(Again(), states(Again()))


@pytest.mark.slow
def test_a_match_without_an_end_is_told_or_drawn(monkeypatch):
    env, one, two = Again(ends=False), by_rule(1, "one"), by_rule(0, "two")
    compiled = [ev.compile_player(env, player, 3) for player in (one, two)]
    match = ev.play_match(env, *compiled, KEY, max_moves=7)
    np.testing.assert_array_equal(match.outcomes, 0.5)
    np.testing.assert_array_equal(match.lengths, 7)
    assert sum(record.moves for record in match.players) == 6 * 6  # the openings are not theirs
    table = ev.round_robin(env, [one, two], KEY, max_moves=2)
    np.testing.assert_array_equal(table.wins, [[0, 3], [3, 0]])
    monkeypatch.setattr(matches, "LONGEST_GAME", 20)
    with pytest.raises(ValueError, match="6 of 6 games of Again, one vs two, have not ended"):
        ev.play_match(env, *compiled, KEY)
    with pytest.raises(ValueError, match="max_moves to be a whole number"):
        ev.play_match(env, *compiled, KEY, max_moves=0)
    # A game that ends in time is not drawn.
    ended = ev.play_match(Again(), one, two, KEY, max_moves=6)
    np.testing.assert_array_equal(ended.outcomes, ev.play_match(Again(), one, two, KEY).outcomes)
    cut = ev.play_match(Again(), one, two, KEY, max_moves=5)
    np.testing.assert_array_equal(cut.outcomes, 0.5)


@pytest.mark.slow
def test_games_without_an_end_are_cut_in_training(monkeypatch):
    env = Again(ends=False)

    @quick_jit
    def run():
        begun = selfplay.init_games(env, KEY, 4)
        _, seen, report = selfplay.play(
            env, uniform, experts.raw_policy(), (), KEY, begun, 12,
            moves=selfplay.Moves(max_moves=5),
        )  # fmt: skip
        playout = jaxpgs.adapters.playouts.make_playout(env)((), KEY, states(env))
        compared = [head_to_head(env, uniform, (), (), max_moves=n) for n in (9, None)]
        return seen, report, playout, compared

    seen, report, playout, compared = jax.device_get(run())
    np.testing.assert_array_equal(np.flatnonzero(report.finished[:, 0]), [4, 9])
    np.testing.assert_array_equal(report.length[report.finished], 5)
    np.testing.assert_array_equal(seen.value[:10], 0)
    assert not seen.open[:10].any() and seen.open[10:].all()
    assert not playout.any() and compared == [0.5, 0.5]

    few = labelling.Games(games_at_once=2, num_steps=8)
    cut = dataclasses.replace(few, max_moves=6)
    labelled = labelling.label_games(env, uniform, (), num_games=4, games=cut)
    assert labelled.played.finished.sum() >= 4
    monkeypatch.setattr(labelling, "LONGEST_GAME", 16)
    with pytest.raises(ValueError, match="None of 2 games of Again has ended within 16 moves"):
        labelling.label_games(env, uniform, (), num_games=4, games=few)
    watch = game_warnings.make_watch(1000, lambda: 1.0)
    metrics = {"finished_games": 0, "resigned": 0, "iteration": 1, "distinct_positions": 1}
    watch(metrics)
    with pytest.warns(UserWarning, match=r"No game has ended for 2000 moves.* give max_moves"):
        watch(metrics)


@pytest.mark.slow
def test_trainers_cut_games_and_draw_their_matches():
    env, network = Again(ends=False), Net()
    found = []
    few = {"num_games": 4, "num_steps": 6, "batch_size": 8, "max_moves": 5, "evaluate_every": 1}
    by_name(expert_iteration.train)(
        env, network, expert=experts.raw_policy(), num_iterations=1, buffer_size=24,
        updates_per_iteration=1, max_random_moves=0, callback=lambda _, m: found.append(m), **few,
    )  # fmt: skip
    assert found[0]["finished_games"] == 4 and found[0]["mean_length"] == 5
    assert found[0]["score_against_best"] == 0.5
    by_name(ppo.train)(
        env, network, num_iterations=1, num_opponents=2, epochs=1, history_size=2,
        callback=lambda _, m: found.append(m), **(few | {"evaluate_every": 0}),
    )  # fmt: skip
    assert found[1]["finished_games"] >= 4
    for trainer in (expert_iteration, ppo):
        with pytest.raises(ValueError, match="max_moves to be a whole number"):
            trainer.train(env, network, games=trainer.Games(max_moves=0))


@pytest.mark.slow
def test_a_model_of_turns_does_not_learn_from_other_games():
    def values(env):
        begun = selfplay.init_games(env, KEY, 4)
        _, seen, _ = selfplay.play(
            env, uniform, experts.raw_policy(), (), KEY, begun, 12,
            kept=selfplay.Kept(keep_played=True),
        )  # fmt: skip
        return unrolls.sample(env, unrolls.timeline(seen), KEY, 32, 3, 4).value

    turns, others = jax.device_get(
        quick_jit(lambda: [values(Again(turns=turns)) for turns in (True, False)])()
    )
    assert np.isfinite(turns).all() and np.isnan(others).any()
