"""Small games and Hex positions for the tests of adapters and searches."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

# `compiler_options` of `jax.jit`. `QUICK` halves the time to compile and makes programs slower.
# `FAST`, for programs that run longer than they compile, undoes two options of `conftest`.
QUICK = {"xla_backend_optimization_level": 0}
FAST = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


def mostly_slow(cases, *often):
    """Returns cases for `pytest.mark.parametrize`, all marked slow except those in `often`."""

    def case(values):
        arguments = values if isinstance(values, tuple) else (values,)
        return values if values in often else pytest.param(*arguments, marks=pytest.mark.slow)

    assert all(values in cases for values in often)
    return [case(values) for values in cases]


@contextlib.contextmanager
def lenient_promotion():
    """Undoes the fixture `strict_promotion` for code of other libraries."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A state of the games below; one number, `position`, describes it."""

    position: jax.Array
    current_player: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    legal_action_mask: jax.Array


@dataclasses.dataclass(frozen=True)
class Race:
    """A race to the end of a track: an action walks one or two steps and pays its mover as much.

    The third action is never legal. `movers` says, cyclically, who moves at a position: (0,) makes
    a game of one player, (0, 0, 1, 1) one of two players who often move twice in a row.
    """

    movers: tuple[int, ...] = (0,)
    length: int = 8
    num_actions: int = 3

    def init(self, key=None):
        del key
        players = max(self.movers) + 1
        return self._state(jnp.int32(0), jnp.zeros(players, jnp.float32))

    def step(self, state, action):
        gain = action.astype(jnp.int32) + 1
        position = state.position + gain
        rewards = (
            jnp.zeros_like(state.rewards).at[state.current_player].set(gain.astype(jnp.float32))
        )
        return self._state(position, rewards)

    def _state(self, position, rewards):
        mover = jnp.array(self.movers, jnp.int32)[position % len(self.movers)]
        over = position >= self.length
        legal = jnp.array([True, True, False]) & ~over
        return State(position, mover, rewards, over, legal)

    def observe(self, state):
        return jnp.stack([state.position, state.current_player]).astype(jnp.float32)


class Trap:
    """Two plies of two players, in which the tempting first action has a hidden refutation.

    The first player's actions 1 to 3 pay 0 whatever the answer. Action 0 pays 0.6, except after the
    one answer `REPLY`, which costs 1; the network gives that answer a probability of about 0.02.
    Best play is any action but 0. Parameters are a table of logits, one row per first action.
    """

    ACTIONS, REPLY, TEMPTING = 4, 2, 0

    def params(self):
        logits = jnp.zeros((self.ACTIONS, self.ACTIONS)).at[self.TEMPTING, self.REPLY].set(-3.0)
        return {"replies": logits}

    def root(self, batch_size):
        return mctx.RootFnOutput(
            prior_logits=jnp.zeros((batch_size, self.ACTIONS)),
            value=jnp.zeros(batch_size),
            embedding=jnp.full((batch_size, 2), -1, jnp.int32),  # the actions so far
        )

    def recurrent_fn(self, params, rng_key, action, embedding):
        del rng_key
        is_reply = embedding[:, 0] >= 0
        first = jnp.where(is_reply, embedding[:, 0], action)
        payoff = jnp.zeros((self.ACTIONS, self.ACTIONS)).at[self.TEMPTING].set(0.6)
        payoff = payoff.at[self.TEMPTING, self.REPLY].set(-1.0)
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(is_reply, -payoff[first, action], 0.0),
            discount=jnp.where(is_reply, 0.0, -1.0),
            prior_logits=params["replies"][first],
            value=jnp.zeros(action.shape),
        )
        return output, jnp.stack([first, jnp.where(is_reply, action, -1)], axis=-1)


def take(states, index):
    """Selects from a batch of states."""
    return jax.tree.map(lambda x: x[np.asarray(index)], states)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def step_all(env, states):
    """Plays every action in every state, legal or not; `[B, A]` states."""
    actions = jnp.arange(env.num_actions, dtype=jnp.int32)
    return jax.vmap(lambda state: jax.vmap(lambda a: env.step(state, a))(actions))(states)


def random_positions(env, seed, plies):
    """Plays `plies[b]` uniformly random legal moves in game b; some games may be over before."""
    return _random_positions(env, jax.random.key(seed), jnp.asarray(plies, jnp.int32))


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def _random_positions(env, key, plies):
    def play(states, t):
        score = jax.random.uniform(jax.random.fold_in(key, t), (plies.size, env.num_actions))
        actions = jnp.argmax(jnp.where(states.legal_action_mask, score, -1.0), axis=-1)
        after = jax.vmap(env.step)(states, actions.astype(jnp.int32))
        goes_on = (t < plies) & ~states.terminated
        return jax.tree.map(
            lambda new, old: jnp.where(goes_on.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            after,
            states,
        ), None

    start = jax.vmap(env.init)(jax.random.split(key, plies.size))
    states, _ = jax.lax.scan(play, start, jnp.arange(env.num_cells))
    return states


def all_positions(env):
    """Every position of a small Hex board, including finished games.

    A position without a winner occurs once; a finished one may occur several times.
    """
    digits = np.arange(3**env.num_cells)[:, None] // 3 ** np.arange(env.num_cells) % 3
    lead = (digits == 1).sum(1) - (digits == 2).sum(1)
    digits = digits[(lead == 0) | (lead == 1)]
    # The players' stones alternate. A connection stays once it is made, so any order will do.
    moves = np.full((len(digits), env.num_cells), -1)
    for player in (0, 1):
        rows, cells = np.nonzero(digits == player + 1)
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        moves[rows, 2 * rank + player] = cells
    return _play(env, jnp.asarray(moves, jnp.int32))


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def _play(env, moves):
    def play(state, action):
        after = env.step(state, action)
        return jax.tree.map(lambda new, old: jnp.where(action < 0, old, new), after, state), None

    return jax.vmap(lambda row: jax.lax.scan(play, env.init(), row)[0])(moves)


def wins_in_one(env, states, *, for_opponent=False):
    """`[B, A]` bool: legal actions that win at once, for the mover or with the opponent to move."""
    if for_opponent:
        states = dataclasses.replace(states, current_player=1 - states.current_player)
    mover = np.asarray(states.current_player)
    rewards = np.asarray(step_all(env, states).rewards)
    won = np.take_along_axis(rewards, mover[:, None, None], axis=-1)[..., 0] > 0
    return won & np.asarray(states.legal_action_mask)


class Coin:
    """One decision of one player: action 0 pays 0.25, action 1 pays 1 or -1 by a fair coin."""

    num_players, num_actions = 1, 2

    def init(self, key=None):
        del key
        zero, rewards = jnp.int32(0), jnp.zeros(1, jnp.float32)
        return State(zero, zero, rewards, jnp.bool_(False), jnp.ones(2, bool))

    def step(self, state, action, key):
        coin = jnp.where(jax.random.bernoulli(key), 1.0, -1.0).astype(jnp.float32)
        pays = jnp.where(action == 1, coin, jnp.float32(0.25))
        after = state.position + 1, state.current_player, pays[None]
        return State(*after, jnp.bool_(True), jnp.zeros(2, bool))

    def observe(self, state):
        return state.rewards
