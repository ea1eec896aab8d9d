"""Two or three legal actions: how Q-values are brought to a scale decides the game."""

import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

import jaxpgs

GOAL, LOWEST = 10, jnp.finfo(jnp.float32).min
TRANSFORMS = {
    "rescaled": jaxpgs.target.qtransform_completed_by_mix_value,
    "unscaled": functools.partial(
        jaxpgs.target.qtransform_completed_by_mix_value, rescale_values=False
    ),
    "relative": functools.partial(
        jaxpgs.target.qtransform_completed_by_mix_value, epsilon=1 / 3, relative=True
    ),
}


@functools.cache
def pig():
    """Values `[own, other, turn]` of pig for two, and Q-values of rolling and of holding."""
    values = np.zeros((GOAL + 1,) * 3)
    qvalues = np.zeros((GOAL, GOAL, GOAL, 2))
    for _ in range(60):
        for own, other, turn in np.ndindex(GOAL, GOAL, GOAL):
            if own + turn < GOAL:
                sums = own + turn + np.arange(2, 7)
                after = [1.0 if s >= GOAL else values[own, other, s - own] for s in sums]
                roll, hold = (sum(after) - values[other, own, 0]) / 6, -values[other, own + turn, 0]
                qvalues[own, other, turn] = roll, hold
                values[own, other, turn] = max(roll, hold) if turn else roll
    return values, qvalues


def pig_model(scale):
    """Pig with its true values and a prior that is good but not sharp."""
    values, qvalues = (jnp.asarray(x, jnp.float32) for x in pig())
    qvalues = jnp.pad(qvalues, [(0, 1)] * 3 + [(0, 0)])

    def logits(own, other, turn):
        legal = jnp.stack([turn >= 0, turn > 0], -1)
        return jnp.where(legal, 5 * qvalues[own, other, turn], LOWEST)

    def recurrent_fn(params, rng_key, action, embedding):
        own, other, turn, over = embedding.T
        die, rolls = jax.random.randint(rng_key, action.shape, 1, 7), action == 0
        won = rolls & (die > 1) & (own + turn + die >= GOAL)
        passes = ~rolls | (die == 1)
        banked = jnp.where(rolls, own, own + turn)
        mine, theirs = jnp.where(passes, other, own), jnp.where(passes, banked, other)
        turn = jnp.where(passes, 0, jnp.minimum(turn + die, GOAL))
        ends = won | (over > 0)
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(won & (over == 0), scale, 0.0),
            discount=jnp.where(ends, 0.0, jnp.where(passes, -1.0, 1.0)),
            prior_logits=logits(mine, theirs, turn),
            value=jnp.where(ends, 0.0, scale * values[mine, theirs, turn]),
        )
        return output, jnp.stack([mine, theirs, turn, jnp.where(ends, 1, over)], -1)

    places = np.argwhere(np.arange(GOAL)[:, None] + np.arange(GOAL) < GOAL)
    places = [(own, other, turn) for own, turn in places if turn for other in range(GOAL)]
    own, other, turn = jnp.array(places, jnp.int32).T
    root = mctx.RootFnOutput(
        prior_logits=logits(own, other, turn),
        value=scale * values[own, other, turn],
        embedding=jnp.stack([own, other, turn, 0 * own], -1),
    )
    return root, recurrent_fn, pig()[1][tuple(np.array(places).T)]


def regret(scale, name, policy):
    """How much the actions chosen are worse than the best, over all places where one may hold."""
    root, recurrent_fn, qvalues = pig_model(scale)
    run = jax.jit(lambda key: policy((), key, root, recurrent_fn, 32, qtransform=TRANSFORMS[name]))
    actions = np.concatenate([run(jax.random.key(seed)).action for seed in range(4)])
    qvalues = np.tile(qvalues, (4, 1))
    return np.mean(qvalues.max(-1) - qvalues[np.arange(len(actions)), actions])


@pytest.mark.slow
def test_chance_is_not_stretched_to_the_whole_scale():
    # A tree knows one outcome of a roll. Rescaled, its luck outweighs what the prior knows.
    policy = functools.partial(jaxpgs.gumbel_mcts_policy, simulations_per_update=1)
    found = {name: regret(1.0, name, policy) for name in TRANSFORMS}
    assert found["unscaled"] < 0.75 * found["rescaled"]
    assert found["relative"] < 0.75 * found["rescaled"]
    assert regret(0.01, "relative", policy) == pytest.approx(found["relative"], abs=0.01)


def nim_model(scale):
    """Take one to three of the stones, the last one wins; the prior likes to take one."""

    def logits(stones):
        allowed = jnp.arange(1, 4)[None] <= stones[:, None]
        return jnp.where(allowed, jnp.array([1.5, 0.0, 0.0])[None], LOWEST)

    def recurrent_fn(params, rng_key, action, stones):
        left = jnp.maximum(stones - action - 1, 0)
        ends = left == 0
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(ends & (stones > 0), scale, 0.0),
            discount=jnp.where(ends, 0.0, -1.0),
            prior_logits=logits(left),
            value=0.0 * left.astype(jnp.float32),
        )
        return output, left

    stones = jnp.array([2, 3, 6], jnp.int32)  # two or three are to be taken
    value = jnp.zeros(3)
    return mctx.RootFnOutput(
        prior_logits=logits(stones), value=value, embedding=stones
    ), recurrent_fn


@pytest.mark.slow
def test_small_rewards_are_not_lost_beside_the_prior():
    root, recurrent_fn = nim_model(scale=0.02)
    right = {}
    for name, qtransform in TRANSFORMS.items():
        knobs = {"qtransform": qtransform, "gumbel_scale": 0.0, "simulations_per_update": 1}
        policy = functools.partial(jaxpgs.gumbel_mcts_policy, **knobs)
        run = jax.jit(lambda policy=policy: policy((), jax.random.key(0), root, recurrent_fn, 32))
        right[name] = np.asarray(run().action) == (np.asarray(root.embedding) % 4 - 1)
    assert right["rescaled"].all() and right["relative"].all()
    assert not right["unscaled"].any()
