"""The tournaments of `benchmarks.strength`: who plays, with how many simulations."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.players import CENTRE, MCTS, SEARCHES, STEP, TUNED, Spec


class Preset(NamedTuple):
    """One tournament. With `gauntlet`, everyone plays the first player only; with `milliseconds`, a
    move of each search takes so long, whatever simulations it needs."""

    network: str
    num_simulations: int
    players: Sequence[Spec]
    repeats: int = 1
    gauntlet: bool = False
    milliseconds: float | None = None


def _with(specs: Sequence[Spec], knobs: Mapping[str, Any], *searches: str) -> list[Spec]:
    """Changes knobs of some searches."""
    return [s._replace(knobs={**s.knobs, **knobs}) if s.search in searches else s for s in specs]


def _grid(search: str, base: dict[str, Any], **values: Sequence[Any]) -> list[Spec]:
    """Changes one knob of `base` at a time."""
    return [
        Spec(_label(search, base, knob, value), search, base | {knob: value})
        for knob, some in values.items()
        for value in some
    ]


def _label(search: str, base: dict[str, Any], knob: str, value: Any) -> str:
    baseline = f" baseline={base['baseline']}" if "baseline" in base else ""
    return f"{search} {knob}={value}{baseline}"


def _at(optimizer: str, step_size: float) -> dict[str, Any]:
    return TUNED["pgs"] | {"optimizer": optimizer, "step_size": step_size}


_REFERENCE = Spec("reference MCS", "mcs", CENTRE)
_PGS = CENTRE | STEP
_FEW = {name: TUNED[name] | {"simulations_per_update": 8} for name in ("mcs", "pgs", "mcts")}
_K16 = _with(SEARCHES, {"simulations_per_update": 16}, "pgs", "mcts")  # MCS has 16 as tuned
PRESETS = {
    # With so few simulations MCS, too, is better with frequent updates (sweep-step).
    "quick": Preset("hex-5x5-early", 64, _with(SEARCHES, {"simulations_per_update": 4}, "mcs")),
    "full": Preset("hex-7x7-early", 800, _K16),
    # The sweep chose the step size on other games, so these decide without bias.
    "duel": Preset(
        "hex-7x7-early", 256, [s for s in SEARCHES if s.name in ("MCS", "PGS")], repeats=6
    ),
    # More games for three players of "full".
    "full-duel": Preset(
        "hex-7x7-early", 800, [s for s in _K16 if s.name in ("MCS", "PGS", "MCTS")], repeats=6
    ),
    # In cached mode ours evaluate a state once, so equal simulations are no more evaluations.
    "equal": Preset(
        "hex-7x7-early", 256, [s for s in SEARCHES if s.search not in ("network", "pgs-uf")]
    ),
    # Each search gets as many simulations as fit into this time (see `calibrate`).
    "time": Preset(
        "hex-7x7-early",
        256,
        [
            *(s for s in SEARCHES if s.search not in ("network", "pgs-uf")),
            Spec("PGS K=16", "pgs", TUNED["pgs"] | {"simulations_per_update": 16}),
        ],
        repeats=2,
        milliseconds=3.0,
    ),
    # Figure 2 of Anthony et al. 2019: how much more simulations help each search.
    "scaling": Preset(
        "hex-7x7-early",
        400,
        [
            Spec("PGS 400", "pgs", _FEW["pgs"] | {"num_simulations": 400}),
            *(
                Spec(f"{search.upper()} {count}", search, _FEW[search] | {"num_simulations": count})
                for search in ("mcs", "pgs", "mcts")
                for count in (200, 400, 800, 1600)
                if (search, count) != ("pgs", 400)
            ),
        ],
        repeats=2,
        gauntlet=True,
    ),
    # In the paper the simulation policy starts from the network's once a game, not once a move.
    "keep": Preset(
        "hex-7x7-early",
        256,
        [
            Spec("PGS", "pgs", TUNED["pgs"]),
            Spec("PGS, head kept", "pgs", TUNED["pgs"] | {"keep_adapted": True}),
        ],
        repeats=4,
    ),
    "sweep-mcs": Preset(
        "hex-7x7-early",
        256,
        [
            _REFERENCE,
            *_grid("mcs", CENTRE, simulations_per_update=(4, 8, 32), count_siblings=(True,)),
            *_grid("mcs", CENTRE, c_puct=(0.25, 1.0, 2.0, 5.0)),
            *_grid("mcs", CENTRE, virtual_loss=(None, 0.3, 0.6, 1.5, 2.5)),
            *_grid("mcs", CENTRE, unvisited=("value",)),
        ],
        repeats=4,
        gauntlet=True,
    ),
    "sweep-pgs": Preset(
        "hex-7x7-early",
        256,
        [
            Spec("MCS", "mcs", CENTRE),
            *_grid("pgs", CENTRE | {"baseline": "value"}, step_size=(3e-4, 1e-3, 3e-3, 1e-2)),
            *_grid("pgs", CENTRE | {"baseline": "none"}, step_size=(1e-4, 1e-3, 3e-3)),
            *_grid("pgs", _PGS, simulations_per_update=(4, 8, 32), count_siblings=(True,)),
            *_grid("pgs", _PGS, virtual_loss=(0.5, 2.0), c_puct=(0.25, 1.0)),
        ],
        repeats=4,
        gauntlet=True,
    ),
    "sweep-mcts": Preset(
        "hex-7x7-early",
        256,
        [
            Spec("reference MCTS", "mcts", MCTS),
            *_grid("mcts", MCTS, c_puct=(0.25, 1.0, 2.0), virtual_loss=(0.3, 2.0)),
            *_grid("mcts", MCTS, simulations_per_update=(4, 8, 32)),
            *_grid("mcts", {"simulations_per_update": 16}, pb_c_init=(0.6, 1.25, 2.5)),
        ],
        repeats=4,
        gauntlet=True,
    ),
    "sweep-uf": Preset(
        "hex-5x5-early",
        64,
        [
            Spec("MCS", "mcs", TUNED["mcs"]),
            *_grid("pgs-uf", TUNED["pgs-uf"], step_size=(1e-5, 1e-4, 1e-3)),
            *_grid("pgs", TUNED["pgs"], step_size=(3e-4, 1e-3, 3e-3)),
        ],
        repeats=2,
        gauntlet=True,
    ),
    # The same for every network, with --network: which optimizer needs no tuning to it?
    "sweep-step": Preset(
        "hex-7x7-early",
        256,
        [
            # As many simulations an update as PGS, so that only the learning differs.
            Spec("MCS K=4", "mcs", CENTRE | {"simulations_per_update": 4}),
            Spec("MCS", "mcs", TUNED["mcs"]),
            *(
                Spec(f"{name} {step:g}", "pgs", _at(name, step))
                for name, steps in (
                    ("sgd", (1e-5, 1e-4, 1e-3, 1e-2)),
                    ("auto", (0.1, 0.3, 1.0, 3.0, 10.0)),
                    ("adam", (1e-3, 1e-2)),
                )
                for step in steps
            ),
        ],
        repeats=2,
        gauntlet=True,
    ),
    "sweep-mctx": Preset(
        "hex-7x7-early",
        256,
        [
            _REFERENCE,
            *_grid("muzero", {}, pb_c_init=(0.3, 0.6, 1.25, 2.5, 5.0)),
            Spec("gumbel gumbel_scale=0", "gumbel", {"gumbel_scale": 0.0}),
            Spec("gumbel gumbel_scale=1", "gumbel", {"gumbel_scale": 1.0}),
            Spec("gumbel considered=8", "gumbel", {"max_num_considered_actions": 8}),
        ],
        gauntlet=True,
    ),
}
