"""How much code does the call of a preset run?

    python tests/quality lines                  # of this checkout
    python tests/quality lines --package DIR    # of another one, to compare

Traces searches and counts the code that they enter, without environments, networks and adapters:
modules; top-level functions and methods; record types of which an instance is made; lines of code
in these functions, without docstrings, comments and empty lines; and the longest function in such
lines. The same is counted for mctx's searches. Nothing is timed.
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx

import jaxpgs
from benchmarks import report
from benchmarks.report import ROOT

# Networks and the rules of games are not part of the search.
OTHERS = {"envs", "networks", "adapters.py"}


class Entered(NamedTuple):
    """What a call has entered.

    Attributes:
      codes: the code objects of the functions, nested ones included.
      records: names of the record types of which an instance was made.
    """

    codes: set[types.CodeType]
    records: set[str]


class Function(NamedTuple):
    """A top-level function or a method: its name and its lines of code."""

    name: str
    lines: int


def entered(function: Callable[[], Any], package: types.ModuleType) -> Entered:
    """Calls a function, and returns the code and the records of a package that it enters."""
    folder = pathlib.Path(str(package.__file__)).parent
    codes: set[types.CodeType] = set()

    @functools.cache
    def is_own(file: str) -> bool:
        path = pathlib.Path(file)
        return folder in path.parents and not OTHERS & set(path.relative_to(folder).parts)

    kinds = set()
    for name, module in sys.modules.items():
        if is_own(getattr(module, "__file__", None) or ""):
            some = [kind for kind in vars(module).values() if inspect.isclass(kind)]
            kinds |= {kind for kind in some if kind.__module__ == name and _is_record(kind)}
    # Their constructors are generated: they belong to no file, and several types may share one.
    makers = {
        (kind.__new__ if issubclass(kind, tuple) else kind.__init__).__code__ for kind in kinds
    }
    records: set[str] = set()

    def profile(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code in makers:
            first = frame.f_locals[code.co_varnames[0]]
            kind = first if inspect.isclass(first) else type(first)
            if kind in kinds:
                records.add(f"{kind.__module__}.{kind.__name__}")
        elif is_own(code.co_filename):
            codes.add(code)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return Entered(codes, records)


def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def functions(codes: set[types.CodeType]) -> list[Function]:
    """Returns the top-level functions and methods that contain the code."""
    found = []
    for file in sorted({code.co_filename for code in codes}):
        source = pathlib.Path(file).read_text()
        lines = {code.co_firstlineno for code in codes if code.co_filename == file}
        text = source.splitlines()
        for prefix, node in _definitions(ast.parse(source)):
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            end = node.end_lineno or start
            if any(start <= line <= end for line in lines):
                name = f"{pathlib.Path(file).stem}.{prefix}{node.name}"
                found.append(Function(name, _code_lines(text[start - 1 : end], node, start)))
    return found


def _definitions(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.", inner


def _code_lines(text: list[str], definition: ast.AST, start: int) -> int:
    told: set[int] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            doc = node.body[0]
            told |= set(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    kept = enumerate(text, start)
    return sum(i not in told and line.strip()[:1] not in ("", "#") for i, line in kept)


def searches() -> dict[str, tuple[Callable[[], Any], types.ModuleType]]:
    """Returns the searches to trace, by name, and the package whose code counts."""
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

    head = {"adapt": jaxpgs.networks.policy_head(net.params)}
    return {
        # The former names of the modes, which other checkouts know as well.
        "pgs_policy, tree": (trace(jaxpgs.pgs_policy, mode="cached", **head), jaxpgs),
        "pgs_policy, rollouts": (trace(jaxpgs.pgs_policy, mode="constant", **head), jaxpgs),
        "batched_mcts_policy": (trace(jaxpgs.batched_mcts_policy), jaxpgs),
        "mctx.gumbel_muzero_policy": (trace(mctx.gumbel_muzero_policy), mctx),
        "mctx.muzero_policy": (trace(mctx.muzero_policy), mctx),
    }


def main(argv: list[str] | None = None) -> None:
    """Prints the table; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python tests/quality lines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--package", type=pathlib.Path, help="the folder of another checkout")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell all that is entered")
    args = parser.parse_args(argv)
    if args.package is not None:
        if not (args.package / "jaxpgs" / "__init__.py").exists():
            parser.error(f"{args.package} has no folder jaxpgs")
        code = (
            f"import sys; sys.path.insert(0, {str(args.package.resolve())!r}); import jaxpgs; "
            f"sys.path[:0] = {[str(ROOT), str(ROOT / 'tests')]!r}; "
            f"from quality import lines; "
            f"lines.print_tables({args.verbose})"
        )
        # Otherwise Python would first look for modules in the current folder.
        environment = os.environ | {"PYTHONSAFEPATH": "1"}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        return
    print_tables(args.verbose)


def print_tables(verbose: bool) -> None:
    """Prints the table for the imported package; with `verbose` also what is entered, by name."""
    rows = []
    for name, (function, package) in searches().items():
        found = entered(function, package)
        held = functions(found.codes)
        longest = max(held, key=lambda one: one.lines)
        modules = len({code.co_filename for code in found.codes})
        total = sum(one.lines for one in held)
        rows.append([name, modules, len(held), len(found.records), total,
                     f"{longest.name} ({longest.lines})"])  # fmt: skip
        if verbose:
            for one in sorted(held, key=lambda one: -one.lines):
                print(name, *one)
            print(name, *sorted(found.records))
    header = ["search", "modules", "functions", "record types", "lines of code", "longest function"]
    where = pathlib.Path(jaxpgs.__file__).parent.parent
    report.print_table(f"From the call to the answer, {where}", header, rows)


if __name__ == "__main__":
    main()
