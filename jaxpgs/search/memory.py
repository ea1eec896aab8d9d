"""How much memory a search needs, before it runs."""

import os
from typing import Any, NamedTuple

import jax
import mctx

from jaxpgs.base import Adapt, Params, RecurrentFn
from jaxpgs.search import adaptation
from jaxpgs.search.split import split_in_two
from jaxpgs.search.truncation import Truncation, get_max_depth, until_new


class MemoryEstimate(NamedTuple):
    """Bytes that a search needs beside its arguments.

    Attributes:
      total: all of them.
      nodes: the visited states of the cached mode: `B (N c + K + 1)` times `per_node`, with c the
        new states of a simulation, 1 for `until_new`. 0 in constant mode.
      per_node: one visited state: its children (4 bytes an action), embedding, features, and six
        numbers.
      adapted: the adapted parameters, one copy per root, and their gradients.
      walks: what the K simulations of an update keep: policies and gradients of logits, or features
        for the gradient, and the table of `until_new` in constant mode.
    """

    total: int
    nodes: int
    per_node: int
    adapted: int
    walks: int


def estimate_memory(
    params: Params,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    *,
    mode: str = "constant",
    adapt: Adapt = None,
    simulations_per_update: int = 32,
    max_depth: int | None = None,
    truncation: Truncation | None = None,
    num_kept: int = 1,
) -> MemoryEstimate:
    """Estimates the memory of a search without compiling it.

    What the network needs for its own activations, in a batch of `B * K`, is not counted: it does
    not depend on the search. `benchmarks/memory.py` compares with what XLA reserves.

    Args:
      params: the network's parameters; shapes suffice here and below (`jax.eval_shape`).
      root: the roots.
      recurrent_fn: as in the search.
      num_simulations: N.
      mode: "constant" or "cached"; `batched_mcts_policy` is cached.
      adapt: which parameters adapt.
      simulations_per_update: K.
      max_depth: as in the search.
      truncation: when a simulation stops; `until_new()` if None.
      num_kept: nodes handed on from an earlier search, the root included.

    Returns:
      The estimate, in bytes.
    """
    truncation = truncation or until_new()
    depth = get_max_depth(max_depth, truncation)
    batch_size, num_actions = root.prior_logits.shape
    mask = adaptation.adapt_mask(params, adapt)
    own, _ = adaptation.split(params, mask)
    head = batch_size * _bytes(own)
    steps = depth * batch_size * simulations_per_update
    split_fn = split_in_two(params, mask, root, recurrent_fn)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch_size))
    action = jax.ShapeDtypeStruct((batch_size,), "int32")
    expansion, embedding = jax.eval_shape(split_fn.expand, params, keys, action, root.embedding)
    features = _bytes(expansion.features) // batch_size
    per_node = (_bytes((expansion, embedding)) // batch_size) + 4 * num_actions + 12
    if mode == "cached":
        new = num_simulations * (truncation.new_nodes or depth) + simulations_per_update
        nodes = batch_size * (new + num_kept) * per_node
        rows = min(depth * simulations_per_update, new + num_kept) + simulations_per_update
        # Policies, and the gradients of the logits.
        walks = 2 * batch_size * rows * 4 * num_actions if head else 0
    else:
        nodes = 0
        walks = steps * features if head else 0
        walks += batch_size * truncation.table_size
    walks += steps * 4 * 10  # rewards, values and the like
    adapted = 3 * head
    return MemoryEstimate(nodes + adapted + walks, nodes, per_node, adapted, walks)


def check_fits(num_bytes: int, what: str, advice: str) -> None:
    """Raises `MemoryError` if an array cannot fit in the devices' memory.

    Args:
      num_bytes: its size.
      what: what it is, for the message.
      advice: what to change, for the message.
    """
    limit = _device_memory()
    if limit is not None and num_bytes > limit:
        raise MemoryError(
            f"{what} need {num_bytes / 2**30:,.1f} GiB, and the {jax.default_backend()} has "
            f"{limit / 2**30:,.1f} GiB. {advice}"
        )


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _device_memory() -> int | None:
    """Returns the bytes of all local devices together, None if they do not tell."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    if all(limits):
        return sum(limits)
    if jax.default_backend() == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
