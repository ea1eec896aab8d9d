"""What does learning do to the values of the root's candidates? On the pendulum, beside exact ones.

    python -m benchmarks.root_values

64 states of the pendulum with 8 candidate torques each are searched with 16 keys. Value iteration
on a grid, with a discount of 0.99, says what each candidate is worth. The unit of the intervals is
the state. For Monte Carlo search and for PGS with one knob moved
at a time, a row tells

- how far the values of a state's candidates are apart, in the mean over keys (the signal), and how
  far a single search is off that mean (the noise), both as standard deviations;
- the regret of the candidate that the search chose, and that of the one with the best mean value,
  which no number of further searches would improve, both with the difference to Monte Carlo search
  of the same policy, depth, exploration and discount;
- the mean return of the simulations in the first and in the last update.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

import jaxpgs
from benchmarks import planners, report, runs
from benchmarks.paired import beside, bootstrap_mean
from jaxpgs import search as searches
from jaxpgs.continuous import make_sampled_fns
from jaxpgs.envs.pendulum import Pendulum, PendulumState

STATES, CANDIDATES, KEYS, SIMULATIONS, K = 64, 8, 16, 64, 8
EVEN = 1e6  # an exploration so large that all candidates are taken in turn
_DISCOUNT = 0.99
_ANGLES, _SPEEDS, _TORQUES = 121, 81, 9


class Setting(NamedTuple):
    """Of a search; a step size of 0 is Monte Carlo search."""

    step: float = 0.0
    log_std: float = 0.0
    c: float = EVEN
    depth: int = 24
    baseline: str = "mean"
    normalize: bool = True
    discount: float = 1.0


SETTINGS = {
    "MCS": Setting(),
    "PGS, step 0.03": Setting(0.03),
    "PGS, step 0.1": Setting(0.1),
    "PGS, step 0.3": Setting(0.3),
    "MCS, candidates by value": Setting(c=1.0),
    "PGS, step 0.1, candidates by value": Setting(0.1, c=1.0),
    "MCS, narrow policy": Setting(log_std=-2.0),
    "PGS, step 0.1, narrow policy": Setting(0.1, log_std=-2.0),
    "MCS, depth 12": Setting(depth=12),
    "PGS, step 0.1, depth 12": Setting(0.1, depth=12),
    "MCS, depth 12, narrow policy": Setting(depth=12, log_std=-2.0),
    "PGS, step 0.1, depth 12, narrow policy": Setting(0.1, depth=12, log_std=-2.0),
    "PGS, step 0.1, no baseline": Setting(0.1, baseline="none"),
    "PGS, step 0.001, no scaling": Setting(0.001, normalize=False),
    "PGS, step 0.1, discount 0.9": Setting(0.1, discount=0.9),
    "MCS, discount 0.9": Setting(discount=0.9),
}


def main(argv: list[str] | None = None) -> None:
    """Asks the searches; see the module's text."""
    parser = runs.parser("root_values", __doc__)
    args = parser.parse_args(argv)
    setting = {"states": STATES, "candidates": CANDIDATES, "keys": KEYS, "K": K,
               "simulations": SIMULATIONS, "seed": args.seed}  # fmt: skip
    record = runs.open_record(parser, args, setting, ("setting",))
    exact = solve()
    with report.progress_bar("root values") as progress:
        for i, (name, asked) in enumerate(SETTINGS.items()):
            progress(i, len(SETTINGS), name)
            if not runs.has(record, setting=name):
                runs.add(
                    record, {"setting": name} | asked._asdict() | measure(asked, exact, args.seed)
                )
    report.print_table("Values of the root's candidates", *table(runs.read(record)))


@jax.jit
def solve() -> chex.Array:
    """Returns the values of angles and speeds on a grid, by value iteration."""
    angle, speed = jnp.meshgrid(
        jnp.linspace(-jnp.pi, jnp.pi, _ANGLES), jnp.linspace(-8, 8, _SPEEDS), indexing="ij"
    )
    torques = jnp.linspace(-2, 2, _TORQUES)

    def sweep(_: int, values: chex.Array) -> chex.Array:
        return jnp.max(jax.vmap(lambda u: worth(values, angle, speed, u))(torques), axis=0)

    return jax.lax.fori_loop(0, 600, sweep, jnp.zeros((_ANGLES, _SPEEDS)))


def worth(
    values: chex.Array, angle: chex.Array, speed: chex.Array, torque: chex.Array
) -> chex.Array:
    """Returns what torques are worth, by the rules of the pendulum and the values on the grid."""
    env = Pendulum(2)
    shape = jnp.broadcast_shapes(angle.shape, torque.shape)

    def step(angle: chex.Array, speed: chex.Array, torque: chex.Array) -> tuple[chex.Array, ...]:
        zero = jnp.int32(0)
        state = PendulumState(angle, speed, zero, zero, jnp.zeros(1), jnp.bool_(False))
        after = env.step(state, torque[None])
        return after.rewards[0], after.angle, after.speed

    every = (jnp.broadcast_to(x, shape).ravel() for x in (angle, speed, torque))
    reward, angle, speed = (x.reshape(shape) for x in jax.vmap(step)(*every))
    x = ((angle + jnp.pi) % (2 * jnp.pi)) / (2 * jnp.pi) * (_ANGLES - 1)
    y = (speed + 8) / 16 * (_SPEEDS - 1)
    return reward + _DISCOUNT * jax.scipy.ndimage.map_coordinates(values, [x, y], 1, "nearest")


@functools.partial(jax.jit, static_argnums=0)
def _ask(
    static: Setting, numbers: dict[str, float], exact: chex.Array, seed: int, rng_key: Any
) -> Any:
    """Searches all states once: values of the candidates, exact ones, choices, returns."""
    env = Pendulum(1000)
    network, apply_fn = planners.linear_policy(3, 1)
    root_fn, recurrent_fn = make_sampled_fns(env, apply_fn, CANDIDATES, discount=static.discount)
    keys = jax.random.split(jax.random.key(seed), 3)
    states = jax.vmap(env.init)(jax.random.split(keys[0], STATES))
    speed = jax.random.uniform(keys[1], (STATES,), minval=-6.0, maxval=6.0)
    states = dataclasses.replace(states, speed=speed)
    root = root_fn(network, keys[2], states)
    head = network["policy_head"]
    params = {"policy_head": head | {"log_std": head["log_std"] + numbers["log_std"]}}
    search = jaxpgs.pgs_search(
        recurrent_fn, SIMULATIONS, adapt=planners.ADAPT, mode="rollouts",
        truncation=jaxpgs.fixed(static.depth), max_depth=static.depth, simulations_per_update=K,
        estimator=jaxpgs.reinforce(static.baseline, normalize=static.normalize),
        optimizer=jaxpgs.auto_sgd(numbers["step"]), target=jaxpgs.best_value(),
        root_selection=jaxpgs.max_min_puct(numbers["c"]),
    )  # fmt: skip
    carry = searches.init(search, params, rng_key, root)

    def update(carry: Any, _: None) -> tuple[Any, chex.Array]:
        after = searches.step(search, params, carry)
        return after, jnp.sum(after.stats.value_sum - carry.stats.value_sum, axis=-1) / K

    carry, returns = jax.lax.scan(update, carry, None, SIMULATIONS // K)
    torque = jnp.clip(2 * root.embedding.actions[..., 0], -2, 2)
    true = worth(exact, states.angle[:, None], states.speed[:, None], torque)
    action = searches.finish(search, carry).action
    return carry.stats.qvalues, true, action, jnp.mean(returns, axis=1)


def measure(asked: Setting, exact: chex.Array, seed: int) -> dict[str, Any]:
    """Returns the figures of a setting; see the module's text."""
    static = asked._replace(step=0.0, log_std=0.0, c=0.0)
    # Steps of PGS this small leave the policy as it is.
    numbers = {"step": asked.step or 1e-9, "log_std": asked.log_std, "c": asked.c}
    found = [
        jax.device_get(_ask(static, numbers, exact, seed, jax.random.key(1000 + n)))
        for n in range(KEYS)
    ]
    values, true, action, returns = (np.stack([x[i] for x in found]) for i in range(4))
    # What all candidates have in common does not matter.
    apart = values - values.mean(axis=-1, keepdims=True)
    regret = true.max(-1) - np.take_along_axis(true, action[..., None], axis=-1)[..., 0]
    best = apart.mean(axis=0).argmax(-1)
    lasting = true[0].max(-1) - true[0][np.arange(STATES), best]
    return {
        "signal": apart.mean(axis=0).std(-1).mean(),
        "noise": np.sqrt(apart.var(axis=0, ddof=1).mean(-1)).mean(),
        "regret": regret.mean(axis=0),
        "lasting_regret": lasting,
        "first": returns[:, 0].mean(),
        "last": returns[:, -1].mean(),
    }


def like(row: Mapping[str, Any]) -> tuple[float, ...]:
    """Returns what a search has in common with the Monte Carlo search that it is compared with."""
    return tuple(row[name] for name in ("log_std", "c", "depth", "discount"))


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns headings and a line for each setting."""
    columns = ["search", "signal", "noise", "regret", "over MCS", "95%",
               "regret of the mean values", "over MCS ", "95% ", "return, first update",
               "last update"]  # fmt: skip
    plain = {like(row): row for row in rows if not row["step"]}
    lines = []
    for row in rows:
        cells: list[str | None] = []
        for name in ("regret", "lasting_regret"):
            mean, low, high = bootstrap_mean(row[name])
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
            cells += beside(row, [plain.get(like(row))], name, 2)
        lines.append([row["setting"], round(row["signal"], 2), round(row["noise"], 2), *cells,
                      round(row["first"], 1), round(row["last"], 1)])  # fmt: skip
    return columns, lines


if __name__ == "__main__":
    main()
