"""Which tables and pictures of the README and of RESULTS.md come from today's code?

    python tests/quality claims

A section is a claim about earlier code if older code wrote some of its rows and no comparison shows
that they still hold (`python -m benchmarks.stale`). The exit status is 1 if there are more than
five such sections, or if one of them does not say so. Pictures without rows count as earlier.
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator

from benchmarks import report, runs, stale, tables

KNOWN = runs.load(stale.SAME)
ALLOWED = 5  # sections about earlier code
# Files of `python -m benchmarks.rivals`, and the pattern of the tournaments that it gathers.
GATHERED = {"rivals": "strength_defaults*.json", "rounds": "strength_rounds*.json"}
# Further files whose rows the table of a file shows.
ALSO = {"networks": ["openings.json"], "samegame_full": ["samegame_150.json"]}
# A section about earlier code must contain these words.
MARK = "of earlier code"
_SECTION = re.compile(r"^## (.*)$", re.MULTILINE)


def main(argv: list[str] | None = None) -> None:
    """Prints a table; see the module's text."""
    argparse.ArgumentParser(
        prog="python tests/quality claims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    lines, earlier, unmarked = [], [], []
    for title, text in sections():
        old = [name for name, path in shown(text) if not is_of_today(name, path)]
        new = [name for name, _ in shown(text) if name not in old]
        lines.append([title, ", ".join(new), ", ".join(old)])
        earlier += [title] * bool(old)
        unmarked += [title] * (bool(old) and MARK not in text)
    report.print_table("Claims", ["section", "of today's code", "of earlier code"], lines)
    print(f"{len(earlier)} sections are about earlier code; {ALLOWED} may be.")
    if unmarked:
        print(f"These do not say {MARK!r}: {', '.join(unmarked)}.")
    sys.exit(1 if len(earlier) > ALLOWED or unmarked else 0)


def sections() -> Iterator[tuple[str, str]]:
    """Yields titles and texts of the sections that show a table or a picture of results."""
    for page in (tables.README, tables.PAGE):
        _, *parts = _SECTION.split(page.read_text())
        for title, text in zip(parts[::2], parts[1::2], strict=True):
            if any(shown(text)):
                yield title, text


def shown(text: str) -> Iterator[tuple[str, pathlib.Path | None]]:
    """Yields the names of a text's tables and pictures, each with the file of its rows, or None."""
    for name in re.findall(r"<!-- table: ([\w-]+) -->", text):
        yield name, (runs.RESULTS / f"{tables.BLOCKS[name].file}.json").resolve()
    for name in re.findall(r"!\[[^]]*\]\(([\w./-]*results/[\w.-]+)\.png\)", text):
        path = (runs.RESULTS.parent / f"{name}.json").resolve()
        yield f"{path.stem}.png", path if path.exists() else None


def is_of_today(name: str, path: pathlib.Path | None) -> bool:
    """Whether all rows of a table or a picture come from this checkout's code, or still hold."""
    if path is None or path.stem == "archived":
        return False
    keep = tables.BLOCKS[name].keep if name in tables.BLOCKS else lambda row: True
    rows = [row for row in runs.load(path)["rows"] if keep(row)]
    paths = sorted(path.parent.glob(GATHERED.get(path.stem, path.name)))
    paths += [path.parent / also for also in ALSO.get(path.stem, [])]
    if path.stem in GATHERED:
        networks = {row["network"] for row in rows}
        known = {path: runs.load(path)["setting"]["network"] for path in paths}
        paths = [path for path in paths if known[path] in networks]
    judged = [each for path in paths for each in stale.judged(runs.load(path), KNOWN)]
    return not any(old for row, _, old in judged if path.stem in GATHERED or keep(row))


if __name__ == "__main__":
    main()
