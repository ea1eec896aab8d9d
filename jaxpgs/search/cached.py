"""The cached mode: simulations along remembered nodes.

A simulation walks down the nodes that earlier updates have made, reads the torso's features from
them and applies only the adapted head. The network is called for the nodes that the K simulations
of an update add, all in one batch: with `until_new`, N simulations cost at most N evaluations in
N / K calls (Anthony et al. 2019, end of section 3.1).
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import mctx

from jaxpgs.base import (
    Embedding,
    Expansion,
    Params,
    Path,
    RecurrentFn,
    Trajectory,
    finite,
)
from jaxpgs.search import adaptation
from jaxpgs.search.diary import Diary, differentiate
from jaxpgs.search.nodes import (
    Nodes,
    add_visits,
    expand,
    lookup,
    make_nodes,
    take,
    unique,
    write,
)
from jaxpgs.search.root_selection import RootSelection
from jaxpgs.search.split import split_in_two
from jaxpgs.search.tree import choose_in_nodes
from jaxpgs.search.truncation import Truncation
from jaxpgs.search.walk import (
    Distribution,
    Pull,
    Simulator,
    delay,
    distribution,
    draw,
    extend_code,
    go_on,
    invert,
)


class _Walks(NamedTuple):
    """The simulations of an update, on their way.

    Attributes:
      path: as the truncation sees them.
      node: `[B, K]` the last known node reached.
      action: `[B, K]` the action to take from there.
      waiting: `[B, K]` bool, stopped in a node that is yet to be made.
      num_calls: `[]` int32 network calls.
      visited: `[T, B, K]` the node that each step reached.
      log_prob: `[T, B, K]` of the action sampled there, 0 where none followed.
      entropy: `[T, B, K]` of the policy there, 0 where no action followed.
    """

    path: Path
    node: chex.Array
    action: chex.Array
    waiting: chex.Array
    num_calls: chex.Array
    visited: chex.Array
    log_prob: chex.Array
    entropy: chex.Array


def walks_on_nodes(
    params: Params,
    mask: list[bool],
    root: mctx.RootFnOutput,
    recurrent_fn: RecurrentFn,
    truncation: Truncation,
    max_depth: int,
    adapts: bool,
    *,
    num_simulations: int,
    simulations_per_update: int,
    interior_selection: RootSelection | None,
    nodes: Nodes | None,
    ranges: bool = False,
    keeps_last: bool = False,
) -> Simulator:
    """Makes the simulator of the cached mode.

    Args:
      params: the network's parameters.
      mask: which of its leaves adapt (`adaptation.adapt_mask`).
      root: the roots.
      recurrent_fn: plays actions and evaluates the states they lead to; a `SplitRecurrentFn` if
        parameters adapt.
      truncation: when a simulation stops.
      max_depth: T, the largest number of steps.
      adapts: whether `pull` will be called.
      num_simulations: N.
      simulations_per_update: K.
      interior_selection: how actions below the root are chosen; None samples from the policy.
      nodes: the memory to start from; None is an empty one.
      ranges: whether the nodes keep the smallest and the greatest return.
      keeps_last: whether the trajectory tells the embeddings of the states reached last.

    Returns:
      A simulator whose memory is the nodes and a diary of the last update.

    Raises:
      ValueError: if the recurrent function is not of two parts as it must be.
    """
    split_fn = split_in_two(params, mask, root, recurrent_fn)
    _, frozen = adaptation.split(params, mask)
    # Behind the last node there is room for one more block of K.
    new = num_simulations * (truncation.new_nodes or max_depth) + simulations_per_update
    nodes = make_nodes(params, root, split_fn.expand, new, nodes, ranges=ranges)
    batch_size, _, num_actions = nodes.children.shape
    at_once = (split_fn.max_batch or batch_size * simulations_per_update) // simulations_per_update

    def call_expand(inputs: tuple) -> tuple[Expansion, Embedding]:
        def call(inputs: tuple) -> tuple[Expansion, Embedding]:
            return split_fn.expand(params, *inputs)

        if at_once >= batch_size:
            return jax.vmap(call)(inputs)
        return jax.lax.map(call, inputs, batch_size=max(at_once, 1))

    def get_logits(adapted: Params, nodes: Nodes, node: chex.Array) -> chex.Array:
        features, states = take((nodes.features, nodes.embedding), node)
        logits = jax.vmap(lambda own, f, e: split_fn.policy(adaptation.merge(own, frozen), f, e))(
            adapted, features, states
        )
        return logits.astype(nodes.value.dtype)

    def run(
        adapted: Params,
        rng_keys: chex.PRNGKey,
        actions: chex.Array,
        path: Path,
        memory: tuple[Nodes, Diary | None],
    ) -> tuple[Trajectory, Pull, Callable[[chex.Array], tuple[Nodes, Diary | None]]]:
        nodes, diary = memory
        num_walks = actions.shape[1]
        step_keys, uniform = draw(rng_keys, max_depth, num_walks)

        @jax.named_scope("expand")
        def add(
            t: chex.Array, nodes: Nodes, walks: _Walks, wanted: chex.Array
        ) -> tuple[Nodes, chex.Array]:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, t))(step_keys)
            return expand(
                nodes, walks.node, walks.action, wanted, lambda a, e: call_expand((keys, a, e))
            )

        def arrive(t: chex.Array, nodes: Nodes, walks: _Walks) -> tuple[Nodes, _Walks]:
            """Takes step t, as far as it leads to known nodes, and stops those that must stop."""
            alive = walks.path.alive
            child = lookup(nodes, walks.node, walks.action)
            path = walks.path._replace(
                depth=walks.path.depth + alive.astype(jnp.int32), new=child == 0
            )
            stopping = (path.depth >= max_depth) | truncation.stop(path)
            num_calls = walks.num_calls
            if not truncation.one_call:
                wanted = alive & (child == 0) & ~stopping
                called = jnp.any(wanted)
                num_calls += called.astype(jnp.int32)
                nodes, made = jax.lax.cond(
                    called,
                    lambda nodes: add(t, nodes, walks, wanted),
                    lambda nodes: (nodes, jnp.zeros_like(child)),
                    nodes,
                )
                child = jnp.where(wanted, made, child)
            known = child > 0
            ended = stopping | (known & (take(nodes.discount, child) == 0))
            walks = walks._replace(
                path=path._replace(alive=alive & ~ended),
                node=jnp.where(alive & known, child, walks.node),
                waiting=walks.waiting | (alive & ~known),
                num_calls=num_calls,
                visited=walks.visited.at[t].set(child),
            )
            return nodes, walks

        def act(
            t: chex.Array, nodes: Nodes, walks: _Walks, diary: Diary | None
        ) -> tuple[_Walks, Diary | None]:
            """Samples the actions that follow step t."""
            alive = walks.path.alive
            row, index, count = unique(walks.node, alive)
            node = take(walks.node, index)

            def some(width: int) -> Callable[[], Distribution]:
                def evaluate() -> Distribution:
                    policy = distribution(finite(get_logits(adapted, nodes, node[:, :width])))
                    return jax.tree.map(lambda x: _widen(x, num_walks), policy)

                return evaluate

            widths = _widths(num_walks)
            policy = jax.lax.switch(_which(widths, count), [some(width) for width in widths])
            cumulative, last = take((policy.cumulative, policy.last), row)
            action = invert(cumulative, last, uniform[t])
            chosen = take(policy.policy.reshape(batch_size, -1), row * num_actions + action)
            log_prob = jnp.log(chosen)
            if diary is not None:
                diary = Diary(
                    size=diary.size + count,
                    node=write(diary.node, node, diary.size),
                    policy=write(diary.policy, policy.policy, diary.size),
                    start=diary.start.at[t].set(diary.size),
                    row=diary.row.at[t].set(row),
                    action=diary.action.at[t].set(action),
                )
            walks = walks._replace(
                path=go_on(walks.path, action, log_prob),
                action=jnp.where(alive, action, walks.action),
                log_prob=walks.log_prob.at[t].set(jnp.where(alive, log_prob, 0.0)),
                entropy=walks.entropy.at[t].set(jnp.where(alive, take(policy.entropy, row), 0.0)),
            )
            return walks, diary

        def descend(t: chex.Array, nodes: Nodes, walks: _Walks) -> _Walks:
            """Chooses the actions that follow step t by the statistics of the nodes."""
            assert interior_selection is not None
            action, log_prob, entropy = choose_in_nodes(
                interior_selection, nodes, walks.node, walks.path.alive
            )
            alive = walks.path.alive
            return walks._replace(
                path=go_on(walks.path, action, log_prob),
                action=jnp.where(alive, action, walks.action),
                entropy=walks.entropy.at[t].set(jnp.where(alive, entropy, 0.0)),
            )

        def step(carry: tuple) -> tuple:
            t, nodes, walks, diary = carry
            if interior_selection is None:
                walks, diary = act(t, nodes, walks, diary)
            else:
                walks = descend(t, nodes, walks)
            return (t + 1, *arrive(t + 1, nodes, walks), diary)

        counts = jnp.zeros((max_depth, batch_size, num_walks), jnp.int32)
        reals = jnp.zeros(counts.shape, nodes.value.dtype)
        walks = _Walks(
            path=path._replace(code=extend_code(path.code, actions)),
            node=jnp.zeros_like(actions),
            action=actions,
            waiting=jnp.zeros(actions.shape, bool),
            num_calls=jnp.int32(0),
            visited=counts,
            log_prob=reals,
            entropy=reals,
        )
        before = nodes.size
        if diary is not None:
            diary = diary._replace(size=jnp.zeros_like(diary.size))
        _, nodes, walks, diary = jax.lax.while_loop(
            lambda carry: jnp.any(carry[2].path.alive),
            step,
            (jnp.int32(0), *arrive(jnp.int32(0), nodes, walks), diary),
        )
        # What a walk waits for may have been made on the way, for another that had to go on.
        found = lookup(nodes, walks.node, walks.action)
        wanted = walks.waiting & (found == 0)
        nodes, made = add(jnp.int32(max_depth), nodes, walks, wanted)
        made = jnp.where(wanted, made, found)
        depth = walks.path.depth
        steps = jnp.arange(max_depth)[:, None, None]
        alive = steps < depth[None]
        visited = jnp.where(walks.waiting[None] & (steps == depth[None] - 1), made, walks.visited)
        reward, discount, value = (
            jnp.where(alive, jax.vmap(take, (None, 0))(x, visited), 0.0)
            for x in (nodes.reward, nodes.discount, nodes.value)
        )
        trajectory = Trajectory(
            alive=alive,
            reward=reward,
            discount=discount,
            value=value,
            log_prob=delay(walks.log_prob),
            entropy=walks.entropy,
            depth=depth,
            num_evaluations=nodes.size - before,
            num_calls=walks.num_calls + jnp.any(wanted).astype(jnp.int32),
            last=take(nodes.embedding, jnp.max(jnp.where(alive, visited, 0), axis=0))
            if keeps_last
            else None,
        )

        @jax.named_scope("gradient")
        def pull(cotangent: chex.Array) -> Params:
            assert diary is not None
            return differentiate(
                lambda own, node: get_logits(own, nodes, node), adapted, diary, alive, cotangent
            )

        def remember(returns: chex.Array) -> tuple[Nodes, Diary | None]:
            if interior_selection is None:
                return nodes, diary
            return add_visits(nodes, visited, alive, returns), diary

        return trajectory, pull, remember

    def init() -> tuple[Nodes, Diary | None]:
        if not adapts:
            return nodes, None
        # At most every known state; and one more block, as the last one may reach over the end.
        num_rows = min(max_depth * simulations_per_update, nodes.parent.shape[1])
        rows = (batch_size, num_rows + simulations_per_update)
        steps = jnp.zeros((max_depth, batch_size, simulations_per_update), jnp.int32)
        diary = Diary(
            size=nodes.size,
            node=jnp.zeros(rows, jnp.int32),
            policy=jnp.zeros((*rows, num_actions), root.prior_logits.dtype),
            start=steps[..., 0],
            row=steps,
            action=steps,
        )
        return nodes, diary

    return Simulator(init, run)


def _widths(num_walks: int) -> list[int]:
    """The numbers of rows for which the head is compiled: the fewest that hold all are taken."""
    return sorted({-(-num_walks * eighths // 8) for eighths in (1, 2, 4, 6, 8)})


def _which(widths: list[int], count: chex.Array) -> chex.Array:
    return jnp.sum(jnp.max(count) > jnp.array(widths))


def _widen(x: chex.Array, num_walks: int) -> chex.Array:
    """Pads `[B, W, ...]` to `[B, K, ...]`."""
    return jnp.pad(x, [(0, 0), (0, num_walks - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
