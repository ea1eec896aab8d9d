"""Every public name has an example in its docstring, and all of them run.

They share the names that the docstring of `jaxpgs` makes, and one process, so that most of what
they call has been compiled before.
"""

import doctest
import importlib
import inspect

import pytest
from games import mostly_slow

import jaxpgs
from jaxpgs.training.models import labelling
from jaxpgs.training.policy_gradient import ppo
from jaxpgs.training.recipes import distillation
from jaxpgs.training.two_player import expert_iteration, experts

pytestmark = pytest.mark.lenient  # a reader's program may promote
PARTS = ["backup", "estimator", "gumbel", "reuse", "selection", "target", "truncation"]
PACKAGES = ["", ".search", ".envs", ".networks", ".puzzles", ".evaluation", ".pretrained", ".gtp"]
NAMES = {
    found.__name__: found
    for package in PACKAGES
    for module in [importlib.import_module(f"jaxpgs{package}")]
    for found in (getattr(module, name) for name in module.__all__)
    if inspect.isclass(found) or inspect.isfunction(found)
} | {
    found.__name__: found
    for part in PARTS
    for found in vars(getattr(jaxpgs, part)).values()
    if getattr(found, "__module__", "") == getattr(jaxpgs, part).__name__
    if ">>>" in (inspect.getdoc(found) or "")
} | {
    f"{found.__module__}.{found.__name__}": found
    for found in (
        experts.make_expert, experts.raw_policy, experts.searcher, expert_iteration.train,
        ppo.train, distillation.distill, labelling.label_games,
    )
}  # fmt: skip
FLAGS = doctest.NORMALIZE_WHITESPACE
# They train, or compile a search that another example has as well.
SLOW = {
    "AlphaZeroResNet", "PlayedGames", "SEResNet", "SameGameResNet", "Searches", "Solution",
    "advance", "distillation.distill", "expert_iteration.train", "extended_pgs_policy",
    "gumbel_mcts_policy", "gumbel_pgs_policy", "judged", "labelling.label_games", "make_plan_fn",
    "make_stochastic_fns", "mcs", "mcs_policy", "muzero_puct", "nrpa", "pgs", "plain_mcts",
    "policy_mcts", "ppo.train", "prior_bias", "pv_mcts", "reroot", "search_for", "show", "solve",
    "step", "stochastic_mcts_policy", "stochastic_mcts_search", "wins_by_opening",
    "with_last_move",
}  # fmt: skip
OFTEN = [name for name in sorted(NAMES) if ".".join(name.split(".")[-2:]) not in SLOW]


def parse(text, name, names):
    return doctest.DocTestParser().get_doctest(text, names, name, None, None)


@pytest.fixture(scope="module")
def shared():
    test = parse(jaxpgs.__doc__, "jaxpgs", {})
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed == 0
    return test.globs


def test_every_public_name_has_a_short_example():
    for name, found in NAMES.items():
        examples = doctest.DocTestParser().get_examples(found.__doc__)
        assert examples, f"{name} has no example"
        assert sum(example.source.count("\n") for example in examples) <= 12, name


@pytest.mark.parametrize("name", mostly_slow(sorted(NAMES), *OFTEN))
def test_example(name, shared):
    test = parse(NAMES[name].__doc__, name, dict(shared))
    report = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    assert not report, "".join(report)
