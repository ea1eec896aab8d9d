"""`check_model` finds what was put in, and nothing in models that are right."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from games import mostly_slow

import jaxpgs
from jaxpgs import envs

B = 6


def random_network(env):
    """Weights that were never learned: values from -1 to 1, logits of about 1."""
    size = int(np.prod(env.observation_shape))
    keys = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(keys[0], (size, env.num_actions + 1)) / size**0.5

    def apply_fn(params, observation):
        found = observation.reshape(len(observation), -1).astype(jnp.float32) @ params
        return found[:, :-1], jnp.tanh(found[:, -1])

    return weights, apply_fn


def model_of(env, moves=2):
    params, apply_fn = random_network(env)
    state = jax.vmap(env.init)(jax.random.split(jax.random.key(1), B))
    rng = np.random.default_rng(0)
    for _ in range(moves):
        legal = np.asarray(state.legal_action_mask)
        action = np.argmax(rng.random(legal.shape) * legal, axis=-1)
        state = jax.vmap(env.step)(state, jnp.asarray(action))
    root = jaxpgs.make_root_fn(env, apply_fn)(params, jax.random.key(0), state)
    return params, root, jaxpgs.make_recurrent_fn(env, apply_fn), ~state.legal_action_mask


def check(model, change=None, **knobs):
    params, root, recurrent_fn, invalid = model
    if change is not None:
        right = recurrent_fn

        def recurrent_fn(params, key, action, embedding):
            return change(*right(params, key, action, embedding))

    return jaxpgs.check_model(params, jax.random.key(3), root, recurrent_fn, invalid, **knobs)


HEX = model_of(envs.Hex(3))


@pytest.mark.first_case
@pytest.mark.parametrize(
    "env", [envs.Hex(4), envs.Breakthrough(), envs.Yavalath(3), envs.SameGame(4, 4)]
)
def test_our_games_have_none(env):
    assert check(model_of(env), num_steps=24) == []


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        ["tic_tac_toe", "connect_four", "othello", "gardner_chess", "go_9x9"], "tic_tac_toe"
    ),
)
def test_games_of_pgx_have_none(name):
    pgx = pytest.importorskip("pgx")
    env = pgx.make(name)
    params, apply_fn = _network_of_pgx(env)
    state = jax.vmap(env.init)(jax.random.split(jax.random.key(1), B))
    root = jaxpgs.make_root_fn(env, apply_fn)(params, jax.random.key(0), state)
    model = params, root, jaxpgs.make_recurrent_fn(env, apply_fn), ~state.legal_action_mask
    assert check(model, num_steps=12) == []


def _network_of_pgx(env):
    @dataclasses.dataclass
    class Sizes:
        observation_shape: tuple
        num_actions: int

    return random_network(Sizes(env.observation_shape, env.num_actions))


def _always_legal(output, after):
    return output.replace(prior_logits=jnp.zeros_like(output.prior_logits)), after


FAULTS = {
    "discount of one player": (
        lambda o, s: (o.replace(discount=jnp.abs(o.discount)), s),
        r"Discount \(row .*\): 1 where player . moves after player .* must be negative",
    ),
    "reward of the other": (
        lambda o, s: (o.replace(reward=-o.reward), s),
        r"Reward \(row .*\): -1 where player ., who moved, was paid 1",
    ),
    "illegal actions": (_always_legal, r"Illegal actions \(row .*\): they have \d+% of the prior"),
    "no end": (
        lambda o, s: (o.replace(discount=-jnp.ones_like(o.discount)), s),
        r"A game that is over goes on \(row .*\): the discount is -1",
    ),
    "values of another range": (
        lambda o, s: (o.replace(value=30 * o.value), s),
        r"Values reach -?\d.*, but random games returned -1 to 1",
    ),
    "embedding of another shape": (
        lambda o, s: (o, dataclasses.replace(s, labels=s.labels[:, :1])),
        r"The embedding changes from int16\[6, 9\] to int16\[6, 1\]",
    ),
    "another type": (
        lambda o, s: (o.replace(reward=o.reward.astype(jnp.bfloat16)), s),
        r"reward is bfloat16 and the root's float32",
    ),
    "rows that are mixed": (
        lambda o, s: (o.replace(value=jnp.cumsum(o.value) / 9), s),
        r"value of a row depends on the other rows",
    ),
    "not a number": (
        lambda o, s: (o.replace(value=jnp.where(o.value < 0, jnp.nan, o.value)), s),
        r"Not finite \(row .*\): reward, discount, value",
    ),
    "a column": (
        lambda o, s: (o.replace(value=o.value[:, None]), s),
        r"value has shape \(6, 1\); the root's is \(6,\)",
    ),
    "discount above 1": (
        lambda o, s: (o.replace(discount=1.5 * o.discount), s),
        r"Discount \(row .*\): -1.5 lies outside of -1 to 1",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_nothing_else(name):
    change, words = FAULTS[name]
    found = check(HEX, change)
    assert len(found) == 1, found
    assert re.search(words, found[0]), found


def test_samples_that_happen_to_agree_are_no_fault():
    # Values are results of random games, -1 or 1, so two roots often have the same ones again.
    env = envs.Hex(2)
    state = jax.vmap(env.step)(jax.vmap(lambda _: env.init())(jnp.arange(2)), jnp.array([1, 2]))
    root_fn, recurrent_fn = jaxpgs.make_playout_fns(env)
    root = root_fn((), jax.random.key(0), state)
    for seed in range(4):
        assert jaxpgs.check_model((), jax.random.key(seed), root, recurrent_fn, num_steps=1) == []


@pytest.mark.lenient
def test_what_is_known_is_enough():
    # A model of one's own, whose embedding tells nothing.
    def recurrent_fn(params, key, action, embedding):
        del params, key
        return mctx.RecurrentFnOutput(
            reward=0.1 * action, discount=jnp.where(embedding > 3, 0.0, 0.9),
            prior_logits=jnp.zeros((B, 3)), value=jnp.sin(embedding),
        ), embedding + 1.0  # fmt: skip

    root = mctx.RootFnOutput(
        prior_logits=jnp.zeros((B, 3)), value=jnp.zeros(B), embedding=jnp.arange(B) / 4
    )
    assert jaxpgs.check_model({}, jax.random.key(0), root, recurrent_fn) == []
    found = jaxpgs.check_model({}, jax.random.key(0), root, recurrent_fn, value_range=(0.0, 0.1))
    assert len(found) == 1 and "Values reach" in found[0]
    with pytest.raises(ValueError, match=r"check_model.*num_steps"):
        jaxpgs.check_model({}, jax.random.key(0), root, recurrent_fn, num_steps=0)
