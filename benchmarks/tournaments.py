"""The tournaments of `benchmarks.strength`: who plays, with how many simulations."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.players import DEFAULTS, SEARCHES, TUNED, Spec
from benchmarks.studies.brosseit2023 import ablation

EQUAL = ("simulations", "evaluations", "time")


class Preset(NamedTuple):
    """One tournament.

    Attributes:
      network: the network of all players whose knobs do not name another.
      num_simulations: N per move; if simulations are not `equal`, that of the player `standard`.
      players: who plays.
      repeats: games for each opening and colour.
      openings: the number of openings of two random moves; None for all legal first moves.
      sampled: if not 0, an opening has this many moves, drawn from the network's policy: games from
        the empty board whose first moves are sampled.
      batch_size: games searched at once by one call; None for all games of one colour.
      gauntlet: how many players, the first ones, play all others; 0 for a round robin.
      pairs: the pairs of names that meet, in this order; they replace the gauntlet.
      equal: what is equal for all: "simulations"; or network "evaluations" per move or "time" per
        call, for which simulations are adjusted until the costs in the games are equal.
      standard: the player that sets the evaluations or the time; the first that searches if empty.
      reason: why players differ in K, for the remarks below a table.
      sgf: the folder in which every game is written; None to write none.
    """

    network: str
    num_simulations: int
    players: Sequence[Spec]
    repeats: int = 1
    openings: int | None = None
    sampled: int = 0
    batch_size: int | None = None
    gauntlet: int = 0
    pairs: Sequence[tuple[str, str]] = ()
    equal: str = "simulations"
    standard: str = ""
    reason: str = "each has the K that its own sweep chose"
    sgf: pathlib.Path | None = None


def _with(specs: Sequence[Spec], knobs: Mapping[str, Any], *searches: str) -> list[Spec]:
    """Returns the specs, with these knobs changed in those of the named searches."""
    return [s._replace(knobs={**s.knobs, **knobs}) if s.search in searches else s for s in specs]


def _scaling(
    reference: str, counts: Sequence[int], knobs: Mapping[str, dict[str, Any]]
) -> list[Spec]:
    """Returns MCS, PGS and MCTS with each of these simulations, the player `reference` first."""
    players = [
        Spec(f"{name.upper()} {count}", name, knobs.get(name, {}) | {"num_simulations": count})
        for name in ("mcs", "pgs", "mcts")
        for count in counts
    ]
    return sorted(players, key=lambda spec: spec.name != reference)


def _in_rounds(name: str, search: str, actions: int) -> list[Spec]:
    """Returns variants of a Gumbel search: in rounds, or with fixed K.

    K is the default, or gives as many sequential calls as rounds do. The last two variants consider
    another number of actions at the root.
    """
    rounds, other = {"simulations_per_update": "rounds"}, {"max_num_considered_actions": actions}
    return [
        Spec(f"{name} rounds", search, rounds),
        Spec(f"{name} default", search),
        Spec(f"{name} as many calls", search, {"simulations_per_update": "as rounds"}),
        Spec(f"{name} rounds, {actions} actions", search, rounds | other),
        Spec(f"{name} default, {actions} actions", search, other),
    ]


_MODEL = {"plans_with": "model"}
_LINEAR = {"head": "linear", "interior_selection": None}
_RULES = {"network": "hex-5x5-early"}
_SWEPT = "K is among the knobs that are swept"
_DEFAULTS = Preset(
    "hex-7x7-early",
    64,
    DEFAULTS,
    openings=294,  # 588 games; the sweeps that chose the defaults had other openings
    gauntlet=3,
    standard="mctx Gumbel",
    reason="each has the K that is its default",
)
_GUMBEL = (("Gumbel MCTS", "gumbel-mcts", 8), ("Gumbel PGS", "gumbel-pgs", 16))
_ROUNDS = Preset(
    "hex-7x7-early",
    32,
    [Spec("mctx Gumbel", "gumbel"), *(spec for about in _GUMBEL for spec in _in_rounds(*about))],
    openings=294,
    pairs=[  # the most informative first; each later pair has a player of an earlier one
        (first.format(name, actions), second.format(name, actions))
        for first, second in (
            ("{0} default", "mctx Gumbel"),
            ("{0} rounds", "{0} default"),
            ("{0} rounds", "mctx Gumbel"),
            ("{0} rounds", "{0} as many calls"),
            ("{0} default, {1} actions", "{0} default"),
            ("{0} rounds, {1} actions", "{0} default, {1} actions"),
        )
        for name, _, actions in _GUMBEL
    ],
    standard="mctx Gumbel",
    reason="each has the K that its name says",
)
# At equal time the other K and numbers of actions are left out.
_ROUNDS_TIME = _ROUNDS._replace(
    players=[s for s in _ROUNDS.players if s.name.endswith(("mctx Gumbel", "rounds", "default"))],
    equal="time",
)
_FEW = {name: TUNED[name] | {"simulations_per_update": 8} for name in ("mcs", "pgs", "mcts")}
_K16 = _with(SEARCHES, {"simulations_per_update": 16}, "pgs", "mcts")  # MCS has 16 as tuned
PRESETS = {
    # A quick example: few players, and enough games to show that both searches beat the network.
    "first": _DEFAULTS._replace(
        network="hex-5x5-early",
        openings=100,
        gauntlet=0,
        players=[s for s in DEFAULTS if s.name in ("NN", "mctx Gumbel", "PGS default")],
    ),
    # With so few simulations MCS, too, is better with frequent updates (sweep-step at 0bc35d3).
    "quick": Preset("hex-5x5-early", 64, _with(SEARCHES, {"simulations_per_update": 4}, "mcs")),
    "full": Preset("hex-7x7-early", 800, _K16),
    # PGS that adapts the whole network, with its defaults, on the board of Anthony et al. 2019.
    # There is one root per call, as networks that differ between roots cannot share a batch.
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
    # Every search with its defaults; mctx's Gumbel search sets the evaluations or the time.
    "defaults": _DEFAULTS,
    "defaults-evaluations": _DEFAULTS._replace(equal="evaluations"),
    "defaults-time-1": _DEFAULTS._replace(equal="time", batch_size=1),
    "defaults-time-64": _DEFAULTS._replace(equal="time", batch_size=64),
    # As users play: from the empty board, without a forced opening. Fewer sampled moves would give
    # few different lines, as the network's policy is almost deterministic at first.
    "empty": _DEFAULTS._replace(sampled=8, openings=147),
    # Up to which N do rounds beat fixed K? With 32 simulations, the setting of pgx's example.
    "rounds": _ROUNDS,
    "rounds-time-1": _ROUNDS_TIME._replace(batch_size=1),
    "rounds-time-64": _ROUNDS_TIME._replace(batch_size=64),
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
    # The same for the searches with their defaults, with --network hex-9x9 on the paper's board.
    "scaling-defaults": Preset(
        "hex-7x7-early",
        64,
        _scaling("PGS 64", (16, 64, 256), {}),
        openings=98,
        gauntlet=1,
        reason="each has the K that is its default",
    ),
    # Figures 5.5 and 5.6 of Brosseit 2023; see the study.
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
    # Table 5.2 of Brosseit 2023: searches that plan with one learned model. The players named
    # "rules" know the rules and have another network.
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
}
