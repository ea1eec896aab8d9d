"""Do the tests notice a mistake? Breaks the search core in many small ways, one at a time.

    python -m benchmarks.mutations
    python -m benchmarks.mutations --only "gumbel|auto_sgd"

Each `Mutation` replaces a piece of text in a temporary copy of the repository and runs the tests
that should fail there, the fewest that do. It fails, with exit status 1, if a mutation survives, if
its text is not in its file exactly once, as after a change of the code, or if the tests fail
without it. The record is `benchmarks/results/mutations.json`, where the mutations of `--only`
replace their own rows. All take ten minutes on one core.
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import report, runs

ROOT = pathlib.Path(__file__).resolve().parent.parent
_TIMEOUT = 600  # seconds
_CAUGHT, _SURVIVED = "caught", "SURVIVED"
_GONE, _BROKEN = "no longer applies", "no test ran to its end"


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A mistake and the tests that should notice it.

    Attributes:
      name: what is wrong after it.
      file: the file, seen from `jaxpgs/search`.
      old: text that stands there once.
      new: what replaces it.
      match: which tests to run, as pytest's `-k`.
      test: the file that they are in, below `tests`.
    """

    name: str
    file: str
    old: str
    new: str
    match: str
    test: str = "test_guards.py"


_OBJECTIVES, _OFFSETS = "../training/objectives.py", "../networks/offsets.py"
_PLAYOUTS, _SELFPLAY, _REPLAY = "../playouts.py", "../training/selfplay.py", "../training/replay.py"
_LOOP, _LEARNING = "loop.py", "learning.py"
_MCS, _MCTS, _PGS = "presets/mcs.py", "presets/mcts.py", "presets/pgs.py"
_DEFAULTS, _GUMBEL_PRESETS, _MEMORY = "presets/defaults.py", "presets/gumbel.py", "memory.py"
_SELECTION, _TARGET, _GUMBEL = "parts/selection.py", "parts/target.py", "parts/gumbel.py"
_STEP, _ESTIMATOR = "parts/step_size.py", "parts/estimator.py"
_CONSTANT, _CACHED, _NODES = "simulators/constant.py", "simulators/cached.py", "simulators/nodes.py"

MUTATIONS = (
    # What is counted.
    Mutation(
        "constant: calls are computed from the bound", _CONSTANT,
        "num_calls=end.num_calls,", "num_calls=end.num_calls * 0 + len(uniform),", "calls_are",
    ),
    Mutation(
        "constant: the model is called when all have stopped", _CONSTANT,
        "jnp.any(rollouts.path.alive),\n", "jnp.any(rollouts.path.alive | True),\n", "calls_are",
    ),
    Mutation(
        "constant: an evaluation too many", _CONSTANT,
        "num_evaluations=jnp.sum(end.path.depth, axis=-1),",
        "num_evaluations=jnp.sum(end.path.depth, axis=-1) + 1,", "calls_are",
    ),
    Mutation(
        "cached: a call is counted that nobody wanted", _CACHED,
        "called = jnp.any(wanted).astype(jnp.int32)\n",
        "called = jnp.any(wanted | True).astype(jnp.int32)\n", "bound_ended and cached",
    ),
    Mutation(
        "constant: limited though it stopped by itself", _CONSTANT,
        "(alive & at_limit & ~own_end)", "(alive & at_limit)", "bound_ended and constant",
    ),
    Mutation(
        "cached: limited though it stopped by itself", _CACHED,
        "(alive & at_limit & ~own_end & ~over)", "(alive & at_limit & ~over)",
        "bound_ended and cached",
    ),
    Mutation(
        "cached: limited though the episode ended", _CACHED,
        "(alive & at_limit & ~own_end & ~over)", "(alive & at_limit & ~own_end)",
        "bound_ended and cached",
    ),
    Mutation(
        "the share of the limited is of the updates", _LOOP,
        "depth_limited=_mean(totals.limited, totals.simulations),",
        "depth_limited=_mean(totals.limited, carry.num_updates),", "bound_ended and constant",
    ),
    Mutation(
        "constant: another bound by default", _CONSTANT,
        "DEFAULT_MAX_DEPTH = 16", "DEFAULT_MAX_DEPTH = 17", "estimate_of_the_constant",
    ),
    # The best state.
    Mutation(
        "best_of: an equal state takes the place", _LOOP,
        "jnp.max(scores, axis=1) > best_of(best)", "jnp.max(scores, axis=1) >= best_of(best)",
        "bound_ended and constant",
    ),
    Mutation(
        "best_of: not the best of the update", _LOOP,
        "first = jnp.argmax(scores, axis=1)", "first = jnp.argmin(scores, axis=1)",
        "optimizers_state",
    ),
    Mutation(
        "best_of: only the last update's", _LOOP,
        "best = _better(search.best_of, best, trajectory.last)",
        "best = jax.tree.map(lambda x: x[:, 0], trajectory.last)", "bound_ended and constant",
    ),
    Mutation(
        "best_of, constant: states after the stop", _CONSTANT,
        "embedding = trees.where(alive, embedding, rollouts.embedding)", "pass", "calls_are",
    ),
    Mutation(
        "best_of, cached: the first state, not the last", _CACHED,
        "jnp.max(jnp.where(alive, visited, 0), axis=0)", "visited[0]", "bound_ended and cached",
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
        "the norm at the logits is another", "simulators/terms.py",
        "return -jnp.expm1(log_prob)", "return -log_prob", "optimizers_state",
    ),
    Mutation(
        "auto_sgd forgets the logits' squares", _STEP,
        "AutoState(square, state.logit_square + logit_square,", "AutoState(square, logit_square,",
        "auto_sgd",
    ),
    Mutation(
        "auto_sgd forgets the parameters' squares", _STEP,
        "square = state.parameter_square + now", "square = now", "auto_sgd",
    ),
    Mutation(
        "auto_sgd has no bound", _STEP,
        "jnp.minimum(state.longest / length, 1.0)", "1.0", "auto_sgd",
    ),
    Mutation(
        "auto_sgd lengthens short steps", _STEP,
        "jnp.minimum(state.longest / length, 1.0)", "(state.longest / length)", "auto_sgd",
    ),
    Mutation(
        "auto_sgd's bound of 1 is gone", _STEP,
        "jnp.maximum(optax.tree.norm(params), 1.0)", "optax.tree.norm(params)", "auto_sgd",
    ),
    Mutation(
        "auto_sgd's bound is always 1", _STEP,
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
        "another target", _MCS, "temperature=0.0)", "temperature=1.0)",
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
        "another estimator", _PGS,
        'estimator or reinforce("value")', "estimator or reinforce()", "defaults_of",
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
        ", improved_policy(by_counts=True))", ", improved_policy())", "defaults_of",
    ),
    Mutation(
        "by counts: simulations in flight are not counted", "simulators/tree.py",
        "alive[:, k].astype(visits.dtype)), action", "0.0), action", "followed_by_counts",
    ),
    Mutation(
        "by counts: visits are not counted", "simulators/tree.py",
        "scores = own - taken /", "scores = own - 0 * taken /", "followed_by_counts",
    ),
    Mutation(
        "extended PGS: the thesis's settings read the nodes", "presets/extended.py",
        '"interior_selection": None,', "", "settings_of_the_thesis",
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
        "gumbel_inner())", "gumbel_inner(value_scale=1.0))", "defaults_of",
    ),
    Mutation(
        "Gumbel: another sigma in the target", _GUMBEL_PRESETS,
        "gumbel_target(),", "gumbel_target(maxvisit_init=1.0),", "defaults_of",
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
    # Trees that go on.
    Mutation(
        "a kept root's returns change sign", _NODES,
        "value_sum=jnp.where(known, value_sum, 0.0)", "value_sum=jnp.where(known, -value_sum, 0.0)",
        "kept_root",
    ),
    Mutation(
        "kept nodes' returns change sign", _NODES,
        "jnp.where(used, rows.value_sum, 0.0)", "jnp.where(used, -rows.value_sum, 0.0)",
        "kept_root",
    ),
    Mutation(
        "a kept root starts from nothing", _LOOP,
        "if nodes is not None and search.interior_selection is not None:", "if False:", "kept_root",
    ),
    Mutation(
        "a kept root counts what is forbidden now", _LOOP,
        "jnp.where(stats.valid, getattr(known, n), getattr(stats, n))", "getattr(known, n)",
        "forbidden",
    ),
    Mutation(
        "a kept root forgets its visits", _LOOP,
        '("visits", "value_sum", *', '("value_sum", *', "kept_root",
    ),
    Mutation(
        "a kept root's range is upside down", _NODES,
        "take((nodes.lowest, nodes.highest), child)", "take((nodes.highest, nodes.lowest), child)",
        "kept_root",
    ),
    Mutation(
        "nodes' ranges include 0", _NODES,
        "low(jnp.where(tried, nodes.lowest, jnp.inf), visited", "low(nodes.lowest, visited",
        "behind_the_limit",
    ),
    Mutation(
        "the root's range is the last update's", _LOOP,
        "lowest=jnp.minimum(stats.lowest, lowest)", "lowest=lowest", "kept_root",
    ),
    Mutation(
        "the root's range is upside down", _LOOP,
        "highest=jnp.maximum(stats.highest, highest)",
        "highest=jnp.minimum(stats.highest, highest)",
        "returns_of_one_update",
    ),
    Mutation(
        "the root's range is one simulation's", _LOOP,
        "jnp.min(jnp.where(taken, returned, jnp.inf), axis=1)",
        "jnp.where(taken, returned, jnp.inf)[:, 0]", "returns_of_one_update",
    ),
    Mutation(
        "simulations beyond the budget count", _LOOP,
        "chosen = jnp.where(started[:, :, None], chosen, 0.0)", "pass", "returns_of_one_update",
    ),
    # Memory.
    Mutation(
        "capacity: a state too many is linked", _NODES,
        "linked &= child <= limit", "linked &= child <= limit + 1", "states_it_holds",
    ),
    Mutation(
        "capacity: visits beyond the limit are added", _NODES,
        "alive & (visited <= limit)", "alive", "behind_the_limit",
    ),
    Mutation(
        "capacity: the limit of visits is one too low", _CACHED,
        "num_spare(search) - 1\n    visited", "_num_spare(search) - 2\n    visited",
        "states_it_holds",
    ),
    Mutation(
        "capacity: the memory is full of what is forgotten", _CACHED,
        "nodes._replace(size=jnp.minimum(nodes.size, limit))", "nodes", "states_it_holds",
    ),
    Mutation(
        "estimate: two copies of what adapts", _MEMORY,
        "3 * num_bytes(carry.adapted)", "2 * num_bytes(carry.adapted)", "estimate_of_the",
    ),
    Mutation(
        "estimate: a number of each node is left out", _MEMORY,
        "4 * num_actions + 12", "4 * num_actions + 8", "estimate_of_the",
    ),
    Mutation(
        "estimate: no kept nodes", _MEMORY, "num_kept > 1:", "num_kept > 99:",
        "estimate_of_the",
    ),
    Mutation(
        "estimate: kept nodes make nothing deeper", _MEMORY,
        "room.max_depth(search, num_kept)", "room.max_depth(search, 1)", "estimate_of_the",
    ),
    Mutation(
        "estimate: no capacity", _MEMORY, "capacity=capacity,", "capacity=None,", "estimate_of_the",
    ),
    Mutation(
        "estimate: no table", _MEMORY, "num_bytes(carry.memory.seen)", "0", "estimate_of_the",
    ),
    Mutation(
        "estimate: no features", _MEMORY, "steps * features if any(mask) else 0", "0",
        "estimate_of_the",
    ),
    Mutation(
        "estimate: fewer numbers a step", _MEMORY, "* 4 * 10", "* 4 * 9", "estimate_of_the",
    ),
    # What policies learn, and playouts.
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
        "jnp.take_along_axis(after.rewards, player, axis=-1)",
        "jnp.take_along_axis(after.rewards, state.current_player[:, None], axis=-1)",
        "uniform_play", "test_objectives.py",
    ),
    Mutation(
        "playouts: the first legal action", _PLAYOUTS,
        "action = invert(policy.cumulative, policy.last, number)",
        "action = invert(policy.cumulative, policy.last, 0 * number)", "uniform_play",
        "test_objectives.py",
    ),
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Runs the mutations, writes each outcome at once, prints a table; see the module's text."""
    parser = runs.parser("mutations", __doc__)
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--jobs", type=runs.positive, default=1, help="mutations at a time")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {}, ("mutation",))
    chosen = [m for m in MUTATIONS if re.search(args.only, m.name)]
    check_unbroken(chosen)
    rows = []
    with (
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
        report.progress_bar("mutations") as progress,
    ):
        for i, row in enumerate(pool.map(try_mutation, chosen)):
            rows.append(row)
            runs.add(record, row, mutations=[m.name for m in MUTATIONS])
            progress(i + 1, len(chosen), row["mutation"])
    report.print_table("Mutations", *table(rows))
    missed = [row for row in rows if row["outcome"] != _CAUGHT]
    print(f"{len(rows) - len(missed)} of {len(rows)} caught.")
    print(f"Wrote {record.path}.")
    sys.exit(1 if missed else 0)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each mutation."""
    return ["fault", "outcome", "caught by"], [
        [row["mutation"], row["outcome"], row["test"] and f"`{row['test']}`"] for row in rows
    ]


def check_unbroken(mutations: list[Mutation]) -> None:
    """Ends the program if tests fail before anything is broken."""
    for test in sorted({m.test for m in mutations}):
        matches = sorted({m.match for m in mutations if m.test == test})
        status, output = run_tests(ROOT, test, " or ".join(f"({match})" for match in matches))
        if status:
            sys.exit(f"{test} fails without a mutation:\n{output}")


def try_mutation(mutation: Mutation) -> dict[str, Any]:
    """Tries a mutation on a copy of its own.

    Returns:
      Its row of the record: what became of it, and the test that caught it.
    """
    outcome, test = _GONE, None
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        ignore = shutil.ignore_patterns("__pycache__", "results")
        for name in ("jaxpgs", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "jaxpgs" / "search" / mutation.file
        text = path.read_text()
        if text.count(mutation.old) == 1:
            path.write_text(text.replace(mutation.old, mutation.new))
            status, output = run_tests(copy, mutation.test, mutation.match)
            failed = re.search(r"^FAILED (?:tests/)?(.+?)(?: - |$)", output, re.MULTILINE)
            outcome = _SURVIVED if status == 0 else _BROKEN
            if status == 1 and failed:
                outcome, test = _CAUGHT, failed[1]
    return {
        "mutation": mutation.name,
        "file": f"jaxpgs/search/{mutation.file}",
        "outcome": outcome,
        "test": test,
    }


def run_tests(tree: pathlib.Path, test: str, match: str) -> tuple[int, str]:
    """Runs tests of a tree until one fails; returns pytest's exit status and what it printed."""
    options = ["-x", "-q", "-n", "0", "-p", "no:nbmake", "-p", "no:cacheprovider"]
    options += ["-o", "addopts=-q", "-k", match]
    command = [sys.executable, "-m", "pytest", *options, f"tests/{test}"]
    done = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    main()
