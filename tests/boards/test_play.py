"""The board for people: the game as a value, its pictures, the page in a browser, the widget."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
from flax import nnx
from games import Race

import jaxpgs
from jaxpgs.envs import Breakthrough, Hex, SameGame, Yavalath, hex_io
from jaxpgs.envs.hex_games import read_cell
from jaxpgs.play import drawing, games, protocol, server
from jaxpgs.play import visit as playing
from jaxpgs.play.__main__ import main as play_main
from jaxpgs.play.__main__ import read_game
from jaxpgs.thinker import Look, Thought, look

ROOT = pathlib.Path(__file__).parents[2]
GAMES = [Hex(3), Hex(3, swap=True), Breakthrough(5, 4), Yavalath(3), SameGame(4, 5, num_colors=3)]


def said(visit, *messages):
    """The visit after messages, each a type or an object."""
    for message in messages:
        visit = protocol.handle(visit, {"type": message} if isinstance(message, str) else message)
    return visit


def cell(name, size=3):
    return {"type": "play", "action": read_cell(size, name)}


def names(visit):
    return [position.name for position in visit.past[1:]]


# --- the game as a value --------------------------------------------------------------------------


@pytest.mark.parametrize("env", GAMES, ids=repr)
def test_page_and_picture_draw_stones_of_the_layouts_size(env):
    visit = playing.begin(env)
    layout = games.layout(env)
    if layout["kind"] in ("hex", "yavalath", "breakthrough"):
        picture = drawing.draw(playing.play(visit, playing.legal(visit)[0].action), [])
        sizes = set(re.findall(r'class="stone"[^>]* r="([^"]*)"', picture))
        assert sizes == {f"{layout['stone']:g}"}
    # Three kinds of stones: those on the board, the one under the pointer, those of a line.
    page = pathlib.Path(games.__file__).with_name("board.js").read_text()
    assert len(re.findall(r"r: (?:position\.)?layout\.stone\b", page)) == 3


@pytest.mark.parametrize("env", GAMES, ids=repr)
def test_a_click_is_a_legal_move_and_shows_where_it_goes(env):
    visit = playing.begin(env)
    rng = np.random.default_rng(0)
    layout = games.layout(env)
    for _ in range(7):
        if visit.over:
            break
        choices = playing.legal(visit)
        mask = set(np.flatnonzero(np.asarray(visit.state.legal_action_mask)).tolist())
        assert {c.action for c in choices} - {playing.swap_action(visit)} == mask - {
            playing.swap_action(visit)
        }
        assert len({choice.name for choice in choices}) == len(choices)
        before = games.stones(env, visit.state)
        assert len(before) == len(layout["cells"])
        choice = choices[rng.integers(len(choices))]
        after = playing.play(visit, choice.action)
        now = games.stones(env, after.state)
        if isinstance(env, SameGame):
            group = {before[c] for c in choice.cells}
            assert len(group) == 1 and 0 not in group and len(choice.cells) > 1
            assert sum(map(bool, before)) - sum(map(bool, now)) == len(choice.cells)
        elif choice.cells:
            assert now[choice.cells[0]] == visit.mover + 1
            if choice.source is not None:
                assert before[choice.source] == visit.mover + 1 and now[choice.source] == 0
        visit = after
    json.dumps(protocol.message(visit))
    assert protocol.message(visit)["moves"] == names(visit)


def test_undo_takes_back_to_where_a_person_is_to_move():
    visit = said(playing.begin(Hex(3)), cell("a1"), cell("b2"), cell("c3"), cell("b1"))
    assert names(visit) == ["a1", "b2", "c3", "b1"]
    back = said(visit, "undo")
    assert names(back) == ["a1", "b2"] and len(back.future) == 2
    assert names(said(back, "redo")) == names(visit)
    assert names(said(back, cell("a3"))) == ["a1", "b2", "a3"]
    assert said(back, cell("a3")).future == ()
    # Where the search began, nobody is to move at the start; then a person has both colours.
    second = dataclasses.replace(said(playing.begin(Hex(3)), cell("a1")), humans=(False, True))
    assert said(second, "undo").humans == (True, True)
    both = dataclasses.replace(visit, humans=(True, True))
    assert names(said(both, "undo")) == ["a1", "b2", "c3"]
    assert names(said(both, "undo", "new")) == []


@pytest.mark.parametrize("env", GAMES, ids=repr)
def test_a_finished_game_is_looked_at_move_by_move(env):
    visit, moves = playing.begin(env), []
    while not visit.over and len(moves) < 5:
        moves.append(playing.legal(visit)[-1].action)
        visit = playing.play(visit, moves[-1])
    played, last = names(visit), len(moves)
    for given in (played, moves):
        board = jaxpgs.show(env, search="mcts", moves=given)
        told = protocol.message(board.visit)
        assert (told["moves"], told["future"]) == ([], played)
    assert protocol.message(said(board.visit, "redo", "redo", "undo"))["next"] == (
        visit.past[2].move.action
    )
    there = said(board.visit, {"type": "go", "count": last})
    assert games.stones(env, there.state) == games.stones(env, visit.state)
    assert protocol.message(there)["next"] is None
    back = said(there, {"type": "go", "count": 1}, "redo", "undo")
    assert (names(back), len(back.future)) == (played[:1], last - 1)
    # What is clicked ends what came after, and a search that was to move does not do so.
    assert not said(back, {"type": "play", "action": playing.legal(back)[0].action}).future
    searching = dataclasses.replace(there, humans=(False,) * len(there.humans))
    assert all(said(searching, {"type": "go", "count": 0}).humans)


def test_who_has_gained_most_in_the_whole_game_has_won():
    env = Race(movers=(0, 1), length=4)  # each move pays its mover one or two
    visit = playing.begin(env)
    for action, ended in ((1, ""), (0, ""), (0, "player 0 won")):
        visit = playing.play(visit, action)
        assert playing.result(visit) == ended
    # A game that begins in the middle counts from there on, the move that led there included.
    middle = playing.begin(env, visit.past[1].state)
    assert playing.winner(playing.play(playing.play(middle, 0), 0)) == 0
    even = playing.play(playing.play(playing.begin(Race(movers=(0, 1), length=2)), 0), 0)
    assert playing.result(even) == "a draw"


def test_a_move_is_given_by_any_block_of_its_group():
    visit = playing.begin(SameGame(4, 5, num_colors=3))
    for choice in playing.legal(visit):
        for move in (choice.name, np.int64(choice.action), *choice.cells):
            assert playing.action_of(visit, move) == choice.action
    with pytest.raises(ValueError, match="no legal move: 99"):
        jaxpgs.show(visit.env, moves=[99])


def test_the_swap_takes_the_stone_over_mirrored():
    for env in (Hex(3), Hex(3, swap=True)):
        visit = said(playing.begin(env), cell("c1"))
        assert playing.swap_action(visit) == 9
        swapped = said(visit, {"type": "play", "action": 9})
        assert games.stones(env, swapped.state) == [0, 0, 0, 0, 0, 0, 2, 0, 0]
        assert swapped.mover == 0 and names(swapped) == ["c1", "swap"]
        assert protocol.message(swapped)["link"] == "https://hexworld.org/board/#3c1,c1:s"
        assert playing.swap_action(swapped) is None
        again = said(swapped, cell("a1"))
        assert playing.swap_action(again) is None
    assert playing.swap_action(playing.begin(Hex(3))) is None


def test_a_game_is_saved_and_loaded():
    visit = said(playing.begin(Hex(3)), cell("a1"), {"type": "play", "action": 9}, cell("b3"))
    told = protocol.message(visit)
    for text in (told["sgf"], told["link"]):
        loaded = said(playing.begin(Hex(3)), {"type": "load", "text": text})
        assert games.stones(loaded.env, loaded.state) == games.stones(Hex(3), visit.state)
        assert loaded.mover == visit.mover and names(loaded) == names(visit)
        assert protocol.message(loaded)["sgf"] == told["sgf"]
        assert loaded.humans == (True, True)
    setup = "(;GM[11]SZ[3]AB[a1][b1]AW[c3];W[c2])"
    loaded = said(visit, {"type": "load", "text": setup})
    assert games.stones(Hex(3), loaded.state) == [1, 1, 0, 0, 0, 2, 0, 0, 2] and loaded.mover == 0
    won = said(visit, {"type": "load", "text": "https://hexworld.org/board/#3c1,a1b1a2b2a3"})
    assert won.over and playing.winner(won) == 0 and playing.result(won) == "player 0 won"
    state = hex_io.position(hex_io.read_sgf(setup))[1]
    assert protocol.message(playing.begin(Hex(3), state))["sgf"].count("AB[a1][b1]") == 1


@pytest.mark.parametrize(
    "message",
    [
        None, [], "hello", {}, {"type": 3}, {"type": "fly"}, {"type": "play"},
        {"type": "play", "action": 0}, {"type": "play", "action": "4"},
        {"type": "play", "action": True}, {"type": "play", "action": 4, "number": 0},
        {"type": "play", "action": 10**30}, {"type": "redo"}, {"type": "load"},
        {"type": "go"}, {"type": "go", "count": 2}, {"type": "go", "count": -1},
        {"type": "go", "count": 0, "number": 0},
        {"type": "load", "text": "(;GM[11]SZ[5])"}, {"type": "load", "text": "#3c1,a1a1"},
        {"type": "load", "text": "(" * 200_000}, {"type": "humans", "humans": [True]},
        {"type": "humans", "humans": "yes"}, {"type": "options", "simulations": 0},
        {"type": "options", "simulations": 1.5}, {"type": "options", "seconds": float("nan")},
        {"type": "options", "search": ["pgs"]}, {"type": "options", "search": "alpha-beta"},
    ],
    ids=lambda message: str(message)[:30],
)  # fmt: skip
def test_what_is_malformed_changes_nothing(message):
    visit = said(playing.begin(Hex(3)), cell("a1"))
    with pytest.raises(ValueError):
        protocol.handle(visit, message)


# --- pictures -------------------------------------------------------------------------------------


def points_of(visit, visits):
    """What a search might think: two points, the second with visits."""
    count = visit.env.num_actions
    visits = np.resize(visits, count) * np.resize(visit.state.legal_action_mask, count)
    policy = visits / visits.sum()
    thought = Thought(
        int(visits.argmax()), 0.25, policy, visits, policy - 0.5, (int(visits.argmax()),)
    )
    first = protocol.first_point(visit, Look(policy, 0.0, policy))
    return [first, protocol.point(visit, thought, None, seconds=0.5)]


@pytest.mark.parametrize("env", GAMES, ids=repr)
def test_the_static_picture_has_cells_heat_and_curves(env):
    visit = playing.begin(env)
    points = points_of(visit, np.arange(1, 8))
    for heat in drawing.HEATS:
        picture = drawing.draw(visit, points, heat)
        assert picture.startswith("<svg") and picture.count('class="cell"') == len(
            games.layout(env)["cells"]
        )
        most = min(5, len(playing.legal(visit)))
        assert picture.count('class="curve"') == (0 if heat == "none" else most)
        assert ('class="heat"' in picture) == (heat not in ("none", "adapted"))
    with pytest.raises(ValueError, match="heat is one of"):
        drawing.draw(visit, points, "temperature")


def test_only_a_first_move_may_be_answered_by_a_swap():
    empty = playing.begin(Hex(3))
    assert playing.may_be_swapped(empty)
    assert not playing.may_be_swapped(dataclasses.replace(empty, swap=False))
    assert not playing.may_be_swapped(playing.begin(Hex(3, swap=True)))  # the search knows of it
    assert not playing.may_be_swapped(playing.begin(Breakthrough(5, 4)))
    assert not playing.may_be_swapped(said(empty, cell("b2")))


# --- boards in a program and in a notebook --------------------------------------------------------


@pytest.fixture(scope="module")
def board():
    """A board on 3x3 with a small network that was never trained."""
    env = Hex(3)
    sizes = {"width": 8, "num_blocks": 1, "rngs": nnx.Rngs(0)}
    module = jaxpgs.networks.FullyConnectedResNet(env.observation_shape, env.num_actions, **sizes)
    network = jaxpgs.networks.functional(module)
    return jaxpgs.show(env, network=network, search="pgs", simulations=16)


@pytest.mark.slow
def test_a_board_thinks_as_the_search_does(board, monkeypatch):
    monkeypatch.setattr("jaxpgs.play.board._PAUSE", 0.0)  # every point is told at once
    board.play("b2")
    board.play(2)
    assert repr(board) == "Board(Hex(size=3, swap=False), b2 c1)"
    heard = []
    stop = board.listen(heard.append)
    output = board.think()
    stop()
    messages = [message for message in heard if message["type"] == "analysis"]
    points = [point for message in messages for point in message["points"]]
    assert points == board.points and [message["first"] for message in messages][:1] == [True]
    counts = [point["simulations"] for point in points]
    assert counts[0] == 0 and counts[-1] == 16 and counts == sorted(set(counts))
    actions = [choice.action for choice in playing.legal(board.visit)]
    last = points[-1]
    for name, found in (
        ("policy", output.action_weights), ("visits", output.search_state.visits),
    ):  # fmt: skip
        np.testing.assert_allclose(last[name], np.asarray(found)[0, actions], atol=1e-4)
    assert last["action"] == output.action[0] == last["line"][0]["cells"][0]
    # By the adapted parameters the policy has moved away from where it was; both are policies.
    for policy in (points[0]["adapted"], last["adapted"]):
        np.testing.assert_allclose(sum(policy), 1, atol=1e-3)
    assert points[0]["adapted"] == points[0]["policy"] != last["adapted"]
    # The value of a move is minus that of the position after it, for the other player.
    state = board.env.step(board.state, actions[0])
    value = look(board.brain, state).value
    np.testing.assert_allclose(points[0]["worth"][0], -value, atol=1e-4)
    # What the position is changed to meanwhile ends the search.
    stop = board.listen(lambda told: told["type"] == "analysis" and board.undo())
    with pytest.raises(RuntimeError, match="changed"):
        board.think()
    stop()
    assert repr(board).endswith("b2)")
    assert board.svg().count('class="curve"') == 0
    with pytest.raises(ValueError, match="no legal move"):
        board.play("b2")
    board.load("#3c1,a1b1a2b2a3")
    with pytest.raises(ValueError, match="over"):
        board.think()


def test_a_board_is_a_widget_or_a_picture(board, monkeypatch):
    anywidget = pytest.importorskip("anywidget")
    bundle = board._repr_mimebundle_()
    assert set(bundle) >= {"application/vnd.jupyter.widget-view+json", "image/svg+xml"}
    told = []
    monkeypatch.setattr(type(board.widget), "send", lambda self, content: told.append(content))
    board.widget._handle_custom_msg({"type": "hello"}, [])
    assert [message["type"] for message in told][:1] == ["position"]
    assert isinstance(board.widget, anywidget.AnyWidget) and board._display_() is board.widget
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(board, "_widget", None)
    assert set(board._repr_mimebundle_()) == {"image/svg+xml", "text/plain"}
    with pytest.raises(ImportError, match=r"jaxpgs\[play\]"):
        board.widget  # noqa: B018


@pytest.mark.slow
def test_the_search_opens_evenly_where_its_opponent_may_swap(board):
    opened = threading.Event()
    stop = board.listen(
        lambda told: opened.set() if told.get("number") and board.visit.mover else 0
    )
    board.handle({"type": "new"}, pytest.fail)
    board.handle({"type": "humans", "humans": [False, True]}, pytest.fail)
    assert opened.wait(120)
    stop()
    state = board.env.init()
    worth = look(board.brain, state).worth
    assert board.visit.past[1].move.action == np.abs(worth).argmin()


@pytest.mark.slow  # each case compiles a search
@pytest.mark.parametrize("game", ["own search", "puzzle", "learned model", "pgx", "swap"])
def test_other_games_and_searches_on_a_board(game):
    settings = {"search": "mcts", "simulations": 16}
    if game == "own search":
        net = jaxpgs.load_pretrained("hex-5x5-early")
        recurrent_fn = jaxpgs.make_recurrent_fn(net.env, net.apply_fn)
        search = jaxpgs.search.pgs_search(recurrent_fn, 24, adapt="policy_head")
        board = jaxpgs.show(net.env, network=net, search=search)
    elif game == "puzzle":
        env = SameGame(4, 4, num_colors=3)
        board = jaxpgs.show(env, humans=(False,), **settings)
    elif game == "learned model":
        board = jaxpgs.show(Hex(5), network="ve-hex-5x5", search="pgs", simulations=16)
    elif game == "pgx":
        env = pytest.importorskip("pgx").make("tic_tac_toe")
        board = jaxpgs.show(env, humans=(False, False), **settings)
        assert "<svg" in board.svg()
    else:
        board = jaxpgs.show(Hex(3, swap=True), **settings)
        board.play("b2")
    if all(board.visit.humans):
        output = board.think()
        assert output.search_state.visits.sum() == (24 if game == "own search" else 16)
        assert sum(board.points[-1]["visits"]) == output.search_state.visits.sum()
        assert ("swap" in [x.name for x in playing.legal(board.visit)]) == (game == "swap")
    else:  # the search plays to the end by itself
        finished = threading.Event()
        board.listen(lambda told: told.get("over") and finished.set())
        board.handle({"type": "analyse", "on": False}, pytest.fail)
        assert finished.wait(120)
        assert board.visit.over and len(board.visit.past) > 1
        board.close()


def test_what_cannot_be_shown_is_refused(monkeypatch, capsys):
    with pytest.raises(ValueError, match="the network is for"):
        jaxpgs.show(Hex(4), network="hex-5x5")
    with pytest.raises(ValueError, match="search must be one of"):
        jaxpgs.show(Hex(3), search="alpha-beta")
    with pytest.raises(ValueError, match=r"one of them above 0; got 0 and 0"):
        jaxpgs.show(Hex(3), simulations=0)
    with pytest.raises(ValueError, match=r"each of 2 players; got \(True,\)"):
        jaxpgs.show(Hex(3), humans=(True,))
    board = jaxpgs.show(Hex(3), search="pgs")
    with pytest.raises(ValueError, match="without a network"):
        board.think()
    assert read_game("Breakthrough:6,5") == Breakthrough(6, 5)
    for arguments, said in (
        (["--network", "hex-5x5", "--game", "Hex:3"], "not both"),
        (["--seconds", "-1"], "--seconds: must be a number from 0 to 3,600, got '-1'"),
        (["--seconds", "nan"], "got 'nan'"),
        (["--port", "65536"], "--port: must be a whole number from 0 to 65535, got '65536'"),
        (["--seed", "9" * 20], "--seed: must be a whole number from -"),
    ):
        with pytest.raises(SystemExit):
            play_main(arguments)
        assert said in capsys.readouterr().err
    with pytest.raises(
        SystemExit, match=r"^jaxpgs\.play: 'Chequers:3' is no game: .*such as Hex:4"
    ):
        play_main(["--game", "Chequers:3"])
    for game, why in (
        ("Hex:four", "sizes are numbers"), ("Hex:3,", "sizes are numbers"),
        ("Hex:1", "from 2 to 19"), ("Breakthrough:6,5,4,3,2", "arguments"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{game!r} is no game: .*{why}"):
            read_game(game)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(SystemExit, match=r"jaxpgs\[play\]"):
        play_main(["--game", "Hex:3", "--port", "0"])


# --- one server and one browser for all -----------------------------------------------------------

SEARCH = ("--network", "hex-5x5-early", "--search", "pgs", "--simulations", "8")


@pytest.fixture(scope="module")
def page():
    """The address of a page that one server process serves, with a small search."""
    for package in ("starlette", "uvicorn", "websockets"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "jaxpgs.play", "--port", "0", *SEARCH]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"ready at (http://127.0.0.1:\d+/)", line):
                break
        else:
            pytest.fail("".join(lines))
        yield found[1]
        process.terminate()
        left = process.communicate(timeout=30)[0]
    assert "Traceback" not in left, left


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A headless Chromium."""
    pytest.importorskip("selenium")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "window-size=1300,1000", f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, Service(driver))
    yield found
    found.quit()


def until(driver, script, seconds=60):
    """Waits until a script returns something true, and returns that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := driver.execute_script(f"return {script}"):
            return found
        time.sleep(0.05)
    raise AssertionError(f"never true: {script}")


def click(driver, selector):
    driver.find_element("css selector", selector).click()


def press(driver, name):
    click(driver, f'[data-do="{name}"]')


STONES = """[...document.querySelectorAll("g.cell")].map((x) => +x.dataset.stone)"""
STATUS = """document.querySelector(".status").innerText"""
HEAT = """[...document.querySelectorAll("g.heat text")].map((x) => x.textContent).join(" ")"""
YOURS = """document.querySelector(".cell.open")"""
IDLE = """!document.querySelector(".status .busy")"""


# --- the server -----------------------------------------------------------------------------------


@contextlib.contextmanager
def socket_of(page, **headers):
    """An open web socket of a page; `hear(kind)` waits for the next message of a kind."""
    from websockets.sync.client import connect

    with connect(page.replace("http", "ws") + "socket", **headers) as found:

        def hear(kind):
            while True:
                message = json.loads(found.recv(timeout=60))
                if message["type"] == kind:
                    return message

        found.tell = lambda kind, **more: found.send(json.dumps({"type": kind, **more}))
        found.hear = hear
        yield found


@pytest.mark.slow
def test_other_hosts_and_origins_are_refused(page):
    from websockets.exceptions import InvalidStatus

    host = page.split("/")[2]

    def status(path="/", **headers):
        with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as answer:
                return answer.status

    port = host.split(":")[1]
    assert [status(path) for path in ("/", "/board.js", "/board.css")] == [200, 200, 200]
    assert status(Host=f"localhost:{port}") == 200
    assert status("/../server.py") == status("/visit.py") == 404
    for foreign in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[", ""):
        assert status(Host=foreign) == 403
    assert status(Origin="http://evil.example") == 403
    for origin in ("http://evil.example", f"http://localhost:{port}", "null", f"https://{host}"):
        with pytest.raises(InvalidStatus, match="403"), socket_of(page, origin=origin):
            pass
    with socket_of(page, origin=f"http://{host}") as own:
        own.tell("hello")
        assert own.hear("position")["layout"]["kind"] == "hex"


@pytest.mark.slow
def test_garbage_a_page_that_leaves_and_two_at_once(page):
    with socket_of(page) as one, socket_of(page) as two:
        deep = "[" * 100_000
        for garbage in ("", "{", deep, "null", "NaN", '{"type": "play"}', b"\xff\x00", b"{}"):
            one.send(garbage)
            assert one.hear("error")["text"]
        one.tell("humans", humans=[True, True])
        one.hear("position")
        one.tell("new")
        start = one.hear("position")
        # What one page plays the other one sees, and a click on an old position does nothing.
        one.tell("play", action=12, number=start["number"])
        while two.hear("position")["moves"] != ["c3"]:
            pass
        two.tell("play", action=13, number=start["number"])
        assert "changed" in two.hear("error")["text"]
        # A page that leaves while the search thinks does not stop it.
        one.tell("analyse", on=True)
        one.hear("status")
        one.close()
        thought = two.hear("analysis")
        assert thought["first"] and len(thought["legal"]) == 25  # 24 cells, and the swap
        two.tell("analyse", on=False)
        while two.hear("position")["analysing"]:
            pass
    with pytest.raises(Exception, match="1009"), socket_of(page) as one:
        one.send("x" * 2**19)
        one.hear("error")
    with socket_of(page) as one:
        one.tell("hello")
        assert one.hear("position")["moves"] == ["c3"]


def test_a_page_that_is_too_slow_goes_on_from_where_the_game_stands(monkeypatch):
    monkeypatch.setattr(server, "_WAITING", 3)
    board = jaxpgs.show(Hex(3), search="mcts", simulations=8)
    told = []

    async def visit():
        reads, heard = asyncio.Event(), asyncio.Queue()
        for message in ({"type": "websocket.connect"}, *plays(5)):
            heard.put_nowait(message)

        async def send(message):
            if message["type"] == "websocket.send":
                await reads.wait()
                told.append(json.loads(message["text"]))

        page = asyncio.create_task(server.make_app(board)(scope, heard.get, send))
        while len(board.visit.past) < 6:
            await asyncio.sleep(0.01)
        reads.set()
        while not told or len(told[-1].get("moves", ())) < 5:
            await asyncio.sleep(0.01)
        heard.put_nowait({"type": "websocket.disconnect"})
        await page

    def plays(count):
        for action in range(count):
            text = json.dumps({"type": "play", "action": action})
            yield {"type": "websocket.receive", "text": text}

    scope = {"type": "websocket", "path": "/socket", "headers": [(b"host", b"localhost")],
             "query_string": b"", "subprotocols": [], "extensions": {}}  # fmt: skip
    pytest.importorskip("starlette")
    asyncio.run(asyncio.wait_for(visit(), 60))
    assert len(told) < 6 and told[-1]["type"] == "position"


@pytest.mark.slow  # it compiles a search of its own
def test_a_new_position_ends_a_long_search_whose_page_has_left(page):
    with socket_of(page) as one, socket_of(page) as two:
        one.tell("options", simulations=20_000)
        one.tell("humans", humans=[True, True])
        one.tell("new")
        one.tell("play", action=12)
        one.tell("analyse", on=True)
        while not one.hear("analysis")["points"][-1]["simulations"]:
            pass
        one.close()
        found = two.hear("analysis")
        two.tell("options", simulations=8)
        two.tell("analyse", on=False)
        two.tell("undo")
        while two.hear("status")["status"]:
            pass
        assert found["points"][-1]["simulations"] < 20_000


# --- the page -------------------------------------------------------------------------------------


def test_a_whole_game_by_clicks(page, chromium):
    with socket_of(page) as other:
        other.tell("humans", humans=[True, False])
        other.tell("new")
        other.hear("position")
        other.hear("position")
    chromium.get(page)
    until(chromium, YOURS)
    number = -1
    for _ in range(25):
        state = until(
            chromium,
            f"{IDLE} && document.querySelector('.jaxpgs').dataset.number != '{number}' && "
            f"({YOURS} || document.querySelector('.jaxpgs').dataset.over == 'true') && "
            "document.querySelector('.jaxpgs').dataset",
        )
        if state["over"] == "true":
            break
        number = state["number"]
        click(chromium, ".cell.open")
    stones = chromium.execute_script(f"return {STONES}")
    won = hex_io.winner(np.reshape(stones, (5, 5)))
    assert won is not None
    assert chromium.execute_script(f"return {STATUS}") == f"{('Blue', 'Red')[won]} wins"
    # The page comes back to the same game.
    chromium.refresh()
    until(chromium, YOURS.replace(".open", ""))
    assert chromium.execute_script(f"return {STONES}") == stones
    press(chromium, "new")
    until(chromium, YOURS)
    assert not any(chromium.execute_script(f"return {STONES}"))
    assert [line for line in chromium.get_log("browser") if line["level"] != "INFO"] == []


def test_the_heat_maps_grow_and_change(page, chromium):
    chromium.get(page)
    until(chromium, YOURS)
    press(chromium, "analyse")
    until(chromium, f"{IDLE} && {HEAT}")
    seen = set()
    for heat in ("policy", "adapted", "visits", "q", "worth"):
        press(chromium, f"heat-{heat}")
        seen.add(until(chromium, HEAT))
        curves = until(chromium, "document.querySelectorAll('.curve').length")
        assert curves == 5
    assert len(seen) == 5
    # A point before the search, and one of each update or more of them at once.
    updates = "document.querySelector('.curve').points.numberOfItems"
    assert 2 <= chromium.execute_script(f"return {updates}") <= 9
    press(chromium, "heat-none")
    assert chromium.execute_script(f"return {HEAT}") == ""
    press(chromium, "heat-policy")
    press(chromium, "analyse")
    assert [line for line in chromium.get_log("browser") if line["level"] != "INFO"] == []


def test_undo_swap_load_save_and_colours(page, chromium):
    with socket_of(page) as other:
        other.tell("humans", humans=[True, True])
        other.tell("new")
    chromium.get(page)
    until(chromium, YOURS)
    click(chromium, '[data-cell="3"]')  # d1
    until(chromium, f"{STONES}[3] == 1")
    press(chromium, "swap")
    until(chromium, f"{STONES}[15] == 2")  # a4
    assert chromium.execute_script(f"return {STATUS}") == "Blue to move"
    press(chromium, "flip")
    assert chromium.execute_script(f"return {STATUS}") == "Red to move"
    press(chromium, "flip")
    press(chromium, "undo")
    until(chromium, f"{STONES}[3] == 1")
    press(chromium, "redo")
    until(chromium, f"{STONES}[15] == 2")
    # A click on a move of the list goes there, and the arrow keys step.
    click(chromium, ".moves button")
    until(chromium, f"{STONES}[3] == 1")
    assert len(chromium.find_elements("css selector", ".moves .later")) == 1
    for key, stone in (("\ue012", "!{}[3]"), ("\ue014", "{}[3] == 1"), ("\ue014", "{}[15] == 2")):
        chromium.find_element("css selector", "body").send_keys(key)
        until(chromium, stone.format(STONES))
    click(chromium, ".files summary")
    text = chromium.execute_script("return document.querySelector('textarea').value")
    assert text.endswith(";B[d1];W[swap-pieces])\n")
    link = chromium.execute_script("return document.querySelector('.files a').href")
    assert link == "https://hexworld.org/board/#5c1,d1:s"

    def load(value):
        chromium.execute_script(f"document.querySelector('textarea').value = {json.dumps(value)}")
        press(chromium, "load")

    load("https://hexworld.org/board/#5c1,c3b2d2")
    until(chromium, f"{STONES}[12] == 1 && {STONES}[6] == 2 && {STONES}[8] == 1")
    load("(;GM[11]SZ[7])")
    assert "5x5" in until(chromium, "document.querySelector('.error').innerText")
    load(text)
    until(chromium, f"{STONES}[15] == 2")
    # With the keyboard.
    chromium.execute_script("document.querySelectorAll('g.cell')[24].focus()")
    chromium.switch_to.active_element.send_keys("\ue007")
    until(chromium, f"{STONES}[24] == 1")
    assert [line for line in chromium.get_log("browser") if line["level"] != "INFO"] == []


# --- the widget in JupyterLab ---------------------------------------------------------------------

CELL = """import jaxpgs
board = jaxpgs.show(jaxpgs.envs.Hex(5), search="pgs", simulations=16, humans=(True, False))
board"""


@pytest.mark.slow
def test_the_widget_in_jupyterlab(chromium, tmp_path):
    pytest.importorskip("anywidget")
    pytest.importorskip("jupyterlab")
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": CELL, "outputs": [],
            "execution_count": None}  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "play.ipynb").write_text(json.dumps(book))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--notebook-dir={tmp_path}",
        "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    folders = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "RUNTIME")}
    folders["JUPYTERLAB_SETTINGS_DIR"] = str(tmp_path / "settings")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        command, env={**os.environ, **folders, "PYTHONPATH": path}, cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as lab:  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}/lab/tree/play.ipynb"
            for _ in range(600):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                time.sleep(0.1)
            chromium.get(address)
            # Before it is connected, JupyterLab forgets what it is to run.
            kernels, end = f"http://127.0.0.1:{port}/api/kernels", time.monotonic() + 120
            found = []
            while not (found and found[0]["connections"] and found[0]["execution_state"] == "idle"):
                assert time.monotonic() < end, found
                time.sleep(0.2)
                with contextlib.suppress(OSError):  # 500, too, while a kernel starts
                    found = json.loads(urllib.request.urlopen(kernels, timeout=60).read())
            until(chromium, "document.querySelector('[data-status=idle]')", 120)
            button = "jp-button[data-command='notebook:run-cell-and-select-next']"
            until(chromium, f'document.querySelector("{button}")')
            click(chromium, button)
            until(chromium, YOURS, 120)
            chromium.execute_script(f"{YOURS}.scrollIntoView()")
            click(chromium, '[data-cell="11"]')
            stones = f"{STONES}.filter((x) => x).length"
            until(chromium, f"{stones} == 2 || {STONES}.includes(2)", 120)  # the search answers
            press(chromium, "analyse")
            until(chromium, HEAT)
            until(chromium, "document.querySelectorAll('.curve').length")
            press(chromium, "undo")
            until(chromium, f"{stones} == 0")
        finally:
            chromium.save_screenshot(str(tmp_path / "lab.png"))
            lab.terminate()
            lab.wait(timeout=30)
