"""Objectives of a policy: to imitate a search, or to maximise the action values of the search.

An objective maps logits and self-play experience to a loss for each position. `cross_entropy` is
the objective of expert iteration; `tspg` is the tree-search policy gradient of Soemers et al. 2019.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpgs.base import NodeStats
from jaxpgs.checks import check_word
from jaxpgs.networks import WithOffsets
from jaxpgs.search.parts.target import completed_qvalues
from jaxpgs.training.two_player.selfplay import Experience

UNTRIED = ("completed", "parent", "loss")


class Objective(NamedTuple):
    """A loss of a policy.

    Attributes:
      loss: `(logits, target) -> loss`: `[B, A]` logits, illegal actions at the lowest float, and
        `Experience` with batch axis `[B]` to `[B]` losses, whose minimum is 0.
      needs_root: whether it reads `Experience.root`, the search's statistics at its root.
    """

    loss: Callable[[chex.Array, Experience], chex.Array]
    needs_root: bool = False


def cross_entropy() -> Objective:
    """Imitates the search's policy (Anthony et al. 2019, section 5.1).

    Returns:
      The objective. Its loss is the cross-entropy minus the entropy of the search's policy.
    """

    def loss(logits: chex.Array, target: Experience) -> chex.Array:
        entropy = jnp.sum(jax.scipy.special.entr(target.policy), axis=-1)
        return optax.softmax_cross_entropy(logits, target.policy) - entropy

    return Objective(loss)


def tspg(untried: str = "completed") -> Objective:
    """Maximises the policy's expected value under the search (Soemers et al. 2019, eq. 6).

    The states are those that the search visits in self-play. The expectation is over all actions,
    without sampling, so the gradient at the logits is `pi * (Q - sum(pi * Q))` (eq. 10 and 11).
    There is no exploration bonus, and adding a constant to all values of a state changes nothing.

    Args:
      untried: the value of an action that the search never tried: "completed", a mixture of the
        network's value and the prior-weighted values of the tried actions (Danihelka et al. 2022,
        eq. 33); "parent", the mean return of all simulations; or "loss", which is -1, or the lowest
        value of a tried action if that is lower. The paper's text uses the parent's value in
        selection, and its code trains with a loss.

    Returns:
      The objective. Its loss is the regret `max(Q) - sum(pi * Q)`, whose gradient is the same up to
      the sign.

    Raises:
      ValueError: if `untried` is unknown.
    """
    check_word("tspg", "untried", untried, UNTRIED)

    def loss(logits: chex.Array, target: Experience) -> chex.Array:
        if target.root is None:
            raise ValueError(
                "tspg needs experience with root: selfplay.play(..., kept=Kept(keep_root=True))."
            )
        qvalues = action_values(target.root, untried)
        # The regret: a constant minus the policy's value, whose gradient is eq. 10 and 11. Illegal
        # actions have values and probabilities 0.
        most = jnp.max(jnp.where(target.legal, qvalues, -jnp.inf), axis=-1)
        most = jnp.where(jnp.any(target.legal, axis=-1), most, 0.0)  # a finished game
        return most - jnp.sum(jax.nn.softmax(logits, axis=-1) * qvalues, axis=-1)

    return Objective(loss, needs_root=True)


NAMES: dict[str, Callable[[], Objective]] = {"cross_entropy": cross_entropy, "tspg": tspg}


def make_objective(objective: str | Objective) -> Objective:
    """Returns the objective with this name, or the given objective itself.

    Raises:
      ValueError: if the name is unknown.
    """
    if isinstance(objective, Objective):
        return objective
    if objective not in NAMES:
        raise ValueError(
            f"objective must be one of {tuple(NAMES)} or an Objective, got {objective!r}."
        )
    return NAMES[objective]()


def objectives_of(
    network: nnx.Module,
    objective: str | Objective,
    offsets: Mapping[str, str | Objective] | None,
) -> tuple[Objective, dict[str, Objective]]:
    """Returns the objectives of the network's own policy and of its further policies."""
    further = {name: make_objective(one) for name, one in (offsets or {}).items()}
    # An offset without an objective would never learn; an objective without an offset is a typo.
    names = sorted(network.offsets) if isinstance(network, WithOffsets) else []
    if sorted(further) != names:
        raise ValueError(
            "offsets must name an objective for each offset of the network, a "
            f"networks.WithOffsets, and no other: it has {names}, got {sorted(further)}."
        )
    return make_objective(objective), further


def action_values(root: NodeStats, untried: str) -> chex.Array:
    """Returns values `[B, A]` of all actions; illegal ones have 0.

    Args:
      root: the search's statistics at its root.
      untried: the value of an action that was never tried; see `tspg`.
    """
    visits = jnp.sum(root.visits, axis=-1, keepdims=True)
    if untried == "completed":
        qvalues = completed_qvalues(root)
    else:
        tried = root.visits > 0
        if untried == "parent":
            total = jnp.sum(root.value_sum, axis=-1, keepdims=True)
            mean = total / jnp.maximum(visits, 1).astype(total.dtype)
            # Without any simulation the network's value replaces the parent's.
            filler = jnp.where(visits > 0, mean, root.value[..., None])
        else:
            lowest = jnp.min(jnp.where(tried, root.qvalues, jnp.inf), axis=-1, keepdims=True)
            filler = jnp.minimum(lowest, -1.0)
        qvalues = jnp.where(tried, root.qvalues, filler)
    return jnp.where(root.valid, qvalues, 0.0)
