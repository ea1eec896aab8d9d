"""Toy games as tables, for tests that check a search against numbers worked out elsewhere.

A game is the parameters themselves: what an action does, what it pays and what the network says of
the node it leads to are tables indexed by node. So all games of one shape share a compiled search.
The embedding is the node. The policy is linear, `logits[node] = torso[node] @ head`; the head is
what adapts.
"""

import functools

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax

import jaxpgs


def adapt_head(path, leaf):
    """The predicate that chooses the policy's linear layer."""
    del leaf
    return path[0].key == "head"


def tree(branching, depth, *, discount=1.0, features=None, head=None, value=None, reward=None):
    """A complete tree: action a of node s leads to node `branching * s + a + 1`.

    Actions of the last level stay where they are. No episode ends, unless a test writes zeros into
    `discount`. Without a head every policy is uniform.
    """
    first_leaf = sum(branching**d for d in range(depth))
    nodes = first_leaf + branching**depth
    inner = np.arange(nodes) < first_leaf
    children = branching * np.arange(nodes)[:, None] + np.arange(branching) + 1
    features = np.ones((nodes, 1)) if features is None else np.asarray(features)
    head = np.zeros((features.shape[1], branching)) if head is None else np.asarray(head)
    shape = (nodes, branching)
    return {
        "head": jnp.asarray(head, jnp.float32),
        "torso": jnp.asarray(features, jnp.float32),
        "value": jnp.asarray(np.zeros(nodes) if value is None else value, jnp.float32),
        "next": jnp.asarray(np.where(inner[:, None], children, np.arange(nodes)[:, None])),
        "reward": jnp.asarray(np.zeros(shape) if reward is None else reward, jnp.float32),
        "discount": jnp.asarray(np.full(shape, discount), jnp.float32),
    }


def node_of(branching, actions):
    """The node of a tree that a sequence of actions leads to."""
    node = 0
    for action in actions:
        node = branching * node + action + 1
    return node


def actions_to(branching, node):
    """The sequence of actions that leads to a node of a tree."""
    actions = []
    while node:
        actions.append((node - 1) % branching)
        node = (node - 1) // branching
    return tuple(reversed(actions))


def root(params, nodes=(0,), logits=None):
    """The roots of a search at the given nodes."""
    nodes = jnp.asarray(nodes, jnp.int32)
    if logits is None:
        logits = params["torso"][nodes] @ params["head"]
    return mctx.RootFnOutput(
        prior_logits=jnp.asarray(logits, jnp.float32), value=params["value"][nodes], embedding=nodes
    )


def start(params, batch_size):
    """The parameters that a first search adapts, as `adapted_params`."""
    head = jnp.tile(params["head"][None], (batch_size, 1, 1))
    return {name: None for name in params} | {"head": head}


def recurrent_fn(params, rng_key, action, node):
    """Plays one action of the game that `params` holds."""
    del rng_key
    after = params["next"][node, action].astype(node.dtype)
    output = mctx.RecurrentFnOutput(
        reward=params["reward"][node, action],
        discount=params["discount"][node, action],
        prior_logits=params["torso"][after] @ params["head"],
        value=params["value"][after],
    )
    return output, after


def pgs(
    params,
    rng_key,
    root,
    invalid_actions,
    adapted_params=None,
    learning_rate=0.0,
    horizon=3,
    poisoned=-1,
    *,
    num_simulations,
    simulations_per_update,
):
    """Policy gradient search of the head, compiled once per shape and count.

    Simulations have length `horizon`, at most 3. The update after `poisoned` simulations has a
    gradient of NaN.
    """
    # jit would take defaults for constants and compile anew for each choice of arguments.
    traced = (params, rng_key, root, invalid_actions, adapted_params)
    return _pgs(*traced, learning_rate, horizon, poisoned, num_simulations, simulations_per_update)


@functools.partial(jax.jit, static_argnums=(8, 9))
def _pgs(
    params,
    rng_key,
    root,
    invalid_actions,
    adapted_params,
    learning_rate,
    horizon,
    poisoned,
    num_simulations,
    simulations_per_update,
):
    reinforce = jaxpgs.reinforce()

    def estimator(stats, trajectory, returns):
        poison = jnp.sum(stats.visits, axis=-1) == poisoned
        return reinforce(stats, trajectory, returns) * jnp.where(poison, jnp.nan, 1.0)

    return jaxpgs.pgs_policy(
        params,
        rng_key,
        root,
        recurrent_fn,
        num_simulations,
        invalid_actions,
        adapt=adapt_head,
        adapted_params=adapted_params,
        optimizer=optax.sgd(learning_rate),
        estimator=estimator,
        backup=jaxpgs.n_step(),
        truncation=jaxpgs.fixed(3)._replace(stop=lambda memory, path: path.depth >= horizon),
        simulations_per_update=simulations_per_update,
    )
