"""How much memory a search needs, before it runs."""

import functools
from typing import Any, NamedTuple

import jax
import mctx

from jaxpgs import trees
from jaxpgs.base import Adapt, Params, RecurrentFn
from jaxpgs.device_memory import num_bytes
from jaxpgs.search.carry import Carry
from jaxpgs.search.learning.update import simulate
from jaxpgs.search.loop import init, init_nodes, prepare
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.truncation import Truncation
from jaxpgs.search.presets.pgs import mcs_search, pgs_search
from jaxpgs.search.stores.contract import Simulations
from jaxpgs.search.stores.nodes import Nodes


class MemoryEstimate(NamedTuple):
    """Bytes that a search needs in addition to its arguments.

    Attributes:
      total: the sum.
      nodes: the visited states of a tree: `B (N c + K c + 1)` times `per_node`, where c is the
        number of states that a simulation may create, 1 for `until_new`. 0 for rollouts.
      per_node: one state: its children, their visits and returns (12 bytes per action), embedding,
        features, and four numbers; 0 for rollouts.
      adapted: the adapted parameters, one copy per root, and their gradients.
      walks: what the K simulations of an update store for each step, and the table of `until_new`
        in rollouts.
      ring: the simulations of earlier updates that `reuse` keeps.

    Example:
      >>> jaxpgs.estimate_memory(params, root, recurrent_fn, 1000, mode="rollouts").nodes
      0
    """

    total: int
    nodes: int
    per_node: int
    adapted: int
    walks: int
    ring: int = 0


def estimate_memory(
    params: Params,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    mode: str | None = None,
    adapt: Adapt = None,
    simulations_per_update: int | None = None,
    max_depth: int | None = None,
    truncation: Truncation | None = None,
    capacity: int | None = None,
    num_kept: int = 1,
    reuse: Reuse | None = None,
) -> MemoryEstimate:
    """Estimates the memory of a search without compiling it.

    The network's own activations, in a batch of `B * K`, are not counted, since they do not depend
    on the search. `benchmarks/memory.py` compares the estimate with the memory that XLA reserves.

    Args:
      params: the network's parameters; shapes suffice here and below (`jax.eval_shape`).
      root: the roots.
      recurrent_fn: as in the search.
      num_simulations: N.
      mode: "tree" or "rollouts"; None is the search's default. `batched_mcts_policy` keeps a tree.
      adapt: which parameters adapt.
      simulations_per_update: K; as in the search if None.
      max_depth: as in the search.
      truncation: when a simulation stops; `until_new()` if None.
      capacity: as in the search.
      num_kept: nodes kept from an earlier search, including the root.
      reuse: as in the search.

    Returns:
      The estimate, in bytes.

    Raises:
      ValueError: as the search.

    Example:
      >>> estimate = jaxpgs.estimate_memory(params, root, recurrent_fn, 1000, adapt="policy_head")
      >>> estimate.nodes > estimate.adapted  # bytes
      True
    """
    learning = functools.partial(pgs_search, adapt=adapt, reuse=reuse)
    preset: Any = mcs_search if adapt is None else learning
    search = preset(
        recurrent_fn,
        num_simulations,
        mode=mode,
        simulations_per_update=simulations_per_update,
        truncation=truncation,
        max_depth=max_depth,
        capacity=capacity,
    )
    # Shapes suffice: nothing of the search is run or compiled.
    key = jax.eval_shape(lambda: jax.random.key(0))
    kept = None
    if search.mode != "rollouts" and num_kept > 1:
        kept = trees.eval_shape(lambda p, r: init_nodes(search, p, r, num_kept), params, root)
    carry = trees.eval_shape(
        lambda params, nodes, *data: init(search, params, *data, nodes=nodes),
        params, kept, key, root,
    )  # fmt: skip

    def walks_of(params: Params, carry: Carry) -> Simulations:
        return simulate(*prepare(search, params, carry, num_kept), carry).simulations

    # Arrays that exist only during an update are added.
    walks = num_bytes(trees.eval_shape(walks_of, params, carry))
    adapted = 3 * num_bytes(carry.adapted)  # the parameters, their gradients, and both added up
    nodes, per_node = 0, 0
    if isinstance(carry.memory, Nodes):
        nodes = num_bytes(carry.memory)
        per_node = nodes // carry.memory.edge.size
    else:
        walks += num_bytes(carry.memory.seen)
    ring = num_bytes(carry.ring)
    return MemoryEstimate(nodes + adapted + walks + ring, nodes, per_node, adapted, walks, ring)
