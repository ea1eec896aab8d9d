"""What chance means to a search: a bandit whose arms pay by lot.

    python -m benchmarks.noisy_bandit

Four arms, at every root in another order, pay 1 with probabilities of 0.35, 0.45, 0.55 and 0.65,
else 0. A search that draws chance anew in every simulation finds the best arm, the surer the more
simulations it has. One that keeps the first outcome of each arm knows a single draw, however long
it looks, and chooses among the arms that happened to pay. The unit of the intervals is the root.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np

import jaxpgs
from benchmarks import pictures, report, runs
from benchmarks.chance_games import Game, linear_policy, stochastic_fns
from benchmarks.one_player import State, begin

ODDS = (0.35, 0.45, 0.55, 0.65)
SIMULATIONS = (8, 64)
ROOTS = 2000
_NO_NOISE = {"dirichlet_fraction": 0.0, "temperature": 0.0}


class Bandit:
    """Pull one arm; it pays 1 by its odds, else 0. A state knows the odds of the arms, `[4]`."""

    num_players = 1
    num_actions = len(ODDS)

    def init(self, key: Any) -> State:
        """Returns the state before the pull, with the arms in some order."""
        return begin(jax.random.permutation(key, jnp.asarray(ODDS)), self.num_actions)

    def after(self, state: State, action: jax.Array) -> tuple[jax.Array, State]:
        """Returns the logits of nothing and of 1, and the state before the lot is drawn."""
        odds = state.inner[action]
        return jnp.log(jnp.stack([1 - odds, odds])), state

    def draw(self, afterstate: State, outcome: jax.Array) -> State:
        """Pays the outcome."""
        rewards = jnp.where(afterstate.terminated, 0.0, outcome.astype(jnp.float32))[None]
        return dataclasses.replace(afterstate, rewards=rewards, terminated=jnp.bool_(True))

    def step(self, state: State, action: jax.Array, key: Any) -> State:
        """Pulls an arm."""
        logits, afterstate = self.after(state, action)
        return self.draw(afterstate, jax.random.categorical(key, logits))

    def observe(self, state: State) -> jax.Array:
        """Returns `[1]`: whether the arm was pulled."""
        return state.terminated.astype(jnp.float32)[None]


def make_game() -> Game:
    """Returns the bandit with a uniform policy and the value of a fair arm."""
    env = Bandit()
    params, apply_fn = linear_policy(1, len(ODDS), lambda features: 0.5 + 0 * features[:, 0])
    return Game(env, env.after, env.draw, params, apply_fn, 1)


# From a game to a search (rng_key, root, recurrent_fn, num_simulations) -> output.
SEARCHES: dict[str, Callable[..., Any]] = {
    "MCS constant": lambda game, *x: jaxpgs.mcs_policy(game.params, *x, mode="rollouts"),
    "MCS cached": lambda game, *x: jaxpgs.mcs_policy(game.params, *x, mode="tree"),
    "mctx MuZero": lambda game, *x: mctx.muzero_policy(game.params, *x, **_NO_NOISE),
    "mctx Gumbel": lambda game, *x: mctx.gumbel_muzero_policy(game.params, *x, gumbel_scale=0.0),
    "mctx stochastic MuZero": lambda game, rng_key, root, _, count: mctx.stochastic_muzero_policy(
        game.params, rng_key, root, *stochastic_fns(game), count, **_NO_NOISE
    ),
}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def choices(search: str, simulations: int, roots: int, rng_key: Any) -> jax.Array:
    """Returns the odds of the arms that a search chooses at so many roots."""
    game = make_game()
    start_key, rng_key = jax.random.split(rng_key)
    states = jax.vmap(game.env.init)(jax.random.split(start_key, roots))
    root = jaxpgs.make_root_fn(game.env, game.apply_fn)(game.params, rng_key, states)
    recurrent_fn = jaxpgs.make_recurrent_fn(game.env, game.apply_fn)
    arm = SEARCHES[search](game, rng_key, root, recurrent_fn, simulations).action
    return states.inner[jnp.arange(roots), arm]


def main(argv: list[str] | None = None) -> None:
    """Asks the searches; see the module's text."""
    parser = runs.parser("noisy_bandit", __doc__)
    args = parser.parse_args(argv)
    setting = {"odds": ODDS, "roots": ROOTS, "seed": args.seed}
    record = runs.open_record(parser, args, setting, ("search", "simulations"))
    for search in SEARCHES:
        for simulations in SIMULATIONS:
            if not runs.has(record, search=search, simulations=simulations):
                odds = choices(search, simulations, ROOTS, jax.random.key(args.seed))
                counts = [int(np.sum(np.isclose(odds, x))) for x in ODDS]
                row = {"search": search, "simulations": simulations, "chosen": counts}
                runs.add(record, row)
    rows = runs.read(record)
    report.print_table("A bandit whose arms pay by lot", *table(rows))
    lines = {
        search: [
            (row["simulations"], _share(row["chosen"])) for row in rows if row["search"] == search
        ]
        for search in SEARCHES
    }
    pictures.line_plot(
        record.path.with_suffix(".png"), {"arms that pay by lot": lines},
        title="How often the best arm is chosen", xlabel="simulations", ylabel="%",
        yscale="linear",
    )  # fmt: skip


def _share(chosen: Sequence[int]) -> tuple[float, float, float]:
    """Returns the percentage of the best arm with its 95% interval, of a normal distribution."""
    share = chosen[-1] / sum(chosen)
    half = 1.96 * (share * (1 - share) / sum(chosen)) ** 0.5
    return 100 * (share - half), 100 * share, 100 * (share + half)


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each search."""
    counts = list(dict.fromkeys(row["simulations"] for row in rows))
    columns = ["search", *(f"best arm with {n} simulations, %" for n in counts)]
    found = {(row["search"], row["simulations"]): _share(row["chosen"]) for row in rows}
    lines = []
    for search in dict.fromkeys(row["search"] for row in rows):
        cells = [found.get((search, n)) for n in counts]
        lines.append([search, *(c and f"{c[1]:.1f} ± {c[2] - c[1]:.1f}" for c in cells)])
    return columns, lines


if __name__ == "__main__":
    main()
