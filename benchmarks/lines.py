"""How much code stands between a preset's call and its answer?

    python -m benchmarks.lines

Traces a search and counts the lines of every function and class of the package that is entered on
the way, docstrings and signatures included, and once without docstrings, comments and empty lines.
Beside ours stands mctx's Gumbel search. Prints a table and the longest functions; nothing is timed.
"""

import ast
import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mctx

import jaxpgs
from benchmarks import report

HERE = pathlib.Path(jaxpgs.__file__).parent
THEIRS = pathlib.Path(mctx.__file__).parent


def entered(function: Callable[[], Any], folder: pathlib.Path) -> set[types.CodeType]:
    """Returns the code of every function in a folder that a call enters."""
    found: set[types.CodeType] = set()

    @functools.cache
    def is_own(file: str) -> bool:
        # Networks and rules of the game are not the search.
        path = pathlib.Path(file)
        others = {"envs", "networks", "adapters.py"}
        return folder in path.parents and not others & set(path.parts)

    def profile(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and is_own(frame.f_code.co_filename):
            found.add(frame.f_code)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def definitions(codes: set[types.CodeType]) -> dict[str, tuple[int, int]]:
    """Returns the lines, and those of code, of the top-level definitions that hold the code."""
    found = {}
    for file in sorted({code.co_filename for code in codes}):
        source = pathlib.Path(file).read_text()
        lines = {code.co_firstlineno for code in codes if code.co_filename == file}
        for node in ast.parse(source).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            end = node.end_lineno or start
            if any(start <= line <= end for line in lines):
                text = source.splitlines()[start - 1 : end]
                name = f"{pathlib.Path(file).stem}.{node.name}"
                found[name] = (len(text), _code_lines(text, node, start))
    return found


def _code_lines(text: list[str], definition: ast.AST, start: int) -> int:
    told: set[int] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            doc = node.body[0]
            told |= set(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    kept = enumerate(text, start)
    return sum(i not in told and line.strip()[:1] not in ("", "#") for i, line in kept)


def searches() -> dict[str, tuple[Callable[[], Any], pathlib.Path]]:
    """Returns the searches to trace, by name, and the folder whose lines count."""
    net = jaxpgs.load_pretrained("hex-5x5")
    root_fn = jaxpgs.make_root_fn(net.env, net.apply_fn)
    recurrent_fn = jaxpgs.make_recurrent_fn(net.env, net.apply_fn)
    key = jax.random.key(0)
    state = jax.vmap(net.env.init)(jax.random.split(key, 2))
    root = root_fn(net.params, key, state)
    invalid = jnp.zeros(root.prior_logits.shape, bool)

    def trace(policy: Callable[..., Any], **knobs: Any) -> Callable[[], Any]:
        return lambda: jax.eval_shape(
            lambda params, key: (
                policy(params, key, root, recurrent_fn, 64, invalid_actions=invalid, **knobs).action
            ),
            net.params,
            key,
        )

    head = jaxpgs.networks.policy_head(net.params)
    return {
        "pgs_policy, constant": (trace(jaxpgs.pgs_policy, adapt=head, mode="constant"), HERE),
        "pgs_policy, cached": (trace(jaxpgs.pgs_policy, adapt=head, mode="cached"), HERE),
        "batched_mcts_policy": (trace(jaxpgs.batched_mcts_policy), HERE),
        "mctx.gumbel_muzero_policy": (trace(mctx.gumbel_muzero_policy), THEIRS),
    }


def main() -> None:
    """Prints the table; see the module's text."""
    rows = []
    for name, (function, folder) in searches().items():
        found = definitions(entered(function, folder))
        longest = max(found, key=lambda k: found[k][0])
        total, code = (sum(counts[i] for counts in found.values()) for i in (0, 1))
        rows.append([name, len(found), total, code, f"{longest} ({found[longest][0]})"])
        if "-v" in sys.argv:
            for definition, counts in sorted(found.items(), key=lambda item: -item[1][0]):
                print(definition, *counts)
    header = ["search", "definitions", "lines", "without documentation", "longest"]
    report.print_table("From the call to the answer", header, rows)
    arguments = {
        f"{f.__module__}.{f.__name__}": len(inspect.signature(f).parameters)
        for f in vars(jaxpgs.search).values()
        if inspect.isfunction(f)
    }
    most = max(arguments, key=lambda name: arguments[name])
    print(f"Most parameters: {most}, {arguments[most]}.")


if __name__ == "__main__":
    main()
