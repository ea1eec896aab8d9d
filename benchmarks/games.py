"""Do the presets work in games of other kinds, as they come? Ten games of pgx against random play.

    python -m benchmarks.games --preset full

Half of the games have chance in every move, some have one player and some two. In each, a small
network learns for a minute by actor-critic self-play, and every preset then plays with its
defaults: against random play where there are two players, and for points where there is one. Every
answer is looked at: illegal moves and numbers that are not finite are counted.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpgs
from benchmarks import report, runs
from jaxpgs import networks, trees
from jaxpgs.adapters import step_with_keys

# Whether chance has a part in every move.
GAMES = {
    "tic_tac_toe": False, "2048": True, "connect_four": False, "backgammon": True,
    "minatar-asterix": True, "othello": False, "minatar-breakout": True, "animal_shogi": False,
    "minatar-space_invaders": True, "hex": False,
}  # fmt: skip
SEARCHES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "MCS": (jaxpgs.mcs_policy, {}),
    "PGS": (jaxpgs.pgs_policy, {"adapt": "policy_head"}),
    "extended PGS": (jaxpgs.extended_pgs_policy, {"adapt": "policy_head"}),
    "Gumbel PGS": (jaxpgs.gumbel_pgs_policy, {"adapt": "policy_head"}),
    "MCTS": (jaxpgs.batched_mcts_policy, {}),
    "Gumbel MCTS": (jaxpgs.gumbel_mcts_policy, {}),
}
PLAYERS = ("random", "NN", *SEARCHES)
_WIDTH, _HORIZON = 128, 32
# (params, key, states [B]) -> actions [B], and [B] whether all its numbers are finite.
Act = Callable[[Any, Any, Any], tuple[Any, Any]]


class Preset(NamedTuple):
    """How much is played and learned.

    Attributes:
      games: names of pgx.
      batch: games of each player.
      max_moves: after which a game counts as it stands.
      simulations: a move.
      seconds: of learning.
    """

    games: Sequence[str]
    batch: int
    max_moves: int
    simulations: int
    seconds: float


PRESETS = {
    "full": Preset(tuple(GAMES), 64, 200, 32, 60.0),
    "quick": Preset(("tic_tac_toe", "2048"), 16, 20, 8, 2.0),
}


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    parser = runs.parser("games", __doc__, PRESETS)
    parser.add_argument("--games", nargs="+", choices=GAMES)
    args = parser.parse_args(argv)
    preset = runs.override(PRESETS[args.preset], args)
    setting = {name: value for name, value in preset._asdict().items() if name != "games"}
    record = runs.open_record(parser, args, setting, ("game", "player"))
    with report.progress_bar("games") as progress:
        for i, game in enumerate(preset.games):
            progress(i, len(preset.games), game)
            # One network serves all players of a game, so its rows are made together.
            if not all(runs.has(record, game=game, player=player) for player in PLAYERS):
                runs.add(record, *measure(game, preset, args.seed))
    report.print_table("Against random play", *table(runs.read(record)))
    print(f"Wrote {record.path}.")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each game: scores, and a star where they beat random play."""
    columns = ["game", "players", "chance", "updates", *PLAYERS, "illegal", "not finite"]
    lines = []
    for game in dict.fromkeys(row["game"] for row in rows):
        found = {row["player"]: row for row in rows if row["game"] == game}
        one = found["random"]
        lines.append(
            [game, one["num_players"], "yes" if one["chance"] else "no", one["updates"]]
            + [cell(found[player]) for player in PLAYERS]
            + [sum(row[name] for row in found.values()) for name in ("illegal", "not_finite")]
        )
    return columns, lines


def cell(row: Mapping[str, Any]) -> str:
    """Writes a score with its 95% interval, and a star where it is above that of random play."""
    digits = 2 if abs(row["score"]) < 10 else 0
    better = row["player"] != "random" and row["over_random"] > row["over_random_interval"]
    return f"{row['score']:.{digits}f} ± {row['interval']:.{digits}f}" + " *" * better


def measure(game: str, preset: Preset, seed: int) -> list[dict[str, Any]]:
    """Learns a game, and lets all players play it. Returns a row for each of them."""
    import pgx

    env = pgx.make(game)
    keys = jax.random.split(jax.random.key(seed), 3)
    random_scores, random_facts = play(env, random_player(env), preset, {}, keys[0])
    scale = float(np.std(random_scores)) if env.num_players == 1 else 1.0
    params, apply_fn = make_network(env, max(scale, 1e-3), keys[1])
    params, updates = learn(env, params, apply_fn, scale, preset.seconds, keys[2])
    facts = {
        "game": game, "num_players": env.num_players, "games": preset.batch,
        "chance": GAMES[game], "updates": updates, "scale": scale,
    }  # fmt: skip
    rows = []
    for name in PLAYERS:
        scores, found = random_scores, random_facts
        if name != "random":
            player = make_player(name, env, apply_fn, preset.simulations)
            scores, found = play(env, player, preset, params, keys[0])
        rows.append(facts | {"player": name} | summary(scores, random_scores, env, found))
    return rows


def summary(
    scores: Any, random_scores: Any, env: Any, facts: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the mean score with its 95% interval, and how far it is above random play."""
    error = np.std(scores, ddof=1) / len(scores) ** 0.5
    # With two players the opponent is random; with one, random play earns points of its own.
    alone = env.num_players == 1
    zero = np.mean(random_scores) if alone else 0.0
    other = np.std(random_scores, ddof=1) / len(scores) ** 0.5 if alone else 0.0
    return {
        "score": float(np.mean(scores)),
        "interval": float(1.96 * error),
        "over_random": float(np.mean(scores) - zero),
        "over_random_interval": float(1.96 * np.hypot(error, other)),
        **facts,
    }


def make_network(env: Any, scale: float, key: Any) -> tuple[Any, networks.SplitApplyFn]:
    """Makes a network of two layers and two heads, whose values have a game's scale."""
    size = int(np.prod(env.observation_shape))
    shapes = {"one": (size, _WIDTH), "two": (_WIDTH, _WIDTH)}
    draw = jax.nn.initializers.he_normal()
    params = {
        name: {"kernel": draw(jax.random.fold_in(key, i), shape), "bias": jnp.zeros(shape[1])}
        for i, (name, shape) in enumerate(shapes.items())
    } | {
        "policy_head": {"kernel": jnp.zeros((_WIDTH, env.num_actions))},
        "value_head": {"kernel": jnp.zeros(_WIDTH)},
    }

    def torso(params: Any, x: Any) -> Any:
        x = x.reshape(len(x), -1).astype(jnp.float32)
        for name in shapes:
            x = jax.nn.relu(x @ params[name]["kernel"] + params[name]["bias"])
        return x

    return params, networks.SplitApplyFn(
        torso,
        policy_head=lambda params, x: x @ params["policy_head"]["kernel"],
        value_head=lambda params, x: scale * (x @ params["value_head"]["kernel"]),
    )


def learn(
    env: Any, params: Any, apply_fn: Any, scale: float, seconds: float, key: Any
) -> tuple[Any, int]:
    """Trains a network by actor-critic self-play for some seconds, not counting compilation.

    The reward and the discount of `make_recurrent_fn` are right for one player and for two, so no
    game needs a line of its own.

    Returns:
      The parameters and the number of updates.
    """
    root_fn = jaxpgs.make_root_fn(env, apply_fn)
    recurrent_fn = jaxpgs.make_recurrent_fn(env, apply_fn)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def act(params: Any, states: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        keys = jax.random.split(key, 3)
        action = jax.random.categorical(keys[0], root_fn(params, keys[0], states).prior_logits)
        output, after = recurrent_fn(params, keys[1], action.astype(jnp.int32), states)
        seen = {"observation": jax.vmap(env.observe)(states), "legal": states.legal_action_mask,
                "action": action, "reward": output.reward, "discount": output.discount,
                "next_value": output.value}  # fmt: skip
        start = jax.vmap(env.init)(jax.random.split(keys[2], len(action)))
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, states)
        return trees.where(after.terminated, start, after), seen

    def loss(params: Any, seen: Any, returns: Any) -> Any:
        logits, value = apply_fn(params, seen["observation"])
        log_policy = jax.nn.log_softmax(jnp.where(seen["legal"], logits, -1e9))
        chosen = jnp.take_along_axis(log_policy, seen["action"][:, None], axis=1)[:, 0]
        advantage = (returns - jax.lax.stop_gradient(value)) / scale
        advantage /= jnp.maximum(jnp.std(advantage), 0.3)  # where all is even, noise stays small
        entropy = -jnp.sum(jnp.exp(log_policy) * log_policy * seen["legal"], axis=-1)
        squares = ((value - returns) / scale) ** 2
        return jnp.mean(squares - chosen * advantage - 0.1 * entropy)

    @jax.jit
    def update(params: Any, moments: Any, states: Any, key: Any) -> tuple[Any, Any, Any]:
        keys = jax.random.split(key, _HORIZON)
        states, seen = jax.lax.scan(lambda s, k: act(params, s, k), states, keys)

        def back(later: Any, step: Any) -> tuple[Any, Any]:  # TD(lambda)
            later = step["reward"] + step["discount"] * (0.1 * step["next_value"] + 0.9 * later)
            return later, later

        last = seen["next_value"][-1]
        returns = jax.lax.scan(back, last, seen, reverse=True)[1]
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (seen, returns))
        change, moments = optimizer.update(jax.grad(loss)(params, *flat), moments, params)
        return optax.apply_updates(params, change), moments, states

    states = jax.vmap(env.init)(jax.random.split(key, 64))
    data = (params, optimizer.init(params), states)
    jax.block_until_ready(update(*data, key))  # compiles
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        data = jax.block_until_ready(update(*data, jax.random.fold_in(key, count)))
        count += 1
    return data[0], count


def random_player(env: Any) -> Act:
    """Draws legal actions uniformly."""

    def act(params: Any, key: Any, states: Any) -> tuple[Any, Any]:
        mask = states.legal_action_mask
        drawn = jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0)
        return jnp.argmax(drawn, axis=-1).astype(jnp.int32), jnp.ones(len(mask), bool)

    return act


def make_player(name: str, env: Any, apply_fn: Any, num_simulations: int) -> Act:
    """Makes a player: the bare network, which draws from its policy, or a search as it comes."""
    if name == "NN":
        root_fn = jaxpgs.make_root_fn(env, apply_fn)

        def draw(params: Any, key: Any, states: Any) -> tuple[Any, Any]:
            root = root_fn(params, key, states)
            action = jax.random.categorical(key, root.prior_logits).astype(jnp.int32)
            return action, jnp.isfinite(root.value)

        return draw
    policy, knobs = SEARCHES[name]
    plan = jaxpgs.make_plan_fn(env, apply_fn, policy, num_simulations, **knobs)

    def act(params: Any, key: Any, states: Any) -> tuple[Any, Any]:
        output = plan(params, key, states)
        state = output.search_state
        numbers = (output.action_weights, state.qvalues, state.value, state.entropy, state.params)
        finite = [
            jnp.all(jnp.isfinite(x).reshape(len(x), -1), axis=1) for x in jax.tree.leaves(numbers)
        ]
        return output.action, jnp.all(jnp.stack(finite), axis=0) & (state.skipped_updates == 0)

    return act


def play(
    env: Any, player: Act, preset: Preset, params: Any, key: Any
) -> tuple[np.ndarray, dict[str, float]]:
    """Plays a batch of games, with two players against random play and with both seats.

    Returns:
      The scores of all games, and by name: how many of the player's moves were illegal, how many
      answers held a number that is not finite, how many games were unfinished, and the milliseconds
      of a call.
    """
    step, other = step_with_keys(env), random_player(env)
    seat = jnp.arange(preset.batch) % env.num_players

    def move(params: Any, carry: Any) -> Any:
        t, states, scores, illegal, not_finite = carry
        keys = jax.random.split(jax.random.fold_in(key, t), 3)
        action, finite = player(params, keys[0], states)
        mine = (states.current_player == seat) & ~states.terminated
        allowed = jnp.take_along_axis(states.legal_action_mask, action[:, None], axis=1)[:, 0]
        action = jnp.where(mine, action, other(params, keys[1], states)[0])
        after = step(states, action, keys[2])
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, states)
        earned = jnp.take_along_axis(after.rewards, seat[:, None], axis=1)[:, 0]
        scores += jnp.where(states.terminated, 0.0, earned)
        illegal += jnp.sum(mine & ~allowed, dtype=jnp.int32)
        not_finite += jnp.sum(mine & ~finite, dtype=jnp.int32)
        return t + 1, after, scores, illegal, not_finite

    @jax.jit
    def run(params: Any, start: Any) -> Any:
        zero = jnp.int32(0)
        return jax.lax.while_loop(
            lambda carry: (carry[0] < preset.max_moves) & ~jnp.all(carry[1].terminated),
            lambda carry: move(params, carry),
            (zero, start, jnp.zeros(preset.batch), zero, zero),
        )

    start = jax.vmap(env.init)(jax.random.split(key, preset.batch))
    program = run.lower(params, start).compile()
    begin = time.perf_counter()
    moves, states, scores, illegal, not_finite = jax.device_get(program(params, start))
    ms = 1e3 * (time.perf_counter() - begin) / int(moves)
    facts = {
        "illegal": int(illegal),
        "not_finite": int(not_finite),
        "unfinished": int(np.sum(~states.terminated)),
        "ms_per_move": ms,
    }
    return scores, facts


if __name__ == "__main__":
    main()
