"""Tree search with chance nodes: mctx's answers, games whose values are known, and games of pgx."""

import dataclasses
import functools

import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

import jaxpgs

pytestmark = pytest.mark.usefixtures("strict_promotion")
jit = functools.partial(jax.jit, compiler_options=games.QUICK)
B, A, C, D = 32, 5, 4, 6
LOWEST = np.finfo(np.float32).min


# --- mctx's answers -------------------------------------------------------------------------------


def random_model(seed, discount):
    """Two models of random weights: `params`, a root, and the functions, with all that may vary.

    Afterstates have another structure than states. Some actions are illegal below the root, some
    outcomes impossible, and some games end.
    """
    rng = np.random.default_rng(seed)
    weights = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    params = {
        "moves": weights(A, D, D), "draws": weights(C, D, D), "chance": weights(D, C),
        "policy": weights(D, A), "values": weights(D, 4), "discount": jnp.float32(discount),
    }  # fmt: skip

    def policy(params, state):
        logits = state @ params["policy"]
        illegal = (logits < -1) & (logits < logits.max(-1, keepdims=True))
        return jnp.where(illegal, LOWEST, logits)

    def decide(params, rng_key, action, state):
        del rng_key
        after = jnp.tanh(jnp.einsum("bij,bj->bi", params["moves"][action], state))
        logits = after @ params["chance"]
        logits = jnp.where(logits < -1.5, -jnp.inf, logits)
        value = after @ params["values"][:, 0]
        output = mctx.DecisionRecurrentFnOutput(chance_logits=logits, afterstate_value=value)
        return output, {"after": after, "action": action}

    def draw(params, rng_key, outcome, afterstate):
        del rng_key
        x = afterstate["after"] + 0.1 * afterstate["action"][:, None].astype(jnp.float32)
        state = jnp.tanh(jnp.einsum("bij,bj->bi", params["draws"][outcome], x))
        ends = state @ params["values"][:, 1] > 2.5
        output = mctx.ChanceRecurrentFnOutput(
            action_logits=policy(params, state),
            value=state @ params["values"][:, 2],
            reward=0.5 * (state @ params["values"][:, 3]),
            discount=jnp.where(ends, 0.0, params["discount"]),
        )
        return output, state

    states = weights(B, D)
    root = mctx.RootFnOutput(
        prior_logits=states @ params["policy"],
        value=states @ params["values"][:, 2],
        embedding=states,
    )
    invalid = rng.random((B, A)) < 0.3
    invalid[:, 0] &= ~invalid.all(1)
    invalid[0] = [1, 1, 0, 1, 1]
    return params, root, (decide, draw), jnp.asarray(invalid, jnp.int32)


MODELS = {  # seed, discount, simulations, and mctx's keywords
    "one player": (0, 0.95, 40, {}),
    "two players": (1, -1.0, 40, {"pb_c_init": 0.8, "pb_c_base": 50.0}),
    "short": (2, -0.9, 24, {"max_depth": 5}),
    "bounds": (3, 1.0, 24, {"qtransform": functools.partial(
        mctx.qtransform_by_min_max, min_value=-9.0, max_value=9.0)}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_one_at_a_time_it_is_mctxs_search(name):
    seed, discount, num_simulations, knobs = MODELS[name]
    params, root, fns, invalid = random_model(seed, discount)
    knobs = knobs | {"dirichlet_fraction": 0.0}

    @jit
    def both(params, root):
        data = params, jax.random.key(seed), root, *fns, num_simulations, invalid
        with games.lenient_promotion():
            theirs = mctx.stochastic_muzero_policy(*data, **knobs)
        ours = jaxpgs.stochastic_mcts_policy(*data, simulations_per_update=1, **knobs)
        return theirs.search_tree.summary(), ours.search_tree.summary(), theirs, ours

    wanted, found, theirs, ours = both(params, root)
    np.testing.assert_array_equal(found.visit_counts, wanted.visit_counts)
    np.testing.assert_allclose(ours.action_weights, theirs.action_weights, atol=1e-6)
    for field in ("visit_probs", "value", "qvalues"):
        np.testing.assert_allclose(getattr(found, field), getattr(wanted, field), atol=1e-5)
