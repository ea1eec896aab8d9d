"""Mistakes in presets, selections and targets."""

from benchmarks.mutants import Mutation

_MCS = "presets/mcs.py"
_MCTS = "presets/mcts.py"
_PGS = "presets/pgs.py"
_DEFAULTS = "presets/defaults.py"
_GUMBEL_PRESETS = "presets/gumbel.py"
_SELECTION = "parts/selection.py"
_TARGET = "parts/target.py"
_GUMBEL = "parts/gumbel.py"
_STEP = "parts/step_size.py"

MUTATIONS = (
    # Defaults.
    Mutation(
        "another c_puct", _DEFAULTS, "return puct(1.5,", "return puct(1.0,", "defaults_of",
    ),
    Mutation(
        "another mode", _DEFAULTS, 'return "cached" if splits', 'return "constant" if splits',
        "cached_one_where",
    ),
    Mutation(
        "the paper's target is another", _MCS,
        '"target": visit_counts(),', '"target": visit_counts(0.0),', "settings_of_the_paper",
    ),
    Mutation(
        "MCTS: inner nodes choose by another rule", _MCTS,
        "interior_selection=interior_selection or root_selection,",
        "interior_selection=interior_selection,", "defaults_of",
    ),
    Mutation(
        "another target", _MCS, "completed_q(0.0, q", "completed_q(1.0, q",
        "defaults_of",
    ),
    Mutation(
        "answers without a least range", _MCS, "(0.0, qtransform=QTRANSFORM)", "(0.0)",
        "defaults_of",
    ),
    Mutation(
        "another backup", _MCS, "backup or n_step()", "backup or last_value()",
        "defaults_of",
    ),
    Mutation(
        "another truncation", _MCS,
        "truncation or until_new()", "truncation or until_new(count_siblings=True)", "defaults_of",
    ),
    Mutation(
        "another table", "parts/truncation.py",
        "table_size: int = 2**15", "table_size: int = 2**14", "defaults_of",
    ),
    Mutation(
        "another estimator", _DEFAULTS,
        'return reinforce("value")', "return reinforce()", "defaults_of",
    ),
    Mutation(
        "another optimizer", _PGS,
        "optimizer or auto_sgd()", "optimizer or optax.sgd(1e-3)", "defaults_of",
    ),
    Mutation(
        "another step size", _STEP,
        "step_size: float | chex.Array = 3.0", "step_size: float | chex.Array = 1.0", "defaults_of",
    ),
    Mutation(
        "another K", _DEFAULTS, "num_simulations / 16", "num_simulations / 8",
        "defaults_of",
    ),
    Mutation(
        "another virtual loss", _SELECTION,
        "= 5.0,\n    *,\n    virtual_loss: float | chex.Array | None = 1.0,",
        "= 5.0,\n    *,\n    virtual_loss: float | chex.Array | None = 0.5,", "defaults_of",
    ),
    Mutation(
        "another largest K", _DEFAULTS, "/ 16)), 8)", "/ 16)), 50)", "defaults_of",
    ),
    Mutation(
        "actions of PGS are drawn", _PGS,
        "qtransform=QTRANSFORM, by_counts=True)", "qtransform=QTRANSFORM)",
        "defaults_of",
    ),
    Mutation(
        "the range of Q-values has no least one", "parts/improvement.py",
        "jnp.maximum(high - low, min_range)", "jnp.maximum(high - low, 1e-8)", "completed_q_is",
        "test_tree.py",
    ),
    Mutation(
        "by counts: simulations in flight are not counted", "simulators/tree.py",
        ", alive[:, k].astype(", ", 0 * alive[:, k].astype(", "followed_by_counts", "test_terms.py",
    ),
    Mutation(
        "by counts: visits are not counted", "simulators/tree.py",
        "scores = own - taken /", "scores = own - 0 * taken /", "followed_by_counts",
        "test_terms.py",
    ),
    Mutation(
        "extended PGS: the thesis's settings read the nodes", "presets/extended.py",
        '"interior_selection": None,', "", "settings_of_the_thesis",
    ),
    Mutation(
        "Gumbel PGS: another share of actions", _DEFAULTS,
        "max(8, math", "max(16, math", "defaults_of",
    ),
    Mutation(
        "Gumbel: another number of actions", _GUMBEL,
        "max_num_considered_actions: int = 16", "max_num_considered_actions: int = 8",
        "defaults_of_the_parts",
    ),
    Mutation(
        "Gumbel: the presets ignore the scale", _GUMBEL_PRESETS,
        "gumbel_root(max_num_considered_actions, gumbel_scale)",
        "gumbel_root(max_num_considered_actions)", "hand_their_knobs",
    ),
    Mutation(
        "Gumbel: another sigma below the root", _GUMBEL_PRESETS,
        "gumbel_inner())", "gumbel_inner(qtransform=lambda node: node.qvalues))", "defaults_of",
    ),
    Mutation(
        "Gumbel: another sigma in the target", _GUMBEL_PRESETS,
        "gumbel_target(),", "gumbel_target(qtransform=lambda node: node.qvalues),", "defaults_of",
    ),
    # Selections and targets.
    Mutation(
        "muzero_puct: no virtual loss", _SELECTION,
        "scaled *= node.visits / jnp.maximum(visits, 1)", "pass", "muzeros",
    ),
    Mutation(
        "muzero_puct: no virtual loss by default", _SELECTION,
        "virtual_loss: bool = True", "virtual_loss: bool = False", "muzeros",
    ),
    Mutation(
        "muzero_puct: the node does not count what is pending", _SELECTION,
        "1 + known + jnp.sum(pending, axis=-1, keepdims=True)", "1 + known", "muzeros",
    ),
    Mutation(
        "completed_q: the temperature is 1", _TARGET,
        "highest(jnp.log(weights) + noise,",
        "highest(jnp.log(weights) + noise / jnp.maximum(temperature, 1e-9),", "completed_q",
    ),
    Mutation(
        "completed_q: draws by weights, not by their logarithms", _TARGET,
        "highest(jnp.log(weights) + noise,", "highest(weights + noise,", "completed_q",
    ),
    Mutation(
        "noise: the shares change places", _SELECTION,
        "(1 - fraction) * prior + fraction * noise", "fraction * prior + (1 - fraction) * noise",
        "dirichlet",
    ),
    Mutation(
        "noise: alpha is 1", _SELECTION,
        "jax.random.loggamma(key, alpha,", "jax.random.loggamma(key, 1.0,", "dirichlet",
    ),
    Mutation(
        "noise: another share by default", _SELECTION,
        "fraction: float | chex.Array = 0.25", "fraction: float | chex.Array = 0.1",
        "hand_their_knobs",
    ),
    Mutation(
        "noise: the presets ignore alpha", _MCS,
        "(root_selection, dirichlet_fraction, dirichlet_alpha)",
        "(root_selection, dirichlet_fraction)", "hand_their_knobs",
    ),
    Mutation(
        "noise: another alpha by default", _MCS,
        "dirichlet_alpha: float | chex.Array = 0.12", "dirichlet_alpha: float | chex.Array = 0.3",
        "hand_their_knobs",
    ),
    # Gumbel.
    Mutation(
        "Gumbel: halves down to one", _GUMBEL,
        "max(2, remaining // 2)", "max(1, remaining // 2)", "sequential_halving",
    ),
    Mutation(
        "Gumbel: a round too few", _GUMBEL,
        "math.ceil(math.log2(num_considered))", "math.floor(math.log2(num_considered))",
        "sequential_halving",
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
        "noise, root.visits, schedule", "noise, root.visits * 0, schedule", "gumbel_plans",
    ),
    Mutation(
        "Gumbel: illegal actions are considered", _GUMBEL,
        "jnp.sum(root.valid, axis=-1), most", "jnp.sum(root.valid | True, axis=-1), most",
        "gumbels_root",
    ),
    Mutation(
        "Gumbel: the noise has no scale", _GUMBEL, "gumbel_scale * noise", "noise", "gumbels_scale",
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
        "visits = root.visits - state.before", "visits = root.visits", "gumbels_answer",
    ),
)  # fmt: skip
