"""Rows of results hold as long as comparisons lead from their version to today's."""

import jax
import jax.numpy as jnp
import pytest
from quality import versions

from benchmarks import report, stale

PGS, MCS = {"search": "pgs", "knobs": {"c_puct": 0.5}}, {"search": "mcs", "knobs": {}}
PROBES = {stale.key_of(p): p for p in (PGS, MCS, {"search": "match", "knobs": {}})}
NOW = {"search": "c", "core": "c"}  # the digests of today's parts
COMMAND = "python -m benchmarks.{}"


@pytest.fixture(autouse=True)
def today(monkeypatch):
    monkeypatch.setattr(report, "code_digest", NOW.get)
    monkeypatch.setattr(report, "weights_digest", lambda name: "w")


def comparison(commit, parts, after, level="program", **others):
    found = dict.fromkeys(PROBES, level) | others.pop("found", {})
    return {"commit_before": commit, "parts": parts, "other_weights": [], "found": found,
            "fingerprint": after} | others  # fmt: skip


def judge(rows, *comparisons):
    data = {
        "setting": {"network": "net", "players": {"PGS": PGS, "MCS": MCS, "NN": {
            "search": "network", "knobs": {}}}},
        "fingerprints": {"old": {"search": "a", "weights of net": "w"}, "now": NOW,
                         "more": {"search": "a", "training": "a"},
                         "rounded": {"search": "c", "weights of net": "v"}},
        "rows": rows,
    }  # fmt: skip
    known = {
        "setting": {"probes": PROBES},
        "fingerprints": {"b": {"search": "b"}, "now": NOW, "earlier": NOW | {"core": "b"}},
        "rows": comparisons,
    }
    return [(why, old) for _, why, old in stale.judged(data, known)]


def game(fingerprint=None, first="PGS", second="MCS", commit=None):
    return {"command": COMMAND.format("strength"), "first": first, "second": second,
            "fingerprint": fingerprint, "commit": commit}  # fmt: skip


def timed(fingerprint=None, search="PGS cached"):
    command = COMMAND.format("studies.brosseit2023.model_memory")
    return {"command": command, "search": search, "fingerprint": fingerprint}


def test_comparisons_lead_from_a_version_to_the_next():
    first = comparison("A", {"search": "a"}, "b")
    last = comparison("B", {"search": "b"}, "now")
    rows = [game("old"), timed("old"), game("now")]
    same = [("same answers", False), ("same program", False), (None, False)]
    assert judge(rows, last, first) == same
    # A link is missing; or the last one leads to code that is not today's.
    other = [("other search", True), ("other search", True), (None, False)]
    assert judge(rows, first) == other
    assert judge(rows, last) == other
    assert judge(rows, first, last | {"fingerprint": "earlier"}) == other
    # Parts that were not compared must be today's.
    assert judge([game("more")], first, last) == [("other search, training", True)]


def test_a_row_needs_its_own_searches_and_no_others():
    level = {stale.key_of(MCS): "other visits", stale.key_of(PGS): "answers"}
    found = comparison("A", {"search": "a"}, "now", found=level)
    rows = [game("old"), game("old", second="PGS"), timed("old"), timed("old", "MCS constant")]
    assert [old for _, old in judge(rows, found)] == [True, False, True, True]
    # What a match does around its searches is a probe of its own.
    assert judge(rows[1:2], found | {"found": found["found"] | {"match": "other outcomes"}}) == [
        ("other search", True)
    ]
    # The value of the root decides no move.
    found["found"][stale.key_of(PGS)] = "other value"
    assert [old for _, old in judge(rows, found)] == [True, False, True, True]
    # A search that was not compared is not known to be the same.
    assert judge([game("old", first="NN")], found) == [("other search", True)]


def test_weights_matter_for_answers_and_not_for_programs():
    rows = [game("rounded"), timed("rounded")]
    assert [old for _, old in judge(rows)] == [True, False]
    found = comparison("A", {"search": "a"}, "now", other_weights=["net"])
    assert [old for _, old in judge([game("old"), timed("old")], found)] == [True, False]


def test_rows_without_fingerprint_count_by_their_commit():
    found = comparison("A", {"search": "a"}, "now")
    rows = [game(commit="A"), game(commit="A-dirty"), game(), {"command": "x", "commit": "A"}]
    assert judge(rows, found) == [("same answers", False), *[(stale.NONE, True)] * 3]


def test_code_that_another_python_writes_in_other_ways_counts_by_its_commit():
    found = comparison("A", {"search": "a"}, "now")
    unknown = {"fingerprints": {"other": {"search": "x"}}, "setting": {"players": {
        "PGS": PGS, "MCS": MCS}}}  # fmt: skip
    known = {"setting": {"probes": PROBES}, "fingerprints": {"now": NOW}, "rows": [found]}
    rows = [game("other", commit="A"), game("other", commit="A-dirty"), game("other")]
    judged = stale.judged(unknown | {"rows": rows}, known)
    assert [old for _, _, old in judged] == [False, True, True]


def test_an_unknown_commit_is_named():
    with pytest.raises(SystemExit, match="'nought' is not a commit"), versions.worktree("nought"):
        pass


def test_modules_of_checks_decide_no_row():
    prints = {"old": {"search": "a", "checks": "1"}, "now": NOW | {"checks": "1"}}
    data = {"fingerprints": prints, "setting": {"players": {"PGS": PGS, "MCS": MCS}}}
    found = comparison("A", {"search": "a", "checks": "2"}, "now")
    known = {"setting": {"probes": PROBES}, "rows": [found],
             "fingerprints": {"now": NOW | {"checks": "3"}}}  # fmt: skip
    rows = [game("now"), game("old")]
    judged = stale.judged(data | {"rows": rows}, known)
    assert [(why, old) for _, why, old in judged] == [(None, False), ("same answers", False)]


@pytest.mark.parametrize(
    ("row", "needed"),
    [
        (timed(search="PGS default"), ("program", {"pgs"})),
        ({"command": "python tests/quality networks hex-5x5", "player": "PGS 128"},
         ("answers", {"match", "pgs"})),
        ({"command": COMMAND.format("networks"), "player": "raw network"},
         ("answers", {"match", "network"})),
        ({"command": "python tests/quality openings", "player": "Gumbel MCTS"},
         ("answers", {"match", "gumbel-mcts"})),
        ({"command": COMMAND.format("studies.seify2020.samegame"), "search": "tempering"},
         ("answers", {"tempering"})),
        ({"command": COMMAND.format("studies.seify2020.samegame"), "search": "random"},
         ("answers", set())),
        ({"command": COMMAND.format("environments"), "system": "ours"}, ("program", {"games"})),
        ({"command": COMMAND.format("studies.soemers2019.tspg")}, ("answers", set())),
    ],
)  # fmt: skip
def test_every_command_needs_what_decides_its_rows(row, needed):
    assert stale.needs(row, {}, PROBES) == needed


def text(function):
    lowered = jax.jit(function).lower(jnp.arange(4.0), jnp.arange(3))
    return versions.nameless(lowered.as_text())


def test_a_program_does_not_depend_on_names_of_functions():
    def program(scale, name):
        def inner(x):
            return jnp.cumsum(scale * x)

        inner.__name__ = name
        called = jax.jit(inner)
        return lambda x, i: jnp.where(called(x) > 1, called(x + 1), x)[i]

    assert text(program(2.0, "one")) == text(program(2.0, "another"))
    assert text(program(2.0, "one")) != text(program(3.0, "one"))
    # Which function is called where is not lost with the names, and foreign code keeps its name.
    assert versions.nameless("call @a, call @b") != versions.nameless("call @a, call @a")
    assert versions.nameless("custom_call @a") != versions.nameless("custom_call @b")


def test_what_a_compiler_removes_is_no_instruction():
    def loop(scale, times):
        def function(x, key):
            for _ in range(times):
                key = jax.random.fold_in(key, 7)
            again = lambda carry: carry[0].sum() < 100  # noqa: E731
            step = lambda carry: (carry[0] + jnp.float32(scale) * x, carry[1])  # noqa: E731
            return (jax.lax.while_loop(again, step, (x, key))[0],)

        return function

    data = jnp.arange(4.0), jax.random.key(0)
    texts = [versions.program(["cpu"], loop(2, times), *data) for times in (0, 1)]
    assert texts[0] != texts[1]
    found = [
        versions.instructions(loop(*knobs), *data) for knobs in ((2, 0), (2, 1), (3, 0), (3, 1))
    ]
    assert found[0] == found[1] != found[2] == found[3]


def test_answers_may_differ_by_rounding():
    one = {"visits": [1, 2], "value": [0.5, float("nan")]}
    assert versions.compare(one, {"visits": [1, 2], "value": [0.500001, float("nan")]}) == "answers"
    assert versions.compare(one, one | {"visits": [1, 3]}) == "other visits"
    assert versions.compare(one, {"visits": [1], "value": [0.5, 0.5]}) == "other value, visits"
    assert versions.compare(one, one | {"value": [0.51, float("nan")]}) == "other value"
    assert versions.compare(one, {"visits": [1, 2]}) == "other boards"
    assert versions.compare("error: KeyError: 'x'", one) == "error: KeyError: 'x'"
    assert versions.compare("a", "a") == "program"
    assert versions.compare("a", "b") == "other program"
