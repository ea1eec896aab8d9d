"""Patterns around the cells of an action: templates, and which patterns share a weight.

A template is a small set of cells around an anchor; the contents of these cells, which may lie
beyond the edge, are the pattern. Every template is matched in all rotations and reflections. Those
that are symmetries of the rules share their weights, so a pattern counts as often as it occurs.
Reactive templates match only if one of their cells holds the opponent's last move.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from jaxpgs.networks.layers.geometry import MARGIN, BoardGeometry, Matrix, Offset, apply_matrix

# If a template has more raw codes than this, its codes are mapped to patterns once for each state,
# and each copy of the weights has no entry for every raw code.
_MOST_SPELLED_OUT = 1024


class Template(NamedTuple):
    """A set of cells around an anchor.

    Attributes:
      name: its name in the output of `PatternPolicy.describe`.
      cells: offsets as (rows down, columns to the right), at most 3 cells in either direction.
      last: for a reactive template, the cell that must hold the opponent's last move; else None.

    Example:
      >>> geometry = jaxpgs.networks.board_geometry(jaxpgs.envs.Hex(3))
      >>> jaxpgs.networks.default_templates(geometry)[0].name
      'neighbour'
    """

    name: str
    cells: tuple[Offset, ...]
    last: Offset | None = None


class Pattern(NamedTuple):
    """The pattern that one weight belongs to.

    Attributes:
      template: the template's name.
      anchor: the cell around which it lies, by its name in the geometry's `anchor_names`.
      cells: offsets from the anchor, each with the name of its content. The pattern's images under
        the geometry's `shared` symmetries have the same weight.

    Example:
      >>> jaxpgs.networks.Pattern._fields
      ('template', 'anchor', 'cells')
    """

    template: str
    anchor: str
    cells: tuple[tuple[Offset, str], ...]


def default_templates(geometry: BoardGeometry) -> tuple[Template, ...]:
    """Lists the templates that `PatternPolicy` uses by default.

    Args:
      geometry: the board.

    Returns:
      On hexagons: one neighbour, two opposite neighbours, three consecutive neighbours, all six
      neighbours, straight lines of three cells through the anchor or (except in Hex) starting
      beside it, and the cell across a bridge with the two cells between. On squares: one neighbour,
      the three cells at a corner, the four orthogonal and the four diagonal neighbours, and lines.
      Both have reactive templates for an opponent's move beside the anchor and two steps away. If
      the anchor can hold a stone, it is part of every template.

    Example:
      >>> geometry = jaxpgs.networks.board_geometry(jaxpgs.envs.Hex(3))
      >>> len(jaxpgs.networks.default_templates(geometry))
      9
    """
    # Steps along an axis: the first kind passes through the anchor, the second begins beside it.
    lines = [("line", (-1, 1, 2)), ("far line", (1, 2, 3))]
    if geometry.hexagonal:
        right, up_right, up = (0, 1), (-1, 1), (-1, 0)
        left, down_left, down = (0, -1), (1, -1), (1, 0)
        bridge = (-2, 1)
        templates = [
            Template("neighbour", (right,)),
            Template("opposite", (right, left)),
            Template("three", (right, up_right, up)),
            Template("ring", (right, up_right, up, left, down_left, down)),
            Template("bridge", (up, up_right, bridge)),
            # The two common neighbours of the stone and the anchor: a broken bridge if both are
            # the mover's own.
            Template("answer", (right, up), last=up_right),
            Template("answer across", (up, up_right), last=bridge),
        ]
        axes = [("", right)]
        # Cells three steps away matter only in games about rows of stones.
        lines = lines[:1] if geometry.name == "hex" else lines
    else:
        right, corner, up = (0, 1), (-1, 1), (-1, 0)
        templates = [
            Template("neighbour", (right,)),
            Template("diagonal neighbour", (corner,)),
            Template("corner", (right, corner, up)),
            Template("cross", (right, up, (0, -1), (1, 0))),
            Template("diagonal cross", (corner, (-1, -1), (1, -1), (1, 1))),
        ]
        axes = [("", right), ("diagonal ", corner)]
    for prefix, (r, c) in axes:
        for name, steps in lines:
            templates.append(Template(prefix + name, tuple((k * r, k * c) for k in steps)))
        near, far, back = (r, c), (2 * r, 2 * c), (-r, -c)
        if not geometry.hexagonal:
            templates.append(Template(prefix + "answer", (back, far), last=near))
        templates.append(Template(prefix + "answer from afar", (near,), last=far))
    if geometry.anchor_occupied:
        templates = [t._replace(cells=((0, 0), *t.cells)) for t in templates]
    return tuple(templates)


class Group(NamedTuple):
    """Images (rotations and reflections) of templates that are matched together.

    Attributes:
      cells: m arrays `[G]` of integers, the indices of the offsets of each image's m cells.
      start: `[G]` integers, the feature of each image's code 0.
      last: `[G]` integers, the index of the offset that must hold the last move, or None. If given,
        all images are of one template and yield one feature.
      lookup: `[raw codes]` integers, the code for each raw code; None if they are the same.
    """

    cells: tuple[np.ndarray, ...]
    start: np.ndarray
    last: np.ndarray | None
    lookup: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """The templates compiled for one geometry.

    Attributes:
      offsets: all L offsets that occur in any image.
      groups: the groups of images, which yield K features for each cell.
      spelled_out: `[features]` integers, the weight of each feature; feature 0 means no match.
      patterns: the patterns that the weights of one anchor belong to.
      num_codes: the number of codes that a cell of a template can have.
    """

    offsets: tuple[Offset, ...]
    groups: tuple[Group, ...]
    spelled_out: np.ndarray
    patterns: tuple[Pattern, ...]
    num_codes: int


@functools.cache
def compile_templates(geometry: BoardGeometry, templates: tuple[Template, ...]) -> Tables:
    """Numbers the offsets, the features and the weights."""
    # The codes of a cell, in order. In a pattern, the last move is one of the opponent's stones.
    names = ("empty", "own", "other", *geometry.edge_names)
    offsets: dict[Offset, int] = {}
    patterns: list[Pattern] = []
    # Feature 0 means no match. Code that uses the table fills in its weight.
    spelled_out: list[Any] = [[-1]]
    num_features = 1
    rows: dict[Any, list[list[int]]] = {}  # for each group: the start and the offsets of each image
    lookups: dict[Any, np.ndarray] = {}
    for template in templates:
        size = len(template.cells)
        if len(names) ** size > 1 << 15 or np.max(np.abs(_all_cells(template))) > MARGIN:
            raise ValueError(
                f"A template must have few cells, at most {MARGIN} away, got {template}."
            )
        # All images of an orbit have the same features, hence the same weights.
        for orbit in _orbits(geometry, template):
            first = orbit[0]
            classes, kinds = _classes(geometry, first, len(names))
            looked_up = len(classes) > _MOST_SPELLED_OUT
            # Images with the same number of cells are matched together. Exceptions are reactive
            # templates, which yield one feature each, and orbits with their own lookup table.
            key: Any = (size,)
            if looked_up or template.last is not None:
                key = (size, template, first if looked_up else None)
            if looked_up:
                lookups[key] = classes
            for image in orbit:
                ids = [offsets.setdefault(cell, len(offsets)) for cell in _all_cells(image)]
                rows.setdefault(key, []).append([num_features, *ids])
            # Features of small templates are raw codes, several of which share a weight. Features
            # of large templates are classes.
            spelled_out.append(len(patterns) + (np.arange(len(kinds)) if looked_up else classes))
            num_features += len(spelled_out[-1])
            for codes in kinds:
                held = [*(names[code] for code in codes), "last move"]
                cells = tuple(zip(_all_cells(first), held, strict=False))
                patterns.append(Pattern(template.name, "", cells))
    if num_features > 1 << 15:
        raise ValueError(
            f"The templates have {num_features} features; at most {1 << 15} are allowed."
        )
    groups = []
    for key, images in rows.items():
        # Columns: the start, each cell, and for reactive templates the cell of the last move.
        start, *columns = np.array(images).T
        last = columns.pop() if len(columns) > key[0] else None
        groups.append(Group(tuple(columns), start, last, lookups.get(key)))
    table = np.concatenate(spelled_out)
    return Tables(tuple(offsets), tuple(groups), table, tuple(patterns), len(names))


def _all_cells(template: Template) -> list[Offset]:
    return [*template.cells, *([] if template.last is None else [template.last])]


def _orbits(geometry: BoardGeometry, template: Template) -> list[list[Template]]:
    """Groups a template's images by shared weights; cell i of each corresponds within a group."""
    seen, orbits = set(), []
    # If directions differ by the rules, as in Breakthrough, rotations of the lattice that are not
    # in `shared` have weights of their own. Repeated images are skipped.
    for matrix in geometry.lattice:
        orbit = []
        for symmetry in geometry.shared:
            image = _turn(symmetry, _turn(matrix, template))
            key = (frozenset(image.cells), image.last)
            if key not in seen:
                seen.add(key)
                orbit.append(image)
        if orbit:
            orbits.append(orbit)
    return orbits


def _turn(matrix: Matrix, template: Template) -> Template:
    cells = tuple(apply_matrix(matrix, cell) for cell in template.cells)
    last = None if template.last is None else apply_matrix(matrix, template.last)
    return Template(template.name, cells, last)


def _classes(
    geometry: BoardGeometry, template: Template, num_codes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds which patterns of a template are rotations or reflections of one another.

    Returns:
      The class of each raw code `[raw codes]`, and the cells' codes of each class
      `[classes, cells]`.
    """
    size = len(template.cells)
    # [raw codes, cells]: the digits of each raw code in base `num_codes`.
    codes = np.indices((num_codes,) * size).reshape(size, -1).T
    units = num_codes ** np.arange(size)[::-1]
    least = codes @ units
    # A symmetry that maps the template onto itself permutes its cells. The smallest of the
    # resulting codes represents their class.
    for symmetry in geometry.shared:
        turned = _turn(symmetry, template)
        if set(turned.cells) == set(template.cells) and turned.last == template.last:
            order = [template.cells.index(cell) for cell in turned.cells]
            least = np.minimum(least, codes[:, order] @ units)
    kinds, classes = np.unique(least, return_inverse=True)
    return classes, codes[kinds]
