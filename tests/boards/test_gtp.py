"""The Hex engine over GTP, and programs that speak GTP as players."""

import dataclasses
import io
import pathlib
import shlex
import shutil
import sys

import jax
import numpy as np
import pytest
from games import mostly_slow

import jaxpgs
from jaxpgs import evaluation, gtp
from jaxpgs.envs import Hex, hex_io
from jaxpgs.envs.hex_games import cell_name
from jaxpgs.evaluation.players.gtp_players import GTPEngine
from jaxpgs.gtp import Answer, Clock, Dialog, Engine, Options
from jaxpgs.gtp.__main__ import main as gtp_main

HERE = pathlib.Path(__file__).parents[1]
KEY = jax.random.key(0)


def stub(log=None):
    """An engine that plays the first empty cell of boards from 2x2 to 5x5."""

    def prepare(size, options):
        if not 2 <= size <= 5:
            raise ValueError(f"no network for {size}x{size}")

    def think(task):
        if log is not None:
            log.append(task)
        empty = np.flatnonzero(task.board == 0)
        visits = np.zeros(task.board.size, int)
        visits[empty[:2]] = 3, 1
        answer = Answer(
            int(empty[0]), -0.5, visits / 4, visits, np.full(visits.shape, -0.5), tuple(empty[:2])
        )
        if task.report is not None:
            task.report(answer)
        return answer

    return Engine("stub", prepare, think)


def talk(lines, engine=None, dialog=None, emit=lambda text: None):
    """The answers to lines, and the dialog after them."""
    engine, dialog = engine or stub(), dialog or Dialog(hex_io.HexGame(3))
    replies = []
    for line in lines:
        reply = gtp.handle(engine, dialog, line, emit)
        dialog = reply.dialog
        replies.append(reply.text)
    return replies, dialog


# What is said and answered, each line of an answer after "=" or "?".
TRANSCRIPT = """
name | = stub
1 protocol_version | =1 2
known_command genmove | = true
known_command komi | = false
7 unheard of | ?7 unknown command: unheard
boardsize 4 4 | =
boardsize 3 | =
boardsize 4 3 | ? the board must be square, got 4x3
boardsize 11 11 | ? no network for 11x11
boardsize x | ? a whole number from 1 to 1000 is needed, got x
boardsize | ? boardsize takes 1 to 2 arguments, got 0
clear_board # with a comment | =
play black a1 | =
play B b2 | =
play w A3 | =
play white a1 | ? illegal move: The cell a1 is taken.
play white d1 | ? 'd1' is not on a board of 3x3, whose last cell is c3.
play white hello | ? 'hello' is not a cell; cells have names such as a1.
play green a1 | ? a colour must be black or white, got green
play white swap-pieces | ? illegal move: a swap answers the other player's first stone
all_legal_moves | = b1 c1 a2 c2 b3 c3
genmove white | = b1
reg_genmove black | = c1
undo | =
all_legal_moves | = b1 c1 a2 c2 b3 c3
final_score | = cannot score
jaxpgs-link | = https://hexworld.org/board/#3c1,a1:pb2a3
jaxpgs-line white | = b1 c1
jaxpgs-visits white | = b1 3 c1 1
jaxpgs-values white | = b1 -0.50 c1 -0.50
jaxpgs-policy white | = INFLUENCE b1 1.000 c1 0.333 TEXT value -0.500
play black b1 | =
play black b3 | =
final_score | = B+
genmove white | ? the game is over: B+
all_legal_moves | =
clear_board | =
undo | ? cannot undo: no move was played
play black c1 | =
play white swap-pieces | =
play white swap | ? illegal move: a swap answers the other player's first stone
jaxpgs-link | = https://hexworld.org/board/#3c1,c1:s
all_legal_moves | = a1 b1 c1 a2 b2 c2 b3 c3
undo | =
genmove white | = a1
undo | =
param_game | =  / [bool] allow_swap 0 / [string] game_time 0
param_game allow_swap 1 | =
param_game allow_swap yes | ? one of 0, 1 is needed, got yes
param_game colour 1 | ? one of allow_swap, game_time is needed, got colour
param_game allow_swap | ? a parameter needs its name and a value
genmove white | = swap-pieces
param_game game_time 60 | =
time_left | = Black: 60.0, White: 60.0
time_left black 30 | =
time_left white 10 5 | =
time_left | = Black: 30.0, White: 10.0
time_left black | = 30.0
time_left black soon | ? a number from 0 to 1e+07 is needed, got soon
time_settings 0 5 1 | =
time_left | = Black: 5.0, White: 5.0
time_settings 0 5 0 | =
time_left | = Black: no limit, White: no limit
param_search resign 0.5 | =
genmove black | = resign
param_search resign 2 | ? a number from -1 to 1 is needed, got 2
param_search search mcs | =
param_search simulations 16 | =
param_search simulations 0 | ? simulations and seconds are both 0, but one of them must be above 0
param_search seconds 2 | =
param_search live 1 | =
quit | =
"""


def test_transcript():
    lines = [line.split(" | ") for line in TRANSCRIPT.strip().split("\n")]
    lines = [(said, wanted.replace(" / ", "\n")) for said, wanted in lines]
    replies, dialog = talk([said for said, _ in lines])
    for (said, wanted), found in zip(lines, replies, strict=True):
        assert found == f"{wanted}{' ' * (wanted[-1:] == '=')}\n\n", said
    assert dialog.options == Options("mcs", 16, 2.0, True, 0.5, True)


def test_every_command_is_in_the_transcript_or_below():
    (listed,), _ = talk(["list_commands"])
    told = {line.split()[0 if not line[0].isdigit() else 1] for line in TRANSCRIPT[1:].splitlines()}
    below = {"hexgui-analyze_commands", "list_commands", "loadsgf", "printsgf", "param_search"}
    assert set(listed[2:].split()) - told - below == {"showboard", "version"}


def test_longer_answers():
    emitted = []
    replies, dialog = talk(
        ["play black a1", "play white b2", "showboard", "version", "printsgf", "param_search",
         "hexgui-analyze_commands", "genmove black"],
        emit=emitted.append,
    )  # fmt: skip
    env, state = hex_io.position(hex_io.read_link("#3,a1b2"))
    assert replies[2] == f"= \n{env.render(state)}\n\n"
    assert hex_io.read_sgf(replies[4][2:]) == hex_io.read_link("#3,a1b2")
    assert "\n[string] simulations 800\n" in replies[5]
    for line in replies[6][2:].strip().split("\n"):  # as HexGui reads them
        kind, label, command = line.split("/")
        assert kind in ("gfx", "pspairs", "var", "string", "plist", "param") and label
        reply, _ = talk([command.replace("%m", "black")], dialog=dialog)
        assert reply[0].startswith("= ")
    assert dialog.options.live
    assert emitted == [
        "gogui-gfx:\nuct\nVAR B b1 W c1\nINFLUENCE b1 0.25 c1 0.25\nLABEL b1 3 c1 1\n"
        "TEXT 4 simulations, value -0.500\n\n"
    ]
    # HexGui takes an answer to end at the first empty line.
    assert all(reply.endswith("\n\n") and "\n\n" not in reply[:-1] for reply in replies)


def test_loadsgf(tmp_path):
    path = tmp_path / "game.sgf"
    path.write_text("(;GM[11]SZ[4]AW[d4];B[a1];W[swap-pieces];B[b2])")
    replies, dialog = talk([f"loadsgf {path}", "jaxpgs-link", f"loadsgf {path} 1", "jaxpgs-link"])
    assert replies[0] == replies[2] == "= \n\n"
    assert hex_io.read_link(replies[1][2:]).moves[-1].action == 5
    assert len(dialog.game.moves) == 1
    for bad in (f"{path} -1", f"{tmp_path}/none", str(tmp_path), "\0", f"{path} 1 2"):
        assert talk([f"loadsgf {bad}"])[0][0].startswith("? ")
    path.write_text("(;GM[11]SZ[7];B[a1])")
    assert talk([f"loadsgf {path}"])[0] == ["? no network for 7x7\n\n"]
    path.write_text("(;GM[11]\nSZ[3];B[a4])")
    assert talk([f"loadsgf {path}"])[0][0].startswith("? Line 2, column 8: ")


def test_a_player_behind_gtp_may_swap():
    env = Hex(3, swap=True)

    def last_legal(rng_key, state, memory):
        legal = state.legal_action_mask
        return legal.shape[-1] - 1 - np.argmax(legal[:, ::-1], axis=-1), memory, {}

    player = evaluation.Player("last", lambda batch_size: (), last_legal, host=True)
    engine = gtp.player_engine(env, player)
    lines = ["play black b1", "genmove white"]
    for allowed, answer in ((True, "= swap-pieces\n\n"), (False, "= c3\n\n")):
        dialog = Dialog(hex_io.HexGame(3), Options(allow_swap=allowed))
        assert talk(lines, engine, dialog)[0][-1] == answer


def test_a_player_behind_gtp_may_resign_but_not_play_on_stones():
    def player(action):
        act = lambda rng_key, state, memory: (np.array([action]), memory, {})  # noqa: E731
        return evaluation.Player("fixed", lambda batch_size: (), act, host=True)

    for action, answer in (
        (-1, "= resign\n\n"),
        (4, "? fixed chose 4, which is not an empty cell\n\n"),
        (9, "? fixed chose 9, which is not an empty cell\n\n"),
        (8, "= c3\n\n"),
    ):
        engine = gtp.player_engine(Hex(3), player(action))
        replies, dialog = talk(["play black b2", "reg_genmove white", "genmove white"], engine)
        assert replies[1:] == [answer] * 2
        assert np.count_nonzero(hex_io.stones(dialog.game)) == 1 + (action == 8)


def test_hexguis_replay_of_a_position_gives_the_same_move_and_no_second_swap():
    # A person swaps; HexGui tells the position, and asks the colour that is then to move.
    log = []
    replayed = ["clear_board", "play white a2"]
    lines = ["play black b1", *replayed, "genmove black", *replayed]
    lines += ["play black c3", "play black a1", "undo", "genmove white"]
    lines += ["clear_board", "play black c3", "reg_genmove black", "reg_genmove white"]
    lines += ["play white swap-sides", "reg_genmove white"]
    dialog = Dialog(hex_io.HexGame(3), Options(allow_swap=True))
    replies, _ = talk(lines, stub(log), dialog)
    assert all(reply.startswith("= ") for reply in replies)
    assert [task.may_swap for task in log] == [False, False, False, True, False]
    np.testing.assert_array_equal(log[1].board, [[0, 0, 0], [2, 0, 0], [0, 0, 1]])
    assert [task.player for task in log] == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([], None),
        (["param_search seconds 2"], 2.0),
        (["time_left black 100"], 20.0),  # the least is a fourth, of which a tenth is kept back
        (["time_left black 100 10"], 9.0),
        (["param_search seconds 2", "time_left black 100 10"], 2.0),
        (["time_left white 1"], None),
        (["time_left black 0"], 0.01),
        (["time_settings 0 100 10"], 9.0),
        (["time_settings 6 100 10"], 9.0),  # the main time ends, and the move is in a period
    ],
)
def test_how_long_a_move_may_take(lines, seconds):
    log = []
    talk(["boardsize 5", *lines, "play white a1", "genmove black"], stub(log))
    expected = 0.9 * 100 / 6 if seconds == 20.0 else seconds  # 24 empty cells, a quarter are ours
    assert log[0].seconds == (expected if expected is None else pytest.approx(expected))


def clock_after(line, num_moves):
    """The seconds and moves of Black's clock after some of its moves, which take next to none."""
    _, dialog = talk([line, *["genmove black"] * num_moves])
    return dialog.clocks[0].seconds, dialog.clocks[0].moves


def test_a_period_of_extra_time_is_refilled_after_its_moves():
    assert clock_after("time_settings 0 1000 2", 0) == (1000, 2)
    seconds, moves = clock_after("time_settings 0 1000 2", 1)
    assert 900 < seconds < 1000 and moves == 1
    assert clock_after("time_settings 0 1000 2", 2) == (1000, 2)


def test_extra_time_follows_the_main_time():
    clock = Clock(60.0, extra_seconds=30.0, extra_moves=2)
    assert clock.after(59.0) == (1.0, 0, 30.0, 2)
    # The move during which the main time ends is the first one of the period.
    assert clock.after(70.0) == (20.0, 1, 30.0, 2)
    assert clock.after(70.0).after(5.0) == (30.0, 2, 30.0, 2)
    assert clock.after(100.0) == (0.0, 1, 30.0, 2)


def test_a_clock_without_extra_time_runs_out():
    assert Clock(60.0).after(70.0) == (0.0, 0, 0.0, 0)
    # As `time_left` says it, of a controller that never told what a period is.
    assert Clock(60.0, 1).after(10.0) == (50.0, 0, 0.0, 0)


def test_time_left_keeps_what_a_period_is():
    lines = ["time_settings 0 40 3", "time_left b 7 1"]
    _, dialog = talk(lines)
    assert dialog.clocks[0] == (7.0, 1, 40.0, 3) and dialog.clocks[1] == (40.0, 3, 40.0, 3)
    assert dialog.clocks[0].after(2.0) == (40.0, 3, 40.0, 3)


def test_a_failing_engine_is_an_error_in_one_line():
    broken = Engine("broken", lambda *_: None, lambda task: 1 // 0)
    replies, dialog = talk(["genmove black", "name"], broken)
    assert replies[0].startswith("? internal error: ZeroDivisionError")
    assert replies[1] == "= broken\n\n" and dialog.game.moves == ()


@pytest.mark.parametrize("number", mostly_slow([3000, 100_000], 3000))
def test_any_line_has_an_answer(number):
    rng = np.random.default_rng(number)
    (listed,), dialog = talk(["list_commands"])
    commands = [c for c in listed[2:].split() if c != "quit"]
    words = "black w a1 c3 z99 swap-pieces resign 3 0 -1 1e9 nan allow_swap live simulations"
    words = [*words.split(), "é", "%s", "/dev/null", "\x85", "a" * 500]
    engine = stub()
    for _ in range(number):
        kind = rng.random()
        if kind < 0.7:
            line = " ".join([rng.choice(commands), *rng.choice(words, rng.integers(4))])
        elif kind < 0.85:
            line = f"play {rng.choice(['b', 'w'])} {rng.choice(list('abc'))}{rng.integers(1, 4)}"
        else:
            line = "".join(map(chr, rng.integers(0, 0x2100, rng.integers(30))))
        reply = gtp.handle(engine, dialog, line)
        dialog = reply.dialog
        assert reply.text == "" or (reply.text[0] in "=?" and reply.text.endswith("\n\n"))
        assert "\n\n" not in reply.text[:-1] and "internal" not in reply.text, line
        assert reply.text or not line.split("#")[0].strip("\0").strip() or not line.isprintable()


# --- our searches ---------------------------------------------------------------------------------


def test_a_game_with_the_swap_begins_with_the_most_even_move():
    network = jaxpgs.load_pretrained("hex-5x5-early")
    engine, _ = gtp.search_engine("hex-5x5-early")
    after = jax.vmap(network.env.step, (None, 0))(network.env.init(), np.arange(25))
    _, values = network.apply_fn(network.params, jax.vmap(network.env.observe)(after))
    even = cell_name(5, int(np.abs(values).argmin()))
    for allowed in (True, False):
        dialog = Dialog(hex_io.HexGame(5), Options(simulations=8, allow_swap=allowed))
        assert (talk(["genmove black"], engine, dialog)[0] == [f"= {even}\n\n"]) is allowed


def test_our_engine_finds_a_win_and_knows_its_boards():
    engine, size = gtp.search_engine("hex-5x5-early")
    dialog = Dialog(hex_io.HexGame(size), Options("mcs", 16, live=True))
    emitted = []
    lines = ["boardsize 5 5", *(f"play black c{row}" for row in (1, 2, 4, 5)), "genmove black",
             "final_score", "boardsize 10"]  # fmt: skip
    replies, _ = talk(lines, engine, dialog, emitted.append)
    assert replies[5:7] == ["= c3\n\n", "= B+\n\n"]
    assert replies[7] == "? no network for 10x10; hex-5x5-early plays on 5x5\n\n"
    assert "VAR B c3" in emitted[-1]
    with pytest.raises(ValueError, match="plays Hex"):
        gtp.search_engine("samegame-7x7")
    # The same position has the same answer however it came about.
    again, _ = talk(lines[:1] + lines[4:0:-1] + lines[5:6], engine, dialog)
    assert again[5] == replies[5]


@pytest.mark.slow
def test_a_match_of_ours_against_ours_over_gtp(tmp_path):
    env = jaxpgs.load_pretrained("hex-5x5-early").env
    command = [sys.executable, "-m", "jaxpgs.gtp", "--network", "hex-5x5-early"]
    first = evaluation.gtp_player(env, [*command, "--search", "mcs", "--simulations", "8"])
    assert first.name == "jaxpgs hex-5x5-early"
    second = dataclasses.replace(first, name="the same program")
    result = evaluation.play_match(env, first, second, KEY, openings=[12, 4], sgf_folder=tmp_path)
    assert not any(value for record in result.players for value in record.stats.values())
    paths = list(tmp_path.glob("*/*.sgf"))
    assert result.games == len(paths) == 4
    for path in paths:
        game = hex_io.read_sgf(path.read_text())
        assert hex_io.winner(hex_io.stones(game)) == "BW".index(game.info["RE"][0])


def test_serving_standard_input(monkeypatch):
    def stream(text=b""):
        return io.TextIOWrapper(io.BytesIO(text))

    said = b"name\n\n# nothing\n\xff\xfe\n2 genmove b\r\n3 quit\nname\n"
    streams = {"stdin": stream(said), "stdout": stream(), "stderr": stream()}
    for name, value in streams.items():
        monkeypatch.setattr(sys, name, value)
    gtp.serve(stub(), 3, Options())
    answers = streams["stdout"].buffer.getvalue().decode().split("\n\n")
    assert answers == ["= stub", "? unknown command: \ufffd\ufffd", "=2 a1", "=3 ", ""]
    for bad in (["--network", "none"], ["--time", "-1"], ["--simulations", "0"],
                ["--resign", "2"], ["--seed", "9" * 20]):  # fmt: skip
        with pytest.raises(SystemExit):
            gtp_main(bad)


@pytest.mark.slow
def test_against_openspiels_bot():
    pytest.importorskip("pyspiel")
    env = Hex(3)
    bot = evaluation.gtp_player(env, [sys.executable, str(HERE / "openspiel_gtp.py"), "3", "200"])
    assert bot.name == "OpenSpiel MCTS 200"
    result = evaluation.play_match(env, evaluation.perfect_hex(env), bot, KEY, openings=[4, 0, 2])
    # Who plays perfectly wins after the middle with black, and after the corner with white.
    assert result.outcomes[0, 0, 0] == 1 and result.outcomes[1, 0, 1] == 1
    assert not any(result.players[1].stats.values())


# --- programs that fail ---------------------------------------------------------------------------


def faulty(how, env=None, **knobs):
    return evaluation.gtp_player(
        env or Hex(3), [sys.executable, str(HERE / "faulty_gtp.py"), how], **knobs
    )


@pytest.mark.parametrize(
    ("how", "counted"),
    mostly_slow(
        [
            ("well", None),
            ("live", None),
            ("resign", "resignations"),
            ("taken", "illegal_moves"),
            ("z99", "illegal_moves"),
            ("swap-pieces", "illegal_moves"),
            ("fails", "illegal_moves"),
            ("ends", "crashes"),
            ("ends-once", None),
            ("hangs", "timeouts"),
        ],
        ("well", None), ("resign", "resignations"), ("taken", "illegal_moves"),
        ("ends", "crashes"), ("hangs", "timeouts"),
    ),
)  # fmt: skip
def test_what_fails_loses_and_is_counted(how, counted, tmp_path):
    player = faulty(how, processes=2, seconds=1.0 if how == "hangs" else 60.0)
    assert player.name == f"faulty {how}"
    env, first_cell = Hex(3), faulty("well", name="well")
    result = evaluation.play_match(
        env, player, first_cell, KEY, openings=[4, 2], sgf_folder=tmp_path
    )
    stats = {name: value for name, value in result.players[0].stats.items() if value}
    assert not any(result.players[1].stats.values())
    games = [hex_io.read_sgf(path.read_text()) for path in tmp_path.glob("*/*.sgf")]
    forfeits = [game for game in games if game.moves[-1].action == "forfeit"]
    assert len(games) == 4 and len(forfeits) == (4 if counted else 0)
    if counted:
        assert stats == {counted: 4.0} and result.wins == 0
        loser = {game.info["PB" if game.info["RE"] == "W+F" else "PW"] for game in forfeits}
        assert loser == {player.name}
    else:
        assert not stats


def test_a_program_that_cannot_be_started_again_loses_and_is_counted(tmp_path):
    env, program = Hex(3), tmp_path / "program.py"
    shutil.copy(HERE / "faulty_gtp.py", program)
    player = evaluation.gtp_player(env, [sys.executable, str(program), "ends"])
    program.unlink()
    state = jax.tree.map(lambda x: np.asarray(x)[None], env.init())
    for _ in range(2):  # the next game does not wait for the program either
        action, _, stats = player.act(KEY, state, ())
        assert action.tolist() == [-1]
        assert {name: value for name, value in stats.items() if value} == {"crashes": 1.0}


def test_a_swap_over_gtp_is_the_swap():
    env = Hex(3, swap=True)
    player = faulty("swap-pieces", env)
    state = jax.tree.map(lambda x: np.asarray(x)[None], env.step(env.init(), 2))
    action, _, stats = player.act(KEY, state, ())
    assert action.tolist() == [9] and not any(stats.values())


def test_what_cannot_play_is_refused_at_once():
    with pytest.raises(ValueError, match="cannot be started"):
        evaluation.gtp_player(Hex(3), "no-such-program --at all")
    with pytest.raises(ValueError, match="only 19x19"):
        faulty("other-size")
    with pytest.raises(ValueError, match="cannot play: the program has ended"):
        evaluation.gtp_player(Hex(3), shlex.join([sys.executable, "-c", "1 / 0"]))
    with pytest.raises(ValueError, match="needs Hex"):
        faulty("well", jaxpgs.envs.Breakthrough())
    with pytest.raises(ValueError, match="processes of at least 1"):
        faulty("well", processes=0)


def test_an_engine_that_is_closed_says_so():
    engine = GTPEngine([sys.executable, str(HERE / "faulty_gtp.py"), "well"])
    assert engine.ask("name", 60) == "faulty well"
    engine.close()
    with pytest.raises(ConnectionError, match="ended"):
        engine.ask("name", 60)
