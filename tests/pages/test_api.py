"""The public names, and what the README promises of them."""

import importlib
import inspect
import pathlib
import re

import mctx
import pytest

import jaxpgs

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ["", ".search", ".envs", ".networks", ".pretrained", ".training", ".evaluation"]
PACKAGES += [".gtp", ".play"]


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_exist_are_sorted_and_documented(package):
    module = importlib.import_module(f"jaxpgs{package}")
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.isfunction(found) or inspect.ismodule(found):
            assert inspect.getdoc(found), f"{module.__name__}.{name} has no docstring"


def test_names_that_moved_are_found_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"puct is jaxpgs\.selection\.puct now"):
        assert jaxpgs.puct is jaxpgs.selection.puct
    with pytest.warns(DeprecationWarning, match=r"mcs_search is jaxpgs\.search\.mcs_search now"):
        assert jaxpgs.mcs_search is jaxpgs.search.mcs_search
    for name in ("nrpa_search", "NestedSearch", "PlayedGames", "NodeStats", "reset_adapted"):
        with pytest.warns(DeprecationWarning):
            assert getattr(jaxpgs, name).__name__ == name
    for nothing in ("nothing", "jnp"):
        with pytest.raises(AttributeError, match=f"no attribute '{nothing}'"):
            getattr(jaxpgs, nothing)


SEARCHES = [
    jaxpgs.mcs_policy,
    jaxpgs.pgs_policy,
    jaxpgs.batched_mcts_policy,
    jaxpgs.extended_pgs_policy,
    jaxpgs.gumbel_pgs_policy,
    jaxpgs.gumbel_mcts_policy,
    jaxpgs.stochastic_mcts_policy,
]


@pytest.mark.parametrize("policy", SEARCHES)
def test_searches_take_mctxs_positional_arguments(policy):
    def positional(function):
        parameters = inspect.signature(function).parameters.values()
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    is_stochastic = policy is jaxpgs.stochastic_mcts_policy
    theirs = positional(mctx.stochastic_muzero_policy if is_stochastic else mctx.muzero_policy)
    theirs.remove("loop_fn")
    assert positional(policy) == theirs


def test_the_core_imports_no_extras():
    # Heavy packages are extras; importing the library must not need them.
    code = "import sys, jaxpgs, jaxpgs.play.server, jaxpgs.training; print(*sys.modules)"
    import subprocess
    import sys

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    extras = {"matplotlib", "pyspiel", "pgx", "pandas", "tensorboard", "wandb", "orbax.checkpoint"}
    extras |= {"anywidget", "starlette", "uvicorn", "websockets"}
    assert not (modules | {name.split(".")[0] for name in modules}) & extras


def test_the_readmes_examples_run_as_pasted(capsys):
    names = {}
    text = (ROOT / "README.md").read_text()
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, "README.md", "exec"), names)
    (changed,) = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    for sign in "-+":  # each side of the change is a statement
        side = [line[1:] for line in changed.splitlines() if line[0] == sign]
        compile("\n".join(side), "README.md", "exec")
    drawn = capsys.readouterr().out
    assert "player 0 to move" in drawn


def test_the_results_name_every_pretrained_network():
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    for name in jaxpgs.available_pretrained():
        assert name in text


def test_ci_runs_the_readmes_command():
    text = (ROOT / "README.md").read_text()
    command = re.search(r"<!-- tests -->\n```bash\n(.*?)\n```", text, re.DOTALL).group(1)
    assert "\n" not in command
    assert "pytest" in command and "ruff check" in command and "mypy" in command
