import collections
import gc
import importlib.metadata
import os

# Compiling takes nearly all the time. These options make it several times faster, and the programs
# slower. `XLA_FLAGS= python -m pytest` runs the programs as users run them.
# jaxlib does not know the last option from version 0.11 on, and unknown options end the process.
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

# Tracing creates many long-lived objects; with its default thresholds, garbage collection among
# them takes a twentieth of the total time.
gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(items):
    """Marks as slow the cases of parametrized tests that need not run on every commit.

    Of a test marked `each_value`, a few cases stay, chosen greedily so that each value of each
    parameter occurs. Of a test marked `first_case`, the first case that is not slow stays.
    """
    tests, begun = collections.defaultdict(dict), set()
    for item in items:
        if item.get_closest_marker("first_case") and not item.get_closest_marker("slow"):
            name = item.path, item.originalname
            if name in begun:
                item.add_marker(pytest.mark.slow)
            begun.add(name)
        if item.get_closest_marker("each_value") and not item.get_closest_marker("slow"):
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

    Code of other libraries may promote: wrap its calls in `games.lenient_promotion`, or mark a test
    or module `lenient` that mostly makes such calls. All slow tests may promote, as they train with
    optimizers and play whole games of other libraries.
    """
    if any(request.node.get_closest_marker(name) for name in ("lenient", "slow")):
        yield
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
