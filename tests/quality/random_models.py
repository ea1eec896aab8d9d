"""Random models: do the searches agree with mctx, with plain NumPy and across modes?

    python tests/quality random_models                  # 500 models, ten minutes on one core
    python tests/quality random_models --settings 3

A model consists of tables: the successor, the reward and the discount of each action in each state,
and the outputs of the network. A setting draws the shapes, the kind of discounts (one player, two
players or random signs; with or without ends), the number of chance outcomes, the illegal actions,
the network's dtype, K, N and other options; its models share compiled searches. These are compared:

- one simulation at a time, with mctx's MuZero or Gumbel search: visits, Q-values, weights, actions;
- K at a time, with a tree search in plain Python that takes one simulation after another;
- policy gradient search in both modes, `mode="tree"` and `mode="rollouts"`, with each other;
- the Q-values of policy gradient search at the root, with those that follow from the visits of its
  nodes and the tables; only here the transitions are random.

Exit status 1 if anything differs.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax

import jaxpgs
import quality
from benchmarks import report, runs

ROUNDING = 2e-4  # tolerance for Q-values up to about 3, summed in another order
_QUICK = {"xla_backend_optimization_level": 0}  # compiles in half the time
_LOWEST = float(jnp.finfo(jnp.float32).min)


class Setting(NamedTuple):
    """The shapes and the kind of a family of models, and options of the searches on them.

    Attributes:
      num_roots: B.
      num_actions: A.
      num_states: S.
      num_outcomes: C, how many successors an action may have.
      num_simulations: N, a multiple of K.
      simulations_per_update: K of the searches that are not compared with mctx.
      discount: "one" or "two" players, or "either" sign, drawn for each transition.
      ends: the share of transitions that end the game.
      masked: the share of actions that are illegal in a state.
      dtype: the type of the network's outputs.
      max_depth: T, or None.
      is_gumbel: whether the search at one simulation at a time is a Gumbel search.
      virtual_loss: of the selection at K simulations at a time.
    """

    num_roots: int
    num_actions: int
    num_states: int
    num_outcomes: int
    num_simulations: int
    simulations_per_update: int
    discount: str
    ends: float
    masked: float
    dtype: str
    max_depth: int | None
    is_gumbel: bool
    virtual_loss: float


def draw_setting(seed: int) -> Setting:
    """Draws a setting."""
    rng = np.random.default_rng([1, seed])
    width = int(rng.integers(1, 7))
    return Setting(
        num_roots=int(rng.integers(1, 6)),
        num_actions=int(rng.integers(2, 8)),
        num_states=int(rng.integers(6, 60)),
        num_outcomes=int(rng.integers(2, 4)),
        num_simulations=width * int(rng.integers(1, 9)),
        simulations_per_update=width,
        discount=str(rng.choice(["one", "two", "either"])),
        ends=float(rng.choice([0.0, 0.1])),
        masked=float(rng.choice([0.0, 0.3])),
        dtype=str(rng.choice(["float32", "bfloat16"])),
        max_depth=None if rng.random() < 0.7 else int(rng.integers(1, 5)),
        is_gumbel=bool(rng.random() < 0.5),
        virtual_loss=float(rng.choice([0.0, 0.5, 1.0])),
    )


def draw_tables(setting: Setting, seed: int) -> dict[str, Any]:
    """Draws a model: tables by state, by action and by outcome of chance."""
    rng = np.random.default_rng([2, seed])
    s, a, c = setting.num_states, setting.num_actions, setting.num_outcomes
    policy = {
        "torso": rng.normal(size=(s, 3)),
        "layer": rng.normal(size=(3, 4)),
        "head": rng.normal(size=(4, a)),
    }
    # In bfloat16, logits of a state may be equal, and mctx may take any of the equal actions.
    while (tied := _tied(setting, policy)).any():
        policy["torso"][tied] = rng.normal(size=(tied.sum(), 3))
    sign = {"one": 1.0, "two": -1.0}.get(setting.discount, rng.choice([-1.0, 1.0], (s, a, c)))
    ends = rng.random((s, a, c)) < setting.ends
    illegal = rng.random((s, a)) < setting.masked
    illegal[:, 0] = False

    def rounded(x: Any) -> jax.Array:
        return jnp.asarray(x, setting.dtype).astype(jnp.float32)

    return {
        "next": jnp.asarray(rng.integers(s, size=(s, a, c)), jnp.int32),
        "reward": rounded(0.5 * rng.normal(size=(s, a, c))),
        "discount": rounded(np.where(ends, 0.0, sign * rng.uniform(0.5, 1.0, (s, a, c)))),
        "value": rounded(rng.normal(size=s)),
        **{name: jnp.asarray(x, jnp.float32) for name, x in policy.items()},
        "illegal": jnp.asarray(illegal),
        "root": jnp.asarray(rng.integers(s, size=setting.num_roots), jnp.int32),
        "key": jnp.uint32(rng.integers(2**31)),
    }


def _logits(policy: Mapping[str, Any], state: Any) -> jax.Array:
    return jnp.tanh(policy["torso"][state] @ policy["layer"]) @ policy["head"]


def _tied(setting: Setting, policy: Mapping[str, Any]) -> np.ndarray:
    """Tells `[S]` in which states two actions have the same logit."""
    policy = {name: jnp.asarray(x, jnp.float32) for name, x in policy.items()}
    logits = _logits(policy, slice(None)).astype(setting.dtype)
    ordered = np.sort(np.asarray(logits.astype(jnp.float32)), axis=-1)
    return (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)


def _says(setting: Setting, params: Mapping[str, Any], state: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the network's logits, masked, and its values of states."""
    logits = _logits(params, state)
    logits = jnp.where(params["illegal"][state], _LOWEST, logits)
    return logits.astype(setting.dtype), params["value"][state].astype(setting.dtype)


def make_model(setting: Setting, by_chance: bool) -> Callable[..., Any]:
    """Returns the `recurrent_fn`; the embedding is the state and the outcome that led to it."""

    def recurrent_fn(params: Any, rng_key: Any, action: Any, embedding: Any) -> Any:
        before = embedding["state"]
        outcome = 0 * action
        if by_chance:
            outcome = jax.random.randint(rng_key, action.shape, 0, setting.num_outcomes)
        at = before, action, outcome
        after = params["next"][at]
        logits, value = _says(setting, params, after)
        output = mctx.RecurrentFnOutput(
            reward=params["reward"][at].astype(value.dtype),
            discount=params["discount"][at].astype(value.dtype),
            prior_logits=logits,
            value=value,
        )
        return output, {"state": after, "outcome": outcome}

    return recurrent_fn


def _root(setting: Setting, params: Mapping[str, Any], dtype: Any = None) -> mctx.RootFnOutput:
    state = params["root"]
    logits, value = (x.astype(dtype or x.dtype) for x in _says(setting, params, state))
    embedding = {"state": state, "outcome": 0 * state}
    return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=embedding)


def searches(setting: Setting) -> dict[str, Callable[..., Any]]:
    """Returns compiled functions of the tables, one for each search that is compared."""
    certain, chancy = (make_model(setting, by_chance) for by_chance in (False, True))
    # Gradients in bfloat16 depend on the order of their sums.
    exact = make_model(setting._replace(dtype="float32"), False)
    count, width = setting.num_simulations, setting.simulations_per_update

    def call(policy: Any, params: Mapping[str, Any], model: Any, **knobs: Any) -> Any:
        dtype = knobs.pop("dtype", None)
        illegal = params["illegal"][params["root"]]
        key = jax.random.key(params["key"])
        return policy(
            params, key, _root(setting, params, dtype), model, count, illegal,
            max_depth=knobs.pop("max_depth", setting.max_depth), **knobs,
        )  # fmt: skip

    def theirs(params: Mapping[str, Any]) -> Any:
        # mctx averages values in the type of the root; our searches always do so in float32.
        if setting.is_gumbel:
            output = call(mctx.gumbel_muzero_policy, params, certain, dtype=jnp.float32)
        else:
            knobs = {"dirichlet_fraction": 0.0, "temperature": 0.0, "dtype": jnp.float32}
            output = call(mctx.muzero_policy, params, certain, **knobs)
        return output.replace(search_tree=None), output.search_tree.summary()

    def ours(params: Mapping[str, Any]) -> Any:
        knobs: dict[str, Any] = {"simulations_per_update": 1}
        if setting.is_gumbel:
            return call(jaxpgs.gumbel_mcts_policy, params, certain, **knobs)
        knobs |= {"pb_c_init": 1.25, "target": jaxpgs.target.visit_counts(0.0)}
        return call(jaxpgs.batched_mcts_policy, params, certain, **knobs)

    def at_once(params: Mapping[str, Any]) -> Any:
        selection = jaxpgs.selection.puct(1.5, virtual_loss=setting.virtual_loss)
        knobs = {"root_selection": selection, "simulations_per_update": width}
        return call(jaxpgs.batched_mcts_policy, params, certain, **knobs)

    def pgs(params: Mapping[str, Any], mode: str) -> Any:
        return call(
            jaxpgs.pgs_policy,
            params,
            exact,
            mode=mode,
            dtype=jnp.float32,
            adapt="head",
            interior_selection=None,
            optimizer=optax.sgd(0.1),
            simulations_per_update=width,
            max_depth=4,
            truncation=jaxpgs.truncation.until_new(2**20),  # large: collisions are rare
        )

    def seen(params: Mapping[str, Any]) -> Any:
        knobs = {"simulations_per_update": width, "adapt": "head"}
        return call(jaxpgs.pgs_policy, params, chancy, **knobs)

    functions: dict[str, Callable[..., Any]] = {
        "mctx": theirs, "ours": ours, "at once": at_once, "seen": seen,
        "tree": functools.partial(pgs, mode="tree"),
        "rollouts": functools.partial(pgs, mode="rollouts"),
    }  # fmt: skip
    return {name: jax.jit(f, compiler_options=_QUICK) for name, f in functions.items()}


# --- what they are compared with ------------------------------------------------------------------


class _Node:
    """A node of a tree search in plain Python."""

    def __init__(self, tables: Mapping[str, np.ndarray], logits: np.ndarray, state: int) -> None:
        self.state, self.value = state, float(tables["value"][state])
        self.children: dict[int, _Node] = {}
        self.legal = ~tables["illegal"][state]
        prior = np.exp(logits[state] - logits[state][self.legal].max()) * self.legal
        self.prior = prior / prior.sum()
        self.visits, self.sums, self.pending = np.zeros((3, len(prior)))

    def choose(self, c: float, virtual_loss: float) -> int:
        visits = self.visits + self.pending
        sums = self.sums - virtual_loss * self.pending
        q = np.where(visits > 0, sums / np.maximum(visits, 1), 0.0)
        score = q + c * self.prior * np.sqrt(max(visits.sum(), 1)) / (1 + visits)
        return int(np.argmax(np.where(self.legal, score, -np.inf)))


def plain_search(
    setting: Setting, tables: Mapping[str, np.ndarray], logits: np.ndarray, state: int
) -> tuple[np.ndarray, np.ndarray]:
    """Parallel PUCT: the simulations of an update walk down one after another, then all back up.

    Returns:
      Visits and sums of returns at the root, each `[A]`.
    """
    root = _Node(tables, logits, state)
    for _ in range(setting.num_simulations // setting.simulations_per_update):
        paths = []
        for _ in range(setting.simulations_per_update):
            path, at = [], root
            while True:
                action = at.choose(1.5, setting.virtual_loss)
                at.pending[action] += 1
                path.append((at, action))
                over = tables["discount"][at.state, action, 0] == 0
                if action not in at.children or over or len(path) == setting.max_depth:
                    break
                at = at.children[action]
            paths.append(path)
        for path in paths:
            at, action = path[-1]
            if action not in at.children:
                after = int(tables["next"][at.state, action, 0])
                at.children[action] = _Node(tables, logits, after)
        for path in paths:
            value = path[-1][0].children[path[-1][1]].value
            for at, action in reversed(path):
                edge = at.state, action, 0
                value = float(tables["reward"][edge]) + float(tables["discount"][edge]) * value
                at.visits[action] += 1
                at.sums[action] += value
                at.pending[action] -= 1
    return root.visits, root.sums


def returns_by_tables(
    tables: Mapping[str, np.ndarray], nodes: Any, root: int, number: int
) -> np.ndarray:
    """Returns the sums of returns at a root, `[A]`, from the visits of its nodes and the tables.

    Args:
      tables: the model.
      nodes: the nodes of the search, as NumPy arrays.
      root: the state of the root.
      number: the index of the root in the batch.
    """
    outcomes, states = nodes.embedding[0][number].T  # arrays of one type are stored side by side
    visits, children = nodes.visits[number], nodes.children[number]

    def total(node: int, state: int) -> np.ndarray:
        sums = np.zeros(visits.shape[1])
        for action in np.flatnonzero(visits[node]):
            child = children[node, action]
            edge = state, action, outcomes[child]
            if states[child] != tables["next"][edge]:
                return np.full_like(sums, np.nan)
            through = visits[node, action]
            discount = tables["discount"][edge]
            after = 0.0
            if discount != 0:
                ended = through - visits[child].sum()
                after = ended * tables["value"][states[child]]
                after += total(child, states[child]).sum()
            sums[action] = through * tables["reward"][edge] + discount * after
        return sums

    return total(0, root)


def _apart(found: Any, wanted: Any, among: Any = True) -> float:
    """Returns the largest difference of two arrays where a mask holds; infinite if one is NaN."""
    difference = np.where(among, np.abs(np.asarray(found, np.float64) - wanted), 0.0)
    return float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0))


def compare(setting: Setting, run: Mapping[str, Callable[..., Any]], seed: int) -> dict[str, float]:
    """Draws a model and runs the searches; returns the largest difference of each comparison."""
    tables = draw_tables(setting, seed)
    known = jax.device_get(tables)
    logits = np.asarray(
        jax.jit(_says, static_argnums=0)(setting, tables, jnp.arange(setting.num_states))[0],
        np.float64,
    )
    found = {name: jax.device_get(f(tables)) for name, f in run.items()}
    apart = {}

    theirs, summary = found["mctx"]
    ours = found["ours"]
    tried = np.asarray(ours.search_state.visits) > 0
    # Among equally visited actions, ours takes that with the highest prior, mctx's MuZero any.
    counts = np.sort(summary.visit_counts, axis=-1)
    decided = setting.is_gumbel | (counts[:, -1] > counts[:, -2])
    apart["mctx"] = max(
        _apart(ours.search_state.visits, summary.visit_counts),
        _apart(ours.search_state.qvalues, summary.qvalues, tried),
        _apart(ours.action_weights, theirs.action_weights),
        _apart(ours.action, theirs.action, decided),
    )

    state = found["at once"].search_state
    plain = [plain_search(setting, known, logits, root) for root in known["root"]]
    visits, sums = (np.stack(x) for x in zip(*plain, strict=True))
    means = sums / np.maximum(visits, 1)
    apart["NumPy"] = max(_apart(state.visits, visits), _apart(state.qvalues, means, visits > 0))

    tree, rollouts = found["tree"].search_state, found["rollouts"].search_state
    apart["modes"] = max(
        _apart(tree.visits, rollouts.visits),
        _apart(tree.qvalues, rollouts.qvalues, np.asarray(tree.visits) > 0),
        _apart(tree.params["head"], rollouts.params["head"]),
    )

    state = found["seen"].search_state
    sums = np.stack(
        [
            returns_by_tables(known, state.nodes, root, number)
            for number, root in enumerate(known["root"])
        ]
    )
    visits = state.visits
    means = sums / np.maximum(visits, 1)
    apart["nodes"] = _apart(state.qvalues, means, visits > 0)
    return apart


def check_setting(number: int, num_models: int) -> dict[str, Any]:
    """Compares the models of a setting; returns its row of results."""
    setting = draw_setting(number)
    with jax.numpy_dtype_promotion("standard"):  # mctx adds numbers of several types
        run = searches(setting)
        apart = [compare(setting, run, 1000 * number + i) for i in range(num_models)]
    return {
        "setting": number,
        "models": num_models,
        "equal": {n: sum(row[n] <= ROUNDING for row in apart) for n in apart[0]},
        "largest": {n: max(row[n] for row in apart) for n in apart[0]},
        "drawn": setting._asdict(),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each comparison."""
    columns = ["compared with", "models", "equal", "largest difference"]
    names = list(rows[0]["equal"]) if rows else []
    return columns, [
        [
            name,
            sum(row["models"] for row in rows),
            sum(row["equal"][name] for row in rows),
            f"{max(row['largest'][name] for row in rows):.1e}",
        ]
        for name in names
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a table; the exit status is 1 if a search differs from what it is compared with."""
    parser = quality.parser("random_models", __doc__)
    parser.add_argument("--settings", type=runs.positive, default=25)
    parser.add_argument("--models", type=runs.positive, default=20, help="of each setting")
    args = parser.parse_args(argv)
    record = runs.open_record(parser, args, {"models": args.models}, ("setting",))
    for number in range(args.settings):
        if not runs.has(record, setting=number):
            runs.add(record, check_setting(number, args.models))
            print(f"{number + 1} of {args.settings}", flush=True)
    rows = runs.read(record)
    report.print_table("Random models", *table(rows))
    print(f"Wrote {record.path}.")
    sys.exit(1 if any(n < row["models"] for row in rows for n in row["equal"].values()) else 0)


if __name__ == "__main__":
    main()
