"""The definition of a search: a model, a budget and interchangeable parts."""

import dataclasses
from collections.abc import Callable, Sequence

import chex
import optax

from jaxpgs.base import Adapt, Embedding, RecurrentFn
from jaxpgs.checks import check_count, check_part
from jaxpgs.search.parts.backup import Backup
from jaxpgs.search.parts.estimator import Estimator
from jaxpgs.search.parts.reuse import Reuse
from jaxpgs.search.parts.selection import Selection
from jaxpgs.search.parts.target import SampledPolicy, Target
from jaxpgs.search.parts.truncation import Truncation

_COUNTS = ("num_simulations", "simulations_per_update", "max_depth", "capacity")
_PARTS = {
    "root_selection": (Selection, "jaxpgs.selection.puct(1.5)"),
    "interior_selection": ((Selection, SampledPolicy), "jaxpgs.target.improved_policy()"),
    "truncation": (Truncation, "jaxpgs.truncation.until_new()"),
    "backup": (Backup, "jaxpgs.backup.n_step()"),
    "target": (Target, "jaxpgs.target.completed_q(0.0)"),
    "estimator": (Estimator, 'jaxpgs.estimator.reinforce("value")'),
    "optimizer": (optax.GradientTransformation, "optax.sgd(0.1)"),
    "reuse": (Reuse, "jaxpgs.reuse.Reuse(4)"),
}
_REQUIRED = ("root_selection", "truncation", "backup", "target")
_FORMER = {"constant": "rollouts", "cached": "tree"}


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """A search: a model, a budget and interchangeable parts. The presets make such searches.

    Attributes:
      recurrent_fn: `(params, rng_key, action, embedding) -> (mctx.RecurrentFnOutput, embedding)`.
        If the search has one key, it is called as mctx calls it, with B rows in the order of the
        roots, once for each of the K simulations of an update (`jax.vmap` over K). In two cases
        it gets fewer rows. If each root has its own key, it gets the K rows of one root, since the
        random draws of a root must not depend on the other roots. If parameters adapt inside it, it
        gets one row, since each root has its own parameters. Its logits are treated as the root's;
        rewards, discounts and values that are not finite count as 0.
      num_simulations: N, the budget of simulations, at least 1. Steps beyond it change nothing.
      simulations_per_update: K, at least 1. The K simulations of an update share one policy. If K
        does not divide N, the last update runs the remaining simulations. A sequence gives the K of
        each update; its sum must be at least N. All updates share one program, of the largest K.
      root_selection: which actions the simulations take at the root.
      truncation: when a simulation stops.
      backup: the return that a simulation reports.
      target: the answer of the search.
      interior_selection: how actions below the root are chosen. None samples them from the adapted
        policy. A `SampledPolicy` follows a policy that reads the nodes' statistics. A `Selection`
        chooses them by these statistics; this makes the search a tree search, in which nothing may
        adapt. Rollouts accept None only.
      estimator: how the adapted parameters are updated; None leaves them unchanged, which is Monte
        Carlo search.
      optimizer: an optax optimizer for the adapted parameters; its state is reset in each search.
        Required with an estimator.
      adapt: which parameters adapt: a pytree of booleans like `params`, or a predicate
        `(path, leaf) -> bool`. Required with an estimator.
      max_depth: T, the largest number of actions in a simulation; memory grows with it. None takes
        the truncation's own bound if it has one. Otherwise rollouts take 16, and a tree has no
        bound.
      mode: whether states are kept. "tree" keeps every visited state and evaluates it once, so that
        with `until_new` an update is one network call. If parameters adapt, it must be possible to
        split the model into a part that is remembered and a part that adapts. "rollouts" keeps no
        states, so its memory does not depend on N. Both give the same answer from the same key,
        except for collisions in the rollouts' hash table (`until_new`). They differ for a model
        that samples with its key: rollouts sample again at every visit of a state, a tree keeps
        the first sample. None is "tree" if the model allows it, and otherwise "rollouts" with a
        warning that says why. The former names "cached" and "constant" are accepted until 1.0.
      capacity: how many states of this search a tree remembers, where each simulation counts, even
        if states repeat; None is room for all. When the memory is full, simulations continue along
        the states it holds: a new state that they reach is evaluated, counted and forgotten.
      best_of: scores embeddings `[B, ...] -> [B]`. Of all states in which simulations stopped,
        and the root, `search_state.best` is the one with the highest score. None keeps none.
      reuse: how an update also learns from the simulations of earlier updates; None learns from the
        newest update alone. It requires a model that can be split, and excludes `capacity` and
        `interior_selection`.

    Raises:
      ValueError: if a count is no whole number from 1 to 2^30, an argument is not a part, such as
        `puct` instead of `puct(1.5)`, `mode` is unknown, or parts do not go together.

    Example:
      >>> search = jaxpgs.search.pgs_search(recurrent_fn, 16, adapt="policy_head")
      >>> dataclasses.replace(search, num_simulations=64).num_updates
      64
    """

    recurrent_fn: RecurrentFn
    num_simulations: int
    simulations_per_update: int | Sequence[int]
    root_selection: Selection
    truncation: Truncation
    backup: Backup
    target: Target
    interior_selection: Selection | SampledPolicy | None = None
    estimator: Estimator | None = None
    optimizer: optax.GradientTransformation | None = None
    adapt: Adapt = None
    max_depth: int | None = None
    mode: str | None = None
    capacity: int | None = None
    best_of: Callable[[Embedding], chex.Array] | None = None
    reuse: Reuse | None = None

    def __post_init__(self) -> None:
        """Checks what can be checked without data."""
        for name in _COUNTS:
            count = getattr(self, name)
            # A tuple, as a search is an argument of jitted functions and must be hashable.
            if name == "simulations_per_update" and isinstance(count, tuple | list):
                count = tuple(check_count("A search", name, each) for each in count)
                object.__setattr__(self, name, count)
            elif name == "simulations_per_update" and isinstance(count, str):
                raise ValueError(
                    f"A search needs {name} to be a whole number or a sequence of them; "
                    f'"rounds" is for Gumbel searches; got {count!r}.'
                )
            elif count is not None or name in _COUNTS[:2]:
                object.__setattr__(self, name, check_count("A search", name, count))
        # Updates may have room for more than the budget; then the last one starts fewer.
        if sum(self.widths) < self.num_simulations:
            raise ValueError(
                "A search needs simulations_per_update to make room for all simulations; got "
                f"{self.num_simulations} simulations, but the updates {self.widths} have only "
                f"{sum(self.widths)}."
            )
        for name, (kind, example) in _PARTS.items():
            part = getattr(self, name)
            if part is not None or name in _REQUIRED:
                check_part("A search", name, part, kind, example)
        # A frozen dataclass can only be modified in this way while it is being constructed.
        object.__setattr__(self, "mode", _FORMER.get(self.mode or "", self.mode))
        if self.mode not in ("tree", "rollouts", None):
            raise ValueError(f'mode must be "tree", "rollouts" or None; got {self.mode!r}.')
        of_nodes = (self.interior_selection, self.capacity)
        if self.mode == "rollouts" and any(part is not None for part in of_nodes):
            raise ValueError(
                'interior_selection and capacity are for mode="tree"; rollouts have no nodes. '
                f"Got {self.interior_selection!r} and {self.capacity!r}."
            )
        if isinstance(self.interior_selection, Selection) and self.adapt is not None:
            raise ValueError(
                "With a Selection for interior_selection a tree search chooses the actions, so "
                f"there is no policy that could adapt; got adapt={self.adapt!r}."
            )
        if self.root_selection.rounds is not None and not isinstance(
            self.interior_selection, Selection
        ):
            raise ValueError(
                "A root_selection in rounds is for tree searches, whose interior_selection is a "
                f"Selection; got {self.interior_selection!r}."
            )
        if self.estimator is not None and (self.optimizer is None or self.adapt is None):
            raise ValueError(
                "An estimator needs an optimizer and adapt, the parameters that it changes; got "
                f"optimizer={self.optimizer!r} and adapt={self.adapt!r}."
            )
        if self.reuse is not None:
            self._check_reuse()

    def _check_reuse(self) -> None:
        """Checks that simulations can be reused."""
        if self.estimator is None:
            raise ValueError("reuse is for searches that learn: it needs an estimator; got None.")
        # States are read again from memory, which would have dropped those beyond the capacity.
        if not (self.capacity is None is self.interior_selection):
            raise ValueError(
                "reuse needs every state that was visited, and a policy that depends on its "
                "parameters alone: capacity and interior_selection must be None; got "
                f"{self.capacity!r} and {self.interior_selection!r}."
            )
        # The ring buffer stores the simulations of every update in one shape.
        if len(set(self.widths)) > 1:
            raise ValueError(
                "reuse needs updates of equal size; got simulations_per_update="
                f"{self.simulations_per_update}."
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """The K of each update."""
        width = self.simulations_per_update
        if isinstance(width, int):
            # Rounded up: the last update has the rest of the budget.
            return (width,) * -(-self.num_simulations // width)
        return tuple(width)

    @property
    def num_updates(self) -> int:
        """How many updates use up the budget; in rounds it may be more, see `gumbel_root`."""
        return len(self.widths)
