"""Mistakes in the loop, the walk, the stores, kept trees and memory."""

from quality.mutants import Mutation

_BASE = "../base.py"
_LOOP = "loop.py"
_MEMORY = "stores/memory.py"
_MODEL = "models/model.py"
_ROLLOUTS = "stores/store_rollouts.py"
_ROOT = "root.py"
_TREE, _NODES = "stores/store_tree.py", "stores/nodes.py"
_UPDATE = "learning/update.py"
_PACKING, _REROOTING = "stores/packing.py", "stores/rerooting.py"
_WALK = "walk.py"

MUTATIONS = (
    # Counts.
    Mutation(
        "rollouts: a call is counted when all have stopped", _ROLLOUTS,
        "calls=jnp.any(path.alive).astype(jnp.int32) +", "calls=1 +", "however_the_steps",
        "test_contract.py",
    ),
    Mutation(
        "the walk takes a step too many", _WALK,
        "lambda c: jnp.any(c[2].path.alive), step,",
        "lambda c: (c[0] < context.max_depth - 1) | jnp.any(c[2].path.alive), step,", "calls_are",
    ),
    Mutation(
        "rollouts: evaluations of those that have stopped", _ROLLOUTS,
        "evaluations=jnp.sum(number, axis=-1),", "evaluations=jnp.sum(number | 1, axis=-1),",
        "calls_are",
    ),
    Mutation(
        "tree: a call is counted that nobody wanted", _TREE,
        "calls=jnp.any(made).astype(jnp.int32) +", "calls=1 +", "bound_ended and tree",
    ),
    Mutation(
        "tree: who asks for the same state is counted twice", _TREE,
        "evaluations=jnp.sum(made,", "evaluations=jnp.sum(wanted,", "new_nodes_are",
        "test_cached.py",
    ),
    Mutation(
        "limited though it stopped by itself", _WALK,
        "(alive & at_limit & ~own_end & ~over)", "(alive & at_limit & ~over)", "bound_ended",
    ),
    Mutation(
        "limited though the episode ended", _WALK,
        "(alive & at_limit & ~own_end & ~over)", "(alive & at_limit & ~own_end)", "bound_ended",
    ),
    Mutation(
        "the share of the limited is of the updates", _LOOP,
        "depth_limited=mean_of(totals.limited, totals.simulations),",
        "depth_limited=mean_of(totals.limited, carry.num_updates),", "bound_ended and rollouts",
    ),
    Mutation(
        "rollouts: another bound by default", _ROLLOUTS,
        "DEFAULT_MAX_DEPTH = 16", "DEFAULT_MAX_DEPTH = 17", "estimate_of_rollouts",
    ),
    # The model.
    Mutation(
        "rollouts: values of the adapted network", _MODEL,
        "        if adapts:\n", "        if False:\n", "values_do_not", "test_search.py",
    ),
    Mutation(
        "models: rows of one root at a time", _MODEL,
        "    if keys.shared is None:\n", "    if True:\n", "row_for_each_root",
        "test_model_contract.py",
    ),
    Mutation(
        "models: one key for the K simulations", _MODEL,
        "each = jax.random.split(keys.shared, num_walks)",
        "each = jax.random.split(keys.shared, num_walks)[jnp.arange(num_walks) * 0]",
        "one_key_every_call", "test_model_contract.py",
    ),
    Mutation(
        "models: one value may stand for all", _MODEL,
        'for name in ("reward", "discount", "value"):', 'for name in ("reward", "discount"):',
        "wrong_shapes and value", "test_model_contract.py",
    ),
    Mutation(
        "models: numbers may become states that are none", _MODEL,
        "kinds == [True, False]", "kinds == [True, None]", "another_kind",
        "test_model_contract.py",
    ),
    Mutation(
        "models: reuse of what is not remembered", _LOOP,
        "        search.reuse is not None,\n", "        False,\n", "cannot_be_is_named",
        "test_extended.py",
    ),
    # New nodes.
    Mutation(
        "tree: two make the same state", _TREE,
        "child = start + first\n", "child = start + numbers_of(first)\n", "new_nodes_are",
        "test_cached.py",
    ),
    Mutation(
        "tree: an update's rows begin at the last one's", _UPDATE,
        "_of_update(context.rows.starts, number)", "_of_update(context.rows.starts, number // 2)",
        "until_new_is_a_set", "test_cached.py",
    ),
    Mutation(
        "tree: steps of an update share their rows", _TREE,
        "else t * num_walks)", "else 0 * t)", "same_key_same_answer and own-fixed",
        "test_cached.py",
    ),
    Mutation(
        "tree: parents know every child", _NODES,
        "place = jnp.where(kept, node, num_rows)", "place = node", "new_nodes_are",
        "test_cached.py",
    ),
    Mutation(
        "tree: who shares a state is told of another", _TREE,
        "told = trees.take(told, first)", "told = told[:, ::-1]", "new_nodes_are",
        "test_cached.py",
    ),
    Mutation(
        "tree: types are joined in another order than they are taken apart", _PACKING,
        "axis=-1) for name in sorted(rows))", "axis=-1) for name in rows)", "is_packed",
        "test_cached.py",
    ),
    # Many actions.
    Mutation(
        "many actions: a look collects the children of all nodes", _NODES,
        "at = jnp.where(parent == node, action, num_actions)", "at = action", "hold_the_same",
        "test_many_actions.py",
    ),
    Mutation(
        "many actions: returns go to the parent's row", _NODES,
        "there = jnp.where(counts & (child > 0), child, num_rows)",
        "there = jnp.where(counts & (child > 0), node, num_rows)", "hold_the_same",
        "test_many_actions.py",
    ),
    Mutation(
        "many actions: rows above the new root keep their edge", _REROOTING,
        "edge=jnp.where(below_root, edge", "edge=jnp.where(used, edge", "hold_the_same",
        "test_many_actions.py",
    ),
    # The program for accelerators.
    Mutation(
        "dense: links of nobody are made", _NODES,
        "here = (rows == node[:, None]) & kept[:, None]", "here = rows == node[:, None]",
        "same_answer and mcts", "test_dense.py",
    ),
    Mutation(
        "dense: visits are counted of none", _NODES,
        "member = (rows == node[:, None]) & counts[:, None]", "member = rows == node[:, None]",
        "behind_the_limit",
    ),
    Mutation(
        "dense: returns of other actions", _NODES,
        "[chosen, chosen * returns[..., None]]", "[chosen, chosen[:, ::-1] * returns[..., None]]",
        "behind_the_limit",
    ),
    Mutation(
        "dense: log probabilities without weights", "learning/learn.py",
        'own = jnp.where(member, weights["log_prob"][:, None], 0.0)',
        "own = member.astype(policy.dtype)", "same_answer and pgs", "test_dense.py",
    ),
    # The best state.
    Mutation(
        "best_of: an equal state takes the place", _UPDATE,
        "jnp.max(scores, axis=1) > best_of(best)", "jnp.max(scores, axis=1) >= best_of(best)",
        "bound_ended and rollouts",
    ),
    Mutation(
        "best_of: not the best of the update", _UPDATE,
        "first = jnp.argmax(scores, axis=1)", "first = jnp.argmin(scores, axis=1)",
        "optimizers_state",
    ),
    Mutation(
        "best_of: only the last update's", _UPDATE,
        "best = _better(search.best_of, best, trajectory.last)",
        "best = jax.tree.map(lambda x: x[:, 0], trajectory.last)", "bound_ended and rollouts",
    ),
    Mutation(
        "best_of, rollouts: states after the stop", _ROLLOUTS,
        "after = trees.where(path.alive, after, start)", "pass", "calls_are",
    ),
    Mutation(
        "best_of, tree: the first state, not the last", _WALK,
        "ends = jnp.max(jnp.where(number == depth[None] - 1, child, 0), axis=0)",
        "ends = child[0]", "bound_ended and tree",
    ),
    # Trees that are kept for the next search.
    Mutation(
        "a kept root's returns change sign", _NODES,
        "value_sum=jnp.where(known, numbers[..., :num_actions], 0.0)",
        "value_sum=jnp.where(known, -numbers[..., :num_actions], 0.0)", "kept_root",
    ),
    Mutation(
        "kept nodes' returns change sign", _REROOTING,
        "jnp.where(used[..., None], numbers, 0.0)",
        "jnp.where(used[..., None], -numbers, 0.0)", "kept_root",
    ),
    Mutation(
        "kept nodes count visits of what was dropped", _REROOTING,
        "visits = jnp.where(children > 0, links[..., num_actions:], 0)\n",
        "visits = links[..., num_actions:]\n",
        "reroot_keeps", "test_tree.py",
    ),
    Mutation(
        "kept nodes sum returns of what was dropped", _REROOTING,
        "sums = jnp.where(children > 0, numbers[..., :num_actions], 0.0)\n",
        "sums = numbers[..., :num_actions]\n",
        "were_dropped",
    ),
    Mutation(
        "kept nodes have their parent's former number", _REROOTING,
        "edge = trees.take(renamed, jnp.maximum(rows.edge, 0) // num_actions)",
        "edge = (jnp.maximum(rows.edge, 0) // num_actions)", "reroot_keeps",
        "test_tree.py",
    ),
    Mutation(
        "a kept root starts from nothing", _LOOP,
        "if nodes is not None and search.interior_selection is not None:", "if False:", "kept_root",
    ),
    Mutation(
        "a kept root counts what is forbidden now", _ROOT,
        "jnp.where(stats.valid, getattr(known, n), getattr(stats, n))", "getattr(known, n)",
        "forbidden",
    ),
    Mutation(
        "a kept root forgets its visits", _ROOT,
        '["visits", "value_sum"] +', '["value_sum"] +', "kept_root",
    ),
    Mutation(
        "a kept root's range is upside down", _NODES,
        "for i in (2, 1))", "for i in (1, 2))", "kept_root",
    ),
    Mutation(
        "nodes' ranges include 0", _NODES,
        "low(jnp.where(visits > 0, known, jnp.inf), node", "low(known, node", "behind_the_limit",
    ),
    Mutation(
        "the root's range is the last update's", _BASE,
        "lowest=jnp.minimum(stats.lowest, lowest)", "lowest=lowest", "kept_root",
    ),
    Mutation(
        "the root's range is upside down", _BASE,
        "highest=jnp.maximum(stats.highest, highest)",
        "highest=jnp.minimum(stats.highest, highest)",
        "returns_of_one_update",
    ),
    Mutation(
        "the root's range is one simulation's", _BASE,
        "jnp.min(jnp.where(taken, returned, jnp.inf), axis=1)",
        "jnp.where(taken, returned, jnp.inf)[:, 0]", "returns_of_one_update",
    ),
    Mutation(
        "simulations beyond the budget count", _BASE,
        "chosen = jnp.where(started[:, :, None], chosen, 0.0)", "pass", "returns_of_one_update",
    ),
    # Memory.
    Mutation(
        "capacity: a state too many is kept", _TREE,
        "kept = made & (child <= rows.limit)", "kept = made & (child <= rows.limit + 1)",
        "states_it_holds or new_nodes_are", "test_cached.py",
    ),
    Mutation(
        "capacity: visits beyond the limit are added", _TREE,
        "simulations.trajectory.alive & (child <= context.rows.limit)",
        "simulations.trajectory.alive",
        "behind_the_limit",
    ),
    Mutation(
        "capacity: the limit of visits is one too low", _TREE,
        "(child <= context.rows.limit)", "(child < context.rows.limit)",
        "behind_the_limit",
    ),
    Mutation(
        "capacity: rows behind the limit are not used again", _UPDATE,
        "context.rows.starts, number), context.rows.limit + 1)",
        "context.rows.starts, number), number + 2**20)", "full_memory", "test_contract.py",
    ),
    Mutation(
        "capacity: one state less", _TREE,
        "min(search.capacity or num_new, num_new) - 1",
        "min(search.capacity or num_new, num_new) - 2",
        "new_nodes_are", "test_cached.py",
    ),
    Mutation(
        "capacity: without a tree it means nothing", _LOOP,
        '"tree" if search.capacity is not None else search.mode', "search.mode",
        "mistakes_are_named and capacity", "test_search_inputs.py",
    ),
    Mutation(
        "estimate: two copies of what adapts", _MEMORY,
        "3 * num_bytes(carry.adapted)", "2 * num_bytes(carry.adapted)", "estimate_of",
    ),
    Mutation(
        "estimate: nodes without features", _MEMORY,
        "nodes = num_bytes(carry.memory)", "nodes = num_bytes(carry.memory._replace(features=()))",
        "estimate_of_a_tree",
    ),
    Mutation(
        "estimate: no kept nodes", _MEMORY, "num_kept > 1:", "num_kept > 99:",
        "estimate_of_a_tree",
    ),
    Mutation(
        "estimate: kept nodes make nothing deeper", _MEMORY,
        "prepare(search, params, carry, num_kept)", "prepare(search, params, carry, 1)",
        "estimate_of_a_tree",
    ),
    Mutation(
        "estimate: no capacity", _MEMORY, "capacity=capacity,", "capacity=None,",
        "estimate_of_a_tree",
    ),
    Mutation(
        "estimate: no table", _MEMORY, "num_bytes(carry.memory.seen)", "0", "estimate_of_rollouts",
    ),
    Mutation(
        "estimate: no simulations", _MEMORY,
        "walks = num_bytes(trees.eval_shape(walks_of, params, carry))", "walks = 0", "estimate_of",
    ),
    # Budgets by root.
    Mutation(
        "budgets: a root goes on within its last update", _UPDATE,
        "playable & among & (number < budget)",
        "playable & among & (number < search.num_simulations)", "answer_of_n and mcs",
        "test_budgets.py",
    ),
    Mutation(
        "budgets: the search goes on to N", _UPDATE,
        "left = carry.totals.simulations < budget", "left = carry.num_updates < search.num_updates",
        "ends_with", "test_budgets.py",
    ),
    Mutation(
        "budgets: Gumbel's schedule is that of N", _LOOP,
        "num_simulations = search.num_simulations if budget is None else budget",
        "num_simulations = search.num_simulations", "answer_of_n and gumbel and mcts",
        "test_budgets.py",
    ),
    Mutation(
        "budgets: what is out of range stays", _ROOT,
        "jnp.clip(given, 0, min(most, jnp.iinfo(given.dtype).max))", "given", "clipped",
        "test_budgets.py",
    ),
)  # fmt: skip
