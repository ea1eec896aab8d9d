"""The knobs of the presets: what signatures, type checkers and error messages say of them."""

import functools
import inspect
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

import jaxpgs
from benchmarks.report import ROOT
from jaxpgs.search import options, run
from jaxpgs.search.presets.making import QTRANSFORM

HEAD = {"adapt": toy.adapt_head}
SEARCHES = {
    "mcs": (jaxpgs.search.mcs_search, jaxpgs.mcs_policy, options.MCSOptions, {}),
    "pgs": (jaxpgs.search.pgs_search, jaxpgs.pgs_policy, options.PGSOptions, HEAD),
    "mcts": (jaxpgs.search.batched_mcts_search, jaxpgs.batched_mcts_policy, options.MCSOptions, {}),
    "extended": (
        jaxpgs.search.extended_pgs_search,
        jaxpgs.extended_pgs_policy,
        options.ExtendedPGSOptions,
        HEAD,
    ),
    "gumbel pgs": (
        jaxpgs.search.gumbel_pgs_search,
        jaxpgs.gumbel_pgs_policy,
        options.GumbelPGSOptions,
        HEAD,
    ),
    "gumbel mcts": (
        jaxpgs.search.gumbel_mcts_search,
        jaxpgs.gumbel_mcts_policy,
        options.GumbelMCTSOptions,
        {},
    ),
}
GUMBEL = ("gumbel pgs", "gumbel mcts")
TREES = ("mcts", "gumbel mcts")


def call(policy, **knobs):
    """Runs a policy of eight simulations on a small game."""
    params = toy.tree(2, 3)
    return policy(params, jax.random.key(0), toy.root(params), toy.split_fn, 8, **knobs)


# --- what shows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEARCHES)
def test_signatures_show_every_knob(name):
    search, policy, known, adapt = SEARCHES[name]
    kept = {"nodes", "adapted_params", "simulations_by_root"}
    for function, names in ((search, set(known.__annotations__) | {"max_depth"}),
                            (policy, set(known.__annotations__) | kept)):  # fmt: skip
        parameters = inspect.signature(function).parameters
        shown = {x for x, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
        assert shown == names | set(adapt)
        assert parameters["truncation"].annotation == "Truncation | None"
        required = {x for x in shown if parameters[x].default is inspect.Parameter.empty}
        assert required == set(adapt)
        for knob in shown:  # help says what each is for
            assert f"\n  {knob}: " in function.__doc__
        assert "**options" not in function.__doc__
    assert "=..." in str(inspect.signature(search)).replace(" ", "")


def test_every_knob_is_named_and_described_once():
    names = [n for part in options._DOCUMENTED for n in part.__annotations__]
    assert len(names) == len(set(names))
    for part in options._DOCUMENTED:
        for name in part.__annotations__:
            assert part.__doc__.count(f"\n      {name}: ") == 1


PROGRAM = """
import jax
import mctx
import jaxpgs


def search(params: jaxpgs.base.Params, root: mctx.RootFnOutput, fn: jaxpgs.RecurrentFn) -> None:
    data, stop = (params, jax.random.key(0), root, fn, 8), jaxpgs.truncation.fixed(4)
    jaxpgs.pgs_policy(*data, adapt="policy_head", temperature=1.0, truncation=stop)
    jaxpgs.gumbel_mcts_policy(*data, None, 4, gumbel_scale=0.0, mode="tree", nodes=None)
    jaxpgs.pgs_policy(*data, adapt="policy_head", **jaxpgs.paper_pgs(1e-4))
    jaxpgs.search.batched_mcts_search(fn, 8, max_depth=3, simulations_per_update=None)
    jaxpgs.mcs_policy(*data, truncatoin=jaxpgs.truncation.fixed(4))  # 13: a misspelt name
    jaxpgs.mcs_policy(*data, truncation=4)  # 14: of another type
    jaxpgs.search.mcs_search(fn, 8, adapt="policy_head")  # 15: nothing adapts
    jaxpgs.search.gumbel_pgs_search(fn, 8, adapt="policy_head", temperature=1.0)  # 16: other noise
    jaxpgs.extended_pgs_policy(*data, capacity="2")  # 17: of another type, and adapt is missing
"""
CONFIG = """
[mypy]
follow_imports = silent
ignore_missing_imports = true
[mypy-jax.*,jaxlib.*,optax.*,chex.*,mctx.*,flax.*,numpy.*,safetensors.*,orbax.*,rich.*]
follow_imports = skip
follow_imports_for_stubs = true
"""


@pytest.mark.slow
def test_a_type_checker_finds_wrong_knobs(tmp_path):
    pytest.importorskip("mypy")
    assert (ROOT / "jaxpgs" / "py.typed").exists(), "or checkers take every type for Any"
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache"]
    environment = {"MYPYPATH": str(ROOT), "PATH": ""}
    found = subprocess.run(
        [*command, "--hide-error-context", "--no-pretty", "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    lines = [int(error.split(":")[1]) for error in errors]
    assert lines == [13, 14, 15, 16, 17, 17], found.stdout + found.stderr
    for error, words in zip(errors, ("truncatoin", "truncation", "adapt", "temperature"),
                            strict=False):  # fmt: skip
        assert f'"{words}"' in error


# --- names that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(
    ("wrong", "right"),
    [("nodse", "nodes"), ("adapted_param", "adapted_params"), ("root_selecton", "root_selection"),
     ("max_dept", "max_depth"), ("mod", "mode")],
)  # fmt: skip
def test_misspelt_names_are_refused_with_the_right_one(name, wrong, right):
    _, policy, _, adapt = SEARCHES[name]
    with pytest.raises(TypeError) as error:
        call(policy, **adapt, **{wrong: None})
    start, accepted = str(error.value).split(" It takes ")
    assert start == f"{policy.__name__}() has no argument {wrong!r}. Did you mean {right!r}?"
    assert eval(accepted[:-1]) == sorted(inspect.signature(policy).parameters)


def test_names_of_other_searches_say_what_to_do():
    for name in GUMBEL:
        for function in SEARCHES[name][:2]:
            for knob in ("temperature", "dirichlet_fraction", "dirichlet_alpha"):
                words = rf"{function.__name__}\(\) has no argument '{knob}': .* gumbel_scale"
                with pytest.raises(TypeError, match=words):
                    function(**{knob: 0.25})
    for name in ("mcs", "mcts", "gumbel mcts"):
        for knob in ("adapt", "estimator", "optimizer", "reuse"):
            with pytest.raises(TypeError, match=f"no argument '{knob}': nothing adapts"):
                SEARCHES[name][0](toy.split_fn, 8, **{knob: "policy_head"})
    with pytest.raises(TypeError, match="no argument 'pb_c_init': a Gumbel root has no PUCT"):
        call(jaxpgs.gumbel_mcts_policy, pb_c_init=1.25)
    with pytest.raises(TypeError, match=r"no argument 'gumbel_scale': .* gumbel_mcts_policy"):
        call(jaxpgs.mcs_policy, gumbel_scale=0.0)
    with pytest.raises(TypeError, match="no argument 'loop_fn': leave it out"):
        call(jaxpgs.gumbel_mcts_policy, loop_fn=jax.lax.fori_loop)
    with pytest.raises(TypeError, match="required keyword-only argument: 'adapt'"):
        call(jaxpgs.pgs_policy)


@pytest.mark.first_case
@pytest.mark.parametrize("name", SEARCHES)
def test_every_name_that_is_listed_is_taken(name):
    search, policy, known, adapt = SEARCHES[name]
    wanted = {"mode": "tree", "max_depth": 3, "simulations_per_update": 2}
    given = dict.fromkeys(known.__annotations__) | wanted
    for knob in ("dirichlet_fraction", "dirichlet_alpha", "gumbel_scale", "entropy",
                 "kl_to_prior", "kl_from_prior"):  # fmt: skip
        if knob in given:
            given[knob] = 0.5
    made = search(toy.split_fn, 8, **adapt, **given)
    assert (made.mode, made.max_depth, made.num_updates) == ("tree", 3, 4)
    output = jax.eval_shape(
        functools.partial(call, policy, nodes=None, adapted_params=None, **adapt, **given)
    )
    assert output.action.shape == (1,)


# --- the modes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEARCHES)
def test_modes_and_their_former_names(name):
    search, policy, _, adapt = SEARCHES[name]
    for mode in ("tree", "tree", None):
        assert search(toy.split_fn, 8, mode=mode, **adapt).mode == "tree"
    for mode in ("rollouts", "rollouts"):
        if name in TREES:
            words = f'mode must be "tree", which is its default; got {mode!r}'
            with pytest.raises(ValueError, match=words):
                call(policy, mode=mode)
        else:
            made = search(toy.split_fn, 8, mode=mode, **adapt)
            assert made.mode == "rollouts" and made.interior_selection is None
    with pytest.raises(ValueError, match=r"mode must be .* 'trees'"):
        search(toy.split_fn, 8, mode="trees", **adapt)


def test_the_search_decides_where_the_preset_cannot():
    assert jaxpgs.search.mcs_search(toy.recurrent_fn, 8).mode == "tree"
    made = jaxpgs.search.pgs_search(toy.recurrent_fn, 8, **HEAD)
    assert made.mode is None and made.interior_selection is not None
    assert jaxpgs.search.pgs_search(toy.recurrent_fn, 8, mode="rollouts", **HEAD).mode == "rollouts"


# --- temperature ----------------------------------------------------------------------------------


def answers(target):
    """What a target says of one node with 64 keys."""
    stats = jaxpgs.base.NodeStats(
        prior_logits=jnp.array([0.0, 0.5, 0.2]),
        value=jnp.array(0.1),
        visits=jnp.array([3, 2, 0]),
        value_sum=jnp.array([0.3, 0.1, 0.0]),
        valid=jnp.ones(3, bool),
    )
    keys = jax.random.split(jax.random.key(1), 64)
    return jax.vmap(lambda key: target(key, stats, None))(keys)


@pytest.mark.slow
def test_a_temperature_is_the_default_targets():
    for name in ("mcs", "pgs", "mcts", "extended"):
        search, _, _, adapt = SEARCHES[name]
        for temperature in (0.5, None):
            target = search(toy.split_fn, 8, temperature=temperature, **adapt).target
            wanted = jaxpgs.target.completed_q(temperature or 0.0, qtransform=QTRANSFORM)
            chex.assert_trees_all_equal(answers(target), answers(wanted))
        drawn = answers(search(toy.split_fn, 8, temperature=1.0, **adapt).target)[0]
        assert len(set(drawn.tolist())) == 3
    with pytest.raises(ValueError, match=r"target=jaxpgs.target.completed_q\(temperature=1.0\)"):
        jaxpgs.search.mcs_search(
            toy.split_fn, 8, temperature=1.0, target=jaxpgs.target.completed_q()
        )
    with pytest.raises(ValueError, match="at least 0"):
        jaxpgs.search.mcs_search(toy.split_fn, 8, temperature=-1.0)


@pytest.mark.slow
def test_a_temperature_may_be_traced_and_draws():
    params = toy.tree(2, 3)
    roots = toy.root(params, [0] * 64)

    @jax.jit
    def act(temperature):
        search = jaxpgs.search.mcs_search(toy.split_fn, 2, temperature=temperature)
        return run(search, params, jax.random.key(0), roots).action

    assert len(set(np.asarray(act(0.0)).tolist())) == 1
    # Both actions are worth the same, so 64 draws are all equal once in 2^63.
    assert len(set(np.asarray(act(1.0)).tolist())) == 2


# --- values that are no parts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "knob", "part"),
    [
        ("mcs", "root_selection", jaxpgs.selection.puct),
        ("mcts", "root_selection", jaxpgs.selection.muzero_puct),
        ("mcs", "interior_selection", jaxpgs.target.improved_policy),
        ("mcs", "truncation", jaxpgs.truncation.until_new),
        ("mcs", "backup", jaxpgs.backup.n_step),
        ("pgs", "backup", jaxpgs.backup.td_lambda),
        ("mcs", "target", jaxpgs.target.visit_counts),
        ("gumbel pgs", "target", jaxpgs.gumbel.gumbel_target),
        ("pgs", "estimator", jaxpgs.estimator.reinforce),
        ("extended", "estimator", jaxpgs.estimator.step_advantage),
        ("pgs", "optimizer", optax.sgd),
        ("pgs", "optimizer", jaxpgs.estimator.auto_sgd),
        ("pgs", "reuse", jaxpgs.reuse.Reuse),
    ],
)
def test_parts_that_nobody_called(name, knob, part):
    search, _, _, adapt = SEARCHES[name]
    with pytest.raises(ValueError) as error:
        search(toy.split_fn, 8, **adapt, **{knob: part})
    message = str(error.value)
    owner = "regularized" if name == "extended" else "A search"
    assert message.startswith(f"{owner} needs {knob} to be a part, such as ")
    assert message.endswith(f"; got {part!r}. Call it: {knob}={part.__name__}(...).")


def test_other_values_that_are_no_parts():
    for knob, value in (("root_selection", "puct"), ("truncation", 4), ("target", 0.0)):
        with pytest.raises(ValueError, match=f"needs {knob} to be a part, .*got {value!r}.$"):
            jaxpgs.search.mcs_search(toy.split_fn, 8, **{knob: value})
    own = {
        "target": lambda rng_key, root, state: (root.visits.argmax(), root.prior_logits),
        "backup": lambda trajectory: trajectory.value,
        "root_selection": jaxpgs.selection.Selection(
            lambda state, node, pending: node.visits.argmin(-1)
        ),
        "truncation": jaxpgs.truncation.Truncation(lambda path: path.depth >= 2),
    }
    made = jaxpgs.search.mcs_search(toy.split_fn, 8, **own)
    assert all(getattr(made, knob) is part for knob, part in own.items())


@pytest.mark.parametrize("name", SEARCHES)
def test_counts_are_whole_numbers(name):
    search, _, _, adapt = SEARCHES[name]
    for knobs in ({"num_simulations": 16.0}, {"simulations_per_update": 4.0}, {"max_depth": 2.5}):
        (knob,) = knobs
        words = rf"A search needs {knob} to be a whole number .*; got {knobs[knob]}"
        with pytest.raises(ValueError, match=words):
            search(toy.split_fn, **({"num_simulations": 16} | knobs), **adapt)
    with pytest.raises(ValueError, match="known before tracing"):
        jax.jit(lambda n: search(toy.split_fn, n, **adapt))(16)
    made = search(toy.split_fn, np.int64(16), simulations_per_update=np.int32(4), **adapt)
    assert type(made.num_simulations) is type(made.simulations_per_update) is int
    for count in (0, -1):
        with pytest.raises(ValueError, match=r"num_simulations to be .*at least 1"):
            search(toy.split_fn, count, **adapt)
