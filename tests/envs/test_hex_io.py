"""Games of Hex as files and links, and what is said of those that are malformed."""

import numpy as np
import pytest

from jaxpgs import evaluation
from jaxpgs.envs import Hex, hex_io
from jaxpgs.envs.hex_io import HexGame, Move


def random_games(number, seed=0):
    """Actions of random games, most of them with a swap; not all are played to their end."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        size = int(rng.integers(2, 20))
        cells = rng.permutation(size**2)[: rng.integers(1, 40)].tolist()
        if rng.random() < 0.7:  # the stone goes to the mirrored cell
            mirrored = cells[0] % size * size + cells[0] // size
            cells = [cells[0], size**2, *(c for c in cells[1:] if c != mirrored)]
            cells += [cells[0]] * (mirrored != cells[0])
        yield size, cells


def test_random_games_come_back_from_files_and_links():
    for number, (size, actions) in enumerate(random_games(1000)):
        game = hex_io.from_actions(size, actions, PB="a]b\\", C="[two\nlines]")
        if number % 3 == 0:
            game = game.play(number % 2, "resign")
        read = hex_io.read_sgf(hex_io.write_sgf(game))
        assert read == game
        assert hex_io.to_actions(read) == actions
        linked = hex_io.read_link(hex_io.write_link(game))
        assert linked.moves == game.moves and linked.size == size


def test_a_game_has_the_position_of_the_environment():
    for size, actions in random_games(6, seed=1):
        env = Hex(size, swap=True)
        state = env.init()
        for action in actions:
            state = env.step(state, action)
        game = hex_io.from_actions(size, actions)
        signs = np.sign(np.asarray(state.labels)).reshape(size, size)
        if not state.terminated or float(np.abs(state.rewards).sum()):
            np.testing.assert_array_equal(hex_io.stones(game), signs % 3)
        won = hex_io.winner(hex_io.stones(game))
        assert (won is not None) == bool(state.terminated)
        if not state.terminated:
            assert hex_io.player_to_move(game) == int(state.current_player)


def test_positions_come_back_from_files_and_links():
    rng = np.random.default_rng(2)
    for _ in range(100):
        size = int(rng.integers(2, 12))
        board = rng.choice(3, (size, size), p=(0.5, 0.3, 0.2)).astype(np.int8)
        setup = tuple(tuple(np.flatnonzero(board == p).tolist()) for p in (1, 2))
        game = HexGame(size, setup=setup, to_move=int(rng.integers(2)))
        for read in (hex_io.read_sgf(hex_io.write_sgf(game)),
                     hex_io.read_link(hex_io.write_link(game))):  # fmt: skip
            np.testing.assert_array_equal(hex_io.stones(read), board)
            assert hex_io.player_to_move(read) == game.to_move


def test_position_is_one_of_the_environment():
    env, state = hex_io.position(hex_io.read_link("#3,a1b2:pc3"))
    assert env == Hex(3) and int(state.current_player) == 0
    assert np.sign(state.labels).tolist() == [1, 0, 0, 0, -1, 0, 0, 0, -1]


OLD_HEXGUI = """(;FF[4]AP[HexGui:0.9.GIT]GM[11]SZ[5];B[a3];W[swap-pieces]
;W[b2]C[a comment \\] that goes on]
(;B[c3])(;B[d4];W[e5]))"""


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        (OLD_HEXGUI, "B a3, W swap-sides, W b2, B c3"),
        ("(;GM[11]SZ[5:5];B[A1];W[];B[pass];W[resign])", "B a1, W pass, B pass, W resign"),
        ("junk (;SZ[5];B[aa];W[swap];B[cb];W[forfeit])", "B a1, W swap-pieces, B c2, W forfeit"),
        ("(;SZ[5];B[a1];W[swap];W[c2])", "B a1, W swap-sides, W c2"),
        ("(;SZ[5]\n (;Black[b1]\n ;White[a2]) (;B[a1]))\n(;SZ[9])", "B b1, W a2"),
    ],
)
def test_files_of_other_programs(text, moves):
    game = hex_io.read_sgf(text)
    words = [(hex_io.COLORS[m.player], hex_io.move_name(game.size, m.action)) for m in game.moves]
    assert ", ".join(map(" ".join, words)) == moves


def test_of_the_first_node_only_single_values_are_kept():
    text = "(;FF[4]GM[11]SZ[5]PB[x]TR[a1][b2]LB[a1:1][c3:2]MA[d4];B[a3])"
    game = hex_io.read_sgf(text)
    assert game.info == {"PB": "x", "MA": "d4"}
    assert hex_io.read_sgf(hex_io.write_sgf(game)) == game


def test_stones_that_are_set_up_in_a_file():
    text = "(;FF[4]GM[11]SZ[3]AB[a1][b1]AW[c3]PL[W];W[b2];AE[a1]AW[c1]PL[B];B[a3])"
    game = hex_io.read_sgf(text)
    assert hex_io.stones(game).tolist() == [[0, 1, 2], [0, 2, 0], [1, 0, 2]]
    assert hex_io.player_to_move(game) == 1
    assert game.moves == (Move(0, 6),)
    assert hex_io.read_sgf(hex_io.write_sgf(game)) == game


def test_swapped_sides_are_the_mirrored_game():
    sides = hex_io.read_sgf("(;SZ[4];B[a3];W[swap-sides];W[b1];B[d2])")
    pieces = hex_io.read_sgf("(;SZ[4];B[a3];W[swap-pieces];B[a2];W[b4])")
    assert hex_io.to_actions(sides) == hex_io.to_actions(pieces)
    np.testing.assert_array_equal(hex_io.stones(sides), -hex_io.stones(pieces).T % 3)
    assert hex_io.read_link(hex_io.write_link(sides)).moves == sides.moves


def test_links_of_the_viewer():
    link = "https://hexworld.org/board/#11nc1r3,a3b5:s,c4:rw"
    assert [m.action for m in hex_io.read_link(link).moves] == [22, 45, "swap-pieces", 35, "resign"]
    assert hex_io.read_link(link, to_cursor=True).moves == hex_io.read_link("#11,a3b5:s").moves
    assert hex_io.read_link("  #5x5c1%2Ca1 ") == hex_io.read_link("5,A1")
    assert hex_io.write_link(HexGame(9)) == "https://hexworld.org/board/#9c1,"


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ("", 1, 1, "ends in the middle"),
        ("no file", 1, 1, "'n' has no place"),
        ("(;GM[11]SZ[5]\n;B[a1]", 2, 7, "ends in the middle"),
        ("(;GM[1]SZ[9])", 1, 5, "Hex is GM"),
        ("(;GM[11])", 1, 5, "no size SZ"),
        ("(;SZ[5:6])", 1, 5, "square"),
        ("(;SZ[25])", 1, 5, "sizes 2 to 19"),
        ("(;SZ[eleven])", 1, 5, "square"),
        ("(;SZ[5]\n;B[a1]\n;W[f1])", 3, 3, "'f1' is not on a board of 5x5"),
        ("(;SZ[5]\n;B[a1]\n;W[a1])", 3, 3, "cell a1 is taken"),
        ("(;SZ[5];B[a1];W[x)", 1, 16, "value without its end"),
        ("(;SZ[5];B[1a])", 1, 10, "'1a' is not a cell"),
        ("(;SZ[5]AB[a1:c3])", 1, 10, "'a1:c3' is not a cell"),
        ("(;SZ[5]PL[x])", 1, 10, "PL is 'B' or 'W'"),
        ("(;SZ[5](;B[a1]);B[a2])", 1, 16, "node after a variation"),
        ("(SZ[5])", 1, 2, "outside of a node"),
        ("((;SZ[5]))", 1, 2, "tree starts with ';'"),
        ("()", 1, 2, "tree without a node"),
        ("(;[5])", 1, 3, "without the name"),
        ("(;SZ[5]é)", 1, 8, "'é' has no place"),
    ],
)
def test_malformed_files_have_one_clear_error(text, line, column, what):
    with pytest.raises(ValueError, match=f"^Line {line}, column {column}: .*{what}"):
        hex_io.read_sgf(text)


@pytest.mark.parametrize(
    ("link", "column", "what"),
    [
        ("", 1, "starts with the size"),
        ("https://hexworld.org/board/", 1, "starts with the size"),
        ("#11q,a1", 2, "starts with the size"),
        ("#11x9,a1", 2, "square"),
        ("#40,a1", 2, "sizes 2 to 19"),
        ("#5,a1a1", 6, "cell a1 is taken"),
        ("#5,a9", 4, "not on a board"),
        ("#5,a1:x", 6, "a move is a cell or one of"),
        ("#5,a1,b1,c1", 9, "a move is a cell or one of"),
    ],
)
def test_malformed_links_have_one_clear_error(link, column, what):
    with pytest.raises(ValueError, match=f"^Line 1, column {column}: .*{what}"):
        hex_io.read_link(link)


def test_random_text_is_read_or_refused():
    rng = np.random.default_rng(3)
    text, link = hex_io.write_sgf(hex_io.from_actions(5, range(9))), "#5c1,a1b2:sc3,d4:rb"
    letters = list("()[];:\\abBWSZ19 ,#\n")
    for _ in range(1000):
        for read, whole in ((hex_io.read_sgf, text), (hex_io.read_link, link)):
            chars = list(whole)
            for _ in range(rng.integers(1, 4)):
                at = int(rng.integers(len(chars)))
                chars[at : at + int(rng.integers(3))] = rng.choice(letters, rng.integers(3))
            try:
                hex_io.stones(read("".join(chars)))
            except ValueError as error:
                assert str(error).startswith("Line ")


@pytest.mark.parametrize(
    ("moves", "what"),
    [("#3,a1:pb1", "Move 2 is 'pass' by W"), ("(;SZ[3];B[a1];B[b1])", "Move 2 is 'b1' by B")],
)
def test_only_games_of_players_who_take_turns_have_actions(moves, what):
    read = hex_io.read_link if moves[0] == "#" else hex_io.read_sgf
    with pytest.raises(ValueError, match=what):
        hex_io.to_actions(read(moves))
    with pytest.raises(ValueError, match="set up"):
        hex_io.to_actions(hex_io.read_sgf("(;SZ[3]AB[a1])"))
    with pytest.raises(ValueError, match="capital letters"):
        hex_io.write_sgf(HexGame(3, info={"pb": "x"}))


def test_matches_write_every_game(tmp_path):
    import jax
    import jax.numpy as jnp

    env = Hex(3, swap=True)

    def last(rng_key, state, memory):  # takes the first stone over where it may
        legal = state.legal_action_mask
        return legal.shape[-1] - 1 - jnp.argmax(legal[:, ::-1], axis=-1), memory, {}

    players = [evaluation.Player("a b/c", lambda n: (), last), evaluation.uniform_random(env)]
    result = evaluation.play_match(
        env, *players, jax.random.key(0), openings=[0, 1, 5], batch_size=2, sgf_folder=tmp_path
    )
    files = sorted(tmp_path.glob("a_b_c_vs_random-*/*.sgf"))
    assert len(files) == result.games == 6
    for file in files:
        game = hex_io.read_sgf(file.read_text())
        opening, half = int(file.stem[:5]) - 1, int(file.stem.endswith("white"))
        state = env.init()
        actions = hex_io.to_actions(game)
        for action in actions:
            assert not state.terminated and state.legal_action_mask[action]
            state = env.step(state, action)
        assert state.terminated and len(actions) == result.lengths[half, 0, opening]
        assert actions[0] == [0, 1, 5][opening]
        assert (actions[1] == 9) or half == 0  # who takes over moved second
        assert game.info["PB" if half == 0 else "PW"] == "a b/c"
        black_won = bool(state.rewards[0] > 0)
        assert game.info["RE"] == ("B+" if black_won else "W+")
        assert result.outcomes[half, 0, opening] == (black_won == (half == 0))
    with pytest.raises(ValueError, match="Only games of Hex"):
        from jaxpgs.envs import Breakthrough

        board = Breakthrough()
        evaluation.play_match(
            board, *[evaluation.uniform_random(board)] * 2, jax.random.key(0), sgf_folder=tmp_path
        )


def test_games_of_players_with_like_names_are_apart(tmp_path):
    import jax

    env = Hex(2)
    names = ("a", "step 1e-3", "step=1e-3")
    players = [evaluation.uniform_random(env, name=name) for name in names]
    pairs = [(1, 0), (2, 0), (0, 0)]
    for first, second in pairs:
        evaluation.play_match(
            env, players[first], players[second], jax.random.key(0), openings=[0],
            sgf_folder=tmp_path,
        )  # fmt: skip
    assert len(list(tmp_path.glob("*/*.sgf"))) == 2 * len(pairs)
    assert (tmp_path / "a_vs_a").is_dir()
