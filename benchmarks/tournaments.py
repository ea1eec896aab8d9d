"""The tournaments of `benchmarks.strength`: who plays, with how many simulations."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import ablation
from benchmarks.players import CENTRE, DEFAULTS, MCTS, SEARCHES, STEP, TUNED, Spec

EQUAL = ("simulations", "evaluations", "time")


class Preset(NamedTuple):
    """One tournament.

    Attributes:
      network: the network that all players have.
      num_simulations: N a move; with another `equal`, that of the player `standard`.
      players: who plays.
      repeats: games for each opening and colour.
      openings: None for every legal first move, or so many lines of two random moves.
      batch_size: games searched at once by one call; None for all games of one colour.
      gauntlet: how many players everyone plays, the first ones; 0 for all of them.
      equal: what all have the same of: "simulations"; or network "evaluations" a move or "time" of
        a call, as measured in the games, whatever simulations that needs.
      standard: the player that sets the evaluations or the time; the first one if empty.
      reason: why players differ in K, where they do.
      sgf: the folder in which every game is written, None for nowhere.
    """

    network: str
    num_simulations: int
    players: Sequence[Spec]
    repeats: int = 1
    openings: int | None = None
    batch_size: int | None = None
    gauntlet: int = 0
    equal: str = "simulations"
    standard: str = ""
    reason: str = "each has the K that its own sweep chose"
    sgf: pathlib.Path | None = None


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


def _step(optimizer: str, step_size: float) -> dict[str, Any]:
    return {"optimizer": optimizer, "step_size": step_size}


def _scaling(
    reference: str, counts: Sequence[int], knobs: Mapping[str, dict[str, Any]]
) -> list[Spec]:
    """MCS, PGS and MCTS with each of these counts, the one that all others play first."""
    players = [
        Spec(f"{name.upper()} {count}", name, knobs.get(name, {}) | {"num_simulations": count})
        for name in ("mcs", "pgs", "mcts")
        for count in counts
    ]
    return sorted(players, key=lambda spec: spec.name != reference)


_MODEL = {"plans_with": "model"}
_LINEAR = {"head": "linear", "interior_selection": None}
_RULES = {"network": "hex-5x5-early"}
_REFERENCE = Spec("reference MCS", "mcs", CENTRE)
_PGS = CENTRE | STEP
_SWEPT = "K is among the knobs that are swept"
_DEFAULTS = Preset(
    "hex-7x7-early",
    64,
    DEFAULTS,
    openings=294,  # two colours each: 588 games; the sweeps that chose the defaults had none
    gauntlet=3,
    standard="mctx Gumbel",
    reason="each has the K that is its default",
)
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
    # PGS that adapts the whole network, on the board of Anthony et al. 2019 and as it comes. One
    # root a call: a network that differs from root to root is evaluated root by root anyway.
    "unfrozen": Preset(
        "hex-9x9",
        800,
        [Spec("PGS-UF default", "pgs-uf", {"mode": "constant"})]
        + [spec for spec in DEFAULTS if spec.search in ("mcs", "pgs", "mcts")],
        openings=25,
        batch_size=1,
        gauntlet=1,
        reason="each has the K that is its default",
    ),
    # More games for three players of "full".
    "full-duel": Preset(
        "hex-7x7-early", 800, [s for s in _K16 if s.name in ("MCS", "PGS", "MCTS")], repeats=6
    ),
    # In a tree ours evaluate a state once, so equal simulations are no more evaluations.
    "equal": Preset(
        "hex-7x7-early", 256, [s for s in SEARCHES if s.search not in ("network", "pgs-uf")]
    ),
    # Each tuned search gets the time that mctx's Gumbel search takes.
    "time": Preset(
        "hex-7x7-early",
        256,
        [
            *(s for s in SEARCHES if s.search not in ("network", "pgs-uf")),
            Spec("PGS K=16", "pgs", TUNED["pgs"] | {"simulations_per_update": 16}),
        ],
        repeats=2,
        batch_size=49,
        equal="time",
        standard="mctx Gumbel",
    ),
    # Every search as it comes; mctx's Gumbel search sets what the others may spend.
    "defaults": _DEFAULTS,
    "defaults-evaluations": _DEFAULTS._replace(equal="evaluations"),
    "defaults-time-1": _DEFAULTS._replace(equal="time", batch_size=1),
    "defaults-time-64": _DEFAULTS._replace(equal="time", batch_size=64),
    # Players of `--sweep` against `--reference`.
    "sweep": Preset(
        "hex-7x7-early", 256, [Spec("MCS default", "mcs")], repeats=2, gauntlet=1, reason=_SWEPT
    ),
    # Figure 2 of Anthony et al. 2019: how much more simulations help each search.
    "scaling": Preset(
        "hex-7x7-early",
        400,
        _scaling("PGS 400", (200, 400, 800, 1600), _FEW),
        repeats=2,
        gauntlet=1,
    ),
    # The same for the searches as they come, with --network hex-9x9 on the paper's board.
    "scaling-defaults": Preset(
        "hex-7x7-early",
        64,
        _scaling("PGS 64", (16, 64, 256), {}),
        openings=98,
        gauntlet=1,
        reason="each has the K that is its default",
    ),
    # Figures 5.5 and 5.6 of Brosseit 2023; see `benchmarks.ablation`.
    "ablation": Preset(
        "hex-5x5-early",
        100,
        ablation.PLAYERS,
        openings=196,
        gauntlet=1,
        reason="the default has its own",
    ),
    # Table 5.1 of Brosseit 2023: searches that know the rules.
    "extended": Preset(
        "hex-5x5-early",
        100,
        [
            Spec("extended PGS, table A.3", "extended", ablation.TOGETHER),
            Spec("raw network", "network"),
            Spec("AlphaZero", "muzero", {"pb_c_init": 5.0}),
            Spec("MCS", "pgs", ablation.PLAIN | {"step_size": 0.0}),
            Spec("plain PGS", "pgs", ablation.PLAIN),
        ],
        openings=196,
        reason="all of ours have the same",
    ),
    # Table 5.2 of Brosseit 2023: one model that was learned, and searches that plan with it. The
    # last two know the rules and have another network.
    "ve": Preset(
        "ve-hex-5x5",
        100,
        [
            Spec("VE-PGS", "extended", _MODEL | {"head": "linear"}),
            Spec("MuZero", "muzero", _MODEL),
            Spec("Gumbel MuZero", "gumbel", _MODEL),
            Spec("extended PGS, rules", "extended", _RULES | {"head": "linear"}),
            Spec("raw policy", "network"),
            Spec("random", "random"),
            Spec("VE-PGS, table A.3", "extended", ablation.TOGETHER | _MODEL),
            Spec("VE-PGS, plain", "pgs", _MODEL | _LINEAR),
            Spec("MCTS, rules", "mcts", _RULES),
        ],
        repeats=8,
        gauntlet=3,
        reason="each has the K that is its default",
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
            *_grid("mcs", CENTRE, simulations_per_update=(4, 8, 32)),
            *_grid("mcs", CENTRE, c_puct=(0.25, 1.0, 2.0, 5.0)),
            *_grid("mcs", CENTRE, virtual_loss=(None, 0.3, 0.6, 1.5, 2.5)),
            *_grid("mcs", CENTRE, unvisited=("value",)),
        ],
        repeats=4,
        gauntlet=1,
        reason=_SWEPT,
    ),
    "sweep-pgs": Preset(
        "hex-7x7-early",
        256,
        [
            Spec("MCS", "mcs", CENTRE),
            *_grid("pgs", _PGS, step_size=(3e-4, 1e-3, 3e-3, 1e-2)),
            *_grid("pgs", _PGS | {"baseline": "none"}, step_size=(1e-4, 1e-3, 3e-3)),
            *_grid("pgs", _PGS, simulations_per_update=(4, 8, 32)),
            *_grid("pgs", _PGS, virtual_loss=(0.5, 2.0), c_puct=(0.25, 1.0)),
        ],
        repeats=4,
        gauntlet=1,
        reason=_SWEPT,
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
        gauntlet=1,
        reason=_SWEPT,
    ),
    "sweep-uf": Preset(
        "hex-5x5-early",
        64,
        [
            Spec("MCS", "mcs", TUNED["mcs"]),
            *_grid("pgs-uf", TUNED["pgs-uf"], step_size=(1e-5, 1e-4, 1e-3)),
            *_grid("pgs", TUNED["pgs"], step_size=(3e-4, 1e-3, 3e-3)),
            # The default's step, 3, was chosen for a policy head alone.
            *(
                Spec(f"pgs-uf auto {step:g}", "pgs-uf", TUNED["pgs-uf"] | _step("auto", step))
                for step in (0.3, 1.0, 3.0, 10.0)
            ),
        ],
        repeats=2,
        gauntlet=1,
        reason=_SWEPT,
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
                Spec(f"{name} {step:g}", "pgs", TUNED["pgs"] | _step(name, step))
                for name, steps in (
                    ("sgd", (1e-5, 1e-4, 1e-3, 1e-2)),
                    ("auto", (0.1, 0.3, 1.0, 3.0, 10.0)),
                    ("adam", (1e-3, 1e-2)),
                )
                for step in steps
            ),
        ],
        repeats=2,
        gauntlet=1,
        reason=_SWEPT,
    ),
    # mctx's searches get as many games and knobs as ours.
    "sweep-mctx": Preset(
        "hex-7x7-early",
        256,
        [
            _REFERENCE,
            *_grid("muzero", {}, pb_c_init=(0.3, 0.6, 1.25, 2.5, 5.0)),
            *_grid("muzero", {}, qtransform=("by_min_max",)),
            *_grid("gumbel", {}, gumbel_scale=(0.0, 1.0), max_num_considered_actions=(4, 8, 32)),
            *_grid("gumbel", {}, value_scale=(0.03, 0.3), maxvisit_init=(15.0, 150.0)),
        ],
        repeats=4,
        gauntlet=1,
        reason=_SWEPT,
    ),
    "sweep-gumbel": Preset(
        "hex-7x7-early",
        256,
        [
            _REFERENCE,
            *_grid("gumbel-pgs", {}, simulations_per_update=(4, 8, 16, 32)),
            *_grid("gumbel-pgs", {"optimizer": "auto"}, step_size=(1.0, 3.0, 10.0)),
            *_grid("gumbel-pgs", {}, max_num_considered_actions=(4, 8, 32)),
            *_grid("gumbel-mcts", {}, simulations_per_update=(4, 8, 16, 32)),
            *_grid("gumbel-mcts", {}, max_num_considered_actions=(4, 8, 32)),
            *_grid("gumbel-mcs", {}, simulations_per_update=(4, 8, 16, 32), scale=(0.3, 1.0)),
            *_grid("gumbel-mcs", {}, max_num_considered_actions=(4, 8, 32)),
        ],
        repeats=4,
        gauntlet=1,
        reason=_SWEPT,
    ),
}
