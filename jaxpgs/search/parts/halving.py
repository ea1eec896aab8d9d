"""The schedule of sequential halving: the visits of each simulation's action before it."""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class Halvings(NamedTuple):
    """The schedule of sequential halving: one straight line per root between two halvings.

    Attributes:
      start: `[B, H]` int32, the simulation with which the line begins.
      times: `[B, H]` int32, how often the action of this simulation has been taken before.
      remaining: `[B, H]` int32, the number of remaining actions; after so many simulations the
        visits grow by 1.
    """

    start: chex.Array
    times: chex.Array
    remaining: chex.Array


def halvings(num_considered: chex.Array, num_simulations: chex.Array, most: int) -> Halvings:
    """Computes the schedule of `considered_visits`.

    Args:
      num_considered: `[B]` int32, how many actions are considered.
      num_simulations: `[B]` int32, how many simulations there are.
      most: how many actions are considered at most.
    """
    powers = range(max(1, (most - 1).bit_length()))
    # mctx's ceil(log2(num_considered)), without a logarithm that may be rounded.
    rounds = sum((num_considered > 2**i).astype(jnp.int32) for i in powers)
    lines = [Halvings(0 * num_considered, 0 * num_considered, jnp.maximum(num_considered, 1))]
    for i in powers:
        start, times, remaining = lines[-1]
        share = jnp.maximum(rounds, 1) * remaining
        # How often each remaining action is visited until the next halving; `div` truncates, which
        # is fine since nothing is negative.
        more = jnp.maximum(jax.lax.div(0 * share + num_simulations, share), 1)
        # As in mctx, at least two actions remain if there are two.
        left = jnp.maximum(num_considered >> (i + 1), jnp.clip(num_considered, 1, 2))
        lines.append(Halvings(start + more * remaining, times + more, left))
    return jax.tree.map(lambda *x: jnp.stack(x, axis=-1), *lines[:-1])


def scheduled_visits(number: chex.Array, halvings: Halvings) -> chex.Array:
    """Returns `[B]` int32, how often the action of a simulation has been taken before.

    A line is steeper than the one before the halving, so the result is the highest of the lines
    that have begun.

    Args:
      number: `[B]` int32, which simulation, from 0.
      halvings: the schedule.
    """
    passed = number[..., None] - halvings.start
    # Lines that have not begun are negative or 0 here, and excluded below.
    lines = halvings.times + jax.lax.div(passed, halvings.remaining)
    return jnp.max(jnp.where(passed >= 0, lines, 0), axis=-1)


def considered_visits(num_considered: int, num_simulations: int) -> list[int]:
    """The schedule of sequential halving (Karnin et al. 2013), as visits before each simulation.

    The number of considered actions is halved after every round, down to two. Each round visits all
    remaining actions equally often, and the simulations are divided equally among the rounds.

    Args:
      num_considered: how many actions are considered, at least 0.
      num_simulations: N.

    Returns:
      N numbers: entry n is how often the action of simulation n has been taken before.
    """
    if num_considered <= 1:
        return list(range(num_simulations))
    rounds = math.ceil(math.log2(num_considered))
    sequence: list[int] = []
    remaining, times = num_considered, 0
    while len(sequence) < num_simulations:
        for _ in range(max(1, num_simulations // (rounds * remaining))):
            sequence += [times] * remaining
            times += 1
        remaining = max(2, remaining // 2)
    return sequence[:num_simulations]
