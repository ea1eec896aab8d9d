"""What a search is: a model, a budget and the parts that decide everything."""

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
    """A search: a model, a budget and the parts that decide everything. Presets make one.

    Attributes:
      recurrent_fn: `(params, rng_key, action, embedding) -> (mctx.RecurrentFnOutput, embedding)`.
        With one key for the search it is called as mctx calls it, with B rows in the order of the
        roots, once for each of the K simulations of an update (`jax.vmap` over K). In two cases
        it gets fewer: K rows of one root with a key for each root, as what a root draws must not
        depend on the others, and one row where parameters adapt inside of it, of which each root
        has its own. Its logits are treated as the root's; rewards, discounts and values that are
        not finite count as 0.
      num_simulations: N, the budget of simulations, at least 1. Steps beyond it change nothing.
      simulations_per_update: K, at least 1. The K simulations of an update share one policy. Where
        K does not divide N, the last update runs the simulations that are left. A sequence has the
        K of each update; together they must make room for N. All share one program, of the largest.
      root_selection: which first actions the simulations take.
      truncation: when a simulation stops.
      backup: what return it reports.
      target: what the search says in the end.
      interior_selection: how actions below the root are chosen. None draws them from the adapted
        policy; a `SampledPolicy` follows a policy that reads the nodes' statistics; a
        `Selection` chooses them by these statistics, which makes the search a tree search, and then
        nothing may adapt. Rollouts know None only.
      estimator: how the adapted parameters move; None keeps them, which is Monte Carlo search.
      optimizer: an optax optimizer of the adapted parameters; its state starts anew in each search.
        Required with an estimator.
      adapt: which parameters adapt: a pytree of booleans like `params`, or a predicate
        `(path, leaf) -> bool`. Required with an estimator.
      max_depth: T, the largest number of actions in a simulation; memory grows with it. None takes
        the truncation's own bound if it has one. Otherwise rollouts take 16, and a tree cuts
        nothing off.
      mode: what is kept. "tree" remembers every state visited and evaluates it once, so that with
        `until_new` an update is one network call; if parameters adapt, the model must come apart
        into what is remembered and what adapts. "rollouts" keep nothing, in memory that does not
        depend on N. Both give the same answer from the same key, but for collisions in the
        rollouts' hash table (`until_new`). A model that draws by its key differs: in rollouts
        every visit of a state draws anew, in a tree the first draw stays. None is "tree" where
        the model allows it, and "rollouts", with a warning that says why, elsewhere. The former
        names "cached" and "constant" are accepted until 1.0.
      capacity: how many states a tree remembers of this search, counting simulations and not
        different states; None is room for all. When the memory is full, simulations go on along
        the states it holds: a new state that they reach is evaluated, counted and forgotten.
      best_of: scores embeddings `[B, ...] -> [B]`. The one with the highest score of all states
        that simulations stopped in, the root included, is `search_state.best`. None keeps none.
      reuse: how an update learns from simulations of earlier ones as well; None learns from the
        newest alone. It needs a model that comes apart, and neither `capacity` nor
        `interior_selection`.

    Raises:
      ValueError: if a count is no whole number from 1 to 2^30, a part is none, such as `puct` for
        `puct(1.5)`, `mode` is unknown, or parts do not go together.

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
        # Updates may have room for more than the budget: the last one then starts fewer.
        if sum(self.widths) < self.num_simulations:
            raise ValueError(
                "A search needs simulations_per_update to make room for all simulations; got "
                f"{self.num_simulations} simulations and updates of {self.widths}, which are "
                f"{sum(self.widths)}."
            )
        for name, (kind, example) in _PARTS.items():
            part = getattr(self, name)
            if part is not None or name in _REQUIRED:
                check_part("A search", name, part, kind, example)
        # Frozen dataclasses are filled in this way, before anybody sees them.
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
                "An estimator needs an optimizer and adapt, the parameters that it moves; got "
                f"optimizer={self.optimizer!r} and adapt={self.adapt!r}."
            )
        if self.reuse is not None:
            self._check_reuse()

    def _check_reuse(self) -> None:
        """Checks that simulations can be used again."""
        if self.estimator is None:
            raise ValueError("reuse is for searches that learn: it needs an estimator; got None.")
        # States are read again from the memory, which would have dropped those beyond a capacity.
        if not (self.capacity is None is self.interior_selection):
            raise ValueError(
                "reuse needs every state that was visited, and a policy that depends on its "
                "parameters alone: capacity and interior_selection must be None; got "
                f"{self.capacity!r} and {self.interior_selection!r}."
            )
        # The ring has one shape for the simulations of every update.
        if len(set(self.widths)) > 1:
            raise ValueError(
                "reuse needs updates that are all as large; got simulations_per_update="
                f"{self.simulations_per_update}."
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """K of each update."""
        width = self.simulations_per_update
        if isinstance(width, int):
            # Rounded up: the last update has what is left of the budget.
            return (width,) * -(-self.num_simulations // width)
        return tuple(width)

    @property
    def num_updates(self) -> int:
        """How many steps the budget lasts; in rounds it may last longer, see `gumbel_root`."""
        return len(self.widths)
