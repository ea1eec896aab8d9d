"""The searches that `seify2020.puzzles` compares, their knobs, and the budgets they get."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jaxpgs
from benchmarks.studies.seify2020.samegame_searches import with_network
from jaxpgs import puzzles
from jaxpgs.puzzles import Solution

# About how many moves a game has, by board size; NRPA gets the simulations of all of them.
MOVES = {7: 13, 10: 27, 15: 60}
BOARDS = 500
# Searches that call the network at every step of a simulation solve fewer boards: the first ones.
FEWER = {
    (name, size): count
    for name in ("Policy-MCTS informed", "MCS", "PGS")
    for size, count in ((10, 250), (15, 100))
}


class Knobs(NamedTuple):
    """The tuned knobs: the weight of exploration, the temperature of the network's policy, and the
    step size of PGS."""

    c_puct: float = 0.0
    temperature: float = 1.0
    step_size: float = 0.0


# (env, rng_keys, states, simulations a move, knobs)
Solve = Callable[[Any, Any, Any, int, Knobs], Solution]


def _with_knobs(play: Callable[..., Solution], **own: Any) -> Solve:
    """Makes a `Solve` of a search in `jaxpgs.puzzles`, with the network of the library."""
    return lambda env, rng_keys, states, n, knobs: with_network(
        play, c_puct=knobs.c_puct, temperature=knobs.temperature, **own
    )(env, rng_keys, states, n)


def _pgs(env: Any, rng_keys: Any, states: Any, n: int, knobs: Knobs) -> Solution:
    step = jaxpgs.estimator.auto_sgd(knobs.step_size)
    return _with_knobs(puzzles.pgs, optimizer=step)(env, rng_keys, states, n, knobs)


def _nrpa(env: Any, rng_keys: Any, states: Any, n: int, bias: Any = None, **knobs: Any) -> Solution:
    # On small boards, for the same number of games, many short runs score more than few long ones.
    small = env.num_actions < 64
    shape: dict[str, Any] = {"iterations": (10, 4), "parallel": (16, 1)} if small else {}
    return puzzles.nrpa(env, rng_keys, states, n * MOVES[env.height], bias=bias, **shape | knobs)


def _alone(
    env: Any, apply_fn: Any, params: Any, rng_keys: Any, states: Any, n: int, *, c_puct: float
) -> Solution:
    del c_puct, n
    return puzzles.policy_games(env, apply_fn, params, rng_keys, states)


def _biased(
    env: Any, apply_fn: Any, params: Any, rng_keys: Any, states: Any, n: int, *, c_puct: float
) -> Solution:
    del c_puct
    return _nrpa(env, rng_keys, states, n, puzzles.prior_bias(env, apply_fn, params, states))


SEARCHES: dict[str, Solve] = {
    "random play": lambda *x: puzzles.random_games(*x[:3]),
    "network alone": _with_knobs(_alone),
    "MCTS": lambda *x: puzzles.plain_mcts(*x[:-1], c_puct=x[-1].c_puct),
    "Policy-MCTS": _with_knobs(puzzles.policy_mcts),
    "Policy-MCTS informed": _with_knobs(puzzles.policy_mcts, rollout="informed"),
    "PV-MCTS": _with_knobs(puzzles.pv_mcts, rollout_share=0.0),
    "PV-MCTS mixed": _with_knobs(puzzles.pv_mcts, rollout_share=0.5),
    "MCS": _with_knobs(puzzles.mcs),
    "PGS": _pgs,
    "NRPA": lambda *x: _nrpa(*x[:-1]),
    "NRPA with pairs": lambda *x: _nrpa(*x[:-1], pairs=True),
    "NRPA without pairs": lambda *x: _nrpa(*x[:-1], pairs=False),
    "GNRPA": _with_knobs(_biased),
}
# The best of a sweep on other 7x7 boards: c_puct from 1 to 30, temperature 1 and 2, and PGS's step
# size from 0.01 to 3 (commit 0bc35d3). MCTS and Policy-MCTS were also tuned on the larger boards,
# with an earlier network; the others have the values of 7x7 there. MCS has the values of PGS: the
# interval of their difference to the best of its own sweep includes 0.
TUNED = {name: dict.fromkeys(MOVES, Knobs()) for name in SEARCHES} | {
    "MCTS": dict.fromkeys(MOVES, Knobs(30.0)),
    "Policy-MCTS": {7: Knobs(10.0), 10: Knobs(10.0), 15: Knobs(3.0)},
    "Policy-MCTS informed": dict.fromkeys(MOVES, Knobs(3.0)),
    "PV-MCTS": dict.fromkeys(MOVES, Knobs(3.0)),
    "PV-MCTS mixed": dict.fromkeys(MOVES, Knobs(3.0)),
    "MCS": dict.fromkeys(MOVES, Knobs(10.0)),
    "PGS": dict.fromkeys(MOVES, Knobs(10.0, 1.0, 0.1)),
}
WITHOUT = ("random play", "MCTS", "NRPA", "NRPA with pairs", "NRPA without pairs")  # no network
# Simulations per move, by search and size: as many as take minutes on a small machine.
BUDGETS: dict[str, dict[int, tuple[int, ...]]] = {
    name: dict.fromkeys(MOVES, (16, 64)) for name in SEARCHES
}
BUDGETS |= {
    "random play": dict.fromkeys(MOVES, (0,)),
    "network alone": dict.fromkeys(MOVES, (0,)),
    "MCTS": {7: (16, 64, 256), 10: (16, 64, 256), 15: (16, 64)},
    "PV-MCTS": {7: (16, 64), 10: (16, 64), 15: (16,)},
    "PV-MCTS mixed": {7: (16, 64), 10: (16, 64), 15: (16,)},
    "NRPA": {7: (16, 64, 256, 1024), 10: (16, 64, 256), 15: (16, 64)},
    # On each size, the variant that differs from the default there.
    "NRPA with pairs": {7: (16, 64), 10: (16, 64)},
    "NRPA without pairs": {15: (16, 64)},
    "GNRPA": {7: (16, 64, 256, 1024), 10: (16, 64, 256), 15: (16, 64)},
}
PAIRS = [
    (first, second)
    for first, others in {
        "network alone": ("random play",),
        "Policy-MCTS": ("MCTS",),
        "Policy-MCTS informed": ("Policy-MCTS", "MCTS"),
        "PV-MCTS": ("Policy-MCTS", "MCTS"),
        "PV-MCTS mixed": ("PV-MCTS", "MCTS", "Policy-MCTS", "Policy-MCTS informed", "PGS"),
        "PGS": ("MCS", "MCTS", "Policy-MCTS", "Policy-MCTS informed"),
        "NRPA": ("MCTS", "Policy-MCTS", "Policy-MCTS informed", "PGS", "PV-MCTS mixed",
                 "NRPA with pairs", "NRPA without pairs"),
        "GNRPA": ("NRPA",),
    }.items()
    for second in others
]  # fmt: skip
