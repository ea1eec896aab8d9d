"""Mistakes in the learning of a search, and in the training of policies."""

from quality.mutants import Mutation

_OBJECTIVES = "../training/two_player/objectives.py"
_OFFSETS = "../networks/offsets.py"
_PLAYOUTS = "../adapters/playouts.py"
_SELFPLAY = "../training/two_player/selfplay.py"
_REPLAY = "../training/two_player/replay.py"
_LOSSES = "../training/two_player/losses.py"
_UNROLLS = "../training/models/unrolls.py"
_TREES = "../trees.py"
_LEARNING = "learning/learn.py"
_ESTIMATOR = "parts/estimator.py"

MUTATIONS = (
    # Which parameters adapt.
    Mutation(
        "everything: batch normalisation, too", _TREES,
        "names[:-1] not in normalised", "True", "everything_adapts", "test_networks.py",
    ),
    Mutation(
        "everything: the scale of Linen's batch normalisation, too", _TREES,
        "[names[linen:] for names in leaves]", "[names[0:] for names in leaves]",
        "linen_modules_are_split", "test_networks.py",
    ),
    # The gradient.
    Mutation(
        "log probabilities are differentiated by the actions taken alone", _LEARNING,
        "total = chosen - jnp.sum(chosen, axis=-1, keepdims=True) * policy", "total = chosen",
        "finite_difference", "test_estimator.py",
    ),
    Mutation(
        "only the first block of states teaches", _LEARNING,
        "lambda carry: carry[0] < blocks.num_blocks, add, start)",
        "lambda carry: carry[0] < 0 * blocks.num_blocks, add, start)", "plain_autodiff",
        "test_terms.py",
    ),
    Mutation(
        "what lies behind the end of a game teaches", "stores/store_rollouts.py",
        "own = lambda x: trees.where(acted, pull(x)[0], nothing)", "own = lambda x: pull(x)[0]",
        "behind_the_end", "test_contract.py",
    ),
    Mutation(
        "KL(pi || prior) has the slope of the other", "policy.py",
        'slopes["kl_from_prior"] = policy - prior', 'slopes["kl_from_prior"] = prior - policy',
        "closed_forms", "test_terms.py",
    ),
    # The optimizer.
    Mutation(
        "the optimizer's state is not carried over", _LEARNING,
        "trees.where(sound & ran, (moved, new_state),",
        "trees.where(sound & ran, (moved, opt_state),", "optimizers_state",
    ),
    Mutation(
        "the optimizer's state begins anew each update", _LEARNING,
        "gradient, opt_state, adapted, square",
        "gradient, jax.vmap(search.optimizer.init)(adapted), adapted, square",
        "optimizers_state",
    ),
    Mutation(
        "a root without simulations learns", _LEARNING,
        "trees.where(sound & ran,", "trees.where(sound,", "optimizers_state",
    ),
    Mutation(
        "the optimizer does not see the parameters", _LEARNING,
        "update(g, s, p, logit_square=square)", "update(g, s, None, logit_square=square)",
        "optimizers_state",
    ),
    Mutation(
        "the norm at the logits is another", _LEARNING,
        "-jnp.expm1(trajectory.log_prob)", "-trajectory.log_prob", "optimizers_state",
    ),
    Mutation(
        "auto_sgd forgets the logits' squares", _ESTIMATOR,
        "logits = state.logit_square + logit_square", "logits = logit_square", "auto_sgd",
    ),
    Mutation(
        "auto_sgd forgets the parameters' squares", _ESTIMATOR,
        "square = state.parameter_square + now", "square = now", "auto_sgd",
    ),
    Mutation(
        "auto_sgd has no bound", _ESTIMATOR,
        "jnp.minimum(state.longest / length, 1.0)", "1.0", "auto_sgd",
    ),
    Mutation(
        "auto_sgd lengthens short steps", _ESTIMATOR,
        "jnp.minimum(state.longest / length, 1.0)", "(state.longest / length)", "auto_sgd",
    ),
    Mutation(
        "auto_sgd's bound of 1 is gone", _ESTIMATOR,
        "jnp.maximum(optax.tree.norm(params), 1.0)", "optax.tree.norm(params)", "auto_sgd",
    ),
    Mutation(
        "auto_sgd's bound is always 1", _ESTIMATOR,
        "jnp.maximum(optax.tree.norm(params), 1.0)", "1.0", "auto_sgd",
    ),
    Mutation(
        "regularized: penalties are bonuses", _ESTIMATOR,
        'sign = 1 if name == "entropy" else -1', "sign = 1", "regularized",
    ),
    Mutation(
        "regularized: the bonus is a penalty", _ESTIMATOR,
        'sign = 1 if name == "entropy" else -1', "sign = -1", "regularized",
    ),
    Mutation(
        "regularized: no weights", _ESTIMATOR, "sign * weight * jnp.sum(", "sign * jnp.sum(",
        "regularized",
    ),
    Mutation(
        "regularized: the two penalties change places", _ESTIMATOR,
        '"kl_to_prior": kl_to_prior, "kl_from_prior": kl_from_prior',
        '"kl_to_prior": kl_from_prior, "kl_from_prior": kl_to_prior', "regularized",
    ),
    # Objectives of policies, and playouts.
    Mutation(
        "tspg: illegal actions may be the best", _OBJECTIVES,
        "jnp.where(target.legal, qvalues, -jnp.inf)", "qvalues + 1", "gradient_is",
        "test_objectives.py",
    ),
    Mutation(
        "tspg: untried actions are lost by less", _OBJECTIVES,
        "jnp.minimum(lowest, -1.0)", "jnp.minimum(lowest, 0.0)", "untried_actions",
        "test_objectives.py",
    ),
    Mutation(
        "tspg: the parent's value is the network's", _OBJECTIVES,
        "jnp.where(visits > 0, mean,", "jnp.where(visits > 99, mean,", "untried_actions",
        "test_objectives.py",
    ),
    Mutation(
        "offsets: a gradient reaches the policy below", _OFFSETS,
        "held, base = jax.lax.stop_gradient((features, logits))", "held, base = features, logits",
        "offsets_begin", "test_objectives.py",
    ),
    Mutation(
        "offsets: the last layer does not begin at zero", _OFFSETS,
        "jax.tree.map(jnp.zeros_like, state)", "jax.tree.map(jnp.ones_like, state)",
        "offsets_begin", "test_objectives.py",
    ),
    Mutation(
        "self-play: what the root knows is not in the network's frame", _SELFPLAY,
        "root = None if root is None else map_actions(turn, root)", "pass", "networks_frame",
        "test_objectives.py",
    ),
    Mutation(
        "replay: what the root knows is not turned", _REPLAY,
        "else map_actions(turned, batch.root)", "else batch.root", "networks_frame",
        "test_objectives.py",
    ),
    Mutation(
        "playouts: rewards are the mover's of each move", _PLAYOUTS,
        "gain_of(env, player, state, after)",
        "gain_of(env, state.current_player, state, after)",
        "uniform_play", "test_objectives.py",
    ),
    Mutation(
        "playouts: the first legal action", _PLAYOUTS,
        "action = sample_inverse_cdf(policy.cumulative, policy.last, number)",
        "action = sample_inverse_cdf(policy.cumulative, policy.last, 0 * number)", "uniform_play",
        "test_objectives.py",
    ),
    # Fast moves.
    Mutation(
        "fast moves: their policy is kept", _SELFPLAY,
        "jnp.where(is_full & live, decision.policy, 0.0)", "decision.policy", "fast_moves_play",
        "test_training.py",
    ),
    Mutation(
        "fast moves: all searches are fast", _SELFPLAY,
        "jax.lax.cond(is_full, full, quick)", "jax.lax.cond(is_full, quick, quick)",
        "fast_moves_play", "test_training.py",
    ),
    Mutation(
        "positions without a policy teach it", _LOSSES,
        "jnp.where(known, objective.loss(logits, target), 0.0)", "objective.loss(logits, target)",
        "without_a_policy", "test_training.py",
    ),
    Mutation(
        "positions without a policy count in the mean", _LOSSES,
        "jnp.sum(loss) / jnp.maximum(jnp.sum(known), 1)", "jnp.mean(loss)", "without_a_policy",
        "test_training.py",
    ),
    Mutation(
        "unrolls: steps without a policy teach it", _UNROLLS,
        "(real & jnp.any(policy != 0, axis=-1))", "real", "without_a_policy", "test_training.py",
    ),
)  # fmt: skip
