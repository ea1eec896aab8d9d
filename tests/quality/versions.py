"""Do two versions of the library agree? Runs the searches of the benchmarks in both.

    python tests/quality versions COMMIT [COMMIT ...]
    python tests/quality versions COMMIT --searches mcs pgs    # keeps other findings

A probe is a search with the settings that rows of `benchmarks/results` use. It searches positions
of a small board and, if it has no settings of its own, also positions with many actions. Its
program is the text that JAX passes to the compiler, for CPU and TPU, without the names of Python
functions. If the programs differ, the searches run and their answers are compared. If the answers
agree, the programs are compiled for a CPU and their instructions are compared, because compilers
remove calculations that nothing uses. The findings are a row of `benchmarks/results/same.json`, by
which `python -m benchmarks.stale` decides which rows still hold.

Each version runs in a process of its own, and its own `benchmarks.players` interprets the settings.
The other version is a temporary worktree of git.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Networks, roots and simulations. The pretrained weights have not changed for a long time.
SMALL, MANY, MODEL = ("conv-7x7", 6, 32), ("conv-13x13-8x1", 2, 64), ("ve-hex-5x5", 6, 32)
COUNTS = (16, 64, 256, 800)  # simulations for which K is compared, without a search
# Searches that are compared in addition to the players of the tournaments.
FURTHER = ("extended", "network", "match", "games", "tempering", "nrpa")
TOLERANCE = 1e-5  # of returns, which are from -1 to 1
# What is compared, and of which probes: those of which this was found before.
KINDS = {"programs": "other program", "answers": "other program", "instructions": "answers"}
Player = Mapping[str, Any]  # `search` and `knobs`, as in the files of tournaments


def main(argv: list[str] | None = None) -> None:
    """Compares commits with this checkout; see the module's text."""
    from benchmarks import report, runs, stale  # which an older version may lack

    parser = runs.parser("versions", __doc__ or "", program="python tests/quality ")
    parser.set_defaults(out=stale.SAME)
    parser.add_argument("commits", nargs="+")
    parser.add_argument("--searches", nargs="+", help="only probes of these, such as mcs")
    parser.add_argument("--only", choices=("programs", "answers"), help="compare nothing else")
    args = parser.parse_args(argv)
    probes = all_probes()
    here = runs.fingerprint({})  # before the searches run, as files may be edited meanwhile
    ours: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}  # of this checkout
    record = runs.open_record(parser, args, {"probes": probes}, ("commit_before",))
    for name in args.commits:
        with worktree(name) as (commit, root):
            parts = {part: report.code_digest(part, root) for part in here}
            row = {"commit_before": commit, "parts": parts, "other_weights": other_weights(root)}
            if parts == here:
                runs.add(record, row | {"found": dict.fromkeys(probes, "program")})
                continue
            for search in args.searches or dict.fromkeys(p["search"] for p in probes.values()):
                some = {key: p for key, p in probes.items() if p["search"] == search}
                found = dict.fromkeys(some, "other program")
                for kind, before in KINDS.items():
                    todo = {key: some[key] for key in found if found[key] == before}
                    if not todo or args.only not in (None, kind):
                        continue
                    if missing := {key: todo[key] for key in todo if key not in ours[kind]}:
                        ours[kind] |= ask(ROOT, {kind: missing})["found"]
                    theirs = ask(root, {kind: todo})
                    for key, said in theirs["found"].items():
                        same = compare(said, ours[kind][key])
                        if kind != "instructions":
                            found[key] = same
                        elif same == "program":
                            found[key] = kind
                    if theirs["parts"]:  # a process that cannot answer may have imported none
                        row["parts"] = {p: report.code_digest(p, root) for p in theirs["parts"]}
                for earlier in runs.read(record):  # findings on other searches stay
                    about = earlier["commit_before"], earlier["fingerprint"]
                    if about == (commit, runs.digest(here)):
                        found = earlier["found"] | found
                runs.add(record, row | {"found": found})
                for key in some:
                    print(f"{commit[:7]}, {key}: {found[key]}", flush=True)


def all_probes() -> dict[str, Player]:
    """Returns the probes by key: our players in the files of tournaments, and further searches."""
    from benchmarks import runs, stale
    from benchmarks.players import DEFAULTS, OURS

    players = [spec._asdict() for spec in DEFAULTS]
    players += [{"search": name, "knobs": {}} for name in FURTHER]
    players += [{"search": name, "knobs": {"mode": "constant"}} for name in ("mcs", "pgs")]
    for path in sorted(runs.RESULTS.glob("strength_*.json")):
        data = runs.load(path)
        if any(row["commit"] for row in data["rows"]):  # else there is no version to compare
            players += data["setting"]["players"].values()
    return {
        stale.key_of(player): {"search": player["search"], "knobs": stale.own_settings(player)}
        for player in players
        if player["search"] in (*OURS, *FURTHER)
    }


@contextlib.contextmanager
def worktree(name: str) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields the hash of a commit and a folder with its files."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", "-C", str(ROOT), *words], text=True).strip()

    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        raise SystemExit(f"{name!r} is not a commit of this repository.") from None
    with tempfile.TemporaryDirectory() as folder:
        git("worktree", "add", "--detach", "--quiet", f"{folder}/{commit[:7]}", commit)
        try:
            yield commit, pathlib.Path(folder) / commit[:7]
        finally:
            git("worktree", "remove", "--force", f"{folder}/{commit[:7]}")


def ask(root: pathlib.Path, question: Mapping[str, Any]) -> dict[str, Any]:
    """Runs this file with the version of the library in a folder, and returns its findings."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "probe.json"
        path.write_text(json.dumps(question))
        # -P: the modules beside this file belong to this version, and must not be imported.
        words = [sys.executable, "-P", __file__, str(path)]
        environment = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
        subprocess.run(words, cwd=root, env=environment, check=True, stdout=sys.stderr)
        return json.loads(path.read_text())


def other_weights(root: pathlib.Path) -> list[str]:
    """Names the networks whose weights in a folder differ from those in this checkout."""

    def checksums(root: pathlib.Path) -> dict[str, str]:
        cards = (root / "jaxpgs" / "pretrained" / "weights").glob("*.json")
        return {card.stem: json.loads(card.read_text())["sha256"] for card in cards}

    here, there = checksums(ROOT), checksums(root)
    return sorted(name for name in here | there if here.get(name) != there.get(name))


def compare(old: Any, new: Any) -> str:
    """Compares two programs or two answers: returns what is the same, or else what differs."""
    texts = [said for said in (old, new) if isinstance(said, str)]
    if wrong := [text for text in texts if text.startswith("error")]:
        return wrong[0]
    if texts:
        return "program" if old == new else "other program"
    if old.keys() != new.keys():
        return "other boards"
    # Counts and actions are whole numbers; where an action was not visited, both have NaN.
    unlike = {
        name.partition(" on ")[0]
        for name, one in old.items()
        if np.shape(one) != np.shape(new[name])
        or not np.allclose(one, new[name], rtol=0.0, atol=TOLERANCE, equal_nan=True)
    }
    return f"other {', '.join(sorted(unlike))}" if unlike else "answers"


# The code below runs with either version, and uses only what both have.


def probe(path: pathlib.Path) -> None:
    """Replaces the question in a file by the programs of its probes, or by their answers."""
    question = json.loads(path.read_text())
    ((kind, probes),) = question.items()
    found: dict[str, Any] = {}
    for key, player in probes.items():
        try:
            if player["search"] == "match":  # has no program, and paths never agree
                found[key] = match() if kind == "answers" else f"{path}"
                continue
            cases = list(searches(player))
            if kind == "answers":
                found[key] = {f"{n} on {b}": x for b, *case in cases for n, x in run(*case).items()}
                continue
            digest = hashlib.sha256()
            for board, setting, function, arrays in cases:
                platforms = ["cpu"] if board in (MANY[0], "games") else ["cpu", "tpu"]
                text = (
                    instructions(function, *arrays)
                    if kind == "instructions"
                    else program(platforms, function, *arrays)
                )
                digest.update(f"{setting}{text}".encode())
                for leaf in jax.tree.leaves(arrays[0]):
                    digest.update(np.asarray(leaf).tobytes())
            found[key] = digest.hexdigest()
        except Exception as error:  # of any type, if a version does not know a setting
            found[key] = f"error: {type(error).__name__}: {str(error).splitlines()[0][:80]}"
    parts = sorted({n.split(".")[1] for n in sys.modules if n.startswith("jaxpgs.")})
    path.write_text(json.dumps({"found": found, "parts": parts}))


def searches(player: Player) -> Iterator[tuple[str, Any, Callable[..., Any], tuple[Any, Any]]]:
    """Yields the boards of a probe: name, K for some counts, a function and its arguments."""
    import jaxpgs
    from benchmarks import players

    if player["search"] in WITHOUT_NETWORK:
        yield "games", None, WITHOUT_NETWORK[player["search"]], (jnp.zeros(()), jax.random.key(0))
        return
    boards = [MODEL] if player["knobs"].get("plans_with") == "model" else [SMALL]
    if player["knobs"] in ({}, {"simulations_per_update": "rounds"}):
        boards.append(MANY)
    for name, roots, count in boards:
        network = load(name)
        spec = players.Spec(player["search"], player["search"], player["knobs"])
        root_fn, recurrent_fn = players.model_fns(spec, network)
        simple = player["search"] == "network"
        knobs = {} if simple else players.arguments(spec, network.params, count)
        policy = None if simple else getattr(jaxpgs, f"{players.OURS[player['search']]}_policy")

        def search(
            params: Any, key: Any, env: Any = network.env, roots: int = roots, count: int = count,
            parts: Any = (root_fn, recurrent_fn, policy, knobs),
        ) -> Any:  # fmt: skip
            root_fn, recurrent_fn, policy, knobs = parts
            state = positions(env, key, roots)
            root = root_fn(params, key, state)
            if policy is None:
                action = jnp.argmax(root.prior_logits, axis=-1)
                return action, root.value, recurrent_fn(params, key, action, root.embedding)[0]
            invalid = ~state.legal_action_mask
            return policy(params, key, root, recurrent_fn, count, invalid, **knobs)

        setting = None if simple else [
            (n, players.describe(spec, network, n)["K"]) for n in COUNTS
        ]  # fmt: skip
        yield name, setting, search, (network.params, jax.random.key(0))


def play_games(_: Any, key: Any) -> tuple[Any, ...]:
    """Plays random moves of Hex and of SameGame."""
    from jaxpgs.envs import Hex, SameGame

    found = [positions(env, key, 3) for env in (Hex(11), Hex(5, swap=True), SameGame())]
    return tuple(jax.tree.leaves(found))


def temper(_: Any, key: Any) -> tuple[Any, ...]:
    """Three sweeps of parallel tempering on two boards of SameGame."""
    from jaxpgs.envs import SameGame
    from jaxpgs.puzzles import tempering_search

    env, keys = SameGame(), jax.random.split(key, 2)
    search = tempering_search(env, jax.vmap(env.init)(keys))
    state = jax.lax.fori_loop(0, 3, lambda _, state: search.step(keys, state), search.init(keys))
    return tuple(jax.tree.leaves(search.finish(state)))


def nest(_: Any, key: Any) -> tuple[Any, ...]:
    """Nested rollout policy adaptation of two boards of SameGame."""
    from jaxpgs.envs import SameGame
    from jaxpgs.puzzles import nrpa

    env, keys = SameGame(), jax.random.split(key, 2)
    states = jax.vmap(env.init)(keys)
    # Three levels, as the rows of the standard positions have.
    solution = nrpa(env, keys, states, 64, iterations=(2, 2, 2), parallel=(4, 2, 1))
    return solution.score, solution.moves


WITHOUT_NETWORK = {"games": play_games, "tempering": temper, "nrpa": nest}


@functools.cache
def load(name: str) -> Any:
    """Loads a network, with its environment, once."""
    from benchmarks import players

    return players.load_network(name)


def match() -> dict[str, Any]:
    """Plays a small match, which compares the code around a search."""
    from benchmarks import players
    from jaxpgs import evaluation

    network = load(SMALL[0])
    first, second = (
        players.make_player(players.Spec(name, name), network, 8) for name in ("mcs", "network")
    )
    key = jax.random.key(0)
    result = evaluation.play_match(network.env, first, second, key, openings=[0, 7, 12])
    return {"outcomes": np.asarray(result.outcomes).tolist()}


def positions(env: Any, key: Any, roots: int) -> Any:
    """Returns positions of random games, number b after at most 4 b moves."""

    def move(i: Any, state: Any) -> Any:
        keys = jax.random.split(jax.random.fold_in(key, i), roots)
        logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        after = jax.vmap(env.step)(state, jax.vmap(jax.random.categorical)(keys, logits))
        on = (i < 4 * jnp.arange(roots)) & ~after.terminated
        return jax.tree.map(
            lambda new, old: jnp.where(on.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            after,
            state,
        )

    start = jax.vmap(env.init)(jax.random.split(key, roots))
    return jax.lax.fori_loop(0, 4 * roots, move, start)


def numbers(function: Callable[..., Any]) -> Any:
    """Returns the jitted function with the arrays of its answer in place of the answer."""
    return jax.jit(lambda *args: list(answer(function(*args)).values()))


def program(platforms: Sequence[str], function: Callable[..., Any], *args: Any) -> str:
    """Returns the text of a function's program, without names."""
    lowered = numbers(function).trace(*args).lower(lowering_platforms=tuple(platforms))
    return nameless(lowered.as_text())


def instructions(function: Callable[..., Any], *args: Any) -> list[str]:
    """Returns the instructions that a CPU runs for a function, sorted, without names."""
    text = numbers(function).lower(*args).compile().as_text() or ""
    text = re.sub(r"(?s)\nFileNames.*?\n\n(?=%)", "", text)  # of the source
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return sorted(re.sub(r"%?\b[A-Za-z_][\w-]*(\.[\w-]+)+|%[\w-]+", "%", text).splitlines())


def nameless(text: str) -> str:
    """Replaces the names of a program's functions by numbers, in order of occurrence."""
    known: dict[str, str] = {}
    text = re.sub(r'jax\.(arg|result)_info = "[^"]*"', "", text)
    return re.sub(
        r"(?<!custom_call )@[\w.$-]+", lambda m: known.setdefault(m[0], f"@{len(known)}"), text
    )


def answer(output: Any) -> dict[str, Any]:
    """Returns the results of a search, by name."""
    if isinstance(output, tuple) and not hasattr(output, "search_state"):
        return {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(output))}
    state = output.search_state
    names = ("visits", "qvalues", "value", "num_evaluations", "num_calls")
    weights = {"action": output.action, "weights": output.action_weights}
    return weights | {name: getattr(state, name) for name in names}


def run(setting: Any, function: Callable[..., Any], args: Sequence[Any]) -> dict[str, Any]:
    """Compiles and runs a function; returns its answer."""
    quick = {"xla_backend_optimization_level": 0}  # compiles in half the time
    found = jax.jit(lambda *args: answer(function(*args)), compiler_options=quick)(*args)
    return {name: np.asarray(x).tolist() for name, x in found.items()} | {
        f"K with {n} simulations": k for n, k in setting or ()
    }


if __name__ == "__main__":
    probe(pathlib.Path(sys.argv[1]))
