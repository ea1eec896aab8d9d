"""Searches on games of pgx, and on our own besides Hex, through the adapters.

Compiling takes nearly all the time, so this is no product of games and searches: a game meets one
search, and every search one or two games. `test_adapters` compares pgx's Hex with
ours; our games have their own tests.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import games
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpgs
from jaxpgs import envs, networks

pgx = pytest.importorskip("pgx")

SEARCHES = {
    "mcs": jaxpgs.mcs_policy,
    "pgs": jaxpgs.pgs_policy,
    "mcts": jaxpgs.batched_mcts_policy,
    "extended pgs": jaxpgs.extended_pgs_policy,
    "gumbel pgs": jaxpgs.gumbel_pgs_policy,
    "gumbel mcts": jaxpgs.gumbel_mcts_policy,
}
# The searches of each game, and the plies after which eight random games are searched. In most
# games one or more are over by the last of these.
GAMES = {
    "tic_tac_toe": (("pgs",), range(2, 10)),
    "connect_four": (("mcts",), range(0, 32, 4)),
    "othello": (("gumbel mcts",), range(0, 64, 8)),
    "gardner_chess": (("mcs",), range(0, 80, 10)),
    "go_9x9": (("mcts",), range(0, 96, 12)),
    "breakthrough": (("extended pgs",), range(0, 80, 10)),
    "yavalath": (("gumbel pgs",), range(0, 24, 3)),
}
# Who plays a match, the simulations, and the moves of a playout at most.
MATCHES = {
    "tic_tac_toe": ("pgs", 16, 9),
    "connect_four": ("mcs", 16, 12),
    "yavalath, small": ("pgs", 16, 8),
}
OURS = {
    "breakthrough": envs.Breakthrough(),
    "yavalath": envs.Yavalath(),
    "yavalath, small": envs.Yavalath(3),
}


class Env(NamedTuple):
    init: Any
    step: Any
    observe: Any
    num_actions: int
    observation_size: int


def make(game):
    """An environment whose functions are traced once for a program that calls them often."""
    env = OURS[game] if game in OURS else pgx.make(game)
    return Env(
        init=jax.jit(env.init),
        step=jax.jit(env.step),
        observe=jax.jit(env.observe),
        num_actions=env.num_actions,
        observation_size=int(np.prod(env.observation_shape)),
    )


def network(env):
    """A random network with eight features and two linear heads, which knows no game."""
    rng = np.random.default_rng(1)
    params = {
        "torso": rng.normal(size=(env.observation_size, 8)) / 4,
        "policy_head": rng.normal(size=(8, env.num_actions)),
        "value_head": rng.normal(size=8),
    }
    apply_fn = networks.SplitApplyFn(
        torso=lambda params, x: jnp.tanh(
            x.reshape(len(x), -1).astype(jnp.float32) @ params["torso"]
        ),
        policy_head=lambda params, features: features @ params["policy_head"],
        value_head=lambda params, features: jnp.tanh(features @ params["value_head"]),
    )
    return {name: np.float32(x) for name, x in params.items()}, apply_fn


def random_legal(key, states):
    mask = states.legal_action_mask
    score = jax.random.uniform(key, mask.shape)
    return jnp.argmax(jnp.where(mask, score, -1.0), axis=-1).astype(jnp.int32)


def step(env, states, actions):
    """Plays one action in each state; some games of pgx change the type of an array."""
    after = jax.vmap(env.step)(states, actions)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), after, states)


def plan(name, env, apply_fn, params, key, states, num_simulations, **knobs):
    """The answer of a search for states, with the adapters between them."""
    if "pgs" in name:
        knobs["adapt"] = {part: part == "policy_head" for part in params}
    return SEARCHES[name](
        params,
        key,
        jaxpgs.make_root_fn(env, apply_fn)(params, key, states),
        jaxpgs.make_recurrent_fn(env, apply_fn),
        num_simulations,
        ~states.legal_action_mask,
        simulations_per_update=4,
        **knobs,
    )


@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=games.QUICK)
def random_games(env, plies, key):
    """Positions `[B]` of random games after `plies[b]` moves, or at the end if that is earlier."""

    def play(t, states):
        after = step(env, states, random_legal(jax.random.fold_in(key, t), states))
        goes_on = (t < jnp.array(plies)) & ~states.terminated
        return jax.tree.map(
            lambda new, old: jnp.where(goes_on.reshape(-1, *[1] * (old.ndim - 1)), new, old),
            after,
            states,
        )

    start = jax.vmap(env.init)(jax.random.split(key, len(plies)))
    return jax.lax.fori_loop(0, max(plies), play, start)


@pytest.mark.first_case
@pytest.mark.parametrize("game", games.mostly_slow(GAMES, "tic_tac_toe", "yavalath"))
def test_searches_answer_in_every_phase_of_a_game(game):
    names, plies = GAMES[game]
    env = make(game)
    params, apply_fn = network(env)
    states = random_games(env, tuple(plies), jax.random.key(len(game)))
    legal, playing = np.asarray(states.legal_action_mask), ~np.asarray(states.terminated)
    assert playing[0] and playing.sum() >= 4
    for name in names:
        # One program for each search: together they would take far longer to compile.
        @functools.partial(jax.jit, compiler_options=games.QUICK)
        def run(params, key, states, name=name):
            knobs = {}
            if "pgs" in name:
                # A first action is the bandit's, so only longer simulations teach a policy.
                knobs = {"truncation": jaxpgs.truncation.fixed(3)}
                knobs |= {} if (game, name) == ("tic_tac_toe", "pgs") else {"mode": "rollouts"}
            output = plan(name, env, apply_fn, params, key, states, 8, **knobs)
            state = dataclasses.replace(output.search_state, nodes=None)
            return dataclasses.replace(output, search_state=state)

        output = jax.device_get(run(params, jax.random.key(0), states))
        check(name, output, legal, playing, params)


def check(name, output, legal, playing, params):
    """What must be true of every answer: legal play, and numbers that a game can have."""
    state = output.search_state
    assert legal[np.arange(len(playing)), output.action][playing].all(), name
    assert not output.action_weights[playing][~legal[playing]].any(), name
    np.testing.assert_allclose(output.action_weights[playing].sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(state.visits[playing].sum(-1), 8)
    assert not state.visits[playing][~legal[playing]].any(), name
    numbers = (output.action_weights, state.qvalues, state.value, state.entropy, state.params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(numbers)), name
    # A game pays 1 at most, and the network believes in no more.
    assert (np.abs(state.qvalues[state.visits > 0]) <= 1 + 1e-6).all(), name
    np.testing.assert_allclose(state.value[~playing], 0, atol=1e-6)
    np.testing.assert_array_equal(state.skipped_updates, 0)
    if "pgs" in name:
        moved = state.params["policy_head"] != params["policy_head"]
        assert moved.any((1, 2))[playing].any(), name


@pytest.mark.slow
@pytest.mark.parametrize("game", games.mostly_slow(MATCHES, "tic_tac_toe"))
def test_searches_with_playouts_beat_random_play(game):
    # 64 games, half of them with each seat. By Hoeffding's inequality a player who is no better
    # than random has a mean score, from -1 to 1, of 0.5 with a probability below 4e-4.
    name, num_simulations, length = MATCHES[game]
    env, count = make(game), 64
    params, apply_fn = network(env)
    # Uniform playouts; what they do not reach is worth nothing.
    params |= {part: 0 * params[part] for part in ("policy_head", "value_head")}

    @functools.partial(jax.jit, compiler_options=games.QUICK)
    def run(params, key):
        def play(carry):
            t, states, score, legal = carry
            keys = jax.random.split(jax.random.fold_in(key, t))
            knobs = {"truncation": jaxpgs.truncation.fixed(length), "mode": "rollouts"}
            output = plan(name, env, apply_fn, params, keys[0], states, num_simulations, **knobs)
            searches = (t + jnp.arange(count)) % 2 == 0
            action = jnp.where(searches, output.action, random_legal(keys[1], states))
            mask = states.legal_action_mask
            legal &= states.terminated | jnp.take_along_axis(mask, action[:, None], axis=1)[:, 0]
            after = step(env, states, action)
            earned = after.rewards[jnp.arange(count), states.current_player]
            return t + 1, after, score + jnp.where(searches, earned, -earned), legal

        start = jax.vmap(env.init)(jax.random.split(key, count))
        carry = jnp.int32(0), start, jnp.zeros(count), jnp.ones(count, bool)
        return jax.lax.while_loop(lambda carry: ~carry[1].terminated.all(), play, carry)[2:]

    score, legal = jax.device_get(run(params, jax.random.key(0)))

    assert legal.all()
    assert set(score) <= {-1, 0, 1}
    assert score.mean() > 0.5
