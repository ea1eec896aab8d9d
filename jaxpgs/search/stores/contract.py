"""What the walk asks a store, and what both are told: the records of an update."""

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
    """What an update is made with; what is not traced is worked out once.

    Attributes:
      search: the search.
      model: its model.
      adapted: the parameters that adapt, leading axis B.
      needed: names of the `PolicyTerms` that the objective is differentiated by.
      embedding: shapes `[B, K, ...]` of states.
      features: shapes `[B, K, ...]` of what the policy reads.
      max_depth: T.
      rows: how a store lays out its memory, None if it has no need to.
      keys: what the update's network calls draw by.
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
        """Calls a function of `[B, K, ...]` with those simulations alone that were started.

        A program has a copy of it for each width, which is most of what rounds add to the time of
        compiling; to start more where few would do, for a copy less, costs more than it saves
        (`python tests/quality schedules`).
        """
        if self.width is None:
            return function(*arrays)
        widths = sorted(set(self.search.widths))

        def with_first(width: int) -> Any:
            found = function(*jax.tree.map(lambda x: x[:, :width], arrays))
            # Branches must agree in shape, so simulations that were not started repeat the results
            # of the first one. They are not alive, so nothing reads them.
            rest = widths[-1] - width
            more = lambda x: jnp.broadcast_to(x[:, :1], (x.shape[0], rest, *x.shape[2:]))  # noqa: E731
            return jax.tree.map(lambda x: jnp.concatenate([x, more(x)], axis=1), found)

        # The narrowest of the compiled widths that has room for the update.
        which = sum((self.width > width).astype(jnp.int32) for width in widths[:-1])
        return jax.lax.switch(which, [functools.partial(with_first, w) for w in widths])


class Reached(NamedTuple):
    """Where a step has led, `[B, K]` each.

    Attributes:
      child: int32, the number of the state in a tree, 0 where it is yet to be made or has none;
        in rollouts the hash of the actions that have led there.
      new: bool, where no simulation of an earlier update has taken this sequence.
      reward: of the step.
      discount: of the step, 1 where it is not known yet.
      value: the network's, of the state.
      evaluations: `[B]` int32, states evaluated.
      calls: `[B]` int32, network calls.
      not_finite: `[B]` int32, those of the evaluations with a number that is not finite.
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
    """What a simulation sees where it is.

    Attributes:
      policy: the simulation policy.
      prior: `[B, K, A]` the prior's, None if nothing compares with it.
      stats: `[B, K, A]` what the node remembers, None without nodes.
    """

    policy: Categorical
    prior: chex.Array | None
    stats: Any  # `NodeStats`, or None


class Steps(NamedTuple):
    """Steps that the simulation policy took, `[T, B, K]` each; never at t = 0, the selection's.

    Attributes:
      acting: bool, where it took one.
      source: `[T, B, K, ...]`, by what the store finds the state it acted in.
      action: int32, the action.
    """

    acting: chex.Array
    source: Any
    action: chex.Array


class Blocks(NamedTuple):
    """The states in which simulations acted, R of each root at a time, for the gradient.

    Attributes:
      row: `[B, S]` int32, where the state of each of the S = T K steps stands among all; anything
        where no step was taken.
      num_rows: R.
      num_blocks: int or int32, how many blocks there are.
      evaluate: `(adapted, i) -> (policy [B, R, A], prior, pull)`: the simulation policy in block i,
        the prior's or None, and what leads derivatives by the logits back to the parameters.
    """

    row: chex.Array
    num_rows: int
    num_blocks: int | chex.Array
    evaluate: Callable[[Params, Any], tuple[chex.Array, chex.Array | None, Callable[..., Any]]]


class Store(NamedTuple):
    """Where states come from, and what is remembered of them: pure functions of a context.

    Attributes:
      init: `(context, root, kept) -> memory`. Every array has a leading axis B.
      begin: `(context, memory, actions) -> place`: all simulations at the root.
      follow: `(context, memory, place, action, t, path) -> (memory, place, Reached)`.
      look: `(context, memory, table, place) -> Seen`.
      close: `(context, memory, place, action, waiting) -> (memory, Reached)`: makes the states in
        which simulations stopped without knowing them; None in place of `Reached` if there are
        none.
      make_table: `(context, memory) -> table`: what the whole update looks things up in.
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
      trajectory: step by step.
      norms: `[T, B, K]` by name, norms of the needed terms' derivatives by the logits.
      steps: what the simulation policy did.
      child: `[T, B, K]` int32, the number of the state that each step reached.
    """

    trajectory: Trajectory
    norms: dict[str, chex.Array]
    steps: Steps
    child: chex.Array
