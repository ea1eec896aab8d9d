"""Games with chance: in self-play, matches and training games; what needs a key says so."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from games import Coin, Race, State

import jaxpgs
import jaxpgs.evaluation as ev
from jaxpgs.adapters.environments import draws_chance, step_with_keys
from jaxpgs.envs import Hex
from jaxpgs.puzzles.episodes import make_episode_fns
from jaxpgs.training.policy_gradient import learner_games
from jaxpgs.training.policy_gradient.past_selves import Opponents
from jaxpgs.training.two_player import experts, head_to_head, selfplay

SIDES, LENGTH = 3, 30


@dataclasses.dataclass(frozen=True)
class Dice:
    """Two players move one stone in turn, by a die and their action; who takes it home wins."""

    num_players: int = 2
    num_actions: int = 2
    observation_shape: tuple[int, ...] = (1,)

    def init(self, key=None):
        del key
        zero = jnp.int32(0)
        return State(zero, zero, jnp.zeros(2), jnp.bool_(False), jnp.ones(2, bool))

    def step(self, state, action, key):
        moved = action + 1 + jax.random.randint(key, (), 0, SIDES)
        position = jnp.where(state.terminated, state.position, state.position + moved)
        over = position >= LENGTH
        won = jnp.where(jnp.arange(2) == state.current_player, 1.0, -1.0)
        won = jnp.where(over & ~state.terminated, won, 0.0)
        position, legal = position.astype(jnp.int32), state.legal_action_mask
        return State(position, 1 - state.current_player, won, over, legal)

    def observe(self, state):
        return state.position[None].astype(jnp.float32)


class KeyedHex(Hex):
    """Hex whose step takes a key that it does not need, as pgx's does."""

    def step(self, state, action, key):
        del key
        return super().step(state, action)


ENV = Dice()


def apply_fn(params, observation):
    """Prefers action 1, the more the further the stone is."""
    return params * observation * jnp.arange(2.0), 0 * observation[:, 0]


def drawn(params, rng_key, root, recurrent_fn, invalid_actions):
    """An expert that takes the network's best action."""
    action = jnp.argmax(root.prior_logits, axis=-1).astype(jnp.int32)
    return experts.Decision(action, action, jax.nn.softmax(root.prior_logits), root.value)


def spread(rolled):
    """Asserts that dice fall evenly, but for one run in ten thousand."""
    found = np.bincount(np.ravel(rolled), minlength=SIDES)
    assert len(found) == SIDES and found.sum() >= 90
    expected = found.sum() / SIDES
    assert ((found - expected) ** 2 / expected).sum() < 18.4, found  # chi square, 2 degrees


def test_which_games_draw_chance():
    assert draws_chance(ENV) and draws_chance(Coin())
    assert not draws_chance(Race()) and not draws_chance(KeyedHex(3))
    states = jax.vmap(lambda _: ENV.init())(jnp.arange(2))
    with pytest.raises(ValueError, match="Dice has chance: its step needs a key, got None"):
        step_with_keys(ENV)(states, jnp.zeros(2, jnp.int32), None)
    with pytest.raises(ValueError, match=r"Coin has chance"):
        make_episode_fns(Coin(), apply_fn)
    free = jax.vmap(KeyedHex(3).init)(jax.random.split(jax.random.key(0), 2))
    step_with_keys(KeyedHex(3))(free, jnp.zeros(2, jnp.int32), None)


@pytest.mark.lenient
def test_self_play_rolls_the_dice():
    @jax.jit
    def run(key):
        games = selfplay.init_games(ENV, key, 16, selfplay.Start(max_random_moves=3))
        return games, selfplay.play(
            ENV, apply_fn, drawn, jnp.float32(1), key, games, 12,
            kept=selfplay.Kept(keep_played=True),
        )[1].played  # fmt: skip

    start, played = jax.device_get(run(jax.random.key(0)))
    assert len(set(start.state.position.tolist())) > 2
    before, after = played.state.position[:-1], played.state.position[1:]
    rolled = (after - before - played.action[:-1] - 1)[~played.finished[:-1]]
    spread(rolled)


@pytest.mark.lenient
def test_games_of_a_learner_roll_the_dice():
    met = Opponents(jnp.zeros(1), jnp.zeros(1), jnp.ones(1, jnp.int32))

    @jax.jit
    def run(key):
        games = learner_games.start(ENV, key, jnp.arange(32) % 2 == 0)
        return learner_games.play(ENV, apply_fn, jnp.float32(0), met, key, games, 4)[:2]

    after, rollout = jax.device_get(run(jax.random.key(1)))
    position = np.concatenate([rollout.observation[..., 0], after.state.position[None]])
    moved = np.diff(position, axis=0)[~rollout.finished & rollout.mine]
    # Two moves of 1 to 4, by an action and a die each: 2 to 8, in the mean 5.
    assert set(moved) <= set(range(2, 9)) and len(set(moved)) >= 6
    # The variance of a move is 1/4 + 2/3.
    assert abs(moved.mean() - 5) < 4 * (2 * (0.25 + 2 / 3) / len(moved)) ** 0.5


@pytest.mark.slow
def test_matches_of_sure_players_differ_by_chance():
    one, two = (ev.raw_network(ENV, apply_fn, jnp.float32(x), name=str(x)) for x in (1, -1))
    one, two = (dataclasses.replace(player, deterministic=True) for player in (one, two))
    result = ev.play_match(ENV, one, two, jax.random.key(0), repeats=16)
    assert result.games == 64  # none is left out as a repetition
    assert len(np.unique(result.lengths)) > 2 and 0 < result.wins < 64
    lines = ev.opening_lines(ENV, jax.random.key(1), 3, 8)
    again = ev.play_match(ENV, one, two, jax.random.key(0), openings=lines, repeats=2)
    assert again.games == 32

    score = jax.jit(lambda: head_to_head.head_to_head(ENV, apply_fn, *jnp.float32([1, -1])))()
    assert 0 <= score <= 1


@pytest.mark.slow
def test_a_key_that_is_not_needed_changes_nothing():
    net = jaxpgs.networks.FullyConnectedResNet(
        Hex(3).observation_shape, 9, width=8, num_blocks=1, rngs=nnx.Rngs(0)
    )
    params, apply = jaxpgs.networks.functional(net)
    found = []
    for env in (Hex(3), KeyedHex(3)):

        @jax.jit
        def play(key, env=env):
            games = selfplay.init_games(env, key, 4, selfplay.Start(max_random_moves=3))
            start = selfplay.Start(max_random_moves=3)
            return selfplay.play(env, apply, drawn, params, key, games, 6, start=start)

        both = [ev.uniform_random(env), dataclasses.replace(ev.uniform_random(env), name="b")]
        match = ev.play_match(env, *both, jax.random.key(2))
        found.append((*jax.tree.leaves(play(jax.random.key(3))), match.outcomes))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
