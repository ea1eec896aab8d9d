"""The examples of the pages that take long, run as they stand but for the sizes.

`SMALLER` says for each page which texts are replaced, each of which must occur, so that a test
takes a minute and needs neither a cluster nor a program of somebody else.
"""

import pathlib
import re
import sys

import jax
import pytest

import jaxpgs

pytestmark = pytest.mark.lenient  # a reader's program may promote
ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = [sys.executable, str(ROOT / "tests" / "openspiel_gtp.py"), "3", "20"]
GAMES, FIT = "Games(num_games=8, num_steps=2", "Fit(batch_size=16, updates_per_iteration=1"
SMALLER = {
    "training": {
        "num_filters=32, num_blocks=4": "num_filters=2, num_blocks=1",
        "num_filters=32, num_blocks=2": "num_filters=2, num_blocks=1",
        "num_simulations=64": "num_simulations=4",
        "num_iterations=200": "num_iterations=1",
        "Games(num_games=512)": f"{GAMES})",
        "Fit(batch_size=1024)": f"{FIT})",
        "fit=Fit(offsets": f"games={GAMES}), fit={FIT}, offsets",
        "jax.distributed.initialize()": "",
        "num_games=512 * count)": "num_games=8, num_steps=2), num_simulations=2, num_iterations=1",
        "Fit(batch_size=1024 * count)": f"{FIT})",
        "/shared/": "runs/shared-",
        "root = root_fn(None, rng_key, state)": "rng_key = jax.random.key(0)\n"
        "state = jax.vmap(env.init)(jax.random.split(rng_key, 2))\n"
        "root = root_fn(None, rng_key, state)",
        "recurrent_fn, 800": "recurrent_fn, 8",
        "num_iterations=100": "num_iterations=1, fit=ppo.Fit(batch_size=64)",
        "ppo.Games(": "ppo.Games(num_games=8, num_steps=8, ",
        "jaxpgs.envs.Hex(7)": "jaxpgs.envs.Hex(3)",
    },
    "puzzles": {"state, 64)": "state, 4)", "(100, 100)": "(2, 2)", "num_steps=20": "num_steps=1"},
    "play": {"simulations=200": "simulations=8"},
    "engines": {
        'jaxpgs.load_pretrained("hex-9x9-large")': 'jaxpgs.load_pretrained("hex-5x5")',
        "jaxpgs.pgs_policy, 800": "jaxpgs.pgs_policy, 8",
        '"build/src/mohex/mohex"': repr([*PROGRAM[:2], "5", "20"]),
        'setup=["param_mohex max_time 5", "param_mohex reuse_subtree 0"],': "",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("page", SMALLER)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    program = "\n".join(blocks)
    for long, short in SMALLER[page].items():
        assert long in program, long
        program = program.replace(long, short)
    names = {"__name__": page}
    exec(compile(program, f"{page}.md", "exec"), names)
    CHECKS[page](names)


def _training(names):
    # The page's solver of puzzles, on a board of a few cells.
    puzzle = jaxpgs.envs.SameGame(3, 3, num_colors=2)
    names["env"] = puzzle
    names["apply_fn"] = lambda params, observation: (
        jax.numpy.zeros((len(observation), puzzle.num_actions)),
        jax.numpy.zeros(len(observation)),
    )
    boards = jax.vmap(puzzle.init)(jax.random.split(jax.random.key(0), 2))
    games = jax.eval_shape(names["solver"], None, jax.random.key(1), boards)
    assert games.score.shape == (2,)
    assert names["net"].card["name"] == "mine" and names["rated"].table.ratings.shape


def _puzzles(names):
    assert names["solution"].score.shape == (16,) and names["games"].score.shape == (1,)


def _play(names):
    assert "<svg" in names["board"].svg("visits")


def _engines(names):
    match = names["match"]
    assert match.games > 0 and names["env"].size == 5


CHECKS = {"training": _training, "puzzles": _puzzles, "play": _play, "engines": _engines}
