"""A GTP engine with a fault that its argument names; it plays the first empty cell."""

import sys
import time

how, taken, moves = sys.argv[1], set(), 0
for line in sys.stdin:
    words = line.split()
    answer = ""
    if words[0] == "clear_board":
        taken = set()
    elif words[0] == "play":
        taken.add(words[2])
    elif words[0] == "name":
        answer = f"faulty {how}"
    elif words[0] == "boardsize" and how == "other-size":
        print("? only 19x19\n", flush=True)
        continue
    elif words[0] == "genmove":
        moves += 1
        cells = [f"{column}{row}" for row in (1, 2, 3) for column in "abc"]
        answer = next(cell for cell in cells if cell not in taken)
        if how == "live":
            print(f"gogui-gfx:\nuct\nVAR B {answer}\n\nCopyright\n\nsearching", flush=True)
        elif how == "hangs":
            time.sleep(60)
        elif how == "ends" or (how == "ends-once" and len(taken) == 3 and moves > 1):
            print("out of memory", file=sys.stderr, flush=True)
            sys.exit(1)
        elif how == "fails":
            print("? no idea\n", flush=True)
            continue
        elif how in ("resign", "swap-pieces", "z99"):
            answer = how
        elif how == "taken" and taken:
            answer = min(taken)
    print(f"= {answer}\n", flush=True)
