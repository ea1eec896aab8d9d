"""Policy gradient search: planning without a search tree, in JAX.

The searches take the same positional arguments as mctx's policies::

    output = jaxpgs.pgs_policy(params, rng_key, root, recurrent_fn, num_simulations,
                               invalid_actions, adapt="policy_head")

The examples in the docstrings search 3x3 Hex and small boards of SameGame, and share these names:

>>> import dataclasses, functools, tempfile
>>> import jax, jax.numpy as jnp, mctx, numpy as np, optax
>>> from flax import nnx
>>> import jaxpgs, jaxpgs.evaluation
>>> env, puzzle = jaxpgs.envs.Hex(3), jaxpgs.envs.SameGame(3, 3, num_colors=2)
>>> sizes = {"width": 8, "num_blocks": 1, "rngs": nnx.Rngs(0)}
>>> module = jaxpgs.networks.FullyConnectedResNet(env.observation_shape, env.num_actions, **sizes)
>>> params, apply_fn = jaxpgs.networks.functional(module)
>>> rng_key = jax.random.key(0)
>>> states = jax.vmap(env.init)(jax.random.split(rng_key, 2))
>>> boards = jax.vmap(puzzle.init)(jax.random.split(rng_key, 2))
>>> root = jax.jit(jaxpgs.make_root_fn(env, apply_fn))(params, rng_key, states)
>>> recurrent_fn = jaxpgs.make_recurrent_fn(env, apply_fn)
>>> def after(state, action):  # the stone slips once in ten times
...     return jnp.log(jnp.array([0.9, 0.1])), (state, action)
>>> def draw(afterstate, outcome):  # to the first free cell
...     state, action = afterstate
...     return env.step(state, jnp.where(outcome == 0, action, state.legal_action_mask.argmax()))
>>> decision_fn, chance_fn = jaxpgs.make_stochastic_fns(env, apply_fn, after, draw)
>>> search = jaxpgs.pgs_search(recurrent_fn, 16, adapt="policy_head", simulations_per_update=4)
>>> carry = jax.jit(jaxpgs.search.init, static_argnums=0)(search, params, rng_key, root)
>>> output = jax.jit(jaxpgs.search.run, static_argnums=0)(search, params, rng_key, root)
>>> node = jaxpgs.NodeStats(
...     prior_logits=jnp.log(jnp.array([[0.5, 0.3, 0.2]])),
...     value=jnp.zeros(1),
...     visits=jnp.array([[2, 1, 0]]),
...     value_sum=jnp.array([[0.4, 0.9, 0.0]]),
...     valid=jnp.ones((1, 3), bool),
... )
"""

from typing import TYPE_CHECKING, Any

from jaxpgs import envs, networks, puzzles, search
from jaxpgs.adapters.chance import make_stochastic_fns
from jaxpgs.adapters.continuous import continuous_action, make_sampled_fns
from jaxpgs.adapters.environments import (
    make_model_fns,
    make_plan_fn,
    make_recurrent_fn,
    make_root_fn,
)
from jaxpgs.adapters.model_checks import check_model
from jaxpgs.adapters.playouts import make_playout_fns
from jaxpgs.base import (
    Expansion,
    NodeStats,
    Path,
    PolicyOutput,
    RecurrentFn,
    SearchState,
    SplitRecurrentFn,
    Trajectory,
)
from jaxpgs.envs.played_games import PlayedGames
from jaxpgs.pretrained import available_pretrained, load_pretrained, save_pretrained
from jaxpgs.puzzles import NestedSearch, nrpa_policy, nrpa_search
from jaxpgs.search import (
    Reuse,
    SampledPolicy,
    Search,
    Selection,
    Truncation,
    auto_sgd,
    batched_mcts_policy,
    batched_mcts_search,
    best_value,
    by_probability,
    by_score,
    by_visits,
    completed_q,
    estimate_memory,
    extended_pgs_policy,
    extended_pgs_search,
    fixed,
    growing,
    gumbel_inner,
    gumbel_mcts_policy,
    gumbel_mcts_search,
    gumbel_pgs_policy,
    gumbel_pgs_search,
    gumbel_root,
    gumbel_target,
    improved_policy,
    init_adapted,
    init_nodes,
    last_value,
    log_series,
    max_min_puct,
    mcs_policy,
    mcs_search,
    muzero_puct,
    n_step,
    paper_extended_pgs,
    paper_mcs,
    paper_pgs,
    pgs_policy,
    pgs_search,
    principal_variation,
    puct,
    qtransform_completed_by_mix_value,
    regularized,
    reinforce,
    reroot,
    reset_adapted,
    search_for,
    search_summary,
    step_advantage,
    stochastic_mcts_policy,
    stochastic_mcts_search,
    td_lambda,
    tree_svg,
    truncated_geometric,
    ucb1,
    until_new,
    visit_counts,
    with_dirichlet_noise,
)

if TYPE_CHECKING:
    from jaxpgs.play import show


def __getattr__(name: str) -> Any:
    # The board plays by `jaxpgs.gtp` and so needs all of the library, which comes first.
    if name == "show":
        from jaxpgs.play import show

        return show
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Expansion",
    "NestedSearch",
    "NodeStats",
    "Path",
    "PlayedGames",
    "PolicyOutput",
    "RecurrentFn",
    "Reuse",
    "SampledPolicy",
    "Search",
    "SearchState",
    "Selection",
    "SplitRecurrentFn",
    "Trajectory",
    "Truncation",
    "auto_sgd",
    "available_pretrained",
    "batched_mcts_policy",
    "batched_mcts_search",
    "best_value",
    "by_probability",
    "by_score",
    "by_visits",
    "check_model",
    "completed_q",
    "continuous_action",
    "envs",
    "estimate_memory",
    "extended_pgs_policy",
    "extended_pgs_search",
    "fixed",
    "growing",
    "gumbel_inner",
    "gumbel_mcts_policy",
    "gumbel_mcts_search",
    "gumbel_pgs_policy",
    "gumbel_pgs_search",
    "gumbel_root",
    "gumbel_target",
    "improved_policy",
    "init_adapted",
    "init_nodes",
    "last_value",
    "load_pretrained",
    "log_series",
    "make_model_fns",
    "make_plan_fn",
    "make_playout_fns",
    "make_recurrent_fn",
    "make_root_fn",
    "make_sampled_fns",
    "make_stochastic_fns",
    "max_min_puct",
    "mcs_policy",
    "mcs_search",
    "muzero_puct",
    "n_step",
    "networks",
    "nrpa_policy",
    "nrpa_search",
    "paper_extended_pgs",
    "paper_mcs",
    "paper_pgs",
    "pgs_policy",
    "pgs_search",
    "principal_variation",
    "puct",
    "puzzles",
    "qtransform_completed_by_mix_value",
    "regularized",
    "reinforce",
    "reroot",
    "reset_adapted",
    "save_pretrained",
    "search",
    "search_for",
    "search_summary",
    "show",
    "step_advantage",
    "stochastic_mcts_policy",
    "stochastic_mcts_search",
    "td_lambda",
    "tree_svg",
    "truncated_geometric",
    "ucb1",
    "until_new",
    "visit_counts",
    "with_dirichlet_noise",
]
