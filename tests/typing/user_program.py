"""A user's program, as `mypy --strict` reads it. It has three mistakes, and a comment tells each.

`tests/pages/test_typing.py` expects an error where a comment says `wrong: ...`, and nowhere else.
"""

import jax
import jax.numpy as jnp
import mctx
from flax import nnx

import jaxpgs
from jaxpgs.base import Params
from jaxpgs.training import Run, expert_iteration, make_expert


def least_tried(state: None, node: jaxpgs.base.NodeStats, pending: jax.Array) -> jax.Array:
    """A selection: the action with the fewest visits."""
    del state
    visits = jnp.where(node.valid, node.visits + pending, 2**31 - 1)
    return jnp.argmin(visits, axis=-1)


def greedy(rng_key: jax.Array, root: jaxpgs.base.NodeStats) -> tuple[jax.Array, jax.Array]:
    """A target that does not take the selection's state."""
    del rng_key
    best = jnp.argmax(root.qvalues, axis=-1)
    return best, jax.nn.one_hot(best, root.qvalues.shape[-1])


def most_visited(
    rng_key: jax.Array, root: jaxpgs.base.NodeStats, state: object
) -> tuple[jax.Array, jax.Array]:
    """A target: the action with the most visits."""
    del rng_key, state
    return jnp.argmax(root.visits, axis=-1), jax.nn.softmax(jnp.log(root.visits))


def searches(
    params: Params, key: jax.Array, root: mctx.RootFnOutput, fn: jaxpgs.RecurrentFn
) -> list[jaxpgs.PolicyOutput]:
    """Each search with some knobs, two of them with parts of our own."""
    data = params, key, root, fn, 32
    mine = jaxpgs.selection.Selection(least_tried)
    return [
        jaxpgs.mcs_policy(*data, root_selection=mine, target=most_visited),
        jaxpgs.mcs_policy(*data, target=greedy),  # wrong: of two arguments, and three are given
        jaxpgs.batched_mcts_policy(*data, simulations_per_update=4, temperature=1.0),
        jaxpgs.pgs_policy(*data, adapt="policy_head", truncation=jaxpgs.truncation.fixed(4)),
        jaxpgs.extended_pgs_policy(*data, adapt="policy_head", **jaxpgs.paper_extended_pgs()),
        jaxpgs.gumbel_pgs_policy(*data, adapt="policy_head", gumbel_scale=0.0),
        jaxpgs.gumbel_mcts_policy(*data, simulations_per_update="rounds", mode="tree"),
    ]


def opening(env: jaxpgs.base.Env, action: int) -> jax.Array:
    """What the network sees after a first move."""
    state = env.init(jax.random.key(0))
    return jnp.asarray(env.observe(env.step(state, jnp.int32(action))))


OPENINGS = [opening(jaxpgs.envs.Hex(5), 0), opening(jaxpgs.envs.SameGame(4, 4), 3)]


def move(network: str, key: jax.Array) -> int:
    """A move of a network that comes with the library."""
    net = jaxpgs.load_pretrained(network)
    plan = jaxpgs.make_plan_fn(net.env, net.apply_fn, jaxpgs.pgs_policy, 64, adapt="policy_head")
    output = plan(net.params, key, net.env.init())
    print(net.env.render(net.env.init(), output.action_weigths))  # wrong: misspelt
    return int(output.action)


def show(state: expert_iteration.ExpertIterationState, metrics: dict[str, float]) -> bool:
    """Prints an iteration. A true answer ends the training."""
    print(int(state.iteration), metrics["loss"])
    return metrics["loss"] < 0.5


def train(module: nnx.Module) -> Params:
    """Trains by a search with a part of our own."""
    expert = make_expert("pgs", 32, root_selection=jaxpgs.selection.Selection(least_tried))
    env = jaxpgs.envs.Hex(3)
    fit = expert_iteration.Fit(batch_size="256")  # wrong: a text
    games = expert_iteration.Games(num_games=64, max_random_moves=2)
    run = Run(directory="runs/mine", callback=show)
    state = expert_iteration.train(env, module, expert=expert, games=games, fit=fit, run=run)
    return state.params
