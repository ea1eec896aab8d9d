"""The players of the benchmarks: searches with a network, described by JSON values.

A search without knobs is the preset with its defaults. All players play at full strength: the best
action, without noise at the root unless a knob enables it.
"""

import functools
import inspect
import itertools
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
from flax import nnx

import jaxpgs
from benchmarks.parts import put_learning, put_parts
from jaxpgs import evaluation
from jaxpgs.evaluation.players.searchers import search_player
from jaxpgs.search import default_num_considered, default_simulations_per_update
from jaxpgs.search.parts.gumbel import rounds

# Our searches: their names in specs, and their presets.
OURS = {
    "mcs": "mcs", "pgs": "pgs", "pgs-uf": "pgs", "mcts": "batched_mcts",
    "gumbel-mcs": "mcs", "gumbel-pgs": "gumbel_pgs", "gumbel-mcts": "gumbel_mcts",
    "extended": "extended_pgs",
}  # fmt: skip
LEARNING = ("pgs", "gumbel_pgs", "extended_pgs")
MCTX = {"muzero": mctx.muzero_policy, "gumbel": mctx.gumbel_muzero_policy}


_SIGMA = ("value_scale", "maxvisit_init")  # of the transform of Q-values, here and in mctx
SIMPLE = ("network", "random", "gtp")  # players that do not search, or not with our networks
_CONSIDERED = 16  # mctx's own max_num_considered_actions


class Spec(NamedTuple):
    """One player: a search and its knobs, all of them JSON values.

    Every search has the knobs `num_simulations`; `network`, a name that replaces the tournament's;
    and `plans_with`: "rules", or "model" if it plans with its network, a learned model, and uses
    the rules only at the root.
    """

    name: str
    search: str
    knobs: Mapping[str, Any] = MappingProxyType({})


# The centre of the sweeps on 7x7 with 256 simulations, each of which varies one knob at a time.
# Files of results contain these words, including former names: "cached" is "tree", "constant" is
# "rollouts".
CENTRE: dict[str, Any] = {
    "mode": "cached",
    "c_puct": 0.5,
    "virtual_loss": 1.0,
    "simulations_per_update": 16,
    "count_siblings": False,
}
MCTS = {"c_puct": 0.5, "virtual_loss": 1.0, "simulations_per_update": 16}
# Without an interior selection, the default when these were tuned.
STEP: dict[str, Any] = {"step_size": 1e-3, "baseline": "value", "interior_selection": None}
# The result of the sweeps. More simulations allow a larger K: "full" has K = 16.
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
# Every search with its defaults; mctx's Gumbel search also with its noise, and with as many actions
# at the root as Gumbel PGS, whose number was tuned.
FEWER = Spec(
    "mctx Gumbel, fewer actions", "gumbel", {"max_num_considered_actions": "as Gumbel PGS"}
)
DEFAULTS = (
    Spec("MCS default", "mcs"),
    Spec("mctx Gumbel", "gumbel"),
    FEWER,
    Spec("NN", "network"),
    Spec("PGS default", "pgs"),
    Spec("Gumbel PGS default", "gumbel-pgs"),
    Spec("MCTS default", "mcts"),
    Spec("Gumbel MCTS default", "gumbel-mcts"),
    Spec("Gumbel MCS", "gumbel-mcs"),
    Spec("mctx MuZero", "muzero"),
    Spec("mctx Gumbel noise", "gumbel", {"gumbel_scale": 1.0}),
)


def distinct(specs: Sequence[Spec], num_simulations: int) -> list[Spec]:
    """Returns the players, without `FEWER` if it has no fewer actions at this many simulations."""
    fewer = default_num_considered(num_simulations) < _CONSIDERED
    return [spec for spec in specs if fewer or spec != FEWER]


def read_specs(text: str) -> list[Spec]:
    """Reads players from a line such as `pgs step_size=1,3 simulations_per_update=8`.

    Args:
      text: `[NAME:] SEARCH [KNOB=VALUE[,VALUE...] ...]`; values are JSON or else strings.

    Returns:
      One spec for each combination of the values, named after the knobs that vary.

    Raises:
      ValueError: if the search is unknown or a word is not a knob.
    """
    name, _, rest = text.rpartition(":")
    search, *words = rest.split()
    known = (*SIMPLE[:2], *OURS, *MCTX)  # a GTP command cannot be a word of a line
    if search not in known:
        raise ValueError(f"Unknown search {search!r} in {text!r}; known are {', '.join(known)}.")
    if bad := [word for word in words if "=" not in word]:
        raise ValueError(f"Knobs are KNOB=VALUE[,VALUE...], got {bad[0]!r} in {text!r}.")
    knobs = {knob: values.split(",") for knob, values in (w.split("=", 1) for w in words)}
    specs = []
    for chosen in itertools.product(*knobs.values()):
        named = [f"{k}={v}" for k, v in zip(knobs, chosen, strict=True)
                 if not name.strip() or len(knobs[k]) > 1]  # fmt: skip
        values = {k: _value(v) for k, v in zip(knobs, chosen, strict=True)}
        specs.append(Spec(" ".join([name.strip() or search, *named]), search, values))
    return specs


def load_network(name: str) -> Any:
    """Returns env, params, apply_fn and card of a network.

    Args:
      name: a pretrained network, a saved one with its folder, or one with random weights, whose
        almost uniform policy makes walks short: `conv-7x7-32x4-bfloat16` has 32 filters and 4
        blocks on 7x7 and computes in bfloat16; `model-5x5-8x1` is value-equivalent.
    """
    folder, _, last = name.rpartition("/")
    if last in jaxpgs.available_pretrained(folder or None):
        return jaxpgs.load_pretrained(last, directory=folder or None)
    try:
        kind, board, shape, *rest = name.split("-")
        kinds = {"conv": "AlphaZeroResNet", "model": "ValueEquivalentModel"}
        make = getattr(jaxpgs.networks, kinds[kind])
        filters, blocks = (int(number) for number in shape.split("x"))
        env = jaxpgs.envs.Hex(size=int(board.split("x")[0]))
        (dtype,) = rest or ["float32"]
    except (KeyError, TypeError, ValueError) as error:
        names = ", ".join(jaxpgs.available_pretrained())
        raise SystemExit(
            f"Unknown network {name!r}; take one of {names}, or conv-7x7-32x4 and the like."
        ) from error
    observed = jax.eval_shape(lambda: env.observe(env.init()))
    module = make(
        observed.shape,
        env.num_actions,
        num_filters=filters,
        num_blocks=blocks,
        dtype=jnp.dtype(dtype),
        rngs=nnx.Rngs(0),
    )
    module.eval()
    params, apply_fn = jaxpgs.networks.functional(module)
    return SimpleNamespace(
        env=env, module=module, params=params, apply_fn=apply_fn, card={"sha256": None}
    )


def make_player(spec: Spec, network: Any, num_simulations: int) -> evaluation.Player:
    """Builds a player of `jaxpgs.evaluation` from its description.

    Args:
      spec: the search and its knobs.
      network: with `env`, `params` and `apply_fn`.
      num_simulations: N, unless a knob of this name overrides it.

    Returns:
      The player.
    """
    network = _network(spec, network)
    env, params, apply_fn = network.env, network.params, network.apply_fn
    if spec.search == "network":
        return evaluation.raw_network(env, apply_fn, params, name=spec.name)
    if spec.search == "random":
        return evaluation.uniform_random(env, name=spec.name)
    if spec.search == "gtp":
        return evaluation.gtp_player(env, spec.knobs["command"], name=spec.name)
    knobs = arguments(spec, params, num_simulations)
    num_simulations = spec.knobs.get("num_simulations", num_simulations)
    if spec.search in MCTX:
        policy_fn = MCTX[spec.search]
    else:
        policy_fn = getattr(jaxpgs, f"{OURS[spec.search]}_policy")
    # MuZero's search breaks ties at random, and sampled simulations are random throughout.
    silent = spec.search in ("gumbel", "gumbel-mcts") and knobs["gumbel_scale"] == 0
    return search_player(
        env, apply_fn, params, policy_fn, num_simulations, name=spec.name,
        deterministic=silent or spec.search == "mcts", model_fns=model_fns(spec, network), **knobs,
    )  # fmt: skip


def _network(spec: Spec, network: Any) -> Any:
    """The network of a player: the one of its knobs, or otherwise the tournament's."""
    name = spec.knobs.get("network")
    return network if name is None else load_network(name)


def model_fns(spec: Spec, network: Any) -> tuple[Any, Any]:
    """Returns the functions that a player plans with: `root_fn` and `recurrent_fn`.

    Args:
      spec: the player.
      network: the player's network.

    Raises:
      ValueError: if its knob `plans_with` is neither "model" nor "rules".
    """
    plans_with = spec.knobs.get("plans_with", "rules")
    if plans_with == "model":
        return jaxpgs.make_model_fns(network.module, network.env)
    if plans_with != "rules":
        raise ValueError(f"A search plans with 'model' or 'rules', got {plans_with!r}.")
    rules = (network.env, network.apply_fn)
    return jaxpgs.make_root_fn(*rules), jaxpgs.make_recurrent_fn(*rules)


def describe(spec: Spec, network: Any, num_simulations: int) -> dict[str, Any]:
    """Returns a player's entries in tables: simulations N, K, the depth limit and the mode.

    Raises:
      TypeError: if the search has no such knob.
    """
    count = spec.knobs.get("num_simulations", num_simulations)
    if spec.search in SIMPLE:
        return {"simulations": None, "K": None, "depth": None, "mode": None}
    network = _network(spec, network)
    knobs = arguments(spec, network.params, num_simulations)
    knobs.pop("keep_adapted", None)
    if spec.search in MCTX:
        inspect.signature(MCTX[spec.search]).bind_partial(**knobs)  # mctx has no check of its own
        depth = spec.knobs.get("max_depth")
        return {"simulations": count, "K": 1, "depth": depth, "mode": "tree"}
    make_search = getattr(jaxpgs.search, f"{OURS[spec.search]}_search")
    search = make_search(model_fns(spec, network)[1], count, **knobs)
    bound = search.truncation.max_depth
    depth = (
        search.max_depth or (bound and bound(count)) or (16 if search.mode == "rollouts" else None)
    )
    return {
        "simulations": count,
        "K": max(search.widths),
        "depth": depth,
        "mode": search.mode,
    }


def arguments(spec: Spec, params: Any, num_simulations: int) -> dict[str, Any]:
    """Translates a spec's knobs into arguments of its search; others keep their defaults."""
    knobs = dict(spec.knobs)
    count = knobs.pop("num_simulations", num_simulations)
    for name in ("network", "plans_with"):
        knobs.pop(name, None)
    if spec.search in MCTX:
        scale = {k: knobs.pop(k) for k in (*_SIGMA, "epsilon") if k in knobs}
        if scale:
            transform = mctx.qtransform_completed_by_mix_value
            knobs["qtransform"] = functools.partial(transform, **scale)
        elif knobs.get("qtransform") == "by_min_max":  # game values are from -1 to 1
            transform = mctx.qtransform_by_min_max
            knobs["qtransform"] = functools.partial(transform, min_value=-1.0, max_value=1.0)
        if knobs.get("max_num_considered_actions") == "as Gumbel PGS":
            knobs["max_num_considered_actions"] = default_num_considered(count)
        if spec.search == "muzero":
            return {"dirichlet_fraction": 0.0, "temperature": 0.0} | knobs
        return {"gumbel_scale": 0.0} | knobs
    if knobs.get("simulations_per_update") == "as rounds":  # as many sequential calls as in rounds
        most = default_num_considered(count) if spec.search == "gumbel-pgs" else _CONSIDERED
        calls = len(rounds(knobs.get("max_num_considered_actions", most), count))
        knobs["simulations_per_update"] = round(count / calls)
    _selection(spec, knobs, count)
    put_parts(knobs)
    if OURS[spec.search] in LEARNING:
        extended = spec.search == "extended"
        head = jaxpgs.networks.policy_head(params, knobs.pop("head", "head"))
        knobs["adapt"] = "everything" if spec.search == "pgs-uf" else head
        put_learning(knobs, regularize=not extended)
    return knobs


def with_count(spec: Spec, count: int) -> Spec:
    """Returns a spec with this many simulations."""
    return spec._replace(knobs={**spec.knobs, "num_simulations": count})


def with_parallel(spec: Spec, network: Any, num_simulations: int) -> Spec:
    """Returns a spec whose K is fixed to its value at this many simulations.

    The default of K is a rounded share of N. While N is fitted to a budget, time would jump with K.
    """
    if spec.search not in OURS:
        return spec
    parallel = describe(spec, network, num_simulations)["K"]
    return spec._replace(knobs={"simulations_per_update": parallel, **spec.knobs})


def _selection(spec: Spec, knobs: dict[str, Any], num_simulations: int) -> None:
    """Replaces the knobs that describe selections by the selections."""
    bandit = {k: knobs.pop(k) for k in ("c_puct", "virtual_loss", "unvisited") if k in knobs}
    if "pb_c_init" in knobs:
        knobs["root_selection"] = jaxpgs.selection.muzero_puct(knobs.pop("pb_c_init"))
    elif bandit:
        knobs["root_selection"] = jaxpgs.selection.puct(**bandit)
    of_policy = ("scale", "temperature", "by_counts")
    improved = {k: knobs.pop(k) for k in of_policy if k in knobs}
    scale = {k: knobs.pop(k) for k in _SIGMA if k in knobs}
    if "min_range" in knobs:
        scale["epsilon"] = knobs.pop("min_range")
    if scale:
        transform = jaxpgs.target.qtransform_completed_by_mix_value
        improved["qtransform"] = functools.partial(transform, **scale)
    if spec.search in ("gumbel-pgs", "gumbel-mcts"):
        knobs.setdefault("gumbel_scale", 0.0)
    if spec.search == "gumbel-mcs":
        considered = knobs.pop("max_num_considered_actions", _CONSIDERED)
        scale = knobs.pop("gumbel_scale", 0.0)
        knobs["root_selection"] = jaxpgs.gumbel.gumbel_root(considered, scale)
        knobs["target"] = jaxpgs.gumbel.gumbel_target()
        knobs["mode"] = "tree"
        knobs.setdefault("simulations_per_update", default_simulations_per_update(num_simulations))
        improved.setdefault("temperature", 0.5)  # sampled: by counts it would be Gumbel MCTS
    if improved:
        knobs["interior_selection"] = jaxpgs.target.improved_policy(**improved)


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("None", "True", "False") else text)
    except json.JSONDecodeError:
        return None if text == "None" else text
