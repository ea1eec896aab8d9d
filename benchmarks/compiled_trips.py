"""The trips of a program's loops: marks in the program, and counts of a run on the CPU.

A compiler for another machine keeps the names of operations. So every loop and branch is marked by
a number in its name (`mark`), the program is run on the CPU with a counter in each (`count`), and
the loops of the compiled program are identified by the same number.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxpgs.search.models.dataflow import scan_sizes

_MARKED = ("while", "scan", "cond")


class Marked(NamedTuple):
    """A program whose loops are numbered.

    Attributes:
      jaxpr: the closed jaxpr, `loop_N` in the names of its loops and branches.
      lengths: trips of loop N if they are fixed (`scan`), None for `while` and `cond`.
      width: the largest number of branches of a `cond`, at least 2.
      scopes: the `jax.named_scope`s in it.
      digest: identifies the program.
    """

    jaxpr: core.ClosedJaxpr
    lengths: list[int | None]
    width: int
    scopes: frozenset[str]
    digest: str


def mark(jaxpr: core.ClosedJaxpr, platform: str) -> Marked:
    """Numbers the loops and branches of a program; only names change.

    Args:
      jaxpr: from `jax.make_jaxpr`.
      platform: "tpu" or "cuda", whose branch of `jax.lax.platform_dependent` is used.
    """
    lengths: list[int | None] = []
    widths, scopes = [2], set[str]()

    def visit(value: Any) -> Any:
        if isinstance(value, core.Jaxpr):  # from JAX 0.11 on also a ClosedJaxpr
            return value.replace(eqns=[visit_eqn(eqn) for eqn in value.eqns])
        if isinstance(value, core.ClosedJaxpr):
            return value.replace(jaxpr=visit(value.jaxpr))
        if isinstance(value, tuple | list) and any(_is_jaxpr(x) for x in value):
            return type(value)(visit(x) for x in value)
        return value

    def visit_eqn(eqn: Any) -> Any:
        stack = eqn.source_info.name_stack
        parts = [part.name for part in stack.stack if type(part).__name__ == "Scope"]
        scopes.update(name for name in parts if "->" not in name)  # of an einsum
        if eqn.primitive.name in _MARKED:
            number, params = len(lengths), eqn.params
            lengths.append(-(-params["length"] // params["unroll"]) if "length" in params else None)
            widths.append(len(params.get("branches", ())))
            named = eqn.source_info.replace(name_stack=stack.extend(f"loop_{number}"))
            eqn = eqn.replace(source_info=named)
        return eqn.replace(params={name: visit(x) for name, x in eqn.params.items()})

    marked = visit(jaxpr)
    text = re.sub(r"0x[0-9a-f]+", "", str(jaxpr))  # addresses of functions
    text += platform * ("platform_index" in text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Marked(marked, lengths, max(widths), frozenset(scopes), digest)


def count(marked: Marked, platform: str, *arguments: Any) -> dict[int, list[float]]:
    """Runs a program on the CPU and counts.

    Args:
      marked: from `mark`.
      platform: as in `mark`.
      *arguments: the program's arguments, flattened.

    Returns:
      By number, the mean trips `[trips]` of each `while` that was reached, and for each `cond` how
      often it took each branch, as shares of 1.
    """
    closed = marked.jaxpr

    def run(*arguments: Any) -> tuple[Any, Any]:
        counts = jnp.zeros((len(marked.lengths) + 1, marked.width), jnp.int32)
        found, counts = _evaluate(closed.jaxpr, closed.consts, arguments, counts, platform)
        return counts, found  # all of it, lest a loop be left out

    counts = np.asarray(jax.jit(run)(*arguments)[0]).astype(float)
    kinds = dict(_kinds(closed.jaxpr))
    return {
        number: [float(row[1] / row[0])] if kinds[number] == "while" else (row / row.sum()).tolist()
        for number, row in enumerate(counts[:-1])
        if kinds[number] != "scan" and row.any() and (kinds[number] == "cond" or row[0])
    }


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def _inner(eqn: Any) -> list[Any]:
    """Returns the jaxprs among the parameters of an equation."""
    values = [x for v in eqn.params.values() for x in (v if isinstance(v, tuple | list) else [v])]
    return [getattr(x, "jaxpr", x) for x in values if _is_jaxpr(x)]


def _number(eqn: Any) -> int:
    return int(re.findall(r"loop_(\d+)", str(eqn.source_info.name_stack))[-1])


def _kinds(jaxpr: Any) -> list[tuple[int, str]]:
    """Returns the numbers and kinds of all loops and branches."""
    here = [(_number(e), e.primitive.name) for e in jaxpr.eqns if e.primitive.name in _MARKED]
    return here + [pair for e in jaxpr.eqns for inner in _inner(e) for pair in _kinds(inner)]


def _counts_in(eqn: Any) -> bool:
    """Returns whether an equation contains anything to count."""
    return eqn.primitive.name in ("while", "cond", "platform_index") or any(
        _counts_in(e) for inner in _inner(eqn) for e in inner.eqns
    )


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], given: Sequence[Any], counts: Any, platform: str
) -> tuple[list[Any], Any]:
    """Evaluates a jaxpr; returns its values and the counts `[loop, trips or branches]`."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *given], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        inputs, name = [read(atom) for atom in eqn.invars], eqn.primitive.name
        if name == "platform_index":
            sides = eqn.params["platforms"]
            found = [i for i, side in enumerate(sides) if side is None or platform in side]
            outputs = [jnp.int32(found[0])]
        elif not _counts_in(eqn):
            atoms = {a: read(a) for a in eqn.invars if not isinstance(a, core.Literal)}
            parts = {"constvars": [], "invars": list(atoms), "outvars": eqn.outvars, "eqns": [eqn]}
            names = {"arg_names": ("",) * len(atoms), "result_paths": ("",) * len(eqn.outvars)}
            one = jaxpr.replace(**parts, debug_info=jaxpr.debug_info._replace(**names))
            outputs = jax.core.eval_jaxpr(one, (), *atoms.values())
        elif name in _RULES:
            outputs, counts = _RULES[name](eqn, inputs, counts, platform)
        else:  # calls of all kinds
            (inner,) = (x for v in eqn.params.values() for x in [v] if _is_jaxpr(x))
            inner_consts = getattr(inner, "consts", ())
            inner = getattr(inner, "jaxpr", inner)
            outputs, counts = _evaluate(inner, inner_consts, inputs, counts, platform)
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars], counts


def _while(eqn: Any, inputs: list[Any], counts: Any, platform: str) -> tuple[list[Any], Any]:
    """Counts visits and trips; loops inside the condition are not counted."""
    params, number = eqn.params, _number(eqn)
    ends = (params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"])
    of_cond, of_body, start = inputs[: ends[0]], inputs[ends[0] : ends[1]], inputs[ends[1] :]
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]

    def go_on(carry: tuple) -> Any:
        return _evaluate(cond.jaxpr, cond.consts, [*of_cond, *carry[0]], counts, platform)[0][0]

    def again(carry: tuple) -> tuple:
        now = carry[1].at[number, 1].add(1)
        old, going = carry[0], go_on(carry)
        new, now = _evaluate(body.jaxpr, body.consts, [*of_body, *old], now, platform)
        if going.ndim:  # under `jax.vmap`, finished elements keep their values
            rows = [going.reshape(going.shape + (1,) * (x.ndim - going.ndim)) for x in old]
            new = [jnp.where(*three) for three in zip(rows, new, old, strict=True)]
        return new, now

    def any_goes_on(carry: tuple) -> Any:
        return jnp.any(go_on(carry))

    return jax.lax.while_loop(any_goes_on, again, (start, counts.at[number, 0].add(1)))


def _scan(eqn: Any, inputs: list[Any], counts: Any, platform: str) -> tuple[list[Any], Any]:
    params, closed = eqn.params, eqn.params["jaxpr"]
    num_consts, num_carry = scan_sizes(params)
    consts, rest = inputs[:num_consts], inputs[num_consts:]
    carry, rows = rest[:num_carry], rest[num_carry:]

    def again(carry: tuple, row: list[Any]) -> tuple:
        given = [*consts, *carry[0], *row]
        outputs, counts = _evaluate(closed.jaxpr, closed.consts, given, carry[1], platform)
        return (outputs[:num_carry], counts), outputs[num_carry:]

    steps = {"length": params["length"], "reverse": params["reverse"]}
    done: Any = jax.lax.scan(again, (carry, counts), rows, **steps)
    (carry, counts), told = done
    return [*carry, *told], counts


def _cond(eqn: Any, inputs: list[Any], counts: Any, platform: str) -> tuple[list[Any], Any]:
    number = _number(eqn)

    def take(which: int, closed: Any) -> Callable[..., Any]:
        def branch(counts: Any, *given: Any) -> tuple[list[Any], Any]:
            now = counts.at[number, which].add(1)
            return _evaluate(closed.jaxpr, closed.consts, given, now, platform)

        return branch

    branches = [take(i, closed) for i, closed in enumerate(eqn.params["branches"])]
    return jax.lax.switch(inputs[0], branches, counts, *inputs[1:])


_RULES = {"while": _while, "scan": _scan, "cond": _cond}
