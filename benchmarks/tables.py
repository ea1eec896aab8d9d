"""Writes `RESULTS.md`, every table of the benchmarks, and the README's tables, from their files.

    python -m benchmarks.tables

Prose on the rows of `results/NAME.json` stands in `notes/NAME.md`, and is put above their tables.
"""

import argparse
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jaxpgs
from benchmarks import (
    ablation,
    answers,
    breakdown,
    budgets,
    chance,
    compiled,
    continuous,
    cost,
    devices,
    environments,
    environments_samegame,
    evaluations,
    faults,
    floors,
    games,
    grown,
    learning,
    memory,
    model_learning,
    model_memory,
    models,
    mutations,
    networks,
    newcomer,
    noisy_bandit,
    playout_cap,
    policy_targets,
    ppo_learning,
    puzzles,
    ratings,
    rivals,
    rng,
    root_values,
    runs,
    samegame,
    selfplay,
    small_games,
    speed,
    tactics,
    tspg,
    tspg_deep,
    unroll,
    value_errors,
    value_targets,
    versions,
    wide,
)  # fmt: skip
from benchmarks.report import ROOT, write_text
from benchmarks.runs import RESULTS

README = ROOT / "README.md"
README_STRENGTH = "strength_defaults_hex-7x7-early_64"  # the tournament that the README shows
PAGE = pathlib.Path(__file__).parent / "RESULTS.md"
_HEAD = """# Results

Every table here is written by `python -m benchmarks.tables` from the files in
[`results/`](results), which the commands below wrote. ± is the 95% interval; in tournaments it is
over openings, with all games of an opening inside. Milliseconds are of machines that did other work
as well: compare them within a table. A commit that was not recorded is that of rows from before
each row named its own.

Six defaults changed on the way; the commit of a row says which it had. Before 3e6c08b simulations
of PGS drew their actions at temperature 0.5; since then they follow the improved policy by counts.
Before b6f901b the answers of MCS, PGS and MCTS, and the simulations of PGS, took the Q-values of a
node rescaled to [0, 1] however little they differed; since then a range counts as a third at least.
Before b001868 the root of Gumbel PGS considered 16 actions; since then a quarter of N, at most 8,
and the root of N above 64 simulations, at most 16. Before 4ec8619 extended PGS had the update per
step (eq. 3.5 of Brosseit 2023); since then the update of PGS. Before cd720a1 a block of SameGame
had one logit in NRPA, and a colour's weight had a tenth of its step; since then a block has another
logit while its group is a pair, and that step grows with the board (`default_sharing`).
Since dd766fb only boards of more than 100 cells have the other logit (`default_pairs`).

Before 4d98395 the values of PGS-UF came from the network that it had adapted; since then from the
network itself, as in the paper.

Some rows have former names: "cached" is `mode="tree"` now, and "constant" is `mode="rollouts"`.
The knobs `count_siblings` and `transpositions` are gone, as no tournament showed that either
makes a search stronger. Commit be8a545 has both.
"""
_PENALTIES = {
    "per_color": "Others lose (left - 2)² for each colour that is left.",
    "total": "Others lose (left - 2)² for all blocks that are left.",
    "none": "Others lose nothing.",
}


def main(argv: list[str] | None = None) -> None:
    """Writes the page and the README's tables; see the module's text."""
    argparse.ArgumentParser(
        prog="python -m benchmarks.tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    write_text(PAGE, render(RESULTS))
    write_text(README, fill(README.read_text(), readme_blocks(RESULTS)))
    print(f"Wrote {PAGE} and the tables of {README}.")


class Section(NamedTuple):
    """What the page says of one file.

    Attributes:
      name: the file's, without its ending.
      origin: the heading, and who wrote the file.
      note: prose from `notes`, or nothing.
      body: the tables.
      pictures: lines that show the pictures.
    """

    name: str
    origin: str
    note: str
    body: str
    pictures: list[str]


def render(folder: pathlib.Path) -> str:
    """Returns the page for a folder of results."""
    parts = [_HEAD]
    for section in sections(folder):
        note = f"{section.note}\n\n" * bool(section.note)
        parts += [f"{section.origin}\n\n{note}{section.body}", *section.pictures]
    return "\n".join(parts)


def sections(folder: pathlib.Path) -> Iterator[Section]:
    """Makes the sections of the page for a folder of results."""
    for pattern, title, draw in SECTIONS:
        for path in sorted(folder.glob(pattern)):
            data = runs.load(path)
            if not data["rows"] or not (body := draw(data, path)):
                continue
            # Titles name parts of the setting, and the file where there are several.
            heading = title.format(**data["setting"], file=path.stem)
            link = f"[`{path.name}`](results/{path.name})"
            pictures = sorted({path.with_suffix(".png"), *path.parent.glob(f"{path.stem}_*.png")})
            others = {p.stem for p in folder.glob("*.json")} - {path.stem}
            pictures = [p for p in pictures if p.exists() and p.stem not in others]
            note = folder.parent / "notes" / f"{path.stem}.md"
            yield Section(
                path.stem,
                f"## {heading}\n\n{link} was written by {runs.origin(data)}.",
                note.read_text().strip() if note.exists() else "",
                body,
                [f"![{p.stem}](results/{p.name})\n" for p in pictures],
            )


def readme_blocks(folder: pathlib.Path) -> dict[str, str]:
    """Returns the README's tables by the names of their places, for a folder of results."""
    return {
        "strength": _strength_block(folder / f"{README_STRENGTH}.json"),
        "networks": _networks_block(folder / "networks.json"),
        "newcomer": newcomer.sentence(runs.load(folder / "newcomer.json")["rows"]),
    }


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Puts blocks between the lines `<!-- table: NAME -->` and `<!-- end of table -->` of a text.

    Raises:
      ValueError: if the text does not have exactly one place for each block.
    """
    for name, block in blocks.items():
        place = rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)"
        if len(re.findall(place, text, re.DOTALL)) != 1:
            raise ValueError(f"The text needs one place for the table {name!r}.")
        text = re.sub(place, lambda found: found[1] + block + found[2], text, flags=re.DOTALL)  # noqa: B023
    return text


def _strength_block(path: pathlib.Path) -> str:
    """A tournament's setting in two sentences, its ratings, and what was not equal."""
    data = runs.load(path)
    games = sorted({pair["games"] for pair in data["pairings"]})
    cores = sorted({row["cores"] for row in data["rows"]})
    batches = sorted({row["batch"] for row in data["table"]})
    openings = sorted({pair["openings"] for pair in data["pairings"]})
    text = (
        f"Network `{data['setting']['network']}`, {ratings.budget(data['setting'])}, "
        f"{_either(games)} games a pairing over {_either(openings)} openings with both colours, "
        f"{_either(batches)} games searched at once, "
        f"{_either(cores)} CPU core{'s' * (cores != [1])}. "
        "± is the 95% interval over openings. "
        f"From [`{path.name}`](benchmarks/results/{path.name})."
    )
    columns, lines = ratings.player_table(data)
    kept = [
        columns.index(name)
        for name in ("player", "K", "Elo", "evaluations a move", "calls in a row", "ms a move")
    ]
    table = markdown_table(
        [columns[i] for i in kept],
        [[round(x, 1) if isinstance(x := line[i], float) else x for i in kept] for line in lines],
    )
    played, all_pairs = len(data["pairings"]), math.comb(len(data["table"]), 2)
    said = [*data["remarks"]]
    if played < all_pairs:
        said.append(f"{played} of {all_pairs} pairs of players met; the rating compares the others")
    remarks = "; ".join(said)
    remarks = f"\n{remarks[:1].upper()}{remarks[1:]}.\n" * bool(said)
    return f"{text}\n\n{table}{remarks}"


def _networks_block(path: pathlib.Path) -> str:
    """The networks that come with the library, and their games against OpenSpiel's MCTS."""
    searching = f"PGS {networks.SIMULATIONS}"
    asked = [
        ("raw network", "OpenSpiel MCTS 1000", "raw, against 1,000 rollouts"),
        (searching, "OpenSpiel MCTS 1000", f"{searching}, against 1,000"),
        (searching, "OpenSpiel MCTS 10000", f"{searching}, against 10,000"),
    ]
    won = {
        (row["network"], match["player"], match["opponent"]): (
            f"{match['won']:g} of {match['games']}"
        )
        for row in runs.load(path)["rows"]
        for match in row["matches"]
    }
    lines, others = [], []
    for name in jaxpgs.available_pretrained():
        card = runs.load(networks.card_path(name))
        made, size = card["architecture"], card["environment"]["kwargs"]
        units = made["kwargs"].get("width", made["kwargs"].get("num_filters"))
        figures = [won.get((name, player, opponent)) for player, opponent, _ in asked]
        network = f"`{made['network']}` {units}x{made['kwargs']['num_blocks']}"
        if any(figures):
            board = f"{card['environment']['name']} {size['size']}x{size['size']}"
            lines.append([f"`{name}`", board, network, *figures])
        else:
            others.append(f"`{name}` ({network})")
    columns = ["network", "board", "architecture", *(title for *_, title in asked)]
    text = f"\nWithout such games: {', '.join(others)}.\n" * bool(others)
    return markdown_table(columns, lines) + text


def _either(values: Sequence[int]) -> str:
    return " or ".join(map(str, values))


def strength(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """A tournament: its ratings, its pairings, and what was not equal."""
    del path
    if "table" not in data:  # not finished
        return ""
    text = f"{ratings.budget(data['setting']).capitalize()}.\n\n"
    text += markdown_table(*ratings.player_table(data))
    text += "".join(f"\n- {remark}" for remark in data["remarks"]) + "\n" * bool(data["remarks"])
    return text + "\n" + markdown_table(*ratings.pairing_table(data))


def speeds(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """Times beside the bare network and mctx, and how they grow with the simulations."""
    del path
    text = markdown_table(*speed.table(data["rows"]))
    columns, lines = speed.growth(data["rows"])
    if lines:
        text += "\nMilliseconds a simulation, and their growth from the fewest simulations to the "
        text += "most; mctx's searches take longer for each simulation the more there are:\n\n"
        text += markdown_table(columns, lines)
    return text


def samegame_play(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """Games a second of SameGame, and the mean scores that show the rules right."""
    del path
    text = markdown_table(*environments_samegame.table(data["rows"]))
    anchors = data["anchors_games_per_second"].items()
    text += "\nReference figures, not measured here: "
    text += "; ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in anchors) + ".\n\n"
    return text + markdown_table(*environments_samegame.means(data["rows"]))


def samegame_scores(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """Scores on SameGame's positions beside the published ones."""
    del path
    setting = data["setting"]
    random, seconds = setting["random"], setting["seconds"]
    what = "standard positions"
    if random:
        what = f"random boards of {random['size']}x{random['size']}, {random['colors']} colours"
    budget = f"{setting['simulations']:,} games" if seconds is None else f"{seconds:g} seconds"
    text = f"{what.capitalize()}, {budget} a position.\n\n"
    text += markdown_table(*samegame.comparison(data)) + "\n"
    text += markdown_table(*samegame.table(data))
    text += "\nThe rules in NumPy replayed every game of ours; * marks a cleared board. "
    text += _PENALTIES[setting["penalty"]]
    if setting["together"] > 1:
        text += f" {setting['together']} positions were searched at once, which share their time."
    if not random:
        text += (
            " The other columns are from Seify 2020, table 5.7, of runs of two hours a position "
            "or more."
        )
    return text + "\n"


def puzzle_searches(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """The searches of whole games on random boards."""
    text = markdown_table(*puzzles.table(data["rows"]))
    text += "\nRandom boards with five colours. ± are 99% intervals.\n"
    if "sweep" in path.stem:
        return text
    text += "\nDifferences on the same boards, at equal simulations and at equal time:\n\n"
    return text + markdown_table(puzzles.DIFFERENCES, puzzles.differences(data["rows"]))


def model_figures(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """Searches on learned models, and what their cards say of games held out."""
    del path
    text = markdown_table(*models.table(data["rows"]))
    text += "\nLosses on games held out, at each step of the unroll:\n\n"
    return text + markdown_table(*models.losses(data["rows"]))


def ppo_runs(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """Matches along trainings by PPO, and the ratings of each one's versions."""
    del path
    text = markdown_table(*ppo_learning.table(data["rows"]))
    columns, lines = ppo_learning.elo_table(data["rows"])
    if not lines:
        return text
    text += "\nElo of the versions of each run by matches among them, the first being 0:\n\n"
    return text + markdown_table(columns, lines)


def objectives(data: Mapping[str, Any], path: pathlib.Path) -> str:
    """What policies learned by different objectives do."""
    del path
    return "\n".join(
        f"{title}:\n\n{markdown_table(columns, lines)}"
        for title, columns, lines in tspg.tables(data["rows"])
    )


def rows_only(
    table: Callable[[Any], tuple[list[str], list[list[Any]]]],
    note: Callable[[Mapping[str, Any]], str] = lambda data: "",
) -> Callable[[Mapping[str, Any], pathlib.Path], str]:
    """A section of one table of the rows, and a note on them."""

    def draw(data: Mapping[str, Any], path: pathlib.Path) -> str:
        del path
        said = note(data)
        return markdown_table(*table(data["rows"])) + (f"\n{said}\n" if said else "")

    return draw


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table of the rows, without columns that say nothing."""
    rows = list(rows)
    # A column without a single figure says nothing.
    used = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    words = [
        i
        for i in used
        if any(isinstance(row[i], str) and row[i].strip("`")[:1].isalpha() for row in rows)
    ]
    lines = [
        [columns[i] for i in used],
        ["---" if i in words else "---:" for i in used],
        *([_cell(row[i]) for i in used] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _seconds(data: Mapping[str, Any]) -> str:
    took = ", ".join(f"{name} {value:,.0f} s" for name, value in data["seconds"].items())
    return f"Training took: {took}."


def _caught(data: Mapping[str, Any]) -> str:
    caught = sum(row["outcome"] == "caught" for row in data["rows"])
    return f"{caught} of {len(data['mutations'])} faults are caught."


def _equal(data: Mapping[str, Any]) -> str:
    equal = data["arrays"] - len(data["rows"])
    return f"{equal} of {data['arrays']} arrays are equal bit for bit; the others differ as wanted."


# Files, their heading, and what is drawn of them.
SECTIONS: tuple[tuple[str, str, Callable[[Mapping[str, Any], pathlib.Path], str]], ...] = (
    ("rivals.json", "PGS and Gumbel PGS against mctx's Gumbel searches: Elo of ours",
     rows_only(rivals.table, rivals.count)),
    ("strength_*.json", "Strength: {network} ({file})", strength),
    ("ablation.json", "Extensions of policy gradient search, one at a time: Elo over plain PGS",
     rows_only(ablation.table, ablation.games)),
    ("unroll.json", "Values of a learned model along an unroll: {network}",
     rows_only(unroll.table)),
    ("model_memory.json", "Memory of searches on a learned model: {network}, {roots} roots",
     rows_only(model_memory.table)),
    ("tactics_*.json", "Tactics ({file})", rows_only(tactics.table)),
    ("networks.json", "Networks", rows_only(networks.table)),
    ("grown.json", "Networks on larger boards than they learned on", rows_only(grown.table)),
    ("models.json", "Models that were learned: {simulations} simulations a move", model_figures),
    ("speed_*.json", "Speed ({file})", speeds),
    ("compiled.json", "What searches compile to: the compiler's estimate, not a measurement",
     rows_only(compiled.table)),
    ("evaluations.json", "Networks by themselves", rows_only(evaluations.table)),
    ("breakdown.json", "Where the time goes: {simulations} simulations",
     rows_only(breakdown.table)),
    ("games_*.json",
     "Games of pgx against random play: {simulations} simulations, {max_moves} moves ({file})",
     rows_only(games.table)),
    ("newcomer.json", "A newcomer's first steps", rows_only(newcomer.table)),
    ("floors.json", "The lowest versions that are declared", rows_only(floors.table)),
    ("rng.json", "Random numbers: {network}, {simulations} simulations", rows_only(rng.table)),
    ("versions.json", "Speed before and after {change}", rows_only(versions.table)),
    ("budgets.json", "Searches under a budget of seconds", rows_only(budgets.table)),
    ("answers.json", "Answers before and after {change}", rows_only(answers.table, _equal)),
    ("mutations.json", "Faults that the tests catch", rows_only(mutations.table, _caught)),
    ("faults.json", "Faults that befall a run", rows_only(faults.table)),
    ("memory_*.json", "Memory ({file})", rows_only(memory.table)),
    ("cost.json", "Cost before running: {network}, {roots} roots, rollouts",
     rows_only(cost.table)),
    ("environments_[fq]*.json", "Hex environments ({file})", rows_only(environments.table)),
    ("environments_samegame_*.json", "SameGame: random games on 15x15 with five colours",
     samegame_play),
    ("samegame_*.json", "SameGame ({file})", samegame_scores),
    ("puzzles.json", "SameGame: searches on random boards", puzzle_searches),
    ("puzzles_sweep.json", "SameGame: the sweep of knobs on other random boards", puzzle_searches),
    ("value_targets.json", "SameGame 7x7: targets of the value, {simulations} simulations a move "
     "in training", rows_only(value_targets.table, lambda data: "Intervals are 99% and of boards; "
                              "what another training would change is not in them.")),
    ("policy_targets.json", "SameGame 7x7: whom a policy imitates, {simulations} simulations a "
     "move in training", rows_only(policy_targets.table, lambda data: "Intervals are 99% and of "
                                   "boards, not of trainings.")),
    ("value_errors_*.json", "SameGame 7x7: errors of values among the moves of a position, {games} "
     "games of NRPA for the truth", rows_only(value_errors.table)),
    ("tspg_[fq]*.json", "Objectives of linear policies: {simulations} simulations a move, steps "
     "of {step_size:g} ({file})", objectives),
    ("tspg_deep_*.json", "Objectives of deep networks, {size}x{size} Hex, {simulations} "
     "simulations a move: Elo over cross-entropy's policy", rows_only(tspg_deep.table)),
    ("selfplay.json", "Self-play: {games} games, {simulations} simulations a move",
     rows_only(selfplay.table)),
    ("small_games.json", "Small games, learned from nothing in {iterations} iterations: % of the "
     "decisive positions that the raw network plays right", rows_only(small_games.table)),
    ("playout_cap.json", "Playout cap randomisation: {simulations} simulations in {full_share:.0%} "
     "of the moves and {fast_simulations} in the others", rows_only(playout_cap.table)),
    ("devices.json", "Expert iteration on several devices: {games} games, {simulations} "
     "simulations a move", rows_only(devices.table)),
    ("learning*.json", "Raw networks along training: {network}",
     rows_only(learning.table, _seconds)),
    ("model_learning_*.json", "A model and its search from nothing: {size}x{size} Hex, "
     "{simulations} simulations a move ({file})", rows_only(model_learning.table)),
    ("continuous_*.json", "Continuous actions: {settings} settings tried for each player, "
     "{starts} start states", rows_only(continuous.table)),
    ("root_values.json", "Continuous actions: values of the root's candidates on the pendulum, "
     "{simulations} simulations", rows_only(root_values.table)),
    ("chance_*.json", "Games with chance: {calls} calls of the model a move, {settings} settings "
     "tried for each player", rows_only(chance.table)),
    ("noisy_bandit.json", "A bandit whose arms pay by lot: odds of {odds}",
     rows_only(noisy_bandit.table)),
    ("wide_*.json", "Hundreds of actions: {roots} roots", rows_only(wide.table)),
    ("ppo_learning_*.json", "PPO from nothing: {size}x{size} Hex, against {simulations} "
     "simulations a move ({file})", ppo_runs),
)  # fmt: skip


if __name__ == "__main__":
    main()
