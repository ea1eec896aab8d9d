"""The tournaments of the benchmarks: players from words, equal spending, rows and tables."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpgs
import jaxpgs.evaluation as ev
from benchmarks import players, ratings, rivals, runs, speed, strength
from benchmarks.tournaments import PRESETS
from jaxpgs.envs import Hex
from jaxpgs.evaluation import equal_budget, matches

TINY = "conv-3x3-2x1"
SILENT = [s for s in players.DEFAULTS if s.search in ("network", "mcts", "gumbel", "gumbel-mcts")]


def test_players_are_read_from_words():
    one, two = players.read_specs("pgs step_size=1,3 simulations_per_update=8")
    assert one == players.Spec(
        "pgs step_size=1 simulations_per_update=8",
        "pgs",
        {"step_size": 1, "simulations_per_update": 8},
    )
    assert two.knobs["step_size"] == 3
    (named,) = players.read_specs("mine: mcs mode=cached virtual_loss=null count_siblings=true")
    assert named.name == "mine"
    assert named.knobs == {"mode": "cached", "virtual_loss": None, "count_siblings": True}
    with pytest.raises(ValueError, match=r"Unknown search 'pgz'.*known are network, random, mcs"):
        players.read_specs("pgz")
    with pytest.raises(ValueError, match="got 'fast'"):
        players.read_specs("pgs fast")


@pytest.mark.parametrize(
    "search, told",
    [("pgs", r"pgs_search\(\) has no argument 'nope'"), ("muzero", "got an unexpected .* 'nope'")],
)
def test_an_unknown_knob_ends_the_command_before_any_game(tmp_path, search, told):
    path = tmp_path / "games.json"
    with pytest.raises(SystemExit, match=f"strength: '{search} nope=3': {told}"):
        strength.main(["--network", TINY, "--sweep", f"{search} nope=3", "--out", str(path)])
    assert not path.exists()


def test_presets_describe_themselves():
    plain, model = players.load_network(TINY), players.load_network("model-3x3-2x1")
    for name, preset in PRESETS.items():
        network = model if name == "ve" else plain
        names = [spec.name for spec in preset.players]
        assert len(set(names)) == len(names), name
        for spec in preset.players:
            about = players.describe(spec, network, preset.num_simulations)
            assert (about["K"] is None) == (spec.search in players.SIMPLE)
    about = players.describe(players.Spec("x", "gumbel-mcs"), plain, 64)
    assert about == {"simulations": 64, "K": 4, "depth": None, "mode": "tree"}
    about = players.describe(players.Spec("x", "mcs", {"num_simulations": 8}), plain, 64)
    assert (about["simulations"], about["K"]) == (8, 1)
    as_rounds = {"simulations_per_update": "as rounds"}  # 4, 30 and 11 calls in a row
    for name, count, k in (("mcts", 32, 8), ("mcts", 128, 4), ("pgs", 32, 3)):
        spec = players.Spec("x", f"gumbel-{name}", as_rounds)
        assert players.describe(spec, plain, count)["K"] == k
    for name in ("hex", "dense-3x3-2x1"):
        with pytest.raises(SystemExit, match=f"Unknown network '{name}'"):
            players.load_network(name)


def test_no_player_of_the_defaults_plays_twice():
    network = players.load_network(TINY)
    for count in (16, 64, 128, 256, 800):
        specs = players.distinct(players.DEFAULTS, count)
        given = [(spec.search, str(players.arguments(spec, network.params, count)))
                 for spec in specs if spec.search == "gumbel"]  # fmt: skip
        own = ("gumbel", str({"max_num_considered_actions": 16, "gumbel_scale": 0.0}))
        assert (players.FEWER in specs) == (count < 256)
        assert own not in given and len(set(given)) == len(given)


def test_whoever_comes_has_a_rating_at_once():
    for name in ("rounds", "rounds-time-1"):  # and so has a tournament that was stopped
        preset, met = PRESETS[name], {"mctx Gumbel"}
        for pair in strength._pairs(preset):
            assert met.intersection(pair), (name, pair)
            met.update(pair)
        assert met == {spec.name for spec in preset.players}
    few = preset._replace(players=preset.players[:2])
    assert strength._pairs(few) == [("Gumbel MCTS rounds", "mctx Gumbel")]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SILENT, ids=lambda spec: spec.name)
def test_players_without_chance_say_so(spec):
    network = players.load_network(TINY)
    state = jax.vmap(network.env.step)(
        jax.vmap(network.env.init)(jax.random.split(jax.random.key(0), 8)), jnp.arange(8)
    )
    player = players.make_player(spec, network, 12)
    act = jax.jit(lambda key: player.act(key, state, ())[0])
    found = {tuple(act(jax.random.key(i)).tolist()) for i in range(4)}
    assert player.deterministic == (spec.knobs.get("gumbel_scale", 0) == 0)
    assert len(found) == 1 or not player.deterministic
    legal = np.asarray(state.legal_action_mask)
    assert all(legal[np.arange(8), list(actions)].all() for actions in found)


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{}, {"target": "visit_counts"}])
def test_players_play_their_best_action(knobs):
    network = players.load_network(TINY)
    state = jax.jit(jax.vmap(network.env.init))(jax.random.split(jax.random.key(0), 4))
    key = jax.random.key(1)
    ours = players.make_player(players.Spec("x", "mcs", knobs), network, 16)
    recurrent_fn = jaxpgs.make_recurrent_fn(network.env, network.apply_fn)

    @jax.jit
    def by_hand():
        root = jaxpgs.make_root_fn(network.env, network.apply_fn)(network.params, key, state)
        target = {"target": jaxpgs.target.visit_counts(0.0)} if knobs else {}
        return jaxpgs.mcs_policy(
            network.params, key, root, recurrent_fn, 16, ~state.legal_action_mask, **target
        ).action

    played = jax.jit(lambda: ours.act(key, state, ())[0])()
    np.testing.assert_array_equal(played, by_hand())


def test_proposals_close_in():
    assert equal_budget.propose({64: 0.5}) == 128
    assert equal_budget.propose({64: 2.0}) == 32
    assert equal_budget.propose({64: 0.001}) == 320  # never more than five times as many
    assert equal_budget.propose({1: 3.0}) == 1
    assert equal_budget.propose({64: 0.5, 128: 2.0}) == 91  # half way in the logarithm
    assert equal_budget.propose({10: 0.9, 11: 1.2}) in (10, 11)
    assert equal_budget.propose({100: 0.25, 400: 0.5}) == 1600  # on one side: extrapolated
    assert equal_budget.propose({100: 0.5, 110: 0.4}) == 200  # unless noise has reversed the trend


@pytest.mark.parametrize(
    ("spends", "start", "right"),
    [
        (lambda n: (100 + n) / 300, 16, 200),  # time, with a large constant part
        (lambda n: (n / 2800) ** 0.7, 800, 2800),  # evaluations of a search with a cache
        (lambda n: (n / 60) ** 0.9, 800, 60),
    ],
)
def test_proposals_arrive(spends, start, right):
    ratios, count = {}, start
    while count not in ratios:
        ratios[count] = spends(count)
        if abs(math.log(ratios[count])) < 0.02:
            break
        count = equal_budget.propose(ratios)
    assert abs(math.log(ratios[count])) < 0.02 and len(ratios) <= 5
    assert abs(count / right - 1) < 0.05


def _player(name, evaluations):
    def act(key, state, memory):
        stats = {"num_evaluations": evaluations * jnp.sum(~state.terminated)}
        return jnp.argmax(state.legal_action_mask, axis=-1), memory, stats

    return ev.Player(name, lambda batch_size: (), act)


@pytest.mark.slow
def test_calibration_finds_equal_evaluations_and_goes_on():
    env, found = Hex(3), {}

    def calibrate(trials=None):
        return equal_budget.calibrate(
            env, lambda n: _player("mine", 2.0 + 0.5 * n), _player("standard", 65.0),
            jax.random.key(0), equal="evaluations", openings=np.arange(9), batch_size=9, start=64,
            trials=trials, on_trial=found.__setitem__,
        )  # fmt: skip

    count, ratio = calibrate()
    assert abs(ratio - 1) < 0.02 and abs(count - 126) <= 3
    tried = dict(found)
    first, *others, last = tried
    assert first == 64 and last == count
    found.clear()
    assert calibrate({64: tried[64]}) == (count, ratio) and list(found) == [*others, last]
    found.clear()
    assert calibrate(tried) == (count, ratio) and not found


@pytest.mark.parametrize("name", PRESETS)
def test_a_committed_tournament_can_go_on(name):
    path = runs.RESULTS / f"strength_{name}.json"
    if path.exists():
        known = runs.load(path)["setting"]["players"]
        for spec in PRESETS[name].players:
            if spec.name in known:
                same = {"search": spec.search, "knobs": dict(spec.knobs)}
                assert known[spec.name] == json.loads(json.dumps(same)), spec.name


def test_k_stays_while_simulations_are_fitted_to_a_budget():
    network = players.load_network(TINY)
    texts = ("pgs", "mcs simulations_per_update=8", "gumbel", "network")
    specs = [spec for text in texts for spec in players.read_specs(text)]
    fixed = [players.with_parallel(spec, network, 64) for spec in specs]
    assert [spec.knobs.get("simulations_per_update") for spec in fixed] == [4, 8, None, None]
    assert players.describe(players.with_count(fixed[0], 100), network, 100)["K"] == 4


def test_spending_is_compared_within_matches():
    # In the second match everything took three times as long.
    def match(first, second, slow):
        records = [
            ev.PlayerRecord(name, calls=10, seconds=10 * slow * cost)
            for name, cost in (first, second)
        ]
        return ev.MatchResult(tuple(records), np.arange(2), np.zeros((2, 1, 2)))

    matches = [match(("a", 1.0), ("b", 1.1), 1), match(("c", 0.9), ("b", 1.1), 3)]
    found = equal_budget.relative(matches, ["a", "b", "c"], "time")
    assert found == pytest.approx({"a": 1.0, "b": 1.1, "c": 0.9})


def test_games_to_decide():
    assert ratings.games_to_decide(98, -20.0, -80.0, 40.0) == 880
    assert ratings.games_to_decide(98, 80.0, 20.0, 140.0) is None
    assert ratings.games_to_decide(98, 0.0, -60.0, 60.0) is None


@pytest.mark.slow
def test_a_tournament_goes_on_and_says_what_is_unequal(tmp_path, capsys):
    path = tmp_path / "x.json"
    words = ["--preset", "defaults", "--network", TINY, "--simulations", "4", "--out", str(path),
             "--openings", "9"]  # fmt: skip
    strength.main([*words, "--players", "NN", "mctx Gumbel", "--repeats", "3"])
    (row,) = runs.load(path)["rows"]
    assert np.shape(row["outcomes"]) == (2, 1, 9)  # neither player draws at random
    assert "has all these games" not in capsys.readouterr().out
    strength.main([*words, "--players", "NN", "mctx Gumbel", "--repeats", "3"])
    assert runs.load(path)["rows"] == [row] and "has all these games" in capsys.readouterr().out
    strength.main([*words, "--repeats", "3", "--sweep", "mcs simulations_per_update=2",
                   "--players", "NN", "mcs simulations_per_update=2"])  # fmt: skip
    data = runs.load(path)
    assert data["rows"][0] == row and len(data["rows"]) == 2
    by_name = {row["player"]: row for row in data["table"]}
    assert set(by_name) == {"NN", "mctx Gumbel", "mcs simulations_per_update=2"}
    assert by_name["mctx Gumbel"]["K"] == 1 and by_name["mcs simulations_per_update=2"]["K"] == 2
    assert any("K = 1" in remark for remark in data["remarks"])
    assert all(p["low"] <= p["elo"] <= p["high"] for p in data["pairings"])
    with pytest.raises(SystemExit, match="holds rows of repeats 3, not 1"):
        strength.main([*words, "--players", "NN", "mctx Gumbel"])
    with pytest.raises(SystemExit, match=r"strength: .* needs a game of two players; SameGame"):
        strength.main(["--preset", "first", "--network", "samegame-7x7", "--out", f"{path}2"])
    with pytest.raises(SystemExit, match="Unknown player 'me'"):
        strength.main([*words, "--players", "me"])
    strength.main([*words, "--repeats", "3", "--show"])
    assert "Pairings" in capsys.readouterr().out


@pytest.mark.slow
def test_a_pairing_goes_on_after_its_last_batch(tmp_path, monkeypatch, capsys):
    words = ["--preset", "defaults", "--network", TINY, "--simulations", "4", "--openings", "9",
             "--batch-size", "4", "--sweep", "random", "--players", "NN", "random"]  # fmt: skip
    played, play_batch = [], matches._play_batch

    def stopped(*args):
        if len(played) == 2:
            raise KeyboardInterrupt
        played.append(play_batch(*args))
        return played[-1]

    monkeypatch.setattr(matches, "_play_batch", stopped)
    path = tmp_path / "x.json"
    with pytest.raises(KeyboardInterrupt):
        strength.main([*words, "--out", str(path)])
    unfinished = runs.load(path.with_suffix(".unfinished"))["rows"]
    assert [row["batch"] for row in unfinished] == [1, 2]
    with pytest.raises(SystemExit, match="no pairing that is complete"):
        strength.main([*words, "--out", str(path), "--show"])
    won = np.sum([row["outcomes"] for row in unfinished])
    assert f"{won:g} of 16" in capsys.readouterr().out
    monkeypatch.setattr(matches, "_play_batch", lambda *x: played.append(x) or play_batch(*x))
    strength.main([*words, "--out", str(path)])
    assert len(played) == 3 and not path.with_suffix(".unfinished").exists()
    strength.main([*words, "--out", str(tmp_path / "whole.json")])
    (row,), (whole,) = (runs.load(x)["rows"] for x in (path, tmp_path / "whole.json"))
    assert (row["outcomes"], row["lengths"]) == (whole["outcomes"], whole["lengths"])


@pytest.mark.slow
def test_a_calibration_goes_on_after_its_last_trial(tmp_path, monkeypatch):
    words = ["--preset", "defaults-evaluations", "--network", TINY, "--simulations", "4",
             "--openings", "9", "--players", "mctx Gumbel", "MCS default"]  # fmt: skip
    path, calls = tmp_path / "x.json", []

    def calibrate(*args, trials, on_trial, **knobs):
        calls.append((knobs["start"], dict(trials)))
        if len(calls) > 1:
            return 5, 1.0
        on_trial(4, 0.75)
        raise KeyboardInterrupt

    monkeypatch.setattr(strength, "calibrate", calibrate)
    monkeypatch.setattr(strength, "_ROUNDS", 1)
    with pytest.raises(KeyboardInterrupt):
        strength.main([*words, "--out", str(path)])
    assert runs.load(path)["trials"] == {"MCS default": {"4": 0.75}}
    strength.main([*words, "--out", str(path)])
    assert calls == [(4, {}), (4, {4: 0.75})]
    data = runs.load(path)
    assert data["calibrated"] == {"MCS default": 5} and len(data["rows"]) == 1


def test_searches_are_timed_with_several_k():
    counts = [(s.name, s.knobs.get("simulations_per_update")) for s in speed.contestants(256)]
    assert ("PGS cached", 32) in counts and ("PGS cached", 8) in counts
    assert ("MCS constant", 8) in counts and ("mctx Gumbel", None) in counts
    assert ("Gumbel MCTS rounds", "rounds") in counts


def test_rivals_are_found_whoever_is_named_first(tmp_path, capsys):
    with pytest.raises(SystemExit):
        rivals.main(["--folder", str(tmp_path), "--out", str(tmp_path / "rivals.json")])
    assert f"there are no tournaments (strength_*.json) in {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "rivals.json").exists()
    interval = {"openings": 8, "elo": 20.0, "low": 10.0, "high": 31.0}
    pairings = [
        {"first": "mctx Gumbel", "second": "PGS default"} | interval,
        {"first": "Gumbel PGS default", "second": "mctx Gumbel"} | interval,
        {"first": "MCS default", "second": "mctx Gumbel"} | interval,
        {"first": "PGS default", "second": "NN"} | interval,
    ]
    for name, equal, batch in [("hex-9x9", "simulations", None), ("hex-5x5", "time", 1)]:
        setting = {"network": name, "equal": equal, "batch_size": batch, "num_simulations": 64}
        path = tmp_path / f"strength_defaults_{name}.json"
        rows = [{"commit": "0123456789"}]
        path.write_text(json.dumps({"setting": setting, "rows": rows, "pairings": pairings}))
    rivals.main(["--folder", str(tmp_path), "--out", str(tmp_path / "rivals.json")])
    data = runs.load(tmp_path / "rivals.json")
    met = ["mctx Gumbel", "8", "-20 (-31 to -10)", "+20 (+10 to +31)"]
    assert rivals.table(data["rows"])[1] == [
        ["hex-5x5", "time, 1 root", 64, *met, "0123456"],
        ["hex-9x9", "simulations", 64, *met, "0123456"],
    ]


def test_rounds_are_gathered_by_pairs(tmp_path):
    pair = {"first": "a", "second": "b", "openings": 8, "elo": 20.0, "low": 10.0, "high": 31.0}
    for equal, batch, count in [("time", 1, 32), ("time", 1, 16), ("simulations", None, 32)]:
        setting = {"network": "hex-5x5", "equal": equal, "batch_size": batch}
        setting["num_simulations"] = count
        path = tmp_path / f"strength_rounds_{equal}_{count}.json"
        path.write_text(json.dumps({"setting": setting, "rows": [], "pairings": [pair]}))
    rivals.main(["--folder", str(tmp_path), "--out", str(tmp_path / "rivals.json")])
    rows = runs.load(tmp_path / "rounds.json")["rows"]
    text = "+20 (+10 to +31)"
    heads = ["hex-5x5, N = 32", "hex-5x5, time, 1 root, N = 16", "hex-5x5, time, 1 root, N = 32"]
    assert rivals.rounds_table(rows) == (["first", "second", *heads], [["a", "b", *[text] * 3]])


def test_games_of_the_last_calibration_are_rated_until_there_are_newer_ones():
    preset = PRESETS["quick"]._replace(num_simulations=8)
    preset = preset._replace(players=[players.Spec(name, "mcs") for name in "ab"])
    row = {"first": "a", "second": "b", "simulations": [8, 6]}
    data = {"rows": [row | {"simulations": [8, 5]}, row], "calibrated": {"b": 7}}
    assert strength._rated_counts(preset, data) == {"a": 8, "b": 6}
    data["rows"].insert(0, row | {"simulations": [8, 7]})
    assert strength._rated_counts(preset, data) == {"a": 8, "b": 7}
