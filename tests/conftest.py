import collections
import gc
import importlib.metadata
import os

# Nearly all the time goes into compiling, which these options make several times faster and the
# programs slower. `XLA_FLAGS= python -m pytest` runs the programs as users run them.
# The last option is not known from version 0.11 on, which ends on what it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith(("0.8.", "0.9.", "0.10.")),
)
os.environ["JAXPGS_TINY"] = "1"  # notebooks run their commands small
# With libtpu installed, JAX would look for a TPU first.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

# Tracing makes many objects that live on; looking for garbage among them as often as usual takes
# a twentieth of all time.
gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(items):
    """Marks as slow what a test marked `each_value` or `first_case` need not run on every commit.

    Of all combinations of the parameters of the one every commit runs the fewest, found greedily,
    in which each value of each parameter occurs; of the other the first case that is not slow.
    """
    tests, begun = collections.defaultdict(dict), set()
    for item in items:
        if item.get_closest_marker("first_case") and not item.get_closest_marker("slow"):
            name = item.path, item.originalname
            if name in begun:
                item.add_marker(pytest.mark.slow)
            begun.add(name)
        if item.get_closest_marker("each_value"):
            values = {(name, repr(value)) for name, value in item.callspec.params.items()}
            tests[item.path, item.originalname][item] = values
    for cases in tests.values():
        missing = set().union(*cases.values())
        while missing:
            item = max(cases, key=lambda item: len(cases[item] & missing))
            missing -= cases.pop(item)
        for item in cases:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def strict_promotion(request):
    """Makes implicit promotion of ranks and dtypes an error.

    Other libraries need not pass: wrap their calls in `games.lenient_promotion`, or mark a test or
    a module that does little else `lenient`. Slow tests train with optimizers and play whole games
    of other libraries, so all of them may promote.
    """
    if any(request.node.get_closest_marker(name) for name in ("lenient", "slow")):
        yield
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
