"""How much room the cached mode makes: how deep simulations may go, and how many nodes they add."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxpgs.search.definition import Search


def max_depth(search: "Search", num_kept: int) -> int:
    """Returns T: what the search says, else the truncation's bound, else what nodes make possible.

    A simulation of `until_new` takes at most one step more than the deepest one of the updates
    before it, so nothing is cut off.

    Args:
      search: the search.
      num_kept: how many nodes it may start from, the root included.
    """
    if search.max_depth is not None:
        return search.max_depth
    if search.truncation.max_depth is not None:
        return search.truncation.max_depth(search.num_simulations)
    if search.truncation.one_call:
        return search.num_updates + num_kept - 1
    if search.truncation.new_nodes is not None:
        return search.num_simulations * search.truncation.new_nodes + num_kept - 1
    raise ValueError(
        'mode="cached" makes room for every state that a simulation may reach, and this truncation '
        "sets no bound: max_depth must be given, got None."
    )


def num_new(search: "Search") -> int:
    """How many nodes a search may add."""
    return search.capacity or _num_wanted(search, search.num_simulations)


def _num_wanted(search: "Search", num_simulations: int) -> int:
    """How many nodes so many simulations may want to add."""
    return num_simulations * (search.truncation.new_nodes or max_depth(search, 1))


def num_spare(search: "Search") -> int:
    """How many nodes stand behind those that may be kept: a block, and where nodes may run out,
    all of an update."""
    num_walks = search.simulations_per_update
    if num_new(search) >= _num_wanted(search, search.num_simulations):
        return num_walks
    return num_walks + _num_wanted(search, num_walks)


def keeps_ranges(search: "Search") -> bool:
    """Whether nodes keep their smallest and greatest returns."""
    inner = search.interior_selection
    if inner is None:
        return False
    return search.root_selection.needs_range or getattr(inner, "needs_range", False)
