"""The players of the benchmarks: searches with a network, described by JSON values."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import mctx
import optax

import jaxpgs
from jaxpgs import evaluation
from jaxpgs.evaluation.searchers import search_player

OPTIMIZERS: dict[str, Any] = {"sgd": optax.sgd, "adam": optax.adam, "auto": jaxpgs.auto_sgd}


class Spec(NamedTuple):
    """One player: a search and its knobs, all of them JSON values."""

    name: str
    search: str
    knobs: Mapping[str, Any] = MappingProxyType({})


# The centre of the sweeps on 7x7 with 256 simulations, each of which moves one knob at a time.
CENTRE: dict[str, Any] = {
    "mode": "cached",
    "c_puct": 0.5,
    "virtual_loss": 1.0,
    "simulations_per_update": 16,
    "count_siblings": False,
}
MCTS = {"c_puct": 0.5, "virtual_loss": 1.0, "simulations_per_update": 16}
STEP = {"step_size": 1e-3, "baseline": "value"}
# What they chose. More simulations allow more of them at once: "full" has K = 16.
TUNED: dict[str, dict[str, Any]] = {
    "mcs": CENTRE,
    "mcts": MCTS | {"simulations_per_update": 4},
    "pgs": CENTRE | STEP | {"simulations_per_update": 4},
    "pgs-uf": CENTRE | {"step_size": 1e-4, "baseline": "value", "mode": "constant"},
    "muzero": {"pb_c_init": 1.25},
}
SEARCHES = (
    Spec("NN", "network"),
    Spec("MCS", "mcs", TUNED["mcs"]),
    Spec("PGS", "pgs", TUNED["pgs"]),
    Spec("PGS-UF", "pgs-uf", TUNED["pgs-uf"]),
    Spec("MCTS", "mcts", TUNED["mcts"]),
    Spec("mctx MuZero", "muzero", TUNED["muzero"]),
    Spec("mctx Gumbel", "gumbel"),
)


def make_player(spec: Spec, network: jaxpgs.pretrained.Pretrained, num_simulations: int) -> Any:
    """Builds a player of `jaxpgs.evaluation` from its description."""
    env, params, apply_fn = network.env, network.params, network.apply_fn
    knobs = dict(spec.knobs)
    num_simulations = knobs.pop("num_simulations", num_simulations)
    if spec.search == "network":
        return evaluation.raw_network(env, apply_fn, params, name=spec.name)
    if spec.search == "muzero":
        policy_fn, knobs = (
            mctx.muzero_policy,
            knobs | {"dirichlet_fraction": 0.0, "temperature": 0.0},
        )
    elif spec.search == "gumbel":
        policy_fn, knobs = mctx.gumbel_muzero_policy, {"gumbel_scale": 0.0} | knobs
    else:
        bandit = {k: knobs.pop(k) for k in ("c_puct", "virtual_loss", "unvisited") if k in knobs}
        pb_c_init = knobs.pop("pb_c_init", None)
        knobs["root_selection"] = (
            jaxpgs.puct(**bandit) if pb_c_init is None else jaxpgs.muzero_puct(pb_c_init)
        )
        knobs["truncation"] = jaxpgs.until_new(count_siblings=knobs.pop("count_siblings", False))
        knobs["target"] = jaxpgs.visit_counts(0.0)
        policy_fn = jaxpgs.mcs_policy
        if spec.search == "mcts":
            policy_fn = jaxpgs.batched_mcts_policy
    if spec.search in ("pgs", "pgs-uf"):
        head = jaxpgs.networks.policy_head(params)
        knobs["adapt"] = head if spec.search == "pgs" else jax.tree.map(lambda _: True, head)
        make_optimizer = OPTIMIZERS[knobs.pop("optimizer", "sgd")]
        knobs["optimizer"] = make_optimizer(knobs.pop("step_size"))
        knobs["estimator"] = jaxpgs.reinforce(knobs.pop("baseline", "none"))
        policy_fn = jaxpgs.pgs_policy
    return search_player(env, apply_fn, params, policy_fn, num_simulations, name=spec.name, **knobs)
