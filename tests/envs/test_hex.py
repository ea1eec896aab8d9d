"""Hex against OpenSpiel, pgx and boards worked out by hand."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from games import mostly_slow

from jaxpgs.envs import Hex
from jaxpgs.envs.render import hex_svg, hex_text

# Compiled once for each board.
init, step, observe, policy_logits = (
    jax.jit(method, static_argnums=0)
    for method in (Hex.init, Hex.step, Hex.observe, Hex.policy_logits)
)


def play(env, actions, state=None):
    """Plays a list of actions; returns all states, the first one included."""
    states = [init(env) if state is None else state]
    for action in actions:
        states.append(step(env, states[-1], np.int32(action)))
    return states


def board(*rows):
    """Reads rows of `.`, `x` (player 0) and `o` (player 1)."""
    return np.array([[".xo".index(cell) for cell in row] for row in rows])


# --- agreement with other implementations -------------------------------------------------------


@pytest.mark.parametrize("size", mostly_slow(range(3, 14), 3, 8, 13))
def test_agrees_with_open_spiel(size):
    pyspiel = pytest.importorskip("pyspiel")
    env, games, cells = Hex(size), 1000 if size < 6 else 200, size**2
    # Every random game is the beginning of a random order of the cells.
    rng = np.random.default_rng(size)
    orders = rng.permuted(np.tile(np.arange(cells, dtype=np.int32), (games, 1)), axis=1)

    @jax.jit
    def run(actions):
        def body(states, action):
            after = jax.vmap(env.step)(states, action)
            record = (
                states.current_player,
                states.legal_action_mask,
                after.rewards,
                after.terminated,
            )
            return after, record

        start = jax.tree.map(lambda x: jnp.broadcast_to(x, (games, *x.shape)), env.init())
        return jax.lax.scan(body, start, actions.T)[1]

    player, legal, rewards, terminated = jax.tree.map(np.asarray, run(orders))
    legal = legal.astype(np.uint8)
    game = pyspiel.load_game("hex", {"board_size": size})
    for g in range(games):
        other = game.new_initial_state()
        for t, action in enumerate(orders[g].tolist()):
            assert other.current_player() == player[t, g]
            assert bytes(other.legal_actions_mask()) == legal[t, g].tobytes()
            other.apply_action(action)
            assert other.is_terminal() == terminated[t, g]
            if other.is_terminal():
                break
            assert not rewards[t, g].any()
        np.testing.assert_array_equal(rewards[t, g], other.returns())
        # After the end nothing is legal and nothing is earned.
        assert not legal[t + 1 :, g].any()
        assert not rewards[t + 1 :, g].any()
        assert terminated[t:, g].all()


@pytest.mark.lenient
def test_agrees_with_pgx_including_swap():
    pgx = pytest.importorskip("pgx")
    env, other, games, steps = Hex(11, swap=True), pgx.make("hex"), 200, 122

    @jax.jit
    def run(key):
        keys, key = jax.random.split(key, games + 1)[1:], jax.random.split(key)[0]
        ours = jax.tree.map(lambda x: jnp.broadcast_to(x, (games, *x.shape)), env.init())
        theirs = jax.vmap(other.init)(keys)

        def body(carry, xs):
            ours, theirs = carry
            t, key = xs
            mask = ours.legal_action_mask
            chosen = jnp.floor(jax.random.uniform(key, (games,)) * mask.sum(-1)).astype(jnp.int32)
            action = jnp.argmax(jnp.cumsum(mask, axis=-1) > chosen[:, None], axis=-1)
            # Half of the games swap, which a uniform choice would do in one of 121.
            action = jnp.where((t == 1) & (jnp.arange(games) % 2 == 0), env.num_cells, action)
            our_next = jax.vmap(env.step)(ours, action)
            their_next = jax.vmap(other.step)(theirs, action)
            game = jnp.arange(games)
            record = {
                "legal": (mask, theirs.legal_action_mask),
                "reward": (
                    our_next.rewards[game, ours.current_player],
                    their_next.rewards[game, theirs.current_player],
                ),
                "terminated": (our_next.terminated, their_next.terminated),
                # Whether the same side moves: pgx deals the colours at random.
                "side": (our_next.current_player, their_next._x.color),
            }
            stones = (
                jnp.sign(our_next.labels) * jnp.where(our_next.current_player == 0, 1, -1)[:, None]
            )
            record["stones"] = (stones, jnp.sign(their_next._x.board))
            return (our_next, their_next), (record, ours.terminated)

        return jax.lax.scan(
            body, (ours, theirs), (jnp.arange(steps), jax.random.split(key, steps))
        )[1]

    record, over = jax.tree.map(np.asarray, run(jax.random.key(0)))
    assert record["terminated"][0][-1].all()
    for name, (ours, theirs) in record.items():
        np.testing.assert_array_equal(ours[~over], theirs[~over], err_msg=name)


# --- rules by hand ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "over"),
    [
        # Straight down, and along the two directions in which a row's neighbours lie.
        (("x.o", "x.o", "x.."), True),
        (("o.x", ".x.", "xo."), True),
        # (0,0) and (1,1) do not touch.
        (("x.o", "ox.", ".x."), False),
        # Player 1 joins left and right, in a row or with a bend.
        (("x.x", "ooo", "x.."), True),
        ((".xo", "xo.", "o.x"), True),
        # A row of player 0 and a column of player 1 join nothing of theirs.
        (("xxx", "oo.", "..."), False),
        (("oxx", "o.x", "o.."), False),
        (("...", "...", "..."), False),
    ],
)
def test_who_joins_what(rows, over):
    assert bool(Hex(3).from_board(board(*rows)).terminated) is over


def test_first_player_wins_top_to_bottom():
    states = play(Hex(3), [1, 0, 4, 3, 7])
    assert [bool(s.terminated) for s in states] == [False] * 5 + [True]
    np.testing.assert_array_equal(states[-1].rewards, [1, -1])


def test_second_player_wins_left_to_right():
    states = play(Hex(3), [0, 6, 1, 4, 8, 2])  # 6-4-2 is the short diagonal
    assert [bool(s.terminated) for s in states] == [False] * 6 + [True]
    np.testing.assert_array_equal(states[-1].rewards, [-1, 1])


def test_last_stone_joins_groups_of_both_edges():
    # The centre stone joins a group of the upper with one of the lower edge.
    env = Hex(5)
    state = env.from_board(board("..x..", "..x..", ".o.o.", "o.x.o", "..x.."))
    assert not bool(state.terminated)
    after = step(env, state, np.int32(12))
    assert bool(after.terminated)
    np.testing.assert_array_equal(after.rewards, [1, -1])


# --- swap ---------------------------------------------------------------------------------------


def test_swap_mirrors_the_stone_and_changes_its_owner():
    env = Hex(4, swap=True)
    empty, opened, swapped = play(env, [1, 16])
    assert env.num_actions == 17
    assert [bool(s.legal_action_mask[16]) for s in (empty, opened, swapped)] == [False, True, False]
    # Cell 1 is (0, 1); its mirror image is (1, 0), cell 4.
    assert np.flatnonzero(swapped.labels).tolist() == [4]
    assert int(jnp.sign(swapped.labels[4])) == -1
    assert int(swapped.current_player) == 0
    assert not bool(swapped.terminated)
    assert not swapped.rewards.any()
    expected = np.ones(17, bool)
    expected[[4, 16]] = False
    np.testing.assert_array_equal(swapped.legal_action_mask, expected)


def test_swapped_stone_counts_for_its_new_edges():
    env = Hex(2, swap=True)
    # The first stone goes to (0, 1), the swap puts player 1's on (1, 0), the left edge.
    states = play(env, [1, 4, 0, 3])
    assert [bool(s.terminated) for s in states] == [False] * 4 + [True]
    np.testing.assert_array_equal(states[-1].rewards, [-1, 1])


def test_swap_is_legal_only_as_second_move():
    states = play(Hex(3, swap=True), [4, 1, 2])
    assert [bool(s.swap_legal) for s in states] == [False, True, False, False]
    assert Hex(3).init().swap_legal is None


def test_swap_on_the_empty_board_loses():
    after = play(Hex(3, swap=True), [9])[-1]
    assert bool(after.terminated)
    np.testing.assert_array_equal(after.rewards, [-1, 1])
    assert not after.labels.any()


# --- observations -------------------------------------------------------------------------------


def test_observation_by_hand():
    env = Hex(3)
    _, first, second = play(env, [1, 5])
    # Player 1 sees the board transposed: player 0's stone on (0, 1) appears on (1, 0).
    seen = np.zeros((3, 3, 3))
    seen[..., 2] = 1
    seen[1, 0] = [0, 1, 0]
    np.testing.assert_array_equal(observe(env, first), seen)
    # Player 0 sees the board as it is.
    seen = np.zeros((3, 3, 3))
    seen[..., 2] = 1
    seen[0, 1] = [1, 0, 0]
    seen[1, 2] = [0, 1, 0]
    np.testing.assert_array_equal(observe(env, second), seen)
    assert observe(env, first).dtype == jnp.float32
    assert observe(env, first).shape == env.observation_shape


def test_swap_plane():
    env = Hex(3, swap=True)
    planes = [np.asarray(observe(env, s))[..., 3] for s in play(env, [2, 9])]
    assert [float(p.min()) for p in planes] == [0, 1, 0]
    assert [float(p.max()) for p in planes] == [0, 1, 0]


@pytest.mark.parametrize("swap", [False, True])
def test_policy_logits_transpose_for_the_second_player(swap):
    env = Hex(3, swap=swap)
    logits = np.arange(env.num_actions, dtype=np.float32)
    first, second = play(env, [4])
    tail = [9] if swap else []
    np.testing.assert_array_equal(policy_logits(env, first, logits), logits)
    expected = [0, 3, 6, 1, 4, 7, 2, 5, 8, *tail]
    np.testing.assert_array_equal(policy_logits(env, second, logits), expected)


def test_policy_logits_point_where_the_observation_points():
    # A network that likes the cells where the other player stands must get those cells back.
    env = Hex(4)
    for state in play(env, [1, 7, 8, 2]):
        logits = np.asarray(observe(env, state))[..., 1].reshape(-1)
        theirs = np.sign(state.labels) == np.where(state.current_player == 0, -1, 1)
        np.testing.assert_array_equal(np.asarray(policy_logits(env, state, logits)) > 0, theirs)


@pytest.mark.parametrize("size", [3, 6])
def test_transposing_and_exchanging_players_changes_nothing_they_see(size):
    env = Hex(size)
    order = np.random.default_rng(0).permutation(size**2)
    mirrored = (order % size) * size + order // size
    start = dataclasses.replace(init(env), current_player=np.int32(1))
    for ours, theirs in zip(play(env, order), play(env, mirrored, start), strict=True):
        assert int(ours.current_player) + int(theirs.current_player) == 1 or ours.terminated
        np.testing.assert_array_equal(observe(env, ours), observe(env, theirs))
        np.testing.assert_array_equal(ours.rewards, np.asarray(theirs.rewards)[::-1])
        assert bool(ours.terminated) == bool(theirs.terminated)


# --- given boards -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5, 9])
def test_from_board_agrees_with_stepping(size):
    env = Hex(size)
    order = np.random.default_rng(size).permutation(size**2)
    states = [s for s in play(env, order) if not bool(s.terminated)]
    for state in states[:: max(1, len(states) // 8)]:
        labels = np.asarray(state.labels)
        stones = np.where(labels > 0, 1, np.where(labels < 0, 2, 0))
        given = env.from_board(stones.reshape(size, size))
        np.testing.assert_array_equal(observe(env, given), observe(env, state))
        legal = np.asarray(state.legal_action_mask)
        np.testing.assert_array_equal(given.legal_action_mask, legal)
        assert int(given.current_player) == int(state.current_player)
        assert not bool(given.terminated)
        chex.assert_trees_all_equal_shapes_and_dtypes(given, state)
        rest = [a for a in order if legal[a]]
        for one, two in zip(play(env, rest, given), play(env, rest, state), strict=True):
            assert bool(one.terminated) == bool(two.terminated)


def test_from_board_knows_finished_games():
    state = Hex(2).from_board(np.array([[1, 0], [1, 2]]))
    assert bool(state.terminated)
    assert not state.rewards.any()
    assert not state.legal_action_mask.any()


@pytest.mark.parametrize(
    ("stones", "message"),
    [
        (np.zeros((2, 3), int), r"shape \(3, 3\), got \(2, 3\)"),
        (np.full((3, 3), 3), "0, 1 and 2 only"),
    ],
)
def test_from_board_refuses(stones, message):
    with pytest.raises(ValueError, match=message):
        Hex(3).from_board(stones)


def test_from_board_with_more_stones_of_one_side():
    env = Hex(3)
    for rows, mover in ((("x..", "x..", "..."), 1), (("o..", "...", "..."), 0), (("...",) * 3, 0)):
        for given, player in ((None, mover), (0, 0), (1, 1)):
            state = env.from_board(board(*rows), given)
            assert int(state.current_player) == player and not state.terminated
    # Two stones ahead and to move, player 0 joins its edges.
    after = step(env, env.from_board(board("x..", "x..", "..."), 0), np.int32(6))
    np.testing.assert_array_equal(after.rewards, [1, -1])
    with pytest.raises(ValueError, match=r"players 0 and 1.*got 2"):
        env.from_board(board(*("...",) * 3), 2)


def test_from_board_after_a_swap():
    state = Hex(3, swap=True).from_board(board("o..", "...", "..."))
    assert int(state.current_player) == 0
    assert not bool(state.legal_action_mask[9])


# --- contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 20, 2.5, "5", -3])
def test_sizes_that_are_refused(size):
    with pytest.raises(ValueError, match="from 2 to 19"):
        Hex(size)


def test_a_second_size_is_no_swap_rule():
    with pytest.raises(ValueError, match="swap to be True or False, got 4"):
        Hex(4, 4)


@pytest.mark.parametrize("size", [2, 19])
def test_smallest_and_largest_board(size):
    env = Hex(size)
    states = play(env, np.random.default_rng(0).permutation(size**2))
    assert bool(states[-1].terminated)
    assert sum(float(s.rewards[0]) for s in states) in (-1, 1)


def test_finished_games_stay_as_they_are():
    env = Hex(3)
    over = play(env, [1, 0, 4, 3, 7])[-1]
    for action in (0, 8):
        after = step(env, over, np.int32(action))
        assert not after.rewards.any()
        chex.assert_trees_all_equal(after, dataclasses.replace(over, rewards=after.rewards))


@pytest.mark.parametrize("mover", [0, 1])
def test_illegal_moves_lose(mover):
    env = Hex(3)
    state = play(env, [4, 0][: mover + 1])[-1]
    loser = int(state.current_player)
    after = step(env, state, np.int32(4))
    assert bool(after.terminated)
    assert float(after.rewards[loser]) == -1
    assert float(after.rewards[1 - loser]) == 1
    np.testing.assert_array_equal(after.labels, state.labels)


# --- drawings -----------------------------------------------------------------------------------


def test_text():
    state = play(Hex(3), [1, 8])[-1]
    assert Hex(3).render(state) == "\n".join(
        [
            "     a b c",
            "      x x x",
            "   1 o . X . o",
            "    2 o . . . o",
            "     3 o . . O o",
            "          x x x",
            "X player 0 to move",
        ]
    )


def test_text_with_policy_and_swap():
    env = Hex(2, swap=True)
    policy = np.array([0.25, 0.0, 0.125, 0.2, 0.425])
    assert hex_text(env, play(env, [1])[-1], policy) == "\n".join(
        [
            "       a   b",
            "         x   x",
            "     1 o  25   X o",
            "       2 o  12  20 o",
            "               x   x",
            "O player 1 to move",
            "swap 42%",
        ]
    )


def test_text_of_finished_games():
    env = Hex(2)
    over = play(env, [0, 1, 2])[-1]
    assert hex_text(env, over).endswith("X player 0 won")
    assert hex_text(env, step(env, over, np.int32(3))).endswith("game over")


@pytest.mark.parametrize("size", [2, 5, 19])
def test_svg(size):
    env = Hex(size, swap=True)
    state = play(env, [1, 2, 0])[-1]
    policy = np.full(env.num_actions, 1 / env.num_actions)
    for drawing, dots in (
        (env.render(state, format="svg"), 0),
        (env.render(state, policy, format="svg"), size**2 - 3),
    ):
        root = ElementTree.fromstring(drawing)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        kinds = [element.get("class") for element in root.iter()]
        assert kinds.count("cell") == size**2
        assert kinds.count("stone") == 3
        assert kinds.count("edge") == 4
        assert kinds.count("policy") == dots
        assert "nan" not in drawing
    assert f"swap {round(100 * policy[-1])}%" in drawing


@pytest.mark.parametrize("draw", [hex_text, hex_svg])
def test_drawing_refuses(draw):
    env = Hex(3)
    state = env.init()
    batch = jax.tree.map(lambda x: x[None], state)
    with pytest.raises(ValueError, match=r"unbatched.*\(9,\).*got \(1, 9\)"):
        draw(env, batch)
    with pytest.raises(ValueError, match=r"shape \(9,\), got \(10,\)"):
        draw(env, state, np.ones(10))
    with pytest.raises(ValueError, match=r'"text" or "svg", got \'png\''):
        env.render(state, format="png")
