"""Players of continuous problems: Monte Carlo search, policy gradient search and CEM.

Each plans anew before every action, with so many calls of the model.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

import jaxpgs
from jaxpgs.adapters import chance_key, step_with_keys
from jaxpgs.base import Params
from jaxpgs.continuous import continuous_action, make_sampled_fns
from jaxpgs.networks import SplitApplyFn
from jaxpgs.search.model import merge, split

SIMULATIONS_PER_UPDATE = 4
ADAPT = {"policy_head": {"log_std": False, "mean": True}}


class Budget(NamedTuple):
    """What a decision may cost, and how it is spent.

    Attributes:
      calls: of the model, a step of a simulation each.
      depth: steps of a simulation.
      candidates: actions that a search chooses among, at the root and below it.
      iterations: of CEM.
    """

    calls: int
    depth: int
    candidates: int
    iterations: int


# (rng_key, states [B], memory) -> actions [B, D], memory
Decide = Callable[[chex.PRNGKey, Any, Any], tuple[chex.Array, Any]]
# (env, budget, numbers by name, B) -> decide, the first memory
MakePlayer = Callable[[Any, Budget, Mapping[str, chex.Array], int], tuple[Decide, Any]]


def play(
    make: MakePlayer,
    env: Any,
    budget: Budget,
    numbers: Mapping[str, chex.Array],
    rng_key: chex.PRNGKey,
    states: Any,
) -> chex.Array:
    """Plays whole episodes.

    Args:
      make: `make_search` or `make_cem`.
      env: the problem, whose episodes have `env.length` steps.
      budget: of each decision.
      numbers: knobs of the player.
      rng_key: a key, consumed.
      states: `[B]` where to start.

    Returns:
      `[B]` what the episodes earned.
    """
    decide, memory = make(env, budget, numbers, len(states.terminated))
    step = step_with_keys(env)

    def move(carry: tuple, rng_key: chex.PRNGKey) -> tuple[tuple, chex.Array]:
        state, memory = carry
        action, memory = decide(rng_key, state, memory)
        after = step(state, action, chance_key(rng_key))
        return (after, memory), after.rewards[:, 0]

    keys = jax.random.split(rng_key, env.length)
    return jnp.sum(jax.lax.scan(move, (states, memory), keys)[1], axis=0)


def linear_policy(num_inputs: int, num_parts: int) -> tuple[Params, SplitApplyFn]:
    """Returns an untrained Gaussian policy, linear in the observation, and the value 0."""

    def head(params: Params, features: chex.Array) -> chex.Array:
        own = params["policy_head"]
        mean = features @ own["mean"]
        return jnp.concatenate([mean, jnp.broadcast_to(own["log_std"], mean.shape)], axis=-1)

    def torso(params: Params, observation: chex.Array) -> chex.Array:
        return jnp.concatenate([observation, jnp.ones((len(observation), 1))], axis=-1)

    params = {
        "policy_head": {
            "log_std": jnp.zeros(num_parts),
            "mean": jnp.zeros((num_inputs + 1, num_parts)),
        }
    }
    return params, SplitApplyFn(torso, head, lambda params, features: 0 * features[:, 0])


def make_search(
    learns: bool, env: Any, budget: Budget, numbers: Mapping[str, chex.Array], batch_size: int
) -> tuple[Decide, Any]:
    """Makes MCS or, if it learns the policy's mean, PGS, which remembers what it learned.

    Its numbers are `log_std` of the simulation policy and `root_log_std` of the policy that draws
    the root's candidates; `c`, the weight of exploration; for PGS `step`, its step size, and
    `keep`, above 0 if what was learned goes on to the next decision.
    """
    network, apply_fn = linear_policy(env.observation_shape[0], len(env.action_bounds[0]))
    root_fn, recurrent_fn = make_sampled_fns(env, apply_fn, budget.candidates)
    params, wide = (
        {"policy_head": network["policy_head"] | {"log_std": x + network["policy_head"]["log_std"]}}
        for x in (numbers["log_std"], numbers["root_log_std"])
    )
    knobs: dict[str, Any] = {
        "truncation": jaxpgs.fixed(budget.depth),
        "simulations_per_update": SIMULATIONS_PER_UPDATE,
        "mode": "rollouts",
        "root_selection": jaxpgs.max_min_puct(numbers["c"]),
        "target": jaxpgs.best_value(),
    }
    policy: Any = jaxpgs.mcs_policy
    if learns:
        policy = jaxpgs.pgs_policy
        knobs |= {
            "adapt": ADAPT,
            "estimator": jaxpgs.reinforce("mean", normalize=True),
            "optimizer": jaxpgs.auto_sgd(numbers["step"]),
        }
    own = jaxpgs.init_adapted(params, ADAPT, batch_size) if learns else None

    def draw_root(adapted: Params, rng_key: chex.PRNGKey, state: Any) -> Any:
        if not learns:
            return root_fn(wide, rng_key, state)

        def one(adapted: Params, rng_key: chex.PRNGKey, state: Any) -> Any:
            _, frozen = split(wide, [False, True])
            found = root_fn(merge(adapted, frozen), rng_key, jax.tree.map(lambda x: x[None], state))
            return jax.tree.map(lambda x: x[0], found)

        return jax.vmap(one)(adapted, jax.random.split(rng_key, batch_size), state)

    def decide(rng_key: chex.PRNGKey, state: Any, adapted: Params) -> tuple[chex.Array, Params]:
        root_key, search_key = jax.random.split(rng_key)
        root = draw_root(adapted, root_key, state)
        more = {"adapted_params": adapted} if learns else {}
        output = policy(
            params, search_key, root, recurrent_fn, budget.calls // budget.depth,
            max_depth=budget.depth, **knobs, **more,
        )  # fmt: skip
        if learns:
            adapted = jax.tree.map(
                lambda new, old: jnp.where(numbers["keep"] > 0, new, old),
                output.search_state.params, own,
            )  # fmt: skip
        return continuous_action(env, root, output), adapted

    return decide, own


def make_cem(
    env: Any, budget: Budget, numbers: Mapping[str, chex.Array], batch_size: int
) -> tuple[Decide, Any]:
    """Makes the cross-entropy method over sequences of actions, which remembers its last plan.

    Its numbers are `log_std` of the first sequences, in half the distance between the bounds;
    `elite`, the share of the sequences that the next ones are drawn around, above 0 to 1; `keep`,
    above 0 if the plan's rest, one step on, is where the next decision begins.
    """
    low, high = (jnp.asarray(x) for x in env.action_bounds)
    count = budget.calls // budget.depth // budget.iterations
    elites = jnp.maximum(1, jnp.round(numbers["elite"] * count))
    step = step_with_keys(env)
    shape = (batch_size, budget.depth, len(low))

    def bounded(action: chex.Array) -> chex.Array:
        return jnp.clip((low + high) / 2 + (high - low) / 2 * action, low, high)

    def score(rng_key: chex.PRNGKey, state: Any, plan: chex.Array) -> chex.Array:
        """Returns what plans `[B, depth, D]` earn, one each."""

        def move(state: Any, inputs: tuple[chex.Array, chex.PRNGKey]) -> tuple[Any, chex.Array]:
            after = step(state, bounded(inputs[0]), inputs[1])
            return after, after.rewards[:, 0]

        keys = jax.random.split(rng_key, budget.depth)
        return jnp.sum(jax.lax.scan(move, state, (jnp.moveaxis(plan, 1, 0), keys))[1], axis=0)

    def decide(
        rng_key: chex.PRNGKey, state: Any, kept: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        def improve(carry: tuple, rng_key: chex.PRNGKey) -> tuple[tuple, None]:
            mean, std = carry
            noise_key, chance_key = jax.random.split(rng_key)
            noise = jax.random.normal(noise_key, (count, *shape))
            plans = jnp.clip(mean + std * noise, -1, 1)
            found = jax.vmap(score, (0, None, 0))(jax.random.split(chance_key, count), state, plans)
            rank = jnp.argsort(jnp.argsort(-found, axis=0), axis=0)
            weight = (rank < elites)[..., None, None] / elites
            mean = jnp.sum(weight * plans, axis=0)
            return (mean, jnp.sqrt(jnp.sum(weight * (plans - mean) ** 2, axis=0)) + 0.01), None

        start = (kept, jnp.full(shape, jnp.exp(numbers["log_std"])))
        (mean, _), _ = jax.lax.scan(improve, start, jax.random.split(rng_key, budget.iterations))
        rest = jnp.concatenate([mean[:, 1:], jnp.zeros_like(mean[:, :1])], axis=1)
        return bounded(mean[:, 0]), jnp.where(numbers["keep"] > 0, rest, 0.0)

    return decide, jnp.zeros(shape)
