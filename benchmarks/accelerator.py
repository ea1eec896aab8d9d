"""Everything that an accelerator should measure, piece by piece, in one command.

    python -m benchmarks.accelerator                      # all pieces, hours on one GPU
    python -m benchmarks.accelerator --minutes 9          # what fits; go on with the same command
    python -m benchmarks.accelerator --preset tiny        # the same on any machine, to try it

The first piece is what users of mctx run, pgx's AlphaZero example. Then come the large Hex
networks, each trained from the one before; speed compared with the bare network and mctx's searches
at the sizes of papers; memory up to 100,000 simulations; the speed of Hex and SameGame; and NRPA on
the 20 positions of SameGame. Each piece is a command in its own process, and writes the file that
`benchmarks.tables` reads.
"""

import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import report, runs

LEAST_SECONDS = 10.0  # a piece is not started with less


class Piece(NamedTuple):
    """A command to run.

    Attributes:
      name: the name of the piece.
      module: the module to run.
      args: its arguments; `{out}` is the folder of results.
      trains: whether it is a training, which gets a limit in minutes and reports its progress in
        its card.
    """

    name: str
    module: str
    args: Sequence[str]
    trains: bool = False


def _speed(network: str, *more: str) -> Piece:
    args = ("--preset", "accelerator", "--networks", network, *more)
    out = ("--out", "{out}/speed_accelerator.json")
    return Piece(f"speed-{network.removeprefix('conv-')}", "benchmarks.speed", (*args, *out))


def _benchmark(name: str, file: str, *args: str) -> Piece:
    module = f"benchmarks.{name}"
    return Piece(file.replace("_", "-"), module, (*args, "--out", f"{{out}}/{file}.json"))


def _train(name: str, *more: str, trains: bool = True) -> Piece:
    args = (name, "--out", "{out}/networks", *more)
    return Piece(f"train-{name}", "jaxpgs.training.recipes", args, trains)


_SEIFY = "studies.seify2020"
PRESETS: dict[str, list[Piece]] = {
    "full": [
        _benchmark("speed", "speed_pgx_accelerator", "--preset", "pgx", "--roots", "1024"),
        *(_train(name, trains=False) for name in ("conv-7x7-large", "conv-9x9-large")),
        *(_train(name) for name in ("hex-9x9-large-begun", "hex-11x11-begun", "hex-11x11")),
        _speed("conv-9x9-128x10-bfloat16"),
        _speed("conv-9x9-128x10"),
        _benchmark(
            "memory", "memory_accelerator", "--preset", "quick", "--roots", "1024",
            "--simulations", "64", "1024", "16384", "100000",
        ),
        _benchmark("environments", "environments_full_accelerator", "--preset", "full"),
        _benchmark(
            "environments_samegame", "environments_samegame_full_accelerator", "--preset", "full"
        ),
        _benchmark(
            f"{_SEIFY}.samegame", "samegame_accelerator", "--preset", "full",
            "--search", "nrpa wide", "--together", "20",
        ),
        _speed("conv-9x9-256x19-bfloat16"),
        _speed("conv-9x9-256x19"),
        _speed("conv-11x11-128x10-bfloat16"),
        _speed("conv-11x11-128x10"),
    ],
    "tiny": [
        _speed(
            "conv-5x5-8x1-bfloat16", "--roots", "1", "--simulations", "4", "--turns", "1",
            "--searches", "PGS cached",
        ),
        _benchmark(
            f"{_SEIFY}.samegame", "samegame_tiny", "--random", "1", "--size", "4",
            "--colors", "2", "--seconds", "0.1", "--search", "random",
        ),
        _train("hex-5x5-early", "--games", "8", "--iterations", "1", "--simulations", "4"),
    ],
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Runs the pieces that are not done; see the module's docstring."""
    parser = runs.parser("accelerator", __doc__, PRESETS)
    add = parser.add_argument
    add("--folder", type=pathlib.Path, default=runs.RESULTS, help="where results go")
    add("--pieces", nargs="+", help="only these")
    add(
        "--minutes",
        type=runs.number(0),
        help="end after this time, if need be in the middle of a piece",
    )
    args = parser.parse_args(argv)
    pieces = {piece.name: piece for piece in PRESETS[args.preset]}
    if unknown := sorted(set(args.pieces or ()) - set(pieces)):
        parser.error(f"unknown pieces {unknown}; there are {', '.join(pieces)}")
    args.out = args.out or args.folder / f"accelerator_{args.preset}.json"
    record = runs.open_record(parser, args, {}, ("piece",))
    end = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    for name in args.pieces or pieces:
        if runs.has(record, piece=name):
            print(f"{name} is done.")
            continue
        left = None if end is None else end - time.monotonic()
        if left is not None and left < LEAST_SECONDS:
            break
        begin = time.monotonic()
        problem = run(pieces[name], args.folder, left)
        if problem is None:
            runs.add(record, {"piece": name, "seconds": round(time.monotonic() - begin)})
        else:
            print(f"{name} is not done: {problem}.")
    done = {row["piece"]: row["seconds"] for row in runs.read(record)}
    lines = [[name, "yes" if name in done else "no", done.get(name)] for name in pieces]
    report.print_table("Pieces", ["piece", "done", "seconds of the last call"], lines)


def run(piece: Piece, folder: pathlib.Path, seconds: float | None) -> str | None:
    """Runs a piece in its own process.

    Args:
      piece: the piece.
      folder: the folder of results.
      seconds: the time limit; None for no limit.

    Returns:
      None if it is done, otherwise the reason why not.
    """
    command = [sys.executable, "-m", piece.module, *(a.format(out=folder) for a in piece.args)]
    if piece.trains and seconds is not None:
        # It also saves its state, and is killed from here only if that takes too long.
        command += ["--minutes", f"{max(seconds - 60, 0.7 * seconds) / 60:.2f}"]
    print(f"$ {' '.join(command[1:])}", flush=True)
    try:
        code = subprocess.run(command, cwd=report.ROOT, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        return "its time was over, and the next call goes on with it"
    if code:
        return f"it ended with status {code}"
    if piece.trains:
        card = json.loads((folder / "networks" / f"{piece.args[0]}.json").read_text())
        done, of = card["iterations_done"], card["training"]["iterations"]
        if done < of:
            return f"{done} of {of} iterations, and the next call goes on with them"
    return None


if __name__ == "__main__":
    main()
