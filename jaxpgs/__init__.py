"""Policy gradient search: planning without a search tree, in JAX.

The searches take the same positional arguments as mctx's policies::

    output = jaxpgs.pgs_policy(params, rng_key, root, recurrent_fn, num_simulations,
                               invalid_actions, adapt="policy_head")

The examples in the docstrings use 3x3 Hex and small boards of SameGame, and share these names:

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
>>> search = jaxpgs.search.pgs_search(
...     recurrent_fn, 16, adapt="policy_head", simulations_per_update=4
... )
>>> carry = jax.jit(jaxpgs.search.init, static_argnums=0)(search, params, rng_key, root)
>>> output = jax.jit(jaxpgs.search.run, static_argnums=0)(search, params, rng_key, root)
>>> node = jaxpgs.base.NodeStats(
...     prior_logits=jnp.log(jnp.array([[0.5, 0.3, 0.2]])),
...     value=jnp.zeros(1),
...     visits=jnp.array([[2, 1, 0]]),
...     value_sum=jnp.array([[0.4, 0.9, 0.0]]),
...     valid=jnp.ones((1, 3), bool),
... )
"""

import sys
from typing import TYPE_CHECKING, Any

from jaxpgs import adapters, base, envs, networks, puzzles, search
from jaxpgs.adapters import (
    check_model,
    continuous_action,
    make_model_fns,
    make_plan_fn,
    make_playout_fns,
    make_recurrent_fn,
    make_root_fn,
    make_sampled_fns,
    make_stochastic_fns,
)
from jaxpgs.base import PolicyOutput, RecurrentFn, SearchState
from jaxpgs.pretrained import available_pretrained, load_pretrained, save_pretrained
from jaxpgs.puzzles import nrpa_policy
from jaxpgs.search import (
    Search,
    batched_mcts_policy,
    estimate_memory,
    extended_pgs_policy,
    finish,
    gumbel_mcts_policy,
    gumbel_pgs_policy,
    init,
    mcs_policy,
    paper_extended_pgs,
    paper_mcs,
    paper_pgs,
    pgs_policy,
    principal_variation,
    reroot,
    search_for,
    search_summary,
    step,
    stochastic_mcts_policy,
    tree_svg,
)
from jaxpgs.search.parts import (
    backup,
    estimator,
    gumbel,
    reuse,
    selection,
    target,
    truncation,
)

# `import jaxpgs.selection` works too, although the file is in jaxpgs/search/parts.
for _part in (backup, estimator, gumbel, reuse, selection, target, truncation):
    sys.modules["jaxpgs." + _part.__name__.rpartition(".")[2]] = _part

if TYPE_CHECKING:
    from jaxpgs import evaluation, training
    from jaxpgs.play import show


def __getattr__(name: str) -> Any:
    import importlib

    # These modules import the rest of the library, so they are loaded lazily.
    if name in ("evaluation", "training"):
        return importlib.import_module(f"jaxpgs.{name}")
    if name == "show":
        from jaxpgs.play import show

        return show
    if name == "__version__":
        from importlib.metadata import version

        return version("jaxpgs")
    parts = selection, truncation, backup, estimator, target, gumbel, reuse
    for home in (*parts, search, base, puzzles, envs):
        # Names that were here in version 0.1 are still found until version 1.0.
        found = getattr(home, name, None)
        if getattr(found, "__module__", "").startswith("jaxpgs."):
            import warnings

            place = home.__name__.replace("search.parts.", "")
            message = f"jaxpgs.{name} is {place}.{name} now, and goes with version 1.0."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "PolicyOutput",
    "RecurrentFn",
    "Search",
    "SearchState",
    "adapters",
    "available_pretrained",
    "backup",
    "batched_mcts_policy",
    "check_model",
    "continuous_action",
    "envs",
    "estimate_memory",
    "estimator",
    "evaluation",
    "extended_pgs_policy",
    "finish",
    "gumbel",
    "gumbel_mcts_policy",
    "gumbel_pgs_policy",
    "init",
    "load_pretrained",
    "make_model_fns",
    "make_plan_fn",
    "make_playout_fns",
    "make_recurrent_fn",
    "make_root_fn",
    "make_sampled_fns",
    "make_stochastic_fns",
    "mcs_policy",
    "networks",
    "nrpa_policy",
    "paper_extended_pgs",
    "paper_mcs",
    "paper_pgs",
    "pgs_policy",
    "principal_variation",
    "puzzles",
    "reroot",
    "reuse",
    "save_pretrained",
    "search",
    "search_for",
    "search_summary",
    "selection",
    "show",
    "step",
    "stochastic_mcts_policy",
    "target",
    "training",
    "tree_svg",
    "truncation",
]
