"""Reads and writes games of Hex as SGF files and as links to HexWorld.

SGF is read and written as in its specification for Hex (GM[11],
https://www.red-bean.com/sgf/hex.html), and as HexGui writes it. Only the first variation and the
first game of a file are read. A link such as `#11c1,a3b5:s` contains the size, how the viewer draws
the board, and the moves, whose colours follow from their order. A second comma marks the viewer's
cursor.
"""

import collections
import dataclasses
import itertools
import re
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxpgs.envs.hex import MAX_SIZE, MIN_SIZE
from jaxpgs.envs.hex_games import (
    COLORS,
    SWAP_PIECES,
    SWAP_SIDES,
    WORDS,
    HexGame,
    Move,
    after,
    cell_name,
    from_actions,
    move_name,
    player_to_move,
    position,
    read_cell,
    stones,
    to_actions,
    winner,
)

__all__ = [
    "HexGame",
    "Move",
    "from_actions",
    "player_to_move",
    "position",
    "read_link",
    "read_sgf",
    "stones",
    "to_actions",
    "winner",
    "write_link",
    "write_sgf",
]

LINK = "https://hexworld.org/board/#"
_GAME = 11  # the number of Hex in the property GM
_LETTERS = {"r": "resign", "f": "forfeit"}  # in links, with the colour
_CODES = {":s": SWAP_PIECES, ":S": SWAP_SIDES, ":p": "pass"}
# Releases of HexGui that write "swap-pieces" where the specification has "swap-sides"; HexGui's own
# reader also handles this.
_OLD_HEXGUI = re.compile(r"HexGui:0\.\d(\D|$)")


# --- links ----------------------------------------------------------------------------------------


def write_link(game: HexGame) -> str:
    """Returns a link to HexWorld that shows a game's last position and contains all its moves.

    Setup stones become moves before the others. If a colour moves twice in a row, the other colour
    passes in between.
    """
    # Black and white stones alternate, since in links the colours follow from the order of moves.
    pairs = itertools.zip_longest(*game.setup)
    plays = [Move(p, cell) for pair in pairs for p, cell in enumerate(pair) if cell is not None]
    turn, words = 0, []
    codes = {word: code for code, word in _CODES.items()}
    # The last entry is the next move: it has no text, but may need a pass before it.
    for player, action in (*plays, *game.moves, Move(player_to_move(game), "")):
        if action in _LETTERS.values():
            words.append(f":{action[0]}{COLORS[player].lower()}")  # type: ignore[index]
            continue
        if player != turn:
            words.append(":p")
        words.append(codes.get(action) or move_name(game.size, action))  # type: ignore[arg-type]
        # After a swap of sides the same colour moves again, but the other person plays it.
        turn = player if action == SWAP_SIDES else 1 - player
    return f"{LINK}{game.size}c1,{''.join(words)}"


def read_link(link: str, *, to_cursor: bool = False) -> HexGame:
    """Reads a link to HexWorld, or the part of it after `#`.

    Args:
      link: such as `https://hexworld.org/board/#11c1,a3b5`.
      to_cursor: whether to omit the moves after the second comma, which the viewer does not show
        yet.

    Returns:
      The game, from the empty board.

    Raises:
      ValueError: with line and column, if the link is malformed, the board is no square of 2x2 to
        19x19, or a cell is outside the board or occupied.
    """
    text = urllib.parse.unquote(link.strip())
    start = text.find("#") + 1
    head = re.compile(r"(\d+)(?:x(\d+))?(?:r\d+|c\d+|[mn])*(?=,|$)", re.ASCII).match(text, start)
    if head is None:
        raise _error(text, start, "a link starts with the size, as #11c1,a3b5 does")
    size = _size(text, start, head[1], head[2])
    board = np.zeros(size**2, np.int8)
    moves: list[Move] = []
    turn, at, commas = 0, head.end(), 0
    word = re.compile(r",|:[sSp]|:[rf][bw]|[A-Za-z]\d+", re.ASCII)
    while at < len(text):
        # The first comma ends the link's header; the second is the viewer's cursor.
        found = word.match(text, at)
        commas += text[at] == ","
        if found is None or commas > 2:
            raise _error(text, at, "a move is a cell or one of :s :S :p :rb :rw :fb :fw")
        if commas == 2 and to_cursor:
            break
        code = found[0]
        if code[:2] in (":r", ":f"):
            moves.append(Move(COLORS.lower().index(code[2]), _LETTERS[code[1]]))
        elif code != ",":
            move = Move(turn, _CODES.get(code) or _cell(text, at, size, code))
            board = _played(text, at, size, board, move)
            moves.append(move)
            turn = turn if move.action == SWAP_SIDES else 1 - turn
        at = found.end()
    return HexGame(size, tuple(moves))


# --- SGF ------------------------------------------------------------------------------------------


def write_sgf(game: HexGame) -> str:
    """Returns a game as the text of an SGF file.

    Raises:
      ValueError: if a name in `info` is not made of capital letters.
    """
    fixed = {"FF": "4", "GM": str(_GAME), "SZ": str(game.size), "AP": "jaxpgs:1"}
    for name in game.info:
        if not re.fullmatch("[A-Z]+", name):
            raise ValueError(f"Properties of SGF files are named by capital letters, got {name!r}.")
    first = {name: [value] for name, value in {**game.info, **fixed}.items()}
    for name, cells in zip(("AB", "AW"), game.setup, strict=True):
        first |= {name: [cell_name(game.size, cell) for cell in cells]} if cells else {}
    if game.to_move is not None:
        first["PL"] = [COLORS[game.to_move]]
    properties = (name + "".join(f"[{_escaped(x)}]" for x in xs) for name, xs in first.items())
    lines = ["(;" + "".join(properties)]
    moves = [f";{COLORS[player]}[{move_name(game.size, a)}]" for player, a in game.moves]
    lines += ["".join(moves[i : i + 10]) for i in range(0, len(moves), 10)]
    return "\n".join(lines) + ")\n"


def read_sgf(text: str) -> HexGame:
    """Reads the first game of an SGF file, along its first variation.

    Cells may also be two letters, as in Little Golem's files. If stones are set up in the middle of
    a game, the game restarts from there. A plain `swap` swaps sides if the same colour moves next.

    Args:
      text: the content of the file.

    Returns:
      The game.

    Raises:
      ValueError: with line and column, if the text is malformed or of another game, the board is no
        square of 2x2 to 19x19, or a cell is outside the board or occupied.
    """
    nodes = list(_main_line(text))
    sizes = [x for x in nodes[0] if x.name == "SZ"]
    others = [x for x in nodes[0] if x.name == "GM" and x.value.strip() != str(_GAME)]
    if others:
        raise _error(text, others[0].at, f"GM is {others[0].value!r}; Hex is GM[{_GAME}]")
    if not sizes:
        raise _error(text, nodes[0][0].at if nodes[0] else 0, "the first node has no size SZ")
    size = _size(text, sizes[0].at, *_two(sizes[0].value))
    used = {"GM", "FF", "SZ", "AP", "AB", "AW", "AE", "PL", "B", "W"}
    counts = collections.Counter(x.name for x in nodes[0])
    info = {x.name: x.value for x in nodes[0] if x.name not in used and counts[x.name] == 1}
    game = HexGame(size, info=info)
    # Plays the moves on a board, so that an error about an occupied cell can name the line.
    board = np.zeros(size**2, np.int8)
    moves: list[Move] = []
    old = any(x.name == "AP" and _OLD_HEXGUI.match(x.value) for x in nodes[0])
    # The colours of the remaining moves: the next one determines what a plain `swap` means.
    turns = [x.name for node in nodes for x in node if x.name in ("B", "W")]
    for node in nodes:
        setup = [x for x in node if x.name in ("AB", "AW", "AE", "PL")]
        if setup:
            game = _set_up(text, dataclasses.replace(game, moves=tuple(moves)), setup)
            board, moves = stones(game).flatten(), []
        for x in node:
            if x.name not in ("B", "W"):
                continue
            turns = turns[1:]
            action = _read_move(text, x, size)
            if action == "swap":
                action = SWAP_SIDES if turns[:1] == [x.name] else SWAP_PIECES
            elif old and action == SWAP_PIECES:
                action = SWAP_SIDES
            moves.append(Move(COLORS.index(x.name), action))
            board = _played(text, x.at, size, board, moves[-1])
    return dataclasses.replace(game, moves=tuple(moves))


class _Property(NamedTuple):
    """One value of a property, and its place in the text."""

    name: str
    value: str
    at: int


# A parenthesis or semicolon, the name of a property, or a value in which ] may be escaped.
_TOKEN = re.compile(r"\s*(?:([();])|([A-Za-z]+)\s*(?=\[)|\[((?:[^\\\]]|\\.)*)\])", re.DOTALL)


def _main_line(text: str) -> Iterator[list[_Property]]:
    """Yields the nodes along the first variation; parses all of the first game before."""
    nodes: list[list[_Property]] = []
    node: list[_Property] | None = None  # the current node, None between "(" and ";"
    name, at = "", max(text.find("("), 0)
    trees: list[list[bool]] = []  # of each open tree: on the main line, has had a subtree
    while True:
        found = _TOKEN.match(text, at)
        if found is None:
            rest = len(text) - len(text[at:].lstrip())
            what = (
                "the text ends in the middle of the game"
                if rest == len(text)
                else (
                    "a value without its end"
                    if text[rest] == "["
                    else f"{text[rest]!r} has no place"
                )
            )
            raise _error(text, rest, what)  # fmt: skip
        mark, word, value = found.groups()
        place = found.end() - len(found[0].lstrip())
        at = found.end()
        if not trees and mark != "(":
            raise _error(text, place, "a game starts with '('")
        if mark == "(":
            if trees and node is None:
                raise _error(text, place, "a tree starts with ';'")
            # A subtree is on the main line if its parent is and no other subtree came before it.
            trees.append([not trees or (trees[-1][0] and not trees[-1][1]), False])
            if len(trees) > 1:
                trees[-2][1] = True
            node = None
        elif mark == ";":
            if trees[-1][1]:
                raise _error(text, place, "a node after a variation")
            node, name = [], ""
            if trees[-1][0]:
                nodes.append(node)
        elif mark == ")":
            if node is None:
                raise _error(text, place, "a tree without a node")
            trees.pop()
            if not trees:
                break
        elif node is None or trees[-1][1]:
            raise _error(text, place, "a property outside of a node, which starts with ';'")
        elif word:
            name = "".join(c for c in word if c.isupper())  # FF[3] allows small letters
        elif not name:
            raise _error(text, place, "a value without the name of its property")
        else:
            node.append(_Property(name, _unescaped(value), place))
    yield from nodes


def _set_up(text: str, game: HexGame, properties: list[_Property]) -> HexGame:
    """Returns the game with a node's setup and turn; a game in progress restarts from there."""
    board, turn = stones(game).flatten(), player_to_move(game) if game.moves else game.to_move
    for name, value, at in properties:
        if name == "PL":
            letter = value.strip().upper()[:1]
            if letter not in ("B", "W"):
                raise _error(text, at, f"PL is 'B' or 'W', got {value!r}")
            turn = COLORS.index(letter)
        else:
            # The index in this tuple is the code on the board: 0 empty, 1 black, 2 white.
            board[_cell(text, at, game.size, value.strip())] = ("AE", "AB", "AW").index(name)
    black, white = (tuple(np.flatnonzero(board == i).tolist()) for i in (1, 2))
    return dataclasses.replace(game, moves=(), setup=(black, white), to_move=turn)


def _read_move(text: str, x: _Property, size: int) -> int | str:
    word = x.value.strip().lower()
    if word in (*WORDS, "swap"):
        return word
    return "pass" if not word else _cell(text, x.at, size, word)


def _cell(text: str, at: int, size: int, word: str) -> int:
    if re.fullmatch(r"[a-zA-Z]{2}", word):  # Little Golem's
        word = f"{word[0]}{ord(word[1].lower()) - ord('a') + 1}"
    try:
        return read_cell(size, word)
    except ValueError as error:
        raise _error(text, at, str(error)) from None


def _played(text: str, at: int, size: int, board: np.ndarray, move: Move) -> np.ndarray:
    try:
        return after(size, board, move)
    except ValueError as error:
        raise _error(text, at, str(error)) from None


def _two(value: str) -> tuple[str, str | None]:
    width, colon, height = value.strip().partition(":")
    return width, height if colon else None


def _size(text: str, at: int, width: str, height: str | None) -> int:
    """Returns the size of a square board."""
    if not re.fullmatch(r"\d{1,4}", width, re.ASCII) or height not in (None, width):
        size = width if height is None else f"{width}:{height}"
        raise _error(text, at, f"the board must be a square, as SZ[11] is, got {size!r}")
    if not MIN_SIZE <= int(width) <= MAX_SIZE:
        raise _error(text, at, f"boards have sizes {MIN_SIZE} to {MAX_SIZE}, got {width}")
    return int(width)


def _escaped(value: str) -> str:
    return re.sub(r"([\\\]])", r"\\\1", value)


def _unescaped(value: str) -> str:
    return re.sub(
        r"\\(\r\n|.)", lambda m: "" if m[1] in ("\n", "\r\n") else m[1], value, flags=re.DOTALL
    )


def _error(text: str, at: int, message: str) -> ValueError:
    before = text[:at]
    line, column = before.count("\n") + 1, at - before.rfind("\n")
    return ValueError(f"Line {line}, column {column}: {message.rstrip('.')}.")
