"""What a search has found, as a line, a table and a picture."""

import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpgs


def hand_made(visits=True):
    """Two actions. Root -0-> 1, root -1-> 2, 2 -0-> 3, 2 -1-> 4, 4 -1-> 5; two players."""
    edges = [-1, 0, 1, 4, 5, 9, -1]
    numbers = np.zeros((7, 5), np.float32)  # sums of returns by action, reward, discount, value
    numbers[1:6, 3] = -1.0
    numbers[1:6, 4] = [0.5, -0.2, 0.4, -0.6, 0.8]
    links = np.zeros((7, 4), np.int32)
    for row, edge in enumerate(edges):
        if edge >= 0:
            links[edge // 2, edge % 2] = row
    if visits:
        links[0, 2:], links[2, 2:], links[4, 2:] = (3, 4), (1, 2), (0, 1)
        numbers[0, :2], numbers[2, :2], numbers[4, :2] = (-1.5, 2.0), (-0.4, 1.4), (0.0, -0.8)
    nodes = jaxpgs.search.Nodes(np.array(edges), links, numbers, (), ())
    return jax.tree.map(lambda x: jnp.asarray(x)[None], nodes)


def test_the_line_follows_the_most_visits():
    nodes = hand_made()
    assert jaxpgs.principal_variation(nodes) == [1, 1, 1]
    assert jaxpgs.principal_variation(nodes, max_length=2) == [1, 1]
    assert jaxpgs.principal_variation(nodes, first=0) == [0]
    single = jax.tree.map(lambda x: x[0], nodes)  # as of one position
    assert jaxpgs.principal_variation(single) == [1, 1, 1]


def test_states_stand_for_visits_that_were_not_counted():
    nodes = hand_made(visits=False)
    assert jaxpgs.principal_variation(nodes) == [1, 1, 1]
    (row,) = re.findall(r'<g class="node".*?</g>', jaxpgs.tree_svg(nodes, depth=1, width=1))
    # Behind action 1 are nodes 2 to 5, worth 0.2, 0.4, -0.6 and -0.8 to the player at the root.
    assert re.findall(r"<text.*?>(.*?)</text>", row) == ["1", "4", "-0.20"]


def output_of(nodes, visits, sums):
    state = jaxpgs.SearchState(
        visits=jnp.array([visits]),
        qvalues=jnp.array([sums]) / jnp.maximum(jnp.array([visits]), 1),
        value=None, params=None, num_evaluations=None, num_calls=None, depth=None,
        depth_limited=None, entropy=None, gradient_norm=None, skipped_updates=None,
        not_finite=None, nodes=nodes, prior_logits=jnp.log(jnp.array([[0.25, 0.75]])),
    )  # fmt: skip
    return jaxpgs.PolicyOutput(jnp.array([1]), jnp.array([[0.4, 0.6]]), state)


@pytest.mark.lenient
def test_the_table_of_the_first_actions():
    table = jaxpgs.search_summary(
        output_of(hand_made(), [3, 4], [-1.5, 2.0]), name="ab".__getitem__
    )
    first, second = table.rows
    assert (first.action, first.visits, second.action, second.visits) == (1, 4, 0, 3)
    np.testing.assert_allclose((first.prior, first.weight, first.qvalue), (0.75, 0.6, 0.5))
    np.testing.assert_allclose((first.lowest, first.highest), (-0.8, 0.4))
    np.testing.assert_allclose((second.qvalue, second.lowest, second.highest), (-0.5,) * 3)
    lines = str(table).splitlines()
    assert lines[1].split() == ["b", "75.0%", "60.0%", "4", "0.500", "-0.800", "to", "0.400"]
    bare = jaxpgs.search_summary(output_of(None, [0, 4], [0.0, 2.0])).rows
    assert (bare[1].qvalue, bare[0].lowest, bare[1].highest) == (None,) * 3


@pytest.mark.lenient
@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_priors_do_not_depend_on_how_large_the_logits_are(shift):
    output = output_of(hand_made(), [3, 4], [-1.5, 2.0])
    logits = jnp.log(jnp.array([[0.25, 0.75]])) + shift
    found = output.search_state.replace(prior_logits=logits)
    rows = jaxpgs.search_summary(output.replace(search_state=found)).rows
    np.testing.assert_allclose([row.prior for row in rows], [0.75, 0.25], rtol=1e-4)
    # Where no action is legal, there are no rows.
    none = found.replace(prior_logits=jnp.full((1, 2), np.finfo(np.float32).min))
    assert not jaxpgs.search_summary(output.replace(search_state=none)).rows


def test_the_picture_of_the_tree():
    picture = jaxpgs.tree_svg(hand_made(), depth=2, name=["<a>", "b"].__getitem__)
    root = ET.fromstring(picture)  # a name cannot break it
    found = [[x.text for x in g if x.text] for g in root.iter() if g.get("class") == "node"]
    assert sorted(found) == [
        ["<a>", "1", "-0.40"], ["<a>", "3", "-0.50"], ["b", "2", "+0.70"], ["b", "4", "+0.50"],
    ]  # fmt: skip
    assert jaxpgs.tree_svg(hand_made(), depth=5, width=1).count('class="node"') == 3
    with pytest.raises(ValueError, match="at least 1; got 0 and 3"):
        jaxpgs.tree_svg(hand_made(), depth=0)


@pytest.fixture(scope="module")
def game():
    env = jaxpgs.envs.Hex(3)
    module = jaxpgs.networks.FullyConnectedResNet(
        env.observation_shape, env.num_actions, width=8, num_blocks=1, rngs=nnx.Rngs(0)
    )
    params, apply_fn = jaxpgs.networks.functional(module)
    state = jax.vmap(lambda _: env.step(env.init(), 4))(jnp.arange(2))
    root = jaxpgs.make_root_fn(env, apply_fn)(params, None, state)
    return jaxpgs.make_recurrent_fn(env, apply_fn), params, root, ~state.legal_action_mask


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["batched_mcts", "gumbel_mcts", "pgs", "mcs"])
def test_real_searches_are_read(kind, game):
    recurrent_fn, params, root, invalid = game
    knobs = {"adapt": "policy_head"} if kind == "pgs" else {}
    if kind == "gumbel_mcts":
        knobs["simulations_per_update"] = "rounds"
    search = getattr(jaxpgs.search, f"{kind}_search")(recurrent_fn, 24, **knobs)
    output = jax.jit(jaxpgs.search.run, static_argnums=0)(
        search, params, jax.random.key(1), root, invalid
    )
    found = output.search_state
    table = jaxpgs.search_summary(output, index=1)
    assert len(table.rows) == 8 and 4 not in [row.action for row in table.rows]
    np.testing.assert_allclose(sum(row.prior for row in table.rows), 1, rtol=1e-6)
    for row in table.rows:
        assert row.visits == found.visits[1, row.action]
        if row.visits:
            assert row.lowest - 1e-6 <= row.qvalue <= row.highest + 1e-6
    line = jaxpgs.principal_variation(found.nodes, index=1)
    assert found.visits[1, line[0]] == found.visits[1].max()
    assert len(set(line)) == len(line) and 4 not in line
    chosen = int(output.action[1])
    assert jaxpgs.principal_variation(found.nodes, index=1, first=chosen)[0] == chosen
    ET.fromstring(jaxpgs.tree_svg(found.nodes, index=1))
    with pytest.raises(ValueError, match="Rollouts keep none"):
        jaxpgs.principal_variation(None)
