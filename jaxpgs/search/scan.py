"""The one loop under every search: select, walk, back up, adapt, repeat."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mctx
import optax

from jaxpgs.base import (
    Adapt,
    Embedding,
    Params,
    Path,
    PolicyOutput,
    RecurrentFn,
    RootStats,
    SearchState,
    broadcast_keys,
    finite,
    finite_or_zero,
)
from jaxpgs.search import adaptation
from jaxpgs.search.backups import Backup
from jaxpgs.search.cached import walks_on_nodes
from jaxpgs.search.estimators import Estimator
from jaxpgs.search.nodes import Nodes, child_ranges, child_stats
from jaxpgs.search.root_selection import RootSelection
from jaxpgs.search.step_size import logit_square
from jaxpgs.search.targets import Target
from jaxpgs.search.truncation import Truncation, get_max_depth
from jaxpgs.search.walk import rollouts


def search(
    params: Params,
    rng_key: chex.PRNGKey,
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    num_simulations: int,
    invalid_actions: chex.Array | None = None,
    max_depth: int | None = None,
    *,
    root_selection: RootSelection,
    truncation: Truncation,
    backup: Backup,
    target: Target,
    estimator: Estimator | None = None,
    optimizer: optax.GradientTransformation | None = None,
    adapt: Adapt = None,
    adapted_params: Params | None = None,
    simulations_per_update: int = 32,
    dirichlet_fraction: float | chex.Array = 0.0,
    dirichlet_alpha: float = 0.12,
    mode: str = "constant",
    interior_selection: RootSelection | None = None,
    nodes: Nodes | None = None,
    best_of: Callable[[Embedding], chex.Array] | None = None,
) -> PolicyOutput:
    """Searches B roots with N simulations each, K at a time.

    The scan under the presets of `jaxpgs.search.policies`; its parts are arguments. Traceable: wrap
    it in `jax.jit`, as with mctx.

    Args:
      params: the network's parameters.
      rng_key: one key, or `[B]` keys, one per root; consumed. With a key per root, a root's answer
        does not depend on the other roots of the batch.
      root: prior logits `[B, A]`, value `[B]` and embedding `[B, ...]` of the roots. Logits that
        are not finite count as the lowest (NaN, -inf) or highest (inf) float.
      recurrent_fn: `(params, rng_key, action, embedding) -> (mctx.RecurrentFnOutput, embedding)`.
        It is called under `jax.vmap` over roots, with a batch of K. Its logits are treated as the
        root's; rewards, discounts and values that are not finite count as 0.
      num_simulations: N, at least 1.
      invalid_actions: `[B, A]`, 1 (or True) where the action is illegal. None allows all. A root
        without a legal action, such as a finished game, gives action 0 and zeros for visits,
        Q-values and action weights.
      max_depth: T, the largest number of actions in a simulation; memory grows with it. None takes
        the truncation's own bound if it has one, else 16.
      root_selection: which first actions the simulations take.
      truncation: when a simulation stops.
      backup: what return it reports.
      target: what the search says in the end.
      estimator: how the adapted parameters move; None keeps them, which is Monte Carlo search.
      optimizer: an optax optimizer of the adapted parameters; its state starts anew in each search.
        Required with an estimator. Updates whose gradient is not finite are left out.
      adapt: which parameters adapt: a pytree of booleans like `params`, or a predicate
        `(path, leaf) -> bool`. Required with an estimator.
      adapted_params: `search_state.params` of the game's last search, to go on from; None starts
        from `params`.
      simulations_per_update: K, a divisor of N. The K simulations share one policy.
      dirichlet_fraction: share of Dirichlet noise in the root's prior, 0 to 1; the PGS paper uses
        0.25 in self-play. May be traced.
      dirichlet_alpha: concentration of the noise; the paper's is 0.12.
      mode: "constant" simulates in memory that does not depend on N. "cached" remembers every
        state visited and evaluates it once, so that with `until_new` an update is one network call;
        if parameters adapt it needs a `SplitRecurrentFn`, such as `make_recurrent_fn` returns.
        Both give the same answers in distribution.
      interior_selection: how actions below the root are chosen: None samples them from the
        policy; a root selection chooses them by the statistics of the node, which makes the search
        a tree search. Cached mode only, and nothing may adapt.
      nodes: cached mode only: `search_state.nodes` of the game's last search after `reroot`, to go
        on from; None starts from nothing.
      best_of: scores embeddings `[B, ...] -> [B]`. The one with the highest score of all states
        that simulations stopped in, the root included, is `search_state.best`. With the embeddings
        of `jaxpgs.puzzles` it is the best line of play seen. None keeps none.

    Returns:
      A `PolicyOutput`.

    Raises:
      ValueError: if a count is below 1, K does not divide N, a shape does not fit, `mode` is
        unknown, or an estimator lacks its optimizer or its parameters.
    """
    batch_size = _check(
        root, num_simulations, simulations_per_update, invalid_actions, max_depth, mode
    )
    if mode == "constant" and (nodes is not None or interior_selection is not None):
        raise ValueError(
            'nodes and interior_selection are for mode="cached"; mode="constant" has no nodes.'
        )
    if interior_selection is not None and adapt is not None:
        raise ValueError(
            "With interior_selection a tree search chooses the actions, so there is no policy that "
            f"could adapt; got adapt={adapt!r}."
        )
    if estimator is not None and (optimizer is None or adapt is None):
        raise ValueError(
            "An estimator needs an optimizer and adapt, the parameters that it moves; got "
            f"optimizer={optimizer!r} and adapt={adapt!r}."
        )
    num_walks = simulations_per_update
    depth_limit = get_max_depth(max_depth, truncation)
    mask = adaptation.adapt_mask(params, adapt)
    own, frozen = adaptation.split(params, mask)
    adapted = adaptation.per_root(own, batch_size)
    if adapted_params is not None:
        adaptation.check_like(adapted_params, adapted)
        adapted = adapted_params
    noise_keys, loop_keys, target_keys = jnp.moveaxis(
        jax.vmap(lambda key: jax.random.split(key, 3))(broadcast_keys(rng_key, batch_size)), 1, 0
    )
    stats = _init_stats(root, invalid_actions, noise_keys, dirichlet_fraction, dirichlet_alpha)
    ranges = root_selection.needs_range
    if ranges:
        none = jnp.full(stats.value_sum.shape, jnp.inf, stats.value_sum.dtype)
        stats = stats._replace(lowest=none, highest=-none)
    ranges_below = interior_selection is not None and (ranges or interior_selection.needs_range)
    if nodes is not None and interior_selection is not None:
        # A tree search goes on from the visits that its root has had as an inner node.
        at_root = jnp.zeros_like(nodes.size)
        visits, value_sum = child_stats(nodes, at_root)
        stats = stats._replace(visits=visits, value_sum=value_sum)
        if ranges:
            lowest, highest = child_ranges(nodes, at_root)
            stats = stats._replace(lowest=lowest, highest=highest)
    playable = jnp.any(stats.valid, axis=-1)

    adapts = estimator is not None and optimizer is not None
    if mode == "constant":
        simulator = rollouts(
            frozen,
            root.embedding,
            recurrent_fn,
            truncation,
            depth_limit,
            adapts,
            keeps_last=best_of is not None,
        )
    else:
        simulator = walks_on_nodes(
            params,
            mask,
            root,
            recurrent_fn,
            truncation,
            depth_limit,
            adapts,
            num_simulations=num_simulations,
            simulations_per_update=num_walks,
            interior_selection=interior_selection,
            nodes=nodes,
            ranges=ranges_below,
            keeps_last=best_of is not None,
        )

    def move(gradient: Params, opt_state: Any, adapted: Params, square: chex.Array) -> Any:
        update = optax.with_extra_args_support(optimizer).update
        return update(gradient, opt_state, adapted, logit_square=square)

    def update(carry: tuple, n: chex.Array) -> tuple[tuple, None]:
        adapted, opt_state, stats, memory, total, best = carry
        keys = jax.vmap(lambda key: jax.random.fold_in(key, n))(loop_keys)
        with jax.named_scope("root_selection"):
            actions = root_selection(stats, num_walks)
        path = _start(stats, actions, playable, n * num_walks)
        with jax.named_scope("walk"):
            trajectory, pull, remember = simulator.run(adapted, keys, actions, path, memory)
        with jax.named_scope("backup"):
            returns = jax.lax.stop_gradient(backup(trajectory))
            memory = remember(returns)
        norm, finite_gradient = jnp.zeros(batch_size), jnp.ones(batch_size, bool)
        if estimator is not None and optimizer is not None:

            def loss(log_prob: chex.Array) -> chex.Array:
                objective = estimator(stats, trajectory._replace(log_prob=log_prob), returns)
                # Each root has its own copy of the leaves, so their gradients do not mix.
                return -jnp.sum(objective)

            weight = jax.grad(loss)(trajectory.log_prob)
            gradient = pull(weight)
            with jax.named_scope("optimizer"):
                norm = jax.vmap(optax.tree.norm)(gradient)
                finite_gradient = jnp.isfinite(norm)
                updates, moved_state = jax.vmap(move)(
                    gradient, opt_state, adapted, logit_square(trajectory, weight)
                )
                moved = (optax.apply_updates(adapted, updates), moved_state)
                adapted, opt_state = _where(finite_gradient, moved, (adapted, opt_state))
        stats = _add(stats, actions, returns[0], playable)
        if best_of is not None:
            best = _better(best_of, best, trajectory.last)
        acted = jnp.sum(trajectory.alive[1:], axis=(0, 2), dtype=jnp.float32)
        report = {
            "num_evaluations": trajectory.num_evaluations,
            "num_calls": trajectory.num_calls,
            "depth": jnp.sum(trajectory.depth, axis=-1),
            "entropy": jnp.sum(trajectory.entropy, axis=(0, 2)),
            "acted": acted,
            "gradient_norm": jnp.where(finite_gradient, norm, 0.0),
            "skipped_updates": (~finite_gradient).astype(jnp.int32),
        }
        total = jax.tree.map(lambda t, r: t + r.astype(t.dtype), total, report)
        return (adapted, opt_state, stats, memory, total, best), None

    opt_state = () if optimizer is None else jax.vmap(optimizer.init)(adapted)
    num_updates = num_simulations // num_walks
    # Summed on the way: a stack of reports would grow with the number of simulations.
    count, mean = jnp.zeros(batch_size, jnp.int32), jnp.zeros(batch_size)
    total = {
        "num_evaluations": count,
        "num_calls": jnp.int32(0),
        "depth": count,
        "entropy": mean,
        "acted": mean,
        "gradient_norm": mean,
        "skipped_updates": count,
    }
    best = None if best_of is None else root.embedding
    carry = (adapted, opt_state, stats, simulator.init(), total, best)
    carry, _ = jax.lax.scan(update, carry, jnp.arange(num_updates))
    adapted, _, stats, memory, total, best = carry
    action, action_weights = jax.vmap(target)(target_keys, stats)
    state = SearchState(
        visits=stats.visits,
        qvalues=stats.qvalues,
        value=jnp.sum(stats.value_sum, axis=-1) / num_simulations,
        params=adapted,
        num_evaluations=total["num_evaluations"],
        num_calls=total["num_calls"],
        depth=total["depth"] / num_simulations,
        entropy=total["entropy"] / jnp.maximum(total["acted"], 1),
        gradient_norm=total["gradient_norm"] / num_updates,
        skipped_updates=total["skipped_updates"],
        nodes=memory[0] if mode == "cached" else None,
        best=best,
    )
    return PolicyOutput(action=action, action_weights=action_weights, search_state=state)


def _check(
    root: mctx.RootFnOutput,
    num_simulations: int,
    simulations_per_update: int,
    invalid_actions: chex.Array | None,
    max_depth: int | None,
    mode: str,
) -> int:
    """Raises `ValueError` for mistakes that shapes and counts show; returns B."""
    if mode not in ("constant", "cached"):
        raise ValueError(f'mode must be "constant" or "cached", got {mode!r}.')
    if num_simulations < 1:
        raise ValueError(f"num_simulations must be at least 1, got {num_simulations}.")
    if simulations_per_update < 1 or num_simulations % simulations_per_update:
        raise ValueError(
            "simulations_per_update must be at least 1 and divide num_simulations; got "
            f"{simulations_per_update} and {num_simulations}."
        )
    if max_depth is not None and max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, got {max_depth}.")
    if root.prior_logits.ndim != 2 or root.value.shape != root.prior_logits.shape[:1]:
        raise ValueError(
            "root must have prior_logits [B, A] and value [B]; got shapes "
            f"{root.prior_logits.shape} and {root.value.shape}."
        )
    embedding_shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(root.embedding)]
    if any(shape[:1] != root.value.shape for shape in embedding_shapes):
        raise ValueError(
            f"root must have an embedding with a leading axis of {root.value.shape[0]} roots; got "
            f"leaves of shapes {embedding_shapes}."
        )
    if invalid_actions is not None and invalid_actions.shape != root.prior_logits.shape:
        raise ValueError(
            f"invalid_actions must have the shape {root.prior_logits.shape} of the prior logits, "
            f"got {invalid_actions.shape}."
        )
    return root.prior_logits.shape[0]


def _init_stats(
    root: mctx.RootFnOutput,
    invalid_actions: chex.Array | None,
    keys: chex.PRNGKey,
    dirichlet_fraction: float | chex.Array,
    dirichlet_alpha: float,
) -> RootStats:
    logits = finite(root.prior_logits)
    lowest = jnp.finfo(logits.dtype).min
    valid = jnp.ones(logits.shape, bool)
    if invalid_actions is not None:
        valid = ~jnp.asarray(invalid_actions).astype(bool)
    logits = jnp.where(valid, logits, lowest)
    # Static zero, the default, draws nothing.
    if not (isinstance(dirichlet_fraction, int | float) and dirichlet_fraction == 0):
        # A Dirichlet over the legal actions is a normalised vector of gammas.
        gamma = jax.vmap(lambda key: jax.random.loggamma(key, dirichlet_alpha, logits.shape[1:]))
        noise = jax.nn.softmax(jnp.where(valid, gamma(keys), lowest), axis=-1)
        prior = jax.nn.softmax(logits, axis=-1)
        prior = (1 - dirichlet_fraction) * prior + dirichlet_fraction * noise
        logits = jnp.where(valid, finite(jnp.log(prior)), lowest)
    zeros = jnp.zeros(logits.shape, logits.dtype)
    return RootStats(logits, finite_or_zero(root.value), zeros.astype(jnp.int32), zeros, valid)


def _start(stats: RootStats, actions: chex.Array, playable: chex.Array, first: chex.Array) -> Path:
    """The K simulations before their first step."""
    num_walks = actions.shape[1]
    earlier = jnp.tril(actions[:, :, None] == actions[:, None, :], -1)
    log_prior = jax.nn.log_softmax(stats.prior_logits, axis=-1)
    return Path(
        depth=jnp.zeros(actions.shape, jnp.int32),
        code=jnp.zeros(actions.shape, jnp.uint32),
        log_prob=jnp.take_along_axis(log_prior, actions, axis=-1),
        alive=jnp.broadcast_to(playable[:, None], actions.shape),
        visits=jnp.take_along_axis(stats.visits, actions, axis=-1) + jnp.sum(earlier, axis=-1),
        new=jnp.zeros(actions.shape, bool),
        simulation=first + jnp.arange(num_walks),
    )


def _add(
    stats: RootStats, actions: chex.Array, returns: chex.Array, playable: chex.Array
) -> RootStats:
    """Adds the returns `[B, K]` of one update to the statistics."""
    chosen = jax.nn.one_hot(actions, stats.visits.shape[-1], dtype=returns.dtype)
    chosen = jnp.where(playable[:, None, None], chosen, 0.0)
    if stats.lowest is not None and stats.highest is not None:
        taken, returned = chosen > 0, returns[:, :, None]
        lowest = jnp.min(jnp.where(taken, returned, jnp.inf), axis=1)
        highest = jnp.max(jnp.where(taken, returned, -jnp.inf), axis=1)
        stats = stats._replace(
            lowest=jnp.minimum(stats.lowest, lowest), highest=jnp.maximum(stats.highest, highest)
        )
    return stats._replace(
        visits=stats.visits + jnp.sum(chosen, axis=1).astype(jnp.int32),
        value_sum=stats.value_sum + jnp.sum(chosen * returns[:, :, None], axis=1),
    )


def _better(best_of: Callable[[Embedding], chex.Array], best: Any, others: Any) -> Any:
    """Returns the best of one embedding `[B, ...]` and K others `[B, K, ...]`, root by root."""
    scores = jax.vmap(best_of, in_axes=1, out_axes=1)(others)
    first = jnp.argmax(scores, axis=1)
    other = jax.tree.map(lambda x: jax.vmap(lambda row, i: row[i])(x, first), others)
    return _where(jnp.max(scores, axis=1) > best_of(best), other, best)


def _where(condition: chex.Array, new: Any, old: Any) -> Any:
    """Chooses between two pytrees root by root."""
    return jax.tree.map(
        lambda n, o: jnp.where(condition.reshape(-1, *[1] * (jnp.ndim(n) - 1)), n, o), new, old
    )
