"""Mistakes in presets, selections and targets."""

from quality.mutants import Mutation

_MAKING = "presets/making.py"
_PGS = "presets/pgs.py"
_GUMBEL_PRESETS = "presets/gumbel.py"
_PAPERS = "papers.py"
_SELECTION = "parts/selection.py"
_TARGET = "parts/target.py"
_GUMBEL, _HALVING = "parts/gumbel.py", "parts/halving.py"
_MANY = "test_many_actions.py"
_ESTIMATOR = "parts/estimator.py"
_WALK = "walk.py"

MUTATIONS = (
    # Defaults.
    Mutation(
        "another c_puct", _MAKING,
        "\"root_selection\": puct(1.5,", "\"root_selection\": puct(1.0,",
        "defaults_of",
    ),
    Mutation(
        "another mode", _MAKING,
        'chosen.setdefault("mode", "tree")', 'chosen.setdefault("mode", "rollouts")',
        "tree_where",
    ),
    Mutation(
        "the paper's target is another", _PAPERS,
        '"target": visit_counts(),', '"target": visit_counts(0.0),',
        "settings_of_the_paper",
    ),
    Mutation(
        "MCTS: inner nodes choose by no rule", _MAKING,
        'chosen.get("interior_selection") or inner', 'chosen.get("interior_selection")',
        "defaults_of",
    ),
    Mutation(
        "MCTS: inner nodes choose by another rule than the root", _MAKING,
        'defaults.get("interior_selection", parts["root_selection"])',
        'defaults.get("interior_selection", MCS["root_selection"])', "hand_their_knobs",
    ),
    Mutation(
        "another target", _MAKING,
        '"target": completed_q(0.0, q', '"target": completed_q(1.0, q',
        "defaults_of",
    ),
    Mutation(
        "answers without a least range", _MAKING,
        "completed_q(0.0, qtransform=QTRANSFORM)", "completed_q(0.0)",
        "defaults_of",
    ),
    Mutation(
        "another backup", _MAKING,
        '"backup": n_step(),', '"backup": lambda trajectory: trajectory.value,',
        "defaults_of",
    ),
    Mutation(
        "another truncation", _MAKING,
        '"truncation": until_new(),', '"truncation": until_new(2**10),',
        "defaults_of",
    ),
    Mutation(
        "another table", "parts/truncation.py",
        "table_size: int = 2**15", "table_size: int = 2**14", "defaults_of",
    ),
    Mutation(
        "another estimator", _PGS,
        '"estimator": reinforce("value",', '"estimator": reinforce("none",',
        "defaults_of",
    ),
    Mutation(
        "another optimizer", _PGS,
        '"optimizer": auto_sgd()', '"optimizer": auto_sgd(1.0)',
        "defaults_of",
    ),
    Mutation(
        "another step size", _ESTIMATOR,
        "step_size: float | chex.Array = 3.0", "step_size: float | chex.Array = 1.0",
        "defaults_of",
    ),
    Mutation(
        "another K", _MAKING,
        "round(count / 16)", "round(count / 8)",
        "defaults_of",
    ),
    Mutation(
        "another virtual loss", _SELECTION,
        "= 5.0,\n    *,\n    virtual_loss: float | chex.Array | None = 1.0,",
        "= 5.0,\n    *,\n    virtual_loss: float | chex.Array | None = 0.5,", "defaults_of",
    ),
    Mutation(
        "another largest K", _MAKING,
        "/ 16)), 8)", "/ 16)), 50)",
        "defaults_of",
    ),
    Mutation(
        "actions of PGS are drawn", _PGS,
        "improved_policy(by_counts=True, ", "improved_policy(",
        "defaults_of",
    ),
    Mutation(
        "the range of Q-values has no least one", _TARGET,
        "jnp.maximum(high - low, epsilon)", "jnp.maximum(high - low, 1e-8)",
        "completed_q_is", "test_tree.py",
    ),
    Mutation(
        "by counts: simulations in flight are not counted", _WALK,
        "(visits[:, k] + pending) / total", "visits[:, k] / total",
        "followed_by_counts", "test_terms.py",
    ),
    Mutation(
        "by counts: visits are not counted", _WALK,
        "policy[:, k] - (visits", "policy[:, k] - 0 * (visits",
        "followed_by_counts", "test_terms.py",
    ),
    Mutation(
        "extended PGS: the thesis's settings read the nodes", _PAPERS,
        '"simulations_per_update": 1,\n        "interior_selection": None,',
        '"simulations_per_update": 1,',
        "settings_of_the_thesis",
    ),
    Mutation(
        "Gumbel PGS: another share of actions", _GUMBEL_PRESETS,
        "max(8, math", "max(16, math",
        "defaults_of",
    ),
    Mutation(
        "Gumbel: another number of actions", _GUMBEL,
        "max_num_considered_actions: int = 16", "max_num_considered_actions: int = 8",
        "defaults_of_the_parts",
    ),
    Mutation(
        "Gumbel: the presets ignore the scale", _MAKING,
        "chosen[name] = make(**{**defaults, **given})", "chosen[name] = make(**defaults)",
        "hand_their_knobs",
    ),
    Mutation(
        "Gumbel: another sigma below the root", _GUMBEL_PRESETS,
        "gumbel_inner(**transform)", "gumbel_inner(qtransform=lambda node: node.qvalues)",
        "defaults_of",
    ),
    Mutation(
        "Gumbel: another sigma in the target", _GUMBEL_PRESETS,
        '"target": gumbel_target(**transform)}',
        '"target": gumbel_target(qtransform=lambda node: node.qvalues)}',
        "defaults_of",
    ),
    # Selections and targets.
    Mutation(
        "muzero_puct: no virtual loss", _SELECTION,
        "scaled *= 1 - pending / jnp.maximum(visits, 1)", "pass", "muzeros",
    ),
    Mutation(
        "muzero_puct: no virtual loss by default", _SELECTION,
        "virtual_loss: bool = True", "virtual_loss: bool = False", "muzeros",
    ),
    Mutation(
        "muzero_puct: the node does not count what is pending", _SELECTION,
        "1 + jnp.sum(visits, axis=-1, keepdims=True)",
        "1 + jnp.sum(node.visits, axis=-1, keepdims=True)", "muzeros",
    ),
    Mutation(
        "completed_q: the temperature is 1", _TARGET,
        "masked_argmax(jnp.log(weights) + noise,",
        "masked_argmax(jnp.log(weights) + noise / jnp.maximum(temperature, 1e-9),", "completed_q",
    ),
    Mutation(
        "completed_q: draws by weights, not by their logarithms", _TARGET,
        "masked_argmax(jnp.log(weights) + noise,", "masked_argmax(weights + noise,", "completed_q",
    ),
    Mutation(
        "noise: the shares change places", _SELECTION,
        "(1 - share) * prior + share * noise", "share * prior + (1 - share) * noise",
        "dirichlet",
    ),
    Mutation(
        "noise: alpha is 1", _SELECTION,
        "(keys, shape)", "(keys, shape * 0 + 1.0)", "dirichlet",
    ),
    Mutation(
        "noise: another share by default", _SELECTION,
        "fraction: float | chex.Array = 0.25", "fraction: float | chex.Array = 0.1",
        "hand_their_knobs",
    ),
    Mutation(
        "noise: the presets ignore alpha", _MAKING,
        '(parts["root_selection"], fraction, alpha)', '(parts["root_selection"], fraction)',
        "hand_their_knobs",
    ),
    Mutation(
        "noise: another alpha by default", _MAKING,
        '"dirichlet_alpha", 0.12', '"dirichlet_alpha", 0.3',
        "hand_their_knobs",
    ),
    # Gumbel.
    Mutation(
        "Gumbel: halves down to one", _HALVING,
        "max(2, remaining // 2)", "max(1, remaining // 2)", "sequential_halving",
    ),
    Mutation(
        "Gumbel: a round too few", _HALVING,
        "math.ceil(math.log2(num_considered))", "math.floor(math.log2(num_considered))",
        "sequential_halving",
    ),
    Mutation(
        "Gumbel: all actions of a round are certain", _GUMBEL,
        "(whole & (num_started == ready))", "whole", "in_rounds_is_mctxs", "test_rounds.py",
    ),
    Mutation(
        "Gumbel: rounds are never cut off by the last simulation", _GUMBEL,
        "& (number + ready <= state.num_simulations)", "",
        "in_rounds_is_mctxs", "test_rounds.py",
    ),
    Mutation(
        "Gumbel: what is pending is no visit", _GUMBEL,
        "- state.before + pending.astype(jnp.int32)", "- state.before", "gumbels_root",
    ),
    Mutation(
        "Gumbel: visits from before count", _GUMBEL,
        "visits = node.visits - state.before +", "visits = node.visits +", "gumbels_root",
    ),
    Mutation(
        "Gumbel: a kept root has no visits from before", _GUMBEL,
        "noise, root.visits, top", "noise, root.visits * 0, top", "gumbel_plans",
    ),
    Mutation(
        "Gumbel: illegal actions are considered", _GUMBEL,
        "jnp.sum(root.valid, axis=-1, dtype", "jnp.sum(root.valid | True, axis=-1, dtype",
        "gumbels_root",
    ),
    Mutation(
        "Gumbel: the noise has no scale", _GUMBEL, "scale * noise", "noise", "gumbels_scale",
    ),
    Mutation(
        "Gumbel: inner nodes do not count what is pending", _GUMBEL,
        "node.visits.astype(policy.dtype) + pending", "node.visits.astype(policy.dtype)",
        "gumbels_inner",
    ),
    Mutation(
        "Gumbel: the answer is any action", _GUMBEL,
        "bonus, visits == jnp.max(visits))", "bonus, visits >= 0)", "gumbels_answer",
    ),
    Mutation(
        "Gumbel: the answer counts visits from before", _GUMBEL,
        "visits = root.visits - state.before\n        scores = _considered(root, state, b",
        "visits = root.visits\n        scores = _considered(root, state, b",
        "gumbels_answer",
    ),
    Mutation(
        "many actions: the others have no prior", _GUMBEL,
        "trees.take(root.prior_logits, columns), others]",
        "trees.take(root.prior_logits, columns), others - 9]", "columns_are", _MANY,
    ),
    Mutation(
        "many actions: a single considered action counts as the only legal one", _GUMBEL,
        "num_columns = max(most, 2)", "num_columns = most", "do_not_depend", _MANY,
    ),
    Mutation(
        "many actions: every transform of Q-values is asked about a few", _GUMBEL,
        "size = num_columns if fits else 0", "size = num_columns", "other_transforms", _MANY,
    ),
    Mutation(
        "many actions: kept nodes change nothing", "root.py",
        "None if kept or narrow is None", "None if narrow is None", "kept", _MANY,
    ),
    Mutation(
        "rounds: what mctx would not run counts", _GUMBEL,
        "accepted = started & ~waiting", "accepted = started",
        "in_rounds_is_mctxs", "test_rounds.py",
    ),
    Mutation(
        "rounds: choices do not see what returned before them", _GUMBEL,
        "node = add_returns(node, action", "add_returns(node, action",
        "in_rounds_is_mctxs", "test_rounds.py",
    ),
    Mutation(
        "rounds: more simulations than there are", _GUMBEL,
        "goes_on &= left & jnp.any(found, axis=-1)", "goes_on &= jnp.any(found, axis=-1)",
        "in_rounds_is_mctxs", "test_rounds.py",
    ),
    Mutation(
        "rounds: one legal action waits for itself", _GUMBEL,
        "jnp.where(single, actions[:, :1], actions), single | ", "actions, ",
        "one_legal_action", "test_rounds.py",
    ),
    Mutation(
        "rounds: a state that did not count is old", "stores/store_tree.py",
        "new = visits == 0", "new = child == 0", "in_rounds_is_mctxs", "test_rounds.py",
    ),
)  # fmt: skip
