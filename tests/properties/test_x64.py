"""With `jax_enable_x64` nothing is cast by accident, which JAX warns of and will refuse."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import pytest
import toy
from games import mostly_slow

import jaxpgs
from jaxpgs import envs
from jaxpgs.training.policy_gradient import learner_games, past_selves
from jaxpgs.training.two_player import experts, selfplay

PGS = {"adapt": toy.adapt_head}
SEARCHES = {
    "mcs": (jaxpgs.search.mcs_search, {}),
    "mcs, rollouts": (jaxpgs.search.mcs_search, {"mode": "rollouts"}),
    "pgs": (jaxpgs.search.pgs_search, PGS),
    "pgs, rollouts": (jaxpgs.search.pgs_search, PGS | {"mode": "rollouts"}),
    "pgs, reuse": (jaxpgs.search.pgs_search, PGS | {"reuse": jaxpgs.reuse.Reuse(2)}),
    "mcts": (jaxpgs.search.batched_mcts_search, {}),
    "extended pgs": (jaxpgs.search.extended_pgs_search, PGS),
    "gumbel pgs": (jaxpgs.search.gumbel_pgs_search, PGS),
    "gumbel mcts": (jaxpgs.search.gumbel_mcts_search, {}),
}


@pytest.fixture(autouse=True)
def strict_x64():
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", mostly_slow(SEARCHES, "pgs", "pgs, reuse", "extended pgs", "gumbel mcts")
)
def test_searches(name):
    make, knobs = SEARCHES[name]
    params = jax.tree.map(
        lambda x: x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32),
        toy.tree(2, 3),
    )
    search = make(toy.split_fn, 8, simulations_per_update=4, **knobs)

    def ask(key):
        output = jaxpgs.search.run(search, params, key, toy.root(params, (0, 1)))
        if output.search_state.nodes is not None:
            jaxpgs.reroot(output.search_state.nodes, output.action, num_kept=3)
        return output

    output = jax.eval_shape(ask, jax.random.key(0))

    state = output.search_state
    assert output.action.dtype == state.visits.dtype == jnp.int32
    floats = (
        output.action_weights, state.qvalues, state.value, state.depth, state.depth_limited,
        state.entropy, state.gradient_norm,
    )  # fmt: skip
    assert {x.dtype for x in floats} == {jnp.dtype("float32")}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "env", [envs.Hex(3), envs.SameGame(4, 4), envs.Breakthrough(4, 3), envs.Yavalath(3)],
    ids=lambda env: type(env).__name__,
)  # fmt: skip
@pytest.mark.each_value
def test_games(env, dtype):
    before = jax.eval_shape(env.init, jax.random.key(0))
    action = jax.ShapeDtypeStruct((), dtype)
    after = jax.eval_shape(lambda *data: (env.step(*data), env.observe(data[0])), before, action)[0]
    types = [jax.tree.map(lambda x: x.dtype, state) for state in (before, after)]
    assert jax.tree.leaves(types[0]) == jax.tree.leaves(types[1])


@dataclasses.dataclass(frozen=True)
class Wide(envs.Hex):
    """Hex with rewards of 64 bits."""

    def step(self, state, action):
        state = super().step(dataclasses.replace(state, rewards=jnp.zeros(2, jnp.float32)), action)
        return dataclasses.replace(state, rewards=state.rewards.astype(jnp.float64))

    def init(self, key=None):
        state = super().init(key)
        return dataclasses.replace(state, rewards=state.rewards.astype(jnp.float64))


def wide_network(params, observation):
    return jnp.zeros((len(observation), 9)) + params, jnp.zeros(len(observation)) + params


@pytest.mark.lenient
@pytest.mark.parametrize("value_target", ["best", "return"])
def test_self_play_keeps_values_of_32_bits(value_target):
    env, params = envs.Hex(3), jnp.float64(0.0)

    def play(key):
        games = selfplay.init_games(env, key, 2)
        kept = selfplay.Kept(value_target=value_target)
        return selfplay.play(
            env, wide_network, experts.raw_policy(), params, key, games, 4, kept=kept
        )

    games, seen, _ = jax.eval_shape(play, jax.random.key(0))
    assert {games.lowest.dtype, seen.value.dtype, seen.open.dtype} == {jnp.dtype("float32")}


@pytest.mark.lenient
def test_games_of_a_learner_keep_rewards_of_32_bits():
    env, params = Wide(3), jnp.float64(0.0)
    met = past_selves.Opponents(jnp.zeros(1), jnp.ones(1), jnp.zeros(1, jnp.int32))

    def play(key):
        games = learner_games.start(env, key, jnp.array([True, False]))
        _, rollout, last, _ = learner_games.play(env, wide_network, params, met, key, games, 4)
        return rollout.reward, learner_games.advantages(rollout, last)

    found = jax.eval_shape(play, jax.random.key(0))
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("float32")}
