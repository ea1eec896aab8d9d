"""Environments outside `jax.jit`: a loop of the host's compiles nothing after its first round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpgs.envs import Breakthrough, Hex, Pendulum, SameGame, Yavalath

COMPILED = []


def _listen(event, *_, **__):
    if event.endswith("backend_compile_duration"):
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


def count_compiled(function, *args):
    before = len(COMPILED)
    function(*args)
    return len(COMPILED) - before


def play(env, seed, num_moves=3):
    """Plays the first legal action, as in a notebook, and one that is drawn."""
    state = env.init(jax.random.key(seed))
    for move in range(num_moves):
        action = np.zeros(1, np.float32)
        if not isinstance(env, Pendulum):
            legal = np.flatnonzero(state.legal_action_mask)
            action = int(legal[move % len(legal)]) if len(legal) else 0
        state = env.step(state, action)
        env.observe(state)
    return state


@pytest.mark.parametrize(
    "env", [Hex(2, swap=True), SameGame(3, 4, 2), Breakthrough(4, 2), Yavalath(3), Pendulum()],
    ids=lambda env: type(env).__name__,
)  # fmt: skip
def test_a_game_in_a_notebook_compiles_once(env):
    assert count_compiled(play, env, 0) > 0, "the listener hears"
    assert count_compiled(play, env, 1) == 0
    # An equal environment is the same one.
    assert count_compiled(play, type(env)(**vars(env)), 2) == 0


@pytest.mark.slow
def test_a_batch_of_games_in_a_notebook_compiles_once():
    env = SameGame(3, 4, 2)

    def play_all(seed):
        state = jax.vmap(env.init)(jax.random.split(jax.random.key(seed), 5))
        state = jax.vmap(env.step)(state, jnp.argmax(state.legal_action_mask, axis=-1))
        return env.group_labels(jax.tree.map(lambda x: x[0], state))

    assert count_compiled(play_all, 0) > 0
    assert count_compiled(play_all, 1) == 0


@pytest.mark.parametrize("action", [-10, -1, 9, 10, 2**31 - 1, -(2**31)])
def test_an_action_outside_the_board_is_illegal_in_hex(action):
    env = Hex(3)
    start = env.step(env.init(), 4)
    state = env.step(start, action)
    assert state.terminated and state.rewards.tolist() == [1, -1]  # player 1 loses
    np.testing.assert_array_equal(state.labels, start.labels)


def test_an_action_outside_the_board_changes_nothing_in_samegame():
    env = SameGame(3, 4, 2)
    start = env.init(jax.random.key(0))
    for action in (-13, -4, -1, 12, 99, 2**31 - 1, -(2**31)):
        state = env.step(start, action)
        np.testing.assert_array_equal(state.planes, start.planes)
        assert state.rewards == 0 and state.terminated == start.terminated
