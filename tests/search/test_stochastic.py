"""Tree search with chance nodes: mctx's answers, games whose values are known, and games of pgx."""

import dataclasses
import functools
import inspect

import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from chance_games import play2048
from jax.sharding import PartitionSpec as P
from one_player import begin
from scipy import stats as scipy_stats

import jaxpgs
from jaxpgs.search import default_simulations_per_update, options, stochastic_root
from jaxpgs.search.parts.selection import select_in_turn

jit = functools.partial(jax.jit, compiler_options=games.QUICK)
strict = pytest.mark.usefixtures("strict_promotion")
B, A, C, D = 32, 5, 4, 6
LOWEST = np.finfo(np.float32).min


# --- two models of random weights -----------------------------------------------------------------


def policy(params, state):
    logits = state @ params["policy"]
    illegal = (logits < -1) & (logits < logits.max(-1, keepdims=True))
    return jnp.where(illegal, jnp.finfo(logits.dtype).min, logits)


@jax.jit
def decide(params, rng_key, action, state):
    """Afterstates have another structure than states, and some of their outcomes cannot be."""
    del rng_key
    after = jnp.tanh(jnp.einsum("bij,bj->bi", params["moves"][action], state))
    logits = after @ params["chance"]
    impossible = (logits < -1.5) & (logits < logits.max(-1, keepdims=True))
    output = mctx.DecisionRecurrentFnOutput(
        chance_logits=jnp.where(impossible, -jnp.inf, logits),
        afterstate_value=after @ params["values"][:, 0],
    )
    return output, {"after": after, "action": action}


@jax.jit
def draw(params, rng_key, outcome, afterstate):
    """Some games end, and some actions are illegal."""
    del rng_key
    x = afterstate["after"] + 0.1 * afterstate["action"][:, None].astype(afterstate["after"].dtype)
    state = jnp.tanh(jnp.einsum("bij,bj->bi", params["draws"][outcome], x))
    _, ends, value, reward = jnp.moveaxis(state @ params["values"], -1, 0)
    output = mctx.ChanceRecurrentFnOutput(
        action_logits=policy(params, state),
        value=value,
        reward=0.5 * reward,
        discount=jnp.where(ends > 2.5, 0.0, params["discount"]),
    )
    return output, state


def random_model(seed, discount, dtype=np.float32):
    """Parameters, roots, and illegal actions, of which one root has all but one."""
    rng = np.random.default_rng(seed)
    weights = lambda *shape: rng.normal(size=shape).astype(dtype)  # noqa: E731
    params = {
        "moves": weights(A, D, D), "draws": weights(C, D, D), "chance": weights(D, C),
        "policy": weights(D, A), "values": weights(D, 4), "discount": np.asarray(discount, dtype),
    }  # fmt: skip
    states = weights(B, D)
    root = mctx.RootFnOutput(
        prior_logits=states @ params["policy"],
        value=states @ params["values"][:, 2],
        embedding=states,
    )
    invalid = rng.random((B, A)) < 0.3
    invalid[:, 0] &= ~invalid.all(1)
    invalid[0] = [1, 1, 0, 1, 1]
    return params, root, invalid.astype(np.int32)


def search(params, root, invalid, num_simulations, key=0, **knobs):
    key = jax.random.key(key) if isinstance(key, int) else key
    return jaxpgs.stochastic_mcts_policy(
        params, key, root, decide, draw, num_simulations, invalid, **knobs
    )


@strict
def test_one_at_a_time_it_is_mctxs_search():
    """128 roots: rewards of both signs, one player and two, and few actions or many."""
    knobs = {"dirichlet_fraction": 0.0, "temperature": 0.0, "max_depth": 7}

    @jit
    def both(params, root, invalid):
        data = params, jax.random.key(0), root, decide, draw, 40, invalid
        with games.lenient_promotion():
            theirs = mctx.stochastic_muzero_policy(*data, **knobs)
        ours = search(params, root, invalid, 40, simulations_per_update=1, **knobs)
        return theirs.search_tree.summary(), ours.search_tree.summary(), theirs, ours

    for seed, discount in ((0, 0.95), (1, -1.0), (2, -0.9), (3, 1.0)):
        wanted, found, theirs, ours = jax.device_get(both(*random_model(seed, discount)))
        np.testing.assert_array_equal(found.visit_counts, wanted.visit_counts)
        np.testing.assert_allclose(ours.action_weights, theirs.action_weights, atol=1e-6)
        for field in ("visit_probs", "value", "qvalues"):
            ours_, theirs_ = getattr(found, field), getattr(wanted, field)
            np.testing.assert_allclose(ours_, theirs_, atol=2e-5)
        assert (ours.search_state.num_evaluations <= 40).all()
        assert np.ptp(found.visit_counts.max(1)) > 0


# --- several at a time ----------------------------------------------------------------------------


@pytest.mark.slow
@strict
def test_several_at_a_time_and_on_from_there():
    """Counts that K does not divide, bfloat16, one legal action, an ended game, keys by root.

    After an action and its likeliest outcome the next search goes on from what is known there.
    """
    params, root, invalid = random_model(4, -1.0, jnp.bfloat16)
    invalid[1] = 1
    keys = jax.random.split(jax.random.key(7), B)

    made = jaxpgs.search.stochastic_mcts_search(
        decide, draw, 37, num_actions=A, simulations_per_update=5
    )
    wide, _ = stochastic_root(params, root, decide)
    kept = jaxpgs.search.init_nodes(made, params, wide, num_kept=37)
    ask = jit(lambda *data, nodes: search(*data, 37, keys, nodes=nodes, simulations_per_update=5))

    found = jax.device_get(ask(params, root, invalid, nodes=kept))
    state, is_over = found.search_state, np.arange(B) == 1
    np.testing.assert_array_equal(state.visits.sum(1), np.where(is_over, 0, 37))
    assert (state.visits[invalid > 0] == 0).all()
    assert found.action_weights.shape == state.visits.shape == state.qvalues.shape == (B, A)
    np.testing.assert_allclose(found.action_weights.sum(1), ~is_over, atol=1e-5)
    assert found.action[0] == 2 and state.visits[0, 2] == 37
    assert found.action[1] == state.value[1] == 0 and not found.action_weights[1].any()
    assert state.num_calls == 8 and (state.num_evaluations <= 37).all()
    assert (state.not_finite == 0).all() and state.qvalues.dtype == np.float32
    assert state.depth[2:].min() > 2

    nodes, rows = state.nodes, np.arange(B)
    child = nodes.children[rows, 0, found.action]
    outcome = np.argmax(nodes.visits[rows, child, A:], axis=-1)
    reroot = jit(functools.partial(jaxpgs.reroot, num_kept=37))
    nodes = reroot(reroot(nodes, found.action), A + outcome)
    _, afterstate = decide(params, keys[0], found.action, root.embedding)
    told, after = draw(params, keys[0], outcome, afterstate)
    after = mctx.RootFnOutput(prior_logits=told.action_logits, value=told.value, embedding=after)
    ended = np.tile(np.asarray(told.discount)[:, None] == 0, A).astype(np.int32)
    state = jax.device_get(ask(params, after, ended, nodes=nodes)).search_state
    known = np.asarray(nodes.visits[:, 0].sum(1))
    np.testing.assert_array_equal(state.visits.sum(1), np.where(ended[:, 0], 0, 37 + known))
    assert (known > 0).mean() > 0.5 and ended.mean() < 0.2


@strict
def test_chance_is_shared_out_by_its_probabilities():
    """Each of K simulations counts those in flight; a node of decisions is the selection's own."""
    made = jaxpgs.search.stochastic_mcts_search(decide, draw, 32, num_actions=2)
    assert made.simulations_per_update == 2 == default_simulations_per_update(32)

    def take(chances, visits, num):
        valid = np.array([chances]) > 0
        logits = np.log(np.where(valid, [chances], 1)).astype(np.float32)
        node = jaxpgs.base.NodeStats(
            prior_logits=jnp.asarray(np.where(valid, logits, LOWEST)),
            value=jnp.zeros(1),
            visits=jnp.array([visits]),
            value_sum=jnp.zeros(valid.shape),
            valid=jnp.asarray(valid),
        )
        return np.asarray(select_in_turn(made.interior_selection, None, node, num))[0]

    outcomes = take([0, 0, 0.5, 0.3, 0.2, 0], [0, 0, 1, 0, 0, 0], 19)
    assert outcomes[:3].tolist() == [3, 2, 4]
    assert np.bincount(outcomes).tolist() == [0, 0, 9, 6, 4]
    assert take([0.7, 0.3, 0, 0, 0, 0], [0] * 6, 5).tolist() == [0, 0, 1, 0, 0]


# --- what it shares with the other searches -------------------------------------------------------


@pytest.mark.slow
@strict
def test_it_may_be_transformed():
    """It is traced inside of `jax.shard_map`, and with no key used twice."""
    params, root, invalid = random_model(5, 1.0)
    keys = jax.random.split(jax.random.key(1), B)
    mesh, rows = jax.make_mesh((1,), ("roots",)), P("roots")

    def visits(params, root, invalid, keys):
        return search(params, root, invalid, 6, keys, max_depth=4).search_state.visits

    share = jax.shard_map(visits, mesh=mesh, in_specs=(P(), rows, rows, rows), out_specs=rows)
    on_rows = jax.device_put((root, invalid, keys), jax.NamedSharding(mesh, rows))
    assert jax.eval_shape(jax.jit(share), params, *on_rows).shape == (B, A)
    with jax.debug_key_reuse(True):
        jax.eval_shape(visits, params, root, invalid, keys[0])


def test_logits_that_are_not_finite_forbid_nothing():
    params, root, _ = random_model(0, 1.0)
    logits = np.array(root.prior_logits)
    logits[:3] = [0, np.inf, 1, 2, 3], [np.nan] * A, [-np.inf, 0, 0, 0, 0]
    illegal = stochastic_root(params, root.replace(prior_logits=logits), decide)[1]
    np.testing.assert_array_equal(illegal, np.tile([0] * A + [1] * C, (B, 1)))


def test_what_is_known_of_actions_has_a_column_for_each():
    found = jax.eval_shape(lambda: search(*random_model(0, 1.0), 4)).search_state
    for name in ("visits", "qvalues", "prior_logits"):
        assert getattr(found, name).shape == (B, A)


def test_its_knobs_show():
    for function, more in (
        (jaxpgs.search.stochastic_mcts_search, {"num_actions"}),
        (jaxpgs.stochastic_mcts_policy, {"nodes", "adapted_params"}),
    ):
        shown = set(inspect.signature(function).parameters)
        assert more | set(options.MCSOptions.__annotations__) < shown
        for knob in shown:
            assert function.__doc__.count(f"\n  {knob}: ") == 1
    with pytest.raises(TypeError, match=r"'temperatur'\. Did you mean 'temperature'\?"):
        search(*random_model(0, 1.0), 8, temperatur=0.0)


def test_what_does_not_fit_is_refused():
    data = random_model(0, 1.0)

    def ask(decide=decide, draw=draw, **knobs):
        params, root, invalid = data
        call = lambda key: jaxpgs.stochastic_mcts_policy(  # noqa: E731
            params, key, root, decide, draw, 8, invalid, **knobs
        )
        return jax.eval_shape(call, jax.random.key(0))

    def changed(function, **fields):
        def model(*inputs):
            output, after = function(*inputs)
            return output.replace(**{k: f(getattr(output, k)) for k, f in fields.items()}), after

        return model

    column, fewer = lambda x: x[:, None], lambda x: x[:, 1:]
    for wrong, words in (
        (
            {"decide": changed(decide, afterstate_value=column)},
            r"value of shape \[32\], .* \[32, 1\]",
        ),
        (
            {"decide": changed(decide, chance_logits=lambda x: x[:, 0])},
            r"chance_logits of shape .*",
        ),
        (
            {"draw": changed(draw, action_logits=fewer)},
            r"action_logits of shape \[32, 5\].* \[32, 4\]",
        ),
        (
            {"draw": changed(draw, reward=column)},
            r"chance_recurrent_fn must return reward .* \[32\]",
        ),
        ({"draw": lambda *x: (draw(*x)[0], x[3])}, "embedding of the root's structure"),
        (
            {"interior_selection": jaxpgs.target.improved_policy()},
            "needs interior_selection to be a part",
        ),
        ({"simulations_per_update": "rounds"}, '"rounds" is for Gumbel searches'),
        ({"mode": "rollouts"}, 'mode must be "tree"'),
        (
            {"target": lambda *_: (jnp.int32(0), jnp.zeros(A + C))},
            r"weights of target, .* shape \[5\] .* got shape \[9\]",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            ask(**wrong)


# --- a game whose values are known ----------------------------------------------------------------


class Casino:
    """Take 0.4, gamble for 1, or look at a coin and then earn 0.7 by saying what it shows.

    The gamble is won 3 times in 10, so best play looks.
    """

    num_players, num_actions = 1, 3
    values = np.array([0.4, 0.3, 0.7])

    def init(self, key=None):
        del key
        return begin(jnp.int32(0), 3)  # what is known of the coin: nothing, heads or tails

    def after(self, state, action):
        is_first = state.inner == 0
        chance = jnp.select([~is_first, action == 1, action == 2], [0.0, 0.3, 0.5], 0.0)
        return jnp.log(jnp.stack([1 - chance, chance])), (state, action)

    def draw(self, afterstate, outcome):
        state, action = afterstate
        is_first, won = state.inner == 0, outcome.astype(jnp.float32)
        looks = is_first & (action == 2)
        right = jnp.where(action == state.inner - 1, 0.7, 0.0)
        paid = jnp.where(is_first, jnp.select([action == 0, action == 1], [0.4, won], 0.0), right)
        known = jnp.where(looks, 1 + outcome, 0).astype(jnp.int32)
        return dataclasses.replace(state, inner=known, rewards=paid[None], terminated=~looks)

    def step(self, state, action, key):
        logits, afterstate = self.after(state, action)
        return self.draw(afterstate, jax.random.categorical(key, logits).astype(jnp.int32))

    def observe(self, state):
        return state.inner[None].astype(jnp.float32)


def test_values_are_those_of_expectimax():
    """Not so in a tree that keeps what was drawn first: it plans as if it knew it."""
    env, num_roots = Casino(), 64
    nothing = lambda params, seen: (jnp.zeros((len(seen), 3)), jnp.zeros(len(seen)))  # noqa: E731
    model = jaxpgs.make_recurrent_fn(env, nothing)
    fns = jaxpgs.make_stochastic_fns(env, nothing, jax.jit(env.after), jax.jit(env.draw))

    @jit
    def searches(keys):
        one, all_ = (jax.vmap(env.init)(x) for x in (keys[:1], keys))
        one, all_ = (jaxpgs.make_root_fn(env, nothing)(None, None, x) for x in (one, all_))
        knobs = {"temperature": 0.0, "dirichlet_fraction": 0.0}
        found = jaxpgs.stochastic_mcts_policy(None, keys[0], one, *fns, 1500, **knobs)
        return found, jaxpgs.batched_mcts_policy(None, keys, all_, model, 64)

    found, tree = jax.device_get(searches(jax.random.split(jax.random.key(3), num_roots)))
    np.testing.assert_allclose(found.search_state.qvalues[0], env.values, atol=0.03)
    assert found.action[0] == 2 and found.action_weights[0, 2] > 0.7
    # Afterstates of 3 actions, with 1, 2 and 2 outcomes; after the last, 3 actions with 1 each.
    assert found.search_state.num_evaluations[0] == 3 + 5 + 2 * (3 + 3)
    of_gamble = tree.search_state.qvalues[:, 1]
    assert set(of_gamble.tolist()) == {0.0, 1.0}
    np.testing.assert_array_equal(tree.action == 1, of_gamble == 1)
    assert scipy_stats.binomtest(int(of_gamble.sum()), num_roots, 0.3).pvalue > 1e-3


# --- games of pgx ---------------------------------------------------------------------------------


def backgammon():
    """pgx's backgammon: a step with any dice, which are rolled again where the turn has passed."""
    rules = pytest.importorskip("pgx.backgammon")
    env = rules.Backgammon()
    pairs = np.array([(low, high) for high in range(6) for low in range(high + 1)], np.int32)
    logits = np.log(np.where(pairs[:, 0] == pairs[:, 1], 1 / 36, 2 / 36))

    def after(state, action):
        moved = env.step(state, action, jax.random.key(0))
        passed = moved._turn != state._turn
        return jnp.where(passed | (jnp.arange(21) == 0), logits, -jnp.inf), (moved, passed)

    def draw(afterstate, outcome):
        state, passed = afterstate
        dice = jnp.asarray(pairs)[outcome]
        rolled = state.replace(
            _dice=dice,
            _playable_dice=rules._set_playable_dice(dice),
            legal_action_mask=rules._legal_action_mask(state._board, dice),
        )
        rolled = rolled.replace(observation=env.observe(rolled))
        return jax.tree.map(lambda x, y: jnp.where(passed, x, y), rolled, state)

    return env, after, draw


@pytest.mark.slow
def test_backgammon_taken_apart_is_pgxs():
    """Every step of pgx is one outcome, but for the order of the dice, and they come as often."""
    env, after, draw = backgammon()
    num_draws, num_moves = 200, 60

    def in_order(state):
        dice = {name: jnp.sort(getattr(state, name)) for name in ("_dice", "_playable_dice")}
        return state.replace(**dice)

    @jit
    def compare(key):
        def move(state, key):
            score = jax.random.uniform(key, state.legal_action_mask.shape)
            action = jnp.argmax(jnp.where(state.legal_action_mask, score, -1))
            keys = jax.random.split(key, num_draws)
            theirs = jax.vmap(lambda key: env.step(state, action, key))(keys)
            logits, afterstate = after(state, action)
            ours = jax.vmap(lambda outcome: draw(afterstate, outcome))(jnp.arange(21))
            one, other = (jax.vmap(in_order)(x) for x in (theirs, ours))
            same = jax.tree.map(
                lambda x, y: (x[:, None] == y[None]).reshape(num_draws, 21, -1).all(-1), one, other
            )
            same = jnp.stack(jax.tree.leaves(same)).all(0) & (logits > -jnp.inf)
            return jax.tree.map(lambda x: x[0], theirs), (same, jax.nn.softmax(logits))

        return jax.lax.scan(move, env.init(key), jax.random.split(key, num_moves))[1]

    same, chances = jax.device_get(compare(jax.random.key(0)))
    assert (same.sum(-1) == 1).all()
    rolls = same[chances.max(-1) < 1].sum((0, 1))
    assert 0 < len(same) - rolls.sum() / num_draws < len(same), "some moves roll no dice"
    expected = rolls.sum() * chances[chances.max(-1) < 1][0]
    assert scipy_stats.chisquare(rolls, expected).pvalue > 1e-3


@pytest.mark.slow
def test_a_search_of_2048():
    """An afterstate's value is the mean over 32 tiles of the next states' values."""
    game = play2048()
    parts = (
        jax.jit(game.after),
        jax.jit(game.draw),
    )  # traced once for a program that calls them often
    model = jaxpgs.make_stochastic_fns(game.env, game.apply_fn, *parts)
    boards = jnp.asarray(np.random.default_rng(1).integers(0, 3, (3, 16)), jnp.int32)

    @jit
    def search(boards, key):
        states = jax.vmap(lambda board: parts[1](empty.replace(_board=board), jnp.int32(0)))(boards)
        root = jaxpgs.make_root_fn(game.env, game.apply_fn)(game.params, key, states)
        data = game.params, key, root, *model, 15, ~states.legal_action_mask
        return jaxpgs.stochastic_mcts_policy(*data, simulations_per_update=4), states

    empty = game.env.init(jax.random.key(0))
    output, states = jax.device_get(search(boards, jax.random.key(0)))
    visits = output.search_state.visits
    assert (visits.sum(1) == 15).all() and not visits[~states.legal_action_mask].any()
    assert not output.search_state.not_finite.any()
