"""How much memory a search needs, before it runs."""

import functools
from typing import NamedTuple

import jax
import mctx

from jaxpgs.base import Adapt, Params, RecurrentFn, statistics_dtype
from jaxpgs.device_memory import num_bytes
from jaxpgs.search.loop import init, init_nodes
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.truncation import Truncation
from jaxpgs.search.presets.mcs import mcs_search
from jaxpgs.search.presets.pgs import pgs_search
from jaxpgs.search.simulators import adaptation, constant, room
from jaxpgs.search.simulators.split import split_in_two


class MemoryEstimate(NamedTuple):
    """Bytes that a search needs beside its arguments.

    Attributes:
      total: all of them.
      nodes: the visited states of the cached mode: `B (N c + K + 1)` times `per_node`, with c the
        new states of a simulation, 1 for `until_new`. 0 in constant mode.
      per_node: one visited state: its children (4 bytes an action), embedding, features, and six
        numbers.
      adapted: the adapted parameters, one copy per root, and their gradients.
      walks: what the K simulations of an update keep: policies, or features for the gradient, and
        the table of `until_new` in constant mode.
      ring: the simulations of earlier updates that `reuse` keeps.

    Example:
      >>> jaxpgs.estimate_memory(params, root, recurrent_fn, 1000, mode="constant").nodes
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

    What the network needs for its own activations, in a batch of `B * K`, is not counted: it does
    not depend on the search. `benchmarks/memory.py` compares with what XLA reserves.

    Args:
      params: the network's parameters; shapes suffice here and below (`jax.eval_shape`).
      root: the roots.
      recurrent_fn: as in the search.
      num_simulations: N.
      mode: "constant" or "cached"; None is the search's default. `batched_mcts_policy` is cached.
      adapt: which parameters adapt.
      simulations_per_update: K; as in the search if None.
      max_depth: as in the search.
      truncation: when a simulation stops; `until_new()` if None.
      capacity: as in the search.
      num_kept: nodes handed on from an earlier search, the root included.
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
    preset = mcs_search if adapt is None else functools.partial(pgs_search, adapt=adapt)
    search = preset(
        recurrent_fn,
        num_simulations,
        mode=mode,
        simulations_per_update=simulations_per_update,
        truncation=truncation,
        max_depth=max_depth,
        capacity=capacity,
        reuse=reuse,
    )
    cached_mode = search.mode == "cached"
    key = jax.eval_shape(lambda: jax.random.key(0))
    kept = None
    if cached_mode and num_kept > 1:
        kept = jax.eval_shape(lambda p, r: init_nodes(search, p, r, num_kept), params, root)
    carry = jax.eval_shape(
        lambda nodes, *data: init(search, *data, nodes=nodes), kept, params, key, root
    )
    batch_size, num_actions = root.prior_logits.shape
    mask = adaptation.adapt_mask(params, adapt)
    adapted = 3 * num_bytes(carry.adapted)  # the parameters, their gradients, and both added up
    split_fn = split_in_two(recurrent_fn, any(mask), statistics_dtype(root))
    action = jax.ShapeDtypeStruct((batch_size,), "int32")
    expansion, embedding = jax.eval_shape(split_fn.expand, params, key, action, root.embedding)
    features = num_bytes(expansion.features) // batch_size
    per_node = num_bytes((expansion, embedding)) // batch_size + 4 * num_actions + 12
    if cached_mode:
        depth = room.max_depth(search, num_kept)
        nodes = batch_size * carry.memory.nodes.parent.shape[1] * per_node
        walks = num_bytes(carry.memory.states)
    else:
        depth, nodes = constant.max_depth(search), 0
        steps = depth * batch_size * search.simulations_per_update
        walks = num_bytes(carry.memory.seen) + (steps * features if any(mask) else 0)
    walks += depth * batch_size * search.simulations_per_update * 4 * 10  # rewards and the like
    ring = num_bytes(carry.ring)
    return MemoryEstimate(nodes + adapted + walks + ring, nodes, per_node, adapted, walks, ring)
