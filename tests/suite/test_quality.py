"""Results of long commands in `quality` (declared versions were tested), and their arithmetic."""

import dataclasses
import json

import jax
import numpy as np
from quality import RESULTS, floors, mutations, newcomer, openings

import jaxpgs
from jaxpgs import evaluation
from jaxpgs.evaluation import hex_openings


def test_the_declared_versions_are_those_that_were_tested():
    data = json.loads((RESULTS / "floors.json").read_text())
    again = "run python tests/quality floors --again"
    assert data["setting"]["floors"] == floors.floors(), again
    for row in data["rows"]:
        assert row["failed"] == 0 and row["passed"] > 0, row["failures"]
        for name, floor in floors.floors().items():
            assert f"{row['installed'][name]}.".startswith(f"{floor}."), name


def test_every_mutation_applies():
    search = mutations.ROOT / "jaxpgs" / "search"
    for mutation in mutations.MUTATIONS:
        text = (search / mutation.file).read_text()
        assert text.count(mutation.old) == 1, mutation.name
        assert len(list((mutations.ROOT / "tests").rglob(mutation.test))) == 1, mutation.name


def test_minutes_add_up():
    rows = [{"step": "one", "seconds": 30.0}, {"step": newcomer.FIRST, "seconds": 90.0}]
    assert newcomer.table(rows)[1] == [["one", 30.0, 0.5], [newcomer.FIRST, 90.0, 2.0]]


def test_values_of_openings_are_judged_by_their_sign():
    found = np.where(hex_openings(4), 0.5, -0.25)
    assert openings.judge(found)["right"] == openings.judge(found)["of"] == 16
    found[0, 0] = 0.125  # a1, which loses
    row = openings.judge(found)
    assert (row["right"], row["wrong"]) == (15, ["a1 +0.12"])
    assert openings.judge(np.zeros((8, 8)))["right"] is None  # no table
    row |= {"network": "net", "player": "PGS", "simulations": 8, "opponent": None}
    assert openings.table([row])[1] == [["net", "PGS", 8, "the table", "15 of 16", "a1 +0.12"]]
    # A game that an opponent lost because its program failed is not a game that was won.
    row = {"network": "net", "player": "PGS", "simulations": 8, "opponent": "mohex"}
    row |= {"held": 3, "of": 4, "lost": ["b2"], "crashes": 2, "illegal_moves": 1}
    [line] = openings.table([row])[1]
    assert line[4:] == ["3 of 4 (1 illegal moves, 2 crashes)", "b2"]


def test_openings_are_held_by_the_side_that_wins(tmp_path):
    env, key = jaxpgs.envs.Hex(size=4), jax.random.key(0)
    perfect, random = evaluation.perfect_hex(env), evaluation.uniform_random(env)
    wins = hex_openings(4)
    expected = {"held": 16, "of": 16, "wins": 4, "lost": []}
    assert openings.held(env, perfect, random, wins, key, tmp_path) == expected
    # Every game is kept: two of each first move, one of which the other gives up at once.
    assert len(list(tmp_path.rglob("*.sgf"))) == 32

    def failing(rng_key, state, memory):
        action, memory, stats = perfect.act(rng_key, state, memory)
        return action, memory, stats | {"crashes": 1}

    failing = dataclasses.replace(perfect, act=failing)
    assert openings.held(env, random, failing, wins, key)["crashes"] > 0
    found = openings.held(env, random, perfect, wins, key)
    assert found["held"] + len(found["lost"]) == 16 and found["held"] < 6  # a game is held by luck


def test_a_player_gives_up_games_that_it_opened_or_the_others():
    env = jaxpgs.envs.Hex(size=4)
    perfect, random = evaluation.perfect_hex(env), evaluation.uniform_random(env)
    for opener in (True, False):
        player = openings.give_up(perfect, opener=opener)
        lengths = evaluation.play_match(env, random, player, jax.random.key(0)).lengths
        where = 1 if opener else 0  # the other opened there, which is `player`
        assert (lengths[where] == (3 if opener else 2)).all()
        assert (lengths[1 - where] > 3).any()
