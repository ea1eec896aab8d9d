"""What a search of self-play knows at its root, for objectives that read values."""

from collections.abc import Callable

import chex
import jax.numpy as jnp
import mctx

from jaxpgs.base import NodeStats
from jaxpgs.training.two_player.experts import Decision


def root_stats(root: mctx.RootFnOutput, decision: Decision, legal: chex.Array) -> NodeStats:
    """Collects the statistics of a search at its root.

    Raises:
      ValueError: if the expert does not return them.
    """
    if decision.visits is None or decision.qvalues is None:
        raise ValueError(
            "Objectives that read values need keep_root, for which the expert, and the expert of "
            "fast moves if there is one, must return Decision.visits and Decision.qvalues; one of "
            "them does not."
        )
    # The Q-value of an unvisited action may be anything, and 0 times NaN would still be NaN.
    qvalues = jnp.where(decision.visits > 0, decision.qvalues, 0.0)
    return NodeStats(
        prior_logits=root.prior_logits,
        value=root.value,
        visits=decision.visits,
        value_sum=decision.visits * qvalues,
        valid=legal,
    )


def map_actions(fn: Callable[[chex.Array], chex.Array], root: NodeStats) -> NodeStats:
    """Applies a permutation of the actions to all statistics of a root with an action axis.

    Raises:
      ValueError: if it turns integers into fractions, so it is no permutation.
    """
    # Counts may be whole floats, as those of mctx are; as integers they show a division.
    visits = fn(root.visits.astype(jnp.int32))
    if not jnp.issubdtype(visits.dtype, jnp.integer):
        raise ValueError(
            "Objectives that read values need keep_root, for which network_policy and symmetries "
            "must permute the actions and keep integers; one of them turns visits into "
            f"{visits.dtype}, as network_policy of SameGame does."
        )
    return root._replace(
        prior_logits=fn(root.prior_logits),
        visits=visits,
        value_sum=fn(root.value_sum),
        valid=fn(root.valid),
    )
