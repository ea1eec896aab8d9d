"""Toy games given as tables, for tests that compare a search with independent calculations.

The parameters hold the whole game as tables indexed by node: the successor and the reward of each
action, and the outputs of the network. So all games of one shape share a compiled search. The
embedding is the number of the node. The policy is linear, `logits[node] = torso[node] @ head`;
searches adapt the head.
"""

import functools
from typing import Any, NamedTuple

import games
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax

import jaxpgs
from jaxpgs.base import Path
from jaxpgs.search import Search, loop
from jaxpgs.search.learning import learn, update
from jaxpgs.search.parts.estimator import Estimator
from jaxpgs.search.parts.selection import Selection


def adapt_head(path, leaf):
    """The predicate that chooses the policy's linear layer."""
    del leaf
    return path[0].key == "head"


def tree(branching, depth, *, discount=1.0, features=None, head=None, value=None, reward=None):
    """Returns a complete tree: action a of node s leads to node `branching * s + a + 1`.

    Actions at the last level lead to the same node. Episodes do not end, unless a test writes zeros
    into `discount`. Without `head` every policy is uniform.
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
    """The `adapted_params` before any search: the head, repeated for each root."""
    head = jnp.tile(params["head"][None], (batch_size, 1, 1))
    return {name: None for name in params} | {"head": head}


def _expand(params, rng_key, action, node):
    del rng_key
    after = params["next"][node, action].astype(node.dtype)
    expansion = jaxpgs.base.Expansion(
        reward=params["reward"][node, action],
        discount=params["discount"][node, action],
        value=params["value"][after],
        features=params["torso"][after],
    )
    return expansion, after


# Plays one action of the game that `params` holds.
split_fn = jaxpgs.base.SplitRecurrentFn(
    _expand, lambda params, features, node: features @ params["head"]
)


def recurrent_fn(params, rng_key, action, node):
    """`split_fn` as a plain function, as a user may write one."""
    return split_fn(params, rng_key, action, node)


def _given(first, node, pending):
    """A `select` that takes given actions one after another; its state is these, `[B, K]`."""
    del node
    turn = jnp.sum(pending, axis=-1).astype(jnp.int32)
    return jnp.take_along_axis(first, turn[:, None], axis=1)[:, 0]


class Simulated(NamedTuple):
    """The simulations of an update, and the inputs that they were made from."""

    store: Any
    context: Any
    memory: Any
    simulations: Any
    table: Any

    @property
    def trajectory(self):
        return self.simulations.trajectory

    def gradient(self, cotangents):
        """The gradient of the head `[B, F, A]`; `cotangents` are `PolicyTerms`."""
        steps = self.simulations.steps
        blocks = self.store.blocks(self.context, self.memory, self.table, steps)
        wanted = {n: getattr(cotangents, n) for n in self.context.needed}
        return learn.differentiate(self.context, blocks, steps, wanted)["head"]


class Simulator:
    """Runs the simulations of single updates from node 0, with given first actions.

    No learning takes place: the step size is 0. With the mode "whole" the search makes rollouts
    with a plain model function, which is not split into dynamics and policy.
    """

    def __init__(self, params, truncation, max_depth, batch_size, mode, num_walks, needed, updates):
        self.params = params
        self.search = Search(
            recurrent_fn=recurrent_fn if mode == "whole" else split_fn,
            num_simulations=updates * num_walks,
            simulations_per_update=num_walks,
            root_selection=Selection(_given),
            truncation=truncation,
            backup=jaxpgs.backup.n_step(),
            target=jaxpgs.target.visit_counts(),
            adapt=adapt_head,
            max_depth=max_depth,
            mode="rollouts" if mode == "whole" else mode,
            estimator=Estimator(None, tuple(needed)) if needed else None,
            optimizer=optax.sgd(0.0) if needed else None,
        )
        keys = jax.random.split(jax.random.key(0), batch_size)
        self.carry = loop.init(self.search, params, keys, root(params, [0] * batch_size))

    def run(self, memory, rng_keys, first, n=0, head=None):
        """Returns the simulations of update n; `head` has one head per root, or is None."""
        carry = self.carry._replace(memory=memory, update_keys=rng_keys, selection=first)
        carry = carry._replace(num_updates=carry.num_updates + n)
        if head is not None:
            carry = carry._replace(adapted=dict.fromkeys(self.params) | {"head": head})
        store, context = loop.prepare(self.search, self.params, carry, 1)
        context, _, _, memory, simulations, table = update.simulate(store, context, carry)
        return Simulated(store, context, memory, simulations, table)


def num_used(nodes):
    """How many nodes of each root are in use `[B]`, the root not counted."""
    return np.sum(np.asarray(nodes.edge) >= 0, axis=-1)


def start_path(first, n=0):
    """Returns the paths of update n before the simulations take their first actions `[B, K]`."""
    zeros = jnp.zeros(first.shape, jnp.int32)
    return Path(
        depth=zeros,
        code=zeros.astype(jnp.uint32),
        log_prob=jnp.zeros(first.shape),
        alive=jnp.ones(first.shape, bool),
        visits=zeros,
        new=jnp.zeros(first.shape, bool),
        simulation=zeros + n * first.shape[1] + jnp.arange(first.shape[1])[None],
    )


@functools.partial(jax.jit, static_argnums=(3, 4, 5), compiler_options=games.QUICK)
def simulate(params, rng_keys, first, truncation, max_depth, mode):
    """Runs U updates from node 0 with given first actions `[U, B, K]`.

    Returns the U trajectories, stacked, and the memory after the last update.
    """
    num_updates, batch_size, num_walks = first.shape
    game = Simulator(params, truncation, max_depth, batch_size, mode, num_walks, (), num_updates)

    def update(memory, n):
        now = game.run(memory, rng_keys, first[n], n)
        returns = jnp.zeros_like(now.trajectory.value)
        memory = now.store.remember(now.context, now.memory, now.simulations, returns)
        return memory, now.trajectory

    memory, trajectories = jax.lax.scan(update, game.carry.memory, jnp.arange(num_updates))
    return trajectories, memory


def until_new(mode, truncation, depth=7):
    """Runs 12 updates of 3 x 8 simulations in a binary tree, at most `depth` actions long.

    Returns the trajectories; the lengths of the simulations `[12, 3, 8]`; the lengths expected from
    a set of all action sequences of earlier updates; how many sequences each update adds to that
    set, `[12, 3]`; and the final memory.
    """
    params = tree(2, depth, value=np.arange(2.0 ** (depth + 1) - 1))  # a value is the node's number
    first = np.random.default_rng(11).integers(0, 2, (12, 3, 8)).astype(np.int32)
    keys = jax.random.split(jax.random.key(11), 3)
    walks, memory = simulate(params, keys, first, truncation, depth, mode)
    last = np.take_along_axis(walks.value, walks.depth[:, None] - 1, axis=1)[:, 0].astype(int)
    exact, num_new = np.zeros(first.shape, int), np.zeros((12, 3), int)
    seen = [set() for _ in range(3)]
    for n, b in np.ndindex(12, 3):
        before = set(seen[b])
        for k, node in enumerate(last[n, b].tolist()):
            sequence = actions_to(2, node)
            assert sequence[0] == first[n, b, k] and len(sequence) == walks.depth[n, b, k]
            prefixes = [sequence[:d] for d in range(1, len(sequence) + 1)]
            exact[n, b, k] = next((len(p) for p in prefixes if p not in before), depth)
            seen[b].update(prefixes)
        num_new[n, b] = len(seen[b]) - len(before)
    return walks, np.asarray(walks.depth), exact, num_new, memory


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
    mode="rollouts",
):
    """Runs policy gradient search that adapts the head; compiled once per shape, count and mode.

    Simulations have length `horizon`, at most 3. The update after `poisoned` simulations has a
    gradient of NaN.
    """
    # jit would treat defaults as constants and compile again for each choice of arguments.
    traced = (params, rng_key, root, invalid_actions, adapted_params)
    counts = (num_simulations, simulations_per_update)
    return _pgs(*traced, learning_rate, horizon, poisoned, *counts, mode)


@functools.partial(jax.jit, static_argnums=(8, 9, 10), compiler_options=games.QUICK)
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
    mode,
):
    reinforce = jaxpgs.estimator.reinforce()

    def estimator(stats, trajectory, returns):
        poison = jnp.sum(stats.visits, axis=-1) == poisoned
        return reinforce(stats, trajectory, returns) * jnp.where(poison, jnp.nan, 1.0)

    return jaxpgs.pgs_policy(
        params,
        rng_key,
        root,
        split_fn,
        num_simulations,
        invalid_actions,
        root_selection=jaxpgs.selection.puct(),
        target=jaxpgs.target.visit_counts(),
        mode=mode,
        adapt=adapt_head,
        adapted_params=adapted_params,
        optimizer=optax.sgd(learning_rate),
        estimator=estimator,
        backup=jaxpgs.backup.n_step(),
        truncation=jaxpgs.truncation.fixed(3)._replace(stop=lambda path: path.depth >= horizon),
        simulations_per_update=simulations_per_update,
        interior_selection=None,
    )
