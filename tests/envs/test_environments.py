"""What all board games promise: one trace, the same types after every move, x64 or not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpgs.envs import Breakthrough, Hex, Yavalath

GAMES = {
    "hex": Hex(4),
    "hex-swap": Hex(4, swap=True),
    "breakthrough": Breakthrough(rows=5, columns=4),
    "yavalath": Yavalath(3),
}


@pytest.mark.parametrize("env", GAMES.values(), ids=GAMES)
def test_one_trace_serves_all_positions_and_a_scan_keeps_types(env):
    traces = 0

    @jax.jit
    def play(state, actions):
        nonlocal traces
        traces += 1
        return jax.lax.scan(lambda s, a: (env.step(s, a), s.legal_action_mask), state, actions)

    starts = [env.init(), env.init(jax.random.key(1))]
    if hasattr(env, "from_board"):
        starts.append(env.from_board(np.zeros((4, 4), int)))
    for start, actions in zip(starts, ([4, 1, 2], [3, 3, 0], [1, 5, 15]), strict=False):
        final, masks = play(start, np.array(actions, np.int32))
        assert masks.shape == (3, env.num_actions)
        chex.assert_trees_all_equal_shapes_and_dtypes(final, env.init())
    assert traces == 1


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("env", GAMES.values(), ids=GAMES)
def test_strict_promotion_shapes_and_types(env, x64):
    def everything(key):
        state = env.init(key)
        batch = jax.vmap(env.step, in_axes=(None, 0))(state, jnp.arange(env.num_actions))
        after = env.step(state, 1)
        logits = jnp.zeros(env.num_actions, jnp.float32)
        if hasattr(env, "policy_logits"):  # of a network that sees the board as the mover does
            logits = env.policy_logits(after, logits)
        return state, after, batch, batch.legal_action_mask, env.observe(state), logits

    strict = jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise")
    with jax.enable_x64(x64), strict[0], strict[1]:
        state, after, batch, mask, seen, logits = jax.eval_shape(everything, jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    for name, dtype in {"current_player": jnp.int32, "rewards": jnp.float32}.items():
        assert getattr(after, name).dtype == dtype
    assert type(batch) is type(env.init())
    assert mask.shape == (env.num_actions,) * 2 and mask.dtype == bool
    assert seen.shape == env.observation_shape and seen.dtype == jnp.float32
    assert logits.shape == (env.num_actions,) and logits.dtype == jnp.float32
