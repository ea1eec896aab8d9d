"""The commands of a dialog that make the engine think, and the time for each move."""

import math
import time
from collections.abc import Callable

import numpy as np

from jaxpgs.envs import hex_io
from jaxpgs.envs.hex_games import SWAP_PIECES, SWAP_SIDES, cell_name, move_name
from jaxpgs.gtp.dialog import Answer, Call, Dialog, Task, read_player, with_clock, with_game


def genmove(call: Call) -> tuple[str, Dialog]:
    """Plays a move; the player's clock runs meanwhile."""
    player, start = read_player(call.args[0]), time.monotonic()
    action = _best(call, player)
    dialog = with_game(call, call.dialog.game.play(player, action))
    clock = dialog.clocks[player]
    if clock is not None:
        dialog = with_clock(dialog, player, clock.after(time.monotonic() - start))
    return move_name(dialog.game.size, action), dialog


def reg_genmove(call: Call) -> tuple[str, Dialog]:
    """Returns the move that `genmove` would play."""
    action = _best(call, read_player(call.args[0]))
    return move_name(call.dialog.game.size, action), call.dialog


def _best(call: Call, player: int) -> int | str:
    """Returns what the engine plays: a cell, or a word."""
    size, options = call.dialog.game.size, call.dialog.options
    answer = _think(call, player)
    board = hex_io.stones(call.dialog.game)
    allowed = may_swap(call.dialog, board, player)
    # A player who swaps gets the other side of the same position, mirrored.
    if allowed and (answer.action == size**2 or answer.value < 0):
        return SWAP_PIECES
    if answer.action < 0 or answer.value < options.resign:
        return "resign"
    if answer.action >= size**2 or board.flat[answer.action]:
        raise ValueError(f"{call.engine.name} chose {answer.action}, which is not an empty cell")
    return answer.action


def _think(call: Call, player: int) -> Answer:
    game, options = call.dialog.game, call.dialog.options
    board = hex_io.stones(game)
    won = hex_io.winner(board)
    if won is not None:
        raise ValueError(f"the game is over: {'BW'[won]}+")
    seconds = _budget(call.dialog, player, int(np.sum(board == 0)))
    report = (lambda answer: call.emit(_gfx(game.size, player, answer))) if options.live else None
    allowed = may_swap(call.dialog, board, player)
    return call.engine.think(Task(board, player, allowed, options, seconds, report))


def may_swap(dialog: Dialog, board: np.ndarray, player: int) -> bool:
    """Returns whether the engine may swap: it is White, and only one black stone was played."""
    single = np.count_nonzero(board) == 1 and board.max() == 1
    swapped = any(move.action in (SWAP_PIECES, SWAP_SIDES) for move in dialog.game.moves)
    return bool(dialog.options.allow_swap and player == 1 and single and not swapped)


def _budget(dialog: Dialog, player: int, empty: int) -> float | None:
    """Returns the seconds for a move or None; each player plays about a quarter of `empty`."""
    limit = dialog.options.seconds or math.inf
    clock = dialog.clocks[player]
    if clock is not None:
        # An even share of the clock, less a tenth as a reserve; never 0, which means no limit.
        share = 0.9 * clock.seconds / (clock.moves or max(empty / 4, 4))
        # If extra time follows the main time, each move may take its share of a period.
        later = 0.0 if clock.moves else 0.9 * clock.extra_seconds / max(clock.extra_moves, 1)
        limit = min(limit, max(share, later, 0.01))
    return None if limit == math.inf else limit


def _gfx(size: int, player: int, answer: Answer) -> str:
    """Returns the answer so far in the format in which HexGui displays a tree search."""
    tried = np.flatnonzero(answer.visits > 0)
    # The most visited cell first; cells with equal visits keep their order.
    order = tried[np.argsort(-answer.visits[tried], kind="stable")]
    if not len(order):
        return ""
    line = answer.line or (int(order[0]),)
    moves = (f"{'BW'[(player + i) % 2]} {cell_name(size, c)}" for i, c in enumerate(line))
    names = {int(cell): cell_name(size, int(cell)) for cell in order}
    # HexGui's INFLUENCE is from 0 to 1; a mean return is from -1 to 1.
    wins = " ".join(f"{names[c]} {(answer.qvalues[c] + 1) / 2:.2f}" for c in names)
    counts = " ".join(f"{names[c]} {int(answer.visits[c])}" for c in names)
    total = int(answer.visits.sum())
    return (
        f"gogui-gfx:\nuct\nVAR {' '.join(moves)}\nINFLUENCE {wins}\n"
        f"LABEL {counts}\nTEXT {total} simulations, value {answer.value:+.3f}\n\n"
    )


def visits(call: Call) -> tuple[str, Dialog]:
    """Returns the number of simulations of each cell."""
    return _pairs(call, lambda answer: answer.visits, "{:.0f}")


def values(call: Call) -> tuple[str, Dialog]:
    """Returns the mean return of each cell."""
    return _pairs(call, lambda answer: answer.qvalues, "{:+.2f}")


def _pairs(call: Call, numbers: Callable[[Answer], np.ndarray], form: str) -> tuple[str, Dialog]:
    answer, size = _think(call, read_player(call.args[0])), call.dialog.game.size
    tried = np.flatnonzero(answer.visits > 0)
    found = numbers(answer)
    return " ".join(
        f"{cell_name(size, int(c))} {form.format(found[c])}" for c in tried
    ), call.dialog


def expected_line(call: Call) -> tuple[str, Dialog]:
    """Returns the continuation of the game that the engine expects."""
    answer, size = _think(call, read_player(call.args[0])), call.dialog.game.size
    return " ".join(cell_name(size, cell) for cell in answer.line), call.dialog


def policy(call: Call) -> tuple[str, Dialog]:
    """Returns how good each cell is, for display in HexGui."""
    answer, size = _think(call, read_player(call.args[0])), call.dialog.game.size
    shares = answer.policy / max(float(answer.policy.max()), 1e-9)
    shown = " ".join(
        f"{cell_name(size, int(c))} {shares[c]:.3f}" for c in np.flatnonzero(shares > 0.005)
    )
    return f"INFLUENCE {shown} TEXT value {answer.value:+.3f}", call.dialog
