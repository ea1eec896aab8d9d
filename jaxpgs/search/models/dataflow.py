"""Dependencies of the values of a program: its equations, and a mark for each of its variables.

A program is the jaxpr of a function in which calls with both adapting and other operands are
inlined. Marks propagate from the arguments to the results, through branches and loops as well.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

# The bits of a mark: what a value depends on.
ADAPTS, STATE, FROZEN = 1, 2, 4

# Calls that may be inlined.
TRANSPARENT = {"jit", "pjit", "closed_call", "core_call", "call", "checkpoint", "remat", "remat2"}
# Calls that may not: inlined, they would lose their custom rules for derivatives.
_RULED = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call"}
Atom = Any  # a Var or a Literal


class Program(NamedTuple):
    """A function as a list of equations, with calls inlined that mix adapting and other operands.

    Attributes:
      inputs: its arguments.
      constants: the values that it closes over, by variable.
      eqns: the equations, in order.
      outputs: its results.
      marks: by variable, what it depends on.
      places: by variable, its number in the order of creation.
      structure: the tree structure of the results.
      source: the location of the function in the user's code, from the debug info of its jaxpr.
    """

    inputs: list[Var]
    constants: dict[Var, Any]
    eqns: list[JaxprEqn]
    outputs: list[Atom]
    marks: dict[Var, int]
    places: dict[Var, int]
    structure: Any
    source: Any


def depends(function: Callable[..., Any], first: Any, *rest: Any) -> list[bool]:
    """Tells which results of a function are computed from its first argument.

    A dependence through a product with 0 or `stop_gradient` counts, too. Nothing is run, so shapes
    (`jax.ShapeDtypeStruct`) suffice as arguments.

    Args:
      function: the function.
      first: a pytree of arrays.
      *rest: its other arguments.

    Returns:
      For each leaf of the result, whether it depends on any leaf of `first`.
    """
    closed = jax.make_jaxpr(function)(first, *rest)
    num_first = len(jax.tree.leaves(first))
    marks = [ADAPTS * (i < num_first) for i in range(len(closed.jaxpr.invars))]
    return [bool(mark & ADAPTS) for mark in _through(closed, marks)]


def tells_rows(function: Callable[..., Any], fixed: tuple[Any, ...], *rows: Any) -> bool:
    """Tells whether the result of a function for a row depends on the row's position.

    Examples are `goals[jnp.arange(len(action))]`, with a goal for each root, and `action + goals`.
    Indexing an entry of each row, as in `logits[jnp.arange(len(action)), action]`, is not such a
    dependence. Nothing is run, so shapes suffice.

    Args:
      function: the function.
      fixed: its first arguments, which have no rows: parameters, and a key.
      *rows: the others, pytrees of arrays `[B, ...]`.

    Returns:
      Whether it does; also True if this is unknown, as for a function that accepts no other B.
    """
    shapes = jax.eval_shape(lambda *args: args, *fixed, *rows)
    mask = [False] * len(jax.tree.leaves(fixed[0]))

    def trace(size: int) -> Program:
        return trace_program(function, mask, resized(shapes, size, len(fixed)), flat=True)

    try:
        two, three = trace(2), trace(3)
    except Exception:  # whatever the function may raise
        return True
    if not are_alike(two, three):
        return True
    # Everything that is computed from a row's position depends on it.
    grown, told = _grown(two, three), positions_of(two, three)
    for eqn in two.eqns:
        operands: list[Atom] = [x for x in eqn.invars if isinstance(x, Var)]
        if eqn.primitive.name.startswith(("gather", "scatter")) and eqn.invars[0] in grown:
            # The second operand only indexes within each row.
            operands = [x for x in operands if x is not eqn.invars[1]]
        if any(x in told for x in operands):
            told.update(eqn.outvars)
    return any(x in told for x in two.outputs if isinstance(x, Var))


def resized(shapes: tuple[Any, ...], size: int, num_fixed: int = 2) -> tuple[Any, ...]:
    """Returns shapes of the arguments of a model for another number of states."""

    def resize(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):  # its type says how it varies over devices
            return jnp.broadcast_to(x[:1], (size, *x.shape[1:]))
        return jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype, weak_type=x.weak_type)

    return *shapes[:num_fixed], *jax.tree.map(resize, shapes[num_fixed:])


def trace_program(
    function: Callable[..., Any], mask: Sequence[bool], shapes: tuple[Any, ...], flat: bool = False
) -> Program:
    """Returns the program of a function; `flat` inlines all calls."""
    closed, results = jax.make_jaxpr(function, return_shape=True)(*shapes)
    marks = [ADAPTS if adapts else FROZEN for adapts in mask]
    source = closed.jaxpr.debug_info
    program = Program([], {}, [], [], {}, {}, jax.tree.structure(results), source)
    for i, var in enumerate(closed.jaxpr.invars):
        mark = marks[i] if i < len(marks) else STATE
        program.inputs.append(_new(program, var, mark))
    program.outputs.extend(_inline(program, closed, program.inputs, flat))
    return program


def _new(program: Program, var: Var, mark: int) -> Var:
    """Adds a variable like another to a program."""
    new = Var(var.aval)
    program.marks[new] = mark
    program.places[new] = len(program.places)
    return new


def _inline(
    program: Program, closed: ClosedJaxpr, inputs: Sequence[Atom], flat: bool
) -> list[Atom]:
    """Adds the equations of a jaxpr to a program, and returns its results there."""
    names = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    for var, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        names[var] = _new(program, var, FROZEN)
        program.constants[names[var]] = constant

    def read(x: Atom) -> Atom:
        return x if isinstance(x, Literal) else names[x]

    for eqn in closed.jaxpr.eqns:
        operands = [read(x) for x in eqn.invars]
        marks = [0 if isinstance(x, Literal) else program.marks[x] for x in operands]
        body = body_of(eqn)
        # A call with operands of both kinds is inlined, so that the cut may go through it.
        mixed = flat or any(mark & ADAPTS for mark in marks)
        if body is not None and mixed and eqn.primitive.name in TRANSPARENT:
            results = _inline(program, body, operands, flat)
        else:
            outs = zip(eqn.outvars, flow(eqn, marks), strict=True)
            results = [_new(program, var, mark) for var, mark in outs]
            program.eqns.append(eqn.replace(invars=operands, outvars=results))
        names.update(zip(eqn.outvars, results, strict=True))
    return [read(x) for x in closed.jaxpr.outvars]


def body_of(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Returns the jaxpr that a call applies to its equation's operands, None for others."""
    if eqn.primitive.name not in TRANSPARENT | _RULED:
        return None
    bodies = [closed_jaxpr(x) for x in eqn.params.values() if isinstance(x, Jaxpr | ClosedJaxpr)]
    fits = len(bodies) == 1 and len(bodies[0].jaxpr.invars) == len(eqn.invars)
    return bodies[0] if fits and len(bodies[0].jaxpr.outvars) == len(eqn.outvars) else None


def closed_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """Returns a jaxpr with its constants."""
    # From JAX 0.11 on both are one class, where passing other constants would create inputs.
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, [])


def _through(jaxpr: Jaxpr | ClosedJaxpr, marks: Sequence[int]) -> list[int]:
    """Returns the marks of the results of a jaxpr, given those of its arguments."""
    jaxpr = closed_jaxpr(jaxpr).jaxpr
    known = dict.fromkeys(jaxpr.constvars, FROZEN) | dict(zip(jaxpr.invars, marks, strict=True))

    def read(x: Atom) -> int:
        return 0 if isinstance(x, Literal) else known[x]

    for eqn in jaxpr.eqns:
        operands = [read(x) for x in eqn.invars]
        known.update(zip(eqn.outvars, flow(eqn, operands), strict=True))
        for x in filter(is_mutable, eqn.invars):  # it may have been written to
            known[x] |= union(operands)
    return [read(x) for x in jaxpr.outvars]


def is_mutable(x: Atom) -> bool:
    """Tells whether a value is a reference, which may be written to."""
    return not isinstance(x.aval, jax.core.ShapedArray)


def union(marks: Sequence[int]) -> int:
    """Returns the union of marks: the mark of a value that depends on all of them."""
    return sum(bit for bit in (ADAPTS, STATE, FROZEN) if any(mark & bit for mark in marks))


def flow(eqn: JaxprEqn, marks: Sequence[int]) -> list[int]:
    """Returns the marks of the results of an equation, given those of its operands."""
    name, params, body = eqn.primitive.name, eqn.params, body_of(eqn)
    # Through a reference any operand may affect any result.
    if any(map(is_mutable, eqn.invars)):
        return [union(marks)] * len(eqn.outvars)
    if body is not None:
        return _through(body, marks)
    # The index selects the branch, so every result depends on it.
    if name == "cond":
        results = [_through(branch, marks[1:]) for branch in params["branches"]]
        return [union([marks[0], *each]) for each in zip(*results, strict=True)]
    # The carry may depend on more values after each iteration, until nothing is added.
    if name == "scan":
        num_consts, num_carry = scan_sizes(params)
        consts, xs = marks[:num_consts], marks[num_consts + num_carry :]

        def scanned(carry: Sequence[int]) -> list[int]:
            return _through(params["jaxpr"], [*consts, *carry, *xs])

        carry = _settle(scanned, marks[num_consts : num_consts + num_carry])
        return [*carry, *scanned(carry)[num_carry:]]
    if name == "while":
        ends = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

        def looped(carry: Sequence[int]) -> list[int]:
            # The number of iterations depends on the condition, so the results do, too.
            end = union(_through(params["cond_jaxpr"], [*marks[: ends[0]], *carry]))
            results = _through(params["body_jaxpr"], [*marks[ends[0] : ends[1]], *carry])
            return [result | end for result in results]

        return _settle(looped, marks[ends[1] :])
    return [union(marks)] * len(eqn.outvars)


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many constants and how many carried values a `scan` has, given its parameters."""
    if "ft_in" in params:  # from JAX 0.11 on
        num_consts, num_carry, _ = map(len, params["ft_in"].unpack())
        return num_consts, num_carry
    return params["num_consts"], params["num_carry"]


def _settle(step: Callable[[Sequence[int]], list[int]], carry: Sequence[int]) -> list[int]:
    """Returns the marks of a loop's carry after any number of steps."""
    # Marks only gain bits, so this ends.
    while True:
        joined = [a | b for a, b in zip(carry, step(carry), strict=False)]
        if joined == list(carry):
            return joined
        carry = joined


def are_alike(a: Program, b: Program) -> bool:
    """Tells whether two programs do the same to arrays of different shapes."""

    def outline(program: Program) -> list[Any]:
        def place(x: Atom) -> int:
            return -1 if isinstance(x, Literal) else program.places[x]

        steps = [(eqn.primitive.name, *map(place, eqn.invars)) for eqn in program.eqns]
        avals: list[Any] = [x.aval for x in program.places if not is_mutable(x)]
        types = [(aval.ndim, aval.dtype) for aval in avals]
        return [steps, types, [*map(place, program.outputs)], program.structure]

    return a is b or outline(a) == outline(b)


def _grown(two: Program, three: Program) -> set[Var]:
    """Returns the values that are larger for three states than for two."""
    pairs: Any = zip(two.places, three.places, strict=True)
    return {x for x, y in pairs if not is_mutable(x) and x.aval.shape != y.aval.shape}


def positions_of(two: Program, three: Program) -> set[Var]:
    """Returns values that have a row for each state but depend neither on states nor on keys."""
    grown = _grown(two, three)
    # A constant with a row for each state is a position, unless all its rows are known to be equal.
    found = {x for x, value in two.constants.items() if x in grown and not _is_uniform(value)}
    steps: Any = zip(two.eqns, three.eqns, strict=True)
    for eqn, other in steps:
        operands = [x for x in eqn.invars if isinstance(x, Var)]
        # Broadcasts, and iotas along another axis, are the same for all states.
        alike = eqn.primitive.name == "broadcast_in_dim"
        if eqn.primitive.name == "iota":
            shapes = eqn.outvars[0].aval.shape, other.outvars[0].aval.shape
            alike = len({shape[eqn.params["dimension"]] for shape in shapes}) == 1
        if not (alike or any(x in grown or two.marks[x] & STATE for x in operands)):
            found.update(x for x in eqn.outvars if x in grown)
    return found


def _is_uniform(x: Any) -> bool:
    """Tells whether a constant is known to have equal rows."""
    return isinstance(x, np.ndarray) and bool((x == x[:1]).all())
