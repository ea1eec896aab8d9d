"""Hundreds of actions: time and memory of searches beside mctx's.

    python -m benchmarks.wide                  # some minutes
    python -m benchmarks.wide --preset tiny    # seconds

The roots are positions of 19x19 Hex with its 361 actions, and of a point mass with hundreds of
candidates in each state, drawn from a Gaussian policy. Memory is what XLA reserves beside inputs
and outputs; time is the median of some searches, one after another in turn.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import mctx
import numpy as np

import jaxpgs
from benchmarks import memory, planners, report, runs, speed
from benchmarks.players import Spec, make_player
from benchmarks.point_mass import PointMass
from jaxpgs.continuous import make_sampled_fns


class Preset(NamedTuple):
    """How much is measured.

    Attributes:
      size: of the Hex board.
      candidates: of the point mass.
      roots: searched at once.
      simulations: in each search, one number or several; the last is timed.
      turns: searches timed.
    """

    size: int
    candidates: int
    roots: int
    simulations: Sequence[int]
    turns: int


PRESETS = {
    "full": Preset(19, 512, 16, (256,), 5),
    "tiny": Preset(3, 4, 2, (4,), 1),
}
SEARCHES = (
    *speed.MCTX,
    Spec("MCTS", "mcts"),
    Spec("MCS cached", "mcs"),
    Spec("PGS cached", "pgs"),
    Spec("PGS constant", "pgs", {"mode": "constant"}),
)


def main(argv: list[str] | None = None) -> None:
    """Measures; see the module's text."""
    parser = runs.parser("wide", __doc__, PRESETS)
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    setting = {"seed": args.seed, "roots": preset.roots, "turns": preset.turns}
    record = runs.open_record(parser, args, setting, ("space", "search"))
    spaces = {
        f"Hex {preset.size}x{preset.size}": (preset.size**2, _hex(preset)),
        "point mass": (preset.candidates, _point_mass(preset)),
    }
    with report.progress_bar("wide") as progress:
        for space, (actions, make) in spaces.items():
            left = [s for s in SEARCHES if not runs.has(record, space=space, search=s.name)]
            programs = {}
            for i, spec in enumerate(left):
                progress(i, len(left), f"{space}, {spec.name}")
                programs[spec.name] = [_compile(make, spec, n) for n in preset.simulations]
            times = _times({name: made[-1] for name, made in programs.items()}, preset.turns)
            for name, made in programs.items():
                sizes = [program.memory_analysis().temp_size_in_bytes for program in made]
                row = {"space": space, "search": name, "actions": actions, "roots": preset.roots,
                       "bytes": dict(zip(map(str, preset.simulations), sizes, strict=True)),
                       "ms": [round(1e3 * x, 2) for x in times[name]]}  # fmt: skip
                runs.add(record, row)
    report.print_table("Hundreds of actions", *table(runs.read(record)))


# From a spec and a number of simulations to a search `rng_key -> output`.
Make = Callable[[Spec, int], Callable[[Any], Any]]


def _compile(make: Make, spec: Spec, simulations: int) -> Any:
    return jax.jit(make(spec, simulations)).lower(jax.random.key(0)).compile()


def _hex(preset: Preset) -> Make:
    """Searches of Hex by a network of 256 units in 4 blocks, after some random moves."""
    network = memory.load(f"hex-{preset.size}")
    states = jax.jit(lambda: speed.positions(network.env, preset.roots, 0))()

    def make(spec: Spec, simulations: int) -> Callable[[Any], Any]:
        player = make_player(spec, network, simulations)
        return lambda rng_key: player.act(rng_key, states, ())

    return make


def _point_mass(preset: Preset) -> Make:
    """Searches of the point mass by a policy linear in the observation."""
    env = PointMass()
    network = planners.linear_policy(env.observation_shape[0], env.dimensions)
    params, apply_fn = network
    states = jax.vmap(env.init)(jax.random.split(jax.random.key(0), preset.roots))
    policies: dict[str, Any] = {
        "mcs": jaxpgs.mcs_policy,
        "mcts": jaxpgs.batched_mcts_policy,
        "pgs": functools.partial(jaxpgs.pgs_policy, adapt=planners.ADAPT),
        "muzero": mctx.muzero_policy,
        "gumbel": mctx.gumbel_muzero_policy,
    }

    def make(spec: Spec, simulations: int) -> Callable[[Any], Any]:
        fns = make_sampled_fns(env, apply_fn, preset.candidates, proposal_params=params)

        def search(rng_key: Any) -> Any:
            root = fns[0](params, rng_key, states)
            knobs = {k: v for k, v in spec.knobs.items() if k == "mode"}
            output = policies[spec.search](params, rng_key, root, fns[1], simulations, **knobs)
            return output.action, output.action_weights

        return search

    return make


def _times(programs: Mapping[str, Any], turns: int) -> dict[str, list[float]]:
    """Returns the seconds of each program in each turn, after one to warm up."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(turns + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(jax.random.key(turn)))
            if turn:
                found[name].append(time.perf_counter() - start)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each space and search."""
    counts = list(dict.fromkeys(n for row in rows for n in row["bytes"]))
    columns = ["space", "actions", "search", *(f"MB, {n} simulations" for n in counts),
               "ms a search"]  # fmt: skip
    lines = []
    for row in rows:
        lines.append([
            row["space"], row["actions"], row["search"],
            *(round(row["bytes"][n] / 1e6, 2) for n in counts),
            round(float(np.median(row["ms"])), 1),
        ])  # fmt: skip
    return columns, lines


if __name__ == "__main__":
    main()
