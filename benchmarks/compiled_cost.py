"""The cost of one run of an optimized HLO program, from the compiler's annotations in it.

Nothing is measured: the instructions of a loop's body are multiplied by its trips. `run_cost` needs
the text of a program (`compiled.as_text()`) and the trips of loops that are marked in it
(`benchmarks.compiled_trips`).
"""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence

# Instructions that do no work; of an asynchronous copy only the end is counted.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "add-dependency", "copy-start", "slice-start", "async-start",
    "async-update",
}  # fmt: skip
_LINE = r"\s+(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][a-z0-9\-]*)\("
_BODY, _CONDITION = r"body=%?([\w.\-]+)", r"condition=%?([\w.\-]+)"
_CALLED = r"(?:to_apply|calls)=%?([\w.\-]+)"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of HLO: the operation, the name that the program gave it, and the line."""

    kind: str
    name: str
    line: str

    def find(self, pattern: str) -> str | None:
        """Returns what the first group of a pattern finds in the line."""
        found = re.search(pattern, self.line)
        return found[1] if found else None


@dataclasses.dataclass
class Loop:
    """A loop: its name, its trips at each visit, their source, and how often it is visited.

    `known` is "compiler", "counted" (on the CPU), "length" (a scan's), "condition" (a counter is
    compared with a constant) or "assumed". A serial loop is one that the compiler made of a single
    operation: the name ends in the operation, such as `scatter`, and not in `while`.
    """

    name: str
    trips: float
    known: str
    visits: float = 0.0

    @property
    def serial(self) -> bool:
        """Whether the compiler made it, not the program."""
        return self.name.rsplit("/", 1)[-1] != "while"


@dataclasses.dataclass
class Cost:
    """The cost of one run.

    Attributes:
      kernels: instructions that launch something, by scope.
      cycles: the compiler's estimate, by scope; TPU only.
      round_trips: round trips to the host, for loops and branches that it decides; GPU only.
      serial_cycles: the part of `cycles` inside serial loops.
      unestimated: fusions, such as gathers, for which a TPU's compiler gives no cycles.
      loops: all loops found.
      assumed: names of loops with unknown trips, assumed to be one, and of branches with unknown
        shares, for which the most expensive branch is assumed.
    """

    kernels: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    cycles: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    round_trips: float = 0.0
    serial_cycles: float = 0.0
    unestimated: float = 0.0
    loops: list[Loop] = dataclasses.field(default_factory=list)
    assumed: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Cost") -> None:
        """Adds another cost to this one."""
        self.kernels.update(other.kernels)
        self.cycles.update(other.cycles)
        self.round_trips += other.round_trips
        self.serial_cycles += other.serial_cycles
        self.unestimated += other.unestimated
        self.loops += other.loops
        self.assumed += other.assumed


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Returns the instructions of each computation of an HLO module, and the name of the first."""
    found: dict[str, list[Instruction]] = {}
    entry, now = "", ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{", line):
            now, entry = head[2], head[2] if head[1] else entry
            found[now] = []
        elif line.startswith("}"):
            now = ""
        elif now and (
            kind := re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][a-z0-9\-]*)\(", line)
        ):
            name = re.search(r'op_name="([^"]*)"', line)
            found[now].append(Instruction(kind[1], name[1] if name else "", line))
    return found, entry


def serial_loops(text: str, num_roots: int | None = None) -> list[Loop]:
    """Finds the serial loops of a program.

    Args:
      text: an optimized HLO module.
      num_roots: if given, the program's own loops with this many trips are included as well.
    """
    computations, _ = parse(text)
    loops = [_loop(each, computations, (), {}) for lines in computations.values() for each in lines
             if each.kind == "while"]  # fmt: skip
    return [loop for loop in loops if loop.serial or loop.trips == num_roots]


def run_cost(
    text: str,
    scopes: Sequence[str] = (),
    lengths: Sequence[int | None] = (),
    trips: Mapping[int, Sequence[float]] | None = None,
) -> Cost:
    """Sums the cost of one run of a program.

    Args:
      text: an optimized HLO module.
      scopes: names of parts of the program, of which the innermost counts; an instruction outside
        all of them belongs to the scope of its loop, or to "other".
      lengths: as in `compiled_trips.Marked`.
      trips: from `compiled_trips.count`.

    Returns:
      The cost. A condition that the compiler does not know is evaluated once more than the body.
    """
    computations, entry = parse(text)
    known = trips or {}

    def scope(name: str, around: str) -> str:
        return next((p for p in reversed(re.split(r"[/()]", name)) if p in scopes), around)

    def of(computation: str, times: float, around: str = "other", serial: bool = False) -> Cost:
        cost = Cost()
        for each in computations[computation]:
            part = scope(each.name, around)
            if each.kind == "while":
                loop = _loop(each, computations, lengths, known)
                loop.visits = times
                cost.loops.append(loop)
                cost.assumed += [loop.name] * (loop.known == "assumed")
                inside = serial or loop.serial
                cost.add(
                    of(each.find(r"body=%?([\w.\-]+)") or "", times * loop.trips, part, inside)
                )
                if loop.known != "compiler":
                    checks = times * (loop.trips + 1)
                    cost.round_trips += checks
                    cost.add(of(each.find(_CONDITION) or "", checks, part, inside))
            elif each.kind == "conditional":
                cost.round_trips += times
                names = _branches(each)
                shares = known.get(_number(each))
                if shares is None:
                    dear = max(names, key=lambda name: _price(of(name, 1.0)))
                    names, shares = [dear], [1.0]
                    cost.assumed.append(each.name)
                for name, share in zip(names, shares, strict=False):
                    if share:
                        cost.add(of(name, times * share, part, serial))
            elif each.kind == "call":
                cost.add(of(each.find(_CALLED) or "", times, part, serial))
            elif each.kind not in _FREE:
                cycles = times * int(each.find(r'"estimated_cycles":"(\d+)"') or 0)
                cost.kernels.update({part: times})
                cost.cycles.update({part: cycles})
                cost.serial_cycles += cycles * serial
                cost.unestimated += times * (each.kind == "fusion" and not cycles)
        return cost

    return of(entry, 1.0)


def _loop(
    each: Instruction,
    computations: Mapping[str, Sequence[Instruction]],
    lengths: Sequence[int | None],
    trips: Mapping[int, Sequence[float]],
) -> Loop:
    """Determines how many trips a loop has."""
    if stated := each.find(r'known_trip_count"?[=:]\s*\{"?n"?:\s*"?(\d+)'):
        return Loop(each.name, int(stated), "compiler")
    number = _number(each)
    if number in trips:
        return Loop(each.name, trips[number][0], "counted")
    condition = computations.get(each.find(_CONDITION) or "", ())
    below = [x.kind for x in condition if re.match(r"\s+ROOT .*direction=LT", x.line)]
    ends = [x.find(r"\[\]\S* constant\((\d+)\)") for x in condition if x.kind == "constant"]
    if below == ["compare"] and len(ends) == 1 and ends[0]:
        return Loop(each.name, int(ends[0]), "condition")
    length = lengths[number] if 0 <= number < len(lengths) else None
    return Loop(each.name, length or 1, "length" if length else "assumed")


def _number(each: Instruction) -> int:
    """Returns the number of a marked loop or branch, and -1 if it is not marked."""
    found = re.search(r"loop_(\d+)\)*/(?:while|cond)$", each.name)
    return int(found[1]) if found else -1


def _branches(each: Instruction) -> list[str]:
    """Returns the computations of a conditional, the first branch first."""
    if listed := each.find(r"branch_computations=\{([^}]*)\}"):
        return [name.strip().lstrip("%") for name in listed.split(",")]
    return [each.find(rf"{side}_computation=%?([\w.\-]+)") or "" for side in ("false", "true")]


def _price(cost: Cost) -> tuple[float, float]:
    return cost.cycles.total(), cost.kernels.total()
