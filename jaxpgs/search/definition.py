"""What a search is: a model, a budget and the parts that decide everything."""

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import optax

from jaxpgs.base import Adapt, Embedding, RecurrentFn, SplitRecurrentFn
from jaxpgs.device_memory import MAX_COUNT
from jaxpgs.search.parts.backup import Backup
from jaxpgs.search.parts.estimator import Estimator
from jaxpgs.search.parts.improvement import SampledPolicy
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.selection import Selection
from jaxpgs.search.parts.target import Target
from jaxpgs.search.parts.truncation import Truncation
from jaxpgs.search.simulators import cached, constant
from jaxpgs.search.simulators.simulator import Simulator

MODES = {"constant": constant.simulator, "cached": cached.simulator}


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """A search: a model, a budget and the parts that decide everything. Presets make one.

    Attributes:
      recurrent_fn: `(params, rng_key, action, embedding) -> (mctx.RecurrentFnOutput, embedding)`.
        It is called with one key, under `jax.vmap` over roots, with a batch of K. Its logits are
        treated as the root's; rewards, discounts and values that are not finite count as 0.
      num_simulations: N, the budget of simulations, at least 1. Steps beyond it change nothing.
      simulations_per_update: K, at least 1. The K simulations of an update share one policy. Where
        K does not divide N, the last update runs the simulations that are left.
      root_selection: which first actions the simulations take.
      truncation: when a simulation stops.
      backup: what return it reports.
      target: what the search says in the end.
      interior_selection: how actions below the root are chosen. None draws them from the adapted
        policy; a `SampledPolicy` follows a policy that reads the nodes' statistics; a
        `Selection` chooses them by these statistics, which makes the search a tree search, and then
        nothing may adapt. Cached mode only, but for None.
      estimator: how the adapted parameters move; None keeps them, which is Monte Carlo search.
      optimizer: an optax optimizer of the adapted parameters; its state starts anew in each search.
        Required with an estimator.
      adapt: which parameters adapt: a pytree of booleans like `params`, or a predicate
        `(path, leaf) -> bool`. Required with an estimator.
      max_depth: T, the largest number of actions in a simulation; memory grows with it. None takes
        the truncation's own bound if it has one. Otherwise the constant mode takes 16, and the
        cached mode cuts nothing off.
      mode: "constant" simulates in memory that does not depend on N. "cached" remembers every
        state visited and evaluates it once, so that with `until_new` an update is one network call;
        if parameters adapt it needs a `SplitRecurrentFn`, such as `make_recurrent_fn` returns. Both
        give the same answer from the same key, but for collisions in the constant mode's hash table
        (`until_new`). A model that draws by its key differs: in constant mode every visit of a
        state draws anew, in cached mode the first draw stays. Or a `Simulator` of your own.
      capacity: how many states the cached mode remembers of this search; None is room for all. When
        the memory is full, simulations go on along the states it holds: a new state that they reach
        is evaluated and counted, and forgotten after the update.
      best_of: scores embeddings `[B, ...] -> [B]`. The one with the highest score of all states
        that simulations stopped in, the root included, is `search_state.best`. None keeps none.
      reuse: how an update learns from simulations of earlier ones as well; None learns from the
        newest alone. It needs a `SplitRecurrentFn` of whose parameters only those of `policy`
        adapt, and neither `capacity` nor `interior_selection`.
      transpositions: tells in the cached mode which states are the same, whatever actions led
        there: `embedding [B, ...] -> arrays [B, ...]`, such as `jax.vmap(env.observe)` for games
        whose observation is all that matters. States with equal arrays, rewards and discounts after
        as many actions share one node, so that all simulations through any of them know its
        returns; each such sequence is still evaluated once. None shares none.

    Raises:
      ValueError: if a count is below 1 or above 2^30, `mode` is unknown, or parts do not go
        together.

    Example:
      >>> search = jaxpgs.pgs_search(recurrent_fn, 16, adapt="policy_head")
      >>> dataclasses.replace(search, num_simulations=64).num_updates
      64
    """

    recurrent_fn: RecurrentFn
    num_simulations: int
    simulations_per_update: int
    root_selection: Selection
    truncation: Truncation
    backup: Backup
    target: Target
    interior_selection: Selection | SampledPolicy | None = None
    estimator: Estimator | None = None
    optimizer: optax.GradientTransformation | None = None
    adapt: Adapt = None
    max_depth: int | None = None
    mode: str | Simulator = "constant"
    capacity: int | None = None
    best_of: Callable[[Embedding], chex.Array] | None = None
    reuse: Reuse | None = None
    transpositions: Callable[[Embedding], Any] | None = None

    def __post_init__(self) -> None:
        """Checks what can be checked without data."""
        for name in ("num_simulations", "simulations_per_update", "max_depth", "capacity"):
            count = getattr(self, name)
            if count is not None and not 1 <= count <= MAX_COUNT:
                most = "" if count < 1 else f" and at most 2^30 = {MAX_COUNT}: indices have 32 bits"
                raise ValueError(f"{name} must be at least 1{most}, got {count}.")
        if isinstance(self.mode, str) and self.mode not in MODES:
            raise ValueError(f'mode must be "constant" or "cached", got {self.mode!r}.')
        of_nodes = (self.interior_selection, self.capacity, self.transpositions)
        if self.mode == "constant" and any(part is not None for part in of_nodes):
            raise ValueError(
                'interior_selection, capacity and transpositions are for mode="cached"; '
                f'mode="constant" has no nodes. Got {", ".join(map(repr, of_nodes))}.'
            )
        if isinstance(self.interior_selection, Selection) and self.adapt is not None:
            raise ValueError(
                "With a Selection for interior_selection a tree search chooses the actions, so "
                f"there is no policy that could adapt; got adapt={self.adapt!r}."
            )
        if self.estimator is not None and (self.optimizer is None or self.adapt is None):
            raise ValueError(
                "An estimator needs an optimizer and adapt, the parameters that it moves; got "
                f"optimizer={self.optimizer!r} and adapt={self.adapt!r}."
            )
        if self.reuse is not None:
            self._check_reuse()

    def _check_reuse(self) -> None:
        """Checks that simulations can be used again."""
        if self.estimator is None:
            raise ValueError("reuse is for searches that learn: it needs an estimator; got None.")
        if self.simulator.replay is None:
            raise ValueError(
                'reuse needs a memory mode that can replay simulations, as "constant" and "cached" '
                f"can; got {self.mode!r}."
            )
        if not isinstance(self.recurrent_fn, SplitRecurrentFn):
            raise ValueError(
                "reuse needs a model whose policy can be computed alone, a SplitRecurrentFn as "
                "make_recurrent_fn returns for networks that can be split; got "
                f"{self.recurrent_fn!r}."
            )
        if not (self.capacity is None is self.interior_selection):
            raise ValueError(
                "reuse needs every state that was visited, and a policy that depends on its "
                "parameters alone: capacity and interior_selection must be None; got "
                f"{self.capacity!r} and {self.interior_selection!r}."
            )

    @property
    def num_updates(self) -> int:
        """How many steps the budget lasts."""
        return -(-self.num_simulations // self.simulations_per_update)

    @property
    def simulator(self) -> Simulator:
        """The memory mode."""
        return MODES[self.mode] if isinstance(self.mode, str) else self.mode
