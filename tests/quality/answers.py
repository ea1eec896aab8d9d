"""Compares the answers of two versions of the library: same keys, same parts, every preset.

    python tests/quality answers --out new.npz                     # in one checkout
    python tests/quality answers --out old.npz                     # in another one
    python tests/quality answers --compare old.npz new.npz         # a table of differences

It uses only what both versions know, so that it can be copied into an older checkout. Every case
names its bound on the depth, its backup and its K, whose defaults have changed. Differences that
are wanted are listed in `WANTED`, with their reason.
"""

import argparse
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpgs

FIELDS = (
    "visits", "qvalues", "value", "num_evaluations", "num_calls", "depth", "entropy",
    "gradient_norm", "skipped_updates",
)  # fmt: skip
# Compiles in half the time. Both versions must be compiled with the same `XLA_FLAGS`, too.
QUICK = {"xla_backend_optimization_level": 0}
# A part of a case's name and a field -> the largest difference that is wanted, and why.
_LAST_BIT = "the same numbers, summed in another order: the last bit"
_DEFERRED = "a state in which a simulation stops is evaluated at once, not at the end"
_SLOTS = "a capacity counts simulations, not different states"
WANTED = {
    ("", "qvalues"): (1e-5, _LAST_BIT),
    ("", "value"): (1e-5, _LAST_BIT),
    ("", "entropy"): (1e-5, _LAST_BIT),
    ("", "gradient_norm"): (1e-4, _LAST_BIT),
    ("", "params"): (1e-5, _LAST_BIT),
    ("", "weights"): (1e-5, _LAST_BIT),
    ("by_visits", "num_calls"): (np.inf, _DEFERRED),
    ("by_probability", "num_calls"): (np.inf, _DEFERRED),
    ("growing", "num_calls"): (np.inf, _DEFERRED),
    ("capacity", ""): (np.inf, _SLOTS),
}


def setting() -> Any:
    """The shipped network of 5x5 Hex, and positions from the opening to a finished game."""
    net = jaxpgs.load_pretrained("hex-5x5-early")
    state = jax.vmap(net.env.init)(jax.random.split(jax.random.key(0), 6))
    moves = np.random.default_rng(1).permuted(np.tile(np.arange(25), (6, 1)), axis=1)
    step = jax.jit(jax.vmap(net.env.step))
    for t in range(25):
        after = step(state, jnp.asarray(moves[:, t], jnp.int32))
        goes_on = np.array([t < plies for plies in (0, 2, 5, 9, 13, 25)]) & ~state.terminated
        state = jax.tree.map(
            lambda new, old, on=goes_on: jnp.where(on.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            after,
            state,
        )
    return net, state


def cases(net: Any) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """The name, the preset and the knobs of every case."""
    # Defaults may differ between versions, so everything is said.
    base = {
        "max_depth": 16, "simulations_per_update": 8, "backup": jaxpgs.n_step(),
        "root_selection": jaxpgs.puct(5.0), "target": jaxpgs.visit_counts(),
    }  # fmt: skip
    head = {
        "adapt": jaxpgs.networks.policy_head(net.params), "estimator": jaxpgs.reinforce(),
    }  # fmt: skip
    head["interior_selection"] = None
    learn = head | {"optimizer": optax.sgd(0.02)}
    rules = {
        "fixed": jaxpgs.fixed(4),
        "growing": jaxpgs.growing(1, every=16),
        "by_visits": jaxpgs.by_visits(2.0),
        "by_probability": jaxpgs.by_probability(0.01),
        "until_new": jaxpgs.until_new(),
    }
    for mode in ("constant", "cached"):
        for name, rule in rules.items():
            yield f"pgs {mode} {name}", jaxpgs.pgs_policy, base | learn | {
                "mode": mode, "truncation": rule,
            }  # fmt: skip
        yield f"mcs {mode}", jaxpgs.mcs_policy, base | {"mode": mode}
        yield f"pgs {mode} auto_sgd", jaxpgs.pgs_policy, base | head | {"mode": mode}
        for baseline in ("value", "root", "mean"):
            yield f"pgs {mode} {baseline}", jaxpgs.pgs_policy, base | learn | {
                "mode": mode, "estimator": jaxpgs.reinforce(baseline, normalize=baseline == "mean"),
            }  # fmt: skip
        yield f"pgs {mode} adam", jaxpgs.pgs_policy, base | learn | {
            "mode": mode, "optimizer": optax.adam(1e-2), "backup": jaxpgs.last_value(),
        }  # fmt: skip
        yield f"mcs {mode} dirichlet", jaxpgs.mcs_policy, base | {
            "mode": mode, "dirichlet_fraction": 0.25, "dirichlet_alpha": 0.3,
        }  # fmt: skip
        yield f"mcs {mode} dirichlet completed_q", jaxpgs.mcs_policy, base | {
            "mode": mode, "dirichlet_fraction": 0.25, "target": jaxpgs.completed_q(),
        }  # fmt: skip
        yield f"mcs {mode} completed_q", jaxpgs.mcs_policy, base | {
            "mode": mode, "target": jaxpgs.completed_q(),
        }  # fmt: skip
    yield "pgs constant everything", jaxpgs.pgs_policy, base | {
        "adapt": "everything", "optimizer": optax.sgd(1e-4),
        "estimator": jaxpgs.reinforce(), "mode": "constant",
    }  # fmt: skip
    selections = {
        "puct": jaxpgs.puct(1.0, virtual_loss=0.5, unvisited="value"),
        "puct without loss": jaxpgs.puct(1.0, virtual_loss=None),
        "ucb1": jaxpgs.ucb1(),
        "muzero_puct": jaxpgs.muzero_puct(),
        "max_min_puct": jaxpgs.max_min_puct(),
        "max_min_puct returns": jaxpgs.max_min_puct(bounds="returns"),
    }
    for name, selection in selections.items():
        yield f"mcts {name}", jaxpgs.batched_mcts_policy, base | {"root_selection": selection}
        yield f"mcs cached {name}", jaxpgs.mcs_policy, base | {
            "mode": "cached", "root_selection": selection,
        }  # fmt: skip
    several = base | {"backup": jaxpgs.td_lambda(0.8), "simulations_per_update": 7}
    reads = {"interior_selection": jaxpgs.improved_policy(temperature=0.7)}
    counts = {"interior_selection": jaxpgs.improved_policy(by_counts=True)}
    terms = jaxpgs.regularized(
        jaxpgs.reinforce("value"), entropy=0.1, kl_to_prior=0.2, kl_from_prior=0.05
    )
    for mode in ("constant", "cached"):
        yield f"pgs {mode} terms", jaxpgs.pgs_policy, several | head | {
            "mode": mode, "estimator": terms,
        }  # fmt: skip
        for name, reuse in {
            "ring": jaxpgs.Reuse(3), "ppo": jaxpgs.Reuse(2, num_epochs=2, clip=0.2),
        }.items():  # fmt: skip
            yield f"pgs {mode} {name}", jaxpgs.pgs_policy, base | head | {
                "mode": mode, "reuse": reuse,
            }  # fmt: skip
    yield "pgs drawn", jaxpgs.pgs_policy, several | head | reads
    yield "pgs by counts", jaxpgs.pgs_policy, several | head | counts | {"estimator": terms}
    yield "pgs capacity", jaxpgs.pgs_policy, base | learn | {"capacity": 11, "mode": "cached"}
    yield "pgs default", jaxpgs.pgs_policy, {"max_depth": None, "adapt": "policy_head"}
    yield "gumbel pgs default", jaxpgs.gumbel_pgs_policy, {
        "max_depth": None, "adapt": "policy_head",
    }  # fmt: skip
    yield "extended default", jaxpgs.extended_pgs_policy, {
        "max_depth": None, "adapt": "policy_head",
    }  # fmt: skip
    yield "extended paper", jaxpgs.extended_pgs_policy, {
        "max_depth": None, "adapt": "policy_head.linear", **jaxpgs.paper_extended_pgs(),
    }  # fmt: skip
    yield "mcs default", jaxpgs.mcs_policy, {"max_depth": None}
    yield "mcts default", jaxpgs.batched_mcts_policy, {"max_depth": None}
    yield "gumbel mcts default", jaxpgs.gumbel_mcts_policy, {"max_depth": None}
    yield "gumbel mcts one at a time", jaxpgs.gumbel_mcts_policy, {
        "max_depth": None, "simulations_per_update": 1,
    }  # fmt: skip
    yield "mcts", jaxpgs.batched_mcts_policy, base
    yield "mcts one at a time", jaxpgs.batched_mcts_policy, base | {"simulations_per_update": 1}
    yield "mcts best_value", jaxpgs.batched_mcts_policy, base | {"target": jaxpgs.best_value()}


def answer(output: Any) -> dict[str, np.ndarray]:
    """The numbers of an answer, by name."""
    state = output.search_state
    found = {name: getattr(state, name) for name in FIELDS}
    found |= {"action": output.action, "weights": output.action_weights}
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    found |= {f"params{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    return {name: np.asarray(x) for name, x in found.items()}


def collect(count: int = 48) -> dict[str, np.ndarray]:
    """Runs all cases; two searches in a row where nodes and heads are kept."""
    net, state = setting()
    root_fn = jaxpgs.make_root_fn(net.env, net.apply_fn)
    recurrent_fn = jaxpgs.make_recurrent_fn(net.env, net.apply_fn)
    keys = jax.random.split(jax.random.key(7), 6)
    found: dict[str, np.ndarray] = {}

    def search(params: Any, keys: Any, state: Any, policy: Any, knobs: Any, **kept: Any) -> Any:
        root = root_fn(params, keys, state)
        invalid = ~state.legal_action_mask
        knobs = dict(knobs)
        depth = knobs.pop("max_depth")
        return policy(params, keys, root, recurrent_fn, count, invalid, depth, **knobs, **kept)

    def note(name: str, function: Callable[..., Any]) -> None:
        start = time.perf_counter()
        outputs = jax.jit(function, compiler_options=QUICK)(net.params, keys, state)
        for i, output in enumerate(outputs):
            found.update({f"{name} {i}|{field}": x for field, x in answer(output).items()})
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)

    for name, policy, knobs in cases(net):
        note(name, lambda p, k, s, a=policy, b=knobs: [search(p, k, s, a, b)])

    def in_a_row(policy: Any, knobs: Any, params: Any, keys: Any, state: Any) -> Any:
        one = search(params, keys, state, policy, knobs)
        nodes = jaxpgs.reroot(one.search_state.nodes, one.action, num_kept=20)
        kept = {"nodes": nodes}
        if "adapt" in knobs:
            kept["adapted_params"] = one.search_state.params
        after = jax.vmap(net.env.step)(state, one.action)
        return [one, search(params, keys, after, policy, knobs, **kept)]

    known = {name: (policy, knobs) for name, policy, knobs in cases(net)}
    rows = {"kept tree": known["mcts"], "kept nodes and head": known["pgs cached until_new"]}
    for name, (policy, knobs) in rows.items():
        note(name, lambda *data, a=policy, b=knobs: in_a_row(a, b, *data))
    return found


def compare(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> list[tuple[str, str, str]]:
    """Lists what differs: case and field, by how much, and why if it is wanted."""
    rows = []
    for key in sorted(set(old) | set(new)):
        case, field = key.split("|")
        if key not in old or key not in new:
            rows.append((key, "only in one", ""))
            continue
        if np.array_equal(old[key], new[key], equal_nan=True):
            continue
        finite = np.isfinite(old[key]) & np.isfinite(new[key])
        size = np.max(np.abs(np.where(finite, old[key] - new[key], 0.0)), initial=0.0)
        fits = [w for (c, f), w in WANTED.items() if c in case and field.startswith(f)]
        reason = next((why for most, why in fits if size <= most), "")
        rows.append((key, f"{size:.2g}", reason))
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each reason why arrays differ."""
    reasons = [row["reason"] or "not explained" for row in rows]
    return ["why", "arrays"], [[why, reasons.count(why)] for why in sorted(set(reasons))]


def main(argv: list[str] | None = None) -> None:
    """Runs the comparison; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python tests/quality answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=pathlib.Path, help="where to write the answers")
    parser.add_argument("--compare", type=pathlib.Path, nargs=2, metavar=("OLD", "NEW"))
    parser.add_argument("--change", default="a change", help="what lies between the versions")
    parser.add_argument("--record", type=pathlib.Path, help="where to write what differs")
    args = parser.parse_args(argv)
    if args.out:
        np.savez_compressed(args.out, allow_pickle=False, **collect())
    if args.compare:
        old, new = (dict(np.load(path)) for path in args.compare)
        rows = compare(old, new)
        unexplained = [row for row in rows if not row[2]]
        for key, size, reason in unexplained or rows:
            print(f"{key:60} {size:12} {reason}")
        print(f"{len(old)} arrays, {len(rows)} differ, {len(unexplained)} without a reason.")
        if args.record:
            from benchmarks import runs  # here, as an older checkout may lack it

            args.again = False
            args.record.unlink(missing_ok=True)  # a comparison is of all arrays
            setting = {"change": args.change}
            record = runs.open_record(parser, args, setting, ("array",), args.record)
            names = ("array", "largest", "reason")
            differences = [dict(zip(names, row, strict=True)) for row in rows]
            runs.add(record, *differences, arrays=len(old))
        if unexplained:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
