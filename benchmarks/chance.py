"""Games with chance: PGS and Monte Carlo search beside mctx, at equal calls of the model.

    python -m benchmarks.chance                  # half an hour
    python -m benchmarks.chance --preset tiny    # seconds

pgx's 2048, 100 moves from boards that 60 random moves have filled, and the dice game Pig. All
players have the same policy, uniform at first, and the same value by hand. In rollouts PGS and
Monte Carlo search draw chance anew in each simulation.
`mctx.muzero_policy` and `mctx.gumbel_muzero_policy` keep the first outcome that they drew of every
action; `mctx.stochastic_muzero_policy` is told the odds and has a node for each outcome. For each
player some settings are drawn from the ranges in `RANGES` and tried in games of their own; the best
of them plays on. The unit of all intervals is the seed of a game, which decides its start.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx
import numpy as np

import jaxpgs
from benchmarks import report, runs
from benchmarks.chance_games import Game, pig, play2048, stochastic_fns
from benchmarks.paired import beside, draw_numbers, tell_setting, tuned
from benchmarks.planners import SIMULATIONS_PER_UPDATE
from jaxpgs import trees
from jaxpgs.adapters import step_with_keys


class Preset(NamedTuple):
    """How much is played.

    Attributes:
      games: by name, the game and how many are played at once, in a trial and for a figure.
      calls: of the model, for each move.
      depths: actions of a simulation of PGS and Monte Carlo search to choose among.
      settings: tried for each player.
    """

    games: Mapping[str, tuple[Callable[[], Game], int]]
    calls: int
    depths: Sequence[int]
    settings: int


PRESETS = {
    "full": Preset({"Pig": (pig, 256), "2048": (play2048, 48)}, 64, (4, 8), 4),
    "tiny": Preset({"Pig": (lambda: pig(3), 2)}, 8, (4,), 1),
}  # fmt: skip
_SEARCH = {"log_c": (-1.0, 4.0)}
_TREE = {"log_c": (-1.5, 2.5)}
# See `paired.draw_numbers`.
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "PGS": _SEARCH | {"log_step": (-4.0, 1.5), "keep": (-1.0, 1.0)},
    "MCS": _SEARCH,
    "mctx stochastic MuZero": _TREE,
    "mctx MuZero": _TREE,
    "mctx Gumbel": {"log_scale": (-4.0, 1.0)},
}
_KEY = ("game", "player", "part", "number")


def main(argv: list[str] | None = None) -> None:
    """Tunes and plays; see the module's text."""
    parser = runs.parser("chance", __doc__, PRESETS)
    args = parser.parse_args(argv)
    preset = PRESETS[args.preset]
    setting = {
        "seed": args.seed, "calls": preset.calls, "depths": preset.depths, "ranges": RANGES,
        "settings": preset.settings,
        "games": {name: count for name, (_, count) in preset.games.items()},
        "simulations_per_update": SIMULATIONS_PER_UPDATE,
    }  # fmt: skip
    record = runs.open_record(parser, args, setting, _KEY)
    with report.progress_bar("chance") as progress:
        for name, (make, count) in preset.games.items():
            # Compiled once for each player and depth; a game's functions are no arguments of `jit`.
            play = jax.jit(functools.partial(_play, make()), static_argnums=(0, 1, 2, 3))
            for player in RANGES:
                for number in range(preset.settings):
                    progress(number, preset.settings, f"{name}, {player}, tuning")
                    key = {"game": name, "player": player, "part": "tune", "number": number}
                    _measure(record, preset, play, key, count, args.seed)
                best = tuned(runs.read(record), "scores", game=name, player=player)
                progress(0, 1, f"{name}, {player}")
                key = {"game": name, "player": player, "part": "play", "number": best}
                _measure(record, preset, play, key, count, args.seed)
    report.print_table("Games with chance at equal calls", *table(runs.read(record)))


def draw_setting(preset: Preset, player: str, number: int, seed: int) -> dict[str, Any]:
    """Draws a player's setting: its numbers by name, and the depth of simulations."""
    fixed = player in ("PGS", "MCS")
    return {
        "depth": preset.depths[number % len(preset.depths)] if fixed else 0,
        "numbers": draw_numbers(RANGES[player], number, seed),
    }


def _measure(
    record: runs.Record, preset: Preset, play: Any, key: dict[str, Any], count: int, seed: int
) -> None:
    """Plays games with a setting and adds the row, unless it is there."""
    if runs.has(record, **key):
        return
    setting = draw_setting(preset, key["player"], key["number"], seed)
    play_key = jax.random.fold_in(jax.random.key(seed), key["part"] == "tune")
    spend = (key["player"], preset.calls, setting["depth"], count)
    scores, moves = jax.device_get(play(*spend, setting["numbers"], play_key))
    runs.add(record, key | setting | {"scores": scores.astype(float), "moves": moves.tolist()})


def _play(
    game: Game, player: str, calls: int, depth: int, count: int, numbers: Any, key: Any
) -> tuple[chex.Array, chex.Array]:
    """Plays games to their end. Returns their scores and lengths."""
    step = step_with_keys(game.env)
    decide, memory = make_player(game, player, calls, depth, count, numbers)
    start_key, play_key = jax.random.split(key)
    state = jax.vmap(game.env.init)(jax.random.split(start_key, count))
    state = _begin(game, jax.random.fold_in(start_key, 1), state)

    def move(carry: tuple) -> tuple:
        t, state, memory, score, length = carry
        search_key, chance_key = jax.random.split(jax.random.fold_in(play_key, t))
        action, memory = decide(search_key, state, memory)
        after = step(state, action, chance_key)
        going_on = ~state.terminated
        score += jnp.where(going_on, after.rewards[:, 0], 0.0)
        return t + 1, after, memory, score, length + going_on

    none = jnp.zeros(count, jnp.int32)
    start = (jnp.int32(0), state, memory, none.astype(jnp.float32), none)
    *_, score, length = jax.lax.while_loop(
        lambda carry: (carry[0] < game.max_moves) & jnp.any(~carry[1].terminated), move, start
    )
    return score, length


def _begin(game: Game, rng_key: Any, state: Any) -> Any:
    """Plays random moves, none of which ends a game."""
    step = step_with_keys(game.env)

    def move(state: Any, rng_key: Any) -> tuple[Any, None]:
        action_key, chance_key = jax.random.split(rng_key)
        logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        after = step(state, jax.random.categorical(action_key, logits), chance_key)
        return trees.where(after.terminated, state, after), None

    keys = jax.random.split(rng_key, game.random_moves)
    return jax.lax.scan(move, state, keys)[0] if game.random_moves else state


def make_player(
    game: Game, player: str, calls: int, depth: int, count: int, numbers: Mapping[str, chex.Array]
) -> tuple[Callable[..., Any], Any]:
    """Makes `decide(rng_key, state, memory) -> (action, memory)` and the first memory.

    Args:
      game: the game.
      player: a name in `RANGES`.
      calls: of the model for each move. A simulation of a tree search costs one, others as many as
        they have steps.
      depth: steps of a simulation of PGS and Monte Carlo search.
      count: games at once.
      numbers: `c`, the weight of exploration; for PGS `step`, its step size, and `keep`, above 0 if
        what was learned goes on to the next move; for Gumbel `scale`, that of the values.
    """
    params, apply_fn = game.params, game.apply_fn
    root_fn = jaxpgs.make_root_fn(game.env, apply_fn)
    recurrent_fn = jaxpgs.make_recurrent_fn(game.env, apply_fn)
    adapt = {"policy_head": True}
    own = jaxpgs.init_adapted(params, adapt, count) if player == "PGS" else ()
    knobs: dict[str, Any] = {}
    if depth:
        knobs = {
            "truncation": jaxpgs.fixed(depth), "simulations_per_update": SIMULATIONS_PER_UPDATE,
            "mode": "rollouts", "root_selection": jaxpgs.max_min_puct(numbers["c"]),
            "target": jaxpgs.best_value(), "max_depth": depth,
        }  # fmt: skip

    def decide(rng_key: chex.PRNGKey, state: Any, memory: Any) -> tuple[chex.Array, Any]:
        root, illegal = root_fn(params, rng_key, state), ~state.legal_action_mask
        begin = (params, rng_key, root)
        if player == "PGS":
            output = jaxpgs.pgs_policy(
                *begin, recurrent_fn, calls // depth, illegal, adapt=adapt,
                estimator=jaxpgs.reinforce("mean", normalize=True),
                optimizer=jaxpgs.auto_sgd(numbers["step"]), adapted_params=memory, **knobs,
            )  # fmt: skip
            memory = jax.tree.map(
                lambda new, old: jnp.where(numbers["keep"] > 0, new, old),
                output.search_state.params, own,
            )  # fmt: skip
            return output.action, memory
        if player == "MCS":
            output = jaxpgs.mcs_policy(*begin, recurrent_fn, calls // depth, illegal, **knobs)
            return output.action, memory
        if player == "mctx Gumbel":
            transform = functools.partial(
                mctx.qtransform_completed_by_mix_value, value_scale=numbers["scale"]
            )
            answer = mctx.gumbel_muzero_policy(
                *begin, recurrent_fn, calls, illegal, qtransform=transform, gumbel_scale=0.0
            )
            return answer.action, memory
        tree = {"dirichlet_fraction": 0.0, "pb_c_init": numbers["c"], "temperature": 0.0}
        if player == "mctx MuZero":
            return mctx.muzero_policy(*begin, recurrent_fn, calls, illegal, **tree).action, memory
        known = mctx.stochastic_muzero_policy(*begin, *stochastic_fns(game), calls, illegal, **tree)
        return known.action, memory

    return decide, own


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each game and player."""
    columns = ["game", "player", "games", "score", "over MCS", "95%", "over PGS", "95% ", "moves",
               "setting"]  # fmt: skip
    found = {(row["game"], row["player"]): row for row in rows if row["part"] == "play"}
    lines = []
    for (game, player), row in found.items():
        line = [game, player, len(row["scores"]), round(float(np.mean(row["scores"])), 1)]
        others = [found.get((game, other)) for other in ("MCS", "PGS")]
        line += beside(row, others, "scores", 1)
        depth = f"depth {row['depth']}, " * bool(row["depth"])
        moves = round(float(np.mean(row["moves"])), 1)
        lines.append([*line, moves, depth + tell_setting(row)])
    return columns, lines


if __name__ == "__main__":
    main()
