"""Hex whose games begin with openings in which both sides win about equally often."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees
from jaxpgs.adapters.environments import make_root_fn
from jaxpgs.base import Params
from jaxpgs.envs import Hex
from jaxpgs.envs.hex import HexState
from jaxpgs.networks.functional import ApplyFn


# Compared by identity, since functions compiled for one table must not be used with another.
@dataclasses.dataclass(frozen=True, eq=False)
class BalancedHex(Hex):
    """Hex in which a game begins after one or two drawn moves.

    Attributes:
      openings: `[A, A + 1]` probabilities of each first move with each reply, and, in the last
        column, without a reply.
    """

    openings: Any = dataclasses.field(default=None, repr=False)

    def init(self, key: chex.PRNGKey | None = None) -> HexState:
        """Returns a position after one or two drawn moves, or the empty board without a key."""
        start = Hex.init(self)
        if key is None:
            return start
        drawn = jax.random.categorical(key, jnp.log(self.openings).ravel())
        first, reply = jnp.divmod(drawn, self.num_actions + 1)
        one = self.step(start, first)
        two = self.step(one, jnp.minimum(reply, self.num_actions - 1))
        return trees.where(reply < self.num_actions, two, one)


def make_balanced(env: Hex, apply_fn: ApplyFn, params: Params) -> BalancedHex:
    """Makes the game that begins with balanced openings, as a network sees them.

    Half of the games begin after one move, half after two. Among those of the same length, each is
    drawn in proportion to (1 - v^2)^4, where v is the network's value of the position: 1 - v^2 is
    the variance of a result of 1 or -1 with the mean v. The power is untuned: with it an opening of
    value 0 is drawn three times as often as one of value 0.5.

    Args:
      env: the game; its first two moves must not end it.
      apply_fn: the network.
      params: its parameters.

    Returns:
      The environment.
    """
    actions, key = jnp.arange(env.num_actions), jax.random.key(0)
    root_fn, step = make_root_fn(env, apply_fn), jax.vmap(env.step, (None, 0))
    start = env.init()

    # One first move at a time, since all replies to all of them are a large batch.
    def weigh(first: chex.Array) -> tuple[chex.Array, chex.Array]:
        one = env.step(start, first)
        alone = root_fn(params, key, jax.tree.map(lambda x: x[None], one)).value[0]
        replies = root_fn(params, key, step(one, actions)).value
        replies = jnp.where(one.legal_action_mask, (1 - replies**2) ** 4, 0)
        return (1 - alone**2) ** 4, replies

    alone, replies = jax.jit(lambda: jax.lax.map(weigh, actions))()
    halves = jnp.concatenate([replies / replies.sum(), (alone / alone.sum())[:, None]], axis=1)
    return BalancedHex(env.size, env.swap, halves / 2)
