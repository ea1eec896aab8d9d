"""Mistakes in the loop, the simulators, kept trees and memory."""

from benchmarks.mutants import Mutation

_LOOP = "loop.py"
_MEMORY = "memory.py"
_CONSTANT = "simulators/constant.py"
_CACHED = "simulators/cached.py"
_NODES = "simulators/nodes.py"

MUTATIONS = (
    # What is counted.
    Mutation(
        "constant: calls are computed from the bound", _CONSTANT,
        "num_calls=end.num_calls,", "num_calls=end.num_calls * 0 + len(uniform),", "calls_are",
    ),
    Mutation(
        "constant: the model is called when all have stopped", _CONSTANT,
        "jnp.any(rollouts.path.alive),\n", "jnp.any(rollouts.path.alive | True),\n", "calls_are",
    ),
    Mutation(
        "constant: an evaluation too many", _CONSTANT,
        "num_evaluations=jnp.sum(end.path.depth, axis=-1),",
        "num_evaluations=jnp.sum(end.path.depth, axis=-1) + 1,", "calls_are",
    ),
    Mutation(
        "cached: a call is counted that nobody wanted", _CACHED,
        "called = jnp.any(wanted).astype(jnp.int32)\n",
        "called = jnp.any(wanted | True).astype(jnp.int32)\n", "bound_ended and cached",
    ),
    Mutation(
        "constant: limited though it stopped by itself", _CONSTANT,
        "(alive & at_limit & ~own_end)", "(alive & at_limit)", "bound_ended and constant",
    ),
    Mutation(
        "cached: limited though it stopped by itself", _CACHED,
        "(alive & at_limit & ~own_end & ~over)", "(alive & at_limit & ~over)",
        "bound_ended and cached",
    ),
    Mutation(
        "cached: limited though the episode ended", _CACHED,
        "(alive & at_limit & ~own_end & ~over)", "(alive & at_limit & ~own_end)",
        "bound_ended and cached",
    ),
    Mutation(
        "the share of the limited is of the updates", _LOOP,
        "depth_limited=_mean(totals.limited, totals.simulations),",
        "depth_limited=_mean(totals.limited, carry.num_updates),", "bound_ended and constant",
    ),
    Mutation(
        "constant: another bound by default", _CONSTANT,
        "DEFAULT_MAX_DEPTH = 16", "DEFAULT_MAX_DEPTH = 17", "estimate_of_the_constant",
    ),
    Mutation(
        "constant: values of the adapted network", _CONSTANT,
        "        if update.recalls_values:\n", "        if False:\n", "values_do_not",
    ),
    # The best state.
    Mutation(
        "best_of: an equal state takes the place", _LOOP,
        "jnp.max(scores, axis=1) > best_of(best)", "jnp.max(scores, axis=1) >= best_of(best)",
        "bound_ended and constant",
    ),
    Mutation(
        "best_of: not the best of the update", _LOOP,
        "first = jnp.argmax(scores, axis=1)", "first = jnp.argmin(scores, axis=1)",
        "optimizers_state",
    ),
    Mutation(
        "best_of: only the last update's", _LOOP,
        "best = _better(search.best_of, best, trajectory.last)",
        "best = jax.tree.map(lambda x: x[:, 0], trajectory.last)", "bound_ended and constant",
    ),
    Mutation(
        "best_of, constant: states after the stop", _CONSTANT,
        "embedding = trees.where(alive, embedding, rollouts.embedding)", "pass", "calls_are",
    ),
    Mutation(
        "best_of, cached: the first state, not the last", _CACHED,
        "jnp.max(jnp.where(alive, visited, 0), axis=0)", "visited[0]", "bound_ended and cached",
    ),
    # Trees that go on.
    Mutation(
        "a kept root's returns change sign", _NODES,
        "value_sum=jnp.where(known, value_sum, 0.0)", "value_sum=jnp.where(known, -value_sum, 0.0)",
        "kept_root",
    ),
    Mutation(
        "kept nodes' returns change sign", _NODES,
        "jnp.where(used, rows.value_sum, 0.0)", "jnp.where(used, -rows.value_sum, 0.0)",
        "kept_root",
    ),
    Mutation(
        "a kept root starts from nothing", _LOOP,
        "if nodes is not None and search.interior_selection is not None:", "if False:", "kept_root",
    ),
    Mutation(
        "a kept root counts what is forbidden now", _LOOP,
        "jnp.where(stats.valid, getattr(known, n), getattr(stats, n))", "getattr(known, n)",
        "forbidden",
    ),
    Mutation(
        "a kept root forgets its visits", _LOOP,
        '("visits", "value_sum", *', '("value_sum", *', "kept_root",
    ),
    Mutation(
        "a kept root's range is upside down", _NODES,
        "take((nodes.lowest, nodes.highest), child)", "take((nodes.highest, nodes.lowest), child)",
        "kept_root",
    ),
    Mutation(
        "nodes' ranges include 0", _NODES,
        "low(jnp.where(tried, nodes.lowest, jnp.inf), visited", "low(nodes.lowest, visited",
        "behind_the_limit",
    ),
    Mutation(
        "the root's range is the last update's", _LOOP,
        "lowest=jnp.minimum(stats.lowest, lowest)", "lowest=lowest", "kept_root",
    ),
    Mutation(
        "the root's range is upside down", _LOOP,
        "highest=jnp.maximum(stats.highest, highest)",
        "highest=jnp.minimum(stats.highest, highest)",
        "returns_of_one_update",
    ),
    Mutation(
        "the root's range is one simulation's", _LOOP,
        "jnp.min(jnp.where(taken, returned, jnp.inf), axis=1)",
        "jnp.where(taken, returned, jnp.inf)[:, 0]", "returns_of_one_update",
    ),
    Mutation(
        "simulations beyond the budget count", _LOOP,
        "chosen = jnp.where(started[:, :, None], chosen, 0.0)", "pass", "returns_of_one_update",
    ),
    # Memory.
    Mutation(
        "capacity: a state too many is linked", _NODES,
        "linked &= child <= limit", "linked &= child <= limit + 1", "states_it_holds",
    ),
    Mutation(
        "capacity: visits beyond the limit are added", _NODES,
        "alive & (visited <= limit)", "alive", "behind_the_limit",
    ),
    Mutation(
        "capacity: the limit of visits is one too low", _CACHED,
        "num_spare(search) - 1\n    visited", "num_spare(search) - 2\n    visited",
        "states_it_holds",
    ),
    Mutation(
        "capacity: the memory is full of what is forgotten", _CACHED,
        "nodes._replace(size=jnp.minimum(nodes.size, limit))", "nodes", "states_it_holds",
    ),
    Mutation(
        "estimate: two copies of what adapts", _MEMORY,
        "3 * num_bytes(carry.adapted)", "2 * num_bytes(carry.adapted)", "estimate_of_the",
    ),
    Mutation(
        "estimate: a number of each node is left out", _MEMORY,
        "4 * num_actions + 12", "4 * num_actions + 8", "estimate_of_the",
    ),
    Mutation(
        "estimate: no kept nodes", _MEMORY, "num_kept > 1:", "num_kept > 99:",
        "estimate_of_the",
    ),
    Mutation(
        "estimate: kept nodes make nothing deeper", _MEMORY,
        "room.max_depth(search, num_kept)", "room.max_depth(search, 1)", "estimate_of_the",
    ),
    Mutation(
        "estimate: no capacity", _MEMORY, "capacity=capacity,", "capacity=None,", "estimate_of_the",
    ),
    Mutation(
        "estimate: no table", _MEMORY, "num_bytes(carry.memory.seen)", "0", "estimate_of_the",
    ),
    Mutation(
        "estimate: no features", _MEMORY, "steps * features if any(mask) else 0", "0",
        "estimate_of_the",
    ),
    Mutation(
        "estimate: fewer numbers a step", _MEMORY, "* 4 * 10", "* 4 * 9", "estimate_of_the",
    ),
)  # fmt: skip
