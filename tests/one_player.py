"""The state of small problems of one player."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxpgs import trees


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A state, without a batch axis.

    Attributes:
      inner: the state of the problem itself, a pytree.
      legal_action_mask: `[A]` bool, always True; A is 0 where actions are continuous.
      steps: `[]` int32, steps so far.
      current_player: `[]` int32, always 0.
      rewards: `[1]` what the last step paid.
      terminated: `[]` bool.
    """

    inner: Any
    legal_action_mask: chex.Array
    steps: chex.Array
    current_player: chex.Array
    rewards: chex.Array
    terminated: chex.Array


def begin(inner: Any, num_actions: int = 0) -> State:
    """Returns the state before the first step."""
    zero, legal = jnp.int32(0), jnp.ones(num_actions, bool)
    return State(inner, legal, zero, zero, jnp.zeros(1), jnp.bool_(False))


def unless_over(state: State, after: State) -> State:
    """Returns `after`, or the unchanged `state` with reward 0 if it was finished."""
    stays = dataclasses.replace(state, rewards=jnp.zeros_like(state.rewards))
    return trees.where(state.terminated, stays, after)
