"""Readable results of a search: its principal variation, a table of root actions, and its tree.

All functions read one search on the host: that of a single position, or one of a batch by its
`index`. They work for every search that keeps nodes, including policy gradient searches with
`mode="tree"`.
"""

import html
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpgs.base import PolicyOutput
from jaxpgs.search.stores.nodes import Nodes

_WIDTH, _HEIGHT, _MARGIN = 76, 84, 30  # of a node's place in a picture, in SVG units


class ActionSummary(NamedTuple):
    """The statistics of one action at the root of a search.

    Attributes:
      action: its number.
      prior: its probability by the network.
      weight: its probability by the search's policy.
      visits: simulations that began with it.
      qvalue: the mean of their returns; None without visits.
      lowest: the smallest return of the states below the action; None if no states are kept.
      highest: the greatest return of these states.

    Example:
      >>> sum(row.visits for row in jaxpgs.search_summary(output).rows)
      16
    """

    action: int
    prior: float
    weight: float
    visits: int
    qvalue: float | None
    lowest: float | None
    highest: float | None


class SearchTable(NamedTuple):
    """The actions at a root, those with the most visits first; prints as a table.

    Attributes:
      rows: one for each legal action.
      name: a function that names an action.

    Example:
      >>> len(jaxpgs.search_summary(output).rows)
      9
    """

    rows: tuple[ActionSummary, ...]
    name: Callable[[int], str] = str

    def __str__(self) -> str:
        lines = [f"{'action':>8}{'prior':>8}{'weight':>8}{'visits':>8}{'Q':>8}  returns"]
        for row in self.rows:
            qvalue = "" if row.qvalue is None else f"{row.qvalue:.3f}"
            line = f"{self.name(row.action):>8}{row.prior:>8.1%}{row.weight:>8.1%}{row.visits:>8}"
            line += f"{qvalue:>8}"
            if row.lowest is not None:
                line += f"  {row.lowest:.3f} to {row.highest:.3f}"
            lines.append(line)
        return "\n".join(lines)


class _Node(NamedTuple):
    """One row of a memory: the action that leads to it, its visits, and its mean return."""

    row: int
    action: int
    visits: int
    qvalue: float


def search_summary(
    output: PolicyOutput, *, index: int = 0, name: Callable[[int], str] = str
) -> SearchTable:
    """Returns a table of what a search has found at its root.

    Args:
      output: the output of the search, for one position or a batch.
      index: the index of the position in a batch.
      name: a function that names an action in print.

    Returns:
      A table of the legal actions. The returns of an action are those of the states visited below
      it: the discounted rewards on the way there and the network's value, from the view of the
      player to move at the root. If no states are kept, as in rollouts, they are None.

    Example:
      >>> print(jaxpgs.search_summary(output))  # doctest: +SKIP
        action   prior  weight  visits       Q  returns
             4   14.0%   16.1%       3   0.185  0.102 to 0.276
    """
    state = output.search_state
    parts: Any = (output.action_weights, state.prior_logits, state.visits, state.qvalues)
    weights, logits, visits, qvalues = (np.asarray(x) for x in parts)
    if weights.ndim > 1:
        weights, logits, visits, qvalues = (x[index] for x in (weights, logits, visits, qvalues))
    legal = np.flatnonzero(logits > np.finfo(logits.dtype).min)
    prior = np.exp(logits[legal] - logits[legal].max(initial=-np.inf))
    ranges = {} if state.nodes is None else _ranges(_one(state.nodes, index))
    rows = []
    for action, share in zip(legal.tolist(), prior / prior.sum(), strict=True):
        qvalue = float(qvalues[action]) if visits[action] else None
        found = ranges.get(action, (None, None)) if visits[action] else (None, None)
        numbers = (float(share), float(weights[action]), int(visits[action]))
        rows.append(ActionSummary(action, *numbers, qvalue, *found))
    order = sorted(rows, key=lambda row: (-row.visits, -row.weight))
    return SearchTable(tuple(order), name)


def principal_variation(
    nodes: Nodes, *, index: int = 0, first: int | None = None, max_length: int | None = None
) -> list[int]:
    """Returns the best line of a search: in each state the most visited action.

    Ties are broken by the greater mean return. If a search's actions below the root do not depend
    on visits, it does not count them; then the number of states below an action is used.

    Args:
      nodes: `output.search_state.nodes`, of one position or of a batch.
      index: the index of the position in a batch.
      first: the first action, such as `output.action`, which after a Gumbel search need not be the
        most visited one; None is the most visited.
      max_length: the largest number of actions; None for no limit.

    Returns:
      The actions, as far as the states below them are known.

    Raises:
      ValueError: if there are no nodes, as after rollouts.

    Example:
      >>> line = jaxpgs.principal_variation(output.search_state.nodes, max_length=2)
      >>> len(line)
      2
    """
    below = _children(_one(nodes, index))
    line: list[int] = []
    row = 0
    while below[row] and (max_length is None or len(line) < max_length):
        chosen = below[row][0]
        if first is not None and not line:
            found = [node for node in below[0] if node.action == int(first)]
            if not found:
                return [int(first)][:max_length]
            chosen = found[0]
        line.append(chosen.action)
        row = chosen.row
    return line


def tree_svg(
    nodes: Nodes,
    *,
    depth: int = 3,
    width: int = 3,
    index: int = 0,
    name: Callable[[int], str] = str,
) -> str:
    """Draws the first levels of a search's tree as an SVG picture.

    Each node shows its action, visits, and mean return from the view of the player who chose it.
    The thickness of an edge grows with the visits, and the principal variation is dark.

    Args:
      nodes: `output.search_state.nodes`, of one position or of a batch.
      depth: how many levels below the root, at least 1.
      width: the largest number of children of each node, the most visited ones, at least 1.
      index: the index of the position in a batch.
      name: a function that names an action.

    Returns:
      One `<svg>` element, with one `<g class="node">` for each node below the root.

    Raises:
      ValueError: if there are no nodes, as after rollouts, or a number is below 1.

    Example:
      >>> picture = jaxpgs.tree_svg(output.search_state.nodes, depth=1, width=2)
      >>> picture.count('class="node"')
      2
    """
    if depth < 1 or width < 1:
        raise ValueError(f"tree_svg needs depth and width of at least 1; got {depth} and {width}.")
    below = _children(_one(nodes, index))
    total = max(sum(node.visits for node in below[0]), 1)
    lines: list[str] = []
    shapes: list[str] = []
    leaves = levels = 0

    def draw(row: int, level: int, is_best: bool) -> float:
        """Draws what is below a row; returns the row's place from left to right."""
        nonlocal leaves, levels
        shown = below[row][:width] if level < depth else []
        levels = max(levels, level)
        places = [draw(node.row, level + 1, is_best and not i) for i, node in enumerate(shown)]
        # Leaves are side by side in the order in which they are visited, parents above the middle.
        if not shown:
            leaves += 1
            return leaves - 0.5
        at = (places[0] + places[-1]) / 2
        for i, (node, place) in enumerate(zip(shown, places, strict=True)):
            color = "#1d3f72" if is_best and i == 0 else "#9a9aa0"
            x, y = place * _WIDTH, _MARGIN + (level + 1) * _HEIGHT
            lines.append(
                f'<path d="M{at * _WIDTH:.1f},{y - _HEIGHT}C{at * _WIDTH:.1f},{y - _HEIGHT / 2} '
                f'{x:.1f},{y - _HEIGHT / 2} {x:.1f},{y}" fill="none" stroke="{color}" '
                f'stroke-width="{1 + 9 * node.visits / total:.1f}"/>'
            )
            words = (html.escape(name(node.action)), str(node.visits), f"{node.qvalue:+.2f}")
            shapes.append(
                f'<g class="node" transform="translate({x:.1f},{y})"><rect x="-28" y="-24" '
                f'width="56" height="50" rx="8" fill="#ffffff" stroke="{color}"/>'
                f'<text y="-8" font-weight="bold">{words[0]}</text><text y="7">{words[1]}</text>'
                f'<text y="21">{words[2]}</text></g>'
            )
        return at

    place = draw(0, 0, True) * _WIDTH
    size = (max(leaves, 1) * _WIDTH, 2 * _MARGIN + levels * _HEIGHT)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
            f'width="{size[0]}" height="{size[1]}" text-anchor="middle" font-size="12" '
            'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">',
            *lines,
            f'<circle cx="{place:.1f}" cy="{_MARGIN}" r="9" fill="#1d3f72"/>',
            *shapes,
            "</svg>",
        ]
    )


def _one(nodes: Nodes, index: int) -> Nodes:
    """Returns the nodes of one search as NumPy arrays without an axis B."""
    if not isinstance(nodes, Nodes):
        raise ValueError(
            f'This needs the nodes of a search with mode="tree"; got {nodes!r}. Rollouts keep none.'
        )
    is_batch = np.ndim(nodes.edge) > 1
    taken = nodes._replace(features=(), embedding=())
    return jax.tree.map(lambda x: np.asarray(x[index] if is_batch else x), taken)


def _children(nodes: Nodes) -> list[list[_Node]]:
    """Returns the children of every row, the most visited first."""
    states, returns = _behind(nodes)
    arrivals = nodes.arrivals
    # Visits below the root are not counted if no action depends on them: use the number of states.
    counts_visits = (nodes.visits if arrivals is None else arrivals.visits).any()
    below: list[list[_Node]] = [[] for _ in nodes.edge]
    for row in np.flatnonzero(nodes.edge >= 0).tolist():
        parent, action = divmod(int(nodes.edge[row]), nodes.num_actions)
        visits, total = states[row], returns[row]
        if counts_visits and arrivals is not None:
            visits, total = arrivals.visits[row], arrivals.returns[row, 0]
        elif counts_visits:
            visits, total = nodes.visits[parent, action], nodes.value_sum[parent, action]
        if visits:  # a round of a Gumbel search may create nodes that do not count
            below[parent].append(_Node(row, action, int(visits), float(total) / int(visits)))
    for found in below:
        found.sort(key=lambda node: (-node.visits, -node.qvalue))
    return below


def _behind(nodes: Nodes) -> tuple[np.ndarray, np.ndarray]:
    """Counts the states `[M]` below the step into each row, and sums their returns from there."""
    counts, sums = np.zeros(len(nodes.edge), int), np.zeros(len(nodes.edge))
    own = np.zeros((2, len(nodes.edge)))  # the same, from the view of the player to move in it
    for row in np.flatnonzero(nodes.edge >= 0)[::-1]:  # parents have smaller numbers
        counts[row] = own[0, row] + 1
        sums[row] = nodes.reward[row] * counts[row]
        sums[row] += nodes.discount[row] * (own[1, row] + nodes.value[row])
        parent = nodes.edge[row] // nodes.num_actions
        own[:, parent] += counts[row], sums[row]
    return counts, sums


def _ranges(nodes: Nodes) -> dict[int, tuple[float, float]]:
    """Returns the smallest and the greatest return below each action of the root."""
    size = len(nodes.edge)
    reward, discount = np.zeros(size), np.ones(size)  # of the way from the root to each row
    first = np.full(size, -1)
    found: dict[int, list[float]] = {}
    # Parents have smaller numbers, so the path to a row is known when it is processed.
    for row in np.flatnonzero(nodes.edge >= 0):
        parent, action = divmod(int(nodes.edge[row]), nodes.num_actions)
        first[row] = first[parent] if parent else action
        reward[row] = reward[parent] + discount[parent] * nodes.reward[row]
        discount[row] = discount[parent] * nodes.discount[row]
        worth = float(reward[row] + discount[row] * nodes.value[row])
        found.setdefault(int(first[row]), []).append(worth)
    return {action: (min(worths), max(worths)) for action, worths in found.items()}
