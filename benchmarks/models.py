"""Do searches plan in the models that come with the library, which were learned?

    python -m benchmarks.models                        # all of them
    python -m benchmarks.models ve-hex-5x5 --cards     # and write the figures into its card

Searches that plan in a value-equivalent model, with 100 simulations as in Brosseit (2023), play
uniform random play, the model's raw policy and the raw network that judged the model's games, every
first move with both colours. They are also asked about positions of random play that an exact
solver calls won: the share of moves that keep the win is counted.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np

import jaxpgs
from benchmarks import report, runs, tactics
from benchmarks.networks import card_path
from benchmarks.ratings import elo_text
from jaxpgs import evaluation
from jaxpgs.evaluation.players import MatchGames
from jaxpgs.evaluation.searchers import search_player
from jaxpgs.pretrained.files import write_atomically
from jaxpgs.training.recipes_models import RECIPES

SIMULATIONS = 100
GAMES = 50  # with each colour, about


def main(argv: list[str] | None = None) -> None:
    """Measures models; see the module's text."""
    parser = runs.parser("models", __doc__)
    parser.add_argument("names", nargs="*", default=[], help="models, all by default")
    parser.add_argument("--cards", action="store_true", help="write the figures into the cards")
    args = parser.parse_args(argv)
    setting = {"simulations": SIMULATIONS, "seed": args.seed}
    record = runs.open_record(parser, args, setting, ("model", "player"))
    ours = [name for name in jaxpgs.available_pretrained() if name in RECIPES]
    for name in args.names or ours:
        model = jaxpgs.load_pretrained(name)
        batch = _repeats(model.env) * model.env.num_cells  # games and positions, to compile once
        wanted = tactics.PRESETS[RECIPES[name].judge]._replace(positions=5 * batch)
        positions = tactics.find_positions(model.env, wanted, args.seed)
        mine = players(model)
        raw = evaluation.compile_player(model.env, mine[0], batch)
        with report.progress_bar(name) as progress:
            for i, player in enumerate(mine):
                progress(i, len(mine), player.name)
                if not runs.has(record, model=name, player=player.name):
                    side = raw if i == 0 else evaluation.compile_player(model.env, player, batch)
                    figures = measure(model, side, raw, positions, args.seed)
                    runs.add(record, {"model": name, "player": player.name} | figures)
        rows = [row for row in runs.read(record) if row["model"] == name]
        report.print_table(name, *table(rows))
        if args.cards:
            _write_card(name, rows)


def players(model: Any) -> list[evaluation.Player]:
    """Makes the raw policy of a model and the searches that plan in it."""
    env, params = model.env, model.params
    fns = jaxpgs.make_model_fns(model.module, env)
    linear = jaxpgs.networks.policy_head(params, part="linear")
    searches: dict[str, tuple[Any, dict[str, Any]]] = {
        "VE-PGS": (jaxpgs.extended_pgs_policy, {"adapt": linear}),
        "PGS on the model": (jaxpgs.pgs_policy, {"adapt": linear}),
        "mctx Gumbel MuZero": (mctx.gumbel_muzero_policy, {"gumbel_scale": 0.0}),
    }
    return [
        evaluation.raw_network(env, model.apply_fn, params, name="raw policy"),
        *(
            search_player(
                env, model.apply_fn, params, policy_fn, SIMULATIONS, name=name, model_fns=fns,
                **knobs,
            )
            for name, (policy_fn, knobs) in searches.items()
        ),
    ]  # fmt: skip


def measure(
    model: Any,
    player: evaluation.CompiledPlayer,
    raw: evaluation.CompiledPlayer,
    positions: tuple[Any, np.ndarray],
    seed: int,
) -> dict[str, Any]:
    """Asks a player about the positions and plays its matches.

    Args:
      model: a pretrained model.
      player: one of `players(model)`, compiled for a batch.
      raw: the model's raw policy, likewise.
      positions: states `[P]` that are won, a multiple of the batch, and which moves keep the win,
        `[P, A]` bool.
      seed: seed of the searches and games.

    Returns:
      A dict ready for JSON.
    """
    env, rng_key, batch = model.env, jax.random.key(seed), raw.batch_size
    states, right = positions
    kept = 0
    for i in range(0, len(right), batch):
        part = jax.tree.map(lambda x, i=i: x[i : i + batch], states)
        none = jnp.zeros(batch, jnp.int32)
        before = MatchGames(
            part, opener=part.current_player, score=none.astype(jnp.float32), length=none,
            limit=jnp.int32(1),
        )  # fmt: skip
        key = jax.random.fold_in(rng_key, i)
        after = player.turn(key, before, (), jnp.bool_(True)).games.state
        played = (np.asarray(part.labels) == 0) & (np.asarray(after.labels) != 0)
        kept += int((right[i : i + batch] & played).sum())
    name = RECIPES[model.card["name"]].judge
    judge = jaxpgs.load_pretrained(name)
    teacher = evaluation.raw_network(env, judge.apply_fn, judge.params, name=f"raw {name}")
    matches = []
    for opponent in (evaluation.uniform_random(env), raw, teacher):
        if opponent is player:
            continue
        result = evaluation.play_match(env, player, opponent, rng_key, repeats=_repeats(env),
                                       batch_size=batch)  # fmt: skip
        elo = evaluation.elo_by_opening(result.outcomes)
        matches.append(
            {"opponent": result.names[1], "won": result.wins, "games": result.games,
             "elo": round(elo.elo, 1), "half_width": round(elo.half_width, 1)}
        )  # fmt: skip
    return {"kept": kept, "positions": len(right), "matches": matches}


def _repeats(env: Any) -> int:
    """How often every opening is played with each colour."""
    return max(GAMES // env.num_cells, 1)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each player, with a column for each opponent."""
    opponents = list(dict.fromkeys(m["opponent"] for row in rows for m in row["matches"]))
    columns = ["model", "player", "% of wins kept", *(f"won against {name}" for name in opponents)]
    lines = []
    for row in rows:
        found = {m["opponent"]: m for m in row["matches"]}
        won = [
            f"{m['won']:g} of {m['games']:g} ({elo_text(m['elo'], m['half_width'])})" if m else None
            for m in map(found.get, opponents)
        ]
        kept = round(100 * row["kept"] / row["positions"], 1)
        lines.append([row["model"], row["player"], kept, *won])
    return columns, lines


def losses(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and lines of what the models' cards say of positions held out."""
    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        held_out = runs.load(card_path(name))["held_out"]
        lines += [
            [name, label, *held_out[key]]
            for key, label in (("value_loss", "squared error of the value"),
                               ("policy_loss", "cross-entropy less the target's entropy"))
        ]  # fmt: skip
    steps = max(len(line) for line in lines) - 2
    return ["model", "on games held out", *(f"step {k}" for k in range(steps))], lines


def _write_card(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    path = card_path(name)
    card = json.loads(path.read_text())
    strength: dict[str, Any] = {
        f"{row['player']} against {m['opponent']}": (
            f"{m['won']:g} of {m['games']:g} ({m['elo']:+.0f} ± {m['half_width']:.0f} Elo)"
        )
        for row in rows
        for m in row["matches"]
    }
    strength |= {
        f"{row['player']}, wins kept": f"{row['kept']} of {row['positions']}" for row in rows
    }
    card["strength"] = strength | {"command": f"python -m benchmarks.models {name}"}
    write_atomically(path, (json.dumps(card, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
