"""The answers of a Hex engine to lines of GTP, in the dialect of HexGui and Benzene.

HexGui passes two numbers to `boardsize`. After a swap, or when the user goes back, it replays the
position with `clear_board` and stones in any order of colours. So the players need not alternate.
"""

import contextlib
import dataclasses
import importlib.metadata
import pathlib
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpgs.envs import hex_io
from jaxpgs.envs.hex_games import SWAP_PIECES, SWAP_SIDES, WORDS, cell_name, read_cell
from jaxpgs.envs.hex_io import HexGame
from jaxpgs.gtp.dialog import (
    Call,
    Dialog,
    Engine,
    Options,
    Reply,
    read_integer,
    read_player,
    with_game,
)
from jaxpgs.gtp.parameters import (
    analyze_commands,
    param_game,
    param_search,
    time_left,
    time_settings,
)
from jaxpgs.gtp.thinking import (
    expected_line,
    genmove,
    may_swap,
    policy,
    reg_genmove,
    values,
    visits,
)


def serve(engine: Engine, size: int, options: Options) -> None:
    """Answers standard input on standard output, until `quit` or the end of the input.

    Args:
      engine: who plays. It is prepared first, and then "ready" is printed on standard error.
      size: the size of the first board.
      options: the engine's initial options.

    Raises:
      ValueError: if the engine cannot be prepared.

    Example:
      >>> from jaxpgs import gtp
      >>> engine = gtp.player_engine(env, jaxpgs.evaluation.perfect_hex(env))
      >>> play = functools.partial(gtp.serve, engine, 3, gtp.Options())
    """
    # Read and write bytes: a line in an unknown encoding gets an answer, not an exception.
    out, source = sys.stdout, sys.stdin.buffer

    def write(text: str) -> None:
        out.buffer.write(text.encode(errors="replace"))
        out.buffer.flush()

    with contextlib.redirect_stdout(sys.stderr):  # other output must not be read as an answer
        engine.prepare(size, options)
        print("ready", file=sys.stderr, flush=True)
        dialog = Dialog(HexGame(size), options)
        with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
            for line in source:
                reply = handle(engine, dialog, line.decode(errors="replace"), write)
                dialog = reply.dialog
                write(reply.text)
                if reply.quits:
                    break


def handle(
    engine: Engine, dialog: Dialog, line: str, emit: Callable[[str], Any] = lambda text: None
) -> Reply:
    """Answers one line.

    Args:
      engine: who plays.
      dialog: the state of the dialog before this line.
      line: a command with its arguments, with an optional number before and comment after it.
      emit: called with lines of live analysis while the engine thinks.

    Returns:
      The reply. If there was an error, its text is `?` and the error message.

    Example:
      >>> from jaxpgs import gtp
      >>> engine = gtp.player_engine(env, jaxpgs.evaluation.perfect_hex(env))
      >>> reply = gtp.handle(engine, gtp.Dialog(jaxpgs.envs.hex_io.HexGame(3)), "play black a4")
      >>> reply.text[:21]
      "? 'a4' is not on a bo"
    """
    # GTP 2: a tab is a space, other control characters are removed, and `#` begins a comment.
    line = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", line.split("#")[0].replace("\t", " "))
    # The answer repeats the number before the command.
    number, name, *args = re.fullmatch(r"\s*(\d*)\s*(\S*)\s*(.*?)\s*", line, re.DOTALL).groups()  # type: ignore[union-attr]
    if not name:
        return Reply("" if not number else f"?{number} no command\n\n", dialog)
    command = _COMMANDS.get(name)
    try:
        if command is None:
            raise ValueError(f"unknown command: {name[:40]}")
        function, least, most = command
        words = args[0].split()
        if not least <= len(words) <= most:
            allowed = least if least == most else f"{least} to {most}"
            plural = "s" * (allowed != 1)
            raise ValueError(f"{name} takes {allowed} argument{plural}, got {len(words)}")
        text, after = function(Call(engine, dialog, words, emit))
    except ValueError as error:
        return Reply(f"?{number} {_one_line(str(error))}\n\n", dialog)
    except Exception as error:  # an engine that exits loses its game, so report it and continue
        traceback.print_exc(file=sys.stderr)
        what = _one_line(f"{type(error).__name__}: {error}")
        return Reply(f"?{number} internal error: {what}\n\n", dialog)
    # An empty line ends an answer, so the answer itself may not contain one.
    text = "\n".join(part for i, part in enumerate(text.split("\n")) if part.strip() or not i)
    return Reply(f"={number} {text}\n\n", after, name == "quit")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


# --- the board ------------------------------------------------------------------------------------


def _boardsize(call: Call) -> tuple[str, Dialog]:
    # HexGui passes width and height; other programs pass one number for both.
    width, height = (read_integer(word, 1, 1000) for word in (call.args * 2)[:2])
    if width != height:
        raise ValueError(f"the board must be square, got {width}x{height}")
    # Raises if the engine does not support this size; the dialog is then unchanged.
    call.engine.prepare(width, call.dialog.options)
    return "", dataclasses.replace(call.dialog, game=HexGame(width), clocks=(None, None))


def _clear_board(call: Call) -> tuple[str, Dialog]:
    return "", with_game(call, HexGame(call.dialog.game.size))


def _play(call: Call) -> tuple[str, Dialog]:
    player, game = read_player(call.args[0]), call.dialog.game
    word = call.args[1].lower()
    action: int | str = SWAP_PIECES if word == "swap" else word
    if action not in WORDS:
        action = read_cell(game.size, word)
    # Colours may come in any order, but a swap needs exactly one stone, of the other player, and
    # may occur only once. The stones sum to 1 if this stone is black, and to 2 if it is white.
    played = game.play(player, action)
    if action in (SWAP_PIECES, SWAP_SIDES):
        board = hex_io.stones(game)
        swapped = any(move.action in (SWAP_PIECES, SWAP_SIDES) for move in game.moves)
        if np.count_nonzero(board) != 1 or board.sum() != 2 - player or swapped:
            raise ValueError("illegal move: a swap answers the other player's first stone")
    try:
        # Raises if the cell is occupied.
        hex_io.stones(played)
    except ValueError as error:
        raise ValueError(f"illegal move: {error}") from None
    return "", with_game(call, played)


def _undo(call: Call) -> tuple[str, Dialog]:
    game = call.dialog.game
    if not game.moves:
        raise ValueError("cannot undo: no move was played")
    return "", with_game(call, dataclasses.replace(game, moves=game.moves[:-1]))


def _showboard(call: Call) -> tuple[str, Dialog]:
    env, state = hex_io.position(call.dialog.game)
    return "\n" + env.render(state), call.dialog


def _final_score(call: Call) -> tuple[str, Dialog]:
    won = hex_io.winner(hex_io.stones(call.dialog.game))
    return "cannot score" if won is None else f"{'BW'[won]}+", call.dialog


def _all_legal_moves(call: Call) -> tuple[str, Dialog]:
    game = call.dialog.game
    board = hex_io.stones(game)
    # Once a player has won, no cell is legal.
    empty = np.flatnonzero((board == 0) & (hex_io.winner(board) is None))
    words = [cell_name(game.size, int(cell)) for cell in empty]
    return " ".join(words + [SWAP_PIECES] * may_swap(call.dialog, board, 1)), call.dialog


def _loadsgf(call: Call) -> tuple[str, Dialog]:
    path = pathlib.Path(call.args[0])
    try:
        if not path.is_file():
            raise ValueError(f"no such file: {path}")
        game = hex_io.read_sgf(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    if len(call.args) == 2:
        game = dataclasses.replace(game, moves=game.moves[: read_integer(call.args[1], 0, 10_000)])
    call.engine.prepare(game.size, call.dialog.options)
    return "", with_game(call, game)


def _printsgf(call: Call) -> tuple[str, Dialog]:
    return "\n" + hex_io.write_sgf(call.dialog.game), call.dialog


def _link(call: Call) -> tuple[str, Dialog]:
    return hex_io.write_link(call.dialog.game), call.dialog


def _version() -> str:
    try:
        return importlib.metadata.version("jaxpgs")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return "0"


def _say(tell: Callable[[Call], str]) -> Callable[[Call], tuple[str, Dialog]]:
    return lambda call: (tell(call), call.dialog)


# Each command with the minimum and the maximum number of its arguments.
_COMMANDS: dict[str, tuple[Callable[[Call], tuple[str, Dialog]], int, int]] = {
    "all_legal_moves": (_all_legal_moves, 0, 0),
    "boardsize": (_boardsize, 1, 2),
    "clear_board": (_clear_board, 0, 0),
    "final_score": (_final_score, 0, 0),
    "genmove": (genmove, 1, 1),
    "hexgui-analyze_commands": (analyze_commands, 0, 0),
    "jaxpgs-line": (expected_line, 1, 1),
    "jaxpgs-link": (_link, 0, 0),
    "jaxpgs-policy": (policy, 1, 1),
    "jaxpgs-values": (values, 1, 1),
    "jaxpgs-visits": (visits, 1, 1),
    "known_command": (_say(lambda call: str(call.args[0] in _COMMANDS).lower()), 1, 1),
    "list_commands": (_say(lambda call: "\n".join(_COMMANDS)), 0, 0),
    "loadsgf": (_loadsgf, 1, 2),
    "name": (_say(lambda call: call.engine.name), 0, 0),
    "param_game": (param_game, 0, 2),
    "param_search": (param_search, 0, 2),
    "play": (_play, 2, 2),
    "printsgf": (_printsgf, 0, 0),
    "protocol_version": (_say(lambda call: "2"), 0, 0),
    "quit": (_say(lambda call: ""), 0, 0),
    "reg_genmove": (reg_genmove, 1, 1),
    "showboard": (_showboard, 0, 0),
    "time_left": (time_left, 0, 3),
    "time_settings": (time_settings, 3, 3),
    "undo": (_undo, 0, 0),
    "version": (_say(lambda call: _version()), 0, 0),
}
