"""SameGame against rules written in plain NumPy and boards worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpgs.envs import SameGame, samegame_rules


def pick(mask, number):
    """Picks the legal action of rank `floor(number * legal actions)`, any without any."""
    rank = jnp.floor(number * mask.sum()).astype(jnp.int32)
    return jnp.argmax(jnp.cumsum(mask) > rank)


def random_games(env, games, steps, seed):
    """Plays random games; returns start boards and `[T, G, ...]` records of every step."""
    keys = jax.random.split(jax.random.key(seed), games)
    numbers = jax.random.uniform(jax.random.key(seed + 1), (steps, games))

    @jax.jit
    def run(keys, numbers):
        start = jax.vmap(env.init)(keys)

        def body(states, number):
            mask = states.legal_action_mask
            action = jax.vmap(pick)(mask, number)
            after = jax.vmap(env.step)(states, action)
            record = {
                "mask": mask,
                "labels": jax.vmap(env.group_labels)(states),
                "action": action,
                "board": jax.vmap(env.board)(after),
                "reward": after.rewards[:, 0],
                "over": after.terminated,
            }
            return after, record

        record = jax.lax.scan(body, start, numbers)[1]
        return jax.vmap(env.board)(start), start.terminated, record

    return jax.tree.map(np.asarray, run(keys, numbers))


@pytest.mark.parametrize("size", range(5, 16))
def test_agrees_with_the_rules(size):
    games = 182  # 2,002 over all sizes
    penalty = ("per_color", "total", "none")[size % 3]
    env = SameGame(size, size, 2 + size % 4, penalty)
    boards, over, record = random_games(env, games, size**2 // 2 + 1, size)
    for g in range(games):
        length = 0 if over[g] else int(record["over"][:, g].argmax()) + 1
        other = samegame_rules.replay(boards[g], record["action"][:length, g], penalty=penalty)
        np.testing.assert_array_equal(record["reward"][:length, g], other.rewards)
        np.testing.assert_array_equal(record["board"][:length, g], other.boards[1:])
        assert other.over
        for t in range(length):
            labels = np.full(size**2, -1)
            for group in samegame_rules.groups(other.boards[t]):
                labels[group] = group[0]
            np.testing.assert_array_equal(record["labels"][t, g], labels)
            legal = np.flatnonzero(record["mask"][t, g])
            np.testing.assert_array_equal(legal, np.unique(labels[labels >= 0]))
        # After the end nothing is legal, nothing is earned and nothing changes.
        assert record["over"][length:, g].all()
        assert not record["reward"][length:, g].any()
        assert not record["mask"][length:, g].any()
        assert (record["board"][length:, g] == other.boards[-1]).all()
