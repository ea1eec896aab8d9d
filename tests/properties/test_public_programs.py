"""Programs as they are written for mctx, with the name of the function changed and no more.

Each is in the shape of a public one: how it keeps its state, where it takes its parameters from and
which keywords it gives. One simulation at a time the answers are mctx's. Where the model draws, the
keys are others than mctx's, and the best action is known.
"""

import functools

import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pgx
import pytest

import jaxpgs

B = 4
GUMBEL = (mctx.gumbel_muzero_policy, jaxpgs.gumbel_mcts_policy)
MUZERO = (mctx.muzero_policy, jaxpgs.batched_mcts_policy)
PLAIN = {"dirichlet_fraction": 0.0, "temperature": 0.0, "pb_c_init": 1.25}
KEY = jax.random.key(7)
TIC_TAC_TOE, TILES = pgx.make("tic_tac_toe"), pgx.make("2048")  # which must not happen in a trace


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def output(reward, discount, logits, value):
    return mctx.RecurrentFnOutput(
        reward=reward, discount=discount, prior_logits=logits, value=value
    )


def root_of(logits, value, embedding):
    return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=embedding)


def bandits_of_the_roots(policy, **knobs):
    """mctx's demo of policy improvement: the answers to the actions, a row for each root."""
    payoff, logits = normal(1, B, 6), normal(2, B, 6)

    def recurrent_fn(params, rng_key, action, embedding):
        reward = payoff[jnp.arange(B), action]
        return output(reward, 0 * reward, 0 * logits, 0 * reward), embedding

    value = jnp.sum(jax.nn.softmax(logits) * payoff, axis=-1)
    qtransform = functools.partial(mctx.qtransform_completed_by_mix_value, use_mixed_value=False)
    return policy(
        params=(), rng_key=KEY, root=root_of(logits, value, jnp.zeros(B)),
        recurrent_fn=recurrent_fn, num_simulations=8, max_num_considered_actions=5,
        qtransform=qtransform, **knobs,
    )  # fmt: skip


TABLE = {
    "next": np.array([[1, 2, 3], [4, 4, 4], [4, 4, 4], [0, 1, 2], [4, 4, 4]]),
    "reward": np.array([[1, -1, 0], [2, 0, 1], [3, -2, 0], [0, 0, 0.5], [0, 0, 0]], np.float32),
    "value": np.array([15, 13, 14, 9, 0], np.float32),
}


def table_of_a_picture(policy, **knobs):
    """mctx's demo of a drawn tree: one root, states as numbers, tables in the closure."""

    def recurrent_fn(params, rng_key, action, embedding):
        state = jnp.asarray(TABLE["next"])[embedding, action]
        reward = jnp.asarray(TABLE["reward"])[embedding, action]
        logits = jnp.zeros((len(action), 3))
        discount = jnp.where(state == 4, 0.0, 0.9) * jnp.ones_like(reward)
        return output(reward, discount, logits, jnp.asarray(TABLE["value"])[state]), state

    root = root_of(jnp.array([[0.1, 0.2, 0.3]]), jnp.array([15.0]), jnp.zeros(1, jnp.int32))
    return policy((), KEY, root, recurrent_fn, num_simulations=12, gumbel_scale=0.0, **knobs)


def pgx_step(env, forward):
    """The model of pgx's AlphaZero example."""

    def recurrent_fn(model, rng_key, action, state):
        player = state.current_player
        state = jax.vmap(env.step)(state, action)
        logits, value = forward(model, state.observation)
        logits = logits - jnp.max(logits, axis=-1, keepdims=True)
        logits = jnp.where(state.legal_action_mask, logits, jnp.finfo(logits.dtype).min)
        reward = state.rewards[jnp.arange(state.rewards.shape[0]), player]
        value = jnp.where(state.terminated, 0.0, value)
        discount = jnp.where(state.terminated, 0.0, -1.0 * jnp.ones_like(value))
        return output(reward, discount, logits, value), state

    return recurrent_fn


def linear(model, observation):
    weights, bias = model  # as parameters and the state of Haiku's modules
    x = jnp.tanh(observation.reshape(len(observation), -1) @ weights["torso"])
    return x @ weights["policy_head"] + bias["b"], jnp.tanh(x @ weights["value"])


def alphazero_of_pgx(policy, **knobs):
    env = TIC_TAC_TOE
    state = jax.vmap(env.init)(jax.random.split(KEY, B))
    for t in range(3):
        state = jax.vmap(env.step)(state, jnp.array([t, 8 - t, 2 * t, t + 4]))
    model = ({"torso": normal(3, 18, 8), "policy_head": normal(4, 8, 9), "value": normal(5, 8)},
             {"b": normal(6, 9)})  # fmt: skip
    logits, value = linear(model, state.observation)
    return policy(
        params=model, rng_key=KEY, root=root_of(logits, value, state),
        recurrent_fn=pgx_step(env, linear), num_simulations=16,
        invalid_actions=~state.legal_action_mask,
        qtransform=mctx.qtransform_completed_by_mix_value, gumbel_scale=1.0, **knobs,
    )  # fmt: skip


def muzero_of_gym(policy, **knobs):
    """Three functions of a learned model, one dictionary of parameters for each, as in muax."""
    params = {
        "representation": normal(8, 4, 6), "dynamic": 0.5 * normal(9, 8, 6),
        "reward": normal(10, 8), "policy_head": normal(11, 6, 2), "value": normal(12, 6),
    }  # fmt: skip

    def root_inference(params, observation):
        s = jnp.tanh(observation @ params["representation"])
        return root_of(s @ params["policy_head"], s @ params["value"], s)

    def recurrent_inference(params, rng_key, action, s):
        x = jnp.concatenate([s, jax.nn.one_hot(action, 2)], axis=-1)
        s = jnp.tanh(x @ params["dynamic"])
        discount = jnp.full_like(s[:, 0], 0.99)
        return output(
            x @ params["reward"], discount, s @ params["policy_head"], s @ params["value"]
        ), s

    return policy(
        params=params, rng_key=KEY, root=root_inference(params, normal(13, B, 4)),
        recurrent_fn=recurrent_inference, num_simulations=12, max_depth=5,
        qtransform=mctx.qtransform_by_parent_and_siblings, **PLAIN, **knobs,
    )  # fmt: skip


def planner_of_paths(policy, **knobs):
    """A robot on a grid; the goals of the roots are parameters, a row for each root."""
    moves = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
    params = {"goal": jnp.array([[4, 4], [0, 4], [4, 0], [1, 3]]), "size": 5}

    def recurrent_fn(params, rng_key, action, embedding):
        place = jnp.clip(embedding["place"] + moves[action], 0, params["size"] - 1)
        there = jnp.all(place == params["goal"], axis=-1)
        distance = jnp.sum(jnp.abs(place - params["goal"]), axis=-1).astype(jnp.float32)
        logits = jnp.sin(place @ jnp.arange(1.0, 9.0).reshape(2, 4))  # no ties
        found = output(there.astype(jnp.float32) - 0.01, 0.95 * ~there, logits, -0.02 * distance)
        return found, {"place": place, "steps": embedding["steps"] + 1}

    place = jnp.array([[0, 0], [2, 2], [3, 1], [1, 1]])
    embedding = {"place": place, "steps": jnp.zeros(B, jnp.int32)}
    root = root_of(0.1 * normal(14, B, 4), jnp.zeros(B), embedding)
    return policy(params, KEY, root, recurrent_fn, 24, **PLAIN, **knobs)


def search_of_optimizers(policy, **knobs):
    """An optimizer's steps as a game: an action is a learning rate, the state has optax's."""
    rates, momentum = jnp.array([0.3, 0.1, 0.03, 0.0]), optax.trace(0.9)
    loss = lambda x: jnp.sum(x**2) + 0.3 * jnp.sum(jnp.sin(5 * x))  # noqa: E731

    def one(action, state):
        x, trace = state
        update, trace = momentum.update(jax.grad(loss)(x), trace)
        after = x - rates[action] * update
        return loss(x) - loss(after), (after, trace)

    def recurrent_fn(params, rng_key, action, embedding):
        gain, embedding = jax.vmap(one)(action, embedding)
        logits = jnp.tile(0.1 * jnp.arange(4.0), (len(gain), 1))  # no ties
        return output(gain, jnp.full(len(gain), 0.9), logits, 0 * gain), embedding

    x = normal(15, B, 3)
    root = root_of(
        jnp.zeros((B, 4)) + 0.1 * normal(16, 4), jnp.zeros(B), (x, jax.vmap(momentum.init)(x))
    )
    return policy(None, KEY, root, recurrent_fn, 16, max_depth=4, **PLAIN, **knobs)


def determinised_cards(policy, **knobs):
    """Hidden cards are drawn before the search, several times for a root; two models, one each."""
    worlds, cards = 3, jax.random.permutation(jax.random.key(17), jnp.arange(5))

    def recurrent_fn(params, rng_key, action, embedding):
        hidden, played = embedding
        mine, theirs = (cards[(hidden + played + i) % 5] for i in (action, 1))
        reward = jnp.where(played % 2 == 0, 1.0, -1.0) * jnp.sign(mine - theirs)
        x = jax.nn.one_hot(hidden, 5)
        logits = jnp.where((played % 2 == 0)[:, None], x @ params["own"], x @ params["other"])
        discount = jnp.where(played > 2, 0.0, -1.0)
        return output(reward, discount, logits, jnp.sum(logits, axis=-1) / 9), (hidden, played + 1)

    params = {"own": normal(18, 5, 3), "other": normal(19, 5, 3)}
    hidden = jnp.tile(jnp.arange(worlds), B)
    logits = jax.nn.one_hot(hidden, 5) @ params["own"]
    root = root_of(logits, jnp.zeros(B * worlds), (hidden, 0 * hidden))
    found = policy(
        params, KEY, root, recurrent_fn, 10, max_num_considered_actions=3,
        gumbel_scale=jnp.linspace(0.0, 1.0, B * worlds)[:, None], **knobs,
    )  # fmt: skip
    mean = found.action_weights.reshape(B, worlds, -1).mean(axis=1)
    return found.replace(action_weights=jnp.repeat(mean, worlds, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "functions"),
    games.mostly_slow(
        [
            (bandits_of_the_roots, GUMBEL),
            (table_of_a_picture, GUMBEL),
            (alphazero_of_pgx, GUMBEL),
            (muzero_of_gym, MUZERO),
            (planner_of_paths, MUZERO),
            (search_of_optimizers, MUZERO),
            (determinised_cards, GUMBEL),
        ],
        (muzero_of_gym, MUZERO),
        (determinised_cards, GUMBEL),
    ),
)
def test_a_program_for_mctx_has_the_same_answers(program, functions):
    theirs, ours = functions

    @functools.partial(jax.jit, compiler_options=games.QUICK)
    def both():
        wanted, found = program(theirs), program(ours, simulations_per_update=1)
        return (
            (wanted.search_tree.summary(), wanted.action, wanted.action_weights),
            (found.search_tree.summary(), found.action, found.action_weights),
        )

    with games.lenient_promotion():
        wanted, found = jax.device_get(both())
    for field in ("visit_counts", "visit_probs", "value", "qvalues"):
        np.testing.assert_allclose(
            getattr(found[0], field), getattr(wanted[0], field), atol=1e-5, err_msg=field
        )
    if functions is GUMBEL:
        np.testing.assert_array_equal(found[1], wanted[1])
        np.testing.assert_allclose(found[2], wanted[2], atol=1e-5)


# --- models that draw -----------------------------------------------------------------------------


def sampled_actions(policy, **knobs):
    """Continuous actions, drawn anew in each state by the model's key, as in Sampled AlphaZero."""

    def propose(key, mean):
        return mean[:, None] + jax.random.normal(key, (len(mean), 5))

    def recurrent_fn(params, rng_key, action, embedding):
        x = embedding["x"] + embedding["actions"][jnp.arange(len(action)), action]
        reward = -jnp.abs(x)
        proposed = propose(rng_key, params["mean"] * x)
        logits = jnp.zeros((len(action), 5))
        found = output(reward, jnp.full(len(x), 0.5), logits, 0 * reward)
        return found, {"x": x, "actions": proposed}

    x = jnp.array([2.0, -2.0, 0.5, -1.0])
    actions = x[:, None] * jnp.array([-1.0, 1.0, -0.3, 0.7, 2.0])  # the first leads to 0
    root = root_of(jnp.zeros((B, 5)), jnp.zeros(B), {"x": x, "actions": actions})
    return policy({"mean": jnp.float32(-1.0)}, KEY, root, recurrent_fn, 40, **knobs)


def tiles_that_fall(policy, **knobs):
    """2048 of pgx: every step takes a key, and the search goes on with what it drew."""
    env = TILES
    state = jax.vmap(env.init)(jax.random.split(KEY, B))
    row = jnp.zeros(16, jnp.int32).at[jnp.array([0, 1])].set(7)  # 128 and 128 side by side
    row = row.at[jnp.array([8, 13])].set(jnp.array([1, 2]))
    state = jax.vmap(lambda s: env.step(s.replace(_board=row), 1, KEY).replace(_board=row))(state)

    def recurrent_fn(params, rng_key, action, state):
        keys = jax.random.split(rng_key, len(action))
        state = jax.vmap(env.step)(state, action, keys)
        reward = state.rewards[:, 0]
        value = 0 * reward
        logits = jnp.where(state.legal_action_mask, 0.0, jnp.finfo(jnp.float32).min)
        return output(reward, jnp.where(state.terminated, 0.0, 0.5), logits, value), state

    root = root_of(jnp.zeros((B, 4)), jnp.zeros(B), state)
    return policy((), KEY, root, recurrent_fn, 16, max_depth=2, **knobs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "best"),
    games.mostly_slow(
        [(sampled_actions, (0,)), (tiles_that_fall, (0, 2))], (sampled_actions, (0,))
    ),
)
def test_a_program_that_draws_finds_the_best_action(program, best):
    for function in MUZERO:
        search = functools.partial(program, function, dirichlet_fraction=0.0, temperature=0.0)
        with games.lenient_promotion():
            action = jax.jit(lambda search=search: search().action, compiler_options=games.QUICK)()
        assert np.isin(action, best).all(), (function, action)


@pytest.mark.slow
def test_with_adapt_the_program_plays_by_policy_gradient_search():
    """The last of the ten programs is pgx's, and this is all that changes."""
    call = jax.jit(lambda: alphazero_of_pgx_adapting().search_state, compiler_options=games.QUICK)
    state = call()
    np.testing.assert_array_equal(state.visits.sum(-1), 16)
    assert float(jnp.max(state.gradient_norm)) > 0


def alphazero_of_pgx_adapting():
    return alphazero_of_pgx(jaxpgs.gumbel_pgs_policy, adapt="policy_head")
