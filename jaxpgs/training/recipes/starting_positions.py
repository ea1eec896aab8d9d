"""Hex whose games begin with given positions, such as openings that a network thinks balanced."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs.adapters.environments import make_root_fn
from jaxpgs.base import Params
from jaxpgs.envs import Hex
from jaxpgs.envs.hex import HexState
from jaxpgs.networks.functional import ApplyFn


@dataclasses.dataclass(frozen=True, eq=False)
class FromPositions(Hex):
    """Hex in which every game begins with one of the given positions.

    Attributes:
      positions: N states.
      weights: `[N]`, at least 0; positions are drawn in proportion to them.
    """

    positions: Any = dataclasses.field(kw_only=True, repr=False)
    weights: Any = dataclasses.field(kw_only=True, repr=False)

    # Not Hex's, which compare only the size and the rules: a function that was compiled for these
    # positions must not be used with others.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def init(self, key: chex.PRNGKey | None = None) -> HexState:
        """Returns one of the positions, or the empty board without a key."""
        if key is None:
            return Hex.init(self)
        number = jax.random.categorical(key, jnp.log(self.weights))
        return jax.tree.map(lambda x: x[number], self.positions)


def make_balanced(env: Hex, apply_fn: ApplyFn, params: Params) -> FromPositions:
    """Makes the game that begins with openings that a network thinks balanced.

    Half of the games begin after one move, half after two. Among those of the same length, each is
    drawn in proportion to (1 - v^2)^4, where v is the network's value of the position: 1 - v^2 is
    the variance of a result of 1 or -1 with the mean v. The power is untuned: with it an opening of
    value 0 is drawn about three times as often as one of value 0.5.

    Args:
      env: the game.
      apply_fn: the network.
      params: its parameters.

    Returns:
      The environment.
    """
    actions, key = jnp.arange(env.num_actions), jax.random.key(0)
    root_fn, start = make_root_fn(env, apply_fn), env.init()

    # One first move at a time, since all replies to all of them are a large batch.
    def after(first: chex.Array) -> tuple[HexState, chex.Array]:
        one = env.step(start, first)
        two = jax.vmap(env.step, (None, 0))(one, actions)
        states = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), two, one)
        weights = (1 - root_fn(params, key, states).value ** 2) ** 4
        legal = start.legal_action_mask[first] & jnp.append(one.legal_action_mask, True)
        return states, jnp.where(legal, weights, 0)

    # [A, A + 1]: each first move with each reply and, in the last column, without one.
    positions, weights = jax.jit(lambda: jax.lax.map(after, actions))()
    replies, alone = weights[:, :-1], weights[:, -1:]
    weights = jnp.concatenate([replies / replies.sum(), alone / alone.sum()], axis=1) / 2
    positions = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), positions)
    return FromPositions(env.size, env.swap, positions=positions, weights=weights.ravel())
