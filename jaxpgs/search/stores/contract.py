"""The interface between the walk and a store, and the records of an update."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxpgs.base import Embedding, Params, Trajectory
from jaxpgs.search.definition import Search
from jaxpgs.search.models.model import Model
from jaxpgs.search.policy import Categorical


class Context(NamedTuple):
    """The context of an update; everything that is not traced is computed once.

    Attributes:
      search: the search.
      model: its model.
      adapted: the parameters that adapt, leading axis B.
      needed: names of the `PolicyTerms` that the objective is differentiated by.
      embedding: shapes `[B, K, ...]` of states.
      features: shapes `[B, K, ...]` of what the policy reads.
      max_depth: T.
      rows: the layout of a store's memory, None if it needs none.
      keys: the keys of the update's network calls.
      start: int32, the first row of the memory that the update writes.
      width: int32, how many of the K simulations the update starts; None for all.
      scale: `[B]` as in `NodeStats`, before the update.
      dense: whether the program is for an accelerator.
    """

    search: Search
    model: Model
    adapted: Params
    needed: frozenset[str]
    embedding: Embedding
    features: Any
    max_depth: int
    rows: Any = None
    keys: Any = None  # `Keys`, once an update begins
    start: Any = None
    width: Any = None
    scale: Any = None
    dense: bool = False

    @property
    def adapts(self) -> bool:
        """Whether any parameter adapts."""
        return self.search.adapt is not None

    def in_width(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Calls a function of `[B, K, ...]` with only those simulations that were started.

        A program has a copy of the function for each width, which is most of the extra compilation
        time of rounds. Fewer copies, with more simulations than needed, cost more than they save
        (`python tests/quality schedules`).
        """
        if self.width is None:
            return function(*arrays)
        widths = sorted(set(self.search.widths))

        def with_first(width: int) -> Any:
            found = function(*jax.tree.map(lambda x: x[:, :width], arrays))
            # Branches must have equal shapes, so simulations that were not started repeat the
            # results of the first one. They are not alive, so nothing reads them.
            rest = widths[-1] - width
            more = lambda x: jnp.broadcast_to(x[:, :1], (x.shape[0], rest, *x.shape[2:]))  # noqa: E731
            return jax.tree.map(lambda x: jnp.concatenate([x, more(x)], axis=1), found)

        # The smallest of the compiled widths that has room for the update.
        which = sum((self.width > width).astype(jnp.int32) for width in widths[:-1])
        return jax.lax.switch(which, [functools.partial(with_first, w) for w in widths])


class Reached(NamedTuple):
    """Where a step has led, `[B, K]` each.

    Attributes:
      child: int32, the number of the state in a tree, 0 if it is not created yet or has none; in
        rollouts the hash of the actions that have led there.
      new: bool, whether no simulation of an earlier update has taken this sequence.
      reward: the reward of the step.
      discount: the discount of the step, 1 if it is not known yet.
      value: the network's value of the state.
      evaluations: `[B]` int32, states evaluated.
      calls: `[B]` int32, network calls.
      not_finite: `[B]` int32, evaluations with a number that is not finite.
    """

    child: chex.Array
    new: chex.Array
    reward: chex.Array
    discount: chex.Array
    value: chex.Array
    evaluations: chex.Array
    calls: chex.Array
    not_finite: chex.Array


class Seen(NamedTuple):
    """What a simulation sees in its current state.

    Attributes:
      policy: the simulation policy.
      prior: `[B, K, A]` the prior's policy, None if nothing compares with it.
      stats: `[B, K, A]` the node's statistics, None without nodes.
    """

    policy: Categorical
    prior: chex.Array | None
    stats: Any  # `NodeStats`, or None


class Steps(NamedTuple):
    """Steps that the simulation policy took, `[T, B, K]` each; step 0 is the root selection's.

    Attributes:
      acting: bool, where it took a step.
      source: `[T, B, K, ...]`, how the store finds the state in which it acted.
      action: int32, the action.
    """

    acting: chex.Array
    source: Any
    action: chex.Array


class Blocks(NamedTuple):
    """The states in which simulations acted, in blocks of R states per root, for the gradient.

    Attributes:
      row: `[B, S]` int32, the index of the state of each of the S = T K steps among all states;
        arbitrary where no step was taken.
      num_rows: R.
      num_blocks: int or int32, the number of blocks.
      evaluate: `(adapted, i) -> (policy [B, R, A], prior, pull)`: the simulation policy in block i,
        the prior's policy or None, and the VJP from the logits to the parameters.
    """

    row: chex.Array
    num_rows: int
    num_blocks: int | chex.Array
    evaluate: Callable[[Params, Any], tuple[chex.Array, chex.Array | None, Callable[..., Any]]]


class Store(NamedTuple):
    """How states are provided and remembered: pure functions of a context.

    Attributes:
      init: `(context, root, kept) -> memory`. Every array has a leading axis B.
      begin: `(context, memory, actions) -> place`: all simulations at the root.
      follow: `(context, memory, place, action, t, path) -> (memory, place, Reached)`.
      look: `(context, memory, table, place) -> Seen`.
      close: `(context, memory, place, action, waiting) -> (memory, Reached)`: creates the unknown
        states in which simulations stopped; None instead of `Reached` if there are none.
      make_table: `(context, memory) -> table`: a look-up table for the whole update.
      blocks: `(context, memory, table, steps) -> Blocks`.
      record: `place -> source`, what `blocks` needs of a place; None if its number suffices.
      last: `(context, memory, place, child [B, K]) -> embedding`, the states reached.
      remember: `(context, memory, simulations, returns [T, B, K]) -> memory`, for the next update.
    """

    init: Callable[..., Any]
    begin: Callable[..., Any]
    follow: Callable[..., Any]
    look: Callable[..., Seen]
    close: Callable[..., Any]
    make_table: Callable[..., Any]
    blocks: Callable[..., Blocks]
    record: Callable[[Any], Any]
    last: Callable[..., Embedding]
    remember: Callable[..., Any]


class Simulations(NamedTuple):
    """The simulations of an update.

    Attributes:
      trajectory: the simulations step by step.
      norms: `[T, B, K]` by name, norms of the needed terms' derivatives by the logits.
      steps: the steps of the simulation policy.
      child: `[T, B, K]` int32, the number of the state that each step reached.
    """

    trajectory: Trajectory
    norms: dict[str, chex.Array]
    steps: Steps
    child: chex.Array
