"""Searches compiled for other machines: no loop over roots on a TPU, and estimates of costs."""

import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import games
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import export
from jax.extend import core

import jaxpgs
from benchmarks import compiled
from benchmarks.compiled_cost import run_cost, serial_loops
from benchmarks.compiled_trips import count, mark
from benchmarks.speed import positions

OURS = [name for name, (policy, _) in compiled.SEARCHES.items()
        if policy is not None and policy.__module__.startswith("jaxpgs")]  # fmt: skip
ROOTS = 5  # no other loop has as many iterations


def small_program(search, num_roots, num_simulations=8):
    """Returns a program of `benchmarks.compiled` on 3x3 Hex, and the shapes of its arguments."""
    env = jaxpgs.envs.Hex(3)
    sizes = {"width": 8, "num_blocks": 1, "rngs": nnx.Rngs(0)}
    module = jaxpgs.networks.FullyConnectedResNet(env.observation_shape, env.num_actions, **sizes)
    params, apply_fn = jaxpgs.networks.functional(module)
    network = SimpleNamespace(env=env, params=params, apply_fn=apply_fn)
    key_data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    states = jax.eval_shape(lambda: positions(env, num_roots, 0))
    program = compiled.make_program(network, search, num_simulations)
    return program, jax.eval_shape(lambda: (params,))[0], key_data, states


@pytest.mark.first_case
@pytest.mark.parametrize("search", games.mostly_slow(OURS, "PGS", "Gumbel MCTS rounds"))
def test_every_preset_exports_for_every_platform(search):
    program, *shapes = small_program(search, 3)
    exported = export.export(jax.jit(program), platforms=("cpu", "cuda", "tpu"))(*shapes)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert [x.shape for x in exported.out_avals] == [(3,), (3, 9)]


def find_serial_loops(searches):
    """Compiles for a TPU; prints the serial loops over roots of each search as JSON."""
    jax.config.update("jax_platforms", "cpu")
    device, found = compiled.compile_only_device("tpu-v5e"), {}
    for search in searches:
        program, *shapes = small_program(search, ROOTS)
        marked = mark(jax.make_jaxpr(program)(*shapes), "tpu")
        text = compiled.compile_for(device, marked, jax.tree.leaves(shapes)).as_text()
        found[search] = [(x.name, x.trips) for x in serial_loops(text, ROOTS)]
    print(json.dumps(found))


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the TPU's compiler, is not installed: pip install 'jax[tpu]'",
)
def test_no_search_goes_from_root_to_root_on_a_tpu():
    """Compiles in a new process, as the XLA flags of this one do not suit a TPU's compiler."""
    searches = ["PGS", "MCTS", "Gumbel MCTS"]
    folder = pathlib.Path(__file__).parent
    places = [os.environ.get("PYTHONPATH", ""), *map(str, folder.parents[:2])]
    path = os.pathsep.join(places)
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as t; t.find_serial_loops({searches})"],
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
        | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path.strip(os.pathsep)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {search: [] for search in searches}


HLO = """HloModule jit_f, is_scheduled=true

%body.1 (p: (s32[], f32[5,3])) -> (s32[], f32[5,3]) {
  %p = (s32[]{:T(128)}, f32[5,3]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[5,3]{1,0:T(8,128)S(1)} get-tuple-element(%p), index=1
  %write = f32[5,3]{1,0:T(8,128)S(1)} fusion(%x), calls=%fused, backend_config={"estimated_cycles":"10"}
  %next = s32[]{:T(128)} fusion(%i), kind=kLoop, calls=%fused.1, metadata={op_name="jit(f)/a/b/add"}
  ROOT %t = (s32[]{:T(128)}, /*index=1*/f32[5,3]{1,0:T(8,128)}) tuple(%next, %write)
}

%cond.1 (p: (s32[], f32[5,3])) -> pred[] {
  %end = s32[]{:T(128)} constant(5)
  %p = (s32[]{:T(128)}, f32[5,3]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %end), direction=LT
}

%yes (p: f32[5,3]) -> f32[5,3] {
  %p = f32[5,3]{1,0} parameter(0)
  ROOT %copy = f32[5,3]{1,0} copy(%p), backend_config={"estimated_cycles":"100"}
}

%no (p: f32[5,3]) -> f32[5,3] {
  %p = f32[5,3]{1,0} parameter(0)
  ROOT %neg = f32[5,3]{1,0} negate(%p), backend_config={"estimated_cycles":"40"}
}

ENTRY %main (x: f32[5,3]) -> f32[5,3] {
  %x = f32[5,3]{1,0} parameter(0)
  %one = (s32[], f32[5,3]{1,0}) while(%x), condition=%cond.1, body=%body.1, metadata={op_name="jit(f)/a/vmap()/scatter"}
  %two = (s32[], f32[5,3]{1,0}) while(%x), condition=%cond.2, body=%body.1, metadata={op_name="jit(f)/a/vmap(loop_0)/while"}
  ROOT %c = f32[5,3]{1,0} conditional(%q, %x, %x), true_computation=%yes, false_computation=%no, metadata={op_name="jit(f)/loop_1/cond"}
}

%cond.2 (p: (s32[], f32[5,3])) -> pred[] {
  %p = (s32[], f32[5,3]{1,0}) parameter(0)
  ROOT %any = pred[] fusion(%p), kind=kLoop, calls=%fused.2, backend_config={"estimated_cycles":"7"}
}
"""  # noqa: E501


def test_a_program_is_priced():
    cost = run_cost(HLO, ["a", "b"], [None, None], {0: [2.5], 1: [0.25, 0.75]})
    assert [(x.trips, x.known, x.serial) for x in cost.loops] == [
        (5, "condition", True),
        (2.5, "counted", False),
    ]
    # Both loops, the conditions of both, and the branches: false comes first.
    assert cost.cycles == {"a": 50 + 25 + 3.5 * 7, "b": 0, "other": 0.25 * 40 + 0.75 * 100}
    assert cost.kernels == {"a": 5 + 6 + 2.5 + 3.5, "b": 7.5, "other": 1}
    assert cost.round_trips == 6 + 3.5 + 1
    assert cost.serial_cycles == 50 and cost.unestimated == 7.5 and not cost.assumed


def test_what_is_not_known_is_said():
    cost = run_cost(HLO)
    assert cost.assumed == ["jit(f)/a/vmap(loop_0)/while", "jit(f)/loop_1/cond"]
    assert cost.cycles["other"] == 50 + (10 + 2 * 7) + 100  # one trip, and the dearer branch
    known = HLO.replace("while(%x), cond", 'while(%x), config={"known_trip_count":{"n":"3"}}, cond')
    cost = run_cost(known)
    assert [x.trips for x in cost.loops] == [3, 3] and cost.round_trips == 1


def test_serial_loops_are_found():
    assert [x.name for x in serial_loops(HLO)] == ["jit(f)/a/vmap()/scatter"]
    assert len(serial_loops(HLO.replace("vmap()/scatter", "while"))) == 0
    assert len(serial_loops(HLO.replace("vmap()/scatter", "while"), 5)) == 1


def looping(x):
    """Four times, doubles each row until it reaches 100 and divides all; then a TPU goes on."""

    def grow(x, i):
        x = jax.vmap(lambda x: jax.lax.while_loop(lambda x: x < 100, lambda x: 2 * x, x))(x)
        return jax.lax.cond(i == 0, lambda x: x / 4, lambda x: x / 2, x), None

    with jax.named_scope("part"):
        x, _ = jax.lax.scan(grow, x, jnp.arange(4))
    on_tpu = functools.partial(jax.lax.while_loop, lambda x: x[0] < 1000, lambda x: x * 10)
    return jax.lax.platform_dependent(x, tpu=on_tpu, default=lambda x: x)


@pytest.mark.parametrize("platform, further", [("cuda", []), ("tpu", [[2.0]])])
def test_trips_are_counted_in_a_run(platform, further):
    x = jnp.array([40.0, 3.0, 99.0])  # the longest of the rows takes 6, 2, 1 and 1 trips
    marked = mark(jax.make_jaxpr(looping)(x), platform)
    assert marked.scopes == {"part"} and [n for n in marked.lengths if n] == [4]
    assert jnp.array_equal(core.jaxpr_as_fun(marked.jaxpr)(x)[0], looping(x))
    counted = count(marked, platform, x)
    sides = [1.0, 0.0] if platform == "tpu" else [0.0, 1.0]
    assert sorted(counted.values()) == sorted([[2.5], [0.75, 0.25], sides, *further])
    again, other = (mark(jax.make_jaxpr(looping)(x), p).digest for p in (platform, "other"))
    assert marked.digest == again != other

    text = jax.jit(core.jaxpr_as_fun(marked.jaxpr)).lower(x).compile().as_text()
    cost = run_cost(text, ["part"], marked.lengths, counted)  # what was compiled has the names
    assert not cost.assumed
    assert [(x.trips, x.visits, x.serial) for x in cost.loops] == [(4, 1, False), (2.5, 4, False)]
    assert cost.kernels["part"] > cost.kernels["other"]


def test_the_command_writes_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compiled, "compile_only_device", lambda _: jax.devices()[0])
    monkeypatch.setattr(compiled, "SEARCHES", {"network": (None, {})})
    command = ["--platform", "h100", "--network", "hex-5x5", "--settings", "2x4", "--searches"]
    command += ["network", "--out", str(tmp_path / "rows.json")]
    compiled.main(command)
    compiled.main(command)
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["kernels"] > 0 and row["round_trips"] == 0 and row["cycles"] is None
    assert "2" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        compiled.main([*command, "--settings", "0x4"])


@pytest.mark.parametrize("platform, package", [("tpu-v6e", "libtpu"), ("h100", "ptxas")])
def test_a_missing_package_is_named(platform, package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(SystemExit, match=f"{platform} needs {package}: pip install"):
        compiled.compile_only_device(platform)
