"""The examples of docs/extending.md: each runs, is short, and does what its text says.

Those of docs/mctx.md run too. Those of the other pages take long: that their names exist, their
imports work and their links lead somewhere is tested.
"""

import ast
import pathlib
import pkgutil
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpgs

pytestmark = pytest.mark.lenient  # a reader's program may promote
ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_LINES = 12
CHECKS = {}


def check(heading):
    """Registers what must be true after the examples under a heading."""

    def register(function):
        assert heading not in CHECKS
        CHECKS[heading] = function
        return function

    return register


def sections():
    """Headings of the page with their blocks of code."""
    parts = re.split(r"^#+ (.*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    blocks = [re.findall(r"^```python\n(.*?)^```", part, re.M | re.S) for part in parts[1::2]]
    return {name: found for name, found in zip(parts[::2], blocks, strict=True) if found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_and_links_of_a_page_exist(page):
    text = page.read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        for node in ast.parse(block, page.name).body:
            # Optional packages are not everywhere.
            if isinstance(node, ast.Import | ast.ImportFrom) and "jaxpgs" in ast.unparse(node):
                exec(ast.unparse(node), {})
    for name in re.findall(r"\bjaxpgs((?:\.\w+)+)\b(?![/-])", text):
        pkgutil.resolve_name(f"jaxpgs{name}")
    for link in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        assert (page.parent / link).exists(), link


def test_examples_are_short():
    for heading, blocks in sections().items():
        for block in blocks:
            lines = [line for line in block.splitlines() if line.strip()]
            assert len(lines) <= MOST_LINES, f"{heading}: {len(lines)} lines"
            assert max(map(len, lines)) <= 100, heading


@pytest.mark.slow
def test_the_page_for_users_of_mctx_runs():
    names = {"__name__": "mctx"}
    text = (ROOT / "docs" / "mctx.md").read_text()
    answers = []
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, "mctx.md", "exec"), names)
        answers.append({key: names.get(key) for key in ("action", "weights", "summary", "found")})
    _, theirs, ours, *_ = answers
    assert (names["theirs"].sum(-1) == names["ours"].sum(-1)).all()
    counts = [summary.visit_counts for summary in names["slippery"]]
    np.testing.assert_array_equal(*counts)
    assert (counts[0].sum(-1) == 16).all()
    np.testing.assert_array_equal(theirs["summary"].visit_counts.sum(-1), 8)
    assert ours["found"].visits.sum(-1).tolist() == [8] * 4
    # Both answers are the shares of the visits.
    np.testing.assert_allclose(theirs["weights"], theirs["summary"].visit_probs, rtol=1e-6)
    np.testing.assert_allclose(ours["weights"], ours["found"].visits / 8, rtol=1e-6)
    # The table's words on what was never tried.
    untried = np.asarray(ours["found"].visits) == 0
    assert (np.asarray(ours["found"].qvalues)[untried] == np.finfo(np.float32).min).all()
    assert (np.asarray(theirs["summary"].qvalues)[theirs["summary"].visit_counts == 0] == 0).all()


def test_every_example_does_what_the_page_says():
    names = {"__name__": "extending"}
    found = sections()
    for number, (heading, blocks) in enumerate(found.items()):
        for block in blocks:
            exec(compile(block, f"extending.md: {heading}", "exec"), names)
        if number:  # the first ones are imports
            CHECKS[heading](**{key: x for key, x in names.items() if not key.startswith("__")})
    assert set(CHECKS) == set(list(found)[1:])


def head(output):
    return np.asarray(output.search_state.params["policy_head"])


def moved(output, params):
    """Whether the policy head of every root has moved."""
    return (head(output) != np.asarray(params["policy_head"])).any((1, 2)).all()


def visits(output):
    return np.asarray(output.search_state.visits)


@check("Your own network")
def _(root, recurrent_fn, adapt, **_):
    assert isinstance(recurrent_fn, jaxpgs.base.SplitRecurrentFn)
    assert adapt == {"torso": False, "policy_head": True, "value_head": False}
    assert root.prior_logits.shape == (4, 9) and (root.value != 0).all()


@check("The contract")
def _(search, answers, params, ask, **_):
    assert [visits(output).sum(-1).tolist() for output in answers] == [
        [4 * n] * 4 for n in (1, 2, 3, 4)
    ]
    assert moved(answers[-1], params)


@check("Your own truncation")
def _(output, **_):
    depth = np.asarray(output.search_state.depth) * 8
    np.testing.assert_array_equal(depth % 2, 0)
    assert (depth >= 16).all()
    # Two simulations of an update meet; the later update goes on from there.
    assert (visits(output).sum(-1) == 8).all()


@check("Your own backup")
def _(output, td_lambda, root, **_):
    rng = np.random.default_rng(0)
    depth = np.array([[3, 1]])
    alive = np.arange(4)[:, None, None] < depth
    reward, value = (np.where(alive, rng.normal(size=(4, 1, 2)), 0.0) for _ in range(2))
    trajectory = jaxpgs.base.Trajectory(
        alive, reward, -0.9 * alive, value, *[None] * 4, depth=depth, limited=None,
        num_evaluations=None, num_calls=None,
    )  # fmt: skip
    trajectory = jax.tree.map(jnp.asarray, trajectory)
    last = jaxpgs.backup.n_step()(trajectory)
    np.testing.assert_allclose(td_lambda(1.0)(trajectory), last, rtol=1e-5)
    one = np.where(alive, reward - 0.9 * value, 0.0)
    np.testing.assert_allclose(td_lambda(0.0)(trajectory), one, rtol=1e-5)
    half = reward[2, 0, 0] - 0.9 * value[2, 0, 0]
    half = reward[1, 0, 0] - 0.9 * (value[1, 0, 0] + half) / 2
    np.testing.assert_allclose(td_lambda(0.5)(trajectory)[1, 0, 0], half, rtol=1e-5)
    assert visits(output).any() and np.isfinite(output.search_state.value).all()


@check("Your own estimator")
def _(output, answers, params, **_):
    assert moved(output, params)
    # Same key, same K: what differs is the bonus.
    assert (head(output) != head(answers[-1])).any()


@check("Regularised estimators")
def _(regular, output, **_):
    np.testing.assert_allclose(head(regular), head(output), rtol=1e-5, atol=1e-6)


@check("Your own selection")
def _(output, flat_puct, root, **_):
    np.testing.assert_array_equal(visits(output), 2)
    # Twelve choices before any return: the prior's shares, the largest quotient first.
    prior = np.asarray(jax.nn.softmax(root.prior_logits[0]))
    expected = np.zeros(9, int)
    for _ in range(12):
        expected[np.argmax(prior / (1 + expected))] += 1
    node = jaxpgs.base.NodeStats(
        root.prior_logits, root.value, jnp.zeros((4, 9), jnp.int32), jnp.zeros((4, 9)),
        jnp.ones((4, 9), bool),
    )  # fmt: skip
    actions = jaxpgs.selection.select_in_turn(flat_puct(2.0), None, node, 12)
    np.testing.assert_array_equal(np.bincount(actions[0], minlength=9), expected)


@check("Your own target")
def _(output, carry, **_):
    qvalues, tried = np.asarray(output.search_state.qvalues), visits(output) > 0
    weights = np.where(tried, np.exp(np.where(tried, qvalues, 0) / 0.2), 0)
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(output.action_weights, weights, rtol=1e-5)
    assert tried[np.arange(4), output.action].all()


@check("Your own model")
def _(output, split, **_):
    for found in (output, split):
        # Both go home, the first with the wind and the second against it.
        np.testing.assert_array_equal(found.action, [2, 0])
        assert found.search_state.value[1] < found.search_state.value[0] - 1 < -4
        assert (np.asarray(found.search_state.params["slope"]) != 0).any(1).all()


@check("Answers within a time limit")
def _(output, seen, answers, **_):
    assert [n for n, _ in seen] == sorted({n for n, _ in seen}) and seen[-1][0] == 4
    np.testing.assert_array_equal(visits(output), visits(answers[-1]))
    np.testing.assert_array_equal(seen[-1][1], output.action)


@check("A game, move by move")
def _(game, moves, params, **_):
    state, nodes, heads = game
    np.testing.assert_array_equal((np.asarray(state.labels) != 0).sum(-1), 3)
    assert all(len(set(row)) == 3 for row in np.asarray(moves).T)
    assert nodes.parent.shape == (4, 6)
    assert (heads["policy_head"] != params["policy_head"]).any((1, 2)).all()


@check("Several devices")
def _(output, shared, answers, **_):
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shared)} == {4}
    # One key is split into one per root.
    np.testing.assert_array_equal(visits(output), visits(answers[-1]))
    np.testing.assert_allclose(head(output), head(answers[-1]), rtol=1e-4, atol=1e-6)


@check("A bound on memory")
def _(output, **_):
    remembered = jnp.sum(output.search_state.nodes.edge >= 0, axis=1)  # beside the root
    np.testing.assert_array_equal(remembered, 5)
    assert (np.asarray(output.search_state.num_evaluations) > 5).all()
    assert (visits(output).sum(-1) == 16).all()


@check("Gumbel searches")
def _(output, adapting, params, **_):
    assert (visits(output) > 0).sum(-1).tolist() == [4] * 4
    assert (visits(adapting) > 0).sum(-1).tolist() == [4] * 4
    assert moved(adapting, params)


@check("Chance and continuous actions")
def _(output, torque, candidates, **_):
    assert torque.shape == (4, 1) and (np.abs(torque) <= 2).all()
    assert (visits(output).sum(-1) == 16).all() and candidates.embedding.actions.std() > 0.6
    assert (np.asarray(output.search_state.params["mean"]) != 0).any((1, 2)).all()


@check("Simulations that read the nodes")
def _(output, spread, **_):
    for found in (output, spread):
        nodes = found.search_state.nodes
        steps = jnp.sum(nodes.visits, axis=(1, 2))
        np.testing.assert_array_equal(steps, found.search_state.depth * 36)
    # One simulation of each of nine actions, then three that have different answers to it.
    np.testing.assert_allclose(spread.search_state.depth, (1 + 3 * 2) / 4)
    assert (output.search_state.depth >= 7 / 4).all()
